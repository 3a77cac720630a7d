/*
 * bench/ep_msg.c - the message engine, by nothing but msg.h: two ranks of a job, on channel
 * via, bip or tcp, by any policy.
 *
 * Who connects the two sides gives a stream socket between them. Opening a world needs an
 * exchange of a few hundred bytes, which a launcher does otherwise; here each side writes its
 * own and reads the other's. Nothing else ever travels there.
 *
 * Ping-pong of short messages is msg_send and a receive that waits, the shortest way through the engine.
 * Everything else keeps a window of sends under way and receives posted in advance, as ep_mpi.c does, so that
 * no message has to be kept by the engine because the loop came late.
 *
 *      sends[]:     | reaped | started ........ |        n_reaped <= n_sent
 *      receives[]:  | taken  | posted ......... |        n_taken <= n_posted <= n_expected
 *
 * Counts are of messages of this run; number % DEPTH is the request. Messages of one pair, context and tag
 * match in order, so the oldest request is always the next to end: only that one is looked at.
 *
 * Buffers come from msg_alloc: ranks of one host then write straight into them, as via's own endpoint has it.
 *
 * Polled, the engine is told never to sleep, and no call waits longer than a look. Blocking, it is told to
 * sleep at once, unless the policy's text says how long to poll (spin_us).
 */
#include "base/plural.h"
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>

#include "msg/msg.h"
#include "msg/policy.h"

#define TAG 7
#define CONTEXT 1
#define DEPTH 128              /* requests of a direction; a power of two, above the largest window */
#define NEVER_SLEEP 1000000000 /* microseconds of polling */
#define CLOSE_MS 2000          /* for the other side to close as well */
#define OPEN_SLICE_S 1         /* the exchange looks at its deadline so often */

typedef struct {
    bench_ep ep;
    msg_world *world;
    int fd, peer; /* for the exchange; the rank of the other side */
    uint64_t open_until_ns;
    unsigned char *memory;
    size_t memory_len;
    bool short_sends; /* this run's messages go by msg_send, which takes them at once */
    size_t room;      /* bytes of a receive */
    size_t depth, slots;
    uint64_t n_sent, n_reaped, n_expected, n_posted, n_taken;
    msg_request *sends[DEPTH], *receives[DEPTH];
} msg_ep;

/* ---------------------------------------------------------------- the exchange */

/* Sends or receives all of len bytes. 0, or -1 when the other side has gone or time is out. The socket has a
 * time-out of OPEN_SLICE_S, so the deadline is looked at now and then. */
static int move_all(msg_ep *ep, void *data, size_t len, bool outward)
{
    for (size_t done = 0; done < len;) {
        char *at = (char *)data + done;
        ssize_t n = outward ? send(ep->fd, at, len - done, MSG_NOSIGNAL) : recv(ep->fd, at, len - done, 0);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
            return -1;
        else if (bench_now_ns() > ep->open_until_ns)
            return -1;
    }
    return 0;
}

/* The launcher's allgather (msg_exchange) for two: all[side] is mine, all[peer] his. Both write first:
 * what is exchanged is far shorter than a socket's buffer. */
static int exchange(void *context, const void *mine, size_t len, void *all)
{
    msg_ep *ep = context;
    char *of = all;
    memcpy(of + len * (size_t)!ep->peer, mine, len);
    if (move_all(ep, of + len * (size_t)!ep->peer, len, true) < 0)
        return -1;
    return move_all(ep, of + len * (size_t)ep->peer, len, false);
}

/* ---------------------------------------------------------------- errors */

static int call_failed(msg_ep *ep, const char *call, int code)
{
    const char *why = ep->world ? msg_last_error(ep->world) : "";
    bool gone = code == MSG_ERR_PROC_FAILED || code == MSG_ERR_LEFT;
    return bench_fail(&ep->ep, gone ? BENCH_GONE : BENCH_ERROR, "%s: %s%s%s", call, msg_error_name(code),
                      *why ? ": " : "", why);
}

