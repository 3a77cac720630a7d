/*
 * Super-frames of eth: determines whether the interface supports them, and how long they may be.
 *
 * A packet socket with PACKET_QDISC_BYPASS passes its frames to the driver. The kernel does not segment in software on
 * this path: it drops a super-frame that the interface cannot segment, and the call fails with ENOBUFS. A full transmit
 * queue fails with ENOBUFS as well. The link therefore queries the interface at open, and judges each refusal later:
 *
 *   open      features by SIOCETHTOOL, gso_max_size and gso_max_segs by rtnetlink; neither needs a privilege. If
 *             the features cannot be read, two small frames are sent as one super-frame to test (probe).
 *   refusal   the first frame of the run is sent by itself, at once. If that is refused too, the queue is full.
 *             If it is accepted, the interface is queried again, and super-frames are shortened or given up.
 *   later     while super-frames are given up, the interface is queried again after a number of single frames.
 *
 * A driver may also refuse super-frames that its features promise (ndo_features_check). After STRIKES such refusals in
 * a row super-frames pause for PAUSE_LEAST frames. The pause doubles each time, up to PAUSE_MOST.
 *
 *   in use --ENOBUFS, and one frame passes--> query: limits changed? use them
 *                                                    features gone, or STRIKES reached? --> paused
 *   paused --pause_left single frames, query: features there--> in use
 *
 * Invariant: super_frames is set only if super_possible is, and a batch has more than one frame.
 *
 * Called by the owner of the NIC. The queries are system calls that may wait for the kernel's RTNL lock, while an
 * administrator changes an interface. They are made at open and after refusals only.
 */
#include <errno.h>
#include <linux/ethtool.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "link/eth.h"

#define STRIKES 3         /* a single refusal may be a full queue that was emptied before the next frame */
#define PAUSE_LEAST 64u   /* frames */
#define PAUSE_MOST 4096u  /* frames: about 1 % of their time goes into queries */
#define FEATURE_BLOCKS 16 /* of 32 features each; Linux 6.18 has 2 */

/* A queue may be full for this long while the interface has carrier and accepts no frame. Linux declares a transmit
 * queue hung after the same time. */
#define FULL_LONGEST (5 * VK_SECOND)

/* Since Linux 6.3; it limits IPv4, and IFLA_GSO_MAX_SIZE then limits IPv6. */
#ifndef IFLA_GSO_IPV4_MAX_SIZE
#define IFLA_GSO_IPV4_MAX_SIZE 63
#endif

/* ---------------------------------------------------------------- features */

/* One request of linux/ethtool.h, which also receives the reply. Returns 0 or -errno. No privilege is needed to
 * read. */
static int ethtool(const struct link *link, void *command)
{
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strcpy(r.ifr_name, link->interface);
    r.ifr_data = command;
    return ioctl(link->fd, SIOCETHTOOL, &r) == 0 ? 0 : -errno;
}

/* Returns the number of features of this kernel, 0 if it cannot be read. */
static uint32_t count_features(const struct link *link)
{
    union {
        struct ethtool_sset_info info;
        uint8_t room[sizeof(struct ethtool_sset_info) + sizeof(uint32_t)];
    } set = {.info = {.cmd = ETHTOOL_GSSET_INFO, .sset_mask = 1ull << ETH_SS_FEATURES}};
    return ethtool(link, &set) == 0 && set.info.sset_mask ? set.info.data[0] : 0;
}

/* Finds features by name, because their bits differ between kernels. The names are those of `ethtool -k`, from the
 * kernel's netdev_features_strings. Without them the interface is tested once (probe). */
static void find_features(struct link *link)
{
    static const char *const names[ETH_N_FEATURES] = {
        "tx-udp-segmentation",
        "tx-checksum-ip-generic",
        "tx-checksum-ipv4",
    };
    uint32_t n = count_features(link);
    for (int i = 0; i < ETH_N_FEATURES; i++)
        link->feature_bits[i] = -1;
    if (n == 0 || n > 32 * FEATURE_BLOCKS)
        return;
    struct ethtool_gstrings *s = calloc(1, sizeof *s + (size_t)n * ETH_GSTRING_LEN);
    if (s == NULL)
        return;
    s->cmd = ETHTOOL_GSTRINGS;
    s->string_set = ETH_SS_FEATURES;
    s->len = n;
    if (ethtool(link, s) == 0)
        for (uint32_t bit = 0; bit < n && bit < s->len; bit++)
            for (int i = 0; i < ETH_N_FEATURES; i++)
                if (strncmp((const char *)s->data + (size_t)bit * ETH_GSTRING_LEN, names[i], ETH_GSTRING_LEN) == 0)
                    link->feature_bits[i] = (int)bit;
    free(s);
    link->features_known = 1;
}

