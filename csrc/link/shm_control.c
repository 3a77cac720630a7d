/*
 * How shm NICs meet and part. Each listens on a Unix socket in the abstract namespace, @viakit/shm/UID/NAME/PORT:
 * such names vanish with the process, are seen only within one network namespace (one host of a testbed), and tell
 * nothing worth guessing, for the kernel says who calls (SO_PEERCRED) and other users are sent away.
 *
 *     caller                                    listener
 *     makes the two rings
 *     HELLO + {rings, doorbell, segment} ---->  maps them
 *     maps                               <----  WELCOME + {doorbell, segment}
 *
 * The caller may send frames at once: they lie in the rings until the listener has mapped them. The socket stays
 * open and silent; when it hangs up, the other side is gone, however it died: the kernel closes a dead process's
 * sockets, so no heartbeat is needed, and a death is known within the time of a wake-up.
 *
 * Where: the listener and all such sockets are in one epoll descriptor, the link's control_fd. When that becomes
 * readable the provider calls shm_control(), as the NIC's owner. The pointer of an event is the peer, NULL for the
 * listener, the link for the timer that runs while a greeting is owed.
 *
 *   accept4 --> arriving (at most MAX_ARRIVING) --HELLO good, WELCOME sent--> peers
 *                   |                                                         |--hang-up, nonsense--> dropped,
 *                   |--hang-up, nonsense--> freed: nobody has a pointer to it       kept as a shell
 *
 * Everything that comes with a greeting is checked before it is used: magic and version, number of descriptors, that
 * memory is sealed and of the right size, that a doorbell is an eventfd which never blocks whoever rings it.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "../base/cancel.h"
#include "../base/clock.h"
#include "../base/files.h"
#include "shm.h"
#include "station.h"

/* HELLO and WELCOME are the same but for their descriptors. SEQPACKET keeps them whole. */
struct greeting {
    uint64_t magic;
    uint32_t port;
    uint32_t version;
    uint64_t probe_address; /* of a word that holds SHM_MAGIC in the sender's own memory */
};

/* In place of a greeting, and without descriptors: we could not map what came with yours. */
#define NO_ROOM_MAGIC 0x56696153686d6e72ull

#define MAX_ARRIVING 128 /* callers that have not said HELLO or are owed a WELCOME: each holds a descriptor of ours */
#define GREET_AGAIN_NS 1000000 /* then twice that, and so on */
#define GREET_LONGEST_NS 64000000

/* A word whose address is told to every peer: whoever reads SHM_MAGIC there by process_vm_readv has leave to read
 * this process, and has the right one (process ids are reused, and mean nothing in another namespace). */
static uint64_t probe_word = SHM_MAGIC;
/* What a dead peer's rx_next points to. */
static const uint64_t nothing;

/* The user's number is part of the name: users do not meet, and cannot occupy each other's ports. */
static void prefix_of(const struct link *link, char prefix[96])
{
    snprintf(prefix, 96, "viakit/shm/%u/%s", (unsigned)getuid(), link->name);
}

/* Ports of the other NICs of our station. Returns their number. */
int shm_ports(const struct link *link, uint16_t *ports, int max)
{
    char prefix[96];
    prefix_of(link, prefix);
    int n = station_ports(prefix, ports, max);
    for (int i = 0; i < n; i++)
        if (ports[i] == link->port)
            ports[i--] = ports[--n];
    return n;
}

/* The same name, but another user: the likeliest reason why nobody is there; 0 if it is not the reason. Whoever asks
 * again and again until somebody is there shall not have us read the kernel's list of sockets each time. */
int shm_explain_absence(struct link *link)
{
    uint64_t now = vk_now();
    if (link->other_user_seen == 0 || now - link->other_user_seen > VK_SECOND) {
        link->other_user_seen = now;
        link->other_user = station_other_user("viakit/shm", (unsigned)getuid(), link->name);
    }
    if (link->other_user >= 0)
        via_explain("VipConnectRequest: no NIC of this user (%u) is at that address: shm:%s is open for user %ld, and "
                    "shm joins processes of one user only. Run both sides as the same user, or use eth or udp",
                    (unsigned)getuid(), link->name, link->other_user);
    return link->other_user >= 0;
}

/* What an event's pointer says is told at the top of the file. EPOLLRDHUP: the other end hung up, though something
 * may still be unread. */
static int watch(struct link *link, int fd, void *what)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = what};
    return epoll_ctl(link->epoll, EPOLL_CTL_ADD, fd, &e) == 0 ? 0 : -errno;
}

/* A child of ours may have the socket, too; then closing it does not end it. But nobody shall wait at its other end,
 * and no event of it may come any more. */
