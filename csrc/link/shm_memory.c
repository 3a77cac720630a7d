/*
 * The memory of the shm link: a NIC's own segment with its arena, the segments and rings that it shares with peers, and
 * the direct copies between the memory of two processes. shm.h has the layout, shm_control.c passes the descriptors.
 * The NIC's owner calls all functions of this file.
 *
 * Everything that came from a peer is checked before it is used. A file is sealed and of the right size. An arena lies
 * within its segment. An address lies within the arena, or the peer's table grants it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/files.h"
#include "base/membarrier.h"
#include "base/sealed.h"
#include "link/shm.h"

#if VK_TSAN
#define ARENA_BYTES (256ull << 20) /* ThreadSanitizer shadows every mapped byte */
#else
#define ARENA_BYTES (32ull << 30) /* address space, not memory: pages exist once touched */
#endif
#define LEAST_ARENA (16ull << 20)
#define SHARE_OF_SPACE 64 /* an arena occupies at most 1/64 of the address space that a limit leaves */
/* The unit of the arena, and of the holes that give_back() punches. */
#define PAGE 4096ull
#define OPEN_STEP (2ull << 20) /* the arena is made accessible in pieces of this size, so that few calls do it */

/* The arena is address space, allocated in pages, first fit. Programs allocate a few large buffers, so a list suffices.
 * It is sorted by offset, and its gaps are free. */
struct shm_allocation {
    struct shm_allocation *next;
    uint64_t offset, len; /* in the arena, whole pages */
};

/* ---------------------------------------------------------------- segments and rings */

/* Makes the arena at `arena`, len bytes long, accessible up to `until`. *open is the accessible length so far, and is
 * updated. Returns 0 or -errno.
 *
 * The system's page may be larger than PAGE, so that the arena begins in the middle of one. The header's part of that
 * page is accessible anyway. */
static int open_arena(void *arena, uint64_t len, uint64_t until, uint64_t *open)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = ((uintptr_t)arena + *open) & ~(page - 1);
    uint64_t to = (until + OPEN_STEP - 1) & ~(OPEN_STEP - 1);
    if (to > len)
        to = len;
    if (mprotect((void *)from, (uintptr_t)arena + to - from, PROT_READ | PROT_WRITE) != 0)
        return -errno;
    *open = to;
    return 0;
}

/* Maps a segment whose first `before` bytes are accessible and the rest not yet. Returns MAP_FAILED with errno on
 * failure. */
static void *map_segment(int fd, size_t len, size_t before)
{
    void *p = mmap(NULL, len, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (p == MAP_FAILED)
        return p;
    if (mprotect(p, before, PROT_READ | PROT_WRITE) != 0) {
        int error = errno;
        munmap(p, len);
        errno = error;
        return MAP_FAILED;
    }
    madvise(p, len, MADV_DONTDUMP);
    return p;
}

/* Returns the address space that can be reserved in one piece; UINT64_MAX if it suffices for an arena of full length.
 * A program under valgrind has less than 96 GiB, for instance. */
static uint64_t address_space_free(void)
{
    const uint64_t enough = SHARE_OF_SPACE * ARENA_BYTES;
    for (uint64_t len = enough; len > LEAST_ARENA; len /= 2) {
        void *p = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p != MAP_FAILED) {
            munmap(p, len);
            return len == enough ? UINT64_MAX : len;
        }
    }
    return 0;
}

/* Returns the address space that this process may still allocate; UINT64_MAX if it suffices. */
static uint64_t address_space_left(void)
{
    struct rlimit limit;
    unsigned long long pages = 0;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return address_space_free();
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL || fscanf(file, "%llu", &pages) != 1)
        pages = 0; /* no /proc here: count the space in use as if it were free */
    if (file)
        fclose(file);
    uint64_t used = (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
    return used < limit.rlim_cur ? limit.rlim_cur - used : 0;
}

/* Makes the segment. Untouched pages cost nothing, so it is as large as allowed. But a peer maps all of it when it is
 * greeted. If address space is limited, the segment takes a small part of the rest, down to 16 MiB. This leaves room
 * for the program and for the segments of peers, which are limited alike. */
int shm_make_segment(struct link *link)
{
    uint64_t arena = ARENA_BYTES, before = SHM_BEFORE_ARENA;
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
            p = map_segment(link->segment_fd, link->segment_len, before);
    }
    if (p == MAP_FAILED)
        return -errno;
    fcntl(link->segment_fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL); /* no peer can shrink it */
    link->station = p;
    link->arena_offset = before;
    link->arena_len = link->segment_len - before;
    link->arena_address = (uint64_t)(uintptr_t)p + before;
    link->station->needs_fence = vk_membarrier_register() != 0;
    return 0;
}

