/*
 * cases_error.c - what must fail, and how far the failure reaches.
 *
 * Three kinds, never mixed: a call that is refused (nothing was posted), a descriptor that completes with an error, and
 * a broken connection. A broken connection has its VI in ERROR, the rest flushed, and CONN_LOST at the peer. At the
 * unreliable level a local error stays with its descriptor; at the reliable levels it breaks the connection.
 * docs/errors.md has the whole table, and test_errors.c compares it on loop. Here the same holds on every link, with
 * frames on their way.
 */
#include <signal.h>

#include "conformance.h"

#define RELIABLE(level) ((level) != VIP_SERVICE_UNRELIABLE)

/* ---- bad_descriptor: refused by the post call itself; the connection does not notice */

/* Each refusal is also reported to the error handler, as VIPL requires. The counts prove that it is reported once. */
void bad_descriptor_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d, *ok;
    VIP_ULONG n;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 1 << 20);
    d = prep_send(&e, descriptor(&e, 2), buffer(&e, 8), 8);
    endpoint_connect(&e, "refuse");
    /* No descriptor, one that is not aligned to 64 bytes, one whose memory handle is of another generation, handle 0,
     * and no VI. */
    CHECK_RET(VipPostSend(e.vi, NULL, e.mh), VIP_INVALID_PARAMETER);
    wait_error(s, VIP_ERROR_POST_DESC, 1);
    CHECK_RET(VipPostSend(e.vi, (VIP_DESCRIPTOR *)(void *)((char *)d + 16), e.mh), VIP_INVALID_PARAMETER);
    wait_error(s, VIP_ERROR_POST_DESC, 2);
    CHECK_RET(VipPostSend(e.vi, d, e.mh ^ 0x10000), VIP_INVALID_PARAMETER);
    wait_error(s, VIP_ERROR_POST_DESC, 3);
    CHECK_RET(VipPostRecv(e.vi, d, 0), VIP_INVALID_PARAMETER);
    wait_error(s, VIP_ERROR_POST_DESC, 4);
    CHECK_RET(VipPostRecv(NULL, d, e.mh), VIP_INVALID_PARAMETER);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    /* One more than a queue holds. */
    n = s->attr.MaxDescriptorsPerQueue;
    for (VIP_ULONG i = 0; i < n; i++)
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), NULL, 0));
    CHECK_RET(VipPostRecv(e.vi, d, e.mh), VIP_ERROR_RESOURCE);
    wait_error(s, VIP_ERROR_VI_OVERRUN, 1);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    /* Refused calls have no effect: the connection still carries a message. */
    ok = prep_send(&e, descriptor(&e, 1), NULL, 0);
    SIDE_SYNC(s, 1);
    post_send(&e, ok);
    reap_send(&e, ok, VIP_STATUS_OP_SEND);
    SIDE_SYNC(s, 2);
    CHECK_OK(VipDisconnect(e.vi));
    /* Exactly those that were taken come back. */
    CHECK_EQ(drain(e.vi), (long long)n);
    endpoint_close(&e);
}

void bad_descriptor_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    post_recv(&e, prep_recv(&e, d = descriptor(&e, 1), NULL, 0));
    endpoint_connect(&e, "refuse");
    SIDE_SYNC(s, 1);
    reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
    SIDE_SYNC(s, 2);
    endpoint_close(&e);
}

/* ---- bad_format, bad_memory: accepted, and completed with an error. One row is one mistake in an otherwise good send;
 * each is made on a fresh connection, for at the reliable levels it is the connection's end. */

typedef struct {
    const char *name;
    uint32_t status;
    void (*spoil)(endpoint *e, VIP_DESCRIPTOR *d); /* d is a good send of 64 bytes */
} spoiled_row;

static void length_not_sum(endpoint *e, VIP_DESCRIPTOR *d)
{
    (void)e;
    d->CS.Length = 65;
}

