/*
 * The replay of schedules: see replay.h.
 *
 * A queue of events in the order of virtual time drives everything. Events at the same time are taken in the order in
 * which they were added, so equal schedules give equal results. Messages move frame by frame, so several messages to
 * one host share its port in turns.
 *
 *     SEND at t --> FRAME: CPU, bus, wire up --> PORT: wire down, bus --> ARRIVE: receive matched
 *                   (the sender's own)           (the receiver's, in order of PORT; ACK opens the window again)
 *
 * A rank pushes one message at a time: its processor copies frame after frame, and stops while the window is closed.
 * The call of SEND returns when the last frame has been taken.
 *
 * A message longer than the eager limit first sends a request. Its data starts when the receive has been posted and the
 * reply has come back.
 *
 * Invariant: every rank that has not ended either has one event RUN in the queue, or waits for an event of a message.
 * If the queue is empty and ranks remain, the schedule deadlocks.
 */
#include "sim/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUN, FRAME, PORT, ACK, ARRIVE, REQUEST, START };
enum { NONE = -1 };

struct event {        /* one entry of the binary heap */
    double at;        /* ns of virtual time */
    uint64_t order;   /* of events at the same time */
    int32_t kind, id; /* id: a rank for RUN, a message for all others */
};

struct message {
    int32_t src, dst;  /* ranks */
    int32_t next;      /* in the receiver's list of envelopes, or NONE */
    int32_t receive;   /* matched receive, or NONE */
    int32_t next_push; /* in the sender's list of messages to push */
    int64_t tag;
    int64_t frames, pushed, ported, acked; /* frames in all, pushed, through the port, acknowledged */
    double bytes, cpu; /* cpu: the sender's processor has pushed the last frame, or may push the next */
    double head, end;  /* the first and the last frame are in the receiver's memory */
    double taken;      /* the receiver's processor took it before a receive matched; 0: not yet */
    int8_t stalled;    /* the window is closed */
    int8_t path, is_long, is_write, arrived, blocks; /* blocks: the sender's SEND waits for it */
};

struct receive {
    int32_t next;       /* in the rank's list of unmatched receives */
    int32_t next_begun; /* in its list of receives begun by IRECV */
    int32_t message;    /* that has arrived, or NONE */
    int32_t src;        /* the rank whose message it takes */
    int64_t tag;
    int8_t blocks; /* RECV or AWAIT */
};

struct rank {
    double now, waited;                                       /* ns: its clock, and the sum of its waits for others */
    double busy;                                              /* taking messages that are not matched yet */
    int64_t op;                                               /* the operation it performs, in its own list */
    int32_t envelopes, last_envelope, receives, last_receive; /* unmatched, in order */
    int32_t begun, last_begun;         /* receives since the last WAITALL, in the order of posting */
    int32_t open_receives, open_sends; /* that WAITALL waits for */
    int32_t push, last_push;           /* messages whose data leaves, the first of them now */
    int8_t waits;                      /* blocked in an operation */
};

struct port {                            /* servers of one host */
    double send_bus, up, down, recv_bus; /* ns: when each is free again */
};

struct replay {
    const sim_model *model;
    const sim_schedule *schedule;
    struct event *heap;
    int64_t n_heap, room; /* events in the heap, and its capacity */
    uint64_t order;       /* of the next event that is added */
    struct rank *ranks;
    struct port *ports;
    struct message *messages;
    struct receive *receives;
    int32_t n_messages, n_receives; /* begun so far: their arrays have room for all */
    int64_t bytes;                  /* payload of all messages begun so far */
    int failed;                     /* memory for the heap is exhausted: sim_replay gives up */
};

static double most(double a, double b)
{
    return a > b ? a : b;
}

/* ---------------------------------------------------------------- the queue */

static int before(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at <= b->at && a->order < b->order);
}

static void add(struct replay *r, double at, int kind, int32_t id)
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

static struct event take(struct replay *r)
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

