/*
 * packet.h - the packets of the message engine: their headers and kinds.
 *
 * Packets are in the byte order of the machine. Ranks of different byte order refuse each other on opening (hello.c).
 */
#ifndef VIAKIT_MSG_PACKET_H
#define VIAKIT_MSG_PACKET_H

#include <stddef.h>
#include <stdint.h>

/* The first 8 bytes of every packet. An EAGER packet has no other header, so that on shm a message of up to 16 bytes
 * shares one cache line with this header, 24 bytes in all. */
struct msg_head {
    uint8_t kind;    /* MSG_PKT_*, and MSG_FLAG_* */
    uint8_t credits; /* buffers that the packet's sender has reposted for packets from its receiver (channel via) */
    uint16_t context;
    int32_t tag;
};

/* The rest of the header, in all packets but EAGER. The kind decides which fields are valid. */
struct msg_rest {
    uint64_t len;     /* RTS: length of the message. CTS: bytes wanted of it. SHARE: bytes to read. */
    uint64_t id;      /* of the sender's request */
    uint64_t peer_id; /* of the receiver's request */
    uint64_t address; /* CTS: RDMA write target. RTS, SHARE: RDMA read source. DATA: offset in the message. */
    uint32_t handle;
    uint32_t how; /* RTS, CTS: msg_rendezvous, or MSG_RSHARE. FIN: msg_error. */
};

struct msg_packet {
    struct msg_head head;
    struct msg_rest rest; /* not sent with EAGER */
};
/* `how`. In an RTS the receiver chooses whether both ranks move a part, or the sender all. In a CTS both do. */
#define MSG_RSHARE 3
_Static_assert(sizeof(struct msg_head) == 8 && sizeof(struct msg_packet) == 48, "packets have no holes");

enum {
    MSG_PKT_EAGER = 1, /* a whole message */
    MSG_PKT_SYNC = 2,  /* a whole message whose sender waits for an ACK of its match */
    MSG_PKT_RTS = 3,   /* announcement of a message */
    MSG_PKT_CTS = 4,   /* the message was matched: send its data */
    MSG_PKT_DATA = 5,  /* a segment of its data */
    MSG_PKT_FIN = 6,   /* RPUT: the data is in place; RGET: the data was read */
    MSG_PKT_ACK = 7,   /* a SYNC message was matched */
    MSG_PKT_XOFF = 8,  /* send no eager data until XON */
    MSG_PKT_XON = 9,
    MSG_PKT_BYE = 10,    /* last packet of its sender */
    MSG_PKT_CREDIT = 11, /* internal to the channel: only credits */
    MSG_PKT_FENCE = 12,  /* never sent: packets queued behind it wait until no write is in progress (onesided.c) */
    MSG_PKT_NEWS = 14,   /* of a rank to which the receiver may have no connection (news.c) */
    MSG_PKT_ACTIVE = 13, /* an active message: the world's handler gets it on arrival (active.c) */
    MSG_PKT_REVOKE = 15, /* a communicator is revoked (revoke.c) */
    MSG_PKT_SHARE = 16   /* the receiver is to read the first bytes, while the sender writes the others */
};
#define MSG_PKT_MASK 0x1F
#define MSG_FLAG_READY 0x20 /* sent by a ready send */

static inline size_t msg_packet_len(const struct msg_packet *p)
{
    return (p->head.kind & MSG_PKT_MASK) == MSG_PKT_EAGER ? sizeof p->head : sizeof *p;
}

#endif
