/*
 * test_faults.c - the effect of each fault, on any link: test_faults LINK [CASE...], see harness.h for LINK.
 *
 * Each case sets its own faults, in place of those that LINK may name. It connects under the faults "", with which a
 * connection on a lossless link runs the full protocol. Messages carry their number as immediate data.
 */
#include <sys/select.h>

#include "test_faults.h"

/* ---- same_seed: exactly those messages are missing that viakit_fault_of() names beforehand */

#define N_SEEDED 400

static void same_seed_a(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 100);
    set_faults(s, "loss=0.3,kinds=send,seed=42");
    uint64_t lost = nic_counter(s, VIAKIT_COUNTER_fault_dropped);
    /* Fifty by fifty: B takes them and compares, so that no receive ring runs over and loses frames of its own. */
    for (uint32_t i = 0; i < N_SEEDED; i++) {
        send_number(&e, d, data, 100, i);
        if (i % 50 == 49)
            side_exchange(s, nic_counter(s, VIAKIT_COUNTER_fault_dropped) - lost); /* not more than a ring holds */
    }
    leave(&e);
}

static void same_seed_b(side *s)
{
    endpoint e;
    /* The same text: its effect can be computed without a NIC. */
    viakit_faults f = faults_of("loss=0.3,kinds=send,seed=42");
    uint64_t lost = 0;
    uint32_t number = 0;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, N_SEEDED);
    for (uint32_t i = 0; i < N_SEEDED; i += 50) {
        uint64_t remote = side_exchange(s, 0);
        for (; number < i + 50; number++) /* a message is a frame of data; whatever else was sent in between */
            if (viakit_fault_of(&f, 0, 1, number) & 1u << VIAKIT_DROP)
                lost++;
            else
                CHECK_EQ(receive_number(&e), number);
        CHECK_EQ(remote, lost);
    }
    /* A test that loses nothing proves nothing. */
    CHECK(lost > N_SEEDED / 5);
    leave(&e);
}

/* ---- chosen: one frame lost, one doubled, one late, one damaged, and it shows in what an unreliable receiver gets */

static void chosen_a(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 300);
    /* One frame per message on every link, so frames and messages have the same numbers. */
    set_faults(s, "drop=send:3,double=send:5,hold=send:7,spoil=send:11");
    for (uint32_t i = 0; i < 20; i++)
        send_number(&e, d, data, 300, i);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_dropped), 1);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_duplicated), 1);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_reordered), 1);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_corrupted), 1);
    SIDE_SYNC(s, 1);
    leave(&e);
}

static void chosen_b(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 25);
    for (uint32_t i = 0; i < 20; i++)
        if (i != 3 && i != 7 && i != 11) /* the late one comes when its turn is over: that is lost, too */
            CHECK_EQ(receive_number(&e), i);
    SIDE_SYNC(s, 1);
    CHECK(nothing_more(&e));
    /* The doubled one's second copy and the late one: both are behind their turn. */
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_dropped_duplicate), 2);
    /* The bit that was turned may have been one of the address: then the damaged frame is not even ours. */
    CHECK(nic_counter(s, VIAKIT_COUNTER_dropped_checksum) + nic_counter(s, VIAKIT_COUNTER_dropped_malformed) <= 1);
    leave(&e);
}

/* ---- mended: the same on a reliable connection; nothing is missing, and in order */

static void mended_a(side *s)
{
    for (int level = 0; level < 2; level++) {
        endpoint e;
        meet(&e, s, s->levels[level], 0);
        VIP_DESCRIPTOR *d = descriptor(&e, 1);
        uint8_t *data = buffer(&e, 300);
        /* As in chosen, and three in a row besides. The acknowledgements lose some, too. */
        set_faults(s, "drop=send:3,double=send:5,hold=send:7,spoil=send:11,drop=send:13-15");
        for (uint32_t i = 0; i < 30; i++)
            send_number(&e, d, data, 300, i);
        leave(&e);
    }
}

static void mended_b(side *s)
{
    for (int level = 0; level < 2; level++) {
        endpoint e;
        meet(&e, s, s->levels[level], 35);
        set_faults(s, "drop=ack:0-1,double=ack:2");
        for (uint32_t i = 0; i < 30; i++)
            CHECK_EQ(receive_number(&e), i);
        leave(&e);
    }
}

/* ---- late_alone: a late frame that no other overtakes still arrives */

static void late_alone_a(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 300);
    /* Every frame is to be overtaken by up to 64; only one is ever sent, so it goes after 5 ms. */
    set_faults(s, "reorder=1/64");
    send_number(&e, d, data, 300, 5);
    SIDE_SYNC(s, 1);
    leave(&e);
}