/* Called after mmap has failed with valid arguments. The kernel reports a lack of address space as ENOMEM, valgrind as
 * EINVAL. */
static int map_error(void)
{
    return errno == EINVAL ? ENOMEM : errno;
}

/* Returns -ENOMEM if address space does not suffice for a peer's memory, -1 if the file is not such memory. */
static int map_failed(int error)
{
    return error == ENOMEM ? -ENOMEM : -1;
}

/* Maps the peer's segment, with the arena that its greeting reports, and closes the descriptor. Returns 0, or the result
 * of map_failed(). */
int shm_map_station(struct link_peer *peer, int fd, const struct shm_arena *arena)
{
    struct stat st;
    void *p = MAP_FAILED;
    int error = 0;
    if (vk_file_is_sealed(fd) && fstat(fd, &st) == 0 && st.st_size > SHM_TABLE_OFFSET) {
        p = map_segment(fd, (size_t)st.st_size,
                        (uint64_t)st.st_size < SHM_BEFORE_ARENA ? (size_t)st.st_size : SHM_BEFORE_ARENA);
        error = map_error();
    }
    close(fd);
    if (p == MAP_FAILED)
        return map_failed(error);
    uint64_t size = (uint64_t)st.st_size;
    /* Checked in this order, so that no subtraction wraps: the offset lies within the file, then the length within the
     * rest. The whole region table must be accessible, so it ends at SHM_BEFORE_ARENA at the latest. */
    if (arena->offset > size || arena->offset < SHM_TABLE_OFFSET || arena->offset > SHM_BEFORE_ARENA ||
        arena->len > size - arena->offset) {
        munmap(p, (size_t)st.st_size);
        return -1;
    }
    peer->arena_offset = arena->offset;
    peer->arena_len = arena->len;
    peer->arena_address = arena->address;
    peer->station = p;
    peer->station_len = (size_t)st.st_size;
    return 0;
}

