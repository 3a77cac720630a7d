/*
 * The daemon of a host, as lamd and pvmd were. All messages of its ranks go through it, in datagrams between hosts:
 *
 *      rank a === socket pairs ===  daemon  === UDP, acknowledged ===  daemon  === socket pairs === rank b
 *      rank a === socket pairs ===  daemon  === socket pairs === rank c                 (a and c on one host)
 *
 * A datagram has at most daemon_bytes of one stream (policy.h), its offset, and the key of the job. The receiver writes
 * the data to the rank if it is next and there is room, and replies with the offset up to which it has written. So the
 * rank's socket buffer is the window, and nothing is stored at the receiver. A sender without an acknowledgement goes
 * back to the acknowledged offset, after a pause that doubles. It gives up a peer that is silent for GIVE_UP.
 *
 * The daemon ends when all its ranks have closed their ends and the other daemons have acknowledged everything. If a
 * rank dies, the kernel closes its ends, and each stream ends behind the data that the rank has written. If the daemon
 * dies, its ranks read the end of all streams, and the other daemons give up. From fork to exit it calls only functions
 * that are safe in handlers, because the program may have had threads.
 */
#include "msg/tcp_daemon.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/blake2s.h"

#define PAUSE_MOST (250 * VK_MS)      /* the doubled pause ends here, so a path that works again is found soon */
#define GIVE_UP (10 * VK_SECOND)      /* as direct connections of channel tcp (tcp_open.c: USER_TIMEOUT_MS) */
#define HANDOVER_FOR (60 * VK_SECOND) /* as the default time for opening a world (msg.h: open_timeout_ms) */
#define LINGER (300 * VK_MS)          /* acknowledges what is repeated after the end */

enum { FLAG_DATA = 1, FLAG_END = 2, FLAG_ROOM = 4 }; /* ROOM: send again what had no room */

/* The header of every datagram, in host byte order (packet.h). `acked` belongs to the other direction: the sender has
 * written the peer's stream to its rank up to there. */
struct datagram {
    uint8_t key[16];
    uint32_t from, to, len, flags;
    uint64_t offset, acked;
};
_Static_assert(sizeof(struct datagram) == 48, "no padding: it travels as it lies");

static const char label[] = "viakit tcp daemon";

/* Computed by the rank and by the daemon. The numbers are part of it, so the fields of a handover cannot be changed on
 * the way; the nonce, so that a handover cannot be repeated later. */
void td_proof(const uint8_t secret[MSG_SECRET_LEN], const uint8_t nonce[TD_NONCE], const struct td_handover *h,
              uint8_t proof[TD_PROOF])
{
    uint32_t numbers[3] = {h->rank, h->first, h->n};
    struct vk_blake2s s;
    vk_blake2s_begin(&s, secret, MSG_SECRET_LEN);
    vk_blake2s_add(&s, label, sizeof label);
    vk_blake2s_add(&s, nonce, TD_NONCE);
    vk_blake2s_add(&s, numbers, sizeof numbers);
    vk_blake2s_end(&s, proof);
}

/* The stream from a rank of this host to another rank. NULL for any other pair: the numbers may come from another
 * process. */
static struct td_stream *stream_of(const struct td_plan *p, uint32_t rank, uint32_t peer)
{
    return rank < (uint32_t)p->n_ranks && peer < (uint32_t)p->n_ranks && rank != peer && p->local[rank] >= 0
               ? &p->streams[(size_t)p->local[rank] * (size_t)p->n_ranks + peer]
               : NULL;
}

/* Returns 1 if the stream goes to another host, so by datagrams. */
static int is_remote(const struct td_plan *p, const struct td_stream *s)
{
    return p->local[s->peer] < 0;
}

/* ---------------------------------------------------------------- handovers */

/* Takes the descriptors of one handover, if its proof is right. Returns how many. */
static int take_handover(struct td_plan *p, int fd, const uint8_t nonce[TD_NONCE])
{
    struct td_handover h;
    char control[CMSG_SPACE(TD_AT_ONCE * sizeof(int))];
    struct iovec v = {&h, sizeof h};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    uint8_t right[TD_PROOF];
    int fds[TD_AT_ONCE], n = 0, taken = 0;
    ssize_t got = recvmsg(fd, &m, MSG_CMSG_CLOEXEC | MSG_WAITALL);
    const struct cmsghdr *c = got > 0 ? CMSG_FIRSTHDR(&m) : NULL;
    if (c && c->cmsg_type == SCM_RIGHTS) {
        n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), (size_t)n * sizeof(int));
    }
    if (got == (ssize_t)sizeof h) {
        td_proof(p->secret, nonce, &h, right);
        for (uint32_t peer = h.first; vk_equal_secret(right, h.proof, sizeof right) && taken < n; peer++) {
            struct td_stream *s = stream_of(p, h.rank, peer);
            if (peer >= (uint32_t)p->n_ranks)
                break;
            /* A stream keeps its first descriptor: a handover that is repeated must not replace it. */
            if (s && s->fd < 0)
                s->fd = fds[taken++];
        }
    }
    /* Also those of a wrong proof: this process must not run out of descriptors by them. */
    for (int i = taken; i < n; i++)
        close(fds[i]);
    return taken;
}

