/*
 * Six-byte addresses for Internet hosts. VIA's address format has six bytes, so a station's address is
 *
 *    | IPv4 address, 4 bytes     | the station's common port, 2 bytes |     in network order
 *    | 0xF and 28 bits of a mark |             "                      |     for IPv6
 *
 * No host has an IPv4 address from 240.0.0.0 on, so the two forms cannot be confused. The mark is a hash of the IPv6
 * address. A table of this process maps marks to addresses. It holds this host's own addresses, those that the name
 * service returned, and those of hosts that sent datagrams. Hence the six bytes of an IPv4 address suffice in any
 * process. The name or full address of a remote IPv6 host must be resolved once in each process that connects to it.
 *
 *   IPv6 address --mark_of--> 28 bits --find_mark--> the address, if this process has learnt it
 *
 * Invariant: learnt.names[0 .. n) are filled, each with another address and scope. Once n is MAX_LEARNT, `next` is the
 * oldest of them; before, next is n.
 *
 * Any thread may call these functions. The mutex protects the table, and a child of fork() inherits it unlocked. Only
 * udp_resolve() and udp_resolve_at() may block on the network: getaddrinfo() may query DNS. The caller holds no NIC
 * then.
 *
 * Not done: names that the table has lost are not resolved again by themselves. The caller would have to give the text.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/explain.h"
#include "base/thread.h"
#include "link/udp.h"

/* An entry has 28 bytes, so the table has 28 KiB. A search reads all of it, but happens only when a peer is added or a
 * name is resolved. With more hosts at once, the oldest must be resolved again. */
#define MAX_LEARNT 1024

static struct {
    pthread_mutex_t mutex;
    uint32_t n, next;
    struct sockaddr_in6 names[MAX_LEARNT]; /* the oldest entries are replaced */
} learnt = {.mutex = PTHREAD_MUTEX_INITIALIZER};

VK_LOCK_AT_FORK(&learnt.mutex, (void)0)

/* Ports do not matter. A link-local IPv6 address (fe80::) denotes another host on each interface, so the scope (the
 * interface's number) is part of it. */
int udp_same_host(const union udp_name *a, const union udp_name *b)
{
    if (a->any.sa_family != b->any.sa_family)
        return 0;
    if (a->any.sa_family == AF_INET)
        return a->v4.sin_addr.s_addr == b->v4.sin_addr.s_addr;
    return memcmp(&a->v6.sin6_addr, &b->v6.sin6_addr, sizeof a->v6.sin6_addr) == 0 &&
           a->v6.sin6_scope_id == b->v6.sin6_scope_id;
}

/* For messages and for the prefix of the station's names. Without the scope: two link-local addresses that differ in it
 * only have one text. */
void udp_text(const union udp_name *name, char text[INET6_ADDRSTRLEN])
{
    const void *p =
        name->any.sa_family == AF_INET ? (const void *)&name->v4.sin_addr : (const void *)&name->v6.sin6_addr;
    if (inet_ntop(name->any.sa_family, p, text, INET6_ADDRSTRLEN) == NULL)
        strcpy(text, "?");
}

/* ---------------------------------------------------------------- marks */

/* FNV-1a with a final mixing step: h ^ h >> 29 moves the well-mixed upper bits to those that are kept. Not
 * cryptographic: a host that wants to collide with another can as well use its address. */
static uint32_t mark_of(const struct in6_addr *a)
{
    uint64_t h = 0xCBF29CE484222325u;
    for (size_t i = 0; i < sizeof a->s6_addr; i++)
        h = (h ^ a->s6_addr[i]) * 0x100000001B3u;
    h ^= h >> 29;
    return (uint32_t)h & 0x0FFFFFFF;
}

/* The port of the stored name is whatever the caller had; udp_unpack() replaces it. IPv4 needs no entry. */
void udp_learn(const union udp_name *name)
{
    if (name->any.sa_family != AF_INET6)
        return;
    pthread_mutex_lock(&learnt.mutex);
    uint32_t i = 0;
    while (i < learnt.n && (memcmp(&learnt.names[i].sin6_addr, &name->v6.sin6_addr, sizeof name->v6.sin6_addr) != 0 ||
                            learnt.names[i].sin6_scope_id != name->v6.sin6_scope_id))
        i++;
    if (i == learnt.n) {
        learnt.names[learnt.next] = name->v6;
        learnt.next = (learnt.next + 1) % MAX_LEARNT;
        learnt.n += learnt.n < MAX_LEARNT;
    }
    pthread_mutex_unlock(&learnt.mutex);
}

