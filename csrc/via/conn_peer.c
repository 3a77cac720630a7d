/*
 * Peer to peer: both sides ask (VipConnectPeerRequest), neither is server. Two requests belong together if each
 * wants the address and the discriminator that the other has.
 *
 *        higher                                lower
 *       ASKING    <---- REQUEST (peer) ------  ASKING      every request is repeated, so it does not matter who began
 *          |      ----- REQUEST (peer) ----->    |         the lower one answers a request with its own
 *      PROMISED   ----- ACCEPT ------------->    |         the higher one with a promise, to one at a time
 *          |      <---- CONFIRM -------------  CONNECTED
 *      CONNECTED        or CANCEL                          the lower one has found another partner, or given up
 *
 * Which of two is higher is decided by (address, port, number of the VI), on which both agree. So of two requests
 * that cross only one becomes a promise, and where many VIs ask for the same names, who holds a promise can only
 * wait for somebody lower: no circle of VIs can wait for each other. Whatever gets lost is repeated: REQUEST while
 * ASKING, ACCEPT while PROMISED, CONFIRM or CANCEL in answer to a repeated ACCEPT (conn_client.c does that for both
 * kinds of requests).
 *
 * Two that belong together and do not fit end each other: whoever sees the other's REQUEST answers REJECT, and only
 * a REJECT ends a request, because it names that very request. A REQUEST proves nothing: links may keep one until
 * its sender has given it up and asks anew with a VI that fits (on shm two NICs that call each other at the same
 * moment have two ways between them, and one may be opened later). REJECT also carries the number of the refuser's
 * own request, so that whoever is ended by it can answer that one, too, when it comes.
 */
#include "conn.h"

#include <stdlib.h>
#include <string.h>

#define PROMISE_FOR \
    (2 * VK_SECOND) /* then somebody else may have it; a CONFIRM that comes later is honoured if it can be */

/* ASKING: our REQUEST is repeated. PROMISED: an ACCEPT is repeated instead, to one partner. OVER: `result` says how. */
enum peering_state { ASKING, PROMISED, OVER };

/* One VipConnectPeerRequest, until its result was collected. Belongs to its VI. */
struct via_peering {
    struct via_peering *next; /* all of the NIC, oldest first */
    struct via_vi *vi;
    enum peering_state state;
    VIP_RETURN result; /* OVER */
    uint32_t number;
    uint8_t address[6]; /* of the remote station */
    uint16_t port;      /* of the one NIC there; 0: any */
    struct link_frame frame;
    uint64_t deadline, next_send, interval;
    unsigned long timeout_ms;
    /* the partner that we promised to, last */
    struct conn_to partner;
    uint8_t partner_address[6];
    struct wire_connect remote;
    uint64_t promised_until;
};

/* ---------------------------------------------------------------- one request's life */

static void unlink_peering(struct via_nic *nic, struct via_peering *p)
{
    for (struct via_peering **q = &nic->peerings; *q; q = &(*q)->next)
        if (*q == p) {
            *q = p->next;
            return;
        }
}

/* Safe to call of a VI without request. */
void conn_peer_drop(struct via_vi *vi)
{
    struct via_peering *p = vi->peering;
    if (p == NULL)
        return;
    unlink_peering(vi->nic, p);
    vi->peering = NULL;
    free(p);
}

struct via_peering *conn_peer_look(struct via_peering *p, struct via_vi **vi, const uint8_t **address,
                                   const struct link_frame **frame)
{
    *vi = p->vi;
    *address = p->address;
    *frame = &p->frame;
    return p->next;
}

/* The request is over; its result waits in it until the program collects it, or asks anew. On failure the VI is idle
 * again at once. */
static void finish(struct via_peering *p, VIP_RETURN result)
{
    p->state = OVER;
    p->result = result;
    if (result != VIP_SUCCESS) {
        p->vi->state = VIP_STATE_IDLE;
        p->vi->key = 0;
    }
    via_wake_waiters(p->vi->nic);
}

/* The partner is known, and knows us. Both ways of getting here, ACCEPT and CONFIRM, prove that the other side has our
 * key. */
static void connect_with(struct via_peering *p, const uint8_t address[6], const struct conn_to *to,
                         const struct wire_connect *remote)
{
    conn_join(p->vi, address, to->peer, to->port, to->vi, remote);
    p->vi->confirmed = 1;
    p->remote = *remote;
    finish(p, VIP_SUCCESS);
}

