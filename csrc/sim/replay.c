/*
 * The replay of schedules: see replay.h.
 *
 * A queue of events in the order of virtual time drives everything. Events at the same time are taken in the order in
 * which they were added, so equal schedules give equal results. A message is one unit in each stage, not its frames: its
 * head enters a stage when its first frame has left the stage before, and its end leaves a stage no earlier than the
 * end of the stage before plus one frame.
 *
 *     SEND at t --> CPU, bus, wire up --> event PORT --> wire down, bus --> event ARRIVE --> receive matched
 *                   (the sender's own)                   (the receiver's, in order of PORT)
 *
 * A message longer than the eager limit first sends a request. Its data starts when the receive has been posted and the
 * reply has come back.
 *
 * Invariant: every rank that has not ended either has one event RUN in the queue, or waits for an event of a message. If
 * the queue is empty and ranks remain, the schedule deadlocks.
 */
#include "sim/replay.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { RUN, PORT, ARRIVE, REQUEST, START };
enum { NONE = -1 };

struct event {
    double at;
    uint64_t order; /* of events at the same time */
    int32_t kind, id;
};

struct message {
    int32_t src, dst;
    int32_t next;    /* in the receiver's list of envelopes, or NONE */
    int32_t receive; /* matched receive, or NONE */
    int64_t tag;
    double bytes, head, end; /* of its passage through the present stage; in the end, of its arrival */
    int8_t path, is_long, is_write, arrived, blocks; /* blocks: the sender's SEND waits for it */
};

struct receive {
    int32_t next;       /* in the rank's list of unmatched receives */
    int32_t next_begun; /* in its list of receives begun by IRECV */
    int32_t message;    /* that has arrived, or NONE */
    int32_t src;
    int64_t tag;
    int8_t blocks; /* RECV or AWAIT */
};

struct rank {
    double now, waited;
    int64_t op;
    int32_t envelopes, last_envelope, receives, last_receive; /* unmatched, in order */
    int32_t begun, last_begun;         /* receives since the last WAITALL, in the order of posting */
    int32_t open_receives, open_sends; /* that WAITALL waits for */
    int8_t waits;                      /* blocked in an operation */
};

struct port { /* servers of one host */
    double send_bus, up, down, recv_bus;
};

struct replay {
    const sim_model *model;
    const sim_schedule *schedule;
    struct event *heap;
    int64_t n_heap, room;
    uint64_t order;
    struct rank *ranks;
    struct port *ports;
    struct message *messages;
    struct receive *receives;
    int32_t n_messages, n_receives;
    int64_t bytes;
    int failed;
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
    struct event first = r->heap[0], last = r->heap[--r->n_heap];
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

struct load { /* a message's need of one stage */
    double first, last, all;
};

static struct load load_of(const sim_path *p, int stage, double bytes)
{
    double payload = p->payload >= 1 ? p->payload : 1;
    double frames = bytes > payload ? ceil(bytes / payload) : 1;
    double first = bytes < payload ? bytes : payload, last = bytes - (frames - 1) * payload;
    return (struct load){p->frame_ns[stage] + first * p->byte_ns[stage], p->frame_ns[stage] + last * p->byte_ns[stage],
                         frames * p->frame_ns[stage] + bytes * p->byte_ns[stage]};
}

/* The message passes a server: head and end are those of the stage before, and become those of this one. */
static void pass(double *free_at, struct load need, double *head, double *end)
{
    double begin = most(*head, *free_at);
    *head = begin + need.first;
    *end = most(begin + need.all, *end + need.last);
    *free_at = *end;
}

/* Switches between two hosts: one, or those of a fat tree with half of the ports down and half up. */
static double switches(const sim_model *m, int64_t a, int64_t b)
{
    int64_t half = (int64_t)m->ports / 2;
    if (half < 1)
        return 1;
    double crossed = 1;
    for (a /= half, b /= half; a != b; a /= half > 1 ? half : 2, b /= half > 1 ? half : 2)
        crossed += 2;
    return crossed;
}

/* The data of a message leaves the sender's CPU, which is busy from `at`. Returns the time when the CPU is free. */
static double depart(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    int64_t from = r->schedule->host[m->src], to = r->schedule->host[m->dst];
    struct load cpu = load_of(p, SIM_SEND_CPU, m->bytes);
    at += p->message_ns[SIM_SEND_CPU];
    m->head = at + cpu.first;
    double busy = m->end = at + cpu.all;
    if (from == to && r->model->local > 0) {
        m->head += p->delay_ns;
        m->end += p->delay_ns;
        add(r, m->end, ARRIVE, id);
        return busy;
    }
    struct port *port = &r->ports[from];
    double *bus = r->model->half_duplex > 0 ? &port->recv_bus : &port->send_bus;
    pass(bus, load_of(p, SIM_SEND_BUS, m->bytes), &m->head, &m->end);
    struct load up = load_of(p, SIM_UP, m->bytes);
    pass(&port->up, up, &m->head, &m->end);
    double delay = p->delay_ns + (from == to ? 1 : switches(r->model, from, to)) * r->model->switch_ns;
    m->head += delay - (p->cut > 0 ? up.first : 0);
    m->end += delay;
    add(r, m->head, PORT, id);
    return busy;
}

/* The head of a message has reached the receiver's port of the switch. */
static void reach_port(struct replay *r, int32_t id)
{
    struct message *m = &r->messages[id];
    const sim_path *p = &r->model->path[m->path];
    struct port *port = &r->ports[r->schedule->host[m->dst]];
    struct load down = load_of(p, SIM_DOWN, m->bytes);
    double end = m->end;
    if (p->cut > 0)
        m->end -= down.last; /* pass adds it again: the frames cross both wires at once */
    pass(&port->down, down, &m->head, &m->end);
    m->end = most(m->end, end);
    pass(&port->recv_bus, load_of(p, SIM_RECV_BUS, m->bytes), &m->head, &m->end);
    add(r, m->end, ARRIVE, id);
}

/* The receiver's CPU, in an operation since `now`, receives a message that has arrived or is arriving. */
static double receive_cost(const struct replay *r, const struct message *m, double now)
{
    const sim_path *p = &r->model->path[m->path];
    struct load cpu = load_of(p, SIM_RECV_CPU, m->bytes);
    double begin = most(now, m->head) + p->message_ns[SIM_RECV_CPU];
    return most(begin + cpu.all, m->end + p->message_ns[SIM_RECV_CPU] + cpu.last);
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

/* Begin a message. Returns 1 if the rank goes on, at me->now. */
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
        add(r, m->end, ARRIVE, id);
        return 1;
    }
    if (!is_long) {
        me->now = depart(r, id, me->now);
        return 1;
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

/* The data of a long message leaves, after the reply. A blocked sender goes on when its buffer is free. */
static void start(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    struct rank *me = &r->ranks[m->src];
    double begin = most(at, me->waits ? me->now : at), busy = depart(r, id, begin);
    if (m->blocks) {
        me->waited += most(0, begin - me->now);
        resume(r, m->src, busy);
        return;
    }
    me->open_sends--;
    if (me->waits && op_of(r, m->src)->kind == SIM_WAITALL) {
        me->now = most(me->now, busy);
        try_waitall(r, m->src, busy);
    }
}

static void handle(struct replay *r, const struct event *e)
{
    struct message *m = e->kind == RUN ? NULL : &r->messages[e->id];
    switch (e->kind) {
    case RUN:
        run(r, e->id);
        break;
    case PORT:
        reach_port(r, e->id);
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
        me->envelopes = me->last_envelope = me->receives = me->last_receive = me->begun = me->last_begun = NONE;
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
