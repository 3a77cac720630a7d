/*
 * The sockets of a simulated machine: streams of bytes, with the costs of the section [tcp] (docs/machines.md).
 *
 *    sender     tcp.send_us for a message; for a segment tcp.segment_us and tcp.byte_ns
 *      | bus, line (with 40 bytes of headers), the machine's delays, tcp.coalesce_us, line, bus         path.c
 *    receiver   for a segment tcp.segment_us and tcp.byte_ns; tcp.receive_us at the last one of a message
 *      | an acknowledgement, for each tcp.ack_every segments and for the last one of a message: the same way, and
 *      | tcp.ack_us twice. It occupies no processor and no bus. For fewer than tcp.ack_every: tcp.delayed_ack_us more
 *    sender     the window has room again
 *
 * These are the costs of viakit/machines/cost.py, segment by segment. A message is what one call of send is given. A
 * packet is sent while fewer than `window` packets are not acknowledged:
 *
 *      | acked ........ sent | window - (sent - acked) more |        counted in packets, modulo 2^32
 *
 * Daemons on the way (struct vk_daemons) are costs of the stream. A packet of a daemon is several segments. The window
 * and the acknowledgements count packets, and a host has one processor for its rank and its daemon:
 *
 *    sender     a hop for each packet: two copies and host.wakeup_us; then the packet's segments as a message
 *    receiver   the packet as a message, and a hop; then its acknowledgement, which costs the calls of a message, too
 *
 * On a direct way each segment is a packet, and there is no hop.
 *
 * Segments that the program has not received lie in the port's list, and are not acknowledged. So the list is the
 * receiver's socket buffer, and a receiver that does not read closes its sender's window. The link loses nothing and
 * keeps the order, so there are no sequence numbers and no retransmissions.
 *
 * The two ends find each other by a card that each sends on the kernel's socket. Later the socket carries single bytes,
 * which wake a process that sleeps on it while time is real, and its end.
 *
 * One thread uses a stream. The calls are non-blocking in real time: -EAGAIN if nothing can be done now. In virtual
 * time they may hand over to other ranks (sim_take_turn). base/streams.h has their contracts.
 */
#include "link/sim/stream.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cancel.h"
#include "base/explain.h"
#include "link/sim/world.h"

#define HEADERS 40       /* of TCP and IP, in each segment */
#define MOST_WINDOW 4096 /* segments; a longer window never closes in practice. n_from counts to 65535 */
#define ROOM_OF_SLAB 100 /* bytes of a driver's buffer beside the frame, as in viakit/machines/cost.py */

/* Sent on the socket by each end, in the byte order of the host, which is the same for both. */
struct card {
    char magic[8];
    uint32_t port, generation;
};
static const char magic[8] = "vkstream";

/* A segment in a slot: this, and its bytes. Without bytes it is an acknowledgement. */
struct segment {
    uint32_t acked;   /* packets that its sender has received, modulo 2^32 */
    uint16_t is_last; /* of its message: it has the costs of a message, and is acknowledged at once */
    uint16_t ends;    /* the last segment of its packet */
};

struct vk_stream {
    struct sim_view *view;                             /* shared with the process's NICs; counted in n_links */
    int fd;                                            /* the caller's, which closes it after the stream */
    uint32_t port, peer, peer_generation, peer_member; /* indices in the world; the peer's after meet() */
    struct card card;                                  /* of the other end */
    size_t card_len;                                   /* bytes of it that have arrived */
    uint32_t longest, window;                          /* bytes of a segment; packets that may be unacknowledged */
    uint32_t packet;                                   /* bytes of a daemon's packet; 0: no daemons */
    /* sending */
    uint32_t sent, acked; /* packets, modulo 2^32 */
    uint32_t left;        /* bytes of the packet that are not sent yet; 0: the next byte begins one */
    int begins;           /* the next segment is the first of its packet, and `sent` does not count it yet */
    int midway;           /* a message has been sent in part */
    int refused;          /* the last call sent less than it was given */
    /* receiving */
    uint32_t received, reported; /* packets, and those that were acknowledged */
    uint32_t taken;              /* bytes of the packet that is arriving */
    uint64_t timer;              /* clock at which a delayed acknowledgement leaves; 0: none */
    uint32_t at_timer;           /* packets that it reports */
    uint32_t begin, end;         /* of `bytes`, not read yet */
    int hung;                    /* the kernel's socket has ended */
    int ended;                   /* no further segment will come */
    uint8_t bytes[];             /* the segment that is being read; room for max_payload */
};

