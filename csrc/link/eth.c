/*
 * eth: raw frames on an Ethernet interface (AF_PACKET). Two forms:
 *
 *   plain  | Ethernet, type 0x88B5 | wire header | payload |
 *   udp    | Ethernet | IPv4 | UDP, port 34997 | wire header | payload |
 *
 * The second form is dressed so that the kernel's segmentation offload applies: several frames of equal length are handed over as
 * one *super-frame* of up to 64 KiB (PACKET_VNET_HDR, VIRTIO_NET_HDR_GSO_UDP_L4), as RoCE v2 does it for other reasons. On a real
 * wire it is cut into frames by the card or the kernel; between two hosts joined by veth it arrives whole. Each segment is a complete
 * frame, so the receiver need not know which of the two happened. The form "auto" sends single frames plain, for latency, and runs of
 * frames dressed, for bandwidth; the receiver takes both.
 *
 * Receiving is a ring of slots that the kernel fills (PACKET_RX_RING, TPACKET_V2) and we read in place: no system call while polling. Sending is
 * one system call per frame or super-frame and passes no queueing discipline (PACKET_QDISC_BYPASS).
 *
 *   slot:  | status | lengths, offsets | ... | Ethernet header | ... |     status: TP_STATUS_USER ours, _KERNEL the kernel's
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../base/atomic.h"
#include "../base/copy.h"
#include "../base/crc32c.h"
#include "link.h"
#include "station.h"

#define IP_LEN 20
#define UDP_LEN 8
#define DRESS_LEN (IP_LEN + UDP_LEN)
#define SUPER_SLOT (66u << 10) /* a super-frame with all its headers */
#define BLOCK (1u << 20)       /* the ring is allocated in such pieces */
#define SUPER_BYTES 65507u     /* most that UDP over IPv4 carries */
#define MIN_MTU 256u           /* headers and some payload */
#define SMALL 256u /* up to so much payload is gathered into one buffer: cheaper than a vector for the kernel */
#define MAX_IOV 1000
#define MAX_PEERS 4096

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

struct link_peer {
    struct link_peer *next;
    uint8_t address[6];
};

/* The headers in front of the wire header, in the order of the frame. */
struct eth_head {
    struct virtio_net_hdr vnet; /* not on the wire; only with PACKET_VNET_HDR */
    struct ether_header ether;
    uint8_t ip[IP_LEN];
    uint8_t udp[UDP_LEN];
} __attribute__((packed));

struct link {
    struct via_nic *nic;
    int fd, claim_fd;
    char interface[IFNAMSIZ];
    uint8_t address[6];
    uint16_t port;
    viakit_form form;
    int vnet;         /* PACKET_VNET_HDR is on */
    int super_frames; /* and the kernel takes UDP super-frames */
    uint32_t segment; /* wire header and payload of a full frame */
    uint8_t *ring;
    size_t ring_len;
    uint32_t n_slots, slot_len, slots_per_block, at;
    struct link_peer *peers;
    uint32_t n_peers;
    uint16_t ip_id;
    uint8_t small[sizeof(struct eth_head) + sizeof(struct wire_header) + 200 + SMALL];
};

/* ---------------------------------------------------------------- sending */

static void checksum(struct link_frame *f)
{
    if (f->header.flags & WIRE_FLAG_CRC)
        return; /* has one already: of a frame that a test's filter spoilt on purpose afterwards */
    f->header.flags |= WIRE_FLAG_CRC;
    f->header.crc = 0;
    uint32_t crc = vk_crc32c(0, &f->header, sizeof f->header);
    if (f->header_len > sizeof f->header)
        crc = vk_crc32c(crc, &f->block, f->header_len - sizeof f->header);
    for (uint32_t i = 0; i < f->n_iov; i++)
        crc = vk_crc32c(crc, f->iov[i].iov_base, f->iov[i].iov_len);
    f->header.crc = crc;
}

