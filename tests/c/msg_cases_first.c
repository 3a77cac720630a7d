/*
 * msg_cases_first.c - cases of test_msg: requests that carry the first bytes of a long message (policy.request_data),
 * as LAM's do. Most run the cases of other files with this policy. The first two show that the bytes travel with the
 * request.
 */
#include "check.h"
#include "msg_calls.h"
#include "msg_cases.h"

#define CARRIED 4096 /* policy FIRST_BYTES */

/* Lengths of messages, and room of their receives: all of it, more than the request carried, as much, less, none. */
static const size_t lens[] = {8193, 20000, 100001};
static const size_t rooms[] = {SIZE_MAX, CARRIED + 1, CARRIED, 100, 0};
#define N(list) (sizeof(list) / sizeof *(list))

static void check_received(const char *buf, size_t len, size_t room, const msg_status *s, unsigned seed)
{
    size_t n = len < room ? len : room;
    CHECK_EQ(s->len, n);
    CHECK_EQ(s->error, n < len ? MSG_ERR_TRUNCATE : MSG_SUCCESS);
    CHECK(pattern_holds(buf, n, seed));
    for (size_t i = n; i < n + 64; i++)
        CHECK(buf[i] == 0x5A);
}

/* The message is unexpected. Its probed length is that of all of it, and only the carried bytes are here. */
static void receive_unexpected(msg_world *w, char *buf, size_t len, size_t room, int by_probe)
{
    size_t n = len < room ? len : room;
    msg_status s;
    msg_message *m = NULL;
    msg_request *r;
    OK(msg_recv(w, 1, NULL, 0, 0, 99, NULL)); /* behind the request, so that is here, too */
    OK(msg_probe(w, 1, 0, 1, &s, MSG_FOREVER));
    CHECK_EQ(s.len, len);
    CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_bytes_now), CARRIED);
    memset(buf, 0x5A, n + 64);
    if (by_probe) {
        OK(msg_mprobe(w, 1, 0, 1, &m, &s, MSG_FOREVER));
        CHECK_EQ(s.len, len);
        OK(msg_imrecv(w, &m, buf, n, &r));
    } else
        OK(msg_irecv(w, 1, buf, n, 0, 1, &r));
    CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_bytes_now), 0);
    OK(msg_wait(w, &r, &s, MSG_FOREVER));
    check_received(buf, len, room, &s, (unsigned)len);
}

void case_first_bytes(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    char *buf = malloc(lens[N(lens) - 1] + 64);
    (void)n_ranks;
    CHECK(buf);
    for (size_t i = 0; i < 2 * N(lens) * N(rooms); i++) {
        size_t len = lens[i / 2 % N(lens)], room = rooms[i / 2 / N(lens)];
        if (rank == 0) {
            msg_request *r;
            msg_status s;
            pattern_fill(buf, len, (unsigned)len);
            OK(msg_isend(w, 1, buf, len, 1, 1, i % 3 ? MSG_STANDARD : MSG_SYNCHRONOUS, &r));
            OK(msg_send(w, 1, NULL, 0, 1, 99, MSG_STANDARD));
            OK(msg_wait(w, &r, &s, MSG_FOREVER));
            CHECK_EQ(s.error, MSG_SUCCESS);
            OK(msg_recv(w, 1, NULL, 0, 1, 7, NULL));
        } else {
            receive_unexpected(w, buf, len, room, (int)(i % 2));
            OK(msg_send(w, 1, NULL, 0, 0, 7, MSG_STANDARD));
        }
    }
    CHECK_EQ(job_counter(w, MSG_COUNTER_requests_now), 0);
    CHECK_EQ(job_counter(w, MSG_COUNTER_rput), 0);
    free(buf);
}

/* The receive is posted. */
void case_first_posted(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    char *buf = malloc(lens[N(lens) - 1] + 64);
    (void)n_ranks;
    CHECK(buf);
    for (size_t i = 0; i < N(lens) * N(rooms); i++) {
        size_t len = lens[i % N(lens)], room = rooms[i / N(lens)], n = len < room ? len : room;
        msg_request *r;
        msg_status s;
        if (rank == 0) {
            pattern_fill(buf, len, (unsigned)i);
            OK(msg_recv(w, 1, NULL, 0, 1, 7, NULL));
            OK(msg_send(w, 1, buf, len, 1, 1, MSG_STANDARD));
        } else {
            memset(buf, 0x5A, n + 64);
            OK(msg_irecv(w, 1, buf, n, 0, 1, &r));
            OK(msg_send(w, 1, NULL, 0, 0, 7, MSG_STANDARD));
            OK(msg_wait(w, &r, &s, MSG_FOREVER));
            check_received(buf, len, room, &s, (unsigned)i);
        }
    }
    CHECK_EQ(job_counter(w, MSG_COUNTER_unexpected_bytes_now), 0);
    free(buf);
}

#define SAME(name, other)                                      \
    void case_##name(msg_world **world, int rank, int n_ranks) \
    {                                                          \
        case_##other(world, rank, n_ranks);                    \
    }

SAME(sizes_first, sizes_r3)
SAME(first_order, order)
SAME(first_truncation, truncation)
SAME(first_probes, probes)
SAME(first_cancel, cancel)
SAME(first_throttle, throttle)
SAME(first_convert, convert)
SAME(first_copied, sizes)
SAME(first_interrupt, interrupt)
SAME(death_first, death_long)
