/*
 * Memory ordering by name. viakit uses only the operations listed here. A comment at each use states which access is
 * ordered before which.
 *
 *   vk_load_acquire     writes before the matching release are visible after this load
 *   vk_store_release    all writes so far are visible to a thread that acquires this value
 *   vk_load_relaxed,    a plain word that another thread may read or write: no tearing, no order
 *   vk_store_relaxed
 *   vk_exchange,        an atomic read and write; acquires the old value, releases the new one. The second returns 1
 *   vk_compare_exchange   if it found `expected` and has written; else it orders nothing
 *   vk_add              adds, returns the sum, and is in one order with all other vk_add and vk_fence_full
 *   vk_fence_full       stores before it are visible before loads after it: neither acquire nor release gives this
 *                       order, and x86 does not keep it by itself, either
 *
 * Two threads that each write one word and then read the other's need a vk_fence_full between the two on both sides.
 * With any weaker order both may read the old values.
 */
#ifndef VIAKIT_ATOMIC_H
#define VIAKIT_ATOMIC_H

#include <stdint.h>

#define vk_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define vk_store_release(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)
#define vk_load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define vk_store_relaxed(p, v) __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define vk_exchange(p, v) __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL)
#define vk_add(p, v) __atomic_add_fetch((p), (v), __ATOMIC_SEQ_CST)
#define vk_fence_full() __atomic_thread_fence(__ATOMIC_SEQ_CST)

static inline int vk_compare_exchange(uint32_t *p, uint32_t expected, uint32_t desired)
{
    return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* Keeps the compiler, not the processor, from moving memory accesses across. */
#define vk_compiler_barrier() __asm__ __volatile__("" ::: "memory")

/* Notifies the processor that this is a spin loop. */
static inline void vk_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#define vk_likely(x) __builtin_expect(!!(x), 1)
#define vk_unlikely(x) __builtin_expect(!!(x), 0)
#define VK_CACHE_LINE 64

#if defined(__SANITIZE_THREAD__)
#define VK_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VK_TSAN 1
#endif
#endif
#ifndef VK_TSAN
#define VK_TSAN 0
#endif

#endif
