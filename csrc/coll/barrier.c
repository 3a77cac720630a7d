/*
 * The barriers of Gupta, Tipparaju, Nieplocha and Panda (sections in brackets are theirs), and others to
 * compare with. Shapes of exchange are written once and told how one rank signals another: by a message without
 * data, or by writing the barrier's number into a cell of the other's memory:
 *
 *     signal   put(number -> cell "from me" of his memory)        (5.1, 6.4)
 *     await    until my cell "from him" >= number
 *
 * It is >= because a fast rank may have come to the next barrier, and written that, before a
 * slow one has looked (6.4).
 *
 * Invariant of a cell: it has one writer, who writes a larger number each time, at most once per barrier,
 * and only after it has come to that barrier. So it needs no clearing; -1, with which it begins (6.3), is
 * less than any number; and a cell that was overwritten before it was looked at says all the more. A rank
 * can be one barrier ahead of another, no more: to get further it would need a signal that the other has
 * not given. All algorithms by RDMA count with one number (n_rdma), so they may follow each other in the
 * same cells; `overall` has cells and a number of its own.
 *
 *     pairwise exchange of 4        overall, two ranks on each of 4 nodes
 *     0 <-> 1   2 <-> 3             1 -> 0 (flags)   3 -> 2   5 -> 4   7 -> 6
 *     0 <-> 2   1 <-> 3             pairwise exchange of 0 2 4 6
 *                                   0 -> 1 (flags)   2 -> 3   4 -> 5   6 -> 7
 *
 * What makes each of them a barrier: before anybody leaves, everybody's arrival has reached him along a chain
 * of signals, each given after those before it were seen. Each signal is a release and each await an acquire,
 * so what any rank wrote before the barrier is seen by all after it.
 *
 * When a rank dies or gives up, coll_pause returns an error, and the group is broken
 * (wait.c). One thread of each rank.
 */
#include <string.h>

#include "inside.h"

static const struct {
    const char *name, *text;
} names[COLL_N_BARRIERS] = {
#define COLL_X(name, word, text) {word, text},
    COLL_BARRIERS(COLL_X)
#undef COLL_X
};

const char *coll_barrier_name(int algorithm)
{
    return algorithm >= 0 && algorithm < COLL_N_BARRIERS ? names[algorithm].name : NULL;
}

const char *coll_barrier_text(int algorithm)
{
    return algorithm >= 0 && algorithm < COLL_N_BARRIERS ? names[algorithm].text : NULL;
}

int coll_barrier_find(const char *name)
{
    for (int i = 0; i < COLL_N_BARRIERS; i++)
        if (strcmp(names[i].name, name) == 0)
            return i;
    return -1;
}

/* ---------------------------------------------------------------- how one signals another */

/* The members of an exchange, numbered from 0: all ranks of the group, or the masters of its nodes. */
struct circle {
    coll *c;
    int n, me;
    const int *ranks; /* of each member; NULL: members are ranks */
    size_t first;     /* index of the cell of member 0 */
    int64_t number;   /* of this barrier */
    int (*signal)(const struct circle *circle, int to);
    int (*await)(const struct circle *circle, int from);
};

static inline int rank_in(const struct circle *circle, int member)
{
    return circle->ranks ? circle->ranks[member] : member;
}

/* My cell in his memory. The put is short (8 bytes, aligned), so it is seen as a whole or not yet; it returns
 * when the channel has taken it, and the channel keeps puts to one rank in order. */
static int signal_by_rdma(const struct circle *circle, int to)
{
    coll *c = circle->c;
    int rank = rank_in(circle, to);
    uint64_t offset = (circle->first + (size_t)circle->me) * sizeof(struct coll_cell);
    int code =
        msg_put(c->world, &circle->number, sizeof circle->number, c->ranks[rank], &c->theirs[rank], offset, NULL);
    return code ? coll_fail(c, code) : MSG_SUCCESS;
}

/* Until he has come. From another host the word lands by the NIC's work, which coll_pause
 * then sees to; from this host it lands by itself. */
static int await_by_rdma(const struct circle *circle, int from)
{
    coll *c = circle->c;
    const struct coll_cell *cell = &c->cells[circle->first + (size_t)from];
    struct coll_patience p = {.source = rank_in(circle, from)};
    int code;
    p.network = c->node_of[p.source] != c->node;
    while (vk_load_acquire(&cell->number) < circle->number) /* what he did before the barrier happened before this */
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return MSG_SUCCESS;
}

/* Of a rank that most likely runs on another core at this moment: a few looks, some microseconds together, before the
 * core is given away. That would be gone for a turn of all who share it. */
