/*
 * coll.h - barriers and collectives of a group of ranks: by RDMA write, by memory that the ranks of a host share, and by messages to
 * compare with.
 *
 * The barriers are those of "Efficient Barrier using Remote Memory Operations on VIA-Based Clusters" (Gupta, Tipparaju, Nieplocha,
 * Panda), under its names; each function names the section it follows.
 *
 *      csrc/coll   barrier.c                who waits for whom
 *                  coll.c                   groups, memory, waiting, failures
 *      csrc/msg    msg_send, msg_recv, msg_put: whatever carries them
 *
 * Return values are msg_error's. All calls but coll_free are collective: every rank of the group makes them, in the same order.
 * A group is used by one thread at a time.
 *
 * Failures. When a rank of the group dies, collectives under way or begun later end with MSG_ERR_PROC_FAILED on all others, within
 * the time in which msg notices (on one host well within a second) and COLL_GRACE_MS. Whoever gets an error tells the other ranks of the
 * group, so nobody waits for a rank that gave up. From then on every call on the group gives the same error: free it, and
 * make another of those that are left, with another context. The world itself goes on. A rank that was interrupted, or closed its world,
 * is MSG_ERR_LEFT to the others.
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

/* A group of n ranks of the world, in an order that all of them give alike; this rank among them. `context` is for messages of the group
 * only, for as long as it lives. Exposes memory to the group and exchanges its addresses (4.1, 6.1, 6.2), once. */
int coll_create(msg_world *world, const int *ranks, int n, int context, coll **group);

/* Gives everything back. Not collective. After a failure the group's exposed memory stays until the world is closed: somebody may
 * be about to write to it. */
void coll_free(coll *group);

int coll_rank(const coll *group);
int coll_size(const coll *group);
int coll_hosts(const coll *group); /* how many hosts the ranks are on */

/* Can this group do it? MSG_SUCCESS, or MSG_ERR_NOT_SUPPORTED: the channel has no RDMA, or the ranks are not on one host. The same on all
 * its ranks. */
int coll_barrier_check(const coll *group, coll_algorithm algorithm);
/* What COLL_BARRIER_DEFAULT stands for in this group. */
coll_algorithm coll_barrier_default(const coll *group);

/* Returns when all ranks of the group have called it. Different algorithms may follow one another. MSG_INTERRUPTED, when the world's
 * interrupt callback says so, breaks the group like a failure. */
int coll_barrier(coll *group, coll_algorithm algorithm);

#ifdef __cplusplus
}
#endif

#endif /* VIAKIT_COLL_H */
