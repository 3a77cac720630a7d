/*
 * Collectives as exchanges between ranks: each algorithm once, for whatever carries the data (carry.c). They are the textbooks':
 * R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH", Int. J. High Perform.
 * Comput. Appl. 19 (2005) 49; scatter and ring: M. Barnett et al., "Interprocessor collective communication library (InterCom)",
 * SHPCC 1994; Bruck's: J. Bruck et al., IEEE Trans. Parallel Distrib. Syst. 8 (1997) 1143.
 *
 *   algorithm      rounds              data that a rank sends, of n ranks and len bytes
 *   binomial       log n               log n * len, the root
 *   scatter-ring   log n + n - 1       2 len
 *   doubling       log n (+ 2)         log n * len
 *   ring           n - 1, or twice     2 len (allreduce), (n - 1) len (allgather)
 *   Bruck          log n               (n - 1) len (allgather), log n * n/2 len (alltoall)
 *   pairwise       n - 1               (n - 1) len
 *
 * Members of a ring are numbered as in struct coll_ring. Each function returns a msg_error.
 */
#include <stdlib.h>
#include <string.h>

#include "inside.h"

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

/* Where part i of n begins, of so many units of so many bytes: what cannot be divided goes to the first ones. */
static size_t cut(size_t units, int n, int i, size_t unit)
{
    size_t each = units / (unsigned)n, rest = units % (unsigned)n, index = (unsigned)i;
    return (index * each + (index < rest ? index : rest)) * unit;
}

/* ---------------------------------------------------------------- broadcast */

int coll_bcast_binomial(const struct coll_ring *r, void *buf, size_t len, int root)
{
    int n = r->n, me = (r->me - root + n) % n, mask = 1, code = MSG_SUCCESS;
    for (; mask < n && !(me & mask); mask *= 2) {}
    if (me)
        code = recv_from(r, buf, len, (r->me - mask + n) % n);
    for (mask /= 2; mask && code == MSG_SUCCESS; mask /= 2)
        if (me + mask < n)
            code = send_to(r, buf, len, (r->me + mask) % n);
    return code;
}

/* Bytes [first, last) are parts a to b of n. */
#define PART(a) ((char *)buf + cut(len, n, (a), 1))
#define SPAN(a, b) (cut(len, n, (b), 1) - cut(len, n, (a), 1))

static int min(int a, int b)
{
    return a < b ? a : b;
}

