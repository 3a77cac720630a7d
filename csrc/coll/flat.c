/*
 * Collectives within one host, through memory that its ranks share: the method of the barrier of Gupta et al., 5.2,
 * applied to data.
 *
 * Each rank has two areas of its own. A collective is a number of *steps*, the same on all ranks, and each moves at
 * most what fits into an area:
 *
 *     giving rank      waits until no rank reads its data of two steps ago, copies, then publishes step s
 *     receiving rank   waits for that, reads the data in place, and reports at the end that it is done with step s
 *
 *     writer of an area                                         readers of it
 *     all done with s - 2? (acquire done)          <----------  done = s - 2  (release, after the reads)
 *     data, what
 *     step = s (release: after data and what)      ---------->  step >= s? (acquire)  compare what, read data
 *                                                               done = s
 *
 * Even and odd steps have different areas, so that a rank can fill one while others still read the other: long data
 * flows.
 *
 * Invariant: an area's data and `what` are written by its rank only. Before, all ranks of the node are done with the
 * step that it was last used for. Steps are numbered from 1 on over the group's life, alike on every rank. A rank that
 * gives nothing in a step still counts it and reports that it is done.
 *
 * Where all ranks take from all others, no rank polls `done`. Each rank gives in step s only after it was done with s -
 * 1. Data given in the previous step therefore proves that its rank is done with the step before that.
 *
 * A rank must run twice in a collective, for any number of ranks. In a tree it must run once for each of its
 * neighbours. With more ranks than cores this matters more than the second copy. All functions return a msg_error.
 */
#include <string.h>

#include "coll/inside.h"

