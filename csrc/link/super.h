/*
 * Delivery of the segments of a super-frame whose headers were received apart from their payloads. The kernel has
 * written the payloads to their places in the message, one behind the other. This is how udp receives without a copy in
 * viakit: the first segment identifies the message (link_place_ahead), and one recvmsg scatters the rest over headers
 * and the program's memory.
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
