/*
 * engine.h - what the files of the message engine share. Reading order: msg.h (what it promises), this file, match.c
 * (who gets which message), protocol.c (packets: eager, rendezvous), leave.c (ranks that go), send.c and recv.c
 * (operations begin), wait.c (operations end), channel.h (what carries packets), via.c, tcp.c.
 *
 *   eager                     rendezvous, RPUT              RGET                          R3
 *   EAGER+data ------->       RTS -------------->           RTS+address -------->         RTS -------------->
 *                                <--------- CTS+address         (reads)                      <---------- CTS
 *                             (writes)  ========>               <---------- FIN           DATA+data ------->  ...
 *                             FIN -------------->
 *   synchronous: <-- ACK
 *
 * Invariants. Packets of one pair of ranks arrive in order, and matching is decided when the first packet of a
 * message (EAGER, SYNC, RTS) arrives, so messages cannot overtake one another. A packet is only handed to a channel
 * when all earlier ones for that rank have been taken (struct msg_peer: queue). Everything here is touched only with
 * the world's lock held, if it has one.
 *
 * What comes when it is not expected. Channels deliver each packet once; what it says is held against what is known:
 *
 *   EAGER, SYNC, RTS   no receive is posted                          kept (match.c), counted; too much: XOFF
 *   CTS, ACK, FIN      of a request that has ended, is another kind  dropped: the id finds nothing
 *   DATA               beyond what was asked for                     dropped
 *   BYE                somebody waits for that rank                  those end with MSG_ERR_LEFT (leave.c)
 *   anything           too short for what it says it is              the rank counts as failed (channels)
 */
#ifndef VIAKIT_MSG_ENGINE_H
#define VIAKIT_MSG_ENGINE_H

#include <pthread.h>
#include <string.h>

#include "../base/atomic.h"
#include "../base/clock.h"
#include "../base/copy.h"
#include "msg.h"
#include "policy.h"

/* ---------------------------------------------------------------- packets */

/* In the byte order of the machine: ranks of different order refuse one another when they open (world.c). */
/* The first 8 bytes of every packet; an EAGER packet has nothing else before its data, so that 16 bytes of data and
 * this share the one cache line in which a message of 24 bytes crosses on shm. */
struct msg_head {
    uint8_t kind;    /* MSG_PKT_*, and MSG_FLAG_* */
    uint8_t credits; /* buffers that the sender of this has made ready again for its receiver (channel via) */
    uint16_t context;
    int32_t tag;
};

/* What all packets but EAGER have as well. Which fields mean something depends on the kind. */
struct msg_rest {
    uint64_t len;     /* RTS: of the message; CTS: how much of it is wanted */
    uint64_t id;      /* of the sender's request */
    uint64_t peer_id; /* of the receiver's request */
    uint64_t address; /* CTS: write here; RTS: read from here; DATA: offset in the message */
    uint32_t handle;
    uint32_t how; /* RTS, CTS: msg_rendezvous; FIN: msg_error */
};

struct msg_packet {
    struct msg_head head;
    struct msg_rest rest; /* not sent with EAGER */
};
_Static_assert(sizeof(struct msg_head) == 8 && sizeof(struct msg_packet) == 48, "packets have no holes");

enum {
    MSG_PKT_EAGER = 1, /* a message */
    MSG_PKT_SYNC = 2,  /* a message whose sender wants to know that it was matched */
    MSG_PKT_RTS = 3,   /* a message announced */
    MSG_PKT_CTS = 4,   /* it was matched: send it */
    MSG_PKT_DATA = 5,  /* a segment of it */
    MSG_PKT_FIN = 6,   /* RPUT: it is in place; RGET: it was read */
    MSG_PKT_ACK = 7,   /* a SYNC message was matched */
    MSG_PKT_XOFF = 8,  /* no eager data for the moment */
    MSG_PKT_XON = 9,
    MSG_PKT_BYE = 10,    /* nothing will follow */
    MSG_PKT_CREDIT = 11, /* the channel's own: only credits */
    MSG_PKT_FENCE = 12   /* never sent: what is queued behind it waits until no write is moving (send.c) */
};
#define MSG_PKT_MASK 0x0F
#define MSG_FLAG_READY 0x10 /* sent by a ready send */

