/*
 * Declarations shared by the files of the link `verbs`. Reading order: verbs.c (the table of operations, how queue
 * pairs find each other), verbs_device.c (devices, ports, addresses), verbs_queue.c (the queue pair of datagrams: the
 * path of frames). verbs_rdma.c and verbs_pair.c: RDMA by the card, and the connected queue pairs and keys for it.
 * verbs_library.c loads libibverbs, and verbs_abi.h declares its structs.
 */
#ifndef VIAKIT_VERBS_H
#define VIAKIT_VERBS_H

#include "link/udp.h"
#include "link/verbs_abi.h"

#define VERBS_STATION 34998   /* the common port of the stations, one above udp's */
#define VERBS_NAME 64         /* bytes of a device's name (the kernel's IB_DEVICE_NAME_MAX) */
#define VERBS_TAKEN 32        /* the most completions that are taken from a queue with one call */
#define VERBS_BATCH 16        /* the most frames that one doorbell announces */
#define VERBS_SENDS 256u      /* slots for frames that are on their way to the card, a power of two */
#define VERBS_SIGNAL_EVERY 32 /* every so many sends one reports its completion, and thereby that of the others */
#define VERBS_SMALL 256u      /* payloads up to this size go by send_short */

#define VERBS_KEYS 256u          /* remembered keys of a peer's memory, a power of two */
#define VERBS_OPERATIONS 128u    /* RDMA operations of a NIC that are under way */
#define VERBS_REQUESTS 32u       /* the most work requests of one operation ... */
#define VERBS_PAIR_REQUESTS 128u /* ... of one connected queue pair ... */
#define VERBS_ALL_REQUESTS 512u  /* ... and of all of a NIC, which are under way */
#define VERBS_RDMA (1ull << 63)  /* ids of completions with this bit belong to RDMA, others to receive slots */

/* A call: a message between two NICs of this link, by the link udp. */
struct verbs_call {
    uint8_t version_kind, what;
    uint16_t len; /* 0: nothing behind these 32 bytes */
    uint16_t vi;
    uint16_t rights;
    uint64_t nonce; /* of a request; its reply repeats it */
    uint32_t number, key;
    uint64_t value;
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct verbs_call) == sizeof(struct wire_header), "a call is cut like any frame");

/* The kinds of calls. REPLY answers QUERY: number and key of the queue pair of datagrams. The others are described in
 * verbs_pair.c. */
enum {
    VERBS_QUERY = UDP_CALL_BEYOND,
    VERBS_REPLY,
    VERBS_JOIN,
    VERBS_JOINED,
    VERBS_KEY,
    VERBS_GRANT,
};

/* Memory that is registered with the card. */
struct link_memory {
    struct ib_mr *mr; /* NULL: the card has refused it */
    uint32_t users;   /* operations under way that use it */
};

/* A query that is repeated until its reply arrives. */
struct verbs_query {
    uint64_t nonce;      /* 0: not sent, or the reply has arrived */
    uint64_t queried_at; /* ns */
    uint32_t n;          /* times sent since the last reply */
};

/* The key of a peer's memory, for one of its VIs. Valid if it is known. */
struct verbs_rkey {
    uint32_t handle, vi_key;
    uint16_t vi;
    uint8_t known;
    uint8_t rights; /* 0: refused, ... */
    uint64_t until; /* ... and to be queried again from this time on, ns */
    uint64_t address, len;
    uint32_t rkey;
    struct verbs_query query;
};

/* The two connected queue pairs that a NIC has with a peer: `out` for its own operations, `in` for the peer's. */
struct verbs_pair {
    struct ib_qp *out, *in;
    int joined;             /* `out` is connected */
    uint32_t psn;           /* of `out` */
    uint32_t n_requests;    /* of `out`, under way */
    uint64_t in_nonce;      /* of the call that `in` was made for */
    uint64_t refused_until; /* ns: frames serve until then */
    struct verbs_query query;
    struct verbs_rkey keys[VERBS_KEYS];
};

/* An RDMA operation under way. */
struct verbs_operation {
    struct link_peer *peer; /* NULL: the entry is free */
    uint64_t id;            /* VERBS_RDMA | uses of the entry << 16 | its index */
    void *owner;
    uint32_t index, n_requests;
    int n_used;
    struct link_memory *used[LINK_CARD_PIECES];
};

/* The way to a peer's queue pair. It hangs at the peer of the link udp. */
struct verbs_route {
    struct verbs_pair *pair; /* NULL: no RDMA yet */
    struct ib_ah *ah;        /* NULL: the queue pair is not known yet */
    uint32_t qpn, qkey;
    uint64_t nonce;      /* of the last query to the peer */
    uint64_t queried_at; /* ns */
    uint32_t n_queries;  /* queries since the last reply */
    int held;            /* ACCEPT or CONFIRM was sent, and no reply to a later query has arrived: no data yet */
};

/* A port of a device, and the address under which hosts reach it. */
struct verbs_port {
    char device[VERBS_NAME];
    char interface[IFNAMSIZ];
    unsigned port;
    int gid_index;
    union ib_gid gid;
};

