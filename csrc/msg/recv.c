/*
 * Receiving and probing: the public calls. A receive looks for a message that is here already, and is posted if there
 * is none; between the two nothing can come, for the lock is held and nothing is polled. So it cannot miss one.
 *
 *       early message?  --yes-->  msg_deliver_early (copy, or answer its RTS)
 *             | no
 *       can one come?   --no--->  complete in error: its rank has left or died
 *             | yes
 *       posted (match.c); protocol.c completes it
 *
 * What fails before the request exists is returned; what fails later stands in its status.
 */
#include "base/plural.h"
#include "channel.h"

/* MSG_SUCCESS, or what is wrong with the arguments. */
static int check_recv(msg_world *w, int context, int src, int tag)
{
    if (vk_unlikely((unsigned)src >= (unsigned)w->n_ranks) && src != MSG_ANY_SOURCE && src != MSG_PROC_NULL)
        return msg_fail(w, MSG_ERR_RANK, "rank %d: this world has ranks 0 to %d", src, w->n_ranks - 1);
    if (vk_unlikely(tag < 0) && tag != MSG_ANY_TAG)
        return msg_fail(w, MSG_ERR_TAG, "tag %d: tags are 0 to 2147483647, or MSG_ANY_TAG", tag);
    if (vk_unlikely((unsigned)context > MSG_MAX_CONTEXT))
        return msg_fail(w, MSG_ERR_CONTEXT, "context %d: contexts are 0 to %d", context, MSG_MAX_CONTEXT);
    if (vk_unlikely(!msg_same_process(w)))
        return MSG_ERR_PROCESS;
    return MSG_SUCCESS;
}

/* Can no message come for such a receive any more, or does the caller have to be told so first?
 * MSG_SUCCESS: one can come. The failure of any rank counts for a receive from anybody until it is
 * acknowledged, for it might have been that rank's message. */
static int hopeless(const msg_world *w, int src)
{
    if (src == MSG_ANY_SOURCE)
        return w->unacknowledged ? MSG_ERR_PROC_FAILED : MSG_SUCCESS;
    return msg_peer_error(&w->peers[src]);
}

