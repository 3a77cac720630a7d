/*
 * bench/ep_verbs.c - an RDMA card by libibverbs alone: the cost of the card and its driver, and the lower bound for VIA
 * on it.
 *
 * One queue pair of the reliable connected service, RC. The card segments, acknowledges and retransmits. A message is
 * either a send into a posted receive, or (options->rdma_write) an RDMA write into the peer's buffer. The write carries
 * immediate data, so that it completes a receive there: a process cannot see otherwise that a write is whole, unless it
 * reads the written memory all the time.
 *
 *      A                                  B
 *      prepare: register, SEND key  --->  receive 0         key: start and rkey of the receive buffers
 *      receive 0                    <---  SEND key
 *      run:     send or write i     --->  receive i + 1     buffer i of the peer, which has the same plan
 *
 * Each side's key is the first message of a run. It arrives in front of all others, because the service keeps the
 * order. A message that finds no posted receive is repeated by the card (rnr_retry).
 *
 * Registered memory is not inherited by children, and nothing here forks.
 *
 * Invariants. At most window + 2 requests of each kind are with the card, which has DEPTH places, so posting never
 * fails for lack of room. n_reaped <= n_sent, and n_taken <= n_posted <= n_expected.
 *
 * State of the queue pair: INIT (make_queue) --RTR, RTS: verbs_join--> ready --a failure--> error, which flushes all
 * requests. It does not come back.
 *
 * One thread has the endpoint.
 */
#include "base/explain.h"
#include "bench/bench.h"
#include "link/verbs.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 128 /* work requests of each queue: the largest window, the reply, and the key */
#define MOST_LEN (1u << 30)
#define INLINE_WANTED 64u /* bytes that travel in the work request itself */
#define TIMEOUT 14        /* 4.096 us * 2^14 = 67 ms until the card repeats (InfiniBand: Local ACK Timeout) */
#define RETRIES 7         /* the field's largest value: a peer is given up after 0.5 to 2 s (verbs_rdma.c) */
#define FOREVER 7         /* rnr_retry: as long as no receive is posted */
#define RNR_TIMER 1       /* 10 us between those */

/* A side's address, as the other side gets it. */
struct verbs_address {
    union ib_gid gid;
    uint32_t qpn, psn, mtu, unused;
};

/* Where the peer may write. */
struct verbs_key {
    uint64_t start;
    uint32_t rkey, unused;
};

typedef struct {
    bench_ep ep;
    struct verbs v;                         /* the device and what is made on it; not a link */
    bool write, has_key;                    /* messages are RDMA writes; the peer's key has arrived */
    uint32_t psn, inline_most;              /* first packet number of this side; bytes that may travel inline */
    size_t room;                            /* bytes of a receive */
    uint64_t n_sent, n_reaped;              /* messages given to the card, and those that it has completed */
    uint64_t n_expected, n_posted, n_taken; /* receives, the key's not counted */
    struct verbs_key keys[2];               /* this side's, and the peer's as it arrives */
    struct ib_mr *keys_mr;                  /* registration of keys[] */
} verbs_ep;

/* ---------------------------------------------------------------- the card */

/* A call failed with that errno. BENCH_ERROR. */
static int failed(verbs_ep *ep, const char *what, int error)
{
    return bench_fail(&ep->ep, BENCH_ERROR, "%s on %s: %s", what, ep->v.at.device, strerror(error));
}

/* Translates the status of a completion, which is not 0. Both statuses of a lost peer are BENCH_GONE: its card no
 * longer acknowledges, or the queue pair is in its error state and flushes all requests. */
static int refused(verbs_ep *ep, const char *what, int status)
{
    if (status == IB_RETRIES_EXCEEDED || status == IB_FLUSHED)
        return bench_fail(&ep->ep, BENCH_GONE, "the peer's card no longer answers (%s on %s)", what, ep->v.at.device);
    return bench_fail(&ep->ep, BENCH_ERROR, "%s on %s failed with status %d of the card", what, ep->v.at.device,
                      status);
}

