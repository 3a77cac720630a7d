/*
 * The inside of the decorator `fault`, for its two files: fault.c passes frames on or injects faults, keep.c stores the
 * frames that are sent later. Owner of the NIC only.
 */
#ifndef VIAKIT_FAULT_KEEP_H
#define VIAKIT_FAULT_KEEP_H

#include "link/fault/fault.h"
#include "link/flat.h"

#define CHUNK 64                           /* frames handled together: more than a super-frame has */
#define LATE_MOST 64                       /* late frames at a time; further ones are sent in order */
#define MOST_ITEMS (2 * CHUNK + LATE_MOST) /* a duplicate of each, and every late one behind some frame */
#define LINE_MOST (16u << 20)              /* bytes in the line; then the link appears full */
#define KINDS 32                           /* bound of WIRE_* kinds, which have four bits in a header */

/* One frame to pass on. */
struct item {
    int source;      /* index among the offered frames, of the frame itself or of the one that it follows */
    int extra;       /* a second copy or a late frame: the frame `source` itself is done */
    int alone;       /* not in a super-frame */
    uint64_t number; /* of the frame */
    struct link_peer *peer;
    struct link_flat *flat; /* its stored bytes; NULL: the bytes of the offered frame */
};

/* The decorator itself, in front of another link. Only the owner of the NIC accesses it. `items` to `iov` are the state
 * of one send. They take some tens of kilobytes, too much for the program's stack. */
struct fault {
    struct link_client *client;
    struct link_ops ops;          /* the link's table with the decorated operations replaced */
    const struct link_ops *inner; /* the table behind: the link's own, or a tap's */
    struct link *link;            /* the argument of all operations of `inner` */

    int active;                     /* faults are set */
    viakit_faults faults;           /* valid while `active` */
    uint64_t index, of_kind[KINDS]; /* numbers of the next frames */
    uint64_t began;                 /* ns: when the faults were set */

    viakit_frame_filter filter; /* NULL: none. The program's, called by the owner */
    void *filter_context;
    int decided; /* the filter has already decided on frame `index`: */
    viakit_verdict verdict;
    struct link_flat *held; /* held by the filter's verdict: the next frame overtakes it */

    struct link_flat *late; /* in the order of their numbers */
    uint32_t n_late;
    struct link_flat *line, **line_end;
    size_t line_bytes; /* of the frames in the line */
    uint64_t line_due; /* due time of its last frame: no later frame is sent sooner */

    /* state of one send */
    struct item items[MOST_ITEMS];
    int n_items, plain;                /* plain: the items are exactly the offered frames */
    uint8_t fate[CHUNK];               /* bits of fault_decide() for each offered frame */
    struct link_frame out[MOST_ITEMS]; /* what is passed to the inner link, with `iov` */
    struct iovec iov[MOST_ITEMS];
};

/* Sends a stored frame now. Returns 1 if accepted, -EAGAIN, or the inner link's lasting error. */
int fault_send_flat(struct fault *fault, const struct link_flat *flat);

/* Returns whether the NIC is cut off by the clock at time `now`. One result holds for all frames of a send. */
int fault_cut_by_time(const struct fault *fault, uint64_t now);
/* Returns whether the NIC is cut off then, for arriving frames or the next one to be sent. */
int fault_is_cut(const struct fault *fault, uint64_t now);

/* Returns whether a frame that is sent now must pass the line. */
int fault_through_line(const struct fault *fault, uint64_t now);
/* Appends frame `number` to the line, with the time when it is due. Owns it from then on. */
void fault_enqueue(struct fault *fault, struct link_flat *flat, uint64_t number, uint64_t now);
/* Sends the frames that are due. */
void fault_advance_line(struct fault *fault, uint64_t now);

/* Stores frame `number` until `distance` later ones have overtaken it, or a time has passed. Owns it from then on. */
void fault_keep_late(struct fault *fault, struct link_flat *flat, uint64_t number, uint64_t distance);
/* Removes the frame from the list. The caller owns it then. */
void fault_forget_late(struct fault *fault, struct link_flat *flat);
/* Sends the late frames that were not overtaken in time, or that found no room behind the frame that overtook them; or
 * all late frames. */
void fault_send_overdue(struct fault *fault, uint64_t now, int all);

/* Ends the faults: sends the stored frames as far as there is room. The rest stays in the line, in order. */
void fault_send_all_kept(struct fault *fault);
/* Drops the frames stored for that peer (NULL: for all). */
void fault_forget_kept(struct fault *fault, const struct link_peer *peer);

#endif
