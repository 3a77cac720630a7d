/*
 * msg_cases_match.c - cases of test_msg: matching: order, wildcards, probes, cancelling, and large numbers of
 * everything.
 *
 * MPI's rules: messages of one sender and context are matched in the order of sending. Among matching receives, the
 * first posted wins, and among matching messages, the first to arrive. The engine finds them by hashing, so the cases
 * with 100 000 of them also count the steps that a match took.
 */
#include <sys/resource.h>

#include "check.h"
#include "msg/channel.h"
#include "msg_calls.h"
#include "msg_cases.h"

/* Two senders, many messages of all ways; each sender's arrive in order although receives are posted late and early. */
void case_order(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { N = 300 };
    static const size_t lens[] = {4, 9000, 4, 40000, 200, 4};
    char *buf = calloc(N, 40000);
    if (rank > 0) {
        msg_request *r[N];
        for (int i = 0; i < N; i++) {
            memcpy(buf + (size_t)i * 40000, &i, sizeof i);
            /* Even numbers have tag 0, odd ones tag 1; lengths go through all ways. */
            OK(msg_isend(w, 1, buf + (size_t)i * 40000, lens[(unsigned)(i * 7 + rank) % 6], 0, i % 2, MSG_STANDARD,
                         &r[i]));
        }
        OK(call_wait_all(w, N, r, NULL));
    } else {
        int expected[2][3] = {{0}};
        for (int i = 0; i < N; i++)
            for (int src = 1; src < n_ranks; src++) {
                msg_status s;
                int got, tag = i / 10 % 2 && expected[1][src] < N / 2 ? 1 : 0; /* one tag runs ahead of the other */
                if (expected[tag][src] == N / 2)
                    tag = !tag;
                OK(msg_recv(w, 1, buf, 40000, src, tag, &s));
                memcpy(&got, buf, sizeof got);
                CHECK_EQ(got, 2 * expected[tag][src] + tag);
                CHECK_EQ(s.len, lens[(unsigned)(got * 7 + src) % 6]);
                expected[tag][src]++;
            }
    }
    free(buf);
}

/* Among the receives that match a message, the first posted gets it. A receive gets the first matching message that
 * arrived. */
void case_wildcards(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    static const int wanted[6][2] = {
        {MSG_ANY_SOURCE, MSG_ANY_TAG}, {1, 5}, {MSG_ANY_SOURCE, 5}, {1, MSG_ANY_TAG}, {1, 5},
        {MSG_ANY_SOURCE, MSG_ANY_TAG}};
    if (rank == 0) {
        msg_request *r[6];
        int got[6] = {0};
        msg_status s[6];
        for (int i = 0; i < 6; i++)
            OK(msg_irecv(w, 1, &got[i], sizeof(int), wanted[i][0], wanted[i][1], &r[i]));
        job_meet();
        OK(call_wait_all(w, 6, r, s));
        for (int i = 0; i < 6; i++) {
            CHECK_EQ(got[i], i); /* rank 1 sent six with tag 5 */
            CHECK_EQ(s[i].source, 1);
            CHECK_EQ(s[i].tag, 5);
        }
        /* now unexpected: one of each other rank, taken in order of arrival by ANY_SOURCE, by name otherwise */
        job_meet();
        job_meet();
        int v;
        msg_status t;
        OK(msg_recv(w, 1, &v, sizeof v, 2, MSG_ANY_TAG, &t));
        CHECK_EQ(t.tag, 12);
        OK(msg_recv(w, 1, &v, sizeof v, MSG_ANY_SOURCE, 13, &t));
        CHECK_EQ(t.source, 3);
        OK(msg_recv(w, 1, &v, sizeof v, MSG_ANY_SOURCE, MSG_ANY_TAG, &t));
        CHECK_EQ(t.source, 1);
        CHECK_EQ(t.tag, 11);
        for (int i = 1; i < n_ranks; i++) { /* messages of one rank keep their order under every wildcard */
            OK(msg_recv(w, 2, &v, sizeof v, i, MSG_ANY_TAG, &t));
            CHECK_EQ(v, 0);
            OK(msg_recv(w, 2, &v, sizeof v, i, 1, &t));
            CHECK_EQ(v, 1);
        }
    } else {
        job_meet();
        for (int i = 0; i < 6 && rank == 1; i++)
            OK(msg_send(w, 1, &i, sizeof i, 0, 5, MSG_STANDARD));
        job_meet();
        OK(msg_send(w, 1, &rank, sizeof rank, 0, 10 + rank, MSG_STANDARD));
        for (int i = 0; i < 2; i++)
            OK(msg_send(w, 2, &i, sizeof i, 0, i, MSG_STANDARD));
        job_meet();
    }
}

