/*
 * The target's side: a handler executes the requests of other ranks as they arrive, in whichever thread makes progress.
 * The lock of the world is held, so each request is atomic with respect to all others, those of this rank included.
 *
 * A request without a reply that cannot be executed is noted in `faults`, and reported by the reply to the next FLUSH
 * of that rank.
 *
 * The lock of this rank's part of a window:
 *
 *     free --LOCK exclusive--> exclusive --UNLOCK--> first waiter ...
 *      '-----LOCK shared-----> shared (n) --LOCK shared--> shared (n + 1), unless a rank waits already
 *
 * Everything here runs with the world's lock held and must not wait, because the thread that makes progress may be in
 * the middle of another call. So replies that the channel cannot take are queued with a copy of their data
 * (msg_active_send). Their number is bounded by the requests of the origins: UNDER_WAY bytes for each read (origin.c),
 * and one packet for each update.
 *
 * Trust. Packets come from ranks of this job, over connections that have proven the secret. Yet each field is checked,
 * so that an error in one rank's program is an error there and not a damaged heap here.
 */
#include <stdlib.h>

#include "rma/inside.h"

/* ---------------------------------------------------------------- replies */

/* A reply is queued if the channel is full, because a handler must not wait. */
static void reply(rma_window *win, int rank, int kind, struct msg_rest rest, const void *data, size_t len)
{
    struct msg_packet p = {.head = {.tag = kind}, .rest = rest};
    p.rest.handle = win->number;
    msg_active_send(&win->r->world->peers[rank], &p, data, len);
}

/* The op of this rank itself is looked up as one of another rank's reply would be: it may have been given up since. */
void rma_reply_done(rma_window *win, int rank, uint64_t id, int error)
{
    if (rank != win->r->world->rank) {
        reply(win, rank, ACT_DONE, (struct msg_rest){.id = id, .how = (uint32_t)error}, NULL, 0);
        return;
    }
    rma_op *op = rma_op_find(win, id);
    if (op)
        rma_op_end(op, error);
}

/* Sends data in pieces that the channel takes at once. An error has no data. */
static void reply_data(rma_window *win, int rank, uint64_t id, const char *data, uint64_t position, size_t len,
                       int error)
{
    size_t room = msg_active_room(&win->r->world->peers[rank]), at = 0;
    /* At least one packet: the op at the origin waits for it also if there is an error, and so no data. */
    do {
        size_t n = len - at < room ? len - at : room;
        reply(win, rank, ACT_DATA, (struct msg_rest){.id = id, .address = position + at, .how = (uint32_t)error},
              n ? data + at : NULL, error ? 0 : n);
        at += n;
    } while (at < len && !error);
}

/* ---------------------------------------------------------------- memory */

/* The elements before the update go to `result` under the same lock, so fetch and update are one step. */
int rma_update_here(rma_window *win, uint64_t offset, int type, int combine, const void *data, void *result, size_t len)
{
    size_t size = rma_type_size(type);
    char *to = rma_memory_at(win, offset, len);
    /* `len % size` comes last: the type was checked before it, so size is not 0. */
    if (to == NULL || !rma_combines(type, combine) || len % size)
        return MSG_ERR_ARG;
    if (result)
        memcpy(result, to, len);
    rma_combine(type, combine, len / size, to, data);
    return MSG_SUCCESS;
}

/* The element is compared as bytes, so a type with padding or with two zeros compares by representation. `result` is
 * written last, so it may overlap `desired` or `expected`. */
int rma_swap_here(rma_window *win, uint64_t offset, const void *desired, const void *expected, void *result,
                  size_t size)
{
    char *to = rma_memory_at(win, offset, size);
    char before[SWAP_MOST];
    if (to == NULL || size > SWAP_MOST)
        return MSG_ERR_ARG;
    memcpy(before, to, size);
    if (memcmp(before, expected, size) == 0)
        memcpy(to, desired, size);
    memcpy(result, before, size);
    return MSG_SUCCESS;
}

/* The origin has checked the offset by its copy of the card; this rank does not rely on that. */
static void put_arrived(rma_window *win, int source, const struct msg_rest *rest, const void *data, size_t len)
{
    char *to = rma_memory_at(win, rest->address, len);
    if (to == NULL)
        win->faults[source] = 1;
    else if (len)
        memcpy(to, data, len);
}

/* The data is copied from the window into packets now, so it is atomic with respect to updates. */
static void get_arrived(rma_window *win, int source, const struct msg_rest *rest)
{
    const char *from = rma_memory_at(win, rest->address, rest->len);
    reply_data(win, source, rest->id, from, rest->peer_id, from ? rest->len : 0, from ? MSG_SUCCESS : MSG_ERR_ARG);
}

