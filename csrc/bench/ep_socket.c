/*
 * bench/ep_socket.c - byte streams: TCP and Unix sockets, connected by the caller.
 *
 * A stream has no messages; a message is simply its next len bytes. Polled: every call carries MSG_DONTWAIT and is
 * repeated until the bytes are there, which is one system call per poll. Blocking: the call sleeps in the kernel.
 * SO_RCVTIMEO / SO_SNDTIMEO of one slice end it regularly, so that the loop can check its deadline.
 *
 *      send:  | sent ........ | tx_done ........ len |   a call may send less than it was given: continue at tx_done
 *
 * The kernel's socket buffers are the window (ep->window 0): a stream that fills them waits in send. The reply to the
 * last message proves that all were received, not only accepted by the kernel.
 */
#include "bench/bench.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

typedef struct {
    bench_ep ep;
    bench_ops ops; /* a copy, for the name */
    int fd;
    size_t tx_done, rx_done; /* bytes of the current message */
} socket_ep;

/* Both counts are 0 between runs: each run sends and receives whole messages only. */
static int socket_prepare(bench_ep *base, const bench_plan *plan)
{
    socket_ep *ep = (socket_ep *)base;
    ep->tx_done = ep->rx_done = 0;
    base->window = 0;
    return bench_buffers(base, plan, 1);
}

/* Classify a failed call. EINTR and the slice's time-out are no failures: the loop calls again, from tx_done or rx_done
 * on. */
static int call_failed(bench_ep *ep, const char *call)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return BENCH_NOT_YET;
    /* EPIPE instead of the signal: sends carry MSG_NOSIGNAL. */
    if (errno == EPIPE || errno == ECONNRESET)
        return bench_fail(ep, BENCH_GONE, "the peer closed the connection");
    return bench_fail(ep, BENCH_ERROR, "%s: %s", call, strerror(errno));
}

static int socket_send(bench_ep *base, size_t len)
{
    socket_ep *ep = (socket_ep *)base;
    int flags = MSG_NOSIGNAL | (base->dontwait ? MSG_DONTWAIT : 0);
    while (ep->tx_done < len) {
        ssize_t n = send(ep->fd, base->sbuf + ep->tx_done, len - ep->tx_done, flags);
        base->count[BENCH_COUNTER_system_calls]++;
        if (n < 0)
            return call_failed(base, "send");
        ep->tx_done += (size_t)n;
    }
    ep->tx_done = 0;
    return BENCH_DONE;
}

static int socket_recv(bench_ep *base, size_t len)
{
    socket_ep *ep = (socket_ep *)base;
    int flags = base->dontwait ? MSG_DONTWAIT : 0;
    while (ep->rx_done < len) {
        ssize_t n = recv(ep->fd, base->rbuf + ep->rx_done, len - ep->rx_done, flags);
        base->count[BENCH_COUNTER_system_calls]++;
        if (n < 0)
            return call_failed(base, "recv");
        if (n == 0)
            return bench_fail(base, BENCH_GONE, "the peer closed the connection");
        ep->rx_done += (size_t)n;
    }
    ep->rx_done = 0;
    base->rmsg = base->rbuf;
    return BENCH_DONE;
}

/* For bidir, where both calls only try: sleep until either could proceed. */
static void socket_idle(bench_ep *base, bool want_send)
{
    socket_ep *ep = (socket_ep *)base;
    struct pollfd either = {.fd = ep->fd, .events = (short)(POLLIN | (want_send ? POLLOUT : 0))};
    base->count[BENCH_COUNTER_system_calls]++;
    poll(&either, 1, BENCH_SLICE_MS);
}

static const bench_ops socket_ops = {
    .min_len = 1, /* a stream cannot convey a message of 0 bytes */
    .max_len = (size_t)1 << 30,
    .prepare = socket_prepare,
    .send = socket_send,
    .recv = socket_recv,
    .idle = socket_idle,
};

BENCH_OPEN(socket)
{
    const int fd = options->fd;
    socket_ep *ep = bench_ep_new(sizeof *ep, &socket_ops, options->polled, error);
    if (!ep)
        return NULL;
    if (!bench_socket_slice(fd, BENCH_SLICE_MS * 1000))
        return bench_ep_fail(&ep->ep, error, "cannot use descriptor %d as a socket: %s", fd, strerror(errno));
    ep->fd = fd;
    ep->ops = socket_ops;
    ep->ops.name = options->device;
    ep->ep.ops = &ep->ops;
    return &ep->ep;
}
