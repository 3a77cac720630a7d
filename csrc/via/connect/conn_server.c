/*
 * The server's side of a connection: VipConnectWait receives a request, VipConnectAccept or VipConnectReject
 * replies to it.
 *
 *    REQUEST arrives --> OFFERED --- Accept --> ACCEPTED    the reply is kept for five seconds, and repeated if the
 *                          |  \---- Reject --> REJECTED    request is; ACCEPT also by a timer until a frame arrives
 *                          v
 *                      CANCELLED    the client timed out, or is gone
 *
 * If the VI has a secret, VipConnectAccept first checks the request's proof, and then waits for the client's CONFIRM
 * (struct via_acceptance). Until that proof is verified the VI is CONNECT_PENDING: it neither receives nor sends data.
 *
 * A struct via_conn is one request that matched a waiter. While `held`, the program has its handle and owes a reply,
 * and the struct stays. Afterwards it stores the reply, for a request that is repeated because the reply was lost, and
 * may be evicted when others need the space. A request without a waiter is answered NOMATCH, and only its number is
 * kept, in a ring of the latest 64.
 *
 * VIPL matches by the whole local address with its discriminator, first come, first served, with any number of waiters
 * and requesters (`find_waiter`). A later waiter finds no past request: unlike TCP's listen(), VIA has no backlog.
 *
 *    nic->conns --> newest <==> ... <==> oldest <-- nic->oldest_conn      next: older; newer: younger
 *    nic->conns_by_hash[h] --> one --same--> another                       by the request's number
 */
#include "base/atomic.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/list.h"
#include "base/plural.h"
#include "base/pool.h"
#include "link/frame_format.h"
#include "via/connect/conn.h"
#include "via/connect/proof.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

#include <string.h>

/* `next` is the first member that is zeroed for a new request: object and NIC before it stay readable for old handles.
 */
struct vk_pool via_conn_pool = VK_POOL_INIT(struct via_conn, 65536, next);

#define CANCEL_POLLS 8 /* for the CANCEL of a request that has just arrived */
#define N_REFUSED (sizeof(((struct via_nic *)0)->refused) / sizeof(uint32_t))

/* Reply to the requester: kind, and for ACCEPT the accepting VI's description. */
static void answer(struct via_conn *conn, int kind, const struct wire_connect *body)
{
    const struct wire_connect brief = {.request = conn->remote.request};
    conn_send(conn->nic, &(struct conn_to){conn->peer, conn->port, conn->vi, conn->remote.key, 0}, kind,
              conn->accepted ? conn->accepted->number : 0, 0, body ? body : &brief, &conn->accept_proof);
}

/* Return whether the accepting VI is still in the connection that this request made. */
static int still_accepted(const struct via_conn *conn)
{
    return conn->state == VIA_CONN_ACCEPTED && conn->accepted && conn->accepted->key == conn->accepted_key;
}

/* A call of VipConnectAccept that waits for the client's proof. On its stack. */
struct via_acceptance {
    struct via_conn *conn; /* NULL once it is decided */
    VIP_RETURN result;
};

/* Return whether a VI has accepted and the client's proof has not arrived. */
static int proof_missing(const struct via_conn *conn)
{
    return still_accepted(conn) && conn->accepted->state == VIP_STATE_CONNECT_PENDING;
}

/* End the call that waits for the client's proof, if one does. The first result counts. */
static void decide(struct via_conn *conn, VIP_RETURN result)
{
    if (conn->acceptance == NULL)
        return;
    *conn->acceptance = (struct via_acceptance){.conn = NULL, .result = result};
    conn->acceptance = NULL;
    via_wake_waiters(conn->nic);
}

/* End an acceptance whose proof has not arrived: the VI is idle again. Has no effect on any other. */
static void withdraw_acceptance(struct via_conn *conn)
{
    if (proof_missing(conn)) {
        struct via_vi *vi = conn->accepted;
        vi->state = VIP_STATE_IDLE;
        vi->key = 0;
        vi->accepted_by = NULL;
        conn->accepted = NULL;
    }
    decide(conn, VIP_TIMEOUT);
}

/* The hash chain for requests of this number. Numbers are random, so a few hundred requests are spread out. If a sender
 * uses equal numbers on purpose, at most VIA_MAX_CONNS requests are searched. */