static void too_many_segments(endpoint *e, VIP_DESCRIPTOR *d)
{
    /* 253 is one more than MaxSegmentsPerDesc. They are empty, so that nothing but their number is wrong. */
    for (int i = 1; i < 253; i++) {
        d->DS[i].Local.Data.Address = buffer(e, 1);
        d->DS[i].Local.Handle = e->mh;
        d->DS[i].Local.Length = 0;
    }
    d->CS.SegCount = 253;
}

static void reserved_operation(endpoint *e, VIP_DESCRIPTOR *d)
{
    (void)e;
    d->CS.Control = VIP_CONTROL_OP_RESERVED;
}

static void reserved_bits(endpoint *e, VIP_DESCRIPTOR *d)
{
    (void)e;
    d->CS.Control |= 0x8000;
}

static void write_without_target(endpoint *e, VIP_DESCRIPTOR *d)
{
    /* Registered once and given back: the slot exists, its generation has moved on. */
    (void)e;
    d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    d->CS.SegCount = 0;
    d->CS.Length = 0;
}

static void handle_that_never_was(endpoint *e, VIP_DESCRIPTOR *d)
{
    (void)e;
    d->DS[0].Local.Handle = 0x7fff0fff;
}

static void handle_zero(endpoint *e, VIP_DESCRIPTOR *d)
{
    (void)e;
    d->DS[0].Local.Handle = 0;
}

static void stale_handle(endpoint *e, VIP_DESCRIPTOR *d)
{
    VIP_MEM_ATTRIBUTES attr = {e->ptag, VIP_FALSE, VIP_FALSE};
    VIP_MEM_HANDLE stale;
    CHECK_OK(VipRegisterMem(e->s->nic, e->mem, e->size, &attr, &stale));
    CHECK_OK(VipDeregisterMem(e->s->nic, e->mem, stale));
    /* One byte of the 64 lies behind the region. */
    d->DS[0].Local.Handle = stale;
}

static void other_tag(endpoint *e, VIP_DESCRIPTOR *d)
{
    /* Left registered under a tag of its own; closing the NIC takes both away. */
    static uint8_t memory[64];
    VIP_PROTECTION_HANDLE tag;
    VIP_MEM_ATTRIBUTES attr;
    memset(&attr, 0, sizeof(attr));
    /* The end of the segment, address + length, is less than its beginning. */
    CHECK_OK(VipCreatePtag(e->s->nic, &tag));
    attr.Ptag = tag;
    CHECK_OK(VipRegisterMem(e->s->nic, memory, sizeof(memory), &attr, &d->DS[0].Local.Handle));
    d->DS[0].Local.Data.Address = memory;
}

static void past_the_end(endpoint *e, VIP_DESCRIPTOR *d)
{
    d->DS[0].Local.Data.Address = e->mem + e->size - 63;
}

static void before_the_start(endpoint *e, VIP_DESCRIPTOR *d)
{
    d->DS[0].Local.Data.Address = e->mem - 1;
}

static void wrapping(endpoint *e, VIP_DESCRIPTOR *d)
{
    (void)e;
    d->DS[0].Local.Data.AddressBits = ~(VIP_UINT64)0 - 7;
}

/* Wrong in themselves: FORMAT_ERROR, whatever the memory is. */
static const spoiled_row format_rows[] = {
    {"the length is not the sum of the segments", VIP_STATUS_FORMAT_ERROR, length_not_sum},
    {"253 segments", VIP_STATUS_FORMAT_ERROR, too_many_segments},
    {"the reserved operation", VIP_STATUS_FORMAT_ERROR, reserved_operation},
    {"reserved control bits", VIP_STATUS_FORMAT_ERROR, reserved_bits},
    {"an RDMA write without its address segment", VIP_STATUS_FORMAT_ERROR, write_without_target},
};

/* Right in form, but naming memory that is not the program's to name: PROTECTION_ERROR, and nothing is read there. */
static const spoiled_row memory_rows[] = {
    {"a handle that never was", VIP_STATUS_PROTECTION_ERROR, handle_that_never_was},
    {"handle 0", VIP_STATUS_PROTECTION_ERROR, handle_zero},
    {"a stale handle", VIP_STATUS_PROTECTION_ERROR, stale_handle},
    {"memory of another tag", VIP_STATUS_PROTECTION_ERROR, other_tag},
    {"past the region's end", VIP_STATUS_PROTECTION_ERROR, past_the_end},
    {"before the region's start", VIP_STATUS_PROTECTION_ERROR, before_the_start},
    {"an address that wraps", VIP_STATUS_PROTECTION_ERROR, wrapping},
};

