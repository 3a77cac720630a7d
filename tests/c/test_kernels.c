/*
 * test_kernels.c - the applications' kernels at each level of vector instructions that this machine has, and once more
 * with longer vectors than it has (csrc/kernels/meson.build).
 *
 * Arrays end where they must: under AddressSanitizer a vector that reaches past the end is found. Lengths run through
 * all small ones, so that every remainder behind the last whole vector occurs. The results are compared with plain
 * loops here, and with NumPy in the Python tests. Where the kernel chooses the order of additions, a small difference
 * is allowed, elsewhere none.
 */
#include <math.h>

#include "check.h"
#include "kernels/kernels.h"

/* Numbers from 0 to 1 that are the same every time. */
static double next(uint64_t *state)
{
    *state = *state * KERNELS_RANDOM_A & KERNELS_RANDOM_MASK;
    return (double)*state * 0x1p-46;
}

/* The same stream by filling, and by skipping as far. */
static void check_random(void)
{
    for (size_t n = 0; n < 150; n += n < 70 ? 1 : 13) {
        double *out = malloc(n * sizeof *out + 1);
        uint64_t state = 314159265;
        const uint64_t after = kernels_random_fill(state, out, n);
        for (size_t i = 0; i < n; i++) {
            CHECK(out[i] == next(&state));
        }
        CHECK_EQ(after, state);
        CHECK_EQ(after, kernels_random_skip(314159265, n));
        free(out);
    }
}

/* A half-sweep as it is defined, of `out` from `other`: each point is the mean of its four neighbours, which all have
 * the other colour. */
static void plain_half_sweep(float *out, const float *other, long n, long rows, int black, long origin)
{
    for (long j = 1; j < rows - 1; j++) {
        const int shifted = black != ((origin + j) & 1);
        for (long k = 0; k < n; k++) {
            const float *left = other + j * (n + 1) + k;
            const float *up = left - (n + 1) + shifted, *down = left + (n + 1) + shifted;
            out[j * (n + 1) + k + shifted] = (*up + *down + left[0] + left[1]) / 4;
        }
    }
}

static void check_sor(void)
{
    const long rows = 9, n_stages = 5;
    for (long n = 1; n < 70; n++) {
        const size_t bytes = (size_t)(rows * (n + 1)) * sizeof(float);
        float *red = malloc(bytes), *black = malloc(bytes), *expected_red = malloc(bytes),
              *expected_black = malloc(bytes);
        uint64_t state = 271828183;
        for (long i = 0; i < rows * (n + 1); i++) {
            /* Down to numbers below the smallest normal one, whose last bits are easily lost. */
            expected_red[i] = red[i] = (float)ldexp(next(&state) - 0.5, (int)(next(&state) * 60) - 140);
            expected_black[i] = black[i] = (float)next(&state);
        }
        /* Five half-sweeps in one call, beginning with black; the first and the last row are borders. */
        const struct kernels_sor_sweep sweep = {
            .n_stages = n_stages, .black_first = 1, .first = 1, .last = rows - 1, .origin = n % 2};
        kernels_sor_sweep(red, black, (size_t)n, &sweep);
        for (long stage = 0; stage < n_stages; stage++) {
            const int is_black = stage % 2 == 0;
            plain_half_sweep(is_black ? expected_black : expected_red, is_black ? expected_red : expected_black, n,
                             rows, is_black, n % 2);
        }
        CHECK_EQ(memcmp(red, expected_red, bytes), 0);
        CHECK_EQ(memcmp(black, expected_black, bytes), 0);
        /* The checksum in two parts is that of the whole. */
        const size_t pairs = (size_t)(rows * (n + 1));
        const uint64_t first = kernels_sor_fnv(KERNELS_FNV_START, red, black, 7);
        CHECK_EQ(kernels_sor_fnv(first, red + 7, black + 7, pairs - 7),
                 kernels_sor_fnv(KERNELS_FNV_START, red, black, pairs));
        free(red), free(black), free(expected_red), free(expected_black);
    }
}

