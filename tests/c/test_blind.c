/*
 * test_blind.c - links that fill because the other side does not look: test_blind LINK [CASE...], see harness.h for
 * LINK.
 *
 * Sends wait for room. Meanwhile their memory goes away, the time to retransmit them comes, or what was posted behind
 * them could overtake them. The NICs have no thread, so a side that makes no call of VIPL does not poll its link. By
 * exchange_blind() the two sides use the control channel without polling. These cases run without faults, because
 * faults would change the results that are checked here.
 */
#include <string.h>
#include <sys/mman.h>

#include "harness.h"

#define RELIABLE(level) ((level) != VIP_SERVICE_UNRELIABLE)

/* Exchanges a number with the other side, as side_exchange does, but without polling the link meanwhile. */
static uint64_t exchange_blind(side *s, uint64_t own)
{
    int no_thread = s->options.no_thread;
    uint64_t remote;
    CHECK(no_thread);
    s->options.no_thread = 0; /* as if the NIC had a thread that does it */
    remote = side_exchange(s, own);
    s->options.no_thread = no_thread;
    return remote;
}

/* ---- taken_away: the memory of a send that waits for a full link or window goes away before its turn comes */

#define FILLERS 300 /* receives at B; no window and no ring holds so many of A's messages */

typedef enum { ALONE, BEHIND, BEHIND_IN_TWO, N_PLACES } place; /* of the victim, when its memory goes */

/* Sent frames must not be retransmitted, because their memory is gone, too: five seconds are longer than the case
 * takes. */
static void patient(viakit_nic_options *o)
{
    o->rto_us = 5000000;
}

/* Either the link or the peer's window was full; on each link it is another one that fills first. */
static uint64_t stalls(side *s)
{
    return nic_counter(s, VIAKIT_COUNTER_send_stalls) + nic_counter(s, VIAKIT_COUNTER_window_stalls);
}

/* Messages long enough to fill a ring soon, and short enough to be sent in the quickest way where a link has one. */
static size_t filler_len(const side *s)
{
    return s->link->kind == ON_LOOP ? 8000 : s->link->kind == ON_SHM ? 900 : 200;
}

/* Posts until a message stays: that one, fillers[n - 1], is the first to go when there is room again. Returns n. */
static size_t fill(endpoint *e, VIP_DESCRIPTOR **fillers, void *data, VIP_MEM_HANDLE handle)
{
    size_t n = 0;
    for (uint64_t before = stalls(e->s); stalls(e->s) == before; n++) {
        /* If nothing stalls after so many, the case would test nothing. */
        CHECK(n < FILLERS);
        prep_send(e, fillers[n] = descriptor(e, 2), data, filler_len(e->s));
        fillers[n]->DS[0].Local.Handle = handle;
        post_send(e, fillers[n]);
    }
    return n;
}

