/*
 * One row of a half-sweep. A quarter of a sum equals the sum times 0.25 to the last bit, subnormal numbers included,
 * since both are powers of two. The output is not read, so a vector may be written twice. The first and the last vector
 * overlap their neighbours. Those between are aligned in `out`, where a store touches one cache line.
 */
#include "sor_lanes.h"

/* out[k ... k + LANES_F32) from its four neighbours: two in the rows above and below, two at its sides. */
LANES_INLINE void one(float *out, const float *up, const float *down, const float *side, size_t k)
{
    vf32 sum = load_f32(up + k) + load_f32(down + k) + load_f32(side + k) + load_f32(side + k + 1);
    store_f32(out + k, sum * 0.25f);
}

static void row(float *restrict out, const float *restrict up, const float *restrict down, const float *restrict side,
                size_t n)
{
    if (n < LANES_F32) {
        for (size_t k = 0; k < n; k++) {
            out[k] = (up[k] + down[k] + side[k] + side[k + 1]) * 0.25f;
        }
        return;
    }
    one(out, up, down, side, 0);
    /* Advance to the next boundary, by 1 to LANES_F32 numbers. The first vector has covered the numbers before it. */
    size_t k = LANES_F32 - ((uintptr_t)out / sizeof(float)) % LANES_F32;
    /* Two vectors in a turn do not depend on each other. */
    for (; k + 2 * LANES_F32 <= n; k += 2 * LANES_F32) {
        one(out, up, down, side, k);
        one(out, up, down, side, k + LANES_F32);
    }
    if (k + LANES_F32 <= n) {
        one(out, up, down, side, k);
    }
    one(out, up, down, side, n - LANES_F32);
}

const struct sor_lanes LANES(sor_lanes) = {.row = row};
