/*
 * bench/bench.h - one measuring loop for every protocol, and the table of operations that a protocol fills in.
 *
 *      loop.c      ping-pong, stream, bidir; validation; deadlines. Knows no protocol.
 *      clock.c     ticks and what they are worth
 *      endpoint.c  buffers and error texts that endpoints share
 *      ep_*.c      one protocol each: null and floor, frames, socket (tcp, unix), udp, zmq, mpi, via, msg, bip
 *
 * A measurement has two sides, A (side 0, which holds the clock) and B (side 1). Each side runs the same three calls
 * on its own endpoint, and whoever drives the two keeps them in step:
 *
 *      bench_prepare(ep, plan)     buffers exist, receives are posted: nothing has been sent yet
 *                                  --- both sides have got here ---
 *      bench_run(ep, plan, ...)    the messages; B returns when A does
 *
 * What is said in which mode (every message of `len` bytes unless said otherwise):
 *
 *      ping-pong   A sends, B answers; A takes one time stamp per round trip.      sample = round trip / 2
 *      stream      A sends `count` messages, B answers the last with 1 byte.       sample = time / count
 *      bidir       both send `count` messages at once, then 1 byte each.           sample = time / count
 *
 * Threads: one endpoint belongs to one thread. `stop` and the control descriptor may be touched from anywhere.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* ---------------------------------------------------------------- statuses */

enum {
    BENCH_DONE = 1,      /* an operation finished */
    BENCH_NOT_YET = 0,   /* it did not; call again with the same arguments */
    BENCH_OK = 0,        /* of whole runs */
    BENCH_ERROR = -1,    /* ep->error says what */
    BENCH_TIMEOUT = -2,  /* nothing moved for plan->stall_s, or the whole took plan->timeout_s */
    BENCH_STOPPED = -3,  /* *plan->stop, plan->interrupt or the control descriptor said so */
    BENCH_MISMATCH = -4, /* validation: ep->error names message and byte */
    BENCH_GONE = -5      /* the peer went away */
};

/* ---------------------------------------------------------------- the plan of a run */

typedef enum { BENCH_PINGPONG = 0, BENCH_STREAM = 1, BENCH_BIDIR = 2 } bench_mode;

typedef struct {
    bench_mode mode;
    int side;                        /* 0: A, 1: B */
    size_t len;                      /* bytes of a message */
    uint64_t count;                  /* ping-pong: round trips; else messages of one repeat; >= 1 */
    uint64_t warmup;                 /* messages before the clock starts; at least 1 is always sent */
    uint64_t repeats;                /* stream, bidir: samples; ping-pong: 1 */
    size_t offset;                   /* of the message from a page's start, both buffers: alignment is an input too */
    bool validate;                   /* fill and check every byte; the times then include that work */
    bool one_core;                   /* both sides share a core: polling gives it away */
    uint32_t run_id;                 /* part of the pattern, so that no stale message of an earlier run passes */
    double timeout_s;                /* of the whole run */
    double stall_s;                  /* longest silence */
    int control_fd;                  /* anything readable or a hang-up on it stops the run; -1: none */
    volatile int *stop;              /* non-zero stops the run; may be NULL */
    int (*interrupt)(void *context); /* asked about every 20 ms: non-zero stops the run; may be NULL */
    void *interrupt_context;
} bench_plan;

/* ---------------------------------------------------------------- endpoints */

typedef struct bench_ep bench_ep;

/* What a protocol brings. All slots are filled except those marked "or NULL". Operations are called by the thread that
 * owns the endpoint. Those that return int answer BENCH_DONE, BENCH_NOT_YET or an error below zero with ep->error set.
 *
 * With ep->dontwait no operation may sleep. Without it, one may, but for at most BENCH_SLICE_MS. */
