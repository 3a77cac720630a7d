/*
 * Connected queue pairs (RC) for RDMA, and the keys of memory.
 *
 * A NIC that begins RDMA with a peer makes a queue pair `out`, and requests its counterpart `in` from the peer. Each
 * direction has a pair of its own: both sides may begin at the same time, and an error of one direction leaves the
 * other alone. Frames never use them.
 *
 *      initiator                                              target
 *        | -- JOIN(number, first packet, MTU) ----------------> |    makes `in`, for this number
 *        | <- JOINED(number, first packet, MTU) --------------- |    number 0: cannot
 *        | -- KEY(VI, its key, handle) -----------------------> |    the provider grants it
 *        | <- GRANT(rights, card's key, address, length) ------ |    no rights: refused
 *        | == RDMA ===========================================> |    without the target's processor
 *
 * Both are calls, as QUERY in verbs.c, with a nonce, and are repeated until the reply arrives. JOIN carries the key of
 * the target's queue pair of datagrams, which only a host that receives at the initiator's address can know. KEY
 * carries the key of the connection.
 *
 * A key of memory stays valid until the target deregisters the memory or changes its rights. The initiator notices
 * that by an error of its queue pair, and queries it again (verbs_rdma.c).
 *
 * States of a peer's pair, at the initiator. In all but the last one verbs_pair_ready() refers operations to frames or
 * lets them wait:
 *
 *   no `out` --JOIN sent--> `out` in INIT --JOINED--> joined, `out` in RTS
 *      ^                        |                        |
 *      +-- no reply, number 0 --+                        |
 *      +-- an operation failed (verbs_rdma_end) ---------+        refused_until: not again before this time
 *
 * Only the NIC's owner calls these functions. None waits for a peer. Creating, changing and destroying a queue pair are
 * system calls, so this happens once for each peer, not for each operation.
 *
 * Not done: a shared `in` for all peers. RC connects exactly two queue pairs, so a NIC with n peers needs 2n. Cards
 * with DC or XRC need fewer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "link/verbs.h"

#define QUERY_FIRST VK_MS   /* half the time after which a query is first repeated, doubled each time ... */
#define QUERY_DOUBLED 6     /* ... so many times: 2, 4, ... 64, 64 ms */
#define MOST_QUERIES 10     /* 0.4 s in all; then frames serve ... */
#define REFUSED (VK_SECOND) /* ... for this time */
#define TIMEOUT 14          /* 4.096 us * 2^14 = 67 ms until the card repeats a packet */
#define RETRIES 6           /* 7 is no limit on some cards, and on rdma_rxe */
#define RNR_TIMER 1         /* 0.01 ms; required, but without effect, because no operation here uses up a receive */
#define READS 4             /* RDMA reads that are under way at the same time: every card has room for as many */
#define PSN_MASK 0xFFFFFFu  /* packet and queue pair numbers have 24 bits */

/* RDMA without immediate data uses up no receive at the target, so none is ever posted. */
static const struct ib_qp_cap capabilities = {
    .send_wrs = VERBS_PAIR_REQUESTS, .recv_wrs = 1, .send_pieces = 1, .recv_pieces = 1};

/* ---------------------------------------------------------------- queue pairs */

/* Destroys a queue pair, if there is one. When the call returns, the card accesses no memory for it any more. */
static void destroy(struct verbs *v, struct ib_qp **qp)
{
    VK_HOLD_CANCEL;
    if (*qp)
        v->lib->destroy_qp(*qp);
    *qp = NULL;
}

void verbs_pair_leave(struct verbs *v, struct verbs_pair *pair)
{
    destroy(v, &pair->out);
    pair->joined = 0;
    pair->query = (struct verbs_query){0};
}

void verbs_pair_free(struct verbs *v, struct verbs_route *route)
{
    if (route->pair == NULL)
        return;
    verbs_pair_leave(v, route->pair);
    destroy(v, &route->pair->in);
    free(route->pair);
    route->pair = NULL;
}

