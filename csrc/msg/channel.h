/*
 * channel.h - carriers of packets between two ranks.
 *
 * A channel is one table of operations and keeps its own state behind world->at and peer->at. It calls back:
 * - msg_arrived(), or msg_arriving() and msg_arrival_done(), for incoming packets;
 * - msg_moved() for completed RDMA;
 * - msg_noticed() for a write of the peer that used a receive;
 * - msg_peer_failed() when a rank can no longer be reached.
 *
 * All callbacks are made from within its progress, push or wake operation. Unless stated otherwise, operations are
 * called with the world's lock held, never block, and return 0 or a negative msg_error.
 */
#ifndef VIAKIT_MSG_CHANNEL_H
#define VIAKIT_MSG_CHANNEL_H

#include "msg/engine.h"

/* Result of a sleep, to be handled once the lock is held again. Opaque to the engine. */
struct msg_token {
    void *what;
    int n, kind;
};

struct msg_channel {
    const char *name;

    /* Connects this rank to all others, or (world->sparse) to its neighbours, and sets peer->at and peer->eager_limit
     * of each. Resets peer->met of ranks that are not connected. May block, within the options' deadline. May call
     * msg_allgather, the same number of times on all ranks. On failure it has called msg_fail and released everything.
     */
    int (*open)(msg_world *w, const msg_options *options);

    /* Releases everything. Accepted packets have been sent as far as the carrier guarantees delivery. */
    void (*close)(msg_world *w);

    /* Accepts as much of the packet as possible. Returns 1 if all of it is accepted: its data may be reused. Returns
     * 0 if none or only a part is (out->sent bytes): push again later. A negative result means that the rank has
     * failed, which msg_peer_failed has reported. Data of an EAGER, SYNC or RTS packet is never longer than
     * peer->eager_limit; a DATA packet may have any length. */
    int (*push)(struct msg_peer *peer, struct msg_out *out);

    /* The same for the most frequent packet: EAGER with few bytes, and no packet queued before it. Returns 1 if
     * accepted, 0 if not now. May be NULL. */
    int (*push_short)(struct msg_peer *peer, struct msg_head head, const void *data, size_t len);

    /* Handles arrived packets and completions, and returns the number of events. After each packet it reads
     * `enough`, which may be NULL. Once that is non-zero, progress returns, so that messages not yet needed stay in
     * the carrier's buffers. */
    int (*progress)(msg_world *w, const uint8_t *enough);

    /* Sleeps in the kernel until a packet may have arrived, at most ns. Called WITHOUT the lock. wake then handles
     * the token, with the lock held. */
    void (*sleep)(msg_world *w, uint64_t ns, struct msg_token *token);
    void (*wake)(msg_world *w, struct msg_token *token);

    /* Services the carrier also while this rank waits outside the engine for all others to connect. Called from a
     * separate thread. NULL: the carrier needs no service. */
    void (*attend)(msg_world *w);

    /* Begins to connect to a rank that has not been met, unless that is under way. msg_met() follows, or
     * msg_peer_failed(). Returns 0, or -1: the rank is gone. push, put and get do the same. NULL: all ranks are
     * connected at the start. */
    int (*meet)(struct msg_peer *peer);
    /* Gives up to connect to a rank that is gone. */
    void (*part)(struct msg_peer *peer);
    /* Returns 1 if the connection to the rank has begun, and is not complete. */
    int (*is_meeting)(const struct msg_peer *peer);

    /* Route to the rank, as text. */
    const char *(*route)(struct msg_peer *peer);

    /* ---- RDMA. All NULL on channels without it: rendezvous then uses DATA packets. ---- */

    /* Registers the request's buffer (r->buf, len bytes). remote = 0: for RDMA by this rank; 1: to be written by the
     * peer; 2: to be read by the peer. Sets r->registered, and r->address and r->handle, which the peer needs. Fails
     * if the memory cannot be registered. */
    int (*hold)(struct msg_peer *peer, msg_request *r, size_t len, int remote);
    void (*drop)(struct msg_peer *peer, msg_request *r);

