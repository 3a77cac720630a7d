/*
 * bench/ep_mpi.c - MPI, from C, through the library that the worker has loaded and initialised.
 *
 * No mpi.h is included: it would fix one library's representation of handles. An MPI handle is an int in MPICH and a
 * pointer in Open MPI and LAM. Both travel in one general register on the supported architectures, so one set of
 * prototypes with uintptr_t serves both, as long as handles are only passed on. Requests and statuses, which live in
 * this file's memory, get the larger of the two sizes. They are never put into arrays that the library would index.
 *
 * Ping-pong uses MPI_Send and MPI_Recv, the usual reference. Stream and bidir keep a window of MPI_Isend and of
 * MPI_Irecv posted in advance. Inside those calls the library cannot be interrupted, so the driver of this endpoint
 * must be ready to end the process.
 *
 * MPICH and Open MPI poll inside MPI_Recv. LAM sleeps in the kernel: with it, a blocking wait is MPI_Recv or MPI_Wait,
 * and a polled one is MPI_Irecv and MPI_Test. The processes of LAM are worlds of one rank, which bench_join connects:
 *
 *      B   bench_address: MPI_Open_port -> name ........ bench_join without a name: MPI_Comm_accept
 *      A                             the worker sends it, bench_join with the name: MPI_Comm_connect
 *
 * LAM 7.1.4 gives writev and readv entries of length 0 whose address is not set. It does so when it acknowledges the
 * first 8 KiB of a message to the daemon. Linux rejects an address that can be no user's (EFAULT). Whether a call fails
 * depends on what the stack contained before. In this process liblam calls two functions that set the address first.
 *
 * Invariants. Requests are matched in the order in which they are made, because messages of one pair, communicator and
 * tag do not overtake each other (MPI 4.1, 3.5). So only the oldest of each kind is tested. No request is left at the
 * end of a run: exactly n_expected receives are posted, and finish reaps the sends.
 *
 * One thread has the endpoint, the one that called MPI_Init: the library may be initialised without thread support.
 *
 *      sends[]:    | done | under way ... | free |     n_sent  counts up, slot = number % MAX_WINDOW
 *      receives[]: | taken | posted ......... |        n_taken <= n_posted <= n_expected
 */
#include "bench/bench.h"

#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define TAG 7          /* any would do: nothing else uses the communicator */
#define MAX_WINDOW 128 /* above the largest window and the receives beyond it (bench_window, depth) */
#define PORT_LEN 1024  /* more than MPI_MAX_PORT_NAME of LAM */
#define N_ENTRIES 16   /* LAM gives readv and writev 2 entries */

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
    int peer; /* rank in comm */
    int (*Send)(const void *buf, int count, uintptr_t type, int to, int tag, uintptr_t comm);
    int (*Recv)(void *buf, int count, uintptr_t type, int from, int tag, uintptr_t comm, mpi_status *status);
    int (*Isend)(const void *buf, int count, uintptr_t type, int to, int tag, uintptr_t comm, mpi_request *request);
    int (*Irecv)(void *buf, int count, uintptr_t type, int from, int tag, uintptr_t comm, mpi_request *request);
    int (*Test)(mpi_request *request, int *done, mpi_status *status);
    int (*Wait)(mpi_request *request, mpi_status *status);
    int (*Get_count)(const mpi_status *status, uintptr_t type, int *count);

    bool is_lam;
    char port[PORT_LEN];         /* LAM: of B, or empty */
    void *self_alone, *on_error; /* LAM: MPI_COMM_SELF, MPI_ERRORS_RETURN */
    int (*Open_port)(void *info, char *port);
    int (*Comm_accept)(const char *port, void *info, int root, void *comm, void **inter);
    int (*Comm_connect)(const char *port, void *info, int root, void *comm, void **inter);
    int (*Comm_set_errhandler)(void *comm, void *handler);

    bool send_each;                         /* ping-pong: MPI_Send */
    bool recv_each;                         /* ping-pong, unless a polled wait would sleep: MPI_Recv */
    size_t room;                            /* bytes of a receive */
    size_t depth;                           /* receives posted in advance: window + 2 */
    uint64_t n_sent, n_reaped;              /* sends begun and finished */
    uint64_t n_expected, n_posted, n_taken; /* receives */
    mpi_request sends[MAX_WINDOW], receives[MAX_WINDOW];
} mpi_ep;

