/*
 * test_daemon.c - the daemon of a host (csrc/msg/tcp_daemon.c) beside processes that do not belong to its job. Ranks 0
 * and 1 are on its host. This program is the daemon of rank 2 on another host.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "check.h"
#include "msg/tcp_daemon.h"

#define RANKS 3
#define LOCAL 2
#define OTHER_USER 65534
#define PACKET 4096 /* bytes of data in a datagram; a stream has one under way at a time */

enum { DATA = 1, END = 2 };

/* As in tcp_daemon.c. */
struct datagram {
    uint8_t key[16];
    uint32_t from, to, len, flags;
    uint64_t offset, acked;
};

static struct td_plan plan;
static struct sockaddr_un meeting;
static socklen_t meeting_len;
static int peer_socket;           /* of rank 2's daemon */
static int ends[LOCAL][RANKS];    /* of the ranks */
static uint64_t delivered[LOCAL]; /* offset of rank 2's stream to each rank */

static int udp_socket(struct tc_card *card)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    card->len = sizeof card->address.in;
    card->address.in = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK_EQ(bind(fd, &card->address.any, card->len), 0);
    CHECK_EQ(getsockname(fd, &card->address.any, &card->len), 0);
    return fd;
}

static void make_plan(void)
{
    struct tc_card own, *hosts = calloc(RANKS, sizeof *hosts);
    meeting = (struct sockaddr_un){.sun_family = AF_UNIX};
    meeting_len = sizeof meeting;
    plan =
        (struct td_plan){.n_ranks = RANKS, .n_streams = LOCAL * RANKS, .hosts = hosts, .packet = PACKET, .packets = 1};
    plan.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(plan.listener, (struct sockaddr *)&meeting, sizeof meeting.sun_family), 0);
    CHECK_EQ(listen(plan.listener, 128), 0);
    CHECK_EQ(getsockname(plan.listener, (struct sockaddr *)&meeting, &meeting_len), 0);
    plan.udp = udp_socket(&own);
    peer_socket = udp_socket(&hosts[2]);
    CHECK_EQ(connect(peer_socket, &own.address.any, own.len), 0);
    plan.local = calloc(RANKS, sizeof *plan.local);
    plan.local[1] = 1;
    plan.local[2] = -1;
    plan.streams = calloc((size_t)plan.n_streams, sizeof *plan.streams);
    plan.polls = calloc((size_t)plan.n_streams + 1, sizeof *plan.polls);
    plan.bytes = malloc((size_t)plan.n_streams * TD_WINDOW);
    for (int i = 0; i < plan.n_streams; i++)
        plan.streams[i] = (struct td_stream){.fd = -1,
                                             .to = -1,
                                             .rank = (uint32_t)(i / RANKS),
                                             .peer = (uint32_t)(i % RANKS),
                                             .bytes = plan.bytes + (size_t)i * TD_WINDOW,
                                             .resend_at = VK_NEVER,
                                             .pause = TD_PAUSE};
    memset(plan.key, 0x4b, sizeof plan.key);
    memset(plan.secret, 0x53, sizeof plan.secret);
}

static void *run_daemon(void *unused)
{
    (void)unused;
    td_run(&plan);
    return NULL;
}

/* ---------------------------------------------------------------- handovers */

/* Returns a connection on which the daemon has sent a nonce; -1 if it has closed the connection. */
static int call(uint8_t nonce[TD_NONCE])
{
    struct timeval limit = {CHECK_WAIT_S, 0};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(fd, (struct sockaddr *)&meeting, meeting_len), 0);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    ssize_t got = recv(fd, nonce, TD_NONCE, MSG_WAITALL);
    if (got == TD_NONCE)
        return fd;
    CHECK_EQ(got, 0);
    close(fd);
    return -1;
}

/* Hands over the daemon's ends of the streams of a rank. The ranks' ends are stored in `kept`. */
static void hand_over(int fd, uint32_t rank, const uint8_t nonce[TD_NONCE], int kept[RANKS])
{
    struct td_handover h = {.rank = rank, .first = 0, .n = RANKS - 1};
    char control[CMSG_SPACE((RANKS - 1) * sizeof(int))] = {0};
    struct iovec v = {&h, sizeof h};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    int theirs[RANKS - 1], n = 0;
    for (int peer = 0; peer < RANKS; peer++) {
        int pair[2];
        if (peer == (int)rank)
            continue;
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
        kept[peer] = pair[0];
        theirs[n++] = pair[1];
    }
    td_proof(plan.secret, nonce, &h, h.proof);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof theirs);
    memcpy(CMSG_DATA(c), theirs, sizeof theirs);
    CHECK_EQ(sendmsg(fd, &m, MSG_NOSIGNAL), (ssize_t)sizeof h);
    for (int i = 0; i < n; i++)
        close(theirs[i]);
}

/* Reads one byte. Returns -1 at the end of the stream. */
static int read_byte(int fd)
{
    struct pollfd one = {.fd = fd, .events = POLLIN};
    unsigned char c;
    CHECK_EQ(poll(&one, 1, CHECK_WAIT_S * 1000), 1);
    return read(fd, &c, 1) == 1 ? c : -1;
}

/* The daemon closes what it gets from a caller with a proof for another connection. */
static void test_replayed_proof(void)
{
    uint8_t nonce[TD_NONCE], earlier[TD_NONCE] = {0};
    int mine[RANKS], fd = call(nonce);
    CHECK(fd >= 0);
    hand_over(fd, 0, earlier, mine);
    CHECK_EQ(read_byte(mine[1]), -1);
    CHECK_EQ(read_byte(mine[2]), -1);
    close(mine[1]);
    close(mine[2]);
    close(fd);
}

