/*
 * msg_cases_load.c - cases of test_msg: one-sided writes, the registration cache, many ranks, long messages, threads.
 */
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "msg/engine.h"
#include "msg_calls.h"
#include "msg_cases.h"

/* Writes of which the target is notified, and whose data is there by then. The target polls and sleeps in turns. Then
 * more writes at once than it has receives, so that they wait for credits. */
static void put_with_notices(msg_world *w, const void *cells, int next, int last, const msg_exposed *remote)
{
    const uint64_t *written = cells;
    for (uint64_t k = 1; k <= 150; k++) {
        OK(msg_put_notified(w, &k, sizeof k, next, remote, 8));
        if (k > 30)
            continue;
        WAIT_UNTIL((k % 2 ? (void)msg_progress(w) : msg_sleep(w, 5 * VK_MS), msg_notices(w, last) >= k));
        CHECK(__atomic_load_n(&written[1], __ATOMIC_ACQUIRE) >= k);
    }
    WAIT_UNTIL((msg_progress(w), msg_notices(w, last) == 150));
    CHECK_EQ(written[1], 150);
    CHECK_EQ(job_counter(w, MSG_COUNTER_notices), 150);
    CHECK_EQ(msg_notices(w, next), 0); /* of three ranks, the next one writes to the last */
    GIVES(msg_put_notified(w, cells, 0, next, remote, 8), MSG_ERR_ARG);
    GIVES(msg_put_notified(w, cells, MSG_PUT_SHORT + 1, next, remote, 8), MSG_ERR_ARG);
}

/* A write completes whose target leaves as soon as it has the data. The writer finds the acknowledgement and the
 * target's last packet at the same time. */
void case_put_leave(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LEN = 8000 };
    _Alignas(uint64_t) char memory[LEN], data[LEN];
    const uint64_t *last = (const uint64_t *)(const void *)(memory + LEN - sizeof *last);
    uint64_t expected;
    msg_exposed target;
    msg_request *r;
    msg_status s;
    (void)n_ranks;
    pattern_fill(data, LEN, 5);
    if (rank == 1) {
        memset(memory, 0, LEN);
        OK(msg_expose(w, memory, LEN, &target));
        OK(msg_send(w, 1, &target, sizeof target, 0, 1, MSG_STANDARD));
        /* The word that is stored last. The NIC's thread may be writing the others. */
        memcpy(&expected, data + LEN - sizeof expected, sizeof expected);
        WAIT_UNTIL((msg_progress(w), __atomic_load_n(last, __ATOMIC_ACQUIRE) == expected));
        CHECK(memcmp(memory, data, LEN) == 0);
        OK(msg_hide(w, &target));
        return;
    }
    OK(msg_recv(w, 1, &target, sizeof target, 1, 1, NULL));
    OK(msg_put(w, data, LEN, 1, &target, 0, &r));
    CHECK(usleep(200000) == 0); /* without a call, so that the other rank leaves meanwhile */
    OK(msg_wait(w, &r, &s, MSG_FOREVER));
    CHECK_EQ(s.error, MSG_SUCCESS);
}