/* "active": in use now. A feature may also be available and switched off. */
static int is_active(const struct ethtool_gfeatures *f, int bit)
{
    return bit >= 0 && (uint32_t)bit / 32 < f->size && f->features[bit / 32].active >> (bit % 32) & 1;
}

/* Returns 1 if the interface segments UDP now, 0 if not, -1 if unknown. Segmentation includes the segments'
 * checksums. */
static int segments_udp(const struct link *link)
{
    union {
        struct ethtool_gfeatures head;
        uint8_t room[sizeof(struct ethtool_gfeatures) + FEATURE_BLOCKS * sizeof(struct ethtool_get_features_block)];
    } f;
    if (!link->features_known)
        return -1;
    memset(&f, 0, sizeof f);
    f.head.cmd = ETHTOOL_GFEATURES;
    f.head.size = FEATURE_BLOCKS;
    if (ethtool(link, &f) != 0)
        return -1;
    return is_active(&f.head, link->feature_bits[ETH_FEATURE_UDP_SEGMENTATION]) &&
           (is_active(&f.head, link->feature_bits[ETH_FEATURE_CHECKSUM]) ||
            is_active(&f.head, link->feature_bits[ETH_FEATURE_CHECKSUM_IPV4]));
}

/* ---------------------------------------------------------------- lengths */

/* Reads the two limits from the reply to RTM_GETLINK. The order of attributes is not specified, hence has_ipv4. */
static void read_limits(const struct nlmsghdr *h, uint32_t *gso_bytes, uint32_t *gso_segments)
{
    const struct rtattr *a =
        (const struct rtattr *)(const void *)((const char *)NLMSG_DATA(h) + NLMSG_ALIGN(sizeof(struct ifinfomsg)));
    int left = (int)h->nlmsg_len - (int)NLMSG_LENGTH(sizeof(struct ifinfomsg)), has_ipv4 = 0;
    for (; RTA_OK(a, left); a = RTA_NEXT(a, left)) {
        uint32_t value;
        if (RTA_PAYLOAD(a) < sizeof value)
            continue;
        memcpy(&value, RTA_DATA(a), sizeof value);
        if (a->rta_type == IFLA_GSO_IPV4_MAX_SIZE || (a->rta_type == IFLA_GSO_MAX_SIZE && !has_ipv4))
            *gso_bytes = value;
        has_ipv4 |= a->rta_type == IFLA_GSO_IPV4_MAX_SIZE;
        if (a->rta_type == IFLA_GSO_MAX_SEGS)
            *gso_segments = value;
    }
}

/* Reads gso_max_size (for IPv4) and gso_max_segs of the interface. A limit that the kernel does not report keeps the
 * caller's value: a sandbox may forbid netlink, and a kernel may be older than the attribute. The kernel has queued its
 * reply when send() returns, so MSG_DONTWAIT never comes too early. */
static void query_limits(const struct link *link, uint32_t *gso_bytes, uint32_t *gso_segments)
{
    struct {
        struct nlmsghdr h;
        struct ifinfomsg i;
    } request = {
        .h = {.nlmsg_len = sizeof request, .nlmsg_type = RTM_GETLINK, .nlmsg_flags = NLM_F_REQUEST},
        .i = {.ifi_family = AF_UNSPEC, .ifi_index = link->index},
    };
    union {
        struct nlmsghdr h;
        char bytes[16384];
    } answer;
    int s = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    if (s < 0)
        return;
    if (send(s, &request, sizeof request, 0) == (ssize_t)sizeof request) {
        ssize_t got = recv(s, &answer, sizeof answer, MSG_DONTWAIT);
        if (got > 0 && NLMSG_OK(&answer.h, (size_t)got) && answer.h.nlmsg_type == RTM_NEWLINK)
            read_limits(&answer.h, gso_bytes, gso_segments);
    }
    close(s);
}

