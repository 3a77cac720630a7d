/*
 * test_forged.c - forged frames: test_forged LINK [CASE...], on eth links that take plain frames.
 *
 * B listens to the wire with a socket of its own, as any station on the wire could. It learns A's key from A's
 * connection request, and sends A frames that no NIC would send. A drops and counts them, and goes on. A forged frame
 * is valid in all but one point, also in its checksum: a frame that is dropped for another reason would prove nothing.
 *
 * B's NIC has no thread. A case that must not wake it syncs by side_sync_blind(), or the NIC would reply instead of the
 * forger.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <sys/socket.h>

#include "base/crc32c.h"
#include "harness.h"
#include "link/frame_format.h"

/* Sees every plain frame of this interface, and never blocks. */
static int open_wire(void)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, htons(WIRE_ETHERTYPE));
    CHECK(fd >= 0);
    return fd;
}

/* From a station to A's interface, with a checksum that is right. */
static void forge_from(side *s, const uint8_t station[6], int fd, struct wire_header h, const void *payload, size_t len)
{
    uint8_t frame[sizeof(struct ether_header) + sizeof(h) + 2048];
    struct ether_header ether;
    struct sockaddr_ll to;
    CHECK(len <= 2048);
    memcpy(ether.ether_dhost, s->peer_host, 6);
    memcpy(ether.ether_shost, station, 6);
    ether.ether_type = htons(WIRE_ETHERTYPE);
    h.version_kind = wire_version_kind(h.version_kind);
    h.flags |= WIRE_FLAG_CRC;
    h.len = (uint16_t)len;
    h.crc = 0;
    h.crc = vk_crc32c(vk_crc32c(0, &h, sizeof(h)), payload, len);
    memcpy(frame, &ether, sizeof(ether));
    memcpy(frame + sizeof(ether), &h, sizeof(h));
    memcpy(frame + sizeof(ether) + sizeof(h), payload, len);
    memset(&to, 0, sizeof(to));
    to.sll_family = AF_PACKET;
    to.sll_ifindex = (int)if_nametoindex("eth0");
    to.sll_halen = 6;
    memcpy(to.sll_addr, s->peer_host, 6);
    len += sizeof(ether) + sizeof(h);
    CHECK_EQ(sendto(fd, frame, len, 0, (struct sockaddr *)(void *)&to, sizeof(to)), len);
}

static void forge(side *s, int fd, struct wire_header h, const void *payload, size_t len)
{
    forge_from(s, s->attr.LocalNicAddress, fd, h, payload, len);
}

/* The latest frame of that kind on the wire (a client that found no server requests again, with another key), with its
 * connection block. Waits for the first one. */
static struct wire_header listen_for(int fd, int kind, struct wire_connect *block)
{
    uint8_t frame[2048];
    struct wire_header h, found;
    int n_found = 0;
    double end = check_now() + CHECK_WAIT_S;
    for (;;) {
        ssize_t n = recv(fd, frame, sizeof(frame), 0);
        if (n < 0 && n_found)
            return found;
        if (n < 0) {
            CHECK(check_now() < end);
            sched_yield();
            continue;
        }
        if (n < (ssize_t)(sizeof(struct ether_header) + sizeof(h) + sizeof(*block)))
            continue;
        memcpy(&h, frame + sizeof(struct ether_header), sizeof(h));
        if ((h.version_kind & 15) != kind)
            continue;
        memcpy(block, frame + sizeof(struct ether_header) + sizeof(h), sizeof(*block));
        found = h;
        n_found++;
    }
}

/* As SIDE_SYNC, but B's NIC is not driven meanwhile. */
static void side_sync_blind(side *s, int tag)
{
    s->options.no_thread = 0; /* as if the NIC had a thread that does it */
    SIDE_SYNC(s, tag);
    s->options.no_thread = 1;
}

/* ---- forged_accept: an acceptance that names frames without room for data, is truncated, or is for another VI */

static void forged_accept_a(side *s)
{
    endpoint e;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    uint64_t before = nic_counter(s, VIAKIT_COUNTER_dropped_malformed);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    make_address(&local, s->attr.LocalNicAddress, "forged", 6);
    make_address(&remote, s->peer_host, "forged", 6);
    SIDE_SYNC(s, 1);
    CHECK_RET(VipConnectRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr), VIP_REJECT);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    CHECK(nic_counter(s, VIAKIT_COUNTER_dropped_malformed) >= before + 3);
    SIDE_SYNC(s, 2);
    endpoint_close(&e);
}

