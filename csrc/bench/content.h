/*
 * bench/content.h - the bytes of messages: patterns for validation, writing and reading of touched buffers.
 *
 * Pure functions on memory. Any thread may call them; none blocks or allocates. Pointers need no alignment.
 */
#ifndef BENCH_CONTENT_H
#define BENCH_CONTENT_H

#include <stddef.h>
#include <stdint.h>

/* A mixing function: every bit of x affects every bit of the result. It distinguishes patterns; it is not
 * cryptographic. */
uint64_t bench_content_mix(uint64_t x);

/* Validation. Fill len bytes with a pattern in which word j depends on seed and j. */
void bench_content_fill(unsigned char *message, size_t len, uint64_t seed);

/* Return the index of the first byte that differs from the pattern of `seed`, or len if none does. *expected is set to
 * the pattern's byte at that index. */
size_t bench_content_compare(const unsigned char *message, size_t len, uint64_t seed, unsigned char *expected);

/* Touching. Write every byte of the message: `value` in each word, and its first bytes in a last partial word. */
void bench_content_write(unsigned char *message, size_t len, uint64_t value);

/* Read every byte of the message. Returns the sum of its words modulo 2^64; a last partial word is padded with zero
 * bytes. */
uint64_t bench_content_sum(const unsigned char *message, size_t len);

/* Return the sum of a message that bench_content_write(message, len, value) wrote. */
uint64_t bench_content_sum_of(size_t len, uint64_t value);

#endif /* BENCH_CONTENT_H */
