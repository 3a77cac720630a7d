/* Text of any length in a buffer of fixed size. All functions are pure and thread-safe. */
#ifndef VIAKIT_TEXT_H
#define VIAKIT_TEXT_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* len counts also the bytes that did not fit, so that the caller can report the size that is needed: len + 1. */
struct vk_text {
    char *bytes; /* NULL if size is 0 */
    size_t size, len;
};

/* Appends like printf. The text ends with a zero byte if size is not 0. */
__attribute__((format(printf, 2, 3))) static inline void vk_put(struct vk_text *t, const char *format, ...)
{
    size_t at = t->len < t->size ? t->len : t->size;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(t->size ? t->bytes + at : NULL, t->size - at, format, args);
    va_end(args);
    t->len += n > 0 ? (size_t)n : 0;
}

#endif