/* *out is set on success, and may be complete already. Lock held. */
int msg_start_recv(msg_world *w, int context, void *buf, size_t len, int src, int tag, msg_request **out)
{
    int code = check_recv(w, context, src, tag);
    if (code)
        return code;
    if (vk_unlikely(buf == NULL && len))
        return msg_fail(w, MSG_ERR_ARG, "a buffer is needed for %zu byte%s (NULL)", len, vk_s(len));
    msg_request *r = msg_request_new(w, MSG_REQ_RECV, context, src, tag, buf, len);
    if (r == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for another request");
    *out = r;
    if (vk_unlikely(src == MSG_PROC_NULL)) {
        r->status.tag = MSG_ANY_TAG;
        msg_complete(r, MSG_SUCCESS);
        return MSG_SUCCESS;
    }
    msg_message *m = msg_find_early(w, context, src, tag);
    /* Also from a rank that has died since: what had arrived is there to be received. */
    if (m) {
        msg_take_early(w, m);
        msg_deliver_early(w, m, r);
        return MSG_SUCCESS;
    }
    if (vk_unlikely((code = hopeless(w, src)) != MSG_SUCCESS)) {
        msg_complete(r, code);
        return MSG_SUCCESS;
    }
    if (msg_post(w, r) != MSG_SUCCESS) {
        msg_request_put(w, r);
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for another receive");
    }
    return MSG_SUCCESS;
}

int msg_irecv(msg_world *w, int context, void *buf, size_t len, int src, int tag, msg_request **out)
{
    msg_lock(w);
    msg_request *r = NULL;
    int code = msg_start_recv(w, context, buf, len, src, tag, &r);
    if (code == MSG_SUCCESS)
        *out = r;
    msg_unlock(w);
    return code;
}

/* ---------------------------------------------------------------- what nobody will receive */

/* Lock held. Each message goes to a receive without room, which nobody waits for: so its sender's request ends, too. */
static int discard(msg_world *w, int context, int mask, int tag)
{
    int n = 0;
    msg_message *m;
    while ((m = msg_search_early(w, context, mask, tag)) != NULL) {
        msg_request *r = msg_request_new(w, MSG_REQ_RECV, context, m->source, m->packet.head.tag, NULL, 0);
        if (r == NULL)
            break;
        r->flags |= MSG_DETACHED;
        msg_take_early(w, m);
        if (m->arriving == 2) { /* its sender died as it came */
            msg_message_put(w, m);
            msg_complete(r, MSG_ERR_PROC_FAILED);
        } else
            msg_deliver_early(w, m, r);
        n++;
    }
    return n;
}

int msg_discard(msg_world *w, int context, int mask, int tag)
{
    msg_lock(w);
    msg_step(w);
    int n = discard(w, context, mask, tag);
    msg_unlock(w);
    return n;
}

struct contexts {
    int first, n;
};

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

void msg_retire(msg_world *w, int context, int n)
{
    struct contexts all = {context, n};
    msg_lock(w);
    msg_step(w);
    for (int i = 0; i < n; i++)
        discard(w, context + i, 0, 0);
    msg_each_request(w, cancel_posted, &all);
    msg_unlock(w);
}

/* Waits for a receive of our own. An interrupted one is withdrawn, as long as no message has been matched to
 * it. After that its buffer is being filled, and the caller has to wait until the sender is done or dead. */
static int finish_recv(msg_world *w, msg_request *r, msg_status *status)
{
    msg_status own;
    int code = msg_wait_until(w, msg_is_complete, r, MSG_FOREVER);
    if (code != MSG_SUCCESS && (r->flags & MSG_ON_POSTED)) {
        msg_unpost(w, r);
        msg_request_put(w, r);
        return code;
    }
    /* A second interrupt is answered like the first: by looking whether the end has come. */
    while (!r->complete)
        msg_wait_until(w, msg_is_complete, r, MSG_FOREVER);
    status = status ? status : &own;
    msg_reap(w, &r, status);
    return status->error;
}

int msg_recv(msg_world *w, int context, void *buf, size_t len, int src, int tag, msg_status *status)
{
    msg_request *r = NULL;
    msg_lock(w);
    int code = msg_start_recv(w, context, buf, len, src, tag, &r);
    if (vk_likely(code == MSG_SUCCESS))
        code = finish_recv(w, r, status);
    msg_unlock(w);
    return code;
}

/* The receive is posted first, so that two ranks that send to each other both find one. If
 * the send fails, the receive is withdrawn; if its message is coming in already it is waited
 * for, and the send's error is returned all the same. */
int msg_sendrecv(msg_world *w, int context, const void *sendbuf, size_t send_len, int dst, int send_tag, void *recvbuf,
                 size_t recv_len, int src, int recv_tag, msg_status *status)
{
    msg_request *r;
    int code = msg_irecv(w, context, recvbuf, recv_len, src, recv_tag, &r);
    if (code)
        return code;
    int sent = msg_send(w, context, sendbuf, send_len, dst, send_tag, MSG_STANDARD);
    msg_lock(w);
    if (sent != MSG_SUCCESS && (r->flags & MSG_ON_POSTED)) {
        msg_unpost(w, r);
        msg_request_put(w, r);
        code = sent;
    } else
        code = finish_recv(w, r, status);
    msg_unlock(w);
    return sent ? sent : code;
}

/* ---------------------------------------------------------------- probing */

/* What is looked for, and what was found last: stale as soon as the lock is let go. */
struct search {
    msg_world *w;
    int context, src, tag;
    msg_message *found;
};

/* A condition for msg_wait_until: found, or never to be found. It changes nothing, so it may
 * be asked any number of times. */
static int search(void *argument)
{
    struct search *s = argument;
    s->found = msg_find_early(s->w, s->context, s->src, s->tag);
    return s->found != NULL || hopeless(s->w, s->src);
}

/* The status of a probe; m NULL: of MSG_PROC_NULL, as MPI has it. */
static void tell(const msg_message *m, msg_status *status)
{
    if (status)
        *status = m ? (msg_status){.source = m->source, .tag = m->packet.head.tag, .len = m->len}
                    : (msg_status){.source = MSG_PROC_NULL, .tag = MSG_ANY_TAG};
}

/* Looks for a message; timeout_ms 0: once. MSG_PENDING: there is none (yet). Lock held. */
static int look_for(struct search *s, int64_t timeout_ms)
{
    int code = check_recv(s->w, s->context, s->src, s->tag);
    if (code || s->src == MSG_PROC_NULL)
        return code;
    /* A program that only probes makes progress, too. */
    if (!search(s) && timeout_ms == 0) {
        msg_step(s->w);
        search(s);
    }
    if (s->found == NULL && timeout_ms != 0)
        code = msg_wait_until(s->w, search, s, timeout_ms);
    if (s->found)
        return MSG_SUCCESS;
    if (code == MSG_SUCCESS && (code = hopeless(s->w, s->src)) != MSG_SUCCESS)
        return msg_fail_plain(s->w, code);
    return code ? code : MSG_PENDING;
}

int msg_probe(msg_world *w, int context, int src, int tag, msg_status *status, int64_t timeout_ms)
{
    struct search s = {w, context, src, tag, NULL};
    msg_lock(w);
    int code = look_for(&s, timeout_ms);
    if (code == MSG_SUCCESS)
        tell(s.found, status);
    msg_unlock(w);
    return code == MSG_PENDING ? MSG_TIMEOUT : code;
}

int msg_iprobe(msg_world *w, int context, int src, int tag, int *flag, msg_status *status)
{
    int code = msg_probe(w, context, src, tag, status, 0);
    if (code == MSG_SUCCESS || code == MSG_TIMEOUT)
        *flag = code == MSG_SUCCESS;
    return code == MSG_TIMEOUT ? MSG_SUCCESS : code;
}

/* Out of the queue: matching is over, so no other thread's receive can get it between the
 * probe and msg_mrecv. The message is the caller's until then; one that is never received is
 * freed with the world (request.c: blocks). */
int msg_mprobe(msg_world *w, int context, int src, int tag, msg_message **message, msg_status *status,
               int64_t timeout_ms)
{
    static msg_message nothing; /* what MSG_PROC_NULL sends */
    struct search s = {w, context, src, tag, NULL};
    msg_lock(w);
    int code = look_for(&s, timeout_ms);
    if (code == MSG_SUCCESS) {
        if (s.found)
            msg_take_early(w, s.found);
        tell(s.found, status);
        *message = s.found ? s.found : &nothing;
    }
    msg_unlock(w);
    return code == MSG_PENDING ? MSG_TIMEOUT : code;
}

int msg_improbe(msg_world *w, int context, int src, int tag, msg_message **message, msg_status *status)
{
    int code = msg_mprobe(w, context, src, tag, message, status, 0);
    if (code == MSG_TIMEOUT)
        *message = NULL;
    return code == MSG_TIMEOUT ? MSG_SUCCESS : code;
}

/* Lock held. */
static int start_mrecv(msg_world *w, msg_message **message, void *buf, size_t len, msg_request **out)
{
    msg_message *m = message ? *message : NULL;
    /* `nothing`, which stands for a message of MSG_PROC_NULL, is the only one without a world. */
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
    } else if (m->arriving == 2) {
        msg_message_put(w, m);
        msg_complete(r, MSG_ERR_PROC_FAILED);
    } else
        msg_deliver_early(w, m, r);
    return MSG_SUCCESS;
}

int msg_imrecv(msg_world *w, msg_message **message, void *buf, size_t len, msg_request **out)
{
    msg_lock(w);
    msg_request *r = NULL;
    int code = start_mrecv(w, message, buf, len, &r);
    if (code == MSG_SUCCESS)
        *out = r;
    msg_unlock(w);
    return code;
}

int msg_mrecv(msg_world *w, msg_message **message, void *buf, size_t len, msg_status *status)
{
    msg_request *r = NULL;
    msg_lock(w);
    int code = start_mrecv(w, message, buf, len, &r);
    if (code == MSG_SUCCESS)
        code = finish_recv(w, r, status);
    msg_unlock(w);
    return code;
}
