/*
 * bench/loop.c - the measuring loop: one for all protocols, so that a difference between two curves is a difference
 * between two protocols.
 *
 * Ping-pong, one round trip on side A (stamps marked |):
 *
 *      | write  send  tidy  recv  read | write  send  tidy  recv  read | ...
 *        -----  ----  ~~~~  ....  ----
 *        touch  path  hidden: the reply is under way
 *
 * One stamp ends a round trip and begins the next. `tidy` reposts receives and reaps sends in time that would be spent
 * waiting anyway. Touched buffers (plan->buffers) are written and read here and nowhere else. Each side writes and
 * reads one message per round trip, so a sample (half a round trip) contains one write and one read. The loop's own
 * cost is the same in every protocol's figure; running the loop on the null endpoint measures it. bench_touch_ns
 * measures the cost of touching alone.
 *
 * Stream, where the protocol leaves flow control to its user (ep->window > 0): B gives a credit, a message of 1 byte,
 * after every half window. A never has more than a window under way. Without a window A sends freely. Bidir needs no
 * credits: a side that has sent half a window more than it received waits, and the peer does the same.
 *
 *      A   m m m m . . . m m . .  reply?                 window 4: B sends a credit after 2 messages
 *      B       c     c           1 byte after the last   the time on A ends with the reply
 *
 * Both sides count the same messages from the same plan (messages_to_receive). No message is needed to agree on the end
 * of a run, and each protocol has the number of receives in advance.
 *
 * Every wait goes through until_done: it tries an operation some thousand times, then checks clock, stop flag and
 * control descriptor. A polled wait thus ends within a millisecond of the request to stop, a blocking one within a
 * slice. After any error the run is over and the endpoint can only be closed, because the two sides are out of step.
 */
#include "base/clock.h"
#include "base/plural.h"
#include "base/virtual.h"
#include "bench/bench.h"
#include "bench/content.h"

#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define SPINS 4096 /* tries between two checks of the clock: many, so that the checks do not show in the samples */
#define SPINS_ONE_CORE 16              /* when the peer needs this very core to answer */
#define CHECK_NS 20000000u             /* between two checks of control descriptor and interrupt callback */
#define MAX_COUNT 100000000u           /* stamps are kept: 800 MB */
#define NEXT_VALUE 0x9E3779B97F4A7C15u /* touched: difference between the words of one message and those of the next */

/* The state of one run. */
typedef struct {
    bench_ep *ep;
    const bench_plan *plan;
    unsigned spins;                       /* tries between two checks of the clock */
    uint64_t end_ns, stall_ns;            /* times of vk_now */
    uint64_t moved, moved_seen, moved_ns; /* messages so far, and the number and time of the last progress seen */
    uint64_t next_check_ns;               /* of the control descriptor and the interrupt */
    uint64_t repeat;                      /* for stream and bidir, 0 is the warm-up: part of the pattern */
    bool writes, touches;                 /* messages are filled or touched before they are sent, and only touched */
    uint64_t n_out, n_in;         /* messages of plan->len bytes that were given a send buffer, and that were read */
    uint64_t n_received;          /* messages of any length: the next one goes to buffer n_received */
    uint64_t value_out, value_in; /* touched: each word of the next message to send, and of the next to receive */
} run;

/* ---------------------------------------------------------------- waiting */

static int stopped(bench_ep *ep, const char *why)
{
    return bench_fail(ep, BENCH_STOPPED, "stopped: %s", why);
}

/* Nothing is read from the control descriptor, so a request on it is still there for the next call. */
int bench_stop_requested(bench_ep *ep, const bench_plan *plan)
{
    if (plan->stop && *plan->stop)
        return stopped(ep, "the stop flag was set");
    if (plan->interrupt && plan->interrupt(plan->interrupt_context))
        return stopped(ep, "interrupted");
    struct pollfd control = {.fd = plan->control_fd, .events = POLLIN | POLLRDHUP};
    if (plan->control_fd >= 0 && poll(&control, 1, 0) > 0)
        return stopped(ep, "the coordinator requested it or has gone");
    return 0;
}

/* The slow path of every wait. 0: go on. Deadlines use vk_now, the clock of time-outs and of other processes, samples
 * use bench_ticks: two clocks, on purpose. */
