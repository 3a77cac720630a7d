/*
 * EP: the vectors do as many pairs as fill them, and what is left, less than a turn of theirs, is done one by one.
 */
#include "ep_lanes.h"

/* The pair whose numbers are the next two after state x; what it adds is what the vectors would add. */
static void one_pair(uint64_t x, struct kernels_ep *out)
{
    const double scale = 0x1p-45;
    /* The first state after x, and the second. */
    const uint64_t first = kernels_random_skip(x, 1), second = kernels_random_skip(x, 2);
    const double u = (double)first * scale - 1, v = (double)second * scale - 1;
    const double t = u * u + v * v;
    if (t > 1) {
        return;
    }
    const double f = sqrt(-2 * log(t) / t);
    const double abs_x = fabs(u * f), abs_y = fabs(v * f);
    out->counts[(int)fmax(abs_x, abs_y)]++;
    out->x += u * f;
    out->y += v * f;
    out->abs_x += abs_x;
    out->abs_y += abs_y;
}

void kernels_ep(uint64_t x, uint64_t n, struct kernels_ep *out)
{
    for (uint64_t done = KERNELS_PICK(ep_lanes)->pairs(x, n, out); done < n; done++) {
        one_pair(kernels_random_skip(x, 2 * done), out);
    }
}
