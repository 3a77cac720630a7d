/*
 * coll.h - barriers and collectives of a group of ranks: by RDMA write, by memory that the ranks of a host share, and
 * by messages to compare with.
 *
 * The barriers are those of "Efficient Barrier using Remote Memory Operations on VIA-Based Clusters" (Gupta,
 * Tipparaju, Nieplocha, Panda), under its names; each function names the section it follows.
 *
 *      csrc/coll   barrier.c, data.c, flat.c    who waits for whom, who sends what to whom
 *                  carry.c, wait.c, coll.c      data by RDMA; waiting and failures; groups and memory
 *      csrc/msg    msg_send, msg_recv, msg_put: whatever carries them
 *
 * Return values are msg_error's. All calls but coll_free are collective: every rank of the group makes them, in the
 * same order. A group is used by one thread at a time.
 *
 * Mismatches. Ranks that do different things in what should be one collective (another operation, root or length) get
 * MSG_ERR_COLLECTIVE: at once where data of the one reaches the other, and about COLL_NOTE_MS after both have begun
 * to wait where none does.
 *
 * Failures. When a rank of the group dies, collectives under way or begun later end with MSG_ERR_PROC_FAILED on all
 * others, within the time in which msg notices (on one host well within a second) and COLL_GRACE_MS. Whoever gets an
 * error tells the other ranks of the group, so nobody waits for a rank that gave up. From then on every call on the
 * group gives the same error: free it, and make another of those that are left, with another context. The world
 * itself goes on. A rank that was interrupted, or closed its world, is MSG_ERR_LEFT to the others.
 */
#ifndef VIAKIT_COLL_H
#define VIAKIT_COLL_H

#include <stddef.h>
#include <stdint.h>

#include "msg/msg.h"

