/*
 * peers.h - the ranks of a job connected over VIPL, with receive slots and credits. BIP and the message engine's
 * channel `via` are its users. It calls only the public functions of VIPL.
 *
 *     peers_init          the table of pairs
 *     peers_open_port     a NIC: [0] for the ranks of this host, [1] for the others
 *     peers_make_buffers  its slots and their memory, once the number of its ranks is known
 *     peers_make_pair     a VI for one rank, with all its receives posted
 *     peers_connect       every pair, as peers (connect.c); with `sparse` only neighbours
 *     peers_meet          sparse: begins to connect another pair, when one of its ranks first needs it (meet.c)
 *     peers_close         the VIs, then the NICs with all their objects
 *
 * The user exchanges the ranks' addresses itself, and calls peers_set_address for each rank before peers_connect.
 * Packets are the user's, too. The user embeds struct peers_slot and struct peers_pair as first members of its own
 * structs.
 *
 * Pairs, seen from one of the two ranks:
 *
 *     APART --peers_meet, or the other rank has requested it--> MEETING --both have--> MET
 *                                                                  '---peers_part--> PARTED
 *
 * Credits. Each side of a pair keeps n_recv receives posted, and grants the peer fewer credits than that. A packet
 * costs a credit, so it always finds a receive. A slot whose packet was read is posted again, and then *owed* to the
 * peer. Owed credits travel on the next packet to the peer (peers_pay). When half of them are owed (peers_owes), the
 * user sends a packet of its own for them, which costs no credit.
 *
 *      this rank                                        peer
 *      credits 8  ---- packet, costs 1 ---->            reads the slot, posts it again: owed 1
 *      credits 7
 *      credits 8  <--- packet with owed credits 1 ---   owed 0
 *
 * Sends have no completion queue. Pairs with outstanding sends are listed in `unsettled`, where the user reaps them.
 *
 * Threads: the user ensures that one thread at a time uses a struct peers. Only peers_sleep may run beside others.
 */
#ifndef VIAKIT_PEERS_H
#define VIAKIT_PEERS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/atomic.h"
#include "peers/cache.h"

/* One descriptor with its buffer, in registered memory. A pointer to the descriptor is a pointer to the slot. */
struct peers_slot {
    VIP_DESCRIPTOR d;
    struct peers_pair *pair; /* to whose VI it is posted */
    char *buf;               /* NULL: an RDMA slot, whose data is elsewhere */
    struct peers_slot *next; /* in a free list */
};

/* An open NIC. Each block of memory is registered once:
 *
 *     slots         [n_sends] [n_rdma] [n_recv of the first pair] [n_recv of the second] ...
 *     send_memory   `room` bytes for each send slot        shared: ranks of this host may read it
 *     recv_memory   of each pair: the same for its n_recv slots */
struct peers_port {
    struct peers *peers;
    void *owner; /* that of `peers` */
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_CQ_HANDLE cq; /* of all receives */
    VIP_NIC_ATTRIBUTES attributes;
    viakit_nic_info info;
    char device[64];
    uint8_t address[VIAKIT_NIC_ADDRESS_LEN], address_len;
    int index;          /* 0 local, 1 network */
    bool lossless;      /* a posted send is usually complete when the call returns */
    bool can_read;      /* RDMA reads */
    uint32_t lost;      /* set by the NIC's error handler: a connection broke */
    size_t room;        /* bytes of a slot's buffer */
    uint32_t n_recv;    /* receives of each rank */
    uint32_t owed_most; /* a pair that owes as many credits must report them */
    uint32_t n_pairs;   /* ranks on this NIC, whose receives are assigned */
    char *slots;
    char *send_memory;
    size_t slots_len, send_len, recv_len; /* recv_len: once all pairs have met */
    VIP_MEM_HANDLE slots_handle, send_handle;
    struct peers_slot *free_sends, *free_rdma;
    uint32_t n_free_sends;
    struct peers_cache cache;
};

/* The connection to another rank. Its VI and receives are made once (peers_make_pair) and stay until peers_close, also
 * after the connection has failed: the completion queue may still have entries of the VI. The user sets `credits` to
 * what the peer has granted, before its first packet. */
