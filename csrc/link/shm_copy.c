/*
 * Direct copies of the shm link, between the memory of two processes. One side copies, and the other does nothing.
 *
 *    the peer's memory lies in        way                        needs
 *    its arena, which is mapped here  load and store             the mapping (mapped)
 *    any other memory of it           process_vm_readv, writev   ptrace's permission (shm_probe_cma in shm_greeting.c)
 *
 *    fetch   a message that was sent by reference: the receiver copies it out of the sender's memory
 *    place   an RDMA write by the writer, which the peer's table grants
 *    take    an RDMA read by the reader, which the peer's table grants
 *
 * Two orders matter to other processes. First, the last word of an RDMA write is stored last, because its target may
 * poll it: by a release store in a mapping, and as a vector of its own by the kernel. Second, a region is held (users)
 * before its grant is read, so that its owner cannot end the registration in between (hold_region).
 *
 * Trust: an address of a peer is used only within its arena, or through the kernel, which checks it. A wrong one fails
 * the message with -EFAULT. The peer may change the bytes during the copy: then the message has the wrong contents.
 *
 * The NIC's owner calls all functions of this file. A copy blocks for its own time: some 100 us for 1 MiB.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "link/shm.h"

#define PAGE 4096ull /* bytes: processors compare the lower 12 bits of addresses (needs_stage) */

/* Returns the local address of the peer's [address, address+len), or NULL if the range is not in its arena. For an
 * address below the arena the offset wraps and is too large. `len > arena_len - offset` cannot overflow; offset + len
 * could. */
static void *mapped(struct link_peer *peer, uint64_t address, uint64_t len)
{
    uint64_t offset = address - peer->arena_address;
    if (peer->link->no_map || offset > peer->arena_len || len > peer->arena_len - offset)
        return NULL;
    char *arena = (char *)peer->station + peer->arena_offset;
    /* The part of the arena that the peer uses grows. Its mapping here is opened when the first address beyond is
     * used. */
    if (vk_unlikely(offset + len > peer->arena_open) &&
        shm_open_arena(arena, peer->arena_len, offset + len, &peer->arena_open) != 0)
        return NULL;
    return arena + offset;
}

/* Link operation: how the peer can access this NIC's memory. The peer sets can_fetch in the ring that it reads.
 * Relaxed: the value is a hint for tx.c. With a wrong one a message fails or is sent in frames, nothing worse. */
int shm_reach(struct link *link, struct link_peer *peer, const void *address, size_t len)
{
    uint64_t offset = (uint64_t)(uintptr_t)address - link->arena_address;
    if (!link->no_map && offset <= link->arena_len && len <= link->arena_len - offset)
        return 1;
    return !link->no_cma && vk_load_relaxed(&peer->tx->can_fetch) ? 2 : 0;
}

/* The kernel copies between processes by `rep movsb` where the processor announces that this is fast. On AMD's Zen 3 it
 * is five times slower if the destination lies 1 to 31 bytes behind the source, modulo the page. Arrays of one length
 * in the heaps of two processes often do. Such copies take two steps, neither of which is slow:
 *
 *     write      source --memcpy--> stage --kernel--> destination
 *     fetch      source --kernel--> stage --memcpy--> destination
 *
 * The stage begins half a page off the place that the peer's memory has in its page. */
#define SLOW_SHIFTS 31          /* bytes, from 1 on */
#define LEAST_STAGED 4096       /* bytes; a shorter copy is over before two steps pay */
#define STAGE_BYTES (16 * PAGE) /* of one step: stays in the second-level cache */
#define TRIAL_BYTES (4 * PAGE)  /* of one measured copy */
#define TRIALS 5                /* the shortest counts: others may have been interrupted */

/* Returns the shortest time of some copies within this process by the kernel, in ns. 0: not possible. */
static uint64_t time_copy(char *to, char *from)
{
    struct iovec source = {from, TRIAL_BYTES}, target = {to, TRIAL_BYTES};
    uint64_t least = VK_NEVER;
    for (int i = 0; i < TRIALS; i++) {
        uint64_t start = vk_now();
        if (process_vm_writev(getpid(), &source, 1, &target, 1, 0) != (ssize_t)TRIAL_BYTES)
            return 0;
        uint64_t ns = vk_now() - start;
        least = ns < least ? ns : least;
    }
    return least;
}

/* Returns whether such copies are slow on this processor, measured once per process. Takes 0.1 ms then. Relaxed: the
 * answer is one word and orders nothing. */
static int shifts_are_slow(char *stage)
{
    static int answer; /* 1 no, 2 yes; threads that measure at the same time store the same */
    int known = vk_load_relaxed(&answer);
    if (known == 0) {
        memset(stage, 0, STAGE_BYTES);
        uint64_t level = time_copy(stage + STAGE_BYTES / 2, stage);
        uint64_t shifted = time_copy(stage + STAGE_BYTES / 2 + 16, stage);
        known = level && shifted > 2 * level ? 2 : 1;
        vk_store_relaxed(&answer, known);
    }
    return known == 2;
}

