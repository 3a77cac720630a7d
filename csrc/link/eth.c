/*
 * eth: raw frames on an Ethernet interface (AF_PACKET). Two forms:
 *
 *   plain  | Ethernet, type 0x88B5 | wire header | payload |
 *   udp    | Ethernet | IPv4 | UDP, port 34997 | wire header | payload |
 *
 * The second form is dressed so that the kernel's segmentation offload applies: several frames of equal length are
 * handed over as one *super-frame* of up to 64 KiB (PACKET_VNET_HDR, VIRTIO_NET_HDR_GSO_UDP_L4), as RoCE v2 does it
 * for other reasons. On a real wire it is cut into frames by the card or the kernel; between two hosts joined by
 * veth it arrives whole. Each segment is a complete frame, so the receiver need not know which of the two happened.
 * The form "auto" sends single frames plain, for latency, and runs of frames dressed, for bandwidth; the receiver
 * takes both.
 *
 * Receiving is a ring of slots that the kernel fills (PACKET_RX_RING, TPACKET_V2) and we read in place: no system
 * call while polling. Sending is one system call per frame or super-frame and passes no queueing discipline
 * (PACKET_QDISC_BYPASS).
 *
 *   slot:  | status | lengths, offsets | ... | Ethernet header | ... |   status: TP_STATUS_USER ours, else the kernel's
 *
 * There are two rings, each with a socket of its own: many short slots for frames of the MTU, and some of 66 KiB for
 * super-frames. So a frame never wastes a long slot, and a super-frame lies in one piece. Who sends on a veth pair pays
 * for what the receiving side's kernel does in its interrupt, the copy into the ring too; but the pages that this copy
 * sets free are the sender's next ones, still in its cache. (To leave super-frames in the socket's queue, from where
 * recvmsg brings them to their place with one copy less, is slower by a quarter: there the receiver frees the pages,
 * and the sender fills cold ones.)
 *
 * Super-frames leave by a socket of their own: one with PACKET_VNET_HDR handles that header in front of every frame,
 * received ones too.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../base/atomic.h"
#include "../base/cancel.h"
#include "../base/copy.h"
#include "../base/crc32c.h"
#include "../base/files.h"
#include "eth.h"
#include "frame.h"
#include "seal.h"
#include "station.h"

/* Pieces of one call: below the kernel's limit of 1024 (UIO_MAXIOV). MAX_PEERS bounds what invented addresses can
 * cost. */
#define MAX_IOV 1000
#define MAX_PEERS 4096

/* ---------------------------------------------------------------- sending */

/* The Internet checksum (RFC 1071): 16-bit words in network order, added with the carries kept in the upper half;
 * fold() brings them back. */
