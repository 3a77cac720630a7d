/*
 * EP as a plain loop: pairs of random numbers become pairs of Gaussian deviates, which are counted by the square
 * annulus that contains them, and summed. Each random number is one multiplication modulo 2^46.
 */
#include <math.h>
#include <stdint.h>

/* Counts and sums n_pairs pairs after the state x. counts: 10 counts; sums: of x, of y, of |x|, of |y|. */
void ep_plain(uint64_t x, uint64_t n_pairs, uint64_t *counts, double *sums)
{
    /* The multiplier is 5^13; a state times 2^-46 is the number. */
    const uint64_t a = 1220703125, mask = ((uint64_t)1 << 46) - 1;
    const double scale = 0x1p-46;
    for (uint64_t i = 0; i < n_pairs; i++) {
        x = x * a & mask;
        double u = 2 * (x * scale) - 1;
        x = x * a & mask;
        double v = 2 * (x * scale) - 1;
        double t = u * u + v * v;
        if (t <= 1) {
            double f = sqrt(-2 * log(t) / t);
            double gx = u * f, gy = v * f;
            double ax = fabs(gx), ay = fabs(gy);
            counts[(int)(ax > ay ? ax : ay)]++;
            sums[0] += gx;
            sums[1] += gy;
            sums[2] += ax;
            sums[3] += ay;
        }
    }
}
