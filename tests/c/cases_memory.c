/*
 * cases_memory.c - which registered memory a VI may use: the NULL tag, and receives that run past their region.
 *
 * Memory that is refused stands with what refuses it: bad_memory (cases_error.c), rdma_denied (cases_rdma.c),
 * read_denied (cases_read.c); among them are the rows that keep a tag closed to another tag.
 */
#include "conformance.h"

#define RELIABLE(level) ((level) != VIP_SERVICE_UNRELIABLE)

/* A SIDE_SYNC after which the peer may use memory that this side has used. The NIC's own thread does that here, so a
 * call puts it in order for ThreadSanitizer, which does not see the order that the control channel makes. */
static void let_write(endpoint *e, int tag)
{
    vi_state(e->vi);
    SIDE_SYNC(e->s, tag);
}

/* ---- null_tag: the NULL tag matches any tag of the NIC, for messages, RDMA writes and RDMA reads */

typedef struct {
    int vi_has_tag, memory_has_tag;
} tag_row;

static const tag_row tag_rows[] = {{1, 1}, {0, 1}, {1, 0}, {0, 0}};
#define N_TAG_ROWS (sizeof(tag_rows) / sizeof(tag_rows[0]))

/* endpoint_open gives a tag to both: what shall have none is made anew. */
static void open_with(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, const tag_row *row)
{
    VIP_MEM_ATTRIBUTES rights = {NULL, VIP_TRUE, VIP_TRUE};
    endpoint_open(e, s, level, 1 << 20);
    if (row->memory_has_tag)
        rights.Ptag = e->ptag;
    CHECK_OK(VipSetMemAttributes(s->nic, e->mem, e->mh, &rights));
    e->attr.EnableRdmaRead = RELIABLE(level) ? VIP_TRUE : VIP_FALSE;
    if (!row->vi_has_tag)
        e->attr.Ptag = NULL;
    CHECK_OK(VipDestroyVi(e->vi));
    CHECK_OK(VipCreateVi(s->nic, &e->attr, NULL, NULL, &e->vi));
}

/* A short piece goes in one frame or through a ring, a long one in many frames or by a direct copy. */
static const size_t tag_lens[] = {64, 60000};

static void null_tag_level(side *s, VIP_RELIABILITY_LEVEL level, const tag_row *row)
{
    endpoint e;
    open_with(&e, s, level, row);
    endpoint_connect(&e, "null tag");
    for (size_t k = 0; k < 2; k++) {
        size_t len = tag_lens[k];
        VIP_DESCRIPTOR *d = descriptor(&e, 2);
        uint8_t *data = buffer(&e, len);
        if (s->role == SIDE_A) {
            uint64_t remote = side_exchange(s, 0);
            VIP_MEM_HANDLE there = (VIP_MEM_HANDLE)side_exchange(s, 0);
            pattern_fill(data, len, 1);
            post_send(&e, prep_send(&e, d, data, len));
            reap_send(&e, d, VIP_STATUS_OP_SEND);
            SIDE_SYNC(s, 1);
            pattern_fill(data, len, 2);
            post_send(&e, prep_write(&e, d, data, len, remote, there));
            reap_send(&e, d, VIP_STATUS_OP_RDMA_WRITE);
            post_send(&e, prep_send(&e, d, NULL, 0)); /* behind the write: B knows then that it is there */
            reap_send(&e, d, VIP_STATUS_OP_SEND);
            SIDE_SYNC(s, 2);
            if (RELIABLE(level)) {
                prep_write(&e, d, data, len, remote, there);
                d->CS.Control = VIP_CONTROL_OP_RDMAREAD;
                post_send(&e, d);
                reap_send(&e, d, VIP_STATUS_OP_RDMA_READ);
                pattern_check(data, len, 3);
            }
            SIDE_SYNC(s, 3);
        } else {
            VIP_DESCRIPTOR *note = descriptor(&e, 1);
            post_recv(&e, prep_recv(&e, d, data, len));
            post_recv(&e, prep_recv(&e, note, NULL, 0));
            side_exchange(s, (uint64_t)(uintptr_t)data);
            side_exchange(s, e.mh);
            reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
            pattern_check(data, len, 1);
            let_write(&e, 1);
            reap_recv(&e, note, VIP_STATUS_OP_RECEIVE);
            pattern_check(data, len, 2);
            pattern_fill(data, len, 3);
            let_write(&e, 2);
            SIDE_SYNC(s, 3);
        }
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void null_tag_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++)
        for (size_t k = 0; k < N_TAG_ROWS; k++)
            null_tag_level(s, s->levels[i], &tag_rows[k]);
}

