/*
 * The tap: what it consists of, and the hooks that the provider calls.
 *
 *   provider --- ops table of the tap --- link          tap.c: records into the NIC's ring, under its ownership
 *                     |
 *                   ring ---> writer thread ---> file   tap_file.c: pcapng; one thread and one mutex per process
 *
 * A NIC without a tap has nic->tap == NULL and its link's own table in nic->ops: sending and receiving cost nothing
 * more, and each hook of a descriptor's life is one test that is not taken (VIA_TAP).
 */
#ifndef VIAKIT_TAP_H
#define VIAKIT_TAP_H

#include "../base/ring.h"
#include "internal.h"

struct tap_file;

struct via_tap {
    struct via_nic *nic;
    struct vk_ring ring; /* producer: the NIC's owner; consumer: whoever holds the mutex of tap_file.c */
    struct link_ops ops; /* the link's, with the sending ones replaced */
    const struct link_ops *real;
    uint32_t snap_len;
    int events, frames;
    const char *remark; /* for the frames that are sent now */
    uint64_t n_sent, n_received, n_events;

    /* the consumer's */
    struct via_tap *next; /* of the same file */
    struct tap_file *file;
    uint32_t frame_interface, event_interface;
    uint32_t lost_told;
    uint64_t file_bytes; /* bound of the file; 0: none */
    uint64_t skipped;    /* records beyond it */
};

/* Records in the ring. */
enum { TAP_FRAME = 1, TAP_EVENT = 2 };

struct tap_frame {
    struct vk_record head;
    uint64_t time;          /* ns, monotonic */
    const char *note;       /* why it was dropped, or NULL; a text that lives as long as the library */
    uint32_t len;           /* of the frame, wire header included ... */
    uint32_t captured;      /* ... and how much of it follows */
    uint8_t to[6], from[6]; /* stations */
    uint32_t out;
    uint32_t lost; /* records of the ring so far, modulo 2^32 */
    uint8_t bytes[];
};

struct tap_event {
    struct vk_record head;
    uint64_t time;
    uint64_t lost;
    viakit_event event;
};

/* ---------------------------------------------------------------- hooks: tap.c */

/* VIAKIT_NO_TAPS leaves them out, to measure what the tests cost (tests/c/path_cost.c). */
#ifdef VIAKIT_NO_TAPS
#define VIA_TAPPED(nic) 0
#else
#define VIA_TAPPED(nic) vk_unlikely((nic)->tap != NULL)
#endif
#define VIA_TAP(nic, call)   \
    do {                     \
        if (VIA_TAPPED(nic)) \
            call;            \
    } while (0)

void via_tap_posted(struct via_vi *vi, const struct via_queue *q, const VIP_DESCRIPTOR *d);
void via_tap_doorbell(struct via_vi *vi, const struct via_work *w);
void via_tap_placed(struct via_vi *vi, uint32_t psn, uint32_t len, int into_receive);
void via_tap_acknowledged(struct via_vi *vi, uint32_t ack);
void via_tap_completed(struct via_vi *vi, const struct via_queue *q, uint32_t status);
void via_tap_reaped(const struct via_queue *q, const VIP_DESCRIPTOR *d, struct via_vi *vi);

/* A frame arrived and is about to be taken: counters as they were, to tell afterwards why it was dropped. */
struct via_tap_arrival {
    struct tap_frame *frame;
    const struct via_vi *vi;
    uint64_t nic_counts[VIAKIT_N_COUNTERS], vi_counts[VIAKIT_N_COUNTERS];
};
void via_tap_arrived(struct via_nic *nic, struct via_tap_arrival *a, const uint8_t from[6], const void *header,
                     size_t header_len, const void *payload, size_t len);
void via_tap_taken(struct via_nic *nic, const struct via_tap_arrival *a);

/* Called by VipOpenNic: what VIAKIT_TAP asks for. By VipCloseNic, as the only user of the NIC. */
VIP_RETURN via_tap_from_environment(struct via_nic *nic);
void via_tap_end(struct via_nic *nic);

/* ---------------------------------------------------------------- files: tap_file.c
 *
 * All under the mutex, which is taken by via_tap_lock. */

void via_tap_lock(void);
void via_tap_unlock(void);

/* Ties the tap to a file (NULL: to be read), which then belongs to it and to others that name the same. 0, or -errno
 * and an explanation. append: go on behind what this process wrote there before. */
int tap_file_attach(struct via_tap *tap, const char *path, int append);
/* Writes what the tap's ring holds, and what belongs at a capture's end. -errno of the first write that failed, if
 * any did. */
int tap_file_detach(struct via_tap *tap);
int tap_file_flush(struct via_tap *tap);
VIP_RETURN tap_file_read(struct via_tap *tap, void *buffer, size_t len, size_t *n);
const char *tap_file_path(const struct via_tap *tap);

#endif