/* Maps the pair of rings and closes the descriptor. The caller's tx is the listener's rx. */
int shm_map_rings(struct link_peer *peer, int fd)
{
    struct stat st;
    void *p = MAP_FAILED;
    int error = 0;
    if (vk_file_is_sealed(fd) && fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof(struct shm_rings)) {
        p = mmap(NULL, sizeof(struct shm_rings), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        error = map_error();
    }
    close(fd);
    if (p == MAP_FAILED) {
        errno = error; /* for shm_make_rings() */
        return map_failed(error);
    }
    peer->rings = p;
    peer->tx = peer->caller ? &peer->rings->to_listener : &peer->rings->to_caller;
    peer->rx = peer->caller ? &peer->rings->to_caller : &peer->rings->to_listener;
    /* A new ring is all zeroes: every cell is free. */
    peer->tx_free_until = SHM_CELLS;
    peer->rx_next = (const uint64_t *)(const void *)peer->rx->cells[0];
    return 0;
}

/* Makes, seals and maps the rings of a new pair. Returns the descriptor for HELLO. */
int shm_make_rings(struct link_peer *peer)
{
    /* F_SEAL_SEAL: no process can add a seal later, either. */
    int fd = vk_file_own(memfd_create("viakit-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return -errno;
    int copy = -1;
    if (ftruncate(fd, (off_t)sizeof(struct shm_rings)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        (copy = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0 || shm_map_rings(peer, copy) != 0) {
        int error = errno ? -errno : -ENOMEM;
        vk_file_close(fd);
        return error;
    }
    return fd;
}

void shm_unmap(struct link_peer *peer)
{
    if (peer->rings)
        munmap(peer->rings, sizeof *peer->rings);
    if (peer->station)
        munmap(peer->station, peer->station_len);
    peer->rings = NULL;
    peer->station = NULL;
}

void shm_free_segment(struct link *link)
{
    while (link->allocations) {
        struct shm_allocation *a = link->allocations;
        link->allocations = a->next;
        free(a);
    }
    if (link->station)
        munmap(link->station, link->segment_len);
    free(link->stage);
    vk_file_close(link->segment_fd);
}

/* ---------------------------------------------------------------- direct copies */

/* Returns the local address of the peer's [address, address+len), or NULL if the range is not in its arena. For an
 * address below the arena the offset wraps and is too large. `len > arena_len - offset` cannot overflow; offset + len
 * could. */
static void *mapped(struct link_peer *peer, uint64_t address, uint64_t len)
{
    uint64_t offset = address - peer->arena_address;
    if (peer->link->no_map || offset > peer->arena_len || len > peer->arena_len - offset)
        return NULL;
    char *arena = (char *)peer->station + peer->arena_offset;
    /* The part of the arena that the peer uses grows. Its mapping here is opened when the first address beyond is used. */
    if (vk_unlikely(offset + len > peer->arena_open) &&
        open_arena(arena, peer->arena_len, offset + len, &peer->arena_open) != 0)
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
 * is five times slower if the destination lies 1 to 31 bytes behind the source, modulo the page. Arrays of one length in
 * the heaps of two processes often do. Such copies take two steps, neither of which is slow:
 *
 *     write      source --memcpy--> stage --kernel--> destination
 *     fetch      source --kernel--> stage --memcpy--> destination
 *
 * The stage begins half a page off the place that the peer's memory has in its page. */
#define SLOW_SHIFTS 31          /* bytes, from 1 on */
#define LEAST_STAGED 4096       /* bytes */
#define STAGE_BYTES (16 * PAGE) /* of one step: stays in the second-level cache */
#define TRIAL_BYTES (4 * PAGE)
#define TRIALS 5

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

/* Returns whether such copies are slow on this processor, measured once per process. Takes 0.1 ms then. */
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
    /* The handle's lower half is the index. The table ends where the arena begins, which shm_map_station has checked. */
    if (!peer->alive || peer->station == NULL || handle == 0 ||
        (index + 1) * sizeof(struct shm_region) > peer->arena_offset - SHM_TABLE_OFFSET)
        return NULL;
    struct shm_region *r = (struct shm_region *)(void *)((char *)peer->station + SHM_TABLE_OFFSET) + index;
    vk_add(&r->users, 1);
    return r;
}

/* A full barrier as well (vk_add): the copy is done before the owner, which waits for 0, continues. */
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

/* Link operation: an RDMA read by the reader itself. Returns 0 if done, -EACCES if not granted, -EAGAIN if the caller
 * has to request the data with frames. */
int shm_take(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
             const struct iovec *to, int n, size_t len)
{
    struct shm_region *r = len && n ? hold_region(peer, handle) : NULL;
    int result = -EACCES;
    if (r == NULL)
        return -EAGAIN;
    if (granted(r, handle, ptag, 2, address, len)) {
        /* This NIC has set can_fetch in rx, when it found that it can read the peer's memory. With a wrong value the
         * copy fails, and frames follow. */
        int direct = mapped(peer, address, len) != NULL || (!link->no_cma && vk_load_relaxed(&peer->rx->can_fetch));
        result = direct && shm_fetch(link, peer, address, to, n, len) == 0 ? 0 : -EAGAIN;
    }
    release_region(r);
    if (result == 0) {
        LINK_COUNT(link->client, copies, 1);
        LINK_COUNT(link->client, bytes_copied, len);
    }
    return result;
}

/* Link operation: an RDMA write by the writer itself, without any action of the target. Returns the same as
 * shm_take. */
int shm_place(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
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

/* Link operation: returns -ENOMEM if no gap is long enough. The memory reads as zeroes: pages are new, or were punched
 * out. */
int shm_alloc(struct link *link, size_t len, void **address)
{
    /* `at` is the end of the preceding allocation: the gap from there to the next one is tested. */
    uint64_t want = (len + PAGE - 1) & ~(PAGE - 1), at = 0;
    struct shm_allocation **p = &link->allocations, *a;
    for (; *p && (*p)->offset - at < want; p = &(*p)->next)
        at = (*p)->offset + (*p)->len;
    /* want < len: the rounding has wrapped. The rest of the arena is free behind the last allocation. */
    if (want < len || at + want > link->arena_len)
        return -ENOMEM;
    int error = at + want > link->arena_open
                    ? open_arena((void *)(uintptr_t)link->arena_address, link->arena_len, at + want, &link->arena_open)
                    : 0;
    if (error)
        return error;
    a = malloc(sizeof *a);
    if (a == NULL)
        return -ENOMEM;
    *a = (struct shm_allocation){*p, at, want};
    *p = a;
    *address = (void *)(uintptr_t)(link->arena_address + at);
    return 0;
}

/* Returns the pages of an allocation to the system. A hole reads as zeroes afterwards. Where the file system cannot
 * punch one, zeroes are written. */
static void give_back(struct link *link, const struct shm_allocation *a)
{
    /* releases pages, keeps the address space */
    if (fallocate(link->segment_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(link->arena_offset + a->offset),
                  (off_t)a->len) != 0)
        memset((void *)(uintptr_t)(link->arena_address + a->offset), 0, a->len);
}

/* Link operation. Returns -EINVAL if address is not the beginning of an allocation. Peers keep their mapping. A peer
 * that reads there without a grant finds zeroes or the next allocation. */
int shm_free(struct link *link, void *address)
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

/* Link operation: the place where via/objects/mem.c publishes its regions. */
void *shm_region_table(struct link *link, size_t len)
{
    return SHM_TABLE_OFFSET + len <= link->arena_offset ? (char *)link->station + SHM_TABLE_OFFSET : NULL;
}
