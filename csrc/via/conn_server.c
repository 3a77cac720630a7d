/*
 * The server's side of a connection: VipConnectWait takes a request, VipConnectAccept or VipConnectReject answers it.
 *
 *    REQUEST arrives --> OFFERED --- Accept --> ACCEPTED    the answer is kept for five seconds, and repeated when the
 *                          |  \---- Reject --> REJECTED    request is; ACCEPT also by itself until the client is heard
 *                          v
 *                      CANCELLED    the client gave up, or is gone
 *
 * A struct via_conn is one request that found a waiter. While `held`, the program has its handle and owes an answer,
 * and it does not go away whatever happens; afterwards it is memory of the answer, for a request that is repeated
 * because the answer was lost, and may be forgotten when others need the room. A request that found no waiter is
 * answered NOMATCH and leaves nothing but its number, in a ring of the latest 64.
 *
 * VIPL matches by the whole local address with its discriminator, first come, first served, with any number of waiters
 * and of requesters (`find_waiter`). Whoever waits later finds no request of the past: VIA has no backlog, unlike TCP's
 * listen().
 *
 *    nic->conns --> newest <==> ... <==> oldest <-- nic->oldest_conn      next: older; newer: younger
 *    nic->conns_by_hash[h] --> one --same--> another                       by the request's number
 */
#include "../base/plural.h"
#include "conn.h"

#include <string.h>

/* `next` is the first member that a new request finds zeroed: object and NIC before it stay readable for old
 * handles. */
struct vk_pool via_conn_pool = VK_POOL_INIT(struct via_conn, 65536, next);

#define LOOKS_BEHIND 8 /* for the withdrawal of a request that has just come */
#define N_REFUSED (sizeof(((struct via_nic *)0)->refused) / sizeof(uint32_t))

/* An answer to the requester: kind, and for ACCEPT the accepting VI's description. */
static void answer(struct via_conn *conn, int kind, const struct wire_connect *body)
{
    const struct wire_connect brief = {.request = conn->remote.request};
    conn_say(conn->nic, &(struct conn_to){conn->peer, conn->port, conn->vi, conn->remote.key, 0}, kind,
             conn->accepted ? conn->accepted->number : 0, 0, body ? body : &brief);
}

/* Is our VI in the connection that this request made? */
static int still_accepted(const struct via_conn *conn)
{
    return conn->state == VIA_CONN_ACCEPTED && conn->accepted && conn->accepted->key == conn->accepted_key;
}

/* Where requests of this number stand. It is random, so a few hundred stand spread out; who sends equal ones on purpose
 * makes us look through VIA_MAX_CONNS at most. */
static struct via_conn **place_of(struct via_nic *nic, uint32_t request)
{
    return &nic->conns_by_hash[(request * 2654435761u >> 16) & (VIA_CONN_HASHES - 1)];
}

/* A request is known by its number and by who asks: numbers are drawn at random, so two requesters may draw the same
 * one. */
static struct via_conn *known_request(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_conn *c = *place_of(nic, f->c.request); c; c = c->same)
        if (c->remote.request == f->c.request && c->port == f->h->src_port && c->vi == f->h->src_vi &&
            memcmp(c->address, f->from, 6) == 0)
            return c;
    return NULL;
}

/* What the state says, again. An acceptance whose VI has been disconnected since is not repeated: the client hears a
 * RESET. */
static void repeat_answer(struct via_conn *conn)
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

/* The waiter that has waited longest for this discriminator. */
static struct via_waiter *find_waiter(struct via_nic *nic, const uint8_t *wanted, size_t len)
{
    for (struct via_waiter *w = nic->waiters; w; w = w->next)
        if (w->conn == NULL && w->len == len && memcmp(w->discriminator, wanted, len) == 0)
            return w;
    return NULL;
}

/* The requester may have believed our NOMATCH: a repetition that crossed it, or was late, must hear the same. */
static int was_refused(const struct via_nic *nic, uint32_t request)
{
    for (size_t i = 0; i < N_REFUSED; i++)
        if (nic->refused[i] == request)
            return 1;
    return 0;
}

static void note_refused(struct via_nic *nic, uint32_t request)
{
    if (!was_refused(nic, request))
        nic->refused[nic->n_refused++ % N_REFUSED] = request;
}

