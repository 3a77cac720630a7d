/*
 * A world's life: the ranks find out about one another, connect, and part again.
 *
 *      rank a                    the launcher's exchange (msg_allgather)               rank b
 *      choose_policy                                                                   choose_policy
 *      hello  ---------------------------->  all hellos, to all  <-------------------- hello
 *      compare_hellos: fit together? who is near? thresholds, the job's name           the same, with the same result
 *      channel->open (its own exchanges: cards with addresses, then connections)       channel->open
 *      how it went  ---------------------->  all, to all  <--------------------------- how it went
 *      open on all ranks, or on none
 *
 * On closing, queued packets go out, then BYE to everybody; whoever has said BYE, or is gone,
 * is not waited for.
 *
 * Invariant of opening: from the hellos on every rank takes part in every exchange, whether it has failed by then or
 * not; else the others would wait in the launcher for one that does not come. (Whose options are wrong does not come
 * to the first: the launcher's exchange fails for the others then.) What is decided from the hellos each rank decides
 * for itself, so it may depend on nothing but what all of them hold.
 *
 * Threads: a world is opened and closed by one thread, while no other uses it.
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/plural.h"
#include "calibration.h"
#include "channel.h"

/* "vkmsg004": the last digits are the protocol's version, to be raised with every change of packets, hellos or cards.
 */
#define MAGIC 0x766b6d7367303034ull

/* Cores counted in a hello: a machine with more has them folded, and is taken for crowded a little too soon. */
#define N_CORES 256
#define ATTEND_NS 100000 /* the attendant looks after it, doubling */
#define ATTEND_LONGEST 5000000

/* What a rank tells all others first: the same length on all ranks, or the exchange would not
 * know where each begins. Only machines of one byte order meet, so it is sent as it lies;
 * byte_order is what the others find this out by. */
struct hello {
    uint64_t magic;
    uint64_t host;    /* hash of what names the host */
    uint64_t machine; /* hash of the boot id: hosts of a testbed are one machine, and share its cores */
    uint64_t policy;  /* hash of everything in it that both sides must agree on */
    uint32_t byte_order;
    uint32_t rank, n_ranks, pid;
    uint8_t random[16];
    msg_calibration calibration[2]; /* rank 0's counts */
    uint64_t cores[N_CORES / 64];   /* a bit for each that this rank may run on, counted modulo N_CORES */
};

/* Counted up in every child: a world that remembers another number belongs to the parent, and its sockets and rings
 * with it. */
unsigned msg_fork_epoch;

static void in_child(void)
{
    msg_fork_epoch++;
}

static void watch_forks(void)
{
    /* In the child only; handlers cannot be removed again, so this is done once per process. */
    pthread_atfork(NULL, NULL, in_child);
}

/* ---------------------------------------------------------------- words */

const char *msg_error_name(int code)
{
    switch (code) {
#define MSG_X(name, value, text) \
    case value:                  \
        return "MSG_" #name;
        MSG_ERRORS(MSG_X)
#undef MSG_X
    default:
        return NULL;
    }
}

const char *msg_error_text(int code)
{
    switch (code) {
#define MSG_X(name, value, text) \
    case value:                  \
        return text;
        MSG_ERRORS(MSG_X)
#undef MSG_X
    default:
        return NULL;
    }
}

static const struct {
    const char *name, *text;
} counters[MSG_N_COUNTERS] = {
#define MSG_X(name, text) {#name, text},
    MSG_COUNTERS(MSG_X)
#undef MSG_X
};

const char *msg_counter_name(int counter)
{
    return counter >= 0 && counter < MSG_N_COUNTERS ? counters[counter].name : NULL;
}

const char *msg_counter_text(int counter)
{
    return counter >= 0 && counter < MSG_N_COUNTERS ? counters[counter].text : NULL;
}

void msg_counters(msg_world *w, uint64_t *values)
{
    msg_lock(w);
    memcpy(values, w->counters, sizeof w->counters);
    msg_unlock(w);
}

