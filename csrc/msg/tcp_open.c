/*
 * Opening and closing the `tcp` channel. Every rank listens, sends its address to all others by the launcher's
 * exchange, and connects with each of them (tcp_meet.c).
 *
 * The kernel completes calls that have not been accepted yet, as many as the backlog holds (SOMAXCONN), so no order is
 * needed among the ranks.
 *
 *     tc_open:  make_ranks, listen_at        this rank alone
 *               msg_allgather of cards       all ranks: address, or failed
 *               tc_meet                      a connection for each pair
 *               tc_relay_start               route=daemon: replaces the connections by ways through daemons
 *               open_streams                 described machine: streams instead of the sockets' own transport
 *               watch_ranks                  epoll
 *
 * Invariant: w->at and the fields that tc_close reads are valid from make_ranks on, so every failure ends in tc_close.
 * fd is -1 unless this channel owns an open socket.
 *
 * Called by the thread that opens or closes the world. Opening blocks until its deadline at most; closing does not
 * block (no SO_LINGER is set).
 */
#include "msg/tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/streams.h"
#include "msg/tcp_meet.h"

/* TCP_USER_TIMEOUT: with unacknowledged data this old the other host counts as gone. docs/messages.md promises 10 s. */
#define USER_TIMEOUT_MS 10000

/* A system call failed: returns MSG_ERR_CHANNEL with a text, from errno. */
static int failed(msg_world *w, const char *what)
{
    return msg_fail(w, MSG_ERR_CHANNEL, "%s: %s", what, strerror(errno));
}

/* ---------------------------------------------------------------- addresses */

/* Parses a numeric address; the port is 0. Returns 0 or -1. */
static int parse(const char *text, union tc_address *a, uint32_t *len)
{
    memset(a, 0, sizeof *a);
    if (inet_pton(AF_INET, text, &a->in.sin_addr) == 1) {
        a->any.sa_family = AF_INET;
        *len = sizeof a->in;
        return 0;
    }
    if (inet_pton(AF_INET6, text, &a->in6.sin6_addr) == 1) {
        a->any.sa_family = AF_INET6;
        *len = sizeof a->in6;
        return 0;
    }
    return -1;
}

/* Finds the first address of this host that is not a loopback address and whose interface is up, IPv4 before IPv6.
 * On a host with several networks it may be the wrong one: then set `address` in the options. */
static int own_address(union tc_address *a, uint32_t *len)
{
    struct ifaddrs *all, *i;
    int found = -1;
    if (getifaddrs(&all) != 0)
        return -1;
    for (int family = AF_INET; found && family != 0; family = family == AF_INET ? AF_INET6 : 0)
        for (i = all; found && i; i = i->ifa_next)
            if (i->ifa_addr && i->ifa_addr->sa_family == family && !(i->ifa_flags & IFF_LOOPBACK) &&
                (i->ifa_flags & IFF_UP)) {
                *len = family == AF_INET ? sizeof a->in : sizeof a->in6;
                memcpy(a, i->ifa_addr, *len);
                found = 0;
            }
    freeifaddrs(all);
    return found;
}

/* Chooses the address at which this rank listens: the option's, the loopback's if all ranks are on this host or on a
 * described machine, else the host's first. The port is 0, so the kernel assigns one. Returns 0 or an error. */
static int find_address(msg_world *w, const msg_options *o, union tc_address *a, uint32_t *len)
{
    if (o->address) {
        if (parse(o->address, a, len) != 0)
            return msg_fail(w, MSG_ERR_ARG, "address '%.60s': a numeric IPv4 or IPv6 address of this host is needed",
                            o->address);
    } else if (w->n_local == w->n_ranks || msg_on_machine()) {
        parse("127.0.0.1", a, len);
    } else if (own_address(a, len) != 0)
        return msg_fail(w, MSG_ERR_CHANNEL,
                        "this host has no address but the loopback's: ranks on other hosts cannot reach it");
    return 0;
}

