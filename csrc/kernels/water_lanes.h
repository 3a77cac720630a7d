/* Water's sums over pairs of molecules, by vectors (lanes.h). Contracts: kernels.h. */
#ifndef VIAKIT_KERNELS_WATER_LANES_H
#define VIAKIT_KERNELS_WATER_LANES_H

#include "lanes.h"

struct water_lanes {
    void (*pair_forces)(const struct kernels_water_pairs *pairs, const double *sites, double *scratch, double *forces,
                        struct kernels_water_sums *sums);
    void (*pair_energies)(const struct kernels_water_pairs *pairs, const double *sites, double *scratch,
                          struct kernels_water_sums *sums);
};

KERNELS_DECLARE(struct water_lanes, water_lanes)

#endif
