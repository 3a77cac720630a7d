/*
 * Objects behind handles. A pool reserves address space for all objects of one kind and never returns it, so that a stale or
 * invented handle can be looked at safely: vk_pool_find answers NULL instead of crashing. A handle is the object's
 * address with its generation in the six low bits; a slot that is used again has another generation, so an old handle
 * stays invalid for 63 rounds.
 */
#ifndef VIAKIT_POOL_H
#define VIAKIT_POOL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* First member of every pooled struct. */
struct vk_object {
    uint32_t generation; /* 0..63 */
    uint32_t alive;
    uint32_t index;
    uint32_t next_free;
};

struct vk_pool {
    size_t stride; /* bytes between objects: a power of two, at least 64 */
    uint32_t capacity;
    uint32_t n_touched, free_list, n_alive; /* free_list: index + 1, 0 none */
    char *base;
    pthread_mutex_t mutex;
};

#define VK_POOL_INIT(type, n) \
    {.stride = VK_POOL_STRIDE(sizeof(type)), .capacity = (n), .mutex = PTHREAD_MUTEX_INITIALIZER}
#define VK_POOL_STRIDE(size) \
    ((size) <= 64     ? 64   \
     : (size) <= 256  ? 256  \
     : (size) <= 1024 ? 1024 \
     : (size) <= 2048 ? 2048 \
     : (size) <= 4096 ? 4096 \
                      : 16384)

/* A zeroed, living object, or NULL when the pool is exhausted. Slow path: takes a mutex. */
void *vk_pool_get(struct vk_pool *pool);
void vk_pool_put(struct vk_pool *pool, void *object);

static inline void *vk_pool_handle(const void *object)
{
    const struct vk_object *o = (const struct vk_object *)object;
    return (char *)(uintptr_t)object + (o->generation & 63);
}

/* The living object of this handle, or NULL. No lock: a load, a compare and two checks. stride and capacity are the pool's, given as
 * constants so that the compiler has them. */
static inline __attribute__((always_inline)) void *vk_pool_find_in(const struct vk_pool *pool, const void *handle,
                                                                   size_t stride, size_t capacity)
{
    const char *base = __atomic_load_n(&pool->base, __ATOMIC_RELAXED);
    size_t offset = (size_t)((const char *)handle - base);
    if (__builtin_expect(base == NULL || offset >= stride * capacity, 0))
        return NULL;
    size_t low = offset & (stride - 1);
    struct vk_object *o = (struct vk_object *)(uintptr_t)((const char *)handle - low);
    if (__builtin_expect(low != o->generation || !__atomic_load_n(&o->alive, __ATOMIC_RELAXED), 0))
        return NULL;
    return o;
}

static inline void *vk_pool_find(const struct vk_pool *pool, const void *handle)
{
    return vk_pool_find_in(pool, handle, pool->stride, pool->capacity);
}

#endif
