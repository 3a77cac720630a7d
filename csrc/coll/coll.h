/*
 * coll.h - barriers and collectives of a group of ranks: by RDMA write, by memory that the ranks of a host share, and
 * by messages for comparison.
 *
 * The barriers are those of R. Gupta, V. Tipparaju, J. Nieplocha and D. Panda, "Efficient Barrier using Remote Memory
 * Operations on VIA-Based Clusters", under its names. Each function names the section that it follows.
 *
 *      csrc/coll   barrier.c, data.c, flat.c    order of signals and data between ranks
 *                  carry.c, wait.c, coll.c      data by RDMA, waiting and failures, groups and memory
 *      csrc/msg    msg_send, msg_recv, msg_put: the transport
 *
 * Return values are msg_error's. All calls except coll_free are collective: every rank of the group makes them, in the
 * same order. A group is used by one thread at a time.
 *
 * Mismatches. Ranks that call different operations in one collective, or the same with a different root, length, type
 * or operator, get MSG_ERR_COLLECTIVE. If data or a barrier's signal of one reaches the other, the error is immediate,
 * because each carries the collective's number. Otherwise it comes COLL_NOTE_MS after they have begun to wait. One case
 * goes unnoticed on one rank: it has only given data, to ranks in the same collective, and makes no further call in the
 * group. The other ranks detect that mismatch.
 *
 * Failures. When a rank of the group dies, present and later collectives fail with MSG_ERR_PROC_FAILED on all other
 * ranks. This takes the time in which msg notices the death (on one host well below a second) and COLL_GRACE_MS. A rank
 * that gets an error notifies the other ranks of the group, so no rank waits for one that gave up. From then on every
 * call on the group returns the same error: free the group, and create one of the remaining ranks with another context.
 * The world itself stays usable. A rank that was interrupted, or closed its world, is MSG_ERR_LEFT to the others.
 */
#ifndef VIAKIT_COLL_H
#define VIAKIT_COLL_H

#include <stddef.h>
#include <stdint.h>

#include "msg/msg.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After a rank has died, the others wait this long for their collective to complete regardless. */
#define COLL_GRACE_MS 100
/* A rank that has waited this long sends the awaited rank a note, to check that both are in the same collective. */
#define COLL_NOTE_MS 250
/* A rank that has waited this long lets the caller compare it with collectives of other groups (coll_options). */
#define COLL_CROSSED_MS 2000

typedef struct coll coll;

/* The means of an algorithm, and so its requirements: messages (none), RDMA write, or memory that all ranks of the
 * group share (they are on one host). The fourth is such memory within each host, and RDMA write among hosts. */
enum { COLL_BY_MESSAGE, COLL_BY_RDMA, COLL_BY_MEMORY, COLL_BY_BOTH };

/* Name, short name for options and results, means, function in barrier.c, description. Section numbers are those of
 * Gupta et al. */