static uint32_t sum16(const void *data, size_t len, uint32_t sum)
{
    const uint8_t *p = data;
    for (; len > 1; p += 2, len -= 2)
        sum += (uint32_t)p[0] << 8 | p[1];
    return len ? sum + ((uint32_t)p[0] << 8) : sum;
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

/* Link-local addresses (169.254/16, RFC 3927) made from the MAC's last two bytes: nobody routes them, and no local
 * stack feels addressed. They need not be unique: nothing here finds anybody by them. */
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
    *head_len = sizeof h->ether + (dressed ? DRESS_LEN : 0);
    if (dressed) {
        memset(h->ip, 0, DRESS_LEN);
        /* Version 4 and five words of header: no options, so that every field stands where undress() and the filter
         * look. Then length, identification, flags, 64 hops, and 17 for UDP (RFC 791). */
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
    return (uint8_t *)&h->ether;
}

/* Asks the kernel to cut the super-frame into segments (linux/virtio_net.h). gso_size is what each of them gets
 * behind the headers, which the kernel repeats in front of each with lengths and checksums of its own. It adds UDP's
 * header and data to the sum that it finds in the UDP header (at csum_start + csum_offset), so that must be the
 * pseudo-header's: both addresses, protocol, length; not inverted yet. */
static void ask_segmentation(struct eth_head *h, uint32_t segment, uint32_t len)
{
    memset(&h->vnet, 0, sizeof h->vnet);
    h->vnet.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    h->vnet.gso_type = VIRTIO_NET_HDR_GSO_UDP_L4;
    h->vnet.hdr_len = (uint16_t)(sizeof h->ether + DRESS_LEN);
    h->vnet.gso_size = (uint16_t)segment;
    h->vnet.csum_start = (uint16_t)(sizeof h->ether + IP_LEN);
    h->vnet.csum_offset = 6;
    put16(h->udp + 6, fold(sum16(h->ip + 12, 8, 17 + UDP_LEN + len)));
}

/* Is there somebody at the other end of the wire? One that is pulled out (or, of a veth, whose other end is down) makes
 * the kernel say ENOBUFS as a driver does whose queue is full; but that does not pass by waiting. */
static int has_carrier(const struct link *link)
{
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strcpy(r.ifr_name, link->interface);
    return ioctl(link->fd, SIOCGIFFLAGS, &r) == 0 && r.ifr_flags & IFF_RUNNING;
}

/* 1 sent (or lost by the interface), 0 not now, -1 the kernel refuses the form. ENOBUFS and ENOMEM: the driver's
 * queue or the kernel's memory is full just now, which passes. */
static int verdict(struct link *link, ssize_t sent)
{
    LINK_COUNT(link->nic, system_calls, 1);
    if (sent >= 0)
        return 1;
    if (errno == ENOBUFS)
        return !has_carrier(link);
    if (errno == EAGAIN || errno == EINTR || errno == ENOMEM)
        return 0;
    if (errno == EINVAL || errno == EOPNOTSUPP)
        return -1;
    /* ENETDOWN, ENXIO, EMSGSIZE: as good as lost; if it lasts, the peer does not answer and the connection ends. */
    return 1;
}

/* Link operation: head, wire header and payload in one buffer, for one cheap system call. */
static int eth_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                          const void *payload, size_t len)
{
    const size_t header_len = sizeof(struct wire_header);
    size_t head_len;
    uint8_t *head = make_head(link, peer, (struct eth_head *)link->small, link->form == VIAKIT_FORM_UDP,
                              (uint32_t)(header_len + len), &head_len);
    link_seal_short(head + head_len, header, payload, len);
    int sent = verdict(link, vk_send(link->fd, head, head_len + header_len + len, MSG_DONTWAIT));
    if (sent)
        link_count_copied(link->nic, len);
    return sent != 0;
}

/* One frame by one call, from one buffer if it is small, else gathered by the kernel. As verdict(); a form that is
 * refused counts as lost here, for there is no simpler one. */
static int send_single(struct link *link, const struct link_peer *peer, struct link_frame *f)
{
    uint32_t len = f->header_len + (uint32_t)f->payload_len;
    int dressed = link->form == VIAKIT_FORM_UDP;
    struct eth_head *h = (struct eth_head *)link->small;
    size_t head_len;
    link_seal(f);
    if (vk_likely(f->payload_len <= SMALL)) { /* head, header and payload in one buffer */
        uint8_t *head = make_head(link, peer, h, dressed, len, &head_len), *end = link_lay_out(head + head_len, f);
        link_count_copied(link->nic, f->payload_len);
        return verdict(link, vk_send(link->fd, head, (size_t)(end - head), MSG_DONTWAIT));
    }
    /* The payload goes from the program's memory into the kernel's buffer: that copy is the kernel's, and not
     * counted. */
    struct iovec iov[MAX_IOV];
    size_t n = 3;
    iov[0].iov_base = make_head(link, peer, h, dressed, len, &iov[0].iov_len);
    iov[1] = (struct iovec){&f->header, sizeof f->header};
    iov[2] = (struct iovec){&f->block, f->header_len - sizeof f->header};
    for (uint32_t i = 0; i < f->n_iov; i++)
        iov[n++] = f->iov[i];
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    return verdict(link, vk_sendmsg(link->fd, &m, MSG_DONTWAIT));
}

/* How many of the frames go together: the head that they share is a piece as well. */
static int run_length(const struct link *link, const struct link_frame *frames, int n)
{
    return link->super_frames ? link_run_length(frames, n, SUPER_BYTES, MAX_IOV - 1) : 1;
}

/* A run of frames behind one Ethernet, IP and UDP header, by one call. All or none: what verdict() says of it holds
 * for each frame. */
