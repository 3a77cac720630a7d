/*
 * eth: raw frames on an Ethernet interface (AF_PACKET). It has two forms:
 *
 *   plain  | Ethernet, type 0x88B5 | wire header | payload |
 *   udp    | Ethernet | IPv4 | UDP, port 34997 | wire header | payload |
 *
 * The second form exists so that the kernel's segmentation offload applies. Several frames of equal length are passed
 * to the kernel as one *super-frame* of up to 64 KiB (PACKET_VNET_HDR, VIRTIO_NET_HDR_GSO_UDP_L4), if the interface
 * accepts it (eth_super.c). On a real wire the card or the kernel cuts it into frames. Between two hosts joined by veth
 * it arrives whole. Each segment is a complete frame, so the receiver need not distinguish the two cases. The form
 * "auto" sends single frames plain, for latency, and runs of frames as super-frames, for bandwidth. The receiver
 * accepts both.
 *
 * Receiving uses a ring of slots that the kernel fills (PACKET_RX_RING, TPACKET_V2) and the link reads in place, so
 * polling needs no system call. Sending takes one system call per frame or super-frame and bypasses the queueing
 * discipline (PACKET_QDISC_BYPASS).
 *
 *   slot:  | status | lengths, offsets | ... | Ethernet header | ... |   status: TP_STATUS_USER: the link's,
 *                                                                                  else the kernel's
 *
 * There are two rings, each with a socket of its own: many short slots for frames of the MTU, and some of 66 KiB for
 * super-frames. Hence a frame never wastes a long slot, and a super-frame lies in one piece. The sender on a veth pair
 * also pays for the work of the receiving side's kernel in its interrupt, including the copy into the ring. But the
 * pages that this copy frees are the sender's next ones, still in its cache.
 *
 * Super-frames are sent by a socket of their own, because PACKET_VNET_HDR also puts that header in front of received
 * frames.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/copy.h"
#include "base/crc32c.h"
#include "base/explain.h"
#include "base/files.h"
#include "base/inet_sum.h"
#include "link/eth.h"
#include "link/frame_layout.h"
#include "link/seal.h"
#include "link/station.h"

/* The most pieces of one call, below the kernel's limit of 1024 (UIO_MAXIOV). MAX_PEERS bounds the memory that forged
 * addresses can occupy. */
#define MAX_IOV 1000
#define MAX_PEERS 4096

/* ---------------------------------------------------------------- sending */

static void put16(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 8);
    p[1] = (uint8_t)v;
}

/* Makes a link-local address (169.254/16, RFC 3927) of the MAC's last two bytes. It is never routed, and no local stack
 * accepts it as its own. It need not be unique, because no lookup uses it. */
static void put_ip(uint8_t *p, const uint8_t mac[6])
{
    p[0] = 169;
    p[1] = 254;
    p[2] = mac[4];
    p[3] = mac[5];
}

/* Writes the Ethernet header, and those of IPv4 and UDP if `as_udp`, in front of len bytes. Returns the beginning of
 * the head and its length. */
static uint8_t *make_head(struct link *link, const struct link_peer *peer, struct eth_head *h, int as_udp, uint32_t len,
                          size_t *head_len)
{
    memcpy(h->ether.ether_dhost, peer->address, 6);
    memcpy(h->ether.ether_shost, link->address, 6);
    h->ether.ether_type = htons(as_udp ? ETHERTYPE_IP : WIRE_ETHERTYPE);
    *head_len = sizeof h->ether + (as_udp ? IP_UDP_LEN : 0);
    if (as_udp) {
        memset(h->ip, 0, IP_UDP_LEN);
        /* Version 4 and five words of header: without options every field has the offset that segments_in_udp() and the
         * filter expect. Then length, identification, flags, 64 hops, and 17 for UDP (RFC 791). */
        h->ip[0] = 0x45;
        put16(h->ip + 2, IP_UDP_LEN + len);
        put16(h->ip + 4, link->ip_id++);
        h->ip[6] = 0x40; /* do not fragment */
        h->ip[8] = 64;
        h->ip[9] = 17;
        put_ip(h->ip + 12, link->address);
        put_ip(h->ip + 16, peer->address);
        put16(h->ip + 10, (uint16_t)~vk_inet_sum(h->ip, IP_LEN, 0));
        put16(h->udp, WIRE_UDP_PORT);
        put16(h->udp + 2, WIRE_UDP_PORT);
        put16(h->udp + 4, UDP_LEN + len); /* checksum 0: none; the frame's CRC32C is stronger */
    }
    return (uint8_t *)&h->ether;
}

