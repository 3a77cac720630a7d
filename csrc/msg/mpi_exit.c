/*
 * mpi_exit.c - the end of a process whose ranks are MPI's: in order, or for all of them.
 *
 * MPI_Finalize waits for all ranks. A rank in a collective waits for ever for a rank that has exited. All other
 * channels notify the ranks when one leaves; MPI offers only MPI_Abort. It must not kill ranks that are about to end by
 * themselves. For example, all ranks may find a wrong result and end with status 1, while one has yet to print it.
 *
 * So each rank announces its end by a non-blocking barrier, on a communicator with no other use. The barrier completes
 * when all ranks have ended their programs:
 *
 *      status 0        wait until it is complete                   MPI_Finalize
 *      other status    ... for grace_ms. Complete in time?  yes    MPI_Finalize
 *                                                           no     MPI_Abort(status)
 *
 * Only handlers of on_exit(3) receive the status. Python has ended by then, so this code must not call it. Handles are
 * passed as in csrc/bench/ep_mpi.c; no mpi.h is needed.
 */
#include "msg/mpi_exit.h"

#include <dlfcn.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"

#define YIELDS 200     /* polls before the first pause: ranks mostly end together */
#define READER_MS 1000 /* at an abort, time for the launcher to read the output */
#define FOREVER UINT64_MAX

#ifdef __GLIBC__

/* Memory for a handle that the library writes, and for an MPI_Status. */
typedef union {
    int mpich;
    void *openmpi;
} mpi_request;

typedef struct {
    long words[16];
} mpi_status;

static struct {
    pid_t process;
    uintptr_t world, own;
    uint64_t grace_ns;
    int (*Finalized)(int *is);
    int (*Finalize)(void);
    int (*Abort)(uintptr_t comm, int status);
    int (*Ibarrier)(uintptr_t comm, mpi_request *request);
    int (*Test)(mpi_request *request, int *done, mpi_status *status);
} the;

/* Returns 1 if all ranks reach their ends within the limit. */
static int all_end(uint64_t limit_ns)
{
    mpi_request request;
    mpi_status status;
    uint64_t began = vk_now();
    memset(&request, 0, sizeof request);
    if (the.Ibarrier(the.own, &request) != 0)
        return 0;
    for (int polls = 0, done = 0;; polls++) {
        if (the.Test(&request, &done, &status) != 0)
            return 0;
        if (done)
            return 1;
        if (limit_ns != FOREVER && vk_now() - began > limit_ns)
            return 0;
        if (polls < YIELDS)
            sched_yield();
        else
            poll(NULL, 0, 1);
    }
}

/* Waits until a pipe is empty, because MPICH's launcher drops unread output on an abort. */
static void until_read(int fd)
{
    struct stat about;
    uint64_t began = vk_now();
    if (fstat(fd, &about) != 0 || !S_ISFIFO(about.st_mode))
        return;
    for (int unread = 0; ioctl(fd, FIONREAD, &unread) == 0 && unread > 0;) {
        if (vk_now() - began > READER_MS * VK_MS)
            return;
        poll(NULL, 0, 1);
    }
}

/* The handler of on_exit. Only the process that registered it acts: the child of a fork has a copy, and is no rank. A
 * program that has called MPI_Finalize itself needs nothing more. The status of MPI_Abort has 8 bits and is not 0. */
static void at_exit(int status, void *context)
{
    int is_over = 0;
    (void)context;
    if (getpid() != the.process || the.Finalized(&is_over) != 0 || is_over)
        return;
    if (!all_end(status == 0 ? FOREVER : the.grace_ns)) {
        fflush(NULL);
        until_read(STDOUT_FILENO);
        until_read(STDERR_FILENO);
        the.Abort(the.world, status & 0xff ? status & 0xff : 1);
        _exit(status); /* MPICH's MPI_Abort returns if its launcher was faster */
    }
    the.Finalize();
}

int msg_mpi_exit_can(void)
{
    return 1;
}

int msg_mpi_exit(const char *library, uintptr_t world, uintptr_t own, int grace_ms)
{
    /* Never closed, because the functions are called at the very end. memcpy, because dlsym returns object pointers. */
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD | RTLD_LOCAL);
    const char *names[] = {"MPI_Finalized", "MPI_Finalize", "MPI_Abort", "MPI_Ibarrier", "MPI_Test"};
    void *found[5];
    if (handle == NULL)
        return -1;
    for (int i = 0; i < 5; i++)
        if ((found[i] = dlsym(handle, names[i])) == NULL)
            return -1;
    memcpy(&the.Finalized, &found[0], sizeof found[0]);
    memcpy(&the.Finalize, &found[1], sizeof found[0]);
    memcpy(&the.Abort, &found[2], sizeof found[0]);
    memcpy(&the.Ibarrier, &found[3], sizeof found[0]);
    memcpy(&the.Test, &found[4], sizeof found[0]);
    the.process = getpid();
    the.world = world;
    the.own = own;
    the.grace_ns = (uint64_t)grace_ms * VK_MS;
    return on_exit(at_exit, NULL) == 0 ? 0 : -1;
}

#else

int msg_mpi_exit_can(void)
{
    return 0;
}

int msg_mpi_exit(const char *library, uintptr_t world, uintptr_t own, int grace_ms)
{
    (void)library, (void)world, (void)own, (void)grace_ms;
    return -1;
}

#endif
