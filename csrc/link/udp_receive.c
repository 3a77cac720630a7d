/*
 * Receiving by UDP sockets. What the kernel joined again (UDP_GRO) comes in one piece, by one call. Each segment is
 * a complete frame that tells its length, so nobody need know whether it was ever joined, or cut:
 *
 *    datagram | header | payload | header | payload | ... |
 *
 * Sockets: the common one takes whatever comes. The peers that talk most get a *lane*, a socket bound to the same
 * port and connected to that peer: the kernel finds route and receiver faster, some 15 % of a short message's time.
 * A poll looks at the socket that brought something last, and now and then at one of the others.
 *
 * Polling costs a system call per look: this link cannot do without. A sleeper sleeps on the sockets themselves and
 * looks only at those that woke him; whoever sends to a program that polls does not pay for waking it.
 */
#include <errno.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h> /* before errqueue.h, which forgets it */
#include <unistd.h>

#include <linux/errqueue.h>
#include <linux/sock_diag.h>

#include "../base/atomic.h"
#include "../base/cancel.h"
#include "../base/files.h"
#include "super.h"
#include "udp.h"

#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define LANE_AFTER 16   /* datagrams by the common socket after which a peer gets a lane, if one is free ... */
#define LANE_STEAL 4096 /* ... or one of another peer's that has been silent meanwhile */
#define OTHERS_EVERY \
    32 /* looks at the only lane for one at the common socket; with more lanes every other look is at another */
#define MAX_SEGMENTS 64  /* of a super-frame that goes straight to its place ... */
#define MANY_SEGMENTS 4  /* ... and in the one before, for it to be worth a try */
#define COUNT_EVERY 4096 /* looks that found something between counts of what the kernel dropped */
#define AT_A_CHANGE 4096 /* datagrams taken from a socket before another takes its place: a flood must not keep us */

/* ---------------------------------------------------------------- what arrived */

/* Length of the frame at p, of which at most `left` bytes are there: what its header says, and what the link put
 * behind it. Never more than is there, and never 0 while something is: whoever walks a datagram by it comes to an
 * end. */
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

/* One datagram, or several in one piece, from the peer of that name (NULL: unknown). A REQUEST alone can make a
 * stranger known (by a cookie); whatever else he sends is dropped. Whoever is heard has not refused: the count of
 * refusals begins anew. */
static void deliver(struct link *link, struct link_peer *peer, const union udp_name *from, const uint8_t *p,
                    size_t left)
{
    do {
        size_t len = frame_len(p, left);
        int kind = len ? p[0] & 15 : 0;
        if (vk_unlikely(len >= sizeof(struct wire_header) && p[0] == UDP_CALL))
            udp_call_arrived(link, from, peer, p, len);
        else {
            if (vk_unlikely(peer == NULL && kind == WIRE_REQUEST))
                peer = udp_stranger_asks(link, from, p, len);
            if (peer) {
                peer->refusals = 0;
                link_deliver(link->nic, peer->address, peer, p, len);
            } else if (kind != WIRE_REQUEST)
                LINK_COUNT(link->nic, dropped_stranger, 1);
        }
        p += len;
        left -= len;
    } while (left);
}

/* By the common socket, or by a lane that is not quite one's own yet: the sender has to be looked up. Here traffic
 * is counted: LANE_AFTER datagrams earn a lane while there are free ones; afterwards only every LANE_STEAL-th asks
 * for another's. */
static void deliver_from(struct link *link, const union udp_name *from, const uint8_t *p, size_t len)
{
    struct link_peer *peer = udp_find_peer(link, from);
    if (peer && peer->lane == 0 && ++peer->traffic >= LANE_AFTER) {
        if (link->n_lanes < UDP_LANES || peer->traffic % LANE_STEAL == 0)
            link->wants_lane = peer;
    }
    deliver(link, peer, from, p, len);
}

