/*
 * test_bench_buffers.c - what the measuring loop does with buffers: same, touched, cold.
 *
 * An endpoint that records what it is given stands in for a protocol: from which addresses messages are sent, what they
 * hold, and to which addresses they are received.
 */
#include "bench/bench.h"
#include "bench/content.h"
#include "check.h"

#define MAX_SEEN 4096
#define POOL ((size_t)256 << 10) /* of cold buffers: no cache matters here */

static const char *const use_names[] = {"same", "touched", "cold"};

/* An endpoint that records from where messages are sent and with which first byte, and to where they are received. */
typedef struct {
    bench_ep ep;
    size_t n_sent, n_received;
    const unsigned char *sent[MAX_SEEN], *received[MAX_SEEN];
    unsigned char first[MAX_SEEN], last[MAX_SEEN];
} record_ep;

static int record_prepare(bench_ep *ep, const bench_plan *plan)
{
    return bench_buffers(ep, plan, 1);
}

static int record_send(bench_ep *base, size_t len)
{
    record_ep *ep = (record_ep *)base;
    ep->sent[ep->n_sent] = base->sbuf;
    ep->first[ep->n_sent] = base->sbuf[0];
    ep->last[ep->n_sent++] = base->sbuf[len - 1];
    return BENCH_DONE;
}

static int record_recv(bench_ep *base, size_t len)
{
    record_ep *ep = (record_ep *)base;
    (void)len;
    ep->received[ep->n_received++] = base->rmsg = base->rbuf;
    return BENCH_DONE;
}

static const bench_ops record_ops = {.name = "record",
                                     .max_len = 1 << 20,
                                     .empty = true,
                                     .prepare = record_prepare,
                                     .send = record_send,
                                     .recv = record_recv};

/* Addresses that differ from all before them. */
static size_t n_distinct(const unsigned char *const *seen, size_t n)
{
    size_t distinct = 0;
    for (size_t i = 0; i < n; i++) {
        size_t j = 0;
        while (j < i && seen[j] != seen[i])
            j++;
        distinct += j == i;
    }
    return distinct;
}

/* Runs 1000 messages and returns what was seen; the caller closes. */
static record_ep *record(bench_mode mode, size_t len, bench_use buffers)
{
    char error[BENCH_ERROR_LEN];
    record_ep *ep = bench_ep_new(sizeof *ep, &record_ops, true, error);
    bench_plan plan = {.mode = mode,
                       .len = len,
                       .count = 1000,
                       .warmup = 2,
                       .repeats = 1,
                       .buffers = buffers,
                       .pool = POOL,
                       .timeout_s = CHECK_WAIT_S,
                       .stall_s = CHECK_WAIT_S,
                       .control_fd = -1};
    static double samples[MAX_SEEN];
    CHECK(ep);
    snprintf(check_context, sizeof check_context, "mode %d, %zu bytes, %s", mode, len, use_names[buffers]);
    CHECK_EQ(bench_prepare(&ep->ep, &plan), BENCH_OK);
    CHECK_EQ(bench_run(&ep->ep, &plan, samples), BENCH_OK);
    CHECK_EQ(ep->n_sent, plan.count + plan.warmup);
    CHECK(bench_touch_ns(&ep->ep, &plan) > 0);
    return ep;
}

static void test_treatments(void)
{
    /* Same: one buffer, never written. */
    record_ep *ep = record(BENCH_PINGPONG, 1000, BENCH_SAME);
    CHECK_EQ(n_distinct(ep->sent, ep->n_sent), 1);
    CHECK_EQ(n_distinct(ep->received, ep->n_received), 1);
    for (size_t i = 0; i < ep->n_sent; i++)
        CHECK_EQ(ep->first[i], 0);
    bench_close(&ep->ep);

    /* Touched: every message is another one, to its last byte. */
    static const struct {
        bench_mode mode;
        size_t len, n_sends;
    } touched[] = {{BENCH_PINGPONG, 4096, 2},
                   {BENCH_PINGPONG, 4097, 1},
                   {BENCH_STREAM, 1000, 32},
                   {BENCH_STREAM, 65536, 8},
                   {BENCH_STREAM, 1 << 20, 2}};
    for (size_t t = 0; t < sizeof touched / sizeof touched[0]; t++) {
        ep = record(touched[t].mode, touched[t].len, BENCH_TOUCHED);
        CHECK_EQ(n_distinct(ep->sent, ep->n_sent), touched[t].n_sends);
        size_t changed_first = 0, changed_last = 0;
        for (size_t i = 1; i < ep->n_sent; i++) {
            changed_first += ep->first[i] != ep->first[i - 1];
            changed_last += ep->last[i] != ep->last[i - 1];
        }
        CHECK_EQ(changed_first, ep->n_sent - 1); /* the first byte of a word grows by an odd number each time */
        CHECK(changed_last > ep->n_sent / 2);
        bench_close(&ep->ep);
    }

    /* Cold: as many buffers as make the pool, before any comes a second time. */
    ep = record(BENCH_PINGPONG, 1000, BENCH_COLD);
    size_t n = n_distinct(ep->sent, ep->n_sent);
    CHECK(n * 1000 >= POOL / 2 && n_distinct(ep->sent, n) == n && n_distinct(ep->received, n) == n);
    bench_close(&ep->ep);
}

/* The written data is what the reader expects, and one changed byte is detected anywhere. */
static void test_content(void)
{
    static unsigned char room[400];
    snprintf(check_context, sizeof check_context, "content");
    for (size_t len = 0; len <= 200; len++) {
        for (size_t start = 0; start < 16; start++) {
            uint64_t value = bench_content_mix(len * 31 + start);
            memset(room, BENCH_GUARD_BYTE, sizeof room);
            bench_content_write(room + 64 + start, len, value);
            CHECK_EQ(bench_content_sum(room + 64 + start, len), bench_content_sum_of(len, value));
            for (size_t i = 0; i < sizeof room; i++)
                CHECK(i - 64 - start < len || room[i] == BENCH_GUARD_BYTE); /* nothing outside is written */
            for (size_t i = 0; i < len; i++) {
                room[64 + start + i] ^= 0x10;
                CHECK(bench_content_sum(room + 64 + start, len) != bench_content_sum_of(len, value));
                room[64 + start + i] ^= 0x10;
            }
        }
    }
}

int main(void)
{
    check_deadline(60);
    test_content();
    test_treatments();
    return 0;
}
