/* The random numbers of the NAS Parallel Benchmarks, by vectors (lanes.h). */
#ifndef VIAKIT_KERNELS_RANDOM_LANES_H
#define VIAKIT_KERNELS_RANDOM_LANES_H

#include "lanes.h"

struct random_lanes {
    uint64_t (*fill)(uint64_t x, double *out, size_t n); /* kernels_random_fill() */
};

KERNELS_DECLARE(struct random_lanes, random_lanes)

#endif
