/*
 * cases_read.c - RDMA reads: A reads memory of B that B has granted. cases_read_error.c has the reads that fail.
 *
 * Reads exist at the reliable levels only, and the target's program does nothing for them (docs/provider.md, "RDMA
 * reads"). The requester requests pieces, places the replies, and repeats requests for missing pieces. Most cases are
 * about late copies of requests, lost replies, and memory that the target releases.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cases_read.h"

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
        /* Counted at the requester: one per descriptor, for any number of requests. */
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

/* ---- read_largest: as much as a descriptor can request */

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
/* The first and the third of three descriptors read, and the second sends. Lengths shrink from PLACE, so no two are
 * alike. Both sides do it, so requests, replies, messages and acknowledgements share the link. */
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

/* ---- read_fence: a descriptor with QFENCE starts only when the reads before it are done. B changes its memory as soon
 * as it is notified. A, which notified it behind the fence, has the old bytes. */

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

/* ---- read_let_go: when B is notified that a read is done, its memory is B's alone. B may deregister and unmap it. No
 * delayed or retransmitted copy of a request reads it afterwards. */

/* 120000 bytes: more than one request covers (64 pieces at most), so that copies of several may be late. */
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
            /* Without its registration a read would be refused. With it, the provider could not detect
             * the unmapping. */
            if (round % 2)
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

/* ---- read_told: the same, but B is notified outside the connection. So no later data frame of A shows that a copy of
 * a request is old. The copy is not refused, which would end the connection, and another read is in progress then. */

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
