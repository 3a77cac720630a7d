/*
 * Opening an Ethernet interface: what it is, which frames the kernel shall let through to us, and where it shall put
 * them.
 *
 * The order matters. A packet socket that is bound receives at once, so the socket is made with protocol 0 (nothing),
 * then come options, the filter and the ring, and only at the end bind() names interface and protocol: no frame that
 * is not ours ever takes a slot.
 *
 *   socket(AF_PACKET, SOCK_RAW, 0) -> examine -> claim_port -> set_options, then for each of the two that receive:
 *   set_filter -> make_ring -> bind
 *
 * Privileges: CAP_NET_RAW in the network namespace's user namespace. Whoever makes a namespace of his own (unshare
 * -Urn) has it there, which is what the testbed does. Larger send buffers than the system's limit want
 * CAP_NET_ADMIN (SO_SNDBUFFORCE).
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

#define SLOTS 1024u           /* for frames of the MTU: 2 MiB at MTU 1500 */
#define SUPER_SLOTS 64u       /* for super-frames: a window, 5 MiB; what no cache holds any more is slower */
#define SUPER_SLOTS_MOST 256u /* ... if more are asked for */
/* Bytes of our frames that the kernel may hold before it says EAGAIN, as far as the system allows so many. */
#define SEND_BUFFER (8 << 20)
#define MIN_MTU 256u /* headers and some payload */

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

/* Frames of ours for this NIC (or for whoever waits: port 0), before the kernel copies anything; of them those of
 * `least` to `most` bytes. The port lies little-endian. Classic BPF: LD loads from an offset into the frame, in network
 * order, or the frame's length; JEQ, JGT and JGE skip their first number of instructions if so, else their second; RET
 * says how many bytes to keep, 0 none.
 *
 *   0-2    the length
 *   3-6    type 0x88B5: the port behind the Ethernet header, and on to 13
 *   7-12   IPv4, UDP, both ports ours: the port behind the dress
 *   13-16  our port or 0: all of it; anything else: nothing */
static int set_filter(int fd, uint16_t port, uint32_t least, uint32_t most)
{
    uint32_t swapped = (uint32_t)(port >> 8 | (port & 0xFF) << 8);
    struct sock_filter code[] = {
        /*  0 */ BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
        /*  1 */ BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, least, 0, 14),
        /*  2 */ BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, most, 13, 0),
        /*  3 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
        /*  4 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WIRE_ETHERTYPE, 0, 2),
        /*  5 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + offsetof(struct wire_header, dst_port)),
        /*  6 */ BPF_STMT(BPF_JMP | BPF_JA, 6), /* to 13 */
        /*  7 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETHERTYPE_IP, 0, 8),
        /*  8 */ BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 14 + 9),
        /*  9 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 17, 0, 6),
        /* 10 */ BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 14 + IP_LEN),
        /* 11 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)WIRE_UDP_PORT << 16 | WIRE_UDP_PORT, 0, 4),
        /* 12 */ BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 14 + DRESS_LEN + offsetof(struct wire_header, dst_port)),
        /* 13 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, swapped, 1, 0),
        /* 14 */ BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 1),
        /* 15 */ BPF_STMT(BPF_RET | BPF_K, 0x40000), /* all of it */
        /* 16 */ BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    return setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0 ? 0 : -errno;
}

/* A receive ring of at least n slots: blocks of 1 MiB, cut into slots. MAP_POPULATE: no page fault while receiving. */
static int make_ring(int fd, struct eth_ring *ring, uint32_t slot_len, uint32_t n)
{
    /* TPACKET_V2: a status word for each slot, which is what polling one word at a time needs. (V3 hands over whole
     * blocks, filled or after a time-out.) */
    int version = TPACKET_V2;
    uint32_t per_block = BLOCK / slot_len, blocks = (n + per_block - 1) / per_block;
    *ring = (struct eth_ring){.len = (size_t)blocks * BLOCK,
                              .n_slots = blocks * per_block,
                              .slot_len = slot_len,
                              .slots_per_block = per_block};
    struct tpacket_req r = {
        .tp_block_size = BLOCK, .tp_block_nr = blocks, .tp_frame_size = slot_len, .tp_frame_nr = ring->n_slots};
    if (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &r, sizeof r) != 0)
        return -errno;
    void *p = mmap(NULL, ring->len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
    if (p == MAP_FAILED)
        return -errno;
    madvise(p, ring->len, MADV_DONTFORK); /* a mapping, too, keeps the socket open */
    ring->memory = p;
    return 0;
}

