/*
 * Packets: how messages are sent, and how arriving packets are handled. engine.h has the picture of the protocols.
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

/* Pushes as many packets as the channel accepts. The head is removed from the queue only after that, because the
 * channel continues with it. */
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

/* ---------------------------------------------------------------- arriving data */

/* Byte swap of every word, as a heterogeneous library converts data. It is its own inverse. */
void msg_convert(char *to, const char *from, size_t len)
{
    size_t i = 0;
    for (; i + 4 <= len; i += 4) {
        uint32_t word;
        memcpy(&word, from + i, 4);
        word = __builtin_bswap32(word);
        memcpy(to + i, &word, 4);
    }
    if (to != from)
        memcpy(to + i, from + i, len - i);
}

/* Copies a whole message into its receive. */
void msg_copy_in(msg_world *w, msg_request *r, const void *data, size_t len)
{
    size_t n = len;
    if (vk_unlikely(len > r->len)) {
        n = r->len;
        r->status.error = MSG_ERR_TRUNCATE;
    }
    r->status.len = n;
    /* The sender's conversion (send.c: pack) and this one cancel out. This wasted work is what Turner and Chen,
     * section 4.2, measured. */
    if (vk_unlikely(w->policy.convert))
        msg_convert(r->buf, data, n);
    else if (n)
        vk_copy_short(r->buf, data, n);
    msg_count_copy(w, n);
}

/* If the unexpected data exceeds the policy's bound, sends XOFF to this sender, once. Data in flight still arrives. */
static void throttle_sender(struct msg_peer *peer)
{
    msg_world *w = peer->world;
    /* Only data beyond MSG_INLINE counts in unexpected_bytes (request.c), because XOFF holds back no shorter data. */
    if (w->unexpected_bytes <= (size_t)w->policy.unexpected_bytes || peer->xoff_sent)
        return;
    peer->xoff_sent = 1;
    w->throttling = 1;
    MSG_COUNT(w, throttled, 1);
    msg_push_ids(peer, MSG_PKT_XOFF, 0, 0);
}

/* Half of the bound is free again: sends XON to all throttled ranks (msg_message_put gives the reason for half). */
void msg_relieve(msg_world *w)
{
    w->throttling = 0;
    /* XOFF and XON arrive at a rank in order, so the last one applies. */
    for (int i = 0; i < w->n_ranks; i++)
        if (w->peers[i].xoff_sent) {
            w->peers[i].xoff_sent = 0;
            msg_push_ids(&w->peers[i], MSG_PKT_XON, 0, 0);
        }
}

/* Queues an unexpected message. data NULL: its data will follow, or was only announced. */
static msg_message *keep(struct msg_peer *peer, const struct msg_packet *p, const void *data, size_t len)
{
    msg_world *w = peer->world;
    msg_message *m = msg_message_new(w, len);
    if (m) {
        m->packet = *p;
        m->source = peer->rank;
        if (data && len) {
            memcpy(m->data, data, len);
            msg_count_copy(w, len);
        }
        /* From here on a receive can match it. */
        if (msg_add_unexpected(w, m) == MSG_SUCCESS) {
            MSG_COUNT(w, unexpected, 1);
            MSG_COUNT(w, ready_missed, p->head.kind & MSG_FLAG_READY ? 1 : 0);
            throttle_sender(peer);
            return m;
        }
        msg_message_put(w, m);
    }
    msg_peer_failed(peer, "memory is exhausted: an unexpected message could not be kept");
    return NULL;
}

/* Copies data that came with an announcement. msg_put_arrived converts the whole message later. */
static void copy_first_bytes(msg_request *r, const void *data, size_t here)
{
    size_t n = here < r->len ? here : r->len;
    if (n == 0)
        return;
    memcpy(r->buf, data, n);
    msg_count_copy(r->world, n);
}

/* An announcement has arrived with the first `here` bytes of its message, usually none. */
static void announced(struct msg_peer *peer, const struct msg_packet *p, const void *data, size_t here)
{
    msg_request *r = msg_match_posted(peer->world, p->head.context, peer->rank, p->head.tag);
    here = here < p->rest.len ? here : p->rest.len; /* a rank that breaks the protocol may send more */
    if (r) {
        msg_bind(r, peer->rank, p);
        copy_first_bytes(r, data, here);
        msg_accept_announced(peer, p, r, here);
        return;
    }
    msg_message *m = keep(peer, p, data, here);
    if (m)
        m->len = p->rest.len;
}

