/*
 * Opening an Ethernet interface: what it is, which frames the kernel shall let through to us, and where it shall put
 * them.
 *
 * The order matters. A packet socket that is bound receives at once, so the socket is made with protocol 0 (nothing),
 * then come options, the filter and the ring, and only at the end bind() names interface and protocol: no frame that
 * is not ours ever takes a slot.
 *
 *   socket(AF_PACKET, SOCK_RAW, 0) -> examine -> claim_port -> set_options -> set_filter -> make_ring -> bind
 *
 * Privileges: CAP_NET_RAW in the network namespace's user namespace. Whoever makes a namespace of his own (unshare
 * -Urn) has it there, which is what the testbed does. Larger socket buffers than the system's limit want
 * CAP_NET_ADMIN (SO_RCVBUFFORCE).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../base/files.h"
#include "eth.h"
#include "station.h"

#define QUEUE_SUPER 256u /* super-frames that may wait in the socket's queue ... */
#define QUEUE_LEAST 64u  /* ... or the ring's slots are made as long as super-frames instead */
/* Bytes of our frames that the kernel may hold before it says EAGAIN, as far as the system allows so many. */
#define SEND_BUFFER (8 << 20)
#define SUPER_COST (80u << 10) /* what one costs the kernel, whose pages are not filled to the brim */
#define MIN_MTU 256u           /* headers and some payload */

void eth_station_prefix(const struct link *link, char prefix[64])
{
    snprintf(prefix, 64, "viakit/eth/%s", link->interface);
}