static inline size_t msg_packet_len(const struct msg_packet *p)
{
    return (p->head.kind & MSG_PKT_MASK) == MSG_PKT_EAGER ? sizeof p->head : sizeof *p;
}

/* A packet on its way out: part of its request, or of a carrier made for it. Stays where it is until the channel has
 * taken all of it. */
struct msg_out {
    struct msg_out *next;
    struct msg_packet packet;
    const char *data;     /* behind the packet; of a DATA packet all that is left, which the channel may cut */
    size_t len, sent;     /* bytes of it; how many are taken already */
    msg_request *request; /* told by msg_out_taken */
};

/* ---------------------------------------------------------------- queues for matching (match.c) */

/* A place in a list, embedded in what is listed. */
struct msg_link {
    struct msg_link *prev, *next;
};

/* All entries with one (context, source, tag), in order: what a receive names, or a message offers. */
struct msg_lane {
    struct msg_link list;  /* sentinel */
    struct msg_lane *next; /* in its bucket, or free */
    int32_t context, source, tag;
};

/* The table of lanes of one queue: posted receives, or early messages. */
struct msg_lanes {
    struct msg_lane **buckets;
    uint32_t mask, n_lanes;
    struct msg_lane *free, *last; /* last: found by the previous look-up */
};

/* ---------------------------------------------------------------- requests (request.c) */

/* What a request is for. A CARRIER belongs to nobody: it holds a control packet until there is room for it. */
enum { MSG_REQ_FREE = 0, MSG_REQ_SEND, MSG_REQ_RECV, MSG_REQ_PUT, MSG_REQ_CARRIER };

enum {
    MSG_ON_POSTED = 1,  /* in a posted lane */
    MSG_DETACHED = 2,   /* nobody waits: free it when it ends */
    MSG_BSEND = 4,      /* buf is a piece of the attached buffer */
    MSG_OWN_COPY = 8,   /* buf is malloc'ed */
    MSG_QUEUED = 16,    /* `out` is in the peer's queue */
    MSG_ANNOUNCED = 32, /* the other side knows of it */
    MSG_MOVING = 64     /* data is being moved: cannot be withdrawn */
};

/* Who fills a receive, and so what may be said about it: a packet that says something else is dropped. */
enum msg_filled_by { MSG_BY_STREAM = 0, MSG_BY_SEGMENTS, MSG_BY_WRITES, MSG_BY_READS };

/*
 * One operation under way. Its life, where `complete` is what waits look at:
 *
 *   new --> (posted, queued, announced, moving) --> complete --> reaped by the caller's wait, test ... and free again
 *                                                     '--------> free at once if MSG_DETACHED
 *
 * The fields from `want` to `handle` are the rendezvous', and a one-sided write's. Written with the world's lock
 * held; `complete` is stored last and with release, for msg_request_peek looks without the lock.
 */
struct msg_request {
    struct msg_link link; /* in a posted lane; next also links free ones */
    struct msg_out out;
    uint64_t id, sequence; /* sequence: order of posting */
    msg_world *world;
    void *buf;
    size_t len;     /* of buf */
    size_t want;    /* rendezvous: bytes to move ... */
    size_t started; /* ... handed to the channel ... */
    size_t moved;   /* ... done */
    uint64_t remote_id, address;
    void *registered;    /* the channel's hold on buf */
    msg_request *moving; /* next of those with data still to be handed over (world->moving) */
    uint32_t handle;
    int32_t context, peer, tag;
    uint8_t kind, flags, complete, how; /* how: of a receive that is MOVING, enum msg_filled_by */
    msg_status status;
};
/* Requests come in blocks and never move, so an index finds one (msg_request_find). */
#define MSG_SLAB_BYTES 65536
#define MSG_REQUEST_STRIDE 320
#define MSG_SLAB_REQUESTS (MSG_SLAB_BYTES / MSG_REQUEST_STRIDE)
_Static_assert(sizeof(struct msg_request) <= MSG_REQUEST_STRIDE, "a request fits its place");

