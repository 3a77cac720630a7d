/*
 * How NICs find each other. A station is a host's address and the port of its door (34997 unless the device's name
 * says another). Each NIC has a socket of its own at that address, at a port that the kernel chose and that is its
 * port in frames as well; and all NICs of the station, of whatever process and user, share the door: each has bound
 * it, the kernel gives what knocks there to one of them, and when that one is gone, to another. No daemon, nothing
 * to configure, nothing left behind.
 *
 *    client                                  station's door          one of its NICs
 *      |--- WHO(nonce), padded ------------------>|                        |
 *      |<-- HERE(nonce, the NICs' ports) ---------|                        |
 *      |--- REQUEST, to each of them --------------------------------------->|
 *      |<-- CHALLENGE(cookie), if it does not know us yet -------------------|
 *      |--- REQUEST with the cookie ---------------------------------------->|   now each is the other's peer
 *      |<-- PENDING, NOMATCH ... (via/conn.c) -------------------------------|
 *
 * What keeps strangers harmless: a NIC holds nothing for somebody who has not shown that he receives what is sent to
 * his address (the cookie is a keyed hash of it); until then no answer is longer than the question; and a list of
 * NICs is believed only from the door that was asked, with the nonce that it was sent.
 *
 * Which NICs a station has is read from the names of Unix sockets (station.h), one per NIC, which vanish with their
 * process.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "../base/cancel.h"
#include "../base/clock.h"
#include "../base/crc32c.h"
#include "../base/files.h"
#include "station.h"
#include "udp.h"

enum { CALL_WHO = 1, CALL_HERE = 2, CALL_CHALLENGE = 3 };

#define ASK_LIVES (300 * VK_MS) /* a request is repeated more often, as long as it is wanted */
#define LIST_BURST 64           /* times the list of NICs is read ... */
#define LIST_EVERY VK_MS        /* ... and again after so long: knocking must not keep a processor busy */
#define REFUSALS 3              /* in a row, with nothing heard between: certain */

/* A frame between links: a first byte that no frame has, and 32 bytes as every header, so that whoever cuts a
 * super-frame need not know it. */
struct udp_call {
    uint8_t version_kind, what;
    uint16_t len;     /* bytes behind the first 32 */
    uint16_t station; /* HERE: of the door that answers */
    uint16_t n;       /* HERE: ports that follow */
    uint64_t nonce;   /* WHO, HERE: drawn by the client. CHALLENGE: number of the request */
    uint64_t cookie;  /* CHALLENGE */
    uint64_t reserved;
    uint16_t ports[UDP_MAX_LISTED];
} __attribute__((packed, aligned(4)));
_Static_assert(offsetof(struct udp_call, ports) == sizeof(struct wire_header), "a call is cut like any frame");

struct trailer {
    uint16_t station, reserved;
    uint64_t cookie;
} __attribute__((packed));
_Static_assert(sizeof(struct trailer) == UDP_TRAILER, "the trailer of a request");

/* ---------------------------------------------------------------- cookies */

/* To the left; n from 1 to 63. */
static inline uint64_t rotate(uint64_t x, int n)
{
    return x << n | x >> (64 - n);
}

static void sip_round(uint64_t v[4])
{
    v[0] += v[1], v[2] += v[3];
    v[1] = rotate(v[1], 13) ^ v[0], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] = rotate(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = rotate(v[1], 17) ^ v[2], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] = rotate(v[2], 32);
}

/* SipHash-2-4 (Aumasson and Bernstein, 2012) of three words: a stranger cannot compute it without the secret.
 * The constants are its paper's ("somepseudorandomlygeneratedbytes"); two rounds for each word, four at the end; the
 * fourth word is what its padding makes of 24 bytes: their number in the top byte. */
