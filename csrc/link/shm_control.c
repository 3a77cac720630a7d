/*
 * How shm NICs connect and disconnect. Each listens on a Unix socket in the abstract namespace,
 * @viakit/shm/UID/NAME/PORT. Such names vanish with the process and are visible only within one network namespace (one
 * host of a testbed). They need not be secret: the kernel reports the user at the other end, and other users are
 * refused (base/user.h).
 *
 *     caller                                    listener
 *     makes the two rings
 *     HELLO + {rings, doorbell, segment} ---->  maps them
 *     maps                               <----  WELCOME + {doorbell, segment}
 *
 * The caller may send frames at once: they stay in the rings until the listener has mapped them. The socket stays open
 * and silent. When it hangs up, the other side is gone. The kernel closes a dead process's sockets, so no heartbeat is
 * needed, and a death is detected within the time of a wake-up.
 *
 * The listener and all such sockets are in one epoll descriptor, the link's control_fd. When that becomes readable, the
 * provider calls shm_control(), as the NIC's owner. The pointer of an event is the peer, NULL for the listener, the
 * link for the timer that runs while a greeting is delayed.
 *
 *   accept4 --> arriving (at most MAX_ARRIVING) --HELLO good, WELCOME sent--> peers
 *                   |                                                         |--hang-up, malformed--> dropped,
 *                   |--hang-up, malformed--> freed: no VI has a pointer to it       the struct is kept
 *
 * All contents of a greeting are checked before use: magic and version, number of descriptors, that memory is sealed
 * and of the right size, that a doorbell is an eventfd which never blocks its caller (shm_greeting.c, shm_memory.c).
 *
 * Invariant: a peer's struct is in one list: arriving, peers or departed. Only `peers` are polled and found by route().
 * Two NICs that call each other at the same moment have two connections, and both stay until one side ends.
 *
 * The NIC's owner calls all functions, and none blocks: sockets are non-blocking, and a Unix socket connects at once or
 * not at all. An event of epoll may name a peer that an earlier event of the same batch has dropped. Such a struct is
 * departed and not freed, so the event has no effect.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/files.h"
#include "link/shm.h"
#include "link/station.h"

#define MAX_ARRIVING 128          /* callers without a HELLO or a WELCOME so far: each occupies a descriptor */
#define GREET_AGAIN_NS 1000000    /* ns; the delay doubles after each failure */
#define GREET_LONGEST_NS 64000000 /* ns */

/* The target of a dead peer's rx_next. */
static const uint64_t nothing;

/* The user's number is part of the name: users do not meet, and cannot occupy each other's ports. */
static void prefix_of(const struct link *link, char prefix[96])
{
    snprintf(prefix, 96, "viakit/shm/%u/%s", (unsigned)getuid(), link->name);
}

/* Lists the ports of the other NICs of this station. Returns their number. */
int shm_ports(const struct link *link, uint16_t *ports, int max)
{
    char prefix[96];
    prefix_of(link, prefix);
    int n = station_ports(prefix, (long)geteuid(), ports, max);
    for (int i = 0; i < n; i++)
        if (ports[i] == link->port)
            ports[i--] = ports[--n];
    return n;
}

/* Explains that the name is open for another user, the likeliest reason for an absent NIC. Returns 0 if that is not the
 * reason. The result is cached, so that a repeated request does not read the kernel's list of sockets each time. */
int shm_explain_absence(struct link *link)
{
    uint64_t now = vk_now();
    if (link->refused_at && now - link->refused_at < VK_SECOND) {
        if (link->refused_as == VK_USER_UNKNOWN)
            vk_explain("VipConnectRequest: the user of the NIC at shm:%s cannot be verified: users without a number in "
                       "this user namespace all appear as %u, as this process does. Give this user a number (`unshare "
                       "--map-current-user`, a container user other than nobody), or use eth or udp",
                       link->name, (unsigned)getuid());
        else
            vk_explain("VipConnectRequest: the NIC at shm:%s is another user's, and shm joins processes of one user "
                       "only. Run both sides as the same user, or use eth or udp",
                       link->name);
        return 1;
    }
    if (link->other_user_seen == 0 || now - link->other_user_seen > VK_SECOND) {
        link->other_user_seen = now;
        link->other_user = station_other_user("viakit/shm", (unsigned)getuid(), link->name);
    }
    if (link->other_user >= 0)
        vk_explain("VipConnectRequest: no NIC of this user (%u) is at that address: shm:%s is open for user %ld, and "
                   "shm joins processes of one user only. Run both sides as the same user, or use eth or udp",
                   (unsigned)getuid(), link->name, link->other_user);
    return link->other_user >= 0;
}

