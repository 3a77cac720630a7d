/*
 * The data path of the shm link: rings, doorbells, direct copies, and the arena. See shm.h for what lies where, and
 * shm_control.c for how NICs meet. Everything here is called by the NIC's owner.
 *
 * Three ways for a message, from cheap to dear (via/tx.c chooses by its length and where it lies):
 *
 *   ring        copied into cells by the sender and out of them by the receiver; below 1 KiB always
 *   mapped      one copy by one side, straight between the programs' memory, where it is in an arena both have mapped
 *   CMA         the same by process_vm_readv/writev ("cross-memory attach"), for any memory, where the kernel allows it
 *
 * Order: within a ring, a frame is there before its control word (release), and the receiver reads the control word
 * first (acquire). A word of the peer's segment and a cell of a ring have no order between them but what is said at
 * the place.
 *
 * Sleeping: a receiver sets `sleeping`, has the kernel run a barrier on all processes that use viakit (membarrier),
 * and looks at its rings once more. A sender stores its frame and then looks at `sleeping`; it needs no fence of its
 * own for that. Either the receiver sees the frame or the sender sees the flag. (This is Dekker's store-then-load
 * pattern: one full fence on each side would do as well, and would cost each sender some 20 ns per message for the
 * sake of a sleeper that is seldom there.)
 */
#include "shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>

#include "../base/cancel.h"
#include "../base/copy.h"
#include "../base/files.h"
#include "frame.h"

#if VK_TSAN
#define ARENA_BYTES (256ull << 20) /* ThreadSanitizer shadows every mapped byte */
#else
#define ARENA_BYTES (32ull << 30) /* address space, not memory: pages exist once touched */
#endif
#define LEAST_ARENA (16ull << 20)
#define SHARE_OF_SPACE 64 /* an arena takes at most this part of the address space that a limit leaves */
/* The unit of the arena; also that of the holes which give_back() punches. */
#define PAGE 4096ull

/* ---------------------------------------------------------------- sending */

#if defined(__x86_64__) && !VK_TSAN
#include <emmintrin.h>
/* Written once, before main() and before any thread; only read afterwards. */
static int store_16; /* 16-byte stores are whole */

__attribute__((constructor)) static void look_at_processor(void)
{
    __builtin_cpu_init();
    store_16 = __builtin_cpu_supports("avx");
}
#endif

/* Wakes the peer if it sleeps: of several senders one takes the flag away and makes the system call. The write cannot
 * block (is_doorbell in shm_control.c), and a full counter is a rung bell. */
void shm_doorbell(struct link_peer *peer)
{
    uint64_t one = 1;
    if (peer->station == NULL || !vk_exchange(&peer->station->sleeping, 0))
        return;
    ssize_t written = vk_write(peer->event_fd, &one, sizeof one);
    (void)written;
    LINK_COUNT(peer->link->nic, doorbells, 1);
    LINK_COUNT(peer->link->nic, system_calls, 1);
}

static inline uint32_t cells_for(size_t frame_len)
{
    /* The control word is in the first cell only: what follows lies in one piece, across cells. */
    return (uint32_t)((frame_len + SHM_CONTROL + SHM_CELL - 1) / SHM_CELL);
}

/* n cells in a row, from peer->tx_at on. NULL: no room. Puts a filler over the end of the ring. Nothing is taken yet
 * but the filler: the caller moves tx_at when it has stored its control word. The longest frame with its filler needs
 * 263 cells, and at least 769 are told free when the receiver is through (free_cells), so whoever waits here is not
 * waiting for ever. */
