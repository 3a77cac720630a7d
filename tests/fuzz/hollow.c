/*
 * hollow.c - a link that carries nothing, a clock that moves with the input, random numbers that are the same in every
 * run. See hollow.h.
 *
 * Linked into a fuzzer its clock_gettime() and getrandom() take the place of libc's, so that what an input does is not
 * a matter of how fast the machine is: a finding can be replayed.
 */
#include "hollow.h"
#include "base/clock.h"
#include "base/pool.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

const uint8_t hollow_unknown_peer[6] = {0x02, 0x66, 0x75, 0x7a, 0x7a, 0x01};

/* ---------------------------------------------------------------- clock and random numbers */

static int in_input;
static uint64_t virtual_ns = 1000 * VK_SECOND, random_state;

/* Replaces libc's: programs with this file get the input's time. Outside of an input it is the real time, because the
 * fuzzer itself measures, too. */
int clock_gettime(clockid_t clock, struct timespec *t)
{
    if (!in_input || clock != CLOCK_MONOTONIC) /* libFuzzer's alarm handler looks at the other one, at any time */
        return (int)syscall(SYS_clock_gettime, clock, t);
    virtual_ns += 50 * VK_US; /* a loop that waits for time to pass reads it often */
    t->tv_sec = (time_t)(virtual_ns / VK_SECOND);
    t->tv_nsec = (long)(virtual_ns % VK_SECOND);
    return 0;
}

/* From a fixed beginning: the n-th number that inputs draw in a process is always the same. */
ssize_t getrandom(void *buffer, size_t len, unsigned flags)
{
    if (!in_input)
        return syscall(SYS_getrandom, buffer, len, flags);
    for (size_t i = 0; i < len; i++) {
        random_state = random_state * 6364136223846793005ull + 1442695040888963407ull;
        ((uint8_t *)buffer)[i] = (uint8_t)(random_state >> 56);
    }
    return (ssize_t)len;
}

/* AddressSanitizer's, where it is there. Not the leak detector: it takes a second, and this, which takes none, is
 * exact. */
__attribute__((weak)) size_t __sanitizer_get_current_allocated_bytes(void);

static size_t heap_bytes(void)
{
    return __sanitizer_get_current_allocated_bytes ? __sanitizer_get_current_allocated_bytes() : 0;
}

static size_t heap_before;

void hollow_input_begins(void)
{
    heap_before = heap_bytes();
    in_input = 1;
}

void hollow_input_leaves(void)
{
    in_input = 0;
}

__attribute__((weak)) void __lsan_disable(void);
__attribute__((weak)) void __lsan_enable(void);

void hollow_set_up_begins(void)
{
    if (__lsan_disable)
        __lsan_disable();
    in_input = 1;
}

void hollow_set_up_ends(void)
{
    in_input = 0;
    if (__lsan_enable)
        __lsan_enable();
}

void hollow_input_ends(void)
{
    in_input = 0;
    size_t now = heap_bytes();
    HOLLOW_CHECK(now == heap_before, "%zu bytes on the heap, %zu before the input", now, heap_before);
}

void hollow_violation(const char *file, int line, const char *condition, const char *format, ...)
{
    va_list args;
    in_input = 0;
    fprintf(stderr, "%s:%d: VIOLATION, expected %s: ", file, line, condition);
    va_start(args, format);
    vfprintf(stderr, format, args);
    va_end(args);
    fputc('\n', stderr);
    abort();
}

/* ---------------------------------------------------------------- the table */

/* The link's own struct is loop's and not ours to extend: which hollow NIC is meant is found by it. */
static struct hollow *open_nics[8];

static struct hollow *of(const struct link *link)
{
    for (size_t i = 0; i < sizeof open_nics / sizeof *open_nics; i++)
        if (open_nics[i] && open_nics[i]->nic->link == link)
            return open_nics[i];
    abort();
}

/* One peer is enough: who it is stands in the frames. */
static struct link_peer *the_peer(void)
{
    static uint64_t peer[16];
    return (struct link_peer *)(void *)peer;
}

/* The route to every station is known. */
static int hollow_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    (void)link, (void)address, (void)port;
    *out = the_peer();
    return 0;
}

