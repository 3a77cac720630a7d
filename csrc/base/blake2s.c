/*
 * BLAKE2s as RFC 7693 describes it: a state of eight words absorbs blocks of 64 bytes, one after the other. A key is
 * the first block, padded with zeros. The last block is marked, so its length need not be a whole block.
 *
 *     h[0..7]  -->  v[0..7]                 ten rounds of G over columns and diagonals of v
 *     IV       -->  v[8..15]  ^ counter, last        h[i] ^= v[i] ^ v[i + 8]
 *
 * Invariant between calls: `block` holds 0 to 64 bytes that have not been compressed. A full block waits there until
 * more data follows, because the last block is compressed with its mark.
 */
#include "base/blake2s.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

/* The fractional parts of the square roots of the first eight primes (RFC 7693, 2.6). */
static const uint32_t iv[8] = {0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A,
                               0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19};

/* The message words that each round uses, in order (RFC 7693, 2.7). */
static const uint8_t sigma[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
};

static inline uint32_t rotate(uint32_t x, int n)
{
    return x >> n | x << (32 - n);
}

/* The mixing function G (RFC 7693, 3.1) with the rotations of BLAKE2s. */
static inline void mix(uint32_t v[16], int a, int b, int c, int d, uint32_t x, uint32_t y)
{
    v[a] += v[b] + x;
    v[d] = rotate(v[d] ^ v[a], 16);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 12);
    v[a] += v[b] + y;
    v[d] = rotate(v[d] ^ v[a], 8);
    v[c] += v[d];
    v[b] = rotate(v[b] ^ v[c], 7);
}

/* The compression function F (RFC 7693, 3.2). n_total counts the data bytes up to the end of this block. */
static void compress(uint32_t h[8], const uint8_t block[VK_BLAKE2S_BLOCK], uint64_t n_total, int last)
{
    uint32_t v[16], m[16];
    /* Little-endian words, read byte by byte: the block has any alignment, and the machine any byte order. */
    for (int i = 0; i < 16; i++)
        m[i] = (uint32_t)block[4 * i] | (uint32_t)block[4 * i + 1] << 8 | (uint32_t)block[4 * i + 2] << 16 |
               (uint32_t)block[4 * i + 3] << 24;
    memcpy(v, h, 32);
    memcpy(v + 8, iv, 32);
    v[12] ^= (uint32_t)n_total;
    v[13] ^= (uint32_t)(n_total >> 32);
    if (last)
        v[14] = ~v[14];
    for (int round = 0; round < 10; round++) {
        const uint8_t *s = sigma[round];
        for (int i = 0; i < 4; i++) /* columns */
            mix(v, i, 4 + i, 8 + i, 12 + i, m[s[2 * i]], m[s[2 * i + 1]]);
        for (int i = 0; i < 4; i++) /* diagonals */
            mix(v, i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[s[8 + 2 * i]], m[s[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++)
        h[i] ^= v[i] ^ v[i + 8];
    /* With a key, the first block is the key itself. */
    vk_wipe(m, sizeof m);
    vk_wipe(v, sizeof v);
}

void vk_blake2s_begin(struct vk_blake2s *s, const void *key, size_t key_len)
{
    memset(s, 0, sizeof *s);
    memcpy(s->h, iv, sizeof iv);
    /* The parameter block (RFC 7693, 2.5): fan-out 1, depth 1, length of the key, length of the digest. */
    s->h[0] ^= 0x01010000u | (uint32_t)key_len << 8 | VK_BLAKE2S_LEN;
    /* The key counts as 64 bytes of data, its padding included. */
    if (key_len) {
        memcpy(s->block, key, key_len);
        s->n_block = VK_BLAKE2S_BLOCK;
    }
}

void vk_blake2s_add(struct vk_blake2s *s, const void *data, size_t len)
{
    const uint8_t *from = data;
    while (len) {
        if (s->n_block == VK_BLAKE2S_BLOCK) { /* more data follows, so this is not the last block */
            s->n_compressed += VK_BLAKE2S_BLOCK;
            compress(s->h, s->block, s->n_compressed, 0);
            s->n_block = 0;
        }
        size_t n = VK_BLAKE2S_BLOCK - s->n_block < len ? VK_BLAKE2S_BLOCK - s->n_block : len;
        memcpy(s->block + s->n_block, from, n);
        s->n_block += n;
        from += n;
        len -= n;
    }
}

void vk_blake2s_end(struct vk_blake2s *s, uint8_t digest[VK_BLAKE2S_LEN])
{
    /* The padding of the last block does not count as data. */
    memset(s->block + s->n_block, 0, VK_BLAKE2S_BLOCK - s->n_block);
    compress(s->h, s->block, s->n_compressed + s->n_block, 1);
    for (int i = 0; i < VK_BLAKE2S_LEN; i++)
        digest[i] = (uint8_t)(s->h[i / 4] >> 8 * (i % 4));
    vk_wipe(s, sizeof *s);
}

void vk_blake2s(const void *key, size_t key_len, const void *data, size_t len, uint8_t digest[VK_BLAKE2S_LEN])
{
    struct vk_blake2s s;
    vk_blake2s_begin(&s, key, key_len);
    vk_blake2s_add(&s, data, len);
    vk_blake2s_end(&s, digest);
}

/* All bytes are read in any case: the time depends on len alone. */
int vk_equal_secret(const void *a, const void *b, size_t len)
{
    const volatile uint8_t *x = a, *y = b;
    uint8_t differ = 0;
    for (size_t i = 0; i < len; i++)
        differ |= x[i] ^ y[i];
    return differ == 0;
}

void vk_wipe(void *memory, size_t len)
{
    memset(memory, 0, len);
    /* The compiler must assume that the bytes are read here, so it keeps the stores. */
    __asm__ __volatile__("" : : "r"(memory) : "memory");
}

/* Returns the value of a hexadecimal digit of either case, or -1. */
static int digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

int vk_read_hex(const char *text, uint8_t *bytes, size_t len)
{
    if (strlen(text) != 2 * len)
        return -1;
    for (size_t i = 0; i < len; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return -1;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    return 0;
}

/* Up to 256 bytes come in one piece once the kernel's pool is ready. Longer requests may be interrupted. */
int vk_random_bytes(void *memory, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t n = getrandom((char *)memory + done, len - done, 0);
        if (n < 0 && errno != EINTR)
            return -errno;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}