static int send_super(struct link *link, const struct link_peer *peer, struct link_frame *frames, int n)
{
    struct iovec iov[MAX_IOV];
    struct eth_head head;
    uint32_t len = 0;
    size_t k = 1;
    for (int i = 0; i < n; i++) {
        struct link_frame *f = &frames[i];
        link->crc_always ? link_seal(f) : link_seal_header(f); /* the rest has UDP's, which the interface computes */
        iov[k++] = (struct iovec){&f->header, sizeof f->header};
        if (f->header_len > sizeof f->header)
            iov[k++] = (struct iovec){&f->block, f->header_len - sizeof f->header};
        for (uint32_t j = 0; j < f->n_iov; j++)
            iov[k++] = f->iov[j];
        len += f->header_len + (uint32_t)f->payload_len;
    }
    make_head(link, peer, &head, 1, len, &iov[0].iov_len);
    ask_segmentation(&head, frames[0].header_len + (uint32_t)frames[0].payload_len, len);
    /* From virtio's header on, which stands right before Ethernet's (struct eth_head). */
    iov[0] = (struct iovec){&head, iov[0].iov_len + sizeof head.vnet};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = k};
    int sent = verdict(link, vk_sendmsg(link->send_fd, &m, MSG_DONTWAIT));
    if (sent == 1)
        LINK_COUNT(link->nic, super_frames_sent, 1);
    return sent;
}

/* Link operation. Each run of equal frames is one system call, all others one each. */
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

/* Slot i of the ring. Slots do not cross blocks, so what is left at the end of a block is not used. */
static inline struct tpacket2_hdr *slot(const struct eth_ring *ring, uint32_t i)
{
    return (struct tpacket2_hdr *)(void *)(ring->memory + (size_t)(i / ring->slots_per_block) * BLOCK +
                                           (size_t)(i % ring->slots_per_block) * ring->slot_len);
}

/* One or more segments, each a wire header and its payload, delivered where they lie. A length that reaches beyond
 * the end is cut to it here, and refused by the provider, as a header that is not whole is. Never loops on nothing:
 * each turn takes at least one byte. */
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

/* How many bytes of segments lie behind the headers of a dressed frame of len bytes, of which `have` are at hand; 0
 * if it is none of ours. */
static size_t undress(const struct link *link, const uint8_t *frame, size_t have, size_t len)
{
    const struct ether_header *e = (const struct ether_header *)frame;
    const uint8_t *ip = frame + sizeof *e;
    if (have < sizeof *e + DRESS_LEN || e->ether_type != htons(ETHERTYPE_IP) || ip[0] != 0x45 || ip[9] != 17) {
        LINK_COUNT(link->nic, dropped_malformed, 1);
        return 0;
    }
    /* UDP's own length tells where the segments end: a short frame is padded to Ethernet's minimum. */
    size_t udp_len = (size_t)ip[IP_LEN + 4] << 8 | ip[IP_LEN + 5];
    if (udp_len <= UDP_LEN || udp_len - UDP_LEN > len - sizeof *e - DRESS_LEN) {
        LINK_COUNT(link->nic, dropped_malformed, 1);
        return 0;
    }
    return udp_len - UDP_LEN;
}

/* Is the frame for this station? A promiscuous interface shows us others' frames. What is sent to all is a question
 * who is there (via/discover.c). */
static int is_for_us(const struct link *link, const uint8_t *frame, size_t len)
{
    static const uint8_t everybody[6] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    return len >= sizeof(struct ether_header) &&
           (vk_likely(memcmp(frame, link->address, 6) == 0) || memcmp(frame, everybody, 6) == 0);
}

/* Is UDP's checksum there, and right? Over pseudo-header, UDP's header and data; a dressed frame, looked at by
 * undress(). */
static int udp_sum_right(const uint8_t *ip, size_t len)
{
    uint32_t udp_len = (uint32_t)(UDP_LEN + len);
    int there = ip[IP_LEN + 6] | ip[IP_LEN + 7];
    return there && fold(sum16(ip + IP_LEN, udp_len, sum16(ip + 12, 8, 17 + udp_len))) == 0xFFFF;
}

/* What the kernel knows of a frame's checksum: its interface found it right, or the frame has never left this
 * machine (and has none yet). In the second case the sum stands unfinished in the frame, for nobody computes what no
 * wire can damage. */
#define CHECKED (TP_STATUS_CSUM_VALID | TP_STATUS_CSUMNOTREADY)

/* A frame that lies in its slot as a whole, in either form. Its header is not copied here: the provider does that. */
static void deliver_slot(struct link *link, const uint8_t *frame, size_t len, uint32_t status)
{
    const struct ether_header *e = (const struct ether_header *)frame;
    if (!is_for_us(link, frame, len))
        return;
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
    size_t n = undress(link, frame, len, len);
    if (n == 0)
        return;
    const uint8_t *segments = frame + sizeof *e + DRESS_LEN;
    /* The second byte of a segment is its flags. Frames whose own sum covers all of them need nobody's word; those
     * of a super-frame have a sum of the header only, and UDP's has to be right for the rest. */
    if (n > 1 && !(segments[1] & WIRE_FLAG_CRC))
        link_vouch(link->nic, (status & CHECKED) || udp_sum_right(frame + sizeof *e, n));
    deliver_segments(link, e->ether_shost, segments, n);
    link_vouch(link->nic, 0);
}

