/*
 * Red-black SOR (Gauss-Seidel) as a plain loop. The grid of m + 2 rows and 2 n + 2 columns is stored in two arrays of
 * m + 2 rows and n + 1 columns: odd rows R0 B0 R1 B1 ..., even rows B0 R0 B1 R1 ... . Row 0, row m + 1 and the columns
 * at the edges are fixed.
 */

/* Makes `iterations` sweeps in place, each black first, then red. */
void sor_plain(float *red, float *black, long m, long n, long iterations)
{
    const long width = n + 1;
    for (long it = 0; it < iterations; it++) {
        for (long j = 1; j <= m; j++) {
            float *b = black + j * width;
            const float *up = red + (j - 1) * width, *down = red + (j + 1) * width, *r = red + j * width;
            if (j & 1) {
                for (long k = 0; k < n; k++) {
                    b[k] = (up[k] + down[k] + r[k] + r[k + 1]) / 4;
                }
            } else {
                for (long k = 1; k <= n; k++) {
                    b[k] = (up[k] + down[k] + r[k - 1] + r[k]) / 4;
                }
            }
        }
        for (long j = 1; j <= m; j++) {
            float *r = red + j * width;
            const float *up = black + (j - 1) * width, *down = black + (j + 1) * width, *b = black + j * width;
            if (j & 1) {
                for (long k = 1; k <= n; k++) {
                    r[k] = (up[k] + down[k] + b[k - 1] + b[k]) / 4;
                }
            } else {
                for (long k = 0; k < n; k++) {
                    r[k] = (up[k] + down[k] + b[k] + b[k + 1]) / 4;
                }
            }
        }
    }
}