static int check_deadlines(run *r)
{
    const bench_plan *plan = r->plan;
    if (plan->one_core)
        sched_yield();
    if (plan->stop && *plan->stop)
        return stopped(r->ep, "the stop flag was set");
    uint64_t now = vk_now();
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
    if (vk_time_is_virtual()) { /* go on at this rank's next event; what follows is checked every 50 ms of real time */
        uint64_t stalled = r->moved_ns + r->stall_ns + 1;
        if (vk_virtual->idle(stalled < r->end_ns ? stalled : r->end_ns + 1))
            return 0;
    } else if (now < r->next_check_ns)
        return 0;
    r->next_check_ns = now + CHECK_NS;
    return bench_stop_requested(r->ep, plan);
}

/* An operation of bench_ops, as repeated by until_done: above 0 done, 0 not yet, below 0 an error. */
typedef int (*operation)(bench_ep *ep, size_t len);

/* Repeat an operation until it is done; then return 0. Counts the tries that found nothing. It is inlined into each
 * caller, so that the compiler sees `op` and the path is one indirect call. */
static inline __attribute__((always_inline)) int until_done(run *r, operation op, size_t len, uint64_t *idle_polls)
{
    if (r->plan->spin_ns && !r->ep->dontwait) {
        int rc = bench_spin_first(r->ep, op, len, r->plan->spin_ns, idle_polls);
        r->moved += rc != 0;
        if (rc)
            return rc < 0 ? rc : 0;
    }
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
        int rc = check_deadlines(r);
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

/* Count a message that has arrived, and advance to the next receive buffer. */
static inline void received(run *r, size_t len)
{
    r->ep->rbuf = bench_receive_buffer(r->ep, ++r->n_received);
    r->ep->count[BENCH_COUNTER_messages_received]++;
    r->ep->count[BENCH_COUNTER_bytes_received] += len;
}

static inline int receive_message(run *r, size_t len)
{
    int rc = until_done(r, r->ep->ops->recv, len, &r->ep->count[BENCH_COUNTER_empty_polls]);
    if (!rc)
        received(r, len);
    return rc;
}

/* BENCH_DONE and BENCH_NOT_YET are both fine: the rest is done by a later call. */
static inline int tidy(run *r)
{
    int rc = r->ep->ops->tidy ? r->ep->ops->tidy(r->ep) : 0;
    return rc < 0 ? rc : 0;
}

/* flush and finish, in the shape of an operation. */
static int do_flush(bench_ep *ep, size_t most)
{
    return ep->ops->flush ? ep->ops->flush(ep, most) : BENCH_DONE;
}

static int do_finish(bench_ep *ep, size_t len)
{
    (void)len;
    return ep->ops->finish ? ep->ops->finish(ep) : do_flush(ep, 0);
}

static int finish(run *r)
{
    uint64_t ignored = 0;
    return until_done(r, do_finish, 0, &ignored);
}

/* ---------------------------------------------------------------- the content of messages
 *
 * Validated: word j of a message is a function of run, sender, repeat, message and size. A message that is old,
 * repeated, swapped with another or shifted by a byte does not pass.
 *
 * Touched: every word of message n is value_out, which is different for each run, side and message. The reader adds up
 * the words and compares the sum with that of the expected message. The compiler therefore cannot drop the reads, and a
 * message that did not arrive whole ends the run. */

/* `side` is the sender's. Both sides compute the seed; validation sends nothing but the message. */
static uint64_t seed_of(const run *r, int side, uint64_t i)
{
    uint64_t seed = bench_content_mix(r->plan->run_id * 2u + (uint64_t)side + 1);
    return bench_content_mix(seed ^ bench_content_mix(r->repeat << 40 ^ i) ^ bench_content_mix(r->plan->len + 77));
}

/* DONE if the next send buffer may be written: the message sent from it n_sends messages ago no longer uses it. */
static int writable(bench_ep *ep, size_t len)
{
    (void)len;
    return do_flush(ep, ep->n_sends - 1);
}

/* Write message i into the current send buffer, which is writable. */
static inline void write_message(run *r, uint64_t i)
{
    if (r->plan->validate) {
        bench_content_fill(r->ep->sbuf, r->plan->len, seed_of(r, r->plan->side, i));
        return;
    }
    bench_content_write(r->ep->sbuf, r->plan->len, r->value_out);
    r->value_out += NEXT_VALUE;
    r->ep->count[BENCH_COUNTER_bytes_written] += r->plan->len;
}

/* Choose the send buffer of message i and write the message, if the plan requires it. */
static inline int produce(run *r, uint64_t i)
{
    r->ep->sbuf = bench_send_buffer(r->ep, r->n_out++);
    if (!r->writes)
        return 0;
    uint64_t ignored = 0;
    int rc = until_done(r, writable, 0, &ignored);
    if (!rc)
        write_message(r, i);
    return rc;
}

/* Compare a received message with the pattern, and check the guard behind it. Reports message and byte of the first
 * error. `!side`: the pattern is the sender's. */
static int check(run *r, uint64_t i)
{
    const unsigned char *message = r->ep->rmsg;
    unsigned char expected = 0;
    size_t len = r->plan->len, at = bench_content_compare(message, len, seed_of(r, !r->plan->side, i), &expected);
    if (at < len)
        return bench_fail(r->ep, BENCH_MISMATCH, "message %llu of %zu byte%s: byte %zu is 0x%02x, should be 0x%02x",
                          (unsigned long long)i, len, vk_s(len), at, message[at], expected);
    /* A message of 0 bytes has its guard behind one byte, because replies and credits use the same buffer
     * (endpoint.c). */
    for (size_t k = 0; k < BENCH_GUARD; k++) {
        if (message[(len ? len : 1) + k] != BENCH_GUARD_BYTE)
            return bench_fail(r->ep, BENCH_MISMATCH,
                              "message %llu of %zu byte%s: the receiver wrote %zu byte%s past its end",
                              (unsigned long long)i, len, vk_s(len), k + 1, vk_s(k + 1));
    }
    return 0;
}

/* Read message i, if the plan requires it, before the next receive. */
static inline int consume(run *r, uint64_t i)
{
    if (r->plan->validate)
        return check(r, i);
    if (!r->touches)
        return 0;
    size_t len = r->plan->len;
    uint64_t sum = bench_content_sum(r->ep->rmsg, len), due = bench_content_sum_of(len, r->value_in);
    r->value_in += NEXT_VALUE;
    r->n_in++;
    r->ep->count[BENCH_COUNTER_bytes_read] += len;
    if (__builtin_expect(sum == due || r->ep->ops->empty, 1))
        return 0;
    return bench_fail(r->ep, BENCH_MISMATCH,
                      "message %llu of %zu byte%s: its words add up to 0x%llx, should be 0x%llx; run it again with "
                      "validation, which names the byte",
                      (unsigned long long)(r->n_in - 1), len, vk_s(len), (unsigned long long)sum,
                      (unsigned long long)due);
}

/* ---------------------------------------------------------------- ping-pong */

/* Run n round trips; stamps[i], if given, gets the ticks of the i-th. With validation A's clock stops while messages
 * are written and checked. B's part of that lies within the time, so figures of validated runs are not comparable.
 * Touching lies within the time on both sides. */
static int pingpong_a(run *r, uint64_t n, uint64_t first, uint64_t *stamps)
{
    const size_t len = r->plan->len;
    const bool validate = r->plan->validate, computes = r->plan->computes && stamps;
    uint64_t before = bench_ticks(), computed = 0;
    for (uint64_t i = 0; i < n; i++) {
        int rc;
        if ((rc = produce(r, first + i)))
            return rc;
        if (validate)
            before = bench_ticks();
        /* The measured path. */
        if ((rc = send_message(r, len)) || (rc = tidy(r)))
            return rc;
        if (computes)
            computed = i % 2 ? bench_compute(stamps[i - 1]) : 0;
        if ((rc = receive_message(r, len)))
            return rc;
        if (!validate && (rc = consume(r, first + i)))
            return rc;
        uint64_t after = bench_ticks();
        if (stamps)
            stamps[i] = after - before - computed;
        before = after;
        if (validate && (rc = consume(r, first + i)))
            return rc;
    }
    return 0;
}

static int pingpong_b(run *r, uint64_t n)
{
    const size_t len = r->plan->len;
    for (uint64_t i = 0; i < n; i++) {
        int rc = receive_message(r, len);
        if (rc || (rc = consume(r, i)) || (rc = produce(r, i)) || (rc = send_message(r, len)) || (rc = tidy(r)))
            return rc;
    }
    return 0;
}

/* Samples are half round trips in nanoseconds: ping-pong cannot distinguish the two directions, so it reports their
 * mean. */
static int run_pingpong(run *r, double *samples)
{
    const bench_plan *plan = r->plan;
    if (plan->side)
        return pingpong_b(r, plan->warmup + plan->count);
    uint64_t *stamps = malloc(plan->count * sizeof *stamps);
    if (!stamps)
        return bench_fail(r->ep, BENCH_ERROR, "no memory for %llu samples", (unsigned long long)plan->count);
    memset(stamps, 0, plan->count * sizeof *stamps); /* page faults occur here, not between two stamps */
    int rc = pingpong_a(r, plan->warmup, 0, NULL);
    if (!rc)
        rc = pingpong_a(r, plan->count, plan->warmup, stamps);
    if (!rc) {
        /* Convert ticks to nanoseconds only now: the ratio becomes more accurate with time (clock.c). */
        double half_tick = bench_ns_per_tick() / 2;
        for (uint64_t i = 0; i < plan->count; i++)
            samples[i] = (double)stamps[i] * half_tick;
    }
    free(stamps);
    return rc;
}

/* ---------------------------------------------------------------- stream */

/* B gives a credit after this many messages; 0: never. */
static uint64_t credit_every(const bench_ep *ep)
{
    return ep->window / 2;
}

/* Number of credits for n messages. The last message gets a reply instead. */
static uint64_t credits_of(const bench_ep *ep, uint64_t n)
{
    return credit_every(ep) ? (n - 1) / credit_every(ep) : 0;
}

/* Send n messages one way. The time runs from the first send to the reply that acknowledges the last message. A stream
 * that only counts messages accepted by the kernel measures the kernel's buffer. */
static int stream_a(run *r, uint64_t n)
{
    const uint64_t every = credit_every(r->ep), n_credits = credits_of(r->ep, n);
    uint64_t credits = 0;
    int rc;
    for (uint64_t i = 0; i < n; i++) {
        /* At most i - credits * every messages are under way: those that no credit of B covers. */
        while (every && i - credits * every >= r->ep->window) {
            if ((rc = receive_message(r, 1)))
                return rc;
            credits++;
        }
        if ((rc = produce(r, i)) || (rc = send_message(r, r->plan->len)) || (rc = tidy(r)))
            return rc;
    }
    /* The credits still under way, then the reply to the last message. */
    for (; credits <= n_credits; credits++) {
        if ((rc = receive_message(r, 1)) || (rc = tidy(r)))
            return rc;
    }
    return 0;
}

/* A message is consumed before its credit is sent, so a slow reader stops A. */
static int stream_b(run *r, uint64_t n)
{
    const uint64_t every = credit_every(r->ep);
    int rc;
    for (uint64_t i = 0; i < n; i++) {
        if ((rc = receive_message(r, r->plan->len)) || (rc = consume(r, i)) || (rc = tidy(r)))
            return rc;
        if (every && (i + 1) % every == 0 && i + 1 < n && (rc = send_message(r, 1)))
            return rc;
    }
    return (rc = send_message(r, 1)) ? rc : tidy(r);
}

/* ---------------------------------------------------------------- bidir */

/* The progress of one side of bidir. */
typedef struct {
    uint64_t n, ahead; /* messages each way; maximum of sent minus received */
    uint64_t sent, received;
    bool chosen, written; /* sbuf is the buffer of message `sent`; it holds the message */
} both_ways;

/* Arrivals show how far the peer is, because it too sends at most `ahead` messages more than it has received. */
static bool may_send(const both_ways *b)
{
    return b->sent < b->n && (b->sent < b->received || b->sent - b->received < b->ahead);
}

/* Try to send one message. DONE, NOT_YET or an error. */
static int step_send(run *r, both_ways *b)
{
    if (!may_send(b))
        return BENCH_NOT_YET;
    if (!b->chosen) {
        r->ep->sbuf = bench_send_buffer(r->ep, r->n_out++);
        b->chosen = true;
    }
    if (r->writes && !b->written) {
        int rc = writable(r->ep, 0); /* one try: a wait here would stop this side from receiving, and block the peer */
        if (rc != BENCH_DONE)
            return rc;
        write_message(r, b->sent);
        b->written = true;
    }
    int rc = r->ep->ops->send(r->ep, r->plan->len);
    if (rc != BENCH_DONE)
        return rc;
    b->sent++;
    b->chosen = b->written = false;
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
    received(r, r->plan->len);
    if ((rc = consume(r, b->received)))
        return rc;
    b->received++;
    return BENCH_DONE;
}

/* Neither direction moved: sleep, if this endpoint waits by sleeping. */
static int sleep_for_either(run *r, both_ways *b)
{
    bench_ep *ep = r->ep;
    if (ep->polled)
        return BENCH_NOT_YET;
    if (ep->ops->idle) {
        ep->ops->idle(ep,
                      may_send(b) && (b->written || !r->writes)); /* unwritten: it waits for the buffer, not to send */
        return BENCH_NOT_YET;
    }
    ep->dontwait = false;
    int rc = step_receive(r, b);
    ep->dontwait = true;
    return rc;
}

/* Both directions at once. Neither side waits in a send while it could receive, because two sides that both send would
 * block each other. */
static int bidir(run *r, uint64_t n)
{
    both_ways b = {.n = n, .ahead = r->ep->window ? (r->ep->window + 1) / 2 : UINT64_MAX};
    unsigned quiet = 0;
    int rc;
    r->ep->dontwait = true;
    /* dontwait: both operations only try, so neither direction blocks the other. sleep_for_either sleeps for both. */
    while (b.sent < n || b.received < n) {
        int sent = step_send(r, &b), received = sent < 0 ? 0 : step_receive(r, &b);
        if (!sent && !received)
            received = sleep_for_either(r, &b);
        if (sent < 0 || received < 0)
            return sent < 0 ? sent : received;
        if (sent || received) {
            r->moved++;
            quiet = 0;
            if ((rc = tidy(r)))
                return rc;
        } else if (++quiet >= r->spins) {
            quiet = 0;
            if ((rc = check_deadlines(r)))
                return rc;
        }
    }
    r->ep->dontwait = r->ep->polled;
    /* "All your messages have arrived": when both sides have sent this, both directions are over. */
    if ((rc = send_message(r, 1)) || (rc = tidy(r)) || (rc = receive_message(r, 1)))
        return rc;
    return tidy(r);
}

/* ---------------------------------------------------------------- runs */

/* Stream and bidir: one unmeasured repeat, then plan->repeats with a stamp around each. */
static int run_repeats(run *r, double *samples)
{
    const bench_plan *plan = r->plan;
    /* Repeat 0 is the warm-up. Both sides run through the same repeats without coordination: the reply at the end of
     * each keeps them in step. */
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

/* Number of messages that this side will receive in the whole run, credits and replies included. */
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
    /* Reject unsupported plans here, before anything is sent. */
    if (plan->len < ops->min_len || plan->len > ops->max_len)
        return bench_fail(ep, BENCH_ERROR, "%s takes messages of %zu to %zu byte%s, not of %zu", ops->name,
                          ops->min_len, ops->max_len, vk_s(ops->max_len), plan->len);
    if (!plan->count || !plan->warmup || !plan->repeats || plan->count > MAX_COUNT || plan->repeats > MAX_COUNT)
        return bench_fail(ep, BENCH_ERROR, "count, warmup and repeats must be 1 to %u", MAX_COUNT);
    if (plan->offset >= BENCH_HEADROOM)
        return bench_fail(ep, BENCH_ERROR, "the offset must be below %d, not %zu", BENCH_HEADROOM, plan->offset);
    if (plan->memory == BENCH_MEMORY_VIAKIT && !ops->allocates)
        return bench_fail(ep, BENCH_ERROR, "%s has no memory of its own: measure it with ordinary memory", ops->name);
    if (plan->buffers == BENCH_COLD && !plan->pool)
        return bench_fail(ep, BENCH_ERROR, "cold buffers need a pool: give its bytes, above the last-level cache");
    if (ops->max_len == ops->min_len && plan->mode != BENCH_PINGPONG)
        return bench_fail(ep, BENCH_ERROR, "%s has ping-pong only", ops->name);
    bench_clock_init();
    ep->dontwait = ep->polled || plan->mode == BENCH_BIDIR;
    int rc = ops->prepare(ep, plan);
    if (rc > 0 && ops->expect)
        rc = ops->expect(ep, plan->len, messages_to_receive(ep, plan));
    return rc < 0 ? rc : BENCH_OK;
}

int bench_run_now(bench_ep *ep, const bench_plan *plan, double *samples)
{
    uint64_t now = vk_now();
    /* A blocking endpoint calls check_deadlines after each slice (spins 1). So does one whose time is virtual, because
     * its first try waits. */
    run r = {
        .ep = ep,
        .plan = plan,
        .spins = !ep->polled || vk_time_is_virtual() ? 1
                 : plan->one_core                    ? SPINS_ONE_CORE
                                                     : SPINS,
        .end_ns = now + (uint64_t)(plan->timeout_s * 1e9),
        .stall_ns = (uint64_t)(plan->stall_s * 1e9),
        .moved_ns = now,
        .next_check_ns = now + CHECK_NS,
        .touches = plan->buffers == BENCH_TOUCHED,
        .writes = plan->validate || plan->buffers == BENCH_TOUCHED,
        .value_out = bench_content_mix(plan->run_id * 2u + (uint64_t)plan->side + 1),
        .value_in = bench_content_mix(plan->run_id * 2u + (uint64_t)!plan->side + 1),
    };
    int rc = plan->mode == BENCH_PINGPONG ? run_pingpong(&r, samples) : run_repeats(&r, samples);
    /* finish: nothing may be left under way that the next run could mistake for its own. */
    return rc ? rc : finish(&r);
}