/* B's NIC has no thread and is not polled: only the forger receives A's requests. */
static void forged_accept_b(side *s)
{
    int fd = open_wire();
    struct wire_connect c;
    struct wire_header h;
    uint32_t key;
    side_sync_blind(s, 1);
    h = listen_for(fd, WIRE_REQUEST, &c);
    key = c.key; /* it proves to A that the sender has seen the request, as the server has */
    h = (struct wire_header){.version_kind = WIRE_ACCEPT,
                             .dst_port = h.src_port,
                             .dst_vi = h.src_vi,
                             .src_port = 5,
                             .src_vi = 6,
                             .key = key};
    /* Two that leave no room for data, a truncated one, and valid ones with a wrong key or for another request: three
     * are malformed, the others belong to no request. */
    c.key = 4711;
    c.max_payload = 0;
    forge(s, fd, h, &c, sizeof(c));
    c.max_payload = WIRE_LEAST_PAYLOAD - 1;
    forge(s, fd, h, &c, sizeof(c));
    c.max_payload = 1000;
    forge(s, fd, h, &c, sizeof(c) - 1);
    h.key = key + 1;
    forge(s, fd, h, &c, sizeof(c));
    h.key = key;
    c.request++;
    forge(s, fd, h, &c, sizeof(c));
    c.request--;
    /* At last one that A believes, so that the request ends. */
    h.version_kind = WIRE_REJECT;
    forge(s, fd, h, &c, sizeof(c));
    side_sync_blind(s, 2);
    close(fd);
}

/* ---- forged_confirm: a confirmation of a promise that was never made, from a station whose address is all zeros */

static void forged_confirm_a(side *s)
{
    endpoint e;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    uint64_t before = nic_counter(s, VIAKIT_COUNTER_dropped_unknown_peer);
    double end = check_now() + CHECK_WAIT_S;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    /* Peer requests: A requests, and a confirmation would mean that A's promise has arrived. A has made none. */
    make_address(&local, s->attr.LocalNicAddress, "forged", 6);
    make_address(&remote, s->peer_host, "forged", 6);
    SIDE_SYNC(s, 1);
    CHECK_OK(VipConnectPeerRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S));
    SIDE_SYNC(s, 2); /* it was forged */
    while (nic_counter(s, VIAKIT_COUNTER_dropped_unknown_peer) == before) {
        CHECK(check_now() < end);
        CHECK_RET(VipConnectPeerDone(e.vi, &attr), VIP_NOT_DONE);
    }
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECT_PENDING);
    CHECK_OK(VipDisconnect(e.vi));
    endpoint_close(&e);
}

static void forged_confirm_b(side *s)
{
    static const uint8_t nowhere[6];
    int fd = open_wire();
    struct wire_connect c, none = {0};
    struct wire_header h;
    side_sync_blind(s, 1);
    h = listen_for(fd, WIRE_REQUEST, &c);
    h = (struct wire_header){
        .version_kind = WIRE_CONFIRM, .dst_port = h.src_port, .dst_vi = h.src_vi, .key = c.key}; /* all else is 0 */
    /* No address, no VI, no key of the partner's: as what a VI remembers of a partner that it does not have. */
    forge_from(s, nowhere, fd, h, &none, sizeof(none));
    side_sync_blind(s, 2);
    close(fd);
}

/* ---- unsummed: a dressed frame with a checksum of its header only, and UDP's is missing or is not over the payload
 *
 * The kernel reports both frames as local ones, whose checksum is not computed yet. The first is as NICs send them. */

