/*
 * bench/start.c - starts a run. On a simulated machine (base/virtual.h) both sides first agree on the moment at which
 * virtual time begins. Only the run itself is in virtual time: endpoints connect, and results travel, in real time.
 */
#include "base/clock.h"
#include "base/virtual_table.h"
#include "bench/bench.h"
#include "viakit.h"

#include <errno.h>

/* Start the clocks of both sides together. 0, or an error. */
static int begin_virtual_time(bench_ep *ep, const bench_plan *plan)
{
    for (uint64_t end = vk_now() + (uint64_t)(plan->timeout_s * 1e9);;) {
        int rc = vk_virtual->begin(2, plan->side);
        if (rc == 0)
            return 0;
        if (rc != -EAGAIN)
            return bench_fail(ep, BENCH_ERROR, "%s", viakit_last_error()); /* the text is in the provider's library */
        if (vk_now() > end)
            rc = bench_fail(ep, BENCH_TIMEOUT, "the other side did not begin within %.1f s", plan->timeout_s);
        else if (bench_stop_requested(ep, plan))
            rc = BENCH_STOPPED;
        else
            continue;
        vk_virtual->end();
        return rc;
    }
}

/* See bench.h. Without a simulated machine this is bench_run_now alone. */
int bench_run(bench_ep *ep, const bench_plan *plan, double *samples)
{
    vk_virtual_adopt();
    /* The null endpoint has no other side to agree with, and measures the loop on the real processor. */
    if (vk_load_relaxed(&vk_virtual) == NULL || ep->ops->empty)
        return bench_run_now(ep, plan, samples);
    int rc = begin_virtual_time(ep, plan);
    if (rc)
        return rc;
    rc = bench_run_now(ep, plan, samples);
    vk_virtual->end();
    return rc;
}
