/*
 * inside.h - what the files of csrc/coll share.
 *
 * Ranks are numbered within the group. A *node* is a host of the group; its *master* is the first rank there. What
 * lies where:
 *
 *   cells      memory of each rank that the others write to by RDMA (6.1): a cell for each rank, then one for each node
 *   shared     memory that the ranks of one node map: lines of each rank, a counter, and for data two areas each
 *   slots      memory of each rank for data by RDMA (carry.c), made when it is first needed
 *
 * A cell and a line have a cache line or two of their own, so that no two writers ever want the same one (3).
 *
 * Reading order: barrier.c, wait.c, coll.c; then carry.c, combine.c, data.c, flat.c, collective.c.
 */
#ifndef VIAKIT_COLL_INSIDE_H
#define VIAKIT_COLL_INSIDE_H

#include "../base/atomic.h"
#include "../base/clock.h"
#include "coll.h"

#define COLL_LET_FINISH_MS 5000 /* for data that is on its way into a buffer of a collective that has failed */
#define COLL_ANYBODY (-1)       /* for patience: any rank may be the one that is missing */

struct coll_cell {
    int64_t number; /* of the latest barrier that its writer has come to; -1 before the first (6.3) */
    uint8_t pad[VK_CACHE_LINE - 8];
};

struct coll_line {
    uint32_t flag;                        /* flat: 1 from the rank's arrival until the master lets it go (5.2) */
    uint64_t number;                      /* flags: of the latest barrier that the rank has come to */
    uint8_t pad0[2 * VK_CACHE_LINE - 16]; /* processors fetch lines in pairs */
    uint64_t done;                        /* data: of the latest step that the rank will not read in any more */
    uint32_t done_sleepers;
    uint8_t pad1[2 * VK_CACHE_LINE - 12];
};

struct coll_shared {
    uint64_t magic[2]; /* drawn by the master */
    uint8_t pad0[2 * VK_CACHE_LINE - 16];
    uint32_t arrived; /* counter: ranks that have come to the present barrier */
    uint8_t pad1[2 * VK_CACHE_LINE - 4];
    uint64_t generation;          /* counter: barriers that are over */
    uint64_t dear_until;          /* turns of the scheduler are dear (turn.h): what one rank finds, all heed */
    uint32_t generation_sleepers; /* who waits for it in the kernel: coll_tell */
    uint8_t pad2[2 * VK_CACHE_LINE - 20];
    struct coll_line lines[]; /* [ranks of this node], then their areas */
};
_Static_assert(sizeof(struct coll_line) == 256 && offsetof(struct coll_shared, lines) == 384, "lines do not overlap");

/* Where a rank puts data for its node; two of each, for even and odd steps. */
#define COLL_AREA_DATA 262112
struct coll_area {
    uint64_t step; /* whose data this is */
    uint64_t what; /* which operation of what length: coll_what */
    uint32_t step_sleepers;
    uint8_t pad[12]; /* data begins where any type may */
    uint8_t data[COLL_AREA_DATA];
};
_Static_assert(sizeof(struct coll_area) == 262144, "areas begin on pages");

/* What a rank is doing: sent to who is waited for, when that takes long (wait.c). */
struct coll_note {
    uint64_t number;
    uint16_t operation, algorithm;
    int32_t root;
    uint64_t len;
    uint64_t birth; /* of the group: coll_options */
};

/* Memory of words that may still be on their way when the group is freed. */
struct coll_words {
    struct coll_note note;
    msg_request *sending; /* the note */
    struct coll_abort {
        int64_t code;
        uint64_t number; /* of the collective that it was in */
        uint64_t birth;
    } abort;
    int lent; /* some word of giving up has not left yet */
};

struct coll_slots; /* carry.c */

struct coll {
    msg_world *world;
    int rank, n, context;
    int *ranks;        /* [n] in the world */
    int error;         /* the group is broken: what every call gives */
    uint64_t error_at; /* in which collective */
    int crowded;       /* more ranks than cores here: give the core away at once */
    uint64_t spin_ns;  /* a wait sleeps after so long */
    uint64_t yield_ns;

    struct coll_note now;    /* the present collective, or the last */
    struct coll_note *notes; /* [n] the latest word of each rank */
    int *gave_up;            /* [n] what it said, and ... */
    uint64_t *gave_up_at;    /* [n] in which collective it was */
    struct coll_words *words;
    const int *wanted; /* coll_options */
    void (*meanwhile)(void *context);
    void *meanwhile_context;