#ifdef __cplusplus
extern "C" {
#endif

/* After a rank has died the others look so long whether their collective comes to its end all the same. */
#define COLL_GRACE_MS 100
/* Who has waited so long asks whom it waits for whether both are in the same collective. */
#define COLL_NOTE_MS 250

typedef struct coll coll;

/* name, short name for options and results, what it does. Section numbers are the paper's. */
#define COLL_BARRIERS(X)                                                                                            \
    X(DEFAULT, "default", "chosen by the number of ranks and where they are")                                       \
    X(RDMA, "rdma", "pairwise exchange with recursive doubling by RDMA write, all ranks (5.1)")                     \
    X(OVERALL, "overall", "flat within each host, by RDMA write among one rank of each (5.3)")                      \
    X(MESSAGE, "message", "the same pairwise exchange by send and receive: the paper's comparison")                 \
    X(DISSEMINATION, "dissemination", "rounds of messages, to the rank 1, 2, 4 ... further on")                     \
    X(RDMA_DISSEMINATION, "rdma-dissemination", "the same rounds by RDMA write")                                    \
    X(GATHER, "gather", "messages up a binomial tree, then down again")                                             \
    X(RDMA_GATHER, "rdma-gather", "RDMA writes to a centre for each core, among these, and back: the fewest")       \
    X(MESSAGE_GATHER, "message-gather", "the same by messages")                                                     \
    X(OVERALL_GATHER, "overall-gather", "flat within each host, as rdma-gather among one rank of each")             \
    X(FLAT, "flat", "one host: a flag of each rank in shared memory, reset by a master (5.2)")                      \
    X(FLAGS, "flags", "one host: each rank writes its number in shared memory and reads all others' (3, figure 2)") \
    X(COUNTER, "counter", "one host: a counter in shared memory; the last to come lets all go (3)")

typedef enum {
#define COLL_X(name, word, text) COLL_BARRIER_##name,
    COLL_BARRIERS(COLL_X)
#undef COLL_X
        COLL_N_BARRIERS
} coll_algorithm;

const char *coll_barrier_name(int algorithm); /* "rdma"; NULL past the end */
const char *coll_barrier_text(int algorithm);
int coll_barrier_find(const char *name); /* -1: no such name */

/* A group of n ranks of the world, in an order that all of them give alike; this rank among them. `context` is for
 * messages of the group only, for as long as it lives. Exposes memory to the group and exchanges its addresses (4.1,
 * 6.1, 6.2), once. */
int coll_create(msg_world *world, const int *ranks, int n, int context, coll **group);

/* For callers that have other collectives of their own besides. All may be 0. */
typedef struct {
    uint64_t number; /* collectives of these ranks so far: this is one more */
    uint64_t
        birth; /* alike on all ranks: words of an earlier group of this context, with another birth, are thrown away */
    const int *wanted; /* while this is not 0 ... */
    void (*meanwhile)(
        void *context); /* ... waits call this every millisecond or more often; it must not use the group */
    void *context;
} coll_options;
int coll_create_with(msg_world *world, const int *ranks, int n, int context, const coll_options *options, coll **group);

/* Tells how many collectives of the caller's own there were meanwhile: the next one of the group has the number after
 * it. */
void coll_set_number(coll *group, uint64_t number);

/* Words that ranks of a group send each other, in the group's context: of who gives up (a msg_error, its collective's
 * number, and the group's birth, 8 bytes each), and of who waits. Whoever has collectives of its own may look for
 * them, and send them. */
enum { COLL_TAG_SETUP = 1, COLL_TAG_BARRIER, COLL_TAG_ABORT, COLL_TAG_NOTE, COLL_TAG_DATA = 16 };

/* Breaks the group, and tells the others: this rank gives up with this error. */
void coll_break(coll *group, int code);
/* After MSG_ERR_LEFT: had the rank that gave up done so in an earlier collective than this? Then nobody got through
 * this one, if everybody waits for everybody in it (a barrier, allreduce, allgather, alltoall), and it can be
 * repeated by other means. */
int coll_may_repeat(const coll *group);
/* What every call gives: MSG_SUCCESS while the group is whole. */
int coll_error(const coll *group);

/* Gives everything back. Not collective, but ranks may be about to write to it: after a barrier, or a failure. After
 * a failure the group's exposed memory stays until the world is closed: somebody may be about to write to it. */
void coll_free(coll *group);

/* Collective: sees to it that nothing is on its way any more, and gives everything back. */
void coll_close(coll *group);
/* As coll_free, when the world has been closed already, which took the group's memory with it. */
void coll_forget(coll *group);

int coll_rank(const coll *group);
int coll_size(const coll *group);
int coll_hosts(const coll *group); /* how many hosts the ranks are on */

/* Can this group do it? MSG_SUCCESS, or MSG_ERR_NOT_SUPPORTED: the channel has no RDMA, or the ranks are not on one
 * host. The same on all its ranks. */
int coll_barrier_check(const coll *group, coll_algorithm algorithm);
/* What COLL_BARRIER_DEFAULT stands for in this group. */
coll_algorithm coll_barrier_default(const coll *group);

/* Returns when all ranks of the group have called it. Different algorithms may follow one another. MSG_INTERRUPTED,
 * when the world's interrupt callback says so, breaks the group like a failure. */
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

/* What each can be done by: operation, short name, what it does. "rdma" writes into memory that was registered
 * before: up to a slot's length into slots there, longer data straight into the buffer, whose address the receiver
 * has told. "message" is the same algorithm by send and receive. "flat" goes through memory that the ranks of a host
 * share; "overall" is flat within each host, and by RDMA among one rank of each. */
#define COLL_ALGORITHMS(X)                                                                                   \
    X(BCAST, "flat", "one host: the root writes into shared memory, all read")                               \
    X(BCAST, "rdma-binomial", "a binomial tree, by RDMA write")                                              \
    X(BCAST, "message-binomial", "the same tree by send and receive")                                        \
    X(BCAST, "rdma-scatter-ring", "cut, scattered by a binomial tree, gathered round a ring, by RDMA write") \
    X(BCAST, "message-scatter-ring", "the same by send and receive")                                         \
    X(BCAST, "overall", "a binomial tree among the hosts, flat within each")                                 \
    X(REDUCE, "flat", "one host: all write into shared memory, the root combines")                           \
    X(REDUCE, "rdma-binomial", "a binomial tree towards the root, by RDMA write")                            \
    X(REDUCE, "message-binomial", "the same tree by send and receive")                                       \
    X(REDUCE, "rdma-ring", "reduce-scatter round a ring, then each part to the root, by RDMA write")         \
    X(REDUCE, "message-ring", "the same by send and receive")                                                \
    X(REDUCE, "overall", "flat within each host, a binomial tree among the hosts")                           \
    X(ALLREDUCE, "flat", "one host: all write into shared memory and combine, long ones a part each")        \
    X(ALLREDUCE, "rdma-doubling", "recursive doubling, by RDMA write")                                       \
    X(ALLREDUCE, "message-doubling", "recursive doubling by send and receive")                               \
    X(ALLREDUCE, "rdma-ring", "reduce-scatter and allgather round a ring, by RDMA write")                    \
    X(ALLREDUCE, "message-ring", "the same rings by send and receive")                                       \
    X(ALLREDUCE, "overall", "flat within each host, recursive doubling or a ring among the hosts")           \
    X(ALLGATHER, "flat", "one host: all write into shared memory, all read")                                 \
    X(ALLGATHER, "rdma-bruck", "Bruck's: what one has goes 1, 2, 4 ... ranks on, by RDMA write")             \
    X(ALLGATHER, "message-bruck", "Bruck's by send and receive")                                             \
    X(ALLGATHER, "rdma-ring", "each passes on what it got last, by RDMA write")                              \
    X(ALLGATHER, "message-ring", "the same ring by send and receive")                                        \
    X(ALLTOALL, "flat", "one host: all write into shared memory, each reads its part")                       \
    X(ALLTOALL, "rdma-bruck", "Bruck's: log n rounds of half of all data, by RDMA write")                    \
    X(ALLTOALL, "message-bruck", "Bruck's by send and receive")                                              \
    X(ALLTOALL, "rdma-pairwise", "in round k to the rank k further on, by RDMA write")                       \
    X(ALLTOALL, "message-pairwise", "the same rounds by send and receive")

/* Algorithms are numbered within their operation, from 1 on; 0 stands for the one chosen by length, ranks and hosts. */
#define COLL_DEFAULT 0
const char *coll_operation_name(int operation);                /* "bcast"; NULL: no such */
const char *coll_algorithm_name(int operation, int algorithm); /* "default", "flat" ...; NULL past the end */
const char *coll_algorithm_text(int operation, int algorithm);
int coll_algorithm_find(int operation, const char *name); /* -1: no such */
/* MSG_SUCCESS, MSG_ERR_NOT_SUPPORTED or MSG_ERR_ARG; the same on all ranks. */
int coll_algorithm_check(const coll *group, int operation, int algorithm);
/* What 0 stands for, with len bytes: of the buffer; for allgather and alltoall of one rank's part. */
int coll_algorithm_default(const coll *group, int operation, size_t len);

/* type, C type. Numbers are stable. */
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

/* Logical ones give 0 or 1. */
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

/* len bytes of the root's to all. */
int coll_bcast(coll *group, int algorithm, void *buf, size_t len, int root);
/* out: on the root only; may be NULL elsewhere. in NULL on the root: its operand is in out. */
int coll_reduce(coll *group, int algorithm, const void *in, void *out, size_t count, coll_type type, coll_op op,
                int root);
/* in NULL: the operand is in out. All ranks get the same bits. */
int coll_allreduce(coll *group, int algorithm, const void *in, void *out, size_t count, coll_type type, coll_op op);
/* out: [n][len]. in NULL: it is in its place there. */
int coll_allgather(coll *group, int algorithm, const void *in, void *out, size_t len);
/* Both [n][len]: part i of `in` goes to rank i. in NULL: what is in out is sent, and replaced. */
int coll_alltoall(coll *group, int algorithm, const void *in, void *out, size_t len);

#ifdef __cplusplus
}
#endif

#endif /* VIAKIT_COLL_H */
