/*
 * verbs: datagrams and RDMA of a card (RoCE v2), or of Linux's software for any Ethernet card (rdma_rxe). One frame is
 *
 *    | IP | UDP, port 4791 | transport header, Q_Key | wire header | payload |      at most the port's MTU
 *
 * Device: verbs:DEVICE or verbs:INTERFACE, with an optional :PORT. A NIC has one queue pair of unreliable datagrams,
 * and below it a NIC of the link udp at the port's own IP address. The two divide the frames:
 *
 *    data, acknowledgements, disconnection    queue pair      no system call where the card has doorbells
 *    connection requests and replies, probes  link udp        stations, names, cookies: udp_station.c
 *    RDMA                                     no frames       connected queue pairs: verbs_rdma.c
 *
 * So addresses, ports and names are those of udp, with another common port. A NIC that is gone is reported by its host
 * (ICMP's "port unreachable"), which a queue pair never does.
 *
 * A datagram needs the number and the key of the other queue pair. Each side queries them when it sends a frame that
 * precedes data:
 *
 *    server                                      client
 *      |<-- REQUEST with cookie (udp_station.c) ---|
 *      |--- PENDING, QUERY(nonce) ---------------->|
 *      |<-- REPLY(nonce, number, key) -------------|        the same in the other direction, with CONFIRM
 *
 * ACCEPT and CONFIRM go by udp, and the data that may follow by the queue pair, which can be faster. So no data leaves
 * before the reply to a query behind that frame: the peer handles the frames of udp in their order.
 *
 * Replies are accepted from known peers only, with the nonce of the last query. A forged reply would have to guess
 * 64 bits. Neither message is longer than the other. The peer's host needs no field: a GID of RoCE v2 is its IP
 * address.
 *
 * The route to a peer (struct verbs_route) has three states. Data is sent in the last one only:
 *
 *   no handle --REPLY--> open         a frame of connecting sends QUERY; data that waits repeats it
 *   open --ACCEPT or CONFIRM sent--> held --REPLY to a later QUERY--> open
 *
 * Only the NIC's owner calls these operations (link.h). None blocks, except open, close and resolve. create_ah() is a
 * system call, once for each peer.
 *
 * Not done: routes through several ports of a card, and InfiniBand's own fabric, where an IP address leads to no GID.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/explain.h"
#include "link/verbs.h"

#define MIN_MTU 256u           /* the smallest of InfiniBand's five sizes */
#define QUERY_FIRST VK_MS      /* half the time until a waiting frame repeats the query, doubled each time ... */
#define QUERY_DOUBLED 6        /* ... so many times: 2, 4, ... 64, 64 ms */
#define MOST_QUERIES 40        /* queries without a reply (2.3 s), after which frames count as lost */
#define UDP_EVERY (20 * VK_US) /* between two polls of the sockets: each costs a system call */
#define RECV_BYTES (1u << 21)  /* of receive slots, unless the program requests more */
#define MOST_RECVS 1024u       /* reached by ports whose MTU is below 2048 */
#define LEAST_RECVS 256u       /* as many as VERBS_SENDS; a larger MTU than today's 4096 would reach this bound */

/* ---------------------------------------------------------------- queue pairs of peers */

/* Calls are datagrams of the link udp and may be lost. Each kind is repeated by the side that waits for the reply. */
void verbs_call_peer(struct verbs *v, struct link_peer *peer, struct verbs_call *call)
{
    call->version_kind = UDP_CALL;
    udp_put(v->udp, v->udp->sockets[0].fd, &peer->name, call, sizeof *call);
}

/* GRND_NONBLOCK: early in boot the kernel's generator may not be ready, and an operation must not wait for it. The time
 * then has to do: it can be guessed, but distinguishes a reply from earlier ones. */
uint64_t verbs_nonce(void)
{
    uint64_t nonce = 0;
    if (getrandom(&nonce, sizeof nonce, GRND_NONBLOCK) != (ssize_t)sizeof nonce || nonce == 0)
        nonce = (vk_now() | 1) * 0x9E3779B97F4A7C15u;
    return nonce;
}

