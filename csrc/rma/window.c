/*
 * Windows: what is open, and where its memory is.
 *
 * A window's memory is registered for RDMA when it opens, if the channel has RDMA. Its handles travel in its card.
 * Memory that is attached later to a dynamic window is not registered: the other ranks would need its handles. Such
 * windows are served by active messages only.
 *
 *     rma_start      the world's active messages come here
 *     rma_window_open --> cards exchanged by the caller --> rma_window_join --> operations --> rma_window_close
 *         rma_attach, rma_detach (dynamic)      rma_window_map (shared memory)
 *     rma_stop
 *
 * Numbers. A packet names its window by a number, because pointers of one rank mean nothing to another. The caller
 * finds a number that is free on all ranks (rma_number_is_free, and an exchange).
 *
 * Not done: RDMA to memory attached later, as MPI_Win_attach allows it. The card of each attached piece would have to
 * reach all ranks, or a rank would have to request it on first use (MPI 4.1, 12.2.4: the target's address is all that
 * the origin has).
 *
 * Threads: every public function acquires the world's lock, except where none is needed. The caller ensures that a
 * window is not closed while another thread uses it, and that no rank's operation on it is under way.
 */
#include <stdlib.h>

#include "base/plural.h"
#include "rma/inside.h"

/* From now on active messages of the world call rma_arrived, and a rank that leaves or dies rma_gone. One rma per
 * world: a second would take its messages away. Returns MSG_SUCCESS, MSG_ERR_NO_MEMORY or MSG_ERR_PROCESS. */
int rma_start(msg_world *w, rma **out)
{
    rma *r = calloc(1, sizeof *r);
    if (r == NULL)
        return MSG_ERR_NO_MEMORY;
    if (!msg_enter(w)) {
        free(r);
        return MSG_ERR_PROCESS;
    }
    r->world = w;
    r->n = w->n_ranks;
    /* 0 means "no reply" in an UPDATE. */
    r->next_id = 1;
    r->active = (struct msg_active){.context = r, .arrived = rma_arrived, .gone = rma_gone};
    msg_set_active(w, &r->active);
    msg_unlock(w);
    *out = r;
    return MSG_SUCCESS;
}

/* In a child of fork the handler is left as it is, because the world is the parent's. */
void rma_stop(rma *r)
{
    if (r == NULL)
        return;
    /* Under the lock, so that no handler is running in the progress thread when r is freed. */
    if (msg_enter(r->world)) {
        msg_set_active(r->world, NULL);
        msg_unlock(r->world);
    }
    free(r);
}

/* A list is enough: programs have few windows at a time. Lock held, and so is the result valid. */
rma_window *rma_find_window(rma *r, uint32_t number)
{
    rma_window *win = r->windows;
    while (win && win->number != number)
        win = win->next;
    return win;
}

/* The answer may be out of date at once if another thread opens windows. The caller serialises that. */
int rma_number_is_free(rma *r, uint32_t number)
{
    if (!msg_enter(r->world))
        return 0;
    int is_free = rma_find_window(r, number) == NULL;
    msg_unlock(r->world);
    return is_free;
}

/* Offset and length may come from a packet, and have any value. Both comparisons subtract, because a sum of two such
 * numbers could wrap around. In a dynamic window the offset is an address of this process. */
char *rma_memory_at(const rma_window *win, uint64_t offset, uint64_t len)
{
    if (!win->dynamic)
        return offset <= win->len && len <= win->len - offset ? win->base + offset : NULL;
    for (const struct rma_attached *a = win->attached; a; a = a->next) {
        uint64_t base = (uint64_t)(uintptr_t)a->base;
        if (offset >= base && offset - base <= a->len && len <= a->len - (offset - base))
            return a->base + (offset - base);
    }
    return NULL;
}

/* Frees all that belongs to a window but its ops, which are gone. */
static void free_window(rma_window *win)
{
    for (struct rma_attached *a = win->attached, *next; a; a = next) {
        next = a->next;
        free(a);
    }
    for (struct rma_waiter *x = win->waiters, *next; x; x = next) {
        next = x->next;
        free(x);
    }
    free(win->parts);
    free(win->faults);
    free(win);
}

/* The window is usable by others once their cards are exchanged, and by this rank after rma_window_join. A request that
 * arrives in between is served, because it needs this rank's part only. msg_expose comes first and without the lock,
 * which it acquires itself. *card and *out are valid on success only. Returns MSG_SUCCESS, MSG_ERR_NO_MEMORY,
 * MSG_ERR_PROCESS, or MSG_ERR_ARG: the number is in use. */
