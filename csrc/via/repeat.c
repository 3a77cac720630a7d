/*
 * The sender's side of selective repeat: what the receiver names as missing is sent again, and nothing else.
 *
 *       una                                            high
 *    ----+---+-----------+---+------------------------+----- psn ->
 *        |gap|   held    |gap|   held  | nothing said |
 *                                      ^ top
 *
 * When is a frame lost that was sent again already? Frames of one connection hardly overtake one another here. So
 * for each frame that was sent again we remember how far we had got then (`high`). A receiver that has something
 * from behind that point, and still misses the frame, has lost it again. Without such evidence nothing is sent
 * twice, however many lists arrive; and if there is nothing new to send that could bear witness, the tail probe asks
 * (reliable.c), after which all of it is thought lost.
 *
 * What a loss costs the window: single frames are lost by chance, a frame here and there; they cost as much of the
 * window as was lost, no more (the window of a path that loses one frame in a hundred settles near a hundred sends).
 * More than a whole link send in a row is a receiver whose ring has run over; that halves the window, once per round
 * trip.
 *
 * The list is a stranger's: its sum must lie within what is in flight, and its length bounds the work.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

#define N_RESENT 4096 /* a power of two; further apart, frames forget of each other that they were sent again */
#define BURST 4       /* so many frames in a row are not lost by chance */

struct via_resent {
    uint32_t psn;
    uint32_t high; /* high_psn when it was sent again; psn itself: this entry is empty */
};

void via_repeat_forget(struct via_vi *vi)
{
    free(vi->resent);
    vi->resent = NULL;
}

/* A table without chains: the frame that comes later in the same place takes it. */
static struct via_resent *resent_entry(struct via_vi *vi, uint32_t psn)
{
    return &vi->resent[psn & (N_RESENT - 1)];
}

/* Is it on its way again, for all we know? */
static int is_resent(struct via_vi *vi, uint32_t psn, uint32_t top)
{
    const struct via_resent *e = resent_entry(vi, psn);
    return e->psn == psn && e->high != psn && !wire_before(e->high, top);
}

/* Once at least; the second loss costs the window nothing, for the first one did. */
static int was_resent(struct via_vi *vi, uint32_t psn)
{
    const struct via_resent *e = resent_entry(vi, psn);
    return e->psn == psn && e->high != psn;
}

/* Frames per link send, of what is in flight. */
static uint32_t frames_per_send(const struct via_vi *vi)
{
    uint32_t sends = vi->flight_tail - vi->flight_head, frames = vi->high_psn - vi->una_psn;
    return sends && frames > sends ? frames / sends : 1;
}

/* n frames in a row were lost, for the first time. */
static void charge_window(struct via_vi *vi, uint32_t n, uint32_t per_send)
{
    if (n >= BURST && n > per_send) {
        if (!wire_before(vi->una_psn, vi->recover_psn)) {
            vi->recover_psn = vi->high_psn;
            via_shrink_window(vi, vi->window / 2);
        }
        return;
    }
    vi->lost_frames += n;
    for (; vi->lost_frames >= per_send; vi->lost_frames -= per_send)
        via_shrink_window(vi, vi->window - 1);
}

/* Link sends that lie wholly before top have arrived, but for what is sent again one by one: they make room for
 * others. Not so many that more would be outstanding than the receiver can keep. */
static void see_flight(struct via_vi *vi, uint32_t top)
{
    uint32_t window = vi->nic->options.window, batch = vi->nic->limits.max_batch, ahead = window * batch;
    uint32_t most = ahead < VIA_EARLY_FRAMES ? VIA_EARLY_FRAMES - ahead : 0;
    while (vi->flight_seen != vi->flight_tail && vi->flight_seen - vi->flight_head < VIA_FLIGHT - 1 - window) {
        uint32_t end = vi->flight_end[vi->flight_seen & (VIA_FLIGHT - 1)];
        if (wire_before(top, end) || end - vi->una_psn > most)
            return;
        vi->flight_seen++;
    }
}

/* Sends again what of [psn, end) is not on its way already. At most *sends link sends. 0: the VI is gone, or the
 * link is full. */
static int repeat_run(struct via_vi *vi, uint32_t psn, uint32_t end, uint32_t top, uint32_t *sends, uint32_t *hint)
{
    uint32_t per_send = frames_per_send(vi);
    while (wire_before(psn, end)) {
        uint32_t n = 0, again = 0;
        while (psn + n != end && !is_resent(vi, psn + n, top))
            again += (uint32_t)was_resent(vi, psn + n++);
        if (n == 0) {
            psn++;
            continue;
        }
        if (again == 0)
            charge_window(vi, n, per_send);
        for (uint32_t stop = psn + n; psn != stop;) {
            int sent = *sends ? via_send_again(vi, psn, stop - psn, 0, hint) : 0;
            if (sent <= 0)
                return 0;
            for (int i = 0; i < sent; i++)
                *resent_entry(vi, psn + (uint32_t)i) = (struct via_resent){psn + (uint32_t)i, vi->high_psn};
            psn += (uint32_t)sent;
            --*sends;
        }
    }
    return 1;
}

/* How far the list reaches beyond ack; 0 if it is not one. */
static uint32_t reach(const uint8_t *list, size_t len)
{
    uint32_t sum = 0;
    struct wire_run r;
    for (size_t i = 0; i + sizeof r <= len; i += sizeof r) {
        memcpy(&r, list + i, sizeof r);
        sum += (uint32_t)r.missing + r.held;
    }
    return len % sizeof r || len > WIRE_MAX_RUNS * sizeof r ? 0 : sum;
}

/* A NAK with a list. In order: is the list possible, is it news, what does it tell of sends that have arrived, and
 * then its gaps, one by one, as far as a window of link sends goes. */
void via_repeat(struct via_vi *vi, uint32_t ack, const uint8_t *list, size_t len)
{
    uint32_t sum = reach(list, len), top = ack + sum, most = vi->window, sends = most, hint = vi->send.done;
    if (sum == 0 || sum > vi->high_psn - ack) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    if (ack != vi->una_psn)
        return; /* older than what we know */
    if (vi->resent == NULL && (vi->resent = calloc(N_RESENT, sizeof *vi->resent)) == NULL)
        return; /* the time-out will do */
    see_flight(vi, top);
    uint32_t psn = ack;
    struct wire_run r;
    for (size_t i = 0; i < len; i += sizeof r) {
        memcpy(&r, list + i, sizeof r);
        /*     ack -> | missing | held | missing | held | ... -> top */
        uint32_t held = psn + r.missing;
        if (r.held && vi->rtt.timing && !wire_before(vi->rtt.psn - 1, held) &&
            wire_before(vi->rtt.psn - 1, held + r.held))
            via_rtt_arrived(vi, vi->rtt.psn);
        if (!repeat_run(vi, psn, held, top, &sends, &hint))
            break;
        psn = held + r.held;
    }
    if (vi->state != VIP_STATE_CONNECTED)
        return;
    via_skip_to(vi, top); /* after a time-out: what lies behind the list only */
    if (sends != most)
        via_arm_rto(vi);
    if (vi->send.next != vi->send.posted && !vi->on_stall_list)
        via_transmit(vi);
}