/* One-sided writes into the memory of a rank that makes no calls. */
void case_put(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LEN = 200000 };
    void *memory;
    msg_exposed local, remote[3];
    msg_request *r;
    OK(msg_alloc(w, LEN, &memory));
    memset(memory, 0, LEN);
    unsigned char *cells = memory;
    OK(msg_expose(w, memory, LEN, &local));
    for (int i = 0; i < n_ranks; i++) {
        OK(msg_send(w, 1, &local, sizeof local, i, 1, MSG_STANDARD));
        OK(msg_recv(w, 1, &remote[i], sizeof local, i, 1, NULL));
    }
    int next = (rank + 1) % n_ranks;
    unsigned char one = 1;
    char *data = malloc(LEN);
    /* Single bytes. The target observes each of them without a call. */
    for (int k = 1; k <= 100; k++) {
        one = (unsigned char)k;
        OK(msg_put(w, &one, 1, next, &remote[next], (uint64_t)rank, NULL));
        WAIT_UNTIL(__atomic_load_n(&cells[(rank + n_ranks - 1) % n_ranks], __ATOMIC_ACQUIRE) >=
                   k); /* no call of this rank */
    }
    job_meet();
    put_with_notices(w, cells, next, (rank + n_ranks - 1) % n_ranks, &remote[next]);
    job_meet();
    pattern_fill(data, LEN - 64, (unsigned)rank);
    OK(msg_put(w, data, LEN - 64, next, &remote[next], 64, &r));
    OK(msg_wait(w, &r, NULL, MSG_FOREVER));
    OK(msg_send(w, 1, NULL, 0, next, 2, MSG_STANDARD)); /* arrives after what was written */
    OK(msg_recv(w, 1, NULL, 0, (rank + n_ranks - 1) % n_ranks, 2, NULL));
    CHECK(pattern_holds((char *)memory + 64, LEN - 64, (unsigned)((rank + n_ranks - 1) % n_ranks)));
    OK(msg_put(w, &one, 1, rank, &local, 3, NULL));
    CHECK_EQ(cells[3], one);
    /* Beyond what was exposed; and, without a request, longer than MSG_PUT_SHORT. */
    GIVES(msg_put(w, &one, 1, next, &remote[next], LEN, NULL), MSG_ERR_ARG);
    GIVES(msg_put(w, data, 1000, next, &remote[next], 0, NULL), MSG_ERR_ARG);
    job_meet();
    OK(msg_hide(w, &local));
    GIVES(msg_hide(w, &local), MSG_ERR_ARG);
    OK(msg_free(w, memory));
    GIVES(msg_free(w, memory), MSG_ERR_ARG);
    free(data);
}

/* The registration cache, here of 4 entries, is used and stays within its bound. The first 20 rounds use one buffer,
 * which must be found in the cache. The other rounds use eight buffers in turns, so that some are evicted. */
void case_cache(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LEN = 100000 };
    char *bufs[8];
    (void)n_ranks;
    for (int i = 0; i < 8; i++)
        bufs[i] = malloc(LEN);
    for (int round = 0; round < 40; round++) {
        char *buf = bufs[round < 20 ? 0 : round % 8];
        if (rank == 0) {
            pattern_fill(buf, LEN, (unsigned)round);
            OK(msg_send(w, 1, buf, LEN, 1, round, MSG_STANDARD));
        } else {
            OK(msg_recv(w, 1, buf, LEN, 0, round, NULL));
            CHECK(pattern_holds(buf, LEN, (unsigned)round));
        }
        /* One more than the bound, for the buffer that is in use when another comes. */
        CHECK(job_counter(w, MSG_COUNTER_cache_bytes_now) <= 5 * LEN);
    }
    CHECK(job_counter(w, MSG_COUNTER_cache_hits) >= 19);
    CHECK(job_counter(w, MSG_COUNTER_cache_evictions) > 0);
    for (int i = 0; i < 8; i++) {
        msg_forget(w, bufs[i], LEN);
        free(bufs[i]);
    }
    CHECK_EQ(job_counter(w, MSG_COUNTER_cache_bytes_now), 0);
}

/* Each rank exchanges messages with all ranks at once, in all lengths. */
void case_storm(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    static const size_t lens[] = {0, 8, 500, 7000, 30000, 200000};
    enum { MOST = 200000 };
    char *in = malloc((size_t)n_ranks * MOST), *out = malloc((size_t)n_ranks * MOST);
    /* 16 requests for 8 ranks; each sends another length to each. */
    for (int round = 0; round < 6; round++) {
        msg_request *r[64];
        for (int i = 0; i < n_ranks; i++)
            OK(msg_irecv(w, 1, in + (size_t)i * MOST, MOST, i, round, &r[i]));
        for (int i = 0; i < n_ranks; i++) {
            size_t len = lens[(round + i + rank) % 6];
            pattern_fill(out + (size_t)i * MOST, len, (unsigned)(rank * 64 + i));
            OK(msg_isend(w, 1, out + (size_t)i * MOST, len, i, round, MSG_STANDARD, &r[n_ranks + i]));
        }
        OK(call_wait_all(w, 2 * n_ranks, r, NULL));
        for (int i = 0; i < n_ranks; i++)
            CHECK(pattern_holds(in + (size_t)i * MOST, lens[(round + i + rank) % 6], (unsigned)(i * 64 + rank)));
    }
    free(in);
    free(out);
}

