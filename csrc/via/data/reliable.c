/*
 * The reliable levels over links that lose, duplicate and reorder frames: sequence numbers, cumulative
 * acknowledgements, negative ones that list the missing frames, a congestion window, time-outs with back-off, and
 * probes that detect a dead peer.
 *
 *        una            tx               high         next        psn ->
 *    ----+--------------+----------------+------------+-----
 *        | in flight    | to be sent     | assigned, never sent
 *                         again
 *
 * una <= tx <= high <= next. Messages hold consecutive numbers (tx.c); an acknowledgement of a message's last number
 * completes it.
 *
 * The reaction to a missing frame depends on the receiver alone. A receiver that keeps out-of-order frames (reorder.c)
 * lists the gaps, and only the listed frames are retransmitted (retransmit.c). One that does not (VIAKIT_GO_BACK_N)
 * requests the missing frame once per pass, and the sender goes back to it: tx is set back, and all frames from there
 * are sent again. After a time-out the sender goes back with any receiver, because it has no report.
 *
 * The window counts link sends, not bytes: each takes one slot of the receiver's ring, a super-frame as much as a small
 * frame. It grows by one per round trip. It shrinks as follows:
 *
 * - Single losses reduce it by as much as was lost (retransmit.c).
 * - A burst of losses halves it.
 * - A time-out closes it; it then doubles per round trip up to half its former size.
 * - A time-out that was too early (an acknowledgement arrives for frames not yet sent again) is undone.
 *
 * The usual window suffices for the short round trips of one switch, and its frames stay in the caches. Over a long
 * wire most frames in flight are on the wire and not in the receiver's ring. So the window may grow up to
 * nic->long_window if no round trip was ever shorter than LONG_TRIP. That of the handshake counts too, because it waits
 * behind no data. The window doubles per round trip, as long as the program fills it, until the first loss. Afterwards
 * it grows by one per millisecond instead of per round trip: otherwise random losses would keep it as small as over a
 * short wire (the idea of Caini and Firrincieli's TCP Hybla, without its square). A connection whose wire becomes
 * longer later keeps the usual window.
 *
 * If no reply follows a send, the sender first sends two tail probes: the last frame again, which makes the receiver
 * report what it has (rtt.c has the times). Then time-outs follow, and after max_retries of these the peer counts as
 * failed.
 *
 * Only the NIC's owner calls these functions.
 */
#include "base/atomic.h"
#include "base/clock.h"
#include "link/frame_format.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/observer.h"
#include "via/vi.h"
#include "via/work.h"

#define RTO_LONGEST (500 * VK_MS)
#define TAIL_PROBES 2
#define LONG_TRIP (2 * VK_MS) /* a busy peer is slow at times, and not always */
#define GROWTH_MOST 32
#define BACKOFF_MOST 10 /* doublings: any probe is then later than the longest time-out */

/* The number after the work's last frame. */
static inline uint32_t end_of(const struct via_work *w)
{
    return w->first_psn + w->n_frames;
}

/* How long to wait before the next tail probe; 0 if a time-out comes next. A probe is possible only if everything was
 * sent, something is unacknowledged, and the probe would come before the time-out. */
static uint64_t before_probe(const struct via_vi *vi)
{
    if (!vi->reliable || !vi->confirmed || vi->rtt.tail_probes == TAIL_PROBES || vi->retries ||
        vi->una_psn == vi->high_psn || vi->tx_psn != vi->high_psn)
        return 0;
    uint64_t wait = via_rtt_probe(vi) << vi->rtt.backoff;
    return wait < vi->rto ? wait : 0;
}

/* One deadline serves tail probes, time-outs and keep-alive probes: time_out() decides which when it passes. */
void via_arm_rto(struct via_vi *vi)
{
    vi->nic->now = vk_now(); /* the program may have computed for long since the clock was read */
    if (vi->rtt.tail_probes == 0 && vi->retries == 0)
        vi->waiting_since = vi->nic->now;
    uint64_t wait = before_probe(vi);
    vi->rto_deadline = vi->nic->now + (wait ? wait : vi->rto);
    via_timer(vi->nic, vi->rto_deadline);
}

/* Shrinks the window, but not below four sends (or the window that the program requested): a window of one would wait a
 * round trip for each loss. The threshold follows, so the window does not jump back. */
