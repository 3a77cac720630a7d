/*
 * channel.h - what carries packets between two ranks. A channel is one table of operations and keeps its own state
 * behind world->at and peer->at. It calls back msg_arrived() or msg_arriving() and msg_arrival_done() for what comes
 * in, msg_moved() for RDMA that is done, and msg_peer_failed() when a rank can no longer be reached; all from within
 * its progress, push or wake operation.
 *
 * Unless said otherwise operations are called with the world's lock held, never block, and return 0 or a negative
 * msg_error.
 */
#ifndef VIAKIT_MSG_CHANNEL_H
#define VIAKIT_MSG_CHANNEL_H

#include "engine.h"

/* What a sleep brought, to be handled when the lock is held again. Opaque to the engine. */
struct msg_token {
    void *what;
    int n, kind;
};

struct msg_channel {
    const char *name;

    /* Connects this rank to all others (may block, within the options' deadline; may call msg_allgather, the same
     * number of times on all ranks) and sets peer->at and peer->eager_limit of each. On failure it has explained it
     * by msg_fail and given everything back. */
    int (*open)(msg_world *w, const msg_options *options);

    /* Gives everything back. Packets that were taken have been sent as far as the carrier can promise. */
    void (*close)(msg_world *w);

    /* Takes as much of the packet as it can. 1: all of it, its data may be reused; 0: not now, or not all (out->sent
     * tells), push again later; negative: the rank is gone (reported by msg_peer_failed). Data of an EAGER or SYNC
     * packet is never longer than peer->eager_limit, of a DATA packet as long as may be. */
    int (*push)(struct msg_peer *peer, struct msg_out *out);

    /* The same for the commonest packet: EAGER with few bytes and nothing queued before it. 1 taken, 0 not now. May
     * be NULL. */
    int (*push_short)(struct msg_peer *peer, struct msg_head head, const void *data, size_t len);

    /* Handles what has arrived and what was finished. Returns the number of events. `enough` is looked at after each
     * packet: once it is non-zero, progress returns, so that messages nobody waits for stay where they are. May be
     * NULL. */
    int (*progress)(msg_world *w, const uint8_t *enough);

    /* Sleeps in the kernel until something may have arrived, at most ns. Called WITHOUT the lock. wake then handles
     * the token, with it. */
    void (*sleep)(msg_world *w, uint64_t ns, struct msg_token *token);
    void (*wake)(msg_world *w, struct msg_token *token);

    /* Looks after the carrier while the rank waits outside the engine for all others to have connected, too; from a
     * thread of its own. NULL: the carrier does so itself. */
    void (*attend)(msg_world *w);

    /* How the rank is reached, in words. */
    const char *(*route)(struct msg_peer *peer);

    /* ---- RDMA; all NULL where there is none: then rendezvous goes by DATA packets ---- */

    /* Makes the request's buffer known (r->buf, len bytes): for our own RDMA, or with remote = 1 to be written, 2 to
     * be read by the peer. Sets r->registered, and r->address and r->handle, which are to be told to the peer. Fails
     * where memory cannot be registered. */
    int (*hold)(struct msg_peer *peer, msg_request *r, size_t len, int remote);
    void (*drop)(struct msg_peer *peer, msg_request *r);

    /* Starts moving [offset, offset + len) between the held buffer and the peer's (address, handle), write or read.
     * msg_moved() follows, possibly before this returns. 1 started, 0 not now, negative: not possible. Packets pushed
     * afterwards arrive after what was written. */
    int (*put)(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle);
    int (*get)(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle);
    /* The receiver's channel itself knows when what was put is there, and calls msg_put_arrived(): no FIN is sent. */
    int tells_receiver;
    /* Up to MSG_PUT_SHORT bytes, taken at once: 1 or 0. NULL: put is for rendezvous only. */
    int (*put_short)(struct msg_peer *peer, const void *data, size_t len, uint64_t address, uint32_t handle);
    int (*can_get)(struct msg_peer *peer);

    int (*alloc)(msg_world *w, size_t len, void **memory);
    int (*free)(msg_world *w, void *memory);
    void (*forget)(msg_world *w, const void *buf, size_t len);
    int (*expose)(msg_world *w, void *buf, size_t len, msg_exposed *exposed);
    int (*hide)(msg_world *w, const msg_exposed *exposed);
    /* Which of msg_exposed's handles a peer uses: 0 or 1. */
    int (*handle_index)(struct msg_peer *peer);
};

extern const struct msg_channel msg_channel_via, msg_channel_bip, msg_channel_tcp;

#endif
