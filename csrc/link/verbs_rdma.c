/*
 * RDMA by the card: registered memory, and operations on the connected queue pair `out` of a peer (verbs_pair.c).
 *
 *   start    work requests, one for each piece of memory | the last one reports its completion
 *   end      that completion, in the queue of the received datagrams; or the first one with an error
 *
 * A write has a work request of its own for its last word. The card executes requests in order, and within one it
 * promises no order. So a program that polls the last word finds everything before it.
 *
 * Errors: a request that fails stops the queue pair, and all requests behind it fail. The queue pair is then destroyed,
 * which ends every access of the card to this process's memory for it. All operations of the peer end with an error,
 * and the provider repeats them. Reasons are a key that is no longer valid, a peer that is gone, or a wire that lost
 * all copies of a packet. After an error frames serve for PAUSE.
 *
 * Completions of a queue pair that was destroyed may still come. Each use of an entry of operations[] has another id,
 * by which they are recognized.
 *
 * Invariant: an operation counts in n_requests of the NIC and of the pair, and in `users` of each of its pieces, from
 * note() until finish(). Then exactly one report follows, except for one that start() refuses in the same call.
 *
 * No barrier stands here. post_send orders the program's writes to its memory before the doorbell. The driver's poll_cq
 * orders the read of a completion before later reads of the memory that a read filled. At the target the card stores
 * into memory without a completion: the program's acquiring load of the last word orders the rest after it.
 *
 * Only the NIC's owner calls these functions. drop_memory() is the one that waits.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "link/verbs.h"

#define PAUSE (50 * VK_MS)        /* at most 20 new queue pairs a second for a peer whose operations keep failing */
#define PATIENCE (30 * VK_SECOND) /* far beyond the card's own limit: 7 time-outs of 67 to 268 ms (verbs_pair.c) */
#define WORD 8                    /* bytes of a write's last word, which programs poll */
#define RETRY (20 * VK_US)        /* until a full queue is tried again */

/* ---------------------------------------------------------------- memory */

/* mr is NULL if the card or the limit of locked memory refuses: operations with the memory then go by frames. Local
 * writes are always allowed, because InfiniBand requires that for remote ones (ibv_reg_mr(3)), and reads store here. */
static struct link_memory *add_memory(struct link *link, void *address, size_t len, uint32_t rights)
{
    struct verbs *v = verbs_of(link);
    struct link_memory *m = calloc(1, sizeof *m);
    int access = IB_LOCAL_WRITE | (rights & LINK_MAY_WRITE ? IB_REMOTE_WRITE : 0) |
                 (rights & LINK_MAY_READ ? IB_REMOTE_READ : 0);
    if (m == NULL)
        return NULL;
    VK_HOLD_CANCEL;
    m->mr = v->lib->reg_mr(v->pd, address, len, access);
    return m;
}

/* Waits for operations that use the memory. The card ends them with an error if the peer does not answer. PATIENCE is
 * for a card that does not. */
static void drop_memory(struct link *link, struct link_memory *m)
{
    struct verbs *v = verbs_of(link);
    for (uint64_t give_up = vk_now() + PATIENCE; m->users;) {
        if (verbs_take(v, VERBS_TAKEN) == 0)
            sched_yield();
        for (uint32_t i = 0; m->users && vk_now() > give_up && i < VERBS_OPERATIONS; i++)
            if (v->operations[i].peer)
                verbs_rdma_end(v, v->operations[i].peer);
    }
    VK_HOLD_CANCEL;
    if (m->mr)
        v->lib->dereg_mr(m->mr);
    free(m);
}

/* ---------------------------------------------------------------- the end of operations */

/* Frees the entry, then reports: the provider may start another operation at once. */
static void finish(struct verbs *v, struct verbs_operation *o, int error)
{
    void *owner = o->owner;
    for (int i = 0; i < o->n_used; i++)
        o->used[i]->users--;
    o->peer->route->pair->n_requests -= o->n_requests;
    v->n_requests -= o->n_requests;
    o->peer = NULL;
    link_rdma_done(v->client, owner, o->index, error);
}

void verbs_rdma_end(struct verbs *v, struct link_peer *peer)
{
    verbs_pair_leave(v, peer->route->pair);
    for (uint32_t i = 0; i < VERBS_OPERATIONS; i++)
        if (v->operations[i].peer == peer)
            finish(v, &v->operations[i], -ECANCELED);
}

/* All keys are forgotten, because the error may be that of one which is no longer valid. */
void verbs_rdma_completed(struct verbs *v, const struct ib_wc *wc)
{
    struct verbs_operation *o = &v->operations[wc->id & (VERBS_OPERATIONS - 1)];
    struct link_peer *peer = o->peer;
    if (peer == NULL || o->id != wc->id)
        return;
    if (vk_likely(wc->status == 0)) {
        finish(v, o, 0);
        return;
    }
    struct verbs_pair *pair = peer->route->pair;
    pair->refused_until = vk_now() + PAUSE;
    memset(pair->keys, 0, sizeof pair->keys);
    verbs_rdma_end(v, peer);
}

/* ---------------------------------------------------------------- the start of operations */

