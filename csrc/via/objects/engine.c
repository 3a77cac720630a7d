/*
 * Progress: which thread drives a NIC, and which thread sleeps.
 *
 * A thread that polls also drives: each Done call that finds nothing polls the link once. When a program neither polls
 * nor waits, the NIC's own thread drives instead. Messages are then placed and acknowledged while the program computes.
 *
 *   the program polls            polls postpone the thread's next check, a timer (check_fd): the thread sleeps on
 *   the program polls seldom     the check runs what is due: the program may read the clock too late
 *   the program stopped polling  the check takes over: the thread drives, then sleeps on the link's file descriptor
 *   a call waits                 it spins for spin_us, then sleeps on the file descriptor itself (wait.c)
 *
 * Invariant: at most one thread (`sleeper`) sleeps on the data file descriptor, and none while a thread polls. A frame
 * that arrives for a polling program therefore causes no wake-up.
 *
 * One in VIA_POLLS_PER_CLOCK idle polls reads the clock; the others do not.
 *
 * Deadlines: `timers_at` is the next time at which anything is due (via_timer). A sleep ends at that time at the
 * latest, and a polling thread compares it whenever it reads the clock.
 *
 * Postponing: a check wakes the thread, which takes a core from the program for about ten microseconds. Setting a timer
 * anew takes some microseconds of a virtual machine, whose kernel calls the hypervisor for it. On two hosts, either at
 * intervals of 400 us delays one round trip of short messages in 50: it is the 99th percentile. So the interval becomes
 * longer as soon as the program has polled for some time, and a poll postpones the check when a quarter is left.
 *
 *      polls     | | | | | | | | | | | | | | | | |        (stop)
 *      timer     |------------>                           set by the thread: now + tick
 *                          |-------------->               postponed
 *                                     |-------------->    check: no new polls, so the thread takes over
 */
#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/thread.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/link_services.h"
#include "via/nic.h"
#include "via/notify.h"
#include "via/own.h"
#include "via/pending.h"
#include "via/vi.h"

#define LONG_TICK (20 * VK_MS) /* the thread's tick while a call has slept long */

_Static_assert(VIA_TAKEOVER_MOST_US *VK_US < LONG_TICK, "a tick of LONG_TICK means that a call sleeps");

/* ---------------------------------------------------------------- the thread's next check */

/* Set the timer of the next check to `after` ns from now. The program's and the NIC's thread do it without a lock: the
 * timer that was set last holds, and each of them is soon enough. */
static void set_check(struct via_nic *nic, uint64_t now, uint64_t after)
{
    struct itimerspec t = {.it_value = {(time_t)(after / VK_SECOND), (long)(after % VK_SECOND)}};
    vk_store_relaxed(&nic->check_at, now + after);
    timerfd_settime(nic->check_fd, 0, &t, NULL);
}

/* Returns the shortest time between a poll and the check that follows it. */
static uint64_t least_check(const struct via_nic *nic)
{
    return (nic->options.takeover_us ? nic->options.takeover_us : VIA_TAKEOVER_US) * VK_US;
}

/* Postpone the thread's check when a quarter of the interval is left: the program polls, or sleeps in a call, and both
 * drive. Without takeover_us the interval doubles each time, from VIA_TAKEOVER_US to VIA_TAKEOVER_POLLING_US: when the
 * program stops, progress pauses for no more than twice the time for which it has polled. The interval is the shortest
 * again if the program has polled less than once in a microsecond: then it does something else, too, or waits for a
 * core. */
static void postpone_check(struct via_nic *nic)
{
    if (nic->now + nic->postponed_by / 4 < vk_load_relaxed(&nic->check_at))
        return;
    int seldom = (nic->polls - nic->postponed_polls) * VK_US < nic->now - nic->postponed_at;
    if (seldom)
        nic->postponed_by = least_check(nic);
    else if (nic->options.takeover_us == 0 && nic->postponed_by < VIA_TAKEOVER_POLLING_US * VK_US)
        nic->postponed_by *= 2;
    nic->postponed_at = nic->now;
    nic->postponed_polls = nic->polls;
    NIC_COUNT(nic, system_calls, 1);
    set_check(nic, nic->now, nic->postponed_by);
}

/* ---------------------------------------------------------------- driving */

/* Detach the whole list first: a VI that is still blocked adds itself to the new one. Reads go first, because a peer
 * may wait for their replies. */
