/*
 * Delivery of the segments of a super-frame whose headers were received apart from their payloads. The kernel has
 * written the payloads to their places in the message, one behind the other. This is how udp and eth receive without a
 * copy in viakit: the first segment identifies the message (link_place_ahead), and one recvmsg scatters the rest over
 * headers and the program's memory.
 *
 * This is correct because the memory belongs to a message that is still being received. The program may not read it
 * before the message is complete. Wrong bytes are overwritten when the segment is retransmitted.
 */
#ifndef VIAKIT_SUPER_H
#define VIAKIT_SUPER_H

#include <string.h>
#include <sys/uio.h>

#include "link/frame_format.h"
#include "link/link.h"

#define LINK_MOST_SEGMENTS 64 /* behind the first one */

/* A super-frame's pieces for recvmsg(). iov[0] is for what precedes the n segments. Segment i has its header in
 * headers[i], by iov[1 + 2 * i], and its payload by iov[2 + 2 * i]. */
struct link_scatter {
    size_t n;
    struct wire_header headers[LINK_MOST_SEGMENTS];
    struct iovec iov[1 + 2 * LINK_MOST_SEGMENTS];
};

/* Returns how many payload bytes behind the first segment may be received in place. The first segment has `begin` bytes
 * of `end` in all. Returns 0 if the segments do not have one length.
 *
 * The last word of an RDMA write shows its target that all preceding bytes are valid, so the last segment of a write is
 * received elsewhere. */
static inline size_t link_payload_ahead(const struct wire_header *first, size_t begin, size_t end)
{
    size_t n = (end - 1) / begin, shortest = end - n * begin; /* segments behind the first; bytes of the last */
    if (n == 0 || n > LINK_MOST_SEGMENTS || shortest < sizeof *first || first->len == 0)
        return 0;
    size_t payload = end - begin - n * sizeof *first;
    return (first->version_kind & 15) == WIRE_WRITE ? payload - (shortest - sizeof *first) : payload;
}

/* Sets the pieces of the segments behind the first: all are as long as the first, except the last, which may be
 * shorter. Their payloads go to place, the last one of a write to spare. */
static inline void link_scatter(struct link_scatter *s, const struct wire_header *first, size_t begin, size_t end,
                                uint8_t *place, uint8_t *spare)
{
    s->n = 0;
    for (size_t at = begin; at < end; s->n++) {
        size_t payload = (end - at < begin ? end - at : begin) - sizeof *first;
        at += sizeof *first + payload;
        int is_end = at == end && (first->version_kind & 15) == WIRE_WRITE;
        s->iov[1 + 2 * s->n] = (struct iovec){&s->headers[s->n], sizeof *first};
        s->iov[2 + 2 * s->n] = (struct iovec){is_end ? spare : place, payload};
        place += payload;
    }
}

/* Delivers n segments that arrived behind `first`. payloads[2 * i] is the place of the payload of headers[i]. spare has
 * room for all of them. It may begin with the last segment's payload, if that was not received at its place.
 *
 * The places are right for consecutive segments. A segment that does not follow its predecessor (a segment between them
 * was dropped, or it is a duplicate) lies in the place of another one. That place may be written earlier than the
 * segment is delivered, perhaps from frames that were stored. Such segments are therefore moved to spare before the
 * first delivery. */
static inline void link_deliver_placed(struct link_client *client, const uint8_t from[6], struct link_peer *peer,
                                       const struct wire_header *first, const struct wire_header *headers,
                                       struct iovec *payloads, size_t n, uint8_t *spare)
{
    const void *kept = spare;
    size_t in_place = 0;
    if (n && payloads[2 * (n - 1)].iov_base == spare)
        spare += payloads[2 * (n - 1)].iov_len;
    /* Count the segments from the beginning that are the next ones of the message: they lie in the right places. */
    while (in_place < n && headers[in_place].psn == first->psn + 1 + (uint32_t)in_place)
        in_place++;
    /* Move the others to spare, all of them before the first delivery. memmove, because spare may begin with the last
     * one's own bytes. */
    for (size_t i = in_place; i < n; i++) {
        struct iovec *p = &payloads[2 * i];
        if (p->iov_base == kept)
            continue;
        memmove(spare, p->iov_base, p->iov_len);
        p->iov_base = spare;
        spare += p->iov_len;
    }
    for (size_t i = 0; i < n; i++)
        /* A header whose length differs from the segment's is malformed. A connection request is never part of a
         * super-frame. The provider checks the rest, and recognizes a payload that is already in its place by its
         * address. */
        if (headers[i].len == payloads[2 * i].iov_len && (headers[i].version_kind & 15) != WIRE_REQUEST)
            link_deliver_parts(client, from, peer, &headers[i], payloads[2 * i].iov_base, payloads[2 * i].iov_len);
        else
            LINK_COUNT(client, dropped_malformed, 1);
}

#endif
