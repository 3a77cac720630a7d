/* The table of the streams of simulated machines, for the provider (base/streams.h has the contract). */
#ifndef VIAKIT_SIM_STREAM_H
#define VIAKIT_SIM_STREAM_H

#include "base/streams.h"

/* Constant for the life of the process. viakit_stream_table() hands it to the rooms above. */
extern const struct vk_streams sim_streams;

#endif
