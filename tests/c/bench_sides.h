/*
 * bench_sides.h - for test_bench.c: both sides of a measurement as threads of this process, and checks of a run.
 */
#ifndef BENCH_SIDES_H
#define BENCH_SIDES_H

#include <pthread.h>

#include "bench/bench.h"
#include "check.h"

static const char *mode_names[] = {"ping-pong", "stream", "bidir"};

/* One side: its endpoint, its plan (equal but for `side`), and its result. Only side A has samples. */
typedef struct {
    bench_ep *ep;
    bench_plan plan;
    double samples[4096];
    int result;
    pthread_barrier_t *prepared;
} side;

/* The barrier delays A's first message until B can receive. */
static inline void *run_side(void *context)
{
    side *s = context;
    s->result = bench_prepare(s->ep, &s->plan);
    pthread_barrier_wait(s->prepared);
    if (s->result == BENCH_OK)
        s->result = bench_run(s->ep, &s->plan, s->plan.side ? NULL : s->samples);
    return NULL;
}

/* Run a plan on two endpoints; the results are in sides[0] and sides[1]. */
static inline void run_both(side sides[2], bench_ep *a, bench_ep *b, bench_plan plan)
{
    static uint32_t run_id;
    pthread_barrier_t prepared;
    pthread_t threads[2];
    pthread_barrier_init(&prepared, NULL, 2);
    /* Each run has a number, by which messages of earlier runs are recognised. */
    plan.run_id = ++run_id;
    for (int i = 0; i < 2; i++) {
        memset(&sides[i], 0, sizeof sides[i]);
        sides[i].ep = i ? b : a;
        sides[i].plan = plan;
        sides[i].plan.side = i;
        sides[i].prepared = &prepared;
        CHECK_EQ(pthread_create(&threads[i], NULL, run_side, &sides[i]), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&prepared);
}

/* 2 warm-up messages, and few messages, so that all sizes and modes take seconds. Offsets of 0 to 32 bytes vary the
 * alignment of the data. */
static inline bench_plan plan_of(bench_mode mode, size_t len, bool validate)
{
    return (bench_plan){
        .mode = mode,
        .len = len,
        .count = len > 100000 ? 3 : 12,
        .warmup = 2,
        .repeats = mode == BENCH_PINGPONG ? 1 : 3,
        .offset = len % 5 * 8,
        .validate = validate,
        .one_core = true, /* other tests run at the same time */
        .timeout_s = CHECK_WAIT_S,
        .stall_s = CHECK_WAIT_S,
        .control_fd = -1,
    };
}

/* Each endpoint runs with each of these treatments of buffers. */
static const struct {
    bench_use buffers;
    bool validate;
} treatments[] = {{BENCH_SAME, false},   {BENCH_SAME, true},  {BENCH_TOUCHED, false},
                  {BENCH_TOUCHED, true}, {BENCH_COLD, false}, {BENCH_COLD, true}};
#define N_TREATMENTS (sizeof treatments / sizeof treatments[0])
static const char *const use_names[] = {"same", "touched", "cold"};
#define POOL ((size_t)256 << 10) /* bytes of cold buffers; need not exceed a cache here */

/* Run a plan, and check the samples and the counts of messages and of touched bytes. */
static inline void run_one(bench_ep *a, bench_ep *b, bench_plan plan)
{
    static side sides[2];
    uint64_t before[BENCH_N_COUNTERS], after[BENCH_N_COUNTERS];
    snprintf(check_context, sizeof check_context, "%s %s %s %zu %s%s%s", a->ops->name, a->polled ? "poll" : "block",
             mode_names[plan.mode], plan.len, use_names[plan.buffers], plan.validate ? " validated" : "",
             plan.memory == BENCH_MEMORY_VIAKIT ? " viakit" : "");
    bench_counters(a, before);
    run_both(sides, a, b, plan);
    bench_counters(a, after);
    for (int s = 0; s < 2; s++) {
        if (sides[s].result != BENCH_OK)
            FAIL("side %c: %d, %s", "AB"[s], sides[s].result, sides[s].ep->error);
    }
    /* In ping-pong each message is a sample, in the streaming modes each repetition. */
    uint64_t n = plan.mode == BENCH_PINGPONG ? plan.count : plan.repeats;
    for (uint64_t k = 0; k < n; k++)
        CHECK(sides[0].samples[k] > 0);
    uint64_t messages = plan.warmup + plan.repeats * plan.count, touched = messages * plan.len;
    CHECK(after[BENCH_COUNTER_messages_sent] - before[BENCH_COUNTER_messages_sent] >= messages);
    /* Side A of a stream sends only. Every byte of a message is touched once, and no other byte. */
    bool touches = plan.buffers == BENCH_TOUCHED && !plan.validate;
    CHECK_EQ(after[BENCH_COUNTER_bytes_written] - before[BENCH_COUNTER_bytes_written], touches ? touched : 0);
    CHECK_EQ(after[BENCH_COUNTER_bytes_read] - before[BENCH_COUNTER_bytes_read],
             touches && plan.mode != BENCH_STREAM ? touched : 0);
}

/* Run every mode and the given sizes with every treatment; the longest messages with the first two only. */
static inline void run_all_in(bench_ep *a, bench_ep *b, const size_t *lens, size_t n_lens, bench_memory memory)
{
    for (size_t i = 0; i < n_lens; i++) {
        for (int mode = 0; mode < 3; mode++) {
            for (size_t t = 0; t < (lens[i] > 100000 ? 2 : N_TREATMENTS); t++) {
                bench_plan plan = plan_of((bench_mode)mode, lens[i], treatments[t].validate);
                plan.buffers = treatments[t].buffers;
                plan.memory = memory;
                plan.pool = POOL;
                run_one(a, b, plan);
            }
        }
    }
}

static inline void run_all(bench_ep *a, bench_ep *b, const size_t *lens, size_t n_lens)
{
    run_all_in(a, b, lens, n_lens, BENCH_MEMORY_USER);
}

/* An empty message (datagrams only: a stream has none), a byte, an odd length, a cache line, a page, more than a
 * datagram or frame, many of them. */
static const size_t all_lens[] = {0, 1, 7, 64, 4096, 100000, 1 << 20};
#define N_LENS (sizeof all_lens / sizeof all_lens[0])

#endif
