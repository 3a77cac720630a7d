/*
 * test_counters.c - the counters keep their promises: test_counters LINK [CASE...], see harness.h for LINK.
 *
 * Zero-copy is a number that a program can read (docs/provider.md), and the number has to be right. On eth a
 * 64-byte message costs one system call to send and none to receive by polling. On every link a message's payload is
 * copied as often as docs/provider.md states. The receiver counts as many as the sender. Cases without faults compare
 * exact counts; retransmissions, which a busy machine causes, are allowed for by their own counters.
 */
#include <sys/resource.h>

#include "harness.h"

#define N 200

typedef VIP_UINT64 counters[VIAKIT_N_COUNTERS];

static VIP_UINT64 since(const counters before, const counters after, viakit_counter c)
{
    return after[c] - before[c];
}

#define SINCE(name) since(before, after, VIAKIT_COUNTER_##name)

#define SLOW 1e-4 /* s: half the default of ack_delay_us. After the whole, an acknowledgement gets a frame of its own */

/* N round trips of `len` bytes, polled, with everything reposted off the path. Four receives, so that one is always
 * posted when the next message comes. Returns the number of round trips that took longer than SLOW. */
static uint64_t ping_pong(endpoint *e, size_t len, int n)
{
    uint64_t slow = 0;
    VIP_DESCRIPTOR *rd[4], *sd = descriptor(e, 1);
    uint8_t *in = buffer(e, len), *out = buffer(e, len);
    for (int i = 0; i < 4; i++)
        post_recv(e, prep_recv(e, rd[i] = descriptor(e, 1), in, len));
    SIDE_SYNC(e->s, 1);
    for (int i = 0; i < n; i++) {
        double began = check_now();
        if (e->s->role == SIDE_A)
            post_send(e, prep_send(e, sd, out, len));
        CHECK(next_recv(e) == rd[i % 4]);
        if (e->s->role == SIDE_B)
            post_send(e, prep_send(e, sd, out, len));
        reap_send(e, sd, VIP_STATUS_OP_SEND);
        post_recv(e, prep_recv(e, rd[i % 4], in, len));
        slow += check_now() - began > SLOW;
    }
    return slow;
}

/* ---- agree: what is sent is received, by NIC and by VI */

static void agree_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        /* 3000 bytes: three frames of MTU 1500, but one message. */
        endpoint e;
        counters before, after, vi;
        uint64_t remote;
        endpoint_open(&e, s, s->levels[i], 1 << 20);
        endpoint_connect(&e, "agree");
        CHECK_OK(viakit_nic_counters(s->nic, before));
        ping_pong(&e, 3000, N);
        SIDE_SYNC(s, 2);
        CHECK_OK(viakit_nic_counters(s->nic, after));
        CHECK_OK(viakit_vi_counters(e.vi, vi));
        CHECK_EQ(SINCE(messages_sent), N);
        CHECK_EQ(SINCE(messages_received), N);
        CHECK_EQ(SINCE(bytes_sent), 3000 * N);
        CHECK_EQ(SINCE(bytes_received), 3000 * N);
        CHECK_EQ(vi[VIAKIT_COUNTER_messages_sent], N);
        CHECK_EQ(vi[VIAKIT_COUNTER_bytes_received], 3000 * N);
        CHECK_EQ(SINCE(rdma_writes_sent), 0);
        CHECK_EQ(SINCE(async_errors), 0);
        remote = side_exchange(s, SINCE(messages_sent));
        CHECK_EQ(remote, SINCE(messages_received));
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- quiet: on a link that loses nothing, nothing is repeated, dropped or complained about */

