/*
 * FT: the parts around the Fourier transforms, which a library does row by row. It needs contiguous rows, so data along
 * another dimension is transposed first, and is scaled on the way.
 *
 * Cache lines determine the cost of transposing. An input line of four complex numbers gives one number to each of four
 * output lines. Here TILE rows are read side by side, and the output lines are filled at once. Each line of either side
 * enters the first-level cache once, however far apart the rows are.
 */
#include "ft_lanes.h"

#define TILE 8 /* rows: two output lines */

/* One complex number: real part, imaginary part. Loaded by memcpy, because an array of doubles may have only the
 * alignment of doubles. */
typedef double complex_pair __attribute__((vector_size(16)));

LANES_INLINE complex_pair load_pair(const double *p)
{
    complex_pair v;
    memcpy(&v, p, sizeof v);
    return v;
}

LANES_INLINE void store_pair(double *p, complex_pair v)
{
    memcpy(p, &v, sizeof v);
}

static void scale(const double *restrict in, double *restrict out, size_t n_rows, size_t n,
                  const double *restrict of_row, const double *restrict of_column)
{
    /* The two factors are multiplied first, once for both parts of a number. */
    for (size_t row = 0; row < n_rows; row++) {
        const double factor = of_row[row];
        for (size_t i = 0; i < n; i++) {
            const double both = factor * of_column[i];
            store_pair(out + 2 * (row * n + i), load_pair(in + 2 * (row * n + i)) * both);
        }
    }
}

/* Rows beyond the last whole tile are transposed one by one:
 *
 *      in: TILE rows, column by column            out: one row for each column
 *      row 0   a0 b0 ...                          a0 a1 ... a7
 *      row 1   a1 b1 ...                          b0 b1 ... b7      TILE neighbours are stored together */
static void transpose(const struct kernels_ft_planes *p, const double *restrict in, double *restrict out)
{
    for (size_t plane = 0; plane < p->n_planes; plane++) {
        const double *from = in + 2 * plane * p->in_plane;
        double *to = out + 2 * plane * p->out_plane;
        size_t row = 0;
        for (; row + TILE <= p->n_rows; row += TILE) {
            for (size_t column = 0; column < p->n_columns; column++) {
                for (size_t i = 0; i < TILE; i++) {
                    const complex_pair v = load_pair(from + 2 * ((row + i) * p->in_row + column));
                    store_pair(to + 2 * (column * p->out_row + row + i), v);
                }
            }
        }
        for (; row < p->n_rows; row++) {
            for (size_t column = 0; column < p->n_columns; column++) {
                store_pair(to + 2 * (column * p->out_row + row), load_pair(from + 2 * (row * p->in_row + column)));
            }
        }
    }
}

const struct ft_lanes LANES(ft_lanes) = {.scale = scale, .transpose = transpose};
