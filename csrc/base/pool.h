/*
 * Objects behind handles. A pool reserves address space for all objects of one kind and never returns it. A stale or
 * forged handle can therefore be checked safely: vk_pool_find returns NULL instead of crashing. A handle is the
 * object's address with its generation in the six low bits. A slot that is used again has another generation, so an old
 * handle stays invalid for 62 rounds.
 *
 * A handle may die after a thread has looked it up, and before the thread owns what it needs to use the object.
 * Therefore the first `keep` bytes of a slot are never cleared. Their fields (the NIC of an object, the owner of a NIC)
 * can be read and used at any time by any thread. Afterwards the generation shows whether the object is still the same.
 */
#ifndef VIAKIT_POOL_H
#define VIAKIT_POOL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* First member of every pooled struct. */
struct vk_object {
    uint32_t generation; /* 1..63 while alive. VK_DEAD is added when the object dies. 0: never used */
    uint32_t index;
    uint32_t next_free;
    uint32_t reserved;
};
#define VK_DEAD 0x80000000u

struct vk_pool {
    size_t stride; /* bytes between objects: a power of two, at least 64 */
    size_t keep;   /* bytes at the beginning of a slot that are unchanged when it is used again */
    uint32_t capacity;
    uint32_t n_touched, free_list, n_alive; /* free_list: index + 1, or 0 if it is empty */
    char *base;
    pthread_mutex_t mutex;
    struct vk_pool *next; /* all pools in use, for fork */
};

/* `after_kept` is the first member that is zeroed in a new object. */
#define VK_POOL_INIT(type, n, after_kept)    \
    {.stride = VK_POOL_STRIDE(sizeof(type)), \
     .keep = offsetof(type, after_kept),     \
     .capacity = (n),                        \
     .mutex = PTHREAD_MUTEX_INITIALIZER}
#define VK_POOL_STRIDE(size) \
    ((size) <= 64     ? 64   \
     : (size) <= 256  ? 256  \
     : (size) <= 1024 ? 1024 \
     : (size) <= 2048 ? 2048 \
     : (size) <= 4096 ? 4096 \
                      : 16384)

/* Returns a new object, zeroed except for the kept bytes, or NULL if the pool is exhausted. Slow path: locks a mutex.
 * The handle is valid from now on, but no other thread has it yet. */
void *vk_pool_get(struct vk_pool *pool);
/* Releases the object. Its handles are invalid from now on. */
void vk_pool_put(struct vk_pool *pool, void *object);

/* Objects lie at multiples of 64 bytes at least, so the six low bits of an address are free. */
static inline void *vk_pool_handle(const void *object)
{
    const struct vk_object *o = (const struct vk_object *)object;
    return (char *)(uintptr_t)object + (o->generation & 63);
}

/* Returns the slot that a handle points at, alive or not, or NULL if the handle is outside the pool. *generation is the
 * handle's. stride and capacity are the pool's, passed as constants for the compiler.
 *
 * An address below the pool becomes a large offset, because the difference is unsigned. A pointer into the middle of a
 * slot has a "generation" above 63, which no living object has. */
static inline __attribute__((always_inline)) void *vk_pool_slot(const struct vk_pool *pool, const void *handle,
                                                                size_t stride, size_t capacity, uint32_t *generation)
{
    const char *base = __atomic_load_n(&pool->base, __ATOMIC_RELAXED);
    size_t offset = (size_t)((const char *)handle - base);
    if (__builtin_expect(base == NULL || offset >= stride * capacity, 0))
        return NULL;
    *generation = (uint32_t)(offset & (stride - 1));
    return (void *)(uintptr_t)((const char *)handle - *generation);
}

/* Returns whether it is still the object that the handle was made for. Acquire, paired with the release of vk_pool_get:
 * the fields of the object are visible with its generation. */
static inline int vk_object_is(const struct vk_object *o, uint32_t generation)
{
    return __atomic_load_n(&o->generation, __ATOMIC_ACQUIRE) == generation;
}

/* Returns the living object of this handle, or NULL. No lock. Generation 0 is refused, because a slot that was never
 * used has it. */
static inline void *vk_pool_find(const struct vk_pool *pool, const void *handle)
{
    uint32_t generation;
    struct vk_object *o = (struct vk_object *)vk_pool_slot(pool, handle, pool->stride, pool->capacity, &generation);
    return o && generation && vk_object_is(o, generation) ? o : NULL;
}

#endif
