/*
 * measure.h - a rank that measures barriers and collectives: opens a world and a group in it, and runs them when told
 * to. The same loop drives MPI_Barrier, MPI_Bcast ... of whatever MPI library is in the process, so that both are
 * measured alike.
 *
 * One thread. All calls of a rank block; what tells the ranks when to make them is the caller's business.
 */
#ifndef VIAKIT_COLL_MEASURE_H
#define VIAKIT_COLL_MEASURE_H

#include "coll.h"

typedef struct coll_measure coll_measure;

/* Start from memset 0. Strings are copied. */
typedef struct {
    int rank, n_ranks;
    msg_exchange exchange;
    void *exchange_context;
    const char *policy;         /* as msg_policy_parse takes it, on top of "via"; NULL: nothing */
    const char *network_device; /* msg_options */
    const char *address;        /* msg_options */
    int control_fd;             /* a stream: when its other end is closed, waits end; -1: none */
} coll_measure_options;

/* Collective. A msg_error, and on failure a sentence in error (MSG_ERROR_LEN bytes). */
int coll_measure_open(const coll_measure_options *options, coll_measure **m, char *error);
void coll_measure_close(coll_measure *m);
const coll *coll_measure_group(const coll_measure *m);
/* How rank 0, or for rank 0 the last one, is reached. */
const char *coll_measure_route(const coll_measure *m);

/* What a run is. With skew_ns 0, n barriers follow one another without a pause, and enter[0] and leave[0] are the
 * times before the first and after the last. Otherwise each rank waits for a random time of 0 to skew_ns, drawn from
 * seed, before each barrier, and enter[i] and leave[i] are when it came to barrier i and left it. Times are
 * CLOCK_MONOTONIC in nanoseconds: ranks on one machine share that clock, whatever their network. */
typedef struct {
    uint64_t n, warmup, skew_ns, seed;
    int crowded;             /* more ranks than cores: whoever is late gives the core away meanwhile */
    uint64_t *enter, *leave; /* [1] or [n] */
} coll_measure_run_plan;

/* What is run. Roots move on by one from each to the next, so that no root runs ahead of the others. */
typedef struct {
    int operation;  /* coll_operation. COLL_NOTHING: giving the core away, once, after a barrier that all begin with */
    size_t len;     /* bytes: of the buffer; of allgather, alltoall: for each rank. Of sums a multiple of 8 */
    int n_ranks;    /* for MPI, which is not asked */
    void *in, *out; /* [len], of allgather and alltoall [n_ranks][len] */
} coll_measure_work;

/* Collective. MSG_SUCCESS, or what an operation gave. */
int coll_measure_run(coll_measure *m, const coll_measure_work *work, int algorithm, const coll_measure_run_plan *plan);

/* Handles of an MPI library. */
typedef struct {
    const char *library; /* its path; it must be loaded and initialised */
    uintptr_t comm, byte, real, sum;
} coll_measure_mpi;
/* The same with MPI_Barrier(comm) ... of that library. 0, an MPI error code, or -1: there is no such library or
 * function. */
int coll_measure_run_mpi(const coll_measure_mpi *mpi, const coll_measure_work *work, const coll_measure_run_plan *plan);

#endif
