/*
 * Streams of bytes between two processes on a simulated machine: its sockets (link/sim/stream.c). They cost what the
 * section [tcp] of the machine's description declares.
 *
 * A stream is made on a connected socket of the kernel, whose two ends are the processes. The socket connects them,
 * proves who they are, reports when one has ended, and wakes a process that sleeps in the kernel while time is real.
 * The data goes through the machine only.
 *
 * A process uses a stream with one thread at a time.
 */
#ifndef VIAKIT_STREAMS_H
#define VIAKIT_STREAMS_H

#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "viakit.h"

struct vk_stream;

/* A daemon on each host passes the stream in packets of `bytes` bytes. Each is acknowledged, and at most `most` of them
 * are not. */
struct vk_daemons {
    int64_t bytes, most;
};

/* No call blocks, except that a rank waits for its turn while time is virtual. While time is real, the socket is
 * readable when a call that returned -EAGAIN should be repeated. */
struct vk_streams {
    /* Opens this process's end of a stream, and makes the process a member of machine `name`. `fd` is a connected
     * stream socket, on which nothing is under way; the caller keeps it, and closes it after the stream. `buffer` is
     * the length of the socket buffers that the program requests in bytes; 0: the system's own. NULL for `daemons`
     * means none. Both processes open their end with the same values. Returns 0, or -errno with an explanation:
     * -ENODEV if the machine has no section [tcp]. */
    int (*open)(const char *name, int fd, int64_t buffer, const struct vk_daemons *daemons, struct vk_stream **out);
    /* Sends bytes as far as the window is open. The machine takes the bytes of one call, and those of the calls that
     * continue it, as one message. Returns how many were sent; -EAGAIN: none now; -EPIPE: the other end has gone;
     * -EPROTO: the other process does not use the stream. */
    ssize_t (*send)(struct vk_stream *s, const struct iovec *v, int n);
    /* Receives what has arrived. Returns how many bytes; 0: the other end has gone, and all that it sent was received;
     * or -EAGAIN or -EPROTO. */
    ssize_t (*recv)(struct vk_stream *s, const struct iovec *v, int n);
    void (*close)(struct vk_stream *s); /* NULL is allowed */
};

static inline const struct vk_streams *vk_streams(void)
{
    return viakit_stream_table();
}

#endif