/* Our REQUEST once more, to all NICs of the station or the one, and when the next one is due. */
static void ask(struct via_nic *nic, struct via_peering *p)
{
    int asked = conn_ask(nic, p->address, p->port, &p->frame, NULL); /* nobody there yet is nothing to complain about */
    NIC_COUNT(nic, frames_sent, asked > 0 ? asked : asked == LINK_UNKNOWN);
    p->next_send = nic->now + p->interval;
    p->interval = conn_longer(p->interval);
    if (asked == 0 && p->port && link_lacks_room(nic, p->port)) /* it is there, and will not be reached */
        finish(p, VIP_NOT_REACHABLE);
}

/* ACCEPT, the first time or again: our side's description, under the number of the partner's request. */
static void promise(struct via_peering *p)
{
    struct wire_connect body = p->frame.block.connect;
    body.request = p->remote.request;
    body.max_payload = conn_carried(p->vi->nic, p->partner.peer);
    conn_say(p->vi->nic, &p->partner, WIRE_ACCEPT, p->vi->number, 0, &body);
}

/* ---------------------------------------------------------------- a request comes in */

/* Does the frame ask for what we have, and have what we ask for? */
static int belongs(const struct via_peering *p, const struct conn_frame *f)
{
    const struct wire_connect *own = &p->frame.block.connect;
    const uint8_t *names = p->frame.block.bytes + sizeof *own; /* what we want, then what we have */
    if (p->state == OVER || memcmp(p->address, f->from, 6) != 0 || (p->port && p->port != f->h->src_port) ||
        own->wanted_len != f->c.own_len || own->own_len != f->c.wanted_len)
        return 0;
    if (f->h->src_port == p->vi->nic->limits.port && f->h->src_vi == p->vi->number &&
        memcmp(f->from, p->vi->nic->limits.address, 6) == 0)
        return 0; /* ourselves */
    return memcmp(names, f->names + f->c.wanted_len, own->wanted_len) == 0 &&
           memcmp(names + own->wanted_len, f->names, own->own_len) == 0;
}

/* Has it promised itself to the sender of this frame, even if that promise has run out? Not before there was a promise
 * at all: the fields are 0 then, and a stranger can put 0 into a frame. */
static int promised_to(const struct via_peering *p, const struct conn_frame *f)
{
    return p->partner.peer != NULL && p->remote.request == f->c.request && p->remote.key == f->c.key &&
           p->partner.port == f->h->src_port && memcmp(p->partner_address, f->from, 6) == 0;
}

/* The request of ours that the incoming one is for: the one that has promised to its sender, else the oldest that fits
 * and is free. */
static struct via_peering *counterpart(struct via_nic *nic, const struct conn_frame *f)
{
    struct via_peering *first = NULL;
    for (struct via_peering *p = nic->peerings; p; p = p->next) {
        if (!belongs(p, f))
            continue;
        if (p->state == PROMISED && promised_to(p, f))
            return p; /* it has not heard our ACCEPT */
        if (p->state == ASKING && first == NULL)
            first = p;
    }
    return first;
}

/* Any order would do that both sides compute alike from what both can see. */
static int we_are_higher(const struct via_nic *nic, const struct via_vi *vi, const struct conn_frame *f)
{
    int order = memcmp(nic->limits.address, f->from, 6);
    if (order == 0)
        order = (int)nic->limits.port - (int)f->h->src_port;
    return order ? order > 0 : vi->number > f->h->src_vi;
}

/* Each time with the number of ours, for this may be the first REJECT that is not lost. */
static void refuse(struct via_nic *nic, const struct conn_frame *f, const struct via_peer_refusal *r)
{
    conn_say_in_passing(nic, f, WIRE_REJECT, r->code, &(struct wire_connect){.request = f->c.request, .key = r->own});
}

/* Whoever asks with this number is refused, whatever we ask for by then: only a REJECT tells him. */
static const struct via_peer_refusal *remember_refusal(struct via_nic *nic, uint32_t request, VIP_RETURN code,
                                                       uint32_t own)
{
    struct via_peer_refusal *r = &nic->peer_refusals[nic->n_peer_refusals++ % VIA_PEER_REFUSALS];
    *r = (struct via_peer_refusal){.request = request, .own = own, .code = (uint32_t)code};
    return r;
}