/* Posts a receive of `len` bytes at `to`; NULL: for a write, which brings only its immediate data. */
static int post_receive(verbs_ep *ep, void *to, size_t len, uint32_t lkey)
{
    struct ib_sge piece = {(uint64_t)(uintptr_t)to, (uint32_t)len, lkey};
    struct ib_recv_wr wr = {.pieces = &piece, .n_pieces = to != NULL}, *bad;
    int error = ep->v.context->ops.post_recv(ep->v.qp, &wr, &bad);
    return error ? failed(ep, "posting a receive", error) : BENCH_DONE;
}

/* Posts a send of `len` bytes; with `to`, an RDMA write into the peer's receive buffers, `at` bytes from their start.
 * The immediate data is the length, because a completion of a write does not report it at the target. Every request is
 * signaled: its completion frees a place in the queue, and shows that the buffer is free. */
static int post_send(verbs_ep *ep, const void *from, size_t len, uint32_t lkey, const struct verbs_key *to, uint64_t at)
{
    struct ib_sge piece = {(uint64_t)(uintptr_t)from, (uint32_t)len, lkey};
    struct ib_send_wr wr = {.pieces = &piece, .n_pieces = len != 0, .opcode = IB_SEND, .flags = IB_SIGNALED}, *bad;
    if (len <= ep->inline_most)
        wr.flags |= IB_INLINE;
    if (to) {
        wr.opcode = IB_WRITE_IMMEDIATE;
        wr.immediate = (uint32_t)len;
        wr.remote = to->start + at;
        wr.rkey = to->rkey;
    }
    int error = ep->v.context->ops.post_send(ep->v.qp, &wr, &bad);
    return error ? failed(ep, "posting a send", error) : BENCH_DONE;
}

/* Takes the completion of the oldest receive. With `sleeps` it may wait for BENCH_SLICE_MS. Returns BENCH_DONE with *wc
 * set, BENCH_NOT_YET, or an error. */
static int take(verbs_ep *ep, struct ib_wc *wc, bool sleeps)
{
    const struct ib_context *context = ep->v.context;
    int n = context->ops.poll_cq(ep->v.recv_cq, 1, wc);
    if (n == 0 && sleeps) {
        /* A completion between the poll and the request raises no event, so the queue is polled once more. */
        struct pollfd channel = {.fd = ep->v.channel->fd, .events = POLLIN};
        struct ib_cq *cq;
        void *unused;
        context->ops.req_notify_cq(ep->v.recv_cq, 0);
        n = context->ops.poll_cq(ep->v.recv_cq, 1, wc);
        ep->ep.count[BENCH_COUNTER_system_calls] += n == 0;
        if (n == 0 && poll(&channel, 1, BENCH_SLICE_MS) == 1 &&
            ep->v.lib->get_cq_event(ep->v.channel, &cq, &unused) == 0) {
            ep->ep.count[BENCH_COUNTER_system_calls]++;
            ep->v.lib->ack_cq_events(cq, 1);
            n = context->ops.poll_cq(ep->v.recv_cq, 1, wc);
        }
    }
    if (n < 0)
        return failed(ep, "polling for a message", -n);
    return n == 0 ? BENCH_NOT_YET : wc->status ? refused(ep, "a receive", wc->status) : BENCH_DONE;
}

/* DONE if the peer's key has arrived, which precedes its messages. */
static int know_key(verbs_ep *ep)
{
    struct ib_wc wc;
    int rc = ep->has_key ? BENCH_DONE : take(ep, &wc, false);
    ep->has_key = rc == BENCH_DONE;
    return rc;
}

/* Takes completions of sends. One at a time, in the order of posting. Returns BENCH_DONE for one, or BENCH_NOT_YET, or
 * an error. */
