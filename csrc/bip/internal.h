/*
 * bip/internal.h - inside BIP. A consumer of VIPL: it uses no internals of the provider.
 *
 *      open.c      options, cards, closing; csrc/peers has the NICs, their buffers and the connections
 *      progress.c  arriving messages, completed sends, waiting
 *      send.c      both kinds of sends, and the pipeline
 *      recv.c      tags, receives, matching
 *      model.c     packet sizes (public: model.h)
 *      classic.c   bip.h for C programs; launch.c connects these programs to their job
 *
 * Every pair of ranks has one VI, at reliable delivery unless the job is `unreliable` (progress.c). Its receive queue
 * is BIP's queue for short messages: n_slots buffers of the size of the longest short message. A message stays in its
 * buffer until the program receives it. The sender has a credit for each buffer and stops without one. So no message
 * is dropped, and memory does not grow with messages.
 *
 *      SHORT   head, data                   costs a credit, which returns when the program has received the message
 *      REQUEST head with the length         a long message, costs a credit until its receive has been found
 *      GO      head, address, handle        here is the buffer
 *              RDMA writes, the last one with immediate data (checksum, or the low bits of the length)
 *      REFUSE  head, tag = the code         this message cannot be received, with the reason
 *      CREDIT  head                         room in the queue that no other message has reported
 *      BYE     head, seq = long messages    the sender's last; number of long messages it received
 *      BEAT    head, seq = long messages    unreliable jobs: the numbers of what the sender has sent
 *
 * A rank has one outstanding send. So at most one GO or REFUSE is in flight to it from each peer, one BYE, and few
 * CREDITs (each reports half a queue). RESERVED buffers beyond the credits always suffice for these, and BEATS more for
 * BEATs: a rank sends no more of them before it has received a head from the peer.
 */
#ifndef BIP_INTERNAL_H
#define BIP_INTERNAL_H

#include <stdbool.h>

#include "base/atomic.h"
#include "base/wait.h"
#include "bip/job.h"
#include "peers/peers.h"

#define RESERVED 8
#define BEATS 8
#define SEND_SLOTS 64 /* send buffers of a NIC, for all its ranks */
#define KEPT_SLOTS 4  /* send slots kept free for messages that must always go out */
#define PACKETS 64    /* packets of the pipeline that may be in flight */
#define REGIONS 64    /* registered buffers in the cache of a NIC */
#define BUCKETS 256   /* of the hash table of tags */

enum { KIND_SHORT = 1, KIND_REQUEST, KIND_GO, KIND_REFUSE, KIND_CREDIT, KIND_BYE, KIND_BEAT };

/* In the machine's byte order: all ranks of a job have the same, which their cards check. */
typedef struct {
    uint8_t kind;
    uint8_t credits; /* new room in the sender's queue for its peer's messages, not reported before */
    uint16_t number; /* of the heads from this rank to the peer, without BEATs. BEAT: the next one's. */
    /* SHORT, REQUEST: number among the messages from this rank to the peer. BYE: long messages received. BEAT: sent. */
    uint32_t seq;
    int32_t tag;
    uint32_t crc; /* SHORT: of the data, if checksums are enabled */
    uint64_t len; /* SHORT, REQUEST: bytes of the message */
} bip_head;

typedef struct {
    bip_head head;
    uint64_t address;
    uint32_t handle, pad;
} bip_go;

_Static_assert(sizeof(bip_head) == 24, "a head is part of the protocol between ranks");

struct bip_peer;

/* A message without a receive yet: in a slot, or copied into its tag's own queue. */
typedef struct bip_arrival {
    struct bip_arrival *next;
    struct bip_peer *peer;
    bip_head head;
    char *data;              /* head.len bytes of a short message; a REQUEST has none here */
    struct peers_slot *slot; /* NULL: in the tag's own queue */
} bip_arrival;

/* A receive is posted, or held by the program (`arrival`). A send or packet is free, or posted and counted in its
 * peer's `n_outstanding`. Packets are the slots without a buffer. */
typedef struct bip_slot {
    struct peers_slot at;
    bip_arrival arrival;
} __attribute__((aligned(64))) bip_slot;

typedef struct bip_recv bip_recv;

/* Another rank of the job, or this rank itself, which has no port (pair.port is NULL). `pair` is first, because
 * csrc/peers allocates these structs and finds them by their pair. */
typedef struct bip_peer {
    struct peers_pair pair;
    int rank;
    size_t small;                      /* limit of short messages to that rank */
    uint32_t n_slots;                  /* of its queue */
    uint32_t send_seq, recv_seq;       /* numbers of the next SHORT or REQUEST in each direction */
    bip_recv *incoming;                /* the receive into whose buffer it is writing */
    uint32_t long_sent;                /* long messages sent to it, the current one included */
    uint32_t long_received;            /* from it, complete */
    uint16_t sent_number, recv_number; /* of the next head in each direction */
    uint8_t n_beats;                   /* BEATs sent since the last head from it */
    /* Its REQUEST has arrived, and neither its data nor a REFUSE has ended it. Until then it sends no other. */
    bool requesting;
    int refusal;            /* Code of a REFUSE that found no buffer. 0: none. */
    bool bye_arrived, lost; /* It has sent BYE. The connection is gone. */
} bip_peer;

/* QUEUED has no credit or buffer yet, REQUESTED waits for GO or REFUSE, MOVING has packets in flight (picture in
 * send.c). */
typedef enum { SEND_IDLE, SEND_QUEUED, SEND_REQUESTED, SEND_MOVING } bip_send_state;

