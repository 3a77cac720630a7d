/*
 * Collectives as exchanges between ranks: each algorithm once, for any transport (carry.c). They are the standard ones:
 * R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH", Int. J. High
 * Perform. Comput. Appl. 19 (2005) 49; scatter and ring from M. Barnett et al., "Interprocessor collective
 * communication library (InterCom)", SHPCC 1994. Bruck's algorithms are from J. Bruck et al., IEEE Trans. Parallel
 * Distrib. Syst. 8 (1997) 1143.
 *
 *    algorithm      rounds              data that a rank sends, of n ranks and len bytes
 *    binomial       log n               log n * len, the root
 *    scatter-ring   log n + n - 1       2 len
 *    doubling       log n (+ 2)         log n * len
 *    ring           n - 1, or twice     2 len (allreduce), (n - 1) len (allgather)
 *    Bruck          log n               (n - 1) len (allgather), log n * n/2 len (alltoall)
 *    pairwise       n - 1               (n - 1) len
 *
 * A tree for 8 members, and the parts that a rank sends round a ring of 4 in the rounds k = 0, 1, 2. A part has the
 * number of the member that it began with:
 *
 *    0 -> 4 -> 6 -> 7          member 0:  part 0, 3, 2        each forwards to the right the part that came from the
 *    |    '--> 5               member 1:  part 1, 0, 3        left in the previous round; after n - 1 rounds all
 *    |--> 2 -> 3               member 2:  part 2, 1, 0        members have seen all parts
 *    '--> 1                    member 3:  part 3, 2, 1
 *
 * Where there is a root, members are renumbered so that it is 0: me = (member - root) mod n.
 *
 * Order of combining: results must not depend on timing, nor differ from rank to rank. Trees and doubling join
 * neighbouring blocks of members, the lower block's operand on the left. A ring begins each part at another member, so
 * each part has another order, but the same one in each run.
 *
 * Members of a ring are numbered as in struct coll_ring. Each function returns a msg_error; after an error the group is
 * broken and the contents of the buffers are undefined. The buffers of a plan do not exist: data is touched by
 * exchange, combine and copy only.
 */
#include <stdlib.h>
#include <string.h>

#include "coll/inside.h"

/* The building block of all algorithms: send to one member and receive from another at the same time. Translates
 * members to ranks. */
static int swap(const struct coll_ring *r, const void *out, size_t out_len, int to, void *in, size_t in_len, int from)
{
    return r->exchange(r->c, out, out_len, r->ranks && to >= 0 ? r->ranks[to] : to, in, in_len,
                       r->ranks && from >= 0 ? r->ranks[from] : from);
}

static int send_to(const struct coll_ring *r, const void *out, size_t len, int to)
{
    return swap(r, out, len, to, NULL, 0, MSG_PROC_NULL);
}

static int recv_from(const struct coll_ring *r, void *in, size_t len, int from)
{
    return swap(r, NULL, 0, MSG_PROC_NULL, in, len, from);
}

/* to = low op high, `count` elements of the call's type. */
static void combine(const struct coll_ring *r, const struct coll_call *call, size_t count, const void *low,
                    const void *high, void *to)
{
    if (vk_unlikely(r->plan != NULL))
        coll_plan_local(r->plan, COLL_STEP_COMBINE, low, high, to, count);
    else
        coll_combine(call->type, call->op, count, low, high, to);
}

static void copy(const struct coll_ring *r, void *to, const void *from, size_t len)
{
    if (vk_unlikely(r->plan != NULL))
        coll_plan_local(r->plan, COLL_STEP_COPY, from, NULL, to, len);
    else
        memcpy(to, from, len);
}

/* The offset in bytes of part i of n, for `units` units of `unit` bytes. The remainder goes to the first parts, one
 * unit each. Part n begins at the end, so lengths are differences. */
static size_t cut(size_t units, int n, int i, size_t unit)
{
    size_t each = units / (unsigned)n, rest = units % (unsigned)n, index = (unsigned)i;
    return (index * each + (index < rest ? index : rest)) * unit;
}

/* ---------------------------------------------------------------- broadcast */