/* One that nobody waits for, or for which there is no room. */
static void refuse(struct via_nic *nic, const struct conn_frame *f)
{
    note_refused(nic, f->c.request);
    conn_say_in_passing(nic, f, WIRE_NOMATCH, (uint32_t)nic->ops->count_neighbours(nic->link),
                        &(struct wire_connect){.request = f->c.request});
}

/* The newest one: first in its list, and found by its number. */
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

/* Out of both lists, and its handle is dead. The VI that it connected goes on without it: nobody repeats the
 * acceptance any more. */
static void forget(struct via_nic *nic, struct via_conn *conn)
{
    struct via_conn **p = place_of(nic, conn->remote.request);
    while (*p != conn)
        p = &(*p)->same;
    *p = conn->same;
    /* Doubly linked: each neighbour, or the end of the list in its place, is led past it. */
    *(conn->newer ? &conn->newer->next : &nic->conns) = conn->next;
    *(conn->next ? &conn->next->newer : &nic->oldest_conn) = conn->newer;
    nic->n_conns--;
    if (conn->accepted)
        conn->accepted->accepted_by = NULL;
    vk_pool_put(&via_conn_pool, conn);
}

/* Room for one more: when many are remembered, the oldest that was answered is forgotten, but for an acceptance that
 * was not heard yet. Somebody who asks and withdraws as fast as he can shall not fill our memory, nor make us look
 * through a long list each time. */
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

/* A connection request, for the first time or again. It is matched with a waiter, or refused; in either case it is
 * answered now. */
void conn_request_arrived(struct via_nic *nic, struct conn_frame *f)
{
    struct via_conn *conn = known_request(nic, f);
    if (conn) {
        repeat_answer(conn);
        return;
    }
    /* Three things are needed: somebody who waits, a way back, and room to remember it. Whichever is missing,
     * the client hears NOMATCH. */
    struct via_waiter *w = was_refused(nic, f->c.request) ? NULL : find_waiter(nic, f->names, f->c.wanted_len);
    conn = w && conn_route(nic, f) ? new_conn(nic) : NULL;
    if (conn == NULL) {
        refuse(nic, f);
        return;
    }
    vk_store_relaxed(&conn->nic, nic); /* an old handle of this slot may be looked at right now */
    conn->state = VIA_CONN_OFFERED;
    /* From now on until it is answered the program's, although it does not know yet: the waiter will hand it over. */
    conn->held = 1;
    conn->peer = f->peer;
    memcpy(conn->address, f->from, 6);
    conn->port = f->h->src_port;
    conn->vi = f->h->src_vi;
    conn->remote = f->c;
    memcpy(conn->own_discriminator, f->names + f->c.wanted_len, f->c.own_len);
    conn->forget_at = VK_NEVER;
    remember(nic, conn);
    /* The waiter is taken: find_waiter() passes it over from now on. */
    w->conn = conn;
    answer(conn, WIRE_PENDING, NULL);
    via_wake_waiters(nic);
}

/* The waiter that has the request and has not returned with it waits on, as if it had never come; only copies of it
 * that may yet come are known by its number, as if nobody had waited. 0: the program has its handle. */
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

/* CONFIRM or CANCEL of the client. 0 if it is about no request that is known here, or if the sender does not know the
 * request's key. */