static void send_dressed(side *s, int fd, uint16_t port, int has_sum)
{
    struct {
        struct virtio_net_hdr vnet;
        struct ether_header ether;
        uint8_t ip[20], udp[8];
        uint8_t h[sizeof(struct wire_header)], payload[64];
    } __attribute__((packed)) f;
    const uint16_t udp_len = sizeof(f.udp) + sizeof(f.h) + sizeof(f.payload);
    struct wire_header h;
    struct sockaddr_ll to;
    memset(&f, 0, sizeof(f));
    memset(&h, 0, sizeof(h));
    f.vnet.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    f.vnet.csum_start = sizeof(f.ether) + sizeof(f.ip);
    f.vnet.csum_offset = has_sum ? 6 : sizeof(f.udp) + sizeof(f.h); /* of UDP, or in the payload */
    memcpy(f.ether.ether_dhost, s->peer_host, 6);
    memcpy(f.ether.ether_shost, s->attr.LocalNicAddress, 6);
    f.ether.ether_type = htons(ETHERTYPE_IP);
    f.ip[0] = 0x45;
    f.ip[3] = (uint8_t)(sizeof(f.ip) + udp_len);
    f.ip[8] = 64;
    f.ip[9] = IPPROTO_UDP;
    f.udp[0] = f.udp[2] = WIRE_UDP_PORT >> 8;
    f.udp[1] = f.udp[3] = WIRE_UDP_PORT & 255;
    f.udp[5] = (uint8_t)udp_len;
    f.udp[7] = has_sum ? (uint8_t)(IPPROTO_UDP + udp_len) : 0; /* of the pseudo-header: the addresses are 0 */
    h.version_kind = wire_version_kind(WIRE_SEND);
    h.len = sizeof(f.payload);
    h.dst_port = port;
    h.dst_vi = 4000; /* no such VI: a frame with a valid checksum counts as one of an unknown peer */
    h.crc = vk_crc32c(0, &h, sizeof(h));
    memcpy(f.h, &h, sizeof(h));
    memset(&to, 0, sizeof(to));
    to.sll_family = AF_PACKET;
    to.sll_ifindex = (int)if_nametoindex("eth0");
    to.sll_halen = 6;
    memcpy(to.sll_addr, s->peer_host, 6);
    CHECK_EQ(sendto(fd, &f, sizeof(f), 0, (struct sockaddr *)(void *)&to, sizeof(to)), sizeof(f));
}

static void unsummed_a(side *s)
{
    viakit_nic_info info;
    uint64_t n_dropped = nic_counter(s, VIAKIT_COUNTER_dropped_unknown_peer);
    uint64_t unsummed = nic_counter(s, VIAKIT_COUNTER_dropped_checksum);
    double end = check_now() + CHECK_WAIT_S;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    side_exchange(s, info.port);
    if (s->link->form == VIAKIT_FORM_PLAIN) /* takes no dressed frames */
        return;
    while (nic_counter(s, VIAKIT_COUNTER_dropped_checksum) == unsummed ||
           nic_counter(s, VIAKIT_COUNTER_dropped_unknown_peer) == n_dropped) {
        CHECK(check_now() < end);
        CHECK_OK(viakit_poll(s->nic, NULL));
    }
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_dropped_checksum), unsummed + 1);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_dropped_unknown_peer), n_dropped + 1);
}

static void unsummed_b(side *s)
{
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), one = 1;
    uint16_t port = (uint16_t)side_exchange(s, 0);
    CHECK(fd >= 0);
    CHECK_EQ(setsockopt(fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof(one)), 0);
    send_dressed(s, fd, port, 0);
    send_dressed(s, fd, port, 1);
    close(fd);
}

/* ---- forged_lists: what a receiver claims to have and to miss is checked against what is in flight
 *
 * A sends to B, which says nothing (its NIC is not driven), so that much is in flight while the forger speaks. */

#define IN_FLIGHT 40

