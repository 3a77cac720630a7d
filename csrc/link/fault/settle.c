/*
 * Faults as programs pass them: checked, and copied between structs of different lengths, because a program may have
 * been compiled with fewer fields.
 */
#include <string.h>

#include "base/explain.h"
#include "link/fault/fault.h"

static int out_of_range(double chance)
{
    return !(chance >= 0 && chance <= 1); /* this form also rejects NaN */
}

/* Also rejects NaN. The limit keeps a time in nanoseconds within 64 bits. */
static int is_bad_time(double us)
{
    return !(us >= 0 && us <= 1e15);
}

/* Copies the faults, perhaps of a program compiled with fewer fields, and checks them. */
VIP_RETURN fault_settle(const viakit_faults *from, viakit_faults *to)
{
    memset(to, 0, sizeof *to);
    memcpy(to, from, from->size && from->size < sizeof *to ? from->size : sizeof *to);
    to->size = sizeof *to;
    if (out_of_range(to->loss) || out_of_range(to->duplicate) || out_of_range(to->reorder) || out_of_range(to->corrupt))
        return vk_fail(VIP_INVALID_PARAMETER, "faults: a chance lies between 0 and 1");
    if (is_bad_time(to->delay_us) || is_bad_time(to->jitter_us) || is_bad_time(to->stall_us) ||
        is_bad_time(to->stall_every_us) || is_bad_time(to->partition_after_us) ||
        (to->partition_us != VIAKIT_FOR_EVER && is_bad_time(to->partition_us)))
        return vk_fail(VIP_INVALID_PARAMETER, "faults: a time is 0 or more microseconds, and below 1e15");
    if (to->stall_us > 0 && to->stall_us >= to->stall_every_us)
        return vk_fail(VIP_INVALID_PARAMETER, "faults: a stall is shorter than its period: stall=10ms/100ms");
    if (to->reorder_distance > FAULT_MOST_DISTANCE || to->corrupt_bits > 32 || to->n_rules > VIAKIT_MAX_FAULT_RULES)
        return vk_fail(VIP_INVALID_PARAMETER, "faults: at most %d frames overtake, 32 bits are flipped, %d rules",
                       FAULT_MOST_DISTANCE, VIAKIT_MAX_FAULT_RULES);
    for (uint32_t i = 0; i < to->n_rules; i++) {
        const viakit_fault_rule *r = &to->rules[i];
        if (r->verdict < VIAKIT_DROP || r->verdict > VIAKIT_CORRUPT || r->kind > 31 || r->first > r->last)
            return vk_fail(VIP_INVALID_PARAMETER, "faults: rule %u is invalid: drop, dup, hold or corrupt frames m-n",
                           i);
    }
    return VIP_SUCCESS;
}

/* Checks `size` before fault_copy_out() writes to the struct. 0 counts as the length of this version's struct; anything
 * shorter than `size` itself is an error. */
VIP_RETURN fault_check_size(const char *function, const viakit_faults *to)
{
    if (to->size && to->size < sizeof to->size)
        return vk_fail(VIP_INVALID_PARAMETER, "%s: a struct of %zu bytes: begin with VIAKIT_FAULTS_INIT", function,
                       to->size);
    return VIP_SUCCESS;
}

/* A program compiled with fewer fields has a shorter struct. Fields beyond its size are not written. */
void fault_copy_out(const viakit_faults *from, viakit_faults *to)
{
    size_t size = to->size && to->size < sizeof *to ? to->size : sizeof *to;
    memcpy(to, from, size);
    to->size = size;
}
