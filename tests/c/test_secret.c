/*
 * test_secret.c - processes that are not of the job try to become ranks of it (secret_job.h).
 *
 *   callers      tcp: silent callers, garbage, a right intro without proof, and a reply that was recorded before
 *   hanging      tcp: a listener that does not accept a rank's call, and one that does not answer it: the rank calls
 *   again
 *   damaged      cards whose lengths are wrong
 *   no secret    worlds of several ranks are refused
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "secret_job.h"

#include "msg/tcp_meet.h"

/* ---------------------------------------------------------------- callers */

#define N_SILENT 12 /* of each kind, for each rank that listens */
static int silent[N_RANKS * N_SILENT * 4], n_silent;

/* As tcp_meet.c sends it. */
struct reply {
    char job[32];
    uint32_t rank, reserved;
    uint8_t nonce[16], proof[32];
};

static int call(const struct tc_card *card)
{
    int fd = socket(card->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(connect(fd, &card->address.any, card->len), 0);
    silent[n_silent++] = fd;
    return fd;
}

/* As many as the listeners' backlogs hold besides the ranks, all before the first rank calls. Their data is in the
 * sockets before they are accepted. */
static void call_all(job *j, const void *all, size_t len)
{
    learn_word(j, all, len);
    j->hold_from = j->n_ranks;
    if (len != sizeof(struct tc_card))
        return;
    const struct tc_card *cards = all;
    struct reply r;
    for (int i = 0; i < j->n_ranks; i++) {
        for (int k = 0; k < N_SILENT / 3; k++) {
            call(&cards[i]); /* says nothing */
            /* Garbage, of the length of a reply and longer. */
            char garbage[300];
            memset(garbage, 'x', sizeof(garbage));
            CHECK(send(call(&cards[i]), garbage, k & 1 ? sizeof(garbage) : sizeof(r), MSG_NOSIGNAL) > 0);
            /* All that is public is right: the job's word and a rank that is to call. */
            memset(&r, 0, sizeof(r));
            memcpy(r.job, j->word, sizeof(r.job));
            r.rank = (uint32_t)(j->n_ranks - 1);
            CHECK_EQ(send(call(&cards[i]), &r, sizeof(r), MSG_NOSIGNAL), sizeof(r));
            /* As ranks of older versions call. */
            CHECK_EQ(send(call(&cards[i]), &r, offsetof(struct reply, nonce), MSG_NOSIGNAL),
                     offsetof(struct reply, nonce));
        }
    }
}

/* Reads until the other side hangs up. The nonce is all that a caller without proof gets. */
static size_t all_that_came(int fd)
{
    char bytes[4096];
    size_t n_all = 0;
    double end = check_now() + CHECK_WAIT_S;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        CHECK(check_now() < end);
        if (poll(&p, 1, 100) == 0)
            continue;
        ssize_t n = recv(fd, bytes, sizeof(bytes), 0);
        if (n <= 0)
            return n_all;
        n_all += (size_t)n;
    }
}

static void test_callers(void)
{
    static job j;
    rank_of_job ranks[N_RANKS];
    pthread_t threads[N_RANKS];
    snprintf(check_context, sizeof(check_context), "callers");
    init_job(&j, "tcp", N_RANKS);
    j.attack = call_all;
    begin_all(&j, open_rank, ranks, threads);
    end_all(&j, threads);
    for (int i = 0; i < n_silent; i++) {
        CHECK(all_that_came(silent[i]) <= 16);
        close(silent[i]);
    }
    begin_all(&j, talk, ranks, threads);
    end_all(&j, threads);
}

/* ---- a rank's own reply, recorded on the wire, and sent by another caller: the nonce is another one */

static struct {
    int listener, port;
    struct tc_card real; /* of rank 0 */
    struct reply recorded;
    int fd; /* fills a listener's backlog */
} relay;

#define N_DROPPED 40

/* Rank 1 is led to us, in place of rank 0; its first call is recorded and dropped, so it calls again, and again us. */
static void lead_astray(job *j, const void *all, size_t len)
{
    struct tc_card *cards = (struct tc_card *)(uintptr_t)all;
    (void)j;
    if (len != sizeof(*cards))
        return;
    relay.real = cards[0];
    cards[0].address.in.sin_port = htons((uint16_t)relay.port);
}

static void read_all(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = recv(fd, (char *)to + got, len - got, 0);
        CHECK(n > 0);
        got += (size_t)n;
    }
}

