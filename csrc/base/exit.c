/* See exit.h. */
#include "base/exit.h"

#include <sched.h>

#include "base/clock.h"

#define MOST (200 * VK_MS) /* a process that exits waits no longer for other threads */

uint64_t vk_exit_deadline;

uint64_t vk_exit_begin(void)
{
    /* exit() runs destructors in one thread, so no other thread writes the deadline. */
    if (vk_exit_deadline == 0)
        vk_store_relaxed(&vk_exit_deadline, vk_now() + MOST);
    return vk_exit_deadline;
}

/* Tries and yields, because the holder may be a thread that never runs again: a plain lock would then block exit(). */
int vk_exit_lock_slow(pthread_mutex_t *mutex)
{
    while (pthread_mutex_trylock(mutex) != 0) {
        if (vk_now() >= vk_exit_deadline)
            return 0;
        sched_yield();
    }
    return 1;
}
