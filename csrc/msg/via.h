/*
 * via.h - the `via` channel's own structs, shared by via.c (packets and RDMA), via_open.c (connecting) and vc_cache.c
 * (registered memory).
 *
 * One VI for each other rank; ranks of this host on the local NIC (shm, loop), others on the network NIC (eth, udp).
 * All VIs of a NIC share one completion queue for receives. Sends have none: they are taken back in passing.
 *
 * Credits: each side keeps n_recv buffers posted (it says how many when they connect: where hosts have different
 * numbers of ranks the two differ) and lets the other have n_recv - RESERVE of them under way, so no message ever
 * finds an empty queue. A buffer that was read is posted again and owed to the sender; what is owed rides on the next
 * packet, or goes alone when half of all are owed. A packet that is only a credit uses the reserve. It stands for
 * half of the credits, or for 255, the most that its field can say, and MaxDescriptorsPerQueue is 1024: so the other
 * side must have used a quarter of its credits for each, and no more than RESERVE can be under way.
 */
#ifndef VIAKIT_MSG_VIA_H
#define VIAKIT_MSG_VIA_H

#include "channel.h"
#include "viakit.h"
#include "vipl.h"

#define VC_RESERVE 4
#define VC_LEAST_CREDITS 8
#define VC_SEND_SLOTS 64 /* eager buffers for sending, of a NIC; the last two are for credits */
#define VC_RDMA_SLOTS 64

/* A descriptor and what we know about it, in registered memory. */
struct vc_slot {
    VIP_DESCRIPTOR d;
    struct vc_rank *rank; /* posted to its VI */
    char *buf;
    struct vc_slot *next; /* free */
    uint64_t request;     /* RDMA: id of the request it moves data for ... */
    size_t len;           /* ... and how much; 0: not RDMA */
    uint64_t failed;      /* untold: how it ended */
    uint64_t reserved[2];
};
_Static_assert(sizeof(struct vc_slot) == 128, "a descriptor and a line of ours");

struct vc_region; /* vc_cache.c */

struct vc_cache {
    struct vc_region **buckets, *oldest, *youngest;
    uint32_t mask, n;
    uint64_t bytes;
};

struct vc_port { /* an open NIC */
    msg_world *world;
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_CQ_HANDLE cq;
    VIP_NIC_ATTRIBUTES attributes;
    char device[64];
    int index; /* 0 local, 1 network */
    uint16_t nic_port;
    uint64_t bytes_to_map; /* what it costs each rank of this host */
    int lossless;          /* a posted send is done when the call returns, most times */
    int can_read;
    uint32_t lost;            /* set by the NIC's handler: a connection broke */
    size_t eager_limit, room; /* room: bytes of an eager buffer */
    uint32_t n_recv, n_ranks; /* buffers for each rank; ranks on this NIC */
    struct vc_slot *slots;    /* send, RDMA and receive slots, one registered block */
    size_t n_slots;
    char *send_memory, *recv_memory;
    size_t recv_bytes;
    VIP_MEM_HANDLE slots_handle, send_handle, recv_handle;
    struct vc_slot *free_sends, *free_rdma;
    uint32_t n_free_sends;
    struct vc_cache cache;
};

struct vc_rank {
    struct msg_peer *peer;
    struct vc_port *port;
    VIP_VI_HANDLE vi;
    uint32_t credits;       /* packets we may send */
    uint32_t owed;          /* buffers posted again that it does not know of */
    uint32_t n_outstanding; /* sends and RDMA not taken back */
    int on_list;
    struct vc_rank *next; /* of those with something outstanding or owed too much */
    struct vc_slot *recv; /* [n_recv] */
};

struct vc_world {
    struct vc_port *ports[2];
    struct vc_rank *ranks; /* [n_ranks] */
    struct vc_rank *unsettled;
    struct vc_slot *untold; /* taken back, but nobody has been told: RDMA, and what failed */
    uint32_t n_unsettled;   /* roughly; looked at without the lock */
    int turn;               /* whose turn it is to be slept on */
};

/* vc_cache.c */
int vc_cache_init(struct vc_port *port);
void vc_cache_fini(struct vc_port *port);
/* A registration that covers [buf, buf+len); it stays until it is given back. NULL: cannot be registered. */
struct vc_region *vc_cache_get(struct vc_port *port, void *buf, size_t len);
void vc_cache_put(struct vc_port *port, struct vc_region *region);
void vc_cache_forget(struct vc_port *port, const void *buf, size_t len);
VIP_MEM_HANDLE vc_region_handle(const struct vc_region *region);

/* via_open.c */
int vc_open(msg_world *w, const msg_options *options);
void vc_attend(msg_world *w);
void vc_close(msg_world *w);

/* via.c */
int vc_post_recv(struct vc_rank *rank, struct vc_slot *slot);
void vc_reap(struct vc_rank *rank);

#endif
