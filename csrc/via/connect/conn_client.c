/*
 * The client's side of a connection: VipConnectRequest sends requests until it receives a reply.
 *
 *    requested - PENDING ----> offered ----- ACCEPT ----> VIP_SUCCESS
 *      |                        |  \-------- REJECT ----> VIP_REJECT
 *      |                        +---- time-out, CANCEL -> VIP_TIMEOUT
 *      +-- NOMATCH from all NICs of the station --------> VIP_NO_MATCH        no server waits for that discriminator
 *      +-- this NIC alone is the station, no waiter ----> VIP_NO_MATCH
 *      +-- address space lacked for the only other NIC -> VIP_NOT_REACHABLE   shm, also if that NIC has closed since
 *      +-- the station's host is up and has no NIC -----> VIP_NO_MATCH        udp (link_report_no_nic)
 *      +-- the link finds no such station --------------> VIP_NOT_REACHABLE
 *      +-- time-out ------------------------------------> VIP_TIMEOUT
 *
 * One struct via_request per call, on the stack of the calling thread. The NIC's owner, in whichever thread, finds it
 * in a list, retransmits its frame, and records the reply. The call removes it from the list before it returns, so the
 * list never points to a stack frame that is gone. Until the reply the VI is CONNECT_PENDING and belongs to this call:
 * no other call may change that state. After the reply other calls may change it before this call has resumed
 * (give_up).
 *
 * Early VIA programs start server and client at once. They expect VIP_NO_MATCH immediately, to retry. If the server has
 * received the request and delays its decision, they expect VIP_TIMEOUT after the whole time. PENDING distinguishes the
 * two.
 */
#include "base/cancel.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/list.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/connect/conn.h"
#include "via/connect/proof.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/link_services.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

#include <string.h>

#define NO_MATCH_GRACE (100 * VK_MS) /* for the other NICs of the station to reply */

/* Find the request of a reply. Number, VI and key must all match, or any host could forge a reply. */
static struct via_request *open_request(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_request *r = nic->requests; r; r = r->next)
        if (r->number == f->c.request && r->vi->number == f->h->dst_vi && r->vi->key == f->h->key)
            return r;
    return NULL;
}

/* Record the result; the waiting thread sees `done` and does the rest. */
static void finish_request(struct via_request *r, VIP_RETURN result)
{
    r->done = 1;
    r->result = result;
    via_wake_waiters(r->vi->nic);
}

/* ACCEPT, which the server retransmits until CONFIRM arrives. The first one with a valid proof makes the connection;
 * for a VI without a secret, the first one. A later ACCEPT, or one for a request that has ended, is answered from the
 * VI's state, so no state of a request is kept. The reply is CONFIRM if the ACCEPT belongs to the VI's connection, else
 * CANCEL. The same replies serve peer requests (conn_peer.c). */
void conn_accepted(struct via_nic *nic, struct conn_frame *f)
{
    const struct wire_header *h = f->h;
    struct via_request *r = open_request(nic, f);
    if (r && !r->done) {
        uint8_t transcript[32];
        /* The request stays open: an ACCEPT with the right secret may follow. */
        if (!conn_proof_accept_right(r->vi, &r->frame, f, transcript)) {
            NIC_COUNT(nic, dropped_unknown_peer, 1);
            return;
        }
        if (!conn_route(nic, f))
            return;
        r->remote = f->c;
        conn_join(r->vi, f->from, f->peer, h->src_port, h->src_vi, &f->c);
        via_rtt_confirmed(r->vi, conn_round_trip(f));
        conn_proof_confirm(r->vi, &r->frame, f, transcript);
        finish_request(r, VIP_SUCCESS);
        return;
    }
    /* A repeated ACCEPT: either CONFIRM was lost, or the request had ended. */
    struct via_vi *vi = h->dst_vi < VIA_MAX_VI ? nic->vi_by_number[h->dst_vi] : NULL;
    int connected = vi && vi->key == h->key && vi->state == VIP_STATE_CONNECTED && vi->peer_key == f->c.key;
    if (!connected)
        NIC_COUNT(nic, dropped_unknown_peer, 1);
    struct wire_connect body = {.request = f->c.request, .key = h->key};
    if (connected && vi->proof) {
        conn_proof_confirm_again(
            vi, &(struct conn_to){.peer = vi->peer, .port = vi->peer_port, .vi = vi->peer_vi, .key = vi->peer_key},
            f->c.request);
        return;
    }
    if (connected)
        body.max_payload = conn_carried(nic, vi->peer);
    conn_reply_in_passing(nic, f, connected ? WIRE_CONFIRM : WIRE_CANCEL, 0, &body, NULL);
}