/* Reads the interface's features and limits, and sets super_frames, super_bytes and super_segments accordingly. Returns
 * super_frames. */
static int query_interface(struct link *link)
{
    VK_HOLD_CANCEL;
    uint32_t gso_bytes = ETH_GSO_BYTES, gso_segments = ETH_GSO_SEGMENTS;
    link->super_frames = 0;
    if (!link->super_possible || segments_udp(link) == 0)
        return 0;
    query_limits(link, &gso_bytes, &gso_segments);
    link->super_bytes = eth_super_bytes(gso_bytes);
    link->super_segments = eth_super_segments(gso_segments);
    link->super_frames = eth_super_batch(link->segment, link->super_bytes, link->super_segments) > 1;
    return link->super_frames;
}

/* Sends two frames to this NIC's own address as one super-frame. They have version 0, so each receiver drops them. The
 * kernel's result is judged like that of any other super-frame (eth_send). */
static void probe(struct link *link)
{
    struct link_peer self = {.next = NULL};
    struct link_frame frames[2];
    memset(frames, 0, sizeof frames);
    for (int i = 0; i < 2; i++) {
        frames[i].header.dst_port = frames[i].header.src_port = link->port;
        frames[i].header_len = sizeof frames[i].header;
    }
    memcpy(self.address, link->address, 6);
    link_eth.send(link, &self, frames, 2);
    if (link->strikes)
        link->super_possible = link->super_frames = 0;
}

/* Without known features, query_interface() assumes that the interface segments, and the probe decides. */
void eth_super_start(struct link *link)
{
    if (!link->super_possible)
        return;
    find_features(link);
    if (query_interface(link) && !link->features_known)
        probe(link);
}

/* ---------------------------------------------------------------- refusals */

/* Pauses super-frames. send_super() clears `pause` after a success, so the next pause is short again. */
static void pause_super(struct link *link)
{
    link->super_frames = 0;
    link->pause = link->pause ? link->pause * 2 : PAUSE_LEAST;
    if (link->pause > PAUSE_MOST)
        link->pause = PAUSE_MOST;
    link->pause_left = link->pause;
}

void eth_super_refused(struct link *link)
{
    uint32_t bytes = link->super_bytes, segments = link->super_segments;
    LINK_COUNT(link->client, super_frames_refused, 1);
    if (!query_interface(link)) {
        pause_super(link);
        return;
    }
    if (link->super_bytes != bytes || link->super_segments != segments) {
        link->strikes = 0; /* the limits have changed: use the new ones */
        return;
    }
    if (++link->strikes >= STRIKES) {
        link->strikes = STRIKES - 1; /* the next refusal after the pause is enough */
        pause_super(link);
    }
}

void eth_super_paused(struct link *link)
{
    if (!link->super_possible || (link->pause_left && --link->pause_left))
        return;
    if (!query_interface(link))
        pause_super(link);
}

/* ---------------------------------------------------------------- full */

/* Returns whether the interface has carrier. Without it (cable unplugged; on a veth, the other end down) the kernel
 * returns ENOBUFS as for a full queue, but waiting does not help. */
static int has_carrier(const struct link *link)
{
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strcpy(r.ifr_name, link->interface);
    return ioctl(link->fd, SIOCGIFFLAGS, &r) == 0 && r.ifr_flags & IFF_RUNNING;
}

/* The NIC counts the frames that its link accepted. Two refusals belong together if none was accepted between them. */
enum eth_verdict eth_full(struct link *link, int error)
{
    if (error == ENOBUFS && !has_carrier(link))
        return ETH_LOST;
    uint64_t now = vk_now(), taken = link->client->counters[VIAKIT_COUNTER_frames_sent];
    if (link->full_since == 0 || taken != link->full_taken || now - link->full_last > FULL_LONGEST) {
        link->full_since = now;
        link->full_taken = taken;
    }
    link->full_last = now;
    if (now - link->full_since <= FULL_LONGEST)
        return ETH_FULL;
    link->error = -error;
    link_trouble(link->client, "%s has carrier, but took no frame for %u s: %s (errno %d)", link->interface,
                 (unsigned)(FULL_LONGEST / VK_SECOND), strerror(error), error);
    return ETH_FAILED;
}
