/*
 * cases_message.c - send and receive: lengths, order, segments, immediate data, wrapping rings and numbers.
 *
 * A VI has no flow control of its own: a message that finds no receive descriptor is an error. So every case counts: a
 * side sends only what it knows the other has posted receives for. Each message's bytes follow from its number alone,
 * so whatever is lost, doubled, mixed up or torn shows in the data, and guard bytes around every buffer show what goes
 * beside.
 */
#include "conformance.h"

#define RELIABLE(level) ((level) != VIP_SERVICE_UNRELIABLE)

/* A sends one message of `len`, B receives it into a buffer of exactly that length. Fresh buffers, so that the guard
 * bytes stand right around the data. */
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

/* ---- sizes: every length at which something changes, and its neighbours. What changes is the way: powers of eight for
 * lines of memory and pages, one frame's payload and two, a super-frame's, 64 KiB for the largest datagram, 1 MiB for
 * many windows. */

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
    /* What the sender is told of the receiver's trouble is the level's difference: everything, something, nothing. */
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

/* One byte too long in a frame; a frame too long; many frames too long. */
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

/* ---- order, ring_wrap, psn_wrap: many messages of mixed lengths, each with data that only its number gives. B keeps
 * WINDOW receives posted and sends an empty message back for each CREDIT of them that it has posted again; A never has
 * more under way than B has receives. In the end both compare a sum over all bytes in their order. */

#define WINDOW 32 /* receives that B keeps posted */
#define CREDIT 16 /* messages per credit that B gives back */

/* Three of five are short, so that short and long ones, which take different ways, follow each other closely. */
static size_t mixed_length(uint64_t i, size_t longest)
{
    uint64_t state = i * 77 + 1, die = random_next(&state);
    size_t len = die % 100 < 60 ? random_next(&state) % 256 : random_next(&state) % longest;
    return len < longest ? len : longest;
}