/* Adds fd to the epoll descriptor. The top of the file lists the meanings of an event's pointer. EPOLLRDHUP: the other
 * end hung up, though data may still be unread. */
static int watch(struct link *link, int fd, void *what)
{
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP, .data.ptr = what};
    return epoll_ctl(link->epoll, EPOLL_CTL_ADD, fd, &e) == 0 ? 0 : -errno;
}

/* A child of this process may have the socket, too, so closing it does not end the connection. The shutdown does, and
 * no further event is reported. */
void shm_hang_up(struct link *link, int socket)
{
    if (socket < 0)
        return;
    shutdown(socket, SHUT_RDWR);
    epoll_ctl(link->epoll, EPOLL_CTL_DEL, socket, NULL); /* fails if it was not added yet */
    vk_file_close(socket);
}

/* Derives the address from the name, claims a port and listens. Returns 0 or -errno, explained. */
int shm_listen(struct link *link, const char *name)
{
    if (strlen(name) >= sizeof link->name || strchr(name, '/')) {
        vk_explain("shm: name '%.64s': at most %zu characters, without '/'", name, sizeof link->name - 1);
        return -EINVAL;
    }
    strcpy(link->name, name);
    station_name_to_address("", name, link->address);
    link->delay_ns = GREET_AGAIN_NS;
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
        vk_explain("shm: no control socket: %s", strerror(-error));
    return error;
}

/* ---------------------------------------------------------------- users and peers */

/* Only processes of this user get access to this NIC's memory. Counts refused processes. */
static enum vk_user check_user(struct link *link, int socket)
{
    enum vk_user user = vk_user_of_peer(socket, getuid());
    if (user != VK_USER_SAME)
        LINK_COUNT(link->client, refused_users, 1);
    if (user == VK_USER_UNKNOWN)
        link_trouble(link->client,
                     "refused a process whose user cannot be verified: users without a number in this user namespace "
                     "all appear as %u",
                     (unsigned)getuid());
    return user;
}

/* The peer is in no list yet, and owns the socket. Returns NULL if memory is exhausted: the socket is then still the
 * caller's. calloc: every position is 0, as at both ends of a new ring, because memory of a memfd is zero as well. */
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

/* Adds the peer to the list: it is polled, and route() finds it. */
static void insert(struct link *link, struct link_peer *peer)
{
    peer->alive = 1;
    peer->next = link->peers;
    link->peers = peer;
}

/* Closes and unmaps all that the two NICs share. The struct stays. */
void shm_release_peer(struct link_peer *peer)
{
    vk_file_close(peer->event_fd);
    vk_file_close(peer->rings_fd);
    shm_hang_up(peer->link, peer->socket);
    shm_unmap(peer);
    peer->event_fd = peer->rings_fd = peer->socket = -1;
}

/* Frees a peer that was never added to the list. */
static void discard(struct link_peer *peer)
{
    shm_release_peer(peer);
    free(peer);
}

/* Makes the control descriptor readable later, so that the delayed greeting is sent. Returns 0 or -errno. */
static int wake_later(struct link *link)
{
    struct itimerspec once = {.it_value = {0, link->delay_ns}};
    if (link->delayed_fd < 0) {
        int fd = vk_file_own(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)), error = fd < 0 ? -errno : 0;
        if (fd >= 0 && (error = watch(link, fd, link)) != 0)
            vk_file_close(fd);
        if (error)
            return error;
        link->delayed_fd = fd;
    }
    return timerfd_settime(link->delayed_fd, 0, &once, NULL) == 0 ? 0 : -errno;
}

