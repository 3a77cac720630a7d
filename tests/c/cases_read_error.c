/*
 * cases_read_error.c - RDMA reads that fail: memory that is not granted, wrong descriptors, and memory or a peer that
 * disappears during the read.
 */
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cases_read.h"

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
    /* No data of a short read may arrive. A long one may have read data inside the region before its end was
     * requested. */
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
    /* One mistake per row: the level itself, immediate data (which a read cannot carry), no segment at all, a length
     * that is not the sum, and a handle that differs by a bit. */
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
        /* A region that was deregistered in the middle cannot be deregistered again. */
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
    /* Eight at once, and each is posted again when it is done: when B dies, some are requested and some wait. */
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
