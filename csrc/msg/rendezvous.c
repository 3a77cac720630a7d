/*
 * Rendezvous: the threshold from which a message is announced, and the transfer of announced messages.
 *
 * Threshold. Eager data costs a copy out of a buffer but no round trip. Rendezvous costs a round trip and no copy.
 * Their costs are equal at the knee of the latency curve. The threshold between ranks of one host, and the one between
 * hosts, are decided here when the world opens, and rank 0's values apply to all:
 *
 *     1. policy.eager_limit_local, policy.eager_limit     if the policy sets them (policy.c)
 *     2. the result of `viakit calibrate` for the link    else (calibration.c); without a result, a built-in value
 *     3. at most what the channel can send at once        msg_rendezvous_threshold, called by the channels
 *
 * BIP has its own table of thresholds (csrc/bip/model.h), and writes the result into the policy (bip.c).
 *
 * Transfer. The sender announces the message (RTS). The receiver chooses the transfer: as the sender proposed if both
 * support it, else by DATA packets, which every channel supports. Here as in arrival.c, fields from another rank are
 * validated before use.
 *
 * Shared transfer. Ranks of one host copy a long message together, each on its own core, if both wait for it:
 *
 *     sender, in a send that may be interrupted        receiver, in a receive
 *     RTS (how: share)             ----------------->
 *                                  <-----------------  CTS (how: share; where to write)
 *     SHARE (where to read)        ----------------->
 *     writes [part, want)                              reads [0, part)
 *     FIN                          <---------------->  FIN
 *
 * The buffer is offered for reading only after the CTS, from which on the send cannot be withdrawn. A receiver that
 * does not wait in a call might read late, so it does not request a share. Each rank ends when both parts have been
 * moved.
 */
#include "msg/calibration.h"
#include "msg/channel.h"

/* ---------------------------------------------------------------- the threshold */

size_t msg_rendezvous_threshold(const msg_world *w, int local, size_t most)
{
    int64_t limit = local ? w->policy.eager_limit_local : w->policy.eager_limit;
    size_t threshold = limit < 0 ? 8192 : (size_t)limit; /* below 0: BIP, which has not chosen its limit yet */
    return threshold < most ? threshold : most;
}

/* Fills in the open fields of the policy in this order: limits, local limits that inherit the general ones, then
 * rendezvous the same way. A field with a set value never changes. */
static void adopt(msg_policy *p, const msg_calibration both[2], int several_hosts)
{
    int by_bip = strcmp(p->channel, "bip") == 0; /* BIP has its own table: csrc/bip/model.h */
    if (p->eager_limit == MSG_CALIBRATED && !by_bip)
        p->eager_limit = both[1].eager_limit;
    if (p->eager_limit_local == MSG_CALIBRATED && !by_bip)
        p->eager_limit_local = both[0].eager_limit;
    if (p->eager_limit_local < 0)
        p->eager_limit_local = p->eager_limit;
    if (p->rendezvous_local == MSG_CALIBRATED || (p->rendezvous_local < 0 && p->rendezvous == MSG_CALIBRATED))
        p->rendezvous_local = both[0].rendezvous;
    if (p->rendezvous == MSG_CALIBRATED)
        p->rendezvous = both[1].rendezvous;
    if (p->rendezvous_local < 0)
        p->rendezvous_local = p->rendezvous;
    if (p->credits == MSG_CALIBRATED) /* one number for both links: the larger serves both */
        p->credits = several_hosts && both[1].credits > both[0].credits ? both[1].credits : both[0].credits;
}

void msg_choose_rendezvous(msg_world *w, const msg_calibration both[2])
{
    adopt(&w->policy, both, w->n_local < w->n_ranks);
    for (int i = 0; i < w->n_ranks; i++) {
        int local = w->peers[i].host == w->peers[w->rank].host;
        w->peers[i].rendezvous = local ? w->policy.rendezvous_local : w->policy.rendezvous;
    }
    /* For messages to this rank itself; channels set the limits of others. */
    w->peers[w->rank].eager_limit = msg_rendezvous_threshold(w, 1, SIZE_MAX);
}

/* ---------------------------------------------------------------- announcing */

/* Puts the first bytes of the message into its request, as LAM does (policy.request_data). After an XOFF the receiver
 * has no room for them. */
static void send_first_bytes(msg_request *r, const struct msg_peer *peer)
{
    size_t most = (size_t)r->world->policy.request_data;
    most = most < peer->eager_limit ? most : peer->eager_limit;
    if (most == 0 || peer->off)
        return;
    r->started = most < r->len ? most : r->len;
    r->out.data = r->buf;
    r->out.len = r->started;
}

