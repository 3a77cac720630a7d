/*
 * Layout of a frame whose pieces lie in different places: gather it into one piece, count that copy, and determine how
 * many frames may travel as one super-frame. For links, and for code that stores frames (flat.h).
 */
#ifndef VIAKIT_FRAME_H
#define VIAKIT_FRAME_H

#include <string.h>
#include <sys/uio.h>

#include "base/atomic.h"
#include "link/link.h"

/* Copies block and payload, in the order of the wire. The header goes before them. Returns the end of the copy. */
static inline uint8_t *link_lay_out_body(uint8_t *to, const struct link_frame *f)
{
    if (f->header_len > sizeof f->header) { /* most frames have no block */
        memcpy(to, &f->block, f->header_len - sizeof f->header);
        to += f->header_len - sizeof f->header;
    }
    for (uint32_t i = 0; i < f->n_iov; i++) {
        memcpy(to, f->iov[i].iov_base, f->iov[i].iov_len);
        to += f->iov[i].iov_len;
    }
    return to;
}

/* Copies the whole frame into one piece. Returns the end of the copy. */
static inline uint8_t *link_lay_out(uint8_t *to, const struct link_frame *f)
{
    memcpy(to, &f->header, sizeof f->header);
    return link_lay_out_body(to + sizeof f->header, f);
}

/* Lists the pieces of a frame in the order of the wire: header, block if there is one, payload. Returns
 * their number. */
static inline size_t link_gather(struct link_frame *f, struct iovec *iov)
{
    size_t n = 0;
    iov[n++] = (struct iovec){&f->header, sizeof f->header};
    if (f->header_len > sizeof f->header)
        iov[n++] = (struct iovec){&f->block, f->header_len - sizeof f->header};
    for (uint32_t i = 0; i < f->n_iov; i++)
        iov[n++] = f->iov[i];
    return n;
}

/* Counts a payload that was copied into a ring or a frame's buffer. A copy that the kernel makes when it gathers from
 * the program's memory is not counted. */
static inline void link_count_copied(struct link_client *client, size_t payload_len)
{
    if (vk_likely(payload_len)) {
        LINK_COUNT(client, copies, 1);
        LINK_COUNT(client, copies_ring, 1);
        LINK_COUNT(client, bytes_copied, payload_len);
    }
}

/* Returns how many of n frames, at least one, can form one super-frame of at most max_bytes (frame headers included) in
 * at most max_iov pieces. The frames must have equal lengths, because the kernel cuts after a fixed number of bytes.
 * Only the last may be shorter. */
static inline int link_run_length(const struct link_frame *frames, int n, size_t max_bytes, size_t max_iov)
{
    size_t first = frames[0].header_len + frames[0].payload_len, total = first, iovs = 2 + frames[0].n_iov;
    int k = 1;
    while (k < n) {
        size_t len = frames[k].header_len + frames[k].payload_len;
        iovs += 2 + frames[k].n_iov;
        if (len > first || total + len > max_bytes || iovs > max_iov)
            break;
        total += len;
        k++;
        if (len < first)
            break;
    }
    return k;
}

#endif
