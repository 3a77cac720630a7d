/*
 * bench/ep_mpi.c - MPI, from C, through the library that mpi4py loaded.
 *
 * No mpi.h is included: it would fix one library's representation of handles. An MPI handle is an int in MPICH and a
 * pointer in Open MPI. Both travel in one general register on the supported architectures, so one set of prototypes
 * with uintptr_t serves both, as long as handles are only passed on. Requests and statuses, which live in this file's
 * memory, get the larger of the two sizes. They are never put into arrays that the library would index.
 *
 * Ping-pong uses MPI_Send and MPI_Recv, the usual reference. Stream and bidir keep a window of MPI_Isend and of
 * MPI_Irecv posted in advance. Inside those calls the library polls and cannot be interrupted, so the driver of this
 * endpoint must be ready to end the process.
 *
 *      sends[]:    | done | under way ... | free |     n_sent  counts up, slot = number % MAX_WINDOW
 *      receives[]: | taken | posted ......... |        n_taken <= n_posted <= n_expected
 */
#include "bench/bench.h"

#include <dlfcn.h>
#include <limits.h>

#define TAG 7
#define MAX_WINDOW 128

/* Memory for a handle that the library writes: the larger of both kinds. */
typedef union {
    int mpich;
    void *openmpi;
} mpi_request;

typedef union {
    long words[16]; /* MPI_Status is 20 to 32 bytes */
} mpi_status;

typedef struct {
    bench_ep ep;
    void *library;
    uintptr_t comm, byte;
    int peer;
    int (*Send)(const void *buf, int count, uintptr_t type, int to, int tag, uintptr_t comm);
    int (*Recv)(void *buf, int count, uintptr_t type, int from, int tag, uintptr_t comm, mpi_status *status);
    int (*Isend)(const void *buf, int count, uintptr_t type, int to, int tag, uintptr_t comm, mpi_request *request);
    int (*Irecv)(void *buf, int count, uintptr_t type, int from, int tag, uintptr_t comm, mpi_request *request);
    int (*Test)(mpi_request *request, int *done, mpi_status *status);
    int (*Get_count)(const mpi_status *status, uintptr_t type, int *count);

    bool simple; /* ping-pong: MPI_Send and MPI_Recv */
    size_t room; /* bytes of a receive */
    size_t depth;
    uint64_t n_sent, n_reaped;              /* sends begun and finished */
    uint64_t n_expected, n_posted, n_taken; /* receives */
    mpi_request sends[MAX_WINDOW], receives[MAX_WINDOW];
} mpi_ep;

static int mpi_prepare(bench_ep *base, const bench_plan *plan)
{
    mpi_ep *ep = (mpi_ep *)base;
    ep->simple = plan->mode == BENCH_PINGPONG;
    base->window = bench_window(plan);
    ep->depth = base->window + 2;
    ep->room = plan->len ? plan->len : 1;
    ep->n_sent = ep->n_reaped = ep->n_expected = ep->n_posted = ep->n_taken = 0;
    return bench_buffers(base, plan, ep->depth);
}

/* Translate an MPI code: MPI_SUCCESS is 0 in every library, and all others are errors here. */
static int check_code(mpi_ep *ep, int code, const char *call)
{
    return code ? bench_fail(&ep->ep, BENCH_ERROR, "%s failed with code %d", call, code) : BENCH_DONE;
}

/* Keep `depth` receives posted, but never more than messages will come. A receive left over would match the first
 * message of the next run. */
static int mpi_tidy(bench_ep *base)
{
    mpi_ep *ep = (mpi_ep *)base;
    int rc = BENCH_DONE;
    while (rc == BENCH_DONE && ep->n_posted < ep->n_expected && ep->n_posted - ep->n_taken < ep->depth) {
        rc = check_code(ep,
                        ep->Irecv(bench_receive_buffer(base, ep->n_posted), (int)ep->room, ep->byte, ep->peer, TAG,
                                  ep->comm, &ep->receives[ep->n_posted % MAX_WINDOW]),
                        "MPI_Irecv");
        ep->n_posted++;
    }
    return rc;
}

static int mpi_expect(bench_ep *base, size_t len, uint64_t n)
{
    (void)len;
    mpi_ep *ep = (mpi_ep *)base;
    ep->n_expected = ep->simple ? 0 : n;
    return mpi_tidy(base);
}

