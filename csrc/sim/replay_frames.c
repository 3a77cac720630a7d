/*
 * The machine of a replay: the queue of events, and the way of a message's frames (replay_parts.h).
 *
 *    FRAME          sender's CPU --> bus --> wire up      the sender's own: the push of the frame gives their times
 *                        | delay_ns, switches
 *    PORT                v wire down --> bus              the receiver's: shared by all senders, in the order of PORT
 *    ACK            <-- every ack_every frames            opens the sender's window
 *    ARRIVE              the last frame is in memory
 *
 * A server is one number, the time at which it is free. A frame that is ready at `ready` begins at the later of the two
 * times. This is right because frames reach each server in the order of time: the queue takes the earliest event, and a
 * rank gives way after each send (run() in replay.c).
 *
 * Invariant: pushed >= ported >= acked for each message, and pushed - acked <= window if there is one.
 *
 * Not done: a limited buffer at the receiver, losses, and switches whose ports inside the network are shared. Only the
 * wires of the hosts are servers.
 */
#include <math.h>
#include <stdlib.h>

#include "sim/replay_parts.h"

/* ---------------------------------------------------------------- the queue */

/* A total order, so equal schedules give equal results: events at one time are taken in the order of their adding. The
 * comparison is <= and not ==, which compilers warn of for doubles. */
static int before(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at <= b->at && a->order < b->order);
}

/* The new event rises from the last leaf while its parent is later. The array doubles, so n events cost O(n) copies. */
void replay_add(struct replay *r, double at, int kind, int32_t id)
{
    if (r->n_heap == r->room) {
        int64_t room = r->room ? 2 * r->room : 1024;
        struct event *more = realloc(r->heap, (size_t)room * sizeof *more);
        if (more == NULL) {
            r->failed = 1;
            return;
        }
        r->heap = more;
        r->room = room;
    }
    struct event e = {at, r->order++, kind, id};
    int64_t i = r->n_heap++;
    for (; i > 0 && before(&e, &r->heap[(i - 1) / 2]); i = (i - 1) / 2)
        r->heap[i] = r->heap[(i - 1) / 2];
    r->heap[i] = e;
}

/* The last leaf sinks from the root, to the earlier child each time. */
struct event replay_take(struct replay *r)
{
    struct event first = r->heap[0], last = r->heap[--r->n_heap]; /* the caller has seen that n_heap > 0 */
    int64_t i = 0, child;
    while ((child = 2 * i + 1) < r->n_heap) {
        if (child + 1 < r->n_heap && before(&r->heap[child + 1], &r->heap[child]))
            child++;
        if (!before(&r->heap[child], &last))
            break;
        r->heap[i] = r->heap[child];
        i = child;
    }
    r->heap[i] = last;
    return first;
}

/* ---------------------------------------------------------------- stages */

/* Bytes of a full frame. A path without a payload would make endless frames. */
static double payload_of(const sim_path *p)
{
    return p->payload >= 1 ? p->payload : 1;
}

/* Time of frame i of a message in a stage. All frames are full but the last one, which may be empty. */
static double frame_ns(const sim_path *p, const struct message *m, int64_t i, int stage)
{
    double bytes = i + 1 < m->frames ? payload_of(p) : m->bytes - (double)(m->frames - 1) * payload_of(p);
    return p->frame_ns[stage] + bytes * p->byte_ns[stage];
}

/* A frame that is ready at `ready` passes a server. Returns its end there. */
static double pass(double *free_at, double ready, double cost)
{
    return *free_at = most(ready, *free_at) + cost;
}

/* Switches between two hosts: one, or those of a fat tree with half of the ports down and half up. */
static double switches(const sim_model *m, int64_t a, int64_t b)
{
    int64_t half = (int64_t)m->ports / 2;
    if (half < 1)
        return 1;
    double crossed = 1;
    for (a /= half, b /= half; a != b; a /= half > 1 ? half : 2, b /= half > 1 ? half : 2) /* 2: never divide by 1 */
        crossed += 2;
    return crossed;
}

/* Whether the message stays within a host, and passes its memory instead of the card. */
static int is_local(const struct replay *r, const struct message *m)
{
    return r->model->local > 0 && r->schedule->host[m->src] == r->schedule->host[m->dst];
}

/* The sender's processor takes the next frame at m->cpu, and the frame goes on to the receiver's port. With cut the
 * event is at the time of the frame's head, as in a wormhole switch, which does not wait for the end. A half-duplex
 * bus is one server for both directions: recv_bus stands for it. */
