/*
 * Virtual time for programs (base/virtual.h): when it begins and ends, and computing that is declared.
 *
 * A real card places messages while the program computes. So does viakit_virtual_compute(): it drives each NIC of the
 * process whenever a frame arrives, at that time.
 *
 *    compute(10 us)    |--- 4 us ---|arrival|------- 6 us -------|     ends at 10 us + the arrival's processor time
 *
 * The rank's own thread calls these functions, outside of any NIC. viakit_virtual_begin() blocks in real time until all
 * ranks have called it; the others run other ranks meanwhile, and return at the rank's turn.
 */
#include <errno.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/explain.h"
#include "base/virtual.h"
#include "base/virtual_table.h"
#include "link/sim/stream.h"
#include "via/engine.h"
#include "via/nic.h"

#define MOST_STILL 1000 /* events at one time that NICs handle */
#define LONGEST_S 1e9   /* 30 years; nanoseconds fit into 64 bits */

/* The time-out of a first begin is real time. Not done: one of a further begin, inside virtual time. The clock does not
 * move while a rank waits for the others there, so the time-out does not pass. */
VIP_RETURN viakit_virtual_begin(int n_ranks, int rank, VIP_ULONG timeout_ms)
{
    const struct vk_virtual *v = vk_load_relaxed(&vk_virtual);
    if (v == NULL)
        return vk_fail(VIP_INVALID_STATE, "viakit_virtual_begin: no NIC of this process is on a simulated machine: "
                                          "open a device of the link sim first");
    uint64_t deadline = vk_deadline(timeout_ms);
    for (;;) {
        int error = v->begin(n_ranks, rank);
        if (error == 0)
            return VIP_SUCCESS;
        if (error != -EAGAIN)
            return VIP_INVALID_PARAMETER; /* explained */
        if (vk_now() >= deadline) {
            v->end();
            return vk_fail(VIP_TIMEOUT, "viakit_virtual_begin: not all %d ranks have begun within %lu ms", n_ranks,
                           (unsigned long)timeout_ms);
        }
    }
}

/* Has no effect if no NIC of this process is on a simulated machine. */
void viakit_virtual_end(void)
{
    const struct vk_virtual *v = vk_load_relaxed(&vk_virtual);
    if (v)
        v->end();
}

const void *viakit_virtual_table(void)
{
    return vk_load_acquire(&vk_virtual);
}

const void *viakit_stream_table(void)
{
    return &sim_streams;
}

VIP_UINT64 viakit_time_ns(void)
{
    return vk_now();
}

int viakit_time_is_virtual(void)
{
    return vk_time_is_virtual();
}

/* Drive every NIC of this process once. Returns how many there are. A NIC may be closed by another thread meanwhile:
 * its slot stays readable, and the generation shows it (as in exit.c). */
static int drive_all(void)
{
    int n = 0;
    for (uint32_t i = 0; i < vk_load_relaxed(&via_nic_pool.n_touched); i++) {
        struct via_nic *nic = (struct via_nic *)(void *)(via_nic_pool.base + i * via_nic_pool.stride);
        uint32_t generation = __atomic_load_n(&nic->object.generation, __ATOMIC_ACQUIRE);
        if (generation == 0 || generation & VK_DEAD || vk_load_relaxed(&nic->pid) != via_process_id)
            continue;
        via_enter(nic);
        if (vk_object_is(&nic->object, generation) && !nic->closing)
            via_drive(nic);
        via_leave(nic);
        n++;
    }
    return n;
}

/* The processor's part of each arrival is added to the end. Idle moves the clock to it or to an arrival; it returns 0
 * when only real time has passed. Idle takes nanoseconds, so a remainder below one is charged as one. */
VIP_RETURN viakit_virtual_compute(double seconds)
{
    if (!(seconds >= 0) || seconds > LONGEST_S)
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_virtual_compute: %g seconds: give 0 to 1e9", seconds);
    if (!vk_time_is_virtual())
        return VIP_SUCCESS;
    const struct vk_virtual *v = vk_virtual;
    uint64_t end = v->picoseconds() + (uint64_t)(seconds * 1e12 + 0.5);
    int still = 0;
    while (v->picoseconds() < end) {
        uint64_t here = v->picoseconds(), left = (end - here) / 1000;
        if (left == 0) {
            v->charge(VK_CHARGE_TIME, 1);
            break;
        }
        if (!v->idle(vk_now() + left))
            continue;
        uint64_t before = v->picoseconds();
        int driven = drive_all();
        end += v->picoseconds() - before;
        still = v->picoseconds() == here ? still + 1 : 0;
        if (still && (!driven || still > MOST_STILL)) { /* a segment of a stream is there, which a call on it takes */
            v->charge(VK_CHARGE_TIME, left);
            break;
        }
    }
    return VIP_SUCCESS;
}