/* A: fills the link to B, which does not poll, queues the victim behind it, and takes its memory away. */
static void taken_away_a(side *s, VIP_RELIABILITY_LEVEL level, place where)
{
    endpoint e;
    VIP_DESCRIPTOR *fillers[FILLERS + 1], *good;
    VIP_MEM_ATTRIBUTES attr;
    VIP_MEM_HANDLE handle;
    size_t n, len = 8192;
    uint8_t *memory = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    endpoint_open(&e, s, level, 262144);
    memset(&attr, 0, sizeof(attr));
    attr.Ptag = e.ptag;
    CHECK_OK(VipRegisterMem(s->nic, memory, len, &attr, &handle));
    good = prep_send(&e, descriptor(&e, 1), buffer(&e, 100), 100);
    endpoint_connect(&e, "taken away");
    side_exchange(s, 0);
    /* ALONE: the victim is what filled the way, the last of the fillers. Else it stands behind that one, by itself or
     * with two segments, as the shortest messages take a quicker way to the link than those of several segments. */
    if (where == ALONE) {
        n = fill(&e, fillers, memory, handle) - 1;
    } else {
        n = fill(&e, fillers, buffer(&e, filler_len(s)), e.mh);
        prep_send(&e, fillers[n] = descriptor(&e, 2), memory, 64);
        fillers[n]->DS[0].Local.Handle = handle;
        if (where == BEHIND_IN_TWO) {
            fillers[n]->DS[1].Local = fillers[n]->DS[0].Local;
            fillers[n]->CS.SegCount = 2;
            fillers[n]->CS.Length = 128;
        }
        post_send(&e, fillers[n]);
    }
    /* Removed as programs do it: first deregistered, then unmapped. An access now faults. */
    CHECK_OK(VipDeregisterMem(s->nic, memory, handle));
    munmap(memory, len);
    side_exchange(s, n);
    for (size_t i = 0; i < n; i++)
        reap_send(&e, fillers[i], VIP_STATUS_OP_SEND);
    reap_send(&e, fillers[n], VIP_STATUS_OP_SEND | VIP_STATUS_PROTECTION_ERROR);
    /* The victim has failed. The effect on the connection depends on the level. */
    post_send(&e, good);
    reap_send(&e, good, VIP_STATUS_OP_SEND | (RELIABLE(level) ? VIP_STATUS_DESC_FLUSHED_ERROR : 0));
    CHECK_EQ(vi_state(e.vi), RELIABLE(level) ? VIP_STATE_ERROR : VIP_STATE_CONNECTED);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void taken_away_b(side *s, VIP_RELIABILITY_LEVEL level)
{
    endpoint e;
    VIP_DESCRIPTOR *receives[FILLERS + 1];
    uint8_t *data;
    size_t n;
    int lost = error_count(s, VIP_ERROR_CONN_LOST);
    endpoint_open(&e, s, level, 262144);
    data = buffer(&e, filler_len(s));
    for (size_t i = 0; i <= FILLERS; i++)
        post_recv(&e, receives[i] = prep_recv(&e, descriptor(&e, 1), data, filler_len(s)));
    endpoint_connect(&e, "taken away");
    /* B looks at nothing until A has taken the memory away. */
    exchange_blind(s, 0); /* A is connected, and begins */
    n = exchange_blind(s, 0);
    for (size_t i = 0; i < n; i++)
        reap_recv(&e, receives[i], VIP_STATUS_OP_RECEIVE);
    if (RELIABLE(level)) {
        wait_error(s, VIP_ERROR_CONN_LOST, lost + 1);
        wait_state(&e, VIP_STATE_ERROR);
    } else {
        reap_recv(&e, receives[n], VIP_STATUS_OP_RECEIVE);
        CHECK_EQ(receives[n]->CS.Length, 100);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void taken_away_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++)
        for (place where = ALONE; where < N_PLACES; where++) {
            if (s->link->kind >= ON_ETH && !RELIABLE(s->levels[i]))
                continue; /* a link without a reader is never full */
            if (s->role == SIDE_A)
                taken_away_a(s, s->levels[i], where);
            else
                taken_away_b(s, s->levels[i]);
        }
}

/* ---- broken_by_ack: a send whose memory is gone waits behind a good one. The frame that acknowledges the good one
 * breaks the connection. The rest of that frame is not taken any more, so no receive is missed that was flushed a
 * moment before. */

static void broken_by_ack_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *good, *spoilt, *receive;
    VIP_MEM_ATTRIBUTES attr;
    VIP_MEM_HANDLE handle;
    int empty = error_count(s, VIP_ERROR_RECVQ_EMPTY);
    uint8_t *memory = malloc(100);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 65536);
    memset(&attr, 0, sizeof(attr));
    attr.Ptag = e.ptag;
    CHECK_OK(VipRegisterMem(s->nic, memory, 100, &attr, &handle));
    good = prep_send(&e, descriptor(&e, 1), buffer(&e, 100), 100);
    spoilt = prep_send(&e, descriptor(&e, 1), memory, 100);
    spoilt->DS[0].Local.Handle = handle;
    receive = prep_recv(&e, descriptor(&e, 2), buffer(&e, 50), 50); /* of two segments: it goes the long way */
    receive->DS[1].Local = receive->DS[0].Local;
    receive->CS.SegCount = 2;
    receive->CS.Length = 100;
    post_recv(&e, receive);
    endpoint_connect(&e, "broken by ack");
    exchange_blind(s, 0);
    post_send(&e, good);
    /* Deferred, so that it is posted, and its memory gone, before it could leave. */
    CHECK_OK(VipPostDeferredSends(e.vi, VIP_TRUE, NULL));
    post_send(&e, spoilt);
    CHECK_OK(VipDeregisterMem(s->nic, memory, handle));
    CHECK_OK(VipPostDeferredSends(e.vi, VIP_FALSE, NULL));
    exchange_blind(s, 0);
    exchange_blind(s, 0); /* B has taken the good one and sent */
    reap_send(&e, good, VIP_STATUS_OP_SEND);
    reap_send(&e, spoilt, VIP_STATUS_OP_SEND | VIP_STATUS_PROTECTION_ERROR);
    reap_recv(&e, receive, VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
    /* B's frame had a message for A as well. The connection was broken by the frame's acknowledgement, so it was
     * dropped with the connection, not for want of a receive. */
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_dropped_no_descriptor), 0);
    CHECK_EQ(error_count(s, VIP_ERROR_RECVQ_EMPTY), empty);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    free(memory);
}

