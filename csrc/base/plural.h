/*
 * "1 byte", "2 bytes": what texts with a number need. printf("%zu byte%s", n, vk_s(n)).
 */
#ifndef VIAKIT_PLURAL_H
#define VIAKIT_PLURAL_H

#include <stdint.h>

/* The ending of a regular noun after that number. */
static inline const char *vk_s(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
