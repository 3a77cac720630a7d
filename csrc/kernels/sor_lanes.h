/* Red-black SOR, one row, by vectors (lanes.h). */
#ifndef VIAKIT_KERNELS_SOR_LANES_H
#define VIAKIT_KERNELS_SOR_LANES_H

#include "lanes.h"

struct sor_lanes {
    /* out[k] = (((up[k] + down[k]) + side[k]) + side[k + 1]) / 4 for k in [0, n). The order makes the bits equal at all
     * levels. */
    void (*row)(float *out, const float *up, const float *down, const float *side, size_t n);
};

KERNELS_DECLARE(struct sor_lanes, sor_lanes)

#endif