void shm_hang_up(struct link *link, int socket)
{
    if (socket < 0)
        return;
    shutdown(socket, SHUT_RDWR);
    epoll_ctl(link->epoll, EPOLL_CTL_DEL, socket, NULL); /* fails if it was not watched yet */
    vk_file_close(socket);
}

/* Address from the name (FNV-1a, 48 bits, locally administered), port by binding, listening. 0 or -errno, explained. */
int shm_listen(struct link *link, const char *name)
{
    /* FNV-1a, as in loop.c, of the name alone. */
    uint64_t h = 1469598103934665603ull;
    if (strlen(name) >= sizeof link->name || strchr(name, '/')) {
        via_explain("shm: name '%.64s': at most %zu characters, without '/'", name, sizeof link->name - 1);
        return -EINVAL;
    }
    strcpy(link->name, name);
    for (const char *p = name; *p; p++)
        h = (h ^ (uint8_t)*p) * 1099511628211ull;
    memcpy(link->address, &h, 6);
    link->address[0] = (uint8_t)((link->address[0] & 0xFC) | 0x02); /* locally administered */
    link->owed_ns = GREET_AGAIN_NS;
    link->epoll = vk_file_own(epoll_create1(EPOLL_CLOEXEC));
    link->listener = vk_file_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    char prefix[96];
    prefix_of(link, prefix);
    int error = link->epoll < 0 || link->listener < 0 ? -errno : station_claim(link->listener, prefix, &link->port);
    if (error == 0 && listen(link->listener, 128) != 0)
        error = -errno;
    if (error == 0)
        error = watch(link, link->listener, NULL);
    if (error)
        via_explain("shm: no control socket: %s", strerror(-error));
    return error;
}

/* ---------------------------------------------------------------- greetings */

/* 0 or -errno. A greeting is shorter than any socket buffer and the first in its socket, so it is sent at once or
 * not at all. MSG_NOSIGNAL: a peer that died meanwhile is an error code, not a SIGPIPE for the program. */
static int send_greeting(struct link_peer *peer, const int *fds, int n_fds)
{
    struct greeting g = {SHM_MAGIC, peer->link->port, WIRE_VERSION, (uint64_t)(uintptr_t)&probe_word};
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

/* 1 a greeting with its descriptors, 0 nothing yet, -1 hung up or nonsense, -ENOMEM: the sender had no room for us.
 * Descriptors that come with a bad greeting are closed: they are ours as soon as recvmsg has returned. */
static int read_greeting(int socket, struct greeting *g, int *fds, int want)
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
    return got == (ssize_t)sizeof *g && g->magic == NO_ROOM_MAGIC && n == 0 ? -ENOMEM : -1;
}

/* A file that its owner could shorten would kill us with SIGBUS wherever we touch it (F_SEAL_SHRINK rules that out
 * for good). */
static int is_sealed(int fd)
{
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK);
}

/* Ringing must not block us: the peer's doorbell has to be an eventfd, and one that says so when it is full. */
static int is_doorbell(int fd)
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

/* What is mapped for another NIC is of no use to anybody else: -ENOMEM if there is no room for it, -1 for what is no
 * such memory. */
static int map_failed(int error)
{
    return error == ENOMEM ? -ENOMEM : -1;
}

/* Maps the peer's segment. The descriptor is closed. 0, or as map_failed(). */
static int map_station(struct link_peer *peer, int fd)
{
    struct stat st;
    void *p = MAP_FAILED;
    errno = 0;
    if (is_sealed(fd) && fstat(fd, &st) == 0 && st.st_size > SHM_TABLE_OFFSET)
        p = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    int error = errno;
    close(fd);
    if (p == MAP_FAILED)
        return map_failed(error);
    struct shm_station *s = p;
    uint64_t size = (uint64_t)st.st_size;
    peer->arena_offset = vk_load_relaxed(&s->arena_offset); /* once: the peer could change them later */
    peer->arena_len = vk_load_relaxed(&s->arena_len);
    peer->arena_address = vk_load_relaxed(&s->arena_address);
    /* In this order, so that no subtraction wraps: the offset lies within the file, then the length within what is
     * behind it. */
    if (s->magic != SHM_MAGIC || peer->arena_offset > size || peer->arena_offset < SHM_TABLE_OFFSET ||
        peer->arena_len > size - peer->arena_offset) {
        munmap(p, (size_t)st.st_size);
        return -1;
    }
    madvise(p, (size_t)st.st_size, MADV_DONTDUMP);
    peer->station = p;
    peer->station_len = (size_t)st.st_size;
    return 0;
}

