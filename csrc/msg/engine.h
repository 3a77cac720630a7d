/*
 * engine.h - what the files of the message engine share.
 *
 * Reading order: msg.h (contract), this file, match.c (matching), protocol.c and arrival.c (outgoing and arriving
 * packets). Then rendezvous.c (the threshold, and long messages) and peer_failure.c (ranks that leave or fail).
 * Operations begin in send.c, recv.c, onesided.c (RDMA) and active.c (active messages), and end in wait.c. channel.h
 * has the interface of the carriers of packets: via.c, bip.c and tcp.c.
 *
 *   eager                     rendezvous, RPUT              RGET                          R3
 *   EAGER+data ------->       RTS -------------->           RTS+address -------->         RTS -------------->
 *                                <--------- CTS+address         (reads)                      <---------- CTS
 *                             (writes)  ========>               <---------- FIN           DATA+data ------->  ...
 *                             FIN -------------->
 *   synchronous: <-- ACK                                                               RTS may carry the first bytes
 *
 *   shared: RTS -->  <-- CTS+address, SHARE+address -->, then the sender writes one part while the receiver reads the
 *           other, and each reports its part with a FIN
 *
 * Invariants. Packets of one pair of ranks arrive in order. Matching is decided when the first packet of a message
 * (EAGER, SYNC, RTS) arrives, so messages cannot overtake one another. The engine hands a packet to a channel only
 * after the channel has accepted all earlier packets for that rank (struct msg_peer: queue). All of this is accessed
 * only with the world's lock held, if it has one.
 *
 * Unexpected packets. Channels deliver each packet once. The engine checks its fields against its own state:
 *
 *   EAGER, SYNC, RTS   no receive is posted                          kept (match.c), counted; too much: XOFF
 *   CTS, ACK, FIN,     request has ended, or is of another kind      dropped: the id finds nothing
 *   SHARE
 *   DATA               beyond the requested range                    dropped
 *   ACTIVE             the world has no handler                      dropped
 *   NEWS               of this rank, or of one that is connected     dropped
 *   BYE                requests with that rank are active            they end with MSG_ERR_LEFT (peer_failure.c)
 *   any                shorter than its header requires              the rank counts as failed (channels)
 */
#ifndef VIAKIT_MSG_ENGINE_H
#define VIAKIT_MSG_ENGINE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/virtual.h"
#include "msg/msg.h"
#include "msg/packet.h"
#include "msg/policy.h"

/* ---------------------------------------------------------------- packets (packet.h) */

/* An outgoing packet: part of its request, or of a carrier request made for it. It stays at its address until the
 * channel has accepted all of it. */
struct msg_out {
    struct msg_out *next;
    struct msg_packet packet;
    /* Follows the packet. For a DATA packet: all remaining data, which the channel may segment. */
    const char *data;
    size_t len, sent;     /* Bytes of data. Bytes already accepted. */
    size_t offset;        /* DATA: of `data` in the message */
    msg_request *request; /* Notified by msg_out_taken. */
};

/* ---------------------------------------------------------------- queues for matching (match.c) */

/* Position in a list, embedded in the listed object. */
struct msg_link {
    struct msg_link *prev, *next;
};

/* All entries with one (context, source, tag), in order. A receive names this triple; a message carries it. */
struct msg_lane {
    struct msg_link list;  /* sentinel */
    struct msg_lane *next; /* in its bucket, or in the free list */
    int32_t context, source, tag;
};

/* The table of lanes of one queue: posted receives, or unexpected messages. */
struct msg_lanes {
    struct msg_lane **buckets;
    uint32_t mask, n_lanes;
    struct msg_lane *free, *last; /* last: result of the previous look-up */
};

/* ---------------------------------------------------------------- requests (request.c) */

/* Purpose of a request. A CARRIER belongs to no operation: it holds a control packet until the channel can accept
 * it. */
enum { MSG_REQ_FREE = 0, MSG_REQ_SEND, MSG_REQ_RECV, MSG_REQ_PUT, MSG_REQ_GET, MSG_REQ_CARRIER };

