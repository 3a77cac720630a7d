/*
 * Texts that a user, an environment or a file may hold: faults, lists of devices, the configuration and files of hosts,
 * udp's devices.
 *
 *   | which | the text, up to the end |
 *
 * A text that parses as faults is written and parsed again, and must be the same. Each entry of the others must keep
 * its contract.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "hollow.h"
#include "link/udp.h"
#include "via/connect/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

/* A valid text can be written, and means the same when it is read again. Every decision about a frame ends. */
static void faults(const char *text)
{
    static char again[16384];
    viakit_faults a = {.size = sizeof a}, b = {.size = sizeof b};
    if (viakit_parse_faults(text, &a) != VIP_SUCCESS)
        return;
    HOLLOW_CHECK(viakit_format_faults(&a, again, sizeof again) == VIP_SUCCESS, "%s: %s", text, viakit_last_error());
    HOLLOW_CHECK(viakit_parse_faults(again, &b) == VIP_SUCCESS, "'%s' became '%s': %s", text, again,
                 viakit_last_error());
    HOLLOW_CHECK(memcmp(&a, &b, sizeof a) == 0, "'%s' became '%s'", text, again);
    for (int i = 0; i < 64; i++)
        viakit_fault_of(&a, (uint64_t)i, i & 15, (uint64_t)i / 2);
}

/* Counts and reads everything that it is shown. */
static int look_at(void *context, const char *name, const char *value, const char *where)
{
    size_t *n = context;
    *n += strlen(name) + strlen(value);
    HOLLOW_CHECK(strlen(where) > 0 && ++n[1] < 5000, "an entry from nowhere, or one too many");
    return 0;
}

static void walk(enum config_kind kind, const char *hosts_file)
{
    size_t n[2] = {0, 0};
    char device[64], where[64];
    config_each(kind, hosts_file, 0, look_at, n);
    if (kind == CONFIG_DEVICE)
        config_device("nic0", device, sizeof device, where, sizeof where);
}

/* A file without a name on any disk. */
static const char *as_file(const char *text, size_t len)
{
    static char path[40];
    static int fd = -1;
    if (fd < 0) {
        fd = memfd_create("text", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    HOLLOW_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, text, len, 0) == (ssize_t)len, "no memory");
    return path;
}

/* An accepted device has a port, an MTU and an interface, and the name is terminated within its array. */
static void udp_device(const char *text)
{
    union udp_name name;
    uint16_t station = 0;
    char interface[IFNAMSIZ];
    uint32_t mtu = 0;
    if (udp_parse_device(text, &name, &station, interface, &mtu) == 0)
        HOLLOW_CHECK(station && mtu && *interface && strlen(interface) < IFNAMSIZ, "'%s': port %u, MTU %u", text,
                     station, mtu);
}

/* As setenv(), which keeps all values that a variable ever had. */
static void set(char *entry, size_t room, const char *name, const char *value)
{
    snprintf(entry, room, "%s=%s", name, value);
    putenv(entry);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    static char devices[8192], config[64];
    if (len < 1)
        return 0;
    char *text = malloc(len); /* no longer than it is: a sanitizer sees what is read behind it */
    if (text == NULL)
        return 0;
    memcpy(text, data + 1, len - 1);
    text[len - 1] = 0;
    unsetenv("VIAKIT_DEVICES"), unsetenv("VIAKIT_HOSTS");
    set(config, sizeof config, "VIAKIT_CONFIG", "/dev/null");
    switch (data[0] % 8) {
    case 0:
    case 1:
    case 2:
        faults(text);
        break;
    case 3:
        set(devices, sizeof devices, "VIAKIT_DEVICES", text);
        walk(CONFIG_DEVICE, NULL);
        break;
    case 4:
        set(config, sizeof config, "VIAKIT_CONFIG", as_file(text, len - 1));
        walk(CONFIG_DEVICE, NULL);
        walk(CONFIG_HOST, NULL);
        break;
    case 5:
        walk(CONFIG_HOST, as_file(text, len - 1));
        break;
    case 6:
        /* Room for a few bytes only: what does not fit must be refused, not written. */
        config_device(text, (char[16]){0}, 16, (char[8]){0}, 8);
        break;
    default:
        udp_device(text);
    }
    free(text);
    return 0;
}
