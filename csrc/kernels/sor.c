/*
 * Red-black SOR on a band of a grid, several half-sweeps in one passage over its rows.
 *
 * The squares of the grid are coloured as a chess board's and kept in two arrays, red and black, of equal shape:
 *
 *     odd rows    R0 B0 R1 B1 ... Rn Bn
 *     even rows   B0 R0 B1 R1 ... Bn Rn
 *
 * A half-sweep gives each square of one colour the mean of its four neighbours, which are all of the other. Row j of
 * it needs rows j - 1, j and j + 1 of the half-sweep before and nothing else. So, once that has done row j + 1, row j
 * can be done: the half-sweeps follow each other down the grid, each one row behind the one before.
 *
 *     row     half-sweep 0  1  2  3
 *     s - 3                       x      all of one step s, from left to right
 *     s - 2                    x
 *     s - 1                 x
 *     s                  x
 *
 * Nothing is overwritten too early: half-sweep h + 2 writes row j of the colour that h wrote, and what h + 1 needs of
 * that, rows up to j + 1, it has used one step earlier. Each row is read from memory once for all half-sweeps instead
 * of once for each; between them it stays in the cache, which must hold 2 x (half-sweeps + 2) rows: the caller
 * chooses how many.
 */
#include "sor_lanes.h"

/* Row j of a half-sweep. On which side the second neighbour lies depends on colour and parity of the row. */
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
    /* No end moves up by more than a row per half-sweep, so the first one's first row is done in the first step. */
    for (long step = sweep->first; n_stages > 0; step++) {
        int left = 0; /* half-sweeps that have rows to do in later steps */
        for (long stage = 0; stage < n_stages; stage++) {
            const long j = step - stage;
            const long first = sweep->first + stage * sweep->first_step, last = sweep->last + stage * sweep->last_step;
            left |= j + 1 < last && first < last;
            if (j < first || j >= last) {
                continue;
            }
            const int black_stage = sweep->black_first ^ (int)(stage & 1);
            const int odd = (int)((sweep->origin + j) & 1);
            /* Black squares of odd rows and red ones of even rows have column 0 at the left and all their own to the
             * right. */
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
