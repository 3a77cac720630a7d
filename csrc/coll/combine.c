/*
 * Combining: the predefined operations of MPI on the usual types, as plain loops that compilers vectorise.
 *
 * Operands are distinguished as low (left) and high (right). All ranks that combine the same operands get the same
 * bits, even where the order matters: the sign of a zero, which of two NaNs. data.c defines the order. A NaN wins in
 * MAX and MIN, as in NumPy.
 *
 * Macros define one function for each pair of type and operation; the table finds it. A pair that MPI does not define
 * (bits of floats, order of complex numbers) has NULL there, and coll_combines returns 0. Such reductions go by
 * messages.
 *
 * To add a type: a line in COLL_TYPES (coll.h), an INTEGER or FLOATING here, and a row. To add an operation: a LOOP for
 * each kind of type, and a column.
 */
#include "coll/inside.h"

typedef void combine_fn(size_t n, const void *low, const void *high, void *to);

/* Element by element: `to` may be either operand (coll_combine's contract), so no pointer is restrict. */
#define LOOP(name, type, expression)                                        \
    static void name(size_t n, const void *low, const void *high, void *to) \
    {                                                                       \
        const type *l = low, *h = high;                                     \
        type *t = to;                                                       \
        for (size_t i = 0; i < n; i++) {                                    \
            type a = l[i], b = h[i];                                        \
            t[i] = (type)(expression);                                      \
        }                                                                   \
    }

/* Narrow types are combined as int and truncated; unsigned arithmetic makes overflow defined. uint16_t alone would not
 * do: it is promoted to int, and the product of two may overflow that. The cast back to a signed type keeps the low
 * bits. */
#define INTEGER(suffix, type, wide)             \
    LOOP(sum_##suffix, type, (wide)a + (wide)b) \
    LOOP(prod_##suffix, type, (wide)a *(wide)b) \
    LOOP(max_##suffix, type, a >= b ? a : b)    \
    LOOP(min_##suffix, type, a <= b ? a : b)    \
    LOOP(land_##suffix, type, a &&b)            \
    LOOP(lor_##suffix, type, a || b)            \
    LOOP(lxor_##suffix, type, !a != !b)         \
    LOOP(band_##suffix, type, a &b)             \
    LOOP(bor_##suffix, type, a | b)             \
    LOOP(bxor_##suffix, type, a ^ b)

/* a != a: a is a NaN. If b is one, the comparison is false and b wins. If both are equal, such as 0 and -0, the
 * low operand wins. */
#define FLOATING(suffix, type)                         \
    LOOP(sum_##suffix, type, a + b)                    \
    LOOP(prod_##suffix, type, a *b)                    \
    LOOP(max_##suffix, type, a >= b || a != a ? a : b) \
    LOOP(min_##suffix, type, a <= b || a != a ? a : b)

#define COMPLEX(suffix, type)       \
    LOOP(sum_##suffix, type, a + b) \
    LOOP(prod_##suffix, type, a *b)

INTEGER(i8, int8_t, uint32_t)
INTEGER(u8, uint8_t, uint32_t)
INTEGER(i16, int16_t, uint32_t)
INTEGER(u16, uint16_t, uint32_t)
INTEGER(i32, int32_t, uint32_t)
INTEGER(u32, uint32_t, uint32_t)
INTEGER(i64, int64_t, uint64_t)
INTEGER(u64, uint64_t, uint64_t)
FLOATING(f32, float)
FLOATING(f64, double)
COMPLEX(c64, float _Complex)
COMPLEX(c128, double _Complex)

#define INTEGER_ROW(suffix)                                                                  \
    {                                                                                        \
        [COLL_SUM] = sum_##suffix,   [COLL_PROD] = prod_##suffix, [COLL_MAX] = max_##suffix, \
        [COLL_MIN] = min_##suffix,   [COLL_LAND] = land_##suffix, [COLL_LOR] = lor_##suffix, \
        [COLL_LXOR] = lxor_##suffix, [COLL_BAND] = band_##suffix, [COLL_BOR] = bor_##suffix, \
        [COLL_BXOR] = bxor_##suffix}
#define FLOATING_ROW(suffix) \
    {[COLL_SUM] = sum_##suffix, [COLL_PROD] = prod_##suffix, [COLL_MAX] = max_##suffix, [COLL_MIN] = min_##suffix}

static combine_fn *const table[COLL_N_TYPES][COLL_N_OPS] = {
    [COLL_INT8] = INTEGER_ROW(i8),
    [COLL_UINT8] = INTEGER_ROW(u8),
    [COLL_INT16] = INTEGER_ROW(i16),
    [COLL_UINT16] = INTEGER_ROW(u16),
    [COLL_INT32] = INTEGER_ROW(i32),
    [COLL_UINT32] = INTEGER_ROW(u32),
    [COLL_INT64] = INTEGER_ROW(i64),
    [COLL_UINT64] = INTEGER_ROW(u64),
    [COLL_FLOAT] = FLOATING_ROW(f32),
    [COLL_DOUBLE] = FLOATING_ROW(f64),
    [COLL_COMPLEX_FLOAT] = {[COLL_SUM] = sum_c64, [COLL_PROD] = prod_c64},
    [COLL_COMPLEX_DOUBLE] = {[COLL_SUM] = sum_c128, [COLL_PROD] = prod_c128},
};

static const size_t sizes[COLL_N_TYPES] = {
#define COLL_X(name, type) [COLL_##name] = sizeof(type),
    COLL_TYPES(COLL_X)
#undef COLL_X
};

size_t coll_type_size(coll_type type)
{
    return (unsigned)type < COLL_N_TYPES ? sizes[type] : 0;
}

int coll_combines(coll_type type, coll_op op)
{
    return (unsigned)type < COLL_N_TYPES && (unsigned)op < COLL_N_OPS && table[type][op] != NULL;
}

void coll_combine(coll_type type, coll_op op, size_t count, const void *low, const void *high, void *to)
{
    table[type][op](count, low, high, to);
}