/* Passes on both ways what comes, until both have closed. */
static void pass_on(int caller, int rank0)
{
    for (int open = 3; open;) {
        char bytes[4096];
        struct pollfd p[2] = {{.fd = open & 1 ? caller : -1, .events = POLLIN},
                              {.fd = open & 2 ? rank0 : -1, .events = POLLIN}};
        CHECK(poll(p, 2, 1000 * CHECK_WAIT_S) > 0);
        for (int i = 0; i < 2; i++)
            if (p[i].revents) {
                ssize_t n = recv(p[i].fd, bytes, sizeof(bytes), 0);
                if (n > 0)
                    CHECK_EQ(send(i ? caller : rank0, bytes, (size_t)n, MSG_NOSIGNAL), n);
                else {
                    shutdown(i ? caller : rank0, SHUT_WR);
                    open &= ~(1 << i);
                }
            }
    }
    close(caller);
    close(rank0);
}

static int call_rank_0(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(connect(fd, &relay.real.address.any, relay.real.len), 0);
    return fd;
}

/* An attacker on the path: gives rank 1 the nonce of rank 0, records the reply, and lets it fail. Then replays it on a
 * connection of its own. The next call is passed on unchanged, as the honest wire would. */
static void *stand_between(void *argument)
{
    uint8_t nonce[16], proof[32], one;
    (void)argument;
    int caller = accept(relay.listener, NULL, NULL);
    for (int i = 0; i < N_DROPPED; i++) { /* as a listener with many callers does */
        CHECK(caller >= 0);
        close(caller);
        caller = accept(relay.listener, NULL, NULL);
    }
    CHECK(caller >= 0);
    int rank0 = call_rank_0();
    read_all(rank0, nonce, sizeof(nonce));
    CHECK_EQ(send(caller, nonce, sizeof(nonce), MSG_NOSIGNAL), sizeof(nonce));
    read_all(caller, &relay.recorded, sizeof(relay.recorded));
    close(rank0);
    /* On another connection rank 0 has another nonce: it hangs up, and proves nothing. */
    rank0 = call_rank_0();
    read_all(rank0, nonce, sizeof(nonce));
    CHECK_EQ(send(rank0, &relay.recorded, sizeof(relay.recorded), MSG_NOSIGNAL), sizeof(relay.recorded));
    CHECK(recv(rank0, &one, 1, 0) <= 0);
    close(rank0);
    close(caller); /* the rank calls again */
    caller = accept(relay.listener, NULL, NULL);
    rank0 = call_rank_0();
    read_all(rank0, nonce, sizeof(nonce));
    CHECK_EQ(send(caller, nonce, sizeof(nonce), MSG_NOSIGNAL), sizeof(nonce));
    read_all(caller, &relay.recorded, sizeof(relay.recorded));
    CHECK_EQ(send(rank0, &relay.recorded, sizeof(relay.recorded), MSG_NOSIGNAL), sizeof(relay.recorded));
    read_all(rank0, proof, sizeof(proof));
    CHECK_EQ(send(caller, proof, sizeof(proof), MSG_NOSIGNAL), sizeof(proof));
    pass_on(caller, rank0);
    return NULL;
}

/* Rank 1 of 2 is led to `between`, which listens with that backlog. Both ranks must be connected in the end. */
static void run_led_astray(const char *what, void *(*between)(void *), int backlog, int timeout_s)
{
    static job j;
    rank_of_job ranks[N_RANKS];
    pthread_t threads[N_RANKS], thread;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    snprintf(check_context, sizeof(check_context), "%s", what);
    relay.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQ(bind(relay.listener, (struct sockaddr *)(void *)&a, sizeof(a)), 0);
    CHECK_EQ(listen(relay.listener, backlog), 0);
    CHECK_EQ(getsockname(relay.listener, (struct sockaddr *)(void *)&a, &len), 0);
    relay.port = ntohs(a.sin_port);
    relay.fd = backlog ? -1 : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(backlog || connect(relay.fd, (struct sockaddr *)(void *)&a, sizeof(a)) == 0);
    init_job(&j, "tcp", 2);
    j.timeout_ms = 1000 * timeout_s;
    j.attack = lead_astray;
    CHECK_EQ(pthread_create(&thread, NULL, between, NULL), 0);
    begin_all(&j, open_rank, ranks, threads);
    end_all(&j, threads);
    begin_all(&j, talk, ranks, threads);
    end_all(&j, threads);
    pthread_join(thread, NULL);
    close(relay.listener);
}

/* ---- calls that hang: the kernel would repeat a lost SYN ever more seldom, and wait for a silent listener for ever */

