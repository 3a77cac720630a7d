/*
 * bench/ep_frames.c - bare Ethernet frames: the minimum cost of a raw socket on a wire.
 *
 * There is no protocol here. Frames are not acknowledged, checksummed, retransmitted or protected, and a lost frame
 * ends the measurement. The result is the cost of the kernel's packet socket and of the wire, which every protocol over
 * raw frames pays. The difference to such a protocol is the protocol's own cost.
 *
 *      short:  a message is a frame      | Ethernet 0x88B6 | run | at | message ... up to the MTU |
 *              sent by send(), received in a ring that the kernel fills (PACKET_RX_RING): no system call while polling
 *      long:   a message is cut into super-frames of up to 64 KB, which leave the host as segments of the MTU's size
 *              (virtio header, UDP segmentation):
 *                                        | virtio | Ethernet | IP | UDP | run | at | up to PIECE bytes |
 *              received by recvmsg() straight to their place: one copy, by the kernel
 *
 * `at` is the piece's offset in its message, so that the next piece reveals a lost one.
 *
 *     ring:  | kernel's | kernel's | USER, not read | USER | ... |     `slot` is the next to read, and wraps at N_SLOTS
 *                                    ^ slot
 *
 * A slot belongs to the kernel or to this process, as tp_status shows. The process reads a slot only while it is its
 * own, and gives each back before it polls the next. If all slots are USER, the kernel drops frames, and the run
 * ends with lost_frame().
 *
 * Invariant: tx_at and rx_at are 0 between messages. At most `window` messages are under way, and fit the receiver's
 * queue.
 *
 * Not done: a reply to a lost frame, and any check of the content. ep_udp.c has the least protocol that repeats what is
 * lost.
 *
 * One thread has the endpoint, as every endpoint (bench.h).
 */
#include "base/inet_sum.h"
#include "base/plural.h"
#include "bench/bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define ETHERTYPE_FRAMES 0x88B6 /* the second of the two for local experiments; VIA uses the first */
#define UDP_PORT 4792           /* of both sides; only the filter of open_long() compares it */
#define SLOT_LEN 2048u          /* the least power of two that holds a frame of MAX_MTU and the kernel's header */
#define N_SLOTS 1024u           /* above the largest window: the kernel may run far ahead of this process */
#define BLOCK (SLOT_LEN * 64)   /* 128 KiB, whole pages, as PACKET_RX_RING requires */
#define MAX_MTU 1518u           /* a frame must fit a slot together with the kernel's header */
#define QUEUE (64 << 20)        /* bytes of queued super-frames, as counted by the kernel, if permitted */
#define IP_UDP 28u              /* bytes of both headers */
#define MAX_SEGMENTS 64u        /* the kernel's limit, for every UDP_SEGMENT user */
#define GSO_UDP_L4 5            /* VIRTIO_NET_HDR_GSO_UDP_L4, which older headers lack */

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

/* The layout in the ring behind the kernel's header, and in the buffer of send(). */
typedef struct __attribute__((packed)) {
    struct ethhdr ether;
    uint32_t run, at;
} short_head;

/* The layout for recvmsg() and sendmsg() with PACKET_VNET_HDR: the virtio header comes first and is not sent. */
typedef struct __attribute__((packed)) {
    struct virtio_net_hdr vnet;
    struct ethhdr ether;
    uint8_t ip[20];
    uint16_t source, dest, udp_len, udp_sum;
    uint32_t run, at;
} long_head;

typedef struct {
    bench_ep ep;
    int ring_fd, long_fd; /* sockets of short frames and of super-frames */
    uint8_t *ring;
    uint32_t slot; /* the next to poll */
    unsigned mtu;  /* bytes of an Ethernet frame's payload */
    uint32_t run;
    size_t piece;        /* message bytes of a super-frame */
    size_t queue;        /* capacity for queued super-frames in bytes, as counted by the kernel */
    size_t tx_at, rx_at; /* bytes of the current message that were sent, and received */
    short_head *out;     /* the short message is copied behind it */
    long_head head, in;  /* of the next super-frame to send, and of the last received */
    uint8_t mac[6];      /* this interface's */
} frames_ep;

/* ---------------------------------------------------------------- heads */

/* Fill in all header fields that do not change from frame to frame. gso_size is the payload of each segment that the
 * kernel cuts. */
