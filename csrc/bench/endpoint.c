/*
 * bench/endpoint.c - what endpoints share: birth, error texts, counters, and buffers.
 *
 * Buffers live from run to run and only grow. Every page is touched when it is made, so that no run pays for
 * page faults, and a message starts `offset` bytes after a page's start on both sides, so that alignment is
 * what the plan says and not what malloc happened to give.
 *
 *      one slot:   | BENCH_HEADROOM | offset | message, 1 byte at least | guard | to the end of a page |
 *                                            ^ sbuf, rbuf               ^ BENCH_GUARD bytes of BENCH_GUARD_BYTE
 *
 * The first slot is for sending, the others for receiving. With one receive slot all messages go to the same
 * place (stride 0), which is what a program that looks at one message at a time would do.
 */
#include "bench/bench.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define PAGE ((size_t)4096)

/* To the next multiple of `to`. */
static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

int bench_fail(bench_ep *ep, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(ep->error, sizeof ep->error, format, args);
    va_end(args);
    return code;
}

/* A blocking endpoint begins with dontwait false; the loop sets it for bidir. */
void *bench_ep_new(size_t size, const bench_ops *ops, bool polled)
{
    bench_ep *ep = calloc(1, size);
    if (!ep)
        return NULL;
    ep->ops = ops;
    ep->polled = ep->dontwait = polled;
    return ep;
}

void bench_close(bench_ep *ep)
{
    if (ep)
        ep->ops->close(ep);
}

const char *bench_counter_name(int counter)
{
#define BENCH_X(name, text) #name,
    static const char *const names[] = {BENCH_COUNTERS(BENCH_X)};
#undef BENCH_X
    return counter >= 0 && counter < BENCH_N_COUNTERS ? names[counter] : NULL;
}

/* Free-running: who wants what a run cost takes the difference of two readings. RUSAGE_THREAD, so that other
 * threads of the process (a NIC's, libzmq's) do not count. */
void bench_counters(bench_ep *ep, uint64_t *values)
{
    memcpy(values, ep->count, sizeof ep->count);
    struct rusage usage;
    if (!getrusage(RUSAGE_THREAD, &usage)) {
        values[BENCH_COUNTER_cpu_user_ns] =
            (uint64_t)usage.ru_utime.tv_sec * 1000000000u + (uint64_t)usage.ru_utime.tv_usec * 1000u;
        values[BENCH_COUNTER_cpu_system_ns] =
            (uint64_t)usage.ru_stime.tv_sec * 1000000000u + (uint64_t)usage.ru_stime.tv_usec * 1000u;
        values[BENCH_COUNTER_voluntary_switches] = (uint64_t)usage.ru_nvcsw;
        values[BENCH_COUNTER_involuntary_switches] = (uint64_t)usage.ru_nivcsw;
    }
    if (ep->ops->counters)
        ep->ops->counters(ep, values);
}

/* ---------------------------------------------------------------- buffers */

/* Each slot starts on a page; one spare byte of length, because acknowledgements of 1 byte use the same buffers. */
static size_t slot_len(const bench_plan *plan)
{
    return round_up(BENCH_HEADROOM + plan->offset + plan->len + 1 + BENCH_GUARD, PAGE);
}

size_t bench_buffers_need(const bench_plan *plan, size_t slots)
{
    return slot_len(plan) * (1 + slots);
}

/* The guard is written here, once per run, and check() (loop.c) looks whether it is still there. */
void bench_buffers_place(bench_ep *ep, const bench_plan *plan, size_t slots, unsigned char *base)
{
    size_t slot = slot_len(plan);
    ep->sbuf = base + BENCH_HEADROOM + plan->offset;
    ep->rbuf = ep->rmsg = ep->sbuf + slot;
    ep->stride = slots > 1 ? slot : 0;
    for (size_t i = 0; i < slots; i++)
        memset(ep->rbuf + i * slot + (plan->len ? plan->len : 1), BENCH_GUARD_BYTE, BENCH_GUARD);
}

int bench_buffers(bench_ep *ep, const bench_plan *plan, size_t slots)
{
    size_t need = bench_buffers_need(plan, slots);
    if (need > ep->buffers_len) {
        bench_buffers_release(ep);
        void *base = mmap(NULL, need, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED)
            return bench_fail(ep, BENCH_ERROR, "no memory for buffers of %zu bytes", need);
        /* Touched now: page faults would otherwise be measured with the first messages. */
        memset(base, 0, need);
        ep->buffers = base;
        ep->buffers_len = need;
    }
    bench_buffers_place(ep, plan, slots, ep->buffers);
    return BENCH_DONE;
}

void bench_buffers_release(bench_ep *ep)
{
    if (ep->buffers)
        munmap(ep->buffers, ep->buffers_len);
    ep->buffers = NULL;
    ep->buffers_len = 0;
}

/* 4 to 64 messages, and no more than 32 MiB of them where 4 fit that: enough under way to keep a link busy. */
size_t bench_window(const bench_plan *plan)
{
    if (plan->validate && plan->len > 1u << 20)
        return 2; /* every message under way has a slot of its own then: keep the memory modest */
    size_t fit = ((size_t)32 << 20) / (plan->len + 1);
    return fit < 4 ? 4 : fit > 64 ? 64 : fit;
}