static uint32_t sum16(const void *data, size_t len, uint32_t sum)
{
    const uint8_t *p = data;
    for (; len > 1; p += 2, len -= 2)
        sum += (uint32_t)p[0] << 8 | p[1];
    return sum;
}

static uint16_t fold(uint32_t sum)
{
    while (sum >> 16)
        sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)sum;
}

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* Link-local addresses made from the MAC: nobody routes them, and no local stack feels addressed. */
static void put_ip(uint8_t *p, const uint8_t mac[6])
{
    p[0] = 169;
    p[1] = 254;
    p[2] = mac[4];
    p[3] = mac[5];
}

/* Ethernet, and IPv4 and UDP if dressed, in front of len bytes. Returns where the head begins and how long it is. */
static uint8_t *make_head(struct link *link, const struct link_peer *peer, struct eth_head *h, int dressed,
                          uint32_t len, size_t *head_len)
{
    memcpy(h->ether.ether_dhost, peer->address, 6);
    memcpy(h->ether.ether_shost, link->address, 6);
    h->ether.ether_type = htons(dressed ? ETHERTYPE_IP : WIRE_ETHERTYPE);
    size_t skip = link->vnet ? 0 : sizeof h->vnet;
    memset(&h->vnet, 0, sizeof h->vnet);
    *head_len = sizeof h->vnet + sizeof h->ether + (dressed ? DRESS_LEN : 0) - skip;
    if (dressed) {
        memset(h->ip, 0, DRESS_LEN);
        h->ip[0] = 0x45;
        put16(h->ip + 2, DRESS_LEN + len);
        put16(h->ip + 4, link->ip_id++);
        h->ip[6] = 0x40; /* do not fragment */
        h->ip[8] = 64;
        h->ip[9] = 17;
        put_ip(h->ip + 12, link->address);
        put_ip(h->ip + 16, peer->address);
        put16(h->ip + 10, (uint16_t)~fold(sum16(h->ip, IP_LEN, 0)));
        put16(h->udp, WIRE_UDP_PORT);
        put16(h->udp + 2, WIRE_UDP_PORT);
        put16(h->udp + 4, UDP_LEN + len); /* checksum 0: none; the frame has a better one */
    }
    return (uint8_t *)h + skip;
}

/* Asks the kernel to cut the super-frame into segments. It finishes the UDP checksum, so the pseudo-header's must be there. */
static void ask_segmentation(struct link *link, struct eth_head *h, uint32_t segment, uint32_t len)
{
    (void)link;
    h->vnet.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    h->vnet.gso_type = VIRTIO_NET_HDR_GSO_UDP_L4;
    h->vnet.hdr_len = (uint16_t)(sizeof h->ether + DRESS_LEN);
    h->vnet.gso_size = (uint16_t)segment;
    h->vnet.csum_start = (uint16_t)(sizeof h->ether + IP_LEN);
    h->vnet.csum_offset = 6;
    put16(h->udp + 6, fold(sum16(h->ip + 12, 8, 17 + UDP_LEN + len)));
}

/* 1 sent (or lost by the interface), 0 not now, -1 the kernel refuses the form. */
static int verdict(struct link *link, ssize_t sent)
{
    LINK_COUNT(link->nic, system_calls, 1);
    if (sent >= 0)
        return 1;
    if (errno == EAGAIN || errno == ENOBUFS || errno == EINTR || errno == ENOMEM)
        return 0;
    if (errno == EINVAL || errno == EOPNOTSUPP)
        return -1;
    return 1; /* ENETDOWN, ENXIO, EMSGSIZE: as good as lost; if it lasts, the peer does not answer and the connection ends */
}

