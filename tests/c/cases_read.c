/*
 * cases_read.c - RDMA reads: A reads memory of B that B has granted, and memory that it has not.
 *
 * Reads exist at the reliable levels only, and the target's program does nothing for them (docs/provider.md, "RDMA
 * reads"): the requester asks for pieces, places what comes, and asks again for what is missing. Most cases here are
 * about that: copies of requests that arrive late, answers that get lost, memory that goes away meanwhile.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance.h"

#define RELIABLE_LEVEL(level) ((level) != VIP_SERVICE_UNRELIABLE)
#define N_RELIABLE 2 /* the first two of levels[]: RDMA read is for these */

/* The segment by its place: VIP_DESCRIPTOR declares fewer than a descriptor may have. */
static VIP_DESCRIPTOR_SEGMENT *segment_of(VIP_DESCRIPTOR *d, unsigned i)
{
    return (VIP_DESCRIPTOR_SEGMENT *)(void *)((char *)d + sizeof(VIP_CONTROL_SEGMENT)) + i;
}

/* What A must know to read B's memory; goes over the control channel. */
typedef struct {
    uint64_t at;
    VIP_MEM_HANDLE handle;
} source;

static void offer(endpoint *e, const void *at, VIP_MEM_HANDLE handle)
{
    source t;
    memset(&t, 0, sizeof(t));
    t.at = (uint64_t)(uintptr_t)at;
    t.handle = handle;
    side_send(e->s, &t, sizeof(t));
}

static source take(endpoint *e)
{
    source t;
    side_recv(e->s, &t, sizeof(t));
    return t;
}

/* An endpoint whose VI and memory may be read by the peer. */
static void open_readable(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, size_t size)
{
    VIP_MEM_ATTRIBUTES attr;
    endpoint_open(e, s, level, size);
    memset(&attr, 0, sizeof(attr));
    attr.Ptag = e->ptag;
    /* endpoint_open grants writes only. */
    attr.EnableRdmaWrite = attr.EnableRdmaRead = VIP_TRUE;
    CHECK_OK(VipSetMemAttributes(s->nic, e->mem, e->mh, &attr));
    /* The attributes of a VI are its own from its creation on. */
    CHECK_OK(VipDestroyVi(e->vi));
    e->attr.EnableRdmaRead = VIP_TRUE;
    CHECK_OK(VipCreateVi(s->nic, &e->attr, NULL, NULL, &e->vi));
}

static VIP_DESCRIPTOR *prep_read(endpoint *e, VIP_DESCRIPTOR *d, void *data, size_t len, uint64_t remote,
                                 VIP_MEM_HANDLE handle)
{
    prep_write(e, d, data, len, remote, handle);
    d->CS.Control = VIP_CONTROL_OP_RDMAREAD;
    return d;
}

/* ---- rdma_read: the bytes come, into one segment or several, and nothing beside them changes */

static const size_t read_lens[] = {0, 1, 8, 100, 4096, 60000, 300000, 3000000};
#define N_READS (sizeof(read_lens) / sizeof(read_lens[0]))
#define LARGEST 3000000

