/*
 * The barriers of Gupta, Tipparaju, Nieplocha and Panda (section numbers are theirs), and others for comparison. Each
 * exchange is written once and is given the functions by which a rank signals another: a message without data, or an
 * RDMA write of the barrier's number into a cell of the other rank's memory:
 *
 *     signal   put(number -> cell "from me" of the peer's memory)   (5.1, 6.4)
 *     await    until my cell "from the peer" >= number
 *
 * The comparison is >= because a fast rank may have entered the next barrier, and written its number, before a slow
 * rank has polled (6.4).
 *
 * The value written is a stamp: the count of barriers of this kind, and the number of the present collective. A stamp
 * with the awaited count and another number is a mismatch: since the last barrier its writer was in another collective.
 * The number in a stamp with a larger count need not be compared. Its writer has passed the present barrier, and all
 * ranks that have passed it have compared their numbers along the chain of signals.
 *
 * Invariant of a cell: it has one writer, which writes a larger stamp each time, at most once per barrier, and only
 * after it has entered that barrier. Therefore a cell needs no clearing. Its initial value, -1, is less than any number
 * (6.3). A value that was overwritten before it was read loses nothing, because the new value implies it. A rank can be
 * at most one barrier ahead of another, because to get further it needs a signal that the other has not given. All
 * algorithms by RDMA use one count (n_rdma), so they may follow each other in the same cells; `overall` has its own
 * cells and count.
 *
 *     pairwise exchange of 4        overall, two ranks on each of 4 nodes
 *     0 <-> 1   2 <-> 3             1 -> 0 (flags)   3 -> 2   5 -> 4   7 -> 6
 *     0 <-> 2   1 <-> 3             pairwise exchange of 0 2 4 6
 *                                   0 -> 1 (flags)   2 -> 3   4 -> 5   6 -> 7
 *
 * Each of them is a barrier because every rank's arrival reaches every other rank along a chain of signals before that
 * rank leaves. Each signal of the chain is given after those before it were seen. Each signal is a release and each
 * await an acquire, so all writes before the barrier are visible to all ranks after it.
 *
 * When a rank dies or gives up, coll_pause returns an error, and the group is broken (wait.c). One thread of each rank.
 */
#include <stdlib.h>
#include <string.h>

#include "coll/inside.h"

struct circle;
static int pairwise(const struct circle *), dissemination(const struct circle *),
    gather_broadcast(const struct circle *), central(const struct circle *), flat(const struct circle *),
    flags(const struct circle *), counter(const struct circle *), dynamic(const struct circle *),
    flags_packed(const struct circle *);

static const struct {
    const char *name, *text;
    int means;
    int (*exchange)(const struct circle *);
} barriers[COLL_N_BARRIERS] = {
#define COLL_X(name, word, means, exchange, text) {word, text, COLL_BY_##means, exchange},
    COLL_BARRIERS(COLL_X)
#undef COLL_X
};

const char *coll_barrier_name(int algorithm)
{
    return algorithm >= 0 && algorithm < COLL_N_BARRIERS ? barriers[algorithm].name : NULL;
}

const char *coll_barrier_text(int algorithm)
{
    return algorithm >= 0 && algorithm < COLL_N_BARRIERS ? barriers[algorithm].text : NULL;
}

int coll_barrier_find(const char *name)
{
    for (int i = 0; i < COLL_N_BARRIERS; i++)
        if (strcmp(barriers[i].name, name) == 0)
            return i;
    return -1;
}

/* ---------------------------------------------------------------- signals between two ranks */

/* The members of an exchange, numbered from 0: all ranks of the group, or the masters of its nodes. */
struct circle {
    coll *c;
    int n, me;
    const int *ranks;              /* of each member; NULL: members are ranks */
    size_t first;                  /* index of the cell of member 0 */
    const struct coll_cell *cells; /* this rank's, for await_by_rdma */
    int64_t number;                /* coll_stamp of this barrier */
    int (*signal)(const struct circle *circle, int to);
    int (*await)(const struct circle *circle, int from);
};

static inline int rank_in(const struct circle *circle, int member)
{
    return circle->ranks ? circle->ranks[member] : member;
}

