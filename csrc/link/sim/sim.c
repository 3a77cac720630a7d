/*
 * sim: a link whose time is virtual. The real programs and protocols run on it, and their time is that of a described
 * machine (docs/machines.md), such as a paper's cluster.
 *
 *    send    charges the sender's processor, computes the frame's times, and stores it                path.c
 *    poll    waits until no other rank is earlier, then delivers the frames that have arrived         turns.c
 *    idle    moves the clock to the next arrival or timer                                             clock.c
 *
 * Until the ranks have begun (vk_virtual->begin), and after they have ended, time is real and the link is a plain
 * mailbox between processes: frames are copied into shared memory and arrive at once. Programs set up their connections
 * in real time, and measure in virtual time. A process without a machine's description stays in real time.
 *
 * Costs of the processor are charged per message, at its first frame on the sender and at its last on the receiver.
 * Connection requests cost as much as a message. Acknowledgements cost nothing and pass no bus, because the cards
 * exchange them.
 *
 * The link loses nothing. A receiver that does not poll stops its senders after SIM_FLOW frames.
 *
 * A frame belongs to its sender until sim_path_send(), then to the path, and after sim_path_take() to the receiver,
 * which frees its slot. All of that happens with the world's mutex, which orders the bytes of a slot between
 * processes. The few reads without the mutex (n_deaths, `first`) are hints, so they need no barrier.
 *
 * Only the NIC's owner calls the operations. In virtual time send and poll may sleep until the rank's turn. Not done:
 * super-frames, because each frame has its own time on the line.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/explain.h"
#include "base/files.h"
#include "base/virtual.h"
#include "link/frame_layout.h"
#include "link/link.h"
#include "link/sim/world.h"
#include "link/station.h"

/* A route. `port` is an index in the world's table; a port that was closed and used again has another generation. */
struct link_peer {
    uint8_t address[6]; /* first */
    uint16_t number;
    uint32_t port, generation;
    int pidfd; /* its process; -1: not watched, or gone */
    struct link_peer *next;
};

/* The beginning of the abstract names of this machine's NICs (station.h). It contains the user, so that two users may
 * have machines of one name. */
static void prefix_of(const struct sim_view *v, char prefix[64])
{
    snprintf(prefix, 64, "viakit/sim/%u/%s", (unsigned)getuid(), v->name);
}

/* ---------------------------------------------------------------- opening and closing */

/* Enter the NIC into the world's table. Returns 0, or -EMFILE if SIM_PORTS are in use. */
static int take_port(struct link *link, uint16_t number)
{
    struct sim_world *w = link->view->world;
    sim_lock(w);
    link->port = sim_port_take(link->view, number, 0);
    sim_unlock(w);
    return link->port == SIM_NONE ? -EMFILE : 0;
}

/* Wake a thread that sleeps on the receiving NIC's socket. With the mutex, so `sleeping` cannot change meanwhile. One
 * byte is enough: the socket only has to be readable. */
static void ring(struct link *link, struct sim_port *to)
{
    char prefix[64];
    struct sockaddr_un a;
    if (!to->sleeping)
        return;
    to->sleeping = 0;
    prefix_of(link->view, prefix);
    socklen_t len = station_name(prefix, (uint16_t)to->number, &a);
    ssize_t sent = vk_sendto(link->socket, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL, (struct sockaddr *)&a, len);
    (void)sent; /* full: it is readable already; refused: the process is gone */
    LINK_COUNT(link->client, doorbells, 1);
}

/* Enter the sender. With the mutex. The receiver finds its route by port and generation, and shows the number. */
static void sign(const struct link *link, struct sim_slot *s)
{
    const struct sim_port *p = &link->view->world->ports[link->port];
    s->from_port = (uint16_t)link->port;
    s->from_number = (uint16_t)p->number;
    s->from_generation = p->generation;
}

/* Store a notice that this NIC has closed at every other one. With the mutex. A NIC for which no slot is left misses
 * the notice. It detects the closed port by its generation, when it sends next. */