static inline uint8_t *reserve(struct link_peer *peer, uint32_t n)
{
    uint32_t to_end = SHM_CELLS - (peer->tx_at & SHM_MASK), need = n > to_end ? n + to_end : n;
    if (vk_unlikely((int32_t)(peer->tx_free_until - peer->tx_at) < (int32_t)need)) {
        /* acquire: the receiver has zeroed the cells that it calls consumed */
        uint32_t until = vk_load_acquire(&peer->tx->consumed) + SHM_CELLS, room = until - peer->tx_at;
        if (room < need || room > SHM_CELLS) /* more than there is: the peer writes nonsense, which is not remembered */
            return NULL;
        peer->tx_free_until = until;
    }
    /* release, though nothing is handed over with a filler: the cells behind it must not seem to come first. */
    if (vk_unlikely(n > to_end)) {
        vk_store_release((uint64_t *)(void *)peer->tx->cells[peer->tx_at & SHM_MASK],
                         (uint64_t)to_end << 2 | SHM_FILLER);
        peer->tx_at += to_end;
    }
    return peer->tx->cells[peer->tx_at & SHM_MASK];
}

/* Header and control word, when everything behind them is there; the control word last. The receiver spins on this
 * very line and takes it away between any two of our stores, so there should be few of them.
 *
 *    to[0] control | to[1..4] header, 4 words | to[5..7] the first 24 bytes of block or payload: there already */
static inline void store_header(uint8_t *cell, uint64_t control, const uint64_t header[WIRE_WORDS])
{
    uint64_t *to = (uint64_t *)(void *)cell;
    to[4] = header[3];
#if defined(__x86_64__) && !VK_TSAN
    /* Aligned 16-byte stores are not torn by processors that have AVX, and x86 keeps stores in order. */
    if (vk_likely(store_16)) {
        vk_compiler_barrier();
        _mm_store_si128((__m128i *)(void *)cell + 1, _mm_set_epi64x((long long)header[2], (long long)header[1]));
        vk_compiler_barrier();
        _mm_store_si128((__m128i *)(void *)cell, _mm_set_epi64x((long long)header[0], (long long)control));
        return;
    }
#endif
    /* Elsewhere words in any order, but for the last. */
    to[3] = header[2];
    to[2] = header[1];
    to[1] = header[0];
    vk_store_release(&to[0], control); /* the frame is there before its control word is */
}

/* A frame of any form, payload gathered from its pieces. 1 stored, 0 no room. */
static inline int send_one(struct link *link, struct link_peer *peer, const struct link_frame *f)
{
    size_t len = f->header_len + f->payload_len;
    uint32_t n = cells_for(len);
    uint64_t header[WIRE_WORDS];
    uint8_t *cell = reserve(peer, n);
    if (vk_unlikely(cell == NULL))
        return 0;
    memcpy(header, &f->header, sizeof header);
    link_lay_out_body(cell + SHM_CONTROL + sizeof header, f);
    vk_compiler_barrier();
    store_header(cell, (uint64_t)len << 2 | SHM_FRAME, header);
    peer->tx_at += n;
    link_count_copied(link->nic, f->payload_len);
    return 1;
}

/* After frames were stored: is the receiver asleep? A relaxed load is enough. If it finds 0, the fence that the
 * receiver's membarrier has this processor run comes after it; that fence makes our stores, which stand before the
 * load, visible, and only then does the receiver look at its rings. */
static inline void wake_receiver(struct link_peer *peer)
{
    if (vk_unlikely(peer->station == NULL))
        return; /* not greeted yet: HELLO itself wakes it */
    if (vk_unlikely(peer->station->needs_fence))
        vk_fence_full(); /* our frame before our look at sleeping */
    vk_compiler_barrier();
    if (vk_unlikely(vk_load_relaxed(&peer->station->sleeping)))
        shm_doorbell(peer);
}

/* The commonest message: header in registers, a few bytes of payload, one line of cache. What send_one does, without
 * its loops. 1 taken, 0 no room. A dead peer takes everything: its end is told by link_peer_lost, not by the frames. */
static int shm_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                          const void *payload, size_t len)
{
    const size_t header_len = sizeof(struct wire_header);
    if (vk_unlikely(!peer->alive))
        return 1;
    uint32_t n = cells_for(header_len + len);
    uint8_t *cell = reserve(peer, n);
    if (vk_unlikely(cell == NULL))
        return 0;
    vk_copy_short(cell + SHM_CONTROL + header_len, payload, len);
    vk_compiler_barrier();
    store_header(cell, (uint64_t)(header_len + len) << 2 | SHM_FRAME, header);
    peer->tx_at += n;
    wake_receiver(peer);
    /* The next cell's line lies dirty in the receiver's cache, for it zeroed it. Fetching it now, while nobody
     * waits, leaves the next send with an invalidation instead of a transfer. */
    __builtin_prefetch(peer->tx->cells[peer->tx_at & SHM_MASK], 1);
    link_count_copied(link->nic, len);
    return 1;
}