struct peers_pair {
    struct peers_port *port; /* NULL: this rank itself */
    VIP_VI_HANDLE vi;
    uint32_t credits;       /* packets that this rank may send */
    uint32_t owed;          /* slots posted again, and not yet reported to the peer */
    uint32_t n_outstanding; /* sends and RDMA not yet reaped */
    bool listed;            /* in `unsettled` */
    uint8_t state;          /* enum peers_state */
    uint8_t requested;      /* the other rank has requested the connection; set by any thread */
    uint8_t address_len, address[VIAKIT_NIC_ADDRESS_LEN];
    char *recv_memory;
    VIP_MEM_HANDLE recv_handle;
};

/* APART and MEETING lead to MET or PARTED, which are final: a pair connects once. A connection that breaks later leaves
 * its pair MET, and the user sees failed descriptors. peers_connect also uses MEETING, but keeps a list of its own. */
enum peers_state { PEERS_APART, PEERS_MEETING, PEERS_MET, PEERS_PARTED };

/* NIC: a call of VIPL failed, or the NIC's address does not fit. NO_MEMORY: of this process. TIMEOUT: the deadline of
 * peers_connect has passed. */
enum peers_error { PEERS_ERR_NIC, PEERS_ERR_NO_MEMORY, PEERS_ERR_TIMEOUT };

struct peers {
    /* The user sets these before peers_init. */
    void *owner;
    /* Stores the text of an error, and returns the user's code for it. The functions below return this code. */
    int (*failed)(void *owner, enum peers_error error, const char *text);
    int rank, n_ranks, n_local; /* n_local: on this host, this rank included */
    const char *name;           /* of the job; the first name_len bytes are part of the connections' names */
    size_t name_len;            /* at most PEERS_NAME_LEN */
    const uint8_t *secret;      /* PEERS_SECRET_LEN bytes. Every connection proves it in both directions. */
    VIP_RELIABILITY_LEVEL reliability;
    bool sparse; /* only neighbours connect at the start; after peers_connect other pairs may meet */
    bool reads;  /* connections and cached registrations permit RDMA reads, if the NIC can do them */
    uint32_t n_sends, n_rdma;
    size_t slot_len, pair_len; /* of the user's structs */
    struct peers_cache_limits limits;
    struct peers_cache_counters counters;
    /* State. */
    struct peers_port *ports[2];
    char *pairs;                   /* [n_ranks] */
    struct peers_pair **unsettled; /* [n_unsettled] */
    uint32_t n_unsettled;          /* peers_sleep reads it without the lock */
    uint32_t next_sleep;           /* selects the NIC of the next sleep */
    struct peers_pair **meeting;   /* [n_meeting] pairs in state MEETING */
    uint32_t n_meeting;            /* peers_sleep reads it without the lock */
    uint32_t requests;             /* non-zero: `requested` is set in a pair; set by any thread */
};

/* Parts of the discriminator of each connection, and the key of the proofs. A shorter name is allowed (name_len), a
 * shorter secret is not. */
#define PEERS_NAME_LEN 16
#define PEERS_SECRET_LEN 32

/* open.c. All return 0 or the user's error code. Parts made before an error stay for peers_close. */
int peers_init(struct peers *p);
/* faults: text of faults to inject, or NULL. `thread`: the NIC must have a thread. Otherwise it has none on shm, where
 * nothing is retransmitted and the user's calls make progress. */
int peers_open_port(struct peers *p, int index, const char *device, viakit_nic_options *options, const char *faults,
                    bool thread);
/* Allocates and registers the slots and send buffers, for n_ranks pairs with n_recv receives each. room: bytes of a
 * buffer. The receives' buffers are made with their pair. */