/* Requests segmentation by the kernel (linux/virtio_net.h). gso_size is the number of bytes behind the headers of each
 * segment. The kernel repeats the headers in front of each, with lengths and checksums of its own. It adds UDP's header
 * and data to the sum that it finds in the UDP header (at csum_start + csum_offset). That must be the pseudo-header's
 * sum, not inverted yet: both addresses, protocol, length. */
static void request_segmentation(struct eth_head *h, uint32_t segment, uint32_t len)
{
    memset(&h->vnet, 0, sizeof h->vnet);
    h->vnet.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    h->vnet.gso_type = VIRTIO_NET_HDR_GSO_UDP_L4;
    h->vnet.hdr_len = (uint16_t)(sizeof h->ether + IP_UDP_LEN);
    h->vnet.gso_size = (uint16_t)segment;
    h->vnet.csum_start = (uint16_t)(sizeof h->ether + IP_LEN);
    h->vnet.csum_offset = 6;
    put16(h->udp + 6, vk_inet_sum(h->ip + 12, 8, 17 + UDP_LEN + len));
}

static enum eth_verdict verdict(struct link *link, ssize_t sent)
{
    LINK_COUNT(link->client, system_calls, 1);
    if (vk_likely(sent >= 0))
        return ETH_SENT;
    if (errno == EINTR)
        return ETH_FULL;
    if (errno == ENOBUFS || errno == EAGAIN || errno == ENOMEM)
        return eth_full(link, errno);
    /* ENETDOWN, ENXIO, EMSGSIZE, EINVAL: if the error persists, the peer does not reply and the connection ends. */
    return ETH_LOST;
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
    if (verdict(link, vk_send(link->fd, head, head_len + header_len + len, MSG_DONTWAIT)) <= ETH_FULL)
        return 0;
    link_count_copied(link->client, len);
    return 1;
}

/* Sends one frame with one call, from one buffer if it is small, else gathered by the kernel. */
static enum eth_verdict send_single(struct link *link, const struct link_peer *peer, struct link_frame *f)
{
    uint32_t len = f->header_len + (uint32_t)f->payload_len;
    int as_udp = link->form == VIAKIT_FORM_UDP;
    struct eth_head *h = (struct eth_head *)link->small;
    size_t head_len;
    link_seal(f);
    if (vk_likely(f->payload_len <= SMALL)) { /* head, header and payload in one buffer */
        uint8_t *head = make_head(link, peer, h, as_udp, len, &head_len), *end = link_lay_out(head + head_len, f);
        link_count_copied(link->client, f->payload_len);
        return verdict(link, vk_send(link->fd, head, (size_t)(end - head), MSG_DONTWAIT));
    }
    /* The kernel copies the payload from the program's memory into its own buffer. That copy is not counted. */
    struct iovec iov[MAX_IOV];
    iov[0].iov_base = make_head(link, peer, h, as_udp, len, &iov[0].iov_len);
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 1 + link_gather(f, iov + 1)};
    return verdict(link, vk_sendmsg(link->fd, &m, MSG_DONTWAIT));
}

/* Returns how many of the frames can travel together. The head that they share is a piece as well. */
static int run_length(struct link *link, const struct link_frame *frames, int n)
{
    if (vk_likely(link->super_frames)) {
        int most = (int)link->super_segments;
        return link_run_length(frames, n < most ? n : most, link->super_bytes, MAX_IOV - 1);
    }
    eth_super_paused(link);
    return 1;
}

/* Sends a run of frames behind one Ethernet, IP and UDP header with one call: all or none. Returns ETH_FULL if the
 * queue is full or the interface does not segment (send_instead distinguishes the two). */