/* ---------------------------------------------------------------- the operations */

static int msg_prepare(bench_ep *base, const bench_plan *plan)
{
    msg_ep *ep = (msg_ep *)base;
    const msg_policy *policy = msg_world_policy(ep->world);
    /* Which limit holds depends on where the other side is; below the lesser of the two a message
     * is eager anyway. */
    int64_t least = policy->eager_limit_local >= 0 && policy->eager_limit_local < policy->eager_limit
                        ? policy->eager_limit_local
                        : policy->eager_limit;
    /* Synchronous sends wait for their receive, and that can be interrupted only if they have a request. */
    ep->short_sends =
        plan->mode == BENCH_PINGPONG && !policy->synchronous && plan->len <= (size_t)least && plan->len <= 1u << 16;
    base->window = bench_window(plan);
    ep->depth = base->window + 2;
    ep->slots = 1;
    while (plan->validate && plan->mode != BENCH_PINGPONG && ep->slots < ep->depth)
        ep->slots *= 2; /* a power of two, as DEPTH is: slot and request numbers agree after wrapping */
    ep->room = plan->len ? plan->len : 1;
    ep->n_sent = ep->n_reaped = ep->n_expected = ep->n_posted = ep->n_taken = 0;
    size_t need = bench_buffers_need(plan, ep->slots);
    /* Nothing is outstanding between two runs, so the memory can be given back for a larger one. */
    if (need > ep->memory_len) {
        void *memory = NULL;
        if (ep->memory)
            msg_free(ep->world, ep->memory);
        ep->memory = NULL;
        ep->memory_len = 0;
        int code = msg_alloc(ep->world, need, &memory);
        if (code)
            return call_failed(ep, "msg_alloc", code);
        memset(memory, 0, need);
        ep->memory = memory;
        ep->memory_len = need;
    }
    bench_buffers_place(base, plan, ep->slots, ep->memory);
    return BENCH_DONE;
}

/* Where message i of the run is received to. */
static inline unsigned char *slot(msg_ep *ep, uint64_t i)
{
    return ep->ep.rbuf + i % ep->slots * ep->ep.stride;
}

/* As many as the depth allows, and never more than will come: one left over would take the
 * next run's first message. */
static inline int post_receives(msg_ep *ep)
{
    while (ep->n_posted < ep->n_expected && ep->n_posted - ep->n_taken < ep->depth) {
        int code = msg_irecv(ep->world, CONTEXT, slot(ep, ep->n_posted), ep->room, ep->peer, TAG,
                             &ep->receives[ep->n_posted % DEPTH]);
        if (code)
            return call_failed(ep, "msg_irecv", code);
        ep->n_posted++;
    }
    return BENCH_DONE;
}

static int msg_expect(bench_ep *base, size_t len, uint64_t n)
{
    (void)len;
    ((msg_ep *)base)->n_expected = n;
    return post_receives((msg_ep *)base);
}

/* Is this request complete? With one slice of waiting, if the endpoint may sleep. On DONE and
 * on an error of its own the engine has freed it. */
static inline int look_at(msg_ep *ep, msg_request **request, msg_status *status, const char *call)
{
    int code =
        ep->ep.dontwait ? msg_test(ep->world, request, status) : msg_wait(ep->world, request, status, BENCH_SLICE_MS);
    if (code == MSG_PENDING || code == MSG_TIMEOUT || code == MSG_INTERRUPTED)
        return BENCH_NOT_YET;
    if (code == MSG_SUCCESS)
        code = status->error;
    return code ? call_failed(ep, call, code) : BENCH_DONE;
}

/* Takes the oldest send, if it is complete. */
static inline int reap(msg_ep *ep)
{
    msg_status status;
    int rc = look_at(ep, &ep->sends[ep->n_reaped % DEPTH], &status, "msg_isend");
    if (rc != BENCH_NOT_YET)
        ep->n_reaped++;
    return rc;
}

/* Short: the engine copies, and sbuf is free at once. Else at most a window under way; all of
 * them read the same sbuf, which nobody changes before flush. */
