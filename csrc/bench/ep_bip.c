/*
 * bench/ep_bip.c - BIP between two ranks, on any link: the two sides are ranks 0 and 1 of a job of their own,
 * connected by the cards that whoever drives them exchanges.
 *
 * BIP has one send outstanding and one receive for each tag (section 3 of the paper), so there is no window: a
 * stream is one message after the other, and BIP's own credits are its flow control.
 *
 *     send_id   the send under way, -1 none; the next one begins when it is done
 *     recv_id   the receive that is posted, -1 none; n_posted counts them, and is never more than n_expected
 *
 * A receive is posted as soon as the one before it has been taken, so that long messages find one; its buffer
 * alternates between two, so that the message handed to the loop stays valid meanwhile.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plural.h"
#include "bench/bench.h"
#include "bip/job.h"
#include "viakit.h"

typedef struct {
    bench_ep ep;
    bip_job *job;
    int peer;
    int send_id, recv_id; /* -1: none */
    uint64_t n_expected, n_posted;
    size_t room;
} bip_ep;

/* A rank that is gone is told apart from everything else: the loop's caller reports it otherwise. */
static int failed(bip_ep *ep, int code)
{
    int status = code == BIP_ERR_PEER || code == BIP_ERR_LEFT ? BENCH_GONE : BENCH_ERROR;
    return bench_fail(&ep->ep, status, "bip: %s", bip_error(ep->job));
}

/* Two receive buffers, for BIP's one receive is posted again while the loop still looks at the last message. */
static int ep_prepare(bench_ep *base, const bench_plan *plan)
{
    bip_ep *ep = (bip_ep *)base;
    int rc = bench_buffers(base, plan, 2);
    ep->send_id = ep->recv_id = -1;
    ep->n_expected = ep->n_posted = 0;
    ep->room = plan->len ? plan->len : 1;
    return rc;
}

/* The next receive, if there is none and one is still to come. */
static int post(bip_ep *ep)
{
    if (ep->recv_id >= 0 || ep->n_posted == ep->n_expected)
        return BENCH_DONE;
    ep->recv_id = bip_irecv_bytes(ep->job, 0, ep->ep.rbuf + ep->n_posted % 2 * ep->ep.stride, ep->room);
    if (ep->recv_id < 0)
        return failed(ep, ep->recv_id);
    ep->n_posted++;
    return BENCH_DONE;
}

/* Answers and credits of 1 byte come through the same receives, whose room is the plan's length. */
static int ep_expect(bench_ep *base, size_t len, uint64_t n)
{
    bip_ep *ep = (bip_ep *)base;
    (void)len;
    ep->n_expected = n;
    return post(ep);
}

/* A send is one message begun; it is done when the one before it is. */
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

/* What has been received is number n_posted - 1, for the next receive is posted later (ep_tidy): its parity says in
 * which of the two buffers it lies. */
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
    if (code == 0)
        return BENCH_NOT_YET;
    ep->recv_id = -1;
    if (code < 0)
        return failed(ep, code);
    if (got != len)
        return bench_fail(base, BENCH_ERROR, "a message of %zu byte%s arrived where one of %zu was due", got, vk_s(got),
                          len);
    base->rmsg = base->rbuf + (ep->n_posted - 1) % 2 * base->stride;
    return BENCH_DONE;
}

/* Off the path: the next receive is posted while the answer is on its way. BIP's sends need no reaping. */
static int ep_tidy(bench_ep *base)
{
    return post((bip_ep *)base);
}

