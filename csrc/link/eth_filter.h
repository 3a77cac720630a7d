/*
 * The filter of a packet socket: which frames the kernel delivers to a NIC.
 */
#ifndef VIAKIT_ETH_FILTER_H
#define VIAKIT_ETH_FILTER_H

#include <stdint.h>

/* Bit of IP's identification that marks super-frames of long messages (eth.c). */
#define ETH_MARK 0x8000u

enum eth_marks { ETH_ANY, ETH_MARKED, ETH_UNMARKED };

/* Lets only viakit's frames in: either form of frame, for this port or for port 0 (any NIC with a waiting VI), of
 * `least` to `most` bytes including the Ethernet header. With least > most nothing is received. Frames of the
 * form "udp" must have the mark, or must not have it, unless `marks` is ETH_ANY. Returns 0 or -errno. */
int eth_filter_set(int fd, uint16_t port, uint32_t least, uint32_t most, enum eth_marks marks);

#endif
