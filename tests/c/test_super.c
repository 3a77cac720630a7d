/*
 * test_super.c - super-frames of eth on interfaces of every kind: test_super LINK [CASE...].
 *
 * Whatever the interface takes (any MTU, segmentation offload on or off, small limits, changes under way), messages
 * arrive whole. An interface that takes nothing breaks the connection. Both are conditions with a deadline.
 *
 * The sides change their own eth0, which no other test uses, and put it back at the end of each case.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/seccomp.h>
#include <linux/sockios.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "harness.h"
#include "link/eth.h"
#include "link/frame_layout.h"
#include "netns.h"

#define LEAST_MTU 256
#define MOST_MTU 65535
#define IP_AND_UDP 28
#define BATCH 45 /* frames that the provider builds at once */
#define ROOM (2u << 20)
#define MAX_MESSAGES 16

/* ---------------------------------------------------------------- sizes, computed */

/* Does a super-frame of so many bytes fit? The kernel compares the whole frame with gso_max_size, and IP has 16 bits
 * for its length. */
static int fits(uint32_t bytes, uint32_t gso_max_size)
{
    return 14 + IP_AND_UDP + bytes < gso_max_size && IP_AND_UDP + bytes <= 65535;
}

static void sizes_of(uint32_t mtu, uint32_t gso_max_size, uint32_t gso_max_segs)
{
    uint32_t segment = mtu - IP_AND_UDP, bytes = eth_super_bytes(gso_max_size);
    uint32_t segments = eth_super_segments(gso_max_segs), n = eth_super_batch(segment, bytes, segments);
    CHECK(n >= 1);
    CHECK(n <= gso_max_segs || n == 1);
    CHECK(n <= 64);
    if (n > 1)
        CHECK(fits(n * segment, gso_max_size));
    /* No more would have fitted. */
    CHECK(n >= 64 || n >= gso_max_segs || !fits((n + 1) * segment, gso_max_size));
}

/* Full frames of `segment` bytes with a shorter one behind them, as a delay line joins them. */
static void joined(uint32_t segment, uint32_t last, uint32_t bytes)
{
    enum { N = 64 };
    static struct link_frame frames[N];
    uint32_t total = 0;
    int n;
    for (int i = 0; i < N; i++) {
        frames[i].header_len = sizeof(frames[i].header);
        frames[i].payload_len = (i % 45 == 44 ? last : segment) - sizeof(frames[i].header);
    }
    n = link_run_length(frames, N, bytes, 1000);
    for (int i = 0; i < n; i++)
        total += frames[i].header_len + (uint32_t)frames[i].payload_len;
    CHECK(n == 1 || total <= bytes);
}

static void computed(side *s)
{
    static const uint32_t gso[] = {0, 41, 42, 43, 1000, 2000, 8192, 16384, 65535, 65536, 131072, 524280};
    static const uint32_t segs[] = {1, 2, 7, 64, 65535};
    int n_changed = 0;
    (void)s;
    for (uint32_t mtu = LEAST_MTU; mtu <= MOST_MTU; mtu++) {
        uint32_t segment = mtu - IP_AND_UDP, old = 65507 / segment < BATCH ? 65507 / segment : BATCH;
        for (size_t i = 0; i < sizeof(gso) / sizeof(gso[0]); i++)
            for (size_t k = 0; k < sizeof(segs) / sizeof(segs[0]); k++)
                sizes_of(mtu, gso[i], segs[k]);
        n_changed += mtu >= 1500 && old > 1 && !fits(old * segment, 65536);
        joined(segment < 65507 ? segment : 65507, 32 + mtu % 100, eth_super_bytes(65536));
    }
    CHECK_EQ(n_changed, 46);
}

/* ---------------------------------------------------------------- NICs and messages */

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    side *s = context;
    s->last_error = *error;
    atomic_fetch_add_explicit(&s->errors[error->ErrorCode], 1, memory_order_release);
}

/* The NIC anew, for it reads the interface when it is opened. Few slots: their memory takes long to set up.
 * Super-frames wait in the socket's queue and in long slots in turn (test_queue.c). */
static void reopen(side *s)
{
    static int times;
    CHECK_OK(VipCloseNic(s->nic));
    SIDE_SYNC(s, 1);
    s->options.ring_slots = times++ % 2 ? 256 : 64;
    if (viakit_open_nic(s->device, &s->options, &s->nic) != VIP_SUCCESS)
        FAIL("cannot open %s", s->device);
    CHECK_OK(VipErrorCallback(s->nic, s, on_error));
    SIDE_SYNC(s, 2);
}

