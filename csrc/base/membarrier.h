/*
 * membarrier(2): a full memory barrier that the kernel runs on all threads. The rare side of an exchange requests it,
 * so that the frequent side needs none. via/own.h uses it among the threads of a process, link/shm.c among
 * processes.
 */
#ifndef VIAKIT_MEMBARRIER_H
#define VIAKIT_MEMBARRIER_H

/* Registers this process with the kernel, once. The child of a fork is registered again. Returns 0 if the kernel has
 * both expedited barriers, else -1. */
int vk_membarrier_register(void);

/* Runs a full barrier on all threads of this process. Requires that vk_membarrier_register() returned 0. */
void vk_membarrier_private(void);

/* Runs a full barrier on all threads of all registered processes. If the kernel lacks it, this is only the calling
 * thread's fence, and the other side needs one of its own. */
void vk_membarrier_global(void);

#endif
