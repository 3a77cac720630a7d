/*
 * msg_job.c - a job: n ranks that open a world together, run a case, and close it.
 *
 * Ranks are forked processes that inherit one end of a socket pair each. The process that forked them has the other
 * ends and only runs the exchange (serve), as a launcher does. Deaths need processes, because the kernel closes the
 * sockets of dead ones. On loop, which does not leave its process, ranks are threads, and none may die. A case that is
 * stuck is ended by check_deadline, with its name.
 */
#include "msg_job.h"

#include <errno.h>
#include <linux/capability.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "check.h"
#include "netns.h"

#define MAX_RANKS 128

struct rank {
    const job *job;
    job_main main;
    int rank, socket;
    pthread_t thread;
};

/* On loop ranks are threads, so each has its own. */
static __thread const struct rank *me;

/* ---------------------------------------------------------------- the exchange */

static int read_all(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (char *)to + got, len - got);
        if (n <= 0 && errno != EINTR)
            return -1;
        got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int write_all(int fd, const void *from, size_t len)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t n = send(fd, (const char *)from + sent, len - sent, MSG_NOSIGNAL);
        if (n <= 0 && errno != EINTR)
            return -1;
        sent += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* A blob from each rank to all: a length, then the bytes. The reply has those of all ranks, in their order. */
static int exchange(void *context, const void *own, size_t len, void *all)
{
    const struct rank *r = context;
    uint32_t size = (uint32_t)len;
    if (write_all(r->socket, &size, sizeof size) != 0 || write_all(r->socket, own, len) != 0)
        return -1;
    return read_all(r->socket, all, len * (size_t)r->job->n_ranks);
}

/* One byte of each: the exchange replies once it has received from all ranks that are alive. */
void job_meet(void)
{
    char all[MAX_RANKS], own = 0;
    CHECK_EQ(exchange((void *)(uintptr_t)me, &own, 1, all), 0);
}

/* The other end: collects a blob from each rank that is left, sends all of them to each, until all have hung up. */
static void serve(int n, int *sockets)
{
    /* A dead rank's place keeps its old bytes: the others cannot detect that, and must not need to. */
    static char blobs[MAX_RANKS * 4096];
    int alive = n;
    while (alive > 0) {
        uint32_t len = 0;
        for (int i = 0; i < n; i++) {
            if (sockets[i] < 0)
                continue;
            if (read_all(sockets[i], &len, sizeof len) != 0 || len > 4096 ||
                read_all(sockets[i], blobs + (size_t)i * len, len) != 0) {
                close(sockets[i]);
                sockets[i] = -1;
                alive--;
            }
        }
        for (int i = 0; i < n; i++)
            if (sockets[i] >= 0)
                write_all(sockets[i], blobs, (size_t)len * (size_t)n);
    }
}

/* ---------------------------------------------------------------- ranks */

/* Another world of the same ranks, as the case's own was opened; `policy` is set on top of the job's. */
int job_open(const char *policy, msg_world **world, char *error)
{
    const job *j = me->job;
    /* A link with the name of a policy is that policy's channel. All others are devices of via and bip. */
    const msg_policy *own = msg_policy_find(j->link);
    msg_policy p = own ? *own : *msg_policy_find(j->bip ? "bip" : "via");
    char host[32], device[64];
    static const unsigned char secret[MSG_SECRET_LEN] = "the secret of this test's ranks";
    msg_options o = {.size = sizeof o,
                     .secret = secret,
                     .rank = me->rank,
                     .n_ranks = j->n_ranks,
                     .policy = &p,
                     .exchange = exchange,
                     .exchange_context = (void *)(uintptr_t)me,
                     .threads = j->threads,
                     .open_timeout_ms = CHECK_WAIT_S * 2000};
    /* Later values win: the channel's own, the case's, this call's. */
    if (j->policy && msg_policy_parse(&p, j->policy, error) != 0)
        return MSG_ERR_ARG;
    if (policy && msg_policy_parse(&p, policy, error) != 0)
        return MSG_ERR_ARG;
    /* "host 0", "host 1", ... in turns; the NIC for others is one on shm where there is no network. */
    if (j->hosts) {
        snprintf(host, sizeof host, "host %d", me->rank % j->hosts);
        o.host = host;
        snprintf(device, sizeof device, "shm:test-net-%d", (int)(strcmp(j->link, "loop") ? getppid() : getpid()));
        if (strcmp(j->link, "udp") == 0)
            snprintf(device, sizeof device, "udp:%s", netns_address(0, me->rank % 2));
        o.network_device = strcmp(j->link, "eth") == 0 ? "eth:eth0" : device;
        if (own)
            o.address = "127.0.0.1";
    }
    if (strcmp(j->link, "loop") == 0)
        o.local_device = "loop:test";
    return msg_world_open(&o, world, error);
}

/* A rank from beginning to end. Closing must succeed, too: requests that a case left active, and ranks that never come
 * to close, show here. A case that expects otherwise closes its world and sets it to NULL. */
static void *run_rank(void *argument)
{
    char error[MSG_ERROR_LEN] = "";
    msg_world *world = NULL;
    me = argument;
    int code = job_open(NULL, &world, error);
    if (code)
        FAIL("rank %d: msg_world_open: %s: %s", me->rank, msg_error_name(code), error);
    me->main(&world, me->rank, me->job->n_ranks);
    if (world) {
        code = msg_world_close(world, CHECK_WAIT_S * 1000);
        if (code)
            FAIL("rank %d: msg_world_close: %s", me->rank, msg_error_name(code));
    }
    return NULL;
}