/* Makes a queue pair that is not connected yet. `access`: what the peer may do by it. Its completions go to the queue
 * of the received datagrams, so that one notification serves both. Returns NULL if the card has no room for another
 * one. */
static struct ib_qp *make(struct verbs *v, uint32_t access)
{
    struct ib_qp_init init = {.send_cq = v->recv_cq, .recv_cq = v->recv_cq, .cap = capabilities, .type = IB_QP_RC};
    struct ib_qp_attr attr = {.state = IB_INIT, .port = (uint8_t)v->at.port, .access = access};
    VK_HOLD_CANCEL;
    struct ib_qp *qp = v->lib->create_qp(v->pd, &init);
    if (qp && v->lib->modify_qp(qp, &attr, IB_SET_STATE | IB_SET_PKEY | IB_SET_PORT | IB_SET_ACCESS) != 0)
        destroy(v, &qp);
    return qp;
}

/* Connects the queue pair with the peer's. `psn` is its own first packet number. `value` has the peer's first packet
 * number and MTU. The path MTU is the smaller of both, rounded down to one of the five sizes. Returns 0 or an errno
 * value. */
static int connect_pair(struct verbs *v, const struct link_peer *peer, struct ib_qp *qp, uint32_t psn, uint32_t number,
                        uint64_t value)
{
    uint32_t mtu = value >> 32 < v->mtu ? (uint32_t)(value >> 32) : v->mtu;
    struct ib_qp_attr receive = {.state = IB_RTR,
                                 .destination = number,
                                 .recv_psn = (uint32_t)value & PSN_MASK,
                                 .rnr_timer = RNR_TIMER,
                                 .atomics = {0, READS},
                                 .path_mtu = 1,
                                 .ah = verbs_way_to(v, &peer->name)};
    struct ib_qp_attr send = {
        .state = IB_RTS, .send_psn = psn, .timeout = TIMEOUT, .retries = RETRIES, .atomics = {READS, 0}};
    while (receive.path_mtu < 5 && 128u << (receive.path_mtu + 1) <= mtu)
        receive.path_mtu++;
    VK_HOLD_CANCEL;
    int error = v->lib->modify_qp(qp, &receive,
                                  IB_SET_STATE | IB_SET_AH | IB_SET_PATH_MTU | IB_SET_DESTINATION | IB_SET_RECV_PSN |
                                      IB_SET_DEST_ATOMICS | IB_SET_RNR_TIMER);
    if (error == 0)
        error = v->lib->modify_qp(qp, &send,
                                  IB_SET_STATE | IB_SET_SEND_PSN | IB_SET_TIMEOUT | IB_SET_RETRIES |
                                      IB_SET_RNR_RETRIES | IB_SET_ATOMICS);
    return error;
}

/* The field `value` of JOIN and JOINED: MTU in the upper half, first packet number in the lower one. */
static uint64_t describe(const struct verbs *v, uint32_t psn)
{
    return (uint64_t)v->mtu << 32 | psn;
}

/* ---------------------------------------------------------------- queries */

/* Returns 1 if the query is to be sent now (again), 0 if a reply may still come, -1 if there were enough. It requests
 * the next poll in the first two cases, because no other event may wake the operation that waits. A repeated query
 * keeps its nonce, so a reply to an earlier one counts. */
static int is_due(struct verbs *v, struct verbs_query *q)
{
    uint64_t now = vk_now(), wait = QUERY_FIRST << (q->n < QUERY_DOUBLED ? q->n : QUERY_DOUBLED);
    if (q->nonce && now - q->queried_at < wait) {
        link_timer(v->client, q->queried_at + wait);
        return 0;
    }
    if (q->n == MOST_QUERIES) {
        *q = (struct verbs_query){0};
        return -1;
    }
    if (q->nonce == 0)
        q->nonce = verbs_nonce();
    q->queried_at = now;
    q->n++;
    link_timer(v->client, now + 2 * wait);
    return 1;
}

/* Requests the counterpart of `out`, and makes `out` first. Random packet numbers keep packets of an earlier connection
 * between the same two queue pairs from counting as those of this one. */
