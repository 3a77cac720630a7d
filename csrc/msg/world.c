/*
 * The life of a world: the ranks exchange their properties, connect, and close again.
 *
 *      rank a                    the launcher's exchange (msg_allgather)               rank b
 *      choose_policy                                                                   choose_policy
 *      hello  ---------------------------->  all hellos, to all  <-------------------- hello
 *      hello.c: compatible? same host? thresholds, job name                            the same, with the same result
 *      channel->open (its own exchanges: cards with addresses, then connections)       channel->open
 *      result  --------------------------->  all, to all  <--------------------------- result
 *      open on all ranks, or on none
 *
 * On closing, queued packets are sent, then BYE to all ranks. Closing then waits for each rank until it has sent BYE or
 * is gone.
 *
 * Invariant of opening: from the hellos on, every rank takes part in every exchange, even after a failure. Otherwise
 * the others would wait in the launcher for a rank that does not come. (A rank with invalid options does not reach the
 * first exchange, which then fails for the others.) Each rank makes the decisions that follow from the hellos by
 * itself, so they depend only on data that all ranks hold.
 *
 * Threads: one thread opens and closes a world, while no other thread uses it.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/blake2s.h"
#include "base/thread.h"
#include "base/virtual_table.h"
#include "base/words.h"
#include "msg/channel.h"
#include "viakit.h"

/* Interval in ns of the attendant's service. It doubles from one round to the next up to ATTEND_LONGEST: most worlds
 * open within the first rounds, and a long wait for the launcher should not keep a core busy. */
#define ATTEND_NS 100000
#define ATTEND_LONGEST 5000000

/* Incremented in every child. A world with another number belongs to the parent, and its sockets and rings do, too. */
unsigned msg_fork_epoch;

/* Runs in the child, before fork() returns there. No lock is needed: the child has one thread. */
static void in_child(void)
{
    msg_fork_epoch++;
}

static void watch_forks(void)
{
    /* In the child only. Handlers cannot be removed again, so this is done once per process. */
    pthread_atfork(NULL, NULL, in_child);
}

/* ---------------------------------------------------------------- names and texts */

#define CODE(name, value, text) {value, "MSG_" #name, text},
#define COUNTER(name, text) {MSG_COUNTER_##name, #name, text},
static const struct vk_word errors[] = {MSG_ERRORS(CODE)};
static const struct vk_word counters[] = {MSG_COUNTERS(COUNTER)};

const char *msg_error_name(int code)
{
    return VK_WORD(errors, code)->name;
}

const char *msg_error_text(int code)
{
    return VK_WORD(errors, code)->text;
}

const char *msg_counter_name(int counter)
{
    return VK_WORD(counters, counter)->name;
}

/* In the child of a fork all values are 0. */
void msg_counters(msg_world *w, uint64_t *values)
{
    memset(values, 0, sizeof w->counters);
    if (!msg_enter(w))
        return;
    memcpy(values, w->counters, sizeof w->counters);
    msg_unlock(w);
}

int msg_nic_counters(msg_world *w, uint64_t *values)
{
    memset(values, 0, VIAKIT_N_COUNTERS * sizeof *values);
    if (!msg_enter(w))
        return 0;
    int reported = w->channel && w->channel->nic_counters;
    if (reported)
        w->channel->nic_counters(w, values);
    msg_unlock(w);
    return reported;
}

/* The first function that detects an error writes its text; callers return the code. The text belongs to the world,
 * not to the thread. With several threads in one world it is the text of the latest failure. */
int msg_fail(msg_world *w, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(w->error, sizeof w->error, format, args);
    va_end(args);
    return code;
}

/* Keeps an earlier text for a failure that was already explained where it was detected. */
int msg_fail_plain(msg_world *w, int code)
{
    if ((code != MSG_ERR_PROC_FAILED && code != MSG_ERR_LEFT) || w->error[0] == 0)
        snprintf(w->error, sizeof w->error, "%s", msg_error_text(code));
    return code;
}

/* Not locked: with several threads the text may change while it is read. A caller that needs it reads it at once. */
const char *msg_last_error(const msg_world *w)
{
    return w->error;
}

