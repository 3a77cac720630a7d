/*
 * Opening the `tcp` channel: every rank listens, tells its address by the launcher's
 * exchange, calls all lower ranks and is called by all higher ones:
 *
 *      rank 2 --call--> rank 0         rank 2 --call--> rank 1         rank 1 --call--> rank 0
 *             intro {job, rank} first, then packets (tcp.c)
 *
 * The kernel completes calls that nobody has accepted yet, as many as the backlog holds (n_ranks + 16), so no
 * order is needed: a rank may call for as long as it likes before it answers. A caller says the job's name and
 * its rank first; strangers, and ranks that are there already, are hung up on.
 *
 * Deadlines: every wait looks every 20 ms at the interrupt callback and at open_timeout_ms.
 */
#include "tcp.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

union socket_address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

/* What each rank tells all others: where it listens, or that it cannot. The port is drawn by the kernel. */
struct address_card {
    union socket_address address;
    uint32_t len;
    uint32_t failed;
};

/* The first bytes on a connection, from the caller: proof that it belongs to the job, and who it is. */
struct intro {
    char job[32];
    uint32_t rank, reserved;
};

#define HOPELESS_MS 10000 /* data that nobody acknowledges for so long: the other host is gone */

static int failed(msg_world *w, const char *what)
{
    return msg_fail(w, MSG_ERR_CHANNEL, "%s: %s", what, strerror(errno));
}

/* ---------------------------------------------------------------- addresses */

/* A numeric address, port 0. 0 or -1. */
static int parse(const char *text, union socket_address *a, uint32_t *len)
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

/* The first address of this host that is not its loopback's and whose interface is up; IPv4 before IPv6. On
 * hosts with several networks it may be the wrong one: then `address` of the options says which. */
static int own_address(union socket_address *a, uint32_t *len)
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

static int find_address(msg_world *w, const msg_options *o, union socket_address *a, uint32_t *len)
{
    if (o->address) {
        if (parse(o->address, a, len) != 0)
            return msg_fail(w, MSG_ERR_ARG, "address '%.60s': a numeric IPv4 or IPv6 address of this host is needed",
                            o->address);
    } else if (w->n_local == w->n_ranks) {
        parse("127.0.0.1", a, len);
    } else if (own_address(a, len) != 0)
        return msg_fail(w, MSG_ERR_CHANNEL,
                        "this host has no address but the loopback's: ranks on other hosts cannot reach it");
    return 0;
}

static void describe(struct tc_rank *rank, const union socket_address *a)
{
    char host[INET6_ADDRSTRLEN] = "?";
    int six = a->any.sa_family == AF_INET6;
    inet_ntop(a->any.sa_family, six ? (const void *)&a->in6.sin6_addr : (const void *)&a->in.sin_addr, host,
              sizeof host);
    snprintf(rank->route, sizeof rank->route, "tcp %s:%u", host, ntohs(six ? a->in6.sin6_port : a->in.sin_port));
}

/* ---------------------------------------------------------------- sockets */

/* Before the connection is made: the window's scale is decided then, so a listener's sockets inherit it, and a
 * caller sets it before connect. 0 leaves the kernel's own tuning on, which setting any length would turn off. */
static void set_buffers(const msg_world *w, int fd)
{
    int len =
        w->policy.socket_buffer < 0 ? 1 << 30 : (int)w->policy.socket_buffer; /* the kernel cuts it to its maximum */
    if (len) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &len, sizeof len);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &len, sizeof len);
    }
}

/* Keepalive finds out that a host has vanished while we only wait for it: asked after 5 s of silence, then
 * every second. USER_TIMEOUT does while we send. Together: ten seconds, as docs/messages.md promises. */
static void set_options(const msg_world *w, int fd)
{
    int nodelay = w->policy.nodelay != 0, on = 1, idle = 5,
        interval = 1; /* s: who only receives would not notice otherwise */
    unsigned hopeless = HOPELESS_MS;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &nodelay, sizeof nodelay);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &hopeless, sizeof hopeless);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

