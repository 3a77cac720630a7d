/*
 * Memory ordering by name. These are all that viakit uses; at each use a comment says what is ordered before what.
 *
 *   vk_load_acquire     what was written before the matching release is visible after this load
 *   vk_store_release    everything written so far is visible to whoever acquires this value
 *   vk_load_relaxed,    a plain word that another thread may read or write: no tearing, no order
 *   vk_store_relaxed
 *   vk_exchange,        a read and a write that nothing comes between; acquires what it finds, releases what it leaves.
 *   vk_compare_exchange   The second returns 1 if it found `expected`, and then has written; else it ordered nothing
 *   vk_add              adds, returns the sum, and is in one order with all other vk_add and vk_fence_full
 *   vk_fence_full       stores before it are visible before loads after it: the one order that neither acquire nor
 *                       release gives, and that even x86 does not keep by itself
 *
 * A pair of threads that each write one word and then read the other's needs a vk_fence_full on both sides between the
 * two; with anything less both may read the old values.
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

/* Tells the processor that this is a spin loop. */
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
