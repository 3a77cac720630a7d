/*
 * bench/bench.h - one measuring loop for every protocol, and the table of operations that a protocol fills in.
 *
 *      loop.c      ping-pong, stream, bidir, validation, deadlines. Independent of protocols.
 *      clock.c     ticks and their duration
 *      endpoint.c  buffers and error texts that endpoints share
 *      content.c   the bytes of messages: patterns, writing and reading of touched buffers
 *      steps.c     the steps of a message, each timed alone
 *      ep_*.c      one protocol each: null and floor, frames, socket (tcp, unix), udp, verbs, zmq, mpi, pvm, via, msg, bip
 *
 * A measurement has two sides, A (side 0, which holds the clock) and B (side 1). Each side makes the same calls on its
 * own endpoint, and the driver of the two keeps them in step:
 *
 *      bench_prepare(ep, plan)     buffers exist, receives are posted; nothing has been sent yet
 *                                  --- both sides have returned ---
 *      bench_run(ep, plan, ...)    the messages; B returns when A does
 *
 * The messages in each mode (of `len` bytes unless stated otherwise):
 *
 *      ping-pong   A sends, B replies; A takes one time stamp per round trip.      sample = round trip / 2
 *      stream      A sends `count` messages, B replies to the last with 1 byte.    sample = time / count
 *      bidir       both send `count` messages at once, then 1 byte each.           sample = time / count
 *
 * A ping-pong with plan->computes shows how much computing fits beside a message. In every second round trip, A
 * computes between its send and its receive, without any call, for as long as the round trip before took. The sample
 * is half of the round trip without that computing: the time that the message takes from other work.
 *
 * Threads: one endpoint belongs to one thread. Any thread may set `stop` and write to the control descriptor.
 */
#ifndef BENCH_BENCH_H
#define BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/virtual.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

/* ---------------------------------------------------------------- statuses */

enum {
    BENCH_DONE = 1,      /* an operation finished */
    BENCH_NOT_YET = 0,   /* it did not finish; call again with the same arguments */
    BENCH_OK = 0,        /* result of whole runs */
    BENCH_ERROR = -1,    /* ep->error has the reason */
    BENCH_TIMEOUT = -2,  /* nothing moved for plan->stall_s, or the run took longer than plan->timeout_s */
    BENCH_STOPPED = -3,  /* stopped by *plan->stop, plan->interrupt or the control descriptor */
    BENCH_MISMATCH = -4, /* validation failed: ep->error has message and byte */
    BENCH_GONE = -5      /* the peer has gone */
};

/* ---------------------------------------------------------------- the plan of a run */

typedef enum { BENCH_PINGPONG = 0, BENCH_STREAM = 1, BENCH_BIDIR = 2 } bench_mode;

/* The source of buffers. */
typedef enum {
    BENCH_MEMORY_USER = 0,  /* ordinary memory (mmap), supported by every protocol */
    BENCH_MEMORY_VIAKIT = 1 /* the protocol's own allocator; prepare fails if it has none */
} bench_memory;

/* The use of buffers from message to message. All protocols get the same number of buffers. */
typedef enum {
    BENCH_SAME = 0,    /* one buffer, the same bytes each time. The loop neither writes nor reads it. */
    BENCH_TOUCHED = 1, /* the sender writes each message before sending it. The receiver reads and checks each. */
    BENCH_COLD = 2     /* each message uses another buffer of a pool of plan->pool bytes. Neither written nor read. */
} bench_use;

