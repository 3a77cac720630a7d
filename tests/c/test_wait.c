/*
 * test_wait.c - the ladder by which everything waits, and the cost of a yield (base/wait.h). Times are given, not
 * measured, except for one yield.
 */
#include "base/wait.h"
#include "check.h"

/* Returns how long yields count as expensive after one that took `took`. */
static uint64_t span_of(uint64_t began, uint64_t took)
{
    vk_yield_took(began, began + took);
    return vk_yield_costly_until - (began + took);
}

static void cost_of_a_yield(void)
{
    uint64_t now = 100 * VK_SECOND, took = 3 * VK_MS, span;
    CHECK_EQ(vk_yield_costly_until, 0);

    /* A cheap yield is added up, and changes nothing else. */
    vk_yield_took(now, now + VK_COSTLY_YIELD - 1);
    CHECK_EQ(vk_cheap_yields, VK_COSTLY_YIELD - 1);
    CHECK_EQ(vk_yield_costly_until, 0);
    vk_cheap_yields = 0;

    /* The first expensive one counts for four times its length. */
    CHECK_EQ(span_of(now, took), VK_COSTLY_LEAST * took);

    /* Another thread computes all the time: the time doubles whenever the next attempt is expensive again. */
    for (uint64_t times = 2 * VK_COSTLY_LEAST; times <= VK_COSTLY_MOST; times *= 2)
        CHECK_EQ(span_of(vk_yield_costly_until, took), times * took);
    CHECK_EQ(span_of(vk_yield_costly_until, took), VK_COSTLY_MOST * took);

    /* It stops: after as long a time again without an expensive yield, counting begins anew. */
    span = VK_COSTLY_MOST * took;
    CHECK_EQ(span_of(vk_yield_costly_until + span, took), VK_COSTLY_LEAST * took);

    /* One expensive yield after many cheap ones is ignored. A second one is not. */
    vk_cheap_yields = VK_COSTLY_ONCE * took;
    CHECK_EQ(span_of(vk_yield_costly_until + VK_SECOND, took), 0);
    CHECK_EQ(span_of(vk_yield_costly_until, took), VK_COSTLY_LEAST * took);
    vk_cheap_yields = VK_COSTLY_ONCE * took - 1;
    CHECK_EQ(span_of(vk_yield_costly_until + VK_SECOND, took), VK_COSTLY_LEAST * took);

    /* Never longer than a second, however long the yield took. */
    CHECK_EQ(span_of(vk_yield_costly_until + VK_SECOND, 10 * VK_SECOND), VK_COSTLY_LONGEST);
    vk_yield_costly_until = 0;
}

/* A wait whose thresholds no machine reaches by accident: yields from one hour on, sleeps from two, checks each three.
 */
#define HOUR (3600 * VK_SECOND)

static struct vk_wait begin(void)
{
    return (struct vk_wait){.deadline = VK_NEVER,
                            .yield_after = HOUR,
                            .sleep_after = 2 * HOUR,
                            .check_every = 3 * HOUR,
                            .polls_per_clock = 32};
}

/* Pretends that the wait began so long ago. The clock begins with the machine: the number may wrap, and so do
 * differences. */
static enum vk_wait_step after(struct vk_wait *w, uint64_t ns)
{
    w->free_polls = 0;
    w->yielded = 0;
    w->began = vk_now() - ns;
    return vk_wait_next(w, 0);
}

static void stages(void)
{
    struct vk_wait w = begin();
    CHECK_EQ(after(&w, 0), VK_WAIT_SPIN);
    CHECK_EQ(after(&w, HOUR), VK_WAIT_YIELD);
    CHECK_EQ(after(&w, 2 * HOUR), VK_WAIT_SLEEP);
    w.checked -= 3 * HOUR;
    CHECK_EQ(after(&w, 0), VK_WAIT_CHECK);
    CHECK_EQ(after(&w, 0), VK_WAIT_SPIN);
    w.deadline = vk_now();
    CHECK_EQ(after(&w, 0), VK_WAIT_TIMEOUT);

    /* Zeros mean at once, and VK_NEVER never. */
    w = begin();
    w.yield_after = 0;
    CHECK_EQ(vk_wait_next(&w, 0), VK_WAIT_YIELD);
    w.sleep_after = 0;
    CHECK_EQ(vk_wait_next(&w, 0), VK_WAIT_SLEEP);
    w.yield_after = w.sleep_after = w.check_every = VK_NEVER;
    CHECK_EQ(after(&w, HOUR), VK_WAIT_SPIN);
}

