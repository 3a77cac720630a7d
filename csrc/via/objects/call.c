/*
 * The start of every call: resolve a handle to its object and enter the object's NIC. enter.h gives the reason for this
 * order and holds the short path. This file holds the rest. Any thread may call these functions.
 */
#include "base/atomic.h"
#include "base/explain.h"
#include "base/pool.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/own.h"
#include "via/pending.h"
#include "via/vi.h"
#include "via/work.h"

/* A child process must not use NICs that its parent opened. */
static VIP_RETURN another_process(const struct via_nic *nic)
{
    return vk_fail(VIP_INVALID_STATE, "this NIC was opened by process %d before a fork: open one in the child (%d)",
                   nic->pid, via_process_id);
}

/* If the object belongs to a NIC of another process, report that: it is the most common mistake of programs that fork.
 * Otherwise the handle is not valid. */
VIP_RETURN via_refuse_handle(const struct vk_pool *pool, const void *handle, const char *what)
{
    const struct via_belonging *o = vk_pool_find(pool, handle);
    if (o && o->nic && o->nic->pid != via_process_id)
        return another_process(o->nic);
    return via_bad_handle(what, handle);
}

/* Enter the NIC behind a handle. With `quietly`, as for the NIC's own thread, the program's thread keeps its fast entry
 * (own.h). */
static struct via_nic *enter_nic(VIP_NIC_HANDLE handle, VIP_RETURN *code, int quietly)
{
    uint32_t generation = 0;
    struct via_nic *nic = vk_pool_slot(&via_nic_pool, handle, via_nic_pool.stride, via_nic_pool.capacity, &generation);
    /* Check the handle before entering, so that an invalid handle does not disturb the NIC's users. Check it again
     * afterwards, because only the owner's check is reliable. */
    if (nic == NULL || generation == 0 || !vk_object_is(&nic->object, generation)) {
        *code = via_bad_handle("NIC", handle);
        return NULL;
    }
    if (vk_load_relaxed(&nic->pid) != via_process_id) {
        *code = another_process(nic);
        return NULL;
    }
    quietly ? via_own_enter_slow(&nic->own, 1) : via_enter(nic);
    if (vk_object_is(&nic->object, generation) && !nic->closing)
        return nic;
    quietly ? via_own_leave_slow(&nic->own) : via_leave(nic);
    *code = via_bad_handle("NIC", handle);
    return NULL;
}

/* Contracts: enter.h. */
struct via_nic *via_nic_enter(VIP_NIC_HANDLE handle, VIP_RETURN *code)
{
    return enter_nic(handle, code, 0);
}

struct via_nic *via_nic_enter_quietly(VIP_NIC_HANDLE handle, VIP_RETURN *code)
{
    return enter_nic(handle, code, 1);
}

struct via_vi *via_vi_enter(VIP_VI_HANDLE handle, VIP_RETURN *code)
{
    return via_vi_enter_inline(handle, code);
}

struct via_cq *via_cq_enter(VIP_CQ_HANDLE handle, VIP_RETURN *code)
{
    return via_cq_enter_inline(handle, code);
}

/* The handle of a request becomes invalid with the reply (`held` is then 0). The struct stays for a while, so that the
 * reply can be repeated. */
struct via_conn *via_conn_enter(VIP_CONN_HANDLE handle, VIP_RETURN *code)
{
    struct via_conn *conn = via_enter_object(&via_conn_pool, handle, via_conn_pool.stride, via_conn_pool.capacity,
                                             "connection request", code);
    if (conn == NULL || conn->held)
        return conn;
    via_leave(conn->nic);
    *code = via_bad_handle("connection request", handle);
    return NULL;
}
