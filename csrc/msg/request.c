/*
 * Requests and envelopes: pools that grow by blocks and never shrink, so that nothing is allocated on
 * the path of a message once as many have existed at a time.
 *
 * A request's id travels to the other rank and comes back with the answer, where it is looked
 * up, never believed:
 *
 *      63          32 31           0
 *     | generation   | index        |      index / MSG_SLAB_REQUESTS: the slab; the remainder: the place in it
 *
 * The generation counts the lives of a place, from 1 on, so an id of a request that has ended finds nothing:
 * neither an answer that comes twice, nor one that comes when its request has ended in error. Id 0 names none.
 *
 * Invariant: a request is in the free list, or has a kind; `complete` of a free one stays 1 until the place is
 * used again, for a caller may still be looking at it (msg_request_peek). An envelope is in the free list, or
 * in the early queue, or `taken`: then whoever took it gives it back. Called with the world's lock held.
 */
#include <stdlib.h>

#include "engine.h"

#define BLOCK_MESSAGES 64

/* Envelopes, 64 at a time; blocks are freed with the world only. */
struct block {
    struct block *next;
    msg_message messages[BLOCK_MESSAGES];
};

int msg_pool_init(msg_world *w)
{
    return msg_lanes_init(&w->posted) == 0 && msg_lanes_init(&w->early) == 0 ? 0 : MSG_ERR_NO_MEMORY;
}

/* An index is a slab and a place in it. Strides are whole cache lines, so that two requests never share one. */
static msg_request *request_at(const msg_world *w, uint32_t index)
{
    return (msg_request *)(void *)(w->slabs[index / MSG_SLAB_REQUESTS] +
                                   (size_t)(index % MSG_SLAB_REQUESTS) * MSG_REQUEST_STRIDE);
}

void msg_each_request(msg_world *w, void (*f)(msg_request *, void *), void *context)
{
    for (uint32_t i = 0; i < w->n_slabs * MSG_SLAB_REQUESTS; i++)
        if (request_at(w, i)->kind != MSG_REQ_FREE)
            f(request_at(w, i), context);
}

static void free_own(msg_request *r, void *context)
{
    (void)context;
    if (r->flags & MSG_OWN_COPY)
        free(r->buf);
}

/* Requests that are still active go too, with the copies that they own; the channel has let go of their buffers when
 * it closed. */
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
    msg_lanes_fini(&w->early);
}

/* 200 more. The youngest block is used first. */
static int more_requests(msg_world *w)
{
    /* The table of slabs may move; slabs do not, and pointers to requests are good as long as the world. */
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
    /* Backwards, so that the free list gives them out in the order of addresses. */
    for (uint32_t i = MSG_SLAB_REQUESTS; i-- > 0;) {
        msg_request *r = (msg_request *)(void *)((char *)slab + (size_t)i * MSG_REQUEST_STRIDE);
        r->id = UINT64_C(1) << 32 | (w->n_slabs * (uint32_t)MSG_SLAB_REQUESTS + i); /* never 0: that names none */
        r->link.next = (struct msg_link *)(void *)w->free_requests;
        w->free_requests = r;
    }
    w->n_slabs++;
    return 0;
}

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

/* The generation goes up: whoever still has the id, here or at another rank, finds nothing from now on. It goes round
 * after 2^32 lives, and passes over 0, for the first place would then have the id that names none. `complete` stays set
 * until the place is used again. */
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

/* Ids come from the other side: anything may be in them. A request that is complete but not yet
 * reaped counts as ended: nothing may be changed in it any more. */
msg_request *msg_request_find(msg_world *w, uint64_t id)
{
    uint32_t index = (uint32_t)id;
    if (index >= w->n_slabs * (uint32_t)MSG_SLAB_REQUESTS)
        return NULL;
    msg_request *r = request_at(w, index);
    return r->id == id && r->kind != MSG_REQ_FREE && !r->complete ? r : NULL;
}

/* Once per request; later calls change nothing, so whoever notices an end first decides how
 * it was. With MSG_QUEUED its packet is still in a queue that points at it: then
 * msg_out_taken, or the end of the rank, frees it. */
void msg_complete(msg_request *r, int error)
{
    msg_world *w = r->world;
    if (r->complete)
        return;
    if (error)
        r->status.error = error;
    vk_store_release(&r->complete, 1); /* after the status: msg_request_peek looks without the lock */
    w->n_completed++;
    /* The data of a buffered send is no longer needed: its piece of the attached buffer is free again. */
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

/* Room for len bytes: in the envelope itself up to MSG_INLINE, else allocated, and counted in early_bytes, on
 * which XOFF depends. Envelopes for data that a policy wants copied on the way count as well. NULL: no memory. */
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
    m->len = len;
    w->early_bytes += len > MSG_INLINE ? len : 0;
    w->counters[MSG_COUNTER_unexpected_bytes_now] = w->early_bytes;
    if (w->early_bytes > w->counters[MSG_COUNTER_unexpected_bytes_most])
        w->counters[MSG_COUNTER_unexpected_bytes_most] = w->early_bytes;
    return m;
}

/* Back into the pool. That may bring early_bytes below half of what is allowed, and then everybody who was
 * asked to wait hears that he may send again: half, so that XOFF and XON do not alternate with each message. */
void msg_message_put(msg_world *w, msg_message *m)
{
    if (m->data != m->small && m->data != NULL) {
        w->early_bytes -= m->len;
        w->counters[MSG_COUNTER_unexpected_bytes_now] = w->early_bytes;
        free(m->data);
    }
    m->data = NULL;
    m->next = w->free_messages;
    w->free_messages = m;
    if (vk_unlikely(w->throttling) && w->early_bytes < (size_t)w->policy.unexpected_bytes / 2)
        msg_relieve(w);
}