static void report_closed(struct link *link)
{
    struct sim_view *v = link->view;
    struct sim_world *w = v->world;
    for (uint32_t i = 0; i < SIM_PORTS; i++) {
        uint32_t slot = i != link->port && w->ports[i].used && !w->ports[i].is_stream ? sim_slot_take(w, 1) : SIM_NONE;
        if (slot == SIM_NONE)
            continue;
        struct sim_slot *s = sim_slot_at(w, slot);
        s->kind = SIM_LOST;
        sign(link, s);
        s->len = s->payload = s->of_card = 0;
        sim_path_send(v, slot, i);
        ring(link, &w->ports[i]);
        sim_arrival(w, w->ports[i].member);
    }
}

/* Link operation. Also undoes an opening that failed half-way: a descriptor of -1 and a port of SIM_NONE are skipped.
 */
static void sim_close(struct link *link)
{
    struct sim_view *v = link->view;
    if (v && link->port != SIM_NONE) {
        sim_lock(v->world);
        report_closed(link);
        sim_port_leave(v->world, link->port);
        sim_unlock(v->world);
        for (struct link **at = &v->links; *at; at = &(*at)->next)
            if (*at == link) {
                *at = link->next;
                break;
            }
    }
    /* The last NIC takes the process out of the machine, and virtual time with it. */
    if (v && --v->n_links == 0)
        sim_world_close(v);
    while (link->peers) {
        struct link_peer *p = link->peers;
        link->peers = p->next;
        vk_file_close(p->pidfd);
        free(p);
    }
    vk_file_close(link->epoll);
    vk_file_close(link->socket);
    free(link);
}

/* Link operation. `device` is NAME of sim:NAME, and "" means "0". The options are for links with frames of their own;
 * here the machine's description decides. Returns 0, or -errno with an explanation. */
static int sim_open(struct link_client *client, const char *device, const viakit_nic_options *options,
                    struct link **out, struct link_limits *limits)
{
    (void)options;
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    *link = (struct link){.client = client, .port = SIM_NONE, .socket = -1, .epoll = -1};
    const char *name = *device ? device : "0";
    int error = sim_world_open(name, &link->view);
    char prefix[64];
    uint16_t number = 0;
    const struct sim_machine *machine = error == 0 ? &link->view->world->machine : NULL;
    if (error == 0)
        link->view->n_links++;
    if (error == 0 && link->view->world->has_machine && !machine->has_via && !machine->has_bip) {
        vk_explain(
            "machine %s has no section [via] and no [bip], so its cards are no NICs for VIA: use its sockets, by "
            "protocol tcp",
            machine->name);
        error = -ENODEV;
    }
    if (error == 0) {
        prefix_of(link->view, prefix);
        link->socket = vk_file_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        link->epoll = vk_file_own(epoll_create1(EPOLL_CLOEXEC));
        error = link->socket < 0 || link->epoll < 0 ? -errno : station_claim(link->socket, prefix, &number);
        if (error == 0)
            error = take_port(link, number);
        if (error)
            vk_explain("sim: %s", strerror(-error));
    }
    if (error) {
        sim_close(link);
        return error;
    }
    /* The list is read by next_due() in clock.c, which runs in the same process. */
    link->next = link->view->links;
    link->view->links = link;
    station_name_to_address("sim", name, link->address);
    const struct sim_world *w = link->view->world;
    *limits = (struct link_limits){.port = number,
                                   .mtu = w->max_payload,
                                   .max_payload = w->max_payload,
                                   .max_batch = 8,
                                   .ring_slots = SIM_FLOW,
                                   /* On a described machine only the ranks' own calls move the clock. A NIC's thread
                                    * would poll at real times. */
                                   .no_thread = w->has_machine,
                                   .data_fd = link->socket,
                                   .control_fd = link->epoll};
    memcpy(limits->address, link->address, 6);
    *out = link;
    return 0;
}

/* ---------------------------------------------------------------- peers */