typedef struct {
    bench_mode mode;
    int side;         /* 0: A, 1: B */
    size_t len;       /* bytes of a message */
    uint64_t count;   /* ping-pong: round trips. Else messages of one repeat; >= 1. */
    uint64_t warmup;  /* messages before the clock starts. At least 1. */
    uint64_t repeats; /* stream, bidir: samples. Ping-pong: 1. */
    size_t offset;    /* of the message from a page's start, in both buffers: alignment is an input, too */
    bench_memory memory;
    bench_use buffers;
    uint64_t spin_ns;   /* blocking: time that an operation is tried before it sleeps (hybrid waiting); 0: none */
    size_t pool;        /* BENCH_COLD: bytes of the buffers of one direction. Choose it above the last-level cache. */
    bool validate;      /* fill and check every byte. The times then include that work. */
    bool one_core;      /* both sides share a core: polling yields it */
    bool computes;      /* ping-pong: A computes in round trips 1, 3, 5 ... */
    uint32_t run_id;    /* part of the pattern, so that a stale message of an earlier run does not pass */
    double timeout_s;   /* of the whole run */
    double stall_s;     /* longest time without a message */
    int control_fd;     /* readable data or a hang-up on it stops the run; -1: none. */
    volatile int *stop; /* non-zero stops the run. May be NULL. */
    int (*interrupt)(void *context); /* called about every 20 ms: non-zero stops the run. May be NULL. */
    void *interrupt_context;
} bench_plan;

/* ---------------------------------------------------------------- endpoints */

typedef struct bench_ep bench_ep;

/* The operations of a protocol. All slots are filled except those marked "or NULL". The thread that owns the endpoint
 * calls the operations. Those with type int return BENCH_DONE, BENCH_NOT_YET or an error below zero with ep->error set.
 *
 * With ep->dontwait no operation may sleep. Without it an operation may sleep for at most BENCH_SLICE_MS. */
typedef struct {
    const char *name;
    size_t min_len, max_len;
    bool allocates; /* has an allocator of its own: supports BENCH_MEMORY_VIAKIT */
    bool empty;     /* carries no data: the content of received messages is not compared */

    /* Write this side's address, of at most BENCH_ADDRESS_LEN bytes, which the caller passes to the other side. Its
     * length, or an error. Or NULL. */
    int (*address)(bench_ep *ep, unsigned char *address, size_t room);

    /* Connect to the other side, whose address that is. BENCH_DONE or an error. Or NULL. */
    int (*join)(bench_ep *ep, const unsigned char *address, size_t len);

    /* Allocate buffers for messages of plan->len + plan->offset in both directions, in plan->memory, by bench_buffers
     * or bench_buffers_place, and set window. Nothing of an earlier run is outstanding. BENCH_DONE or an error. */
    int (*prepare)(bench_ep *ep, const bench_plan *plan);

    /* Announce that exactly n messages of at most max(len, 1) bytes will be received in this run. The endpoint posts
     * receives in advance by this number, and none is left over at the end. BENCH_DONE or an error. Or NULL. */
    int (*expect)(bench_ep *ep, size_t len, uint64_t n);

    /* Send sbuf[0..len) as one message. DONE: the message is under way; the buffer may still be in use until flush.
     * NOT_YET: accepted in part or not at all; the loop calls again with the same sbuf. */
    int (*send)(bench_ep *ep, size_t len);

    /* Receive a message. DONE: one whole message of len bytes lies at ep->rmsg, valid until the next call of tidy, send
     * or recv. Endpoints that receive in place use ep->rbuf, which the loop advances after each message. Endpoints that
     * post receives in advance post number i to bench_receive_buffer(ep, i). */
    int (*recv)(bench_ep *ep, size_t len);

    /* Do work that can wait until after a send, off the critical path: repost receives, reap sends. Or NULL. */
    int (*tidy)(bench_ep *ep);

    /* DONE when at most the last `most` messages sent still use their buffers. Or NULL: a send that is DONE no longer
     * uses its buffer. */
    int (*flush)(bench_ep *ep, size_t most);

    /* DONE, after the last message of a run, when sbuf is free and the protocol owes its peer nothing. NULL: flush. */
    int (*finish)(bench_ep *ep);

    /* Sleep until something can be received, or (want_send) sent. Or NULL: then a recv that may sleep does it. */
    void (*idle)(bench_ep *ep, bool want_send);

    /* Add the protocol's own counts to values[BENCH_N_COUNTERS], free-running. Or NULL. */
    void (*counters)(bench_ep *ep, uint64_t *values);

    /* Release what the endpoint has besides its struct and the buffers of bench_buffers. Also called for a partly
     * opened endpoint. Or NULL. */
    void (*close)(bench_ep *ep);
} bench_ops;