#define COLL_BARRIERS(X)                                                                                               \
    X(DEFAULT, "default", MESSAGE, dissemination, "chosen by the number of ranks and their hosts")                     \
    X(RDMA, "rdma", RDMA, pairwise, "pairwise exchange with recursive doubling by RDMA write, all ranks (5.1)")        \
    X(OVERALL, "overall", BOTH, pairwise, "flat within each host, by RDMA write among one rank of each (5.3)")         \
    X(MESSAGE, "message", MESSAGE, pairwise, "the same pairwise exchange by send and receive: the paper's comparison") \
    X(DISSEMINATION, "dissemination", MESSAGE, dissemination,                                                          \
      "rounds of messages, to the rank 1, 2, 4 ... further on")                                                        \
    X(RDMA_DISSEMINATION, "rdma-dissemination", RDMA, dissemination, "the same rounds by RDMA write")                  \
    X(GATHER, "gather", MESSAGE, gather_broadcast, "messages up a binomial tree, then down again")                     \
    X(RDMA_GATHER, "rdma-gather", RDMA, central,                                                                       \
      "RDMA writes to one centre per core, among centres, and back: fewest signals")                                   \
    X(MESSAGE_GATHER, "message-gather", MESSAGE, central, "the same by messages")                                      \
    X(RDMA_DYNAMIC, "rdma-dynamic", RDMA, dynamic,                                                                     \
      "rdma with memory registered for each barrier, its addresses sent by messages (4.1: the alternative)")           \
    X(RDMA_IMMEDIATE, "rdma-immediate", RDMA, pairwise,                                                                \
      "rdma with immediate data, which consumes a receive: no polling of memory (4.2: an alternative)")                \
    X(RDMA_INTERRUPT, "rdma-interrupt", RDMA, pairwise,                                                                \
      "rdma-immediate with a receiver that sleeps until the NIC's interrupt (4.2: an alternative)")                    \
    X(OVERALL_GATHER, "overall-gather", BOTH, central, "flat within each host, as rdma-gather among one rank of each") \
    X(FLAT, "flat", MEMORY, flat, "one host: a flag of each rank in shared memory, reset by a master (5.2)")           \
    X(FLAGS, "flags", MEMORY, flags,                                                                                   \
      "one host: each rank writes its number in shared memory and reads all others' (3, figure 2)")                    \
    X(FLAGS_PACKED, "flags-packed", MEMORY, flags_packed,                                                              \
      "flags with the numbers of all ranks side by side in cache lines: false sharing (3)")                            \
    X(COUNTER, "counter", MEMORY, counter,                                                                             \
      "one host: a counter in shared memory; the last rank to arrive releases all (3)")

typedef enum {
#define COLL_X(name, word, means, exchange, text) COLL_BARRIER_##name,
    COLL_BARRIERS(COLL_X)
#undef COLL_X
        COLL_N_BARRIERS
} coll_algorithm;

const char *coll_barrier_name(int algorithm); /* "rdma"; NULL past the end */
const char *coll_barrier_text(int algorithm);
int coll_barrier_find(const char *name); /* -1: no such name */

/* Create a group of n ranks of the world. All ranks pass the same ranks in the same order; this rank is among them.
 * `context` is used for messages of this group only, as long as the group lives. Exposes memory to the group and
 * exchanges its addresses (4.1, 6.1, 6.2), once. MSG_ERR_NOT_SUPPORTED: a rank gave up an earlier collective of the
 * caller's, and creates no group. */
int coll_create(msg_world *world, const int *ranks, int n, int context, coll **group);

/* The message that a rank sends to all others when it gives up; see the tags below. */
#define COLL_REASON_LEN 96
struct coll_word {
    int64_t code; /* msg_error */
    uint64_t number, incarnation;
    int32_t origin; /* the rank that gave up first */
    int32_t tag;    /* GIVE_UP: tag of the messages of the sender's collective; -1: none yet */
    char reason[COLL_REASON_LEN];
};

struct coll_note;

/* For callers that have other collectives of their own. All fields may be 0. */
typedef struct {
    uint64_t number;      /* collectives of these ranks so far. Creating the group is one more. */
    uint64_t incarnation; /* the same on all ranks. Control messages with another incarnation are dropped. */
    uint64_t oldest;      /* coll_set_oldest */
    const int *wanted;    /* while this is not 0 ... */
    void (*meanwhile)(void *context); /* ... waits call this at least every millisecond. It must not use the group. */
    /* A wait that has lasted COLL_CROSSED_MS calls this several times a second, in turn with polls of what it awaits.
     * `awaited`: the rank that must act in the collective `now` of the group with this message context; -1: every other
     * rank must. Not 0: the ranks are in collectives of different groups and would wait for ever, so the wait fails
     * with MSG_ERR_COLLECTIVE. It must not use the group. NULL: no such check. */
    int (*crossed)(void *context, int group_context, const struct coll_note *now, int awaited);
    void *context;
    int revocable;           /* a context: waits end with MSG_ERR_REVOKED if it is revoked (msg.h: msg_scope) */
    struct coll_word *cause; /* coll_cause, if the group was not created because a rank gave up; may be NULL */
} coll_options;
int coll_create_with(msg_world *world, const int *ranks, int n, int context, const coll_options *options, coll **group);