static uint32_t super_payload(side *s)
{
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    return info.super_payload;
}

static int uses_super_frames(const side *s)
{
    return s->link->form != VIAKIT_FORM_PLAIN;
}

/* n messages from A to B, all posted at once. meanwhile, if not NULL, runs on each side while they are under way. */
static void pass(endpoint *e, const size_t *lens, int n, uint64_t seed, void (*meanwhile)(side *))
{
    side *s = e->s;
    VIP_DESCRIPTOR *d[MAX_MESSAGES];
    static uint8_t *data[MAX_MESSAGES]; /* of this side's endpoint: allocated once, at the end of the region */
    static endpoint *owner;
    static size_t capacity[MAX_MESSAGES];
    static VIP_DESCRIPTOR *kept[MAX_MESSAGES];
    if (owner != e || e->n_buffers == 0) {
        owner = e;
        memset(capacity, 0, sizeof(capacity));
        memset(kept, 0, sizeof(kept));
    }
    for (int i = 0; i < n; i++) {
        if (kept[i] == NULL)
            kept[i] = descriptor(e, 1);
        if (capacity[i] < lens[i] || data[i] == NULL || capacity[i] == 0) {
            data[i] = buffer(e, lens[i] ? lens[i] : 1);
            capacity[i] = lens[i] ? lens[i] : 1;
        }
        d[i] = kept[i];
        if (s->role == SIDE_B)
            post_recv(e, prep_recv(e, d[i], data[i], lens[i]));
        else
            pattern_fill(data[i], lens[i], seed + (uint64_t)i);
    }
    SIDE_SYNC(s, 3);
    if (s->role == SIDE_A)
        for (int i = 0; i < n; i++)
            post_send(e, prep_send(e, d[i], data[i], lens[i]));
    if (meanwhile)
        meanwhile(s);
    for (int i = 0; i < n; i++) {
        if (s->role == SIDE_A) {
            reap_send(e, d[i], VIP_STATUS_OP_SEND);
            continue;
        }
        reap_recv(e, d[i], VIP_STATUS_OP_RECEIVE);
        CHECK_EQ(d[i]->CS.Length, lens[i]);
        pattern_check(data[i], lens[i], seed + (uint64_t)i);
    }
    SIDE_SYNC(s, 4);
}

/* One connection, and messages whose lengths are those of A's frames and super-frames, and one more or less. */
static void exchange_all_lengths(side *s, uint64_t seed)
{
    endpoint e;
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    uint64_t own = (uint64_t)info.max_payload << 32 | info.super_payload, remote = side_exchange(s, own);
    uint64_t sizes = s->role == SIDE_A ? own : remote;
    size_t p = (size_t)(sizes >> 32), super = (size_t)(uint32_t)sizes;
    const size_t lens[] = {0, 1, p - 1, p, p + 1, 2 * p, 2 * p + 1, super - 1, super, super + 1, 100000, 2 * super + 7};
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, ROOM);
    endpoint_connect(&e, "super");
    pass(&e, lens, sizeof(lens) / sizeof(lens[0]), seed, NULL);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* Each side's eth0 as it was; the NIC is reopened for a case that closes it. */
static void restore(side *s)
{
    CHECK_EQ(netns_set_mtu(1500), 0);
    CHECK_EQ(netns_set_gso(65536, 65535), 0);
    CHECK_EQ(netns_set_feature("tx-udp-segmentation", 1), 0);
    reopen(s);
}

/* ---------------------------------------------------------------- MTUs */

static void at_mtu(side *s, int mtu)
{
    snprintf(check_context, sizeof(check_context), "%s %s %c MTU %d", s->link->name, s->test->name,
             s->role == SIDE_A ? 'A' : 'B', mtu);
    CHECK_EQ(netns_set_mtu(mtu), 0);
    SIDE_SYNC(s, mtu);
    reopen(s);
    exchange_all_lengths(s, (uint64_t)mtu);
}

/* Those at which 65507 bytes of full frames would not fit, and their neighbours. */
static void bad_mtus(side *s)
{
    int before = 0;
    for (int mtu = 1500; mtu <= MOST_MTU; mtu++) {
        uint32_t segment = (uint32_t)mtu - IP_AND_UDP, n = 65507 / segment < BATCH ? 65507 / segment : BATCH;
        if (n < 2 || fits(n * segment, 65536))
            continue;
        if (mtu != before + 1)
            at_mtu(s, mtu - 1);
        at_mtu(s, before = mtu);
    }
    restore(s);
}