static enum eth_verdict send_super(struct link *link, const struct link_peer *peer, struct link_frame *frames, int n)
{
    struct iovec iov[MAX_IOV];
    struct eth_head head;
    uint32_t len = 0;
    size_t k = 1;
    for (int i = 0; i < n; i++) {
        struct link_frame *f = &frames[i];
        link->crc_always ? link_seal(f)
                         : link_seal_header(f); /* UDP's checksum, computed by the interface, covers the rest */
        k += link_gather(f, iov + k);
        len += f->header_len + (uint32_t)f->payload_len;
    }
    make_head(link, peer, &head, 1, len, &iov[0].iov_len);
    request_segmentation(&head, frames[0].header_len + (uint32_t)frames[0].payload_len, len);
    /* Begin at virtio's header, which stands right before Ethernet's (struct eth_head). */
    iov[0] = (struct iovec){&head, iov[0].iov_len + sizeof head.vnet};
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = k};
    LINK_COUNT(link->client, system_calls, 1);
    if (vk_unlikely(vk_sendmsg(link->send_fd, &m, MSG_DONTWAIT) < 0))
        return errno == EINVAL || errno == EOPNOTSUPP ? ETH_REFUSED : ETH_FULL;
    LINK_COUNT(link->client, super_frames_sent, 1);
    link->strikes = link->pause = 0;
    return ETH_SENT;
}

/* A super-frame was not accepted: sends its first frame by itself. If the interface accepts that frame, its queue is
 * not full, so the super-frame was refused for its form. */
static enum eth_verdict send_instead(struct link *link, const struct link_peer *peer, struct link_frame *frame,
                                     enum eth_verdict super)
{
    if (super == ETH_REFUSED) /* this kernel does not segment raw UDP frames */
        link->super_possible = link->super_frames = 0;
    enum eth_verdict sent = send_single(link, peer, frame);
    if (sent == ETH_SENT)
        eth_super_refused(link);
    return sent;
}

/* Link operation. Each run of equal frames costs one system call, each other frame one. */
static int eth_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int done = 0;
    while (done < n) {
        int run = n - done == 1 ? 1 : run_length(link, frames + done, n - done);
        enum eth_verdict sent =
            run > 1 ? send_super(link, peer, frames + done, run) : send_single(link, peer, frames + done);
        if (vk_unlikely(sent <= ETH_FULL) && run > 1) {
            sent = send_instead(link, peer, frames + done, sent);
            run = sent == ETH_LOST ? run : 1; /* if one frame is lost, the whole run is */
        }
        if (vk_unlikely(sent <= ETH_FULL))
            return done ? done : sent == ETH_FAILED ? link->error : -EAGAIN;
        done += run;
    }
    return done;
}

/* ---------------------------------------------------------------- receiving */

/* Returns slot i of the ring. Slots do not cross blocks, so the rest at the end of a block is unused. */
static inline struct tpacket2_hdr *slot(const struct eth_ring *ring, uint32_t i)
{
    return (struct tpacket2_hdr *)(void *)(ring->memory + (size_t)(i / ring->slots_per_block) * BLOCK +
                                           (size_t)(i % ring->slots_per_block) * ring->slot_len);
}

/* Returns the length of the first segment, a wire header and its payload, of len bytes. A length that reaches beyond
 * the end is cut here and then refused by the provider, as is an incomplete header. */
static size_t segment_len(const uint8_t *p, size_t len)
{
    uint16_t payload;
    if (len < sizeof(struct wire_header))
        return len;
    memcpy(&payload, p + offsetof(struct wire_header, len), sizeof payload);
    return sizeof(struct wire_header) + payload < len ? sizeof(struct wire_header) + payload : len;
}

/* Delivers one or more segments in place. The loop ends, because each pass consumes at least one byte. */
static void deliver_segments(struct link *link, const uint8_t *from, const uint8_t *p, size_t len)
{
    do {
        size_t n = segment_len(p, len);
        link_deliver(link->client, from, NULL, p, n);
        p += n;
        len -= n;
    } while (len);
}

