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
 * A slot holds one frame. Of a super-frame it gets the beginning, which is the whole first segment; the rest waits
 * in the socket's queue, uncopied (PACKET_COPY_THRESH), until one recvmsg brings it from there straight to where the
 * message goes: the first segment has told which message it is. Who sends on a veth pair pays for what the receiving
 * side's kernel does in its interrupt; so a copy into the ring would be the sender's, and the sender is the busier
 * of the two.
 *
 * Super-frames leave by a socket of their own: one with PACKET_VNET_HDR handles that header in front of every frame,
 * received ones too.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../base/atomic.h"
#include "../base/copy.h"
#include "../base/crc32c.h"
#include "../base/files.h"
#include "eth.h"
#include "frame.h"
#include "seal.h"
#include "station.h"
#include "super.h"

/* Pieces of one call: below the kernel's limit of 1024 (UIO_MAXIOV). MAX_PEERS bounds what invented addresses can
 * cost. MAX_SEGMENTS is more than 64 KiB of full frames have at MTU 1500. */
#define MAX_IOV 1000
#define MAX_PEERS 4096
#define MAX_SEGMENTS 64 /* of a super-frame that goes straight to its place */

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

/* 1 sent (or lost by the interface), 0 not now, -1 the kernel refuses the form. ENOBUFS and ENOMEM: the driver's
 * queue or the kernel's memory is full just now, which passes. */
