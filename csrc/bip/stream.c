/*
 * Bytes over a stream socket, until a deadline: see stream.h.
 *
 * Every call waits with poll and moves bytes without blocking, so the deadline holds also for a descriptor that blocks.
 * Polls that end early, by a signal or after LONGEST_MS, begin again with the time that is left.
 */
#include "bip/stream.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/clock.h"

#define LONGEST_MS 3600000 /* of one poll, whose time is an int */

/* The time left is rounded up to whole milliseconds: rounded down, the last one would be spent in polls of 0 ms. A
 * descriptor that has hung up or has an error counts as ready: the send or recv that follows reports it. */
int bip_stream_wait(int fd, short events, uint64_t deadline)
{
    for (;;) {
        uint64_t now = vk_now(), left = now < deadline ? (deadline - now) / VK_MS + 1 : 0;
        struct pollfd p = {.fd = fd, .events = events};
        int n = left ? poll(&p, 1, left > LONGEST_MS ? LONGEST_MS : (int)left) : 0;
        if (n > 0)
            return 0;
        if (n == 0 && vk_now() < deadline)
            continue;
        if (n == 0)
            errno = ETIMEDOUT;
        if (n == 0 || errno != EINTR)
            return -1;
    }
}

/* Convert a result of send or recv: the bytes that were moved, 0 to try again, -1 with errno. EAGAIN may follow a poll
 * that reported data. The end of the stream and EPIPE both become ECONNRESET, so that callers have one error for a peer
 * that has gone. */
static ssize_t judge(ssize_t n)
{
    if (n > 0)
        return n;
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return 0;
    if (n == 0 || errno == EPIPE)
        errno = ECONNRESET;
    return -1;
}

/* MSG_NOSIGNAL: a peer that has gone is an error of this call, not a SIGPIPE, which would end the program. */
int bip_stream_send(int fd, const void *bytes, size_t len, uint64_t deadline)
{
    for (size_t done = 0; done < len;) {
        if (bip_stream_wait(fd, POLLOUT, deadline) != 0)
            return -1;
        ssize_t n = judge(send(fd, (const char *)bytes + done, len - done, MSG_NOSIGNAL | MSG_DONTWAIT));
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}

int bip_stream_recv(int fd, void *bytes, size_t len, uint64_t deadline)
{
    for (size_t done = 0; done < len;) {
        if (bip_stream_wait(fd, POLLIN, deadline) != 0)
            return -1;
        ssize_t n = judge(recv(fd, (char *)bytes + done, len - done, MSG_DONTWAIT));
        if (n < 0)
            return -1;
        done += (size_t)n;
    }
    return 0;
}