static const struct via_peer_refusal *refused_before(const struct via_nic *nic, uint32_t request)
{
    for (size_t i = 0; i < VIA_PEER_REFUSALS; i++)
        if (nic->peer_refusals[i].code && nic->peer_refusals[i].request == request)
            return &nic->peer_refusals[i];
    return NULL;
}

/* The heart of it; the table at the head of the file says who answers with what. */
void conn_peer_request_arrived(struct via_nic *nic, struct conn_frame *f)
{
    const struct via_peer_refusal *before = refused_before(nic, f->c.request);
    if (before) {
        refuse(nic, f, before);
        return;
    }
    struct via_peering *p = counterpart(nic, f);
    if (p == NULL || !conn_route(nic, f))
        return; /* silence: it will ask again, and perhaps we shall have asked then */
    VIP_RETURN code = conn_check_fit("VipConnectPeerRequest", p->vi, &f->c);
    if (code != VIP_SUCCESS) {
        refuse(nic, f, remember_refusal(nic, f->c.request, code, p->number));
        p->next_send = nic->now; /* ours at once, to be refused likewise */
        via_timer(nic, p->next_send);
        return;
    }
    if (!we_are_higher(nic, p->vi,
                       f)) { /* all that it needs is our request; the broadcast one may have come too early */
        p->frame.header.dst_port = f->h->src_port;
        via_link_send(nic, f->peer, &p->frame, 1);
        return;
    }
    /* The lower one's next REQUEST, until it confirms, is answered with the same promise. `interval` times the
     * repetition of our ACCEPT. */
    if (p->state == ASKING) {
        p->state = PROMISED;
        p->partner = (struct conn_to){.peer = f->peer, .port = f->h->src_port, .vi = f->h->src_vi, .key = f->c.key};
        memcpy(p->partner_address, f->from, 6);
        p->remote = f->c;
        p->interval = CONN_REPEAT_FIRST;
        p->next_send = nic->now + p->interval;
        p->promised_until = nic->now + PROMISE_FOR;
        via_timer(nic, p->next_send);
    }
    promise(p);
}

/* ---------------------------------------------------------------- answers come in */

/* The peer request that an answer is for. */
static struct via_peering *asked_by(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_peering *p = nic->peerings; p; p = p->next)
        if (p->state != OVER && p->number == f->c.request && p->vi->number == f->h->dst_vi && p->vi->key == f->h->key)
            return p;
    return NULL;
}

/* The higher one promises: we take it, being free. From here on our REQUEST is not repeated, and whoever else promises
 * is told CANCEL. */
int conn_peer_accepted(struct via_nic *nic, struct conn_frame *f)
{
    struct via_peering *p = asked_by(nic, f);
    if (p == NULL || !conn_route(nic, f))
        return p != NULL;
    if (p->state == PROMISED)
        return 1; /* first we must hear from the one we promised to; this one will ask again */
    if (conn_check_fit("VipConnectPeerRequest", p->vi, &f->c) != VIP_SUCCESS)
        return 1; /* a partner of ours has checked that: somebody is lying */
    struct conn_to to = {.peer = f->peer, .port = f->h->src_port, .vi = f->h->src_vi, .key = f->c.key};
    uint32_t key = p->vi->key;
    connect_with(p, f->from, &to, &f->c);
    conn_say_to_server(nic, &to, p->vi->number, p->number, key, WIRE_CONFIRM);
    return 1;
}

/* A peer request ends by REJECT only, which carries the code that says what did not fit; NOMATCH does not concern it.
 */
int conn_peer_answered(struct via_nic *nic, struct conn_frame *f, int kind)
{
    struct via_peering *p = asked_by(nic, f);
    if (p == NULL || kind != WIRE_REJECT)
        return p != NULL;
    VIP_RETURN code = (VIP_RETURN)f->h->immediate;
    if (code != VIP_INVALID_RELIABILITY_LEVEL && code != VIP_INVALID_MTU && code != VIP_INVALID_QOS)
        code = VIP_REJECT;
    else if (f->c.key)
        remember_refusal(nic, f->c.key, code, p->number);
    finish(p, code);
    return 1;
}

