/*
 * work.h - descriptors, and the queues of posted descriptors.
 *
 * Only the NIC's owner (own.h) touches these fields, unless a contract states otherwise.
 */
#ifndef VIAKIT_VIA_WORK_H
#define VIAKIT_VIA_WORK_H

#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "via/limits.h"
#include "vipl.h"

/* VIPL's descriptor layout. Programs were compiled with it: no field may move. */
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

/* Segment i of a descriptor: after the control segment, also beyond DS[2]. */
static inline const VIP_DESCRIPTOR_SEGMENT *via_segment(const VIP_DESCRIPTOR *d, uint32_t i)
{
    return (const VIP_DESCRIPTOR_SEGMENT *)((const char *)d + sizeof(VIP_CONTROL_SEGMENT)) + i;
}

/* A posted descriptor. Most fields are copies, because the program could change its descriptor meanwhile. The psn
 * fields are valid once transmission has begun. */
struct via_work {
    VIP_DESCRIPTOR *descriptor;
    void *data;   /* is_short: address of the one segment, ... */
    uint32_t len; /* message length in bytes */
    union {
        uint32_t room;    /* a receive: the sum of the segments */
        uint32_t arrived; /* an RDMA read: bytes that have arrived */
    };
    union {
        uint32_t epoch;     /* ... and nic->region_epoch when it was found granted */
        uint32_t requested; /* an RDMA read: bytes requested, from the beginning on */
    };
    uint32_t error;     /* status bits found when posted: the descriptor completes with them in its turn */
    uint32_t first_psn; /* of its first frame */
    uint32_t n_frames;
    uint16_t control, seg_count;
    uint8_t is_short;      /* one segment: transmit_short() may send it, whole_message() may fill it */
    uint8_t how;           /* VIA_HOW_* */
    uint8_t started, sent; /* first / last frame handed to the link */
    uint8_t wait_ack;      /* completes on acknowledgement, not on sending */
    uint8_t all_requested; /* an RDMA read: all of it has been requested */
    uint32_t mem;          /* a receive: handle of the memory that holds the descriptor itself */
};
_Static_assert(sizeof(struct via_work) <= 64, "an entry is a cache line");

/* How a work is carried out. FRAMES: its bytes in frames. REFERENCE: a frame names memory, which the receiver copies
 * (shm). PLACED: a direct copy into the peer's memory (shm). READ: requests of an RDMA read. CARD: by the link's
 * card. */
enum { VIA_HOW_FRAMES = 0, VIA_HOW_REFERENCE = 1, VIA_HOW_PLACED = 2, VIA_HOW_READ = 3, VIA_HOW_CARD = 4 };

/* Free-running: reaped <= done <= next <= posted. Entries before done are complete and wait for a Done call. On the
 * send queue, next is the first entry that was not completely handed to the link. */
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

/* The result of VipCQDone: the VI, and whether the completion is on its receive queue. */
struct via_cq_entry {
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
};

struct via_cq {
    struct vk_object object;
    struct via_nic *nic;
    struct via_cq_entry *entries;
    uint32_t capacity, mask; /* as requested; array size - 1 */
    uint32_t head, tail;     /* free-running: removed, added */
    uint32_t limit;          /* entries that via_cq_push adds by its fast path: capacity, or 0 if there are tags */
    uint32_t n_queues;       /* attached work queues */
    struct via_tag *tags;    /* events to signal (extension.c) */
    struct via_cq *next, *prev;
};

#endif