/* The receive is too small for the message: what fits is placed, not a byte behind it is touched, and the error is the
 * receive's alone. With room for a third, and for nothing. */
void case_truncation(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    static const size_t lens[] = {100, 5000, 100000, 3000000};
    char *buf = malloc(3000000);
    (void)n_ranks;
    for (int i = 0; i < 4; i++)
        for (int early = 0; early < 2; early++)
            for (int room = 0; room < 2; room++) {
                size_t fits = room ? lens[i] / 3 : 0;
                msg_status s;
                if (rank == 0) {
                    pattern_fill(buf, lens[i], 1);
                    if (!early)
                        job_meet();
                    OK(msg_send(w, 1, buf, lens[i], 1, 2, MSG_STANDARD));
                    /* Short ones are there before the receive; long ones have only been announced. */
                    if (early && lens[i] <= 6000)
                        job_meet();
                } else {
                    msg_request *r;
                    memset(buf, 1, lens[i]);
                    if (early && lens[i] <= 6000)
                        job_meet();
                    OK(msg_irecv(w, 1, buf, fits, 0, 2, &r));
                    if (!early)
                        job_meet();
                    OK(msg_wait(w, &r, &s, MSG_FOREVER));
                    CHECK_EQ(s.error, MSG_ERR_TRUNCATE);
                    CHECK_EQ(s.len, fits);
                    CHECK(pattern_holds(buf, fits, 1));
                    for (size_t k = fits; k < lens[i]; k++)
                        CHECK(buf[k] == 1);
                }
            }
    free(buf);
}

/* A probe looks without taking; a matched probe takes the message out of the queue, so that no other receive can get
 * it. */
void case_probes(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    char *buf = malloc(100000);
    (void)n_ranks;
    if (rank == 0) {
        pattern_fill(buf, 100000, 3);
        OK(msg_send(w, 1, buf, 10, 1, 1, MSG_STANDARD));
        msg_request *r;
        OK(msg_isend(w, 1, buf, 100000, 1, 2, MSG_STANDARD, &r));
        OK(msg_send(w, 1, buf, 20, 1, 1, MSG_STANDARD));
        OK(msg_wait(w, &r, NULL, MSG_FOREVER));
        job_meet();
    } else {
        msg_status s;
        msg_message *m = NULL, *long_one = NULL;
        int flag = 7, dummy;
        /* Nothing of that tag ever comes. */
        OK(msg_iprobe(w, 1, 0, 77, &flag, &s));
        CHECK_EQ(flag, 0);
        OK(msg_probe(w, 1, MSG_ANY_SOURCE, 1, &s, MSG_FOREVER));
        CHECK_EQ(s.len, 10);
        CHECK_EQ(s.source, 0);
        OK(msg_probe(w, 1, 0, MSG_ANY_TAG, &s, MSG_FOREVER));
        CHECK_EQ(s.tag, 1);
        OK(msg_mprobe(w, 1, 0, MSG_ANY_TAG, &m, &s, MSG_FOREVER));
        CHECK_EQ(s.len, 10);
        /* The long one is taken before the short ones that came before and after it. */
        OK(msg_mprobe(w, 1, 0, 2, &long_one, &s, MSG_FOREVER));
        CHECK_EQ(s.len, 100000);
        WAIT_UNTIL(msg_iprobe(w, 1, 0, 1, &flag, &s) == MSG_SUCCESS && flag);
        CHECK_EQ(s.len, 20); /* the first of tag 1 is out of the queue */
        OK(call_mrecv(w, &long_one, buf, 100000, &s));
        CHECK(long_one == NULL);
        CHECK(pattern_holds(buf, 100000, 3));
        OK(msg_recv(w, 1, buf, 100, 0, 1, &s));
        CHECK_EQ(s.len, 20);
        /* The message that was taken first is received last. */
        msg_request *r;
        OK(msg_imrecv(w, &m, buf, 100, &r));
        OK(msg_wait(w, &r, &s, MSG_FOREVER));
        CHECK_EQ(s.len, 10);
        GIVES(msg_mprobe(w, 1, 0, 1, &m, &s, 0), MSG_TIMEOUT);
        GIVES(msg_mprobe(w, 1, 0, 1, &m, &s, 20), MSG_TIMEOUT);
        OK(msg_mprobe(w, 1, MSG_PROC_NULL, 1, &m, &s, MSG_FOREVER));
        OK(call_mrecv(w, &m, &dummy, sizeof dummy, &s));
        CHECK_EQ(s.source, MSG_PROC_NULL);
        /* A message handle is used up by receiving. */
        GIVES(call_mrecv(w, &m, &dummy, sizeof dummy, &s), MSG_ERR_ARG);
        job_meet();
    }
    free(buf);
}

