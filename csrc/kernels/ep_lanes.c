/*
 * EP: pairs of uniform random numbers become pairs of Gaussian deviates (Marsaglia's polar method), several at a time.
 *
 *     u = 2 r1 - 1, v = 2 r2 - 1, t = u^2 + v^2; if t <= 1: X = u f, Y = v f, f = sqrt(-2 ln t / t)
 *
 * All lanes compute f. In those with t > 1, one in five, it is set to 0, so they add nothing.
 *
 * Counting. Few deviates are large: in a million pairs, 5000 exceed 3 and one exceeds 5. Vectors therefore always count
 * the pairs that reach 1, 2, 3 and 4, and the counts follow by subtraction. The rare block with a pair that reaches 5
 * is computed once more, by the same arithmetic, and those pairs are counted lane by lane.
 */
#include "ep_lanes.h"

#define CHAINS 2 /* vectors under way at a time: while one waits for its division, another computes */
#define STRIDE (CHAINS * LANES_F64)    /* pairs of one turn */
#define BLOCK ((uint64_t)256 * STRIDE) /* pairs after which the code checks for a rare one */
#define LEVELS 4                       /* counted by vectors: the pairs that reach 1 ... LEVELS */
#define RARE (LEVELS + 1)

#define SQRT_HALF_BITS UINT64_C(0x3fe6a09e667f3bcd)
#define ONE_BITS UINT64_C(0x3ff0000000000000)
#define FRACTION_BITS ((UINT64_C(1) << 52) - 1)

/* The random numbers: the states of the first and of the second number of each pair, distributed over lanes and
 * chains. */
struct streams {
    vu64 u[CHAINS], v[CHAINS];
    vu64 power; /* the factor from one turn to the next */
};

/* The accumulators of a turn. */
struct totals {
    vf64 x, y, abs_x, abs_y, largest;
    vi64 accepted, reached[LEVELS];
};

/* The number 2 r - 1 of a state: x 2^-45 is put below the leading bit of 128, exactly. */
LANES_INLINE vf64 signed_uniform(vu64 x)
{
    return (vf64)(x | UINT64_C(0x4060000000000000)) - 129.0;
}

/*
 * -2 ln t / t, for 0 < t <= 2, to a few units in the last place. t = m 2^e with m in [sqrt(1/2), sqrt(2)). With g = m -
 * 1 and s = g / (2 + g): ln m = 2 artanh s = 2 s (1 + z (1/3 + z/5 + z^2/7 + ...)), z = s^2 < 0.0295. The polynomial
 * interpolates the series in brackets at the Chebyshev nodes of [0, 0.0295], with an error of 5e-18 of the result. One
 * division serves both s and 1 / t.
 */
LANES_INLINE vf64 radius(vf64 t)
{
    vu64 bits = (vu64)t + (ONE_BITS - SQRT_HALF_BITS);
    vf64 e = (vf64)((bits >> 52) | UINT64_C(0x4330000000000000)) - (0x1p52 + 1023);
    vf64 g = (vf64)((bits & FRACTION_BITS) + SQRT_HALF_BITS) - 1.0;
    vf64 below = g + 2.0;
    vf64 inverse = 1.0 / (below * t);
    vf64 s = g * t * inverse, z = s * s, z2 = z * z;
    vf64 low = fused_f64(z, all_f64(0.19999999999949136), all_f64(0.3333333333333335));
    vf64 mid = fused_f64(z, all_f64(0.11111105521911244), all_f64(0.14285714313266668));
    vf64 high = fused_f64(z, all_f64(0.0766575086060371), all_f64(0.09091447873400714));
    high = fused_f64(z2, all_f64(0.07309582388593211), high);
    vf64 series = fused_f64(z2, fused_f64(z2, high, mid), low);
    vf64 half = fused_f64(e, all_f64(0.34657359027997264), fused_f64(s * z, series, s)); /* ln t / 2; ln 2 / 2 */
    return half * (-4.0 * inverse * below);
}

/* Clear the sign bit. */
LANES_INLINE vf64 absolute(vf64 x)
{
    return (vf64)((vu64)x & ~(UINT64_C(1) << 63));
}

