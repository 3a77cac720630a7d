/*
 * mpi_exit.c - the end of a process whose ranks are MPI's: in order, or for all of them.
 *
 * MPI_Finalize waits for all ranks, and a rank that waits in a collective for one that has gone waits for ever. Every
 * other channel tells the ranks when one leaves; MPI has only MPI_Abort, which must not hit ranks that are about to end
 * by themselves: of a job whose ranks all find that the result is wrong, and all end with status 1, one is still to
 * print it. So each rank says that it ends, by a barrier that does not block, on a communicator that is for nothing
 * else. It is complete when all have ended their programs:
 *
 *      status 0        wait until it is complete                   MPI_Finalize
 *      other status    ... for grace_ms. Complete in time?  yes    MPI_Finalize
 *                                                           no     MPI_Abort(status)
 *
 * The status is known to the handlers of on_exit(3), and to nobody before: Python has ended by then, so nothing here may
 * call it. Handles are passed on as in csrc/bench/ep_mpi.c; no mpi.h is needed.
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

#define YIELDS 200     /* looks before the first pause: ranks mostly end together */
#define READER_MS 1000 /* for whoever reads our output, at an abort */
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

/* Whether all ranks have come to their ends, before the time is out. */
static int all_end(uint64_t limit_ns)
{
    mpi_request request;
    mpi_status status;
    uint64_t began = vk_now();
    memset(&request, 0, sizeof request);
    if (the.Ibarrier(the.own, &request) != 0)
        return 0;
    for (int looks = 0, done = 0;; looks++) {
        if (the.Test(&request, &done, &status) != 0)
            return 0;
        if (done)
            return 1;
        if (limit_ns != FOREVER && vk_now() - began > limit_ns)
            return 0;
        if (looks < YIELDS)
            sched_yield();
        else
            poll(NULL, 0, 1);
    }
}

/* Until a pipe is empty: MPICH's launcher, told to abort, leaves what it has not read. */
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
        _exit(status); /* MPICH's returns where its launcher was quicker */
    }
    the.Finalize();
}

int msg_mpi_exit_can(void)
{
    return 1;
}

int msg_mpi_exit(const char *library, uintptr_t world, uintptr_t own, int grace_ms)
{
    /* Never closed: the functions are called at the very end. memcpy, for dlsym returns pointers to objects. */
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
