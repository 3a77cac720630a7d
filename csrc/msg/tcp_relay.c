/*
 * The way to the daemon of this host (tcp_daemon.c), for policies that route by daemons as LAM's lamd and PVM's pvmd
 * do.
 *
 *      all ranks      connected and proven to each other over TCP (tcp_meet.c)
 *      lowest rank    of each host: a UDP socket, a Unix socket, the daemon            (fork)
 *      all ranks      exchange the addresses of both
 *      all ranks      a socket pair for each other rank; the daemon gets one end of each, with a proof of the secret
 *      all ranks      close the connections of tcp_meet.c
 *
 * The daemon is no child of a rank, so the death of its first rank does not affect the others. It ends with the last of
 * its ranks, and is called viakit- and 8 characters of the job's name. The Unix socket has a name that the kernel
 * chooses, outside the file system, so it cannot be left behind.
 *
 * Invariant: tc_relay_start replaces t->ranks[i].fd of every other rank, or fails. Neither tcp.c nor the engine can
 * then distinguish a way through daemons from a direct connection: both are streams of bytes.
 *
 * Memory and descriptors. The daemon is forked from a program that may have threads, so it cannot allocate: td_plan has
 * all its memory, a ring of TD_WINDOW bytes for each stream among it. For l of n ranks the daemon holds l * (n - 1)
 * socket pairs' ends, the UDP socket, and until the last handover the Unix socket.
 *
 * Security. Only processes that have the job's secret can hand over descriptors (proof with the daemon's nonce).
 * Datagrams carry a key that is derived from the secret. The key keeps out other jobs and hosts that cannot read the
 * network. It is sent in clear, and nothing is encrypted, as with lamd and pvmd.
 *
 * Called once per world, by the thread that opens it. Blocks, at most some seconds beyond the launcher's exchange.
 */
#include "msg/tcp_daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/blake2s.h"

/* Sent by each rank to all others. Only the lowest rank of a host has addresses. */
struct card {
    struct tc_card udp; /* address of the daemon's UDP socket; udp.failed of every rank is valid */
    uint32_t name_len;
    /* Name of the Unix socket, without the leading 0. The kernel chooses 5 hex digits (unix(7), autobind). */
    char name[16];
};

static const char key_label[] = "viakit tcp datagrams";

/* For a system call that has just failed: errno is part of the text. */
static int failed(msg_world *w, const char *what)
{
    return msg_fail(w, MSG_ERR_CHANNEL, "the daemon of this host: %s: %s", what, strerror(errno));
}

/* Returns the lowest rank of the host of a rank. All ranks agree on it, because all have the same hellos. That rank
 * starts the daemon. */
static int first_of(const msg_world *w, int rank)
{
    int i = 0;
    while (w->peers[i].host != w->peers[rank].host)
        i++;
    return i;
}

/* ---------------------------------------------------------------- the daemon */

/* The parent's copy; the daemon keeps its own until it exits. Wiped, because it has the secret. */
static void free_plan(struct td_plan *p)
{
    free(p->local);
    free(p->hosts);
    free(p->streams);
    free(p->polls);
    free(p->bytes);
    vk_wipe(p, sizeof *p);
}

/* Allocates everything that the daemon will use, and derives the key of its datagrams. streams[] has a row for each
 * rank of this host, with an unused entry for the rank itself, so that an index needs no search. Returns 0 or
 * MSG_ERR_NO_MEMORY; free_plan frees a partial plan, too. */
static int make_plan(msg_world *w, struct td_plan *p)
{
    size_t n = (size_t)w->n_ranks, n_streams = (size_t)w->n_local * n;
    uint8_t digest[VK_BLAKE2S_LEN];
    p->rank = w->rank;
    p->n_ranks = w->n_ranks;
    p->n_streams = (int)n_streams;
    p->packet = (uint32_t)w->policy.daemon_bytes; /* in its limits: msg_policy_check */
    p->packets = (uint64_t)w->policy.daemon_packets;
    p->local = calloc(n, sizeof *p->local);
    p->hosts = calloc(n, sizeof *p->hosts);
    p->streams = calloc(n_streams, sizeof *p->streams);
    p->polls = calloc(n_streams + 1, sizeof(struct pollfd));
    p->bytes = malloc(n_streams * TD_WINDOW);
    if (!p->local || !p->hosts || !p->streams || !p->polls || !p->bytes)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for the daemon of this host");
    int k = 0;
    for (int rank = 0; rank < w->n_ranks; rank++) {
        p->local[rank] = w->peers[rank].host == w->peers[w->rank].host ? k++ : -1;
        for (int peer = 0; p->local[rank] >= 0 && peer < w->n_ranks; peer++) {
            size_t at = (size_t)p->local[rank] * n + (size_t)peer;
            p->streams[at] = (struct td_stream){.fd = -1,
                                                .to = -1,
                                                .rank = (uint32_t)rank,
                                                .peer = (uint32_t)peer,
                                                .bytes = p->bytes + at * TD_WINDOW,
                                                .resend_at = VK_NEVER,
                                                .pause = TD_PAUSE};
        }
    }
    /* A key for this job alone, from which the secret cannot be computed. The label separates it from the proofs of
     * tcp_meet.c, which use the same secret. */
    struct vk_blake2s s;
    vk_blake2s_begin(&s, w->secret, sizeof w->secret);
    vk_blake2s_add(&s, key_label, sizeof key_label);
    vk_blake2s_add(&s, w->job, sizeof w->job);
    vk_blake2s_end(&s, digest);
    memcpy(p->key, digest, sizeof p->key);
    memcpy(p->secret, w->secret, sizeof p->secret);
    return 0;
}

