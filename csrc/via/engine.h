/*
 * engine.h - driving a NIC and its timers (objects/engine.c), and waiting calls (objects/wait.c).
 */
#ifndef VIAKIT_VIA_ENGINE_H
#define VIAKIT_VIA_ENGINE_H

#include "base/atomic.h"
#include "base/clock.h"
#include "via/nic.h"

#define VIA_BUDGET 64          /* link slots handled per poll: the owner leaves the NIC, and timers run, in between */
#define VIA_POLLS_PER_CLOCK 64 /* idle polls between two readings of the clock */
#define VIA_TAKEOVER_LEAST_US 50
#define VIA_TAKEOVER_US 400          /* the default, for a program that has just begun to poll ... */
#define VIA_TAKEOVER_POLLING_US 3200 /* ... and for one that has polled for some ms: doubled three times */
#define VIA_TAKEOVER_MOST_US 10000   /* an upper bound: until then no thread drives the NIC */
/* The NIC's thread checks at this interval whether the program polls; less often while it does. */
#define VIA_TICK (VIA_TAKEOVER_LEAST_US * VK_US)

/* Continues a poll that returned n slots: flushes acknowledgements, sends what waits, runs timers. Called if the poll
 * found something or something waits to be sent. Returns n. */
int via_drive_rest(struct via_nic *nic, int n);

/* Polls the link once: handles the frames that arrived and sends what may be sent. Returns the number of slots handled.
 */
static inline int via_drive(struct via_nic *nic)
{
    int n = nic->ops->poll(nic->link, VIA_BUDGET);
    vk_store_relaxed(&nic->polls, nic->polls + 1);
    if (vk_likely(n == 0 && !nic->stall_list && !nic->deferred && (++nic->idle & (VIA_POLLS_PER_CLOCK - 1)) &&
                  !vk_time_is_virtual()))
        return 0;
    return via_drive_rest(nic, n);
}

/* Reads the clock, flushes delayed acknowledgements and runs timers. Called after every VIA_POLLS_PER_CLOCK idle
 * polls. */
void via_drive_slow(struct via_nic *nic);
/* Wakes the NIC's thread. */
void via_kick_thread(struct via_nic *nic);
void via_kick_sleeper(struct via_nic *nic);
/* Makes sure that the sleeping thread, if any, wakes at `at` (ns) at the latest. */
static inline void via_call_at(struct via_nic *nic, uint64_t at)
{
    if (vk_unlikely(nic->sleeper && at < nic->sleep_until)) { /* it would sleep past `at` */
        nic->sleep_until = at;
        via_kick_sleeper(nic);
    }
}
/* Runs the timers at `at` (ns) at the latest. */
static inline void via_timer(struct via_nic *nic, uint64_t at)
{
    if (at >= nic->timers_at)
        return;
    vk_store_relaxed(&nic->timers_at, at); /* the NIC's thread reads it without being the owner */
    via_call_at(nic, at);
}
/* Sleeps on the link's descriptors as their only sleeper, at most `most` ns. `who` becomes nic->sleeper. The caller is
 * the owner before and after. Returns 0 without a sleep if something is due or has arrived; the NIC was then not left.
 */
int via_sleep_on_link(struct via_nic *nic, uint32_t who, uint64_t most);

/* Wakes the waiting calls after a completion, a match or an event: each checks its condition again. */
void via_wake_waiters(struct via_nic *nic);
/* Ends all waiting calls of a NIC that closes, as owner. */
void via_end_waits(struct via_nic *nic);

/* Waits until ready(argument) returns non-zero. The caller is the owner before and after; other threads can enter the
 * NIC while it sleeps. Returns VIP_SUCCESS, VIP_TIMEOUT (also when interrupted), or VIP_INVALID_PARAMETER when the NIC
 * is being closed. The NIC stays valid meanwhile; any other object may have been destroyed. missing: the explanation of
 * a time-out, for example "VipCQWait: nothing completed".
 *
 * The program may cancel the thread meanwhile (pthread_cancel). Then this does not return. The engine calls
 * abandon(nic, argument), unless it is NULL, as the owner, and leaves the NIC. abandon replaces all that the caller
 * would have done after the wait, except leaving. */
VIP_RETURN via_wait_owned(struct via_nic *nic, unsigned long timeout_ms, int (*ready)(void *), void *argument,
                          const char *missing, void (*abandon)(struct via_nic *, void *));

/* Creates the descriptors and the thread of a NIC whose link is open. Returns 0 or -errno; nothing is left then. */
int via_engine_start(struct via_nic *nic);
/* Stops the engine: no call can enter any more, waiting calls return, the thread ends. The caller is the owner before
 * and after, and is alone in the NIC afterwards. */
void via_engine_stop(struct via_nic *nic);

#endif