/* Maps the pair of rings. The descriptor is closed. Which is which depends on who called. */
static int map_rings(struct link_peer *peer, int fd)
{
    struct stat st;
    void *p = MAP_FAILED;
    errno = 0;
    if (is_sealed(fd) && fstat(fd, &st) == 0 && st.st_size == (off_t)sizeof(struct shm_rings))
        p = mmap(NULL, sizeof(struct shm_rings), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    close(fd);
    if (p == MAP_FAILED) {
        errno = error; /* for make_rings() */
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

/* Tries what process_vm_readv may do, and tells the peer; writing needs the same permission (ptrace's: the same user,
 * and under Yama the leave that shm_open_link gives). Sending by reference depends on the *receiver's* permission, so
 * it has to be told across the ring.
 *
 *    can_write        we may copy to and from the peer (kept here)
 *    rx->can_fetch    the same, told to the peer: it may send us references into its memory */
static void probe_cma(struct link_peer *peer, uint64_t address)
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

/* The kernel's word about who is at the other end, noted when the two were connected; he can neither forge nor
 * change it. */
static int same_user(int socket)
{
    struct ucred who;
    socklen_t len = sizeof who;
    return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 && who.uid == getuid();
}

/* In no list yet. calloc: every position is 0, as both ends of a new ring are, and memory of a memfd is zero as
 * well. */
static struct link_peer *new_peer(struct link *link, int socket, int caller)
{
    struct link_peer *p = calloc(1, sizeof *p);
    if (p == NULL)
        return NULL;
    p->link = link;
    p->socket = socket;
    p->event_fd = p->rings_fd = -1;
    p->caller = caller;
    memcpy(p->address, link->address, 6);
    return p;
}

/* From now on it is polled, and route() finds it. */
static void insert(struct link *link, struct link_peer *peer)
{
    peer->alive = 1;
    peer->next = link->peers;
    link->peers = peer;
}

/* Of a peer that nobody has seen: all of it goes. */
static void discard(struct link_peer *peer)
{
    if (peer->rings)
        munmap(peer->rings, sizeof *peer->rings);
    if (peer->station)
        munmap(peer->station, peer->station_len);
    vk_file_close(peer->event_fd);
    vk_file_close(peer->rings_fd);
    shm_hang_up(peer->link, peer->socket);
    free(peer);
}

/* The kernel will make the control descriptor readable, so that whoever is owed a greeting gets it. 0 or -errno. */
static int wake_later(struct link *link)
{
    struct itimerspec once = {.it_value = {0, link->owed_ns}};
    if (link->owed_fd < 0) {
        int fd = vk_file_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)), error = fd < 0 ? -errno : 0;
        if (fd >= 0 && (error = watch(link, fd, link)) != 0)
            vk_file_close(fd);
        if (error)
            return error;
        link->owed_fd = fd;
    }
    return timerfd_settime(link->owed_fd, 0, &once, NULL) == 0 ? 0 : -errno;
}

/* HELLO to whom we call, WELCOME to who called. 1 sent; 0 owed; or -errno. Of descriptors that were sent and not
 * received yet nobody may have more in all the system than files open (RLIMIT_NOFILE), if he may not exceed that;
 * when many NICs meet at once they come past it. The greeting stays owed until others have been taken off their
 * sockets: to hang up instead and call again would fill the queues of callers, and those who wait in them in vain.
 * The time until the next try doubles from GREET_AGAIN_NS to GREET_LONGEST_NS, and is short again after a success. */
static int greet(struct link_peer *peer)
{
    struct link *link = peer->link;
    int fds[3] = {peer->rings_fd, link->event_fd, link->segment_fd};
    /* HELLO has the rings in front; WELCOME does not, for they came with HELLO. */
    int error = peer->caller ? send_greeting(peer, fds, 3) : send_greeting(peer, fds + 1, 2);
    if (error == -ETOOMANYREFS)
        return wake_later(link);
    if (error)
        return error;
    link->owed_ns = GREET_AGAIN_NS;
    vk_file_close(peer->rings_fd);
    peer->rings_fd = -1;
    return 1;
}

/* The rings of a new pair, sealed, mapped; the descriptor to hand over. */
static int make_rings(struct link_peer *peer)
{
    /* With F_SEAL_SEAL nobody can add a seal later, either. */
    int fd = vk_file_own(memfd_create("viakit-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (fd < 0)
        return -errno;
    int copy = -1;
    if (ftruncate(fd, (off_t)sizeof(struct shm_rings)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0 ||
        (copy = fcntl(fd, F_DUPFD_CLOEXEC, 3)) < 0 || map_rings(peer, copy) != 0) {
        int error = errno ? -errno : -ENOMEM;
        vk_file_close(fd);
        return error;
    }
    return fd;
}

/* Makes a connection to the NIC of that port, and its rings. *out can be sent to at once. -EHOSTUNREACH: no such NIC
 * of this user; -EAGAIN: its queue of callers is full, it is there. */
int shm_call(struct link *link, uint16_t port, struct link_peer **out)
{
    VK_HOLD_CANCEL;
    struct sockaddr_un a;
    char prefix[96];
    prefix_of(link, prefix);
    socklen_t len = station_name(prefix, port, &a);
    int s = vk_file_own(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (s < 0)
        return -errno;
    struct link_peer *peer = NULL;
    int busy = 0; /* more callers wait there than it listens for */
    /* A Unix socket connects at once, without the listener's doing anything, or not at all; EAGAIN: the queue is
     * full. */
    if (connect(s, (struct sockaddr *)&a, len) != 0)
        busy = errno == EAGAIN;
    else if (same_user(s))
        peer = new_peer(link, s, 1);
    if (peer == NULL) {
        vk_file_close(s);
        return busy ? -EAGAIN : -EHOSTUNREACH;
    }
    peer->port = port;
    int error = make_rings(peer);
    if (error >= 0) {
        peer->rings_fd = error;
        error = greet(peer);
    }
    if (error >= 0)
        error = watch(link, s, peer);
    if (error) {
        if (error == -ENOMEM)
            link_no_room(link->nic, port);
        discard(peer);
        return error;
    }
    insert(link, peer);
    *out = peer;
    return 0;
}

/* WELCOME, if it is there. */
void shm_receive_greeting(struct link_peer *peer)
{
    struct greeting g;
    int fds[3];
    if (peer->greeted) { /* there is nothing more to say: what stayed unread would wake us again and again */
        char more;
        if (vk_recv(peer->socket, &more, 1, MSG_DONTWAIT) > 0)
            shm_drop_peer(peer);
        return;
    }
    int got = read_greeting(peer->socket, &g, fds, 2);
    if (got == 1) {
        peer->event_fd = vk_file_own(fds[0]);
        int error = map_station(peer, fds[1]);
        if (error == -ENOMEM)
            link_no_room(peer->link->nic, peer->port);
        if (error || !is_doorbell(peer->event_fd)) {
            shm_drop_peer(peer);
            return;
        }
        peer->greeted = 1;
        probe_cma(peer, g.probe_address);
        shm_doorbell(peer); /* for what was sent before the doorbell was there */
    } else if (got < 0) {
        if (got == -ENOMEM)
            link_no_room(peer->link->nic, peer->port);
        shm_drop_peer(peer);
    }
}

/* Somebody calls. HELLO may still be on its way: the peer waits among the arriving. Whoever calls and says nothing
 * holds a place there, and MAX_ARRIVING of them are all that one user can cost himself. */
static void answer_call(struct link *link, int s)
{
    struct link_peer *peer = same_user(s) && link->n_arriving < MAX_ARRIVING ? new_peer(link, s, 0) : NULL;
    if (peer == NULL) {
        vk_file_close(s);
        return;
    }
    if (watch(link, s, peer) != 0) {
        discard(peer);
        return;
    }
    peer->next = link->arriving;
    link->arriving = peer;
    link->n_arriving++;
}

/* The caller is told that it need not call again. Its HELLO has been read, so this is the first that it hears. It is
 * not noted here: the port is the caller's own word, and who calls it finds out by its WELCOME. */
static void refuse_for_want_of_room(struct link_peer *peer)
{
    struct greeting g = {NO_ROOM_MAGIC, peer->link->port, WIRE_VERSION, 0};
    (void)!vk_send(peer->socket, &g, sizeof g, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* HELLO, and all that comes with it, mapped. As read_greeting(). */
static int take_hello(struct link_peer *peer)
{
    struct greeting g;
    int fds[3];
    int got = read_greeting(peer->socket, &g, fds, 3);
    if (got != 1)
        return got;
    peer->port = (uint16_t)g.port;
    peer->event_fd = vk_file_own(fds[1]);
    peer->probe_address = g.probe_address;
    int rings = map_rings(peer, fds[0]), station = map_station(peer, fds[2]); /* close descriptors either way */
    if (rings == -ENOMEM || station == -ENOMEM)
        refuse_for_want_of_room(peer);
    return rings || station || !is_doorbell(peer->event_fd) ? -1 : 1;
}

/* HELLO of an arriving peer, or its end. 0: it stays among the arriving, because there was none or it is owed the
 * answer. */
static int welcome(struct link *link, struct link_peer *peer)
{
    int got = peer->rings ? 1 : take_hello(peer);
    if (got == 1)
        got = greet(peer);
    if (got == 0)
        return 0;
    /* Off the list of the arriving, whatever has come of it. */
    struct link_peer **p = &link->arriving;
    while (*p != peer)
        p = &(*p)->next;
    *p = peer->next;
    link->n_arriving--;
    if (got < 0) {
        discard(peer);
        return got;
    }
    peer->greeted = 1;
    probe_cma(peer, peer->probe_address);
    insert(link, peer);
    return 1;
}

/* The timer has run out. Where one greeting is still too much others would be, too. Arriving peers are owed a
 * WELCOME (they have rings: their HELLO was taken), peers a HELLO (they still have rings_fd). */
static void greet_owed(struct link *link)
{
    uint64_t ticks;
    if (vk_read(link->owed_fd, &ticks, sizeof ticks) != sizeof ticks)
        return;
    if (link->owed_ns < GREET_LONGEST_NS)
        link->owed_ns *= 2;
    for (struct link_peer *p = link->arriving, *next; p; p = next) {
        next = p->next;
        if (p->rings && welcome(link, p) == 0)
            return;
    }
    for (struct link_peer *p = link->peers, *next; p; p = next) {
        next = p->next;
        int sent = p->rings_fd >= 0 ? greet(p) : 1;
        if (sent == 0)
            return;
        if (sent < 0)
            shm_drop_peer(p);
    }
}

void shm_drop_arriving(struct link *link)
{
    while (link->arriving) {
        struct link_peer *peer = link->arriving;
        link->arriving = peer->next;
        link->n_arriving--;
        discard(peer);
    }
}

/* An event names its peer by address only; the list says whether it is one of those that are not greeted yet. */
static int is_arriving(const struct link *link, const struct link_peer *peer)
{
    const struct link_peer *p = link->arriving;
    while (p && p != peer)
        p = p->next;
    return p != NULL;
}

/* Out of the list that is polled, however many come and go. Whoever walks through that list just now, and has called
 * us, goes on by `next`. */
static void depart(struct link_peer *peer)
{
    struct link_peer **p = &peer->link->peers;
    while (*p && *p != peer)
        p = &(*p)->next;
    if (*p)
        *p = peer->next;
    peer->next_departed = peer->link->departed;
    peer->link->departed = peer;
}

/* The peer is gone. What it sent before is still delivered; then its connections are lost. The struct stays, for VIs
 * may point at it. */
void shm_drop_peer(struct link_peer *peer)
{
    if (!peer->alive)
        return;
    peer->alive = 0;
    link_peer_lost(peer->link->nic, peer);
    vk_file_close(peer->event_fd);
    vk_file_close(peer->rings_fd);
    shm_hang_up(peer->link, peer->socket);
    munmap(peer->rings, sizeof *peer->rings);
    if (peer->station)
        munmap(peer->station, peer->station_len);
    peer->rx_next = &nothing; /* a walk that is under way may come by */
    peer->rx_freed = peer->rx_at;
    peer->rings = NULL;
    peer->station = NULL;
    peer->event_fd = peer->rings_fd = peer->socket = -1;
    depart(peer);
}

/* Link operation: callers, greetings, ends; at most 16 events, for the descriptor stays readable while there are
 * more. What a peer sent before it died is delivered before it is given up, as a wire would. */
void shm_control(struct link *link)
{
    VK_HOLD_CANCEL;
    struct epoll_event events[16];
    int n = epoll_wait(link->epoll, events, 16, 0), owed = 0;
    for (int i = 0; i < n; i++) {
        struct link_peer *peer = events[i].data.ptr;
        if (events[i].data.ptr == link) {
            owed = 1; /* later: a peer that goes then may have an event here */
            continue;
        }
        if (peer == NULL) {
            int s;
            for (int k = 0;
                 k < MAX_ARRIVING && (s = accept4(link->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0; k++)
                answer_call(link, vk_file_own(s));
            continue;
        }
        if (is_arriving(link, peer)) {
            welcome(link, peer);
            continue;
        }
        if (!peer->alive)
            continue;
        shm_receive_greeting(peer);
        if (peer->alive && (events[i].events & (EPOLLHUP | EPOLLRDHUP | EPOLLERR))) {
            while (peer->alive && shm_poll_peer(peer, SHM_CELLS) > 0) {}
            shm_drop_peer(peer);
        }
    }
    if (owed)
        greet_owed(link);
}
