/*
 * What links do with a frame whose pieces lie where their owners left them: put it into one piece, count that copy,
 * and see how many frames may go as one. For links, and for whoever keeps frames (flat.h).
 */
#ifndef VIAKIT_FRAME_H
#define VIAKIT_FRAME_H

#include <string.h>
#include <sys/uio.h>

#include "../base/atomic.h"
#include "link.h"

/* Block and payload, in the order of the wire, which has the header before them. Returns where they end. */
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

/* The whole frame: the receiver gets it as one piece, whatever it was here. Returns where it ends. */
static inline uint8_t *link_lay_out(uint8_t *to, const struct link_frame *f)
{
    memcpy(to, &f->header, sizeof f->header);
    return link_lay_out_body(to + sizeof f->header, f);
}

/* Counts a payload that was copied into a ring or a frame's buffer. What the kernel gathers from the program's memory
 * is its own, and not counted. */
static inline void link_count_copied(struct via_nic *nic, size_t payload_len)
{
    if (vk_likely(payload_len)) {
        LINK_COUNT(nic, copies, 1);
        LINK_COUNT(nic, copies_ring, 1);
        LINK_COUNT(nic, bytes_copied, payload_len);
    }
}

/* How many of n frames, at least one, can be one super-frame of at most max_bytes, frames' headers included, in at most
 * max_iov pieces: equal lengths, the last may be shorter. The kernel cuts after so many bytes and knows nothing of our
 * headers; a shorter one must therefore be the last. */
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
