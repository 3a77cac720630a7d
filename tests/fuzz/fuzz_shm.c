/*
 * The shared-memory peer: what lies in the ring that it writes, in the words that it publishes about its own memory,
 * and in the requests that make us look there. The peer is made by hand, of ordinary memory with guards around it; the
 * data path of the link is the real one.
 *
 *   operation   cell: where, control word, first bytes | consumed | fetch: address, length |
 *               place: handle, address, length | poll | send
 *
 * Inaccessible pages lie around the ring and the segment: a read or write outside ends the program.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/atomic.h"
#include "hollow.h"
#include "link/link.h"
#include "link/shm.h"
#include "via/data/data.h"
#include "via/nic.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

#define ARENA 16384u
#define TABLE (64 * sizeof(struct shm_region))
#define SEGMENT (SHM_TABLE_OFFSET + TABLE + ARENA)

static struct hollow h;
static struct link link_of_ours;
static struct shm_rings *rings;
static uint8_t *segment;
static uint8_t target[4096];

#define WHOLE(len) (((len) + 4095) & ~(size_t)4095)

/* Between two inaccessible pages. */
static void *pages(size_t len)
{
    size_t whole = WHOLE(len);
    uint8_t *p = mmap(NULL, whole + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    HOLLOW_CHECK(p != MAP_FAILED && mprotect(p + 4096, whole, PROT_READ | PROT_WRITE) == 0, "no memory");
    return p + 4096;
}

/* As shm_control.c leaves it after the greeting. */
static void reset(struct link_peer *p)
{
    int socket = p->socket, event_fd = p->event_fd;
    /* Only the part of the rings that an input can reach: it writes up to 255 cells ahead, and a send clears the cell
     * behind it. */
    uint32_t rx = p->rx_at + 256 < SHM_CELLS ? p->rx_at + 256 : SHM_CELLS,
             tx = p->tx_at + 64 < SHM_CELLS ? p->tx_at + 64 : SHM_CELLS;
    memset(&rings->to_caller, 0, offsetof(struct shm_ring, cells) + tx * sizeof *rings->to_caller.cells);
    memset(&rings->to_listener, 0, offsetof(struct shm_ring, cells) + rx * sizeof *rings->to_listener.cells);
    memset(segment, 0, SHM_TABLE_OFFSET + TABLE);
    *p = (struct link_peer){.link = &link_of_ours,
                            .alive = 1,
                            .greeted = 1,
                            .socket = socket,
                            .event_fd = event_fd,
                            .rings = rings,
                            .tx = &rings->to_caller,
                            .rx = &rings->to_listener,
                            .tx_free_until = SHM_CELLS,
                            .station = (struct shm_station *)(void *)segment,
                            .station_len = SEGMENT,
                            .arena_offset = SHM_TABLE_OFFSET + TABLE,
                            .arena_len = ARENA,
                            .arena_address = 0x7000000000u};
    p->rx_next = (const uint64_t *)(const void *)p->rx->cells[0];
}

static void make_peer(void)
{
    struct link_peer *p = calloc(1, sizeof *p);
    int pair[2];
    HOLLOW_CHECK(p && socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0, "no socket");
    close(pair[1]);
    p->socket = pair[0];
    p->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    rings = pages(sizeof *rings);
    segment = pages(SEGMENT);
    reset(p);
    link_of_ours.peers = p;
    link_of_ours.departed = NULL;
}

/* The peer cannot be made by the greeting, for that is another process's: only the data path is driven here. */
static void set_up(void)
{
    viakit_nic_options o;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.no_thread = 1;
    hollow_set_up_begins();
    hollow_open(&h, HOLLOW_SHARED, &o);
    link_of_ours.client = &h.nic->link_client;
    link_of_ours.no_cma = 1; /* no system call: what process_vm_readv may reach is the kernel's affair */
    link_of_ours.epoll = epoll_create1(EPOLL_CLOEXEC);
    make_peer();
    hollow_set_up_ends();
}

/* n bytes of the input, the lowest first; what is missing is 0. */
static uint64_t take(const uint8_t **p, const uint8_t *end, int n)
{
    uint64_t v = 0;
    for (int i = 0; i < n && *p < end; i++)
        v |= (uint64_t)*(*p)++ << 8 * i;
    return v;
}

/* An address near the beginning or the end of what the peer calls its arena, or anywhere. */
static uint64_t address(const uint8_t **p, const uint8_t *end)
{
    uint64_t how = take(p, end, 1), offset = take(p, end, 2);
    return (how & 2   ? take(p, end, 8)
            : how & 1 ? 0x7000000000u + ARENA
                      : 0x7000000000u) +
           (uint64_t)(int64_t)(int16_t)offset;
}

/* A cell of the peer's ring, near where we read: its control word, whole or in parts, and 32 bytes of what a message
 * would have. */
static void write_cell(struct link_peer *peer, const uint8_t **p, const uint8_t *end)
{
    uint32_t where = (uint32_t)take(p, end, 1), how = (uint32_t)take(p, end, 1);
    uint8_t *cell = peer->rx->cells[(peer->rx_at + where) & SHM_MASK];
    uint64_t control = how & 4 ? take(p, end, 8) : take(p, end, 2) << 2 | (how & 3);
    for (int i = 8; i < 40 && *p < end && how & 8; i++)
        cell[i] = *(*p)++;
    memcpy(cell, &control, sizeof control);
}

/* As if a message of the peer's had named that address: fetched, or stored into by place(), whose entry in the peer's
 * table of regions is made up, too. */
static void copy(struct link_peer *peer, const uint8_t **p, const uint8_t *end, int out)
{
    uint64_t at = address(p, end), len = take(p, end, 2) % (sizeof target + 1);
    struct iovec iov[2] = {{target, len / 3}, {target + len / 3, len - len / 3}};
    if (!out) {
        link_shm.fetch(&link_of_ours, peer, at, iov, 2, len);
        return;
    }
    uint32_t handle = (uint32_t)take(p, end, 3);
    struct shm_region *r = (struct shm_region *)(void *)(segment + SHM_TABLE_OFFSET) + handle % 64;
    *r = (struct shm_region){
        .address = address(p, end), .len = take(p, end, 2), .handle = handle, .ptag = 1, .rights = 3};
    if (len)
        link_shm.place(&link_of_ours, peer, handle, 1, at, iov, 2, len);
    HOLLOW_CHECK(r->users == 0, "still holding region %x", handle);
}

/* Fills our ring to the peer, who may have said nonsense about what it has consumed. */
static void send_frames(struct link_peer *peer, uint32_t n)
{
    struct link_frame f;
    struct iovec iov = {target, 200};
    memset(&f, 0, sizeof f);
    f.header_len = sizeof f.header;
    f.payload_len = 200;
    f.n_iov = 1;
    f.iov = &iov;
    while (n-- && link_shm.send(&link_of_ours, peer, &f, 1) == 1) {}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    const uint8_t *p = data, *end = data + len;
    if (h.nic == NULL)
        set_up();
    hollow_input_begins();
    struct link_peer *peer = link_of_ours.peers;
    for (int n = 0; p < end && n < 40 && peer->alive; n++)
        switch (take(&p, end, 1) & 7) {
        case 0:
        case 1:
        case 2:
            write_cell(peer, &p, end);
            break;
        case 3:
            /* Free running, so any number may stand there. */
            vk_store_relaxed(&peer->tx->consumed, (uint32_t)take(&p, end, 4));
            break;
        case 4:
            copy(peer, &p, end, 0);
            break;
        case 5:
            copy(peer, &p, end, 1);
            break;
        case 6:
            send_frames(peer, (uint32_t)take(&p, end, 1));
            break;
        default:
            link_shm.poll(&link_of_ours, 64);
        }
    hollow_input_leaves(); /* a peer that was given up is freed and made anew: the heap is no measure here */
    via_drop_deferred(h.nic, NULL);
    if (peer->alive)
        reset(peer);
    else { /* its memory is unmapped with it */
        munmap((uint8_t *)rings - 4096, 4096), munmap(segment - 4096, 4096);
        munmap((uint8_t *)rings + WHOLE(sizeof *rings), 4096), munmap(segment + WHOLE(SEGMENT), 4096);
        free(peer);
        make_peer();
    }
    return 0;
}
