/*
 * shm: processes of one host and one user, through memory that they share. What lies in that memory, and who may
 * write it.
 *
 * Each NIC owns a *segment* (a sealed memfd): a header, the table of its registered regions, and an arena from which
 * viakit_alloc serves. Each pair of NICs shares two *rings* (another memfd), one per direction. Descriptors of all of
 * them travel over a Unix socket whose peer the kernel has proven to be of the same user; there are no names in
 * /dev/shm to guess, and nothing is left when a process dies.
 *
 *   segment | header, 1 page | region table, 16384 entries of 64 bytes | arena, up to 32 GiB of addresses |
 *             owner; peers     owner; peers count themselves              owner's program; peers write where
 *             clear `sleeping` in and out (users)                         the table grants it (RDMA)
 *
 * A ring is an array of cells of one cache line. A frame takes whole cells:
 *
 *   cell k    | control, 8 bytes | frame bytes 0..55 |      control: 0 empty, else length << 2 | type, stored last
 *   cell k+1  | frame bytes 56..119                  |
 *
 * The receiver polls the control word of the next cell, so a message of up to 24 bytes crosses from core to core as
 * one cache line: the word that says "here it is" and what it is about arrive together. It zeroes the first word of
 * each cell it has read (any of them may be the place of a later control word), and now and then publishes how far it
 * has come; the sender looks there only when it runs out of room.
 *
 *     consumed         rx_freed    rx_at             tx_at            tx_free_until = consumed + SHM_CELLS
 *   ...  | zeroed, not told | read  | frames to read   | free: zeroed    |      all free-running, masked on use
 *
 * Invariant: tx_at - consumed <= SHM_CELLS, and every cell between tx_at and tx_free_until has a zero first word. So
 * the receiver can never take old bytes for a new control word.
 *
 * Trust: a peer is another process of the same user, which may be mad but not stronger than we are. Whatever it can
 * write is read once, checked and then used (positions, lengths, its words about its arena); what we rely on
 * ourselves stands in struct link and struct link_peer, which are ours alone. The memory is sealed, so it cannot
 * shrink under a reader.
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

/* One direction of a pair. The first line is the receiver's to write, the cells are the sender's (and the receiver's
 * to zero). Two lines, for the two are written by different cores. */
struct shm_ring {
    uint32_t consumed;  /* cells, free-running; written by the receiver only */
    uint32_t can_fetch; /* the receiver's word: it can read the sender's memory by process_vm_readv */
    uint8_t pad[SHM_CELL - 8];
    uint8_t cells[SHM_CELLS][SHM_CELL];
};

struct shm_rings {
    struct shm_ring to_listener, to_caller;
};

/* First page of a segment. Written by the owner before any peer has it, and never again but for `sleeping`. */
struct shm_station {
    uint64_t magic;
    uint64_t arena_offset, arena_len;
    uint64_t arena_address; /* where the owner has mapped the arena */
    uint32_t needs_fence;   /* the owner's kernel has no membarrier: senders must fence */
    uint8_t pad[SHM_CELL - 36];
    uint32_t sleeping; /* the owner sleeps, or is about to: ring its doorbell; on a line of its own */
};

/* A region table entry, as via/internal.h has it; checked there. The owner writes all of it, `handle` last (release);
 * peers change `users` only, to say that they are copying (hold_region in shm.c). */
struct shm_region {
    uint64_t address, len;
    uint32_t handle, ptag, rights, users;
    uint8_t rest[32];
};
_Static_assert(sizeof(struct shm_region) == 64, "the same size as struct via_region");

#define SHM_TABLE_OFFSET 4096

/*
 * Another NIC of our station. Only we write here. Made by a call (caller = 1) or by answering one, and kept until the
 * NIC closes, alive or not: VIs hold pointers to it.
 *
 *   called: rings, no station --WELCOME--> greeted: station, doorbell --socket hangs up--> alive = 0: nothing mapped
 *
 * Frames may be put into the rings as soon as there are any; what needs the peer's segment (doorbell, direct copies)
 * waits until it is greeted.
 */
struct link_peer {
    struct link_peer *next, *next_departed;
    struct link *link;
    uint8_t address[6];
    uint16_t port;
    int caller; /* we made the connection (and the rings) */
    int alive, greeted;
    int socket, event_fd;
    int rings_fd;  /* of a caller: what HELLO hands over, until it is sent; then -1 */
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
    uint64_t probe_address;                          /* of who called: where HELLO says that SHM_MAGIC stands */
};

/* This NIC's end: sockets, its own segment, and whom it knows. */
struct link {
    struct via_nic *nic;
    uint8_t address[6];
    uint16_t port;
    char name[48];
    int listener, epoll, event_fd, segment_fd;
    int owed_fd;  /* timer: somebody is owed a greeting (shm_control.c); -1 until that happens */
    long owed_ns; /* how long it runs */
    int no_map, no_cma, cma_seen;
    struct shm_station *station; /* our segment: peers read it, and might write it; so what we rely on stands here */
    uint64_t arena_offset, arena_len, arena_address;
    size_t segment_len;
    struct shm_allocation *allocations; /* sorted by offset */
    struct link_peer *peers;
    struct link_peer *departed; /* the structs of those that are gone: VIs may point at them until they are destroyed */
    struct link_peer *arriving; /* called, but are not greeted yet */
    uint32_t n_arriving;
    long other_user;          /* who has a NIC of this name, as far as was known ... */
    uint64_t other_user_seen; /* ... then: looking takes long */
};

/* shm_control.c: greeting and leaving */
int shm_listen(struct link *link, const char *name);
int shm_call(struct link *link, uint16_t port, struct link_peer **peer);
void shm_control(struct link *link);
void shm_receive_greeting(struct link_peer *peer);
int shm_explain_absence(struct link *link);
int shm_ports(const struct link *link, uint16_t *ports, int max);
void shm_drop_peer(struct link_peer *peer);
void shm_drop_arriving(struct link *link);
void shm_hang_up(struct link *link, int socket); /* closes it; nothing if it is -1 */

/* shm.c */
int shm_poll_peer(struct link_peer *peer, int budget);
void shm_doorbell(struct link_peer *peer);

#endif