/* A posts the spoiled descriptor and a good one behind it; B has a receive for the good one. */
static void spoiled_send(side *s, const spoiled_row *row, VIP_RELIABILITY_LEVEL level)
{
    endpoint e;
    VIP_DESCRIPTOR *bad, *good;
    endpoint_open(&e, s, level, 262144);
    bad = prep_send(&e, descriptor(&e, 253), buffer(&e, 64), 64);
    good = prep_send(&e, descriptor(&e, 1), buffer(&e, 64), 64);
    if (s->role == SIDE_B)
        post_recv(&e, good);
    endpoint_connect(&e, "spoiled");
    if (s->role == SIDE_A) {
        row->spoil(&e, bad);
        post_send(&e, bad);
        CHECK(next_send(&e) == bad);
        /* Exactly this error and no other bit: a row must not fail for a second reason. */
        if ((bad->CS.Status & VIP_STATUS_ERROR_MASK) != row->status)
            FAIL("%s: status 0x%x, expected 0x%x", row->name, bad->CS.Status, row->status);
        /* Behind it the connection still carries a message at the unreliable level; at the others it is broken, so what
         * is posted is flushed, on both sides. */
        post_send(&e, good);
        reap_send(&e, good, VIP_STATUS_OP_SEND | (RELIABLE(level) ? VIP_STATUS_DESC_FLUSHED_ERROR : 0));
    } else {
        reap_recv(&e, good, VIP_STATUS_OP_RECEIVE | (RELIABLE(level) ? VIP_STATUS_DESC_FLUSHED_ERROR : 0));
    }
    if (RELIABLE(level))
        wait_state(&e, VIP_STATE_ERROR);
    else
        CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void spoiled(side *s, const spoiled_row *rows, size_t n)
{
    for (int i = 0; i < s->n_levels; i++)
        for (size_t k = 0; k < n; k++)
            spoiled_send(s, &rows[k], s->levels[i]);
}

void bad_format_a(side *s)
{
    spoiled(s, format_rows, sizeof(format_rows) / sizeof(format_rows[0]));
}

void bad_format_b(side *s)
{
    spoiled(s, format_rows, sizeof(format_rows) / sizeof(format_rows[0]));
}

void bad_memory_a(side *s)
{
    spoiled(s, memory_rows, sizeof(memory_rows) / sizeof(memory_rows[0]));
}

void bad_memory_b(side *s)
{
    spoiled(s, memory_rows, sizeof(memory_rows) / sizeof(memory_rows[0]));
}

/* ---- deregister_posted: memory that is taken away under a posted receive is not written any more */

static void deregister_level(side *s, VIP_RELIABILITY_LEVEL level, size_t len)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    /* The receive lies in memory with a registration of its own, which goes while the receive is posted; the descriptor
     * itself stays registered. 64 bytes come in one piece, 60000 in many frames or by a direct copy. */
    uint8_t *data;
    VIP_MEM_HANDLE handle;
    endpoint_open(&e, s, level, 262144);
    data = buffer(&e, len);
    prep_send(&e, d = descriptor(&e, 1), data, len);
    if (s->role == SIDE_B) {
        VIP_MEM_ATTRIBUTES attr = {e.ptag, VIP_FALSE, VIP_FALSE};
        CHECK_OK(VipRegisterMem(s->nic, data, len, &attr, &handle));
        d->DS[0].Local.Handle = handle;
        post_recv(&e, d);
        CHECK_OK(VipDeregisterMem(s->nic, data, handle));
    }
    endpoint_connect(&e, "deregister");
    /* A sends only when the memory is gone. */
    SIDE_SYNC(s, 1);
    if (s->role == SIDE_A) {
        pattern_fill(data, len, 1);
        post_send(&e, d);
        CHECK(next_send(&e) == d);
    } else {
        VIP_DESCRIPTOR *got = next_recv(&e);
        CHECK(got == d);
        CHECK_STATUS(got, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_PROTECTION_ERROR);
        /* buffer() filled it with this, and it is still the program's alone. */
        for (size_t i = 0; i < len; i++)
            CHECK_EQ(data[i], 0xEE);
    }
    if (RELIABLE(level))
        wait_state(&e, VIP_STATE_ERROR);
    else
        CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void deregister_posted_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        deregister_level(s, s->levels[i], 64);
        deregister_level(s, s->levels[i], 60000);
    }
}

