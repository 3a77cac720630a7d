/*
 * api_objects.h - a NIC on loop with one object of each kind, for test_api.c and test_handles.c.
 */
#ifndef API_OBJECTS_H
#define API_OBJECTS_H

#include <sys/mman.h>

#include "address.h"
#include "check.h"

#define DEVICE "loop:api"

/* The result of nearly every call with a wrong argument. */
static const VIP_RETURN bad = VIP_INVALID_PARAMETER;

/* A NIC with one object of each kind. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    uint8_t *mem;
    VIP_MEM_HANDLE mh;
    VIP_NIC_ATTRIBUTES attr;
    VIP_VI_ATTRIBUTES vi_attr;
} objects;

static inline void open_objects(objects *o)
{
    VIP_MEM_ATTRIBUTES mem_attr = {0};
    memset(o, 0, sizeof(*o));
    CHECK_OK(VipOpenNic(DEVICE, &o->nic));
    CHECK_OK(VipQueryNic(o->nic, &o->attr));
    CHECK_OK(VipCreatePtag(o->nic, &o->ptag));
    CHECK_OK(VipCreateCQ(o->nic, 16, &o->cq));
    o->mem = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(o->mem != MAP_FAILED);
    mem_attr.Ptag = o->ptag;
    CHECK_OK(VipRegisterMem(o->nic, o->mem, 65536, &mem_attr, &o->mh));
    o->vi_attr.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    o->vi_attr.Ptag = o->ptag;
    CHECK_OK(VipCreateVi(o->nic, &o->vi_attr, NULL, NULL, &o->vi));
}

static inline void close_objects(objects *o)
{
    CHECK_OK(VipDestroyVi(o->vi));
    CHECK_OK(VipDestroyCQ(o->cq));
    CHECK_OK(VipDeregisterMem(o->nic, o->mem, o->mh));
    CHECK_OK(VipDestroyPtag(o->nic, o->ptag));
    CHECK_OK(VipCloseNic(o->nic));
    munmap(o->mem, 65536);
}

static inline void ignore_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)error;
    if (context)
        __atomic_add_fetch((int *)context, 1, __ATOMIC_SEQ_CST);
}

/* The address of this NIC, with a discriminator. */
static inline VIP_NET_ADDRESS *own_address(objects *o, address *a, const char *discriminator)
{
    memset(a, 0, sizeof(*a));
    a->net.HostAddressLen = 6;
    a->net.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(a->room + 4, o->attr.LocalNicAddress, 6);
    memcpy(a->room + 10, discriminator, strlen(discriminator));
    return &a->net;
}

#endif