static void send_request(struct via_nic *nic, struct via_request *r);

/* No other NIC at that address waits for the discriminator. If the address is this NIC's own, this NIC may have a
 * waiter. It is tried last, because shm uses a separate path for it. A program that has a server and a client with one
 * discriminator also means its neighbour's server. */
static void try_own_nic(struct via_nic *nic, struct via_request *r)
{
    const struct wire_connect *c = &r->frame.block.connect;
    if (r->port == 0 && memcmp(r->address, nic->limits.address, 6) == 0 &&
        conn_server_waits(nic, r->frame.block.bytes + sizeof *c, c->wanted_len)) {
        r->port = nic->limits.port;
        r->no_match = 0;
        send_request(nic, r);
    } else
        finish_request(r, VIP_NO_MATCH);
}

/* Handle NOMATCH of one NIC, which does not speak for the others. If the number of addressed NICs is known, all must
 * reply. */
static void no_match(struct via_nic *nic, struct via_request *r, uint16_t port, uint32_t neighbours)
{
    if (r->port && port != r->port)
        return; /* a reply from before the request was directed to one NIC */
    /* A NIC may send NOMATCH several times, once for each REQUEST that it received. */
    /* Ports beyond the array's end are not noted: then the count stays below the number of NICs, and the grace period
     * decides. */
    int i = 0;
    while (i < r->no_match && r->no_match_ports[i] != port)
        i++;
    if (i == r->no_match && i < (int)(sizeof r->no_match_ports / sizeof *r->no_match_ports))
        r->no_match_ports[r->no_match++] = port;
    /* On a wire the number is not known, but each NOMATCH carries the number of NICs with that station's address. */
    int addressed = r->n_addressed >= 0 ? r->n_addressed : (int)neighbours;
    if (r->no_match >= addressed && !r->offered) {
        try_own_nic(nic, r);
        return;
    }
    /* Some NICs have not replied. They get a short grace period only, because some may no longer exist. */
    uint64_t grace = nic->now + NO_MATCH_GRACE;
    if (r->n_addressed < 0 && r->give_up_no_match > grace) {
        r->give_up_no_match = grace;
        via_timer(nic, grace);
    }
}

/* PENDING: a server considers the request; later NOMATCH frames are ignored. The frame also identifies the server,
 * which receives CANCEL if the request times out. */
void conn_answered(struct via_nic *nic, struct conn_frame *f, int kind)
{
    struct via_request *r = open_request(nic, f);
    if (r == NULL || r->done) {
        NIC_COUNT(nic, dropped_unknown_peer, 1);
        return;
    }
    if (kind == WIRE_PENDING) {
        r->offered = 1;
        /* PENDING is sent by the NIC at once, so it shows the wire. ACCEPT waits for the server's program. */
        r->vi->rtt.handshake = conn_round_trip(f);
        r->give_up_no_match = VK_NEVER;
        if (!conn_route(nic, f))
            return;
        r->server = f->peer;
        r->server_port = f->h->src_port;
    } else if (kind == WIRE_REJECT)
        finish_request(r, VIP_REJECT);
    else
        no_match(nic, r, f->h->src_port, f->h->immediate);
}

/* Send the request. The link may report at each attempt that the station has no NIC: the first frame may have been lost
 * before it could detect that. */
