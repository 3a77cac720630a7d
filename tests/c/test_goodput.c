/*
 * test_goodput.c - what is left of the bandwidth when one frame in a hundred is lost: test_goodput LINK [CASE...].
 *
 * A streams RDMA writes into B's memory, first undisturbed, then with losses on both sides. Every byte arrives, and it
 * takes no more repetition than the way of retransmission should: that is checked. The rates are printed and not
 * checked, for they are the machine's.
 */
#include "harness.h"

#define TOTAL ((64u << 20) / CHECK_SLOWER)
#define AHEAD 16 /* writes posted at once */

typedef struct {
    double seconds;
    uint64_t frames, repeated, timeouts, probes;
} measured;

/* An empty text heals, but leaves the connection one that does not rely on its link. */
static void set_loss(side *s, const char *text)
{
    viakit_faults f = {.size = sizeof(f)};
    CHECK_OK(viakit_parse_faults(text, &f));
    CHECK_OK(viakit_set_faults(s->nic, &f));
}

/* TOTAL bytes in messages of len into B's memory; returns when all of it is acknowledged. */
static measured stream(endpoint *e, const uint8_t *data, VIP_DESCRIPTOR **d, size_t len, uint64_t at,
                       VIP_MEM_HANDLE handle)
{
    VIP_UINT64 before[VIAKIT_N_COUNTERS], after[VIAKIT_N_COUNTERS];
    size_t n = TOTAL / len, posted = 0;
    measured m;
    double begin;
    CHECK_OK(viakit_nic_counters(e->s->nic, before));
    begin = check_now();
    for (size_t taken = 0; taken < n; taken++) {
        for (; posted < n && posted < taken + AHEAD; posted++) {
            /* Offsets go round in 1 MiB, so the same bytes are written many times over. */
            size_t offset = posted % (TOTAL / len) * len % (1u << 20);
            post_send(e, prep_write(e, d[posted % AHEAD], data + offset, len, at + offset, handle));
        }
        CHECK(next_send(e) == d[taken % AHEAD]);
        CHECK_EQ(d[taken % AHEAD]->CS.Status & VIP_STATUS_ERROR_MASK, 0);
    }
    m.seconds = check_now() - begin;
    CHECK_OK(viakit_nic_counters(e->s->nic, after));
#define SINCE(name) (after[VIAKIT_COUNTER_##name] - before[VIAKIT_COUNTER_##name])
    m.frames = SINCE(frames_sent);
    m.repeated = SINCE(frames_retransmitted);
    m.timeouts = SINCE(timeouts);
    m.probes = SINCE(tail_probes);
#undef SINCE
    return m;
}

static const size_t lens[] = {65536, 1u << 20};

static void goodput_a(side *s)
{
    endpoint e;
    uint8_t *data;
    VIP_DESCRIPTOR *d[AHEAD], *end;
    uint64_t at, handle, in_flight;
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    /* Frames that a time-out may have to retransmit. */
    in_flight = (uint64_t)info.window * (info.super_payload / info.max_payload);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 3u << 20);
    pattern_fill(data = buffer(&e, 1u << 20), 1u << 20, 3);
    for (int i = 0; i < AHEAD; i++)
        d[i] = descriptor(&e, 2);
    end = descriptor(&e, 1);
    set_loss(s, ""); /* from the beginning: a connection that does not rely on the link */
    endpoint_connect(&e, "goodput");
    at = side_exchange(s, 0);
    handle = side_exchange(s, 0);
    for (size_t k = 0; k < 2; k++) {
        measured clean, lossy;
        set_loss(s, "");
        SIDE_SYNC(s, 1);
        clean = stream(&e, data, d, lens[k], at, (VIP_MEM_HANDLE)handle);
        set_loss(s, "loss=0.01,seed=11");
        lossy = stream(&e, data, d, lens[k], at, (VIP_MEM_HANDLE)handle);
        /* In order behind all writes: when it is there, they are. */
        post_send(&e, prep_send(&e, end, NULL, 0));
        reap_send(&e, end, VIP_STATUS_OP_SEND);
        printf("       %-16s %-10s %7zu B: %6.0f MB/s; with 1 %% loss %6.0f MB/s, %.2f of it; %llu of %llu frames sent "
               "again, %llu time-outs, %llu tail probes\n",
               s->link->name, s->test->name, lens[k], TOTAL / clean.seconds / 1e6, TOTAL / lossy.seconds / 1e6,
               clean.seconds / lossy.seconds, (unsigned long long)lossy.repeated, (unsigned long long)lossy.frames,
               (unsigned long long)lossy.timeouts, (unsigned long long)lossy.probes);
        CHECK(lossy.repeated > 0);
        /* The lost frames, and few more. After a time-out, which a busy machine causes, all frames in flight. */
        if (s->options.retransmission == VIAKIT_SELECTIVE)
            CHECK(lossy.repeated < lossy.frames / 10 + lossy.timeouts * in_flight);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void goodput_b(side *s)
{
    endpoint e;
    uint8_t *data;
    VIP_DESCRIPTOR *d;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 3u << 20);
    data = buffer(&e, 1u << 20);
    d = descriptor(&e, 1);
    set_loss(s, "");
    endpoint_connect(&e, "goodput");
    side_exchange(s, (uintptr_t)data);
    side_exchange(s, e.mh);
    for (size_t k = 0; k < 2; k++) {
        memset(data, 0, 1u << 20);
        post_recv(&e, prep_recv(&e, d, NULL, 0));
        SIDE_SYNC(s, 1);
        /* From now on; A's first part is without losses of its own. */
        set_loss(s, "loss=0.01,seed=12"); /* its acknowledgements, in the first part too */
        reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
        pattern_check(data, 1u << 20, 3);
        CHECK_OK(viakit_set_faults(s->nic, NULL));
        set_loss(s, "");
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void selective(viakit_nic_options *o)
{
    o->retransmission = VIAKIT_SELECTIVE;
}

static void go_back_n(viakit_nic_options *o)
{
    o->retransmission = VIAKIT_GO_BACK_N;
}

static const test_case cases[] = {
    {"selective", goodput_a, goodput_b, CASE_NO_FAULT, selective},
    {"go_back_n", goodput_a, goodput_b, CASE_NO_FAULT, go_back_n},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
