/*
 * Locks at the end of the process. exit() runs the library's destructors while other threads are stopped anywhere, or
 * in a signal handler that interrupted the library. The holder of a mutex may then never release it. All waits of the
 * destructors together end at one deadline.
 */
#ifndef VIAKIT_EXIT_H
#define VIAKIT_EXIT_H

#include <pthread.h>

#include "base/atomic.h"

extern uint64_t vk_exit_deadline; /* time of vk_now(); 0: the process does not exit */

/* Called first by each destructor that waits. The first call starts the time. Returns the deadline. */
uint64_t vk_exit_begin(void);

/* The part of vk_exit_lock for a process that exits. */
int vk_exit_lock_slow(pthread_mutex_t *mutex);

/* Locks a mutex that a destructor may need. Returns 1, or 0 if the mutex is not free at the deadline. */
static inline int vk_exit_lock(pthread_mutex_t *mutex)
{
    if (vk_unlikely(vk_load_relaxed(&vk_exit_deadline)))
        return vk_exit_lock_slow(mutex);
    pthread_mutex_lock(mutex);
    return 1;
}

#endif
