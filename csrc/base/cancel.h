/*
 * Threads that a program cancels (pthread_cancel).
 *
 * A thread must not be cancelled while it is inside a NIC, because no thread could enter the NIC afterwards. But many
 * functions of the C library that make system calls are *cancellation points*. There are three remedies:
 *
 * - The short path, which sends messages and polls for them, makes system calls directly (vk_send and the like below).
 * - Calls that may open files or query a name service disable cancellation as a whole (VK_HOLD_CANCEL).
 * - A call that waits permits cancellation where it is outside the NIC and can undo what it began (vk_cancel_point).
 *   Programs have a thread in VipCQWait without time-out, and end it by cancellation.
 *
 * Under sanitizers the C library's functions are used after all, because sanitizers must see the effects on memory and
 * descriptors.
 */
#ifndef VIAKIT_CANCEL_H
#define VIAKIT_CANCEL_H

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/atomic.h"

/* Disables cancellation of this thread until the matching release. Holds nest. The outermost one stores the program's
 * own state. Returns whether this is the outermost, for the release. */
int vk_cancel_hold(void);
void vk_cancel_release(const int *outermost);
/* Disables cancellation to the end of the block. */
#define VK_HOLD_CANCEL __attribute__((cleanup(vk_cancel_release), unused)) const int hold_cancel = vk_cancel_hold()

/* Called between hold and release, with nothing owned. If the program has cancelled the thread (and permits that), this
 * calls abandon(argument), still on this stack, and does not return. */
void vk_cancel_point(void (*abandon)(void *), void *argument);

/* Like the functions without vk_, but not cancellation points. */
#if VK_TSAN || defined(__SANITIZE_ADDRESS__)
#define VK_SYSTEM_CALL(name, number, ...) name(__VA_ARGS__)
#else
#define VK_SYSTEM_CALL(name, number, ...) syscall(number, __VA_ARGS__)
#endif

static inline ssize_t vk_read(int fd, void *to, size_t len)
{
    return VK_SYSTEM_CALL(read, SYS_read, fd, to, len);
}

static inline ssize_t vk_write(int fd, const void *from, size_t len)
{
    return VK_SYSTEM_CALL(write, SYS_write, fd, from, len);
}

/* Whether a write would not block now. */
static inline int vk_can_write(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
#if VK_TSAN || defined(__SANITIZE_ADDRESS__)
    int n = poll(&p, 1, 0);
#else
    struct timespec at_once = {0};
    long n = syscall(SYS_ppoll, &p, 1, &at_once, NULL, 0);
#endif
    return n == 1 && (p.revents & POLLOUT);
}

static inline ssize_t vk_sendto(int fd, const void *from, size_t len, int flags, const struct sockaddr *to,
                                socklen_t to_len)
{
    return VK_SYSTEM_CALL(sendto, SYS_sendto, fd, from, len, flags, to, to_len);
}

static inline ssize_t vk_send(int fd, const void *from, size_t len, int flags)
{
    return vk_sendto(fd, from, len, flags, NULL, 0);
}

static inline ssize_t vk_recvfrom(int fd, void *to, size_t len, int flags, struct sockaddr *from, socklen_t *from_len)
{
    return VK_SYSTEM_CALL(recvfrom, SYS_recvfrom, fd, to, len, flags, from, from_len);
}

static inline ssize_t vk_recv(int fd, void *to, size_t len, int flags)
{
    return vk_recvfrom(fd, to, len, flags, NULL, NULL);
}

static inline ssize_t vk_sendmsg(int fd, const struct msghdr *m, int flags)
{
    return VK_SYSTEM_CALL(sendmsg, SYS_sendmsg, fd, m, flags);
}

static inline ssize_t vk_recvmsg(int fd, struct msghdr *m, int flags)
{
    return VK_SYSTEM_CALL(recvmsg, SYS_recvmsg, fd, m, flags);
}

#ifdef _GNU_SOURCE /* these two exist only on Linux */
static inline int vk_sendmmsg(int fd, struct mmsghdr *m, unsigned n, int flags)
{
    return (int)VK_SYSTEM_CALL(sendmmsg, SYS_sendmmsg, fd, m, n, flags);
}

static inline int vk_recvmmsg(int fd, struct mmsghdr *m, unsigned n, int flags)
{
    return (int)VK_SYSTEM_CALL(recvmmsg, SYS_recvmmsg, fd, m, n, flags, NULL);
}
#endif

#endif