static void expect_by_rdma(const struct circle *circle, int from)
{
    const struct coll_cell *cell = &circle->c->cells[circle->first + (size_t)from];
    for (int looks = 0; looks < 14 && vk_load_acquire(&cell->number) < circle->number; looks++) {
        msg_progress(circle->c->world);
        for (int i = 0; i < 10; i++)
            vk_pause();
    }
}

/* Messages need no number: those of one rank arrive in order, and each barrier takes as many as it sends. */
static int signal_by_message(const struct circle *circle, int to)
{
    return coll_send(circle->c, COLL_TAG_BARRIER, NULL, 0, rank_in(circle, to));
}

static int await_by_message(const struct circle *circle, int from)
{
    return coll_recv(circle->c, COLL_TAG_BARRIER, NULL, 0, rank_in(circle, from));
}

/* ---------------------------------------------------------------- who signals whom */

/* 5.1: pairwise exchange with recursive doubling. S, the largest power of two, exchange; each of the rest, S', first
 * tells its partner in S that it has come, and is told at the end. log2 S steps, and two if there is a rest. */
static int pairwise(const struct circle *circle)
{
    int s = 1, me = circle->me, code = MSG_SUCCESS;
    /* s: the size of S. Members 0 to s - 1 are S, the others S'; member me of S' belongs to me - s. */
    while (2 * s <= circle->n)
        s *= 2;
    if (me >= s) {
        code = circle->signal(circle, me - s);
        return code ? code : circle->await(circle, me - s);
    }
    int extra = me + s < circle->n ? me + s : -1;
    if (extra >= 0)
        code = circle->await(circle, extra);
    /* After the step of 2^k, everybody in a block of 2^(k+1) has heard, through others, of everybody in it. */
    for (int step = 1; step < s && code == MSG_SUCCESS; step *= 2) {
        code = circle->signal(circle, me ^ step);
        if (code == MSG_SUCCESS)
            code = circle->await(circle, me ^ step);
    }
    if (extra >= 0 && code == MSG_SUCCESS)
        code = circle->signal(circle, extra);
    return code;
}

/* Dissemination (Hensgen, Finkel and Manber, 1988): in round k everybody signals whoever is 2^k further on. ceil(log2
 * n) rounds, whatever n is; no partner is met twice in one barrier, so a cell for each rank is enough here as well.
 */
static int dissemination(const struct circle *circle)
{
    /* After round k one has heard, through others, of the 2^(k+1) members up to oneself. */
    int n = circle->n, me = circle->me, code = MSG_SUCCESS;
    for (int step = 1; step < n && code == MSG_SUCCESS; step *= 2) {
        code = circle->signal(circle, (me + step) % n);
        if (code == MSG_SUCCESS)
            code = circle->await(circle, (me - step + n) % n);
    }
    return code;
}

/* Gather and broadcast (3 names it as the other usual one): up a binomial tree with member 0 at its root, and
 * down again. Member me's children are me + 1, me + 2, me + 4 ... below the lowest bit that is set in me; its
 * parent is me without that bit. 2 (n - 1) signals instead of n log2 n, but twice as many rounds. */
static int gather_broadcast(const struct circle *circle)
{
    int n = circle->n, me = circle->me, code = MSG_SUCCESS, step = 1;
    for (; step < n && !(me & step) && code == MSG_SUCCESS; step *= 2)
        if (me + step < n)
            code = circle->await(circle, me + step);
    if (me && code == MSG_SUCCESS)
        code = circle->signal(circle, me - step);
    if (me && code == MSG_SUCCESS)
        code = circle->await(circle, me - step);
    /* Down in the opposite order: the largest subtree first, for it has the longest way to go. */
    for (step /= 2; step >= 1 && code == MSG_SUCCESS; step /= 2)
        if (me + step < n)
            code = circle->signal(circle, me + step);
    return code;
}

/* The same without a tree: each signals the centre of its block, the centres exchange, and each signals its block.
 * 2 (n - g) + g log2 g signals with g centres, where the exchange of all has n log2 n; and nobody but a centre waits
 * for a rank that waits for others. Where ranks share cores that is what counts: each signal takes somebody's core,
 * and each wait for somebody who waits costs one more turn of the scheduler. As many centres as cores, for one of them
 * would have to signal all others while the other cores have nothing to do; a power of two, for the exchange; and
 * blocks of two or more. */
static int central(const struct circle *circle)
{
    int n = circle->n, g = 1, code = MSG_SUCCESS;
    while (2 * g <= circle->c->cores && 4 * g <= n)
        g *= 2;
    /* Blocks as alike as can be: member m is of block m g / n, whose first member is its centre. */
    int block = circle->me * g / n, centre = (block * n + g - 1) / g, end = ((block + 1) * n + g - 1) / g;
    if (circle->me != centre) {
        code = circle->signal(circle, centre);
        return code ? code : circle->await(circle, centre);
    }
    for (int i = centre + 1; i < end && code == MSG_SUCCESS; i++)
        code = circle->await(circle, i);
    for (int step = 1; step < g && code == MSG_SUCCESS; step *= 2) {
        int other = ((block ^ step) * n + g - 1) / g;
        code = circle->signal(circle, other);
        if (circle->await == await_by_rdma && circle->c->crowded)
            expect_by_rdma(circle, other);
        if (code == MSG_SUCCESS)
            code = circle->await(circle, other);
    }
    for (int i = centre + 1; i < end && code == MSG_SUCCESS; i++)
        code = circle->signal(circle, i);
    return code;
}

