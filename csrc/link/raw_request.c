/*
 * The arguments that viakit-raw accepts. These functions read text that any user may choose. They use no privilege, and
 * the fuzz target `raw` runs them.
 */
#include <stdio.h>
#include <string.h>

#include "link/raw.h"

/* Reads a decimal number without sign, spaces or leading zeros. Returns 1, or 0 for any other text. */
static int read_number(const char *text, size_t len, uint64_t most, uint64_t *value)
{
    uint64_t number = 0;
    if (len == 0 || len > 10 || (text[0] == '0' && len > 1))
        return 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9')
            return 0;
        number = 10 * number + (uint64_t)(text[i] - '0');
    }
    *value = number;
    return number <= most;
}

const char *raw_parse(int n, const char *const *arguments, struct raw_request *request)
{
    uint64_t least = 0, most = 0;
    if (n != 3)
        return "expected INTERFACE LEAST MOST";
    if (arguments[0][0] == 0 || strlen(arguments[0]) >= IFNAMSIZ || strchr(arguments[0], '/'))
        return "INTERFACE must have 1 to 15 characters, without a slash";
    if (!read_number(arguments[1], strlen(arguments[1]), UINT32_MAX, &least) ||
        !read_number(arguments[2], strlen(arguments[2]), UINT32_MAX, &most))
        return "LEAST and MOST must be numbers of bytes, from 0 to 4294967295";
    strcpy(request->interface, arguments[0]);
    request->least = (uint32_t)least;
    request->most = (uint32_t)most;
    return NULL;
}

uint16_t raw_claimed_port(const char *name, size_t len, const char *interface)
{
    char prefix[64];
    uint64_t port = 0;
    size_t head = (size_t)snprintf(prefix, sizeof prefix, "viakit/eth/%s/", interface);
    if (head >= sizeof prefix || len <= head || memcmp(name, prefix, head) != 0 ||
        !read_number(name + head, len - head, UINT16_MAX, &port))
        return 0;
    return (uint16_t)port;
}