/* Link operation. As many as find room, in order; one look at `sleeping` for all of them, behind the last. */
static int shm_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int sent = 0;
    if (vk_unlikely(!peer->alive))
        return n; /* it is gone; the control socket has told, or will */
    while (sent < n && send_one(link, peer, &frames[sent]))
        sent++;
    wake_receiver(peer);
    return sent ? sent : -EAGAIN;
}

/* ---------------------------------------------------------------- receiving */

/* Cells that were read become free: their first words are zeroed, and now and then the sender is told. This is not
 * done as they are read, but when there is nothing to read (or much to free): stores become visible in order, and an
 * answer would have to wait until the line of the question had been fetched back for writing. */
static void free_cells(struct link_peer *peer)
{
    for (; peer->rx_freed != peer->rx_at; peer->rx_freed++)
        vk_store_relaxed((uint64_t *)(void *)peer->rx->cells[peer->rx_freed & SHM_MASK], 0);
    if (peer->rx_at - peer->rx_published >= SHM_CELLS / 4) {
        peer->rx_published = peer->rx_at;
        vk_store_release(&peer->rx->consumed, peer->rx_at); /* after the zeroes */
    }
}

/* Delivers what lies in one ring, at most budget frames (fillers count too). Returns their number. The frame is
 * delivered where it lies; the sender may change it meanwhile (link_deliver reads each field once), but it cannot be
 * overwritten by later frames, for its cells are not free before we say so. Delivering may end the peer. */
int shm_poll_peer(struct link_peer *peer, int budget)
{
    struct shm_ring *ring = peer->rx;
    int n = 0;
    while (n < budget) {
        uint8_t *cell = ring->cells[peer->rx_at & SHM_MASK];
        uint64_t control = vk_load_acquire((uint64_t *)(void *)cell);
        if (vk_likely(control == 0))
            break;
        uint32_t cells, to_end = SHM_CELLS - (peer->rx_at & SHM_MASK);
        if (vk_likely((control & 3) == SHM_FRAME)) {
            uint64_t len = control >> 2;
            cells = cells_for(len);
            if (vk_unlikely(len > SHM_CELLS * SHM_CELL || cells > to_end)) { /* nonsense: such a peer is given up */
                LINK_COUNT(peer->link->nic, dropped_malformed, 1);
                shm_drop_peer(peer);
                return n;
            }
            link_deliver(peer->link->nic, peer->address, peer, cell + SHM_CONTROL, len);
            if (vk_unlikely(!peer->alive))
                return n + 1; /* dropped on the way: the ring is no longer mapped */
        } else
            cells = to_end;
        peer->rx_at += cells;
        peer->rx_next = (const uint64_t *)(const void *)ring->cells[peer->rx_at & SHM_MASK];
        if (vk_unlikely(peer->rx_at - peer->rx_freed >= SHM_CELLS / 8))
            free_cells(peer);
        n++;
    }
    return n;
}

/* All rings in turn: one load each while nothing is there. rx_next points at a zero when a peer is dead, so the dead
 * need no test. */
static int shm_poll(struct link *link, int budget)
{
    int n = 0;
    for (struct link_peer *p = link->peers; p; p = p->next) {
        if (vk_unlikely(vk_load_relaxed(p->rx_next)))
            n += shm_poll_peer(p, budget);
        else if (vk_unlikely(p->rx_freed != p->rx_at))
            free_cells(p);
    }
    return n;
}

/* Link operation: about to sleep. 1 if something is there already; the flag then stays set until disarm, at worst
 * for a bell in vain. This is the receiver's half of the pattern at the top of the file; wake_receiver() is the
 * sender's. */
