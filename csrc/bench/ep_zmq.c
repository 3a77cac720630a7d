/*
 * bench/ep_zmq.c - ZeroMQ, from C, through the very libzmq that pyzmq brought along.
 *
 * The Python side makes and connects a PAIR socket and hands over its address; here libzmq, which is in the process
 * already, is found by its path and zmq_send, zmq_recv and zmq_errno are looked up in it. Nothing is linked.
 *
 * zmq_send copies the message into one of its own and zmq_recv copies it out: that is the interface most programs use,
 * and pyzmq's default too. A thread of libzmq's own does the system calls, so they cannot be counted here; with both
 * sides polling on two cores that thread has to fight for its turn.
 *
 * libzmq queues without bound (the high-water marks are off, they would block in the middle of a message of ours), so
 * the loop's window of messages controls the flow.
 */
#include "base/plural.h"
#include "bench/bench.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ZMQ_DONTWAIT 1      /* zmq.h */
#define ZMQ_ETERM 156384765 /* ZMQ_HAUSNUMERO + 53 */

typedef struct {
    bench_ep ep;
    void *socket, *library;
    int (*send)(void *socket, const void *buf, size_t len, int flags);
    int (*recv)(void *socket, void *buf, size_t len, int flags);
    int (*error_number)(void);
    const char *(*error_text)(int);
    size_t room; /* bytes that rbuf can take */
} zmq_ep;

static int zmq_prepare(bench_ep *base, const bench_plan *plan)
{
    ((zmq_ep *)base)->room = plan->len + 1;
    base->window = bench_window(plan) * 2; /* what is queued costs nothing but memory */
    return bench_buffers(base, plan, 1);
}

/* EAGAIN is "nothing now" when polling, and the socket's time-out of a slice when blocking. */
static int trouble(zmq_ep *ep, const char *call)
{
    int why = ep->error_number();
    if (why == EAGAIN || why == EINTR)
        return BENCH_NOT_YET;
    if (why == ZMQ_ETERM)
        return bench_fail(&ep->ep, BENCH_GONE, "the ZeroMQ context was terminated");
    return bench_fail(&ep->ep, BENCH_ERROR, "%s: %s", call, ep->error_text(why));
}

static int zmq_send_message(bench_ep *base, size_t len)
{
    zmq_ep *ep = (zmq_ep *)base;
    if (ep->send(ep->socket, base->sbuf, len, base->dontwait ? ZMQ_DONTWAIT : 0) < 0)
        return trouble(ep, "zmq_send");
    return BENCH_DONE;
}

static int zmq_recv_message(bench_ep *base, size_t len)
{
    zmq_ep *ep = (zmq_ep *)base;
    int n = ep->recv(ep->socket, base->rbuf, ep->room, base->dontwait ? ZMQ_DONTWAIT : 0);
    if (n < 0)
        return trouble(ep, "zmq_recv");
    if ((size_t)n != len)
        return bench_fail(base, BENCH_ERROR, "a message of %d byte%s arrived where one of %zu was due", n, vk_s(n),
                          len);
    return BENCH_DONE;
}

static void zmq_ep_close(bench_ep *base)
{
    dlclose(((zmq_ep *)base)->library);
    bench_buffers_release(base);
    free(base);
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
    zmq_ep *ep = bench_ep_new(sizeof *ep, &zmq_ops, polled);
    if (!ep) {
        snprintf(error, BENCH_ERROR_LEN, "no memory");
        return NULL;
    }
    ep->socket = socket;
    ep->library = dlopen(library, RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL); /* only the one that made the socket will do */
    if (ep->library) {
        /* POSIX lets dlsym's void * be a function; ISO C wants the detour through a union or a copy. */
        void *found[] = {dlsym(ep->library, "zmq_send"), dlsym(ep->library, "zmq_recv"),
                         dlsym(ep->library, "zmq_errno"), dlsym(ep->library, "zmq_strerror")};
        memcpy(&ep->send, &found[0], sizeof ep->send);
        memcpy(&ep->recv, &found[1], sizeof ep->recv);
        memcpy(&ep->error_number, &found[2], sizeof ep->error_number);
        memcpy(&ep->error_text, &found[3], sizeof ep->error_text);
        if (ep->send && ep->recv && ep->error_number && ep->error_text)
            return &ep->ep;
        dlclose(ep->library);
    }
    snprintf(error, BENCH_ERROR_LEN, "the functions of libzmq cannot be reached in %s", library);
    free(ep);
    return NULL;
}