/* Returns whether a copy has to take two steps. If so, link->stage has room for each. */
static int needs_stage(struct link *link, uint64_t to, uint64_t from, size_t len)
{
    if (vk_likely((to - from) % PAGE - 1 >= SLOW_SHIFTS) || len < LEAST_STAGED)
        return 0;
    if (link->stage == NULL && (link->stage = aligned_alloc(PAGE, STAGE_BYTES + PAGE)) == NULL)
        return 0;
    return shifts_are_slow(link->stage);
}

/* Copies the peer's memory to `to` in two steps. Returns 0 or -EFAULT. */
static int fetch_staged(struct link_peer *peer, uint64_t address, char *to, size_t len)
{
    char *stage = peer->link->stage + (address + PAGE / 2) % PAGE;
    LINK_COUNT(peer->link->client, copies, 1);
    LINK_COUNT(peer->link->client, bytes_copied, len);
    for (size_t n; len; len -= n, to += n, address += n) {
        n = len < STAGE_BYTES ? len : STAGE_BYTES;
        struct iovec local = {stage, n}, remote = {(void *)(uintptr_t)address, n};
        LINK_COUNT(peer->link->client, system_calls, 1);
        if (process_vm_readv(peer->pid, &local, 1, &remote, 1, 0) != (ssize_t)n)
            return -EFAULT;
        vk_copy_last_word_last(to, stage, n);
    }
    return 0;
}

/* Link operation: copies len bytes from the peer's memory into local pieces. Through the mapping if they lie in the
 * peer's arena, else by the kernel, 64 pieces per call. On -ENOTCONN, -EMSGSIZE and -EFAULT the message fails, and the
 * peer stays. */
int shm_fetch(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *to, int n_to, size_t len)
{
    if (peer->station == NULL)
        shm_receive_greeting(peer); /* the peer sent WELCOME before this frame */
    if (peer->station == NULL)
        return -ENOTCONN;
    const char *from = mapped(peer, address, len);
    if (from) {
        for (int i = 0; i < n_to && len; i++) {
            size_t part = to[i].iov_len < len ? to[i].iov_len : len;
            if (part == len) /* may be an RDMA write whose target spins on its last word: store that word last */
                vk_copy_last_word_last(to[i].iov_base, from, part);
            else
                memcpy(to[i].iov_base, from, part);
            from += part;
            len -= part;
        }
        LINK_COUNT(link->client, copies_mapped, 1);
        return len ? -EMSGSIZE : 0;
    }
    if (n_to == 1 && len <= to->iov_len && needs_stage(link, (uintptr_t)to->iov_base, address, len)) {
        LINK_COUNT(link->client, copies_cma, 1);
        return fetch_staged(peer, address, to->iov_base, len);
    }
    size_t left = len;
    while (left) { /* the kernel may stop in the middle */
        /* Collect the unfilled pieces: `skip` bytes of them are done, `room` bytes are still to be placed. */
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
        if (room == 0 && local[n - 1].iov_len >
                             8) { /* the last word in a vector of its own, because the kernel fills vectors in order */
            local[n - 1].iov_len -= 8;
            local[n] = (struct iovec){(char *)local[n - 1].iov_base + local[n - 1].iov_len, 8};
            n++;
        }
        ssize_t got = n ? process_vm_readv(peer->pid, local, (unsigned long)n, &remote, 1, 0) : -1;
        LINK_COUNT(link->client, system_calls, 1);
        if (got <= 0)
            return -EFAULT;
        left -= (size_t)got;
    }
    LINK_COUNT(link->client, copies_cma, 1);
    return 0;
}

/* Writes to the peer's memory. The last word has a vector of its own. The kernel copies vectors in order, so a program
 * that spins on that word finds everything before it. Returns 0, or -EAGAIN if the kernel stopped in the middle. */
static int write_remote(struct link_peer *peer, uint64_t address, const struct iovec *from, int n, size_t len)
{
    struct iovec remote[2] = {{(void *)(uintptr_t)address, len > 8 ? len - 8 : len},
                              {(void *)(uintptr_t)(address + len - 8), 8}};
    LINK_COUNT(peer->link->client, system_calls, 1);
    ssize_t done = process_vm_writev(peer->pid, from, (unsigned long)n, remote, len > 8 ? 2 : 1, 0);
    return done == (ssize_t)len ? 0 : -EAGAIN; /* the frames that follow overwrite the part that was written */
}

/* Copies `from` to the peer's memory in two steps. Returns the same as write_remote. */
static int write_staged(struct link_peer *peer, uint64_t address, const char *from, size_t len)
{
    char *stage = peer->link->stage + (address + PAGE / 2) % PAGE;
    LINK_COUNT(peer->link->client, copies, 1);
    LINK_COUNT(peer->link->client, bytes_copied, len);
    for (size_t n; len; len -= n, from += n, address += n) {
        n = len < STAGE_BYTES ? len : STAGE_BYTES;
        memcpy(stage, from, n);
        struct iovec piece = {stage, n};
        if (write_remote(peer, address, &piece, 1, n) != 0)
            return -EAGAIN;
    }
    return 0;
}

