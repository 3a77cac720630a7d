/*
 * test_rma.c - one-sided communication on every channel: test_rma LINK.
 *
 * Ranks are processes, and threads on loop. A rank that must take no part waits in job_meet(), outside the engine: then
 * only its progress thread and its NIC's thread serve the others.
 */
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "msg/engine.h"
#include "msg_calls.h"
#include "msg_job.h"
#include "netns.h"
#include "rma/inside.h"

enum { LONG = 300000, SLOTS = 4, COUNT = 20000 };

/* A window of len bytes on every rank, in memory that peers can map. */
struct scene {
    rma *r;
    rma_window *win;
    char *memory;
};

static struct scene open_scene(msg_world *w, int rank, int n, size_t len)
{
    struct scene s;
    struct rma_card cards[8];
    void *memory;
    OK(rma_start(w, &s.r));
    OK(msg_alloc(w, len, &memory));
    s.memory = memset(memory, 0, len);
    OK(rma_window_open(s.r, 7, memory, len, 0, &cards[rank], &s.win));
    CHECK(!rma_number_is_free(s.r, 7) && rma_number_is_free(s.r, 8));
    for (int d = 1; d < n; d++) {
        int to = (rank + d) % n, from = (rank - d + n) % n;
        OK(call_sendrecv(w, 1, &cards[rank], sizeof *cards, to, 1, &cards[from], sizeof *cards, from, 1, NULL));
    }
    OK(rma_window_join(s.win, cards));
    job_meet();
    return s;
}

static void close_scene(msg_world *w, struct scene *s)
{
    job_meet();
    rma_window_close(s->win);
    rma_stop(s->r);
    OK(msg_free(w, s->memory));
}

static void put_all(msg_world *w, rma_window *win, const void *buf, size_t len, int target, uint64_t offset)
{
    rma_op *op;
    OK(rma_put(win, buf, len, target, offset, &op));
    OK(rma_flush(win, target));
    if (op)
        OK(rma_op_wait(op));
}

static void get_all(msg_world *w, rma_window *win, void *buf, size_t len, int target, uint64_t offset)
{
    rma_op *op;
    OK(rma_get(win, buf, len, target, offset, &op));
    if (op)
        OK(rma_op_wait(op));
}

/* Puts and gets of all lengths, while the target takes no part. */
static void case_data(msg_world **world, int rank, int n)
{
    static const size_t lengths[] = {0, 1, 8, 255, 256, 257, 4096, 70000, LONG};
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, (size_t)n * LONG);
    char *data = malloc(LONG), *back = malloc(LONG);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (int d = 0; d < n; d++) {
            int target = (rank + d) % n;
            pattern_fill(data, LONG, (unsigned)(rank + 10 * d));
            put_all(w, s.win, data, lengths[i], target, (uint64_t)rank * LONG);
            memset(back, 0, LONG);
            get_all(w, s.win, back, lengths[i], target, (uint64_t)rank * LONG);
            CHECK(memcmp(data, back, lengths[i]) == 0);
        }
    free(data);
    free(back);
    close_scene(w, &s);
}

