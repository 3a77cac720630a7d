/*
 * Waiting calls: a call polls for spin_us, then sleeps until its condition holds.
 *
 *   the first call   sleeps on the link's file descriptor itself (engine.c), so that a frame costs one wake-up
 *   further calls    sleep on a futex (nic->event_word), which the first one wakes
 *
 * Waking: a thread that completes something must wake the calls that sleep. The sleeper on the descriptor is woken by
 * arriving frames. If another thread completes its work, its own eventfd wakes it. The other sleepers are woken by the
 * futex. A completion reads one word, `listeners`, which is 0 if no thread needs a wake-up, as in any program that
 * polls.
 *
 *   via_wait_owned:  ready? --> drive, ready? --> spin for spin_us: drive, ready? --> sleep on the link or the futex
 *                                                                                       ^        |
 *                                                                                       |        woken, or SLICE over
 *                                                                                       +-- drive, ready?
 *
 * Invariant: listeners = n_waiting + n_notifications, and a sleeping call is counted in n_waiting. A completion happens
 * as owner, and a call goes to sleep as owner. So it has either seen the completion, or is counted when it happens.
 */
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/explain.h"
#include "base/wait.h"
#include "via/engine.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/notify.h"
#include "via/own.h"

#define SLICE (50 * VK_MS) /* a sleeping call checks for interruption at least this often */

/* One per thread: an interrupt ends only the waits of its own thread. */
static __thread int (*interrupt_check)(void *);
static __thread void *interrupt_context;

/* Set the check that waiting calls of this thread run outside the NIC at least every SLICE. A non-zero result ends the
 * wait with VIP_TIMEOUT. Python checks for signals in it. */
void viakit_set_interrupt(int (*check)(void *), void *context)
{
    interrupt_check = check;
    interrupt_context = context;
}

/* The system call itself: the C library has no function for it. The operations are PRIVATE, because only this process
 * uses the word. */
static int futex(uint32_t *word, int operation, uint32_t value, const struct timespec *timeout)
{
    return (int)syscall(SYS_futex, word, operation, value, timeout, NULL, 0);
}

/* Called by the owner after each change that a waiting call may wait for. The usual case, in which no call sleeps, is
 * one comparison. */