void deregister_posted_b(side *s)
{
    deregister_posted_a(s);
}

/* ---- no_receive: a message finds no descriptor */

void no_receive_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d;
        int lost = error_count(s, VIP_ERROR_CONN_LOST);
        endpoint_open(&e, s, s->levels[i], 65536);
        d = prep_send(&e, descriptor(&e, 1), buffer(&e, 100), 100);
        endpoint_connect(&e, "no receive");
        post_send(&e, d);
        CHECK(next_send(&e) == d);
        switch (s->levels[i]) {
        case VIP_SERVICE_UNRELIABLE: /* it has left; that is all this level says */
            CHECK_STATUS(d, VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
            /* B has found the queue empty and posted a receive by now: the connection goes on. */
            SIDE_SYNC(s, 1);
            post_send(&e, prep_send(&e, d, d->DS[0].Local.Data.Address, 100));
            reap_send(&e, d, VIP_STATUS_OP_SEND);
            break;
        case VIP_SERVICE_RELIABLE_DELIVERY: /* the send itself may have been accounted for already */
            wait_state(&e, VIP_STATE_ERROR);
            wait_error(s, VIP_ERROR_CONN_LOST, lost + 1);
            break;
        default:
            CHECK_STATUS(d, VIP_STATUS_DONE | VIP_STATUS_OP_SEND | VIP_STATUS_REMOTE_DESC_ERROR);
            wait_state(&e, VIP_STATE_ERROR);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void no_receive_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d;
        int empty = error_count(s, VIP_ERROR_RECVQ_EMPTY);
        endpoint_open(&e, s, s->levels[i], 65536);
        d = prep_recv(&e, descriptor(&e, 1), buffer(&e, 100), 100);
        endpoint_connect(&e, "no receive");
        /* At reliable reception the sender's descriptor reports it, so B's handler need not. */
        if (s->levels[i] != VIP_SERVICE_RELIABLE_RECEPTION)
            wait_error(s, VIP_ERROR_RECVQ_EMPTY, empty + 1);
        if (RELIABLE(s->levels[i])) {
            wait_state(&e, VIP_STATE_ERROR);
        } else {
            /* The first message was dropped, not kept: the receive takes the second. */
            CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
            post_recv(&e, d);
            SIDE_SYNC(s, 1);
            reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- disconnect_posted: every descriptor comes back once, in order, and the peer is notified */

#define POSTED 16

void disconnect_posted_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *sd[POSTED], *rd[POSTED];
        int flushed = 0;
        endpoint_open(&e, s, s->levels[i], 1 << 20);
        endpoint_connect(&e, "disconnect");
        for (int k = 0; k < POSTED; k++) {
            prep_recv(&e, rd[k] = descriptor(&e, 1), buffer(&e, 4000), 4000);
            prep_send(&e, sd[k] = descriptor(&e, 1), buffer(&e, 4000), 4000);
        }
        SIDE_SYNC(s, 1); /* B's receives are posted: nothing of what follows fails for want of one */
        for (int k = 0; k < POSTED; k++) {
            post_recv(&e, rd[k]);
            post_send(&e, sd[k]);
        }
        /* In the middle of it: how many of the 16 have left by then is chance. */
        CHECK_OK(VipDisconnect(e.vi));
        CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
        for (int k = 0; k < POSTED; k++) {
            VIP_DESCRIPTOR *d = next_send(&e);
            CHECK(d == sd[k]);
            /* A descriptor that was not sent is flushed, and so are all behind it. */
            CHECK((d->CS.Status & VIP_STATUS_ERROR_MASK) == VIP_STATUS_DESC_FLUSHED_ERROR ||
                  (!flushed && !(d->CS.Status & VIP_STATUS_ERROR_MASK)));
            flushed |= !!(d->CS.Status & VIP_STATUS_ERROR_MASK);
        }
        for (int k = 0; k < POSTED; k++)
            reap_recv(&e, rd[k], VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
        CHECK_EQ(drain(e.vi), 0);
        CHECK_OK(VipDisconnect(e.vi)); /* already is */
        CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
        CHECK_EQ(error_count(s, VIP_ERROR_CONN_LOST), 0); /* who disconnects loses nothing */
        SIDE_SYNC(s, 2);
        endpoint_close(&e);
    }
}

void disconnect_posted_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *rd[POSTED], *d;
        int received = 0;
        endpoint_open(&e, s, s->levels[i], 1 << 20);
        for (int k = 0; k < POSTED; k++)
            post_recv(&e, prep_recv(&e, rd[k] = descriptor(&e, 1), buffer(&e, 4000), 4000));
        endpoint_connect(&e, "disconnect");
        SIDE_SYNC(s, 1);
        wait_error(s, VIP_ERROR_CONN_LOST, i + 1);
        wait_state(&e, VIP_STATE_ERROR);
        /* How much came is chance as well; but what came whole comes before everything that did not. */
        for (int k = 0; k < POSTED; k++) {
            d = next_recv(&e);
            CHECK(d == rd[k]);
            if (!(d->CS.Status & VIP_STATUS_ERROR_MASK))
                CHECK_EQ(received++, k);
            else if (s->levels[i] != VIP_SERVICE_UNRELIABLE || !(d->CS.Status & VIP_STATUS_PARTIAL_ERROR))
                /* Half a message is no error of its own: its receive goes back as those do that nothing came for. Only
                 * where frames may be lost can it be called partial, by the frame behind a gap. */
                CHECK_STATUS(d, VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR | VIP_STATUS_DONE);
        }
        /* In ERROR what is posted comes straight back. */
        post_recv(&e, prep_recv(&e, rd[0], buffer(&e, 8), 8));
        reap_recv(&e, rd[0], VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
        post_send(&e, prep_send(&e, rd[1], buffer(&e, 8), 8));
        reap_send(&e, rd[1], VIP_STATUS_OP_SEND | VIP_STATUS_DESC_FLUSHED_ERROR);
        CHECK_OK(VipDisconnect(e.vi));
        CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
        SIDE_SYNC(s, 2);
        endpoint_close(&e);
    }
}

/* ---- peer_killed: the partner dies in the middle of a stream, or while the connection is idle */

/* Three lives end here at most, one per level. The time is printed and not checked, because a busy machine detects it
 * late. n: VIs, each of which must get one CONN_LOST. */
static void survive(side *s, endpoint *e, int n, const char *what)
{
    double start = check_now();
    for (int i = 0; i < n; i++)
        wait_state(&e[i], VIP_STATE_ERROR);
    wait_error(s, VIP_ERROR_CONN_LOST, n);
    printf("       %s, %s: noticed after %.2f s\n", s->link->name, what, check_now() - start);
    for (int i = 0; i < n; i++) {
        CHECK_OK(VipDisconnect(e[i].vi));
        CHECK_EQ(vi_state(e[i].vi), VIP_STATE_IDLE);
        endpoint_close(&e[i]);
    }
}

void peer_killed_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *rd, *sd;
    uint8_t *out;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 262144);
    rd = descriptor(&e, 1);
    sd = descriptor(&e, 1);
    out = buffer(&e, 20000);
    /* For a direction in which nothing comes: on eth and udp this side would notice a silent peer by that, too. */
    post_recv(&e, prep_recv(&e, rd, buffer(&e, 8), 8));
    endpoint_connect(&e, "killed");
    SIDE_SYNC(s, 1);
    /* A does not know that B dies, and goes on until a send fails or the VI is seen in ERROR: neither may take forever,
     * and the queue must not stay stuck. */
    for (;;) { /* B dies after the tenth; the queue must not stay stuck */
        VIP_DESCRIPTOR *d;
        post_send(&e, prep_send(&e, sd, out, 20000));
        d = next_send(&e);
        if (d->CS.Status & VIP_STATUS_ERROR_MASK)
            break;
        if (vi_state(e.vi) == VIP_STATE_ERROR)
            break;
    }
    survive(s, &e, 1, "killed while sending");
}