/* What ICMP brought about datagrams of the common socket. It comes from the socket's error queue, with the address
 * that the datagram was sent to. Only what another host (or our own kernel in its place) said counts, and only that
 * nobody listens there; other errors may pass. */
static void take_errors(struct link *link)
{
    link->errors = 0;
    for (int i = 0; i < 64; i++) {
        union udp_name to;
        uint8_t control[512];
        struct msghdr m = {
            .msg_name = &to, .msg_namelen = sizeof to, .msg_control = control, .msg_controllen = sizeof control};
        LINK_COUNT(link->nic, system_calls, 1);
        if (vk_recvmsg(link->sockets[0].fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
            return;
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
            struct sock_extended_err e;
            int ours = (c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR) ||
                       (c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR);
            if (!ours || c->cmsg_len < CMSG_LEN(sizeof e))
                continue;
            memcpy(&e, CMSG_DATA(c), sizeof e);
            if (e.ee_errno == ECONNREFUSED && e.ee_origin != SO_EE_ORIGIN_LOCAL)
                udp_refused(link, &to);
        }
    }
}

static int take_one(struct link *link, struct udp_socket *s);

/* A receiving call said neither "here it is" nor "nothing". On the common socket the error is about anybody: the
 * error queue knows. A lane's is about its peer. */
static void socket_error(struct link *link, const struct udp_socket *s, int error)
{
    if (s->peer == NULL)
        take_errors(link);
    else if (error == ECONNREFUSED)
        udp_refused(link, &s->peer->name);
}

/* By the system call itself: the C library's function would look whether the thread is being cancelled, each time we
 * look. */
static inline ssize_t receive(struct link *link, const struct udp_socket *s, size_t room, int flags,
                              union udp_name *from)
{
    socklen_t from_len = sizeof *from;
    LINK_COUNT(link->nic, system_calls, 1);
    return (ssize_t)syscall(SYS_recvfrom, s->fd, link->buffer, room, flags | MSG_DONTWAIT, from,
                            from ? &from_len : NULL);
}

/* ---- super-frames that go straight to where their message goes */

/* The segments after the first, headers here and payloads there. One call, and no copy but the kernel's:
 *
 *    | first segment again | header | payload | header | payload | ... | header | payload |
 *      to be ignored         headers   place     headers   place
 *
 * A checksum that covers them is proved after they lie in their place; one that is wrong is sent again to the same
 * place, or its message fails. But the last word of an RDMA write tells its target that all before it is good, so
 * the last segment of a write takes the way by the buffer. */
static void to_its_place(struct link *link, const struct udp_socket *s, const struct wire_header *first, size_t begin,
                         size_t end, uint8_t *place)
{
    struct wire_header headers[MAX_SEGMENTS];
    struct iovec iov[1 + 2 * MAX_SEGMENTS] = {{link->buffer, begin}};
    struct link_peer *peer = s->peer;
    const size_t head = sizeof *first;
    size_t n = 0;
    for (size_t at = begin; at < end; n++) {
        size_t payload = (end - at < begin ? end - at : begin) - head;
        at += head + payload;
        /* All segments are as long as the first, but the last, which may be shorter. */
        int is_end = at == end && (first->version_kind & 15) == WIRE_WRITE;
        iov[1 + 2 * n] = (struct iovec){&headers[n], head};
        iov[2 + 2 * n] = (struct iovec){is_end ? link->buffer + begin : place, payload};
        place += payload;
    }
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = 1 + 2 * n};
    LINK_COUNT(link->nic, system_calls, 1);
    if (vk_recvmsg(s->fd, &m, MSG_DONTWAIT | MSG_TRUNC) != (ssize_t)end)
        return; /* not what was there a moment ago: as if lost */
    link_deliver_placed(link->nic, peer->address, peer, first, headers, iov + 2, n, link->buffer + begin);
}

/* How many bytes of payload lie behind the first segment of `begin` bytes, of `end` in all, as far as they may go to
 * their place; 0: they are not segments of one length. */
