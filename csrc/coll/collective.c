/*
 * The collectives as they are called: arguments, the choice of an algorithm, and the two that are made of
 * others, within hosts and among them ("overall", as 5.3 has it for the barrier).
 *
 *   overall    reduce, allreduce     flat reduce in each host -> one rank of each host -> flat broadcast in each host
 *              broadcast             the root stands for its host, the first rank for any other
 *
 *     allreduce on 2 hosts        0 1 2      3 4 5
 *     flat reduce to the first    0 <- 1,2   3 <- 4,5
 *     among those who stand       0 <------> 3            by RDMA
 *     flat broadcast              0 -> 1,2   3 -> 4,5
 *
 * Every call goes the same way: enter() checks, chooses and counts; then one of the algorithms of data.c
 * (all_of: whole group, by RDMA or messages) or flat.c. All ranks must choose the same, so a choice depends on
 * nothing but what all have: the arguments, which have to agree, and the group.
 *
 * Errors of arguments change nothing. Others break the group (wait.c).
 */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

/* ---------------------------------------------------------------- names */

static const char *const operations[COLL_N_OPERATIONS] = {
    [COLL_BARRIER] = "barrier",     [COLL_BCAST] = "bcast",         [COLL_REDUCE] = "reduce",
    [COLL_ALLREDUCE] = "allreduce", [COLL_ALLGATHER] = "allgather", [COLL_ALLTOALL] = "alltoall",
};

static const struct {
    int operation;
    const char *name, *text;
} names[] = {
#define COLL_X(operation, name, text) {COLL_##operation, name, text},
    COLL_ALGORITHMS(COLL_X)
#undef COLL_X
};
enum { N_NAMES = sizeof names / sizeof *names };

const char *coll_operation_name(int operation)
{
    return operation > COLL_NOTHING && operation < COLL_N_OPERATIONS ? operations[operation] : NULL;
}

/* Index into names, or -1. Algorithms of an operation stand together there, and their numbers
 * are their order, from 1 on. */
static int find(int operation, int algorithm)
{
    for (int i = 0, k = 0; i < N_NAMES; i++)
        if (names[i].operation == operation && ++k == algorithm)
            return i;
    return -1;
}

const char *coll_algorithm_name(int operation, int algorithm)
{
    int i = find(operation, algorithm);
    if (operation == COLL_BARRIER)
        return coll_barrier_name(algorithm);
    return algorithm == COLL_DEFAULT && coll_operation_name(operation) ? "default" : i < 0 ? NULL : names[i].name;
}

const char *coll_algorithm_text(int operation, int algorithm)
{
    int i = find(operation, algorithm);
    if (operation == COLL_BARRIER)
        return coll_barrier_text(algorithm);
    return algorithm == COLL_DEFAULT && coll_operation_name(operation)
               ? "chosen by length, number of ranks and where they are"
           : i < 0 ? NULL
                   : names[i].text;
}

int coll_algorithm_find(int operation, const char *name)
{
    for (int i = 0; coll_algorithm_name(operation, i); i++)
        if (strcmp(coll_algorithm_name(operation, i), name) == 0)
            return i;
    return -1;
}

/* ---------------------------------------------------------------- which algorithm */

/* Numbers within an operation, in the order of COLL_ALGORITHMS. */
enum { FLAT = 1, RDMA_SHORT, MESSAGE_SHORT, RDMA_LONG, MESSAGE_LONG, OVERALL };

/* All algorithms of a number need the same, whatever the operation: hence one switch. MESSAGE needs nothing. */
int coll_algorithm_check(const coll *c, int operation, int algorithm)
{
    if (operation == COLL_BARRIER)
        return coll_barrier_check(c, (coll_algorithm)algorithm);
    if (coll_algorithm_name(operation, algorithm) == NULL)
        return MSG_ERR_ARG;
    int rdma = c->cells != NULL, able = 1;
    switch (algorithm) {
    case FLAT:
        able = c->n_nodes == 1 && c->shared;
        break;
    case RDMA_SHORT:
    case RDMA_LONG:
        able = rdma;
        break;
    case OVERALL:
        able = c->shared && (rdma || c->n_nodes == 1);
        break;
    default:
        break;
    }
    return able ? MSG_SUCCESS : MSG_ERR_NOT_SUPPORTED;
}

/* From so many bytes on an algorithm for long data is quicker, whatever carries it. It sends less, but in more
 * rounds, and with more ranks than cores each round costs a turn of the scheduler: then only much longer data is
 * worth it. */
static size_t long_from(const coll *c, int operation, int n)
{
    /* With two ranks there is nothing to be saved: a part each is as much as all to one. Allgather's len is
     * one rank's part, hence the division; alltoall's "long" is pairwise, which sends each part once, and
     * Bruck's pays for very short parts among many ranks only. */
    size_t patience = c->all_fit ? 1 : 64;
    switch (operation) {
    case COLL_BCAST:
        return n <= 2 ? SIZE_MAX : 131072 * patience;
    case COLL_REDUCE:
    case COLL_ALLREDUCE:
        return n <= 2 ? SIZE_MAX : 65536 * patience;
    case COLL_ALLGATHER:
        return 65536 * patience / (size_t)n;
    default:
        return n < 8 ? 0 : 256;
    }
}

