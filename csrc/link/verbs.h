/*
 * Declarations shared by the files of the link `verbs`. Reading order: verbs.c (the table of operations, how queue
 * pairs find each other), verbs_device.c (devices, ports, addresses), verbs_queue.c (the queue pair: the data path).
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

/* The way to a peer's queue pair. It hangs at the peer of the link udp. */
struct verbs_route {
    struct ib_ah *ah; /* NULL: the queue pair is not known yet */
    uint32_t qpn, qkey;
    uint64_t nonce;      /* of the last query to the peer */
    uint64_t queried_at; /* ns */
    uint32_t n_queries;  /* queries since the last reply */
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
 * Invariant: sends done <= i < sent are on their way, each in the slot i mod VERBS_SENDS. */
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
    uint64_t udp_polled_at; /* ns */
    int udp_ready;          /* a socket of the link below ended the sleep */
    int crc_always;         /* CRC32C over all bytes, beside the card's checksum */
    int failed;             /* the queue pair is in its error state: 0, or -errno */
};

static inline struct verbs *verbs_of(struct link *link)
{
    return (struct verbs *)(void *)link;
}

/* ---- verbs_library.c */

/* Returns libibverbs, loaded at the first call and never unloaded. NULL if it cannot be loaded, explained. Any thread. */
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

#endif
