// relay.c: a switch in user space that delays frames.
//
// It owns one packet socket per port, the ring in which the kernel stores the port's arriving frames, and a queue per port:
//
//   host 0 == port 0 -> [ring 0] -> [queue 0: due, len, frame | due, len, frame | ...] -> port of the destination == host 1
//   host 1 == port 1 -> [ring 1] -> [queue 1: ...                                    ] -> ...
//
// Invariant: a queue's frames are in the order of their arrival, and its head is sent first. So the frames of one host keep
// their order. A queue is a byte buffer that begins again at its start when it is empty, so that an idle relay touches few pages.
// A full queue leaves frames in the ring, and a full ring makes the kernel drop and count them.
//
// Frames carry the kernel's header for offloads (virtio_net_hdr) in and out. A super-frame of TCP therefore crosses the relay
// in one piece, and a checksum that the sender left to its card is completed by the receiver.
//
// A turn of the loop: every ring is emptied into its queue. Then up to BATCH due frames leave. Then the process sleeps until a
// frame arrives, the next one is due, or a socket has room. A frame's delay counts from the kernel's time stamp, so a late turn
// makes frames late only by the time beyond the delay.
//
//   port.full         the head of the ring did not fit: the ring is not polled until the queue has shrunk
//   port.blocked_by   the socket of that port has no room: the queue waits, and keeps its order
//
// Not done: learning of addresses. The plan names the host behind each port, and frames to any other go to all ports.
//
// One thread calls relay_run. Nothing is shared but the counts.

#include "bench/relay.h"

#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/if.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    RING_LEN = 32 << 20,   // memory of a ring, bytes; locked by the kernel, hence the limits
    RINGS_LEN = 128 << 20, // of all rings, so that a testbed of many hosts fits a small machine
    RING_LEAST = 2 << 20,  // but never less: a burst of super-frames
    BLOCK_LEN = 64 << 10,  // contiguous memory, which the kernel must find; larger only for longer slots
    QUEUE_LEN = 64 << 20,  // most bytes that wait in a queue; touched only as far as needed
    BATCH = 32,            // frames sent before the rings are emptied again
    VNET_LEN = sizeof(struct virtio_net_hdr),
};
#define AGE_MAX_NS 10000000000U // an older time of arrival is not believed: the wall clock was set meanwhile

// The head of a frame in a queue. Records begin at multiples of 8 bytes, and are copied out before use.
typedef struct record {
    uint64_t due_ns; // CLOCK_MONOTONIC
    uint32_t len;    // of what follows: the virtio header and the frame
    uint32_t frame_len;
} record;

// One interface of the switch. Zeroed, and fd -1, until open_port.
typedef struct port {
    int fd;
    const uint8_t *host;                  // MAC address behind this port; the plan's
    uint8_t *ring;                        // shared with the kernel
    size_t ring_len, block_len, slot_len; // bytes
    unsigned per_block, n_slots, next;    // `next`: slot that the kernel fills next
    uint8_t *queue;                       // QUEUE_LEN bytes
    size_t head, tail;                    // bytes; records between them wait
    bool full;                            // the next frame did not fit into the queue
    int blocked_by;                       // port whose socket has no room for the head, or -1
} port;

typedef struct relay {
    port ports[RELAY_MAX_PORTS];
    int n;
    uint64_t delay_ns; // from arrival to departure, at least
    relay_counts *counts;
} relay;

// The time of that clock in nanoseconds.
static uint64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000U + (uint64_t)t.tv_nsec;
}

// Counts have one writer, so a plain addition suffices. The store is atomic for readers in other processes. Relaxed: no
// count orders anything else.
static void add(uint64_t *count, uint64_t more)
{
    __atomic_store_n(count, *count + more, __ATOMIC_RELAXED);
}

// A maximum so far. As add(): one writer, and a store that readers see whole.
static void raise_to(uint64_t *count, uint64_t value)
{
    if (value > *count)
        __atomic_store_n(count, value, __ATOMIC_RELAXED);
}

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

static size_t min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}