void replay_push_frame(struct replay *r, int32_t id)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    int64_t from = r->schedule->host[m->src], to = r->schedule->host[m->dst], i = m->pushed++;
    struct port *port = &r->ports[from];
    m->cpu += frame_ns(p, m, i, SIM_SEND_CPU);
    double *bus = r->model->half_duplex > 0 ? &port->recv_bus : &port->send_bus, up = frame_ns(p, m, i, SIM_UP);
    double end = pass(&port->up, pass(bus, m->cpu, frame_ns(p, m, i, SIM_SEND_BUS)), up);
    double delay = p->delay_ns + (from == to ? 1 : switches(r->model, from, to)) * r->model->switch_ns;
    replay_add(r, end + delay - (p->cut > 0 ? up : 0), PORT, id);
    if (m->pushed == m->frames)
        replay_pushed(r, id);
    else if (p->window >= 1 && m->pushed - m->acked >= (int64_t)p->window)
        m->stalled = 1; /* replay_acknowledge() continues */
    else
        replay_add(r, m->cpu, FRAME, id);
}

/* A message within a host is one copy: no frames pass a server, and its end is known at once. */
void replay_begin_push(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    m->cpu = at + p->message_ns[SIM_SEND_CPU];
    if (!is_local(r, m)) {
        replay_push_frame(r, id);
        return;
    }
    m->head = m->cpu + frame_ns(p, m, 0, SIM_SEND_CPU) + p->delay_ns;
    m->cpu += (double)m->frames * p->frame_ns[SIM_SEND_CPU] + m->bytes * p->byte_ns[SIM_SEND_CPU];
    m->end = m->cpu + p->delay_ns;
    m->pushed = m->frames;
    replay_add(r, m->end, ARRIVE, id);
    replay_pushed(r, id);
}

/* The messages of a rank form a list. Only the first one is being pushed; replay_pushed() begins the next. */
void replay_push(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    struct rank *me = &r->ranks[m->src];
    double payload = payload_of(&r->model->path[m->path]);
    m->frames = m->bytes > payload ? (int64_t)ceil(m->bytes / payload) : 1;
    m->cpu = at;
    m->next_push = NONE;
    if (me->push != NONE) {
        r->messages[me->last_push].next_push = id;
        me->last_push = id;
        return;
    }
    me->push = me->last_push = id;
    replay_begin_push(r, id, at);
}

/* The wire down ends with the frame's last bit, which comes up no earlier than `whole`. An acknowledgement costs the
 * receiver's processor one frame, and ack_ns until the sender may go on. The last frame needs none: nothing waits. */
void replay_reach_port(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    struct port *port = &r->ports[r->schedule->host[m->dst]];
    int64_t i = m->ported++, every = (int64_t)most(1, p->ack_every), window = (int64_t)p->window;
    double whole = at + (p->cut > 0 ? frame_ns(p, m, i, SIM_UP) : 0); /* the frame's end comes up */
    port->down = most(pass(&port->down, at, frame_ns(p, m, i, SIM_DOWN)), whole);
    double end = pass(&port->recv_bus, port->down, frame_ns(p, m, i, SIM_RECV_BUS));
    if (i == 0)
        m->head = end;
    if (window >= 1 && every > window)
        every = window;
    if (m->ported == m->frames) {
        m->end = end;
        replay_add(r, end, ARRIVE, id);
    } else if (window >= 1 && m->ported % every == 0)
        replay_add(r, end + frame_ns(p, m, i, SIM_RECV_CPU) + p->ack_ns, ACK, id);
}

/* An acknowledgement opens the window. A sender that was not stopped has its next event FRAME in the queue already. */
void replay_acknowledge(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    int64_t every = (int64_t)most(1, p->ack_every), window = (int64_t)p->window;
    m->acked += every < window ? every : window; /* as reach_port limits it */
    if (!m->stalled || m->pushed - m->acked >= window)
        return;
    m->stalled = 0;
    m->cpu = most(m->cpu, at);
    replay_add(r, m->cpu, FRAME, id);
}

/* A message that was taken before costs only the match. Any other one costs the processor all its frames, from the
 * first one's arrival on. It is not over before the last frame has arrived and was taken. */
double replay_receive_cost(const struct replay *r, const struct message *m, double now)
{
    const sim_path *p = &r->model->path[m->path];
    double all = (double)m->frames * p->frame_ns[SIM_RECV_CPU] + m->bytes * p->byte_ns[SIM_RECV_CPU];
    if (m->taken > 0)
        return most(now, m->taken) + p->match_ns;
    double begin = most(most(now, r->ranks[m->dst].busy), m->head) + p->message_ns[SIM_RECV_CPU];
    return most(begin + all, m->end + p->message_ns[SIM_RECV_CPU] + frame_ns(p, m, m->frames - 1, SIM_RECV_CPU));
}