/* Returns how many bytes of segments lie behind the headers of a frame of the form "udp". The frame has len bytes, of
 * which `have` are at hand. Returns 0 if it is not a viakit frame. */
static size_t segments_in_udp(const struct link *link, const uint8_t *frame, size_t have, size_t len)
{
    const struct ether_header *e = (const struct ether_header *)frame;
    const uint8_t *ip = frame + sizeof *e;
    if (have < sizeof *e + IP_UDP_LEN || e->ether_type != htons(ETHERTYPE_IP) || ip[0] != 0x45 || ip[9] != 17) {
        LINK_COUNT(link->client, dropped_malformed, 1);
        return 0;
    }
    /* UDP's own length gives the end of the segments: a short frame is padded to Ethernet's minimum. */
    size_t udp_len = (size_t)ip[IP_LEN + 4] << 8 | ip[IP_LEN + 5];
    if (udp_len <= UDP_LEN || udp_len - UDP_LEN > len - sizeof *e - IP_UDP_LEN) {
        LINK_COUNT(link->client, dropped_malformed, 1);
        return 0;
    }
    return udp_len - UDP_LEN;
}

/* Returns whether the frame is for this station. A promiscuous interface also receives frames for others. A broadcast
 * frame is a discovery request (via/connect/discover.c). */
static int is_for_us(const struct link *link, const uint8_t *frame, size_t len)
{
    static const uint8_t broadcast[6] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    return len >= sizeof(struct ether_header) &&
           (vk_likely(memcmp(frame, link->address, 6) == 0) || memcmp(frame, broadcast, 6) == 0);
}

/* Verifies UDP's checksum of a frame that segments_in_udp() has accepted, over pseudo-header, UDP's header and data. */
static int udp_sum_right(const uint8_t *ip, size_t len)
{
    uint32_t udp_len = (uint32_t)(UDP_LEN + len);
    return vk_inet_sum(ip + IP_LEN, udp_len, vk_inet_sum(ip + 12, 8, 17 + udp_len)) == 0xFFFF;
}

/* 0: the sender computed no checksum, but the kernel or a card may report the frame as checked. */
static int has_udp_sum(const uint8_t *ip)
{
    return ip[IP_LEN + 6] | ip[IP_LEN + 7];
}

/* The kernel's status of a frame's checksum: verified by its interface, or not computed because the frame has never
 * left this machine. In the second case the sum in the frame is unfinished, because no wire could have damaged the
 * frame. */
#define CHECKED (TP_STATUS_CSUM_VALID | TP_STATUS_CSUMNOTREADY)

/* Delivers a frame that lies in its slot, in either form. Its header is not copied here: the provider does that. */
static void deliver_slot(struct link *link, const uint8_t *frame, size_t len, uint32_t status)
{
    const struct ether_header *e = (const struct ether_header *)frame;
    if (!is_for_us(link, frame, len))
        return;
    if (e->ether_type == htons(WIRE_ETHERTYPE)) {
        /* Short frames arrive padded to 60 bytes: the padding is not a second segment. */
        const uint8_t *segment = frame + sizeof *e;
        link_deliver(link->client, e->ether_shost, NULL, segment, segment_len(segment, len - sizeof *e));
        return;
    }
    size_t n = segments_in_udp(link, frame, len, len);
    if (n == 0)
        return;
    const uint8_t *segments = frame + sizeof *e + IP_UDP_LEN;
    /* The second byte of a segment is its flags. Frames whose own checksum covers them entirely need no other. Those of
     * a super-frame have a checksum of the header only, so UDP's must be right for the rest. */
    if (n > 1 && !(segments[1] & WIRE_FLAG_CRC))
        link_set_checksum_verified(link->client, has_udp_sum(frame + sizeof *e) &&
                                                     ((status & CHECKED) || udp_sum_right(frame + sizeof *e, n)));
    deliver_segments(link, e->ether_shost, segments, n);
    link_set_checksum_verified(link->client, 0);
}

