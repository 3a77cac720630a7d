/*
 * Segments of a super-frame whose headers are here and whose payloads the kernel has put where their message goes,
 * one behind the other. This is how udp receives without a copy of ours: the first segment told which message it is
 * (link_place_ahead), and one recvmsg scattered the rest over headers and memory of the program.
 *
 * What makes that right: the memory is the target of a message that is being received, so nobody may look at it
 * before the message is complete, and bytes that turn out to be wrong are overwritten when the segment comes again.
 */
#ifndef VIAKIT_SUPER_H
#define VIAKIT_SUPER_H

#include <string.h>
#include <sys/uio.h>

#include "link.h"
#include "wire.h"

/* Delivers n segments that came behind `first`. payloads[2 * i] is where the payload of headers[i] lies. spare has
 * room for all of them; it may begin with the last one's payload, if that was not to go to its place at once.
 *
 * The places are right for segments that follow one another. A segment that does not (one between was dropped, or is
 * a double) lies in another's place, which is written when that one's turn comes, perhaps from frames that were
 * kept: so it is moved out of the way before anything is delivered. */
static inline void link_deliver_placed(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                                       const struct wire_header *first, const struct wire_header *headers,
                                       struct iovec *payloads, size_t n, uint8_t *spare)
{
    const void *kept = spare;
    size_t in_place = 0;
    if (n && payloads[2 * (n - 1)].iov_base == spare)
        spare += payloads[2 * (n - 1)].iov_len;
    /* How many segments from the beginning really are the next ones of the message: those lie where they have to. */
    while (in_place < n && headers[in_place].psn == first->psn + 1 + (uint32_t)in_place)
        in_place++;
    /* The others are moved out of the way, all of them before the first delivery. memmove: spare may begin with the
     * last one's own bytes. */
    for (size_t i = in_place; i < n; i++) {
        struct iovec *p = &payloads[2 * i];
        if (p->iov_base == kept)
            continue;
        memmove(spare, p->iov_base, p->iov_len);
        p->iov_base = spare;
        spare += p->iov_len;
    }
    for (size_t i = 0; i < n; i++)
        /* A header that tells another length than the segment has is a lie, and a connection request never comes in a
         * crowd. The provider checks the rest, and finds a payload that lies in its place already by its address. */
        if (headers[i].len == payloads[2 * i].iov_len && (headers[i].version_kind & 15) != WIRE_REQUEST)
            link_deliver_parts(nic, from, peer, &headers[i], payloads[2 * i].iov_base, payloads[2 * i].iov_len);
        else
            LINK_COUNT(nic, dropped_malformed, 1);
}

#endif