int msg_rank(const msg_world *w)
{
    return w->rank;
}

int msg_size(const msg_world *w)
{
    return w->n_ranks;
}

const struct msg_policy *msg_world_policy(const msg_world *w)
{
    return &w->policy;
}

const char *msg_peer_route(const msg_world *w, int rank)
{
    if ((unsigned)rank >= (unsigned)w->n_ranks)
        return "";
    struct msg_peer *peer = &w->peers[rank];
    return peer->channel ? peer->channel->route(peer) : "self";
}

/* Not locked: a state changes at any time, and the result is as of some moment of this call. */
int msg_peer_status(msg_world *w, int rank)
{
    return (unsigned)rank < (unsigned)w->n_ranks ? w->peers[rank].state : -MSG_ERR_RANK;
}

int msg_crowded(const msg_world *w)
{
    return w->crowded;
}

int msg_cores(const msg_world *w)
{
    return w->cores;
}

uint64_t msg_peer_host(const msg_world *w, int rank)
{
    return (unsigned)rank < (unsigned)w->n_ranks ? w->peers[rank].host : 0;
}

/* Counts all failed ranks, also those that do not fit `ranks`, so room 0 gives the number alone. */
int msg_failures(msg_world *w, int *ranks, int room)
{
    if (!msg_enter(w))
        return 0;
    int n = 0;
    for (int i = 0; i < w->n_ranks; i++)
        if (w->peers[i].state == MSG_PEER_FAILED && n++ < room)
            ranks[n - 1] = i;
    msg_unlock(w);
    return n;
}

/* Receives from MSG_ANY_SOURCE are possible again, until another rank fails (as after MPIX_Comm_failure_ack of
 * ULFM). */
void msg_failures_ack(msg_world *w)
{
    if (!msg_enter(w))
        return;
    w->unacknowledged = 0;
    msg_unlock(w);
}

/* ---------------------------------------------------------------- opening */

/* See msg_exchange in msg.h. Blocks in the launcher, without the lock. After an error the result is undefined. */
int msg_allgather(msg_world *w, const msg_options *o, const void *own, size_t len, void *all)
{
    if (w->n_ranks == 1) {
        memcpy(all, own, len);
        return MSG_SUCCESS;
    }
    if (o->exchange(o->exchange_context, own, len, all) != 0)
        return msg_fail(w, MSG_ERR_EXCHANGE, "the launcher's exchange failed: a rank is missing, or gave up");
    return MSG_SUCCESS;
}

/* Selects the caller's policy, or VIAKIT_MSG's, or `via`, and its channel. Changes fields that the channel or a
 * described machine decides. Returns MSG_SUCCESS, or MSG_ERR_ARG with a text in `error`: the world has no error text
 * before it is opened. */
static int choose_policy(msg_world *w, const msg_options *o, char *error)
{
    const char *text = getenv("VIAKIT_MSG");
    w->policy = o->policy ? *o->policy : *msg_policy_find("via");
    /* The environment applies only to programs that pass no policy, so that it cannot override a program's choice. */
    if (o->policy == NULL && text && msg_policy_parse(&w->policy, text, error) != 0)
        return MSG_ERR_ARG;
    int by_bip = strcmp(w->policy.channel, "bip") == 0; /* BIP chooses its own limit */
    if (msg_policy_check(&w->policy, error) != 0)
        return MSG_ERR_ARG;
    if ((w->channel = msg_channel_find(w->policy.channel)) == NULL) {
#define MSG_X(name) " " #name
        snprintf(error, MSG_ERROR_LEN, "there is no channel '%s'; give one of:" MSG_CHANNELS(MSG_X), w->policy.channel);
#undef MSG_X
        return MSG_ERR_ARG;
    }
    if (by_bip)
        w->policy.piece = INT64_MAX; /* BIP's pipeline segments messages */
    if (msg_on_machine())
        w->policy.progress = MSG_PROGRESS_CALLER; /* a rank has one clock, so one thread */
    if (msg_on_machine())
        w->policy.connect = MSG_CONNECT_ALL; /* a measured time contains no connecting */
    return MSG_SUCCESS;
}