/* Queries the peer's queue pair. A repeated query keeps its nonce until the reply arrives. With a new one each time, no
 * reply would be accepted where the round trip takes longer than the time between two queries. Without memory no query
 * is sent, and verbs_route_to() tries again. */
static void query(struct verbs *v, struct link_peer *peer)
{
    if (peer->route == NULL)
        peer->route = calloc(1, sizeof *peer->route);
    if (peer->route == NULL)
        return;
    VK_HOLD_CANCEL;
    peer->route->queried_at = vk_now();
    peer->route->n_queries++;
    if (peer->route->nonce == 0)
        peer->route->nonce = verbs_nonce();
    verbs_call_peer(v, peer, &(struct verbs_call){.what = VERBS_QUERY, .nonce = peer->route->nonce});
}

/* hop_limit becomes IP's TTL. 64 is the kernel's default for other protocols (RFC 1700); 1 would end at the first
 * router. The scope of a link-local IPv6 address is not part of a GID: the entry of the own GID table implies it. */
struct ib_ah_attr verbs_way_to(const struct verbs *v, const union udp_name *name)
{
    struct ib_ah_attr way = {
        .from_index = (uint8_t)v->at.gid_index, .hop_limit = 64, .is_global = 1, .port = (uint8_t)v->at.port};
    if (name->any.sa_family == AF_INET) {
        way.to.raw[10] = way.to.raw[11] = 0xFF;
        memcpy(way.to.raw + 12, &name->v4.sin_addr, 4);
    } else
        memcpy(way.to.raw, &name->v6.sin6_addr, 16);
    return way;
}

/* Resolves the peer's address to a handle of the card. The kernel needs the peer's Ethernet address for that. It has
 * it, because a datagram has just arrived from there. */
static struct ib_ah *make_handle(struct verbs *v, const union udp_name *name)
{
    struct ib_ah_attr way = verbs_way_to(v, name);
    VK_HOLD_CANCEL;
    return v->lib->create_ah(v->pd, &way);
}

/* Stores the peer's queue pair. A NIC that has another one than before is another NIC at the same port: its connected
 * queue pairs and keys are gone. The handle stays, because the host is the same. */
static void handle_reply(struct verbs *v, struct link_peer *peer, const struct verbs_call *call)
{
    struct verbs_route *route = peer->route;
    if (route == NULL || route->nonce == 0 || route->nonce != call->nonce || call->number > 0xFFFFFF) {
        LINK_COUNT(v->client, dropped_unknown_peer, 1);
        return;
    }
    if (route->ah == NULL)
        route->ah = make_handle(v, &peer->name);
    if (route->ah == NULL) {
        link_trouble(v->client, "verbs:%s: no route to the queue pair of a peer: %s", v->at.device, strerror(errno));
        return;
    }
    if (route->pair && route->qpn != call->number) {
        verbs_rdma_end(v, peer);
        verbs_pair_free(v, route);
    }
    route->qpn = call->number;
    route->qkey = call->key;
    route->nonce = 0;
    route->n_queries = 0;
    route->held = 0;
    link_timer(v->client, 0); /* frames may wait for this */
}

/* Hook of the link udp: a call that is not its own. */
static void call_arrived(struct link *udp, struct link_peer *peer, const uint8_t *frame)
{
    struct verbs *v = udp->beyond;
    struct verbs_call call;
    memcpy(&call, frame, sizeof call);
    if (call.what == VERBS_QUERY)
        verbs_call_peer(
            v, peer,
            &(struct verbs_call){.what = VERBS_REPLY, .nonce = call.nonce, .number = v->qp->number, .key = v->qkey});
    else if (call.what == VERBS_REPLY)
        handle_reply(v, peer, &call);
    else if (call.what <= VERBS_GRANT)
        verbs_pair_called(v, peer, &call);
    else
        LINK_COUNT(v->client, dropped_malformed, 1);
}

/* From MOST_QUERIES on, one frame counts as lost for each query, not each frame: the provider retransmits, and its own
 * limit then ends the connection. */