/* Every rank adds to the numbers of rank 0, which computes. Nothing is lost, and each fetched value is unique. */
static void case_updates(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, (COUNT + (size_t)n) * sizeof(int64_t));
    uint64_t own = (uint64_t)(COUNT + rank) * sizeof(int64_t);
    int64_t *ones = malloc(COUNT * sizeof *ones), *old = malloc(COUNT * sizeof *old), sum = 0;
    rma_op *op;
    for (int i = 0; i < COUNT; i++)
        ones[i] = i + 1;
    for (int k = 0; k < 5; k++) {
        OK(rma_accumulate(s.win, ones, NULL, COUNT, 6, 0, 0, 0, &op));
        CHECK(op == NULL);
        OK(rma_accumulate(s.win, ones, old, COUNT, 6, 0, 0, 0, &op));
        if (op)
            OK(rma_op_wait(op));
        CHECK(old[0] % 1 == 0 && old[COUNT - 1] % COUNT == 0);
        sum += old[0];
        /* An RDMA read after the reply finds the update. No other rank updates this number, so nothing changes it
         * while it is read. */
        OK(rma_accumulate(s.win, ones, old, 1, 6, 0, 0, own, &op));
        if (op)
            OK(rma_op_wait(op));
        CHECK_EQ(old[0], k);
        int64_t now;
        get_all(w, s.win, &now, 8, 0, own);
        CHECK_EQ(now, k + 1);
    }
    OK(rma_flush(s.win, 0));
    CHECK(n == 1 || sum > 0);
    job_meet();
    if (rank == 0)
        for (int i = 0; i < COUNT; i++)
            CHECK_EQ(((int64_t *)(void *)s.memory)[i], (int64_t)(10 * n) * (i + 1));
    job_meet();
    /* Compare and swap: exactly one rank replaces the value. */
    int64_t expected = 10 * n, desired = 1000 + rank, before = 0;
    OK(rma_compare_and_swap(s.win, &desired, &expected, &before, 8, 0, 0, &op));
    if (op)
        OK(rma_op_wait(op));
    CHECK(before == expected || (before >= 1000 && before < 1000 + n));
    int won = before == expected;
    job_meet();
    OK(rma_accumulate(s.win, NULL, &before, 1, 6, RMA_NO_OP, 0, 0, &op));
    if (op)
        OK(rma_op_wait(op));
    CHECK_EQ(won, before == desired);
    free(ones);
    free(old);
    close_scene(w, &s);
}

/* An exclusive lock protects a read and a write that are not atomic. */
static void case_locks(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    for (int k = 0; k < 20; k++) {
        int64_t value;
        OK(rma_lock(s.win, n - 1, 1));
        get_all(w, s.win, &value, 8, n - 1, 0);
        value++;
        put_all(w, s.win, &value, 8, n - 1, 0);
        OK(rma_unlock(s.win, n - 1));
        OK(rma_lock(s.win, 0, 0)); /* shared ones do not exclude each other */
        OK(rma_unlock(s.win, 0));
    }
    OK(rma_lock(s.win, 0, 0));
    GIVES(rma_lock(s.win, 0, 0), MSG_ERR_STATE);
    OK(rma_unlock(s.win, 0));
    job_meet();
    if (rank == n - 1)
        CHECK_EQ(*(int64_t *)(void *)s.memory, (int64_t)20 * n);
    close_scene(w, &s);
}

/* Post, start, complete, wait: rank 0 lets all others write. */
static void case_posts(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    int others[8], zero = 0;
    for (int i = 1; i < n; i++)
        others[i - 1] = i;
    for (int64_t k = 1; k <= 10; k++) {
        if (rank == 0) {
            OK(rma_post(s.win, others, n - 1));
            OK(rma_await_complete(s.win, others, n - 1, 0));
            for (int i = 1; i < n; i++)
                CHECK_EQ(((int64_t *)(void *)s.memory)[i], k);
        } else {
            OK(rma_await_post(s.win, &zero, 1));
            put_all(w, s.win, &k, 8, 0, 8 * (uint64_t)rank);
            OK(rma_complete(s.win, &zero, 1));
        }
    }
    if (rank == 0)
        GIVES(rma_await_complete(s.win, others, n - 1, 1), n > 1 ? MSG_PENDING : MSG_SUCCESS);
    close_scene(w, &s);
}

/* Once the others' rma_complete has returned, rank 0 has counted their notices, without a call of its own. */
static void case_counted(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    int others[8], zero = 0;
    for (int i = 1; i < n; i++)
        others[i - 1] = i;
    for (int k = 0; k < 100; k++) {
        if (rank == 0)
            OK(rma_post(s.win, others, n - 1));
        else {
            OK(rma_await_post(s.win, &zero, 1));
            OK(rma_complete(s.win, &zero, 1));
        }
        job_meet();
        msg_lock(w);
        for (int i = 1; i < n && rank == 0; i++)
            CHECK_EQ(s.win->parts[i].completes, 1);
        msg_unlock(w);
        if (rank == 0)
            OK(rma_await_complete(s.win, others, n - 1, 1));
    }
    close_scene(w, &s);
}

/* Puts and flushes that never wait. The counter shows that each write was made once, and the target finds it after the
 * flush. Whatever these calls cannot do is left to those that wait. */
