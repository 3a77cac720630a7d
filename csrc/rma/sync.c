/*
 * Flush, locks, and post, start, complete, wait.
 *
 * RDMA to a rank is over when the channel has nothing outstanding to it: a write then is in the target's memory. A
 * FLUSH is sent only after operations that have neither RDMA nor a reply. Packets keep their order, so its reply shows
 * that these are done.
 *
 *     origin                                     target
 *     rma_lock             LOCK      ------->    grants it, or puts the request into a queue
 *                               <-------  DONE   once it is granted
 *     rma_put, rma_get     RDMA      ------->    runs no code
 *     rma_flush            FLUSH     ------->    only after PUT or UPDATE
 *                               <-------  DONE
 *     rma_unlock           UNLOCK    ------->    grants the lock to the first of the queue
 *
 *     rma_await_post            <-------  POST   rma_post: the origin may begin
 *     rma_put, rma_get, rma_flush
 *     rma_complete         COMPLETE  ------->    counts it, and rma_await_complete returns
 *                               <-------  DONE
 *
 * In MPI's terms (MPI 4.1, 12.5):
 *
 *     Win_flush       rma_flush
 *     Win_unlock      rma_flush, rma_unlock
 *     Win_start       rma_await_post
 *     Win_complete    rma_flush, rma_complete
 *     Win_wait        rma_await_complete
 *     Win_fence       rma_flush of all ranks, and a barrier of the layer above
 *
 * Invariants of a part (struct rma_part): `touched` is set before an operation begins, and reset only when all are
 * complete. `unflushed` is 0 only if a FLUSH has followed all PUTs and UPDATEs, or is being sent. If it could not be
 * sent, its caller sets `unflushed` again and counts it in `n_unsent`. A flush of another thread, which may have relied
 * on that FLUSH, then sends its own.
 *
 * Any thread may call these functions. They wait without the lock; the progress thread makes the other ranks' requests
 * proceed meanwhile.
 */
#include <stdlib.h>

#include "base/virtual.h"
#include "rma/inside.h"

/* The state that a flush waits for: no operation of this window on this rank is under way. */
struct quiet {
    rma_window *win;
    int target;
};

/* Also true if the rank is gone: then nothing more will happen. */
static int is_quiet(void *argument)
{
    const struct quiet *q = argument;
    const struct msg_peer *peer = &q->win->r->world->peers[q->target];
    /* Requests for locks do not count: a flush need not wait until another rank releases its lock. */
    for (rma_op *op = q->win->ops; op; op = op->next)
        if (op->target == q->target && !op->is_lock && !rma_op_look(op))
            return 0;
    return peer->state != MSG_PEER_CONNECTED || msg_all_written(peer);
}

/* A condition for rma_wait_until. */
static int op_is_over(void *op)
{
    return rma_op_look(op);
}

/* Waits for DONE, which answers a request. `code` other than MSG_SUCCESS: does not wait. Frees the op, except an orphan
 * whose answer may still arrive. */
static int await_done(rma_op *op, int code)
{
    if (code == MSG_SUCCESS)
        code = rma_wait_until(op->win->r, op_is_over, op);
    /* In the child of a fork the list belongs to the parent's state, and is left as it is. */
    if (code == MSG_ERR_PROCESS)
        return code;
    if (code != MSG_SUCCESS && !op->complete) {
        op->orphan = 1; /* the answer may still arrive */
        return code;
    }
    code = code ? code : op->error;
    rma_op_drop(op);
    return code;
}

/* Sends a request that DONE answers. If it could not be sent, no answer will come. Then the op is freed and *op NULL,
 * unless the op has ended with its rank, which has the error. Returns MSG_SUCCESS or why it was not sent. */
static int send_request(rma_op **op, int kind, uint32_t how)
{
    rma_op *o = *op;
    int code = rma_send(o->win, o->target, kind, (struct msg_rest){.id = o->id, .how = how}, NULL, 0);
    if (code != MSG_SUCCESS && code != MSG_ERR_PROCESS && !o->complete) {
        rma_op_drop(o);
        *op = NULL;
    }
    return code;
}

