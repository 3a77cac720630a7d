/*
 * bench/content.c - see content.h.
 *
 * Touching models the program that produces a message and the one that uses it. Its speed must be that of memory: both
 * loops move 64 bytes per turn in vectors of 16 bytes, which every x86-64 and aarch64 processor has. The reader's sum
 * is compared with the writer's (loop.c), so the compiler cannot drop either side.
 *
 *      message:   | 64 bytes | 64 bytes | ... | words of 8 | up to 7 bytes |
 */
#include "bench/content.h"

#include <string.h>

#define BLOCK ((size_t)64) /* bytes of one turn of the vector loops */

typedef uint64_t lanes __attribute__((vector_size(16)));

/* Constants and shifts are those of Mix01 in David Stafford's "Better Bit Mixing" (2011). */
uint64_t bench_content_mix(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x7FB5D329728EA185u;
    x ^= x >> 27;
    x *= 0x81DADEF4BC2DD44Du;
    return x ^ x >> 33;
}

/* ---------------------------------------------------------------- validation */

/* Word j of the pattern. One multiplication per word: validation should cost as little of a run as possible. The factor
 * is odd, so any two words of one message have different x. The shift mixes the upper bits into the lower ones. */
static inline uint64_t word(uint64_t seed, size_t j)
{
    uint64_t x = seed + j * 0x9E3779B97F4A7C15u;
    return x ^ x >> 29;
}

/* A last partial word gets the first bytes of its word, in this machine's byte order; both sides have the same. */
void bench_content_fill(unsigned char *message, size_t len, uint64_t seed)
{
    size_t j = 0;
    for (; j < len / 8; j++) {
        uint64_t w = word(seed, j);
        memcpy(message + j * 8, &w, 8);
    }
    uint64_t last = word(seed, j);
    memcpy(message + j * 8, &last, len % 8);
}

/* Compares whole words, and looks for the byte only in the first word that differs. `found` begins as a copy of
 * `right`, so that the bytes of a last partial word that are not in the message compare equal. */
size_t bench_content_compare(const unsigned char *message, size_t len, uint64_t seed, unsigned char *expected)
{
    for (size_t j = 0; j * 8 < len; j++) {
        uint64_t right = word(seed, j), found = right;
        size_t n = len - j * 8 < 8 ? len - j * 8 : 8;
        memcpy(&found, message + j * 8, n);
        if (found == right)
            continue;
        size_t k = 0;
        while (k < n && ((unsigned char *)&found)[k] == ((unsigned char *)&right)[k])
            k++;
        *expected = ((unsigned char *)&right)[k];
        return j * 8 + k;
    }
    return len;
}

/* ---------------------------------------------------------------- touching */

/* A compiler that optimizes makes each memcpy of 16 bytes one vector store. memcpy, because the message may have any
 * alignment. */
void bench_content_write(unsigned char *message, size_t len, uint64_t value)
{
    const lanes both = {value, value};
    size_t at = 0;
    for (; at + BLOCK <= len; at += BLOCK) {
        memcpy(message + at, &both, 16);
        memcpy(message + at + 16, &both, 16);
        memcpy(message + at + 32, &both, 16);
        memcpy(message + at + 48, &both, 16);
    }
    for (; at + 8 <= len; at += 8)
        memcpy(message + at, &value, 8);
    memcpy(message + at, &value, len - at);
}

uint64_t bench_content_sum(const unsigned char *message, size_t len)
{
    lanes a = {0, 0}, b = {0, 0}, c = {0, 0}, d = {0, 0}, x;
    size_t at = 0;
    /* Four independent sums: the additions keep up with the loads. */
    for (; at + BLOCK <= len; at += BLOCK) {
        memcpy(&x, message + at, 16);
        a += x;
        memcpy(&x, message + at + 16, 16);
        b += x;
        memcpy(&x, message + at + 32, 16);
        c += x;
        memcpy(&x, message + at + 48, 16);
        d += x;
    }
    a += b + c + d;
    uint64_t sum = a[0] + a[1], w;
    for (; at + 8 <= len; at += 8) {
        memcpy(&w, message + at, 8);
        sum += w;
    }
    w = 0;
    memcpy(&w, message + at, len - at);
    return sum + w;
}

/* Must agree with bench_content_sum: a last partial word counts as its bytes, padded with zeros. */
uint64_t bench_content_sum_of(size_t len, uint64_t value)
{
    uint64_t last = 0;
    memcpy(&last, &value, len % 8);
    return len / 8 * value + last;
}
