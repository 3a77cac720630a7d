/*
 * secret_job.h - a job whose ranks are threads, for tests of its secret (test_secret.c, test_takeover.c).
 *
 * The exchange that a launcher would make is in the test's hands: there it learns all that others can learn (names,
 * addresses, ports, discriminators), and attacks before the ranks go on.
 */
#ifndef SECRET_JOB_H
#define SECRET_JOB_H

#include <pthread.h>
#include <stdio.h>

/* First: they have parameters with the name of a type of the harness. */
#include "msg/msg.h"
#include "msg/policy.h"

#include "harness.h"
#include "msg_calls.h"

#define N_RANKS 3
#define LEN_MOST 4096

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
static int exchange(void *context, const void *own, size_t len, void *all)
{
    rank_of_job *r = context;
    job *j = r->job;
    CHECK(len <= LEN_MOST);
    pthread_mutex_lock(&j->mutex);
    memcpy(j->blobs + (size_t)r->rank * len, own, len);
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
    int n = r->job->n_ranks, own = r->rank, remote = -1, from = (r->rank + n - 1) % n;
    CHECK_EQ(call_sendrecv(w, 1, &own, sizeof(own), (r->rank + 1) % n, 7, &remote, sizeof(remote), from, 7, NULL),
             MSG_SUCCESS);
    CHECK_EQ(remote, from);
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

#endif
