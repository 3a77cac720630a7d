/*
 * The client's side of a connection: VipConnectRequest asks until somebody answers.
 *
 *    asked ----- PENDING ----> offered ----- ACCEPT ----> VIP_SUCCESS
 *      |                        |  \-------- REJECT ----> VIP_REJECT
 *      |                        +---- time-out, CANCEL -> VIP_TIMEOUT
 *      +-- all NICs of the station said NOMATCH --------> VIP_NO_MATCH        nobody waits for that discriminator
 *      +-- the station is this NIC alone, nor does it --> VIP_NO_MATCH
 *      +-- the link knows of no such station -----------> VIP_NOT_REACHABLE
 *      +-- time-out ------------------------------------> VIP_TIMEOUT
 *
 * One struct via_request per call, on the stack of the thread that makes it; the NIC's owner, whoever that is at the
 * moment, finds it in a list, repeats its frame, and notes the answer. The call takes it off the list before it
 * returns, so the list never points at a stack that is gone. Until the answer the VI is CONNECT_PENDING, and belongs to
 * this call: nobody else may take it out of that state. From then on it is anybody's, though the call may not have
 * noticed yet (give_up).
 *
 * The programs of the time start server and client at once and expect VIP_NO_MATCH immediately, to try again; and one
 * VIP_TIMEOUT after the whole time if the server took the request and thinks about it. Hence PENDING, which tells the
 * two apart.
 */
#include "conn.h"

#include <string.h>

#define NO_MATCH_GRACE (100 * VK_MS) /* for the other NICs of the station to answer */

/* The request that an answer is for: number, VI and key must all be what we sent, or anybody could answer. */
static struct via_request *open_request(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_request *r = nic->requests; r; r = r->next)
        if (r->number == f->c.request && r->vi->number == f->h->dst_vi && r->vi->key == f->h->key)
            return r;
    return NULL;
}

/* The thread that waits sees `done` and takes the rest. */
static void finish_request(struct via_request *r, VIP_RETURN result)
{
    r->done = 1;
    r->result = result;
    via_wake_waiters(r->vi->nic);
}

/* ACCEPT, which comes as often as the server likes until it hears us. The first makes the connection. A later one, or
 * one for a request that is over, is answered from what the VI says, so nothing of a request has to be remembered:
 * CONFIRM if it is the connection that we have, else CANCEL. The same answer serves peer requests (conn_peer.c). */
void conn_accepted(struct via_nic *nic, struct conn_frame *f)
{
    const struct wire_header *h = f->h;
    struct via_request *r = open_request(nic, f);
    if (r && !r->done) {
        if (!conn_route(nic, f))
            return;
        r->remote = f->c;
        conn_join(r->vi, f->from, f->peer, h->src_port, h->src_vi, &f->c);
        r->vi->confirmed = 1;
        struct conn_to to = {.peer = f->peer, .port = h->src_port, .vi = h->src_vi, .key = f->c.key};
        conn_say_to_server(nic, &to, r->vi->number, r->number, r->vi->key, WIRE_CONFIRM);
        finish_request(r, VIP_SUCCESS);
        return;
    }
    /* Again: either our CONFIRM was lost, or we had given up. */
    struct via_vi *vi = h->dst_vi < VIA_MAX_VI ? nic->vi_by_number[h->dst_vi] : NULL;
    int connected = vi && vi->key == h->key && vi->state == VIP_STATE_CONNECTED && vi->peer_key == f->c.key;
    if (!connected)
        NIC_COUNT(nic, dropped_stranger, 1);
    struct wire_connect body = {.request = f->c.request, .key = h->key};
    if (connected)
        body.max_payload = conn_carried(nic, vi->peer);
    conn_say_in_passing(nic, f, connected ? WIRE_CONFIRM : WIRE_CANCEL, 0, &body);
}

static void ask(struct via_nic *nic, struct via_request *r);

/* Nobody else at that address waits for the discriminator. If the address is ours somebody may wait at this very NIC:
 * it is asked last, for on shm it takes a way of its own, and who has a server and a client with one discriminator
 * means his neighbour's server. */
static void nobody_else(struct via_nic *nic, struct via_request *r)
{
    const struct wire_connect *c = &r->frame.block.connect;
    if (r->port == 0 && memcmp(r->address, nic->limits.address, 6) == 0 &&
        conn_server_waits(nic, r->frame.block.bytes + sizeof *c, c->wanted_len)) {
        r->port = nic->limits.port;
        r->no_match = 0;
        ask(nic, r);
    } else
        finish_request(r, VIP_NO_MATCH);
}

