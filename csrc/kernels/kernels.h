/*
 * The numeric kernels of the applications: their computations and arrays. A kernel does no communication, and no
 * allocation unless stated. The only state is the choice of vector instructions. All may be called from any thread; two
 * calls must not write to the same array.
 *
 * A kernel has up to three forms:
 *
 * - the function declared here
 * - behind it, where vectors help, one per level of vector instructions (lanes.h), of which the machine's best runs
 * - in apps/ a version in NumPy, to read and to check against
 */
#ifndef VIAKIT_KERNELS_KERNELS_H
#define VIAKIT_KERNELS_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* ---------------------------------------------------------------------------------------------------------------------
 * Levels of vector instructions
 */

/* In ascending order; a machine that has one level has those before it. Architectures other than x86-64 have only the
 * first. */
enum kernels_level {
    KERNELS_PORTABLE, /* common to every machine of the architecture: SSE2, NEON */
    KERNELS_AVX2,     /* with FMA */
    KERNELS_AVX512,   /* F, DQ, VL, BW */
    KERNELS_N_LEVELS,
};

/* The name of a level for users; NULL if there is no such level. */
const char *kernels_level_name(int level);

/* The best level of this machine. */
int kernels_level_best(void);

/* The level in use: the best, unless another was set. */
int kernels_level(void);

/* Use `level` from now on in the whole process, for tests and comparisons. Returns -1, and changes nothing, if the
 * machine lacks it. */
int kernels_level_set(int level);

/* ---------------------------------------------------------------------------------------------------------------------
 * The random numbers of the NAS Parallel Benchmarks
 *
 * x[k+1] = a x[k] mod 2^46, and x[k] 2^-46 is the k-th number, in (0, 1). A state x is below 2^46. Since 2^46 divides
 * 2^64, the product of unsigned 64-bit numbers is right modulo 2^46, however much of it is lost above.
 */

#define KERNELS_RANDOM_MASK ((UINT64_C(1) << 46) - 1)
#define KERNELS_RANDOM_A UINT64_C(1220703125) /* 5^13, the multiplier of all these benchmarks */

/* a^n mod 2^46, in as many steps as n has bits. */
uint64_t kernels_random_power(uint64_t a, uint64_t n);

/* The state n numbers after x. A rank finds the start of its part with it. */
static inline uint64_t kernels_random_skip(uint64_t x, uint64_t n)
{
    return x * kernels_random_power(KERNELS_RANDOM_A, n) & KERNELS_RANDOM_MASK;
}

/* Write the n numbers after state x to out; return the state after them. */
uint64_t kernels_random_fill(uint64_t x, double *out, size_t n);

/* ---------------------------------------------------------------------------------------------------------------------
 * Red-black SOR (sor.c)
 */

/* Half-sweeps over a band of the grid: their number, order of colours, and the rows that each covers. */
struct kernels_sor_sweep {
    long n_stages;   /* number of half-sweeps, of alternating colours */
    int black_first; /* the first half-sweep computes black squares */
    long first;      /* the rows of the first half-sweep, [first, last), counted in the arrays ... */
    long last;
    int first_step; /* ... and the step of either end from one half-sweep to the next: -1, 0 or 1 */
    int last_step;
    long origin; /* the number of the arrays' row 0 in the whole grid */
};

/*
 * Do the half-sweeps on `red` and `black`, rows of n + 1 floats, of which n are computed. All are done in one pass over
 * the rows. The caller ensures that the surrounding rows hold the values that each half-sweep needs.
 */
void kernels_sor_sweep(float *red, float *black, size_t n, const struct kernels_sor_sweep *sweep);

/*
 * FNV-1a, 64 bits, over pairs (red, black) of floats, little-endian, starting from the value `hash`. The reference
 * values of SOR start from FNV's own start value without its last decimal digit.
 */
#define KERNELS_FNV_START UINT64_C(1469598103934665603)
uint64_t kernels_sor_fnv(uint64_t hash, const float *red, const float *black, size_t n_pairs);

/* ---------------------------------------------------------------------------------------------------------------------
 * IS: ranking integers (apps/is_.py)
 *
 * A key is max/4 (r1 + r2 + r3 + r4) without its fraction, of four consecutive random numbers: in [0, max), most
 * often in the middle. Its rank is the number of keys below it.
 */

/* Generate the n keys below 2^max_log, max_log in [2, 31), from the numbers that follow the state x. */
void kernels_is_keys(uint64_t x, int max_log, int32_t *keys, size_t n);

/* Bytes of `work` memory that kernels_is_count() needs; 0 for few different keys. */
size_t kernels_is_work(size_t m);

/* counts[k - base] += number of occurrences of each key k; m counts, m in [1, 2^31). Returns -1 if a key is not in
 * [base, base + m): then the counts are meaningless. */
int kernels_is_count(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *counts, void *work);

/* Replace each count by start + the sum of all counts up to and including it: the number of keys not above it. Returns
 * the last. */
int32_t kernels_is_prefix(int32_t *counts, size_t m, int32_t start);

/* Group keys by bucket, k >> shift, each group in the order of the keys: those of bucket b go to out[starts[b]], ...
 * out[starts[b + 1] - 1]. There are up to KERNELS_IS_BUCKETS buckets, and fewer than 2^31 keys. Returns -1 if a key is
 * beyond the last bucket. */