/* To the counters, what the kernel dropped since the last time: reading the statistics clears them. */
static void count_losses(struct link *link)
{
    const int fds[] = {link->fd, link->super_fd};
    for (int i = 0; i < 2; i++) {
        struct tpacket_stats s;
        socklen_t len = sizeof s;
        if (fds[i] >= 0 && getsockopt(fds[i], SOL_PACKET, PACKET_STATISTICS, &s, &len) == 0)
            LINK_COUNT(link->nic, dropped_ring_full, s.tp_drops);
    }
}

/* What the next slot of a ring has for us; its status, or 0. */
static inline uint32_t look(const struct eth_ring *ring, struct tpacket2_hdr **h)
{
    if (ring->memory == NULL)
        return 0;
    *h = slot(ring, ring->at);
    uint32_t status = vk_load_acquire(&(*h)->tp_status); /* the frame is there before its status */
    return status & TP_STATUS_USER ? status : 0;
}

/* Both rings have something: by the kernel's clock, which came first? Should somebody set the clock back meanwhile, a
 * frame comes early, once. */
static int is_before(const struct tpacket2_hdr *a, const struct tpacket2_hdr *b)
{
    return a->tp_sec != b->tp_sec ? a->tp_sec < b->tp_sec : a->tp_nsec < b->tp_nsec;
}

/* Link operation. Slots are taken in order; the first that is still the kernel's ends the look. A slot is given back
 * only after everything in it has been delivered, for frames are read where they lie. TP_STATUS_LOSING: something was
 * dropped since the statistics were read last.
 *
 * Frames of one sender come one after the other, whichever ring each goes to. So that they are taken in that order, a
 * ring that was found empty is looked at once more when the other one was not: what came before is there by then. */
static int eth_poll(struct link *link, int budget)
{
    int n = 0;
    for (; n < budget; n++) {
        struct tpacket2_hdr *h = NULL, *super = NULL;
        uint32_t status = look(&link->frames, &h), super_status = look(&link->supers, &super);
        if (vk_likely(!(status | super_status)))
            break;
        if (!super_status)
            super_status = look(&link->supers, &super);
        else if (!status)
            status = look(&link->frames, &h);
        struct eth_ring *ring = &link->frames;
        if (super_status && !(status && is_before(h, super))) {
            ring = &link->supers;
            h = super;
            status = super_status;
        }
        /* The frame's length, and how much of it the kernel has put into the slot. */
        if (vk_likely(h->tp_len == h->tp_snaplen))
            deliver_slot(link, (const uint8_t *)h + h->tp_mac, h->tp_snaplen, status);
        else
            LINK_COUNT(link->nic, dropped_malformed, 1);   /* longer than any frame of ours */
        vk_store_release(&h->tp_status, TP_STATUS_KERNEL); /* we have read it before it is given back */
        ring->at = ring->at + 1 == ring->n_slots ? 0 : ring->at + 1;
        if (vk_unlikely(status & TP_STATUS_LOSING))
            count_losses(link);
    }
    return n;
}

/* Link operation. Nothing is to be armed: a descriptor is readable as long as the slot of its ring that was filled
 * last is ours, so no wake-up is missed. */
static int eth_arm(struct link *link)
{
    struct tpacket2_hdr *h;
    return (look(&link->frames, &h) | look(&link->supers, &h)) != 0;
}

/* Link operations: a sleeper watches both sockets; poll(2) passes over one that is -1. */
static int eth_watch(struct link *link, struct pollfd *fds)
{
    fds[0] = (struct pollfd){.fd = link->fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = link->super_fd, .events = POLLIN};
    return 2;
}

/* The interface went down, for instance: the error is taken, or every later sleep ends at once. */
static void eth_woken(struct link *link, const struct pollfd *fds, int n)
{
    (void)link;
    for (int i = 0; i < n; i++) {
        int error;
        socklen_t len = sizeof error;
        if (fds[i].revents & (POLLERR | POLLHUP))
            getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &error, &len);
    }
}

/* ---------------------------------------------------------------- stations */

