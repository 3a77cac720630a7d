/*
 * A ring of records of any length between one producer and one consumer, without locks. The producer never waits: a
 * record that does not fit is counted as lost. The consumer never disturbs the producer, and polls at times of its
 * choice.
 *
 *      head                 tail      at
 *   ----+--------------------+---------+-----------------
 *       | to be consumed     | held    | free               head <= tail <= at <= head + size, free-running byte counts
 *
 * A record begins with its length (struct vk_record), a multiple of 8, and is contiguous: one that would cross the end
 * is preceded by a filler. Records between tail and at are written but not published, so that the producer can still
 * change them (vk_ring_hold, vk_ring_release).
 */
#ifndef VIAKIT_RING_H
#define VIAKIT_RING_H

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

struct vk_record {
    uint32_t size; /* bytes of the whole record, including this struct: a multiple of 8 */
    uint32_t kind; /* VK_RECORD_FILLER, or a kind of the user's */
};

#define VK_RECORD_FILLER 0u

struct vk_ring {
    uint8_t *bytes;
    uint64_t size; /* a power of two */
    uint64_t tail, at, lost;
    uint64_t free_until; /* end of the free room, as far as the producer knows */
    uint32_t holds;
    uint64_t head __attribute__((aligned(VK_CACHE_LINE))); /* written by the consumer; on a line of its own */
};

/* Maps the memory. size is rounded up to a power of two of at least a page. Returns 0 or -errno. */
int vk_ring_init(struct vk_ring *ring, size_t size);
void vk_ring_fini(struct vk_ring *ring);

/* Reserves a record of n bytes, the head included, and fills in its head. If there is no room, returns NULL and counts
 * a lost record. A filler always fits: positions and the size are multiples of 8, and a head has 8 bytes. vk_ring_show
 * publishes it to the consumer. */
static inline void *vk_ring_reserve(struct vk_ring *ring, uint32_t n, uint32_t kind)
{
    uint64_t size = ((uint64_t)n + 7) & ~7ull, to_end = ring->size - (ring->at & (ring->size - 1));
    uint64_t need = size > to_end ? size + to_end : size;
    /* `head` is read only when the known room is used up, because its cache line belongs to the consumer. */
    if (vk_unlikely(ring->free_until - ring->at < need)) {
        /* acquire: the consumer has read the records up to head */
        ring->free_until = vk_load_acquire(&ring->head) + ring->size;
        if (ring->free_until - ring->at < need) {
            vk_store_relaxed(&ring->lost, ring->lost + 1);
            return NULL;
        }
    }
    struct vk_record *r = (struct vk_record *)(void *)(ring->bytes + (ring->at & (ring->size - 1)));
    if (vk_unlikely(size > to_end)) {
        *r = (struct vk_record){(uint32_t)to_end, VK_RECORD_FILLER};
        ring->at += to_end;
        r = (struct vk_record *)(void *)ring->bytes;
    }
    *r = (struct vk_record){(uint32_t)size, kind};
    ring->at += size;
    return r;
}

/* Publishes the records reserved so far, which must be complete, unless they are held. */
static inline void vk_ring_show(struct vk_ring *ring)
{
    if (ring->holds == 0)
        vk_store_release(&ring->tail, ring->at); /* release: the records are visible before the new tail */
}

/* Between these two calls, no new record is published. They nest. */
static inline void vk_ring_hold(struct vk_ring *ring)
{
    ring->holds++;
}

static inline void vk_ring_release(struct vk_ring *ring)
{
    ring->holds--;
    vk_ring_show(ring);
}

/* The consumer's side: returns the next record, or NULL. It stays valid until vk_ring_consume. */
static inline const struct vk_record *vk_ring_next(struct vk_ring *ring)
{
    for (;;) {
        /* Only the consumer writes `head`. Acquire: the records are complete up to the tail that is read. */
        uint64_t head = ring->head;
        if (vk_load_acquire(&ring->tail) == head)
            return NULL;
        const struct vk_record *r = (const struct vk_record *)(const void *)(ring->bytes + (head & (ring->size - 1)));
        if (vk_likely(r->kind != VK_RECORD_FILLER))
            return r;
        vk_store_release(&ring->head, head + r->size);
    }
}

/* Frees the record that vk_ring_next returned last. The caller no longer reads it. */
static inline void vk_ring_consume(struct vk_ring *ring, const struct vk_record *r)
{
    vk_store_release(&ring->head, ring->head + r->size); /* release: it has been read before its room is free */
}

#endif
