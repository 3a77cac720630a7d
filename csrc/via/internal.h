/*
 * The provider's own structs. Reading order: this file, post.c (a descriptor comes in), tx.c (it becomes frames), rx.c
 * (frames are checked), place.c (their bytes land), vi.c (descriptors complete), reliable.c (what happens when frames
 * do not arrive: with early.c at the receiver, repeat.c at the sender, rtt.c for how long to wait), engine.c (who
 * drives, who sleeps), conn.c (how two VIs find each other), mem.c, cq.c, nic.c.
 *
 * Invariant of all of it: state of a NIC, its VIs, queues and regions is touched only by the NIC's owner (own.h).
 * Functions named via_* below expect to be called by the owner unless their contract says otherwise.
 */
#ifndef VIAKIT_INTERNAL_H
#define VIAKIT_INTERNAL_H

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "../base/atomic.h"
#include "../base/cancel.h"
#include "../base/clock.h"
#include "../base/pool.h"
#include "../link/link.h"
#include "own.h"

#define VIA_MAX_VI 4096   /* of one NIC ... */
#define VIA_VI_POOL 65536 /* ... and of the process */
#define VIA_CQ_POOL 65536
#define VIA_MAX_CQ 1024
#define VIA_MAX_CQ_ENTRIES 65536
#define VIA_MAX_PTAGS 1024
#define VIA_MAX_REGIONS 16384
#define VIA_MAX_QUEUE 1024 /* descriptors per work queue; a power of two */
#define VIA_MAX_SEGMENTS 252
#define VIA_MAX_TRANSFER (64ul << 20)
#define VIA_ASKS \
    16 /* parts of RDMA reads that a VI may have outstanding, and another's that may wait for its answers */
#define VIA_BATCH 45          /* frames built at once: a super-frame at MTU 1500 */
#define VIA_MAX_DEFERRED 4096 /* control frames that wait for room on the link: one per VI */
#define VIA_CONN_HASHES 256   /* a power of two */
#define VIA_MAX_CONNS 1024    /* connection requests of a NIC that are remembered after their answer */
#define VIA_FLIGHT 256        /* link sends a VI may have unacknowledged, at most; a power of two */
#define VIA_MAX_AHEAD 16384   /* a sender is no further ahead: VIA_FLIGHT link sends of VIA_BATCH frames */
#define VIA_EARLY_FRAMES 4032 /* a receiver keeps no frame that is further ahead of what it waits for */
#define VIA_RDMA_READ_LEVELS (VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION)
#define VIA_ALL_LEVELS (VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION)

/* ---------------------------------------------------------------- registered memory (mem.c) */

/* One entry of a NIC's region table. Where the link has memory that peers of the same host can see (shm), a copy of the
 * table lies there (nic->published): they check rights in it before they write directly, holding `users` meanwhile. We
 * never believe that copy: whoever can read it can write it as well, by mistake if by nothing else. */
struct via_region {
    uint64_t address, len;
    uint32_t handle;  /* 0: free; else generation << 16 | index: changes with every registration */
    uint32_t ptag;    /* number of the tag, 0 none */
    uint32_t rights;  /* VIA_RIGHT_* */
    uint32_t users;   /* published: peers that are reading or writing directly at this moment */
    uint32_t past[4]; /* generations of this index that were given out last: none of them comes again at once */
    uint32_t pinned;
    uint32_t next_free, pad[2];
};
_Static_assert(sizeof(struct via_region) == 64, "a region entry is a cache line");

#define VIA_RIGHT_WRITE 1
#define VIA_RIGHT_READ 2

/* A protection tag is a number, which VIs, regions and (in connection requests) peers on the same host compare. */
struct via_ptag {
    struct vk_object object;
    struct via_nic *nic;
    uint32_t number; /* 1.. within the NIC */
    uint32_t n_users;
};

/* The layout that VIPL gave its descriptors, by which programs were compiled: nothing in it may move. */
_Static_assert(sizeof(VIP_CONTROL_SEGMENT) == 32 && sizeof(VIP_DESCRIPTOR_SEGMENT) == 16 &&
                   sizeof(VIP_DESCRIPTOR) == 64,
               "a descriptor of two segments has 64 bytes");
_Static_assert(offsetof(VIP_CONTROL_SEGMENT, NextHandle) == 8 && offsetof(VIP_CONTROL_SEGMENT, SegCount) == 12 &&
                   offsetof(VIP_CONTROL_SEGMENT, Control) == 14 && offsetof(VIP_CONTROL_SEGMENT, ImmediateData) == 20 &&
                   offsetof(VIP_CONTROL_SEGMENT, Length) == 24 && offsetof(VIP_CONTROL_SEGMENT, Status) == 28,
               "the control segment's fields");
_Static_assert(offsetof(VIP_DATA_SEGMENT, Handle) == 8 && offsetof(VIP_DATA_SEGMENT, Length) == 12 &&
                   offsetof(VIP_ADDRESS_SEGMENT, Handle) == 8,
               "the data and address segments' fields");
_Static_assert(offsetof(VIP_NET_ADDRESS, HostAddress) == 4, "a host address stands behind two lengths");

