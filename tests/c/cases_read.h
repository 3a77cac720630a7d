/*
 * cases_read.h - RDMA reads, for cases_read.c and cases_read_error.c: memory that the peer may read, and descriptors.
 */
#ifndef CASES_READ_H
#define CASES_READ_H

#include "conformance.h"

#define RELIABLE_LEVEL(level) ((level) != VIP_SERVICE_UNRELIABLE)
#define N_RELIABLE 2 /* RDMA reads exist at the first two of levels[] */

/* Segment i. VIP_DESCRIPTOR declares fewer segments than a descriptor may have. */
static inline VIP_DESCRIPTOR_SEGMENT *segment_of(VIP_DESCRIPTOR *d, unsigned i)
{
    return (VIP_DESCRIPTOR_SEGMENT *)(void *)((char *)d + sizeof(VIP_CONTROL_SEGMENT)) + i;
}

/* Address of B's memory for A's reads. B sends it over the control channel. */
typedef struct {
    uint64_t at;
    VIP_MEM_HANDLE handle;
} source;

static inline void offer(endpoint *e, const void *at, VIP_MEM_HANDLE handle)
{
    source t;
    memset(&t, 0, sizeof(t));
    t.at = (uint64_t)(uintptr_t)at;
    t.handle = handle;
    side_send(e->s, &t, sizeof(t));
}

static inline source take(endpoint *e)
{
    source t;
    side_recv(e->s, &t, sizeof(t));
    return t;
}

/* An endpoint whose VI and memory may be read by the peer. */
static inline void open_readable(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, size_t size)
{
    VIP_MEM_ATTRIBUTES attr;
    endpoint_open(e, s, level, size);
    memset(&attr, 0, sizeof(attr));
    attr.Ptag = e->ptag;
    /* endpoint_open grants writes only. */
    attr.EnableRdmaWrite = attr.EnableRdmaRead = VIP_TRUE;
    CHECK_OK(VipSetMemAttributes(s->nic, e->mem, e->mh, &attr));
    /* The attributes of a VI are set at its creation. */
    CHECK_OK(VipDestroyVi(e->vi));
    e->attr.EnableRdmaRead = VIP_TRUE;
    CHECK_OK(VipCreateVi(s->nic, &e->attr, NULL, NULL, &e->vi));
}

static inline VIP_DESCRIPTOR *prep_read(endpoint *e, VIP_DESCRIPTOR *d, void *data, size_t len, uint64_t remote,
                                        VIP_MEM_HANDLE handle)
{
    prep_write(e, d, data, len, remote, handle);
    d->CS.Control = VIP_CONTROL_OP_RDMAREAD;
    return d;
}

#endif
