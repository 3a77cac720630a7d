/*
 * Outgoing packets: the order in which they reach a channel, and the first packet of a message. arrival.c handles
 * arriving packets. engine.h has the picture of the protocols.
 *
 * A message is sent eagerly if it is short and the receiver has not sent XOFF, which it does when its unexpected queue
 * is too full. Every other message is announced and waits for its receive (rendezvous.c, also for the threshold).
 *
 *   a request completes by        sender                               receiver
 *   EAGER                         when the channel has accepted it     when it is copied out
 *   SYNC                          ACK                                  the same
 *   R3                            when the last DATA is accepted       when `moved` reaches `want`
 *   RPUT                          its RDMA writes are complete         FIN, which follows them on the same VI
 *   RGET                          FIN                                  its RDMA reads are complete
 *   shared                        its writes are complete, and FIN     its reads are complete, and FIN
 *
 * Fields from another rank are always validated: ids are looked up, lengths and offsets are compared with the request.
 * Packets that match no request are dropped. Their sender broke the protocol, or its request has ended in error.
 *
 * msg_push may complete requests: a channel that finds its peer dead ends all requests with that peer. The same holds
 * for all callers of msg_push. A caller that needs a request after such a call checks `complete` then, or keeps the id.
 */
#include <stdlib.h>

#include "msg/channel.h"

/* ---------------------------------------------------------------- pushing */

/* Queues the packet behind those that wait for this rank, and adds the rank to the busy list, which msg_step serves. */
void msg_enqueue(struct msg_peer *peer, struct msg_out *out)
{
    msg_world *w = peer->world;
    out->next = NULL;
    /* queue_end is valid only while the queue is not empty, so code that empties the queue need not set it. */
    if (peer->queue == NULL)
        peer->queue_end = &peer->queue;
    *peer->queue_end = out;
    peer->queue_end = &out->next;
    if (out->request)
        out->request->flags |= MSG_QUEUED;
    if (!peer->on_busy_list) {
        peer->on_busy_list = 1;
        peer->busy = w->busy;
        w->busy = peer;
    }
}

/* Matching relies on the order of packets: while one packet waits, all later ones are queued. */
void msg_push(struct msg_peer *peer, struct msg_out *out)
{
    if (peer->gone)
        return; /* The request was ended at its start, or the sweep will end it. */
    /* 1: accepted, 0: not now. Negative: the rank has just failed, and the sweep (peer_failure.c) has already ended
     * this request. */
    if (vk_likely(peer->queue == NULL)) {
        int taken = peer->channel->push(peer, out);
        if (taken == 1)
            msg_out_taken(peer, out);
        if (taken != 0)
            return;
    }
    msg_enqueue(peer, out);
}

/* Replaces a queued eager message by its announcement, after the receiver has sent XOFF, and removes the data from an
 * announcement. Does nothing if the data is hardly longer than an announcement, or has begun to leave. Proposes R3,
 * because no memory is registered here. */
static void announce_instead(struct msg_out *out)
{
    uint8_t kind = out->packet.head.kind & MSG_PKT_MASK;
    if ((kind != MSG_PKT_EAGER && kind != MSG_PKT_SYNC && kind != MSG_PKT_RTS) || out->len <= MSG_INLINE || out->sent)
        return;
    out->data = NULL;
    out->len = 0;
    if (kind == MSG_PKT_RTS) {
        out->request->started = 0;
        return;
    }
    out->packet.head.kind = (uint8_t)((out->packet.head.kind & ~MSG_PKT_MASK) | MSG_PKT_RTS);
    out->packet.rest.how = MSG_R3;
    /* The request keeps buf and len, from which clear_to_send makes a DATA packet. For a SYNC message the CTS
     * implies the match, so no ACK is needed. */
    MSG_COUNT(out->request->world, eager_sent, -1);
    MSG_COUNT(out->request->world, rendezvous_sent, 1);
}

/* Walks through all transfers that wait for a descriptor: few, and none in most programs. */
int msg_is_writing(const msg_world *w, int target)
{
    for (const msg_request *r = w->moving; r; r = r->moving)
        if (r->kind == MSG_REQ_PUT && r->peer == target && r->started < r->want)
            return 1;
    return 0;
}

/* Queued behind the waiting packets and before all later ones, so that no message overtakes a write. A fence never
 * leaves (msg_push_queue): only its place in the queue matters. */
int msg_fence(struct msg_peer *peer)
{
    msg_request *r = msg_request_new(peer->world, MSG_REQ_CARRIER, 0, peer->rank, 0, NULL, 0);
    if (r == NULL)
        return MSG_ERR_NO_MEMORY;
    r->flags = MSG_DETACHED;
    r->out = (struct msg_out){.packet.head.kind = MSG_PKT_FENCE, .request = r};
    msg_enqueue(peer, &r->out);
    return MSG_SUCCESS;
}