static int shm_arm(struct link *link)
{
    vk_store_release(&link->station->sleeping, 1);
    via_membarrier_global(); /* the flag before our look at the rings, on every processor */
    for (struct link_peer *p = link->peers; p; p = p->next)
        if (p->alive && vk_load_acquire((uint64_t *)(void *)p->rx->cells[p->rx_at & SHM_MASK]))
            return 1;
    return 0;
}

/* Link operation: awake again. */
static void shm_disarm(struct link *link)
{
    uint64_t count;
    /* always: a sender that saw the flag may ring late, and an event left over would end every later sleep at once */
    vk_store_release(&link->station->sleeping, 0);
    ssize_t got = vk_read(link->event_fd, &count, sizeof count);
    (void)got;
}

/* ---------------------------------------------------------------- direct copies */

/* Where the peer's [address, address+len) is mapped here; NULL if it is not in its arena. An address below the arena
 * makes an offset that has wrapped, and so is too large; `len > arena_len - offset` cannot overflow, as offset + len
 * could. */
static void *mapped(const struct link_peer *peer, uint64_t address, uint64_t len)
{
    uint64_t offset = address - peer->arena_address;
    if (peer->link->no_map || offset > peer->arena_len || len > peer->arena_len - offset)
        return NULL;
    return (char *)peer->station + peer->arena_offset + offset;
}

/* Link operation: how the peer could get at our memory itself. can_fetch is the peer's own word in the ring that it
 * reads. Relaxed: it is a hint by which tx.c chooses, and a wrong one makes a message fail or go by frames, nothing
 * worse. */
static int shm_reach(struct link *link, struct link_peer *peer, const void *address, size_t len)
{
    uint64_t offset = (uint64_t)(uintptr_t)address - link->arena_address;
    if (!link->no_map && offset <= link->arena_len && len <= link->arena_len - offset)
        return 1;
    return !link->no_cma && vk_load_relaxed(&peer->tx->can_fetch) ? 2 : 0;
}

/* Link operation: copies len bytes from the peer's memory into pieces of ours. Through the mapping if they lie in the
 * peer's arena, else by the kernel, 64 pieces per call. -ENOTCONN, -EMSGSIZE, -EFAULT: the message fails, not the
 * peer. */
static int shm_fetch(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *to, int n_to,
                     size_t len)
{
    if (peer->station == NULL)
        shm_receive_greeting(peer); /* it was sent before this frame */
    if (peer->station == NULL)
        return -ENOTCONN;
    const char *from = mapped(peer, address, len);
    if (from) {
        for (int i = 0; i < n_to && len; i++) {
            size_t part = to[i].iov_len < len ? to[i].iov_len : len;
            if (part ==
                len) /* of an RDMA write, for which somebody may wait without a call: the last word is stored last */
                vk_copy_last_word_last(to[i].iov_base, from, part);
            else
                memcpy(to[i].iov_base, from, part);
            from += part;
            len -= part;
        }
        LINK_COUNT(link->nic, copies_mapped, 1);
        return len ? -EMSGSIZE : 0;
    }
    size_t left = len;
    while (left) { /* the kernel may stop in the middle */
        /* The pieces not filled yet: `skip` bytes of them are done, `room` bytes are still to be found. */
        struct iovec remote = {(void *)(uintptr_t)(address + (len - left)), left}, local[65];
        size_t skip = len - left, room = left;
        int n = 0;
        for (int i = 0; i < n_to && n < 64 && room; i++) {
            if (skip >= to[i].iov_len) {
                skip -= to[i].iov_len;
                continue;
            }
            size_t part = to[i].iov_len - skip < room ? to[i].iov_len - skip : room;
            local[n++] = (struct iovec){(char *)to[i].iov_base + skip, part};
            room -= part;
            skip = 0;
        }
        if (room == 0 &&
            local[n - 1].iov_len > 8) { /* the last word in a vector of its own: the kernel goes by their order */
            local[n - 1].iov_len -= 8;
            local[n] = (struct iovec){(char *)local[n - 1].iov_base + local[n - 1].iov_len, 8};
            n++;
        }
        ssize_t got = n ? process_vm_readv(peer->pid, local, (unsigned long)n, &remote, 1, 0) : -1;
        LINK_COUNT(link->nic, system_calls, 1);
        if (got <= 0)
            return -EFAULT;
        left -= (size_t)got;
    }
    LINK_COUNT(link->nic, copies_cma, 1);
    return 0;
}

