/*
 * The data's way over UDP sockets.
 *
 * Sending: one system call per frame, or per *super-frame*: up to 64 KiB of frames of equal length that the kernel, or the card, cuts into datagrams
 * (UDP_SEGMENT). Where that is refused (an old kernel, a card without checksums, a path narrower than the frames) the frames of a batch go by
 * one sendmmsg. A datagram longer than the path carries is cut by IP: slow, and it works until the connection is made anew.
 *
 * Receiving: what the kernel joined again (UDP_GRO) comes in one piece, by one call. Each segment is a complete frame that tells its length,
 * so nobody need know which of all this happened:
 *
 *    datagram | header | payload | header | payload | ... |
 *
 * Sockets: the common one takes whatever comes. The peers that talk most get a *lane*, a socket bound to the same port and connected to that peer:
 * the kernel finds route and receiver faster, some 15 % of a short message's time. A poll looks at the socket that brought something last
 * and at one of the others every few looks.
 */
#include <errno.h>
#include <time.h> /* before errqueue.h, which forgets it */

#include <linux/errqueue.h>
#include <linux/sock_diag.h>
#include <netinet/udp.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "../base/atomic.h"
#include "../base/copy.h"
#include "../base/crc32c.h"
#include "udp.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

#define MAX_IOV 1000
#define MAX_BATCH 64         /* frames of one call; the provider builds fewer */
#define LANE_AFTER 16        /* datagrams by the common socket after which a peer gets a lane, if one is free ... */
#define LANE_STEAL 4096      /* ... or one of another peer's that has been silent meanwhile */
#define OTHERS_EVERY 8       /* looks at the hot socket for one at another */
#define SLEEPLESS 256        /* looks without a sleep after which nobody will */
#define COUNT_EVERY 4096     /* looks that found something between counts of what the kernel dropped */
#define SINGLES_FIRST 64     /* sends without super-frames after the path refused one; doubles ... */
#define SINGLES_LONGEST 8192 /* ... up to this */

/* ---------------------------------------------------------------- sending */

static void checksum(struct link_frame *f)
{
    if (f->header.flags & WIRE_FLAG_CRC)
        return; /* has one already: of a frame that was spoilt on purpose afterwards */
    f->header.flags |= WIRE_FLAG_CRC;
    f->header.crc = 0;
    uint32_t crc = vk_crc32c(0, &f->header, sizeof f->header);
    if (f->header_len > sizeof f->header)
        crc = vk_crc32c(crc, &f->block, f->header_len - sizeof f->header);
    for (uint32_t i = 0; i < f->n_iov; i++)
        crc = vk_crc32c(crc, f->iov[i].iov_base, f->iov[i].iov_len);
    f->header.crc = crc;
}

/* What to do about a send that failed: 1 the datagram is as good as lost, 0 not now, -1 the kernel refuses the form, 2 try again: the error
 * was about an earlier datagram. */
static int judge(struct link *link, struct link_peer *peer, int error, int is_super)
{
    switch (error) {
    case EAGAIN:
    case ENOBUFS:
    case ENOMEM:
    case EINTR:
        return 0;
    case ECONNREFUSED:
        if (peer->lane)
            udp_refused(link, &peer->name);
        else
            link->errors = 1;
        return 2;
    case EHOSTUNREACH:
        link->errors |= peer->lane == 0;
        return 2;
    case EINVAL:
    case EMSGSIZE:
    case EIO:
    case EOPNOTSUPP:
    case ENOPROTOOPT:
        return is_super ? -1 : 1;
    default:
        return 1; /* EPERM of a firewall, ENETUNREACH, ENETDOWN: if it lasts, the peer does not answer and the connection ends */
    }
}

static int put_message(struct link *link, struct link_peer *peer, struct msghdr *m)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        if (peer->lane == 0) {
            m->msg_name = &peer->name;
            m->msg_namelen = udp_name_len(&peer->name);
        }
        LINK_COUNT(link->nic, system_calls, 1);
        if (sendmsg(link->sockets[peer->lane].fd, m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
            return 1;
        int verdict = judge(link, peer, errno, m->msg_controllen != 0);
        if (verdict != 2)
            return verdict;
    }
    return 1;
}

static int put_bytes(struct link *link, struct link_peer *peer, const void *bytes, size_t len)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        int fd = link->sockets[peer->lane].fd;
        LINK_COUNT(link->nic, system_calls, 1);
        ssize_t sent = peer->lane ? send(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL)
                                  : sendto(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, &peer->name.any,
                                           udp_name_len(&peer->name));
        if (vk_likely(sent >= 0))
            return 1;
        int verdict = judge(link, peer, errno, 0);
        if (verdict != 2)
            return verdict;
    }
    return 1;
}