/* Segment i of a descriptor: behind the control segment, beyond DS[2] if need be. */
static inline const VIP_DESCRIPTOR_SEGMENT *via_segment(const VIP_DESCRIPTOR *d, uint32_t i)
{
    return (const VIP_DESCRIPTOR_SEGMENT *)((const char *)d + sizeof(VIP_CONTROL_SEGMENT)) + i;
}

/* ---------------------------------------------------------------- work queues */

/* A posted descriptor. psn fields are valid once transmission began. */
struct via_work {
    VIP_DESCRIPTOR *descriptor;
    void *data;   /* is_short: the one segment, ... */
    uint32_t len; /* message length in bytes */
    union {
        uint32_t room;    /* of a receive: the segments' sum */
        uint32_t arrived; /* an RDMA read: bytes that are here */
    };
    union {
        uint32_t epoch; /* ... and nic->region_epoch when it was found granted */
        uint32_t asked; /* an RDMA read: bytes asked for, from the beginning on */
    };
    uint32_t error;     /* status bits found when posted: completes with these in its turn */
    uint32_t first_psn; /* of its first frame */
    uint32_t n_frames;
    uint16_t control, seg_count;
    uint8_t is_short;      /* one segment: a send may go by transmit_short(), a receive be filled by whole_message() */
    uint8_t how;           /* VIA_HOW_* */
    uint8_t started, sent; /* first / last frame handed to the link */
    uint8_t wait_ack;      /* completes on acknowledgement, not on sending */
    uint8_t all_asked;     /* an RDMA read: nothing is left to ask for */
    uint32_t mem;          /* a receive: handle of the memory where the descriptor itself lies */
};
_Static_assert(sizeof(struct via_work) <= 64, "an entry is a cache line");

enum { VIA_HOW_FRAMES = 0, VIA_HOW_REFERENCE = 1, VIA_HOW_PLACED = 2, VIA_HOW_READ = 3 };

/* Free-running: reaped <= done <= next <= posted. Entries before done are complete and wait for a Done call; on the
 * send queue, next is the first not wholly handed to the link. */
struct via_queue {
    struct via_work *work; /* [VIA_MAX_QUEUE] */
    uint32_t reaped, done, next, posted;
    struct via_cq *cq;
    int is_recv;
};

static inline struct via_work *via_work_at(struct via_queue *q, uint32_t i)
{
    return &q->work[i & (VIA_MAX_QUEUE - 1)];
}

/* What VipCQDone gives out: of which VI, and whether it was its receive queue. */
struct via_cq_entry {
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
};

struct via_cq {
    struct vk_object object;
    struct via_nic *nic;
    struct via_cq_entry *entries;
    uint32_t capacity, mask; /* as asked for; array size - 1 */
    uint32_t head, tail;     /* free-running: taken, added */
    uint32_t limit;          /* entries that via_cq_push adds without a second look: capacity, or 0 if there are tags */
    uint32_t n_queues;       /* attached work queues */
    struct via_tag *tags;    /* events to signal (extension.c) */
    struct via_cq *next, *prev;
};

/* ---------------------------------------------------------------- the VI */

/* The measured round trip of a connection (rtt.c), ns. One frame at a time is timed. */
struct via_rtt {
    uint64_t smoothed, variation; /* RFC 6298's SRTT and RTTVAR; smoothed 0: nothing measured yet */
    uint64_t begun_at, next_at;   /* when the frame that is timed was sent; no other is timed before next_at */
    uint32_t psn;                 /* the number after it */
    uint8_t timing;
    uint8_t tail_probes; /* sent since there was progress */
};

/* No peer's frames go the short way: the key in it is 0, and whole_message() takes no frame with that key. A new VI,
 * zeroed, begins with it. */
#define VIA_NO_SOURCE 0

struct via_vi {
    struct vk_object object;
    struct via_nic *nic;
    uint16_t number;  /* index in nic->vis */
    uint8_t reliable; /* level is not UNRELIABLE */
    uint8_t lossless; /* this connection runs over a lossless link, unfiltered: no sequence checks, no retransmission */
    VIP_VI_STATE state __attribute__((aligned(8)));
    uint32_t deferring; /* sends from hold_from on wait for the program's word (VipPostDeferredSends) */
    uint32_t hold_from;
    VIP_VI_ATTRIBUTES attributes;
    uint32_t ptag; /* number */
    VIP_PVOID user_data;
    struct via_queue send, recv;
    struct via_peering *peering; /* the VI's peer request until its result is collected (conn_peer.c) */
    struct via_conn
        *accepted_by; /* the request that made its connection, as long as that is remembered; NULL if it asked itself */

    /* the peer, valid while CONNECTED (and in ERROR, to answer what still arrives) */
    struct link_peer *peer;
    uint8_t peer_address[6];
    uint16_t peer_port, peer_vi;
    uint32_t key, peer_key; /* in frames to us / to the peer */
    uint32_t peer_ptag;
    uint8_t peer_rdma_write, peer_rdma_read;
    uint8_t confirmed;            /* the peer is known to be connected (it sent CONFIRM or data) */
    uint32_t chunk;               /* payload bytes per frame that we send */
    uint32_t read_chunk;          /* ... and that we ask for when we read: what the peer can send may be less */
    struct wire_header tx_header; /* what all our frames to this peer have in common ... */
    uint64_t tx_words[2];         /* ... and the first two words of a whole message, but for its length */
    uint64_t rx_source;           /* second word of the peer's frames; VIA_NO_SOURCE unless CONNECTED */

