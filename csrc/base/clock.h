/* Monotonic time in nanoseconds, which is virtual on a simulated machine (virtual.h), and deadlines made from VIPL's
 * millisecond timeouts. */
#ifndef VIAKIT_CLOCK_H
#define VIAKIT_CLOCK_H

#include <stdint.h>
#include <time.h>

#include "base/virtual.h"

/* Lengths of time in ns. VK_NEVER is a time that no clock reaches, so a comparison with it needs no case of its own. */
#define VK_US 1000ull
#define VK_MS 1000000ull
#define VK_SECOND 1000000000ull
#define VK_NEVER UINT64_MAX

/* Returns the time in ns. No system call (the vDSO serves it), but more expensive than an idle poll of a link
 * (engine.c). */
static inline uint64_t vk_now(void)
{
    const struct vk_virtual *v = vk_load_relaxed(&vk_virtual);
    if (vk_unlikely(v != NULL))
        return v->now();
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * VK_SECOND + (uint64_t)t.tv_nsec;
}

/* Returns the time after timeout_ms, in ns. All ones in the low 32 bits is VIP_INFINITE, for any width of the program's
 * type. A time-out of more than a few hundred years counts as infinite as well. */
static inline uint64_t vk_deadline(unsigned long timeout_ms)
{
    if ((uint32_t)timeout_ms == 0xFFFFFFFFu || timeout_ms > VK_NEVER / 2 / VK_MS)
        return VK_NEVER;
    return vk_now() + (uint64_t)timeout_ms * VK_MS;
}

#endif