static double payload_of(const sim_path *p)
{
    return p->payload >= 1 ? p->payload : 1;
}

/* Time of frame i of a message in a stage. */
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

static void pushed(struct replay *r, int32_t id);

static int is_local(const struct replay *r, const struct message *m)
{
    return r->model->local > 0 && r->schedule->host[m->src] == r->schedule->host[m->dst];
}

/* The sender's processor takes the next frame at m->cpu, and the frame goes on to the receiver's port. */
static void push_frame(struct replay *r, int32_t id)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    int64_t from = r->schedule->host[m->src], to = r->schedule->host[m->dst], i = m->pushed++;
    struct port *port = &r->ports[from];
    m->cpu += frame_ns(p, m, i, SIM_SEND_CPU);
    double *bus = r->model->half_duplex > 0 ? &port->recv_bus : &port->send_bus, up = frame_ns(p, m, i, SIM_UP);
    double end = pass(&port->up, pass(bus, m->cpu, frame_ns(p, m, i, SIM_SEND_BUS)), up);
    double delay = p->delay_ns + (from == to ? 1 : switches(r->model, from, to)) * r->model->switch_ns;
    add(r, end + delay - (p->cut > 0 ? up : 0), PORT, id);
    if (m->pushed == m->frames)
        pushed(r, id);
    else if (p->window >= 1 && m->pushed - m->acked >= (int64_t)p->window)
        m->stalled = 1; /* acknowledge() continues */
    else
        add(r, m->cpu, FRAME, id);
}

/* The processor begins to push a message. */
static void begin_push(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    m->cpu = at + p->message_ns[SIM_SEND_CPU];
    if (!is_local(r, m)) {
        push_frame(r, id);
        return;
    }
    m->head = m->cpu + frame_ns(p, m, 0, SIM_SEND_CPU) + p->delay_ns;
    m->cpu += (double)m->frames * p->frame_ns[SIM_SEND_CPU] + m->bytes * p->byte_ns[SIM_SEND_CPU];
    m->end = m->cpu + p->delay_ns;
    m->pushed = m->frames;
    add(r, m->end, ARRIVE, id);
    pushed(r, id);
}

/* The data of a message leaves, from `at` on, after the messages that the rank is pushing. */
static void push(struct replay *r, int32_t id, double at)
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
    begin_push(r, id, at);
}

/* The head of a frame has reached the receiver's port of the switch. */
static void reach_port(struct replay *r, int32_t id, double at)
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
        add(r, end, ARRIVE, id);
    } else if (window >= 1 && m->ported % every == 0)
        add(r, end + frame_ns(p, m, i, SIM_RECV_CPU) + p->ack_ns, ACK, id);
}

/* An acknowledgement opens the window. */
static void acknowledge(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    int64_t every = (int64_t)most(1, p->ack_every), window = (int64_t)p->window;
    m->acked += every < window ? every : window; /* as reach_port limits it */
    if (!m->stalled || m->pushed - m->acked >= window)
        return;
    m->stalled = 0;
    m->cpu = most(m->cpu, at);
    add(r, m->cpu, FRAME, id);
}

/* The receiver's CPU, in an operation since `now`, receives a message that has arrived or is arriving. */
static double receive_cost(const struct replay *r, const struct message *m, double now)
{
    const sim_path *p = &r->model->path[m->path];
    double all = (double)m->frames * p->frame_ns[SIM_RECV_CPU] + m->bytes * p->byte_ns[SIM_RECV_CPU];
    if (m->taken > 0)
        return most(now, m->taken) + p->match_ns;
    double begin = most(most(now, r->ranks[m->dst].busy), m->head) + p->message_ns[SIM_RECV_CPU];
    return most(begin + all, m->end + p->message_ns[SIM_RECV_CPU] + frame_ns(p, m, m->frames - 1, SIM_RECV_CPU));
}

/* ---------------------------------------------------------------- ranks */

