/*
 * One explanation per thread: see explain.h. Any thread may call these functions at any time.
 */
#include "base/explain.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Empty until the first failure of the thread. A text that is too long is cut, never refused. */
static __thread char explanation[VK_EXPLANATION];

void vk_explain(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(explanation, sizeof explanation, format, list);
    va_end(list);
}

VIP_RETURN vk_fail(VIP_RETURN code, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(explanation, sizeof explanation, format, list);
    va_end(list);
    return code;
}

/* The text is copied as it is, so a '%' in it has no meaning. */
VIP_RETURN vk_fail_text(VIP_RETURN code, const char *text)
{
    size_t len = strnlen(text, sizeof explanation - 1);
    memcpy(explanation, text, len);
    explanation[len] = '\0';
    return code;
}

const char *vk_explanation(void)
{
    return explanation;
}