int udp_put(struct link *link, int fd, const union udp_name *to, const void *bytes, size_t len)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        LINK_COUNT(link->nic, system_calls, 1);
        if (sendto(fd, bytes, len, MSG_DONTWAIT | MSG_NOSIGNAL, &to->any, udp_name_len(to)) >= 0)
            return 0;
        if (errno != ECONNREFUSED && errno != EHOSTUNREACH)
            return -errno;
        link->errors = 1; /* about an earlier datagram */
    }
    return -EHOSTUNREACH;
}

static void count_gathered(struct link *link, size_t len)
{
    if (len == 0)
        return;
    LINK_COUNT(link->nic, copies, 1);
    LINK_COUNT(link->nic, copies_ring, 1);
    LINK_COUNT(link->nic, bytes_copied, len);
}

int udp_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS], const void *payload,
                   size_t len)
{
    const size_t header_len = sizeof(struct wire_header);
    uint8_t *p = link->small;
    uint64_t first = header[0] | (uint64_t)WIRE_FLAG_CRC << 8;
    memcpy(p, &first, 8);
    for (int i = 1; i < WIRE_WORDS; i++)
        memcpy(p + 8 * i, &header[i], 8);
    vk_copy_short(p + header_len, payload, len);
    uint32_t crc = vk_crc32c(0, p, header_len + len);
    memcpy(p + offsetof(struct wire_header, crc), &crc, sizeof crc);
    if (put_bytes(link, peer, p, header_len + len) == 0)
        return 0;
    count_gathered(link, len);
    return 1;
}

static int send_single(struct link *link, struct link_peer *peer, struct link_frame *f)
{
    checksum(f);
    if (vk_likely(f->payload_len <= UDP_SMALL)) { /* header and payload in one buffer */
        uint8_t *p = link->small;
        memcpy(p, &f->header, sizeof f->header);
        memcpy(p + sizeof f->header, &f->block, f->header_len - sizeof f->header);
        p += f->header_len;
        for (uint32_t i = 0; i < f->n_iov; i++) {
            memcpy(p, f->iov[i].iov_base, f->iov[i].iov_len);
            p += f->iov[i].iov_len;
        }
        count_gathered(link, f->payload_len);
        return put_bytes(link, peer, link->small, (size_t)(p - link->small));
    }
    struct iovec iov[MAX_IOV];
    size_t n = 2;
    iov[0] = (struct iovec){&f->header, sizeof f->header};
    iov[1] = (struct iovec){&f->block, f->header_len - sizeof f->header};
    for (uint32_t i = 0; i < f->n_iov && n < MAX_IOV; i++)
        iov[n++] = f->iov[i];
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = n};
    return put_message(link, peer, &m);
}

/* How many of the frames can be one super-frame: equal lengths, the last may be shorter. */
static int run_length(const struct link *link, const struct link_frame *frames, int n)
{
    size_t first = frames[0].header_len + frames[0].payload_len, total = first, iovs = 2 + frames[0].n_iov;
    int k = 1;
    while (k < n && k < MAX_BATCH) {
        size_t len = frames[k].header_len + frames[k].payload_len;
        iovs += 2 + frames[k].n_iov;
        if (len > first || total + len > link->super_bytes || iovs > MAX_IOV)
            break;
        total += len;
        k++;
        if (len < first)
            break;
    }
    return k;
}

/* Header, block and payload of each frame, one behind the other. Returns the pieces used. */
static size_t lay_out(struct link_frame *f, struct iovec *iov)
{
    size_t k = 0;
    checksum(f);
    iov[k++] = (struct iovec){&f->header, sizeof f->header};
    if (f->header_len > sizeof f->header)
        iov[k++] = (struct iovec){&f->block, f->header_len - sizeof f->header};
    for (uint32_t i = 0; i < f->n_iov; i++)
        iov[k++] = f->iov[i];
    return k;
}

static int send_super(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct iovec iov[MAX_IOV];
    union {
        struct cmsghdr head;
        uint8_t room[CMSG_SPACE(sizeof(uint16_t))];
    } control;
    uint16_t segment = (uint16_t)(frames[0].header_len + frames[0].payload_len);
    size_t k = 0;
    for (int i = 0; i < n; i++)
        k += lay_out(&frames[i], iov + k);
    memset(&control, 0, sizeof control);
    control.head =
        (struct cmsghdr){.cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof segment)};
    memcpy(CMSG_DATA(&control.head), &segment, sizeof segment);
    struct msghdr m = {
        .msg_iov = iov, .msg_iovlen = k, .msg_control = &control, .msg_controllen = CMSG_SPACE(sizeof segment)};
    int sent = put_message(link, peer, &m);
    if (sent == 1) {
        LINK_COUNT(link->nic, super_frames_sent, 1);
        peer->next_singles = 0;
    }
    return sent;
}