/* Initialises a condition whose time-outs use the monotonic clock: that of vk_now, which no clock setting moves. */
static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

/* Everything that needs no other rank. On failure free_world releases what was made. Returns MSG_SUCCESS or
 * MSG_ERR_NO_MEMORY. */
static int init_world(msg_world *w, const msg_options *o)
{
    w->rank = o->rank;
    w->n_ranks = o->n_ranks;
    /* A progress thread is a second thread, whatever the caller's options. */
    w->threads = o->threads || w->policy.progress != MSG_PROGRESS_CALLER;
    w->fork_epoch = msg_fork_epoch;
    w->interrupt = o->interrupt;
    w->interrupt_context = o->interrupt_context;
    pthread_mutex_init(&w->mutex, NULL);
    init_condition(&w->changed);
    w->peers = calloc((size_t)w->n_ranks, sizeof *w->peers);
    if (w->peers == NULL || msg_pool_init(w) != 0)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    for (int i = 0; i < w->n_ranks; i++)
        /* A rank is its own peer, without a channel: messages to itself never leave send.c. */
        w->peers[i] = (struct msg_peer){
            .world = w, .rank = i, .state = MSG_PEER_CONNECTED, .met = 1, .channel = i == w->rank ? NULL : w->channel};
    if (w->n_ranks == 1)
        w->channel = NULL;
    msg_choose_sparse(w);
    return MSG_SUCCESS;
}

/* The channel is closed and no thread uses the world. The secret is wiped, so that freed memory does not contain it. */
static void free_world(msg_world *w)
{
    msg_pool_fini(w);
    free(w->attached);
    free(w->revocations);
    free(w->peers);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    vk_wipe(w->secret, sizeof w->secret);
    free(w);
}

/* While its main thread waits in the launcher's exchange, a connected rank must continue to serve ranks that are not
 * connected yet. On shm the kernel limits the descriptors in flight. At that limit no rank can connect until others
 * receive theirs from their sockets. So a thread services the channel during that time, first every ATTEND_NS, then
 * at growing intervals. No other thread touches the channel meanwhile. */
struct attendant {
    msg_world *world;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t over;
    int runs, done;
};

/* The attendant's thread. `done` is read and waited for with the mutex held, so the end is not missed. */
static void *attend(void *argument)
{
    struct attendant *a = argument;
    uint64_t pause = ATTEND_NS;
    pthread_mutex_lock(&a->mutex);
    while (!a->done) {
        /* The attendant's mutex is held. The main thread acquires it only to end the attendant. */
        a->world->channel->attend(a->world);
        uint64_t at = vk_now() + pause;
        struct timespec t = {(time_t)(at / VK_SECOND), (long)(at % VK_SECOND)};
        pthread_cond_timedwait(&a->over, &a->mutex, &t);
        pause = pause < ATTEND_LONGEST ? 2 * pause : pause;
    }
    pthread_mutex_unlock(&a->mutex);
    return NULL;
}

static void attendant_free(struct attendant *a)
{
    pthread_cond_destroy(&a->over);
    pthread_mutex_destroy(&a->mutex);
}

/* If no thread can be created, opening works without it, unless the limit is reached. */
static void attendant_begin(struct attendant *a, msg_world *w)
{
    *a = (struct attendant){.world = w};
    if (w->channel == NULL || w->channel->attend == NULL)
        return;
    pthread_mutex_init(&a->mutex, NULL);
    init_condition(&a->over);
    a->runs = vk_thread_start(&a->thread, attend, a) == 0;
    if (!a->runs)
        attendant_free(a);
}

/* On return the thread has ended, and the main thread may use the channel again. */
static void attendant_end(struct attendant *a)
{
    if (!a->runs)
        return;
    pthread_mutex_lock(&a->mutex);
    a->done = 1;
    pthread_cond_signal(&a->over);
    pthread_mutex_unlock(&a->mutex);
    pthread_join(a->thread, NULL);
    attendant_free(a);
}

