/*
 * bip/internal.h - inside BIP. A consumer of VIPL: no internals of the provider.
 *
 *      open.c      NICs, buffers, connections, closing
 *      progress.c  what arrives, what has been sent, waiting
 *      send.c      both kinds of sends, and the pipeline
 *      recv.c      tags, receives, matching
 *      region.c    buffers that are registered stay so for a while
 *      model.c     packet sizes (public: model.h)
 *      classic.c   bip.h for C programs, launch.c how these find each other
 *
 * Every pair of ranks has one VI at reliable delivery. Its receive queue is BIP's queue for short messages: n_slots
 * buffers of the size of the longest short message, in which a message stays until the program takes it. The sender
 * has a credit for each and stops without; so nothing is ever dropped, and memory does not grow with messages.
 *
 *      SHORT   head, data                   costs a credit, which comes back when the message has been taken
 *      ASK     head with the length         a long message; costs a credit until its receive has been found
 *      GO      head, address, handle        here is the buffer
 *              RDMA writes, the last one with immediate data (checksum, or the low bits of the length)
 *      REFUSE  head, tag = the code         this message cannot be received: the sender is told why
 *      CREDIT  head                         room in the queue that no other message has told of
 *      BYE     head, seq = ASKs answered    the sender leaves, nothing follows; it has received so many long messages
 *
 * A rank has one send outstanding, so there is at most one GO or REFUSE on its way to it from each peer, one BYE, and
 * few CREDITs (each tells of half a queue): RESERVED buffers more than there are credits always suffice for these.
 */
#ifndef BIP_INTERNAL_H
#define BIP_INTERNAL_H

#include <stdbool.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "bip/job.h"
#include "viakit.h"

#define RESERVED 8
#define SEND_SLOTS 64
#define KEPT_SLOTS 4 /* of these, for what must always go out */
#define PACKETS 64   /* of the pipeline that may be under way */
#define REGIONS 64   /* registered buffers that are kept */
#define BUCKETS 256

enum { KIND_SHORT = 1, KIND_ASK, KIND_GO, KIND_REFUSE, KIND_CREDIT, KIND_BYE };

/* In the machine's byte order: ranks of one job are of one kind, which their cards say. */
typedef struct {
    uint8_t kind;
    uint8_t credits; /* room in the sender's queue for its peer's messages, more than was told before */
    uint16_t reserved;
    uint32_t seq; /* SHORT, ASK: number among the messages from this rank to that one; BYE: long messages received */
    int32_t tag;
    uint32_t crc; /* SHORT: of the data, if checksums were asked for */
    uint64_t len; /* SHORT, ASK: bytes of the message */
} bip_head;

typedef struct {
    bip_head head;
    uint64_t address;
    uint32_t handle, pad;
} bip_go;

_Static_assert(sizeof(bip_head) == 24, "a head is part of what ranks say to each other");

struct bip_peer;

/* A message that is here and has no receive yet: in a slot, or copied into its tag's own queue. */
typedef struct bip_arrival {
    struct bip_arrival *next;
    struct bip_peer *peer;
    bip_head head;
    char *data;
    struct bip_slot *slot; /* NULL: in the tag's own queue */
} bip_arrival;

/* A descriptor with its buffer: a receive, a send, or (no buffer) a packet. The descriptor comes first: a
 * pointer to it is one to the slot. A receive is posted, or in the program's hands (`arrival`); a send or
 * packet is free, or posted and counted in its peer's `outstanding`. */
typedef struct bip_slot {
    VIP_DESCRIPTOR d;
    struct bip_slot *next; /* among the free ones */
    struct bip_peer *peer;
    char *buf;
    bool packet;
    bip_arrival arrival;
} __attribute__((aligned(64))) bip_slot;

typedef struct {
    char *buf;
    size_t len;
    VIP_MEM_HANDLE handle;
    uint32_t users;
    uint64_t used; /* when last: a counter of uses */
} bip_region;

/* A NIC. [0] for ranks of this host, [1] for the others. */
typedef struct {
    bip_job *job;
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_PROTECTION_HANDLE ptag;
    VIP_CQ_HANDLE cq;
    char link[16], device[64];
    uint64_t bytes_to_map; /* address space that it costs each rank of this host */
    uint16_t nic_port;
    bip_table table;
    uint32_t n_peers;
    size_t room; /* bytes of a slot's buffer */
    bip_slot *slots;
    char *send_memory, *recv_memory;
    size_t slots_len, send_len, recv_len;
    VIP_MEM_HANDLE slots_handle, send_handle, recv_handle;
    bip_slot *free_sends, *free_packets;
    uint32_t n_free_sends;
    bip_region regions[REGIONS];
    uint64_t n_uses;
} bip_port;

typedef struct bip_recv bip_recv;

typedef struct bip_peer {
    int rank;
    bip_port *port; /* NULL: ourselves */
    VIP_VI_HANDLE vi;
    bip_slot *recv_slots;
    size_t small;     /* of messages to that rank */
    uint32_t n_slots; /* of its queue */
    uint32_t credits; /* free places in it */
    uint32_t owed;    /* places in ours that have become free and of which it has not heard */
    uint32_t send_seq, recv_seq;
    uint32_t outstanding; /* sends posted and not reaped */
    bip_recv *incoming;   /* whose buffer it is writing to */
    uint32_t long_sent;   /* messages moved to it, the present one included */
    uint32_t long_received;
    bool asking; /* its ASK is here, and neither its data nor our REFUSE has ended it: so long it sends no other */
    int refusal; /* the code of a REFUSE for which there was no buffer; 0: none */
    bool said_bye, lost; /* it leaves; the connection is gone */
    bool listed;         /* in the job's `unsettled` */
} bip_peer;

