/*
 * Requests and envelopes: pools that grow by blocks and never shrink. The path of a message therefore allocates nothing
 * once the pools have reached their peak size.
 *
 * A request's id travels to the other rank and comes back in the reply. There it is looked up and validated:
 *
 *      63          32 31           0
 *     | generation   | index        |      index / MSG_SLAB_REQUESTS: the slab; the remainder: the place in it
 *
 * The generation counts the uses of a place, from 1 on, so the id of a completed request finds nothing. This covers
 * duplicate replies, and replies to a request that has ended in error. Id 0 names no request.
 *
 * Invariant: a request is in the free list, or has a kind. `complete` of a free request stays 1 until its place is used
 * again, because a caller may still read it (msg_request_peek). An envelope is in the free list, or in the unexpected
 * queue, or `taken`; a taken envelope is returned by the code that removed it from the queue. Called with the world's
 * lock held.
 */
#include <stdlib.h>

#include "msg/engine.h"

#define BLOCK_MESSAGES 64

/* Envelopes, 64 at a time. Blocks are freed only with the world. */
struct block {
    struct block *next;
    msg_message messages[BLOCK_MESSAGES];
};

/* Makes the queues of posted receives and unexpected messages; requests and envelopes follow on demand. Returns 0 or
 * MSG_ERR_NO_MEMORY. */
int msg_pool_init(msg_world *w)
{
    return msg_lanes_init(&w->posted) == 0 && msg_lanes_init(&w->unexpected) == 0 ? 0 : MSG_ERR_NO_MEMORY;
}

/* Finds the slab and the place of an index. Strides are whole cache lines, so that two requests never share one. */
static msg_request *request_at(const msg_world *w, uint32_t index)
{
    return (msg_request *)(void *)(w->slabs[index / MSG_SLAB_REQUESTS] +
                                   (size_t)(index % MSG_SLAB_REQUESTS) * MSG_REQUEST_STRIDE);
}

/* f is also called for complete requests that were not reaped. It may free the request that it is given, because no
 * list is followed here. */
void msg_each_request(msg_world *w, void (*f)(msg_request *, void *), void *context)
{
    for (uint32_t i = 0; i < w->n_slabs * MSG_SLAB_REQUESTS; i++)
        if (request_at(w, i)->kind != MSG_REQ_FREE)
            f(request_at(w, i), context);
}

/* For msg_each_request: frees the copy of the data that a request owns. */
static void free_own(msg_request *r, void *context)
{
    (void)context;
    if (r->flags & MSG_OWN_COPY)
        free(r->buf);
    if (r->flags & MSG_BSEND)
        msg_buffer_abandon(r->world, r->buf);
}

/* Frees active requests, too, with the copies that they own and their pieces of an automatic buffer. The channel
 * released their buffers when it closed. */
void msg_pool_fini(msg_world *w)
{
    msg_each_request(w, free_own, NULL);
    for (uint32_t i = 0; i < w->n_slabs; i++)
        free(w->slabs[i]);
    free(w->slabs);
    for (struct block *b = w->blocks, *next; b; b = next) {
        next = b->next;
        for (int i = 0; i < BLOCK_MESSAGES; i++)
            if (b->messages[i].data != b->messages[i].small)
                free(b->messages[i].data);
        free(b);
    }
    msg_lanes_fini(&w->posted);
    msg_lanes_fini(&w->unexpected);
}

/* Adds MSG_SLAB_REQUESTS (about 200) requests. The newest block is used first. */
static int more_requests(msg_world *w)
{
    /* The table of slabs may move. Slabs do not, so pointers to requests are valid as long as the world. */
    char **slabs = realloc(w->slabs, (w->n_slabs + 1) * sizeof *slabs);
    if (slabs == NULL)
        return -1;
    w->slabs = slabs;
    void *slab;
    if (posix_memalign(&slab, VK_CACHE_LINE, MSG_SLAB_BYTES) != 0)
        return -1;
    memset(slab, 0, MSG_SLAB_BYTES);
    MSG_COUNT(w, allocations, 1);
    slabs[w->n_slabs] = slab;
    /* In reverse, so that the free list returns requests in ascending order of address. */
    for (uint32_t i = MSG_SLAB_REQUESTS; i-- > 0;) {
        msg_request *r = (msg_request *)(void *)((char *)slab + (size_t)i * MSG_REQUEST_STRIDE);
        /* never 0, which names no request */
        r->id = UINT64_C(1) << 32 | (w->n_slabs * (uint32_t)MSG_SLAB_REQUESTS + i);
        r->link.next = (struct msg_link *)(void *)w->free_requests;
        w->free_requests = r;
    }
    w->n_slabs++;
    return 0;
}

/* NULL: no memory. The request belongs to the caller until msg_request_put, or until it completes with MSG_DETACHED
 * set. The buffer is not copied. */
