/*
 * Waiting: poll, then yield the core between polls, then sleep in the kernel. The NIC, the message engine, collectives
 * and BIP wait by this ladder, each with its own thresholds, poll and sleep:
 *
 *     struct vk_wait w = {.deadline = ..., .yield_after = ..., .sleep_after = ..., ...};
 *     while (!poll())
 *         switch (vk_wait_next(&w, event)) {          event: the poll found something, though not the awaited event
 *         case VK_WAIT_SPIN:    vk_pause()
 *         case VK_WAIT_YIELD:   vk_wait_yield(&w)
 *         case VK_WAIT_SLEEP:   sleep for at most vk_wait_sleep(&w, ...)
 *         case VK_WAIT_CHECK:   check for what no poll detects: an interrupt, a failure
 *         case VK_WAIT_TIMEOUT: the deadline has passed
 *         }
 *
 * While it spins, the ladder reads the clock once in polls_per_clock polls. An event resets the time waited to 0: where
 * messages arrive, more are likely.
 *
 * If every thread with a core waits, sched_yield() is the cheapest way to wait. The core returns after a few
 * microseconds, much sooner than the kernel could put a thread to sleep and wake it. If another thread computes on this
 * core, it is the most expensive way. The scheduler treats the rest of this thread's slice as given up, and the other
 * thread uses all of its own. The awaited event may have happened long before. A sleeping thread keeps its claim, and
 * gets the core when it is woken. The case cannot be predicted, but the clock shows it. After a yield of
 * VK_COSTLY_YIELD or more, waits sleep where they would yield, for VK_COSTLY_LEAST times its length. If the next
 * attempt comes soon and is expensive again, the time doubles, up to VK_COSTLY_MOST times its length.
 *
 * A thread that computes permanently thus costs one part in VK_COSTLY_MOST of the time, for testing whether yields have
 * become cheap again. A thread that runs once in a while costs its slice, and causes no sleep: an expensive yield is
 * ignored after cheap yields of VK_COSTLY_ONCE times its length.
 *
 * A struct vk_wait belongs to one thread. The cost of yields is shared by the whole process.
 */
#ifndef VIAKIT_WAIT_H
#define VIAKIT_WAIT_H

#include "base/atomic.h"
#include "base/clock.h"
#include "base/virtual.h"

#define VK_COSTLY_YIELD (2 * VK_MS) /* 64 ranks that only wait return in 0.2 ms; behind a computing one, in 3 or 4 ms */
#define VK_COSTLY_ONCE 16           /* an expensive yield is ignored after cheap ones of this many times its length */
#define VK_COSTLY_LEAST 4 /* yields count as expensive for this many times the length of the first expensive one */
#define VK_COSTLY_MOST 64 /* ... and after repeated ones for up to this many times */
#define VK_COSTLY_LONGEST VK_SECOND /* ... but no longer than this */

enum vk_wait_step { VK_WAIT_SPIN, VK_WAIT_YIELD, VK_WAIT_SLEEP, VK_WAIT_CHECK, VK_WAIT_TIMEOUT };

struct vk_wait {
    uint64_t deadline;      /* time of vk_now(); VK_NEVER: none */
    uint64_t yield_after;   /* ns waited. 0: at each poll; VK_NEVER: never */
    uint64_t sleep_after;   /* ns waited. VK_NEVER: never, not even while yields are expensive */
    uint64_t check_every;   /* ns between two VK_WAIT_CHECK; VK_NEVER: none */
    uint64_t *costly_until; /* shared with other processes, if all of them are to stop yielding; NULL: not shared */
    uint32_t polls_per_clock;
    uint32_t free_polls; /* polls until the clock is read next */
    /* The rest begins with zeros. */
    uint64_t now, checked; /* when the clock was last read, and when the last check was due */
    uint64_t began;        /* the first reading, or the first after the last event; 0: not yet */
    int yielded;           /* `now` is current */
};

extern uint64_t vk_yield_costly_until; /* time of vk_now(), ns */
extern uint64_t vk_cheap_yields;       /* nanoseconds spent in yields since the last expensive one */

/* Records a yield that lasted from `began` to `now`. */
void vk_yield_took(uint64_t began, uint64_t now);

/* Yields the core, and measures how long it was gone. */
void vk_wait_yield(struct vk_wait *w);

/* The part of vk_wait_next that reads the clock. */
enum vk_wait_step vk_wait_check(struct vk_wait *w, int event);

/* vk_wait_next on a simulated machine: nothing spins there. The clock moves to the next event of this rank. */
enum vk_wait_step vk_wait_virtual(struct vk_wait *w, int event);

/* Returns what to do after a poll that did not end the wait. */
static inline enum vk_wait_step vk_wait_next(struct vk_wait *w, int event)
{
    if (vk_time_is_virtual())
        return vk_wait_virtual(w, event);
    if (event)
        w->began = 0;
    if (vk_likely(w->free_polls)) {
        w->free_polls--;
        return VK_WAIT_SPIN;
    }
    return vk_wait_check(w, event);
}

/* Returns the length of a sleep in ns: one part of the time waited, within bounds, and not beyond the deadline. So
 * short waits sleep briefly. */
static inline uint64_t vk_wait_sleep(const struct vk_wait *w, unsigned part, uint64_t least, uint64_t most)
{
    uint64_t ns = (w->now - w->began) / part, left = w->deadline - w->now;
    ns = ns < least ? least : ns > most ? most : ns;
    return ns < left ? ns : left;
}

#endif
