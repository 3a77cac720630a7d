/*
 * test_coll.c - barriers on every channel: test_coll LINK [CASE]. No rank may leave a barrier before all have arrived,
 * with any algorithm, number and place of ranks, and with any rank late. Also: the errors of the others when a rank
 * dies, leaves or gives up.
 *
 * Each rank writes the number of the barrier that it is about to enter on a board that all processes share. If a
 * barrier lets a rank through too early, the board shows it at once, and which rank is missing.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "coll/inside.h"
#include "coll_job.h"

/* Memory of all processes of the test: how often each rank has come to a barrier. */
static struct {
    uint32_t arrived[64];
    uint32_t late;
} *board;

static coll_algorithm algorithm;
static int inside; /* death: within the barrier, not before it */

/* Each rank records its arrival. After the barrier all have arrived. */
static void cross(coll *c, coll_algorithm a, uint32_t count)
{
    __atomic_store_n(&board->arrived[coll_rank(c)], count, __ATOMIC_RELEASE);
    GIVE(coll_barrier(c, a), MSG_SUCCESS);
    for (int i = 0; i < coll_size(c); i++) {
        uint32_t seen = __atomic_load_n(&board->arrived[i], __ATOMIC_ACQUIRE);
        if (seen < count)
            FAIL("%s, %d ranks: rank %d left barrier %u, and rank %d was at %u", coll_barrier_name(a), coll_size(c),
                 coll_rank(c), count, i, seen);
    }
}

/* Gives the core away all the while: on two cores sixteen ranks have to run. */
static void be_late(double s)
{
    for (double end = check_now() + s; check_now() < end;)
        sched_yield();
}

/* ---------------------------------------------------------------- cases */

/* Many in a row. Then one rank after the other is so late that the others sleep. Then all algorithms in turn. */
static void case_all(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9);
    uint32_t count = 0;
    /* With more ranks than cores a round takes long. */
    int rounds = (n <= 5 ? 200 : 40) / CHECK_SLOWER;
    for (int a = 0; a < COLL_N_BARRIERS; a++) {
        /* An algorithm that is impossible here must be refused, too. */
        if (coll_barrier_check(c, (coll_algorithm)a) != MSG_SUCCESS) {
            GIVE(coll_barrier(c, (coll_algorithm)a), MSG_ERR_NOT_SUPPORTED);
            continue;
        }
        for (int i = 0; i < rounds; i++)
            cross(c, (coll_algorithm)a, ++count);
        /* With many ranks the first and the last are late, no others. */
        for (int late = 0; late < n; late += n > 4 ? n - 1 : 1) {
            if (rank == late)
                be_late(0.03);
            cross(c, (coll_algorithm)a, ++count);
        }
    }
    /* Barriers of different kinds directly after one another: a signal of one must not be taken for another's. */
    for (int i = 0; i < 20; i++)
        for (int a = 0; a < COLL_N_BARRIERS; a++)
            if (coll_barrier_check(c, (coll_algorithm)a) == MSG_SUCCESS)
                cross(c, (coll_algorithm)a, ++count);
    /* As if there were one core, or many: with one centre, and with as many as there can be. */
    for (int a = 0; a < COLL_N_BARRIERS; a++)
        for (int cores = 1; cores <= 8 && strstr(coll_barrier_name(a), "-gather"); cores *= 2) {
            c->cores = cores;
            for (int i = 0; i < 10 && coll_barrier_check(c, (coll_algorithm)a) == MSG_SUCCESS; i++)
                cross(c, (coll_algorithm)a, ++count);
        }
    coll_free(c);
}