void via_wake_waiters(struct via_nic *nic)
{
    if (vk_likely(nic->listeners == 0))
        return;
    if (nic->notifications)
        via_notify_due(nic);
    if (nic->n_waiting == 0)
        return;
    /* The word changes before the futex is woken. A call that is about to sleep on its old value is refused by the
     * kernel. */
    vk_store_release(&nic->event_word, nic->event_word + 1);
    if (nic->n_followers) {
        futex(&nic->event_word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
        NIC_COUNT(nic, doorbells, 1);
    }
    /* A waiting call may sleep on the data descriptor while another thread's call completed its work. */
    if (nic->sleeper == 2 && nic->sleeper_thread != via_thread_id)
        via_kick_sleeper(nic);
}

/* A further waiting call: sleep on the futex until something completes or the sleeper on the descriptor leaves. The NIC
 * is left during the sleep. A time-out, a signal and a wake-up all look the same here: the caller tests its condition
 * again. */
static void sleep_as_follower(struct via_nic *nic, uint64_t ns)
{
    /* Read as owner: any later completion changes the word, and FUTEX_WAIT then returns at once. */
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

/* End a wait: another call may take its place on the descriptor, and the NIC's thread may resume. */
static void end_wait(struct via_nic *nic)
{
    vk_store_relaxed(&nic->n_waiting, nic->n_waiting - 1);
    nic->listeners--;
    if (nic->n_waiting && nic->sleeper == 0)
        via_wake_waiters(nic); /* one of them takes this call's place on the descriptor */
    if (nic->n_waiting == 0) {
        vk_fence_full(); /* orders n_waiting before the read of thread_in_long_sleep; the thread does the reverse */
        if (vk_load_relaxed(&nic->thread_in_long_sleep))
            via_kick_thread(nic);
    }
}

/* For give_wait_up(): the NIC, and the caller's own clean-up with its argument, or NULL. */
struct abandoned {
    struct via_nic *nic;
    void (*abandon)(struct via_nic *, void *);
    void *argument;
};

/* The program cancelled the thread during its wait: do what the end of the wait and of the call would have done. */
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

/* One sleep of a waiting call, as owner at entry and return. If the data descriptor is free, this call sleeps there.
 * Otherwise another call does, or the NIC's thread, which leaves the descriptor when it sees n_waiting. */
static void sleep_once(struct via_nic *nic, uint64_t ns)
{
    if (nic->sleeper == 0) {
        via_sleep_on_link(nic, 2, ns);
        return;
    }
    if (nic->sleeper == 1)
        via_kick_thread(nic);
    sleep_as_follower(nic, nic->sleeper == 1 ? VIA_TICK : ns);
}

/* A wait that did not end at once: spin, then sleep in slices until ready, deadline, interruption or the NIC's end. The
 * caller is the owner at entry and return, and whenever `ready` runs. `missing` is the beginning of the explanation of
 * a time-out. `abandon`, unless NULL, runs as owner if the thread is cancelled. */
static VIP_RETURN wait_long(struct via_nic *nic, unsigned long timeout_ms, int (*ready)(void *), void *argument,
                            const char *missing, void (*abandon)(struct via_nic *, void *))
{
    VK_HOLD_CANCEL;
    struct abandoned abandoned = {nic, abandon, argument};
    struct vk_wait w = {.deadline = vk_deadline(timeout_ms),
                        .yield_after = VK_NEVER,
                        .sleep_after = nic->options.spin_us > 0 ? (uint64_t)nic->options.spin_us * VK_US : 0,
                        .check_every = VK_NEVER,
                        .polls_per_clock = VIA_POLLS_PER_CLOCK};
    VIP_RETURN code = VIP_SUCCESS;
    int sleeps = 0;
    while (!ready(argument)) {
        enum vk_wait_step step = vk_wait_next(&w, 0);
        if (nic->closing || step == VK_WAIT_TIMEOUT) {
            code = nic->closing ? vk_fail(VIP_INVALID_PARAMETER, "the NIC was closed while a call waited on it")
                                : vk_fail(VIP_TIMEOUT, "%s within %lu ms", missing, timeout_ms);
            break;
        }
        if (step == VK_WAIT_SPIN) {
            vk_pause();
            /* another thread wants to enter, and a spinning call keeps it out */
            if (vk_unlikely(nic->own.revoked)) {
                via_leave(nic);
                via_enter(nic);
            } else if (vk_unlikely(vk_load_relaxed(&nic->own.waiting)))
                via_own_hand_over(&nic->own, 0);
            via_drive(nic);
            continue;
        }
        nic->now = w.now;
        if (!sleeps) {
            /* Only the owner writes n_waiting. The stores are relaxed, because the NIC's thread reads it without being
             * owner (thread_main). They order nothing: the thread acts on the value only after it has entered the NIC,
             * or after the fence in end_wait(). */
            vk_store_relaxed(&nic->n_waiting, nic->n_waiting + 1);
            nic->listeners++;
            sleeps = 1;
        }
        sleep_once(nic, vk_wait_sleep(&w, 1, SLICE, SLICE));
        via_drive(nic);
        if (ready(argument))
            break;
        via_leave(nic);
        if (!nic->has_thread) {
            via_run_handlers(nic);
            via_run_notifications(nic);
        }
        /* after the handlers, which may have caused the interrupt */
        int stop = interrupt_check && interrupt_check(interrupt_context);
        vk_cancel_point(give_wait_up, &abandoned);
        via_enter(nic);
        if (stop) { /* also if it is ready now: a completed descriptor stays in its queue for the next call */
            code = vk_fail(VIP_TIMEOUT, "the wait was interrupted");
            break;
        }
    }
    if (sleeps)
        end_wait(nic);
    return code;
}

/* Tests the condition, drives the NIC once, and tests again, before it counts as a waiting call. Most waits of a
 * program that is behind its peer end there. n_calls keeps VipCloseNic from freeing the NIC (via_end_waits). */
VIP_RETURN via_wait_owned(struct via_nic *nic, unsigned long timeout_ms, int (*ready)(void *), void *argument,
                          const char *missing, void (*abandon)(struct via_nic *, void *))
{
    if (ready(argument))
        return VIP_SUCCESS;
    via_drive(nic);
    if (ready(argument))
        return VIP_SUCCESS;
    if (nic->closing)
        return vk_fail(VIP_INVALID_PARAMETER, "the NIC is being closed");
    nic->n_calls++;
    VIP_RETURN code = wait_long(nic, timeout_ms, ready, argument, missing, abandon);
    nic->n_calls--;
    return code;
}

/* Returns when no waiting call is left inside. The caller has set `closing`, and is the owner at entry and return. */
void via_end_waits(struct via_nic *nic)
{
    while (nic->n_calls) { /* each waiting call sees `closing` and leaves */
        vk_store_release(&nic->event_word, nic->event_word + 1);
        futex(&nic->event_word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL);
        via_kick_sleeper(nic);
        via_leave(nic);
        sched_yield();
        via_enter(nic);
    }
}