int coll_bcast_scatter_ring(const struct coll_ring *r, void *buf, size_t len, int root)
{
    int n = r->n, me = (r->me - root + n) % n, mask = 1, code = MSG_SUCCESS;
    for (; mask < n && !(me & mask); mask *= 2) {}
    if (me) /* the parts from mine on that I pass on */
        code = recv_from(r, PART(me), SPAN(me, min(me + mask, n)), (r->me - mask + n) % n);
    for (mask /= 2; mask && code == MSG_SUCCESS; mask /= 2)
        if (me + mask < n)
            code = send_to(r, PART(me + mask), SPAN(me + mask, min(me + 2 * mask, n)), (r->me + mask) % n);
    /* Round the ring; nobody sends to the root, who has it all. */
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

int coll_reduce_binomial(const struct coll_ring *r, void *have, const struct coll_reduction *what, int root)
{
    int n = r->n, me = (r->me - root + n) % n, code = MSG_SUCCESS;
    size_t len = what->count * coll_type_size(what->type);
    void *other = coll_scratch(r->c, len);
    if (other == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    for (int mask = 1; mask < n && code == MSG_SUCCESS; mask *= 2) {
        if (me & mask)
            return send_to(r, have, len, (r->me - mask + n) % n);
        if (me + mask >= n)
            continue;
        code = recv_from(r, other, len, (r->me + mask) % n);
        if (code == MSG_SUCCESS)
            coll_combine(what->type, what->op, what->count, have, other, have);
    }
    return code;
}

/* Part i travels from member i + 1 round to member i, combined on the way: afterwards each member has one part of the result, its own
 * shifted by one. */
#define PART(i) ((char *)have + cut(what->count, n, (i), size))
#define SPAN(i) (cut(what->count, n, (i) + 1, size) - cut(what->count, n, (i), size))

static int reduce_scatter_ring(const struct coll_ring *r, void *have, const struct coll_reduction *what)
{
    int n = r->n, right = (r->me + 1) % n, left = (r->me - 1 + n) % n, code = MSG_SUCCESS;
    size_t size = coll_type_size(what->type);
    void *other = coll_scratch(r->c, (what->count / (unsigned)n + 1) * size);
    if (other == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    for (int k = 0; k < n - 1 && code == MSG_SUCCESS; k++) {
        int out = (r->me - k + n) % n, in = (r->me - k - 1 + n) % n;
        code = swap(r, PART(out), SPAN(out), right, other, SPAN(in), left);
        if (code == MSG_SUCCESS)
            coll_combine(what->type, what->op, SPAN(in) / size, other, PART(in), PART(in));
    }
    return code;
}

int coll_allreduce_ring(const struct coll_ring *r, void *have, const struct coll_reduction *what)
{
    int n = r->n, right = (r->me + 1) % n, left = (r->me - 1 + n) % n;
    size_t size = coll_type_size(what->type);
    int code = reduce_scatter_ring(r, have, what);
    for (int k = 0; k < n - 1 && code == MSG_SUCCESS; k++) {
        int out = (r->me + 1 - k + n) % n, in = (r->me - k + n) % n;
        code = swap(r, PART(out), SPAN(out), right, PART(in), SPAN(in), left);
    }
    return code;
}

int coll_reduce_ring(const struct coll_ring *r, void *have, const struct coll_reduction *what, int root)
{
    int n = r->n, mine = (r->me + 1) % n;
    size_t size = coll_type_size(what->type);
    int code = reduce_scatter_ring(r, have, what);
    if (code == MSG_SUCCESS && r->me != root)
        return send_to(r, PART(mine), SPAN(mine), root);
    for (int i = 1; i < n && code == MSG_SUCCESS; i++) {
        int from = (root + i) % n, part = (from + 1) % n;
        code = recv_from(r, PART(part), SPAN(part), from);
    }
    return code;
}

#undef PART
#undef SPAN

/* What exceeds a power of two pairs up with its neighbour first, who then acts for both; so the order of ranks stays. */
int coll_allreduce_doubling(const struct coll_ring *r, void *have, const struct coll_reduction *what)
{
    int n = r->n, power = 1, code = MSG_SUCCESS, me = r->me;
    size_t len = what->count * coll_type_size(what->type);
    void *other = coll_scratch(r->c, len);
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
        coll_combine(what->type, what->op, what->count, other, have, have);
    }
    int place = paired ? me / 2 : me - rest;
    for (int mask = 1; mask < power && code == MSG_SUCCESS; mask *= 2) {
        int partner = place ^ mask, member = partner < rest ? 2 * partner + 1 : partner + rest;
        code = swap(r, have, len, member, other, len, member);
        if (code == MSG_SUCCESS)
            coll_combine(what->type, what->op, what->count, place < partner ? have : other,
                         place < partner ? other : have, have);
    }
    if (paired && code == MSG_SUCCESS)
        code = send_to(r, have, len, me - 1);
    return code;
}

/* ---------------------------------------------------------------- allgather, alltoall */

int coll_allgather_ring(const struct coll_ring *r, void *all, size_t len)
{
    int n = r->n, right = (r->me + 1) % n, left = (r->me - 1 + n) % n, code = MSG_SUCCESS;
    for (int k = 0; k < n - 1 && code == MSG_SUCCESS; k++) {
        int out = (r->me - k + n) % n, in = (r->me - k - 1 + n) % n;
        code = swap(r, (char *)all + (size_t)out * len, len, right, (char *)all + (size_t)in * len, len, left);
    }
    return code;
}

/* In a copy that begins with one's own part, which is turned into place at the end. */
int coll_allgather_bruck(const struct coll_ring *r, void *all, size_t len)
{
    int n = r->n, code = MSG_SUCCESS;
    char *have = coll_scratch(r->c, (size_t)n * len + 1);
    if (have == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    memcpy(have, (char *)all + (size_t)r->me * len, len);
    for (int got = 1; got < n && code == MSG_SUCCESS; got *= 2) {
        size_t more = (size_t)min(got, n - got) * len;
        code = swap(r, have, more, (r->me - got + n) % n, have + (size_t)got * len, more, (r->me + got) % n);
    }
    size_t first = (size_t)(n - r->me) * len; /* have: parts me to n - 1, then 0 to me - 1 */
    memcpy((char *)all + (size_t)r->me * len, have, first);
    memcpy(all, have + first, (size_t)r->me * len);
    return code;
}

int coll_alltoall_pairwise(const struct coll_ring *r, const void *out, void *in, size_t len)
{
    int n = r->n, code = MSG_SUCCESS;
    memcpy((char *)in + (size_t)r->me * len, (const char *)out + (size_t)r->me * len, len);
    for (int d = 1; d < n && code == MSG_SUCCESS; d++) {
        int to = (r->me + d) % n, from = (r->me - d + n) % n;
        code = swap(r, (const char *)out + (size_t)to * len, len, to, (char *)in + (size_t)from * len, len, from);
    }
    return code;
}

/* What is to go d ranks on moves 2^k in round k if bit k of d is set. */
int coll_alltoall_bruck(const struct coll_ring *r, const void *out, void *in, size_t len)
{
    int n = r->n, code = MSG_SUCCESS;
    size_t whole = (size_t)n * len, half = ((size_t)n / 2 + 1) * len;
    char *have = coll_scratch(r->c, whole + 2 * half + 1), *leaving = have + whole, *coming = leaving + half;
    if (have == NULL)
        return coll_fail(r->c, MSG_ERR_NO_MEMORY);
    for (int d = 0; d < n; d++)
        memcpy(have + (size_t)d * len, (const char *)out + (size_t)((r->me + d) % n) * len, len);
    for (int mask = 1; mask < n && code == MSG_SUCCESS; mask *= 2) {
        size_t moving = 0;
        for (int d = mask; d < n; d++)
            if (d & mask) {
                memcpy(leaving + moving, have + (size_t)d * len, len);
                moving += len;
            }
        code = swap(r, leaving, moving, (r->me + mask) % n, coming, moving, (r->me - mask + n) % n);
        moving = 0;
        for (int d = mask; d < n && code == MSG_SUCCESS; d++)
            if (d & mask) {
                memcpy(have + (size_t)d * len, coming + moving, len);
                moving += len;
            }
    }
    for (int d = 0; d < n && code == MSG_SUCCESS; d++)
        memcpy((char *)in + (size_t)((r->me - d + n) % n) * len, have + (size_t)d * len, len);
    return code;
}
