/*
 * Opening an Ethernet interface: examines it, selects the frames that the kernel delivers, and provides the rings for
 * them.
 *
 * The order matters. A bound packet socket receives at once. The socket is therefore made with protocol 0 (nothing),
 * then filter, options and ring are set, and only at the end bind() names interface and protocol. Thus a foreign frame
 * never occupies a slot.
 *
 *   examine -> claim_port, then for each socket: packet_socket (with its filter) -> options -> make_ring -> bind
 *
 * Privileges: CAP_NET_RAW in the network namespace's user namespace. A process that makes its own namespaces (unshare
 * -Urn) has it there, as the testbed does. Without it, the helper viakit-raw makes the sockets, if it is installed
 * (raw.h). Send buffers above the system's limit need CAP_NET_ADMIN (SO_SNDBUFFORCE).
 *
 *   ring    | block, 1 MiB: slot 0 | slot 1 | ... | rest | block: ...        a slot never crosses blocks
 *   slot    | tpacket2_hdr | sockaddr_ll | padding | Ethernet header | ... |  2048 bytes, or a multiple
 *
 * Only the thread that opens or closes the NIC calls these functions. They block for the time of their system calls,
 * and up to five seconds if the helper is needed. Invariant: each descriptor is -1 or open, and each ring without
 * memory is that of clear_ring(). So eth_close() is right at any point of an incomplete opening.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if_arp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/explain.h"
#include "base/files.h"
#include "link/eth.h"
#include "link/eth_filter.h"
#include "link/raw.h"
#include "link/station.h"

#define SLOTS 1024u           /* for frames of the MTU: 2 MiB at MTU 1500 */
#define SUPER_SLOTS 64u       /* for super-frames: a window, 5 MiB; a ring that exceeds the caches is slower */
#define SUPER_QUEUE 113u      /* super-frames in the queue: as many as twice 4 MiB hold (can_queue) */
#define SUPER_SLOTS_MOST 256u /* of either, if more are requested */
#define SUPER_MEMORY 73728u   /* 72 KiB, of a receive buffer for one, at most, if a packet socket made it. */
/* Bytes of frames that the kernel may hold before it returns EAGAIN, if the system allows so many. */
#define SEND_BUFFER (8 << 20)
#define MIN_MTU 256u /* bytes: headers and some payload */

void eth_station_prefix(const struct link *link, char prefix[64])
{
    snprintf(prefix, 64, "viakit/eth/%s", link->interface);
}

/* A wrong name is a common mistake of new users, so the message lists the right ones. */
int eth_refuse_interface(const char *name)
{
    char list[200] = "";
    struct if_nameindex *all = if_nameindex();
    for (struct if_nameindex *i = all; i && i->if_name; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", *list ? ", " : "", i->if_name);
    if (all)
        if_freenameindex(all);
    vk_explain("eth: no interface '%.32s' on this host: it has %s", name, *list ? list : "none");
    return -ENODEV;
}

/* Reads index, MTU and MAC address by ioctl, because /sys may show another namespace's interfaces. Any socket serves
 * for that (netdevice(7)), hence the one for the port. Returns 0, or -errno, explained. */
static int examine(struct link *link, uint32_t *mtu, int *index)
{
    struct ifreq r;
    memset(&r, 0, sizeof r);
    strcpy(r.ifr_name, link->interface);
    if (ioctl(link->claim_fd, SIOCGIFINDEX, &r) != 0)
        return eth_refuse_interface(link->interface);
    *index = r.ifr_ifindex;
    if (ioctl(link->claim_fd, SIOCGIFFLAGS, &r) != 0 || !(r.ifr_flags & IFF_UP)) {
        vk_explain("eth: interface %s is down: `ip link set %s up`, as root or inside a testbed", link->interface,
                   link->interface);
        return -ENETDOWN;
    }
    if (ioctl(link->claim_fd, SIOCGIFHWADDR, &r) != 0 ||
        (r.ifr_hwaddr.sa_family != ARPHRD_ETHER && r.ifr_hwaddr.sa_family != ARPHRD_LOOPBACK)) {
        vk_explain("eth: interface %s is not Ethernet", link->interface);
        return -ENODEV;
    }
    memcpy(link->address, r.ifr_hwaddr.sa_data, 6);
    if (ioctl(link->claim_fd, SIOCGIFMTU, &r) != 0)
        return -errno;
    *mtu = (uint32_t)r.ifr_mtu;
    return 0;
}

/* Uses the interface's MTU, or a smaller one if requested. Frames in both directions keep to it. A peer with a larger
 * MTU learns this limit from the connection (wire_connect.max_payload). Returns 0, or -EINVAL, explained. */
static int settle_mtu(struct link *link, const viakit_nic_options *options, uint32_t *mtu)
{
    if (options->mtu > *mtu) {
        vk_explain("eth: MTU %u requested, but %s has %u: raise the interface's MTU or request a smaller one",
                   options->mtu, link->interface, *mtu);
        return -EINVAL;
    }
    if (options->mtu)
        *mtu = options->mtu;
    if (*mtu < MIN_MTU) {
        vk_explain("eth: MTU %u of %s is too small: the least MTU is %u, `ip link set %s mtu %u`", *mtu,
                   link->interface, MIN_MTU, link->interface, MIN_MTU);
        return -EINVAL;
    }
    return 0;
}

/* Makes a receive ring of at least n slots: blocks of 1 MiB, cut into slots. MAP_POPULATE: no page fault while
 * receiving. Returns 0 or -errno. The mapping holds a reference to the socket, which lives until both are closed. */
static int make_ring(int fd, struct eth_ring *ring, uint32_t slot_len, uint32_t n)
{
    /* TPACKET_V2 has a status word for each slot, so polling reads one word. (V3 passes whole blocks, filled or after a
     * time-out.) */
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
    madvise(p, ring->len, MADV_DONTFORK); /* a mapping in a child would keep the socket open, too */
    ring->memory = p;
    ring->first = p;
    return 0;
}

/* Makes the ring, then binds the socket, after which frames may arrive. Returns 0 or -errno. */
static int receive(int fd, struct eth_ring *ring, const struct sockaddr_ll *from, uint32_t slot_len, uint32_t n)
{
    int one = 1;
    setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one); /* since Linux 4.20; eth.c works without it */
    int error = make_ring(fd, ring, slot_len, n);
    if (error == 0 && bind(fd, (const struct sockaddr *)from, sizeof *from) != 0)
        error = -errno;
    return error;
}