void via_shrink_window(struct via_vi *vi, uint32_t to)
{
    uint32_t least = vi->nic->options.window < 4 ? vi->nic->options.window : 4;
    vi->window = to > least ? to : least;
    vi->window_credit = 0;
    if (vi->threshold > vi->window)
        vi->threshold = vi->window;
}

/* Releases what both sides of a connection keep between frames. The work queues are not touched (via_flush). */
void via_forget_frames(struct via_vi *vi)
{
    via_card_stop(vi); /* first: it frees the memory of descriptors that are about to be flushed */
    via_reorder_drop(vi);
    via_retransmit_forget(vi);
    via_reads_reset(vi);
    vi->has_gap = 0;
}

/* Completes sends in posting order, up to the first that may not complete: one not completely sent, or sent and not
 * acknowledged where that is required. A send with an error ends a reliable connection, at that point of the order and
 * not before. */
void via_complete_sends(struct via_vi *vi)
{
    struct via_queue *q = &vi->send;
    while (q->done != q->next) {
        struct via_work *w = via_work_at(q, q->done);
        if (!w->sent || (w->wait_ack && !w->error && wire_before(vi->una_psn, end_of(w))))
            return;
        uint32_t status = w->error;
        if (w->control & VIP_CONTROL_IMMEDIATE)
            status |= VIP_STATUS_IMMEDIATE;
        via_complete(vi, q, status);
        if (vk_unlikely(w->error && vi->reliable)) {
            if (vi->state == VIP_STATE_CONNECTED)
                via_send_control(vi, WIRE_DISCONNECT, 0, 0);
            via_break(vi, 0);
            return;
        }
    }
    if (vi->lossless || !vi->reliable)
        vi->una_psn = vi->tx_psn; /* everything is done: no acknowledgement follows, and nothing is outstanding */
}

/* The size up to which the window may grow. */
static uint32_t window_most(const struct via_vi *vi)
{
    return vi->long_trip ? vi->nic->long_window : vi->nic->options.window;
}

/* Lets the window exceed the usual size over a long wire. The threshold of a connection that has lost nothing is still
 * the usual window. */
static void note_long_trip(struct via_vi *vi)
{
    uint32_t usual = vi->nic->options.window;
    if (vi->window < usual || vi->nic->long_window == usual || vi->rtt.least < LONG_TRIP)
        return;
    vi->long_trip = 1;
    if (vi->threshold == usual)
        vi->threshold = vi->nic->long_window;
}

/* Link sends by which the window grows per round trip. */
static uint32_t growth(const struct via_vi *vi)
{
    uint64_t trips = vi->rtt.least / VK_MS;
    if (!vi->long_trip)
        return 1;
    return trips < GROWTH_MOST ? (uint32_t)trips : GROWTH_MOST;
}

/* Grows the window after n more sends were acknowledged. Below the threshold each grows it by one (slow start), above
 * it a whole window of them does (congestion avoidance): additive increase, as in TCP (RFC 5681), counted in link
 * sends. used: the sends that were in flight. A window that the program does not fill stays at its usual size: nothing
 * would show whether the receiver can take more. */
static void open_window(struct via_vi *vi, uint32_t n, uint32_t used)
{
    if (vk_unlikely(!vi->long_trip))
        note_long_trip(vi);
    uint32_t most = window_most(vi);
    if (vi->window >= vi->nic->options.window && used < vi->window / 2)
        return;
    vi->window_credit += n;
    if (vi->window < vi->threshold) /* back to half the size at the loss: doubles per round trip */
        vi->window = vi->window + n < vi->threshold ? vi->window + n : vi->threshold;
    else if (vi->window < most && vi->window_credit >= vi->window) {
        vi->window_credit = 0;
        vi->window = vi->window + growth(vi) < most ? vi->window + growth(vi) : most;
    }
}

/* Skips frames that have arrived, or are kept by the receiver. The queue's next work advances with them. */
void via_skip_to(struct via_vi *vi, uint32_t psn)
{
    if (!wire_before(vi->tx_psn, psn))
        return;
    vi->tx_psn = psn;
    while (vi->send.next != vi->send.posted) {
        struct via_work *w = via_work_at(&vi->send, vi->send.next);
        int came_by = w->started || w->sent; /* a work with an error found when posted never starts */
        if (!came_by || wire_before(psn, end_of(w)))
            break;
        vi->send.next++;
    }
}

/* Handles an acknowledgement: the peer has all frames before ack. Every frame of a connection carries one; most
 * acknowledge nothing new. */
