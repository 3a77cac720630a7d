/*
 * The first message in each direction between two shm NICs, and what is found out with it. shm_control.c has the
 * sequence.
 *
 *    HELLO    | magic | port | version | probe address | arena |  + rings, doorbell, segment
 *    WELCOME  the same                                            + doorbell, segment
 *    refusal  the same, with another magic                        no descriptors: the memory could not be mapped
 *
 * A descriptor in a message of SCM_RIGHTS is a new one in the receiver, for the same open file (unix(7)). It stays
 * open if its sender ends, so a segment lives as long as any process has it mapped.
 *
 * The NIC's owner calls these functions, and none blocks. A peer's values are checked here and in shm_memory.c before
 * they are used.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cancel.h"
#include "link/shm.h"

/* Magic of a refusal. An older version takes it for a malformed greeting, and hangs up. */
#define NO_MEMORY_MAGIC 0x56696153686d6e72ull

/* A word whose address is sent to every peer. A peer that reads SHM_MAGIC there with process_vm_readv has permission
 * to read this process, and has identified the right one: process ids are reused, and mean nothing in another
 * namespace. */
static uint64_t probe_word = SHM_MAGIC;

/* A greeting is shorter than any socket buffer and the first in its socket, so it is sent at once or not at all.
 * MSG_NOSIGNAL: for a peer that died meanwhile the call returns an error, without a SIGPIPE. */
int shm_send_greeting(struct link_peer *peer, const int *fds, int n_fds)
{
    const struct link *link = peer->link;
    struct shm_greeting g = {.magic = SHM_MAGIC,
                             .port = link->port,
                             .version = WIRE_VERSION,
                             .probe_address = (uint64_t)(uintptr_t)&probe_word,
                             .arena = {link->arena_offset, link->arena_len, link->arena_address}};
    struct iovec iov = {&g, sizeof g};
    union {
        char bytes[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = CMSG_SPACE((size_t)n_fds * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)n_fds * sizeof(int));
    memcpy(CMSG_DATA(c), fds, (size_t)n_fds * sizeof(int));
    return vk_sendmsg(peer->socket, &m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof g ? 0 : -errno;
}

/* Descriptors of a bad greeting are closed, because this process owns them as soon as recvmsg has returned. The buffer
 * has CMSG_LEN and not CMSG_SPACE of three numbers: its padding would hold a fourth descriptor, which nothing here
 * would close. The kernel closes those that do not fit, and sets MSG_CTRUNC. */
int shm_read_greeting(int socket, struct shm_greeting *g, int *fds, int want)
{
    struct iovec iov = {g, sizeof *g};
    union {
        char bytes[CMSG_SPACE(3 * sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr m = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = CMSG_LEN(3 * sizeof(int))};
    ssize_t got = vk_recvmsg(socket, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (got < 0)
        return -1;
    int n = 0;
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        n = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), (size_t)n * sizeof(int));
    }
    if (got == (ssize_t)sizeof *g && !(m.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && g->magic == SHM_MAGIC &&
        g->version == WIRE_VERSION && n == want)
        return 1;
    for (int i = 0; i < n; i++)
        close(fds[i]);
    return got == (ssize_t)sizeof *g && g->magic == NO_MEMORY_MAGIC && n == 0 ? -ENOMEM : -1;
}

/* Ringing must not block: the peer's doorbell has to be an eventfd in non-blocking mode. The peer shares the flag and
 * could clear it later, so shm_doorbell() polls before it writes. */
int shm_is_doorbell(int fd)
{
    char path[32], what[32];
    int flags = fcntl(fd, F_GETFL);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, what, sizeof what);
    static const char eventfd_name[] = "anon_inode:[eventfd]";
    return flags >= 0 && (flags & O_NONBLOCK) &&
           (n < 0 /* no /proc here */ ||
            (n == sizeof eventfd_name - 1 && memcmp(what, eventfd_name, sizeof eventfd_name - 1) == 0));
}

/* Tests the permission for process_vm_readv and reports it to the peer. Writing needs the same permission: ptrace's,
 * which requires the same user, and under Yama the permission that shm_open_link gives. Sending by reference depends on
 * the *receiver's* permission, so that is reported through the ring.
 *
 *    can_write        this process may copy to and from the peer (kept here)
 *    rx->can_fetch    the same, for the peer: it may send references into its memory */
void shm_probe_cma(struct link_peer *peer, uint64_t address)
{
    struct ucred who;
    socklen_t len = sizeof who;
    uint64_t seen = 0;
    struct iovec local = {&seen, sizeof seen}, remote = {(void *)(uintptr_t)address, sizeof seen};
    if (getsockopt(peer->socket, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || peer->link->no_cma)
        return;
    peer->pid = who.pid;
    peer->can_write =
        peer->pid && process_vm_readv(peer->pid, &local, 1, &remote, 1, 0) == (ssize_t)sizeof seen && seen == SHM_MAGIC;
    vk_store_release(&peer->rx->can_fetch, (uint32_t)peer->can_write);
    peer->link->cma_seen = peer->can_write;
}

/* Notifies the caller that it need not call again: it would fail for the same reason. This is the first message that
 * it receives after its HELLO. The failure is not recorded here, because the port is unverified. If this NIC calls it,
 * the reply will show the failure. */
void shm_refuse_no_memory(struct link_peer *peer)
{
    struct shm_greeting g = {.magic = NO_MEMORY_MAGIC, .port = peer->link->port, .version = WIRE_VERSION};
    (void)!vk_send(peer->socket, &g, sizeof g, MSG_NOSIGNAL | MSG_DONTWAIT);
}
