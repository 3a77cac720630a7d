/*
 * The explanation of the calling thread's last failed call, for viakit_last_error(): a text beside a code.
 *
 * The function that first detects an error sets it. Callers return the code and add nothing. A call that succeeds
 * leaves the text unchanged.
 */
#ifndef VIAKIT_EXPLAIN_H
#define VIAKIT_EXPLAIN_H

#include "vipl.h"

#define VK_EXPLANATION 512 /* bytes, the terminating zero included; longer texts are cut */

/* Sets the explanation, formatted like printf. For functions that return -errno. */
void vk_explain(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Sets the explanation and returns the code: `return vk_fail(VIP_..., "...", ...)`. */
VIP_RETURN vk_fail(VIP_RETURN code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like vk_fail without formatting, for calls of the short path whose failure is routine in some programs. */
VIP_RETURN vk_fail_text(VIP_RETURN code, const char *text);

/* Returns the explanation. Never NULL; valid in this thread until its next failed call. */
const char *vk_explanation(void);

#endif