/* An update with a reply carries at most one packet of elements, so its result fits one, too. peer_id is the position
 * of its elements in the origin's result. */
static void update_arrived(rma_window *win, int source, const struct msg_rest *rest, const void *data, size_t len)
{
    int type = (int)(rest->how & 0xFF), combine = (int)(rest->how >> 8 & 0xFF);
    if (rest->id == 0) {
        if (rma_update_here(win, rest->address, type, combine, data, NULL, len) != MSG_SUCCESS)
            win->faults[source] = 1;
        return;
    }
    /* The reply is sent last: once the origin has it, it may read the memory by RDMA, and must find the
     * new elements. */
    int error = len <= UPDATE_MOST ? rma_update_here(win, rest->address, type, combine, data, win->r->before, len)
                                   : MSG_ERR_ARG;
    reply_data(win, source, rest->id, win->r->before, rest->peer_id, error ? 0 : len, error);
}

/* The packet must have exactly two elements. Any other length is an error in the reply, and changes nothing. */
static void swap_arrived(rma_window *win, int source, const struct msg_rest *rest, const char *data, size_t len)
{
    char before[SWAP_MOST];
    size_t size = (size_t)rest->len;
    int error = size && size <= SWAP_MOST && len == 2 * size
                    ? rma_swap_here(win, rest->address, data, data + size, before, size)
                    : MSG_ERR_ARG;
    reply_data(win, source, rest->id, before, 0, error ? 0 : size, error);
}

/* ---------------------------------------------------------------- the lock */

/* Returns 1 if the lock can be granted now. Waiters are not considered: a caller that must respect them checks
 * first. */
static int may_have(const rma_window *win, int kind)
{
    return !win->exclusive && (kind == LOCK_SHARED || win->n_shared == 0);
}

/* Grants the lock to a rank, and replies to its request. */
static void hand_over(rma_window *win, int rank, int kind, uint64_t id)
{
    win->parts[rank].lock = (uint8_t)kind;
    if (kind == LOCK_EXCLUSIVE)
        win->exclusive = 1;
    else
        win->n_shared++;
    rma_reply_done(win, rank, id, MSG_SUCCESS);
}

/* Grants the lock in the order of the requests: one exclusive, or all shared ones up to the next exclusive. A shared
 * request behind an exclusive one waits, so that a stream of shared locks cannot starve it. */
static void serve_waiters(rma_window *win)
{
    struct rma_waiter *x;
    while ((x = win->waiters) != NULL && may_have(win, x->kind)) {
        win->waiters = x->next;
        hand_over(win, x->rank, x->kind, x->id);
        free(x);
    }
}

/* A rank has at most one lock and one request here; a second is an error of that rank. */
void rma_lock_here(rma_window *win, int rank, int kind, uint64_t id)
{
    struct rma_waiter **end = &win->waiters, *x;
    int has = win->parts[rank].lock != LOCK_NONE;
    for (; *end; end = &(*end)->next)
        /* The walk also leaves `end` at the end of the queue, where a new waiter is added. */
        has |= (*end)->rank == rank;
    if (has)
        rma_reply_done(win, rank, id, MSG_ERR_STATE);
    else if (win->parts[rank].warn) {
        win->parts[rank].warn = 0;
        rma_reply_done(win, rank, id, MSG_ERR_PROC_FAILED);
    } else if (win->waiters == NULL && may_have(win, kind))
        hand_over(win, rank, kind, id);
    else if ((x = malloc(sizeof *x)) == NULL)
        rma_reply_done(win, rank, id, MSG_ERR_NO_MEMORY);
    else {
        *x = (struct rma_waiter){.rank = rank, .kind = kind, .id = id};
        *end = x;
    }
}

/* Also for a rank that died. It may grant the lock to waiters, and so send replies. */
void rma_unlock_here(rma_window *win, int rank)
{
    /* LOCK_NONE: an UNLOCK without a lock changes nothing, whatever the other rank sends. */
    int kind = win->parts[rank].lock;
    win->parts[rank].lock = LOCK_NONE;
    if (kind == LOCK_EXCLUSIVE)
        win->exclusive = 0;
    else if (kind == LOCK_SHARED)
        win->n_shared--;
    serve_waiters(win);
}

/* The rank's request disappears. If it had the exclusive lock, the memory may be in the middle of a change. Each other
 * rank is notified once: now if it waits, or at its next lock. */