/* Returns 1 if the caller is a process of the job's user. Others could keep the daemon busy by silence, up to 2 s
 * each. */
static int is_same_user(int fd)
{
    struct ucred caller;
    socklen_t len = sizeof caller;
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &caller, &len) == 0 && caller.uid == geteuid();
}

/* Each caller gets a nonce, and replies at once with its handovers. Returns 0, or -1 after HANDOVER_FOR. */
static int accept_handovers(struct td_plan *p, int n_expected)
{
    uint64_t until = vk_now() + HANDOVER_FOR;
    while (n_expected > 0) {
        struct pollfd one = {.fd = p->listener, .events = POLLIN};
        struct timeval limit = {2, 0}; /* of a silent caller */
        uint8_t nonce[TD_NONCE];
        int n = 0, fd;
        if (vk_now() > until)
            return -1;
        /* Wakes ten times a second, to notice that the time is over. */
        if (poll(&one, 1, 100) <= 0 || (fd = accept(p->listener, NULL, NULL)) < 0)
            continue;
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        if (is_same_user(fd) && vk_random_bytes(nonce, sizeof nonce) == 0 &&
            send(fd, nonce, sizeof nonce, MSG_NOSIGNAL) == (ssize_t)sizeof nonce)
            while ((n = take_handover(p, fd, nonce)) > 0)
                n_expected -= n;
        close(fd);
    }
    close(p->listener);
    return 0;
}

/* ---------------------------------------------------------------- datagrams */

/* Sends len bytes of the stream from `offset` on, or none, and always the acknowledgement of the other direction. The
 * bytes may wrap around the end of the ring, hence two pieces. */
static void send_datagram(const struct td_plan *p, const struct td_stream *s, uint64_t offset, uint32_t len,
                          uint32_t flags)
{
    struct datagram d = {
        .from = s->rank, .to = s->peer, .len = len, .flags = flags, .offset = offset, .acked = s->received};
    size_t at = offset % TD_WINDOW, first = len < TD_WINDOW - at ? len : TD_WINDOW - at;
    struct iovec v[3] = {{&d, sizeof d}, {s->bytes + at, first}, {s->bytes, len - first}};
    const struct tc_card *card = &p->hosts[s->peer];
    struct msghdr m = {
        .msg_name = (void *)(uintptr_t)&card->address, .msg_namelen = card->len, .msg_iov = v, .msg_iovlen = 3};
    memcpy(d.key, p->key, sizeof d.key);
    sendmsg(p->udp, &m, MSG_DONTWAIT | MSG_NOSIGNAL); /* one that fails is lost, and repeated */
}

/* The offset at which the stream is complete: the end counts as a byte. */
static uint64_t goal_of(const struct td_stream *s)
{
    return s->read + s->ended;
}

/* Whether as many bytes are under way as the permitted datagrams have. If one is permitted, it may be a short one. */
static int window_is_full(const struct td_plan *p, const struct td_stream *s)
{
    return p->packets && (s->sent - s->acked + p->packet - 1) / p->packet >= p->packets;
}

/* Sends what has been read and not sent. take_ack() sends what a full window has held back. */
static void send_stream(const struct td_plan *p, struct td_stream *s)
{
    while (s->sent < goal_of(s) && !window_is_full(p, s)) {
        uint64_t left = s->read - s->sent;
        uint32_t len = (uint32_t)(left < p->packet ? left : p->packet);
        /* Nothing was under way: the peer's silence counts from now on, not from its last acknowledgement. */
        if (s->sent == s->acked && s->resend_at == VK_NEVER) {
            s->resend_at = vk_now() + s->pause;
            s->heard_at = vk_now();
        }
        send_datagram(p, s, s->sent, len, len ? FLAG_DATA : FLAG_END);
        s->sent += len ? len : 1;
    }
}