/* The first that knows why says so; callers pass the code on. The text is the world's, not the thread's: with
 * several threads in one world it is that of whoever failed last. */
int msg_fail(msg_world *w, int code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(w->error, sizeof w->error, format, args);
    va_end(args);
    return code;
}

/* A failure has often been explained where it was noticed: then that stays. */
int msg_fail_plain(msg_world *w, int code)
{
    if ((code != MSG_ERR_PROC_FAILED && code != MSG_ERR_LEFT) || w->error[0] == 0)
        snprintf(w->error, sizeof w->error, "%s", msg_error_text(code));
    return code;
}

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

int msg_failures(msg_world *w, int *ranks, int room)
{
    msg_lock(w);
    int n = 0;
    for (int i = 0; i < w->n_ranks; i++)
        if (w->peers[i].state == MSG_PEER_FAILED && n++ < room)
            ranks[n - 1] = i;
    msg_unlock(w);
    return n;
}

void msg_failures_ack(msg_world *w)
{
    msg_lock(w);
    w->unacknowledged = 0;
    msg_unlock(w);
}

/* ---------------------------------------------------------------- opening */

/* FNV-1a, 64 bits: to compare things of friends, not against anybody. Begins at HASH_BEGIN,
 * and can be continued. */
static uint64_t hash_bytes(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * 1099511628211ull;
    return h;
}
#define HASH_BEGIN 1469598103934665603ull

/* The boot id is drawn anew at each start of the kernel: equal in all containers and namespaces of a machine. */
static uint64_t hash_machine(void)
{
    char boot[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, sizeof boot) : 0;
    if (fd >= 0)
        close(fd);
    return hash_bytes(HASH_BEGIN, boot, got > 0 ? (size_t)got : 0);
}

/* Processes with the same boot id and network namespace can reach each other through shm. A
 * launcher that knows better gives a name. */
static uint64_t hash_host(const char *name)
{
    struct stat st = {0};
    if (name)
        return hash_bytes(HASH_BEGIN, name, strlen(name));
    if (stat("/proc/self/ns/net", &st) != 0)
        st.st_ino = 0;
    return hash_bytes(hash_machine(), &st.st_ino, sizeof st.st_ino);
}

/* Over values, field by field, so that padding and unused bytes of strings do not count. */
static uint64_t hash_policy(const msg_policy *p)
{
    msg_policy shared = *p; /* what each rank may choose for itself is left out */
    shared.spin_us = shared.yield_us = shared.progress = 0;
    shared.cache_bytes = shared.cache_entries = shared.unexpected_bytes = 0;
    uint64_t h = hash_bytes(HASH_BEGIN, shared.channel, strlen(shared.channel));
    for (int i = 0; msg_policy_field_name(i); i++) {
        int64_t value = msg_policy_get(&shared, i);
        h = hash_bytes(h, &value, sizeof value);
    }
    return h;
}

int msg_allgather(msg_world *w, const msg_options *o, const void *mine, size_t len, void *all)
{
    if (w->n_ranks == 1) {
        memcpy(all, mine, len);
        return MSG_SUCCESS;
    }
    if (o->exchange(o->exchange_context, mine, len, all) != 0)
        return msg_fail(w, MSG_ERR_EXCHANGE, "the launcher's exchange failed: a rank is missing, or gave up");
    return MSG_SUCCESS;
}

/* Every rank holds the same list and decides the same: whether the ranks fit together, who is near, what the
 * thresholds are, and the job's name (drawn by rank 0). */