/* A process of another user gets no nonce, however many connections it opens. Only root can become another user. */
static void test_other_user(void)
{
    if (geteuid() != 0)
        return;
    pid_t child = fork();
    if (child == 0) {
        uint8_t nonce[TD_NONCE];
        CHECK(setgid(OTHER_USER) == 0 && setuid(OTHER_USER) == 0);
        for (int i = 0; i < 50; i++)
            CHECK_EQ(call(nonce), -1);
        _exit(0);
    }
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}

static void hand_over_all(void)
{
    for (uint32_t rank = 0; rank < LOCAL; rank++) {
        uint8_t nonce[TD_NONCE];
        int fd = call(nonce);
        CHECK(fd >= 0);
        hand_over(fd, rank, nonce, ends[rank]);
        close(fd);
    }
}

/* ---------------------------------------------------------------- datagrams */

static void send_to_daemon(struct datagram d, const char *text)
{
    struct iovec v[2] = {{&d, sizeof d}, {(void *)(uintptr_t)text, strlen(text)}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    CHECK(sendmsg(peer_socket, &m, 0) > 0);
}

static struct datagram right(uint32_t to, uint64_t offset, const char *text)
{
    struct datagram d = {.from = 2, .to = to, .len = (uint32_t)strlen(text), .flags = DATA, .offset = offset};
    memcpy(d.key, plan.key, sizeof d.key);
    return d;
}

/* The first byte that a rank reads is of the first datagram that is right. */
static void test_forged_datagrams(void)
{
    struct datagram d = right(0, 0, "x");
    d.key[0] ^= 1;
    send_to_daemon(d, "x");
    d = right(0, 0, "x");
    d.len = 100000;
    send_to_daemon(d, "x");
    d.len = UINT32_MAX;
    send_to_daemon(d, "x");
    d = right(0, 1, "x"); /* behind a gap */
    send_to_daemon(d, "x");
    d = right(0, UINT64_MAX, "x");
    send_to_daemon(d, "x");
    d = right(0, 0, "x");
    d.from = 1; /* a rank of the daemon's own host */
    send_to_daemon(d, "x");
    d.from = 7;
    send_to_daemon(d, "x");
    d = right(2, 0, "x");
    send_to_daemon(d, "x");
    d = right(0, 0, "");
    d.flags = 0xff;
    d.acked = UINT64_MAX; /* more than was ever sent */
    send_to_daemon(d, "");
    CHECK(send(peer_socket, &d, 20, 0) == 20);
    send_to_daemon(right(0, 0, "a"), "a");
    CHECK_EQ(read_byte(ends[0][2]), 'a');
    send_to_daemon(right(0, 0, "ab"), "ab"); /* repeated, with more */
    CHECK_EQ(read_byte(ends[0][2]), 'b');
    delivered[0] = 2;
}

static void test_within_the_host(void)
{
    CHECK_EQ(write(ends[0][1], "c", 1), 1);
    CHECK_EQ(read_byte(ends[1][0]), 'c');
}

/* Receives a datagram of the daemon, if one has arrived. */
static int receive(struct datagram *d)
{
    char data[TD_PACKET];
    struct iovec v[2] = {{d, sizeof *d}, {data, sizeof data}};
    struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
    return recvmsg(peer_socket, &m, 0) >= (ssize_t)sizeof *d;
}

/* Three packets, of which each leaves after the acknowledgement of the one before. Repetitions may come in between. */
static void test_packets_one_by_one(void)
{
    static const char bytes[2 * PACKET + 100];
    struct pollfd one = {.fd = peer_socket, .events = POLLIN};
    uint64_t next = 0;
    CHECK_EQ(write(ends[1][2], bytes, sizeof bytes), sizeof bytes);
    while (next < sizeof bytes) {
        struct datagram d;
        CHECK_EQ(poll(&one, 1, 20000), 1);
        if (!receive(&d) || d.from != 1 || d.flags != DATA || d.offset < next)
            continue;
        CHECK_EQ(d.offset, next);
        uint32_t len = d.len;
        CHECK_EQ(len, sizeof bytes - next < PACKET ? sizeof bytes - next : PACKET);
        CHECK_EQ(poll(&one, 1, 5) > 0 && receive(&d) && d.from == 1 && d.flags == DATA && d.offset > next, 0);
        next += len;
        struct datagram reply = right(1, 0, "");
        reply.flags = 0;
        reply.acked = next;
        send_to_daemon(reply, "");
    }
}

/* Acknowledges what the daemon sends, and ends the streams of rank 2. */
static void acknowledge(void)
{
    struct datagram d;
    while (receive(&d)) {
        struct datagram reply = right(d.from, 0, "");
        if (d.flags != DATA && d.flags != END)
            continue;
        reply.flags = 0;
        reply.acked = d.offset + d.len + (d.flags == END);
        send_to_daemon(reply, "");
        reply.flags = END;
        reply.offset = delivered[d.from];
        send_to_daemon(reply, "");
    }
}

int main(void)
{
    pthread_t daemon;
    check_deadline(50 * CHECK_SLOWER);
    make_plan();
    CHECK_EQ(pthread_create(&daemon, NULL, run_daemon, NULL), 0);
    test_other_user();
    test_replayed_proof();
    hand_over_all();
    test_within_the_host();
    test_forged_datagrams();
    test_packets_one_by_one();
    for (int rank = 0; rank < LOCAL; rank++)
        for (int peer = 0; peer < RANKS; peer++)
            if (peer != rank)
                close(ends[rank][peer]);
    WAIT_UNTIL((acknowledge(), pthread_tryjoin_np(daemon, NULL) == 0));
    close(peer_socket);
    close(plan.udp);
    free(plan.local);
    free(plan.hosts);
    free(plan.streams);
    free(plan.polls);
    free(plan.bytes);
    return 0;
}
