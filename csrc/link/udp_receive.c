/*
 * Receiving by UDP sockets. Datagrams that the kernel has joined (UDP_GRO) arrive in one piece, with one call. Each
 * segment is a complete frame with its length, so it does not matter whether datagrams were joined or cut:
 *
 *    datagram | header | payload | header | payload | ... |
 *
 * Sockets: the unconnected one receives from any peer. The peers with the most traffic get a *lane*: a socket bound to
 * the same port and connected to that peer. The kernel then finds route and receiver faster, which saves some 15 % of a
 * short message's time. A poll reads the socket that last received something, and from time to time one of the others.
 *
 * Each poll costs a system call, which this link cannot avoid. A sleeping thread sleeps on the sockets themselves and
 * reads only those that woke it. A sender to a program that polls does not pay for a wake-up.
 *
 *   peer's socket   unconnected --LANE_AFTER datagrams--> lane, fresh --first empty read--> lane
 *                        ^                                    |                               |
 *                        +---- another peer needs the lane, or this one is lost --------------+
 *
 * Invariant: order of a peer's datagrams. A socket is read until it is empty, or AT_A_CHANGE times, before the peer
 * moves to another one.
 *
 * Only the NIC's owner calls these functions. None blocks. The buffer is overwritten by the next receiving call, so
 * deliver() of the provider copies what it needs.
 */
#include <errno.h>
#include <linux/filter.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h> /* before errqueue.h, which uses it without including it */
#include <unistd.h>

#include <linux/errqueue.h>
#include <linux/sock_diag.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/files.h"
#include "link/super.h"
#include "link/udp.h"

#ifndef UDP_GRO
#define UDP_GRO 104 /* of linux/udp.h, Linux 5.0; the C library's header may be older */
#endif

#define LANE_AFTER 16    /* datagrams on the unconnected socket after which a peer gets a lane, if one is free ... */
#define LANE_STEAL 4096  /* ... or the lane of another peer that has been silent meanwhile */
#define OTHERS_EVERY 32  /* polls of the only lane for one of the unconnected socket, which then rarely has datagrams */
#define MANY_SEGMENTS 4  /* of the preceding datagram, for an attempt to receive in place to pay */
#define COUNT_EVERY 4096 /* successful polls between two reads of the kernel's drop counters */
#define AT_A_CHANGE 4096 /* the most datagrams read from a socket before another replaces it: a flood could last */

/* ---------------------------------------------------------------- delivery */

/* Returns the length of the frame at p, of which at most `left` bytes are there: the length in its header, and the
 * link's trailer. The result never exceeds `left`, and is 0 only if `left` is 0, so a loop over a datagram ends. */
static size_t frame_len(const uint8_t *p, size_t left)
{
    uint16_t payload;
    if (left < sizeof(struct wire_header))
        return left;
    memcpy(&payload, p + offsetof(struct wire_header, len), sizeof payload);
    size_t len = sizeof(struct wire_header) + payload;
    if ((p[0] & 15) == WIRE_REQUEST)
        len += UDP_TRAILER;
    return len < left ? len : left;
}

/* Counts a frame that is shorter than a header. The filter leaves UDP_UNSUMMED bytes of a datagram without a
 * checksum. */
static void drop_short(struct link *link, const struct link_peer *peer, size_t len)
{
    if (len == UDP_UNSUMMED)
        LINK_COUNT(link->client, dropped_checksum, 1);
    else if (peer)
        LINK_COUNT(link->client, dropped_malformed, 1);
    else
        LINK_COUNT(link->client, dropped_unknown_peer, 1);
}

/* Delivers one datagram, or several in one piece, from the peer of that name (NULL: unknown). An unknown sender can
 * become a peer only by a REQUEST with a cookie. All its other frames are dropped. A frame from the peer resets its
 * count of refusals. */
static void deliver(struct link *link, struct link_peer *peer, const union udp_name *from, const uint8_t *p,
                    size_t left)
{
    do {
        size_t len = frame_len(p, left);
        int kind = len ? p[0] & 15 : 0;
        if (vk_unlikely(len < sizeof(struct wire_header)))
            drop_short(link, peer, len);
        else if (vk_unlikely(p[0] == UDP_CALL))
            udp_call_arrived(link, from, peer, p, len);
        else {
            if (vk_unlikely(peer == NULL && kind == WIRE_REQUEST))
                peer = udp_admit_sender(link, from, p, len);
            if (peer) {
                peer->refusals = 0;
                link_deliver(link->client, peer->address, peer, p, len);
            } else if (kind != WIRE_REQUEST)
                LINK_COUNT(link->client, dropped_unknown_peer, 1);
        }
        p += len;
        left -= len;
    } while (left);
}

