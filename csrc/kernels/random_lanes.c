/*
 * The numbers of one sequence, several at a time. The sequence is a chain of multiplications, each of which waits for
 * the previous one: one chain leaves most of a core idle. The sequence is therefore distributed over STREAMS chains.
 * The i-th chain yields the numbers i, i + STREAMS, i + 2 STREAMS ... and is multiplied by a^STREAMS at each step.
 */
#include "random_lanes.h"

#define N_VECTORS 4
#define STREAMS (N_VECTORS * LANES_F64)

/* Write n numbers in (0, 1) after state x; return the state of the last. A remainder of less than one turn of all
 * chains is generated one by one. */
static uint64_t fill(uint64_t x, double *out, size_t n)
{
    const double scale = 0x1p-46;
    vu64 state[N_VECTORS];
    for (int i = 0; i < N_VECTORS; i++) {
        for (int lane = 0; lane < LANES_F64; lane++) {
            state[i][lane] = kernels_random_skip(x, (uint64_t)(i * LANES_F64 + lane + 1));
        }
    }
    const vu64 power = all_u64(kernels_random_power(KERNELS_RANDOM_A, STREAMS));

    size_t done = 0;
    for (; n - done >= STREAMS; done += STREAMS) {
        for (int i = 0; i < N_VECTORS; i++) {
            store_f64(out + done + (size_t)(i * LANES_F64), f64_of_u52(state[i]) * scale);
            state[i] = random_next(state[i], power);
        }
    }
    /* The chains stand at the numbers of the next turn. x is the state before these. */
    x = kernels_random_skip(x, done);
    for (; done < n; done++) {
        x = x * KERNELS_RANDOM_A & KERNELS_RANDOM_MASK;
        out[done] = (double)x * scale;
    }
    return x;
}

const struct random_lanes LANES(random_lanes) = {.fill = fill};
