/*
 * test_corners.c - what goes wrong late, or from outside: test_corners LINK [CASE...], see harness.h for LINK.
 *
 * The conformance suite posts bad descriptors and polls at once. Here the bad one lies behind a good one, the peer is
 * silent for long, or the program polls seldom. Or the frame is one of an unknown peer, or there is no room for the
 * peer's memory. test_blind.c has the links that are full.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/socket.h>

#include "base/crc32c.h"
#include "harness.h"
#include "link/frame_format.h"
#include "space.h"

#define RELIABLE(level) ((level) != VIP_SERVICE_UNRELIABLE)

/* ---- one_way: an unreliable sender that receives only replies to its probes goes on for ever */

/* So short that probes become due within the test. */
static void short_silence(viakit_nic_options *o)
{
    o->keepalive_ms = 20;
}

#define LONGER 1000 /* bytes: one frame, and too long for the straight path of short messages */

static void one_way_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    viakit_nic_info info;
    int asks; /* a lossless link needs no probes */
    uint64_t target, handle;
    uint8_t *data;
    double end;
    /* Whether this NIC probes at all decides whether the loop below may wait for probes. */
    CHECK_OK(viakit_query_nic(s->nic, &info));
    asks = !info.lossless || s->link->fault;
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 65536);
    d = descriptor(&e, 2);
    data = buffer(&e, LONGER);
    endpoint_connect(&e, "one way");
    target = side_exchange(s, 0);
    handle = side_exchange(s, 0);
    end = check_now() + CHECK_WAIT_S;
    /* Writes, because they need no receives. B sends only replies to probes. If they did not count, A would give up
     * after ten probes. */
    for (int n = 0; n < 1000 || (nic_counter(s, VIAKIT_COUNTER_probes_sent) < 4 && asks); n++) {
        if (check_now() > end)
            FAIL("%d messages and no four probes", n);
        post_send(&e, prep_write(&e, d, data, LONGER, target, (VIP_MEM_HANDLE)handle));
        reap_send(&e, d, VIP_STATUS_OP_RDMA_WRITE);
        CHECK_OK(viakit_poll(s->nic, NULL)); /* sending alone never looks at what has arrived */
    }
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    CHECK_EQ(error_count(s, VIP_ERROR_CONN_LOST), 0);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void one_way_b(side *s)
{
    endpoint e;
    uint8_t *data;
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 65536);
    data = buffer(&e, LONGER);
    endpoint_connect(&e, "one way");
    side_exchange(s, (uintptr_t)data);
    side_exchange(s, e.mh);
    endpoint_disconnect(&e); /* the NIC's thread takes what comes until A is through */
    endpoint_close(&e);
}

/* ---- seldom: who polls too seldom to look at the clock in time has the NIC's thread do what is due */

/* The peer is probed every few polls. */
static void shorter_silence(viakit_nic_options *o)
{
    o->keepalive_ms = 2;
}

static void seldom_a(side *s)
{
    endpoint e;
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 4096);
    post_recv(&e, prep_recv(&e, descriptor(&e, 1), buffer(&e, 8), 8));
    endpoint_connect(&e, "seldom");
    if (!info.lossless || s->link->fault) { /* else there are no probes */
        uint64_t takeovers = 0;
        int asked = 0;
        double end = check_now() + CHECK_WAIT_S;
        /* A probe between two polls is the thread's. If the thread had taken over, it stopped at the second poll at the
         * latest, because it detected the poller. So it sends the third probe only if it runs beside a poller. */
        while (asked < 3) {
            VIP_DESCRIPTOR *d;
            struct timespec t = {0, 50000};
            if (check_now() > end)
                FAIL("the thread left all questions to a program that polls seldom");
            CHECK_RET(VipRecvDone(e.vi, &d), VIP_NOT_DONE);
            if (nic_counter(s, VIAKIT_COUNTER_thread_takeovers) != takeovers)
                asked = 0;
            takeovers = nic_counter(s, VIAKIT_COUNTER_thread_takeovers);
            uint64_t before = nic_counter(s, VIAKIT_COUNTER_probes_sent);
            nanosleep(&t, NULL);
            asked += nic_counter(s, VIAKIT_COUNTER_probes_sent) != before;
        }
    }
    SIDE_SYNC(s, 1);
    endpoint_close(&e);
}

