/*
 * test_secret.c - processes that are not of the job try to become ranks of it.
 *
 * Ranks are threads. The exchange that a launcher would make is in the test's hands: there it learns all that others can
 * learn (names, addresses, ports, discriminators), and attacks before the ranks go on.
 *
 *   taken over   via and bip over udp: a NIC at rank 1's station, of another process and, if the test may choose one, of
 *                another user, answers rank 0's request with the right discriminators
 *   callers      tcp: silent callers, garbage, a right intro without proof, and a reply that was recorded before
 *   hanging      tcp: a listener that does not accept a rank's call, and one that does not answer it: the rank calls again
 *   damaged      cards whose lengths are wrong
 *   no secret    worlds of several ranks are refused
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* First: they have parameters with the name of a type of the harness. */
#include "msg/msg.h"
#include "msg/policy.h"
#include "msg/tcp_meet.h"

#include "harness.h"

#define N_RANKS 3
#define LEN_MOST 4096
#define OTHER_USER 65534

static const unsigned char the_secret[MSG_SECRET_LEN] = "thirty-two bytes of test secret";

typedef struct job {
    int n_ranks, n_exchanges;
    const char *policy;
    void (*attack)(struct job *j, const void *all, size_t len); /* called once per exchange, before rank 0 returns */
    int hold_from;        /* ranks from this one on wait for `released` after the attack was called */
    int released;         /* under the mutex */
    int timeout_ms;       /* of opening */
    const char *expected; /* NULL: the worlds open; else they fail with this text */
    char word[33];        /* of the job: what others read in the names of its NICs */
    msg_world *worlds[N_RANKS];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int n_here, round;
    uint8_t blobs[N_RANKS * LEN_MOST];
} job;

typedef struct {
    job *job;
    int rank;
} rank_of_job;

/* An allgather of threads; all ranks leave with the same blobs, rank 0 after the attack. */
static int exchange(void *context, const void *mine, size_t len, void *all)
{
    rank_of_job *r = context;
    job *j = r->job;
    CHECK(len <= LEN_MOST);
    pthread_mutex_lock(&j->mutex);
    memcpy(j->blobs + (size_t)r->rank * len, mine, len);
    int round = j->round;
    if (++j->n_here == j->n_ranks) {
        j->n_here = 0;
        j->n_exchanges++;
        if (j->attack)
            j->attack(j, j->blobs, len);
        j->round++;
        pthread_cond_broadcast(&j->changed);
    }
    while (j->round == round)
        pthread_cond_wait(&j->changed, &j->mutex);
    memcpy(all, j->blobs, len * (size_t)j->n_ranks);
    /* The last rank to copy may find the blobs of the next round only if others could write them: they wait here. */
    round = j->round;
    if (++j->n_here == j->n_ranks) {
        j->n_here = 0;
        j->round++;
        pthread_cond_broadcast(&j->changed);
    }
    while (j->round == round)
        pthread_cond_wait(&j->changed, &j->mutex);
    while (r->rank >= j->hold_from && !j->released)
        pthread_cond_wait(&j->changed, &j->mutex);
    pthread_mutex_unlock(&j->mutex);
    return 0;
}

static void *open_rank(void *argument)
{
    rank_of_job *r = argument;
    char error[MSG_ERROR_LEN] = "", host[16], device[32];
    msg_policy policy = *msg_policy_find(r->job->policy);
    snprintf(host, sizeof(host), "host %d", r->rank);
    snprintf(device, sizeof(device), "udp:127.0.0.%d", 1 + r->rank);
    msg_options o = {.size = sizeof(o),
                     .rank = r->rank,
                     .n_ranks = r->job->n_ranks,
                     .policy = &policy,
                     .exchange = exchange,
                     .exchange_context = r,
                     .host = host,
                     .network_device = device,
                     .address = "127.0.0.1",
                     .open_timeout_ms = r->job->timeout_ms,
                     .secret = the_secret};
    int code = msg_world_open(&o, &r->job->worlds[r->rank], error);
    if (r->job->expected) {
        CHECK(code != 0);
        if (strstr(error, r->job->expected) == NULL)
            FAIL("rank %d: '%s', expected '%s'", r->rank, error, r->job->expected);
    } else if (code)
        FAIL("rank %d: %s: %s", r->rank, msg_error_name(code), error);
    return NULL;
}