/* Returns 1 if the address is one that listen_at() makes. connect() gets it and its length unchecked. */
static int is_address(const union tc_address *a, uint32_t len)
{
    return (a->any.sa_family == AF_INET && len == sizeof a->in) ||
           (a->any.sa_family == AF_INET6 && len == sizeof a->in6);
}

/* Writes the rank's route, "tcp ADDRESS:PORT", for msg_peer_route. */
static void describe(struct tc_rank *rank, const union tc_address *a)
{
    char host[INET6_ADDRSTRLEN] = "?";
    int six = a->any.sa_family == AF_INET6;
    inet_ntop(a->any.sa_family, six ? (const void *)&a->in6.sin6_addr : (const void *)&a->in.sin_addr, host,
              sizeof host);
    snprintf(rank->route, sizeof rank->route, "tcp %s:%u", host, ntohs(six ? a->in6.sin6_port : a->in.sin_port));
}

/* ---------------------------------------------------------------- sockets */

/* Returns the length in bytes that the policy requests, 0: none. The kernel, or the machine, limits it to its maximum,
 * so 2^30 stands for the longest allowed. LAM's buffers hold the longest short message and an envelope (Ong and
 * Farrell,
 * 4.2). The paper does not give the envelope's size: 24 bytes stand for it. */
static int buffer_length(const msg_world *w)
{
    int64_t wanted = w->policy.socket_buffer;
    if (wanted == MSG_BUFFERS_FOLLOW)
        wanted = w->policy.eager_limit + 24;
    return wanted < 0 || wanted > 1 << 30 ? 1 << 30 : (int)wanted;
}

/* Called before the connection is made, because the window scale is fixed then. A listener's sockets inherit the
 * length, and a caller sets it before connect. 0 keeps the kernel's automatic tuning, which an explicit length would
 * turn off. */
void tc_set_buffers(const msg_world *w, int fd)
{
    int len = buffer_length(w);
    if (len) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &len, sizeof len);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &len, sizeof len);
    }
}

/* Keepalive detects a vanished host while this rank only receives: a probe after 5 s of silence, then one every
 * second. USER_TIMEOUT detects it while this rank sends. Together they take ten seconds, as docs/messages.md
 * promises. */
void tc_set_options(const msg_world *w, int fd)
{
    int nodelay = w->policy.nodelay != 0, on = 1, idle = 5, interval = 1; /* the last two in seconds */
    unsigned user_timeout_ms = USER_TIMEOUT_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof user_timeout_ms);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* Returns a listening socket, and the address with the port that the kernel has assigned; or -1 with errno. */
static int listen_at(msg_world *w, union tc_address *a, uint32_t *len)
{
    socklen_t size = sizeof *a;
    int fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    tc_set_buffers(w, fd);
    if (bind(fd, &a->any, *len) != 0 || listen(fd, SOMAXCONN) != 0 || getsockname(fd, &a->any, &size) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *len = size;
    return fd;
}

/* ---------------------------------------------------------------- opening and closing */

/* Allocates the channel's structs and the stage of each other rank. Returns 0 or an error; tc_close frees what was
 * made. */
static int make_ranks(msg_world *w)
{
    struct tc_world *t = calloc(1, sizeof *t);
    if (t == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    w->at = t;
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    t->ranks = calloc((size_t)w->n_ranks, sizeof *t->ranks);
    for (int i = 0; t->ranks && i < w->n_ranks; i++) {
        struct tc_rank *r = &t->ranks[i];
        /* From the beginning, so that tc_close may be called at any time. */
        r->fd = -1;
        r->peer = &w->peers[i];
        w->peers[i].at = r;
        w->peers[i].eager_limit = msg_rendezvous_threshold(w, 0, SIZE_MAX);
        if (i != w->rank && (r->stage = malloc(TC_STAGE)) == NULL)
            return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    }
    return t->epoll >= 0 && t->ranks ? 0 : failed(w, "epoll_create1");
}

/* Adds all connections to epoll. Returns 0 or an error. */
static int watch_ranks(msg_world *w)
{
    struct tc_world *t = w->at;
    for (int i = 0; i < w->n_ranks; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &t->ranks[i]};
        /* EPOLLIN only: EPOLLOUT is requested when data waits for room (tcp.c: watch_out). */
        if (i != w->rank && epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->ranks[i].fd, &e) != 0)
            return failed(w, "epoll_ctl");
    }
    return 0;
}