static void seldom_b(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 4096);
    endpoint_connect(&e, "seldom");
    SIDE_SYNC(s, 1); /* its thread answers meanwhile */
    endpoint_close(&e);
}

/* ---- seldom_answers: ... and has it send the acknowledgements that are owed */

/* Each message is acknowledged, because its sender waits for that. B requests the next one over another connection,
 * because frames of the same one would acknowledge, too. */
static void seldom_answers_a(side *s)
{
    endpoint e, other;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 4096);
    endpoint_open(&other, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    VIP_DESCRIPTOR *d = prep_send(&e, descriptor(&e, 1), buffer(&e, 8), 8);
    for (int i = 0; i < 2; i++)
        post_recv(&other, prep_recv(&other, descriptor(&other, 1), NULL, 0));
    endpoint_connect(&e, "seldom");
    endpoint_connect(&other, "the other");
    for (;;) {
        VIP_DESCRIPTOR *word = next_recv(&other);
        uint32_t more = word->CS.ImmediateData;
        post_recv(&other, prep_recv(&other, word, NULL, 0));
        if (!more)
            break;
        post_send(&e, d);
        reap_send(&e, d, VIP_STATUS_OP_SEND);
    }
    endpoint_disconnect(&e);
    endpoint_disconnect(&other);
    endpoint_close(&e);
    endpoint_close(&other);
}

static void ask_for_more(endpoint *e, VIP_DESCRIPTOR *d, uint32_t more)
{
    prep_send(e, d, NULL, 0);
    d->CS.Control |= VIP_CONTROL_IMMEDIATE;
    d->CS.ImmediateData = more;
    post_send(e, d);
    reap_send(e, d, VIP_STATUS_OP_SEND | VIP_STATUS_IMMEDIATE);
}

/* Takes a message, looking seldom, until it is acknowledged: more than `acks` have been sent. Returns whether the NIC's
 * thread sent the acknowledgement beside a program that polls: between two looks, and without a takeover since two
 * looks before, for the reason that stands in seldom_a(). */
static int take_seldom(endpoint *e, uint64_t acks)
{
    int arrived = 0, acked = 0, beside = 0, looks = 0; /* looks since the last takeover */
    uint64_t takeovers = nic_counter(e->s, VIAKIT_COUNTER_thread_takeovers);
    double end = check_now() + CHECK_WAIT_S;
    while (!arrived || !acked) {
        VIP_DESCRIPTOR *d;
        struct timespec t = {0, 50000};
        CHECK(check_now() < end);
        arrived |= VipRecvDone(e->vi, &d) == VIP_SUCCESS;
        looks++;
        acked |= nic_counter(e->s, VIAKIT_COUNTER_acks_sent) != acks;
        nanosleep(&t, NULL);
        int between = !acked && nic_counter(e->s, VIAKIT_COUNTER_acks_sent) != acks;
        acked |= between;
        uint64_t now = nic_counter(e->s, VIAKIT_COUNTER_thread_takeovers);
        if (now != takeovers)
            looks = 0;
        takeovers = now;
        beside |= between && looks > 2;
    }
    return beside;
}

