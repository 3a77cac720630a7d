/*
 * How NICs find each other. A station is a host's address and a common port (34997, unless the device's name has
 * another). Each NIC has a socket of its own at that address. The kernel chooses the socket's port, which is also the
 * NIC's port in frames. In addition all NICs of the station, of any process and user, share the common port: each has a
 * socket bound to it. The kernel passes each datagram there to one of them, and if that one is gone, to another. There
 * is no daemon, no configuration, and nothing is left behind.
 *
 *    client                                  common port             one of the station's NICs
 *      |--- WHO(nonce), padded ------------------>|                        |
 *      |<-- HERE(nonce, the NICs' ports) ---------|                        |
 *      |--- REQUEST, to each of them --------------------------------------->|
 *      |<-- CHALLENGE(cookie), if the client is unknown ---------------------|
 *      |--- REQUEST with the cookie ---------------------------------------->|   now each is the other's peer
 *      |<-- PENDING, NOMATCH ... (via/connect/conn.c) -------------------------------|
 *
 * Three rules limit the effect of unknown or forged senders:
 *
 * - A NIC stores nothing for a sender that has not proved that it receives datagrams at its address. The cookie is a
 *   keyed hash of that address.
 * - Until then no reply is longer than the request.
 * - A list of NICs is accepted only from the station that was queried, with the nonce that was sent.
 *
 * The NICs of a station are listed by the names of Unix sockets (station.h), one per NIC, which vanish with their
 * process.
 *
 * A request at the client (struct udp_pending) is free, or waits for the list until PENDING_LIFETIME ends:
 *
 *   free --udp_request_all: WHO--> waits --HERE: REQUEST to each port--> waits, with a nonce that was not sent
 *     ^                              |                                     |  CHALLENGE: REQUEST again, to that peer
 *     +-- time is over, request closed, or "port unreachable" -------------+
 *
 * Nothing here retransmits. The provider repeats its request (conn_client.c), which begins with WHO again. A WHO, HERE
 * or CHALLENGE that is lost costs one such interval.
 *
 * Only the NIC's owner calls these functions, and none blocks: sockets are read with MSG_DONTWAIT, and sending to a
 * full socket loses the datagram.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/blake2s.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/explain.h"
#include "base/files.h"
#include "link/station.h"
#include "link/udp.h"

enum { CALL_WHO = 1, CALL_HERE = 2, CALL_CHALLENGE = 3 };

#define PENDING_LIFETIME (300 * VK_MS) /* how long a request waits for the list; the provider repeats it more often */
#define REFUSALS 3                     /* consecutive errors, with no datagram in between, that count as certain */

/* A frame between links. Its first byte occurs in no other frame. It has 32 bytes like every header, so that code that
 * splits a super-frame need not distinguish it. */
struct udp_call {
    uint8_t version_kind, what;
    uint16_t len;     /* bytes behind the first 32 */
    uint16_t station; /* HERE: common port of the replying station */
    uint16_t n;       /* HERE: number of the ports that follow */
    uint64_t nonce;   /* WHO, HERE: drawn by the client. CHALLENGE: number of the request */
    uint64_t cookie;  /* CHALLENGE */
    uint64_t reserved;
    uint16_t ports[UDP_MAX_LISTED];
} __attribute__((packed, aligned(4)));
_Static_assert(offsetof(struct udp_call, ports) == sizeof(struct wire_header), "a call is cut like any frame");

/* Behind a REQUEST: what the receiver needs of a sender that it has no peer for. header.len does not count it. */
struct trailer {
    uint16_t station, reserved;
    uint64_t cookie;
} __attribute__((packed));
_Static_assert(sizeof(struct trailer) == UDP_TRAILER, "the trailer of a request");

/* ---------------------------------------------------------------- cookies */

/* Returns the cookie of an address and port. It is not stored, but computed again when it comes back. Without the
 * secret a sender cannot compute it. The secret is drawn when the NIC opens, so a cookie is valid for that NIC, and as
 * long as the NIC exists. */
static uint64_t cookie_for(const struct link *link, const union udp_name *name)
{
    uint64_t words[3] = {0, 0, udp_port(name)};
    if (name->any.sa_family == AF_INET)
        words[0] = name->v4.sin_addr.s_addr;
    else
        memcpy(words, &name->v6.sin6_addr, 16);
    uint8_t digest[VK_BLAKE2S_LEN];
    uint64_t cookie;
    vk_blake2s(link->secret, sizeof link->secret, words, sizeof words, digest);
    memcpy(&cookie, digest, sizeof cookie);
    return cookie;
}

