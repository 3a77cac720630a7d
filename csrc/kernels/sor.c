/*
 * Red-black SOR on a band of a grid, several half-sweeps in one pass over its rows.
 *
 * The squares of the grid are coloured like a chess board's and stored in two arrays, red and black, of equal shape:
 *
 *     odd rows    R0 B0 R1 B1 ... Rn Bn
 *     even rows   B0 R0 B1 R1 ... Bn Rn
 *
 * A half-sweep gives each square of one colour the mean of its four neighbours, which all have the other colour. Row j
 * of it needs rows j - 1, j and j + 1 of the previous half-sweep and nothing else. Once that has done row j + 1, row j
 * can be done. The half-sweeps therefore follow each other down the grid, each one row behind the previous one.
 *
 *     row     half-sweep 0  1  2  3
 *     s - 3                       x      all of one step s, from left to right
 *     s - 2                    x
 *     s - 1                 x
 *     s                  x
 *
 * No row is overwritten too early. Half-sweep h + 2 writes row j of the colour that h wrote. Half-sweep h + 1 needs
 * rows up to j + 1 of that, and used them one step earlier. Each row is read from memory once for all half-sweeps
 * instead of once for each. In between it stays in the cache, which must hold 2 x (half-sweeps + 2) rows: the caller
 * chooses their number.
 */
#include "sor_lanes.h"

/* Compute row j of a half-sweep. The side of the second neighbour depends on colour and parity of the row. */
static void do_row(const struct sor_lanes *lanes, float *out, const float *other, size_t width, long j, int shifted)
{
    const size_t at = (size_t)j * width;
    out += at;
    other += at;
    lanes->row(out + shifted, other - width + shifted, other + width + shifted, other, width - 1);
}

void kernels_sor_sweep(float *red, float *black, size_t n, const struct kernels_sor_sweep *sweep)
{
    const struct sor_lanes *lanes = KERNELS_PICK(sor_lanes);
    const long n_stages = sweep->n_stages;
    /* No end moves up by more than a row per half-sweep, so the first row of the first half-sweep is done in the first
     * step. */
    for (long step = sweep->first; n_stages > 0; step++) {
        int left = 0; /* true if a half-sweep has rows to do in later steps */
        for (long stage = 0; stage < n_stages; stage++) {
            const long j = step - stage;
            const long first = sweep->first + stage * sweep->first_step, last = sweep->last + stage * sweep->last_step;
            left |= j + 1 < last && first < last;
            if (j < first || j >= last) {
                continue;
            }
            const int black_stage = sweep->black_first ^ (int)(stage & 1);
            const int odd = (int)((sweep->origin + j) & 1);
            /* Black squares of odd rows and red ones of even rows have column 0 on the left, and all computed columns
             * on the right. */
            do_row(lanes, black_stage ? black : red, black_stage ? red : black, n + 1, j, black_stage != odd);
        }
        if (!left) {
            return;
        }
    }
}

uint64_t kernels_sor_fnv(uint64_t hash, const float *red, const float *black, size_t n_pairs)
{
    const uint64_t prime = UINT64_C(0x100000001b3);
    for (size_t i = 0; i < n_pairs; i++) {
        uint32_t half[2];
        memcpy(&half[0], &red[i], 4);
        memcpy(&half[1], &black[i], 4);
        uint64_t bits = half[0] | (uint64_t)half[1] << 32;
        for (int byte = 0; byte < 8; byte++) {
            hash = (hash ^ (bits & 0xff)) * prime;
            bits >>= 8;
        }
    }
    return hash;
}
