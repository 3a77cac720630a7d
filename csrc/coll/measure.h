/*
 * measure.h - a rank that measures barriers: opens a world and a group in it, and runs barriers when told to. The same loop drives
 * MPI_Barrier, of whatever MPI library is in the process, so that both are measured alike.
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

/* What a run is. With skew_ns 0, n barriers follow one another without a pause, and enter[0] and leave[0] are the times before the first
 * and after the last. Otherwise each rank waits for a random time of 0 to skew_ns, drawn from seed, before each barrier, and enter[i] and
 * leave[i] are when it came to barrier i and left it. Times are CLOCK_MONOTONIC in nanoseconds: ranks on one machine
 * share that clock, whatever their network. */
typedef struct {
    uint64_t n, warmup, skew_ns, seed;
    int crowded;             /* more ranks than cores: whoever is late gives the core away meanwhile */
    uint64_t *enter, *leave; /* [1] or [n] */
} coll_measure_run_plan;

/* Collective. MSG_SUCCESS, or what a barrier gave. */
int coll_measure_run(coll_measure *m, coll_algorithm algorithm, const coll_measure_run_plan *plan);
/* The same with MPI_Barrier(comm) of the library at this path, which must be loaded and initialised. 0, an MPI error code, or -1: there is
 * no such library or function. */
int coll_measure_run_mpi(const char *library, uintptr_t comm, const coll_measure_run_plan *plan);

#endif
