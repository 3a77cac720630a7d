/*
 * The public collectives: arguments, the choice of an algorithm, and the "overall" algorithms. Those combine others
 * within hosts and among them, as Gupta et al., section 5.3, do for the barrier.
 *
 *   overall    reduce, allreduce     flat reduce in each host -> one rank of each host -> flat broadcast in each host
 *              broadcast             the root represents its host, the first rank any other host
 *
 *     allreduce on 2 hosts        0 1 2      3 4 5
 *     flat reduce to the first    0 <- 1,2   3 <- 4,5
 *     among representatives       0 <------> 3            by RDMA
 *     flat broadcast              0 -> 1,2   3 -> 4,5
 *
 * Every call takes the same path: enter() checks, chooses and counts, then begin() runs the algorithm. An algorithm is
 * a line of COLL_ALGORITHMS and a function in data.c, flat.c or here. All ranks must choose the same one. A choice
 * therefore depends only on values that all ranks share: the group, and the arguments, which have to agree.
 *
 * Errors of arguments change nothing. Others break the group (wait.c).
 */
#include <stdlib.h>
#include <string.h>

#include "coll/inside.h"

/* ---------------------------------------------------------------- names */

static const char *const operations[COLL_N_OPERATIONS] = {
    [COLL_BARRIER] = "barrier",     [COLL_BCAST] = "bcast",         [COLL_REDUCE] = "reduce",
    [COLL_ALLREDUCE] = "allreduce", [COLL_ALLGATHER] = "allgather", [COLL_ALLTOALL] = "alltoall",
};

/* The length that an algorithm is for: a word of its line in COLL_ALGORITHMS. */
enum { SHORT, LONG };