/* ---------------------------------------------------------------- opening */

/* Linux charges a socket buffer, for each segment, with the memory that holds it. Returns how many segments a buffer of
 * that many bytes holds: at least 1, so that a stream always moves. */
static uint32_t segments_in(const struct sim_machine *m, double buffer)
{
    double each = m->mtu - HEADERS;
    if (m->counts_slabs) {
        for (each = 1; each < m->mtu + ROOM_OF_SLAB;)
            each *= 2;
        if (m->tcp_slab > each)
            each = m->tcp_slab;
    }
    double n = buffer / each;
    return n < 1 ? 1 : n > MOST_WINDOW ? MOST_WINDOW : (uint32_t)n;
}

/* Sets the window and the longest segment for socket buffers of `buffer` bytes. 0: the program did not set them, and
 * has the system's. Otherwise the system grants tcp.grant times the request, within its maximum. Daemons have a window
 * of packets instead. */
static void set_window(struct vk_stream *s, int64_t buffer, const struct vk_daemons *daemons)
{
    const struct sim_world *w = s->view->world;
    const struct sim_machine *m = &w->machine;
    double longest = m->mtu - HEADERS, granted = m->tcp_sockbuf;
    if (buffer) {
        granted = (double)buffer * m->tcp_grant;
        granted = granted < m->tcp_sockbuf_max ? granted : m->tcp_sockbuf_max;
        longest = longest < (double)buffer ? longest : (double)buffer; /* a segment is not longer than the buffer */
    }
    s->longest = longest < w->max_payload ? (uint32_t)longest : w->max_payload;
    s->window = segments_in(m, granted);
    if (daemons) {
        s->packet = (uint32_t)daemons->bytes;
        s->window = daemons->most < MOST_WINDOW ? (uint32_t)daemons->most : MOST_WINDOW;
    }
}

/* Sends this end's card on the kernel's socket. Returns 0 or -errno. */
static int send_card(struct vk_stream *s)
{
    struct sim_world *w = s->view->world;
    struct card own = {.port = s->port, .generation = w->ports[s->port].generation};
    memcpy(own.magic, magic, sizeof magic);
    /* The socket has sent nothing on behalf of the stream, so its buffer has room. */
    ssize_t n = vk_send(s->fd, &own, sizeof own, MSG_NOSIGNAL);
    return n == (ssize_t)sizeof own ? 0 : n < 0 ? -errno : -EIO;
}

static void stream_close(struct vk_stream *s);

/* Does not wait for the other end: the first call of send or recv that finds its card connects (meet). */
static int stream_open(const char *name, int fd, int64_t buffer, const struct vk_daemons *daemons,
                       struct vk_stream **out)
{
    struct sim_view *v;
    int error = sim_world_open(name, &v);
    if (error)
        return error;
    v->n_links++;
    struct vk_stream *s = calloc(1, sizeof *s + v->world->max_payload);
    if (s == NULL) {
        if (--v->n_links == 0)
            sim_world_close(v);
        return -ENOMEM;
    }
    s->view = v;
    s->fd = fd;
    s->port = SIM_NONE;
    if (!v->world->has_machine || !v->world->machine.has_tcp) {
        vk_explain("machine %s has no section [tcp], so it has no sockets", v->world->machine.name);
        error = -ENODEV;
    } else {
        sim_lock(v->world);
        s->port = sim_port_take(v, 0, 1);
        sim_unlock(v->world);
        set_window(s, buffer, daemons);
        error = s->port == SIM_NONE ? -EMFILE : send_card(s);
        if (error)
            vk_explain("a stream on the machine: %s", strerror(-error));
    }
    if (error) {
        stream_close(s);
        return error;
    }
    *out = s;
    return 0;
}