/* Opens the daemon's sockets, and fills in the card. The UDP socket has the address by which the other ranks reach this
 * one, with a port that the kernel chooses. Returns 0 or an error; the caller closes the sockets. */
static int open_sockets(msg_world *w, const struct tc_card *own, struct td_plan *p, struct card *card)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t len = sizeof a, udp_len;
    int room = 4 << 20; /* bytes: 64 streams with a full window. The kernel may grant less (net.core.rmem_max). */
    card->udp = *own;
    if (own->address.any.sa_family == AF_INET6)
        card->udp.address.in6.sin6_port = 0;
    else
        card->udp.address.in.sin_port = 0;
    udp_len = card->udp.len;
    p->udp = socket(own->address.any.sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (p->udp < 0 || bind(p->udp, &card->udp.address.any, udp_len) != 0 ||
        getsockname(p->udp, &card->udp.address.any, &udp_len) != 0)
        return failed(w, "its UDP socket");
    setsockopt(p->udp, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    setsockopt(p->udp, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    p->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (p->listener < 0 || bind(p->listener, (struct sockaddr *)&a, sizeof a.sun_family) != 0 ||
        listen(p->listener, SOMAXCONN) != 0 || getsockname(p->listener, (struct sockaddr *)&a, &len) != 0)
        return failed(w, "its Unix socket");
    /* An abstract name: a 0, then name_len bytes without a terminator. */
    card->name_len = len - (uint32_t)offsetof(struct sockaddr_un, sun_path) - 1;
    if (card->name_len > sizeof card->name)
        return failed(w, "the name of its Unix socket");
    memcpy(card->name, a.sun_path + 1, card->name_len);
    return 0;
}

/* Closes all descriptors but two in the daemon, standard input and output included. Otherwise it would hold the
 * program's files, its sockets and the launcher's pipes open, and their readers would not see the end when the ranks
 * have ended. close_range needs Linux 5.9; with an older kernel they stay open. */
static void close_all_but(int a, int b)
{
    unsigned low = (unsigned)(a < b ? a : b), high = (unsigned)(a < b ? b : a);
    if (low > 0)
        syscall(SYS_close_range, 0, low - 1, 0);
    if (high > low + 1)
        syscall(SYS_close_range, low + 1, high - 1, 0);
    syscall(SYS_close_range, high + 1, ~0u, 0);
}

/* Permits all cores: a rank may be bound to one, where the daemon would wait for it. */
static void run_anywhere(void)
{
    cpu_set_t all;
    memset(&all, 0xff, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
}

/* Starts the daemon as a grandchild, so that it needs no parent to wait for it:
 *
 *     this rank --fork--> child --fork--> daemon: td_run
 *         waitpid <------ exit            adopted by init, ends with the last stream
 *
 * The child exits at once, so the wait is short. Only functions that are safe in signal handlers may run between fork
 * and exit, because another thread may have held a lock. The child's status is 0, or the errno of its fork. Returns 0
 * or an error. */
static int start(msg_world *w, struct td_plan *p)
{
    int status = 0; /* also if the program has its children reaped by the kernel */
    char name[16];
    snprintf(name, sizeof name, "viakit-%.8s", w->job); /* not in the child: it is not safe in a signal handler */
    pid_t child = fork();
    if (child < 0)
        return failed(w, "fork");
    if (child == 0) {
        pid_t daemon = fork();
        if (daemon != 0)
            _exit(daemon < 0 ? errno : 0);
        struct rlimit files;
        if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* a descriptor for each pair of ranks */
            files.rlim_cur = files.rlim_max;
            setrlimit(RLIMIT_NOFILE, &files);
        }
        signal(SIGINT, SIG_IGN); /* Ctrl-C is for the ranks, with which the daemon ends */
        signal(SIGALRM, SIG_IGN);
        prctl(PR_SET_NAME, name);
        run_anywhere();
        close_all_but(p->listener, p->udp);
        td_run(p);
        _exit(0);
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
    errno = WIFEXITED(status) ? WEXITSTATUS(status) : EIO;
    return errno ? failed(w, "fork") : 0;
}

/* ---------------------------------------------------------------- this rank's ends */

/* Sends one handover with its h->n descriptors (SCM_RIGHTS, at most 253 per message on Linux; TD_AT_ONCE is less). The
 * kernel duplicates them, so the caller closes its own. Returns 0 or -1 with errno. */
static int send_fds(int fd, struct td_handover *h, const int *fds)
{
    char control[CMSG_SPACE(TD_AT_ONCE * sizeof(int))];
    struct iovec v = {h, sizeof *h};
    struct msghdr m = {
        .msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = CMSG_SPACE(h->n * sizeof(int))};
    memset(control, 0, sizeof control);
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(h->n * sizeof(int));
    memcpy(CMSG_DATA(c), fds, h->n * sizeof(int));
    return sendmsg(fd, &m, MSG_NOSIGNAL) == (ssize_t)sizeof *h ? 0 : -1;
}

/* Makes the socket pairs for the next ranks from h->first on, at most TD_AT_ONCE. This rank's end replaces the
 * connection of tcp_meet.c, which no packet has used yet. Sets h->n and the daemon's ends in fds, also on failure.
 * Returns the rank from which to continue, or -1 with errno. */
static int make_pairs(msg_world *w, struct td_handover *h, int *fds)
{
    struct tc_world *t = w->at;
    int rank = (int)h->first;
    for (; rank < w->n_ranks && h->n < TD_AT_ONCE; rank++) {
        int pair[2];
        if (rank == w->rank)
            continue;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
            return -1;
        close(t->ranks[rank].fd); /* of tcp_meet.c */
        t->ranks[rank].fd = pair[0];
        fds[h->n++] = pair[1];
        size_t used = strlen(t->ranks[rank].route);
        snprintf(t->ranks[rank].route + used, sizeof t->ranks[rank].route - used, " by daemons");
    }
    return rank;
}

/* Hands over the daemon's ends, in as many handovers as needed, all with proofs of one nonce. The daemon may have died:
 * then the read of its nonce ends. It serves one caller at a time, and a silent one for up to 2 s (tcp_daemon.c), hence
 * 30 s. Returns 0 or an error. */
static int hand_over(msg_world *w, const struct card *daemon)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + daemon->name_len);
    struct timeval limit = {30, 0};
    uint8_t nonce[TD_NONCE];
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), code = 0;
    memcpy(a.sun_path + 1, daemon->name, daemon->name_len);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, len) != 0 ||
        recv(fd, nonce, sizeof nonce, MSG_WAITALL) != (ssize_t)sizeof nonce)
        code = failed(w, "it does not reply");
    for (int next = 0; code == 0 && next < w->n_ranks;) {
        struct td_handover h = {.rank = (uint32_t)w->rank, .first = (uint32_t)next};
        int fds[TD_AT_ONCE];
        next = make_pairs(w, &h, fds);
        td_proof(w->secret, nonce, &h, h.proof);
        if (next < 0 || (h.n && send_fds(fd, &h, fds) != 0))
            code = failed(w, "the socket pairs to it");
        for (uint32_t i = 0; i < h.n; i++)
            close(fds[i]);
    }
    if (fd >= 0)
        close(fd);
    return code;
}

