/* IS by vectors (lanes.h); the functions are those of kernels.h. */
#ifndef VIAKIT_KERNELS_IS_LANES_H
#define VIAKIT_KERNELS_IS_LANES_H

#include "lanes.h"

struct is_lanes {
    void (*keys)(uint64_t x, int shift, int32_t *keys, size_t n);
    int (*count)(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *counts, void *work);
    int (*partition)(const int32_t *keys, size_t n, int shift, size_t n_buckets, int32_t *out, int32_t *starts);
    int64_t (*place)(const int32_t *keys, size_t n, int32_t base, size_t m, int32_t *cumulative, int32_t first,
                     int32_t *out, size_t len);
};

KERNELS_DECLARE(struct is_lanes, is_lanes)

/* Up to this many different keys, if they are a power of two, are counted in 32 bits; more are counted in bytes
 * first. */
#define IS_SMALL 4096

/* The table size for m counts, rounded up to a power of two, so that a mask keeps any index within it. m is in [1,
 * 2^31]. */
static inline size_t is_room(size_t m)
{
    size_t room = 1;
    while (room < m) {
        room *= 2;
    }
    return room;
}

#endif
