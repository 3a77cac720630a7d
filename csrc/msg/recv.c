/*
 * Receiving and probing: the public calls. A receive first searches the unexpected messages, and is posted if none
 * matches. No message can arrive in between, because the lock is held and the channel is not polled. So no message is
 * missed.
 *
 *       unexpected message?  --yes-->  msg_deliver_unexpected (copy, or reply to its RTS)
 *             | no
 *       can one come?   --no--->  complete in error: its rank has left or died
 *             | yes
 *       posted (match.c); arrival.c completes it
 *
 * Errors before the request exists are returned. Later errors are stored in its status.
 *
 * A request belongs to the caller of msg_irecv or msg_imrecv, until a wait or test reports its completion. The blocking
 * calls make theirs and reap it themselves. msg_recv_soon and msg_recv_rest are one blocking call in two parts, with
 * the request handed from one to the other.
 *
 * Any thread may call these functions if the world has `threads`. The blocking ones release the lock while they wait
 * (wait.c).
 */
#include "base/plural.h"
#include "msg/channel.h"

/* Returns MSG_SUCCESS, or the error in the arguments, before anything has changed. Also an error: the communicator is
 * revoked, because a receive that starts later must not wait for a message (ULFM). */
static int check_recv(msg_world *w, int context, int src, int tag)
{
    if (vk_unlikely((unsigned)src >= (unsigned)w->n_ranks) && src != MSG_ANY_SOURCE && src != MSG_PROC_NULL)
        return msg_fail(w, MSG_ERR_RANK, "rank %d: this world has ranks 0 to %d", src, w->n_ranks - 1);
    if (vk_unlikely(tag < 0) && tag != MSG_ANY_TAG)
        return msg_fail(w, MSG_ERR_TAG, "tag %d: tags are 0 to 2147483647, or MSG_ANY_TAG", tag);
    if (vk_unlikely((unsigned)context > MSG_MAX_CONTEXT))
        return msg_fail(w, MSG_ERR_CONTEXT, "context %d: contexts are 0 to %d", context, MSG_MAX_CONTEXT);
    if (vk_unlikely(w->n_revoked) && msg_revoked_error(w, context))
        return msg_fail_plain(w, MSG_ERR_REVOKED);
    return MSG_SUCCESS;
}

/* Returns an error if no message can match such a receive any more, or if a failure must be reported first.
 * MSG_SUCCESS: one can come. Until acknowledged, the failure of any rank counts for a receive from MSG_ANY_SOURCE,
 * because the missing message might have been from that rank. */
static int receive_error(const msg_world *w, int src)
{
    if (src == MSG_ANY_SOURCE)
        return w->unacknowledged ? MSG_ERR_PROC_FAILED : MSG_SUCCESS;
    return msg_peer_error(&w->peers[src]);
}

/* Starts a receive: takes a message that has arrived, or posts. `waits`: the caller waits until the receive is
 * complete, so this rank can move a part of a long message. *out is set on success, and may be complete already. Lock
 * held. */