/* Process one vector of pairs. With `out`, count only the pairs that reach RARE there, and nothing else. */
LANES_INLINE void iterate(struct totals *totals, vf64 u, vf64 v, struct kernels_ep *out)
{
    vf64 t = fused_f64(v, v, u * u);
    vi64 inside = t <= 1.0;
    vf64 f = (vf64)((vi64)root_f64(radius(t)) & inside);
    vf64 x = u * f, y = v * f, abs_x = absolute(x), abs_y = absolute(y);
    vf64 larger = select_f64(abs_x > abs_y, abs_x, abs_y);
    if (out) {
        for (int lane = 0; lane < LANES_F64; lane++) {
            if (larger[lane] >= RARE) {
                out->counts[(int)larger[lane]]++;
            }
        }
        return;
    }
    totals->x += x;
    totals->y += y;
    totals->abs_x += abs_x;
    totals->abs_y += abs_y;
    totals->largest = select_f64(larger > totals->largest, larger, totals->largest);
    totals->accepted -= inside; /* a lane that is true is -1 */
    for (int level = 0; level < LEVELS; level++) {
        totals->reached[level] -= larger >= (double)(level + 1);
    }
}

/* Process n pairs, a multiple of STRIDE, and advance the streams. out: see turn(). */
LANES_INLINE void block(struct streams *streams, struct totals *totals, uint64_t n, struct kernels_ep *out)
{
    for (uint64_t i = 0; i < n; i += STRIDE) {
        for (int chain = 0; chain < CHAINS; chain++) {
            iterate(totals, signed_uniform(streams->u[chain]), signed_uniform(streams->v[chain]), out);
            streams->u[chain] = random_next(streams->u[chain], streams->power);
            streams->v[chain] = random_next(streams->v[chain], streams->power);
        }
    }
}

/* Not inlined: it runs once in a hundred blocks, and must not cost the other path any registers. */
static __attribute__((noinline)) void count_rare(struct streams streams, uint64_t n, struct kernels_ep *out)
{
    struct totals unused;
    block(&streams, &unused, n, out);
}

/* Add counts and sums of the whole turns among n pairs to `out`; return their number of pairs. x: the state before the
 * first number. */
static uint64_t pairs(uint64_t x, uint64_t n, struct kernels_ep *out)
{
    struct streams streams = {.power = all_u64(kernels_random_power(KERNELS_RANDOM_A, 2 * STRIDE))};
    for (int chain = 0; chain < CHAINS; chain++) {
        for (int lane = 0; lane < LANES_F64; lane++) {
            const uint64_t u = kernels_random_skip(x, 2 * (uint64_t)(chain * LANES_F64 + lane) + 1);
            streams.u[chain][lane] = u;
            streams.v[chain][lane] = u * KERNELS_RANDOM_A & KERNELS_RANDOM_MASK;
        }
    }
    struct totals totals = {0};
    /* The counts of earlier calls: only new pairs may be subtracted below. */
    uint64_t rare[KERNELS_EP_N_COUNTS];
    memcpy(rare, out->counts, sizeof rare);
    const uint64_t whole = n - n % STRIDE;
    for (uint64_t done = 0; done < whole; done += BLOCK) {
        const uint64_t some = whole - done < BLOCK ? whole - done : BLOCK;
        const struct streams before = streams;
        totals.largest = all_f64(0);
        block(&streams, &totals, some, NULL);
        int found = 0;
        for (int lane = 0; lane < LANES_F64; lane++) {
            found |= totals.largest[lane] >= RARE;
        }
        if (found) {
            count_rare(before, some, out);
        }
    }
    /* The pairs that reach a level, less those that reach the next one, are at the level. */
    uint64_t reached[LEVELS + 2] = {0};
    for (int lane = 0; lane < LANES_F64; lane++) {
        reached[0] += (uint64_t)totals.accepted[lane];
        for (int level = 0; level < LEVELS; level++) {
            reached[level + 1] += (uint64_t)totals.reached[level][lane];
        }
    }
    for (int level = RARE; level < KERNELS_EP_N_COUNTS; level++) {
        reached[RARE] += out->counts[level] - rare[level];
    }
    for (int level = 0; level < RARE; level++) {
        out->counts[level] += reached[level] - reached[level + 1];
    }
    out->x += sum_f64(totals.x);
    out->y += sum_f64(totals.y);
    out->abs_x += sum_f64(totals.abs_x);
    out->abs_y += sum_f64(totals.abs_y);
    return whole;
}

const struct ep_lanes LANES(ep_lanes) = {.pairs = pairs};
