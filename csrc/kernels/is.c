/* IS, the ranking of integers: the parts without vectors, and dispatch to those with vectors. */
#include "is_lanes.h"

void kernels_is_keys(uint64_t x, int max_log, int32_t *keys, size_t n)
{
    /* max / 4 (x1 + .. + x4) 2^-46, truncated: max is a power of two, and the sum of four numbers of 46 bits is
     * exact. */
    KERNELS_PICK(is_lanes)->keys(x, 48 - max_log, keys, n);
}

/* Bytes of `work` for counting m values: 0 if the 32-bit counts are themselves small enough to be counted in. */
size_t kernels_is_work(size_t m)
{
    return is_room(m) == m && m <= IS_SMALL ? 0 : is_room(m);
}

int kernels_is_count(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *counts, void *work)
{
    return KERNELS_PICK(is_lanes)->count(keys, n, base, m, counts, work);
}

/* Running sums, on top of `start`; returns the last. */
int32_t kernels_is_prefix(int32_t *counts, size_t m, int32_t start)
{
    for (size_t i = 0; i < m; i++) {
        start += counts[i];
        counts[i] = start;
    }
    return start;
}

int kernels_is_partition(const int32_t *keys, size_t n, int shift, size_t n_buckets, int32_t *out, int32_t *starts)
{
    return KERNELS_PICK(is_lanes)->partition(keys, n, shift, n_buckets, out, starts);
}

int64_t kernels_is_place(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *cumulative, int32_t first,
                         int32_t *out, size_t len)
{
    return KERNELS_PICK(is_lanes)->place(keys, n, base, m, cumulative, first, out, len);
}