/* Messages that are never received are discarded with their contexts: short, long, synchronous and to itself. Their
 * senders are not delayed. */
void case_retire(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LONG = 1 << 20, N = 5 };
    static const size_t lens[N] = {4, 300, LONG, 4, LONG};
    static const int contexts[N] = {10, 11, 12, 14, 9};
    char *data = calloc(1, LONG), *into = calloc(1, LONG);
    msg_request *r[N], *posted[3];
    msg_status s;
    int done = 0;
    /* From all ranks to rank 0, itself included. Messages in contexts 10 to 14 are discarded (short, long and
     * synchronous). Context 9 stays. */
    for (int i = 0; i < N; i++)
        OK(msg_isend(w, contexts[i], data, lens[i], 0, 16 + i, i == 3 ? MSG_SYNCHRONOUS : MSG_STANDARD, &r[i]));
    OK(msg_send(w, 1, &rank, sizeof rank, 0, 0, MSG_STANDARD));
    if (rank == 0) {
        for (int src = 0; src < n_ranks; src++) /* what was sent before is here, too */
            OK(msg_recv(w, 1, &done, sizeof done, src, 0, NULL));
        /* Receives in the contexts that are given up (10 to 14), and one in another (15). */
        OK(msg_irecv(w, 13, into, LONG, MSG_ANY_SOURCE, MSG_ANY_TAG, &posted[0]));
        OK(msg_irecv(w, 10, into, LONG, 1, 5, &posted[1]));
        OK(msg_irecv(w, 15, into, LONG, 1, 5, &posted[2]));
        /* Context 12 holds tag 18 of every rank: under the mask ~1 a tag of 18 or 19 fits, 20 does not. */
        CHECK_EQ(msg_discard(w, 12, ~1, 20), 0);
        CHECK_EQ(msg_discard(w, 12, ~1, 18), n_ranks);
        CHECK_EQ(msg_discard(w, 11, 0, 0), n_ranks);
        msg_retire(w, 10, 5);
        /* Two of the three receives ended with their contexts. */
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(msg_request_peek(w, posted[i], NULL), i < 2);
            OK(msg_cancel(w, posted[i]));
            OK(msg_wait(w, &posted[i], &s, MSG_FOREVER));
            CHECK_EQ(s.cancelled, 1);
        }
        for (int src = 0; src < n_ranks; src++) { /* another context's are where they were */
            OK(msg_recv(w, 9, into, LONG, src, 20, &s));
            CHECK_EQ(s.len, LONG);
        }
        CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_now), 0);
        CHECK_EQ(job_counter(w, MSG_COUNTER_posted_now), 0);
    }
    OK(call_wait_all(w, N, r, NULL));
    CHECK_EQ(job_counter(w, MSG_COUNTER_requests_now), 0);
    job_meet();
    free(data);
    free(into);
}

/* A cancelled receive takes nothing, and the next one gets its message. Cancelling is too late for a message that has
 * arrived. A freed request still receives. */
