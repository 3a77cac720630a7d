/*
 * A daemon between a rank and the network, as lamd and pvmd were. A message goes rank - daemon - daemon - rank, which
 * costs two more process switches and two more copies through user space.
 *
 *      rank r  === socketpairs ===  daemon of r  === TCP ===  daemon of s  === socketpairs ===  rank s
 *
 * Each rank forks its daemon once all connections are made. The daemon takes over the network's ends and copies bytes,
 * one stream for each other rank, until both sides have closed the connection. From fork to exit the daemon calls only
 * async-signal-safe functions, because the program may have had threads. All its memory is allocated before. It dies
 * with its rank.
 */

#include "msg/tcp.h"

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

/* Closes all other descriptors of the rank in the daemon. Otherwise no peer would detect that the rank has closed
 * its ends. `keep` is sorted, and each gap between two entries is closed in one call. */
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

/* A pipe reads only when it is empty: the buffer is the window, and TCP holds back the faster side. Its end is
 * forwarded (SHUT_WR) for this direction alone, because the other may still carry data. */
static void read_some(struct pipe *p)
{
    ssize_t got = recv(p->from, p->bytes, BUFFER, MSG_DONTWAIT);
    if (got > 0) {
        p->begin = 0;
        p->end = (size_t)got;
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
        shutdown(p->to, SHUT_WR); /* all data has been written: forward the end */
        p->from = -1;
    }
}

/* Unsent data stays for the next round. A failed write stops the reader, because its data has no destination. */
static void write_some(struct pipe *p)
{
    ssize_t sent = send(p->to, p->bytes + p->begin, p->end - p->begin, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0)
        p->begin += (size_t)sent;
    else if (errno != EAGAIN && errno != EINTR) {
        p->begin = p->end = 0;
        p->from = -1; /* the data has no receiver */
    }
}

/* Main loop of the daemon, until all pipes have forwarded their end. Each pipe waits for one event at a time: to
 * read if it is empty, else to write. poll() ignores negative descriptors, so ended pipes drop out. */
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

/* All memory of the daemon, allocated before the fork, because the daemon may not allocate. Pipe 2k goes from the
 * rank to its k-th peer, pipe 2k + 1 back. keep: all descriptors that stay open in the daemon. local: the rank's new
 * ends, by rank. */
struct plan {
    struct pipe *pipes;
    struct pollfd *fds;
    int *keep, *local;
    char *bytes;
    int n;
};

static void free_plan(struct plan *p)
{
    free(p->pipes);
    free(p->fds);
    free(p->keep);
    free(p->local);
    free(p->bytes);
}

static int make_plan(msg_world *w, struct plan *p)
{
    struct tc_world *t = w->at;
    size_t n = 2 * (size_t)(w->n_ranks - 1);
    *p = (struct plan){.pipes = calloc(n, sizeof *p->pipes),
                       .fds = calloc(n, sizeof *p->fds),
                       .keep = calloc(n, sizeof(int)),
                       .local = calloc((size_t)w->n_ranks, sizeof(int)),
                       .bytes = malloc(n * BUFFER)};
    if (!p->pipes || !p->fds || !p->keep || !p->local || !p->bytes)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for a daemon");
    for (int i = 0; i < w->n_ranks; i++) {
        int pair[2];
        p->local[i] = -1;
        if (i == w->rank)
            continue;
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
            return msg_fail(w, MSG_ERR_CHANNEL, "socketpair: %s", strerror(errno));
        p->local[i] = pair[0];
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
        /* The daemon dies with its rank. The rank may have died before this call took effect: then its parent has
         * changed already. */
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
    /* In the rank: closes the daemon's end of each pair, and replaces the connection by this rank's end. Without a
     * daemon, closes this rank's end and keeps the connection. */
    for (int i = 0, k = 0; p.local && i < w->n_ranks; i++) {
        if (i == w->rank || k >= p.n)
            continue;
        close(p.pipes[k].from); /* the daemon's end */
        k += 2;
        if (code == 0) {
            close(t->ranks[i].fd);
            t->ranks[i].fd = p.local[i];
            snprintf(t->ranks[i].route + strlen(t->ranks[i].route),
                     sizeof t->ranks[i].route - strlen(t->ranks[i].route), " by daemons");
        } else if (p.local[i] >= 0)
            close(p.local[i]);
    }
    free_plan(&p);
    if (code == 0)
        t->relay = child;
    return code;
}

/* This rank's ends are closed, so the daemon exits once it has sent its remaining data. */
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