static struct circle all_ranks(coll *c)
{
    return (struct circle){.c = c, .n = c->n, .me = c->rank, .signal = signal_by_message, .await = await_by_message};
}

static struct circle all_ranks_by_rdma(coll *c)
{
    return (struct circle){
        .c = c, .n = c->n, .me = c->rank, .number = ++c->n_rdma, .signal = signal_by_rdma, .await = await_by_rdma};
}

/* ---------------------------------------------------------------- within a node */

/* 5.2, the master's first half: all have checked in. A line is written by its rank (1) and by the master (0) in
 * turn: 1 may only follow 0 and 0 only 1, so neither overwrites what the other has not seen. */
static int flat_gather(coll *c)
{
    int code;
    for (int i = 1; i < c->n_locals; i++) {
        struct coll_patience p = {.source = c->locals[i]};
        while (!vk_load_acquire(&c->shared->lines[i].flag)) /* what it did before the barrier is visible from here on */
            if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
                return code;
    }
    return MSG_SUCCESS;
}

/* 5.2, its second half: resets everybody's flag. */
static void flat_release(coll *c)
{
    for (int i = 1; i < c->n_locals; i++)
        vk_store_release(&c->shared->lines[i].flag, 0); /* what all did happened before whoever sees this goes on */
}

/* 5.2: everybody else checks in by its flag, and waits until it is reset. Release, for the master is to see
 * what this rank did before; acquire, for this rank is to see what all did. */
static int flat_check_in(coll *c)
{
    uint32_t *flag = &c->shared->lines[c->local].flag;
    struct coll_patience p = {.source = c->locals[0]};
    int code;
    vk_store_release(flag, 1);
    while (vk_load_acquire(flag))
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return MSG_SUCCESS;
}

static int flat(coll *c)
{
    if (c->local != 0)
        return flat_check_in(c);
    int code = flat_gather(c);
    if (code == MSG_SUCCESS)
        flat_release(c);
    return code;
}

/* 3, figure 2: a location for each process; it writes there and reads everybody else's.
 * Numbers instead of ones, so that the next barrier needs no clearing. One crossing of a
 * cache line where `flat` has two, for n times as many reads. */
static int flags(coll *c)
{
    uint64_t number = ++c->n_flags;
    int code, n = c->n_locals;
    /* Release and, below, acquire: what each did before the barrier is seen by all after it. */
    vk_store_release(&c->shared->lines[c->local].number, number);
    /* Everybody begins behind himself, so that not all ask for the same line at once. */
    for (int step = 1, i = c->local; step < n; step++) {
        i = i + 1 < n ? i + 1 : 0;
        struct coll_patience p = {.source = c->locals[i]};
        while (vk_load_acquire(&c->shared->lines[i].number) < number)
            if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
                return code;
    }
    return MSG_SUCCESS;
}

/* 3, the first: everybody increments one location. With more ranks than cores it is the quickest, since whoever
 * comes last lets all go at once, and each rank needs to be run once per barrier only. The add is an acquire
 * and a release: who comes last has seen what all others did, and his release of `generation` shows it to them. */
