/*
 * inside.h - declarations shared by the files of csrc/coll. Section numbers refer to Gupta et al. (see coll.h).
 *
 * Ranks are numbered within the group. A *node* is a host of the group; its *master* is the first rank there. The
 * memory of a group:
 *
 *   cells      memory of each rank that the others write to by RDMA (6.1): a cell for each rank, then one for each node
 *   shared     memory that the ranks of one node map: lines of each rank, a counter, and for data two areas each
 *   slots      memory of each rank for data by RDMA (carry.c), allocated at the first exchange
 *
 * Each cell and each line has one or two cache lines of its own, so that two writers never contend for a cache line
 * (3).
 *
 * Reading order: barrier.c, wait.c, coll.c; then carry.c, combine.c, data.c, flat.c, collective.c.
 */
#ifndef VIAKIT_COLL_INSIDE_H
#define VIAKIT_COLL_INSIDE_H

#include "base/atomic.h"
#include "base/wait.h"
#include "coll/coll.h"

#define COLL_LET_FINISH_MS 5000 /* how long data may still arrive in a buffer of a failed collective */
#define COLL_ANY_RANK (-1)      /* as a source: any rank may be the missing one */

struct coll_cell {
    int64_t number; /* coll_stamp of the latest barrier that its writer has entered; -1 before the first (6.3) */
    uint8_t pad[VK_CACHE_LINE - 8];
};

struct coll_line {
    uint32_t flag;                        /* flat: not 0 from the rank's arrival until the master releases it (5.2) */
    uint64_t number;                      /* flags: coll_stamp of the latest barrier that the rank has entered */
    uint8_t pad0[2 * VK_CACHE_LINE - 16]; /* processors fetch cache lines in pairs */
    uint64_t done;                        /* data: the latest step that the rank has finished reading */
    uint32_t done_sleepers;
    uint8_t pad1[2 * VK_CACHE_LINE - 12];
};

struct coll_shared {
    uint64_t magic[2]; /* drawn at random by the master */
    uint8_t pad0[2 * VK_CACHE_LINE - 16];
    uint64_t arrived; /* counter: ranks that have entered the present barrier, and a sum of hashes */
    uint8_t pad1[2 * VK_CACHE_LINE - 8];
    uint64_t generation;   /* counter: completed barriers */
    uint64_t costly_until; /* until then yielding is expensive (base/wait.h); measured by one rank, used by all */
    uint32_t generation_sleepers; /* ranks that wait for it in the kernel: coll_publish */
    uint8_t pad2[2 * VK_CACHE_LINE - 20];
    struct coll_line lines[]; /* [n], then coll_packed, then areas */
};
_Static_assert(sizeof(struct coll_line) == 256 && offsetof(struct coll_shared, lines) == 384, "lines do not overlap");

/* flags-packed: the number of each rank of the node, as in coll_line, behind all lines. Here 8 share a cache line. */
static inline uint64_t *coll_packed(struct coll_shared *shared, int n)
{
    return (uint64_t *)(void *)&shared->lines[n];
}

/* The area in which a rank publishes data for its node. Each rank has two, for even and odd steps. */
#define COLL_AREA_DATA 262112
struct coll_area {
    uint64_t step; /* the step that the data belongs to */
    uint64_t what; /* operation and length of the data: coll_what */
    uint32_t step_sleepers;
    uint8_t pad[12]; /* aligns the data for every type */
    uint8_t data[COLL_AREA_DATA];
};
_Static_assert(sizeof(struct coll_area) == 262144, "areas begin on pages");

/* Buffers of control messages that may still be under way when the group is freed. */
struct coll_words {
    struct coll_note note;
    msg_request *sending; /* the request that sends the note */
    struct coll_word abort;
    int lent; /* some abort message has not been sent completely */
};

struct coll_slots; /* carry.c */

/* Writes of a rank that used a receive here (notice.c). */
struct coll_notices {
    int64_t shown; /* the rank's cell, read after the last of them; -1 before the first */
    uint32_t seen; /* the count of the world (msg_notices) at that time; other groups have their share in it */
};

struct coll {
    msg_world *world;
    int rank, n, context;
    int revocable;       /* coll_options */
    int *ranks;          /* [n] ranks in the world */
    int error;           /* not 0: the group is broken, and every call returns this code */
    uint64_t error_at;   /* the collective in which it broke */
    unsigned fork_epoch; /* of the process that created the group */
    int crowded;         /* more ranks than cores on this host: yield at once */
    uint64_t spin_ns;    /* a wait sleeps after this time */
    uint64_t yield_ns;