static struct via_conn **place_of(struct via_nic *nic, uint32_t request)
{
    return &nic->conns_by_hash[(request * 2654435761u >> 16) & (VIA_CONN_HASHES - 1)];
}

/* A request is identified by its number and its sender: numbers are random, so two requesters may draw the same one. */
static struct via_conn *known_request(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_conn *c = *place_of(nic, f->c.request); c; c = c->same)
        if (c->remote.request == f->c.request && c->port == f->h->src_port && c->vi == f->h->src_vi &&
            memcmp(c->address, f->from, 6) == 0)
            return c;
    return NULL;
}

/* Repeat the reply for the present state. If the VI has been disconnected since, ACCEPT is not repeated: the client
 * receives RESET. */
static void retransmit_reply(struct via_conn *conn)
{
    switch (conn->state) {
    case VIA_CONN_OFFERED:
        answer(conn, WIRE_PENDING, NULL);
        break;
    case VIA_CONN_ACCEPTED:
        if (conn->accepted)
            answer(conn, WIRE_ACCEPT, &conn->accept_body);
        break;
    case VIA_CONN_REJECTED:
        answer(conn, WIRE_REJECT, NULL);
        break;
    case VIA_CONN_CANCELLED:
        break;
    }
}

/* Return the waiter that has waited longest for this discriminator. */
static struct via_waiter *find_waiter(struct via_nic *nic, const uint8_t *wanted, size_t len)
{
    for (struct via_waiter *w = nic->waiters; w; w = w->next)
        if (w->conn == NULL && w->len == len && memcmp(w->discriminator, wanted, len) == 0)
            return w;
    return NULL;
}

/* The requester may have acted on NOMATCH: a repeated request that crossed it, or was late, must get the same reply. */
static int was_refused(const struct via_nic *nic, uint32_t request)
{
    for (size_t i = 0; i < N_REFUSED; i++)
        if (nic->refused[i] == request)
            return 1;
    return 0;
}

/* The ring keeps the latest N_REFUSED numbers. 0 is never a request's (conn_random). */
static void note_refused(struct via_nic *nic, uint32_t request)
{
    if (!was_refused(nic, request))
        nic->refused[nic->n_refused++ % N_REFUSED] = request;
}

/* Return the number of NICs of this station. Counting lists the sockets of the host, which takes milliseconds where
 * there are thousands. Under a flood of requests it would be all that a NIC does, so it has a budget. */
static uint32_t neighbours(struct via_nic *nic)
{
    uint64_t now = vk_now();
    if (vk_budget_allows(&nic->counting, now)) {
        nic->n_neighbours = (uint32_t)nic->ops->count_neighbours(nic->link);
        vk_budget_spend(&nic->counting, now, vk_now());
    }
    return nic->n_neighbours;
}

/* Refuse a request that matches no waiter, or for which there is no space. */
static void refuse(struct via_nic *nic, const struct conn_frame *f)
{
    note_refused(nic, f->c.request);
    conn_reply_in_passing(nic, f, WIRE_NOMATCH, neighbours(nic), &(struct wire_connect){.request = f->c.request}, NULL);
}

/* Add a request as the newest one of the list, and to its hash chain. */
static void remember(struct via_nic *nic, struct via_conn *conn)
{
    struct via_conn **place = place_of(nic, conn->remote.request);
    conn->same = *place;
    *place = conn;
    conn->next = nic->conns;
    if (conn->next)
        conn->next->newer = conn;
    else
        nic->oldest_conn = conn;
    nic->conns = conn;
    nic->n_conns++;
}

/* Remove a request from both lists and free it: its handle becomes invalid. A VI that it connected stays connected, but
 * its ACCEPT is no longer repeated. */
static void forget(struct via_nic *nic, struct via_conn *conn)
{
    struct via_conn **p = place_of(nic, conn->remote.request);
    withdraw_acceptance(conn);
    while (*p != conn)
        p = &(*p)->same;
    *p = conn->same;
    /* Doubly linked: each neighbour, or the end of the list in its place, is linked past it. */
    *(conn->newer ? &conn->newer->next : &nic->conns) = conn->next;
    *(conn->next ? &conn->next->newer : &nic->oldest_conn) = conn->newer;
    nic->n_conns--;
    if (conn->accepted)
        conn->accepted->accepted_by = NULL;
    vk_pool_put(&via_conn_pool, conn);
}