/* Sends a request that is answered by DONE, and waits for the answer. Returns the answer, or the reason why there is
 * none: then either nothing was sent, or an orphan in the window's list waits for the answer. */
static int request(rma_window *win, int target, int kind, uint32_t how)
{
    rma_op *op = rma_op_new(win, target);
    if (op == NULL)
        return MSG_ERR_NO_MEMORY;
    op->is_lock = kind == ACT_LOCK;
    int code = MSG_SUCCESS;
    if (target != win->r->world->rank)
        code = send_request(&op, kind, how);
    /* A flush of this rank's own part is never requested: operations on it are done when their call returns. */
    else if (kind == ACT_LOCK)
        rma_lock_here(win, target, how ? LOCK_EXCLUSIVE : LOCK_SHARED, op->id);
    return op ? await_done(op, code) : code;
}

/* The first error of the target's ops, which are complete. Orphans are freed. */
static int reap(rma_window *win, int target)
{
    int code = MSG_SUCCESS;
    for (rma_op *op = win->ops, *next; op; op = next) {
        next = op->next;
        if (op->target != target || !op->complete)
            continue;
        if (code == MSG_SUCCESS && op->error)
            code = op->error;
        if (op->orphan)
            rma_op_drop(op);
    }
    return code;
}

/* Sends a FLUSH if operations to the rank need one, and waits for its reply. *fault becomes MSG_ERR_ARG if one of them
 * was out of bounds at the target. Returns MSG_SUCCESS, or the reason why there is no reply. */
static int send_flush(rma_window *win, int target, int *fault)
{
    msg_world *w = win->r->world;
    struct rma_part *part = &win->parts[target];
    if (target == w->rank || !part->unflushed || w->peers[target].state != MSG_PEER_CONNECTED)
        return MSG_SUCCESS;
    /* Before the wait, during which other threads may start operations that need a FLUSH of their own. */
    part->unflushed = 0;
    int code = request(win, target, ACT_FLUSH, 0);
    if (code == MSG_ERR_ARG) {
        *fault = msg_fail(w, code, "an operation on rank %d was outside of the memory that is attached there", target);
        return MSG_SUCCESS;
    }
    if (code != MSG_SUCCESS && w->peers[target].state == MSG_PEER_CONNECTED) {
        part->unflushed++;
        part->n_unsent++;
    }
    return code;
}

/* Waits for all operations to one rank, and returns the first error among them. `touched` spares the work for ranks
 * that had no operation since their last flush. */
static int flush_one(rma_window *win, int target)
{
    msg_world *w = win->r->world;
    struct rma_part *part = &win->parts[target];
    struct quiet q = {win, target};
    int code = MSG_SUCCESS, fault = 0;
    uint32_t n_unsent;
    if (!part->touched)
        return MSG_SUCCESS;
    do {
        n_unsent = part->n_unsent;
        code = send_flush(win, target, &fault);
        if (code == MSG_SUCCESS)
            code = rma_wait_until(win->r, is_quiet, &q);
    } while (code == MSG_SUCCESS && part->n_unsent != n_unsent);
    if (code)
        return code;
    /* Other threads may have begun operations during the wait. Those that need a FLUSH are left to the next flush. */
    part->touched = part->unflushed;
    code = reap(win, target);
    if (code == MSG_SUCCESS && w->peers[target].state != MSG_PEER_CONNECTED)
        code = rma_check_target(win, target);
    return fault ? fault : code;
}

/* Never waits, for the lock or for another rank: it only finds that nothing is left to do. MSG_PENDING: call
 * rma_flush. */
int rma_flush_now(rma_window *win, int target)
{
    msg_world *w = win->r->world;
    if (vk_unlikely((unsigned)target >= (unsigned)win->r->n || vk_time_is_virtual() || !msg_try_enter(w)))
        return MSG_PENDING;
    struct rma_part *part = &win->parts[target];
    const struct msg_peer *peer = &w->peers[target];
    int code = MSG_PENDING;
    /* The window has no ops at all: a search for those of this target is left to rma_flush. */
    if (vk_likely(win->ops == NULL && !part->unflushed && peer->state == MSG_PEER_CONNECTED && msg_all_written(peer))) {
        part->touched = 0;
        code = MSG_SUCCESS;
    }
    msg_unlock(w);
    return code;
}

