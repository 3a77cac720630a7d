/*
 * FT as a plain program, with the methods of the benchmark's own: a radix-2 transform without bit reversal (Stockham)
 * of several lines at a time, which are copied to a small array and back. The factors of the evolution are kept in an
 * array and multiplied in at each step. x is the fastest dimension.
 */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Transforms at a time: enough for vectors, few enough for a cache. */
#define LINES 16

typedef struct {
    double re, im;
} cplx;

/* LINES transforms of n points, a power of two, in a[j][line]; b has the same size. roots[k] = exp(-2 pi i k / n). */
static void transform(int sign, size_t n, const cplx *roots, cplx *a, cplx *b)
{
    cplx *const result = a;
    /* n/2 ... 1 butterflies of growing groups; each pass reads one array and writes the other, so no reversal is
     * needed. */
    for (size_t l = n / 2, m = 1; l >= 1; l /= 2, m *= 2) {
        for (size_t j = 0; j < l; j++) {
            const double c = roots[j * m].re, s = sign * roots[j * m].im;
            for (size_t k = 0; k < m; k++) {
                const cplx *p = a + (j * m + k) * LINES, *q = p + n / 2 * LINES;
                cplx *r = b + (2 * j * m + k) * LINES, *t = r + m * LINES;
                for (int i = 0; i < LINES; i++) {
                    const double re = p[i].re - q[i].re, im = p[i].im - q[i].im;
                    r[i].re = p[i].re + q[i].re;
                    r[i].im = p[i].im + q[i].im;
                    t[i].re = c * re - s * im;
                    t[i].im = s * re + c * im;
                }
            }
        }
        cplx *swap = a;
        a = b;
        b = swap;
    }
    if (a != result) {
        memcpy(result, a, n * LINES * sizeof *a);
    }
}

/* Transforms lines of n points `step` apart: n_lines lines, `next` apart, in each of n_groups groups, `group` apart. */
static void along(int sign, cplx *u, size_t n, size_t step, size_t n_lines, size_t next, size_t n_groups, size_t group,
                  const cplx *roots, cplx *a, cplx *b)
{
    for (size_t g = 0; g < n_groups; g++) {
        for (size_t line = 0; line < n_lines; line += LINES) {
            cplx *from = u + g * group + line * next;
            for (size_t j = 0; j < n; j++) {
                for (size_t i = 0; i < LINES; i++) {
                    a[j * LINES + i] = from[j * step + i * next];
                }
            }
            transform(sign, n, roots, a, b);
            for (size_t j = 0; j < n; j++) {
                for (size_t i = 0; i < LINES; i++) {
                    from[j * step + i * next] = a[j * LINES + i];
                }
            }
        }
    }
}

/* roots by dimension; a and b: work space for LINES lines of the longest dimension. */
struct plan {
    size_t nx, ny, nz;
    cplx *roots[3], *a, *b;
};

/* Transforms along x, then y, then z, line by line. Sign -1 is the inverse, without its factor 1/n. */
static void transform3(const struct plan *p, int sign, cplx *u)
{
    const size_t nx = p->nx, ny = p->ny, nz = p->nz;
    along(sign, u, nx, 1, ny, nx, nz, nx * ny, p->roots[0], p->a, p->b);
    along(sign, u, ny, nx, nx, 1, nz, nx * ny, p->roots[1], p->a, p->b);
    along(sign, u, nz, nx * ny, nx, 1, ny, nx, p->roots[2], p->a, p->b);
}

/* Returns the square of the wave number of point j of n. The upper half has negative wave numbers. */
static double wave(size_t j, size_t n)
{
    const double k = j < n / 2 ? (double)j : (double)j - (double)n;
    return k * k;
}

/* One step of the evolution: u is multiplied by the factors, v is a copy to be transformed. */
static void evolve(cplx *u, const double *factor, cplx *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        u[i].re *= factor[i];
        u[i].im *= factor[i];
        v[i] = u[i];
    }
}

/*
 * The whole benchmark. Sizes are powers of two from 16. u and v: nx ny nz complex numbers; factor: as many doubles;
 * sums: a complex number per iteration. Returns -1 if memory is exhausted.
 */
int ft_plain(long nx, long ny, long nz, int iterations, cplx *u, cplx *v, double *factor, cplx *sums)
{
    const double pi = 3.141592653589793, alpha = 1e-6;
    const size_t size[3] = {(size_t)nx, (size_t)ny, (size_t)nz}, n = size[0] * size[1] * size[2];
    const size_t longest =
        size[0] > size[1] ? (size[0] > size[2] ? size[0] : size[2]) : (size[1] > size[2] ? size[1] : size[2]);
    cplx *memory = malloc((2 * longest * LINES + 3 * longest) * sizeof *memory);
    if (!memory) {
        return -1;
    }
    struct plan plan = {size[0], size[1], size[2], {0}, memory, memory + longest * LINES};
    for (int d = 0; d < 3; d++) {
        plan.roots[d] = memory + 2 * longest * LINES + (size_t)d * longest;
        for (size_t k = 0; k < size[d]; k++) {
            plan.roots[d][k].re = cos(2 * pi * (double)k / (double)size[d]);
            plan.roots[d][k].im = -sin(2 * pi * (double)k / (double)size[d]);
        }
    }

    /* Initial values of the benchmark: real and imaginary parts in turn. */
    uint64_t x = 314159265;
    for (size_t i = 0; i < n; i++) {
        x = x * 1220703125 & (((uint64_t)1 << 46) - 1);
        u[i].re = x * 0x1p-46;
        x = x * 1220703125 & (((uint64_t)1 << 46) - 1);
        u[i].im = x * 0x1p-46;
    }
    size_t at = 0;
    for (size_t k = 0; k < size[2]; k++) {
        for (size_t j = 0; j < size[1]; j++) {
            for (size_t i = 0; i < size[0]; i++) {
                factor[at++] = exp(-4 * alpha * pi * pi * (wave(i, size[0]) + wave(j, size[1]) + wave(k, size[2])));
            }
        }
    }
    /* One forward transform. Each iteration evolves the coefficients, transforms back and sums 1024 points. */
    transform3(&plan, 1, u);
    for (int t = 0; t < iterations; t++) {
        evolve(u, factor, v, n);
        transform3(&plan, -1, v);
        cplx sum = {0, 0};
        for (size_t j = 1; j <= 1024; j++) {
            const cplx *one = v + j % size[0] + size[0] * (3 * j % size[1] + size[1] * (5 * j % size[2]));
            sum.re += one->re;
            sum.im += one->im;
        }
        sums[t].re = sum.re / (double)n;
        sums[t].im = sum.im / (double)n;
    }
    free(memory);
    return 0;
}