/* The one send of the job. */
typedef struct {
    bip_send_state state;
    bool noted; /* its end is reported to the layer, with this cookie: */
    uint64_t cookie;
    int id;   /* of the current or last send */
    int code; /* its result */
    bip_peer *peer;
    int tag;
    const char *buf;                  /* the caller's, until the send has ended */
    size_t len, packet, posted, done; /* bytes: in all, in a packet, with the NIC, acknowledged (send.c) */
    uint32_t under_way;               /* packets posted and not acknowledged */
    uint32_t crc;
    uint64_t address;
    uint32_t handle;
    struct peers_region *region;
} bip_send_request;

/* The record of a tag in use (picture in recv.c). It exists while any of `posted`, `first`, `held` or `n_own` is set.
 */
typedef struct bip_tag {
    struct bip_tag *next;
    int tag;
    bip_recv *posted;
    bip_arrival *first, *last;
    bip_arrival *held;            /* message that getmsg has returned */
    bip_arrival *own_free;        /* the tag's own queue */
    char **own_memory;            /* its allocations */
    uint32_t n_own, n_own_memory; /* places of the own queue; allocations */
    size_t own_len;               /* bytes of data in each place */
} bip_tag;

/* WANTS_GO has matched a long message and needs a buffer to send GO (picture in recv.c). From MOVING on, the peer
 * writes into the receive's buffer: it can only end with the data, or with the peer. */
typedef enum { RECV_FREE, RECV_POSTED, RECV_WANTS_GO, RECV_MOVING, RECV_DONE } bip_recv_state;

/* A receive. Its id is generation << 16 | index, so that an old id finds nothing. */
struct bip_recv {
    bip_recv_state state;
    int index;
    uint32_t generation; /* 13 bits (end_recv in recv.c) */
    int code;
    bip_tag *tag;
    char *buf;
    size_t max_len, len; /* room in buf; bytes of the message that has matched */
    bip_peer *peer;
    struct peers_region *region;
    bool noted; /* its end is reported to the layer, with this cookie: */
    uint64_t cookie;
    bip_recv *next; /* next free receive, or next that waits to send GO */
};

/* One rank's view of its job. Used by one thread at a time; there are no locks. */
struct bip_job {
    struct peers net;
    bip_options options;
    bip_layer layer; /* if options.layer */
    uint8_t secret[BIP_SECRET_LEN];
    bip_table tables[2]; /* of each NIC's link */
    bip_peer *peers;     /* those of `net` */
    bip_send_request send;
    uint64_t n_sends; /* sends started, except a layer's short messages: the source of ids (send.c) */
    bip_tag *buckets[BUCKETS], *free_tags;
    bip_recv **recvs, *free_recvs, *wants_go;
    int n_recvs;        /* records in recvs, free ones included */
    int n_left;         /* other ranks that have left or died */
    int dead;           /* a rank that died; -1: none */
    int dead_code;      /* BIP_ERR_PEER, or DAMAGED */
    uint64_t next_beat; /* unreliable: vk_now() */
    bool control_due;   /* a CREDIT or REFUSE found no buffer */
    size_t memory;      /* bytes of queues and buffers (bip_memory) */
    bool connected;
    char name[16];
    uint64_t host; /* hash of the text that names this machine */
    uint64_t counters[BIP_N_COUNTERS];
    char error[BIP_ERROR_LEN];
};

#define BIP_COUNT(job, name, n) ((job)->counters[BIP_COUNTER_##name] += (uint64_t)(n))

/* Sets the error text and returns the code. */
int bip_fail(bip_job *job, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

static inline bip_job *bip_job_of(const bip_peer *peer)
{
    return peer->pair.port->owner;
}

static inline bip_peer *bip_peer_of(const struct peers_slot *slot)
{
    return (bip_peer *)(void *)slot->pair;
}

/* open.c: returns a registration of the buffer that also permits writes by peers, for peers_cache_put. NULL:
 * registering failed, or too many are in use. */
struct peers_region *bip_region_get(bip_peer *peer, const void *buf, size_t len);

/* progress.c */
struct peers_slot *bip_take_send(bip_peer *peer, uint32_t keep); /* NULL: all are in use */
/* sends the contents of the slot's buffer, with credits */
int bip_post_head(bip_peer *peer, struct peers_slot *slot, size_t len);
int bip_post_send(bip_peer *peer, struct peers_slot *slot);
int bip_control(bip_peer *peer, int kind, int tag); /* REFUSE, CREDIT, BYE: 1 if sent, 0: no buffer now */
void bip_free_slot(struct peers_slot *slot);        /* the program has received a message from the queue */

/* A wait (base/wait.h): call begin once, then step after every check that found the condition false. step polls once,
 * and returns 0 to continue, else an error. */
typedef struct vk_wait bip_wait;
void bip_wait_begin(const bip_job *job, bip_wait *wait, int timeout_ms);
int bip_wait_step(bip_job *job, bip_wait *wait);

/* send.c */
void bip_send_step(bip_job *job); /* makes all possible progress with the send */
void bip_send_go(bip_peer *peer, const bip_go *go);
void bip_send_end(bip_job *job, int code);
void bip_packet_sent(struct peers_slot *slot, bool failed);

/* recv.c */
void bip_arrived(bip_arrival *arrival);
void bip_recv_step(bip_job *job);
void bip_long_arrived(bip_peer *peer, uint32_t immediate);
void bip_recv_end(bip_job *job, bip_recv *recv, int code); /* a noted receive is gone afterwards */
void bip_tags_fini(bip_job *job);

#endif
