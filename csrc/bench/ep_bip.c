/*
 * bench/ep_bip.c - BIP between two ranks, on any link. The two sides are ranks 0 and 1 of a job of their own, connected
 * by cards that the caller exchanges.
 *
 * BIP has one send outstanding and one receive for each tag (Prylli and Tourancheau, section 3), so there is no window.
 * A stream is one message after the other, and BIP's own credits are its flow control.
 *
 *     send_id   the send under way, -1 none. The next one begins when it is done.
 *     recv_id   the posted receive, -1 none. n_posted counts them, and never exceeds n_expected.
 *
 * A receive is posted as soon as the loop has read the previous message, so that long messages find one. BIP supports
 * ordinary memory only.
 *
 * One thread has the endpoint and the job. Invariant between runs: send_id is -1 or a send that is done, and recv_id is
 * -1.
 */
#include "base/text.h"
#include "bench/bench.h"
#include "bip/job.h"
#include "viakit.h"

typedef struct {
    bench_ep ep;
    bip_job *job;
    int peer;             /* its rank: 0 or 1 */
    int send_id, recv_id; /* -1: none */
    uint64_t n_expected, n_posted;
    size_t room; /* bytes of a receive: the plan's length, 1 at least */
} bip_ep;

/* Report a lost rank separately from all other errors, because the loop's caller handles it differently. */
static int failed(bip_ep *ep, int code)
{
    int status = code == BIP_ERR_PEER || code == BIP_ERR_LEFT ? BENCH_GONE : BENCH_ERROR;
    return bench_fail(&ep->ep, status, "bip: %s", bip_error(ep->job));
}

/* No send or receive of an earlier run is left: flush has reaped the send, and exactly as many receives were posted as
 * messages came. Window 0 (ep->window is not set): BIP controls its flow. */
static int ep_prepare(bench_ep *base, const bench_plan *plan)
{
    bip_ep *ep = (bip_ep *)base;
    int rc = bench_buffers(base, plan, 1);
    ep->send_id = ep->recv_id = -1;
    ep->n_expected = ep->n_posted = 0;
    ep->room = plan->len ? plan->len : 1;
    return rc;
}

/* Post the next receive, if none is posted and one is still expected. */
static int post(bip_ep *ep)
{
    if (ep->recv_id >= 0 || ep->n_posted == ep->n_expected)
        return BENCH_DONE;
    ep->recv_id = bip_irecv_bytes(ep->job, 0, bench_receive_buffer(&ep->ep, ep->n_posted), ep->room);
    if (ep->recv_id < 0)
        return failed(ep, ep->recv_id);
    ep->n_posted++;
    return BENCH_DONE;
}

/* Replies and credits of 1 byte come through the same receives, which have space for the plan's length. */
static int ep_expect(bench_ep *base, size_t len, uint64_t n)
{
    bip_ep *ep = (bip_ep *)base;
    (void)len;
    ep->n_expected = n;
    return post(ep);
}

/* Begin a send, once the previous send is done. */
static int ep_send(bench_ep *base, size_t len)
{
    bip_ep *ep = (bip_ep *)base;
    if (ep->send_id >= 0) {
        int code = bip_stest_id(ep->job, ep->send_id);
        if (code < 0)
            return failed(ep, code);
        if (code == 0) {
            if (!base->dontwait)
                bip_idle(ep->job, 1);
            return BENCH_NOT_YET;
        }
    }
    ep->send_id = bip_isend_bytes(ep->job, ep->peer, 0, base->sbuf, len);
    return ep->send_id < 0 ? failed(ep, ep->send_id) : BENCH_DONE;
}

/* The message that has arrived is number n_posted - 1: the next receive is posted later (ep_tidy). */
static int ep_recv(bench_ep *base, size_t len)
{
    bip_ep *ep = (bip_ep *)base;
    size_t got = 0;
    int node, rc = post(ep);
    if (rc < 0)
        return rc;
    int code = bip_rtest_id(ep->job, ep->recv_id, &got, &node);
    if (code == 0 && !base->dontwait) {
        bip_idle(ep->job, BENCH_SLICE_MS);
        code = bip_rtest_id(ep->job, ep->recv_id, &got, &node);
    }
    if (code == 0 && (code = bip_receive_error(ep->job)) == 0)
        return BENCH_NOT_YET;
    ep->recv_id = -1;
    if (code < 0)
        return failed(ep, code);
    if (got != len)
        return bench_wrong_length(base, got, len);
    base->rmsg = bench_receive_buffer(base, ep->n_posted - 1);
    return BENCH_DONE;
}