enum {
    MSG_ON_POSTED = 1,  /* in a posted lane */
    MSG_DETACHED = 2,   /* no call waits for it: freed on completion */
    MSG_BSEND = 4,      /* buf is a part of the attached buffer */
    MSG_OWN_COPY = 8,   /* buf is malloc'ed */
    MSG_QUEUED = 16,    /* `out` is in the peer's queue */
    MSG_ANNOUNCED = 32, /* the peer has been notified of it */
    MSG_MOVING = 64     /* data is being transferred: cannot be withdrawn */
};

/* How the data of a receive arrives. Packets that do not fit this are dropped. */
enum msg_filled_by { MSG_BY_STREAM = 0, MSG_BY_SEGMENTS, MSG_BY_WRITES, MSG_BY_READS };

/* Whether the peer moves a part of the message, too (rendezvous.c). */
enum msg_sharing {
    MSG_ALONE = 0,
    MSG_MAY_SHARE, /* a receive: a call waits for it, and does not return before it is complete */
    MSG_SHARING,   /* the peer has not reported its part */
    MSG_SHARED     /* the peer's part has been moved */
};

/*
 * One active operation. Waiting calls poll `complete`. Its life:
 *
 *   new --> (posted, queued, announced, moving) --> complete --> reaped by the caller's wait, test ... and free again
 *                                                     '--------> free at once if MSG_DETACHED
 *
 * The fields from `want` to `handle` serve rendezvous and one-sided writes. All fields are written with the world's
 * lock held. `complete` is stored last and with release, because msg_request_peek reads it without the lock.
 */
struct msg_request {
    struct msg_link link; /* in a posted lane; `next` also links free requests */
    struct msg_out out;
    uint64_t id, sequence; /* sequence: order of posting */
    msg_world *world;
    void *buf;
    size_t len;     /* length of buf */
    size_t want;    /* rendezvous: bytes to transfer, */
    size_t started; /* bytes handed to the channel, */
    size_t moved;   /* bytes transferred */
    uint64_t remote_id, address;
    void *registered;    /* the channel's registration of buf */
    msg_request *moving; /* next request with data still to be handed over (world->moving) */
    uint32_t handle;
    int32_t context, peer, tag;
    uint8_t kind, flags, complete, how; /* how: for a receive that is MOVING, enum msg_filled_by */
    uint8_t sharing;                    /* enum msg_sharing */
    msg_status status;
};
/* Requests are allocated in blocks and never move, so an index identifies one (msg_request_find). */
#define MSG_SLAB_BYTES 65536
#define MSG_REQUEST_STRIDE 320
#define MSG_SLAB_REQUESTS (MSG_SLAB_BYTES / MSG_REQUEST_STRIDE)
_Static_assert(sizeof(struct msg_request) <= MSG_REQUEST_STRIDE, "a request fits its place");

/* ---------------------------------------------------------------- unexpected messages */

#define MSG_INLINE 64 /* data of up to this length is stored in the envelope */

enum { MSG_VIEW_EXACT = 0, MSG_VIEW_ANY_SOURCE = 1, MSG_VIEW_ANY_TAG = 2, MSG_VIEW_ANY = 3, MSG_VIEWS = 4 };

/* A message is in four lanes at once, because a receive can name it in four ways. */
struct msg_message {
    struct msg_link views[MSG_VIEWS];
    msg_world *world;
    struct msg_packet packet; /* its first packet */
    int32_t source;
    uint8_t arriving;  /* 1: data is still arriving (tcp); 2: its sender died, so the data is incomplete */
    uint8_t taken;     /* removed from the queue, by msg_mprobe or by a receive */
    size_t len;        /* bytes of the message, also if it is only announced */
    size_t here;       /* bytes in `data`; less than len: the others follow on request */
    char *data;        /* `small`, or malloc'ed; NULL: announced only */
    msg_request *to;   /* receive that gets the data once all of it has arrived */
    msg_request *from; /* message to oneself: the send request that still holds the data, or waits for the match */
    struct msg_message *next;
    char small[MSG_INLINE];
};

/* Destination of data that a channel receives piece by piece. */
struct msg_in {
    char *to;    /* NULL: the data is read and discarded */
    size_t room; /* bytes beyond this are discarded */
    size_t len;  /* bytes that will arrive */
    msg_request *request;
    msg_message *message;
    struct msg_packet packet;
};

/* ---------------------------------------------------------------- ranks */