/* Finds the first address with that mark. Two addresses with equal marks would be confused. With 28 bits and 1024
 * addresses the probability is 1 in 500. */
static int find_mark(uint32_t mark, struct sockaddr_in6 *out)
{
    int found = 0;
    pthread_mutex_lock(&learnt.mutex);
    for (uint32_t i = 0; i < learnt.n && !found; i++)
        if (mark_of(&learnt.names[i].sin6_addr) == mark) {
            *out = learnt.names[i];
            found = 1;
        }
    pthread_mutex_unlock(&learnt.mutex);
    return found;
}

/* Bytes in network order, so that the first one shows the family. */
void udp_pack(const union udp_name *name, uint16_t station, uint8_t address[6])
{
    uint32_t bits =
        name->any.sa_family == AF_INET ? name->v4.sin_addr.s_addr : htonl(0xF0000000u | mark_of(&name->v6.sin6_addr));
    memcpy(address, &bits, 4);
    address[4] = (uint8_t)(station >> 8);
    address[5] = (uint8_t)station;
}

/* The name's port is the station's common one. For a NIC the caller sets that NIC's (udp_set_port). A NIC's sockets
 * are of one family, so an address of the other one cannot be reached, even if the host has both. */
int udp_unpack(const uint8_t address[6], int family, union udp_name *name)
{
    uint32_t bits;
    memcpy(&bits, address, 4);
    memset(name, 0, sizeof *name);
    /* 240.0.0.0 and above: see the top of the file. */
    int is_v6 = address[0] >= 0xF0;
    if (is_v6 != (family == AF_INET6)) {
        vk_explain("udp: the address is an IPv%d one and this NIC's is not: open a NIC of the same kind",
                   is_v6 ? 6 : 4);
        return -EHOSTUNREACH;
    }
    if (is_v6) {
        if (!find_mark(ntohl(bits) & 0x0FFFFFFF, &name->v6)) {
            vk_explain("udp: six bytes cannot hold an IPv6 address, and this process has no address for them: resolve "
                       "the host's name or address first (VipNSGetHostByName)");
            return -EHOSTUNREACH;
        }
    } else {
        name->v4.sin_family = AF_INET;
        name->v4.sin_addr.s_addr = bits;
    }
    udp_set_port(name, (uint16_t)(address[4] << 8 | address[5]));
    return 0;
}

/* ---------------------------------------------------------------- names */

/* Splits "HOST:PORT" or "[HOST]:PORT"; an IPv6 address without brackets has no port. Returns -EINVAL if the port is
 * invalid. *port is unchanged if the text has none. A text with one colon has a port, one with more is an IPv6
 * address. */
static int split_port(const char *text, char *host, size_t room, uint16_t *port)
{
    const char *end = text + strlen(text), *colon = strrchr(text, ':'), *from = text;
    if (*text == '[') {
        const char *bracket = strchr(text, ']');
        if (bracket == NULL || (bracket[1] && bracket[1] != ':'))
            return -EINVAL;
        from = text + 1;
        end = bracket;
        colon = bracket[1] ? bracket + 1 : NULL;
    } else if (colon && strchr(text, ':') == colon)
        end = colon;
    else
        colon = NULL;
    if (colon) {
        char *rest;
        unsigned long value = strtoul(colon + 1, &rest, 10);
        if (rest == colon + 1 || *rest || value == 0 || value > 65535)
            return -EINVAL;
        *port = (uint16_t)value;
    }
    if ((size_t)(end - from) >= room)
        return -EINVAL;
    memcpy(host, from, (size_t)(end - from));
    host[end - from] = 0;
    return 0;
}

/* Parses a numeric address, with %SCOPE if need be. Returns 0, or -EINVAL, not explained: the text may still be the
 * name of an interface. */
static int parse_numeric(const char *text, union udp_name *name)
{
    /* Numeric only: no name service is queried, so this does not block. getaddrinfo() parses the forms of both
     * families, and the number of the interface behind "%". */
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_DGRAM}, *list;
    memset(name, 0, sizeof *name);
    if (getaddrinfo(text, NULL, &hints, &list) != 0)
        return -EINVAL;
    memcpy(name, list->ai_addr, list->ai_addrlen);
    freeaddrinfo(list);
    return 0;
}

