/* See turn.h. Words of the process: what a turn costs is a matter of the machine, not of who waits for what. Several
 * threads may write them at once; whichever is left is as good as the other. */
#include "turn.h"

uint64_t vk_turns_dear_until, vk_cheap_turns;
static uint64_t vk_dear_span; /* the last one: how long turns were held for dear */

/* began, now: nanoseconds by vk_now(), before and after a turn that was given away and came back. */
void vk_turn_took(uint64_t began, uint64_t now)
{
    uint64_t until = vk_load_relaxed(&vk_turns_dear_until), last = vk_load_relaxed(&vk_dear_span), took = now - began;
    uint64_t span = 0;
    if (vk_load_relaxed(&vk_cheap_turns) < VK_DEAR_PASSING * took)             /* else a passer-by, who is gone */
        span = last && began < until + last ? 2 * last : VK_DEAR_LEAST * took; /* tried again, and dear again? */
    span = span < VK_DEAR_MOST * took ? span : VK_DEAR_MOST * took;
    span = span < VK_DEAR_LONGEST ? span : VK_DEAR_LONGEST;
    vk_store_relaxed(&vk_cheap_turns, 0);
    vk_store_relaxed(&vk_dear_span, span);
    vk_store_relaxed(&vk_turns_dear_until, now + span);
}