/* Delivers from the unconnected socket, or from a lane that is not drained yet, so the sender has to be looked up.
 * Traffic is counted here: a peer requests a free lane after LANE_AFTER datagrams. If no lane is free, only every
 * LANE_STEAL-th datagram requests another peer's. */
static void deliver_from(struct link *link, const union udp_name *from, const uint8_t *p, size_t len)
{
    struct link_peer *peer = udp_find_peer(link, from);
    if (peer && peer->lane == 0 && ++peer->traffic >= LANE_AFTER) {
        if (link->n_lanes < UDP_LANES || peer->traffic % LANE_STEAL == 0)
            link->wants_lane = peer;
    }
    deliver(link, peer, from, p, len);
}

/* Reads ICMP errors about datagrams of the unconnected socket from its error queue, with each datagram's
 * destination. Only "port unreachable" counts, reported by another host or by the local kernel in its place. Other
 * errors may pass. */
static void take_errors(struct link *link)
{
    link->errors = 0;
    for (int i = 0; i < 64; i++) {
        union udp_name to;
        uint8_t control[512];
        struct msghdr m = {
            .msg_name = &to, .msg_namelen = sizeof to, .msg_control = control, .msg_controllen = sizeof control};
        LINK_COUNT(link->client, system_calls, 1);
        if (vk_recvmsg(link->sockets[0].fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
            return;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            struct sock_extended_err e;
            int is_error = (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
                           (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR);
            if (!is_error || c->cmsg_len < CMSG_LEN(sizeof e))
                continue;
            memcpy(&e, CMSG_DATA(c), sizeof e);
            if (e.ee_errno == ECONNREFUSED && e.ee_origin != SO_EE_ORIGIN_LOCAL)
                udp_refused(link, &to);
        }
    }
}

static int take_one(struct link *link, struct udp_socket *s);

/* Handles the error of a receiving call. On the unconnected socket it may concern any peer: the error queue has the
 * destination. On a lane it concerns the lane's peer. */
static void socket_error(struct link *link, const struct udp_socket *s, int error)
{
    if (s->peer == NULL)
        take_errors(link);
    else if (error == ECONNREFUSED)
        udp_refused(link, &s->peer->name);
}

/* Makes the system call directly: the C library's function would check for thread cancellation at each poll. */
static inline ssize_t receive(struct link *link, const struct udp_socket *s, size_t room, int flags,
                              union udp_name *from)
{
    socklen_t from_len = sizeof *from;
    LINK_COUNT(link->client, system_calls, 1);
    return (ssize_t)syscall(SYS_recvfrom, s->fd, link->buffer, room, flags | MSG_DONTWAIT, from,
                            from ? &from_len : NULL);
}

/* ---- super-frames that are received in place */

/* Receives the segments after the first: their headers into a local array, their payloads into the message. It takes
 * one call and no copy but the kernel's:
 *
 *    | first segment again | header | payload | header | payload | ... | header | payload |
 *      ignored               headers   place     headers   place
 *
 * A checksum that covers the segments is verified after they lie in place. If it is wrong, the segment is retransmitted
 * to the same place, or its message fails. */
static void to_its_place(struct link *link, const struct udp_socket *s, const struct wire_header *first, size_t begin,
                         size_t end, uint8_t *place)
{
    struct link_scatter to;
    struct link_peer *peer = s->peer;
    link_scatter(&to, first, begin, end, place, link->buffer + begin);
    to.iov[0] = (struct iovec){link->buffer, begin};
    struct msghdr m = {.msg_iov = to.iov, .msg_iovlen = 1 + 2 * to.n};
    LINK_COUNT(link->client, system_calls, 1);
    if (vk_recvmsg(s->fd, &m, MSG_DONTWAIT | MSG_TRUNC) != (ssize_t)end)
        return; /* not the datagram that was peeked at: treated as lost */
    link_deliver_placed(link->client, peer->address, peer, first, to.headers, to.iov + 2, to.n, link->buffer + begin);
}

/* Receives a datagram that is no super-frame after all. A single frame does not end a stream of super-frames: at 1 %
 * loss every second one is followed by a retransmission. After some single frames in a row the peek no longer pays. */
static int take_other(struct link *link, struct udp_socket *s)
{
    uint32_t before = s->segments;
    s->segments = 0;
    int n = take_one(link, s);
    if (s->segments < before / 2)
        s->segments = before / 2;
    return n;
}

/* Peeks at the first segment and delivers it. It identifies the message of the others. Returns 0 if no datagram was
 * there. */
static int take_super(struct link *link, struct udp_socket *s)
{
    /* MSG_PEEK leaves the datagram in the queue. MSG_TRUNC returns its full length, though one segment is copied. */
    ssize_t all = receive(link, s, link->segment, MSG_PEEK | MSG_TRUNC, NULL);
    if (all < 0 && errno == EAGAIN)
        return 0;
    if (all <= (ssize_t)sizeof(struct wire_header))
        return take_other(link, s); /* an error, or a short datagram */
    size_t end = (size_t)all, have = end < link->segment ? end : link->segment, begin = frame_len(link->buffer, have);
    struct wire_header first;
    memcpy(&first, link->buffer, sizeof first);
    size_t ahead = begin < have || have < end ? link_payload_ahead(&first, begin, end) : 0;
    if (ahead == 0 || (first.version_kind & 15) > WIRE_WRITE || begin != sizeof first + first.len)
        return take_other(link, s);
    s->segments = (uint32_t)(end / begin);
    struct link_peer *peer = s->peer;
    peer->refusals = 0;
    link_deliver(link->client, peer->address, peer, link->buffer, begin);
    uint8_t *place = link_place_ahead(link->client, &first, ahead);
    if (place)
        to_its_place(link, s, &first, begin, end, place);
    else if (receive(link, s, UDP_SLOT, 0, NULL) == all)
        deliver(link, peer, &peer->name, link->buffer + begin, end - begin);
    return 1;
}

/* Receives one datagram. Returns 0 if none was there. */
static int take_one(struct link *link, struct udp_socket *s)
{
    union udp_name from;
    int known = s->peer && !s->fresh;
    if (s->segments >= MANY_SEGMENTS)
        return take_super(link, s);
    ssize_t len = receive(link, s, UDP_SLOT, 0, known ? NULL : &from);
    if (vk_likely(len < 0)) {
        if (vk_unlikely(errno != EAGAIN))
            socket_error(link, s, errno);
        else
            s->fresh = 0; /* drained: from now on the kernel queues only its peer's datagrams */
        return 0;
    }
    if (known) {
        size_t one = frame_len(link->buffer, (size_t)len);
        s->segments = one ? (uint32_t)((size_t)len / one) : 0;
        deliver(link, s->peer, &s->peer->name, link->buffer, (size_t)len);
    } else
        deliver_from(link, &from, link->buffer, (size_t)len);
    return 1;
}

/* Receives as many datagrams as the slots and the budget allow. Returns their number. One call for all pays only while
 * several wait, because it sets up UDP_SLOTS vectors (poll_socket()). */
static int take_many(struct link *link, struct udp_socket *s, int budget)
{
    struct mmsghdr m[UDP_SLOTS];
    struct iovec iov[UDP_SLOTS];
    union udp_name from[UDP_SLOTS];
    int n = budget < UDP_SLOTS ? budget : UDP_SLOTS, known = s->peer && !s->fresh;
    struct link_peer *peer = s->peer;
    memset(m, 0, (size_t)n * sizeof *m);
    for (int i = 0; i < n; i++) {
        iov[i] = (struct iovec){link->buffer + (size_t)i * UDP_SLOT, UDP_SLOT};
        m[i].msg_hdr.msg_iov = &iov[i];
        m[i].msg_hdr.msg_iovlen = 1;
        m[i].msg_hdr.msg_name = known ? NULL : &from[i];
        m[i].msg_hdr.msg_namelen = known ? 0 : sizeof from[i];
    }
    LINK_COUNT(link->client, system_calls, 1);
    n = vk_recvmmsg(s->fd, m, (unsigned)n, MSG_DONTWAIT);
    if (n < 0) {
        if (errno != EAGAIN)
            socket_error(link, s, errno);
        return 0;
    }
    for (int i = 0; i < n; i++)
        if (known)
            deliver(link, peer, &peer->name, iov[i].iov_base, m[i].msg_len);
        else
            deliver_from(link, &from[i], iov[i].iov_base, m[i].msg_len);
    return n;
}

/* Polls one socket. Returns the number of datagrams received. Records which socket was hot, and how steadily it
 * receives. */
static int poll_socket(struct link *link, int which, int budget)
{
    struct udp_socket *s = &link->sockets[which];
    /* The first poll reads one datagram, so that a waiting program gets it at once. If more follow steadily, many are
     * read at a time. */
    int n = s->streak < 2 || s->segments >= MANY_SEGMENTS ? take_one(link, s) : take_many(link, s, budget);
    if (vk_likely(n == 0)) {
        s->streak = 0;
        return 0;
    }
    if (s->streak < 2)
        s->streak++;
    s->traffic += (uint32_t)n;
    link->hot = which;
    if (vk_unlikely(++link->n_received % COUNT_EVERY == 0))
        udp_count_losses(link);
    return n;
}

/* ---------------------------------------------------------------- lanes */

/* The checksum field of a UDP header is 0 if the sender computed none. IPv4 allows that, and the kernel then verifies
 * nothing. But the segments of super-frames and the requests to a station's common port have no other checksum of their
 * payload. The filter runs before the datagram is queued, with the UDP header at offset 0. It returns the length to
 * keep. Datagrams of a local sender hold an unfinished sum there, which is never 0. IPv6 hosts drop such datagrams
 * themselves. */
int udp_require_checksum(int fd)
{
    /* Classic BPF: load the half word at 6, the checksum. If it is 0, keep 9 bytes, else all (0x40000 exceeds any
     * datagram). With 0 the kernel would count the datagram among those that found the buffer full. */
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 6),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, 0x40000),
        BPF_STMT(BPF_RET | BPF_K, UDP_HEADER_LEN + UDP_UNSUMMED),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0 ? 0 : -errno;
}

