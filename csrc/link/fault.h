/*
 * fault: a decorator. It is itself a link, and stands before another one, whichever that is: it has the same table
 * of operations, passes most of them on, and does to the frames that are sent what it was told to.
 *
 * It is put in place when faults are first asked for (via/fault.c) and taken away when they end: a NIC without
 * faults does not know of it. Each side of a connection spoils what it sends itself; only a partition concerns what
 * arrives as well. Frames of connections that rely on the link's losing nothing (loop, shm, made before the faults)
 * go past it unharmed.
 *
 * Three parts: fault_plan.c says what happens to a frame, by its number and a seed alone; fault.c does it; and
 * fault_keep.c keeps what shall go later.
 */
#ifndef VIAKIT_FAULT_H
#define VIAKIT_FAULT_H

#include "link.h"

/* Puts the decorator before (*ops, *link), which become its own, and is the *link returned. 0 or -ENOMEM. Owner
 * only. */
int fault_wrap(struct via_nic *nic, const struct link_ops **ops, struct link **link);

/* Takes it away again: what it still keeps goes out at once, as far as the link behind has room. (*ops, *link)
 * become what was behind. */
void fault_unwrap(const struct link_ops **ops, struct link **link);

/* Where the decorator keeps the table of what is behind it: the place for one that is to see what is really sent
 * (via/tap.c). */
const struct link_ops **fault_inner(struct link *fault);

/* What to do from now on: faults, or a test's own decision for each frame. Setting one ends the other; frames are
 * counted from 0. */
void fault_set(struct link *link, const viakit_faults *faults);
void fault_set_filter(struct link *link, viakit_frame_filter filter, void *context);

/* The faults that were set; NULL if none are. */
const viakit_faults *fault_get(const struct link *link);

/* The peer is gone: nothing that is kept goes to it any more. */
void fault_forget_peer(struct link *link, const struct link_peer *peer);

/* ---- decisions (fault_plan.c): functions of their arguments and of nothing else */

/* What each draw is for: so that one chance does not depend on another. */
enum { FAULT_LOSS = 1, FAULT_DUPLICATE, FAULT_REORDER, FAULT_CORRUPT, FAULT_DISTANCE, FAULT_BIT, FAULT_JITTER = 64 };

/* 64 bits that look random, always the same for the same three. */
uint64_t fault_draw(uint64_t seed, uint64_t number, uint32_t what);
/* The same as a number in [0, 1). */
double fault_chance(uint64_t seed, uint64_t number, uint32_t what);

/* What a frame's draws go by: its kind, of four bits, and its number among those of that kind. */
static inline uint64_t fault_number(int kind, uint64_t of_kind)
{
    return (uint64_t)kind << 60 | of_kind;
}

/* Bits 1 << viakit_verdict: what happens to frame `index`, which is number of_kind among those of its kind. */
unsigned fault_decide(const viakit_faults *faults, uint64_t index, int kind, uint64_t of_kind);

/* How many later frames overtake this one: 1..reorder_distance. */
uint64_t fault_distance(const viakit_faults *faults, uint64_t number);

/* Is the frame sent while the NIC is cut off by number? */
static inline int fault_cut_by_number(const viakit_faults *f, uint64_t index)
{
    return f->partition_frames && index - f->partition_after_frames < f->partition_frames;
}

#define FAULT_DEFAULT_DISTANCE 3
#define FAULT_MOST_DISTANCE 64

#endif