/* Connects all ranks, or none. The last exchange reports failures, and ranks that had succeeded close again. Returns
 * MSG_SUCCESS, this rank's own error, or the error of another rank. */
static int connect_all(msg_world *w, const msg_options *o)
{
    struct attendant attendant;
    int own = w->channel ? w->channel->open(w, o) : MSG_SUCCESS, opened = own == MSG_SUCCESS;
    int *all = calloc((size_t)w->n_ranks, sizeof *all);
    if (opened)
        attendant_begin(&attendant, w);
    int code = all ? msg_allgather(w, o, &own, sizeof own, all) : MSG_ERR_NO_MEMORY;
    if (opened)
        attendant_end(&attendant);
    for (int i = 0; code == MSG_SUCCESS && i < w->n_ranks; i++)
        /* A rank that has failed keeps its own error text. */
        if (all[i] != MSG_SUCCESS && own == MSG_SUCCESS)
            code = msg_fail(w, all[i], "rank %d could not connect", i);
    code = own ? own : code;
    free(all);
    if (code && opened && w->channel)
        w->channel->close(w);
    if (code)
        return code;
    for (int i = 0; i < w->n_ranks; i++) {
        struct msg_peer *p = &w->peers[i];
        /* n_short is the precomputed condition of the short path in msg_send; 0 disables it. The comparison is "less
         * than", hence the + 1. */
        int plain = !w->policy.synchronous && !w->policy.copy_send && !w->policy.convert;
        MSG_COUNT(w, connections, i != w->rank && p->met);
        p->n_short = p->channel && p->channel->push_short && plain ? p->eager_limit + 1 : 0;
    }
    return MSG_SUCCESS;
}

/* The steps in the picture above. After an error nothing is left behind: each step that fails has released its own
 * parts, and the calls here release those of the earlier steps. The error text goes to `error`, because there is no
 * world to hold it. */