/* Performs a write that the table has granted. The last word of the last piece is stored last, as vipl.h promises for
 * an RDMA write: its target may spin on it without any call. A release store does this in a mapping, the order of
 * vectors in the kernel. */
static int place_granted(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *from, int n,
                         size_t len)
{
    uint8_t *to = mapped(peer, address, len);
    if (to == NULL) {
        if (link->no_cma || !peer->can_write)
            return -EAGAIN;
        if ((n == 1 && needs_stage(link, address, (uintptr_t)from->iov_base, len)
                 ? write_staged(peer, address, from->iov_base, len)
                 : write_remote(peer, address, from, n, len)) != 0)
            return -EAGAIN;
        LINK_COUNT(link->client, copies_cma, 1);
    } else {
        for (int i = 0; i < n - 1; i++) {
            memcpy(to, from[i].iov_base, from[i].iov_len);
            to += from[i].iov_len;
        }
        vk_copy_last_word_last(to, from[n - 1].iov_base, from[n - 1].iov_len);
        LINK_COUNT(link->client, copies_mapped, 1);
    }
    LINK_COUNT(link->client, copies, 1);
    LINK_COUNT(link->client, bytes_copied, len);
    return 0;
}

/* Returns the entry of the peer's region table for a handle, held so that the region stays (users), or NULL if there is
 * no direct way. This side announces itself first (vk_add is a full barrier), and the caller then reads the handle. The
 * owner clears the handle, runs a full barrier, then reads `users` (hide_region in via/objects/mem.c). One of the two
 * sees the other: this side finds the handle cleared, or the owner waits until the copy is done. */
static struct shm_region *hold_region(struct link_peer *peer, uint32_t handle)
{
    uint32_t index = handle & 0xFFFF;
    /* The handle's lower half is the index. The table ends where the arena begins, which shm_map_station has
     * checked. */
    if (!peer->alive || peer->station == NULL || handle == 0 ||
        (index + 1) * sizeof(struct shm_region) > peer->arena_offset - SHM_TABLE_OFFSET)
        return NULL;
    struct shm_region *r = (struct shm_region *)(void *)((char *)peer->station + SHM_TABLE_OFFSET) + index;
    vk_add(&r->users, 1);
    return r;
}

/* A full barrier as well (vk_add): it orders the copy before the store of `users`. The owner loads 0 with acquire, and
 * may then free the memory. */
static void release_region(struct shm_region *r)
{
    vk_add(&r->users, (uint32_t)-1);
}

/* Returns whether the held entry grants `right` (1 write, 2 read) over the range to a VI with that tag. The handle is
 * read first (acquire). The owner stores it last, so the other fields belong to it. */
static int granted(const struct shm_region *r, uint32_t handle, uint32_t ptag, uint32_t right, uint64_t address,
                   size_t len)
{
    if (vk_load_acquire(&r->handle) != handle || !(r->rights & right))
        return 0;
    if (r->ptag != ptag && r->ptag != 0 && ptag != 0) /* 0 is the NULL tag, as in via_tags_match() */
        return 0;
    uint64_t offset = address - r->address; /* wraps below the region, and is then too large */
    return offset <= r->len && len <= r->len - offset;
}

/* Performs a read that the table has granted. This NIC has set can_fetch in rx, when it found that it can read the
 * peer's memory. With a wrong value the copy fails, and frames follow. */
static int take_granted(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *to, int n,
                        size_t len)
{
    int direct = mapped(peer, address, len) != NULL || (!link->no_cma && vk_load_relaxed(&peer->rx->can_fetch));
    if (!direct || shm_fetch(link, peer, address, to, n, len) != 0)
        return -EAGAIN;
    LINK_COUNT(link->client, copies, 1);
    LINK_COUNT(link->client, bytes_copied, len);
    return 0;
}

/* Checks the right (see granted) and copies in either direction. The region is held until the copy is done. */
static inline int copy_held(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint32_t right,
                            uint64_t address, const struct iovec *local, int n, size_t len,
                            int (*copy)(struct link *link, struct link_peer *peer, uint64_t address,
                                        const struct iovec *local, int n, size_t len))
{
    struct shm_region *r = len && n ? hold_region(peer, handle) : NULL;
    if (r == NULL)
        return -EAGAIN;
    int result = granted(r, handle, ptag, right, address, len) ? copy(link, peer, address, local, n, len) : -EACCES;
    release_region(r);
    return result;
}

/* Link operation: an RDMA read by the reader itself. Returns 0 if done, -EACCES if not granted, -EAGAIN if the caller
 * has to request the data with frames. */
int shm_take(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
             const struct iovec *to, int n, size_t len)
{
    return copy_held(link, peer, handle, ptag, 2, address, to, n, len, take_granted);
}

/* Link operation: an RDMA write by the writer itself, without any action of the target. Returns the same as
 * shm_take. */
int shm_place(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
              const struct iovec *from, int n, size_t len)
{
    return copy_held(link, peer, handle, ptag, 1, address, from, n, len, place_granted);
}