static void broken_by_ack_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *receive, *reply;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 65536);
    post_recv(&e, receive = prep_recv(&e, descriptor(&e, 1), buffer(&e, 100), 100));
    reply = prep_send(&e, descriptor(&e, 1), buffer(&e, 100), 100);
    endpoint_connect(&e, "broken by ack");
    exchange_blind(s, 0);
    exchange_blind(s, 0);
    reap_recv(&e, receive, VIP_STATUS_OP_RECEIVE);
    post_send(&e, reply); /* and the acknowledgement with it */
    exchange_blind(s, 0);
    reap_send(&e, reply, VIP_STATUS_OP_SEND | VIP_STATUS_DESC_FLUSHED_ERROR);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- writes_in_order: who sees the second RDMA write has the first one, whichever way each of them goes */

/* Without it the bulk would go by process_vm_writev, as direct as the flag. */
static void no_cma(viakit_nic_options *o)
{
    o->no_cma = 1;
}

#define BULK 20000

static void writes_in_order_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *bulk, *flag;
        uint64_t target[4];
        uint8_t *data, *one;
        endpoint_open(&e, s, s->levels[i], 65536);
        pattern_fill(data = buffer(&e, BULK), BULK, 7);
        memset(one = buffer(&e, 8), 1, 8);
        endpoint_connect(&e, "in order");
        /* Address and handle of both places. */
        for (int k = 0; k < 4; k++)
            target[k] = side_exchange(s, 0);
        bulk = prep_write(&e, descriptor(&e, 2), data, BULK, target[0], (VIP_MEM_HANDLE)target[1]);
        flag = prep_write(&e, descriptor(&e, 2), one, 8, target[2], (VIP_MEM_HANDLE)target[3]);
        post_send(&e, bulk);
        post_send(&e, flag);
        side_exchange(s, 0);
        reap_send(&e, bulk, VIP_STATUS_OP_RDMA_WRITE);
        reap_send(&e, flag, VIP_STATUS_OP_RDMA_WRITE);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* The bulk goes into ordinary memory, which its sender cannot reach; the flag into memory that it can. */
static void writes_in_order_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_MEM_ATTRIBUTES attr;
        VIP_MEM_HANDLE bulk_handle, flag_handle;
        uint8_t *bulk = calloc(1, BULK);
        void *memory;
        volatile uint64_t *flag;
        double end = check_now() + CHECK_WAIT_S;
        endpoint_open(&e, s, s->levels[i], 65536);
        CHECK(bulk != NULL);
        CHECK_OK(viakit_alloc(s->nic, 4096, &memory));
        memset(memory, 0, 4096);
        flag = memory;
        memset(&attr, 0, sizeof(attr));
        attr.Ptag = e.ptag;
        attr.EnableRdmaWrite = VIP_TRUE;
        CHECK_OK(VipRegisterMem(s->nic, bulk, BULK, &attr, &bulk_handle));
        CHECK_OK(VipRegisterMem(s->nic, memory, 4096, &attr, &flag_handle));
        endpoint_connect(&e, "in order");
        side_exchange(s, (uintptr_t)bulk);
        side_exchange(s, bulk_handle);
        side_exchange(s, (uintptr_t)memory);
        /* B's last number, and from here on it does not look until A has posted both. */
        exchange_blind(s, flag_handle);
        exchange_blind(s, 0); /* both are posted, and B has not looked at the link since */
        /* Polled, so that the bulk's frames are taken at last; the flag must not be seen before. */
        while (!*flag) {
            CHECK(check_now() < end);
            CHECK_OK(viakit_poll(s->nic, NULL));
        }
        pattern_check(bulk, BULK, 7);
        endpoint_disconnect(&e);
        CHECK_OK(VipDeregisterMem(s->nic, memory, flag_handle));
        CHECK_OK(VipDeregisterMem(s->nic, bulk, bulk_handle));
        CHECK_OK(viakit_free(s->nic, memory));
        endpoint_close(&e);
        free(bulk);
    }
}

