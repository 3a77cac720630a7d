/*
 * The origin's side: operations of this rank, and ops.
 *
 *     put   RDMA write, at most RMA_SHORT bytes     complete for the caller at once
 *           RDMA write, longer                      an op, complete when the data is in the target's memory
 *           PUT in pieces                           complete for the caller at once: the channel has copied the data
 *     get   RDMA read, or GET in pieces             an op
 *     update, swap                                  an op if there is a result
 *     any of them on this rank itself               done at once
 *
 * An op is in its window's list until its owner reaps it. Ops without an owner (`orphan`) are freed when they are found
 * complete.
 *
 *     rma_op_new --> in win->ops --RDMA, DATA, DONE: rma_op_end--> complete --owner: test, wait--> rma_op_drop
 *                                                                      '--orphan: drop_orphans, reap--> rma_op_drop
 *
 * Invariant: an op is freed by its owner, or, without an owner, by a thread that finds it complete with the lock held;
 * never by the handler that completes it. So a pointer to an op is valid as long as its owner has not reaped it, also
 * across waits.
 *
 * All static functions and the rma_op_ functions of inside.h need the world's lock. Every wait releases it, so other
 * threads may add, complete and free ops meanwhile. Loops over win->ops therefore do not wait.
 */
#include <sched.h>
#include <stdlib.h>

#include "base/plural.h"
#include "base/virtual.h"
#include "base/wait.h"
#include "rma/inside.h"

#define UNDER_WAY (256 * 1024) /* bytes of a get by active messages that the target may be sending at a time */
/* Turns of a wait that only poll, and turns after these that also give the core to another process. Chosen so that the
 * reply of a rank which has a core usually arrives within them. */
#define SPINS 300
#define YIELDS 40

/* ---------------------------------------------------------------- waiting */

/* An answer of another rank's thread takes a few microseconds, while a sleep takes tens. So this polls first, unless
 * the ranks share cores, and yields. Afterwards the progress thread of this world takes over and signals. Returns
 * MSG_SUCCESS, MSG_INTERRUPTED or MSG_ERR_PROCESS; there is no time-out, because the death of a rank ends the wait for
 * it. */
int rma_wait_until(rma *r, int (*done)(void *), void *argument)
{
    msg_world *w = r->world;
    for (int i = w->crowded ? SPINS : 0; i < SPINS + YIELDS; i++) {
        if (done(argument))
            return MSG_SUCCESS;
        msg_step(w);
        if (done(argument))
            return MSG_SUCCESS;
        /* Between two turns another thread can enter: one that completes the operation, or one that has an operation of
         * its own. */
        msg_unlock(w);
        if (i < SPINS)
            vk_pause();
        else
            sched_yield();
        msg_lock(w);
    }
    return msg_wait_until(w, done, argument, MSG_FOREVER);
}

/* ---------------------------------------------------------------- ops */

/* Frees ops of this window that are complete and have no owner any more. */
static void drop_orphans(rma_window *win)
{
    for (rma_op *op = win->ops, *next; op; op = next) {
        next = op->next;
        if (op->orphan && rma_op_look(op))
            rma_op_drop(op);
    }
}

/* The window has it in front of its list. Its number is new for the world, so a late reply finds no other op. */
rma_op *rma_op_new(rma_window *win, int target)
{
    rma_op *op = calloc(1, sizeof *op);
    if (op == NULL) {
        msg_fail_plain(win->r->world, MSG_ERR_NO_MEMORY);
        return NULL;
    }
    op->win = win;
    op->id = win->r->next_id++;
    op->target = target;
    op->next = win->ops;
    win->ops = op;
    return op;
}

/* The newest ops are first, and most replies belong to one of them. */
rma_op *rma_op_find(rma_window *win, uint64_t id)
{
    rma_op *op = win->ops;
    while (op && op->id != id)
        op = op->next;
    return op;
}

/* Frees the op at any time. The channel's request survives it, detached, and ends by itself: the caller's buffer must
 * stay valid until then (rma_window_close waits for that, a second at most). */
void rma_op_drop(rma_op *op)
{
    rma_op **p = &op->win->ops;
    while (*p && *p != op)
        p = &(*p)->next;
    if (*p)
        *p = op->next;
    if (op->rdma) {
        /* It ends without its op: then nothing refers to it. */
        if (op->rdma->complete)
            msg_request_put(op->win->r->world, op->rdma);
        else
            op->rdma->flags |= MSG_DETACHED;
    }
    free(op);
}

