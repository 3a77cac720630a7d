/*
 * The `tcp` channel: packets on streams, with non-blocking sockets. Arriving data goes straight to the receive's buffer
 * if one is posted, unless the policy requires a copy. Short packets are read several at a time through a small stage.
 *
 *      stage:  | done | begin .. packets, perhaps a part of one .. end | free |
 *
 *      a packet:  | bytes of data, 8 | head 8 | rest 40, but for EAGER | data ... |
 *                 '------------- its front --------------------------'
 *
 * A connection is read in two states. in_body = 0: the next bytes are a front, which is parsed only once all of it is
 * in the stage. in_body = 1: the next in.len - got bytes are data. They go to in.to up to in.room, and the rest is
 * discarded. Writing is similar: rank->sent counts the bytes of the current packet that are on the stream, front
 * included. The same packet must be pushed again until all of it is sent.
 *
 * All rendezvous are R3 here: after CTS the data follows as one DATA packet of any length, from the sender's buffer
 * into the receiver's. There are no credits: the socket buffers are the window, and XOFF (arrival.c) bounds the data
 * that they admit.
 *
 * On a described machine the packets go by streams of it (base/streams.h), and the sockets only connect them.
 *
 * A connection ends when it is read to its end, never because a write failed: data that the peer sent before it exited
 * may still be in the socket. From then on fd is -1, and the rank is gone.
 */
#include "msg/tcp.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/streams.h"

#define FRONT_SHORT (8 + sizeof(struct msg_head))
#define FRONT_LONG (8 + sizeof(struct msg_packet))
#define AT_ONCE (8ul << 20) /* bytes passed to the kernel in one call, a limit so that other ranks get their turn */

static inline struct tc_rank *rank_of(struct msg_peer *peer)
{
    return peer->at;
}

static inline struct tc_world *tcp_of(msg_world *w)
{
    return w->at;
}

/* Ends a connection, once. A partly received packet is lost, and the rank is gone. */
static void close_connection(struct tc_rank *rank, const char *why)
{
    struct tc_world *t = tcp_of(rank->peer->world);
    if (rank->fd < 0)
        return;
    epoll_ctl(t->epoll, EPOLL_CTL_DEL, rank->fd, NULL);
    vk_streams()->close(rank->stream);
    rank->stream = NULL;
    close(rank->fd);
    rank->fd = -1;
    t->n_open--;
    if (rank->in_body)
        msg_arrival_lost(rank->peer, &rank->in);
    rank->in_body = 0;
    msg_peer_failed(rank->peer, why);
}

/* EPOLLOUT is requested only while data waits for room, because epoll would otherwise report it all the time. */
static void watch_out(struct tc_rank *rank, int on)
{
    struct epoll_event e = {.events = on ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.ptr = rank};
    /* The socket of a stream becomes readable when there is room. */
    if (rank->wants_out == on || rank->stream)
        return;
    rank->wants_out = on;
    epoll_ctl(tcp_of(rank->peer->world)->epoll, EPOLL_CTL_MOD, rank->fd, &e);
}

/* The result of a call on a stream as a socket's call returns it. */
static ssize_t as_call(ssize_t n)
{
    errno = n < 0 ? (int)-n : errno;
    return n < 0 ? -1 : n;
}

/* One call of the socket, or of the machine's stream: bytes moved, or -1 with errno. It does not block, except that a
 * rank of a described machine waits for its turn. */
