/*
 * The name service: names to addresses of the NIC's kind.
 *
 *   "aa:bb:cc:dd:ee:ff"       itself, on every link
 *   a name in the hosts file  its address; the file is $VIAKIT_HOSTS, else /etc/vip_hosts: lines "name address", # comments
 *   "localhost", our name     this NIC's own address
 *   a name or address         of the Internet, on udp: HOST, HOST:PORT, 10.0.0.1, [fe80::1%eth0]:PORT
 *   any other short name      on loop and shm, where all processes share one station: this NIC's own address, so that
 *                             programs written for hosts "a" and "b" run on one; elsewhere unknown
 *   anything else             unknown (VIP_ERROR_NAMESERVICE)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "internal.h"

static int parse_address(const char *text, uint8_t address[6])
{
    unsigned b[6];
    char rest;
    if (sscanf(text, "%2x:%2x:%2x:%2x:%2x:%2x%c", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &rest) != 6)
        return 0;
    for (int i = 0; i < 6; i++)
        address[i] = (uint8_t)b[i];
    return 1;
}

static int find_in_file(const char *name, uint8_t address[6])
{
    const char *path = getenv("VIAKIT_HOSTS");
    FILE *f = fopen(path && *path ? path : "/etc/vip_hosts", "re");
    char line[512], label[256], value[64];
    int found = 0;
    if (f == NULL)
        return 0;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "#\n")] = 0;
        if (sscanf(line, "%255s %63s", label, value) == 2 && strcmp(label, name) == 0)
            found = parse_address(value, address);
    }
    fclose(f);
    return found;
}

static int is_own_name(const char *name)
{
    char host[256] = "";
    if (strcmp(name, "localhost") == 0)
        return 1;
    if (gethostname(host, sizeof host - 1) != 0)
        return 0;
    if (strcmp(name, host) == 0)
        return 1;
    host[strcspn(host, ".")] = 0; /* the short name */
    return host[0] && strcmp(name, host) == 0;
}

VIP_RETURN VipNSInit(VIP_NIC_HANDLE handle, VIP_PVOID info)
{
    VIP_RETURN code;
    struct via_nic *nic = via_nic_enter(handle, &code);
    (void)info; /* each provider's own; this one needs nothing */
    if (nic == NULL)
        return code;
    via_leave(nic);
    return VIP_SUCCESS;
}

VIP_RETURN VipNSShutdown(VIP_NIC_HANDLE handle)
{
    return VipNSInit(handle, NULL);
}

VIP_RETURN VipNSGetHostByName(VIP_NIC_HANDLE handle, VIP_CHAR *name, VIP_NET_ADDRESS *out, VIP_ULONG index)
{
    VIP_RETURN code;
    uint8_t address[6], own[6];
    if (name == NULL || out == NULL)
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipNSGetHostByName: a name and a place for the address are needed (NULL)");
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    memcpy(own, nic->limits.address, 6);
    int one_station = nic->limits.lossless && strcspn(name, ".:/") == strlen(name) && *name;
    int (*resolve)(const uint8_t *, const char *, unsigned, uint8_t *) = nic->ops->resolve;
    via_leave(nic);
    if (!parse_address(name, address) && !find_in_file(name, address)) {
        if (!is_own_name(name) && resolve) {
            if (resolve(own, name, (unsigned)index, address) != 0)
                return VIP_ERROR_NAMESERVICE; /* the link has explained */
            index = 0;
        } else if (is_own_name(name) || one_station)
            memcpy(address, own, 6);
        else
            return via_fail(VIP_ERROR_NAMESERVICE,
                            "no host '%.64s': write its address as aa:bb:cc:dd:ee:ff, or add it to /etc/vip_hosts "
                            "(or the file named by VIAKIT_HOSTS)",
                            name);
    }
    if (index != 0)
        return via_fail(VIP_ERROR_NAMESERVICE, "host '%.64s' has one address: index %lu is past it", name, index);
    out->HostAddressLen = 6;
    uint8_t *bytes = out->HostAddress; /* DiscriminatorLen is the caller's: many leave it unset until later */
    memcpy(bytes, address, 6);
    return VIP_SUCCESS;
}
