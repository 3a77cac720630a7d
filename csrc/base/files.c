/*
 * See files.h: one bit for each number that a descriptor may have.
 *
 * A bit is cleared before its file is closed. Thus the child closes only files of viakit, never a number that the
 * program has received anew. There is no list and no lock: other threads may be at any point during a fork. Between
 * fork and exec only async-signal-safe calls such as close() are allowed.
 */
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/thread.h"

#define MOST (1 << 20) /* the kernel's default limit (fs.nr_open); higher descriptors stay open in a child */

static uint64_t owned[MOST / 64]; /* unused pages cost nothing */
static int highest = -1;          /* index of the highest word in use; only grows */

/* The NICs keep the numbers in the child. They are not used there, because each call checks the process first. */
static void child_of_fork(void)
{
    for (int i = 0; i <= __atomic_load_n(&highest, __ATOMIC_RELAXED); i++) {
        uint64_t bits = __atomic_exchange_n(&owned[i], 0, __ATOMIC_RELAXED);
        for (; bits; bits &= bits - 1)
            close(i * 64 + __builtin_ctzll(bits));
    }
}

VK_AT_FORK(child_of_fork)

int vk_file_above(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int above = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), error = errno;
    VK_HOLD_CANCEL;
    close(fd);
    errno = error; /* fcntl's error, if it failed */
    return above;
}

int vk_file_own(int fd)
{
    fd = vk_file_above(fd);
    if (fd < 0 || fd >= MOST)
        return fd;
    int word = fd / 64, seen = __atomic_load_n(&highest, __ATOMIC_RELAXED);
    /* The maximum over all threads. A failed exchange has put the present value in `seen`. */
    while (seen < word && !__atomic_compare_exchange_n(&highest, &seen, word, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
    __atomic_fetch_or(&owned[word], 1ull << fd % 64, __ATOMIC_RELAXED);
    return fd;
}

void vk_file_disown(int fd)
{
    if (fd >= 0 && fd < MOST)
        __atomic_fetch_and(&owned[fd / 64], ~(1ull << fd % 64), __ATOMIC_SEQ_CST);
}

void vk_file_close(int fd)
{
    VK_HOLD_CANCEL;
    if (fd < 0)
        return;
    vk_file_disown(fd); /* before the number is free */
    close(fd);
}
