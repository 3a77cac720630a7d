// relay.h: a switch of packet sockets that forwards each frame after a delay. The testbed's wire with a delay consists of it.

#ifndef BENCH_RELAY_H
#define BENCH_RELAY_H

#include <stdint.h>

enum { RELAY_MAX_PORTS = 64, RELAY_ADDRESS_LEN = 6 };

// One interface of the switch, and the host at its other end.
typedef struct relay_port_plan {
    char name[16];                   // interface
    uint8_t host[RELAY_ADDRESS_LEN]; // MAC address of the host
} relay_port_plan;

// Written by the relay only. Another process may read it at any time, so each field is stored atomically.
typedef struct relay_counts {
    uint64_t frames;      // forwarded; a super-frame is one
    uint64_t bytes;       // of them, with Ethernet headers
    uint64_t dropped;     // lost: a ring was full, or the interface refused the frame
    uint64_t late_ns;     // sum over all frames of the time beyond the delay
    uint64_t late_max_ns; // the longest of them
    uint64_t queued_max;  // most bytes that waited in one port's queue
} relay_counts;

// Forward frames between the ports until the process ends. Every frame leaves `delay_ns` after its arrival or later, and frames
// of one port leave in their order. `longest` is the length of the longest frame. `ready` is called once, when no later frame can be missed.
// The call blocks, and returns only an errno: before `ready` if a socket or its ring is refused, after it if waiting fails.
int relay_run(const relay_port_plan *ports, int n_ports, uint64_t delay_ns, uint32_t longest, relay_counts *counts,
              void (*ready)(void *context), void *context);

#endif