/* More ranks than cores: they start, perform dissemination barriers, and close. */
void case_many(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    for (int round = 0; round < 10; round++)
        /* A dissemination barrier: after step k each rank knows of 2k ranks. */
        for (int step = 1; step < n_ranks; step *= 2) {
            int v = -1;
            OK(call_sendrecv(w, 1, &round, sizeof round, (rank + step) % n_ranks, step, &v, sizeof v,
                             (rank + n_ranks - step) % n_ranks, step, NULL));
            CHECK_EQ(v, round);
        }
}

/* Ranks that may have few descriptors in flight between processes (test_msg.c): each sends its own to all others. */
void case_few_files(msg_world **world, int rank, int n_ranks)
{
    case_many(world, rank, n_ranks);
}

/* A message longer than MaxTransferSize, in pieces. The long form: 1 GiB. */
void case_giant(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    size_t len = getenv("VIAKIT_LONG_TESTS") ? (size_t)1 << 30 : ((size_t)64 << 20) + 4097;
    char *buf = malloc(len);
    msg_status s;
    (void)n_ranks;
    CHECK(buf != NULL);
    if (rank == 0) {
        pattern_fill(buf, len, 1);
        OK(msg_send(w, 1, buf, len, 1, 1, MSG_STANDARD));
    } else {
        OK(msg_recv(w, 1, buf, len, 0, 1, &s));
        CHECK_EQ(s.len, len);
        CHECK(pattern_holds(buf, len, 1));
    }
    free(buf);
}

/* Ranks that are configured as two hosts use two NICs. */
void case_hosts_ring(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    /* The next rank is on the other host, the one after it on this one: two routes. */
    if (strcmp(case_link, "shm") == 0)
        CHECK(strcmp(msg_peer_route(w, (rank + 1) % n_ranks), msg_peer_route(w, (rank + 2) % n_ranks)) != 0);
    case_ring(world, rank, n_ranks);
}

struct player {
    msg_world *w;
    int rank, number;
};

static void *play(void *argument)
{
    struct player *p = argument;
    msg_world *w = p->w;
    /* Each message is sent back, so that both directions of a thread depend on each other. */
    static const size_t lens[] = {8, 30000};
    char *buf = malloc(30000);
    for (int i = 0; i < 200; i++) {
        size_t len = lens[i % 10 == 9];
        msg_status s;
        if (p->rank == 0) {
            pattern_fill(buf, len, (unsigned)(i + p->number));
            OK(msg_send(w, 1, buf, len, 1, p->number, MSG_STANDARD));
        }
        OK(msg_recv(w, 1, buf, 30000, !p->rank, p->number, &s));
        CHECK_EQ(s.len, len);
        CHECK(pattern_holds(buf, len, (unsigned)(i + p->number)));
        if (p->rank == 1)
            OK(msg_send(w, 1, buf, len, 0, p->number, MSG_STANDARD));
    }
    free(buf);
    return NULL;
}

/* Three threads of each rank, each with separate messages to its counterpart. */
void case_threads(msg_world **world, int rank, int n_ranks)
{
    struct player players[3];
    pthread_t threads[3];
    (void)n_ranks;
    for (int i = 0; i < 3; i++) {
        players[i] = (struct player){*world, rank, i};
        CHECK_EQ(pthread_create(&threads[i], NULL, play, &players[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
}

/* A long message is transferred while both programs only read memory. */
void case_thread_progress(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LEN = 3 << 20 };
    char *buf = malloc(LEN);
    msg_request *r;
    case_threads(world, rank, n_ranks);
    pattern_fill(buf, LEN, 1);
    if (rank == 1)
        memset(buf, 0, LEN);
    OK(rank == 0 ? msg_isend(w, 1, buf, LEN, 1, 1, MSG_STANDARD, &r) : msg_irecv(w, 1, buf, LEN, 0, 1, &r));
    /* msg_request_peek looks at memory only: the progress is the thread's. */
    WAIT_UNTIL(msg_request_peek(w, r, NULL));
    OK(msg_wait(w, &r, NULL, MSG_FOREVER));
    CHECK(pattern_holds(buf, LEN, 1));
    free(buf);
}

/* The same where the thread serves only a program that makes no calls: it must detect that the calls have ended. */
void case_signal_progress(msg_world **world, int rank, int n_ranks)
{
    case_thread_progress(world, rank, n_ranks);
}