void case_cancel(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    (void)n_ranks;
    int a = 1, b = 2;
    msg_status s;
    if (rank == 1) {
        msg_request *first, *second, *any;
        OK(msg_irecv(w, 1, &a, sizeof a, 0, 1, &first));
        OK(msg_irecv(w, 1, &b, sizeof b, 0, 1, &second));
        OK(msg_irecv(w, 1, &b, sizeof b, MSG_ANY_SOURCE, MSG_ANY_TAG, &any));
        OK(msg_cancel(w, first));
        OK(msg_cancel(w, any));
        OK(msg_wait(w, &first, &s, MSG_FOREVER));
        CHECK_EQ(s.cancelled, 1);
        OK(msg_wait(w, &any, &s, MSG_FOREVER));
        CHECK_EQ(s.cancelled, 1);
        job_meet();
        OK(msg_wait(w, &second, &s, MSG_FOREVER));
        CHECK_EQ(s.cancelled, 0);
        CHECK_EQ(b, 42);
        CHECK_EQ(a, 1);
        OK(msg_irecv(w, 1, &a, sizeof a, 0, 2, &first)); /* the message is there: too late */
        WAIT_UNTIL(msg_request_peek(w, first, &s) || msg_progress(w) < 0);
        OK(msg_cancel(w, first));
        OK(msg_wait(w, &first, &s, MSG_FOREVER));
        CHECK_EQ(s.cancelled, 0);
        CHECK_EQ(a, 42);
        OK(msg_irecv(w, 1, &a, sizeof a, 0, 3, &first));
        OK(msg_request_free(w, &first));
        CHECK(first == NULL);
        OK(msg_send(w, 1, NULL, 0, 0, 9, MSG_STANDARD));
        OK(msg_recv(w, 1, NULL, 0, 0, 4, NULL));
        CHECK_EQ(a, 43);
    } else {
        job_meet();
        a = 42;
        OK(msg_send(w, 1, &a, sizeof a, 1, 1, MSG_STANDARD));
        OK(msg_send(w, 1, &a, sizeof a, 1, 2, MSG_STANDARD));
        OK(msg_recv(w, 1, NULL, 0, 1, 9, NULL));
        a = 43;
        OK(msg_send(w, 1, &a, sizeof a, 1, 3, MSG_STANDARD));
        OK(msg_send(w, 1, NULL, 0, 1, 4, MSG_STANDARD));
    }
    CHECK_EQ(job_counter(w, MSG_COUNTER_requests_now), 0);
    CHECK_EQ(job_counter(w, MSG_COUNTER_posted_now), 0);
}

/* 2000 messages in 1000 contexts, received from the last to the first: each context has its own two. */
void case_contexts(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    (void)n_ranks;
    for (int i = 0; i < 2000 && rank == 0; i++)
        OK(msg_send(w, i % 1000 * 65, &i, sizeof i, 1, 1, MSG_STANDARD));
    for (int i = 1999; i >= 0 && rank == 1; i--) {
        int v, context = i % 1000 * 65;
        OK(msg_recv(w, context, &v, sizeof v, MSG_ANY_SOURCE, MSG_ANY_TAG, NULL));
        CHECK_EQ(v, i >= 1000 ? i - 1000 : i + 1000);
    }
}

/* Bytes of memory that the process holds now. */
static size_t resident(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%*d %ld", &pages) == 1);
    fclose(f);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* 100 000 unexpected messages: a match costs the same at any depth, and memory stays within an envelope each. */
void case_unexpected(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { N = 100000 / CHECK_SLOWER };
    (void)n_ranks;
    if (rank == 0) {
        for (int i = 0; i < N; i++)
            OK(msg_send(w, 1, &i, sizeof i, 1, i % 1000, MSG_STANDARD));
        OK(msg_send(w, 2, NULL, 0, 1, 0, MSG_STANDARD));
        OK(msg_recv(w, 2, NULL, 0, 1, 0, NULL));
        return;
    }
    size_t before = resident();
    OK(msg_recv(w, 2, NULL, 0, 0, 0, NULL));
    CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_now), N);
    /* An envelope, its bucket and four bytes of data each; 16 MiB for what the engine has anyway. */
    if (CHECK_SLOWER == 1) /* sanitizers keep shadows */
        CHECK(resident() - before < (size_t)N * 320 + (16 << 20));
    uint64_t steps = job_counter(w, MSG_COUNTER_match_steps);
    int v, order[4] = {0, 0, 0, 0};
    msg_status s;
    for (int i = 0; i < N; i++) {
        int tag = (int)((unsigned)i * 7919u % 1000); /* from anywhere in the queue */
        OK(msg_recv(w, 1, &v, sizeof v, i % 2 ? MSG_ANY_SOURCE : 0, tag, &s));
        CHECK_EQ(v % 1000, tag);
        if (tag < 4) {
            CHECK_EQ(v / 1000, order[tag]); /* the oldest of its tag */
            order[tag]++;
        }
    }
    /* Eight steps per match at most, however many wait: a list would take thousands. */
    CHECK(job_counter(w, MSG_COUNTER_match_steps) - steps < (uint64_t)N * 8);
    CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_now), 0);
    OK(msg_send(w, 2, NULL, 0, 0, 0, MSG_STANDARD));
}

