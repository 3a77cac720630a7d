/*
 * The way of a frame through a simulated machine: sender's bus, line, switch, receiver's bus. Each is a server with a
 * queue, and a frame starts at a server when it has left the one before and the server is free (docs/machines.md).
 *
 *    clock of the sender
 *      | out_bus     card.frame_us + bytes / bus
 *      | out_line    (bytes + wire.frame_bytes) / rate
 *      v head        the line's delay, the switches, both cards' start: they delay, and occupy nothing
 *      | in_line     the port of the switch to the receiver: the same length of time as out_line
 *      | in_bus      card.frame_us + bytes / bus
 *      v ready       the receiver can see it
 *
 * The first two servers belong to the sender's host, so a frame's time there is known when it is sent. It is not known
 * how long it waits at the receiver's switch port, because a frame sent later on a shorter way may be there earlier. So
 * frames lie in `first_coming`, sorted by `head`, until no rank can send one that is earlier there (turns.c). Only then
 * their order is final, and sim_path_settle() computes `ready`.
 *
 * With card.duplex half, out_bus and in_bus are one server. Two ranks on one host exchange frames through its memory, a
 * flag and a copy, or with via.local card by the way above.
 *
 *    slot   sim_path_send --> first_coming, sorted by head --sim_path_settle--> the port's list, sorted by ready
 *                       \--> the port's list at once: within a host, or while time is real
 *           sim_path_take --> the caller's
 *
 * Invariant: a server's time never decreases, and a slot is in one list.
 *
 * All functions are called with the world's mutex. None blocks. Their cost is that of a walk through a list of the
 * frames under way, which SIM_FLOW bounds for each pair.
 */
#include "link/sim/world.h"

/* A cost as an integer, rounded to the nearest. Costs are rounded one by one and then added (machine.h). */
static uint64_t ps(double picoseconds)
{
    return (uint64_t)(picoseconds + 0.5);
}

/* The time at which both have happened. */
static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Time on a line: the bytes of the frame that the program has, and those that the wire adds (preamble, header, gap). */
static uint64_t on_line(const struct sim_machine *m, const struct sim_slot *s)
{
    return ps((s->payload + s->headers + m->frame_bytes) * m->wire);
}

/* Time on a host's bus, by which the card reads a frame from memory or writes it there. */
static uint64_t on_bus(const struct sim_machine *m, const struct sim_slot *s)
{
    return ps(m->card_frame + s->payload * m->bus);
}

/* Switches between two hosts. A fat tree of k ports: k/2 hosts at each leaf, k*k/2 hosts below two levels. Three levels
 * hold k*k*k/4 hosts. More hosts are counted as if they were below three levels, too. */
static uint32_t hops(const struct sim_machine *m, uint32_t a, uint32_t b)
{
    if (m->topology == SIM_NO_SWITCH)
        return 0;
    uint32_t k = (uint32_t)m->switch_ports;
    /* With fewer than 4 ports a tree has no levels. */
    if (m->topology == SIM_STAR || k < 4 || a / (k / 2) == b / (k / 2))
        return 1;
    return a / (k * k / 2) == b / (k * k / 2) ? 3 : 5;
}

/* The server of a host's incoming frames between line and memory. */
static uint64_t *bus_in(const struct sim_machine *m, struct sim_host *h)
{
    return m->half_duplex ? &h->out_bus : &h->in_bus;
}

/* A frame that is ready at `at` passes a bus. An acknowledgement takes the card's time, and occupies nothing. */
static uint64_t pass_bus(const struct sim_machine *m, const struct sim_slot *s, uint64_t at, uint64_t *bus)
{
    if (s->of_card)
        return at + on_bus(m, s);
    return *bus = later(at, *bus) + on_bus(m, s);
}

/* Insert into the port's list of arrived frames, nearly always at the end. `ready` must be set. A frame that is ready
 * at the same time as others goes behind them. */
static void arrive(struct sim_world *w, uint32_t i)
{
    struct sim_slot *s = sim_slot_at(w, i);
    struct sim_port *p = &w->ports[s->port];
    uint32_t *at = &p->first;
    if (p->first != SIM_NONE && sim_slot_at(w, p->last)->ready <= s->ready)
        at = &sim_slot_at(w, p->last)->next;
    else
        while (*at != SIM_NONE && sim_slot_at(w, *at)->ready <= s->ready)
            at = &sim_slot_at(w, *at)->next;
    s->next = *at;
    *at = i;
    if (s->next == SIM_NONE)
        p->last = i;
}

/* A total order: equal heads are sorted by rank and by order of sending, and never by the order in which processes
 * happened to run. */
static int is_before(const struct sim_slot *a, const struct sim_slot *b)
{
    if (a->head != b->head)
        return a->head < b->head;
    return a->rank != b->rank ? a->rank < b->rank : a->order < b->order;
}