static void seldom_answers_b(side *s)
{
    endpoint e, other;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 4096);
    endpoint_open(&other, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    VIP_DESCRIPTOR *d = descriptor(&e, 1), *word = descriptor(&other, 1);
    uint8_t *data = buffer(&e, 8);
    endpoint_connect(&e, "seldom");
    endpoint_connect(&other, "the other");
    double end = check_now() + CHECK_WAIT_S;
    for (int answered = 0; answered < 3;) {
        if (check_now() > end)
            FAIL("the thread left all acknowledgements to a program that polls seldom");
        uint64_t acks = nic_counter(s, VIAKIT_COUNTER_acks_sent);
        post_recv(&e, prep_recv(&e, d, data, 8));
        ask_for_more(&other, word, 1);
        answered += take_seldom(&e, acks);
    }
    ask_for_more(&other, word, 0);
    endpoint_disconnect(&e);
    endpoint_disconnect(&other);
    endpoint_close(&e);
    endpoint_close(&other);
}

/* ---- forged_request: a request of an unknown peer whose frames have no room for data is dropped */

#define FORGED "forged"
#define NAME_LEN (sizeof(FORGED) - 1)

/* A frame as a NIC on this wire would send it, from A's interface to B's. */
static void send_forged(side *s, int fd, uint16_t max_payload)
{
    uint8_t frame[sizeof(struct ether_header) + sizeof(struct wire_header) + sizeof(struct wire_connect) + NAME_LEN];
    /* The provider's own structures, filled in by hand: what follows is one good frame but for max_payload. */
    uint8_t *p = frame + sizeof(struct ether_header);
    struct ether_header ether;
    struct wire_header h;
    struct wire_connect c;
    struct sockaddr_ll to;
    static uint32_t request = 1000;
    memcpy(ether.ether_dhost, s->peer_host, 6);
    memcpy(ether.ether_shost, s->attr.LocalNicAddress, 6);
    ether.ether_type = htons(WIRE_ETHERTYPE);
    memset(&h, 0, sizeof(h));
    h.version_kind = wire_version_kind(WIRE_REQUEST);
    h.flags = WIRE_FLAG_CRC;
    h.len = sizeof(c) + NAME_LEN;
    h.src_port = 77;
    memset(&c, 0, sizeof(c));
    /* Each a new request, so that none is dropped as a copy. */
    c.request = request++;
    c.key = 4711;
    c.max_transfer = 65536;
    c.reliability = VIP_SERVICE_UNRELIABLE;
    c.max_payload = max_payload;
    c.wanted_len = NAME_LEN;
    memcpy(frame, &ether, sizeof(ether));
    memcpy(p, &h, sizeof(h));
    memcpy(p + sizeof(h), &c, sizeof(c));
    memcpy(p + sizeof(h) + sizeof(c), FORGED, NAME_LEN);
    /* Over everything with crc as 0; the frame must not be dropped for its checksum. */
    h.crc = vk_crc32c(0, p, sizeof(h) + sizeof(c) + NAME_LEN);
    memcpy(p, &h, sizeof(h));
    memset(&to, 0, sizeof(to));
    to.sll_family = AF_PACKET;
    to.sll_ifindex = (int)if_nametoindex("eth0");
    to.sll_halen = 6;
    memcpy(to.sll_addr, s->peer_host, 6);
    CHECK_EQ(sendto(fd, frame, sizeof(frame), 0, (struct sockaddr *)(void *)&to, sizeof(to)), sizeof(frame));
}

