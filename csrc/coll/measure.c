/*
 * A rank that measures: see measure.h.
 *
 * The loop repeats one collective and records the times. The collective is called through one pointer, for viakit's
 * collectives and MPI's alike, so that both have the same overhead. The loop does nothing else. Processes, alternation
 * of algorithms and statistics are in Python (viakit/measure/barrier.py, viakit/measure/collectives.py).
 *
 *     skew_ns 0    warmup calls | enter[0]  n calls back to back  leave[0]              -> mean of a run
 *     otherwise    warmup calls | random delay, enter[i], call, leave[i] | the next ... -> time after the last arrival
 *
 * Clocks. enter[] and leave[] are times of vk_now(), which all processes of a machine share. On several machines only
 * the differences within a rank are comparable. On a simulated machine the clock is virtual, and starts on all ranks
 * together.
 *
 * Owner: the program's one thread. The world is opened without `threads`, and its interrupt callback is hung_up(), so a
 * measurement ends when its controller dies.
 */
#include "coll/measure.h"

#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/blake2s.h"
#include "base/clock.h"
#include "base/virtual_table.h"
#include "msg/policy.h"

/* Time for the other ranks to close their worlds, too. A killed rank must not block this one. */
#define CLOSE_MS 3000

/* A rank of the measurement: a world of its own, with one group of all its ranks. */
struct coll_measure {
    msg_world *world;
    coll *group;
    int control_fd;
};

/* The world's interrupt callback: the controller has closed its end, so the result is not needed any more. Does not
 * block, and reads nothing from the stream, which belongs to the caller. */
static int hung_up(void *context)
{
    const coll_measure *m = context;
    struct pollfd p = {.fd = m->control_fd, .events = POLLRDHUP};
    return m->control_fd >= 0 && poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLRDHUP | POLLERR));
}

/* All ranks draw a secret, and use the one of rank 0. Only the ranks and their controller see the exchanged data. A
 * rank alone needs no exchange. After an error the caller wipes `secret`. */
static int share_secret(const coll_measure_options *o, uint8_t secret[MSG_SECRET_LEN], char *error)
{
    uint8_t *all = calloc((size_t)o->n_ranks, MSG_SECRET_LEN);
    int code = all ? MSG_SUCCESS : MSG_ERR_NO_MEMORY;
    if (code == MSG_SUCCESS && vk_random_bytes(secret, MSG_SECRET_LEN) != 0) {
        snprintf(error, MSG_ERROR_LEN, "the kernel has no random bytes");
        code = MSG_ERR_CHANNEL;
    }
    if (code == MSG_SUCCESS && o->n_ranks > 1) {
        if (o->exchange(o->exchange_context, secret, MSG_SECRET_LEN, all) != 0) {
            snprintf(error, MSG_ERROR_LEN, "the exchange failed: a rank is missing, or gave up");
            code = MSG_ERR_EXCHANGE;
        }
        memcpy(secret, all, MSG_SECRET_LEN);
        vk_wipe(all, (size_t)o->n_ranks * MSG_SECRET_LEN);
    }
    free(all);
    return code;
}

/* The group uses context 1. The world belongs to this program, which uses no other context. After an error nothing is
 * left: a world without a group is aborted, because the other ranks may never close theirs. */
int coll_measure_open(const coll_measure_options *o, coll_measure **out, char *error)
{
    msg_policy policy = *msg_policy_find("via");
    uint8_t secret[MSG_SECRET_LEN];
    coll_measure *m = calloc(1, sizeof *m);
    int *ranks = calloc((size_t)o->n_ranks, sizeof *ranks);
    int code = m && ranks ? MSG_SUCCESS : MSG_ERR_NO_MEMORY;
    snprintf(error, MSG_ERROR_LEN, "%s", "no memory");
    if (code == MSG_SUCCESS && o->policy && msg_policy_parse(&policy, o->policy, error) != 0)
        code = MSG_ERR_ARG;
    if (code == MSG_SUCCESS)
        code = share_secret(o, secret, error);
    if (code == MSG_SUCCESS) {
        msg_options options = {.size = sizeof options,
                               .secret = secret,
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
        snprintf(error, MSG_ERROR_LEN, "the group could not be created: %s", msg_error_text(code));
        msg_world_abort(m->world);
    }
    free(ranks);
    vk_wipe(secret, sizeof secret);
    if (code != MSG_SUCCESS)
        free(m);
    else
        *out = m;
    return code;
}

/* The world waits for the others, so that the last collective has ended everywhere. NULL is allowed. */
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

/* A rank of another host if there is one, in the usual order of ranks by hosts. */
const char *coll_measure_route(const coll_measure *m)
{
    return msg_peer_route(m->world, msg_rank(m->world) ? 0 : msg_size(m->world) - 1);
}

/* ---------------------------------------------------------------- the loop */

/* Marsaglia's xorshift with shifts 13, 7, 17: good enough for random delays. The state must not be 0. */
static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return *state = x;
}

