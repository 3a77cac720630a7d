/*
 * CRC32C at memory speed.
 *
 * The processor's crc32 instruction takes 3 cycles, but one can start in each cycle. Three lanes are therefore run side
 * by side over three neighbouring blocks and joined at the end. Joining needs "crc of A followed by n zero bytes",
 * which is a multiplication by x^(8n) modulo the polynomial. For reflected polynomials
 *
 *     crc32(0, clmul(a, k))  =  a * k * x^33  mod P        (33: clmul's bits are off by one, crc32 appends 32 zeros)
 *
 * With k = x^(8n-33) one carry-less multiplication and one crc32 suffice. A table has the k for all block lengths of
 * 8..1024 bytes. It is computed when the library is loaded.
 *
 * x86-64 with SSE4.2 and PCLMUL has the fast path, aarch64 with the CRC extension a plain one. Other processors use the
 * table of bytes.
 */
#include "base/crc32c.h"

#include <string.h>

/* Castagnoli's polynomial, reflected: the lowest bit is the highest power. */
#define POLYNOMIAL 0x82F63B78u
#define MAX_WORDS 128 /* words of 8 bytes in one lane */
#define AHEAD \
    2048 /* prefetch distance, bytes: long messages are not cached, and three lanes defeat the hardware prefetcher */
#define WORTH_AHEAD 512

static uint32_t byte_table[256];

/* Computes the checksum one byte at a time, for machines without the instruction. */
uint32_t vk_crc32c_table(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    crc = ~crc;
    while (len--)
        crc = byte_table[(crc ^ *p++) & 0xff] ^ (crc >> 8);
    return ~crc;
}

#if defined(__x86_64__)

#include <immintrin.h>

static uint32_t shift_constant[MAX_WORDS + 1]; /* x^(64 m - 33) mod P, reflected */

/* Returns the crc of the preceding data followed by that many words of zeros. */
__attribute__((target("sse4.2,crc32,pclmul"))) static inline uint64_t append_zeros(uint64_t crc, size_t words)
{
    __m128i product =
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)crc), _mm_cvtsi64_si128((long long)shift_constant[words]), 0);
    return _mm_crc32_u64(0, (unsigned long long)_mm_cvtsi128_si64(product));
}

static inline uint64_t load64(const uint8_t *p)
{
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Runs three lanes of up to MAX_WORDS words while joining them pays, then words, then bytes:
 *
 *      | a: words | b: words | c: words |  the same, for what is left  | words of 8 | bytes |
 *
 * Lanes b and c begin with 0, so the crc of two neighbours is append_zeros(first) ^ second. Lanes of fewer than 4 words
 * cost more to join than they save. */
__attribute__((target("sse4.2,crc32,pclmul"))) static uint32_t crc_x86(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    uint64_t a = (uint32_t)~crc;

    if (len >= WORTH_AHEAD)
        for (size_t line = 0; line < len; line += 64)
            __builtin_prefetch(p + AHEAD + line); /* a hint: no effect beyond the end */
    while (len >= 3 * 8 * 4) {
        size_t words = len / 24 < MAX_WORDS ? len / 24 : MAX_WORDS;
        const uint8_t *q = p + 8 * words, *r = q + 8 * words, *end = q;
        uint64_t b = 0, c = 0;
        for (; p < end; p += 8, q += 8, r += 8) {
            a = _mm_crc32_u64(a, load64(p));
            b = _mm_crc32_u64(b, load64(q));
            c = _mm_crc32_u64(c, load64(r));
        }
        a = append_zeros(append_zeros(a, words) ^ b, words) ^ c;
        p = r;
        len -= 24 * words;
    }
    for (; len >= 8; p += 8, len -= 8)
        a = _mm_crc32_u64(a, load64(p));
    for (; len; p++, len--)
        a = _mm_crc32_u8((uint32_t)a, *p);
    return ~(uint32_t)a;
}

#elif defined(__aarch64__)

#include <arm_acle.h>
#include <sys/auxv.h>

/* One lane, words of 8 bytes and then bytes. */
__attribute__((target("+crc"))) static uint32_t crc_arm(uint32_t crc, const void *data, size_t len)
{
    const uint8_t *p = data;
    crc = ~crc;
    for (; len >= 8; p += 8, len -= 8) {
        uint64_t v;
        memcpy(&v, p, sizeof v);
        crc = __crc32cd(crc, v);
    }
    for (; len; p++, len--)
        crc = __crc32cb(crc, *p);
    return ~crc;
}

#endif

/* Written once, by the constructor, before the program starts threads. A constructor that runs earlier must not compute
 * checksums, because byte_table is still zero. */
static uint32_t (*chosen)(uint32_t, const void *, size_t) = vk_crc32c_table;

__attribute__((constructor)) static void choose(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t v = i;
        for (int bit = 0; bit < 8; bit++)
            v = v & 1 ? v >> 1 ^ POLYNOMIAL : v >> 1;
        byte_table[i] = v;
    }
#if defined(__x86_64__)
    uint32_t k = 1; /* x^31, reflected: the constant for one word */
    for (size_t m = 1; m <= MAX_WORDS; m++) {
        shift_constant[m] = k;
        /* One word more: times x^64. */
        for (int bit = 0; bit < 64; bit++)
            k = k & 1 ? k >> 1 ^ POLYNOMIAL : k >> 1;
    }
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
        chosen = crc_x86;
#elif defined(__aarch64__)
    if (getauxval(AT_HWCAP) & (1ul << 7)) /* HWCAP_CRC32 */
        chosen = crc_arm;
#endif
}

uint32_t vk_crc32c(uint32_t crc, const void *data, size_t len)
{
    return chosen(crc, data, len);
}
