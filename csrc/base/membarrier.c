/*
 * See membarrier.h. Expedited barriers reach only processes that have registered for them. Any thread may call these
 * functions.
 */
#include "base/membarrier.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/thread.h"

static int state; /* 0 not registered yet, 1 both barriers are available, -1 they are not */

static int membarrier(int command)
{
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

static void register_once(void)
{
    int here = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
               membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
    /* release, paired with acquire loads: a thread that reads 1 may rely on the registration. */
    vk_store_release(&state, here ? 1 : -1);
}

int vk_membarrier_register(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_once);
    return vk_load_acquire(&state) == 1 ? 0 : -1;
}

/* The registration belongs to the address space, and the child of a fork has a new one. pthread_once does not run again
 * in the child, so this calls register_once itself. */
static void child_of_fork(void)
{
    if (state == 1)
        register_once();
}

VK_AT_FORK(child_of_fork)

void vk_membarrier_private(void)
{
    membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
}

void vk_membarrier_global(void)
{
    if (vk_load_acquire(&state) == 1)
        membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    /* The only barrier if the kernel lacks the call. */
    vk_fence_full();
}
