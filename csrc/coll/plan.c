/*
 * Plans: the algorithms of data.c as lists of steps. An algorithm's exchanges depend on the number of ranks, the root
 * and the length, but not on the data. So it runs here once with functions that record what it would do, and with
 * buffers that do not exist: every address is a position in one imaginary memory.
 *
 *     | operand and result (alltoall: outgoing parts | incoming parts) | scratch ... |
 *     BASE                                                             c.scratch
 *
 * Nothing here blocks or uses a world. Any thread.
 */
#include <stdlib.h>

#include "coll/inside.h"

#define BASE ((char *)(uintptr_t)4096) /* never dereferenced, and not NULL, which stands for "no data" */

struct coll_plan {
    coll c; /* first, so that an exchange finds its plan; only its scratch memory is used */
    struct coll_step *steps;
    int n, room, failed;
};

/* Lengths are in the units of the caller, and so are positions, because BASE stands for the first unit. */
static size_t position(const void *address)
{
    return address ? (size_t)((const char *)address - BASE) : 0;
}

/* Without memory the plan is incomplete. The algorithm runs to its end nevertheless, and hand_over reports the
 * failure. */
static void record(struct coll_plan *plan, struct coll_step step)
{
    if (plan->n == plan->room) {
        int room = plan->room ? 2 * plan->room : 16;
        struct coll_step *more = realloc(plan->steps, (size_t)room * sizeof *more);
        if (more == NULL) {
            plan->failed = 1;
            return;
        }
        plan->steps = more;
        plan->room = room;
    }
    plan->steps[plan->n++] = step;
}

/* The exchange of a plan (coll_exchange). It always succeeds, so the algorithm takes each of its steps. */
static int record_exchange(coll *c, const void *out, size_t out_len, int to, void *in, size_t in_len, int from)
{
    record((struct coll_plan *)(void *)c,
           (struct coll_step){COLL_STEP_EXCHANGE, to, from, position(out), out_len, position(in), in_len, 0});
    return MSG_SUCCESS;
}

void coll_plan_local(struct coll_plan *plan, int kind, const void *low, const void *high, const void *to, size_t len)
{
    if (len)
        record(plan, (struct coll_step){kind, MSG_PROC_NULL, MSG_PROC_NULL, position(low), len, position(high), len,
                                        position(to)});
}

void coll_plan_signal(coll *c, int kind, int rank)
{
    int to = kind == COLL_STEP_SIGNAL ? rank : MSG_PROC_NULL, from = kind == COLL_STEP_AWAIT ? rank : MSG_PROC_NULL;
    record((struct coll_plan *)(void *)c, (struct coll_step){kind, to, from, 0, 0, 0, 0, 0});
}

/* Give the steps to the caller, which frees them. After an error they are freed here, and nothing is set. */
static int hand_over(struct coll_plan *plan, int code, struct coll_step **steps, int *n_steps)
{
    if (plan->failed)
        code = MSG_ERR_NO_MEMORY;
    if (code != MSG_SUCCESS) {
        free(plan->steps);
        return code;
    }
    *steps = plan->steps;
    *n_steps = plan->n;
    return MSG_SUCCESS;
}

int coll_barrier_plan(int algorithm, int n, int me, int per_host, int cores, struct coll_step **steps, int *n_steps)
{
    if (n < 1 || (unsigned)me >= (unsigned)n || per_host < 1 || cores < 1)
        return MSG_ERR_ARG;
    /* central() in barrier.c chooses the number of centres by `cores`. */
    struct coll_plan plan = {.c = {.n = n, .rank = me, .cores = cores}};
    return hand_over(&plan, n > 1 ? coll_barrier_record(&plan, algorithm, per_host) : MSG_SUCCESS, steps, n_steps);
}

int coll_plan(int operation, int is_long, int n, int me, int root, size_t len, struct coll_step **steps, int *n_steps)
{
    coll_run *run = operation == COLL_SCATTER ? coll_scatter_binomial : coll_run_by_message(operation, is_long);
    if (run == NULL || n < 1 || (unsigned)me >= (unsigned)n || (unsigned)root >= (unsigned)n)
        return MSG_ERR_ARG;
    size_t whole = operation == COLL_ALLGATHER || operation == COLL_ALLTOALL ? (size_t)n * len : len;
    char *result = operation == COLL_ALLTOALL ? BASE + whole : BASE;
    /* Scratch of any length is there already, so coll_scratch allocates nothing. */
    struct coll_plan plan = {.c = {.n = n, .rank = me, .scratch = result + whole, .scratch_len = SIZE_MAX}};
    struct coll_ring ring = {.c = &plan.c, .exchange = record_exchange, .plan = &plan, .n = n, .me = me};
    /* Elements of one byte: lengths and counts are the caller's units. */
    struct coll_call call = {.in = BASE, .out = result, .len = len, .count = len, .root = root, .type = COLL_UINT8};
    int code = n > 1 ? run(&ring, &call) : MSG_SUCCESS;
    return hand_over(&plan, code, steps, n_steps);
}
