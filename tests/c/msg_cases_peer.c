/*
 * msg_cases_peer.c - cases of test_msg about what other ranks do: die at a bad moment, fall silent, say what is not
 * true, keep fewer buffers; and about the order in which what is sent to them arrives.
 */
#include "msg_cases.h"

#include <errno.h>
#include <malloc.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "msg/engine.h"
#include "msg/via.h"
#include "msg_calls.h"
#include "process.h"

/* Rank 1 is alone on its host and meets two ranks on its network NIC, each of which meets only one there: it keeps
 * fewer buffers for them than they do for it. A sender counts the receiver's. */
void case_hosts_credits(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    /* More than the receiver keeps buffers for. */
    enum { N = 60 };
    msg_request *r[N];
    static char data[N][1000];
    (void)n_ranks;
    if (rank == 0)
        for (int i = 0; i < N; i++) {
            pattern_fill(data[i], sizeof data[i], (unsigned)i);
            OK(msg_isend(w, 1, data[i], sizeof data[i], 1, i, MSG_STANDARD, &r[i]));
        }
    job_meet(); /* no rank has polled yet */
    if (rank == 0)
        OK(call_wait_all(w, N, r, NULL));
    for (int i = 0; rank == 1 && i < N; i++) {
        OK(msg_recv(w, 1, data[0], sizeof data[0], 0, i, NULL));
        CHECK(pattern_holds(data[0], sizeof data[0], (unsigned)i));
    }
}

/* A receive is posted again after the reply, or by the next progress. Until then its credit is not owed. It is posted
 * at once if its credit makes a packet due. */
void case_late(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    struct vc_world *v = w->at;
    struct peers_pair *pair = peers_pair_of(&v->net, !rank);
    int word = 0;
    (void)n_ranks;
    for (int i = 0; i < 20; i++)
        if (rank == 1) {
            OK(msg_send(w, 1, &i, sizeof i, 0, 1, MSG_STANDARD));
            OK(msg_recv(w, 1, &word, sizeof word, 0, 1, NULL));
        } else {
            OK(msg_recv(w, 1, &word, sizeof word, 1, 1, NULL));
            CHECK(v->late && v->late->pair == pair);
            CHECK_EQ(pair->owed, i % 2);
            if (i % 2) {
                OK(msg_progress(w) < 0);
                CHECK(v->late == NULL);
                CHECK_EQ(pair->owed, 2);
            }
            OK(msg_send(w, 1, &word, sizeof word, 1, 1, MSG_STANDARD));
            CHECK(v->late == NULL);
            CHECK_EQ(pair->owed, i % 2 ? 0 : 1);
        }
    for (uint32_t i = 0, n = pair->port->owed_most; i < n; i++)
        if (rank == 1)
            OK(msg_send(w, 1, &i, sizeof i, 0, 2, MSG_STANDARD));
        else {
            OK(msg_recv(w, 1, &word, sizeof word, 1, 2, NULL));
            CHECK_EQ(v->late != NULL, i + 1 < n);
        }
    if (rank == 0) {
        CHECK_EQ(pair->owed, 0);
        CHECK_EQ(job_counter(w, MSG_COUNTER_credits_explicit), 1);
    }
}

