/*
 * msg_cases_life.c - cases of test_msg: arguments, modes, ranks that leave or die.
 *
 * If a step of a case must follow a step of another rank, job_meet() orders them. It uses sockets beside the channel,
 * so that the engine sends no message.
 */
#include <pthread.h>

#include "check.h"
#include "msg/channel.h"
#include "msg/engine.h"
#include "msg/via.h"
#include "msg_cases.h"
#include "space.h"
#include <string.h>

#include "base/pool.h"
#include "msg_calls.h"
#include "via/nic.h"

/* Synchronous, ready and buffered sends, each with what makes it one. */
void case_modes(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    int v = 5;
    enum { BIG = 100000 };
    char *big = calloc(1, BIG);
    msg_request *r;
    msg_status s;
    (void)n_ranks;
    if (rank == 0) {
        /* a synchronous send is not complete before its receive is there */
        for (int k = 0; k < 2; k++) {
            OK(msg_isend(w, 1, big, k ? BIG : 8, 1, 1, MSG_SYNCHRONOUS, &r));
            for (int i = 0; i < 200; i++)
                CHECK_EQ(msg_test(w, &r, &s), MSG_PENDING);
            job_meet();
            OK(msg_wait(w, &r, &s, MSG_FOREVER));
        }
        OK(msg_send(w, 1, &v, sizeof v, 1, 2, MSG_READY)); /* a receive is posted */
        job_meet();
        /* A ready send without a receive is an error of the program; the engine counts it and delivers. */
        OK(msg_send(w, 1, &v, sizeof v, 1, 3, MSG_READY)); /* none is: counted there */
        /* buffered: done at once, whatever the receiver does; without room an error, and nothing is sent */
        char room[3 * (1000 + MSG_BSEND_OVERHEAD)], data[1000];
        GIVES(msg_send(w, 1, data, sizeof data, 1, 4, MSG_BUFFERED), MSG_ERR_BUFFER);
        /* Only one buffer at a time; and what does not fit it is refused. */
        OK(msg_buffer_attach(w, room, sizeof room));
        GIVES(msg_buffer_attach(w, room, sizeof room), MSG_ERR_BUFFER);
        GIVES(msg_send(w, 1, data, sizeof room + 1, 1, 4, MSG_BUFFERED), MSG_ERR_BUFFER);
        for (int i = 0; i < 50; i++) {
            pattern_fill(data, sizeof data, (unsigned)i);
            int code;
            /* The buffer is full now and then: room comes back when what it held has left. */
            WAIT_UNTIL((code = msg_send(w, 1, data, sizeof data, 1, 4, MSG_BUFFERED)) == MSG_SUCCESS ||
                       (msg_progress(w) >= 0 && code != MSG_ERR_BUFFER));
            CHECK_EQ(code, MSG_SUCCESS);
        }
        void *back;
        size_t len;
        OK(msg_buffer_detach(w, &back, &len));
        CHECK(back == room && len == sizeof room);
        /* The engine's own memory never lacks room. */
        OK(msg_buffer_attach(w, NULL, MSG_BUFFER_AUTOMATIC));
        for (int i = 0; i < 50; i++) {
            pattern_fill(data, sizeof data, (unsigned)i);
            OK(msg_send(w, 1, data, sizeof data, 1, 5, MSG_BUFFERED));
        }
        OK(msg_buffer_detach(w, &back, &len));
        CHECK(back == NULL && len == MSG_BUFFER_AUTOMATIC);
        OK(msg_recv(w, 1, NULL, 0, 1, 9, NULL));
    } else {
        OK(msg_irecv(w, 1, &v, sizeof v, 0, 2, &r));
        for (int k = 0; k < 2; k++) {
            job_meet();
            OK(msg_recv(w, 1, big, BIG, 0, 1, &s));
        }
        job_meet();
        OK(msg_wait(w, &r, &s, MSG_FOREVER));
        OK(msg_probe(w, 1, 0, 3, &s, MSG_FOREVER));
        OK(msg_recv(w, 1, &v, sizeof v, 0, 3, &s));
        CHECK_EQ(job_counter(w, MSG_COUNTER_ready_missed), 1);
        for (int i = 0; i < 50; i++) {
            OK(msg_recv(w, 1, big, 1000, 0, 4, &s));
            CHECK(pattern_holds(big, 1000, (unsigned)i));
        }
        for (int i = 0; i < 50; i++) {
            OK(msg_recv(w, 1, big, 1000, 0, 5, &s));
            CHECK(pattern_holds(big, 1000, (unsigned)i));
        }
        OK(msg_send(w, 1, NULL, 0, 0, 9, MSG_STANDARD));
    }
    free(big);
}

