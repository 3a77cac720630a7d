/*
 * The opening of every call: from a handle to the object behind it, inside its NIC (internal.h tells why in this
 * order). What is not on a program's short path stands here.
 */
#include "internal.h"

/* The child of a fork may not use its parent's NICs. */
static VIP_RETURN another_process(const struct via_nic *nic)
{
    return via_fail(VIP_INVALID_STATE, "this NIC was opened by process %d before a fork: open one in the child (%d)",
                    nic->pid, via_process_id);
}

/* The object was alive, but in another process: say that, for it is the commonest mistake of programs that fork. Else
 * the handle is dead. */
VIP_RETURN via_refuse_handle(const struct vk_pool *pool, const void *handle, const char *what)
{
    const struct via_belonging *o = vk_pool_find(pool, handle);
    if (o && o->nic && o->nic->pid != via_process_id)
        return another_process(o->nic);
    return via_bad_handle(what, handle);
}

/* quietly: as the NIC's own thread does, so that the program's thread keeps its free way in (own.h). */
static struct via_nic *enter_nic(VIP_NIC_HANDLE handle, VIP_RETURN *code, int quietly)
{
    uint32_t generation = 0;
    struct via_nic *nic = vk_pool_slot(&via_nic_pool, handle, via_nic_pool.stride, via_nic_pool.capacity, &generation);
    /* Looked at before entering, so that an invented handle does not disturb anybody; and again after, for only then it
     * is certain. */
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

/* Contracts of these: internal.h. */
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

/* A handle of a request dies with the answer (`held`), although the struct lives on for a while to repeat that answer.
 */
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