static void forged_request_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    int fd;
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 65536);
    fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    for (int i = 0; i < 3; i++) {
        /* No room at all, a byte less than the least, and a possible one. */
        static const uint16_t sizes[] = {0, 15, 1000};
        send_forged(s, fd, sizes[i]);
        SIDE_SYNC(s, 10 + i);
    }
    close(fd);
    /* Nothing of the forger's has harmed the real connection of that name. */
    post_recv(&e, prep_recv(&e, d = descriptor(&e, 1), buffer(&e, LONGER), LONGER));
    endpoint_connect(&e, FORGED);
    reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void forged_request_b(side *s)
{
    endpoint e;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    VIP_DESCRIPTOR *d;
    VIP_RETURN r;
    double end = check_now() + CHECK_WAIT_S;
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 65536);
    make_address(&local, s->attr.LocalNicAddress, FORGED, strlen(FORGED));
    /* B has no thread: frames are looked at while it waits, and at no other time. */
    for (int i = 0; i < 2; i++) {
        while (nic_counter(s, VIAKIT_COUNTER_dropped_malformed) < (uint64_t)i + 1) {
            CHECK(check_now() < end);
            CHECK_RET(VipConnectWait(s->nic, &local.net, 0, &remote.net, &attr, &conn), VIP_TIMEOUT);
        }
        SIDE_SYNC(s, 10 + i);
    }
    /* The third would be valid if its sender were a peer: it proves that the forged frames are well formed. */
    while ((r = VipConnectWait(s->nic, &local.net, 0, &remote.net, &attr, &conn)) == VIP_TIMEOUT)
        CHECK(check_now() < end);
    CHECK_RET(r, VIP_SUCCESS);
    CHECK_OK(VipConnectReject(conn));
    SIDE_SYNC(s, 12);
    endpoint_connect(&e, FORGED);
    post_send(&e, prep_send(&e, d = descriptor(&e, 1), buffer(&e, LONGER), LONGER));
    reap_send(&e, d, VIP_STATUS_OP_SEND);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- bad_receive_behind, bad_receive_first: it fails in its turn, which need not be when it is posted */

#define MANY 300 /* more segments than a descriptor may have */

/* Descriptors of B's with a mistake that shows in the descriptor itself, whatever comes. */
static void many_segments(endpoint *e, VIP_DESCRIPTOR *d)
{
    uint8_t *data = buffer(e, MANY);
    prep_recv(e, d, NULL, 0);
    d->CS.SegCount = MANY;
    d->CS.Length = MANY;
    VIP_DESCRIPTOR_SEGMENT *segments = d->DS; /* more of them than the type declares */
    for (int i = 0; i < MANY; i++) {
        segments[i].Local.Data.Address = data + i;
        segments[i].Local.Handle = e->mh;
        segments[i].Local.Length = 1;
    }
}

static void reserved_bits(endpoint *e, VIP_DESCRIPTOR *d)
{
    prep_recv(e, d, buffer(e, MANY), MANY);
    d->CS.Control |= 0x8000;
}

typedef void spoiler(endpoint *e, VIP_DESCRIPTOR *d);

/* B posts good, bad, good; A sends one message, and, if that did not end the connection, another one. The bad one's
 * turn comes with the end of the first: it completes then, without a message of its own. */