/* Sends HELLO to a called NIC, or WELCOME to a caller. Returns 1 if sent, 0 if delayed, or -errno. A user without
 * special rights may have no more descriptors sent and not yet received, in the whole system, than open files
 * (RLIMIT_NOFILE). When many NICs connect at once, they exceed that number. The greeting is then delayed until other
 * processes have received theirs. Hanging up and calling again would instead fill the queues of callers with dead
 * entries. The delay doubles from GREET_AGAIN_NS to GREET_LONGEST_NS, and is short again after a success. */
static int greet(struct link_peer *peer)
{
    struct link *link = peer->link;
    int fds[3] = {peer->rings_fd, link->event_fd, link->segment_fd};
    /* HELLO has the rings in front; WELCOME does not, because HELLO brought them. */
    int error = peer->caller ? shm_send_greeting(peer, fds, 3) : shm_send_greeting(peer, fds + 1, 2);
    if (error == -ETOOMANYREFS)
        return wake_later(link);
    if (error)
        return error;
    link->delay_ns = GREET_AGAIN_NS;
    vk_file_close(peer->rings_fd);
    peer->rings_fd = -1;
    return 1;
}

/* Connects to the NIC of that port and makes the rings. *out can be sent to at once. Returns -EHOSTUNREACH if this user
 * has no such NIC, -EAGAIN if the NIC exists and its queue of callers is full. */
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
    int busy = 0; /* its queue of callers is full */
    /* A Unix socket connects at once, without action of the listener, or not at all. EAGAIN: the queue is full. */
    if (connect(s, (struct sockaddr *)&a, len) != 0)
        busy = errno == EAGAIN;
    else {
        enum vk_user user = check_user(link, s);
        if (user == VK_USER_SAME)
            peer = new_peer(link, s, 1);
        else { /* for shm_explain_absence() */
            link->refused_at = vk_now();
            link->refused_as = user;
        }
    }
    if (peer == NULL) {
        vk_file_close(s);
        return busy ? -EAGAIN : -EHOSTUNREACH;
    }
    peer->port = port;
    int error = shm_make_rings(peer);
    if (error >= 0) {
        peer->rings_fd = error;
        error = greet(peer);
    }
    if (error >= 0)
        error = watch(link, s, peer);
    if (error) {
        if (error == -ENOMEM)
            link_report_no_address_space(link->client, port);
        discard(peer);
        return error;
    }
    insert(link, peer);
    *out = peer;
    return 0;
}

/* Receives WELCOME, if it has arrived. The peer is dropped if the socket has failed, or if WELCOME is malformed or its
 * memory cannot be mapped. */
void shm_receive_greeting(struct link_peer *peer)
{
    struct shm_greeting g;
    int fds[3];
    if (peer->greeted) { /* no further data is due: unread bytes would wake this process again and again */
        char more;
        if (vk_recv(peer->socket, &more, 1, MSG_DONTWAIT) > 0)
            shm_drop_peer(peer);
        return;
    }
    int got = shm_read_greeting(peer->socket, &g, fds, 2);
    if (got == 1) {
        peer->event_fd = vk_file_own(fds[0]);
        int error = shm_map_station(peer, fds[1], &g.arena);
        if (error == -ENOMEM)
            link_report_no_address_space(peer->link->client, peer->port);
        if (error || !shm_is_doorbell(peer->event_fd)) {
            shm_drop_peer(peer);
            return;
        }
        peer->greeted = 1;
        shm_probe_cma(peer, g.probe_address);
        shm_doorbell(peer); /* for frames that were sent before the doorbell was there */
    } else if (got < 0) {
        if (got == -ENOMEM)
            link_report_no_address_space(peer->link->client, peer->port);
        shm_drop_peer(peer);
    }
}

/* Accepts a call, and takes the socket s. HELLO may still be on its way, so the peer waits among the arriving. A silent
 * caller occupies a place there. Only processes of the same user can do that, and they can occupy MAX_ARRIVING places
 * at most; further callers are hung up on. */