/* A message behind a write for which there are not enough descriptors at once. */
void case_put_order(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    /* 90 pieces of 64 KiB: more than the queue has descriptors for, so some wait inside the engine. */
    enum { LEN = 90 << 16 };
    void *memory;
    msg_exposed local, remote;
    (void)n_ranks;
    OK(msg_alloc(w, LEN, &memory));
    memset(memory, 0, LEN);
    OK(msg_expose(w, memory, LEN, &local));
    OK(call_sendrecv(w, 1, &local, sizeof local, !rank, 1, &remote, sizeof remote, !rank, 1, NULL));
    volatile char *last = (volatile char *)memory + LEN - 1;
    if (rank == 0) {
        msg_request *r, *sent[3];
        char *data = malloc(LEN);
        for (int round = 1; round <= 3; round++) {
            memset(data, round, LEN);
            OK(msg_put(w, data, LEN, 1, &remote, 0, &r));
            for (int i = 0; i < 3; i++) /* more than one waits behind it */
                OK(msg_isend(w, 1, NULL, 0, 1, 2 + i, MSG_STANDARD, &sent[i]));
            OK(call_wait_all(w, 3, sent, NULL));
            OK(msg_wait(w, &r, NULL, MSG_FOREVER));
        }
        free(data);
    }
    for (int round = 1; rank == 1 && round <= 3; round++)
        for (int i = 0; i < 3; i++) {
            OK(msg_recv(w, 1, NULL, 0, 0, 2 + i, NULL));
            /* The messages behind the write must not be seen before its last byte. */
            CHECK(*last >= round);
        }
    job_meet();
    OK(msg_hide(w, &local));
    OK(msg_free(w, memory));
}

/* Every message is counted and converted, however it came: also to oneself. */
void case_convert(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    static const size_t lens[] = {4, 4096, 300000, 2 << 20};
    char *out = malloc(2 << 20), *in = malloc(2 << 20);
    uint64_t bytes = 0;
    (void)n_ranks;
    /* To the other rank, then to oneself. */
    for (int to = 0; to < 2; to++)
        for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
            msg_request *r;
            msg_status s;
            pattern_fill(out, lens[i], (unsigned)i);
            memset(in, 0, lens[i]);
            OK(msg_isend(w, 1, out, lens[i], to ? rank : !rank, (int)i, MSG_STANDARD, &r));
            OK(msg_recv(w, 1, in, lens[i], to ? rank : !rank, (int)i, &s));
            OK(msg_wait(w, &r, NULL, MSG_FOREVER));
            CHECK(pattern_holds(in, lens[i], (unsigned)i));
            bytes += lens[i];
        }
    /* Four lengths, two targets. */
    CHECK_EQ(job_counter(w, MSG_COUNTER_received), 8);
    CHECK_EQ(job_counter(w, MSG_COUNTER_bytes_received), bytes);
    free(out);
    free(in);
}

/* A piece longer than a transfer may be is cut to that. */
void case_giant_piece(msg_world **world, int rank, int n_ranks)
{
    /* By the policy a piece may be 256 MiB, more than VIA takes at once. */
    case_giant(world, rank, n_ranks);
}

/* The one stream socket that this process has to another rank. */
static int stream(void)
{
    for (int fd = 3; fd < 200; fd++) {
        struct sockaddr_in a;
        socklen_t n = sizeof a;
        if (getpeername(fd, (struct sockaddr *)&a, &n) == 0 && a.sin_family == AF_INET)
            return fd;
    }
    return -1;
}

/* Rank 1, whose process that was, has died, and a send to it can detect that before the engine polls, if its carrier
 * reports it (BIP's cannot). */
static int can_be_found_dead(msg_world *w, pid_t pid)
{
    char state = process_state(pid);
    if (state && state != 'Z')
        return 0;
    if (w->channel == &msg_channel_tcp) {
        struct pollfd hung_up = {.fd = stream(), .events = POLLRDHUP};
        return poll(&hung_up, 1, 0) == 1;
    }
    if (w->channel == &msg_channel_via) {
        VIP_VI_STATE vi_state;
        VIP_VI_ATTRIBUTES attributes;
        VIP_BOOLEAN send_empty, recv_empty;
        VIP_VI_HANDLE vi = ((struct vc_rank *)w->peers[1].at)->pair.vi;
        CHECK_OK(VipQueryVi(vi, &vi_state, &attributes, &send_empty, &recv_empty));
        return vi_state == VIP_STATE_ERROR;
    }
    return 1;
}

