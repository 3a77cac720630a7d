/*
 * A stored frame: header, block and payload copied into one piece of memory. For code that cannot pass a frame to a
 * link at once: the provider when the link is full (via_defer, for replies only, because data waits in its descriptor),
 * and a decorator that holds frames back.
 *
 * The bytes are those of the wire, so a stored frame is sent with its block as the beginning of the payload.
 * link_unflatten() does not distinguish the two, nor does any link. The owner of stored frames must drop them when
 * their peer goes (via_drop_deferred, fault_forget_peer), because the peer pointer is the link's.
 */
#ifndef VIAKIT_FLAT_H
#define VIAKIT_FLAT_H

#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "link/frame_layout.h"
#include "link/link.h"

struct link_flat {
    struct link_flat *next; /* the owner's, as are the next three fields */
    uint64_t number, after,
        due; /* the frame's number; send it behind the frame with number `after`, or at `due` (ns) */
    struct link_peer *peer;
    size_t len;
    uint8_t bytes[]; /* the header first */
};

/* Returns a copy of the frame, to be released with free(), or NULL if there is no memory. */
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
    /* Flags and checksum keep their present values. The link makes its remaining changes to the header when the stored
     * frame is sent (link_seal does not replace an existing checksum). */
    link_lay_out(flat->bytes, f);
    return flat;
}

/* Sets *f to the stored frame, ready to send. It points into flat, and to *iov. */
static inline void link_unflatten(const struct link_flat *flat, struct link_frame *f, struct iovec *iov)
{
    memcpy(&f->header, flat->bytes, sizeof f->header);
    *iov = (struct iovec){(void *)(uintptr_t)(flat->bytes + sizeof f->header), flat->len - sizeof f->header};
    f->header_len = sizeof f->header;
    f->n_iov = iov->iov_len ? 1 : 0;
    f->iov = iov;
    f->payload_len = iov->iov_len;
}

/* Adds the checksum, even for a link that would compute it itself or use none. */
static inline void link_flat_checksum(struct link_flat *flat)
{
    struct wire_header *h = (struct wire_header *)flat->bytes;
    h->flags |= WIRE_FLAG_CRC;
    h->crc = 0;
    h->crc = vk_crc32c(0, flat->bytes, flat->len);
}

#endif
