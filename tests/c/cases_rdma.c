/*
 * cases_rdma.c - RDMA writes: A writes into memory of B that B has granted, and into memory that it has not.
 *
 * The promise of docs/provider.md: a write lands, last byte last, while its target computes and calls nothing; and
 * nothing that arrives from a wire writes outside a region that grants it. B sends the address of its memory to A over
 * the control channel. B detects a completed write by a message behind it, by immediate data, or by reading the memory.
 */
#include "conformance.h"

#define RELIABLE(level) ((level) != VIP_SERVICE_UNRELIABLE)

/* Address of B's memory for A's writes. It goes over the control channel unchanged, because both sides run one
 * program. */
typedef struct {
    uint64_t at;
    VIP_MEM_HANDLE handle;
} target;

static target offer(endpoint *e, void *at, VIP_MEM_HANDLE handle)
{
    target t;
    memset(&t, 0, sizeof(t));
    t.at = (uint64_t)(uintptr_t)at;
    t.handle = handle;
    side_send(e->s, &t, sizeof(t));
    return t;
}

static target take(endpoint *e)
{
    target t;
    side_recv(e->s, &t, sizeof(t));
    return t;
}

/* A reports to B in band that its earlier writes have arrived: an empty message, in order behind the writes. */
static void send_note(endpoint *e)
{
    VIP_DESCRIPTOR *d = prep_send(e, descriptor(e, 1), NULL, 0);
    post_send(e, d);
    reap_send(e, d, VIP_STATUS_OP_SEND);
}

/* ---- rdma_write: bytes appear where they were sent to, no descriptor is consumed, nothing beside them changes */

/* Nothing, a byte, a word, a line's worth, a page, many frames or one super-frame, several of these. */
static const size_t write_lens[] = {0, 1, 8, 100, 4096, 60000, 300000};
#define N_WRITES (sizeof(write_lens) / sizeof(write_lens[0]))

