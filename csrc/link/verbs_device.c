/*
 * Which device, which port, which address. The kernel describes RDMA devices below /sys/class/infiniband:
 *
 *   DEVICE/ports/PORT/gids/INDEX                  the GIDs of a port, as IPv6 addresses
 *   DEVICE/ports/PORT/gid_attrs/types/INDEX       "RoCE v2" if frames with it travel in UDP datagrams over IP
 *   DEVICE/ports/PORT/gid_attrs/ndevs/INDEX       the network interface that it belongs to
 *
 * A device is given by its own name (`rdma link`, `ibv_devices`), or by the name of its network interface, as on eth
 * and udp. A GID of RoCE v2 is an IP address of that interface. An IPv4 one is preferred: its six bytes suffice in any
 * process (udp_address.c). Then come other IPv6 addresses before link-local ones.
 *
 *   text --split--> name, port --choose--> device of the library --open_device--> context
 *        --settle_port--> `at` (device, port, interface, GID and its index), mtu, max_message
 *
 * The files are read, and not ibv_query_gid(3), because that call returns neither the type of a GID nor its interface.
 * The kernel changes the table when an address is added or removed. `at` is a copy of the time of opening: viakit does
 * not follow later changes.
 *
 * Only the thread that opens or closes the NIC calls these functions. They block for the time of the system calls.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/explain.h"
#include "base/files.h"
#include "link/verbs.h"

#define CLASS "/sys/class/infiniband"
#define MOST_PORTS 16u /* cards have one or two; the bound ends the search of a device without a matching port */
#define MOST_GIDS 256  /* entries of a port's table that are searched; rdma_rxe has 1024, filled from the first on */

/* Reads a line of a file of sysfs, without its end. Returns 0 if the file does not exist or cannot be read: entries of
 * the GID table that are not in use give an error. */
static int read_line(char *line, size_t room, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, line, room - 1);
    if (fd >= 0)
        close(fd);
    line[n > 0 ? n : 0] = 0;
    line[strcspn(line, "\n")] = 0;
    return n > 0;
}

/* Reads an attribute of an entry of a port's GID table. Returns 0 if it has none, as read_line(). */
static int read_gid_file(char *line, size_t room, const char *device, unsigned port, const char *what, int index)
{
    char path[256];
    snprintf(path, sizeof path, CLASS "/%.63s/ports/%u/%s/%d", device, port, what, index);
    return read_line(line, room, path);
}

/* An IPv4 address stands in a GID as an IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2). */
static int is_v4(const union ib_gid *gid)
{
    static const uint8_t mapped[12] = {[10] = 0xFF, [11] = 0xFF};
    return memcmp(gid->raw, mapped, sizeof mapped) == 0;
}

/* Returns how well a GID serves: 3 IPv4, 2 IPv6, 1 link-local IPv6 (fe80::/10), 0 none. Free entries are all zeros. */
static int rank_of(const union ib_gid *gid)
{
    static const uint8_t none[16];
    if (memcmp(gid->raw, none, sizeof none) == 0)
        return 0;
    return is_v4(gid) ? 3 : gid->raw[0] == 0xFE && (gid->raw[1] & 0xC0) == 0x80 ? 1 : 2;
}

/* Finds the best GID of RoCE v2 of a port. Returns its rank, 0 if the port has no such GID. With an interface only its
 * GIDs count. A port with VLANs has GIDs of several interfaces. The first one of equal rank is taken. Each
 * address may stand twice, also as RoCE v1 (Ethernet type 0x8915, no IP header), which is not used. */
static int find_gid(struct verbs_port *at, const char *interface)
{
    char line[64], owner[64];
    int best = 0;
    for (int i = 0; i < MOST_GIDS; i++) {
        union ib_gid gid;
        if (!read_gid_file(line, sizeof line, at->device, at->port, "gids", i))
            break;
        if (inet_pton(AF_INET6, line, gid.raw) != 1 || rank_of(&gid) <= best ||
            !read_gid_file(line, sizeof line, at->device, at->port, "gid_attrs/types", i) ||
            strcmp(line, "RoCE v2") != 0 ||
            !read_gid_file(owner, sizeof owner, at->device, at->port, "gid_attrs/ndevs", i) ||
            (interface && strcmp(owner, interface) != 0))
            continue;
        best = rank_of(&gid);
        at->gid = gid;
        at->gid_index = i;
        snprintf(at->interface, sizeof at->interface, "%.15s", owner);
    }
    return best;
}