static int listen_at(msg_world *w, union socket_address *a, uint32_t *len)
{
    socklen_t size = sizeof *a;
    int fd = socket(a->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    set_buffers(w, fd);
    if (bind(fd, &a->any, *len) != 0 || listen(fd, w->n_ranks + 16) != 0 || getsockname(fd, &a->any, &size) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    *len = size;
    return fd;
}

/* Waits for the descriptor until the deadline, or an interrupt. 0, or an error of msg.h that
 * has been explained. */
static int wait_for(msg_world *w, int fd, short events, uint64_t deadline)
{
    struct pollfd p = {.fd = fd, .events = events};
    for (;;) {
        int n = poll(&p, 1, 20);
        if (n > 0)
            return 0;
        if (n < 0 && errno != EINTR)
            return failed(w, "poll");
        if (w->interrupt && w->interrupt(w->interrupt_context))
            return msg_fail(w, MSG_INTERRUPTED, "opening was interrupted");
        if (vk_now() > deadline)
            return msg_fail(w, MSG_ERR_CHANNEL, "not all ranks could be connected in time");
    }
}

/* All of len bytes, in one direction. 0, or an error that has been explained. */
static int transfer(msg_world *w, int fd, void *bytes, size_t len, int sending, uint64_t deadline)
{
    for (size_t done = 0; done < len;) {
        char *at = (char *)bytes + done;
        ssize_t n = sending ? send(fd, at, len - done, MSG_NOSIGNAL) : recv(fd, at, len - done, 0);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || (errno != EAGAIN && errno != EINTR && errno != EINPROGRESS))
            return n == 0 ? msg_fail(w, MSG_ERR_CHANNEL, "a rank hung up while connecting") : failed(w, "connecting");
        else {
            int code = wait_for(w, fd, sending ? POLLOUT : POLLIN, deadline);
            if (code)
                return code;
        }
    }
    return 0;
}

/* To a lower rank, which listens since before its address was told. The descriptor is the
 * rank's from the beginning, so that closing finds it. connect() returns at once and is done,
 * well or not, when there is room to write: SO_ERROR tells which. */
static int call(msg_world *w, int rank, const struct address_card *card, uint64_t deadline)
{
    struct tc_world *t = w->at;
    struct intro intro = {.rank = (uint32_t)w->rank};
    int fd = socket(card->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return failed(w, "socket");
    t->ranks[rank].fd = fd;
    t->n_open++;
    set_buffers(w, fd);
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    memcpy(intro.job, w->job, sizeof intro.job);
    if (connect(fd, &card->address.any, card->len) != 0 && errno != EINPROGRESS)
        return msg_fail(w, MSG_ERR_CHANNEL, "rank %d at %s: %s", rank, t->ranks[rank].route, strerror(errno));
    int error = wait_for(w, fd, POLLOUT, deadline), so_error = 0;
    socklen_t size = sizeof so_error;
    if (error)
        return error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &so_error, &size) != 0 || so_error)
        return msg_fail(w, MSG_ERR_CHANNEL, "rank %d at %s: %s", rank, t->ranks[rank].route, strerror(so_error));
    set_options(w, fd);
    return transfer(w, fd, &intro, sizeof intro, 1, deadline);
}

/* One caller: a higher rank that is still missing, or somebody else, who is hung up on and does not count. 0 or an
 * error. */
static int answer(msg_world *w, int listener, int *n_left, uint64_t deadline)
{
    struct tc_world *t = w->at;
    struct intro intro;
    int code = wait_for(w, listener, POLLIN, deadline);
    if (code)
        return code;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? 0 : failed(w, "accept");
    /* A stranger who says nothing holds us up for two seconds at most, not for the whole of the opening. */
    uint64_t patience = vk_now() + 2 * VK_SECOND;
    code = transfer(w, fd, &intro, sizeof intro, 0, patience < deadline ? patience : deadline);
    /* Silent, of another job, of no rank that is to call us, or of one that has called already. */
    if (code || memcmp(intro.job, w->job, sizeof intro.job) != 0 || intro.rank >= (uint32_t)w->n_ranks ||
        intro.rank <= (uint32_t)w->rank || t->ranks[intro.rank].fd >= 0) {
        close(fd); /* somebody else's call */
        return code == MSG_INTERRUPTED ? code : 0;
    }
    set_options(w, fd);
    t->ranks[intro.rank].fd = fd;
    t->n_open++;
    --*n_left;
    return 0;
}