static void bad_behind(side *s, VIP_RELIABILITY_LEVEL level, spoiler *spoil)
{
    endpoint e;
    VIP_DESCRIPTOR *first, *bad, *last;
    int lost = error_count(s, VIP_ERROR_CONN_LOST);
    endpoint_open(&e, s, level, 65536);
    first = prep_recv(&e, descriptor(&e, 1), buffer(&e, MANY), MANY); /* or sends, at A's */
    bad = descriptor(&e, MANY);
    last = prep_recv(&e, descriptor(&e, 1), buffer(&e, MANY), MANY);
    if (s->role == SIDE_B) {
        spoil(&e, bad);
        post_recv(&e, first);
        post_recv(&e, bad);
        post_recv(&e, last);
    }
    endpoint_connect(&e, "bad behind");
    if (s->role == SIDE_A) {
        post_send(&e, first);
        CHECK(next_send(&e) == first);
    } else {
        reap_recv(&e, first, VIP_STATUS_OP_RECEIVE);
        reap_recv(&e, bad, VIP_STATUS_OP_RECEIVE | VIP_STATUS_FORMAT_ERROR); /* needs no message */
    }
    if (RELIABLE(level)) {
        wait_state(&e, VIP_STATE_ERROR);
        if (s->role == SIDE_A)
            wait_error(s, VIP_ERROR_CONN_LOST, lost + 1);
        else
            reap_recv(&e, last, VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
    } else {
        SIDE_SYNC(s, 1);
        if (s->role == SIDE_A) {
            post_send(&e, last);
            reap_send(&e, last, VIP_STATUS_OP_SEND);
        } else {
            reap_recv(&e, last, VIP_STATUS_OP_RECEIVE);
        }
        CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void bad_receive_behind_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        bad_behind(s, s->levels[i], many_segments);
        bad_behind(s, s->levels[i], reserved_bits);
    }
}

/* The first in the queue of a connected VI: its turn has come already when it is posted. */
static void bad_receive_first_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *bad;
        int lost = error_count(s, VIP_ERROR_CONN_LOST);
        endpoint_open(&e, s, s->levels[i], 65536);
        reserved_bits(&e, bad = descriptor(&e, 1));
        endpoint_connect(&e, "bad first");
        if (s->role == SIDE_B) {
            post_recv(&e, bad);
            reap_recv(&e, bad, VIP_STATUS_OP_RECEIVE | VIP_STATUS_FORMAT_ERROR);
        }
        if (RELIABLE(s->levels[i])) {
            wait_state(&e, VIP_STATE_ERROR);
            if (s->role == SIDE_A) /* no operation is in progress whose failure could show it */
                wait_error(s, VIP_ERROR_CONN_LOST, lost + 1);
        } else {
            SIDE_SYNC(s, 1);
            CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- no_room: a process whose address space is limited cannot map the other's memory: both get the error at once */

/* All kinds of requests, to a side that waits for none of them. */
static void make_unreachable(side *s, endpoint *e, uint16_t port)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    make_address(&local, s->attr.LocalNicAddress, "no room", 7);
    for (int one = 0; one < 2; one++) { /* any NIC of the station, and the one there is */
        make_address(&remote, s->peer_host, "no room", 7);
        if (one)
            add_port(&remote, port);
        VIP_RETURN r;
        /* The caller may get NO_MATCH before it has tried to map memory. The next result is final. */
        while ((r = VipConnectRequest(e->vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr)) == VIP_NO_MATCH)
            sched_yield();
        CHECK_RET(r, VIP_NOT_REACHABLE);
        CHECK(strstr(viakit_last_error(), "ulimit -v") != NULL);
        CHECK_EQ(vi_state(e->vi), VIP_STATE_IDLE);
    }
    CHECK_OK(VipConnectPeerRequest(e->vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S));
    CHECK_RET(VipConnectPeerWait(e->vi, &attr), VIP_NOT_REACHABLE);
    CHECK(strstr(viakit_last_error(), "ulimit -v") != NULL);
    CHECK_EQ(vi_state(e->vi), VIP_STATE_IDLE);
}

/* Not under AddressSanitizer, which itself has to map memory for whatever thread begins. */
static void no_room_both(side *s)
{
#ifdef __SANITIZE_ADDRESS__
    (void)s, (void)make_unreachable;
    return;
#endif
    endpoint e;
    viakit_nic_info info;
    if (s->link->kind != ON_SHM)
        return; /* nothing of another process is mapped */
    CHECK_OK(viakit_query_nic(s->nic, &info));
    uint16_t port = (uint16_t)side_exchange(s, info.port);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    if (s->role == SIDE_B)
        limit_address_space(16u << 20);
    for (side_role active = SIDE_A; active <= SIDE_B; active++) {
        SIDE_SYNC(s, 1);
        if (s->role == active)
            make_unreachable(s, &e, port);
    }
    SIDE_SYNC(s, 2);
    if (s->role == SIDE_B)
        limit_address_space(0);
    SIDE_SYNC(s, 3);
    /* With room again they reach each other, a little later: what was found out is believed for half a second. */
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    if (s->role == SIDE_A) {
        VIP_RETURN r;
        make_address(&local, s->attr.LocalNicAddress, "room", 4);
        make_address(&remote, s->peer_host, "room", 4);
        while ((r = VipConnectRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr)) ==
                   VIP_NOT_REACHABLE ||
               r == VIP_NO_MATCH)
            sched_yield();
        CHECK_RET(r, VIP_SUCCESS);
    } else {
        VIP_CONN_HANDLE conn;
        make_address(&local, s->attr.LocalNicAddress, "room", 4);
        CHECK_OK(VipConnectWait(s->nic, &local.net, 1000 * CHECK_WAIT_S, &remote.net, &attr, &conn));
        CHECK_OK(VipConnectAccept(conn, e.vi));
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- unsummed: udp drops datagrams without UDP's checksum, because frames of a batch have no other checksum of their
 * payload
 *
 * B's sockets send without for a while. Their datagrams are dropped and counted, and arrive when they are retransmitted
 * with a checksum. */

#define UNSUMMED_LEN 100000 /* bytes: many frames */

/* Returns the number of B's sockets. */
static int set_no_checksum(int value)
{
    int n = 0;
    for (int fd = 3; fd < 256; fd++) {
        int domain = 0, type = 0;
        socklen_t len = sizeof(domain);
        if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) == 0 && domain == AF_INET &&
            getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len) == 0 && type == SOCK_DGRAM) {
            CHECK_EQ(setsockopt(fd, SOL_SOCKET, SO_NO_CHECK, &value, sizeof(value)), 0);
            n++;
        }
    }
    return n;
}