/* Counts the frames that the kernel dropped since the last call: reading the statistics clears them. */
static void count_losses(struct link *link)
{
    const int fds[] = {link->fd, link->super_fd};
    for (int i = 0; i < 2; i++) {
        struct tpacket_stats s;
        socklen_t len = sizeof s;
        if (fds[i] >= 0 && getsockopt(fds[i], SOL_PACKET, PACKET_STATISTICS, &s, &len) == 0)
            LINK_COUNT(link->client, dropped_ring_full, s.tp_drops);
    }
}

/* Returns the status of the next slot of a ring if it is the link's, else 0. */
static inline uint32_t slot_status(const struct eth_ring *ring, struct tpacket2_hdr **h)
{
    if (ring->memory == NULL)
        return 0;
    *h = slot(ring, ring->at);
    uint32_t status = vk_load_acquire(&(*h)->tp_status); /* acquire: the frame is there before its status */
    return status & TP_STATUS_USER ? status : 0;
}

/* If both rings have a frame, compares the kernel's time stamps. If the clock is set back in between, one frame may be
 * delivered early. */
static int is_before(const struct tpacket2_hdr *a, const struct tpacket2_hdr *b)
{
    return a->tp_sec != b->tp_sec ? a->tp_sec < b->tp_sec : a->tp_nsec < b->tp_nsec;
}

/* Link operation. Slots are read in order, up to the first that is still the kernel's. A slot is returned only after
 * its contents have been delivered, because frames are read in place. TP_STATUS_LOSING: frames were dropped since the
 * statistics were last read.
 *
 * The frames of one sender arrive one after the other, whichever ring each goes to. To keep their order, a ring that
 * was found empty is read once more if the other one was not: earlier frames are there by then. */
static int eth_poll(struct link *link, int budget)
{
    int n = 0;
    for (; n < budget; n++) {
        struct tpacket2_hdr *h = NULL, *super = NULL;
        uint32_t status = slot_status(&link->frames, &h), super_status = slot_status(&link->supers, &super);
        if (vk_likely(!(status | super_status)))
            break;
        if (!super_status)
            super_status = slot_status(&link->supers, &super);
        else if (!status)
            status = slot_status(&link->frames, &h);
        struct eth_ring *ring = &link->frames;
        if (super_status && !(status && is_before(h, super))) {
            ring = &link->supers;
            h = super;
            status = super_status;
        }
        /* The frame's length, and how many bytes of it the kernel has put into the slot. */
        if (vk_likely(h->tp_len == h->tp_snaplen))
            deliver_slot(link, (const uint8_t *)h + h->tp_mac, h->tp_snaplen, status);
        else
            LINK_COUNT(link->client, dropped_malformed, 1); /* longer than any valid frame */
        vk_store_release(&h->tp_status,
                         TP_STATUS_KERNEL); /* release: the frame has been read before its slot is returned */
        ring->at = ring->at + 1 == ring->n_slots ? 0 : ring->at + 1;
        if (vk_unlikely(status & TP_STATUS_LOSING))
            count_losses(link);
    }
    return n;
}

/* Link operation. Nothing is to be armed: a descriptor is readable while the last filled slot of its ring is the
 * link's, so no wake-up is missed. */
static int eth_arm(struct link *link)
{
    struct tpacket2_hdr *h;
    return (slot_status(&link->frames, &h) | slot_status(&link->supers, &h)) != 0;
}

/* Link operations: a sleeping thread polls both sockets. poll(2) ignores a descriptor of -1. */
static int eth_watch(struct link *link, struct pollfd *fds)
{
    fds[0] = (struct pollfd){.fd = link->fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = link->super_fd, .events = POLLIN};
    return 2;
}

/* Clears an error, for instance that the interface went down: it would end every later sleep at once. */
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

/* Link operation: every MAC address counts as a station until it turns out to be silent. */
static int eth_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    (void)port; /* the port is in every frame */
    struct link_peer *p = link->peers;
    while (p && memcmp(p->address, address, 6) != 0)
        p = p->next;
    if (p == NULL) {
        p = link->n_peers < MAX_PEERS ? calloc(1, sizeof *p) : NULL; /* forged addresses could be any number */
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

/* Returns a peer that is not in the list: an unknown sender can forge any number of addresses, and gets only one
 * reply. */
static int eth_passing(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    (void)port;
    memcpy(link->passing.address, address, 6);
    *out = &link->passing;
    return 0;
}

/* Link operation: port 0 passes every NIC's filter. The number of receiving NICs is unknown: -1. */
static int eth_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    struct link_peer *peer;
    frame->header.dst_port = 0;
    if (eth_route(link, address, 0, &peer) == 0)
        eth_send(link, peer, frame, 1);
    return -1;
}