static void mtus(side *s)
{
    static const int edges[] = {LEAST_MTU,     LEAST_MTU + 1, 575,   576,   1279,         1280,    1499,  1501,
                                8999,          9000,          9001,  32774, 32775,        32776,   65493, 65520,
                                MOST_MTU - 15, 65521,         65534, 65508, MOST_MTU - 1, MOST_MTU};
    for (size_t i = 0; i < sizeof(edges) / sizeof(edges[0]); i++)
        at_mtu(s, edges[i]);
    for (int mtu = 300; mtu < MOST_MTU; mtu += 1499)
        at_mtu(s, mtu);
    restore(s);
}

/* From the least that Linux allows. */
static void small_mtus(side *s)
{
    for (int mtu = 68; mtu < LEAST_MTU; mtu += mtu < 250 ? 17 : 1) {
        VIP_NIC_HANDLE nic;
        CHECK_EQ(netns_set_mtu(mtu), 0);
        CHECK_RET(viakit_open_nic(s->device, NULL, &nic), VIP_INVALID_PARAMETER);
        CHECK(strstr(viakit_last_error(), "least MTU is 256") != NULL);
    }
    CHECK_EQ(netns_set_mtu(LEAST_MTU), 0);
    restore(s);
}

/* ---------------------------------------------------------------- offload and limits */

static void offload_off(side *s)
{
    static const int some[] = {LEAST_MTU, 576, 1500, 2013, 9000, 16404, MOST_MTU};
    /* Off at A, at B, at both. */
    for (int where = 1; where <= 3; where++) {
        if (where >> s->role & 1)
            CHECK_EQ(netns_set_feature("tx-udp-segmentation", 0), 0);
        for (size_t i = 0; i < sizeof(some) / sizeof(some[0]); i++) {
            at_mtu(s, some[i]);
            if (where >> s->role & 1) {
                viakit_nic_info info;
                CHECK_OK(viakit_query_nic(s->nic, &info));
                CHECK_EQ(info.super_payload, info.max_payload);
                CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_super_frames_refused), 0); /* found out at open */
            }
        }
        CHECK_EQ(netns_set_mtu(1500), 0);
        restore(s);
    }
}

static void small_gso(side *s)
{
    static const uint32_t sizes[] = {1000, 1514, 2986, 2987, 4096, 8192, 16384, 65493, 65535};
    static const uint32_t segments[] = {1, 2, 3, 40};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        CHECK_EQ(netns_set_gso(sizes[i], 65535), 0);
        reopen(s);
        if (uses_super_frames(s))
            CHECK(super_payload(s) == 1440 || fits(super_payload(s) / 1440 * 1472, sizes[i]));
        exchange_all_lengths(s, i);
        CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_super_frames_refused), 0);
    }
    for (size_t i = 0; i < sizeof(segments) / sizeof(segments[0]); i++) {
        CHECK_EQ(netns_set_gso(65536, segments[i]), 0);
        reopen(s);
        if (uses_super_frames(s))
            CHECK_EQ(super_payload(s), 1440 * segments[i]);
        exchange_all_lengths(s, i);
    }
    restore(s);
}

/* ---------------------------------------------------------------- changes under way */

static int round_number;

/* The interface of A loses what it could do while messages are posted, and gets it back; then B's, which changes
 * nothing for A. */
static void change_features(side *s)
{
    if (round_number == 2 && s->role == SIDE_A)
        CHECK_EQ(netns_set_feature("tx-udp-segmentation", 0), 0);
    if (round_number == 4 && s->role == SIDE_A)
        CHECK_EQ(netns_set_feature("tx-udp-segmentation", 1), 0);
    if (round_number == 10 && s->role == SIDE_A)
        CHECK_EQ(netns_set_gso(5000, 65535), 0);
    if (round_number == 12)
        CHECK_EQ(netns_set_feature("tx-checksum-ip-generic", 0), 0);
    if (round_number == 14) {
        CHECK_EQ(netns_set_feature("tx-checksum-ip-generic", 1), 0);
        CHECK_EQ(netns_set_feature("tx-udp-segmentation", 1), 0);
        CHECK_EQ(netns_set_gso(65536, 65535), 0);
    }
}

#define ROUNDS 20