/* Makes it a ring without slots. Its first slot is always the kernel's, so eth_poll() need not test for it. */
static void clear_ring(struct eth_ring *ring)
{
    static struct tpacket2_hdr no_slot = {.tp_status = TP_STATUS_KERNEL};
    *ring = (struct eth_ring){.first = &no_slot};
}

static void drop_ring(struct eth_ring *ring)
{
    if (ring->memory)
        munmap(ring->memory, ring->len);
    clear_ring(ring);
}

/* Rings first: a mapping keeps its socket alive, and frames would go on arriving. The claim is last, so that the port
 * is not claimed by another NIC while this one still receives. */
void eth_close(struct link *link)
{
    drop_ring(&link->frames);
    drop_ring(&link->supers);
    drop_ring(&link->streams);
    vk_file_close(link->fd);
    vk_file_close(link->super_fd);
    vk_file_close(link->stream_fd);
    vk_file_close(link->send_fd);
    vk_file_close(link->claim_fd);
    free(link->queued);
    while (link->peers) {
        struct link_peer *p = link->peers;
        link->peers = p->next;
        free(p);
    }
    free(link);
}

/* Claims a port from 1 to 65535, unique among the NICs of this interface in this network namespace. */
static int claim_port(struct link *link)
{
    char prefix[64];
    eth_station_prefix(link, prefix);
    return station_claim(link->claim_fd, prefix, &link->port);
}

/* Requests the full size, which needs a privilege (the owner of a user namespace has it), else as much as is
 * allowed. */
static void set_send_buffer(int fd)
{
    int bytes = SEND_BUFFER;
    if (setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes) != 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
}

/* Makes a socket that receives viakit's frames of `least` to `most` bytes once it is bound. Returns it, or -errno after
 * having explained it. The helper sets the filter itself, and locks it. */
static int packet_socket(struct link *link, uint32_t least, uint32_t most, enum eth_marks marks)
{
    int fd = vk_file_own(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0 && (errno == EPERM || errno == EACCES))
        return vk_file_own(raw_socket(link->interface, link->claim_fd, least, most));
    int error = fd < 0 ? -errno : eth_filter_set(fd, link->port, least, most, marks);
    if (error == 0)
        return fd;
    vk_explain("eth: no packet socket for %s: %s", link->interface, strerror(-error));
    vk_file_close(fd);
    return error;
}