typedef struct {
    const char *name;
    size_t min_len, max_len;

    /* Makes room for messages of plan->len + plan->offset in both directions and sets sbuf, rbuf and window. Nothing
     * of an earlier run is outstanding. BENCH_DONE or an error. */
    int (*prepare)(bench_ep *ep, const bench_plan *plan);

    /* Exactly n messages of at most max(len, 1) bytes will be received in this run: receives are posted in advance
     * from this number and none is left over at the end. BENCH_DONE or an error. Or NULL. */
    int (*expect)(bench_ep *ep, size_t len, uint64_t n);

    /* Hands sbuf[0..len) to the protocol as one message. DONE: on its way, though sbuf may still be in use until flush
     * says DONE. NOT_YET: taken in part or not at all. */
    int (*send)(bench_ep *ep, size_t len);

    /* DONE: one whole message of len bytes lies at ep->rmsg, valid until the next call of recv. */
    int (*recv)(bench_ep *ep, size_t len);

    /* What can wait until after a send, off the critical path: receives are posted again, sends are reaped. Or NULL. */
    int (*tidy)(bench_ep *ep);

    /* DONE when nothing of sbuf is in use any more. Or NULL: a send that is DONE has left sbuf. */
    int (*flush)(bench_ep *ep);

    /* After the last message of a run, DONE when sbuf is free and the protocol owes its peer nothing. NULL: flush. */
    int (*finish)(bench_ep *ep);

    /* Sleeps until something can be received, or (want_send) sent. Or NULL: then a recv that may sleep does it. */
    void (*idle)(bench_ep *ep, bool want_send);

    /* Adds to values[BENCH_N_COUNTERS] what only the protocol knows, free-running. Or NULL. */
    void (*counters)(bench_ep *ep, uint64_t *values);

    /* Releases everything, the endpoint's memory too. */
    void (*close)(bench_ep *ep);
} bench_ops;

#define BENCH_SLICE_MS 50   /* longest sleep between two looks at the clock */
#define BENCH_HEADROOM 4096 /* bytes before a message that belong to the endpoint (datagram headers) */
#define BENCH_GUARD 64      /* bytes after a message that nobody may touch */
#define BENCH_GUARD_BYTE 0xA5
#define BENCH_ERROR_LEN 512

/* Counters that every protocol shares; via adds the NIC's own (viakit.h) under their names. */
#define BENCH_COUNTERS(X)                                                             \
    X(messages_sent, "credits and answers of a byte among them")                      \
    X(messages_received, "as well")                                                   \
    X(bytes_sent, "of payload")                                                       \
    X(bytes_received, "of payload")                                                   \
    X(system_calls, "made by the endpoint to move data or to wait")                   \
    X(empty_polls, "looked for a message and found none")                             \
    X(timeouts, "a datagram was not acknowledged in time")                            \
    X(frames_retransmitted, "datagrams sent again")                                   \
    X(acks_sent, "datagrams sent only to acknowledge")                                \
    X(frames_dropped, "datagrams that came twice, out of order, or from another run") \
    X(cpu_user_ns, "processor time of the measuring thread")                          \
    X(cpu_system_ns, "and of the kernel on its behalf")                               \
    X(voluntary_switches, "the thread slept")                                         \
    X(involuntary_switches, "the core was taken from it")

typedef enum {
#define BENCH_X(name, text) BENCH_COUNTER_##name,
    BENCH_COUNTERS(BENCH_X)
#undef BENCH_X
        BENCH_N_COUNTERS
} bench_counter;

const char *bench_counter_name(int counter); /* NULL past the end */

/* The part of an endpoint that the loop sees; each ep_*.c embeds it as its first member. */
struct bench_ep {
    const bench_ops *ops;
    unsigned char *sbuf; /* where a message is sent from, offset included */
    unsigned char *rbuf; /* where a message is received to, offset included */
    unsigned char *rmsg; /* the last message received: rbuf, or one of several slots behind it */
    bool polled;         /* set at creation: wait by polling, or by sleeping in the kernel */
    bool dontwait;       /* set by the loop, from polled and the mode */
    size_t window;       /* messages that may be under way unanswered; 0: the protocol controls its own flow */
    uint64_t count[BENCH_N_COUNTERS];
    char error[BENCH_ERROR_LEN];

    /* Owned by endpoint.c for those who use bench_buffers. */
    unsigned char *buffers;
    size_t buffers_len;
    size_t stride; /* from one receive slot to the next; 0: all share the first */
};

/* ---------------------------------------------------------------- the calls */

/* Checks the plan against the protocol, prepares the endpoint, posts the receives. BENCH_OK or an error. */
int bench_prepare(bench_ep *ep, const bench_plan *plan);

