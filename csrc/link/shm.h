/*
 * shm: processes of one host and one user, connected by shared memory. This file defines the layout of that memory and
 * who may write each part.
 *
 * Each NIC owns a *segment* (a sealed memfd): a header, the table of its registered regions, and an arena from which
 * viakit_alloc serves. Each pair of NICs shares two *rings* (another memfd), one per direction. Their descriptors are
 * passed over a Unix socket. The kernel has verified that both ends belong to the same user. There are no names in
 * /dev/shm to guess, and nothing is left when a process dies.
 *
 *   segment | header, 1 page | region table, 16384 entries of 64 bytes | arena, up to 32 GiB of addresses |
 *             owner, peers     owner, peers count themselves              owner's program; peers write where
 *             clear `sleeping` in and out (users)                         the table grants it (RDMA)
 *
 * The arena is mapped without access (PROT_NONE) in the owner and in its peers. The part in use is made accessible,
 * from the beginning (open_arena). Tools that read all readable memory of a process, such as valgrind's leak check,
 * would otherwise read 32 GiB, and every page that they read would be allocated.
 *
 * A ring is an array of cells of one cache line. A frame occupies whole cells:
 *
 *   cell k    | control, 8 bytes | frame bytes 0..55 |      control: 0 empty, else length << 2 | type, stored last
 *   cell k+1  | frame bytes 56..119                  |
 *
 * The receiver polls the control word of the next cell. A message of up to 24 bytes crosses from core to core as one
 * cache line, because the control word and the frame arrive together. The receiver zeroes the first word of each cell
 * that it has read, because any cell may hold a later control word. From time to time it publishes its position. The
 * sender reads that position only when it runs out of room.
 *
 *     consumed          rx_freed    rx_at             tx_at            tx_free_until = consumed + SHM_CELLS
 *   ...  | not published | read     | frames to read   | free: zeroed    |      all free-running, masked on use
 *          but zeroed
 *
 * Invariant: tx_at - consumed <= SHM_CELLS, and every cell between tx_at and tx_free_until has a zero first word. Hence
 * the receiver never mistakes old bytes for a new control word.
 *
 * Trust: a peer is another process of the same user. It may misbehave, but has no more rights than this process.
 * Anything that it can write is read once, checked, and then used: positions, lengths, the bounds of its arena. State
 * that this NIC relies on is kept in struct link and struct link_peer, which are private. The memory is sealed, so it
 * cannot shrink while it is read.
 */
#ifndef VIAKIT_SHM_H
#define VIAKIT_SHM_H

#include <stdint.h>

#include "base/atomic.h"
#include "base/user.h"
#include "link/link.h"

#define SHM_CELL 64
#define SHM_CELLS 1024 /* per ring: 64 KiB, so that both directions stay in the second-level cache */
#define SHM_MASK (SHM_CELLS - 1)
#define SHM_MAX_PAYLOAD 8192
#define SHM_SHORT_BELOW 4096            /* longer messages may go by reference (via/data/tx.c) */
#define SHM_MAGIC 0x56696153686d3032ull /* in greetings; its last digits are the version of the layout */

#define SHM_CONTROL 8 /* bytes of the control word, before the frame */

enum { SHM_FRAME = 1, SHM_FILLER = 2 }; /* filler: the ring continues at its beginning */

/* One direction of a pair. The receiver writes the first line. The sender writes the cells, and the receiver zeroes
 * them. The two parts are on different lines, because different cores write them. */
struct shm_ring {
    uint32_t consumed;  /* cells, free-running; written by the receiver only */
    uint32_t can_fetch; /* set by the receiver: it can read the sender's memory with process_vm_readv */
    uint8_t pad[SHM_CELL - 8];
    uint8_t cells[SHM_CELLS][SHM_CELL];
};

struct shm_rings {
    struct shm_ring to_listener, to_caller;
};

/* First page of a segment. Any peer can write it, so nothing else depends on it: bounds are in the greeting. */
struct shm_station {
    uint32_t needs_fence; /* the owner's kernel has no membarrier: senders must fence */
    uint8_t pad[SHM_CELL - 4];
    uint32_t sleeping; /* the owner sleeps, or is about to: ring its doorbell. On a line of its own */
};

