/*
 * The VIPL calls of peer requests: VipConnectPeerRequest, VipConnectPeerDone, VipConnectPeerWait. conn_peer.c has the
 * protocol between the two sides.
 *
 *      VipConnectPeerRequest --> REQUESTING ... OVER --- Done or Wait returns the result ---> no request
 *                                                \------ the next VipConnectPeerRequest ---> REQUESTING
 *
 * Any thread may call them; each enters the VI's NIC. VipDisconnect, by any thread, removes a request in any state.
 */
#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/list.h"
#include "base/pool.h"
#include "link/frame_format.h"
#include "via/connect/conn.h"
#include "via/connect/conn_peer.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/vi.h"

/* Start a peer request and return at once; the NIC's owner continues it. VipConnectPeerDone polls for its result,
 * VipConnectPeerWait waits. The VI must be idle, and is CONNECT_PENDING until the request is OVER. Both addresses
 * are copied. timeout is in ms, from 1 on, or VIP_INFINITE; it limits the request, not this call. On an error no
 * request is made, and the VI's state is unchanged. */
VIP_RETURN VipConnectPeerRequest(VIP_VI_HANDLE handle, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote,
                                 VIP_ULONG timeout)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = conn_check_addresses("VipConnectPeerRequest", local, remote, timeout);
    if (code)
        return code;
    if (local == NULL)
        return vk_fail(VIP_INVALID_PARAMETER,
                       "VipConnectPeerRequest: no local address (NULL): the peer's request names it");
    /* Allocated before the NIC is entered, so that no memory is allocated inside. */
    struct via_peering *p = calloc(1, sizeof *p);
    if (p == NULL)
        return via_no_memory("VipConnectPeerRequest");
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL) {
        free(p);
        return code;
    }
    struct via_nic *nic = vi->nic;
    if (vi->state != VIP_STATE_IDLE)
        code = vk_fail(VIP_INVALID_STATE, "VipConnectPeerRequest: the VI is in %s: it must be idle",
                       viakit_state_name((int)vi->state));
    else
        code = conn_check_local("VipConnectPeerRequest", nic, local);
    if (code) {
        via_leave(nic);
        free(p);
        return code;
    }
    conn_peer_drop(vi); /* a result that was not collected */
    VK_LIST_APPEND(nic->peerings, p, next);
    vi->peering = p;
    p->vi = vi;
    p->number = conn_random();
    p->timeout_ms = timeout;
    memcpy(p->address, remote->HostAddress, 6);
    p->port = conn_port_of(remote);
    code = conn_prepare_request(WIRE_MODE_PEER, vi, p->number, local, remote, &p->frame);
    if (code != VIP_SUCCESS) {
        conn_peer_drop(vi);
        via_leave(nic);
        return code;
    }
    /* From here on frames with the key find the VI (rx.c), and no other call may connect it. */
    vi->state = VIP_STATE_CONNECT_PENDING;
    nic->now = vk_now();
    p->deadline = vk_deadline(timeout);
    p->interval = CONN_RETRANSMIT_FIRST;
    conn_peer_send_request(nic, p);
    via_timer(nic, p->next_send < p->deadline ? p->next_send : p->deadline);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Return the result of a request that is OVER, and explain a failure. The default case is the code of a REJECT. */
static VIP_RETURN explain(const char *function, const struct via_peering *p)
{
    switch (p->result) {
    case VIP_SUCCESS:
        return VIP_SUCCESS;
    case VIP_TIMEOUT:
        return vk_fail(VIP_TIMEOUT, "%s: no peer requested this VI within %lu ms", function, p->timeout_ms);
    case VIP_NOT_REACHABLE:
        return conn_explain_no_room(function);
    default:
        return vk_fail(p->result, "%s: the two VIs differ: %s", function, viakit_return_text((int)p->result));
    }
}

/* Pass the result to the program and free the request, which is OVER. attributes: of the peer's VI, set only on
 * success; may be NULL. */
static VIP_RETURN collect(const char *function, struct via_vi *vi, VIP_VI_ATTRIBUTES *attributes)
{
    struct via_peering *p = vi->peering;
    VIP_RETURN code = explain(function, p);
    if (code == VIP_SUCCESS)
        conn_attributes(&p->remote, attributes);
    conn_peer_drop(vi);
    return code;
}

/* Explains that the VI has no request: its result was collected, or none was made. */
static VIP_RETURN no_request(const char *function)
{
    return vk_fail(VIP_INVALID_STATE, "%s: no peer request is under way on this VI: VipConnectPeerRequest first",
                   function);
}

/* Return VIP_NOT_DONE while the request is open. Any other value is the result, which is returned once: a second call
 * returns VIP_INVALID_STATE. While the request is open each call polls the link, so a program that only polls needs
 * no other thread to make progress. */
VIP_RETURN VipConnectPeerDone(VIP_VI_HANDLE handle, VIP_VI_ATTRIBUTES *attributes)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    if (vi->peering && vi->peering->state != OVER && via_drive(nic) == 0)
        via_drive_slow(nic); /* rarely called, so it may read the clock each time */
    if (vi->peering == NULL)
        code = no_request("VipConnectPeerDone");
    else if (vi->peering->state != OVER)
        code = VIP_NOT_DONE;
    else
        code = collect("VipConnectPeerDone", vi, attributes);
    via_leave(nic);
    return code;
}

/* A thread in VipConnectPeerWait. During the wait the request may be withdrawn, or the VI destroyed. */
struct peer_wait {
    const struct via_vi *vi;
    uint32_t generation, number;
};

/* Return whether the VI (generation) and its request (number) are the same. */
static int still_there(const struct peer_wait *p)
{
    return vk_object_is(&p->vi->object, p->generation) && p->vi->peering && p->vi->peering->number == p->number;
}

/* The condition of the waiting call. It also holds if the request is gone, which ends the wait. */
static int decided(void *argument)
{
    const struct peer_wait *p = argument;
    return !still_there(p) || p->vi->peering->state == OVER;
}

/* Wait for the result and return it as VipConnectPeerDone does. The call has no time-out of its own: the request has
 * one. */
VIP_RETURN VipConnectPeerWait(VIP_VI_HANDLE handle, VIP_VI_ATTRIBUTES *attributes)
{
    VK_HOLD_CANCEL;
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    if (vi->peering == NULL) {
        via_leave(nic);
        return no_request("VipConnectPeerWait");
    }
    struct peer_wait p = {vi, vi->object.generation, vi->peering->number};
    VIP_RETURN code = via_wait_owned(nic, VIP_INFINITE, decided, &p, "VipConnectPeerWait: no answer",
                                     NULL); /* the request's own time-out ends it */
    if (code == VIP_SUCCESS && !still_there(&p))
        code = vk_fail(VIP_TIMEOUT, "VipConnectPeerWait: the request was withdrawn by another thread");
    else if (code == VIP_SUCCESS)
        code = collect("VipConnectPeerWait", vi, attributes);
    via_leave(nic);
    return code;
}