/* Arguments that are wrong: a code for each, and nothing has begun. Then those that are odd but allowed: no partner, no
 * request to wait for. */
void case_arguments(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    msg_request *r = (msg_request *)world;
    msg_status s;
    int v = 0;
    GIVES(msg_send(w, 1, &v, 4, n_ranks, 1, MSG_STANDARD), MSG_ERR_RANK);
    GIVES(msg_send(w, 1, &v, 4, -1, 1, MSG_STANDARD), MSG_ERR_RANK);
    GIVES(msg_send(w, 1, &v, 4, MSG_ANY_SOURCE, 1, MSG_STANDARD), MSG_ERR_RANK);
    GIVES(msg_send(w, 1, &v, 4, 0, -1, MSG_STANDARD), MSG_ERR_TAG);
    GIVES(msg_send(w, -1, &v, 4, 0, 1, MSG_STANDARD), MSG_ERR_CONTEXT);
    GIVES(msg_send(w, MSG_MAX_CONTEXT + 1, &v, 4, 0, 1, MSG_STANDARD), MSG_ERR_CONTEXT);
    GIVES(msg_send(w, 1, NULL, 4, 0, 1, MSG_STANDARD), MSG_ERR_ARG);
    GIVES(msg_send(w, 1, &v, 4, 0, 1, (msg_mode)4), MSG_ERR_ARG);
    /* A result is set on success only. */
    GIVES(msg_isend(w, 1, &v, 4, 99, 1, MSG_STANDARD, &r), MSG_ERR_RANK);
    CHECK(r == (msg_request *)world);
    GIVES(msg_recv(w, 1, &v, 4, 99, 1, &s), MSG_ERR_RANK);
    GIVES(msg_recv(w, 1, &v, 4, 0, -7, &s), MSG_ERR_TAG);
    GIVES(msg_irecv(w, 1, NULL, 4, 0, 1, &r), MSG_ERR_ARG);
    CHECK(*msg_last_error(w));
    OK(msg_send(w, 1, &v, 4, MSG_PROC_NULL, 1, MSG_STANDARD));
    OK(msg_recv(w, 1, &v, 4, MSG_PROC_NULL, 1, &s));
    CHECK_EQ(s.source, MSG_PROC_NULL);
    CHECK_EQ(s.tag, MSG_ANY_TAG);
    CHECK_EQ(s.len, 0);
    r = NULL;
    OK(msg_wait(w, &r, &s, MSG_FOREVER));
    CHECK_EQ(s.source, MSG_ANY_SOURCE);
    OK(msg_irecv(w, 1, &v, 4, !rank, 5, &r));
    /* A handle that was used up is known as such, although its place may have been given to another. */
    msg_request *stale = r;
    GIVES(msg_wait(w, &r, &s, 5), MSG_TIMEOUT);
    CHECK(r != NULL);
    OK(msg_cancel(w, r));
    OK(msg_wait(w, &r, &s, MSG_FOREVER));
    GIVES(msg_wait(w, &stale, &s, MSG_FOREVER), MSG_ERR_REQUEST);
    GIVES(msg_cancel(w, stale), MSG_ERR_REQUEST);
    CHECK_EQ(msg_peer_status(w, !rank), MSG_PEER_CONNECTED);
    CHECK_EQ(msg_peer_status(w, 9), -MSG_ERR_RANK);
    CHECK(*msg_peer_route(w, !rank));
    CHECK_EQ(strcmp(msg_peer_route(w, rank), "self"), 0);
    for (int i = 0; i < MSG_N_COUNTERS; i++)
        CHECK(msg_counter_name(i));
    CHECK(msg_counter_name(MSG_N_COUNTERS) == NULL);
    CHECK(msg_error_name(12345) == NULL);
    job_meet(); /* neither leaves while the other still checks */
}

