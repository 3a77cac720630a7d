/*
 * The reliable levels over links that lose, double and reorder: sequence numbers, cumulative acknowledgements, negative
 * ones that name what is missing, a congestion window, time-outs with back-off, and probes that find a silent peer
 * dead.
 *
 *        una            tx               high         next        psn ->
 *    ----+--------------+----------------+------------+-----
 *        | in flight    | to be sent     | given out, never sent
 *                         again
 *
 * una <= tx <= high <= next. Messages hold consecutive numbers (tx.c); an acknowledgement of a message's last number
 * completes it.
 *
 * When a frame is missing the receiver says so, and how depends on the receiver alone. One that keeps early frames
 * (early.c) names the gaps, and only what it names is sent again (repeat.c). One that does not (VIAKIT_GO_BACK_N) asks
 * once per pass for the missing frame, and the sender goes back to it: tx is set back, and everything from there
 * follows again. The same happens after a time-out with any receiver, for nothing is known then.
 *
 * The window counts link sends, not bytes: each takes one slot of the receiver's ring, a super-frame as much as a small
 * frame. It opens by one per round trip. What makes it smaller: single losses, by what was lost (repeat.c); a burst of
 * losses, by half; a time-out closes it, from where it doubles per round trip up to half its former size; and a
 * time-out that turns out to have been too early (an acknowledgement for what was not sent again yet) is undone.
 *
 * When nothing is heard after a send, three things happen one after the other: two tail probes, that is, the last frame
 * once more, which makes the receiver say what it has (rtt.c has the times); then time-outs; and after max_retries of
 * these the peer is given up.
 */
#include "internal.h"
#include "tap.h"

#define RTO_LONGEST (500 * VK_MS)
#define TAIL_PROBES 2

/* The number behind the work's last frame. */
static inline uint32_t end_of(const struct via_work *w)
{
    return w->first_psn + w->n_frames;
}

/* How long to wait before the next tail probe; 0 if it is a time-out's turn. Only where everything was sent and
 * something is unacknowledged, and where the probe would come before the time-out. */
static uint64_t before_probe(const struct via_vi *vi)
{
    if (!vi->reliable || vi->rtt.tail_probes == TAIL_PROBES || vi->retries || vi->una_psn == vi->high_psn ||
        vi->tx_psn != vi->high_psn)
        return 0;
    uint64_t wait = via_rtt_probe(vi) << vi->rtt.tail_probes;
    return wait < vi->rto ? wait : 0;
}

/* One deadline serves tail probes, time-outs and keep-alive probes: what it means is decided when it passes (time_out).
 */
void via_arm_rto(struct via_vi *vi)
{
    vi->nic->now = vk_now(); /* the program may have computed for long since the last look */
    if (vi->rtt.tail_probes == 0 && vi->retries == 0)
        vi->waiting_since = vi->nic->now;
    uint64_t wait = before_probe(vi);
    vi->rto_deadline = vi->nic->now + (wait ? wait : vi->rto);
    via_timer(vi->nic, vi->rto_deadline);
}

/* Never below four sends (or what the program asked for): a window of one would wait a round trip for each loss. The
 * threshold follows, so the window does not jump back. */
void via_shrink_window(struct via_vi *vi, uint32_t to)
{
    uint32_t least = vi->nic->options.window < 4 ? vi->nic->options.window : 4;
    vi->window = to > least ? to : least;
    vi->window_credit = 0;
    if (vi->threshold > vi->window)
        vi->threshold = vi->window;
}

/* What both sides of a connection keep between frames; the work queues are another matter (via_flush). */
void via_forget_frames(struct via_vi *vi)
{
    via_early_drop(vi);
    via_repeat_forget(vi);
    via_reads_reset(vi);
    vi->has_gap = 0;
}

/* Completes what may complete, in posting order, up to the first that may not: not sent wholly, or sent and not
 * acknowledged where that counts. An error among them is the end of a reliable connection, at that point of the order
 * and not before. */
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
        vi->una_psn = vi->tx_psn; /* all is done: nobody will acknowledge it, and nothing is outstanding */
}

/* n more sends were acknowledged. Below the threshold each opens the window by one (slow start), above it a whole
 * window of them does (congestion avoidance): additive increase, as TCP's (RFC 5681), counted in link sends. */
static void open_window(struct via_vi *vi, uint32_t n)
{
    uint32_t most = vi->nic->options.window;
    vi->window_credit += n;
    if (vi->window < vi->threshold) /* back to half of where the loss was: doubling per round trip */
        vi->window = vi->window + n < vi->threshold ? vi->window + n : vi->threshold;
    else if (vi->window < most && vi->window_credit >= vi->window) {
        vi->window_credit = 0;
        vi->window++;
    }
}