/* Path MTU discovery WANT: datagrams carry "do not fragment" up to the known path MTU, and longer ones are fragmented
 * locally (ip(7)). 8 MiB of buffer: the FORCE options need CAP_NET_ADMIN, the others are cut to net.core.rmem_max and
 * wmem_max. udp.c reads what was granted. No option is essential, so failures are not reported. */
void udp_set_options(struct link *link, int fd)
{
    int is_v4 = link->name.any.sa_family == AF_INET, one = 1, bytes = 8 << 20, wide = IP_PMTUDISC_WANT;
    setsockopt(fd, is_v4 ? IPPROTO_IP : IPPROTO_IPV6, is_v4 ? IP_MTU_DISCOVER : IPV6_MTU_DISCOVER, &wide, sizeof wide);
    if (setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes); /* as far as allowed */
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    link->receive_super = setsockopt(fd, IPPROTO_UDP, UDP_GRO, &one, sizeof one) == 0;
}

/* The peer returns to the unconnected socket, and needs new traffic for another lane. */
void udp_close_lane(struct link *link, int lane)
{
    struct udp_socket *s = &link->sockets[lane];
    if (s->fd < 0)
        return;
    s->peer->lane = 0;
    s->peer->traffic = 0;
    vk_file_close(s->fd);
    *s = (struct udp_socket){.fd = -1};
    link->n_lanes--;
    if (link->hot == lane)
        link->hot = 0;
}

