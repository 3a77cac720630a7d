/*
 * Receiving by the rings of eth. The kernel fills slots, and the link reads them without a system call. Frames of the
 * MTU, and most super-frames, are read in place. The sender marks super-frames of long messages. A socket of their own
 * receives these:
 *
 *   The kernel keeps each one in the socket's queue (PACKET_COPY_THRESH), and copies its beginning into a short slot:
 *
 *      | Ethernet, IPv4, UDP | first segment | part of the second |
 *
 *   The first segment identifies the message of the others (super.h). One recvmsg() scatters these over headers and the
 *   program's memory. So the payload is copied once, not twice as by a long slot.
 *
 * For a single super-frame the system call takes about as long as the two copies. In a stream, sender and receiver work
 * at the same time, and each copy that is saved raises the rate. So the sender marks a super-frame only if it directly
 * follows another one, or if the last message is not acknowledged.
 *
 * Queue and slots have the same order, because the kernel fills both under one lock. If the queue is full, a slot comes
 * without TP_STATUS_COPY. Then at least all segments but the first are lost.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/inet_sum.h"
#include "link/eth.h"
#include "link/super.h"

#define QUEUE_TRIES \
    1000 /* errors, and super-frames without a slot, before one counts as lost; more than the queue holds */

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

/* ---------------------------------------------------------------- super-frames in the socket's queue */

/* Takes the super-frame of a slot, with `all` bytes, out of the queue into the pieces of iov. The first piece lies in
 * link->queued. Returns whether it was there.
 *
 * A call may return an error of the socket instead, such as ENETDOWN, and takes nothing out then. Lengths are no proof
 * that slot and queue belong together. The bytes from Ethernet's to the wire header are: they contain the frame's
 * number and checksum. Another super-frame is dropped. Its bytes may lie in the place of segments that have not
 * arrived, and are overwritten when these arrive. */
static int take_queued(struct link *link, const uint8_t *frame, size_t have, struct iovec *iov, size_t n, size_t all)
{
    const size_t heads = sizeof(struct ether_header) + IP_UDP_LEN + sizeof(struct wire_header);
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    for (int i = 0; i < QUEUE_TRIES; i++) {
        ssize_t got = vk_recvmsg(link->stream_fd, &m, MSG_DONTWAIT | MSG_TRUNC);
        LINK_COUNT(link->client, system_calls, 1);
        if (got == (ssize_t)all && memcmp(link->queued, frame, have < heads ? have : heads) == 0)
            return 1;
        if (got < 0 && errno == EAGAIN)
            break;
    }
    LINK_COUNT(link->client, dropped_ring_full, 1);
    return 0;
}

/* Returns the length of the first segment if it is whole, can be delivered from the slot, and identifies the place of
 * the others; else 0. `have` bytes of `end` are at p. */
static size_t can_lead(const uint8_t *p, size_t have, size_t end, struct wire_header *first)
{
    if (have < sizeof *first)
        return 0;
    memcpy(first, p, sizeof *first);
    size_t begin = sizeof *first + first->len;
    if (begin > have || begin > end || (first->version_kind & 15) > WIRE_WRITE)
        return 0;
    return link_payload_ahead(first, begin, end) ? begin : 0;
}

/* Receives the segments behind the first, which was delivered from the slot. Those of another message, or of one whose
 * memory is in several pieces, are received in the link's own buffer. */
static void deliver_rest(struct link *link, const uint8_t *frame, size_t have, const struct wire_header *first,
                         size_t begin, size_t end, size_t all)
{
    const size_t head = sizeof(struct ether_header) + IP_UDP_LEN;
    const uint8_t *from = ((const struct ether_header *)frame)->ether_shost;
    uint8_t *place = link_place_ahead(link->client, first, link_payload_ahead(first, begin, end));
    uint8_t *behind = link->queued + head + begin;
    struct iovec whole = {link->queued, SUPER_SLOT};
    struct link_scatter s;
    if (place == NULL) {
        if (take_queued(link, frame, have, &whole, 1, all))
            deliver_segments(link, from, behind, end - begin);
        return;
    }
    link_scatter(&s, first, begin, end, place, behind);
    s.iov[0] = (struct iovec){link->queued, head + begin};
    if (take_queued(link, frame, have, s.iov, 1 + 2 * s.n, all))
        link_deliver_placed(link->client, from, NULL, first, s.headers, s.iov + 2, s.n, behind);
}

/* Delivers a super-frame of `all` bytes, of which the slot has the first `have`. */
static void deliver_queued(struct link *link, const uint8_t *frame, size_t have, size_t all, uint32_t status)
{
    const uint8_t *segments = frame + sizeof(struct ether_header) + IP_UDP_LEN;
    struct iovec whole = {link->queued, SUPER_SLOT};
    struct wire_header first;
    size_t end = is_for_us(link, frame, have) ? segments_in_udp(link, frame, have, all) : 0;
    size_t begin = end ? can_lead(segments, have - (size_t)(segments - frame), end, &first) : 0;
    /* Without the whole super-frame only the kernel's own verdict on UDP's checksum counts. */
    int has_crc = begin && segments[1] & WIRE_FLAG_CRC;
    if (begin && !has_crc && !((status & CHECKED) && has_udp_sum(frame + sizeof(struct ether_header))))
        begin = 0;
    if (begin) {
        link_set_checksum_verified(link->client, !has_crc);
        link_deliver(link->client, ((const struct ether_header *)frame)->ether_shost, NULL, segments, begin);
    }
    if (!(status & TP_STATUS_COPY))
        LINK_COUNT(link->client, dropped_ring_full, end != 0);
    else if (begin)
        deliver_rest(link, frame, have, &first, begin, end, all);
    else if (take_queued(link, frame, have, &whole, 1, all) && end && all <= SUPER_SLOT)
        deliver_slot(link, link->queued, all, status);
    link_set_checksum_verified(link->client, 0);
}