static void make_heads(frames_ep *ep, const uint8_t peer[6])
{
    struct ethhdr ether = {.h_proto = htons(ETHERTYPE_FRAMES)};
    memcpy(ether.h_dest, peer, 6);
    memcpy(ether.h_source, ep->mac, 6);
    ep->out->ether = ether;

    ether.h_proto = htons(ETH_P_IP);
    /* Addresses of the link-local network, made from the MACs: the hosts' own IP stack must not accept these frames. */
    const uint8_t ip[20] = {
        0x45,           0,      0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 169, 254, ep->mac[4] & 0x7f, ep->mac[5], 169, 254,
        peer[4] | 0x80, peer[5]};
    ep->head = (long_head){.ether = ether, .source = htons(UDP_PORT), .dest = htons(UDP_PORT)};
    memcpy(ep->head.ip, ip, sizeof ip);
    ep->head.vnet.flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
    ep->head.vnet.hdr_len = sizeof ether + IP_UDP;
    ep->head.vnet.csum_start = sizeof ether + sizeof ep->head.ip;
    ep->head.vnet.csum_offset = 6;
    ep->head.vnet.gso_size = (uint16_t)(ep->mtu - IP_UDP);
}

/* Complete the header of a super-frame with n bytes of message: lengths, IP's checksum, and for UDP's checksum the sum
 * of the pseudo-header. The segmenter adds the rest, at csum_start and csum_offset. A frame that fits one segment is
 * not marked for segmentation. */
static void finish_head(frames_ep *ep, size_t n)
{
    long_head *h = &ep->head;
    size_t udp_len = 8 + 8 + n;
    h->ip[2] = (uint8_t)((20 + udp_len) >> 8);
    h->ip[3] = (uint8_t)(20 + udp_len);
    h->ip[10] = h->ip[11] = 0;
    uint16_t check = (uint16_t)~vk_inet_sum(h->ip, sizeof h->ip, 0);
    h->ip[10] = (uint8_t)(check >> 8);
    h->ip[11] = (uint8_t)check;
    h->udp_len = htons((uint16_t)udp_len);
    h->udp_sum = htons(
        vk_inet_sum(h->ip + 12, 8, 17 + (uint32_t)udp_len)); /* of the pseudo-header only; the kernel adds the rest */
    h->vnet.gso_type = udp_len - 8 > h->vnet.gso_size ? GSO_UDP_L4 : VIRTIO_NET_HDR_GSO_NONE;
}

/* ---------------------------------------------------------------- the operations */

/* A short message's frame has 8 bytes (run, at) before its data, within the MTU. */
static bool is_short(const frames_ep *ep, size_t len)
{
    return len + 8 <= ep->mtu;
}

/* The inputs are the same on both sides, so both compute the same window and use the same kind of frames. */
static int frames_prepare(bench_ep *base, const bench_plan *plan)
{
    frames_ep *ep = (frames_ep *)base;
    /* The window must fit the receiver's queue, or frames are lost: nothing else limits the sender. */
    size_t cost = plan->len + plan->len / 4 + 4096; /* the kernel counts pages, not bytes */
    size_t most = ep->queue / 2 / cost;
    ep->run = plan->run_id;
    ep->tx_at = ep->rx_at = 0;
    base->window = bench_window(plan);
    if (!is_short(ep, plan->len) && base->window > most)
        base->window = most;
    /* A ping-pong has one message under way, whatever the window. */
    if (base->window < 2 && (plan->mode != BENCH_PINGPONG || cost > ep->queue))
        return bench_fail(
            base, BENCH_ERROR,
            "messages of %zu byte%s do not fit the queue of a packet socket, which for this user has %zu: "
            "measure smaller ones, or sudo sysctl -w net.core.rmem_max=%d",
            plan->len, vk_s(plan->len), ep->queue, QUEUE / 2);
    return bench_buffers(base, plan, 1);
}

/* Evaluate the result of a system call that sends: it sends whole frames or nothing. */
static int sent(frames_ep *ep, ssize_t n, size_t expected)
{
    ep->ep.count[BENCH_COUNTER_system_calls]++;
    if (n == (ssize_t)expected)
        return BENCH_DONE;
    if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR))
        return BENCH_NOT_YET;
    return bench_fail(&ep->ep, BENCH_ERROR, "a frame of %zu byte%s could not be sent: %s", expected, vk_s(expected),
                      n < 0 ? strerror(errno) : "only a part of it was accepted");
}