/* Reads the other end's card, which it sent before its first byte. Returns 0, -EAGAIN or -EPROTO; at its end -EPIPE.
 * The card may arrive in pieces; card_len counts its bytes. A wrong card is an error for good, because its sender would
 * use the kernel's socket for its data. */
static int meet(struct vk_stream *s)
{
    struct sim_world *w = s->view->world;
    while (s->card_len < sizeof s->card) {
        ssize_t n = vk_recv(s->fd, (char *)&s->card + s->card_len, sizeof s->card - s->card_len, MSG_DONTWAIT);
        if (n <= 0)
            return n < 0 && (errno == EAGAIN || errno == EINTR) ? -EAGAIN : -EPIPE;
        s->card_len += (size_t)n;
    }
    if (memcmp(s->card.magic, magic, sizeof magic) != 0 || s->card.port >= SIM_PORTS ||
        !w->ports[s->card.port].is_stream) {
        vk_explain("the other process does not use this machine's sockets: both need the same VIAKIT_MACHINE");
        s->card_len = 0;
        return -EPROTO;
    }
    s->peer = s->card.port;
    s->peer_generation = s->card.generation;
    sim_lock(w);
    s->peer_member = w->ports[s->peer].member;
    sim_unlock(w);
    return 0;
}

static int is_met(const struct vk_stream *s)
{
    return s->card_len == sizeof s->card;
}

/* ---------------------------------------------------------------- the two ends, with the mutex */

/* Whether the other end still exists. Its entry may have been used again, by another stream or NIC. */
static int peer_is_open(const struct vk_stream *s)
{
    const struct sim_port *p = &s->view->world->ports[s->peer];
    return p->used && p->generation == s->peer_generation;
}

/* Sends the frame in slot i, and wakes its receiver: a rank that waits in virtual time, or a process that sleeps on its
 * socket. */
