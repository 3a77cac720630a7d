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
#include "via/connect/conn_server.h"
#include "base/atomic.h"
#include "base/clock.h"
#include "base/pool.h"
#include "link/frame_format.h"
#include "via/connect/conn.h"
#include "via/connect/proof.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

#include <string.h>

/* `next` is the first member that is zeroed for a new request: object and NIC before it stay readable for old handles.
 */
struct vk_pool via_conn_pool = VK_POOL_INIT(struct via_conn, 65536, next);

#define N_REFUSED (sizeof(((struct via_nic *)0)->refused) / sizeof(uint32_t))

/* The requester's key goes into the header: the requester ignores replies without it. If the link has no room, the
 * frame is deferred (conn_send). */
void conn_server_answer(struct via_conn *conn, int kind, const struct wire_connect *body)
{
    const struct wire_connect brief = {.request = conn->remote.request};
    conn_send(conn->nic, &(struct conn_to){conn->peer, conn->port, conn->vi, conn->remote.key, 0}, kind,
              conn->accepted ? conn->accepted->number : 0, 0, body ? body : &brief, &conn->accept_proof);
}

/* Return whether the accepting VI is still in the connection that this request made. A VI may have been disconnected
 * and connected again by another request: its key shows that. */
static int still_accepted(const struct via_conn *conn)
{
    return conn->state == VIA_CONN_ACCEPTED && conn->accepted && conn->accepted->key == conn->accepted_key;
}

/* Return whether a VI has accepted and the client's proof has not arrived. */
static int proof_missing(const struct via_conn *conn)
{
    return still_accepted(conn) && conn->accepted->state == VIP_STATE_CONNECT_PENDING;
}

/* End the call that waits for the client's proof, if one does. The first result counts, because the request forgets the
 * call here. */
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

/* If the VI has been disconnected since, ACCEPT is not repeated: the client receives RESET. */
void conn_server_reply(struct via_conn *conn)
{
    switch (conn->state) {
    case VIA_CONN_OFFERED:
        conn_server_answer(conn, WIRE_PENDING, NULL);
        break;
    case VIA_CONN_ACCEPTED:
        if (conn->accepted)
            conn_server_answer(conn, WIRE_ACCEPT, &conn->accept_body);
        break;
    case VIA_CONN_REJECTED:
        conn_server_answer(conn, WIRE_REJECT, NULL);
        break;
    case VIA_CONN_CANCELLED:
        break;
    }
}

/* Return the waiter that has waited longest for this discriminator and has no request yet, or NULL. */
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

/* Removes it from both lists. The pool marks the slot's generation as dead, which makes the handle invalid
 * (base/pool.c). */
void conn_server_forget(struct via_nic *nic, struct via_conn *conn)
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
 * yet. A peer that requests and withdraws at full speed must not fill the memory, nor cause long searches. Return NULL
 * if no request may be evicted, or memory is exhausted: the requester then receives NOMATCH. */
static struct via_conn *new_conn(struct via_nic *nic)
{
    if (nic->n_conns >= VIA_MAX_CONNS) {
        struct via_conn *oldest = nic->oldest_conn;
        while (oldest && (oldest->held || (still_accepted(oldest) && !oldest->accepted->confirmed)))
            oldest = oldest->newer;
        if (oldest == NULL)
            return NULL;
        conn_server_forget(nic, oldest);
    }
    return vk_pool_get(&via_conn_pool);
}

/* A connection request, new or repeated. It is matched with a waiter or refused; in either case a reply is sent now. */
void conn_request_arrived(struct via_nic *nic, struct conn_frame *f)
{
    struct via_conn *conn = known_request(nic, f);
    if (conn) {
        conn_server_reply(conn);
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
    conn_server_answer(conn, WIRE_PENDING, NULL);
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
    conn_server_forget(nic, conn);
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
                conn_server_reply(c);
                c->retransmit_interval = conn_longer(c->retransmit_interval);
                c->retransmit_at = nic->now + c->retransmit_interval;
            }
            if (c->forget_at <= nic->now) {
                via_break(vi, 1); /* the client never received ACCEPT, or never proved the secret */
                conn_server_forget(nic, c);
                continue;
            }
            via_timer(nic, repeats ? c->retransmit_at : c->forget_at);
        } else if (c->forget_at <= nic->now)
            conn_server_forget(nic, c);
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
            conn_server_forget(nic, c);
    }
}

/* The NIC closes. Early programs do not reject the requests that they leave unanswered, and their clients must not
 * wait. */
void conn_server_fini(struct via_nic *nic)
{
    for (struct via_conn *c = nic->conns; c; c = c->next)
        if (c->state == VIA_CONN_OFFERED)
            conn_server_answer(c, WIRE_REJECT, NULL);
    while (nic->conns)
        conn_server_forget(nic, nic->conns);
}