static int counter(coll *c)
{
    struct coll_shared *s = c->shared;
    uint64_t number = ++c->n_counter;
    if (vk_add(&s->arrived, 1) == (uint32_t)c->n_locals) {
        vk_store_relaxed(&s->arrived, 0);                              /* nobody increments it again before ... */
        coll_tell(c, &s->generation, &s->generation_sleepers, number); /* ... it sees this */
        return MSG_SUCCESS;
    }
    struct coll_patience p = {.source = COLL_ANYBODY, .word = &s->generation, .sleepers = &s->generation_sleepers};
    int code;
    /* Acquire, with the last rank's release of it. */
    while ((p.seen = vk_load_acquire(&s->generation)) < number)
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- the overall barrier */

/* 5.3: the master waits until all of its node have come, exchanges with the other masters (pairwise, or as central()
 * does), and lets its node go. Masters have cells of their own behind those of the ranks (first = n), one for each
 * node. Every rank counts n_overall, so that it is the same on all. */
static int overall(coll *c, int (*exchange)(const struct circle *))
{
    struct circle masters = {.c = c,
                             .n = c->n_nodes,
                             .me = c->node,
                             .ranks = c->masters,
                             .first = (size_t)c->n,
                             .signal = signal_by_rdma,
                             .await = await_by_rdma};
    masters.number = ++c->n_overall;
    if (c->local != 0)
        return flat_check_in(c);
    int code = flat_gather(c);
    if (code == MSG_SUCCESS)
        code = exchange(&masters);
    if (code == MSG_SUCCESS)
        flat_release(c);
    return code;
}

/* ---------------------------------------------------------------- the call */

/* What a group can do was agreed on when it was made (coll.c: cells and shared are there on all ranks or on
 * none), so this is the same on all of them without asking. */
int coll_barrier_check(const coll *c, coll_algorithm algorithm)
{
    int rdma = c->cells != NULL, one_node = c->n_nodes == 1 && c->shared;
    switch (algorithm) {
    case COLL_BARRIER_DEFAULT:
    case COLL_BARRIER_MESSAGE:
    case COLL_BARRIER_DISSEMINATION:
    case COLL_BARRIER_GATHER:
    case COLL_BARRIER_MESSAGE_GATHER:
        return MSG_SUCCESS;
    case COLL_BARRIER_RDMA:
    case COLL_BARRIER_RDMA_DISSEMINATION:
    case COLL_BARRIER_RDMA_GATHER:
        return rdma ? MSG_SUCCESS : MSG_ERR_NOT_SUPPORTED;
    case COLL_BARRIER_OVERALL:
    case COLL_BARRIER_OVERALL_GATHER:
        return c->shared && (rdma || c->n_nodes == 1) ? MSG_SUCCESS : MSG_ERR_NOT_SUPPORTED;
    case COLL_BARRIER_FLAT:
    case COLL_BARRIER_FLAGS:
    case COLL_BARRIER_COUNTER:
        return one_node ? MSG_SUCCESS : MSG_ERR_NOT_SUPPORTED;
    default:
        return MSG_ERR_ARG;
    }
}

/* As docs/collectives.md has it. What the choice depends on is equal on all ranks of the group. */
coll_algorithm coll_barrier_default(const coll *c)
{
    if (c->n_nodes == 1 && c->shared)
        return c->all_fit && c->n <= 8 ? COLL_BARRIER_FLAGS : COLL_BARRIER_COUNTER;
    /* Where ranks share cores the fewest signals and the fewest turns of the scheduler win; where each has its own,
     * the fewest signals that must follow one another. */
    if (c->cells && c->n_nodes < c->n && c->shared)
        return !c->all_fit && c->n_nodes > 2 ? COLL_BARRIER_OVERALL_GATHER : COLL_BARRIER_OVERALL;
    if (!c->all_fit && c->n > 2)
        return c->cells ? COLL_BARRIER_RDMA_GATHER : COLL_BARRIER_MESSAGE_GATHER;
    if (c->cells)
        return (c->n & (c->n - 1)) == 0 ? COLL_BARRIER_RDMA : COLL_BARRIER_RDMA_DISSEMINATION;
    return COLL_BARRIER_DISSEMINATION;
}

int coll_barrier(coll *c, coll_algorithm algorithm)
{
    struct circle circle;
    if (vk_unlikely(c->error))
        return c->error;
    int code = coll_barrier_check(c, algorithm);
    if (code != MSG_SUCCESS || c->n == 1)
        return code;
    if (algorithm == COLL_BARRIER_DEFAULT)
        algorithm = coll_barrier_default(c);
    coll_begin(c, COLL_BARRIER, (int)algorithm, 0, 0);
    switch (algorithm) {
    case COLL_BARRIER_FLAGS:
        return flags(c);
    case COLL_BARRIER_COUNTER:
        return counter(c);
    case COLL_BARRIER_FLAT:
        return flat(c);
    case COLL_BARRIER_OVERALL:
        return overall(c, pairwise);
    case COLL_BARRIER_OVERALL_GATHER:
        return overall(c, central);
    case COLL_BARRIER_RDMA:
        circle = all_ranks_by_rdma(c);
        return pairwise(&circle);
    case COLL_BARRIER_RDMA_DISSEMINATION:
        circle = all_ranks_by_rdma(c);
        return dissemination(&circle);
    case COLL_BARRIER_RDMA_GATHER:
        circle = all_ranks_by_rdma(c);
        return central(&circle);
    case COLL_BARRIER_MESSAGE:
        circle = all_ranks(c);
        return pairwise(&circle);
    case COLL_BARRIER_GATHER:
        circle = all_ranks(c);
        return gather_broadcast(&circle);
    case COLL_BARRIER_MESSAGE_GATHER:
        circle = all_ranks(c);
        return central(&circle);
    default:
        circle = all_ranks(c);
        return dissemination(&circle);
    }
}