/* Have the kernel report when the peer's process ends. Without pidfds (Linux 5.3) its death remains unnoticed. */
static void watch_process(struct link *link, struct link_peer *peer)
{
    const struct sim_world *w = link->view->world;
    uint32_t pid = w->members[w->ports[peer->port].member].pid;
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = peer};
    peer->pidfd = -1;
    /* A peer in this process ends with it. */
    if (pid == link->view->me->pid)
        return;
    peer->pidfd = vk_file_own((int)syscall(SYS_pidfd_open, pid, 0));
    if (peer->pidfd >= 0)
        epoll_ctl(link->epoll, EPOLL_CTL_ADD, peer->pidfd, &e);
}

/* Link operation: detects the ends of processes. While time is virtual, a death is noticed by those that wait for the
 * rank's turn (turns.c), and this makes no system call before that. */
static void sim_control(struct link *link)
{
    struct sim_view *v = link->view;
    struct sim_world *w = v->world;
    struct epoll_event events[16];
    /* n_deaths only grows. A stale value delays the notice to the next poll. */
    uint32_t deaths = vk_load_relaxed(&w->n_deaths);
    if (v->depth && deaths == link->deaths_seen)
        return;
    link->deaths_seen = deaths;
    int n = epoll_wait(link->epoll, events, 16, 0);
    for (int i = 0; i < n; i++) {
        struct link_peer *peer = events[i].data.ptr;
        vk_file_close(peer->pidfd); /* this also removes it from the epoll */
        peer->pidfd = -1;
        sim_lock(w);
        if (w->ports[peer->port].used && w->ports[peer->port].generation == peer->generation)
            sim_member_bury(w, w->ports[peer->port].member);
        sim_unlock(w);
        link_peer_lost(link->client, peer);
    }
}

/* Returns the route, a new one if necessary. NULL: no memory. Routes are kept until the NIC closes: frames that are
 * under way name their sender by port and generation. The list has one entry for each NIC ever met, so it is searched
 * from the latest on. */
static struct link_peer *find_peer(struct link *link, uint32_t port, uint32_t generation, uint16_t number)
{
    for (struct link_peer *peer = link->peers; peer; peer = peer->next)
        if (peer->port == port && peer->generation == generation)
            return peer;
    struct link_peer *peer = malloc(sizeof *peer);
    if (peer == NULL)
        return NULL;
    *peer = (struct link_peer){.number = number, .port = port, .generation = generation, .next = link->peers};
    memcpy(peer->address, link->address, 6);
    watch_process(link, peer);
    link->peers = peer;
    return peer;
}

/* The route to the NIC that has this port now, or NULL. */
static struct link_peer *peer_at(struct link *link, uint32_t port)
{
    const struct sim_port *p = &link->view->world->ports[port];
    return find_peer(link, port, p->generation, (uint16_t)p->number);
}

/* Link operation. Returns 0, -EHOSTUNREACH if the machine has no such NIC, or -ENOMEM. */
static int sim_route(struct link *link, const uint8_t address[6], uint16_t number, struct link_peer **out)
{
    struct sim_world *w = link->view->world;
    int error = -EHOSTUNREACH;
    /* One world is one station: an address with another name is on no machine that this NIC can reach. */
    if (memcmp(address, link->address, 6) != 0)
        return error;
    sim_lock(w);
    for (uint32_t i = 0; i < SIM_PORTS && error == -EHOSTUNREACH; i++)
        if (w->ports[i].used && !w->ports[i].is_stream && w->ports[i].number == number && sim_port_lives(w, i)) {
            *out = peer_at(link, i);
            error = *out ? 0 : -ENOMEM;
        }
    sim_unlock(w);
    return error;
}

static int sim_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n);

/* The ports of the station, this NIC's last. Returns their number. Ports of processes that have died are removed on the
 * way. */
static int list_ports(struct link *link, uint32_t ports[SIM_PORTS])
{
    struct sim_world *w = link->view->world;
    int n = 0;
    sim_lock(w);
    for (uint32_t i = 0; i < SIM_PORTS; i++)
        if (w->ports[i].used && !w->ports[i].is_stream && i != link->port && sim_port_lives(w, i))
            ports[n++] = i;
    sim_unlock(w);
    ports[n++] = link->port;
    return n;
}

