/*
 * What viakit's frames look like on a wire. Little-endian, 32 bytes of header, the same on every link:
 *
 *    0        1        2                 4                 6                 8                 10
 *   +--------+--------+-----------------+-----------------+-----------------+-----------------+
 *   |ver|kind| flags  | payload length  | dst port        | dst VI          | src port        |
 *   +--------+--------+-----------------+-----------------+-----------------+-----------------+
 *   | src VI          | key of the destination VI         | packet sequence number (psn)      |
 *   +-----------------+-----------------+-----------------+-----------------------------------+
 *   | ack: next psn expected            | immediate data                    | CRC32C            |
 *   +-----------------------------------+-----------------------------------+-------------------+
 *   10                12                16                20                24                 28..31
 *
 * A *port* tells apart the NICs that share one address (processes that opened the same interface); port 0 in a
 * connection request means "whoever waits". A *key* is drawn at random for each connection, never 0, and told only
 * to the peer: frames of an earlier connection, or of a stranger, do not carry it. The first frame of an RDMA write
 * has the wire_write block behind the header. READ frames stand outside the sequence: their psn is the number of the
 * ask, their immediate data the serial number of the request (via/read.c). The checksum covers header (checksum
 * field 0) and payload if FLAG_CRC is set. Without the flag it covers the header alone: links that cannot corrupt
 * ignore it, and on others such a frame is taken only if UDP's checksum, which covers the rest, was found right on
 * the way (a super-frame's is computed by the interface).
 */
#ifndef VIAKIT_WIRE_H
#define VIAKIT_WIRE_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "wire.h: header fields are little-endian; a big-endian machine would need conversions here"
#endif

#define WIRE_VERSION 1
#define WIRE_ETHERTYPE 0x88B5 /* IEEE 802, local experimental 1 */
#define WIRE_UDP_PORT 34997   /* the same number, for frames dressed as UDP */

/* kinds: name, what it says */
#define WIRE_KINDS(X)                                                                                         \
    X(READ, 0, "an RDMA read: a request for pieces of memory (FIRST), a piece, or that there is none (LAST)") \
    X(SEND, 1, "a piece of a message for the receive queue")                                                  \
    X(WRITE, 2, "a piece of an RDMA write")                                                                   \
    X(ACK, 3, "everything before `ack` is placed")                                                            \
    X(NAK, 4, "frames are missing from `ack` on: those that the list names, or all if there is none")         \
    X(ERROR, 5, "processing stopped at `psn`; `immediate` holds the status bits for the descriptor")          \
    X(PROBE, 6, "still there? answer with ACK")                                                               \
    X(DISCONNECT, 7, "the peer disconnected")                                                                 \
    X(RESET, 8, "no such connection here; `immediate` is the key that was tried")                             \
    X(REQUEST, 9, "connection request")                                                                       \
    X(PENDING, 10, "a waiter took the request; its answer follows")                                           \
    X(ACCEPT, 11, "accepted")                                                                                 \
    X(CONFIRM, 12, "the acceptance arrived")                                                                  \
    X(REJECT, 13, "rejected")                                                                                 \
    X(NOMATCH, 14, "nobody waits here for that discriminator; `immediate` NICs share this address")           \
    X(CANCEL, 15, "the request is withdrawn")

enum {
#define WIRE_X(name, value, text) WIRE_##name = value,
    WIRE_KINDS(WIRE_X)
#undef WIRE_X
};

#define WIRE_FLAG_FIRST 0x01     /* first piece of a message */
#define WIRE_FLAG_LAST 0x02      /* last piece */
#define WIRE_FLAG_IMMEDIATE 0x04 /* carries immediate data */
#define WIRE_FLAG_ACK_NOW 0x08   /* acknowledge without delay */
#define WIRE_FLAG_REFERENCE 0x10 /* the payload is a list of wire_reference: fetch the message from there */
#define WIRE_FLAG_PLACED \
    0x20                   /* an RDMA write whose data the sender has already placed: only its immediate data is new */
#define WIRE_FLAG_CRC 0x40 /* crc is of the whole frame */
#define WIRE_FLAG_MUST_ACK 0x80 /* on a lossless link: acknowledge (others acknowledge everything) */

struct wire_header {
    uint8_t version_kind; /* version << 4 | kind */
    uint8_t flags;
    uint16_t len; /* bytes behind this header */
    uint16_t dst_port;
    uint16_t dst_vi;
    uint16_t src_port;
    uint16_t src_vi;
    uint32_t key;
    uint32_t psn;
    uint32_t ack;
    uint32_t immediate;
    uint32_t crc;
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct wire_header) == 32, "the wire header is 32 bytes");
_Static_assert(offsetof(struct wire_header, crc) == 28, "the checksum stands last");