/* ---------------------------------------------------------------- messages that came too early */

#define MSG_INLINE 64 /* data of so many bytes lies in the envelope itself */

enum { MSG_VIEW_EXACT = 0, MSG_VIEW_ANY_SOURCE = 1, MSG_VIEW_ANY_TAG = 2, MSG_VIEW_ANY = 3, MSG_VIEWS = 4 };

/* In four lanes at once: a receive may look for it in four ways. */
struct msg_message {
    struct msg_link views[MSG_VIEWS];
    msg_world *world;
    struct msg_packet packet; /* its first */
    int32_t source;
    uint8_t arriving;  /* 1: data is still coming in (tcp); 2: and will not, its sender died ... */
    uint8_t taken;     /* out of the queue: by msg_mprobe, or by a receive */
    size_t len;        /* bytes of data, or announced */
    char *data;        /* `small`, or malloc'ed; NULL: announced only */
    msg_request *to;   /* ... and then goes here */
    msg_request *from; /* a message to oneself: the send request that still has the data, or waits for the match */
    struct msg_message *next;
    char small[MSG_INLINE];
};

/* Where data that a channel receives piece by piece is to go. */
struct msg_in {
    char *to;    /* NULL: nowhere, it is read and dropped */
    size_t room; /* bytes beyond are dropped */
    size_t len;  /* bytes that will come */
    msg_request *request;
    msg_message *message;
    struct msg_packet packet;
};

/* ---------------------------------------------------------------- ranks */

struct msg_channel;

/*
 * Another rank, or ourselves, as this world sees it.
 *
 *     CONNECTED --BYE--> LEFT            says nothing any more, may still listen
 *         '---channel gone--> FAILED     gone = 1 as well: nothing can be sent to it
 */
struct msg_peer {
    msg_world *world;
    uint64_t host; /* equal on one host */
    int rank;
    int state;        /* msg_peer_state */
    uint8_t gone;     /* nothing can be sent to it any more: it has failed, or left and hung up */
    uint8_t off;      /* it asked us not to send eagerly */
    uint8_t told_off; /* we asked it */
    uint8_t on_busy_list;
    size_t eager_limit;
    size_t unlooked;                   /* bytes sent since we last looked what it says (send.c) */
    int64_t rendezvous;                /* msg_rendezvous: how longer ones are proposed */
    size_t n_short;                    /* fewer bytes than this may go by push_short */
    const struct msg_channel *channel; /* NULL: ourselves */
    void *at;                          /* the channel's own */
    struct msg_out *queue, **queue_end;
    struct msg_peer *busy; /* next of those with a queue */
};

struct msg_buffer; /* bsend.c */

/* One rank's view of its job. Everything is guarded by `mutex` where `threads` is set, else by the promise that one
 * thread at a time calls. */
struct msg_world {
    int rank, n_ranks;
    msg_policy policy;
    const struct msg_channel *channel;
    void *at; /* the channel's own */
    struct msg_peer *peers;
    struct msg_peer *busy; /* with packets waiting */
    msg_request *moving;   /* with RDMA still to be started */

    struct msg_lanes posted, early;
    uint64_t sequence;
    uint32_t n_posted[MSG_VIEWS];
    size_t n_early, early_bytes;
    msg_message *free_messages;
    int throttling;

    char **slabs;
    uint32_t n_slabs;
    msg_request *free_requests;
    void *blocks; /* of envelopes and lanes, to be freed at the end */