/* -1: who waits for an answer to all gives up at once. */
static int hollow_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    (void)address, (void)frame;
    of(link)->n_sent++;
    return of(link)->kind == HOLLOW_ETHERNET ? -1 : 1;
}

static int hollow_count_neighbours(struct link *link)
{
    (void)link;
    return 1;
}

/* Reads all that would go out: what a frame points at must be there. */
static int hollow_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    static uint8_t wire[1 << 16];
    struct hollow *h = of(link);
    int sent = 0;
    (void)peer;
    for (; sent < n && h->room; sent++, h->room--) {
        const struct link_frame *f = &frames[sent];
        size_t len = 0;
        for (uint32_t i = 0; i < f->n_iov; i++) {
            HOLLOW_CHECK(len + f->iov[i].iov_len <= sizeof wire, "a frame of more than 64 KiB");
            memcpy(wire + len, f->iov[i].iov_base, f->iov[i].iov_len);
            len += f->iov[i].iov_len;
        }
        HOLLOW_CHECK(len == f->payload_len, "%zu bytes of payload, announced %zu", len, f->payload_len);
        HOLLOW_CHECK(f->header.len == f->header_len - sizeof f->header + len, "header.len %u", f->header.len);
        HOLLOW_CHECK(f->header.len <= HOLLOW_PAYLOAD, "header.len %u is more than the link takes", f->header.len);
        h->n_sent++;
        h->bytes_sent += f->header_len + len;
    }
    return sent ? sent : -EAGAIN;
}

/* The header comes as words here; its length must be that of the payload. */
static int hollow_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                             const void *payload, size_t len)
{
    static uint8_t wire[256];
    struct hollow *h = of(link);
    (void)peer;
    HOLLOW_CHECK(((header[0] >> 16) & 0xFFFF) == len && len < sizeof wire, "a short frame of %zu bytes", len);
    if (h->room == 0)
        return 0;
    memcpy(wire, payload, len);
    h->room--;
    h->n_sent++;
    h->bytes_sent += len + sizeof(struct wire_header);
    return 1;
}

static int hollow_poll(struct link *link, int budget)
{
    struct hollow *h = of(link);
    (void)budget;
    return h->feed ? h->feed(h, h->feed_context) : 0;
}

/* "Something is there already": a waiting call never sleeps in the kernel. A millisecond passes instead. */
static int hollow_arm(struct link *link)
{
    (void)link;
    virtual_ns += VK_MS;
    return 1;
}

/* Odd addresses are not there; from all others come bytes of 0x77. */
static int hollow_fetch(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *to, int n_to,
                        size_t len)
{
    (void)link, (void)peer;
    if (address & 1)
        return -EFAULT; /* as process_vm_readv has it for an address that is not there */
    for (int i = 0; i < n_to && len; i++) {
        size_t part = to[i].iov_len < len ? to[i].iov_len : len;
        memset(to[i].iov_base, 0x77, part);
        len -= part;
    }
    HOLLOW_CHECK(len == 0, "asked to fetch %zu bytes more than there is room for", len);
    return 0;
}

/* Bits 0 and 1 of can_place: not at all, through a mapping, or by process_vm_* (link.h). */
static int hollow_reach(struct link *link, struct link_peer *peer, const void *address, size_t len)
{
    (void)peer, (void)address, (void)len;
    return of(link)->can_place & 3;
}

/* Bits 2 and 3: it works, it is refused, or it has to go by frames. */
static int hollow_place(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                        const struct iovec *from, int n_from, size_t len)
{
    static uint8_t wire[1 << 16];
    (void)peer, (void)handle, (void)ptag, (void)address, (void)len;
    for (int i = 0; i < n_from; i++) {
        HOLLOW_CHECK(from[i].iov_len <= sizeof wire, "a piece of %zu bytes", from[i].iov_len);
        memcpy(wire, from[i].iov_base, from[i].iov_len);
    }
    return of(link)->can_place & 4 ? 0 : of(link)->can_place & 8 ? -EACCES : -EAGAIN;
}

/* ---------------------------------------------------------------- opening and closing */

static void count_report(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
    (void)e;
    ((struct hollow *)context)->n_reports++;
}