void rdma_read_a(side *s)
{
    /* The attribute is a set of levels. */
    CHECK_EQ(s->attr.RDMAReadSupport, VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION);
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        source t;
        uint64_t before = nic_counter(s, VIAKIT_COUNTER_rdma_reads_sent);
        endpoint_open(&e, s, s->levels[i], 4 * LARGEST);
        endpoint_connect(&e, "read");
        /* One offer for all: the pieces begin at the start of B's memory. */
        t = take(&e);
        for (size_t k = 0; k < N_READS; k++) {
            size_t len = read_lens[k];
            /* A read's descriptor has the form of a write's: an address segment, then where the bytes go. */
            VIP_DESCRIPTOR *d = descriptor(&e, 2);
            uint8_t *data = buffer(&e, len);
            post_send(&e, prep_read(&e, d, data, len, t.at, t.handle));
            reap_send(&e, d, VIP_STATUS_OP_RDMA_READ);
            CHECK_EQ(d->CS.Length, len);
            pattern_check(data, len, 77);
        }
        /* Scattered over three segments of odd lengths, from an odd place. */
        {
            VIP_DESCRIPTOR *d = descriptor(&e, 4);
            static const size_t parts[3] = {1, 40001, 333};
            /* 40335 is the sum of the parts; 7 is the odd place, as nothing begins there. */
            uint8_t *to[3], *whole = malloc(LARGEST), *got = malloc(40335);
            size_t sum = 0;
            CHECK(whole && got);
            prep_read(&e, d, NULL, 40335, t.at + 7, t.handle);
            d->CS.SegCount = 4;
            for (int p = 0; p < 3; p++) {
                to[p] = buffer(&e, parts[p]);
                segment_of(d, (unsigned)p + 1)->Local.Data.Address = to[p];
                segment_of(d, (unsigned)p + 1)->Local.Handle = e.mh;
                segment_of(d, (unsigned)p + 1)->Local.Length = (VIP_UINT32)parts[p];
            }
            post_send(&e, d);
            reap_send(&e, d, VIP_STATUS_OP_RDMA_READ);
            for (int p = 0; p < 3; p++) {
                memcpy(got + sum, to[p], parts[p]);
                sum += parts[p];
            }
            pattern_fill(whole, LARGEST, 77);
            CHECK(memcmp(got, whole + 7, sum) == 0);
            free(whole);
            free(got);
        }
        /* Counted where it is sent: one per descriptor, however many pieces it was asked for in. */
        CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_rdma_reads_sent) - before, N_READS + 1);
        check_guards(&e);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void rdma_read_b(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        uint8_t *data;
        open_readable(&e, s, s->levels[i], LARGEST);
        pattern_fill(data = buffer(&e, LARGEST), LARGEST, 77);
        endpoint_connect(&e, "read");
        offer(&e, data, e.mh);
        endpoint_disconnect(&e); /* B has done nothing at all for the reads */
        pattern_check(data, LARGEST, 77);
        endpoint_close(&e);
    }
}

/* ---- read_largest: as much as a descriptor can ask for */