static ssize_t send_some(struct tc_rank *rank, struct iovec *v, int n)
{
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    if (vk_unlikely(rank->stream != NULL))
        return as_call(vk_streams()->send(rank->stream, v, n));
    return sendmsg(rank->fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static ssize_t recv_some(struct tc_rank *rank, struct iovec *v, int n)
{
    struct msghdr m = {.msg_iov = v, .msg_iovlen = (size_t)n};
    if (vk_unlikely(rank->stream != NULL))
        return as_call(vk_streams()->recv(rank->stream, v, n));
    return recvmsg(rank->fd, &m, MSG_DONTWAIT);
}

/* ---------------------------------------------------------------- sending */

/* Sends the front (length and packet) and the data in one call, as much as the kernel accepts. Each try builds the
 * same front again. Returns 1, 0 or -1 as in channel.h. */
static int push(struct msg_peer *peer, struct msg_out *out)
{
    struct tc_rank *rank = rank_of(peer);
    char front[FRONT_LONG];
    uint64_t len = out->len;
    size_t packet_len = msg_packet_len(&out->packet), front_len = 8 + packet_len, whole = front_len + out->len;
    if (rank->fd < 0)
        return -1;
    memcpy(front, &len, 8);
    memcpy(front + 8, &out->packet, packet_len);
    while (rank->sent < whole) {
        struct iovec v[2];
        int n = 0;
        size_t data_sent = rank->sent > front_len ? rank->sent - front_len : 0;
        if (rank->sent < front_len)
            v[n++] = (struct iovec){front + rank->sent, front_len - rank->sent};
        /* The data continues where the last call stopped. Both parts go in one call if the front has not been sent
         * yet. */
        if (out->len > data_sent)
            v[n++] = (struct iovec){(char *)(uintptr_t)out->data + data_sent,
                                    out->len - data_sent < AT_ONCE ? out->len - data_sent : AT_ONCE};
        ssize_t sent = send_some(rank, v, n);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == ENOBUFS)) {
            out->sent = data_sent ? data_sent : rank->sent != 0; /* a send that has begun cannot be withdrawn */
            watch_out(rank, 1);
            return 0;
        }
        if (sent < 0) {
            /* Data that the peer sent before it exited may still be readable, so the end is detected there. */
            return peer->gone ? -1 : 0;
        }
        rank->sent += (size_t)sent;
    }
    rank->sent = 0;
    watch_out(rank, 0);
    return 1;
}

/* ---------------------------------------------------------------- receiving */

/* The current packet is complete. in_body is reset first, because the next call may end the connection, which must
 * not lose the packet twice. */
static void body_done(struct tc_rank *rank)
{
    rank->in_body = 0;
    msg_arrival_done(rank->peer, &rank->in);
}

/* Copies n bytes of the body from the stage. If `from` is NULL, they have already been read to their destination.
 * Data beyond in->room is discarded: the receive's buffer is shorter, or no receive wants the data. */
static void take_body(struct tc_rank *rank, const char *from, size_t n)
{
    struct msg_in *in = &rank->in;
    if (from && in->to && rank->got < in->room)
        memcpy(in->to + rank->got, from, rank->got + n < in->room ? n : in->room - rank->got);
    rank->got += n;
    if (rank->got == in->len)
        body_done(rank);
}

/* Handles packets in the stage, up to an incomplete one. Returns how many began. Stops once *enough is set, and
 * after a packet has ended the connection. A front is read in two steps, because the kind in the head determines its
 * length. */
static int parse(struct tc_rank *rank, const uint8_t *enough)
{
    int n = 0;
    for (;;) {
        size_t there = rank->end - rank->begin;
        const char *at = rank->stage + rank->begin;
        if (rank->in_body) {
            size_t want = rank->in.len - rank->got, take = want < there ? want : there;
            if (take == 0)
                return n;
            rank->begin += take;
            take_body(rank, at, take);
        } else {
            struct msg_packet p = {.rest = {0}};
            uint64_t len;
            if (there < FRONT_SHORT)
                return n;
            memcpy(&len, at, 8);
            memcpy(&p.head, at + 8, sizeof p.head);
            size_t front = (p.head.kind & MSG_PKT_MASK) == MSG_PKT_EAGER ? FRONT_SHORT : FRONT_LONG;
            if (there < front)
                return n;
            memcpy(&p, at + 8, front - 8);
            rank->begin += front;
            rank->got = 0;
            rank->in_body = 1;
            msg_arriving(rank->peer, &p, len, &rank->in);
            n++;
            if (len == 0)
                body_done(rank);
        }
        if (rank->fd < 0 || (enough && *enough))
            return n;
    }
}

/* One read: the rest of the body to its destination, and the bytes after it into the stage by the same call. Outside
 * a body, all bytes go into the stage. Returns 1 for data, 0 for none, -1 if the peer has closed the connection. */