/* Head, wire header and payload in one buffer, for one cheap system call. */
static int eth_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                          const void *payload, size_t len)
{
    const size_t header_len = sizeof(struct wire_header);
    size_t head_len;
    uint8_t *head = make_head(link, peer, (struct eth_head *)link->small, link->form == VIAKIT_FORM_UDP,
                              (uint32_t)(header_len + len), &head_len);
    uint8_t *p = head + head_len;
    uint64_t first = header[0] | (uint64_t)WIRE_FLAG_CRC << 8;
    memcpy(p, &first, 8);
    for (int i = 1; i < WIRE_WORDS; i++)
        memcpy(p + 8 * i, &header[i], 8);
    vk_copy_short(p + header_len, payload, len);
    uint32_t crc = vk_crc32c(0, p, header_len + len);
    memcpy(p + offsetof(struct wire_header, crc), &crc, sizeof crc);
    int sent = verdict(link, send(link->fd, head, head_len + header_len + len, MSG_DONTWAIT));
    if (len && sent) {
        LINK_COUNT(link->nic, copies, 1);
        LINK_COUNT(link->nic, copies_ring, 1);
        LINK_COUNT(link->nic, bytes_copied, len);
    }
    return sent != 0;
}

static int send_single(struct link *link, const struct link_peer *peer, struct link_frame *f)
{
    uint32_t len = f->header_len + (uint32_t)f->payload_len;
    int dressed = link->form == VIAKIT_FORM_UDP;
    struct eth_head *h = (struct eth_head *)link->small;
    size_t head_len;
    checksum(f);
    if (vk_likely(f->payload_len <= SMALL)) { /* head, header and payload in one buffer */
        uint8_t *head = make_head(link, peer, h, dressed, len, &head_len), *p = head + head_len;
        memcpy(p, &f->header, sizeof f->header);
        p += sizeof f->header;
        if (f->header_len > sizeof f->header) {
            memcpy(p, &f->block, f->header_len - sizeof f->header);
            p += f->header_len - sizeof f->header;
        }
        for (uint32_t i = 0; i < f->n_iov; i++) {
            memcpy(p, f->iov[i].iov_base, f->iov[i].iov_len);
            p += f->iov[i].iov_len;
        }
        if (f->payload_len) {
            LINK_COUNT(link->nic, copies, 1);
            LINK_COUNT(link->nic, copies_ring, 1);
            LINK_COUNT(link->nic, bytes_copied, f->payload_len);
        }
        return verdict(link, send(link->fd, head, (size_t)(p - head), MSG_DONTWAIT));
    }
    struct iovec iov[MAX_IOV];
    size_t n = 3;
    iov[0].iov_base = make_head(link, peer, h, dressed, len, &iov[0].iov_len);
    iov[1] = (struct iovec){&f->header, sizeof f->header};
    iov[2] = (struct iovec){&f->block, f->header_len - sizeof f->header};
    for (uint32_t i = 0; i < f->n_iov; i++)
        iov[n++] = f->iov[i];
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    return verdict(link, sendmsg(link->fd, &m, MSG_DONTWAIT));
}

/* How many of the frames can be one super-frame: equal lengths, the last may be shorter. */
static int run_length(const struct link *link, const struct link_frame *frames, int n)
{
    size_t first = frames[0].header_len + frames[0].payload_len, total = first, iovs = 1 + 2 + frames[0].n_iov;
    int k = 1;
    if (!link->super_frames)
        return 1;
    while (k < n) {
        size_t len = frames[k].header_len + frames[k].payload_len;
        iovs += 2 + frames[k].n_iov;
        if (len > first || total + len > SUPER_BYTES || iovs > MAX_IOV)
            break;
        total += len;
        k++;
        if (len < first)
            break;
    }
    return k;
}

