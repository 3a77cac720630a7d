/*
 * Arriving packets: what each does to the requests of this rank. protocol.c sends packets, and has the table of what
 * completes a request. engine.h lists what happens to packets that no request expects.
 *
 *      a packet                  a receive is posted                       none is posted
 *      EAGER, SYNC               msg_copy_in, complete                     keep: unexpected message
 *      RTS                       msg_accept_announced (rendezvous.c)       keep: the announcement, and its data if any
 *      DATA                      to its place in the receive of its id     dropped
 *      CTS FIN SHARE ACK ...     handle_control, by the request's id       dropped
 *
 * A channel delivers a packet in one of two ways:
 *
 *      whole packets (via, bip)         msg_arrived: the data is in the channel's buffer, and valid during the call
 *      streams (tcp)                    msg_arriving: chooses where the data will be read to, without knowing it
 *                                         msg_arrival_done: all of it is there
 *                                         msg_arrival_lost: the stream has ended within it
 *
 * Between msg_arriving and its end, which may be seconds, the program may post, probe, receive and cancel. So a receive
 * that a stream fills is MSG_MOVING, which nothing withdraws, and an envelope that a stream fills is `arriving`:
 *
 *      arriving 1 --msg_arrival_done--> 0, to the receive in m->to if one came meanwhile
 *               '---msg_arrival_lost--> freed; or 2, if a caller of msg_mprobe holds it
 *
 * Invariant: a message is matched when its first packet arrives, even if its data has not (MPI 4.1, 3.5: messages do
 * not overtake each other). One exception: an announcement with data, for which no receive is posted, is matched once
 * its data is there. Nothing else of that rank arrives earlier on its stream.
 *
 * Called by channels from within their progress, push or wake, with the world's lock held. Every call may end requests,
 * because replies are pushed (protocol.c).
 */
#include <stdlib.h>

#include "msg/channel.h"

/* ---------------------------------------------------------------- arriving data */

/* Byte swap of every word, as a heterogeneous library converts data. It is its own inverse, so sender and receiver call
 * the same function. A rest of fewer than 4 bytes is copied. */
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

/* Copies a whole message into its receive. A longer one is truncated: the receive gets the first bytes and the error
 * MSG_ERR_TRUNCATE (MPI 4.1, 3.2.4). The caller completes it. */
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

/* If the unexpected data exceeds the policy's bound, sends XOFF to this sender, once. Data in flight still arrives;
 * policy.h has its bound. */
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

/* Queues an unexpected message. data NULL: its data will follow, or was only announced. Returns NULL without memory:
 * the rank then counts as failed, because a message that is lost silently would break MPI's guarantees. */
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

/* Four kinds of unexpected message: still arriving (tcp), held by a send of this rank, announced, or complete. The
 * caller has removed it from the queue. Frees the envelope, except while data still arrives in it. r may be complete on
 * return. */
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

/* Handles packets without message data. An unknown kind is dropped: ranks of another version were refused on opening
 * (hello.c), so it can only be damage. */
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

/* Its data has arrived: continues as for an announcement without data. The envelope was in no queue, so it is freed. */
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
        /* Active messages are handled whole, so the data is collected first. */
        if ((in->message = msg_message_new(peer->world, len)) == NULL) {
            msg_peer_failed(peer, "memory is exhausted: an active message could not be received");
            return;
        }
        in->room = len;
        in->to = in->message->data;
    }
}

/* The kinds differ in who owns `m`: an envelope that no queue has is freed here, one that the unexpected queue has
 * stays there. A receive in m->to came meanwhile, and gets the copy now. */
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
