/*
 * Peer to peer: both sides send requests (VipConnectPeerRequest), neither is a server. Two peer requests match if each
 * names the other's address and discriminator.
 *
 *        higher                                lower
 *     REQUESTING  <---- REQUEST (peer) ------  REQUESTING  every request is repeated, so either side may begin
 *          |      ----- REQUEST (peer) ----->    |         the lower one answers a request with its own
 *      PROMISED   ----- ACCEPT ------------->    |         the higher one with a promise, to one peer at a time
 *          |      <---- CONFIRM -------------  CONNECTED
 *      CONNECTED        or CANCEL                          the lower one has found another partner, or timed out
 *
 * The higher side is the one with the higher (address, port, number of the VI), on which both agree. If two requests
 * cross, only one of them therefore becomes a promise. If many VIs request the same names, a VI that has promised waits
 * only for a lower one, so VIs cannot wait for each other in a circle. Lost frames are repeated: REQUEST while
 * REQUESTING, ACCEPT while PROMISED, CONFIRM or CANCEL in reply to a repeated ACCEPT (conn_client.c does that for both
 * kinds of requests).
 *
 * If two requests match but their attributes differ, they end each other. The receiver of the other's REQUEST replies
 * REJECT. Only a REJECT ends a request, because it names that very request. A REQUEST is not sufficient: a link may
 * keep it until its sender has withdrawn it and requests again with a VI that fits. (On shm two NICs that connect to
 * each other at the same moment have two paths between them, and one may be opened later.) REJECT also carries the
 * number of the refuser's own request, so that the refused side can reject that request, too, when it arrives.
 *
 * A VI with a secret matches only requests that prove the same secret, and ignores ACCEPT, CONFIRM and REJECT without a
 * valid proof (proof.h). So no frame of a NIC without the secret connects or ends its request. A forged CANCEL, or a
 * replayed REQUEST, can only delay it: a promise that is not confirmed ends after PROMISE_FOR.
 */
#include "base/explain.h"
#include "via/connect/conn.h"
#include "via/connect/proof.h"

#include <stdlib.h>
#include <string.h>

#include "base/blake2s.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/list.h"
#include "base/pool.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

#define PROMISE_FOR (2 * VK_SECOND) /* then another peer may get the promise; a late CONFIRM is accepted if possible */

/* REQUESTING: REQUEST is repeated. PROMISED: ACCEPT is repeated instead, to one partner. OVER: `result` is valid. */
enum peering_state { REQUESTING, PROMISED, OVER };

/* One VipConnectPeerRequest, until its result is collected. Belongs to its VI. */
struct via_peering {
    struct via_peering *next; /* all of the NIC, oldest first */
    struct via_vi *vi;
    enum peering_state state;
    VIP_RETURN result;       /* valid if OVER */
    uint32_t number;         /* of the request, random: replies repeat it */
    uint8_t address[6];      /* of the remote station */
    uint16_t port;           /* of the one NIC there; 0: any */
    struct link_frame frame; /* REQUEST, with both discriminators and the proof; its block also describes this side */
    uint64_t deadline;       /* ns: the program's time-out */
    uint64_t next_send, interval; /* ns: of REQUEST or ACCEPT, by the state */
    unsigned long timeout_ms;     /* for the explanation */
    /* the partner of the last promise; zero: none yet. Kept after the promise, for a late CONFIRM */
    struct conn_to partner;
    uint8_t partner_address[6];
    struct wire_connect remote;
    uint64_t promised_until;
    /* the promise of a VI with a secret: the same each time, because the partner's CONFIRM proves receipt of it */
    struct wire_connect accept;
    struct wire_proof accept_proof;
    uint8_t transcript[32];
};

/* ---------------------------------------------------------------- life cycle of a request */

/* Has no effect on a VI without a request. */
void conn_peer_drop(struct via_vi *vi)
{
    struct via_peering *p = vi->peering;
    if (p == NULL)
        return;
    VK_LIST_REMOVE(vi->nic->peerings, p, next);
    vi->peering = NULL;
    free(p);
}

