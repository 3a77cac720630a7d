/*
 * Progress: who drives a NIC, and who sleeps.
 *
 * Whoever polls, drives: each Done call that finds nothing looks at the link once. When a program neither polls nor
 * waits, the NIC's own thread drives instead, so that messages land and are acknowledged while the program computes.
 *
 *   the program polls            the thread looks at the poll counter every TICK; as long as it moves, it stays away
 *   the program polls seldom     the same, but the thread runs what is due: the program may look at the clock too late
 *   the program stopped polling  the thread takes over: drives, then sleeps on the link's file descriptor
 *   a call waits                 it spins for spin_us, then sleeps on the file descriptor itself: one wake-up, not two.
 *                                Further waiting calls sleep on a futex that the first one rings
 *
 * So exactly one thread at a time sleeps on the data file descriptor (`sleeper`), and none while somebody polls: a
 * frame that arrives for a polling program costs no wake-up anywhere.
 *
 * The clock is read in every VIA_SLOW_LOOK-th idle poll, not in the others.
 *
 * Waking: whoever completes something for a call that sleeps has to wake it. The sleeper on the descriptor is woken by
 * what arrives, or, when another thread completes its work, by an eventfd of its own; the others by the futex. A
 * completion looks at one word, `listeners`, to know that nobody has to be told, which is so in every program that
 * polls.
 *
 * Deadlines: `timers_at` is the next moment at which anything is due (via_timer). Who sleeps sleeps no longer than
 * that, and who polls looks at it whenever it looks at the clock.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../base/files.h"
#include "internal.h"

/* The thread looks so often whether somebody polls; less often while somebody does, or while a call has slept long. */
#define TICK (VIA_TAKEOVER_LEAST_US * VK_US)
#define DOZE (20 * VK_MS)
#define SLICE (50 * VK_MS) /* a waiting call looks for interruption at least so often */

_Static_assert(VIA_TAKEOVER_MOST_US *VK_US < DOZE, "a tick of DOZE means that a call sleeps");

/* Each thread has its own: what interrupts one wait does not concern the others. */
static __thread int (*interrupt_check)(void *);
static __thread void *interrupt_context;

/* Asked by waiting calls of this thread, outside the NIC, at least every SLICE: non-zero ends the wait with
 * VIP_TIMEOUT. Python looks for signals in it. */
void viakit_set_interrupt(int (*check)(void *), void *context)
{
    interrupt_check = check;
    interrupt_context = context;
}

/* ---------------------------------------------------------------- driving */

/* The whole list is taken at once: who is still held up puts himself on the new one. Reads first: among them are
 * answers that a peer waits for. */
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

/* What the link had no room for, and answers that were to be given at the end of this look. */
static void send_what_waits(struct via_nic *nic)
{
    if (nic->stall_list)
        retry_stalled(nic);
    if (nic->deferred)
        via_send_deferred(nic);
    if (nic->answer_list)
        via_send_answers(nic);
}

/* What needs the time of day: acknowledgements that have waited, timers; and, where no thread of ours does it, the
 * link's own affairs. */
void via_drive_slow(struct via_nic *nic)
{
    nic->now = vk_now();
    if (nic->acks_at != VK_NEVER)
        via_flush_acks(nic, 0);
    if (nic->now >= nic->timers_at) {
        vk_store_relaxed(&nic->timers_at, VK_NEVER);
        via_reliable_timers(nic);
        via_conn_timers(nic);
    }
    if (!nic->has_thread && nic->ops->control)
        nic->ops->control(nic->link);
}

int via_drive_rest(struct via_nic *nic, int n)
{
    /* rare, all three: one branch for the common case */
    if (vk_unlikely((uintptr_t)nic->stall_list | (uintptr_t)nic->deferred | (uintptr_t)nic->answer_list))
        send_what_waits(nic);
    if (n > 0)
        nic->idle = 0;
    /* the clock also runs where every look finds something */
    if ((nic->idle & (VIA_SLOW_LOOK - 1)) == 0 && (n == 0 || (nic->polls & (VIA_SLOW_LOOK - 1)) == 0))
        via_drive_slow(nic);
    return n;
}