void null_tag_b(side *s)
{
    null_tag_a(s);
}

/* ---- receive_past_region: the segment of a receive runs past its region; each message is judged when it comes

 *
 * `last` is the length of the message that does not fit. 60000 bytes come in many frames, or by a direct copy. */

#define REGISTERED 8192
#define INSIDE 2000 /* bytes of the segment that are registered */

static void past_region_b(side *s, VIP_RELIABILITY_LEVEL level)
{
    endpoint e;
    VIP_DESCRIPTOR *d[4];
    VIP_MEM_HANDLE handle;
    static const size_t fits[3] = {0, 64, INSIDE};
    int lost = error_count(s, VIP_ERROR_CONN_LOST);
    endpoint_open(&e, s, level, 262144);
    /* The region is the first part of a buffer; what follows in the buffer is registered for other purposes only. */
    uint8_t *data = buffer(&e, 131072), *room = data + REGISTERED - INSIDE;
    VIP_MEM_ATTRIBUTES attr = {e.ptag, VIP_FALSE, VIP_FALSE};
    CHECK_OK(VipRegisterMem(s->nic, data, REGISTERED, &attr, &handle));
    for (int k = 0; k < 4; k++) {
        prep_recv(&e, d[k] = descriptor(&e, 1), room, 65536);
        d[k]->DS[0].Local.Handle = handle;
        post_recv(&e, d[k]);
    }
    endpoint_connect(&e, "past");
    for (unsigned k = 0; k < 3; k++) {
        reap_recv(&e, d[k], VIP_STATUS_OP_RECEIVE);
        CHECK_EQ(d[k]->CS.Length, fits[k]);
        pattern_check(room, fits[k], k);
        let_write(&e, (int)k);
    }
    reap_recv(&e, d[3], VIP_STATUS_OP_RECEIVE | VIP_STATUS_PROTECTION_ERROR);
    for (size_t i = REGISTERED; i < 131072; i++)
        CHECK_EQ(data[i], 0xEE);
    if (RELIABLE(level)) {
        wait_error(s, VIP_ERROR_CONN_LOST, lost + 1);
        wait_state(&e, VIP_STATE_ERROR);
    } else
        CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    endpoint_disconnect(&e);
    CHECK_OK(VipDeregisterMem(s->nic, data, handle));
    endpoint_close(&e);
}

static void past_region_a(side *s, VIP_RELIABILITY_LEVEL level, size_t last)
{
    endpoint e;
    const size_t lens[4] = {0, 64, INSIDE, last};
    endpoint_open(&e, s, level, 262144);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 65536);
    endpoint_connect(&e, "past");
    for (unsigned k = 0; k < 4; k++) {
        pattern_fill(data, lens[k], k);
        post_send(&e, prep_send(&e, d, data, lens[k]));
        CHECK(next_send(&e) == d);
        if (k == 3)
            break;
        CHECK_STATUS(d, VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
        SIDE_SYNC(s, (int)k);
    }
    if (level == VIP_SERVICE_RELIABLE_RECEPTION)
        CHECK(d->CS.Status & VIP_STATUS_REMOTE_DESC_ERROR);
    if (RELIABLE(level))
        wait_state(&e, VIP_STATE_ERROR);
    else
        CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static const size_t too_long[] = {INSIDE + 1, 60000};

void receive_past_region_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++)
        for (size_t k = 0; k < 2; k++)
            past_region_a(s, s->levels[i], too_long[k]);
}

void receive_past_region_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++)
        for (size_t k = 0; k < 2; k++)
            past_region_b(s, s->levels[i]);
}