static void forget_locks(rma_window *win, int rank)
{
    int held = win->parts[rank].lock;
    for (int i = 0; held == LOCK_EXCLUSIVE && i < win->r->n; i++)
        win->parts[i].warn = 1;
    for (struct rma_waiter **p = &win->waiters; *p;) {
        struct rma_waiter *x = *p, gone = *x;
        if (x->rank != rank && held != LOCK_EXCLUSIVE) {
            p = &x->next;
            continue;
        }
        *p = x->next;
        free(x);
        if (gone.rank != rank) {
            win->parts[gone.rank].warn = 0;
            rma_reply_done(win, gone.rank, gone.id, MSG_ERR_PROC_FAILED);
            p = &win->waiters; /* the reply may have found another rank dead, which changes the list */
        }
    }
    rma_unlock_here(win, rank);
}

/* ---------------------------------------------------------------- the handler */

/* Adds to the result of an op. A position or length that does not fit is a fault of the other rank, and ends the op. */
static void data_arrived(rma_window *win, int source, const struct msg_rest *rest, const void *data, size_t len)
{
    rma_op *op = rma_op_find(win, rest->id);
    if (op == NULL || op->target != source || op->rdma || op->complete)
        return;
    if (rest->how || op->result == NULL || rest->address > op->len || len > op->len - rest->address ||
        len > op->awaited) {
        rma_op_end(op, rest->how ? (int)rest->how : MSG_ERR_INTERNAL);
        return;
    }
    if (len)
        memcpy(op->result + rest->address, data, len);
    op->awaited -= len;
    if (op->awaited == 0)
        rma_op_end(op, MSG_SUCCESS);
    else if (op->requested)
        rma_request_more(op);
}

/* Completes an op that has neither RDMA nor a result. Any other op is not one that DONE answers. */
static void done_arrived(rma_window *win, int source, const struct msg_rest *rest)
{
    rma_op *op = rma_op_find(win, rest->id);
    if (op && op->target == source && op->rdma == NULL && op->result == NULL)
        rma_op_end(op, (int)rest->how);
}

/* Packets keep their order, so all earlier operations of this rank are done. */
static void flush_arrived(rma_window *win, int source, const struct msg_rest *rest)
{
    int fault = win->faults[source];
    win->faults[source] = 0;
    rma_reply_done(win, source, rest->id, fault ? MSG_ERR_ARG : MSG_SUCCESS);
}

/* The handler of active messages, with the world's lock. It must not wait. The data is valid only during the call. A
 * kind or a window that does not exist is ignored, because a rank that breaks the protocol must not harm this one. */
void rma_arrived(void *context, int source, const struct msg_packet *packet, const void *data, size_t len)
{
    rma *r = context;
    const struct msg_rest *rest = &packet->rest;
    rma_window *win = rma_find_window(r, rest->handle);
    if (win == NULL)
        return; /* of a window that is closed, or of a rank that breaks the protocol */
    switch (packet->head.tag) {
    case ACT_PUT:
        put_arrived(win, source, rest, data, len);
        break;
    case ACT_GET:
        get_arrived(win, source, rest);
        break;
    case ACT_UPDATE:
        update_arrived(win, source, rest, data, len);
        break;
    case ACT_SWAP:
        swap_arrived(win, source, rest, data, len);
        break;
    case ACT_DATA:
        data_arrived(win, source, rest, data, len);
        break;
    case ACT_FLUSH:
        flush_arrived(win, source, rest);
        break;
    case ACT_LOCK:
        rma_lock_here(win, source, rest->how ? LOCK_EXCLUSIVE : LOCK_SHARED, rest->id);
        break;
    case ACT_DONE:
        done_arrived(win, source, rest);
        break;
    case ACT_UNLOCK:
        rma_unlock_here(win, source);
        break;
    case ACT_POST:
        win->parts[source].posts++;
        break;
    case ACT_COMPLETE:
        win->parts[source].completes++;
        rma_reply_done(win, source, rest->id, MSG_SUCCESS);
        break;
    default:
        return;
    }
    msg_changed(r->world);
}

/* A rank has left or died. Called with the world's lock, from within any call that has detected it, and so possibly
 * from within a function of this file (msg_active_send). No list is held across such a call here. */
void rma_gone(void *context, int rank, int error)
{
    rma *r = context;
    for (rma_window *win = r->windows; win; win = win->next) {
        for (rma_op *op = win->ops; op; op = op->next)
            /* Ops by RDMA are left to the channel: it may still use their buffers, and ends their requests itself. */
            if (op->target == rank && op->rdma == NULL && !op->complete)
                rma_op_end(op, error);
        forget_locks(win, rank);
    }
    msg_changed(r->world);
}
