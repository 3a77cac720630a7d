/*
 * bench/ep_zmq.c - ZeroMQ, from C, through the libzmq that pyzmq contains.
 *
 * The Python side creates and connects a PAIR socket and passes its address. This file finds libzmq, which is already
 * in the process, by its path, and resolves zmq_send, zmq_recv, zmq_errno and zmq_strerror in it. Nothing is linked.
 *
 * zmq_send copies the message into one of its own and zmq_recv copies it out. Most programs use that interface, and it
 * is pyzmq's default, too. A thread of libzmq does the system calls, so they cannot be counted here. With both sides
 * polling on two cores that thread competes for its turn.
 *
 * libzmq queues without bound: the high-water marks are off, because they would block in the middle of a message. The
 * loop's window of messages therefore controls the flow.
 */
#include "bench/bench.h"

#include <dlfcn.h>
#include <errno.h>

#define ZMQ_DONTWAIT 1      /* zmq.h */
#define ZMQ_ETERM 156384765 /* ZMQ_HAUSNUMERO + 53 */

typedef struct {
    bench_ep ep;
    void *socket, *library; /* the caller's socket; this endpoint's reference to libzmq */
    int (*send)(void *socket, const void *buf, size_t len, int flags);
    int (*recv)(void *socket, void *buf, size_t len, int flags);
    int (*error_number)(void);
    const char *(*error_text)(int);
    size_t room; /* capacity of rbuf in bytes */
} zmq_ep;

/* `room` is one byte more than the plan's messages have; replies of 1 byte fit it, too. */
static int zmq_prepare(bench_ep *base, const bench_plan *plan)
{
    ((zmq_ep *)base)->room = plan->len + 1;
    base->window = bench_window(plan) * 2; /* queued messages cost only memory */
    return bench_buffers(base, plan, 1);
}

/* Classify a failed call. EAGAIN means that nothing is ready when polling, and the socket's time-out of a slice when
 * blocking. */
static int call_failed(zmq_ep *ep, const char *call)
{
    int why = ep->error_number();
    if (why == EAGAIN || why == EINTR)
        return BENCH_NOT_YET;
    if (why == ZMQ_ETERM)
        return bench_fail(&ep->ep, BENCH_GONE, "the ZeroMQ context was terminated");
    return bench_fail(&ep->ep, BENCH_ERROR, "%s: %s", call, ep->error_text(why));
}

/* libzmq has copied the message when this returns, so no flush is needed. */
static int zmq_send_message(bench_ep *base, size_t len)
{
    zmq_ep *ep = (zmq_ep *)base;
    if (ep->send(ep->socket, base->sbuf, len, base->dontwait ? ZMQ_DONTWAIT : 0) < 0)
        return call_failed(ep, "zmq_send");
    return BENCH_DONE;
}

/* zmq_recv returns the message's real length, also if it did not fit. */
static int zmq_recv_message(bench_ep *base, size_t len)
{
    zmq_ep *ep = (zmq_ep *)base;
    int n = ep->recv(ep->socket, base->rbuf, ep->room, base->dontwait ? ZMQ_DONTWAIT : 0);
    if (n < 0)
        return call_failed(ep, "zmq_recv");
    if ((size_t)n != len)
        return bench_wrong_length(base, (size_t)n, len);
    base->rmsg = base->rbuf;
    return BENCH_DONE;
}

/* Drops the reference that dlopen took. The socket and its context are the caller's. */
static void zmq_ep_close(bench_ep *base)
{
    if (((zmq_ep *)base)->library)
        dlclose(((zmq_ep *)base)->library);
}

static const bench_ops zmq_ops = {
    .name = "zmq",
    .min_len = 0,
    .max_len = (size_t)1 << 30,
    .prepare = zmq_prepare,
    .send = zmq_send_message,
    .recv = zmq_recv_message,
    .close = zmq_ep_close,
};

bench_ep *bench_zmq_open(void *socket, const char *library, bool polled, char *error)
{
    zmq_ep *ep = bench_ep_new(sizeof *ep, &zmq_ops, polled, error);
    if (!ep)
        return NULL;
    ep->socket = socket;
    const bench_symbol symbols[] = {{"zmq_send", &ep->send},
                                    {"zmq_recv", &ep->recv},
                                    {"zmq_errno", &ep->error_number},
                                    {"zmq_strerror", &ep->error_text}};
    const char *missing;
    ep->library = bench_library(library, symbols, sizeof symbols / sizeof *symbols, &missing);
    if (!ep->library)
        return bench_ep_fail(&ep->ep, error, "the functions of libzmq cannot be reached in %s", library);
    return &ep->ep;
}