/* Those frames have arrived, or are kept by the receiver. The queue's next work moves along. */
void via_skip_to(struct via_vi *vi, uint32_t psn)
{
    if (!wire_before(vi->tx_psn, psn))
        return;
    vi->tx_psn = psn;
    while (vi->send.next != vi->send.posted) {
        struct via_work *w = via_work_at(&vi->send, vi->send.next);
        int came_by = w->started || w->sent; /* what was found wrong when it was posted never starts */
        if (!came_by || wire_before(psn, end_of(w)))
            break;
        vi->send.next++;
    }
}

/* The peer has everything before ack. Every frame of a connection brings one; most bring nothing new. */
void via_acknowledged(struct via_vi *vi, uint32_t ack)
{
    if (!wire_before(vi->una_psn, ack))
        return;
    if (wire_before(vi->high_psn, ack)) { /* acknowledges what was never sent: a liar or a stranger */
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    VIA_TAP(vi->nic, via_tap_acknowledged(vi, ack));
    vi->una_psn = ack;
    via_rtt_arrived(vi, ack);
    vi->retries = 0;
    vi->rtt.tail_probes = 0;
    vi->rto = via_rtt_timeout(vi);
    uint32_t head = vi->flight_head;
    while (vi->flight_head != vi->flight_tail && !wire_before(ack, vi->flight_end[vi->flight_head & (VIA_FLIGHT - 1)]))
        vi->flight_head++;
    /* flight_head <= flight_seen <= flight_tail, always. */
    if ((int32_t)(vi->flight_seen - vi->flight_head) < 0)
        vi->flight_seen = vi->flight_head;
    open_window(vi, vi->flight_head - head);
    if (wire_before(vi->tx_psn, ack)) { /* was going back for what had arrived: the time-out was a mistake */
        if (vi->undo_window > vi->window)
            vi->window = vi->threshold = vi->undo_window;
        via_rtt_sample(vi, vk_now() - vi->waiting_since); /* so long may it take */
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

/* Back to the oldest frame that is not acknowledged. A gap that the receiver reported halves the window; silence closes
 * it. */
static void go_back(struct via_vi *vi, int timed_out)
{
    vi->tx_psn = vi->una_psn;
    /* Nothing is in flight any more, for all we know; nor is anything timed, or known to be sent again. */
    vi->flight_head = vi->flight_seen = vi->flight_tail;
    vi->rtt.timing = 0;
    via_repeat_forget(vi);
    vi->undo_window = vi->window;
    uint32_t most = vi->nic->options.window;
    vi->threshold = vi->window / 2 > 4 ? vi->window / 2 : 4;
    if (vi->threshold > most)
        vi->threshold = most;
    /* After silence two sends, one to be acknowledged while the other is under way; after a report the new threshold
     * at once. */
    vi->window = timed_out && vi->threshold > 2 ? 2 : vi->threshold;
    vi->window_credit = 0;
    /* The work that has the oldest unacknowledged frame is the one to be sent next. */
    uint32_t i = vi->send.done;
    while (i != vi->send.next && !wire_before(vi->una_psn, end_of(via_work_at(&vi->send, i))))
        i++;
    vi->send.next = i;
}

/* A NAK without list, of a receiver that keeps nothing: it has all before `from`, and wants everything from there on
 * again. It acknowledges, too. */
void via_negative(struct via_vi *vi, uint32_t from)
{
    via_acknowledged(vi, from);
    if (vi->state != VIP_STATE_CONNECTED || from != vi->una_psn || vi->una_psn == vi->tx_psn)
        return;
    if (vi->nak_psn == from && vi->nak_high == vi->high_psn && vi->tx_psn != vi->high_psn)
        return; /* a copy of one that is being answered */
    vi->nak_psn = from;
    vi->nak_high = vi->high_psn;
    go_back(vi, 0);
    vi->rto_deadline = VK_NEVER;
    via_transmit(vi);
}

/* Processing stopped at the peer, at frame psn. What came before it was taken. */
void via_remote_error(struct via_vi *vi, uint32_t psn, uint32_t status)
{
    struct via_queue *q = &vi->send;
    /* The number is a frame's, or that of an ask (read.c): the status says which. */
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

/* Acknowledgements wait for a frame to ride on. urgent: a message is complete, and its sender may wait for nothing but
 * this; it goes with the next idle look. Otherwise it waits for ack_delay_us: there will be more of the message. */
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
    /* No timer: nearly every acknowledgement finds a ride, and whoever went to sleep then would be woken for
     * nothing. */
    uint64_t due = vi->ack_owed_at + (uint64_t)nic->options.ack_delay_us * VK_US;
    if (due < nic->acks_at)
        vk_store_relaxed(&nic->acks_at, due); /* the NIC's thread looks at it without being owner */
    via_call_at(nic, due);
}

/* Sends the acknowledgements for which no frame came along. In the middle of a message there is no hurry: the sender
 * says when its window fills; so these wait for ack_delay_us, or until everybody goes to sleep (all). */
void via_flush_acks(struct via_nic *nic, int all)
{
    struct via_vi *vi = nic->ack_list;
    nic->ack_list = NULL;
    vk_store_relaxed(&nic->acks_at, VK_NEVER);
    while (vi) {
        struct via_vi *next = vi->ack_next;
        vi->on_ack_list = 0;
        if (vi->ack_owed && vi->state == VIP_STATE_CONNECTED) {
            uint64_t due = vi->ack_owed_at + (uint64_t)nic->options.ack_delay_us * VK_US;
            if (all || vi->ack_owed > 1 || nic->now >= due)
                via_send_ack(vi);
            if (vi->ack_owed) /* not yet, or the link was full */
                via_owe_ack(vi, vi->ack_owed > 1);
        }
        vi = next;
    }
}

/* The peer is thought dead: the head of the send queue fails with TRANSPORT_ERROR, for that is what was tried in vain;
 * the others are flushed. */
void via_give_up(struct via_vi *vi)
{
    if (vi->send.done != vi->send.posted) {
        const struct via_work *w = via_work_at(&vi->send, vi->send.done);
        if ((w->control & VIP_CONTROL_OP_MASK) != VIP_CONTROL_OP_SENDRECV)
            via_report(vi->nic, vi, NULL, w->descriptor, VIP_RESOURCE_VI, VIP_ERROR_RDMA_TRANSPORT);
        via_complete(vi, &vi->send, VIP_STATUS_TRANSPORT_ERROR);
    }
    via_break(vi, 1);
}

/* The last frame once more: whoever has it answers at once, and says what else it has. */
static void probe_tail(struct via_vi *vi)
{
    uint32_t hint = vi->send.done;
    VI_COUNT(vi, tail_probes, 1);
    via_repeat_forget(vi); /* what was sent again may have been lost again: the answer will tell */
    /* The last frame's memory may be gone: then nothing was sent, and the time-out's turn comes after as many probes
     * all the same. */
    if (via_send_again(vi, vi->high_psn - 1, 1, WIRE_FLAG_ACK_NOW, &hint) < 0 && vi->state != VIP_STATE_CONNECTED)
        return;
    vi->rtt.tail_probes++;
    via_arm_rto(vi);
}

/* Asks whether the peer lives. Returns whether the link took the question. */
static int ask_for_life(struct via_vi *vi)
{
    int sent = via_send_control(vi, WIRE_PROBE, 0, 0);
    VI_COUNT(vi, probes_sent, sent);
    return sent;
}

/* One more has passed in vain. */
static void count_retry(struct via_vi *vi)
{
    vi->retries++;
    if (vi->rto < RTO_LONGEST)
        vi->rto = vi->rto * 2 < RTO_LONGEST ? vi->rto * 2 : RTO_LONGEST;
}

/* The deadline has passed. In this order: a tail probe, as long as it is its turn; then time-outs, each twice as long
 * as the last and each beginning from una; after max_retries of them the end. An idle connection that is probing
 * (keep_alive) comes here as well, and asks again. Where the link is full the peer was not asked, and its silence says
 * nothing: that is no retry. (Data that finds no room has no deadline until it does: took_off() in tx.c.) */
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
    int repeats = vi->reliable && vi->una_psn != vi->tx_psn;
    if (repeats) {
        count_retry(vi); /* first, for while it counts every send asks for an acknowledgement */
        go_back(vi, 1);
        vi->rto_deadline = VK_NEVER;
        via_transmit(vi);
    }
    if (vi->state == VIP_STATE_CONNECTED && vi->probing) {
        if (ask_for_life(vi) && !repeats)
            count_retry(vi);
        via_arm_rto(vi);
    }
}

/* Silence: ask, unless data that waits for an acknowledgement does: its time-outs will find out. Whatever is heard
 * of the peer ends the asking. While nobody asks there is always a next look, and it lies ahead. */
static void keep_alive(struct via_vi *vi)
{
    struct via_nic *nic = vi->nic;
    uint64_t silence = (uint64_t)nic->options.keepalive_ms * VK_MS;
    if (vi->heard) {
        vi->heard = 0;
        vi->heard_at = nic->now;
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
    int silent = nic->now - vi->heard_at >= silence;
    if (silent && vi->rto_deadline == VK_NEVER) {
        vi->probing = 1;
        ask_for_life(vi);
        via_arm_rto(vi);
        return;
    }
    via_timer(nic, (silent ? nic->now : vi->heard_at) + silence);
}

/* Every VI of the NIC, whenever something is due. timers_at was reset by the caller: who has something to wait for says
 * so again. */
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
    if (nic->early_free)
        via_early_trim(nic);
}
