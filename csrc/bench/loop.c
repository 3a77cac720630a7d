/*
 * bench/loop.c - the measuring loop: one for all protocols, so that a difference between two
 * curves is a difference between two protocols.
 *
 * Ping-pong, one round trip on side A (stamps marked |):
 *
 *      | send  tidy  recv | send  tidy  recv | ...
 *        ----- ~~~~ .....
 *        path  hidden: the answer is on its way
 *
 * One stamp ends a round trip and begins the next. `tidy` posts receives again and reaps sends where
 * the time would be spent waiting anyway. Whatever the loop itself costs is in every protocol's figure
 * alike and is measured by running it on the null endpoint.
 *
 * Stream, where the protocol leaves flow control to its user (ep->window > 0): B gives a credit, a message of 1
 * byte, after every half window; A never has more than a window under way. Otherwise A just sends. Bidir needs
 * no credits: who has sent half a window more than it received waits, and the peer does the same.
 *
 *      A   m m m m . . . m m . .  answer?                 window 4: after 2 messages B says so, and A may send 2 more
 *      B       c     c           1 byte when all came     the time on A ends with the answer
 *
 * Both sides count the same messages from the same plan (messages_to_receive), so nothing is sent to agree on
 * the end of a run, and each protocol knows beforehand how many receives it needs.
 *
 * Every wait goes through until_done: it tries an operation some thousand times, then looks at
 * clock, stop flag and control descriptor. A polled wait thus ends within a millisecond of
 * being told to, a blocking one within a slice. After any error the run is over and the
 * endpoint good for nothing but closing: the two sides are out of step.
 */
#include "base/plural.h"
#include "bench/bench.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SPINS 4096        /* tries between two looks at the clock: so many that the looks do not show in the samples */
#define SPINS_ONE_CORE 16 /* when the peer needs this very core to answer */
#define LOOK_NS 20000000u /* between two looks at control descriptor and interrupt callback */
#define MAX_COUNT 100000000u /* stamps are kept: 800 MB, more than anybody means */

/* The state of one run. */
typedef struct {
    bench_ep *ep;
    const bench_plan *plan;
    unsigned spins;
    uint64_t end_ns, stall_ns;            /* by bench_now_ns */
    uint64_t moved, moved_seen, moved_ns; /* messages so far; when that last changed, and to what */
    uint64_t next_look_ns;
    uint64_t repeat; /* of stream and bidir, 0 is the warm-up: part of the pattern */
} run;

/* ---------------------------------------------------------------- waiting */

static int stopped(run *r, const char *why)
{
    return bench_fail(r->ep, BENCH_STOPPED, "stopped: %s", why);
}

/* The slow path of every wait. 0: go on. Deadlines are by bench_now_ns (milliseconds matter), samples by bench_ticks
 * (nanoseconds do): two clocks, on purpose. */
static int look_around(run *r)
{
    const bench_plan *plan = r->plan;
    if (plan->one_core)
        sched_yield();
    if (plan->stop && *plan->stop)
        return stopped(r, "the stop flag was set");
    uint64_t now = bench_now_ns();
    if (now > r->end_ns)
        return bench_fail(r->ep, BENCH_TIMEOUT, "the run of %zu-byte messages was not over after %.1f s", plan->len,
                          plan->timeout_s);
    if (r->moved != r->moved_seen) {
        r->moved_seen = r->moved;
        r->moved_ns = now;
    } else if (now - r->moved_ns > r->stall_ns) {
        return bench_fail(r->ep, BENCH_TIMEOUT,
                          "no message of %zu byte%s came or went for %.1f s: the peer has gone, or one was lost",
                          plan->len, vk_s(plan->len), plan->stall_s);
    }
    if (now < r->next_look_ns)
        return 0;
    r->next_look_ns = now + LOOK_NS;
    if (plan->interrupt && plan->interrupt(plan->interrupt_context))
        return stopped(r, "interrupted");
    struct pollfd control = {.fd = plan->control_fd, .events = POLLIN | POLLRDHUP};
    if (plan->control_fd >= 0 && poll(&control, 1, 0) > 0)
        return stopped(r, "the coordinator said so or has gone");
    return 0;
}

/* An operation of bench_ops, as until_done repeats it: above 0 done, 0 not yet, below 0 an error. */
typedef int (*operation)(bench_ep *ep, size_t len);

/* Repeats an operation until it is done; 0 then. Counts the tries that found nothing. Inlined into each caller,
 * so that `op` is known there as far as it can be and the path is one indirect call. */