/* Link operation: may block while the system queries its name service. `own` selects the family, because a NIC can only
 * reach its own. The result is stored, so that the six bytes of an IPv6 address can be mapped back later. */
int udp_resolve(const uint8_t own[6], const char *text, unsigned index, uint8_t address[6])
{
    return udp_resolve_at(own, text, index, WIRE_UDP_PORT, address);
}

/* The order is that of getaddrinfo() (RFC 6724, and /etc/gai.conf). A socket type is given because the list would have
 * each address once for each type without one, and index would count them. */
int udp_resolve_at(const uint8_t own[6], const char *text, unsigned index, uint16_t station, uint8_t address[6])
{
    char host[256];
    struct addrinfo hints = {.ai_family = own[0] >= 0xF0 ? AF_INET6 : AF_INET, .ai_socktype = SOCK_DGRAM}, *list;
    if (split_port(text, host, sizeof host, &station) != 0) {
        vk_explain("no host '%.64s': write HOST, HOST:PORT or [IPV6-ADDRESS]:PORT", text);
        return -ENOENT;
    }
    int error = getaddrinfo(host, NULL, &hints, &list);
    if (error) {
        vk_explain("no host '%.64s' with an IPv%d address: %s", host, own[0] >= 0xF0 ? 6 : 4, gai_strerror(error));
        return -ENOENT;
    }
    const struct addrinfo *i = list;
    for (unsigned k = 0; i && k < index; k++)
        i = i->ai_next;
    if (i) {
        union udp_name name;
        memset(&name, 0, sizeof name);
        memcpy(&name, i->ai_addr, i->ai_addrlen);
        udp_learn(&name);
        udp_pack(&name, station, address);
    } else
        vk_explain("host '%.64s' has no address with number %u", host, index);
    freeaddrinfo(list);
    return i ? 0 : -ENOENT;
}

/* ---------------------------------------------------------------- this host */

/* The system's sockaddr has its family's length. The union has room for either; the rest is zero. */
static void copy_name(union udp_name *to, const struct sockaddr *from)
{
    memset(to, 0, sizeof *to);
    memcpy(to, from, from->sa_family == AF_INET ? sizeof to->v4 : sizeof to->v6);
}

/* getifaddrs() has an entry for each address of an interface, of any family, or one without an address. */
static int is_internet(const struct ifaddrs *i)
{
    return i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6);
}

/* Explains what was wrong, and lists the available addresses, as many as the text holds. Returns -ENODEV. */
static int refuse(const char *what, const struct ifaddrs *all)
{
    char list[400] = "";
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        char text[INET6_ADDRSTRLEN];
        union udp_name name;
        size_t used = strlen(list);
        if (!is_internet(i) || used + INET6_ADDRSTRLEN + IFNAMSIZ + 8 > sizeof list)
            continue;
        copy_name(&name, i->ifa_addr);
        udp_text(&name, text);
        snprintf(list + used, sizeof list - used, "%s%s (%.15s)", used ? ", " : "", text, i->ifa_name);
    }
    vk_explain("udp: %s: this host has %s", what, *list ? list : "no address: bring an interface up");
    return -ENODEV;
}

/* Finds the address of this host's default route. No datagram is sent: connecting a datagram socket only has the kernel
 * choose a route, and a local address with it. 192.0.2.0/24 and 2001:db8::/32 are reserved for documentation (RFC 5737,
 * 3849), so no host has them. Port 9 is "discard" (RFC 863). Returns 0, or -1 if the host has no default route for that
 * family. */
static int default_route(int family, union udp_name *name)
{
    union udp_name far;
    socklen_t len = sizeof *name;
    int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0), error = -1;
    if (fd < 0)
        return -1;
    if (parse_numeric(family == AF_INET ? "192.0.2.1" : "2001:db8::1", &far) == 0) {
        udp_set_port(&far, 9);
        if (connect(fd, &far.any, udp_name_len(&far)) == 0 && getsockname(fd, &name->any, &len) == 0)
            error = 0;
    }
    close(fd);
    return error;
}

/* Finds the first address of an interface, IPv4 before IPv6: an IPv4 address needs no resolving in other processes.
 * Returns 0, or -1 if it has none. */
