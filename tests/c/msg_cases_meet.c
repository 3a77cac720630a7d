/*
 * msg_cases_meet.c - cases of test_msg about ranks that connect when they first meet (channel via). In a job of 12,
 * a rank connects at the start to those at distance 1, 2, 4 and 8 on the circle of ranks. Distance 3 has not met.
 */
#include "msg_cases.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "msg/engine.h"
#include "msg_calls.h"

#define NEIGHBOURS 6 /* of 12 ranks: 1 2 4 8 10 11 ranks further */

static int from(int rank, int distance, int n)
{
    return (rank + distance + n) % n;
}

static int connections(msg_world *w)
{
    return (int)job_counter(w, MSG_COUNTER_connections);
}

/* Exactly n. A message may arrive before this rank's end of its connection is complete, so progress is needed. */
static void check_connections(msg_world *w, int n)
{
    while (connections(w) < n) /* check_deadline ends it */
        msg_progress(w);
    CHECK_EQ(connections(w), n);
}

/* A connection for each neighbour and for each rank that was used, and none for a receive from any source. */
void case_meet_counts(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    int in = -1, out = rank;
    msg_request *any = NULL;
    CHECK_EQ(connections(w), NEIGHBOURS);
    OK(msg_irecv(w, 1, &in, sizeof in, MSG_ANY_SOURCE, 9, &any));
    OK(msg_cancel(w, any));
    OK(msg_wait(w, &any, NULL, MSG_FOREVER));
    for (int k = 0; k < 3; k++) {
        OK(call_sendrecv(w, 1, &out, sizeof out, from(rank, 1, n), k, &in, sizeof in, from(rank, -1, n), k, NULL));
        CHECK_EQ(in, from(rank, -1, n));
    }
    job_meet();
    CHECK_EQ(connections(w), NEIGHBOURS);
    for (int k = 0; k < 3; k++) {
        OK(call_sendrecv(w, 1, &out, sizeof out, from(rank, 3, n), k, &in, sizeof in, from(rank, -3, n), k, NULL));
        CHECK_EQ(in, from(rank, -3, n));
    }
    job_meet();
    check_connections(w, NEIGHBOURS + 2);
}

/* By policy all ranks connect at the start. */
void case_meet_all(msg_world **world, int rank, int n)
{
    (void)rank;
    CHECK_EQ(connections(*world), n - 1);
    CHECK_EQ(job_counter(*world, MSG_COUNTER_sent), 0);
}

/* Every pair begins at once, in both directions, with messages of every protocol. Their order is kept. */
void case_meet_crossed(msg_world **world, int rank, int n)
{
    enum { N = 12, EACH = 5 };
    msg_world *w = *world;
    static const size_t len[EACH] = {8, 3000, 200000, 0, 40000};
    msg_request *r[2 * N * EACH];
    char *out = malloc(200000), *in = calloc(N * EACH, 200000);
    int k = 0;
    CHECK(n == N && out && in);
    pattern_fill(out, 200000, 7);
    for (int m = 0; m < EACH; m++)
        for (int i = 0; i < n; i++)
            if (i != rank)
                OK(msg_isend(w, 1, out, len[m], i, 3, MSG_STANDARD, &r[k++]));
    for (int m = 0; m < EACH; m++)
        for (int i = 0; i < n; i++)
            if (i != rank) /* one tag: only their order distinguishes them */
                OK(msg_irecv(w, 1, in + (size_t)(i * EACH + m) * 200000, 200000, i, 3, &r[k++]));
    msg_status s[2 * N * EACH];
    OK(call_wait_all(w, k, r, s));
    for (int m = 0, at = k / 2; m < EACH; m++)
        for (int i = 0; i < n; i++)
            if (i != rank) {
                CHECK_EQ(s[at].len, len[m]);
                CHECK(memcmp(in + (size_t)(i * EACH + m) * 200000, out, s[at++].len) == 0);
            }
    check_connections(w, n - 1);
    free(out);
    free(in);
}

/* The first use is a message to a receive from any source, then a probe, then a synchronous send. */
void case_meet_any(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    int in = -1;
    msg_status s;
    (void)n;
    if (rank == 0) {
        OK(msg_recv(w, 1, &in, sizeof in, MSG_ANY_SOURCE, 33, &s));
        CHECK(s.source == 3 && s.tag == 33 && in == 3);
        OK(msg_probe(w, 1, 5, 55, &s, MSG_FOREVER));
        OK(msg_recv(w, 1, &in, sizeof in, 5, 55, &s));
        OK(msg_send(w, 1, &in, sizeof in, 7, 77, MSG_SYNCHRONOUS));
        check_connections(w, NEIGHBOURS + 3);
    } else if (rank == 3)
        OK(msg_send(w, 1, &rank, sizeof rank, 0, 33, MSG_STANDARD));
    else if (rank == 5)
        OK(msg_send(w, 1, &rank, sizeof rank, 0, 55, MSG_STANDARD));
    else if (rank == 7)
        OK(msg_recv(w, 1, &in, sizeof in, MSG_ANY_SOURCE, 77, &s));
}

