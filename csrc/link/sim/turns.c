/*
 * The order of a simulated machine: whose turn it is.
 *
 * One rank runs at a time, the one with the earliest next event. It goes on until its clock would pass the horizon of
 * another rank, and then hands over by a futex. The horizon is that rank's next event, and the shortest time in which a
 * frame sent there reaches a switch port of this host: until then nothing of the other rank can be noticed here. Ranks
 * of one host share its bus and its memory, so their horizon is the event itself. Frames therefore pass every server in
 * the order of virtual time, and results depend neither on the load of the real machine nor on the number of its cores.
 * Ranks with equal events run in the order of their numbers. This is conservative parallel simulation, with the
 * shortest way as its lookahead (Chandy and Misra, 1979), except that only one process runs at a time.
 *
 *    RUNNING   sim_take_turn: another event is earlier    -> READY, wake = clock
 *              idle (clock.c): nothing has arrived        -> READY, wake = next arrival, timer or time-out
 *    READY     sim_dispatch: `wake` is the earliest       -> RUNNING, clock = wake
 *
 * Invariant, with the mutex free: at most one member is RUNNING, and w->running is its index. When sim_take_turn()
 * returns, the clock of its member is within the horizon of every READY one.
 *
 * A hand-over is one futex call to wake and one to sleep:
 *
 *    rank A, RUNNING                              rank B, READY
 *      |                                            futex(FUTEX_WAIT, turn = 7)
 *      lock, state = READY, sim_dispatch: turn = 8    :
 *      unlock, futex(FUTEX_WAKE) -----------------> | lock, state is RUNNING: goes on
 *      futex(FUTEX_WAIT)                            |
 *
 * The threads of all ranks are bound to one core while time is virtual (clock.c), because only one of them can run: a
 * switch on one core takes a microsecond, a wake-up of another core takes many.
 *
 * A waiting process sleeps in slices, and checks at each end whether the running one is alive. If all threads of the
 * running one have slept for a second without a call, it waits for something outside of the machine. It then loses its
 * turn, and takes up the others' time at its next call.
 *
 * All functions need the mutex, except sim_real_ns(). Only sim_take_turn() and sim_wait_turn() sleep, and release the
 * mutex meanwhile: what a caller read before may have changed afterwards. A rank is one thread (base/virtual.h).
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

#define FIRST_CHECK (20 * VK_MS) /* real time between two looks of a waiting process at the running one */
#define ASLEEP VK_SECOND         /* see above */
#define ASLEEP_CHECKS 25u        /* in that second: it may have passed while the real machine was paused */

uint64_t sim_real_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * VK_SECOND + (uint64_t)t.tv_nsec;
}

/* ---------------------------------------------------------------- handing over */

/* Sets to_wake rather than waking at once: sim_unlock() makes the call when the mutex is free. */
void sim_dispatch(struct sim_world *w, const struct sim_member *self)
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
        sim_dispatch(w, NULL);
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
        sim_dispatch(w, NULL);
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

/* Called by a waiting process after each slice. Takes the turn from a running member that is dead, or that waits
 * outside of the machine. The files of /proc are read with the mutex, so that the member makes no call meanwhile. */
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

/* The futex word is read with the mutex. If sim_dispatch() changes it after the unlock and before the system call, the
 * kernel finds another value and returns EAGAIN at once, so no turn is missed (futex(2)). EINTR, EAGAIN and an early
 * wake-up only repeat the loop: `state` decides. */
int sim_wait_turn(struct sim_view *v, uint64_t most)
{
    if (vk_unlikely(vk_load_relaxed(&vk_exit_deadline)) && most > VK_SECOND)
        most = VK_SECOND; /* the process exits: its last frames may be out of turn */
    struct sim_world *w = v->world;
    struct sim_member *me = v->me;
    struct watch seen = {.member = SIM_NONE};
    uint64_t end = most == SIM_NO_LIMIT ? SIM_NO_LIMIT : sim_real_ns() + most, slice = FIRST_CHECK;
    while (me->state != SIM_RUNNING) {
        uint32_t turn = me->turn;
        uint64_t now = end == SIM_NO_LIMIT ? 0 : sim_real_ns();
        if (now >= end)
            return 0;
        /* end is SIM_NO_LIMIT for a wait without limit: the slice decides. */
        uint64_t ns = end - now < slice ? end - now : slice;
        struct timespec t = {(time_t)(ns / VK_SECOND), (long)(ns % VK_SECOND)};
        me->asleep = 1; /* checked by sim_dispatch() with the mutex */
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

/* The horizon of all other ranks. Members without an event, and those outside of virtual time, do not limit it. */
uint64_t sim_last_safe(const struct sim_world *w, const struct sim_member *me)
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

/* Also the way back into the order for a member that lost its turn, or whose wait returned in vain: it goes on at its
 * own clock or at that of the machine, whichever is later, because the others have gone on without it. */
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
            sim_dispatch(w, me);
        sim_wait_turn(v, SIM_NO_LIMIT);
    }
    /* The usual case needs neither futex nor hand-over: this rank is the earliest, and goes on. */
    if (me->clock > sim_last_safe(w, me)) {
        me->state = SIM_READY;
        me->wake = me->clock;
        sim_dispatch(w, me);
        sim_wait_turn(v, SIM_NO_LIMIT);
        return;
    }
    if (w->now < me->clock)
        w->now = me->clock;
}
