/*
 * msg_cases_basic.c - cases of test_msg: messages as they should be: every size, mode and way, order, wildcards.
 *
 * All channels must behave alike, so no case queries the channel. Where a policy requires a protocol, counters show
 * which one carried the messages.
 */
#include "msg_cases.h"

#include "check.h"
#include "msg/engine.h"
#include "msg_calls.h"

/* A rank with itself: unexpected and expected, standard and synchronous. */
void case_alone(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    char a[100], b[100];
    msg_status s;
    msg_request *r;
    CHECK_EQ(rank, 0);
    CHECK_EQ(n_ranks, 1);
    pattern_fill(a, sizeof a, 1);
    OK(msg_send(w, 3, a, sizeof a, 0, 5, MSG_STANDARD));
    OK(msg_recv(w, 3, b, sizeof b, MSG_ANY_SOURCE, MSG_ANY_TAG, &s));
    CHECK_EQ(s.source, 0);
    CHECK_EQ(s.tag, 5);
    CHECK_EQ(s.len, sizeof a);
    CHECK(pattern_holds(b, sizeof b, 1));
    OK(msg_irecv(w, 3, b, sizeof b, 0, 6, &r));
    CHECK_EQ(msg_test(w, &r, &s), MSG_PENDING);
    OK(msg_send(w, 3, a, 10, 0, 6, MSG_SYNCHRONOUS));
    OK(msg_wait(w, &r, &s, MSG_FOREVER));
    CHECK(r == NULL);
    CHECK_EQ(s.len, 10);
}

/* Around the limits of the engine and of what lies below: inline data and slots, pages, eager limits, packets, cache
 * registration; up to 4 MiB. */
static const size_t sizes[] = {0,     1,     7,     8,      16,     17,      56,      57,     63,   64,
                               65,    255,   1016,  1023,   1024,   4096,    8191,    8192,   8193, 16383,
                               16384, 16385, 65536, 100001, 262144, 1048576, 1048577, 4194304};
#define N_SIZES (sizeof sizes / sizeof *sizes)

/* One message from rank 0 to rank 1, which replies after its check. early: it arrives before its receive is posted, and
 * an empty message behind it proves that. */
static void send_and_receive(msg_world *w, int rank, char *buf, size_t len, int mode, int early)
{
    unsigned seed = (unsigned)(len + (size_t)mode);
    msg_status s;
    if (rank == 0) {
        pattern_fill(buf + 64, len, seed);
        if (early) {
            msg_request *r;
            OK(msg_isend(w, 1, buf + 64, len, 1, mode, (msg_mode)mode, &r));
            OK(msg_send(w, 1, NULL, 0, 1, 99, MSG_STANDARD)); /* overtaken by nothing: when this is there, so is that */
            OK(msg_wait(w, &r, &s, MSG_FOREVER));
            CHECK_EQ(s.error, MSG_SUCCESS);
        } else
            OK(msg_send(w, 1, buf + 64, len, 1, mode, (msg_mode)mode));
        OK(msg_recv(w, 1, NULL, 0, 1, 7, NULL));
    } else {
        memset(buf, 0x5A, len + 128);
        if (early)
            OK(msg_recv(w, 1, NULL, 0, 0, 99, NULL));
        OK(msg_recv(w, 1, buf + 64, len, 0, mode, &s));
        CHECK_EQ(s.len, len);
        CHECK_EQ(s.source, 0);
        CHECK_EQ(s.tag, mode);
        CHECK(pattern_holds(buf + 64, len, seed));
        for (int i = 0; i < 64; i++)
            CHECK(buf[i] == 0x5A && buf[64 + len + (size_t)i] == 0x5A);
        OK(msg_send(w, 1, NULL, 0, 0, 7, MSG_STANDARD));
    }
}

/* Every size, in each mode, expected and unexpected. Synchronous ones use memory that others can map, the rest ordinary
 * memory. */
void case_sizes(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    size_t most = sizes[N_SIZES - 1];
    char *buf = malloc(most + 128), *attached = malloc(most + MSG_BSEND_OVERHEAD);
    void *mapped = NULL;
    (void)n_ranks;
    CHECK(buf && attached);
    OK(msg_buffer_attach(w, attached, most + MSG_BSEND_OVERHEAD));
    OK(msg_alloc(w, most + 128, &mapped));
    for (size_t i = 0; i < N_SIZES; i++)
        for (int early = 0; early < 2; early++)
            for (int mode = 0; mode <= MSG_READY; mode++)
                send_and_receive(w, rank, mode == MSG_SYNCHRONOUS ? mapped : buf, sizes[i], mode, early);
    void *back;
    size_t len;
    OK(msg_buffer_detach(w, &back, &len));
    CHECK(back == attached && len == most + MSG_BSEND_OVERHEAD);
    /* Nothing is left in the engine when everything has been received. */
    CHECK_EQ(job_counter(w, MSG_COUNTER_requests_now), 0);
    CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_now), 0);
    CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_bytes_now), 0);
    CHECK_EQ(job_counter(w, MSG_COUNTER_posted_now), 0);
    if (rank == 0)
        CHECK(job_counter(w, MSG_COUNTER_rendezvous_sent) > 0);
    OK(msg_free(w, mapped));
    free(buf);
    free(attached);
}

/* The receiver reads: no write. */
void case_sizes_rget(msg_world **world, int rank, int n_ranks)
{
    case_sizes(world, rank, n_ranks);
    if (rank == 1)
        CHECK(job_counter(*world, MSG_COUNTER_rget) > 0);
    CHECK_EQ(job_counter(*world, MSG_COUNTER_rput), 0);
}

