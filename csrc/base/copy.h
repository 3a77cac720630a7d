/*
 * Copies into memory on which a program spins: the last word is stored last.
 *
 * VIA lets a program wait for an RDMA write without any call, by polling the last word of the buffer. When that has
 * changed, all preceding bytes must be there. memcpy guarantees no order, and some versions store the end of a block
 * before its beginning.
 */
#ifndef VIAKIT_COPY_H
#define VIAKIT_COPY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/atomic.h"

/* Like memcpy, for payloads that are mostly tiny: up to 16 bytes with two overlapping words, without a call. */
static inline void vk_copy_short(void *dst, const void *src, size_t len)
{
    if (vk_unlikely(len > 16)) {
        memcpy(dst, src, len);
    } else if (len == 8) { /* the commonest size in measurements: one store */
        uint64_t word;
        memcpy(&word, src, 8);
        memcpy(dst, &word, 8);
    } else if (len > 8) {
        /* With 9 to 15 bytes the two words overlap, and the bytes in both are stored twice with the same value. */
        uint64_t first, last;
        memcpy(&first, src, 8);
        memcpy(&last, (const char *)src + len - 8, 8);
        memcpy(dst, &first, 8);
        memcpy((char *)dst + len - 8, &last, 8);
    } else {
        for (size_t i = 0; i < len; i++)
            ((char *)dst)[i] = ((const char *)src)[i];
    }
}

/* Like memcpy, but the last word (8, 4 or 1 bytes, by its alignment) is stored after all preceding bytes are
 * visible. */
static inline void vk_copy_last_word_last(void *dst, const void *src, size_t len)
{
    uint8_t *to = dst;
    const uint8_t *from = src;
    size_t tail = len < 8 ? len : 8;
    memcpy(to, from, len - tail);
    to += len - tail;
    from += len - tail;
    /* Release orders the bytes above, by memcpy, before this word. The reader is the program, which polls it. */
    if (tail == 8 && ((uintptr_t)to & 7) == 0) {
        uint64_t v;
        memcpy(&v, from, 8);
        vk_store_release((uint64_t *)(void *)to, v);
        return;
    }
    /* Not aligned to 8: words of 4, then bytes, each ordered after the preceding one. */
    if (((uintptr_t)to & 3) == 0)
        for (; tail >= 4; tail -= 4, to += 4, from += 4) {
            uint32_t v;
            memcpy(&v, from, 4);
            vk_store_release((uint32_t *)(void *)to, v);
        }
    for (size_t i = 0; i < tail; i++)
        vk_store_release(to + i, from[i]);
}

#endif
