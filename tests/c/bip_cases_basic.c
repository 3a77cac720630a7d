/*
 * bip_cases_basic.c - cases of test_bip: messages of all lengths, in order, matched, refused; and bip.h as C programs
 * call it.
 *
 * A case runs on every rank at once, and gets the rank's number and the number of ranks. Data is computed from values
 * that both sides have (round, ranks, tag), so the content of a wrong message differs.
 */
#include <stdlib.h>
#include <string.h>

#include "bip_cases.h"

static uint64_t counter(bip_counter which)
{
    uint64_t values[BIP_N_COUNTERS];
    bip_counters(job, values);
    return values[which];
}

/* Around what may change: frames of one cache line and of a slot, the end of short messages, packets of some KiB; and
 * 1 MiB, which is many packets. */
static const size_t lengths[] = {0,    1,    4,    24,    252,   253,   1000,   4095,   4096,
                                 4097, 8192, 8193, 16384, 65536, 65537, 100000, 1 << 20};

/* Every length, each way, into guarded buffers. */
void case_lengths(int rank, int n)
{
    size_t most = (1 << 20) + 128;
    unsigned char *out = malloc(most), *in = malloc(most);
    (void)n;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t len = lengths[i];
        int from = -1;
        /* Each way, so both ranks are once the sender. 3: the data begin at an odd place. */
        for (int sender = 0; sender < 2; sender++) {
            memset(in, 0xA5, most);
            pattern_fill(out + 3, len, (unsigned)(i * 2 + (unsigned)sender));
            if (sender == rank)
                send_to(1 - rank, 7, out + 3, len);
            else {
                CHECK_EQ(recv_from(7, in + 64, len, &from), len);
                CHECK_EQ(from, 1 - rank);
                CHECK(pattern_holds(in + 64, len, (unsigned)(i * 2 + (unsigned)sender)));
                for (size_t k = 0; k < 64; k++)
                    CHECK(in[k] == 0xA5 && in[64 + len + k] == 0xA5);
            }
        }
    }
    CHECK(counter(BIP_COUNTER_long_sent) + counter(BIP_COUNTER_long_received) > 0);
    free(in);
    free(out);
}

/* The pipeline with every packet size gives the same bytes. 300001 is no multiple of the packet of 4096 bytes, so the
 * last one is short. */
void case_packets(int rank, int n)
{
    static unsigned char buf[300001];
    (void)n;
    if (rank == 0) {
        pattern_fill(buf, sizeof buf, 5);
        send_to(1, 0, buf, sizeof buf);
        CHECK_EQ(counter(BIP_COUNTER_packets_sent), (sizeof buf + 4095) / 4096);
        CHECK_EQ(bip_packet(job, 1, 2), 2);
    } else {
        CHECK_EQ(recv_from(0, buf, sizeof buf, NULL), sizeof buf);
        CHECK(pattern_holds(buf, sizeof buf, 5));
    }
}

/* Tags in another order than they were sent; within a tag the order stays. */
void case_tags(int rank, int n)
{
    int value = 0, from;
    (void)n;
    if (rank == 0) {
        for (int i = 0; i < 10; i++)
            for (int tag = 0; tag < 3; tag++) {
                value = i * 3 + tag;
                /* Negative tags, too. */
                send_to(1, tag * 1000 - 5, &value, sizeof value);
            }
    } else
        for (int tag = 2; tag >= 0; tag--)
            for (int i = 0; i < 10; i++) {
                CHECK_EQ(recv_from(tag * 1000 - 5, &value, sizeof value, &from), sizeof value);
                CHECK_EQ(value, i * 3 + tag);
            }
    meet(rank, n);
}

/* Many messages, short and long mixed, from all ranks to all ranks, with receives posted before and after arrival. Two
 * of three rounds are short. Lengths are computed from round and ranks by both sides. */