int conn_server_says(struct via_nic *nic, const struct conn_frame *f, int kind)
{
    struct via_conn *conn = known_request(nic, f);
    if (conn == NULL || conn->remote.key != f->c.key)
        return 0;
    if (kind == WIRE_CONFIRM) {
        if (still_accepted(conn)) {
            conn->accepted->confirmed = 1;
            conn_told_carried(conn->accepted, &f->c);
        }
        return 1;
    }
    if (still_accepted(conn))
        via_break(conn->accepted, 1); /* it gave up before our answer came */
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

/* What VipConnectWait asks between its looks. */
static int waiter_matched(void *argument)
{
    return ((struct via_waiter *)argument)->conn != NULL;
}

static void remove_waiter(struct via_nic *nic, struct via_waiter *w)
{
    for (struct via_waiter **p = &nic->waiters; *p; p = &(*p)->next)
        if (*p == w) {
            *p = w->next;
            return;
        }
}

/* VipConnectWait ends without a request; who came just now is refused. */
static void withdraw_waiter(struct via_nic *nic, void *waiter)
{
    struct via_waiter *w = waiter;
    remove_waiter(nic, w);
    if (w->conn) {
        answer(w->conn, WIRE_REJECT, NULL); /* it was told PENDING */
        forget(nic, w->conn);
    }
}

/* A process that stood still finds what came meanwhile at once, a request and its withdrawal one behind the other: so
 * it looks whether more is there before it believes a request. Not without end: others may send all the time. */
static VIP_RETURN wait_for_request(struct via_nic *nic, struct via_waiter *w, VIP_ULONG timeout)
{
    uint64_t deadline = vk_deadline(timeout);
    for (;;) {
        VIP_RETURN code = via_wait_owned(nic, timeout, waiter_matched, w,
                                         "VipConnectWait: nobody asked for the discriminator", withdraw_waiter);
        for (int looks = 0; w->conn && looks < LOOKS_BEHIND && via_drive(nic) > 0; looks++) {}
        if (code != VIP_SUCCESS || w->conn)
            return code;
        uint64_t now = vk_now();
        if (deadline != VK_NEVER)
            timeout = deadline > now ? (VIP_ULONG)((deadline - now + VK_MS - 1) / VK_MS) : 0;
    }
}

/* The requester's address, as VipConnectWait returns it. VIPL has the caller provide room for host address and
 * discriminator. */
static void tell_remote(const struct via_conn *conn, VIP_NET_ADDRESS *out)
{
    if (out == NULL)
        return;
    out->HostAddressLen = 6;
    out->DiscriminatorLen = conn->remote.own_len;
    uint8_t *bytes = out->HostAddress;
    memcpy(bytes, conn->address, 6);
    memcpy(bytes + 6, conn->own_discriminator, conn->remote.own_len);
}

/* Returns with a handle as soon as a request for this discriminator is there; the client was told PENDING then. The
 * struct via_waiter and the caller's discriminator are used in place: the call does not return before it is off the
 * list. */
VIP_RETURN VipConnectWait(VIP_NIC_HANDLE handle, VIP_NET_ADDRESS *local, VIP_ULONG timeout, VIP_NET_ADDRESS *remote,
                          VIP_VI_ATTRIBUTES *attributes, VIP_CONN_HANDLE *out)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_waiter w = {0}, **end;
    if (local == NULL || out == NULL)
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipConnectWait: a local address and a place for the handle are needed (NULL)");
    if (local->HostAddressLen != 6 && local->HostAddressLen != 0)
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectWait: host address of %u byte%s: addresses here have 6",
                        local->HostAddressLen, vk_s(local->HostAddressLen));
    if (local->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR)
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectWait: discriminator of %u byte%s: at most %d",
                        local->DiscriminatorLen, vk_s(local->DiscriminatorLen), WIRE_MAX_DISCRIMINATOR);
    conn_discriminator(local, &w.discriminator, &w.len);
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    if (local->HostAddressLen == 6 && memcmp(local->HostAddress, nic->limits.address, 6) != 0) {
        via_leave(nic);
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipConnectWait: the local address is not this NIC's: use its LocalNicAddress");
    }
    /* At the end of the list: who has waited longest is served first. */
    for (end = &nic->waiters; *end; end = &(*end)->next) {}
    *end = &w;
    code = wait_for_request(nic, &w, timeout);
    if (code == VIP_SUCCESS) {
        remove_waiter(nic, &w);
        tell_remote(w.conn, remote);
        conn_attributes(&w.conn->remote, attributes);
        *out = vk_pool_handle(w.conn);
    } else
        withdraw_waiter(nic, &w);
    via_leave(nic);
    return code;
}

/* Connects the VI with the requester, and says so. */
static void accept_with(struct via_conn *conn, struct via_vi *vi)
{
    struct via_nic *nic = conn->nic;
    /* Describe first, for it resets the VI; then join, which makes it CONNECTED. */
    conn_describe(vi, conn->remote.request, &conn->accept_body);
    conn->accept_body.max_payload = conn_carried(nic, conn->peer);
    conn_join(vi, conn->address, conn->peer, conn->port, conn->vi, &conn->remote);
    conn->state = VIA_CONN_ACCEPTED;
    conn->accepted = vi;
    vi->accepted_by = conn;
    conn->accepted_key = vi->key;
    conn->held = 0;
    conn->forget_at = nic->now + CONN_REMEMBER;
    conn->repeat = CONN_REPEAT_FIRST;
    conn->repeat_at = nic->now + conn->repeat;
    via_timer(nic, vi->lossless ? conn->forget_at : conn->repeat_at);
    repeat_answer(conn);
}