/* Four kinds of unexpected message: still arriving (tcp), held by a send of this rank, announced, or complete. */
void msg_deliver_unexpected(msg_world *w, msg_message *m, msg_request *r)
{
    msg_bind(r, m->source, &m->packet);
    if (m->arriving) { /* the rest arrives in the envelope, and is then copied to the receive */
        r->flags |= MSG_MOVING;
        m->to = r;
        return;
    }
    if (m->from) { /* from this rank itself, with the data still in the send buffer */
        msg_copy_in(w, r, m->data ? m->data : m->from->buf, m->len);
        msg_complete(m->from, MSG_SUCCESS);
        msg_received(r);
    } else if ((m->packet.head.kind & MSG_PKT_MASK) == MSG_PKT_RTS) {
        copy_first_bytes(r, m->data, m->here);
        msg_accept_announced(&w->peers[m->source], &m->packet, r, m->here);
    } else {
        msg_copy_in(w, r, m->data, m->len);
        if ((m->packet.head.kind & MSG_PKT_MASK) == MSG_PKT_SYNC && m->source != w->rank)
            msg_push_ids(&w->peers[m->source], MSG_PKT_ACK, m->packet.rest.id, 0);
        msg_received(r);
    }
    msg_message_put(w, m);
}

/* Handles packets without message data. */
static void handle_control(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_request *r;
    switch (p->head.kind & MSG_PKT_MASK) {
    case MSG_PKT_CTS:
        msg_clear_to_send(peer, p);
        break;
    case MSG_PKT_FIN:
        msg_finished(peer, p);
        break;
    case MSG_PKT_SHARE:
        msg_part_offered(peer, p);
        break;
    case MSG_PKT_ACK:
        if ((r = msg_announced(peer, p->rest.id, MSG_PKT_SYNC)) != NULL)
            msg_complete(r, MSG_SUCCESS);
        break;
    case MSG_PKT_XOFF:
        peer->off = 1;
        break;
    case MSG_PKT_XON:
        peer->off = 0;
        break;
    case MSG_PKT_BYE:
        msg_bye_arrived(peer);
        break;
    case MSG_PKT_NEWS:
        msg_news_arrived(peer, p);
        break;
    case MSG_PKT_REVOKE:
        msg_revocation_arrived(peer, p);
        break;
    default:
        break;
    }
}

/* ---------------------------------------------------------------- arrivals */

/* Called by channels that deliver whole packets (via, bip). data lies in the channel's buffer and is valid during
 * the call. */
void msg_arrived(struct msg_peer *peer, const struct msg_packet *p, const void *data, size_t len)
{
    msg_world *w = peer->world;
    int kind = p->head.kind & MSG_PKT_MASK;
    if (vk_likely(kind <= MSG_PKT_SYNC)) {
        msg_request *r = msg_match_posted(w, p->head.context, peer->rank, p->head.tag);
        if (r == NULL) {
            keep(peer, p, data, len);
            return;
        }
        msg_bind(r, peer->rank, p);
        msg_copy_in(w, r, data, len);
        if (kind == MSG_PKT_SYNC)
            msg_push_ids(peer, MSG_PKT_ACK, p->rest.id, 0);
        msg_received(r);
    } else if (kind == MSG_PKT_RTS) {
        announced(peer, p, data, len);
    } else if (kind == MSG_PKT_DATA) {
        msg_request *r = msg_segment_of(peer, p, len);
        if (r == NULL)
            return;
        /* segment_of has checked offset and length against `want`, which never exceeds the buffer. */
        memcpy((char *)r->buf + p->rest.address, data, len);
        msg_count_copy(w, len);
        msg_segment_done(r, len);
    } else if (kind == MSG_PKT_ACTIVE)
        msg_active_arrived(peer, p, data, len);
    else
        handle_control(peer, p);
}

/* Chooses the destination of a message whose data follows on the stream. */
static void message_arriving(struct msg_peer *peer, struct msg_in *in)
{
    msg_world *w = peer->world;
    const struct msg_packet *p = &in->packet;
    msg_request *r = msg_match_posted(w, p->head.context, peer->rank, p->head.tag);
    if (r) {
        msg_bind(r, peer->rank, p);
        /* The stream is read into its buffer, so it cannot be withdrawn from here on. */
        r->flags |= MSG_MOVING;
        if (!w->policy.copy_recv && !w->policy.convert) {
            in->request = r;
            in->to = r->buf;
            in->room = in->len < r->len ? in->len : r->len;
            return;
        }
        /* The policy requires a copy in between. This envelope was never in the unexpected queue, hence `taken`. */
        msg_message *m = msg_message_new(w, in->len);
        if (m == NULL) {
            msg_peer_failed(peer, "memory is exhausted: a message could not be received");
            return;
        }
        m->packet = *p;
        m->source = peer->rank;
        m->taken = m->arriving = 1;
        m->to = r;
        in->message = m;
    } else {
        /* The message can be probed and received while its data is still arriving: msg_deliver_unexpected stores a
         * receive in m->to. */
        in->message = keep(peer, p, NULL, in->len);
        if (in->message)
            in->message->arriving = 1;
    }
    if (in->message) {
        in->to = in->message->data;
        in->room = in->len;
    }
}

/* An announcement with data: it goes to the receive if one is posted, else it is kept until all of it has arrived. Only
 * then can the message be probed. */