    /* Starts a write or read of [offset, offset + len) between the held buffer and the peer's (address, handle).
     * msg_moved() follows, possibly before this returns. Returns 1 if started, 0 if not possible now, negative if
     * not possible at all. Packets pushed later arrive after the written data. */
    int (*put)(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle);
    int (*get)(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle);
    /* 1: the receiver's channel detects that written data is complete and calls msg_put_arrived(), so no FIN is
     * sent. */
    int notifies_receiver;
    /* Writes up to MSG_PUT_SHORT bytes, accepted at once: 1 or 0. `notify`: the write consumes a receive of the target,
     * whose channel then counts it (peer->n_notices). NULL: put serves rendezvous only. */
    int (*put_short)(struct msg_peer *peer, const void *data, size_t len, uint64_t address, uint32_t handle,
                     int notify);
    int (*can_get)(struct msg_peer *peer);
    /* Returns 1 if reads and writes are copies by the processor of the rank that starts them, so that both ranks of a
     * message copy faster than one. NULL: no. */
    int (*can_share)(struct msg_peer *peer);
    /* Packets and RDMA to the rank that are not complete. At 0 every write is in its memory. NULL if put_short is. */
    unsigned (*outstanding)(const struct msg_peer *peer);

    /* A NIC (VIP_NIC_HANDLE) that allocates memory which other ranks of this host can map. NULL: no NIC is open. */
    void *(*nic)(msg_world *w);
    /* Adds the counters of all NICs: values[VIAKIT_N_COUNTERS]. NULL: the channel does not report them. */
    void (*nic_counters)(msg_world *w, uint64_t *values);
    /* Drops cached registrations that overlap the range. */
    void (*forget)(msg_world *w, const void *buf, size_t len);
    int (*expose)(msg_world *w, void *buf, size_t len, msg_exposed *exposed);
    int (*hide)(msg_world *w, const msg_exposed *exposed);
    /* Which of msg_exposed's handles a peer uses: 0 or 1. */
    int (*handle_index)(struct msg_peer *peer);
};

/* Only one thread at a time makes progress. Release: the written data is visible to a thread that reads the count. */
static inline void msg_noticed(struct msg_peer *peer)
{
    vk_store_release(&peer->n_notices, peer->n_notices + 1);
}

/* Pushes a packet, for channels whose packets have a longest length. DATA goes in segments of at most `longest` bytes,
 * in multiples of 8. `address` is the offset of the segment in the message.
 * push_one sends n bytes of the data from out->sent on, which keeps the position when there are no credits. */
static inline int msg_push_segments(struct msg_peer *peer, struct msg_out *out, size_t longest,
                                    int (*push_one)(struct msg_peer *peer, struct msg_out *out, size_t n))
{
    if ((out->packet.head.kind & MSG_PKT_MASK) != MSG_PKT_DATA)
        return push_one(peer, out, out->len);
    size_t most = (longest - sizeof out->packet) & ~(size_t)7;
    while (out->sent < out->len) {
        size_t n = out->len - out->sent < most ? out->len - out->sent : most;
        out->packet.rest.address = out->offset + out->sent;
        int taken = push_one(peer, out, n);
        if (taken != 1)
            return taken;
        out->sent += n;
    }
    return 1;
}

/* The list of channels. To add one, add its name here and export its table as msg_channel_NAME. The policy of the same
 * name has its defaults. */
#define MSG_CHANNELS(X) X(via) X(bip) X(tcp)

#define MSG_X(name) extern const struct msg_channel msg_channel_##name;
MSG_CHANNELS(MSG_X)
#undef MSG_X

/* Returns the channel of that name, or NULL. */
static inline const struct msg_channel *msg_channel_find(const char *name)
{
#define MSG_X(name) &msg_channel_##name,
    static const struct msg_channel *const channels[] = {MSG_CHANNELS(MSG_X)};
#undef MSG_X
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++)
        if (strcmp(channels[i]->name, name) == 0)
            return channels[i];
    return NULL;
}

#endif