/* The possible algorithms follow from the places of the ranks. */
static void case_abilities(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9), *self;
    int tcp = strcmp(link_name, "tcp") == 0, one = coll_hosts(c) == 1;
    /* Barriers by RDMA write need VIA; those in shared memory need one host. Those by messages need neither. */
    CHECK_EQ(coll_barrier_check(c, COLL_BARRIER_RDMA), tcp ? MSG_ERR_NOT_SUPPORTED : MSG_SUCCESS);
    CHECK_EQ(coll_barrier_check(c, COLL_BARRIER_OVERALL), tcp && !one ? MSG_ERR_NOT_SUPPORTED : MSG_SUCCESS);
    CHECK_EQ(coll_barrier_check(c, COLL_BARRIER_FLAT), one ? MSG_SUCCESS : MSG_ERR_NOT_SUPPORTED);
    CHECK_EQ(coll_barrier_check(c, COLL_BARRIER_GATHER), MSG_SUCCESS);
    CHECK_EQ(coll_barrier_check(c, COLL_N_BARRIERS), MSG_ERR_ARG);
    GIVE(coll_barrier(c, COLL_N_BARRIERS), MSG_ERR_ARG);
    CHECK(coll_barrier_default(c) != COLL_BARRIER_DEFAULT);
    CHECK_EQ(coll_barrier_check(c, coll_barrier_default(c)), MSG_SUCCESS);
    for (int a = 0; a < COLL_N_BARRIERS; a++) {
        CHECK_EQ(coll_barrier_find(coll_barrier_name(a)), a);
        CHECK(coll_barrier_text(a) != NULL);
    }
    CHECK_EQ(coll_barrier_find("no such"), -1);
    CHECK(coll_barrier_name(COLL_N_BARRIERS) == NULL && coll_barrier_text(-1) == NULL);

    /* A rank that does not exist, one twice, a group without oneself, an empty one, a context that is too large. */
    int wrong[2] = {rank, n}, twice[2] = {rank, rank}, others[1] = {(rank + 1) % n};
    GIVE(coll_create(w, wrong, 2, 10, &self), MSG_ERR_RANK);
    GIVE(coll_create(w, twice, 2, 10, &self), MSG_ERR_RANK);
    GIVE(coll_create(w, others, 1, 10, &self), MSG_ERR_RANK);
    GIVE(coll_create(w, wrong, 0, 10, &self), MSG_ERR_ARG);
    GIVE(coll_create(w, wrong, 1, MSG_MAX_CONTEXT + 1, &self), MSG_ERR_CONTEXT);
    /* And a group of one, in which every barrier is passed at once. */
    OK(coll_create(w, &rank, 1, 10, &self));
    for (int a = 0; a < COLL_N_BARRIERS; a++)
        if (coll_barrier_check(self, (coll_algorithm)a) == MSG_SUCCESS)
            GIVE(coll_barrier(self, (coll_algorithm)a), MSG_SUCCESS);
    coll_free(self);
    coll_free(c);
    coll_free(NULL);
}

/* Two halves at the same time, and all of them in reverse, while messages with the same tags travel. */
static void case_groups(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    int reverse[64], v = rank, got = -1;
    coll *all = make_group(w, 0, n, 9), *back,
         *half = make_group(w, rank < n / 2 ? 0 : n / 2, rank < n / 2 ? n / 2 : n - n / 2, 10);
    msg_request *r;
    for (int i = 0; i < n; i++)
        reverse[i] = n - 1 - i;
    OK(coll_create(w, reverse, n, 11, &back));
    CHECK_EQ(coll_rank(back), n - 1 - rank);
    /* A message with a tag and context of the program's own is under way while the barriers run. */
    OK(msg_irecv(w, 1, &got, sizeof got, (rank + 1) % n, 2, &r));
    for (int i = 0; i < 30; i++) {
        GIVE(coll_barrier(half, COLL_BARRIER_DEFAULT), MSG_SUCCESS);
        if (i % 3 == 0)
            GIVE(coll_barrier(all, COLL_BARRIER_MESSAGE), MSG_SUCCESS);
        cross(back, i % 2 ? COLL_BARRIER_DEFAULT : COLL_BARRIER_DISSEMINATION, (uint32_t)i + 1);
        if (i == 15)
            OK(msg_send(w, 1, &v, sizeof v, (rank + n - 1) % n, 2, MSG_STANDARD));
    }
    OK(msg_wait(w, &r, NULL, MSG_FOREVER));
    CHECK_EQ(got, (rank + 1) % n);
    coll_free(half);
    coll_free(back);
    coll_free(all);
}

/* Rank 1 dies, before the barrier or within it. The others get the error, agree on it, and go on without it. */
static void case_death(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9), *rest = NULL;
    int code = MSG_SUCCESS;
    uint32_t count = 0;
    for (int i = 0; i < 5; i++)
        cross(c, algorithm, ++count);
    if (rank == 1) {
        if (!inside)
            die(NULL);
        msg_set_interrupt(w, die, NULL); /* the first call means that it is waiting */
    }
    if (rank == 0 && inside) /* makes it wait */
        WAIT_UNTIL(msg_progress(w) >= 0 && msg_peer_status(w, 1) == MSG_PEER_FAILED);
    code = coll_barrier(c, algorithm);
    /* A rank that had all its signals before the death passes this barrier, but not the next one. */
    if (code != MSG_SUCCESS) /* it had signalled some already */
        CHECK_EQ(code, MSG_ERR_PROC_FAILED);
    else
        code = coll_barrier(c, algorithm);
    CHECK_EQ(code, MSG_ERR_PROC_FAILED);
    GIVE(coll_barrier(c, COLL_BARRIER_MESSAGE), MSG_ERR_PROC_FAILED);
    coll_free(c);
    /* A new group without the dead. */
    rest = make_without(w, 1, n, 10);
    for (int i = 0; i < 5; i++)
        GIVE(coll_barrier(rest, COLL_BARRIER_DEFAULT), MSG_SUCCESS);
    coll_free(rest);
}