struct via_peering *conn_peer_inspect(struct via_peering *p, struct via_vi **vi, const uint8_t **address,
                                      const struct link_frame **frame)
{
    *vi = p->vi;
    *address = p->address;
    *frame = &p->frame;
    return p->next;
}

/* End a request. The result stays in it until the program collects it, or starts a new request. On failure the VI is
 * idle at once. */
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

/* Connect with a partner. Both ways to get here, ACCEPT and CONFIRM, prove that the partner has this VI's key. */
static void connect_with(struct via_peering *p, const uint8_t address[6], const struct conn_to *to,
                         const struct wire_connect *remote, uint64_t round_trip)
{
    conn_join(p->vi, address, to->peer, to->port, to->vi, remote);
    via_rtt_confirmed(p->vi, round_trip);
    p->remote = *remote;
    finish(p, VIP_SUCCESS);
}

/* Send REQUEST, to all NICs of the station or to one, and set the time of the next one. */
static void send_request(struct via_nic *nic, struct via_peering *p)
{
    /* It is no error if the peer has no NIC yet. */
    int addressed = conn_send_request(nic, p->address, p->port, &p->frame, NULL);
    NIC_COUNT(nic, frames_sent, addressed > 0 ? addressed : addressed == LINK_UNKNOWN);
    p->next_send = nic->now + p->interval;
    p->interval = conn_longer(p->interval);
    if (addressed == 0 && p->port &&
        link_lacks_address_space(&nic->link_client, p->port)) /* the peer exists but cannot be reached */
        finish(p, VIP_NOT_REACHABLE);
}

/* Send ACCEPT, new or repeated: the description of this side, with the number of the partner's request. */
static void promise(struct via_peering *p)
{
    struct wire_connect body = p->frame.block.connect;
    body.request = p->remote.request;
    body.max_payload = conn_carried(p->vi->nic, p->partner.peer);
    conn_send(p->vi->nic, &p->partner, WIRE_ACCEPT, p->vi->number, 0, p->vi->proof ? &p->accept : &body,
              &p->accept_proof);
}

/* Return the discriminators of a request that matches p: wanted and own are exchanged. */
static struct conn_names names_of_partner(const struct via_peering *p)
{
    struct conn_names names = conn_proof_names(&p->frame);
    return (struct conn_names){.wanted = names.own, .own = names.wanted};
}

/* Make the proof in the ACCEPTs of a new promise, for the sender of the request f. */
static void prove_promise(struct via_peering *p, const struct conn_frame *f)
{
    const struct via_nic *nic = p->vi->nic;
    const struct via_secret *secret = &p->vi->proof->secret;
    p->accept = p->frame.block.connect;
    p->accept.request = p->remote.request;
    p->accept.max_payload = conn_carried(nic, p->partner.peer);
    memcpy(p->accept_proof.nonce, conn_proof_nonce(&p->frame), sizeof p->accept_proof.nonce);
    struct conn_side requester = {f->from, f->h->src_port, f->h->src_vi, &f->c, f->proof.nonce};
    struct conn_side acceptor = {nic->limits.address, nic->limits.port, p->vi->number, &p->accept,
                                 p->accept_proof.nonce};
    conn_proof_transcript(secret, &requester, names_of_partner(p), &acceptor, p->transcript);
    conn_proof_accept(secret, p->transcript, p->accept_proof.mac);
}

/* ---------------------------------------------------------------- incoming requests */

/* Return whether the frame matches p: address, port and discriminators agree, and the secret is proven if p has one. */
static int belongs(const struct via_peering *p, const struct conn_frame *f)
{
    const struct wire_connect *own = &p->frame.block.connect;
    const uint8_t *names = p->frame.block.bytes + sizeof *own; /* the wanted discriminator, then the own one */
    if (p->state == OVER || (p->vi->proof != NULL) != f->c.proof || memcmp(p->address, f->from, 6) != 0 ||
        (p->port && p->port != f->h->src_port) || own->wanted_len != f->c.own_len || own->own_len != f->c.wanted_len)
        return 0;
    if (f->h->src_port == p->vi->nic->limits.port && f->h->src_vi == p->vi->number &&
        memcmp(f->from, p->vi->nic->limits.address, 6) == 0)
        return 0; /* the VI's own request */
    if (memcmp(names, f->names + f->c.wanted_len, own->wanted_len) != 0 ||
        memcmp(names + own->wanted_len, f->names, own->own_len) != 0)
        return 0;
    struct conn_side requester = {f->from, f->h->src_port, f->h->src_vi, &f->c, f->proof.nonce};
    return p->vi->proof == NULL ||
           conn_proof_request_right(&p->vi->proof->secret, &requester, names_of_partner(p), &f->proof);
}