void peer_killed_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *rd[64];
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 64 * 20480);
    for (int i = 0; i < 64; i++)
        post_recv(&e, prep_recv(&e, rd[i] = descriptor(&e, 1), buffer(&e, 20000), 20000));
    endpoint_connect(&e, "killed");
    SIDE_SYNC(s, 1);
    for (int i = 0; i < 10; i++)
        /* No completed receive is posted again: A's later messages still find receives, as long as B lives. */
        CHECK(next_recv(&e) == rd[i]);
    raise(SIGKILL);
}

/* One VI per level. Nothing is sent: on a network only the probes after a second of silence can find out. */
void peer_killed_idle_a(side *s)
{
    endpoint e[3];
    for (int i = 0; i < 3; i++) {
        endpoint_open(&e[i], s, s->levels[i], 4096);
        post_recv(&e[i], prep_recv(&e[i], descriptor(&e[i], 1), buffer(&e[i], 8), 8));
        endpoint_connect(&e[i], "killed");
    }
    SIDE_SYNC(s, 1);
    survive(s, e, 3, "killed while idle");
}

void peer_killed_idle_b(side *s)
{
    endpoint e[3];
    for (int i = 0; i < 3; i++) {
        endpoint_open(&e[i], s, s->levels[i], 4096);
        endpoint_connect(&e[i], "killed");
    }
    SIDE_SYNC(s, 1);
    raise(SIGKILL);
}