/* Where the arena lies in a segment, and its address in the owner. */
struct shm_arena {
    uint64_t offset, len, address;
};

/* An entry of the region table, laid out as in via/mem.h, which checks that. The owner writes all of it, `handle` last
 * (release). Peers change only `users`, to announce that they are copying (hold_region in shm_copy.c). */
struct shm_region {
    uint64_t address, len;
    uint32_t handle, ptag, rights, users;
    uint8_t rest[32];
};
_Static_assert(sizeof(struct shm_region) == 64, "the same size as struct via_region");

#define SHM_TABLE_OFFSET 4096
#define SHM_BEFORE_ARENA (SHM_TABLE_OFFSET + 16384 * sizeof(struct shm_region))

/*
 * Another NIC of this station. Only this NIC writes the struct. It is made by a call to the other NIC (caller = 1) or
 * when a call is accepted. It is kept until the NIC closes, alive or not, because VIs hold pointers to it.
 *
 *   called: rings, no station --WELCOME--> greeted: station, doorbell --socket hangs up--> alive = 0: nothing mapped
 *
 * Frames may be put into the rings as soon as these exist. Uses of the peer's segment (doorbell, direct copies) wait
 * until the peer is greeted.
 */
struct link_peer {
    uint8_t address[6];
    uint16_t port;
    struct link_peer *next, *next_departed;
    struct link *link;
    int caller; /* this NIC made the connection (and the rings) */
    int alive, greeted;
    int socket, event_fd;
    int rings_fd;  /* caller only: the rings' descriptor until HELLO is sent, then -1 */
    int pid;       /* in this process's namespace (0: not visible, no process_vm_*) */
    int can_write; /* process_vm_writev into the peer: 1 yes, 0 no */
    struct shm_rings *rings;
    struct shm_ring *tx, *rx;
    uint32_t tx_at, tx_free_until;          /* next cell to write; cells before tx_free_until are known to be free */
    uint32_t rx_at, rx_freed, rx_published; /* cells read, zeroed, reported free: free-running */
    const uint64_t *rx_next;                /* control word of the cell at rx_at: an idle poll reads only this */
    struct shm_station *station;            /* the peer's segment; NULL until greeted */
    size_t station_len;
    uint64_t arena_offset, arena_len, arena_address; /* bounds that the peer reported, checked once */
    uint64_t arena_open;                             /* accessible bytes of the arena, from its beginning */
    uint64_t probe_address;                          /* the caller's address of SHM_MAGIC, as reported by HELLO */
};

/* This NIC's end: sockets, its own segment, and its peers. */
struct link {
    struct link_client *client;
    uint8_t address[6];
    uint16_t port;
    char name[48];
    int listener, epoll, event_fd, segment_fd;
    int delayed_fd; /* timer for delayed greetings (shm_control.c); -1 until one is delayed */
    long delay_ns;  /* its next duration, ns */
    int no_map, no_cma, cma_seen;
    char *stage;                 /* for copies in two steps (shm_copy.c); NULL until the first one */
    struct shm_station *station; /* this NIC's segment. Peers might write it, so the bounds below are private copies */
    uint64_t arena_offset, arena_len, arena_address;
    uint64_t arena_open; /* accessible bytes of the arena, from its beginning */
    size_t segment_len;
    struct shm_allocation *allocations; /* sorted by offset */
    struct link_peer *peers;
    struct link_peer *departed; /* structs of peers that are gone: VIs may point at them until they are destroyed */
    struct link_peer *arriving; /* callers that are not greeted yet */
    uint32_t n_arriving;
    long other_user;          /* the last known other user with a NIC of this name ... */
    uint64_t other_user_seen; /* ... found at this time (ns): the search is slow */
    uint64_t refused_at;      /* ns, 0: never. A NIC that was called belonged to another user, or ... */
    enum vk_user refused_as;  /* ... its user cannot be verified */
};

/* ---- shm_control.c: connecting and disconnecting */
/* Claims a port at the station of that name, and listens. Returns 0 or -errno, explained. */
int shm_listen(struct link *link, const char *name);
/* Connects to the NIC of that port. Frames can be sent to *peer at once. Returns 0; -EHOSTUNREACH: this user has no
 * such NIC; -EAGAIN: its queue of callers is full. */