/* See rma.h. An error of one target does not keep the others from being flushed, except an interrupt. */
int rma_flush(rma_window *win, int target)
{
    msg_world *w = win->r->world;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = MSG_SUCCESS;
    if (target >= 0)
        code = (unsigned)target < (unsigned)win->r->n ? flush_one(win, target) : rma_check_target(win, target);
    /* All of them, so that a rank that has died does not hide the state of the others. */
    for (int i = 0; target < 0 && i < win->r->n && code != MSG_INTERRUPTED && code != MSG_ERR_PROCESS; i++) {
        int one = flush_one(win, i);
        code = code && one != MSG_INTERRUPTED ? code : one;
    }
    msg_unlock(w);
    return code;
}

/* 1 also in the child of a fork, which has no operations. */
int rma_is_quiet(rma_window *win, int target)
{
    msg_world *w = win->r->world;
    int quiet = 1;
    if (!msg_enter(w))
        return 1;
    for (int i = 0; i < win->r->n && quiet; i++)
        if (target < 0 || target == i) {
            struct quiet q = {win, i};
            quiet = !win->parts[i].unflushed && is_quiet(&q);
        }
    msg_unlock(w);
    return quiet;
}

/* ---------------------------------------------------------------- locks */

/* The error of the request becomes one of this call, which names the reason. */
int rma_lock(rma_window *win, int target, int exclusive)
{
    msg_world *w = win->r->world;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = rma_check_target(win, target);
    if (code == MSG_SUCCESS)
        code = request(win, target, ACT_LOCK, exclusive ? 1 : 0);
    if (code == MSG_ERR_STATE)
        msg_fail(w, code, "this process has, or waits for, a lock of rank %d in this window already", target);
    else if (code == MSG_ERR_PROC_FAILED && w->peers[target].state == MSG_PEER_CONNECTED)
        msg_fail(w, code,
                 "a rank that had locked rank %d's part of the window has died, perhaps in the middle of an update: "
                 "check the data, and lock again",
                 target);
    else if (code == MSG_ERR_PROC_FAILED || code == MSG_ERR_LEFT)
        rma_check_target(win, target);
    msg_unlock(w);
    return code;
}

