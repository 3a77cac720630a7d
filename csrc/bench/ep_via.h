/*
 * bench/ep_via.h - the endpoint of VIA: its struct, shared by ep_via.c (messages) and ep_via_open.c (opening,
 * connecting, and the description).
 */
#ifndef BENCH_EP_VIA_H
#define BENCH_EP_VIA_H

#include <stdatomic.h>

#include "bench/bench.h"
#include "viakit.h"
#include "vipl.h"

#define DEPTH 128 /* descriptors of a direction; a power of two, above the largest window */
#define DESCRIPTORS_LEN (2 * DEPTH * sizeof(VIP_DESCRIPTOR) + sizeof(struct keys))

/* Where a peer may write: the start of the receive buffers. */
struct key {
    uint64_t start;
    VIP_MEM_HANDLE handle;
    uint32_t unused;
};

/* The exchange of keys. It lies behind the descriptors, in the same registered block. */
struct keys {
    VIP_DESCRIPTOR receive; /* of the peer's */
    struct key mine, peers;
};

typedef struct {
    bench_ep ep;
    VIP_NIC_HANDLE nic; /* NULL until it is open, and so on downward */
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_HANDLE vi;
    bool connected;
    _Atomic int lost;              /* set by the asynchronous error handler: 1 + VIP_ERROR_CODE */
    VIP_NIC_ATTRIBUTES attributes; /* of the NIC: address, limits */

    VIP_DESCRIPTOR *sends, *receives; /* [DEPTH] each, in one registered block */
    VIP_MEM_HANDLE descriptors_handle;
    unsigned char *memory; /* all buffers, registered */
    size_t memory_len;
    bench_memory kind; /* the source of `memory` */
    VIP_MEM_HANDLE memory_handle;

    bool write, has_sent_key, has_key; /* messages are RDMA writes; this side's key is sent, the peer's is here */
    struct keys *keys;

    size_t depth; /* most descriptors under way in one direction: window + 2 */
    uint64_t n_sent, n_reaped, n_expected, n_posted, n_taken;
} via_ep;

/* ep_via.c */
extern const bench_ops ep_via_ops;
/* A call failed. The provider's text has more detail than the code. Returns BENCH_ERROR. Call it right after the failed
 * call, because the next call may replace the text. */
int ep_via_failed(via_ep *ep, const char *call, VIP_RETURN code);
/* Allocate memory, make its pages resident, and register it. BENCH_DONE or an error, after which nothing is left. The
 * endpoint frees it in `close`. */
int ep_via_allocate(via_ep *ep, size_t len, bench_memory kind, void **memory, VIP_MEM_HANDLE *handle);
/* The NIC's error handler; context is the endpoint. Called from any thread. */
void ep_via_on_error(void *context, VIP_ERROR_DESCRIPTOR *error);

#endif
