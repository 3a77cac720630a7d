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
 *
 * A rank's operation, and what ends it:
 *
 *     COMPUTE            its time                        SEND, eager    the last frame is pushed
 *     IRECV              at once                         SEND, long     the same, after request and reply
 *     RECV, AWAIT        the message is received         ISEND          eager: pushed. long: at once
 *     WAITALL            nothing is open any more        WRITE          pushed; in shared memory at once
 *
 * Matching is by source and tag, in the order of posting on one side and of arrival on the other:
 *
 *     envelopes   messages or requests that have arrived, no receive yet       receives   posted, no message yet
 *
 * A message that has arrived is in `envelopes`, or has a receive. The lists are searched from the oldest on, so a
 * schedule with many open receives of one rank takes quadratic time. Not done: wildcards of source or tag.
 *
 * sim_replay() may be called by any thread. The rest runs inside that call.
 */
#include <stdlib.h>

#include "sim/replay_parts.h"

/* ---------------------------------------------------------------- ranks */

/* Returns the rank's present operation. NULL: it has ended. */
static const sim_op *op_of(const struct replay *r, int32_t rank)
{
    int64_t at = r->schedule->first[rank] + r->ranks[rank].op;
    return at < r->schedule->first[rank + 1] ? &r->schedule->ops[at] : NULL;
}

/* The rank's operation is over at `at`: it performs the next one then. */
static void resume(struct replay *r, int32_t rank, double at)
{
    struct rank *me = &r->ranks[rank];
    me->waits = 0;
    me->now = at;
    me->op++;
    replay_add(r, at, RUN, rank);
}

/* WAITALL ends when nothing is open. The CPU takes the messages in the order of posting. Called when the operation
 * begins, and when each of its messages is complete. `waited` counts the time until the last of them, not the work
 * after it. */
static void try_waitall(struct replay *r, int32_t rank, double at)
{
    struct rank *me = &r->ranks[rank];
    if (me->open_receives || me->open_sends)
        return;
    double now = me->now;
    for (int32_t i = me->begun; i != NONE; i = r->receives[i].next_begun)
        now = replay_receive_cost(r, &r->messages[r->receives[i].message], now);
    me->begun = me->last_begun = NONE;
    me->waited += most(0, at - me->now);
    resume(r, rank, most(now, at));
}

/* A message is matched and its data is here. A blocking receive goes on when the processor has it. One that was begun
 * by IRECV is only counted: its cost is charged in WAITALL. */
static void complete(struct replay *r, int32_t id, double at)
{
    struct message *m = &r->messages[id];
    struct rank *me = &r->ranks[m->dst];
    struct receive *receive = &r->receives[m->receive];
    receive->message = id;
    if (receive->blocks) {
        me->waited += most(0, m->end - me->now);
        resume(r, m->dst, replay_receive_cost(r, m, me->now));
        return;
    }
    me->open_receives--;
    if (me->waits && op_of(r, m->dst)->kind == SIM_WAITALL)
        try_waitall(r, m->dst, at);
}

/* A message and a receive belong together. Nothing more happens for an eager message that is still arriving. */
static void match(struct replay *r, int32_t id, int32_t receive, double at)
{
    struct message *m = &r->messages[id];
    m->receive = receive;
    if (m->is_long)
        replay_add(r, at + r->model->request_ns, START, id); /* the reply travels to the sender */
    else if (m->arrived)
        complete(r, id, at);
}

/* A message, or its request, has arrived: match it with the first receive that fits, or keep its envelope. A rank that
 * waits takes the message's bytes meanwhile (replay.h), so the receive costs only match_ns later. */
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
        me->busy = m->taken = replay_receive_cost(r, m, at) - r->model->path[m->path].match_ns;
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

/* Begin a message. Returns 1 if the rank goes on, at me->now; else it goes on when the data has been pushed. A write to
 * another process of the host is a store: only its flag takes time to be seen. */
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
        replay_add(r, m->end, ARRIVE, id);
        return 1;
    }
    if (!is_long) {
        replay_push(r, id, me->now);
        return 0;
    }
    replay_add(r, me->now + r->model->request_ns, REQUEST, id);
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

/* The reply to a request has come: the data of a long message leaves. A rank that computes pushes it at once, as if its
 * card or a thread did, and pays for that in no operation. */
static void start(struct replay *r, int32_t id, double at)
{
    const struct message *m = &r->messages[id];
    struct rank *me = &r->ranks[m->src];
    double begin = most(at, me->waits ? me->now : at);
    if (m->blocks)
        me->waited += most(0, begin - me->now);
    replay_push(r, id, begin);
}

/* The processor has taken the message's last frame: its buffer is free, and the next message leaves. */
void replay_pushed(struct replay *r, int32_t id)
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
        replay_begin_push(r, me->push, most(at, r->messages[me->push].cpu));
}

/* ARRIVE of a long message finds its receive, because the reply was sent for it. */
static void handle(struct replay *r, const struct event *e)
{
    struct message *m = e->kind == RUN ? NULL : &r->messages[e->id];
    switch (e->kind) {
    case RUN:
        run(r, e->id);
        break;
    case FRAME:
        replay_push_frame(r, e->id);
        break;
    case PORT:
        replay_reach_port(r, e->id, e->at);
        break;
    case ACK:
        replay_acknowledge(r, e->id, e->at);
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

/* Whether the operation can be performed. The kinds are numbers of the caller, perhaps read from a file. */
static int valid(const sim_schedule *s, const sim_op *op)
{
    if (op->kind < 0 || op->kind >= SIM_KINDS || op->bytes < 0 || op->ns < 0)
        return 0;
    return op->kind == SIM_COMPUTE || op->kind == SIM_WAITALL || (op->peer >= 0 && op->peer < s->n_ranks);
}

/* Count messages and receives, and check every operation: the arrays are allocated once, for all of them. Returns
 * SIM_OK, SIM_INVALID with rank and operation in *result, or SIM_NO_MEMORY for more than their indices can count. */
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

/* One element more than needed, because calloc(0, n) may return NULL without an error. The caller's arrays are written
 * only on success. */
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
        replay_add(&r, 0, RUN, rank);
    }
    while (r.n_heap && !r.failed) {
        struct event e = replay_take(&r);
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