/* A lock that is granted to a caller that no longer waits is given back. */
void rma_op_end(rma_op *op, int error)
{
    if (op->complete)
        return;
    op->complete = 1;
    op->error = error;
    /* The caller of rma_lock was interrupted. If this rank kept the lock, no call would ever release it. */
    if (op->is_lock && op->orphan && error == MSG_SUCCESS) {
        rma_window *win = op->win;
        struct msg_packet p = {.head.tag = ACT_UNLOCK, .rest.handle = win->number};
        if (op->target == win->r->world->rank)
            rma_unlock_here(win, op->target);
        else
            msg_active_send(&win->r->world->peers[op->target], &p, NULL, 0);
    }
    msg_changed(op->win->r->world);
}

/* The request belongs to this op alone, so it is reaped here without msg_wait. Cheap if nothing has changed: called in
 * every turn of a wait. */
int rma_op_look(rma_op *op)
{
    if (op->rdma && op->rdma->complete) {
        /* Read before msg_request_put, which frees the request for reuse. */
        int error = op->rdma->status.error;
        msg_request_put(op->win->r->world, op->rdma);
        op->rdma = NULL;
        rma_op_end(op, error);
    }
    return op->complete;
}

/* Looks before and after one step of progress, so that a complete op costs no step. */
int rma_op_test(rma_op *op)
{
    msg_world *w = op->win->r->world;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    if (!rma_op_look(op))
        msg_step(w);
    int code = MSG_PENDING;
    if (rma_op_look(op)) {
        code = op->error;
        rma_op_drop(op);
    }
    msg_unlock(w);
    return code;
}

/* A condition for rma_wait_until. */
static int is_over(void *op)
{
    return rma_op_look(op);
}

/* After MSG_INTERRUPTED and MSG_ERR_PROCESS the op is still the caller's. */
int rma_op_wait(rma_op *op)
{
    msg_world *w = op->win->r->world;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = rma_wait_until(op->win->r, is_over, op);
    if (code == MSG_SUCCESS) {
        code = op->error;
        rma_op_drop(op);
    }
    msg_unlock(w);
    return code;
}

/* The buffer of the op stays in use until it completes, which the caller can no longer observe. A flush shows it. */
void rma_op_free(rma_op *op)
{
    msg_world *w = op->win->r->world;
    if (!msg_enter(w))
        return;
    op->orphan = 1;
    if (rma_op_look(op))
        rma_op_drop(op);
    msg_unlock(w);
}

/* ---------------------------------------------------------------- sending */

/* A condition for rma_wait_until: no packet waits for room in the channel. Also true if the rank is gone. */
static int is_empty(void *argument)
{
    const struct msg_peer *peer = argument;
    return peer->queue == NULL || peer->state != MSG_PEER_CONNECTED;
}

/* Waits until the channel has taken all earlier packets to this rank, so that a caller cannot fill the memory. */
int rma_send(rma_window *win, int target, int kind, struct msg_rest rest, const void *data, size_t len)
{
    struct msg_peer *peer = &win->r->world->peers[target];
    struct msg_packet p = {.head = {.tag = kind}, .rest = rest};
    p.rest.handle = win->number;
    int code = is_empty(peer) ? MSG_SUCCESS : rma_wait_until(win->r, is_empty, peer);
    return code ? code : msg_active_send(peer, &p, data, len);
}

/* A rank that has closed its world cannot be a target either, although its memory might still be there. */
int rma_check_target(const rma_window *win, int target)
{
    msg_world *w = win->r->world;
    if ((unsigned)target >= (unsigned)win->r->n)
        return msg_fail(w, MSG_ERR_RANK, "rank %d: this window has ranks 0 to %d", target, win->r->n - 1);
    if (w->peers[target].state != MSG_PEER_CONNECTED)
        return msg_fail(w, msg_peer_error(&w->peers[target]), "rank %d of this window %s", target,
                        w->peers[target].state == MSG_PEER_LEFT ? "has closed its world" : "has died");
    return MSG_SUCCESS;
}

/* Checks an operation before it begins, by the card of the target's part. Offsets into a dynamic part are addresses
 * that only the target can check. Returns MSG_SUCCESS, and marks the target as touched, or an error with its text. */