void hollow_open(struct hollow *h, enum hollow_kind kind, const viakit_nic_options *options)
{
    memset(h, 0, sizeof *h);
    h->kind = kind;
    h->room = UINT32_MAX;
    HOLLOW_CHECK(viakit_open_nic("loop:hollow", options, &h->handle) == VIP_SUCCESS, "%s", viakit_last_error());
    HOLLOW_CHECK(VipErrorCallback(h->handle, h, count_report) == VIP_SUCCESS, "%s", viakit_last_error());
    h->nic = (struct via_nic *)vk_pool_find(&via_nic_pool, h->handle);
    h->loop = h->nic->ops;
    h->ops = *h->loop;
    h->ops.about = (viakit_link_info){
        .name = "hollow", .lossless = kind != HOLLOW_ETHERNET, .leaves_host = kind == HOLLOW_ETHERNET};
    h->ops.route = hollow_route;
    h->ops.request_all = hollow_request_all;
    h->ops.count_neighbours = hollow_count_neighbours;
    h->ops.send = hollow_send;
    h->ops.poll = hollow_poll;
    h->ops.arm = hollow_arm;
    h->ops.disarm = NULL;
    h->ops.send_short = hollow_send_short;
    struct link_limits *l = &h->nic->limits;
    l->max_payload = HOLLOW_PAYLOAD;
    /* So that messages of both lengths occur among short inputs. */
    l->short_below = 128;
    l->max_batch = kind == HOLLOW_ETHERNET ? 4 : 1;
    l->checksum = h->nic->checksum = kind == HOLLOW_ETHERNET;
    if (kind == HOLLOW_SHARED) {
        h->ops.fetch = hollow_fetch;
        h->ops.reach = hollow_reach;
        h->ops.place = hollow_place;
    }
    h->nic->ops = &h->ops;
    for (size_t i = 0; i < sizeof open_nics / sizeof *open_nics; i++)
        if (open_nics[i] == NULL) {
            open_nics[i] = h;
            return;
        }
    abort();
}

void hollow_close(struct hollow *h)
{
    /* In the provider's own order, but by its inner functions: the program's calls would wait for a peer. */
    struct via_nic *nic = h->nic;
    while (nic->vis) /* while the hollow table is still there to take what they say */
        via_disconnect(nic->vis), nic->vis->send.reaped = nic->vis->send.posted,
                                  nic->vis->recv.reaped = nic->vis->recv.posted, via_vi_destroy(nic->vis);
    via_conn_fini(nic);
    via_drop_deferred(nic, NULL);
    nic->ops = h->loop;
    for (size_t i = 0; i < sizeof open_nics / sizeof *open_nics; i++)
        if (open_nics[i] == h)
            open_nics[i] = NULL;
    HOLLOW_CHECK(VipCloseNic(h->handle) == VIP_SUCCESS, "%s", viakit_last_error());
}

/* ---------------------------------------------------------------- driving */

/* The page behind is never given back: a target makes its blocks once. */
uint8_t *hollow_block(size_t len)
{
    size_t whole = (len + 4095) & ~(size_t)4095;
    uint8_t *p = mmap(NULL, whole + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    HOLLOW_CHECK(p != MAP_FAILED && mprotect(p + whole, 4096, PROT_NONE) == 0, "no memory");
    return p + whole - len;
}

int hollow_deliver(struct hollow *h, const uint8_t *frame, size_t len)
{
    static uint8_t *block;
    if (block == NULL)
        block = hollow_block(HOLLOW_FRAME_MAX);
    uint8_t *p = block + HOLLOW_FRAME_MAX - len;
    memcpy(p, frame, len);
    if (h->carry)
        return h->carry(h, p, len);
    link_deliver(&h->nic->link_client, hollow_unknown_peer, the_peer(), p, len);
    return 1;
}

/* Whatever is due now: acknowledgements, time-outs, handlers. */
void hollow_time_passes(struct hollow *h, uint64_t ms)
{
    virtual_ns += ms * VK_MS;
    via_drive_slow(h->nic);
    via_drive_rest(h->nic, 0);
    via_run_handlers(h->nic);
}
