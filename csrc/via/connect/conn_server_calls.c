/*
 * The VIPL calls of a server: VipConnectWait, VipConnectAccept, VipConnectReject. conn_server.c has the protocol.
 *
 * Any thread may call them, and any number of threads may wait at one NIC. A handle from VipConnectWait is valid until
 * VipConnectAccept accepts the request or finds it withdrawn, or VipConnectReject returns. A program that does neither
 * keeps the request's slot until the NIC closes.
 */
#include <string.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/list.h"
#include "base/plural.h"
#include "base/pool.h"
#include "link/frame_format.h"
#include "via/connect/conn.h"
#include "via/connect/conn_server.h"
#include "via/connect/proof.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

#define CANCEL_POLLS 8 /* at most, for the CANCEL of a request that has just arrived */

/* The condition of VipConnectWait. */
static int waiter_matched(void *argument)
{
    return ((struct via_waiter *)argument)->conn != NULL;
}

/* VipConnectWait ends without a request; a request that has just matched is rejected. */
static void withdraw_waiter(struct via_nic *nic, void *waiter)
{
    struct via_waiter *w = waiter;
    VK_LIST_REMOVE(nic->waiters, w, next);
    if (w->conn) {
        conn_server_answer(w->conn, WIRE_REJECT, NULL); /* it was answered PENDING */
        conn_server_forget(nic, w->conn);
    }
}

/* Wait for a request. A process that was stopped finds all frames of that time at once, perhaps a request and its
 * CANCEL behind it. So the link is polled for further frames before a request is returned. The polls are limited,
 * because other peers may send all the time. */
static VIP_RETURN wait_for_request(struct via_nic *nic, struct via_waiter *w, VIP_ULONG timeout)
{
    uint64_t deadline = vk_deadline(timeout);
    for (;;) {
        VIP_RETURN code = via_wait_owned(nic, timeout, waiter_matched, w,
                                         "VipConnectWait: no client requested the discriminator", withdraw_waiter);
        for (int looks = 0; w->conn && looks < CANCEL_POLLS && via_drive(nic) > 0; looks++) {}
        if (code != VIP_SUCCESS || w->conn)
            return code;
        uint64_t now = vk_now();
        if (deadline != VK_NEVER)
            timeout = deadline > now ? (VIP_ULONG)((deadline - now + VK_MS - 1) / VK_MS) : 0;
    }
}

/* Return the requester's address, for VipConnectWait. VIPL has the caller provide space for host address and
 * discriminator: 6 + WIRE_MAX_DISCRIMINATOR bytes at most. out may be NULL. */
static void return_remote(const struct via_conn *conn, VIP_NET_ADDRESS *out)
{
    if (out == NULL)
        return;
    out->HostAddressLen = 6;
    out->DiscriminatorLen = conn->remote.own_len;
    uint8_t *bytes = out->HostAddress;
    memcpy(bytes, conn->address, 6);
    memcpy(bytes + 6, conn->own_discriminator, conn->remote.own_len);
}

/* Wait for a request with this discriminator, and return its handle; the client has then been answered PENDING. The
 * struct via_waiter and the caller's discriminator are used in place: the call removes the waiter from the list before
 * it returns. timeout is in ms, or VIP_INFINITE. remote and attributes may be NULL. If the thread is cancelled,
 * withdraw_waiter() runs instead of the rest of the call. */
VIP_RETURN VipConnectWait(VIP_NIC_HANDLE handle, VIP_NET_ADDRESS *local, VIP_ULONG timeout, VIP_NET_ADDRESS *remote,
                          VIP_VI_ATTRIBUTES *attributes, VIP_CONN_HANDLE *out)
{
    VK_HOLD_CANCEL;
    struct via_waiter w = {0};
    if (local == NULL || out == NULL)
        return vk_fail(VIP_INVALID_PARAMETER,
                       "VipConnectWait: a local address and a place for the handle are needed (NULL)");
    if (local->HostAddressLen != 6 && local->HostAddressLen != 0)
        return vk_fail(VIP_INVALID_PARAMETER, "VipConnectWait: host address of %u byte%s: addresses here have 6",
                       local->HostAddressLen, vk_s(local->HostAddressLen));
    if (local->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR)
        return vk_fail(VIP_INVALID_PARAMETER, "VipConnectWait: discriminator of %u byte%s: at most %d",
                       local->DiscriminatorLen, vk_s(local->DiscriminatorLen), WIRE_MAX_DISCRIMINATOR);
    conn_discriminator(local, &w.discriminator, &w.len);
    VIA_ENTER_NIC(nic, handle);
    VIP_RETURN code = conn_check_local("VipConnectWait", nic, local);
    if (code != VIP_SUCCESS) {
        via_leave(nic);
        return code;
    }
    VK_LIST_APPEND(nic->waiters, &w, next); /* the longest waiter is served first */
    code = wait_for_request(nic, &w, timeout);
    if (code == VIP_SUCCESS) {
        VK_LIST_REMOVE(nic->waiters, &w, next);
        return_remote(w.conn, remote);
        conn_attributes(&w.conn->remote, attributes);
        *out = vk_pool_handle(w.conn);
    } else
        withdraw_waiter(nic, &w);
    via_leave(nic);
    return code;
}

/* Connect the VI with the requester, and reply ACCEPT. A VI with a secret becomes CONNECT_PENDING instead, until the
 * requester's CONFIRM. Afterwards the handle is invalid, and the request is kept only to repeat ACCEPT, by the timer
 * (conn_server_timers) or for a repeated REQUEST. On an error the VI stays idle and the handle valid. */