static int connect_ranks(msg_world *w, const msg_options *o, int listener, const struct address_card *cards)
{
    uint64_t deadline = vk_now() + (uint64_t)(o->open_timeout_ms > 0 ? o->open_timeout_ms : 60000) * VK_MS;
    int n_left = w->n_ranks - 1 - w->rank, code = 0;
    /* Nobody waits for anybody in the first loop: all listeners exist since before the exchange. */
    for (int i = 0; i < w->rank && code == 0; i++)
        code = call(w, i, &cards[i], deadline);
    while (n_left && code == 0)
        code = answer(w, listener, &n_left, deadline);
    return code;
}

/* ---------------------------------------------------------------- opening and closing */

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
        /* From the beginning, so that tc_close may come at any time. */
        r->fd = -1;
        r->peer = &w->peers[i];
        w->peers[i].at = r;
        w->peers[i].eager_limit = (size_t)w->policy.eager_limit;
        if (i != w->rank && (r->stage = malloc(TC_STAGE)) == NULL)
            return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    }
    return t->epoll >= 0 && t->ranks ? 0 : failed(w, "epoll_create1");
}

static int watch_ranks(msg_world *w)
{
    struct tc_world *t = w->at;
    for (int i = 0; i < w->n_ranks; i++) {
        struct epoll_event e = {.events = EPOLLIN, .data.ptr = &t->ranks[i]};
        /* EPOLLIN only: room to write is asked for when something waits for it (tcp.c: watch_out). */
        if (i != w->rank && epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->ranks[i].fd, &e) != 0)
            return failed(w, "epoll_ctl");
    }
    return 0;
}

int tc_open(msg_world *w, const msg_options *o)
{
    struct address_card *cards = calloc((size_t)w->n_ranks, sizeof *cards), mine;
    memset(&mine, 0, sizeof mine);
    int code = cards ? make_ranks(w) : msg_fail(w, MSG_ERR_NO_MEMORY, "no memory"), listener = -1;
    if (code == 0)
        code = find_address(w, o, &mine.address, &mine.len);
    if (code == 0 && (listener = listen_at(w, &mine.address, &mine.len)) < 0)
        code = failed(w, o->address ? o->address : "listening");
    /* The exchange takes place in any case (world.c). */
    mine.failed = code != 0;
    int gathered = cards ? msg_allgather(w, o, &mine, sizeof mine, cards) : MSG_ERR_NO_MEMORY;
    for (int i = 0; code == 0 && gathered == 0 && i < w->n_ranks; i++) {
        if (cards[i].failed)
            code = msg_fail(w, MSG_ERR_CHANNEL, "rank %d could not listen", i);
        else
            describe(&((struct tc_world *)w->at)->ranks[i], &cards[i].address);
    }
    code = code ? code : gathered;
    if (code == 0)
        code = connect_ranks(w, o, listener, cards);
    if (listener >= 0)
        close(listener);
    if (code == 0 && w->policy.route == MSG_ROUTE_DAEMON)
        /* Before epoll knows the descriptors: they are replaced. */
        code = tc_relay_start(w);
    if (code == 0)
        code = watch_ranks(w);
    free(cards);
    if (code)
        tc_close(w);
    return code;
}

void tc_close(msg_world *w)
{
    struct tc_world *t = w->at;
    if (t == NULL)
        return;
    for (int i = 0; t->ranks && i < w->n_ranks; i++) {
        if (t->ranks[i].fd >= 0)
            close(t->ranks[i].fd);
        free(t->ranks[i].stage);
    }
    /* After our ends are closed, which is what tells the daemon to send what it holds and go. */
    tc_relay_stop(w);
    if (t->epoll >= 0)
        close(t->epoll);
    free(t->ranks);
    free(t);
    w->at = NULL;
}
