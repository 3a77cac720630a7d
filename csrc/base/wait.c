/* See wait.h. The cost of a yield belongs to the process, because it depends on the load of the machine, not on what a
 * thread waits for. Several threads may write the variables at once. The last value wins, and any of them is valid.
 * Therefore all accesses are relaxed: the values only choose how to wait, and order no other data. */
#include "base/wait.h"

#include <sched.h>

uint64_t vk_yield_costly_until, vk_cheap_yields;
static uint64_t costly_span; /* the last interval during which yields counted as expensive */

void vk_yield_took(uint64_t began, uint64_t now)
{
    uint64_t until = vk_load_relaxed(&vk_yield_costly_until), last = vk_load_relaxed(&costly_span), took = now - began;
    uint64_t span = 0, cheap = vk_load_relaxed(&vk_cheap_yields);
    if (vk_likely(took < VK_COSTLY_YIELD)) {
        vk_store_relaxed(&vk_cheap_yields, cheap + took);
        return;
    }
    /* After enough cheap yields another thread ran only once. Soon after another expensive one the span doubles. */
    if (cheap < VK_COSTLY_ONCE * took)
        span = last && began < until + last ? 2 * last : VK_COSTLY_LEAST * took;
    span = span < VK_COSTLY_MOST * took ? span : VK_COSTLY_MOST * took;
    span = span < VK_COSTLY_LONGEST ? span : VK_COSTLY_LONGEST;
    vk_store_relaxed(&vk_cheap_yields, 0);
    vk_store_relaxed(&costly_span, span);
    vk_store_relaxed(&vk_yield_costly_until, now + span);
}

/* If other processes share costly_until, an expensive yield of this thread is reported to them there, unless a later
 * time is there already. */
void vk_wait_yield(struct vk_wait *w)
{
    /* vk_wait_check has just read the clock. */
    uint64_t before = w->now;
    sched_yield();
    w->now = vk_now();
    w->yielded = 1;
    vk_yield_took(before, w->now);
    uint64_t until = vk_load_relaxed(&vk_yield_costly_until);
    if (vk_unlikely(w->costly_until && until > w->now && until > vk_load_relaxed(w->costly_until)))
        vk_store_relaxed(w->costly_until, until);
}

/* The order of the tests is their rank: the deadline, then a check that is due, then the event, then the ladder. An
 * event therefore delays neither the time-out nor a check. */
enum vk_wait_step vk_wait_check(struct vk_wait *w, int event)
{
    if (!w->yielded)
        w->now = vk_now();
    w->yielded = 0;
    if (w->began == 0)
        w->began = w->now;
    /* The first check is due only after check_every, so a short wait makes none. */
    if (w->checked == 0)
        w->checked = w->now;
    if (w->now >= w->deadline)
        return VK_WAIT_TIMEOUT;
    if (w->now - w->checked >= w->check_every) {
        w->checked = w->now;
        return VK_WAIT_CHECK;
    }
    if (event)
        return VK_WAIT_SPIN;
    /* An expensive yield replaces yields by sleeps, unless the caller never sleeps. */
    uint64_t waited = w->now - w->began;
    uint64_t costly = vk_load_relaxed(w->costly_until ? w->costly_until : &vk_yield_costly_until);
    int yields = waited >= w->yield_after;
    if (waited >= w->sleep_after || (yields && w->now < costly && w->sleep_after != VK_NEVER))
        return VK_WAIT_SLEEP;
    if (yields)
        return VK_WAIT_YIELD;
    w->free_polls = w->polls_per_clock - 1;
    return VK_WAIT_SPIN;
}

/* A thread that has waited for longer than its ladder spins is woken by the kernel, which costs the machine's
 * interrupt. The timers of a NIC wake no thread: they are the card's. */
enum vk_wait_step vk_wait_virtual(struct vk_wait *w, int event)
{
    w->now = vk_now();
    if (event || w->began == 0)
        w->began = w->now;
    if (event)
        return VK_WAIT_SPIN;
    if (w->now >= w->deadline)
        return VK_WAIT_TIMEOUT;
    enum vk_idle_end end = vk_virtual->idle(w->deadline);
    if (end == VK_IDLE_SLICE) /* virtual time has not passed */
        return w->check_every == VK_NEVER ? VK_WAIT_SLEEP : VK_WAIT_CHECK;
    w->now = vk_now();
    if ((end == VK_IDLE_ARRIVAL || w->now >= w->deadline) && w->now - w->began > w->sleep_after)
        vk_charge(VK_CHARGE_WAKEUP, 1);
    return VK_WAIT_SPIN;
}