static VIP_RETURN accept_with(struct via_conn *conn, struct via_vi *vi)
{
    struct via_nic *nic = conn->nic;
    /* Describe first, because that resets the VI; then join, which makes it CONNECTED. */
    conn_describe(vi, conn->remote.request, &conn->accept_body);
    conn->accept_body.max_payload = conn_carried(nic, conn->peer);
    if (vi->proof) {
        VIP_RETURN code = conn_proof_of_acceptance(conn, vi);
        if (code != VIP_SUCCESS) {
            vi->key = 0;
            return code;
        }
        vi->state = VIP_STATE_CONNECT_PENDING;
    } else
        conn_join(vi, conn->address, conn->peer, conn->port, conn->vi, &conn->remote);
    conn->state = VIA_CONN_ACCEPTED;
    conn->accepted = vi;
    vi->accepted_by = conn;
    conn->accepted_key = vi->key;
    conn->held = 0;
    conn->forget_at = nic->now + CONN_REMEMBER;
    conn->retransmit_interval = CONN_RETRANSMIT_FIRST;
    conn->retransmit_at = nic->now + conn->retransmit_interval;
    via_timer(nic, vi->lossless && !vi->proof ? conn->forget_at : conn->retransmit_at);
    conn_server_reply(conn);
    return VIP_SUCCESS;
}

/* The condition of wait_for_proof(). */
static int acceptance_decided(void *argument)
{
    return ((struct via_acceptance *)argument)->conn == NULL;
}

/* VipConnectAccept ends before the client has proven the secret. A client that has received ACCEPT finds no connection.
 */
static void abandon_acceptance(struct via_nic *nic, void *argument)
{
    struct via_acceptance *a = argument;
    if (a->conn)
        conn_server_forget(nic, a->conn);
}

/* Wait until the client's proof has been verified. The request's own timer ends this after CONN_REMEMBER, so the wait
 * has no time-out. A CANCEL, the loss of the peer, or VipDisconnect by another thread ends it sooner. The NIC is left
 * while the thread sleeps, so the request may be gone afterwards: only `a` is used then. */
static VIP_RETURN wait_for_proof(struct via_conn *conn)
{
    struct via_nic *nic = conn->nic;
    struct via_acceptance a = {.conn = conn, .result = VIP_TIMEOUT};
    conn->acceptance = &a;
    VIP_RETURN code =
        via_wait_owned(nic, VIP_INFINITE, acceptance_decided, &a,
                       "VipConnectAccept: interrupted before the client proved the secret", abandon_acceptance);
    if (a.conn == NULL && code != VIP_INVALID_PARAMETER)
        code = a.result == VIP_SUCCESS
                   ? VIP_SUCCESS
                   : vk_fail(a.result, "VipConnectAccept: the client withdrew, or did not prove the secret in time");
    abandon_acceptance(nic, &a);
    return code;
}

/* Accept a request. If the attributes do not match, no reply is sent, and the handle stays valid. The program may
 * change attributes, or pass another VI, and try again (VIPL), or must reject. The handle becomes invalid on success,
 * and also on VIP_TIMEOUT: the client has withdrawn the request, is gone, or did not prove the secret in time. */
VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE handle, VIP_VI_HANDLE vi_handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = VIP_SUCCESS;
    VIA_ENTER_CONN(conn, handle);
    struct via_nic *nic = conn->nic;
    struct via_vi *vi = vk_pool_find(&via_vi_pool, vi_handle);
    if (vi == NULL || vi->nic != nic) {
        via_leave(nic);
        return via_bad_handle("VI of the connection's NIC", vi_handle);
    }
    /* A CANCEL may have arrived that was not polled yet. */
    via_drive(nic);
    if (conn->state == VIA_CONN_CANCELLED) {
        conn_server_forget(nic, conn);
        code = vk_fail(VIP_TIMEOUT, "VipConnectAccept: the client withdrew its request, or is gone");
    } else if (vi->state != VIP_STATE_IDLE)
        code = vk_fail(VIP_INVALID_STATE, "VipConnectAccept: the VI is in %s: give an idle one",
                       viakit_state_name((int)vi->state));
    else if ((code = conn_check_fit("VipConnectAccept", vi, &conn->remote)) == VIP_SUCCESS)
        code = conn_proof_check_client(conn, vi);
    if (code == VIP_SUCCESS)
        code = accept_with(conn, vi);
    if (code == VIP_SUCCESS && vi->state == VIP_STATE_CONNECT_PENDING)
        code = wait_for_proof(conn);
    else if (code == VIP_SUCCESS && vi->state == VIP_STATE_IDLE) /* a CANCEL came in while the answer was sent */
        code = vk_fail(VIP_TIMEOUT, "VipConnectAccept: the other side gave up waiting");
    via_leave(nic);
    return code;
}

/* Reject a request. The handle becomes invalid; the reply is kept for a while, for a repeated REQUEST. */
VIP_RETURN VipConnectReject(VIP_CONN_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIA_ENTER_CONN(conn, handle);
    struct via_nic *nic = conn->nic;
    nic->now = vk_now();
    conn->held = 0;
    if (conn->state == VIA_CONN_OFFERED) {
        conn->state = VIA_CONN_REJECTED;
        conn_server_reply(conn);
    }
    conn->forget_at = nic->now + CONN_REMEMBER;
    via_timer(nic, conn->forget_at);
    via_leave(nic);
    return VIP_SUCCESS;
}