/* A buffered send that itself finds out that its rank is dead gives its part of the buffer back once. */
void case_death_buffered(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LEN = 100000 };
    static char room[4 * LEN], data[LEN];
    void *back;
    size_t len;
    pid_t pid = getpid();
    (void)n_ranks;
    if (rank == 1) {
        OK(msg_send(w, 1, &pid, sizeof pid, 0, 1, MSG_STANDARD));
        job_meet(); /* it has arrived */
        kill(pid, SIGKILL);
    }
    OK(msg_buffer_attach(w, room, sizeof room));
    OK(msg_recv(w, 1, &pid, sizeof pid, 1, 1, NULL));
    job_meet();
    WAIT_UNTIL(can_be_found_dead(w, pid));
    /* Some of them may fail; what matters is what becomes of the buffer. */
    for (int i = 0; i < 3; i++)
        msg_send(w, 1, data, LEN, 1, 1, MSG_BUFFERED);
    WAIT_UNTIL(msg_progress(w) >= 0 && msg_peer_status(w, 1) != MSG_PEER_CONNECTED);
    OK(msg_buffer_detach(w, &back, &len));
    CHECK(back == room);
    CHECK_EQ(len, sizeof room);
}

/* A buffered send that no receive has taken leaves nothing when its world closes. The piece is so long that the C
 * library maps it, so hblkhd has its bytes; under AddressSanitizer they are 0, and the check for leaks finds it. */
void case_close_buffered(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LEN = 64 << 20 };
    char *data = calloc(1, LEN);
    (void)n_ranks;
    size_t before = mallinfo2().hblkhd;
    OK(msg_buffer_attach(w, NULL, MSG_BUFFER_AUTOMATIC));
    OK(msg_send(w, 1, data, LEN, rank, 1, MSG_BUFFERED));
    OK(msg_world_close(w, CHECK_WAIT_S * 1000));
    *world = NULL;
    CHECK(mallinfo2().hblkhd < before + LEN);
    free(data);
}

/* Rank 1 dies in the middle of a long message. The next long one, to another rank, is not delayed by it. */
void case_death_next(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    enum { LEN = 32 << 20 };
    char *data = calloc(1, LEN);
    msg_request *r;
    msg_status s = {.error = 0};
    (void)n_ranks;
    if (rank == 1) {
        /* Its first byte has come: the message is under way, and it is long. */
        const volatile char *inside = data; /* the first of many packets */
        OK(msg_irecv(w, 1, data, LEN, 0, 1, &r));
        while (*inside == 0)
            OK(msg_progress(w) < 0);
        kill(getpid(), SIGKILL);
    }
    memset(data, 1, LEN);
    if (rank == 0) {
        OK(msg_isend(w, 1, data, LEN, 1, 1, MSG_STANDARD, &r));
        OK(msg_wait(w, &r, &s, CHECK_WAIT_S * 1000)); /* it may just have ended well */
        OK(msg_isend(w, 1, data, LEN, 2, 1, MSG_STANDARD, &r));
        OK(msg_wait(w, &r, &s, CHECK_WAIT_S * 1000));
        CHECK_EQ(s.error, MSG_SUCCESS);
    } else
        OK(msg_recv(w, 1, data, LEN, 0, 1, NULL));
    free(data);
}

/* On the engine's own socket, between its packets: whole packets only. */
static void write_all(int fd, const void *data, size_t len)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t n = send(fd, (const char *)data + sent, len - sent, MSG_NOSIGNAL);
        CHECK(n > 0 || errno == EAGAIN);
        sent += n > 0 ? (size_t)n : 0;
    }
}

/* A rank says of every request there may be that it was matched, that it was read, that it was written. None of them
 * is in a state in which that can be true: eager sends wait for room, a receive waits for its message. */