/* 100 000 receives posted, all different, matched from the last to the first. */
void case_posted(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { N = 100000 / CHECK_SLOWER };
    (void)n_ranks;
    if (rank == 0) {
        OK(msg_recv(w, 2, NULL, 0, 1, 0, NULL));
        for (int i = N - 1; i >= 0; i--)
            OK(msg_send(w, 1, &i, sizeof i, 1, i, MSG_STANDARD));
        return;
    }
    msg_request **r = calloc(N, sizeof *r);
    int *values = calloc(N, sizeof *values);
    for (int i = 0; i < N; i++)
        OK(msg_irecv(w, 1, &values[i], sizeof(int), i % 3 ? 0 : MSG_ANY_SOURCE, i, &r[i]));
    uint64_t steps = job_counter(w, MSG_COUNTER_match_steps);
    OK(msg_send(w, 2, NULL, 0, 0, 0, MSG_STANDARD));
    OK(call_wait_all(w, N, r, NULL));
    for (int i = 0; i < N; i++)
        CHECK_EQ(values[i], i);
    /* Wildcards are looked for besides, hence a few steps more. */
    CHECK(job_counter(w, MSG_COUNTER_match_steps) - steps < (uint64_t)N * 12);
    CHECK_EQ(job_counter(w, MSG_COUNTER_requests_now), 0);
    free(r);
    free(values);
}

/* Data beyond the bound stays with its senders. More than it is what is under way until they know: credits' worth,
 * on tcp what the sockets' buffers hold and what leaves before the sender looks for word from the receiver, which it
 * does when it waits. */
void case_throttle(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { N = 4000 / CHECK_SLOWER, LEN = 4000 };
    char *buf = calloc(N, LEN);
    if (rank > 0) {
        msg_request **r = calloc(N, sizeof *r);
        for (int i = 0; i < N; i++) {
            pattern_fill(buf + (size_t)i * LEN, LEN, (unsigned)(rank * N + i));
            OK(msg_isend(w, 1, buf + (size_t)i * LEN, LEN, 0, i, MSG_STANDARD, &r[i]));
        }
        OK(call_wait_all(w, N, r, NULL));
        free(r);
    } else {
        /* All messages are there, most of them as envelopes only. */
        WAIT_UNTIL(msg_progress(w) >= 0 && job_counter(w, MSG_COUNTER_unexpected_now) == 2 * N);
        uint64_t most = job_counter(w, MSG_COUNTER_unexpected_bytes_most);
        CHECK(most > 1 << 20);
        CHECK(most < (1 << 20) + (w->channel->nic ? 2 << 20 : 5 << 20)); /* without NICs: the socket buffers */
        CHECK(job_counter(w, MSG_COUNTER_throttled) > 0);
        for (int i = N - 1; i >= 0; i--)
            for (int src = 1; src < n_ranks; src++) {
                OK(msg_recv(w, 1, buf, LEN, src, i, NULL));
                CHECK(pattern_holds(buf, LEN, (unsigned)(src * N + i)));
            }
        CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_bytes_now), 0);
    }
    free(buf);
}

/* 10 000 requests on each side, short and long, waited for in several ways. */
void case_outstanding(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { N = 10000 };
    (void)n_ranks;
    static const size_t lens[] = {8, 100, 3000, 20000};
    msg_request **r = calloc(N, sizeof *r);
    msg_status *s = calloc(N, sizeof *s);
    char *buf = malloc((size_t)N / 4 * (8 + 100 + 3000 + 20000)), *at = buf;
    for (int i = 0; i < N; at += lens[i % 4], i++) {
        if (rank == 0)
            pattern_fill(at, lens[i % 4], (unsigned)i);
        OK(rank == 0 ? msg_isend(w, 1, at, lens[i % 4], 1, i % 10, MSG_STANDARD, &r[i])
                     : msg_irecv(w, 1, at, lens[i % 4], 0, i % 10, &r[i]));
    }
    /* Before the first is waited for, all exist. */
    CHECK(job_counter(w, MSG_COUNTER_requests_now) >= N);
    /* Half of them in any order, as they complete, and the rest in the order of their places. */
    for (int i = 0, n = 0; n < N / 2; i = (i + 1) % N) {
        int code = r[i] ? msg_test(w, &r[i], &s[i]) : MSG_PENDING;
        CHECK(code == MSG_SUCCESS || code == MSG_PENDING);
        n += code == MSG_SUCCESS;
    }
    OK(call_wait_all(w, N, r, s));
    at = buf;
    for (int i = 0; i < N && rank == 1; at += lens[i % 4], i++)
        CHECK(pattern_holds(at, lens[i % 4], (unsigned)i));
    WAIT_UNTIL(msg_progress(w) >= 0 && job_counter(w, MSG_COUNTER_requests_now) == 0);
    free(r);
    free(s);
    free(buf);
}