static void pass_on(struct vk_stream *s, uint32_t i)
{
    struct sim_view *v = s->view;
    struct sim_world *w = v->world;
    struct sim_port *to = &w->ports[s->peer];
    struct sim_slot *slot = sim_slot_at(w, i);
    slot->from_port = (uint16_t)s->port;
    slot->from_number = 0;
    slot->from_generation = w->ports[s->port].generation;
    slot->headers = HEADERS;
    sim_path_send(v, i, s->peer);
    if (to->sleeping) {
        to->sleeping = 0;
        ssize_t sent = vk_send(s->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        (void)sent; /* full: the socket is readable already; refused: the process is gone */
    }
    sim_arrival(w, to->member);
}

static struct segment *segment_in(struct sim_slot *slot)
{
    return (struct segment *)(void *)slot->bytes;
}

/* Fills in a segment of len bytes, which the caller copies. Returns the place for them. Every segment also acknowledges
 * all that were received, so nothing is owed afterwards. */
static void *fill(struct vk_stream *s, uint32_t i, uint32_t len, int is_last, int ends)
{
    struct sim_slot *slot = sim_slot_at(s->view->world, i);
    const struct sim_machine *m = &s->view->world->machine;
    struct segment *head = segment_in(slot);
    slot->kind = SIM_SEGMENT;
    slot->payload = len;
    slot->len = (uint32_t)sizeof *head + len;
    slot->of_card = len == 0;
    /* The processors' part in an acknowledgement delays it, and occupies neither of them. A daemon sends and receives
     * it by calls. */
    double of_ack = 2 * m->tcp_ack + (s->packet ? m->tcp_send + m->tcp_receive : 0);
    slot->late = (uint64_t)(m->tcp_coalesce + (len ? 0 : of_ack) + 0.5);
    *head = (struct segment){.acked = s->received, .is_last = (uint16_t)is_last, .ends = (uint16_t)ends};
    s->reported = s->received;
    return head + 1;
}

/* Without a slot the next acknowledgement stands for this one, too. */
static void acknowledge(struct vk_stream *s)
{
    uint32_t i = peer_is_open(s) ? sim_slot_take(s->view->world, 1) : SIM_NONE;
    if (i == SIM_NONE)
        return;
    fill(s, i, 0, 0, 0);
    pass_on(s, i);
}

/* Starts the receiver's timer of delayed acknowledgements: sends now what arrives later by the timer's length. Until
 * then the segments count as not reported. So the next one can complete tcp.ack_every and be acknowledged at once; the
 * delayed acknowledgement is then older and ignored. */
static void acknowledge_later(struct vk_stream *s, uint64_t delay)
{
    uint32_t i = peer_is_open(s) ? sim_slot_take(s->view->world, 1) : SIM_NONE, reported = s->reported;
    if (i == SIM_NONE)
        return;
    fill(s, i, 0, 0, 0);
    sim_slot_at(s->view->world, i)->late += delay;
    s->reported = reported;
    s->timer = s->view->me->clock + delay;
    s->at_timer = s->received;
    pass_on(s, i);
}

/* A packet has been received. The last one of a message is acknowledged in any case, and so is the last one of the
 * window, because the sender then waits. The timer runs for fewer segments than tcp.ack_every. Daemons acknowledge each
 * packet. */
static void acknowledge_if_due(struct vk_stream *s, uint32_t is_last)
{
    const struct sim_machine *m = &s->view->world->machine;
    double every = s->packet ? 1 : m->tcp_ack_every;
    if (s->timer && s->view->me->clock >= s->timer) {
        s->timer = 0;
        if ((int32_t)(s->at_timer - s->reported) > 0)
            s->reported = s->at_timer;
    }
    uint32_t fresh = s->received - s->reported;
    if (!is_last && fresh < every && fresh < s->window)
        return;
    sim_take_turn(s->view);
    if (fresh < every && m->tcp_delayed_ack > 0)
        acknowledge_later(s, (uint64_t)(m->tcp_delayed_ack + 0.5));
    else
        acknowledge(s);
}

/* Notes an acknowledgement. One that is older than another is ignored, because collect() takes them out of order. */
static void learn(struct vk_stream *s, uint32_t acked)
{
    if ((int32_t)(acked - s->acked) > 0)
        s->acked = acked;
}

/* ---------------------------------------------------------------- sending */

static int is_acknowledgement(const struct sim_slot *slot)
{
    return slot->kind == SIM_SEGMENT && slot->payload == 0;
}

/* Takes the acknowledgements that have arrived, also those behind data that the program has not received. */
static void collect(struct vk_stream *s)
{
    struct sim_view *v = s->view;
    struct sim_world *w = v->world;
    uint64_t now = v->depth ? v->me->clock : SIM_NEVER;
    sim_path_settle(w, v->me->host, now);
    for (uint32_t i; (i = sim_path_pick(w, s->port, now, is_acknowledgement)) != SIM_NONE;) {
        learn(s, segment_in(sim_slot_at(w, i))->acked);
        sim_slot_free(w, i);
    }
    for (uint32_t i = w->ports[s->port].first; i != SIM_NONE; i = sim_slot_at(w, i)->next) {
        if (sim_slot_at(w, i)->ready > now)
            break;
        if (sim_slot_at(w, i)->kind == SIM_SEGMENT)
            learn(s, segment_in(sim_slot_at(w, i))->acked);
    }
}

/* Copies the bytes from offset `from` on. */
static void gather(uint8_t *to, uint32_t len, const struct iovec *v, size_t from)
{
    for (; len; v++) {
        size_t n = v->iov_len > from ? v->iov_len - from : 0;
        n = n < len ? n : len;
        if (n)
            memcpy(to, (const char *)v->iov_base + from, n);
        from = from > v->iov_len ? from - v->iov_len : 0;
        to += n;
        len -= (uint32_t)n;
    }
}

/* After a wait that ended in vain, clock.c lets calls that only repeat return nothing (idle). Returns 1 for such a
 * call, and counts it. */
static int in_vain(struct sim_view *v)
{
    return v->depth && v->vain_polls && --v->vain_polls;
}

/* Charges the way between a rank and the daemon of its host for a packet: through the kernel, so two copies, and the
 * other process wakes up. */
static void hop(struct vk_stream *s, uint32_t len)
{
    const struct sim_machine *m = &s->view->world->machine;
    sim_spend(s->view, 2 * len * m->copy + m->wakeup);
}

/* Begins a packet, if one is due: with `rest` bytes of the message, or as many as the daemons pass at a time. The rank
 * gives the packet to its daemon even if the window is closed. Returns the length of the next segment, at most `rest`:
 * after a call that has sent nothing, the program may send another message. */
static uint32_t next_length(struct vk_stream *s, size_t rest)
{
    uint32_t longest = s->packet ? s->packet : s->longest, most = rest < longest ? (uint32_t)rest : longest;
    if (s->left == 0 && s->packet) {
        hop(s, most);
        sim_take_turn(s->view); /* the caller looks at what has arrived until now */
    }
    if (s->left == 0)
        s->begins = 1;
    if (s->begins || s->left > most)
        s->left = most;
    return s->left < s->longest ? s->left : s->longest;
}

/* The next slot to send in, or SIM_NONE: the window is closed, or memory is short. */
static uint32_t take_slot(const struct vk_stream *s)
{
    struct sim_view *v = s->view;
    struct sim_world *w = v->world;
    struct sim_port *to = &w->ports[s->peer];
    if (s->begins && s->sent - s->acked >= s->window)
        return SIM_NONE;
    uint32_t i = sim_slot_take(w, to->n_from[v->index] < 4);
    if (i == SIM_NONE) /* sim_path_pick() wakes this member when the receiver has read a segment */
        to->blocked[v->index / 64] |= 1ull << v->index % 64;
    return i;
}

/* Segment by segment: take the acknowledgements, take a slot, copy, charge the processor, take a turn, send. The turn
 * may let other ranks run, and the peer may have closed meanwhile, so that is tested again. */
static ssize_t stream_send(struct vk_stream *s, const struct iovec *v, int n)
{
    struct sim_view *view = s->view;
    struct sim_world *w = view->world;
    const struct sim_machine *m = &w->machine;
    size_t total = 0, done = 0;
    int error = is_met(s) ? 0 : meet(s);
    if (error)
        return error;
    for (int i = 0; i < n; i++)
        total += v[i].iov_len;
    sim_lock(w);
    if (s->refused && in_vain(view)) {
        sim_unlock(w);
        return -EAGAIN;
    }
    sim_take_turn(view);
    while (done < total) {
        uint32_t len = next_length(s, total - done);
        collect(s);
        uint32_t i = peer_is_open(s) ? take_slot(s) : SIM_NONE;
        if (i == SIM_NONE)
            break;
        gather(fill(s, i, len, done + len == total, len == s->left), len, v, done);
        int calls = s->packet ? s->begins : !s->midway;
        /* The cost first, then the turn: the frame is on its way at the time at which the processor has finished it. */
        sim_spend(view, (calls ? m->tcp_send : 0) + m->tcp_segment + len * m->tcp_byte);
        s->midway = 1;
        s->sent += (uint32_t)s->begins;
        s->begins = 0;
        s->left -= len;
        sim_take_turn(view);
        if (peer_is_open(s))
            pass_on(s, i);
        else
            sim_slot_free(w, i);
        done += len;
    }
    s->refused = done < total;
    s->midway = s->midway && s->refused;
    /* While time is real, the acknowledgement that opens the window rings the socket. */
    w->ports[s->port].sleeping |= s->refused && view->depth == 0;
    error = peer_is_open(s) ? -EAGAIN : -EPIPE;
    sim_unlock(w);
    return done || total == 0 ? (ssize_t)done : error;
}

/* ---------------------------------------------------------------- receiving */

/* Takes the bytes off the socket that have woken this process, and detects its end. */
static void drain(struct vk_stream *s)
{
    char bytes[64];
    ssize_t n;
    while ((n = vk_recv(s->fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {}
    s->hung |= n == 0 || (errno != EAGAIN && errno != EINTR);
}

/* With the mutex: nothing is there now. Whether nothing more will come: the other end has closed or its process has
 * ended, and no segment of it is under way. */
static int has_ended(struct vk_stream *s)
{
    struct sim_view *v = s->view;
    struct sim_world *w = v->world;
    if (w->ports[s->port].n_from[s->peer_member])
        return 0;
    /* In virtual time the kernel does not count, because its reply depends on the load. turns.c notices a death. */
    return !peer_is_open(s) || (v->depth ? w->members[s->peer_member].state == SIM_ABSENT : s->hung);
}

/* Takes the next segment into s->bytes. Returns 0 if none has arrived. */
static int next_segment(struct vk_stream *s)
{
    struct sim_view *v = s->view;
    struct sim_world *w = v->world;
    const struct sim_machine *m = &w->machine;
    uint32_t i;
    if (v->depth == 0)
        drain(s);
    sim_lock(w);
    if (in_vain(v)) {
        sim_unlock(w);
        return 0;
    }
    sim_take_turn(v);
    uint64_t now = v->depth ? v->me->clock : SIM_NEVER;
    sim_path_settle(w, v->me->host, now);
    while ((i = sim_path_take(w, s->port, now)) != SIM_NONE) {
        struct sim_slot *slot = sim_slot_at(w, i);
        const struct segment *head = segment_in(slot);
        uint32_t len = slot->payload, is_last = slot->kind == SIM_SEGMENT && head->is_last, ends = head->ends;
        s->ended |= slot->kind == SIM_LOST;
        if (slot->kind == SIM_SEGMENT)
            learn(s, head->acked);
        memcpy(s->bytes, head + 1, len);
        sim_slot_free(w, i);
        if (len == 0)
            continue;
        s->begin = 0;
        s->end = len;
        s->taken += len;
        sim_spend(v, ((s->packet ? ends : is_last) ? m->tcp_receive : 0) + m->tcp_segment + len * m->tcp_byte);
        if (ends) {
            if (s->packet)
                hop(s, s->taken);
            s->received++;
            s->taken = 0;
            acknowledge_if_due(s, is_last);
        }
        sim_unlock(w);
        return 1;
    }
    s->ended |= has_ended(s);
    w->ports[s->port].sleeping = v->depth == 0;
    sim_unlock(w);
    return 0;
}

/* Fills the pieces in order, as far as segments have arrived. A segment that does not fit is kept in s->bytes, and its
 * costs have been charged. */
static ssize_t stream_recv(struct vk_stream *s, const struct iovec *v, int n)
{
    size_t done = 0;
    int error = is_met(s) ? 0 : meet(s);
    if (error)
        return error == -EPIPE ? 0 : error;
    for (int i = 0; i < n; i++)
        for (size_t filled = 0; filled < v[i].iov_len;) {
            if (s->begin == s->end && (s->ended || !next_segment(s)))
                return done ? (ssize_t)done : s->ended ? 0 : -EAGAIN;
            size_t len = s->end - s->begin;
            len = len < v[i].iov_len - filled ? len : v[i].iov_len - filled;
            memcpy((char *)v[i].iov_base + filled, s->bytes + s->begin, len);
            s->begin += (uint32_t)len;
            filled += len;
            done += len;
        }
    return (ssize_t)done;
}

/* ---------------------------------------------------------------- closing */

/* Segments on their way to the other end still arrive there. Those on their way here are lost. */
static void stream_close(struct vk_stream *s)
{
    if (s == NULL)
        return;
    struct sim_view *v = s->view;
    if (s->port != SIM_NONE) {
        sim_lock(v->world);
        uint32_t i = is_met(s) && peer_is_open(s) ? sim_slot_take(v->world, 1) : SIM_NONE;
        if (i != SIM_NONE) { /* without a slot the other end sees that the port is free */
            fill(s, i, 0, 0, 0);
            sim_slot_at(v->world, i)->kind = SIM_LOST;
            pass_on(s, i);
        }
        sim_port_leave(v->world, s->port);
        sim_unlock(v->world);
    }
    if (--v->n_links == 0)
        sim_world_close(v);
    free(s);
}

const struct vk_streams sim_streams = {
    .open = stream_open,
    .send = stream_send,
    .recv = stream_recv,
    .close = stream_close,
};