#define KERNELS_IS_BUCKETS 1024
int kernels_is_partition(const int32_t *keys, size_t n, int shift, size_t n_buckets, int32_t *out, int32_t *starts);

/* Put each key k of [base, base + m) at out[rank - first], where its rank is --cumulative[k - base]. Other keys are
 * skipped, as are those whose place is outside out, which has space for len. Returns the number of keys put. */
int64_t kernels_is_place(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *cumulative, int32_t first,
                         int32_t *out, size_t len);

/* ---------------------------------------------------------------------------------------------------------------------
 * Water: molecular dynamics (water.c)
 *
 * A molecule has the atoms H1, O, H2 and a site M that follows them (water_model.h). Arrays, all of doubles:
 *
 *     state   [7][9][n]  row k is the k-th derivative of the positions times h^k / k!, h being the length of a step;
 *                        component 3 * atom + direction
 *     sites   [m][12]    per molecule H1, O, H2, M, each x, y, z: what another rank must know of a molecule
 *     forces  [m][12]    on these sites
 */

/* The pairs to sum over, among n molecules: each of the `own` molecules from `first` on, with the
 * kernels_water_partners() molecules that follow it. Molecule 0 follows the last. sites[0] is molecule `first`, and
 * sites has `rows` rows: at least i + 1 + partners for each i < own. */
struct kernels_water_pairs {
    size_t n, first, own, rows;
    double box;    /* edge of the periodic box: only the nearest image of a site counts */
    double cutoff; /* sites further apart than this do not interact; at most half the box */
};

/* Results of a sum over pairs besides forces. */
struct kernels_water_sums {
    double virial; /* sum of forces times distances */
    double energy; /* of charges and of repulsion */
    double field;  /* of the reaction field, the response of the medium beyond the cutoff */
    size_t whole;  /* pairs with all nine distances between charges within the cutoff: the others have no repulsion */
};

/* The number of molecules following molecule i of n with which i computes the pair: half of the others each. */
size_t kernels_water_partners(size_t i, size_t n);

/* Advance by one step: a Taylor series of each derivative from all higher ones. */
void kernels_water_predict(double *state, size_t n);

/* Correct the accelerations to match the forces on the atoms, forces[n][12], and each derivative with them. */
void kernels_water_correct(double *state, size_t n, const double *forces, double h);

/* Compute sites[n][12] from the positions of the state. */
void kernels_water_place(const double *state, size_t n, double *sites);

/* Return the energy of the bonds within n molecules. If forces[n][12] is not NULL, their forces are added to it, and
 * their virial to *virial. */
double kernels_water_intra(const double *sites, size_t n, double *forces, double *virial);

/* Number of doubles in the scratch of a sum over pairs. The last few allow reads past the end. */
#define KERNELS_WATER_SCRATCH(rows) (3 * (rows) + 8)

/* Add the forces of the pairs to forces[rows][12], and virial and whole to sums. */
void kernels_water_pair_forces(const struct kernels_water_pairs *pairs, const double *sites, double *scratch,
                               double *forces, struct kernels_water_sums *sums);

/* Add energy, field and whole to sums. */
void kernels_water_pair_energies(const struct kernels_water_pairs *pairs, const double *sites, double *scratch,
                                 struct kernels_water_sums *sums);

/* Distribute the forces on M to the atoms that determine its position, in forces[n][12]. */
void kernels_water_fold(double *forces, size_t n);

/* Move molecules whose oxygen has left the box back into it at the other side, as a whole. A molecule moves by one edge
 * at most, so it must not have gone further than that since the last call. */
void kernels_water_wrap(double *state, size_t n, double box);

/* Return the sum of mass times velocity squared, velocity per step: twice the kinetic energy. */
double kernels_water_kinetic(const double *state, size_t n);

/* ---------------------------------------------------------------------------------------------------------------------
 * EP (ep.c)
 */

#define KERNELS_EP_N_COUNTS 10

struct kernels_ep {
    uint64_t counts[KERNELS_EP_N_COUNTS]; /* accepted pairs with l <= max(|X|, |Y|) < l + 1 */
    double x, y;                          /* sums of the deviates ... */
    double abs_x, abs_y;                  /* ... and of their absolute values */
};

/* Count and sum the deviates of the n pairs of random numbers that follow the state x, and add them to `out`. The state
 * is odd: an even one may lead to a pair at the origin, which has no logarithm. */
void kernels_ep(uint64_t x, uint64_t n, struct kernels_ep *out);

/* ---------------------------------------------------------------------------------------------------------------------
 * FT: what surrounds the Fourier transforms of rows (apps/fft.py). A complex number is two doubles, side by side.
 */

/* out[row][i] = in[row][i] of_row[row] of_column[i], for rows of n complex numbers and real factors. No array may
 * overlap out. */
void kernels_ft_scale(const double *in, double *out, size_t n_rows, size_t n, const double *of_row,
                      const double *of_column);

/* Planes of rows, and their layout: distances between them, in complex numbers. */
struct kernels_ft_planes {
    size_t n_planes, n_rows, n_columns;
    size_t in_plane, in_row;   /* of the input, from plane to plane and from row to row */
    size_t out_plane, out_row; /* of the output, whose rows are the input's columns */
};

/* out[plane][column][row] = in[plane][row][column]. The two must not overlap. */
void kernels_ft_transpose(const struct kernels_ft_planes *planes, const double *in, double *out);

#endif