static int check(const rma_window *win, int target, uint64_t offset, uint64_t len)
{
    msg_world *w = win->r->world;
    int code = rma_check_target(win, target);
    if (code)
        return code;
    if (!win->joined)
        return msg_fail(w, MSG_ERR_STATE, "this window has not been joined yet");
    const struct rma_card *card = &win->parts[target].card;
    if (!card->dynamic && (offset > card->len || len > card->len - offset))
        return msg_fail(w, MSG_ERR_ARG,
                        "%llu byte%s at byte %llu do not fit the %llu byte%s of rank %d's part of the window",
                        (unsigned long long)len, vk_s(len), (unsigned long long)offset, (unsigned long long)card->len,
                        vk_s(card->len), target);
    /* Set before the operation, so that a flush after an operation that failed half-way waits for its first half. */
    win->parts[target].touched = 1;
    return MSG_SUCCESS;
}

/* The error for an address outside of the memory that this rank has attached to a dynamic window. */
static int not_attached(const rma_window *win, uint64_t len, uint64_t offset)
{
    return msg_fail(win->r->world, MSG_ERR_ARG,
                    "%llu byte%s at address 0x%llx are not memory that is attached to this "
                    "window",
                    (unsigned long long)len, vk_s(len), (unsigned long long)offset);
}

/* The target's memory, if it is this rank itself or a rank whose part this process maps. NULL: outside of what this
 * rank has attached to a dynamic window. */
static char *near(const rma_window *win, int target, uint64_t offset, uint64_t len)
{
    if (target == win->r->world->rank)
        return rma_memory_at(win, offset, len);
    return win->parts[target].direct + offset; /* check() has compared with its length */
}

/* 1 if puts and gets are plain copies: near() then gives the address. */
static int is_near(const rma_window *win, int target)
{
    return target == win->r->world->rank || win->parts[target].direct;
}

/* ---------------------------------------------------------------- put */

/* By active messages, each as long as the channel takes at once. The target copies the data into its memory. It reports
 * an error in its reply to the next FLUSH. Returns MSG_SUCCESS when the channel has copied all pieces; after an error
 * some pieces may have been sent. */
static int put_pieces(rma_window *win, const char *buf, size_t len, int target, uint64_t offset)
{
    size_t room = msg_active_room(&win->r->world->peers[target]);
    /* Counted before the first piece leaves: if a later piece fails, the earlier ones still need a FLUSH. */
    win->parts[target].unflushed++;
    for (size_t at = 0; at < len; at += room) {
        size_t n = len - at < room ? len - at : room;
        int code = rma_send(win, target, ACT_PUT, (struct msg_rest){.address = offset + at}, buf + at, n);
        if (code)
            return code;
    }
    return MSG_SUCCESS;
}

/* By one RDMA write into the target's registered memory. Short data is copied before this returns, so the caller's
 * buffer is free at once and no op is needed. *out is set only to an op that is not complete. May wait for the
 * channel. */
static int put_by_rdma(rma_window *win, const void *buf, size_t len, int target, uint64_t offset, rma_op **out)
{
    msg_world *w = win->r->world;
    const msg_exposed *place = &win->parts[target].card.place;
    if (len <= RMA_SHORT)
        return msg_put_locked(w, buf, len, target, place, offset, NULL);
    rma_op *op = rma_op_new(win, target);
    if (op == NULL)
        return MSG_ERR_NO_MEMORY;
    int code = msg_put_locked(w, buf, len, target, place, offset, &op->rdma);
    if (code)
        rma_op_drop(op);
    else if (rma_op_look(op)) { /* stored already, as on shared memory */
        code = op->error;
        rma_op_drop(op);
    } else
        *out = op;
    return code;
}

/* A plain copy if the memory is near, one RDMA write if the target's part is registered, else active messages. 0 bytes
 * are checked, and then nothing is sent. */
int rma_put(rma_window *win, const void *buf, size_t len, int target, uint64_t offset, rma_op **out)
{
    msg_world *w = win->r->world;
    *out = NULL;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = check(win, target, offset, len);
    if (code == MSG_SUCCESS && len && is_near(win, target)) {
        char *to = near(win, target, offset, len);
        if (to)
            memmove(to, buf, len);
        else
            code = not_attached(win, len, offset);
    } else if (code == MSG_SUCCESS && len)
        code = win->parts[target].card.exposed ? put_by_rdma(win, buf, len, target, offset, out)
                                               : put_pieces(win, buf, len, target, offset);
    msg_unlock(w);
    return code;
}

