/*
 * bench/ep_msg.c - the message engine, through msg.h only: two ranks of a job, on channel via, bip or tcp, with any
 * policy.
 *
 * The driver that connects the two sides provides a stream socket between them. Opening a world needs an exchange of a
 * few hundred bytes, which otherwise a launcher does. Here each side writes its own data and reads the other's. Nothing
 * else ever travels there.
 *
 * Ping-pong of short messages is msg_send and a blocking receive, the shortest path through the engine. All other runs
 * keep a window of sends under way and receives posted in advance, as ep_mpi.c does. The engine then never has to
 * buffer a message because the loop is late.
 *
 *      sends[]:     | reaped | started ........ |        n_reaped <= n_sent
 *      receives[]:  | taken  | posted ......... |        n_taken <= n_posted <= n_expected
 *
 * Counts are of messages of this run; number % DEPTH is the request. Messages of one pair, context and tag match in
 * order, so the oldest request is always the next to complete, and only that one is tested.
 *
 * Buffers are ordinary memory, or come from msg_alloc (BENCH_MEMORY_VIAKIT). Ranks of one host write straight into the
 * latter.
 *
 * Polled: the engine is configured never to sleep, and no call waits longer than one poll. Blocking: it is configured
 * to sleep at once, unless the policy's text sets a polling time (spin_us).
 *
 * The peer's world closes when its endpoint does. A side that still runs then gets MSG_ERR_LEFT, which is BENCH_GONE.
 * One thread has the endpoint; the world is opened without `threads`, unless the policy has a progress thread.
 */
#include "base/blake2s.h"
#include "base/clock.h"
#include "base/text.h"
#include "bench/bench.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "msg/msg.h"
#include "msg/policy.h"

#define TAG 7
#define CONTEXT 1
#define DEPTH 128              /* requests of a direction; a power of two, above the largest window */
#define NEVER_SLEEP 1000000000 /* microseconds of polling */
#define CLOSE_MS 2000          /* for the other side to close as well */
#define OPEN_SLICE_S 1         /* interval at which the exchange checks its deadline */

typedef struct {
    bench_ep ep;
    msg_world *world;
    int fd, peer; /* for the exchange; the rank of the other side */
    uint64_t open_until_ns;
    bool has_allocator;    /* channel via: elsewhere msg_alloc returns ordinary memory */
    unsigned char *memory; /* from msg_alloc, or NULL */
    size_t memory_len;
    bool short_sends; /* this run's messages go by msg_send, which copies them at once */
    size_t room;      /* bytes of a receive */
    size_t depth;
    uint64_t n_sent, n_reaped, n_expected, n_posted, n_taken;
    msg_request *sends[DEPTH], *receives[DEPTH];
} msg_ep;

/* ---------------------------------------------------------------- the exchange */

/* Send or receive all of len bytes. Returns 0, or -1 when the other side has gone or time is out. The socket has a
 * time-out of OPEN_SLICE_S, so the deadline is checked regularly. */
static int move_all(msg_ep *ep, void *data, size_t len, bool outward)
{
    for (size_t done = 0; done < len;) {
        char *at = (char *)data + done;
        ssize_t n = outward ? send(ep->fd, at, len - done, MSG_NOSIGNAL) : recv(ep->fd, at, len - done, 0);
        if (n > 0)
            done += (size_t)n;
        else if (n == 0 || (errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK))
            return -1;
        else if (vk_now() > ep->open_until_ns)
            return -1;
    }
    return 0;
}

/* The launcher's allgather (msg_exchange) for two ranks: all[side] is this side's, all[peer] the peer's. Both write
 * first: the data is far shorter than a socket's buffer. */
static int exchange(void *context, const void *own, size_t len, void *all)
{
    msg_ep *ep = context;
    char *of = all;
    memcpy(of + len * (size_t)!ep->peer, own, len);
    if (move_all(ep, of + len * (size_t)!ep->peer, len, true) < 0)
        return -1;
    return move_all(ep, of + len * (size_t)ep->peer, len, false);
}

/* ---------------------------------------------------------------- errors */

/* A dead or departed rank is BENCH_GONE, all other errors BENCH_ERROR. The engine's own text follows the name of the
 * code. */
static int call_failed(msg_ep *ep, const char *call, int code)
{
    const char *why = ep->world ? msg_last_error(ep->world) : "";
    bool gone = code == MSG_ERR_PROC_FAILED || code == MSG_ERR_LEFT;
    return bench_fail(&ep->ep, gone ? BENCH_GONE : BENCH_ERROR, "%s: %s%s%s", call, msg_error_name(code),
                      *why ? ": " : "", why);
}

/* ---------------------------------------------------------------- the operations */

