/*
 * Revoked communicators: operations that are pending there end with MSG_ERR_REVOKED, and later ones are refused.
 *
 * A *scope* (msg.h) is the set of contexts of one communicator that end together. Its id distinguishes it from other
 * scopes of these contexts, earlier ones and those of ranks that share no communicator with this one. A revocation
 * names contexts and id:
 *
 *     msg_revoke   --REVOKE-->  each member  --REVOKE-->  all ranks that it is connected to  --> ...
 *
 * Each rank passes a revocation on once, so it reaches all ranks even if the first sender dies meanwhile. It may arrive
 * before its scope is opened here, because the members of a new communicator do not begin at the same time. All
 * revocations are therefore kept as long as the world: 16 bytes each.
 *
 *     a pending operation               ends
 *     receive that no message matched   at once, in error
 *     synchronous send without its ACK  at once, in error; the late ACK finds no request
 *     long send, announced              when the receiver, which discards messages of the scope, calls the engine next
 *     any other                         as without the revocation: its data is on its way between two live ranks
 *
 * Invariant: n_revoked is the number of open scopes that are revoked. While it is 0, no call pays for this file more
 * than a test of it. Called with the world's lock held, except for the public calls.
 */
#include <stdlib.h>

#include "msg/channel.h"

struct msg_revocation {
    uint64_t id;
    int context;
};

/* ---------------------------------------------------------------- what is revoked */

/* Whether the context is one of the scope's: they are numbered without a gap. */
static int is_within(const msg_scope *s, int context)
{
    return context >= s->context && context < s->context + s->n;
}

/* MSG_ERR_REVOKED if operations in this context are refused, else MSG_SUCCESS. Sets no text. */
int msg_revoked_error(const msg_world *w, int context)
{
    for (const msg_scope *s = w->n_revoked ? w->scopes : NULL; s; s = s->next)
        if (s->revoked && is_within(s, context))
            return MSG_ERR_REVOKED;
    return MSG_SUCCESS;
}

/* Whether this rank has the revocation already. Revocations are few, so a walk through all is enough. */
static int is_known(const msg_world *w, int context, uint64_t id)
{
    for (size_t i = 0; i < w->n_revocations; i++)
        if (w->revocations[i].id == id && w->revocations[i].context == context)
            return 1;
    return 0;
}

/* Appends a revocation that is new here. Returns MSG_SUCCESS or MSG_ERR_NO_MEMORY. */
static int remember(msg_world *w, int context, uint64_t id)
{
    struct msg_revocation *more = realloc(w->revocations, (w->n_revocations + 1) * sizeof *more);
    if (more == NULL)
        return MSG_ERR_NO_MEMORY;
    w->revocations = more;
    more[w->n_revocations++] = (struct msg_revocation){id, context};
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- pending operations */

/* For msg_each_request: ends a request that waits for the program of another member, as the table above lists. */
static void end_pending(msg_request *r, void *scope)
{
    int is_posted = r->kind == MSG_REQ_RECV && (r->flags & MSG_ON_POSTED);
    int is_sent = r->kind == MSG_REQ_SEND && !(r->flags & MSG_QUEUED);
    if (r->complete || !(is_posted || is_sent) || !is_within(scope, r->context))
        return;
    if (is_posted)
        msg_unpost(r->world, r);
    else if (msg_announced(&r->world->peers[r->peer], r->id, MSG_PKT_SYNC) == NULL)
        return;
    msg_complete(r, MSG_ERR_REVOKED);
}

/* Marks the scope and ends its pending operations. Further calls change nothing. */
static void revoke_scope(msg_scope *s)
{
    if (s->revoked)
        return;
    vk_store_relaxed(&s->revoked, 1); /* its owner reads it without the lock */
    s->world->n_revoked++;
    msg_each_request(s->world, end_pending, s);
}

/* The senders of announced messages wait for this. */
void msg_discard_revoked(msg_world *w)
{
    for (const msg_scope *s = w->n_unexpected ? w->scopes : NULL; s; s = s->next)
        for (int i = 0; s->revoked && i < s->n; i++)
            msg_discard_locked(w, s->context + i, 0, 0);
}

/* ---------------------------------------------------------------- spreading */

/* Sends a revocation, unless the rank is this one or cannot receive any more. */
static void push(struct msg_peer *to, int context, uint64_t id)
{
    struct msg_packet p = {.head = {.kind = MSG_PKT_REVOKE, .context = (uint16_t)context}, .rest.id = id};
    if (to->rank != to->world->rank && to->state == MSG_PEER_CONNECTED && !to->gone)
        msg_push_control(to, &p);
}

/* Applies a revocation that is new here. */
static int apply(msg_world *w, int context, uint64_t id)
{
    int code = remember(w, context, id);
    for (msg_scope *s = w->scopes; s; s = s->next)
        if (s->context == context && s->id == id)
            revoke_scope(s);
    msg_changed(w);
    return code;
}

/* Without memory to remember it, the revocation is not passed on: it would come back for ever. */
void msg_revocation_arrived(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_world *w = peer->world;
    int context = p->head.context;
    uint64_t id = p->rest.id;
    if (is_known(w, context, id) || apply(w, context, id) != MSG_SUCCESS)
        return;
    for (int i = 0; i < w->n_ranks; i++)
        if (i != peer->rank && w->peers[i].met)
            push(&w->peers[i], context, id);
}

/* ---------------------------------------------------------------- the public calls */

/* A revocation that came earlier takes effect now. */
int msg_scope_open(msg_world *w, msg_scope *s, int context, int n, uint64_t id)
{
    if (s->world)
        msg_scope_close(s);
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    *s = (msg_scope){.world = w, .next = w->scopes, .id = id, .context = context, .n = n};
    w->scopes = s;
    if (is_known(w, context, id))
        revoke_scope(s);
    msg_unlock(w);
    return MSG_SUCCESS;
}

/* Takes an open scope out of the list. Its revocation stays known. */
static void unlink_scope(msg_scope *s)
{
    msg_scope **at = &s->world->scopes;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    s->world->n_revoked -= s->revoked;
    s->world = NULL;
}

/* A scope that is not open is left as it is. */
void msg_scope_close(msg_scope *s)
{
    msg_world *w = s->world;
    if (w == NULL || !msg_enter(w))
        return;
    unlink_scope(s);
    msg_unlock(w);
}

void msg_scopes_end(msg_world *w)
{
    if (!msg_enter(w))
        return;
    while (w->scopes)
        unlink_scope(w->scopes);
    msg_unlock(w);
}

/* A revocation that this rank has already is not sent again. It was sent, or passed on, when it came. */
int msg_revoke(msg_scope *s, const int *ranks, int n)
{
    msg_world *w = s->world;
    if (w == NULL)
        return MSG_ERR_STATE;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = MSG_SUCCESS;
    if (!is_known(w, s->context, s->id)) {
        code = apply(w, s->context, s->id);
        for (int i = 0; i < n; i++)
            push(&w->peers[ranks[i]], s->context, s->id);
    }
    msg_unlock(w);
    return code;
}

int msg_is_revoked(msg_world *w, int context)
{
    if (!msg_enter(w))
        return 0;
    int code = msg_revoked_error(w, context);
    msg_unlock(w);
    return code != MSG_SUCCESS;
}