static void join(struct verbs *v, struct link_peer *peer)
{
    struct verbs_pair *pair = peer->route->pair;
    int due = is_due(v, &pair->query);
    if (due > 0 && pair->out == NULL) {
        pair->out = make(v, IB_LOCAL_WRITE);
        pair->psn = (uint32_t)verbs_nonce() & PSN_MASK;
    }
    if (due < 0 || pair->out == NULL) {
        pair->refused_until = vk_now() + REFUSED;
        verbs_pair_leave(v, pair);
    } else if (due)
        verbs_call_peer(v, peer,
                        &(struct verbs_call){.what = VERBS_JOIN,
                                             .nonce = pair->query.nonce,
                                             .number = pair->out->number,
                                             .key = peer->route->qkey,
                                             .value = describe(v, pair->psn)});
}

/* Notes that the memory cannot be reached by RDMA, for a while. handle_grant() then replaces the rights. */
static void refuse_key(struct verbs_rkey *key)
{
    key->known = 1;
    key->rights = 0;
    key->until = vk_now() + REFUSED;
    key->query = (struct verbs_query){0};
}

/* Queries the key of the target's memory, or refuses it after MOST_QUERIES. */
static void query_key(struct verbs *v, struct link_peer *peer, struct verbs_rkey *key)
{
    int due = is_due(v, &key->query);
    if (due < 0)
        refuse_key(key);
    else if (due)
        verbs_call_peer(v, peer,
                        &(struct verbs_call){.what = VERBS_KEY,
                                             .nonce = key->query.nonce,
                                             .vi = key->vi,
                                             .key = key->vi_key,
                                             .number = key->handle});
}

/* Returns the entry for the memory, as used by that VI. Another one in the same place is forgotten: the table is a
 * cache with one place for each hash value. 31 spreads the VIs of a peer that use the same handle. */
static struct verbs_rkey *find_key(struct verbs_pair *pair, const struct link_rdma *r)
{
    struct verbs_rkey *key = &pair->keys[(r->handle + 31u * r->vi) & (VERBS_KEYS - 1)];
    if (vk_unlikely(key->handle != r->handle || key->vi != r->vi || key->vi_key != r->key))
        *key = (struct verbs_rkey){.handle = r->handle, .vi = r->vi, .vi_key = r->key};
    return key;
}

/* JOIN and KEY are sent at the same time, so the first operation waits for one round trip, not two. */
int verbs_pair_ready(struct verbs *v, struct link_peer *peer, const struct link_rdma *r, const struct verbs_rkey **out)
{
    int lost;
    const struct verbs_route *route = verbs_route_to(v, peer, &lost);
    if (route == NULL)
        return lost ? -EOPNOTSUPP : -EAGAIN;
    if (route->pair == NULL && (peer->route->pair = calloc(1, sizeof *route->pair)) == NULL)
        return -EOPNOTSUPP;
    struct verbs_pair *pair = route->pair;
    struct verbs_rkey *key = find_key(pair, r);
    *out = key;
    if (vk_likely(pair->joined && key->known && key->rights))
        return 0;
    uint64_t now = vk_now();
    if (pair->refused_until > now || (key->known && key->rights == 0 && key->until > now))
        return -EOPNOTSUPP;
    if (key->known && key->rights == 0)
        key->known = 0;
    if (!pair->joined)
        join(v, peer);
    if (!key->known)
        query_key(v, peer, key);
    if (pair->refused_until > now || (key->known && key->rights == 0))
        return -EOPNOTSUPP;
    return -EAGAIN;
}

/* ---------------------------------------------------------------- calls */

/* JOIN at the target. The same nonce: the reply was lost, and the queue pair exists. Another one: the peer has made a
 * new `out`, and the old `in` could not receive from it. The nonce also gives the first packet number, so a repeated
 * reply contains the same one without storing it. A reply with number 0 means that the card has no queue pair left. */