/* Nothing of an earlier run is outstanding: flush has reaped the sends, and expect's number of receives was taken. */
static int msg_prepare(bench_ep *base, const bench_plan *plan)
{
    msg_ep *ep = (msg_ep *)base;
    const msg_policy *policy = msg_world_policy(ep->world);
    /* The location of the other side determines which limit applies. A message below the smaller one is eager in both
     * cases. */
    int64_t least = policy->eager_limit_local >= 0 && policy->eager_limit_local < policy->eager_limit
                        ? policy->eager_limit_local
                        : policy->eager_limit;
    /* Synchronous sends wait for their receive, and such a wait can be interrupted only if the send has a request. */
    ep->short_sends =
        plan->mode == BENCH_PINGPONG && !policy->synchronous && plan->len <= (size_t)least && plan->len <= 1u << 16;
    base->window = bench_window(plan);
    ep->depth = base->window + 2;
    ep->room = plan->len ? plan->len : 1;
    ep->n_sent = ep->n_reaped = ep->n_expected = ep->n_posted = ep->n_taken = 0;
    if (plan->memory == BENCH_MEMORY_USER)
        return bench_buffers(base, plan, ep->depth);
    if (!ep->has_allocator)
        return bench_fail(base, BENCH_ERROR, "channel %s has no memory of its own: measure it with ordinary memory",
                          policy->channel);
    size_t need = bench_buffers_need(plan, ep->depth);
    /* Nothing is outstanding between two runs, so the memory can be replaced by a larger block. */
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
    bench_buffers_place(base, plan, ep->depth, ep->memory);
    return BENCH_DONE;
}

/* Post as many receives as the depth allows, and never more than messages will come. A receive left over would match
 * the next run's first message. */
static inline int post_receives(msg_ep *ep)
{
    while (ep->n_posted < ep->n_expected && ep->n_posted - ep->n_taken < ep->depth) {
        int code = msg_irecv(ep->world, CONTEXT, bench_receive_buffer(&ep->ep, ep->n_posted), ep->room, ep->peer, TAG,
                             &ep->receives[ep->n_posted % DEPTH]);
        if (code)
            return call_failed(ep, "msg_irecv", code);
        ep->n_posted++;
    }
    return BENCH_DONE;
}

/* Receives are posted up to the depth before the other side may send, so no message of the run is unexpected. */
static int msg_expect(bench_ep *base, size_t len, uint64_t n)
{
    (void)len;
    ((msg_ep *)base)->n_expected = n;
    return post_receives((msg_ep *)base);
}

/* Test whether a request is complete, with one slice of waiting if the endpoint may sleep. On DONE and on an error of
 * the request the engine has freed it. */
static inline int test_request(msg_ep *ep, msg_request **request, msg_status *status, const char *call)
{
    int code =
        ep->ep.dontwait ? msg_test(ep->world, request, status) : msg_wait(ep->world, request, status, BENCH_SLICE_MS);
    if (code == MSG_PENDING || code == MSG_TIMEOUT || code == MSG_INTERRUPTED)
        return BENCH_NOT_YET;
    if (code == MSG_SUCCESS)
        code = status->error;
    return code ? call_failed(ep, call, code) : BENCH_DONE;
}

/* Reap the oldest send, if it is complete. */
static inline int reap(msg_ep *ep)
{
    msg_status status;
    int rc = test_request(ep, &ep->sends[ep->n_reaped % DEPTH], &status, "msg_isend");
    if (rc != BENCH_NOT_YET)
        ep->n_reaped++;
    return rc;
}

/* Short: the engine copies, and sbuf is free at once. Otherwise at most a window is under way, whose buffers stay
 * unchanged until flush. */
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

/* The message stays in its slot until the loop receives the next one. */
static int msg_ep_recv(bench_ep *base, size_t len)
{
    msg_ep *ep = (msg_ep *)base;
    msg_status status;
    int rc = test_request(ep, &ep->receives[ep->n_taken % DEPTH], &status, "msg_irecv");
    if (rc != BENCH_DONE)
        return rc;
    base->rmsg = bench_receive_buffer(base, ep->n_taken++);
    if (status.len != len)
        return bench_wrong_length(base, status.len, len);
    return BENCH_DONE;
}

/* Repost receives; reap up to two sends, always leaving the latest (see ep_via.c). */
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

/* A send is complete when its buffer may be reused. */
static int msg_flush(bench_ep *base, size_t most)
{
    msg_ep *ep = (msg_ep *)base;
    int rc = BENCH_DONE;
    while (rc == BENCH_DONE && ep->n_sent - ep->n_reaped > most)
        rc = reap(ep);
    return rc;
}

/* Data that the engine owes its peer (credits, "message read") is at most queued. It leaves while there is progress. */
static int msg_finish(bench_ep *base)
{
    int rc = msg_flush(base, 0);
    while (rc == BENCH_DONE && msg_progress(((msg_ep *)base)->world) > 0) {}
    return rc;
}