static uint64_t keyed_hash(const uint64_t secret[2], const uint64_t words[3])
{
    uint64_t v[4] = {secret[0] ^ 0x736F6D6570736575u, secret[1] ^ 0x646F72616E646F6Du, secret[0] ^ 0x6C7967656E657261u,
                     secret[1] ^ 0x7465646279746573u};
    for (int i = 0; i < 4; i++) {
        uint64_t m = i < 3 ? words[i] : (uint64_t)24 << 56;
        v[3] ^= m;
        sip_round(v);
        sip_round(v);
        v[0] ^= m;
    }
    v[2] ^= 0xFF;
    for (int i = 0; i < 4; i++)
        sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* What somebody at that address and port has to show. Nothing is stored: it is computed again when it comes back.
 * The secret is drawn when the NIC opens, so a cookie is good for that NIC, and as long as it lives. */
static uint64_t cookie_for(const struct link *link, const union udp_name *name)
{
    uint64_t words[3] = {0, 0, udp_port(name)};
    if (name->any.sa_family == AF_INET)
        words[0] = name->v4.sin_addr.s_addr;
    else
        memcpy(words, &name->v6.sin6_addr, 16);
    return keyed_hash(link->secret, words);
}

static uint64_t random_word(void)
{
    VK_HOLD_CANCEL;
    uint64_t word;
    if (getrandom(&word, sizeof word, 0) != (ssize_t)sizeof word)
        word = vk_now() * 0x9E3779B97F4A7C15u;
    return word;
}

/* ---------------------------------------------------------------- peers */

/* 2654435761 is 2^32 divided by the golden ratio (Knuth's multiplicative hash). Port and address are both
 * somebody else's choice: who picks his to fill one bucket lengthens a list of UDP_MAX_PEERS at most. */
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

/* What the path to the peer carries in one piece: of a socket connected to it the kernel tells. */
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
    /* A path that claims to carry less than the smallest frame is not believed; IP cuts the datagrams then. */
    uint32_t most = link->segment, least = link->head + sizeof(struct wire_header) + WIRE_LEAST_PAYLOAD;
    if (mtu == 0 || (uint32_t)mtu < least || (uint32_t)mtu - link->head > most)
        return most;
    return (uint32_t)mtu - link->head;
}

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

/* ---------------------------------------------------------------- who lives here */

/* The NICs of this station, by their ports. Credit grows by one every LIST_EVERY up to LIST_BURST, and each reading
 * costs one (a token bucket); without credit the last list has to do. */
static int list_station(struct link *link)
{
    uint64_t now = vk_now(), earned = (now - link->listed_at) / LIST_EVERY;
    link->list_credit = link->list_credit + earned < LIST_BURST ? link->list_credit + earned : LIST_BURST;
    if (link->list_credit == 0)
        return link->n_listed;
    link->list_credit--;
    link->listed_at = now;
    link->n_listed = station_ports(link->prefix, link->listed, UDP_MAX_LISTED);
    if (link->n_listed == 0) { /* the list cannot be read: we are here at least */
        link->listed[0] = udp_port(&link->name);
        link->n_listed = 1;
    }
    return link->n_listed;
}

int udp_count_neighbours(struct link *link)
{
    return list_station(link);
}

/* HERE: the list, cut so that the answer is no longer than the question. A WHO is therefore padded to the longest
 * answer, and a forged sender's address gains nothing by having us answer to it. */
static void answer_who(struct link *link, const union udp_name *from, const struct udp_call *who, size_t len)
{
    struct udp_call here = {.version_kind = UDP_CALL, .what = CALL_HERE, .station = link->station, .nonce = who->nonce};
    int n = list_station(link);
    while (n && sizeof(struct wire_header) + (size_t)n * sizeof here.ports[0] > len)
        n--; /* never more than was sent */
    here.n = (uint16_t)n;
    here.len = (uint16_t)((size_t)n * sizeof here.ports[0]);
    memcpy(here.ports, link->listed, here.len);
    udp_put(link, link->door_fd, from, &here, sizeof(struct wire_header) + here.len);
}

void udp_control(struct link *link)
{
    struct udp_call who;
    /* At most so many for a call: a flood at the door must not keep the NIC from its frames. */
    for (int i = 0; i < 64; i++) {
        union udp_name from;
        socklen_t from_len = sizeof from;
        ssize_t len = vk_recvfrom(link->door_fd, &who, sizeof who, MSG_DONTWAIT, &from.any, &from_len);
        LINK_COUNT(link->nic, system_calls, 1);
        if (len < 0)
            return;
        if ((size_t)len < sizeof(struct wire_header) || who.version_kind != UDP_CALL || who.what != CALL_WHO)
            LINK_COUNT(link->nic, dropped_malformed, 1);
        else
            answer_who(link, &from, &who, (size_t)len);
    }
}

/* ---------------------------------------------------------------- asking */

/* The request, with what this peer wants to see behind it. */
static void send_request(struct link *link, struct link_peer *peer, const struct udp_ask *ask)
{
    uint8_t bytes[sizeof ask->bytes + sizeof(struct trailer)];
    struct trailer t = {.station = link->station, .cookie = peer->cookie};
    memcpy(bytes, ask->bytes, ask->len);
    memcpy(bytes + ask->len, &t, sizeof t);
    udp_put(link, link->sockets[0].fd, &peer->name, bytes, ask->len + sizeof t);
}

