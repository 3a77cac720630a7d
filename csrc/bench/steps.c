/*
 * bench/steps.c - the steps of a message, each timed alone, in one thread (`viakit breakdown`).
 *
 *      bench_step_call     getppid: the way into the kernel and back
 *      bench_step_copy     memcpy between two buffers, which fit the caches if a message does
 *      bench_step_pass     send into one descriptor, receive from the other
 *
 *      send send ... send | recv recv ... recv
 *      t0                 t1                 t2      send = (t1 - t0) / batch, recv = (t2 - t1) / batch
 *
 * With both ends in one thread no thread waits, so no wake-up and no second core takes part. On the loopback interface
 * and on a veth pair the kernel processes the arriving packet on the sender's core, within the call that sends: `send`
 * contains the interrupt's part (softirq).
 *
 * Invariant: each call leaves both descriptors without data in flight. Threads: any; the descriptors are the caller's.
 */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bench/bench.h"

#define STALL_MS 2000 /* longest wait for a message that has been sent */

/* Ticks of bench_ticks(). */
static double seconds_of(uint64_t ticks)
{
    return (double)ticks * bench_ns_per_tick() * 1e-9;
}

/* getppid is not cached by the C library, and does nothing in the kernel. */
double bench_step_call(int n)
{
    uint64_t begun = bench_ticks();
    for (int i = 0; i < n; i++)
        syscall(SYS_getppid);
    return seconds_of(bench_ticks() - begun) / n;
}

double bench_step_copy(uint8_t *to, const uint8_t *from, size_t len, int n)
{
    uint64_t begun = bench_ticks();
    for (int i = 0; i < n; i++) {
        memcpy(to, from, len);
        __asm__ volatile("" : : "r"(to) : "memory"); /* the copy is not moved out of the loop */
    }
    return seconds_of(bench_ticks() - begun) / n;
}

/* Receive `len` bytes, in several parts from a stream. Returns 0, or an errno. */
static int receive(int fd, uint8_t *buffer, size_t len)
{
    for (size_t have = 0; have < len;) {
        ssize_t got = recv(fd, buffer + have, len - have, MSG_DONTWAIT);
        if (got > 0) {
            have += (size_t)got;
        } else if (got == 0) {
            return ECONNRESET;
        } else if (errno == EAGAIN) {
            struct pollfd one = {.fd = fd, .events = POLLIN};
            if (poll(&one, 1, STALL_MS) == 0)
                return ETIMEDOUT;
        } else if (errno != EINTR) {
            return errno;
        }
    }
    return 0;
}

int bench_step_pass(int out, int in, uint8_t *buffer, size_t len, int batch, double *send_s, double *recv_s)
{
    uint64_t begun = bench_ticks();
    for (int i = 0; i < batch; i++) {
        ssize_t sent = send(out, buffer, len, MSG_NOSIGNAL);
        if (sent != (ssize_t)len)
            return sent < 0 ? errno : EMSGSIZE;
    }
    uint64_t turned = bench_ticks();
    for (int i = 0; i < batch; i++) {
        int failed = receive(in, buffer, len);
        if (failed)
            return failed;
    }
    *send_s = seconds_of(turned - begun) / batch;
    *recv_s = seconds_of(bench_ticks() - turned) / batch;
    return 0;
}