struct msg_channel;

/*
 * Another rank, or this rank itself, as this world sees it.
 *
 *     CONNECTED --BYE--> LEFT            sends no more packets, may still receive
 *         '---channel gone--> FAILED     gone = 1 as well: nothing can be sent to it
 */
struct msg_peer {
    msg_world *world;
    uint64_t host; /* equal for all ranks of one host */
    int rank;
    int state;         /* msg_peer_state */
    uint8_t gone;      /* nothing can be sent to it: it has failed, or has left and closed the connection */
    uint8_t off;       /* it has sent XOFF: send no eager data */
    uint8_t xoff_sent; /* XOFF was sent to it */
    uint8_t on_busy_list;
    uint8_t met;    /* connected. 0 only in a sparse world (news.c). This rank itself counts as met. */
    uint8_t doomed; /* news.c: news that apply unless it is met soon */
    uint8_t left;   /* news.c: has begun to close; which news of that this rank has spread */
    size_t eager_limit;
    size_t unpolled;    /* bytes sent since the last poll for its packets (send.c) */
    int64_t rendezvous; /* msg_rendezvous proposed for messages above the limit */
    size_t n_short;     /* messages shorter than this may use push_short */
    uint32_t n_notices; /* writes of this peer that used a receive (msg_put_notified); read by any thread */
    const struct msg_channel *channel; /* NULL: this rank itself */
    void *at;                          /* private to the channel */
    struct msg_out *queue, **queue_end;
    struct msg_peer *busy; /* next peer with a queue */
};

struct msg_buffer; /* bsend.c */

/* One rank's view of its job. If `threads` is set, `mutex` guards all fields. Otherwise the caller ensures that only
 * one thread calls at a time. */
struct msg_world {
    int rank, n_ranks;
    msg_policy policy;
    const struct msg_channel *channel;
    void *at; /* private to the channel */
    struct msg_peer *peers;
    struct msg_peer *busy; /* peers with queued packets */
    msg_request *moving;   /* requests with RDMA still to be started */

    struct msg_lanes posted, unexpected;
    uint64_t sequence;
    uint32_t n_posted[MSG_VIEWS];
    size_t n_unexpected, unexpected_bytes;
    msg_message *free_messages;
    int throttling;

    char **slabs;
    uint32_t n_slabs;
    msg_request *free_requests;
    void *blocks; /* blocks of envelopes, freed with the world */

    struct msg_buffer *attached;
    /* numbers of ranks; unacknowledged: failures that receives from MSG_ANY_SOURCE must report */
    int n_failed, n_left, unacknowledged;
    int n_local, crowded; /* ranks on this host; 1 if this machine has fewer cores than ranks */
    int cores;            /* cores that ranks on this machine may use */
    int closing;
    int sparse;              /* ranks connect when they meet (news.c) */
    int spreading;           /* news.c: a rank has failed, or has left early */
    int round;               /* news.c: rounds of the departure that this rank has begun */
    uint32_t rounds_arrived; /* bit k: round k */
    uint64_t doomed_at;      /* when `doomed` of ranks applies; 0: none has it */
    int doomed_polls;
    unsigned fork_epoch;
    int threads;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* signalled on completion, for calls that leave progress to the thread */
    pthread_t thread;
    int has_thread, stop_thread, n_sleeping;
    /* For progress by signals: calls of the program so far (with threads only), calls that wait now, and whether the
     * thread sleeps in the channel. All with the mutex held. */
    uint64_t n_calls;
    int n_waiting, thread_listens;
    uint64_t n_completed;  /* free-running */
    const uint8_t *enough; /* the current wait ends when this is non-zero; NULL: the channel cannot check it */
    int may_withdraw;      /* the send being started may be interrupted */
    int (*interrupt)(void *);
    void *interrupt_context;
    const struct msg_active *active; /* handler of active messages; NULL: none */
    msg_scope *scopes;               /* revoke.c: open ones */
    int n_revoked;                   /* of these */
    struct msg_revocation *revocations;
    size_t n_revocations;
    uint64_t counters[MSG_N_COUNTERS];
    char job[33]; /* job name: equal on all ranks, unique to the job, not secret */
    uint8_t secret[MSG_SECRET_LEN];
    char error[MSG_ERROR_LEN];
};

