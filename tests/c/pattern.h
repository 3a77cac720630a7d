/* pattern.h - what the tests' messages hold: bytes that depend on the place and on a seed, so that none stands for
 * another. */
#ifndef PATTERN_H
#define PATTERN_H

#include <stddef.h>

static inline unsigned char pattern_at(size_t i, unsigned seed)
{
    return (unsigned char)((i * 2654435761u + seed * 40503u) >> 8 ^ i ^ seed);
}

static inline void pattern_fill(void *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)buf)[i] = pattern_at(i, seed);
}

/* Is it all there? */
static inline int pattern_holds(const void *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        if (((const unsigned char *)buf)[i] != pattern_at(i, seed))
            return 0;
    return 1;
}

#endif
