/*
 * The order of a simulated machine: whose turn it is.
 *
 * One rank runs at a time, the one with the earliest next event. It goes on until its clock would pass the horizon of
 * another rank, and then hands over by a futex. The horizon is that rank's next event, and the shortest time in which a
 * frame sent there reaches a switch port of this host: until then nothing of the other rank can be noticed here. Ranks
 * of one host share its bus and its memory, so their horizon is the event itself. Frames therefore pass every server in
 * the order of virtual time, and results depend neither on the load of the real machine nor on the number of its cores.
 * Ranks with equal events run in the order of their numbers.
 *
 *    RUNNING   sim_take_turn: another event is earlier    -> READY, wake = clock
 *              idle: nothing has arrived                  -> READY, wake = next arrival, timer or time-out
 *    READY     dispatch: `wake` is the earliest of all    -> RUNNING, clock = wake
 *
 * A hand-over is one futex call to wake and one to sleep. The threads of all ranks are bound to one core while time is
 * virtual, because only one of them can run: a switch on one core takes a microsecond, a wake-up of another core takes
 * many.
 *
 * A clock moves only by declared costs and by waiting. The work of the real processor between two calls takes no
 * virtual time.
 *
 * A waiting process sleeps in slices, and checks at each end whether the running one is alive. If all threads of the
 * running one have slept for a second without a call, it waits for something outside of the machine. It then loses its
 * turn, and takes up the others' time at its next call.
 */
#include <dirent.h>
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/exit.h"
#include "base/virtual.h"
#include "link/sim/world.h"

/* The caller checks for signals between two such calls. */
#define SLICE (50 * VK_MS)       /* real time of one call that waits */
#define FIRST_CHECK (20 * VK_MS) /* real time after which a waiting process looks at the running one */
#define ASLEEP VK_SECOND         /* see above */
#define ASLEEP_CHECKS 25u        /* in that second: it may have passed while the real machine was paused */
#define READS 256                /* of the clock, without another call: from here on reading it takes time */
#define READ_PS 100000u          /* each further reading: 0.1 us */
#define VAIN_POLLS 64u           /* see idle() */
#define STUCK 1000u              /* idle calls at one clock */
#define STUCK_PS 1000000u        /* then a wait moves the clock by 1 us, not by 0 */
#define BLANK UINT64_MAX         /* wait_turn: no limit */

struct sim_view *sim_here;

uint64_t sim_real_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * VK_SECOND + (uint64_t)t.tv_nsec;
}

/* ---------------------------------------------------------------- handing over */

/* Let the member with the earliest event run. Called when none runs. If no member has an event, all wait for something
 * from outside, such as an interrupt. */
static void dispatch(struct sim_world *w, const struct sim_member *self)
{
    struct sim_member *first = NULL;
    for (uint32_t i = 0; i < w->n_members; i++) {
        struct sim_member *m = &w->members[i];
        if (m->state != SIM_READY || m->wake == SIM_NEVER)
            continue;
        if (first == NULL || m->wake < first->wake || (m->wake == first->wake && m->rank < first->rank))
            first = m;
    }
    w->running = SIM_NONE;
    if (first == NULL)
        return;
    first->state = SIM_RUNNING;
    first->idle = 0;
    if (first->clock < first->wake)
        first->clock = first->wake;
    if (w->now < first->clock)
        w->now = first->clock;
    w->running = (uint32_t)(first - w->members);
    /* The futex word changes with the mutex held, before the wake-up: a member that is about to sleep sees it and does
     * not. */
    first->turn++;
    if (first != self && first->asleep)
        w->to_wake = w->running; /* by sim_unlock(): awake before, it would wait for the mutex */
}

void sim_step_out(struct sim_world *w, uint32_t member, enum sim_state state)
{
    struct sim_member *m = &w->members[member];
    m->state = state;
    m->idle = m->aligning = 0;
    /* Another member runs: it hands over as usual. */
    if (w->running == member || w->running == SIM_NONE)
        dispatch(w, NULL);
}

void sim_arrival(struct sim_world *w, uint32_t member)
{
    struct sim_member *m = &w->members[member];
    if (m->state != SIM_READY || !m->idle || m->aligning)
        return;
    /* An idle member is the only one whose event an arrival can bring forward: all others have work of their own at
     * `wake`. */
    uint64_t next = sim_path_next(w, member);
    m->wake = next < m->until ? next : m->until;
    if (m->wake < m->clock)
        m->wake = m->clock;
    if (w->running == SIM_NONE) /* a process outside of virtual time has sent this */
        dispatch(w, NULL);
}

/* ---------------------------------------------------------------- ranks that die, or wait elsewhere */

/* Returns the state of a thread, as /proc writes it ("R", "S", "D", "Z" ...), or 0 if the thread has ended. */
static char thread_state(const char *path)
{
    char text[512];
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    const char *end = strrchr(text, ')'); /* of the name, which may contain anything */
    return end && end[1] ? end[2] : 0;
}

/* A zombie has ended, too: its parent has not reaped it yet. */
static int is_dead(uint32_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    char state = thread_state(path);
    return state == 0 || state == 'Z' || state == 'X';
}

/* A thread that has ended meanwhile counts as asleep. If /proc cannot be read, the process counts as awake, and keeps
 * its turn. */
