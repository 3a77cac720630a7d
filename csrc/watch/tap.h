/*
 * tap.h - the tap of a NIC: its fields, its records, and the hooks that the provider calls.
 *
 *   provider --- ops table of the tap --- link          tap.c: records into the NIC's ring, under its ownership
 *                     |
 *                   ring ---> writer thread ---> file   tap_file.c: pcapng; one thread and one mutex per process
 *
 * A NIC without a tap has nic->tap == NULL and its link's own table in nic->ops. Sending and receiving then cost
 * nothing more, and each hook of a descriptor's life is one test that is not taken (via/observer.h).
 */
#ifndef VIAKIT_TAP_H
#define VIAKIT_TAP_H

#include "base/atomic.h"
#include "base/ring.h"
#include "link/link.h"
#include "via/nic.h"
#include "via/vi.h"
#include "via/work.h"

struct tap_file;

/* A NIC's tap, from viakit_tap_open to viakit_tap_close. tap.c allocates and frees it. The first part belongs to the
 * NIC's owner, the last part to the holder of the mutex; the fields of make_tap() do not change later. */
struct via_tap {
    struct via_nic *nic;
    struct vk_ring ring;                   /* producer: the NIC's owner; consumer: the holder of tap_file.c's mutex */
    struct link_ops ops;                   /* the link's, with the sending operations replaced */
    const struct link_ops *real;           /* the link's own table */
    uint32_t snap_len;                     /* most bytes of a frame that are kept; 0: all */
    int events, frames;                    /* which records are made */
    const char *remark;                    /* for the frames that are being sent */
    uint64_t n_sent, n_received, n_events; /* records made */

    /* the frame that is being handled: its record, the VI in its header, and the counters from before */
    struct tap_frame *arrived;
    const struct via_vi *arrived_vi;
    uint64_t nic_counts[VIAKIT_N_COUNTERS], vi_counts[VIAKIT_N_COUNTERS];

    /* fields of the consumer */
    struct via_tap *next; /* of the same file */
    struct tap_file *file;
    uint32_t frame_interface, event_interface; /* their numbers in the file */
    uint32_t lost_reported;                    /* value of `lost` in the last record that was written */
    uint64_t file_bytes;                       /* maximum size of the file; 0: none */
    uint64_t skipped;                          /* records beyond it */
};

/* Records in the ring. */
enum { TAP_FRAME = 1, TAP_EVENT = 2 };

/* A frame as it was given to the link, or as it arrived. */
struct tap_frame {
    struct vk_record head;
    uint64_t time;          /* ns, monotonic */
    const char *note;       /* why it was dropped, or NULL; a static string */
    uint32_t len;           /* of the frame, wire header included ... */
    uint32_t captured;      /* ... and how many of its bytes follow */
    uint8_t to[6], from[6]; /* stations */
    uint32_t out;           /* 1: sent, 0: received */
    uint32_t lost;          /* records that the ring has lost so far, modulo 2^32 */
    uint8_t bytes[];
};

/* An event of a descriptor's life. `time` stands at the same offset as in tap_frame: tap_file.c merges records by it.
 */
struct tap_event {
    struct vk_record head;
    uint64_t time;
    uint64_t lost; /* as in tap_frame */
    viakit_event event;
};

/* ---------------------------------------------------------------- tap.c */

/* via_tap_from_environment: opens the tap that VIAKIT_TAP requests; called by VipOpenNic. via_tap_end: closes the NIC's
 * tap; called by VipCloseNic, as the only user of the NIC. The former returns VIP_SUCCESS without VIAKIT_TAP, and an
 * error with an explanation for one that cannot be opened. The latter waits until the rest of the ring is written. */
VIP_RETURN via_tap_from_environment(struct via_nic *nic); /* tap_environment.c */
void via_tap_end(struct via_nic *nic);

/* Opens a tap into a file, NULL: to be read. The caller holds the mutex, and not the NIC's ownership. append: continue
 * behind what this process wrote there before. Returns VIP_SUCCESS, or an error with an explanation. */
VIP_RETURN tap_open(struct via_nic *nic, const char *file, const viakit_tap_options *options, int append);

/* ---------------------------------------------------------------- files: tap_file.c
 *
 * The caller of these functions holds the mutex (via_tap_lock). */

/* The mutex of all taps of the process. It is not recursive. Take it before a NIC's ownership, never after it. */
void via_tap_lock(void);
void via_tap_unlock(void);

/* Attaches the tap to a file (NULL: the tap is read instead). Taps that name the same file share it. Returns 0, or
 * -errno with an explanation. append: continue behind what this process wrote there before. */
int tap_file_attach(struct via_tap *tap, const char *path, int append);
/* Writes the rest of the tap's ring and the end of its capture, and detaches it. Returns -errno of the first write that
 * failed, or 0. */
int tap_file_detach(struct via_tap *tap);
/* Writes all records that are visible now. Returns 0, or -errno of the first write to this file that failed, also
 * earlier. */
int tap_file_flush(struct via_tap *tap);
/* Moves whole blocks of a tap without a file to the buffer, and sets *n to their bytes; 0: there is no record now. An
 * error has an explanation, and no record is lost by it. */
VIP_RETURN tap_file_read(struct via_tap *tap, void *buffer, size_t len, size_t *n);
/* The path of the tap's file, "" if it has none. Valid until the tap is detached. */
const char *tap_file_path(const struct via_tap *tap);

#endif