static int of_interface(const struct ifaddrs *all, const char *interface, union udp_name *name)
{
    /* interface NULL: any but the loopback. */
    for (int family = AF_INET;; family = AF_INET6) {
        for (const struct ifaddrs *i = all; i; i = i->ifa_next)
            if (is_internet(i) && i->ifa_addr->sa_family == family &&
                (interface ? strcmp(i->ifa_name, interface) == 0 : !(i->ifa_flags & IFF_LOOPBACK))) {
                copy_name(name, i->ifa_addr);
                return 0;
            }
        if (family == AF_INET6)
            return -1;
    }
}

/* Parses the device's text: empty, an address, or an interface. An address precedes an interface of the same name.
 * Returns 0, or -ENODEV, explained. An address may be another host's: find_interface() detects that. */
static int choose(const char *host, const struct ifaddrs *all, union udp_name *name)
{
    if (*host == 0) {
        if (default_route(AF_INET, name) == 0 || of_interface(all, NULL, name) == 0 ||
            default_route(AF_INET6, name) == 0)
            return 0;
        return refuse("no address but the loopback's: give one by name, udp:127.0.0.1 for instance", all);
    }
    if (parse_numeric(host, name) == 0 || of_interface(all, host, name) == 0)
        return 0;
    char what[160];
    snprintf(what, sizeof what, "'%.64s' is neither an address nor an interface with one", host);
    return refuse(what, all);
}

/* Returns the interface's MTU in bytes, IP header included, or Ethernet's if it cannot be read. netdevice(7): the
 * socket only selects the network namespace, so its family need not be the NIC's. */
static uint32_t mtu_of(const char *interface)
{
    struct ifreq r;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    memset(&r, 0, sizeof r);
    strcpy(r.ifr_name, interface);
    int known = fd >= 0 && ioctl(fd, SIOCGIFMTU, &r) == 0;
    if (fd >= 0)
        close(fd);
    return known ? (uint32_t)r.ifr_mtu : 1500;
}

/* Finds the interface that has the address. Stores all IPv6 addresses of this host on the way, so that NICs of one host
 * reach each other without resolving. Returns 0, or -ENODEV, explained. */
static int find_interface(const struct ifaddrs *all, union udp_name *name, char interface[IFNAMSIZ])
{
    char text[INET6_ADDRSTRLEN], what[160];
    *interface = 0;
    for (const struct ifaddrs *i = all; i; i = i->ifa_next) {
        union udp_name one;
        if (!is_internet(i))
            continue;
        copy_name(&one, i->ifa_addr);
        udp_learn(&one);
        if (name->any.sa_family == AF_INET6 && name->v6.sin6_scope_id == 0 && one.any.sa_family == AF_INET6 &&
            memcmp(&one.v6.sin6_addr, &name->v6.sin6_addr, sizeof one.v6.sin6_addr) == 0)
            name->v6.sin6_scope_id = one.v6.sin6_scope_id; /* a link-local address without %IF */
        if (*interface == 0 && udp_same_host(&one, name))
            snprintf(interface, IFNAMSIZ, "%.15s", i->ifa_name);
    }
    if (*interface || (name->any.sa_family == AF_INET && ntohl(name->v4.sin_addr.s_addr) >> 24 == 127)) {
        if (*interface == 0)
            strcpy(interface, "lo"); /* all of 127.0.0.0/8 is this host, though only one address is listed */
        return 0;
    }
    udp_text(name, text);
    snprintf(what, sizeof what, "%s is not an address of this host", text);
    return refuse(what, all);
}

int udp_parse_device(const char *device, union udp_name *name, uint16_t *station, char interface[IFNAMSIZ],
                     uint32_t *mtu)
{
    char host[128];
    *station = WIRE_UDP_PORT;
    if (split_port(device, host, sizeof host, station) != 0) {
        vk_explain("udp: '%.64s': give udp:ADDRESS, udp:INTERFACE or udp:, and :PORT (1 to 65535) if need be; an IPv6 "
                   "address with a port in brackets, udp:[::1]:5000",
                   device);
        return -EINVAL;
    }
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        int error = -errno;
        vk_explain("udp: the interfaces of this host cannot be listed: %s", strerror(-error));
        return error;
    }
    int error = choose(host, all, name);
    if (error == 0)
        error = find_interface(all, name, interface);
    freeifaddrs(all);
    /* The kernel chooses each NIC's own port (udp_claim). */
    udp_set_port(name, 0);
    if (error == 0)
        *mtu = mtu_of(interface);
    return error;
}