static int send_super(struct link *link, const struct link_peer *peer, struct link_frame *frames, int n)
{
    struct iovec iov[MAX_IOV];
    struct eth_head head;
    uint32_t len = 0;
    size_t k = 1;
    for (int i = 0; i < n; i++) {
        struct link_frame *f = &frames[i];
        checksum(f);
        iov[k++] = (struct iovec){&f->header, sizeof f->header};
        if (f->header_len > sizeof f->header)
            iov[k++] = (struct iovec){&f->block, f->header_len - sizeof f->header};
        for (uint32_t j = 0; j < f->n_iov; j++)
            iov[k++] = f->iov[j];
        len += f->header_len + (uint32_t)f->payload_len;
    }
    iov[0].iov_base = make_head(link, peer, &head, 1, len, &iov[0].iov_len);
    ask_segmentation(link, &head, frames[0].header_len + (uint32_t)frames[0].payload_len, len);
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = k};
    int sent = verdict(link, sendmsg(link->fd, &m, MSG_DONTWAIT));
    if (sent == 1)
        LINK_COUNT(link->nic, super_frames_sent, 1);
    return sent;
}

static int eth_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int done = 0;
    while (done < n) {
        int run = n - done == 1 ? 1 : run_length(link, frames + done, n - done);
        int sent = run > 1 ? send_super(link, peer, frames + done, run) : send_single(link, peer, frames + done);
        if (sent < 0 && run > 1) { /* this kernel does not segment raw UDP frames: single ones from now on */
            link->super_frames = 0;
            continue;
        }
        if (sent == 0)
            break;
        done += run;
    }
    return done ? done : -EAGAIN;
}

/* ---------------------------------------------------------------- receiving */

static inline struct tpacket2_hdr *slot(const struct link *link, uint32_t i)
{
    return (struct tpacket2_hdr *)(void *)(link->ring + (size_t)(i / link->slots_per_block) * BLOCK +
                                           (size_t)(i % link->slots_per_block) * link->slot_len);
}

/* One or more segments, each a wire header and its payload. */
static void deliver_segments(struct link *link, const uint8_t *from, const uint8_t *p, size_t len)
{
    do {
        uint16_t payload;
        size_t n = len;
        if (len >= sizeof(struct wire_header)) {
            memcpy(&payload, p + offsetof(struct wire_header, len), sizeof payload);
            if (sizeof(struct wire_header) + payload < n)
                n = sizeof(struct wire_header) + payload;
        }
        link_deliver(link->nic, from, NULL, p, n);
        p += n;
        len -= n;
    } while (len);
}

static void deliver_slot(struct link *link, const uint8_t *frame, size_t len)
{
    const struct ether_header *e = (const struct ether_header *)frame;
    if (len < sizeof *e || memcmp(e->ether_dhost, link->address, 6) != 0)
        return; /* a promiscuous interface shows us others' frames */
    if (e->ether_type == htons(WIRE_ETHERTYPE)) {
        uint16_t payload = 0; /* short frames come padded to 60 bytes: cut here, for padding is no second segment */
        size_t n = len - sizeof *e;
        if (n >= sizeof(struct wire_header)) {
            memcpy(&payload, frame + sizeof *e + offsetof(struct wire_header, len), sizeof payload);
            if (sizeof(struct wire_header) + payload < n)
                n = sizeof(struct wire_header) + payload;
        }
        link_deliver(link->nic, e->ether_shost, NULL, frame + sizeof *e, n);
        return;
    }
    const uint8_t *ip = frame + sizeof *e;
    if (len < sizeof *e + DRESS_LEN || ip[0] != 0x45 || ip[9] != 17) {
        LINK_COUNT(link->nic, dropped_malformed, 1);
        return;
    }
    size_t udp_len = (size_t)ip[IP_LEN + 4] << 8 | ip[IP_LEN + 5], have = len - sizeof *e - DRESS_LEN;
    if (udp_len < UDP_LEN || udp_len - UDP_LEN > have) {
        LINK_COUNT(link->nic, dropped_malformed, 1);
        return;
    }
    deliver_segments(link, e->ether_shost, ip + DRESS_LEN, udp_len - UDP_LEN);
}

static void count_losses(struct link *link)
{
    struct tpacket_stats s;
    socklen_t len = sizeof s;
    if (getsockopt(link->fd, SOL_PACKET, PACKET_STATISTICS, &s, &len) == 0)
        LINK_COUNT(link->nic, dropped_ring_full, s.tp_drops);
}

