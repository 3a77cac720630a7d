/*
 * The link udp with arbitrary datagrams from the kernel: single ones, batches, and super-frames that are received in
 * place. They come over the common socket or over a lane, from the peer or from an unknown peer. The station gets
 * arbitrary requests. The frames are those of machine.h. The first bytes of the input choose the path of each:
 *
 *   how: | four ways, taken in turn, of four bytes each | then the input of the machine |
 *   way: | form, and what is wrong | copies, each with the next psn | result of the call | how much is missing |
 *
 * The link's sources are compiled into this program, with replaced system calls and a replaced table of peers. A reply
 * to an unknown peer may not be longer than its request.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cancel.h"
#include "link/station.h"
#include "link/udp.h"

static ssize_t fuzz_recvmsg(int fd, struct msghdr *m, int flags);
static int fuzz_recvmmsg(int fd, struct mmsghdr *m, unsigned n, int flags);
static ssize_t fuzz_recvfrom(int fd, void *to, size_t room, int flags, void *from, socklen_t *from_len);
static void *fuzz_calloc(size_t n, size_t len);
static void fuzz_free(void *p);
static int fuzz_put(struct link *link, int fd, const union udp_name *to, const void *bytes, size_t len);
static int fuzz_ports(const char *prefix, long uid, uint16_t *ports, int max);

#define vk_recvmsg fuzz_recvmsg
#define vk_recvmmsg fuzz_recvmmsg
#define vk_recvfrom fuzz_recvfrom
#define syscall(number, fd, to, room, flags, from, len) fuzz_recvfrom(fd, to, room, flags, from, len)
#define socket(family, type, protocol) (-1)
#define calloc fuzz_calloc
#define free fuzz_free
#define udp_put fuzz_put
#define station_ports fuzz_ports
#include "link/udp_receive.c"
#include "link/udp_station.c"
#undef free
#undef calloc
#undef vk_recvmsg

#include "hollow.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "machine.h"
#include "super.h"
#include "via/nic.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define WAYS 4
enum {
    BY_LANE = 1,
    MANY = 2, /* recvmmsg() */
    SUPER = 4,
    BY_UNKNOWN_PEER = 8,
    CALL = 16, /* between links, not for the provider */
    AT_THE_DOOR = 32,
    SHORTER = 64,
    COOKIE = 128 /* a trailer with the right one behind it */
};
#define N_PEERS 64
#define NONCE 0x6E6F6E6365u

static uint8_t ways[WAYS][4];
static unsigned next_way;
static struct link udp;
static struct udp_pending pending_calls[2];
static struct link_peer room_for_peers[N_PEERS];
static unsigned n_peers;

static uint8_t *block; /* the datagram ends where this does */
static const uint8_t *queue;
static size_t queue_len, answered;
static union udp_name sender;
static int told; /* a requested list arrived, and requests were sent */

/* ---------------------------------------------------------------- in place of the kernel */

/* One datagram waits at a time; MSG_PEEK leaves it, MSG_TRUNC returns its whole length. */
static ssize_t fuzz_recvfrom(int fd, void *to, size_t room, int flags, void *from, socklen_t *from_len)
{
    (void)fd;
    if (queue == NULL) {
        errno = EAGAIN;
        return -1;
    }
    size_t n = queue_len < room ? queue_len : room, all = queue_len;
    memcpy(to, queue, n);
    if (from) {
        memcpy(from, &sender, sizeof sender);
        *from_len = sizeof sender;
    }
    if (!(flags & MSG_PEEK))
        queue = NULL;
    return (ssize_t)(flags & MSG_TRUNC ? all : n);
}

/* Nothing waits in the error queue; else the datagram, scattered over what the caller has. */
static ssize_t fuzz_recvmsg(int fd, struct msghdr *m, int flags)
{
    (void)fd;
    if (queue == NULL || flags & MSG_ERRQUEUE) {
        errno = EAGAIN;
        return -1;
    }
    const uint8_t *waiting = queue;
    queue = NULL;
    return fuzz_scatter(m, waiting, queue_len);
}

static int fuzz_recvmmsg(int fd, struct mmsghdr *m, unsigned n, int flags)
{
    if (n == 0)
        return 0;
    struct msghdr *h = &m[0].msg_hdr;
    ssize_t len = fuzz_recvfrom(fd, h->msg_iov->iov_base, h->msg_iov->iov_len, flags, h->msg_name, &h->msg_namelen);
    m[0].msg_len = len < 0 ? 0 : (unsigned)len;
    return len < 0 ? -1 : 1;
}

/* The link stores a limited number of peers and nothing else: unknown peers must not fill its memory. */
static void *fuzz_calloc(size_t n, size_t len)
{
    HOLLOW_CHECK(n == 1 && len == sizeof(struct link_peer), "something else than a peer is kept: %zu bytes", n * len);
    if (n_peers == N_PEERS)
        return NULL;
    return memset(&room_for_peers[n_peers++], 0, len);
}

static void fuzz_free(void *p)
{
    (void)p; /* all at once, when the next input begins */
}

/* Datagrams that the link sends by itself: calls, whose length counts as a reply, and requests. */
static int fuzz_put(struct link *link, int fd, const union udp_name *to, const void *bytes, size_t len)
{
    (void)link, (void)fd;
    const uint8_t *p = bytes;
    if (len == 0 || p[0] != UDP_CALL) {
        told = 1; /* the link's own request */
        return 0;
    }
    HOLLOW_CHECK(udp_same(to, &sender), "an answer goes to a station that sent no request");
    answered += len;
    return 0;
}