struct wire_write {
    uint64_t address;
    uint32_t handle;
    uint32_t len; /* of the whole RDMA write */
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct wire_write) == 16, "the RDMA write block is 16 bytes");

/* What a NAK of a receiver that keeps early frames carries, up to WIRE_MAX_RUNS times: from `ack` on, `missing`
 * frames are missing, and then `held` have come; and so on. Of what lies behind the last run nothing has come. */
struct wire_run {
    uint16_t missing, held;
} __attribute__((packed, aligned(2)));
#define WIRE_MAX_RUNS 40

/* A request to read: of the len bytes at address, cut into pieces of `piece` bytes, those whose bit is set in `wanted`.
 * `next` is the psn of the requester's next data frame: once that has been taken, this request is an old one, and the
 * memory may have been given away. No bit: the requester insists on a request that was denied. */
struct wire_read {
    uint64_t address, wanted;
    uint32_t handle;
    uint32_t len;
    uint32_t next;
    uint32_t piece;
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct wire_read) == 32, "the read request is 32 bytes");

/* Before the bytes of a piece: where it belongs in what was asked for, and how long that is. */
struct wire_read_data {
    uint32_t offset, len;
} __attribute__((packed, aligned(4)));

/* Bytes (zero) of an answer without data that says: denied, it was granted once and is not any more. Of no bytes, it
 * says: ask again. */
#define WIRE_READ_DENIED 4

/* A piece of the sender's memory, for links on which the receiver can reach it (shm). */
struct wire_reference {
    uint64_t address;
    uint64_t len;
} __attribute__((packed, aligned(4)));

/* Connection management: what REQUEST and ACCEPT tell the other side. Others send only the fields up to key,
 * and CONFIRM max_payload. */
struct wire_connect {
    uint32_t request;   /* the requester's number for this attempt */
    uint32_t key;       /* to be put into frames for the sender of this */
    uint32_t first_psn; /* of the sender's data */
    uint32_t max_transfer;
    uint64_t qos;
    uint32_t ptag; /* the sender's tag number; meaningful to direct writes on one host */
    uint16_t reliability;
    uint16_t max_payload; /* the largest frame payload the sender can take; of ACCEPT and CONFIRM: and can send here */
    uint8_t rdma_write, rdma_read, lossless, host_len;
    uint8_t wanted_len, own_len; /* discriminators that follow: the one looked for, the requester's own */
    uint8_t mode;                /* of a REQUEST: WIRE_MODE_* */
    uint8_t reserved;
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct wire_connect) == 40, "the connection block is 40 bytes");

/* The header as four words, for those who must not take it apart byte by byte:
 * {version_kind, flags, len, dst_port, dst_vi} {src_port, src_vi, key} {psn, ack} {immediate, crc}. */
#define WIRE_WORDS 4

static inline uint64_t wire_word_destination(int version_kind, int flags, uint16_t len, uint16_t port, uint16_t vi)
{
    return (uint64_t)version_kind | (uint64_t)flags << 8 | (uint64_t)len << 16 | (uint64_t)port << 32 |
           (uint64_t)vi << 48;
}

static inline uint64_t wire_word_source(uint16_t port, uint16_t vi, uint32_t key)
{
    return (uint64_t)port | (uint64_t)vi << 16 | (uint64_t)key << 32;
}

static inline uint32_t wire_source_key(uint64_t word)
{
    return (uint32_t)(word >> 32);
}

#define WIRE_MODE_CLIENT 0   /* for whoever is in VipConnectWait */
#define WIRE_MODE_PEER 1     /* for whoever has made the opposite request */
#define WIRE_MODE_DISCOVER 2 /* for nobody: every NIC answers NOMATCH, and is known to be there */

#define WIRE_MAX_DISCRIMINATOR 64
#define WIRE_LEAST_PAYLOAD 64 /* nobody may ask for smaller pieces */

static inline uint8_t wire_version_kind(int kind)
{
    return (uint8_t)(WIRE_VERSION << 4 | kind);
}

/* Sequence numbers wrap: a is before b if the distance forward is less than half the circle. */
static inline int wire_before(uint32_t a, uint32_t b)
{
    return (int32_t)(a - b) < 0;
}

#endif
