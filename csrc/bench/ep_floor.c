/*
 * bench/ep_floor.c - the fastest possible message: one store of 8 bytes that the other core observes.
 *
 * Each side owns one cache line of a shared page and counts up in it; a message is the count. No transfer between two
 * processes on this machine can be faster, so the cost of every shared-memory protocol is a multiple of it.
 *
 *      page:  | A's line ... | (unused lines, against the adjacent-line prefetcher) | B's line ... |
 *
 * Both lines begin at 0. In ping-pong neither side is ever two messages ahead, so a changed count is one message, and
 * no message can be missed. For that reason there is no stream.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE_LEN ((size_t)4096)
/* 1024 bytes apart, so that fetching a neighbour of one side's line does not touch the other's. */
#define LINE_OF(side) ((size_t)(side) * 1024)

typedef struct {
    bench_ep ep;
    unsigned char *page;
    _Atomic uint64_t *out, *in;  /* my line, the peer's */
    uint64_t n_sent, n_received; /* the values of both lines, as this side knows them */
} floor_ep;

/* The counts go on from run to run. Both sides have received all messages of a run at its end, so they agree. */
static int floor_prepare(bench_ep *ep, const bench_plan *plan)
{
    if (plan->validate)
        return bench_fail(ep, BENCH_ERROR, "floor carries a counter, not data: there is nothing to validate");
    return bench_buffers(ep, plan, 1);
}

/* One store. `len` is 8: the count itself is the message. */
static int floor_send(bench_ep *base, size_t len)
{
    floor_ep *ep = (floor_ep *)base;
    (void)len;
    /* Release and acquire are the minimum for a message: data written before it is visible after it. On x86 they are
     * plain moves. */
    atomic_store_explicit(ep->out, ++ep->n_sent, memory_order_release);
    return BENCH_DONE;
}

/* Any changed count is the next one, so the comparison is for inequality. */
static int floor_recv(bench_ep *base, size_t len)
{
    floor_ep *ep = (floor_ep *)base;
    (void)len;
    if (atomic_load_explicit(ep->in, memory_order_acquire) == ep->n_received)
        return BENCH_NOT_YET;
    ep->n_received++;
    return BENCH_DONE;
}

/* The descriptor stays the caller's; the mapping is this endpoint's. */
static void floor_close(bench_ep *base)
{
    floor_ep *ep = (floor_ep *)base;
    if (ep->page)
        munmap(ep->page, PAGE_LEN);
}

static const bench_ops floor_ops = {
    .name = "floor",
    .min_len = 8,
    .max_len = 8,
    .empty = true,
    .prepare = floor_prepare,
    .send = floor_send,
    .recv = floor_recv,
    .close = floor_close,
};

BENCH_OPEN(floor)
{
    floor_ep *ep = bench_ep_new(sizeof *ep, &floor_ops, true, error);
    if (!ep)
        return NULL;
    void *page = mmap(NULL, PAGE_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, options->fd, 0);
    if (page == MAP_FAILED)
        return bench_ep_fail(&ep->ep, error, "cannot map the shared page of floor: %s", strerror(errno));
    ep->page = page;
    ep->out = (_Atomic uint64_t *)(void *)(ep->page + LINE_OF(options->side));
    ep->in = (_Atomic uint64_t *)(void *)(ep->page + LINE_OF(!options->side));
    return &ep->ep;
}