/* ---------------------------------------------------------------- rings */

/* Counts the frames that the kernel dropped since the last call: reading the statistics clears them. */
void eth_count_losses(struct link *link)
{
    const int fds[] = {link->fd, link->super_fd, link->stream_fd};
    for (int i = 0; i < 3; i++) {
        struct tpacket_stats s;
        socklen_t len = sizeof s;
        if (fds[i] >= 0 && getsockopt(fds[i], SOL_PACKET, PACKET_STATISTICS, &s, &len) == 0)
            LINK_COUNT(link->client, dropped_ring_full, s.tp_drops);
    }
}

/* Returns the status of the next slot of a ring if it is the link's, else 0. */
static inline uint32_t slot_status(const struct eth_ring *ring)
{
    uint32_t status = vk_load_acquire(&ring->first->tp_status); /* acquire: the frame is there before its status */
    return status & TP_STATUS_USER ? status : 0;
}

/* Compares the kernel's time stamps. If the clock is set back in between, one frame may be delivered early. */
static int is_before(const struct tpacket2_hdr *a, const struct tpacket2_hdr *b)
{
    return a->tp_sec != b->tp_sec ? a->tp_sec < b->tp_sec : a->tp_nsec < b->tp_nsec;
}

static inline uint32_t other_status(const struct link *link)
{
    return slot_status(&link->supers) | slot_status(&link->streams);
}

/* Returns the ring with the earliest frame. At least one has a frame. */
static struct eth_ring *earliest(struct link *link)
{
    struct eth_ring *const rings[] = {&link->streams, &link->supers, &link->frames}, *first = NULL;
    for (int i = 0; i < 3; i++)
        if (slot_status(rings[i]) && (first == NULL || is_before(rings[i]->first, first->first)))
            first = rings[i];
    return first;
}

/* Link operation. Slots are read in order, up to the first that is still the kernel's. A slot is returned only after
 * its contents have been delivered, because frames are read in place. TP_STATUS_LOSING: frames were dropped since the
 * statistics were last read.
 *
 * The frames of one sender arrive one after the other, whichever ring each goes to. To keep their order, the rings that
 * were found empty are read once more if another one was not: earlier frames are there by then. */
int eth_poll(struct link *link, int budget)
{
    int n = 0;
    for (; n < budget; n++) {
        struct eth_ring *ring = &link->frames;
        if (vk_likely(!(slot_status(ring) | other_status(link))))
            break;
        if (other_status(link))
            ring = earliest(link);
        struct tpacket2_hdr *h = ring->first;
        uint32_t status = slot_status(ring);
        /* The frame's length, and how many bytes of it the kernel has put into the slot. */
        if (vk_likely(h->tp_len == h->tp_snaplen))
            deliver_slot(link, (const uint8_t *)h + h->tp_mac, h->tp_snaplen, status);
        else if (ring == &link->streams)
            deliver_queued(link, (const uint8_t *)h + h->tp_mac, h->tp_snaplen, h->tp_len, status);
        else
            LINK_COUNT(link->client, dropped_malformed, 1); /* longer than any valid frame */
        vk_store_release(&h->tp_status,
                         TP_STATUS_KERNEL); /* release: the frame has been read before its slot is returned */
        ring->at = ring->at + 1 == ring->n_slots ? 0 : ring->at + 1;
        ring->first = slot(ring, ring->at);
        if (vk_unlikely(status & TP_STATUS_LOSING))
            eth_count_losses(link);
    }
    return n;
}

/* Link operation. Nothing is to be armed: a descriptor is readable while the last filled slot of its ring is the
 * link's, so no wake-up is missed. */
int eth_arm(struct link *link)
{
    return (slot_status(&link->frames) | other_status(link)) != 0;
}

/* Link operations: a sleeping thread polls all sockets. poll(2) ignores a descriptor of -1. */
int eth_watch(struct link *link, struct pollfd *fds)
{
    fds[0] = (struct pollfd){.fd = link->fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = link->super_fd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = link->stream_fd, .events = POLLIN};
    return 3;
}

/* Clears an error, for instance that the interface went down: it would end every later sleep at once. */
void eth_woken(struct link *link, const struct pollfd *fds, int n)
{
    (void)link;
    for (int i = 0; i < n; i++) {
        int error;
        socklen_t len = sizeof error;
        if (fds[i].revents & (POLLERR | POLLHUP))
            getsockopt(fds[i].fd, SOL_SOCKET, SO_ERROR, &error, &len);
    }
}