/* Write to this rank's cell in the peer's memory. The put is short (8 bytes, aligned), so it becomes visible as a
 * whole. It returns when the channel has accepted it, and the channel keeps puts to one rank in order. */
static int signal_by_rdma(const struct circle *circle, int to)
{
    coll *c = circle->c;
    int rank = rank_in(circle, to);
    uint64_t offset = (circle->first + (size_t)circle->me) * sizeof(struct coll_cell);
    int code = msg_put(c->world, &circle->number, sizeof circle->number, c->ranks[rank], &c->remote_exposed[rank],
                       offset, NULL);
    return code ? coll_fail(c, code) : MSG_SUCCESS;
}

/* Wait until the rank has entered the barrier. A write from another host needs the NIC's progress, which coll_pause
 * then drives. A write from this host lands by itself. */
static int await_by_rdma(const struct circle *circle, int from)
{
    coll *c = circle->c;
    const struct coll_cell *cell = &circle->cells[circle->first + (size_t)from];
    int code;
    /* Acquire: the rank's writes before the barrier are visible after this load. */
    if (vk_load_acquire(&cell->number) == circle->number)
        return MSG_SUCCESS;
    struct coll_wait p = {.source = rank_in(circle, from), .awaits = 1};
    p.network = c->node_of[p.source] != c->node;
    while ((code = coll_shows(vk_load_acquire(&cell->number), circle->number)) == 0)
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return code > 0 ? MSG_SUCCESS : coll_fail(c, MSG_ERR_COLLECTIVE);
}

/* Wait briefly for a rank that most likely runs on another core at this moment: a few polls, some microseconds
 * together, before the core is yielded. A yielded core is gone for one turn of all processes that share it. */
static void expect_by_rdma(const struct circle *circle, int from)
{
    const struct coll_cell *cell = &circle->cells[circle->first + (size_t)from];
    for (int polls = 0; polls < 14 && coll_shows(vk_load_acquire(&cell->number), circle->number) == 0; polls++) {
        msg_progress(circle->c->world);
        for (int i = 0; i < 10; i++)
            vk_pause();
    }
}

/* The tag contains the number of the collective. */
static int signal_by_message(const struct circle *circle, int to)
{
    return coll_send(circle->c, coll_tag(circle->c, COLL_TAG_BARRIER), NULL, 0, rank_in(circle, to));
}

static int await_by_message(const struct circle *circle, int from)
{
    return coll_recv(circle->c, coll_tag(circle->c, COLL_TAG_BARRIER), NULL, 0, rank_in(circle, from));
}

/* ---------------------------------------------------------------- exchanges */

/* Gupta et al., 5.1: pairwise exchange with recursive doubling. S, the largest power of two, exchange. Each of the
 * rest, S', first signals its arrival to its partner in S, and is signalled at the end. log2 S steps, and two more if
 * there is a rest. */
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
    /* After the step of 2^k, each member of a block of 2^(k+1) has an indirect signal from every member of the
     * block. */
    for (int step = 1; step < s && code == MSG_SUCCESS; step *= 2) {
        code = circle->signal(circle, me ^ step);
        if (code == MSG_SUCCESS)
            code = circle->await(circle, me ^ step);
    }
    if (extra >= 0 && code == MSG_SUCCESS)
        code = circle->signal(circle, extra);
    return code;
}

/* Dissemination (Hensgen, Finkel and Manber, 1988): in round k each member signals the member 2^k further on. There are
 * ceil(log2 n) rounds for any n. No pair meets twice in one barrier, so one cell for each rank is enough here, too. */
static int dissemination(const struct circle *circle)
{
    /* After round k a member has direct or indirect signals from the 2^(k+1) members up to itself. */
    int n = circle->n, me = circle->me, code = MSG_SUCCESS;
    for (int step = 1; step < n && code == MSG_SUCCESS; step *= 2) {
        code = circle->signal(circle, (me + step) % n);
        if (code == MSG_SUCCESS)
            code = circle->await(circle, (me - step + n) % n);
    }
    return code;
}

