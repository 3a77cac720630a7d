/*
 * check.h - the tests' assertions. A failed one prints its place, the expected value and the found one, and ends the
 * process at once with status 1. So a test of two processes never waits for a partner that has given up.
 *
 * Rules: no test sleeps for a fixed time. It waits for a condition with WAIT_UNTIL, which has a deadline. The whole
 * program has one too (check_deadline). Exit status: 0 passed, 1 failed, 77 skipped with the reason on standard output.
 */
#ifndef CHECK_H
#define CHECK_H

#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "viakit.h"

#define CHECK_SKIPPED 77

/* Sanitizers make everything several times slower; deadlines stretch with them. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define CHECK_SLOWER 5
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define CHECK_SLOWER 5
#endif
#endif
#ifndef CHECK_SLOWER
#define CHECK_SLOWER 1
#endif

/* How long a condition may take to come true. Generous: it is only ever used up by a test that fails. */
#define CHECK_WAIT_S (20 * CHECK_SLOWER)

/* Current activity of the process, for messages: "shm order A". Weak, so that all files of a program share it. */
extern char check_context[160];
__attribute__((weak)) char check_context[160] = "test";

static inline double check_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

__attribute__((format(printf, 3, 4), noreturn)) static inline void check_fail(const char *file, int line,
                                                                              const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "%s:%d: [%s] %s\n    last error of this thread: \"%s\"\n", file, line, check_context, text,
            viakit_last_error());
    fflush(stderr);
    _exit(1);
}

#define FAIL(...) check_fail(__FILE__, __LINE__, __VA_ARGS__)

#define CHECK(cond)                      \
    do {                                 \
        if (!(cond))                     \
            FAIL("expected: %s", #cond); \
    } while (0)

/* Two integers of any width; evaluated once. */
#define CHECK_EQ(actual, expected)                                                                                  \
    do {                                                                                                            \
        long long check_a = (long long)(actual), check_e = (long long)(expected);                                   \
        if (check_a != check_e)                                                                                     \
            FAIL("%s is %lld (0x%llx), expected %s = %lld (0x%llx)", #actual, check_a, (unsigned long long)check_a, \
                 #expected, check_e, (unsigned long long)check_e);                                                  \
    } while (0)

static inline const char *check_return_name(int code)
{
    const char *name = viakit_return_name(code);
    return name ? name : "(no such code)";
}

/* A VIPL call and the VIP_RETURN it must give. */
#define CHECK_RET(call, expected)                                                                               \
    do {                                                                                                        \
        int check_a = (int)(call), check_e = (int)(expected);                                                   \
        if (check_a != check_e)                                                                                 \
            FAIL("%s returned %s, expected %s", #call, check_return_name(check_a), check_return_name(check_e)); \
    } while (0)

#define CHECK_OK(call) CHECK_RET(call, VIP_SUCCESS)

/* The status word of a completed descriptor, without the bits in `ignore`. */
#define CHECK_STATUS(desc, expected)                                                              \
    do {                                                                                          \
        unsigned check_a = (desc)->CS.Status, check_e = (unsigned)(expected);                     \
        if (check_a != check_e)                                                                   \
            FAIL("status of %s is 0x%x, expected %s = 0x%x", #desc, check_a, #expected, check_e); \
    } while (0)

/* Gives the core away. A wait that takes long sleeps for a fiftieth of its time, at most 1 ms: others need the core. */
static inline void check_pause(double waited_s)
{
    struct timespec pause = {.tv_nsec = (long)(waited_s < 0.05 ? waited_s / 50 * 1e9 : 1e6)};
    if (waited_s < 0.005)
        sched_yield();
    else
        nanosleep(&pause, NULL);
}

/* Polls cond until it holds, or fails. */
#define WAIT_UNTIL(cond)                                                    \
    do {                                                                    \
        double check_began = check_now();                                   \
        while (!(cond)) {                                                   \
            double check_waited = check_now() - check_began;                \
            if (check_waited > CHECK_WAIT_S)                                \
                FAIL("did not come true in %d s: %s", CHECK_WAIT_S, #cond); \
            check_pause(check_waited);                                      \
        }                                                                   \
    } while (0)

static inline void check_on_alarm(int sig)
{
    static const char text[] = ": deadline of the whole test passed\n";
    ssize_t ignored;
    (void)sig;
    ignored = write(2, check_context, strlen(check_context));
    ignored = write(2, text, sizeof(text) - 1);
    (void)ignored;
    _exit(1);
}

/* Factor of the time that a whole program may take: tests of many ranks take several times as long on a busy
 * machine. */
#define CHECK_BUSY 4

/* The process has so many seconds (times CHECK_SLOWER and CHECK_BUSY) to live from now on. Not inherited by fork: call
 * it again. */
static inline void check_deadline(unsigned seconds)
{
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_handler = check_on_alarm;
    sigaction(SIGALRM, &action, NULL);
    alarm(seconds * CHECK_SLOWER * CHECK_BUSY);
}

/* Every object of the provider in this process has been closed. */
static inline void check_nothing_left(const char *file, int line)
{
    viakit_live live;
    viakit_live_objects(&live);
    if (live.nics || live.vis || live.cqs || live.ptags || live.regions || live.connections || live.allocations)
        check_fail(file, line,
                   "left behind: %u NICs, %u VIs, %u CQs, %u tags, %u regions, %u connections, %u allocations",
                   live.nics, live.vis, live.cqs, live.ptags, live.regions, live.connections, live.allocations);
}
#define CHECK_NOTHING_LEFT() check_nothing_left(__FILE__, __LINE__)

#endif /* CHECK_H */