/* Link operation. The request also goes to this NIC, because a process may connect two VIs of one NIC. */
static int sim_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    uint32_t ports[SIM_PORTS];
    if (memcmp(address, link->address, 6) != 0)
        return 0;
    int n = list_ports(link, ports), n_sent = 0;
    for (int i = 0; i < n; i++) {
        struct link_peer *peer = peer_at(link, ports[i]);
        if (peer == NULL)
            continue;
        frame->header.dst_port = peer->number;
        n_sent += sim_send(link, peer, frame, 1) == 1;
    }
    return n_sent < n ? LINK_UNKNOWN : n_sent;
}

/* Link operation. This NIC counts, too, as in sim_request_all(). */
static int sim_count_neighbours(struct link *link)
{
    uint32_t ports[SIM_PORTS];
    return list_ports(link, ports);
}

/* ---------------------------------------------------------------- costs */

/* The lower half of the byte; the upper one is the version. */
static int kind_of(const struct wire_header *h)
{
    return h->version_kind & 15;
}

/* Returns the cost of sending this frame for the processor. Only the first frame of a message has the message's own
 * cost. An acknowledgement costs nothing. */
static double cost_to_send(const struct sim_machine *m, const struct wire_header *h)
{
    int kind = kind_of(h);
    double cost = kind <= WIRE_WRITE ? m->via_frame : 0;
    if (kind <= WIRE_WRITE && h->flags & WIRE_FLAG_FIRST)
        cost += kind == WIRE_WRITE ? m->via_write : m->via_send;
    if (kind >= WIRE_REQUEST)
        cost += m->via_send;
    return cost;
}

/* Returns the cost of an arrived frame for the processor. A target notices an RDMA write without immediate data by
 * polling its memory. */
static double cost_to_receive(const struct sim_machine *m, const struct wire_header *h, uint32_t payload)
{
    int kind = kind_of(h);
    double cost = kind <= WIRE_WRITE ? m->via_frame + m->via_copies * (m->copy_start + payload * m->copy) : 0;
    if (kind <= WIRE_WRITE && h->flags & WIRE_FLAG_LAST)
        cost += kind == WIRE_WRITE && !(h->flags & WIRE_FLAG_IMMEDIATE) ? m->via_notice : m->via_receive;
    if (kind >= WIRE_REQUEST)
        cost += m->via_receive;
    return cost;
}

/* ---------------------------------------------------------------- the data path */

/* Link operation. Frames of one call go one by one: each has its own time on the line. Returns how many frames were
 * taken, or -EAGAIN if the receiver has SIM_FLOW unread ones from this member or memory is short. Frames to a NIC that
 * has closed count as taken. */
static int sim_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct sim_view *v = link->view;
    struct sim_world *w = v->world;
    struct sim_port *to = &w->ports[peer->port];
    int sent = 0, gone = 0;
    sim_lock(w);
    for (; sent < n; sent++) {
        struct link_frame *f = &frames[sent];
        gone = !to->used || to->generation != peer->generation;
        if (gone)
            break;
        /* The first four frames of a member may use the reserve, so that acknowledgements and requests pass when data
         * has taken all other slots. */
        uint32_t i = to->n_from[v->index] < SIM_FLOW ? sim_slot_take(w, to->n_from[v->index] < 4) : SIM_NONE;
        if (i == SIM_NONE) {
            /* The receiver wakes this member when it has read one of its frames (sim_path_take). */
            to->blocked[v->index / 64] |= 1ull << v->index % 64;
            break;
        }
        struct sim_slot *s = sim_slot_at(w, i);
        s->kind = SIM_FRAME;
        sign(link, s);
        s->len = (uint32_t)(f->header_len + f->payload_len);
        s->payload = (uint32_t)f->payload_len;
        /* Data goes through the processor and the bus. All else up to DISCONNECT is the cards' own exchange, and costs
         * the ranks nothing. */
        s->of_card = kind_of(&f->header) > WIRE_WRITE && kind_of(&f->header) < WIRE_DISCONNECT;
        link_lay_out(s->bytes, f);
        /* The cost first, then the turn: the frame is on its way at the time at which the processor has finished it. */
        sim_spend(v, cost_to_send(&w->machine, &f->header));
        sim_take_turn(v);
        sim_path_send(v, i, peer->port);
        ring(link, to);
        sim_arrival(w, to->member);
        link_count_copied(link->client, f->payload_len);
    }
    sim_unlock(w);
    if (gone)
        return n; /* closed: the frames are lost, as on any wire */
    return sent ? sent : -EAGAIN;
}