void case_mixed(int rank, int n)
{
    enum { ROUNDS = 60 };
    size_t most = 40000;
    unsigned char *out = malloc(most), *in[MAX_RANKS];
    for (int i = 0; i < n; i++)
        in[i] = malloc(most);
    for (unsigned round = 0; round < ROUNDS; round++) {
        int ids[MAX_RANKS], from = -1;
        size_t len;
        for (int i = 0; i < n; i++)
            if (i != rank)
                OK(ids[i] = bip_irecv_bytes(job, i, in[i], most));
        for (int k = 1; k < n; k++) {
            int to = (rank + k) % n;
            len = (round * 7919u + (unsigned)rank * 104729u + (unsigned)to * 611953u) % most;
            if (round % 3)
                len %= 200;
            pattern_fill(out, len, round + (unsigned)(rank * 8 + to));
            send_to(to, rank, out, len);
        }
        for (int i = 0; i < n; i++)
            if (i != rank) {
                size_t expected = (round * 7919u + (unsigned)i * 104729u + (unsigned)rank * 611953u) % most;
                if (round % 3)
                    expected %= 200;
                OK(bip_rwait_id(job, ids[i], &len, &from, WAIT_MS));
                CHECK_EQ(from, i);
                CHECK_EQ(len, expected);
                CHECK(pattern_holds(in[i], len, round + (unsigned)(i * 8 + rank)));
            }
    }
    for (int i = 0; i < n; i++)
        free(in[i]);
    free(out);
}

/* The queue fills, the send waits, nothing is lost, memory does not grow. */
void case_full(int rank, int n)
{
    int value, id = -1;
    (void)n;
    /* bip_memory() counts what the job holds; a queue that grew would show. */
    size_t memory = bip_memory(job);
    if (rank == 0) {
        for (value = 0; value < 4; value++)
            send_to(1, 1, &value, sizeof value);
        /* Four places are taken: this one has left the program, but not for the other side yet. */
        OK(id = bip_isend_bytes(job, 1, 1, &value, sizeof value));
        CHECK_EQ(bip_stest_id(job, id), 0);
        CHECK_EQ(bip_isend_bytes(job, 1, 2, &value, sizeof value), BIP_ERR_BUSY);
        GIVES(bip_swait_id(job, id, 50), BIP_ERR_TIMEOUT);
        CHECK(strstr(bip_error(job), "with tag 1 to rank 1: no room in its queue in the time given") != NULL);
        vk_store_release(flag, 1);
    }
    if (rank == 1) {
        /* Only now does it take anything. */
        WAIT_UNTIL(bip_progress(job) >= 0 && vk_load_acquire(flag)); /* the other has seen its queue full */
        for (int i = 0; i < 200; i++) {
            CHECK_EQ(recv_from(1, &value, sizeof value, NULL), sizeof value);
            CHECK_EQ(value, i);
        }
    } else {
        OK(bip_swait_id(job, id, WAIT_MS));
        for (value = 5; value < 200; value++)
            send_to(1, 1, &value, sizeof value);
        CHECK(counter(BIP_COUNTER_queue_full) > 0);
    }
    CHECK_EQ(bip_memory(job), memory);
    meet(rank, n);
}

/* A tag with a queue of its own does not fill the one that all share. */
void case_own_queue(int rank, int n)
{
    int value;
    if (rank == 1)
        OK(bip_taginit_bytes(job, 3, 20, 16));
    meet(rank, n);
    if (rank == 0) {
        for (value = 0; value < 20; value++)
            send_to(1, 3, &value, sizeof value); /* four slots would not hold them */
        send_to(1, 4, &value, sizeof value);
    } else {
        CHECK_EQ(recv_from(4, &value, sizeof value, NULL), sizeof value);
        for (int i = 0; i < 20; i++) {
            recv_from(3, &value, sizeof value, NULL);
            CHECK_EQ(value, i);
        }
        GIVES(bip_taginit_bytes(job, 3, 1, 17), BIP_ERR_ARGUMENT);
        GIVES(bip_taginit_bytes(job, 5, 0, 16), BIP_ERR_ARGUMENT);
    }
    meet(rank, n);
}

/* A message longer than its receive: both sides get the error, for short and long messages, and later messages are
 * unaffected. */
void case_too_long(int rank, int n)
{
    static char buf[100000];
    if (rank == 0) {
        send_to(1, 1, buf, 10);
        int id = bip_isend_bytes(job, 1, 1, buf, sizeof buf);
        OK(id);
        GIVES(bip_swait_id(job, id, WAIT_MS), BIP_ERR_TOO_LONG);
        send_to(1, 1, "fits", 4);
    } else {
        size_t len = 0;
        int id, node;
        for (int i = 0; i < 2; i++) {
            OK(id = bip_irecv_bytes(job, 1, buf, 9));
            GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_TOO_LONG);
            /* The length that the receive would have needed. */
            CHECK_EQ(len, i ? sizeof buf : 10);
            CHECK(strstr(bip_error(job), i ? "100000" : "10 bytes") != NULL);
            /* The receive has ended with its error, so its number is no receive's any more. */
            GIVES(bip_rtest_id(job, id, &len, &node), BIP_ERR_ARGUMENT);
        }
        CHECK_EQ(recv_from(1, buf, 9, NULL), 4);
    }
    meet(rank, n);
}