/* 64 bytes, one at a time: no ring is ever full, no window closed. */
static void quiet_both(side *s)
{
    endpoint e;
    counters before, after;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_connect(&e, "quiet");
    CHECK_OK(viakit_nic_counters(s->nic, before));
    ping_pong(&e, 64, N);
    SIDE_SYNC(s, 2);
    CHECK_OK(viakit_nic_counters(s->nic, after));
    CHECK_EQ(SINCE(dropped_checksum), 0);
    CHECK_EQ(SINCE(dropped_malformed), 0);
    CHECK_EQ(SINCE(dropped_version), 0);
    CHECK_EQ(SINCE(dropped_unknown_peer), 0);
    CHECK_EQ(SINCE(dropped_no_descriptor), 0);
    CHECK_EQ(SINCE(dropped_ring_full), 0);
    CHECK_EQ(SINCE(dropped_filter), 0);
    CHECK_EQ(SINCE(fault_dropped), 0);
    CHECK_EQ(SINCE(naks_sent), 0);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- noisy: with faults each kind of them is seen where it is counted */

/* 400 round trips of some 14 frames: at the harness's rates every kind of fault is practically certain to occur, and to
 * be seen by its counter. */
static void noisy_both(side *s)
{
    endpoint e;
    counters before, after;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 1 << 20);
    endpoint_connect(&e, "noisy");
    CHECK_OK(viakit_nic_counters(s->nic, before));
    ping_pong(&e, 20000, 2 * N);
    SIDE_SYNC(s, 2);
    CHECK_OK(viakit_nic_counters(s->nic, after));
    CHECK_EQ(SINCE(messages_received), 2 * N);
    if (s->link->fault) {
        CHECK(SINCE(fault_dropped) > 0 && SINCE(fault_duplicated) > 0);
        CHECK(SINCE(fault_reordered) > 0 && SINCE(fault_corrupted) > 0);
        CHECK(SINCE(dropped_checksum) > 0);
        CHECK(SINCE(dropped_duplicate) > 0);
        CHECK(SINCE(frames_kept_out_of_order) > 0);
        CHECK(SINCE(frames_retransmitted) > 0);
        CHECK(SINCE(naks_sent) > 0 && SINCE(naks_received) > 0);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- copies: a small message is copied at most once on its way out (into a ring or frame) and once on its way in */

static void copies_both(side *s)
{
    endpoint e;
    counters before, after;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_connect(&e, "copies");
    CHECK_OK(viakit_nic_counters(s->nic, before));
    ping_pong(&e, 64, N);
    SIDE_SYNC(s, 2);
    CHECK_OK(viakit_nic_counters(s->nic, after));
    printf("       %s %c: %.2f copies and %.1f bytes copied per message of 64 B received\n", s->link->name,
           s->role == SIDE_A ? 'A' : 'B', (double)SINCE(copies) / N, (double)SINCE(bytes_copied) / N);
    CHECK(SINCE(copies) >= N);                                   /* data does not appear by itself */
    CHECK(SINCE(copies) <= 2 * N + SINCE(frames_retransmitted)); /* a peer that sleeps long is probed once more */
    CHECK(SINCE(bytes_copied) <= 64 * (2 * N + SINCE(frames_retransmitted)));
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- copies_large: between processes that map each other's memory a large message is copied once, in all. Other links
 * print what they do. */

#define LARGE 100000

static void copies_large_both(side *s)
{
    endpoint e;
    counters before, after;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4 * LARGE);
    endpoint_connect(&e, "large");
    CHECK_OK(viakit_nic_counters(s->nic, before));
    ping_pong(&e, LARGE, N);
    SIDE_SYNC(s, 2);
    CHECK_OK(viakit_nic_counters(s->nic, after));
    printf(
        "       %s %c: %.2f bytes copied per byte received; %llu copies through a mapping, %llu by process_vm_readv, "
        "%llu through a ring\n",
        s->link->name, s->role == SIDE_A ? 'A' : 'B', (double)SINCE(bytes_copied) / LARGE / N,
        (unsigned long long)SINCE(copies_mapped), (unsigned long long)SINCE(copies_cma),
        (unsigned long long)SINCE(copies_ring));
    if (s->link->mapped) {
        CHECK(SINCE(bytes_copied) >= (VIP_UINT64)LARGE * N);
        CHECK(SINCE(bytes_copied) <= (VIP_UINT64)(LARGE + 64) * N); /* and where to find it, through the ring */
        CHECK_EQ(SINCE(copies_mapped), N);
    }
    if (s->link->ring_only)
        CHECK(SINCE(copies_mapped) == 0 && SINCE(copies_cma) == 0);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- first_write: also the first RDMA write of a connection is copied directly, right after VipConnectRequest. The
 * reply that ends that call is the first frame of the peer, and its greeting came before. */

static void first_write_a(side *s)
{
    endpoint e;
    counters before, after;
    viakit_nic_info info;
    if (s->link->kind != ON_SHM || s->link->ring_only)
        return;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4 * LARGE);
    VIP_DESCRIPTOR *d = descriptor(&e, 2);
    uint8_t *data = buffer(&e, LARGE);
    uint64_t target = side_exchange(s, 0), handle = side_exchange(s, 0);
    endpoint_connect(&e, "first write");
    CHECK_OK(viakit_nic_counters(s->nic, before));
    post_send(&e, prep_write(&e, d, data, LARGE, target, (VIP_MEM_HANDLE)handle));
    CHECK_OK(viakit_nic_counters(s->nic, after));
    reap_send(&e, d, VIP_STATUS_OP_RDMA_WRITE);
    SIDE_SYNC(s, 1);
    CHECK_OK(viakit_query_nic(s->nic, &info));
    if (s->link->mapped || info.cma) {
        CHECK_EQ(SINCE(copies_mapped) + SINCE(copies_cma), 1);
        CHECK_EQ(SINCE(frames_sent), 0);
    } else
        printf("       not checked: the kernel refuses copies between processes\n");
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void first_write_b(side *s)
{
    endpoint e;
    if (s->link->kind != ON_SHM || s->link->ring_only)
        return;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4 * LARGE);
    side_exchange(s, (uintptr_t)buffer(&e, LARGE));
    side_exchange(s, e.mh);
    endpoint_connect(&e, "first write");
    SIDE_SYNC(s, 1);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- system_calls: eth, 64 B, polled: one to send, none to receive */

static void system_calls_both(side *s)
{
    endpoint e;
    counters before, after;
    VIP_UINT64 sends;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_connect(&e, "calls");
    ping_pong(&e, 64, 10);
    SIDE_SYNC(s, 2);
    /* The region is used over; nothing is posted in it any more. */
    e.used = e.n_buffers = 0;
    CHECK_OK(VipDisconnect(e.vi));
    drain(e.vi);
    /* A new connection, so that no acknowledgement of the first round trips falls into the count. */
    endpoint_connect(&e, "calls again");
    CHECK_OK(viakit_nic_counters(s->nic, before));
    ping_pong(&e, 64, N);
    CHECK_OK(viakit_nic_counters(s->nic, after));
    /* Sent: N messages, and the few acknowledgements that no message could carry in time. */
    sends = SINCE(frames_sent);
    printf("       %s %c: %llu system calls for %d messages sent and %d received; %llu frames sent\n", s->link->name,
           s->role == SIDE_A ? 'A' : 'B', (unsigned long long)SINCE(system_calls), N, N, (unsigned long long)sends);
    CHECK(SINCE(messages_received) >= N);
    CHECK(SINCE(system_calls) <= sends); /* not one more than frames sent: receiving costs none */
    CHECK(sends >= N && sends <= N + SINCE(acks_sent) + SINCE(probes_sent) + SINCE(frames_retransmitted));
    SIDE_SYNC(s, 3);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- two_rings: eth has a ring for frames and one for super-frames. Frames in both are taken in the order of arrival:
 * none looks out of order, and none in the other ring is reported as missing. B has no thread, so all frames are there
 * when it polls for the first time. */

#define TURNS 40

/* Post TURNS sends from A, long and short in turn: 14 frames of MTU 1500, then one. */
static void send_turns(endpoint *e, VIP_DESCRIPTOR *const *d, uint8_t *data)
{
    for (int i = 0; i < TURNS; i++)
        post_send(e, prep_send(e, d[i], data, i % 2 ? 64 : 20000));
}

/* Reap them on both sides, in order. */
static void reap_turns(endpoint *e, VIP_DESCRIPTOR *const *d)
{
    for (int i = 0; i < TURNS; i++)
        if (e->s->role == SIDE_B)
            CHECK(next_recv(e) == d[i]);
        else
            reap_send(e, d[i], VIP_STATUS_OP_SEND);
}

static void two_rings_both(side *s)
{
    endpoint e;
    counters before, after;
    VIP_DESCRIPTOR *d[TURNS];
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 1 << 20);
    endpoint_connect(&e, "two rings");
    uint8_t *data = buffer(&e, 20000);
    CHECK_OK(viakit_nic_counters(s->nic, before));
    for (int i = 0; i < TURNS; i++) {
        d[i] = descriptor(&e, 1);
        if (s->role == SIDE_B)
            post_recv(&e, prep_recv(&e, d[i], data, 20000));
    }
    SIDE_SYNC(s, 1);
    if (s->role == SIDE_A)
        send_turns(&e, d, data);
    SIDE_SYNC(s, 2);
    reap_turns(&e, d);
    CHECK_OK(viakit_nic_counters(s->nic, after));
    CHECK_EQ(SINCE(dropped_ring_full), 0);
    CHECK_EQ(SINCE(frames_kept_out_of_order), 0);
    CHECK_EQ(SINCE(dropped_out_of_order), 0);
    CHECK_EQ(SINCE(naks_sent), 0);
    SIDE_SYNC(s, 3);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- mixed: on udp a super-frame is received in place although a single frame came before it, as a retransmission
 * does on a link that loses frames. Only the first super-frame is copied whole, because nothing announced it. */

/* Send one short message from A to B. */
static void one_short(endpoint *e, VIP_DESCRIPTOR *d, uint8_t *data)
{
    if (e->s->role == SIDE_B)
        post_recv(e, prep_recv(e, d, data, 64));
    SIDE_SYNC(e->s, 3);
    if (e->s->role == SIDE_A) {
        post_send(e, prep_send(e, d, data, 64));
        reap_send(e, d, VIP_STATUS_OP_SEND);
    } else
        CHECK(next_recv(e) == d);
}

static void mixed_both(side *s)
{
    endpoint e;
    counters before, after;
    viakit_nic_info info;
    VIP_DESCRIPTOR *d[TURNS];
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, TURNS * 21000);
    endpoint_connect(&e, "mixed");
    CHECK_OK(viakit_query_nic(s->nic, &info));
    VIP_DESCRIPTOR *first = descriptor(&e, 1);
    uint8_t *small = buffer(&e, 64);
    /* A busy peer gets a socket of its own, which is then drained. */
    for (int i = 0; i < 2 * TURNS; i++) {
        one_short(&e, first, small);
        for (int k = 0; k < 10; k++)
            (void)viakit_poll(s->nic, NULL);
    }
    CHECK_OK(viakit_nic_counters(s->nic, before));
    for (int i = 0; i < TURNS; i++) {
        d[i] = descriptor(&e, 1);
        if (s->role == SIDE_B)
            post_recv(&e, prep_recv(&e, d[i], buffer(&e, 20000), 20000));
    }
    SIDE_SYNC(s, 1);
    if (s->role == SIDE_A)
        send_turns(&e, d, buffer(&e, 20000));
    reap_turns(&e, d);
    CHECK_OK(viakit_nic_counters(s->nic, after));
    /* The kernel may lack segmentation offload, and a frame that was sent again is copied. */
    if (s->role == SIDE_B && !strcmp(info.link, "udp") && info.super_payload > 10 * info.max_payload)
        CHECK(SINCE(copies) <= 20 + 2 * TURNS + SINCE(frames_kept_out_of_order));
    SIDE_SYNC(s, 2);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- carried: replies carry the acknowledgements, so a round trip of polling programs has no frame of its own for
 * them */

/* Returns how often the calling thread has lost its core. */
static uint64_t switches(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (uint64_t)usage.ru_nivcsw;
}

static void carried_both(side *s)
{
    endpoint e;
    counters before, after;
    viakit_faults none = {.size = sizeof(none)};
    /* Faults that do nothing: the connection runs the full protocol on every link. */
    CHECK_OK(viakit_set_faults(s->nic, &none));
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 1 << 20);
    endpoint_connect(&e, "carried");
    CHECK_OK(viakit_nic_counters(s->nic, before));
    uint64_t excuses = switches();
    uint64_t slow = ping_pong(&e, 64, 5 * N);
    excuses = switches() - excuses + slow;
    CHECK_OK(viakit_nic_counters(s->nic, after));
    /* A side that loses its core replies late: then the acknowledgement is due before the reply. A host of virtual
     * machines takes cores, too, and only the time shows it. The side is also probed, and probes and copies are
     * acknowledged at once. */
    excuses += SINCE(tail_probes) + SINCE(timeouts) + SINCE(frames_retransmitted);
    excuses += side_exchange(s, excuses);
    if (SINCE(acks_sent) > 2 * excuses + 4)
        FAIL("%llu acknowledgements in frames of their own for %d round trips; a reply was late, or a frame was sent "
             "again, %llu times",
             (unsigned long long)SINCE(acks_sent), 5 * N, (unsigned long long)excuses);
    SIDE_SYNC(s, 2);
    endpoint_close(&e);
}

static const test_case cases[] = {
    {"agree", agree_both, agree_both, 0, NULL},
    {"carried", carried_both, carried_both, CASE_NO_FAULT | CASE_NO_THREAD, NULL},
    {"quiet", quiet_both, quiet_both, CASE_NO_FAULT, NULL},
    {"noisy", noisy_both, noisy_both, 0, NULL},
    {"copies", copies_both, copies_both, CASE_NO_FAULT, NULL},
    {"copies_large", copies_large_both, copies_large_both, CASE_NO_FAULT, NULL},
    {"mixed", mixed_both, mixed_both, CASE_NO_FAULT | CASE_NO_THREAD, NULL},
    {"first_write", first_write_a, first_write_b, CASE_NO_FAULT, NULL},
    {"system_calls", system_calls_both, system_calls_both, CASE_ONLY_ETH | CASE_NO_FAULT | CASE_NO_THREAD, NULL},
    {"two_rings", two_rings_both, two_rings_both, CASE_ONLY_ETH | CASE_NO_FAULT | CASE_NO_THREAD, NULL},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