/* The peer's daemon is gone: the rank reads the end. */
static void give_up(struct td_stream *s)
{
    if (s->fd >= 0)
        close(s->fd);
    s->fd = -1;
    s->ended = s->peer_ended = 1;
    s->acked = s->sent = goal_of(s);
    s->resend_at = VK_NEVER;
}

/* An acknowledgement ends the wait that has doubled, and makes room in the ring. */
static void take_ack(const struct td_plan *p, struct td_stream *s, uint64_t acked)
{
    s->heard_at = vk_now();
    if (acked <= s->acked || acked > goal_of(s)) /* a late one, or an invented one */
        return;
    s->sent = s->sent > acked ? s->sent : acked; /* beyond `sent`, if the bytes were sent before going back */
    s->acked = acked;
    s->pause = TD_PAUSE;
    s->resend_at = s->acked < s->sent ? vk_now() + s->pause : VK_NEVER;
    send_stream(p, s);
}

/* Writes data that is next to the rank, and replies. Data for a rank that has gone is discarded.
 *
 *     offset ....... received ....... offset + len     the first part is here already, from an earlier datagram
 *
 * Data beyond `received` is dropped: a datagram before it was lost, and the sender goes back. There is a reply in every
 * case, because a copy shows that an acknowledgement was lost. */
static void take_data(const struct td_plan *p, struct td_stream *s, const struct datagram *d, const char *data)
{
    if (d->flags == FLAG_DATA && d->offset <= s->received && s->received - d->offset < d->len) {
        size_t skip = s->received - d->offset;
        ssize_t n = -1;
        if (s->fd >= 0)
            n = send(s->fd, data + skip, d->len - skip, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0)
            s->received += (uint64_t)n;
        else if (s->fd < 0 || (errno != EAGAIN && errno != EINTR))
            s->received += d->len - skip;
        /* The rank reads too slowly. When its socket has room, FLAG_ROOM makes the peer send the rest at once
         * (serve). */
        s->full = s->received < d->offset + d->len;
    } else if (d->flags == FLAG_END && d->offset == s->received) {
        if (s->fd >= 0)
            shutdown(s->fd, SHUT_WR);
        s->peer_ended = 1;
        s->received++;
    }
    send_datagram(p, s, s->sent, 0, 0);
}

/* At most 64 at a time, so that the ranks' ends are served under a flood. A datagram is dropped unless it has the job's
 * key, its whole data, and names a stream between this host and another. */