/* Whether both ranks may copy a message of this length. With fewer cores than ranks they would only take turns. */
static int may_share(struct msg_peer *peer, size_t len)
{
    const msg_world *w = peer->world;
    return w->policy.share_from >= 0 && len >= (size_t)w->policy.share_from && !w->crowded &&
           peer->channel->can_share && peer->channel->can_share(peer);
}

/* Makes the announcement of a message in its msg_out, and proposes a transfer. */
void msg_announce(msg_request *r, struct msg_peer *peer)
{
    msg_world *w = r->world;
    struct msg_out *out = &r->out;
    out->packet.head.kind = MSG_PKT_RTS;
    out->packet.rest.how = MSG_R3;
    /* Messages within the eager limit go by segments. RDMA is faster above it. */
    if (peer->channel->put && r->len >= (size_t)w->policy.rdma_from && r->len > peer->eager_limit)
        out->packet.rest.how = (uint32_t)peer->rendezvous;
    if (out->packet.rest.how == MSG_RGET) {
        /* Memory that is offered for reading stays bound until the FIN. A sender that may need its buffer back
         * earlier (send.c) proposes to share the copy, or RPUT. A sender whose buffer cannot be registered proposes
         * RPUT. */
        if (!w->may_withdraw && peer->channel->get && peer->channel->can_get(peer) &&
            peer->channel->hold(peer, r, r->len, 2) == 0) {
            out->packet.rest.address = r->address;
            out->packet.rest.handle = r->handle;
        } else
            out->packet.rest.how = w->may_withdraw && may_share(peer, r->len) ? MSG_RSHARE : MSG_RPUT;
    }
    if (out->packet.rest.how == MSG_R3)
        send_first_bytes(r, peer);
}

/* ---------------------------------------------------------------- RDMA */