/* Many requests of all kinds under way in both directions, tested, not waited for. */
void case_requests(msg_world **world, int rank, int n_ranks)
{
    /* i * i * 9: from nothing to 36 KB, so that neighbours go different ways; every second one is synchronous. */
    msg_world *w = *world;
    enum { N = 64 };
    (void)n_ranks;
    enum { MOST = 40000 };
    char (*in)[MOST] = calloc(N, MOST), (*out)[MOST] = calloc(N, MOST);
    for (int round = 0; round < 20; round++) {
        msg_request *r[2 * N];
        for (int i = 0; i < N; i++)
            OK(msg_irecv(w, 1, in[i], sizeof in[i], !rank, i, &r[i]));
        for (int i = 0; i < N; i++) {
            size_t len = (size_t)(i * i * 9 + round);
            pattern_fill(out[i], len, (unsigned)(rank + i));
            OK(msg_isend(w, 1, out[i], len, !rank, i, (msg_mode)(i % 2), &r[N + i]));
        }
        int left = 2 * N;
        double end = check_now() + CHECK_WAIT_S;
        while (left && check_now() < end)
            for (int i = 0; i < 2 * N; i++) {
                msg_status s;
                if (r[i] && msg_test(w, &r[i], &s) == MSG_SUCCESS) {
                    left--;
                    CHECK_EQ(s.error, MSG_SUCCESS);
                    if (i < N)
                        CHECK(s.len == (size_t)(i * i * 9 + round) &&
                              pattern_holds(in[i], s.len, (unsigned)(!rank + i)));
                }
            }
        CHECK_EQ(left, 0);
    }
    free(in);
    free(out);
}

/* How many RDMA reads the rank's NICs have brought to their end, whether the engine has looked or not. */
static int reads_ended(msg_world *w)
{
    const struct vc_world *v = w->at;
    uint64_t n = 0;
    for (int i = 0; i < 2; i++) {
        VIP_UINT64 values[VIAKIT_N_COUNTERS] = {0};
        if (v->net.ports[i])
            CHECK_OK(viakit_nic_counters(v->net.ports[i]->nic, values));
        n += values[VIAKIT_COUNTER_rdma_reads_sent];
    }
    return (int)n;
}

/* Whether this rank's reads end without a call of the other one. On shm that takes process_vm_readv, which a container
 * may forbid. */
static int reads_alone(const msg_world *w)
{
    const struct vc_world *v = w->at;
    viakit_nic_info info;
    int refused = 0;
    for (int i = 0; i < 2; i++)
        if (v->net.ports[i]) {
            CHECK_OK(viakit_query_nic(v->net.ports[i]->nic, &info));
            refused |= info.cma == 0;
        }
    return !refused;
}

/* The last free buffer and the last credit go together, while reads have ended whose completions were not reaped:
 * reporting them needs credits, too. No packet may be sent for which the receiver, which reaps nothing, has no
 * buffer. */
void case_last_credit(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LONG = 4, LEN = 8 << 20, BUFFERS = 62, SHORT = 2 * BUFFERS };
    char *data = malloc((size_t)LONG * LEN), word = 0;
    msg_request *r[LONG + SHORT];
    (void)n_ranks;
    if (rank == 1) {
        for (int i = 0; i < LONG; i++) {
            pattern_fill(data + (size_t)i * LEN, LEN, (unsigned)i);
            OK(msg_isend(w, 1, data + (size_t)i * LEN, LEN, 0, i, MSG_STANDARD, &r[i]));
        }
        job_meet(); /* all are announced */
        job_meet(); /* the other has sent what it could */
        for (int i = 0; i < SHORT; i++)
            OK(msg_recv(w, 1, &word, 1, 0, LONG + i, NULL));
        OK(call_wait_all(w, LONG, r, NULL));
    } else {
        job_meet();
        for (int i = 0; i < LONG; i++)
            OK(msg_irecv(w, 1, data + (size_t)i * LEN, LEN, 1, i, &r[i]));
        OK(msg_progress(w) < 0); /* the reads begin, where the channel has any */
        int reads = (int)job_counter(w, MSG_COUNTER_rget);
        for (int i = 0; i < SHORT; i++) {
            if (i == BUFFERS && reads && reads_alone(w))
                /* Without a call of the engine's: only then are reads over that it has not looked at. */
                WAIT_UNTIL(reads_ended(w) == reads); /* each is one of the NIC's: a piece is longer */
            OK(msg_isend(w, 1, &word, 1, 1, LONG + i, MSG_STANDARD, &r[LONG + i]));
        }
        /* It polls, and would report each read as it reaps it. */
        WAIT_UNTIL((reads && !reads_alone(w)) || msg_progress(w) < 0 ||
                   job_counter(w, MSG_COUNTER_received) >= (uint64_t)reads);
        job_meet();
        OK(call_wait_all(w, LONG + SHORT, r, NULL));
        for (int i = 0; i < LONG; i++)
            CHECK(pattern_holds(data + (size_t)i * LEN, LEN, (unsigned)i));
    }
    free(data);
}

