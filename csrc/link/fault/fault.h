/*
 * fault: a decorator that injects faults. It replaces those operations of a link's table that send and poll, and
 * applies the configured faults to the frames that are sent. All other operations stay the link's own.
 *
 * It is inserted when faults are first requested (via/objects/faults.c) and removed when they end, so a NIC without
 * faults has no overhead. Each side of a connection applies faults to the frames that it sends. Only a partition also
 * concerns arriving frames. Frames of connections that rely on a lossless link (loop, shm, made before the faults) pass
 * unharmed.
 *
 * There are three parts. plan.c decides what happens to a frame, from its number and a seed alone. fault.c applies the
 * decision. keep.c stores the frames that are sent later.
 */
#ifndef VIAKIT_FAULT_H
#define VIAKIT_FAULT_H

#include "link/link.h"

struct fault;

/* Creates the decorator, client->fault, and puts its table in the place of *ops, the link's. Returns 0 or -ENOMEM.
 * Owner only. */
int fault_wrap(struct link_client *client, const struct link_ops **ops, struct link *link);

/* Removes the decorator. The frames that it stores are sent at once, as far as the link has room. *ops becomes the
 * link's own table. */
void fault_unwrap(struct link_client *client, const struct link_ops **ops);

/* Returns the place where the decorator keeps the table of the link behind it. A decorator inserted there sees the
 * frames that are really sent (watch/tap.c). */
const struct link_ops **fault_inner(struct fault *fault);

/* Sets the faults from now on: a configuration, or a test's own decision for each frame. Setting one ends the other,
 * and frames are counted from 0. */
void fault_set(struct fault *fault, const viakit_faults *faults);
void fault_set_filter(struct fault *fault, viakit_frame_filter filter, void *context);

/* Returns the configured faults, or NULL if no faults are set. */
const viakit_faults *fault_get(const struct fault *fault);

/* The peer is gone: drops the frames stored for it. */
void fault_forget_peer(struct fault *fault, const struct link_peer *peer);

/* ---- decisions (plan.c): pure functions */

/* The purpose of each draw, so that the chances are independent. */
enum { FAULT_LOSS = 1, FAULT_DUPLICATE, FAULT_REORDER, FAULT_CORRUPT, FAULT_DISTANCE, FAULT_BIT, FAULT_JITTER = 64 };

/* Returns 64 pseudo-random bits, a function of the three arguments. */
uint64_t fault_draw(uint64_t seed, uint64_t number, uint32_t what);
/* Returns the same as a number in [0, 1). */
double fault_chance(uint64_t seed, uint64_t number, uint32_t what);

/* Combines the two numbers that a frame's draws depend on: its kind (four bits) and its number among that kind. */
static inline uint64_t fault_number(int kind, uint64_t of_kind)
{
    return (uint64_t)kind << 60 | of_kind;
}

/* Returns bits 1 << viakit_verdict: the faults of frame `index`, which is number of_kind among those of its kind. */
unsigned fault_decide(const viakit_faults *faults, uint64_t index, int kind, uint64_t of_kind);

/* Returns how many later frames overtake this one: 1..reorder_distance. */
uint64_t fault_distance(const viakit_faults *faults, uint64_t number);

/* Returns whether the frame is sent while the NIC is cut off by frame numbers. */
static inline int fault_cut_by_number(const viakit_faults *f, uint64_t index)
{
    return f->partition_frames && index - f->partition_after_frames < f->partition_frames;
}

/* ---- structs of programs (settle.c) */

/* Copies the fields of faults that the program was compiled with, and checks them. */
VIP_RETURN fault_settle(const viakit_faults *from, viakit_faults *to);
/* Checks that to->size, set by the program, is the size of a struct. Else returns VIP_INVALID_PARAMETER, explained with
 * the function's name. */
VIP_RETURN fault_check_size(const char *function, const viakit_faults *to);
/* Copies as many bytes as to->size allows. to->size becomes the number of bytes written. */
void fault_copy_out(const viakit_faults *from, viakit_faults *to);

#define FAULT_DEFAULT_DISTANCE 3
#define FAULT_MOST_DISTANCE 64

#endif