/* On a described machine: opens this rank's end of a stream on each connection. Daemons are no processes there, because
 * a process would need a clock and turns. The stream has their costs. */
static int open_streams(msg_world *w)
{
    struct tc_world *t = w->at;
    int64_t bytes = w->policy.daemon_bytes, packets = w->policy.daemon_packets;
    struct vk_daemons daemons = {bytes, packets ? packets : MSG_DAEMON_WINDOW / bytes};
    const struct vk_daemons *way = w->policy.route == MSG_ROUTE_DAEMON ? &daemons : NULL;
    char name[32];
    snprintf(name, sizeof name, "msg-%.16s", w->job);
    t->streams = 1;
    for (int i = 0; i < w->n_ranks; i++) {
        struct tc_rank *r = &t->ranks[i];
        if (i != w->rank && vk_streams()->open(name, r->fd, buffer_length(w), way, &r->stream) != 0)
            return msg_fail(w, MSG_ERR_CHANNEL, "%s", viakit_last_error());
    }
    return 0;
}

/* A rank that fails before the exchange still takes part in it, and reports its failure on its card. Otherwise the
 * others would wait for it until their deadline. Returns 0, or an error with nothing left open. */
int tc_open(msg_world *w, const msg_options *o)
{
    struct tc_card *cards = calloc((size_t)w->n_ranks, sizeof *cards), own;
    memset(&own, 0, sizeof own);
    int code = cards ? make_ranks(w) : msg_fail(w, MSG_ERR_NO_MEMORY, "no memory"), listener = -1;
    if (code == 0)
        code = find_address(w, o, &own.address, &own.len);
    if (code == 0 && (listener = listen_at(w, &own.address, &own.len)) < 0)
        code = failed(w, o->address ? o->address : "listening");
    /* The exchange takes place in any case (world.c). */
    own.failed = code != 0;
    int gathered = cards ? msg_allgather(w, o, &own, sizeof own, cards) : MSG_ERR_NO_MEMORY;
    for (int i = 0; code == 0 && gathered == 0 && i < w->n_ranks; i++) {
        if (cards[i].failed)
            code = msg_fail(w, MSG_ERR_CHANNEL, "rank %d could not listen", i);
        else if (!is_address(&cards[i].address, cards[i].len))
            code = msg_fail(w, MSG_ERR_CHANNEL,
                            "the card of rank %d has no IPv4 or IPv6 address (family %d, %u bytes): it is damaged, or "
                            "of another version of viakit",
                            i, cards[i].address.any.sa_family, cards[i].len);
        else
            describe(&((struct tc_world *)w->at)->ranks[i], &cards[i].address);
    }
    code = code ? code : gathered;
    if (code == 0)
        code = tc_meet(w, listener, cards,
                       vk_now() + (uint64_t)(o->open_timeout_ms > 0 ? o->open_timeout_ms : 60000) * VK_MS);
    if (listener >= 0)
        close(listener);
    if (w->policy.route == MSG_ROUTE_DAEMON && !msg_on_machine())
        /* Before the descriptors are added to epoll, because they are replaced. */
        code = tc_relay_start(w, o, &own, code);
    if (code == 0 && msg_on_machine())
        code = open_streams(w);
    if (code == 0)
        code = watch_ranks(w);
    free(cards);
    if (code)
        tc_close(w);
    return code;
}

/* Also for a channel that was opened in part. A stream is closed before its socket. */
void tc_close(msg_world *w)
{
    struct tc_world *t = w->at;
    if (t == NULL)
        return;
    for (int i = 0; t->ranks && i < w->n_ranks; i++) {
        vk_streams()->close(t->ranks[i].stream);
        if (t->ranks[i].fd >= 0)
            close(t->ranks[i].fd);
        free(t->ranks[i].stage);
    }
    if (t->epoll >= 0)
        close(t->epoll);
    free(t->ranks);
    free(t);
    w->at = NULL;
}