static inline __attribute__((always_inline)) int until_done(run *r, operation op, size_t len, uint64_t *idle_polls)
{
    for (;;) {
        for (unsigned i = 0; i < r->spins; i++) {
            int rc = op(r->ep, len);
            if (rc) {
                r->moved++;
                *idle_polls += i;
                return rc < 0 ? rc : 0;
            }
        }
        *idle_polls += r->spins;
        int rc = look_around(r);
        if (rc)
            return rc;
    }
}

static inline int send_message(run *r, size_t len)
{
    uint64_t ignored = 0;
    int rc = until_done(r, r->ep->ops->send, len, &ignored);
    if (!rc) {
        r->ep->count[BENCH_COUNTER_messages_sent]++;
        r->ep->count[BENCH_COUNTER_bytes_sent] += len;
    }
    return rc;
}

static inline int receive_message(run *r, size_t len)
{
    int rc = until_done(r, r->ep->ops->recv, len, &r->ep->count[BENCH_COUNTER_empty_polls]);
    if (!rc) {
        r->ep->count[BENCH_COUNTER_messages_received]++;
        r->ep->count[BENCH_COUNTER_bytes_received] += len;
    }
    return rc;
}

/* BENCH_DONE and BENCH_NOT_YET are both fine: what could not be tidied now will be the next time. */
static inline int tidy(run *r)
{
    int rc = r->ep->ops->tidy ? r->ep->ops->tidy(r->ep) : 0;
    return rc < 0 ? rc : 0;
}

/* flush and finish, which take no length, in the shape that until_done wants. */
static int do_flush(bench_ep *ep, size_t len)
{
    (void)len;
    return ep->ops->flush ? ep->ops->flush(ep) : BENCH_DONE;
}

static int do_finish(bench_ep *ep, size_t len)
{
    return ep->ops->finish ? ep->ops->finish(ep) : do_flush(ep, len);
}

static int flush(run *r)
{
    uint64_t ignored = 0;
    return until_done(r, do_flush, 0, &ignored);
}

static int finish(run *r)
{
    uint64_t ignored = 0;
    return until_done(r, do_finish, 0, &ignored);
}

/* ---------------------------------------------------------------- validation
 *
 * Word j of a message is a function of run, sender, repeat, message and size, so that a message that is old, repeated,
 * swapped with another or shifted by a byte does not pass. */

/* A mixing function of the multiply-and-shift kind: every bit of x reaches every bit of the
 * result. For telling patterns apart, not for secrets. */
static uint64_t mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7FB5D329728EA185u;
    x ^= x >> 27;
    x *= 0x81DADEF4BC2DD44Du;
    return x ^ x >> 33;
}

/* `side` is the sender's. Both sides compute it; nothing is sent for validation but the message. */
static uint64_t seed_of(const run *r, int side, uint64_t i)
{
    uint64_t seed = mix(r->plan->run_id * 2u + (uint64_t)side + 1);
    return mix(seed ^ mix(r->repeat << 40 ^ i) ^ mix(r->plan->len + 77));
}