/* A long send is done when the receiver has all of it; a short one when there was room for it. */
static int ep_flush(bench_ep *base)
{
    bip_ep *ep = (bip_ep *)base;
    if (ep->send_id < 0)
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

/* Sleeps at the NIC's queue of receives; while sends are under way, which do not wake it, shortly (bip_sleep). */
static void ep_idle(bench_ep *base, bool want_send)
{
    (void)want_send;
    bip_idle(((bip_ep *)base)->job, BENCH_SLICE_MS);
}

/* Waits a second at most for the other side to leave, too. */
static void ep_close(bench_ep *base)
{
    bip_ep *ep = (bip_ep *)base;
    if (ep->job)
        bip_close(ep->job, 1000);
    bench_buffers_release(base);
    free(ep);
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
    bip_ep *ep = bench_ep_new(sizeof *ep, &ep_ops, options->polled);
    if (!ep) {
        snprintf(error, BENCH_ERROR_LEN, "no memory");
        return NULL;
    }
    /* Whatever is not named here is BIP's default; small and packet 0 are the calibrated ones. */
    bip_options o = {.size = sizeof o,
                     .rank = options->side,
                     .n_ranks = 2,
                     .job = options->job,
                     .local_device = options->device,
                     .small = options->small,
                     .packet = options->packet,
                     .blocking = !options->polled,
                     /* Blocking: not to poll before it sleeps unless asked, so that sleeping is what is
                      * measured. */
                     .spin_us = options->spin_us > 0 ? options->spin_us : -1,
                     .mtu = (int)options->mtu,
                     .form = (int)options->form,
                     .go_back_n = (int)options->retransmission,
                     .crc_always = options->checksum == VIAKIT_CHECKSUM_CRC,
                     .faults = options->faults};
    ep->peer = 1 - options->side;
    ep->send_id = ep->recv_id = -1;
    if (bip_open(&o, &ep->job, error) != 0) {
        ep->job = NULL;
        ep_close(&ep->ep);
        return NULL;
    }
    return &ep->ep;
}

/* Our card for the other side; both are then given to bench_bip_connect, ours and theirs in the order of ranks. */
int bench_bip_card(bench_ep *base, unsigned char *card, size_t room)
{
    if (room < BIP_CARD_LEN)
        return bench_fail(base, BENCH_ERROR, "no room for a card");
    bip_card(((bip_ep *)base)->job, card);
    return BIP_CARD_LEN;
}

/* NOT_YET as long as the other side has not come; to be called again with the same cards. */
int bench_bip_connect(bench_ep *base, const unsigned char *cards, int timeout_ms)
{
    bip_ep *ep = (bip_ep *)base;
    int code = bip_connect(ep->job, cards, timeout_ms);
    return code == BIP_ERR_TIMEOUT ? BENCH_NOT_YET : code ? failed(ep, code) : BENCH_DONE;
}

/* One "name=value" per line: the NIC's of bench_via_describe, and BIP's own. */
int bench_bip_describe(bench_ep *base, size_t len, char *text, size_t room)
{
    bip_ep *ep = (bip_ep *)base;
    viakit_nic_info info;
    memset(&info, 0, sizeof info);
    if (viakit_query_nic(bip_nic(ep->job, ep->peer), &info) != VIP_SUCCESS)
        return bench_fail(base, BENCH_ERROR, "bip: %s", viakit_last_error());
    return snprintf(
        text, room,
        "link=%s\ndevice=%s\ninterface=%s\nform=%s\nmtu=%u\nmax_payload=%u\nsuper_payload=%u\nring_slots=%u\n"
        "nic_window=%u\nbytes_registered=%llu\nbytes_pinned=%llu\ncma=%d\nsmall=%zu\npacket=%zu\n",
        info.link, info.device, info.interface, info.form, info.mtu, info.max_payload, info.super_payload,
        info.ring_slots, info.window, (unsigned long long)info.bytes_registered, (unsigned long long)info.bytes_pinned,
        info.cma, bip_small(ep->job, ep->peer), bip_packet(ep->job, ep->peer, len));
}

/* Of the NIC, all that there are; returns how many those are, and fills at most n. */
int bench_bip_counters(bench_ep *base, uint64_t *values, int n)
{
    VIP_UINT64 all[VIAKIT_N_COUNTERS] = {0};
    bip_ep *ep = (bip_ep *)base;
    viakit_nic_counters(bip_nic(ep->job, ep->peer), all);
    for (int i = 0; i < n && i < VIAKIT_N_COUNTERS; i++)
        values[i] = all[i];
    return VIAKIT_N_COUNTERS;
}