static void retry_stalled(struct via_nic *nic)
{
    struct via_vi *vi = nic->stall_list;
    nic->stall_list = NULL;
    while (vi) {
        struct via_vi *next = vi->stall_next;
        vi->on_stall_list = 0;
        if (vi->reads)
            via_reads_go_on(vi);
        via_transmit(vi);
        vi = next;
    }
}

/* Send the frames that the link had no room for, and the replies that were delayed to the end of this poll. */
static void send_what_waits(struct via_nic *nic)
{
    if (nic->stall_list)
        retry_stalled(nic);
    if (nic->deferred)
        via_send_deferred(nic);
    if (nic->answer_list)
        via_send_answers(nic);
}

/* Do the work that needs the current time: acknowledgements and timers. If the NIC has no thread, also run the link's
 * control function. After a poll that found frames, acknowledgements wait until they are overdue: the program's reply,
 * which comes next, carries them. */
static void drive_by_clock(struct via_nic *nic, int idle)
{
    uint64_t last = nic->now;
    nic->now = vk_now();
    if (nic->acks_at != VK_NEVER && (idle || nic->now >= nic->acks_at))
        via_flush_acks(nic, idle ? VIA_ACKS_URGENT : VIA_ACKS_OVERDUE, last);
    if (nic->now >= nic->timers_at) {
        vk_store_relaxed(&nic->timers_at, VK_NEVER);
        while (vk_unlikely(nic->n_failed_peers))
            via_link_peer_lost(&nic->link_client, nic->failed_peers[--nic->n_failed_peers]);
        via_reliable_timers(nic);
        via_conn_timers(nic);
    }
    if (!nic->has_thread && nic->ops->control)
        nic->ops->control(nic->link);
}

void via_drive_slow(struct via_nic *nic)
{
    drive_by_clock(nic, 1);
}

int via_drive_rest(struct via_nic *nic, int n)
{
    /* all three are rare: one branch for the common case */
    if (vk_unlikely((uintptr_t)nic->stall_list | (uintptr_t)nic->deferred | (uintptr_t)nic->answer_list)) {
        /* via_drive() does not count these polls as idle, but the clock must be read nevertheless */
        nic->idle += nic->stall_list || nic->deferred;
        send_what_waits(nic);
    }
    if (n > 0)
        nic->idle = 0;
    /* the clock is also read if every poll finds something */
    if (((nic->idle & (VIA_POLLS_PER_CLOCK - 1)) == 0 && (n == 0 || (nic->polls & (VIA_POLLS_PER_CLOCK - 1)) == 0)) ||
        vk_time_is_virtual()) { /* there, every time: a wait has moved the clock to the next timer */
        drive_by_clock(nic, n == 0);
        if (nic->has_thread)
            postpone_check(nic);
    }
    return n;
}

/* Poll the link once and, if that found nothing, run the timers. Programs use it on a NIC without a thread to wait for
 * an event that VIPL does not report, such as an RDMA write. *n_events is the number of link slots handled. */
VIP_RETURN viakit_poll(VIP_NIC_HANDLE handle, int *n_events)
{
    VIA_ENTER_NIC(nic, handle);
    int n = via_drive(nic);
    if (n == 0)
        via_drive_slow(nic);
    if (!nic->has_thread && via_callbacks_wait(nic)) {
        nic->n_calls++; /* the NIC stays open until the handlers have returned */
        via_leave(nic);
        via_run_handlers(nic);
        via_run_notifications(nic);
        via_enter(nic);
        nic->n_calls--;
    }
    via_leave(nic);
    if (n_events)
        *n_events = n;
    return VIP_SUCCESS;
}

/* ---------------------------------------------------------------- sleeping */

void via_kick_thread(struct via_nic *nic)
{
    uint64_t one = 1;
    ssize_t written = vk_write(nic->wake_fd, &one, sizeof one);
    (void)written; /* EAGAIN: the counter is full, so it is readable already */
}

/* Wake the thread that sleeps on the data descriptor. Each sleeper has its own eventfd: with a shared one, a sleeper
 * could drain the wake-up of the other. */
void via_kick_sleeper(struct via_nic *nic)
{
    uint64_t one = 1;
    ssize_t written = vk_write(nic->sleeper == 2 ? nic->waiter_fd : nic->wake_fd, &one, sizeof one);
    (void)written;
}

/* Return the time until something is due, at most `most`. Frames that the link had no room for are retried soon, but
 * not at once: if the peer does not read, they would be due forever. Acknowledgements are included, because a thread
 * that goes to sleep has already sent those for which the link had room. */
