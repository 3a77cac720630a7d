/*
 * own.h - ownership of a NIC (objects/own.c). All of a NIC's state belongs to one thread at a time, its owner: every
 * VIPL call enters, works and leaves. The short path has no mutex and no atomic read-modify-write.
 *
 * The NIC is *biased* to the thread that uses it. That thread enters by one plain store (inside = 1) and one load
 * (revoked). Any other thread, in particular the NIC's own, acquires the word `owner` by compare-and-swap and sets
 * revoked. It then has the kernel run a full barrier on all threads of the process (membarrier). After the barrier
 * either the biased thread sees revoked, or the revoker sees `inside` and waits until the biased thread has left. The
 * rare side thus pays for the common one.
 *
 * When a second application thread enters, the bias is dropped and all threads use the word. The bias returns when the
 * first thread has entered VIA_OWN_STREAK times with no other application thread in between. So a thread that helps for
 * a moment, such as the one that serves a NIC while its program waits for a job to start, costs little. No other thread
 * ever gets the bias: `inside` has one writer, so a thread that is late in clearing it cannot do so for another thread.
 * There is no bias at all if the kernel has no membarrier, or under tools that cannot see it (ThreadSanitizer,
 * helgrind, drd).
 */
#ifndef VIAKIT_OWN_H
#define VIAKIT_OWN_H

#include <stdint.h>

#include "base/atomic.h"

/* Entries by the word cost about as much as the barrier that drops the bias: some microseconds. */
#define VIA_OWN_STREAK 4096

struct via_own {
    uint32_t bias;    /* the thread that enters without an atomic operation; 0: none */
    uint32_t inside;  /* the biased thread is inside */
    uint32_t revoked; /* another thread is inside or wants to enter */
    uint32_t owner;   /* the thread that holds the word; 0: none */
    int no_bias;      /* for good */
    uint32_t first;   /* the only thread that may have the bias; 0: none yet. Written by the holder of the word */
    uint32_t streak;  /* entries of `first` that are still missing until it gets the bias. Used by the word's holder */
    uint32_t waiting; /* threads that wait for the word ... */
    uint32_t turns;   /* ... and the number of times that one of them got it */
    uint64_t waits;   /* number of times that a thread had to wait */
};

/* A small number for the calling thread, never 0. */
extern __thread uint32_t via_thread_id __attribute__((tls_model("initial-exec")));
uint32_t via_thread_id_make(void);

/* Starts again by the usual rules: after a NIC was closed, a thread with an old handle may be inside at this moment,
 * about to find that its handle is invalid. */
void via_own_init(struct via_own *own);
void via_own_enter_slow(struct via_own *own, int is_nic_thread);
void via_own_leave_slow(struct via_own *own);
/* Leaves and enters again, for an owner that works for long while `waiting` is not 0. Unlike the two calls, it waits
 * until another thread has been inside: without that, a waiting thread that is not running at that moment could wait
 * for ever. */
void via_own_hand_over(struct via_own *own, int is_nic_thread);
/* Like via_own_enter_slow, for a thread that may be inside already, or if another thread never leaves. Returns 1 if the
 * caller is inside now, 0 if it was inside before or `deadline` (vk_now) has passed. The bias stays unchanged. */
int via_own_enter_until(struct via_own *own, uint64_t deadline);

static inline void via_own_enter(struct via_own *own)
{
    uint32_t bias = vk_load_relaxed(&own->bias);
    if (vk_likely(bias != 0 && bias == via_thread_id)) {
        vk_store_relaxed(&own->inside, 1);
        vk_compiler_barrier(); /* pairs with the revoker's membarrier, which stands in for a processor barrier here */
        /* Read bias again, after revoked: it may have been dropped since the first read. */
        if (vk_likely(!vk_load_acquire(&own->revoked) && vk_load_relaxed(&own->bias) == via_thread_id))
            return;
        vk_store_release(&own->inside, 0);
    }
    via_own_enter_slow(own, 0);
}

static inline void via_own_leave(struct via_own *own)
{
    if (vk_likely(vk_load_relaxed(&own->inside) && own->bias == via_thread_id))
        vk_store_release(&own->inside, 0); /* a revoker that sees 0 also sees all writes made inside */
    else
        via_own_leave_slow(own);
}

#endif