/* Filter, ring, and then the frames may come. */
static int receive(int fd, struct eth_ring *ring, const struct sockaddr_ll *from, uint16_t port, uint32_t least,
                   uint32_t most, uint32_t slot_len, uint32_t n)
{
    int one = 1, error = set_filter(fd, port, least, most);
    setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one); /* since Linux 4.20; eth.c copes without */
    if (error == 0)
        error = make_ring(fd, ring, slot_len, n);
    if (error == 0 && bind(fd, (const struct sockaddr *)from, sizeof *from) != 0)
        error = -errno;
    return error;
}

static void drop_ring(struct eth_ring *ring)
{
    if (ring->memory)
        munmap(ring->memory, ring->len);
}

void eth_close(struct link *link)
{
    drop_ring(&link->frames);
    drop_ring(&link->supers);
    vk_file_close(link->fd);
    vk_file_close(link->super_fd);
    vk_file_close(link->send_fd);
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

/* As much as is asked for where we may (a user namespace's owner may), else as far as allowed. */
static void set_send_buffer(int fd)
{
    int bytes = SEND_BUFFER;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

static int packet_socket(void)
{
    return vk_file_own(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/* The socket that sends super-frames; where it cannot be had, or the kernel refuses, each frame goes alone. */
static void set_super_frames(struct link *link, int index)
{
    struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = 0, .sll_ifindex = index}; /* 0: receives nothing */
    int one = 1;
    link->send_fd = packet_socket();
    if (link->send_fd < 0)
        return;
    set_send_buffer(link->send_fd);
    link->super_frames = setsockopt(link->send_fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) == 0 &&
                         setsockopt(link->send_fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0 &&
                         bind(link->send_fd, (struct sockaddr *)&a, sizeof a) == 0;
}

/* The last one must be granted: frames go straight to the driver, past the interface's queueing discipline, and a
 * send says at once whether there is room. The others only help. */
static int set_options(struct link *link, int index)
{
    int one = 1;
    if (link->form != VIAKIT_FORM_PLAIN)
        set_super_frames(link, index);
    set_send_buffer(link->fd);
    return setsockopt(link->fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0 ? 0 : -errno;
}

/* Frames of the MTU, in whatever form it can bring: "auto" takes both types, so it listens to all of them. Longer ones
 * are super-frames, which are dressed: those have a ring of their own. */
static int receive_all(struct link *link, const viakit_nic_options *options, uint32_t mtu, int index)
{
    uint32_t longest = (uint32_t)sizeof(struct ether_header) + mtu, want = options->ring_slots, slot_len = 2048;
    uint16_t protocol = link->form == VIAKIT_FORM_PLAIN ? WIRE_ETHERTYPE
                        : link->form == VIAKIT_FORM_UDP ? ETHERTYPE_IP
                                                        : ETH_P_ALL;
    struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(ETHERTYPE_IP), .sll_ifindex = index};
    int error = 0;
    if (link->form != VIAKIT_FORM_PLAIN) {
        uint32_t n = want == 0 ? SUPER_SLOTS : want < SUPER_SLOTS_MOST ? want : SUPER_SLOTS_MOST;
        link->super_fd = packet_socket();
        error = link->super_fd < 0
                    ? -errno
                    : receive(link->super_fd, &link->supers, &a, link->port, longest + 1, UINT32_MAX, SUPER_SLOT, n);
    }
    /* The kernel puts its own header first and keeps 16 bytes for the link's header, however short that is. */
    while (slot_len < TPACKET2_HDRLEN + 16 + longest)
        slot_len += 2048;
    a.sll_protocol = htons(protocol);
    return error ? error : receive(link->fd, &link->frames, &a, link->port, 0, longest, slot_len, want ? want : SLOTS);
}

int eth_bring_up(struct link *link, const viakit_nic_options *options, uint32_t *mtu)
{
    int index = 0, error = examine(link, mtu, &index);
    if (error == 0)
        error = settle_mtu(link, options, mtu);
    if (error)
        return error;
    if ((error = claim_port(link)) == 0 && (error = set_options(link, index)) == 0)
        error = receive_all(link, options, *mtu, index);
    if (error)
        via_explain("eth: %s: %s", link->interface, strerror(-error));
    return error;
}