    uint64_t what;                 /* the present collective, without a length: coll_what */
    struct coll_note now;          /* the present collective, or the last one */
    struct coll_note *notes;       /* [n] the latest note of each rank */
    int *gave_up;                  /* [n] the error code with which the rank gave up; 0: it did not */
    struct coll_word *abort_words; /* [n] the rank's abort message */
    struct coll_words *words;
    const int *wanted; /* coll_options */
    void (*meanwhile)(void *context);
    int (*crossed)(void *context, int group_context, const struct coll_note *now, int awaited);
    void *meanwhile_context;        /* of both */
    void (*release)(void *context); /* coll_set_release; NULL: not set, or called */
    void *release_context;

    /* Nodes: set by place() in coll.c, alike on all ranks. */
    int n_nodes, node; /* of this rank */
    int *node_of;      /* [n] */
    int *masters;      /* [n_nodes] ranks */
    int *locals;       /* [n_locals] ranks of this node, ascending */
    int *delegates;    /* [n_nodes] scratch: the rank that represents each node in an operation with a root */
    int n_locals, local;
    int all_fit; /* no rank is on a machine with more ranks than cores */
    int cores;   /* of the machine with the fewest */

    /* Memory of the node, and counts of the algorithms that use it. Each count is the same on all ranks of the node. */
    struct coll_shared *shared; /* NULL: some node has no shared memory, or every node has one rank */
    struct coll_area *areas;    /* [n_locals][2], behind `shared` */
    size_t shared_len;
    uint64_t n_flags, n_packed, n_counter;
    uint64_t n_steps; /* n_steps: steps of data through the areas so far; all_done: all ranks have finished this step */
    uint64_t all_done;

    /* Memory for RDMA, and counts of its barriers. Each count is the same on all ranks of the group. */
    struct coll_cell *cells; /* [n + n_nodes]; NULL: no RDMA */
    msg_exposed exposed;
    msg_exposed *remote_exposed; /* [n] */
    int64_t n_rdma, n_overall;
    struct coll_notices *notices; /* [n] */
    struct coll_cell *dynamic;    /* rdma-dynamic: [n], exposed during one barrier; NULL before the first */
    msg_exposed dynamic_exposed;
    struct coll_slots *slots; /* NULL until first needed */

    void *scratch; /* holds operands received from other ranks */
    size_t scratch_len;
};

/* ---------------------------------------------------------------- wait.c
 *
 * State of a loop that polls memory. It is initialised with {.source = who}:
 *     while (!arrived && code == MSG_SUCCESS)
 *         code = coll_pause(c, &p);
 * coll_pause spins, then yields, then sleeps. Meanwhile it drives messages and RDMA, and detects failures. */
struct coll_wait {
    int source;  /* the awaited rank; if it has left the world, the wait fails */
    int network; /* the data comes from another host: poll the NIC each time */
    int message; /* a message is awaited */
    unsigned polls;
    struct vk_wait ladder; /* begins with the long part */
    uint64_t failed_at;    /* when a rank of the group was first found to be gone */
    uint64_t note_at, note_gap, compare_at;
    uint64_t crossed_at; /* from then on collectives of other groups are compared, too */
    int awaits;          /* `source` must do something in this collective to end the wait */
    int ahead;           /* number of times that `source` was seen in a later collective */
    int behind;          /* the data at hand is of an earlier collective */
    int asleep;          /* sleep at once, until the NIC's interrupt: coll_pause_long only */
    /* A sleep ends when `word` changes: the word, its value when it was last found too small, and the number of ranks
     * that sleep on it. */
    const uint64_t *word;
    uint64_t seen;
    uint32_t *sleepers;
};
int coll_pause_long(coll *c, struct coll_wait *p);
/* Calls the caller's `release`, once. */
static inline void coll_release(coll *c)
{
    void (*release)(void *) = c->release;
    if (vk_unlikely(release != NULL)) {
        c->release = NULL;
        release(c->release_context);
    }
}

static inline int coll_pause(coll *c, struct coll_wait *p)
{
    int code = MSG_SUCCESS;
    p->polls++;
    if (p->network && p->polls == 1) { /* the data may already be in the NIC's ring */
        msg_progress(c->world);
        return MSG_SUCCESS;
    }
    if (vk_unlikely(c->crowded || p->polls > 200 || vk_time_is_virtual()))
        code = coll_pause_long(c, p);
    else
        vk_pause();
    /* Last, so that the caller checks the result of this progress before the core is yielded again. A yield would cost
     * a turn of the scheduler. */
    if (p->network && code == MSG_SUCCESS)
        msg_progress(c->world);
    return code;
}

