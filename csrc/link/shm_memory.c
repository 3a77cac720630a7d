/*
 * The memory of the shm link: a NIC's own segment with its arena, and the segments and rings that it shares with peers.
 * shm.h has the layout, shm_control.c passes the descriptors, shm_copy.c copies between the memory of two processes.
 * The NIC's owner calls all functions of this file. None waits for a peer.
 *
 *    segment, here and in each peer    | header, table: accessible | arena: accessible | reserved, PROT_NONE ... |
 *                                                                  0          arena_open                 arena_len
 *    allocations, sorted by offset     | a | gap | b |       gap       |           first fit, whole pages
 *
 * Invariant: arena_open is a multiple of OPEN_STEP or arena_len, never decreases, and no allocation ends behind it.
 * Each process has its own arena_open for one arena: the pages are shared, the protection of a mapping is not.
 *
 * Everything that came from a peer is checked before it is used. A file is sealed and of the right size. An arena lies
 * within its segment.
 *
 * A memfd's pages are zero when they are first touched, and belong to the segment until a hole is punched. They count
 * as shared memory of the process that touched them (cgroup's memory limit).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/files.h"
#include "base/membarrier.h"
#include "base/sealed.h"
#include "link/shm.h"

#if VK_TSAN
#define ARENA_BYTES (256ull << 20) /* ThreadSanitizer shadows every mapped byte */
#else
#define ARENA_BYTES (32ull << 30) /* address space, not memory: pages exist once touched */
#endif
#define LEAST_ARENA (16ull << 20) /* room for the buffers of a small job; with less the NIC does not open */
#define SHARE_OF_SPACE 64         /* an arena occupies at most 1/64 of the address space that a limit leaves */
#define PAGE 4096ull              /* the unit of the arena, and of the holes that give_back() punches */
#define OPEN_STEP (2ull << 20)    /* the arena is made accessible in pieces of this size, so that few calls do it */

/* The arena is address space, allocated in pages, first fit. Programs allocate a few large buffers, so a list suffices.
 * It is sorted by offset, and its gaps are free. */
struct shm_allocation {
    struct shm_allocation *next;
    uint64_t offset, len; /* in the arena, whole pages */
};

/* ---------------------------------------------------------------- segments and rings */

/* Makes the arena at `arena`, len bytes long, accessible up to `until`. *open is the accessible length so far, and is
 * updated. Returns 0 or -errno: mprotect() needs memory for page tables and for one more mapping (vm.max_map_count).
 *
 * The system's page may be larger than PAGE, so that the arena begins in the middle of one. The header's part of that
 * page is accessible anyway. */
int shm_open_arena(void *arena, uint64_t len, uint64_t until, uint64_t *open)
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
 * failure. MAP_NORESERVE: 32 GiB must not count as committed memory. MADV_DONTDUMP: a core file would contain them. */
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

/* Returns the address space that this process may still allocate; UINT64_MAX if it suffices. RLIMIT_AS counts reserved
 * addresses, PROT_NONE included, so an arena of full length would use up any limit. */
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

/* Maps the peer's segment, with the arena that its greeting reports, and closes the descriptor. Returns 0, or the
 * result of map_failed(). */
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

/* Makes, seals and maps the rings of a new pair. Returns the descriptor for HELLO, or -errno. shm_map_rings() closes
 * the copy that it gets, as it does with a peer's descriptor. */
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

/* Also for a peer of which nothing, or only the rings, is mapped yet. */
void shm_unmap(struct link_peer *peer)
{
    if (peer->rings)
        munmap(peer->rings, sizeof *peer->rings);
    if (peer->station)
        munmap(peer->station, peer->station_len);
    peer->rings = NULL;
    peer->station = NULL;
}

/* Peers keep their mappings, and the pages with them, until they drop this NIC. */
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
    int error = at + want > link->arena_open ? shm_open_arena((void *)(uintptr_t)link->arena_address, link->arena_len,
                                                              at + want, &link->arena_open)
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
