/*
 * Plural endings for messages with a number, "1 byte", "2 bytes": printf("%zu byte%s", n, vk_s(n)).
 */
#ifndef VIAKIT_PLURAL_H
#define VIAKIT_PLURAL_H

#include <stdint.h>

/* Returns the ending of a regular noun after that number. */
static inline const char *vk_s(uint64_t n)
{
    return n == 1 ? "" : "s";
}

#endif