/* Return whether p has promised to the sender of this frame, even if that promise has expired. Before the first promise
 * the fields are 0, and an unknown peer could send 0 in a frame; that never matches. */
static int promised_to(const struct via_peering *p, const struct conn_frame *f)
{
    return p->partner.peer != NULL && p->remote.request == f->c.request && p->remote.key == f->c.key &&
           p->partner.port == f->h->src_port && memcmp(p->partner_address, f->from, 6) == 0;
}

/* Return the request that matches the incoming one: the one that has promised to its sender, else the oldest free
 * match. */
static struct via_peering *counterpart(struct via_nic *nic, const struct conn_frame *f)
{
    struct via_peering *first = NULL;
    for (struct via_peering *p = nic->peerings; p; p = p->next) {
        if (!belongs(p, f))
            continue;
        if (p->state == PROMISED && promised_to(p, f))
            return p; /* it has not received ACCEPT */
        if (p->state == REQUESTING && first == NULL)
            first = p;
    }
    return first;
}

/* Any order is correct that both sides compute from data that both have. */
static int we_are_higher(const struct via_nic *nic, const struct via_vi *vi, const struct conn_frame *f)
{
    int order = memcmp(nic->limits.address, f->from, 6);
    if (order == 0)
        order = (int)nic->limits.port - (int)f->h->src_port;
    return order ? order > 0 : vi->number > f->h->src_vi;
}

/* Send REJECT. It always carries the number of this side's request, because earlier REJECTs may have been lost. */
static void refuse(struct via_nic *nic, const struct conn_frame *f, const struct via_peer_refusal *r)
{
    struct wire_connect body = {.request = f->c.request, .key = r->own};
    struct wire_proof proof = {{0}, {0}};
    if (r->secret.len) {
        body.proof = WIRE_PROOF;
        memcpy(proof.nonce, f->proof.nonce, sizeof proof.nonce);
        conn_proof_reject(&r->secret, proof.nonce, &body, r->code, proof.mac);
    }
    conn_reply_in_passing(nic, f, WIRE_REJECT, r->code, &body, &proof);
}

/* Record a refusal: later requests with this number are refused, whatever this NIC requests by then, because only a
 * REJECT ends them. */
static const struct via_peer_refusal *remember_refusal(const struct via_peering *own, uint32_t request, VIP_RETURN code)
{
    struct via_nic *nic = own->vi->nic;
    struct via_peer_refusal *r = &nic->peer_refusals[nic->n_peer_refusals++ % VIA_PEER_REFUSALS];
    *r = (struct via_peer_refusal){.request = request, .own = own->number, .code = (uint32_t)code};
    if (own->vi->proof)
        r->secret = own->vi->proof->secret;
    return r;
}

/* A refusal with a secret is repeated only for a request that proves the same secret. */
static const struct via_peer_refusal *refused_before(const struct via_nic *nic, const struct conn_frame *f)
{
    struct conn_side requester = {f->from, f->h->src_port, f->h->src_vi, &f->c, f->proof.nonce};
    struct conn_names names = {f->names, f->names + f->c.wanted_len};
    for (size_t i = 0; i < VIA_PEER_REFUSALS; i++) {
        const struct via_peer_refusal *r = &nic->peer_refusals[i];
        if (r->code && r->request == f->c.request && (r->secret.len != 0) == f->c.proof &&
            (r->secret.len == 0 || conn_proof_request_right(&r->secret, &requester, names, &f->proof)))
            return r;
    }
    return NULL;
}