/* Returns whether the interface belongs to a port of the device, and sets that port. It counts if it has any GID, also
 * one that does not serve. Then settle_port() explains what the interface lacks. */
static int has_interface(struct verbs_port *at, const char *device, const char *interface)
{
    snprintf(at->device, sizeof at->device, "%s", device);
    for (at->port = 1; at->port <= MOST_PORTS; at->port++) {
        char line[64];
        for (int i = 0; i < MOST_GIDS; i++) {
            if (!read_gid_file(line, sizeof line, device, at->port, "gids", i))
                break;
            if (read_gid_file(line, sizeof line, device, at->port, "gid_attrs/ndevs", i) &&
                strcmp(line, interface) == 0)
                return 1;
        }
    }
    return 0;
}

/* Finds the first RDMA device of the kernel. Returns 0 if it has none. The library skips devices whose user-space
 * driver is missing, so the kernel may have some when the library's list is empty. */
static int first_device(char device[VERBS_NAME])
{
    DIR *folder = opendir(CLASS);
    struct dirent *entry;
    int found = 0;
    while (folder && !found && (entry = readdir(folder)))
        if (entry->d_name[0] != '.') {
            snprintf(device, VERBS_NAME, "%.63s", entry->d_name);
            found = 1;
        }
    if (folder)
        closedir(folder);
    return found;
}

/* Explains which devices exist instead, with their interfaces, as far as the text has room. Returns -ENODEV. */
static int refuse(const struct ib_library *lib, const char *name, struct ib_device **list, int n)
{
    char text[300] = "", device[VERBS_NAME];
    for (int i = 0; i < n; i++) {
        struct verbs_port at = {.port = 1};
        size_t used = strlen(text);
        snprintf(at.device, sizeof at.device, "%s", lib->get_device_name(list[i]));
        find_gid(&at, NULL);
        if (used + VERBS_NAME + IFNAMSIZ + 6 > sizeof text)
            break;
        snprintf(text + used, sizeof text - used, "%s%s%s%s%s", used ? ", " : "", at.device, *at.interface ? " (" : "",
                 at.interface, *at.interface ? ")" : "");
    }
    if (n > 0)
        vk_explain("verbs: '%.64s' is neither an RDMA device of this host nor an interface with one: it has %s", name,
                   text);
    else if (first_device(device))
        vk_explain("verbs: '%.64s': libibverbs finds no device, although the kernel has %s: install the drivers' other "
                   "half, on Debian and Ubuntu by apt-get install ibverbs-providers",
                   name, device);
    else
        vk_explain("verbs: '%.64s': this host has no RDMA device. Load the driver of its card (ibv_devices lists the "
                   "devices), or make a device in software: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0",
                   name);
    return -ENODEV;
}

/* Splits "NAME:PORT". *port is 0 if the text has none. Returns 0, or -EINVAL, explained, if the port is invalid. The
 * last colon counts. */
static int split(const char *text, char name[VERBS_NAME], unsigned *port)
{
    const char *colon = strrchr(text, ':');
    size_t len = colon ? (size_t)(colon - text) : strlen(text);
    char *end = NULL;
    unsigned long value = colon ? strtoul(colon + 1, &end, 10) : 0;
    if (len == 0 || len >= VERBS_NAME || (colon && (*end || value == 0 || value > MOST_PORTS))) {
        vk_explain("verbs: '%.64s': give verbs:DEVICE or verbs:INTERFACE, and :PORT (1 to %u) if the device has "
                   "several ports; viakit doctor lists the devices",
                   text, MOST_PORTS);
        return -EINVAL;
    }
    memcpy(name, text, len);
    name[len] = 0;
    *port = (unsigned)value;
    return 0;
}

/* Finds the device in the library's list. Its own name precedes an interface of the same name. Returns NULL if no
 * device fits. On success at.device and at.port are set. The list belongs to the caller. */