/* The last word in a vector of its own: the kernel copies vectors in order, so whoever spins on that word has all
 * before it. 0, or -EAGAIN if the kernel stopped in the middle. */
static int write_remote(struct link_peer *peer, uint64_t address, const struct iovec *from, int n, size_t len)
{
    struct iovec remote[2] = {{(void *)(uintptr_t)address, len > 8 ? len - 8 : len},
                              {(void *)(uintptr_t)(address + len - 8), 8}};
    LINK_COUNT(peer->link->nic, system_calls, 1);
    ssize_t done = process_vm_writev(peer->pid, from, (unsigned long)n, remote, len > 8 ? 2 : 1, 0);
    return done == (ssize_t)len ? 0 : -EAGAIN; /* a part of it is overwritten by the frames that follow */
}

/* The write itself, once the table has granted it. The last word of the last piece is stored last, as vipl.h promises
 * of an RDMA write: its target may be spinning on it and calls nothing (mapped: a release store; otherwise the
 * kernel's order). */
static int place_granted(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *from, int n,
                         size_t len)
{
    uint8_t *to = mapped(peer, address, len);
    if (to == NULL) {
        if (link->no_cma || !peer->can_write || write_remote(peer, address, from, n, len) != 0)
            return -EAGAIN;
        LINK_COUNT(link->nic, copies_cma, 1);
    } else {
        for (int i = 0; i < n - 1; i++) {
            memcpy(to, from[i].iov_base, from[i].iov_len);
            to += from[i].iov_len;
        }
        vk_copy_last_word_last(to, from[n - 1].iov_base, from[n - 1].iov_len);
        LINK_COUNT(link->nic, copies_mapped, 1);
    }
    LINK_COUNT(link->nic, copies, 1);
    LINK_COUNT(link->nic, bytes_copied, len);
    return 0;
}

/* The entry of the peer's region table for a handle, held so that the region stays (users); NULL: no direct way.
 * Announces us first (vk_add is a full barrier), then the caller looks at the handle; the owner takes the handle
 * away, has a full barrier, then looks for us (hide_region in via/mem.c). One of the two sees the other: either we
 * find the handle gone, or the owner waits until we are through. */
static struct shm_region *hold_region(struct link_peer *peer, uint32_t handle)
{
    uint32_t index = handle & 0xFFFF;
    if (!peer->alive || peer->station == NULL || handle == 0 ||
        (index + 1) * sizeof(struct shm_region) > peer->arena_offset - SHM_TABLE_OFFSET)
        return NULL;
    struct shm_region *r = (struct shm_region *)(void *)((char *)peer->station + SHM_TABLE_OFFSET) + index;
    vk_add(&r->users, 1);
    return r;
}

/* A full barrier as well (vk_add): our copy is done before the owner, who waits for 0, goes on. */
static void release_region(struct shm_region *r)
{
    vk_add(&r->users, (uint32_t)-1);
}

/* Does the held entry grant `right` (1 write, 2 read) over the range to a VI with that tag? The handle first
 * (acquire): the owner stores it last, so that the other fields belong to it. */
static int granted(const struct shm_region *r, uint32_t handle, uint32_t ptag, uint32_t right, uint64_t address,
                   size_t len)
{
    if (vk_load_acquire(&r->handle) != handle || r->ptag != ptag || !(r->rights & right))
        return 0;
    uint64_t offset = address - r->address; /* below the region: wraps, and is too large */
    return offset <= r->len && len <= r->len - offset;
}