/* Link operation. A frame is copied before it is delivered, because link_deliver() may send, which locks the mutex.
 * Returns the number of frames taken off the list, of at most `budget`. In virtual time it may hand over to other
 * ranks. */
static int sim_poll(struct link *link, int budget)
{
    /* On the stack, because several NICs of a process may be polled by different threads. */
    uint64_t aligned[(SIM_BLOCK + 32768) / 8];
    struct sim_view *v = link->view;
    struct sim_world *w = v->world;
    int n = 0;
    if (v->depth == 0 && vk_load_relaxed(&w->ports[link->port].first) == SIM_NONE)
        return 0; /* a stale value is corrected by the next poll */
    for (; n < budget; n++) {
        sim_lock(w);
        if (v->depth && v->vain_polls && --v->vain_polls) { /* clock.c, idle: nothing has happened for this rank */
            sim_unlock(w);
            break;
        }
        /* Before the list is read: an earlier rank could still send a frame that arrives first. */
        if (v->depth)
            sim_take_turn(v);
        sim_path_settle(w, v->me->host, v->depth ? v->me->clock : SIM_NEVER);
        uint32_t i = sim_path_take(w, link->port, v->depth ? v->me->clock : SIM_NEVER);
        if (i == SIM_NONE) {
            sim_unlock(w);
            break;
        }
        struct sim_slot *s = sim_slot_at(w, i);
        uint32_t len = s->len, payload = s->payload, kind = s->kind;
        struct link_peer *from = find_peer(link, s->from_port, s->from_generation, s->from_number);
        memcpy(aligned, s->bytes, len);
        sim_slot_free(w, i);
        sim_unlock(w);
        if (from == NULL)
            continue; /* no memory: the frame is lost */
        if (kind == SIM_LOST) {
            link_peer_lost(link->client, from);
            continue;
        }
        const struct wire_header *h = (const struct wire_header *)(const void *)aligned;
        sim_spend(v, cost_to_receive(&w->machine, h, payload));
        v->spare_posts += kind_of(h) == WIRE_SEND && h->flags & WIRE_FLAG_LAST; /* via.receive_us contains one post */
        link_deliver(link->client, from->address, from, aligned, len);
    }
    return n;
}

/* ---------------------------------------------------------------- sleeping, while time is real */

/* Checked and set under the mutex: a frame that arrives between the check and the sleep rings the socket. Link
 * operation. Returns 1 if a frame is there already, and the caller must not sleep. */
static int sim_arm(struct link *link)
{
    struct sim_world *w = link->view->world;
    sim_lock(w);
    int there = w->ports[link->port].first != SIM_NONE;
    w->ports[link->port].sleeping = !there;
    sim_unlock(w);
    return there;
}

/* Link operation. Takes the bytes off the socket that have rung; each was only a wake-up. */
static void sim_disarm(struct link *link)
{
    char bytes[64];
    struct sim_world *w = link->view->world;
    sim_lock(w);
    w->ports[link->port].sleeping = 0;
    sim_unlock(w);
    while (vk_recv(link->socket, bytes, sizeof bytes, MSG_DONTWAIT) > 0) {}
}

const struct link_ops link_sim = {
    .about = {.name = "sim",
              .devices = "sim, sim:NAME",
              .transport = "a simulated machine",
              .leaves_process = 1,
              .lossless = 1},
    .open = sim_open,
    .close = sim_close,
    .route = sim_route,
    .request_all = sim_request_all,
    .count_neighbours = sim_count_neighbours,
    .send = sim_send,
    .poll = sim_poll,
    .arm = sim_arm,
    .disarm = sim_disarm,
    .control = sim_control,
};