/* Pushes as many packets as the channel accepts, in order. The head is removed from the queue only after that, because
 * the channel continues with it. */
void msg_push_queue(struct msg_peer *peer)
{
    struct msg_out *out;
    while ((out = peer->queue) != NULL) {
        if (vk_unlikely(peer->off))
            announce_instead(out);
        /* A fence is passed once every earlier write has been handed over. From there on the channel keeps the
         * order. */
        int is_fence = (out->packet.head.kind & MSG_PKT_MASK) == MSG_PKT_FENCE;
        int taken = is_fence ? !msg_is_writing(peer->world, peer->rank) : peer->channel->push(peer, out);
        if (taken != 1)
            return; /* Later. Or the rank has failed and the queue is gone. */
        peer->queue = out->next;
        if (out->request)
            out->request->flags &= (uint8_t)~MSG_QUEUED;
        msg_out_taken(peer, out);
    }
}

void msg_push_control(struct msg_peer *peer, const struct msg_packet *packet)
{
    /* Usually the packet can go at once, from the stack. A carrier, which outlives the call, is allocated only if it
     * must wait. Without memory for a carrier the peer would wait for the packet for ever, so the connection fails
     * instead. */
    struct msg_out once = {.packet = *packet};
    if (peer->gone)
        return;
    if (peer->queue == NULL && peer->channel->push(peer, &once) != 0)
        return;
    msg_request *r = msg_request_new(peer->world, MSG_REQ_CARRIER, 0, peer->rank, 0, NULL, 0);
    if (r == NULL) {
        msg_peer_failed(peer, "memory is exhausted, a message of the protocol could not be kept");
        return;
    }
    r->flags = MSG_DETACHED;
    r->out = once;
    r->out.request = r;
    msg_enqueue(peer, &r->out);
}

/* ACK, FIN, XOFF, XON: 48 bytes in the queue's order. Never waits, as msg_push_control. */
void msg_push_ids(struct msg_peer *peer, int kind, uint64_t id, uint64_t peer_id)
{
    struct msg_packet p = {.head.kind = (uint8_t)kind, .rest = {.id = id, .peer_id = peer_id}};
    msg_push_control(peer, &p);
}

/* The channel has accepted all of a packet, so its data may be overwritten. This completes an eager send and a send
 * by segments, and frees a detached request that failed while it was queued. An announced message now waits for CTS,
 * FIN or ACK. */
void msg_out_taken(struct msg_peer *peer, struct msg_out *out)
{
    msg_request *r = out->request;
    (void)peer;
    if (r == NULL)
        return;
    if (r->complete) { /* it ended in error while it was queued */
        if (r->flags & MSG_DETACHED)
            msg_request_put(r->world, r);
        return;
    }
    switch (out->packet.head.kind & MSG_PKT_MASK) {
    case MSG_PKT_EAGER:
    case MSG_PKT_DATA:
        msg_complete(r, MSG_SUCCESS);
        break;
    case MSG_PKT_SYNC:
    case MSG_PKT_RTS:
        r->flags |= MSG_ANNOUNCED;
        break;
    default: /* a carrier */
        msg_request_put(r->world, r);
    }
}

/* ---------------------------------------------------------------- a send begins */

/* Chooses the protocol of a message by its length (rendezvous.c: the threshold) and pushes its first packet. If the
 * channel finds the rank dead meanwhile, the request has ended when this returns. */
void msg_begin_send(msg_request *r, struct msg_peer *peer, msg_mode mode)
{
    msg_world *w = r->world;
    int synchronous = mode == MSG_SYNCHRONOUS || w->policy.synchronous;
    /* Data that fits an envelope is sent even after XOFF, because an announcement would use an envelope there, too. */
    int eager = r->len <= peer->eager_limit && (!peer->off || r->len <= MSG_INLINE);
    struct msg_out *out = &r->out;
    *out = (struct msg_out){.request = r};
    out->packet.head = (struct msg_head){.context = (uint16_t)r->context, .tag = r->tag};
    out->packet.rest = (struct msg_rest){.len = r->len, .id = r->id};
    if (eager) {
        out->packet.head.kind = synchronous ? MSG_PKT_SYNC : MSG_PKT_EAGER;
        out->data = r->buf;
        out->len = r->len;
        MSG_COUNT(w, eager_sent, 1);
    } else {
        msg_announce(r, peer);
        MSG_COUNT(w, rendezvous_sent, 1);
    }
    if (mode == MSG_READY)
        out->packet.head.kind |= MSG_FLAG_READY;
    msg_push(peer, out);
}
