/*
 * cases_message.c - send and receive: lengths, segments, immediate data.
 *
 * A VI has no flow control: a message that finds no receive descriptor is an error. A side therefore sends only
 * messages for which the other side has posted receives. The bytes of a message are derived from its number, so that
 * lost, duplicated, exchanged or torn messages are detected. Guard bytes around every buffer detect writes outside of
 * it.
 */
#include "conformance.h"

#define RELIABLE(level) ((level) != VIP_SERVICE_UNRELIABLE)

/* A sends one message of `len` bytes, and B receives it into a buffer of exactly that length. New buffers are used, so
 * that the guard bytes are next to the data. */
static void one_message(endpoint *e, size_t len, uint64_t key)
{
    VIP_DESCRIPTOR *d = descriptor(e, 1);
    uint8_t *data = buffer(e, len);
    if (e->s->role == SIDE_A) {
        pattern_fill(data, len, key);
        SIDE_SYNC(e->s, 201);
        post_send(e, prep_send(e, d, data, len));
        reap_send(e, d, VIP_STATUS_OP_SEND);
    } else {
        post_recv(e, prep_recv(e, d, data, len));
        SIDE_SYNC(e->s, 201);
        reap_recv(e, d, VIP_STATUS_OP_RECEIVE);
        CHECK_EQ(d->CS.Length, len);
        pattern_check(data, len, key);
    }
    SIDE_SYNC(e->s, 202);
    check_guards(e);
}

/* ---- zero: a message of no bytes is a message, in whichever way it is written down */