/* CONFIRM or CANCEL for a promise of ours. A CONFIRM may come after the promise has run out; nobody else has been
 * promised since, or the fields would say so, and the VI is still free: so it is honoured. */
int conn_peer_says(struct via_nic *nic, const struct conn_frame *f, int kind)
{
    struct via_peering *p = nic->peerings;
    while (p && (p->state == OVER || !promised_to(p, f) || f->h->dst_vi != p->vi->number || f->h->key != p->vi->key))
        p = p->next;
    if (p == NULL)
        return 0;
    if (kind == WIRE_CONFIRM) {
        connect_with(p, p->partner_address, &p->partner, &p->remote);
        conn_told_carried(p->vi, &f->c);
    } else if (p->state == PROMISED) {
        p->state = ASKING;
        p->interval = CONN_REPEAT_FIRST;
        ask(nic, p);
        via_timer(nic, p->next_send);
    }
    return 1;
}

/* ---------------------------------------------------------------- time, and the end */

/* Four things may be due: the end of the request, the end of a promise, our REQUEST again, our ACCEPT again. */
void conn_peer_timers(struct via_nic *nic)
{
    for (struct via_peering *p = nic->peerings; p; p = p->next) {
        if (p->state == OVER)
            continue;
        if (p->deadline <= nic->now) {
            finish(p, VIP_TIMEOUT);
            continue;
        }
        /* The partner fields stay: a CONFIRM that comes late is recognised by them (conn_peer_says). */
        if (p->state == PROMISED && p->promised_until <= nic->now) {
            p->state = ASKING;
            p->interval = CONN_REPEAT_FIRST;
        }
        if (p->next_send <= nic->now && p->state == ASKING)
            ask(nic, p);
        else if (p->next_send <= nic->now) {
            promise(p);
            p->interval = conn_longer(p->interval);
            p->next_send = nic->now + p->interval;
        }
        via_timer(nic, p->next_send < p->deadline ? p->next_send : p->deadline);
    }
}

/* A promise to somebody who is gone binds nobody: the request goes on asking. */
void conn_peer_lost(struct via_nic *nic, struct link_peer *peer)
{
    for (struct via_peering *p = nic->peerings; p; p = p->next)
        if (p->partner.peer == peer && p->state != OVER) {
            p->state = ASKING;
            p->partner = (struct conn_to){0};
            p->remote = (struct wire_connect){0};
        }
}

/* ---------------------------------------------------------------- the calls */

/* Returns at once, the request under way; the NIC's owner goes on with it. VipConnectPeerDone polls for its result,
 * VipConnectPeerWait waits. */
