/*
 * The format of viakit's frames on the wire. All fields are little-endian. The header has 32 bytes, the same on every
 * link:
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
 * - A *port* distinguishes the NICs that share one address (processes that opened the same interface). Port 0 in a
 *   connection request means any NIC with a waiting VI.
 * - A *key* is drawn at random for each connection, never 0, and sent only to the peer. Frames of an earlier connection
 *   or of an unknown peer do not carry it.
 * - The first frame of an RDMA write has the wire_write block behind the header.
 * - The immediate data of a SEND or WRITE frame without FLAG_IMMEDIATE is the number of its piece of the message, from
 *   0 on. All pieces but the last have one length, header blocks included. A receiver need not use the number
 *   (via/data/ahead.c). 0 in a frame that is not the first: unknown.
 * - READ frames are not part of the sequence. Their psn is the number of the request frame, their immediate data the
 *   serial number of the request (via/data/read.c).
 * - The immediate data of REQUEST, PENDING, ACCEPT and CONFIRM holds two times, by which the NICs measure the round
 *   trip before the first data (via/connect/conn.c): WIRE_SENT when the frame was sent, by its sender's clock, and
 *   WIRE_ECHO, the WIRE_SENT of the frame to which it replies at once. 0: none.
 * - The checksum covers header (checksum field 0) and payload if FLAG_CRC is set, and the header alone if it is not.
 *   Links that cannot corrupt frames ignore it. Other links accept a frame without FLAG_CRC only if UDP's checksum,
 *   which covers the rest, was verified on the way. The interface computes the UDP checksum of a super-frame.
 */
#ifndef VIAKIT_WIRE_H
#define VIAKIT_WIRE_H

#include <stddef.h>
#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "frame_format.h: header fields are little-endian; a big-endian machine would need conversions here"
#endif

#define WIRE_VERSION 1
#define WIRE_ETHERTYPE 0x88B5 /* IEEE 802, local experimental 1 */
#define WIRE_UDP_PORT 34997   /* the same number, for frames carried in UDP datagrams */

/* kinds: name, value, meaning */
#define WIRE_KINDS(X)                                                                                           \
    X(READ, 0, "an RDMA read: a request for pieces of memory (FIRST), a piece, or a reply without data (LAST)") \
    X(SEND, 1, "a piece of a message for the receive queue")                                                    \
    X(WRITE, 2, "a piece of an RDMA write")                                                                     \
    X(ACK, 3, "everything before `ack` is placed")                                                              \
    X(NAK, 4, "frames are missing from `ack` on: those in the list, or all if it is empty")                     \
    X(ERROR, 5, "processing stopped at `psn`; `immediate` holds the status bits for the descriptor")            \
    X(PROBE, 6, "is the peer alive? it replies with ACK")                                                       \
    X(DISCONNECT, 7, "the peer disconnected")                                                                   \
    X(RESET, 8, "no such connection here; `immediate` is the key that was tried")                               \
    X(REQUEST, 9, "connection request")                                                                         \
    X(PENDING, 10, "a waiting VI has matched the request; its reply follows")                                   \
    X(ACCEPT, 11, "accepted")                                                                                   \
    X(CONFIRM, 12, "the acceptance arrived")                                                                    \
    X(REJECT, 13, "rejected")                                                                                   \
    X(NOMATCH, 14, "no VI waits here for that discriminator; `immediate` NICs share this address")              \
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
#define WIRE_FLAG_REFERENCE 0x10 /* the payload lists wire_references: the receiver fetches the message */
#define WIRE_FLAG_PLACED \
    0x20                   /* an RDMA write whose data the sender has already placed: only its immediate data is new */
#define WIRE_FLAG_CRC 0x40 /* crc covers the whole frame */
#define WIRE_FLAG_MUST_ACK 0x80 /* on a lossless link: acknowledge (other links acknowledge every frame) */

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
    uint32_t len; /* bytes of the whole RDMA write */
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct wire_write) == 16, "the RDMA write block is 16 bytes");

/* Payload of a NAK from a receiver that keeps out-of-order frames: up to WIRE_MAX_RUNS runs. Beginning with `ack`, a
 * run describes `missing` frames that have not arrived, followed by `held` frames that have. No frame beyond the last
 * run has arrived. */
struct wire_run {
    uint16_t missing, held;
} __attribute__((packed, aligned(2)));
#define WIRE_MAX_RUNS 40