/* Report how many collectives of the caller's own were done meanwhile. The group's next collective has the number after
 * it. */
void coll_set_number(coll *group, uint64_t number);
/* Report the lowest number of a collective of the caller's own that is still under way, or 0. Notes contain it,
 * because this rank may not have contributed yet to that collective and to those after it. */
void coll_set_oldest(coll *group, uint64_t number);

/* For a caller that holds a lock, such as Python's GIL, and keeps it in short collectives. `release` is called once in
 * the next collective, before anything that may take longer than some microseconds or may call back. Afterwards set
 * NULL. Returns 0 and sets nothing if the group needs more than the shared memory of a host: then release the lock
 * before the collective. */
int coll_set_release(coll *group, void (*release)(void *context), void *context);

/* Tags of control messages that ranks of a group exchange in the group's context. Callers with collectives of their own
 * receive and send them, too.
 *
 *   ABORT     the sender does nothing more in this group, from the collective `number` on       struct coll_word
 *   GIVE_UP   the sender gave up the collective `number`, by whatever means it ran. The low     struct coll_word
 *             bits of the number are in the tag, so that a rank finds those of its collective.
 *   NOTE      the sender waits, in this collective                                              struct coll_note
 *
 * Tags of barriers and data contain the low 4 bits of the collective's number, so that messages of different
 * collectives are not confused. */
enum {
    COLL_TAG_SETUP = 1,
    COLL_TAG_BARRIER,
    COLL_TAG_ABORT,
    COLL_TAG_NOTE,
    COLL_TAG_DATA = 16,
    COLL_TAG_GIVE_UP = 1 << 24
};
#define COLL_GIVE_UP_NUMBERS 0xFFFFF
/* The collective that a rank is in. A rank that waits long sends it to the rank it waits for (wait.c). */
struct coll_note {
    uint64_t number;
    uint16_t operation, algorithm;
    int32_t root; /* of a collective of the caller's own: the tag of its messages */
    uint64_t len;
    uint64_t kind;        /* of a reduction: type and operator */
    uint64_t incarnation; /* of the group: coll_options */
    uint64_t oldest;      /* coll_set_oldest */
};
/* A bit of `algorithm` in a note: a collective of the caller's own. */
#define COLL_NOTE_MESSAGES 0x8000

/* Receive the next control message (`what`, of len bytes) from rank *source of the world, or MSG_ANY_SOURCE. Returns 1
 * and sets *what and *source, or 0 if none has arrived. The caller compares its incarnation. */
int coll_take_control(msg_world *world, int context, int tag, void *what, size_t len, int *source);

/* Break the group in its present collective and notify the other ranks: this rank gives up with this error. `reason` is
 * text for users, in UTF-8; NULL: the error's own text. */
void coll_break(coll *group, int code, const char *reason);
/* For a broken group: the rank that gave up first, and its reason. */
const struct coll_word *coll_cause(const coll *group);
/* Find a rank that has completed the collective `number` by means of this broken group. Such a rank has given data for
 * a later collective, or for this one, which may end for it without a wait. It did so before it learned that the group
 * is broken, and will not repeat the collective by other means. Returns the rank, or -1; always -1 long after the
 * break. */
int coll_find_completed(const coll *group, uint64_t number);
/* The collective in which the group was broken. */
uint64_t coll_error_at(const coll *group);
/* True if the group was broken by MSG_ERR_LEFT or MSG_ERR_COLLECTIVE in an earlier collective than this one. In a
 * barrier, allreduce, allgather or alltoall all ranks wait for all others. So no rank has finished it, and it can be
 * repeated by other means. In other collectives a rank that only gave data may have finished (coll_find_completed). */
int coll_may_retry(const coll *group);
/* The code that every call returns: MSG_SUCCESS while the group is whole. */
int coll_error(const coll *group);