/* Up to so many bytes of each rank go through the areas. Each step of COLL_AREA_DATA is copied twice and makes the ranks
 * wait for each other, but stays in the caches: that takes half to a quarter of the time of one copy from process to
 * process, by the kernel, page by page, and of as many rounds. Of many more steps each would cost a turn of the
 * scheduler where a rank shares its core with other work. */
#define FLAT_MOST ((size_t)4 << 20)

int coll_algorithm_default(const coll *c, int operation, size_t len)
{
    if (operation == COLL_BARRIER)
        return coll_barrier_default(c);
    int is_long = len >= long_from(c, operation, c->n);
    size_t through = operation == COLL_ALLTOALL ? len * (size_t)c->n : len;
    if (through <= FLAT_MOST && coll_algorithm_check(c, operation, FLAT) == MSG_SUCCESS)
        return FLAT;
    if (c->n_nodes > 1 && c->n_nodes < c->n && coll_algorithm_name(operation, OVERALL) &&
        coll_algorithm_check(c, operation, OVERALL) == MSG_SUCCESS)
        return OVERALL;
    if (c->cells)
        return is_long ? RDMA_LONG : RDMA_SHORT;
    return is_long ? MESSAGE_LONG : MESSAGE_SHORT;
}

static struct coll_ring all_of(coll *c, int algorithm)
{
    int rdma = algorithm == RDMA_SHORT || algorithm == RDMA_LONG;
    return (struct coll_ring){
        .c = c, .exchange = rdma ? coll_exchange_rdma : coll_exchange_message, .n = c->n, .me = c->rank};
}

/* One rank of each node: `root` for its own, if there is one (-1: none), else the master. By
 * RDMA, for the nodes are different hosts. */
static struct coll_ring one_of_each(coll *c, int root)
{
    memcpy(c->stands, c->masters, (size_t)c->n_nodes * sizeof *c->stands);
    if (root >= 0)
        c->stands[c->node_of[root]] = root;
    return (struct coll_ring){
        .c = c, .exchange = coll_exchange_rdma, .n = c->n_nodes, .me = c->node, .ranks = c->stands};
}

/* The number among the ranks of this node of the one that stands for it. */
static int stand_here(const coll *c)
{
    int i = 0;
    while (c->locals[i] != c->stands[c->node])
        i++;
    return i;
}

/* What all calls begin with. *algorithm becomes the one to be used; 0: there is nothing to
 * do, the return value is the call's. Only a call that really begins is counted (coll_begin). */
static int enter(coll *c, int operation, int *algorithm, int root, size_t len)
{
    if (vk_unlikely(c->error)) {
        *algorithm = 0;
        return c->error;
    }
    int code = coll_algorithm_check(c, operation, *algorithm);
    if (code == MSG_SUCCESS && (unsigned)root >= (unsigned)c->n)
        code = MSG_ERR_RANK;
    if (code != MSG_SUCCESS || c->n == 1) {
        *algorithm = 0;
        return code;
    }
    if (*algorithm == COLL_DEFAULT)
        *algorithm = coll_algorithm_default(c, operation, len);
    coll_begin(c, operation, *algorithm, root, len);
    int rdma = *algorithm == RDMA_SHORT || *algorithm == RDMA_LONG || (*algorithm == OVERALL && c->n_nodes > 1);
    if (rdma && (code = coll_slots_need(c)) != MSG_SUCCESS)
        *algorithm = 0;
    return code;
}

/* ---------------------------------------------------------------- the calls */

static int bcast_overall(coll *c, void *buf, size_t len, int root)
{
    struct coll_ring hosts = one_of_each(c, root);
    int code = MSG_SUCCESS, here = stand_here(c);
    if (c->local == here)
        code = coll_bcast_binomial(&hosts, buf, len, c->node_of[root]);
    return code || c->n_locals == 1 ? code : coll_flat_bcast(c, buf, len, here);
}

int coll_bcast(coll *c, int algorithm, void *buf, size_t len, int root)
{
    int code = enter(c, COLL_BCAST, &algorithm, root, len);
    struct coll_ring all = all_of(c, algorithm);
    switch (algorithm) {
    case 0:
        return code;
    case FLAT:
        return coll_flat_bcast(c, buf, len, root);
    case RDMA_SHORT:
    case MESSAGE_SHORT:
        return coll_bcast_binomial(&all, buf, len, root);
    case OVERALL:
        return bcast_overall(c, buf, len, root);
    default:
        return coll_bcast_scatter_ring(&all, buf, len, root);
    }
}

static int reduce_overall(coll *c, const void *in, void *have, const struct coll_reduction *what, int root)
{
    struct coll_ring hosts = one_of_each(c, root);
    int here = stand_here(c), code = coll_flat_reduce(c, in, have, what, here);
    return code || c->local != here ? code : coll_reduce_binomial(&hosts, have, what, c->node_of[root]);
}