/* Sleep until a request of this endpoint completes. It may have completed since the last test, so test first. */
static void msg_ep_idle(bench_ep *base, bool want_send)
{
    msg_ep *ep = (msg_ep *)base;
    if (ep->n_taken != ep->n_posted && msg_request_peek(ep->world, ep->receives[ep->n_taken % DEPTH], NULL))
        return;
    if (want_send && ep->n_reaped != ep->n_sent && msg_request_peek(ep->world, ep->sends[ep->n_reaped % DEPTH], NULL))
        return;
    msg_idle(ep->world, BENCH_SLICE_MS);
}

/* Wait CLOSE_MS for the other side to close its world, too, which it may be about to do. */
static void msg_ep_close(bench_ep *base)
{
    msg_ep *ep = (msg_ep *)base;
    if (ep->world) {
        if (ep->memory)
            msg_free(ep->world, ep->memory);
        msg_world_close(ep->world, CLOSE_MS);
    }
}

static const bench_ops msg_ops = {
    .name = "msg",
    .min_len = 0,
    .max_len = (size_t)1 << 30,
    .allocates = true, /* on channel via only, which msg_prepare checks */
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

/* Combine the channel's own policy, the changes in the text, and this endpoint's way of waiting. Returns 0, or -1 with
 * a sentence in error. */
static int choose_policy(const bench_msg_options *options, msg_policy *policy, char *error)
{
    const msg_policy *base = msg_policy_find(options->channel);
    char why[MSG_ERROR_LEN];
    if (!base) {
        snprintf(error, BENCH_ERROR_LEN, "there is no channel '%.32s'; give one such as via or tcp", options->channel);
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
    /* Polled: never sleep, whatever the policy. Blocking: sleep at once, unless the text sets a polling time. */
    if (options->polled)
        policy->spin_us = NEVER_SLEEP;
    else if (!options->policy || !strstr(options->policy, "spin_us="))
        policy->spin_us = -1;
    return 0;
}

/* The world's secret is derived from the sides' secret, under a label of its own. So a proof for the world proves
 * nothing to connections that use the sides' secret itself. After an error nothing is left open, and the other side's
 * msg_world_open fails with its exchange. */
bench_ep *bench_msg_open(const bench_msg_options *options, char *error)
{
    static const char purpose[] = "viakit bench messages";
    msg_policy policy;
    char why[MSG_ERROR_LEN] = "";
    if (choose_policy(options, &policy, error))
        return NULL;
    if (options->secret == NULL) {
        snprintf(error, BENCH_ERROR_LEN, "messages between two sides need a secret that only they have, got NULL");
        return NULL;
    }
    msg_ep *ep = bench_ep_new(sizeof *ep, &msg_ops, options->polled, error);
    if (!ep)
        return NULL;
    if (!bench_socket_slice(options->fd, OPEN_SLICE_S * 1000000))
        return bench_ep_fail(&ep->ep, error, "cannot use descriptor %d as a socket: %s", options->fd, strerror(errno));
    ep->fd = options->fd;
    ep->peer = !options->side;
    ep->has_allocator = strcmp(policy.channel, "via") == 0;
    ep->open_until_ns = vk_now() + (uint64_t)(options->timeout_s * 1e9);
    uint8_t secret[VK_BLAKE2S_LEN];
    vk_blake2s(options->secret, MSG_SECRET_LEN, purpose, strlen(purpose), secret);
    msg_options o = {.size = sizeof o,
                     .secret = secret,
                     .rank = options->side,
                     .n_ranks = 2,
                     .policy = &policy,
                     .exchange = exchange,
                     .exchange_context = ep,
                     .network_device = options->network_device,
                     .address = options->address,
                     .open_timeout_ms = (int64_t)(options->timeout_s * 1e3)};
    int code = msg_world_open(&o, &ep->world, why);
    vk_wipe(secret, sizeof secret);
    if (code) {
        ep->world = NULL;
        return bench_ep_fail(&ep->ep, error, "%s: %s", msg_error_name(code), why);
    }
    return &ep->ep;
}

/* ---------------------------------------------------------------- counters and description */

/* Returns the number of values written, always MSG_N_COUNTERS. */
int bench_msg_counters(bench_ep *base, uint64_t *values)
{
    msg_counters(((msg_ep *)base)->world, values);
    return MSG_N_COUNTERS;
}

/* The policy in force, with thresholds that were open resolved (msg_world_policy). Text that does not fit is cut. */
int bench_msg_describe(bench_ep *base, char *text, size_t room)
{
    msg_ep *ep = (msg_ep *)base;
    const msg_policy *policy = msg_world_policy(ep->world);
    struct vk_text t = {text, room, 0};
    vk_put(&t, "policy=%s\nchannel=%s\npeer_route=%s\n", policy->name, policy->channel,
           msg_peer_route(ep->world, ep->peer));
    for (int i = 0; msg_policy_field_name(i); i++)
        vk_put(&t, "%s=%lld\n", msg_policy_field_name(i), (long long)msg_policy_get(policy, i));
    return (int)(t.len < room ? t.len : room - 1);
}
