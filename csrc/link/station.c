/*
 * The kernel's table of Unix sockets as the registry of NICs: see station.h. Abstract names (the path begins with a
 * zero byte) are bound to claim a port and listed to find the others. Any thread may call these functions. Their
 * only state is the note that sock_diag is missing.
 *
 * The list is read in two ways. sock_diag (netlink) returns binary entries and can omit connected sockets in the
 * kernel. Where it is missing (a kernel without the module unix_diag, a sandbox without netlink), /proc/net/unix
 * returns the same entries as text. That is noted for the life of the process, because each request for a missing
 * module makes the kernel start modprobe, which takes milliseconds.
 *
 *    name     | 0 | viakit/shm/1000/NAME | / | PORT |       sun_path[0] = 0: abstract, at most 108 bytes in all
 *    as text  @viakit/shm/1000/NAME/PORT
 *
 * The functions block for the time of a few system calls. The kernel copies a dump in pieces and does not lock its
 * table in between. A socket that is bound or closed meanwhile may be missing or listed.
 */
#include "link/station.h"
#include "base/atomic.h"
#include "base/cancel.h"

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

/* In the form of a unicast MAC address: bit 1 of the first byte is set (locally administered), bit 0 is not (group).
 *  1099511628211 is FNV's prime for 64 bits. Two names with equal addresses would be one station; 46 bits of the hash
 * remain to distinguish them. */
void station_name_to_address(const char *kind, const char *name, uint8_t address[6])
{
    uint64_t h = 1469598103934665603ull;
    for (; *kind; kind++)
        h = (h ^ (uint8_t)*kind) * 1099511628211ull;
    for (; *name; name++)
        h = (h ^ (uint8_t)*name) * 1099511628211ull;
    memcpy(address, &h, 6); /* byte order does not matter: the name and the address never leave this host */
    address[0] = (uint8_t)((address[0] & 0xFC) | 0x02);
}

/* The length matters: an abstract name is all bytes up to the given length, zeroes included, with no terminator
 * (unix(7)). Callers bound the prefix, so that prefix and port fit. */
socklen_t station_name(const char *prefix, uint16_t port, struct sockaddr_un *a)
{
    memset(a, 0, sizeof *a);
    a->sun_family = AF_UNIX;
    int n = snprintf(a->sun_path + 1, sizeof a->sun_path - 1, "%s/%u", prefix, port);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* The search begins at a random port. A restarted program thus does not get the port to which its predecessor's frames
 * are still on the way. bind() decides between two processes that want the same port, which no prior check could do.
 * Tries at most 65535 names. */
int station_claim(int socket, const char *prefix, uint16_t *port)
{
    /* GRND_NONBLOCK: a machine that has just booted may have no random bytes yet, and any first port will do. */
    uint16_t start = 1;
    ssize_t got = getrandom(&start, sizeof start, GRND_NONBLOCK);
    (void)got; /* on failure the search begins at 1 */
    for (uint32_t i = 0; i < 65536; i++) {
        struct sockaddr_un a;
        *port = (uint16_t)(start + i);
        if (*port == 0)
            continue;
        socklen_t len = station_name(prefix, *port, &a);
        if (bind(socket, (struct sockaddr *)&a, len) == 0)
            return 0;
        /* The port is in use: try the next one. Any other error would be the same for every port. */
        if (errno != EADDRINUSE)
            return -errno;
    }
    return -EADDRINUSE;
}

/* Accepted sockets carry their listener's name, so a port may be listed many times. */
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

/* Reads the text of /proc/net/unix: a line per socket, the name last, with @ in place of the zero byte. Returns the
 * number of ports, also 0 if there is no /proc. */
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

/* Linux 5.3 and later report the user of a socket; headers may be older: UDIAG_SHOW_UID and UNIX_DIAG_UID. */
#define SHOW_UID 0x40
#define DIAG_UID 7

/* Returns whether a dump's entry is that of a socket of another user. An entry without a user is not. */
static int is_of_another(const struct nlmsghdr *h, long uid)
{
    const struct rtattr *a =
        (const struct rtattr *)(const void *)((const char *)NLMSG_DATA(h) + sizeof(struct unix_diag_msg));
    int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(struct unix_diag_msg));
    uint32_t owner;
    for (; RTA_OK(a, left); a = RTA_NEXT(a, left))
        if (a->rta_type == DIAG_UID && RTA_PAYLOAD(a) >= sizeof owner) {
            memcpy(&owner, RTA_DATA(a), sizeof owner);
            return uid >= 0 && (long)owner != uid;
        }
    return 0;
}

/* Copies the name in a dump's entry of a socket, without the zero that makes it abstract. Returns 0 if the entry has no
 * name. */