/* Errors of calls: nothing has changed, and the same call with good arguments works. */
void case_arguments(int rank, int n)
{
    char c = 0;
    size_t len;
    int node, id;
    GIVES(bip_isend_bytes(job, rank, 0, &c, 1), BIP_ERR_SELF);
    GIVES(bip_isend_bytes(job, n, 0, &c, 1), BIP_ERR_ARGUMENT);
    GIVES(bip_isend_bytes(job, -1, 0, &c, 1), BIP_ERR_ARGUMENT);
    GIVES(bip_isend_bytes(job, 1 - rank, 0, NULL, 1), BIP_ERR_ARGUMENT);
    GIVES(bip_irecv_bytes(job, 0, NULL, 1), BIP_ERR_ARGUMENT);
    GIVES(bip_rtest_id(job, 12345, &len, &node), BIP_ERR_ARGUMENT);
    /* Nothing has been sent: no id is a send's. */
    static const int never[] = {-1, 0, 1, 12345, 0x3fffffff, 0x7fffffff};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++) {
        GIVES(bip_stest_id(job, never[i]), BIP_ERR_ARGUMENT);
        GIVES(bip_swait_id(job, never[i], WAIT_MS), BIP_ERR_ARGUMENT);
    }
    GIVES(bip_freemsg(job, 0), BIP_ERR_ARGUMENT);
    OK(id = bip_irecv_bytes(job, 0, &c, 1));
    GIVES(bip_irecv_bytes(job, 0, &c, 1), BIP_ERR_BUSY);
    GIVES(bip_rwait_id(job, id, &len, &node, 20), BIP_ERR_TIMEOUT);
    GIVES(bip_rcancel_id(job, id), 0);
    GIVES(bip_rcancel_id(job, id), BIP_ERR_ARGUMENT);
    meet(rank, n);
    /* Any number of times, also when others followed; but not before its time. */
    int first, second;
    OK(first = bip_isend_bytes(job, 1 - rank, 1, &c, 1));
    OK(bip_swait_id(job, first, WAIT_MS));
    OK(second = bip_isend_bytes(job, 1 - rank, 1, &c, 1));
    GIVES(bip_stest_id(job, second + 1), BIP_ERR_ARGUMENT);
    CHECK(strstr(bip_error(job), "there is no send") != NULL);
    OK(bip_swait_id(job, second, WAIT_MS));
    GIVES(bip_stest_id(job, second), 1);
    GIVES(bip_stest_id(job, first), 1);
    GIVES(bip_swait_id(job, first, WAIT_MS), 0);
    recv_from(1, &c, 1, NULL);
    recv_from(1, &c, 1, NULL);
    meet(rank, n);
}

/* BIP as it was: a long message that finds no receive is an error of the sender's; also if the receiver looks only
 * when it posts the receive. */
void case_strict(int rank, int n)
{
    static char buf[100000];
    if (rank == 0) {
        int id = bip_isend_bytes(job, 1, 1, buf, sizeof buf);
        OK(id);
        GIVES(bip_swait_id(job, id, WAIT_MS), BIP_ERR_NOT_POSTED);
        meet(rank, n);
        OK(id = bip_isend_bytes(job, 1, 4, buf, sizeof buf));
        WAIT_UNTIL(bip_progress(job) >= 0 && !bip_unsettled(job)); /* the question has been delivered */
        vk_store_release(flag, 1);
        GIVES(bip_swait_id(job, id, WAIT_MS), BIP_ERR_NOT_POSTED);
        recv_from(3, NULL, 0, NULL);
        send_to(1, 2, buf, sizeof buf);
    } else {
        meet(rank, n);
        size_t len = 0;
        int node;
        WAIT_UNTIL(vk_load_acquire(flag)); /* and makes no progress */
        int id = bip_irecv_bytes(job, 4, buf, sizeof buf);
        OK(id);
        GIVES(bip_rtest_id(job, id, &len, &node), 0);
        GIVES(bip_rcancel_id(job, id), 0);
        OK(id = bip_irecv_bytes(job, 2, buf, sizeof buf));
        send_to(0, 3, NULL, 0);
        OK(bip_rwait_id(job, id, &len, &node, WAIT_MS));
        CHECK_EQ(len, sizeof buf);
    }
}

