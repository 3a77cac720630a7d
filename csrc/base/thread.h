/*
 * The library's own threads, and forks of the program.
 *
 * A child of fork has one thread, that which called fork. It must not find a mutex locked by a thread that it does not
 * have, nor data that such a thread was changing.
 */
#ifndef VIAKIT_THREAD_H
#define VIAKIT_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Starts a thread with all signals blocked, so that the program's threads handle them. Returns 0 or an errno. */
static inline int vk_thread_start(pthread_t *thread, void *(*run)(void *), void *argument)
{
    /* A thread inherits the mask of the thread that starts it. */
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int error = pthread_create(thread, NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return error;
}

/* After each fork the child calls in_child(). One of these two per file. */
#define VK_AT_FORK(in_child)                                      \
    __attribute__((constructor)) static void vk_watch_forks(void) \
    {                                                             \
        pthread_atfork(NULL, NULL, in_child);                     \
    }

/* The thread that forks holds the mutex meanwhile. The child executes in_child before it releases the mutex. */
#define VK_LOCK_AT_FORK(mutex, in_child)                                     \
    static void vk_before_fork(void)                                         \
    {                                                                        \
        pthread_mutex_lock(mutex);                                           \
    }                                                                        \
    static void vk_parent_of_fork(void)                                      \
    {                                                                        \
        pthread_mutex_unlock(mutex);                                         \
    }                                                                        \
    static void vk_child_of_fork(void)                                       \
    {                                                                        \
        in_child;                                                            \
        pthread_mutex_unlock(mutex);                                         \
    }                                                                        \
    __attribute__((constructor)) static void vk_watch_forks(void)            \
    {                                                                        \
        pthread_atfork(vk_before_fork, vk_parent_of_fork, vk_child_of_fork); \
    }

#endif
