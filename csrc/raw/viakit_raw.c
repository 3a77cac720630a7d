/*
 * viakit-raw: makes a packet socket for a user who may not, with a locked filter for viakit's frames, and passes it on.
 *
 *   viakit-raw INTERFACE LEAST MOST      descriptors: 3 the NIC's claim of a port, 4 the connection for the reply
 *
 * An administrator gives this program the capability, as for dumpcap:
 *
 *   install -m 750 -g GROUP viakit-raw /usr/local/libexec/ && setcap cap_net_raw=ep /usr/local/libexec/viakit-raw
 *
 * A member of the group gains (docs/security.md):
 *   - to receive: viakit's frames for a port that its own process holds, on this interface. SO_LOCK_FILTER keeps the
 *     filter for the life of the socket, whatever it is bound to later.
 *   - to send: any frame. The kernel has no filter for outgoing frames, so members of the group must be trusted with
 *     the wire.
 *
 * The program reads no file and no environment variable, makes one socket, and exits. It starts no process.
 */
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if_arp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "link/eth_filter.h"
#include "link/raw.h"

/* Sends a refusal instead of a socket. Returns the exit status. Without a connection a person has started the program:
 * the text then goes to standard error. */
static int refuse(const char *what, int error)
{
    char text[RAW_TEXT];
    int len = snprintf(text, sizeof text, "%s%s%s", what, error ? ": " : "", error ? strerror(error) : "");
    if (len >= (int)sizeof text)
        len = sizeof text - 1;
    if (send(RAW_REPLY_FD, text, (size_t)len, MSG_NOSIGNAL) < 0)
        fprintf(stderr, "viakit-raw: %s\nviakit starts this program; see `viakit config --raw`\n", text);
    return 1;
}

/* Returns the port that the claim socket holds in this network namespace, 0 if it holds none of this interface. */
static uint16_t claimed_port(const char *interface)
{
    struct sockaddr_un name;
    socklen_t len = sizeof name;
    const socklen_t head = offsetof(struct sockaddr_un, sun_path) + 1;
    memset(&name, 0, sizeof name);
    /* The kernel reports the name that the socket is bound to, so the caller cannot invent one. An abstract name begins
     * with a zero byte and has one owner in a network namespace. */
    if (getsockname(RAW_CLAIM_FD, (struct sockaddr *)&name, &len) != 0 || name.sun_family != AF_UNIX || len <= head ||
        len > sizeof name || name.sun_path[0] != 0)
        return 0;
    return raw_claimed_port(name.sun_path + 1, len - head, interface);
}

/* Finds the interface, which must be Ethernet and up. Returns its index, or 0 and why not. Loopback qualifies, because
 * its frames have Ethernet headers. */
static int find_interface(int fd, const char *interface, const char **why)
{
    struct ifreq r;
    memset(&r, 0, sizeof r);
    /* raw_parse has checked the length: less than IFNAMSIZ. */
    strcpy(r.ifr_name, interface);
    *why = "the interface does not exist";
    if (ioctl(fd, SIOCGIFINDEX, &r) != 0)
        return 0;
    int index = r.ifr_ifindex;
    *why = "the interface is down";
    if (ioctl(fd, SIOCGIFFLAGS, &r) != 0 || !(r.ifr_flags & IFF_UP))
        return 0;
    *why = "the interface is not Ethernet";
    if (ioctl(fd, SIOCGIFHWADDR, &r) != 0 ||
        (r.ifr_hwaddr.sa_family != ARPHRD_ETHER && r.ifr_hwaddr.sa_family != ARPHRD_LOOPBACK))
        return 0;
    return index;
}

/* Passes the socket over the connection. Returns 0 or -errno. The message has one byte, because the receiver takes an
 * empty one for the end of this program. */
static int pass(int fd)
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    memset(&control, 0, sizeof control);
    control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    return sendmsg(RAW_REPLY_FD, &message, MSG_NOSIGNAL) == 1 ? 0 : -errno;
}

int main(int argc, char **argv)
{
    struct raw_request request;
    int one = 1;
    const char *why = raw_parse(argc - 1, (const char *const *)argv + 1, &request);
    if (why)
        return refuse(why, 0);
    uint16_t port = claimed_port(request.interface);
    if (port == 0)
        return refuse("descriptor 3 holds no port of this interface", 0);
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return refuse("no packet socket: does the program have CAP_NET_RAW?", errno);
    int index = find_interface(fd, request.interface, &why);
    if (index == 0)
        return refuse(why, 0);
    /* The order keeps foreign frames out: the socket has protocol 0 until the NIC binds it anew, so it queues nothing
     * before the filter is set and locked. */
    int error = eth_filter_set(fd, port, request.least, request.most, ETH_ANY);
    if (error)
        return refuse("no filter", -error);
    if (setsockopt(fd, SOL_SOCKET, SO_LOCK_FILTER, &one, sizeof one) != 0)
        return refuse("the filter cannot be locked", errno);
    struct sockaddr_ll a = {
        .sll_family = AF_PACKET, .sll_protocol = 0, .sll_ifindex = index}; /* receives nothing yet */
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0)
        return refuse("the interface cannot be bound", errno);
    error = pass(fd);
    return error ? refuse("the socket cannot be passed", -error) : 0;
}