    /* transmitter */
    uint32_t next_psn;               /* of the next new frame */
    uint32_t una_psn;                /* oldest not acknowledged */
    uint32_t tx_psn;                 /* next to hand to the link; set back to send again */
    uint32_t high_psn;               /* after the last one ever handed to the link */
    uint32_t flight_end[VIA_FLIGHT]; /* psn after the last frame of each link send in flight */
    uint32_t flight_head, flight_tail;
    uint32_t flight_seen; /* sends before it have arrived, but for single frames: they count no longer for the window */
    uint32_t window;      /* congestion window, link sends */
    uint32_t threshold;   /* below it the window doubles per round trip */
    uint32_t undo_window; /* before the last loss */
    uint32_t window_credit;    /* acknowledged sends since the window last grew */
    uint32_t lost_frames;      /* single frames lost that have not cost the window a send yet */
    uint32_t recover_psn;      /* until this is acknowledged, a burst of losses is the one that has halved the window */
    struct via_resent *resent; /* frames sent again one by one (repeat.c); NULL: none lately */
    uint32_t write_psn;        /* after the last RDMA write that went by frames on a lossless link */
    uint32_t nak_psn, nak_high; /* what the last NAK asked for, and how far we had got: its copies are not answered */
    uint64_t rto_deadline;      /* VK_NEVER: nothing to wait for */
    uint64_t rto;               /* present time-out: the measured one, doubled by each that passed in vain, ns */
    uint64_t waiting_since;     /* the last progress, or the first frame in flight */
    uint32_t retries;
    uint8_t probing;
    struct via_rtt rtt;

    struct via_reads *reads; /* RDMA reads, of both sides (read.c); NULL: none yet */

    /* receiver */
    uint32_t expected_psn;
    uint32_t acked_psn; /* last acknowledgement we sent */
    uint8_t ack_owed;   /* 1: when it has waited long enough, 2: at the next idle look */
    uint8_t nak_sent;
    uint64_t ack_owed_at;
    uint32_t ahead_psn;      /* the last frame that came too early; selective: after the furthest one */
    struct via_early *early; /* frames that came too early and are kept (early.c); NULL: none lately */
    uint8_t keeps_early;     /* selective: they are kept and the gaps named */
    uint8_t has_gap;         /* selective: something before ahead_psn is missing; no rx_source so long */
    uint8_t on_answer_list;  /* the peer is to be told at the end of this look what has come and what not */
    uint8_t rx_active;       /* in the middle of a message: WIRE_SEND or WIRE_WRITE */
    uint8_t rx_skip;         /* drop pieces until the next first one */
    uint8_t owes_acks;       /* data is to be acknowledged although no flag says so */
    uint8_t heard;           /* something arrived since the last look of the keep-alive */
    uint32_t rx_len;         /* bytes of it placed so far */
    uint32_t rx_segment, rx_segment_used; /* where in the receive descriptor */
    uint64_t rx_address;                  /* next byte of an RDMA write */
    uint32_t rx_handle, rx_left;
    uint32_t error_psn, error_status; /* what stopped us; repeated to a sender that asks again */
    uint64_t heard_at;

    /* lists */
    struct via_vi *next, *prev;           /* all of the NIC */
    struct via_vi *ack_next, *stall_next; /* owe an acknowledgement / wait to send */
    struct via_vi *answer_next;
    uint8_t on_ack_list, on_stall_list;

    uint64_t counters[VIAKIT_N_COUNTERS];
};
_Static_assert(sizeof(struct via_vi) <= 4096, "a VI fits its pool slot");

/* ---------------------------------------------------------------- connections in the making (conn.c) */

enum via_conn_state { VIA_CONN_OFFERED = 1, VIA_CONN_ACCEPTED, VIA_CONN_REJECTED, VIA_CONN_CANCELLED };

/* The server's side of one request, from its arrival to a while after its answer. */
struct via_conn {
    struct vk_object object;
    struct via_nic *nic;
    struct via_conn *next, *newer; /* of all that the NIC remembers, older and newer */
    struct via_conn *same;         /* with the same hash (conn_server.c) */
    enum via_conn_state state;
    int held; /* the program has the handle and has not answered */
    struct link_peer *peer;
    uint8_t address[6];
    uint16_t port, vi; /* of the requester */
    struct wire_connect remote;
    uint8_t own_discriminator[WIRE_MAX_DISCRIMINATOR]; /* the requester's */
    struct via_vi *accepted;                           /* our VI, while connected by this request */
    uint32_t accepted_key;
    struct wire_connect accept_body; /* what ACCEPT said, to say it again */
    uint64_t repeat, repeat_at;
    uint64_t forget_at; /* answered: kept so long to repeat the answer */
};

/* A thread in VipConnectWait. On its stack. */
struct via_waiter {
    struct via_waiter *next;
    const uint8_t *discriminator;
    size_t len;
    struct via_conn *conn; /* set when matched */
};

