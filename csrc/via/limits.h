/*
 * limits.h - the limits of a NIC. The frame parser relies on them, and VipQueryNic reports them.
 *
 * Formats bound two of them: a memory handle has 16 bits for the index of a region, and a frame 16 bits for the number
 * of a VI. The others bound the memory that a program, or an unknown peer, can make a NIC use.
 */
#ifndef VIAKIT_VIA_LIMITS_H
#define VIAKIT_VIA_LIMITS_H

#include "vipl.h"

#define VIA_MAX_VI 4096   /* per NIC */
#define VIA_VI_POOL 65536 /* per process */
#define VIA_CQ_POOL 65536
#define VIA_MAX_CQ 1024
#define VIA_MAX_CQ_ENTRIES 65536
#define VIA_MAX_PTAGS 1024
#define VIA_MAX_REGIONS 16384
#define VIA_MAX_QUEUE 1024 /* descriptors per work queue; a power of two */
#define VIA_MAX_SEGMENTS 252
#define VIA_MAX_TRANSFER (64ul << 20)
#define VIA_READ_REQUESTS 16    /* per VI: read requests outstanding, and read requests of the peer that wait */
#define VIA_BATCH 45            /* frames per link send: a super-frame at MTU 1500 */
#define VIA_MAX_DEFERRED 4096   /* control frames that wait for space on the link: one per VI */
#define VIA_FAILED_PEERS 16     /* peers to which the link failed since the timers last ran */
#define VIA_CONN_HASHES 256     /* a power of two */
#define VIA_MAX_CONNS 1024      /* answered connection requests that a NIC remembers */
#define VIA_FLIGHT 1024         /* unacknowledged link sends per VI, at most; a power of two */
#define VIA_WINDOW 255          /* the largest window that a program may request, link sends */
#define VIA_MAX_AHEAD 16384     /* the furthest that a sender can be ahead: VIA_WINDOW link sends of VIA_BATCH frames */
#define VIA_REORDER_FRAMES 4032 /* a receiver keeps no frame further ahead of the expected one */
#define VIA_RDMA_READ_LEVELS (VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION)
#define VIA_ALL_LEVELS (VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION)

#endif
