/*
 * The sender of selective repeat: it retransmits the frames that the receiver reports as missing, and no others.
 *
 *       una                                            high
 *    ----+---+-----------+---+------------------------+----- psn ->
 *        |gap|   held    |gap|   held  | not reported |
 *                                      ^ top
 *
 * A retransmitted frame may be lost again. Frames of one connection hardly overtake one another here. So it is lost if
 * a frame sent later has arrived (the idea of RACK, RFC 8985, with an order instead of its times). The later frame is a
 * new one or another retransmission. Therefore the sender remembers for each retransmitted frame the value of `high` at
 * that time, and its number among all retransmissions. Without such evidence no frame is retransmitted twice, however
 * many lists arrive. If no frame follows that could give evidence, the tail probe requests a report (reliable.c), and
 * after it all retransmitted frames count as lost.
 *
 * The effect of a loss on the window. Single frames are lost by chance, and reduce the window by as much as was lost,
 * no more. (On a path that loses one frame in a hundred, the window settles near a hundred sends.) A run of lost frames
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
    struct resent_frame {
        uint32_t psn;
        uint32_t high;  /* high_psn when it was retransmitted; psn itself: this entry is empty */
        uint32_t order; /* its number among all retransmissions */
    } frames[N_RESENT];
    uint32_t log[N_RESENT]; /* psn of each retransmission, by its number */
    uint32_t oldest, next;  /* numbers: the oldest whose arrival is not known, and the next to be used */
    uint32_t arrived;       /* all retransmissions before this one have arrived, or are lost again */
};

void via_retransmit_forget(struct via_vi *vi)
{
    free(vi->resent);
    vi->resent = NULL;
}

/* The table has no chains: a later frame with the same index replaces the entry. */
static struct resent_frame *resent_entry(struct via_vi *vi, uint32_t psn)
{
    return &vi->resent->frames[psn & (N_RESENT - 1)];
}

/* True if the frame was retransmitted and no frame sent after that has been reported as arrived: neither a new one (the
 * list would reach beyond `high`), nor another retransmission. */
static int is_resent(struct via_vi *vi, uint32_t psn, uint32_t top)
{
    const struct resent_frame *e = resent_entry(vi, psn);
    return e->psn == psn && e->high != psn && !wire_before(e->high, top) && !wire_before(e->order, vi->resent->arrived);
}

/* Notes that the frame is retransmitted. If the log is full, its oldest entry is dropped: its arrival then is no
 * evidence about other frames. */
static void note_resent(struct via_vi *vi, uint32_t psn)
{
    struct via_resent *r = vi->resent;
    *resent_entry(vi, psn) = (struct resent_frame){psn, vi->high_psn, r->next};
    r->log[r->next++ & (N_RESENT - 1)] = psn;
    if (r->next - r->oldest > N_RESENT)
        r->oldest++;
}

/* Notes which retransmissions have arrived, according to the list of gaps: those before ack, and those that it reports
 * as held. The retransmissions are nearly in the order of the list, so the search continues where it was. */
static void note_arrivals(struct via_vi *vi, uint32_t ack, const uint8_t *list, size_t len)
{
    struct via_resent *r = vi->resent;
    struct wire_run run = {0, 0};
    uint32_t begin = ack, end = ack; /* of the run that the search is at */
    size_t at = 0;
    for (uint32_t i = r->oldest; i != r->next; i++) {
        uint32_t psn = r->log[i & (N_RESENT - 1)];
        const struct resent_frame *e = resent_entry(vi, psn);
        int superseded = e->psn != psn || e->order != i; /* retransmitted again */
        if (!superseded && wire_before(psn, begin) && !wire_before(psn, ack))
            begin = end = ack, at = 0;
        while (!superseded && !wire_before(psn, end) && at < len) {
            memcpy(&run, list + at, sizeof run);
            begin = end;
            end += (uint32_t)run.missing + run.held;
            at += sizeof run;
        }
        int arrived = wire_before(psn, ack) || (wire_before(psn, end) && psn - begin >= run.missing);
        if (!superseded && arrived && wire_before(r->arrived, i + 1))
            r->arrived = i + 1;
        if (i == r->oldest && (superseded || arrived))
            r->oldest++;
    }
}

/* True if the frame was retransmitted at least once. A second loss does not reduce the window, because the first one
 * did. */
static int was_resent(struct via_vi *vi, uint32_t psn)
{
    const struct resent_frame *e = resent_entry(vi, psn);
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
    /* The frames that one more window could send. The receiver keeps VIA_REORDER_FRAMES, so `most` leaves room for
     * these. */
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
                note_resent(vi, psn + (uint32_t)i);
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

/* Handles a NAK with a list. First it checks that the list is possible and new, then it marks the sends that have
 * arrived. Then it retransmits the gaps one by one, up to a window of link sends. */
void via_retransmit_gaps(struct via_vi *vi, uint32_t ack, const uint8_t *list, size_t len)
{
    uint32_t sum = reach(list, len), top = ack + sum, most = vi->window, sends = most, hint = vi->send.done;
    if (sum == 0 || sum > vi->high_psn - ack) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    if (ack != vi->una_psn)
        return; /* older than the last acknowledgement */
    if (vi->resent == NULL && (vi->resent = calloc(1, sizeof *vi->resent)) == NULL)
        return; /* the time-out recovers */
    note_arrivals(vi, ack, list, len);
    see_flight(vi, top);
    uint32_t psn = ack;
    struct wire_run r;
    /* reach() has checked that the list consists of whole runs. */
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