static void forged_lists_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[IN_FLIGHT + 1];
    uint64_t malformed, repeated;
    viakit_vi_info info;
    double end = check_now() + CHECK_WAIT_S;
    /* 40 frames in flight, none of them acknowledged: the forger's lists are about these. */
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 262144);
    for (int i = 0; i <= IN_FLIGHT; i++)
        prep_send(&e, d[i] = descriptor(&e, 1), buffer(&e, 100), 100);
    SIDE_SYNC(s, 0); /* the forger listens */
    endpoint_connect(&e, "lists");
    SIDE_SYNC(s, 1);
    /* The counts begin here. */
    malformed = nic_counter(s, VIAKIT_COUNTER_dropped_malformed);
    repeated = nic_counter(s, VIAKIT_COUNTER_frames_retransmitted);
    for (int i = 0; i < IN_FLIGHT; i++)
        post_send(&e, d[i]);
    SIDE_SYNC(s, 2);
    SIDE_SYNC(s, 3); /* everything was forged */
    while (nic_counter(s, VIAKIT_COUNTER_naks_received) < 8) {
        CHECK(check_now() < end);
        CHECK_OK(viakit_poll(s->nic, NULL));
    }
    CHECK_OK(viakit_query_vi(e.vi, &info));
    /* Nothing that is in flight was taken for acknowledged. */
    CHECK_EQ(info.frames_in_flight, IN_FLIGHT);
    /* Six of the eight lists make no sense. */
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_dropped_malformed) - malformed, 6);
    /* Two lists were plausible, and the same: what they name was sent again, once. */
    CHECK(nic_counter(s, VIAKIT_COUNTER_frames_retransmitted) - repeated >= 10);
    CHECK(nic_counter(s, VIAKIT_COUNTER_frames_retransmitted) - repeated <=
          10 + nic_counter(s, VIAKIT_COUNTER_tail_probes) + IN_FLIGHT * nic_counter(s, VIAKIT_COUNTER_timeouts));
    /* Now B's NIC is driven, and all arrives once. */
    SIDE_SYNC(s, 4);
    for (int i = 0; i < IN_FLIGHT; i++)
        reap_send(&e, d[i], VIP_STATUS_OP_SEND);
    post_send(&e, d[IN_FLIGHT]);
    reap_send(&e, d[IN_FLIGHT], VIP_STATUS_OP_SEND);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void forged_lists_b(side *s)
{
    static const struct {
        struct wire_run runs[3];
        size_t len;
        uint32_t ahead; /* of what is unacknowledged */
    } lists[] = {
        {{{65535, 65535}}, 4, 0},          /* more than is in flight */
        {{{1, IN_FLIGHT}}, 4, 0},          /* by one */
        {{{0, 0}, {0, 0}, {0, 0}}, 12, 0}, /* says nothing at all */
        {{{1, 1}, {1, 1}}, 7, 0},          /* cut */
        {{{1, 1}}, 4, 0x80000000u},        /* acknowledges what was never sent */
        {{{1, 1}}, 1, 0},
        {{{5, 5}, {5, 1}}, 8, 0}, /* plausible, and a lie */
        {{{5, 5}, {5, 1}}, 8, 0},
    };
    endpoint e;
    VIP_DESCRIPTOR *d[IN_FLIGHT + 1];
    struct wire_connect c;
    struct wire_header h;
    uint32_t first;
    viakit_nic_info info;
    int fd = open_wire();
    CHECK_OK(viakit_query_nic(s->nic, &info));
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 262144);
    for (int i = 0; i <= IN_FLIGHT; i++)
        post_recv(&e, d[i] = prep_recv(&e, descriptor(&e, 1), buffer(&e, 100), 100));
    SIDE_SYNC(s, 0);
    endpoint_connect(&e, "lists");
    /* The first frame's number is in A's request. */
    h = listen_for(fd, WIRE_REQUEST, &c);
    first = c.first_psn;
    side_sync_blind(s, 1);
    /* As B's only VI, which has number 0, would send it. */
    h = (struct wire_header){
        .version_kind = WIRE_NAK, .dst_port = h.src_port, .dst_vi = h.src_vi, .src_port = info.port, .key = c.key};
    side_sync_blind(s, 2);
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        /* Most lists acknowledge nothing; one acknowledges half the numbers that there are. */
        h.ack = first + lists[i].ahead;
        forge(s, fd, h, lists[i].runs, lists[i].len);
    }
    side_sync_blind(s, 3);
    side_sync_blind(s, 4);
    close(fd);
    for (int i = 0; i <= IN_FLIGHT; i++)
        reap_recv(&e, d[i], VIP_STATUS_OP_RECEIVE);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- forged_unknown: frames whose source is all zeros, as is what a VI without a peer remembers of its peer
 *
 * They are whole messages in turn, and the VI has a receive for them; but it is idle, is being connected, or waits for
 * a frame before them. */

#define FIRST_PSN 1000

/* So the forger knows the numbers without having seen a frame. */
static void known_psn(viakit_nic_options *o)
{
    o->first_psn = FIRST_PSN;
}

/* Two frames have arrived, and were not taken. */
static void took_nothing(side *s, VIP_DESCRIPTOR *d, const uint8_t *data, uint64_t before)
{
    double end = check_now() + CHECK_WAIT_S;
    /* The count rises when the frames were looked at; until then the descriptor must stay untouched. */
    while (nic_counter(s, VIAKIT_COUNTER_dropped_unknown_peer) < before + 2) {
        CHECK_EQ(d->CS.Status, 0);
        CHECK(check_now() < end);
        CHECK_OK(viakit_poll(s->nic, NULL));
    }
    CHECK_EQ(d->CS.Status, 0);
    CHECK_EQ(data[0], 0xEE);
}