/* A read request for len bytes at address, cut into pieces of `piece` bytes. It requests the pieces whose bit is set in
 * `wanted`. `next` is the psn of the requester's next data frame. Once the responder has accepted that frame, the
 * request is obsolete, and the memory may have been reused. If no bit is set, the requester insists on a request that
 * was denied. */
struct wire_read {
    uint64_t address, wanted;
    uint32_t handle;
    uint32_t len;
    uint32_t next;
    uint32_t piece;
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct wire_read) == 32, "the read request is 32 bytes");

/* Precedes the bytes of a piece: the offset of the piece in the requested bytes, and their total length. */
struct wire_read_data {
    uint32_t offset, len;
} __attribute__((packed, aligned(4)));

/* Length of a reply without data (zero bytes) that denies a request whose region was granted once and is no longer. A
 * reply of length 0 requests that the requester repeats its request. */
#define WIRE_READ_DENIED 4

/* A piece of the sender's memory, for links on which the receiver can reach it (shm). */
struct wire_reference {
    uint64_t address;
    uint64_t len;
} __attribute__((packed, aligned(4)));

/* Connection management: the block of REQUEST and ACCEPT. Other kinds send only the fields up to key, and CONFIRM those
 * up to max_payload. */
struct wire_connect {
    uint32_t request;   /* the requester's number of this attempt */
    uint32_t key;       /* the key for frames to the sender of this block */
    uint32_t first_psn; /* psn of the sender's first data frame */
    uint32_t max_transfer;
    uint64_t qos;
    uint32_t ptag; /* the sender's tag number, used by direct writes on one host */
    uint16_t reliability;
    uint16_t max_payload; /* largest payload that the sender can receive; in ACCEPT and CONFIRM also: can send here */
    uint8_t rdma_write, rdma_read, lossless, host_len;
    uint8_t wanted_len, own_len; /* bytes of the discriminators that follow: the wanted one and the requester's own */
    uint8_t mode;                /* WIRE_MODE_* in a REQUEST */
    uint8_t proof;               /* WIRE_PROOF: a proof follows, behind the discriminators if there are any; else 0 */
} __attribute__((packed, aligned(4)));
_Static_assert(sizeof(struct wire_connect) == 40, "the connection block is 40 bytes");

/* Proof of a shared secret (via/connect/proof.h), part of REQUEST, ACCEPT, CONFIRM and REJECT between VIs that have
 * one. The nonce is the sender's, drawn for this attempt. A REQUEST carries only the first WIRE_REQUEST_MAC bytes of
 * the mac. With the longest discriminators it then still fits an MTU of 256 in a UDP datagram. */
struct wire_proof {
    uint8_t nonce[16];
    uint8_t mac[32];
} __attribute__((packed));
_Static_assert(sizeof(struct wire_proof) == 48, "a proof is 48 bytes");
#define WIRE_PROOF 1
#define WIRE_REQUEST_MAC 12
#define WIRE_REQUEST_PROOF (sizeof(((struct wire_proof *)0)->nonce) + WIRE_REQUEST_MAC)

/* The header as four words, for code that must not access it byte by byte: {version_kind, flags, len, dst_port, dst_vi}
 * {src_port, src_vi, key} {psn, ack} {immediate, crc}. */
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

#define WIRE_MODE_CLIENT 0   /* for a VI in VipConnectWait */
#define WIRE_MODE_PEER 1     /* for a VI that has made the opposite request */
#define WIRE_MODE_DISCOVER 2 /* for no VI: every NIC replies NOMATCH and is thereby discovered */

/* The times in a handshake's immediate data: 16 bits each, in units of 2^15 ns, so they wrap after 2.1 s. */
#define WIRE_SENT(immediate) ((uint16_t)(immediate))
#define WIRE_ECHO(immediate) ((uint16_t)((immediate) >> 16))
#define WIRE_TIME_SHIFT 15

#define WIRE_MAX_DISCRIMINATOR 64
_Static_assert(sizeof(struct wire_header) + sizeof(struct wire_connect) + 2 * WIRE_MAX_DISCRIMINATOR +
                       WIRE_REQUEST_PROOF <=
                   256 - 28,
               "the longest REQUEST fits the smallest MTU, carried in UDP over IPv4");
#define WIRE_LEAST_PAYLOAD 64 /* the smallest piece size that a peer may request, bytes */

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
