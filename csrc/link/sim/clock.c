/*
 * The clock of one rank of a simulated machine: the table sim_virtual behind base/virtual.h. turns.c decides which rank
 * runs; this file moves the clock of the rank that does.
 *
 * A clock moves only by declared costs and by waiting. The work of the real processor between two calls takes no
 * virtual time:
 *
 *    charge   + the machine's cost of a copy, a registration, a message ...     any time, without a turn
 *    idle     to the next arrival, to a NIC's timer, or to the caller's limit   hands over meanwhile
 *    now      + 0.1 us per reading, from the 257th reading without another call on
 *    begin    0, or the latest of all ranks' clocks
 *
 *    now()   real ns + ahead_ns | epoch_ns + clock / 1000 ........ | real ns + ahead_ns
 *            before begin       | between begin and end            | after end, never earlier than before
 *
 * Invariant: now() never decreases in a process. The epoch is the latest real time of all ranks at begin. If virtual
 * time was ahead at end, ahead_ns keeps the difference.
 *
 * The functions of the table are called without the mutex, by the rank's thread. Only idle(), begin() and now() may
 * sleep, for 50 ms of real time at most, or until the rank's turn has come.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/explain.h"
#include "base/virtual.h"
#include "link/sim/world.h"

#define SLICE (50 * VK_MS) /* real time of one call that waits; the caller checks for signals between two of them */
#define READS 256          /* of the clock, without another call: from here on reading it takes time */
#define READ_PS 100000u    /* each further reading: 0.1 us, so that a loop with a time-out ends */
#define VAIN_POLLS 64u     /* see idle() */
#define STUCK 1000u        /* idle calls at one clock */
#define STUCK_PS 1000000u  /* then a wait moves the clock by 1 us, not by 0 */
#define PAGE 4096          /* bytes; via.register_page_us is the cost of registering each */

struct sim_view *sim_here;

/* ---------------------------------------------------------------- the clock */

/* Rounded once, here, so that equal runs have equal sums (machine.h). */
void sim_spend(struct sim_view *v, double picoseconds)
{
    if (v && v->depth)
        v->me->clock += (uint64_t)(picoseconds + 0.5);
}

/* Every READS-th reading takes a turn: another rank may have to run before the condition of the loop comes true. */
static uint64_t now(void)
{
    struct sim_view *v = sim_here;
    if (v == NULL)
        return sim_real_ns();
    if (v->depth == 0)
        return sim_real_ns() + v->ahead_ns;
    /* A loop that only reads the clock must come to its end. */
    if (++v->n_reads > READS) {
        v->me->clock += READ_PS;
        if (v->n_reads % READS == 0) {
            uint32_t reads = v->n_reads;
            sim_lock(v->world);
            sim_take_turn(v);
            sim_unlock(v->world);
            v->n_reads = reads;
        }
    }
    return v->world->epoch_ns + v->me->clock / 1000;
}

/* Costs are below a nanosecond on fast machines, so measurements read this clock, and the protocols' timers now(). */
static uint64_t picoseconds(void)
{
    return sim_here && sim_here->depth ? sim_here->me->clock : 0;
}

static int is_on(void)
{
    return sim_here && sim_here->depth;
}

/* No turn is taken: the next call that can notice another rank does that. via.receive_us of each message contains one
 * post, so as many posts are free (spare_posts). */
static void charge(enum vk_charge what, uint64_t n)
{
    struct sim_view *v = sim_here;
    if (v == NULL || v->depth == 0)
        return;
    const struct sim_machine *m = &v->world->machine;
    double cost = (double)n;
    switch (what) {
    case VK_CHARGE_POST:
        cost = v->spare_posts ? 0 : cost * m->via_post;
        v->spare_posts -= v->spare_posts > 0;
        break;
    case VK_CHARGE_COPY:
        cost = m->copy_start + cost * m->copy;
        break;
    case VK_CHARGE_REGISTER:
        cost = m->via_register + (double)((n + PAGE - 1) / PAGE) * m->via_register_page;
        break;
    case VK_CHARGE_WAKEUP:
        cost *= v->links ? m->via_interrupt : 0; /* of streams: tcp.receive_us contains it */
        break;
    case VK_CHARGE_MESSAGE:
        cost *= m->message;
        break;
    case VK_CHARGE_TIME:
        cost *= 1000;
        break;
    }
    sim_spend(v, cost);
}

/* The next time at which a NIC of this process has something to do. The timers of the protocol (retransmission,
 * acknowledgement) belong to this process's NICs, and the clock may not pass them. */
static uint64_t next_due(const struct sim_view *v)
{
    uint64_t due = VK_NEVER;
    for (const struct link *l = v->links; l; l = l->next) {
        uint64_t at = l->client->services->due(l->client);
        due = at < due ? at : due;
    }
    return due;
}