static int compare_hellos(msg_world *w, const struct hello *all)
{
    int local = 0, sharing = 0, cores = 0;
    uint64_t usable[N_CORES / 64] = {0};
    for (int i = 0; i < w->n_ranks; i++) {
        const struct hello *h = &all[i], *mine = &all[w->rank];
        /* The version first: if that differs nothing else can be trusted to lie where we look for it. */
        if (h->magic != MAGIC || h->n_ranks != (uint32_t)w->n_ranks || h->rank != (uint32_t)i)
            return msg_fail(w, MSG_ERR_MISMATCH,
                            "rank %d calls itself %u of %u: all must be given ranks 0 to n - 1, and "
                            "the same version of viakit",
                            i, h->rank, h->n_ranks);
        if (h->byte_order != mine->byte_order)
            return msg_fail(w, MSG_ERR_MISMATCH, "rank %d has another byte order", i);
        if (h->policy != all[0].policy)
            return msg_fail(w, MSG_ERR_MISMATCH, "rank %d was started with another policy than rank 0", i);
        w->peers[i].host = h->host;
        local += h->host == mine->host;
        if (h->machine != mine->machine)
            continue;
        sharing++;
        for (int k = 0; k < N_CORES / 64; k++)
            usable[k] |= h->cores[k];
    }
    /* Rank 0's calibration on all ranks: both ends of a connection need the same limits. */
    msg_calibration_adopt(&w->policy, all[0].calibration, local < w->n_ranks);
    for (int i = 0; i < w->n_ranks; i++) {
        int near = w->peers[i].host == w->peers[w->rank].host;
        w->peers[i].rendezvous = near ? w->policy.rendezvous_local : w->policy.rendezvous;
    }
    /* Below 0: BIP, which has not chosen its limit yet. */
    int64_t own = w->policy.eager_limit_local; /* of messages to ourselves; channels set the others' */
    w->peers[w->rank].eager_limit = own < 0 ? 8192 : (size_t)own;
    /* Crowded: more ranks than cores, of all ranks on this machine, whatever host they call it. All ranks'
     * cores count, not only ours: a launcher that binds each rank to a core of its own leaves room for all. */
    for (int k = 0; k < N_CORES / 64; k++)
        cores += __builtin_popcountll(usable[k]);
    w->cores = cores ? cores : 1;
    w->crowded = sharing > w->cores;
    w->n_local = local;
    /* Rank 0's random bytes, as 32 hex digits: names the job's NICs on shm, and is the proof of
     * belonging on tcp. */
    for (int i = 0; i < 16; i++)
        snprintf(w->job + 2 * i, 3, "%02x", all[0].random[i]);
    return MSG_SUCCESS;
}

/* Where this rank may run. None are marked if the kernel does not say: then there is one. */
static void mark_cores(uint64_t *marks)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        /* Core i is bit i % 64 of word i / 64, modulo N_CORES. */
        for (unsigned i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                marks[i % N_CORES / 64] |= UINT64_C(1) << i % 64;
}