int msg_world_open(const msg_options *options, msg_world **out, char *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char text[MSG_ERROR_LEN] = "";
    error = error ? error : text;
    /* Before the first world exists, so that every child is detected. */
    pthread_once(&once, watch_forks);
    if (options == NULL || options->size != sizeof *options || options->n_ranks < 1 || options->rank < 0 ||
        options->rank >= options->n_ranks || (options->n_ranks > 1 && options->exchange == NULL) || out == NULL) {
        snprintf(error, MSG_ERROR_LEN,
                 "options are incomplete: size, a rank below n_ranks and, for more than one, an exchange");
        return MSG_ERR_ARG;
    }
    if (options->n_ranks > 1 && options->secret == NULL) {
        snprintf(
            error, MSG_ERROR_LEN,
            "a job of %d ranks needs a secret of %d bytes that only its ranks have: set options.secret; `viakit run` "
            "makes one and gives it to the ranks (VIAKIT_SECRET)",
            options->n_ranks, MSG_SECRET_LEN);
        return MSG_ERR_ARG;
    }
    msg_world *w = calloc(1, sizeof *w);
    if (w == NULL) {
        snprintf(error, MSG_ERROR_LEN, "no memory");
        return MSG_ERR_NO_MEMORY;
    }
    if (options->secret)
        memcpy(w->secret, options->secret, sizeof w->secret);
    int code = choose_policy(w, options, error);
    if (code) {
        vk_wipe(w->secret, sizeof w->secret);
        free(w);
        return code;
    }
    code = init_world(w, options);
    if (code == MSG_SUCCESS)
        code = msg_greet(w, options);
    if (code == MSG_SUCCESS)
        code = connect_all(w, options);
    vk_virtual_adopt();
    if (code == MSG_SUCCESS && w->channel && w->policy.progress != MSG_PROGRESS_CALLER) {
        /* Last, because from here on the thread handles arriving packets. */
        code = msg_thread_start(w);
        if (code)
            w->channel->close(w);
    }
    if (code) {
        snprintf(error, MSG_ERROR_LEN, "%s", w->error);
        free_world(w);
        return code;
    }
    *out = w;
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- closing */

/* Conditions of msg_world_close. First: no packet of this rank is queued any more, so that BYE is its last packet. */
static int all_sent(void *argument)
{
    msg_world *w = argument;
    for (int i = 0; i < w->n_ranks; i++)
        if (w->peers[i].queue && !w->peers[i].gone)
            return 0;
    return w->moving == NULL;
}

/* Second: every other rank has sent BYE or is gone, and has been sent the BYE of this rank (its queue is empty).
 * Until then this rank takes part, because others may need its credits, its CTS, or its memory. */
static int all_gone(void *argument)
{
    msg_world *w = argument;
    int leaving = msg_all_leaving(w); /* first, because it may queue packets */
    for (int i = 0; i < w->n_ranks; i++)
        if (i != w->rank && w->peers[i].met && !w->peers[i].gone &&
            (w->peers[i].state == MSG_PEER_CONNECTED || w->peers[i].queue))
            return 0;
    return leaving;
}

/* Counts requests that the program never waited for. Carriers and detached requests do not count. */
static void count_dropped(msg_request *r, void *context)
{
    if (r->kind != MSG_REQ_CARRIER && !r->complete && !(r->flags & MSG_DETACHED))
        ++*(int *)context;
}

/* Closes in four steps:
 *
 *     1. the progress thread ends
 *     2. queued packets leave
 *     3. BYE goes to all ranks, and theirs are awaited
 *     4. the channel closes
 *
 * Only a fork in the interrupt callback leaves early, in the child, which must not touch what belongs to the parent.
 *
 * A time-out or an interrupt shortens the waits and nothing else. Ranks that had not closed then see this rank fail. */
int msg_world_close(msg_world *w, int64_t timeout_ms)
{
    int code = MSG_SUCCESS, dropped = 0;
    if (w == NULL)
        return MSG_SUCCESS;
    if (!msg_same_process(w))
        return MSG_ERR_PROCESS;
    /* From here on this thread makes all progress, so that no other thread runs while memory is freed. */
    msg_thread_stop(w);
    msg_lock(w);
    uint64_t deadline = timeout_ms < 0 ? VK_NEVER : vk_now() + (uint64_t)timeout_ms * VK_MS;
    msg_each_request(w, count_dropped, &dropped);
    if (w->channel) {
        /* Both waits share one deadline. An interrupt ends each of them like a time-out: closing continues in any
         * case. */
        code = msg_wait_until(w, all_sent, w, timeout_ms);
        if (!msg_same_process(w))
            return MSG_ERR_PROCESS;
        /* Ranks that end from now on are not reported as failures (peer_failure.c). */
        w->closing = 1;
        struct msg_packet bye = {.head.kind = MSG_PKT_BYE};
        for (int i = 0; i < w->n_ranks; i++)
            if (i != w->rank && w->peers[i].met)
                msg_push_control(&w->peers[i], &bye);
        if (w->spreading)
            msg_spread_departure(&w->peers[w->rank]);
        uint64_t now = vk_now();
        int64_t left = deadline == VK_NEVER ? MSG_FOREVER : now < deadline ? (int64_t)((deadline - now) / VK_MS) : 0;
        code = msg_wait_until(w, all_gone, w, left);
        if (!msg_same_process(w)) /* the interrupt callback has forked, and this is the child */
            return MSG_ERR_PROCESS;
        if (code != MSG_SUCCESS)
            msg_spread_gone(&w->peers[w->rank]);
        w->channel->close(w);
    }
    msg_unlock(w);
    free_world(w);
    return code == MSG_INTERRUPTED || code == MSG_TIMEOUT ? MSG_TIMEOUT : dropped ? MSG_ERR_STATE : MSG_SUCCESS;
}

/* Sends no BYE: other ranks find the channel closed and count this rank as failed. For a process that cannot
 * continue, and for tests. */
void msg_world_abort(msg_world *w)
{
    if (w == NULL || !msg_same_process(w))
        return;
    msg_thread_stop(w);
    w->closing = 1;
    if (w->channel)
        w->channel->close(w);
    free_world(w);
}