void rdma_write_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], 1 << 20);
        endpoint_connect(&e, "write");
        for (size_t k = 0; k < N_WRITES; k++) {
            target t = take(&e);
            VIP_DESCRIPTOR *d = descriptor(&e, 2);
            uint8_t *data = buffer(&e, write_lens[k]);
            /* Both sides leave it out, and have already exchanged the address. */
            if (write_lens[k] > 70000 && !RELIABLE(s->levels[i]))
                continue; /* no flow control: too much at once for some links */
            pattern_fill(data, write_lens[k], k);
            post_send(&e, prep_write(&e, d, data, write_lens[k], t.at, t.handle));
            reap_send(&e, d, VIP_STATUS_OP_RDMA_WRITE);
            send_note(&e);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void rdma_write_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], 1 << 20);
        endpoint_connect(&e, "write");
        for (size_t k = 0; k < N_WRITES; k++) {
            VIP_DESCRIPTOR *d = descriptor(&e, 1);
            uint8_t *data = buffer(&e, write_lens[k]);
            post_recv(&e, prep_recv(&e, d, NULL, 0));
            /* Memory from buffer() is filled with 0xEE and stands between guards: what is written beside shows. */
            offer(&e, data, e.mh);
            if (write_lens[k] > 70000 && !RELIABLE(s->levels[i]))
                continue;
            reap_recv(&e, d, VIP_STATUS_OP_RECEIVE); /* the note, not the write */
            pattern_check(data, write_lens[k], k);
            check_guards(&e);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- rdma_shifted: source and destination lie differently in their pages. Some processors copy slowly where they are
 * a few bytes apart, and shm copies in two steps there. A write and a message of each, longer than one step or not. */

static const uint64_t shifts[] = {0, 1, 16, 31, 32};
static const size_t shifted_lens[] = {5000, 60000, 140001};
#define N_SHIFTED (sizeof(shifts) / sizeof(shifts[0]) * 3)
#define SHIFTED_AREA (4u << 20)

/* The first place from `area` on that is so far behind `from`, modulo the page. */
static uint64_t shifted_place(uint64_t area, uint64_t from, size_t k)
{
    return area + (from + shifts[k / 3] - area) % 4096;
}

void rdma_shifted_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], SHIFTED_AREA);
        endpoint_connect(&e, "shift");
        for (size_t k = 0; k < N_SHIFTED; k++) {
            size_t len = shifted_lens[k % 3];
            if (len > 70000 && !RELIABLE(s->levels[i]))
                continue;
            VIP_DESCRIPTOR *d = descriptor(&e, 2), *m = descriptor(&e, 1);
            uint8_t *data = buffer(&e, len);
            uint64_t from = (uint64_t)(uintptr_t)data;
            pattern_fill(data, len, k);
            side_send(s, &from, sizeof(from));
            target t = take(&e);
            post_send(&e, prep_write(&e, d, data, len, t.at, t.handle));
            reap_send(&e, d, VIP_STATUS_OP_RDMA_WRITE);
            post_send(&e, prep_send(&e, m, data, len));
            reap_send(&e, m, VIP_STATUS_OP_SEND);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void rdma_shifted_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], SHIFTED_AREA);
        endpoint_connect(&e, "shift");
        for (size_t k = 0; k < N_SHIFTED; k++) {
            size_t len = shifted_lens[k % 3];
            if (len > 70000 && !RELIABLE(s->levels[i]))
                continue;
            VIP_DESCRIPTOR *d = descriptor(&e, 1);
            uint8_t *areas[2] = {buffer(&e, len + 4096), buffer(&e, len + 4096)}, *places[2];
            uint64_t from;
            side_recv(s, &from, sizeof(from));
            for (int j = 0; j < 2; j++)
                places[j] =
                    areas[j] + (shifted_place((uint64_t)(uintptr_t)areas[j], from, k) - (uint64_t)(uintptr_t)areas[j]);
            post_recv(&e, prep_recv(&e, d, places[1], len));
            offer(&e, places[0], e.mh);
            reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
            for (int j = 0; j < 2; j++) {
                pattern_check(places[j], len, k);
                CHECK(places[j] == areas[j] || places[j][-1] == 0xEE);
                CHECK(places[j][len] == 0xEE);
            }
            check_guards(&e);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- rdma_immediate: with immediate data a write consumes one receive, whose buffer stays as it was */

void rdma_immediate_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], 65536);
        endpoint_connect(&e, "imm");
        for (unsigned k = 0; k < 3; k++) {
            /* No data, one frame, several frames: the receive must complete behind the last. */
            static const size_t lens[3] = {0, 64, 20000};
            target t = take(&e);
            VIP_DESCRIPTOR *d = descriptor(&e, 2);
            uint8_t *data = buffer(&e, lens[k]);
            pattern_fill(data, lens[k], k);
            prep_write(&e, d, data, lens[k], t.at, t.handle);
            d->CS.Control |= VIP_CONTROL_IMMEDIATE;
            d->CS.ImmediateData = 0xABCD0000u + k;
            post_send(&e, d);
            CHECK(next_send(&e) == d);
            /* Whether a sender's own status repeats the bit is left open by VIPL. */
            CHECK_STATUS(d, VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_WRITE | (d->CS.Status & VIP_STATUS_IMMEDIATE));
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void rdma_immediate_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], 65536);
        endpoint_connect(&e, "imm");
        for (unsigned k = 0; k < 3; k++) {
            static const size_t lens[3] = {0, 64, 20000};
            VIP_DESCRIPTOR *d = descriptor(&e, 1);
            uint8_t *data = buffer(&e, lens[k]), *untouched = buffer(&e, 32);
            post_recv(&e, prep_recv(&e, d, untouched, 32));
            offer(&e, data, e.mh);
            reap_recv(&e, d, VIP_STATUS_OP_REMOTE_RDMA_WRITE | VIP_STATUS_IMMEDIATE);
            CHECK_EQ(d->CS.ImmediateData, 0xABCD0000u + k);
            CHECK_EQ(d->CS.Length, 0); /* counts what is in the receive's own segments */
            pattern_check(data, lens[k], k);
            for (int b = 0; b < 32; b++)
                CHECK_EQ(untouched[b], 0xEE);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- rdma_bounds, rdma_denied: memory that is not granted
 *
 * Every row is one write on a fresh connection. The expected result depends on the level:
 *   unreliable            dropped, RDMAW_PROT at B, the connection stays
 *   reliable delivery     RDMAW_PROT at B, the connection is broken on both sides
 *   reliable reception    the same, and A's descriptor has RDMA_PROT_ERROR
 * With immediate data B gets the error in the receive that the write consumed instead of in its handler. */

typedef struct {
    const char *name;
    /* Signed: before the start as well. */
    int64_t from_start; /* the write begins so far behind the start of the granted region... */
    size_t len;
    int absolute;                /* ...or at this very address */
    VIP_MEM_HANDLE wrong_handle; /* XORed to the handle */
    enum { GRANT, REGION_NOT_ENABLED, VI_NOT_ENABLED, OTHER_TAG, DEREGISTERED } grant;
} denied_row;

#define REGION 8192

static const denied_row bounds_rows[] = {
    {"one byte past the end", REGION - 99, 100, 0, 0, GRANT},
    {"begins at the end", REGION, 1, 0, 0, GRANT},
    {"begins before the start", -1, 100, 0, 0, GRANT},
    /* 1 GiB away: nothing of the program is there at all. */
    {"far outside", 1 << 30, 8, 0, 0, GRANT},
    {"begins inside, many frames, ends outside", 100, 60000, 0, 0, GRANT},
    /* -8 as an absolute address: the last 8 bytes that there are, and 56 bytes behind the end of memory. */
    {"the address wraps", -8, 64, 1, 0, GRANT},
    {"address 0", 0, 8, 1, 0, GRANT},
};

static const denied_row denied_rows[] = {
    /* A handle that no registration returned. */
    {"a handle that never was", 0, 8, 0, 0x00ffffff, GRANT},
    /* One bit of the generation is wrong, so the table's index is right. */
    {"a handle nearly right", 0, 8, 0, 0x10000, GRANT},
    {"the region does not grant it", 0, 8, 0, 0, REGION_NOT_ENABLED},
    {"the VI does not grant it", 0, 8, 0, 0, VI_NOT_ENABLED},
    {"the region has another tag", 0, 8, 0, 0, OTHER_TAG},
    {"deregistered", 0, 8, 0, 0, DEREGISTERED},
};

static void denied_a(side *s, const denied_row *row, VIP_RELIABILITY_LEVEL level, int immediate)
{
    endpoint e;
    target t;
    VIP_DESCRIPTOR *d, *got;
    uint8_t *data;
    endpoint_open(&e, s, level, 65536);
    d = descriptor(&e, 2);
    data = buffer(&e, row->len);
    memset(data, 0x11, row->len); /* not what B's memory is filled with: a byte that gets through must show there */
    endpoint_connect(&e, "denied");
    t = take(&e);
    prep_write(&e, d, data, row->len, row->absolute ? (uint64_t)row->from_start : t.at + (uint64_t)row->from_start,
               t.handle ^ row->wrong_handle);
    if (immediate)
        d->CS.Control |= VIP_CONTROL_IMMEDIATE;
    post_send(&e, d);
    got = next_send(&e);
    CHECK(got == d);
    /* Other bits may be set beside it, as the connection breaks. */
    if (level == VIP_SERVICE_RELIABLE_RECEPTION && !(got->CS.Status & VIP_STATUS_RDMA_PROT_ERROR))
        FAIL("%s: the writer's status is 0x%x, without RDMA_PROT_ERROR", row->name, got->CS.Status);
    if (RELIABLE(level))
        wait_state(&e, VIP_STATE_ERROR);
    else
        send_note(&e); /* the connection lives */
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* Registers the region again, under a handle of its own, as the row wants it; `tag`: of another tag, for the caller to
 * destroy. */
static VIP_MEM_HANDLE grant(endpoint *e, const denied_row *row, uint8_t *region, VIP_PROTECTION_HANDLE *tag)
{
    side *s = e->s;
    VIP_MEM_ATTRIBUTES attr = {e->ptag, VIP_TRUE, VIP_FALSE};
    VIP_MEM_HANDLE handle;
    if (row->grant == OTHER_TAG) {
        CHECK_OK(VipCreatePtag(s->nic, tag));
        attr.Ptag = *tag;
    }
    if (row->grant == REGION_NOT_ENABLED)
        attr.EnableRdmaWrite = VIP_FALSE;
    if (row->grant == VI_NOT_ENABLED) {
        VIP_VI_ATTRIBUTES vi_attr = e->attr;
        /* Granted by the region is not enough: the VI must allow it, too. */
        CHECK_OK(VipDestroyVi(e->vi));
        vi_attr.EnableRdmaWrite = VIP_FALSE;
        CHECK_OK(VipCreateVi(s->nic, &vi_attr, NULL, NULL, &e->vi));
    }
    CHECK_OK(VipRegisterMem(s->nic, region, REGION, &attr, &handle));
    if (row->grant == DEREGISTERED)
        CHECK_OK(VipDeregisterMem(s->nic, region, handle));
    return handle;
}

static void denied_b(side *s, const denied_row *row, VIP_RELIABILITY_LEVEL level, int immediate)
{
    endpoint e;
    VIP_PROTECTION_HANDLE tag = NULL;
    VIP_MEM_HANDLE handle;
    VIP_DESCRIPTOR *d;
    /* The counts are of the NIC and go on from row to row. */
    int before = error_count(s, VIP_ERROR_RDMAW_PROT);
    uint8_t *arena, *region;
    endpoint_open(&e, s, level, 4 * REGION);
    d = descriptor(&e, 1);
    /* The granted region lies in the middle of memory that is registered for other purposes and must stay as it is. */
    arena = buffer(&e, 3 * REGION);
    region = arena + REGION;
    handle = grant(&e, row, region, &tag);
    post_recv(&e, prep_recv(&e, d, NULL, 0));
    endpoint_connect(&e, "denied");
    offer(&e, region, handle);
    if (immediate) {
        VIP_DESCRIPTOR *got = next_recv(&e);
        if (!(got->CS.Status & VIP_STATUS_RDMA_PROT_ERROR))
            FAIL("%s: the consumed receive's status is 0x%x, without RDMA_PROT_ERROR", row->name, got->CS.Status);
    } else {
        wait_error(s, VIP_ERROR_RDMAW_PROT, before + 1);
    }
    /* The note shows that the connection lives. */
    if (RELIABLE(level))
        wait_state(&e, VIP_STATE_ERROR);
    else
        reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
    for (size_t i = 0; i < 3 * REGION; i++) {
        int inside = i >= REGION && i < 2 * REGION;
        /* A write of many frames may have begun inside what was granted before its end was found to be outside. */
        if (arena[i] != 0xEE && !(inside && row->grant == GRANT && row->len > 1000))
            FAIL("%s: byte %zu was written", row->name, i);
    }
    endpoint_disconnect(&e);
    if (row->grant != DEREGISTERED)
        CHECK_OK(VipDeregisterMem(s->nic, region, handle));
    endpoint_close(&e);
    if (tag)
        CHECK_OK(VipDestroyPtag(s->nic, tag));
}

static void denied(side *s, const denied_row *rows, size_t n)
{
    for (int i = 0; i < s->n_levels; i++)
        for (size_t k = 0; k < n; k++)
            /* With immediate data at the reliable levels only: at the unreliable one the receive that the write
             * consumes would be the one that B keeps for the note. */
            for (int immediate = 0; immediate <= RELIABLE(s->levels[i]); immediate++) {
                if (s->role == SIDE_A)
                    denied_a(s, &rows[k], s->levels[i], immediate);
                else
                    denied_b(s, &rows[k], s->levels[i], immediate);
            }
}

void rdma_bounds_a(side *s)
{
    denied(s, bounds_rows, sizeof(bounds_rows) / sizeof(bounds_rows[0]));
}

void rdma_bounds_b(side *s)
{
    denied(s, bounds_rows, sizeof(bounds_rows) / sizeof(bounds_rows[0]));
}

void rdma_denied_a(side *s)
{
    denied(s, denied_rows, sizeof(denied_rows) / sizeof(denied_rows[0]));
}

void rdma_denied_b(side *s)
{
    denied(s, denied_rows, sizeof(denied_rows) / sizeof(denied_rows[0]));
}

/* ---- rdma_spin: the target calls nothing, spins on the last word, and when that has come everything has
 *
 * Rounds alternate between two buffers; B answers over its control channel only to start the next round. */

/* One word, within a cache line, several lines, about a frame, a page, many frames. */
static const size_t spin_lens[] = {8, 24, 256, 1500, 4096, 65536};

/* The word that is spun on: 8 bytes where the length is a multiple of that, 4 otherwise. */
static void put_last_word(uint8_t *data, size_t len, uint64_t round)
{
    uint32_t word = (uint32_t)round;
    if (len % 8)
        memcpy(data + len - 4, &word, 4);
    else
        memcpy(data + len - 8, &round, 8);
}

void rdma_spin_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        target t;
        uint8_t *data;
        VIP_DESCRIPTOR *d;
        endpoint_open(&e, s, s->levels[i], 70000);
        data = buffer(&e, 65536);
        d = descriptor(&e, 2);
        endpoint_connect(&e, "spin");
        t = take(&e);
        for (uint64_t round = 1; round <= 60; round++) {
            size_t len = spin_lens[round % 6];
            pattern_fill(data, len, round);
            put_last_word(data, len, round);
            /* B spins only after this: both know that the round has begun. */
            side_exchange(s, round);
            post_send(&e, prep_write(&e, d, data, len, t.at, t.handle));
            reap_send(&e, d, VIP_STATUS_OP_RDMA_WRITE);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* A race by design: the provider writes while this thread reads, as a device would. So it must not be instrumented. */
__attribute__((no_sanitize("thread"), noinline)) static void spin_on(const uint8_t *data, size_t len, uint64_t round)
{
    const volatile uint64_t *long_word = (const volatile uint64_t *)(const void *)(data + len - 8);
    const volatile uint32_t *word = (const volatile uint32_t *)(const void *)(data + len - 4);
    double end = check_now() + CHECK_WAIT_S;
    uint64_t spins = 0;
    while (len % 8 ? *word != (uint32_t)round : *long_word != round)
        if (++spins % 1024 == 0) {
            if (check_now() > end)
                FAIL("the last word never came: it is 0x%x", *word);
            sched_yield(); /* a machine of one core must let the writer run */
        }
    atomic_thread_fence(memory_order_acquire);
}

/* Reads while a late write might still land: so not instrumented either, and no memcmp. */
__attribute__((no_sanitize("thread"), noinline)) static uint64_t plain_hash(const volatile uint8_t *p, size_t len)
{
    uint64_t hash = 14695981039346656037ull;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ p[i]) * 1099511628211ull;
    return hash;
}

void rdma_spin_b(side *s)
{
    uint8_t *expected = malloc(65536);
    CHECK(expected != NULL);
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        uint8_t *data;
        endpoint_open(&e, s, s->levels[i], 70000);
        data = buffer(&e, 65536);
        endpoint_connect(&e, "spin");
        offer(&e, data, e.mh);
        for (uint64_t round = 1; round <= 60; round++) {
            size_t len = spin_lens[round % 6];
            pattern_fill(expected, len, round);
            put_last_word(expected, len, round);
            side_exchange(s, round);
            spin_on(data, len, round);
            if (plain_hash(data, len) != plain_hash(expected, len))
                /* Only now: anything that looked at the memory through the provider would help the write along. */
                FAIL("the last word came before the rest of %zu bytes, round %llu", len, (unsigned long long)round);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
    free(expected);
}

/* ---- rdma_empty_queue: with immediate data, and no receive to consume: as for a message without a receive */

void rdma_empty_queue_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        target t;
        VIP_DESCRIPTOR *d;
        endpoint_open(&e, s, s->levels[i], 4096);
        d = descriptor(&e, 2);
        endpoint_connect(&e, "empty");
        /* Immediate data need a receive at B, and B has posted none. */
        t = take(&e);
        prep_write(&e, d, buffer(&e, 64), 64, t.at, t.handle);
        d->CS.Control |= VIP_CONTROL_IMMEDIATE;
        post_send(&e, d);
        CHECK(next_send(&e) == d);
        if (s->levels[i] == VIP_SERVICE_RELIABLE_RECEPTION)
            CHECK(d->CS.Status & VIP_STATUS_REMOTE_DESC_ERROR);
        if (RELIABLE(s->levels[i]))
            wait_state(&e, VIP_STATE_ERROR);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void rdma_empty_queue_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        int before = error_count(s, VIP_ERROR_RECVQ_EMPTY);
        uint8_t *target_memory;
        endpoint_open(&e, s, s->levels[i], 4096);
        /* Before the calls that follow: a thread sanitizer sees no order that comes about through the other side. */
        target_memory = buffer(&e, 64);
        endpoint_connect(&e, "empty");
        offer(&e, target_memory, e.mh);
        if (s->levels[i] != VIP_SERVICE_RELIABLE_RECEPTION)
            wait_error(s, VIP_ERROR_RECVQ_EMPTY, before + 1);
        if (RELIABLE(s->levels[i]))
            wait_state(&e, VIP_STATE_ERROR);
        else
            CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}