/* Link operation: an RDMA read by the reader itself. 0 done, -EACCES not granted, -EAGAIN ask by frames instead. */
static int shm_take(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                    const struct iovec *to, int n, size_t len)
{
    struct shm_region *r = len && n ? hold_region(peer, handle) : NULL;
    int result = -EACCES;
    if (r == NULL)
        return -EAGAIN;
    if (granted(r, handle, ptag, 2, address, len)) {
        int direct = mapped(peer, address, len) != NULL || (!link->no_cma && vk_load_relaxed(&peer->rx->can_fetch));
        result = direct && shm_fetch(link, peer, address, to, n, len) == 0 ? 0 : -EAGAIN;
    }
    release_region(r);
    if (result == 0) {
        LINK_COUNT(link->nic, copies, 1);
        LINK_COUNT(link->nic, bytes_copied, len);
    }
    return result;
}

/* Link operation: an RDMA write by the writer itself; its target does nothing at all. Results as above. */
static int shm_place(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                     const struct iovec *from, int n, size_t len)
{
    struct shm_region *r = len && n ? hold_region(peer, handle) : NULL;
    int result = -EACCES;
    if (r == NULL)
        return -EAGAIN;
    if (granted(r, handle, ptag, 1, address, len))
        result = place_granted(link, peer, address, from, n, len);
    release_region(r);
    return result;
}

/* ---------------------------------------------------------------- the arena */

/* The arena is address space by the page, first fit. Programs allocate a few large buffers, so a list is enough; kept
 * sorted by offset, its gaps are what is free. */
struct shm_allocation {
    struct shm_allocation *next;
    uint64_t offset, len; /* in the arena, whole pages */
};

/* Link operation: -ENOMEM if no gap is long enough. The memory reads as zeroes: pages are new, or were punched out. */
static int shm_alloc(struct link *link, size_t len, void **address)
{
    /* `at` is the end of the allocation before: the gap from there to the next one is looked at. */
    uint64_t want = (len + PAGE - 1) & ~(PAGE - 1), at = 0;
    struct shm_allocation **p = &link->allocations, *a;
    for (; *p && (*p)->offset - at < want; p = &(*p)->next)
        at = (*p)->offset + (*p)->len;
    /* want < len: the rounding has wrapped. Behind the last one there is all the rest of the arena. */
    if (want < len || at + want > link->arena_len)
        return -ENOMEM;
    a = malloc(sizeof *a);
    if (a == NULL)
        return -ENOMEM;
    *a = (struct shm_allocation){*p, at, want};
    *p = a;
    *address = (void *)(uintptr_t)(link->arena_address + at);
    return 0;
}

/* A hole gives the pages back to the system, and reads as zeroes afterwards; where the file system cannot punch one,
 * zeroes have to be written. */
static void give_back(struct link *link, const struct shm_allocation *a)
{
    /* pages go, address space stays */
    if (fallocate(link->segment_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(link->arena_offset + a->offset),
                  (off_t)a->len) != 0)
        memset((void *)(uintptr_t)(link->arena_address + a->offset), 0, a->len);
}

/* Link operation. -EINVAL if it is not the beginning of an allocation. Peers keep their mapping: they find zeroes
 * there, or what is allocated next, if they look without a grant. */
static int shm_free(struct link *link, void *address)
{
    uint64_t offset = (uint64_t)(uintptr_t)address - link->arena_address;
    for (struct shm_allocation **p = &link->allocations; *p; p = &(*p)->next)
        if ((*p)->offset == offset) {
            struct shm_allocation *a = *p;
            *p = a->next;
            give_back(link, a);
            free(a);
            return 0;
        }
    return -EINVAL;
}

/* Link operation: where via/mem.c publishes its regions. */
static void *shm_region_table(struct link *link, size_t len)
{
    return SHM_TABLE_OFFSET + len <= link->arena_offset ? (char *)link->station + SHM_TABLE_OFFSET : NULL;
}

/* ---------------------------------------------------------------- opening and closing */

/* Address space that this process may still take; UINT64_MAX where it is not limited. */
static uint64_t address_space_left(void)
{
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%llu", &pages) != 1)
        pages = 0; /* no /proc here: what is taken already counts as if it were free */
    if (file)
        fclose(file);
    uint64_t used = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return used < limit.rlim_cur ? limit.rlim_cur - used : 0;
}

