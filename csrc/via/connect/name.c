/*
 * The name service: it maps names to addresses of the NIC's kind, and back.
 *
 *   "aa:bb:cc:dd:ee:ff"       itself, on every link
 *   a host of the user's      from the files and variables of config.h; files named to VipNSInit come first
 *   "localhost", own name     this NIC's own address
 *   any other short name      on loop and shm, where all processes share one station: this NIC's own address, so that
 *                             programs written for hosts "a" and "b" run on one; on other links unknown
 *   an Internet name or       on udp, whose stations have such names: HOST, HOST:PORT, 10.0.0.1,
 *   address                   [fe80::1%eth0]:PORT; there a host of the user's may also have such a name
 *   anything else             unknown (VIP_ERROR_NAMESERVICE)
 *
 * The calls copy the few fields of the NIC that they need, leave it, and search outside, because files and other
 * machines may be slow.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/explain.h"
#include "base/plural.h"
#include "via/connect/config.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"

/* The fields of a NIC that a look-up needs. */
struct view {
    uint8_t own[6];
    int one_station; /* all processes share one address: loop and shm */
    char *hosts_file;
    int (*resolve)(const uint8_t own[6], const char *name, unsigned index,
                   uint8_t address[6]); /* the link's, or NULL */
};

/* Copy these fields and leave the NIC, because the look-up itself may take seconds. The caller frees hosts_file. */
static VIP_RETURN look(VIP_NIC_HANDLE handle, struct view *v)
{
    VIA_ENTER_NIC(nic, handle);
    memcpy(v->own, nic->limits.address, 6);
    v->one_station = !nic->ops->about.leaves_host;
    v->resolve = nic->ops->resolve;
    v->hosts_file = nic->hosts_file ? strdup(nic->hosts_file) : NULL;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* ---------------------------------------------------------------- hosts that the user has named */

/* Return the address of an entry of the wanted form: six bytes, or a name that the link resolves. A file may have both
 * for one host: its card's address, and its name on the Internet. Returns 1 and the address, or 0 for an entry of the
 * other form. Resolving a name may take seconds. */
static int understood(const struct view *v, const char *value, int six_bytes, uint8_t address[6])
{
    if (config_parse_address(value, address))
        return six_bytes;
    return !six_bytes && v->resolve && v->resolve(v->own, value, 0, address) == 0;
}

/* The search for the index-th address of a name. */
struct by_name {
    const struct view *view;
    const char *name;
    unsigned long index; /* which of the entries with this name; counted down */
    int six_bytes;       /* search such entries, or the others */
    uint8_t *address;
};

/* index counts down with each matching entry; the entry that finds it 0 is returned. */
static int same_name(void *context, const char *name, const char *value, const char *where)
{
    struct by_name *b = context;
    (void)where;
    uint8_t address[6];
    if (strcmp(name, b->name) != 0 || !understood(b->view, value, b->six_bytes, address) || b->index-- > 0)
        return 0;
    memcpy(b->address, address, 6);
    return 1;
}

/* The search for a name by its address. */
struct by_address {
    const struct view *view;
    const uint8_t *address;
    char *name;
    size_t size;
};

/* The entry may have either form: six bytes, or a name that the link resolves. */
static int same_address(void *context, const char *name, const char *value, const char *where)
{
    struct by_address *b = context;
    uint8_t address[6];
    (void)where;
    if (!understood(b->view, value, 1, address) && !understood(b->view, value, 0, address))
        return 0;
    if (memcmp(address, b->address, 6) != 0)
        return 0;
    snprintf(b->name, b->size, "%s", name);
    return 1;
}

/* ---------------------------------------------------------------- the host's own name */

/* Return the host name, empty if unknown. gethostname() need not terminate a truncated name. */
static void own_name(char *host, size_t size)
{
    if (gethostname(host, size - 1) != 0)
        *host = 0;
    host[size - 1] = 0;
}

/* Return whether the name is "localhost", or this host's name, in full or up to the first dot. */
static int is_own_name(const char *name)
{
    char host[256];
    if (strcmp(name, "localhost") == 0)
        return 1;
    own_name(host, sizeof host);
    if (*host && strcmp(name, host) == 0)
        return 1;
    host[strcspn(host, ".")] = 0; /* the short name */
    return host[0] && strcmp(name, host) == 0;
}

/* ---------------------------------------------------------------- the calls */

/* A visitor that accepts nothing: it makes errors in a file appear when the file is named, not when it is needed. */
static int no_visit(void *context, const char *name, const char *value, const char *where)
{
    (void)context, (void)name, (void)value, (void)where;
    return 0;
}

/* NSInitInfo is NULL, or the path of a file of hosts. */
VIP_RETURN VipNSInit(VIP_NIC_HANDLE handle, VIP_PVOID info)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    const char *path = info && *(const char *)info ? info : NULL;
    if (config_each(CONFIG_HOST, path, 0, no_visit, NULL) < 0)
        return VIP_ERROR_NAMESERVICE; /* explained, with file and line */
    /* The file is read at each look-up, so only its name is stored. */
    char *copy = path ? strdup(path) : NULL;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL) {
        free(copy);
        return code;
    }
    free(nic->hosts_file);
    nic->hosts_file = copy;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Remove the NIC's own file of hosts; the user's other files still apply. VipNSInit need not have been called before.
 */