/* Post the next receive, off the critical path, while the reply is under way. BIP's sends need no reaping. */
static int ep_tidy(bench_ep *base)
{
    return post((bip_ep *)base);
}

/* A long send is done when the receiver has all of it, a short one when it was accepted. */
static int ep_flush(bench_ep *base, size_t most)
{
    bip_ep *ep = (bip_ep *)base;
    if (ep->send_id < 0 || most)
        return BENCH_DONE;
    int code = bip_stest_id(ep->job, ep->send_id);
    if (code == 0) {
        if (!base->dontwait)
            bip_idle(ep->job, 1);
        return BENCH_NOT_YET;
    }
    ep->send_id = -1;
    return code < 0 ? failed(ep, code) : BENCH_DONE;
}

/* Sleep on the NIC's receive queue. Sends under way do not wake it, so the sleep is short meanwhile (sleep_for in
 * bip/progress.c). */
static void ep_idle(bench_ep *base, bool want_send)
{
    (void)want_send;
    bip_idle(((bip_ep *)base)->job, BENCH_SLICE_MS);
}

/* Wait at most one second for the other side to leave, too. */
static void ep_close(bench_ep *base)
{
    bip_ep *ep = (bip_ep *)base;
    if (ep->job)
        bip_close(ep->job, 1000);
}

static const bench_ops ep_ops = {
    .name = "bip",
    .min_len = 0,
    .max_len = (size_t)1 << 30,
    .prepare = ep_prepare,
    .expect = ep_expect,
    .send = ep_send,
    .recv = ep_recv,
    .tidy = ep_tidy,
    .flush = ep_flush,
    .idle = ep_idle,
    .close = ep_close,
};

bench_ep *bench_bip_open(const bench_bip_options *options, char *error)
{
    bip_ep *ep = bench_ep_new(sizeof *ep, &ep_ops, options->polled, error);
    if (!ep)
        return NULL;
    /* All fields not named here keep BIP's defaults. small and packet 0 select the calibrated values. */
    bip_options o = {.size = sizeof o,
                     .rank = options->side,
                     .n_ranks = 2,
                     .job = options->job,
                     .local_device = options->device,
                     .small = options->small,
                     .packet = options->packet,
                     .unreliable = options->unreliable,
                     .blocking = !options->polled,
                     /* Blocking: do not poll before sleeping unless requested, so that the measurement is of
                      * sleeping. */
                     .spin_us = options->spin_us > 0 ? options->spin_us : -1,
                     .mtu = (int)options->mtu,
                     .form = (int)options->form,
                     .go_back_n = (int)options->retransmission,
                     .crc_always = options->checksum == VIAKIT_CHECKSUM_CRC,
                     .faults = options->faults,
                     .secret = options->secret};
    ep->peer = 1 - options->side;
    ep->send_id = ep->recv_id = -1;
    if (bip_open(&o, &ep->job, error) != 0) {
        ep->job = NULL;
        bench_close(&ep->ep);
        return NULL;
    }
    return &ep->ep;
}

/* Write this side's card for the other side. Both cards are then passed to bench_bip_connect, in the order of ranks. */
int bench_bip_card(bench_ep *base, unsigned char *card, size_t room)
{
    if (room < BIP_CARD_LEN)
        return bench_fail(base, BENCH_ERROR, "no room for a card");
    bip_card(((bip_ep *)base)->job, card);
    return BIP_CARD_LEN;
}

/* One call for each job: connecting makes buffers, so it cannot be repeated. NOT_YET: the deadline has passed, and the
 * endpoint can only be closed. */
int bench_bip_connect(bench_ep *base, const unsigned char *cards, int timeout_ms)
{
    bip_ep *ep = (bip_ep *)base;
    int code = bip_connect(ep->job, cards, timeout_ms);
    return code == BIP_ERR_TIMEOUT ? BENCH_NOT_YET : code ? failed(ep, code) : BENCH_DONE;
}

/* The NIC's values as in bench_via_describe, and BIP's own. */
int bench_bip_describe(bench_ep *base, size_t len, char *text, size_t room)
{
    bip_ep *ep = (bip_ep *)base;
    struct vk_text t = {text, room, 0};
    int rc = bench_nic_describe(base, bip_nic(ep->job, ep->peer), &t);
    vk_put(&t, "small=%zu\npacket=%zu\n", bip_small(ep->job, ep->peer), bip_packet(ep->job, ep->peer, len));
    return rc < 0 ? rc : (int)t.len;
}

/* Those of the NIC by which the two ranks are connected. */
int bench_bip_counters(bench_ep *base, uint64_t *values, int n)
{
    bip_ep *ep = (bip_ep *)base;
    return bench_nic_counters(bip_nic(ep->job, ep->peer), values, n);
}