/* The segment. Pages cost nothing before they are touched, so it is as large as it may be. But peers map it whole at
 * their greeting: where address space is limited it takes a small part of what is left, down to 16 MiB, so that those
 * of the peers, who are limited alike, find room beside it, and the program, too. MADV_DONTDUMP keeps a core file
 * small. */
static int make_segment(struct link *link)
{
    uint64_t arena = ARENA_BYTES, before = SHM_TABLE_OFFSET + 16384 * sizeof(struct shm_region);
    uint64_t share = address_space_left() / SHARE_OF_SPACE & ~(PAGE - 1);
    link->segment_fd = vk_file_own(memfd_create("viakit-segment", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (link->segment_fd < 0)
        return -errno;
    if (arena > share)
        arena = share > LEAST_ARENA ? share : LEAST_ARENA;
    void *p = MAP_FAILED;
    for (; arena >= LEAST_ARENA && p == MAP_FAILED; arena /= 2) {
        link->segment_len = before + arena;
        if (ftruncate(link->segment_fd, (off_t)link->segment_len) == 0)
            p = mmap(NULL, link->segment_len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, link->segment_fd, 0);
    }
    if (p == MAP_FAILED)
        return -errno;
    fcntl(link->segment_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL); /* no peer can pull it away */
    madvise(p, link->segment_len, MADV_DONTDUMP);
    link->station = p;
    link->arena_offset = before;
    link->arena_len = link->segment_len - before;
    link->arena_address = (uint64_t)(uintptr_t)p + before;
    *link->station = (struct shm_station){.magic = SHM_MAGIC,
                                          .arena_offset = before,
                                          .arena_len = link->arena_len,
                                          .arena_address = link->arena_address,
                                          .needs_fence = via_membarrier_register() != 0};
    return 0;
}

/* Link operation. Also of a link that was opened half way: every field may still be as shm_open_link set it. Peers
 * notice by their socket. */
static void shm_close(struct link *link)
{
    shm_drop_arriving(link);
    while (link->peers) {
        struct link_peer *p = link->peers;
        link->peers = p->next;
        /* All that was read is free: a sender who finds the ring full need not wait for room until the hang-up
         * reaches him. Nobody reads here any more, so the cells need not be zero. */
        vk_store_release(&p->rx->consumed, p->rx_at);
        p->alive = 0;
        vk_file_close(p->event_fd);
        shm_hang_up(link, p->socket);
        munmap(p->rings, sizeof *p->rings);
        if (p->station)
            munmap(p->station, p->station_len);
        free(p);
    }
    while (link->departed) {
        struct link_peer *p = link->departed;
        link->departed = p->next_departed;
        free(p);
    }
    while (link->allocations) {
        struct shm_allocation *a = link->allocations;
        link->allocations = a->next;
        free(a);
    }
    shm_hang_up(link, link->listener);
    vk_file_close(link->epoll);
    vk_file_close(link->event_fd);
    vk_file_close(link->owed_fd);
    if (link->station)
        munmap(link->station, link->segment_len);
    vk_file_close(link->segment_fd);
    free(link);
}

/* Link operation. The device is the station's name, "0" if it is not said: only NICs of the same name meet. */
static int shm_open_link(struct via_nic *nic, const char *device, const viakit_nic_options *options, struct link **out,
                         struct link_limits *limits)
{
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    *link = (struct link){.nic = nic,
                          .listener = -1,
                          .epoll = -1,
                          .event_fd = -1,
                          .owed_fd = -1,
                          .segment_fd = -1,
                          .cma_seen = -1,
                          .no_map = options->no_map,
                          .no_cma = options->no_cma};
    /* Where Yama asks for leave: peers may read and write by process_vm_*. Elsewhere it is refused, and no harm. */
    if (!link->no_cma)
        prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    int error = make_segment(link);
    if (error)
        via_explain(error == -ENOMEM ? "shm: no shared memory: %s; is address space limited (ulimit -v)?"
                                     : "shm: no shared memory: %s",
                    strerror(-error));
    if (error == 0 && (link->event_fd = vk_file_own(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))) < 0) {
        error = -errno;
        via_explain("shm: %s", strerror(errno));
    }
    if (error == 0)
        error = shm_listen(link, *device ? device : "0");
    if (error) {
        shm_close(link);
        return error;
    }
    *limits = (struct link_limits){.port = link->port,
                                   .mtu = SHM_MAX_PAYLOAD,
                                   .max_payload = SHM_MAX_PAYLOAD,
                                   .max_batch = 8,
                                   .short_below = SHM_SHORT_BELOW,
                                   .ring_slots = SHM_CELLS,
                                   .lossless = 1};
    memcpy(limits->address, link->address, 6);
    *out = link;
    return 0;
}

/* Link operation: a peer that is known already, or a call. -EHOSTUNREACH nobody of that port, -EAGAIN it has no room
 * for callers now. */
static int shm_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **out)
{
    if (memcmp(address, link->address, 6) != 0)
        return -EHOSTUNREACH; /* all peers are of our own station, and ports mean nothing elsewhere */
    for (struct link_peer *p = link->peers; p; p = p->next)
        if (p->alive && p->port == port) {
            *out = p;
            return 0;
        }
    return shm_call(link, port, out);
}

