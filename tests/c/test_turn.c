/*
 * test_turn.c - what a dear turn of the scheduler changes (base/turn.h): times are given, none is measured.
 */
#include "base/turn.h"
#include "check.h"

/* How long turns are held for dear after one that took `took`. */
static uint64_t span_of(uint64_t began, uint64_t took)
{
    vk_turn_took(began, began + took);
    return vk_turns_dear_until - (began + took);
}

int main(void)
{
    check_deadline(60);
    uint64_t now = 100 * VK_SECOND, took = 3 * VK_MS, span;
    CHECK(vk_yield_pays(now));

    /* the first: four times as long as it took, and then it is tried again */
    CHECK_EQ(span_of(now, took), VK_DEAR_LEAST * took);
    CHECK(!vk_yield_pays(now + took) && !vk_yield_pays(vk_turns_dear_until - 1) && vk_yield_pays(vk_turns_dear_until));

    /* somebody who stays: twice as long each time that the try is dear again, up to the limit */
    for (uint64_t times = 2 * VK_DEAR_LEAST; times <= VK_DEAR_MOST; times *= 2)
        CHECK_EQ(span_of(vk_turns_dear_until, took), times * took);
    CHECK_EQ(span_of(vk_turns_dear_until, took), VK_DEAR_MOST * took);

    /* he goes: after as long a time again without a dear turn it begins anew */
    span = VK_DEAR_MOST * took;
    CHECK_EQ(span_of(vk_turns_dear_until + span, took), VK_DEAR_LEAST * took);

    /* after as much time in cheap turns it was somebody who passed by, and nothing follows; but two are no
     * passers-by */
    vk_cheap_turns = VK_DEAR_PASSING * took;
    CHECK_EQ(span_of(vk_turns_dear_until + VK_SECOND, took), 0);
    CHECK(vk_yield_pays(vk_turns_dear_until));
    CHECK_EQ(span_of(vk_turns_dear_until, took), VK_DEAR_LEAST * took);
    vk_cheap_turns = VK_DEAR_PASSING * took - 1;
    CHECK_EQ(span_of(vk_turns_dear_until + VK_SECOND, took), VK_DEAR_LEAST * took);

    /* never longer than a second, however long the turn */
    CHECK_EQ(span_of(vk_turns_dear_until + VK_SECOND, 10 * VK_SECOND), VK_DEAR_LONGEST);

    /* the yield itself goes on with the clock */
    uint64_t before = vk_now();
    CHECK(vk_yield(before) >= before);
    CHECK(vk_cheap_turns > 0 || vk_turns_dear_until > before);
    return 0;
}