int peers_make_buffers(struct peers_port *port, uint32_t n_ranks, size_t room, uint32_t n_recv);
/* Makes a pair's VI, which will prove the job's secret, and posts its receives. The caller connects it. */
int peers_make_pair(struct peers_port *port, struct peers_pair *pair);
/* Reports a failed call of VIPL with the provider's explanation. Returns the user's code, as `failed` gives it. */
int peers_nic_failed(struct peers *p, const char *call, VIP_RETURN code);
/* Closes a port that no pair uses. */
void peers_close_port(struct peers *p, int index);
void peers_close(struct peers *p);
/* Drops cached registrations that overlap the range, on both NICs. */
void peers_forget(struct peers *p, const void *buf, size_t len);
/* Services a connected job while the caller waits elsewhere. Only the local NIC: others have a thread. */
void peers_attend(const struct peers *p);
/* Sleeps at most ms until a packet arrives. Returns the VI whose receive is complete, or NULL. Any thread. */
VIP_VI_HANDLE peers_sleep(struct peers *p, uint64_t ms);

/* connect.c. Stores the address of the rank's NIC: that of its port. len: at most VIAKIT_NIC_ADDRESS_LEN. */
void peers_set_address(struct peers_pair *pair, const uint8_t *address, uint8_t len);
/* Connects all pairs until the deadline. Calls idle(context) whenever no connection was completed; its result, unless
 * 0, ends the call and is returned. */
int peers_connect(struct peers *p, uint64_t deadline, int (*idle)(void *context), void *context);

/* Are two different ranks neighbours? Their distance on the circle of ranks is then a power of two. */
static inline bool peers_are_neighbours(int a, int b, int n_ranks)
{
    int up = ((b - a) % n_ranks + n_ranks) % n_ranks, down = n_ranks - up;
    return (up & (up - 1)) == 0 || (down & (down - 1)) == 0;
}

/* meet.c. From now on requests of other ranks are noted. Called once the ports are open. */
int peers_admit(struct peers *p);
/* Begins to connect to a rank: makes the VI and requests the connection. Returns 0 or the user's error code. No effect
 * unless the pair is APART. */
int peers_meet(struct peers *p, int rank);
/* Makes progress: meets the ranks that have requested this one. Calls over(owner, rank, code) for each pair that is
 * connected (0), or cannot be (the user's code). Returns the number of calls. */
int peers_meetings(struct peers *p, void (*over)(void *owner, int rank, int code));
/* Gives up a pair that is MEETING: it will not be connected. */
void peers_part(struct peers *p, int rank);
/* connect.c: requests the connection of a pair that has a VI. */
int peers_request(struct peers *p, int rank);

/* Returns whether peers_meetings has work. */
static inline bool peers_are_meeting(const struct peers *p)
{
    return (vk_load_relaxed(&p->requests) | p->n_meeting) != 0;
}

/* The position in `pairs` is the rank. Pairs lie pair_len bytes apart, because each is embedded in a struct of the
 * user. */
static inline int peers_rank_of(const struct peers *p, const struct peers_pair *pair)
{
    return (int)((size_t)((const char *)pair - p->pairs) / p->pair_len);
}

static inline struct peers_pair *peers_pair_of(const struct peers *p, int rank)
{
    return (struct peers_pair *)(void *)(p->pairs + (size_t)rank * p->pair_len);
}

/* ---- the short path */

/* Posts a receive. The provider takes the buffer's length from the segment and ignores CS.Length. */
static inline VIP_RETURN peers_post_recv(struct peers_pair *pair, struct peers_slot *slot)
{
    slot->d.CS.Control = 0;
    return VipPostRecv(pair->vi, &slot->d, pair->port->slots_handle);
}

/* Posts a send or RDMA. It counts as outstanding also after an error: the caller then treats it as reaped. */
static inline VIP_RETURN peers_post(struct peers_pair *pair, struct peers_slot *slot)
{
    slot->pair = pair;
    pair->n_outstanding++;
    return VipPostSend(pair->vi, &slot->d, pair->port->slots_handle);
}

/* Returns the next completed send, or NULL. A VI completes its sends in the order in which they were posted. The caller
 * decrements n_outstanding and frees the slot. *failed is set only with a slot. Without outstanding sends this makes no
 * call of VIPL. */