static int msg_ep_send(bench_ep *base, size_t len)
{
    msg_ep *ep = (msg_ep *)base;
    if (ep->short_sends) {
        int code = msg_send(ep->world, CONTEXT, base->sbuf, len, ep->peer, TAG, MSG_STANDARD);
        return code ? call_failed(ep, "msg_send", code) : BENCH_DONE;
    }
    if (ep->n_sent - ep->n_reaped == base->window) {
        int rc = reap(ep);
        if (rc != BENCH_DONE)
            return rc;
    }
    int code =
        msg_isend(ep->world, CONTEXT, base->sbuf, len, ep->peer, TAG, MSG_STANDARD, &ep->sends[ep->n_sent % DEPTH]);
    if (code)
        return call_failed(ep, "msg_isend", code);
    ep->n_sent++;
    return BENCH_DONE;
}

/* The message lies in its slot until the loop asks for the one after it. */
static int msg_ep_recv(bench_ep *base, size_t len)
{
    msg_ep *ep = (msg_ep *)base;
    msg_status status;
    int rc = look_at(ep, &ep->receives[ep->n_taken % DEPTH], &status, "msg_irecv");
    if (rc != BENCH_DONE)
        return rc;
    base->rmsg = slot(ep, ep->n_taken++);
    if (status.len != len)
        return bench_fail(base, BENCH_ERROR, "a message of %zu byte%s arrived where one of %zu was due", status.len,
                          vk_s(status.len), len);
    return BENCH_DONE;
}

/* Receives are posted again; of sends, up to two are reaped, always leaving the youngest (see ep_via.c). */
static int msg_tidy(bench_ep *base)
{
    msg_ep *ep = (msg_ep *)base;
    int rc = post_receives(ep);
    bool dontwait = base->dontwait;
    base->dontwait = true;
    for (int i = 0; i < 2 && rc > 0 && ep->n_sent - ep->n_reaped > 1; i++)
        rc = reap(ep);
    base->dontwait = dontwait;
    return rc;
}

/* A send is complete when its buffer may be reused; nothing of sbuf is in use when all are. */
static int msg_flush(bench_ep *base)
{
    msg_ep *ep = (msg_ep *)base;
    int rc = BENCH_DONE;
    while (rc == BENCH_DONE && ep->n_reaped != ep->n_sent)
        rc = reap(ep);
    return rc;
}

/* What the engine owes its peer (credits, "I have read it") is queued at most: it leaves while there is progress. */
static int msg_finish(bench_ep *base)
{
    int rc = msg_flush(base);
    while (rc == BENCH_DONE && msg_progress(((msg_ep *)base)->world) > 0) {}
    return rc;
}

/* Sleeps until something of ours has completed, which may have happened since we looked. */
static void msg_ep_idle(bench_ep *base, bool want_send)
{
    msg_ep *ep = (msg_ep *)base;
    if (ep->n_taken != ep->n_posted && msg_request_peek(ep->world, ep->receives[ep->n_taken % DEPTH], NULL))
        return;
    if (want_send && ep->n_reaped != ep->n_sent && msg_request_peek(ep->world, ep->sends[ep->n_reaped % DEPTH], NULL))
        return;
    msg_idle(ep->world, BENCH_SLICE_MS);
}

/* Waits CLOSE_MS for the other side to close its world, too: it may be just about to. */
static void msg_ep_close(bench_ep *base)
{
    msg_ep *ep = (msg_ep *)base;
    if (ep->world) {
        if (ep->memory)
            msg_free(ep->world, ep->memory);
        msg_world_close(ep->world, CLOSE_MS);
    }
    free(ep);
}

static const bench_ops msg_ops = {
    .name = "msg",
    .min_len = 0,
    .max_len = (size_t)1 << 30,
    .prepare = msg_prepare,
    .expect = msg_expect,
    .send = msg_ep_send,
    .recv = msg_ep_recv,
    .tidy = msg_tidy,
    .flush = msg_flush,
    .finish = msg_finish,
    .idle = msg_ep_idle,
    .close = msg_ep_close,
};