static int reap(verbs_ep *ep)
{
    struct ib_wc wc;
    int n = ep->v.context->ops.poll_cq(ep->v.send_cq, 1, &wc);
    if (n < 0)
        return failed(ep, "polling for completions", -n);
    if (n == 0)
        return BENCH_NOT_YET;
    ep->n_reaped++;
    return wc.status ? refused(ep, ep->write ? "a write" : "a send", wc.status) : BENCH_DONE;
}

/* ---------------------------------------------------------------- the loop's operations */

/* The card acknowledges a send when the peer's card has it in memory, so a reaped send no longer uses its buffer. */
static int verbs_flush(bench_ep *base, size_t most)
{
    verbs_ep *ep = (verbs_ep *)base;
    int rc = BENCH_DONE;
    while (rc == BENCH_DONE && ep->n_sent - ep->n_reaped > most)
        rc = reap(ep);
    return rc;
}

/* The old registration ends first, because bench_buffers may replace the memory. The receive of the peer's key is
 * posted before this side's key is sent. A key that comes earlier than that is repeated by the peer's card. */
static int verbs_prepare(bench_ep *base, const bench_plan *plan)
{
    verbs_ep *ep = (verbs_ep *)base;
    base->window = bench_window(plan);
    ep->room = plan->len ? plan->len : 1;
    ep->n_sent = ep->n_reaped = ep->n_expected = ep->n_posted = ep->n_taken = 0;
    ep->has_key = false;
    if (ep->v.mr)
        ep->v.lib->dereg_mr(ep->v.mr);
    ep->v.mr = NULL;
    int rc = bench_buffers(base, plan, base->window + 2);
    if (rc < 0)
        return rc;
    ep->v.mr = ep->v.lib->reg_mr(ep->v.pd, base->buffers, base->buffers_len, IB_LOCAL_WRITE | IB_REMOTE_WRITE);
    if (ep->v.mr == NULL)
        return bench_fail(base, BENCH_ERROR,
                          "%s cannot register %zu bytes: %s. Raise the limit of locked memory (ulimit -l)",
                          ep->v.at.device, base->buffers_len, strerror(errno));
    ep->keys[0] = (struct verbs_key){.start = (uint64_t)(uintptr_t)base->receives, .rkey = ep->v.mr->rkey};
    rc = post_receive(ep, &ep->keys[1], sizeof ep->keys[1], ep->keys_mr->lkey);
    if (rc < 0)
        return rc;
    ep->n_sent++;
    return post_send(ep, &ep->keys[0], sizeof ep->keys[0], ep->keys_mr->lkey, NULL, 0);
}

/* Keeps as many receives posted as the peer may have messages under way: its window, a reply, and one to spare. A write
 * needs one, too, for its immediate data. */
static int verbs_tidy(bench_ep *base)
{
    verbs_ep *ep = (verbs_ep *)base;
    int rc = BENCH_DONE;
    while (rc == BENCH_DONE && ep->n_posted < ep->n_expected && ep->n_posted - ep->n_taken < base->window + 2) {
        void *to = ep->write ? NULL : bench_receive_buffer(base, ep->n_posted);
        rc = post_receive(ep, to, ep->room, ep->v.mr->lkey);
        ep->n_posted++;
    }
    return rc;
}

/* All of the first receives are posted before the other side may send (bench_prepare on both sides precedes bench_run).
 */
static int verbs_expect(bench_ep *base, size_t len, uint64_t n)
{
    (void)len;
    ((verbs_ep *)base)->n_expected = n;
    return verbs_tidy(base);
}

/* The key was send 0, so message i is send i + 1, and goes to the peer's buffer i. Before a write the peer's key must
 * be here. At most window + 2 requests are with the card, so the queues never overflow. */
static int verbs_send_message(bench_ep *base, size_t len)
{
    verbs_ep *ep = (verbs_ep *)base;
    int rc = ep->write ? know_key(ep) : BENCH_DONE;
    if (rc == BENCH_DONE)
        rc = verbs_flush(base, base->window + 1);
    if (rc != BENCH_DONE)
        return rc;
    uint64_t at = (uint64_t)(bench_receive_buffer(base, ep->n_sent - 1) - base->receives);
    ep->n_sent++;
    return post_send(ep, base->sbuf, len, ep->v.mr->lkey, ep->write ? &ep->keys[1] : NULL, at);
}

