/*
 * bench/ep_null.c - the two ends of the scale: no protocol at all, and the least that one could be.
 *
 * null: every operation is done at once. What the loop measures then is itself.
 *
 * floor: a message of 8 bytes is one store that the other core notices. Each side owns one cache line of a
 * shared page and counts up in it; a message is the count. Nothing between two processes can be faster on this
 * machine, so every shared-memory protocol is a multiple of it.
 *
 *      page:  | A's line ... | (a line nobody touches, against the adjacent-line prefetcher) | B's line ... |
 *
 * Both lines begin at 0. In ping-pong neither side is ever two messages ahead, so a count that has changed is
 * one message, and nothing can be missed; that is why there is no stream.
 */
#include "bench/bench.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---------------------------------------------------------------- null */

static int null_prepare(bench_ep *ep, const bench_plan *plan)
{
    /* The pattern would not match: nothing is carried anywhere. */
    if (plan->validate)
        return bench_fail(ep, BENCH_ERROR, "null carries no data: there is nothing to validate");
    return bench_buffers(ep, plan, 1);
}

static int null_message(bench_ep *ep, size_t len)
{
    (void)ep;
    (void)len;
    return BENCH_DONE;
}

static void null_close(bench_ep *ep)
{
    bench_buffers_release(ep);
    free(ep);
}

static const bench_ops null_ops = {
    .name = "null",
    .min_len = 0,
    .max_len = (size_t)1 << 30,
    .prepare = null_prepare,
    .send = null_message,
    .recv = null_message,
    .close = null_close,
};

bench_ep *bench_null_open(char *error)
{
    bench_ep *ep = bench_ep_new(sizeof *ep, &null_ops, true);
    if (!ep)
        snprintf(error, BENCH_ERROR_LEN, "no memory");
    return ep;
}

/* ---------------------------------------------------------------- floor */

#define PAGE_LEN ((size_t)4096)
/* 1024 bytes apart, so that fetching a neighbour of one side's line does not touch the other's. */
#define LINE_OF(side) ((size_t)(side) * 1024)

typedef struct {
    bench_ep ep;
    unsigned char *page;
    _Atomic uint64_t *out, *in; /* my line, the peer's */
    uint64_t n_sent, n_received;
} floor_ep;

static int floor_prepare(bench_ep *ep, const bench_plan *plan)
{
    if (plan->validate)
        return bench_fail(ep, BENCH_ERROR, "floor carries a counter, not data: there is nothing to validate");
    return bench_buffers(ep, plan, 1);
}

static int floor_send(bench_ep *base, size_t len)
{
    floor_ep *ep = (floor_ep *)base;
    (void)len;
    /* Release and acquire are what a message needs at the least: data before it would be seen
     * after it. On x86 they are plain moves. */
    atomic_store_explicit(ep->out, ++ep->n_sent, memory_order_release);
    return BENCH_DONE;
}

/* The count is compared for "not the old one": it can only be the next. */
static int floor_recv(bench_ep *base, size_t len)
{
    floor_ep *ep = (floor_ep *)base;
    (void)len;
    if (atomic_load_explicit(ep->in, memory_order_acquire) == ep->n_received)
        return BENCH_NOT_YET;
    ep->n_received++;
    return BENCH_DONE;
}

static void floor_close(bench_ep *base)
{
    floor_ep *ep = (floor_ep *)base;
    munmap(ep->page, PAGE_LEN);
    bench_buffers_release(base);
    free(ep);
}

static const bench_ops floor_ops = {
    .name = "floor",
    .min_len = 8,
    .max_len = 8,
    .prepare = floor_prepare,
    .send = floor_send,
    .recv = floor_recv,
    .close = floor_close,
};

bench_ep *bench_floor_open(int fd, int side, char *error)
{
    floor_ep *ep = bench_ep_new(sizeof *ep, &floor_ops, true);
    void *page = ep ? mmap(NULL, PAGE_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (page == MAP_FAILED) {
        snprintf(error, BENCH_ERROR_LEN, "cannot map the shared page of floor: %s", strerror(errno));
        free(ep);
        return NULL;
    }
    ep->page = page;
    ep->out = (_Atomic uint64_t *)(void *)(ep->page + LINE_OF(side));
    ep->in = (_Atomic uint64_t *)(void *)(ep->page + LINE_OF(!side));
    return &ep->ep;
}