int shm_call(struct link *link, uint16_t port, struct link_peer **peer);
/* Link operation: callers, greetings, and ends of peers. */
void shm_control(struct link *link);
/* Reads the peer's WELCOME, if it has arrived, and maps its segment. May drop the peer. */
void shm_receive_greeting(struct link_peer *peer);
/* Returns 1, explained, if the NICs of that name belong to another user. */
int shm_explain_absence(struct link *link);
/* Lists the ports of the station's other NICs, at most `max`. Returns their number. */
int shm_ports(const struct link *link, uint16_t *ports, int max);
/* Reports the loss of a peer, and releases all that is shared with it. The struct stays, because VIs may point at it.
 * shm_release_peer only closes and unmaps. */
void shm_drop_peer(struct link_peer *peer);
void shm_release_peer(struct link_peer *peer);
/* Frees the callers that are not greeted yet. */
void shm_drop_arriving(struct link *link);
void shm_hang_up(struct link *link, int socket); /* closes the socket; no effect if it is -1 */

/* ---- shm_greeting.c */
/* HELLO and WELCOME differ only in their descriptors. SEQPACKET keeps them whole. All fields are the sender's
 * statement, to be checked before use. */
struct shm_greeting {
    uint64_t magic;
    uint32_t port;
    uint32_t version;
    uint64_t probe_address; /* address of a word that holds SHM_MAGIC in the sender's own memory */
    struct shm_arena arena; /* not in the segment, where another peer could change it before this one reads it */
};

/* Sends this NIC's greeting with 2 or 3 descriptors, which stay the caller's. Returns 0 or -errno; -ETOOMANYREFS: too
 * many descriptors are under way, try again later. */
int shm_send_greeting(struct link_peer *peer, const int *fds, int n_fds);
/* Reads a greeting with `want` descriptors, which are the caller's then. Returns 1, or 0 if none has arrived, -1 if
 * the peer hung up or sent a malformed one, -ENOMEM if the sender could not map this NIC's memory. */
int shm_read_greeting(int socket, struct shm_greeting *g, int *fds, int want);
/* Replies to a HELLO whose memory could not be mapped here. */
void shm_refuse_no_memory(struct link_peer *peer);
/* Returns whether the descriptor is an eventfd in non-blocking mode. */
int shm_is_doorbell(int fd);
/* Tests whether the memory of the peer's process can be read and written, sets pid and can_write, and reports it to the
 * peer. `address` is the probe_address of its greeting. */
void shm_probe_cma(struct link_peer *peer, uint64_t address);

/* ---- shm_memory.c */
/* Makes this NIC's segment, as large as the address space permits. Returns 0 or -errno. */
int shm_make_segment(struct link *link);
void shm_free_segment(struct link *link);
/* Map the peer's segment, and the rings of the pair, and close the descriptor in any case. Return 0, -ENOMEM if address
 * space does not suffice, -1 if the file is not such memory. */
int shm_map_station(struct link_peer *peer, int fd, const struct shm_arena *arena);
int shm_map_rings(struct link_peer *peer, int fd);
/* Makes the rings of a new pair, sealed, and maps them. Returns their descriptor, for HELLO, or -errno. */
int shm_make_rings(struct link_peer *peer);
void shm_unmap(struct link_peer *peer);
/* Makes the first `until` bytes of an arena of len bytes accessible in this process. *open is the accessible length so
 * far, and is updated. Returns 0 or -errno. */
int shm_open_arena(void *arena, uint64_t len, uint64_t until, uint64_t *open);
/* link operations */
int shm_alloc(struct link *link, size_t len, void **address);
int shm_free(struct link *link, void *address);
void *shm_region_table(struct link *link, size_t len);

/* ---- shm_copy.c: link operations */
int shm_reach(struct link *link, struct link_peer *peer, const void *address, size_t len);
int shm_fetch(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *to, int n_to,
              size_t len);
int shm_place(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
              const struct iovec *from, int n, size_t len);
int shm_take(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
             const struct iovec *to, int n, size_t len);

/* ---- shm.c */
/* Delivers at most `budget` frames of one peer. Returns their number. The peer may be gone afterwards (alive 0). */
int shm_poll_peer(struct link_peer *peer, int budget);
/* Wakes the peer, if it has announced that it sleeps. */
void shm_doorbell(struct link_peer *peer);

#endif