static uint64_t until_due(struct via_nic *nic, uint64_t now, uint64_t most)
{
    uint64_t due = nic->timers_at;
    if (nic->stall_list || nic->deferred || nic->ack_list)
        due = now + VIA_TICK < due ? now + VIA_TICK : due;
    /* The decorator `fault` delays frames on purpose and reports until when. */
    if (nic->ops->due) {
        uint64_t link_due = nic->ops->due(nic->link);
        due = link_due < due ? link_due : due;
    }
    if (due <= now)
        return 0;
    return due - now < most ? due - now : most;
}

uint64_t via_link_due(struct link_client *client)
{
    struct via_nic *nic = via_nic_of(client);
    uint64_t due = nic->timers_at < nic->acks_at ? nic->timers_at : nic->acks_at;
    if (nic->ops->due) {
        uint64_t link_due = nic->ops->due(nic->link);
        due = link_due < due ? link_due : due;
    }
    if ((nic->stall_list || nic->deferred) && due > nic->now + VIA_TICK)
        due = nic->now + VIA_TICK;
    return due;
}

/* The poll set of a sleep: an eventfd, the link's control descriptor, and the data descriptors. */
struct pollset {
    struct pollfd fds[2 + LINK_WATCHED];
    nfds_t n;
};

/* Start a poll set without the data descriptors: fds[0] is the eventfd by which other threads wake this one, fds[1] the
 * link's control descriptor. It is -1, which poll ignores, if the link has none. The only sleeper on the data
 * descriptors adds them with pollset_add_data(). */
static void pollset_init(struct via_nic *nic, struct pollset *set, int wake_fd)
{
    set->fds[0] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    set->fds[1] = (struct pollfd){.fd = nic->control_fd, .events = POLLIN};
    set->n = 2;
}

/* Add the data descriptors. Called after arm: a link with many descriptors reports only then which ones to watch. */
static void pollset_add_data(struct via_nic *nic, struct pollset *set)
{
    if (nic->ops->watch)
        set->n += (nfds_t)nic->ops->watch(nic->link, set->fds + set->n);
    else
        set->fds[set->n++] = (struct pollfd){.fd = nic->data_fd, .events = POLLIN};
}

/* Sleep without ownership: other threads may enter the NIC. ns: VK_NEVER for no limit. The eventfd that woke the thread
 * is drained. A time-out, a signal (EINTR) and a descriptor all end the sleep alike, and the caller then checks all
 * conditions again. */
static void pollset_sleep(struct pollset *set, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / VK_SECOND), (long)(ns % VK_SECOND)};
    uint64_t count;
    ppoll(set->fds, set->n, ns == VK_NEVER ? NULL : &t, NULL);
    if (set->fds[0].revents && vk_read(set->fds[0].fd, &count, sizeof count) < 0)
        count = 0; /* another thread drained it first */
}

/* After the sleep, as owner: report to the link which descriptors are readable, if it needs that. Return whether
 * control() has work. */
static int pollset_woken(struct via_nic *nic, const struct pollset *set)
{
    if (nic->ops->woken)
        nic->ops->woken(nic->link, set->fds + 2, (int)set->n - 2);
    else if (set->n > 2 && set->fds[2].revents & (POLLERR | POLLHUP)) {
        int error; /* an interface went down: fetch the error, or every later sleep ends at once */
        socklen_t len = sizeof error;
        getsockopt(nic->data_fd, SOL_SOCKET, SO_ERROR, &error, &len);
    }
    return set->fds[1].revents != 0;
}

/* The order ensures that no frame is slept over. First sleep_until and sleeper are set, so that a thread that makes
 * something due sooner wakes this one. Then the link is armed, which polls once more. Only then is the NIC left. */