/* A wrong name is the likeliest mistake of whoever begins: so the right ones are said. */
int eth_refuse_interface(const char *name)
{
    char list[200] = "";
    struct if_nameindex *all = if_nameindex();
    for (struct if_nameindex *i = all; i && i->if_name; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", i->if_name);
    if (all)
        if_freenameindex(all);
    via_explain("eth: no interface '%.32s' on this host: it has %s", name, *list ? list : "none");
    return -ENODEV;
}

/* Index, MTU and MAC address by ioctl: /sys may show another namespace's interfaces. */
static int examine(struct link *link, uint32_t *mtu, int *index)
{
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strcpy(r.ifr_name, link->interface);
    if (ioctl(link->fd, SIOCGIFINDEX, &r) != 0)
        return eth_refuse_interface(link->interface);
    *index = r.ifr_ifindex;
    if (ioctl(link->fd, SIOCGIFFLAGS, &r) != 0 || !(r.ifr_flags & IFF_UP)) {
        via_explain("eth: interface %s is down: `ip link set %s up`, as root or inside a testbed", link->interface,
                    link->interface);
        return -ENETDOWN;
    }
    if (ioctl(link->fd, SIOCGIFHWADDR, &r) != 0 ||
        (r.ifr_hwaddr.sa_family != ARPHRD_ETHER && r.ifr_hwaddr.sa_family != ARPHRD_LOOPBACK)) {
        via_explain("eth: interface %s is not Ethernet", link->interface);
        return -ENODEV;
    }
    memcpy(link->address, r.ifr_hwaddr.sa_data, 6);
    if (ioctl(link->fd, SIOCGIFMTU, &r) != 0)
        return -errno;
    *mtu = (uint32_t)r.ifr_mtu;
    return 0;
}

/* The interface's MTU, or the smaller one that was asked for. Frames in both directions keep to it; a peer with a
 * larger one learns ours from the connection (wire_connect.max_payload). */
static int settle_mtu(struct link *link, const viakit_nic_options *options, uint32_t *mtu)
{
    if (options->mtu > *mtu) {
        via_explain("eth: MTU %u asked for, but %s has %u: raise the interface's or ask for less", options->mtu,
                    link->interface, *mtu);
        return -EINVAL;
    }
    if (options->mtu)
        *mtu = options->mtu;
    if (*mtu < MIN_MTU) {
        via_explain("eth: MTU %u of %s is too small: at least %u are needed", *mtu, link->interface, MIN_MTU);
        return -EINVAL;
    }
    return 0;
}

/* Frames of ours for this NIC (or for whoever waits: port 0), before the kernel copies anything. The port lies
 * little-endian. Classic BPF: LD loads from an offset into the frame, in network order; JEQ skips its first
 * number of instructions if equal, its second if not; RET says how many bytes to keep, 0 none.
 *
 *   0-3    type 0x88B5: the port behind the Ethernet header, and on to 10
 *   4-9    IPv4, UDP, both ports ours: the port behind the dress
 *   10-13  our port or 0: all of it; anything else: nothing */
static int set_filter(struct link *link)
{
    uint32_t port = (uint32_t)(link->port >> 8 | (link->port & 0xFF) << 8);
    struct sock_filter code[] = {
        /*  0 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        /*  1 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WIRE_ETHERTYPE, 0, 2),
        /*  2 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + offsetof(struct wire_header, dst_port)),
        /*  3 */ BPF_STMT(BPF_JMP | BPF_JA, 6), /* to 10 */
        /*  4 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETHERTYPE_IP, 0, 8),
        /*  5 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 14 + 9),
        /*  6 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 17, 0, 6),
        /*  7 */ BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 14 + IP_LEN),
        /*  8 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)WIRE_UDP_PORT << 16 | WIRE_UDP_PORT, 0, 4),
        /*  9 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + DRESS_LEN + offsetof(struct wire_header, dst_port)),
        /* 10 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, port, 1, 0),
        /* 11 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        /* 12 */ BPF_STMT(BPF_RET | BPF_K, 0x40000), /* all of it */
        /* 13 */ BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return setsockopt(link->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0 ? 0 : -errno;
}

/* The receive ring: blocks of 1 MiB, cut into slots. Where super-frames can wait in the socket's queue (`queued`) a
 * slot has to hold one frame of the MTU; where they cannot, each slot has to hold a whole super-frame. MAP_POPULATE:
 * no page fault while receiving. */
static int make_ring(struct link *link, const viakit_nic_options *options, uint32_t mtu)
{
    /* TPACKET_V2: a status word for each slot, which is what polling one word at a time needs. (V3 hands over whole
     * blocks, filled or after a time-out.) */
    int version = TPACKET_V2;
    uint32_t want = options->ring_slots;
    if (link->form == VIAKIT_FORM_PLAIN || link->queued) {
        /* The kernel puts its own header first and keeps 16 bytes for the link's header, however short that is. */
        uint32_t need = (uint32_t)(TPACKET2_HDRLEN + 16 + sizeof(struct ether_header)) + mtu;
        for (link->slot_len = 2048; link->slot_len < need;)
            link->slot_len += 2048;
        want = want ? want : 1024;
    } else {
        link->slot_len = SUPER_SLOT;
        want = want ? want : 256;
    }
    link->slots_per_block = BLOCK / link->slot_len;
    uint32_t blocks = (want + link->slots_per_block - 1) / link->slots_per_block;
    link->n_slots = blocks * link->slots_per_block;
    link->ring_len = (size_t)blocks * BLOCK;
    struct tpacket_req r = {
        .tp_block_size = BLOCK, .tp_block_nr = blocks, .tp_frame_size = link->slot_len, .tp_frame_nr = link->n_slots};
    if (setsockopt(link->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(link->fd, SOL_PACKET, PACKET_RX_RING, &r, sizeof r) != 0)
        return -errno;
    void *p = mmap(NULL, link->ring_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, link->fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    madvise(p, link->ring_len, MADV_DONTFORK); /* a mapping, too, keeps the socket open */
    link->ring = p;
    return 0;
}

void eth_close(struct link *link)
{
    if (link->ring)
        munmap(link->ring, link->ring_len);
    vk_file_close(link->fd);
    vk_file_close(link->super_fd);
    free(link->whole);
    vk_file_close(link->claim_fd);
    while (link->peers) {
        struct link_peer *p = link->peers;
        link->peers = p->next;
        free(p);
    }
    free(link);
}

/* Port 1 to 65535 among the NICs of this interface, as far as this network namespace goes. */
static int claim_port(struct link *link)
{
    char prefix[64];
    eth_station_prefix(link, prefix);
    link->claim_fd = vk_file_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    return link->claim_fd < 0 ? -errno : station_claim(link->claim_fd, prefix, &link->port);
}

/* As much as is asked for where we may (a user namespace's owner may), else as far as allowed. Returns what the
 * kernel counts with. SO_RCVBUF and SO_SNDBUF double what they are told (socket(7)), for the kernel charges its
 * overhead to the same account; what getsockopt returns is the doubled number. */
static int set_buffer(int fd, int force, int plain, int bytes)
{
    int got = 0;
    socklen_t len = sizeof got;
    if (setsockopt(fd, SOL_SOCKET, force, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, plain, &bytes, sizeof bytes);
    return getsockopt(fd, SOL_SOCKET, plain, &got, &len) == 0 ? got : 0;
}

/* The socket that sends super-frames, and the queue that receives them: neither is there for the form "plain". */
static void set_super_frames(struct link *link, int index)
{
    struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = 0, .sll_ifindex = index}; /* 0: receives nothing */
    int one = 1, queue = set_buffer(link->fd, SO_RCVBUFFORCE, SO_RCVBUF, (int)(QUEUE_SUPER * SUPER_COST / 2));
    link->queue_slots = (uint32_t)queue / SUPER_COST;
    link->queued = link->queue_slots >= QUEUE_LEAST && (link->whole = malloc(SUPER_SLOT)) != NULL &&
                   setsockopt(link->fd, SOL_PACKET, PACKET_COPY_THRESH, &one, sizeof one) == 0;
    link->super_fd = vk_file_own(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (link->super_fd < 0)
        return;
    set_buffer(link->super_fd, SO_SNDBUFFORCE, SO_SNDBUF, SEND_BUFFER);
    link->super_frames = setsockopt(link->super_fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) == 0 &&
                         setsockopt(link->super_fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0 &&
                         bind(link->super_fd, (struct sockaddr *)&a, sizeof a) == 0;
}

/* The last one must be granted: frames go straight to the driver, past the interface's queueing discipline, and a
 * send says at once whether there is room. The others only help. */
static int set_options(struct link *link, int index)
{
    int one = 1;
    if (link->form != VIAKIT_FORM_PLAIN)
        set_super_frames(link, index);
    set_buffer(link->fd, SO_SNDBUFFORCE, SO_SNDBUF, SEND_BUFFER);
    setsockopt(link->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one,
               sizeof one); /* since Linux 4.20; eth_poll copes without */
    return setsockopt(link->fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0 ? 0 : -errno;
}

int eth_bring_up(struct link *link, const viakit_nic_options *options, uint32_t *mtu)
{
    int index = 0, error = examine(link, mtu, &index);
    if (error == 0)
        error = settle_mtu(link, options, mtu);
    if (error)
        return error;
    if ((error = claim_port(link)) == 0 && (error = set_options(link, index)) == 0 && (error = set_filter(link)) == 0 &&
        (error = make_ring(link, options, *mtu)) == 0) {
        /* Only what the form can bring passes the filter at all; "auto" takes both types, so it listens to all of
         * them. */
        uint16_t protocol = link->form == VIAKIT_FORM_PLAIN ? WIRE_ETHERTYPE
                            : link->form == VIAKIT_FORM_UDP ? ETHERTYPE_IP
                                                            : ETH_P_ALL;
        struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = index};
        if (bind(link->fd, (struct sockaddr *)&a, sizeof a) != 0)
            error = -errno;
    }
    if (error)
        via_explain("eth: %s: %s", link->interface, strerror(-error));
    return error;
}
