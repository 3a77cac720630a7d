/*
 * udp: UDP datagrams. No privilege is needed, routers forward them, and with segmentation offload they are fast. One
 * datagram is
 *
 *    | IP | UDP | wire header | payload |       or, as a super-frame between program and kernel, many such in one piece
 *
 * Device: udp:ADDRESS, udp:INTERFACE, or udp: for the address of this host's default route. An optional :PORT selects a
 * station other than the default one. A NIC has one address, of IPv4 or IPv6.
 *
 * Datagrams may be lost where a buffer is full, and may arrive twice or late. The provider's reliable levels repair
 * that. This link avoids causing it: the window is sized to the receive buffer that the kernel granted, and frames to
 * the path.
 *
 * Only the NIC's owner calls the operations, except resolve (udp_address.c). None blocks, because all sockets are read
 * and written with MSG_DONTWAIT.
 *
 * Not done: sending from a queue of the kernel's own (io_uring, MSG_ZEROCOPY). Both need the payload until a
 * completion, and send() returns it to its caller at once (link.h).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/explain.h"
#include "base/files.h"
#include "link/udp.h"

#define IP4_LEN 20        /* bytes without options, which the kernel adds to no datagram here (RFC 791) */
#define IP6_LEN 40        /* without extension headers (RFC 8200) */
#define UDP_LEN 8         /* RFC 768 */
#define MIN_MTU 320u      /* headers and the longest connection request, bytes */
#define SUPER_MOST 65487u /* 65535 bytes of an IP packet, less both headers of IPv6: fits behind either IP header */
#define SUPER_LEAST 8192u /* smaller super-frames save little */
#define OVERHEAD 2        /* the kernel charges a datagram in a receive buffer up to this many times its length */
#define LEAST_WINDOW 8    /* super-frames that a receive buffer should hold, so that both sides work at the same time */

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103 /* of linux/udp.h, Linux 4.18; the C library's header may be older */
#endif

/* Link operation, also for a link that was opened only in part: every descriptor is -1 or open. Lanes first, because
 * they point at peers. */
static void udp_close(struct link *link)
{
    for (int i = 1; i <= UDP_LANES; i++)
        udp_close_lane(link, i);
    vk_file_close(link->sockets[0].fd);
    vk_file_close(link->station_fd);
    vk_file_close(link->claim_fd);
    udp_free_peers(link);
    free(link->pending);
    free(link->buffer);
    free(link);
}

/* Uses the interface's MTU, or a smaller one if requested. `head` is the size of IP's and UDP's headers. Returns 0, or
 * -EINVAL, explained. */
static int settle_mtu(struct link *link, const viakit_nic_options *options)
{
    if (options->mtu > link->mtu) {
        vk_explain("udp: MTU %u requested, but %s has %u: raise the interface's MTU or request a smaller one",
                   options->mtu, link->interface, link->mtu);
        return -EINVAL;
    }
    if (options->mtu)
        link->mtu = options->mtu;
    if (link->mtu < MIN_MTU) {
        vk_explain("udp: MTU %u of %s is too small: at least %u are needed", link->mtu, link->interface, MIN_MTU);
        return -EINVAL;
    }
    link->head = (link->name.any.sa_family == AF_INET ? IP4_LEN : IP6_LEN) + UDP_LEN;
    return 0;
}

/* Sets the sizes of frames and super-frames. Frames fit the wire. Super-frames, and frames too on a wire as wide as the
 * loopback, are sized so that at least LEAST_WINDOW of them fit the receive buffer. The peer's buffer is assumed to
 * have the same size.
 *
 *    super_bytes = granted / (OVERHEAD * LEAST_WINDOW), from SUPER_LEAST to SUPER_MOST
 *    segment     = bytes that the MTU leaves for a frame, super_bytes at most */
static void settle_sizes(struct link *link)
{
    int granted = 0, segment = 0;
    socklen_t len = sizeof granted;
    if (getsockopt(link->sockets[0].fd, SOL_SOCKET, SO_RCVBUF, &granted, &len) != 0 || granted <= 0)
        granted = 1 << 17;
    link->granted = (uint32_t)granted;
    link->super_bytes = link->granted / (OVERHEAD * LEAST_WINDOW);
    if (link->super_bytes > SUPER_MOST)
        link->super_bytes = SUPER_MOST;
    if (link->super_bytes < SUPER_LEAST)
        link->super_bytes = SUPER_LEAST;
    link->segment = link->mtu - link->head;
    if (link->segment > link->super_bytes)
        link->segment = link->super_bytes;
    /* Setting 0 changes nothing and shows whether the kernel supports the option. Each super-frame carries its own
     * segment length. */
    link->super_frames = setsockopt(link->sockets[0].fd, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) == 0;
}

