/*
 * replay.h - schedules of many ranks in virtual time: thousands of ranks in one process, without a network.
 *
 * A schedule is a list of operations for each rank. A path describes the costs of a message between two hosts, stage by
 * stage. sim_replay runs the schedule and returns the time at which each rank ends. sim_message_ns follows one message
 * frame by frame, as a ping-pong on an idle machine does.
 *
 *     sender's CPU --> bus --> wire up --> [switch] --> wire down --> bus --> receiver's CPU
 *     SIM_SEND_CPU  SIM_SEND_BUS  SIM_UP              SIM_DOWN  SIM_RECV_BUS  SIM_RECV_CPU
 *
 * Each stage is a server: it takes one frame at a time, in the order in which they reach it. This is LogGP (Alexandrov,
 * Ionescu, Schauser and Scheiman, 1995) with the gap split among the stages: the overheads o are the CPU stages, the
 * gap per byte G is the slowest stage, and the latency L is what remains.
 *
 * A rank that waits takes every message that arrives, and spends only match_ns on it later. A rank that computes takes
 * it in its next receive.
 *
 * Times are nanoseconds of virtual time, as doubles. Equal inputs give equal bits. Nothing here blocks, waits for real
 * time, or has state between calls: any thread may call it.
 */
#ifndef VIAKIT_SIM_REPLAY_H
#define VIAKIT_SIM_REPLAY_H

#include <stdint.h>

enum { SIM_SEND_CPU, SIM_SEND_BUS, SIM_UP, SIM_DOWN, SIM_RECV_BUS, SIM_RECV_CPU, SIM_STAGES };

/* Costs of messages of one kind. */
typedef struct {
    double message_ns[SIM_STAGES]; /* once for each message, in the two CPU stages only */
    double frame_ns[SIM_STAGES];   /* for each frame */
    double byte_ns[SIM_STAGES];    /* for each byte of payload */
    double delay_ns;               /* of each frame, between the two wires: no server is occupied */
    double payload;                /* bytes of a message in one frame, at least 1 */
    double cut;                    /* 1: the wire down begins with the frame's head (wormhole). 0: with its end */
    double window;                 /* frames sent and not acknowledged, 0: no limit (sim_message_ns) */
    double ack_every, ack_ns;      /* frames for one acknowledgement, and its time until the sender may send again */
    double match_ns;               /* part of message_ns[SIM_RECV_CPU] that is spent when a receive matches */
} sim_path;

/* Operations. A rank performs its operations in order. */
enum {
    SIM_COMPUTE, /* ns */
    SIM_SEND,    /* peer, tag, bytes: returns when the buffer is free */
    SIM_RECV,    /* peer, tag */
    SIM_ISEND,   /* as SEND, completes in WAITALL */
    SIM_IRECV,   /* as RECV, completes in WAITALL */
    SIM_WAITALL, /* for all operations begun by ISEND and IRECV */
    SIM_WRITE,   /* peer, tag, bytes: RDMA write; the receiver does nothing */
    SIM_AWAIT,   /* peer, tag: poll memory until the peer's WRITE with this tag has landed */
    SIM_KINDS
};
typedef struct {
    int64_t kind, peer, tag, bytes, ns; /* those that the kind does not name are ignored, but must not be negative */
} sim_op;

/* Paths by kind of message. */
enum { SIM_EAGER, SIM_LONG, SIM_RDMA, SIM_LOCAL, SIM_LOCAL_LONG, SIM_PATHS };

typedef struct {
    sim_path path[SIM_PATHS]; /* LOCAL: messages between ranks of one host, if local is 1 */
    double eager_limit;       /* longer messages wait for the receiver: request, reply, then the data by LONG */
    double request_ns;        /* one way of a request or a reply */
    double local;             /* 0: messages within a host pass the card, as those between hosts */
    double local_flag_ns; /* a flag in shared memory, until another process sees it: a WRITE within a host, if not 0 */
    double switch_ns, ports; /* of each switch crossed; ports of a switch: 0 is one switch for all hosts */
    double half_duplex;      /* 1: one server for both directions of a host's bus */
} sim_model;

typedef struct {
    int32_t n_ranks, n_hosts; /* 0 ranks end at 0 */
    const int64_t *host;      /* [n_ranks] */
    const int64_t *first;     /* [n_ranks + 1] index of each rank's first operation */
    const sim_op *ops;        /* all ranks' lists, one behind the other */
} sim_schedule;

enum { SIM_OK, SIM_NO_MEMORY, SIM_INVALID, SIM_DEADLOCK };

/* Set by sim_replay. `rank` and `op`: for SIM_INVALID and SIM_DEADLOCK, an operation that is not valid, or that waits
 * for ever, by its index in the rank's own list. */
typedef struct {
    int64_t messages, bytes, rank, op;
    double end_ns; /* of the last rank */
} sim_result;

/* Time of one message of n bytes on an idle machine, from the call of send to the end of the receive. Follows every
 * frame, with the window. */
double sim_message_ns(const sim_path *path, double n);

/* Run a schedule. ends_ns[n_ranks]: end of each rank; waits_ns[n_ranks]: its time in waits for others. Returns SIM_OK
 * or an error; the arrays and `result` are set on success, result->rank and op also on SIM_INVALID and SIM_DEADLOCK.
 *
 * The schedule stays the caller's and is only read. Operations are checked before anything runs: kind, peer, and signs.
 * The caller ensures that host[i] is below n_hosts, that `first` never decreases, and that costs are not negative.
 *
 * SIM_NO_MEMORY is also the result for more than 2^31 - 2 messages or receives, because their indices are 32 bits. */
int sim_replay(const sim_model *model, const sim_schedule *schedule, double *ends_ns, double *waits_ns,
               sim_result *result);

#endif
