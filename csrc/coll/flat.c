/*
 * Collectives within one host, through memory that its ranks share: what 5.2 of the paper
 * does for the barrier, for data.
 *
 * Each rank has two areas of its own. A collective is a number of *steps*, the same on all
 * ranks, and each moves at most what fits into an area:
 *
 *     a rank that gives    waits until nobody reads what it gave two steps ago, copies, and then says "step s is there"
 *     a rank that takes    waits for that, reads where it lies, and at the end of the step says "I am done with step s"
 *
 *     writer of an area                                         readers of it
 *     all done with s - 2? (acquire done)          <----------  done = s - 2  (release, after the reads)
 *     data, what
 *     step = s (release: after data and what)      ---------->  step >= s? (acquire)  compare what, read data
 *                                                               done = s
 *
 * Even and odd steps have different areas, so that a rank can fill one while others still
 * read the other: long data flows.
 *
 * Invariant: an area's data and `what` are written by its rank only, and only when all ranks of the node are
 * done with the step that it was last used for. Steps are numbered from 1 on over the group's life, on every
 * rank alike: a rank that has nothing to give in a step counts it all the same, and says that it is done.
 *
 * Where everybody takes from everybody, that they are done two steps back follows from what they gave one step
 * back (each gives in s only after it was done with s - 1), and nobody looks.
 *
 * A rank needs to run twice in a collective however many there are, where a tree has it run
 * once for each of its neighbours: with more ranks than cores this counts more than the
 * second copy. All functions return a msg_error.
 */
#include <string.h>

#include "inside.h"

static inline struct coll_area *area_of(const coll *c, int local, uint64_t step)
{
    return &c->areas[2 * (size_t)local + (step & 1)];
}

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* Waits until all ranks are done with a step. all_done remembers the latest that is known, so
 * most times there is nothing to look at. */
static int all_done_with(coll *c, uint64_t step)
{
    int code;
    if (c->all_done >= step)
        return MSG_SUCCESS;
    for (int i = 0; i < c->n_locals; i++) {
        struct coll_line *line = &c->shared->lines[i];
        struct coll_patience p = {.source = c->locals[i], .word = &line->done, .sleepers = &line->done_sleepers};
        while (i != c->local && (p.seen = vk_load_acquire(&line->done)) < step) /* it has read before it says so */
            if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
                return code;
    }
    c->all_done = step;
    return MSG_SUCCESS;
}

/* My area of this step, free to be filled. */
static int prepare(coll *c, uint64_t step, uint8_t **data)
{
    int code = step > 2 ? all_done_with(c, step - 2) : MSG_SUCCESS;
    *data = area_of(c, c->local, step)->data;
    return code;
}

/* `what` goes with the data, so that a taker finds out if this rank does something else. */
static void publish(coll *c, uint64_t step, size_t len)
{
    struct coll_area *a = area_of(c, c->local, step);
    a->what = coll_what(c, len);
    coll_tell(c, &a->step, &a->step_sleepers, step); /* all of it is there before its number */
}

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

/* What a rank gave in this step: *data points into its area, and is good until done(step). */
static int take(coll *c, uint64_t step, int local, size_t len, const uint8_t **data)
{
    struct coll_area *a = area_of(c, local, step);
    struct coll_patience p = {.source = c->locals[local], .word = &a->step, .sleepers = &a->step_sleepers};
    int code;
    /* Acquire, with publish's release: `what` and the data are there. */
    while ((p.seen = vk_load_acquire(&a->step)) < step)
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    if (a->what != coll_what(c, len))
        return coll_fail(c, MSG_ERR_COLLECTIVE);
    *data = a->data;
    return MSG_SUCCESS;
}

static void done(coll *c, uint64_t step)
{
    struct coll_line *mine = &c->shared->lines[c->local];
    coll_tell(c, &mine->done, &mine->done_sleepers, step); /* what I read, I read before */
}

/* After a step in which all have taken from all. */
static void all_took(coll *c, uint64_t step)
{
    c->all_done = step - 1; /* they gave in this one after they were done with the one before */
    done(c, step);
}

/* ---------------------------------------------------------------- from one, to one */

