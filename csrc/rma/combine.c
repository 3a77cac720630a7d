/*
 * Elements of updates. Types and operations of collectives are csrc/coll's; long doubles, pairs and the operations that
 * only updates have are here. The target's element is the left operand, as in MPI.
 */
#include <complex.h>
#include <string.h>

#include "coll/inside.h"
#include "rma/inside.h"

_Static_assert((int)RMA_LONG_DOUBLE == (int)COLL_N_TYPES && (int)RMA_MAXLOC == (int)COLL_N_OPS, "they follow coll's");

/* Pairs in C's layout, which is MPI's. */
#define PAIRS(X)                      \
    X(FLOAT_INT, float_int, float)    \
    X(DOUBLE_INT, double_int, double) \
    X(LONG_INT, long_int, long)       \
    X(INT_INT, int_int, int)          \
    X(SHORT_INT, short_int, short)    \
    X(LONG_DOUBLE_INT, long_double_int, long double)

#define X(NAME, name, type) \
    struct name {           \
        type value;         \
        int index;          \
    };
PAIRS(X)
#undef X

/* MAXLOC (most is 1) and MINLOC. The better value wins, and of equal values the one with the lower index. A NaN
 * compares false with every value, so it neither replaces another value nor is replaced. */
#define X(NAME, name, type)                                                                 \
    static void locate_##name(int most, size_t n, struct name *to, const struct name *from) \
    {                                                                                       \
        for (size_t i = 0; i < n; i++) {                                                    \
            int better = most ? from[i].value > to[i].value : from[i].value < to[i].value;  \
            if (better || (from[i].value == to[i].value && from[i].index < to[i].index))    \
                to[i] = from[i];                                                            \
        }                                                                                   \
    }
PAIRS(X)
#undef X

static const size_t sizes[RMA_N_TYPES - RMA_LONG_DOUBLE] = {sizeof(long double), sizeof(long double _Complex),
#define X(NAME, name, type) sizeof(struct name),
                                                            PAIRS(X)
#undef X
};

/* Bytes of an element; 0 for a number that is no type. Numbers below COLL_N_TYPES are the collectives'. */
size_t rma_type_size(int type)
{
    if ((unsigned)type < COLL_N_TYPES)
        return coll_type_size((coll_type)type);
    return (unsigned)type < RMA_N_TYPES ? sizes[type - RMA_LONG_DOUBLE] : 0;
}

/* REPLACE and NO_OP go with every type, MAXLOC and MINLOC with pairs only, sums and products not with pairs. */
int rma_combines(int type, int combine)
{
    if ((unsigned)type >= RMA_N_TYPES || (unsigned)combine >= RMA_N_COMBINES)
        return 0;
    if (combine >= RMA_REPLACE)
        return 1;
    if (combine >= RMA_MAXLOC)
        return type >= RMA_FLOAT_INT;
    if (type == RMA_LONG_DOUBLE)
        return combine <= COLL_MIN;
    if (type == RMA_COMPLEX_LONG_DOUBLE)
        return combine <= COLL_PROD;
    return type < RMA_LONG_DOUBLE && coll_combines((coll_type)type, (coll_op)combine);
}

/* A NaN wins in maximum and minimum, as for the other floating types (coll/combine.c). */
static void combine_long(int combine, size_t n, long double *to, const long double *from)
{
    for (size_t i = 0; i < n; i++) {
        long double a = to[i], b = from[i];
        to[i] = combine == COLL_SUM    ? a + b
                : combine == COLL_PROD ? a * b
                : combine == COLL_MAX  ? (a >= b || a != a ? a : b)
                                       : (a <= b || a != a ? a : b);
    }
}

/* Complex numbers have no order, so only sum and product exist (rma_combines). */
static void combine_complex(int combine, size_t n, long double _Complex *to, const long double _Complex *from)
{
    for (size_t i = 0; i < n; i++)
        to[i] = combine == COLL_SUM ? to[i] + from[i] : to[i] * from[i];
}

/* Both operands are aligned to 16 here, which suffices for every type. `to` is the left operand and gets the result. */
static void combine_aligned(int type, int combine, size_t n, void *to, const void *from)
{
    switch (type) {
    case RMA_LONG_DOUBLE:
        combine_long(combine, n, to, from);
        break;
    case RMA_COMPLEX_LONG_DOUBLE:
        combine_complex(combine, n, to, from);
        break;
#define X(NAME, name, type)                                \
    case RMA_##NAME:                                       \
        locate_##name(combine == RMA_MAXLOC, n, to, from); \
        break;
        PAIRS(X)
#undef X
    default:
        coll_combine((coll_type)type, (coll_op)combine, n, to, from, to);
    }
}

/* A window may begin anywhere, and a packet's data is aligned to 8 only. Elements that are not aligned go through a
 * buffer, a few at a time: at least 32, because no element is longer than 32 bytes. */
void rma_combine(int type, int combine, size_t count, void *target, const void *data)
{
    size_t size = rma_type_size(type);
    if (combine == RMA_NO_OP || count == 0)
        return;
    if (combine == RMA_REPLACE) {
        memmove(target, data, count * size);
        return;
    }
    if (((uintptr_t)target | (uintptr_t)data) % 16 == 0) {
        combine_aligned(type, combine, count, target, data);
        return;
    }
    _Alignas(16) char to[1024], from[1024];
    char *t = target;
    const char *d = data;
    while (count) {
        size_t n = sizeof to / size < count ? sizeof to / size : count;
        memcpy(to, t, n * size);
        memcpy(from, d, n * size);
        combine_aligned(type, combine, n, to, from);
        memcpy(t, to, n * size);
        t += n * size;
        d += n * size;
        count -= n;
    }
}
