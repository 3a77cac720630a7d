/*
 * inside.h - what the files of csrc/rma share.
 *
 *   window.c    rma, windows, ranks that leave or die
 *   target.c    requests of other ranks: the handler of active messages
 *   origin.c    operations of this rank, and ops
 *   sync.c      flush, locks, post and complete
 *   combine.c   elements
 *
 * Active messages: head.tag is the kind, rest.handle the window's number. `id` names the origin's op, which the reply
 * carries back.
 *
 *   kind        address      len     how                data
 *   PUT         offset                                  bytes
 *   GET         offset       bytes                                       --> DATA        (peer_id: position)
 *   UPDATE      offset                type | op << 8    elements         --> DATA if id is not 0 (peer_id: position)
 *   SWAP        offset       size                       desired expected --> DATA
 *   DATA        position             error              bytes               adds to the op's result
 *   FLUSH                                                                --> DONE, after all earlier ones
 *   LOCK                             1: exclusive                        --> DONE, once it is granted
 *   DONE                             error                                  completes the op
 *   COMPLETE                                                             --> DONE, once it is counted
 *   UNLOCK, POST
 *
 * All fields are accessed with the world's lock held. The target checks every field: a window that does not exist, or
 * an offset outside of it, is an error in the reply, or at the next flush.
 */
#ifndef VIAKIT_RMA_INSIDE_H
#define VIAKIT_RMA_INSIDE_H

#include "msg/channel.h"
#include "rma/rma.h"

enum {
    ACT_PUT = 1,
    ACT_GET,
    ACT_UPDATE,
    ACT_SWAP,
    ACT_DATA,
    ACT_FLUSH,
    ACT_LOCK,
    ACT_DONE,
    ACT_UNLOCK,
    ACT_POST,
    ACT_COMPLETE
};

#define SWAP_MOST 16      /* bytes of a compare and swap */
#define UPDATE_MOST 32768 /* bytes of elements in one UPDATE: at least the most that msg_active_room gives */

enum { LOCK_NONE = 0, LOCK_SHARED = 1, LOCK_EXCLUSIVE = 2 };

/* An operation that is not complete, or whose owner has not reaped it. Two fields determine what completes it:
 *
 *     rdma       long put, get by RDMA          the channel's request is complete (rma_op_look)
 *     result     get by GETs, update, swap      `awaited` is 0 (DATA)
 *     neither    flush, lock, complete          DONE
 *
 * A reply of the wrong kind cannot write memory: DONE is ignored for the first two, DATA for the first, and DATA for an
 * op without a result ends it in error. */
struct rma_op {
    rma_op *next; /* of the window */
    rma_window *win;
    uint64_t id;       /* never 0 */
    int target;        /* the rank that executes it */
    int error;         /* of the operation */
    int complete;      /* 1: `error` is final */
    int orphan;        /* its owner does not want it any more */
    int is_lock;       /* a request for the target's lock */
    char *result;      /* for DATA */
    size_t len;        /* of result */
    size_t awaited;    /* bytes of it that have not arrived */
    uint64_t offset;   /* where a read begins at the target */
    size_t requested;  /* bytes requested so far */
    msg_request *rdma; /* NULL: answered by DATA or DONE */
};

/* A rank that waits for this rank's lock. Its op `id` is completed when the lock is granted. */
struct rma_waiter {
    struct rma_waiter *next;
    int rank, kind; /* LOCK_SHARED or LOCK_EXCLUSIVE */
    uint64_t id;
};

/* A piece of memory in a dynamic window. The other ranks address it by its address here, not by an offset. */
struct rma_attached {
    struct rma_attached *next;
    char *base;
    size_t len;
};

/* State of another rank, or of this one, within a window. */
struct rma_part {
    struct rma_card card;
    uint32_t unflushed; /* operations without a reply since the last flush */
    uint32_t touched;   /* operations of any kind since then */
    uint32_t n_unsent;  /* FLUSHes that may not have been sent, because their call was interrupted; wraps */
    char *direct;       /* the rank's memory, if this process maps it; else NULL */
    uint32_t posts;     /* of that rank, not yet used by rma_await_post */
    uint32_t completes; /* likewise */
    uint8_t lock;       /* that it holds here: LOCK_* */
    uint8_t warn;       /* 1: its next lock here reports that a rank died with the exclusive lock */
};

