/*
 * The long way into a NIC and out of it (own.h tells the idea and has the short way).
 *
 * Invariant: whoever is inside has either the word `owner`, or is the biased thread with inside = 1 and saw revoked = 0
 * after that. The two exclude each other: who takes the word while there is a bias for another thread sets `revoked`,
 * runs the barrier, and waits for inside = 0; and it leaves `revoked` set until it goes.
 *
 * The barrier is membarrier(PRIVATE_EXPEDITED): when it returns, each thread of the process has executed a full fence
 * at some point during the call. The biased thread's two accesses (store inside, load revoked) lie before that point,
 * and then we see inside = 1; or its load lies behind, and then it sees revoked = 1. The case that both miss each
 * other, which a plain store and load allow, is gone; it cost the frequent side nothing.
 */
#include "own.h"

#include <linux/membarrier.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../link/link.h"

__thread uint32_t via_thread_id __attribute__((tls_model("initial-exec")));

uint32_t via_thread_id_make(void)
{
    static uint32_t last;
    if (via_thread_id == 0)
        via_thread_id = vk_add(&last, 1);
    return via_thread_id;
}

static int membarrier(int command)
{
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

static int barrier_state; /* 0 unknown, 1 there, -1 not */

/* Expedited barriers reach only those who have asked for them. PRIVATE is for own.h, among the threads of a process;
 * GLOBAL is for shm, whose sleeper needs it among processes. */
static void register_once(void)
{
    int here = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0 &&
               membarrier(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) == 0;
    /* release, and acquire where it is read: a thread that finds 1 may rely on the registration. */
    vk_store_release(&barrier_state, here ? 1 : -1);
}

int via_membarrier_register(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_once);
    return vk_load_acquire(&barrier_state) == 1 ? 0 : -1;
}

/* The registration belongs to the address space, of which a child of fork has a new one. */
static void child_of_fork(void)
{
    if (barrier_state == 1)
        register_once();
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, child_of_fork);
}

/* Where the kernel has none, this is our side's fence, and shm's senders make one each (`needs_fence`). */
void via_membarrier_global(void)
{
    if (vk_load_acquire(&barrier_state) == 1)
        membarrier(MEMBARRIER_CMD_GLOBAL_EXPEDITED);
    vk_fence_full();
}

/* Takes the word; yields the processor after a short spin, for the holder may be waiting for it. */
static void take_word(struct via_own *own, uint32_t self)
{
    unsigned spin = 0;
    for (; !vk_compare_exchange(&own->owner, 0, self); spin++) {
        if (spin < 200)
            vk_pause();
        else
            sched_yield();
    }
    if (spin)
        vk_store_relaxed(&own->waits, own->waits + 1);
}

void via_own_enter_slow(struct via_own *own, int is_nic_thread)
{
    uint32_t self = via_thread_id_make();
    take_word(own, self);
    /* The bias is another thread's: it must not come in by its short way while we are here. */
    if (own->bias != 0 && own->bias != self) {
        vk_store_release(&own->revoked, 1);
        /* After this, every thread has seen revoked or has already made `inside` visible to us. */
        membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        for (unsigned spin = 0; vk_load_acquire(&own->inside); spin++)
            spin < 200 ? vk_pause() : (void)sched_yield();
        if (!is_nic_thread) { /* two application threads: no bias any more */
            vk_store_release(&own->bias, 0);
            own->no_bias = 1;
        }
    } else if (own->bias == 0 && !own->no_bias && !is_nic_thread) {
        vk_store_release(&own->bias, self); /* from the next call on; this one still holds the word */
    }
}

/* revoked before owner: whoever takes the word next sets it again if it must. The release makes all we did visible to
 * that one. */
void via_own_leave_slow(struct via_own *own)
{
    vk_store_release(&own->revoked, 0);
    vk_store_release(&own->owner, 0);
}

void via_own_init(struct via_own *own)
{
    int no_bias = VK_TSAN || via_membarrier_register() != 0;
    via_own_enter_slow(own, 1);
    vk_store_release(&own->bias, 0);
    own->no_bias = no_bias;
    own->waits = 0;
    via_own_leave_slow(own);
}