/* Opens the socket that sends super-frames. If this fails, each frame is sent by itself. */
static void set_super_frames(struct link *link, int index)
{
    struct sockaddr_ll a = {
        .sll_family = AF_PACKET, .sll_protocol = 0, .sll_ifindex = index}; /* protocol 0: receives nothing */
    int one = 1;
    link->send_fd = packet_socket(link, 1, 0, ETH_ANY);
    if (link->send_fd < 0)
        return;
    set_send_buffer(link->send_fd);
    link->super_possible = setsockopt(link->send_fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) == 0 &&
                           setsockopt(link->send_fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0 &&
                           bind(link->send_fd, (struct sockaddr *)&a, sizeof a) == 0;
}

/* The last option is required: frames go straight to the driver, past the interface's queueing discipline, and a send
 * reports at once whether there is room. The others are optional.  */
static int set_options(struct link *link, int index)
{
    int one = 1;
    if (link->form != VIAKIT_FORM_PLAIN)
        set_super_frames(link, index);
    set_send_buffer(link->fd);
    return setsockopt(link->fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0 ? 0 : -errno;
}

/* Returns the length of a slot for frames of `longest` bytes. The kernel puts its own header first and reserves 16
 * bytes for the link's header, however short that is (tpacket_rcv in net/packet/af_packet.c). Multiples of 2048 divide
 * BLOCK with a small rest, and are a multiple of TPACKET_ALIGNMENT, which the kernel requires. */
static uint32_t slot_for(uint32_t longest)
{
    uint32_t len = 2048;
    while (len < TPACKET2_HDRLEN + 16 + longest)
        len += 2048;
    return len;
}

/* Lets a socket queue n super-frames, if the system grants the memory: net.core.rmem_max is 4 MiB in new kernels, and
 * 208 KiB in older ones. SO_RCVBUFFORCE would let only a privileged user exceed it, whose figures would be of no use to
 * others. */
static int can_queue(int fd, uint32_t n)
{
    int bytes = (int)(n * SUPER_MEMORY / 2), granted = 0, one = 1; /* the kernel doubles the size that is requested */
    socklen_t len = sizeof granted;
    return setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes) == 0 &&
           getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &granted, &len) == 0 && (uint32_t)granted >= n * SUPER_MEMORY &&
           setsockopt(fd, SOL_PACKET, PACKET_COPY_THRESH, &one, sizeof one) == 0;
}

/* Opens the socket for super-frames of long messages, with a queue for n of them. Without it they go to the long slots,
 * as they do if the helper makes the sockets: on the wires for which it is meant no super-frame arrives whole. */
static void receive_streams(struct link *link, uint32_t n, uint32_t longest, const struct sockaddr_ll *from)
{
    int fd = vk_file_own(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (fd < 0)
        return;
    link->queued = malloc(SUPER_SLOT);
    if (link->queued && eth_filter_set(fd, link->port, longest + 1, UINT32_MAX, ETH_MARKED) == 0 && can_queue(fd, n) &&
        receive(fd, &link->streams, from, slot_for(longest), n) == 0) {
        link->stream_fd = fd;
        link->stream_room = n;
        return;
    }
    drop_ring(&link->streams);
    vk_file_close(fd);
}

/* Explains an error, 0 for none, and returns it. */
static int explained(const struct link *link, int error)
{
    if (error)
        vk_explain("eth: %s: %s", link->interface, strerror(-error));
    return error;
}

/* Receives super-frames, which have the form "udp", and other frames that are longer than the MTU allows. Frames of the
 * MTU have `longest` bytes at most. */
static int receive_supers(struct link *link, uint32_t want, uint32_t longest, struct sockaddr_ll a)
{
    uint32_t most = want < SUPER_SLOTS_MOST ? want : SUPER_SLOTS_MOST;
    a.sll_protocol = htons(ETHERTYPE_IP);
    receive_streams(link, want ? most : SUPER_QUEUE, longest, &a);
    link->super_fd = packet_socket(link, longest + 1, UINT32_MAX, link->stream_fd >= 0 ? ETH_UNMARKED : ETH_ANY);
    if (link->super_fd < 0)
        return link->super_fd;
    return explained(link, receive(link->super_fd, &link->supers, &a, SUPER_SLOT, want ? most : SUPER_SLOTS));
}

/* Receives frames in each possible form: "auto" accepts both types, so it binds to all protocols. */
static int receive_all(struct link *link, const viakit_nic_options *options, uint32_t mtu, int index)
{
    uint32_t longest = (uint32_t)sizeof(struct ether_header) + mtu, want = options->ring_slots;
    uint16_t protocol = link->form == VIAKIT_FORM_PLAIN ? WIRE_ETHERTYPE
                        : link->form == VIAKIT_FORM_UDP ? ETHERTYPE_IP
                                                        : ETH_P_ALL;
    struct sockaddr_ll a = {.sll_family = AF_PACKET, .sll_protocol = htons(protocol), .sll_ifindex = index};
    int error = link->form == VIAKIT_FORM_PLAIN ? 0 : receive_supers(link, want, longest, a);
    return error ? error
                 : explained(link, receive(link->fd, &link->frames, &a, slot_for(longest), want ? want : SLOTS));
}

/* Returns 0 or -errno, explained. The port is claimed before any socket has a filter, because the filter contains
 * it. */
int eth_bring_up(struct link *link, const viakit_nic_options *options, uint32_t *mtu)
{
    int index = 0, error;
    clear_ring(&link->frames);
    clear_ring(&link->supers);
    clear_ring(&link->streams);
    link->claim_fd = vk_file_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (link->claim_fd < 0)
        return explained(link, -errno);
    if ((error = examine(link, mtu, &index)) != 0)
        return error;
    if ((error = settle_mtu(link, options, mtu)) != 0)
        return error;
    link->index = index;
    if ((error = explained(link, claim_port(link))) != 0)
        return error;
    link->fd = packet_socket(link, 0, (uint32_t)sizeof(struct ether_header) + *mtu, ETH_ANY);
    if (link->fd < 0)
        return link->fd;
    error = explained(link, set_options(link, index));
    return error ? error : receive_all(link, options, *mtu, index);
}