static void receive_datagrams(const struct td_plan *p)
{
    for (int i = 0; i < 64; i++) {
        struct datagram d;
        char data[TD_PACKET];
        struct iovec v[2] = {{&d, sizeof d}, {data, sizeof data}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        ssize_t got = recvmsg(p->udp, &m, MSG_DONTWAIT);
        if (got < 0)
            return;
        if (got < (ssize_t)sizeof d || !vk_equal_secret(d.key, p->key, sizeof d.key) || (size_t)got - sizeof d != d.len)
            continue;
        struct td_stream *s = stream_of(p, d.to, d.from);
        if (s == NULL || !is_remote(p, s))
            continue;
        take_ack(p, s, d.acked);
        /* The peer had no room for what was sent behind `acked`, and dropped it. */
        if (d.flags == FLAG_ROOM) {
            s->sent = s->acked;
            send_stream(p, s);
        } else if (d.flags)
            take_data(p, s, &d, data);
    }
}

/* ---------------------------------------------------------------- the ranks' ends */

/* Reads from the rank as much as the window has room for. */
static void read_rank(struct td_stream *s)
{
    size_t at = s->read % TD_WINDOW, room = TD_WINDOW - (size_t)(s->read - s->acked);
    /* From `at` to the end of the ring, then from its beginning. There is room, because prepare_polls polls for input
     * only then. */
    struct iovec v[2] = {{s->bytes + at, room < TD_WINDOW - at ? room : TD_WINDOW - at}, {s->bytes, 0}};
    v[1].iov_len = room - v[0].iov_len;
    ssize_t n = readv(s->fd, v, 2);
    if (n > 0)
        s->read += (uint64_t)n;
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        s->ended = 1;
}

/* A stream within the host: `acked` bytes are written to the other rank. */
static void write_rank(struct td_stream *s)
{
    while (s->acked < s->read) {
        size_t at = s->acked % TD_WINDOW, n = (size_t)(s->read - s->acked);
        ssize_t done = send(s->to, s->bytes + at, n < TD_WINDOW - at ? n : TD_WINDOW - at, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (done < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        s->acked += done > 0 ? (uint64_t)done : s->read - s->acked; /* the data has no receiver */
    }
    if (s->ended && s->acked == s->read) {
        shutdown(s->to, SHUT_WR);
        s->acked++;
    }
    s->sent = s->acked;
}

/* Whether the stream needs this process no more: the rank has closed its end, all of it is acknowledged, and (between
 * hosts) the other direction has ended, too. */
static int is_over(const struct td_plan *p, const struct td_stream *s)
{
    return s->ended && s->acked == goal_of(s) && (!is_remote(p, s) || s->peer_ended);
}

/* ---------------------------------------------------------------- the loop */

/* Repeats what is due. Returns the time of the next repetition, and sets *left to the number of streams in use. */
static uint64_t run_timers(struct td_plan *p, int *left)
{
    uint64_t next = VK_NEVER, now = vk_now();
    *left = 0;
    for (int i = 0; i < p->n_streams; i++) {
        struct td_stream *s = &p->streams[i];
        if (s->rank == s->peer)
            continue;
        if (s->resend_at <= now && now - s->heard_at > GIVE_UP)
            give_up(s);
        else if (s->resend_at <= now) {
            /* Back to the oldest byte that is not acknowledged: the receiver stores nothing that is out of order. */
            s->sent = s->acked;
            s->pause = 2 * s->pause < PAUSE_MOST ? 2 * s->pause : PAUSE_MOST;
            s->resend_at = now + s->pause;
            send_stream(p, s);
        }
        next = s->resend_at < next ? s->resend_at : next;
        *left += !is_over(p, s);
    }
    return next;
}

/* Sets the events that each stream waits for. A stream within the host is either read or written: new bytes are read
 * only when all earlier ones are written, so one entry serves both. poll() ignores an fd of -1. */
static void prepare_polls(struct td_plan *p)
{
    p->polls[p->n_streams] = (struct pollfd){.fd = p->udp, .events = POLLIN};
    for (int i = 0; i < p->n_streams; i++) {
        const struct td_stream *s = &p->streams[i];
        int remote = is_remote(p, s), pending = !remote && s->acked < s->read;
        int reads = !s->ended && s->read - s->acked < TD_WINDOW && !pending;
        short events = (short)((reads ? POLLIN : 0) | (pending || s->full ? POLLOUT : 0));
        p->polls[i] = (struct pollfd){.fd = pending ? s->to : events ? s->fd : -1, .events = events};
    }
}

/* The rank's end is readable, or has room. */
static void serve(const struct td_plan *p, struct td_stream *s, const struct pollfd *events)
{
    if (s->full && (events->revents & ~POLLIN)) {
        s->full = 0;
        send_datagram(p, s, s->sent, 0, FLAG_ROOM);
    }
    if ((events->events & POLLIN) && (events->revents & ~POLLOUT))
        read_rank(s);
    if (is_remote(p, s))
        send_stream(p, s);
    else
        write_rank(s);
}

/* The daemon's life: handovers, then one loop of poll(2) until no stream is in use, then LINGER. The order within a
 * round:
 *
 *     receive_datagrams, run_timers, prepare_polls, poll, serve
 *
 * Returns when the daemon may exit. Never blocks in a call but poll and, during handovers, accept and recv with time-
 * outs. */
void td_run(struct td_plan *p)
{
    uint64_t linger = 0;
    int n_local = p->n_streams / p->n_ranks;
    if (accept_handovers(p, n_local * (p->n_ranks - 1)) != 0)
        return;
    for (int i = 0; i < p->n_streams; i++)
        if (p->streams[i].rank != p->streams[i].peer && !is_remote(p, &p->streams[i]))
            p->streams[i].to = stream_of(p, p->streams[i].peer, p->streams[i].rank)->fd;
    for (;;) {
        int left;
        receive_datagrams(p); /* first, because an acknowledgement may be here that is due */
        uint64_t next = run_timers(p, &left), now = vk_now();
        if (left == 0 && linger == 0)
            linger = now + LINGER;
        if (left == 0 && now >= linger)
            return;
        next = left == 0 && linger < next ? linger : next;
        prepare_polls(p);
        int ms = next == VK_NEVER ? -1 : next <= now ? 0 : (int)((next - now + VK_MS - 1) / VK_MS);
        if (poll(p->polls, (nfds_t)p->n_streams + 1, ms) < 0) {
            if (errno == EINTR)
                continue;
            return; /* more streams than descriptors are permitted */
        }
        for (int i = 0; i < p->n_streams; i++) {
            struct td_stream *s = &p->streams[i];
            if (p->polls[i].revents == 0 || p->polls[i].fd < 0)
                continue;
            serve(p, s, &p->polls[i]);
        }
    }
}