static const sim_op *op_of(const struct replay *r, int32_t rank)
{
    int64_t at = r->schedule->first[rank] + r->ranks[rank].op;
    return at < r->schedule->first[rank + 1] ? &r->schedule->ops[at] : NULL;
}

static void resume(struct replay *r, int32_t rank, double at)
{
    struct rank *me = &r->ranks[rank];
    me->waits = 0;
    me->now = at;
    me->op++;
    add(r, at, RUN, rank);
}

/* WAITALL ends when nothing is open. The CPU takes the messages in the order of posting. */
static void try_waitall(struct replay *r, int32_t rank, double at)
{
    struct rank *me = &r->ranks[rank];
    if (me->open_receives || me->open_sends)
        return;
    double now = me->now;
    for (int32_t i = me->begun; i != NONE; i = r->receives[i].next_begun)
        now = receive_cost(r, &r->messages[r->receives[i].message], now);
    me->begun = me->last_begun = NONE;
    me->waited += most(0, at - me->now);
    resume(r, rank, most(now, at));
}

/* A message is matched and its data is here. */
static void complete(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    struct rank *me = &r->ranks[m->dst];
    struct receive *receive = &r->receives[m->receive];
    receive->message = id;
    if (receive->blocks) {
        me->waited += most(0, m->end - me->now);
        resume(r, m->dst, receive_cost(r, m, me->now));
        return;
    }
    me->open_receives--;
    if (me->waits && op_of(r, m->dst)->kind == SIM_WAITALL)
        try_waitall(r, m->dst, at);
}

static void match(struct replay *r, int32_t id, int32_t receive, double at)
{
    struct message *m = &r->messages[id];
    m->receive = receive;
    if (m->is_long)
        add(r, at + r->model->request_ns, START, id); /* the reply travels to the sender */
    else if (m->arrived)
        complete(r, id, at);
}

/* A message, or its request, has arrived: match it with the first receive that fits, or keep its envelope. */
static void envelope(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    struct rank *me = &r->ranks[m->dst];
    for (int32_t i = me->receives, last = NONE; i != NONE; last = i, i = r->receives[i].next)
        if (r->receives[i].src == m->src && r->receives[i].tag == m->tag) {
            *(last == NONE ? &me->receives : &r->receives[last].next) = r->receives[i].next;
            if (me->last_receive == i)
                me->last_receive = last;
            match(r, id, i, at);
            return;
        }
    if (me->waits && m->arrived) /* not for a request: its data has not been sent */
        me->busy = m->taken = receive_cost(r, m, at) - r->model->path[m->path].match_ns;
    m->next = NONE;
    *(me->last_envelope == NONE ? &me->envelopes : &r->messages[me->last_envelope].next) = id;
    me->last_envelope = id;
}

/* Post a receive: match it with the first envelope that fits, or keep it. */
static void post(struct replay *r, int32_t rank, const sim_op *op, int blocks)
{
    struct rank *me = &r->ranks[rank];
    int32_t id = r->n_receives++;
    r->receives[id] = (struct receive){NONE, NONE, NONE, (int32_t)op->peer, op->tag, (int8_t)blocks};
    if (blocks)
        me->waits = 1;
    else {
        *(me->last_begun == NONE ? &me->begun : &r->receives[me->last_begun].next_begun) = id;
        me->last_begun = id;
        me->open_receives++;
    }
    for (int32_t i = me->envelopes, last = NONE; i != NONE; last = i, i = r->messages[i].next)
        if (r->messages[i].src == op->peer && r->messages[i].tag == op->tag) {
            *(last == NONE ? &me->envelopes : &r->messages[last].next) = r->messages[i].next;
            if (me->last_envelope == i)
                me->last_envelope = last;
            match(r, i, id, me->now);
            return;
        }
    *(me->last_receive == NONE ? &me->receives : &r->receives[me->last_receive].next) = id;
    me->last_receive = id;
}

