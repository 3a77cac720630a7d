/*
 * netns.c - network namespaces for tests.
 *
 * Entering a user namespace is refused to a process with several threads, and a sanitizer's run time may have started
 * one. So the program is cloned straight into new namespaces, and executes itself anew there. The clone has one thread,
 * whatever the parent had. The first process only waits and passes the exit status on. All of it disappears with the
 * last process inside, so nothing remains to clean up.
 *
 * Links are made by rtnetlink, not by ip(8), so that the test needs no package.
 */
#define _GNU_SOURCE
#include "netns.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/if_addr.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <linux/veth.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define INSIDE "VIAKIT_TEST_INSIDE_NETNS"

/* 0 if all of it was written, which for the files of /proc is one write. */
static int write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    ssize_t n;
    if (fd < 0)
        return -1;
    n = write(fd, text, strlen(text));
    close(fd);
    return n == (ssize_t)strlen(text) ? 0 : -1;
}

/* In the clone: map the user who ran the test to root of the new namespace, then start again. */
__attribute__((noreturn)) static void run_inside(char **argv, int user_namespace, uid_t uid, gid_t gid)
{
    char map[64];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (user_namespace) {
        write_file("/proc/self/setgroups", "deny");
        snprintf(map, sizeof(map), "0 %u 1\n", (unsigned)uid);
        if (write_file("/proc/self/uid_map", map))
            _exit(126);
        snprintf(map, sizeof(map), "0 %u 1\n", (unsigned)gid);
        if (write_file("/proc/self/gid_map", map))
            _exit(126);
    }
    setenv(INSIDE, "1", 1);
    execv("/proc/self/exe", argv);
    _exit(127);
}

int netns_enter(char **argv, char *why, size_t why_len)
{
    uid_t uid = getuid();
    gid_t gid = getgid();
    int status, first_error = 0;
    if (getenv(INSIDE))
        return 0;
    /* Root may do without a user namespace, which some containers refuse even to root. */
    for (int user_namespace = 0; user_namespace <= 1; user_namespace++) {
        unsigned long flags = CLONE_NEWNET | SIGCHLD | (user_namespace ? CLONE_NEWUSER : 0);
        long pid = syscall(SYS_clone, flags, 0L, 0L, 0L, 0L);
        if (pid == 0)
            run_inside(argv, user_namespace, uid, gid);
        if (pid < 0) {
            first_error = errno;
            continue;
        }
        while (waitpid((pid_t)pid, &status, 0) < 0 && errno == EINTR)
            ;
        if (WIFEXITED(status) && WEXITSTATUS(status) == 126) {
            snprintf(why, why_len, "the kernel refuses to map a user into a namespace");
            return -1;
        }
        exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
    }
    snprintf(why, why_len,
             "network namespaces are refused: %s (see kernel.unprivileged_userns_clone, "
             "kernel.apparmor_restrict_unprivileged_userns, user.max_user_namespaces)",
             strerror(first_error));
    return -1;
}

/* ---------------------------------------------------------------- rtnetlink */

/* A message for the kernel: a header, a link, and attributes behind it. */
struct request {
    struct nlmsghdr head;
    struct ifinfomsg info;
    char attributes[512];
};

/* Appends an attribute; one without data begins a nest, which close_nest() ends with its length. */
static struct rtattr *add(struct request *r, int type, const void *data, size_t len)
{
    struct rtattr *a = (struct rtattr *)((char *)r + NLMSG_ALIGN(r->head.nlmsg_len));
    a->rta_type = (unsigned short)type;
    a->rta_len = (unsigned short)RTA_LENGTH(len);
    if (len)
        memcpy(RTA_DATA(a), data, len);
    r->head.nlmsg_len = (unsigned)(NLMSG_ALIGN(r->head.nlmsg_len) + RTA_ALIGN(a->rta_len));
    return a;
}

static void close_nest(struct request *r, struct rtattr *nest)
{
    nest->rta_len = (unsigned short)((char *)r + r->head.nlmsg_len - (char *)nest);
}

/* A request about a link. Other kinds of requests use its header. */
static void init_request(struct request *r, unsigned flags)
{
    memset(r, 0, sizeof(*r));
    r->head.nlmsg_len = NLMSG_LENGTH(sizeof(r->info));
    r->head.nlmsg_type = RTM_NEWLINK;
    r->head.nlmsg_flags = (unsigned short)(NLM_F_REQUEST | NLM_F_ACK | flags);
    r->info.ifi_family = AF_UNSPEC;
}