static size_t payload_ahead(const struct wire_header *first, size_t begin, size_t end)
{
    size_t n = (end - 1) / begin, shortest = end - n * begin; /* segments behind the first; bytes of the last */
    if (n == 0 || n > MAX_SEGMENTS || shortest < sizeof *first || first->len == 0)
        return 0;
    size_t payload = end - begin - n * sizeof *first;
    return (first->version_kind & 15) == WIRE_WRITE ? payload - (shortest - sizeof *first) : payload;
}

/* The first segment is looked at and delivered; it tells which message the others belong to. Returns 0 if nothing
 * was there. */
static int take_super(struct link *link, struct udp_socket *s)
{
    /* MSG_PEEK leaves it in the queue, MSG_TRUNC has the length of all of it returned, though one segment is copied. */
    ssize_t all = receive(link, s, link->segment, MSG_PEEK | MSG_TRUNC, NULL);
    if (all < 0 && errno == EAGAIN)
        return 0;
    if (all <= (ssize_t)sizeof(struct wire_header)) {
        s->segments = 0; /* an error, or something short: the plain way takes it */
        return take_one(link, s);
    }
    size_t end = (size_t)all, have = end < link->segment ? end : link->segment, begin = frame_len(link->buffer, have);
    struct wire_header first;
    memcpy(&first, link->buffer, sizeof first);
    size_t ahead = begin < have || have < end ? payload_ahead(&first, begin, end) : 0;
    if (ahead == 0 || (first.version_kind & 15) > WIRE_WRITE || begin != sizeof first + first.len) {
        s->segments = 0;
        return take_one(link, s);
    }
    struct link_peer *peer = s->peer;
    peer->refusals = 0;
    link_deliver(link->nic, peer->address, peer, link->buffer, begin);
    uint8_t *place = link_place_ahead(link->nic, &first, ahead);
    if (place)
        to_its_place(link, s, &first, begin, end, place);
    else if (receive(link, s, UDP_SLOT, 0, NULL) == all)
        deliver(link, peer, &peer->name, link->buffer + begin, end - begin);
    return 1;
}

/* One datagram. Returns 0 if there was none. */
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
            s->fresh = 0; /* empty: from now on the kernel lets in none but its peer's */
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

/* As many datagrams as there are room and budget for. */
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
    LINK_COUNT(link->nic, system_calls, 1);
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

/* A look at one socket. Returns datagrams taken, and keeps account: which socket was hot, how steadily it brings
 * something. */
static int look(struct link *link, int which, int budget)
{
    struct udp_socket *s = &link->sockets[which];
    /* The first look asks for one datagram: a program that waits for it gets it at once. Where there is always more,
     * many at a time. */
    int n = s->streak < 2 || s->segments >= MANY_SEGMENTS ? take_one(link, s) : take_many(link, s, budget);
    if (vk_likely(n == 0)) {
        s->streak = 0;
        return 0;
    }
    if (s->streak < 2)
        s->streak++;
    s->traffic += (uint32_t)n;
    link->hot = which;
    if (vk_unlikely(++link->finds % COUNT_EVERY == 0))
        udp_count_losses(link);
    return n;
}

/* ---------------------------------------------------------------- lanes */

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

/* The peer goes on by the common socket, and has to earn a lane anew. */
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

/* A free lane, or one on which nothing has come since the last search. 0: none. What still lies in a lane that is
 * taken away is delivered first: it is older than what comes by the common socket. */
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