/* One NIC's answer says nothing about the others: where it is known how many were asked, all are waited for. */
static void no_match(struct via_nic *nic, struct via_request *r, uint16_t port, uint32_t neighbours)
{
    if (r->port && port != r->port)
        return; /* it was asked before we turned to one NIC */
    /* The same NIC may say it many times, once for each time that it was asked. */
    int i = 0;
    while (i < r->no_match && r->said_no[i] != port)
        i++;
    if (i == r->no_match && i < (int)(sizeof r->said_no / sizeof *r->said_no))
        r->said_no[r->no_match++] = port;
    /* On a wire nobody counts; but each NOMATCH tells how many NICs share that station's address. */
    int asked = r->asked >= 0 ? r->asked : (int)neighbours;
    if (r->no_match >= asked && !r->offered) {
        nobody_else(nic, r);
        return;
    }
    /* One says no, others have not spoken: they get a moment, no more, for some may not exist any longer. */
    uint64_t grace = nic->now + NO_MATCH_GRACE;
    if (r->asked < 0 && r->give_up_no_match > grace) {
        r->give_up_no_match = grace;
        via_timer(nic, grace);
    }
}

/* PENDING: somebody thinks about it; no NOMATCH counts from now on. It also says who it is, to be told if we give up.
 */
void conn_answered(struct via_nic *nic, struct conn_frame *f, int kind)
{
    struct via_request *r = open_request(nic, f);
    if (r == NULL || r->done) {
        NIC_COUNT(nic, dropped_stranger, 1);
        return;
    }
    if (kind == WIRE_PENDING) {
        r->offered = 1;
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

/* Each time the link may find that nobody is there: the first frame may have been lost before it could tell. */
static void ask(struct via_nic *nic, struct via_request *r)
{
    int asked = conn_ask(nic, r->address, r->port, &r->frame, &r->server);
    NIC_COUNT(nic, frames_sent, asked > 0 ? asked : 1);
    if (asked == LINK_ONLY_US && !r->offered) {
        nobody_else(nic, r);
        return;
    }
    if (asked == 0 && !r->offered) {
        finish_request(r, VIP_NOT_REACHABLE);
        return;
    }
    r->asked = asked >= 0 ? asked : LINK_UNKNOWN; /* NICs come and go */
    r->next_send = nic->now + r->interval;
    r->interval = conn_longer(r->interval);
    via_timer(nic, r->next_send);
}

/* Some of those who were asked have not answered, and may do so when it is over: one that stood still finds the request
 * among what came meanwhile. It shall find behind it that it is withdrawn, before it tells its program. */
static void withdraw_from_all(struct via_nic *nic, const struct via_request *r)
{
    struct link_frame f = r->frame;
    f.header.version_kind = wire_version_kind(WIRE_CANCEL);
    f.header.flags &= (uint8_t)~WIRE_FLAG_CRC; /* the sum was the request's */
    NIC_COUNT(nic, frames_sent, 1);
    conn_ask(nic, r->address, r->port, &f, NULL);
}

/* Two times per request: when to ask again (5 ms, doubling up to 200), and when to believe that nobody waits. The
 * caller has reset timers_at, so each says again when it is due. */
void conn_client_timers(struct via_nic *nic)
{
    for (struct via_request *r = nic->requests; r; r = r->next) {
        if (r->done)
            continue;
        if (!r->offered && r->give_up_no_match <= nic->now) {
            withdraw_from_all(nic, r);
            finish_request(r, VIP_NO_MATCH);
        } else if (r->next_send <= nic->now)
            ask(nic, r);
        if (r->done)
            continue;
        via_timer(nic, r->next_send < r->give_up_no_match ? r->next_send : r->give_up_no_match);
    }
}

/* What the waiting call asks between its looks; see via_wait_owned(). */
static int request_done(void *argument)
{
    return ((struct via_request *)argument)->done;
}

static void remove_request(struct via_nic *nic, struct via_request *r)
{
    for (struct via_request **p = &nic->requests; *p; p = &(*p)->next)
        if (*p == r) {
            *p = r->next;
            return;
        }
}

/* Sets the explanation that goes with how the request ended (viakit_last_error). */
static VIP_RETURN explain_result(VIP_RETURN code)
{
    switch (code) {
    case VIP_NO_MATCH:
        return via_fail(
            code, "VipConnectRequest: nobody waits at that address for that discriminator: start the server first, "
                  "or ask again");
    case VIP_REJECT:
        return via_fail(code, "VipConnectRequest: the server rejected the connection");
    case VIP_NOT_REACHABLE:
        return via_fail(code, "VipConnectRequest: there is no NIC at that address");
    case VIP_TIMEOUT:
        return via_fail(code, "VipConnectRequest: the request was withdrawn by another thread");
    default:
        return code;
    }
}

/* Nothing came of it: a server that took the request hears of it, and the VI is idle again, if it is still this
 * request's. Since it was over others may have disconnected the VI, destroyed it, and asked anew with it or with
 * another in its place; each request has a key of its own. */
static void give_up(struct via_nic *nic, struct via_request *r, VIP_RETURN code)
{
    struct via_vi *vi = r->vi;
    uint32_t key = r->frame.block.connect.key;
    if (r->offered && code == VIP_TIMEOUT && r->server)
        conn_say_to_server(nic, &(struct conn_to){.peer = r->server, .port = r->server_port}, r->frame.header.src_vi,
                           r->number, key, WIRE_CANCEL);
    else if (code == VIP_TIMEOUT)
        withdraw_from_all(nic, r);
    if (vi->state != VIP_STATE_CONNECT_PENDING || vi->key != key)
        return;
    vi->state = VIP_STATE_IDLE;
    vi->key = 0;
}

/* The thread that waits is cancelled: the request is withdrawn, unless it was over by then. */
static void cancelled(struct via_nic *nic, void *request)
{
    struct via_request *r = request;
    remove_request(nic, r);
    if (!r->done || r->result != VIP_SUCCESS)
        give_up(nic, r, r->done ? r->result : VIP_TIMEOUT);
}

/* Waits until there is an answer. VIP_NO_MATCH comes at once where nobody waits for the discriminator, VIP_TIMEOUT
 * after all of the time where somebody took the request and has not answered. `r` is on the list as long as this
 * function waits, and no longer. */
VIP_RETURN VipConnectRequest(VIP_VI_HANDLE handle, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote, VIP_ULONG timeout,
                             VIP_VI_ATTRIBUTES *attributes)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = conn_check_addresses("VipConnectRequest", local, remote, timeout);
    if (code)
        return code;
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL)
        return code;
    struct via_nic *nic = vi->nic;
    if (vi->state != VIP_STATE_IDLE) {
        code = via_fail(VIP_INVALID_STATE, "VipConnectRequest: the VI is in %s: it must be idle",
                        viakit_state_name((int)vi->state));
        via_leave(nic);
        return code;
    }
    struct via_request r = {.vi = vi, .interval = CONN_REPEAT_FIRST, .asked = -1, .give_up_no_match = VK_NEVER};
    memcpy(r.address, remote->HostAddress, 6);
    r.port = conn_port_of(remote);
    r.number = conn_random(); /* not counted up: a restarted program must not look like its predecessor */
    conn_prepare_request(vi, r.number, local, remote, &r.frame);
    vi->state = VIP_STATE_CONNECT_PENDING;
    r.next = nic->requests;
    nic->requests = &r;
    nic->now = vk_now();
    explain_result(VIP_NOT_REACHABLE); /* the link may know better */
    ask(nic, &r);
    /* The first look may say already that nobody is there; then the link has explained it better than we could. */
    int absent = r.done;
    /* From here others are inside now and then: the VI's state may be anything afterwards, and only `r` is surely ours.
     */
    code = via_wait_owned(nic, timeout, request_done, &r, "VipConnectRequest: no answer", cancelled);
    remove_request(nic, &r);
    if (code == VIP_TIMEOUT && r.done)
        code = VIP_SUCCESS; /* interrupted, but it was over by then: there is nothing to withdraw */
    if (code == VIP_SUCCESS)
        code = absent && r.result == VIP_NOT_REACHABLE ? r.result : explain_result(r.result);
    if (code == VIP_NOT_REACHABLE && link_lacks_room(nic, r.port))
        conn_explain_no_room("VipConnectRequest");
    if (code != VIP_SUCCESS)
        give_up(nic, &r, code);
    via_leave(nic);
    if (code == VIP_SUCCESS)
        conn_attributes(&r.remote, attributes);
    return code;
}

/* VipDisconnect of another thread. The call that waits finds it out (finish_request wakes it) and cleans up itself. */
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

/* The server that had taken the request, or the one NIC that was asked, is gone. Others who merely might have taken it
 * are not known, and do not matter. */
void conn_client_lost(struct via_nic *nic, struct link_peer *peer)
{
    for (struct via_request *r = nic->requests; r; r = r->next)
        if (!r->done && r->server == peer) {
            r->server = NULL;
            finish_request(r, VIP_NOT_REACHABLE);
        }
}

int conn_client_asking(const struct via_nic *nic, uint32_t request)
{
    const struct via_request *r = nic->requests;
    while (r && (r->done || r->number != request))
        r = r->next;
    return r != NULL;
}

/* By a link that learns it only after ask_all() had to answer (udp asks the station first). */
void link_nobody_there(struct via_nic *nic, const uint8_t address[6])
{
    for (struct via_request *r = nic->requests; r; r = r->next)
        if (!r->done && !r->offered && memcmp(r->address, address, 6) == 0)
            finish_request(r, VIP_NOT_REACHABLE);
}