/* ---- close_with_everything: closing the NIC closes all objects on it, notifies the peer and invalidates the
 * handles */

void close_with_everything_a(side *s)
{
    endpoint e;
    VIP_CQ_HANDLE cq;
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attr;
    VIP_BOOLEAN x, y;
    VIP_DESCRIPTOR *d;
    VIP_NIC_HANDLE old = s->nic;
    VIP_CQ_HANDLE none;
    CHECK_OK(VipCreateCQ(s->nic, 64, &cq));
    /* VI, completion queue, tag, region, eight receives: none of it is given back before the NIC. */
    endpoint_open_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536, 0, cq, NULL);
    for (int i = 0; i < 8; i++)
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), buffer(&e, 100), 100));
    endpoint_connect(&e, "close");
    SIDE_SYNC(s, 1);
    CHECK_OK(VipCloseNic(s->nic));
    /* The NIC is gone, and so is everything that was made on it. */
    CHECK_RET(VipCloseNic(old), VIP_INVALID_PARAMETER);
    CHECK_RET(VipQueryVi(e.vi, &state, &attr, &x, &y), VIP_INVALID_PARAMETER);
    CHECK_RET(VipRecvDone(e.vi, &d), VIP_INVALID_PARAMETER);
    CHECK_RET(VipDestroyCQ(cq), VIP_INVALID_PARAMETER);
    /* A NIC in the same place: the old handles must not mean its objects, which may lie at the same addresses. */
    CHECK_OK(viakit_open_nic(s->device, &s->options, &s->nic));
    CHECK_RET(VipDestroyVi(e.vi), VIP_INVALID_PARAMETER); /* not confused with objects of the new NIC */
    CHECK_OK(VipCreateCQ(s->nic, 64, &none));
    CHECK_RET(VipDestroyCQ(cq), VIP_INVALID_PARAMETER);
    CHECK_OK(VipDestroyCQ(none));
    /* Its region went with the NIC; on purpose endpoint_close is not called. */
    free(e.buffers);
}

void close_with_everything_b(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_connect(&e, "close");
    SIDE_SYNC(s, 1);
    wait_state(&e, VIP_STATE_ERROR);
    wait_error(s, VIP_ERROR_CONN_LOST, 1);
    endpoint_close(&e);
}