/* Send a message as one frame, or piece by piece; NOT_YET preserves the progress. */
static int frames_send(bench_ep *base, size_t len)
{
    frames_ep *ep = (frames_ep *)base;
    if (is_short(ep, len)) {
        ep->out->run = ep->run;
        memcpy(ep->out + 1, base->sbuf, len);
        return sent(ep, send(ep->ring_fd, ep->out, sizeof *ep->out + len, MSG_DONTWAIT), sizeof *ep->out + len);
    }
    /* tx_at is the progress of the message when the socket accepts no more. */
    while (ep->tx_at < len) {
        size_t n = len - ep->tx_at < ep->piece ? len - ep->tx_at : ep->piece;
        struct iovec iov[2] = {{&ep->head, sizeof ep->head}, {base->sbuf + ep->tx_at, n}};
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
        ep->head.run = ep->run;
        ep->head.at = (uint32_t)ep->tx_at;
        finish_head(ep, n);
        int rc = sent(ep, sendmsg(ep->long_fd, &message, MSG_DONTWAIT), sizeof ep->head + n);
        if (rc != BENCH_DONE)
            return rc;
        ep->tx_at += n;
    }
    ep->tx_at = 0;
    return BENCH_DONE;
}

/* No protocol retransmits a lost frame, so the run is over. Returns BENCH_ERROR. */
static int lost_frame(frames_ep *ep, size_t got, size_t len)
{
    return bench_fail(
        &ep->ep, BENCH_ERROR,
        "a frame with %zu byte%s arrived where %zu of a message of %zu were due: a frame was lost, and bare "
        "frames are not retransmitted",
        got, vk_s(got), len - ep->rx_at, len);
}

/* Poll one slot: one load of the status if nothing has arrived. The slot goes back to the kernel, even if its frame
 * belongs to another run. DONE with the message in rbuf, NOT_YET, or an error. */