int via_sleep_on_link(struct via_nic *nic, uint32_t who, uint64_t most)
{
    uint64_t now = nic->now = vk_now();
    if (nic->ack_list)
        via_flush_acks(nic, VIA_ACKS_ALL, now); /* no other thread sends them during the sleep */
    uint64_t ns = until_due(nic, now, most);
    nic->sleeper_thread = via_thread_id_make();
    nic->sleep_until = ns == VK_NEVER ? VK_NEVER : now + ns;
    if (who == 2 && nic->has_thread)
        postpone_check(nic);
    vk_store_relaxed(&nic->sleeper, who); /* the NIC's thread reads it without being owner */
    int control = 0, sleeps = ns && !vk_time_is_virtual() && (nic->ops->arm == NULL || !nic->ops->arm(nic->link));
    if (sleeps) {
        struct pollset set;
        pollset_init(nic, &set, who == 1 ? nic->wake_fd : nic->waiter_fd);
        pollset_add_data(nic, &set);
        NIC_COUNT(nic, system_calls, 1);
        who == 1 ? via_own_leave_slow(&nic->own) : via_leave(nic);
        pollset_sleep(&set, ns);
        who == 1 ? via_own_enter_slow(&nic->own, 1) : via_enter(nic);
        control = pollset_woken(nic, &set);
        NIC_COUNT(nic, wakeups, 1);
    }
    if (nic->ops->disarm)
        nic->ops->disarm(nic->link);
    vk_store_relaxed(&nic->sleeper, 0);
    if (control && nic->ops->control)
        nic->ops->control(nic->link);
    nic->idle = VIA_POLLS_PER_CLOCK - 1; /* the next idle poll reads the clock */
    return sleeps;
}

/* ---------------------------------------------------------------- the NIC's own thread */

/* The thread drives while the program neither polls nor waits. Between polls it sleeps on the data descriptor. It stops
 * when another thread's poll moves the counter, a call begins to wait, or handlers must run, which is done outside the
 * NIC: then it returns 1. */
static int thread_drives(struct via_nic *nic)
{
    via_own_enter_slow(&nic->own, 1);
    NIC_COUNT(nic, thread_takeovers, 1);
    uint64_t polls = nic->polls;
    uint32_t rounds = 0;
    nic->postponed_by = least_check(nic);
    while (!nic->closing && nic->n_waiting == 0) {
        int n = nic->ops->poll(nic->link, VIA_BUDGET);
        send_what_waits(nic);
        if (n == 0) {
            via_drive_slow(nic);
            if (nic->sleeper)
                break;
            via_sleep_on_link(nic, 1, VK_NEVER);
        } else if (++rounds % VIA_POLLS_PER_CLOCK == 0)
            via_drive_slow(nic); /* also under steady traffic */
        /* Under steady traffic, or if something is always due, a program that has come back would wait forever. */
        if (vk_load_relaxed(&nic->own.waiting))
            via_own_hand_over(&nic->own, 1);
        if (vk_load_relaxed(&nic->polls) != polls)
            break; /* the program polls again */
        if (via_callbacks_wait(nic))
            break;
    }
    int callbacks = via_callbacks_wait(nic);
    via_own_leave_slow(&nic->own);
    return callbacks;
}

/* Run timers and acknowledgements of a program that polls, but less than VIA_POLLS_PER_CLOCK times between two checks
 * of the thread. If the program yields its core between polls and other processes compute there, it may next read the
 * clock seconds later. Time-outs must not be delayed by that: a dead peer would be detected seconds too late for every
 * retry. Nor must acknowledgements, for which a peer may wait. */
static void run_overdue(struct via_nic *nic)
{
    /* Relaxed, and without ownership: a stale time costs one tick. */
    uint64_t now = vk_now();
    if (vk_load_relaxed(&nic->timers_at) > now && vk_load_relaxed(&nic->acks_at) > now)
        return;
    via_own_enter_slow(&nic->own, 1);
    if (!nic->closing)
        via_drive_slow(nic);
    via_own_leave_slow(&nic->own);
}

/* The NIC's thread: at every check (check_fd) it finds out whether the program drives, and takes over if it does not.
 * Everything that it reads before it enters the NIC is a single word, read relaxed: a stale value costs one check.
 *
 *    polls moved              stay away; the tick doubles up to least_check(). Polls postpone the check further
 *    ... but a little         run_overdue()
 *    no poll, no waiting call thread_drives()
 *    a call sleeps long       LONG_TICK, until that call ends and wakes the thread (thread_in_long_sleep) */