/* A time of now() in picoseconds of virtual time. */
static uint64_t to_ps(const struct sim_view *v, uint64_t ns)
{
    uint64_t epoch = v->world->epoch_ns;
    /* A time before the beginning is due now. One too far for picoseconds never comes. */
    if (ns == VK_NEVER || ns - epoch > SIM_NEVER / 2000)
        return ns < epoch ? 0 : SIM_NEVER;
    return (ns - epoch) * 1000;
}

/* The wait of a rank may return in vain, after real time only, so that its caller checks for signals and calls again.
 * The caller also polls its NICs then. A poll would take a turn at the time of the others, or handle an arrival before
 * the caller has charged its wake-up. When it happens depends on the load of the real machine. So these polls return
 * nothing. A caller that gives its wait up, and only polls, gets its arrivals after VAIN_POLLS of them.
 *
 *    nothing due at this clock --READY, hand over--> RUNNING again: ARRIVAL or TIMER, by what is there
 *                                              \--> after SLICE of real time: SLICE, still READY and in the order
 *
 * A caller that does not act on what is due would stop the machine, because its event stays the earliest. So after
 * STUCK calls at one clock the wait moves the clock by STUCK_PS, or ignores the arrival. */
static enum vk_idle_end idle(uint64_t until_ns)
{
    struct sim_view *v = sim_here;
    if (v == NULL || v->depth == 0)
        return VK_IDLE_TIMER;
    struct sim_world *w = v->world;
    struct sim_member *me = v->me;
    uint64_t due = next_due(v);
    sim_lock(w);
    if (me->state == SIM_RUNNING) {
        uint64_t safe =
            sim_last_safe(w, me); /* a frame that an earlier rank sends later may be first at the switch port */
        sim_path_settle(w, me->host, me->clock < safe ? me->clock : safe);
    }
    vk_store_relaxed(&me->calls, me->calls + 1);
    v->n_reads = 0;
    if (me->clock != v->idle_at)
        v->idle_times = 0;
    v->idle_at = me->clock;
    if (me->state == SIM_OUTSIDE) { /* it has lost its turn */
        me->state = SIM_READY;
        me->clock = me->clock > w->now ? me->clock : w->now;
    }
    me->until = to_ps(v, until_ns < due ? until_ns : due);
    if (++v->idle_times > STUCK && me->until < me->clock + STUCK_PS)
        me->until = me->clock + STUCK_PS; /* the caller does not do what is due: the others must go on */
    uint64_t next = sim_path_next(w, v->index);
    if (v->idle_times > STUCK && next <= me->clock)
        next = SIM_NEVER; /* the caller does not take what has arrived: it waits for something else */
    me->wake = next < me->until ? next : me->until;
    if (me->wake < me->clock)
        me->wake = me->clock;
    /* Something is due at this clock: the caller goes on without a hand-over. */
    int here = me->state == SIM_RUNNING && me->wake == me->clock;
    if (!here) {
        uint32_t was = me->state;
        me->state = SIM_READY;
        me->idle = 1;
        if (was == SIM_RUNNING || w->running == SIM_NONE)
            sim_dispatch(w, me);
        here = sim_wait_turn(v, SLICE);
    }
    v->vain_polls = here ? 0 : VAIN_POLLS;
    v->idle_times -= !here;
    enum vk_idle_end end = !here                                     ? VK_IDLE_SLICE
                           : sim_path_next(w, v->index) <= me->clock ? VK_IDLE_ARRIVAL
                                                                     : VK_IDLE_TIMER;
    sim_unlock(w);
    return end;
}

/* ---------------------------------------------------------------- beginning and ending */

/* The last of n ranks has called begin: all servers of the hosts are free, and all clocks are 0. Ranks get hosts in the
 * order of their numbers, per_host each. The core is that of the calling rank. */
static void start(struct sim_world *w)
{
    sim_path_restart(w);
    for (uint32_t i = 0; i < SIM_MEMBERS; i++)
        w->hosts[i] = (struct sim_host){.first_coming = SIM_NONE};
    w->now = 0;
    w->ahead = sim_path_shortest(w);
    w->core = (uint32_t)sched_getcpu();
    for (uint32_t i = 0; i < w->n_members; i++) {
        struct sim_member *m = &w->members[i];
        if (m->state != SIM_GATHERING)
            continue;
        m->state = SIM_READY;
        m->clock = m->wake = 0;
        m->host = m->rank / w->per_host;
    }
    sim_dispatch(w, NULL);
}

/* All that wait at a further begin go on at the latest of their clocks. */
static void align(struct sim_world *w)
{
    uint64_t latest = 0;
    for (uint32_t i = 0; i < w->n_members; i++)
        if (w->members[i].aligning && w->members[i].clock > latest)
            latest = w->members[i].clock;
    for (uint32_t i = 0; i < w->n_members; i++) {
        struct sim_member *m = &w->members[i];
        if (!m->aligning)
            continue;
        m->aligning = m->idle = 0;
        m->state = SIM_READY;
        m->clock = m->wake = latest;
    }
    sim_dispatch(w, NULL);
}

/* Returns how many members wait in a further begin, or in their first one. Counted each time, because a member that has
 * died must not be counted. */