/* ---------------------------------------------------------------- opening */

/* The channel's own policy, what the text changes, and how this endpoint waits. 0, or -1 with a sentence. */
static int choose_policy(const bench_msg_options *options, msg_policy *policy, char *error)
{
    const msg_policy *base = msg_policy_find(options->channel);
    char why[MSG_ERROR_LEN];
    if (!base) {
        snprintf(error, BENCH_ERROR_LEN, "there is no channel '%.32s': via, bip and tcp are", options->channel);
        return -1;
    }
    *policy = *base;
    if (options->policy && *options->policy && msg_policy_parse(policy, options->policy, why)) {
        snprintf(error, BENCH_ERROR_LEN, "policy: %s", why);
        return -1;
    }
    if (strcmp(policy->channel, base->channel) != 0) {
        snprintf(error, BENCH_ERROR_LEN, "policy %s is for channel %s: measure it as msg-%s", policy->name,
                 policy->channel, policy->channel);
        return -1;
    }
    /* Polled: never asleep, whatever the policy says. Blocking: at once, unless the text says how long to poll. */
    if (options->polled)
        policy->spin_us = NEVER_SLEEP;
    else if (!options->policy || !strstr(options->policy, "spin_us="))
        policy->spin_us = -1;
    return 0;
}

bench_ep *bench_msg_open(const bench_msg_options *options, char *error)
{
    msg_policy policy;
    char why[MSG_ERROR_LEN] = "";
    struct timeval slice = {.tv_sec = OPEN_SLICE_S};
    if (choose_policy(options, &policy, error))
        return NULL;
    msg_ep *ep = bench_ep_new(sizeof *ep, &msg_ops, options->polled);
    if (!ep || setsockopt(options->fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice) ||
        setsockopt(options->fd, SOL_SOCKET, SO_SNDTIMEO, &slice, sizeof slice)) {
        snprintf(error, BENCH_ERROR_LEN, "cannot use descriptor %d as a socket: %s", options->fd, strerror(errno));
        free(ep);
        return NULL;
    }
    ep->fd = options->fd;
    ep->peer = !options->side;
    ep->open_until_ns = bench_now_ns() + (uint64_t)(options->timeout_s * 1e9);
    msg_options o = {.size = sizeof o,
                     .rank = options->side,
                     .n_ranks = 2,
                     .policy = &policy,
                     .exchange = exchange,
                     .exchange_context = ep,
                     .network_device = options->network_device,
                     .address = options->address,
                     .open_timeout_ms = (int64_t)(options->timeout_s * 1e3)};
    int code = msg_world_open(&o, &ep->world, why);
    if (code) {
        snprintf(error, BENCH_ERROR_LEN, "%s: %s", msg_error_name(code), why);
        ep->world = NULL;
        msg_ep_close(&ep->ep);
        return NULL;
    }
    return &ep->ep;
}

/* ---------------------------------------------------------------- what it is, what it did */

int bench_msg_counters(bench_ep *base, uint64_t *values)
{
    msg_counters(((msg_ep *)base)->world, values);
    return MSG_N_COUNTERS;
}

const char *bench_msg_counter_name(int counter)
{
    return msg_counter_name(counter);
}

int bench_msg_describe(bench_ep *base, char *text, size_t room)
{
    msg_ep *ep = (msg_ep *)base;
    const msg_policy *policy = msg_world_policy(ep->world);
    int n = snprintf(text, room, "policy=%s\nchannel=%s\npeer_route=%s\n", policy->name, policy->channel,
                     msg_peer_route(ep->world, ep->peer));
    for (int i = 0; msg_policy_field_name(i) && n > 0 && (size_t)n < room; i++)
        n += snprintf(text + n, room - (size_t)n, "%s=%lld\n", msg_policy_field_name(i),
                      (long long)msg_policy_get(policy, i));
    return n < 0 ? 0 : (size_t)n < room ? n : (int)room - 1;
}