/* A nonce. The time stands in where the kernel has no getrandom(2): then a nonce can be guessed, and the check of the
 * sender's address remains. */
static uint64_t random_word(void)
{
    VK_HOLD_CANCEL;
    uint64_t word;
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word)
        word = vk_now() * 0x9E3779B97F4A7C15u;
    return word;
}

/* ---------------------------------------------------------------- peers */

/* 2654435761 is 2^32 divided by the golden ratio (Knuth's multiplicative hash). Peers choose their port and address. A
 * sender that fills one bucket lengthens a list to UDP_MAX_PEERS at most. */
static uint32_t bucket_of(const union udp_name *name)
{
    uint32_t h = udp_port(name);
    if (name->any.sa_family == AF_INET)
        h ^= name->v4.sin_addr.s_addr * 2654435761u;
    else
        h ^= vk_crc32c(0, &name->v6.sin6_addr, sizeof name->v6.sin6_addr);
    return (h ^ h >> 16) & (UDP_BUCKETS - 1);
}

struct link_peer *udp_find_peer(struct link *link, const union udp_name *name)
{
    struct link_peer *p = link->peers[bucket_of(name)];
    while (p && !udp_same(&p->name, name))
        p = p->next;
    return p;
}

/* Returns how many bytes of a frame the path to the peer carries in one piece: the kernel reports the path's MTU for a
 * connected socket. */
static uint32_t segment_to(const struct link *link, const union udp_name *name)
{
    VK_HOLD_CANCEL;
    int fd = socket(name->any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), mtu = 0;
    socklen_t len = sizeof mtu;
    int is_v4 = name->any.sa_family == AF_INET;
    if (fd < 0 || connect(fd, &name->any, udp_name_len(name)) != 0 ||
        getsockopt(fd, is_v4 ? IPPROTO_IP : IPPROTO_IPV6, is_v4 ? IP_MTU : IPV6_MTU, &mtu, &len) != 0)
        mtu = 0;
    if (fd >= 0)
        close(fd);
    /* A path that reports less than the smallest frame is ignored. IP fragments the datagrams then. */
    uint32_t most = link->segment, least = link->head + sizeof(struct wire_header) + WIRE_LEAST_PAYLOAD;
    if (mtu == 0 || (uint32_t)mtu < least || (uint32_t)mtu - link->head > most)
        return most;
    return (uint32_t)mtu - link->head;
}

/* Peers stay until the NIC closes, because VIs point at them. So UDP_MAX_PEERS bounds what all senders that proved
 * their address, and all lists of queried stations, can make this NIC store. */
struct link_peer *udp_get_peer(struct link *link, const union udp_name *name, const uint8_t address[6])
{
    struct link_peer *p = udp_find_peer(link, name);
    if (p)
        return p;
    p = link->n_peers < UDP_MAX_PEERS ? calloc(1, sizeof *p) : NULL;
    if (p == NULL)
        return NULL;
    p->name = *name;
    memcpy(p->address, address, 6);
    p->segment = segment_to(link, name);
    udp_learn(name);
    uint32_t b = bucket_of(name);
    p->next = link->peers[b];
    link->peers[b] = p;
    link->n_peers++;
    return p;
}

void udp_free_peers(struct link *link)
{
    for (uint32_t b = 0; b < UDP_BUCKETS; b++)
        while (link->peers[b]) {
            struct link_peer *p = link->peers[b];
            link->peers[b] = p->next;
            free(p);
        }
}

/* ---------------------------------------------------------------- the list of NICs */

/* Lists the ports of this station's NICs, or returns the last list if WHO datagrams and requests have caused so many
 * readings that the budget is spent. Names of all users are listed (uid -1): any process may open a NIC at the station.
 * Returns the number of ports, at least 1. */
static int list_station(struct link *link)
{
    uint64_t now = vk_now();
    if (!vk_budget_allows(&link->listing, now))
        return link->n_listed;
    link->n_listed = station_ports(link->prefix, -1, link->listed, UDP_MAX_LISTED);
    if (link->n_listed == 0) { /* the list cannot be read: it has at least this NIC */
        link->listed[0] = udp_port(&link->name);
        link->n_listed = 1;
    }
    vk_budget_spend(&link->listing, now, vk_now());
    return link->n_listed;
}

int udp_count_neighbours(struct link *link)
{
    return list_station(link);
}

/* Sends HERE: the list, cut so that the reply is no longer than the request. A client therefore pads WHO to the length
 * of the longest reply. A forged sender address thus yields no amplification. */
