/*
 * Active messages: packets that a function handles on arrival (engine.h: struct msg_active).
 *
 * They carry what RDMA cannot: an operation that the target must compute, a lock, a write over a channel without RDMA.
 * They use the channel's eager buffers and keep their order with all other packets and writes to the same rank. They
 * never wait in the unexpected queue, so XOFF does not apply to them. Replies that a channel cannot accept at once wait
 * in the rank's queue, with a copy of their data.
 */
#include <stdlib.h>

#include "msg/channel.h"

#define LEAST_ROOM 64
#define MOST_ROOM 32768 /* a longer message would only delay others, because it is copied twice */

void msg_set_active(msg_world *w, const struct msg_active *active)
{
    w->active = active;
}

/* Called by channels, lock held. The data is valid during the call only. */
void msg_active_arrived(struct msg_peer *peer, const struct msg_packet *packet, const void *data, size_t len)
{
    const struct msg_active *a = peer->world->active;
    MSG_COUNT(peer->world, active_received, 1);
    if (a)
        a->arrived(a->context, peer->rank, packet, data, len);
}

/* Notifies the handler that the rank has left or failed. */
void msg_active_gone(struct msg_peer *peer, int error)
{
    const struct msg_active *a = peer->world->active;
    if (a)
        a->gone(a->context, peer->rank, error);
}

/* An ACTIVE packet has a longer header than the EAGER packets that the limit is for. The channels reckon with that. */
size_t msg_active_room(const struct msg_peer *peer)
{
    size_t room = peer->eager_limit & ~(size_t)63;
    return room < LEAST_ROOM ? LEAST_ROOM : room > MOST_ROOM ? MOST_ROOM : room;
}

/* Sends at once, or queues the packet with a copy of the data if earlier packets wait or the channel is full. Never
 * waits, so a handler may call it. The data is the caller's again when it returns. Without memory for the copy the rank
 * counts as failed, because a missing packet would break the order for good. */
int msg_active_send(struct msg_peer *peer, struct msg_packet *packet, const void *data, size_t len)
{
    msg_world *w = peer->world;
    if (peer->state != MSG_PEER_CONNECTED)
        return msg_peer_error(peer);
    packet->head.kind = MSG_PKT_ACTIVE;
    MSG_COUNT(w, active_sent, 1);
    struct msg_out once = {.packet = *packet, .data = data, .len = len};
    if (peer->queue == NULL && peer->channel->push(peer, &once) != 0)
        return msg_peer_error(peer);
    char *copy = len ? malloc(len) : NULL;
    msg_request *r = len && copy == NULL ? NULL : msg_request_new(w, MSG_REQ_CARRIER, 0, peer->rank, 0, copy, len);
    if (r == NULL) {
        free(copy);
        msg_peer_failed(peer, "memory is exhausted, an active message could not be kept");
        return MSG_ERR_PROC_FAILED;
    }
    r->flags = MSG_DETACHED;
    if (len) {
        memcpy(copy, data, len);
        r->flags |= MSG_OWN_COPY;
    }
    r->out = once;
    r->out.data = copy;
    r->out.request = r;
    msg_enqueue(peer, &r->out);
    return MSG_SUCCESS;
}

void msg_changed(msg_world *w)
{
    w->n_completed++;
    if (w->n_sleeping)
        pthread_cond_broadcast(&w->changed);
}