/* Link operation: every MAC address is a station until it is seen to be silent. */
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

/* One that is not on the list: a liar can invent any number of addresses, and gets no more than an answer. */
static int eth_passing(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    (void)port;
    memcpy(link->passing.address, address, 6);
    *out = &link->passing;
    return 0;
}

/* Link operation: port 0, which every NIC's filter lets through. How many hear it nobody knows: -1. */
static int eth_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    struct link_peer *peer;
    frame->header.dst_port = 0;
    if (eth_route(link, address, 0, &peer) == 0)
        eth_send(link, peer, frame, 1);
    return -1;
}

/* Link operation. The names reach as far as the network namespace; a station is one interface of it. */
static int eth_count_neighbours(struct link *link)
{
    uint16_t ports[512];
    char prefix[64];
    eth_station_prefix(link, prefix);
    return station_ports(prefix, ports, 512);
}

/* ---------------------------------------------------------------- opening */

/* Link operation. The device is the interface's name. */
static int eth_open(struct via_nic *nic, const char *device, const viakit_nic_options *options, struct link **out,
                    struct link_limits *limits)
{
    uint32_t mtu = 0;
    /* First: with a wrong name the privilege to open a right one, which may be missing, too, is of no interest. */
    if (*device == 0 || strlen(device) >= IFNAMSIZ || if_nametoindex(device) == 0)
        return eth_refuse_interface(device);
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    link->nic = nic;
    link->claim_fd = link->super_fd = link->send_fd = -1;
    link->form = options->form;
    link->crc_always = options->checksum == VIAKIT_CHECKSUM_CRC;
    strcpy(link->interface, device);
    link->fd = vk_file_own(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    int error = link->fd < 0 ? -errno : 0;
    if (error == -EPERM || error == -EACCES)
        via_explain("eth: raw frames need CAP_NET_RAW, which this process lacks: use hosts made of namespaces "
                    "(viakit.testbed, --hosts testbed), or the shm link");
    else if (error)
        via_explain("eth: no packet socket: %s", strerror(-error));
    else
        error = eth_bring_up(link, options, &mtu);
    if (error) {
        eth_close(link);
        return error;
    }
    /* An MTU counts what follows the Ethernet header: with dress, IP's and UDP's headers are part of it. */
    link->segment = mtu - (link->form == VIAKIT_FORM_PLAIN ? 0 : DRESS_LEN);
    if (link->segment > SUPER_BYTES)
        link->segment = SUPER_BYTES;
    *limits = (struct link_limits){.port = link->port,
                                   .mtu = mtu,
                                   .max_payload = link->segment - (uint32_t)sizeof(struct wire_header),
                                   .max_batch = 1,
                                   .short_below = link->segment < sizeof(struct wire_header) + SMALL ? 0 : SMALL + 1,
                                   .ring_slots = link->supers.memory && link->supers.n_slots < link->frames.n_slots
                                                     ? link->supers.n_slots
                                                     : link->frames.n_slots,
                                   .checksum = 1};
    if (link->super_frames && SUPER_BYTES / link->segment > 1)
        limits->max_batch = SUPER_BYTES / link->segment;
    memcpy(limits->address, link->address, 6);
    *out = link;
    return 0;
}

static void eth_descriptors(struct link *link, int *data_fd, int *control_fd)
{
    (void)link;
    *data_fd = -1; /* see eth_watch() */
    *control_fd = -1;
}

/* Link operation. Without super-frames none is longer than a frame. */
static void eth_info(struct link *link, viakit_nic_info *info)
{
    static const char *const forms[] = {"auto", "plain", "udp"};
    strcpy(info->interface, link->interface);
    strcpy(info->form, forms[link->form]);
    if (!link->super_frames)
        info->super_payload = info->max_payload;
    count_losses(link);
}

static void eth_peer_address(const struct link_peer *peer, uint8_t address[6])
{
    memcpy(address, peer->address, 6);
}

const struct link_ops link_eth = {
    .name = "eth",
    .open = eth_open,
    .close = eth_close,
    .route = eth_route,
    .passing = eth_passing,
    .ask_all = eth_ask_all,
    .count_neighbours = eth_count_neighbours,
    .send = eth_send,
    .send_short = eth_send_short,
    .poll = eth_poll,
    .peer_address = eth_peer_address,
    .descriptors = eth_descriptors,
    .arm = eth_arm,
    .watch = eth_watch,
    .woken = eth_woken,
    .info = eth_info,
};