void case_forged(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    /* Far more ids than there are requests: each place of the pool in its first generations. */
    enum { N = 400, LEN = 16000, PLACES = 600, GENERATIONS = 4 };
    static char data[LEN];
    (void)n_ranks;
    if (rank == 1) {
        job_meet();
        for (int generation = 0; generation < GENERATIONS; generation++)
            for (int place = 0; place < PLACES; place++) {
                /* An acknowledgement of the id as a rendezvous sender, an end for a writer, an end for a reader. */
                static const int kinds[] = {MSG_PKT_ACK, MSG_PKT_FIN, MSG_PKT_FIN};
                uint64_t id = (uint64_t)generation << 32 | (uint64_t)place;
                struct {
                    uint64_t len;
                    struct msg_packet packet;
                } forged[3] = {0};
                for (int i = 0; i < 3; i++) {
                    forged[i].packet.head.kind = (uint8_t)kinds[i];
                    forged[i].packet.rest.id = i < 2 ? id : 0;
                    forged[i].packet.rest.peer_id = i < 2 ? 0 : id;
                }
                write_all(stream(), forged, sizeof forged);
            }
        job_meet();
        job_meet();
        for (int i = 0; i < N; i++) {
            OK(msg_recv(w, 1, data, LEN, 0, i, NULL));
            CHECK(pattern_holds(data, LEN, (unsigned)i));
        }
        OK(msg_send(w, 1, data, 1, 0, N, MSG_STANDARD));
    } else {
        static char out[N][LEN];
        msg_request *r[N], *in;
        msg_status s;
        OK(msg_irecv(w, 1, data, 1, 1, N, &in));
        for (int i = 0; i < N; i++) {
            pattern_fill(out[i], LEN, (unsigned)i);
            OK(msg_isend(w, 1, out[i], LEN, 1, i, MSG_STANDARD, &r[i]));
        }
        /* The sockets' buffers are full. */
        GIVES(msg_test(w, &r[N - 1], &s), MSG_PENDING); /* the other reads nothing: most of them wait */
        job_meet();
        /* Long enough for all of the forged packets to be read, and for what they might have broken. */
        double until = check_now() + 0.3;
        while (check_now() < until)
            OK(msg_progress(w) < 0);
        job_meet();
        until = check_now() + 0.1;
        while (check_now() < until)
            OK(msg_progress(w) < 0);
        /* Nothing has been completed by them. */
        GIVES(msg_test(w, &r[N - 1], &s), MSG_PENDING);
        GIVES(msg_test(w, &in, &s), MSG_PENDING);
        job_meet();
        OK(call_wait_all(w, N, r, NULL));
        OK(msg_wait(w, &in, &s, CHECK_WAIT_S * 1000));
    }
}

/* ---------------------------------------------------------------- a host that falls silent */

/* No closing and no reset: the interface goes down, and with it every notification. */
static void interface(int up)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq q = {.ifr_name = "eth0"};
    CHECK_EQ(ioctl(fd, SIOCGIFFLAGS, &q), 0);
    q.ifr_flags = (short)(up ? q.ifr_flags | IFF_UP : q.ifr_flags & ~IFF_UP);
    CHECK_EQ(ioctl(fd, SIOCSIFFLAGS, &q), 0);
    close(fd);
}

/* A rank that only receives detects it, too. On tcp between two hosts, and on the links eth and udp. */
void case_death_silent(msg_world **world, int rank, int n_ranks)
{
    char error[MSG_ERROR_LEN] = "";
    int v = 0;
    (void)n_ranks;
    if (strcmp(case_link, "udp") != 0 || case_bip || getenv("VIAKIT_FAULT"))
        return;
    /* A world of tcp in place of the one that the harness has opened. */
    msg_world_close(*world, CHECK_WAIT_S * 1000);
    *world = NULL;
    if (job_open("channel=tcp", world, error) != MSG_SUCCESS)
        FAIL("%s", error);
    msg_world *w = *world;
    job_meet();
    if (rank == 1) {
        interface(0);
        job_meet();
        interface(1);
        _exit(0);
    }
    GIVES(msg_recv(w, 1, &v, sizeof v, 1, 1, NULL), MSG_ERR_PROC_FAILED);
    job_meet();
}