static int stop(void *context)
{
    return ++*(int *)context > 3;
}

/* Rank 1 is interrupted while it waits for rank 0: it gives up, and the others do not wait for it. */
static void case_interrupt(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9);
    int asked = 0;
    for (int i = 0; i < 5; i++)
        cross(c, algorithm, (uint32_t)i + 1);
    if (rank == 1) {
        msg_set_interrupt(w, stop, &asked);
        GIVE(coll_barrier(c, algorithm), MSG_INTERRUPTED);
        msg_set_interrupt(w, NULL, NULL);
        /* A rank that has given up once cannot take part again. */
        GIVE(coll_barrier(c, algorithm), MSG_INTERRUPTED);
        __atomic_store_n(&board->late, 1, __ATOMIC_RELEASE);
    } else {
        /* Rank 0 comes late on purpose, so that rank 1 is waiting when it is interrupted. */
        if (rank == 0)
            WAIT_UNTIL(__atomic_load_n(&board->late, __ATOMIC_ACQUIRE));
        int code = coll_barrier(c, algorithm);
        if (code == MSG_SUCCESS) /* it had signalled us */
            code = coll_barrier(c, algorithm);
        CHECK_EQ(code, MSG_ERR_LEFT);
    }
    coll_free(c);
}

/* Rank 1 goes home. A write into memory that it has taken back breaks the connection. */
static void case_leave(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9);
    for (int i = 0; i < 5; i++)
        cross(c, algorithm, (uint32_t)i + 1);
    if (rank != 1) {
        int code = coll_barrier(c, algorithm);
        if (code != MSG_ERR_PROC_FAILED)
            CHECK_EQ(code, MSG_ERR_LEFT);
    }
    coll_free(c);
}

/* As coll.c sends it. */
struct card {
    uint64_t magic[2];
    msg_exposed exposed;
    int32_t pid, fd, crowded, cores, rdma;
};

static const struct forgery {
    const char *file; /* name of a memfd; NULL: a file in a file system */
    size_t len;
    int seals, refused; /* refused: coll_create fails; else the group has no shared memory */
} forgeries[] = {
    {"viakit barrier", 8 << 20, 0, 1},          /* its owner could shrink it under the others' feet: SIGBUS */
    {"viakit barrier", 4096, F_SEAL_SHRINK, 1}, /* shorter than what they would map */
    {"another", 8 << 20, F_SEAL_SHRINK, 0},     /* some other program's memory */
    {NULL, 8 << 20, 0, 0},                      /* the user's data */
};
static const struct forgery *forgery;

/* Rank 0 takes part in the making of a group by messages of its own: its card names a file that is not its offer, as a
 * process on the path could make a card name one. */
static void forge(msg_world *w, int n)
{
    static const uint64_t magic[2] = {1, 2};
    struct card cards[8] = {0};
    int32_t mapped[8] = {1};
    char path[] = "/tmp/viakit-test-card-XXXXXX";
    int fd = forgery->file ? memfd_create(forgery->file, MFD_CLOEXEC | MFD_ALLOW_SEALING) : mkstemp(path);
    CHECK(fd >= 0);
    CHECK(forgery->file || unlink(path) == 0);
    CHECK_EQ(ftruncate(fd, (off_t)forgery->len), 0);
    CHECK_EQ(pwrite(fd, magic, sizeof magic, 0), sizeof magic);
    CHECK(forgery->seals == 0 || fcntl(fd, F_ADD_SEALS, forgery->seals) == 0);
    for (int i = 1; i < n; i++)
        OK(msg_recv(w, 9, &cards[i], sizeof *cards, i, COLL_TAG_SETUP, NULL));
    cards[0] = cards[1];
    cards[0].pid = (int32_t)getpid();
    cards[0].fd = fd;
    memcpy(cards[0].magic, magic, sizeof magic);
    for (int i = 1; i < n; i++)
        OK(msg_send(w, 9, cards, sizeof *cards * (size_t)n, i, COLL_TAG_SETUP, MSG_STANDARD));
    for (int i = 1; i < n; i++) {
        OK(msg_recv(w, 9, &mapped[i], sizeof *mapped, i, COLL_TAG_SETUP, NULL));
        CHECK_EQ(mapped[i], forgery->refused ? -1 : 0);
    }
    for (int i = 1; i < n; i++)
        OK(msg_send(w, 9, mapped, sizeof *mapped * (size_t)n, i, COLL_TAG_SETUP, MSG_STANDARD));
    close(fd);
}