/* Returns a free lane, or one that has received nothing since the last search, or 0. The datagrams that are left in a
 * lane are delivered before it is reassigned, because they are older than those on the unconnected socket. */
static int free_lane(struct link *link)
{
    int found = 0;
    for (int i = 1; i <= UDP_LANES && !found; i++)
        if (link->sockets[i].fd < 0)
            return i;
    for (int i = 1; i <= UDP_LANES; i++) {
        struct udp_socket *s = &link->sockets[i];
        if (!found && s->traffic == s->seen_traffic)
            found = i;
        s->seen_traffic = s->traffic;
    }
    if (found) {
        for (int i = 0; i < AT_A_CHANGE && take_one(link, &link->sockets[found]); i++) {}
        udp_close_lane(link, found);
    }
    return found;
}

/* Order is kept up to AT_A_CHANGE datagrams: the unconnected socket is read before the lane is. Between bind and
 * connect the kernel may queue others' datagrams in the lane. Their senders are looked up (fresh). */
static void open_lane(struct link *link, struct link_peer *peer)
{
    VK_HOLD_CANCEL;
    int lane = free_lane(link), one = 1;
    if (lane == 0 || peer->lane || peer->lost)
        return;
    int fd = vk_file_own(socket(link->name.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return;
    udp_set_options(link, fd);
    if (udp_require_checksum(fd) != 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0 ||
        bind(fd, &link->name.any, udp_name_len(&link->name)) != 0 ||
        connect(fd, &peer->name.any, udp_name_len(&peer->name)) != 0) {
        vk_file_close(fd);
        return;
    }
    link->sockets[lane] = (struct udp_socket){.fd = fd, .peer = peer, .fresh = 1};
    link->n_lanes++;
    if (link->asleep)
        link_timer(link->client, 0); /* a sleeping thread does not poll the new socket yet */
    /* The peer's older datagrams are on the unconnected socket, and the newer ones in the lane. */
    for (int i = 0; i < AT_A_CHANGE && take_one(link, &link->sockets[0]); i++) {}
    peer->lane = (uint8_t)lane;
    link->hot = lane;
    for (int i = 0; i < AT_A_CHANGE && take_one(link, &link->sockets[lane]); i++) {}
}

/* ---------------------------------------------------------------- polling, sleeping */

/* The kernel's counters have 32 bits and wrap, so differences are added. A lane that was closed in between takes its
 * last losses along, uncounted. */
void udp_count_losses(struct link *link)
{
    for (int i = 0; i <= UDP_LANES; i++) {
        uint32_t info[SK_MEMINFO_VARS];
        socklen_t len = sizeof info;
        struct udp_socket *s = &link->sockets[i];
        if (s->fd < 0 || getsockopt(s->fd, SOL_SOCKET, SO_MEMINFO, info, &len) != 0 ||
            len <= SK_MEMINFO_DROPS * sizeof *info)
            continue;
        LINK_COUNT(link->client, dropped_ring_full, info[SK_MEMINFO_DROPS] - s->dropped);
        s->dropped = info[SK_MEMINFO_DROPS];
    }
}

/* Reports the peers that udp_refused() marked lost. It may have run within a send, where the provider cannot be called.
 * The peer stays in the table, because VIs point at it. Its cookie is cleared, because the next NIC at that port is
 * another one. */
static void report_lost(struct link *link)
{
    for (uint32_t b = 0; link->n_lost && b < UDP_BUCKETS; b++)
        for (struct link_peer *p = link->peers[b]; p; p = p->next)
            if (p->lost) {
                p->lost = 0;
                p->refusals = 0;
                p->has_cookie = 0;
                p->cookie = 0;
                link->n_lost--;
                if (p->lane)
                    udp_close_lane(link, p->lane);
                link_peer_lost(link->client, p);
            }
}

/* Returns the next of the other sockets in turn; the hot one if there is no other. */
static int next_other(struct link *link)
{
    for (int i = 0; i <= UDP_LANES; i++) {
        link->other = link->other == UDP_LANES ? 0 : link->other + 1;
        if (link->other != link->hot && link->sockets[link->other].fd >= 0)
            return link->other;
    }
    return link->hot;
}

/* The rare tasks of a poll, kept off its fast path. */
static void rare(struct link *link)
{
    if (link->errors)
        take_errors(link);
    if (link->n_lost)
        report_lost(link);
    if (link->wants_lane) {
        struct link_peer *peer = link->wants_lane;
        link->wants_lane = NULL;
        open_lane(link, peer);
    }
}

/* Polls the sockets that ended a sleep. A socket may have only an error, which must be cleared, or every later sleep
 * would end at once. */
static int poll_woken(struct link *link, int budget)
{
    uint32_t woken = link->woken;
    int n = 0;
    link->woken = 0;
    for (int i = 0; i <= UDP_LANES; i++)
        if (woken & 1u << i && link->sockets[i].fd >= 0)
            n += poll_socket(link, i, budget);
    if (n == 0)
        link->errors = 1;
    return n;
}

/* Link operation. Polls the hot socket each time, and another one now and then: with one lane every OTHERS_EVERY-th
 * time, with more lanes every second time, so that no lane waits for long. */
int udp_poll(struct link *link, int budget)
{
    int n = vk_unlikely(link->woken) ? poll_woken(link, budget) : poll_socket(link, link->hot, budget);
    if (link->n_lanes && ++link->n_polls % (link->n_lanes == 1 ? OTHERS_EVERY : 2) == 0)
        n += poll_socket(link, next_other(link), budget);
    if (vk_unlikely(link->errors || link->n_lost || link->wants_lane))
        rare(link);
    return n;
}

_Static_assert(1 + UDP_LANES <= LINK_WATCHED, "a sleeper watches all sockets");

/* Link operation: all sockets. poll(2) ignores descriptors of -1. The kernel reports POLLERR without a request for
 * it. */
int udp_watch(struct link *link, struct pollfd *fds)
{
    for (int i = 0; i <= UDP_LANES; i++)
        fds[i] = (struct pollfd){.fd = link->sockets[i].fd, .events = POLLIN};
    link->asleep = 1;
    return 1 + UDP_LANES;
}

/* A socket may belong to another peer meanwhile: polling it in vain does no harm. */
void udp_woken(struct link *link, const struct pollfd *fds, int n)
{
    link->asleep = 0;
    for (int i = 0; i < n; i++)
        if (fds[i].revents)
            link->woken |= 1u << i;
}
