/*
 * The arguments of viakit-raw, and the name of the socket that holds a port: text of any user, read with a capability.
 *
 *   | number of arguments | the arguments, each with its zero | the claim's name, up to the end |
 *
 * A request that is accepted has a name that fits an interface. A name is accepted only if writing it anew from the
 * interface and the port gives the same bytes.
 */
#include <stdio.h>
#include <string.h>

#include "hollow.h"
#include "link/raw.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const char *arguments[4] = {"", "", "", ""};
    struct raw_request request;
    char again[128];
    if (len == 0)
        return 0;
    int n = data[0] & 3;
    size_t at = 1;
    for (int i = 0; i < n; i++) {
        const uint8_t *end = memchr(data + at, 0, len - at);
        if (end == NULL)
            return 0;
        arguments[i] = (const char *)data + at;
        at = (size_t)(end - data) + 1;
    }
    if (raw_parse(n, arguments, &request) != NULL)
        return 0;
    HOLLOW_CHECK(n == 3 && strlen(request.interface) > 0 && strlen(request.interface) < IFNAMSIZ, "interface '%s'",
                 request.interface);
    snprintf(again, sizeof again, "%u", request.least);
    HOLLOW_CHECK(strcmp(again, arguments[1]) == 0, "%s was read as %s", arguments[1], again);
    snprintf(again, sizeof again, "%u", request.most);
    HOLLOW_CHECK(strcmp(again, arguments[2]) == 0, "%s was read as %s", arguments[2], again);
    uint16_t port = raw_claimed_port((const char *)data + at, len - at, request.interface);
    int wrote = snprintf(again, sizeof again, "viakit/eth/%s/%u", request.interface, port);
    HOLLOW_CHECK(port == 0 || ((size_t)wrote == len - at && memcmp(again, data + at, len - at) == 0),
                 "a name that is not %s was accepted", again);
    return 0;
}