static int name_of(const struct nlmsghdr *h, char name[sizeof(((struct sockaddr_un *)0)->sun_path)])
{
    /* Behind the fixed part of an entry come attributes, each with type and length. One of them is the name. */
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

/* Adds a port to a list whose first *own ports are those of the wanted user, and returns the new length. With own NULL
 * the port is another user's: it goes to the end, and into a full list not at all. */
static int add_port(uint16_t *ports, int n, int max, uint16_t port, int *own)
{
    if (own != NULL && *own < max) {
        if (n < max)
            ports[n++] = ports[*own];
        ports[(*own)++] = port;
    } else if (own == NULL && n < max) {
        ports[n++] = port;
    }
    return n;
}

/* 1: the kernel has refused a request for a reason that lasts. Set by any thread, never reset. */
static int no_sock_diag;

/* Notes an error of a request, a positive errno, unless it may pass: a lack of descriptors or of memory. */
static void note_refusal(int error)
{
    if (error != EMFILE && error != ENFILE && error != ENOMEM && error != ENOBUFS && error != EINTR && error != EAGAIN)
        vk_store_relaxed(&no_sock_diag, 1);
}

/* Handles an entry that is not a socket's. Returns 1 at the end of the list, -1 on an error. */
static int end_of_list(const struct nlmsghdr *h)
{
    if (h->nlmsg_type == NLMSG_DONE)
        return 1;
    const struct nlmsgerr *e = (const struct nlmsgerr *)(const void *)NLMSG_DATA(h);
    if (h->nlmsg_type == NLMSG_ERROR && h->nlmsg_len >= NLMSG_LENGTH(sizeof *e))
        note_refusal(-e->error);
    return -1;
}

/* Requests all sockets from the kernel but connected ones: 64 interconnected NICs have thousands of those, and the text
 * takes milliseconds to read. Returns the number of ports, or -1 if this kernel does not support the request. 16 KiB:
 * the kernel fills a part of a dump for each recv(), and never more than the receiver's buffer holds. */
static int ports_from_kernel(const char *prefix, long uid, uint16_t *ports, int max)
{
    struct {
        struct nlmsghdr h;
        struct unix_diag_req r;
    } request = {
        .h = {.nlmsg_len = sizeof request,
              .nlmsg_type = SOCK_DIAG_BY_FAMILY,
              .nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP},
        /* One bit for each TCP state; the kernel uses the same states for Unix sockets. */
        .r = {.sdiag_family = AF_UNIX,
              .udiag_states = ~(1u << TCP_ESTABLISHED),
              .udiag_show = UDIAG_SHOW_NAME | SHOW_UID},
    };
    union {
        struct nlmsghdr h;
        char bytes[16384];
    } answer;
    char name[sizeof(((struct sockaddr_un *)0)->sun_path)];
    size_t len = strlen(prefix);
    if (vk_load_relaxed(&no_sock_diag))
        return -1;
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG), n = 0, own = 0, done = s < 0 ? -1 : 0;
    if (s < 0)
        note_refusal(errno);
    if (s >= 0 && send(s, &request, sizeof request, 0) != (ssize_t)sizeof request)
        done = -1;
    /* A dump is a series of messages, several to a read, up to NLMSG_DONE. An error message, or one of another type
     * than requested, means that this kernel does not support the request. The caller then reads the text. */
    while (done == 0) {
        ssize_t got = recv(s, &answer, sizeof answer, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            done = -1;
        for (struct nlmsghdr *h = &answer.h; done == 0 && NLMSG_OK(h, got); h = NLMSG_NEXT(h, got)) {
            if (h->nlmsg_type != SOCK_DIAG_BY_FAMILY)
                done = end_of_list(h);
            else if (name_of(h, name)) {
                int port = port_in(name, prefix, len), other = is_of_another(h, uid);
                if (port >= 0 && !known(ports, n, (unsigned)port))
                    n = add_port(ports, n, max, (uint16_t)port, other ? NULL : &own);
            }
        }
    }
    if (s >= 0)
        close(s);
    return done == 1 ? n : -1;
}

/* Uses the fast way, or else the one that always works. The list may be obsolete when it is returned. A caller must
 * expect that a listed NIC is gone. */
int station_ports(const char *prefix, long uid, uint16_t *ports, int max)
{
    VK_HOLD_CANCEL;
    int n = ports_from_kernel(prefix, uid, ports, max);
    return n >= 0 ? n : ports_from_text(prefix, ports, max);
}

/* Reads the text, which has the names of all users. %n gives the end of the number, where the comparison of the rest
 * begins. It stays 0 if no slash follows. */
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