/* Link operation. The names are local to the network namespace. A station is one interface of it. */
static int eth_count_neighbours(struct link *link)
{
    uint16_t ports[512];
    char prefix[64];
    eth_station_prefix(link, prefix);
    return station_ports(prefix, -1, ports, 512);
}

/* ---------------------------------------------------------------- opening */

/* Link operation. The device is the interface's name. */
static int eth_open(struct link_client *client, const char *device, const viakit_nic_options *options,
                    struct link **out, struct link_limits *limits)
{
    uint32_t mtu = 0;
    /* First: if the name is wrong, a missing privilege does not matter yet. */
    if (*device == 0 || strlen(device) >= IFNAMSIZ || if_nametoindex(device) == 0)
        return eth_refuse_interface(device);
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    link->client = client;
    link->fd = link->claim_fd = link->super_fd = link->send_fd = -1;
    link->form = options->form;
    link->crc_always = options->checksum == VIAKIT_CHECKSUM_CRC;
    strcpy(link->interface, device);
    int error = eth_bring_up(link, options, &mtu);
    if (error) {
        eth_close(link);
        return error;
    }
    /* An MTU counts the bytes behind the Ethernet header, including IP's and UDP's headers. */
    link->segment = mtu - (link->form == VIAKIT_FORM_PLAIN ? 0 : IP_UDP_LEN);
    if (link->segment > MOST_BYTES)
        link->segment = MOST_BYTES;
    eth_super_start(link);
    *limits = (struct link_limits){.port = link->port,
                                   .mtu = mtu,
                                   .max_payload = link->segment - (uint32_t)sizeof(struct wire_header),
                                   .max_batch = 1,
                                   .short_below = link->segment < sizeof(struct wire_header) + SMALL ? 0 : SMALL + 1,
                                   .ring_slots = link->supers.memory && link->supers.n_slots < link->frames.n_slots
                                                     ? link->supers.n_slots
                                                     : link->frames.n_slots,
                                   .frame_slots = link->super_frames ? 0 : link->frames.n_slots,
                                   .checksum = 1,
                                   .data_fd = -1, /* see eth_watch() */
                                   .control_fd = -1};
    if (link->super_frames)
        limits->max_batch = eth_super_batch(link->segment, link->super_bytes, link->super_segments);
    memcpy(limits->address, link->address, 6);
    *out = link;
    return 0;
}

/* Link operation. The limits may have changed since the NIC was opened. Without super-frames one send carries a single
 * frame. */
static void eth_info(struct link *link, viakit_nic_info *info)
{
    static const char *const forms[] = {"auto", "plain", "udp"};
    strcpy(info->interface, link->interface);
    strcpy(info->form, forms[link->form]);
    uint32_t now = link->super_frames ? eth_super_batch(link->segment, link->super_bytes, link->super_segments) : 1;
    if (info->super_payload > now * info->max_payload)
        info->super_payload = now * info->max_payload;
    count_losses(link);
}

const struct link_ops link_eth = {
    .about = {.name = "eth",
              .devices = "eth:INTERFACE",
              .transport = "raw Ethernet frames",
              .leaves_process = 1,
              .leaves_host = 1,
              .named_by = VIAKIT_BY_INTERFACE},
    .open = eth_open,
    .close = eth_close,
    .route = eth_route,
    .passing = eth_passing,
    .request_all = eth_request_all,
    .count_neighbours = eth_count_neighbours,
    .send = eth_send,
    .send_short = eth_send_short,
    .poll = eth_poll,
    .arm = eth_arm,
    .watch = eth_watch,
    .woken = eth_woken,
    .info = eth_info,
};
