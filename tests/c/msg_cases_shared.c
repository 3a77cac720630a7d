/*
 * msg_cases_shared.c - cases of test_msg: long messages that both ranks copy, each a part (rendezvous.c). Only a send
 * that may be interrupted proposes this, so these cases set an interrupt callback, and only a receive that waits
 * accepts it. No message is shared with more ranks than cores, and on links on which the caller's processor does not
 * copy.
 */
#include <signal.h>
#include <unistd.h>

#include "base/atomic.h"
#include "check.h"
#include "msg/channel.h"
#include "msg_calls.h"
#include "msg_cases.h"

static int never(void *context)
{
    (void)context;
    return 0;
}

/* Returns whether the two ranks share. Both return the same. */
static int share(msg_world *w, int rank)
{
    struct msg_peer *peer = &w->peers[!rank];
    return !msg_crowded(w) && peer->channel->can_share(peer);
}

/* All lengths, modes and orders. */
void case_sizes_shared(msg_world **world, int rank, int n_ranks)
{
    msg_set_interrupt(*world, never, NULL);
    case_sizes(world, rank, n_ranks);
    uint64_t shared = job_counter(*world, MSG_COUNTER_shared);
    CHECK(rank == 0 && share(*world, rank) ? shared > 0 : shared == 0);
}

/* Messages longer than their receives, as long, and shorter, whether their receives are posted before or after. */
void case_shared_rooms(msg_world **world, int rank, int n_ranks)
{
    static const size_t lens[] = {5000, 8192, 32768, 32769, 100001}, rooms[] = {0, 1, 8191, 8192, 40000, 200000};
    enum { N_LENS = sizeof lens / sizeof *lens, N_ROOMS = sizeof rooms / sizeof *rooms, GUARD = 64 };
    msg_world *w = *world;
    char *buf = malloc(200000 + GUARD);
    (void)n_ranks;
    msg_set_interrupt(w, never, NULL);
    for (unsigned i = 0; i < N_LENS * N_ROOMS * 2; i++) {
        size_t len = lens[i / 2 % N_LENS], room = rooms[i / 2 / N_LENS], n = len < room ? len : room;
        int late = i % 2;
        msg_status s;
        if (rank == 0) {
            pattern_fill(buf, len, i);
            if (!late)
                OK(msg_recv(w, 1, NULL, 0, 1, 7, NULL)); /* the other is about to receive */
            OK(msg_send(w, 1, buf, len, 1, 1, MSG_STANDARD));
            memset(buf, 0, len); /* it is the program's again */
            continue;
        }
        memset(buf, 0x5A, room + GUARD);
        if (late)
            OK(msg_probe(w, 1, 0, 1, &s, MSG_FOREVER));
        else
            OK(msg_send(w, 1, NULL, 0, 0, 7, MSG_STANDARD));
        int code = msg_recv(w, 1, buf, room, 0, 1, &s);
        CHECK_EQ(code, n < len ? MSG_ERR_TRUNCATE : MSG_SUCCESS);
        CHECK_EQ(s.len, n);
        CHECK(pattern_holds(buf, n, i));
        for (size_t k = n; k < n + GUARD; k++)
            CHECK(buf[k] == 0x5A);
    }
    free(buf);
}

/* The same in pieces, more than there are descriptors. */
void case_shared_pieces(msg_world **world, int rank, int n_ranks)
{
    case_shared_rooms(world, rank, n_ranks);
    case_sizes_shared(world, rank, n_ranks);
}

/* Takes the announcement of a message, requests to share its copy, and waits until the sender has written its part. */
static void request_share(msg_world *w, char *buf, size_t len)
{
    struct msg_peer *peer = &w->peers[0];
    msg_exposed e;
    msg_message *m;
    msg_status s;
    OK(msg_expose(w, buf, len, &e));
    OK(msg_mprobe(w, 1, 0, 1, &m, &s, MSG_FOREVER));
    CHECK_EQ(m->packet.rest.how, MSG_RSHARE);
    struct msg_packet cts = {
        .head.kind = MSG_PKT_CTS,
        .rest = {.len = len,
                 .id = m->packet.rest.id,
                 .peer_id = UINT64_MAX, /* of no request here: the offer to read finds nothing */
                 .address = e.address,
                 .handle = e.handle[peer->channel->handle_index(peer)],
                 .how = MSG_RSHARE},
    };
    msg_lock(w);
    msg_push_control(peer, &cts);
    msg_unlock(w);
    /* The last word is written last, by a release store. */
    const uint64_t *last = (const uint64_t *)(const void *)(buf + len - sizeof *last);
    WAIT_UNTIL(msg_progress(w) < 0 || vk_load_acquire(last));
    OK(msg_hide(w, &e));
}

enum { LEN = 1 << 20 };

/* The receiver never reads its part, because it dies or leaves. */
static void end_within(msg_world *w, int rank, int dies)
{
    char *data = calloc(1, LEN);
    int shares = share(w, rank);
    if (rank == 0 && shares) {
        memset(data, 1, LEN);
        msg_set_interrupt(w, never, NULL);
        GIVES(msg_send(w, 1, data, LEN, 1, 1, MSG_STANDARD), dies ? MSG_ERR_PROC_FAILED : MSG_ERR_LEFT);
    } else if (rank == 1) {
        if (shares)
            request_share(w, data, LEN);
        if (dies)
            kill(getpid(), SIGKILL);
    }
    free(data);
}

void case_death_shared(msg_world **world, int rank, int n_ranks)
{
    (void)n_ranks;
    end_within(*world, rank, 1);
}

void case_leave_shared(msg_world **world, int rank, int n_ranks)
{
    (void)n_ranks;
    end_within(*world, rank, 0);
}

/* Offers to read, and ends of parts, for requests that share nothing. */
void case_shared_forged(msg_world **world, int rank, int n_ranks)
{
    enum { PLACES = 300, GENERATIONS = 3 };
    static const uint8_t kinds[] = {MSG_PKT_SHARE, MSG_PKT_FIN};
    msg_world *w = *world;
    msg_request *r;
    msg_status s;
    (void)n_ranks;
    char *buf = malloc(LEN);
    if (rank == 1) {
        OK(msg_irecv(w, 1, buf, LEN, 0, 1, &r));
        OK(msg_send(w, 1, NULL, 0, 0, 7, MSG_STANDARD));
        OK(msg_recv(w, 1, NULL, 0, 0, 8, NULL));
        CHECK(!msg_request_peek(w, r, &s));
        OK(msg_send(w, 1, NULL, 0, 0, 7, MSG_STANDARD));
        OK(msg_wait(w, &r, &s, MSG_FOREVER));
        CHECK(pattern_holds(buf, LEN, 3));
        free(buf);
        return;
    }
    pattern_fill(buf, LEN, 3);
    OK(msg_recv(w, 1, NULL, 0, 1, 7, NULL));
    for (unsigned i = 0; i < PLACES * GENERATIONS * 2; i++) {
        uint64_t id = (uint64_t)(i / 2 / PLACES + 1) << 32 | i / 2 % PLACES;
        struct msg_packet p = {.head.kind = kinds[i % 2], .rest = {.peer_id = id, .len = 4096, .address = 4096}};
        msg_lock(w);
        msg_push_control(&w->peers[1], &p);
        msg_unlock(w);
    }
    OK(msg_send(w, 1, NULL, 0, 1, 8, MSG_STANDARD));
    OK(msg_recv(w, 1, NULL, 0, 1, 7, NULL));
    OK(msg_send(w, 1, buf, LEN, 1, 1, MSG_STANDARD));
    free(buf);
}
