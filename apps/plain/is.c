/*
 * IS as a plain loop: each key is made of four random numbers, one multiplication modulo 2^46 each. A ranking counts
 * the keys of each value in a table and sums the table up.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Makes keys below max_key: a quarter of max_key times the sum of four numbers below 1. */
static void make_keys(int32_t *keys, size_t n, int32_t max_key)
{
    const uint64_t a = 1220703125, mask = ((uint64_t)1 << 46) - 1;
    const double scale = 0x1p-46, quarter = max_key / 4;
    uint64_t x = 314159265;
    for (size_t i = 0; i < n; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++) {
            x = x * a & mask;
            sum += x * scale;
        }
        keys[i] = (int32_t)(quarter * sum);
    }
}

/* Sets counts[k] to the number of keys up to k, the rank after the last key of this value. */
static void rank(const int32_t *keys, size_t n, int32_t *counts, size_t m)
{
    memset(counts, 0, m * sizeof *counts);
    for (size_t i = 0; i < n; i++) {
        counts[keys[i]]++;
    }
    for (size_t k = 1; k < m; k++) {
        counts[k] += counts[k - 1];
    }
}

/* Makes 2^keys_log keys below 2^max_log, and ranks them once and in each iteration. Each ranking changes two keys. */
void is_plain(int keys_log, int max_log, int iterations, int32_t *keys, int32_t *counts)
{
    const size_t n = (size_t)1 << keys_log, m = (size_t)1 << max_log;
    make_keys(keys, n, (int32_t)m);
    for (int turn = 0; turn <= iterations; turn++) {
        const int iteration = turn ? turn : 1;
        keys[iteration] = iteration;
        keys[iteration + iterations] = (int32_t)m - iteration;
        rank(keys, n, counts, m);
    }
}
