/* FT, the parts around the Fourier transforms: dispatch to the vectors. */
#include "ft_lanes.h"

void kernels_ft_scale(const double *in, double *out, size_t n_rows, size_t n, const double *of_row,
                      const double *of_column)
{
    KERNELS_PICK(ft_lanes)->scale(in, out, n_rows, n, of_row, of_column);
}

void kernels_ft_transpose(const struct kernels_ft_planes *planes, const double *in, double *out)
{
    KERNELS_PICK(ft_lanes)->transpose(planes, in, out);
}