static int receive_short(frames_ep *ep, size_t len)
{
    struct tpacket2_hdr *h = (struct tpacket2_hdr *)(void *)(ep->ring + (size_t)ep->slot * SLOT_LEN);
    /* Acquire: the kernel sets TP_STATUS_USER after it has filled the slot. Release below: the slot goes back to the
     * kernel only after it has been read. */
    if (!(__atomic_load_n(&h->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
        return BENCH_NOT_YET;
    const short_head *head = (const short_head *)(const void *)((uint8_t *)h + h->tp_mac);
    /* Ethernet's minimum frame is longer than a short message. A frame of another sender may be shorter than the
     * head. */
    size_t got = h->tp_snaplen < sizeof *head ? 0 : h->tp_snaplen - sizeof *head;
    uint32_t run;
    memcpy(&run, &head->run, sizeof run);
    if (run == ep->run && got >= len)
        memcpy(ep->ep.rbuf, head + 1, len); /* to its destination, as in every protocol */
    __atomic_store_n(&h->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
    ep->slot = (ep->slot + 1) % N_SLOTS;
    if (run != ep->run) { /* of an earlier run */
        ep->ep.count[BENCH_COUNTER_frames_dropped]++;
        return BENCH_NOT_YET;
    }
    if (got < len)
        return lost_frame(ep, got, len);
    ep->ep.rmsg = ep->ep.rbuf;
    return BENCH_DONE;
}

/* Pieces are received straight to their place, so only the offset reveals a piece that is not the next. NOT_YET keeps
 * the progress in rx_at. */
static int receive_long(frames_ep *ep, size_t len)
{
    do {
        struct iovec iov[2] = {{&ep->in, sizeof ep->in}, {ep->ep.rbuf + ep->rx_at, len - ep->rx_at}};
        struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
        ssize_t n = recvmsg(ep->long_fd, &message, (ep->ep.dontwait ? MSG_DONTWAIT : 0) | MSG_TRUNC);
        ep->ep.count[BENCH_COUNTER_system_calls]++;
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return BENCH_NOT_YET;
        if (n < (ssize_t)sizeof ep->in)
            return bench_fail(&ep->ep, BENCH_ERROR, "receiving a super-frame: %s",
                              n < 0 ? strerror(errno) : "cut short");
        if (ep->in.run != ep->run) {
            ep->ep.count[BENCH_COUNTER_frames_dropped]++;
            continue;
        }
        /* MSG_TRUNC: n is the frame's real length, even if it did not fit. */
        size_t got = (size_t)n - sizeof ep->in;
        if (ep->in.at != ep->rx_at || got > len - ep->rx_at)
            return lost_frame(ep, got, len);
        ep->rx_at += got;
    } while (ep->rx_at < len);
    ep->rx_at = 0;
    ep->ep.rmsg = ep->ep.rbuf;
    return BENCH_DONE;
}

/* Blocking: a poll that finds nothing sleeps once, and the loop polls again. */
static int frames_recv(bench_ep *base, size_t len)
{
    frames_ep *ep = (frames_ep *)base;
    if (!is_short(ep, len))
        return receive_long(ep, len);
    int rc = receive_short(ep, len);
    if (rc == BENCH_NOT_YET && !base->dontwait) {
        struct pollfd in = {.fd = ep->ring_fd, .events = POLLIN};
        base->count[BENCH_COUNTER_system_calls]++;
        poll(&in, 1, BENCH_SLICE_MS);
    }
    return rc;
}

/* Poll both sockets, because a run's messages and its replies may be of different kinds. */
static void frames_idle(bench_ep *base, bool want_send)
{
    frames_ep *ep = (frames_ep *)base;
    struct pollfd either[2] = {{.fd = ep->ring_fd, .events = POLLIN}, {.fd = ep->long_fd, .events = POLLIN}};
    base->count[BENCH_COUNTER_system_calls]++;
    poll(either, 2,
         want_send ? 1 : BENCH_SLICE_MS); /* a packet socket is always writable: its queue is the interface's */
}

/* Also closes a partly opened endpoint. */
static void frames_close(bench_ep *base)
{
    frames_ep *ep = (frames_ep *)base;
    if (ep->ring)
        munmap(ep->ring, (size_t)N_SLOTS * SLOT_LEN);
    if (ep->ring_fd >= 0)
        close(ep->ring_fd);
    if (ep->long_fd >= 0)
        close(ep->long_fd);
    free(ep->out);
}

/* The address is the interface's MAC. Returns its length. */
static int frames_address(bench_ep *base, unsigned char *address, size_t room)
{
    if (room < sizeof((frames_ep *)base)->mac)
        return bench_fail(base, BENCH_ERROR, "an Ethernet address needs 6 bytes");
    memcpy(address, ((frames_ep *)base)->mac, sizeof((frames_ep *)base)->mac);
    return (int)sizeof((frames_ep *)base)->mac;
}

/* Nothing is sent: there is no connection, only a destination in the frames. */
static int frames_join(bench_ep *base, const unsigned char *address, size_t len)
{
    if (len != sizeof((frames_ep *)base)->mac)
        return bench_fail(base, BENCH_ERROR, "an Ethernet address has 6 bytes, not %zu", len);
    make_heads((frames_ep *)base, address);
    return BENCH_DONE;
}

static const bench_ops frames_ops = {
    .name = "frames",
    .min_len = 1,
    .max_len = (size_t)8 << 20,
    .address = frames_address,
    .join = frames_join,
    .prepare = frames_prepare,
    .send = frames_send,
    .recv = frames_recv,
    .idle = frames_idle,
    .close = frames_close,
};

/* ---------------------------------------------------------------- opening */

/* Open a packet socket. It is bound later, so that no unfiltered frame arrives. Returns 0, or -1 with errno. The
 * interface's index is left in *about. */
static int open_socket(const char *interface, struct ifreq *about, int *fd)
{
    int one = 1;
    *fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return -1;
    memset(about, 0, sizeof *about);
    snprintf(about->ifr_name, sizeof about->ifr_name, "%s", interface);
    setsockopt(*fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    setsockopt(*fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one,
               sizeof one); /* optional: without it sending is slower, but correct */
    return ioctl(*fd, SIOCGIFINDEX, about);
}

/* Start receiving frames of this type on this interface. Returns 0, or -1 with errno. */
static int bind_socket(int fd, int index, int type)
{
    struct sockaddr_ll name = {.sll_family = AF_PACKET, .sll_protocol = htons((uint16_t)type), .sll_ifindex = index};
    return bind(fd, (struct sockaddr *)(void *)&name, sizeof name);
}

/* Open the ring: N_SLOTS of SLOT_LEN bytes, filled by the kernel in order, shared by mmap. Also reads address and MTU.
 * MAP_POPULATE: the pages are mapped now, so that no run includes page faults. Returns 0, or -1 with errno. */
static int open_ring(frames_ep *ep, const char *interface)
{
    struct ifreq about;
    int version = TPACKET_V2;
    struct tpacket_req req = {BLOCK, N_SLOTS * SLOT_LEN / BLOCK, SLOT_LEN, N_SLOTS};
    if (open_socket(interface, &about, &ep->ring_fd) != 0)
        return -1;
    int index = about.ifr_ifindex;
    if (ioctl(ep->ring_fd, SIOCGIFHWADDR, &about) != 0)
        return -1;
    memcpy(ep->mac, about.ifr_hwaddr.sa_data, 6);
    if (ioctl(ep->ring_fd, SIOCGIFMTU, &about) != 0)
        return -1;
    ep->mtu = (unsigned)about.ifr_mtu < MAX_MTU ? (unsigned)about.ifr_mtu : MAX_MTU;
    if (setsockopt(ep->ring_fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(ep->ring_fd, SOL_PACKET, PACKET_RX_RING, &req, sizeof req) != 0)
        return -1;
    void *ring =
        mmap(NULL, (size_t)N_SLOTS * SLOT_LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ep->ring_fd, 0);
    if (ring == MAP_FAILED)
        return -1;
    ep->ring = ring;
    return bind_socket(ep->ring_fd, index, ETHERTYPE_FRAMES);
}

/* Super-frames are longer than a slot, so they are received by recvmsg from a socket of their own, filtered by port.
 * The filter stands before bind, so every frame in the queue is one of this program. Returns 0, or -1 with errno. */
static int open_long(frames_ep *ep, const char *interface)
{
    struct ifreq about;
    int one = 1, queue = QUEUE / 2; /* the kernel doubles it */
    struct timeval slice = {.tv_usec = BENCH_SLICE_MS * 1000};
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 14 + 9), /* datagrams ... */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 17, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 14 + 20), /* ... from UDP_PORT to UDP_PORT */
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)UDP_PORT << 16 | UDP_PORT, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, 0x40000),
        BPF_STMT(BPF_RET | BPF_K, 0),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (open_socket(interface, &about, &ep->long_fd) != 0 ||
        setsockopt(ep->long_fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) != 0 ||
        setsockopt(ep->long_fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0 ||
        setsockopt(ep->long_fd, SOL_SOCKET, SO_RCVTIMEO, &slice, sizeof slice) != 0)
        return -1;
    /* The first option needs root, even in a private network namespace. The second goes as far as permitted. */
    if (setsockopt(ep->long_fd, SOL_SOCKET, SO_RCVBUFFORCE, &queue, sizeof queue) != 0)
        setsockopt(ep->long_fd, SOL_SOCKET, SO_RCVBUF, &queue, sizeof queue);
    socklen_t len = sizeof queue;
    if (getsockopt(ep->long_fd, SOL_SOCKET, SO_RCVBUF, &queue, &len) != 0)
        return -1;
    ep->queue = (size_t)queue;
    return bind_socket(ep->long_fd, about.ifr_ifindex, ETH_P_IP);
}

BENCH_OPEN(frames)
{
    const char *interface = options->device;
    frames_ep *ep = bench_ep_new(sizeof *ep, &frames_ops, options->polled, error);
    if (!ep)
        return NULL;
    ep->ring_fd = ep->long_fd = -1;
    ep->out = calloc(1, SLOT_LEN);
    if (!ep->out || open_ring(ep, interface) != 0 || open_long(ep, interface) != 0)
        return bench_ep_fail(&ep->ep, error, "cannot open a packet socket on %s: %s", interface,
                             errno == EPERM ? "Permission denied (CAP_NET_RAW): a testbed needs no root"
                                            : strerror(errno));
    /* A super-frame holds as many whole segments as 64 KB of IP and the kernel's limit allow. run and at occupy 8 of
     * its bytes. */
    size_t segments = (65535 - 20 - 8) / (ep->mtu - IP_UDP);
    ep->piece = (segments < MAX_SEGMENTS ? segments : MAX_SEGMENTS) * (ep->mtu - IP_UDP) - 8;
    return &ep->ep;
}