/* Looking at short messages without a receive: by copy, and in place. */
void case_short_only(int rank, int n)
{
    static char buf[100000];
    const void *place;
    size_t len = 99;
    int node = -1;
    /* Nothing is there yet; 0 is no error. */
    GIVES(bip_recv_short(job, 1, buf, 4, &len, &node), 0);
    GIVES(bip_getmsg(job, 1, &place, &len, &node, 0), 0);
    meet(rank, n);
    if (rank == 0) {
        send_to(1, 1, "one", 3);
        send_to(1, 1, "two", 3);
        send_to(1, 1, "three", 5);
        send_to(1, 1, buf, sizeof buf);
    } else {
        while (bip_recv_short(job, 1, buf, 4, &len, &node) == 0)
            sched_yield();
        CHECK(len == 3 && node == 0 && memcmp(buf, "one", 3) == 0);
        OK(bip_getmsg(job, 1, &place, &len, &node, WAIT_MS));
        CHECK(len == 3 && node == 0 && memcmp(place, "two", 3) == 0);
        /* One message at a time may be looked at in place. */
        GIVES(bip_getmsg(job, 1, &place, &len, &node, WAIT_MS), BIP_ERR_BUSY);
        OK(bip_freemsg(job, 1));
        /* Longer than the buffer: the call returns the length, and the message is discarded. */
        WAIT_UNTIL(bip_recv_short(job, 1, buf, 4, &len, &node) == BIP_ERR_TOO_LONG);
        CHECK_EQ(len, 5);
        int code;
        WAIT_UNTIL((code = bip_getmsg(job, 1, &place, &len, &node, 0)) != 0);
        CHECK_EQ(code, BIP_ERR_ARGUMENT); /* a long one */
        GIVES(bip_recv_short(job, 1, buf, 4, &len, &node), 0);
        CHECK_EQ(recv_from(1, buf, sizeof buf, NULL), sizeof buf);
    }
    meet(rank, n);
}

/* Both directions at once, long: neither waits for the other's receive to be looked at first. 3 MiB is more than any
 * link takes without being looked at. */
void case_crossing(int rank, int n)
{
    size_t len = 3 << 20, got = 0;
    char *out = malloc(len), *in = malloc(len);
    (void)n;
    for (unsigned i = 0; i < 3; i++) {
        int node, r = bip_irecv_bytes(job, 1, in, len), s;
        OK(r);
        pattern_fill(out, len, i * 2 + (unsigned)rank);
        OK(s = bip_isend_bytes(job, 1 - rank, 1, out, len));
        OK(bip_swait_id(job, s, WAIT_MS));
        OK(bip_rwait_id(job, r, &got, &node, WAIT_MS));
        CHECK_EQ(got, len);
        CHECK(pattern_holds(in, len, i * 2 + 1 - (unsigned)rank));
    }
    free(in);
    free(out);
}

/* More receives than the cache of registrations has places, all long. */
void case_many_receives(int rank, int n)
{
    enum { N = 100, LEN = 20000 };
    char *buf = malloc((size_t)N * LEN);
    if (rank == 1) {
        int ids[N], node;
        size_t len;
        for (int i = 0; i < N; i++)
            OK(ids[i] = bip_irecv_bytes(job, i, buf + (size_t)i * LEN, LEN));
        meet(rank, n);
        for (int i = 0; i < N; i++) {
            OK(bip_rwait_id(job, ids[i], &len, &node, WAIT_MS));
            CHECK_EQ(len, LEN);
            CHECK(pattern_holds(buf + (size_t)i * LEN, LEN, (unsigned)i));
        }
    } else {
        /* In the reverse order of the receives, so the last one that was posted is the first to be filled. */
        meet(rank, n);
        for (int i = N - 1; i >= 0; i--) {
            pattern_fill(buf + (size_t)i * LEN, LEN, (unsigned)i);
            send_to(1, i, buf + (size_t)i * LEN, LEN);
        }
    }
    meet(rank, n);
    free(buf);
}

/* ---------------------------------------------------------------- bip.h */

static int complaints;
static void on_complaint(const char *text)
{
    CHECK(strncmp(text, "BIP, node ", 10) == 0);
    complaints++;
}