/* Test whether the oldest send under way is done. MPI_Test also makes the library progress everything else. */
static int reap(mpi_ep *ep)
{
    int done = 0;
    mpi_status status;
    int code = ep->Test(&ep->sends[ep->n_reaped % MAX_WINDOW], &done, &status);
    if (!code && done)
        ep->n_reaped++;
    return code ? check_code(ep, code, "MPI_Test of a send") : done ? BENCH_DONE : BENCH_NOT_YET;
}

/* Ping-pong: the blocking call, the usual reference. Otherwise at most a window is under way; when it is full the
 * oldest send must complete first. */
static int mpi_send(bench_ep *base, size_t len)
{
    mpi_ep *ep = (mpi_ep *)base;
    if (ep->simple)
        return check_code(ep, ep->Send(base->sbuf, (int)len, ep->byte, ep->peer, TAG, ep->comm), "MPI_Send");
    if (ep->n_sent - ep->n_reaped == base->window) {
        int rc = reap(ep);
        if (rc != BENCH_DONE)
            return rc;
    }
    int rc = check_code(
        ep, ep->Isend(base->sbuf, (int)len, ep->byte, ep->peer, TAG, ep->comm, &ep->sends[ep->n_sent % MAX_WINDOW]),
        "MPI_Isend");
    ep->n_sent++;
    return rc;
}

/* Blocking in ping-pong. Otherwise the oldest receive is tested: NOT_YET if its message has not arrived. */
static int mpi_recv(bench_ep *base, size_t len)
{
    mpi_ep *ep = (mpi_ep *)base;
    mpi_status status;
    int code, done = 1, count = 0;
    if (ep->simple) {
        code = ep->Recv(base->rbuf, (int)ep->room, ep->byte, ep->peer, TAG, ep->comm, &status);
        base->rmsg = base->rbuf;
    } else {
        code = ep->Test(&ep->receives[ep->n_taken % MAX_WINDOW], &done, &status);
        if (!code && !done)
            return BENCH_NOT_YET;
        base->rmsg = bench_receive_buffer(base, ep->n_taken++);
    }
    if (code || (code = ep->Get_count(&status, ep->byte, &count)))
        return check_code(ep, code, "receiving a message");
    if ((size_t)count != len)
        return bench_wrong_length(base, (size_t)count, len);
    return BENCH_DONE;
}

/* NOT_YET lets the loop check its deadline between two tries. */
static int mpi_flush(bench_ep *base, size_t most)
{
    mpi_ep *ep = (mpi_ep *)base;
    int rc = BENCH_DONE;
    while (rc == BENCH_DONE && ep->n_sent - ep->n_reaped > most)
        rc = reap(ep);
    return rc;
}

/* Drop the reference that dlopen took. The library itself stays, because it was loaded before. */
static void mpi_close(bench_ep *base)
{
    if (((mpi_ep *)base)->library)
        dlclose(((mpi_ep *)base)->library);
}

static const bench_ops mpi_ops = {
    .name = "mpi",
    .min_len = 0,
    .max_len = INT_MAX / 2,
    .prepare = mpi_prepare,
    .expect = mpi_expect,
    .send = mpi_send,
    .recv = mpi_recv,
    .tidy = mpi_tidy,
    .flush = mpi_flush,
    .close = mpi_close,
};

bench_ep *bench_mpi_open(const char *library, uintptr_t comm, uintptr_t byte_type, int peer, char *error)
{
    mpi_ep *ep = bench_ep_new(sizeof *ep, &mpi_ops, true, error);
    if (!ep)
        return NULL;
    ep->comm = comm;
    ep->byte = byte_type;
    ep->peer = peer;
    const bench_symbol symbols[] = {{"MPI_Send", &ep->Send},   {"MPI_Recv", &ep->Recv},
                                    {"MPI_Isend", &ep->Isend}, {"MPI_Irecv", &ep->Irecv},
                                    {"MPI_Test", &ep->Test},   {"MPI_Get_count", &ep->Get_count}};
    const char *missing;
    ep->library = bench_library(library, symbols, sizeof symbols / sizeof *symbols, &missing);
    if (!ep->library)
        return bench_ep_fail(&ep->ep, error, "%s cannot be reached in %s", missing, library);
    return &ep->ep;
}
