/*
 * BLAKE2s-256, keyed: the one message authentication code of viakit. RFC 7693 (Saarinen and Aumasson); the algorithm is
 * by Aumasson, Neves, Wilcox-O'Hearn and Winnerlein. Python computes the same with hashlib.blake2s(data, key=...).
 *
 * No function allocates or fails, except vk_read_hex and vk_random_bytes, which may fail. A struct vk_blake2s belongs
 * to its caller, which uses it from one thread at a time.
 */
#ifndef VIAKIT_BLAKE2S_H
#define VIAKIT_BLAKE2S_H

#include <stddef.h>
#include <stdint.h>

#define VK_BLAKE2S_LEN 32   /* bytes of a digest, and of the longest key */
#define VK_BLAKE2S_BLOCK 64 /* bytes that are compressed at a time */

struct vk_blake2s {
    uint32_t h[8];
    uint64_t n_compressed; /* bytes */
    uint8_t block[VK_BLAKE2S_BLOCK];
    size_t n_block; /* bytes of block in use */
};

/* Begins a digest. key_len is 0 (a plain hash) to 32 bytes. */
void vk_blake2s_begin(struct vk_blake2s *s, const void *key, size_t key_len);
void vk_blake2s_add(struct vk_blake2s *s, const void *data, size_t len);
/* Writes the digest and wipes the state. A new digest starts with vk_blake2s_begin. */
void vk_blake2s_end(struct vk_blake2s *s, uint8_t digest[VK_BLAKE2S_LEN]);

/* Computes the digest of data in one piece. */
void vk_blake2s(const void *key, size_t key_len, const void *data, size_t len, uint8_t digest[VK_BLAKE2S_LEN]);

/* Returns 1 if the len bytes are equal, else 0. The time does not depend on the contents. */
int vk_equal_secret(const void *a, const void *b, size_t len);
/* Overwrites memory that held a secret. The compiler does not remove it. */
void vk_wipe(void *memory, size_t len);

/* Reads exactly 2 * len hexadecimal digits into bytes. Returns 0, or -1 if the text is anything else. */
int vk_read_hex(const char *text, uint8_t *bytes, size_t len);
/* Fills memory with random bytes from the kernel. Returns 0, or -errno if the kernel has no source of them. */
int vk_random_bytes(void *memory, size_t len);

#endif