/* Through the eager ring, in pieces: neither read nor write. */
void case_sizes_r3(msg_world **world, int rank, int n_ranks)
{
    case_sizes(world, rank, n_ranks);
    CHECK_EQ(job_counter(*world, MSG_COUNTER_rget), 0);
    CHECK_EQ(job_counter(*world, MSG_COUNTER_rput), 0);
}

/* BIP has no RDMA read: it writes instead, and messages too short for that go in segments. */
void case_sizes_bip(msg_world **world, int rank, int n_ranks)
{
    case_sizes(world, rank, n_ranks);
    CHECK(rank != 0 || job_counter(*world, MSG_COUNTER_rput) > 0);
    CHECK_EQ(job_counter(*world, MSG_COUNTER_rget), 0);
}

/* Each to the next: short, in a few packets, by rendezvous. All at once, so no rank may wait for its own receive. */
void case_ring(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    int next = (rank + 1) % n_ranks, previous = (rank + n_ranks - 1) % n_ranks;
    static const size_t lens[] = {8, 20000, 300000};
    for (size_t k = 0; k < 3; k++)
        for (int round = 0; round < 20; round++) {
            char *a = malloc(lens[k]), *b = malloc(lens[k]);
            msg_status s;
            pattern_fill(a, lens[k], (unsigned)(rank * 100 + round));
            OK(call_sendrecv(w, 2, a, lens[k], next, round, b, lens[k], previous, round, &s));
            CHECK_EQ(s.source, previous);
            CHECK_EQ(s.len, lens[k]);
            CHECK(pattern_holds(b, lens[k], (unsigned)(previous * 100 + round)));
            free(a);
            free(b);
        }
}

/* A request whose message has not been sent stays active, until msg_wait ends it. A complete one ends at once. */
static void wait_soon(msg_world *w)
{
    int v = 0;
    msg_request *r = NULL;
    msg_status s;
    GIVES(msg_wait_soon(w, &r, &s), MSG_PENDING);
    OK(msg_irecv(w, 1, &v, sizeof v, 1, 5, &r));
    GIVES(msg_wait_soon(w, &r, &s), MSG_PENDING);
    CHECK(r != NULL);
    job_meet();
    while (!msg_request_peek(w, r, NULL))
        msg_progress(w);
    OK(msg_wait_soon(w, &r, &s));
    CHECK(v == 5 && s.tag == 5 && s.source == 1 && r == NULL);
}

/* Calls that do not wait: a message that is there is received at once, with its error. Otherwise the receive is under
 * way, and msg_recv_rest ends it. Nothing begins while another thread has the lock. */
void case_soon(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    int v = 0;
    msg_request *r;
    msg_status s;
    (void)n_ranks;
    if (rank == 0) {
        GIVES(msg_recv_soon(w, 1, &v, sizeof v, 99, 1, &s, &r), MSG_ERR_RANK);
        CHECK(r == NULL);
        GIVES(msg_recv_soon(w, 1, &v, sizeof v, 1, 1, &s, &r), MSG_PENDING);
        CHECK(r != NULL);
        job_meet();
        OK(msg_recv_rest(w, 1, &v, sizeof v, 1, 1, &s, r));
        CHECK(v == 1 && s.len == sizeof v && s.tag == 1);
        OK(msg_probe(w, 1, 1, 2, &s, MSG_FOREVER));
        OK(msg_recv_soon(w, 1, &v, sizeof v, 1, 2, &s, &r));
        CHECK(v == 2 && s.source == 1 && r == NULL);
        OK(msg_probe(w, 1, 1, 3, &s, MSG_FOREVER));
        GIVES(msg_recv_soon(w, 1, &v, 1, 1, 3, &s, &r), MSG_ERR_TRUNCATE);
        OK(msg_recv_rest(w, 1, &v, sizeof v, 1, 4, &s, NULL));
        CHECK_EQ(v, 4);
        wait_soon(w);
    } else {
        GIVES(msg_send_now(w, 1, &v, sizeof v, 99, 1), MSG_PENDING); /* msg_send reports the error */
        job_meet();
        for (v = 1; v <= 4; v++) {
            int code = msg_send_now(w, 1, &v, sizeof v, 0, v);
            if (code == MSG_PENDING)
                code = msg_send(w, 1, &v, sizeof v, 0, v, MSG_STANDARD);
            CHECK_EQ(code, MSG_SUCCESS);
        }
        /* Both ranks have met. Only a channel without a short path, or without credits, leaves it to msg_send. */
        CHECK(w->peers[0].n_short == 0 || job_counter(w, MSG_COUNTER_eager_sent) == 4);
        job_meet();
        OK(msg_send(w, 1, &v, sizeof v, 0, 5, MSG_STANDARD));
    }
    msg_request none = {0};
    int threads = w->threads;
    w->threads = 1;
    msg_lock(w); /* as another thread */
    GIVES(msg_send_now(w, 1, &v, sizeof v, !rank, 9), MSG_PENDING);
    GIVES(msg_recv_soon(w, 1, &v, sizeof v, !rank, 9, &s, &r), MSG_PENDING);
    CHECK(r == NULL);
    r = &none;
    GIVES(msg_wait_soon(w, &r, &s), MSG_PENDING);
    msg_unlock(w);
    w->threads = threads;
}
