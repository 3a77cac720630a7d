/*
 * Packets: what is sent for a message, and what an arriving one leads to. engine.h has the picture of the protocols.
 *
 * A message is sent eagerly if it is short and the receiver has not asked to be spared (XOFF, when its unexpected
 * queue holds too much). Everything else is announced (RTS) and waits for its receive. The receiver decides how the
 * data comes: as the sender proposed if both can, else by DATA packets, which every channel has.
 *
 * Why two ways: eager data costs a copy out of a buffer but no round trip; rendezvous costs a round trip and no copy.
 * The two lines cross where the knee in the curve is, at policy.eager_limit (`viakit calibrate` finds it for a link).
 *
 *   who ends a request             sender                               receiver
 *   EAGER                          when the channel has taken it        when it is copied out
 *   SYNC                           ACK                                  the same
 *   R3                             when the last DATA is taken          when `moved` reaches `want`
 *   RPUT                           its RDMA writes are done             FIN, which follows them on the same VI
 *   RGET                           FIN                                  its RDMA reads are done
 *
 * Nothing that another rank says is believed: ids are looked up, lengths and offsets are held against the request.
 * What fits nothing is dropped; it can only have been a rank that broke the rules, or one whose request has ended in
 * error.
 *
 * May end within a call: msg_push (a channel that finds its peer dead ends all of that peer's requests), and so
 * whatever calls it. Who holds a request across such a call looks at `complete` afterwards, or holds an id.
 */
#include <stdlib.h>

#include "channel.h"

static void accept_announced(struct msg_peer *peer, const struct msg_packet *p, msg_request *r);
static void received_long(msg_request *r);

/* ---------------------------------------------------------------- pushing */

