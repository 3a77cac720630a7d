/*
 * snapshot.h - what of a NIC is copied for a snapshot (snapshot.c), to be told in words afterwards
 * (snapshot_text.c).
 *
 * A snapshot must not disturb: what it holds the NIC for is a copy of plain words into memory that was allocated
 * before. The text is written when the NIC has long gone on.
 */
#ifndef VIAKIT_SNAPSHOT_H
#define VIAKIT_SNAPSHOT_H

#include "internal.h"

#define SNAP_DESCRIPTORS 16 /* of a queue, the oldest; the rest is only counted */

struct snap_work {
    const void *descriptor;
    uint32_t len, error;
    uint16_t control, seg_count;
    uint8_t done, started, sent;
};

struct snap_queue {
    const void *cq;            /* handle */
    uint32_t n_done, n_posted; /* complete but not taken back; not complete */
    uint32_t n_listed;
    struct snap_work work[SNAP_DESCRIPTORS];
};

struct snap_vi {
    const void *handle;
    int state;
    VIP_VI_ATTRIBUTES attributes;
    uint32_t number, ptag;
    struct snap_queue send, recv;
    int has_peer, confirmed, lossless;
    uint8_t peer_address[6];
    uint16_t peer_port, peer_vi;
    uint32_t chunk;
    uint32_t next_psn, una_psn, expected_psn, acked_psn; /* the peer's copies of the last two are its own affair */
    uint32_t window, n_in_flight, retries;
    uint32_t n_reads;
    uint64_t rto, srtt, rttvar;
    uint64_t counters[VIAKIT_N_COUNTERS];
};

struct snap_cq {
    const void *handle;
    uint32_t capacity, n_entries, n_queues;
};

struct snap_region {
    uint64_t address, len;
    uint32_t handle, ptag, rights, users, pinned;
};

struct snap_ptag {
    uint32_t number, n_users;
};

/* A connection in the making. */
struct snap_conn {
    const char *kind; /* "waiting", "requesting", "offered", ... */
    const void *vi;   /* handle, or NULL */
    int has_address;
    uint8_t address[6];
    uint16_t port;
    uint32_t len; /* of the discriminator */
    uint8_t discriminator[WIRE_MAX_DISCRIMINATOR];
};

struct snapshot {
    viakit_nic_info info;
    const void *handle;
    int pid;
    uint64_t time_ns;
    uint32_t n_waiting, n_events;
    int sleeper; /* as in struct via_nic */
    uint64_t counters[VIAKIT_N_COUNTERS];
    /* room for, and how many there are */
    uint32_t room_vis, room_cqs, room_regions, room_ptags, room_conns;
    uint32_t n_vis, n_cqs, n_regions, n_ptags, n_conns;
    struct snap_vi *vis;
    struct snap_cq *cqs;
    struct snap_region *regions;
    struct snap_ptag *ptags;
    struct snap_conn *conns;
};

/* Copies the NIC of this handle. NULL: there is no such NIC, or memory is exhausted, explained with *code. */
struct snapshot *via_snapshot_take(VIP_NIC_HANDLE handle, VIP_RETURN *code);
void via_snapshot_free(struct snapshot *s);

/* The text; returns its length, whether it fitted or not, and ends it with a zero if size is not 0. */
size_t via_snapshot_text(const struct snapshot *s, char *text, size_t size);

/* ---------------------------------------------------------------- inspect.c: answering `viakit inspect` */

/* The NIC is ready to be looked at; the process answers questions from now on. */
void via_inspect_begin(struct via_nic *nic);
/* It was closed; with the last one the answering ends. Called without ownership of any NIC. */
void via_inspect_end(void);

#endif