static void *thread_main(void *argument)
{
    struct via_nic *nic = argument;
    uint64_t least = least_check(nic), tick = VIA_TICK, seen = 0, slept_since = 0;
    prctl(PR_SET_NAME, "viakit-nic");
    /* ns by which the kernel may delay the end of a sleep on the link; the default is a whole VIA_TICK. */
    prctl(PR_SET_TIMERSLACK, 1000ul);
    via_thread_id_make();
    while (!vk_load_acquire(&nic->closing)) {
        via_run_handlers(nic);
        via_run_notifications(nic);
        uint64_t polls = vk_load_relaxed(&nic->polls);
        /* A thread inside the NIC is driving, however long it takes: it may be sending a large message. */
        int busy = vk_load_relaxed(&nic->own.inside) || vk_load_relaxed(&nic->own.owner);
        if (polls == seen && !busy && vk_load_relaxed(&nic->n_waiting) == 0) {
            int callbacks = thread_drives(nic);
            polls = vk_load_relaxed(&nic->polls);
            tick = VIA_TICK;
            slept_since = 0;
            /* It stopped for handlers or a waiting call. The wake-up for the handlers has been consumed, and a program
             * that polls would postpone the next one again and again. */
            if (polls == seen || callbacks)
                continue;
            /* The program polls: stay away for at least one tick. An immediate comparison would find no new poll. The
             * thread would take over again and arm the link, and every message to a polling program would cost a
             * wake-up. */
        } else if (polls - seen < VIA_POLLS_PER_CLOCK && !busy && vk_load_relaxed(&nic->n_waiting) == 0)
            run_overdue(nic);
        uint64_t now = vk_now();
        if (vk_load_relaxed(&nic->sleeper) == 2) {
            /* The thread stays away only during one long sleep. A series of short sleeps would also appear as one
             * sleep, since the thread runs when the program does not. But between short sleeps the program polls the
             * link. */
            slept_since = slept_since && polls == seen ? slept_since : now;
            tick = now - slept_since > VK_MS ? LONG_TICK : least;
        } else
            slept_since = 0;
        seen = polls;
        vk_store_relaxed(&nic->thread_in_long_sleep, tick == LONG_TICK);
        if (tick == LONG_TICK) {
            /* orders thread_in_long_sleep before the read of n_waiting: one side sees the other's write */
            vk_fence_full();
            if (vk_load_relaxed(&nic->n_waiting) == 0)
                tick = VIA_TICK; /* the call that the NIC was left to has just ended */
        }
        struct pollset set;
        pollset_init(nic, &set, nic->wake_fd);
        set.fds[set.n++] = (struct pollfd){.fd = nic->check_fd, .events = POLLIN};
        set_check(nic, now, tick);
        pollset_sleep(&set, VK_NEVER);
        vk_store_relaxed(&nic->thread_in_long_sleep, 0);
        tick = tick == LONG_TICK ? VIA_TICK : 2 * tick < least ? 2 * tick : least;
        if (set.fds[1].revents) { /* only the owner may read the table: a decorator may come or go */
            via_own_enter_slow(&nic->own, 1);
            if (nic->ops->control)
                nic->ops->control(nic->link);
            via_own_leave_slow(&nic->own);
        }
    }
    return NULL;
}

static void close_descriptors(struct via_nic *nic)
{
    vk_file_close(nic->wake_fd);
    vk_file_close(nic->waiter_fd);
    vk_file_close(nic->check_fd);
    nic->wake_fd = nic->waiter_fd = nic->check_fd = -1;
}

int via_engine_start(struct via_nic *nic)
{
    nic->now = vk_now();
    nic->timers_at = nic->acks_at = VK_NEVER;
    nic->data_fd = nic->limits.data_fd;
    nic->control_fd = nic->limits.control_fd;
    nic->wake_fd = vk_file_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    nic->waiter_fd = vk_file_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    nic->check_fd = vk_file_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
    nic->postponed_by = least_check(nic);
    if (nic->wake_fd < 0 || nic->waiter_fd < 0 || nic->check_fd < 0) {
        int error = -errno;
        close_descriptors(nic);
        return error;
    }
    if (nic->options.no_thread || nic->limits.no_thread)
        return 0;
    /* Set before the thread runs, because the thread reads it, too (via_drive_slow). */
    nic->has_thread = 1;
    int error = vk_thread_start(&nic->thread, thread_main, nic);
    if (error) {
        nic->has_thread = 0;
        close_descriptors(nic);
    }
    return -error;
}

void via_engine_stop(struct via_nic *nic)
{
    /* From now on via_nic_enter() refuses, waits end, and the thread leaves its loop. */
    vk_store_release(&nic->closing, 1);
    via_end_waits(nic);
    if (nic->has_thread) {
        via_leave(nic);
        via_kick_thread(nic);
        pthread_join(nic->thread, NULL);
        via_enter(nic);
    }
    close_descriptors(nic);
}