const struct verbs_route *verbs_route_to(struct verbs *v, struct link_peer *peer, int *lost)
{
    *lost = 0;
    if (vk_likely(peer->route && peer->route->ah && !peer->route->held))
        return peer->route;
    uint32_t n = peer->route ? peer->route->n_queries : 0;
    uint64_t now = vk_now(), wait = QUERY_FIRST << (n < QUERY_DOUBLED ? n : QUERY_DOUBLED);
    if (n == 0 || now - peer->route->queried_at >= wait) {
        *lost = n >= MOST_QUERIES;
        query(v, peer);
    }
    link_timer(v->client, now + wait);
    return NULL;
}

/* ---------------------------------------------------------------- the data path */

/* Returns whether a frame travels by the link udp: the kinds from RESET on, which connect (frame_format.h), and probes,
 * which also reach a peer whose queue pair is not known. */
static int by_udp(uint8_t version_kind)
{
    return (version_kind & 15) >= WIRE_RESET || (version_kind & 15) == WIRE_PROBE;
}

/* Returns whether data may follow a frame of the link udp. A refusal needs no queue pair of the peer, and the kernel
 * takes milliseconds to resolve an address. */
static int precedes_data(uint8_t version_kind)
{
    int kind = version_kind & 15;
    return kind != WIRE_RESET && kind != WIRE_REJECT && kind != WIRE_NOMATCH && kind != WIRE_CANCEL;
}

/* Sends a frame that connects, by the link udp. Frames that precede data bring a query with them, because the peer may
 * be a new NIC at the same port. Returns as send(). The query of ACCEPT and CONFIRM leaves after the frame, on the same
 * socket: its reply proves that the peer has handled the frame, as far as the network kept their order. */
static int send_by_udp(struct verbs *v, struct link_peer *peer, struct link_frame *frame)
{
    int kind = frame->header.version_kind & 15, ends = kind == WIRE_ACCEPT || kind == WIRE_CONFIRM;
    if (precedes_data(frame->header.version_kind) && !ends)
        query(v, peer);
    int sent = udp_send(v->udp, peer, frame, 1);
    if (!ends || sent != 1)
        return sent;
    /* A reply to an earlier query does not count, hence a new nonce. A repeated frame keeps it, as query() does. */
    if (peer->route && !peer->route->held) {
        peer->route->held = 1;
        peer->route->nonce = 0;
    }
    query(v, peer);
    return sent;
}

/* Link operation. Frames that connect are sent one by one. A run of others goes to the card in batches. A frame that
 * counts as lost is reported as accepted, so that the provider's timer of retransmission runs for it. */
static int verbs_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct verbs *v = verbs_of(link);
    if (vk_unlikely(by_udp(frames[0].header.version_kind)))
        return send_by_udp(v, peer, &frames[0]);
    int lost, run = 1;
    const struct verbs_route *route = verbs_route_to(v, peer, &lost);
    if (route == NULL)
        return lost ? 1 : -EAGAIN;
    while (run < n && !by_udp(frames[run].header.version_kind))
        run++;
    int done = 0;
    while (done < run) {
        int sent = verbs_post(v, route, frames + done, run - done);
        if (sent < 0)
            return done ? done : sent;
        done += sent;
    }
    return done;
}

/* Link operation. Only messages and acknowledgements come this way, so the kind of the frame is not looked at. */
static int verbs_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                            const void *payload, size_t len)
{
    struct verbs *v = verbs_of(link);
    int lost;
    const struct verbs_route *route = verbs_route_to(v, peer, &lost);
    return route ? verbs_post_short(v, route, header, payload, len) : lost;
}

/* Link operation. The queue costs no system call, the sockets one each time, so they are polled every UDP_EVERY. The
 * interval is one of time, not a number of polls. The caller runs its timers after this call. If the thread was not
 * scheduled for long, the frames that have arrived meanwhile must be delivered before a timer expires. */