/* The length comes from the completion of a receive, or from the immediate data of a write. */
static int verbs_receive_message(bench_ep *base, size_t len)
{
    verbs_ep *ep = (verbs_ep *)base;
    struct ib_wc wc;
    int rc = know_key(ep);
    if (rc == BENCH_DONE)
        rc = take(ep, &wc, !base->dontwait);
    if (rc != BENCH_DONE)
        return rc;
    base->rmsg = bench_receive_buffer(base, ep->n_taken++);
    size_t got = ep->write ? wc.immediate : wc.len;
    return got == len ? BENCH_DONE : bench_wrong_length(base, got, len);
}

/* In the order that the library requires: an object is destroyed before those that it uses. Also for an endpoint that
 * was opened in part. */
static void verbs_close_all(bench_ep *base)
{
    struct verbs *v = &((verbs_ep *)base)->v;
    if (v->qp)
        v->lib->destroy_qp(v->qp);
    if (v->mr)
        v->lib->dereg_mr(v->mr);
    if (((verbs_ep *)base)->keys_mr)
        v->lib->dereg_mr(((verbs_ep *)base)->keys_mr);
    if (v->send_cq)
        v->lib->destroy_cq(v->send_cq);
    if (v->recv_cq)
        v->lib->destroy_cq(v->recv_cq);
    if (v->channel)
        v->lib->destroy_comp_channel(v->channel);
    if (v->pd)
        v->lib->dealloc_pd(v->pd);
    verbs_close_device(v);
}

/* ---------------------------------------------------------------- connecting */

/* The other side needs the queue pair's number, the first packet number, and the address of the port. Returns the
 * length. */
static int verbs_address(bench_ep *base, unsigned char *address, size_t room)
{
    verbs_ep *ep = (verbs_ep *)base;
    const struct verbs_address mine = {.gid = ep->v.at.gid, .qpn = ep->v.qp->number, .psn = ep->psn, .mtu = ep->v.mtu};
    if (room < sizeof mine)
        return bench_fail(base, BENCH_ERROR, "an address needs %zu bytes", sizeof mine);
    memcpy(address, &mine, sizeof mine);
    return (int)sizeof mine;
}

/* The two transitions that begin and end the connection: ready to receive from the peer, ready to send. The path's MTU
 * is a code: 1 for 256 bytes, each further one doubles it, up to 5 for 4096. Both sides take the smaller of their two
 * MTUs. */
static int verbs_join(bench_ep *base, const unsigned char *address, size_t len)
{
    verbs_ep *ep = (verbs_ep *)base;
    struct verbs_address peer;
    if (len != sizeof peer)
        return bench_fail(base, BENCH_ERROR, "an address of %zu bytes: expected %zu", len, sizeof peer);
    memcpy(&peer, address, sizeof peer);
    uint32_t mtu = peer.mtu < ep->v.mtu ? peer.mtu : ep->v.mtu;
    struct ib_qp_attr to_receive = {.state = IB_RTR,
                                    .destination = peer.qpn,
                                    .recv_psn = peer.psn,
                                    .rnr_timer = RNR_TIMER,
                                    .ah = {.to = peer.gid,
                                           .is_global = 1,
                                           .port = (uint8_t)ep->v.at.port,
                                           .hop_limit = 64,
                                           .from_index = (uint8_t)ep->v.at.gid_index}};
    while (to_receive.path_mtu < 5 && 128u << (to_receive.path_mtu + 1) <= mtu)
        to_receive.path_mtu++;
    int error = ep->v.lib->modify_qp(ep->v.qp, &to_receive,
                                     IB_SET_STATE | IB_SET_AH | IB_SET_PATH_MTU | IB_SET_DESTINATION | IB_SET_RECV_PSN |
                                         IB_SET_DEST_ATOMICS | IB_SET_RNR_TIMER);
    if (error)
        return failed(ep, "connecting", error);
    struct ib_qp_attr to_send = {
        .state = IB_RTS, .send_psn = ep->psn, .timeout = TIMEOUT, .retries = RETRIES, .rnr_retries = FOREVER};
    error = ep->v.lib->modify_qp(ep->v.qp, &to_send,
                                 IB_SET_STATE | IB_SET_SEND_PSN | IB_SET_TIMEOUT | IB_SET_RETRIES | IB_SET_RNR_RETRIES |
                                     IB_SET_ATOMICS);
    return error ? failed(ep, "connecting", error) : BENCH_DONE;
}