static int all_asleep(uint32_t pid)
{
    char path[400];
    snprintf(path, sizeof path, "/proc/%u/task", pid);
    DIR *d = opendir(path);
    int asleep = d != NULL;
    for (struct dirent *e; d && asleep && (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/%u/task/%s/stat", pid, e->d_name);
        char state = thread_state(path);
        asleep = state == 'S' || state == 0;
    }
    if (d)
        closedir(d);
    return asleep;
}

/* A waiting process's last view of the running one. */
struct watch {
    uint32_t member, calls, checks; /* of it: its count of calls, and how often it was asleep */
    uint64_t since;                 /* real ns: first seen so */
};

/* With the mutex. */
static void watch_running(struct sim_world *w, struct watch *seen)
{
    uint64_t now = sim_real_ns();
    uint32_t member = w->running;
    if (member == SIM_NONE)
        return;
    const struct sim_member *m = &w->members[member];
    uint32_t calls = vk_load_relaxed(&m->calls);
    if (is_dead(m->pid)) {
        w->n_deaths++;
        sim_step_out(w, member, SIM_ABSENT);
        return;
    }
    /* Any call, or any thread that runs, starts the second anew. */
    if (seen->member != member || seen->calls != calls || !all_asleep(m->pid))
        *seen = (struct watch){member, calls, 0, now};
    else if (++seen->checks >= ASLEEP_CHECKS && now - seen->since > ASLEEP)
        sim_step_out(w, member, SIM_OUTSIDE);
}

/* Wait, with the mutex at entry and return, until this member runs. Returns 0 if it does not after `most` ns of real
 * time. */
static int wait_turn(struct sim_view *v, uint64_t most)
{
    if (vk_unlikely(vk_load_relaxed(&vk_exit_deadline)) && most > VK_SECOND)
        most = VK_SECOND; /* the process exits: its last frames may be out of turn */
    struct sim_world *w = v->world;
    struct sim_member *me = v->me;
    struct watch seen = {.member = SIM_NONE};
    uint64_t end = most == BLANK ? BLANK : sim_real_ns() + most, slice = FIRST_CHECK;
    while (me->state != SIM_RUNNING) {
        uint32_t turn = me->turn;
        uint64_t now = end == BLANK ? 0 : sim_real_ns();
        if (now >= end)
            return 0;
        /* end is BLANK for a wait without limit: the slice decides. */
        uint64_t ns = end - now < slice ? end - now : slice;
        struct timespec t = {(time_t)(ns / VK_SECOND), (long)(ns % VK_SECOND)};
        me->asleep = 1; /* checked by dispatch() with the mutex */
        sim_unlock(w);
        long woken = syscall(SYS_futex, &me->turn, FUTEX_WAIT, turn, &t, NULL, 0);
        int timed_out = woken != 0 && errno == ETIMEDOUT;
        sim_lock(w);
        me->asleep = 0;
        if (timed_out && me->state != SIM_RUNNING)
            watch_running(w, &seen);
    }
    return 1;
}

/* Returns the last time to which this member may go without a hand-over. */
static uint64_t last_safe(const struct sim_world *w, const struct sim_member *me)
{
    uint64_t safe = SIM_NEVER, most;
    for (uint32_t i = 0; i < w->n_members; i++) {
        const struct sim_member *m = &w->members[i];
        if (m == me || m->state != SIM_READY || m->wake == SIM_NEVER)
            continue;
        /* A frame of that rank cannot reach this host before its next event and the shortest way. Up to the picosecond
         * before, this rank sees nothing of it. */
        if (m->host != me->host && w->ahead)
            most = m->wake + w->ahead - 1;
        /* Equal times run in the order of ranks, so the lower rank may go up to the event itself. */
        else if (m->rank > me->rank)
            most = m->wake;
        else
            most = m->wake ? m->wake - 1 : 0;
        if (most < safe)
            safe = most;
    }
    return safe;
}

void sim_take_turn(struct sim_view *v)
{
    struct sim_world *w = v->world;
    struct sim_member *me = v->me;
    if (v->depth == 0)
        return;
    vk_store_relaxed(&me->calls, me->calls + 1);
    v->n_reads = v->vain_polls = 0;
    if (me->state != SIM_RUNNING) { /* it has waited in vain, or lost its turn */
        if (me->state != SIM_READY || me->idle)
            me->wake = me->clock > w->now ? me->clock : w->now;
        me->state = SIM_READY;
        me->idle = 0;
        if (w->running == SIM_NONE)
            dispatch(w, me);
        wait_turn(v, BLANK);
    }
    /* The usual case needs neither futex nor hand-over: this rank is the earliest, and goes on. */
    if (me->clock > last_safe(w, me)) {
        me->state = SIM_READY;
        me->wake = me->clock;
        dispatch(w, me);
        wait_turn(v, BLANK);
        return;
    }
    if (w->now < me->clock)
        w->now = me->clock;
}

/* ---------------------------------------------------------------- the clock */

void sim_spend(struct sim_view *v, double picoseconds)
{
    if (v && v->depth)
        v->me->clock += (uint64_t)(picoseconds + 0.5);
}

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
        cost = m->via_register + (double)((n + 4095) / 4096) * m->via_register_page;
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
 * nothing. A caller that gives its wait up, and only polls, gets its arrivals after VAIN_POLLS of them. */
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
        uint64_t safe = last_safe(w, me); /* a frame that an earlier rank sends later may be first at the switch port */
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
            dispatch(w, me);
        here = wait_turn(v, SLICE);
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

/* The last of n ranks has called begin: all servers of the hosts are free, and all clocks are 0. */
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
    dispatch(w, NULL);
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
    dispatch(w, NULL);
}

/* Counted each time, because a member that has died must not be counted. */
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
            dispatch(w, me);
    }
    return wait_turn(v, SLICE);
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
    return wait_turn(v, SLICE);
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