static int verbs_poll(struct link *link, int budget)
{
    struct verbs *v = verbs_of(link);
    int n = verbs_take(v, budget);
    uint64_t now = vk_now();
    if (v->udp_ready || now - v->udp_polled_at >= UDP_EVERY) {
        v->udp_ready = 0;
        v->udp_polled_at = now;
        n += udp_poll(v->udp, budget);
    }
    return n;
}

/* Link operations: a sleeping thread watches the completion channel and the sockets. */
static int verbs_arm(struct link *link)
{
    return verbs_arm_queue(verbs_of(link));
}

_Static_assert(2 + UDP_LANES <= LINK_WATCHED, "a sleeper watches the channel and all sockets");

/* The channel is first, then the sockets in the order of udp_watch(). verbs_woken() relies on it. */
static int verbs_watch(struct link *link, struct pollfd *fds)
{
    struct verbs *v = verbs_of(link);
    fds[0] = (struct pollfd){.fd = v->channel->fd, .events = POLLIN};
    return 1 + udp_watch(v->udp, fds + 1);
}

static void verbs_woken(struct link *link, const struct pollfd *fds, int n)
{
    struct verbs *v = verbs_of(link);
    if (n < 1)
        return;
    if (fds[0].revents)
        verbs_clear_channel(v);
    for (int i = 1; i < n; i++)
        v->udp_ready |= fds[i].revents != 0;
    udp_woken(v->udp, fds + 1, n - 1);
}

/* ---------------------------------------------------------------- stations: those of the link below */

static int verbs_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **peer)
{
    return link_udp.route(verbs_of(link)->udp, address, port, peer);
}

static int verbs_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    return udp_request_all(verbs_of(link)->udp, address, frame);
}

static int verbs_count_neighbours(struct link *link)
{
    return udp_count_neighbours(verbs_of(link)->udp);
}

static void verbs_control(struct link *link)
{
    udp_control(verbs_of(link)->udp);
}

static int verbs_resolve(const uint8_t own[6], const char *name, unsigned index, uint8_t address[6])
{
    return udp_resolve_at(own, name, index, VERBS_STATION, address);
}

/* ---------------------------------------------------------------- opening */

/* Link operation, also for a link that was opened only in part. The queue pair is destroyed before its peers' handles,
 * which outstanding sends use (ibv_post_send(3)), and the handles before their protection domain. No peer is notified
 * here: the socket of the link udp closes, and the kernel then reports "port unreachable" to each peer that sends. */
static void verbs_close(struct link *link)
{
    struct verbs *v = verbs_of(link);
    if (v->qp)
        v->lib->destroy_qp(v->qp);
    for (uint32_t b = 0; v->udp && b < UDP_BUCKETS; b++)
        for (struct link_peer *p = v->udp->peers[b]; p; p = p->next) {
            if (p->route)
                verbs_pair_free(v, p->route);
            if (p->route && p->route->ah)
                v->lib->destroy_ah(p->route->ah);
            free(p->route);
            p->route = NULL;
        }
    if (v->context)
        verbs_close_queue(v);
    verbs_close_device(v);
    if (v->udp)
        link_udp.close(v->udp);
    free(v);
}

/* Uses the port's MTU, or a smaller one if requested. Two NICs may differ: they exchange their limits when they
 * connect, and each splits its messages by the smaller one. Returns 0, or -EINVAL, explained. */
static int settle_mtu(struct verbs *v, const viakit_nic_options *options)
{
    if (options->mtu > v->mtu) {
        vk_explain("verbs: MTU %u requested, but port %u of %s has %u: request a smaller one, or raise the MTU of %s",
                   options->mtu, v->at.port, v->at.device, v->mtu, v->at.interface);
        return -EINVAL;
    }
    if (options->mtu && options->mtu < MIN_MTU) {
        vk_explain("verbs: MTU %u requested: at least %u are needed", options->mtu, MIN_MTU);
        return -EINVAL;
    }
    v->mtu = options->mtu ? options->mtu : v->mtu;
    return 0;
}

