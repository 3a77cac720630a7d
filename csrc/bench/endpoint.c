/*
 * bench/endpoint.c - code that endpoints share: creation, error texts, counters, and buffers.
 *
 * Buffers live from run to run and only grow. Every page is written when the memory is allocated, so that no run
 * includes page faults. A plan has n_sends buffers for sending and n_receives for receiving, which messages use in
 * turn:
 *
 *      | send 0 | send 1 | ... | receive 0 | receive 1 | ...                  n_sends, n_receives: powers of two
 *
 *      one, wide:     | BENCH_HEADROOM | offset | message, 1 byte at least | guard | to the end of a page |
 *      one, narrow:   | NARROW_HEADROOM | offset | message, 1 byte at least | guard | to the end of a cache line |
 *
 * A single buffer is wide: the message starts `offset` bytes after a page's start on both sides, so that the plan
 * determines the alignment. Several buffers of short messages are narrow and start `offset` bytes after a cache line's
 * start. Wide ones would all compete for the same few sets of a cache.
 *
 *      same      1 of each. A validated stream has one for each receive that is posted.
 *      touched   ping-pong: 1 of each, 2 for sending up to 4 KiB, so that no short message waits for the completion
 *                of the one before. Otherwise 4 to 64 for receiving, about RING_BYTES of them, and half as many for
 *                sending: a message can be written while the ones before it are under way.
 *      cold      plan->pool bytes of each, in an order in which neighbours do not follow each other.
 *
 * Invariants. The layout is a function of the plan and of `posted` alone, so both sides and all protocols have the
 * same. Buffers are powers of two in number, so message i finds its buffer by a mask (bench_send_buffer). A buffer is
 * never shared by two messages under way if the loop reads or writes messages.
 *
 * One thread per endpoint. The functions here have no state of their own, except bench_clock_init's.
 */
#include "base/clock.h"
#include "base/plural.h"
#include "base/text.h"
#include "bench/bench.h"
#include "bench/content.h"
#include "viakit.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>

#define PAGE ((size_t)4096)          /* the unit of alignment on both sides; larger pages are a multiple of it */
#define LINE ((size_t)64)            /* a cache line */
#define NARROW_HEADROOM LINE         /* enough for a datagram's header */
#define SHORT ((size_t)4096)         /* touched ping-pong: the longest message with two send buffers */
#define RING_BYTES ((size_t)1 << 20) /* touched streams: bytes of the receive buffers, within 4 to 64 buffers */
#define MIN_RING ((size_t)4)         /* buffers */
#define MAX_RING ((size_t)64)
#define TOUCH_NS 20000u             /* bench_touch_ns: shortest time of a batch */
#define TOUCH_BATCHES 3             /* the fastest batch counts */
#define LONG_COLD ((size_t)1 << 20) /* longer cold messages have a window of 2, to limit the pool */

/* Round up to the next multiple of `to`. */
static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* The first function that detects an error calls this; its callers return the code. */
int bench_fail(bench_ep *ep, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(ep->error, sizeof ep->error, format, args);
    va_end(args);
    return code;
}

/* A blocking endpoint begins with dontwait false; the loop sets it for bidir. */
void *bench_ep_new(size_t size, const bench_ops *ops, bool polled, char *error)
{
    bench_ep *ep = calloc(1, size);
    if (!ep) {
        snprintf(error, BENCH_ERROR_LEN, "no memory");
        return NULL;
    }
    ep->ops = ops;
    ep->polled = ep->dontwait = polled;
    return ep;
}

/* dontwait is false on return, also after an error: the endpoint blocks again. */
int bench_spin_first(bench_ep *ep, int (*op)(bench_ep *ep, size_t len), size_t len, uint64_t spin_ns, uint64_t *tries)
{
    uint64_t until = vk_now() + spin_ns;
    int rc;
    ep->dontwait = true;
    while (!(rc = op(ep, len)) && vk_now() < until)
        ++*tries;
    ep->dontwait = false;
    return rc;
}

/* clang-format off: it takes the list, which comes from csrc/meson.build, for a part of the next function's head */
#define BENCH_X(endpoint) bench_ep *bench_##endpoint##_open(const bench_options *options, char *error);
BENCH_ENDPOINTS
#undef BENCH_X
/* clang-format on */

/* A chain of comparisons instead of a table, because the list of endpoints comes from the build (csrc/meson.build), and
 * each opener has its own name. */
