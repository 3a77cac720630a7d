/*
 * measure.h - a rank that measures barriers and collectives. It opens a world and a group in it, and runs them on
 * request. The same loop drives MPI_Barrier, MPI_Bcast ... of any MPI library in the process, so that both are measured
 * alike.
 *
 * One thread. All calls of a rank block. The caller coordinates when the ranks make them.
 */
#ifndef VIAKIT_COLL_MEASURE_H
#define VIAKIT_COLL_MEASURE_H

#include "coll/coll.h"

typedef struct coll_measure coll_measure;

/* Initialise with memset 0. Strings are copied. */
typedef struct {
    int rank, n_ranks;
    msg_exchange exchange;
    void *exchange_context;
    const char *policy;         /* in msg_policy_parse's syntax, on top of "via"; NULL: none */
    const char *network_device; /* msg_options */
    const char *address;        /* msg_options */
    int control_fd;             /* a stream: waits end when its other end is closed; -1: none */
} coll_measure_options;

/* Collective. Returns a msg_error, and on failure a sentence in error (MSG_ERROR_LEN bytes). */
int coll_measure_open(const coll_measure_options *options, coll_measure **m, char *error);
void coll_measure_close(coll_measure *m);
const coll *coll_measure_group(const coll_measure *m);
/* The route to rank 0, or for rank 0 to the last rank. */
const char *coll_measure_route(const coll_measure *m);

/* The plan of a run. With skew_ns 0, n collectives follow one another without a pause. enter[0] and leave[0] are then
 * the times before the first and after the last. Otherwise each rank waits before each collective, for a random time of
 * 0 to skew_ns, drawn from seed. enter[i] and leave[i] are then the times around call i. Times are CLOCK_MONOTONIC in
 * nanoseconds: ranks on one machine share that clock, whatever their network. */
typedef struct {
    uint64_t n, warmup, skew_ns, seed;
    int crowded;             /* more ranks than cores: a rank that delays itself yields meanwhile */
    uint64_t *enter, *leave; /* [1] or [n] */
} coll_measure_run_plan;

/* The operation to run. The root advances by one from call to call, so that no root runs ahead of the others. */
typedef struct {
    int operation;  /* coll_operation. COLL_NOTHING: one yield per call, after a common barrier */
    size_t len;     /* bytes: of the buffer; allgather, alltoall: per rank. Reductions: a multiple of 8 */
    int n_ranks;    /* for MPI only, whose communicator is not queried */
    void *in, *out; /* [len]; for allgather and alltoall [n_ranks][len] */
} coll_measure_work;

/* Collective. MSG_SUCCESS, or the error of an operation. */
int coll_measure_run(coll_measure *m, const coll_measure_work *work, int algorithm, const coll_measure_run_plan *plan);

/* Handles of an MPI library. */
typedef struct {
    const char *library; /* its path; it must be loaded and initialised */
    uintptr_t comm, byte, real, sum;
} coll_measure_mpi;
/* The same with MPI_Barrier(comm) ... of that library. Returns 0, an MPI error code, or -1: no such library or
 * function. */
int coll_measure_run_mpi(const coll_measure_mpi *mpi, const coll_measure_work *work, const coll_measure_run_plan *plan);

#endif