int coll_reduce(coll *c, int algorithm, const void *in, void *out, size_t count, coll_type type, coll_op op, int root)
{
    struct coll_reduction what = {type, op, count};
    size_t len = count * coll_type_size(type);
    if (!coll_combines(type, op))
        return MSG_ERR_ARG;
    int code = enter(c, COLL_REDUCE, &algorithm, root, len);
    struct coll_ring all = all_of(c, algorithm);
    void *have = out, *own = NULL;
    in = in ? in : out;
    /* Alone in the group, or an error: alone, the operand is the result. */
    if (algorithm == 0) {
        if (code == MSG_SUCCESS && in != out && len)
            memcpy(out, in, len);
        return code;
    }
    if (algorithm == FLAT)
        return coll_flat_reduce(c, in, out, &what, root);
    /* What is combined on the way; the root has `out` for it. */
    if (c->rank != root && (have = own = malloc(len + 1)) == NULL)
        return coll_fail(c, MSG_ERR_NO_MEMORY);
    if (algorithm != OVERALL && in != have && len)
        memcpy(have, in, len);
    if (algorithm == OVERALL)
        code = reduce_overall(c, in, have, &what, root);
    else if (algorithm == RDMA_SHORT || algorithm == MESSAGE_SHORT)
        code = coll_reduce_binomial(&all, have, &what, root);
    else
        code = coll_reduce_ring(&all, have, &what, root);
    free(own);
    return code;
}

static int allreduce_overall(coll *c, const void *in, void *out, const struct coll_reduction *what)
{
    struct coll_ring hosts = one_of_each(c, -1);
    size_t len = what->count * coll_type_size(what->type);
    int code = coll_flat_reduce(c, in, out, what, 0);
    /* Among few hosts another algorithm may be the quicker one than among all ranks: long_from is
     * asked for n_nodes. */
    if (code == MSG_SUCCESS && c->local == 0)
        code = len >= long_from(c, COLL_ALLREDUCE, c->n_nodes) ? coll_allreduce_ring(&hosts, out, what)
                                                               : coll_allreduce_doubling(&hosts, out, what);
    return code || c->n_locals == 1 ? code : coll_flat_bcast(c, out, len, 0);
}

int coll_allreduce(coll *c, int algorithm, const void *in, void *out, size_t count, coll_type type, coll_op op)
{
    struct coll_reduction what = {type, op, count};
    size_t len = count * coll_type_size(type);
    if (!coll_combines(type, op))
        return MSG_ERR_ARG;
    int code = enter(c, COLL_ALLREDUCE, &algorithm, 0, len);
    struct coll_ring all = all_of(c, algorithm);
    in = in ? in : out;
    if (code == MSG_SUCCESS && in != out && len && algorithm != FLAT && algorithm != OVERALL)
        memcpy(out, in, len);
    switch (algorithm) {
    case 0:
        return code;
    case FLAT:
        return coll_flat_allreduce(c, in, out, &what);
    case RDMA_SHORT:
    case MESSAGE_SHORT:
        return coll_allreduce_doubling(&all, out, &what);
    case OVERALL:
        return allreduce_overall(c, in, out, &what);
    default:
        return coll_allreduce_ring(&all, out, &what);
    }
}

int coll_allgather(coll *c, int algorithm, const void *in, void *out, size_t len)
{
    int code = enter(c, COLL_ALLGATHER, &algorithm, 0, len);
    struct coll_ring all = all_of(c, algorithm);
    if (code == MSG_SUCCESS && in && len)
        /* memmove: `in` may be this rank's place in `out` already. */
        memmove((char *)out + (size_t)c->rank * len, in, len);
    switch (algorithm) {
    case 0:
        return code;
    case FLAT:
        return coll_flat_allgather(c, out, len);
    case RDMA_SHORT:
    case MESSAGE_SHORT:
        return coll_allgather_bruck(&all, out, len);
    default:
        return coll_allgather_ring(&all, out, len);
    }
}

int coll_alltoall(coll *c, int algorithm, const void *in, void *out, size_t len)
{
    int code = enter(c, COLL_ALLTOALL, &algorithm, 0, len);
    struct coll_ring all = all_of(c, algorithm);
    size_t whole = (size_t)c->n * len;
    const void *from = in ? in : out;
    void *copy = NULL;
    switch (algorithm) {
    case 0:
        if (code == MSG_SUCCESS && in && len)
            memcpy(out, in, whole);
        return code;
    case FLAT:
        return coll_flat_alltoall(c, from, out, len);
    case RDMA_SHORT:
    case MESSAGE_SHORT:
        return coll_alltoall_bruck(&all, from, out, len);
    default:
        break;
    }
    if (in == NULL) { /* what is still to be sent must not be overwritten */
        if ((copy = malloc(whole + 1)) == NULL)
            return coll_fail(c, MSG_ERR_NO_MEMORY);
        from = memcpy(copy, out, whole);
    }
    code = coll_alltoall_pairwise(&all, from, out, len);
    free(copy);
    return code;
}