/* Each rank's number to the next one: the connections are those of the ranks. */
static void *talk(void *argument)
{
    rank_of_job *r = argument;
    msg_world *w = r->job->worlds[r->rank];
    int n = r->job->n_ranks, mine = r->rank, theirs = -1, from = (r->rank + n - 1) % n;
    CHECK_EQ(msg_sendrecv(w, 1, &mine, sizeof(mine), (r->rank + 1) % n, 7, &theirs, sizeof(theirs), from, 7, NULL),
             MSG_SUCCESS);
    CHECK_EQ(theirs, from);
    CHECK_EQ(msg_world_close(w, 1000 * CHECK_WAIT_S), MSG_SUCCESS);
    return NULL;
}

static void init_job(job *j, const char *policy, int n_ranks)
{
    memset(j, 0, sizeof(*j));
    j->policy = policy;
    j->n_ranks = n_ranks;
    j->hold_from = n_ranks;
    j->timeout_ms = 1000 * CHECK_WAIT_S;
    pthread_mutex_init(&j->mutex, NULL);
    pthread_cond_init(&j->changed, NULL);
}

static void begin_all(job *j, void *(*what)(void *), rank_of_job *ranks, pthread_t *threads)
{
    for (int i = 0; i < j->n_ranks; i++) {
        ranks[i] = (rank_of_job){j, i};
        CHECK_EQ(pthread_create(&threads[i], NULL, what, &ranks[i]), 0);
    }
}

static void end_all(job *j, pthread_t *threads)
{
    for (int i = 0; i < j->n_ranks; i++)
        pthread_join(threads[i], NULL);
}

static void release(job *j)
{
    pthread_mutex_lock(&j->mutex);
    j->released = 1;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->mutex);
}

static int exchanges_made(job *j)
{
    pthread_mutex_lock(&j->mutex);
    int n = j->round;
    pthread_mutex_unlock(&j->mutex);
    return n;
}

/* ---------------------------------------------------------------- taken over */

/* The first exchange are hellos, where rank 0 gives the job's word: all others see it in /proc/net/unix. */
static void learn_word(job *j, const void *all, size_t len)
{
    (void)len;
    if (j->n_exchanges != 1)
        return;
    /* hello: magic, host, machine, policy (8 bytes each), four words of 4, then the random bytes. */
    const uint8_t *random = (const uint8_t *)all + 48;
    for (int i = 0; i < 16; i++)
        snprintf(j->word + 2 * i, 3, "%02x", random[i]);
    j->hold_from = 1;
    j->released = 1;
}

/* From the exchange of cards on rank 1 stands still. */
static void hold_rank_1(job *j, const void *all, size_t len)
{
    learn_word(j, all, len);
    if (j->n_exchanges == 2)
        j->released = 0;
}

/* Channel via takes 8 characters of the word, BIP takes 15 and a zero. */
static void name_end(address *a, const uint8_t host[6], const char *policy, const char *word, uint32_t from,
                     uint32_t to)
{
    uint8_t discriminator[24] = {0};
    size_t used = strcmp(policy, "bip") == 0 ? 15 : 8, len = (used + 7) / 8 * 8;
    memcpy(discriminator, word, used);
    memcpy(discriminator + len, &from, 4);
    memcpy(discriminator + len + 4, &to, 4);
    make_address(a, host, discriminator, len + 8);
}

/* A NIC of our own at rank 1's station asks rank 0 as rank 1 would. It sees rank 0's requests, which go to all NICs of
 * the station, and must not be connected however many it answers. Returns whether it was. */