/* The entry of the request, or a free one, or a new one; where all are in use, the one that ends first. NULL: no
 * memory. */
static struct udp_ask *place_for(struct link *link, uint32_t number)
{
    uint64_t now = vk_now();
    struct udp_ask *first = NULL;
    for (int i = 0; i < link->n_asks; i++) {
        struct udp_ask *ask = &link->asks[i];
        if (ask->number == number && ask->until)
            return ask;
        if (first == NULL || ask->until < first->until)
            first = ask;
    }
    if (first && (first->until < now || link->n_asks == UDP_MAX_ASKS))
        return first;
    int more = link->n_asks ? link->n_asks * 2 : 4;
    struct udp_ask *asks = realloc(link->asks, (size_t)more * sizeof *asks);
    if (asks == NULL)
        return first;
    memset(asks + link->n_asks, 0, (size_t)(more - link->n_asks) * sizeof *asks);
    first = asks + link->n_asks;
    link->asks = asks;
    link->n_asks = more;
    return first;
}

/* The withdrawal of a request: to those who may have heard it, whom we know since then. Nobody else need hear of it. */
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

/* Link operation. The request is kept, sealed, for when the list of NICs comes; the WHO goes at once. -1: how many
 * hear it is not known yet. A request that is repeated finds its entry again by its number. */
int udp_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
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
    struct udp_ask *ask = place_for(link, frame->block.connect.request);
    if (ask == NULL)
        return -1;
    frame->header.dst_port = 0;
    ask->number = frame->block.connect.request;
    ask->station = station;
    ask->nonce = random_word();
    ask->until = vk_now() + ASK_LIVES;
    memcpy(ask->address, address, 6);
    ask->len = frame->header_len;
    memcpy(ask->bytes, &frame->header, sizeof frame->header);
    memcpy(ask->bytes + sizeof frame->header, &frame->block, frame->header_len - sizeof frame->header);
    /* Sealed as it lies here: what is added to it later (the trailer) is between links, and not in the sum. */
    struct wire_header *h = (struct wire_header *)ask->bytes;
    h->flags |= WIRE_FLAG_CRC;
    h->crc = 0;
    h->crc = vk_crc32c(0, ask->bytes, ask->len);
    who.nonce = ask->nonce;
    int error = udp_put(link, link->sockets[0].fd, &station, &who, sizeof who);
    return error == -ENETUNREACH || error == -EINVAL || error == -EADDRNOTAVAIL
               ? 0
               : -1; /* no way there leads from our address */
}

/* A list came: believed only if it is the answer to our own question, from whom we asked. Then the request goes to
 * each NIC on it. */
static void told_who(struct link *link, const union udp_name *from, const struct udp_call *here)
{
    uint64_t now = vk_now();
    for (int i = 0; i < link->n_asks; i++) {
        struct udp_ask *ask = &link->asks[i];
        if (ask->until < now || ask->nonce != here->nonce || !udp_same(&ask->station, from))
            continue;
        if (!link_still_asking(link->nic, ask->number)) {
            ask->until = 0;
            return;
        }
        for (uint32_t k = 0; k < here->n; k++) {
            union udp_name name = ask->station;
            udp_set_port(&name, here->ports[k]);
            struct link_peer *peer = here->ports[k] ? udp_get_peer(link, &name, ask->address) : NULL;
            if (peer)
                send_request(link, peer, ask);
        }
        ask->nonce = random_word(); /* told once */
        return;
    }
    LINK_COUNT(link->nic, dropped_stranger, 1);
}

/* A NIC wants to see its cookie: it is noted for all requests to come, and the one that it answers is sent again
 * with it. A stranger's challenge changes nothing: it would have to name the number of a request that is under way
 * to that station. */
static void challenged(struct link *link, struct link_peer *peer, const struct udp_call *call)
{
    uint64_t now = vk_now();
    for (int i = 0; i < link->n_asks; i++) {
        struct udp_ask *ask = &link->asks[i];
        if (ask->until < now || ask->number != call->nonce || memcmp(ask->address, peer->address, 6) != 0)
            continue;
        if ((peer->has_cookie && peer->cookie == call->cookie) || !link_still_asking(link->nic, ask->number))
            return; /* it has been sent that already, or it is not wanted any more */
        peer->cookie = call->cookie;
        peer->has_cookie = 1;
        send_request(link, peer, ask);
        return;
    }
    LINK_COUNT(link->nic, dropped_stranger, 1);
}