/* No rank maps what a forged card names. */
static void case_card(msg_world **world, int rank, int n)
{
    static const int all[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    msg_world *w = *world;
    coll *c = NULL;
    if (rank == 0) {
        forge(w, n);
        return;
    }
    GIVES(coll_create(w, all, n, 9, &c), forgery->refused ? MSG_ERR_CHANNEL : MSG_SUCCESS);
    if (forgery->refused)
        CHECK(strstr(msg_last_error(w), "its card was altered on its way") != NULL);
    else
        CHECK_EQ(coll_barrier_check(c, COLL_BARRIER_FLAT), MSG_ERR_NOT_SUPPORTED);
    coll_free(c);
}

static void count_call(void *context)
{
    ++*(int *)context;
}

/* A rank that waits for a late one first has its caller's lock released, once. Without `release` nothing is called. */
static void case_release(msg_world **world, int rank, int n)
{
    coll *c = make_group(*world, 0, n, 9);
    int calls = 0, set = coll_set_release(c, count_call, &calls);
    CHECK(set || coll_hosts(c) > 1 || c->shared == NULL);
    for (int i = 0; i < 2; i++) {
        if (rank == 0)
            be_late(0.1);
        GIVE(coll_barrier(c, COLL_BARRIER_DEFAULT), MSG_SUCCESS);
        CHECK(rank ? calls == set : calls <= set);
        coll_set_release(c, NULL, NULL);
    }
    coll_free(c);
}

/* ---------------------------------------------------------------- running them */

static void run(const char *case_name, job_main main_, int n, int hosts, int may_die)
{
    char how[64];
    snprintf(how, sizeof how, "%s%s", coll_barrier_name((int)algorithm), asleep ? " asleep" : "");
    memset(board, 0, sizeof *board);
    run_case(case_name, how, main_, n, hosts, may_die);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 7, 8, 16};
    int refused = start_cases(argc, argv);
    if (refused)
        return refused;
    int eth = strcmp(link_name, "eth") == 0, threads = strcmp(link_name, "loop") == 0;
    board = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(board != MAP_FAILED);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run("all", case_all, sizes[i], 0, 0);
        if (!eth && !threads && sizes[i] >= 3 && sizes[i] <= 8)
            /* Once more as if on several hosts: algorithms that share memory do so per host only. */
            run("all", case_all, sizes[i], sizes[i] == 5 ? 3 : 2, 0);
    }
    run("abilities", case_abilities, 3, 0, 0);
    run("groups", case_groups, 6, 0, 0);
    run("release", case_release, 3, 0, 0);
    run("release", case_release, 4, 2, 0);
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries && !eth; i++) {
        forgery = &forgeries[i];
        run("card", case_card, 3, 0, 0);
    }
    for (int a = COLL_BARRIER_DEFAULT + 1; a < COLL_N_BARRIERS; a++) {
        int shared = a >= COLL_BARRIER_FLAT, rdma = strncmp(coll_barrier_name(a), "rdma", 4) == 0;
        algorithm = (coll_algorithm)a;
        if ((eth && shared) || (rdma && strcmp(link_name, "tcp") == 0))
            continue;
        run("leave", case_leave, 4, 0, 0);
        run("interrupt", case_interrupt, 4, 0, 0);
        if (eth && a != COLL_BARRIER_RDMA && a != COLL_BARRIER_OVERALL && a != COLL_BARRIER_MESSAGE)
            continue; /* they wait as RDMA and message barriers do; a death on a network takes its seconds */
        for (inside = 0; inside < 2 && !threads; inside++)
            run(inside ? "death-inside" : "death", case_death, 4, 0, 2);
    }
    if (eth)
        return end_cases();
    /* Once more with ranks that sleep: the wake-up must not get lost. */
    algorithm = COLL_BARRIER_COUNTER;
    asleep = inside = 1;
    run("all", case_all, 8, 0, 0);
    run("interrupt", case_interrupt, 4, 0, 0);
    if (!threads)
        run("death-inside", case_death, 4, 0, 2);
    return end_cases();
}