static int start_recv(msg_world *w, int context, void *buf, size_t len, int src, int tag, int waits, msg_request **out)
{
    int code = check_recv(w, context, src, tag);
    if (code)
        return code;
    if (vk_unlikely(buf == NULL && len))
        return msg_fail(w, MSG_ERR_ARG, "a buffer is needed for %zu byte%s (NULL)", len, vk_s(len));
    msg_request *r = msg_request_new(w, MSG_REQ_RECV, context, src, tag, buf, len);
    if (r == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for another request");
    r->sharing = waits ? MSG_MAY_SHARE : MSG_ALONE;
    *out = r;
    /* MPI 4.1, 3.10: it completes at once, with source MPI_PROC_NULL, tag MPI_ANY_TAG and count 0. */
    if (vk_unlikely(src == MSG_PROC_NULL)) {
        r->status.tag = MSG_ANY_TAG;
        msg_complete(r, MSG_SUCCESS);
        return MSG_SUCCESS;
    }
    msg_message *m = msg_find_unexpected(w, context, src, tag);
    /* Applies also to a rank that has died since: messages that had arrived can be received. */
    if (m) {
        msg_take_unexpected(w, m);
        msg_deliver_unexpected(w, m, r);
        return MSG_SUCCESS;
    }
    if (src != MSG_ANY_SOURCE && vk_unlikely(!w->peers[src].met))
        msg_need(&w->peers[src]); /* the connection also reports that the rank leaves or dies */
    if (vk_unlikely((code = receive_error(w, src)) != MSG_SUCCESS)) {
        msg_complete(r, code);
        return MSG_SUCCESS;
    }
    if (msg_post(w, r) != MSG_SUCCESS) {
        msg_request_put(w, r);
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for another receive");
    }
    return MSG_SUCCESS;
}

/* *out is set on success only, and may be complete already, also in error. */
int msg_irecv(msg_world *w, int context, void *buf, size_t len, int src, int tag, msg_request **out)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    msg_request *r = NULL;
    int code = start_recv(w, context, buf, len, src, tag, 0, &r);
    if (code == MSG_SUCCESS)
        *out = r;
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- discarded messages */

/* Delivers each message to a detached receive of length 0, so that the sender's request completes, too. Lock held.
 * Returns how many messages were discarded. */
int msg_discard_locked(msg_world *w, int context, int mask, int tag)
{
    int n = 0;
    msg_message *m;
    while ((m = msg_search_unexpected(w, context, mask, tag)) != NULL) {
        msg_request *r = msg_request_new(w, MSG_REQ_RECV, context, m->source, m->packet.head.tag, NULL, 0);
        if (r == NULL)
            /* Without memory the rest stays in the queue, for the next call. */
            break;
        r->flags |= MSG_DETACHED;
        msg_take_unexpected(w, m);
        if (m->arriving == 2) { /* its sender died during the transfer */
            msg_message_put(w, m);
            msg_complete(r, MSG_ERR_PROC_FAILED);
        } else
            msg_deliver_unexpected(w, m, r);
        n++;
    }
    return n;
}

/* A step of progress first, so that messages which the channel has are discarded, too. */
int msg_discard(msg_world *w, int context, int mask, int tag)
{
    if (!msg_enter(w))
        return 0;
    msg_step(w);
    int n = msg_discard_locked(w, context, mask, tag);
    msg_unlock(w);
    return n;
}

/* The contexts first to first + n - 1. */
struct contexts {
    int first, n;
};

/* Ends a posted receive of these contexts with success and the mark `cancelled`, as MPI's Cancel does (MPI 4.1, 3.8.4).
 * For msg_each_request. A receive that has a message already is not in the queue, and its message completes it. */
static void cancel_posted(msg_request *r, void *argument)
{
    const struct contexts *c = argument;
    if (r->kind != MSG_REQ_RECV || !(r->flags & MSG_ON_POSTED) || r->context < c->first ||
        r->context >= c->first + c->n)
        return;
    msg_unpost(r->world, r);
    r->status.cancelled = 1;
    r->status.len = 0;
    msg_complete(r, MSG_SUCCESS);
}

/* One step of progress first, so that messages that have arrived in the channel are discarded, too. */
void msg_retire(msg_world *w, int context, int n)
{
    struct contexts all = {context, n};
    if (!msg_enter(w))
        return;
    msg_step(w);
    for (int i = 0; i < n; i++)
        msg_discard_locked(w, context + i, 0, 0);
    msg_each_request(w, cancel_posted, &all);
    msg_unlock(w);
}

/* Waits for a receive made by this file. If interrupted, the receive is withdrawn unless a message has matched it.
 * After a match its buffer is being filled, and the caller must wait until the sender has finished or died. Returns the
 * operation's error, MSG_INTERRUPTED, or MSG_ERR_PROCESS: the callback has forked, and this is the child. Lock held. */
static int finish_recv(msg_world *w, msg_request *r, msg_status *status)
{
    msg_status own;
    if (!w->threads) /* as in msg_wait */
        w->enough = &r->complete;
    int code = msg_wait_until(w, msg_is_complete, r, MSG_FOREVER);
    w->enough = NULL;
    if (code == MSG_ERR_PROCESS)
        return code;
    if (code != MSG_SUCCESS && (r->flags & MSG_ON_POSTED)) {
        msg_unpost(w, r);
        msg_request_put(w, r);
        return code;
    }
    /* A further interrupt only repeats the check for completion. */
    while (!r->complete)
        if (msg_wait_until(w, msg_is_complete, r, MSG_FOREVER) == MSG_ERR_PROCESS)
            return MSG_ERR_PROCESS;
    status = status ? status : &own;
    msg_reap(w, &r, status);
    return status->error;
}

int msg_recv(msg_world *w, int context, void *buf, size_t len, int src, int tag, msg_status *status)
{
    return msg_recv_rest(w, context, buf, len, src, tag, status, NULL);
}

/* r NULL: msg_recv_soon has started nothing, and this is a complete msg_recv. */
int msg_recv_rest(msg_world *w, int context, void *buf, size_t len, int src, int tag, msg_status *status,
                  msg_request *r)
{
    int code = MSG_SUCCESS;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    if (r == NULL)
        code = start_recv(w, context, buf, len, src, tag, 1, &r);
    if (vk_likely(code == MSG_SUCCESS))
        code = finish_recv(w, r, status);
    msg_unlock(w);
    return code;
}

/* Does not wait for the lock, because another thread may hold it while it polls, and the caller holds a lock of its own
 * (msg.h). */
int msg_recv_soon(msg_world *w, int context, void *buf, size_t len, int src, int tag, msg_status *status,
                  msg_request **request)
{
    msg_request *r = NULL;
    *request = NULL;
    if (!msg_try_enter(w))
        return MSG_PENDING;
    int code = start_recv(w, context, buf, len, src, tag, 1, &r);
    if (code == MSG_SUCCESS && msg_poll_for(w, r)) {
        code = r->status.error;
        msg_reap(w, &r, status);
    } else if (code == MSG_SUCCESS) {
        *request = r;
        code = MSG_PENDING;
    }
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- probing */

/* A search and its latest result, which is stale once the lock is released. */
struct search {
    msg_world *w;
    int context, src, tag;
    msg_message *found;
};

/* Condition for msg_wait_until: found, or can never be found. It changes nothing, so it may be called repeatedly. */
static int search(void *argument)
{
    struct search *s = argument;
    s->found = msg_find_unexpected(s->w, s->context, s->src, s->tag);
    return s->found != NULL || receive_error(s->w, s->src) || (s->w->n_revoked && msg_revoked_error(s->w, s->context));
}

/* Sets the status of a probe. m NULL: for MSG_PROC_NULL, as in MPI. */
static void set_probe_status(const msg_message *m, msg_status *status)
{
    if (status)
        *status = m ? (msg_status){.source = m->source, .tag = m->packet.head.tag, .len = m->len}
                    : (msg_status){.source = MSG_PROC_NULL, .tag = MSG_ANY_TAG};
}

/* Waits for a message; with timeout_ms 0 it polls once. Returns MSG_SUCCESS with s->found set (NULL for MSG_PROC_NULL),
 * MSG_PENDING: none has arrived, or an error. The message stays in the queue, and s->found is valid until the lock is
 * released. Lock held. */
static int probe_for(struct search *s, int64_t timeout_ms)
{
    int code = check_recv(s->w, s->context, s->src, s->tag);
    if (code || s->src == MSG_PROC_NULL)
        return code;
    if (s->src != MSG_ANY_SOURCE)
        msg_need(&s->w->peers[s->src]);
    /* A program that only probes makes progress, too. */
    if (!search(s) && timeout_ms == 0) {
        msg_step(s->w);
        search(s);
    }
    if (s->found == NULL && timeout_ms != 0)
        code = msg_wait_until(s->w, search, s, timeout_ms);
    if (code == MSG_ERR_PROCESS)
        return code;
    if (s->found)
        return MSG_SUCCESS;
    if (code == MSG_SUCCESS && ((code = msg_revoked_error(s->w, s->context)) != MSG_SUCCESS ||
                                (code = receive_error(s->w, s->src)) != MSG_SUCCESS))
        return msg_fail_plain(s->w, code);
    return code ? code : MSG_PENDING;
}

/* The result may be out of date for another thread's receive when this returns (MPI 4.1, 3.8.2). msg_mprobe has no such
 * race. */
int msg_probe(msg_world *w, int context, int src, int tag, msg_status *status, int64_t timeout_ms)
{
    struct search s = {w, context, src, tag, NULL};
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = probe_for(&s, timeout_ms);
    if (code == MSG_SUCCESS)
        set_probe_status(s.found, status);
    msg_unlock(w);
    return code == MSG_PENDING ? MSG_TIMEOUT : code;
}

/* For callers whose tags have several fields: finds a message that differs in another field than those in `mask`. */
int msg_probe_other_tag(msg_world *w, int context, int mask, int tag, msg_status *status)
{
    if (!msg_enter(w))
        return 0;
    msg_step(w);
    const msg_message *m = msg_search_other(w, context, mask, tag);
    if (m)
        set_probe_status(m, status);
    msg_unlock(w);
    return m != NULL;
}

/* *flag is not set after an error. */
int msg_iprobe(msg_world *w, int context, int src, int tag, int *flag, msg_status *status)
{
    int code = msg_probe(w, context, src, tag, status, 0);
    if (code == MSG_SUCCESS || code == MSG_TIMEOUT)
        *flag = code == MSG_SUCCESS;
    return code == MSG_TIMEOUT ? MSG_SUCCESS : code;
}

/* Removes the message from the queue: it is matched, so no receive of another thread can get it before msg_imrecv.
 * The caller owns the message until then. A message that is never received is freed with the world (request.c:
 * blocks). */
int msg_mprobe(msg_world *w, int context, int src, int tag, msg_message **message, msg_status *status,
               int64_t timeout_ms)
{
    static msg_message nothing; /* the message of MSG_PROC_NULL */
    struct search s = {w, context, src, tag, NULL};
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = probe_for(&s, timeout_ms);
    if (code == MSG_SUCCESS) {
        if (s.found)
            msg_take_unexpected(w, s.found);
        set_probe_status(s.found, status);
        *message = s.found ? s.found : &nothing;
    }
    msg_unlock(w);
    return code == MSG_PENDING ? MSG_TIMEOUT : code;
}

/* Receives a message of msg_mprobe. It has left the queue, so it cannot be matched again, and the request is never
 * posted. *message and *out are set on success only. Lock held. */
static int start_mrecv(msg_world *w, msg_message **message, void *buf, size_t len, msg_request **out)
{
    msg_message *m = message ? *message : NULL;
    /* `nothing`, which represents a message of MSG_PROC_NULL, is the only one without a world. */
    if (m == NULL || (m->world && (m->world != w || !m->taken)) || (buf == NULL && len))
        return msg_fail(w, MSG_ERR_ARG, "not a message that msg_mprobe has given out in this world, or no buffer");
    msg_request *r = msg_request_new(w, MSG_REQ_RECV, m->packet.head.context, m->world ? m->source : MSG_PROC_NULL,
                                     m->packet.head.tag, buf, len);
    if (r == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for another request");
    *message = NULL;
    *out = r;
    if (m->world == NULL) {
        r->status.tag = MSG_ANY_TAG;
        msg_complete(r, MSG_SUCCESS);
    } else if (m->arriving == 2) { /* its sender died during the transfer (msg_arrival_lost) */
        msg_message_put(w, m);
        msg_complete(r, MSG_ERR_PROC_FAILED);
    } else
        msg_deliver_unexpected(w, m, r);
    return MSG_SUCCESS;
}

/* A long message may have only its announcement here; the request then completes when the data has arrived. */
int msg_imrecv(msg_world *w, msg_message **message, void *buf, size_t len, msg_request **out)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    msg_request *r = NULL;
    int code = start_mrecv(w, message, buf, len, &r);
    if (code == MSG_SUCCESS)
        *out = r;
    msg_unlock(w);
    return code;
}