int coll_bcast_binomial(const struct coll_ring *r, const struct coll_call *call)
{
    /* mask: the lowest bit set in me. My parent is me without it; my children are me with one lower bit set. */
    int n = r->n, me = (r->me - call->root + n) % n, mask = 1, code = MSG_SUCCESS;
    for (; mask < n && !(me & mask); mask *= 2) {}
    if (me)
        code = recv_from(r, call->out, call->len, (r->me - mask + n) % n);
    /* The child with the largest subtree first. */
    for (mask /= 2; mask && code == MSG_SUCCESS; mask /= 2)
        if (me + mask < n)
            code = send_to(r, call->out, call->len, (r->me + mask) % n);
    return code;
}

/* The start of part a, and the number of bytes in parts a to b - 1. */
#define PART(a) ((char *)call->out + cut(call->len, n, (a), 1))
#define SPAN(a, b) (cut(call->len, n, (b), 1) - cut(call->len, n, (a), 1))

static int min(int a, int b)
{
    return a < b ? a : b;
}

/* Each child gets the parts of its whole subtree, members me + mask to me + 2 mask - 1. Parts are numbered from the
 * root on. Afterwards each member has its own part, and some more that it passed on. */
int coll_scatter_binomial(const struct coll_ring *r, const struct coll_call *call)
{
    int n = r->n, me = (r->me - call->root + n) % n, mask = 1, code = MSG_SUCCESS;
    for (; mask < n && !(me & mask); mask *= 2) {}
    if (me) /* my part and those that I pass on */
        code = recv_from(r, PART(me), SPAN(me, min(me + mask, n)), (r->me - mask + n) % n);
    for (mask /= 2; mask && code == MSG_SUCCESS; mask /= 2)
        if (me + mask < n)
            code = send_to(r, PART(me + mask), SPAN(me + mask, min(me + 2 * mask, n)), (r->me + mask) % n);
    return code;
}

/* A scatter, then a ring by which all members get all parts. Members that already have a part get it again, which is
 * simpler than tracking the parts that they have. The root receives nothing, because it has all parts. */
int coll_bcast_scatter_ring(const struct coll_ring *r, const struct coll_call *call)
{
    int n = r->n, me = (r->me - call->root + n) % n, code = coll_scatter_binomial(r, call);
    int right = me == n - 1 ? MSG_PROC_NULL : (r->me + 1) % n, left = me == 0 ? MSG_PROC_NULL : (r->me - 1 + n) % n;
    for (int k = 0; k < n - 1 && code == MSG_SUCCESS; k++) {
        int out = (me - k + n) % n, in = (me - k - 1 + n) % n;
        code = swap(r, PART(out), SPAN(out, out + 1), right, PART(in), SPAN(in, in + 1), left);
    }
    return code;
}

#undef PART
#undef SPAN

/* ---------------------------------------------------------------- reductions */

/* The broadcast's tree, upwards: a member sends its partial result to its parent at its lowest set bit, and is
 * finished. In each step a member joins its block [me, me + mask) with the block behind it, which is the right operand.
 * With a root other than 0 blocks wrap round the end: the order then begins at the root. */