    struct msg_buffer *attached;
    int n_failed, n_left, unacknowledged; /* ranks; unacknowledged: failures that receives from anybody must report */
    int n_local, crowded;                 /* ranks on this host; more on this machine than it has cores */
    int cores;                            /* that ranks on this machine may run on */
    int closing;
    unsigned fork_epoch;
    int threads;
    pthread_mutex_t mutex;
    pthread_cond_t changed; /* something completed: for calls that leave progress to the thread */
    pthread_t thread;
    int has_thread, stop_thread, n_sleeping;
    uint64_t n_completed;  /* free-running */
    const uint8_t *enough; /* the present wait is over when this is non-zero; NULL: the channel cannot know */
    int may_withdraw;      /* the send that is being begun may be interrupted */
    int (*interrupt)(void *);
    void *interrupt_context;
    uint64_t counters[MSG_N_COUNTERS];
    char job[33]; /* the same text on all ranks, of no other job */
    char error[MSG_ERROR_LEN];
};

#define MSG_COUNT(w, name, n) ((w)->counters[MSG_COUNTER_##name] += (uint64_t)(n))

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

/* Sets the world's explanation and returns the code. */
int msg_fail(msg_world *w, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The code's own text if no better explanation is at hand. */
int msg_fail_plain(msg_world *w, int code);

extern unsigned msg_fork_epoch; /* counts up in the child of a fork */
static inline int msg_same_process(const msg_world *w)
{
    return vk_likely(w->fork_epoch == msg_fork_epoch);
}

/* ---------------------------------------------------------------- match.c */

int msg_lanes_init(struct msg_lanes *lanes);
void msg_lanes_fini(struct msg_lanes *lanes);

/* The receive that this message belongs to, taken out of the queue; NULL: none is posted. */
msg_request *msg_match_posted(msg_world *w, int context, int source, int tag);
int msg_post(msg_world *w, msg_request *r);
void msg_unpost(msg_world *w, msg_request *r);
/* The first message that such a receive gets, left in the queue; NULL: none. */
msg_message *msg_find_early(msg_world *w, int context, int source, int tag);
int msg_add_early(msg_world *w, msg_message *m);
/* The first message of a context whose tag has the bits of `tag` where `mask` has ones; NULL: none. Looks through all
 * of the context's. */
msg_message *msg_search_early(msg_world *w, int context, int mask, int tag);
void msg_take_early(msg_world *w, msg_message *m);

/* ---------------------------------------------------------------- request.c */

int msg_pool_init(msg_world *w);
void msg_pool_fini(msg_world *w);
/* A request with the fields that all need; NULL: no memory. */
msg_request *msg_request_new(msg_world *w, int kind, int context, int peer, int tag, void *buf, size_t len);
void msg_request_put(msg_world *w, msg_request *r);
/* By its id; NULL if it has ended. */
msg_request *msg_request_find(msg_world *w, uint64_t id);
/* The operation has ended. Frees the request if nobody will ask for it. */
void msg_complete(msg_request *r, int error);
msg_message *msg_message_new(msg_world *w, size_t len);
void msg_message_put(msg_world *w, msg_message *m);
/* Calls f for every request that exists. */
void msg_each_request(msg_world *w, void (*f)(msg_request *r, void *context), void *context);

/* ---------------------------------------------------------------- protocol.c */

/* Behind the packets that wait for this rank. */
void msg_enqueue(struct msg_peer *peer, struct msg_out *out);
/* Hands the packet to the channel, or queues it behind the others for that rank. */
void msg_push(struct msg_peer *peer, struct msg_out *out);
void msg_push_queue(struct msg_peer *peer);
/* A packet that belongs to no request, or outlives it. */
void msg_push_control(struct msg_peer *peer, const struct msg_packet *packet);
void msg_begin_send(msg_request *r, struct msg_peer *peer, msg_mode mode);
/* Is there a write to this rank that has not been handed to the channel as a whole? */
int msg_is_writing(const msg_world *w, int target);
/* What is sent from now on waits for that. 0, or an error: no memory. */
int msg_fence(struct msg_peer *peer);
/* Goes on with a message that has found its receive. */
void msg_deliver_early(msg_world *w, msg_message *m, msg_request *r);
/* More of the RDMA that waits to be started. */
void msg_move(msg_world *w);
/* The channel's hold on the request's buffer ends, if there is one. */
void msg_let_go(msg_request *r);
void msg_copy_in(msg_world *w, msg_request *r, const void *data, size_t len);
void msg_convert(char *to, const char *from, size_t len);
void msg_relieve(msg_world *w);

/* Called by channels: */
void msg_out_taken(struct msg_peer *peer, struct msg_out *out);
void msg_arrived(struct msg_peer *peer, const struct msg_packet *packet, const void *data, size_t len);
void msg_arriving(struct msg_peer *peer, const struct msg_packet *packet, size_t len, struct msg_in *in);
void msg_arrival_done(struct msg_peer *peer, struct msg_in *in);
void msg_arrival_lost(struct msg_peer *peer, struct msg_in *in);
void msg_moved(msg_request *r, size_t len, int error); /* RDMA of len bytes for this request is done */
void msg_put_arrived(msg_request *r); /* all that the peer was to write into this receive's buffer is there */

/* ---------------------------------------------------------------- leave.c */

/* Called by channels, any number of times: the rank cannot be reached any more, and why. */
void msg_peer_failed(struct msg_peer *peer, const char *why);
/* Its BYE has arrived. */
void msg_said_bye(struct msg_peer *peer);

/* Is there anything to be done with this rank? MSG_SUCCESS, or why not. */
static inline int msg_peer_error(const struct msg_peer *p)
{
    return vk_likely(p->state == MSG_PEER_CONNECTED) ? MSG_SUCCESS
           : p->state == MSG_PEER_LEFT               ? MSG_ERR_LEFT
                                                     : MSG_ERR_PROC_FAILED;
}

/* ---------------------------------------------------------------- send.c, recv.c, wait.c, bsend.c */

int msg_check_send(msg_world *w, int context, const void *buf, size_t len, int dst, int tag);
int msg_start_send(msg_world *w, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode,
                   msg_request **r);
int msg_start_recv(msg_world *w, int context, void *buf, size_t len, int src, int tag, msg_request **r);
int msg_step(msg_world *w);
/* Waits, with the lock held on entry and return, until done(argument) is true. */
int msg_wait_until(msg_world *w, int (*done)(void *), void *argument, int64_t timeout_ms);
int msg_is_complete(void *request); /* for msg_wait_until */
/* Fills status from the request and frees it. */
void msg_reap(msg_world *w, msg_request **request, msg_status *status);
void *msg_buffer_get(msg_world *w, size_t len);
void msg_buffer_put(msg_world *w, void *piece);
int msg_thread_start(msg_world *w);
void msg_thread_stop(msg_world *w);

/* ---------------------------------------------------------------- room.c */

/* On a rank's card: address space that it costs each rank that maps it, and whether its own is limited. */
struct msg_room {
    uint64_t cost;
    uint32_t limited;
};
struct msg_room msg_room_of(uint64_t bytes_to_map);
/* With all cards there, which are `stride` bytes apart: is there room for all ranks of this host, on every rank? May
 * call msg_allgather, then on all ranks. MSG_ERR_CHANNEL if somebody has not. */
int msg_check_room(msg_world *w, const msg_options *o, const struct msg_room *first, size_t stride);

/* ---------------------------------------------------------------- world.c */

int msg_allgather(msg_world *w, const msg_options *o, const void *mine, size_t len, void *all);

/* takeover_us of a NIC that a channel opens. Ranks that share a core take turns of some microseconds as long as they
 * wait, and of milliseconds when one computes. A NIC's thread that looks more often only takes the core from those that
 * work: a barrier of 8 hosts on 2 cores was half as long again. */
static inline uint32_t msg_takeover_us(const msg_world *w)
{
    return w->crowded ? 5000 : 0;
}

#endif