/* All requests of an earlier run are complete. Only LAM's MPI_Recv sleeps, so only a polled run of LAM avoids it
 * (recv_each). */
static int mpi_prepare(bench_ep *base, const bench_plan *plan)
{
    mpi_ep *ep = (mpi_ep *)base;
    ep->send_each = plan->mode == BENCH_PINGPONG;
    ep->recv_each = ep->send_each && !(ep->is_lam && base->polled);
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

/* With recv_each nothing is posted in advance, so nothing is expected. */
static int mpi_expect(bench_ep *base, size_t len, uint64_t n)
{
    (void)len;
    mpi_ep *ep = (mpi_ep *)base;
    ep->n_expected = ep->recv_each ? 0 : n;
    return mpi_tidy(base);
}

/* Test whether a request is complete, or wait for it. Either makes the library progress everything else. */
static int complete(mpi_ep *ep, mpi_request *request, mpi_status *status)
{
    int done = 1;
    int code = ep->ep.dontwait ? ep->Test(request, &done, status) : ep->Wait(request, status);
    return code ? check_code(ep, code, "MPI_Test or MPI_Wait") : done ? BENCH_DONE : BENCH_NOT_YET;
}

/* Complete the oldest send under way. */
static int reap(mpi_ep *ep)
{
    mpi_status status;
    int rc = complete(ep, &ep->sends[ep->n_reaped % MAX_WINDOW], &status);
    if (rc == BENCH_DONE)
        ep->n_reaped++;
    return rc;
}

/* Ping-pong: the blocking call, the usual reference. Otherwise at most a window is under way; when it is full the
 * oldest send must complete first. */
static int mpi_send(bench_ep *base, size_t len)
{
    mpi_ep *ep = (mpi_ep *)base;
    if (ep->send_each)
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

/* Receive in ping-pong. Otherwise complete the oldest receive: NOT_YET if its message has not arrived. */
static int mpi_recv(bench_ep *base, size_t len)
{
    mpi_ep *ep = (mpi_ep *)base;
    mpi_status status;
    int rc, count = 0;
    if (ep->recv_each) {
        rc =
            check_code(ep, ep->Recv(base->rbuf, (int)ep->room, ep->byte, ep->peer, TAG, ep->comm, &status), "MPI_Recv");
        base->rmsg = base->rbuf;
    } else {
        rc = complete(ep, &ep->receives[ep->n_taken % MAX_WINDOW], &status);
        if (rc == BENCH_DONE)
            base->rmsg = bench_receive_buffer(base, ep->n_taken++);
    }
    if (rc == BENCH_DONE)
        rc = check_code(ep, ep->Get_count(&status, ep->byte, &count), "MPI_Get_count");
    return rc == BENCH_DONE && (size_t)count != len ? bench_wrong_length(base, (size_t)count, len) : rc;
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

/* ---------------------------------------------------------------- LAM's calls of readv and writev */

typedef ssize_t vector_call(int fd, const struct iovec *entries, int n);

/* LAM: readv or writev, with an address for each entry of length 0: any that is the process's own, because nothing is
 * read or written there. More entries than LAM uses go unchanged. */
static ssize_t with_addresses(vector_call *call, int fd, const struct iovec *entries, int n)
{
    struct iovec set[N_ENTRIES];
    if (n <= 0 || n > N_ENTRIES)
        return call(fd, entries, n);
    for (int i = 0; i < n; i++) {
        set[i] = entries[i];
        if (!set[i].iov_len)
            set[i].iov_base = set;
    }
    return call(fd, set, n);
}

static ssize_t readv_of_lam(int fd, const struct iovec *entries, int n)
{
    return with_addresses(readv, fd, entries, n);
}

static ssize_t writev_of_lam(int fd, const struct iovec *entries, int n)
{
    return with_addresses(writev, fd, entries, n);
}

/* Store a function in a slot of the table by which a library calls others. It may have become read-only (RELRO), hence
 * mprotect; the pages stay writable. Returns false if the kernel refuses. */
static bool store(void *slot, vector_call *function)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *start = (char *)slot - (uintptr_t)slot % page;
    size_t len = (size_t)((char *)slot - start) + sizeof function;
    if (mprotect(start, len, PROT_READ | PROT_WRITE))
        return false;
    memcpy(slot, &function, sizeof function);
    return true;
}

/* LAM: make the library call the two functions. Returns whether it calls readv and writev. Its dynamic section (link.h)
 * has the slots with the names of their functions. Only calls from this library change; the rest of the process keeps
 * the kernel's. */
static bool replace_calls(void *library)
{
    struct link_map *map = NULL;
    if (dlinfo(library, RTLD_DI_LINKMAP, &map))
        return false;
    const ElfW(Sym) *symbols = NULL;
    const ElfW(Rela) *slots = NULL;
    const char *names = NULL;
    size_t n = 0;
    for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
        const void *at = (const void *)d->d_un.d_ptr; /* glibc has added the address of the library */
        if (d->d_tag == DT_SYMTAB)
            symbols = at;
        else if (d->d_tag == DT_STRTAB)
            names = at;
        else if (d->d_tag == DT_JMPREL)
            slots = at;
        else if (d->d_tag == DT_PLTRELSZ)
            n = d->d_un.d_val / sizeof *slots;
    }
    int replaced = 0;
    for (size_t i = 0; slots && symbols && names && i < n; i++) {
        const char *name = names + symbols[ELF64_R_SYM(slots[i].r_info)].st_name;
        void *slot = (void *)(map->l_addr + slots[i].r_offset);
        if (strcmp(name, "readv") == 0)
            replaced += store(slot, readv_of_lam);
        else if (strcmp(name, "writev") == 0)
            replaced += store(slot, writev_of_lam);
    }
    return replaced == 2;
}

/* LAM: return errors, instead of ending the process (MPI_ERRORS_ARE_FATAL is MPI's default). BENCH_DONE or an error. */
static int return_errors(mpi_ep *ep, void *comm)
{
    return check_code(ep, ep->Comm_set_errhandler(comm, ep->on_error), "MPI_Comm_set_errhandler");
}

/* LAM: open a port, and write its name. */
static int lam_address(bench_ep *base, unsigned char *address, size_t room)
{
    mpi_ep *ep = (mpi_ep *)base;
    int rc = check_code(ep, ep->Open_port(NULL, ep->port), "MPI_Open_port");
    size_t len = strlen(ep->port);
    if (rc != BENCH_DONE)
        return rc;
    if (len > room)
        return bench_fail(base, BENCH_ERROR, "the name of the port has %zu bytes", len);
    memcpy(address, ep->port, len);
    return (int)len;
}

/* LAM: connect to a port by its name; without a name, accept a connection at the own one. It cannot be interrupted, so
 * the driver ends the process if the other side does not come. BENCH_DONE or an error. */
static int lam_join(bench_ep *base, const unsigned char *address, size_t len)
{
    mpi_ep *ep = (mpi_ep *)base;
    char name[PORT_LEN] = "";
    void *inter = NULL;
    if (len >= sizeof name)
        return bench_fail(base, BENCH_ERROR, "the name of the port has %zu bytes", len);
    memcpy(name, address, len);
    int rc = len ? check_code(ep, ep->Comm_connect(name, NULL, 0, ep->self_alone, &inter), "MPI_Comm_connect")
                 : check_code(ep, ep->Comm_accept(ep->port, NULL, 0, ep->self_alone, &inter), "MPI_Comm_accept");
    ep->comm = (uintptr_t)inter;
    return rc == BENCH_DONE ? return_errors(ep, inter) : rc;
}

#define MPI_OPS                                                                                           \
    .min_len = 0, .max_len = INT_MAX / 2, .prepare = mpi_prepare, .expect = mpi_expect, .send = mpi_send, \
    .recv = mpi_recv, .tidy = mpi_tidy, .flush = mpi_flush, .close = mpi_close

static const bench_ops mpi_ops = {.name = "mpi", MPI_OPS};
static const bench_ops lam_ops = {.name = "lam", MPI_OPS, .address = lam_address, .join = lam_join};

/* Find the functions of messages. If one is missing: close the endpoint, write the reason, return false. */
static bool find_messages(mpi_ep *ep, const char *library, char *error)
{
    const bench_symbol symbols[] = {
        {"MPI_Send", &ep->Send}, {"MPI_Recv", &ep->Recv}, {"MPI_Isend", &ep->Isend},        {"MPI_Irecv", &ep->Irecv},
        {"MPI_Test", &ep->Test}, {"MPI_Wait", &ep->Wait}, {"MPI_Get_count", &ep->Get_count}};
    const char *missing;
    ep->library = bench_library(library, symbols, sizeof symbols / sizeof *symbols, &missing);
    return ep->library || bench_ep_fail(&ep->ep, error, "%s cannot be reached in %s", missing, library);
}

/* See bench.h. The communicator stays the caller's, and the caller calls MPI_Finalize after bench_close. */
bench_ep *bench_mpi_open(const char *library, uintptr_t comm, uintptr_t byte_type, int peer, char *error)
{
    mpi_ep *ep = bench_ep_new(sizeof *ep, &mpi_ops, true, error);
    if (!ep || !find_messages(ep, library, error))
        return NULL;
    ep->comm = comm;
    ep->byte = byte_type;
    ep->peer = peer;
    return &ep->ep;
}

/* See bench.h. A failure after MPI_Init leaves the library initialised: the worker ends then, because a second MPI_Init
 * is not allowed. */
bench_ep *bench_lam_open(const char *library, bool polled, char *error)
{
    mpi_ep *ep = bench_ep_new(sizeof *ep, &lam_ops, polled, error);
    if (!ep || !find_messages(ep, library, error))
        return NULL;
    ep->is_lam = true;
    int (*Init)(int *argc, char ***argv);
    void *world, *byte_type; /* handles are the addresses of objects of the library */
    const bench_symbol symbols[] = {{"MPI_Init", &Init},
                                    {"MPI_Open_port", &ep->Open_port},
                                    {"MPI_Comm_accept", &ep->Comm_accept},
                                    {"MPI_Comm_connect", &ep->Comm_connect},
                                    {"MPI_Comm_set_errhandler", &ep->Comm_set_errhandler},
                                    {"lam_mpi_comm_world", &world},
                                    {"lam_mpi_comm_self", &ep->self_alone},
                                    {"lam_mpi_byte", &byte_type},
                                    {"lam_mpi_errors_return", &ep->on_error}};
    const char *missing;
    void *again = bench_library(library, symbols, sizeof symbols / sizeof *symbols, &missing);
    if (!again)
        return bench_ep_fail(&ep->ep, error, "%s cannot be reached in %s", missing, library);
    dlclose(again); /* ep->library holds it */
    ep->byte = (uintptr_t)byte_type;
    if (!replace_calls(ep->library))
        return bench_ep_fail(&ep->ep, error, "readv and writev of %s cannot be replaced", library);
    int rc = check_code(ep, Init(NULL, NULL), "MPI_Init");
    if (rc == BENCH_DONE)
        rc = return_errors(ep, world);
    if (rc == BENCH_DONE)
        rc = return_errors(ep, ep->self_alone);
    return rc == BENCH_DONE ? &ep->ep : bench_ep_fail(&ep->ep, error, "%s", ep->ep.error);
}
