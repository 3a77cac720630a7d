/*
 * IS as one would write it down: each key from four random numbers, one multiplication modulo 2^46 after the other;
 * then, time and again, a table of how often each key occurs, summed up.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A quarter of max_key times the sum of four numbers below 1: below max_key. */
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

/* counts[k] becomes the number of keys up to k: the rank behind the last key of that value. */
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

/* 2^keys_log keys below 2^max_log, ranked once, and once more per iteration; each changes two keys. */
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