/* Rank 1 dies. Whatever waits for it ends, everything else goes on. */
void case_death(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    int v = 0, listed[4];
    msg_status s;
    msg_request *r[4];
    if (rank == 1) {
        OK(msg_recv(w, 1, &v, sizeof v, 0, 1, &s));
        kill(getpid(), SIGKILL);
    }
    /* All operations that can wait for rank 1: a receive from it, one from any rank, a long send, a synchronous one. */
    static char big[1 << 20];
    OK(msg_irecv(w, 1, &v, sizeof v, 1, 5, &r[0]));
    OK(msg_irecv(w, 1, &v, sizeof v, MSG_ANY_SOURCE, 6, &r[1]));
    OK(msg_isend(w, 1, big, sizeof big, 1, 7, MSG_STANDARD, &r[2]));
    OK(msg_isend(w, 1, &v, sizeof v, 1, 7, MSG_SYNCHRONOUS, &r[3]));
    if (rank == 0)
        OK(msg_send(w, 1, &v, sizeof v, 1, 1, MSG_STANDARD));
    for (int i = 0; i < 4; i++) {
        OK(msg_wait(w, &r[i], &s, CHECK_WAIT_S * 1000));
        CHECK_EQ(s.error, MSG_ERR_PROC_FAILED);
    }
    CHECK_EQ(msg_peer_status(w, 1), MSG_PEER_FAILED);
    /* Reported once, with the rank. */
    CHECK_EQ(msg_failures(w, listed, 4), 1);
    CHECK_EQ(listed[0], 1);
    GIVES(msg_send(w, 1, &v, sizeof v, 1, 1, MSG_STANDARD), MSG_ERR_PROC_FAILED);
    GIVES(msg_recv(w, 1, &v, sizeof v, 1, 1, &s), MSG_ERR_PROC_FAILED);
    GIVES(msg_recv(w, 1, &v, sizeof v, MSG_ANY_SOURCE, 1, &s), MSG_ERR_PROC_FAILED);
    GIVES(msg_probe(w, 1, 1, 1, &s, MSG_FOREVER), MSG_ERR_PROC_FAILED);
    /* Acknowledged: receives from any rank may go on without rank 1. */
    msg_failures_ack(w);
    int next = rank == 0 ? 2 : rank == 2 ? 3 : 0;
    for (int i = 0; i < 100; i++) {
        OK(msg_irecv(w, 1, &v, sizeof v, MSG_ANY_SOURCE, 8, &r[0]));
        OK(msg_send(w, 1, &i, sizeof i, next, 8, MSG_STANDARD));
        OK(msg_wait(w, &r[0], &s, MSG_FOREVER));
        CHECK_EQ(v, i);
    }
    CHECK_EQ(n_ranks, 4);
}

/* Rank 1 dies in the middle of long messages, in both directions. */
void case_death_long(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LEN = 8 << 20 };
    char *a = calloc(1, LEN), *b = calloc(1, LEN);
    msg_status s = {.error = 0};
    (void)n_ranks;
    /* Rank 0 sends to 1, 1 to 2, always 8 MiB; the sixth time rank 1 begins both and dies. */
    for (int i = 0; i < 1000; i++) {
        msg_request *r[2];
        if (rank == 1 && i == 5) {
            OK(msg_irecv(w, 1, b, LEN, 0, 1, &r[0]));
            OK(msg_isend(w, 1, a, LEN, 2, 1, MSG_STANDARD, &r[1]));
            for (int k = 0; k < 3; k++)
                msg_progress(w);
            kill(getpid(), SIGKILL);
        }
        int partner_in = rank == 0 ? 1 : rank == 1 ? 0 : 1, partner_out = rank == 0 ? 1 : rank == 1 ? 2 : 1;
        if (rank == 2) {
            OK(msg_irecv(w, 1, b, LEN, partner_in, 1, &r[0]));
            OK(msg_wait(w, &r[0], &s, CHECK_WAIT_S * 1000));
        } else if (rank == 0) {
            OK(msg_isend(w, 1, a, LEN, partner_out, 1, MSG_STANDARD, &r[0]));
            OK(msg_wait(w, &r[0], &s, CHECK_WAIT_S * 1000));
        } else {
            OK(msg_recv(w, 1, b, LEN, 0, 1, &s));
            OK(msg_send(w, 1, a, LEN, 2, 1, MSG_STANDARD));
        }
        if (s.error)
            break;
    }
    /* Sooner or later both its neighbours are notified. */
    CHECK_EQ(s.error, MSG_ERR_PROC_FAILED);
    free(a);
    free(b);
}