static void late_alone_b(side *s)
{
    one_number_b(s, VIP_SERVICE_UNRELIABLE, 5);
}

/* ---- delayed: never sooner than configured, and in order although each has its own delay; sleeping or polling */

static void delayed_a(side *s)
{
    endpoint e;
    double begin = 0;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 1000);
    set_faults(s, "delay=30ms,jitter=10ms,seed=9");
    /* Taken before the first is sent. */
    begin = check_now();
    for (uint32_t i = 0; i < 30; i++)
        send_number(&e, d, data, i % 2 ? 1000 : 8, i);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_delayed), 30);
    side_send(s, &begin, sizeof(begin)); /* one clock, for it is one machine */
    SIDE_SYNC(s, 1);
    leave(&e);
}

static void delayed_b(side *s)
{
    endpoint e;
    double begin, first = 0;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 35);
    for (uint32_t i = 0; i < 30; i++) {
        /* By waiting and by polling in turns: a sleeper must be woken when the frame is due, not when it is sent. */
        VIP_DESCRIPTOR *d;
        if (i % 2)
            CHECK_EQ(receive_number(&e), i);
        else {
            CHECK_OK(VipRecvWait(e.vi, CHECK_WAIT_S * 1000, &d));
            CHECK_EQ(d->CS.ImmediateData, i);
        }
        if (i == 0)
            first = check_now();
    }
    side_recv(s, &begin, sizeof(begin));
    CHECK(first - begin >= 0.030);
    SIDE_SYNC(s, 1);
    leave(&e);
}

/* ---- stalled: nothing passes for a while, then everything, in order and none lost */

/* 99 of 100 ms nothing passes: whatever is sent in them comes in the first ms of the next period. */
static void stalled_a(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 300);
    uint32_t i = 0;
    double before = check_now(), begin;
    set_faults(s, "stall=99ms/100ms");
    begin = check_now();
    WAIT_UNTIL(check_now() > begin + 0.002); /* it has begun */
    for (; i < 60; i++) {
        send_number(&e, d, data, 300, i);
        if (i % 20 == 19)
            side_exchange(s, 0);
    }
    CHECK(nic_counter(s, VIAKIT_COUNTER_fault_stalled) > 0);
    side_send(s, &before, sizeof(before));
    SIDE_SYNC(s, 1);
    leave(&e);
}

static void stalled_b(side *s)
{
    endpoint e;
    double before, first = 0;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 65);
    for (uint32_t i = 0; i < 60; i++) {
        CHECK_EQ(receive_number(&e), i);
        if (i == 0)
            first = check_now();
        if (i % 20 == 19)
            side_exchange(s, 0);
    }
    side_recv(s, &before, sizeof(before));
    /* Whatever was sent after the first 1 ms of a period comes after its end, 100 ms after the faults were set. */
    CHECK(first - before >= 0.099);
    SIDE_SYNC(s, 1);
    leave(&e);
}

/* ---- healed: what was kept goes out at once when the faults end */

static void healed_a(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 300);
    /* The delay is longer than the test: delayed frames must be sent when the faults end, not when they are due. */
    set_faults(s, "delay=1000s");
    for (uint32_t i = 0; i < 5; i++)
        send_number(&e, d, data, 300, i);
    /* B looks in between, and nothing is there. */
    SIDE_SYNC(s, 1);
    SIDE_SYNC(s, 2);
    CHECK_OK(viakit_set_faults(s->nic, NULL));
    for (uint32_t i = 5; i < 10; i++)
        send_number(&e, d, data, 300, i);
    SIDE_SYNC(s, 3);
    leave(&e);
}

static void healed_b(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 15);
    SIDE_SYNC(s, 1);
    CHECK(nothing_more(&e));
    SIDE_SYNC(s, 2);
    for (uint32_t i = 0; i < 10; i++)
        CHECK_EQ(receive_number(&e), i);
    SIDE_SYNC(s, 3);
    leave(&e);
}

/* ---- older: a connection that was made before the faults, and relies on the link, is not touched */

static void older_a(side *s)
{
    endpoint e;
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    CHECK_OK(viakit_set_faults(s->nic, NULL)); /* those of LINK, which would be older than the connection */
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_connect(&e, "older");
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, ROOM);
    /* Where the link loses nothing the connection relies on that, and even a loss of everything does not concern it.
     * Where the link may lose, the connection has its protocol from the start. */
    set_faults(s, info.lossless ? "loss=1" : "loss=0.2");
    for (uint32_t i = 0; i < 50; i++)
        send_number(&e, d, data, i % 2 ? 3000 : 30, i);
    if (info.lossless)
        CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_dropped), 0);
    SIDE_SYNC(s, 1);
    leave(&e);
}