/* Order is kept as far as AT_A_CHANGE goes: what came by the common socket is taken before the lane is looked at.
 * Between bind and connect the kernel may put others' datagrams into the lane; they are taken by name (fresh). */
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
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0 ||
        bind(fd, &link->name.any, udp_name_len(&link->name)) != 0 ||
        connect(fd, &peer->name.any, udp_name_len(&peer->name)) != 0) {
        vk_file_close(fd);
        return;
    }
    link->sockets[lane] = (struct udp_socket){.fd = fd, .peer = peer, .fresh = 1};
    link->n_lanes++;
    if (link->asleep)
        link_timer(link->nic, 0); /* who sleeps does not know of it */
    for (int i = 0; i < AT_A_CHANGE && take_one(link, &link->sockets[0]); i++) {}
    peer->lane = (uint8_t)lane;
    link->hot = lane;
    for (int i = 0; i < AT_A_CHANGE && take_one(link, &link->sockets[lane]); i++) {}
}

/* ---------------------------------------------------------------- looking, sleeping */

void udp_count_losses(struct link *link)
{
    for (int i = 0; i <= UDP_LANES; i++) {
        uint32_t info[SK_MEMINFO_VARS];
        socklen_t len = sizeof info;
        struct udp_socket *s = &link->sockets[i];
        if (s->fd < 0 || getsockopt(s->fd, SOL_SOCKET, SO_MEMINFO, info, &len) != 0 ||
            len <= SK_MEMINFO_DROPS * sizeof *info)
            continue;
        LINK_COUNT(link->nic, dropped_ring_full, info[SK_MEMINFO_DROPS] - s->dropped);
        s->dropped = info[SK_MEMINFO_DROPS];
    }
}

/* Peers that were marked lost by udp_refused(), perhaps from within a send, which is no place to call the provider
 * back. The peer stays in the table, for VIs point at it; its cookie does not, for whoever comes at that port next
 * is another. */
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
                link_peer_lost(link->nic, p);
            }
}

/* The other sockets in turn; the hot one if there is no other. */
static int next_other(struct link *link)
{
    for (int i = 0; i <= UDP_LANES; i++) {
        link->other = link->other == UDP_LANES ? 0 : link->other + 1;
        if (link->other != link->hot && link->sockets[link->other].fd >= 0)
            return link->other;
    }
    return link->hot;
}

/* What a poll does seldom, out of its straight line. */
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

/* Somebody slept, and these sockets woke him: by a datagram, or by an error alone, which must be taken or every
 * sleep from now on ends at once. */
static int look_where_woken(struct link *link, int budget)
{
    uint32_t woken = link->woken;
    int n = 0;
    link->woken = 0;
    for (int i = 0; i <= UDP_LANES; i++)
        if (woken & 1u << i && link->sockets[i].fd >= 0)
            n += look(link, i, budget);
    if (n == 0)
        link->errors = 1;
    return n;
}

/* Link operation. The hot socket each time, another one now and then: with one lane every OTHERS_EVERY-th look, with
 * more every second, so that no lane waits for long. */
int udp_poll(struct link *link, int budget)
{
    int n = vk_unlikely(link->woken) ? look_where_woken(link, budget) : look(link, link->hot, budget);
    if (link->n_lanes && ++link->looks % (link->n_lanes == 1 ? OTHERS_EVERY : 2) == 0)
        n += look(link, next_other(link), budget);
    if (vk_unlikely(link->errors || link->n_lost || link->wants_lane))
        rare(link);
    return n;
}

_Static_assert(1 + UDP_LANES <= LINK_WATCHED, "a sleeper watches all sockets");

/* Link operation: all sockets; poll(2) passes over those that are -1. */
int udp_watch(struct link *link, struct pollfd *fds)
{
    for (int i = 0; i <= UDP_LANES; i++)
        fds[i] = (struct pollfd){.fd = link->sockets[i].fd, .events = POLLIN};
    link->asleep = 1;
    return 1 + UDP_LANES;
}

/* A socket may have become another peer's meanwhile: to look there in vain does no harm. */
void udp_woken(struct link *link, const struct pollfd *fds, int n)
{
    link->asleep = 0;
    for (int i = 0; i < n; i++)
        if (fds[i].revents)
            link->woken |= 1u << i;
}
