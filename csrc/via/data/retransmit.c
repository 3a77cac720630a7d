/*
 * The sender of selective repeat: it retransmits the frames that the receiver reports as missing, and no others.
 *
 *       una                                            high
 *    ----+---+-----------+---+------------------------+----- psn ->
 *        |gap|   held    |gap|   held  | not reported |
 *                                      ^ top
 *
 * A retransmitted frame may be lost again. Frames of one connection hardly overtake one another here. Therefore the
 * sender remembers for each retransmitted frame the value of `high` at that time. If the receiver holds a frame beyond
 * that point and still misses the retransmitted one, that one is lost again. Without such evidence no frame is
 * retransmitted twice, however many lists arrive. If no new frame follows that could give evidence, the tail probe
 * requests a report (reliable.c), and after it all retransmitted frames count as lost.
 *
 * The effect of a loss on the window: single frames are lost by chance and reduce the window by as much as was lost, no
 * more. (On a path that loses one frame in a hundred, the window settles near a hundred sends.) A run of lost frames
 * longer than a link send means that the receiver's ring has overflowed; it halves the window, once per round trip.
 *
 * The list may come from an attacker: its sum must lie within what is in flight, and its length bounds the work.
 *
 * Only the NIC's owner calls these functions.
 */
#include <stdlib.h>
#include <string.h>

#include "link/frame_format.h"
#include "via/data/data.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/vi.h"

#define N_RESENT 4096 /* a power of two; two frames this far apart share an entry */
#define BURST 4       /* this many frames in a row are not lost by chance */

struct via_resent {
    uint32_t psn;
    uint32_t high; /* high_psn when it was retransmitted; psn itself: this entry is empty */
};

void via_retransmit_forget(struct via_vi *vi)
{
    free(vi->resent);
    vi->resent = NULL;
}

/* The table has no chains: a later frame with the same index replaces the entry. */
static struct via_resent *resent_entry(struct via_vi *vi, uint32_t psn)
{
    return &vi->resent[psn & (N_RESENT - 1)];
}

/* True if the frame was retransmitted and no frame sent after that has been reported as held. */
static int is_resent(struct via_vi *vi, uint32_t psn, uint32_t top)
{
    const struct via_resent *e = resent_entry(vi, psn);
    return e->psn == psn && e->high != psn && !wire_before(e->high, top);
}

/* True if the frame was retransmitted at least once. A second loss does not reduce the window, because the first one
 * did. */
static int was_resent(struct via_vi *vi, uint32_t psn)
{
    const struct via_resent *e = resent_entry(vi, psn);
    return e->psn == psn && e->high != psn;
}

/* Average number of frames per link send in flight. */
static uint32_t frames_per_send(const struct via_vi *vi)
{
    uint32_t sends = vi->flight_tail - vi->flight_head, frames = vi->high_psn - vi->una_psn;
    return sends && frames > sends ? frames / sends : 1;
}

/* Reduces the window: n frames in a row were lost, for the first time. */
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

/* Marks the link sends that lie completely before top as arrived, except for frames that are retransmitted one by one.
 * They make room in the window for others. Stops before more frames would be outstanding than the receiver can keep. */
static void see_flight(struct via_vi *vi, uint32_t top)
{
    uint32_t usual = vi->nic->options.window, window = vi->window > usual ? vi->window : usual;
    uint32_t ahead = window * vi->nic->limits.max_batch;
    uint32_t most = ahead < VIA_REORDER_FRAMES ? VIA_REORDER_FRAMES - ahead : 0;
    while (vi->flight_seen != vi->flight_tail && vi->flight_seen - vi->flight_head < VIA_FLIGHT - 1 - window) {
        if (via_flight_ahead(vi, vi->flight_seen, top) > 0 ||
            via_flight_ahead(vi, vi->flight_seen, vi->una_psn) > (int32_t)most)
            return;
        vi->flight_seen++;
    }
}

/* Retransmits the frames of [psn, end) that are not already retransmitted, in at most *sends link sends. Returns 0 if
 * the connection has ended or the link is full. */
static int retransmit_run(struct via_vi *vi, uint32_t psn, uint32_t end, uint32_t top, uint32_t *sends, uint32_t *hint)
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

/* Returns how far the list reaches beyond ack; 0 if it is malformed. */
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

/* Handles a NAK with a list, in this order: checks that the list is possible and new, marks the sends that have
 * arrived, then retransmits the gaps one by one, up to a window of link sends. */
void via_retransmit_gaps(struct via_vi *vi, uint32_t ack, const uint8_t *list, size_t len)
{
    uint32_t sum = reach(list, len), top = ack + sum, most = vi->window, sends = most, hint = vi->send.done;
    if (sum == 0 || sum > vi->high_psn - ack) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    if (ack != vi->una_psn)
        return; /* older than the last acknowledgement */
    if (vi->resent == NULL && (vi->resent = calloc(N_RESENT, sizeof *vi->resent)) == NULL)
        return; /* the time-out recovers */
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
        if (!retransmit_run(vi, psn, held, top, &sends, &hint))
            break;
        psn = held + r.held;
    }
    if (vi->state != VIP_STATE_CONNECTED)
        return;
    via_skip_to(vi, top); /* after a time-out: send only the frames behind the list */
    if (sends != most)
        via_arm_rto(vi);
    if (vi->send.next != vi->send.posted && !vi->on_stall_list)
        via_transmit(vi);
}