    int n_nodes, node; /* of this rank */
    int *node_of;      /* [n] */
    int *masters;      /* [n_nodes] ranks */
    int *locals;       /* [n_locals] ranks of this node, in order */
    int *stands;       /* [n_nodes] room for the rank that stands for each node in an operation with a root */
    int n_locals, local;
    int all_fit; /* no rank is on a machine with more ranks than cores */
    int cores;   /* of the machine with the fewest */

    struct coll_shared *shared; /* NULL: some node has none, or all have one rank */
    struct coll_area *areas;    /* [n_locals][2], behind it */
    size_t shared_len;
    uint64_t n_flags, n_counter;
    uint64_t n_steps; /* of data through the areas; all_done: everybody is known to have left this step */
    uint64_t all_done;

    struct coll_cell *cells; /* [n + n_nodes]; NULL: no RDMA */
    msg_exposed exposed;
    msg_exposed *theirs; /* [n] */
    int64_t n_rdma, n_overall;
    struct coll_slots *slots; /* NULL: not yet */

    void *scratch; /* for operands under way */
    size_t scratch_len;
};

/* ---------------------------------------------------------------- wait.c
 *
 * For loops that look at memory:
 *     struct coll_patience p = {.source = who};
 *     while (!arrived)
 *         if ((code = coll_pause(c, &p)) != 0) return code;
 * It pauses, then gives the core away, then sleeps; moves messages and RDMA meanwhile, and notices failures. */
struct coll_patience {
    int source;  /* the rank that is waited for: when it has left the world it will not come */
    int network; /* what is waited for comes from another host: look at the NIC each time */
    int message; /* what is waited for is a message */
    int stage;   /* 0 pause, 1 give the core away, 2 sleep */
    unsigned looks;
    uint64_t began, now;         /* of the long part; now: after the latest yield */
    uint64_t checked, failed_at; /* failed_at: a rank of the group was first seen to be gone */
    uint64_t note_at, note_gap, compare_at;
    /* Where a sleep can be ended: the word, the value it had when it was found too small, the count of those that
     * sleep on it. */
    const uint64_t *word;
    uint64_t seen;
    uint32_t *sleepers;
};
int coll_pause_long(coll *c, struct coll_patience *p);
/* Has the group failed? To be called every few milliseconds of a wait. */
int coll_check(coll *c, struct coll_patience *p, uint64_t now);

static inline int coll_pause(coll *c, struct coll_patience *p)
{
    int code = MSG_SUCCESS;
    p->looks++;
    if (p->network && p->looks == 1) { /* it may be there, in the NIC's ring */
        msg_progress(c->world);
        return MSG_SUCCESS;
    }
    if (vk_unlikely(c->crowded || p->looks > 200))
        code = coll_pause_long(c, p);
    else
        vk_pause();
    /* Last, so that the caller sees what this brought before the core is given away again: that would cost a turn of
     * the scheduler. */
    if (p->network && code == MSG_SUCCESS)
        msg_progress(c->world);
    return code;
}

/* A word of the ranks of a node that only grows, and who sleeps until it does. With more ranks than cores the one
 * that brings a barrier to its end has to wake the others; where each has a core nobody sleeps, and nobody asks. */
void coll_wake(const uint64_t *word);
static inline void coll_tell(const coll *c, uint64_t *word, uint32_t *sleepers, uint64_t value)
{
    vk_store_release(word, value); /* what was done before it is visible to whoever sees it */
    if (c->all_fit)
        return;
    vk_fence_full(); /* a sleeper counts itself, then looks at the word: one of us sees the other */
    if (vk_load_relaxed(sleepers))
        coll_wake(word);
}

/* The group is broken, in the present collective or an earlier one: tells the others. Returns the code. */
int coll_fail_at(coll *c, int code, uint64_t number);
static inline int coll_fail(coll *c, int code)
{
    return coll_fail_at(c, code, c->now.number);
}
/* What this rank gave up with, if it has said so: then nothing more of it will come. */
int coll_gave_up(coll *c, int rank);
/* Waits for the request, which is freed. who: the rank at its other end. */
int coll_finish(coll *c, msg_request **request, msg_status *status, int who, int sending);
/* Of a collective that has failed: the request's buffer is the caller's again. A receive that was matched gets its
 * data, because its sender's engine sees that it was before it sees that we gave up; a send to rank `to` is over when
 * that rank has given up. to: COLL_ANYBODY for anything else. */
void coll_give_up(coll *c, msg_request **request, int to);