/* Gather and broadcast, named in section 3 as the other usual barrier: up a binomial tree with member 0 at its root,
 * and down again. The children of member me are me + 1, me + 2, me + 4 ... below the lowest set bit of me. Its parent
 * is me without that bit. 2 (n - 1) signals instead of n log2 n, but twice as many rounds. */
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
    /* Down in the opposite order: the largest subtree first, because it has the longest path. */
    for (step /= 2; step >= 1 && code == MSG_SUCCESS; step /= 2)
        if (me + step < n)
            code = circle->signal(circle, me + step);
    return code;
}

/* The same without a tree: each member signals the centre of its block, the centres exchange, and each signals its
 * block. With g centres this takes 2 (n - g) + g log2 g signals, while the exchange of all members takes n log2 n. Only
 * centres wait for ranks that wait for others. Where ranks share cores this matters: each signal occupies a core, and
 * each wait for a waiting rank costs one more turn of the scheduler. The number of centres is
 *
 * - at most the number of cores: a single centre would signal all others while the other cores are idle
 * - a power of two, for the exchange
 * - such that blocks have at least two members */
static int central(const struct circle *circle)
{
    int n = circle->n, g = 1, code = MSG_SUCCESS;
    while (2 * g <= circle->c->cores && 4 * g <= n)
        g *= 2;
    /* Blocks differ by at most one member: member m is in block m g / n, whose first member is its centre. */
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

/* ---------------------------------------------------------------- registered for each barrier */

/* Section 4.1's alternative to buffers that are registered once: each barrier registers memory and has to send its
 * address to every rank that will write there, before that rank can. Three functions of a circle:
 *
 *     first run    signal: nothing                          await: send the address to the awaited rank
 *     second run   signal: receive its address, then put    await: as usual
 *
 * The first run visits the same ranks as the second, so each address that is sent is received. When the second run
 * ends, each rank that has the address has written there. */
static int no_signal(const struct circle *circle, int to)
{
    (void)circle, (void)to;
    return MSG_SUCCESS;
}

static int send_address(const struct circle *circle, int from)
{
    coll *c = circle->c;
    return coll_send(c, coll_tag(c, COLL_TAG_BARRIER), &c->dynamic_exposed, sizeof c->dynamic_exposed, from);
}

static int signal_to_address(const struct circle *circle, int to)
{
    coll *c = circle->c;
    msg_exposed there;
    int code = coll_recv(c, coll_tag(c, COLL_TAG_BARRIER), &there, sizeof there, to);
    if (code != MSG_SUCCESS)
        return code;
    code = msg_put(c->world, &circle->number, sizeof circle->number, c->ranks[to], &there,
                   (uint64_t)circle->me * sizeof(struct coll_cell), NULL);
    return code ? coll_fail(c, code) : MSG_SUCCESS;
}

/* After an error the memory stays registered and allocated, because a rank may still write there. */
static int dynamic(const struct circle *circle)
{
    coll *c = circle->c;
    size_t len = (size_t)c->n * sizeof(struct coll_cell);
    struct circle own = *circle;
    void *memory = c->dynamic;
    int code = memory ? MSG_SUCCESS : msg_alloc(c->world, len, &memory);
    if (code != MSG_SUCCESS)
        return coll_fail(c, code);
    c->dynamic = memory;
    for (int i = 0; i < c->n; i++)
        c->dynamic[i].number = -1;
    if ((code = msg_expose(c->world, memory, len, &c->dynamic_exposed)) != MSG_SUCCESS)
        return coll_fail(c, code);
    own.cells = c->dynamic;
    own.signal = no_signal;
    own.await = send_address;
    code = pairwise(&own);
    own.signal = signal_to_address;
    own.await = await_by_rdma;
    if (code == MSG_SUCCESS)
        code = pairwise(&own);
    if (code == MSG_SUCCESS)
        code = msg_hide(c->world, &c->dynamic_exposed);
    return code;
}

/* ---------------------------------------------------------------- with notices to the receiver
 *
 * Section 4.2's alternatives to polling the value. Immediate data consumes a receive that the target has posted before,
 * and the target learns of the write from the completed receive. With an interrupt the target does not poll for that
 * either: it sleeps until the NIC wakes it. Only circles of all ranks run them. Each is pairwise(). */
static int signal_with_notice(const struct circle *circle, int to)
{
    return coll_signal_with_notice(circle->c, to, circle->number);
}

static int await_notice(const struct circle *circle, int from)
{
    return coll_await_notice(circle->c, from, circle->number, 0);
}

static int await_interrupt(const struct circle *circle, int from)
{
    return coll_await_notice(circle->c, from, circle->number, 1);
}

static inline int gives_notice(int algorithm)
{
    return algorithm == COLL_BARRIER_RDMA_IMMEDIATE || algorithm == COLL_BARRIER_RDMA_INTERRUPT;
}

/* ---------------------------------------------------------------- within a node */

/* The value of a checked-in flag, in place of the 1 in section 5.2: the collective's number, and never 0. */
static inline uint32_t present(const coll *c)
{
    return (uint32_t)c->now.number << 1 | 1;
}

/* Section 5.2, the master's first half: wait until all have checked in. A line is written in turn by its rank and by
 * the master (0), so neither overwrites a value that the other has not read. */
static int flat_gather(coll *c)
{
    int code;
    for (int i = 1; i < c->n_locals; i++) {
        struct coll_wait p = {.source = c->locals[i], .awaits = 1};
        uint32_t flag;
        while ((flag = vk_load_acquire(&c->shared->lines[i].flag)) != present(c)) { /* its earlier writes are visible */
            if (flag && (int32_t)(flag - present(c)) > 0)
                return coll_fail(c, MSG_ERR_COLLECTIVE);
            if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
                return code;
        }
    }
    return MSG_SUCCESS;
}

/* Section 5.2, the master's second half: reset all flags. */
static void flat_release(coll *c)
{
    for (int i = 1; i < c->n_locals; i++)
        vk_store_release(&c->shared->lines[i].flag,
                         0); /* all ranks' writes before the barrier are visible to a rank that sees this */
}

/* Section 5.2, all other ranks: check in by the flag, and wait until it is reset. Release, so that the master sees this
 * rank's earlier writes; acquire, so that this rank sees those of all. */
static int flat_check_in(coll *c)
{
    uint32_t *flag = &c->shared->lines[c->local].flag;
    struct coll_wait p = {.source = c->locals[0], .awaits = 1};
    int code;
    vk_store_release(flag, present(c));
    while (vk_load_acquire(flag))
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return MSG_SUCCESS;
}

static int flat(const struct circle *circle)
{
    coll *c = circle->c;
    if (c->local != 0)
        return flat_check_in(c);
    int code = flat_gather(c);
    if (code == MSG_SUCCESS)
        flat_release(c);
    return code;
}

/* Wait until the stamp of a rank of this node shows that it has entered the barrier. */
static int await_number(coll *c, int local, const uint64_t *number, uint64_t stamp)
{
    struct coll_wait p = {.source = c->locals[local], .awaits = 1};
    int code;
    while ((code = coll_shows((int64_t)vk_load_acquire(number), (int64_t)stamp)) == 0)
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return code > 0 ? MSG_SUCCESS : coll_fail(c, MSG_ERR_COLLECTIVE);
}

/* Section 3, figure 2: each process has a location, which it writes; it reads the locations of all others. Numbers are
 * used instead of ones, so that the next barrier needs no clearing. A cache line crosses once where `flat` needs two
 * crossings, at the price of n times as many reads. */
static inline int all_flags(coll *c, uint64_t *numbers, size_t stride, uint64_t stamp)
{
    int code, n = c->n_locals;
    /* Release and, below, acquire: all writes before the barrier are visible to all ranks after it. */
    vk_store_release(&numbers[(size_t)c->local * stride], stamp);
    /* Each rank begins behind itself, so that the ranks do not read the same line at once. */
    for (int step = 1, i = c->local; step < n; step++) {
        i = i + 1 < n ? i + 1 : 0;
        const uint64_t *number = &numbers[(size_t)i * stride];
        if (vk_load_acquire(number) != stamp && (code = await_number(c, i, number, stamp)) != MSG_SUCCESS)
            return code;
    }
    return MSG_SUCCESS;
}

static int flags(const struct circle *circle)
{
    coll *c = circle->c;
    return all_flags(c, &c->shared->lines[0].number, sizeof(struct coll_line) / sizeof(uint64_t),
                     (uint64_t)coll_stamp(c, (int64_t)++c->n_flags));
}

/* Section 3: locations in one cache line are shared falsely. Each rank's write takes the line from all that poll. */
static int flags_packed(const struct circle *circle)
{
    coll *c = circle->c;
    return all_flags(c, coll_packed(c->shared, c->n), 1, (uint64_t)coll_stamp(c, (int64_t)++c->n_packed));
}

/* Section 3, the first: all ranks increment one location. With more ranks than cores this is the fastest: the last rank
 * releases all at once, and each rank must run only once. The add is an acquire and a release, so the last rank has
 * seen the writes of all others. Its release of `generation` makes them visible to these. The added value is 1 and,
 * above it, a hash of the collective's number. The last rank finds n times its own value, unless ranks are in different
 * collectives. */
static int counter(const struct circle *circle)
{
    coll *c = circle->c;
    struct coll_shared *s = c->shared;
    uint64_t number = ++c->n_counter, n = (uint64_t)c->n_locals;
    uint64_t addend = c->now.number * UINT64_C(0x9E3779B97F4A7C15);
    addend = ((addend ^ addend >> 32) * UINT64_C(0xD6E8FEB86659FD93) & ~(uint64_t)0xFFFF) + 1;
    uint64_t sum = vk_add(&s->arrived, addend);
    if (sum == n * addend) { /* else: not the last, or ranks differ, and all wait until they detect that (wait.c) */
        vk_store_relaxed(&s->arrived, 0);                                 /* no rank increments it again before ... */
        coll_publish(c, &s->generation, &s->generation_sleepers, number); /* ... it sees this */
        return MSG_SUCCESS;
    }
    struct coll_wait p = {
        .source = COLL_ANY_RANK, .word = &s->generation, .sleepers = &s->generation_sleepers, .awaits = 1};
    int code;
    /* Acquire, with the last rank's release of it. */
    while ((p.seen = vk_load_acquire(&s->generation)) < number)
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- the overall barrier */

/* Section 5.3: the master waits until its whole node has arrived, exchanges with the other masters (pairwise, or as
 * central() does), and releases its node. Masters have cells of their own behind those of the ranks (first = n), one
 * for each node. Every rank counts n_overall, so that it is the same on all. */
static int overall(coll *c, int (*exchange)(const struct circle *))
{
    struct circle masters = {.c = c,
                             .n = c->n_nodes,
                             .me = c->node,
                             .ranks = c->masters,
                             .first = (size_t)c->n,
                             .cells = c->cells,
                             .signal = signal_by_rdma,
                             .await = await_by_rdma};
    masters.number = coll_stamp(c, ++c->n_overall);
    if (c->local != 0)
        return flat_check_in(c);
    int code = flat_gather(c);
    if (code == MSG_SUCCESS)
        code = exchange(&masters);
    if (code == MSG_SUCCESS)
        flat_release(c);
    return code;
}

/* ---------------------------------------------------------------- run dry (plan.c) */

static int record_signal(const struct circle *circle, int to)
{
    coll_plan_signal(circle->c, COLL_STEP_SIGNAL, rank_in(circle, to));
    return MSG_SUCCESS;
}

static int record_await(const struct circle *circle, int from)
{
    coll_plan_signal(circle->c, COLL_STEP_AWAIT, rank_in(circle, from));
    return MSG_SUCCESS;
}

/* Sections 5.2 and 5.3 by signals: what flat_gather, flat_check_in and flat_release do by flags. */
static int record_overall(coll *c, int (*exchange)(const struct circle *), int per_host)
{
    int n_nodes = (c->n + per_host - 1) / per_host, node = c->rank / per_host, master = node * per_host, code;
    int end = master + per_host < c->n ? master + per_host : c->n;
    int *masters = malloc((size_t)n_nodes * sizeof *masters);
    struct circle circle = {
        .c = c, .n = n_nodes, .me = node, .ranks = masters, .signal = record_signal, .await = record_await};
    if (masters == NULL)
        return MSG_ERR_NO_MEMORY;
    for (int i = 0; i < n_nodes; i++)
        masters[i] = i * per_host;
    if (c->rank != master) {
        coll_plan_signal(c, COLL_STEP_SIGNAL, master);
        coll_plan_signal(c, COLL_STEP_AWAIT, master);
    }
    for (int i = master + 1; i < end && c->rank == master; i++)
        coll_plan_signal(c, COLL_STEP_AWAIT, i);
    code = c->rank == master && n_nodes > 1 ? exchange(&circle) : MSG_SUCCESS;
    for (int i = master + 1; i < end && c->rank == master; i++)
        coll_plan_signal(c, COLL_STEP_SIGNAL, i);
    free(masters);
    return code;
}

int coll_barrier_means(int algorithm)
{
    return algorithm >= 0 && algorithm < COLL_N_BARRIERS ? barriers[algorithm].means : -1;
}

int coll_barrier_record(struct coll_plan *plan, int algorithm, int per_host)
{
    coll *c = (coll *)(void *)plan; /* a plan begins with its group */
    struct circle all = {.c = c, .n = c->n, .me = c->rank, .signal = record_signal, .await = record_await};
    if (algorithm < 0 || algorithm >= COLL_N_BARRIERS)
        return MSG_ERR_ARG;
    if (barriers[algorithm].exchange == dynamic || gives_notice(algorithm))
        return MSG_ERR_NOT_SUPPORTED; /* steps of a plan are all messages or all RDMA without notices */
    if (barriers[algorithm].means == COLL_BY_BOTH)
        return record_overall(c, barriers[algorithm].exchange, per_host);
    if (barriers[algorithm].exchange == flat)
        return c->n <= per_host ? record_overall(c, pairwise, per_host) : MSG_ERR_NOT_SUPPORTED;
    return barriers[algorithm].means == COLL_BY_MEMORY ? MSG_ERR_NOT_SUPPORTED : barriers[algorithm].exchange(&all);
}

/* ---------------------------------------------------------------- the call */

/* The result is the same on all ranks without communication, because coll_able is. */
int coll_barrier_check(const coll *c, coll_algorithm algorithm)
{
    if ((unsigned)algorithm >= COLL_N_BARRIERS)
        return MSG_ERR_ARG;
    return coll_able(c, barriers[algorithm].means) ? MSG_SUCCESS : MSG_ERR_NOT_SUPPORTED;
}

/* The rules in docs/collectives.md. All inputs of the choice are equal on all ranks of the group. */
coll_algorithm coll_barrier_default(const coll *c)
{
    if (c->n_nodes == 1 && c->shared)
        return c->all_fit && c->n <= 8 ? COLL_BARRIER_FLAGS : COLL_BARRIER_COUNTER;
    /* Where ranks share cores, the fewest signals and the fewest turns of the scheduler win. Where each has its own
     * core, the fewest signals that must follow one another win. */
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
    int code = coll_refusal(c);
    if (vk_unlikely(code))
        return code;
    code = coll_barrier_check(c, algorithm);
    if (code != MSG_SUCCESS || c->n == 1)
        return code;
    if (algorithm == COLL_BARRIER_DEFAULT)
        algorithm = coll_barrier_default(c);
    coll_begin(c, COLL_BARRIER, (int)algorithm, 0, 0, 0);
    struct circle all = {.c = c, .n = c->n, .me = c->rank, .signal = signal_by_message, .await = await_by_message};
    switch (barriers[algorithm].means) {
    case COLL_BY_BOTH:
        return overall(c, barriers[algorithm].exchange);
    case COLL_BY_RDMA:
        all.number = coll_stamp(c, ++c->n_rdma);
        all.cells = c->cells;
        all.signal = gives_notice(algorithm) ? signal_with_notice : signal_by_rdma;
        all.await = !gives_notice(algorithm)                   ? await_by_rdma
                    : algorithm == COLL_BARRIER_RDMA_IMMEDIATE ? await_notice
                                                               : await_interrupt;
        break;
    default:
        break;
    }
    return barriers[algorithm].exchange(&all);
}