/* Handle a REQUEST; the table at the head of the file shows the replies. */
void conn_peer_request_arrived(struct via_nic *nic, struct conn_frame *f)
{
    const struct via_peer_refusal *before = refused_before(nic, f);
    if (before) {
        refuse(nic, f, before);
        return;
    }
    struct via_peering *p = counterpart(nic, f);
    if (p == NULL && nic->request_handler)
        nic->request_handler(nic->request_context, f->names, f->c.wanted_len);
    if (p == NULL || !conn_route(nic, f))
        return; /* no reply: the peer repeats its request, and this NIC may have one by then */
    VIP_RETURN code = conn_check_fit("VipConnectPeerRequest", p->vi, &f->c);
    if (code != VIP_SUCCESS) {
        refuse(nic, f, remember_refusal(p, f->c.request, code));
        p->next_send = nic->now; /* send this request at once, to be refused likewise */
        via_timer(nic, p->next_send);
        return;
    }
    if (!we_are_higher(nic, p->vi, f)) {
        /* The higher side needs only this request; the broadcast one may have arrived too early. */
        p->frame.header.dst_port = f->h->src_port;
        conn_stamp(&p->frame, nic->echo);
        via_link_send(nic, f->peer, &p->frame, 1);
        return;
    }
    /* Until the lower side confirms, each of its REQUESTs is answered with the same promise. `interval` times the
     * repetition of ACCEPT. */
    if (p->state == REQUESTING) {
        p->state = PROMISED;
        p->partner = (struct conn_to){.peer = f->peer, .port = f->h->src_port, .vi = f->h->src_vi, .key = f->c.key};
        memcpy(p->partner_address, f->from, 6);
        p->remote = f->c;
        if (p->vi->proof)
            prove_promise(p, f);
        p->interval = CONN_RETRANSMIT_FIRST;
        p->next_send = nic->now + p->interval;
        p->promised_until = nic->now + PROMISE_FOR;
        via_timer(nic, p->next_send);
    }
    promise(p);
}

/* ---------------------------------------------------------------- incoming replies */

/* Return the peer request to which a reply belongs. */
static struct via_peering *find_request(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_peering *p = nic->peerings; p; p = p->next)
        if (p->state != OVER && p->number == f->c.request && p->vi->number == f->h->dst_vi && p->vi->key == f->h->key)
            return p;
    return NULL;
}

/* ACCEPT: the higher side promises, and this side connects if it is free. From here on REQUEST is not repeated, and
 * other promises are answered with CANCEL. */
int conn_peer_accepted(struct via_nic *nic, struct conn_frame *f)
{
    struct via_peering *p = find_request(nic, f);
    uint8_t transcript[32];
    if (p == NULL)
        return 0;
    if (!conn_proof_accept_right(p->vi, &p->frame, f, transcript)) {
        NIC_COUNT(nic, dropped_unknown_peer, 1);
        return 1;
    }
    if (!conn_route(nic, f))
        return 1;
    if (p->state == PROMISED)
        return 1; /* the partner of this promise must reply first; the sender repeats its ACCEPT */
    if (conn_check_fit("VipConnectPeerRequest", p->vi, &f->c) != VIP_SUCCESS)
        return 1; /* an honest partner has checked that: the frame is forged */
    struct conn_to to = {.peer = f->peer, .port = f->h->src_port, .vi = f->h->src_vi, .key = f->c.key};
    connect_with(p, f->from, &to, &f->c, conn_round_trip(f));
    conn_proof_confirm(p->vi, &p->frame, f, transcript);
    return 1;
}

/* Return whether a REJECT of this request proves the secret of its VI. */
static int reject_right(const struct via_peering *p, const struct conn_frame *f)
{
    uint8_t mac[32];
    if (p->vi->proof == NULL || !f->c.proof)
        return p->vi->proof == NULL && !f->c.proof;
    conn_proof_reject(&p->vi->proof->secret, conn_proof_nonce(&p->frame), &f->c, f->h->immediate, mac);
    return vk_equal_secret(mac, f->proof.mac, sizeof mac);
}