/* A thread in VipConnectRequest. On its stack. */
struct via_request {
    struct via_request *next;
    struct via_vi *vi;
    uint32_t number;
    struct link_frame frame;
    uint8_t address[6];
    uint16_t port;         /* of the one NIC that is asked; 0: all there */
    int asked, no_match;   /* NICs asked (-1 unknown), NICs that said NOMATCH */
    uint16_t said_no[256]; /* their ports: each counts once, however often it is asked and answers */
    int offered;           /* somebody took it */
    uint64_t next_send, interval, give_up_no_match;
    int done;
    VIP_RETURN result;
    struct wire_connect remote;
    struct link_peer *server; /* who took it, once PENDING came; before, the NIC of `port` if one was named */
    uint16_t server_port;
};

/* A peer request that did not fit (conn_peer.c). */
struct via_peer_refusal {
    uint32_t request, own; /* numbers of the two that do not fit together */
    uint32_t code;
};
#define VIA_PEER_REFUSALS 32

/* ---------------------------------------------------------------- the NIC */

struct via_event {
    VIP_ERROR_DESCRIPTOR error;
};
#define VIA_MAX_EVENTS 1024

struct via_nic {
    struct vk_object object;
    struct via_own own __attribute__((aligned(VK_CACHE_LINE)));
    int pid;                    /* process that opened it */
    int inspectable;            /* wholly open, and counted in inspect.c, which looks at this before it enters */
    const struct link_ops *ops; /* from here on zeroed when a slot is used again */
    struct link *link;
    struct link_limits limits;
    uint64_t polls; /* free-running; the NIC's thread watches it */
    uint32_t idle;  /* polls in a row that found nothing */
    int closing;
    int checksum, vouched;  /* frames need a CRC32C; of the header alone, while the link vouches for the rest */
    uint64_t whole_message; /* first word of a frame that is a whole message for this NIC, but for length and VI */
    viakit_nic_options options;
    char device[64]; /* what it is */
    char name[64];   /* what the program called it */

    struct via_vi **vi_by_number; /* [VIA_MAX_VI] */
    uint32_t next_vi_number, n_vis, n_cqs;
    struct via_vi *vis;
    struct via_cq *cqs;
    struct via_vi *ack_list, *stall_list, *answer_list;
    struct via_tap *tap;                /* NULL: nobody listens */
    struct via_early_group *early_free; /* memory for early frames that no VI uses now */
    uint32_t n_early_groups;            /* that exist, used and free */

    struct via_region *regions;   /* [VIA_MAX_REGIONS] */
    struct via_region *published; /* what peers see of it; NULL: nothing */
    uint32_t region_free, region_touched, n_regions;
    uint32_t region_epoch; /* moves on when a region goes or changes: what was granted before must be checked again */
    struct via_allocation *allocations; /* by viakit_alloc, not freed yet */
    uint64_t bytes_registered, bytes_pinned;
    struct via_ptag *ptags[VIA_MAX_PTAGS];
    uint32_t n_ptags;

    struct via_waiter *waiters;
    struct {
        uint64_t until; /* ns */
        uint16_t port;
    } no_room[8]; /* see link_no_room(); the oldest gives way */
    uint32_t n_no_room;
    struct via_request *requests;
    struct via_conn *conns, *oldest_conn; /* the newest one, from which `next` leads on to the oldest */
    struct via_conn *conns_by_hash[VIA_CONN_HASHES];
    uint32_t n_conns, n_refused;
    uint32_t
        refused[64]; /* the latest requests that were answered NOMATCH: a copy that comes late is not taken after all */
    struct via_peering *peerings;                             /* peer requests, oldest first */
    struct via_peer_refusal peer_refusals[VIA_PEER_REFUSALS]; /* the latest that did not fit, to say so again */
    uint32_t n_peer_refusals;
    struct via_discovery *discoveries; /* calls that ask the wire who is there (discover.c) */
    uint8_t *discovered;               /* what the last one found: the program has its address */
    char *hosts_file;                  /* named to VipNSInit, or NULL */

    /* time */
    uint64_t now;       /* when somebody last looked at the clock */
    uint64_t timers_at; /* next time that something is due; VK_NEVER. The NIC's thread watches it ... */
    uint64_t acks_at; /* ... and this: when one of ack_list has waited long enough, if no frame came along; VK_NEVER */

    /* sleeping (engine.c) */
    int wake_fd, waiter_fd; /* eventfds: wake the NIC's thread / the waiting call that sleeps on data_fd */
    int data_fd, control_fd;
    int has_thread;
    pthread_t thread;
    uint32_t sleeper;        /* 0 nobody, 1 the NIC's thread, 2 a waiting call sleeps on data_fd */
    uint32_t sleeper_thread; /* its via_thread_id */
    uint64_t sleep_until;    /* when it means to wake */
    uint32_t n_calls;        /* calls in a wait, spinning ones included: the NIC cannot go */
    uint32_t n_waiting;      /* calls in a sleeping wait */
    uint32_t listeners;      /* n_waiting and n_notifications: who wants to hear of completions */
    uint32_t event_word;     /* futex of the waiting calls that do not sleep on data_fd ... */
    uint32_t n_followers;    /* ... and how many of them sleep on it */
    uint32_t thread_dozing;  /* the thread sleeps long: poke it when the program goes away */