VIP_RETURN VipNSShutdown(VIP_NIC_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIA_ENTER_NIC(nic, handle);
    free(nic->hosts_file);
    nic->hosts_file = NULL;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Return the address of the index-th host of that name. Every error has an explanation. *address may be changed by a
 * failed search. */
static VIP_RETURN find_address(const struct view *v, const char *name, unsigned long index, uint8_t address[6])
{
    /* The order is: an address itself, the user's entries that the link resolves, then those of six bytes, the link's
     * own names, and last this NIC itself. */
    struct by_name b = {v, name, index, 0, address};
    if (config_parse_address(name, address))
        return index == 0 ? VIP_SUCCESS : vk_fail(VIP_ERROR_NAMESERVICE, "an address has no index but 0");
    /* The list in VIAKIT_HOSTS names hosts on a wire, which a NIC of one machine cannot reach. */
    int found = v->resolve ? config_each(CONFIG_HOST, v->hosts_file, v->one_station, same_name, &b) : 0;
    b.six_bytes = 1;
    if (found == 0)
        found = config_each(CONFIG_HOST, v->hosts_file, v->one_station, same_name, &b);
    if (found)
        return found > 0 ? VIP_SUCCESS : VIP_ERROR_NAMESERVICE;
    if (b.index != index)
        return vk_fail(VIP_ERROR_NAMESERVICE, "host '%.64s' has %lu addresses: index %lu is past them", name,
                       index - b.index, index);
    if (v->resolve && !is_own_name(name)) /* the link explains */
        return v->resolve(v->own, name, (unsigned)index, address) == 0 ? VIP_SUCCESS : VIP_ERROR_NAMESERVICE;
    if (!is_own_name(name) && !(v->one_station && *name && name[strcspn(name, ".:/")] == 0))
        return vk_fail(VIP_ERROR_NAMESERVICE,
                       "no host '%.64s': write its address as aa:bb:cc:dd:ee:ff, or 'host %.64s = ADDRESS' into "
                       "~/.config/viakit/viakit.conf (or the file named by VIAKIT_HOSTS)",
                       name, name);
    if (index != 0)
        return vk_fail(VIP_ERROR_NAMESERVICE, "host '%.64s' has one address: index %lu is past it", name, index);
    memcpy(address, v->own, 6);
    return VIP_SUCCESS;
}

/* If a host has several addresses, VIPL numbers them from 0. DiscriminatorLen and the bytes after the address are not
 * changed. */
VIP_RETURN VipNSGetHostByName(VIP_NIC_HANDLE handle, VIP_CHAR *name, VIP_NET_ADDRESS *out, VIP_ULONG index)
{
    VK_HOLD_CANCEL;
    struct view v;
    uint8_t address[6];
    if (name == NULL || out == NULL)
        return vk_fail(VIP_INVALID_PARAMETER,
                       "VipNSGetHostByName: a name and a place for the address are needed (NULL)");
    VIP_RETURN code = look(handle, &v);
    if (code)
        return code;
    code = find_address(&v, name, index, address);
    free(v.hosts_file);
    if (code)
        return code;
    out->HostAddressLen = 6;
    uint8_t *bytes = out->HostAddress; /* DiscriminatorLen is the caller's, and many callers set it later */
    memcpy(bytes, address, 6);
    return VIP_SUCCESS;
}

/* Return the first name that the user's files give to the address. *len is in bytes, including the final zero. On entry
 * it is the size of the buffer, on return the size needed. A buffer that is too small returns VIP_ERROR_RESOURCE, so
 * that the program can call again. */
VIP_RETURN VipNSGetHostByAddr(VIP_NIC_HANDLE handle, VIP_NET_ADDRESS *address, VIP_CHAR *name, VIP_ULONG *len)
{
    VK_HOLD_CANCEL;
    struct view v;
    char found[256] = "";
    if (address == NULL || len == NULL || (name == NULL && *len > 0))
        return vk_fail(VIP_INVALID_PARAMETER,
                       "VipNSGetHostByAddr: an address, a place for the name and its length are needed (NULL)");
    if (address->HostAddressLen != 6)
        return vk_fail(VIP_INVALID_PARAMETER, "VipNSGetHostByAddr: host address of %u byte%s: addresses here have 6",
                       address->HostAddressLen, vk_s(address->HostAddressLen));
    VIP_RETURN code = look(handle, &v);
    if (code)
        return code;
    const uint8_t *bytes = address->HostAddress;
    struct by_address b = {&v, bytes, found, sizeof found};
    int n = config_each(CONFIG_HOST, v.hosts_file, v.one_station, same_address, &b);
    free(v.hosts_file);
    if (n < 0)
        return VIP_ERROR_NAMESERVICE; /* explained */
    if (n == 0 && memcmp(bytes, v.own, 6) == 0) {
        own_name(found, sizeof found);
        found[strcspn(found, ".")] = 0;
    }
    if (*found == 0)
        return vk_fail(VIP_ERROR_NAMESERVICE, "no host with address %02x:%02x:%02x:%02x:%02x:%02x is known", bytes[0],
                       bytes[1], bytes[2], bytes[3], bytes[4], bytes[5]);
    size_t need = strlen(found) + 1, room = *len;
    *len = need;
    if (room < need)
        return vk_fail(VIP_ERROR_RESOURCE, "VipNSGetHostByAddr: the name takes %zu byte%s with its end, there are %zu",
                       need, vk_s(need), room);
    memcpy(name, found, need);
    return VIP_SUCCESS;
}
