/*
 * Who drives a NIC. All of a NIC's state belongs to one thread at a time, its owner; every VIPL call enters, works
 * and leaves. There is no mutex on the short path and no atomic read-modify-write either:
 *
 *   The NIC is *biased* to the thread that uses it. That thread enters by one plain store (inside = 1) and one load
 *   (revoked). Anybody else, the NIC's own thread above all, takes the word `owner` by compare-and-swap, sets
 *   revoked, and has the kernel run a full barrier on all threads of the process (membarrier): after it, either the
 *   biased thread sees revoked, or we see that it is inside and wait until it has left. So the rare side pays for the
 *   common one.
 *
 * When a second application thread shows up the bias is dropped for good and all go by the word. Where the kernel
 * has no membarrier, and under ThreadSanitizer (which cannot see it), there is no bias from the start.
 */
#ifndef VIAKIT_OWN_H
#define VIAKIT_OWN_H

#include <stdint.h>

#include "../base/atomic.h"

struct via_own {
    uint32_t bias;    /* thread that enters for free, 0 none */
    uint32_t inside;  /* the biased thread is in */
    uint32_t revoked; /* somebody else is in or wants in */
    uint32_t owner;   /* thread that holds the word, 0 none */
    int no_bias;
    uint64_t waits; /* times somebody had to wait */
};

/* A small number for the calling thread, never 0. */
extern __thread uint32_t via_thread_id __attribute__((tls_model("initial-exec")));
uint32_t via_thread_id_make(void);

/* Begins anew, by the same rules as everybody else: where a NIC was closed, somebody with an old handle may be
 * inside at this moment, about to find that out. */
void via_own_init(struct via_own *own);
void via_own_enter_slow(struct via_own *own, int is_nic_thread);
void via_own_leave_slow(struct via_own *own);

static inline void via_own_enter(struct via_own *own)
{
    uint32_t bias = vk_load_relaxed(&own->bias);
    if (vk_likely(bias != 0 && bias == via_thread_id)) {
        vk_store_relaxed(&own->inside, 1);
        vk_compiler_barrier(); /* the processor's barrier is the revoker's membarrier */
        /* bias again, after revoked: it may have been dropped between the first look and now */
        if (vk_likely(!vk_load_acquire(&own->revoked) && vk_load_relaxed(&own->bias) == via_thread_id))
            return;
        vk_store_release(&own->inside, 0);
    }
    via_own_enter_slow(own, 0);
}

static inline void via_own_leave(struct via_own *own)
{
    if (vk_likely(vk_load_relaxed(&own->inside) && own->bias == via_thread_id))
        vk_store_release(&own->inside, 0); /* all we did is visible to a revoker who then sees 0 */
    else
        via_own_leave_slow(own);
}

#endif