/* Allocate a request. At the limit, the oldest answered one is evicted, except for an acceptance that was not confirmed
 * yet. A peer that requests and withdraws at full speed must not fill the memory, nor cause long searches. */
static struct via_conn *new_conn(struct via_nic *nic)
{
    if (nic->n_conns >= VIA_MAX_CONNS) {
        struct via_conn *oldest = nic->oldest_conn;
        while (oldest && (oldest->held || (still_accepted(oldest) && !oldest->accepted->confirmed)))
            oldest = oldest->newer;
        if (oldest == NULL)
            return NULL;
        forget(nic, oldest);
    }
    return vk_pool_get(&via_conn_pool);
}

/* A connection request, new or repeated. It is matched with a waiter or refused; in either case a reply is sent now. */
void conn_request_arrived(struct via_nic *nic, struct conn_frame *f)
{
    struct via_conn *conn = known_request(nic, f);
    if (conn) {
        retransmit_reply(conn);
        return;
    }
    /* Three things are needed: a waiter, a route to the sender, and space to store the request. If one of them is
     * missing, the client receives NOMATCH. */
    struct via_waiter *w = was_refused(nic, f->c.request) ? NULL : find_waiter(nic, f->names, f->c.wanted_len);
    conn = w && conn_route(nic, f) ? new_conn(nic) : NULL;
    if (conn == NULL) {
        refuse(nic, f);
        return;
    }
    vk_store_relaxed(&conn->nic, nic); /* another thread may be checking an old handle of this slot */
    conn->state = VIA_CONN_OFFERED;
    /* From now on the program owes the reply, although it has no handle yet: the waiter will pass it on. */
    conn->held = 1;
    conn->peer = f->peer;
    memcpy(conn->address, f->from, 6);
    conn->port = f->h->src_port;
    conn->vi = f->h->src_vi;
    conn->remote = f->c;
    memcpy(conn->wanted_discriminator, f->names, f->c.wanted_len);
    memcpy(conn->own_discriminator, f->names + f->c.wanted_len, f->c.own_len);
    conn->remote_proof = f->proof;
    conn->forget_at = VK_NEVER;
    remember(nic, conn);
    /* The waiter is matched: find_waiter() skips it from now on. */
    w->conn = conn;
    answer(conn, WIRE_PENDING, NULL);
    via_wake_waiters(nic);
}

/* If the matched waiter has not returned yet, it continues to wait as if the request had never arrived. The request's
 * number is recorded as refused, for later copies. Return 0 if the program already has the handle. */
static int take_back(struct via_nic *nic, struct via_conn *conn)
{
    struct via_waiter *w = nic->waiters;
    while (w && w->conn != conn)
        w = w->next;
    if (w == NULL)
        return 0;
    w->conn = NULL;
    note_refused(nic, conn->remote.request);
    forget(nic, conn);
    return 1;
}

/* The CONFIRM of a client whose VI has a secret: the first valid one makes the connection. */
static void confirmed_with_proof(struct via_conn *conn, const struct conn_frame *f)
{
    struct via_vi *vi = conn->accepted;
    if (!proof_missing(conn))
        return; /* a duplicate */
    if (!conn_proof_confirm_right(&vi->proof->secret, conn->transcript, f)) {
        NIC_COUNT(conn->nic, dropped_unknown_peer, 1);
        return;
    }
    conn_join(vi, conn->address, conn->peer, conn->port, conn->vi, &conn->remote);
    via_rtt_confirmed(vi, conn_round_trip(f));
    conn_set_carried(vi, &f->c);
    decide(conn, VIP_SUCCESS);
}

/* CONFIRM or CANCEL of the client. Return 0 if it matches no request here, or if it lacks the request's key. A CANCEL
 * has no proof, so it does not end a connection that was proven. */