static void older_b(side *s)
{
    endpoint e;
    CHECK_OK(viakit_set_faults(s->nic, NULL));
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536 + 60 * ROOM);
    for (int i = 0; i < 55; i++)
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), buffer(&e, ROOM), ROOM));
    endpoint_connect(&e, "older");
    for (uint32_t i = 0; i < 50; i++)
        CHECK_EQ(receive_number(&e), i);
    SIDE_SYNC(s, 1);
    leave(&e);
}

/* ---- super_frames: a super-frame loses segments and stays one */

#define LONG_MESSAGE (1u << 20)

static void super_frames_a(side *s)
{
    endpoint e;
    viakit_nic_info info;
    meet_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0, LONG_MESSAGE);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, LONG_MESSAGE);
    /* One of a hundred segments is lost, so nearly every super-frame loses some. */
    set_faults(s, "loss=0.01,dup=0.01,reorder=0.01,seed=5");
    uint64_t frames = nic_counter(s, VIAKIT_COUNTER_frames_sent);
    uint64_t supers = nic_counter(s, VIAKIT_COUNTER_super_frames_sent);
    for (uint32_t i = 0; i < 8; i++)
        send_number(&e, d, data, LONG_MESSAGE, i);
    frames = nic_counter(s, VIAKIT_COUNTER_frames_sent) - frames;
    supers = nic_counter(s, VIAKIT_COUNTER_super_frames_sent) - supers;
    /* On links whose frames are long there are too few for this. */
    CHECK(nic_counter(s, VIAKIT_COUNTER_fault_dropped) > 0 || frames < 1000);
    CHECK_OK(viakit_query_nic(s->nic, &info));
    /* Still many segments for each super-frame: they were not sent one by one for the faults' sake. */
    if (info.super_payload > 8 * info.max_payload && !strcmp(info.link, "eth"))
        CHECK(supers > 0 && frames / supers > 5);
    SIDE_SYNC(s, 1);
    leave(&e);
}

static void super_frames_b(side *s)
{
    endpoint e;
    meet_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 8, LONG_MESSAGE);
    for (uint32_t i = 0; i < 8; i++)
        CHECK_EQ(receive_number(&e), i);
    SIDE_SYNC(s, 1);
    leave(&e);
}

/* ---- filter: the test's function decides. It is called once for each frame, also while the link has no room */

#define N_FILTERED 500

typedef struct {
    uint64_t asked, wrong;
} asked;

/* The index counts frames from 0, so a second call for one frame shows as a wrong index. */
static viakit_verdict count_questions(void *context, VIP_UINT64 index, int kind, size_t len)
{
    asked *a = context;
    (void)kind, (void)len;
    a->wrong += index != a->asked++;
    return index % 10 == 9 ? VIAKIT_DROP : VIAKIT_PASS;
}

/* B does not look, so the link has no room soon, and frames are offered again and again. */
static void filter_a(side *s)
{
    endpoint e;
    asked a = {0, 0};
    VIP_DESCRIPTOR *d[N_FILTERED];
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 60);
    uint8_t *data = buffer(&e, ROOM);
    CHECK_OK(viakit_set_frame_filter(s->nic, count_questions, &a));
    for (int i = 0; i < N_FILTERED; i++) {
        d[i] = prep_send(&e, descriptor(&e, 1), data, ROOM);
        post_send(&e, d[i]);
        CHECK_OK(viakit_poll(s->nic, NULL)); /* offers again what found no room: B does not look */
    }
    SIDE_SYNC(s, 1);
    for (int i = 0; i < N_FILTERED; i++)
        CHECK(next_send(&e) == d[i]);
    CHECK(a.asked >= N_FILTERED);
    CHECK_EQ(a.wrong, 0);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_dropped_filter), a.asked / 10);
    CHECK_OK(viakit_set_frame_filter(s->nic, NULL, NULL));
    side_exchange(s, 0);
    leave(&e);
}

/* Whether A has said on the control channel that it is through. */
static int has_spoken(side *s)
{
    struct timeval none = {0, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(s->ctl, &set);
    return select(s->ctl + 1, &set, NULL, NULL, &none) == 1;
}

static void filter_b(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_UNRELIABLE, 0);
    SIDE_SYNC(s, 1);
    uint64_t done = 0;
    side_send(s, &done, sizeof(done));
    WAIT_UNTIL(viakit_poll(s->nic, NULL) != VIP_SUCCESS || has_spoken(s)); /* until A is done, B makes room */
    side_recv(s, &done, sizeof(done));
    leave(&e);
}

/* ---- spoilt: behind a lost frame stands a send whose memory was taken away. The lost one arrives, the spoilt one
 * ends the connection, and what stands behind it was never sent */