static void stream_a(endpoint *e, uint64_t n, size_t longest)
{
    VIP_DESCRIPTOR *sd[WINDOW], *credit[4];
    uint8_t *out[WINDOW];
    uint64_t posted = 0, reaped = 0, credits = 0, sum = 0;
    for (int i = 0; i < WINDOW; i++) {
        sd[i] = descriptor(e, 1);
        out[i] = buffer(e, longest);
    }
    /* Four: B never has more credits under way, as WINDOW / CREDIT is two. */
    for (int i = 0; i < 4; i++)
        post_recv(e, prep_recv(e, credit[i] = descriptor(e, 1), NULL, 0));
    SIDE_SYNC(e->s, 1);
    while (reaped < n) {
        while (posted < n && posted - reaped < WINDOW && posted < WINDOW + credits * CREDIT) {
            size_t len = mixed_length(posted, longest);
            uint8_t *p = out[posted % WINDOW];
            pattern_fill(p, len, posted);
            for (size_t k = 0; k < len; k++)
                sum = sum * 31 + p[k];
            post_send(e, prep_send(e, sd[posted % WINDOW], p, len));
            posted++;
        }
        if (posted > reaped) {
            reap_send(e, sd[reaped % WINDOW], VIP_STATUS_OP_SEND);
            reaped++;
        }
        /* Out of credit. B's next one may be here already; if not, this waits for it. */
        if (posted < n && posted >= WINDOW + credits * CREDIT) {
            VIP_DESCRIPTOR *d = next_recv(e);
            CHECK_STATUS(d, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
            CHECK(d == credit[credits % 4]);
            credits++;
            post_recv(e, prep_recv(e, d, NULL, 0));
        }
    }
    CHECK_EQ(side_exchange(e->s, sum), sum);
}

static void stream_b(endpoint *e, uint64_t n, size_t longest)
{
    VIP_DESCRIPTOR *rd[WINDOW], *credit[4];
    uint8_t *in[WINDOW];
    uint64_t sent = 0, sum = 0;
    for (int i = 0; i < WINDOW; i++)
        post_recv(e, prep_recv(e, rd[i] = descriptor(e, 1), in[i] = buffer(e, longest), longest));
    for (int i = 0; i < 4; i++)
        credit[i] = descriptor(e, 1);
    SIDE_SYNC(e->s, 1);
    for (uint64_t i = 0; i < n; i++) {
        VIP_DESCRIPTOR *d = rd[i % WINDOW];
        size_t len = mixed_length(i, longest);
        uint8_t *p = in[i % WINDOW];
        reap_recv(e, d, VIP_STATUS_OP_RECEIVE);
        CHECK_EQ(d->CS.Length, len);
        pattern_check(p, len, i);
        for (size_t k = 0; k < len; k++)
            sum = sum * 31 + p[k];
        /* The last credits are not sent: nobody would take them. */
        post_recv(e, prep_recv(e, d, p, longest));
        if ((i + 1) % CREDIT == 0 && (i + 1) + WINDOW - CREDIT < n) {
            if (sent >= 4)
                reap_send(e, credit[sent % 4], VIP_STATUS_OP_SEND);
            post_send(e, prep_send(e, credit[sent++ % 4], NULL, 0));
        }
    }
    CHECK_EQ(side_exchange(e->s, sum), sum);
}

static void stream_both(side *s, VIP_RELIABILITY_LEVEL level, uint64_t n, size_t longest)
{
    endpoint e;
    endpoint_open(&e, s, level, (longest + 256) * (WINDOW + 4));
    endpoint_connect(&e, "stream");
    if (s->role == SIDE_A)
        stream_a(&e, n, longest);
    else
        stream_b(&e, n, longest);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void order_both(side *s)
{
    uint64_t n = (s->link->fault ? 2000 : 10000) / CHECK_SLOWER;
    for (int i = 0; i < s->n_levels; i++)
        /* 1300 bytes fit one frame of MTU 1500: at the unreliable level the ring of a wire must hold what is under
         * way. */
        stream_both(s, s->levels[i], n, RELIABLE(s->levels[i]) ? 12000 : 1300);
}

void order_a(side *s)
{
    order_both(s);
}

void order_b(side *s)
{
    order_both(s);
}

/* Not at the unreliable level: what wraps are rings and numbers, of which a loss there would tell nothing. 1000
 * messages of up to 14 frames lead every ring of `small_rings` around many times, and the numbers of `wrap_soon` across
 * 2^32. */
static void wrap_both(side *s)
{
    for (int i = 0; i < 2; i++)
        stream_both(s, s->levels[i], 1000 / CHECK_SLOWER, 20000);
}

void ring_wrap_a(side *s)
{
    wrap_both(s);
}

void ring_wrap_b(side *s)
{
    wrap_both(s);
}

void psn_wrap_a(side *s)
{
    wrap_both(s);
}

void psn_wrap_b(side *s)
{
    wrap_both(s);
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

/* ---- both_ways: both sides send at once
 *
 * Each keeps 64 receives posted and is at most 32 messages ahead of what it has received: the other sent its message
 * r only after it had received message r - 32, so never more than 64 of ours are under way. */

static void both_ways_level(side *s, VIP_RELIABILITY_LEVEL level, uint64_t n, size_t longest)
{
    endpoint e;
    VIP_DESCRIPTOR *rd[64], *sd[32];
    uint8_t *in[64], *out[32];
    uint64_t sent = 0, reaped = 0, received = 0;
    endpoint_open(&e, s, level, (longest + 512) * 100);
    for (int i = 0; i < 64; i++)
        post_recv(&e, prep_recv(&e, rd[i] = descriptor(&e, 1), in[i] = buffer(&e, longest), longest));
    for (int i = 0; i < 32; i++) {
        sd[i] = descriptor(&e, 1);
        out[i] = buffer(&e, longest);
    }
    endpoint_connect(&e, "both ways");
    /* Neither side waits for the other but by its own count, so both directions are busy at once. */
    while (received < n || reaped < n) {
        VIP_DESCRIPTOR *d;
        if (sent < n && sent < received + 32 && sent - reaped < 32) {
            size_t len = mixed_length(sent, longest);
            pattern_fill(out[sent % 32], len, 2 * sent + s->role);
            post_send(&e, prep_send(&e, sd[sent % 32], out[sent % 32], len));
            sent++;
            continue;
        }
        if (VipSendDone(e.vi, &d) == VIP_SUCCESS) {
            CHECK(d == sd[reaped % 32]);
            reaped++;
        }
        if (received < n && VipRecvDone(e.vi, &d) == VIP_SUCCESS) {
            uint64_t i = received++;
            CHECK(d == rd[i % 64]);
            CHECK_EQ(d->CS.Length, mixed_length(i, longest));
            pattern_check(in[i % 64], d->CS.Length, 2 * i + !s->role);
            post_recv(&e, prep_recv(&e, d, in[i % 64], longest));
        }
        /* Checked in the loop: a connection that is lost would leave it turning until the deadline. */
        if (vi_state(e.vi) != VIP_STATE_CONNECTED)
            FAIL("connection lost after %llu sent, %llu received", (unsigned long long)sent,
                 (unsigned long long)received);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void both_ways_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++)
        both_ways_level(s, s->levels[i], 2000 / CHECK_SLOWER, RELIABLE(s->levels[i]) ? 9000 : 1300);
}

void both_ways_a(side *s)
{
    both_ways_both(s);
}

void both_ways_b(side *s)
{
    both_ways_both(s);
}

/* ---- unreliable_faults: on a bad link the unreliable level may lose messages; it never doubles or damages one
 *
 * A sends 400 numbered messages of up to three frames, then end marks until B has seen one. */

#define N_UNRELIABLE 400
#define N_POSTED 900

void unreliable_faults_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    uint8_t *out;
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 65536);
    d = descriptor(&e, 1);
    out = buffer(&e, 4000);
    endpoint_connect(&e, "unreliable");
    SIDE_SYNC(s, 1);
    for (uint64_t i = 0, done = 0; !done && i < N_POSTED; i++) {
        size_t len = i < N_UNRELIABLE ? mixed_length(i, 4000) : 0;
        pattern_fill(out, len, i);
        prep_send(&e, d, out, len);
        d->CS.Control |= VIP_CONTROL_IMMEDIATE;
        d->CS.ImmediateData = (VIP_UINT32)i;
        post_send(&e, d);
        CHECK(next_send(&e) == d);
        CHECK_EQ(d->CS.Status & VIP_STATUS_ERROR_MASK, 0);
        if (i >= N_UNRELIABLE && i % 20 == 0)
            done = side_exchange(s, 0);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void unreliable_faults_b(side *s)
{
    endpoint e;
    uint8_t seen[N_POSTED] = {0};
    int n_whole = 0, n_broken = 0, ended = 0;
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, N_POSTED * 4600);
    for (int i = 0; i < N_POSTED; i++)
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), buffer(&e, 4000), 4000));
    endpoint_connect(&e, "unreliable");
    SIDE_SYNC(s, 1);
    for (uint64_t round = 0; !ended && round < (N_POSTED - N_UNRELIABLE) / 20; round++) {
        VIP_DESCRIPTOR *d = NULL;
        VIP_RETURN r;
        side_recv(s, &(uint64_t){0}, sizeof(uint64_t));
        while ((r = VipRecvDone(e.vi, &d)) != VIP_NOT_DONE) {
            uint32_t i = d ? d->CS.ImmediateData : 0;
            if (r == VIP_DESCRIPTOR_ERROR) { /* a part of it was lost, and the status says so */
                CHECK(d != NULL);
                CHECK(d->CS.Status & (VIP_STATUS_PARTIAL_ERROR | VIP_STATUS_TRANSPORT_ERROR));
                n_broken++;
                continue;
            }
            CHECK_OK(r);
            CHECK(i < N_POSTED);
            CHECK_EQ(seen[i]++, 0);
            n_whole++;
            ended |= i >= N_UNRELIABLE;
            CHECK_EQ(d->CS.Length, i < N_UNRELIABLE ? mixed_length(i, 4000) : 0);
            pattern_check(d->DS[0].Local.Data.Address, d->CS.Length, i);
        }
        side_send(s, &(uint64_t){(uint64_t)ended}, sizeof(uint64_t));
    }
    CHECK(ended);
    CHECK(n_whole > N_UNRELIABLE / 4);
    if (!s->link->fault && s->link->kind < ON_ETH) /* on a link that loses nothing, nothing is lost */
        CHECK(n_broken == 0 && n_whole >= N_UNRELIABLE);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}