/* See tcp.h. own: the address of this rank. code: of opening so far. The exchange takes place in any case (world.c),
 * and the card of a rank reports its failure. The parent's copies of the daemon's sockets are closed on return, so
 * their last owner is the daemon. */
int tc_relay_start(msg_world *w, const msg_options *o, const struct tc_card *own, int code)
{
    struct td_plan plan = {.listener = -1, .udp = -1};
    struct card card, *cards = calloc((size_t)w->n_ranks, sizeof *cards);
    int first = first_of(w, w->rank);
    memset(&card, 0, sizeof card);
    if (code == 0 && cards == NULL)
        code = msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    if (code == 0 && first == w->rank && (code = make_plan(w, &plan)) == 0)
        code = open_sockets(w, own, &plan, &card);
    card.udp.failed = code != 0;
    int gathered = cards ? msg_allgather(w, o, &card, sizeof card, cards) : MSG_ERR_NO_MEMORY;
    code = code ? code : gathered;
    for (int i = 0; code == 0 && i < w->n_ranks; i++) {
        const struct card *c = &cards[first_of(w, i)];
        if (cards[i].udp.failed || c->udp.len > sizeof c->udp.address || c->name_len > sizeof c->name)
            code = msg_fail(w, MSG_ERR_CHANNEL, "rank %d has no daemon", i);
        else if (first == w->rank)
            plan.hosts[i] = c->udp;
    }
    if (code == 0 && first == w->rank)
        code = start(w, &plan);
    if (code == 0)
        code = hand_over(w, &cards[first]);
    if (plan.listener >= 0)
        close(plan.listener);
    if (plan.udp >= 0)
        close(plan.udp);
    free_plan(&plan);
    free(cards);
    return code;
}