static void send_request(struct via_nic *nic, struct via_request *r)
{
    int addressed = conn_send_request(nic, r->address, r->port, &r->frame, &r->server);
    NIC_COUNT(nic, frames_sent, addressed > 0 ? addressed : 1);
    if (addressed == LINK_ONLY_US && !r->offered && !r->lacked) {
        try_own_nic(nic, r);
        return;
    }
    /* A NIC that lacked address space, and has closed since then, was a server's NIC for this request. */
    if ((addressed == 0 || addressed == LINK_ONLY_US) && !r->offered) {
        finish_request(r, VIP_NOT_REACHABLE);
        return;
    }
    r->n_addressed = addressed >= 0 ? addressed : LINK_UNKNOWN; /* the number of NICs changes over time */
    r->next_send = nic->now + r->interval;
    r->interval = conn_longer(r->interval);
    via_timer(nic, r->next_send);
}

/* Send CANCEL to all addressed NICs. Those that have not replied may do so after the request has ended: a process that
 * was stopped finds the request among the frames that arrived meanwhile. Behind it, it shall find the CANCEL, before it
 * reports the request to its program. */
static void withdraw_from_all(struct via_nic *nic, const struct via_request *r)
{
    struct link_frame f = r->frame;
    f.header.version_kind = wire_version_kind(WIRE_CANCEL);
    f.header.flags &= (uint8_t)~WIRE_FLAG_CRC; /* the checksum was the request's */
    NIC_COUNT(nic, frames_sent, 1);
    conn_send_request(nic, r->address, r->port, &f, NULL);
}

/* Two times per request: the next retransmission (5 ms, doubling up to 200) and the end of the grace period. The caller
 * has reset timers_at, so each request sets its timer again. */
void conn_client_timers(struct via_nic *nic)
{
    for (struct via_request *r = nic->requests; r; r = r->next) {
        if (r->done)
            continue;
        if (!r->offered && r->give_up_no_match <= nic->now) {
            withdraw_from_all(nic, r);
            finish_request(r, VIP_NO_MATCH);
        } else if (r->next_send <= nic->now)
            send_request(nic, r);
        if (r->done)
            continue;
        via_timer(nic, r->next_send < r->give_up_no_match ? r->next_send : r->give_up_no_match);
    }
}

/* The condition of the waiting call; see via_wait_owned(). */
static int request_done(void *argument)
{
    return ((struct via_request *)argument)->done;
}

/* Set the explanation of the request's result (viakit_last_error). */
static VIP_RETURN explain_result(VIP_RETURN code)
{
    switch (code) {
    case VIP_NO_MATCH:
        return vk_fail(
            code, "VipConnectRequest: no server waits at that address for that discriminator: start the server first, "
                  "or repeat the request");
    case VIP_REJECT:
        return vk_fail(code, "VipConnectRequest: the server rejected the connection");
    case VIP_NOT_REACHABLE:
        return vk_fail(code, "VipConnectRequest: there is no NIC at that address");
    case VIP_TIMEOUT:
        return vk_fail(code, "VipConnectRequest: the request was withdrawn by another thread");
    default:
        return code;
    }
}

/* The request failed: notify a server that received it, and make the VI idle, if it still belongs to this request.
 * Since the request ended, other threads may have disconnected or destroyed the VI and requested again, with it or with
 * another VI in its slot. Each request has its own key, which detects that. */
static void give_up(struct via_nic *nic, struct via_request *r, VIP_RETURN code)
{
    struct via_vi *vi = r->vi;
    uint32_t key = r->frame.block.connect.key;
    if (r->offered && code == VIP_TIMEOUT && r->server)
        conn_send_to_server(nic, &(struct conn_to){.peer = r->server, .port = r->server_port}, r->frame.header.src_vi,
                            r->number, key, WIRE_CANCEL);
    else if (code == VIP_TIMEOUT)
        withdraw_from_all(nic, r);
    if (vi->state != VIP_STATE_CONNECT_PENDING || vi->key != key)
        return;
    vi->state = VIP_STATE_IDLE;
    vi->key = 0;
}

/* The waiting thread is cancelled: withdraw the request unless it has ended. */
static void cancelled(struct via_nic *nic, void *request)
{
    struct via_request *r = request;
    /* The struct lies on the stack that is about to be unwound. */
    VK_LIST_REMOVE(nic->requests, r, next);
    if (!r->done || r->result != VIP_SUCCESS)
        give_up(nic, r, r->done ? r->result : VIP_TIMEOUT);
}

