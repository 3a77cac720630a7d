/* See pool.h: address space per kind of object, a free list through the dead ones. */
#include "pool.h"

#include <string.h>
#include <sys/mman.h>

void *vk_pool_get(struct vk_pool *pool)
{
    struct vk_object *o = NULL;
    pthread_mutex_lock(&pool->mutex);
    if (pool->base == NULL) {
        void *p = mmap(NULL, pool->stride * pool->capacity, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED)
            __atomic_store_n(&pool->base, p, __ATOMIC_RELAXED);
    }
    if (pool->base != NULL) {
        uint32_t index = UINT32_MAX, generation = 0;
        if (pool->free_list) {
            index = pool->free_list - 1;
            o = (struct vk_object *)(pool->base + index * pool->stride);
            pool->free_list = o->next_free;
            generation = o->generation;
        } else if (pool->n_touched < pool->capacity) {
            index = pool->n_touched++;
            o = (struct vk_object *)(pool->base + index * pool->stride);
        }
        if (o != NULL) {
            memset((char *)o + sizeof *o, 0, pool->stride - sizeof *o);
            o->generation = (generation + 1) & 63;
            o->index = index;
            o->next_free = 0;
            __atomic_store_n(&o->alive, 1, __ATOMIC_RELEASE);
            pool->n_alive++;
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    return o;
}

void vk_pool_put(struct vk_pool *pool, void *object)
{
    struct vk_object *o = object;
    pthread_mutex_lock(&pool->mutex);
    __atomic_store_n(&o->alive, 0, __ATOMIC_RELEASE);
    o->next_free = pool->free_list;
    pool->free_list = o->index + 1;
    pool->n_alive--;
    pthread_mutex_unlock(&pool->mutex);
}