static void reply_to_who(struct link *link, const union udp_name *from, const struct udp_call *who, size_t len)
{
    struct udp_call here = {.version_kind = UDP_CALL, .what = CALL_HERE, .station = link->station, .nonce = who->nonce};
    int n = list_station(link);
    while (n && sizeof(struct wire_header) + (size_t)n * sizeof here.ports[0] > len)
        n--; /* never more than was received */
    here.n = (uint16_t)n;
    here.len = (uint16_t)((size_t)n * sizeof here.ports[0]);
    memcpy(here.ports, link->listed, here.len);
    udp_put(link, link->station_fd, from, &here, sizeof(struct wire_header) + here.len);
}

/* The kernel chooses the UDP socket that was bound last, of several with one address (udp4_lib_lookup2 in
 * net/ipv4/udp.c). If that NIC's process is stopped, no client gets a list until it continues or ends. */
void udp_control(struct link *link)
{
    struct udp_call who;
    /* At most this many per call: a flood at the common port must not delay the NIC's frames. */
    for (int i = 0; i < 64; i++) {
        union udp_name from;
        socklen_t from_len = sizeof from;
        ssize_t len = vk_recvfrom(link->station_fd, &who, sizeof who, MSG_DONTWAIT, &from.any, &from_len);
        LINK_COUNT(link->client, system_calls, 1);
        if (len < 0)
            return;
        if ((size_t)len < sizeof(struct wire_header) || who.version_kind != UDP_CALL || who.what != CALL_WHO)
            LINK_COUNT(link->client, dropped_malformed, 1);
        else
            reply_to_who(link, &from, &who, (size_t)len);
    }
}

/* ---------------------------------------------------------------- requests */

/* Sends the request, followed by the cookie that this peer expects. 0 before its first challenge: the peer then sends
 * one. All NICs of the station get the same bytes, dst_port 0, because their checksum was computed once. */
static void send_request(struct link *link, struct link_peer *peer, const struct udp_pending *request)
{
    uint8_t bytes[sizeof request->bytes + sizeof(struct trailer)];
    struct trailer t = {.station = link->station, .cookie = peer->cookie};
    memcpy(bytes, request->bytes, request->len);
    memcpy(bytes + request->len, &t, sizeof t);
    udp_put(link, link->sockets[0].fd, &peer->name, bytes, request->len + sizeof t);
}

/* Returns the entry of the request, or a free one, or a new one. If all are in use, returns the one that ends first.
 * NULL: no memory. */
static struct udp_pending *place_for(struct link *link, uint32_t number)
{
    uint64_t now = vk_now();
    struct udp_pending *first = NULL;
    for (int i = 0; i < link->n_pending; i++) {
        struct udp_pending *request = &link->pending[i];
        if (request->number == number && request->until)
            return request;
        if (first == NULL || request->until < first->until)
            first = request;
    }
    if (first && (first->until < now || link->n_pending == UDP_MAX_PENDING))
        return first;
    int more = link->n_pending ? link->n_pending * 2 : 4;
    struct udp_pending *pending = realloc(link->pending, (size_t)more * sizeof *pending);
    if (pending == NULL)
        return first;
    memset(pending + link->n_pending, 0, (size_t)(more - link->n_pending) * sizeof *pending);
    first = pending + link->n_pending;
    link->pending = pending;
    link->n_pending = more;
    return first;
}

/* Sends the withdrawal of a request to the peers at that address. They include all that may have received the
 * request. A peer where no such request waits ignores it. */
static void withdraw(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    for (uint32_t b = 0; b < UDP_BUCKETS; b++)
        for (struct link_peer *p = link->peers[b]; p; p = p->next)
            if (memcmp(p->address, address, 6) == 0) {
                frame->header.dst_port = udp_port(&p->name);
                frame->header.flags &= (uint8_t)~WIRE_FLAG_CRC; /* sealed anew for each */
                udp_send(link, p, frame, 1);
            }
}

/* Link operation. Stores the request, sealed, until the list of NICs arrives, and sends the WHO at once. Returns -1:
 * the number of receiving NICs is not known yet. A repeated request finds its entry by its number. */