/* The same without segmentation: a datagram each, by one call. Returns how many were taken. */
static int send_many(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct iovec iov[MAX_IOV];
    struct mmsghdr m[MAX_BATCH];
    size_t k = 0;
    memset(m, 0, (size_t)n * sizeof *m);
    for (int i = 0; i < n; i++) {
        m[i].msg_hdr.msg_iov = iov + k;
        m[i].msg_hdr.msg_iovlen = lay_out(&frames[i], iov + k);
        k += m[i].msg_hdr.msg_iovlen;
        if (peer->lane == 0) {
            m[i].msg_hdr.msg_name = &peer->name;
            m[i].msg_hdr.msg_namelen = udp_name_len(&peer->name);
        }
    }
    LINK_COUNT(link->nic, system_calls, 1);
    int sent = sendmmsg(link->sockets[peer->lane].fd, m, (unsigned)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0)
        return sent;
    return judge(link, peer, errno, 0) !=
           0; /* an error concerns the first: lost, or what concerned an earlier one is out of the way */
}

/* The path, or the kernel, refused a super-frame: without them for a while, and longer each time. */
static void go_without(struct link_peer *peer)
{
    peer->next_singles = peer->next_singles ? peer->next_singles * 2 : SINGLES_FIRST;
    if (peer->next_singles > SINGLES_LONGEST)
        peer->next_singles = SINGLES_LONGEST;
    peer->singles = peer->next_singles;
}

int udp_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int done = 0;
    while (done < n) {
        int run = n - done == 1 ? 1 : run_length(link, frames + done, n - done), sent;
        if (run == 1)
            sent = send_single(link, peer, frames + done);
        else if (link->super_frames && peer->singles == 0) {
            sent = send_super(link, peer, frames + done, run);
            if (sent < 0) {
                go_without(peer);
                continue;
            }
            sent *= run;
        } else {
            peer->singles -= peer->singles != 0;
            sent = send_many(link, peer, frames + done, run);
        }
        if (sent <= 0)
            break;
        done += sent;
    }
    return done ? done : -EAGAIN;
}

/* ---------------------------------------------------------------- receiving */

/* Length of the frame at p, of which at most `left` bytes are there: what its header says, and what the link put behind it. */
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