    /* asynchronous errors */
    VIP_ERROR_HANDLER handler;
    VIP_PVOID handler_context;
    struct via_event *events; /* [VIA_MAX_EVENTS] */
    uint32_t events_head, events_tail;
    struct via_notification *notifications; /* asked for, oldest first (notify.c) */
    uint32_t n_notifications;
    uint32_t notify_due; /* one of them may have something */

    struct link *fault;         /* the decorator that loses and spoils frames, while there is one (fault.c) */
    int lossy;                  /* it is there: new connections do not rely on the link's losing nothing */
    int deaf;                   /* what arrives is dropped: set only while the decorator polls */
    struct link_flat *deferred; /* control frames that the link could not take */
    uint32_t n_deferred;

    uint64_t counters[VIAKIT_N_COUNTERS];
};

#define NIC_COUNT(nic, name, n) ((nic)->counters[VIAKIT_COUNTER_##name] += (uint64_t)(n))
/* A VI's count is part of its NIC's: added up when somebody asks (nic.c). */
#define VI_COUNT(vi, name, n) ((vi)->counters[VIAKIT_COUNTER_##name] += (uint64_t)(n))

extern struct vk_pool via_nic_pool, via_vi_pool, via_cq_pool, via_ptag_pool, via_conn_pool;
extern int via_process_id; /* getpid() without the system call: renewed in the child of a fork */
extern uint32_t via_n_regions_live, via_n_allocations_live;

/* ---------------------------------------------------------------- errors (error.c) */