int udp_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    union udp_name station;
    struct udp_call who = {.version_kind = UDP_CALL,
                           .what = CALL_WHO,
                           .len = sizeof who - sizeof(struct wire_header),
                           .station = link->station};
    if (udp_unpack(address, link->name.any.sa_family, &station) != 0)
        return 0;
    if ((frame->header.version_kind & 15) == WIRE_CANCEL) {
        withdraw(link, address, frame);
        return -1;
    }
    struct udp_pending *request = place_for(link, frame->block.connect.request);
    if (request == NULL)
        return -1;
    frame->header.dst_port = 0;
    request->number = frame->block.connect.request;
    request->station = station;
    request->nonce = random_word();
    request->until = vk_now() + PENDING_LIFETIME;
    memcpy(request->address, address, 6);
    request->len = frame->header_len;
    memcpy(request->bytes, &frame->header, sizeof frame->header);
    memcpy(request->bytes + sizeof frame->header, &frame->block, frame->header_len - sizeof frame->header);
    /* Seal the stored copy. The trailer, which is added later, is exchanged between links and is not part of the
     * sum. */
    struct wire_header *h = (struct wire_header *)request->bytes;
    h->flags |= WIRE_FLAG_CRC;
    h->crc = 0;
    h->crc = vk_crc32c(0, request->bytes, request->len);
    who.nonce = request->nonce;
    int error = udp_put(link, link->sockets[0].fd, &station, &who, sizeof who);
    return error == -ENETUNREACH || error == -EINVAL || error == -EADDRNOTAVAIL
               ? 0
               : -1; /* this address has no route to the station */
}

/* Handles a list of NICs. It is accepted only as the reply to this NIC's own WHO, from the queried station. The request
 * is then sent to each NIC in the list. */
static void handle_list(struct link *link, const union udp_name *from, const struct udp_call *here)
{
    uint64_t now = vk_now();
    for (int i = 0; i < link->n_pending; i++) {
        struct udp_pending *request = &link->pending[i];
        if (request->until < now || request->nonce != here->nonce || !udp_same(&request->station, from))
            continue;
        if (!link_request_is_open(link->client, request->number)) {
            request->until = 0;
            return;
        }
        for (uint32_t k = 0; k < here->n; k++) {
            union udp_name name = request->station;
            udp_set_port(&name, here->ports[k]);
            struct link_peer *peer = here->ports[k] ? udp_get_peer(link, &name, request->address) : NULL;
            if (peer)
                send_request(link, peer, request);
        }
        request->nonce = random_word(); /* each WHO is answered once */
        return;
    }
    LINK_COUNT(link->client, dropped_unknown_peer, 1);
}

/* Handles a NIC's challenge: stores the cookie for all later requests, and repeats the pending one with it. A forged
 * challenge has no effect, because it would need the number of a request that is under way to that station. */
static void handle_challenge(struct link *link, struct link_peer *peer, const struct udp_call *call)
{
    uint64_t now = vk_now();
    for (int i = 0; i < link->n_pending; i++) {
        struct udp_pending *request = &link->pending[i];
        if (request->until < now || request->number != call->nonce || memcmp(request->address, peer->address, 6) != 0)
            continue;
        if ((peer->has_cookie && peer->cookie == call->cookie) || !link_request_is_open(link->client, request->number))
            return; /* it was sent with this cookie already, or it is no longer open */
        peer->cookie = call->cookie;
        peer->has_cookie = 1;
        send_request(link, peer, request);
        return;
    }
    LINK_COUNT(link->client, dropped_unknown_peer, 1);
}

void udp_call_arrived(struct link *link, const union udp_name *from, struct link_peer *peer, const uint8_t *frame,
                      size_t len)
{
    struct udp_call call;
    memset(&call, 0, sizeof call);
    memcpy(&call, frame, len < sizeof call ? len : sizeof call);
    if (len < sizeof(struct wire_header) || call.n > UDP_MAX_LISTED ||
        (call.what == CALL_HERE && call.n * sizeof call.ports[0] > len - sizeof(struct wire_header)))
        LINK_COUNT(link->client, dropped_malformed, 1);
    else if (call.what == CALL_HERE)
        handle_list(link, from, &call);
    else if (call.what == CALL_CHALLENGE && peer)
        handle_challenge(link, peer, &call);
    else if (call.what >= UDP_CALL_BEYOND && peer && link->call_beyond)
        link->call_beyond(link, peer, frame);
    else
        LINK_COUNT(link->client, dropped_unknown_peer, 1);
}

/* The lengths are checked against the datagram before anything is read behind the header. The station in the trailer is
 * the sender's own statement. It only names the sender for replies, which go to its verified address. */