void via_acknowledged(struct via_vi *vi, uint32_t ack)
{
    if (!wire_before(vi->una_psn, ack))
        return;
    if (wire_before(vi->high_psn, ack)) { /* acknowledges frames that were never sent: not a correct peer */
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    VIA_OBSERVE(vi->nic, acknowledged, vi, ack);
    vi->una_psn = ack;
    via_rtt_arrived(vi, ack);
    vi->retries = 0;
    vi->rtt.tail_probes = 0;
    if (vi->rtt.backoff == 0) /* else the back-off stays until the next sample (rtt.c) */
        vi->rto = via_rtt_timeout(vi);
    /* In link sends: `used` before this acknowledgement, flight_head - head by which it advanced. */
    uint32_t head = vi->flight_head, used = vi->flight_tail - vi->flight_seen;
    while (vi->flight_head != vi->flight_tail && via_flight_ahead(vi, vi->flight_head, ack) <= 0)
        vi->flight_head++;
    /* flight_head <= flight_seen <= flight_tail, always. */
    if ((int32_t)(vi->flight_seen - vi->flight_head) < 0)
        vi->flight_seen = vi->flight_head;
    open_window(vi, vi->flight_head - head, used);
    if (wire_before(vi->tx_psn, ack)) { /* it was sending again what had arrived: the time-out was too early */
        if (vi->undo_window > vi->window)
            vi->window = vi->threshold = vi->undo_window;
        via_rtt_sample(vi, vk_now() - vi->waiting_since); /* an upper bound of the round trip */
        vi->rto = via_rtt_timeout(vi);
        via_skip_to(vi, ack);
    }
    if (vi->una_psn == vi->tx_psn)
        vi->rto_deadline = VK_NEVER;
    else if (!vi->lossless)
        via_arm_rto(vi);
    via_complete_sends(vi);
    if (vk_unlikely(via_reads_open(vi)) && vi->state == VIP_STATE_CONNECTED)
        via_reads_go_on(vi); /* a read may have waited for this */
    if (vi->send.next != vi->send.posted && !vi->on_stall_list)
        via_transmit(vi);
}

/* Goes back to the oldest unacknowledged frame. A gap that the receiver reported halves the window; a time-out closes
 * it. */
static void go_back(struct via_vi *vi, int timed_out)
{
    vi->tx_psn = vi->una_psn;
    /* Assume that nothing is in flight any more; nor is a frame timed, or marked as retransmitted. */
    vi->flight_head = vi->flight_seen = vi->flight_tail;
    vi->rtt.timing = 0;
    via_retransmit_forget(vi);
    vi->undo_window = vi->window;
    uint32_t most = window_most(vi);
    vi->threshold = vi->window / 2 > 4 ? vi->window / 2 : 4;
    if (vi->threshold > most)
        vi->threshold = most;
    /* After a time-out: two sends, one to be acknowledged while the other is in flight. After a report: the new
     * threshold at once. */
    vi->window = timed_out && vi->threshold > 2 ? 2 : vi->threshold;
    vi->window_credit = 0;
    /* The work with the oldest unacknowledged frame is sent next. */
    uint32_t i = vi->send.done;
    while (i != vi->send.next && !wire_before(vi->una_psn, end_of(via_work_at(&vi->send, i))))
        i++;
    vi->send.next = i;
}

/* Handles a NAK without a list, from a receiver that keeps nothing: it has all before `from`, and requests everything
 * from there on again. The NAK also acknowledges. */
void via_negative(struct via_vi *vi, uint32_t from)
{
    via_acknowledged(vi, from);
    if (vi->state != VIP_STATE_CONNECTED || from != vi->una_psn || vi->una_psn == vi->tx_psn)
        return;
    if (vi->nak_psn == from && vi->nak_high == vi->high_psn && vi->tx_psn != vi->high_psn)
        return; /* a copy of one that is being handled */
    vi->nak_psn = from;
    vi->nak_high = vi->high_psn;
    go_back(vi, 0);
    vi->rto_deadline = VK_NEVER;
    via_transmit(vi);
}

/* Handles ERROR: the peer stopped processing at frame psn. It has processed the frames before it. */
void via_remote_error(struct via_vi *vi, uint32_t psn, uint32_t status)
{
    struct via_queue *q = &vi->send;
    /* The number is a frame's, or a read request's (read.c); the status distinguishes them. */
    int read = (status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RDMA_READ;
    status &= VIP_STATUS_REMOTE_DESC_ERROR | VIP_STATUS_RDMA_PROT_ERROR;
    if (read)
        via_read_refused(vi, psn);
    else if (status && vi->attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_RECEPTION && q->done != q->posted) {
        struct via_work *w = via_work_at(q, q->done);
        if (w->started && !wire_before(psn, w->first_psn) && wire_before(psn, end_of(w)))
            via_complete(vi, q, status);
    }
    via_break(vi, 1);
}

/* Owes the peer an acknowledgement, which waits for a frame to carry it. urgent: a message is complete, and its sender
 * may wait for nothing but this acknowledgement, so it is sent with the next idle poll. Otherwise it waits for
 * ack_delay_us, because more of the message will follow. */
void via_owe_ack(struct via_vi *vi, int urgent)
{
    struct via_nic *nic = vi->nic;
    if (!vi->ack_owed)
        vi->ack_owed_at = nic->now;
    vi->ack_owed |= urgent ? 2 : 1;
    if (vi->on_ack_list)
        return;
    vi->on_ack_list = 1;
    vi->ack_next = nic->ack_list;
    nic->ack_list = vi;
    /* No timer: nearly every acknowledgement finds a frame to carry it. A timer would wake threads for nothing. */
    uint64_t due = vi->ack_owed_at + (uint64_t)nic->options.ack_delay_us * VK_US;
    if (due < nic->acks_at)
        vk_store_relaxed(&nic->acks_at, due); /* the NIC's thread reads it without being the owner */
    via_call_at(nic, due);
}

/* Sends the acknowledgements that no frame carried: those that have waited for ack_delay_us, and those that `which`
 * adds to them. In the middle of a message they are not urgent, because the sender requests one when its window fills.
 * If the last poll found frames, the program's reply may carry those owed since the clock was last read (`last`): they
 * have its time, so they may only appear to be overdue. A VI is also on the list if a frame carried what it owed. */
void via_flush_acks(struct via_nic *nic, enum via_acks which, uint64_t last)
{
    struct via_vi *vi = nic->ack_list;
    nic->ack_list = NULL;
    vk_store_relaxed(&nic->acks_at, VK_NEVER);
    while (vi) {
        struct via_vi *next = vi->ack_next;
        vi->on_ack_list = 0;
        if (vi->ack_owed && vi->state == VIP_STATE_CONNECTED) {
            uint64_t due = vi->ack_owed_at + (uint64_t)nic->options.ack_delay_us * VK_US;
            int overdue = nic->now >= due && (which != VIA_ACKS_OVERDUE || vi->ack_owed_at < last);
            if (which == VIA_ACKS_ALL || (which == VIA_ACKS_URGENT && vi->ack_owed > 1) || overdue)
                via_send_ack(vi);
            if (vi->ack_owed) /* not yet, or the link was full */
                via_owe_ack(vi, vi->ack_owed > 1);
        }
        vi = next;
    }
}

/* Declares the peer failed. The head of the send queue completes with TRANSPORT_ERROR, because it was sent without
 * success; the others are flushed. */
void via_give_up(struct via_vi *vi)
{
    via_card_stop(vi);
    if (vi->send.done != vi->send.posted) {
        const struct via_work *w = via_work_at(&vi->send, vi->send.done);
        if ((w->control & VIP_CONTROL_OP_MASK) != VIP_CONTROL_OP_SENDRECV)
            via_report(vi->nic, vi, NULL, w->descriptor, VIP_RESOURCE_VI, VIP_ERROR_RDMA_TRANSPORT);
        via_complete(vi, &vi->send, VIP_STATUS_TRANSPORT_ERROR);
    }
    via_break(vi, 1);
}

/* Doubles the time before the next probe, until a sample shows that it was long enough. */
static void back_off(struct via_vi *vi)
{
    if (vi->rtt.backoff < BACKOFF_MOST)
        vi->rtt.backoff++;
}

/* Sends the last frame again: a receiver that has it replies at once, and reports what else it has. */
static void probe_tail(struct via_vi *vi)
{
    uint32_t hint = vi->send.done;
    VI_COUNT(vi, tail_probes, 1);
    via_retransmit_forget(vi); /* retransmitted frames may have been lost again: the reply will list them */
    /* The last frame's memory may no longer be granted: then nothing was sent, and the time-out follows after the same
     * number of probes. */
    if (via_send_again(vi, vi->high_psn - 1, 1, WIRE_FLAG_ACK_NOW, &hint) < 0 && vi->state != VIP_STATE_CONNECTED)
        return;
    vi->rtt.tail_probes++;
    back_off(vi);
    via_arm_rto(vi);
}

/* Sends a keep-alive probe. Returns whether the link accepted it. */
static int send_probe(struct via_vi *vi)
{
    int sent = via_send_control(vi, WIRE_PROBE, 0, 0);
    VI_COUNT(vi, probes_sent, sent);
    return sent;
}

/* Counts a time-out that passed without progress, and doubles the next one. */
static void count_retry(struct via_vi *vi)
{
    vi->retries++;
    if (vi->rto < RTO_LONGEST)
        vi->rto = vi->rto * 2 < RTO_LONGEST ? vi->rto * 2 : RTO_LONGEST;
}

/* Handles the deadline, in this order:
 *
 * - tail probes, as long as they are allowed;
 * - time-outs, each twice as long as the last and each starting from una;
 * - after max_retries of them, the peer counts as failed.
 *
 * An idle connection that is probing (keep_alive) comes here as well, and probes again. If the link is full, the peer
 * has received no probe and its silence means nothing, so that is no retry. (Data that finds no space has no deadline
 * until it does: note_in_flight() in tx.c.) */
static void time_out(struct via_vi *vi)
{
    if (before_probe(vi)) {
        probe_tail(vi);
        return;
    }
    VI_COUNT(vi, timeouts, 1);
    if (vi->retries == vi->nic->options.max_retries) {
        via_give_up(vi);
        return;
    }
    /* If not, nothing is in flight, and the keep-alive has set this deadline. */
    int retransmits = vi->reliable && vi->una_psn != vi->tx_psn;
    if (retransmits) {
        back_off(vi);
        count_retry(vi); /* first: while it counts, every send requests an acknowledgement */
        go_back(vi, 1);
        vi->rto_deadline = VK_NEVER;
        via_transmit(vi);
    }
    if (vi->state == VIP_STATE_CONNECTED && vi->probing) {
        if (send_probe(vi) && !retransmits)
            count_retry(vi);
        via_arm_rto(vi);
    }
}

/* Probes a silent peer, unless data waits for an acknowledgement: then its time-outs detect a dead peer. Any frame from
 * the peer ends the probing. While the connection is not probing, the next check is always scheduled, and lies in the
 * future. */
static void keep_alive(struct via_vi *vi)
{
    struct via_nic *nic = vi->nic;
    uint64_t silence = (uint64_t)nic->options.keepalive_ms * VK_MS;
    if (vi->peer_active) {
        vi->peer_active = 0;
        vi->received_at = nic->now;
        if (vi->probing) {
            vi->probing = 0;
            vi->retries = 0;
            vi->rto = via_rtt_timeout(vi);
            if (!vi->reliable || vi->una_psn == vi->tx_psn)
                vi->rto_deadline = VK_NEVER;
        }
    }
    if (vi->probing)
        return;
    int silent = nic->now - vi->received_at >= silence;
    if (silent && vi->rto_deadline == VK_NEVER) {
        vi->probing = 1;
        send_probe(vi);
        via_arm_rto(vi);
        return;
    }
    via_timer(nic, (silent ? nic->now : vi->received_at) + silence);
}

/* Checks every VI of the NIC whenever a timer is due. The caller has reset timers_at, so each VI that waits sets it
 * again. */
void via_reliable_timers(struct via_nic *nic)
{
    for (struct via_vi *vi = nic->vis, *next; vi; vi = next) {
        next = vi->next;
        if (vi->state != VIP_STATE_CONNECTED || vi->lossless)
            continue;
        keep_alive(vi);
        if (vi->rto_deadline <= nic->now)
            time_out(vi);
        if (vi->state == VIP_STATE_CONNECTED && via_reads_deadline(vi) <= nic->now)
            via_read_time_out(vi);
        if (vi->state != VIP_STATE_CONNECTED)
            continue;
        uint64_t due = via_reads_deadline(vi) < vi->rto_deadline ? via_reads_deadline(vi) : vi->rto_deadline;
        if (due != VK_NEVER)
            via_timer(nic, due);
    }
    if (nic->reorder_free)
        via_reorder_trim(nic);
}
