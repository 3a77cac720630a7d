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
 * polling needs no system call (eth_receive.c). Sending takes one system call per frame or super-frame and bypasses the
 * queueing discipline (PACKET_QDISC_BYPASS).
 *
 *   slot:  | status | lengths, offsets | ... | Ethernet header | ... |   status: TP_STATUS_USER: the link's,
 *                                                                                  else the kernel's
 *
 * There are three rings, each with a socket of its own: many short slots for frames of the MTU, some of 66 KiB for
 * super-frames, and short ones for the beginnings of super-frames in a queue. Hence a frame never wastes a long slot,
 * and a super-frame lies in one piece. The sender on a veth pair also pays for the work of the receiving side's kernel
 * in its interrupt, including the copy into the ring. But the pages that this copy frees are the sender's next ones,
 * still in its cache.
 *
 * Super-frames are sent by a socket of their own, because PACKET_VNET_HDR also puts that header in front of received
 * frames.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/copy.h"
#include "base/crc32c.h"
#include "base/explain.h"
#include "base/files.h"
#include "base/inet_sum.h"
#include "link/eth.h"
#include "link/eth_filter.h"
#include "link/frame_layout.h"
#include "link/seal.h"
#include "link/station.h"

/* The most pieces of one call, below the kernel's limit of 1024 (UIO_MAXIOV). MAX_PEERS bounds the memory that forged
 * addresses can occupy. */
#define MAX_IOV 1000
#define MAX_PEERS 4096
#define STREAM_SENDS 2         /* unacknowledged link sends of a connection whose next message continues a stream */
#define FULL_SUPER (48u << 10) /* bytes below which a super-frame is never marked: the system call would take longer */

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
        put16(h->ip + 4, (link->ip_id++ & (ETH_MARK - 1)) | link->mark);
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
    link->stream = NULL;
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
    if (f->payload_len)
        link->stream = NULL;
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

/* Returns the mark of a super-frame of len bytes. It is set if the super-frame is of full length and part of a stream
 * (eth_receive.c). So it directly follows another such one to the same peer, or several link sends are unacknowledged:
 * messages of 64 KiB have one full super-frame and a short one each. In a ping-pong of these, the reply has
 * acknowledged all. The response of an RDMA read gets none, because its segments cannot be received in their place. */
static uint32_t next_mark(struct link *link, const struct link_peer *peer, const struct link_frame *first, uint32_t len)
{
    int is_full = len >= FULL_SUPER && len + link->segment > link->super_bytes;
    int kind = first->header.version_kind & 15, can_be_placed = kind == WIRE_SEND || kind == WIRE_WRITE;
    int is_stream = link->stream == peer || first->in_flight >= STREAM_SENDS;
    uint32_t mark = is_full && can_be_placed && is_stream ? ETH_MARK : 0;
    link->stream = is_full ? peer : NULL;
    return mark;
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
    link->mark = next_mark(link, peer, &frames[0], len);
    make_head(link, peer, &head, 1, len, &iov[0].iov_len);
    link->mark = 0;
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

/* Returns how many frames or super-frames the NIC can hold, whichever ring they go to. */
static uint32_t least_room(const struct link *link)
{
    uint32_t least = link->frames.n_slots;
    if (link->supers.memory && link->supers.n_slots < least)
        least = link->supers.n_slots;
    return link->streams.memory && link->stream_room < least ? link->stream_room : least;
}

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
    link->fd = link->claim_fd = link->super_fd = link->stream_fd = link->send_fd = -1;
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
                                   .ring_slots = least_room(link),
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
    eth_count_losses(link);
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