static int fill(struct tc_rank *rank)
{
    char nowhere[16384];
    struct iovec v[2];
    int n = 0;
    size_t direct = 0;
    /* Makes room in the stage. An empty stage starts again at its front. Otherwise the remainder, less than one
     * front, is moved there when the end is reached. */
    if (rank->begin == rank->end)
        rank->begin = rank->end = 0;
    else if (rank->begin && rank->end == TC_STAGE) {
        memmove(rank->stage, rank->stage + rank->begin, rank->end - rank->begin);
        rank->end -= rank->begin;
        rank->begin = 0;
    }
    if (rank->in_body) { /* the stage is empty then */
        size_t left = rank->in.len - rank->got, room = rank->got < rank->in.room ? rank->in.room - rank->got : 0;
        if (rank->in.to && room) {
            direct = left < room ? left : room;
            direct = direct < AT_ONCE ? direct : AT_ONCE;
            v[n++] = (struct iovec){rank->in.to + rank->got, direct};
        } else {
            direct = left < sizeof nowhere ? left : sizeof nowhere;
            v[n++] = (struct iovec){nowhere, direct};
        }
        /* Only if the rest of the body fits this call: otherwise the next bytes are body, too. */
        if (direct == left)
            v[n++] = (struct iovec){rank->stage, TC_STAGE};
    } else
        v[n++] = (struct iovec){rank->stage + rank->end, TC_STAGE - rank->end};
    ssize_t got = recv_some(rank, v, n);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (got == 0)
        return -1;
    size_t body = rank->in_body ? ((size_t)got < direct ? (size_t)got : direct) : 0;
    rank->end += (size_t)got - body;
    if (body)
        take_body(rank, NULL, body);
    return 1;
}

/* Reads and handles packets from a rank. Returns the number of events: packets, parts of one, the end. Reads at most
 * four times, so that a rank that sends constantly does not starve the others. */
static int receive(struct tc_rank *rank, const uint8_t *enough)
{
    int n = rank->begin != rank->end ? parse(rank, enough) : 0;
    for (int round = 0; round < 4 && rank->fd >= 0 && !(enough && *enough); round++) {
        int came = fill(rank);
        if (came < 0) {
            close_connection(rank, rank->peer->world->policy.route == MSG_ROUTE_DAEMON
                                       ? "the way to it by the daemons has ended"
                                       : "the connection was closed");
            return n + 1;
        }
        if (came == 0)
            break;
        n += 1 + parse(rank, enough);
    }
    tcp_of(rank->peer->world)->leftover |= rank->begin != rank->end;
    return n;
}

/* A few connections are read one by one, which saves a system call each time. For more connections epoll reports the
 * readable ones first.
 *
 * epoll reports bytes in sockets but not in stages, hence `leftover`. */
static int progress(msg_world *w, const uint8_t *enough)
{
    struct tc_world *t = tcp_of(w);
    int n = 0;
    if (w->n_ranks - 1 <= TC_POLLED_MOST || t->streams) {
        for (int i = 0; i < w->n_ranks; i++)
            if (i != w->rank && t->ranks[i].fd >= 0) {
                n += receive(&t->ranks[i], enough);
                if (enough && *enough)
                    break;
            }
        return n;
    }
    if (t->leftover) { /* data already read but not parsed, because `enough` was set */
        t->leftover = 0;
        for (int i = 0; i < w->n_ranks; i++)
            if (i != w->rank && t->ranks[i].begin != t->ranks[i].end) {
                n += parse(&t->ranks[i], enough);
                t->leftover |= t->ranks[i].begin != t->ranks[i].end;
            }
        if (enough && *enough)
            return n;
    }
    struct epoll_event events[32];
    int ready = epoll_wait(t->epoll, events, 32, 0);
    for (int i = 0; i < ready; i++) {
        struct tc_rank *rank = events[i].data.ptr;
        /* EPOLLOUT alone needs no reading: msg_step pushes the rank's queue afterwards. Reading detects errors and
         * ends. */
        if ((events[i].events & ~(uint32_t)EPOLLOUT) && rank->fd >= 0)
            n += receive(rank, enough);
        if (enough && *enough)
            return n;
    }
    return n;
}

/* Called without the lock. The events are still there for the next progress, so wake needs no data. */
static void channel_sleep(msg_world *w, uint64_t ns, struct msg_token *token)
{
    struct tc_world *t = tcp_of(w);
    struct epoll_event event;
    (void)token;
    epoll_wait(t->epoll, &event, 1, (int)((ns + VK_MS - 1) / VK_MS));
}

static void wake(msg_world *w, struct msg_token *token)
{
    (void)w;
    (void)token;
}

/* Valid as long as the channel is open. */
static const char *route(struct msg_peer *peer)
{
    return rank_of(peer) ? rank_of(peer)->route : "tcp";
}

const struct msg_channel msg_channel_tcp = {
    .name = "tcp",
    .open = tc_open,
    .close = tc_close,
    .push = push,
    .progress = progress,
    .sleep = channel_sleep,
    .wake = wake,
    .route = route,
};
