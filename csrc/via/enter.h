/*
 * enter.h - how every call finds its object and enters its NIC (objects/call.c).
 */
#ifndef VIAKIT_VIA_ENTER_H
#define VIAKIT_VIA_ENTER_H

#include "base/pool.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

/* A call finds the object behind its handle, enters the object's NIC, and only then checks whether the handle is still
 * valid: another thread may have destroyed the object, or closed the NIC, in between. The fields read before that are
 * the NIC, the process and the owner. They lie in the part of a slot that is never cleared (base/pool.h), so they can
 * be read even if the object is dead.
 *
 * On success the caller is inside the NIC and leaves it with via_leave(). NULL: the caller is not inside, and *code has
 * the reason, with an explanation: VIP_INVALID_PARAMETER for an invalid handle, VIP_INVALID_STATE in the child of a
 * fork. */

/* The common first fields of VIs, completion queues and connection requests. */
struct via_belonging {
    struct vk_object object;
    struct via_nic *nic;
};

/* Returns the reason why an object could not be entered, and explains it. */
VIP_RETURN via_refuse_handle(const struct vk_pool *pool, const void *handle, const char *what);

static inline __attribute__((always_inline)) void *via_enter_object(const struct vk_pool *pool, const void *handle,
                                                                    size_t stride, size_t capacity, const char *what,
                                                                    VIP_RETURN *code)
{
    uint32_t generation = 0;
    struct via_belonging *o = (struct via_belonging *)vk_pool_slot(pool, handle, stride, capacity, &generation);
    struct via_nic *nic =
        vk_likely(o != NULL) ? vk_load_relaxed(&o->nic) : NULL; /* NULL also if the slot was never used */
    if (vk_likely(nic != NULL && vk_load_relaxed(&nic->pid) == via_process_id)) {
        via_enter(nic);
        if (vk_likely(vk_object_is(&o->object, generation)))
            return o;
        via_leave(nic);
    }
    *code = via_refuse_handle(pool, handle, what);
    return NULL;
}

/* Inlined, for the calls that are made for every message; the others use the functions below. */
static inline __attribute__((always_inline)) struct via_vi *via_vi_enter_inline(VIP_VI_HANDLE handle, VIP_RETURN *code)
{
    return (struct via_vi *)via_enter_object(&via_vi_pool, handle, VK_POOL_STRIDE(sizeof(struct via_vi)), VIA_VI_POOL,
                                             "VI", code);
}

static inline __attribute__((always_inline)) struct via_cq *via_cq_enter_inline(VIP_CQ_HANDLE handle, VIP_RETURN *code)
{
    return (struct via_cq *)via_enter_object(&via_cq_pool, handle, VK_POOL_STRIDE(sizeof(struct via_cq)), VIA_CQ_POOL,
                                             "completion queue", code);
}

struct via_vi *via_vi_enter(VIP_VI_HANDLE handle, VIP_RETURN *code);
struct via_cq *via_cq_enter(VIP_CQ_HANDLE handle, VIP_RETURN *code);
/* Enters by a connection request that the program has not answered yet. */
struct via_conn *via_conn_enter(VIP_CONN_HANDLE handle, VIP_RETURN *code);
/* Enters a NIC that is not being closed. */
struct via_nic *via_nic_enter(VIP_NIC_HANDLE handle, VIP_RETURN *code);
/* The same, but leaves the NIC's bias (own.h) unchanged; leave with via_own_leave_slow(). */
struct via_nic *via_nic_enter_quietly(VIP_NIC_HANDLE handle, VIP_RETURN *code);

/* Begins the body of a VIPL call: declares the object as a variable and enters its NIC. If the handle is not valid, the
 * calling function returns the reason. So these lines come before anything that would have to be undone. */
#define VIA_ENTER(type, object, handle, enter)             \
    VIP_RETURN object##_code;                              \
    struct type *object = enter((handle), &object##_code); \
    if (object == NULL)                                    \
    return object##_code
#define VIA_ENTER_NIC(nic, handle) VIA_ENTER(via_nic, nic, handle, via_nic_enter)
#define VIA_ENTER_VI(vi, handle) VIA_ENTER(via_vi, vi, handle, via_vi_enter)
#define VIA_ENTER_CQ(cq, handle) VIA_ENTER(via_cq, cq, handle, via_cq_enter)
#define VIA_ENTER_CONN(conn, handle) VIA_ENTER(via_conn, conn, handle, via_conn_enter)

#endif
