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
 *
 * On a described machine the bytes go by a stream of it (base/streams.h), for which the socket is only the connection.
 * No call sleeps in the kernel then.
 */
#include "base/streams.h"
#include "bench/bench.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define MACHINE "sim:" /* a device that begins so names a machine */

typedef struct {
    bench_ep ep;
    bench_ops ops; /* a copy, for the name */
    int fd;
    struct vk_stream *stream; /* on a machine; else NULL */
    size_t tx_done, rx_done;  /* bytes of the current message */
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

/* The result of a call on a stream as a socket's call returns it. */
static ssize_t as_call(ssize_t n)
{
    errno = n < 0 ? (int)-n : errno;
    return n < 0 ? -1 : n;
}

/* One call of the socket or the machine's stream: bytes moved, or -1 with errno. Only the socket's calls count as
 * system calls. */
static ssize_t send_some(socket_ep *ep, void *from, size_t len, int flags)
{
    if (vk_unlikely(ep->stream != NULL))
        return as_call(vk_streams()->send(ep->stream, &(struct iovec){from, len}, 1));
    ep->ep.count[BENCH_COUNTER_system_calls]++;
    return send(ep->fd, from, len, flags);
}

static ssize_t recv_some(socket_ep *ep, void *to, size_t len, int flags)
{
    if (vk_unlikely(ep->stream != NULL))
        return as_call(vk_streams()->recv(ep->stream, &(struct iovec){to, len}, 1));
    ep->ep.count[BENCH_COUNTER_system_calls]++;
    return recv(ep->fd, to, len, flags);
}

/* NOT_YET keeps the progress in tx_done, and the loop calls again with the same message. */
static int socket_send(bench_ep *base, size_t len)
{
    socket_ep *ep = (socket_ep *)base;
    int flags = MSG_NOSIGNAL | (base->dontwait ? MSG_DONTWAIT : 0);
    while (ep->tx_done < len) {
        ssize_t n = send_some(ep, base->sbuf + ep->tx_done, len - ep->tx_done, flags);
        if (n < 0)
            return call_failed(base, "send");
        ep->tx_done += (size_t)n;
    }
    ep->tx_done = 0;
    return BENCH_DONE;
}

/* The same with rx_done. It never reads beyond the message, so the next one stays in the kernel. */
static int socket_recv(bench_ep *base, size_t len)
{
    socket_ep *ep = (socket_ep *)base;
    int flags = base->dontwait ? MSG_DONTWAIT : 0;
    while (ep->rx_done < len) {
        ssize_t n = recv_some(ep, base->rbuf + ep->rx_done, len - ep->rx_done, flags);
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
    if (ep->stream) /* the loop moves the clock */
        return;
    base->count[BENCH_COUNTER_system_calls]++;
    poll(&either, 1, BENCH_SLICE_MS);
}

/* The socket is the caller's. A machine's stream is closed before it, as base/streams.h requires. */
static void socket_close(bench_ep *base)
{
    socket_ep *ep = (socket_ep *)base;
    if (ep->stream)
        vk_streams()->close(ep->stream);
}

static const bench_ops socket_ops = {
    .min_len = 1, /* a stream cannot convey a message of 0 bytes */
    .max_len = (size_t)1 << 30,
    .prepare = socket_prepare,
    .send = socket_send,
    .recv = socket_recv,
    .idle = socket_idle,
    .close = socket_close,
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
    if (options->device && strncmp(options->device, MACHINE, sizeof MACHINE - 1) == 0) {
        ep->ops.name = "tcp";
        if (vk_streams()->open(options->device + sizeof MACHINE - 1, fd, options->buffer, NULL, &ep->stream) != 0)
            return bench_ep_fail(&ep->ep, error, "%s", viakit_last_error());
    }
    ep->ep.ops = &ep->ops;
    return &ep->ep;
}
