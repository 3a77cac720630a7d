/*
 * Ranks that leave or die, and what becomes of what was under way with them.
 *
 *   BYE arrived        the rank has closed its world: it will say no more, but takes part until all others have left
 *   the channel gone   nothing can be sent to it either; without a BYE before, it has failed
 *
 * Either way every request that can no longer come about ends, in error, and with it every wait: nobody waits for the
 * dead. A message that had arrived before stays, and can be received. Receives from anybody end only where a rank has
 * failed: nobody can know whether it was its message that they were waiting for (msg_failures_ack says that the
 * caller knows).
 *
 * All of this may happen inside any call that pushes a packet, for that is where a channel notices (protocol.c).
 */
#include "channel.h"

struct sweep {
    struct msg_peer *peer;
    int error;
};

/* Is this a send that the channel brings to its end by itself? A rank that leaves takes part until all others have
 * left. */
static int goes_on(const struct msg_peer *peer, const msg_request *r)
{
    return !peer->gone && peer->channel->tells_receiver && r->kind == MSG_REQ_SEND;
}

/* Ends what can no longer come about. */
static void sweep_request(msg_request *r, void *context)
{
    const struct sweep *s = context;
    if (r->complete || r->kind == MSG_REQ_CARRIER)
        return;
    int anybody = r->kind == MSG_REQ_RECV && r->peer == MSG_ANY_SOURCE;
    if (r->peer != s->peer->rank && !(anybody && s->error == MSG_ERR_PROC_FAILED))
        return;
    if (!s->peer->gone && (r->flags & MSG_MOVING) && r->registered && (r->started == r->want || goes_on(s->peer, r)))
        return; /* RDMA under way: it has what it wants, only our completion is outstanding */
    if (r->flags & MSG_ON_POSTED)
        msg_unpost(r->world, r);
    if (!anybody)
        msg_let_go(r);
    r->flags &= (uint8_t)~MSG_QUEUED; /* the queue was emptied */
    msg_complete(r, s->error);
}

/* A rank has left or died: its queue is emptied, what can no longer come about ends with `error`. Of a rank that has
 * only left, the BYE that is still to go to it stays. */
static void forget_peer(struct msg_peer *peer, int error)
{
    msg_world *w = peer->world;
    struct sweep s = {peer, error};
    struct msg_out *out = peer->queue;
    peer->queue = NULL;
    while (out) { /* carriers go now, requests by the sweep */
        struct msg_out *next = out->next;
        msg_request *r = out->request;
        if (error == MSG_ERR_LEFT && (out->packet.head.kind & MSG_PKT_MASK) == MSG_PKT_BYE) {
            msg_enqueue(peer, out); /* it still wants to hear ours */
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
    w->n_completed++; /* whoever waits looks again */
}

/* Called by channels, any number of times; the first counts. A rank that has said BYE and then hangs up has not
 * failed. */
void msg_peer_failed(struct msg_peer *peer, const char *why)
{
    msg_world *w = peer->world;
    int had_left = peer->state == MSG_PEER_LEFT;
    if (peer->gone)
        return;
    peer->gone = 1;
    if (!had_left)
        peer->state = MSG_PEER_FAILED;
    if (w->closing)
        return;
    if (had_left) { /* not a failure, but what was still under way is over */
        forget_peer(peer, MSG_ERR_LEFT);
        return;
    }
    w->n_failed++;
    w->unacknowledged++;
    msg_fail(w, MSG_ERR_PROC_FAILED, "rank %d has died or cannot be reached any more (%s): %s", peer->rank,
             peer->channel->route(peer), why);
    forget_peer(peer, MSG_ERR_PROC_FAILED);
}

void msg_said_bye(struct msg_peer *peer)
{
    msg_world *w = peer->world;
    if (peer->state != MSG_PEER_CONNECTED)
        return;
    peer->state = MSG_PEER_LEFT;
    w->n_left++;
    if (!w->closing)
        msg_fail(w, MSG_ERR_LEFT, "rank %d has closed its world", peer->rank);
    forget_peer(peer, MSG_ERR_LEFT);
}