/* Every NIC of the station. Our own is called like the others, but only if somebody here is meant: two VIs of one NIC
 * may be connected, and who does not do that need not look at two rings more. One that has no room for callers just now
 * has not heard, but it is there; one that lacks address space will not hear. */
static int shm_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    uint16_t ports[512];
    int ours = memcmp(address, link->address, 6) == 0, n = ours ? shm_ports(link, ports, 511) : 0, asked = 0, full = 0;
    int lacking = 0;
    if (ours && link_wanted_here(link->nic, frame))
        ports[n++] = link->port;
    for (int i = 0; i < n; i++) {
        struct link_peer *peer;
        if (link_lacks_room(link->nic, ports[i])) {
            lacking = 1;
            continue;
        }
        int error = shm_route(link, address, ports[i], &peer);
        full |= error == -EAGAIN;
        if (error)
            continue;
        frame->header.dst_port = ports[i];
        if (shm_send(link, peer, frame, 1) == 1)
            asked++;
        else
            full = 1;
    }
    if (full)
        return LINK_UNKNOWN;
    if (asked == 0)
        return lacking || shm_explain_absence(link) || !ours ? 0 : LINK_ONLY_US;
    return asked;
}

/* Link operation: with ourselves. */
static int shm_count_neighbours(struct link *link)
{
    uint16_t ports[512];
    return shm_ports(link, ports, 512) + 1;
}

/* Link operation: frames ring the doorbell; callers, greetings and deaths show at the epoll descriptor. */
static void shm_descriptors(struct link *link, int *data_fd, int *control_fd)
{
    *data_fd = link->event_fd;
    *control_fd = link->epoll;
}

static void shm_info(struct link *link, viakit_nic_info *info)
{
    info->cma = link->no_cma ? 0 : link->cma_seen;
    /* Two pairs of rings: both may call at the same moment. */
    info->bytes_to_map = link->segment_len + 2 * sizeof(struct shm_rings);
}

static void shm_peer_address(const struct link_peer *peer, uint8_t address[6])
{
    memcpy(address, peer->address, 6);
}

const struct link_ops link_shm = {
    .name = "shm",
    .open = shm_open_link,
    .close = shm_close,
    .route = shm_route,
    .ask_all = shm_ask_all,
    .count_neighbours = shm_count_neighbours,
    .send = shm_send,
    .send_short = shm_send_short,
    .poll = shm_poll,
    .peer_address = shm_peer_address,
    .descriptors = shm_descriptors,
    .arm = shm_arm,
    .disarm = shm_disarm,
    .control = shm_control,
    .info = shm_info,
    .alloc = shm_alloc,
    .free = shm_free,
    .region_table = shm_region_table,
    .reach = shm_reach,
    .fetch = shm_fetch,
    .place = shm_place,
    .take = shm_take,
};
