/*
 * The end of a process that has not closed its NICs.
 *
 * Early VIA programs received their last message and called exit(). A pending acknowledgement was then never sent, and
 * the peer's send failed although its message had been delivered. The library's destructor, which exit() runs after all
 * atexit handlers of the program, therefore does for each NIC of this process:
 *
 *    1. enter the NIC, within the time that is left          otherwise: leave this NIC to the kernel, as _exit() would
 *    2. for each connected VI, send its pending acknowledgement, then DISCONNECT (which acknowledges, too)
 *    3. send the frames that the link had no room for, within the time that is left
 *
 * The destructor runs late, and that limits it:
 *
 * - The program's destructors may have released its memory. No descriptor completes, no handler runs and no message is
 *   placed any more.
 * - Other threads still run, and may be inside a NIC or wait for one. Nothing is freed, and all waits together end at
 *   vk_exit_deadline (base/exit.h). That includes the wait for a mutex of the link.
 * - The thread that calls exit() may itself be inside a NIC, in a signal handler that interrupted a call. Step 1 then
 *   fails at once.
 * - A child of fork does not touch its parent's NICs.
 *
 * _exit(), a fatal signal and exec() run no destructor: the peer detects those through its link.
 */
#include <sched.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/exit.h"
#include "base/pool.h"
#include "via/data/data.h"
#include "via/nic.h"
#include "via/own.h"
#include "via/vi.h"

/* From here on this process sends, places and completes nothing on this connection. The queues stay as they are. This
 * is via_break() without the parts that touch the program's memory: no flush, no report, no wake-up. */
static void end_connection(struct via_vi *vi)
{
    if (vi->ack_owed)
        via_send_control(vi, WIRE_ACK, 0, 0);
    via_send_control(vi, WIRE_DISCONNECT, 0, 0);
    vi->state = VIP_STATE_ERROR;
    vi->rx_source = VIA_NO_SOURCE;
    vi->rto_deadline = VK_NEVER;
    vi->rx_active = 0;
    vi->ack_owed = 0;
    via_forget_frames(vi);
}

/* The owner's part. VIs that wait for room on the link are removed from the list: only deferred frames remain to be
 * sent. */
static void end_connections(struct via_nic *nic, uint64_t deadline)
{
    for (struct via_vi *vi = nic->stall_list; vi; vi = vi->stall_next)
        vi->on_stall_list = 0;
    nic->stall_list = NULL;
    for (struct via_vi *vi = nic->vis; vi; vi = vi->next)
        if (vi->state == VIP_STATE_CONNECTED)
            end_connection(vi);
    while (nic->deferred) {
        via_send_deferred(nic);
        if (nic->deferred == NULL || vk_now() >= deadline)
            break;
        sched_yield();
    }
}

/* Objects are read without the pool's lock, which another thread may hold forever. An object that is being created or
 * destroyed at this moment is dead or has no connection yet. `pid` and `own` can be read in any slot (enter.h). */
__attribute__((destructor)) static void end_all_connections(void)
{
    uint64_t deadline = vk_exit_begin();
    int here = (int)getpid();
    for (uint32_t i = 0; i < vk_load_relaxed(&via_nic_pool.n_touched); i++) {
        struct via_nic *nic = (struct via_nic *)(void *)(via_nic_pool.base + i * via_nic_pool.stride);
        uint32_t generation = __atomic_load_n(&nic->object.generation, __ATOMIC_ACQUIRE);
        if (generation == 0 || generation & VK_DEAD || vk_load_relaxed(&nic->pid) != here)
            continue;
        if (!via_own_enter_until(&nic->own, deadline))
            continue;
        if (vk_object_is(&nic->object, generation) && !nic->closing)
            end_connections(nic, deadline);
        via_leave(nic);
    }
}
