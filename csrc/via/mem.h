/*
 * mem.h - registered memory and protection tags (objects/mem.c).
 *
 * Only the NIC's owner (own.h) touches these fields, unless a contract states otherwise.
 */
#ifndef VIAKIT_VIA_MEM_H
#define VIAKIT_VIA_MEM_H

#include <stdint.h>

#include "base/pool.h"
#include "via/nic.h"

/* One entry of a NIC's region table. If the link has memory that peers on the same host can see (shm), a copy of the
 * table lies there (nic->published). Peers check rights in the copy before they access memory directly, and hold
 * `users` meanwhile. This NIC never reads rights from the copy: every process that can read it can also write to it, if
 * only by mistake. */
struct via_region {
    uint64_t address, len;
    uint32_t handle;  /* 0: free; else generation << 16 | index: changes with every registration */
    uint32_t ptag;    /* number of the tag; 0 is the NULL tag, which matches any (via_tags_match) */
    uint32_t rights;  /* VIA_RIGHT_* */
    uint32_t users;   /* published: peers that are reading or writing directly at present */
    uint32_t past[4]; /* generations given out last for this index: none of them is reused at once */
    uint16_t pinned;
    uint16_t abandoned; /* a peer did not finish in time: the entry is not published again, nor its index reused */
    uint32_t next_free;
    struct link_memory *memory; /* the registration with the card; NULL: none yet */
};
_Static_assert(sizeof(struct via_region) == 64, "a region entry is a cache line");

#define VIA_RIGHT_WRITE 1
#define VIA_RIGHT_READ 2

/* A protection tag is a number. VIs, regions and (in connection requests) peers on the same host compare it. */
struct via_ptag {
    struct vk_object object;
    struct via_nic *nic;
    uint32_t number; /* 1.. within the NIC */
    uint32_t n_users;
};

/* Reserves the region table, and the published copy if the link has one. Returns 0 or -ENOMEM. */
int via_mem_init(struct via_nic *nic);
/* Releases regions, allocations and tags that the program left. Waits for peers that are copying. */
void via_mem_fini(struct via_nic *nic);
/* Returns the tag's number, 0 for NULL. *valid is 0 if the handle is no living tag of this NIC. */
uint32_t via_ptag_number(struct via_nic *nic, VIP_PROTECTION_HANDLE tag, int *valid);

/* Do two tags of one NIC match? 0 is the NULL tag, which matches any tag. Two different real tags never match. */
static inline int via_tags_match(uint32_t one, uint32_t other)
{
    return vk_likely(one == other) || one == 0 || other == 0;
}

/* Is [address, address+len) inside the region, and does the region's tag match? */
static inline int via_mem_grants(const struct via_nic *nic, VIP_MEM_HANDLE handle, const void *address, uint64_t len,
                                 uint32_t ptag)
{
    uint32_t index = handle & 0xFFFF;
    if (vk_unlikely(index >= VIA_MAX_REGIONS || handle == 0))
        return 0;
    const struct via_region *r = &nic->regions[index];
    uint64_t offset = (uint64_t)(uintptr_t)address - r->address;
    return r->handle == handle && via_tags_match(r->ptag, ptag) && offset <= r->len && len <= r->len - offset;
}

#endif
