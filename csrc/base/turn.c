/* See turn.h. One word for the process: what a turn costs is a matter of the machine, not of who waits for what. */
#include "turn.h"

uint64_t vk_turns_dear_until;

void vk_turn_took(uint64_t began, uint64_t now)
{
    uint64_t span = (now - began) * VK_DEAR_SPAN;
    vk_store_relaxed(&vk_turns_dear_until, now + (span < VK_DEAR_LONGEST ? span : VK_DEAR_LONGEST));
}