static struct ib_device *choose(struct verbs *v, const char *name, unsigned port, struct ib_device **list, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(v->lib->get_device_name(list[i]), name) == 0) {
            snprintf(v->at.device, sizeof v->at.device, "%s", name);
            v->at.port = port ? port : 1;
            return list[i];
        }
    for (int i = 0; i < n; i++)
        if (has_interface(&v->at, v->lib->get_device_name(list[i]), name) && (port == 0 || port == v->at.port))
            return list[i];
    return NULL;
}

/* Checks the open device's port and finds its address. Returns 0, or -errno, explained; the device stays open then, and
 * the caller closes it. */
static int settle_port(struct verbs *v, const char *name)
{
    struct ib_port port;
    memset(&port, 0, sizeof port);
    int error = v->lib->query_port(v->context, (uint8_t)v->at.port, &port);
    if (error) {
        vk_explain("verbs: %s has no port %u: %s", v->at.device, v->at.port, strerror(error));
        return -ENODEV;
    }
    if (port.link_layer == IB_LAYER_INFINIBAND) {
        vk_explain("verbs: port %u of %s is InfiniBand: this link needs a port on Ethernet (RoCE v2). Use "
                   "udp:INTERFACE with the interface of IP over InfiniBand",
                   v->at.port, v->at.device);
        return -EPROTONOSUPPORT;
    }
    int is_interface = strcmp(name, v->at.device) != 0;
    if (!find_gid(&v->at, is_interface ? name : NULL)) {
        vk_explain("verbs: port %u of %s has no GID of RoCE v2: give its interface an IP address (ip address add)",
                   v->at.port, v->at.device);
        return -EADDRNOTAVAIL;
    }
    if (port.state != IB_PORT_ACTIVE) {
        vk_explain("verbs: port %u of %s is down: plug its cable in, and run ip link set %s up", v->at.port,
                   v->at.device, v->at.interface);
        return -ENETDOWN;
    }
    /* The enum counts 256, 512, ... 4096 from 1 on. 1024 is what fits into Ethernet's 1500 bytes with all headers.
     * InfiniBand allows messages of 2^31 bytes; 1 MiB stands in for a driver that leaves the limit 0. */
    v->max_message = port.max_message ? port.max_message : 1u << 20;
    v->mtu = port.active_mtu >= 1 && port.active_mtu <= 5 ? 128u << port.active_mtu : 1024;
    return 0;
}

/* Registers a file that the library has opened, so that no child of fork() keeps it. Standard numbers are left alone,
 * because the library would not know of a new one. */
static void own(int fd)
{
    if (fd > STDERR_FILENO)
        (void)vk_file_own(fd);
}

/* The order matters for messages: a bad text is reported before a missing library, and that before a missing device.
 * The context's two files belong to the library, which closes them. */
int verbs_open_device(struct verbs *v, const char *text)
{
    char name[VERBS_NAME];
    unsigned port;
    int n = 0, error = split(text, name, &port);
    if (error)
        return error;
    v->lib = verbs_library();
    if (v->lib == NULL)
        return -ENOSYS;
    struct ib_device **list = v->lib->get_device_list(&n); /* NULL also if the kernel has no support for RDMA */
    struct ib_device *device = list ? choose(v, name, port, list, n) : NULL;
    if (device == NULL)
        error = refuse(v->lib, name, list, list ? n : 0);
    else if ((v->context = v->lib->open_device(device)) == NULL) {
        error = errno ? -errno : -EIO;
        vk_explain("verbs: %s cannot be opened: %s. /dev/infiniband/uverbsN needs permission to read and write, and "
                   "the package ibverbs-providers has the drivers' other half",
                   v->at.device, strerror(-error));
    }
    if (list)
        v->lib->free_device_list(list); /* the open device stays */
    if (error)
        return error;
    own(v->context->command_fd);
    own(v->context->async_fd);
    return settle_port(v, name);
}

void verbs_close_device(struct verbs *v)
{
    if (v->context == NULL)
        return;
    vk_file_disown(v->context->command_fd);
    vk_file_disown(v->context->async_fd);
    v->lib->close_device(v->context);
    v->context = NULL;
}
