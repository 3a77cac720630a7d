/* The Internet checksum (RFC 1071). */
#ifndef VIAKIT_INET_SUM_H
#define VIAKIT_INET_SUM_H

#include <stddef.h>
#include <stdint.h>

/* Adds 16-bit words in network order to `sum`, and folds the carries into the result. `sum` may be the result for a
 * preceding piece of even length. The checksum of a header is its complement. A last odd byte counts as the upper half
 * of a word. 32 bits hold the sum of 64 KB, so the carries are folded once, at the end. */
static inline uint16_t vk_inet_sum(const void *data, size_t len, uint32_t sum)
{
    const uint8_t *p = data;
    for (; len > 1; p += 2, len -= 2)
        sum += (uint32_t)p[0] << 8 | p[1];
    if (len)
        sum += (uint32_t)p[0] << 8;
    while (sum >> 16)
        sum = (sum & 0xFFFF) + (sum >> 16);
    return (uint16_t)sum;
}

#endif