static void answer_call(struct link *link, int s)
{
    struct link_peer *peer =
        check_user(link, s) == VK_USER_SAME && link->n_arriving < MAX_ARRIVING ? new_peer(link, s, 0) : NULL;
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

/* Receives HELLO and maps the memory that comes with it. Returns the same as shm_read_greeting(). */
static int receive_hello(struct link_peer *peer)
{
    struct shm_greeting g;
    int fds[3];
    int got = shm_read_greeting(peer->socket, &g, fds, 3);
    if (got != 1)
        return got;
    peer->port = (uint16_t)g.port;
    peer->event_fd = vk_file_own(fds[1]);
    peer->probe_address = g.probe_address;
    int rings = shm_map_rings(peer, fds[0]),
        station = shm_map_station(peer, fds[2], &g.arena); /* both close their descriptors in any case */
    if (rings == -ENOMEM || station == -ENOMEM)
        shm_refuse_no_memory(peer);
    return rings || station || !shm_is_doorbell(peer->event_fd) ? -1 : 1;
}

/* Handles HELLO of an arriving peer, or its end. Returns 0 if the peer stays among the arriving, because HELLO has not
 * arrived or the reply is delayed. Returns 1 if it is connected, and a negative number if it has been freed. */
static int welcome(struct link *link, struct link_peer *peer)
{
    int got = peer->rings ? 1 : receive_hello(peer);
    if (got == 1)
        got = greet(peer);
    if (got == 0)
        return 0;
    /* Remove it from the list of the arriving, whatever the result. */
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
    shm_probe_cma(peer, peer->probe_address);
    insert(link, peer);
    return 1;
}

/* The timer has expired. If one greeting still fails for lack of descriptors, the others would fail, too. Arriving
 * peers wait for a WELCOME (they have rings: their HELLO was received), peers for a HELLO (they still have
 * rings_fd). */
static void greet_delayed(struct link *link)
{
    uint64_t ticks;
    if (vk_read(link->delayed_fd, &ticks, sizeof ticks) != sizeof ticks)
        return;
    if (link->delay_ns < GREET_LONGEST_NS)
        link->delay_ns *= 2;
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

/* For a NIC that closes. No VI has a pointer to these, so the structs are freed. */
void shm_drop_arriving(struct link *link)
{
    while (link->arriving) {
        struct link_peer *peer = link->arriving;
        link->arriving = peer->next;
        link->n_arriving--;
        discard(peer);
    }
}

/* An event names its peer only by address. The list shows whether that peer is not greeted yet. */
static int is_arriving(const struct link *link, const struct link_peer *peer)
{
    const struct link_peer *p = link->arriving;
    while (p && p != peer)
        p = p->next;
    return p != NULL;
}

/* Removes the peer from the list that is polled. A loop over that list that led to this call goes on by `next`. */
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

/* The peer is gone. Its earlier frames have been delivered; now its connections are lost. The struct stays, because VIs
 * may point at it. */
void shm_drop_peer(struct link_peer *peer)
{
    if (!peer->alive)
        return;
    peer->alive = 0;
    link_peer_lost(peer->link->client, peer);
    shm_release_peer(peer);
    peer->rx_next = &nothing; /* a loop over the list that is under way may still read it */
    peer->rx_freed = peer->rx_at;
    depart(peer);
}

/* Link operation: handles callers, greetings and ends of peers, at most 16 events, because the descriptor stays
 * readable while there are more. Frames that a peer sent before it died are delivered before the peer is dropped, as on
 * a wire. */
void shm_control(struct link *link)
{
    VK_HOLD_CANCEL;
    struct epoll_event events[16];
    int n = epoll_wait(link->epoll, events, 16, 0), expired = 0;
    for (int i = 0; i < n; i++) {
        struct link_peer *peer = events[i].data.ptr;
        if (events[i].data.ptr == link) {
            expired = 1; /* later: a peer that this removes may have an event here */
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
    if (expired)
        greet_delayed(link);
}