/* There is no reply: a rank that unlocks need not wait until the next one has the lock. */
int rma_unlock(rma_window *win, int target)
{
    msg_world *w = win->r->world;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = rma_check_target(win, target);
    if (code == MSG_SUCCESS && target == w->rank) {
        rma_unlock_here(win, target);
        msg_changed(w);
    } else if (code == MSG_SUCCESS)
        code = rma_send(win, target, ACT_UNLOCK, (struct msg_rest){0}, NULL, 0);
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- post, start, complete, wait */

/* The first error of these ranks, so that no notice leaves if one of them cannot take part. */
static int check_all(const rma_window *win, const int *ranks, int n)
{
    int code = MSG_SUCCESS;
    for (int i = 0; i < n && code == MSG_SUCCESS; i++)
        code = rma_check_target(win, ranks[i]);
    return code;
}

/* A post to this rank itself is only counted. Does not wait for the origins (MPI_Win_post), but may wait for room in
 * the channel. After an error some ranks may have been notified. Posts need no reply, because rma_await_post waits for
 * them. */
int rma_post(rma_window *win, const int *ranks, int n)
{
    msg_world *w = win->r->world;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = check_all(win, ranks, n);
    for (int i = 0; i < n && code == MSG_SUCCESS; i++)
        if (ranks[i] != w->rank)
            code = rma_send(win, ranks[i], ACT_POST, (struct msg_rest){0}, NULL, 0);
        else
            win->parts[w->rank].posts++;
    msg_changed(w);
    msg_unlock(w);
    return code;
}

/* Notifies a rank. *op is NULL if there is no answer to wait for. */
static int send_complete(rma_window *win, int rank, rma_op **op)
{
    *op = NULL;
    if (rank == win->r->world->rank) {
        win->parts[rank].completes++;
        return MSG_SUCCESS;
    }
    if ((*op = rma_op_new(win, rank)) == NULL)
        return MSG_ERR_NO_MEMORY;
    return send_request(op, ACT_COMPLETE, 0);
}

/* Waits for the answers, because another path may be faster than the notices: a barrier of another world. A rank that
 * tests once behind that barrier must find them. All requests leave before the first wait. */
int rma_complete(rma_window *win, const int *ranks, int n)
{
    msg_world *w = win->r->world;
    /* One more than n, because calloc(0) may return NULL. */
    rma_op **ops = calloc((size_t)n + 1, sizeof *ops);
    int sent = 0;
    if (ops == NULL)
        return MSG_ERR_NO_MEMORY;
    if (!msg_enter(w)) {
        free(ops);
        return MSG_ERR_PROCESS;
    }
    int code = check_all(win, ranks, n);
    while (sent < n && code == MSG_SUCCESS) {
        code = send_complete(win, ranks[sent], &ops[sent]);
        sent++;
    }
    msg_changed(w);
    /* If there is a code now, it is that of the last request. After an interrupt no answer is awaited. */
    int first = code;
    for (int i = 0; i < sent; i++) {
        int stop = first == MSG_INTERRUPTED || first == MSG_ERR_PROCESS ? first : i == sent - 1 ? code : MSG_SUCCESS;
        int one = ops[i] ? await_done(ops[i], stop) : MSG_SUCCESS;
        first = first ? first : one;
    }
    msg_unlock(w);
    free(ops);
    return first;
}

/* A wait for one notice of each of these ranks: a post or a completion. */
struct awaited {
    rma_window *win;
    const int *ranks;
    int n, at, posts;
};

/* The number of unused notices of this rank: its posts, or its completions. */
static uint32_t *count_of(const struct awaited *a, int rank)
{
    return a->posts ? &a->win->parts[rank].posts : &a->win->parts[rank].completes;
}

/* Ranks before `at` have notified this rank. Stops at one that is gone, which the caller reports. */
static int all_notified(void *argument)
{
    struct awaited *a = argument;
    while (a->at < a->n && *count_of(a, a->ranks[a->at]))
        a->at++;
    return a->at == a->n || a->win->r->world->peers[a->ranks[a->at]].state != MSG_PEER_CONNECTED;
}

/* Waits for one notice of each rank and uses these up. If a rank is gone, none is used up. */
static int await(rma_window *win, const int *ranks, int n, int posts, int poll)
{
    msg_world *w = win->r->world;
    struct awaited a = {win, ranks, n, 0, posts};
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = MSG_SUCCESS;
    for (int i = 0; i < n && code == MSG_SUCCESS; i++)
        if ((unsigned)ranks[i] >= (unsigned)win->r->n)
            code = rma_check_target(win, ranks[i]);
    if (code == MSG_SUCCESS && poll) {
        msg_step(w);
        code = all_notified(&a) ? MSG_SUCCESS : MSG_PENDING;
    } else if (code == MSG_SUCCESS)
        code = rma_wait_until(win->r, all_notified, &a);
    if (code == MSG_SUCCESS && a.at < n)
        code = rma_check_target(win, ranks[a.at]);
    for (int i = 0; code == MSG_SUCCESS && i < n; i++)
        --*count_of(&a, ranks[i]);
    msg_unlock(w);
    return code;
}

/* MPI_Win_start may return earlier, before the posts. Waiting here keeps the operations themselves free of checks. */
int rma_await_post(rma_window *win, const int *ranks, int n)
{
    return await(win, ranks, n, 1, 0);
}

/* MPI_Win_wait, or with `poll` MPI_Win_test: one step of progress, and no wait. */
int rma_await_complete(rma_window *win, const int *ranks, int n, int poll)
{
    return await(win, ranks, n, 0, poll);
}