static uint32_t count(const struct sim_world *w, int aligning)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n_members; i++) {
        const struct sim_member *m = &w->members[i];
        n += aligning ? m->aligning && m->state == SIM_READY : m->state == SIM_GATHERING;
    }
    return n;
}

/* With the mutex, in virtual time: waits until all n ranks have called it. Returns 1 if this rank runs, 0 after SLICE.
 */
static int begin_again(struct sim_view *v, uint32_t n)
{
    struct sim_world *w = v->world;
    struct sim_member *me = v->me;
    if (!v->begun) {
        sim_take_turn(v);
        me->aligning = me->idle = 1;
        me->wake = SIM_NEVER;
        me->state = SIM_READY;
        v->begun = 1;
        if (count(w, 1) == n)
            align(w);
        else
            sim_dispatch(w, me);
    }
    return sim_wait_turn(v, SLICE);
}

/* The same for a rank whose time is real. The last of n ranks starts virtual time for all. */
static int begin_first(struct sim_view *v, uint32_t n, uint32_t rank)
{
    struct sim_world *w = v->world;
    struct sim_member *me = v->me;
    if (!v->begun) {
        uint64_t time = sim_real_ns() + v->ahead_ns;
        /* The first of a new round. The epoch becomes the latest time of all: no rank's clock may go back. */
        if (count(w, 0) == 0)
            w->epoch_ns = 0;
        if (w->epoch_ns < time)
            w->epoch_ns = time;
        me->rank = rank;
        v->spare_posts = 0;
        me->state = SIM_GATHERING;
        v->begun = 1;
        /* More ranks than hosts: each host gets as many as it has processors. */
        w->per_host = n > (uint32_t)w->machine.hosts ? (uint32_t)w->machine.cpus : 1;
        if (count(w, 0) == n)
            start(w);
    }
    return sim_wait_turn(v, SLICE);
}

/* Bind the calling thread to the core of all ranks, if it may run there. */
static void bind_thread(struct sim_view *v)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    v->bound = 0;
    /* A program that was confined to other cores keeps them: its hand-overs are slower, its times are the same. */
    if (sched_getaffinity(0, sizeof v->cores, &v->cores) != 0 || !CPU_ISSET(v->world->core, &v->cores))
        return;
    CPU_SET(v->world->core, &one);
    if (sched_setaffinity(0, sizeof one, &one) == 0)
        v->bound = (int)syscall(SYS_gettid);
}

/* Undoes bind_thread(). The thread is named by its number, because another one may call this. */
static void free_thread(struct sim_view *v)
{
    if (v->bound)
        sched_setaffinity(v->bound, sizeof v->cores, &v->cores);
    v->bound = 0;
}

/* A rank that gives up after -EAGAIN calls end(), which takes it out of the count. Between two calls that return
 * -EAGAIN it stays in it (`begun`). */
static int begin(int n, int rank)
{
    struct sim_view *v = sim_here;
    if (v == NULL)
        return 0;
    if (n < 1 || n > SIM_MEMBERS || rank < 0 || rank >= n) {
        vk_explain("sim: rank %d of %d: a simulated machine has 1 to %d ranks, numbered from 0", rank, n, SIM_MEMBERS);
        return -EINVAL;
    }
    if (!v->world->has_machine) {
        vk_explain("sim: no machine is described: VIAKIT_MACHINE must name the file of a machine's numbers");
        return -ENODEV;
    }
    sim_lock(v->world);
    int done = v->depth ? begin_again(v, (uint32_t)n) : begin_first(v, (uint32_t)n, (uint32_t)rank);
    /* All have begun, but others run first: this rank waits for its turn in its next call. */
    if (v->me->state == SIM_READY && !v->me->aligning)
        done = 1;
    if (done) {
        v->begun = 0;
        if (v->depth++ == 0)
            bind_thread(v);
    }
    sim_unlock(v->world);
    return done ? 0 : -EAGAIN;
}

/* The state GATHERING means that virtual time has never begun for this rank: its clock is of an earlier round. */
static void end(void)
{
    struct sim_view *v = sim_here;
    if (v == NULL || (v->depth == 0 && !v->begun))
        return;
    sim_lock(v->world);
    if (v->begun) {
        v->begun = 0;
        v->me->aligning = 0;
    } else
        v->depth--;
    if (v->depth == 0) {
        uint64_t real = sim_real_ns(), time = v->world->epoch_ns + v->me->clock / 1000;
        /* now() goes on from the end of virtual time, so that time-outs which were set in it do not expire at once. */
        if (v->me->state != SIM_GATHERING && time > real + v->ahead_ns)
            v->ahead_ns = time - real;
        free_thread(v);
        sim_step_out(v->world, v->index, SIM_OUTSIDE);
    }
    sim_unlock(v->world);
}

const struct vk_virtual sim_virtual = {
    .now = now,
    .picoseconds = picoseconds,
    .is_on = is_on,
    .charge = charge,
    .idle = idle,
    .begin = begin,
    .end = end,
};