static void case_now(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    char data[2 * RMA_SHORT] = {0};
    int target = (rank + 1) % n, exposed = s.win->parts[target].card.exposed, done_now = 0, flushed_now = 0;
    for (int64_t k = 1; k <= 50; k++) {
        uint64_t before = w->counters[MSG_COUNTER_puts];
        int code = rma_put_now(s.win, &k, sizeof k, target, 8);
        CHECK(code == MSG_SUCCESS || code == MSG_PENDING);
        if (code == MSG_SUCCESS)
            CHECK_EQ(w->counters[MSG_COUNTER_puts] - before, 1);
        rma_op *op = NULL;
        if (code == MSG_PENDING) /* no room, or no RDMA */
            OK(rma_put(s.win, &k, sizeof k, target, 8, &op));
        CHECK(op == NULL);
        CHECK(exposed || code == MSG_PENDING);
        if (rma_flush_now(s.win, target) != MSG_SUCCESS)
            OK(rma_flush(s.win, target));
        done_now += code == MSG_SUCCESS;
        flushed_now += rma_flush_now(s.win, target) == MSG_SUCCESS; /* else its thread has the lock */
        job_meet();
        CHECK_EQ(((int64_t *)(void *)s.memory)[1], k);
        job_meet();
    }
    CHECK((done_now > 0) == (exposed != 0));
    CHECK(flushed_now > 0);
    GIVES(rma_put_now(s.win, data, 0, target, 0), MSG_PENDING);
    GIVES(rma_put_now(s.win, data, 8, n, 0), MSG_PENDING);
    GIVES(rma_put_now(s.win, data, 8, -1, 0), MSG_PENDING);
    GIVES(rma_put_now(s.win, data, 8, rank, 0), MSG_PENDING);
    GIVES(rma_put_now(s.win, data, 8, target, 57), MSG_PENDING);
    GIVES(rma_put_now(s.win, data, 8, target, UINT64_MAX - 3), MSG_PENDING);
    GIVES(rma_put_now(s.win, data, RMA_SHORT + 1, target, 0), MSG_PENDING);
    GIVES(rma_flush_now(s.win, n), MSG_PENDING);
    GIVES(rma_flush_now(s.win, -1), MSG_PENDING);
    CHECK_EQ(s.memory[0], 0);
    close_scene(w, &s);
}

/* A thread that flushes, while another begins operations. */
struct flush {
    rma_window *win;
    int target, code;
};

static void *flush_main(void *argument)
{
    struct flush *f = argument;
    f->code = rma_flush(f->win, f->target);
    return NULL;
}

static uint64_t active_sent(msg_world *w)
{
    msg_lock(w);
    uint64_t n = w->counters[MSG_COUNTER_active_sent];
    msg_unlock(w);
    return n;
}

/* A flush leaves to the next one what another thread has begun meanwhile. The target handles nothing while its lock is
 * held, so the first flush waits until the second update has left. */
static void case_threads(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    struct flush f = {s.win, n - 1, -1};
    struct rma_part *part = &s.win->parts[n - 1];
    pthread_t thread;
    int64_t one = 1;
    rma_op *op;
    if (rank == n - 1)
        msg_lock(w);
    job_meet();
    if (rank == 0) {
        OK(rma_accumulate(s.win, &one, NULL, 1, 6, 0, n - 1, 0, &op));
        uint64_t before = active_sent(w);
        CHECK_EQ(pthread_create(&thread, NULL, flush_main, &f), 0);
        while (active_sent(w) == before)
            sched_yield(); /* until the FLUSH has left */
        OK(rma_accumulate(s.win, &one, NULL, 1, 6, 0, n - 1, 0, &op));
    }
    job_meet();
    if (rank == n - 1)
        msg_unlock(w);
    if (rank == 0) {
        pthread_join(thread, NULL);
        OK(f.code);
        msg_lock(w);
        CHECK(part->touched && part->unflushed);
        msg_unlock(w);
        OK(rma_flush(s.win, n - 1));
        msg_lock(w);
        CHECK(!part->touched && !part->unflushed);
        msg_unlock(w);
    }
    job_meet();
    if (rank == n - 1)
        CHECK_EQ(*(int64_t *)(void *)s.memory, 2);
    close_scene(w, &s);
}