/* Sets the explanation and returns the code: `return via_fail(VIP_..., "...", ...)`. */
VIP_RETURN via_fail(VIP_RETURN code, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Memory or address space was not to be had by `function`: VIP_ERROR_RESOURCE, and of which there is a limit. */
VIP_RETURN via_no_memory(const char *function);
/* Why a pool gave no object: it is full of n_alive of `what`, or it is no_memory. */
VIP_RETURN via_no_object(const char *function, const struct vk_pool *pool, const char *what);
VIP_RETURN via_fail_with(VIP_RETURN code,
                         const char *text); /* a text as it stands, quickly: for what is no failure to some */
VIP_RETURN via_bad_handle(const char *what, const void *handle);

/* Queues an asynchronous error; the handler runs later, without ownership. */
void via_report(struct via_nic *nic, struct via_vi *vi, struct via_cq *cq, VIP_DESCRIPTOR *d,
                VIP_RESOURCE_CODE resource, VIP_ERROR_CODE code);
/* Runs queued handlers. Called without ownership, by the NIC's thread (or whoever polls a NIC without one). */
void via_run_handlers(struct via_nic *nic);
/* The handlers that a thread is in the middle of, innermost first: a handler may wait on another NIC and run its. */
struct via_handling {
    const struct via_nic *nic;
    const struct via_handling *outer;
};
void via_handling_begin(struct via_handling *here, const struct via_nic *nic);
void via_handling_end(const struct via_handling *here);
int via_in_handler(const struct via_nic *nic);

/* ---------------------------------------------------------------- notify.c, extension.c */

/* Something completed while notifications are outstanding. */
void via_notify_due(struct via_nic *nic);
/* Those of a VI or a completion queue that goes. */
void via_notify_cancel(struct via_nic *nic, const void *vi_or_cq);
/* Calls the handlers of those that have something. Like via_run_handlers. */
void via_run_notifications(struct via_nic *nic);

static inline int via_callbacks_wait(const struct via_nic *nic)
{
    return nic->events_head != nic->events_tail || nic->notify_due;
}

/* The events tied to the queue are signalled. */
void via_cq_signal(const struct via_cq *cq);
void via_cq_drop_tags(struct via_cq *cq);

/* Connected, and sends are not deferred: one comparison for the two words. */
static inline int via_may_transmit(const struct via_vi *vi)
{
    uint64_t both;
    _Static_assert(sizeof(VIP_VI_STATE) == 4 &&
                       offsetof(struct via_vi, deferring) == offsetof(struct via_vi, state) + 4,
                   "state and deferring are one word");
    memcpy(&both, &vi->state, sizeof both);
    return both == VIP_STATE_CONNECTED;
}

/* ---------------------------------------------------------------- engine.c */

static inline void via_enter(struct via_nic *nic)
{
    via_own_enter(&nic->own);
}
static inline void via_leave(struct via_nic *nic)
{
    via_own_leave(&nic->own);
}

/* ---------------------------------------------------------------- the opening of every call (call.c)
 *
 * A call finds the object behind its handle, enters the object's NIC, and only then asks whether the handle is still
 * good: another thread may have destroyed the object, or closed the NIC, in between. What is read before that (which
 * NIC, whose process, who owns it) lies in the part of a slot that is never cleared (base/pool.h), so it can be
 * relied on even if the object is dead. On success the caller is inside the NIC and leaves it with via_leave();
 * NULL: it is not inside, and *code says why, explained: VIP_INVALID_PARAMETER for a handle that is not good,
 * VIP_INVALID_STATE in the child of a fork. */

/* What the structs of VIs, completion queues and connection requests begin with. */
struct via_belonging {
    struct vk_object object;
    struct via_nic *nic;
};

/* Says why an object could not be entered. */
VIP_RETURN via_refuse_handle(const struct vk_pool *pool, const void *handle, const char *what);

static inline __attribute__((always_inline)) void *via_enter_object(const struct vk_pool *pool, const void *handle,
                                                                    size_t stride, size_t capacity, const char *what,
                                                                    VIP_RETURN *code)
{
    uint32_t generation = 0;
    struct via_belonging *o = (struct via_belonging *)vk_pool_slot(pool, handle, stride, capacity, &generation);
    struct via_nic *nic = vk_likely(o != NULL) ? vk_load_relaxed(&o->nic) : NULL; /* NULL also: a slot never used */
    if (vk_likely(nic != NULL && vk_load_relaxed(&nic->pid) == via_process_id)) {
        via_enter(nic);
        if (vk_likely(vk_object_is(&o->object, generation)))
            return o;
        via_leave(nic);
    }
    *code = via_refuse_handle(pool, handle, what);
    return NULL;
}

/* In line, for the calls that are made for every message; the others use the functions below. */
static inline __attribute__((always_inline)) struct via_vi *via_vi_enter_inline(VIP_VI_HANDLE handle, VIP_RETURN *code)
{
    return (struct via_vi *)via_enter_object(&via_vi_pool, handle, VK_POOL_STRIDE(sizeof(struct via_vi)), VIA_VI_POOL,
                                             "VI", code);
}

static inline __attribute__((always_inline)) struct via_cq *via_cq_enter_inline(VIP_CQ_HANDLE handle, VIP_RETURN *code)
{
    return (struct via_cq *)via_enter_object(&via_cq_pool, handle, VK_POOL_STRIDE(sizeof(struct via_cq)), VIA_CQ_POOL,
                                             "completion queue", code);
}

struct via_vi *via_vi_enter(VIP_VI_HANDLE handle, VIP_RETURN *code);
struct via_cq *via_cq_enter(VIP_CQ_HANDLE handle, VIP_RETURN *code);
/* A request that the program has not answered yet. */
struct via_conn *via_conn_enter(VIP_CONN_HANDLE handle, VIP_RETURN *code);
/* A NIC that is not being closed. */
struct via_nic *via_nic_enter(VIP_NIC_HANDLE handle, VIP_RETURN *code);
/* The same without disturbing whose NIC it is; left with via_own_leave_slow(). */
struct via_nic *via_nic_enter_quietly(VIP_NIC_HANDLE handle, VIP_RETURN *code);
/* What viakit_query_nic tells, for the owner. */
void via_nic_info(struct via_nic *nic, viakit_nic_info *info);

#define VIA_BUDGET 64    /* link slots handled per look */
#define VIA_SLOW_LOOK 64 /* idle looks between looks at the clock */
#define VIA_TAKEOVER_LEAST_US 50
#define VIA_TAKEOVER_MOST_US 10000 /* more is too long to be without anybody who drives */

/* What a look at the link leads to when it brought something, or when something waits to be sent. Returns n. */
int via_drive_rest(struct via_nic *nic, int n);

/* One look at the link; what it brought is handled, what may be sent is sent. Returns slots handled. */
static inline int via_drive(struct via_nic *nic)
{
    int n = nic->ops->poll(nic->link, VIA_BUDGET);
    vk_store_relaxed(&nic->polls, nic->polls + 1);
    if (vk_likely(n == 0 && !nic->stall_list && !nic->deferred && (++nic->idle & (VIA_SLOW_LOOK - 1))))
        return 0;
    return via_drive_rest(nic, n);
}

/* The clock, acknowledgements that have waited, timers. Called every so many idle polls. */
void via_drive_slow(struct via_nic *nic);
/* Something is due at `at` (ns): the thread will not sleep longer. */
void via_kick_thread(struct via_nic *nic);
void via_kick_sleeper(struct via_nic *nic);
/* Whoever sleeps is to look at `at`. */
static inline void via_call_at(struct via_nic *nic, uint64_t at)
{
    if (vk_unlikely(nic->sleeper && at < nic->sleep_until)) { /* whoever sleeps would sleep too long */
        nic->sleep_until = at;
        via_kick_sleeper(nic);
    }
}
/* The timers run at `at`, if not sooner. */
static inline void via_timer(struct via_nic *nic, uint64_t at)
{
    if (at >= nic->timers_at)
        return;
    vk_store_relaxed(&nic->timers_at, at); /* the NIC's thread looks at it without being owner */
    via_call_at(nic, at);
}
/* A completion, a match, an event: waiting calls look again. */
void via_wake_waiters(struct via_nic *nic);

/* Waits until ready(argument) says non-zero: called and left by the owner, but others get in while it sleeps.
 * VIP_SUCCESS, VIP_TIMEOUT (also when interrupted), or VIP_INVALID_PARAMETER when the NIC is being closed. The NIC
 * stays meanwhile; any other object may have gone. missing: what a time-out is explained by, "VipCQWait: nothing
 * completed".
 * A program may cancel the thread meanwhile (pthread_cancel): then this does not return, and abandon(nic, argument),
 * NULL if there is nothing, is called by the owner in place of all that the caller would do after it, but for leaving.
 */
VIP_RETURN via_wait_owned(struct via_nic *nic, unsigned long timeout_ms, int (*ready)(void *), void *argument,
                          const char *missing, void (*abandon)(struct via_nic *, void *));

int via_engine_start(struct via_nic *nic);
/* No call gets in any more, waiting ones leave, the thread ends. Called and left by the owner, who is alone then. */
void via_engine_stop(struct via_nic *nic);

/* ---------------------------------------------------------------- mem.c */

int via_mem_init(struct via_nic *nic);
void via_mem_fini(struct via_nic *nic);
uint32_t via_ptag_number(struct via_nic *nic, VIP_PROTECTION_HANDLE tag, int *valid);

/* Is [address, address+len) inside the region, and the tag the right one? */
static inline int via_mem_grants(const struct via_nic *nic, VIP_MEM_HANDLE handle, const void *address, uint64_t len,
                                 uint32_t ptag)
{
    uint32_t index = handle & 0xFFFF;
    if (vk_unlikely(index >= VIA_MAX_REGIONS || handle == 0))
        return 0;
    const struct via_region *r = &nic->regions[index];
    uint64_t offset = (uint64_t)(uintptr_t)address - r->address;
    return r->handle == handle && r->ptag == ptag && offset <= r->len && len <= r->len - offset;
}

/* ---------------------------------------------------------------- vi.c, cq.c */

/* Completes the queue's entry `done`: status written last, completion queue and sleepers told. */
void via_complete(struct via_vi *vi, struct via_queue *q, uint32_t status);
/* Everything outstanding is flushed; the VI's state is the caller's affair. */
void via_flush(struct via_vi *vi);
/* The connection is over because of an error: VI to ERROR, queues flushed, CONN_LOST (or the given code) reported. */
void via_break(struct via_vi *vi, int report_conn_lost);
void via_cq_push(struct via_cq *cq, struct via_vi *vi, int recv);
/* The oldest entry; 0 if there is none. */
int via_cq_take(struct via_cq *cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv);
/* Entries at the head that were found wrong when posted complete now. */
void via_settle_errors(struct via_vi *vi, struct via_queue *q);
void via_vi_reset(struct via_vi *vi);
VIP_RETURN via_vi_destroy(struct via_vi *vi);
void via_add_counters(uint64_t *sum, const struct via_vi *vi);
void via_cq_free(struct via_cq *cq);

/* ---------------------------------------------------------------- tx.c, rx.c, reliable.c */

/* Sends what may be sent of the VI's queue. */
void via_transmit(struct via_vi *vi);
void via_stall(struct via_vi *vi);
/* A frame without payload of ours for the VI's peer. 1 if the link took it at once. */
int via_send_control(struct via_vi *vi, int kind, uint32_t psn, uint32_t immediate);
/* Any frame to any peer. What link send returns. */
int via_link_send(struct via_nic *nic, struct link_peer *peer, struct link_frame *frames, int n);
void via_frame_init(struct via_nic *nic, struct link_frame *f, int kind);
/* The way back to somebody who gets one answer and is forgotten: strangers can come from any number of addresses. The
 * peer is good for one frame that is sent at once, not kept. */
static inline int via_route_in_passing(struct via_nic *nic, const uint8_t address[6], uint16_t port,
                                       struct link_peer **peer)
{
    return (nic->ops->passing ? nic->ops->passing : nic->ops->route)(nic->link, address, port, peer);
}

/* Keeps a copy of a frame that must not be lost for want of room; via_drive sends it. Where more of them wait than any
 * peer needs that takes its frames, it is dropped, and counted. */
void via_defer(struct via_nic *nic, struct link_peer *peer, const struct link_frame *f);
void via_send_deferred(struct via_nic *nic);
void via_drop_deferred(struct via_nic *nic, const struct link_peer *peer);
/* The pieces of local memory that hold bytes [offset, offset+len) of the work's message. Returns their number, or -1 if
 * memory is not (or no longer) granted. */
int via_gather(struct via_vi *vi, const struct via_work *w, uint32_t offset, uint32_t len, struct iovec *iov, int max);

/* Sends frames from psn on again, at most n, as far as they are of one message and one batch. Returns how many the link
 * took; -1: the message's memory is gone, and the connection with it. *hint is where on the send queue to begin to
 * look: nothing before it matters. */
int via_send_again(struct via_vi *vi, uint32_t psn, uint32_t n, uint8_t flags, uint32_t *hint);
/* A control frame with a block of len bytes. What link send returns; not put off if that is not 1. */
int via_send_block(struct via_vi *vi, int kind, uint8_t flags, uint32_t psn, uint32_t immediate, const void *block,
                   size_t len);
/* What all frames for the VI's peer have; an acknowledgement rides along. */
void via_address_frame(struct via_vi *vi, struct link_frame *f, int kind, uint32_t psn);

void via_acknowledged(struct via_vi *vi, uint32_t ack);
void via_complete_sends(struct via_vi *vi);
void via_negative(struct via_vi *vi, uint32_t from);
void via_remote_error(struct via_vi *vi, uint32_t psn, uint32_t status);
void via_owe_ack(struct via_vi *vi, int urgent);
void via_flush_acks(struct via_nic *nic, int all);
void via_reliable_timers(struct via_nic *nic);
/* The oldest frames in flight begin to wait from now on. */
void via_arm_rto(struct via_vi *vi);
void via_shrink_window(struct via_vi *vi, uint32_t to);
/* Frames before psn need not be handed to the link (again). */
void via_skip_to(struct via_vi *vi, uint32_t psn);
/* The connection is over: what it kept of frames goes. */
void via_forget_frames(struct via_vi *vi);

/* Nobody answers any more. */
void via_give_up(struct via_vi *vi);

/* ---------------------------------------------------------------- read.c: RDMA reads */

/* Makes room for the VI's reads; 0 if memory is exhausted. Reset: nothing is outstanding any more. */
int via_reads_ready(struct via_vi *vi);
void via_reads_reset(struct via_vi *vi);
void via_reads_free(struct via_vi *vi);
/* Begins the read at index on the send queue. 1 if it is complete already; 0: go on, from the time that it is behind
 * q->next. */
int via_read_begin(struct via_vi *vi, struct via_work *w, uint32_t index);
/* Asks and answers as far as possible; vi->reads is not NULL. */
void via_reads_go_on(struct via_vi *vi);
/* How many have begun and are not complete. */
uint32_t via_reads_open(const struct via_vi *vi);
uint64_t via_reads_deadline(const struct via_vi *vi);
void via_read_time_out(struct via_vi *vi);
void via_read_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);
void via_read_refused(struct via_vi *vi, uint32_t number);

