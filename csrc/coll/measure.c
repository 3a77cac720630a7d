#include "measure.h"

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/atomic.h"
#include "../base/clock.h"
#include "msg/policy.h"

#define CLOSE_MS 3000

struct coll_measure {
    msg_world *world;
    coll *group;
    int control_fd;
};

static int hung_up(void *context)
{
    const coll_measure *m = context;
    struct pollfd p = {.fd = m->control_fd, .events = POLLRDHUP};
    return m->control_fd >= 0 && poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLRDHUP | POLLERR));
}

int coll_measure_open(const coll_measure_options *o, coll_measure **out, char *error)
{
    msg_policy policy = *msg_policy_find("via");
    coll_measure *m = calloc(1, sizeof *m);
    int *ranks = calloc((size_t)o->n_ranks, sizeof *ranks);
    int code = m && ranks ? MSG_SUCCESS : MSG_ERR_NO_MEMORY;
    snprintf(error, MSG_ERROR_LEN, "%s", "no memory");
    if (code == MSG_SUCCESS && o->policy && msg_policy_parse(&policy, o->policy, error) != 0)
        code = MSG_ERR_ARG;
    if (code == MSG_SUCCESS) {
        msg_options options = {.size = sizeof options,
                               .rank = o->rank,
                               .n_ranks = o->n_ranks,
                               .policy = &policy,
                               .exchange = o->exchange,
                               .exchange_context = o->exchange_context,
                               .network_device = o->network_device,
                               .address = o->address,
                               .interrupt = hung_up,
                               .interrupt_context = m};
        m->control_fd = o->control_fd;
        for (int i = 0; i < o->n_ranks; i++)
            ranks[i] = i;
        code = msg_world_open(&options, &m->world, error);
    }
    if (code == MSG_SUCCESS && (code = coll_create(m->world, ranks, o->n_ranks, 1, &m->group)) != MSG_SUCCESS) {
        snprintf(error, MSG_ERROR_LEN, "the group could not be made: %s", msg_error_text(code));
        msg_world_abort(m->world);
    }
    free(ranks);
    if (code != MSG_SUCCESS)
        free(m);
    else
        *out = m;
    return code;
}

void coll_measure_close(coll_measure *m)
{
    if (m == NULL)
        return;
    coll_free(m->group);
    msg_world_close(m->world, CLOSE_MS);
    free(m);
}

const coll *coll_measure_group(const coll_measure *m)
{
    return m->group;
}

const char *coll_measure_route(const coll_measure *m)
{
    return msg_peer_route(m->world, msg_rank(m->world) ? 0 : msg_size(m->world) - 1);
}

/* ---------------------------------------------------------------- the loop */

/* Marsaglia's xorshift: enough to be late by chance. */
static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

static void be_late(uint64_t ns, int crowded)
{
    for (uint64_t end = vk_now() + ns; vk_now() < end;) {
        if (crowded)
            sched_yield();
        else
            vk_pause();
    }
}

static int loop(int (*barrier)(void *), void *context, const coll_measure_run_plan *plan)
{
    uint64_t state = plan->seed | 1;
    int code = 0;
    for (uint64_t i = 0; i <= plan->warmup && code == 0; i++) /* one at least: all begin together */
        code = barrier(context);
    if (plan->skew_ns == 0) {
        plan->enter[0] = vk_now();
        for (uint64_t i = 0; i < plan->n && code == 0; i++)
            code = barrier(context);
        plan->leave[0] = vk_now();
        return code;
    }
    for (uint64_t i = 0; i < plan->n && code == 0; i++) {
        be_late(draw(&state) % plan->skew_ns, plan->crowded);
        plan->enter[i] = vk_now();
        code = barrier(context);
        plan->leave[i] = vk_now();
    }
    return code;
}

struct ours {
    coll *group;
    coll_algorithm algorithm;
};

static int our_barrier(void *context)
{
    const struct ours *o = context;
    return coll_barrier(o->group, o->algorithm);
}

int coll_measure_run(coll_measure *m, coll_algorithm algorithm, const coll_measure_run_plan *plan)
{
    struct ours ours = {m->group, algorithm};
    return loop(our_barrier, &ours, plan);
}

struct theirs {
    int (*barrier)(uintptr_t comm);
    uintptr_t comm;
};

static int mpi_barrier(void *context)
{
    const struct theirs *t = context;
    return t->barrier(t->comm);
}

int coll_measure_run_mpi(const char *library, uintptr_t comm, const coll_measure_run_plan *plan)
{
    /* An MPI handle is an int or a pointer; either travels in a register (csrc/bench/ep_mpi.c). */
    struct theirs theirs = {.comm = comm};
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL); /* the one that is initialised */
    if (handle == NULL)
        return -1;
    void *found = dlsym(handle, "MPI_Barrier");
    memcpy(&theirs.barrier, &found, sizeof found);
    int code = found ? loop(mpi_barrier, &theirs, plan) : -1;
    dlclose(handle);
    return code;
}