int conn_server_receive(struct via_nic *nic, const struct conn_frame *f, int kind)
{
    struct via_conn *conn = known_request(nic, f);
    if (conn == NULL || conn->remote.key != f->c.key)
        return 0;
    if (kind == WIRE_CONFIRM) {
        if (conn->accept_body.proof)
            confirmed_with_proof(conn, f);
        else if (still_accepted(conn)) {
            via_rtt_confirmed(conn->accepted, conn_round_trip(f));
            conn_set_carried(conn->accepted, &f->c);
        }
        return 1;
    }
    if (proof_missing(conn))
        withdraw_acceptance(conn);
    else if (still_accepted(conn) && conn->accept_body.proof)
        return 1;
    else if (still_accepted(conn))
        via_break(conn->accepted, 1); /* the client timed out before ACCEPT arrived */
    if (conn->held && take_back(nic, conn))
        return 1;
    conn->state = VIA_CONN_CANCELLED;
    if (!conn->held)
        conn->forget_at = nic->now + CONN_REMEMBER;
    return 1;
}

int conn_server_waits(struct via_nic *nic, const uint8_t *discriminator, size_t len)
{
    return find_waiter(nic, discriminator, len) != NULL;
}

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
        answer(w->conn, WIRE_REJECT, NULL); /* it was answered PENDING */
        forget(nic, w->conn);
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
 * discriminator. */
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
 * it returns. */
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
 * requester's CONFIRM. */
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
    retransmit_reply(conn);
    return VIP_SUCCESS;
}

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
        forget(nic, a->conn);
}

/* Wait until the client's proof has been verified. The request's own timer ends this after CONN_REMEMBER. A CANCEL, the
 * loss of the peer, or VipDisconnect by another thread ends it sooner. */
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
 * change attributes, or pass another VI, and try again (VIPL), or must reject. */
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
        forget(nic, conn);
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
        retransmit_reply(conn);
    }
    conn->forget_at = nic->now + CONN_REMEMBER;
    via_timer(nic, conn->forget_at);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* ---------------------------------------------------------------- timers, and the end */

/* ACCEPT is repeated at growing intervals until a frame of the client arrives, and withdrawn after CONN_REMEMBER. (On a
 * lossless link it is not repeated, only withdrawn.) Other replies are dropped after that time. */
void conn_server_timers(struct via_nic *nic)
{
    for (struct via_conn *c = nic->conns, *next; c; c = next) {
        next = c->next;
        if (c->held)
            continue;
        struct via_vi *vi = still_accepted(c) ? c->accepted : NULL;
        if (vi && (vi->state == VIP_STATE_CONNECTED || proof_missing(c)) && !vi->confirmed) {
            int repeats = !vi->lossless || proof_missing(c); /* a CONFIRM may have been corrupted in transit */
            if (c->retransmit_at <= nic->now && repeats) {
                retransmit_reply(c);
                c->retransmit_interval = conn_longer(c->retransmit_interval);
                c->retransmit_at = nic->now + c->retransmit_interval;
            }
            if (c->forget_at <= nic->now) {
                via_break(vi, 1); /* the client never received ACCEPT, or never proved the secret */
                forget(nic, c);
                continue;
            }
            via_timer(nic, repeats ? c->retransmit_at : c->forget_at);
        } else if (c->forget_at <= nic->now)
            forget(nic, c);
        else
            via_timer(nic, c->forget_at);
    }
}

/* The VI is disconnected or destroyed: no request refers to it any more. */
void via_conn_forget_vi(struct via_vi *vi)
{
    if (vi->accepted_by) {
        decide(vi->accepted_by, VIP_TIMEOUT); /* does nothing once it was connected */
        vi->accepted_by->accepted = NULL;
    }
    vi->accepted_by = NULL;
    conn_peer_drop(vi);
}

/* A request whose sender is gone counts as withdrawn. While the program has its handle the struct must stay:
 * VipConnectAccept then reports the loss. */
void conn_server_lost(struct via_nic *nic, struct link_peer *peer)
{
    for (struct via_conn *c = nic->conns, *next; c; c = next) {
        next = c->next;
        if (c->peer != peer)
            continue;
        if (c->held && take_back(nic, c))
            continue;
        withdraw_acceptance(c);
        c->state = VIA_CONN_CANCELLED;
        if (!c->held)
            forget(nic, c);
    }
}

/* The NIC closes. Early programs do not reject the requests that they leave unanswered, and their clients must not
 * wait. */
void conn_server_fini(struct via_nic *nic)
{
    for (struct via_conn *c = nic->conns; c; c = c->next)
        if (c->state == VIA_CONN_OFFERED)
            answer(c, WIRE_REJECT, NULL);
    while (nic->conns)
        forget(nic, nic->conns);
}
