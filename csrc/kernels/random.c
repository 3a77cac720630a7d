/* The random numbers of the NAS Parallel Benchmarks: skipping ahead, and dispatch to the vectors. */
#include "random_lanes.h"

/* a^n mod 2^46, by squaring, so that a sequence can be entered anywhere. */
uint64_t kernels_random_power(uint64_t a, uint64_t n)
{
    uint64_t power = 1;
    for (; n > 0; n >>= 1) {
        if (n & 1) {
            power = power * a & KERNELS_RANDOM_MASK;
        }
        a = a * a & KERNELS_RANDOM_MASK;
    }
    return power;
}

uint64_t kernels_random_fill(uint64_t x, double *out, size_t n)
{
    return KERNELS_PICK(random_lanes)->fill(x, out, n);
}
