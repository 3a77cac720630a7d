/*
 * test_collective.c - collectives with data on every channel: test_collective LINK [CASE]. Every algorithm, with many
 * numbers of ranks, lengths and roots, against the expected result. Also: the errors of the others when a rank dies in
 * a collective, or calls another one.
 *
 * A rank's input follows from its number and a common seed, so each rank can check its result without communication.
 */
#include <complex.h>

#include "check.h"
#include "coll_job.h"

static int asked_operation, asked_algorithm;   /* of the case that is being run */
static _Thread_local int operation, algorithm; /* what a rank is trying; on loop, ranks are threads */

/* ---------------------------------------------------------------- what each has to give
 *
 * Buffers are as long as they have to be, with a guard behind them. Operands are small integers, so that no order of
 * additions matters. */

#define GUARD 32

struct buffer {
    char *bytes;
    size_t len;
};

static struct buffer buffer_of(size_t len)
{
    struct buffer b = {malloc(len + GUARD), len};
    CHECK(b.bytes != NULL);
    memset(b.bytes, 0x5a, len + GUARD);
    return b;
}

static void done_with(struct buffer *b)
{
    for (int i = 0; i < GUARD; i++)
        CHECK_EQ(b->bytes[b->len + (size_t)i], 0x5a);
    free(b->bytes);
}

/* At most 100 each: sums of small integers are exact in any order. */
static int64_t operand(int rank, size_t i)
{
    return (int64_t)((i * 7 + (size_t)rank * 13) % 101);
}

static void fill(struct buffer *b, int rank)
{
    for (size_t i = 0; i < b->len / 8; i++) {
        int64_t v = operand(rank, i);
        memcpy(b->bytes + 8 * i, &v, 8);
    }
}

static void expect_sum(const struct buffer *b, int n)
{
    for (size_t i = 0; i < b->len / 8; i++) {
        int64_t got, sum = 0;
        memcpy(&got, b->bytes + 8 * i, 8);
        for (int r = 0; r < n; r++)
            sum += operand(r, i);
        if (got != sum)
            FAIL("%s %s, element %zu: %lld instead of %lld", coll_operation_name(operation),
                 coll_algorithm_name(operation, algorithm), i, (long long)got, (long long)sum);
    }
}

static void expect_pattern(const char *bytes, size_t len, unsigned seed)
{
    if (!pattern_holds(bytes, len, seed))
        FAIL("%s %s: %zu bytes of pattern %u are not there", coll_operation_name(operation),
             coll_algorithm_name(operation, algorithm), len, seed);
}

static void one_bcast(coll *c, size_t len, int root, unsigned seed)
{
    struct buffer b = buffer_of(len);
    if (coll_rank(c) == root)
        pattern_fill(b.bytes, len, seed);
    GIVE(coll_bcast(c, algorithm, b.bytes, len, root), MSG_SUCCESS);
    expect_pattern(b.bytes, len, seed);
    done_with(&b);
}

/* in_place: who gets the result finds its own operand there already. Seeds decide, so both forms take turns. */
static void one_reduction(coll *c, size_t len, int root, int in_place)
{
    int me = coll_rank(c), all = operation == COLL_ALLREDUCE, gets = all || me == root;
    struct buffer in = buffer_of(len / 8 * 8), out = buffer_of(len / 8 * 8);
    fill(&in, me);
    if (in_place && gets)
        fill(&out, me);
    const void *from = in_place && gets ? NULL : in.bytes;
    if (all)
        GIVE(coll_allreduce(c, algorithm, from, out.bytes, len / 8, COLL_INT64, COLL_SUM), MSG_SUCCESS);
    else
        GIVE(coll_reduce(c, algorithm, from, gets ? out.bytes : NULL, len / 8, COLL_INT64, COLL_SUM, root),
             MSG_SUCCESS);
    if (gets)
        expect_sum(&out, coll_size(c));
    done_with(&in);
    done_with(&out);
}

static void one_gather(coll *c, size_t len, int in_place, unsigned seed)
{
    int me = coll_rank(c), n = coll_size(c);
    struct buffer in = buffer_of(len), out = buffer_of(len * (size_t)n);
    pattern_fill(in_place ? out.bytes + (size_t)me * len : in.bytes, len, seed + (unsigned)me);
    GIVE(coll_allgather(c, algorithm, in_place ? NULL : in.bytes, out.bytes, len), MSG_SUCCESS);
    for (int i = 0; i < n; i++)
        expect_pattern(out.bytes + (size_t)i * len, len, seed + (unsigned)i);
    done_with(&in);
    done_with(&out);
}