/* Messages within the group, of exactly these lengths. Waits for both ends; dst or src may be MSG_PROC_NULL. */
int coll_sendrecv(coll *c, int tag, const void *sendbuf, size_t send_len, int dst, void *recvbuf, size_t recv_len,
                  int src);
static inline int coll_send(coll *c, int tag, const void *buf, size_t len, int dst)
{
    return coll_sendrecv(c, tag, buf, len, dst, NULL, 0, MSG_PROC_NULL);
}
static inline int coll_recv(coll *c, int tag, void *buf, size_t len, int src)
{
    return coll_sendrecv(c, tag, NULL, 0, MSG_PROC_NULL, buf, len, src);
}

/* ---------------------------------------------------------------- coll.c */

/* Everybody's len bytes to everybody, by way of rank 0. */
int coll_gather_all(coll *c, const void *mine, size_t len, void *all);
/* len bytes that stay until the next call; NULL: no memory. */
void *coll_scratch(coll *c, size_t len);

static inline void coll_begin(coll *c, int operation, int algorithm, int root, size_t len)
{
    c->now.number++;
    c->now.operation = (uint16_t)operation;
    c->now.algorithm = (uint16_t)algorithm;
    c->now.root = root;
    c->now.len = len;
}

/* A word that goes with data: which collective, operation and root, how much. What differs in it is a mismatch. */
static inline uint64_t coll_what(const coll *c, size_t len)
{
    uint64_t root = (unsigned)c->now.root & 0xFFF;
    return (uint64_t)len | root << 40 | (uint64_t)c->now.operation << 52 | c->now.number << 56;
}

/* ---------------------------------------------------------------- carry.c */

/* How data gets from rank to rank: sends out_len bytes to one, and receives in_len from another, at the same time.
 * Either rank may be MSG_PROC_NULL. Returns when `in` is there and `out` may be changed. */
typedef int coll_exchange(coll *c, const void *out, size_t out_len, int to, void *in, size_t in_len, int from);
coll_exchange coll_exchange_rdma, coll_exchange_message;
int coll_slots_need(coll *c);             /* collective: before the first exchange by RDMA */
void coll_slots_hide(coll *c, int whole); /* gives its memory back to the world, slots only if the group is whole ... */
void coll_slots_free(coll *c);            /* ... and what it is managed with */

/* ---------------------------------------------------------------- combine.c */

size_t coll_type_size(coll_type type);
int coll_combines(coll_type type, coll_op op);
/* to[i] = low[i] op high[i]; to may be either of them. */
void coll_combine(coll_type type, coll_op op, size_t count, const void *low, const void *high, void *to);

/* ---------------------------------------------------------------- data.c, flat.c: algorithms
 *
 * The members of an exchange, numbered from 0: all ranks of the group, or one of each node. */
struct coll_ring {
    coll *c;
    coll_exchange *exchange;
    int n, me;
    const int *ranks; /* of each member; NULL: members are ranks */
};
struct coll_reduction {
    coll_type type;
    coll_op op;
    size_t count;
};
int coll_bcast_binomial(const struct coll_ring *r, void *buf, size_t len, int root);
int coll_bcast_scatter_ring(const struct coll_ring *r, void *buf, size_t len, int root);
/* have: this member's operand, and on the root the result. */
int coll_reduce_binomial(const struct coll_ring *r, void *have, const struct coll_reduction *what, int root);
int coll_reduce_ring(const struct coll_ring *r, void *have, const struct coll_reduction *what, int root);
int coll_allreduce_doubling(const struct coll_ring *r, void *have, const struct coll_reduction *what);
int coll_allreduce_ring(const struct coll_ring *r, void *have, const struct coll_reduction *what);
/* all: [n][len], this member's own in place. */
int coll_allgather_bruck(const struct coll_ring *r, void *all, size_t len);
int coll_allgather_ring(const struct coll_ring *r, void *all, size_t len);
int coll_alltoall_pairwise(const struct coll_ring *r, const void *out, void *in, size_t len);
int coll_alltoall_bruck(const struct coll_ring *r, const void *out, void *in, size_t len);

/* Among the ranks of this node; roots are numbered among them. */
int coll_flat_bcast(coll *c, void *buf, size_t len, int root);
int coll_flat_reduce(coll *c, const void *in, void *out, const struct coll_reduction *what, int root);
int coll_flat_allreduce(coll *c, const void *in, void *out, const struct coll_reduction *what);
int coll_flat_allgather(coll *c, void *all, size_t len);
int coll_flat_alltoall(coll *c, const void *out, void *in, size_t len);

#endif