/* Wrong arguments change nothing. */
static void case_arguments(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    char data[64] = {1};
    rma_op *op;
    struct rma_card card;
    rma_window *other;
    GIVES(rma_put(s.win, data, 8, n, 0, &op), MSG_ERR_RANK);
    GIVES(rma_put(s.win, data, 8, -1, 0, &op), MSG_ERR_RANK);
    GIVES(rma_put(s.win, data, 8, 0, 57, &op), MSG_ERR_ARG);
    GIVES(rma_put(s.win, data, 8, 0, UINT64_MAX - 3, &op), MSG_ERR_ARG);
    GIVES(rma_get(s.win, data, 65, 0, 0, &op), MSG_ERR_ARG);
    GIVES(rma_accumulate(s.win, data, NULL, 1, 9, 7, 0, 0, &op), MSG_ERR_ARG); /* bits of doubles */
    GIVES(rma_compare_and_swap(s.win, data, data, data, 17, 0, 0, &op), MSG_ERR_ARG);
    GIVES(rma_window_open(s.r, 7, data, 8, 0, &card, &other), MSG_ERR_ARG);
    GIVES(rma_detach(s.win, data), MSG_ERR_ARG);
    job_meet();
    for (int i = 0; i < 64; i++)
        CHECK_EQ(s.memory[i], 0);
    close_scene(w, &s);
}

/* A channel without room. */
static int push_nothing(struct msg_peer *peer, struct msg_out *out)
{
    (void)peer;
    (void)out;
    return 0;
}

static int stop_waiting(void *context)
{
    (void)context;
    return 1;
}

static void use_channel(msg_world *w, struct msg_peer *peer, const struct msg_channel *channel)
{
    msg_lock(w);
    peer->channel = channel;
    msg_unlock(w);
}

/* Requests that were interrupted before they could be sent have no answer. Nothing waits for it, and the next flush
 * covers the same operations. */
static void case_interrupted(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    if (rank == 0) {
        struct msg_peer *peer = &w->peers[1];
        const struct msg_channel *real = peer->channel;
        struct msg_channel full = *real;
        int (*check)(void *) = w->interrupt;
        void *context = w->interrupt_context;
        int64_t one = 1, now = 0;
        int target = 1;
        rma_op *op;
        full.push = push_nothing;
        use_channel(w, peer, &full);
        OK(rma_accumulate(s.win, &one, NULL, 1, 6, 0, 1, 0, &op)); /* waits in the rank's queue */
        msg_set_interrupt(w, stop_waiting, NULL);
        GIVES(rma_flush(s.win, 1), MSG_INTERRUPTED);
        GIVES(rma_complete(s.win, &target, 1), MSG_INTERRUPTED);
        GIVES(rma_lock(s.win, 1, 1), MSG_INTERRUPTED);
        msg_set_interrupt(w, check, context);
        CHECK(s.win->ops == NULL && !rma_is_quiet(s.win, 1));
        use_channel(w, peer, real);
        OK(rma_flush(s.win, 1));
        CHECK(rma_is_quiet(s.win, 1));
        get_all(w, s.win, &now, 8, 1, 0);
        CHECK_EQ(now, 1);
    }
    close_scene(w, &s);
}

/* A thread that flushes while the FLUSH of another one waits for room in the channel. */
struct beside {
    struct flush flush;
    pthread_t first, second;
    int has_second, waits, quiet; /* waits: the second thread waits in its flush; quiet: after it */
};

/* Interrupts the first thread once the second one waits. */
static int stop_first(void *context)
{
    struct beside *b = context;
    if (!pthread_equal(pthread_self(), b->first) && vk_load_acquire(&b->has_second))
        vk_store_release(&b->waits, pthread_equal(pthread_self(), b->second) != 0);
    return pthread_equal(pthread_self(), b->first) && vk_load_acquire(&b->waits);
}

