/*
 * See pool.h: address space per kind of object, a free list through the dead ones.
 *
 * A pool's memory is mapped once and never unmapped, so that checking an invalid handle cannot crash. Pages cost
 * nothing until an object occupies them. The generation is the last field written when an object is made, and the first
 * that changes when it dies.
 */
#include "base/pool.h"

#include <string.h>
#include <sys/mman.h>

/* ---------------------------------------------------------------- fork
 *
 * A thread may be inside a pool when another one forks. The child would find the mutex locked by a thread that it does
 * not have, and the list half changed. The forking thread therefore locks all pools' mutexes first. A pool joins the
 * list when it is first used. */

static pthread_mutex_t list_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct vk_pool *pools;

static void before_fork(void)
{
    pthread_mutex_lock(&list_mutex);
    for (struct vk_pool *p = pools; p; p = p->next)
        pthread_mutex_lock(&p->mutex);
}

static void after_fork(void)
{
    for (struct vk_pool *p = pools; p; p = p->next)
        pthread_mutex_unlock(&p->mutex);
    pthread_mutex_unlock(&list_mutex);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, after_fork, after_fork);
}

/* Reserves the address space of a pool that is used for the first time. Without address space the pool stays empty, and
 * vk_pool_get returns NULL. Both mutexes are locked in the order of before_fork, so the two cannot deadlock. */
static void reserve(struct vk_pool *pool)
{
    pthread_mutex_lock(&list_mutex);
    pthread_mutex_lock(&pool->mutex);
    if (pool->base == NULL) {
        void *p = mmap(NULL, pool->stride * pool->capacity, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) {
            pool->next = pools;
            pools = pool;
            __atomic_store_n(&pool->base, p, __ATOMIC_RELAXED);
        }
    }
    pthread_mutex_unlock(&pool->mutex);
    pthread_mutex_unlock(&list_mutex);
}

/* ---------------------------------------------------------------- objects */

/* Uses the newest entry of the free list, because its pages are warm, else the next slot that was never used. */
void *vk_pool_get(struct vk_pool *pool)
{
    struct vk_object *o = NULL;
    uint32_t index = 0, generation = 0;
    if (__atomic_load_n(&pool->base, __ATOMIC_RELAXED) == NULL)
        reserve(pool);
    pthread_mutex_lock(&pool->mutex);
    if (pool->free_list) {
        index = pool->free_list - 1;
        o = (struct vk_object *)(pool->base + index * pool->stride);
        pool->free_list = o->next_free;
        generation = o->generation & 63;
    } else if (pool->base && pool->n_touched < pool->capacity) {
        index = pool->n_touched++;
        o = (struct vk_object *)(pool->base + index * pool->stride);
    }
    /* The kept bytes are those that a thread with a stale handle may still read (pool.h). */
    if (o != NULL) {
        memset((char *)o + pool->keep, 0, pool->stride - pool->keep);
        o->index = index;
        o->next_free = 0;
        __atomic_store_n(&o->generation, generation % 63 + 1,
                         __ATOMIC_RELEASE); /* 1..63; a slot that was never used has 0 */
        pool->n_alive++;
    }
    pthread_mutex_unlock(&pool->mutex);
    return o;
}

/* The dead generation is stored at once, so the handle is invalid from here on. The rest of the slot stays unchanged
 * until it is used again. */
void vk_pool_put(struct vk_pool *pool, void *object)
{
    struct vk_object *o = object;
    pthread_mutex_lock(&pool->mutex);
    __atomic_store_n(&o->generation, o->generation | VK_DEAD, __ATOMIC_RELEASE);
    o->next_free = pool->free_list;
    pool->free_list = o->index + 1;
    pool->n_alive--;
    pthread_mutex_unlock(&pool->mutex);
}