bench_ep *bench_open(const char *name, const bench_options *options, char *error)
{
#define BENCH_X(endpoint)             \
    if (strcmp(name, #endpoint) == 0) \
        return bench_##endpoint##_open(options, error);
    BENCH_ENDPOINTS
#undef BENCH_X
    snprintf(error, BENCH_ERROR_LEN, "no endpoint is called %s", name);
    return NULL;
}

int bench_address(bench_ep *ep, unsigned char *address, size_t room)
{
    return ep->ops->address ? ep->ops->address(ep, address, room)
                            : bench_fail(ep, BENCH_ERROR, "%s has no address", ep->ops->name);
}

int bench_join(bench_ep *ep, const unsigned char *address, size_t len)
{
    return ep->ops->join ? ep->ops->join(ep, address, len)
                         : bench_fail(ep, BENCH_ERROR, "%s is not connected by an address", ep->ops->name);
}

/* The endpoint's own part first, because it may use the buffers until then (registered memory). */
void bench_close(bench_ep *ep)
{
    if (!ep)
        return;
    if (ep->ops->close)
        ep->ops->close(ep);
    bench_buffers_release(ep);
    free(ep);
}

/* A function that returns NULL, so that a constructor can return its result. The text is formatted before the endpoint
 * is closed: it may be ep->error itself. */
void *bench_ep_fail(bench_ep *ep, char *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, BENCH_ERROR_LEN, format, args);
    va_end(args);
    bench_close(ep);
    return NULL;
}

int bench_wrong_length(bench_ep *ep, size_t got, size_t len)
{
    return bench_fail(ep, BENCH_ERROR, "a message of %zu byte%s arrived where one of %zu was due", got, vk_s(got), len);
}

/* A blocking call then returns EAGAIN after that time, and the loop checks its deadline. */
bool bench_socket_slice(int fd, int us)
{
    struct timeval slice = {.tv_sec = us / 1000000, .tv_usec = us % 1000000};
    return setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice) == 0 &&
           setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice) == 0;
}

/* RTLD_NOLOAD: a second copy of a library would have its own state, uninitialised. The found functions stay valid until
 * dlclose. */
void *bench_library(const char *path, const bench_symbol *symbols, size_t n, const char **missing)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL); /* the one that is in use already */
    *missing = library ? NULL : "the library itself";
    for (size_t i = 0; !*missing && i < n; i++) {
        void *found = dlsym(library, symbols[i].name);
        memcpy(symbols[i].into, &found, sizeof found); /* ISO C converts no void * to a function pointer */
        if (!found)
            *missing = symbols[i].name;
    }
    if (*missing && library)
        dlclose(library);
    return *missing ? NULL : library;
}

/* Always returns the total number, also if `values` has room for fewer. */
int bench_nic_counters(void *nic, uint64_t *values, int n)
{
    VIP_UINT64 all[VIAKIT_N_COUNTERS] = {0};
    viakit_nic_counters(nic, all);
    for (int i = 0; i < n && i < VIAKIT_N_COUNTERS; i++)
        values[i] = all[i];
    return VIAKIT_N_COUNTERS;
}

/* The text is cut at the buffer's end (base/text.h); its length counts on. */
int bench_nic_describe(bench_ep *ep, void *nic, struct vk_text *t)
{
    viakit_nic_info i;
    if (viakit_query_nic(nic, &i) != VIP_SUCCESS)
        return bench_fail(ep, BENCH_ERROR, "viakit_query_nic: %s", viakit_last_error());
    vk_put(t, "link=%s\ndevice=%s\ninterface=%s\nform=%s\nmtu=%u\nmax_payload=%u\nsuper_payload=%u\n", i.link, i.device,
           i.interface, i.form, i.mtu, i.max_payload, i.super_payload);
    vk_put(t, "ring_slots=%u\nnic_window=%u\nbytes_registered=%llu\nbytes_pinned=%llu\n", i.ring_slots, i.window,
           (unsigned long long)i.bytes_registered, (unsigned long long)i.bytes_pinned);
    vk_put(t, "lossless=%d\ncma=%d\nthread=%d\n", i.lossless, i.cma, i.thread);
    return BENCH_DONE;
}

const char *bench_counter_name(int counter)
{
#define BENCH_X(name, text) #name,
    static const char *const names[] = {BENCH_COUNTERS(BENCH_X)};
#undef BENCH_X
    return counter >= 0 && counter < BENCH_N_COUNTERS ? names[counter] : NULL;
}

/* The counters are free-running: the cost of a run is the difference of two readings. RUSAGE_THREAD excludes other
 * threads of the process (a NIC's, libzmq's). */
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

/* The fastest batch counts, because interruptions only make one slower. A batch is lengthened until the clock's
 * resolution does not matter. */
double bench_touch_ns(bench_ep *ep, const bench_plan *plan)
{
    uint64_t sum = 0, turns = 1;
    double best = 0;
    bench_clock_init();
    for (int batch = 0; batch < TOUCH_BATCHES; batch++) {
        uint64_t first = bench_ticks();
        for (uint64_t i = 0; i < turns; i++) {
            bench_content_write(bench_send_buffer(ep, i), plan->len, i);
            sum += bench_content_sum(bench_receive_buffer(ep, i), plan->len);
        }
        double ns = (double)(bench_ticks() - first) * bench_ns_per_tick();
        if (ns < TOUCH_NS) {
            turns *= 4; /* too short for the clock: repeat the batch with more turns */
            batch = -1;
            continue;
        }
        if (!batch || ns / (double)turns < best)
            best = ns / (double)turns;
    }
    *(volatile uint64_t *)&ep->touch_sum = sum; /* makes the reads observable to the compiler */
    return best;
}

/* ---------------------------------------------------------------- buffers */

/* The smallest power of two that is at least n. */
static size_t power_of_two(size_t n)
{
    size_t power = 1;
    while (power < n)
        power *= 2;
    return power;
}