/* Begin a message. Returns 1 if the rank goes on, at me->now; else it goes on when the data has been pushed. */
static int begin_send(struct replay *r, int32_t rank, const sim_op *op)
{
    struct rank *me = &r->ranks[rank];
    int same_host = r->schedule->host[rank] == r->schedule->host[op->peer], local = r->model->local > 0 && same_host;
    int is_write = op->kind == SIM_WRITE, is_long = !is_write && (double)op->bytes > r->model->eager_limit;
    int32_t id = r->n_messages++;
    r->messages[id] = (struct message){.src = rank,
                                       .dst = (int32_t)op->peer,
                                       .next = NONE,
                                       .receive = NONE,
                                       .tag = op->tag,
                                       .bytes = (double)op->bytes,
                                       .is_long = (int8_t)is_long,
                                       .is_write = (int8_t)is_write,
                                       .blocks = op->kind == SIM_SEND};
    struct message *m = &r->messages[id];
    m->path = (int8_t)(is_write  ? SIM_RDMA
                       : local   ? (is_long ? SIM_LOCAL_LONG : SIM_LOCAL)
                       : is_long ? SIM_LONG
                                 : SIM_EAGER);
    r->bytes += op->bytes;
    if (is_write && same_host && r->model->local_flag_ns > 0) { /* a store in shared memory */
        m->head = m->end = me->now + r->model->local_flag_ns;
        m->frames = 1;
        add(r, m->end, ARRIVE, id);
        return 1;
    }
    if (!is_long) {
        push(r, id, me->now);
        return 0;
    }
    add(r, me->now + r->model->request_ns, REQUEST, id);
    if (m->blocks)
        me->waits = 1;
    else
        me->open_sends++;
    return !m->blocks;
}

/* Run a rank until it waits. A rank gives way after each operation that sends, so that ports serve in order of time. */
static void run(struct replay *r, int32_t rank)
{
    struct rank *me = &r->ranks[rank];
    const sim_op *op = op_of(r, rank);
    if (op == NULL)
        return;
    switch (op->kind) {
    case SIM_COMPUTE:
        resume(r, rank, me->now + (double)op->ns);
        break;
    case SIM_SEND:
    case SIM_ISEND:
    case SIM_WRITE:
        if (begin_send(r, rank, op))
            resume(r, rank, me->now);
        break;
    case SIM_IRECV:
        post(r, rank, op, 0);
        resume(r, rank, me->now);
        break;
    case SIM_RECV:
    case SIM_AWAIT:
        post(r, rank, op, 1);
        break;
    default: /* SIM_WAITALL */
        me->waits = 1;
        try_waitall(r, rank, me->now);
    }
}

/* The reply to a request has come: the data of a long message leaves. */
static void start(struct replay *r, int32_t id, double at)
{
    const struct message *m = &r->messages[id];
    struct rank *me = &r->ranks[m->src];
    double begin = most(at, me->waits ? me->now : at);
    if (m->blocks)
        me->waited += most(0, begin - me->now);
    push(r, id, begin);
}

/* The processor has taken the message's last frame: its buffer is free, and the next message leaves. */
static void pushed(struct replay *r, int32_t id)
{
    const struct message *m = &r->messages[id];
    struct rank *me = &r->ranks[m->src];
    double at = m->cpu;
    if (m->blocks || !m->is_long)
        resume(r, m->src, at);
    else {
        me->open_sends--;
        if (me->waits && op_of(r, m->src)->kind == SIM_WAITALL) {
            me->now = most(me->now, at);
            try_waitall(r, m->src, at);
        }
    }
    me->push = m->next_push;
    if (me->push != NONE)
        begin_push(r, me->push, most(at, r->messages[me->push].cpu));
}

