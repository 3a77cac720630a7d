/*
 * A daemon between a rank and the network, as lamd and pvmd were: messages go rank - daemon - daemon - rank, two more
 * processes to be switched to and two more copies through user space.
 *
 *      rank r  === socketpairs ===  daemon of r  === TCP ===  daemon of s  === socketpairs ===  rank s
 *
 * Each rank forks its daemon when all connections are made; it takes the network's ends and pumps bytes, one stream
 * for each other rank, until both sides have hung up. Between fork and its end the daemon calls nothing that is not
 * async-signal-safe, for the program may have had threads; all its memory is made before. It dies with its rank.
 */

#include "tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* Bytes of one direction of one stream. */
#define BUFFER 65536

/* One direction of one stream. */
struct pipe {
    int from, to; /* -1: closed */
    size_t begin, end;
    char *bytes; /* [BUFFER] */
};

/* ---------------------------------------------------------------- in the daemon */

/* Nothing that the rank has open may stay open in the daemon, or nobody would see the rank hang up. keep is
 * sorted, and what lies between two that are kept is closed in one call. */
static void close_all_but(const int *keep, int n)
{
    unsigned from = 0;
    for (int i = 0; i <= n; i++) {
        unsigned to = i < n ? (unsigned)keep[i] : ~0u;
        if (to > from)
            syscall(SYS_close_range, from, i < n ? to - 1 : ~0u, 0);
        from = to + 1;
    }
}

/* A pipe reads only when it is empty: the buffer is the window, and TCP holds back whoever is faster. Its end
 * is passed on (SHUT_WR) as an end of this direction alone: the other may still have something to say. */
static void read_some(struct pipe *p)
{
    ssize_t got = recv(p->from, p->bytes, BUFFER, MSG_DONTWAIT);
    if (got > 0) {
        p->begin = 0;
        p->end = (size_t)got;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        shutdown(p->to, SHUT_WR); /* what we had is written: pass the end on */
        p->from = -1;
    }
}

/* What is left stays for the next round. A writer that fails stops the reader: its data has nowhere to go. */
static void write_some(struct pipe *p)
{
    ssize_t sent = send(p->to, p->bytes + p->begin, p->end - p->begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0)
        p->begin += (size_t)sent;
    else if (errno != EAGAIN && errno != EINTR) {
        p->begin = p->end = 0;
        p->from = -1; /* nobody wants it */
    }
}

/* Until all pipes have passed their end on: the daemon's whole life. Each pipe waits for one
 * thing at a time, to read if it is empty, else to write. poll() ignores descriptors below
 * zero, which is how ended pipes drop out. */
static void pump(struct pipe *pipes, struct pollfd *fds, int n)
{
    for (;;) {
        int alive = 0;
        for (int i = 0; i < n; i++) {
            struct pipe *p = &pipes[i];
            int writing = p->begin != p->end;
            fds[i] = (struct pollfd){.fd = writing ? p->to : p->from, .events = writing ? POLLOUT : POLLIN};
            alive += writing || p->from >= 0;
        }
        if (alive == 0)
            return;
        if (poll(fds, (nfds_t)n, -1) < 0 && errno != EINTR)
            return;
        for (int i = 0; i < n; i++) {
            if (fds[i].revents == 0 || fds[i].fd < 0)
                continue;
            if (pipes[i].begin == pipes[i].end)
                read_some(&pipes[i]);
            if (pipes[i].begin != pipes[i].end)
                write_some(&pipes[i]);
        }
    }
}

/* ---------------------------------------------------------------- in the rank */

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Everything that the daemon will use, made before the fork, for it may not allocate. Pipe 2k
 * goes from the rank to its k-th peer, pipe 2k + 1 back; keep: all descriptors that stay open
 * there; ours: the rank's new ends, by rank. */
struct plan {
    struct pipe *pipes;
    struct pollfd *fds;
    int *keep, *ours;
    char *bytes;
    int n;
};

static void free_plan(struct plan *p)
{
    free(p->pipes);
    free(p->fds);
    free(p->keep);
    free(p->ours);
    free(p->bytes);
}

static int make_plan(msg_world *w, struct plan *p)
{
    struct tc_world *t = w->at;
    size_t n = 2 * (size_t)(w->n_ranks - 1);
    *p = (struct plan){.pipes = calloc(n, sizeof *p->pipes),
                       .fds = calloc(n, sizeof *p->fds),
                       .keep = calloc(n, sizeof(int)),
                       .ours = calloc((size_t)w->n_ranks, sizeof(int)),
                       .bytes = malloc(n * BUFFER)};
    if (!p->pipes || !p->fds || !p->keep || !p->ours || !p->bytes)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for a daemon");
    for (int i = 0; i < w->n_ranks; i++) {
        int pair[2];
        p->ours[i] = -1;
        if (i == w->rank)
            continue;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
            return msg_fail(w, MSG_ERR_CHANNEL, "socketpair: %s", strerror(errno));
        p->ours[i] = pair[0];
        p->keep[p->n] = pair[1];
        p->pipes[p->n] =
            (struct pipe){.from = pair[1], .to = t->ranks[i].fd, .bytes = p->bytes + (size_t)p->n * BUFFER};
        p->n++;
        p->keep[p->n] = t->ranks[i].fd;
        p->pipes[p->n] =
            (struct pipe){.from = t->ranks[i].fd, .to = pair[1], .bytes = p->bytes + (size_t)p->n * BUFFER};
        p->n++;
    }
    qsort(p->keep, (size_t)p->n, sizeof(int), by_value);
    return 0;
}

int tc_relay_start(msg_world *w)
{
    struct tc_world *t = w->at;
    struct plan p;
    int code = make_plan(w, &p), rank_process = getpid(), child = -1;
    if (code == 0 && (child = fork()) == 0) {
        /* It dies with its rank. The rank may have died before this call took effect: then its parent
         * is another already. */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != rank_process)
            _exit(1);
        signal(SIGINT, SIG_IGN); /* Ctrl-C is for the rank */
        signal(SIGALRM, SIG_IGN);
        close_all_but(p.keep, p.n);
        pump(p.pipes, p.fds, p.n);
        _exit(0);
    }
    if (code == 0 && child < 0)
        code = msg_fail(w, MSG_ERR_CHANNEL, "fork: %s", strerror(errno));
    /* In the rank: of each pair the daemon's end goes, and ours takes the place of the connection; or,
     * if there is no daemon, ours goes and the connection stays. */
    for (int i = 0, k = 0; p.ours && i < w->n_ranks; i++) {
        if (i == w->rank || k >= p.n)
            continue;
        close(p.pipes[k].from); /* the daemon's end */
        k += 2;
        if (code == 0) {
            close(t->ranks[i].fd);
            t->ranks[i].fd = p.ours[i];
            snprintf(t->ranks[i].route + strlen(t->ranks[i].route),
                     sizeof t->ranks[i].route - strlen(t->ranks[i].route), " by daemons");
        } else if (p.ours[i] >= 0)
            close(p.ours[i]);
    }
    free_plan(&p);
    if (code == 0)
        t->relay = child;
    return code;
}

/* Our ends are closed: it ends when it has sent what it holds. */
void tc_relay_stop(msg_world *w)
{
    struct tc_world *t = w->at;
    uint64_t deadline = vk_now() + VK_SECOND;
    int status;
    if (t->relay <= 0)
        return;
    while (waitpid(t->relay, &status, WNOHANG) == 0) {
        struct timespec pause = {0, 200000};
        if (vk_now() > deadline)
            kill(t->relay, SIGKILL);
        nanosleep(&pause, NULL);
    }
    t->relay = 0;
}