// Create the ring of a port. Every slot has room for the longest frame, so a wire without super-frames has many more slots.
// They hold what arrives while the relay does not run; a frame waits for its delay in the queue. Returns 0 or an errno.
static int open_ring(port *p, int n_ports)
{
    int version = TPACKET_V2, one = 1;
    if (setsockopt(p->fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) != 0 ||
        setsockopt(p->fd, SOL_PACKET, PACKET_VNET_HDR, &one, sizeof one) != 0)
        return errno;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    p->per_block = (unsigned)(BLOCK_LEN / p->slot_len ? BLOCK_LEN / p->slot_len : 1);
    p->block_len = round_up(p->per_block * p->slot_len, page);
    size_t share = min_size(RING_LEN, RINGS_LEN / (size_t)n_ports);
    unsigned n_blocks = (unsigned)((share < RING_LEAST ? RING_LEAST : share) / p->block_len);
    p->n_slots = n_blocks * p->per_block;
    p->ring_len = n_blocks * p->block_len;
    struct tpacket_req req = {.tp_block_size = (unsigned)p->block_len,
                              .tp_block_nr = n_blocks,
                              .tp_frame_size = (unsigned)p->slot_len,
                              .tp_frame_nr = p->n_slots};
    if (setsockopt(p->fd, SOL_PACKET, PACKET_RX_RING, &req, sizeof req) != 0)
        return errno;
    void *ring = mmap(NULL, p->ring_len, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
    if (ring == MAP_FAILED)
        return errno;
    p->ring = ring;
    return 0;
}

// Open one port: socket, ring, queue, and only then bind. Nothing arrives before the bind, because the socket's protocol
// is 0, so the ring has frames of this interface only. Returns 0 or an errno; close_port undoes what was done.
static int open_port(port *p, const relay_port_plan *plan, int n_ports, uint32_t longest)
{
    p->host = plan->host;
    p->blocked_by = -1;
    p->slot_len = round_up(TPACKET2_HDRLEN + 2 * TPACKET_ALIGNMENT + VNET_LEN + longest, TPACKET_ALIGNMENT);
    p->fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0); // protocol 0: nothing arrives before bind
    if (p->fd < 0)
        return errno;
    int error = open_ring(p, n_ports);
    if (error != 0)
        return error;
    void *queue = mmap(NULL, QUEUE_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (queue == MAP_FAILED)
        return errno;
    p->queue = queue;
    int one = 1; // Linux 4.20; without it outgoing frames are skipped below
    (void)!setsockopt(p->fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_protocol = __builtin_bswap16(ETH_P_ALL)};
    if (__BYTE_ORDER__ == __ORDER_BIG_ENDIAN__)
        address.sll_protocol = ETH_P_ALL;
    address.sll_ifindex = (int)if_nametoindex(plan->name);
    if (address.sll_ifindex == 0 || bind(p->fd, (struct sockaddr *)&address, sizeof address) != 0)
        return errno;
    return 0;
}

// Also for a port that was opened in part, or not at all (fd -1).
static void close_port(port *p)
{
    if (p->ring != NULL)
        munmap(p->ring, p->ring_len);
    if (p->queue != NULL)
        munmap(p->queue, QUEUE_LEN);
    if (p->fd >= 0)
        close(p->fd);
}

// Slot i of the ring. Slots do not cross the end of a block, so blocks may have unused bytes at their end.
static struct tpacket2_hdr *slot_at(const port *p, unsigned i)
{
    return (void *)(p->ring + i / p->per_block * p->block_len + i % p->per_block * p->slot_len);
}

// Append a frame of the ring to the queue; false if there is no room. The virtio header lies in the ring directly in front of
// the frame, at tp_mac - VNET_LEN, and is sent with it.
static bool enqueue(relay *r, port *p, const struct tpacket2_hdr *slot, uint64_t due_ns)
{
    record head = {.due_ns = due_ns, .len = VNET_LEN + slot->tp_snaplen, .frame_len = slot->tp_snaplen};
    size_t len = round_up(sizeof head + head.len, sizeof(uint64_t));
    if (p->head == p->tail)
        p->head = p->tail = 0;
    if (p->tail + len > QUEUE_LEN && p->head > QUEUE_LEN / 2) { // make room at the end: rare, because of the size
        memmove(p->queue, p->queue + p->head, p->tail - p->head);
        p->tail -= p->head;
        p->head = 0;
    }
    if (p->tail + len > QUEUE_LEN)
        return false;
    memcpy(p->queue + p->tail, &head, sizeof head);
    memcpy(p->queue + p->tail + sizeof head, (const uint8_t *)slot + slot->tp_mac - VNET_LEN, head.len);
    p->tail += len;
    raise_to(&r->counts->queued_max, p->tail - p->head);
    return true;
}

// Add what the kernel dropped at a full ring. Reading resets the kernel's number.
static void count_drops(relay *r, const port *p)
{
    struct tpacket_stats stats = {0};
    socklen_t len = sizeof stats;
    if (getsockopt(p->fd, SOL_PACKET, PACKET_STATISTICS, &stats, &len) == 0)
        add(&r->counts->dropped, stats.tp_drops);
}

// Copy the frame of a slot to the queue. Returns false if the queue has no room. Frames that this process sent itself, and
// frames that were cut at the length of a slot, are skipped. The kernel stamps frames with the wall clock, so the time of
// arrival is converted by the frame's age, which a step of that clock would falsify (AGE_MAX_NS).
static bool take(relay *r, port *p, const struct tpacket2_hdr *slot, uint64_t wall, uint64_t now)
{
    const struct sockaddr_ll *from = (const void *)((const uint8_t *)slot + TPACKET_ALIGN(sizeof *slot));
    if (from->sll_pkttype == PACKET_OUTGOING)
        return true;
    if (slot->tp_snaplen < slot->tp_len || slot->tp_snaplen < ETH_HLEN) {
        add(&r->counts->dropped, 1);
        return true;
    }
    uint64_t arrived = (uint64_t)slot->tp_sec * 1000000000U + slot->tp_nsec;
    uint64_t age = wall > arrived && wall - arrived < AGE_MAX_NS ? wall - arrived : 0;
    return enqueue(r, p, slot, now - age + r->delay_ns);
}

// Move the frames of a port from the ring to the queue. At most one turn of the ring, so that no port starves the others.
static void empty_ring(relay *r, port *p)
{
    uint64_t wall = clock_ns(CLOCK_REALTIME), now = clock_ns(CLOCK_MONOTONIC);
    unsigned n = 0;
    for (p->full = false; n < p->n_slots; n++) {
        struct tpacket2_hdr *slot = slot_at(p, p->next);
        // Acquire: the frame is read only after the kernel has handed the slot over.
        if ((__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) == 0)
            break;
        if (!take(r, p, slot, wall, now)) {
            p->full = true;
            break;
        }
        // Release: the kernel overwrites the slot only after the frame has been copied.
        __atomic_store_n(&slot->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
        p->next = (p->next + 1) % p->n_slots;
    }
    // The kernel drops frames only at a full ring. Two calls empty one, so the longer of them moves half of its slots.
    if (p->full || n >= p->n_slots / 2)
        count_drops(r, p);
}

// Send one frame to one port. Returns false if its socket has no room. A frame that the interface refuses is lost, and counted,
// as a switch loses it: the host may have ended (ENETDOWN), or the frame may be too long for its MTU.
static bool send_to(relay *r, int to, const uint8_t *data, size_t len)
{
    for (;;) {
        if (send(r->ports[to].fd, data, len, MSG_DONTWAIT) >= 0)
            return true;
        if (errno == EAGAIN)
            return false;
        if (errno != EINTR) {
            add(&r->counts->dropped, 1);
            return true;
        }
    }
}

// Send the head of a queue to the port of its destination, or to all others. Returns false if it has to wait.
static bool forward(relay *r, int from, const record *head, const uint8_t *data)
{
    const uint8_t *destination = data + VNET_LEN;
    for (int i = 0; i < r->n; i++) {
        if (i == from || memcmp(r->ports[i].host, destination, RELAY_ADDRESS_LEN) != 0)
            continue;
        if (!send_to(r, i, data, head->len)) {
            r->ports[from].blocked_by = i;
            return false;
        }
        return true;
    }
    for (int i = 0; i < r->n; i++) // a group or an unknown address; a port without room misses it
        if (i != from && !send_to(r, i, data, head->len))
            add(&r->counts->dropped, 1);
    return true;
}

// Send up to BATCH frames that are due, the earliest first. Returns when the next one is due, UINT64_MAX if none waits. A port
// whose head is blocked is left out: its frames behind the head must not overtake it. The ports are few, so each turn looks at
// all of them.
static uint64_t send_due(relay *r)
{
    for (int n = 0;; n++) {
        int first = -1;
        record head = {.due_ns = UINT64_MAX};
        for (int i = 0; i < r->n; i++) {
            const port *p = &r->ports[i];
            if (p->head == p->tail || p->blocked_by >= 0)
                continue;
            record one;
            memcpy(&one, p->queue + p->head, sizeof one);
            if (one.due_ns < head.due_ns) {
                head = one;
                first = i;
            }
        }
        uint64_t now = clock_ns(CLOCK_MONOTONIC);
        if (first < 0 || head.due_ns > now || n == BATCH)
            return head.due_ns;
        port *p = &r->ports[first];
        if (!forward(r, first, &head, p->queue + p->head + sizeof head))
            continue;
        p->head += round_up(sizeof head + head.len, sizeof(uint64_t));
        add(&r->counts->frames, 1);
        add(&r->counts->bytes, head.frame_len);
        add(&r->counts->late_ns, now - head.due_ns);
        raise_to(&r->counts->late_max_ns, now - head.due_ns);
    }
}

// Sleep until a frame arrives, one is due, or a socket has room again. Returns 0 or an error.
static int await(relay *r, uint64_t due_ns)
{
    struct pollfd fds[RELAY_MAX_PORTS];
    for (int i = 0; i < r->n; i++)
        fds[i] = (struct pollfd){.fd = r->ports[i].fd, .events = r->ports[i].full ? 0 : POLLIN};
    for (int i = 0; i < r->n; i++)
        if (r->ports[i].blocked_by >= 0)
            fds[r->ports[i].blocked_by].events |= POLLOUT;
    uint64_t now = clock_ns(CLOCK_MONOTONIC), left = due_ns > now ? due_ns - now : 0;
    struct timespec timeout = {.tv_sec = (time_t)(left / 1000000000U), .tv_nsec = (long)(left % 1000000000U)};
    if (ppoll(fds, (nfds_t)r->n, due_ns == UINT64_MAX ? NULL : &timeout, NULL) < 0)
        return errno == EINTR ? 0 : errno;
    for (int i = 0; i < r->n; i++) {
        int by = r->ports[i].blocked_by;
        if (by >= 0 && fds[by].revents & (POLLOUT | POLLERR))
            r->ports[i].blocked_by = -1;
        if (fds[i].revents & POLLERR) { // reading the error clears it; ENETDOWN: the host has ended
            int error = 0;
            socklen_t len = sizeof error;
            getsockopt(r->ports[i].fd, SOL_SOCKET, SO_ERROR, &error, &len);
        }
    }
    return 0;
}

// See relay.h. Every wake-up comes from ppoll, whose time-out has nanoseconds; the timer slack of the thread is set to 1 ns,
// and stays so, because the thread has no other purpose.
int relay_run(const relay_port_plan *ports, int n_ports, uint64_t delay_ns, uint32_t longest, relay_counts *counts,
              void (*ready)(void *context), void *context)
{
    relay r = {.n = n_ports, .delay_ns = delay_ns, .counts = counts};
    int error = n_ports < 1 || n_ports > RELAY_MAX_PORTS ? EINVAL : 0;
    if (error != 0)
        return error;
    for (int i = 0; i < n_ports; i++)
        r.ports[i].fd = -1;
    for (int i = 0; i < n_ports && error == 0; i++)
        error = open_port(&r.ports[i], &ports[i], n_ports, longest);
    if (error == 0) {
        prctl(PR_SET_TIMERSLACK, 1UL); // the default makes each wake-up 50 us late
        ready(context);
    }
    while (error == 0) {
        for (int i = 0; i < n_ports; i++)
            empty_ring(&r, &r.ports[i]);
        error = await(&r, send_due(&r));
    }
    for (int i = 0; i < n_ports; i++)
        close_port(&r.ports[i]);
    return error;
}