/* Busy, like a computing rank. With more ranks than cores it yields, so as not to occupy the core of an awaited
 * rank. */
static void be_late(uint64_t ns, int crowded)
{
    if (vk_time_is_virtual()) {
        vk_charge(VK_CHARGE_TIME, ns);
        return;
    }
    for (uint64_t end = vk_now() + ns; vk_now() < end;) {
        if (crowded)
            sched_yield();
        else
            vk_pause();
    }
}

/* Run the plan. The first error ends it, and enter and leave are then incomplete. Returns 0, or the code of the
 * call. */
static int loop(int (*call)(void *), void *context, const coll_measure_run_plan *plan)
{
    /* Never 0. */
    uint64_t state = plan->seed | 1;
    int code = 0;
    for (uint64_t i = 0; i <= plan->warmup && code == 0; i++) /* at least one, so that all begin together */
        code = call(context);
    if (plan->skew_ns == 0) {
        plan->enter[0] = vk_now();
        for (uint64_t i = 0; i < plan->n && code == 0; i++)
            code = call(context);
        plan->leave[0] = vk_now();
        return code;
    }
    for (uint64_t i = 0; i < plan->n && code == 0; i++) {
        /* Between two collectives, outside enter and leave. */
        be_late(draw(&state) % plan->skew_ns, plan->crowded);
        plan->enter[i] = vk_now();
        code = call(context);
        plan->leave[i] = vk_now();
    }
    return code;
}

/* The context of viakit_call: the root advances from call to call. */
struct viakit_context {
    coll *group;
    const coll_measure_work *work;
    int algorithm, root;
};

/* Return this call's root and advance it. */
static int next_root(int *root, int n)
{
    int now = *root;
    *root = now + 1 < n ? now + 1 : 0;
    return now;
}

/* Lengths are bytes; reductions add doubles, the most common case. For loop(): returns a msg_error. */
static int viakit_call(void *context)
{
    struct viakit_context *o = context;
    const coll_measure_work *w = o->work;
    switch (w->operation) {
    /* The cost of a turn of the scheduler, to compare with. */
    case COLL_NOTHING:
        sched_yield();
        return MSG_SUCCESS;
    case COLL_BARRIER:
        return coll_barrier(o->group, (coll_algorithm)o->algorithm);
    case COLL_BCAST:
        return coll_bcast(o->group, o->algorithm, w->out, w->len, next_root(&o->root, coll_size(o->group)));
    case COLL_REDUCE:
        return coll_reduce(o->group, o->algorithm, w->in, w->out, w->len / sizeof(double), COLL_DOUBLE, COLL_SUM,
                           next_root(&o->root, coll_size(o->group)));
    case COLL_ALLREDUCE:
        return coll_allreduce(o->group, o->algorithm, w->in, w->out, w->len / sizeof(double), COLL_DOUBLE, COLL_SUM);
    case COLL_ALLGATHER:
        return coll_allgather(o->group, o->algorithm, w->in, w->out, w->len);
    case COLL_ALLTOALL:
        return coll_alltoall(o->group, o->algorithm, w->in, w->out, w->len);
    default:
        return MSG_ERR_ARG;
    }
}

/* On a simulated machine, start the clocks of all ranks together. -EAGAIN: 50 ms of real time have passed without the
 * others, so this checks whether the controller is still there. end() also gives up a begin() that has not
 * succeeded. */
static int begin_virtual_time(coll_measure *m, const struct vk_virtual *v)
{
    for (;;) {
        int error = v->begin(coll_size(m->group), coll_rank(m->group));
        if (error == 0)
            return MSG_SUCCESS;
        if (error == -EAGAIN && !hung_up(m))
            continue;
        v->end();
        return error == -EAGAIN ? MSG_INTERRUPTED : MSG_ERR_ARG;
    }
}

