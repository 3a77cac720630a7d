/*
 * The inside of the decorator `fault`, for its two files: fault.c hands frames on or spoils them, fault_keep.c keeps
 * those that shall go later. Owner of the NIC only.
 */
#ifndef VIAKIT_FAULT_KEEP_H
#define VIAKIT_FAULT_KEEP_H

#include "fault.h"
#include "flat.h"

#define CHUNK 64 /* frames looked at together: more than a super-frame has */
#define LATE_MOST 64
#define MOST_ITEMS (2 * CHUNK + LATE_MOST) /* a double of each, and every late one behind some frame */
#define LINE_MOST (16u << 20)
#define KINDS 32

/* One frame to hand on. */
struct item {
    int source;      /* index among the frames offered, of itself or of the one that it follows */
    int extra;       /* a second copy or a late one: the frame `source` itself is through */
    int alone;       /* not in a super-frame */
    uint64_t number; /* of the frame */
    struct link_peer *peer;
    struct link_flat *flat; /* where its bytes lie; NULL: where they lay */
};

/* The decorator itself, in the place of the link that it stands before. Only the owner of the NIC touches it. `items`
 * to `iov` are what one send is made of; some tens of kilobytes, which is much for a stack that is not ours. */
struct link {
    struct via_nic *nic;
    struct link_ops ops; /* ours: the inner table, but for what is decorated */
    const struct link_ops *inner;
    struct link *link; /* the inner one */

    int active; /* faults are set */
    viakit_faults faults;
    uint64_t index, of_kind[KINDS]; /* numbers of the next frames */
    uint64_t began;                 /* ns: when the faults were set */

    viakit_frame_filter filter;
    void *filter_context;
    int asked; /* the filter was asked about frame `index` already, and said: */
    viakit_verdict verdict;
    struct link_flat *held; /* on the filter's word: overtaken by the next frame */

    struct link_flat *late;
    uint32_t n_late;
    struct link_flat *line, **line_end;
    size_t line_bytes;
    uint64_t line_due; /* of its last frame: none behind it goes sooner */

    /* of one send */
    struct item items[MOST_ITEMS];
    int n_items, plain; /* plain: they are the frames offered, no more and no less */
    uint8_t fate[CHUNK];
    struct link_frame out[MOST_ITEMS];
    struct iovec iov[MOST_ITEMS];
};

/* Sends a kept frame now: 1 taken, -EAGAIN, or a lasting error, as the inner link says. */
int fault_send_flat(struct link *link, const struct link_flat *flat);

/* Cut off at the moment `now` by the clock? One answer for all frames of a send. */
int fault_cut_by_time(const struct link *link, uint64_t now);
/* Cut off then, as far as frames are concerned that arrive, or the next one to be sent? */
int fault_is_cut(const struct link *link, uint64_t now);

/* Must what is sent now pass the line? */
int fault_through_line(const struct link *link, uint64_t now);
/* Puts frame `number` at the end of the line, for when it is due. Takes it over. */
void fault_enqueue(struct link *link, struct link_flat *flat, uint64_t number, uint64_t now);
/* Hands on what is due. */
void fault_advance_line(struct link *link, uint64_t now);

/* Keeps frame `number` until `distance` later ones have overtaken it, or nobody has for a while. Takes it over. */
void fault_keep_late(struct link *link, struct link_flat *flat, uint64_t number, uint64_t distance);
/* Takes it off the list; the caller has it now. */
void fault_forget_late(struct link *link, struct link_flat *flat);
/* Sends late frames that nobody has overtaken, or that did not find room behind the one that did; or all of them. */
void fault_send_overdue(struct link *link, uint64_t now, int all);

/* No faults from now on: whatever is kept goes out, as far as there is room; the rest stays in the line, in order. */
void fault_send_all_kept(struct link *link);
/* Drops what is kept for that peer (NULL: for all). */
void fault_forget_kept(struct link *link, const struct link_peer *peer);

#endif
