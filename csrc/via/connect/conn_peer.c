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
#include "via/connect/conn_peer.h"

#include <stdlib.h>
#include <string.h>

#include "base/blake2s.h"
#include "base/clock.h"
#include "base/list.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/connect/conn.h"
#include "via/connect/proof.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

#define PROMISE_FOR (2 * VK_SECOND) /* then another peer may get the promise; a late CONFIRM is accepted if possible */

/* ---------------------------------------------------------------- life cycle of a request */

/* Has no effect on a VI without a request. The VI's state is unchanged, and no waiting call is woken: a caller that
 * ends an open request does both (via_disconnect). */
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
 * idle at once. Its key becomes 0, so a late ACCEPT matches neither request nor VI and is answered with CANCEL
 * (conn_accepted). */
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

/* Connect with a partner. Both ways to get here, ACCEPT and CONFIRM, prove that the partner has this VI's key.
 * `address` is the partner's station, `remote` its description of its VI. round_trip: ns; 0: not known. */
static void connect_with(struct via_peering *p, const uint8_t address[6], const struct conn_to *to,
                         const struct wire_connect *remote, uint64_t round_trip)
{
    conn_join(p->vi, address, to->peer, to->port, to->vi, remote);
    via_rtt_confirmed(p->vi, round_trip);
    p->remote = *remote;
    finish(p, VIP_SUCCESS);
}

/* The interval doubles with each REQUEST, up to CONN_RETRANSMIT_LONGEST. */
void conn_peer_send_request(struct via_nic *nic, struct via_peering *p)
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

/* Send ACCEPT, new or repeated: the description of this side, with the number of the partner's request. The description
 * is the one in this side's REQUEST: key and first number are drawn once, and any later promise repeats them. */
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

/* Return whether the frame matches p: address, port and discriminators agree, and the secret is proven if p has one. A
 * request with a proof never matches a VI without a secret. The proof is verified last, because it costs a hash. */
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

/* Return whether this VI is the higher side. The order is that of station address, port and VI number. Any order is
 * correct that both sides compute from data that both have. The two never compare equal: belongs() has excluded the
 * VI's own request. */
static int we_are_higher(const struct via_nic *nic, const struct via_vi *vi, const struct conn_frame *f)
{
    int order = memcmp(nic->limits.address, f->from, 6);
    if (order == 0)
        order = (int)nic->limits.port - (int)f->h->src_port;
    return order ? order > 0 : vi->number > f->h->src_vi;
}

/* Send REJECT, with the difference as its code. It always carries the number of this side's request, because earlier
 * REJECTs may have been lost. That number travels in the block's field `key`: REJECT opens no connection, so it needs
 * no key there. */
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
 * REJECT ends them. The ring keeps the latest VIA_PEER_REFUSALS. The entry has a copy of the secret, because the VI may
 * be destroyed before the refused peer repeats its request. The result is valid until the entry is overwritten. */
static const struct via_peer_refusal *remember_refusal(const struct via_peering *own, uint32_t request, VIP_RETURN code)
{
    struct via_nic *nic = own->vi->nic;
    struct via_peer_refusal *r = &nic->peer_refusals[nic->n_peer_refusals++ % VIA_PEER_REFUSALS];
    *r = (struct via_peer_refusal){.request = request, .own = own->number, .code = (uint32_t)code};
    if (own->vi->proof)
        r->secret = own->vi->proof->secret;
    return r;
}

/* Return the recorded refusal of this request, or NULL. A refusal with a secret is repeated only for a request that
 * proves the same secret. An entry that was never used has code 0. */
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

/* Handle a REQUEST; the picture at the head of the file shows the replies. A request that matches nothing calls the
 * program's handler (viakit_on_peer_request) and stores nothing. Only a match leads to conn_route(), which may store
 * state for the peer. */
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

/* Return the open peer request to which a reply belongs. Number, VI and key must all match, or any host could forge a
 * reply. */
static struct via_peering *find_request(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_peering *p = nic->peerings; p; p = p->next)
        if (p->state != OVER && p->number == f->c.request && p->vi->number == f->h->dst_vi && p->vi->key == f->h->key)
            return p;
    return NULL;
}

/* ACCEPT: the higher side promises, and this side connects if it is free. From here on REQUEST is not repeated, and
 * other promises are answered with CANCEL: the request is OVER, so they match none, and conn_accepted() replies. */
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

/* Return whether a REJECT of this request proves the secret of its VI. Without a secret, it must have no proof. */
static int reject_right(const struct via_peering *p, const struct conn_frame *f)
{
    uint8_t mac[32];
    if (p->vi->proof == NULL || !f->c.proof)
        return p->vi->proof == NULL && !f->c.proof;
    conn_proof_reject(&p->vi->proof->secret, conn_proof_nonce(&p->frame), &f->c, f->h->immediate, mac);
    return vk_equal_secret(mac, f->proof.mac, sizeof mac);
}

/* Handle PENDING, REJECT or NOMATCH. Only REJECT ends a peer request. Its code reports the difference; the block's
 * field `key` has the number of the refuser's own request (refuse), or 0. PENDING and NOMATCH have no effect: no
 * NIC sends them in reply to a peer request. */
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
 * show that no other peer has been promised since, and the VI is still free. A CANCEL of an expired promise has no
 * effect, because the request is REQUESTING already. */
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
        conn_peer_send_request(nic, p);
        via_timer(nic, p->next_send);
    }
    return 1;
}

/* ---------------------------------------------------------------- timers, and the end */

/* Four things may be due: the end of the request, the end of a promise, the next REQUEST, the next ACCEPT. The end of a
 * promise sets no timer. It is noticed at the latest when the next ACCEPT is due, which is at most
 * CONN_RETRANSMIT_LONGEST later. At that time a REQUEST is sent instead. */
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
            conn_peer_send_request(nic, p);
        else if (p->next_send <= nic->now) {
            promise(p);
            p->interval = conn_longer(p->interval);
            p->next_send = nic->now + p->interval;
        }
        via_timer(nic, p->next_send < p->deadline ? p->next_send : p->deadline);
    }
}

/* A promise to a peer that is gone is void: REQUEST is repeated again, first when the next ACCEPT was due. The partner
 * is cleared, so a CONFIRM of it that is still under way does not connect the VI. */
void conn_peer_lost(struct via_nic *nic, struct link_peer *peer)
{
    for (struct via_peering *p = nic->peerings; p; p = p->next)
        if (p->partner.peer == peer && p->state != OVER) {
            p->state = REQUESTING;
            p->partner = (struct conn_to){0};
            p->remote = (struct wire_connect){0};
        }
}

/* ---------------------------------------------------------------- questions about open requests */

/* Return whether this NIC would reply to the REQUEST: it matches an open request, or was refused before. Nothing is
 * changed or sent (matches_own_request in link.h). */
int conn_peer_wanted(struct via_nic *nic, const struct conn_frame *f)
{
    return refused_before(nic, f) || counterpart(nic, f);
}

/* Return whether a REQUEST of that number may still be sent (request_is_open in link.h). One that is PROMISED does
 * not count, because it does not repeat REQUEST either. */
int conn_peer_is_open(const struct via_nic *nic, uint32_t request)
{
    const struct via_peering *p = nic->peerings;
    while (p && (p->state != REQUESTING || p->number != request))
        p = p->next;
    return p != NULL;
}