/* Behind the packets that wait for this rank, and the rank on the list of those that msg_step attends to. */
void msg_enqueue(struct msg_peer *peer, struct msg_out *out)
{
    msg_world *w = peer->world;
    out->next = NULL;
    /* queue_end means something only while the queue is not empty, so whoever empties the queue
     * need not set it. */
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

/* Order of packets is what matching relies on: once one waits, all later ones do. */
void msg_push(struct msg_peer *peer, struct msg_out *out)
{
    if (peer->gone)
        return; /* the request was ended when it was started, or will be by the sweep */
    /* 1 taken, 0 not now; negative: the rank has just failed, and the sweep (leave.c) has ended
     * this request already. */
    if (vk_likely(peer->queue == NULL)) {
        int taken = peer->channel->push(peer, out);
        if (taken == 1)
            msg_out_taken(peer, out);
        if (taken != 0)
            return;
    }
    msg_enqueue(peer, out);
}

/* Was queued with its data, and now the receiver has asked to be spared: announce it instead. Not if the data is
 * hardly longer than an announcement, or has begun to leave. R3, for nothing is registered here. */
static void announce_instead(struct msg_out *out)
{
    uint8_t kind = out->packet.head.kind & MSG_PKT_MASK;
    if ((kind != MSG_PKT_EAGER && kind != MSG_PKT_SYNC) || out->len <= MSG_INLINE || out->sent)
        return;
    out->packet.head.kind = (uint8_t)((out->packet.head.kind & ~MSG_PKT_MASK) | MSG_PKT_RTS);
    out->packet.rest.how = MSG_R3;
    /* The request keeps buf and len, and clear_to_send makes a DATA packet of them. Of a SYNC message
     * the CTS says that it was matched: no ACK is needed then. */
    out->data = NULL;
    out->len = 0;
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

/* Behind what waits already, and before all that is to come: a message must not overtake a write. The fence is
 * a packet that never leaves (msg_push_queue): its place in the queue is all that is wanted of it. */
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

/* As many as the channel takes. The head is taken off the queue only afterwards: it is what the channel goes on with.
 */
void msg_push_queue(struct msg_peer *peer)
{
    struct msg_out *out;
    while ((out = peer->queue) != NULL) {
        if (vk_unlikely(peer->off))
            announce_instead(out);
        /* A fence is past when every write begun before it has been handed over; the channel keeps
         * the order from there on. */
        int is_fence = (out->packet.head.kind & MSG_PKT_MASK) == MSG_PKT_FENCE;
        int taken = is_fence ? !msg_is_writing(peer->world, peer->rank) : peer->channel->push(peer, out);
        if (taken != 1)
            return; /* later; or the rank has failed and the queue is gone */
        peer->queue = out->next;
        if (out->request)
            out->request->flags &= (uint8_t)~MSG_QUEUED;
        msg_out_taken(peer, out);
    }
}

void msg_push_control(struct msg_peer *peer, const struct msg_packet *packet)
{
    /* Mostly it can go at once, from the stack. A carrier, which outlives the call, is made only
     * where it must wait. If there is no memory for one, the other side would wait for ever for
     * what it says: better an error for both. */
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

/* A packet that says no more than which request it is about: `id` of the sender's, `peer_id` of the receiver's. */
static void control(struct msg_peer *peer, int kind, uint64_t id, uint64_t peer_id)
{
    struct msg_packet p = {.head.kind = (uint8_t)kind, .rest = {.id = id, .peer_id = peer_id}};
    msg_push_control(peer, &p);
}

/* The channel has all of a packet: its data may be overwritten. That is the end of an eager send and
 * of a send by segments, and of a request that failed while it was still in the queue; not of what
 * was only announced, which now waits for CTS, FIN or ACK. */
void msg_out_taken(struct msg_peer *peer, struct msg_out *out)
{
    msg_request *r = out->request;
    (void)peer;
    if (r == NULL)
        return;
    if (r->complete) { /* it ended, in error, while it was queued */
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

/* Decides how a message goes, and pushes its first packet. If the channel finds the rank dead
 * on the way, the request has ended when this returns. */
void msg_begin_send(msg_request *r, struct msg_peer *peer, msg_mode mode)
{
    msg_world *w = r->world;
    int synchronous = mode == MSG_SYNCHRONOUS || w->policy.synchronous;
    /* What fits an envelope is sent even to who asked to be spared: an announcement would take an
     * envelope there, too. */
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
        out->packet.head.kind = MSG_PKT_RTS;
        out->packet.rest.how = MSG_R3;
        /* What would do for eager sending does for segments; RDMA pays above. */
        if (peer->channel->put && r->len >= (size_t)w->policy.rdma_from && r->len > peer->eager_limit)
            out->packet.rest.how = (uint32_t)peer->rendezvous;
        if (out->packet.rest.how == MSG_RGET) {
            /* Offering our memory for reading binds us until the FIN. Who may want it back earlier (send.c)
             * lets itself be told where to write instead; so does a sender whose buffer cannot be registered. */
            if (!w->may_withdraw && peer->channel->get && peer->channel->can_get(peer) &&
                peer->channel->hold(peer, r, r->len, 2) == 0) {
                out->packet.rest.address = r->address;
                out->packet.rest.handle = r->handle;
            } else
                out->packet.rest.how = MSG_RPUT;
        }
        MSG_COUNT(w, rendezvous_sent, 1);
    }
    if (mode == MSG_READY)
        out->packet.head.kind |= MSG_FLAG_READY;
    msg_push(peer, out);
}

/* ---------------------------------------------------------------- RDMA */

/* Starts what can be started. 1: all of it is; the request may be gone then. */
static int move_pieces(msg_request *r)
{
    struct msg_peer *peer = &r->world->peers[r->peer];
    const struct msg_channel *c = peer->channel;
    int reading = r->kind == MSG_REQ_RECV, put = r->kind == MSG_REQ_PUT;
    size_t piece = (size_t)r->world->policy.piece;
    uint64_t id = r->remote_id;
    for (int last = 0; !last;) {
        /* One descriptor for each piece. */
        size_t at = r->started, n = r->want - at < piece ? r->want - at : piece;
        last = at + n == r->want;
        r->started += n; /* before: the request may end within the call */
        int started = (reading ? c->get : c->put)(peer, r, at, n, r->address + at, r->handle);
        if (started == 1)
            continue;
        if (started == 0) {
            r->started = at;
            return 0;
        }
        msg_peer_failed(peer, "an RDMA operation could not be started");
        return 1;
    }
    if (!reading && !put && !c->tells_receiver) /* it stays behind what was written */
        control(peer, MSG_PKT_FIN, 0, id);
    return 1;
}

/* All pieces at once if they find descriptors, else the rest by msg_move whenever the engine is called. */
static void begin_moving(msg_request *r)
{
    r->started = r->moved = 0;
    if (!move_pieces(r)) {
        r->moving = r->world->moving;
        r->world->moving = r;
    }
}

void msg_move(msg_world *w)
{
    int n = 0;
    /* Counted first: who has no luck now goes to the end of the list, behind others, and is not
     * to be tried twice. */
    for (const msg_request *r = w->moving; r; r = r->moving)
        n++;
    /* Each of them once, in turn. All but the one in hand stay in the list: a rank that fails here takes its own out.
     */
    while (n-- > 0 && w->moving) {
        msg_request *r = w->moving, **end = &w->moving;
        w->moving = r->moving;
        r->moving = NULL;
        if (r->complete || move_pieces(r) || r->complete)
            continue;
        while (*end)
            end = &(*end)->moving;
        *end = r;
    }
}

/* The channel's hold on the buffer ends, once. */
void msg_let_go(msg_request *r)
{
    struct msg_peer *peer = &r->world->peers[r->peer];
    if (r->registered && peer->channel->drop)
        peer->channel->drop(peer, r);
    r->registered = NULL;
}

/* Called by channels. A failed RDMA operation is the end of the connection (reliable VIs are in the error state
 * then), so of the rank. */
void msg_moved(msg_request *r, size_t len, int error)
{
    struct msg_peer *peer = &r->world->peers[r->peer];
    if (error) {
        msg_peer_failed(peer, "an RDMA operation failed");
        return;
    }
    r->moved += len;
    if (r->moved < r->want)
        return;
    msg_let_go(r);
    /* RGET: all is read, and the sender may have its buffer back. Saying so may find it dead, and end r in
     * error; only if r still has this id is there something to end. */
    if (r->kind == MSG_REQ_RECV) {
        uint64_t id = r->id;
        control(peer, MSG_PKT_FIN, r->remote_id, 0);
        if (msg_request_find(peer->world, id) == r)
            received_long(r);
    } else
        msg_complete(r, MSG_SUCCESS);
}

/* ---------------------------------------------------------------- data comes in */

/* What a heterogeneous library does to every word; its own inverse. */
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

/* A whole message into its receive. */
void msg_copy_in(msg_world *w, msg_request *r, const void *data, size_t len)
{
    size_t n = len;
    if (vk_unlikely(len > r->len)) {
        n = r->len;
        r->status.error = MSG_ERR_TRUNCATE;
    }
    r->status.len = n;
    /* The sender's pass (send.c: pack) and this one undo each other: work for nothing, as 001, 4.2 measured it. */
    if (vk_unlikely(w->policy.convert))
        msg_convert(r->buf, data, n);
    else if (n)
        vk_copy_short(r->buf, data, n);
    MSG_COUNT(w, copies, n != 0);
    MSG_COUNT(w, bytes_copied, n);
}

/* The receive is this message's from now on. */
static inline void bind_to(msg_request *r, int source, const struct msg_packet *p)
{
    r->peer = r->status.source = source;
    r->tag = r->status.tag = p->head.tag;
}

/* A receive ends; an error that was noted before (truncation) stays in its status. */
static inline void received(msg_request *r)
{
    MSG_COUNT(r->world, received, 1);
    MSG_COUNT(r->world, bytes_received, r->status.len);
    msg_complete(r, MSG_SUCCESS);
}

/* The last byte of a rendezvous is here. */
static void received_long(msg_request *r)
{
    msg_let_go(r);
    if (r->world->policy.convert)
        msg_convert(r->buf, r->buf, r->status.len);
    received(r);
}

/* Called by channels that know themselves when data is in place (tells_receiver). */
void msg_put_arrived(msg_request *r)
{
    received_long(r);
}

/* More unexpected data than the policy allows: asks this sender, once, to announce from now on. What is under way
 * still comes. */
static void told_too_much(struct msg_peer *peer)
{
    msg_world *w = peer->world;
    /* Only data beyond MSG_INLINE counts in early_bytes (request.c), for only that can be kept back. */
    if (w->early_bytes <= (size_t)w->policy.unexpected_bytes || peer->told_off)
        return;
    peer->told_off = 1;
    w->throttling = 1;
    MSG_COUNT(w, throttled, 1);
    control(peer, MSG_PKT_XOFF, 0, 0);
}

/* Half of what is allowed is free again: everybody may send eagerly (msg_message_put says why half). */
void msg_relieve(msg_world *w)
{
    w->throttling = 0;
    /* XOFF and XON keep their order on the way to a rank, so it believes what was said last. */
    for (int i = 0; i < w->n_ranks; i++)
        if (w->peers[i].told_off) {
            w->peers[i].told_off = 0;
            control(&w->peers[i], MSG_PKT_XON, 0, 0);
        }
}

/* Keeps a message nobody has asked for. data NULL: its data is still to come, or was only announced. */
static msg_message *keep(struct msg_peer *peer, const struct msg_packet *p, const void *data, size_t len)
{
    msg_world *w = peer->world;
    msg_message *m = msg_message_new(w, len);
    if (m) {
        m->packet = *p;
        m->source = peer->rank;
        if (data && len) {
            memcpy(m->data, data, len);
            MSG_COUNT(w, copies, 1);
            MSG_COUNT(w, bytes_copied, len);
        }
        /* From here on a receive can find it. */
        if (msg_add_early(w, m) == MSG_SUCCESS) {
            MSG_COUNT(w, unexpected, 1);
            MSG_COUNT(w, ready_missed, p->head.kind & MSG_FLAG_READY ? 1 : 0);
            told_too_much(peer);
            return m;
        }
        msg_message_put(w, m);
    }
    msg_peer_failed(peer, "memory is exhausted: an unexpected message could not be kept");
    return NULL;
}

/* Four kinds of early message: still arriving (tcp), held by a sender of our own world, announced, or here. */
void msg_deliver_early(msg_world *w, msg_message *m, msg_request *r)
{
    bind_to(r, m->source, &m->packet);
    if (m->arriving) { /* the rest goes on into the envelope, and from there to the receive */
        r->flags |= MSG_MOVING;
        m->to = r;
        return;
    }
    if (m->from) { /* from ourselves, and the data is still where it was */
        msg_copy_in(w, r, m->data ? m->data : m->from->buf, m->len);
        msg_complete(m->from, MSG_SUCCESS);
        received(r);
    } else if (m->data == NULL) {
        accept_announced(&w->peers[m->source], &m->packet, r);
    } else {
        msg_copy_in(w, r, m->data, m->len);
        if ((m->packet.head.kind & MSG_PKT_MASK) == MSG_PKT_SYNC && m->source != w->rank)
            control(&w->peers[m->source], MSG_PKT_ACK, m->packet.rest.id, 0);
        received(r);
    }
    msg_message_put(w, m);
}

/* ---------------------------------------------------------------- rendezvous */

/* The receiver's answer to an announced message. */
static void accept_announced(struct msg_peer *peer, const struct msg_packet *p, msg_request *r)
{
    int error = msg_peer_error(peer);
    if (error) {
        msg_complete(r, error);
        return;
    }
    /* The sender is told how much is wanted: the rest of a message that is too long for its
     * receive never travels. */
    r->want = p->rest.len < r->len ? p->rest.len : r->len;
    if (r->want < p->rest.len)
        r->status.error = MSG_ERR_TRUNCATE;
    r->status.len = r->want;
    r->remote_id = p->rest.id;
    r->flags |= MSG_MOVING;
    r->how = MSG_BY_SEGMENTS;
    struct msg_packet cts = {
        .head.kind = MSG_PKT_CTS,
        .rest = {.len = r->want, .id = p->rest.id, .peer_id = r->id, .how = MSG_R3},
    };
    /* The way is chosen by trying: reading, if it was offered and our buffer can be registered; else writing;
     * else segments, which need nothing. Where no bytes are wanted, CTS only ends the send. */
    if (r->want && p->rest.how == MSG_RGET && peer->channel->get && peer->channel->hold(peer, r, r->want, 0) == 0) {
        r->address = p->rest.address;
        r->handle = p->rest.handle;
        r->how = MSG_BY_READS;
        MSG_COUNT(peer->world, rget, 1);
        begin_moving(r);
        return;
    }
    if (r->want && p->rest.how != MSG_R3 && peer->channel->put && peer->channel->hold(peer, r, r->want, 1) == 0) {
        r->how = MSG_BY_WRITES;
        cts.rest.how = MSG_RPUT;
        cts.rest.address = r->address;
        cts.rest.handle = r->handle;
    }
    if (r->want == 0)
        received(r);
    msg_push_control(peer, &cts);
}

/* A send of ours that the other side knows of, and that moves nothing yet; NULL for any other
 * id. So a CTS that comes twice, or for a message that was never announced, finds nothing:
 * after the first the request is MOVING, or gone. */
static msg_request *announced(struct msg_peer *peer, uint64_t id, int kind)
{
    msg_request *r = msg_request_find(peer->world, id);
    return r && r->kind == MSG_REQ_SEND && r->peer == peer->rank &&
                   (r->flags & (MSG_ANNOUNCED | MSG_MOVING)) == MSG_ANNOUNCED &&
                   (r->out.packet.head.kind & MSG_PKT_MASK) == kind
               ? r
               : NULL;
}

/* The sender's turn. */
static void clear_to_send(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_world *w = peer->world;
    msg_request *r = announced(peer, p->rest.id, MSG_PKT_RTS);
    if (r == NULL)
        return;
    msg_let_go(r); /* it may have been offered for reading */
    r->flags |= MSG_MOVING;
    r->want = p->rest.len < r->len ? p->rest.len : r->len;
    if (r->want == 0) {
        msg_complete(r, MSG_SUCCESS);
        return;
    }
    if (p->rest.how == MSG_RPUT && peer->channel->put && peer->channel->hold(peer, r, r->want, 0) == 0) {
        r->remote_id = p->rest.peer_id;
        r->address = p->rest.address;
        r->handle = p->rest.handle;
        MSG_COUNT(w, rput, 1);
        begin_moving(r);
        return;
    }
    MSG_COUNT(w, r3, 1);
    /* The request's msg_out, free since the RTS was taken, is now one DATA packet, which the
     * channel cuts as it needs. */
    r->out = (struct msg_out){.request = r, .data = r->buf, .len = r->want};
    r->out.packet.head.kind = MSG_PKT_DATA;
    r->out.packet.rest = (struct msg_rest){.peer_id = p->rest.peer_id, .len = r->want};
    msg_push(peer, &r->out);
}

/* The receive that the rank was told to fill, or to write to; NULL if there is none. */
static msg_request *receive_of(struct msg_peer *peer, uint64_t id)
{
    msg_request *r = msg_request_find(peer->world, id);
    return r && r->kind == MSG_REQ_RECV && r->peer == peer->rank &&
                   (r->how == MSG_BY_SEGMENTS || r->how == MSG_BY_WRITES)
               ? r
               : NULL;
}

/* The receive that this segment belongs to. Who was told to write may send segments instead. */
static msg_request *segment_of(struct msg_peer *peer, const struct msg_packet *p, size_t len)
{
    msg_request *r = receive_of(peer, p->rest.peer_id);
    return r && p->rest.address <= r->want && len <= r->want - p->rest.address ? r : NULL;
}

static void segment_done(msg_request *r, size_t len)
{
    r->moved += len;
    if (r->moved >= r->want) /* more, if the sender lies and sends a part twice: what he says is over is over */
        received_long(r);
}

/* FIN: peer_id names a receive (RPUT: all is written), id a send (RGET: all is read), and each must be one of which
 * that can be said. */
static void finished(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_request *r = p->rest.peer_id ? receive_of(peer, p->rest.peer_id) : announced(peer, p->rest.id, MSG_PKT_RTS);
    if (r == NULL)
        return;
    if (r->kind == MSG_REQ_RECV) {
        if (r->how == MSG_BY_WRITES && !peer->channel->tells_receiver)
            received_long(r);
    } else if (r->registered) { /* it was offered for reading */
        msg_let_go(r);
        msg_complete(r, MSG_SUCCESS);
    }
}

/* Packets that carry no message data. */
static void handle_control(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_world *w = peer->world;
    msg_request *r;
    switch (p->head.kind & MSG_PKT_MASK) {
    case MSG_PKT_RTS:
        r = msg_match_posted(w, p->head.context, peer->rank, p->head.tag);
        if (r) {
            bind_to(r, peer->rank, p);
            accept_announced(peer, p, r);
        } else {
            msg_message *m = keep(peer, p, NULL, 0);
            if (m) {
                m->data = NULL;
                m->len = p->rest.len;
            }
        }
        break;
    case MSG_PKT_CTS:
        clear_to_send(peer, p);
        break;
    case MSG_PKT_FIN:
        finished(peer, p);
        break;
    case MSG_PKT_ACK:
        if ((r = announced(peer, p->rest.id, MSG_PKT_SYNC)) != NULL)
            msg_complete(r, MSG_SUCCESS);
        break;
    case MSG_PKT_XOFF:
        peer->off = 1;
        break;
    case MSG_PKT_XON:
        peer->off = 0;
        break;
    case MSG_PKT_BYE:
        msg_said_bye(peer);
        break;
    default:
        break;
    }
}

/* ---------------------------------------------------------------- arrivals */

/* Called by channels whose packets come whole (via, bip): data lies in the channel's buffer and is valid during the
 * call. */
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
        bind_to(r, peer->rank, p);
        msg_copy_in(w, r, data, len);
        if (kind == MSG_PKT_SYNC)
            control(peer, MSG_PKT_ACK, p->rest.id, 0);
        received(r);
    } else if (kind == MSG_PKT_DATA) {
        msg_request *r = segment_of(peer, p, len);
        if (r == NULL)
            return;
        /* segment_of has held place and length against `want`, which is never more than the buffer has. */
        memcpy((char *)r->buf + p->rest.address, data, len);
        MSG_COUNT(w, copies, 1);
        MSG_COUNT(w, bytes_copied, len);
        segment_done(r, len);
    } else
        handle_control(peer, p);
}

/* A message whose data follows on the stream: where to? */
static void message_arriving(struct msg_peer *peer, struct msg_in *in)
{
    msg_world *w = peer->world;
    const struct msg_packet *p = &in->packet;
    msg_request *r = msg_match_posted(w, p->head.context, peer->rank, p->head.tag);
    if (r) {
        bind_to(r, peer->rank, p);
        /* The stream is being read into its buffer: from here on it cannot be withdrawn. */
        r->flags |= MSG_MOVING;
        if (!w->policy.copy_recv && !w->policy.convert) {
            in->request = r;
            in->to = r->buf;
            in->room = in->len < r->len ? in->len : r->len;
            return;
        }
        /* The policy wants a copy in between: an envelope that never was in the early queue, hence `taken`. */
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
        /* It can be probed and received while its data is still coming in: msg_deliver_early leaves a
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

/* Called by channels that read a stream (tcp), when they know a packet's front: says where its len bytes of data are
 * to go. msg_arrival_done follows when they are there, or msg_arrival_lost. */
void msg_arriving(struct msg_peer *peer, const struct msg_packet *p, size_t len, struct msg_in *in)
{
    *in = (struct msg_in){.len = len, .packet = *p};
    int kind = p->head.kind & MSG_PKT_MASK;
    if (kind == MSG_PKT_EAGER || kind == MSG_PKT_SYNC) {
        message_arriving(peer, in);
    } else if (kind == MSG_PKT_DATA) {
        msg_request *r = segment_of(peer, p, len);
        if (r == NULL)
            return; /* read and dropped */
        in->request = r;
        in->room = len;
        in->to = (char *)r->buf + p->rest.address;
        if (peer->world->policy.copy_recv && (in->message = msg_message_new(peer->world, len)) != NULL)
            in->to = in->message->data;
    }
}

void msg_arrival_done(struct msg_peer *peer, struct msg_in *in)
{
    msg_world *w = peer->world;
    msg_message *m = in->message;
    msg_request *r = in->request;
    int kind = in->packet.head.kind & MSG_PKT_MASK;
    if (kind != MSG_PKT_EAGER && kind != MSG_PKT_SYNC && kind != MSG_PKT_DATA) {
        handle_control(peer, &in->packet);
        return;
    }
    if (kind == MSG_PKT_DATA) {
        if (m && r) {
            memcpy((char *)r->buf + in->packet.rest.address, m->data, in->len);
            MSG_COUNT(w, copies, 1);
            MSG_COUNT(w, bytes_copied, in->len);
            msg_message_put(w, m);
        }
        if (r)
            segment_done(r, in->len);
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
        /* Read in place; what exceeds the buffer was read and dropped. */
        r->status.len = in->room;
        if (in->len > r->len)
            r->status.error = MSG_ERR_TRUNCATE;
    }
    if (r) {
        if (kind == MSG_PKT_SYNC)
            control(peer, MSG_PKT_ACK, in->packet.rest.id, 0);
        received(r);
    }
}

/* The rank died in the middle of it. A receive that was being filled is ended by the sweep (leave.c); here only
 * the envelope goes. One that nobody has taken leaves the queue: half a message was never sent. */
void msg_arrival_lost(struct msg_peer *peer, struct msg_in *in)
{
    msg_message *m = in->message;
    if (m == NULL)
        return;
    if (m->taken && m->to == NULL && (in->packet.head.kind & MSG_PKT_MASK) != MSG_PKT_DATA) {
        m->arriving = 2; /* somebody holds it, by msg_mprobe: msg_mrecv will say so */
        return;
    }
    if (!m->taken && (in->packet.head.kind & MSG_PKT_MASK) != MSG_PKT_DATA)
        msg_take_early(peer->world, m);
    msg_message_put(peer->world, m);
}