static void *second_main(void *argument)
{
    struct beside *b = argument;
    msg_world *w = b->flush.win->r->world;
    uint32_t unflushed = 1;
    b->second = pthread_self();
    vk_store_release(&b->has_second, 1);
    while (unflushed) { /* until the first thread sends its FLUSH */
        sched_yield();
        msg_lock(w);
        unflushed = b->flush.win->parts[b->flush.target].unflushed;
        msg_unlock(w);
    }
    flush_main(&b->flush);
    b->quiet = rma_is_quiet(b->flush.win, b->flush.target);
    return NULL;
}

/* A flush that relied on another thread's FLUSH sends its own if that one was interrupted before it was sent. */
static void case_beside(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    if (rank == 0) {
        struct beside b = {.flush = {s.win, 1, -1}, .first = pthread_self()};
        struct msg_peer *peer = &w->peers[1];
        const struct msg_channel *real = peer->channel;
        struct msg_channel full = *real;
        int (*check)(void *) = w->interrupt;
        void *context = w->interrupt_context;
        int64_t one = 1;
        pthread_t thread;
        rma_op *op;
        full.push = push_nothing;
        use_channel(w, peer, &full);
        OK(rma_accumulate(s.win, &one, NULL, 1, 6, 0, 1, 0, &op));
        msg_set_interrupt(w, stop_first, &b);
        CHECK_EQ(pthread_create(&thread, NULL, second_main, &b), 0);
        GIVES(rma_flush(s.win, 1), MSG_INTERRUPTED);
        msg_set_interrupt(w, check, context);
        use_channel(w, peer, real);
        pthread_join(thread, NULL);
        OK(b.flush.code);
        CHECK(b.quiet);
    }
    job_meet();
    if (rank == 1)
        CHECK_EQ(*(int64_t *)(void *)s.memory, 1);
    close_scene(w, &s);
}

/* The last rank dies with rank 0's lock. */
static void case_death(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    struct scene s = open_scene(w, rank, n, 64);
    if (rank == n - 1) {
        OK(rma_lock(s.win, 0, 1));
        job_meet();
        _exit(0);
    }
    job_meet();
    GIVES(rma_lock(s.win, 0, 1), MSG_ERR_PROC_FAILED); /* once */
    GIVES(rma_lock(s.win, n - 1, 1), MSG_ERR_PROC_FAILED);
    char data[8] = {0};
    rma_op *op;
    GIVES(rma_put(s.win, data, 8, n - 1, 0, &op), MSG_ERR_PROC_FAILED);
    OK(rma_lock(s.win, 0, 1)); /* released */
    OK(rma_unlock(s.win, 0));
    int posts[1] = {n - 1};
    GIVES(rma_await_post(s.win, posts, 1), MSG_ERR_PROC_FAILED);
    rma_window_close(s.win);
    rma_stop(s.r);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test_rma LINK\n");
        return 2;
    }
    static char link[16];
    int bip = strncmp(argv[1], "bip-", 4) == 0;
    snprintf(link, sizeof link, "%s", argv[1] + (bip ? 4 : 0));
    int wire = strcmp(link, "eth") == 0;
    job j = {.link = link, .bip = bip, .policy = "progress=thread", .threads = 1, .namespaces = {-1, -1}};
    int refused = wire ? netns_hosts(argv, j.namespaces) : 0;
    if (refused)
        return refused;
    j.hosts = wire ? 2 : 0;
    check_deadline(240);
    setenv("VIAKIT_MSG_CALIBRATION", "", 1); /* the machine's own thresholds do not matter here */
    static const struct {
        const char *name;
        job_main main;
    } cases[] = {{"data", case_data},       {"updates", case_updates},     {"locks", case_locks},
                 {"posts", case_posts},     {"counted", case_counted},     {"now", case_now},
                 {"threads", case_threads}, {"arguments", case_arguments}, {"interrupted", case_interrupted},
                 {"beside", case_beside}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (j.n_ranks = 2; j.n_ranks <= 3; j.n_ranks++)
            job_case(&j, cases[i].main, cases[i].name);
    if (strcmp(link, "loop") != 0) {
        j.may_die = 1 << 1;
        j.n_ranks = 2;
        job_case(&j, case_death, "death");
    }
    return 0;
}