/* Lengths up to 40 one by one, then growing: the last ones are many blocks long. */
static void check_ep(void)
{
    for (uint64_t n = 0; n < 20000; n = n < 40 ? n + 1 : n * 3 + 1) {
        struct kernels_ep got = {0}, right = {0};
        uint64_t state = 271828183;
        kernels_ep(state, n, &got);
        for (uint64_t i = 0; i < n; i++) {
            const double u = 2 * next(&state) - 1, v = 2 * next(&state) - 1, t = u * u + v * v;
            /* As NAS EP has it: pairs in the unit circle are turned into Gaussian deviates, which are counted by the
             * larger one. */
            if (t <= 1) {
                const double f = sqrt(-2 * log(t) / t);
                right.counts[(int)fmax(fabs(u * f), fabs(v * f))]++;
                right.x += u * f, right.y += v * f;
                right.abs_x += fabs(u * f), right.abs_y += fabs(v * f);
            }
        }
        /* Counts are exact; sums are added in another order. */
        CHECK_EQ(memcmp(got.counts, right.counts, sizeof got.counts), 0);
        CHECK(fabs(got.x - right.x) < 1e-10 && fabs(got.y - right.y) < 1e-10);
        CHECK(fabs(got.abs_x - right.abs_x) < 1e-10 && fabs(got.abs_y - right.abs_y) < 1e-10);
    }
}

static void check_is(void)
{
    /* No multiple of a vector; buckets of 32 values each. */
    enum { N = 5003, SHIFT = 5, BUCKETS = 64, MAX = BUCKETS << SHIFT };
    static int32_t keys[N], counts[MAX], right[MAX], out[N], starts[BUCKETS + 1];
    static uint8_t work[MAX];
    uint64_t state = 314159265;
    kernels_is_keys(state, 11, keys, N);
    memset(counts, 0, sizeof counts);
    memset(right, 0, sizeof right);
    for (size_t i = 0; i < N; i++) {
        double sum = 0;
        for (int j = 0; j < 4; j++) {
            /* NAS IS: a key is the mean of four random numbers. */
            sum += next(&state);
        }
        CHECK_EQ(keys[i], (int32_t)(MAX / 4 * sum));
        right[keys[i]]++;
    }
    CHECK_EQ(kernels_is_count(keys, N, 0, MAX, counts, work), 0);
    CHECK_EQ(memcmp(counts, right, sizeof counts), 0);
    CHECK_EQ(kernels_is_partition(keys, N, SHIFT, BUCKETS, out, starts), 0);
    CHECK_EQ(starts[BUCKETS], N);
    for (int bucket = 0; bucket < BUCKETS; bucket++) {
        for (int32_t i = starts[bucket]; i < starts[bucket + 1]; i++) {
            CHECK_EQ(out[i] >> SHIFT, bucket);
            right[out[i]]--;
        }
    }
    /* The partition has every key as often as it came: then `right` is empty, and takes the sorted keys next. */
    for (size_t key = 0; key < MAX; key++) {
        CHECK_EQ(right[key], 0);
    }
    CHECK_EQ(kernels_is_prefix(counts, MAX, 0), N);
    CHECK_EQ(kernels_is_place(keys, N, 0, MAX, counts, 0, out, N), N);
    for (size_t i = 1; i < N; i++) {
        CHECK(out[i - 1] <= out[i]);
    }
    for (size_t i = 0; i < N; i++) {
        right[keys[i]]++;
        right[out[i]]--;
    }
    for (size_t key = 0; key < MAX; key++) {
        CHECK_EQ(right[key], 0);
    }
}