/* Free the group. Not collective, but other ranks must not write to it any more: call it after a barrier, or a failure.
 * After a failure the group's exposed memory stays until the world is closed, because a rank may still write to it. */
void coll_free(coll *group);

/* Collective: wait until no data of the group is under way, then free it. */
void coll_close(coll *group);
/* As coll_free, for a world that has already been closed, which freed the group's memory. */
void coll_forget(coll *group);

int coll_rank(const coll *group);
int coll_size(const coll *group);
int coll_hosts(const coll *group); /* number of hosts that the ranks are on */

/* Check whether this group supports an algorithm. MSG_SUCCESS, or MSG_ERR_NOT_SUPPORTED: the channel has no RDMA, or
 * the ranks are not on one host. The result is the same on all ranks. */
int coll_barrier_check(const coll *group, coll_algorithm algorithm);
/* The algorithm that COLL_BARRIER_DEFAULT selects in this group. */
coll_algorithm coll_barrier_default(const coll *group);

/* Return when all ranks of the group have called it. Different algorithms may follow one another. If the world's
 * interrupt callback requests it, the call returns MSG_INTERRUPTED, which breaks the group like a failure. */
int coll_barrier(coll *group, coll_algorithm algorithm);

/* ---------------------------------------------------------------- collectives with data */

typedef enum {
    COLL_NOTHING,
    COLL_BARRIER,
    COLL_BCAST,
    COLL_REDUCE,
    COLL_ALLREDUCE,
    COLL_ALLGATHER,
    COLL_ALLTOALL,
    COLL_N_OPERATIONS
} coll_operation;

/* The algorithms of each operation: operation, short name, means, length that it is for, function (data.c, flat.c,
 * collective.c), description. "rdma" writes into registered memory: up to a slot's length into slots there, longer data
 * straight into the buffer that the receiver has offered. "message" is the same algorithm by send and receive. "flat"
 * goes through memory that the ranks of a host share. "overall" is flat within each host, and by RDMA among one rank of
 * each. */