/* One look at the link and, if it brought nothing, at the clock: for programs that wait for what VIPL does not tell, an
 * RDMA write for instance, on a NIC without thread. *n_events is the number of link slots handled. */
VIP_RETURN viakit_poll(VIP_NIC_HANDLE handle, int *n_events)
{
    VIP_RETURN code;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    int n = via_drive(nic);
    if (n == 0)
        via_drive_slow(nic);
    if (!nic->has_thread && via_callbacks_wait(nic)) {
        nic->n_calls++; /* the NIC stays until the handlers are through */
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

/* The system call itself: the C library has no function for it. PRIVATE operations: the word is known to this
 * process only. */
static int futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return (int)syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

void via_wake_waiters(struct via_nic *nic)
{
    if (vk_likely(nic->listeners == 0))
        return;
    if (nic->notifications)
        via_notify_due(nic);
    if (nic->n_waiting == 0)
        return;
    /* The word moves before the futex is rung: who is about to sleep on its old value is turned away by the kernel. */
    vk_store_release(&nic->event_word, nic->event_word + 1);
    if (nic->n_followers) {
        futex(&nic->event_word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
        NIC_COUNT(nic, doorbells, 1);
    }
    /* A waiting call may sleep on the data descriptor while another thread's call completed its work. */
    if (nic->sleeper == 2 && nic->sleeper_thread != via_thread_id)
        via_kick_sleeper(nic);
}

void via_kick_thread(struct via_nic *nic)
{
    uint64_t one = 1;
    ssize_t written = vk_write(nic->wake_fd, &one, sizeof one);
    (void)written; /* the counter is full: then it is readable already */
}

/* Whoever sleeps on the data descriptor. Each has an eventfd of its own, or one would drain what was meant for the
 * other. */
void via_kick_sleeper(struct via_nic *nic)
{
    uint64_t one = 1;
    ssize_t written = vk_write(nic->sleeper == 2 ? nic->waiter_fd : nic->wake_fd, &one, sizeof one);
    (void)written;
}

/* How long nothing is due, at most `most`. What the link had no room for is tried again soon, but not at once: with
 * a peer that does not read it would be due for ever. The acknowledgements are among it: whoever goes to sleep has
 * sent those for which there was room. */
static uint64_t until_due(struct via_nic *nic, uint64_t now, uint64_t most)
{
    uint64_t due = nic->timers_at;
    if (nic->stall_list || nic->deferred || nic->ack_list)
        due = now + TICK < due ? now + TICK : due;
    /* The decorator `fault` keeps frames back on purpose, and knows for how long. */
    if (nic->ops->due) {
        uint64_t link_due = nic->ops->due(nic->link);
        due = link_due < due ? link_due : due;
    }
    if (due <= now)
        return 0;
    return due - now < most ? due - now : most;
}

/* What a sleep waits for: an eventfd, the link's own affairs, and what arrives. */
struct bed {
    struct pollfd fds[2 + LINK_WATCHED];
    nfds_t n;
};

/* For a sleep beside the data descriptor: fds[0] is how others wake us, fds[1] the link's affairs (-1, which poll
 * ignores, if it has none). lie_by_data() adds what arrives, as the only sleeper there. */
static void make_bed(struct via_nic *nic, struct bed *bed, int wake_fd)
{
    bed->fds[0] = (struct pollfd){.fd = wake_fd, .events = POLLIN};
    bed->fds[1] = (struct pollfd){.fd = nic->control_fd, .events = POLLIN};
    bed->n = 2;
}

/* After arm: a link with many descriptors says then which they are. */
static void lie_by_data(struct via_nic *nic, struct bed *bed)
{
    if (nic->ops->watch)
        bed->n += (nfds_t)nic->ops->watch(nic->link, bed->fds + bed->n);
    else
        bed->fds[bed->n++] = (struct pollfd){.fd = nic->data_fd, .events = POLLIN};
}

/* Without ownership: others are inside meanwhile. ns: VK_NEVER for as long as it takes. Empties the eventfd that
 * woke us; a time-out, a signal (EINTR) and a descriptor end the sleep alike, and whoever slept looks at everything
 * anew. */
static void sleep_in(struct bed *bed, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / VK_SECOND), (long)(ns % VK_SECOND)};
    uint64_t count;
    ppoll(bed->fds, bed->n, ns == VK_NEVER ? NULL : &t, NULL);
    if (bed->fds[0].revents && vk_read(bed->fds[0].fd, &count, sizeof count) < 0)
        count = 0; /* somebody else was quicker */
}

/* Awake, as owner: what arrived is told to the link that has to know where. Returns whether control() has something to
 * do. */
static int get_up(struct via_nic *nic, const struct bed *bed)
{
    if (nic->ops->woken)
        nic->ops->woken(nic->link, bed->fds + 2, (int)bed->n - 2);
    else if (bed->n > 2 && bed->fds[2].revents & (POLLERR | POLLHUP)) {
        int error; /* an interface went down: take the error, or every later sleep ends at once */
        socklen_t len = sizeof error;
        getsockopt(nic->data_fd, SOL_SOCKET, SO_ERROR, &error, &len);
    }
    return bed->fds[1].revents != 0;
}

/* Sleeps on the data descriptor as its only sleeper: entered owned, returns owned. 0 if it did not sleep, because
 * something is due or there already: then nobody else was in. The order is what keeps a frame from being slept over:
 * sleep_until and sleeper are set (so who makes something due sooner kicks us), then the link is armed, which looks
 * once more, and only then the NIC is left. */
static int sleep_as_owner(struct via_nic *nic, uint32_t who, uint64_t most)
{
    uint64_t now = nic->now = vk_now();
    if (nic->ack_list)
        via_flush_acks(nic, 1); /* nobody will, while we sleep */
    uint64_t ns = until_due(nic, now, most);
    nic->sleeper_thread = via_thread_id_make();
    nic->sleep_until = ns == VK_NEVER ? VK_NEVER : now + ns;
    vk_store_relaxed(&nic->sleeper, who); /* the NIC's thread looks at it without being owner */
    int control = 0, sleeps = ns && (nic->ops->arm == NULL || !nic->ops->arm(nic->link));
    if (sleeps) {
        struct bed bed;
        make_bed(nic, &bed, who == 1 ? nic->wake_fd : nic->waiter_fd);
        lie_by_data(nic, &bed);
        NIC_COUNT(nic, system_calls, 1);
        who == 1 ? via_own_leave_slow(&nic->own) : via_leave(nic);
        sleep_in(&bed, ns);
        who == 1 ? via_own_enter_slow(&nic->own, 1) : via_enter(nic);
        control = get_up(nic, &bed);
        NIC_COUNT(nic, wakeups, 1);
    }
    if (nic->ops->disarm)
        nic->ops->disarm(nic->link);
    vk_store_relaxed(&nic->sleeper, 0);
    if (control && nic->ops->control)
        nic->ops->control(nic->link);
    nic->idle = VIA_SLOW_LOOK - 1; /* the next idle look reads the clock */
    return sleeps;
}

static int interrupted(void)
{
    return interrupt_check && interrupt_check(interrupt_context);
}

/* A further waiting call: sleeps on the futex until something completes or the one on the descriptor leaves. */
static void sleep_as_follower(struct via_nic *nic, uint64_t ns)
{
    /* Read while we own the NIC: a completion after that has moved the word, and FUTEX_WAIT then returns at once. */
    uint32_t seen = nic->event_word;
    struct timespec t = {(time_t)(ns / VK_SECOND), (long)(ns % VK_SECOND)};
    NIC_COUNT(nic, system_calls, 1);
    nic->n_followers++;
    via_leave(nic);
    futex(&nic->event_word, FUTEX_WAIT_PRIVATE, seen, &t);
    via_enter(nic);
    nic->n_followers--;
    NIC_COUNT(nic, wakeups, 1);
}

/* Polls until ready or spin_us are over: until, a time of vk_now(), which is looked at every VIA_SLOW_LOOK looks
 * only. `revoked` is what own.h has the others set; it is asked for here because a spinning call would otherwise
 * keep them out for all of its time. */
static int spin(struct via_nic *nic, int (*ready)(void *), void *argument, uint64_t until)
{
    for (;;) {
        for (int i = 0; i < VIA_SLOW_LOOK; i++) {
            via_drive(nic);
            if (ready(argument))
                return 1;
            vk_pause();
        }
        if (nic->now >= until || nic->closing)
            return 0;
        nic->now = vk_now();
        if (nic->own.revoked) { /* somebody else wants in */
            via_leave(nic);
            via_enter(nic);
        }
    }
}

/* A wait is over: others may take this call's place, and the NIC's thread its own. */
static void end_wait(struct via_nic *nic)
{
    vk_store_relaxed(&nic->n_waiting, nic->n_waiting - 1);
    nic->listeners--;
    if (nic->n_waiting && nic->sleeper == 0)
        via_wake_waiters(nic); /* one of them takes our place on the descriptor */
    if (nic->n_waiting == 0) {
        vk_fence_full(); /* n_waiting before our look at thread_dozing; the thread does the reverse */
        if (vk_load_relaxed(&nic->thread_dozing))
            via_kick_thread(nic);
    }
}

struct abandoned {
    struct via_nic *nic;
    void (*abandon)(struct via_nic *, void *);
    void *argument;
};

/* The program cancelled the thread while its call waited: what the end of the wait, and of the call, would have done.
 */
static void give_wait_up(void *argument)
{
    const struct abandoned *a = argument;
    via_enter(a->nic);
    if (a->abandon)
        a->abandon(a->nic, a->argument);
    end_wait(a->nic);
    a->nic->n_calls--;
    via_leave(a->nic);
}

/* A wait that did not end at once: spins, then sleeps in slices until ready, deadline, interruption or the NIC's
 * end. Owned at entry and return; in between whenever `ready` is asked. */
static VIP_RETURN wait_long(struct via_nic *nic, unsigned long timeout_ms, int (*ready)(void *), void *argument,
                            const char *missing, void (*abandon)(struct via_nic *, void *))
{
    VK_HOLD_CANCEL;
    struct abandoned abandoned = {nic, abandon, argument};
    uint64_t began = nic->now = vk_now(), deadline = vk_deadline(timeout_ms), spin_until = began;
    if (nic->options.spin_us > 0)
        spin_until += (uint64_t)nic->options.spin_us * VK_US;
    if (spin_until > deadline)
        spin_until = deadline;
    VIP_RETURN code = VIP_SUCCESS;
    if (nic->options.spin_us > 0 && spin(nic, ready, argument, spin_until))
        return VIP_SUCCESS;
    /* Written by the owner alone; relaxed stores, for the NIC's thread reads it without being owner (thread_main).
     * It orders nothing: the thread acts on it only after it has come inside, or after the fence below. */
    vk_store_relaxed(&nic->n_waiting, nic->n_waiting + 1);
    nic->listeners++;
    while (!ready(argument)) {
        uint64_t now = nic->now = vk_now();
        if (nic->closing) {
            code = via_fail(VIP_INVALID_PARAMETER, "the NIC was closed while a call waited on it");
            break;
        }
        if (now >= deadline) {
            code = via_fail(VIP_TIMEOUT, "%s within %lu ms", missing, timeout_ms);
            break;
        }
        uint64_t most = deadline - now < SLICE ? deadline - now : SLICE;
        /* The data descriptor is free: this call is the one that sleeps there. Otherwise another one does, or the
         * NIC's thread, which is asked to make room. */
        if (nic->sleeper == 0)
            sleep_as_owner(nic, 2, most);
        else {
            if (nic->sleeper == 1)
                via_kick_thread(nic); /* make room: it stands back when it sees n_waiting */
            sleep_as_follower(nic, nic->sleeper == 1 ? TICK : most);
        }
        via_drive(nic);
        if (ready(argument))
            break;
        via_leave(nic);
        if (!nic->has_thread) {
            via_run_handlers(nic);
            via_run_notifications(nic);
        }
        int stop = interrupted(); /* after the handlers, which may have brought about that it says so */
        vk_cancel_point(give_wait_up, &abandoned);
        via_enter(nic);
        if (stop) { /* also if it is ready by now: what completed stays where it is, for the next call to take */
            code = via_fail(VIP_TIMEOUT, "the wait was interrupted");
            break;
        }
    }
    end_wait(nic);
    return code;
}

VIP_RETURN via_wait_owned(struct via_nic *nic, unsigned long timeout_ms, int (*ready)(void *), void *argument,
                          const char *missing, void (*abandon)(struct via_nic *, void *))
{
    if (ready(argument))
        return VIP_SUCCESS;
    via_drive(nic);
    if (ready(argument))
        return VIP_SUCCESS;
    if (nic->closing)
        return via_fail(VIP_INVALID_PARAMETER, "the NIC is being closed");
    nic->n_calls++;
    VIP_RETURN code = wait_long(nic, timeout_ms, ready, argument, missing, abandon);
    nic->n_calls--;
    return code;
}

/* ---------------------------------------------------------------- the NIC's own thread */

/* For a moment: whoever waits to come in would wait for ever if something were always due, and nothing could be done
 * about it. */
static void step_aside(struct via_nic *nic)
{
    via_own_leave_slow(&nic->own);
    sched_yield(); /* the word is free for longer than it takes to take it again */
    via_own_enter_slow(&nic->own, 1);
}

/* The thread's turn: nobody polls and nobody waits. It drives, and sleeps on the data descriptor between, until a
 * poll by somebody else moves the counter, a call begins to wait, or handlers have to be run (which is done
 * outside). */
static void thread_drives(struct via_nic *nic)
{
    via_own_enter_slow(&nic->own, 1);
    NIC_COUNT(nic, thread_takeovers, 1);
    uint64_t polls = nic->polls;
    uint32_t rounds = 0;
    while (!nic->closing && nic->n_waiting == 0) {
        int n = nic->ops->poll(nic->link, VIA_BUDGET);
        send_what_waits(nic);
        if (n == 0) {
            via_drive_slow(nic);
            if (nic->sleeper)
                break;
            if (!sleep_as_owner(nic, 1, VK_NEVER))
                step_aside(nic);
        } else if (++rounds % VIA_SLOW_LOOK == 0) {
            via_drive_slow(nic); /* also under steady traffic */
        } else if (vk_load_relaxed(&nic->own.revoked)) {
            /* out and in: if the program came back meanwhile, it may be quicker */
            via_own_leave_slow(&nic->own);
            via_own_enter_slow(&nic->own, 1);
        }
        if (vk_load_relaxed(&nic->polls) != polls)
            break; /* somebody polls again */
        if (via_callbacks_wait(nic))
            break;
    }
    via_own_leave_slow(&nic->own);
}

/* The program polls, but less than VIA_SLOW_LOOK times between two looks of the thread: where it gives its core away
 * between polls, and others compute there, its own look at the clock may be seconds ahead. No time-out may wait for
 * that, or a dead peer would be found as many seconds too late as there are time-outs before it is given up. Nor may
 * acknowledgements, for which a peer may wait. */
static void run_overdue(struct via_nic *nic)
{
    /* Relaxed, and not as owner: a stale time costs a tick. */
    uint64_t now = vk_now();
    if (vk_load_relaxed(&nic->timers_at) > now && vk_load_relaxed(&nic->acks_at) > now)
        return;
    via_own_enter_slow(&nic->own, 1);
    if (!nic->closing)
        via_drive_slow(nic);
    via_own_leave_slow(&nic->own);
}

/* The thread: looks every `tick` whether the program drives, and takes over when it does not. Everything that it
 * reads before it is inside is one word, read relaxed: a stale one costs a tick.
 *
 *    polls moved           stay away; the tick doubles up to takeover_us
 *    ... but a little      run_overdue()
 *    nobody polls or waits thread_drives()
 *    a call sleeps long    DOZE, until that call ends and pokes (thread_dozing) */
static void *thread_main(void *argument)
{
    struct via_nic *nic = argument;
    uint64_t tick = TICK, longest = nic->options.takeover_us * VK_US, seen = 0, slept_since = 0;
    prctl(PR_SET_NAME, "viakit-nic");
    /* Nanoseconds by which the kernel may be late in waking us, to join timers: by default it is a whole TICK. */
    prctl(PR_SET_TIMERSLACK, 1000ul);
    via_thread_id_make();
    while (!vk_load_acquire(&nic->closing)) {
        via_run_handlers(nic);
        via_run_notifications(nic);
        uint64_t polls = vk_load_relaxed(&nic->polls);
        /* Somebody inside is driving, however long it takes: a large message may be on its way out. */
        int busy = vk_load_relaxed(&nic->own.inside) || vk_load_relaxed(&nic->own.owner);
        if (polls == seen && !busy && vk_load_relaxed(&nic->n_waiting) == 0) {
            thread_drives(nic);
            polls = vk_load_relaxed(&nic->polls);
            tick = TICK;
            slept_since = 0;
            if (polls == seen)
                continue; /* it stood back for handlers or a waiting call */
            /* Somebody polls: stay away for a tick at least. To compare again at once would find no poll since, take
             * over again and arm the link, and every message to a polling program would cost a wake-up. */
        } else if (polls - seen < VIA_SLOW_LOOK && !busy && vk_load_relaxed(&nic->n_waiting) == 0)
            run_overdue(nic);
        if (vk_load_relaxed(&nic->sleeper) == 2) {
            /* Only one long sleep is left alone for long. Of many short ones we would see nothing but sleep, too, for
             * we run when the program does not; but it looks at the link between them. */
            uint64_t now = vk_now();
            slept_since = slept_since && polls == seen ? slept_since : now;
            tick = now - slept_since > VK_MS ? DOZE : longest;
        } else
            slept_since = 0;
        seen = polls;
        vk_store_relaxed(&nic->thread_dozing, tick == DOZE);
        if (tick == DOZE) {
            vk_fence_full(); /* thread_dozing before our look at n_waiting: one of the two sees the other */
            if (vk_load_relaxed(&nic->n_waiting) == 0)
                tick = TICK; /* the call that we leave the NIC to has just ended */
        }
        struct bed bed;
        make_bed(nic, &bed, nic->wake_fd);
        sleep_in(&bed, tick);
        vk_store_relaxed(&nic->thread_dozing, 0);
        if (tick < longest)
            tick = 2 * tick < longest ? 2 * tick : longest;
        else if (tick == DOZE)
            tick = TICK;
        if (bed.fds[1].revents) { /* the table is the owner's to look at: a decorator may come or go */
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
    nic->wake_fd = nic->waiter_fd = -1;
}

int via_engine_start(struct via_nic *nic)
{
    nic->now = vk_now();
    nic->timers_at = nic->acks_at = VK_NEVER;
    nic->control_fd = nic->data_fd = -1;
    nic->wake_fd = vk_file_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    nic->waiter_fd = vk_file_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (nic->wake_fd < 0 || nic->waiter_fd < 0) {
        int error = -errno;
        close_descriptors(nic);
        return error;
    }
    nic->ops->descriptors(nic->link, &nic->data_fd, &nic->control_fd);
    if (nic->options.no_thread)
        return 0;
    sigset_t all, old;
    sigfillset(&all); /* signals are the program's threads' affair */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    /* Before the thread runs, for it asks as well (via_drive_slow). */
    nic->has_thread = 1;
    int error = pthread_create(&nic->thread, NULL, thread_main, nic);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
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
    while (nic->n_calls) { /* each waiting call sees `closing` and leaves */
        vk_store_release(&nic->event_word, nic->event_word + 1);
        futex(&nic->event_word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
        via_kick_sleeper(nic);
        via_leave(nic);
        sched_yield();
        via_enter(nic);
    }
    if (nic->has_thread) {
        via_leave(nic);
        via_kick_thread(nic);
        pthread_join(nic->thread, NULL);
        via_enter(nic);
    }
    close_descriptors(nic);
}