/* Sends it in the current namespace and waits for the kernel's verdict: 0 or an errno. */
static int talk(struct request *r)
{
    struct {
        struct nlmsghdr head;
        struct nlmsgerr error;
        char rest[1024];
    } answer;
    int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), error;
    ssize_t n;
    if (fd < 0)
        return errno;
    if (send(fd, r, r->head.nlmsg_len, 0) < 0) {
        error = errno;
        close(fd);
        return error;
    }
    n = recv(fd, &answer, sizeof(answer), 0);
    close(fd);
    if (n < (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)) || answer.head.nlmsg_type != NLMSG_ERROR)
        return EPROTO;
    return -answer.error.error;
}

/* Both ends are called eth0; one of them is born in the other namespace. */
static int make_veth(int mtu, int peer_ns)
{
    struct request r;
    struct rtattr *info, *data, *peer;
    struct ifinfomsg none;
    memset(&none, 0, sizeof(none));
    init_request(&r, NLM_F_CREATE | NLM_F_EXCL);
    add(&r, IFLA_IFNAME, "eth0", 5);
    add(&r, IFLA_MTU, &mtu, sizeof(mtu));
    info = add(&r, IFLA_LINKINFO, NULL, 0);
    add(&r, IFLA_INFO_KIND, "veth", 4);
    data = add(&r, IFLA_INFO_DATA, NULL, 0);
    peer = add(&r, VETH_INFO_PEER, &none, sizeof(none));
    add(&r, IFLA_IFNAME, "eth0", 5);
    add(&r, IFLA_MTU, &mtu, sizeof(mtu));
    add(&r, IFLA_NET_NS_FD, &peer_ns, sizeof(peer_ns));
    close_nest(&r, peer);
    close_nest(&r, data);
    close_nest(&r, info);
    return talk(&r);
}

/* The interface of this namespace. */
static int bring_up(const char *interface)
{
    struct request r;
    init_request(&r, 0);
    r.info.ifi_index = (int)if_nametoindex(interface);
    if (!r.info.ifi_index)
        return errno;
    r.info.ifi_flags = IFF_UP;
    r.info.ifi_change = IFF_UP;
    return talk(&r);
}

const char *netns_address(int ipv6, int host)
{
    static const char *const addresses[2][2] = {{"10.78.0.1", "10.78.0.2"}, {"fd78::1", "fd78::2"}};
    return addresses[!!ipv6][host];
}

/* Gives eth0 its address; at once, without probing whether another host has it. */
static int add_address(int ipv6, int host)
{
    struct request r; /* its head and attributes; what lies between is shorter here */
    struct ifaddrmsg *a = (struct ifaddrmsg *)&r.info;
    uint8_t bytes[16];
    size_t len = ipv6 ? 16 : 4;
    memset(&r, 0, sizeof(r));
    r.head.nlmsg_len = NLMSG_LENGTH(sizeof(*a));
    r.head.nlmsg_type = RTM_NEWADDR;
    r.head.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
    a->ifa_family = ipv6 ? AF_INET6 : AF_INET;
    a->ifa_prefixlen = ipv6 ? 64 : 24;
    a->ifa_flags = IFA_F_NODAD;
    a->ifa_index = if_nametoindex("eth0");
    inet_pton(a->ifa_family, netns_address(ipv6, host), bytes);
    add(&r, IFA_LOCAL, bytes, len);
    add(&r, IFA_ADDRESS, bytes, len);
    return talk(&r);
}

/* In the namespace of the host. */
static int set_up(int host)
{
    int error = bring_up("eth0");
    if (error == 0)
        error = bring_up("lo");
    if (error == 0)
        error = add_address(0, host);
    if (error == 0)
        (void)add_address(1, host); /* a kernel without IPv6 does for all but udp6 */
    return error;
}