static int try_to_take_over(const char *policy, const char *word)
{
    viakit_nic_options options = {.size = sizeof(options)};
    VIP_NIC_HANDLE nic, scout;
    VIP_NIC_ATTRIBUTES own, theirs;
    VIP_PROTECTION_HANDLE tag;
    VIP_VI_HANDLE vi;
    address local, remote;
    int taken = 0;
    CHECK_OK(viakit_open_nic("udp:127.0.0.2", &options, &nic));
    CHECK_OK(viakit_open_nic("udp:127.0.0.1", &options, &scout));
    CHECK_OK(VipQueryNic(nic, &own));
    CHECK_OK(VipQueryNic(scout, &theirs));
    CHECK_OK(VipCreatePtag(nic, &tag));
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
                              .MaxTransferSize = own.MaxTransferSize,
                              .Ptag = tag,
                              .EnableRdmaWrite = VIP_TRUE,
                              .EnableRdmaRead = VIP_TRUE};
    CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
    name_end(&local, own.LocalNicAddress, policy, word, 1, 0);
    name_end(&remote, theirs.LocalNicAddress, policy, word, 0, 1);
    /* Several attempts, each while rank 0 repeats its request: at least every 200 ms. */
    for (int i = 0; i < 4 && !taken; i++) {
        CHECK_OK(VipConnectPeerRequest(vi, &local.net, &remote.net, 500));
        VIP_RETURN r = VipConnectPeerWait(vi, &attr);
        taken = r == VIP_SUCCESS;
        if (!taken)
            CHECK_RET(r, VIP_TIMEOUT);
    }
    CHECK_OK(VipDisconnect(vi));
    CHECK_OK(VipDestroyVi(vi));
    CHECK_OK(VipDestroyPtag(nic, tag));
    CHECK_OK(VipCloseNic(scout));
    CHECK_OK(VipCloseNic(nic));
    return taken;
}

/* The attacker, a process that begins before the library is used. It reads the job's word, and reports the result. */
typedef struct {
    const char *policy;
    int ctl; /* its parent's end of a socket pair */
    pid_t pid;
} attacker;

static void start_attacker(attacker *a, const char *policy)
{
    int fds[2];
    char word[33], taken;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    a->policy = policy;
    a->ctl = fds[0];
    a->pid = fork();
    CHECK(a->pid >= 0);
    if (a->pid) {
        close(fds[1]);
        return;
    }
    close(fds[0]);
    snprintf(check_context, sizeof(check_context), "attacker of %s", policy);
    if (geteuid() == 0) {
        CHECK_EQ(setgroups(0, NULL), 0);
        CHECK_EQ(setresgid(OTHER_USER, OTHER_USER, OTHER_USER), 0);
        CHECK_EQ(setresuid(OTHER_USER, OTHER_USER, OTHER_USER), 0);
    }
    if (recv(fds[1], word, sizeof(word), 0) != sizeof(word))
        exit(1); /* the test has failed before */
    taken = (char)try_to_take_over(policy, word);
    CHECK_EQ(send(fds[1], &taken, 1, MSG_NOSIGNAL), 1);
    exit(0);
}

static void test_taken_over(attacker *a)
{
    static job j;
    rank_of_job ranks[N_RANKS];
    pthread_t threads[N_RANKS];
    char taken = 1;
    int status;
    snprintf(check_context, sizeof(check_context), "taken over: %s", a->policy);
    init_job(&j, a->policy, 2);
    j.attack = hold_rank_1;
    begin_all(&j, open_rank, ranks, threads);
    double end = check_now() + CHECK_WAIT_S;
    while (exchanges_made(&j) < 4) { /* two exchanges, of two rounds each */
        CHECK(check_now() < end);
        sched_yield();
    }
    CHECK_EQ(send(a->ctl, j.word, sizeof(j.word), MSG_NOSIGNAL), sizeof(j.word));
    CHECK_EQ(recv(a->ctl, &taken, 1, 0), 1);
    CHECK_EQ(waitpid(a->pid, &status, 0), a->pid);
    CHECK_EQ(status, 0);
    close(a->ctl);
    if (taken)
        FAIL("a NIC without the job's secret is connected with rank 0 in rank 1's place");
    release(&j);
    end_all(&j, threads);
    begin_all(&j, talk, ranks, threads);
    end_all(&j, threads);
}

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

/* As many as the listeners' backlogs hold besides the ranks, all before the first rank calls. What they send lies in the
 * sockets already when they are accepted. */
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

/* The local port of a call to relay.port that the listener's kernel has not accepted, 0 if there is none. */
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
    attacker of_via, of_bip;
    start_attacker(&of_via, "via");
    start_attacker(&of_bip, "bip");
    test_no_secret();
    test_damaged_cards();
    test_callers();
    run_led_astray("replay", stand_between, 8, CHECK_WAIT_S);
    run_led_astray("hanging", let_hang, 0, 4 * CHECK_WAIT_S);
    test_taken_over(&of_via);
    test_taken_over(&of_bip);
    return 0;
}