/* ---------------------------------------------------------------- early.c: the receiver's side of selective repeat */

/* Keeps a frame that came before its turn. 1 kept, 0 dropped (counted). */
int via_early_keep(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);
/* The kept frame whose turn it is, NULL if that one has not come; done when it has been taken. */
const uint8_t *via_early_next(struct via_vi *vi);
void via_early_done(struct via_vi *vi, uint32_t psn);
/* Forgets all frames kept; gives the memory back. */
void via_early_drop(struct via_vi *vi);
/* How many frames are missing before the furthest one that has come. */
uint32_t via_early_missing(const struct via_vi *vi);
/* Memory that was not needed for a while goes back to the system; at the end, all of it. */
void via_early_trim(struct via_nic *nic);
void via_early_fini(struct via_nic *nic);
/* The peer shall hear at the end of this look what has arrived. */
void via_owe_answer(struct via_vi *vi);
void via_send_answers(struct via_nic *nic);
/* An acknowledgement, which names the gaps if there are any; owed if the link is full. */
void via_send_ack(struct via_vi *vi);

/* ---------------------------------------------------------------- repeat.c: the sender's side of it */

/* The peer names what is missing behind `ack`: a list of struct wire_run. */
void via_repeat(struct via_vi *vi, uint32_t ack, const uint8_t *list, size_t len);
/* What was sent again is to be thought lost, too. */
void via_repeat_forget(struct via_vi *vi);