static inline struct coll_area *area_of(const coll *c, int local, uint64_t step)
{
    return &c->areas[2 * (size_t)local + (step & 1)];
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Wait until all ranks are done with a step. all_done caches the latest such step, so usually nothing is polled. A rank
 * finishes steps in order, so one that is done with a step is done with those before it. */
static int all_done_with(coll *c, uint64_t step)
{
    int code;
    if (c->all_done >= step)
        return MSG_SUCCESS;
    for (int i = 0; i < c->n_locals; i++) {
        struct coll_line *line = &c->shared->lines[i];
        struct coll_wait p = {
            .source = c->locals[i], .word = &line->done, .sleepers = &line->done_sleepers, .awaits = 1};
        while (i != c->local &&
               (p.seen = vk_load_acquire(&line->done)) < step) /* the rank has read the data before it reports */
            if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
                return code;
    }
    c->all_done = step;
    return MSG_SUCCESS;
}

/* This rank's area of the step, free to be filled. */
static int prepare(coll *c, uint64_t step, uint8_t **data)
{
    /* Steps 1 and 2 are the first uses of their areas. */
    int code = step > 2 ? all_done_with(c, step - 2) : MSG_SUCCESS;
    *data = area_of(c, c->local, step)->data;
    return code;
}

/* Publish this rank's area. `what` accompanies the data, so that a receiver detects a different collective. */
static void publish(coll *c, uint64_t step, size_t len)
{
    struct coll_area *a = area_of(c, c->local, step);
    /* A plain store: the release of `step` orders it with the data. */
    a->what = coll_what(c, len);
    coll_publish(c, &a->step, &a->step_sleepers, step); /* the data is complete before its number */
}

/* Copy data into this rank's area of the step and publish it: at most COLL_AREA_DATA bytes. `from` may change
 * afterwards. Waits only for readers of step - 2. */
static int give(coll *c, uint64_t step, const void *from, size_t len)
{
    uint8_t *data;
    int code = prepare(c, step, &data);
    if (code != MSG_SUCCESS)
        return code;
    if (len)
        memcpy(data, from, len);
    publish(c, step, len);
    return MSG_SUCCESS;
}

/* Wait for the data that a rank gave in this step: *data points into its area, and is valid until done(step). */
static int take(coll *c, uint64_t step, int local, size_t len, const uint8_t **data)
{
    struct coll_area *a = area_of(c, local, step);
    struct coll_wait p = {.source = c->locals[local], .word = &a->step, .sleepers = &a->step_sleepers, .awaits = 1};
    int code;
    /* Acquire, with publish's release: `what` and the data are there. */
    for (;;) {
        p.seen = vk_load_acquire(&a->step);
        if (vk_likely(p.seen >= step && a->what == coll_what(c, len)))
            break;
        p.behind = p.seen >= step;
        if (p.behind && !coll_is_behind(c, a->what))
            return coll_fail(c, MSG_ERR_COLLECTIVE);
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    }
    *data = a->data;
    return MSG_SUCCESS;
}

/* This rank reads no data of the step any more, so its givers may refill their areas two steps later. */
static void done(coll *c, uint64_t step)
{
    struct coll_line *own = &c->shared->lines[c->local];
    coll_publish(c, &own->done, &own->done_sleepers, step); /* all reads of this rank precede it */
}

/* Finish a step in which all ranks took from all others. */
static void all_took(coll *c, uint64_t step)
{
    c->all_done = step - 1; /* they gave in this step after they were done with the previous one */
    done(c, step);
}

/* ---------------------------------------------------------------- from one, to one */

/* All ranks of the node count each step, and all but the root copy. The root may be a step ahead of the slowest reader,
 * because steps alternate between two areas. */
int coll_flat_bcast(const struct coll_ring *r, const struct coll_call *call)
{
    coll *c = r->c;
    void *buf = call->out;
    size_t len = call->len;
    int root = call->root;
    /* At least one step, also for 0 bytes, so that all ranks count alike and detect a mismatch. */
    size_t at = 0;
    do {
        size_t now = smaller(len - at, COLL_AREA_DATA);
        uint64_t step = ++c->n_steps;
        const uint8_t *data = NULL;
        int code = c->local == root ? give(c, step, (char *)buf + at, now) : take(c, step, root, now, &data);
        if (code != MSG_SUCCESS)
            return code;
        if (c->local != root && now)
            memcpy((char *)buf + at, data, now);
        done(c, step);
        at += now;
    } while (at < len);
    return MSG_SUCCESS;
}

/* The operand of a rank in this step: the one that it gave, or, for this rank's, `own` if that is not NULL. */
static int operand(coll *c, uint64_t step, int local, size_t given, const void *own, const uint8_t **data)
{
    if (local != c->local || own == NULL)
        return take(c, step, local, given, data);
    *data = own;
    return MSG_SUCCESS;
}

/* to = the operands of all ranks of this node, combined in their order: `count` elements from byte `at` on of the
 * `given` bytes of this step. The first combination reads both operands in place, so nothing is copied beforehand. */
static int combine_all(coll *c, uint64_t step, size_t given, size_t at, size_t count, const struct coll_call *call,
                       const void *own, void *to)
{
    const uint8_t *low, *high = NULL;
    int code = operand(c, step, 0, given, own, &low);
    for (int i = 1; i < c->n_locals && code == MSG_SUCCESS; i++) {
        code = operand(c, step, i, given, own, &high);
        if (code == MSG_SUCCESS)
            coll_combine(call->type, call->op, count, i == 1 ? low + at : to, high + at, to);
    }
    return code;
}

/* Elements of a reduction that one step can move. */
static size_t room_for(const struct coll_call *call)
{
    return COLL_AREA_DATA / coll_type_size(call->type);
}

/* Alone on its host: the operand is the result. */
static int alone(const coll *c, const struct coll_call *call)
{
    if (c->n_locals > 1)
        return 0;
    if (call->in != call->out && call->len)
        memcpy(call->out, call->in, call->len);
    return 1;
}

/* The root gives, too, into an area that only it reads, because its operand may lie where the result is to go. */
int coll_flat_reduce(const struct coll_ring *r, const struct coll_call *call)
{
    coll *c = r->c;
    size_t size = coll_type_size(call->type), at = 0;
    if (alone(c, call))
        return MSG_SUCCESS;
    do {
        size_t now = smaller(call->count - at, room_for(call));
        uint64_t step = ++c->n_steps;
        int code = give(c, step, (const char *)call->in + at * size, now * size);
        if (code == MSG_SUCCESS && c->local == call->root)
            code = combine_all(c, step, now * size, 0, now, call, NULL, (char *)call->out + at * size);
        if (code != MSG_SUCCESS)
            return code;
        done(c, step);
        at += now;
    } while (at < call->count);
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- among all */

/* From this many bytes on each rank combines one part and gives the result to the others: one more step, an n-th of the
 * work. For shorter data each rank combines everything itself, which is cheaper than one more wait. That pays for
 * longer data with two ranks, where a part is half. */
#define IN_PARTS 2048
#define IN_PARTS_OF_TWO 16384

/* Both steps of one piece: `count` elements from `in`, the result to `to`, which may be the same memory.
 *
 *      first step     | part 0 | (part 1) | part 2 |      given by rank 1, which alone needs its own part 1
 *      second step    | part 1 of the result |            combined straight into the area, which the operands do not
 *                                                         occupy; then all ranks copy all parts out */
static int allreduce_in_parts(coll *c, const struct coll_call *call, size_t count, const char *in, char *to)
{
    size_t size = coll_type_size(call->type), n = (size_t)c->n_locals, me = (size_t)c->local;
    size_t first = count * me / n * size, end = count * (me + 1) / n * size, len = count * size;
    uint64_t step = ++c->n_steps;
    const uint8_t *part;
    uint8_t *data;
    int code = prepare(c, step, &data);
    if (code != MSG_SUCCESS)
        return code;
    memcpy(data, in, first);
    /* The gap between the two is never read: combine_all takes this rank's own part from `in`. */
    memcpy(data + end, in + end, len - end);
    publish(c, step, len);

    uint64_t given = step;
    step = ++c->n_steps;
    code = prepare(c, step, &data);
    if (code == MSG_SUCCESS)
        code = combine_all(c, given, len, first, (end - first) / size, call, in, data);
    if (code != MSG_SUCCESS)
        return code;
    /* Before the wait below: the others may refill their areas of this step while this rank waits for their parts. */
    done(c, given);
    publish(c, step, end - first);
    for (size_t i = 0; i < n; i++) {
        size_t from = count * i / n * size, part_len = count * (i + 1) / n * size - from;
        /* This rank's own part, too, is copied from its area, where it was combined. */
        if ((code = take(c, step, (int)i, part_len, &part)) != MSG_SUCCESS)
            return code;
        memcpy(to + from, part, part_len);
    }
    all_took(c, step);
    return MSG_SUCCESS;
}

/* In one step: each rank combines the whole piece. */
static int allreduce_whole(coll *c, const struct coll_call *call, size_t count, const char *in, char *to)
{
    size_t len = count * coll_type_size(call->type);
    uint64_t step = ++c->n_steps;
    int code = give(c, step, in, len);
    if (code == MSG_SUCCESS)
        code = combine_all(c, step, len, 0, count, call, NULL, to);
    if (code == MSG_SUCCESS)
        all_took(c, step);
    return code;
}

int coll_flat_allreduce(const struct coll_ring *r, const struct coll_call *call)
{
    coll *c = r->c;
    size_t size = coll_type_size(call->type), at = 0;
    if (alone(c, call))
        return MSG_SUCCESS;
    do {
        size_t now = smaller(call->count - at, room_for(call));
        const char *in = (const char *)call->in + at * size;
        char *out = (char *)call->out + at * size;
        int in_parts = now * size >= (c->n_locals == 2 ? IN_PARTS_OF_TWO : IN_PARTS);
        int code = in_parts ? allreduce_in_parts(c, call, now, in, out) : allreduce_whole(c, call, now, in, out);
        if (code != MSG_SUCCESS)
            return code;
        at += now;
    } while (at < call->count);
    return MSG_SUCCESS;
}

/* This rank's part is in its place in `out` already (coll_allgather), and is given from there. */
int coll_flat_allgather(const struct coll_ring *r, const struct coll_call *call)
{
    coll *c = r->c;
    char *all = call->out;
    size_t len = call->len, at = 0;
    do {
        size_t now = smaller(len - at, COLL_AREA_DATA);
        uint64_t step = ++c->n_steps;
        const uint8_t *data = NULL;
        int code = give(c, step, all + (size_t)c->local * len + at, now);
        for (int d = 1; d < c->n_locals && code == MSG_SUCCESS; d++) {
            int i = (c->local + d) % c->n_locals; /* the ranks do not all read the same area at a time */
            code = take(c, step, i, now, &data);
            if (code == MSG_SUCCESS && now)
                memcpy(all + (size_t)i * len + at, data, now);
        }
        if (code != MSG_SUCCESS)
            return code;
        all_took(c, step);
        at += now;
    } while (at < len);
    return MSG_SUCCESS;
}

/* An area holds this rank's parts for all ranks, `now` bytes each, in the order of ranks. Each rank reads its own part
 * from the areas of all others. `most` keeps parts aligned to 8 bytes. in == out is allowed: outgoing parts are copied
 * before any part is received. */
int coll_flat_alltoall(const struct coll_ring *r, const struct coll_call *call)
{
    coll *c = r->c;
    const char *out = call->in;
    char *in = call->out;
    size_t len = call->len, at = 0, n = (size_t)c->n_locals, most = COLL_AREA_DATA / n & ~(size_t)7;
    do {
        size_t now = smaller(len - at, most), own = (size_t)c->local * len + at;
        uint64_t step = ++c->n_steps;
        const uint8_t *data = NULL;
        uint8_t *area;
        int code = prepare(c, step, &area);
        if (code != MSG_SUCCESS)
            return code;
        for (size_t i = 0; i < n && now; i++)
            if (i != (size_t)c->local)
                memcpy(area + i * now, out + i * len + at, now);
        publish(c, step, now);
        if (now && in != out)
            memcpy(in + own, out + own, now);
        for (int d = 1; d < c->n_locals && code == MSG_SUCCESS; d++) {
            int i = (c->local + d) % c->n_locals;
            code = take(c, step, i, now, &data);
            if (code == MSG_SUCCESS && now)
                memcpy(in + (size_t)i * len + at, data + (size_t)c->local * now, now);
        }
        if (code != MSG_SUCCESS)
            return code;
        all_took(c, step);
        at += now;
    } while (at < len);
    return MSG_SUCCESS;
}