/* ---- target_leaves: a write completes although its target makes no call after it has seen the data */

static void target_leaves_a(side *s)
{
    if (!s->link->about->lossless)
        return; /* there the target's NIC needs its thread for acknowledgements */
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d;
        endpoint_open(&e, s, s->levels[i], 65536);
        d = descriptor(&e, 2);
        uint8_t *data = buffer(&e, BULK);
        pattern_fill(data, BULK, 9);
        endpoint_connect(&e, "target leaves");
        uint64_t target = side_exchange(s, 0), handle = side_exchange(s, 0);
        post_send(&e, prep_write(&e, d, data, BULK, target, (VIP_MEM_HANDLE)handle));
        side_exchange(s, 0); /* B has seen the data, and does not look at the link any more */
        reap_send(&e, d, VIP_STATUS_OP_RDMA_WRITE);
        side_exchange(s, 0);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

static void target_leaves_b(side *s)
{
    if (!s->link->about->lossless)
        return;
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        double end = check_now() + CHECK_WAIT_S;
        endpoint_open(&e, s, s->levels[i], 65536);
        uint8_t *to = buffer(&e, BULK), *expected = buffer(&e, BULK);
        pattern_fill(expected, BULK, 9);
        endpoint_connect(&e, "target leaves");
        side_exchange(s, (uintptr_t)to);
        side_exchange(s, e.mh);
        while (memcmp(to, expected, BULK) != 0) { /* no poll after the one that brings the last frame */
            CHECK(check_now() < end);
            CHECK_OK(viakit_poll(s->nic, NULL));
        }
        exchange_blind(s, 0);
        exchange_blind(s, 0); /* A's write is complete */
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- read_waits: a read whose request cannot be retransmitted because the link is full does not count as
 * unanswered */

/* Given up after two time-outs, without probes of an idle peer meanwhile. */
static void set_short_timeouts(viakit_nic_options *o)
{
    o->rto_us = 2000;
    o->max_retries = 2;
    o->keepalive_ms = 3600000;
}

/* Both sides, before they connect: then a link that loses nothing runs the whole protocol, time-outs too. */
static void lossy(side *s)
{
    viakit_faults none = VIAKIT_FAULTS_INIT;
    CHECK_OK(viakit_set_faults(s->nic, &none));
}

static void read_waits_a(side *s)
{
    endpoint e, other;
    VIP_DESCRIPTOR *d, *filler;
    uint8_t *data, *word;
    if (s->link->kind >= ON_ETH)
        return; /* a link without a reader is never full */
    lossy(s);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_open(&other, s, VIP_SERVICE_UNRELIABLE, 65536);
    d = descriptor(&e, 2);
    data = buffer(&e, 64);
    filler = descriptor(&other, 2);
    word = buffer(&other, 8);
    endpoint_connect(&e, "read waits");
    endpoint_connect(&other, "the other");
    uint64_t at = side_exchange(s, 0), handle = side_exchange(s, 0);
    uint64_t spot = side_exchange(s, 0), spot_handle = side_exchange(s, 0); /* from here on B does not look */
    /* The read is requested, and then the link is filled: by another connection, which waits for no acknowledgement,
     * and by frames that are shorter than a request. */
    prep_write(&e, d, data, 64, at, (VIP_MEM_HANDLE)handle);
    d->CS.Control = VIP_CONTROL_OP_RDMAREAD;
    post_send(&e, d);
    for (uint64_t before = stalls(s), n = 0; stalls(s) == before; n++) {
        CHECK(n < 1000000);
        if (n)
            reap_send(&other, filler, VIP_STATUS_OP_RDMA_WRITE);
        post_send(&other, prep_write(&other, filler, word, 8, spot, (VIP_MEM_HANDLE)spot_handle));
    }
    uint64_t count = nic_counter(s, VIAKIT_COUNTER_timeouts);
    double end = check_now() + CHECK_WAIT_S;
    while (nic_counter(s, VIAKIT_COUNTER_timeouts) < count + 5 && vi_state(e.vi) == VIP_STATE_CONNECTED) {
        CHECK(check_now() < end);
        CHECK_OK(viakit_poll(s->nic, NULL));
    }
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    side_exchange(s, 0);
    reap_send(&e, d, VIP_STATUS_OP_RDMA_READ);
    pattern_check(data, 64, 9);
    reap_send(&other, filler, VIP_STATUS_OP_RDMA_WRITE);
    endpoint_disconnect(&e);
    endpoint_disconnect(&other);
    endpoint_close(&e);
    endpoint_close(&other);
}

static void read_waits_b(side *s)
{
    endpoint e, other;
    VIP_MEM_ATTRIBUTES readable = {.EnableRdmaRead = VIP_TRUE};
    VIP_MEM_HANDLE handle;
    uint8_t *data, *spot;
    if (s->link->kind >= ON_ETH)
        return;
    lossy(s);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_open(&other, s, VIP_SERVICE_UNRELIABLE, 65536);
    e.attr.EnableRdmaRead = VIP_TRUE;
    CHECK_OK(VipSetViAttributes(e.vi, &e.attr));
    readable.Ptag = e.ptag;
    data = buffer(&e, 64);
    pattern_fill(data, 64, 9);
    CHECK_OK(VipRegisterMem(s->nic, data, 64, &readable, &handle));
    spot = buffer(&other, 8);
    endpoint_connect(&e, "read waits");
    endpoint_connect(&other, "the other");
    side_exchange(s, (uintptr_t)data);
    side_exchange(s, handle);
    side_exchange(s, (uintptr_t)spot);
    exchange_blind(s, other.mh);
    exchange_blind(s, 0); /* A has waited long enough */
    endpoint_disconnect(&e);
    endpoint_disconnect(&other);
    CHECK_OK(VipDeregisterMem(s->nic, data, handle));
    endpoint_close(&e);
    endpoint_close(&other);
}

/* ---- answer_waits: an acknowledgement for which the link has no room goes when there is room again */

/* Posts empty sends, as short as an acknowledgement, until one of them finds no room. Frames of other connections fill
 * the link for all. */
static void fill_by_sends(endpoint *e, VIP_DESCRIPTOR *d)
{
    for (uint64_t before = stalls(e->s), n = 0; stalls(e->s) == before; n++) {
        CHECK(n < 1000000);
        if (n)
            reap_send(e, d, VIP_STATUS_OP_SEND);
        post_send(e, prep_send(e, d, NULL, 0));
    }
}

#define LONG_MESSAGE 20000 /* bytes: where the receiver can, it fetches them, and the sender waits for its word */

static void answer_waits_a(side *s)
{
    endpoint e, other;
    if (s->link->kind >= ON_ETH)
        return; /* a link without a reader is never full */
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 262144);
    endpoint_open(&other, s, VIP_SERVICE_UNRELIABLE, 65536);
    VIP_DESCRIPTOR *d = prep_send(&e, descriptor(&e, 1), buffer(&e, LONG_MESSAGE), LONG_MESSAGE);
    endpoint_connect(&e, "answer waits");
    endpoint_connect(&other, "the other");
    exchange_blind(s, 0); /* from here on A does not look */
    exchange_blind(s, 0); /* B has filled the link */
    post_send(&e, d);
    exchange_blind(s, 0);
    exchange_blind(s, 0); /* B has the message, and could not acknowledge it */
    reap_send(&e, d, VIP_STATUS_OP_SEND);
    side_exchange(s, 0);
    endpoint_disconnect(&e);
    endpoint_disconnect(&other);
    endpoint_close(&e);
    endpoint_close(&other);
}

static void answer_waits_b(side *s)
{
    endpoint e, other;
    if (s->link->kind >= ON_ETH)
        return;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 262144);
    endpoint_open(&other, s, VIP_SERVICE_UNRELIABLE, 65536);
    VIP_DESCRIPTOR *d = prep_recv(&e, descriptor(&e, 1), buffer(&e, LONG_MESSAGE), LONG_MESSAGE);
    VIP_DESCRIPTOR *filler = descriptor(&other, 1);
    post_recv(&e, d);
    endpoint_connect(&e, "answer waits");
    endpoint_connect(&other, "the other");
    side_exchange(s, 0);
    fill_by_sends(&other, filler); /* A has no receives for them, and its unreliable level drops them */
    side_exchange(s, 0);
    side_exchange(s, 0); /* A has posted */
    reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
    side_exchange(s, 0);
    side_exchange(s, 0); /* looks at the link until A has its completion */
    reap_send(&other, filler, VIP_STATUS_OP_SEND);
    endpoint_disconnect(&e);
    endpoint_disconnect(&other);
    endpoint_close(&e);
    endpoint_close(&other);
}

