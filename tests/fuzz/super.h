/* Shared by the fuzzers of two links: frames joined to a super-frame, and one that waits in a socket's queue. */
#ifndef FUZZ_SUPER_H
#define FUZZ_SUPER_H

#include <string.h>
#include <sys/socket.h>

#include "base/crc32c.h"
#include "link/frame_format.h"

/* The frame and its copies, one behind the other, each with the next psn. If `sealed`, each gets the checksum that its
 * flags require. The first one's is the machine's, which may be wrong on purpose. Returns their length. */
static inline size_t fuzz_put_copies(uint8_t *to, const uint8_t *frame, size_t len, unsigned n, int sealed)
{
    for (unsigned i = 0; i < n; i++, to += len) {
        struct wire_header h;
        memcpy(to, frame, len);
        if (len < sizeof h)
            continue;
        memcpy(&h, to, sizeof h);
        if (i > 0) {
            h.psn += i;
            h.flags &= (uint8_t)~WIRE_FLAG_FIRST; /* the message goes on */
        }
        int whole = h.flags & WIRE_FLAG_CRC, has_seal = i == 0 && whole; /* the machine's own */
        if (sealed && !has_seal && (!whole || h.len <= len - sizeof h)) {
            h.crc = 0;
            h.crc = vk_crc32c(0, &h, sizeof h);
            if (whole)
                h.crc = vk_crc32c(h.crc, to + sizeof h, h.len);
        }
        memcpy(to, &h, sizeof h);
    }
    return n * len;
}

/* Result of recvmsg() with MSG_TRUNC for a datagram of len bytes: its length, also if less fits. */
static inline ssize_t fuzz_scatter(struct msghdr *m, const uint8_t *datagram, size_t len)
{
    size_t at = 0;
    for (size_t i = 0; i < m->msg_iovlen && at < len; i++) {
        size_t part = m->msg_iov[i].iov_len < len - at ? m->msg_iov[i].iov_len : len - at;
        memcpy(m->msg_iov[i].iov_base, datagram + at, part);
        at += part;
    }
    return (ssize_t)len;
}

#endif