#define COLL_ALGORITHMS(X)                                                                                            \
    X(BCAST, "flat", MEMORY, SHORT, flat_bcast, "one host: the root writes into shared memory, all read")             \
    X(BCAST, "rdma-binomial", RDMA, SHORT, bcast_binomial, "a binomial tree, by RDMA write")                          \
    X(BCAST, "message-binomial", MESSAGE, SHORT, bcast_binomial, "the same tree by send and receive")                 \
    X(BCAST, "rdma-scatter-ring", RDMA, LONG, bcast_scatter_ring,                                                     \
      "cut, scattered by a binomial tree, gathered round a ring, by RDMA write")                                      \
    X(BCAST, "message-scatter-ring", MESSAGE, LONG, bcast_scatter_ring, "the same by send and receive")               \
    X(BCAST, "overall", BOTH, SHORT, bcast_overall, "a binomial tree among the hosts, flat within each")              \
    X(REDUCE, "flat", MEMORY, SHORT, flat_reduce, "one host: all write into shared memory, the root combines")        \
    X(REDUCE, "rdma-binomial", RDMA, SHORT, reduce_binomial, "a binomial tree towards the root, by RDMA write")       \
    X(REDUCE, "message-binomial", MESSAGE, SHORT, reduce_binomial, "the same tree by send and receive")               \
    X(REDUCE, "rdma-ring", RDMA, LONG, reduce_ring,                                                                   \
      "reduce-scatter round a ring, then each part to the root, by RDMA write")                                       \
    X(REDUCE, "message-ring", MESSAGE, LONG, reduce_ring, "the same by send and receive")                             \
    X(REDUCE, "overall", BOTH, SHORT, reduce_overall, "flat within each host, a binomial tree among the hosts")       \
    X(ALLREDUCE, "flat", MEMORY, SHORT, flat_allreduce,                                                               \
      "one host: all write into shared memory and combine, long ones a part each")                                    \
    X(ALLREDUCE, "rdma-doubling", RDMA, SHORT, allreduce_doubling, "recursive doubling, by RDMA write")               \
    X(ALLREDUCE, "message-doubling", MESSAGE, SHORT, allreduce_doubling, "recursive doubling by send and receive")    \
    X(ALLREDUCE, "rdma-ring", RDMA, LONG, allreduce_ring, "reduce-scatter and allgather round a ring, by RDMA write") \
    X(ALLREDUCE, "message-ring", MESSAGE, LONG, allreduce_ring, "the same rings by send and receive")                 \
    X(ALLREDUCE, "overall", BOTH, SHORT, allreduce_overall,                                                           \
      "flat within each host, recursive doubling or a ring among the hosts")                                          \
    X(ALLGATHER, "flat", MEMORY, SHORT, flat_allgather, "one host: all write into shared memory, all read")           \
    X(ALLGATHER, "rdma-bruck", RDMA, SHORT, allgather_bruck,                                                          \
      "Bruck's: all parts so far go 1, 2, 4 ... ranks on, by RDMA write")                                             \
    X(ALLGATHER, "message-bruck", MESSAGE, SHORT, allgather_bruck, "Bruck's by send and receive")                     \
    X(ALLGATHER, "rdma-ring", RDMA, LONG, allgather_ring,                                                             \
      "each rank forwards the part it received last, by RDMA write")                                                  \
    X(ALLGATHER, "message-ring", MESSAGE, LONG, allgather_ring, "the same ring by send and receive")                  \
    X(ALLTOALL, "flat", MEMORY, SHORT, flat_alltoall, "one host: all write into shared memory, each reads its part")  \
    X(ALLTOALL, "rdma-bruck", RDMA, SHORT, alltoall_bruck,                                                            \
      "Bruck's: log n rounds with half of all data, by RDMA write")                                                   \
    X(ALLTOALL, "message-bruck", MESSAGE, SHORT, alltoall_bruck, "Bruck's by send and receive")                       \
    X(ALLTOALL, "rdma-pairwise", RDMA, LONG, alltoall_pairwise, "in round k to the rank k further on, by RDMA write") \
    X(ALLTOALL, "message-pairwise", MESSAGE, LONG, alltoall_pairwise, "the same rounds by send and receive")

/* Algorithms are numbered within their operation, from 1 on; 0 selects one by length, ranks and hosts. */
#define COLL_DEFAULT 0
const char *coll_operation_name(int operation);                /* "bcast"; NULL: no such operation */
const char *coll_algorithm_name(int operation, int algorithm); /* "default", "flat" ...; NULL past the end */
const char *coll_algorithm_text(int operation, int algorithm);
int coll_algorithm_find(int operation, const char *name); /* -1: no such algorithm */
/* MSG_SUCCESS, MSG_ERR_NOT_SUPPORTED or MSG_ERR_ARG; the same on all ranks. */
int coll_algorithm_check(const coll *group, int operation, int algorithm);
/* The algorithm that 0 selects for len bytes: of the buffer; for allgather and alltoall of one rank's part. */
int coll_algorithm_default(const coll *group, int operation, size_t len);
/* The length in bytes from which n ranks, each with a core of its own, use the algorithm for long data. */
size_t coll_long_from(int operation, int n);

/* Plans: the steps of one rank in an algorithm. Callers run them by means of their own, such as non-blocking messages,
 * or operators that C does not have. Positions count units from 0: the operand and result (alltoall: the outgoing
 * parts, then the incoming ones), then scratch. The unit is that of `len`.
 *
 *   EXCHANGE   send out_len units from `out` to rank `to`, and receive in_len units at `in` from rank `from` (either
 *              may be MSG_PROC_NULL)
 *   COMBINE    write to `result` the out_len units at `out`, the left operand, combined with those at `in`
 *   COPY       copy out_len units from `out` to `result` */
