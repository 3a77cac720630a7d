/* Segments of a super-frame whose headers are here and whose payloads the kernel has put where their message goes, one behind the other. */
#ifndef VIAKIT_SUPER_H
#define VIAKIT_SUPER_H

#include <string.h>
#include <sys/uio.h>

#include "link.h"
#include "wire.h"

/* Delivers n segments that came behind `first`. payloads[2 * i] is where the payload of headers[i] lies. spare has room for all of them; it may begin with the last
 * one's payload, if that was not to go to its place at once.
 *
 * The places are right for segments that follow one another. A segment that does not (one between was dropped, or is a double) lies in another's
 * place, which is written when that one's turn comes, perhaps from frames that were kept: so it is moved out of the way before anything is
 * delivered. */
static inline void link_deliver_placed(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                                       const struct wire_header *first, const struct wire_header *headers,
                                       struct iovec *payloads, size_t n, uint8_t *spare)
{
    const void *kept = spare;
    size_t in_place = 0;
    if (n && payloads[2 * (n - 1)].iov_base == spare)
        spare += payloads[2 * (n - 1)].iov_len;
    while (in_place < n && headers[in_place].psn == first->psn + 1 + (uint32_t)in_place)
        in_place++;
    for (size_t i = in_place; i < n; i++) {
        struct iovec *p = &payloads[2 * i];
        if (p->iov_base == kept)
            continue;
        memmove(spare, p->iov_base, p->iov_len);
        p->iov_base = spare;
        spare += p->iov_len;
    }
    for (size_t i = 0; i < n; i++)
        if (headers[i].len == payloads[2 * i].iov_len && (headers[i].version_kind & 15) != WIRE_REQUEST)
            link_deliver_parts(nic, from, peer, &headers[i], payloads[2 * i].iov_base, payloads[2 * i].iov_len);
        else
            LINK_COUNT(nic, dropped_malformed, 1);
}

#endif