static void unsummed_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    uint8_t *data;
    uint64_t before = nic_counter(s, VIAKIT_COUNTER_dropped_checksum), received;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, UNSUMMED_LEN);
    post_recv(&e, prep_recv(&e, d = descriptor(&e, 1), data = buffer(&e, UNSUMMED_LEN), UNSUMMED_LEN));
    endpoint_connect(&e, "unsummed");
    SIDE_SYNC(s, 1);
    SIDE_SYNC(s, 2);
    received = nic_counter(s, VIAKIT_COUNTER_bytes_received);
    SIDE_SYNC(s, 3);
    WAIT_UNTIL(nic_counter(s, VIAKIT_COUNTER_dropped_checksum) > before);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_bytes_received), received);
    SIDE_SYNC(s, 4);
    reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
    pattern_check(data, UNSUMMED_LEN, 5);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void unsummed_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    uint8_t *data;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, UNSUMMED_LEN);
    pattern_fill(data = buffer(&e, UNSUMMED_LEN), UNSUMMED_LEN, 5);
    d = descriptor(&e, 1);
    endpoint_connect(&e, "unsummed");
    SIDE_SYNC(s, 1);
    CHECK(set_no_checksum(1) > 0);
    SIDE_SYNC(s, 2);
    SIDE_SYNC(s, 3);
    post_send(&e, prep_send(&e, d, data, UNSUMMED_LEN));
    SIDE_SYNC(s, 4);
    CHECK(set_no_checksum(0) > 0);
    reap_send(&e, d, VIP_STATUS_OP_SEND);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static const test_case cases[] = {
    {"unsummed", unsummed_a, unsummed_b, CASE_ONLY_UDP | CASE_NO_FAULT, NULL},
    {"one_way", one_way_a, one_way_b, 0, short_silence},
    {"seldom", seldom_a, seldom_b, 0, shorter_silence},
    {"seldom_answers", seldom_answers_a, seldom_answers_b, 0, NULL},
    {"forged_request", forged_request_a, forged_request_b, CASE_ONLY_ETH | CASE_NO_FAULT | CASE_NO_THREAD, NULL},
    {"bad_receive_behind", bad_receive_behind_both, bad_receive_behind_both, 0, NULL},
    {"bad_receive_first", bad_receive_first_both, bad_receive_first_both, 0, NULL},
    {"no_room", no_room_both, no_room_both, CASE_NO_LOOP | CASE_NO_ETH | CASE_NO_FAULT, NULL},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