static void handle(struct replay *r, const struct event *e)
{
    struct message *m = e->kind == RUN ? NULL : &r->messages[e->id];
    switch (e->kind) {
    case RUN:
        run(r, e->id);
        break;
    case FRAME:
        push_frame(r, e->id);
        break;
    case PORT:
        reach_port(r, e->id, e->at);
        break;
    case ACK:
        acknowledge(r, e->id, e->at);
        break;
    case REQUEST:
        envelope(r, e->id, e->at);
        break;
    case START:
        start(r, e->id, e->at);
        break;
    default: /* ARRIVE */
        m->arrived = 1;
        if (m->is_long)
            complete(r, e->id, e->at);
        else
            envelope(r, e->id, e->at);
    }
}

/* ---------------------------------------------------------------- the call */

static int valid(const sim_schedule *s, const sim_op *op)
{
    if (op->kind < 0 || op->kind >= SIM_KINDS || op->bytes < 0 || op->ns < 0)
        return 0;
    return op->kind == SIM_COMPUTE || op->kind == SIM_WAITALL || (op->peer >= 0 && op->peer < s->n_ranks);
}

/* Count messages and receives, and check every operation. */
static int count(const sim_schedule *s, int64_t *messages, int64_t *receives, sim_result *result)
{
    for (int32_t rank = 0; rank < s->n_ranks; rank++)
        for (int64_t i = s->first[rank]; i < s->first[rank + 1]; i++) {
            const sim_op *op = &s->ops[i];
            if (!valid(s, op)) {
                result->rank = rank;
                result->op = i - s->first[rank];
                return SIM_INVALID;
            }
            *messages += op->kind == SIM_SEND || op->kind == SIM_ISEND || op->kind == SIM_WRITE;
            *receives += op->kind == SIM_RECV || op->kind == SIM_IRECV || op->kind == SIM_AWAIT;
        }
    return *messages < INT32_MAX && *receives < INT32_MAX ? SIM_OK : SIM_NO_MEMORY;
}

/* The first rank that has not ended: the schedule deadlocks there. */
static int find_deadlock(const struct replay *r, sim_result *result)
{
    for (int32_t rank = 0; rank < r->schedule->n_ranks; rank++)
        if (op_of(r, rank)) {
            result->rank = rank;
            result->op = r->ranks[rank].op;
            return SIM_DEADLOCK;
        }
    return SIM_OK;
}

int sim_replay(const sim_model *model, const sim_schedule *schedule, double *ends_ns, double *waits_ns,
               sim_result *result)
{
    struct replay r = {.model = model, .schedule = schedule};
    int64_t messages = 0, receives = 0;
    int code = count(schedule, &messages, &receives, result);
    if (code != SIM_OK)
        return code;
    r.ranks = calloc((size_t)schedule->n_ranks + 1, sizeof *r.ranks);
    r.ports = calloc((size_t)schedule->n_hosts + 1, sizeof *r.ports);
    r.messages = calloc((size_t)messages + 1, sizeof *r.messages);
    r.receives = calloc((size_t)receives + 1, sizeof *r.receives);
    code = SIM_NO_MEMORY;
    if (r.ranks == NULL || r.ports == NULL || r.messages == NULL || r.receives == NULL)
        goto free_all;
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        struct rank *me = &r.ranks[rank];
        me->envelopes = me->last_envelope = me->receives = me->last_receive = NONE;
        me->begun = me->last_begun = me->push = me->last_push = NONE;
        add(&r, 0, RUN, rank);
    }
    while (r.n_heap && !r.failed) {
        struct event e = take(&r);
        handle(&r, &e);
    }
    if (r.failed)
        goto free_all;
    code = find_deadlock(&r, result);
    if (code != SIM_OK)
        goto free_all;
    *result = (sim_result){r.n_messages, r.bytes, NONE, NONE, 0};
    for (int32_t rank = 0; rank < schedule->n_ranks; rank++) {
        ends_ns[rank] = r.ranks[rank].now;
        waits_ns[rank] = r.ranks[rank].waited;
        result->end_ns = most(result->end_ns, r.ranks[rank].now);
    }
free_all:
    free(r.heap);
    free(r.ranks);
    free(r.ports);
    free(r.messages);
    free(r.receives);
    return code;
}