static void forged_unknown_a(side *s)
{
    endpoint e;
    address local, remote;
    viakit_nic_info info;
    double end = check_now() + CHECK_WAIT_S;
    uint64_t before = nic_counter(s, VIAKIT_COUNTER_dropped_unknown_peer);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 64);
    CHECK_OK(viakit_query_nic(s->nic, &info));
    /* The port of A's NIC is no secret. */
    side_exchange(s, info.port);
    post_recv(&e, prep_recv(&e, d, data, 64));
    SIDE_SYNC(s, 1); /* forged, to an idle VI */
    took_nothing(s, d, data, before);
    make_address(&local, s->attr.LocalNicAddress, "absent", 6);
    make_address(&remote, s->peer_host, "absent", 6);
    CHECK_OK(VipConnectPeerRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S));
    SIDE_SYNC(s, 2);
    SIDE_SYNC(s, 3); /* forged, to a requesting VI */
    took_nothing(s, d, data, before + 2);
    CHECK_OK(VipDisconnect(e.vi));
    drain(e.vi);
    SIDE_SYNC(s, 4); /* the forger listens */
    endpoint_connect(&e, "absent");
    post_recv(&e, prep_recv(&e, d, data, 64));
    SIDE_SYNC(s, 5);
    SIDE_SYNC(s, 6); /* first a frame that leaves a gap, and then forged again */
    before = nic_counter(s, VIAKIT_COUNTER_dropped_unknown_peer);
    while (nic_counter(s, VIAKIT_COUNTER_frames_kept_out_of_order) == 0) {
        CHECK(check_now() < end);
        CHECK_OK(viakit_poll(s->nic, NULL));
    }
    SIDE_SYNC(s, 7);
    SIDE_SYNC(s, 8);
    took_nothing(s, d, data, before);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* Twice the same message, once with the flags that request a reply: neither may get one. */
static void forge_from_unknown(side *s, int fd, uint16_t port, uint32_t psn)
{
    static const uint8_t unknown[6] = {0x02, 9, 9, 9, 9, 9};
    struct wire_header h = {.version_kind = WIRE_SEND,
                            .flags = WIRE_FLAG_FIRST | WIRE_FLAG_LAST,
                            .dst_port = port,
                            .psn = psn}; /* all else is 0: the VI is A's only one */
    forge_from(s, unknown, fd, h, "attacker's data!!", 17);
    h.flags |= WIRE_FLAG_MUST_ACK | WIRE_FLAG_ACK_NOW;
    forge_from(s, unknown, fd, h, "attacker's data!!", 17);
}

static void forged_unknown_b(side *s)
{
    endpoint e;
    struct wire_connect c;
    struct wire_header h;
    viakit_nic_info info;
    int fd = open_wire();
    uint16_t port = (uint16_t)side_exchange(s, 0);
    CHECK_OK(viakit_query_nic(s->nic, &info));
    forge_from_unknown(s, fd, port, 0);
    side_sync_blind(s, 1);
    side_sync_blind(s, 2);
    forge_from_unknown(s, fd, port, 0);
    side_sync_blind(s, 3);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    /* Frames on the wire up to here belong to the earlier request. */
    listen_for(fd, WIRE_REQUEST, &c); /* until here */
    side_sync_blind(s, 4);
    endpoint_connect(&e, "absent");
    h = listen_for(fd, WIRE_REQUEST, &c);
    side_sync_blind(s, 5);
    /* From B's own VI, and good: it has the second number, so A keeps it and waits for the first, which the attacker
     * then pretends to be. */
    h = (struct wire_header){.version_kind = WIRE_SEND,
                             .flags = WIRE_FLAG_FIRST | WIRE_FLAG_LAST,
                             .dst_port = h.src_port,
                             .dst_vi = h.src_vi,
                             .src_port = info.port,
                             .key = c.key,
                             .psn = FIRST_PSN + 1,
                             .ack = FIRST_PSN};
    forge(s, fd, h, "later", 5);
    side_sync_blind(s, 6);
    side_sync_blind(s, 7);
    forge_from_unknown(s, fd, port, FIRST_PSN);
    side_sync_blind(s, 8);
    close(fd);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* A's own retransmissions must not mix with those that the lists request. */
static void slow(viakit_nic_options *o)
{
    o->rto_us = 400000;
}

static const test_case cases[] = {
    {"unsummed", unsummed_a, unsummed_b, CASE_NO_THREAD, NULL},
    {"forged_accept", forged_accept_a, forged_accept_b, CASE_ONLY_ETH | CASE_NO_FAULT | CASE_NO_THREAD, NULL},
    {"forged_confirm", forged_confirm_a, forged_confirm_b, CASE_ONLY_ETH | CASE_NO_FAULT | CASE_NO_THREAD, NULL},
    {"forged_lists", forged_lists_a, forged_lists_b, CASE_ONLY_ETH | CASE_NO_FAULT | CASE_NO_THREAD, slow},
    {"forged_unknown", forged_unknown_a, forged_unknown_b, CASE_ONLY_ETH | CASE_NO_FAULT | CASE_NO_THREAD, known_psn},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