/* Runs what was prepared. On side A samples[] gets plan->count (ping-pong) or plan->repeats values in nanoseconds;
 * side B may pass NULL. BENCH_OK or an error, after which the endpoint is good for nothing but closing. */
int bench_run(bench_ep *ep, const bench_plan *plan, double *samples);

/* values[BENCH_N_COUNTERS]: free-running counters of the endpoint and its thread. */
void bench_counters(bench_ep *ep, uint64_t *values);

void bench_close(bench_ep *ep); /* NULL is fine */

/* ---------------------------------------------------------------- for endpoints (endpoint.c) */

/* Sets ep->error and returns code. */
int bench_fail(bench_ep *ep, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A zeroed endpoint of `size` bytes; NULL without memory. */
void *bench_ep_new(size_t size, const bench_ops *ops, bool polled);

/* Bytes that a plan's message needs around it, and how they are laid out from a page-aligned address:
 *      | headroom | offset | message | guard |            sbuf
 *      | headroom | offset | message | guard |  x slots   rbuf, one slot after the other
 * bench_buffers_need says how many bytes that takes, bench_buffers_place sets sbuf, rbuf, rmsg and stride. */
size_t bench_buffers_need(const bench_plan *plan, size_t slots);
void bench_buffers_place(bench_ep *ep, const bench_plan *plan, size_t slots, unsigned char *base);

/* Both in ordinary memory that is kept from run to run and touched before use. */
int bench_buffers(bench_ep *ep, const bench_plan *plan, size_t slots);
void bench_buffers_release(bench_ep *ep);

/* A window of messages for protocols that leave flow control to their user: as many as fit 32 MiB, 4 to 64. */
size_t bench_window(const bench_plan *plan);

/* ---------------------------------------------------------------- the clock (clock.c)
 *
 * One tick per time stamp: the processor's invariant counter where there is one (some 10 ns to read), otherwise
 * CLOCK_MONOTONIC_RAW. */

extern bool bench_clock_counter; /* true: bench_ticks reads the processor's counter */
void bench_clock_init(void);     /* idempotent; call before the first bench_ticks */
double bench_ns_per_tick(void);  /* calibrated against CLOCK_MONOTONIC_RAW; may spin for 10 ms the first time */
uint64_t bench_now_ns(void);     /* CLOCK_MONOTONIC, for deadlines */
const char *bench_clock_name(void);

static inline uint64_t bench_ticks(void)
{
#if defined(__x86_64__)
    if (bench_clock_counter) {
        _mm_lfence(); /* everything before the stamp has happened before it */
        return __rdtsc();
    }
#elif defined(__aarch64__)
    if (bench_clock_counter) {
        uint64_t ticks;
        __asm__ volatile("isb\n\tmrs %0, cntvct_el0" : "=r"(ticks)::"memory");
        return ticks;
    }
#endif
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---------------------------------------------------------------- making endpoints
 *
 * Each returns NULL with a reason in error[BENCH_ERROR_LEN]. Descriptors and handles given stay the caller's and must
 * outlive the endpoint. */

/* Does nothing, at once: what is left is the loop's own cost. */
bench_ep *bench_null_open(char *error);

/* One cache line each way in memory shared by two processes (fd of at least 4096 bytes): messages of 8 bytes,
 * ping-pong only. No protocol can be faster. */
bench_ep *bench_floor_open(int fd, int side, char *error);

/* A connected byte stream: TCP or a Unix socket. */
bench_ep *bench_socket_open(int fd, const char *name, bool polled, char *error);

/* A connected datagram socket. */
bench_ep *bench_udp_open(int fd, bool polled, char *error);

/* Bare Ethernet frames on an interface, without any protocol: what raw sockets cost, and the least that VIA could.
 * Each side gives its address (6 bytes) to the other, before the first run. Messages of up to 8 MiB; a lost frame is
 * an error. */
bench_ep *bench_frames_open(const char *interface, bool polled, char *error);
void bench_frames_address(bench_ep *ep, unsigned char mac[6]);
void bench_frames_connect(bench_ep *ep, const unsigned char peer[6]);

/* A connected ZeroMQ PAIR socket of libzmq, which is loaded already; library is its path. The socket's high-water marks
 * are unlimited and, for blocking, its time-outs BENCH_SLICE_MS. */
bench_ep *bench_zmq_open(void *socket, const char *library, bool polled, char *error);

/* Rank peer of a communicator. Handles as the library has them: an int (MPICH) or a pointer (Open MPI). */
bench_ep *bench_mpi_open(const char *library, uintptr_t comm, uintptr_t byte_type, int peer, char *error);

/* VIA on any link, by vipl.h alone. Connected by bench_via_accept on one side and bench_via_connect on the other. */
typedef struct {
    const char *device;   /* "loop:x", "shm:x", "eth:eth0" */
    unsigned reliability; /* VIP_SERVICE_*; 0: reliable delivery */
    unsigned form, mtu;   /* viakit_nic_options; 0: default */
    int spin_us;          /* blocking: how long a wait polls before it sleeps; 0: never, so that sleeping is measured */
    bool polled;
    unsigned retransmission; /* viakit_nic_options */
    unsigned checksum;       /* the same */
    const char *faults;      /* as viakit_parse_faults reads them; NULL or "": none */
} bench_via_options;

bench_ep *bench_via_open(const bench_via_options *options, char *error);
int bench_via_address(bench_ep *ep, unsigned char *address, size_t room); /* length, or an error below zero */
/* BENCH_DONE, or BENCH_NOT_YET after BENCH_SLICE_MS (call again), or an error. */
int bench_via_accept(bench_ep *ep, const unsigned char *token, size_t token_len);
int bench_via_connect(bench_ep *ep, const unsigned char *address, size_t address_len, const unsigned char *token,
                      size_t token_len);

/* The NIC's counters (viakit.h), free-running: fills values[n], returns how many there are; their names. */
int bench_via_counters(bench_ep *ep, uint64_t *values, int n);
const char *bench_via_counter_name(int counter); /* NULL past the end */

/* What the NIC is, one "name=value" per line. Returns the length; cut at room. */
int bench_via_describe(bench_ep *ep, char *text, size_t room);

/* Messages (msg/msg.h) between two ranks. Returns when both are connected, or after timeout_s. */
typedef struct {
    const char *channel;        /* "via", "bip", "tcp" */
    const char *policy;         /* on top of the channel's own, as msg_policy_parse reads it; NULL or "": nothing */
    const char *network_device; /* via: "eth:eth0", "udp:ADDRESS", taken if the two are on different hosts; or NULL */
    const char *address;        /* tcp: numeric, of this host; or NULL */
    int fd;                     /* a stream socket to the other side, used while the two open and never later */
    int side;
    bool polled;
    double timeout_s;
} bench_msg_options;

bench_ep *bench_msg_open(const bench_msg_options *options, char *error);

/* The engine's counters, free-running: fills values (room for 64), returns how many there are; their names. */
int bench_msg_counters(bench_ep *ep, uint64_t *values);
const char *bench_msg_counter_name(int counter); /* NULL past the end */

/* Policy, channel, route and the policy's fields, one "name=value" per line. Returns the length; cut at room. */
int bench_msg_describe(bench_ep *ep, char *text, size_t room);

/* BIP between ranks 0 and 1 of a job. Both sides give their card to the other, then connect with both. */
typedef struct {
    const char *device; /* as for VIA */
    const char *job;    /* a word that both sides share */
    int side;
    uint64_t small, packet; /* bytes; 0: as calibrated */
    unsigned form, mtu, retransmission, checksum;
    int spin_us;
    bool polled;
    const char *faults;
} bench_bip_options;

bench_ep *bench_bip_open(const bench_bip_options *options, char *error);
int bench_bip_card(bench_ep *ep, unsigned char *card, size_t room); /* length, or an error below zero */
/* Both cards, one after the other. BENCH_DONE, BENCH_NOT_YET: the time is over, do not call again; or an error. */
int bench_bip_connect(bench_ep *ep, const unsigned char *cards, int timeout_ms);
int bench_bip_counters(bench_ep *ep, uint64_t *values, int n); /* the NIC's, as bench_via_counters */
/* What NIC and job are, and the packets of a message of len bytes. As bench_via_describe. */
int bench_bip_describe(bench_ep *ep, size_t len, char *text, size_t room);

#endif /* BENCH_BENCH_H */