/* Handle a reply. Only REJECT ends a peer request; its code reports the difference. NOMATCH has no effect. */
int conn_peer_answered(struct via_nic *nic, struct conn_frame *f, int kind)
{
    struct via_peering *p = find_request(nic, f);
    if (p == NULL || kind != WIRE_REJECT)
        return p != NULL;
    if (!reject_right(p, f)) {
        NIC_COUNT(nic, dropped_unknown_peer, 1);
        return 1;
    }
    VIP_RETURN code = (VIP_RETURN)f->h->immediate;
    if (code != VIP_INVALID_RELIABILITY_LEVEL && code != VIP_INVALID_MTU && code != VIP_INVALID_QOS)
        code = VIP_REJECT;
    else if (f->c.key)
        remember_refusal(p, f->c.key, code);
    finish(p, code);
    return 1;
}

/* CONFIRM or CANCEL for a promise of this NIC. A CONFIRM that arrives after the promise expired is accepted: the fields
 * show that no other peer has been promised since, and the VI is still free. */
int conn_peer_receive(struct via_nic *nic, const struct conn_frame *f, int kind)
{
    struct via_peering *p = nic->peerings;
    while (p && (p->state == OVER || !promised_to(p, f) || f->h->dst_vi != p->vi->number || f->h->key != p->vi->key))
        p = p->next;
    if (p == NULL)
        return 0;
    if (kind == WIRE_CONFIRM && p->vi->proof && !conn_proof_confirm_right(&p->vi->proof->secret, p->transcript, f)) {
        NIC_COUNT(nic, dropped_unknown_peer, 1);
    } else if (kind == WIRE_CONFIRM) {
        connect_with(p, p->partner_address, &p->partner, &p->remote, conn_round_trip(f));
        conn_set_carried(p->vi, &f->c);
    } else if (p->state == PROMISED) {
        p->state = REQUESTING;
        p->interval = CONN_RETRANSMIT_FIRST;
        send_request(nic, p);
        via_timer(nic, p->next_send);
    }
    return 1;
}

/* ---------------------------------------------------------------- timers, and the end */

/* Four things may be due: the end of the request, the end of a promise, the next REQUEST, the next ACCEPT. */
void conn_peer_timers(struct via_nic *nic)
{
    for (struct via_peering *p = nic->peerings; p; p = p->next) {
        if (p->state == OVER)
            continue;
        if (p->deadline <= nic->now) {
            finish(p, VIP_TIMEOUT);
            continue;
        }
        /* The partner fields stay: they identify a late CONFIRM (conn_peer_receive). */
        if (p->state == PROMISED && p->promised_until <= nic->now) {
            p->state = REQUESTING;
            p->interval = CONN_RETRANSMIT_FIRST;
        }
        if (p->next_send <= nic->now && p->state == REQUESTING)
            send_request(nic, p);
        else if (p->next_send <= nic->now) {
            promise(p);
            p->interval = conn_longer(p->interval);
            p->next_send = nic->now + p->interval;
        }
        via_timer(nic, p->next_send < p->deadline ? p->next_send : p->deadline);
    }
}

/* A promise to a peer that is gone is void: the request is repeated. */
void conn_peer_lost(struct via_nic *nic, struct link_peer *peer)
{
    for (struct via_peering *p = nic->peerings; p; p = p->next)
        if (p->partner.peer == peer && p->state != OVER) {
            p->state = REQUESTING;
            p->partner = (struct conn_to){0};
            p->remote = (struct wire_connect){0};
        }
}

/* ---------------------------------------------------------------- the calls */

/* Start a peer request and return at once; the NIC's owner continues it. VipConnectPeerDone polls for its result,
 * VipConnectPeerWait waits. */
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
    send_request(nic, p);
    via_timer(nic, p->next_send < p->deadline ? p->next_send : p->deadline);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Return the result, and set its explanation. */
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

/* Pass the result to the program and free the request. */
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
 * reports that no request is open. */
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

int conn_peer_wanted(struct via_nic *nic, const struct conn_frame *f)
{
    return refused_before(nic, f) || counterpart(nic, f);
}

int conn_peer_is_open(const struct via_nic *nic, uint32_t request)
{
    const struct via_peering *p = nic->peerings;
    while (p && (p->state != REQUESTING || p->number != request))
        p = p->next;
    return p != NULL;
}