/* ---------------------------------------------------------------- rtt.c */

void via_rtt_reset(struct via_vi *vi);
/* A frame goes out for the first time: is it to be timed? tx_psn is the number after it. */
void via_rtt_begin(struct via_vi *vi);
/* All before psn has arrived at the latest now. */
void via_rtt_arrived(struct via_vi *vi, uint32_t psn);
void via_rtt_sample(struct via_vi *vi, uint64_t ns);
/* The time-outs that follow from what was measured: to give up waiting, and to ask with the last frame. */
uint64_t via_rtt_timeout(const struct via_vi *vi);
uint64_t via_rtt_probe(const struct via_vi *vi);

/* ---------------------------------------------------------------- fault.c */

VIP_RETURN via_faults_from_environment(struct via_nic *nic);
/* Copies faults field by field that the program knows and checks them. */
VIP_RETURN via_settle_faults(const viakit_faults *from, viakit_faults *to);
/* Is to->size, as the program set it, that of a struct? Else VIP_INVALID_PARAMETER, explained with the function's
 * name. */
VIP_RETURN via_check_faults_size(const char *function, const viakit_faults *to);
/* As much as there is room for by to->size, which becomes what was written. */
void via_hand_out_faults(const viakit_faults *from, viakit_faults *to);

/* What nic->whole_message is to be. While somebody looks at every frame that arrives, no frame matches: the short way
 * is closed. */
static inline uint64_t via_whole_message(const struct via_nic *nic)
{
    if (nic->deaf || nic->tap)
        return ~0ull;
    return wire_word_destination(wire_version_kind(WIRE_SEND), WIRE_FLAG_FIRST | WIRE_FLAG_LAST, 0, nic->limits.port,
                                 0);
}

/* ---------------------------------------------------------------- conn.c */

void via_conn_deliver(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const struct wire_header *h,
                      const uint8_t *payload, size_t len);
void via_conn_timers(struct via_nic *nic);
void via_conn_fini(struct via_nic *nic);
void via_conn_forget_vi(struct via_vi *vi);
void via_disconnect(struct via_vi *vi);

#endif