int rma_window_open(rma *r, uint32_t number, void *base, size_t len, int dynamic, struct rma_card *card,
                    rma_window **out)
{
    rma_window *win = calloc(1, sizeof *win);
    if (win) {
        win->parts = calloc((size_t)r->n, sizeof *win->parts);
        win->faults = calloc((size_t)r->n, 1);
    }
    if (win == NULL || win->parts == NULL || win->faults == NULL) {
        if (win)
            free_window(win);
        return MSG_ERR_NO_MEMORY;
    }
    win->r = r;
    win->number = number;
    win->base = base;
    win->len = len;
    win->dynamic = dynamic;
    /* A failure, for example a limit on locked memory, only means that active messages serve this rank's part. */
    if (!dynamic && len && r->n > 1)
        win->exposed = msg_expose(r->world, base, len, &win->place) == MSG_SUCCESS;
    *card = (struct rma_card){
        .len = len, .exposed = (uint32_t)win->exposed, .dynamic = (uint32_t)dynamic, .place = win->place};
    if (!msg_enter(r->world)) {
        free_window(win);
        return MSG_ERR_PROCESS;
    }
    int code =
        rma_find_window(r, number) ? msg_fail(r->world, MSG_ERR_ARG, "window %u is open already", number) : MSG_SUCCESS;
    if (code == MSG_SUCCESS) {
        win->next = r->windows;
        r->windows = win;
    }
    msg_unlock(r->world);
    if (code) {
        if (win->exposed)
            msg_hide(r->world, &win->place);
        free_window(win);
        return code;
    }
    *out = win;
    return MSG_SUCCESS;
}

/* The cards are copied. They are not trusted further than needed: an origin checks its own arguments by them (origin.c:
 * check), and each target checks again. */
int rma_window_join(rma_window *win, const struct rma_card *cards)
{
    msg_world *w = win->r->world;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    for (int i = 0; i < win->r->n; i++)
        win->parts[i].card = cards[i];
    win->joined = 1;
    msg_unlock(w);
    return MSG_SUCCESS;
}

/* Loads and stores of this process then compete with the target's own. MPI's rules on conflicting accesses apply
 * (12.7). */
void rma_window_map(rma_window *win, int rank, void *memory)
{
    if (!msg_enter(win->r->world))
        return;
    win->parts[rank].direct = memory;
    msg_unlock(win->r->world);
}

/* Ops that are still alive belong to their owners, and must not refer to the window any more: they end here. The order
 * matters:
 *
 *     1. out of the list         requests of other ranks find no window from here on
 *     2. ops end                 after a second each at most, even if the channel still uses a buffer then
 *     3. msg_hide                RDMA of other ranks fails from here on
 *     4. the struct is freed */
void rma_window_close(rma_window *win)
{
    rma *r = win->r;
    if (!msg_enter(r->world))
        return; /* in a child of fork: all memory stays as the parent left it */
    rma_window **p = &r->windows;
    while (*p && *p != win)
        p = &(*p)->next;
    if (*p)
        *p = win->next;
    /* At most a second per op: the buffer of an RDMA must not be freed while the channel uses it, but a rank that has
     * stopped must not keep this one from closing. */
    while (win->ops) {
        if (win->ops->rdma)
            msg_wait_until(r->world, msg_is_complete, win->ops->rdma, 1000);
        rma_op_drop(win->ops);
    }
    msg_unlock(r->world);
    if (win->exposed)
        msg_hide(r->world, &win->place);
    free_window(win);
}

/* Pieces may overlap; an access must lie within one of them. The memory stays the caller's, and must stay valid until
 * rma_detach (MPI 4.1, 12.2.4). */
int rma_attach(rma_window *win, void *base, size_t len)
{
    msg_world *w = win->r->world;
    struct rma_attached *a = malloc(sizeof *a);
    if (a == NULL)
        return MSG_ERR_NO_MEMORY;
    if (!msg_enter(w)) {
        free(a);
        return MSG_ERR_PROCESS;
    }
    *a = (struct rma_attached){.next = win->attached, .base = base, .len = len};
    win->attached = a;
    msg_unlock(w);
    return MSG_SUCCESS;
}

/* Removes the piece attached last of those that begin at base. The memory is not freed. */
int rma_detach(rma_window *win, const void *base)
{
    msg_world *w = win->r->world;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    struct rma_attached **p = &win->attached, *found;
    while (*p && (*p)->base != base)
        p = &(*p)->next;
    found = *p;
    if (found)
        *p = found->next;
    int code = found ? MSG_SUCCESS : msg_fail(w, MSG_ERR_ARG, "no memory at %p is attached to this window", base);
    msg_unlock(w);
    free(found);
    return code;
}