/* ---- probe_waits: a peer that could not be probed because the link is full does not count as silent */

/* A peer is probed soon, and given up after three more probes without a reply. That takes a second, so that neither
 * side declares the other dead when they poll again. */
static void set_early_probes(viakit_nic_options *o)
{
    o->rto_us = 100000;
    o->max_retries = 3;
    o->keepalive_ms = 50;
}

static void probe_waits_a(side *s)
{
    endpoint e, other;
    if (s->link->kind >= ON_ETH)
        return; /* a link without a reader is never full */
    lossy(s);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_open(&other, s, VIP_SERVICE_UNRELIABLE, 4096);
    VIP_DESCRIPTOR *filler = descriptor(&other, 1);
    endpoint_connect(&e, "probe waits");
    endpoint_connect(&other, "the other");
    side_exchange(s, 0); /* from here on B does not look */
    fill_by_sends(&other, filler);
    uint64_t count = nic_counter(s, VIAKIT_COUNTER_timeouts);
    /* They pass at both connections in turns, and ten are more than the two have before they are given up. */
    WAIT_UNTIL(viakit_poll(s->nic, NULL) != VIP_SUCCESS || vi_state(e.vi) != VIP_STATE_CONNECTED ||
               vi_state(other.vi) != VIP_STATE_CONNECTED || nic_counter(s, VIAKIT_COUNTER_timeouts) >= count + 10);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    CHECK_EQ(vi_state(other.vi), VIP_STATE_CONNECTED);
    side_exchange(s, 0);
    reap_send(&other, filler, VIP_STATUS_OP_SEND);
    CHECK_EQ(error_count(s, VIP_ERROR_CONN_LOST), 0);
    endpoint_disconnect(&e);
    endpoint_disconnect(&other);
    endpoint_close(&e);
    endpoint_close(&other);
}