/* Serves rounds as serve does. A round has a blob from each rank, so ranks are read in turn. While one is silent, the
 * server checks whether it has ended: then no further round comes, and the server waits only for the others. */
static void run_threads(const job *j, struct rank *ranks, int *sockets)
{
    for (int i = 0; i < j->n_ranks; i++)
        CHECK_EQ(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    /* no rank closes its socket before the end, so the server uses this thread until all ranks have ended */
    for (;;) {
        struct pollfd fds[MAX_RANKS];
        static char blobs[MAX_RANKS * 4096];
        uint32_t len = 0;
        for (int i = 0; i < j->n_ranks; i++)
            fds[i] = (struct pollfd){.fd = sockets[i], .events = POLLIN};
        int ended = 0;
        for (int i = 0; i < j->n_ranks && !ended; i++) {
            while (poll(&fds[i], 1, 20) == 0) {
                if (pthread_tryjoin_np(ranks[i].thread, NULL) == 0) {
                    ended = 1;
                    break;
                }
            }
            if (ended) {
                for (int k = 0; k < j->n_ranks; k++)
                    if (k != i)
                        pthread_join(ranks[k].thread, NULL);
                return;
            }
            CHECK_EQ(read_all(sockets[i], &len, sizeof len), 0);
            CHECK(len <= 4096);
            CHECK_EQ(read_all(sockets[i], blobs + (size_t)i * len, len), 0);
        }
        for (int i = 0; i < j->n_ranks; i++)
            CHECK_EQ(write_all(sockets[i], blobs, (size_t)len * (size_t)j->n_ranks), 0);
    }
}

/* Limits open files for a process without privileges: with either capability the kernel lets it pass any number of
 * descriptors. */
static void limit_open_files(rlim_t n)
{
    struct rlimit limit = {n, n};
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct sets[2];
    CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    CHECK_EQ(syscall(SYS_capget, &header, sets), 0);
    sets[0].effective &= ~(1u << CAP_SYS_RESOURCE | 1u << CAP_SYS_ADMIN);
    CHECK_EQ(syscall(SYS_capset, &header, sets), 0);
}

/* Forks the ranks and is their exchange until the last has hung up. All are waited for, and all that failed are named,
 * before this fails: the first that failed is seldom the one that is to blame. */
static void run_processes(const job *j, struct rank *ranks, int *sockets)
{
    pid_t pids[MAX_RANKS];
    /* Or each child would print again what is still in the buffer. */
    fflush(stdout);
    for (int i = 0; i < j->n_ranks; i++) {
        pids[i] = fork();
        CHECK(pids[i] >= 0);
        if (pids[i] == 0) {
            /* Two ends for an orphaned rank: its parent's death, and a deadline of its own, because alarms are not
             * inherited. */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            check_deadline(300);
            /* Only its own end: the server must see when this rank hangs up. */
            for (int k = 0; k < j->n_ranks; k++) {
                close(sockets[k]);
                if (k != i)
                    close(ranks[k].socket);
            }
            if (strcmp(j->link, "eth") == 0 || strcmp(j->link, "udp") == 0)
                CHECK_EQ(setns(j->namespaces[i % 2], CLONE_NEWNET), 0);
            if (j->open_files)
                limit_open_files((rlim_t)j->open_files);
            run_rank(&ranks[i]);
            CHECK_NOTHING_LEFT();
            exit(0);
        }
    }
    for (int i = 0; i < j->n_ranks; i++)
        close(ranks[i].socket);
    serve(j->n_ranks, sockets);
    int bad = 0;
    for (int i = 0; i < j->n_ranks; i++) {
        int status = 0;
        CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
        /* may_die has a bit for each rank that may end in any way. */
        if (status != 0 && !((uint64_t)j->may_die >> i & 1)) {
            fprintf(stderr, "[%s] rank %d ended with status 0x%x\n", check_context, i, status);
            bad = 1;
        }
    }
    if (bad)
        exit(1);
}

void job_run(const job *j, job_main main)
{
    struct rank ranks[MAX_RANKS];
    int sockets[MAX_RANKS];
    for (int i = 0; i < j->n_ranks; i++) {
        int pair[2];
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
        sockets[i] = pair[0];
        ranks[i] = (struct rank){.job = j, .main = main, .rank = i, .socket = pair[1]};
    }
    if (strcmp(j->link, "loop") == 0) {
        run_threads(j, ranks, sockets);
        for (int i = 0; i < j->n_ranks; i++) {
            close(sockets[i]);
            close(ranks[i].socket);
        }
    } else
        run_processes(j, ranks, sockets);
    /* Threads' objects are all in this process, so they are looked at here; a forked rank has looked at its own. */
    CHECK_NOTHING_LEFT();
}

uint64_t job_counter(msg_world *world, msg_counter counter)
{
    uint64_t values[MSG_N_COUNTERS];
    msg_counters(world, values);
    return values[counter];
}

/* ---------------------------------------------------------------- cases */

void job_case(const job *j, job_main main, const char *what)
{
    snprintf(check_context, sizeof check_context, "%s, %d ranks, %d hosts", what, j->n_ranks, j->hosts);
    check_deadline(120);
    double began = check_now();
    job_run(j, main);
    printf("%s %.2f s\n", check_context, check_now() - began);
    fflush(stdout);
}