#define BENCH_SLICE_MS 50   /* longest sleep between two checks of the clock */
#define BENCH_HEADROOM 4096 /* bytes before a message that belong to the endpoint (datagram headers) */
#define BENCH_GUARD 64      /* bytes after a message that must stay untouched */
#define BENCH_GUARD_BYTE 0xA5
#define BENCH_ERROR_LEN 512
#define BENCH_ADDRESS_LEN 64

/* Counters that every protocol shares. via adds the NIC's own (viakit.h) under their names. */
#define BENCH_COUNTERS(X)                                                          \
    X(messages_sent, "including credits and replies of 1 byte")                    \
    X(messages_received, "including credits and replies of 1 byte")                \
    X(bytes_sent, "of payload")                                                    \
    X(bytes_received, "of payload")                                                \
    X(bytes_written, "by the loop, into messages before they were sent (touched)") \
    X(bytes_read, "by the loop, of received messages (touched)")                   \
    X(system_calls, "made by the endpoint to move data or to wait")                \
    X(empty_polls, "polls that found no message")                                  \
    X(timeouts, "a datagram was not acknowledged in time")                         \
    X(frames_retransmitted, "datagrams retransmitted")                             \
    X(acks_sent, "datagrams sent only to acknowledge")                             \
    X(frames_dropped, "datagrams received twice, out of order, or of another run") \
    X(cpu_user_ns, "processor time of the measuring thread")                       \
    X(cpu_system_ns, "processor time of the kernel on its behalf")                 \
    X(voluntary_switches, "the thread slept")                                      \
    X(involuntary_switches, "the thread was preempted")

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
    unsigned char *sbuf; /* start of the next message to send, offset included. Set by the loop. */
    unsigned char *rbuf; /* destination of the next message received in place. Set by the loop. */
    unsigned char *rmsg; /* the last message received. Set by the endpoint. */
    bool polled;         /* set at creation: wait by polling (true), or by sleeping in the kernel */
    bool dontwait;       /* set by the loop, from polled and the mode */
    size_t window;       /* messages that may be under way without a credit. 0: the protocol controls its own flow. */
    uint64_t count[BENCH_N_COUNTERS];
    uint64_t touch_sum; /* result of the reads of bench_touch_ns */
    char error[BENCH_ERROR_LEN];

    /* Set by bench_buffers_place: the buffers of each direction, which messages use in turn. */
    unsigned char *sends, *receives; /* the first of each */
    size_t n_sends, n_receives;      /* powers of two */
    size_t step;                     /* odd: message i uses buffer i * step, modulo their number */
    size_t stride;                   /* bytes from one buffer to the next */

    /* Owned by endpoint.c: ordinary memory, kept from run to run. */
    unsigned char *buffers;
    size_t buffers_len;
};

/* The buffer of message i of a run; i counts every message of its direction. */
static inline unsigned char *bench_send_buffer(const bench_ep *ep, uint64_t i)
{
    return ep->sends + (i * ep->step & (ep->n_sends - 1)) * ep->stride;
}

static inline unsigned char *bench_receive_buffer(const bench_ep *ep, uint64_t i)
{
    return ep->receives + (i * ep->step & (ep->n_receives - 1)) * ep->stride;
}

/* ---------------------------------------------------------------- the calls */

/* Check the plan against the protocol, prepare the endpoint, post the receives. BENCH_OK or an error. */
int bench_prepare(bench_ep *ep, const bench_plan *plan);

/* Run the prepared plan. On side A samples[] gets plan->count (ping-pong) or plan->repeats values in nanoseconds. Side
 * B may pass NULL. BENCH_OK or an error; after an error the endpoint can only be closed. */
int bench_run(bench_ep *ep, const bench_plan *plan, double *samples);
/* For bench_run: the run itself, in the time that vk_now() returns; and whether it is to stop, BENCH_STOPPED or 0. */
int bench_run_now(bench_ep *ep, const bench_plan *plan, double *samples);
int bench_stop_requested(bench_ep *ep, const bench_plan *plan);

