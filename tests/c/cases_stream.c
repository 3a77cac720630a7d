/*
 * cases_stream.c - streams of messages: order, wrapping rings and sequence numbers, both directions at once, loss.
 *
 * A side sends only messages for which the other side has posted receives, as in cases_message.c.
 */
#include "conformance.h"

#define RELIABLE(level) ((level) != VIP_SERVICE_UNRELIABLE)

/* ---- order, ring_wrap, psn_wrap: many messages of mixed lengths. The data of each is derived from its number. B keeps
 * WINDOW receives posted, and sends an empty message back for each CREDIT of them that it has posted again. A never has
 * more messages in flight than B has receives. At the end both compare a sum over all bytes in order. */

#define WINDOW 32 /* receives that B keeps posted */
#define CREDIT 16 /* messages per credit that B gives back */

/* Three of five messages are short, so that short and long ones, which use different paths, follow each other. */
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
        /* The last credits are not sent, because no side would receive them. */
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
        /* 1300 bytes fit into one frame of MTU 1500: at the unreliable level the link's ring must hold all messages in
         * flight. */
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

/* Not at the unreliable level, where a lost message would be no error. 1000 messages of up to 14 frames make every ring
 * of `small_rings` wrap many times, and the sequence numbers of `wrap_soon` wrap at 2^32. */
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

/* ---- both_ways: both sides send at the same time
 *
 * Each side keeps 64 receives posted, and is at most 32 messages ahead of those it has received. The peer sent its
 * message r only after it had received message r - 32. So at most 64 messages are in flight in each direction. */

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
    /* Each side waits only for its own counts, so that both directions are busy at the same time. */
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
        /* Check this in the loop, which would otherwise run until the deadline if the connection is lost. */
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

/* ---- unreliable_faults: on a bad link the unreliable level may lose messages, but never duplicates or damages one
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
            if (r == VIP_DESCRIPTOR_ERROR) { /* a part of it was lost, and the status reports it */
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
    if (!s->link->fault && s->link->kind < ON_ETH) /* a lossless link */
        CHECK(n_broken == 0 && n_whole >= N_UNRELIABLE);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}
