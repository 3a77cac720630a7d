/*
 * The kernel as a register of names: see station.h. Abstract Unix names (the path begins with a zero byte) are bound
 * to claim a port and listed to find the others. Any thread may call any of these; there is no state here.
 *
 * The list is asked for in two ways. sock_diag (netlink) gives binary entries and can leave out connected sockets in
 * the kernel; where it is missing (an old kernel, a sandbox that allows no netlink) /proc/net/unix says the same as
 * text.
 */
#include "station.h"
#include "../base/cancel.h"

#include <errno.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* The length matters: an abstract name is all bytes up to the length given, zeroes included, not up to a terminator. */
socklen_t station_name(const char *prefix, uint16_t port, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%s/%u", prefix, port);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* Ports begin at a random one so that a program that is started again does not get the port that its predecessor's
 * frames are still on the way to. bind() decides between two who want the same: no check before it could.
 * Returns after 65535 names at the latest. */
int station_claim(int socket, const char *prefix, uint16_t *port)
{
    /* GRND_NONBLOCK: a machine that has just booted may have no random bytes yet, and any beginning will do. */
    uint16_t start = 1;
    ssize_t got = getrandom(&start, sizeof start, GRND_NONBLOCK);
    (void)got; /* without luck we begin at 1 */
    for (uint32_t i = 0; i < 65536; i++) {
        struct sockaddr_un a;
        *port = (uint16_t)(start + i);
        if (*port == 0)
            continue;
        socklen_t len = station_name(prefix, *port, &a);
        if (bind(socket, (struct sockaddr *)&a, len) == 0)
            return 0;
        /* Taken: the next one. Anything else would be the same for every port. */
        if (errno != EADDRINUSE)
            return -errno;
    }
    return -EADDRINUSE;
}

/* Accepted sockets carry their listener's name, so a port may stand there many times. */
static int known(const uint16_t *ports, int n, unsigned port)
{
    for (int i = 0; i < n; i++)
        if (ports[i] == port)
            return 1;
    return 0;
}

/* The port in "PREFIX/PORT", or -1 if this is another name. */
static int port_in(const char *name, const char *prefix, size_t prefix_len)
{
    unsigned port;
    if (strncmp(name, prefix, prefix_len) != 0 || name[prefix_len] != '/' ||
        sscanf(name + prefix_len + 1, "%u", &port) != 1 || port > 65535)
        return -1;
    return (int)port;
}

/* From the text of /proc/net/unix: a line per socket, the name last, with @ in place of the zero byte. Returns the
 * number of ports; 0 also where there is no /proc. */
static int ports_from_text(const char *prefix, uint16_t *ports, int max)
{
    char line[512];
    size_t len = strlen(prefix);
    int n = 0;
    FILE *f = fopen("/proc/net/unix", "re");
    if (f == NULL)
        return 0;
    while (n < max && fgets(line, sizeof line, f)) {
        const char *name = strchr(line, '@');
        int port = name ? port_in(name + 1, prefix, len) : -1;
        if (port >= 0 && !known(ports, n, (unsigned)port))
            ports[n++] = (uint16_t)port;
    }
    fclose(f);
    return n;
}

/* The name in a socket's entry of a dump, without the zero that makes it abstract; 0 if it has none. */
static int name_of(const struct nlmsghdr *h, char name[sizeof(((struct sockaddr_un *)0)->sun_path)])
{
    /* After the fixed part of an entry come attributes, each with type and length; one of them is the name. */
    const struct rtattr *a =
        (const struct rtattr *)(const void *)((const char *)NLMSG_DATA(h) + sizeof(struct unix_diag_msg));
    int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(struct unix_diag_msg));
    for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        size_t len = RTA_PAYLOAD(a);
        const char *bytes = RTA_DATA(a);
        if (a->rta_type != UNIX_DIAG_NAME || len < 2 || len > sizeof(((struct sockaddr_un *)0)->sun_path) || bytes[0])
            continue;
        memcpy(name, bytes + 1, len - 1);
        name[len - 1] = 0;
        return 1;
    }
    return 0;
}

/* Asks the kernel for all sockets but connected ones: where 64 NICs know one another those are thousands, and the text
 * above takes milliseconds. -1: this kernel cannot be asked so. */
static int ports_from_kernel(const char *prefix, uint16_t *ports, int max)
{
    struct {
        struct nlmsghdr h;
        struct unix_diag_req r;
    } request = {
        .h = {.nlmsg_len = sizeof request,
              .nlmsg_type = SOCK_DIAG_BY_FAMILY,
              .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        /* One bit for each TCP state, which is what Unix sockets are filed under, too. */
        .r = {.sdiag_family = AF_UNIX, .udiag_states = ~(1u << TCP_ESTABLISHED), .udiag_show = UDIAG_SHOW_NAME},
    };
    union {
        struct nlmsghdr h;
        char bytes[16384];
    } answer;
    char name[sizeof(((struct sockaddr_un *)0)->sun_path)];
    size_t len = strlen(prefix);
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG), n = 0, done = s < 0 ? -1 : 0;
    if (s >= 0 && send(s, &request, sizeof request, 0) != (ssize_t)sizeof request)
        done = -1;
    /* A dump is a series of messages, several to a read, up to NLMSG_DONE. An error message, or one of any type that
     * was not asked for, means that this kernel does not know the question: then the text has to do. */
    while (done == 0) {
        ssize_t got = recv(s, &answer, sizeof answer, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            done = -1;
        for (struct nlmsghdr *h = &answer.h; done == 0 && NLMSG_OK(h, got); h = NLMSG_NEXT(h, got)) {
            if (h->nlmsg_type == NLMSG_DONE)
                done = 1;
            else if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY)
                done = -1;
            else if (name_of(h, name)) {
                int port = port_in(name, prefix, len);
                if (port >= 0 && n < max && !known(ports, n, (unsigned)port))
                    ports[n++] = (uint16_t)port;
            }
        }
    }
    if (s >= 0)
        close(s);
    return done == 1 ? n : -1;
}

/* The quick way, or the one that always works. A list is true at the moment it is read and no longer: whoever acts
 * on it must be ready to find nobody. */
int station_ports(const char *prefix, uint16_t *ports, int max)
{
    VK_HOLD_CANCEL;
    int n = ports_from_kernel(prefix, ports, max);
    return n >= 0 ? n : ports_from_text(prefix, ports, max);
}

/* From the text, which has every user's names. %n says where the number has ended, so that the rest is compared from
 * there; it stays 0 if no slash followed. */
long station_other_user(const char *head, unsigned uid, const char *tail)
{
    VK_HOLD_CANCEL;
    char line[512];
    size_t head_len = strlen(head), tail_len = strlen(tail);
    long found = -1;
    FILE *f = fopen("/proc/net/unix", "re");
    if (f == NULL)
        return -1;
    while (found < 0 && fgets(line, sizeof line, f)) {
        unsigned user;
        int n = 0;
        const char *name = strchr(line, '@');
        if (name && strncmp(name + 1, head, head_len) == 0 && sscanf(name + 1 + head_len, "/%u/%n", &user, &n) == 1 &&
            n && strncmp(name + 1 + head_len + n, tail, tail_len) == 0 && name[1 + head_len + n + tail_len] == '/' &&
            user != uid)
            found = (long)user;
    }
    fclose(f);
    return found;
}
