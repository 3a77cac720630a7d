/*
 * rma.h - one-sided communication: windows of memory that other ranks write, read and update.
 *
 * An *rma* is one rank's end of a world that serves windows only. Its ranks are those of the windows' group. The world
 * must have a progress thread (policy: progress=thread), so that a rank serves others while it computes.
 *
 *     put, get on a channel with RDMA     one RDMA write, one RDMA read; the target's processor takes no part
 *     put, get elsewhere                  active messages
 *     accumulate, compare and swap        active messages: VIPL has no atomic operations
 *     locks, post, complete, flush        active messages (a flush of RDMA alone needs none)
 *
 * Atomicity. The target executes updates under the lock of its world, one after the other, in whichever thread makes
 * progress there. Updates of its own memory by the target go the same way. RDMA writes and reads are not atomic.
 *
 * Completion. The buffer of a put of up to RMA_SHORT bytes may be reused at once. An operation that is not complete for
 * the caller when its call returns has an *op*, which the caller waits for, or which a flush completes. The caller's
 * buffers belong to the op until then.
 *
 * Ranks that die. Operations to the rank, and waits for it, end with MSG_ERR_PROC_FAILED. Its locks are released, and
 * the ranks that waited for them get the same error, because the dead rank may have left its update incomplete.
 *
 * Return values and threads are those of msg.h: MSG_SUCCESS or a msg_error. Any thread may call.
 */
#ifndef VIAKIT_RMA_H
#define VIAKIT_RMA_H

#include <stddef.h>
#include <stdint.h>

#include "msg/msg.h"

#define RMA_SHORT MSG_PUT_SHORT

typedef struct rma rma;
typedef struct rma_window rma_window;
typedef struct rma_op rma_op;

/* Element types of updates: those of coll.h in the same order, and these. */
enum rma_type {
    RMA_LONG_DOUBLE = 12,
    RMA_COMPLEX_LONG_DOUBLE,
    RMA_FLOAT_INT, /* pairs, as MPI's: value, index */
    RMA_DOUBLE_INT,
    RMA_LONG_INT,
    RMA_INT_INT,
    RMA_SHORT_INT,
    RMA_LONG_DOUBLE_INT,
    RMA_N_TYPES
};
/* Operations of updates: those of coll.h in the same order, and these. */
enum rma_combine { RMA_MAXLOC = 10, RMA_MINLOC, RMA_REPLACE, RMA_NO_OP, RMA_N_COMBINES };
size_t rma_type_size(int type);          /* 0: no such type */
int rma_combines(int type, int combine); /* 1 if elements of this type can be combined so */

/* ---------------------------------------------------------------- windows */

/* Takes over the active messages of the world. rma_stop gives them back; all windows must be closed. */
int rma_start(msg_world *world, rma **out);
void rma_stop(rma *r);

/* Description of a rank's part of a window, for the other ranks. Plain data, exchanged by the caller. */
struct rma_card {
    uint64_t len;
    uint32_t exposed, dynamic; /* exposed: for RDMA, by `place` */
    msg_exposed place;
};

/* Opens this rank's part of window `number`: len bytes at base, or none (len 0). dynamic: no memory yet; offsets are
 * then addresses in memory attached later. The number must be free on all ranks. card receives this part's description.
 * rma_window_join, with the cards of all ranks in order, makes the window usable. */
int rma_window_open(rma *r, uint32_t number, void *base, size_t len, int dynamic, struct rma_card *card,
                    rma_window **out);
int rma_window_join(rma_window *win, const struct rma_card *cards);
/* This process maps the memory of that rank's part, at this address: puts and gets are then plain copies. */
void rma_window_map(rma_window *win, int rank, void *memory);
/* Every rank's operations on this window must be complete: the caller synchronises the ranks before. */
void rma_window_close(rma_window *win);
int rma_number_is_free(rma *r, uint32_t number);

int rma_attach(rma_window *win, void *base, size_t len);
int rma_detach(rma_window *win, const void *base); /* MSG_ERR_ARG: not attached */

/* ---------------------------------------------------------------- operations
 *
 * `offset` is in bytes. Data that does not fit the target's part is MSG_ERR_ARG. *op is set to NULL if the operation is
 * complete for the caller already, or to an op. */

/* The calls ending in _now are for callers that hold a lock which others wait for, such as Python's GIL. They do not
 * wait. MSG_PENDING: nothing was done, and the call without _now must do it or report the error.
 * rma_put_now writes 1 to RMA_SHORT bytes to another rank by RDMA. */
int rma_put_now(rma_window *win, const void *buf, size_t len, int target, uint64_t offset);
int rma_put(rma_window *win, const void *buf, size_t len, int target, uint64_t offset, rma_op **op);
int rma_get(rma_window *win, void *buf, size_t len, int target, uint64_t offset, rma_op **op);
/* Combines `count` elements at the target with those in buf: the target's become target op buf's. result, unless NULL,
 * receives the target's elements before that. buf may be NULL with RMA_NO_OP. buf may be reused at once. */
int rma_accumulate(rma_window *win, const void *buf, void *result, size_t count, int type, int combine, int target,
                   uint64_t offset, rma_op **op);
/* Stores the `size` bytes at `desired`, at most 16, if the target has those at `expected`. result receives the target's
 * bytes before that. */
int rma_compare_and_swap(rma_window *win, const void *desired, const void *expected, void *result, size_t size,
                         int target, uint64_t offset, rma_op **op);

/* Returns MSG_PENDING, or frees the op and returns its result. */
int rma_op_test(rma_op *op);
/* Waits; frees the op unless the wait was interrupted (MSG_INTERRUPTED). */
int rma_op_wait(rma_op *op);
/* The caller is not interested in the op any more: it is freed on completion. */
void rma_op_free(rma_op *op);

/* ---------------------------------------------------------------- synchronisation */

/* Waits until all operations to the target (-1: to every rank) are complete there and here. Ops of the caller stay
 * valid and are complete then. Returns the first error of any of them. */
int rma_flush(rma_window *win, int target);
int rma_flush_now(rma_window *win, int target); /* one target, if all operations on it are complete */
/* 1 if nothing to this target (-1: to any rank) is outstanding: a flush would send nothing. */
int rma_is_quiet(rma_window *win, int target);

int rma_lock(rma_window *win, int target, int exclusive);
int rma_unlock(rma_window *win, int target); /* does not flush */

int rma_post(rma_window *win, const int *ranks, int n);       /* notifies these ranks that they may access this one */
int rma_await_post(rma_window *win, const int *ranks, int n); /* waits for these ranks' posts */
/* Notifies them that the access is over, and waits until their engines have counted it. Does not flush. */
int rma_complete(rma_window *win, const int *ranks, int n);
/* Waits for the ranks' notices of completion. With poll: MSG_PENDING if some are missing. */
int rma_await_complete(rma_window *win, const int *ranks, int n, int poll);

#endif