/* The local port of a call to relay.port that the listener's kernel has not accepted, or 0. */
static unsigned calling_port(void)
{
    char line[256];
    unsigned found = 0, from, to, state;
    FILE *f = fopen("/proc/net/tcp", "re");
    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f))
        if (sscanf(line, " %*d: %*x:%x %*x:%x %x", &from, &to, &state) == 3 && to == (unsigned)relay.port &&
            state == 2) /* TCP_SYN_SENT */
            found = from;
    fclose(f);
    return found;
}

/* The backlog has one place, which relay.fd occupies: SYNs of the rank are lost. When it has called again, it is
 * accepted, and not answered. Its next call is passed on. */
static void *let_hang(void *argument)
{
    unsigned first = 0, now;
    (void)argument;
    WAIT_UNTIL((first = calling_port()) != 0);
    WAIT_UNTIL((now = calling_port()) != 0 && now != first);
    close(accept(relay.listener, NULL, NULL));
    close(relay.fd);
    int hanging = accept(relay.listener, NULL, NULL);
    CHECK(hanging >= 0);
    struct pollfd p = {.fd = relay.listener, .events = POLLIN};
    if (poll(&p, 1, 1000 * CHECK_WAIT_S) != 1)
        FAIL("the rank did not call again in %d s", CHECK_WAIT_S);
    pass_on(accept(relay.listener, NULL, NULL), call_rank_0());
    close(hanging);
    return NULL;
}

/* ---------------------------------------------------------------- cards that are damaged */

static struct {
    size_t at, n; /* bytes of each card that are overwritten ... */
    uint8_t value;
} damage;

/* The second exchange is that of the cards. */
static void damage_cards(job *j, const void *all, size_t len)
{
    if (j->n_exchanges != 2)
        return;
    CHECK(damage.at + damage.n <= len);
    for (int i = 0; i < j->n_ranks; i++)
        memset((uint8_t *)(uintptr_t)all + (size_t)i * len + damage.at, damage.value, damage.n);
}

/* Lengths in cards are checked before anything is copied, counted or connected by them. */
static void test_damaged_cards(void)
{
    static const struct {
        const char *policy;
        size_t at, n;
        uint8_t value;
        const char *expected;
    } cases[] = {
        {"via", 16, 2, 255, "has an address of 255 bytes"}, /* len of struct address_card, after two hosts of 8 bytes */
        {"via", 16, 2, 0, "has an address of 0 bytes"},
        {"via", 20, 8, 0, "and 0 receives"}, /* n_recv */
        {"tcp", offsetof(struct tc_card, len), 2, 255, "no IPv4 or IPv6 address"},
        {"tcp", offsetof(struct tc_card, len), 1, 2, "no IPv4 or IPv6 address"},
        {"tcp", 0, 2, 0, "no IPv4 or IPv6 address"}, /* the family */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        static job j;
        rank_of_job ranks[N_RANKS];
        pthread_t threads[N_RANKS];
        snprintf(check_context, sizeof(check_context), "damaged card %zu", i);
        init_job(&j, cases[i].policy, N_RANKS);
        damage.at = cases[i].at;
        damage.n = cases[i].n;
        damage.value = cases[i].value;
        j.attack = damage_cards;
        j.expected = cases[i].expected;
        begin_all(&j, open_rank, ranks, threads);
        end_all(&j, threads);
    }
}

/* ---------------------------------------------------------------- no secret */

static void test_no_secret(void)
{
    static const char *const policies[] = {"via", "bip", "tcp"};
    char error[MSG_ERROR_LEN] = "";
    static job j;
    msg_world *world = NULL;
    rank_of_job r = {&j, 0};
    snprintf(check_context, sizeof(check_context), "no secret");
    init_job(&j, "via", 2);
    for (int i = 0; i < 3; i++) {
        msg_options o = {.size = sizeof(o),
                         .n_ranks = 2,
                         .policy = msg_policy_find(policies[i]),
                         .exchange = exchange,
                         .exchange_context = &r};
        CHECK_EQ(msg_world_open(&o, &world, error), MSG_ERR_ARG);
        CHECK(strstr(error, "secret") != NULL);
        o.n_ranks = 1;
        CHECK_EQ(msg_world_open(&o, &world, error), MSG_SUCCESS);
        CHECK_EQ(msg_world_close(world, 0), MSG_SUCCESS);
    }
}

int main(void)
{
    test_no_secret();
    test_damaged_cards();
    test_callers();
    run_led_astray("replay", stand_between, 8, CHECK_WAIT_S);
    run_led_astray("hanging", let_hang, 0, 4 * CHECK_WAIT_S);
    return 0;
}
