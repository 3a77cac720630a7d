/*
 * EP: the vectors process as many pairs as fill them; the remainder, less than one turn, is processed one by one.
 */
#include "ep_lanes.h"

/* Process the pair of the next two numbers after state x, an odd number, as the vectors do.
 *
 * counts has an element for every deviate. The second state is a times the first, so 2^45 (u, v) is a vector of the
 * lattice {(d, a d mod 2^46)}. Its shortest vector has length 6.9e6, hence t > 3.8e-14, and no deviate exceeds
 * sqrt(-2 ln t) = 7.9. */
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

/* State 2 done is the one before pair `done`. Skipping takes up to two multiplications for each bit of
 * the number, which only the remainder pays. */
void kernels_ep(uint64_t x, uint64_t n, struct kernels_ep *out)
{
    for (uint64_t done = KERNELS_PICK(ep_lanes)->pairs(x, n, out); done < n; done++) {
        one_pair(kernels_random_skip(x, 2 * done), out);
    }
}