static void check_ft(void)
{
    enum { ROWS = 19, COLUMNS = 11 };
    static double in[ROWS][COLUMNS][2], out[ROWS * COLUMNS * 2], of_row[ROWS], of_column[COLUMNS];
    uint64_t state = 314159265;
    kernels_random_fill(state, in[0][0], ROWS * COLUMNS * 2);
    kernels_random_fill(state, of_row, ROWS);
    kernels_random_fill(state, of_column, COLUMNS);
    /* One plane, all rows and columns of it. */
    const struct kernels_ft_planes planes = {1, ROWS, COLUMNS, 0, COLUMNS, 0, ROWS};
    kernels_ft_transpose(&planes, in[0][0], out);
    for (size_t i = 0; i < ROWS * COLUMNS * 2; i++) {
        CHECK(out[i] == in[i / 2 % ROWS][i / 2 / ROWS][i % 2]);
    }
    kernels_ft_scale(in[0][0], out, ROWS, COLUMNS, of_row, of_column);
    for (size_t i = 0; i < ROWS * COLUMNS * 2; i++) {
        const size_t row = i / 2 / COLUMNS, column = i / 2 % COLUMNS;
        CHECK(out[i] == in[row][column][i % 2] * (of_row[row] * of_column[column]));
    }
}

enum { MOLECULES = 61 };

struct water {
    double forces[MOLECULES * 2][12];
    struct kernels_water_sums sums;
};

/* Result of level `level` for molecules at random places, some beyond the cutoff and some across it. The second half of
 * `sites` repeats the first, as the kernel requires. */
static struct water water_at(int level)
{
    static double sites[MOLECULES * 2][12], scratch[KERNELS_WATER_SCRATCH(MOLECULES * 2)];
    static const double shape[12] = {0.76, 0.6, 0, 0, 0, 0, -0.76, 0.6, 0, 0, 0.26, 0};
    const double box = 11.0;
    struct water found = {0};
    uint64_t state = 271828183;
    for (int i = 0; i < MOLECULES; i++) {
        const double place[3] = {(i % 4 + 0.2 * next(&state)) * box / 4, (i / 4 % 4 + 0.2 * next(&state)) * box / 4,
                                 ((double)i / 16 + 0.2 * next(&state)) * box / 4};
        for (int c = 0; c < 12; c++) {
            sites[i][c] = sites[i + MOLECULES][c] = place[c % 3] + shape[c];
        }
    }
    const struct kernels_water_pairs pairs = {MOLECULES, 0, MOLECULES, 2 * MOLECULES, box, 0.47 * box};
    const int before = kernels_level();
    CHECK_EQ(kernels_level_set(level), 0);
    kernels_water_pair_forces(&pairs, sites[0], scratch, found.forces[0], &found.sums);
    kernels_water_pair_energies(&pairs, sites[0], scratch, &found.sums);
    CHECK_EQ(kernels_level_set(before), 0);
    return found;
}

/* Relative to the value and to the size of what was added up. */
static int near(double got, double right, double scale)
{
    return fabs(got - right) <= 1e-11 * (fabs(right) + scale);
}

static void check_water(void)
{
    /* The portable level is the measure of the others; NumPy is the portable one's. */
    const struct water got = water_at(kernels_level()), right = water_at(KERNELS_PORTABLE);
    /* Enough pairs inside the cutoff to mean something. */
    CHECK(right.sums.whole > 100);
    CHECK_EQ(got.sums.whole, right.sums.whole);
    CHECK(near(got.sums.virial, right.sums.virial, 1) && near(got.sums.energy, right.sums.energy, 1) &&
          near(got.sums.field, right.sums.field, 1));
    double scale = 0;
    for (int i = 0; i < MOLECULES * 2 * 12; i++) {
        scale = fmax(scale, fabs(right.forces[i / 12][i % 12]));
    }
    for (int i = 0; i < MOLECULES * 2 * 12; i++) {
        CHECK(near(got.forces[i / 12][i % 12], right.forces[i / 12][i % 12], scale));
    }
}

int main(void)
{
    /* The best level is what programs get; what is none is refused. */
    CHECK_EQ(kernels_level(), kernels_level_best());
    CHECK_EQ(kernels_level_set(KERNELS_N_LEVELS), -1);
    CHECK_EQ(kernels_level_set(-1), -1);
    CHECK(kernels_level_name(KERNELS_N_LEVELS) == NULL);
    for (int level = 0; level <= kernels_level_best(); level++) {
        CHECK_EQ(kernels_level_set(level), 0);
        printf("%s\n", kernels_level_name(level));
        check_random();
        check_sor();
        check_ep();
        check_is();
        check_ft();
        check_water();
    }
    return 0;
}