void udp_call_arrived(struct link *link, const union udp_name *from, struct link_peer *peer, const uint8_t *frame,
                      size_t len)
{
    struct udp_call call;
    memset(&call, 0, sizeof call);
    memcpy(&call, frame, len < sizeof call ? len : sizeof call);
    if (len < sizeof(struct wire_header) || call.n > UDP_MAX_LISTED ||
        (call.what == CALL_HERE && call.n * sizeof call.ports[0] > len - sizeof(struct wire_header)))
        LINK_COUNT(link->nic, dropped_malformed, 1);
    else if (call.what == CALL_HERE)
        told_who(link, from, &call);
    else if (call.what == CALL_CHALLENGE && peer)
        challenged(link, peer, &call);
    else
        LINK_COUNT(link->nic, dropped_stranger, 1);
}

struct link_peer *udp_stranger_asks(struct link *link, const union udp_name *from, const uint8_t *frame, size_t len)
{
    struct wire_header h;
    struct wire_connect c;
    struct trailer t;
    uint64_t cookie = cookie_for(link, from);
    if (len < sizeof h)
        return NULL;
    memcpy(&h, frame, sizeof h);
    if (h.len < sizeof c || len < sizeof h + h.len + sizeof t) {
        LINK_COUNT(link->nic, dropped_malformed, 1);
        return NULL;
    }
    memcpy(&c, frame + sizeof h, sizeof c);
    memcpy(&t, frame + sizeof h + h.len, sizeof t);
    /* The answer is 32 bytes, and the question was longer. */
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

/* ---------------------------------------------------------------- nobody there */

void udp_refused(struct link *link, const union udp_name *name)
{
    struct link_peer *peer = udp_find_peer(link, name);
    if (peer && peer->refusals < REFUSALS && ++peer->refusals == REFUSALS) {
        peer->lost = 1;
        link->n_lost++;
    }
    uint64_t now = vk_now();
    for (int i = 0; i < link->n_asks; i++)
        if (link->asks[i].until >= now && udp_same(&link->asks[i].station, name)) {
            link->asks[i].until = 0;
            link_nobody_there(link->nic, link->asks[i].address);
        }
}

/* ---------------------------------------------------------------- opening */

/* Binds the common socket to a port that no other NIC of the station has, and says so. The kernel chooses a free UDP
 * port; the Unix name with that number says so to the other NICs of the station (station.h). Somebody may hold the
 * name without the port for a moment, while he closes: then another port is tried. The door's own port is nobody's. */
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
        if (bind(fd, &link->name.any, udp_name_len(&link->name)) != 0 || getsockname(fd, &link->name.any, &len) != 0)
            return -errno;
        link->claim_fd = vk_file_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        if (link->claim_fd < 0)
            return -errno;
        len = station_name(link->prefix, udp_port(&link->name), &a);
        if (udp_port(&link->name) != link->station && bind(link->claim_fd, (struct sockaddr *)&a, len) == 0) {
            /* Only now, so that the kernel does not choose a port that another NIC of this user has: lanes are bound
             * to it too. */
            setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
            getrandom(link->secret, sizeof link->secret, 0);
            link->listed_at = vk_now();
            link->list_credit = LIST_BURST;
            return 0;
        }
        vk_file_close(link->claim_fd);
        vk_file_close(fd);
        link->claim_fd = link->sockets[0].fd = -1;
    }
    return -EADDRINUSE;
}

/* SO_REUSEADDR on a UDP socket lets all NICs of the station bind the same address and port, as long as each of them
 * asks for it; a program that has not keeps us out. */
int udp_open_door(struct link *link)
{
    union udp_name name = link->name;
    int one = 1;
    udp_set_port(&name, link->station);
    link->door_fd = vk_file_own(socket(name.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (link->door_fd < 0 || setsockopt(link->door_fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) != 0)
        return -errno;
    if (bind(link->door_fd, &name.any, udp_name_len(&name)) == 0)
        return 0;
    int error = -errno;
    if (error == -EADDRINUSE)
        via_explain(
            "udp: port %u, at which viakit is asked who is here, belongs to another program: give another one on this "
            "host, udp:ADDRESS:PORT",
            link->station);
    else if (error == -EACCES)
        via_explain("udp: port %u is for privileged programs: give one from 1024 on", link->station);
    else
        via_explain("udp: port %u: %s", link->station, strerror(-error));
    return error;
}