int coll_reduce_binomial(const struct coll_ring *r, const struct coll_call *call)
{
    int n = r->n, me = (r->me - call->root + n) % n, code = MSG_SUCCESS;
    size_t len = call->len;
    void *have = call->out, *other = coll_scratch(r->c, len);
    if (other == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    for (int mask = 1; mask < n && code == MSG_SUCCESS; mask *= 2) {
        if (me & mask)
            return send_to(r, have, len, (r->me - mask + n) % n);
        if (me + mask >= n)
            continue;
        code = recv_from(r, other, len, (r->me + mask) % n);
        if (code == MSG_SUCCESS)
            combine(r, call, call->count, have, other, have);
    }
    return code;
}

/* The first half of a ring: part i travels from member i round to member i - 1, and each member on the way combines it
 * with its own. Afterwards member m has the complete part m + 1 of the result. An incoming part is combined of the
 * members before this one, so it is the left operand. */
#define PART(i) ((char *)call->out + cut(call->count, n, (i), size))
#define SPAN(i) (cut(call->count, n, (i) + 1, size) - cut(call->count, n, (i), size))

static int reduce_scatter_ring(const struct coll_ring *r, const struct coll_call *call)
{
    int n = r->n, right = (r->me + 1) % n, left = (r->me - 1 + n) % n, code = MSG_SUCCESS;
    size_t size = coll_type_size(call->type);
    void *other = coll_scratch(r->c, (call->count / (unsigned)n + 1) * size);
    if (other == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    for (int k = 0; k < n - 1 && code == MSG_SUCCESS; k++) {
        int out = (r->me - k + n) % n, in = (r->me - k - 1 + n) % n;
        code = swap(r, PART(out), SPAN(out), right, other, SPAN(in), left);
        if (code == MSG_SUCCESS)
            combine(r, call, SPAN(in) / size, other, PART(in), PART(in));
    }
    return code;
}

/* The second half: the complete part of each member goes round once more. */
int coll_allreduce_ring(const struct coll_ring *r, const struct coll_call *call)
{
    int n = r->n, right = (r->me + 1) % n, left = (r->me - 1 + n) % n;
    size_t size = coll_type_size(call->type);
    int code = reduce_scatter_ring(r, call);
    for (int k = 0; k < n - 1 && code == MSG_SUCCESS; k++) {
        int out = (r->me + 1 - k + n) % n, in = (r->me - k + n) % n;
        code = swap(r, PART(out), SPAN(out), right, PART(in), SPAN(in), left);
    }
    return code;
}

/* Instead of the second half all members send their part to the root. */
int coll_reduce_ring(const struct coll_ring *r, const struct coll_call *call)
{
    int n = r->n, root = call->root, own_part = (r->me + 1) % n;
    size_t size = coll_type_size(call->type);
    int code = reduce_scatter_ring(r, call);
    if (code == MSG_SUCCESS && r->me != root)
        return send_to(r, PART(own_part), SPAN(own_part), root);
    for (int i = 1; i < n && code == MSG_SUCCESS; i++) {
        int from = (root + i) % n, part = (from + 1) % n;
        code = recv_from(r, PART(part), SPAN(part), from);
    }
    return code;
}

#undef PART
#undef SPAN

/* Recursive doubling among a power of two of members, `place` 0 to power - 1. The rest, n - power members, first give
 * their operands to a neighbour and get the result at the end. They are the even ones of the first 2 * rest members,
 * and their neighbours act for both. So places are in the order of members. After each step both partners hold the same
 * bits, the lower place's operand on the left. With 6 members:
 *
 *      member     0 -> 1   2 -> 3   4   5       first: the even ones give
 *      place           0        1   2   3       then: 0 with 1, 2 with 3; 0 with 2, 1 with 3
 *      member     0 <- 1   2 <- 3               last: they get the result */
int coll_allreduce_doubling(const struct coll_ring *r, const struct coll_call *call)
{
    int n = r->n, power = 1, code = MSG_SUCCESS, me = r->me;
    size_t len = call->len;
    void *have = call->out, *other = coll_scratch(r->c, len);
    if (other == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    while (2 * power <= n)
        power *= 2;
    int rest = n - power, paired = me < 2 * rest;
    if (paired && me % 2 == 0) {
        code = send_to(r, have, len, me + 1);
        return code ? code : recv_from(r, have, len, me + 1);
    }
    if (paired) {
        if ((code = recv_from(r, other, len, me - 1)) != MSG_SUCCESS)
            return code;
        combine(r, call, call->count, other, have, have);
    }
    /* The odd ones among the first 2 rest members have places 0 to rest - 1, all members behind them the following
     * places. */
    int place = paired ? me / 2 : me - rest;
    for (int mask = 1; mask < power && code == MSG_SUCCESS; mask *= 2) {
        int partner = place ^ mask, member = partner < rest ? 2 * partner + 1 : partner + rest;
        code = swap(r, have, len, member, other, len, member);
        if (code == MSG_SUCCESS)
            combine(r, call, call->count, place < partner ? have : other, place < partner ? other : have, have);
    }
    if (paired && code == MSG_SUCCESS)
        code = send_to(r, have, len, me - 1);
    return code;
}

/* ---------------------------------------------------------------- allgather, alltoall */

/* Each part is forwarded from where it belongs, so no copy is made. This rank's part is there already
 * (coll_allgather). */
int coll_allgather_ring(const struct coll_ring *r, const struct coll_call *call)
{
    char *all = call->out;
    size_t len = call->len;
    int n = r->n, right = (r->me + 1) % n, left = (r->me - 1 + n) % n, code = MSG_SUCCESS;
    for (int k = 0; k < n - 1 && code == MSG_SUCCESS; k++) {
        int out = (r->me - k + n) % n, in = (r->me - k - 1 + n) % n;
        code = swap(r, all + (size_t)out * len, len, right, all + (size_t)in * len, len, left);
    }
    return code;
}

/* In each round a member doubles the parts that it has, always those from its own on: have = me, me + 1, ... Each
 * member sends its parts to the left and gets as many from the right, without gaps. At the end the parts are rotated
 * into place. Member 1 of 5:
 *
 *      have:  1            | 1 2          | 1 2 3 4      | 1 2 3 4 0    the last round gets only what is missing */
int coll_allgather_bruck(const struct coll_ring *r, const struct coll_call *call)
{
    int n = r->n, code = MSG_SUCCESS;
    size_t len = call->len;
    char *all = call->out, *have = coll_scratch(r->c, (size_t)n * len + 1);
    if (have == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    copy(r, have, all + (size_t)r->me * len, len);
    for (int got = 1; got < n && code == MSG_SUCCESS; got *= 2) {
        size_t more = (size_t)min(got, n - got) * len;
        code = swap(r, have, more, (r->me - got + n) % n, have + (size_t)got * len, more, (r->me + got) % n);
    }
    size_t first = (size_t)(n - r->me) * len; /* have: parts me to n - 1, then 0 to me - 1 */
    copy(r, all + (size_t)r->me * len, have, first);
    copy(r, all, have + first, (size_t)r->me * len);
    return code;
}

/* In round d each member sends to the one d to the right and receives from the one d to the left. No member receives
 * from two at a time. */
int coll_alltoall_pairwise(const struct coll_ring *r, const struct coll_call *call)
{
    const char *out = call->in;
    char *in = call->out;
    size_t len = call->len;
    int n = r->n, code = MSG_SUCCESS;
    copy(r, in + (size_t)r->me * len, out + (size_t)r->me * len, len);
    for (int d = 1; d < n && code == MSG_SUCCESS; d++) {
        int to = (r->me + d) % n, from = (r->me - d + n) % n;
        code = swap(r, out + (size_t)to * len, len, to, in + (size_t)from * len, len, from);
    }
    return code;
}

/* A part for the member d further on moves 2^k in round k if bit k of d is set. Each part thus moves as often as d has
 * bits, at most log2 n times. Half of all parts move in a round, as one message. have[d] always holds the part that has
 * to go d in total, less the distance it has gone already. In the end it is the part from the member d before. */
int coll_alltoall_bruck(const struct coll_ring *r, const struct coll_call *call)
{
    const char *out = call->in;
    char *in = call->out;
    int n = r->n, code = MSG_SUCCESS;
    size_t len = call->len, whole = (size_t)n * len, half = ((size_t)n / 2 + 1) * len;
    char *have = coll_scratch(r->c, whole + 2 * half + 1), *leaving = have + whole, *coming = leaving + half;
    if (have == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    /* Rotated, so that the position of a part is the distance that it has to go. */
    for (int d = 0; d < n; d++)
        copy(r, have + (size_t)d * len, out + (size_t)((r->me + d) % n) * len, len);
    for (int mask = 1; mask < n && code == MSG_SUCCESS; mask *= 2) {
        size_t moving = 0;
        for (int d = mask; d < n; d++)
            if (d & mask) {
                copy(r, leaving + moving, have + (size_t)d * len, len);
                moving += len;
            }
        code = swap(r, leaving, moving, (r->me + mask) % n, coming, moving, (r->me - mask + n) % n);
        moving = 0;
        for (int d = mask; d < n && code == MSG_SUCCESS; d++)
            if (d & mask) {
                copy(r, have + (size_t)d * len, coming + moving, len);
                moving += len;
            }
    }
    for (int d = 0; d < n && code == MSG_SUCCESS; d++)
        copy(r, in + (size_t)((r->me - d + n) % n) * len, have + (size_t)d * len, len);
    return code;
}