struct link_peer *udp_admit_sender(struct link *link, const union udp_name *from, const uint8_t *frame, size_t len)
{
    struct wire_header h;
    struct wire_connect c;
    struct trailer t;
    uint64_t cookie = cookie_for(link, from);
    if (len < sizeof h)
        return NULL;
    memcpy(&h, frame, sizeof h);
    if (h.len < sizeof c || len < sizeof h + h.len + sizeof t) {
        LINK_COUNT(link->client, dropped_malformed, 1);
        return NULL;
    }
    memcpy(&c, frame + sizeof h, sizeof c);
    memcpy(&t, frame + sizeof h + h.len, sizeof t);
    /* The reply has 32 bytes, and the request was longer. */
    if (t.cookie != cookie) {
        struct udp_call call = {.version_kind = UDP_CALL,
                                .what = CALL_CHALLENGE,
                                .station = link->station,
                                .nonce = c.request,
                                .cookie = cookie};
        udp_put(link, link->sockets[0].fd, from, &call, sizeof(struct wire_header));
        return NULL;
    }
    uint8_t address[6];
    udp_pack(from, t.station, address);
    return udp_get_peer(link, from, address);
}

/* ---------------------------------------------------------------- unreachable ports */

/* ICMP errors are not authenticated, and a host under load or a NIC that just opens may cause one. Hence REFUSALS in a
 * row make a peer lost; a datagram from it resets them (udp_receive.c). For the common port of a station one suffices,
 * because only a request ends by it. */
void udp_refused(struct link *link, const union udp_name *name)
{
    struct link_peer *peer = udp_find_peer(link, name);
    if (peer && peer->refusals < REFUSALS && ++peer->refusals == REFUSALS) {
        peer->lost = 1;
        link->n_lost++;
    }
    uint64_t now = vk_now();
    for (int i = 0; i < link->n_pending; i++)
        if (link->pending[i].until >= now && udp_same(&link->pending[i].station, name)) {
            link->pending[i].until = 0;
            link_report_no_nic(link->client, link->pending[i].address);
        }
}

/* ---------------------------------------------------------------- opening */

/* Binds the unconnected socket to a port that no other NIC of the station has, and announces it. The kernel chooses a
 * free UDP port. The Unix name with that number announces it to the other NICs of the station (station.h). A closing
 * NIC may hold the name without the port for a moment: then another port is tried. A NIC's port never equals the
 * station's. */
int udp_claim(struct link *link)
{
    char text[INET6_ADDRSTRLEN];
    int one = 1;
    udp_text(&link->name, text);
    snprintf(link->prefix, sizeof link->prefix, "viakit/udp/%s:%u", text, link->station);
    for (int attempt = 0; attempt < 64; attempt++) {
        struct sockaddr_un a;
        socklen_t len = sizeof link->name;
        int fd = vk_file_own(socket(link->name.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        if (fd < 0)
            return -errno;
        link->sockets[0].fd = fd;
        udp_set_port(&link->name, 0);
        int error = udp_require_checksum(fd);
        if (error)
            return error;
        if (bind(fd, &link->name.any, udp_name_len(&link->name)) != 0 || getsockname(fd, &link->name.any, &len) != 0)
            return -errno;
        link->claim_fd = vk_file_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        if (link->claim_fd < 0)
            return -errno;
        len = station_name(link->prefix, udp_port(&link->name), &a);
        if (udp_port(&link->name) != link->station && bind(link->claim_fd, (struct sockaddr *)&a, len) == 0) {
            /* Only now, because otherwise the kernel could choose a port that another NIC of this user has. The option
             * is needed for lanes, which are bound to the same port. */
            setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
            link->secret[0] = random_word();
            link->secret[1] = random_word();
            return 0;
        }
        vk_file_close(link->claim_fd);
        vk_file_close(fd);
        link->claim_fd = link->sockets[0].fd = -1;
    }
    return -EADDRINUSE;
}

/* SO_REUSEADDR on a UDP socket lets all NICs of the station bind the same address and port, if each of them sets it. If
 * another program has bound the port without it, this fails. */
int udp_open_station(struct link *link)
{
    union udp_name name = link->name;
    int one = 1;
    udp_set_port(&name, link->station);
    link->station_fd = vk_file_own(socket(name.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (link->station_fd < 0 || udp_require_checksum(link->station_fd) != 0 ||
        setsockopt(link->station_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0)
        return -errno;
    if (bind(link->station_fd, &name.any, udp_name_len(&name)) == 0)
        return 0;
    int error = -errno;
    if (error == -EADDRINUSE)
        vk_explain(
            "udp: port %u, where viakit's NICs are discovered, belongs to another program: choose another port on this "
            "host, udp:ADDRESS:PORT",
            link->station);
    else if (error == -EACCES)
        vk_explain("udp: port %u is for privileged programs: give one from 1024 on", link->station);
    else
        vk_explain("udp: port %u: %s", link->station, strerror(-error));
    return error;
}