/* A rank that closes its world is not one that died; what it sent before is still there. */
void case_leave(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    int v = rank;
    msg_status s;
    (void)n_ranks;
    if (rank == 1) {
        OK(msg_send(w, 1, &v, sizeof v, 0, 1, MSG_STANDARD));
        return; /* the others are waited for in msg_world_close */
    }
    if (rank == 0) {
        /* The wait for a message that will not come ends; the one that came stays to be received. */
        GIVES(msg_recv(w, 1, &v, sizeof v, 1, 2, &s), MSG_ERR_LEFT);
        CHECK_EQ(msg_peer_status(w, 1), MSG_PEER_LEFT);
        OK(msg_recv(w, 1, &v, sizeof v, 1, 1, &s));
        CHECK_EQ(v, 1);
        GIVES(msg_send(w, 1, &v, sizeof v, 1, 2, MSG_STANDARD), MSG_ERR_LEFT);
        CHECK_EQ(msg_failures(w, NULL, 0), 0);
        OK(msg_send(w, 1, &v, sizeof v, 2, 2, MSG_STANDARD));
    } else
        OK(msg_recv(w, 1, &v, sizeof v, MSG_ANY_SOURCE, 2, &s));
}

/* Lets a wait go on twice. */
static int stop_now(void *context)
{
    return ++*(int *)context > 2;
}

/* The awaited message arrives while the interrupt callback runs. */
struct late {
    int come, asked;
};

static int come_and_stop(void *context)
{
    return ((struct late *)context)->come = 1;
}

static int has_come(void *argument)
{
    struct late *l = argument;
    l->asked += l->come;
    return l->come;
}

void case_interrupt(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    int calls = 0, v = 0;
    msg_request *r;
    msg_status s;
    (void)n_ranks;
    enum { BIG = 1 << 20 };
    char *big = malloc(BIG);
    if (rank == 0) {
        msg_set_interrupt(w, stop_now, &calls);
        GIVES(msg_recv(w, 1, &v, sizeof v, 1, 1, &s), MSG_INTERRUPTED);
        calls = 0;
        OK(msg_irecv(w, 1, &v, sizeof v, 1, 1, &r));
        GIVES(msg_wait(w, &r, &s, MSG_FOREVER), MSG_INTERRUPTED);
        CHECK(r != NULL);
        calls = 0;
        /* An interrupted send may have been withdrawn or not: its buffer is the program's again, and the receiver has
         * what was in it. */
        pattern_fill(big, BIG, 7);
        GIVES(msg_send(w, 1, big, BIG, 1, 2, MSG_STANDARD), MSG_INTERRUPTED);
        memset(big, 0, BIG); /* ours again */
        /* a condition that was true is not evaluated again: one with an effect would have it twice */
        struct late late = {0, 0};
        msg_set_interrupt(w, come_and_stop, &late);
        msg_lock(w);
        OK(msg_wait_until(w, has_come, &late, MSG_FOREVER));
        msg_unlock(w);
        CHECK_EQ(late.asked, 1);
        msg_set_interrupt(w, NULL, NULL);
        job_meet();
        OK(msg_wait(w, &r, &s, MSG_FOREVER));
        OK(msg_recv(w, 1, &v, sizeof v, 1, 3, &s));
    } else {
        job_meet();
        OK(msg_send(w, 1, &v, sizeof v, 0, 1, MSG_STANDARD));
        OK(msg_recv(w, 1, big, BIG, 0, 2, &s));
        CHECK(pattern_holds(big, BIG, 7));
        OK(msg_send(w, 1, &v, sizeof v, 0, 3, MSG_STANDARD));
    }
    free(big);
}

