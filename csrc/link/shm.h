/*
 * shm: processes of one host and one user, through memory that they share. What lies in that memory.
 *
 * Each NIC owns a *segment* (a sealed memfd): a header, the table of its registered regions, and an arena from which
 * viakit_alloc serves. Each pair of NICs shares two *rings* (another memfd), one per direction. Descriptors of all of them travel
 * over a Unix socket whose peer the kernel has proven to be of the same user; there are no names in /dev/shm to guess, and
 * nothing is left when a process dies.
 *
 * A ring is an array of cells of one cache line. A frame takes whole cells:
 *
 *   cell k    | control, 8 bytes | frame bytes 0..55 |      control: 0 empty, else length << 2 | type, stored last
 *   cell k+1  | frame bytes 56..119                  |
 *
 * The receiver polls the control word of the next cell, so a message of up to 24 bytes crosses from core to core as one cache
 * line. It zeroes the first word of each cell it has read (any of them may be the place of a later control word), and
 * now and then publishes how far it has come; the sender looks there only when it runs out of room.
 */
#ifndef VIAKIT_SHM_H
#define VIAKIT_SHM_H

#include <stdint.h>

#include "../base/atomic.h"
#include "link.h"

#define SHM_CELL 64
#define SHM_CELLS 1024 /* per ring: 64 KiB, so that both directions stay in the second-level cache */
#define SHM_MASK (SHM_CELLS - 1)
#define SHM_MAX_PAYLOAD 8192
#define SHM_SHORT_BELOW 1024            /* longer messages may go by reference (via/tx.c) */
#define SHM_MAGIC 0x56696153686d3031ull /* of segments and greetings; its last digits are the layout's version */

#define SHM_CONTROL 8 /* bytes of the control word, before the frame */

enum { SHM_FRAME = 1, SHM_FILLER = 2 }; /* filler: the ring goes on at its beginning */

struct shm_ring {
    uint32_t consumed;  /* cells, free-running; written by the receiver only */
    uint32_t can_fetch; /* the receiver's word: it can read the sender's memory by process_vm_readv */
    uint8_t pad[SHM_CELL - 8];
    uint8_t cells[SHM_CELLS][SHM_CELL];
};

struct shm_rings {
    struct shm_ring to_listener, to_caller;
};

/* First page of a segment. */
struct shm_station {
    uint64_t magic;
    uint64_t arena_offset, arena_len;
    uint64_t arena_address; /* where the owner has mapped the arena */
    uint32_t needs_fence;   /* the owner's kernel has no membarrier: senders must fence */
    uint8_t pad[SHM_CELL - 36];
    uint32_t sleeping; /* the owner sleeps, or is about to: ring its doorbell; on a line of its own */
};

/* A region table entry, as via/internal.h has it; checked there. */
struct shm_region {
    uint64_t address, len;
    uint32_t handle, ptag, rights, users;
    uint8_t rest[32];
};
_Static_assert(sizeof(struct shm_region) == 64, "the same size as struct via_region");

#define SHM_TABLE_OFFSET 4096

struct link_peer {
    struct link_peer *next;
    struct link *link;
    uint8_t address[6];
    uint16_t port;
    int caller; /* we made the connection (and the rings) */
    int alive, greeted;
    int socket, event_fd;
    int pid;       /* as our namespace sees it; 0: not visible, no process_vm_* */
    int can_write; /* process_vm_writev into the peer: 1 yes, 0 no */
    struct shm_rings *rings;
    struct shm_ring *tx, *rx;
    uint32_t tx_at, tx_free_until;          /* next cell to write; cells before this are known to be free */
    uint32_t rx_at, rx_freed, rx_published; /* cells read, zeroed, reported free: free-running */
    const uint64_t *rx_next;                /* control word of the cell at rx_at: all that an idle look reads */
    struct shm_station *station;            /* the peer's segment; NULL until greeted */
    size_t station_len;
    uint64_t arena_offset, arena_len, arena_address; /* its words about it, checked once */
};

struct link {
    struct via_nic *nic;
    uint8_t address[6];
    uint16_t port;
    char name[48];
    int listener, epoll, event_fd, segment_fd;
    int no_map, no_cma, cma_seen;
    struct shm_station *station; /* our segment: peers read it, and might write it; so what we rely on stands here */
    uint64_t arena_offset, arena_len, arena_address;
    size_t segment_len;
    struct shm_allocation *allocations; /* sorted by offset */
    struct link_peer *peers;
    struct link_peer *arriving; /* called, but have not said HELLO */
    uint32_t n_arriving;
    long other_user;          /* who has a NIC of this name, as far as was known ... */
    uint64_t other_user_seen; /* ... then: looking takes long */
};

/* shm_control.c: greeting and leaving */
int shm_listen(struct link *link, const char *name);
int shm_call(struct link *link, uint16_t port, struct link_peer **peer);
void shm_control(struct link *link);
void shm_receive_greeting(struct link_peer *peer);
void shm_explain_absence(struct link *link);
int shm_ports(const struct link *link, uint16_t *ports, int max);
void shm_drop_peer(struct link_peer *peer);
void shm_drop_arriving(struct link *link);

/* shm.c */
int shm_poll_peer(struct link_peer *peer, int budget);
void shm_doorbell(struct link_peer *peer);

#endif