VIP_RETURN VipConnectPeerRequest(VIP_VI_HANDLE handle, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote,
                                 VIP_ULONG timeout)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = conn_check_addresses("VipConnectPeerRequest", local, remote, timeout);
    if (code)
        return code;
    if (local == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectPeerRequest: no local address (NULL): the peer asks for it");
    /* Before the NIC is entered, so that memory need not be asked for inside. */
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
        code = via_fail(VIP_INVALID_STATE, "VipConnectPeerRequest: the VI is in %s: it must be idle",
                        viakit_state_name((int)vi->state));
    else if (local->HostAddressLen == 6 && memcmp(local->HostAddress, nic->limits.address, 6) != 0)
        code = via_fail(VIP_INVALID_PARAMETER,
                        "VipConnectPeerRequest: the local address is not this NIC's: use its LocalNicAddress");
    if (code) {
        via_leave(nic);
        free(p);
        return code;
    }
    conn_peer_drop(vi); /* a result that nobody asked for */
    struct via_peering **end = &nic->peerings;
    while (*end)
        end = &(*end)->next;
    *end = vi->peering = p;
    p->vi = vi;
    p->number = conn_random();
    p->timeout_ms = timeout;
    memcpy(p->address, remote->HostAddress, 6);
    p->port = conn_port_of(remote);
    conn_prepare_request(vi, p->number, local, remote, &p->frame);
    p->frame.block.connect.mode = WIRE_MODE_PEER;
    /* From here on frames that carry the key find the VI (rx.c), and no other call may connect it. */
    vi->state = VIP_STATE_CONNECT_PENDING;
    nic->now = vk_now();
    p->deadline = vk_deadline(timeout);
    p->interval = CONN_REPEAT_FIRST;
    ask(nic, p);
    via_timer(nic, p->next_send < p->deadline ? p->next_send : p->deadline);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* The result as the call's value, with the explanation that goes with it. */
static VIP_RETURN explain(const char *function, const struct via_peering *p)
{
    switch (p->result) {
    case VIP_SUCCESS:
        return VIP_SUCCESS;
    case VIP_TIMEOUT:
        return via_fail(VIP_TIMEOUT, "%s: no peer asked for this VI within %lu ms", function, p->timeout_ms);
    case VIP_NOT_REACHABLE:
        return conn_explain_no_room(function);
    default:
        return via_fail(p->result, "%s: the two VIs differ: %s", function, viakit_return_text((int)p->result));
    }
}

/* The result is there: the program has it now, and the request is over. */
static VIP_RETURN collect(const char *function, struct via_vi *vi, VIP_VI_ATTRIBUTES *attributes)
{
    struct via_peering *p = vi->peering;
    VIP_RETURN code = explain(function, p);
    if (code == VIP_SUCCESS)
        conn_attributes(&p->remote, attributes);
    conn_peer_drop(vi);
    return code;
}

static VIP_RETURN nothing_asked(const char *function)
{
    return via_fail(VIP_INVALID_STATE, "%s: no peer request is under way on this VI: VipConnectPeerRequest first",
                    function);
}

/* VIP_NOT_DONE while it is under way. Any other answer is the result, told once: a second call says that nothing is
 * under way. */
VIP_RETURN VipConnectPeerDone(VIP_VI_HANDLE handle, VIP_VI_ATTRIBUTES *attributes)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL)
        return code;
    struct via_nic *nic = vi->nic;
    if (vi->peering && vi->peering->state != OVER && via_drive(nic) == 0)
        via_drive_slow(nic); /* seldom called: it may look at the clock each time */
    if (vi->peering == NULL)
        code = nothing_asked("VipConnectPeerDone");
    else if (vi->peering->state != OVER)
        code = VIP_NOT_DONE;
    else
        code = collect("VipConnectPeerDone", vi, attributes);
    via_leave(nic);
    return code;
}

/* A thread in VipConnectPeerWait. The request may be withdrawn meanwhile, or the VI destroyed. */
struct patience {
    const struct via_vi *vi;
    uint32_t generation, number;
};

/* Is it the same VI (generation), with the same request (number)? */
static int still_there(const struct patience *p)
{
    return vk_object_is(&p->vi->object, p->generation) && p->vi->peering && p->vi->peering->number == p->number;
}

/* What the waiting call asks between its looks. A request that is gone decides as well: there is nothing to wait
 * for. */
static int decided(void *argument)
{
    const struct patience *p = argument;
    return !still_there(p) || p->vi->peering->state == OVER;
}

/* Takes the result like VipConnectPeerDone, when there is one. No time-out of its own: the request has one. */
VIP_RETURN VipConnectPeerWait(VIP_VI_HANDLE handle, VIP_VI_ATTRIBUTES *attributes)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL)
        return code;
    struct via_nic *nic = vi->nic;
    if (vi->peering == NULL) {
        via_leave(nic);
        return nothing_asked("VipConnectPeerWait");
    }
    struct patience p = {vi, vi->object.generation, vi->peering->number};
    code = via_wait_owned(nic, VIP_INFINITE, decided, &p, "VipConnectPeerWait: no answer",
                          NULL); /* the request's own time-out ends it */
    if (code == VIP_SUCCESS && !still_there(&p))
        code = via_fail(VIP_TIMEOUT, "VipConnectPeerWait: the request was withdrawn by another thread");
    else if (code == VIP_SUCCESS)
        code = collect("VipConnectPeerWait", vi, attributes);
    via_leave(nic);
    return code;
}

int conn_peer_wanted(struct via_nic *nic, const struct conn_frame *f)
{
    return refused_before(nic, f->c.request) || counterpart(nic, f);
}

int conn_peer_asking(const struct via_nic *nic, uint32_t request)
{
    const struct via_peering *p = nic->peerings;
    while (p && (p->state != ASKING || p->number != request))
        p = p->next;
    return p != NULL;
}