/* Rank a's data for b has the seed a * 64 + b. */
static void one_alltoall(coll *c, size_t len, int in_place, unsigned seed)
{
    int me = coll_rank(c), n = coll_size(c);
    struct buffer in = buffer_of(len * (size_t)n), out = buffer_of(len * (size_t)n);
    for (int i = 0; i < n; i++)
        pattern_fill((in_place ? out : in).bytes + (size_t)i * len, len, seed + (unsigned)(me * 64 + i));
    GIVE(coll_alltoall(c, algorithm, in_place ? NULL : in.bytes, out.bytes, len), MSG_SUCCESS);
    for (int i = 0; i < n; i++)
        expect_pattern(out.bytes + (size_t)i * len, len, seed + (unsigned)(i * 64 + me));
    done_with(&in);
    done_with(&out);
}

static void one(coll *c, size_t len, int root, unsigned seed)
{
    switch (operation) {
    case COLL_BCAST:
        one_bcast(c, len, root, seed);
        break;
    case COLL_REDUCE:
    case COLL_ALLREDUCE:
        one_reduction(c, len, root, (int)(seed & 1));
        break;
    case COLL_ALLGATHER:
        one_gather(c, len, (int)(seed & 1), seed);
        break;
    default:
        one_alltoall(c, len, (int)(seed & 1), seed);
    }
}

/* ---------------------------------------------------------------- cases */

static void case_all(msg_world **world, int rank, int n)
{
    /* Zero, less than an element, one element, around the algorithms' line, slot and packet, and long. */
    static const size_t lengths[] = {0, 1, 8, 40, 240, 248, 1000, 4096, 20000, 70000, 200000};
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9);
    unsigned seed = 1;
    (void)rank;
    for (operation = COLL_BCAST; operation < COLL_N_OPERATIONS; operation++)
        for (algorithm = 0; coll_algorithm_name(operation, algorithm); algorithm++) {
            if (coll_algorithm_check(c, operation, algorithm) != MSG_SUCCESS)
                continue;
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
                if (lengths[i] > 70000 && CHECK_SLOWER > 1)
                    continue;
                one(c, lengths[i], (int)i % n, ++seed);
            }
            /* 64 bytes, 40 times: more often than a slot ring has places. */
            for (int i = 0; i < 40 / CHECK_SLOWER; i++) /* in a row, so that slots come round again; roots change */
                one(c, 64, i / 20 * (n - 1), ++seed);
        }
    coll_close(c);
}

/* Different collectives in sequence, without a barrier between them, so that ranks may run ahead. All ranks draw the
 * same operations from the same numbers. */
static void case_mixed(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9);
    uint64_t state = 12345;
    (void)rank;
    for (int i = 0; i < 300 / CHECK_SLOWER; i++) {
        state = state * 6364136223846793005ull + 1442695040888963407ull; /* the same on all ranks */
        unsigned draw = (unsigned)(state >> 33);
        operation = COLL_BCAST + (int)(draw % (COLL_N_OPERATIONS - COLL_BCAST));
        int count = 0;
        while (coll_algorithm_name(operation, count))
            count++;
        algorithm = (int)(draw / 8 % (unsigned)count);
        if (coll_algorithm_check(c, operation, algorithm) != MSG_SUCCESS)
            algorithm = COLL_DEFAULT;
        one(c, draw / 64 % 5 == 0 ? 30000 : draw / 64 % 700, (int)(draw / 512 % (unsigned)n), draw);
        if (draw % 16 == 0)
            GIVE(coll_barrier(c, COLL_BARRIER_DEFAULT), MSG_SUCCESS);
    }
    coll_close(c);
}