struct rma_window {
    rma_window *next;
    rma *r;
    uint32_t number;              /* the same on all ranks */
    int dynamic, joined, exposed; /* no fixed memory, cards are known, registered by `place` */
    char *base;
    size_t len;
    msg_exposed place;
    struct rma_attached *attached; /* dynamic: its memory, in no order */
    struct rma_part *parts;        /* [n_ranks] */
    rma_op *ops;                   /* newest first */
    int n_shared, exclusive;       /* locks held here: number of shared ones; 1: an exclusive one */
    struct rma_waiter *waiters;    /* for this rank's lock, in order */
    uint8_t *faults;               /* [n_ranks] 1: an operation of that rank was refused since its last flush */
};

struct rma {
    msg_world *world;
    struct msg_active active;
    rma_window *windows;
    uint64_t next_id; /* of the next op; never 0 */
    int n;            /* ranks of the world */
    /* Elements before an update, until its reply is sent. One buffer serves all windows: requests are handled one by
     * one, and msg_active_send has sent or copied it when it returns. */
    _Alignas(16) char before[UPDATE_MOST];
};

/* window.c */
/* NULL: no such window here. It may have been closed, or the number may be invented by the other rank. */
rma_window *rma_find_window(rma *r, uint32_t number);
/* Memory of this rank at [offset, offset + len). NULL: outside of the window. */
char *rma_memory_at(const rma_window *win, uint64_t offset, uint64_t len);

/* target.c: the handler, and what it does, also for this rank's operations on itself */
void rma_arrived(void *context, int source, const struct msg_packet *packet, const void *data, size_t len);
void rma_gone(void *context, int rank, int error);
/* The two return MSG_SUCCESS, or MSG_ERR_ARG without a change of memory. They set no error text, because the error may
 * belong to another rank. `result` may be NULL in an update. */
int rma_update_here(rma_window *win, uint64_t offset, int type, int combine, const void *data, void *result,
                    size_t len);
int rma_swap_here(rma_window *win, uint64_t offset, const void *desired, const void *expected, void *result,
                  size_t size);
/* kind is LOCK_SHARED or LOCK_EXCLUSIVE. The reply for op `id` is sent now, or when the lock is granted. */
void rma_lock_here(rma_window *win, int rank, int kind, uint64_t id);
void rma_unlock_here(rma_window *win, int rank);
/* Sends DONE, or completes the op of this rank itself. */
void rma_reply_done(rma_window *win, int rank, uint64_t id, int error);

/* origin.c */
/* NULL: no memory; the error text is set. rma_op_find returns NULL for an id that is unknown or already reaped. */
rma_op *rma_op_new(rma_window *win, int target);
rma_op *rma_op_find(rma_window *win, uint64_t id);
/* Completes the op with this result, unless it is complete already: the first result stays. Frees nothing, because a
 * waiting call of the owner still reads it. */
void rma_op_end(rma_op *op, int error);
/* Reaps the op's RDMA if it is complete. Returns 1 if the op is complete. */
int rma_op_look(rma_op *op);
/* Requests more data of a read, as much as may be under way. Does not wait. */
void rma_request_more(rma_op *op);
void rma_op_drop(rma_op *op); /* unlinks and frees it */
/* Sends an active message about this window. May wait for the channel; meanwhile other threads may enter and change the
 * window's lists. Returns MSG_SUCCESS, or why the wait or the send ended. */
int rma_send(rma_window *win, int target, int kind, struct msg_rest rest, const void *data, size_t len);
/* Waits, lock held, as msg_wait_until without a deadline. */
int rma_wait_until(rma *r, int (*done)(void *), void *argument);
/* MSG_SUCCESS if the rank exists and is connected, else the error, with its text set. */
int rma_check_target(const rma_window *win, int target);

/* combine.c */
/* count elements at target become `target op data`. rma_combines(type, combine) must hold. No alignment is required. */
void rma_combine(int type, int combine, size_t count, void *target, const void *data);

#endif