static void probe_waits_b(side *s)
{
    endpoint e, other;
    if (s->link->kind >= ON_ETH)
        return;
    lossy(s);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_open(&other, s, VIP_SERVICE_UNRELIABLE, 4096);
    endpoint_connect(&e, "probe waits");
    endpoint_connect(&other, "the other");
    exchange_blind(s, 0);
    exchange_blind(s, 0); /* A has waited long enough */
    endpoint_disconnect(&e);
    endpoint_disconnect(&other);
    endpoint_close(&e);
    endpoint_close(&other);
}

static const test_case cases[] = {
    {"taken_away", taken_away_both, taken_away_both, CASE_NO_FAULT | CASE_NO_THREAD, patient},
    {"broken_by_ack", broken_by_ack_a, broken_by_ack_b, CASE_NO_FAULT | CASE_NO_THREAD, patient},
    {"writes_in_order", writes_in_order_a, writes_in_order_b, CASE_NO_FAULT | CASE_NO_THREAD, no_cma},
    {"target_leaves", target_leaves_a, target_leaves_b, CASE_NO_FAULT | CASE_NO_THREAD, no_cma},
    {"answer_waits", answer_waits_a, answer_waits_b, CASE_NO_ETH | CASE_NO_FAULT | CASE_NO_THREAD, NULL},
    {"probe_waits", probe_waits_a, probe_waits_b, CASE_NO_ETH | CASE_NO_FAULT | CASE_NO_THREAD, set_early_probes},
    {"read_waits", read_waits_a, read_waits_b, CASE_NO_ETH | CASE_NO_FAULT | CASE_NO_THREAD, set_short_timeouts},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