/* The clock is read once in 32 polls while the wait spins, and at each poll when it yields. */
static void readings(void)
{
    struct vk_wait w = begin();
    CHECK_EQ(vk_wait_next(&w, 0), VK_WAIT_SPIN);
    uint64_t first = w.now;
    CHECK(first != 0 && w.began == first && w.checked == first);
    for (int i = 1; i < 32; i++) {
        CHECK_EQ(vk_wait_next(&w, 0), VK_WAIT_SPIN);
        CHECK_EQ(w.now, first);
    }
    w.now = 0;
    CHECK_EQ(vk_wait_next(&w, 0), VK_WAIT_SPIN);
    CHECK(w.now >= first && w.began == first);

    /* The reading of a yield serves the next poll. */
    CHECK_EQ(after(&w, HOUR), VK_WAIT_YIELD);
    vk_wait_yield(&w);
    uint64_t yielded = w.now;
    CHECK(yielded >= first);
    CHECK_EQ(vk_wait_next(&w, 0), vk_yield_costly_until > yielded ? VK_WAIT_SLEEP : VK_WAIT_YIELD);
    CHECK_EQ(w.now, yielded);
    vk_yield_costly_until = 0; /* another process of the machine may have had the core */
}

/* An event resets the time waited, and is followed by a poll. The deadline and the check hold all the same. */
static void events(void)
{
    struct vk_wait w = begin();
    CHECK_EQ(after(&w, 2 * HOUR), VK_WAIT_SLEEP);
    CHECK_EQ(vk_wait_next(&w, 1), VK_WAIT_SPIN);
    CHECK_EQ(w.began, w.now);
    CHECK_EQ(vk_wait_next(&w, 0), VK_WAIT_SPIN);
    w.free_polls = 0;
    w.checked -= 3 * HOUR;
    CHECK_EQ(vk_wait_next(&w, 1), VK_WAIT_CHECK);
    w.deadline = vk_now();
    CHECK_EQ(vk_wait_next(&w, 1), VK_WAIT_TIMEOUT);
    w = begin();
    w.yield_after = w.sleep_after = 0;
    CHECK_EQ(vk_wait_next(&w, 1), VK_WAIT_SPIN);
    CHECK_EQ(vk_wait_next(&w, 0), VK_WAIT_SLEEP);
}

/* While yields are expensive, a wait sleeps where it would yield, unless it never sleeps. Processes may share that. */
static void expensive(void)
{
    struct vk_wait w = begin();
    uint64_t shared = 0;
    vk_yield_costly_until = VK_NEVER;
    CHECK_EQ(after(&w, 0), VK_WAIT_SPIN);
    CHECK_EQ(after(&w, HOUR), VK_WAIT_SLEEP);
    w.costly_until = &shared;
    CHECK_EQ(after(&w, HOUR), VK_WAIT_YIELD);
    vk_wait_yield(&w); /* which may itself take long, and then sets another time */
    CHECK_EQ(shared, vk_yield_costly_until > w.now ? vk_yield_costly_until : 0);
    shared = VK_NEVER;
    CHECK_EQ(after(&w, HOUR), VK_WAIT_SLEEP);
    w.sleep_after = VK_NEVER;
    CHECK_EQ(after(&w, HOUR), VK_WAIT_YIELD);
    vk_yield_costly_until = 0;
}

static void lengths(void)
{
    struct vk_wait w = {.deadline = VK_NEVER, .now = 100 * VK_MS, .began = 20 * VK_MS};
    CHECK_EQ(vk_wait_sleep(&w, 2, VK_MS, VK_SECOND), 40 * VK_MS);
    CHECK_EQ(vk_wait_sleep(&w, 2, VK_MS, 30 * VK_MS), 30 * VK_MS);
    CHECK_EQ(vk_wait_sleep(&w, 2, 50 * VK_MS, VK_SECOND), 50 * VK_MS);
    w.deadline = 101 * VK_MS;
    CHECK_EQ(vk_wait_sleep(&w, 2, 50 * VK_MS, VK_SECOND), VK_MS);
}

int main(void)
{
    check_deadline(60);
    cost_of_a_yield();
    stages();
    readings();
    events();
    expensive();
    lengths();
    return 0;
}