static int verdict(struct link *link, ssize_t sent)
{
    LINK_COUNT(link->nic, system_calls, 1);
    if (sent >= 0)
        return 1;
    if (errno == EAGAIN || errno == ENOBUFS || errno == EINTR || errno == ENOMEM)
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
    int sent = verdict(link, send(link->fd, head, head_len + header_len + len, MSG_DONTWAIT));
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
        return verdict(link, send(link->fd, head, (size_t)(end - head), MSG_DONTWAIT));
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
    return verdict(link, sendmsg(link->fd, &m, MSG_DONTWAIT));
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
    int sent = verdict(link, sendmsg(link->super_fd, &m, MSG_DONTWAIT));
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
static inline struct tpacket2_hdr *slot(const struct link *link, uint32_t i)
{
    return (struct tpacket2_hdr *)(void *)(link->ring + (size_t)(i / link->slots_per_block) * BLOCK +
                                           (size_t)(i % link->slots_per_block) * link->slot_len);
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

/* ---------------------------------------------------------------- super-frames that wait in the socket's queue */

/* What a slot shows of the super-frame that waits for it: len bytes in all, `have` of them at frame. */
struct beginning {
    const uint8_t *frame;
    size_t have, len;
};

/* What slot and queue must agree on, to belong together: everything up to the end of the first wire header. */
#define HEADS (sizeof(struct ether_header) + DRESS_LEN + sizeof(struct wire_header))

/* Brings the one that belongs to the slot; iov begins with link->whole. 0 if it is not to be had. An error of the
 * interface (it went down) is reported by one call that takes nothing; so slots and queue could part, and what is
 * brought is compared with what the slot shows. */
static int bring(struct link *link, const struct beginning *b, struct iovec *iov, size_t n)
{
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    size_t known = b->have < HEADS ? b->have : HEADS;
    for (uint32_t tries = 0; tries <= link->n_slots; tries++) {
        /* MSG_TRUNC: the length that it had, not what found room. */
        ssize_t len = recvmsg(link->fd, &m, MSG_DONTWAIT | MSG_TRUNC);
        LINK_COUNT(link->nic, system_calls, 1);
        if (vk_likely(len >= 0 && (size_t)len == b->len && memcmp(link->whole, b->frame, known) == 0))
            return 1;
        if (len < 0 &&
            (errno == EAGAIN || errno == EFAULT)) /* nothing there / there, and lost: the place is not mapped */
            return 0;
    }
    return 0;
}

/* All of it into one buffer, and the segments from `begin` on delivered from there. begin 0, end 0: only taken off
 * the queue. */
static void by_buffer(struct link *link, const struct beginning *b, size_t begin, size_t end)
{
    struct iovec iov = {link->whole, SUPER_SLOT};
    int here = bring(link, b, &iov, 1);
    const struct ether_header *e = (const struct ether_header *)link->whole;
    if (!here || end <= begin || end > b->len || end > SUPER_SLOT)
        return;
    deliver_segments(link, e->ether_shost, link->whole + begin, end - begin);
}

/* The segments after the first, headers here and payloads there:
 *
 *   | Ethernet IP UDP, first segment | header | payload | header | payload | ... | header | payload |
 *     -> whole, to be ignored           headers   place     headers   place
 *
 * A checksum that covers them is proved after they lie in their place; one that is wrong is sent again to the same
 * place, or its message fails. But the last word of an RDMA write tells its target that all before it is good, so
 * the last segment of a write takes the way by the buffer. */
static void to_its_place(struct link *link, const struct beginning *b, const struct wire_header *first, size_t begin,
                         size_t end, uint8_t *place)
{
    struct wire_header headers[MAX_SEGMENTS];
    struct iovec iov[1 + 2 * MAX_SEGMENTS] = {{link->whole, begin}};
    uint8_t from[6], *last = link->whole + begin;
    size_t n = 0, segment = sizeof *first + first->len, at = begin;
    for (; at < end; n++) {
        size_t payload = (end - at < segment ? end - at : segment) - sizeof *first;
        at += sizeof *first + payload;
        iov[1 + 2 * n] = (struct iovec){&headers[n], sizeof *first};
        iov[2 + 2 * n] = (struct iovec){at == end && (first->version_kind & 15) == WIRE_WRITE ? last : place, payload};
        place += payload;
    }
    if (!bring(link, b, iov, 1 + 2 * n))
        return;
    memcpy(from, ((const struct ether_header *)link->whole)->ether_shost, 6);
    link_deliver_placed(link->nic, from, NULL, first, headers, iov + 2, n, last);
}

/* The slot has the beginning of a super-frame of len bytes. Whatever is wrong with it, it must be taken off the
 * queue. */
static void deliver_segments_queued(struct link *link, const uint8_t *frame, size_t have, size_t len)
{
    const size_t head = sizeof(struct ether_header) + DRESS_LEN;
    const struct beginning b = {frame, have, len};
    struct wire_header first;
    size_t segments = is_for_us(link, frame, have) ? undress(link, frame, have, len) : 0, end = head + segments;
    if (segments == 0 || have < head + sizeof first) {
        by_buffer(link, &b, 0, 0);
        return;
    }
    memcpy(&first, frame + head, sizeof first);
    size_t segment = sizeof first + first.len;
    if (head + segment > have || segment >= segments || first.len == 0) {
        by_buffer(link, &b, head, end); /* a larger segment than our MTU allows: somebody tests us */
        return;
    }
    link_deliver(link->nic, ((const struct ether_header *)frame)->ether_shost, NULL, frame + head, segment);
    size_t n = (segments - 1) / segment,
           shortest = segments - n * segment; /* segments behind the first; bytes of the last */
    uint8_t *place = NULL;
    if (n <= MAX_SEGMENTS && shortest >= sizeof first) {
        size_t payload = segments - segment - n * sizeof first;
        if ((first.version_kind & 15) == WIRE_WRITE) /* the last one's bytes go elsewhere first */
            payload -= shortest - sizeof first;
        place = link_place_ahead(link->nic, &first, payload);
    }
    if (place)
        to_its_place(link, &b, &first, head + segment, end, place);
    else
        by_buffer(link, &b, head + segment, end);
}

/* A slot with a beginning only. What the kernel knows of the checksum counts for all that is delivered from it. */
static void deliver_queued(struct link *link, const uint8_t *frame, size_t have, size_t len, uint32_t status)
{
    link_vouch(link->nic, (status & CHECKED) != 0);
    deliver_segments_queued(link, frame, have, len);
    link_vouch(link->nic, 0);
}

/* To the counters, what the kernel dropped since the last time: reading the statistics clears them. */
static void count_losses(struct link *link)
{
    struct tpacket_stats s;
    socklen_t len = sizeof s;
    if (getsockopt(link->fd, SOL_PACKET, PACKET_STATISTICS, &s, &len) == 0)
        LINK_COUNT(link->nic, dropped_ring_full, s.tp_drops);
}

/* Link operation. Slots are taken in order; the first that is still the kernel's ends the look. A slot is given back
 * only after everything in it has been delivered, for frames are read where they lie. TP_STATUS_COPY: the slot has
 * the beginning, and the whole frame waits in the queue. TP_STATUS_LOSING: something was dropped since the
 * statistics were read last. */
static int eth_poll(struct link *link, int budget)
{
    int n = 0;
    while (n < budget) {
        struct tpacket2_hdr *h = slot(link, link->at);
        uint32_t status = vk_load_acquire(&h->tp_status); /* the frame is there before its status */
        if (vk_likely(!(status & TP_STATUS_USER)))
            break;
        const uint8_t *frame = (const uint8_t *)h + h->tp_mac;
        if (vk_unlikely(status & TP_STATUS_COPY))
            deliver_queued(link, frame, h->tp_snaplen, h->tp_len, status);
        /* The frame's length, and how much of it the kernel has put into the slot. */
        else if (vk_likely(h->tp_len == h->tp_snaplen))
            deliver_slot(link, frame, h->tp_snaplen, status);
        else /* too long for a slot, and the queue was full */
            LINK_COUNT(link->nic, dropped_ring_full, 1);
        vk_store_release(&h->tp_status, TP_STATUS_KERNEL); /* we have read it before it is given back */
        link->at = link->at + 1 == link->n_slots ? 0 : link->at + 1;
        n++;
        if (vk_unlikely(status & TP_STATUS_LOSING))
            count_losses(link);
    }
    return n;
}

/* Link operation. Nothing is to be armed: the descriptor is readable as long as the slot that was filled last is
 * ours, so no wake-up is missed. */
static int eth_arm(struct link *link)
{
    return (vk_load_acquire(&slot(link, link->at)->tp_status) & TP_STATUS_USER) != 0;
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
    link->claim_fd = link->super_fd = -1;
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
                                   .ring_slots = link->queued && link->queue_slots < link->n_slots ? link->queue_slots
                                                                                                   : link->n_slots,
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
    .info = eth_info,
};