static inline struct peers_slot *peers_next_done(struct peers_pair *pair, bool *failed)
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN code = pair->n_outstanding ? VipSendDone(pair->vi, &d) : VIP_NOT_DONE;
    if (d == NULL || code == VIP_NOT_DONE)
        return NULL;
    *failed = code != VIP_SUCCESS;
    return (struct peers_slot *)(void *)d;
}

/* Returns a completed receive of this VI, or NULL. *failed is set only with a slot. The slot belongs to the caller
 * until it posts it again; until then the peer has one credit less. */
static inline struct peers_slot *peers_received(VIP_VI_HANDLE vi, bool *failed)
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN code = VipRecvDone(vi, &d);
    if (vk_unlikely(d == NULL || code == VIP_NOT_DONE))
        return NULL;
    *failed = code != VIP_SUCCESS;
    return (struct peers_slot *)(void *)d;
}

/* Returns a VI with a completed receive, or NULL. Each entry of the queue stands for one receive, so the caller calls
 * peers_received once for each. Only receives have entries, so `recv` is not returned. */
static inline VIP_VI_HANDLE peers_poll(const struct peers_port *port)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    return VipCQDone(port->cq, &vi, &recv) == VIP_SUCCESS ? vi : NULL;
}

/* Lists the pair in `unsettled`, at most once. The store is relaxed: peers_sleep reads the number only as a hint. */
static inline void peers_unsettle(struct peers_pair *pair)
{
    struct peers *p = pair->port->peers;
    if (pair->listed)
        return;
    pair->listed = true;
    p->unsettled[p->n_unsettled] = pair;
    vk_store_relaxed(&p->n_unsettled, p->n_unsettled + 1);
}

/* Removes entry i. The last entry takes its place, so a loop over the list looks at index i again. */
static inline void peers_settled(struct peers *p, uint32_t i)
{
    p->unsettled[i]->listed = false;
    p->unsettled[i] = p->unsettled[p->n_unsettled - 1];
    vk_store_relaxed(&p->n_unsettled, p->n_unsettled - 1);
}

/* Returns a slot of this port, for any rank on it. The list must not be empty: the caller checks n_free_sends, and may
 * keep some slots for packets that carry only credits. */
static inline struct peers_slot *peers_take_send(struct peers_port *port)
{
    struct peers_slot *slot = port->free_sends;
    port->free_sends = slot->next;
    port->n_free_sends--;
    return slot;
}

/* The last slot returned is the next one taken, because its buffer is still in the cache. */
static inline void peers_put_send(struct peers_port *port, struct peers_slot *slot)
{
    slot->next = port->free_sends;
    port->free_sends = slot;
    port->n_free_sends++;
}

/* Users take an RDMA slot from the list themselves. An empty list delays the transfer. */
static inline void peers_put_rdma(struct peers_port *port, struct peers_slot *slot)
{
    slot->next = port->free_rdma;
    port->free_rdma = slot;
}

/* Sets DS[0], the remote segment of RDMA, and the length. The caller sets DS[1], the local one, except its length.
 * control: VIP_CONTROL_OP_RDMAWRITE or _RDMAREAD, and VIP_CONTROL_IMMEDIATE if the write consumes a receive. */
static inline void peers_set_rdma(struct peers_slot *slot, int control, uint64_t address, uint32_t handle, size_t len)
{
    slot->d.CS.Control = (VIP_UINT16)control;
    slot->d.CS.SegCount = 2;
    slot->d.CS.Length = slot->d.DS[1].Local.Length = (VIP_UINT32)len;
    slot->d.DS[0].Remote.Data.AddressBits = address;
    slot->d.DS[0].Remote.Handle = handle;
    slot->d.DS[0].Remote.Reserved = 0;
}

/* Returns the owed credits that travel on this packet, at most 255: the field of a packet is a byte. From here on the
 * packet must be posted, or the credits are lost. */
static inline uint8_t peers_pay(struct peers_pair *pair)
{
    uint32_t n = pair->owed < 255 ? pair->owed : 255;
    pair->owed -= n;
    return (uint8_t)n;
}

/* Must the user send a packet for credits, if no other packet takes them along first? */
static inline bool peers_owes(const struct peers_pair *pair)
{
    return pair->owed >= pair->port->owed_most;
}

#endif