static void changes(side *s)
{
    endpoint e;
    size_t lens[8];
    VIP_UINT64 sent[ROUNDS], refused[ROUNDS];
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, ROOM);
    for (size_t i = 0; i < 8; i++)
        lens[i] = 200000;
    endpoint_connect(&e, "changes");
    for (round_number = 0; round_number < ROUNDS; round_number++) {
        pass(&e, lens, 8, (uint64_t)round_number * 8, change_features);
        sent[round_number] = nic_counter(s, VIAKIT_COUNTER_super_frames_sent);
        refused[round_number] = nic_counter(s, VIAKIT_COUNTER_super_frames_refused);
        if (round_number == 3 && s->role == SIDE_A && uses_super_frames(s))
            CHECK_EQ(super_payload(s), 1440);
        if (round_number == 11 && s->role == SIDE_A && uses_super_frames(s))
            CHECK_EQ(super_payload(s), 3 * 1440);
    }
    if (s->role == SIDE_A && uses_super_frames(s)) {
        CHECK(sent[1] > 0);
        CHECK_EQ(refused[1], 0);
        CHECK(refused[3] > 0);
        CHECK_EQ(sent[3], sent[2]);
        CHECK(sent[9] > sent[3]); /* in use again */
        CHECK(refused[11] > refused[9]);
        CHECK(sent[11] > sent[10]); /* short ones */
        CHECK_EQ(sent[13], sent[12]);
        CHECK(sent[ROUNDS - 1] > sent[13]);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
    restore(s);
}

/* ---------------------------------------------------------------- faults that join frames */

static void with_faults(side *s, const char *text)
{
    viakit_faults f = {.size = sizeof(f)};
    endpoint e;
    size_t lens[MAX_MESSAGES];
    uint64_t state = 7;
    CHECK_OK(viakit_parse_faults(text, &f));
    CHECK_OK(viakit_set_faults(s->nic, &f));
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 8u << 20);
    endpoint_connect(&e, "joined");
    for (uint64_t round = 0; round < 6; round++) {
        for (int i = 0; i < MAX_MESSAGES; i++) /* the same on both sides */
            lens[i] = random_next(&state) % (i % 2 ? 60000 : 3000);
        pass(&e, lens, MAX_MESSAGES, round * MAX_MESSAGES, NULL);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void lines(side *s)
{
    with_faults(s, "delay=200us");
    with_faults(s, "jitter=300us,seed=3");
    with_faults(s, "delay=100us,jitter=100us,loss=0.01,seed=5");
    for (int on = 0; on <= 1; on++) {
        CHECK_EQ(netns_set_feature("tx-udp-segmentation", on), 0);
        CHECK_EQ(netns_set_mtu(on ? 2013 : 1500), 0);
        reopen(s);
        with_faults(s, "delay=200us,jitter=50us,seed=9");
    }
    restore(s);
}

/* ---------------------------------------------------------------- drivers that refuse */

/* From now on the send calls of this process on packet sockets fail with ENOBUFS: on those that send super-frames, or
 * on all. Other threads of the process, too. */
static void refuse(int only_super)
{
    int fds[16], n = 0;
    struct sock_filter code[64];
    unsigned short k = 0;
    DIR *d = opendir("/proc/self/fd");
    CHECK(d != NULL);
    for (struct dirent *entry; (entry = readdir(d)) != NULL;) {
        int fd = atoi(entry->d_name), domain = 0, vnet = 0;
        socklen_t len = sizeof(domain);
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) || domain != AF_PACKET)
            continue;
        len = sizeof(vnet);
        CHECK_EQ(getsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &vnet, &len), 0);
        if (vnet || !only_super)
            fds[n++] = fd;
    }
    closedir(d);
    CHECK(n > 0 && n < 16);
    /* The calls by number, then the descriptor. */
    code[k++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    code[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendmsg, 1, 0);
    code[k++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sendto, 0, (unsigned char)(n + 1));
    code[k++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0]));
    for (int i = 0; i < n; i++)
        code[k++] =
            (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)fds[i], (unsigned char)(n - i), 0);
    code[k++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    code[k++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOBUFS);
    struct sock_fprog program = {k, code};
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), 0);
}