static int eth_poll(struct link *link, int budget)
{
    int n = 0;
    while (n < budget) {
        struct tpacket2_hdr *h = slot(link, link->at);
        uint32_t status = vk_load_acquire(&h->tp_status); /* the frame is there before its status */
        if (vk_likely(!(status & TP_STATUS_USER)))
            break;
        deliver_slot(link, (const uint8_t *)h + h->tp_mac, h->tp_snaplen);
        vk_store_release(&h->tp_status, TP_STATUS_KERNEL); /* we have read it before it is given back */
        link->at = link->at + 1 == link->n_slots ? 0 : link->at + 1;
        n++;
        if (vk_unlikely(status & TP_STATUS_LOSING))
            count_losses(link);
    }
    return n;
}

static int eth_arm(struct link *link)
{
    return (vk_load_acquire(&slot(link, link->at)->tp_status) & TP_STATUS_USER) != 0;
}

/* ---------------------------------------------------------------- stations */

static int eth_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    (void)port; /* in every frame */
    struct link_peer *p = link->peers;
    while (p && memcmp(p->address, address, 6) != 0)
        p = p->next;
    if (p == NULL) {
        p = link->n_peers < MAX_PEERS ? calloc(1, sizeof *p) : NULL; /* a liar can invent any number of addresses */
        if (p == NULL)
            return -ENOMEM;
        link->n_peers++;
        memcpy(p->address, address, 6);
        p->next = link->peers;
        link->peers = p;
    }
    *out = p;
    return 0;
}

static int eth_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    struct link_peer *peer;
    frame->header.dst_port = 0;
    if (eth_route(link, address, 0, &peer) == 0)
        eth_send(link, peer, frame, 1);
    return -1;
}

static void prefix_of(const struct link *link, char prefix[64])
{
    snprintf(prefix, 64, "viakit/eth/%s", link->interface);
}

static int eth_count_neighbours(struct link *link)
{
    uint16_t ports[512];
    char prefix[64];
    prefix_of(link, prefix);
    return station_ports(prefix, ports, 512);
}

/* ---------------------------------------------------------------- opening and closing */