/* One multiplication per word: validation should take as little of a run as it can. */
static inline uint64_t word(uint64_t seed, size_t j)
{
    uint64_t x = seed + j * 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

/* Puts message i into sbuf, before the clock starts. */
static int fill(run *r, uint64_t i)
{
    int rc = flush(r); /* the last message may still be read from here */
    if (rc)
        return rc;
    uint64_t seed = seed_of(r, r->plan->side, i);
    size_t len = r->plan->len, j = 0;
    for (; j < len / 8; j++) {
        uint64_t w = word(seed, j);
        memcpy(r->ep->sbuf + j * 8, &w, 8);
    }
    uint64_t last = word(seed, j);
    /* The rest of less than 8 bytes. */
    memcpy(r->ep->sbuf + j * 8, &last, len % 8);
    return 0;
}

/* Compares what arrived with what was sent, and the guard behind it. Says which byte of which
 * message is wrong. `!side`: the pattern is its sender's. */
static int check(run *r, uint64_t i)
{
    uint64_t seed = seed_of(r, !r->plan->side, i);
    const unsigned char *message = r->ep->rmsg;
    size_t len = r->plan->len;
    for (size_t j = 0; j * 8 < len; j++) {
        uint64_t expected = word(seed, j), found = expected;
        size_t n = len - j * 8 < 8 ? len - j * 8 : 8;
        memcpy(&found, message + j * 8, n);
        if (found == expected)
            continue;
        size_t k = 0;
        while (k < n && ((unsigned char *)&found)[k] == ((unsigned char *)&expected)[k])
            k++;
        return bench_fail(r->ep, BENCH_MISMATCH, "message %llu of %zu byte%s: byte %zu is 0x%02x, should be 0x%02x",
                          (unsigned long long)i, len, vk_s(len), j * 8 + k, ((unsigned char *)&found)[k],
                          ((unsigned char *)&expected)[k]);
    }
    /* A message of 0 bytes has its guard behind one byte: answers and credits use the same buffer (endpoint.c). */
    for (size_t k = 0; k < BENCH_GUARD; k++) {
        if (message[(len ? len : 1) + k] != BENCH_GUARD_BYTE)
            return bench_fail(r->ep, BENCH_MISMATCH,
                              "message %llu of %zu byte%s: the receiver wrote %zu byte%s past its end",
                              (unsigned long long)i, len, vk_s(len), k + 1, vk_s(k + 1));
    }
    return 0;
}

/* ---------------------------------------------------------------- ping-pong */

/* n round trips; stamps[i], if wanted, gets the ticks of the i-th. With validation A's clock stops while messages are
 * made and looked at; B's part of that lies within the time, so figures of validated runs are not for comparing. */
static int pingpong_a(run *r, uint64_t n, uint64_t first, uint64_t *stamps)
{
    const size_t len = r->plan->len;
    const bool validate = r->plan->validate;
    uint64_t before = bench_ticks();
    for (uint64_t i = 0; i < n; i++) {
        int rc;
        if (validate) {
            if ((rc = fill(r, first + i)))
                return rc;
            before = bench_ticks();
        }
        /* The measured path. */
        if ((rc = send_message(r, len)) || (rc = tidy(r)) || (rc = receive_message(r, len)))
            return rc;
        uint64_t after = bench_ticks();
        if (stamps)
            stamps[i] = after - before;
        before = after;
        if (validate && (rc = check(r, first + i)))
            return rc;
    }
    return 0;
}

static int pingpong_b(run *r, uint64_t n)
{
    const size_t len = r->plan->len;
    for (uint64_t i = 0; i < n; i++) {
        int rc = receive_message(r, len);
        if (rc)
            return rc;
        if (r->plan->validate && ((rc = check(r, i)) || (rc = fill(r, i))))
            return rc;
        if ((rc = send_message(r, len)) || (rc = tidy(r)))
            return rc;
    }
    return 0;
}

/* Samples are half round trips in nanoseconds: ping-pong cannot tell the two directions apart, and says so by
 * halving. */
static int run_pingpong(run *r, double *samples)
{
    const bench_plan *plan = r->plan;
    if (plan->side)
        return pingpong_b(r, plan->warmup + plan->count);
    uint64_t *stamps = malloc(plan->count * sizeof *stamps);
    if (!stamps)
        return bench_fail(r->ep, BENCH_ERROR, "no memory for %llu samples", (unsigned long long)plan->count);
    memset(stamps, 0, plan->count * sizeof *stamps); /* the page faults happen here and not between two stamps */
    int rc = pingpong_a(r, plan->warmup, 0, NULL);
    if (!rc)
        rc = pingpong_a(r, plan->count, plan->warmup, stamps);
    if (!rc) {
        /* Ticks become nanoseconds only now: the ratio is known better the later it is asked for (clock.c). */
        double half_tick = bench_ns_per_tick() / 2;
        for (uint64_t i = 0; i < plan->count; i++)
            samples[i] = (double)stamps[i] * half_tick;
    }
    free(stamps);
    return rc;
}

/* ---------------------------------------------------------------- stream */

/* B gives a credit after so many messages; 0: never. */
static uint64_t credit_every(const bench_ep *ep)
{
    return ep->window / 2;
}

/* Credits given for n messages before the last of them, which is answered anyway. */
static uint64_t credits_of(const bench_ep *ep, uint64_t n)
{
    return credit_every(ep) ? (n - 1) / credit_every(ep) : 0;
}

/* n messages one way. The time counts from the first send to the answer that says that the last one was received: a
 * stream that only counts what was handed to the kernel measures the kernel's buffer. */
static int stream_a(run *r, uint64_t n)
{
    const uint64_t every = credit_every(r->ep), n_credits = credits_of(r->ep, n);
    uint64_t credits = 0;
    int rc;
    for (uint64_t i = 0; i < n; i++) {
        /* Messages under way are at most i - credits * every: what B has not yet told of. */
        while (every && i - credits * every >= r->ep->window) {
            if ((rc = receive_message(r, 1)))
                return rc;
            credits++;
        }
        if ((r->plan->validate && (rc = fill(r, i))) || (rc = send_message(r, r->plan->len)) || (rc = tidy(r)))
            return rc;
    }
    /* the credits still under way, then the answer to the last message */
    for (; credits <= n_credits; credits++) {
        if ((rc = receive_message(r, 1)) || (rc = tidy(r)))
            return rc;
    }
    return 0;
}

static int stream_b(run *r, uint64_t n)
{
    const uint64_t every = credit_every(r->ep);
    int rc;
    for (uint64_t i = 0; i < n; i++) {
        if ((rc = receive_message(r, r->plan->len)) || (r->plan->validate && (rc = check(r, i))) || (rc = tidy(r)))
            return rc;
        if (every && (i + 1) % every == 0 && i + 1 < n && (rc = send_message(r, 1)))
            return rc;
    }
    return (rc = send_message(r, 1)) ? rc : tidy(r);
}

/* ---------------------------------------------------------------- bidir */

/* How far one side of bidir has got. */
typedef struct {
    uint64_t n, ahead; /* messages each way; how many more may be sent than were received */
    uint64_t sent, received;
    bool filled; /* validation: sbuf holds message `sent` */
} both_ways;

static bool may_send(const both_ways *b)
{
    return b->sent < b->n && (b->sent < b->received || b->sent - b->received < b->ahead);
}

/* Tries to send one message. DONE, NOT_YET or an error. */
static int step_send(run *r, both_ways *b)
{
    if (!may_send(b))
        return BENCH_NOT_YET;
    if (r->plan->validate && !b->filled) {
        int rc =
            do_flush(r->ep, 0); /* only a try: to wait here would keep us from receiving, and the peer from sending */
        if (rc != BENCH_DONE)
            return rc;
        if ((rc = fill(r, b->sent)))
            return rc;
        b->filled = true;
    }
    int rc = r->ep->ops->send(r->ep, r->plan->len);
    if (rc != BENCH_DONE)
        return rc;
    b->sent++;
    b->filled = false;
    r->ep->count[BENCH_COUNTER_messages_sent]++;
    r->ep->count[BENCH_COUNTER_bytes_sent] += r->plan->len;
    return BENCH_DONE;
}

static int step_receive(run *r, both_ways *b)
{
    if (b->received == b->n)
        return BENCH_NOT_YET;
    int rc = r->ep->ops->recv(r->ep, r->plan->len);
    if (rc != BENCH_DONE)
        return rc;
    if (r->plan->validate && (rc = check(r, b->received)))
        return rc;
    b->received++;
    r->ep->count[BENCH_COUNTER_messages_received]++;
    r->ep->count[BENCH_COUNTER_bytes_received] += r->plan->len;
    return BENCH_DONE;
}

/* Neither direction moved: sleeps, if that is how this endpoint waits. */
static int sleep_a_little(run *r, both_ways *b)
{
    bench_ep *ep = r->ep;
    if (ep->polled)
        return BENCH_NOT_YET;
    if (ep->ops->idle) {
        ep->ops->idle(ep,
                      may_send(b) && (b->filled || !r->plan->validate)); /* unfilled: for the buffer, not for room */
        return BENCH_NOT_YET;
    }
    ep->dontwait = false;
    int rc = step_receive(r, b);
    ep->dontwait = true;
    return rc;
}

/* Both directions at once. Nobody waits in a send while a message could be received, or two sides that both send
 * would wait for each other. */
static int bidir(run *r, uint64_t n)
{
    both_ways b = {.n = n, .ahead = r->ep->window ? (r->ep->window + 1) / 2 : UINT64_MAX};
    unsigned quiet = 0;
    int rc;
    r->ep->dontwait = true;
    /* dontwait: both operations only try, so neither direction can hold up the other;
     * sleep_a_little sleeps for both. */
    while (b.sent < n || b.received < n) {
        int sent = step_send(r, &b), received = sent < 0 ? 0 : step_receive(r, &b);
        if (!sent && !received)
            received = sleep_a_little(r, &b);
        if (sent < 0 || received < 0)
            return sent < 0 ? sent : received;
        if (sent || received) {
            r->moved++;
            quiet = 0;
            if ((rc = tidy(r)))
                return rc;
        } else if (++quiet >= r->spins) {
            quiet = 0;
            if ((rc = look_around(r)))
                return rc;
        }
    }
    r->ep->dontwait = r->ep->polled;
    /* "I have all of yours": when both have said so, both directions are over */
    if ((rc = send_message(r, 1)) || (rc = tidy(r)) || (rc = receive_message(r, 1)))
        return rc;
    return tidy(r);
}

/* ---------------------------------------------------------------- runs */

/* Stream and bidir: one unmeasured repeat, then plan->repeats with a stamp around each. */
static int run_repeats(run *r, double *samples)
{
    const bench_plan *plan = r->plan;
    /* Repeat 0 is the warm-up. Both sides run through the same repeats without a word in between:
     * the answer at the end of each keeps them in step. */
    for (uint64_t i = 0; i <= plan->repeats; i++) {
        uint64_t n = i ? plan->count : plan->warmup;
        r->repeat = i;
        uint64_t before = bench_ticks();
        int rc = plan->mode == BENCH_BIDIR ? bidir(r, n) : plan->side ? stream_b(r, n) : stream_a(r, n);
        uint64_t after = bench_ticks();
        if (rc)
            return rc;
        if (i && samples)
            samples[i - 1] = (double)(after - before) * bench_ns_per_tick() / (double)n;
    }
    return 0;
}

/* How many messages this side will receive in the whole run, credits and answers included. */
static uint64_t messages_to_receive(const bench_ep *ep, const bench_plan *plan)
{
    switch (plan->mode) {
    case BENCH_PINGPONG:
        return plan->warmup + plan->count;
    case BENCH_BIDIR:
        return plan->warmup + 1 + plan->repeats * (plan->count + 1);
    case BENCH_STREAM:
        break;
    }
    if (plan->side)
        return plan->warmup + plan->repeats * plan->count;
    return credits_of(ep, plan->warmup) + 1 + plan->repeats * (credits_of(ep, plan->count) + 1);
}

int bench_prepare(bench_ep *ep, const bench_plan *plan)
{
    const bench_ops *ops = ep->ops;
    ep->error[0] = 0;
    /* What a protocol cannot do is said here, before anything was sent. */
    if (plan->len < ops->min_len || plan->len > ops->max_len)
        return bench_fail(ep, BENCH_ERROR, "%s takes messages of %zu to %zu byte%s, not of %zu", ops->name,
                          ops->min_len, ops->max_len, vk_s(ops->max_len), plan->len);
    if (!plan->count || !plan->warmup || !plan->repeats || plan->count > MAX_COUNT || plan->repeats > MAX_COUNT)
        return bench_fail(ep, BENCH_ERROR, "count, warmup and repeats must be 1 to %u", MAX_COUNT);
    if (plan->offset >= BENCH_HEADROOM)
        return bench_fail(ep, BENCH_ERROR, "the offset must be below %d, not %zu", BENCH_HEADROOM, plan->offset);
    if (ops->max_len == ops->min_len && plan->mode != BENCH_PINGPONG)
        return bench_fail(ep, BENCH_ERROR, "%s has ping-pong only", ops->name);
    bench_clock_init();
    ep->dontwait = ep->polled || plan->mode == BENCH_BIDIR;
    int rc = ops->prepare(ep, plan);
    if (rc > 0 && ops->expect)
        rc = ops->expect(ep, plan->len, messages_to_receive(ep, plan));
    return rc < 0 ? rc : BENCH_OK;
}

int bench_run(bench_ep *ep, const bench_plan *plan, double *samples)
{
    uint64_t now = bench_now_ns();
    /* A blocking endpoint looks around after each slice (spins 1). */
    run r = {
        .ep = ep,
        .plan = plan,
        .spins = !ep->polled      ? 1
                 : plan->one_core ? SPINS_ONE_CORE
                                  : SPINS,
        .end_ns = now + (uint64_t)(plan->timeout_s * 1e9),
        .stall_ns = (uint64_t)(plan->stall_s * 1e9),
        .moved_ns = now,
        .next_look_ns = now + LOOK_NS,
    };
    int rc = plan->mode == BENCH_PINGPONG ? run_pingpong(&r, samples) : run_repeats(&r, samples);
    /* finish: nothing may be left under way that the next run could mistake for its own. */
    return rc ? rc : finish(&r);
}