/* Every operation on every type, two operands each that show what it does. */
static void case_types(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9);
/* Three elements each, so a vectorized loop has a rest. */
#define TRY(type_name, type, op_name, given, expected)                                         \
    do {                                                                                       \
        type in[3] = {(type)(given), (type)(given), (type)(given)}, out[3] = {0, 0, 0};        \
        GIVE(coll_allreduce(c, 0, in, out, 3, COLL_##type_name, COLL_##op_name), MSG_SUCCESS); \
        for (int i = 0; i < 3; i++)                                                            \
            if (out[i] != (type)(expected))                                                    \
                FAIL("%s of %s is wrong on rank %d", #op_name, #type, rank);                   \
    } while (0)
#define ARITHMETIC(type_name, type)                       \
    TRY(type_name, type, SUM, rank + 1, n * (n + 1) / 2); \
    TRY(type_name, type, PROD, rank == 0 ? 3 : 2, 3 << (n - 1))
/* The maximum comes from rank 1 in the middle, neither from the first nor from the last. */
#define ORDERED(type_name, type)                        \
    ARITHMETIC(type_name, type);                        \
    TRY(type_name, type, MAX, rank == 1 ? 9 : rank, 9); \
    TRY(type_name, type, MIN, rank == 1 ? 9 : rank + 2, 2)
#define INTEGER(type_name, type)                      \
    ORDERED(type_name, type);                         \
    TRY(type_name, type, LAND, rank == 1 ? 0 : 4, 0); \
    TRY(type_name, type, LOR, rank == 1 ? 4 : 0, 1);  \
    TRY(type_name, type, LXOR, rank < 2 ? 4 : 0, 0);  \
    TRY(type_name, type, BAND, rank == 1 ? 5 : 7, 5); \
    TRY(type_name, type, BOR, rank == 1 ? 4 : 1, 5);  \
    TRY(type_name, type, BXOR, rank < 2 ? 4 + rank : 0, 1)
    INTEGER(INT8, int8_t);
    INTEGER(UINT8, uint8_t);
    INTEGER(INT16, int16_t);
    INTEGER(UINT16, uint16_t);
    INTEGER(INT32, int32_t);
    INTEGER(UINT32, uint32_t);
    INTEGER(INT64, int64_t);
    INTEGER(UINT64, uint64_t);
    ORDERED(FLOAT, float);
    ORDERED(DOUBLE, double);
    ARITHMETIC(COMPLEX_FLOAT, float _Complex);
    ARITHMETIC(COMPLEX_DOUBLE, double _Complex);
    /* Not-a-number wins: nothing else differs from itself. */
    double nan = rank == 1 ? __builtin_nan("") : rank, out = 0;
    GIVE(coll_allreduce(c, 0, &nan, &out, 1, COLL_DOUBLE, COLL_MAX), MSG_SUCCESS);
    CHECK(out != out);
    /* An order of complex numbers, bits of floats, and an invalid type, algorithm and root. */
    double _Complex z[2] = {0, 0};
    GIVE(coll_allreduce(c, 0, z, z + 1, 1, COLL_COMPLEX_DOUBLE, COLL_MAX), MSG_ERR_ARG);
    GIVE(coll_allreduce(c, 0, &nan, &out, 1, COLL_DOUBLE, COLL_BXOR), MSG_ERR_ARG);
    GIVE(coll_allreduce(c, 0, &nan, &out, 1, COLL_N_TYPES, COLL_SUM), MSG_ERR_ARG);
    GIVE(coll_bcast(c, 99, &out, 8, 0), MSG_ERR_ARG);
    GIVE(coll_bcast(c, 0, &out, 8, n), MSG_ERR_RANK);
    GIVE(coll_barrier(c, COLL_BARRIER_DEFAULT), MSG_SUCCESS); /* after errors of calls all goes on */
    /* Where all share memory, up to 4 MiB through it. */
    for (int o = COLL_BCAST; o < COLL_N_OPERATIONS; o++) {
        int flat = coll_algorithm_find(o, "flat");
        size_t most = ((size_t)4 << 20) / (o == COLL_ALLTOALL ? (size_t)n : 1);
        if (coll_algorithm_check(c, o, flat) != MSG_SUCCESS)
            continue;
        CHECK_EQ(coll_algorithm_default(c, o, 8), flat);
        CHECK_EQ(coll_algorithm_default(c, o, most), flat);
        CHECK(coll_algorithm_default(c, o, most + 1) != flat);
    }
    CHECK(coll_operation_name(0) == NULL && coll_operation_name(COLL_N_OPERATIONS) == NULL);
    for (int o = COLL_BARRIER; o < COLL_N_OPERATIONS; o++)
        for (int a = 0; coll_algorithm_name(o, a); a++) {
            CHECK_EQ(coll_algorithm_find(o, coll_algorithm_name(o, a)), a);
            CHECK(coll_algorithm_text(o, a) != NULL);
        }
    CHECK_EQ(coll_algorithm_find(COLL_BCAST, "no such"), -1);
    coll_free(c);
}

/* One operation with everything it may need; the result does not matter here. */
static int perform(coll *c, char *in, char *out, size_t len)
{
    switch (operation) {
    case COLL_BCAST:
        return coll_bcast(c, algorithm, out, len, 0);
    case COLL_REDUCE:
        return coll_reduce(c, algorithm, in, out, len, COLL_UINT8, COLL_BXOR, 0);
    case COLL_ALLREDUCE:
        return coll_allreduce(c, algorithm, in, out, len, COLL_UINT8, COLL_BXOR);
    case COLL_ALLGATHER:
        return coll_allgather(c, algorithm, in, out, len);
    default:
        return coll_alltoall(c, algorithm, in, out, len);
    }
}

/* Rank 1 dies in the middle of it. The others get the error, and go on without it. */
static void case_death(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    coll *c = make_group(w, 0, n, 9), *rest = NULL;
    int code = MSG_SUCCESS;
    /* Long enough that every algorithm has to wait in its middle. */
    size_t len = 30000;
    operation = asked_operation;
    algorithm = asked_algorithm;
    char *in = calloc((size_t)n, len), *out = calloc((size_t)n, len);
    for (int i = 0; i < 5; i++)
        GIVE(perform(c, in, out, len), MSG_SUCCESS);
    if (rank == 1)
        msg_set_interrupt(w, die, NULL); /* the first call means that it is waiting */
    if (rank == 0)                       /* makes it wait */
        WAIT_UNTIL(msg_progress(w) >= 0 && msg_peer_status(w, 1) == MSG_PEER_FAILED);
    /* How many rounds the survivors come through depends on the algorithm and the channel's buffers. */
    for (int i = 0; code == MSG_SUCCESS; i++) { /* who only sends may get rid of some, over tcp of many */
        code = perform(c, in, out, len);
        if (rank == 1 && i == 19)
            die(NULL);
    }
    CHECK_EQ(code, MSG_ERR_PROC_FAILED);
    GIVE(coll_barrier(c, COLL_BARRIER_MESSAGE), MSG_ERR_PROC_FAILED);
    coll_free(c);
    rest = make_without(w, 1, n, 10);
    GIVE(perform(rest, in, out, 1000), MSG_SUCCESS);
    coll_close(rest); /* some ranks may still have to confirm data that they have taken */
    free(in);
    free(out);
}

/* Ranks call different collectives. All that wait get the error. */
static void case_mismatch(msg_world **world, int rank, int n)
{
    msg_world *w = *world;
    char *a = calloc(5, 40000), *b = a + 40000;
    CHECK(a != NULL && n <= 4);
    algorithm = asked_algorithm;
    /* Every kind of difference on a group of its own, as each breaks it. */
    for (int kind = 0; kind < 4; kind++) {
        coll *c = make_group(w, 0, n, 20 + kind);
        GIVE(coll_barrier(c, COLL_BARRIER_DEFAULT), MSG_SUCCESS);
        int code = MSG_SUCCESS;
        /* Up to 12 times: a rank that only gives may be ahead of those that find out. */
        for (int i = 0; i < 12 && code == MSG_SUCCESS; i++)
            switch (kind) {
            case 0: /* another operation */
                code = rank == 1 ? coll_barrier(c, COLL_BARRIER_DEFAULT) : coll_allgather(c, algorithm, a, b, 8);
                break;
            case 1: /* another length */
                code = coll_allgather(c, algorithm, a, b, rank == 1 ? 16 : 8);
                break;
            case 2: /* the one thinks it long, the other short */
                code = coll_allgather(c, algorithm, a, b, rank == 1 ? 40000 : 8);
                break;
            default: /* another root: no rank sends */
                code = coll_reduce(c, 0, a, b, 100, COLL_UINT8, COLL_SUM, rank == 1 ? 1 : 0);
            }
        CHECK_EQ(code, MSG_ERR_COLLECTIVE);
        coll_free(c);
        job_meet();
    }
    free(a);
}

/* ---------------------------------------------------------------- running them */

static void run(const char *case_name, job_main main_, int n, int hosts, int may_die)
{
    char how[64] = "";
    if (asked_operation)
        snprintf(how, sizeof how, "%s %s", coll_operation_name(asked_operation),
                 coll_algorithm_name(asked_operation, asked_algorithm));
    run_case(case_name, how, main_, n, hosts, may_die);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {1, 2, 3, 4, 5, 8};
    int refused = start_cases(argc, argv);
    if (refused)
        return refused;
    int shm = strcmp(link_name, "shm") == 0, tcp = strcmp(link_name, "tcp") == 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        run("all", case_all, sizes[i], 0, 0);
        if (shm && sizes[i] >= 3)
            run("all", case_all, sizes[i], sizes[i] == 5 ? 3 : 2, 0);
    }
    asleep = 1;
    if (shm)
        run("all", case_all, 5, 0, 0);
    asleep = 0;
    run("mixed", case_mixed, 4, 0, 0);
    run("types", case_types, 3, 0, 0);
    asked_operation = COLL_ALLGATHER;
    for (int a = 0; a < 6; a++)
        if (coll_algorithm_name(COLL_ALLGATHER, a) && (shm || a == 0 || a == 3)) {
            asked_algorithm = a;
            run("mismatch", case_mismatch, 3, 0, 0);
        }
    for (int o = COLL_BCAST; (shm || tcp) && o < COLL_N_OPERATIONS; o++)
        for (int a = 1; coll_algorithm_name(o, a); a++) {
            if (tcp && strncmp(coll_algorithm_name(o, a), "message", 7) != 0)
                continue;
            asked_operation = o;
            asked_algorithm = a;
            run("death", case_death, 4, strcmp(coll_algorithm_name(o, a), "overall") ? 0 : 2, 2);
        }
    return end_cases();
}