/* Store a new value in a word that only grows, and wake the ranks of the node that sleep on it. With more ranks than
 * cores the rank that completes a barrier must wake the others. If each rank has a core, no rank sleeps, and the check
 * for sleepers is skipped. */
void coll_wake(const uint64_t *word);
static inline void coll_publish(const coll *c, uint64_t *word, uint32_t *sleepers, uint64_t value)
{
    vk_store_release(word, value); /* earlier stores are visible to every rank that reads this value */
    if (c->all_fit)
        return;
    vk_fence_full(); /* a sleeper increments its count, then reads the word: one of the two sees the other's store */
    if (vk_load_relaxed(sleepers))
        coll_wake(word);
}

/* Break the group in the present collective and notify the other ranks. Returns the code. */
int coll_fail(coll *c, int code);
/* Break the group because a rank gave up (coll_gave_up), in the collective that it gave up. */
int coll_fail_with(coll *c, int rank);
/* The error code of this rank's abort message, or MSG_SUCCESS. A rank that gave up sends nothing more in the group. */
int coll_gave_up(coll *c, int rank);
/* Wait for the request and free it. who: the rank at its other end. */
int coll_finish(coll *c, msg_request **request, msg_status *status, int who, int sending);
/* Reclaim the buffer of a request after its collective has failed. A matched receive still gets its data, because the
 * sender's engine processes the match before the abort message. A send to rank `to` ends when that rank has given up.
 * to: COLL_ANY_RANK for anything else. */
void coll_give_up(coll *c, msg_request **request, int to);

/* Exchange messages within the group, of exactly these lengths. Waits for both ends; dst or src may be
 * MSG_PROC_NULL. After an error the group is broken, and both buffers belong to the caller again. */
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

/* Gather len bytes of each rank on all ranks, by way of rank 0. `own` may not lie in `all`. An error breaks the
 * group. */
int coll_gather_all(coll *c, const void *own, size_t len, void *all);
/* Return len bytes of scratch memory, valid until the next call; NULL: no memory. */
void *coll_scratch(coll *c, size_t len);

/* The reason why no collective can begin: the group is broken, or this process is a fork's child. MSG_SUCCESS: none. */
static inline int coll_refusal(const coll *c)
{
    return c->fork_epoch == msg_fork_epoch ? c->error : MSG_ERR_PROCESS;
}

/* Begin a collective: give it the next number, and describe it for notes (now) and for data (what). Every rank of the
 * group counts every collective, whatever its own part is. */
static inline void coll_begin(coll *c, int operation, int algorithm, int root, size_t len, unsigned kind)
{
    c->now.number++;
    c->now.operation = (uint16_t)operation;
    c->now.algorithm = (uint16_t)algorithm;
    c->now.root = root;
    c->now.len = len;
    c->now.kind = kind;
    /* 12 bits of root, type and operator: exact with up to 16 ranks.
     *
     *      63      56 55      52 51              40 39        0
     *     |  number  | operation | root ^ type, op |   length   |        coll_what adds the length */
    uint64_t folded = ((unsigned)root ^ (unsigned)kind << 4) & 0xFFF;
    c->what = folded << 40 | (uint64_t)operation << 52 | c->now.number << 56;
}

/* A word that accompanies data: number of the collective, operation, root, type, operator and length. If sender and
 * receiver compute different words, the collectives mismatch. */
static inline uint64_t coll_what(const coll *c, size_t len)
{
    return c->what | (uint64_t)len;
}
static inline uint8_t coll_what_number(uint64_t what)
{
    return (uint8_t)(what >> 56);
}
/* True if the word is of an earlier collective. Its writer still waits there, perhaps for this rank, which has given
 * that collective up. The wait goes on until one of the two receives the other's abort message. */
static inline int coll_is_behind(const coll *c, uint64_t what)
{
    return (int8_t)(coll_what_number(what) - (uint8_t)c->now.number) < 0;
}
static inline int coll_what_operation(uint64_t what)
{
    return (int)(what >> 52 & 0xF);
}

/* The value that ranks publish in barriers: the count of barriers of this kind in the upper half, and the low half of
 * the collective's number below it. So a later barrier has a larger stamp. */
static inline int64_t coll_stamp(const coll *c, int64_t count)
{
    return (int64_t)((uint64_t)count << 32 | (uint32_t)c->now.number);
}

/* The tag of messages in this collective: `tag`, which is below 256, and the low bits of the number above it. There are
 * few, so that the engine keeps a lane for each. */