/* Fill values[BENCH_N_COUNTERS] with the free-running counters of the endpoint and its thread. */
void bench_counters(bench_ep *ep, uint64_t *values);

/* Measure the cost of touching alone: nanoseconds to write one message and to read one, on the buffers of the last run,
 * without sending anything. The buffers are then as near to the core as possible, so this is a lower bound of the cost
 * that touching adds to a sample. Call it between two runs, with a prepared plan. */
double bench_touch_ns(bench_ep *ep, const bench_plan *plan);

void bench_close(bench_ep *ep); /* NULL is allowed */

/* ---------------------------------------------------------------- for endpoints (endpoint.c) */

/* Set ep->error and return code. */
int bench_fail(bench_ep *ep, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Return a zeroed endpoint of `size` bytes, or NULL with a reason in error[BENCH_ERROR_LEN]. */
void *bench_ep_new(size_t size, const bench_ops *ops, bool polled, char *error);

/* Hybrid waiting of a blocking endpoint that reads `dontwait`: try op for spin_ns without sleeping. Returns as op; 0:
 * the next try may sleep. Each try that found nothing is counted. */
int bench_spin_first(bench_ep *ep, int (*op)(bench_ep *ep, size_t len), size_t len, uint64_t spin_ns, uint64_t *tries);

/* The opening of an endpoint failed: close it, which may be NULL, write the reason to error, return NULL. */
void *bench_ep_fail(bench_ep *ep, char *error, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* A message of `got` bytes arrived where one of `len` was due: the two sides are out of step. BENCH_ERROR. */
int bench_wrong_length(bench_ep *ep, size_t got, size_t len);

/* Let calls on the socket sleep for at most that time. False: the descriptor is no socket; errno has the reason. */
bool bench_socket_slice(int fd, int us);

/* Find functions in a library that this process has loaded. Return the library, to be released with dlclose, or NULL
 * with *missing set to what was not found. */
typedef struct {
    const char *name;
    void *into; /* address of a function pointer */
} bench_symbol;
void *bench_library(const char *path, const bench_symbol *symbols, size_t n, const char **missing);

/* The counters of a NIC (viakit.h): fill values[n], return their total number. Describe it, one "name=value" per line;
 * return BENCH_DONE or an error. `nic` is a VIP_NIC_HANDLE. */
struct vk_text;
int bench_nic_counters(void *nic, uint64_t *values, int n);
int bench_nic_describe(bench_ep *ep, void *nic, struct vk_text *text);

/* Buffers of a run, from a page-aligned address; endpoint.c has the picture. Their number follows from the plan alone,
 * so it is the same for every protocol. `posted` is the number of receives that the endpoint may have outstanding at
 * once (1: it receives in place). bench_buffers_need returns their size in bytes. bench_buffers_place sets sends,
 * receives, sbuf, rbuf, rmsg, stride. */
size_t bench_buffers_need(const bench_plan *plan, size_t posted);
void bench_buffers_place(bench_ep *ep, const bench_plan *plan, size_t posted, unsigned char *base);

/* Both, in ordinary memory (mmap) that is kept from run to run and whose pages are resident before the run. */
int bench_buffers(bench_ep *ep, const bench_plan *plan, size_t posted);
void bench_buffers_release(bench_ep *ep);

/* Messages that may be under way if a protocol leaves flow control to its user: 4 to 64, at most 32 MiB of them. With
 * touched buffers it is limited by the number of buffers, to 2 to 62. */
size_t bench_window(const bench_plan *plan);

/* ---------------------------------------------------------------- the clock (clock.c)
 *
 * One tick per time stamp: the processor's invariant counter if it has one (some 10 ns to read), otherwise
 * CLOCK_MONOTONIC_RAW. */

extern bool bench_clock_counter;        /* true: bench_ticks reads the processor's counter */
void bench_clock_init(void);            /* idempotent. Call before the first bench_ticks. */
uint64_t bench_compute(uint64_t ticks); /* compute for that time, without calls. Returns the time that it took */
double bench_ns_per_tick(void);         /* calibrated against CLOCK_MONOTONIC_RAW. May spin for 10 ms the first time. */
const char *bench_clock_name(void);

static inline uint64_t bench_ticks(void)
{
    if (vk_time_is_virtual())
        return vk_virtual->picoseconds();
#if defined(__x86_64__)
    if (bench_clock_counter) {
        _mm_lfence(); /* all earlier instructions complete before the stamp */
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

/* ---------------------------------------------------------------- constructors of endpoints
 *
 * Each returns NULL with a reason in error[BENCH_ERROR_LEN]. Descriptors and handles passed in stay the caller's and
 * must outlive the endpoint. */

/* Open endpoint `name`, which is in ep_NAME.c:
 *
 *      null      does nothing
 *      floor     a cache line each way in memory that two processes share, at least 4096 bytes. Messages of 8 bytes,
 *                ping-pong only
 *      socket    a connected byte stream: TCP or a Unix socket. With device sim:NAME it connects a stream on machine
 *                NAME (base/streams.h), which carries the messages
 *      udp       a connected datagram socket
 *      frames    bare Ethernet frames on an interface, without any protocol: the cost of raw sockets, and the lower
 *                bound for VIA. Messages of up to 8 MiB; a lost frame is an error
 *      verbs     an RDMA card by libibverbs alone: the lower bound for VIA on that card
 *
 * bench_address and bench_join connect the last two.
 *
 * An endpoint uses those of the options that it needs. The list of names is bench_endpoints in csrc/meson.build. */
typedef struct {
    int fd; /* a connected socket, or the shared memory; -1: none */
    int side;
    bool polled;
    bool rdma_write;    /* verbs: messages are RDMA writes, not sends */
    const char *device; /* an interface, an RDMA device, or the name of a socket's protocol; or NULL */
    int64_t buffer;     /* socket buffers of a stream on a machine; 0: the system's own */
} bench_options;

bench_ep *bench_open(const char *name, const bench_options *options, char *error);

/* The head of the function in ep_NAME.c that opens it. */
#define BENCH_OPEN(name)                                                      \
    bench_ep *bench_##name##_open(const bench_options *options, char *error); \
    bench_ep *bench_##name##_open(const bench_options *options, char *error)

/* The operations address and join of the endpoint; an error if it has none. */
int bench_address(bench_ep *ep, unsigned char *address, size_t room);
int bench_join(bench_ep *ep, const unsigned char *address, size_t len);

/* A connected ZeroMQ PAIR socket of libzmq, which is already loaded; library is its path. The socket's high-water marks
 * are unlimited and, for blocking, its time-outs BENCH_SLICE_MS. */
bench_ep *bench_zmq_open(void *socket, const char *library, bool polled, char *error);

/* Rank peer of a communicator. Handles in the library's representation: an int (MPICH) or a pointer (Open MPI). */
bench_ep *bench_mpi_open(const char *library, uintptr_t comm, uintptr_t byte_type, int peer, char *error);

/* LAM/MPI, whose daemon runs on this host. Calls MPI_Init, once in a process. B calls bench_address, then bench_join
 * with length 0; A calls bench_join with B's address. */
bench_ep *bench_lam_open(const char *library, bool polled, char *error);

/* A task of PVM, by its number, for a process that is enrolled. in_place: the data is not packed. */
bench_ep *bench_pvm_open(const char *library, int peer, bool in_place, bool polled, char *error);

/* VIA on any link, by vipl.h alone. Connected by bench_via_accept on one side and bench_via_connect on the other. */
typedef struct {
    const char *device;   /* "loop:x", "shm:x", "eth:eth0" */
    unsigned reliability; /* VIP_SERVICE_*; 0: reliable delivery */
    unsigned form, mtu;   /* viakit_nic_options; 0: default */
    int spin_us;          /* blocking: time that a wait polls before it sleeps; 0: none, so that sleeping is measured */
    bool polled;
    unsigned retransmission;     /* viakit_nic_options */
    unsigned checksum;           /* the same */
    const char *faults;          /* in the syntax of viakit_parse_faults; NULL or "": none */
    const unsigned char *secret; /* 32 bytes that both sides share; NULL: any VI may connect */
    bool rdma_write;             /* messages are RDMA writes with immediate data, not sends */
} bench_via_options;

bench_ep *bench_via_open(const bench_via_options *options, char *error);
int bench_via_address(bench_ep *ep, unsigned char *address, size_t room); /* length, or an error below zero */
/* BENCH_DONE, or BENCH_NOT_YET after BENCH_SLICE_MS (call again), or an error. */
int bench_via_accept(bench_ep *ep, const unsigned char *token, size_t token_len);
int bench_via_connect(bench_ep *ep, const unsigned char *address, size_t address_len, const unsigned char *token,
                      size_t token_len);

/* The NIC's counters (viakit_counter_name), free-running: fills values[n], returns their total number. */
int bench_via_counters(bench_ep *ep, uint64_t *values, int n);

/* Describe the NIC, one "name=value" per line. Returns the length; cut at room. */
int bench_via_describe(bench_ep *ep, char *text, size_t room);

/* Messages (msg/msg.h) between two ranks. Returns when both are connected, or after timeout_s. */
typedef struct {
    const char *channel;        /* "via", "bip", "tcp" */
    const char *policy;         /* on top of the channel's own, in the syntax of msg_policy_parse; NULL or "": none */
    const char *network_device; /* via: "eth:eth0", "udp:ADDRESS", used if the two are on different hosts; or NULL */
    const char *address;        /* tcp: numeric, of this host; or NULL */
    int fd;                     /* a stream socket to the other side, used only while the two open */
    int side;
    bool polled;
    double timeout_s;
    const unsigned char
        *secret; /* 32 bytes that only the two sides have; the world's secret is derived from it. Copied */
} bench_msg_options;

bench_ep *bench_msg_open(const bench_msg_options *options, char *error);

/* The engine's counters (msg_counter_name), free-running: fills values (room for 64), returns their number. */
int bench_msg_counters(bench_ep *ep, uint64_t *values);

/* Policy, channel, route and the policy's fields, one "name=value" per line. Returns the length; cut at room. */
int bench_msg_describe(bench_ep *ep, char *text, size_t room);

/* BIP between ranks 0 and 1 of a job. Each side passes its card to the other, then both connect with both cards. */
typedef struct {
    const char *device; /* as for VIA */
    const char *job;    /* a word that both sides share */
    int side;
    uint64_t small, packet; /* bytes; 0: the calibrated values */
    bool unreliable;        /* VIA's level: loss is detected and not repaired */
    unsigned form, mtu, retransmission, checksum;
    int spin_us;
    bool polled;
    const char *faults;
    const unsigned char *secret; /* 32 bytes that both sides share */
} bench_bip_options;

bench_ep *bench_bip_open(const bench_bip_options *options, char *error);
int bench_bip_card(bench_ep *ep, unsigned char *card, size_t room); /* length, or an error below zero */
/* Connect with both cards, one after the other. BENCH_DONE; BENCH_NOT_YET: timed out, do not call again; or an
 * error. */
int bench_bip_connect(bench_ep *ep, const unsigned char *cards, int timeout_ms);
int bench_bip_counters(bench_ep *ep, uint64_t *values, int n); /* the NIC's, as bench_via_counters */
/* Describe NIC, job, and the packets of a message of len bytes. As bench_via_describe. */
int bench_bip_describe(bench_ep *ep, size_t len, char *text, size_t room);

/* ---------------------------------------------------------------- the steps of a message */

double bench_step_call(int n); /* seconds per system call that does nothing */
double bench_step_copy(uint8_t *to, const uint8_t *from, size_t len, int n); /* seconds per copy of len bytes */

/* Send `batch` messages of len bytes into `out`, then receive them from `in`, in this thread. The receive buffer of
 * `in` must have room for all. Sets the seconds per message of both halves. Returns 0, or an errno. */
int bench_step_pass(int out, int in, uint8_t *buffer, size_t len, int batch, double *send_s, double *recv_s);

#endif /* BENCH_BENCH_H */
