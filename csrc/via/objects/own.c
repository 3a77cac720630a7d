/*
 * The slow path of entering and leaving a NIC (own.h explains ownership and has the short path).
 *
 * Invariant: a thread inside the NIC either holds the word `owner`, or is the biased thread with inside = 1 that read
 * revoked = 0 after that store. The two exclude each other. A thread that takes the word while another thread has the
 * bias sets `revoked`, runs the barrier, and waits for inside = 0. It leaves `revoked` set until it leaves the NIC.
 *
 * The barrier is membarrier(PRIVATE_EXPEDITED). When it returns, each thread of the process has executed a full fence
 * at some point during the call. If the biased thread's store to inside precedes that point, this side reads inside =
 * 1. If its load of revoked follows that point, it reads revoked = 1. So the two sides cannot miss each other, as they
 * could with a plain store and load. The frequent side pays nothing for this.
 *
 *    biased thread                       revoker
 *      inside = 1                          compare-exchange owner: 0 -> self
 *      (compiler barrier)                  revoked = 1
 *      revoked? 0: it is inside            membarrier: a full fence on every thread
 *               1: inside = 0, and         inside? 1: wait until it is 0
 *                  take the word                    0: it is inside
 *
 * This is biased locking by asymmetric fences: see membarrier(2). Any thread may call the functions here. take_word()
 * spins and yields, and never sleeps in the kernel, because a NIC is held for microseconds.
 */
#include "via/own.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/membarrier.h"

__thread uint32_t via_thread_id __attribute__((tls_model("initial-exec")));

/* Numbers are never reused within a process, so the bias of a thread that has ended stays unused. It is revoked like
 * any other: `inside` is 0. */
uint32_t via_thread_id_make(void)
{
    static uint32_t last;
    if (via_thread_id == 0)
        via_thread_id = vk_add(&last, 1);
    return via_thread_id;
}

/* ---------------------------------------------------------------- under helgrind and drd
 *
 * These tools derive the order of memory accesses from pthread calls and ignore atomic operations. While one of them
 * runs, each entry and exit locks and unlocks a mutex that guards nothing. If thread a leaves and thread b enters, a's
 * earlier accesses are then ordered before b's later ones. */

static int watched; /* helgrind or drd runs this process; written before main() */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

static void show_order(void)
{
    if (vk_likely(!watched))
        return;
    pthread_mutex_lock(&order);
    pthread_mutex_unlock(&order);
}

/* valgrind preloads a library whose name contains the name of the tool. */
static int is_watched(void)
{
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && (strstr(preloaded, "vgpreload_helgrind") || strstr(preloaded, "vgpreload_drd"));
}

/* At the fork, a thread that the child does not have may have held the mutex. */
static void child_of_fork(void)
{
    order = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
}

__attribute__((constructor)) static void begin(void)
{
    watched = is_watched();
    pthread_atfork(NULL, NULL, child_of_fork);
}

/* ---------------------------------------------------------------- entering and leaving */

#define HAND_OVER_NS (20 * VK_MS) /* a waiting thread that is not scheduled for that long loses its turn */

/* Take the owner word. After a short spin the processor is yielded, because the holder may be waiting for it. Return 0
 * if `deadline` (vk_now) has passed. */
static int take_word(struct via_own *own, uint32_t self, uint64_t deadline)
{
    int taken = vk_compare_exchange(&own->owner, 0, self);
    if (taken)
        return 1;
    vk_add(&own->waiting, 1);
    for (unsigned spin = 0; !taken && (deadline == VK_NEVER || vk_now() < deadline); spin++) {
        if (spin < 200)
            vk_pause();
        else
            sched_yield();
        taken = vk_compare_exchange(&own->owner, 0, self);
    }
    vk_add(&own->waiting, -1);
    if (taken) {
        vk_store_relaxed(&own->turns, own->turns + 1);
        vk_store_relaxed(&own->waits, own->waits + 1);
    }
    return taken;
}

/* The holder of the word counts the turns. A number other than the one that the caller reads as owner therefore means
 * that a waiting thread was inside. */
void via_own_hand_over(struct via_own *own, int is_nic_thread)
{
    uint32_t turn = vk_load_relaxed(&own->turns);
    via_own_leave(own);
    uint64_t end = vk_now() + HAND_OVER_NS;
    while (vk_load_relaxed(&own->waiting) && vk_load_relaxed(&own->turns) == turn && vk_now() < end)
        sched_yield();
    via_own_enter_slow(own, is_nic_thread);
}

/* An application thread holds the word, and no thread has the bias. Others read the bias while they hold the word, or
 * compare it with their own number. */
static void consider_bias(struct via_own *own, uint32_t self)
{
    if (own->first == 0)
        own->first = self;
    if (own->first != self)
        own->streak = VIA_OWN_STREAK;
    else if (own->streak)
        own->streak--;
    else
        vk_store_release(&own->bias, self); /* from the next call on; this one still holds the word */
}

void via_own_enter_slow(struct via_own *own, int is_nic_thread)
{
    uint32_t self = via_thread_id_make();
    take_word(own, self, VK_NEVER);
    /* Another thread has the bias: it must not enter by its short path while this thread is inside. */
    if (own->bias != 0 && own->bias != self) {
        vk_store_release(&own->revoked, 1);
        /* After this, every thread has either read `revoked` or made its `inside` visible to this thread. */
        vk_membarrier_private();
        for (unsigned spin = 0; vk_load_acquire(&own->inside); spin++)
            spin < 200 ? vk_pause() : (void)sched_yield();
        if (!is_nic_thread) { /* two application threads: all use the word for now */
            vk_store_release(&own->bias, 0);
            own->streak = VIA_OWN_STREAK;
        }
    } else if (own->bias == 0 && !own->no_bias && !is_nic_thread)
        consider_bias(own, self);
    show_order();
}

/* For the destructor at exit. A signal handler that interrupted this thread inside the NIC would wait for itself: that
 * is recognized by the owner word, or by bias and inside. */
int via_own_enter_until(struct via_own *own, uint64_t deadline)
{
    uint32_t self = via_thread_id_make();
    if (vk_load_relaxed(&own->owner) == self || (vk_load_relaxed(&own->bias) == self && vk_load_relaxed(&own->inside)))
        return 0;
    if (!take_word(own, self, deadline))
        return 0;
    show_order();
    if (own->bias == 0 || own->bias == self)
        return 1;
    /* As in via_own_enter_slow(). */
    vk_store_release(&own->revoked, 1);
    vk_membarrier_private();
    while (vk_load_acquire(&own->inside)) {
        if (vk_now() >= deadline) {
            via_own_leave_slow(own);
            return 0;
        }
        sched_yield();
    }
    return 1;
}

/* revoked is cleared before owner: the next owner sets it again if necessary. The release makes all accesses of this
 * thread visible to the next owner. */
void via_own_leave_slow(struct via_own *own)
{
    show_order();
    vk_store_release(&own->revoked, 0);
    vk_store_release(&own->owner, 0);
}

/* Entered as the NIC's thread, so that it does not count for the bias. membarrier must be registered before it can be
 * used (MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, Linux 4.14). */
void via_own_init(struct via_own *own)
{
    int no_bias = VK_TSAN || watched || vk_membarrier_register() != 0;
    via_own_enter_slow(own, 1);
    vk_store_release(&own->bias, 0);
    own->no_bias = no_bias;
    own->first = own->streak = 0;
    own->waits = 0;
    via_own_leave_slow(own);
}