static void joined_by(struct verbs *v, struct link_peer *peer, const struct verbs_call *call)
{
    struct verbs_route *route = peer->route;
    struct verbs_call reply = {.what = VERBS_JOINED, .nonce = call->nonce};
    if (route == NULL || call->key != v->qkey || call->number > PSN_MASK ||
        (route->pair == NULL && (route->pair = calloc(1, sizeof *route->pair)) == NULL)) {
        LINK_COUNT(v->client, dropped_unknown_peer, 1);
        return;
    }
    struct verbs_pair *pair = route->pair;
    if (pair->in == NULL || pair->in_nonce != call->nonce) {
        destroy(v, &pair->in);
        pair->in_nonce = call->nonce;
        pair->in = make(v, IB_LOCAL_WRITE | IB_REMOTE_WRITE | IB_REMOTE_READ);
        if (pair->in && connect_pair(v, peer, pair->in, (uint32_t)call->nonce & PSN_MASK, call->number, call->value))
            destroy(v, &pair->in);
    }
    if (pair->in) {
        reply.number = pair->in->number;
        reply.value = describe(v, (uint32_t)call->nonce & PSN_MASK);
    }
    verbs_call_peer(v, peer, &reply);
}

/* JOINED at the initiator. Replies to an earlier JOIN, whose nonce differs, are dropped. */
static void handle_joined(struct verbs *v, struct link_peer *peer, const struct verbs_call *call)
{
    struct verbs_pair *pair = peer->route ? peer->route->pair : NULL;
    if (pair == NULL || pair->out == NULL || pair->query.nonce == 0 || pair->query.nonce != call->nonce ||
        call->number > PSN_MASK) {
        LINK_COUNT(v->client, dropped_unknown_peer, 1);
        return;
    }
    pair->query = (struct verbs_query){0};
    pair->joined = call->number && connect_pair(v, peer, pair->out, pair->psn, call->number, call->value) == 0;
    if (!pair->joined) {
        pair->refused_until = vk_now() + REFUSED;
        verbs_pair_leave(v, pair);
    }
}

/* KEY at the target. A VI that does not exist gets no reply: it may be about to. Rights 0 in the reply means refused,
 * also if the card could not register the memory. */
static void answer(struct verbs *v, struct link_peer *peer, const struct verbs_call *call)
{
    struct link_grant grant = {0};
    struct verbs_call reply = {.what = VERBS_GRANT, .nonce = call->nonce};
    int rights = link_grant(v->client, peer, call->vi, call->key, call->number, &grant);
    if (rights < 0)
        return;
    if (rights > 0 && grant.memory->mr) {
        reply.rights = (uint16_t)rights;
        reply.number = grant.memory->mr->rkey;
        reply.key = grant.len < UINT32_MAX ? (uint32_t)grant.len : UINT32_MAX; /* enough: no operation is longer */
        reply.value = grant.address;
    }
    verbs_call_peer(v, peer, &reply);
}

/* GRANT at the initiator. The nonce has 64 random bits and finds the entry. refuse_key() ends the query, and is the
 * result if the reply grants no right. */
static void handle_grant(struct verbs *v, struct link_peer *peer, const struct verbs_call *call)
{
    struct verbs_pair *pair = peer->route ? peer->route->pair : NULL;
    for (uint32_t i = 0; pair && i < VERBS_KEYS; i++) {
        struct verbs_rkey *key = &pair->keys[i];
        if (key->query.nonce == 0 || key->query.nonce != call->nonce)
            continue;
        refuse_key(key);
        key->rights = call->rights & (LINK_MAY_WRITE | LINK_MAY_READ);
        key->rkey = call->number;
        key->len = call->key;
        key->address = call->value;
        return;
    }
    LINK_COUNT(v->client, dropped_unknown_peer, 1);
}

void verbs_pair_called(struct verbs *v, struct link_peer *peer, const struct verbs_call *call)
{
    if (call->what == VERBS_JOIN)
        joined_by(v, peer, call);
    else if (call->what == VERBS_JOINED)
        handle_joined(v, peer, call);
    else if (call->what == VERBS_KEY)
        answer(v, peer, call);
    else
        handle_grant(v, peer, call);
    link_timer(v->client, 0); /* operations may wait for this */
}