static inline int msg_same_process(const msg_world *w)
{
    return vk_likely(w->fork_epoch == msg_fork_epoch);
}

#define MSG_COUNT(w, name, n) ((w)->counters[MSG_COUNTER_##name] += (uint64_t)(n))

/* Returns whether this process's ranks run on a described machine (docs/machines.md): the environment variable
 * VIAKIT_MACHINE is set. Each rank is then a host of its own, on the link sim. */
static inline int msg_on_machine(void)
{
    const char *path = getenv("VIAKIT_MACHINE");
    return path && *path;
}

/* Counts a copy of n bytes of payload, which costs time on a simulated machine. */
static inline void msg_count_copy(msg_world *w, size_t n)
{
    if (n == 0)
        return;
    MSG_COUNT(w, copies, 1);
    MSG_COUNT(w, bytes_copied, n);
    vk_charge(VK_CHARGE_COPY, n);
}

static inline void msg_lock(msg_world *w)
{
    if (w->threads)
        pthread_mutex_lock(&w->mutex);
}
static inline void msg_unlock(msg_world *w)
{
    if (w->threads)
        pthread_mutex_unlock(&w->mutex);
}

/* Every call of msg.h that touches a world begins with this. In the child of a fork it returns 0 and takes no lock.
 * There the lock may be held by a thread that the child does not have, and any list may be in the middle of a
 * change. */
static inline int msg_enter(msg_world *w)
{
    if (vk_unlikely(!msg_same_process(w)))
        return 0;
    msg_lock(w);
    if (w->threads)
        w->n_calls++;
    return 1;
}

/* The same for a caller that must not wait for the lock. Returns 0 also if another thread has it. */
static inline int msg_try_enter(msg_world *w)
{
    if (vk_unlikely(!msg_same_process(w)) || (w->threads && pthread_mutex_trylock(&w->mutex) != 0))
        return 0;
    if (w->threads)
        w->n_calls++;
    return 1;
}

