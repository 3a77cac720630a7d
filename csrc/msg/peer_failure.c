/*
 * Ranks that leave or die, and the fate of active operations with them.
 *
 *   BYE arrived        the rank has closed its world: it sends no more, but stays until all others have left
 *   channel gone       nothing can be sent to it either; without an earlier BYE, it has failed
 *
 * In both cases every request that can no longer complete ends in error, and with it every wait. A message that had
 * arrived earlier stays, and can be received. Receives from MSG_ANY_SOURCE end only if a rank has failed, because the
 * missing message might have been from that rank. msg_failures_ack acknowledges the failure.
 *
 * All of this may happen inside any call that pushes a packet, because the channel detects failures there (protocol.c).
 */
#include "msg/channel.h"

/* The argument of sweep_request(): the rank, and the error for requests that need it. */
struct sweep {
    struct msg_peer *peer;
    int error;
};

/* Returns 1 for a send that the channel will complete by itself. A rank that leaves takes part until all others have
 * left. */
static int goes_on(const struct msg_peer *peer, const msg_request *r)
{
    return !peer->gone && peer->channel->notifies_receiver && r->kind == MSG_REQ_SEND;
}

/* Ends a request that can no longer complete. Carriers have no owner, and forget_peer() has freed those of this rank.
 */
static void sweep_request(msg_request *r, void *context)
{
    const struct sweep *s = context;
    if (r->complete || r->kind == MSG_REQ_CARRIER)
        return;
    int from_any = r->kind == MSG_REQ_RECV && r->peer == MSG_ANY_SOURCE;
    if (r->peer != s->peer->rank && !(from_any && s->error == MSG_ERR_PROC_FAILED))
        return;
    if (!s->peer->gone && (r->flags & MSG_MOVING) && r->registered && r->sharing != MSG_SHARING &&
        (r->started == r->want || goes_on(s->peer, r)))
        return; /* RDMA in progress: it needs nothing more from the rank, only its completion here is outstanding. */
    if (r->flags & MSG_ON_POSTED)
        msg_unpost(r->world, r);
    if (!from_any)
        msg_release_buffer(r);
    r->flags &= (uint8_t)~MSG_QUEUED; /* the queue was emptied */
    msg_complete(r, s->error);
}

/* Empties the queue of a rank that has left or died, and ends all requests that can no longer complete with `error`.
 * If the rank has only left, a queued BYE to it stays. */
static void forget_peer(struct msg_peer *peer, int error)
{
    msg_world *w = peer->world;
    struct sweep s = {peer, error};
    struct msg_out *out = peer->queue;
    peer->queue = NULL;
    while (out) { /* Carriers are freed now, requests by the sweep. */
        struct msg_out *next = out->next;
        msg_request *r = out->request;
        int kind = out->packet.head.kind & MSG_PKT_MASK;
        if (error == MSG_ERR_LEFT && (kind == MSG_PKT_BYE || kind == MSG_PKT_NEWS)) {
            msg_enqueue(peer, out); /* a rank that left still waits for these */
            out = next;
            continue;
        }
        r->flags &= (uint8_t)~MSG_QUEUED;
        if (r->kind == MSG_REQ_CARRIER || (r->complete && (r->flags & MSG_DETACHED)))
            msg_request_put(w, r);
        out = next;
    }
    for (msg_request **p = &w->moving; *p;)
        if ((*p)->peer == peer->rank && !goes_on(peer, *p))
            *p = (*p)->moving;
        else
            p = &(*p)->moving;
    msg_each_request(w, sweep_request, &s);
    msg_active_gone(peer, error);
    w->n_completed++; /* makes all waits scan again */
}

/* Called by channels, any number of times; the first call counts. A rank that closes its connection after its BYE
 * has not failed. */
void msg_peer_failed(struct msg_peer *peer, const char *why)
{
    msg_world *w = peer->world;
    if (peer->gone)
        return;
    peer->gone = 1;
    if (peer->left)
        msg_bye_arrived(peer);
    int had_left = peer->state == MSG_PEER_LEFT;
    if (!had_left)
        peer->state = MSG_PEER_FAILED;
    if (!peer->met)
        peer->channel->part(peer);
    else if (!had_left)
        msg_spread_failure(peer);
    else if (!w->closing)
        msg_spread_gone(peer); /* no rank goes before all have begun to close */
    if (w->closing)
        return;
    if (had_left) { /* Not a failure, but operations still active are over. */
        forget_peer(peer, MSG_ERR_LEFT);
        return;
    }
    w->n_failed++;
    w->unacknowledged++;
    msg_fail(w, MSG_ERR_PROC_FAILED, "rank %d has died or cannot be reached any more (%s): %s", peer->rank,
             peer->channel->route(peer), why);
    forget_peer(peer, MSG_ERR_PROC_FAILED);
}

void msg_bye_arrived(struct msg_peer *peer)
{
    msg_world *w = peer->world;
    if (peer->state != MSG_PEER_CONNECTED)
        return;
    peer->state = MSG_PEER_LEFT;
    msg_spread_departure(peer);
    w->n_left++;
    if (!w->closing)
        msg_fail(w, MSG_ERR_LEFT, "rank %d has closed its world", peer->rank);
    forget_peer(peer, MSG_ERR_LEFT);
}