/* A place in the pool may have 2^32 lives, and its id is never 0, which names no request. */
void case_ids(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    msg_request *r;
    (void)rank;
    (void)n_ranks;
    /* The place's last life but one, then its last: the next generation would make an id of 0. */
    for (int life = 0; life < 2; life++) {
        OK(msg_irecv(w, 1, NULL, 0, 0, 1, &r));
        CHECK_EQ((uint32_t)r->id, 0); /* the first place */
        CHECK(r->id != 0);
        r->id |= UINT64_C(0xffffffff) << 32;
        OK(msg_cancel(w, r));
        OK(msg_wait(w, &r, NULL, MSG_FOREVER));
    }
}

/* NICs of this process that are open, and of those, the ones whose threads are to leave the cores to others. */
struct nics {
    int open, seldom;
};

static struct nics count_nics(void)
{
    struct nics found = {0, 0};
    for (uint32_t i = 0; i < via_nic_pool.n_touched; i++) {
        const struct via_nic *nic = (const void *)(via_nic_pool.base + i * via_nic_pool.stride);
        if (nic->object.generation == 0 || nic->object.generation & VK_DEAD)
            continue;
        found.open++;
        found.seldom += nic->options.takeover_us == 5000;
    }
    return found;
}

/* Ranks outnumber their cores only if all their cores together are too few, because a launcher may have bound each rank
 * to its own. In that case the threads of their NICs poll rarely. */
void case_bound(msg_world **world, int rank, int n_ranks)
{
    char error[MSG_ERROR_LEN];
    cpu_set_t all, one;
    int first = -1, second = -1;
    (void)world;
    CHECK_EQ(n_ranks, 2);
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &all)) {
            if (first < 0)
                first = i;
            else if (second < 0)
                second = i;
        }
    /* First each rank is bound to a processor of its own, then both to one. */
    for (int together = 0; together < 2; together++) {
        msg_world *w = NULL;
        struct nics before = count_nics(), after;
        CPU_ZERO(&one);
        CPU_SET(rank && !together && second >= 0 ? second : first, &one);
        CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
        if (job_open(NULL, &w, error))
            FAIL("%s", error);
        CHECK_EQ(w->crowded, together || second < 0); /* also on two emulated hosts, which have their cores in common */
        after = count_nics();
        CHECK(after.open > before.open || w->channel->nic == NULL);
        CHECK_EQ(after.seldom - before.seldom, w->crowded ? after.open - before.open : 0);
        OK(msg_world_close(w, CHECK_WAIT_S * 1000));
        job_meet(); /* the next world is opened when both have closed this one */
    }
    CHECK_EQ(sched_setaffinity(0, sizeof all, &all), 0);
}

/* Ranks of one host map each other's memory. A rank without address space for it reports that to all, before any rank
 * waits for a connection. If all are limited alike, they map less, and connect. */
void case_address_space(msg_world **world, int rank, int n_ranks)
{
    char error[MSG_ERROR_LEN] = "";
    msg_world *w = *world, *other = NULL;
    if (strcmp(case_link, "shm") != 0)
        return; /* the ranks are on two hosts */
    /* One of them cannot map the others' memory. */
    if (rank == 1)
        limit_address_space(400u << 20);
    GIVES(job_open(NULL, &other, error), MSG_ERR_CHANNEL);
    limit_address_space(0);
    CHECK(other == NULL);
    if (strstr(error, "address space") == NULL || strstr(error, "ulimit -v") == NULL ||
        (rank != 1 && strncmp(error, "rank 1 ", 7) != 0))
        FAIL("rank %d of %d was told: %s", rank, n_ranks, error);
    /* Then all are limited, less tightly: they make do. */
    job_meet();
    limit_address_space(2u << 30);
    if (job_open(NULL, &other, error))
        FAIL("%s", error);
    limit_address_space(0);
    int got = -1, next = (rank + 1) % n_ranks, before = (rank + n_ranks - 1) % n_ranks;
    msg_request *send = NULL;
    OK(msg_isend(other, 1, &rank, sizeof rank, next, 0, MSG_STANDARD, &send));
    OK(msg_recv(other, 1, &got, sizeof got, before, 0, NULL));
    OK(msg_wait(other, &send, NULL, MSG_FOREVER));
    CHECK_EQ(got, before);
    OK(msg_world_close(other, CHECK_WAIT_S * 1000));
}
