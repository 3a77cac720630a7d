/* The memory of a record ring: mapped, so that pages cost nothing until they are used. */
#include "base/ring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

/* The whole ring is free, because the consumer has read nothing yet. */
int vk_ring_init(struct vk_ring *ring, size_t size)
{
    uint64_t rounded = 4096;
    /* The bound ends the loop for any size. mmap then refuses what the machine lacks. */
    while (rounded < size && rounded < 1ull << 40)
        rounded *= 2;
    void *p = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return -errno;
    memset(ring, 0, sizeof *ring);
    ring->bytes = p;
    ring->size = ring->free_until = rounded;
    return 0;
}

/* Neither side uses the ring any more. A second call has no effect, nor has a call on a ring of zeros. */
void vk_ring_fini(struct vk_ring *ring)
{
    if (ring->bytes)
        munmap(ring->bytes, ring->size);
    ring->bytes = NULL;
}
