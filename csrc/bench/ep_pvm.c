/*
 * bench/ep_pvm.c - PVM 3, from C, through the libpvm3 that the worker has loaded and enrolled.
 *
 * No pvm3.h is included: the prototypes below are those of its manual pages. A message is packed, sent and unpacked as
 * a program of PVM does it:
 *
 *      pvm_initsend   pvm_pkbyte   pvm_send      ->      pvm_nrecv (polling) or pvm_trecv (blocking)   pvm_upkbyte
 *
 * The data is encoded raw: the packing copies it, and both hosts have the same representation. In place, nothing is
 * packed: pvm_send reads the user's memory. libpvm3 gives a message to the daemon, or to the peer if the route is
 * direct, within these calls. It has no thread, and is not safe for use by several threads. The daemons buffer without
 * limit, so only ping-pong is offered.
 */
#include "bench/bench.h"

#include <dlfcn.h>
#include <limits.h>
#include <sys/time.h>

#define TAG 7
#define RAW 1      /* PvmDataRaw */
#define IN_PLACE 2 /* PvmDataInPlace */

typedef struct {
    bench_ep ep;
    void *library;      /* the reference that bench_library took */
    int peer, encoding; /* its task number; RAW or IN_PLACE */
    int (*initsend)(int encoding);
    int (*pkbyte)(unsigned char *data, int count, int stride);
    int (*send)(int task, int tag);
    int (*nrecv)(int task, int tag);
    int (*trecv)(int task, int tag, struct timeval *limit);
    int (*bufinfo)(int buffer, int *nbytes, int *tag, int *task);
    int (*upkbyte)(unsigned char *data, int count, int stride);
} pvm_ep;

/* Window 0: the daemons buffer. So only ping-pong is offered. */
static int pvm_prepare(bench_ep *base, const bench_plan *plan)
{
    base->window = 0;
    return bench_buffers(base, plan, 1);
}

/* Functions of PVM return a negative code for an error. */
static int check_code(pvm_ep *ep, int code, const char *call)
{
    return code < 0 ? bench_fail(&ep->ep, BENCH_ERROR, "%s failed with code %d", call, code) : BENCH_DONE;
}

/* A new buffer for each message, as PVM requires. pvm_send returns when the message is with the daemon or in the
 * socket, and sbuf is free then. */
static int pvm_send_message(bench_ep *base, size_t len)
{
    pvm_ep *ep = (pvm_ep *)base;
    int rc = check_code(ep, ep->initsend(ep->encoding), "pvm_initsend");
    if (rc == BENCH_DONE && len)
        rc = check_code(ep, ep->pkbyte(base->sbuf, (int)len, 1), "pvm_pkbyte");
    return rc == BENCH_DONE ? check_code(ep, ep->send(ep->peer, TAG), "pvm_send") : rc;
}

/* Both calls return a buffer's number, 0 if no message is there, or a negative code. The buffer stays current for
 * pvm_upkbyte, and the next receive frees it. */
static int pvm_recv_message(bench_ep *base, size_t len)
{
    pvm_ep *ep = (pvm_ep *)base;
    struct timeval slice = {0, BENCH_SLICE_MS * 1000};
    int nbytes = 0;
    int buffer = base->dontwait ? ep->nrecv(ep->peer, TAG) : ep->trecv(ep->peer, TAG, &slice);
    if (buffer == 0)
        return BENCH_NOT_YET;
    int rc = check_code(ep, buffer, base->dontwait ? "pvm_nrecv" : "pvm_trecv");
    if (rc == BENCH_DONE)
        rc = check_code(ep, ep->bufinfo(buffer, &nbytes, NULL, NULL), "pvm_bufinfo");
    if (rc != BENCH_DONE)
        return rc;
    if ((size_t)nbytes != len)
        return bench_wrong_length(base, (size_t)nbytes, len);
    base->rmsg = base->rbuf;
    return len ? check_code(ep, ep->upkbyte(base->rbuf, (int)len, 1), "pvm_upkbyte") : BENCH_DONE;
}

/* Drop the reference that dlopen took. The worker leaves PVM, and keeps the library. */
static void pvm_close(bench_ep *base)
{
    if (((pvm_ep *)base)->library)
        dlclose(((pvm_ep *)base)->library);
}

static const bench_ops pvm_ops = {
    .name = "pvm",
    .min_len = 0,
    .max_len = INT_MAX / 2,
    .prepare = pvm_prepare,
    .send = pvm_send_message,
    .recv = pvm_recv_message,
    .close = pvm_close,
};

bench_ep *bench_pvm_open(const char *library, int peer, bool in_place, bool polled, char *error)
{
    pvm_ep *ep = bench_ep_new(sizeof *ep, &pvm_ops, polled, error);
    if (!ep)
        return NULL;
    ep->peer = peer;
    ep->encoding = in_place ? IN_PLACE : RAW;
    const bench_symbol symbols[] = {{"pvm_initsend", &ep->initsend}, {"pvm_pkbyte", &ep->pkbyte},
                                    {"pvm_send", &ep->send},         {"pvm_nrecv", &ep->nrecv},
                                    {"pvm_trecv", &ep->trecv},       {"pvm_bufinfo", &ep->bufinfo},
                                    {"pvm_upkbyte", &ep->upkbyte}};
    const char *missing;
    ep->library = bench_library(library, symbols, sizeof symbols / sizeof *symbols, &missing);
    if (!ep->library)
        return bench_ep_fail(&ep->ep, error, "%s cannot be reached in %s", missing, library);
    return &ep->ep;
}