static const struct algorithm {
    int operation;
    const char *name, *text;
    int means, is_long;
    coll_run *run;
} algorithms[] = {
#define COLL_X(operation, name, means, size, run, text) \
    {COLL_##operation, name, text, COLL_BY_##means, size, coll_##run},
    COLL_ALGORITHMS(COLL_X)
#undef COLL_X
};
enum { N_ALGORITHMS = sizeof algorithms / sizeof *algorithms };

const char *coll_operation_name(int operation)
{
    return operation > COLL_NOTHING && operation < COLL_N_OPERATIONS ? operations[operation] : NULL;
}

/* NULL: no such algorithm, such as COLL_DEFAULT. Algorithms of an operation are adjacent in the table, and their
 * numbers are their order, from 1 on. */
static const struct algorithm *find(int operation, int algorithm)
{
    for (int i = 0, k = 0; i < N_ALGORITHMS; i++)
        if (algorithms[i].operation == operation && ++k == algorithm)
            return &algorithms[i];
    return NULL;
}

/* The number of the operation's first algorithm with these means, preferably the one for this length, or 0. */
static int find_by(int operation, int means, int is_long)
{
    int other = 0;
    for (int i = 0, k = 0; i < N_ALGORITHMS; i++)
        if (algorithms[i].operation == operation && ++k && algorithms[i].means == means) {
            if (algorithms[i].is_long == is_long)
                return k;
            other = k;
        }
    return other;
}

coll_run *coll_run_by_message(int operation, int is_long)
{
    const struct algorithm *a = find(operation, find_by(operation, COLL_BY_MESSAGE, is_long));
    return a ? a->run : NULL;
}

const char *coll_algorithm_name(int operation, int algorithm)
{
    const struct algorithm *a = find(operation, algorithm);
    if (operation == COLL_BARRIER)
        return coll_barrier_name(algorithm);
    return algorithm == COLL_DEFAULT && coll_operation_name(operation) ? "default" : a ? a->name : NULL;
}

const char *coll_algorithm_text(int operation, int algorithm)
{
    const struct algorithm *a = find(operation, algorithm);
    if (operation == COLL_BARRIER)
        return coll_barrier_text(algorithm);
    return algorithm == COLL_DEFAULT && coll_operation_name(operation)
               ? "chosen by length, number of ranks and their hosts"
           : a ? a->text
               : NULL;
}

int coll_algorithm_find(int operation, const char *name)
{
    for (int i = 0; coll_algorithm_name(operation, i); i++)
        if (strcmp(coll_algorithm_name(operation, i), name) == 0)
            return i;
    return -1;
}

/* ---------------------------------------------------------------- choice of an algorithm */

int coll_algorithm_check(const coll *c, int operation, int algorithm)
{
    const struct algorithm *a = find(operation, algorithm);
    if (operation == COLL_BARRIER)
        return coll_barrier_check(c, (coll_algorithm)algorithm);
    if (coll_algorithm_name(operation, algorithm) == NULL)
        return MSG_ERR_ARG;
    return a == NULL || coll_able(c, a->means) ? MSG_SUCCESS : MSG_ERR_NOT_SUPPORTED;
}

/* An algorithm for long data sends less, but in more rounds. With two ranks nothing can be saved: exchanging parts
 * moves as much as sending everything. Allgather's len is one rank's part, hence the division. Alltoall's "long" is
 * pairwise, which sends each part once; Bruck's algorithm pays only for very short parts among many ranks. */
size_t coll_long_from(int operation, int n)
{
    switch (operation) {
    case COLL_BCAST:
        return n <= 2 ? SIZE_MAX : 131072;
    case COLL_REDUCE:
    case COLL_ALLREDUCE:
        return n <= 2 ? SIZE_MAX : 65536;
    case COLL_ALLGATHER:
        return 65536 / (size_t)n;
    default:
        return n < 8 ? 0 : 256;
    }
}

/* With more ranks than cores each round costs a turn of the scheduler, so more rounds pay for much longer data only. */
static int is_long(const coll *c, int operation, int n, size_t len)
{
    size_t shift = c->all_fit || operation == COLL_ALLTOALL ? 0 : 6;
    return len >> shift >= coll_long_from(operation, n);
}

/* Up to this many bytes of each rank go through the areas. Each step of COLL_AREA_DATA is copied twice and makes the
 * ranks wait for each other, but stays in the caches. That takes half to a quarter of the time of the alternative: one
 * copy from process to process, by the kernel, page by page, in as many rounds. With many more steps, each would cost a
 * turn of the scheduler where a rank shares its core with other work. */
#define FLAT_MOST ((size_t)4 << 20)

/* Two ranks with a core each reduce longer data than this faster by RDMA. It copies each half once for the other rank,
 * and once more for the result. The areas need two copies each time. */
#define FLAT_MOST_OF_TWO ((size_t)512 << 10)

/* All inputs are equal on all ranks. The first of these that the group is able to use:
 *
 * - RDMA, if two ranks with a core each reduce long data to both
 * - the areas of the host, for data that is not too long
 * - "overall", if the operation has it, and some hosts have several ranks
 * - RDMA
 * - messages */
int coll_algorithm_default(const coll *c, int operation, size_t len)
{
    if (operation == COLL_BARRIER)
        return coll_barrier_default(c);
    size_t through = operation == COLL_ALLTOALL ? len * (size_t)c->n : len;
    if (operation == COLL_ALLREDUCE && c->n == 2 && c->n_nodes == 1 && c->all_fit && c->cells && len > FLAT_MOST_OF_TWO)
        return find_by(operation, COLL_BY_RDMA, LONG);
    if (through <= FLAT_MOST && coll_able(c, COLL_BY_MEMORY))
        return find_by(operation, COLL_BY_MEMORY, SHORT);
    int overall = find_by(operation, COLL_BY_BOTH, SHORT);
    if (c->n_nodes > 1 && c->n_nodes < c->n && overall && coll_able(c, COLL_BY_BOTH))
        return overall;
    return find_by(operation, c->cells ? COLL_BY_RDMA : COLL_BY_MESSAGE, is_long(c, operation, c->n, len));
}

/* One rank of each node: `root` for its own node, if there is a root (-1: none), else the master. By RDMA, because the
 * nodes are different hosts. */
static struct coll_ring one_of_each(coll *c, int root)
{
    memcpy(c->delegates, c->masters, (size_t)c->n_nodes * sizeof *c->delegates);
    if (root >= 0)
        c->delegates[c->node_of[root]] = root;
    return (struct coll_ring){
        .c = c, .exchange = coll_exchange_rdma, .n = c->n_nodes, .me = c->node, .ranks = c->delegates};
}

/* The number, among the ranks of this node, of the rank that represents it. */
static int delegate_here(const coll *c)
{
    int i = 0;
    while (c->locals[i] != c->delegates[c->node])
        i++;
    return i;
}

/* The common start of all calls. Returns the algorithm to run, or NULL: nothing is left to do, and *code is the call's.
 * Only a call that really begins is counted (coll_begin). */
static const struct algorithm *enter(coll *c, int operation, int algorithm, const struct coll_call *call, unsigned kind,
                                     int *code)
{
    *code = coll_refusal(c);
    if (vk_unlikely(*code))
        return NULL;
    if (vk_unlikely(algorithm != COLL_DEFAULT)) /* every group has the default */
        *code = coll_algorithm_check(c, operation, algorithm);
    if (*code == MSG_SUCCESS && (unsigned)call->root >= (unsigned)c->n)
        *code = MSG_ERR_RANK;
    /* A rank alone exchanges nothing. The caller still puts the operand where the result belongs. */
    if (*code != MSG_SUCCESS || c->n == 1)
        return NULL;
    if (algorithm == COLL_DEFAULT)
        algorithm = coll_algorithm_default(c, operation, call->len);
    const struct algorithm *a = find(operation, algorithm);
    coll_begin(c, operation, algorithm, call->root, call->len, kind);
    /* Collective, like the algorithm: all ranks have chosen the same means. */
    if (a->means == COLL_BY_RDMA || (a->means == COLL_BY_BOTH && c->n_nodes > 1))
        *code = coll_slots_need(c);
    return *code == MSG_SUCCESS ? a : NULL;
}

/* The members of an exchange are all ranks. Algorithms through memory ignore `exchange`, and "overall" makes a ring of
 * its own for the hosts. */
static int begin(coll *c, const struct algorithm *a, const struct coll_call *call)
{
    struct coll_ring all = {.c = c,
                            .exchange = a->means == COLL_BY_RDMA ? coll_exchange_rdma : coll_exchange_message,
                            .n = c->n,
                            .me = c->rank};
    return a->run(&all, call);
}

/* For coll_begin: 8 bits, never 0. COLL_TYPES and coll_op have fewer than 16 members each. */
static inline unsigned kind_of(const struct coll_call *call)
{
    return ((unsigned)call->type + 1) | (unsigned)call->op << 4;
}

/* ---------------------------------------------------------------- the overall algorithms */

/* `here` numbers the root among the ranks of this host, `among` among the hosts. */
int coll_bcast_overall(const struct coll_ring *r, const struct coll_call *call)
{
    coll *c = r->c;
    struct coll_ring hosts = one_of_each(c, call->root);
    struct coll_call here = *call, among = *call;
    int code = MSG_SUCCESS;
    here.root = delegate_here(c);
    among.root = c->node_of[call->root];
    if (c->local == here.root)
        code = coll_bcast_binomial(&hosts, &among);
    return code || c->n_locals == 1 ? code : coll_flat_bcast(r, &here);
}

/* In the opposite order. The partial result of a host is in the `out` of its representative, which coll_reduce has
 * allocated except on the root. */
int coll_reduce_overall(const struct coll_ring *r, const struct coll_call *call)
{
    coll *c = r->c;
    struct coll_ring hosts = one_of_each(c, call->root);
    struct coll_call here = *call, among = *call;
    here.root = delegate_here(c);
    among.root = c->node_of[call->root];
    int code = coll_flat_reduce(r, &here);
    return code || c->local != here.root ? code : coll_reduce_binomial(&hosts, &among);
}

/* Root 0 is the first rank of each host. Among few hosts another algorithm may be faster than among all ranks. */
int coll_allreduce_overall(const struct coll_ring *r, const struct coll_call *call)
{
    coll *c = r->c;
    struct coll_ring hosts = one_of_each(c, -1);
    int code = coll_flat_reduce(r, call);
    if (code == MSG_SUCCESS && c->local == 0)
        code = is_long(c, COLL_ALLREDUCE, c->n_nodes, call->len) ? coll_allreduce_ring(&hosts, call)
                                                                 : coll_allreduce_doubling(&hosts, call);
    return code || c->n_locals == 1 ? code : coll_flat_bcast(r, call);
}

/* ---------------------------------------------------------------- the calls */

int coll_bcast(coll *c, int algorithm, void *buf, size_t len, int root)
{
    struct coll_call call = {.out = buf, .len = len, .root = root};
    int code;
    const struct algorithm *a = enter(c, COLL_BCAST, algorithm, &call, 0, &code);
    return a ? begin(c, a, &call) : code;
}

/* The operand goes to the place of the result. Algorithms through shared memory read it where it is. */
static void place_operand(const struct algorithm *a, const struct coll_call *call)
{
    int in_place = a && (a->means == COLL_BY_MEMORY || a->means == COLL_BY_BOTH);
    if (!in_place && call->in != call->out && call->len)
        memcpy(call->out, call->in, call->len);
}

int coll_reduce(coll *c, int algorithm, const void *in, void *out, size_t count, coll_type type, coll_op op, int root)
{
    struct coll_call call = {in ? in : out, out, count * coll_type_size(type), count, root, type, op};
    void *own = NULL;
    int code;
    if (!coll_combines(type, op))
        return MSG_ERR_ARG;
    const struct algorithm *a = enter(c, COLL_REDUCE, algorithm, &call, kind_of(&call), &code);
    if (code != MSG_SUCCESS)
        return code;
    /* The partial result; the root uses `out` for it. Through the memory of one host only the root needs one.
     * One byte more, because malloc(0) may return NULL. */
    if (a && c->rank != root && a->means != COLL_BY_MEMORY && (call.out = own = malloc(call.len + 1)) == NULL)
        return coll_fail(c, MSG_ERR_NO_MEMORY);
    place_operand(a, &call);
    code = a ? begin(c, a, &call) : MSG_SUCCESS;
    free(own);
    return code;
}

int coll_allreduce(coll *c, int algorithm, const void *in, void *out, size_t count, coll_type type, coll_op op)
{
    struct coll_call call = {in ? in : out, out, count * coll_type_size(type), count, 0, type, op};
    int code;
    if (!coll_combines(type, op))
        return MSG_ERR_ARG;
    const struct algorithm *a = enter(c, COLL_ALLREDUCE, algorithm, &call, kind_of(&call), &code);
    if (code == MSG_SUCCESS)
        place_operand(a, &call);
    return a ? begin(c, a, &call) : code;
}

int coll_allgather(coll *c, int algorithm, const void *in, void *out, size_t len)
{
    struct coll_call call = {.out = out, .len = len};
    int code;
    const struct algorithm *a = enter(c, COLL_ALLGATHER, algorithm, &call, 0, &code);
    if (code == MSG_SUCCESS && in && len)
        /* memmove: `in` may be this rank's place in `out` already. */
        memmove((char *)out + (size_t)c->rank * len, in, len);
    return a ? begin(c, a, &call) : code;
}

int coll_alltoall(coll *c, int algorithm, const void *in, void *out, size_t len)
{
    struct coll_call call = {.in = in ? in : out, .out = out, .len = len};
    size_t whole = (size_t)c->n * len;
    void *copy = NULL;
    int code;
    const struct algorithm *a = enter(c, COLL_ALLTOALL, algorithm, &call, 0, &code);
    if (a == NULL) {
        if (code == MSG_SUCCESS && in && len)
            memcpy(out, in, whole);
        return code;
    }
    /* Pairwise: parts that are still to be sent must not be overwritten. The other algorithms copy all outgoing parts
     * before the first arrives: into their scratch memory, or the areas. */
    if (in == NULL && a->means != COLL_BY_MEMORY && a->is_long) {
        if ((copy = malloc(whole + 1)) == NULL)
            return coll_fail(c, MSG_ERR_NO_MEMORY);
        call.in = memcpy(copy, out, whole);
    }
    code = begin(c, a, &call);
    free(copy);
    return code;
}
