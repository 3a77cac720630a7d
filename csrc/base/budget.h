/*
 * A share of the time for work that the frames of unknown senders cause, such as reading the list of the station's
 * NICs. Without a limit a flood of such frames could keep a processor busy.
 *
 *    if (vk_budget_allows(&budget, now)) {
 *        ... the work ...
 *        vk_budget_spend(&budget, now, vk_now());
 *    } else
 *        ... use the last result ...
 *
 * The budget is time. It grows by 1/VK_BUDGET_SHARE of the time that passes between work, up to VK_BUDGET_MOST. Work
 * needs a budget above 0 and takes its own length from it, VK_BUDGET_LEAST at least. So short work runs once in VK_MS,
 * after a burst of 64. Work of 10 ms runs once in 90 ms. A fixed interval would not limit work that takes as long as
 * the interval.
 *
 * The length is that of the clock. It contains the time in which the process was stopped or the processor was busy with
 * others. The budget therefore never falls below -VK_BUDGET_DEBT, and work can begin again after VK_SECOND at the
 * latest.
 *
 * A struct vk_budget belongs to one thread at a time, and begins with zeros: the budget is full then.
 */
#ifndef VIAKIT_BUDGET_H
#define VIAKIT_BUDGET_H

#include "base/clock.h"

#define VK_BUDGET_SHARE 8u
#define VK_BUDGET_LEAST (VK_MS / VK_BUDGET_SHARE)
#define VK_BUDGET_MOST (64 * VK_BUDGET_LEAST)
#define VK_BUDGET_DEBT (VK_SECOND / VK_BUDGET_SHARE)

struct vk_budget {
    uint64_t at;  /* when it last grew, ns; 0: never */
    int64_t left; /* ns of work; negative after work that took longer than was left */
};

/* Lets the budget grow until now (a time of vk_now). Returns whether work may begin. */
static inline int vk_budget_allows(struct vk_budget *b, uint64_t now)
{
    if (b->at == 0)
        b->left = (int64_t)VK_BUDGET_MOST;
    if (now > b->at) {
        b->left += (int64_t)((now - b->at) / VK_BUDGET_SHARE);
        if (b->left > (int64_t)VK_BUDGET_MOST)
            b->left = (int64_t)VK_BUDGET_MOST;
        b->at = now;
    }
    return b->left > 0;
}

/* Takes the work that began and ended at these times from the budget. */
static inline void vk_budget_spend(struct vk_budget *b, uint64_t began, uint64_t ended)
{
    uint64_t took = ended > began ? ended - began : 0;
    b->left -= (int64_t)(took > VK_BUDGET_LEAST ? took : VK_BUDGET_LEAST);
    if (b->left < -(int64_t)VK_BUDGET_DEBT)
        b->left = -(int64_t)VK_BUDGET_DEBT;
    b->at = ended;
}

#endif