/* Wrong calls of classic programs, each reported to the handler. Ends the job. */
static void classic_errors(int rank, int next, int *out_words)
{
    static int small[10], node = -1;
    /* Each wrong call below is reported once: a send to itself, a rank that does not exist, negative lengths (twice),
     * and a release without a message. */
    bip_onerror(on_complaint);
    bip_tsend(rank, 1, out_words, 1);
    CHECK_EQ(complaints, 1);
    CHECK_EQ(bip_tisend(99, 1, out_words, 1), -1);
    CHECK_EQ(bip_tirecv(1, out_words, -1), -1);
    CHECK_EQ(bip_tisend(next, 1, out_words, -1), -1);
    bip_tfreemsg(5);
    CHECK_EQ(complaints, 5);
    /* A message longer than its receive, an unknown id for both calls, a second open, and a call after the end. */
    bip_tsend(next, 8, out_words, 5);
    CHECK_EQ(bip_trecv(8, small, 4), -1);
    CHECK_EQ(complaints, 6);
    bip_swait(12345);
    CHECK_EQ(bip_stest(12345), -1);
    CHECK_EQ(complaints, 8);
    /* A negative length discards no message. The one with tag 9 is here, because the one with tag 10 follows it. */
    bip_tsend(next, 9, out_words, 3);
    bip_tsend(next, 10, out_words, 1);
    CHECK_EQ(bip_trecv(10, small, 10), 1);
    CHECK_EQ(bip_trecvshort(9, small, -1, &node), -1);
    CHECK_EQ(bip_trecvshort(9, small, 10, &node), 3);
    CHECK_EQ(complaints, 9);
    /* A queue for messages of negative length is not created, so the next length is the first. */
    bip_taginit(11, 1, -1);
    bip_taginit(11, 1, 10);
    CHECK_EQ(complaints, 10);
    bip_init();
    CHECK_EQ(complaints, 11);
    bip_end();
    CHECK_EQ(bip_trecvshort(5, small, 10, &node), -1);
    CHECK_EQ(complaints, 12);
}

/* The manual's example, and all other calls. Lengths of bip.h are words of four bytes. Errors do not return: they go to
 * the handler, and the call answers -1 where it answers at all. */
void case_classic(int rank, int n)
{
    static int big[100000], small[10], token = 0, node = -1, length = -1;
    /* Allowed before bip_init(): the tag has its queue from the beginning. */
    bip_taginit(5, 4, 10);
    bip_init();
    CHECK_EQ(bip_mynode, rank);
    CHECK_EQ(bip_numnodes, n);
    int next = (rank + 1) % n, last = (rank + n - 1) % n;
    for (int round = 0; round < 10; round++) { /* a token goes round */
        if (rank == 0) {
            bip_send(next, &token, 1);
            CHECK_EQ(bip_recv(&token, 1), 1);
            CHECK_EQ(token, (round + 1) * (n - 1));
        } else {
            CHECK_EQ(bip_recvx(&token, 1, &node), 1);
            CHECK_EQ(node, last);
            token++;
            bip_send(next, &token, 1);
        }
    }
    /* Long: 50000 words, into room for twice as many. */
    int r = bip_tirecv(2, big, 100000), s; /* all ranks send on, long */
    static int out_words[50000];
    out_words[49999] = rank;
    s = bip_tisend(next, 2, out_words, 50000);
    while (bip_stest(s) == 0)
        sched_yield();
    while ((length = bip_rtestx(r, &node)) == -1)
        sched_yield();
    CHECK(length == 50000 && node == last && big[49999] == last);
    r = bip_irecv(small, 10);
    s = bip_isend(next, out_words, 0); /* nothing is a message, too */
    bip_swait(s);
    CHECK_EQ(bip_rwaitx(r, &node), 0);
    bip_tsend(next, 5, out_words, 10);
    bip_tsend(next, 5, out_words, 9);
    bip_tsend(next, 5, out_words, 8);
    int *place = bip_tgetmsg(5, &length, &node);
    CHECK(place && length == 10 && node == last);
    bip_tfreemsg(5);
    while ((place = bip_tgetmsgnb(5, &length, &node)) == NULL)
        sched_yield();
    CHECK_EQ(length, 9);
    bip_tfreemsg(5);
    while ((length = bip_trecvshort(5, small, 10, &node)) == -1)
        sched_yield();
    CHECK_EQ(length, 8);
    r = bip_tirecv(6, small, 10);
    bip_tsend(next, 6, out_words, 3);
    CHECK_EQ(bip_rwait(r), 3);
    r = bip_tirecv(6, small, 10);
    bip_tsend(next, 6, out_words, 3);
    while (!bip_rtest(r))
        sched_yield();
    classic_errors(rank, next, out_words);
}