/* The features promise segmentation, but the driver refuses each super-frame. */
static void driver_refuses(side *s)
{
    endpoint e;
    size_t lens[8];
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, ROOM);
    for (size_t i = 0; i < 8; i++)
        lens[i] = 200000;
    endpoint_connect(&e, "refused");
    pass(&e, lens, 8, 1, NULL);
    if (s->role == SIDE_A && uses_super_frames(s))
        refuse(1);
    for (uint64_t i = 0; i < 4; i++)
        pass(&e, lens, 8, 10 * i, NULL);
    if (s->role == SIDE_A && uses_super_frames(s)) {
        VIP_UINT64 refused = nic_counter(s, VIAKIT_COUNTER_super_frames_refused);
        CHECK(refused > 0);
        CHECK(refused < 32); /* few tries: the pauses grow */
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---------------------------------------------------------------- a sandbox that hides the interface's features */

/* From now on this process has no netlink sockets and, if all, no ethtool requests. It cannot change eth0 any more
 * either, so these cases are the last. */
static void hide(int all)
{
    const uint32_t request = offsetof(struct seccomp_data, args[1]);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 4, 3),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, request),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, all ? SIOCETHTOOL : 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
    };
    struct sock_fprog program = {sizeof(code) / sizeof(code[0]), code};
    CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    CHECK_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program), 0);
}

/* Super-frames that are too long are refused until the pauses are long; the others go. */
static void hidden_limits(side *s)
{
    CHECK_EQ(netns_set_gso(3000, 65535), 0);
    hide(0);
    reopen(s);
    exchange_all_lengths(s, 1);
    if (s->role == SIDE_A && uses_super_frames(s))
        CHECK(nic_counter(s, VIAKIT_COUNTER_super_frames_refused) > 0);
}

/* The probe at open detects the difference. */
static void hidden_on(side *s)
{
    hide(1);
    reopen(s);
    if (uses_super_frames(s))
        CHECK(super_payload(s) > 1440);
    exchange_all_lengths(s, 2);
    if (s->role == SIDE_A && uses_super_frames(s))
        CHECK(nic_counter(s, VIAKIT_COUNTER_super_frames_sent) > 1);
}

static void hidden_off(side *s)
{
    CHECK_EQ(netns_set_feature("tx-udp-segmentation", 0), 0);
    hide(1);
    reopen(s);
    if (uses_super_frames(s))
        CHECK_EQ(super_payload(s), 1440);
    exchange_all_lengths(s, 3);
    if (uses_super_frames(s))
        CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_super_frames_sent), 0);
}

/* The interface has carrier and takes nothing any more. */
static void takes_nothing_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    viakit_nic_info info;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, ROOM);
    d = descriptor(&e, 1);
    endpoint_connect(&e, "nothing");
    SIDE_SYNC(s, 1);
    refuse(0);
    post_send(&e, prep_send(&e, d, buffer(&e, 100000), 100000));
    CHECK(next_send(&e) == d);
    CHECK(d->CS.Status & VIP_STATUS_ERROR_MASK);
    wait_error(s, VIP_ERROR_CONN_LOST, 1);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_ERROR);
    CHECK_OK(viakit_query_nic(s->nic, &info));
    CHECK(strstr(info.trouble, "eth0") != NULL);
    CHECK(strstr(info.trouble, strerror(ENOBUFS)) != NULL);
    SIDE_SYNC(s, 2);
    endpoint_close(&e);
}

static void takes_nothing_b(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, ROOM);
    prep_recv(&e, descriptor(&e, 1), buffer(&e, 100000), 100000);
    endpoint_connect(&e, "nothing");
    SIDE_SYNC(s, 1);
    SIDE_SYNC(s, 2);
    endpoint_close(&e);
}

static const test_case cases[] = {
    {"computed", computed, computed, CASE_ONLY_ETH, NULL},
    {"small_mtus", small_mtus, small_mtus, CASE_ONLY_ETH, NULL},
    {"mtus", mtus, mtus, CASE_ONLY_ETH, NULL},
    {"bad_mtus", bad_mtus, bad_mtus, CASE_ONLY_ETH, NULL},
    {"offload_off", offload_off, offload_off, CASE_ONLY_ETH, NULL},
    {"small_gso", small_gso, small_gso, CASE_ONLY_ETH, NULL},
    {"changes", changes, changes, CASE_ONLY_ETH, NULL},
    {"lines", lines, lines, CASE_ONLY_ETH, NULL},
    {"driver_refuses", driver_refuses, driver_refuses, CASE_ONLY_ETH, NULL},
    {"takes_nothing", takes_nothing_a, takes_nothing_b, CASE_ONLY_ETH, NULL},
    {"takes_nothing_polled", takes_nothing_a, takes_nothing_b, CASE_ONLY_ETH | CASE_NO_THREAD, NULL},
    {"hidden_on", hidden_on, hidden_on, CASE_ONLY_ETH, NULL},
    {"hidden_limits", hidden_limits, hidden_limits, CASE_ONLY_ETH, NULL},
    {"hidden_off", hidden_off, hidden_off, CASE_ONLY_ETH, NULL},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
