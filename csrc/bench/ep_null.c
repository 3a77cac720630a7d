/*
 * bench/ep_null.c - no protocol at all: every operation is done at once. The loop then measures itself.
 *
 * A sample is then the cost of the loop: two indirect calls, the counters, and one time stamp per round trip. The same
 * cost is part of each other protocol's figure. Nothing moves, so there is one side only, and a run needs no partner.
 */
#include "bench/bench.h"

static int null_prepare(bench_ep *ep, const bench_plan *plan)
{
    /* The pattern would not match, because no data is transferred. */
    if (plan->validate)
        return bench_fail(ep, BENCH_ERROR, "null carries no data: there is nothing to validate");
    return bench_buffers(ep, plan, 1);
}

/* Stands for a send and for a receive. rmsg stays at the buffer that bench_buffers has chosen. */
static int null_message(bench_ep *ep, size_t len)
{
    (void)ep;
    (void)len;
    return BENCH_DONE;
}

static const bench_ops null_ops = {
    .name = "null",
    .min_len = 0,
    .max_len = (size_t)1 << 30,
    .empty = true,
    .prepare = null_prepare,
    .send = null_message,
    .recv = null_message,
};

BENCH_OPEN(null)
{
    (void)options;
    return bench_ep_new(sizeof(bench_ep), &null_ops, true, error);
}