static int refuse_interface(const char *name)
{
    char list[200] = "";
    struct if_nameindex *all = if_nameindex();
    for (struct if_nameindex *i = all; i && i->if_name; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", i->if_name);
    if (all)
        if_freenameindex(all);
    via_explain("eth: no interface '%.32s' on this host: it has %s", name, *list ? list : "none");
    return -ENODEV;
}

/* Index, MTU and MAC address by ioctl: /sys may show another namespace's interfaces. */
static int examine(struct link *link, uint32_t *mtu, int *index)
{
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strcpy(r.ifr_name, link->interface);
    if (ioctl(link->fd, SIOCGIFINDEX, &r) != 0)
        return refuse_interface(link->interface);
    *index = r.ifr_ifindex;
    if (ioctl(link->fd, SIOCGIFFLAGS, &r) != 0 || !(r.ifr_flags & IFF_UP)) {
        via_explain("eth: interface %s is down: `ip link set %s up`, as root or inside a testbed", link->interface,
                    link->interface);
        return -ENETDOWN;
    }
    if (ioctl(link->fd, SIOCGIFHWADDR, &r) != 0 ||
        (r.ifr_hwaddr.sa_family != ARPHRD_ETHER && r.ifr_hwaddr.sa_family != ARPHRD_LOOPBACK)) {
        via_explain("eth: interface %s is not Ethernet", link->interface);
        return -ENODEV;
    }
    memcpy(link->address, r.ifr_hwaddr.sa_data, 6);
    if (ioctl(link->fd, SIOCGIFMTU, &r) != 0)
        return -errno;
    *mtu = (uint32_t)r.ifr_mtu;
    return 0;
}

static int settle_mtu(struct link *link, const viakit_nic_options *options, uint32_t *mtu)
{
    if (options->mtu > *mtu) {
        via_explain("eth: MTU %u asked for, but %s has %u: raise the interface's or ask for less", options->mtu,
                    link->interface, *mtu);
        return -EINVAL;
    }
    if (options->mtu)
        *mtu = options->mtu;
    if (*mtu < MIN_MTU) {
        via_explain("eth: MTU %u of %s is too small: at least %u are needed", *mtu, link->interface, MIN_MTU);
        return -EINVAL;
    }
    return 0;
}

/* Frames of ours for this NIC (or for whoever waits: port 0), before the kernel copies anything. The port lies little-endian. */
static int set_filter(struct link *link)
{
    uint32_t port = (uint32_t)(link->port >> 8 | (link->port & 0xFF) << 8);
    struct sock_filter code[] = {
        /*  0 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        /*  1 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WIRE_ETHERTYPE, 0, 2),
        /*  2 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + offsetof(struct wire_header, dst_port)),
        /*  3 */ BPF_STMT(BPF_JMP | BPF_JA, 6), /* to 10 */
        /*  4 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETHERTYPE_IP, 0, 8),
        /*  5 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 14 + 9),
        /*  6 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 17, 0, 6),
        /*  7 */ BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 14 + IP_LEN),
        /*  8 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)WIRE_UDP_PORT << 16 | WIRE_UDP_PORT, 0, 4),
        /*  9 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + DRESS_LEN + offsetof(struct wire_header, dst_port)),
        /* 10 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 1, 0),
        /* 11 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        /* 12 */ BPF_STMT(BPF_RET | BPF_K, 0x40000), /* all of it */
        /* 13 */ BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return setsockopt(link->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0 ? 0 : -errno;
}

static int make_ring(struct link *link, const viakit_nic_options *options, uint32_t mtu)
{
    int version = TPACKET_V2;
    uint32_t want = options->ring_slots;
    if (link->form == VIAKIT_FORM_PLAIN) {
        uint32_t need = (uint32_t)(TPACKET2_HDRLEN + 16 + sizeof(struct ether_header)) + mtu;
        for (link->slot_len = 2048; link->slot_len < need;)
            link->slot_len += 2048;
        want = want ? want : 1024;
    } else {
        link->slot_len = SUPER_SLOT;
        want = want ? want : 256;
    }
    link->slots_per_block = BLOCK / link->slot_len;
    uint32_t blocks = (want + link->slots_per_block - 1) / link->slots_per_block;
    link->n_slots = blocks * link->slots_per_block;
    link->ring_len = (size_t)blocks * BLOCK;
    struct tpacket_req r = {
        .tp_block_size = BLOCK, .tp_block_nr = blocks, .tp_frame_size = link->slot_len, .tp_frame_nr = link->n_slots};
    if (setsockopt(link->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(link->fd, SOL_PACKET, PACKET_RX_RING, &r, sizeof r) != 0)
        return -errno;
    void *p = mmap(NULL, link->ring_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, link->fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    link->ring = p;
    return 0;
}

static void eth_close(struct link *link)
{
    if (link->ring)
        munmap(link->ring, link->ring_len);
    if (link->fd >= 0)
        close(link->fd);
    if (link->claim_fd >= 0)
        close(link->claim_fd);
    while (link->peers) {
        struct link_peer *p = link->peers;
        link->peers = p->next;
        free(p);
    }
    free(link);
}

static int claim_port(struct link *link)
{
    char prefix[64];
    prefix_of(link, prefix);
    link->claim_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return link->claim_fd < 0 ? -errno : station_claim(link->claim_fd, prefix, &link->port);
}

static int set_options(struct link *link)
{
    int one = 1, bytes = 8 << 20;
    link->vnet =
        link->form != VIAKIT_FORM_PLAIN && setsockopt(link->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) == 0;
    link->super_frames = link->vnet;
    if (setsockopt(link->fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(link->fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes); /* as far as allowed */
    setsockopt(link->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one,
               sizeof one); /* since Linux 4.20; eth_poll copes without */
    return setsockopt(link->fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0 ? 0 : -errno;
}

/* The steps of opening, in an order in which nothing is received before the filter stands. Each explains itself or leaves errno. */
static int bring_up(struct link *link, const viakit_nic_options *options, uint32_t *mtu)
{
    int index, error = examine(link, mtu, &index);
    if (error == 0)
        error = settle_mtu(link, options, mtu);
    if (error)
        return error;
    if ((error = claim_port(link)) == 0 && (error = set_options(link)) == 0 && (error = set_filter(link)) == 0 &&
        (error = make_ring(link, options, *mtu)) == 0) {
        uint16_t protocol = link->form == VIAKIT_FORM_PLAIN ? WIRE_ETHERTYPE
                            : link->form == VIAKIT_FORM_UDP ? ETHERTYPE_IP
                                                            : ETH_P_ALL;
        struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = index};
        if (bind(link->fd, (struct sockaddr *)&a, sizeof a) != 0)
            error = -errno;
    }
    if (error)
        via_explain("eth: %s: %s", link->interface, strerror(-error));
    return error;
}

static int eth_open(struct via_nic *nic, const char *device, const viakit_nic_options *options, struct link **out,
                    struct link_limits *limits)
{
    uint32_t mtu = 0;
    if (*device == 0 || strlen(device) >= IFNAMSIZ)
        return refuse_interface(device);
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    link->nic = nic;
    link->claim_fd = -1;
    link->form = options->form;
    strcpy(link->interface, device);
    link->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int error = link->fd < 0 ? -errno : 0;
    if (error == -EPERM || error == -EACCES)
        via_explain("eth: raw frames need CAP_NET_RAW, which this process lacks: use hosts made of namespaces "
                    "(viakit.testbed, --hosts testbed), or the shm link");
    else if (error)
        via_explain("eth: no packet socket: %s", strerror(-error));
    else
        error = bring_up(link, options, &mtu);
    if (error) {
        eth_close(link);
        return error;
    }
    link->segment = mtu - (link->form == VIAKIT_FORM_PLAIN ? 0 : DRESS_LEN);
    if (link->segment > SUPER_BYTES)
        link->segment = SUPER_BYTES;
    *limits = (struct link_limits){.port = link->port,
                                   .mtu = mtu,
                                   .max_payload = link->segment - (uint32_t)sizeof(struct wire_header),
                                   .max_batch = 1,
                                   .short_below = link->segment < sizeof(struct wire_header) + SMALL ? 0 : SMALL + 1,
                                   .ring_slots = link->n_slots,
                                   .checksum = 1};
    if (link->super_frames && SUPER_BYTES / link->segment > 1)
        limits->max_batch = SUPER_BYTES / link->segment;
    memcpy(limits->address, link->address, 6);
    *out = link;
    return 0;
}

static void eth_descriptors(struct link *link, int *data_fd, int *control_fd)
{
    *data_fd = link->fd;
    *control_fd = -1;
}

static void eth_info(struct link *link, viakit_nic_info *info)
{
    static const char *const forms[] = {"auto", "plain", "udp"};
    strcpy(info->interface, link->interface);
    strcpy(info->form, forms[link->form]);
    if (!link->super_frames)
        info->super_payload = info->max_payload;
    count_losses(link);
}

const struct link_ops link_eth = {
    .name = "eth",
    .open = eth_open,
    .close = eth_close,
    .route = eth_route,
    .ask_all = eth_ask_all,
    .count_neighbours = eth_count_neighbours,
    .send = eth_send,
    .send_short = eth_send_short,
    .poll = eth_poll,
    .descriptors = eth_descriptors,
    .arm = eth_arm,
    .info = eth_info,
};