static inline int coll_tag(const coll *c, int tag)
{
    return tag | (int)(c->now.number & 0xF) << 8;
}

/* Compare the stamp that was read with the awaited one. 1: the writer has entered the barrier. 0: not yet. -1: the
 * writer was in another collective in its place. Usually both are equal, which the caller has checked before. An
 * earlier number under the same count is that of a rank which waits in a collective that this rank has given up. The
 * wait goes on until that rank gets the abort message. */
static inline int coll_shows(int64_t seen, int64_t stamp)
{
    int32_t ahead = (int32_t)((uint32_t)((uint64_t)seen >> 32) - (uint32_t)((uint64_t)stamp >> 32));
    int32_t later = (int32_t)((uint32_t)seen - (uint32_t)stamp);
    return ahead > 0 ? 1 : ahead < 0 || later < 0 ? 0 : later == 0 ? 1 : -1;
}

/* ---------------------------------------------------------------- notice.c
 *
 * Write the stamp to this rank's cell in the peer's memory, with immediate data, which consumes a receive there. Wait
 * for such a write of another rank: by polling for completed receives, or `asleep` until the NIC's interrupt. */
int coll_signal_with_notice(coll *c, int to, int64_t stamp);
int coll_await_notice(coll *c, int from, int64_t stamp, int asleep);

/* ---------------------------------------------------------------- carry.c */

/* Transfer data between ranks: send out_len bytes to one rank and receive in_len bytes from another at the same time.
 * Either rank may be MSG_PROC_NULL. Returns when `in` has arrived and `out` may be changed. */
typedef int coll_exchange(coll *c, const void *out, size_t out_len, int to, void *in, size_t in_len, int from);
coll_exchange coll_exchange_rdma, coll_exchange_message;
int coll_slots_need(coll *c);             /* collective, before the first exchange by RDMA */
void coll_slots_hide(coll *c, int whole); /* hides offered buffers, and if `whole` frees the slots */
void coll_slots_free(coll *c);            /* frees the bookkeeping. */
/* The word of the rank's next slot here, or 0 if no data has been written there that was not received yet. */
uint64_t coll_slots_next(const coll *c, int rank);

/* ---------------------------------------------------------------- data.c, flat.c, collective.c: algorithms
 *
 * The members of an exchange, numbered from 0: all ranks of the group, or one of each node. `plan`: record the steps
 * instead of taking them (plan.c); then no buffer exists. */
struct coll_plan;
struct coll_ring {
    coll *c;
    coll_exchange *exchange;
    struct coll_plan *plan; /* NULL: not a plan */
    int n, me;
    const int *ranks; /* of each member; NULL: members are ranks */
};
/* A call. `len` is the length of `count` elements in reductions, and of one rank's part in allgather and alltoall. */
struct coll_call {
    const void *in; /* reductions among ranks of a node, alltoall; in all others the operand is in `out` */
    void *out;      /* allgather and alltoall: [n][len] */
    size_t len, count;
    int root;
    coll_type type;
    coll_op op;
};
/* An algorithm: one line of COLL_ALGORITHMS. Those of flat.c number the root among the ranks of this node. The result
 * of a reduction to a root is in `out` there; elsewhere `out` is scratch. */
typedef int coll_run(const struct coll_ring *r, const struct coll_call *call);
#define COLL_X(operation, name, means, size, run, text) coll_run coll_##run;
COLL_ALGORITHMS(COLL_X)
#undef COLL_X
coll_run coll_scatter_binomial; /* broadcast's first half: member i's part is where it belongs */

/* plan.c: note a step of this member that moves no data between members. */
void coll_plan_local(struct coll_plan *plan, int kind, const void *low, const void *high, const void *to, size_t len);
/* barrier.c: run a barrier's exchange with functions that record its signals. */
int coll_barrier_record(struct coll_plan *plan, int algorithm, int per_host);
void coll_plan_signal(struct coll *c, int kind, int rank);
/* The algorithm for messages of an operation and a length. */
coll_run *coll_run_by_message(int operation, int is_long);

/* True if a group has the means that an algorithm needs. Groups agree on their means when they are created. */
static inline int coll_able(const coll *c, int means)
{
    int one_node = c->n_nodes == 1;
    return means == COLL_BY_RDMA     ? c->cells != NULL
           : means == COLL_BY_MEMORY ? c->shared && one_node
           : means == COLL_BY_BOTH   ? c->shared && (c->cells || one_node)
                                     : 1;
}

#endif