/* followed: a third send stands behind the spoilt one. */
static void spoilt_alone_or_not(side *s, int followed)
{
    endpoint e;
    VIP_MEM_ATTRIBUTES attr = {0};
    VIP_MEM_HANDLE handle;
    VIP_DESCRIPTOR *lost, *spoilt, *behind;
    uint8_t *memory = malloc(100);
    meet(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    attr.Ptag = e.ptag;
    CHECK_OK(VipRegisterMem(s->nic, memory, 100, &attr, &handle));
    lost = prep_send(&e, descriptor(&e, 1), buffer(&e, 100), 100);
    spoilt = prep_send(&e, descriptor(&e, 1), memory, 100);
    spoilt->DS[0].Local.Handle = handle;
    behind = prep_send(&e, descriptor(&e, 1), buffer(&e, 100), 100);
    set_faults(s, "drop=send:0");
    post_send(&e, lost);
    /* Deferred, so that it is posted, and its memory gone, before it could leave. */
    CHECK_OK(VipPostDeferredSends(e.vi, VIP_TRUE, NULL));
    post_send(&e, spoilt);
    if (followed)
        post_send(&e, behind);
    CHECK_OK(VipDeregisterMem(s->nic, memory, handle));
    CHECK_OK(VipPostDeferredSends(e.vi, VIP_FALSE, NULL));
    reap_send(&e, lost, VIP_STATUS_OP_SEND);
    reap_send(&e, spoilt, VIP_STATUS_OP_SEND | VIP_STATUS_PROTECTION_ERROR);
    if (followed)
        reap_send(&e, behind, VIP_STATUS_OP_SEND | VIP_STATUS_DESC_FLUSHED_ERROR);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_ERROR);
    SIDE_SYNC(s, 1);
    leave(&e);
    free(memory);
}

static void spoilt_a(side *s)
{
    spoilt_alone_or_not(s, 0);
    spoilt_alone_or_not(s, 1);
}

static void spoilt_b(side *s)
{
    for (int followed = 0; followed < 2; followed++) {
        endpoint e;
        meet(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4);
        CHECK_EQ(next_recv(&e)->CS.Status, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
        wait_state(&e, VIP_STATE_ERROR);
        SIDE_SYNC(s, 1);
        leave(&e);
    }
}

#define spoilt_again_a spoilt_a
#define spoilt_again_b spoilt_b

static void go_back(viakit_nic_options *o)
{
    o->retransmission = VIAKIT_GO_BACK_N;
}

/* ---- no server: the absence of a server is detected although the first copies of the request were lost */

static void no_peer_a(side *s)
{
    static const uint8_t no_peer[6] = {0x02, 0xde, 0xad, 0, 0, 1};
    endpoint e;
    address local, nowhere;
    VIP_VI_ATTRIBUTES attr;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    make_address(&local, s->attr.LocalNicAddress, "absent", 6);
    make_address(&nowhere, no_peer, "absent", 6);
    /* The link must not take its own silence for an answer: three requests are lost before one goes through. */
    set_faults(s, "drop=request:0-2");
    CHECK_RET(VipConnectRequest(e.vi, &local.net, &nowhere.net, 1000 * CHECK_WAIT_S, &attr), VIP_NOT_REACHABLE);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_dropped), 3);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    CHECK_OK(viakit_set_faults(s->nic, NULL));
    endpoint_close(&e);
}

static void no_peer_b(side *s)
{
    (void)s;
}

#define CASES(X)                                 \
    X(same_seed, 0, NULL)                        \
    X(chosen, 0, NULL)                           \
    X(mended, 0, NULL)                           \
    X(late_alone, 0, NULL)                       \
    X(delayed, 0, NULL)                          \
    X(slow, 0, NULL)                             \
    X(slower, 0, NULL)                           \
    X(far, 0, NULL)                              \
    X(far_limited, 0, far_window)                \
    X(stalled, 0, NULL)                          \
    X(early, CASE_NO_THREAD, patient)            \
    X(lost_twice, 0, patient)                    \
    X(partition_heals, 0, NULL)                  \
    X(cut_by_count, 0, NULL)                     \
    X(partition_for_ever, 0, lost_soon)          \
    X(silence, CASE_NO_LOOP, keepalive_of_20_ms) \
    X(healed, 0, NULL)                           \
    X(older, 0, NULL)                            \
    X(super_frames, 0, NULL)                     \
    X(spoilt, 0, NULL)                           \
    X(spoilt_again, 0, go_back)                  \
    X(no_peer, CASE_NO_ETH, NULL)                \
    X(filter, CASE_NO_THREAD, NULL)

static const test_case cases[] = {
#define ENTRY(name, flags, options) {#name, name##_a, name##_b, flags, options},
    CASES(ENTRY)
#undef ENTRY
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
