/*
 * A frame that has to be kept: header, block and payload in one piece of memory, copied from wherever they lay. For
 * whoever cannot hand a frame to a link at once: the provider when the link is full (via_defer, for answers only:
 * data waits in its descriptor), a decorator that holds frames back.
 *
 * Its bytes are those of the wire, so a kept frame is sent with its block as the beginning of the payload:
 * link_unflatten() makes no difference between the two any more, nor does any link. Whoever keeps frames must drop
 * them when their peer goes (via_drop_deferred, fault_forget_peer), for the pointer is the link's.
 */
#ifndef VIAKIT_FLAT_H
#define VIAKIT_FLAT_H

#include <stdlib.h>
#include <string.h>

#include "../base/crc32c.h"
#include "frame.h"
#include "link.h"

struct link_flat {
    struct link_flat *next;      /* the keeper's, as the three below */
    uint64_t number, after, due; /* its own number; to be sent behind the one with number `after`, or at `due` (ns) */
    struct link_peer *peer;
    size_t len;
    uint8_t bytes[]; /* the header first */
};

/* A copy of the frame, which free() frees; NULL if there is no memory. */
static inline struct link_flat *link_flatten(struct link_peer *peer, const struct link_frame *f)
{
    size_t len = f->header_len + f->payload_len;
    struct link_flat *flat = malloc(sizeof *flat + len);
    if (flat == NULL)
        return NULL;
    flat->next = NULL;
    flat->number = flat->after = flat->due = 0;
    flat->peer = peer;
    flat->len = len;
    /* Flags and checksum as they are at this moment: what the link would still do to the header it does when the
     * kept frame is sent (link_seal leaves a sum alone that is there already). */
    link_lay_out(flat->bytes, f);
    return flat;
}

/* The kept frame as one to send. It points into flat, and to *iov. */
static inline void link_unflatten(const struct link_flat *flat, struct link_frame *f, struct iovec *iov)
{
    memcpy(&f->header, flat->bytes, sizeof f->header);
    *iov = (struct iovec){(void *)(uintptr_t)(flat->bytes + sizeof f->header), flat->len - sizeof f->header};
    f->header_len = sizeof f->header;
    f->n_iov = iov->iov_len ? 1 : 0;
    f->iov = iov;
    f->payload_len = iov->iov_len;
}

/* Puts the checksum in, for a link that would make it itself or do without. */
static inline void link_flat_checksum(struct link_flat *flat)
{
    struct wire_header *h = (struct wire_header *)flat->bytes;
    h->flags |= WIRE_FLAG_CRC;
    h->crc = 0;
    h->crc = vk_crc32c(0, flat->bytes, flat->len);
}

#endif