/* Whether the member's time is virtual now. A member that gathers still counts as outside. */
static int is_virtual(const struct sim_member *m)
{
    return m->state == SIM_READY || m->state == SIM_RUNNING;
}

/* Insert into the list of the frames on their way to a host's switch port. */
static void come(struct sim_world *w, uint32_t i, uint32_t host)
{
    struct sim_slot *s = sim_slot_at(w, i);
    uint32_t *at = &w->hosts[host].first_coming;
    while (*at != SIM_NONE && is_before(sim_slot_at(w, *at), s))
        at = &sim_slot_at(w, *at)->next;
    s->next = *at;
    *at = i;
}

/* Append to the port's list of arrived frames. It is ready now, but not before those that are there: a stream's
 * segments keep their order. */
static void append(struct sim_world *w, uint32_t i)
{
    struct sim_slot *s = sim_slot_at(w, i);
    const struct sim_port *p = &w->ports[s->port];
    uint64_t last = p->first == SIM_NONE ? 0 : sim_slot_at(w, p->last)->ready;
    s->ready = later(w->now, last);
    arrive(w, i);
}

/* All segments that are under way to the end of a stream have arrived. They keep their order, because `first_coming` is
 * sorted and append() goes to the end. */
static void land(struct sim_world *w, uint32_t port, uint32_t host)
{
    for (uint32_t *at = &w->hosts[host].first_coming; *at != SIM_NONE;) {
        uint32_t i = *at;
        struct sim_slot *s = sim_slot_at(w, i);
        if (s->port == port) {
            *at = s->next;
            append(w, i);
        } else
            at = &s->next;
    }
}

/* A segment of a stream while time is real on one side. It must not overtake those that were sent in virtual time. */
static void send_behind(struct sim_world *w, uint32_t i, const struct sim_member *receiver)
{
    struct sim_slot *s = sim_slot_at(w, i);
    if (!is_virtual(receiver)) {
        land(w, s->port, receiver->host);
        append(w, i);
        return;
    }
    s->head = w->now;
    for (uint32_t k = w->hosts[receiver->host].first_coming; k != SIM_NONE; k = sim_slot_at(w, k)->next)
        if (sim_slot_at(w, k)->port == s->port)
            s->head = later(s->head, sim_slot_at(w, k)->head);
    s->rank = SIM_MEMBERS; /* after frames with this head */
    come(w, i, receiver->host);
}

void sim_path_send(struct sim_view *v, uint32_t i, uint32_t to)
{
    struct sim_world *w = v->world;
    const struct sim_machine *m = &w->machine;
    struct sim_slot *s = sim_slot_at(w, i);
    struct sim_member *from = v->me, *receiver = &w->members[w->ports[to].member];
    s->port = to;
    s->from_member = (uint16_t)v->index;
    s->rank = from->rank;
    s->order = w->order++;
    s->head = s->ready = 0;
    w->ports[to].n_from[v->index]++;
    /* Real time on one side: a plain mailbox. A rank that is in virtual time sees such a frame at its present clock. */
    if (!is_virtual(from) || !is_virtual(receiver)) {
        if (w->ports[to].is_stream) {
            send_behind(w, i, receiver);
            return;
        }
        s->ready = is_virtual(receiver) ? w->now : 0;
        arrive(w, i);
        return;
    }
    struct sim_host *a = &w->hosts[from->host];
    if (from->host == receiver->host && !m->local_by_card) {
        s->ready = from->clock + ps(m->flag) + ps(m->copy_start + s->payload * m->copy);
        arrive(w, i);
        return;
    }
    /* Store and forward: a switch begins to send when it has the whole frame, so the line's time counts once more. */
    uint64_t line = on_line(m, s);
    uint64_t begin = later(pass_bus(m, s, from->clock, &a->out_bus), a->out_line);
    a->out_line = begin + line;
    s->head = begin + ps(m->wire_delay + hops(m, from->host, receiver->host) * m->switch_latency + 2 * m->card_start) +
              (m->stores && m->topology != SIM_NO_SWITCH ? line : 0) + s->late;
    come(w, i, receiver->host);
}

/* Lower bound, for a frame without payload on idle servers. turns.c relies on it: a frame is never earlier. */
uint64_t sim_path_shortest(const struct sim_world *w)
{
    const struct sim_machine *m = &w->machine;
    double late = m->tcp_coalesce; /* of every segment (stream.c), but of no frame of a NIC */
    for (uint32_t i = 0; i < SIM_PORTS && late > 0; i++)
        if (w->ports[i].used && !w->ports[i].is_stream)
            late = 0;
    double line = m->stores && m->topology != SIM_NO_SWITCH ? m->frame_bytes * m->wire : 0;
    double hop = m->topology == SIM_NO_SWITCH ? 0 : m->switch_latency;
    return ps(m->card_frame) + ps(m->wire_delay + hop + 2 * m->card_start) + ps(line) + ps(late);
}