/* Opens the NIC's own socket and the station's common one, and allocates the receive buffer. IP_RECVERR keeps each ICMP
 * error with the datagram's destination, because the NIC's socket sends to many. Returns 0 or -errno, explained. The
 * caller closes what an incomplete opening has left. */
static int make_sockets(struct link *link)
{
    int is_v4 = link->name.any.sa_family == AF_INET, one = 1, error = udp_claim(link);
    if (error) {
        vk_explain("udp: no socket on %s: %s", link->interface, strerror(-error));
        return error;
    }
    if ((error = udp_open_station(link)) != 0)
        return error;
    udp_set_options(link, link->sockets[0].fd);
    setsockopt(link->sockets[0].fd, is_v4 ? IPPROTO_IP : IPPROTO_IPV6, is_v4 ? IP_RECVERR : IPV6_RECVERR, &one,
               sizeof one);
    link->buffer = malloc((size_t)UDP_SLOTS * UDP_SLOT);
    if (link->buffer == NULL) {
        error = -ENOMEM;
        vk_explain("udp: %s", strerror(-error));
    }
    return error;
}

/* Link operation. The window is the number of sends that the receive buffer holds. A peer with a smaller buffer loses
 * frames, and the provider's congestion window adapts. At least 2, or the sender would wait for the acknowledgement of
 * each. */
static int udp_open(struct link_client *client, const char *device, const viakit_nic_options *options,
                    struct link **out, struct link_limits *limits)
{
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    link->client = client;
    link->station_fd = link->claim_fd = -1;
    for (int i = 0; i <= UDP_LANES; i++)
        link->sockets[i].fd = -1;
    int error = udp_parse_device(device, &link->name, &link->station, link->interface, &link->mtu);
    if (error == 0)
        error = settle_mtu(link, options);
    if (error == 0)
        error = make_sockets(link);
    if (error) {
        udp_close(link);
        return error;
    }
    settle_sizes(link);
    udp_pack(&link->name, link->station, link->address);
    udp_learn(&link->name);
    uint32_t batch = link->super_bytes / link->segment, batch_bytes = batch * link->segment;
    *limits =
        (struct link_limits){.port = udp_port(&link->name),
                             .mtu = link->mtu,
                             .max_payload = link->segment - (uint32_t)sizeof(struct wire_header),
                             .max_batch = batch,
                             .short_below = link->segment < sizeof(struct wire_header) + UDP_SMALL ? 0 : UDP_SMALL + 1,
                             .ring_slots = link->granted / (OVERHEAD * batch_bytes),
                             .max_window = link->granted / (OVERHEAD * batch_bytes),
                             .checksum = 1,
                             .data_fd = -1, /* see udp_watch() */
                             .control_fd = link->station_fd};
    if (limits->max_window < 2)
        limits->max_window = 2;
    memcpy(limits->address, link->address, 6);
    link->crc_always = options->checksum == VIAKIT_CHECKSUM_CRC;
    link_set_checksum_verified(client, 1); /* the kernel drops datagrams with a wrong checksum */
    *out = link;
    return 0;
}

/* Link operation: any address and port makes a peer, because only a request can show whether a NIC is there. */
static int udp_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    union udp_name name;
    int error = udp_unpack(address, link->name.any.sa_family, &name);
    if (error)
        return error;
    udp_set_port(&name, port);
    *out = udp_get_peer(link, &name, address);
    return *out ? 0 : -ENOMEM;
}

/* Link operation: determined when the peer was added (segment_to in udp_station.c), and constant, because connections
 * rely on it. */
static uint32_t udp_payload_to(struct link *link, struct link_peer *peer)
{
    (void)link;
    return peer->segment - (uint32_t)sizeof(struct wire_header);
}

static void udp_info(struct link *link, viakit_nic_info *info)
{
    strcpy(info->interface, link->interface);
    if (!link->super_frames)
        info->super_payload = info->max_payload;
    udp_count_losses(link);
}

const struct link_ops link_udp = {
    .about = {.name = "udp",
              .devices = "udp:ADDRESS",
              .transport = "UDP sockets",
              .leaves_process = 1,
              .leaves_host = 1,
              .named_by = VIAKIT_BY_ADDRESS},
    .open = udp_open,
    .close = udp_close,
    .route = udp_route,
    .request_all = udp_request_all,
    .payload_to = udp_payload_to,
    .resolve = udp_resolve,
    .count_neighbours = udp_count_neighbours,
    .send = udp_send,
    .send_short = udp_send_short,
    .poll = udp_poll,
    .watch = udp_watch,
    .woken = udp_woken,
    .control = udp_control,
    .info = udp_info,
};