/* As if three NICs were at this station. */
static int fuzz_ports(const char *prefix, long uid, uint16_t *ports, int max)
{
    (void)uid;
    (void)prefix;
    for (int i = 0; i < 3 && i < max; i++)
        ports[i] = (uint16_t)(40000 + i);
    return max < 3 ? max : 3;
}

/* ---------------------------------------------------------------- the way of a frame */

static union udp_name name_of(uint32_t address, uint16_t port)
{
    union udp_name name;
    memset(&name, 0, sizeof name);
    name.v4.sin_family = AF_INET;
    name.v4.sin_addr.s_addr = htonl(address);
    udp_set_port(&name, port);
    return name;
}

/* A call of the links among themselves: a question or an answer about who is at a station, with the right nonce or
 * another. */
static void make_call(uint8_t *p, size_t len, const uint8_t *way)
{
    struct udp_call call = {
        .version_kind = UDP_CALL, .what = way[2] & 3, .n = way[3], .nonce = NONCE, .cookie = way[2]};
    if (way[2] & 4)
        call.nonce++;
    memcpy(p, &call, len < sizeof(struct wire_header) ? len : sizeof(struct wire_header));
}

/* An unknown peer's datagram is accepted with the cookie that the station has sent to it. */
static size_t add_trailer(uint8_t *p)
{
    struct trailer t = {.station = 34997, .cookie = cookie_for(&udp, &sender)};
    memcpy(p, &t, sizeof t);
    return sizeof t;
}

/* Makes a datagram of the frame as the input describes, and lets the link receive it in one of its ways. */
static int carry(struct hollow *h, const uint8_t *frame, size_t len)
{
    const uint8_t *way = ways[next_way++ % WAYS];
    int form = way[0];
    static uint8_t whole[UDP_SLOT];
    unsigned n = form & SUPER ? 1 + way[1] % 60 : 1;
    if (n * len + sizeof(struct trailer) > UDP_SLOT)
        n = 1;
    struct link_peer *peer = udp_get_peer(&udp, &pending_calls[0].station, hollow_unknown_peer);
    sender = form & BY_UNKNOWN_PEER ? name_of(0x7F000009, 1234) : peer->name;
    size_t all = fuzz_put_copies(whole, frame, len, n, 1);
    if (form & CALL)
        make_call(whole, all, way);
    if (form & COOKIE)
        all += add_trailer(whole + all);
    if (form & SHORTER && all > way[3])
        all -= way[3];
    uint8_t *p = block + UDP_SLOT - all;
    memcpy(p, whole, all);
    queue = p;
    queue_len = all;
    answered = 0;
    told = 0;
    udp.client = &h->nic->link_client;
    /* As the kernel's own checksum of a datagram would have it. */
    link_set_checksum_verified(&h->nic->link_client, 1);
    udp.sockets[0] = (struct udp_socket){.fd = -1};
    struct udp_socket lane = {.fd = -1, .peer = peer, .segments = form & SUPER ? MANY_SEGMENTS : 0};
    struct udp_socket *s = form & BY_LANE && !(form & BY_UNKNOWN_PEER) ? &lane : &udp.sockets[0];
    if (form & AT_THE_DOOR)
        udp_control(&udp);
    else if (form & MANY)
        take_many(&udp, s, 4);
    else
        while (take_one(&udp, s)) {}
    if (s == &lane && lane.segments >= MANY_SEGMENTS)
        take_one(&udp, s);
    /* An unknown peer may not make this side send more bytes than it has sent. */
    HOLLOW_CHECK(told || answered <= all, "%zu bytes were answered by %zu", all, answered);
    HOLLOW_CHECK(udp.n_peers <= N_PEERS, "%u peers", udp.n_peers);
    link_set_checksum_verified(&h->nic->link_client, 0);
    return (int)n;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    if (len < sizeof ways)
        return 0;
    if (block == NULL) {
        block = hollow_block(UDP_SLOT);
        udp.buffer = malloc((size_t)UDP_SLOTS * UDP_SLOT);
        udp.name = name_of(0x7F000001, 50000);
        /* A header of 28 bytes and segments of 1472: IPv4 on an MTU of 1500. */
        udp.segment = 1472;
        udp.head = 28;
        udp.secret[0] = 1;
        udp.pending = pending_calls;
        udp.n_pending = 2;
        udp.sockets[0].fd = udp.station_fd = udp.claim_fd = -1;
        for (int i = 1; i <= UDP_LANES; i++)
            udp.sockets[i].fd = -1;
        machine_carry(carry);
    }
    /* Each input begins without peers, with one question that is open. */
    udp_free_peers(&udp);
    udp.n_peers = n_peers = 0;
    udp.wants_lane = NULL;
    udp.n_lost = udp.errors = 0;
    memset(pending_calls, 0, sizeof pending_calls);
    pending_calls[0] =
        (struct udp_pending){.nonce = NONCE, .until = UINT64_MAX, .number = 1, .station = name_of(0x7F000002, 34997)};
    memcpy(pending_calls[0].address, hollow_unknown_peer, 6);
    memcpy(ways, data, sizeof ways);
    next_way = 0;
    machine_run(data + sizeof ways, len - sizeof ways, 1);
    return 0;
}
