/*
 * A ring of records of any length between one producer and one consumer, without locks. The producer never waits:
 * what finds no room is counted as lost. The consumer never disturbs: it looks when it likes.
 *
 *      head                 tail      at
 *   ----+--------------------+---------+-----------------
 *       | to be consumed     | held    | free               head <= tail <= at <= head + size, free-running byte counts
 *
 * A record begins with its length (struct vk_record), a multiple of 8, and lies in one piece: one that would cross
 * the end is preceded by a filler. Records between tail and at are written but not yet shown, so that the producer
 * can still change them (vk_ring_hold, vk_ring_release).
 */
#ifndef VIAKIT_RING_H
#define VIAKIT_RING_H

#include <stddef.h>
#include <stdint.h>

#include "atomic.h"

struct vk_record {
    uint32_t size; /* of the whole record, this included; a multiple of 8 */
    uint32_t kind; /* VK_RECORD_FILLER, or the user's */
};

#define VK_RECORD_FILLER 0u

struct vk_ring {
    uint8_t *bytes;
    uint64_t size; /* a power of two */
    uint64_t tail, at, lost;
    uint64_t free_until; /* what the producer knows of the room */
    uint32_t holds;
    uint64_t head __attribute__((aligned(VK_CACHE_LINE))); /* the consumer's; on a line of its own */
};

/* Maps the memory. size is rounded up to a power of two of at least a page. 0, or -errno. */
int vk_ring_init(struct vk_ring *ring, size_t size);
void vk_ring_fini(struct vk_ring *ring);

/* Room for a record of n bytes, its head filled in; NULL, and one more lost, if there is none. It is shown to the
 * consumer by vk_ring_show. */
static inline void *vk_ring_reserve(struct vk_ring *ring, uint32_t n, uint32_t kind)
{
    uint64_t size = ((uint64_t)n + 7) & ~7ull, to_end = ring->size - (ring->at & (ring->size - 1));
    uint64_t need = size > to_end ? size + to_end : size;
    if (vk_unlikely(ring->free_until - ring->at < need)) {
        /* acquire: the consumer has read what it says is consumed */
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

/* The records reserved so far are complete: the consumer may have them, unless they are held. */
static inline void vk_ring_show(struct vk_ring *ring)
{
    if (ring->holds == 0)
        vk_store_release(&ring->tail, ring->at); /* the records are there before the consumer is told */
}

/* Between these, nothing new is shown. They nest. */
static inline void vk_ring_hold(struct vk_ring *ring)
{
    ring->holds++;
}

static inline void vk_ring_release(struct vk_ring *ring)
{
    ring->holds--;
    vk_ring_show(ring);
}

/* The consumer's side: the next record, or NULL. It stays until vk_ring_consume. */
static inline const struct vk_record *vk_ring_next(struct vk_ring *ring)
{
    for (;;) {
        uint64_t head = ring->head;
        if (vk_load_acquire(&ring->tail) == head)
            return NULL;
        const struct vk_record *r = (const struct vk_record *)(const void *)(ring->bytes + (head & (ring->size - 1)));
        if (vk_likely(r->kind != VK_RECORD_FILLER))
            return r;
        vk_store_release(&ring->head, head + r->size);
    }
}

static inline void vk_ring_consume(struct vk_ring *ring, const struct vk_record *r)
{
    vk_store_release(&ring->head, ring->head + r->size); /* it was read before its room is given back */
}

#endif