/* Four messages: with an empty segment or with none at all, and received in either way. */
static void zero_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d[4];
        endpoint_open(&e, s, s->levels[i], 4096);
        endpoint_connect(&e, "zero");
        for (int k = 0; k < 4; k++) {
            d[k] = prep_send(&e, descriptor(&e, 1), buffer(&e, 8), s->role == SIDE_A ? 0 : 8);
            if (k & (s->role == SIDE_A ? 1 : 2)) { /* no segment at all: on either side, on both, on none */
                d[k]->CS.SegCount = 0;
                d[k]->CS.Length = 0;
            }
            if (s->role == SIDE_B)
                post_recv(&e, d[k]);
        }
        SIDE_SYNC(s, 1);
        for (int k = 0; k < 4; k++) {
            if (s->role == SIDE_A) {
                post_send(&e, d[k]);
                reap_send(&e, d[k], VIP_STATUS_OP_SEND);
            } else {
                reap_recv(&e, d[k], VIP_STATUS_OP_RECEIVE);
                CHECK_EQ(d[k]->CS.Length, 0);
            }
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void zero_a(side *s)
{
    zero_both(s);
}

void zero_b(side *s)
{
    zero_both(s);
}

/* ---- sizes: every length at which the path of a message changes, and its neighbours. These are powers of eight (cache
 * lines and pages), the payload of one frame and of two, of a super-frame, 64 KiB (the largest datagram), and 1 MiB
 * (many windows). */

static void sizes_both(side *s)
{
    viakit_nic_info info;
    size_t edges[16], n = 0;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    edges[n++] = 2;
    for (size_t edge = 8; edge <= 4096; edge *= 8)
        edges[n++] = edge;
    edges[n++] = info.max_payload;
    edges[n++] = 2 * (size_t)info.max_payload;
    edges[n++] = info.super_payload;
    edges[n++] = 65536;
    /* 1 MiB through 5 % of loss would take long and show nothing new. */
    if (!s->link->fault)
        edges[n++] = 1 << 20;
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], 8 << 20);
        endpoint_connect(&e, "sizes");
        for (size_t k = 0; k < n; k++) {
            e.used = 0; /* start the region over: guards were checked after every message */
            e.n_buffers = 0;
            /* A length less, the very length, one more. The unreliable level stays below what a receive ring holds. */
            for (size_t len = edges[k] - 1; len <= edges[k] + 1; len++)
                if (len <= (RELIABLE(s->levels[i]) ? 2u << 20 : 70000u))
                    one_message(&e, len, len + 7);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void sizes_a(side *s)
{
    sizes_both(s);
}

void sizes_b(side *s)
{
    sizes_both(s);
}

/* ---- maximal: exactly MaxTransferSize; the NIC's own maximum where time allows, a VI's smaller one elsewhere */

static void maximal_both(side *s)
{
    size_t max = s->attr.MaxTransferSize;
    if (s->link->kind >= ON_ETH || CHECK_SLOWER > 1)
        /* As much as a few seconds carry on a network or under a sanitizer. */
        max = 8 << 20;
    if (s->link->fault)
        max = 256 << 10;
    for (int i = 0; i < 2; i++) { /* without flow control a link may lose a part of so long a message */
        endpoint e;
        endpoint_open_with(&e, s, s->levels[i], max + 4096, max, NULL, NULL);
        endpoint_connect(&e, "maximal");
        one_message(&e, max, 3);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void maximal_a(side *s)
{
    maximal_both(s);
}

void maximal_b(side *s)
{
    maximal_both(s);
}

/* ---- too_long_to_send: more than the VI's MaxTransferSize is a local error and nothing leaves */

static void too_long_to_send_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d, *ok;
        uint8_t *data;
        /* The VI takes 32768 bytes at most; the region and the receive are larger, so only this limit can refuse. */
        endpoint_open_with(&e, s, s->levels[i], 65536, 32768, NULL, NULL);
        d = descriptor(&e, 1);
        ok = descriptor(&e, 1);
        data = buffer(&e, 40000);
        endpoint_connect(&e, "too long");
        if (s->role == SIDE_B)
            post_recv(&e, prep_recv(&e, ok, data, 40000));
        SIDE_SYNC(s, 1);
        if (s->role == SIDE_A) {
            post_send(&e, prep_send(&e, d, data, 32769));
            /* LENGTH_ERROR is local. At the unreliable level the next message, of exactly 32768 bytes, goes. */
            reap_send(&e, d, VIP_STATUS_OP_SEND | VIP_STATUS_LENGTH_ERROR);
        }
        if (RELIABLE(s->levels[i])) {
            wait_state(&e, VIP_STATE_ERROR);
            if (s->role == SIDE_B) {
                reap_recv(&e, ok, VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
                wait_error(s, VIP_ERROR_CONN_LOST, i + 1);
            }
        } else {
            if (s->role == SIDE_A) {
                post_send(&e, prep_send(&e, ok, data, 32768));
                reap_send(&e, ok, VIP_STATUS_OP_SEND);
            } else {
                reap_recv(&e, ok, VIP_STATUS_OP_RECEIVE);
                CHECK_EQ(ok->CS.Length, 32768);
            }
            CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void too_long_to_send_a(side *s)
{
    too_long_to_send_both(s);
}

void too_long_to_send_b(side *s)
{
    too_long_to_send_both(s);
}

/* ---- too_long_to_receive: longer than the receive descriptor; not a byte may go past its end */

/* A's side. len: of the message; room: of B's receive. */
static void too_long_a(side *s, VIP_RELIABILITY_LEVEL level, size_t len, size_t room)
{
    endpoint e;
    VIP_DESCRIPTOR *d, *ok;
    uint8_t *data;
    endpoint_open(&e, s, level, 2 * len + 4096);
    d = descriptor(&e, 1);
    ok = descriptor(&e, 1);
    data = buffer(&e, len);
    pattern_fill(data, len, 5);
    endpoint_connect(&e, "long");
    SIDE_SYNC(s, 1);
    post_send(&e, prep_send(&e, d, data, len));
    /* The levels differ in how much of the receiver's error the sender gets: the status, the broken connection,
     * nothing. */
    if (level == VIP_SERVICE_RELIABLE_RECEPTION) {
        reap_send(&e, d, VIP_STATUS_OP_SEND | VIP_STATUS_REMOTE_DESC_ERROR);
    } else {
        VIP_DESCRIPTOR *got = next_send(&e); /* reliable delivery: it may have been accounted for before it failed */
        CHECK(got == d);
        if (level == VIP_SERVICE_UNRELIABLE)
            CHECK_STATUS(got, VIP_STATUS_DONE | VIP_STATUS_OP_SEND);
    }
    if (RELIABLE(level)) {
        wait_state(&e, VIP_STATE_ERROR);
    } else {
        post_send(&e, prep_send(&e, ok, data, room));
        reap_send(&e, ok, VIP_STATUS_OP_SEND);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* B's side: two receives; the second one shows whether the connection lived on. */
static void too_long_b(side *s, VIP_RELIABILITY_LEVEL level, size_t len, size_t room)
{
    endpoint e;
    VIP_DESCRIPTOR *d, *ok;
    uint8_t *in;
    endpoint_open(&e, s, level, 2 * len + 4096);
    d = descriptor(&e, 1);
    ok = descriptor(&e, 1);
    in = buffer(&e, room);
    post_recv(&e, prep_recv(&e, d, in, room));
    post_recv(&e, prep_recv(&e, ok, buffer(&e, room), room));
    endpoint_connect(&e, "long");
    SIDE_SYNC(s, 1);
    reap_recv(&e, d, VIP_STATUS_OP_RECEIVE | VIP_STATUS_LENGTH_ERROR);
    check_guards(&e);
    if (RELIABLE(level)) {
        wait_state(&e, VIP_STATE_ERROR);
        reap_recv(&e, ok, VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
    } else {
        /* As A sent from the beginning of its data, the second message has the first one's first bytes. */
        reap_recv(&e, ok, VIP_STATUS_OP_RECEIVE);
        CHECK_EQ(ok->CS.Length, room);
        pattern_check(ok->DS[0].Local.Data.Address, room, 5);
        CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* Too long by one byte within a frame, by a frame, and by many frames. */
static const size_t too_long[][2] = {{101, 100}, {4096, 8}, {60000, 59999}, {60000, 0}};

void too_long_to_receive_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++)
        for (size_t k = 0; k < sizeof(too_long) / sizeof(too_long[0]); k++)
            too_long_a(s, s->levels[i], too_long[k][0], too_long[k][1]);
}

void too_long_to_receive_b(side *s)
{
    for (int i = 0; i < s->n_levels; i++)
        for (size_t k = 0; k < sizeof(too_long) / sizeof(too_long[0]); k++)
            too_long_b(s, s->levels[i], too_long[k][0], too_long[k][1]);
}

/* ---- segments: gathered from up to 252 pieces, scattered over another number of them, empty pieces among them */

/* Cuts `len` bytes at `data` into n segments of uneven lengths that sum up to len. */
static void cut(endpoint *e, VIP_DESCRIPTOR *d, uint8_t *data, size_t len, unsigned n, uint64_t key)
{
    size_t at = 0;
    d->CS.SegCount = (VIP_UINT16)n;
    d->CS.Length = (VIP_UINT32)len;
    for (unsigned i = 0; i < n; i++) {
        /* An expected length of the piece from 0 to twice the mean: some are empty, the last takes the rest. */
        size_t left = len - at, piece = i == n - 1 ? left : random_next(&key) % (2 * (left / (n - i)) + 1);
        d->DS[i].Local.Data.Address = data + at;
        d->DS[i].Local.Handle = e->mh;
        d->DS[i].Local.Length = (VIP_UINT32)piece;
        at += piece;
    }
}

static void segments_both(side *s)
{
    /* A's and B's number of segments. 252 is the most that VIPL allows, 252 against 251 makes no two boundaries
     * agree. */
    static const unsigned counts[][2] = {{1, 2}, {2, 1}, {3, 3}, {7, 50}, {252, 1}, {1, 252}, {252, 251}};
    static const size_t lens[] = {5, 1000, 50000};
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], 2 << 20);
        endpoint_connect(&e, "segments");
        for (size_t k = 0; k < 7 * 3; k++) {
            unsigned n = counts[k / 3][s->role];
            size_t len = lens[k % 3];
            VIP_DESCRIPTOR *d = descriptor(&e, n);
            uint8_t *data = buffer(&e, len);
            CHECK(n <= s->attr.MaxSegmentsPerDesc);
            /* Keys of their own: both sides cut in different places. */
            cut(&e, d, data, len, n, k * 2 + s->role);
            if (s->role == SIDE_B)
                post_recv(&e, d);
            SIDE_SYNC(s, (int)k);
            if (s->role == SIDE_A) {
                pattern_fill(data, len, k);
                post_send(&e, d);
                reap_send(&e, d, VIP_STATUS_OP_SEND);
            } else {
                reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
                CHECK_EQ(d->CS.Length, len);
                pattern_check(data, len, k);
            }
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void segments_a(side *s)
{
    segments_both(s);
}

void segments_b(side *s)
{
    segments_both(s);
}

/* ---- immediate: four bytes beside the data, also without any data; and none where none was sent */

static void immediate_both(side *s)
{
    static const struct {
        /* Beside empty, short and long messages; and messages without, whose status must not say that there is some. */
        size_t len;
        int with;
    } what[] = {{0, 1}, {10, 1}, {10, 0}, {0, 0}, {30000, 1}, {30000, 0}};
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        endpoint_open(&e, s, s->levels[i], 262144);
        endpoint_connect(&e, "immediate");
        for (size_t k = 0; k < sizeof(what) / sizeof(what[0]); k++) {
            VIP_DESCRIPTOR *d = descriptor(&e, 1);
            uint8_t *data = buffer(&e, what[k].len);
            prep_send(&e, d, data, what[k].len);
            if (s->role == SIDE_B)
                post_recv(&e, d);
            SIDE_SYNC(s, (int)k);
            if (s->role == SIDE_A) {
                pattern_fill(data, what[k].len, k);
                d->CS.Control |= what[k].with ? VIP_CONTROL_IMMEDIATE : 0;
                d->CS.ImmediateData = 0xC0FFEE00u + (unsigned)k;
                post_send(&e, d);
                /* Whether a sender's own status repeats the bit is left open by VIPL. */
                CHECK(next_send(&e) == d);
                CHECK_STATUS(d, VIP_STATUS_DONE | VIP_STATUS_OP_SEND | (d->CS.Status & VIP_STATUS_IMMEDIATE));
            } else {
                reap_recv(&e, d, VIP_STATUS_OP_RECEIVE | (what[k].with ? VIP_STATUS_IMMEDIATE : 0));
                CHECK_EQ(d->CS.Length, what[k].len);
                pattern_check(data, what[k].len, k);
                if (what[k].with)
                    CHECK_EQ(d->CS.ImmediateData, 0xC0FFEE00u + (unsigned)k);
            }
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void immediate_a(side *s)
{
    immediate_both(s);
}

void immediate_b(side *s)
{
    immediate_both(s);
}