/* Connect, and wait for the reply. VIP_NO_MATCH is returned at once if no server waits for the discriminator.
 * VIP_TIMEOUT is returned after the whole time if a server received the request and has not replied. `r` is on the list
 * only while this function waits. */
VIP_RETURN VipConnectRequest(VIP_VI_HANDLE handle, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote, VIP_ULONG timeout,
                             VIP_VI_ATTRIBUTES *attributes)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = conn_check_addresses("VipConnectRequest", local, remote, timeout);
    if (code)
        return code;
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    if (vi->state != VIP_STATE_IDLE) {
        code = vk_fail(VIP_INVALID_STATE, "VipConnectRequest: the VI is in %s: it must be idle",
                       viakit_state_name((int)vi->state));
        via_leave(nic);
        return code;
    }
    struct via_request r = {
        .vi = vi, .interval = CONN_RETRANSMIT_FIRST, .n_addressed = -1, .give_up_no_match = VK_NEVER};
    memcpy(r.address, remote->HostAddress, 6);
    r.port = conn_port_of(remote);
    r.number = conn_random(); /* not a counter: a restarted program must not use the numbers of its predecessor */
    code = conn_prepare_request(WIRE_MODE_CLIENT, vi, r.number, local, remote, &r.frame);
    if (code != VIP_SUCCESS) {
        via_leave(nic);
        return code;
    }
    vi->state = VIP_STATE_CONNECT_PENDING;
    r.next = nic->requests;
    nic->requests = &r;
    nic->now = vk_now();
    explain_result(VIP_NOT_REACHABLE); /* the link may give a better explanation */
    send_request(nic, &r);
    /* The first attempt may find that the station has no NIC; the link has then explained it more precisely. */
    int absent = r.done;
    /* From here on other threads enter the NIC at times: the VI may be in any state afterwards, and only `r` is certain
     * to belong to this call. */
    code = via_wait_owned(nic, timeout, request_done, &r, "VipConnectRequest: no answer", cancelled);
    VK_LIST_REMOVE(nic->requests, &r, next);
    if (code == VIP_TIMEOUT && r.done)
        code = VIP_SUCCESS; /* interrupted, but the request had ended: there is nothing to withdraw */
    if (code == VIP_SUCCESS)
        code = absent && r.result == VIP_NOT_REACHABLE ? r.result : explain_result(r.result);
    if (code == VIP_NOT_REACHABLE && (r.lacked || link_lacks_address_space(&nic->link_client, r.port)))
        conn_explain_no_room("VipConnectRequest");
    if (code != VIP_SUCCESS)
        give_up(nic, &r, code);
    via_leave(nic);
    if (code == VIP_SUCCESS)
        conn_attributes(&r.remote, attributes);
    return code;
}

/* VipDisconnect of another thread. The waiting call is woken by finish_request and cleans up itself. */
int conn_client_withdraw(struct via_vi *vi)
{
    struct via_request *r = vi->nic->requests;
    while (r && r->vi != vi)
        r = r->next;
    if (r == NULL || r->done)
        return 0;
    finish_request(r, VIP_TIMEOUT);
    return 1;
}

/* The server that had received the request, or the one addressed NIC, is gone. Other NICs that might have matched are
 * not known, and do not matter. */
void conn_client_lost(struct via_nic *nic, struct link_peer *peer)
{
    for (struct via_request *r = nic->requests; r; r = r->next)
        if (!r->done && r->server == peer) {
            r->server = NULL;
            finish_request(r, VIP_NOT_REACHABLE);
        }
}

int conn_client_is_open(const struct via_nic *nic, uint32_t request)
{
    const struct via_request *r = nic->requests;
    while (r && (r->done || r->number != request))
        r = r->next;
    return r != NULL;
}

/* The host replied, so it is reachable. A client whose server has not started yet repeats its request only on NO_MATCH.
 */
void via_link_no_nic(struct link_client *client, const uint8_t address[6])
{
    struct via_nic *nic = via_nic_of(client);
    for (struct via_request *r = nic->requests; r; r = r->next)
        if (!r->done && !r->offered && memcmp(r->address, address, 6) == 0)
            finish_request(r, VIP_NO_MATCH);
}