int coll_flat_bcast(coll *c, void *buf, size_t len, int root)
{
    /* At least one step, also for 0 bytes: everybody is to count alike, and to notice a mismatch. */
    size_t at = 0;
    do {
        size_t now = smaller(len - at, COLL_AREA_DATA);
        uint64_t step = ++c->n_steps;
        const uint8_t *data;
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

/* to = the operands of all ranks of this node combined in their order, as given in this step, `count` elements
 * from byte `at` on. The first combination reads both operands where they lie, so nothing is copied beforehand. */
static int combine_all(coll *c, uint64_t step, size_t given, size_t at, size_t count, const struct coll_reduction *what,
                       void *to)
{
    const uint8_t *low, *high;
    int code = take(c, step, 0, given, &low);
    for (int i = 1; i < c->n_locals && code == MSG_SUCCESS; i++) {
        code = take(c, step, i, given, &high);
        if (code == MSG_SUCCESS)
            coll_combine(what->type, what->op, count, i == 1 ? low + at : to, high + at, to);
    }
    return code;
}

/* Elements of a reduction that one step can move. */
static size_t room_for(const struct coll_reduction *what)
{
    return COLL_AREA_DATA / coll_type_size(what->type);
}

/* Alone on its host: the operand is the result. */
static int alone(const coll *c, const void *in, void *out, size_t len)
{
    if (c->n_locals > 1)
        return 0;
    if (in != out && len)
        memcpy(out, in, len);
    return 1;
}

/* Also the root gives, into an area that only it reads: its operand may lie where the result is to go. */
int coll_flat_reduce(coll *c, const void *in, void *out, const struct coll_reduction *what, int root)
{
    size_t size = coll_type_size(what->type), at = 0;
    if (alone(c, in, out, what->count * size))
        return MSG_SUCCESS;
    do {
        size_t now = smaller(what->count - at, room_for(what));
        uint64_t step = ++c->n_steps;
        int code = give(c, step, (const char *)in + at * size, now * size);
        if (code == MSG_SUCCESS && c->local == root)
            code = combine_all(c, step, now * size, 0, now, what, (char *)out + at * size);
        if (code != MSG_SUCCESS)
            return code;
        done(c, step);
        at += now;
    } while (at < what->count);
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- among all */

/* From so many bytes on each rank combines a part of its own and gives that to the others: a step more, an n-th
 * of the work. Below, and with two ranks, everybody combines all for itself: cheaper than to wait once more. */
#define IN_PARTS 2048

/* Step `given` has the operands. My part of the result is combined straight into my area of the next step,
 * which the operands do not occupy; then everybody copies all parts out. */
static int reduce_in_parts(coll *c, uint64_t given, size_t count, const struct coll_reduction *what, char *to)
{
    size_t size = coll_type_size(what->type), n = (size_t)c->n_locals, me = (size_t)c->local;
    size_t first = count * me / n, mine = count * (me + 1) / n - first;
    uint64_t step = ++c->n_steps;
    const uint8_t *part;
    uint8_t *data;
    int code = prepare(c, step, &data);
    if (code == MSG_SUCCESS)
        code = combine_all(c, given, count * size, first * size, mine, what, data);
    if (code != MSG_SUCCESS)
        return code;
    done(c, given);
    publish(c, step, mine * size);
    for (size_t i = 0; i < n; i++) {
        size_t from = count * i / n, len = (count * (i + 1) / n - from) * size;
        if ((code = take(c, step, (int)i, len, &part)) != MSG_SUCCESS)
            return code;
        memcpy(to + from * size, part, len);
    }
    all_took(c, step);
    return MSG_SUCCESS;
}

int coll_flat_allreduce(coll *c, const void *in, void *out, const struct coll_reduction *what)
{
    size_t size = coll_type_size(what->type), at = 0;
    if (alone(c, in, out, what->count * size))
        return MSG_SUCCESS;
    do {
        size_t now = smaller(what->count - at, room_for(what));
        uint64_t step = ++c->n_steps;
        int code = give(c, step, (const char *)in + at * size, now * size);
        if (code == MSG_SUCCESS && now * size >= IN_PARTS && c->n_locals > 2)
            code = reduce_in_parts(c, step, now, what, (char *)out + at * size);
        else if (code == MSG_SUCCESS) {
            code = combine_all(c, step, now * size, 0, now, what, (char *)out + at * size);
            if (code == MSG_SUCCESS)
                all_took(c, step);
        }
        if (code != MSG_SUCCESS)
            return code;
        at += now;
    } while (at < what->count);
    return MSG_SUCCESS;
}

int coll_flat_allgather(coll *c, void *all, size_t len)
{
    size_t at = 0;
    do {
        size_t now = smaller(len - at, COLL_AREA_DATA);
        uint64_t step = ++c->n_steps;
        const uint8_t *data;
        int code = give(c, step, (char *)all + (size_t)c->local * len + at, now);
        for (int d = 1; d < c->n_locals && code == MSG_SUCCESS; d++) {
            int i = (c->local + d) % c->n_locals; /* not all from the same one at a time */
            code = take(c, step, i, now, &data);
            if (code == MSG_SUCCESS && now)
                memcpy((char *)all + (size_t)i * len + at, data, now);
        }
        if (code != MSG_SUCCESS)
            return code;
        all_took(c, step);
        at += now;
    } while (at < len);
    return MSG_SUCCESS;
}

/* An area holds this rank's parts for all, `now` bytes of each, in the order of ranks; each reads
 * the one that is its own from everybody's. `most` keeps parts aligned to 8 bytes. in == out:
 * what is sent has been copied before anything is received. */
int coll_flat_alltoall(coll *c, const void *out, void *in, size_t len)
{
    size_t at = 0, n = (size_t)c->n_locals, most = COLL_AREA_DATA / n & ~(size_t)7;
    do {
        size_t now = smaller(len - at, most), mine = (size_t)c->local * len + at;
        uint64_t step = ++c->n_steps;
        const uint8_t *data;
        uint8_t *area;
        int code = prepare(c, step, &area);
        if (code != MSG_SUCCESS)
            return code;
        for (size_t i = 0; i < n && now; i++)
            if (i != (size_t)c->local)
                memcpy(area + i * now, (const char *)out + i * len + at, now);
        publish(c, step, now);
        if (now && in != out)
            memcpy((char *)in + mine, (const char *)out + mine, now);
        for (int d = 1; d < c->n_locals && code == MSG_SUCCESS; d++) {
            int i = (c->local + d) % c->n_locals;
            code = take(c, step, i, now, &data);
            if (code == MSG_SUCCESS && now)
                memcpy((char *)in + (size_t)i * len + at, data + (size_t)c->local * now, now);
        }
        if (code != MSG_SUCCESS)
            return code;
        all_took(c, step);
        at += now;
    } while (at < len);
    return MSG_SUCCESS;
}