/* Number of receive buffers of a touched stream: as many as hold RING_BYTES, 4 to 64. Both sides compute the same
 * number from their equal plans. */
static size_t ring(const bench_plan *plan)
{
    size_t n = MAX_RING;
    while (n > MIN_RING && n * plan->len > RING_BYTES)
        n /= 2;
    return n;
}

/* The layout that a plan requires, for any protocol. One spare byte of length, because replies of 1 byte use the same
 * buffers. */
typedef struct {
    size_t n_sends, n_receives, headroom, stride;
} layout;

/* `posted` enlarges the number of receives only where the loop reads messages back. Other runs let receives share a
 * buffer, as a program would that ignores the data; so the traffic through the caches is the same for all protocols. */
static layout lay_out(const bench_plan *plan, size_t posted)
{
    const bool pingpong = plan->mode == BENCH_PINGPONG;
    layout l = {.n_sends = 1, .n_receives = 1};
    size_t need = plan->offset + plan->len + 1 + BENCH_GUARD;
    if (plan->buffers == BENCH_COLD) {
        size_t n = plan->pool / round_up(NARROW_HEADROOM + need, LINE) + 1;
        l.n_sends = l.n_receives = power_of_two(n < 2 ? 2 : n);
    } else if (plan->buffers == BENCH_TOUCHED) {
        l.n_receives = pingpong ? 1 : ring(plan);
        l.n_sends = pingpong ? (plan->len <= SHORT ? 2 : 1) : ring(plan) / 2;
    }
    /* A message that the loop reads must not be overwritten by the next one, whose receive may already be posted. */
    bool read_back = plan->validate || plan->buffers == BENCH_TOUCHED;
    if (read_back && !pingpong && l.n_receives < posted)
        l.n_receives = power_of_two(posted);
    bool narrow = (l.n_sends > 1 || l.n_receives > 1) && need < PAGE;
    l.headroom = narrow ? NARROW_HEADROOM : BENCH_HEADROOM;
    l.stride = round_up(l.headroom + need, narrow ? LINE : PAGE);
    return l;
}

/* A multiple of the stride, for memory that begins at a page. */
size_t bench_buffers_need(const bench_plan *plan, size_t posted)
{
    layout l = lay_out(plan, posted);
    return l.stride * (l.n_sends + l.n_receives);
}

/* Also writes the guard of a validated run, once; the loop checks it behind every message. */
void bench_buffers_place(bench_ep *ep, const bench_plan *plan, size_t posted, unsigned char *base)
{
    layout l = lay_out(plan, posted);
    ep->n_sends = l.n_sends;
    ep->n_receives = l.n_receives;
    ep->stride = l.stride;
    /* Cold: advance by 5/8 of the pool each time, which no prefetcher follows. Odd, so that every buffer is used. */
    ep->step = plan->buffers == BENCH_COLD ? (l.n_sends / 8 * 5) | 1 : 1;
    ep->sends = ep->sbuf = base + l.headroom + plan->offset;
    ep->receives = ep->rbuf = ep->rmsg = ep->sends + l.stride * l.n_sends;
    for (size_t i = 0; plan->validate && i < l.n_receives; i++)
        memset(ep->receives + i * l.stride + (plan->len ? plan->len : 1), BENCH_GUARD_BYTE, BENCH_GUARD);
}

/* Memory that suffices is kept, so most runs allocate nothing. BENCH_DONE or an error; after an error the endpoint has
 * no buffers. */
int bench_buffers(bench_ep *ep, const bench_plan *plan, size_t posted)
{
    size_t need = bench_buffers_need(plan, posted);
    if (need > ep->buffers_len) {
        bench_buffers_release(ep);
        void *base = mmap(NULL, need, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED)
            return bench_fail(ep, BENCH_ERROR, "no memory for buffers of %zu bytes", need);
        /* Touch the pages now; otherwise page faults would be measured with the first messages. */
        memset(base, 0, need);
        ep->buffers = base;
        ep->buffers_len = need;
    }
    bench_buffers_place(ep, plan, posted, ep->buffers);
    return BENCH_DONE;
}

/* Also for an endpoint whose buffers are its own; then it does nothing. */
void bench_buffers_release(bench_ep *ep)
{
    if (ep->buffers)
        munmap(ep->buffers, ep->buffers_len);
    ep->buffers = NULL;
    ep->buffers_len = 0;
}

/* Enough messages under way to keep a link busy. Touched: two of the ring's buffers are left over, one for the message
 * that the receiver reads and one for a reply of 1 byte. */
size_t bench_window(const bench_plan *plan)
{
    if (plan->buffers == BENCH_TOUCHED && plan->mode != BENCH_PINGPONG)
        return ring(plan) - 2;
    if ((plan->validate && plan->len > 1u << 20) || (plan->buffers == BENCH_COLD && plan->len > LONG_COLD))
        return 2; /* every message under way has its own buffer then: limit the memory */
    size_t fit = ((size_t)32 << 20) / (plan->len + 1);
    return fit < 4 ? 4 : fit > 64 ? 64 : fit;
}