static void read_largest_both(side *s)
{
    endpoint e;
    uint8_t *data;
    size_t len = s->attr.MaxTransferSize;
    open_readable(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, len);
    data = buffer(&e, len);
    if (s->role == SIDE_A) {
        source t;
        VIP_DESCRIPTOR *d = descriptor(&e, 2);
        endpoint_connect(&e, "largest");
        t = take(&e);
        post_send(&e, prep_read(&e, d, data, len, t.at, t.handle));
        reap_send(&e, d, VIP_STATUS_OP_RDMA_READ);
        pattern_check(data, len, 5);
        /* And one byte more than that, which is refused. */
        post_send(&e, prep_read(&e, d, data, len + 1, t.at, t.handle));
        CHECK(next_send(&e) == d);
        CHECK(d->CS.Status & VIP_STATUS_ERROR_MASK);
    } else {
        pattern_fill(data, len, 5);
        endpoint_connect(&e, "largest");
        offer(&e, data, e.mh);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void read_largest_a(side *s)
{
    read_largest_both(s);
}

void read_largest_b(side *s)
{
    read_largest_both(s);
}

/* ---- read_many: hundreds of reads, sends and writes in one queue complete in order, each with its own bytes; both
 * sides at once */

#define MANY 240
#define PLACE 512

static void read_many_both(side *s)
/* Of three descriptors the first and the third read, the second sends; lengths shrink from PLACE, so no two are alike.
 * As both sides do it, requests, answers, messages and acknowledgements share the link. */
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        source t;
        uint8_t *shown, *got;
        VIP_DESCRIPTOR *sends[MANY], *receives[MANY / 3];
        open_readable(&e, s, s->levels[i], MANY * (2 * PLACE + 1024));
        shown = buffer(&e, MANY * PLACE);
        got = buffer(&e, MANY * PLACE);
        for (int k = 0; k < MANY; k++)
            pattern_fill(shown + k * PLACE, PLACE, (uint64_t)k);
        for (int k = 0; k < MANY / 3; k++)
            post_recv(&e, receives[k] = prep_recv(&e, descriptor(&e, 1), NULL, 0));
        endpoint_connect(&e, "many");
        offer(&e, shown, e.mh);
        t = take(&e);
        for (int k = 0; k < MANY; k++) {
            sends[k] = descriptor(&e, 2);
            if (k % 3 == 1)
                prep_send(&e, sends[k], NULL, 0);
            else
                prep_read(&e, sends[k], got + k * PLACE, PLACE - k, t.at + (uint64_t)(k * PLACE), t.handle);
            post_send(&e, sends[k]);
        }
        for (int k = 0; k < MANY; k++) {
            /* In the order of posting, although a send behind a read may be over before it. */
            reap_send(&e, sends[k], k % 3 == 1 ? VIP_STATUS_OP_SEND : VIP_STATUS_OP_RDMA_READ);
            if (k % 3 != 1)
                pattern_check(got + k * PLACE, (size_t)(PLACE - k), (uint64_t)k);
        }
        for (int k = 0; k < MANY / 3; k++)
            reap_recv(&e, receives[k], VIP_STATUS_OP_RECEIVE);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void read_many_a(side *s)
{
    read_many_both(s);
}

void read_many_b(side *s)
{
    read_many_both(s);
}

/* ---- read_after_write: a read sees what was written before it on the same queue */

void read_after_write_a(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        source t;
        VIP_DESCRIPTOR *w, *r;
        uint8_t *out, *in;
        endpoint_open(&e, s, s->levels[i], 200000);
        out = buffer(&e, 50000);
        in = buffer(&e, 50000);
        w = descriptor(&e, 2);
        r = descriptor(&e, 2);
        endpoint_connect(&e, "after");
        t = take(&e);
        /* 50000 bytes go by frames or straight into memory, 64 in one frame: the read must wait for either. */
        for (uint64_t round = 0; round < 40; round++) {
            size_t len = round % 2 ? 50000 : 64;
            pattern_fill(out, len, round);
            post_send(&e, prep_write(&e, w, out, len, t.at, t.handle));
            post_send(&e, prep_read(&e, r, in, len, t.at, t.handle));
            reap_send(&e, w, VIP_STATUS_OP_RDMA_WRITE);
            reap_send(&e, r, VIP_STATUS_OP_RDMA_READ);
            pattern_check(in, len, round);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void read_after_write_b(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        open_readable(&e, s, s->levels[i], 100000);
        uint8_t *written = buffer(&e, 50000); /* before a call: see rdma_empty_queue */
        endpoint_connect(&e, "after");
        offer(&e, written, e.mh);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- read_fence: what is posted with QFENCE goes only when the reads before it are done. B changes its memory as
 * soon as it is told to; A, which told it behind the fence, has the old bytes. */

/* Two reads of 200000 bytes, many frames each: a message that did not wait for them would be there long before their
 * end. */
#define FENCED 400000

void read_fence_a(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        source t;
        VIP_DESCRIPTOR *r[2], *n;
        uint8_t *in;
        endpoint_open(&e, s, s->levels[i], 2 * FENCED);
        in = buffer(&e, FENCED);
        for (int k = 0; k < 2; k++)
            r[k] = descriptor(&e, 2);
        n = descriptor(&e, 1);
        endpoint_connect(&e, "fence");
        t = take(&e);
        for (uint64_t round = 0; round < 8; round++) {
            memset(in, 0, FENCED);
            post_send(&e, prep_read(&e, r[0], in, FENCED / 2, t.at, t.handle));
            post_send(&e, prep_read(&e, r[1], in + FENCED / 2, FENCED / 2, t.at + FENCED / 2, t.handle));
            prep_send(&e, n, NULL, 0);
            /* Behind the fence: B may change its memory when this has come. */
            n->CS.Control |= VIP_CONTROL_QFENCE;
            post_send(&e, n);
            reap_send(&e, r[0], VIP_STATUS_OP_RDMA_READ);
            reap_send(&e, r[1], VIP_STATUS_OP_RDMA_READ);
            reap_send(&e, n, VIP_STATUS_OP_SEND);
            pattern_check(in, FENCED, round);
            side_exchange(s, round);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void read_fence_b(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d;
        uint8_t *data;
        open_readable(&e, s, s->levels[i], FENCED);
        pattern_fill(data = buffer(&e, FENCED), FENCED, 0);
        d = descriptor(&e, 1);
        post_recv(&e, prep_recv(&e, d, NULL, 0));
        endpoint_connect(&e, "fence");
        offer(&e, data, e.mh);
        for (uint64_t round = 0; round < 8; round++) {
            reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
            /* The reads are over: their bytes may be overwritten. */
            pattern_fill(data, FENCED, round + 1);
            post_recv(&e, prep_recv(&e, d, NULL, 0));
            side_exchange(s, round);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- read_let_go: when B hears that a read is done, its memory is B's alone: it may deregister it and give it back
 * to the system, and no copy of a request that the link kept back, or that was made because an answer was late, asks
 * for it afterwards. */

/* 120000 bytes: more than one request can ask for (64 pieces at most), so that copies of several may be late. */
#define LET_GO 120000
#define LETTINGS 60

void read_let_go_a(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        VIP_DESCRIPTOR *r, *n;
        uint8_t *in;
        endpoint_open(&e, s, s->levels[i], LET_GO + 65536);
        in = buffer(&e, LET_GO);
        r = descriptor(&e, 2);
        n = descriptor(&e, 1);
        endpoint_connect(&e, "let go");
        for (uint64_t round = 0; round < LETTINGS; round++) {
            source t = take(&e);
            post_send(&e, prep_read(&e, r, in, LET_GO, t.at, t.handle));
            reap_send(&e, r, VIP_STATUS_OP_RDMA_READ);
            post_send(&e, prep_send(&e, n, NULL, 0));
            /* Checked while the note is on its way: only what the descriptor says counts. */
            pattern_check(in, LET_GO, round);
            reap_send(&e, n, VIP_STATUS_OP_SEND);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void read_let_go_b(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        VIP_MEM_ATTRIBUTES attr;
        VIP_MEM_HANDLE stays = 0;
        VIP_DESCRIPTOR *d;
        void *region, *stays_at = NULL;
        open_readable(&e, s, s->levels[i], 65536);
        memset(&attr, 0, sizeof(attr));
        attr.Ptag = e.ptag;
        attr.EnableRdmaRead = VIP_TRUE;
        post_recv(&e, prep_recv(&e, d = descriptor(&e, 1), NULL, 0));
        endpoint_connect(&e, "let go");
        for (uint64_t round = 0; round < LETTINGS; round++) {
            /* Memory of its own for each round, given back to the system at its end: who looks there afterwards
             * faults. */
            VIP_MEM_HANDLE handle;
            region = mmap(NULL, LET_GO, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            CHECK(region != MAP_FAILED);
            pattern_fill(region, LET_GO, round);
            CHECK_OK(VipRegisterMem(s->nic, region, LET_GO, &attr, &handle));
            offer(&e, region, handle);
            reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
            /* One of two rounds deregisters at once. The others leave the handle valid over memory that is gone, which
             * only the NIC's own rule (a request behind its turn is not answered) keeps from being read. */
            if (round % 2) /* without its registration it would be refused, with it nobody would know that it is gone */
                CHECK_OK(VipDeregisterMem(s->nic, region, handle));
            else {
                if (round)
                    CHECK_OK(VipDeregisterMem(s->nic, stays_at, stays));
                stays = handle;
                stays_at = region;
            }
            CHECK(munmap(region, LET_GO) == 0);
            post_recv(&e, prep_recv(&e, d, NULL, 0));
        }
        CHECK_OK(VipDeregisterMem(s->nic, stays_at, stays));
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- read_told: the same, but B hears it from somewhere else: no data frame of A's follows that could show a copy
 * of a request to be an old one. The copy is not refused, which would end the connection; and there is another read
 * under way then. */

void read_told_a(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        VIP_DESCRIPTOR *r;
        uint8_t *in;
        endpoint_open(&e, s, s->levels[i], LET_GO + 65536);
        in = buffer(&e, LET_GO);
        r = descriptor(&e, 2);
        endpoint_connect(&e, "told");
        for (uint64_t round = 0; round < LETTINGS; round++) {
            source t = take(&e);
            post_send(&e, prep_read(&e, r, in, LET_GO, t.at, t.handle));
            reap_send(&e, r, VIP_STATUS_OP_RDMA_READ);
            pattern_check(in, LET_GO, round);
            /* Not by a data frame but over the control channel: nothing on the link puts the old requests out of
             * date. */
            side_send(s, "!", 1);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void read_told_b(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++) {
        endpoint e;
        VIP_MEM_ATTRIBUTES attr;
        VIP_MEM_HANDLE handle[2];
        uint8_t *region[2];
        char c;
        open_readable(&e, s, s->levels[i], 2 * LET_GO + 65536);
        memset(&attr, 0, sizeof(attr));
        attr.Ptag = e.ptag;
        attr.EnableRdmaRead = VIP_TRUE;
        region[0] = buffer(&e, LET_GO);
        region[1] = buffer(&e, LET_GO);
        endpoint_connect(&e, "told");
        /* The two regions take turns: while A reads the one, the other is registered anew, so a late copy of a request
         * meets memory that was granted once and is not any more. */
        for (uint64_t round = 0; round <= LETTINGS; round++) {
            int k = round % 2;
            if (round < LETTINGS) {
                pattern_fill(region[k], LET_GO, round);
                CHECK_OK(VipRegisterMem(s->nic, region[k], LET_GO, &attr, &handle[k]));
            }
            if (round) {
                side_recv(s, &c, 1);
                CHECK_OK(VipDeregisterMem(s->nic, region[!k], handle[!k]));
            }
            if (round < LETTINGS)
                offer(&e, region[k], handle[k]);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- read_denied: memory that is not granted. The reader's descriptor says RDMA_PROT_ERROR at both levels, the
 * target's handler RDMAR_PROT, and the connection is broken on both sides. */

typedef struct {
    const char *name;
    int64_t from_start;
    size_t len;
    int absolute;
    VIP_MEM_HANDLE wrong_handle; /* XORed to the handle */
    enum { GRANT, REGION_NOT_ENABLED, VI_NOT_ENABLED, OTHER_TAG, DEREGISTERED, ONLY_WRITE } grant;
} denied_row;

#define REGION 8192

/* The same rows as for writes, and: a right to write is no right to read; a read of no bytes needs its right, too. */
static const denied_row denied_rows[] = {
    {"one byte past the end", REGION - 99, 100, 0, 0, GRANT},
    {"begins before the start", -1, 100, 0, 0, GRANT},
    {"begins inside, many pieces, ends outside", 100, 3000000, 0, 0, GRANT},
    {"the address wraps", -8, 64, 1, 0, GRANT},
    {"address 0", 0, 8, 1, 0, GRANT},
    {"a handle that never was", 0, 8, 0, 0x00ffffff, GRANT},
    {"a handle nearly right", 0, 8, 0, 0x10000, GRANT},
    {"the region does not grant it", 0, 8, 0, 0, REGION_NOT_ENABLED},
    {"the region grants only writes", 0, 8, 0, 0, ONLY_WRITE},
    {"the VI does not grant it", 0, 8, 0, 0, VI_NOT_ENABLED},
    {"the VI does not grant it, no bytes", 0, 0, 0, 0, VI_NOT_ENABLED},
    {"the region has another tag", 0, 8, 0, 0, OTHER_TAG},
    {"deregistered", 0, 8, 0, 0, DEREGISTERED},
};
#define N_DENIED (sizeof(denied_rows) / sizeof(denied_rows[0]))

static void denied_a(side *s, const denied_row *row, VIP_RELIABILITY_LEVEL level)
{
    endpoint e;
    source t;
    /* A second read behind it, of memory that is granted only in some rows: it must come back flushed in all. */
    VIP_DESCRIPTOR *d, *behind;
    uint8_t *data;
    endpoint_open(&e, s, level, row->len + 65536);
    d = descriptor(&e, 2);
    behind = descriptor(&e, 2);
    data = buffer(&e, row->len);
    endpoint_connect(&e, "denied");
    t = take(&e);
    post_send(&e, prep_read(&e, d, data, row->len,
                            row->absolute ? (uint64_t)row->from_start : t.at + (uint64_t)row->from_start,
                            t.handle ^ row->wrong_handle));
    if (!s->link->fault) /* where requests overtake one another this one may be the first to be refused */
        post_send(&e, prep_read(&e, behind, data, row->len, t.at, t.handle));
    CHECK(next_send(&e) == d);
    if (d->CS.Status != (VIP_STATUS_DONE | VIP_STATUS_OP_RDMA_READ | VIP_STATUS_RDMA_PROT_ERROR))
        FAIL("%s: the reader's status is 0x%x", row->name, d->CS.Status);
    if (!s->link->fault)
        reap_send(&e, behind, VIP_STATUS_OP_RDMA_READ | VIP_STATUS_DESC_FLUSHED_ERROR);
    wait_state(&e, VIP_STATE_ERROR);
    /* Of a short read nothing may arrive. A long one may have brought what lay inside before its end was asked for. */
    for (size_t i = 0; i < row->len && row->len < 1000; i++)
        CHECK_EQ(data[i], 0xEE);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void denied_b(side *s, const denied_row *row, VIP_RELIABILITY_LEVEL level)
{
    endpoint e;
    VIP_PROTECTION_HANDLE tag = NULL;
    VIP_MEM_ATTRIBUTES attr;
    VIP_MEM_HANDLE handle;
    /* The counts are of the NIC and go on from row to row. */
    int before = error_count(s, VIP_ERROR_RDMAR_PROT);
    uint8_t *arena, *region;
    open_readable(&e, s, level, 4 * REGION);
    arena = buffer(&e, 3 * REGION);
    memset(arena, 0x11, 3 * REGION); /* not what A's buffer is filled with: a byte that gets through must show there */
    region = arena + REGION;
    memset(&attr, 0, sizeof(attr));
    attr.Ptag = e.ptag;
    attr.EnableRdmaRead = row->grant != REGION_NOT_ENABLED && row->grant != ONLY_WRITE;
    attr.EnableRdmaWrite = row->grant == ONLY_WRITE;
    if (row->grant == OTHER_TAG) {
        CHECK_OK(VipCreatePtag(s->nic, &tag));
        attr.Ptag = tag;
    }
    if (row->grant == VI_NOT_ENABLED) {
        VIP_VI_ATTRIBUTES vi_attr = e.attr;
        CHECK_OK(VipDestroyVi(e.vi));
        vi_attr.EnableRdmaRead = VIP_FALSE;
        CHECK_OK(VipCreateVi(s->nic, &vi_attr, NULL, NULL, &e.vi));
    }
    CHECK_OK(VipRegisterMem(s->nic, region, REGION, &attr, &handle));
    if (row->grant == DEREGISTERED)
        CHECK_OK(VipDeregisterMem(s->nic, region, handle));
    endpoint_connect(&e, "denied");
    offer(&e, region, handle);
    wait_error(s, VIP_ERROR_RDMAR_PROT, before + 1);
    wait_state(&e, VIP_STATE_ERROR);
    endpoint_disconnect(&e);
    if (row->grant != DEREGISTERED)
        CHECK_OK(VipDeregisterMem(s->nic, region, handle));
    endpoint_close(&e);
    if (tag)
        CHECK_OK(VipDestroyPtag(s->nic, tag));
}

void read_denied_a(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++)
        for (size_t k = 0; k < N_DENIED; k++)
            denied_a(s, &denied_rows[k], s->levels[i]);
}

void read_denied_b(side *s)
{
    for (int i = 0; i < N_RELIABLE; i++)
        for (size_t k = 0; k < N_DENIED; k++)
            denied_b(s, &denied_rows[k], s->levels[i]);
}

/* ---- read_format: what is wrong with the descriptor itself */

static void read_format_both(side *s)
{
    /* One mistake per row: none but the level itself; immediate data, which a read cannot bring; no segment at all; a
     * length that is not the sum; a handle that is a bit off. */
    static const struct {
        VIP_RELIABILITY_LEVEL level;
        uint32_t status;
        int immediate, bad_segment, no_segment, bad_sum;
    } rows[] = {
        {VIP_SERVICE_UNRELIABLE, VIP_STATUS_FORMAT_ERROR, 0, 0, 0, 0},
        {VIP_SERVICE_RELIABLE_DELIVERY, VIP_STATUS_FORMAT_ERROR, 1, 0, 0, 0},
        {VIP_SERVICE_RELIABLE_RECEPTION, VIP_STATUS_FORMAT_ERROR, 0, 0, 1, 0},
        {VIP_SERVICE_RELIABLE_DELIVERY, VIP_STATUS_FORMAT_ERROR, 0, 0, 0, 1},
        {VIP_SERVICE_RELIABLE_RECEPTION, VIP_STATUS_PROTECTION_ERROR, 0, 1, 0, 0},
    };
    VIP_VI_ATTRIBUTES unreliable;
    VIP_VI_HANDLE vi;
    memset(&unreliable, 0, sizeof(unreliable));
    unreliable.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
    unreliable.EnableRdmaRead = VIP_TRUE;
    /* Such a VI cannot even be made. */
    CHECK_RET(VipCreateVi(s->nic, &unreliable, NULL, NULL, &vi), VIP_INVALID_RDMAREAD);
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
        endpoint e;
        /* Level and faults: see harness.h. */
        if (rows[k].level == VIP_SERVICE_UNRELIABLE && s->link->fault)
            continue;
        endpoint_open(&e, s, rows[k].level, 4096);
        if (s->role == SIDE_A) {
            VIP_DESCRIPTOR *d = descriptor(&e, 2);
            endpoint_connect(&e, "format");
            prep_read(&e, d, buffer(&e, 64), 64, 4096, 1);
            if (rows[k].immediate)
                d->CS.Control |= VIP_CONTROL_IMMEDIATE;
            if (rows[k].no_segment)
                d->CS.SegCount = 0;
            if (rows[k].bad_segment)
                d->DS[1].Local.Handle ^= 0x10000;
            if (rows[k].bad_sum)
                d->CS.Length++;
            post_send(&e, d);
            CHECK(next_send(&e) == d);
            CHECK_EQ(d->CS.Status & VIP_STATUS_ERROR_MASK, rows[k].status);
            CHECK_EQ(d->CS.Status & VIP_STATUS_OP_MASK, VIP_STATUS_OP_RDMA_READ);
            CHECK_EQ(vi_state(e.vi), RELIABLE_LEVEL(rows[k].level) ? VIP_STATE_ERROR : VIP_STATE_CONNECTED);
        } else {
            endpoint_connect(&e, "format");
            /* The reader's local error breaks the connection at the reliable levels, so B learns it by that. */
            if (RELIABLE_LEVEL(rows[k].level))
                wait_state(&e, VIP_STATE_ERROR);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void read_format_a(side *s)
{
    read_format_both(s);
}

void read_format_b(side *s)
{
    read_format_both(s);
}

/* ---- read_deregistered: the target's memory, or the reader's own, goes away while it is being read */

/* 8 MiB: long enough for the other side to take memory away in its middle. */
#define LONG_READ (8u << 20)

void read_deregistered_a(side *s)
{
    /* own: it is the reader's memory that goes, else the target's. */
    for (int own = 0; own < 2; own++) {
        endpoint e;
        source t;
        VIP_DESCRIPTOR *d;
        VIP_MEM_HANDLE handle;
        VIP_MEM_ATTRIBUTES attr;
        uint8_t *data;
        int rounds = 0;
        endpoint_open(&e, s, s->levels[own], LONG_READ);
        data = buffer(&e, LONG_READ);
        d = descriptor(&e, 2);
        memset(&attr, 0, sizeof(attr));
        attr.Ptag = e.ptag;
        CHECK_OK(VipRegisterMem(s->nic, data, LONG_READ, &attr, &handle));
        endpoint_connect(&e, "gone");
        t = take(&e);
        for (;; rounds++) {
            prep_read(&e, d, data, LONG_READ, t.at, t.handle);
            d->DS[1].Local.Handle = handle;
            post_send(&e, d);
            if (rounds == 0)
                side_exchange(s, 0); /* now B begins to think of ending it */
            /* In its middle, as B in the other half of the case. */
            if (own && rounds == 2)
                CHECK_OK(VipDeregisterMem(s->nic, data, handle));
            CHECK(next_send(&e) == d);
            if (d->CS.Status & VIP_STATUS_ERROR_MASK)
                break;
            pattern_check(data, LONG_READ, 9);
        }
        CHECK_EQ(d->CS.Status & VIP_STATUS_ERROR_MASK, own ? VIP_STATUS_PROTECTION_ERROR : VIP_STATUS_RDMA_PROT_ERROR);
        wait_state(&e, VIP_STATE_ERROR);
        endpoint_disconnect(&e);
        if (!own)
            CHECK_OK(VipDeregisterMem(s->nic, data, handle));
        /* What was deregistered in the middle cannot be again. */
        endpoint_close(&e);
    }
}

void read_deregistered_b(side *s)
{
    for (int own = 0; own < 2; own++) {
        endpoint e;
        VIP_MEM_HANDLE handle;
        VIP_MEM_ATTRIBUTES attr;
        uint8_t *data;
        open_readable(&e, s, s->levels[own], LONG_READ);
        pattern_fill(data = buffer(&e, LONG_READ), LONG_READ, 9);
        memset(&attr, 0, sizeof(attr));
        attr.Ptag = e.ptag;
        attr.EnableRdmaRead = VIP_TRUE;
        CHECK_OK(VipRegisterMem(s->nic, data, LONG_READ, &attr, &handle));
        endpoint_connect(&e, "gone");
        offer(&e, data, handle);
        /* The first read is under way. */
        side_exchange(s, 0);
        if (!own)
            CHECK_OK(VipDeregisterMem(s->nic, data, handle));
        wait_state(&e, VIP_STATE_ERROR);
        endpoint_disconnect(&e);
        if (own)
            CHECK_OK(VipDeregisterMem(s->nic, data, handle));
        endpoint_close(&e);
    }
}

/* ---- read_killed: the target dies while it is being read */

void read_killed_a(side *s)
{
    endpoint e;
    source t;
    VIP_DESCRIPTOR *d[8];
    uint8_t *data;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, LONG_READ);
    data = buffer(&e, LONG_READ);
    endpoint_connect(&e, "killed");
    t = take(&e);
    /* Eight at once and each posted again when it is done: when B dies some are asked for and some wait. */
    for (int k = 0; k < 8; k++)
        post_send(&e, d[k] = prep_read(&e, descriptor(&e, 2), data, LONG_READ, t.at, t.handle));
    /* Now B kills itself. */
    side_send(s, "!", 1);
    for (unsigned k = 0;; k = (k + 1) % 8) {
        CHECK(next_send(&e) == d[k]);
        if (d[k]->CS.Status & VIP_STATUS_ERROR_MASK)
            break;
        post_send(&e, prep_read(&e, d[k], data, LONG_READ, t.at, t.handle));
    }
    wait_error(s, VIP_ERROR_CONN_LOST, 1);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_ERROR);
    endpoint_close(&e);
}

void read_killed_b(side *s)
{
    endpoint e;
    char c;
    open_readable(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, LONG_READ);
    endpoint_connect(&e, "killed");
    offer(&e, buffer(&e, LONG_READ), e.mh);
    side_recv(s, &c, 1);
    kill(getpid(), SIGKILL);
}