/* Returns how many receive slots to make: 2 MiB of them, or the number that the program requests. */
static uint32_t slots_for(const struct verbs *v, const viakit_nic_options *options)
{
    uint32_t n = RECV_BYTES / v->mtu;
    n = n > MOST_RECVS ? MOST_RECVS : n < LEAST_RECVS ? LEAST_RECVS : n;
    return options->ring_slots > n ? options->ring_slots : n;
}

/* Opens the NIC of the link udp at the port's address. Its frames and this link's are delivered to one client. */
static int open_udp(struct verbs *v, struct link_limits *limits)
{
    char text[INET6_ADDRSTRLEN] = "", device[INET6_ADDRSTRLEN + IFNAMSIZ + 16], why[300];
    viakit_nic_options options = {.size = sizeof options};
    int is_v4 = v->at.gid.raw[10] == 0xFF && v->at.gid.raw[0] == 0;
    inet_ntop(is_v4 ? AF_INET : AF_INET6, v->at.gid.raw + (is_v4 ? 12 : 0), text, sizeof text);
    if (is_v4)
        snprintf(device, sizeof device, "%s:%u", text, VERBS_STATION);
    else
        snprintf(device, sizeof device, "[%s%s%s]:%u", text, v->at.gid.raw[0] == 0xFE ? "%" : "",
                 v->at.gid.raw[0] == 0xFE ? v->at.interface : "", VERBS_STATION);
    int error = link_udp.open(v->client, device, &options, &v->udp, limits);
    if (error) {
        snprintf(why, sizeof why, "%s", vk_explanation());
        vk_explain("verbs: %s connects by datagrams of %s, which cannot be opened: %s", v->at.device, device, why);
        return error;
    }
    v->udp->beyond = v;
    v->udp->call_beyond = call_arrived;
    return 0;
}

static int verbs_open(struct link_client *client, const char *device, const viakit_nic_options *options,
                      struct link **out, struct link_limits *limits)
{
    struct link_limits below;
    struct verbs *v = calloc(1, sizeof *v);
    if (v == NULL)
        return -ENOMEM;
    v->client = client;
    v->crc_always = options->checksum == VIAKIT_CHECKSUM_CRC;
    int error = verbs_open_device(v, device);
    if (error == 0)
        error = settle_mtu(v, options);
    if (error == 0)
        error = verbs_open_queue(v, slots_for(v, options));
    if (error == 0)
        error = open_udp(v, &below);
    if (error) {
        verbs_close((struct link *)(void *)v);
        return error;
    }
    *limits =
        (struct link_limits){.port = below.port,
                             .mtu = v->mtu,
                             .max_payload = v->mtu - (uint32_t)sizeof(struct wire_header),
                             .max_batch = VERBS_BATCH,
                             .short_below = v->mtu < sizeof(struct wire_header) + VERBS_SMALL ? 0 : VERBS_SMALL + 1,
                             .ring_slots = v->n_recvs / VERBS_BATCH,
                             .max_window = v->n_recvs / VERBS_BATCH,
                             .checksum = 1,
                             .data_fd = -1, /* see verbs_watch() */
                             .control_fd = below.control_fd};
    memcpy(limits->address, below.address, 6);
    *out = (struct link *)(void *)v;
    return 0;
}

static void verbs_info(struct link *link, viakit_nic_info *info)
{
    struct verbs *v = verbs_of(link);
    memcpy(info->interface, v->at.interface, sizeof info->interface);
    udp_count_losses(v->udp);
}

const struct link_ops link_verbs = {
    .about = {.name = "verbs",
              .devices = "verbs:DEVICE",
              .transport = "datagrams of an RDMA card",
              .leaves_process = 1,
              .leaves_host = 1,
              .named_by = VIAKIT_BY_INTERFACE},
    .open = verbs_open,
    .close = verbs_close,
    .route = verbs_route,
    .request_all = verbs_request_all,
    .resolve = verbs_resolve,
    .count_neighbours = verbs_count_neighbours,
    .send = verbs_send,
    .send_short = verbs_send_short,
    .poll = verbs_poll,
    .arm = verbs_arm,
    .watch = verbs_watch,
    .woken = verbs_woken,
    .control = verbs_control,
    .info = verbs_info,
    .card = &verbs_card,
};
