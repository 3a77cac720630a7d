/*
 * Virtual time (link/sim). Between sim_begin and sim_end a process is a rank of a simulated machine: vk_now() then
 * returns the rank's clock, waits move that clock in place of real time, and work is charged to it.
 *
 * vk_virtual points to the simulator's table as long as the process has a NIC or a stream there. The functions below
 * may be called at any time; they have no effect while time is real. Any thread may call them, but a rank has one
 * clock, so only one of its threads should.
 */
#ifndef VIAKIT_VIRTUAL_H
#define VIAKIT_VIRTUAL_H

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"

/* Work of the processor whose cost the machine's description declares. */
enum vk_charge {
    VK_CHARGE_POST,     /* n receives posted */
    VK_CHARGE_COPY,     /* one copy of n bytes by the processor */
    VK_CHARGE_REGISTER, /* n bytes registered, by one call */
    VK_CHARGE_WAKEUP,   /* a thread that slept in the kernel was woken, n times */
    VK_CHARGE_MESSAGE,  /* n messages matched: envelopes and queues of the message layer */
    VK_CHARGE_TIME,     /* n nanoseconds of computing */
};

/* Why a rank's wait is over. The timers of NICs were also set in real time, so when one ends a wait is no result. */
enum vk_idle_end {
    VK_IDLE_SLICE = 0, /* 50 ms of real time have passed: the caller checks for signals and calls again */
    VK_IDLE_TIMER,     /* the clock stands at a timer, or at `until` */
    VK_IDLE_ARRIVAL,   /* the clock stands at an arrival */
};

struct vk_virtual {
    /* Returns the time in ns. Virtual time begins at the real time of sim_begin. After sim_end, time goes on from where
     * virtual time ended, if that is later than real time. */
    uint64_t (*now)(void);
    /* Returns the virtual time in picoseconds since sim_begin, 0 while time is real. */
    uint64_t (*picoseconds)(void);
    /* Returns 1 while time is virtual. */
    int (*is_on)(void);
    void (*charge)(enum vk_charge what, uint64_t n);
    /* Moves the clock to the next arrival, to the next timer of a NIC, or to `until`, whichever is first, and runs
     * other ranks meanwhile. Returns vk_idle_end. */
    enum vk_idle_end (*idle)(uint64_t until);
    /* Makes the process rank `rank` of n, whose clocks all start at the same moment when all have called this. A
     * further call, by a rank whose time is virtual already, sets all n clocks to the latest. Returns 0 when all have
     * begun, -EAGAIN after 50 ms of real time (call again), or another -errno with an explanation. */
    int (*begin)(int n, int rank);
    /* Undoes one begin, or gives up one that returned -EAGAIN. Time is real again after the last. */
    void (*end)(void);
};

extern const struct vk_virtual *vk_virtual; /* NULL: the process is no part of a simulated machine */

static inline int vk_time_is_virtual(void)
{
    const struct vk_virtual *v = vk_load_relaxed(&vk_virtual);
    return vk_unlikely(v != NULL) && v->is_on();
}

static inline void vk_charge(enum vk_charge what, uint64_t n)
{
    const struct vk_virtual *v = vk_load_relaxed(&vk_virtual);
    if (vk_unlikely(v != NULL))
        v->charge(what, n);
}

#endif