/* Where the two do not fit nothing is said to the client, and the handle stays good: the program may change
 * attributes, or give another VI, and try again (VIPL), or must reject. */
VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE handle, VIP_VI_HANDLE vi_handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = VIP_SUCCESS;
    struct via_conn *conn = via_conn_enter(handle, &code);
    if (conn == NULL)
        return code;
    struct via_nic *nic = conn->nic;
    struct via_vi *vi = vk_pool_find(&via_vi_pool, vi_handle);
    if (vi == NULL || vi->nic != nic) {
        via_leave(nic);
        return via_bad_handle("VI of the connection's NIC", vi_handle);
    }
    /* A CANCEL may have come that nobody has looked at yet. */
    via_drive(nic);
    if (conn->state == VIA_CONN_CANCELLED) {
        forget(nic, conn);
        code = via_fail(VIP_TIMEOUT, "VipConnectAccept: the other side gave up waiting");
    } else if (vi->state != VIP_STATE_IDLE)
        code = via_fail(VIP_INVALID_STATE, "VipConnectAccept: the VI is in %s: give an idle one",
                        viakit_state_name((int)vi->state));
    else
        code = conn_check_fit("VipConnectAccept", vi, &conn->remote);
    if (code == VIP_SUCCESS)
        accept_with(conn, vi);
    via_leave(nic);
    return code;
}

/* The handle dies with this; the answer is remembered for a while, for a REQUEST that comes again. */
VIP_RETURN VipConnectReject(VIP_CONN_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_conn *conn = via_conn_enter(handle, &code);
    if (conn == NULL)
        return code;
    struct via_nic *nic = conn->nic;
    nic->now = vk_now();
    conn->held = 0;
    if (conn->state == VIA_CONN_OFFERED) {
        conn->state = VIA_CONN_REJECTED;
        repeat_answer(conn);
    }
    conn->forget_at = nic->now + CONN_REMEMBER;
    via_timer(nic, conn->forget_at);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* ---------------------------------------------------------------- time, and the end */

/* An acceptance is repeated until the client is heard, at growing intervals, and taken back after CONN_REMEMBER. (On
 * a lossless link it arrives: there only the end is waited for.) Other answers are forgotten then. */
void conn_server_timers(struct via_nic *nic)
{
    for (struct via_conn *c = nic->conns, *next; c; c = next) {
        next = c->next;
        if (c->held)
            continue;
        struct via_vi *vi = still_accepted(c) ? c->accepted : NULL;
        if (vi && vi->state == VIP_STATE_CONNECTED && !vi->confirmed) {
            if (c->repeat_at <= nic->now && !vi->lossless) {
                repeat_answer(c);
                c->repeat = conn_longer(c->repeat);
                c->repeat_at = nic->now + c->repeat;
            }
            if (c->forget_at <= nic->now) {
                via_break(vi, 1); /* the client never heard that it was accepted */
                forget(nic, c);
                continue;
            }
            via_timer(nic, vi->lossless ? c->forget_at : c->repeat_at);
        } else if (c->forget_at <= nic->now)
            forget(nic, c);
        else
            via_timer(nic, c->forget_at);
    }
}

/* The VI is disconnected, or goes: no request points at it any more. */
void via_conn_forget_vi(struct via_vi *vi)
{
    if (vi->accepted_by)
        vi->accepted_by->accepted = NULL;
    vi->accepted_by = NULL;
    conn_peer_drop(vi);
}

/* A request whose sender is gone counts as withdrawn. While the program has its handle the struct must stay:
 * VipConnectAccept says then what has happened. */
void conn_server_lost(struct via_nic *nic, struct link_peer *peer)
{
    for (struct via_conn *c = nic->conns, *next; c; c = next) {
        next = c->next;
        if (c->peer != peer)
            continue;
        if (c->held && take_back(nic, c))
            continue;
        c->state = VIA_CONN_CANCELLED;
        if (!c->held)
            forget(nic, c);
    }
}

/* The NIC closes. Programs of the time do not reject what they have not answered; the client shall not wait for it. */
void conn_server_fini(struct via_nic *nic)
{
    for (struct via_conn *c = nic->conns; c; c = c->next)
        if (c->state == VIA_CONN_OFFERED)
            answer(c, WIRE_REJECT, NULL);
    while (nic->conns)
        forget(nic, nic->conns);
}