/* Sets the world's error text and returns the code. */
int msg_fail(msg_world *w, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Uses the code's own text, if no better text is available. */
int msg_fail_plain(msg_world *w, int code);

/* ---------------------------------------------------------------- match.c */

int msg_lanes_init(struct msg_lanes *lanes);
void msg_lanes_fini(struct msg_lanes *lanes);

/* Removes and returns the posted receive that matches this message. NULL: none is posted. */
msg_request *msg_match_posted(msg_world *w, int context, int source, int tag);
/* Adds the receive at the end of its lane: MSG_SUCCESS or MSG_ERR_NO_MEMORY. The caller has searched the unexpected
 * messages first. msg_unpost removes it from any place in its lane. */
int msg_post(msg_world *w, msg_request *r);
void msg_unpost(msg_world *w, msg_request *r);
/* Returns the first message that such a receive matches, and leaves it in the queue. NULL: none. */
msg_message *msg_find_unexpected(msg_world *w, int context, int source, int tag);
/* MSG_SUCCESS, or MSG_ERR_NO_MEMORY: the message is in no lane then. */
int msg_add_unexpected(msg_world *w, msg_message *m);
/* Returns the first message of a context whose tag has the bits of `tag` where `mask` has ones. NULL: none. Scans
 * all messages of the context. */
msg_message *msg_search_unexpected(msg_world *w, int context, int mask, int tag);
/* The same, except that the tag must differ from `tag`. */
msg_message *msg_search_other(msg_world *w, int context, int mask, int tag);
/* Removes the message from the queue. The caller owns it then, and returns it with msg_message_put. */
void msg_take_unexpected(msg_world *w, msg_message *m);

/* ---------------------------------------------------------------- request.c */

int msg_pool_init(msg_world *w);
void msg_pool_fini(msg_world *w);
/* Returns a request with the common fields set. NULL: no memory. */
msg_request *msg_request_new(msg_world *w, int kind, int context, int peer, int tag, void *buf, size_t len);
/* Frees the request, and its own copy of the data if it has one. From now on its id finds nothing. */
void msg_request_put(msg_world *w, msg_request *r);
/* Finds a request by its id. NULL if it has ended. */
msg_request *msg_request_find(msg_world *w, uint64_t id);
/* Completes the operation. Frees the request if it is detached. */
void msg_complete(msg_request *r, int error);
/* Returns an envelope with space for len bytes; NULL: no memory. The bytes count towards the bound of XOFF if they are
 * more than MSG_INLINE. msg_message_put frees both, and may send XON. */
msg_message *msg_message_new(msg_world *w, size_t len);
void msg_message_put(msg_world *w, msg_message *m);
/* Calls f for every request in use. */
void msg_each_request(msg_world *w, void (*f)(msg_request *r, void *context), void *context);

/* ---------------------------------------------------------------- protocol.c, arrival.c */

/* Binds the receive to this message. */
static inline void msg_bind(msg_request *r, int source, const struct msg_packet *p)
{
    r->peer = r->status.source = source;
    r->tag = r->status.tag = p->head.tag;
}

/* Completes a receive. An earlier error (truncation) stays in its status. */
static inline void msg_received(msg_request *r)
{
    vk_charge(VK_CHARGE_MESSAGE, 1);
    MSG_COUNT(r->world, received, 1);
    MSG_COUNT(r->world, bytes_received, r->status.len);
    msg_complete(r, MSG_SUCCESS);
}

/* Queues the packet behind those that wait for this rank. */
void msg_enqueue(struct msg_peer *peer, struct msg_out *out);
/* Hands the packet to the channel, or queues it behind the others for that rank. */
void msg_push(struct msg_peer *peer, struct msg_out *out);
void msg_push_queue(struct msg_peer *peer);
/* Sends a packet that belongs to no request, or outlives it. */
void msg_push_control(struct msg_peer *peer, const struct msg_packet *packet);
/* Sends a packet that only identifies a request: `id` of the sender's, `peer_id` of the receiver's. */
void msg_push_ids(struct msg_peer *peer, int kind, uint64_t id, uint64_t peer_id);
/* Sends the first packet of a message: the message itself, or its announcement. The request may have ended on
 * return. */
void msg_begin_send(msg_request *r, struct msg_peer *peer, msg_mode mode);
/* Returns 1 if a write to this rank has not been handed to the channel completely. */
int msg_is_writing(const msg_world *w, int target);
/* Makes all later packets to this rank wait for such writes. Returns 0, or an error: no memory. */
int msg_fence(struct msg_peer *peer);
/* Delivers an unexpected message to its receive, or accepts its announcement. */
void msg_deliver_unexpected(msg_world *w, msg_message *m, msg_request *r);
/* Starts more of the RDMA that waits to be started. */
void msg_move(msg_world *w);
/* Ends the channel's registration of the request's buffer, if there is one. */
void msg_release_buffer(msg_request *r);
/* Copies a whole message into the receive's buffer, as far as it has room, and sets its status. Does not complete
 * it. */
void msg_copy_in(msg_world *w, msg_request *r, const void *data, size_t len);
/* Swaps the bytes of each word of 4, and copies the rest (policy convert). `to` and `from` may be equal. */
void msg_convert(char *to, const char *from, size_t len);
/* Sends XON to every rank that was sent XOFF. */
void msg_relieve(msg_world *w);

/* Called by channels:
 *
 *     msg_out_taken                       all of this packet is accepted: its data may be overwritten
 *     msg_arrived                         a whole packet, with data that is valid during the call
 *     msg_arriving, then for the data:    the front of a packet on a stream; `in` states where its data belongs
 *       msg_arrival_done                  all of it is there
 *       msg_arrival_lost                  the stream ended within it
 */
void msg_out_taken(struct msg_peer *peer, struct msg_out *out);
void msg_arrived(struct msg_peer *peer, const struct msg_packet *packet, const void *data, size_t len);
void msg_arriving(struct msg_peer *peer, const struct msg_packet *packet, size_t len, struct msg_in *in);
void msg_arrival_done(struct msg_peer *peer, struct msg_in *in);
void msg_arrival_lost(struct msg_peer *peer, struct msg_in *in);
void msg_moved(msg_request *r, size_t len, int error); /* RDMA of len bytes for this request is complete */
void msg_put_arrived(msg_request *r);                  /* all RDMA writes into this receive's buffer have arrived */

/* ---------------------------------------------------------------- rendezvous.c */

/* The length in bytes up to which messages are sent eagerly, to ranks of this host or of others. most: the channel's
 * own bound. */
size_t msg_rendezvous_threshold(const msg_world *w, int local, size_t most);
void msg_announce(msg_request *r, struct msg_peer *peer);
/* The peer has announced the message of this receive: replies, and begins the transfer. The first `here` bytes came
 * with the announcement, and are in the receive's buffer as far as it has room. */
void msg_accept_announced(struct msg_peer *peer, const struct msg_packet *p, msg_request *r, size_t here);
/* A send of this rank that the peer has been notified of by a packet of this kind, and that transfers nothing yet. NULL
 * for any other id. */
msg_request *msg_announced(struct msg_peer *peer, uint64_t id, int kind);
/* Packets have arrived: CTS, FIN, SHARE. */
void msg_clear_to_send(struct msg_peer *peer, const struct msg_packet *p);
void msg_finished(struct msg_peer *peer, const struct msg_packet *p);
void msg_part_offered(struct msg_peer *peer, const struct msg_packet *p);
/* The receive that this segment belongs to, or NULL. msg_segment_done: its len bytes are in place. */
msg_request *msg_segment_of(struct msg_peer *peer, const struct msg_packet *p, size_t len);
void msg_segment_done(msg_request *r, size_t len);

/* ---------------------------------------------------------------- peer_failure.c */

/* Called by channels, any number of times: the rank cannot be reached any more, for the reason `why`. */
void msg_peer_failed(struct msg_peer *peer, const char *why);
/* The rank's BYE has arrived. */
void msg_bye_arrived(struct msg_peer *peer);

/* Returns MSG_SUCCESS if operations with this rank are possible, else the reason as an error. */
static inline int msg_peer_error(const struct msg_peer *p)
{
    return vk_likely(p->state == MSG_PEER_CONNECTED) ? MSG_SUCCESS
           : p->state == MSG_PEER_LEFT               ? MSG_ERR_LEFT
                                                     : MSG_ERR_PROC_FAILED;
}

/* news.c, for ranks that connect when they meet. Which ranks of a world are neighbours: see there. */
/* Sets world->sparse, on opening. */
void msg_choose_sparse(msg_world *w);
/* The rank is needed: begins to connect to it if it has not been met. */
void msg_need(struct msg_peer *peer);
/* Called by channels: the rank is connected. */
void msg_met(struct msg_peer *peer);
void msg_news_arrived(struct msg_peer *peer, const struct msg_packet *p);
/* A rank has failed, or has left (BYE): spreads the news where they are needed. */
void msg_spread_failure(struct msg_peer *peer);
void msg_spread_departure(struct msg_peer *peer);
/* A rank, possibly this one, has left before all others have begun to close. */
void msg_spread_gone(struct msg_peer *peer);
/* Called by channels now and then while connections are half made. Returns the number of ranks that are given up. */
int msg_check_doomed(msg_world *w);
/* Closing: have all ranks begun to close, or are they gone? Sends what is due, so it is called repeatedly. */
int msg_all_leaving(msg_world *w);

/* active.c, called by arrival.c and peer_failure.c */
void msg_active_arrived(struct msg_peer *peer, const struct msg_packet *packet, const void *data, size_t len);
void msg_active_gone(struct msg_peer *peer, int error);

/* revoke.c */
/* MSG_SUCCESS, or MSG_ERR_REVOKED. Callers test w->n_revoked first. */
int msg_revoked_error(const msg_world *w, int context);
void msg_discard_revoked(msg_world *w);
void msg_revocation_arrived(struct msg_peer *peer, const struct msg_packet *p);

/* ---------------------------------------------------------------- active.c, for rooms above
 *
 * An active message is a packet that a function of the receiver handles on arrival, outside matching. The function runs
 * in whichever thread makes progress, with the world's lock held. It must not wait, and may send active messages. */
struct msg_active {
    void *context;
    /* A packet from another rank has arrived. data (len bytes, aligned to 8) is valid during the call. */
    void (*arrived)(void *context, int source, const struct msg_packet *packet, const void *data, size_t len);
    /* The rank sends no more packets: it has left or failed, with this error. */
    void (*gone)(void *context, int rank, int error);
};
/* Sets the handler, which must stay valid until it is removed with NULL. Lock held. */
void msg_set_active(msg_world *w, const struct msg_active *active);
/* Sends an active message of at most msg_active_room bytes of data, which is copied if it must wait. The caller fills
 * in head.context, head.tag and `rest`. Lock held. Returns MSG_SUCCESS, or the reason why the rank cannot
 * be reached. */
int msg_active_send(struct msg_peer *peer, struct msg_packet *packet, const void *data, size_t len);
size_t msg_active_room(const struct msg_peer *peer);
/* Wakes waits that depend on what a handler has changed. */
void msg_changed(msg_world *w);

/* ---------------------------------------------------------------- onesided.c, for rooms above
 *
 * msg_get reads len bytes at `offset` of a range that the target has exposed. It completes when the data is in buf.
 * Lock held, unlike msg_put. MSG_ERR_NOT_SUPPORTED: the channel or its link has no RDMA read. */
int msg_get(msg_world *w, void *buf, size_t len, int target, const msg_exposed *exposed, uint64_t offset,
            msg_request **request);
int msg_can_get(const msg_world *w, int target);
/* msg_put with the lock held. */
int msg_put_locked(msg_world *w, const void *buf, size_t len, int target, const msg_exposed *exposed, uint64_t offset,
                   msg_request **request);
/* The same for 1 to MSG_PUT_SHORT bytes, without a request and without a wait. target and buf must be valid.
 * MSG_PENDING: nothing was written, msg_put_locked must do it or report the error. */
int msg_put_now_locked(msg_world *w, const void *buf, size_t len, int target, const msg_exposed *exposed,
                       uint64_t offset);
/* Returns 1 if every write to the rank is in its memory. */
int msg_all_written(const struct msg_peer *peer);

/* ---------------------------------------------------------------- send.c, recv.c, wait.c, bsend.c */

int msg_bad_rank(msg_world *w, int rank); /* sets the error text */
int msg_discard_locked(msg_world *w, int context, int mask, int tag);
int msg_step(msg_world *w);
/* Waits, with the lock held on entry and return, until done(argument) is true. */
int msg_wait_until(msg_world *w, int (*done)(void *), void *argument, int64_t timeout_ms);
int msg_is_complete(void *request); /* for msg_wait_until */
/* Polls some microseconds for the end of a request: never sleeps, reads no clock, and calls no callback. Returns 1 if
 * it has ended. */
int msg_poll_for(msg_world *w, const msg_request *r);
/* Fills status from the request and frees it. */
void msg_reap(msg_world *w, msg_request **request, msg_status *status);
void *msg_buffer_get(msg_world *w, size_t len);
void msg_buffer_put(msg_world *w, void *piece);
void msg_buffer_abandon(msg_world *w, void *piece);
int msg_thread_start(msg_world *w);
void msg_thread_stop(msg_world *w);

/* ---------------------------------------------------------------- address_space.c */

/* Part of a rank's card: address space that each rank needs to map it, and whether the rank's own address space is
 * limited. */
struct msg_address_space {
    uint64_t cost;
    uint32_t limited;
};
struct msg_address_space msg_address_space_of(uint64_t bytes_to_map);
/* Checks on every rank, with all cards present (`stride` bytes apart), whether the address space suffices for all
 * ranks of this host. May call msg_allgather, then on all ranks. Returns MSG_ERR_CHANNEL if the space of any rank is
 * too small. */
int msg_check_address_space(msg_world *w, const msg_options *o, const struct msg_address_space *first, size_t stride);

/* ---------------------------------------------------------------- hello.c, world.c */

/* Exchanges the properties of the ranks, and compares them. */
int msg_greet(msg_world *w, const msg_options *o);

int msg_allgather(msg_world *w, const msg_options *o, const void *own, size_t len, void *all);

/* takeover_us of a NIC that a channel opens. Ranks that share a core yield it after microseconds while they wait,
 * and after milliseconds while one computes. A NIC thread that polls more often only takes the core from working
 * ranks: a barrier of 8 hosts on 2 cores then took half as long again. */
static inline uint32_t msg_takeover_us(const msg_world *w)
{
    return w->crowded ? 5000 : 0;
}

#endif