/* `len - 1 >= RMA_SHORT` also refuses 0, which wraps around. All refusals leave error texts to rma_put. */
int rma_put_now(rma_window *win, const void *buf, size_t len, int target, uint64_t offset)
{
    msg_world *w = win->r->world;
    if (vk_unlikely((unsigned)target >= (unsigned)win->r->n || !win->joined || buf == NULL || len - 1 >= RMA_SHORT))
        return MSG_PENDING;
    struct rma_part *part = &win->parts[target];
    const struct rma_card *card = &part->card;
    if (!card->exposed || part->direct || offset > card->len || len > card->len - offset || vk_time_is_virtual() ||
        !msg_try_enter(w))
        return MSG_PENDING;
    int code = msg_put_now_locked(w, buf, len, target, &card->place, offset);
    if (code == MSG_SUCCESS)
        part->touched = 1;
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- get */

/* A long read is a sequence of GETs. At most UNDER_WAY bytes are requested and not here, so that replies cannot fill
 * the memory of the target, which must store what its channel does not take:
 *
 *     0 .......... arrived .......... requested .......... len
 *                     |<- < UNDER_WAY ->|
 */
void rma_request_more(rma_op *op)
{
    rma_window *win = op->win;
    size_t piece = UNDER_WAY / 4; /* so the target always has requests while replies are on their way */
    while (!op->complete && op->requested < op->len && op->requested - (op->len - op->awaited) < UNDER_WAY) {
        size_t n = op->len - op->requested < piece ? op->len - op->requested : piece;
        struct msg_packet p = {.head.tag = ACT_GET,
                               .rest = {.address = op->offset + op->requested,
                                        .len = n,
                                        .id = op->id,
                                        .peer_id = op->requested,
                                        .handle = win->number}};
        op->requested += n;
        int code = msg_active_send(&win->r->world->peers[op->target], &p, NULL, 0);
        if (code) {
            rma_op_end(op, code);
            return;
        }
    }
}

/* By one RDMA read where the channel has them and the target's memory is registered, else by GETs. *out is set on
 * success, unless the data is here already. GETs are sent without a wait, because rma_request_more is also called by
 * the handler. */
static int get_away(rma_window *win, void *buf, size_t len, int target, uint64_t offset, rma_op **out)
{
    msg_world *w = win->r->world;
    rma_op *op = rma_op_new(win, target);
    int code = MSG_SUCCESS;
    if (op == NULL)
        return MSG_ERR_NO_MEMORY;
    if (win->parts[target].card.exposed && msg_can_get(w, target))
        code = msg_get(w, buf, len, target, &win->parts[target].card.place, offset, &op->rdma);
    else {
        op->result = buf;
        op->len = op->awaited = len;
        op->offset = offset;
        rma_request_more(op);
    }
    if (code == MSG_SUCCESS && rma_op_look(op))
        code = op->error;
    else if (code == MSG_SUCCESS) {
        *out = op;
        return code;
    }
    rma_op_drop(op);
    return code;
}

/* The same choices as rma_put, with RDMA reads. */
int rma_get(rma_window *win, void *buf, size_t len, int target, uint64_t offset, rma_op **out)
{
    msg_world *w = win->r->world;
    *out = NULL;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = check(win, target, offset, len);
    if (code == MSG_SUCCESS && len && is_near(win, target)) {
        const char *from = near(win, target, offset, len);
        if (from)
            memmove(buf, from, len);
        else
            code = not_attached(win, len, offset);
    } else if (code == MSG_SUCCESS && len)
        code = get_away(win, buf, len, target, offset, out);
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- updates */

/* Sends the elements in pieces. With an op, each piece has a reply. Pieces are updated one after the other, and another
 * rank's update may come between two: MPI promises atomicity per element only (MPI 4.1, 12.7.1). */
static int update_pieces(rma_window *win, const char *buf, size_t len, int how, int target, uint64_t offset, rma_op *op)
{
    size_t size = rma_type_size(how & 0xFF), room = msg_active_room(&win->r->world->peers[target]);
    uint64_t id = op ? op->id : 0;
    /* Whole elements only, because the target combines each packet on its own. */
    room -= room % size;
    for (size_t at = 0; at < len; at += room) {
        size_t n = len - at < room ? len - at : room;
        struct msg_rest rest = {.address = offset + at, .id = id, .peer_id = at, .how = (uint32_t)how};
        int code = rma_send(win, target, ACT_UPDATE, rest, buf + at, n);
        if (code)
            return code;
    }
    return MSG_SUCCESS;
}

/* To another rank. Updates without a result need no op: a flush shows when they are done. */
static int update_away(rma_window *win, const void *buf, void *result, size_t len, int how, int target, uint64_t offset,
                       rma_op **out)
{
    if (result == NULL) {
        win->parts[target].unflushed++;
        return update_pieces(win, buf, len, how, target, offset, NULL);
    }
    rma_op *op = rma_op_new(win, target);
    if (op == NULL)
        return MSG_ERR_NO_MEMORY;
    op->result = result;
    op->len = op->awaited = len;
    int code = update_pieces(win, buf, len, how, target, offset, op);
    if (code == MSG_SUCCESS)
        *out = op;
    else {
        /* Replies to the pieces already sent must not be written any more. */
        op->result = NULL;
        rma_op_end(op, code);
        rma_op_drop(op);
    }
    return code;
}

/* Elements of this rank itself are combined here, under the same lock as those that arrive. A part that is only mapped
 * (`direct`) is not: its rank would not see the lock. */
int rma_accumulate(rma_window *win, const void *buf, void *result, size_t count, int type, int combine, int target,
                   uint64_t offset, rma_op **out)
{
    msg_world *w = win->r->world;
    size_t len = count * rma_type_size(type);
    *out = NULL;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = rma_combines(type, combine)
                   ? check(win, target, offset, len)
                   : msg_fail(w, MSG_ERR_ARG, "elements of type %d cannot be combined by operation %d", type, combine);
    if (code == MSG_SUCCESS && len && target == w->rank)
        code = rma_update_here(win, offset, type, combine, buf, result, len) == MSG_SUCCESS
                   ? MSG_SUCCESS
                   : not_attached(win, len, offset);
    else if (code == MSG_SUCCESS && len && combine == RMA_NO_OP && result) {
        /* Not by RDMA: the read must be atomic with respect to updates. */
        rma_op *op = rma_op_new(win, target);
        if (op == NULL)
            code = MSG_ERR_NO_MEMORY;
        else {
            op->result = result;
            op->len = op->awaited = len;
            op->offset = offset;
            rma_request_more(op);
            *out = op;
        }
    } else if (code == MSG_SUCCESS && len && combine != RMA_NO_OP)
        code = update_away(win, buf, result, len, type | combine << 8, target, offset, out);
    drop_orphans(win);
    msg_unlock(w);
    return code;
}

/* The packet carries both elements, the desired one first. The target compares and stores under its lock. */
int rma_compare_and_swap(rma_window *win, const void *desired, const void *expected, void *result, size_t size,
                         int target, uint64_t offset, rma_op **out)
{
    msg_world *w = win->r->world;
    char both[2 * SWAP_MOST];
    rma_op *op = NULL;
    *out = NULL;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = size && size <= SWAP_MOST
                   ? check(win, target, offset, size)
                   : msg_fail(w, MSG_ERR_ARG, "an element of %zu byte%s: compare and swap accepts 1 to %d", size,
                              vk_s(size), SWAP_MOST);
    if (code == MSG_SUCCESS && target == w->rank) {
        if (rma_swap_here(win, offset, desired, expected, result, size) != MSG_SUCCESS)
            code = not_attached(win, size, offset);
    } else if (code == MSG_SUCCESS && (op = rma_op_new(win, target)) == NULL)
        code = MSG_ERR_NO_MEMORY;
    else if (code == MSG_SUCCESS) {
        /* Sent from the stack: msg_active_send copies what the channel does not take at once. */
        memcpy(both, desired, size);
        memcpy(both + size, expected, size);
        op->result = result;
        op->len = op->awaited = size;
        code = rma_send(win, target, ACT_SWAP, (struct msg_rest){.address = offset, .len = size, .id = op->id}, both,
                        2 * size);
        if (code)
            rma_op_drop(op);
        else
            *out = op;
    }
    msg_unlock(w);
    return code;
}