msg_request *msg_request_new(msg_world *w, int kind, int context, int peer, int tag, void *buf, size_t len)
{
    if (vk_unlikely(w->free_requests == NULL) && more_requests(w) != 0)
        return NULL;
    msg_request *r = w->free_requests;
    w->free_requests = (msg_request *)(void *)r->link.next;
    r->world = w;
    r->kind = (uint8_t)kind;
    r->flags = 0;
    r->complete = 0;
    r->how = MSG_BY_STREAM;
    r->sharing = MSG_ALONE;
    r->buf = buf;
    r->len = len;
    r->context = context;
    r->peer = peer;
    r->tag = tag;
    r->registered = NULL;
    r->moving = NULL;
    r->want = r->started = r->moved = 0;
    r->status = (msg_status){.source = peer, .tag = tag, .id = r->id};
    MSG_COUNT(w, requests_now, 1);
    return r;
}

/* Increments the generation, so that the old id, here or at another rank, finds nothing from now on. The generation
 * wraps after 2^32 uses and skips 0, because the first place would otherwise get id 0. `complete` stays set until
 * the place is used again. */
void msg_request_put(msg_world *w, msg_request *r)
{
    if (r->flags & MSG_OWN_COPY)
        free(r->buf);
    r->kind = MSG_REQ_FREE;
    r->flags = 0;
    r->id += UINT64_C(1) << 32;
    if (vk_unlikely(r->id >> 32 == 0))
        r->id += UINT64_C(1) << 32;
    r->link.next = (struct msg_link *)(void *)w->free_requests;
    w->free_requests = r;
    MSG_COUNT(w, requests_now, -1);
}

/* Ids come from the other rank and may have any value. A request that is complete but not yet reaped counts as
 * ended: it must not be changed any more. */
msg_request *msg_request_find(msg_world *w, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    if (index >= w->n_slabs * (uint32_t)MSG_SLAB_REQUESTS)
        return NULL;
    msg_request *r = request_at(w, index);
    return r->id == id && r->kind != MSG_REQ_FREE && !r->complete ? r : NULL;
}

/* Takes effect once per request; the first call determines the result. With MSG_QUEUED, a queue still points at its
 * packet: then msg_out_taken, or the failure of the rank, frees the request. */
void msg_complete(msg_request *r, int error)
{
    msg_world *w = r->world;
    if (r->complete)
        return;
    if (error)
        r->status.error = error;
    vk_store_release(&r->complete, 1); /* After the status: msg_request_peek reads it without the lock. */
    w->n_completed++;
    /* The data of a buffered send is no longer needed, so its part of the attached buffer becomes free. */
    if (r->flags & MSG_BSEND) {
        msg_buffer_put(w, r->buf);
        r->flags &= (uint8_t)~MSG_BSEND;
    }
    if ((r->flags & (MSG_DETACHED | MSG_QUEUED)) == MSG_DETACHED)
        msg_request_put(w, r);
    if (vk_unlikely(w->n_sleeping))
        pthread_cond_broadcast(&w->changed);
}

/* ---------------------------------------------------------------- envelopes */

/* Returns an envelope for len bytes. Up to MSG_INLINE bytes are stored in the envelope. Longer data is allocated and
 * counted in unexpected_bytes, on which XOFF depends. Envelopes for data that a policy copies on the way count as well.
 * NULL: no memory. */
msg_message *msg_message_new(msg_world *w, size_t len)
{
    if (w->free_messages == NULL) {
        struct block *b = calloc(1, sizeof *b);
        if (b == NULL)
            return NULL;
        MSG_COUNT(w, allocations, 1);
        b->next = w->blocks;
        w->blocks = b;
        for (int i = 0; i < BLOCK_MESSAGES; i++) {
            b->messages[i].next = w->free_messages;
            w->free_messages = &b->messages[i];
        }
    }
    msg_message *m = w->free_messages;
    char *data = m->small;
    if (len > MSG_INLINE) {
        data = malloc(len);
        if (data == NULL)
            return NULL;
        MSG_COUNT(w, allocations, 1);
    }
    w->free_messages = m->next;
    m->world = w;
    m->arriving = m->taken = 0;
    m->to = m->from = NULL;
    m->data = data;
    m->len = m->here = len;
    w->unexpected_bytes += len > MSG_INLINE ? len : 0;
    w->counters[MSG_COUNTER_unexpected_bytes_now] = w->unexpected_bytes;
    if (w->unexpected_bytes > w->counters[MSG_COUNTER_unexpected_bytes_most])
        w->counters[MSG_COUNTER_unexpected_bytes_most] = w->unexpected_bytes;
    return m;
}

/* Returns an envelope to the pool. If unexpected_bytes thereby drops below half of the bound, all throttled senders may
 * send eagerly again. The limit is half, so that XOFF and XON do not alternate with each message. */
void msg_message_put(msg_world *w, msg_message *m)
{
    if (m->data != m->small && m->data != NULL) {
        w->unexpected_bytes -= m->here;
        w->counters[MSG_COUNTER_unexpected_bytes_now] = w->unexpected_bytes;
        free(m->data);
    }
    m->data = NULL;
    m->next = w->free_messages;
    w->free_messages = m;
    if (vk_unlikely(w->throttling) && w->unexpected_bytes < (size_t)w->policy.unexpected_bytes / 2)
        msg_relieve(w);
}