/* Two namespaces with files that name them: this process comes back to the first. */
int netns_make_pair(int mtu, int fds[2], char *why, size_t why_len)
{
    const char *doing = "second network namespace";
    int error;
    fds[0] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (fds[0] < 0 || unshare(CLONE_NEWNET)) {
        error = errno;
        goto refused;
    }
    fds[1] = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (fds[1] < 0 || setns(fds[0], CLONE_NEWNET)) {
        error = errno;
        goto refused;
    }
    doing = "veth pair";
    if ((error = make_veth(mtu, fds[1])))
        goto refused;
    doing = "bringing eth0 up";
    if ((error = set_up(0)))
        goto refused;
    if (setns(fds[1], CLONE_NEWNET) || (error = set_up(1)) || setns(fds[0], CLONE_NEWNET)) {
        error = error ? error : errno;
        goto refused;
    }
    return 0;
refused:
    snprintf(why, why_len, "%s: %s", doing, strerror(error));
    return -1;
}

int netns_hosts(char **argv, int fds[2])
{
    char why[256];
    if (netns_enter(argv, why, sizeof why) == 0 && netns_make_pair(1500, fds, why, sizeof why) == 0)
        return 0;
    printf("no hosts can be made here: %s\n", why);
    return CHECK_SKIPPED;
}

/* ---------------------------------------------------------------- changes to an interface */

static int change(unsigned long request, struct ifreq *r)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), error;
    if (fd < 0)
        return errno;
    strcpy(r->ifr_name, "eth0");
    error = ioctl(fd, request, r) == 0 ? 0 : errno;
    close(fd);
    return error;
}

int netns_set_mtu(int mtu)
{
    struct ifreq r;
    memset(&r, 0, sizeof(r));
    r.ifr_mtu = mtu;
    return change(SIOCSIFMTU, &r);
}

int netns_set_up(int up)
{
    struct ifreq r;
    memset(&r, 0, sizeof(r));
    r.ifr_flags = up ? IFF_UP : 0;
    return change(SIOCSIFFLAGS, &r);
}

int netns_set_gso(uint32_t max_size, uint32_t max_segments)
{
    struct request r;
    init_request(&r, 0);
    r.info.ifi_index = (int)if_nametoindex("eth0");
    add(&r, IFLA_GSO_MAX_SIZE, &max_size, sizeof(max_size));
    add(&r, IFLA_GSO_MAX_SEGS, &max_segments, sizeof(max_segments));
    return talk(&r);
}

/* Features are numbered by the kernel that runs; their names are in the string set ETH_SS_FEATURES. */
int netns_set_feature(const char *name, int on)
{
    enum { MOST = 512 };
    static union {
        struct ethtool_gstrings head;
        uint8_t room[sizeof(struct ethtool_gstrings) + MOST * ETH_GSTRING_LEN];
    } strings;
    union {
        struct ethtool_sset_info head;
        uint8_t room[sizeof(struct ethtool_sset_info) + sizeof(uint32_t)];
    } set = {.head = {.cmd = ETHTOOL_GSSET_INFO, .sset_mask = 1ull << ETH_SS_FEATURES}};
    union {
        struct ethtool_sfeatures head;
        uint8_t room[sizeof(struct ethtool_sfeatures) + MOST / 32 * sizeof(struct ethtool_set_features_block)];
    } features;
    struct ifreq r;
    uint32_t n;
    int error;
    memset(&r, 0, sizeof(r));
    r.ifr_data = (void *)&set;
    if ((error = change(SIOCETHTOOL, &r)))
        return error;
    n = set.head.data[0];
    if (n > MOST)
        return E2BIG;
    strings.head = (struct ethtool_gstrings){.cmd = ETHTOOL_GSTRINGS, .string_set = ETH_SS_FEATURES, .len = n};
    r.ifr_data = (void *)&strings;
    if ((error = change(SIOCETHTOOL, &r)))
        return error;
    for (uint32_t i = 0; i < n; i++) {
        if (strncmp((const char *)strings.head.data + (size_t)i * ETH_GSTRING_LEN, name, ETH_GSTRING_LEN))
            continue;
        memset(&features, 0, sizeof(features));
        features.head.cmd = ETHTOOL_SFEATURES;
        features.head.size = (n + 31) / 32;
        features.head.features[i / 32].valid = 1u << i % 32;
        features.head.features[i / 32].requested = on ? 1u << i % 32 : 0;
        r.ifr_data = (void *)&features;
        return change(SIOCETHTOOL, &r);
    }
    return ENOENT;
}