static int greet(msg_world *w, const msg_options *o)
{
    struct hello mine = {.magic = MAGIC,
                         .host = hash_host(o->host),
                         .machine = hash_machine(),
                         .policy = hash_policy(&w->policy),
                         .byte_order = 0x01020304,
                         .rank = (uint32_t)w->rank,
                         .n_ranks = (uint32_t)w->n_ranks,
                         .pid = (uint32_t)getpid()};
    struct hello *all = calloc((size_t)w->n_ranks, sizeof *all);
    if (all == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    /* Two jobs with the same name would meet on shm. Without random bytes the time has to do. */
    if (getrandom(mine.random, sizeof mine.random, 0) != (ssize_t)sizeof mine.random)
        mine.random[0] = (uint8_t)vk_now();
    msg_calibration_of(&w->policy, o->network_device, mine.calibration);
    mark_cores(mine.cores);
    int code = msg_allgather(w, o, &mine, sizeof mine, all);
    if (code == MSG_SUCCESS)
        code = compare_hellos(w, all);
    free(all);
    return code;
}

/* Is this a value that counts, or one that will be filled (MSG_CALIBRATED)? */
static int set(int64_t value, int64_t least)
{
    return value >= least || value == MSG_CALIBRATED;
}

/* The caller's policy, or VIAKIT_MSG's, or `via`; and its channel. A policy of a wrong size was made for another
 * version. */
static int choose_policy(msg_world *w, const msg_options *o, char *error)
{
    const char *text = getenv("VIAKIT_MSG");
    w->policy = o->policy ? *o->policy : *msg_policy_find("via");
    /* Who gives a policy does not want it changed from outside: the environment is for programs that give none. */
    if (o->policy == NULL && text && msg_policy_parse(&w->policy, text, error) != 0)
        return MSG_ERR_ARG;
    int by_bip = strcmp(w->policy.channel, "bip") == 0; /* which knows its own limit */
    if (w->policy.size != sizeof w->policy || !set(w->policy.eager_limit, 0) || w->policy.piece <= 0 ||
        !set(w->policy.credits, 1)) {
        snprintf(error, MSG_ERROR_LEN,
                 "the policy is not complete: begin with one from msg_policy_find and change its fields");
        return MSG_ERR_ARG;
    }
    if (strcmp(w->policy.channel, "via") == 0)
        w->channel = &msg_channel_via;
    else if (strcmp(w->policy.channel, "tcp") == 0)
        w->channel = &msg_channel_tcp;
    else if (by_bip)
        w->channel = &msg_channel_bip;
    else {
        snprintf(error, MSG_ERROR_LEN, "there is no channel '%s': via, bip and tcp are", w->policy.channel);
        return MSG_ERR_ARG;
    }
    if (by_bip)
        w->policy.piece = INT64_MAX; /* its pipeline cuts messages */
    return MSG_SUCCESS;
}

/* Its time-outs are of the monotonic clock. */
static void init_condition(pthread_cond_t *condition)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static int init_world(msg_world *w, const msg_options *o)
{
    w->rank = o->rank;
    w->n_ranks = o->n_ranks;
    /* A progress thread is a second thread, whatever the caller says. */
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
        /* A rank is its own peer, without a channel: messages to oneself never leave send.c. */
        w->peers[i] = (struct msg_peer){
            .world = w, .rank = i, .state = MSG_PEER_CONNECTED, .channel = i == w->rank ? NULL : w->channel};
    if (w->n_ranks == 1)
        w->channel = NULL;
    return MSG_SUCCESS;
}

static void free_world(msg_world *w)
{
    msg_pool_fini(w);
    free(w->attached);
    free(w->peers);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
    free(w);
}

/* While its main thread waits in the launcher's exchange a rank that is connected must go on
 * serving those that are not yet: on shm nobody gets through while the kernel has as many
 * descriptors under way as it allows, and it is others who must take them off their sockets. So for
 * that time a thread looks after the channel, at first every ATTEND_NS, then ever more seldom. It is
 * the only one that touches the channel then. */
struct attendant {
    msg_world *world;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t over;
    int runs, done;
};

static void *attend(void *argument)
{
    struct attendant *a = argument;
    uint64_t pause = ATTEND_NS;
    pthread_mutex_lock(&a->mutex);
    while (!a->done) {
        /* With the attendant's mutex held; the main thread takes it only to say that it is over. */
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

/* Without it, if there is no thread to be had, all goes well unless the limit is reached. */
static void attendant_begin(struct attendant *a, msg_world *w)
{
    *a = (struct attendant){.world = w};
    if (w->channel == NULL || w->channel->attend == NULL)
        return;
    sigset_t every, old;
    pthread_mutex_init(&a->mutex, NULL);
    init_condition(&a->over);
    sigfillset(&every); /* signals are the program's threads' affair */
    pthread_sigmask(SIG_SETMASK, &every, &old);
    a->runs = pthread_create(&a->thread, NULL, attend, a) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!a->runs)
        attendant_free(a);
}

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

/* Connects; all ranks succeed or none. What goes wrong here is told in the last exchange, and
 * who had succeeded closes again. */
static int connect_all(msg_world *w, const msg_options *o)
{
    struct attendant attendant;
    int mine = w->channel ? w->channel->open(w, o) : MSG_SUCCESS, opened = mine == MSG_SUCCESS;
    int *all = calloc((size_t)w->n_ranks, sizeof *all);
    if (opened)
        attendant_begin(&attendant, w);
    int code = all ? msg_allgather(w, o, &mine, sizeof mine, all) : MSG_ERR_NO_MEMORY;
    if (opened)
        attendant_end(&attendant);
    for (int i = 0; code == MSG_SUCCESS && i < w->n_ranks; i++)
        /* Who has failed itself keeps its own explanation. */
        if (all[i] != MSG_SUCCESS && mine == MSG_SUCCESS)
            code = msg_fail(w, all[i], "rank %d could not connect", i);
    code = mine ? mine : code;
    free(all);
    if (code && opened && w->channel)
        w->channel->close(w);
    if (code)
        return code;
    for (int i = 0; i < w->n_ranks; i++) {
        struct msg_peer *p = &w->peers[i];
        /* n_short is the condition of the short way in msg_send, made once: 0 closes it. Less than,
         * hence the + 1. */
        int plain = !w->policy.synchronous && !w->policy.copy_send && !w->policy.convert;
        p->n_short = p->channel && p->channel->push_short && plain ? p->eager_limit + 1 : 0;
    }
    return MSG_SUCCESS;
}

int msg_world_open(const msg_options *options, msg_world **out, char *error)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    char text[MSG_ERROR_LEN] = "";
    error = error ? error : text;
    /* Before any world exists that a child could mistake for its own. */
    pthread_once(&once, watch_forks);
    if (options == NULL || options->size != sizeof *options || options->n_ranks < 1 || options->rank < 0 ||
        options->rank >= options->n_ranks || (options->n_ranks > 1 && options->exchange == NULL) || out == NULL) {
        snprintf(error, MSG_ERROR_LEN,
                 "options are incomplete: size, a rank below n_ranks and, for more than one, an exchange");
        return MSG_ERR_ARG;
    }
    msg_world *w = calloc(1, sizeof *w);
    if (w == NULL) {
        snprintf(error, MSG_ERROR_LEN, "no memory");
        return MSG_ERR_NO_MEMORY;
    }
    int code = choose_policy(w, options, error);
    if (code) {
        free(w);
        return code;
    }
    code = init_world(w, options);
    if (code == MSG_SUCCESS)
        code = greet(w, options);
    if (code == MSG_SUCCESS)
        code = connect_all(w, options);
    if (code == MSG_SUCCESS && w->channel && w->policy.progress != MSG_PROGRESS_CALLER) {
        /* Last: from here on the thread handles what arrives. */
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

/* Conditions of msg_world_close. First: nothing of ours waits here any more, so that BYE is
 * the last thing that others hear. */
static int all_sent(void *argument)
{
    msg_world *w = argument;
    for (int i = 0; i < w->n_ranks; i++)
        if (w->peers[i].queue && !w->peers[i].gone)
            return 0;
    return w->moving == NULL;
}

/* Second: everybody has said BYE too or is gone, and has been sent ours (nothing is queued). Until then we
 * take part: others may need our credits, our CTS, our memory. */
static int all_gone(void *argument)
{
    msg_world *w = argument;
    for (int i = 0; i < w->n_ranks; i++)
        if (i != w->rank && !w->peers[i].gone && (w->peers[i].state == MSG_PEER_CONNECTED || w->peers[i].queue))
            return 0;
    return 1;
}

/* Requests of the program's that it never waited for. Carriers and detached ones are nobody's. */
static void count_dropped(msg_request *r, void *context)
{
    if (r->kind != MSG_REQ_CARRIER && !r->complete && !(r->flags & MSG_DETACHED))
        ++*(int *)context;
}

int msg_world_close(msg_world *w, int64_t timeout_ms)
{
    int code = MSG_SUCCESS, dropped = 0;
    if (w == NULL)
        return MSG_SUCCESS;
    if (!msg_same_process(w))
        return MSG_ERR_PROCESS;
    /* From here on this thread makes all progress, so that nothing happens behind its back while
     * things are freed. */
    msg_thread_stop(w);
    msg_lock(w);
    uint64_t deadline = timeout_ms < 0 ? VK_NEVER : vk_now() + (uint64_t)timeout_ms * VK_MS;
    msg_each_request(w, count_dropped, &dropped);
    if (w->channel) {
        /* Both waits share one deadline. An interrupt ends each of them like a time-out: closing goes
         * on in any case. */
        code = msg_wait_until(w, all_sent, w, timeout_ms);
        /* Ranks that end now are no failures that anybody has to be told of (leave.c). */
        w->closing = 1;
        struct msg_packet bye = {.head.kind = MSG_PKT_BYE};
        for (int i = 0; i < w->n_ranks; i++)
            if (i != w->rank)
                msg_push_control(&w->peers[i], &bye);
        uint64_t now = vk_now();
        int64_t left = deadline == VK_NEVER ? MSG_FOREVER : now < deadline ? (int64_t)((deadline - now) / VK_MS) : 0;
        code = msg_wait_until(w, all_gone, w, left);
        w->channel->close(w);
    }
    msg_unlock(w);
    free_world(w);
    return code == MSG_INTERRUPTED || code == MSG_TIMEOUT ? MSG_TIMEOUT : dropped ? MSG_ERR_STATE : MSG_SUCCESS;
}

/* No BYE: others find the channel closed, and take us for dead. For a process that cannot go on, and for tests. */
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

/* ---------------------------------------------------------------- memory */

/* Each of these asks the channel, which may be none (one rank) or know nothing of such memory: then malloc's
 * will do, because nobody else is to reach it, or not by RDMA. */
int msg_alloc(msg_world *w, size_t len, void **memory)
{
    msg_lock(w);
    int code;
    if (w->channel && w->channel->alloc)
        code = w->channel->alloc(w, len, memory);
    else {
        code = posix_memalign(memory, 4096, len ? len : 1) == 0 ? MSG_SUCCESS : msg_fail_plain(w, MSG_ERR_NO_MEMORY);
    }
    msg_unlock(w);
    return code;
}

int msg_free(msg_world *w, void *memory)
{
    int code = MSG_SUCCESS;
    msg_lock(w);
    if (w->channel && w->channel->free)
        code = w->channel->free(w, memory);
    else
        free(memory);
    msg_unlock(w);
    return code;
}

void msg_forget(msg_world *w, const void *buf, size_t len)
{
    msg_lock(w);
    if (w->channel && w->channel->forget)
        w->channel->forget(w, buf, len);
    msg_unlock(w);
}

int msg_expose(msg_world *w, void *buf, size_t len, msg_exposed *exposed)
{
    msg_lock(w);
    int code = MSG_SUCCESS;
    if (buf == NULL || len == 0)
        code = msg_fail(w, MSG_ERR_ARG, "nothing to expose (%zu byte%s at %p)", len, vk_s(len), buf);
    /* One rank: "others" is ourselves, and the address is all that msg_put needs. */
    else if (w->channel == NULL)
        *exposed = (msg_exposed){.address = (uint64_t)(uintptr_t)buf, .len = len};
    else if (w->channel->expose == NULL)
        code = msg_fail(w, MSG_ERR_NOT_SUPPORTED, "channel %s has no one-sided writes", w->channel->name);
    else
        code = w->channel->expose(w, buf, len, exposed);
    msg_unlock(w);
    return code;
}

int msg_hide(msg_world *w, const msg_exposed *exposed)
{
    msg_lock(w);
    int code = w->channel && w->channel->hide ? w->channel->hide(w, exposed) : MSG_SUCCESS;
    msg_unlock(w);
    return code;
}
