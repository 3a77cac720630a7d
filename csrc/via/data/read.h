/*
 * read.h - the state of a VI's RDMA reads, shared by the requester's side (read.c) and the target's (read_target.c).
 *
 * Only the NIC's owner touches it.
 */
#ifndef VIAKIT_VIA_READ_H
#define VIAKIT_VIA_READ_H

#include <stdint.h>

#include "link/frame_format.h"
#include "via/limits.h"
#include "via/vi.h"

#define REQUEST_PIECES 64 /* as many as a word has bits */

/* The requester's side: a request for part of a read. Its number is its index in the ring, free-running. */
struct read_request {
    uint32_t work;        /* index on the send queue */
    uint32_t offset, len; /* of the read's bytes */
    uint32_t piece;       /* bytes of one piece */
    uint32_t serial;      /* of the latest request for it */
    uint64_t missing;     /* a bit per piece that has not arrived; 0: done */
    uint64_t wanted;      /* the pieces in the latest request */
};

/* The target's side: a request that waits for the link. */
struct answer {
    struct wire_read read; /* wanted: the pieces still to be sent */
    uint32_t number, serial;
};

/* The target's side: a request that was granted. */
struct granted {
    uint64_t address;
    uint32_t number, handle, len; /* len 0: none; a request for no bytes is never denied */
};

/* All counts of the two rings are free-running; the place of an entry is its number modulo VIA_READ_REQUESTS, a power
 * of two. */
struct via_reads {
    /* The requester: one time-out for all requests, and the ring of its requests, [head, tail). */
    uint64_t deadline; /* VK_NEVER: nothing is outstanding */
    uint64_t wait;     /* current time-out */
    struct read_request requests[VIA_READ_REQUESTS];
    uint32_t head, tail; /* outstanding */
    uint32_t next;       /* on the send queue: the first read not completely requested is here or behind */
    uint32_t n_open;     /* reads begun and not complete */
    uint32_t allowed;    /* maximum of outstanding requests at present: lower after a time-out */
    uint32_t serial, last_serial;
    uint32_t retries;
    int progress; /* since the deadline was set */
    /* The target: the ring of requests that wait for the link, [answer_head, answer_tail), and the requests granted
     * lately. */
    struct answer answers[VIA_READ_REQUESTS];
    uint32_t answer_head, answer_tail;
    struct granted granted[VIA_READ_REQUESTS]; /* by number */
    uint32_t seen;                             /* number after the latest granted request */
    uint32_t counted;                          /* number after the last request that was counted as the end of a read */
};

/* Bytes of memory in a reply frame with this much payload: a multiple of the word size. */
static inline uint32_t via_piece_len(uint32_t payload)
{
    return (payload - (uint32_t)sizeof(struct wire_read_data)) & ~7u;
}

/* Returns a bit for each piece of a request of len bytes; 0 if it has too many. A request of no bytes has one piece,
 * too: it only checks the grant. */
static inline uint64_t via_all_pieces(uint32_t piece, uint32_t len)
{
    uint32_t n = len ? len / piece + (len % piece != 0) : 1;
    return n > REQUEST_PIECES ? 0 : n == REQUEST_PIECES ? ~0ull : (1ull << n) - 1;
}

/* read_target.c: handles an arriving request, and continues the requests that wait for the link; vi->reads must not be
 * NULL. */
void via_serve_request(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);
void via_serve_waiting(struct via_vi *vi);

#endif
