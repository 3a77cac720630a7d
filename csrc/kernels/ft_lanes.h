/* FT by vectors (lanes.h); the functions are those of kernels.h. */
#ifndef VIAKIT_KERNELS_FT_LANES_H
#define VIAKIT_KERNELS_FT_LANES_H

#include "lanes.h"

struct ft_lanes {
    void (*scale)(const double *in, double *out, size_t n_rows, size_t n, const double *of_row,
                  const double *of_column);
    void (*transpose)(const struct kernels_ft_planes *planes, const double *in, double *out);
};

KERNELS_DECLARE(struct ft_lanes, ft_lanes)

#endif