static void announcement_arriving(struct msg_peer *peer, struct msg_in *in)
{
    msg_world *w = peer->world;
    const struct msg_packet *p = &in->packet;
    msg_request *r = in->len <= p->rest.len ? msg_match_posted(w, p->head.context, peer->rank, p->head.tag) : NULL;
    if (r) {
        msg_bind(r, peer->rank, p);
        r->flags |= MSG_MOVING; /* as in message_arriving */
        in->request = r;
    }
    if (r && !w->policy.copy_recv) {
        in->to = r->buf;
        in->room = in->len < r->len ? in->len : r->len;
        return;
    }
    if ((in->message = msg_message_new(w, in->len)) == NULL) {
        msg_peer_failed(peer, "memory is exhausted: an announced message could not be received");
        return;
    }
    in->to = in->message->data;
    in->room = in->len;
}

/* Its data has arrived. */
static void announcement_done(struct msg_peer *peer, struct msg_in *in)
{
    msg_message *m = in->message;
    msg_request *r = in->request;
    if (r) {
        if (m)
            copy_first_bytes(r, m->data, in->len);
        msg_accept_announced(peer, &in->packet, r, in->len);
    } else
        announced(peer, &in->packet, m ? m->data : NULL, m ? in->len : 0);
    if (m)
        msg_message_put(peer->world, m);
}

/* Called by channels that read a stream (tcp), after a packet's header: sets the destination of its len bytes of
 * data. msg_arrival_done or msg_arrival_lost follows. */
void msg_arriving(struct msg_peer *peer, const struct msg_packet *p, size_t len, struct msg_in *in)
{
    *in = (struct msg_in){.len = len, .packet = *p};
    int kind = p->head.kind & MSG_PKT_MASK;
    if (kind == MSG_PKT_EAGER || kind == MSG_PKT_SYNC) {
        message_arriving(peer, in);
    } else if (kind == MSG_PKT_RTS && len) {
        announcement_arriving(peer, in);
    } else if (kind == MSG_PKT_DATA) {
        msg_request *r = msg_segment_of(peer, p, len);
        if (r == NULL)
            return; /* read and discarded */
        in->request = r;
        in->room = len;
        in->to = (char *)r->buf + p->rest.address;
        if (peer->world->policy.copy_recv && (in->message = msg_message_new(peer->world, len)) != NULL)
            in->to = in->message->data;
    } else if (kind == MSG_PKT_ACTIVE && len) {
        if ((in->message = msg_message_new(peer->world, len)) == NULL) {
            msg_peer_failed(peer, "memory is exhausted: an active message could not be received");
            return;
        }
        in->room = len;
        in->to = in->message->data;
    }
}

void msg_arrival_done(struct msg_peer *peer, struct msg_in *in)
{
    msg_world *w = peer->world;
    msg_message *m = in->message;
    msg_request *r = in->request;
    int kind = in->packet.head.kind & MSG_PKT_MASK;
    if (kind == MSG_PKT_ACTIVE) {
        msg_active_arrived(peer, &in->packet, m ? m->data : NULL, in->len);
        if (m)
            msg_message_put(w, m);
        return;
    }
    if (kind == MSG_PKT_RTS) {
        announcement_done(peer, in);
        return;
    }
    if (kind != MSG_PKT_EAGER && kind != MSG_PKT_SYNC && kind != MSG_PKT_DATA) {
        handle_control(peer, &in->packet);
        return;
    }
    if (kind == MSG_PKT_DATA) {
        if (m && r) {
            memcpy((char *)r->buf + in->packet.rest.address, m->data, in->len);
            msg_count_copy(w, in->len);
            msg_message_put(w, m);
        }
        if (r)
            msg_segment_done(r, in->len);
        return;
    }
    if (m) {
        m->arriving = 0;
        r = m->to;
        if (r) {
            msg_copy_in(w, r, m->data, m->len);
            msg_message_put(w, m);
        }
    } else if (r) {
        /* The data was read in place. Bytes beyond the buffer were read and discarded. */
        r->status.len = in->room;
        if (in->len > r->len)
            r->status.error = MSG_ERR_TRUNCATE;
    }
    if (r) {
        if (kind == MSG_PKT_SYNC)
            msg_push_ids(peer, MSG_PKT_ACK, in->packet.rest.id, 0);
        msg_received(r);
    }
}

/* The rank died during a transfer. The sweep (peer_failure.c) ends a receive that was being filled; this function
 * frees only the envelope. A message that is still in the queue is removed, because an incomplete message counts as
 * never sent. */
void msg_arrival_lost(struct msg_peer *peer, struct msg_in *in)
{
    msg_message *m = in->message;
    int kind = in->packet.head.kind & MSG_PKT_MASK, is_message = kind == MSG_PKT_EAGER || kind == MSG_PKT_SYNC;
    if (m == NULL)
        return;
    if (m->taken && m->to == NULL && is_message) {
        m->arriving = 2; /* A caller of msg_mprobe holds it: msg_imrecv will report the error. */
        return;
    }
    if (!m->taken && is_message)
        msg_take_unexpected(peer->world, m);
    msg_message_put(peer->world, m);
}