enum { COLL_STEP_EXCHANGE, COLL_STEP_COMBINE, COLL_STEP_COPY, COLL_STEP_SIGNAL, COLL_STEP_AWAIT };
struct coll_step {
    int kind, to, from;
    size_t out, out_len, in, in_len, result;
};
/* Not an operation of a group: the first half of a long broadcast, in which each rank gets its part from the root. */
#define COLL_SCATTER COLL_N_OPERATIONS
/* Plan an operation of n ranks for rank `me`, by the algorithm for short or long data. len: as in
 * coll_algorithm_default, in units. The caller frees *steps. MSG_ERR_ARG or MSG_ERR_NO_MEMORY on failure. */
int coll_plan(int operation, int is_long, int n, int me, int root, size_t len, struct coll_step **steps, int *n_steps);

/* The same for rank `me` of a barrier of n ranks, of which each host has `per_host` successive ones and `cores` cores:
 * steps SIGNAL (to the rank `to`) and AWAIT (of the rank `from`), in order. MSG_ERR_NOT_SUPPORTED: the algorithm is
 * not one of signals between two ranks (flags, counter), or needs one host. */
int coll_barrier_plan(int algorithm, int n, int me, int per_host, int cores, struct coll_step **steps, int *n_steps);
/* The means of a barrier: COLL_BY_... */
int coll_barrier_means(int algorithm);

/* Type, C type. Numbers are stable. */
#define COLL_TYPES(X)                \
    X(INT8, int8_t)                  \
    X(UINT8, uint8_t)                \
    X(INT16, int16_t)                \
    X(UINT16, uint16_t)              \
    X(INT32, int32_t)                \
    X(UINT32, uint32_t)              \
    X(INT64, int64_t)                \
    X(UINT64, uint64_t)              \
    X(FLOAT, float)                  \
    X(DOUBLE, double)                \
    X(COMPLEX_FLOAT, float _Complex) \
    X(COMPLEX_DOUBLE, double _Complex)

typedef enum {
#define COLL_X(name, type) COLL_##name,
    COLL_TYPES(COLL_X)
#undef COLL_X
        COLL_N_TYPES
} coll_type;

/* Logical operators give 0 or 1. */
typedef enum {
    COLL_SUM,
    COLL_PROD,
    COLL_MAX,
    COLL_MIN,
    COLL_LAND,
    COLL_LOR,
    COLL_LXOR,
    COLL_BAND,
    COLL_BOR,
    COLL_BXOR,
    COLL_N_OPS
} coll_op;

/* Combining without a group (combine.c). Any thread; nothing blocks. */
size_t coll_type_size(coll_type type);
/* Whether MPI defines the operation for elements of this type. */
int coll_combines(coll_type type, coll_op op);
/* to[i] = low[i] op high[i]; `to` may be either of them. The pair must be one that coll_combines accepts. */
void coll_combine(coll_type type, coll_op op, size_t count, const void *low, const void *high, void *to);

/* Broadcast len bytes of the root to all ranks. */
int coll_bcast(coll *group, int algorithm, void *buf, size_t len, int root);
/* Reduce to the root. out: on the root only; may be NULL elsewhere. in NULL on the root: its operand is in out. */
int coll_reduce(coll *group, int algorithm, const void *in, void *out, size_t count, coll_type type, coll_op op,
                int root);
/* Reduce to all ranks, which get the same bits. in NULL: the operand is in out. */
int coll_allreduce(coll *group, int algorithm, const void *in, void *out, size_t count, coll_type type, coll_op op);
/* Gather len bytes of each rank on all ranks. out: [n][len]. in NULL: the rank's part is in its place there. */
int coll_allgather(coll *group, int algorithm, const void *in, void *out, size_t len);
/* Exchange parts among all ranks: part i of `in` goes to rank i. Both are [n][len]. in NULL: the data in out is sent,
 * and replaced. */
int coll_alltoall(coll *group, int algorithm, const void *in, void *out, size_t len);

#ifdef __cplusplus
}
#endif

#endif /* VIAKIT_COLL_H */