/* The first use is a one-sided write, short and long. The address comes by way of a neighbour of both. */
void case_meet_put(msg_world **world, int rank, int n)
{
    enum { LEN = 300000 };
    msg_world *w = *world;
    void *memory;
    char *data = malloc(LEN);
    msg_exposed own, passing, target;
    msg_request *r = NULL;
    int flag = 0;
    OK(msg_alloc(w, LEN + 8, &memory));
    memset(memory, 0, LEN + 8);
    OK(msg_expose(w, memory, LEN + 8, &own));
    OK(call_sendrecv(w, 1, &own, sizeof own, from(rank, 1, n), 1, &passing, sizeof passing, from(rank, -1, n), 1,
                     NULL));
    OK(call_sendrecv(w, 1, &passing, sizeof passing, from(rank, 2, n), 2, &target, sizeof target, from(rank, -2, n), 2,
                     NULL));
    CHECK_EQ(connections(w), NEIGHBOURS);
    job_meet();
    pattern_fill(data, LEN, (unsigned)from(rank, -3, n));
    OK(msg_put(w, data, LEN, from(rank, -3, n), &target, 0, &r));
    OK(msg_put(w, "written", 8, from(rank, -3, n), &target, LEN, NULL));
    OK(msg_send(w, 1, &flag, sizeof flag, from(rank, -3, n), 3, MSG_STANDARD));
    OK(msg_wait(w, &r, NULL, MSG_FOREVER));
    OK(msg_recv(w, 1, &flag, sizeof flag, from(rank, 3, n), 3, NULL));
    CHECK(pattern_holds(memory, LEN, (unsigned)rank));
    CHECK_EQ(memcmp((char *)memory + LEN, "written", 8), 0);
    check_connections(w, NEIGHBOURS + 2);
    job_meet();
    OK(msg_hide(w, &own));
    OK(msg_free(w, memory));
    free(data);
}

struct caller {
    msg_world *w;
    int rank, n, which;
};

static void *call_from_thread(void *argument)
{
    const struct caller *c = argument;
    msg_world *w = c->w;
    for (int k = 0; k < 3; k++) { /* the ranks that have not met, each thread with all of them */
        int distance = 5 + k, in = -1, out = c->rank * 8 + c->which, partner = from(c->rank, -distance, c->n);
        OK(call_sendrecv(w, 1, &out, sizeof out, from(c->rank, distance, c->n), 100 * distance + c->which, &in,
                         sizeof in, partner, 100 * distance + c->which, NULL));
        CHECK_EQ(in, partner * 8 + c->which);
    }
    return NULL;
}

void case_threads_meet(msg_world **world, int rank, int n)
{
    enum { N = 4 };
    pthread_t threads[N];
    struct caller callers[N];
    for (int i = 0; i < N; i++) {
        callers[i] = (struct caller){*world, rank, n, i};
        CHECK_EQ(pthread_create(&threads[i], NULL, call_from_thread, &callers[i]), 0);
    }
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    check_connections(*world, NEIGHBOURS + 3); /* distances 5, 6, 7 */
}

/* Rank 1 dies. Ranks that have never met it find out, whatever they wait for, and end. */
void case_death_unmet(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    int data = 0, failed[1] = {-1};
    msg_status s;
    job_meet();
    if (rank == 1)
        _exit(0);
    switch (from(rank, -1, n)) {
    case 3:
        GIVES(msg_recv(w, 1, &data, sizeof data, 1, 1, &s), MSG_ERR_PROC_FAILED);
        break;
    case 5:
        GIVES(msg_send(w, 1, &data, sizeof data, 1, 1, MSG_SYNCHRONOUS), MSG_ERR_PROC_FAILED);
        break;
    case 6:
        GIVES(msg_probe(w, 1, 1, 1, &s, MSG_FOREVER), MSG_ERR_PROC_FAILED);
        break;
    default:
        GIVES(msg_recv(w, 1, &data, sizeof data, MSG_ANY_SOURCE, 1, &s), MSG_ERR_PROC_FAILED);
    }
    CHECK_EQ(msg_failures(w, failed, 1), 1);
    CHECK_EQ(failed[0], 1);
    msg_failures_ack(w);
    /* The others go on, also those that have not met. */
    int to = from(rank, 3, n) == 1 ? 4 : from(rank, 3, n), back = from(rank, -3, n) == 1 ? 10 : from(rank, -3, n);
    OK(call_sendrecv(w, 1, &rank, sizeof rank, to, 2, &data, sizeof data, back, 2, NULL));
    CHECK_EQ(data, back);
}

/* Rank 5 closes its world. A rank that has never met it finds out from a receive, and from a send. */
void case_leave_unmet(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    int data = 0;
    msg_status s;
    (void)n;
    job_meet();
    if (rank == 0) {
        GIVES(msg_recv(w, 1, &data, sizeof data, 5, 1, &s), MSG_ERR_LEFT);
        GIVES(msg_send(w, 1, &data, sizeof data, 5, 1, MSG_SYNCHRONOUS), MSG_ERR_LEFT);
    } else if (rank == 10)
        GIVES(msg_send(w, 1, &data, sizeof data, 5, 1, MSG_SYNCHRONOUS), MSG_ERR_LEFT);
}

/* Rank 5 does not wait for the others when it closes, and has gone before they look for it. Those that it has met send
 * nothing to it: a send that fails before BYE is read counts as a failure. */
void case_leave_early(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    int data = 0, all[12];
    msg_status s;
    (void)n;
    if (rank == 5) {
        GIVES(msg_world_close(w, 0), MSG_TIMEOUT);
        *world = NULL;
        job_meet();
        return;
    }
    job_meet();
    if (rank % 2 || w->peers[5].met)
        GIVES(msg_recv(w, 1, &data, sizeof data, 5, 1, &s), MSG_ERR_LEFT);
    else
        GIVES(msg_send(w, 1, &data, sizeof data, 5, 1, MSG_SYNCHRONOUS), MSG_ERR_LEFT);
    CHECK_EQ(msg_failures(w, all, 12), 0);
}
