/* EP by vectors (lanes.h). */
#ifndef VIAKIT_KERNELS_EP_LANES_H
#define VIAKIT_KERNELS_EP_LANES_H

#include "lanes.h"

struct ep_lanes {
    /* kernels_ep() for as many pairs as fill vectors; returns their number. */
    uint64_t (*pairs)(uint64_t x, uint64_t n, struct kernels_ep *out);
};

KERNELS_DECLARE(struct ep_lanes, ep_lanes)

#endif