/* One NIC's end. `client` is first: struct link_base. The link udp below finds peers and connects. Only the owner of
 * the NIC accesses this struct. The card writes the receive slots, and reads the send slots.
 *
 *   memory  | recv slot 0 | recv slot 1 | ... | send slot 0 | send slot 1 | ...
 *
 *   recv slot  | GRH, 40 bytes | wire header | payload |      send slot  | wire header | payload |
 *
 * Invariant: sends done <= i < sent are on their way, each in the slot i mod VERBS_SENDS.
 *
 * Objects of the library are created in the order context, pd, mr, channel, recv_cq, send_cq, qp, and destroyed in the
 * reverse order as far as they refer to each other. NULL: not created yet. Sizes are in bytes; n_recvs, n_taken, n_back
 * and n_requests count slots, completions, slots and work requests. */
struct verbs {
    struct link_client *client;
    struct link *udp;
    const struct ib_library *lib;
    struct verbs_port at;
    struct ib_context *context;
    struct ib_pd *pd;
    struct ib_channel *channel;
    struct ib_cq *recv_cq, *send_cq;
    struct ib_qp *qp;
    struct ib_mr *mr;
    uint8_t *memory;
    size_t memory_len;
    uint32_t mtu, n_recvs, slot_len, inline_most;
    uint32_t qkey;
    uint32_t sent, done;
    struct ib_wc taken[VERBS_TAKEN]; /* taken[at_taken .. n_taken): arrived, not delivered yet */
    int n_taken, at_taken;
    struct ib_recv_wr recvs[VERBS_BATCH]; /* read slots that go back to the card with the next doorbell */
    struct ib_sge recv_pieces[VERBS_BATCH];
    int n_back;
    uint32_t max_message; /* bytes of one work request */
    struct verbs_operation operations[VERBS_OPERATIONS];
    uint32_t n_requests;    /* of RDMA, under way */
    uint64_t udp_polled_at; /* ns */
    int udp_ready;          /* a socket of the link below ended the sleep */
    int crc_always;         /* CRC32C over all bytes, beside the card's checksum */
    int failed;             /* the queue pair is in its error state: 0, or -errno */
};

static inline struct verbs *verbs_of(struct link *link)
{
    return (struct verbs *)(void *)link;
}

/* ---- verbs.c */

/* Sends a call to a peer. */
void verbs_call_peer(struct verbs *v, struct link_peer *peer, struct verbs_call *call);
/* Returns the route to the peer's queue pair, or NULL if it is not known yet. The query is then repeated, and the NIC
 * is polled again. *lost is set if the peer has not replied to many queries: a frame to it counts as lost. */
const struct verbs_route *verbs_route_to(struct verbs *v, struct link_peer *peer, int *lost);
/* Returns 64 random bits, not 0. */
uint64_t verbs_nonce(void);
/* Describes the way to a peer's host for the card. */
struct ib_ah_attr verbs_way_to(const struct verbs *v, const union udp_name *name);

/* ---- verbs_library.c */

/* Returns libibverbs, loaded at the first call and never unloaded. NULL if it cannot be loaded, explained. Any
 * thread. */
const struct ib_library *verbs_library(void);

/* ---- verbs_device.c */

/* Parses "DEVICE", "INTERFACE", each with an optional ":PORT", and finds the port's address. Opens the device. Returns
 * 0 or -errno, explained. On success `at`, context, and the MTU of the port are set. */
int verbs_open_device(struct verbs *v, const char *text);
void verbs_close_device(struct verbs *v);

/* ---- verbs_queue.c */

/* Creates the queue pair and its memory, with at least n_recvs receive slots, and posts all of them. Returns 0 or
 * -errno, explained. verbs_close_queue() also releases what an incomplete opening has left. */
int verbs_open_queue(struct verbs *v, uint32_t n_recvs);
void verbs_close_queue(struct verbs *v);

/* Sends frames to a queue pair, in order. Returns the number of accepted frames, or -errno. */
int verbs_post(struct verbs *v, const struct verbs_route *route, struct link_frame *frames, int n);
int verbs_post_short(struct verbs *v, const struct verbs_route *route, const uint64_t header[WIRE_WORDS],
                     const void *payload, size_t len);
/* Delivers at most budget frames. Returns their number. */
int verbs_take(struct verbs *v, int budget);
/* Requests a notification of the next frame. Returns 1 if frames are there already. */
int verbs_arm_queue(struct verbs *v);
/* Reads the notifications that have arrived. */
void verbs_clear_channel(struct verbs *v);

/* ---- verbs_rdma.c */

extern const struct link_card verbs_card;
/* Handles a completion whose id has VERBS_RDMA. */
void verbs_rdma_completed(struct verbs *v, const struct ib_wc *wc);
/* Ends the operations with a peer, with errors. The queue pair `out` is destroyed, and made anew for the next one. */
void verbs_rdma_end(struct verbs *v, struct link_peer *peer);

/* ---- verbs_pair.c */

/* Returns 0 and sets *key if the queue pair `out` is connected and the key of the target's memory is known, for the
 * rights that the operation needs. Returns -EAGAIN if a reply of the peer is awaited, and -EOPNOTSUPP if frames have
 * to serve. */
int verbs_pair_ready(struct verbs *v, struct link_peer *peer, const struct link_rdma *rdma,
                     const struct verbs_rkey **key);
/* Handles a call from JOIN on. */
void verbs_pair_called(struct verbs *v, struct link_peer *peer, const struct verbs_call *call);
/* Destroys `out`. Its operations must have ended. */
void verbs_pair_leave(struct verbs *v, struct verbs_pair *pair);
/* Destroys both queue pairs and forgets the keys; the operations must have ended. */
void verbs_pair_free(struct verbs *v, struct verbs_route *route);

#endif