/* The passage through the receiver's two servers. */
static uint64_t pass(const struct sim_machine *m, const struct sim_slot *s, uint64_t *in_line, uint64_t *in_bus)
{
    *in_line = later(s->head, *in_line) + on_line(m, s);
    return pass_bus(m, s, *in_line, in_bus);
}

void sim_path_settle(struct sim_world *w, uint32_t host, uint64_t now)
{
    struct sim_host *h = &w->hosts[host];
    while (h->first_coming != SIM_NONE) {
        uint32_t i = h->first_coming;
        struct sim_slot *s = sim_slot_at(w, i);
        if (s->head > now)
            break;
        h->first_coming = s->next;
        s->ready = pass(&w->machine, s, &h->in_line, bus_in(&w->machine, h));
        arrive(w, i);
    }
}

uint64_t sim_path_next(struct sim_world *w, uint32_t member)
{
    uint64_t next = SIM_NEVER;
    const struct sim_member *m = &w->members[member];
    for (uint32_t p = m->first_port; p != SIM_NONE; p = w->ports[p].next)
        if (w->ports[p].first != SIM_NONE && sim_slot_at(w, w->ports[p].first)->ready < next)
            next = sim_slot_at(w, w->ports[p].first)->ready;
    /* Those that have not reached the switch port: as if no other frame were sent. A frame that is sent later can
     * only delay them. Then this is computed again. */
    struct sim_host *h = &w->hosts[m->host];
    uint64_t in_line = h->in_line, in_bus = *bus_in(&w->machine, h);
    for (uint32_t i = h->first_coming; i != SIM_NONE; i = sim_slot_at(w, i)->next) {
        const struct sim_slot *s = sim_slot_at(w, i);
        uint64_t ready = pass(&w->machine, s, &in_line, &in_bus);
        /* The list is sorted by `head`, and both servers keep this order. So the first frame of this member is its
         * earliest. */
        if (w->ports[s->port].member == member)
            return ready < next ? ready : next;
    }
    return next;
}

uint32_t sim_path_pick(struct sim_world *w, uint32_t port, uint64_t now, int (*wants)(const struct sim_slot *s))
{
    struct sim_port *p = &w->ports[port];
    uint32_t i = p->first, before = SIM_NONE;
    for (; i != SIM_NONE; before = i, i = sim_slot_at(w, i)->next)
        if (sim_slot_at(w, i)->ready > now)
            return SIM_NONE;
        else if (wants == NULL || wants(sim_slot_at(w, i)))
            break;
    if (i == SIM_NONE)
        return SIM_NONE;
    struct sim_slot *s = sim_slot_at(w, i);
    *(before == SIM_NONE ? &p->first : &sim_slot_at(w, before)->next) = s->next;
    if (p->last == i)
        p->last = before;
    uint32_t from = s->from_member;
    p->n_from[from]--;
    /* A sender that was refused waits for this slot. Its event is now, but not before its own clock. */
    if (vk_unlikely(p->blocked[from / 64] >> from % 64 & 1)) {
        p->blocked[from / 64] &= ~(1ull << from % 64);
        struct sim_member *sender = &w->members[from];
        if (sender->state == SIM_READY && sender->idle && !sender->aligning && sender->wake > now)
            sender->wake = later(now, sender->clock); /* there is room again */
    }
    return i;
}

uint32_t sim_path_take(struct sim_world *w, uint32_t port, uint64_t now)
{
    return sim_path_pick(w, port, now, NULL);
}

void sim_path_restart(struct sim_world *w)
{
    for (uint32_t host = 0; host < SIM_MEMBERS; host++)
        while (w->hosts[host].first_coming != SIM_NONE) {
            uint32_t i = w->hosts[host].first_coming;
            struct sim_slot *s = sim_slot_at(w, i);
            if (w->ports[s->port].is_stream) {
                land(w, s->port, host);
                continue;
            }
            w->hosts[host].first_coming = s->next;
            w->ports[s->port].n_from[s->from_member]--;
            sim_slot_free(w, i);
        }
    for (uint32_t port = 0; port < SIM_PORTS; port++)
        for (uint32_t i = w->ports[port].is_stream ? w->ports[port].first : SIM_NONE; i != SIM_NONE;) {
            struct sim_slot *s = sim_slot_at(w, i);
            s->ready = 0;
            i = s->next;
        }
}

/* Frees the frames to this port in the list that begins at `at`. Frames to other ports stay. */
static void drop_list(struct sim_world *w, uint32_t *at, uint32_t port)
{
    while (*at != SIM_NONE) {
        uint32_t i = *at;
        struct sim_slot *s = sim_slot_at(w, i);
        if (s->port != port) {
            at = &s->next;
            continue;
        }
        *at = s->next;
        sim_slot_free(w, i);
    }
}

void sim_path_drop(struct sim_world *w, uint32_t port)
{
    drop_list(w, &w->hosts[w->members[w->ports[port].member].host].first_coming, port);
    drop_list(w, &w->ports[port].first, port);
    w->ports[port].last = SIM_NONE;
}