/* The clock of a simulated machine runs only from begin to end, so that neither connecting nor the exchange of results
 * costs virtual time. enter and leave are the caller's, with room for plan->n times. */
int coll_measure_run(coll_measure *m, const coll_measure_work *work, int algorithm, const coll_measure_run_plan *plan)
{
    struct viakit_context own = {.group = m->group, .work = work, .algorithm = algorithm};
    vk_virtual_adopt();
    const struct vk_virtual *v = vk_load_relaxed(&vk_virtual);
    int code = v ? begin_virtual_time(m, v) : MSG_SUCCESS;
    if (code)
        return code;
    /* Yields are measured while all ranks yield. */
    if (work->operation == COLL_NOTHING)
        code = coll_barrier(m->group, COLL_BARRIER_DEFAULT);
    code = code ? code : loop(viakit_call, &own, plan);
    if (v)
        v->end();
    return code;
}

/* An MPI handle is an int (MPICH) or a pointer (Open MPI). On the supported machines either is passed in a register
 * like uintptr_t (csrc/bench/ep_mpi.c). The union is for dlsym, which returns a pointer to an object. `exchange` is
 * allgather and alltoall, which have the same parameters. */
struct mpi_context {
    const coll_measure_work *work;
    const coll_measure_mpi *mpi;
    int root;
    union {
        void *found;
        int (*barrier)(uintptr_t comm);
        int (*bcast)(void *buf, int count, uintptr_t type, int root, uintptr_t comm);
        int (*reduce)(const void *in, void *out, int count, uintptr_t type, uintptr_t op, int root, uintptr_t comm);
        int (*allreduce)(const void *in, void *out, int count, uintptr_t type, uintptr_t op, uintptr_t comm);
        int (*exchange)(const void *in, int count, uintptr_t type, void *out, int n, uintptr_t into, uintptr_t comm);
    } call;
};

/* Found by name in the library: no mpi.h is needed. COLL_NOTHING has no function, and is refused. */
static const char *const functions[COLL_N_OPERATIONS] = {
    [COLL_BARRIER] = "MPI_Barrier",     [COLL_BCAST] = "MPI_Bcast",         [COLL_REDUCE] = "MPI_Reduce",
    [COLL_ALLREDUCE] = "MPI_Allreduce", [COLL_ALLGATHER] = "MPI_Allgather", [COLL_ALLTOALL] = "MPI_Alltoall",
};

/* Reductions of whole doubles, all others of bytes, as in viakit_call. Counts are int, so w->len must be below 2^31. */
static int mpi_call(void *context)
{
    struct mpi_context *t = context;
    const coll_measure_work *w = t->work;
    const coll_measure_mpi *m = t->mpi;
    int bytes = (int)w->len, reals = (int)(w->len / sizeof(double));
    switch (w->operation) {
    case COLL_BARRIER:
        return t->call.barrier(m->comm);
    case COLL_BCAST:
        return t->call.bcast(w->out, bytes, m->byte, next_root(&t->root, w->n_ranks), m->comm);
    case COLL_REDUCE:
        return t->call.reduce(w->in, w->out, reals, m->real, m->sum, next_root(&t->root, w->n_ranks), m->comm);
    case COLL_ALLREDUCE:
        return t->call.allreduce(w->in, w->out, reals, m->real, m->sum, m->comm);
    default:
        return t->call.exchange(w->in, bytes, m->byte, w->out, bytes, m->byte, m->comm);
    }
}

/* The library is loaded and initialised by the caller (mpi4py, usually), and its handles come from there. */
int coll_measure_run_mpi(const coll_measure_mpi *mpi, const coll_measure_work *work, const coll_measure_run_plan *plan)
{
    struct mpi_context mpi_run = {.work = work, .mpi = mpi};
    /* RTLD_NOLOAD: only a library that is in the process already, never a second copy of it. */
    void *handle = dlopen(mpi->library, RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL); /* the library that is initialised */
    if (handle == NULL || work->operation <= COLL_NOTHING || work->operation >= COLL_N_OPERATIONS)
        return -1;
    mpi_run.call.found = dlsym(handle, functions[work->operation]);
    int code = mpi_run.call.found ? loop(mpi_call, &mpi_run, plan) : -1;
    dlclose(handle);
    return code;
}