/* One datagram, or several in one piece, from the peer of that name (NULL: unknown). */
static void deliver(struct link *link, struct link_peer *peer, const union udp_name *from, const uint8_t *p,
                    size_t left)
{
    do {
        size_t len = frame_len(p, left);
        int kind = len ? p[0] & 15 : 0;
        if (vk_unlikely(len >= sizeof(struct wire_header) && p[0] == wire_version_kind(0)))
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

/* By the common socket, or by a lane that is not quite one's own yet: the sender has to be looked up. */
static void deliver_from(struct link *link, const union udp_name *from, const uint8_t *p, size_t len)
{
    struct link_peer *peer = udp_find_peer(link, from);
    if (peer && peer->lane == 0 && ++peer->traffic >= LANE_AFTER) {
        if (link->n_lanes < UDP_LANES || peer->traffic % LANE_STEAL == 0)
            link->wants_lane = peer;
    }
    deliver(link, peer, from, p, len);
}

/* What ICMP brought about datagrams of the common socket. */
static void take_errors(struct link *link)
{
    link->errors = 0;
    for (int i = 0; i < 64; i++) {
        union udp_name to;
        uint8_t control[512];
        struct msghdr m = {
            .msg_name = &to, .msg_namelen = sizeof to, .msg_control = control, .msg_controllen = sizeof control};
        LINK_COUNT(link->nic, system_calls, 1);
        if (recvmsg(link->sockets[0].fd, &m, MSG_ERRQUEUE | MSG_DONTWAIT) < 0)
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

/* A receiving call said neither "here it is" nor "nothing". */
static void socket_error(struct link *link, const struct udp_socket *s, int error)
{
    if (s->peer == NULL)
        take_errors(link);
    else if (error == ECONNREFUSED)
        udp_refused(link, &s->peer->name);
}

/* One datagram. Returns 0 if there was none. */
static int take_one(struct link *link, struct udp_socket *s)
{
    union udp_name from;
    socklen_t from_len = sizeof from;
    int known = s->peer && !s->fresh;
    LINK_COUNT(link->nic, system_calls, 1);
    ssize_t len = known ? recv(s->fd, link->buffer, UDP_SLOT, MSG_DONTWAIT)
                        : recvfrom(s->fd, link->buffer, UDP_SLOT, MSG_DONTWAIT, &from.any, &from_len);
    if (vk_likely(len < 0)) {
        if (vk_unlikely(errno != EAGAIN))
            socket_error(link, s, errno);
        else
            s->fresh = 0; /* empty: from now on the kernel lets in none but its peer's */
        return 0;
    }
    if (known)
        deliver(link, s->peer, &s->peer->name, link->buffer, (size_t)len);
    else
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
    n = recvmmsg(s->fd, m, (unsigned)n, MSG_DONTWAIT, NULL);
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

static int look(struct link *link, int which, int budget)
{
    struct udp_socket *s = &link->sockets[which];
    /* The first look asks for one datagram: a program that waits for it gets it at once. Where there is always more, many at a time. */
    int n = s->streak < 2 ? take_one(link, s) : take_many(link, s, budget);
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

static void watch(struct link *link, int fd, int on)
{
    struct epoll_event e = {.events = EPOLLIN};
    epoll_ctl(link->epoll_fd, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, fd, &e);
    LINK_COUNT(link->nic, system_calls, 1);
}

void udp_close_lane(struct link *link, int lane)
{
    struct udp_socket *s = &link->sockets[lane];
    if (s->fd < 0)
        return;
    s->peer->lane = 0;
    s->peer->traffic = 0;
    close(s->fd); /* leaves epoll_fd by itself */
    *s = (struct udp_socket){.fd = -1};
    link->n_lanes--;
    if (link->hot == lane)
        link->hot = 0;
}

/* A free lane, or one on which nothing has come since the last search. 0: none. */
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
        while (take_one(link, &link->sockets[found])) {}
        udp_close_lane(link, found);
    }
    return found;
}

/* Order is kept: what came by the common socket is taken before the lane is looked at. Between bind and connect the kernel may put others'
 * datagrams into the lane; they are taken by name (fresh). */
static void open_lane(struct link *link, struct link_peer *peer)
{
    int lane = free_lane(link), one = 1;
    if (lane == 0 || peer->lane || peer->lost)
        return;
    int fd = socket(link->name.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return;
    udp_set_options(link, fd);
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof one) != 0 ||
        bind(fd, &link->name.any, udp_name_len(&link->name)) != 0 ||
        connect(fd, &peer->name.any, udp_name_len(&peer->name)) != 0) {
        close(fd);
        return;
    }
    link->sockets[lane] = (struct udp_socket){.fd = fd, .peer = peer, .fresh = 1};
    link->n_lanes++;
    if (link->registered)
        watch(link, fd, 1);
    while (take_one(link, &link->sockets[0])) {}
    peer->lane = (uint8_t)lane;
    link->hot = lane;
    while (take_one(link, &link->sockets[lane])) {}
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

/* The other sockets in turn. */
static int next_other(struct link *link)
{
    for (int i = 0; i <= UDP_LANES; i++) {
        link->other = link->other == UDP_LANES ? 0 : link->other + 1;
        if (link->other != link->hot && link->sockets[link->other].fd >= 0)
            return link->other;
    }
    return link->hot;
}

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

/* Somebody slept: what woke him may have come by any of the sockets, or have been an error alone, which must be taken or every sleep from now on
 * ends at once. */
static int look_everywhere(struct link *link, int budget)
{
    int n = 0;
    link->woken = 0;
    for (int i = 0; i <= UDP_LANES; i++)
        if (link->sockets[i].fd >= 0)
            n += look(link, i, budget);
    if (n == 0)
        link->errors = 1;
    return n;
}

int udp_poll(struct link *link, int budget)
{
    int n = vk_unlikely(link->woken) ? look_everywhere(link, budget) : look(link, link->hot, budget);
    if (link->n_lanes && ++link->looks % (link->n_lanes == 1 ? OTHERS_EVERY : 2) == 0)
        n += look(link, next_other(link), budget);
    if (vk_unlikely(link->errors || link->n_lost || link->wants_lane))
        rare(link);
    if (vk_unlikely(link->registered && !link->armed && ++link->looks_since_sleep > SLEEPLESS)) {
        /* nobody sleeps any more: senders shall not pay for waking */
        for (int i = 0; i <= UDP_LANES; i++)
            if (link->sockets[i].fd >= 0)
                watch(link, link->sockets[i].fd, 0);
        link->registered = 0;
    }
    return n;
}

int udp_arm(struct link *link)
{
    if (!link->registered)
        for (int i = 0; i <= UDP_LANES; i++)
            if (link->sockets[i].fd >= 0)
                watch(link, link->sockets[i].fd, 1);
    link->registered = link->armed = 1;
    link->looks_since_sleep = 0;
    return 0; /* what is there already makes the descriptor readable */
}

void udp_disarm(struct link *link)
{
    link->woken = link->armed;
    link->armed = 0;
}
