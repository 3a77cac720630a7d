/*
 * turn.h - giving the core away while waiting, and noticing what that costs.
 *
 * Where everybody who has a core waits, sched_yield() is the cheapest way to wait: the core goes round once and is
 * back in a few microseconds, much sooner than the kernel could put us to sleep and wake us. Where somebody computes
 * on this core it is the dearest: the scheduler takes the rest of our slice for given away, the other one uses up
 * his, and what we wait for may have come long ago. A sleeper keeps his claim, and gets the core when he is woken.
 * One cannot know beforehand which it is, but one can look at the clock:
 *
 *     if (vk_yield_pays(now))
 *         now = vk_yield(now);     a turn that took longer than VK_DEAR_TURN makes turns dear ...
 *     else
 *         sleep in the kernel      ... for VK_DEAR_LEAST times as long as it took; twice as long when the next try
 *                                  comes soon and is dear again, up to VK_DEAR_MOST times
 *
 * So somebody who stays costs one part in VK_DEAR_MOST of the time, for trying whether turns have become cheap again.
 * Somebody who passes by once in a while costs his slice, and no sleep: a dear turn after VK_DEAR_PASSING times its
 * length in cheap ones changes nothing.
 *
 * What is known is known to the whole process. Any thread; never blocks but for the yield itself.
 */
#ifndef VIAKIT_TURN_H
#define VIAKIT_TURN_H

#include <sched.h>

#include "atomic.h"
#include "clock.h"

#define VK_DEAR_TURN (2 * VK_MS)  /* 64 ranks that only wait take 0.2 ms for a turn; whoever computes, 3 or 4 ms */
#define VK_DEAR_PASSING 16        /* after cheap turns of so many times its length a dear one was a passer-by's */
#define VK_DEAR_LEAST 4           /* turns stay dear so many times as long as the first that was */
#define VK_DEAR_MOST 64           /* and at last so many times */
#define VK_DEAR_LONGEST VK_SECOND /* but no longer than this */

extern uint64_t vk_turns_dear_until; /* nanoseconds of vk_now() */
extern uint64_t vk_cheap_turns;      /* nanoseconds spent in turns since the last that was dear */

/* Is it worth giving the core away at this time, rather than to sleep? */
static inline int vk_yield_pays(uint64_t now)
{
    return now >= vk_load_relaxed(&vk_turns_dear_until);
}

/* Notes that a turn which began at `began` is over, `now`. */
void vk_turn_took(uint64_t began, uint64_t now);

/* Gives the core away. now: the time, nanoseconds. Returns the time afterwards. */
static inline uint64_t vk_yield(uint64_t now)
{
    sched_yield();
    uint64_t after = vk_now();
    if (vk_unlikely(after - now >= VK_DEAR_TURN))
        vk_turn_took(now, after);
    else
        vk_store_relaxed(&vk_cheap_turns, vk_load_relaxed(&vk_cheap_turns) + (after - now));
    return after;
}

#endif