/* Describes the operation, in requests of one piece each. Returns their number, or 0 if they are too many. */
static int describe(const struct verbs *v, const struct link_rdma *r, const struct verbs_rkey *key, uint64_t id,
                    struct ib_send_wr *wrs, struct ib_sge *sges)
{
    uint64_t done = 0, word = r->right == LINK_MAY_WRITE && r->len > WORD ? r->len - WORD : r->len;
    int n = 0;
    for (int i = 0; i < r->n_pieces; i++) {
        const struct link_piece *p = &r->pieces[i];
        for (size_t at = 0, len; at < p->len; at += len, done += len, n++) {
            len = p->len - at < v->max_message ? p->len - at : v->max_message;
            if (done < word && len > word - done)
                len = word - done;
            if (n == VERBS_REQUESTS)
                return 0;
            sges[n] = (struct ib_sge){(uint64_t)(uintptr_t)p->address + at, (uint32_t)len, p->memory->mr->lkey};
            wrs[n] = (struct ib_send_wr){.id = id,
                                         .next = &wrs[n + 1],
                                         .pieces = &sges[n],
                                         .n_pieces = 1,
                                         .opcode = r->right == LINK_MAY_WRITE ? IB_WRITE : IB_READ,
                                         .remote = r->address + done,
                                         .rkey = key->rkey};
        }
    }
    wrs[n - 1].next = NULL;
    wrs[n - 1].flags = IB_SIGNALED;
    return n;
}

/* Returns a free entry, with a new id. NULL if all are in use. */
static struct verbs_operation *free_operation(struct verbs *v)
{
    for (uint32_t i = 0; i < VERBS_OPERATIONS; i++)
        if (v->operations[i].peer == NULL) {
            uint64_t uses = (v->operations[i].id >> 16) + 1;
            v->operations[i].id = VERBS_RDMA | uses << 16 | i;
            return &v->operations[i];
        }
    return NULL;
}

/* Requests a poll, after which the provider starts the operation again. Returns -EAGAIN. */
static int again_soon(struct verbs *v)
{
    link_timer(v->client, vk_now() + RETRY);
    return -EAGAIN;
}

/* Notes the operation as under way, before its requests can complete. */
static void note(struct verbs *v, struct verbs_operation *o, struct link_peer *peer, const struct link_rdma *r, int n)
{
    o->peer = peer;
    o->owner = r->owner;
    o->index = r->index;
    o->n_requests = (uint32_t)n;
    o->n_used = r->n_pieces;
    for (int i = 0; i < r->n_pieces; i++) {
        o->used[i] = r->pieces[i].memory;
        o->used[i]->users++;
    }
    peer->route->pair->n_requests += (uint32_t)n;
    v->n_requests += (uint32_t)n;
}

/* The target's card checks key, range and rights again. The check here avoids an error that would stop the queue pair,
 * and with it all operations of the peer. */
static int start(struct link *link, struct link_peer *peer, const struct link_rdma *r)
{
    struct verbs *v = verbs_of(link);
    struct ib_send_wr wrs[VERBS_REQUESTS + 1], *bad = NULL;
    struct ib_sge sges[VERBS_REQUESTS];
    const struct verbs_rkey *key;
    for (int i = 0; i < r->n_pieces; i++)
        if (r->pieces[i].memory->mr == NULL)
            return -EOPNOTSUPP;
    int error = verbs_pair_ready(v, peer, r, &key);
    if (error)
        return error;
    uint64_t offset = r->address - key->address; /* wraps below the region, and is then too large */
    if (!(key->rights & r->right) || offset > key->len || r->len > key->len - offset)
        return -EOPNOTSUPP;
    struct verbs_operation *o = free_operation(v);
    if (o == NULL)
        return again_soon(v);
    int n = describe(v, r, key, o->id, wrs, sges);
    if (n == 0)
        return -EOPNOTSUPP;
    if (peer->route->pair->n_requests + (uint32_t)n > VERBS_PAIR_REQUESTS ||
        v->n_requests + (uint32_t)n > VERBS_ALL_REQUESTS)
        return again_soon(v);
    note(v, o, peer, r, n);
    VK_HOLD_CANCEL;
    if (v->context->ops.post_send(peer->route->pair->out, wrs, &bad) == 0)
        return 0;
    /* The card has refused some of them, or all: that is like an error of the queue pair, but this operation is not
     * reported, because it has not started. */
    for (int i = 0; i < o->n_used; i++)
        o->used[i]->users--;
    peer->route->pair->n_requests -= o->n_requests;
    v->n_requests -= o->n_requests;
    o->peer = NULL;
    peer->route->pair->refused_until = vk_now() + PAUSE;
    verbs_rdma_end(v, peer);
    return -EOPNOTSUPP;
}

/* The provider calls this when a connection with operations under way ends (via_card_stop()). */
static void cancel(struct link *link, struct link_peer *peer)
{
    if (peer->route && peer->route->pair)
        verbs_rdma_end(verbs_of(link), peer);
}

const struct link_card verbs_card = {
    .add_memory = add_memory, .drop_memory = drop_memory, .start = start, .cancel = cancel};