/* Starts as many pieces as possible. Returns 1 if all have been started; the request may be gone then. */
static int move_pieces(msg_request *r)
{
    struct msg_peer *peer = &r->world->peers[r->peer];
    const struct msg_channel *c = peer->channel;
    int reading = r->kind == MSG_REQ_RECV || r->kind == MSG_REQ_GET, put = r->kind == MSG_REQ_PUT;
    size_t piece = (size_t)r->world->policy.piece;
    uint64_t id = r->remote_id;
    for (int last = 0; !last;) {
        /* One descriptor per piece. */
        size_t at = r->started, n = r->want - at < piece ? r->want - at : piece;
        last = at + n == r->want;
        r->started += n; /* Updated first, because the request may end within the call. */
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
    if (!reading && !put && !c->notifies_receiver) /* The FIN arrives after the written data. */
        msg_push_ids(peer, MSG_PKT_FIN, 0, id);
    return 1;
}

/* Starts all pieces from byte `first` on if there are descriptors for them. msg_move starts the others on later calls
 * of the engine. */
static void begin_moving(msg_request *r, size_t first)
{
    r->started = r->moved = first;
    if (!move_pieces(r)) {
        r->moving = r->world->moving;
        r->world->moving = r;
    }
}

void msg_move(msg_world *w)
{
    int n = 0;
    /* Counts first: a request that finds no descriptor now moves to the end of the list and must not be tried twice. */
    for (const msg_request *r = w->moving; r; r = r->moving)
        n++;
    /* Tries each request once, in order. All but the current one stay in the list, because a rank that fails here
     * removes its own. */
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

/* Releases the channel's registration of the buffer, once. */
void msg_release_buffer(msg_request *r)
{
    struct msg_peer *peer = &r->world->peers[r->peer];
    if (r->registered && peer->channel->drop)
        peer->channel->drop(peer, r);
    r->registered = NULL;
}

/* Called by channels. A failed RDMA operation breaks the connection, because reliable VIs are then in the error
 * state. So the rank counts as failed. */
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
    int ends = r->sharing != MSG_SHARING; /* else with the peer's FIN (part_moved) */
    if (ends)
        msg_release_buffer(r);
    /* RGET: all data is read, so the FIN releases the sender's buffer. Sending it may reveal that the sender is
     * dead, which ends r in error. r is completed only if it still has this id. */
    if (r->kind == MSG_REQ_RECV) {
        uint64_t id = r->id;
        msg_push_ids(peer, MSG_PKT_FIN, r->remote_id, 0);
        if (ends && msg_request_find(peer->world, id) == r)
            msg_put_arrived(r);
    } else if (ends)
        msg_complete(r, MSG_SUCCESS);
}

/* ---------------------------------------------------------------- replies to an announcement */

/* The last byte of a rendezvous has arrived. Also called by channels that detect this themselves
 * (notifies_receiver). */
void msg_put_arrived(msg_request *r)
{
    msg_release_buffer(r);
    if (r->world->policy.convert) {
        msg_convert(r->buf, r->buf, r->status.len);
        vk_charge(VK_CHARGE_COPY, r->status.len); /* no copy, but a pass over the data that takes as long */
    }
    msg_received(r);
}

/* Replies to an announced message. */
void msg_accept_announced(struct msg_peer *peer, const struct msg_packet *p, msg_request *r, size_t here)
{
    int error = msg_peer_error(peer);
    if (error) {
        msg_complete(r, error);
        return;
    }
    /* The CTS carries the length wanted. The excess of a message longer than its receive is never transferred. */
    r->want = p->rest.len < r->len ? p->rest.len : r->len;
    if (r->want < p->rest.len)
        r->status.error = MSG_ERR_TRUNCATE;
    r->status.len = r->want;
    r->moved = here < r->want ? here : r->want;
    r->remote_id = p->rest.id;
    r->flags |= MSG_MOVING;
    r->how = MSG_BY_SEGMENTS;
    struct msg_packet cts = {
        .head.kind = MSG_PKT_CTS,
        .rest = {.len = r->want, .id = p->rest.id, .peer_id = r->id, .how = MSG_R3},
    };
    /* The transfer is chosen by trial: reading, if offered and if the buffer can be registered. Otherwise writing.
     * Otherwise segments, which need no registration. If no more bytes are wanted, the CTS only completes the send. */
    if (r->want && p->rest.how == MSG_RGET && peer->channel->get && peer->channel->hold(peer, r, r->want, 0) == 0) {
        r->address = p->rest.address;
        r->handle = p->rest.handle;
        r->how = MSG_BY_READS;
        MSG_COUNT(peer->world, rget, 1);
        begin_moving(r, 0);
        return;
    }
    int shares = r->sharing == MSG_MAY_SHARE && p->rest.how == MSG_RSHARE && may_share(peer, r->want);
    r->sharing = MSG_ALONE;
    if (r->want && p->rest.how != MSG_R3 && peer->channel->put && peer->channel->hold(peer, r, r->want, 1) == 0) {
        r->how = MSG_BY_WRITES;
        cts.rest.how = shares ? MSG_RSHARE : MSG_RPUT;
        r->sharing = shares ? MSG_MAY_SHARE : MSG_ALONE;
        cts.rest.address = r->address;
        cts.rest.handle = r->handle;
    }
    if (r->how == MSG_BY_SEGMENTS && r->moved == r->want)
        msg_put_arrived(r);
    msg_push_control(peer, &cts);
}

/* Returns a send of this rank that the peer has been notified of and that transfers nothing yet; NULL for any other
 * id. A duplicate CTS, or a CTS for a message never announced, therefore finds nothing: after the first CTS the
 * request is MOVING, or gone. */
msg_request *msg_announced(struct msg_peer *peer, uint64_t id, int kind)
{
    msg_request *r = msg_request_find(peer->world, id);
    return r && r->kind == MSG_REQ_SEND && r->peer == peer->rank &&
                   (r->flags & (MSG_ANNOUNCED | MSG_MOVING)) == MSG_ANNOUNCED &&
                   (r->out.packet.head.kind & MSG_PKT_MASK) == kind
               ? r
               : NULL;
}

/* Returns the receive that the rank may fill by segments or by writes. NULL: none. */
static msg_request *receive_of(struct msg_peer *peer, uint64_t id)
{
    msg_request *r = msg_request_find(peer->world, id);
    return r && r->kind == MSG_REQ_RECV && r->peer == peer->rank &&
                   (r->how == MSG_BY_SEGMENTS || r->how == MSG_BY_WRITES)
               ? r
               : NULL;
}

/* Bytes of a shared message that the receiver reads: half of it, in whole pages. */
static size_t part_to_read(size_t len)
{
    return len / 2 & ~(size_t)4095;
}

/* The receiver shares the copy. Offers the first part of the buffer for reading, and writes the other part. The buffer
 * is registered, and r has its address and handle. The request may have ended on return. */
static void share(msg_request *r, const struct msg_packet *cts)
{
    struct msg_peer *peer = &r->world->peers[r->peer];
    size_t part = part_to_read(r->want);
    uint64_t id = r->id;
    struct msg_packet offer = {
        .head.kind = MSG_PKT_SHARE,
        .rest = {.len = part, .id = id, .peer_id = r->remote_id, .address = r->address, .handle = r->handle},
    };
    r->address = cts->rest.address;
    r->handle = cts->rest.handle;
    if (part) {
        MSG_COUNT(r->world, shared, 1);
        r->sharing = MSG_SHARING;
        msg_push_control(peer, &offer);
        if (msg_request_find(peer->world, id) != r) /* the receiver is dead */
            return;
    } else
        MSG_COUNT(r->world, rput, 1);
    begin_moving(r, part);
}

/* SHARE: the sender waits until this rank has read a part. Only a receive that has requested this accepts it. */
void msg_part_offered(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_request *r = receive_of(peer, p->rest.peer_id);
    if (r == NULL || r->sharing != MSG_MAY_SHARE || p->rest.len == 0 || p->rest.len > r->want)
        return;
    r->sharing = MSG_SHARING;
    r->want = p->rest.len;
    r->address = p->rest.address;
    r->handle = p->rest.handle;
    begin_moving(r, 0);
}

/* The peer has moved its part of a shared message. */
static void part_moved(msg_request *r)
{
    r->sharing = MSG_SHARED;
    if (r->moved < r->want)
        return;
    if (r->kind == MSG_REQ_RECV) {
        msg_put_arrived(r);
        return;
    }
    msg_release_buffer(r);
    msg_complete(r, MSG_SUCCESS);
}

/* Handles a CTS: starts the transfer that it requests. */
void msg_clear_to_send(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_world *w = peer->world;
    msg_request *r = msg_announced(peer, p->rest.id, MSG_PKT_RTS);
    if (r == NULL)
        return;
    msg_release_buffer(r); /* it may have been offered for reading */
    r->flags |= MSG_MOVING;
    r->want = p->rest.len < r->len ? p->rest.len : r->len;
    if (r->want <= r->started) { /* none, or no more than the request carried */
        msg_complete(r, MSG_SUCCESS);
        return;
    }
    r->remote_id = p->rest.peer_id;
    if (p->rest.how == MSG_RSHARE && may_share(peer, r->want) && peer->channel->hold(peer, r, r->want, 2) == 0) {
        share(r, p);
        return;
    }
    if (p->rest.how != MSG_R3 && peer->channel->put && peer->channel->hold(peer, r, r->want, 0) == 0) {
        r->address = p->rest.address;
        r->handle = p->rest.handle;
        MSG_COUNT(w, rput, 1);
        begin_moving(r, 0);
        return;
    }
    MSG_COUNT(w, r3, 1);
    /* The request's msg_out is free since the RTS was accepted. It now becomes one DATA packet, which the channel
     * segments as needed. */
    size_t sent = r->started;
    r->out = (struct msg_out){.request = r, .data = (const char *)r->buf + sent, .len = r->want - sent, .offset = sent};
    r->out.packet.head.kind = MSG_PKT_DATA;
    r->out.packet.rest = (struct msg_rest){.peer_id = p->rest.peer_id, .len = r->want, .address = sent};
    msg_push(peer, &r->out);
}

/* Returns the receive that this segment belongs to. A sender that was offered a write may send segments instead, but
 * not once it shares the copy. */
msg_request *msg_segment_of(struct msg_peer *peer, const struct msg_packet *p, size_t len)
{
    msg_request *r = receive_of(peer, p->rest.peer_id);
    return r && r->sharing <= MSG_MAY_SHARE && p->rest.address <= r->want && len <= r->want - p->rest.address ? r
                                                                                                              : NULL;
}

void msg_segment_done(msg_request *r, size_t len)
{
    r->moved += len;
    /* greater if the sender repeats a segment, in violation of the protocol: the receive ends nevertheless */
    if (r->moved >= r->want)
        msg_put_arrived(r);
}

/* Returns the send whose first part the rank is reading. */
static msg_request *shared_send(struct msg_peer *peer, uint64_t id)
{
    msg_request *r = msg_request_find(peer->world, id);
    return r && r->kind == MSG_REQ_SEND && r->peer == peer->rank && r->sharing == MSG_SHARING ? r : NULL;
}

/* FIN: peer_id names a receive (RPUT: all data is written), id names a send (RGET: all data is read). The request
 * must be in a state in which this FIN is valid. */
void msg_finished(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_request *r = p->rest.peer_id ? receive_of(peer, p->rest.peer_id) : msg_announced(peer, p->rest.id, MSG_PKT_RTS);
    if (r == NULL && p->rest.peer_id == 0)
        r = shared_send(peer, p->rest.id);
    if (r == NULL)
        return;
    if (r->sharing == MSG_SHARING) {
        part_moved(r);
    } else if (r->kind == MSG_REQ_RECV) {
        if (r->how == MSG_BY_WRITES && r->sharing != MSG_SHARED && !peer->channel->notifies_receiver)
            msg_put_arrived(r);
    } else if (r->registered) { /* it was offered for reading */
        msg_release_buffer(r);
        msg_complete(r, MSG_SUCCESS);
    }
}