static const bench_ops verbs_ops = {
    .name = "verbs",
    .max_len = MOST_LEN,
    .address = verbs_address,
    .join = verbs_join,
    .prepare = verbs_prepare,
    .expect = verbs_expect,
    .send = verbs_send_message,
    .recv = verbs_receive_message,
    .tidy = verbs_tidy,
    .flush = verbs_flush,
    .close = verbs_close_all,
};

/* Makes the queue pair, ready to be connected. Returns what could not be made, or NULL. */
static const char *make_queue(verbs_ep *ep)
{
    struct verbs *v = &ep->v;
    v->pd = v->lib->alloc_pd(v->context);
    v->channel = v->lib->create_comp_channel(v->context);
    if (v->pd == NULL || v->channel == NULL)
        return "a protection domain";
    v->recv_cq = v->lib->create_cq(v->context, DEPTH, NULL, v->channel, 0);
    v->send_cq = v->lib->create_cq(v->context, DEPTH, NULL, NULL, 0);
    if (v->recv_cq == NULL || v->send_cq == NULL)
        return "a completion queue";
    ep->keys_mr = v->lib->reg_mr(v->pd, ep->keys, sizeof ep->keys, IB_LOCAL_WRITE);
    if (ep->keys_mr == NULL)
        return "a memory region";
    struct ib_qp_init init = {.send_cq = v->send_cq, .recv_cq = v->recv_cq, .type = IB_QP_RC};
    init.cap = (struct ib_qp_cap){DEPTH, DEPTH, 1, 1, INLINE_WANTED};
    v->qp = v->lib->create_qp(v->pd, &init);
    if (v->qp == NULL) { /* a card without inline data refuses it */
        init.cap = (struct ib_qp_cap){DEPTH, DEPTH, 1, 1, 0};
        v->qp = v->lib->create_qp(v->pd, &init);
    }
    if (v->qp == NULL)
        return "a queue pair";
    ep->inline_most = init.cap.inline_data;
    struct ib_qp_attr attr = {
        .state = IB_INIT, .port = (uint8_t)v->at.port, .access = IB_LOCAL_WRITE | IB_REMOTE_WRITE};
    errno = v->lib->modify_qp(v->qp, &attr, IB_SET_STATE | IB_SET_PKEY | IB_SET_PORT | IB_SET_ACCESS);
    return errno ? "a queue pair that is initialised" : NULL;
}

/* The device may be a name of libibverbs, with a port and an index of its addresses (link/verbs.h). Any failure closes
 * what was made. */
BENCH_OPEN(verbs)
{
    verbs_ep *ep = bench_ep_new(sizeof *ep, &verbs_ops, options->polled, error);
    if (!ep)
        return NULL;
    ep->write = options->rdma_write;
    if (verbs_open_device(&ep->v, options->device) < 0)
        return bench_ep_fail(&ep->ep, error, "%s", vk_explanation());
    const char *missing = make_queue(ep);
    if (missing)
        return bench_ep_fail(&ep->ep, error, "%s has no room for %s: %s", ep->v.at.device, missing, strerror(errno));
    /* 24 bits that differ from connection to connection, so that late packets of an earlier one are not accepted. */
    ep->psn = (uint32_t)(bench_ticks() >> 4) & 0xFFFFFF;
    return &ep->ep;
}