/* QUEUED has no credit or buffer yet, ASKED waits for GO or REFUSE, MOVING has packets under way (send.c has the
 * picture). */
typedef enum { SEND_IDLE, SEND_QUEUED, SEND_ASKED, SEND_MOVING } bip_send_state;

/* The one send of the job. */
typedef struct {
    bip_send_state state;
    bool noted; /* its end is told to the layer, with this: */
    uint64_t cookie;
    int id;   /* of the present or last send */
    int code; /* how it ended */
    bip_peer *peer;
    int tag;
    const char *buf;
    size_t len, packet, posted, done;
    uint32_t under_way;
    uint32_t crc;
    uint64_t address;
    uint32_t handle;
    bip_region *region;
} bip_send_request;

typedef struct bip_tag {
    struct bip_tag *next;
    int tag;
    bip_recv *posted;
    bip_arrival *first, *last;
    bip_arrival *held;     /* what getmsg gave out */
    bip_arrival *own_free; /* the tag's own queue */
    char **own_memory;     /* its allocations */
    uint32_t n_own, n_own_memory;
    size_t own_len;
} bip_tag;

/* WANTS_GO has found a long message and looks for a buffer to say so (recv.c has the picture). From MOVING on
 * the peer writes into the receive's buffer: it can only end with the data, or with the peer. */
typedef enum { RECV_FREE, RECV_POSTED, RECV_WANTS_GO, RECV_MOVING, RECV_DONE } bip_recv_state;

/* A receive. Its id is generation << 16 | index, so that an id that was used up finds nothing. */
struct bip_recv {
    bip_recv_state state;
    int index;
    uint32_t generation;
    int code;
    bip_tag *tag;
    char *buf;
    size_t max_len, len;
    bip_peer *peer;
    bip_region *region;
    bool noted; /* its end is told to the layer, with this: */
    uint64_t cookie;
    bip_recv *next; /* free, or waiting to say GO */
};

/* One rank's view of its job. One thread at a time; there are no locks. */
struct bip_job {
    bip_options options;
    bip_layer layer; /* if options.layer */
    bip_port *ports[2];
    bip_peer *peers;
    bip_send_request send;
    uint64_t n_sends; /* that were begun, short messages of a layer not among them: their ids (send.c) */
    bip_tag *buckets[BUCKETS], *free_tags;
    bip_recv **recvs, *free_recvs, *wants_go;
    int n_recvs;
    bip_peer **unsettled; /* peers with sends to be reaped */
    int n_unsettled;
    int n_left;
    int dead;       /* a rank that died; -1: none */
    int dead_code;  /* BIP_ERR_PEER, or DAMAGED */
    bool words_due; /* a CREDIT or REFUSE found no buffer */
    size_t memory;
    bool connected;
    char name[16];
    uint64_t host;
    uint64_t counters[BIP_N_COUNTERS];
    char error[BIP_ERROR_LEN];
};

#define BIP_COUNT(job, name, n) ((job)->counters[BIP_COUNTER_##name] += (uint64_t)(n))

/* Sets the text, returns the code. */
int bip_fail(bip_job *job, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
int bip_nic_failed(bip_job *job, const char *call, VIP_RETURN code);

/* region.c: the buffer registered, for writing by peers too; NULL: that failed. */
bip_region *bip_region_get(bip_port *port, const void *buf, size_t len);
void bip_region_put(bip_region *region);
void bip_regions_fini(bip_port *port);

/* progress.c */
int bip_post_slot(bip_peer *peer, bip_slot *slot);             /* for receiving */
bip_slot *bip_take_send(bip_peer *peer, uint32_t keep);        /* NULL: all are under way */
int bip_post_head(bip_peer *peer, bip_slot *slot, size_t len); /* what the slot's buffer holds, with credits */
int bip_post_send(bip_peer *peer, bip_slot *slot);
void bip_reap(bip_peer *peer);
int bip_control(bip_peer *peer, int kind, int tag); /* REFUSE, CREDIT, BYE: 1, 0: no buffer now */
void bip_free_slot(bip_slot *slot);                 /* a message has been taken from the queue */
void bip_sleep(bip_job *job, int ms);

/* A wait: call begin once, then step after every look that found the condition false. step: 0 goes on, else an error.
 */
typedef struct {
    uint64_t deadline, spin_until, next_check;
    uint32_t idle;
} bip_wait;
void bip_wait_begin(const bip_job *job, bip_wait *wait, int timeout_ms);
int bip_wait_step(bip_job *job, bip_wait *wait);

/* send.c */
void bip_send_step(bip_job *job); /* whatever can be done now */
void bip_send_go(bip_peer *peer, const bip_go *go);
void bip_send_end(bip_job *job, int code);
void bip_packet_sent(bip_slot *slot, bool failed);

/* recv.c */
void bip_arrived(bip_arrival *arrival);
void bip_recv_step(bip_job *job);
void bip_long_arrived(bip_peer *peer, uint32_t immediate);
void bip_recv_end(bip_job *job, bip_recv *recv, int code); /* of a noted one: it is gone afterwards */
void bip_tags_fini(bip_job *job);

#endif
