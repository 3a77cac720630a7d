/*
 * Sending: the public calls. A short message in standard mode goes straight to the channel without a request, if the
 * receiving rank has room. All others get a request.
 *
 *       msg_send, short, nothing queued   --> send_short                      no request, no allocation
 *       msg_send, otherwise               --> start_send, then a wait
 *       msg_isend                         --> start_send                  protocol.c continues
 *       to this rank itself               --> send_to_self                    no channel
 *
 * Modes, as in MPI:
 * - standard: complete when the buffer may be reused
 * - synchronous: complete when a receive has matched
 * - buffered: complete at once, from the attached buffer
 * - ready: as standard; if no receive was posted, the receiver counts it
 */
#include <stdlib.h>

#include "base/plural.h"
#include "msg/channel.h"

/* Bytes sent to a rank between two polls for its packets: the amount by which one sender can exceed the bound of the
 * receiver's unexpected queue (policy.h). */
#define POLL_EVERY 65536 /* bytes sent to a rank */

int msg_bad_rank(msg_world *w, int rank)
{
    return msg_fail(w, MSG_ERR_RANK, "rank %d: this world has ranks 0 to %d", rank, w->n_ranks - 1);
}

/* One unsigned comparison checks both ends of a range. Returns MSG_SUCCESS or the error. */
static int check_send(msg_world *w, int context, const void *buf, size_t len, int dst, int tag)
{
    if (vk_unlikely((unsigned)dst >= (unsigned)w->n_ranks) && dst != MSG_PROC_NULL)
        return msg_bad_rank(w, dst);
    if (vk_unlikely(tag < 0))
        return msg_fail(w, MSG_ERR_TAG, "tag %d: tags are 0 to 2147483647", tag);
    if (vk_unlikely((unsigned)context > MSG_MAX_CONTEXT))
        return msg_fail(w, MSG_ERR_CONTEXT, "context %d: contexts are 0 to %d", context, MSG_MAX_CONTEXT);
    if (vk_unlikely(buf == NULL && len))
        return msg_fail(w, MSG_ERR_ARG, "a buffer is needed for %zu byte%s (NULL)", len, vk_s(len));
    return MSG_SUCCESS;
}

/* Sends a message to this rank itself. It is matched at once, or kept. A long or synchronous message keeps its send
 * active, as between two ranks. The four outcomes:
 *
 *     a receive is posted      copied once, both requests complete
 *     kept, short              copied into the envelope, the send completes; copied again by msg_deliver_unexpected
 *     kept, `holds`            the envelope points at the send (m->from), whose buffer is copied when a receive matches
 *     no memory                the send ends in error */
static void send_to_self(msg_request *s, msg_mode mode)
{
    msg_world *w = s->world;
    struct msg_packet p = {.head = {.kind = MSG_PKT_EAGER, .context = (uint16_t)s->context, .tag = s->tag}};
    msg_request *r = msg_match_posted(w, s->context, w->rank, s->tag);
    if (r) {
        r->peer = r->status.source = w->rank;
        r->tag = r->status.tag = s->tag;
        msg_copy_in(w, r, s->buf, s->len);
        MSG_COUNT(w, received, 1);
        vk_charge(VK_CHARGE_MESSAGE, 1);
        MSG_COUNT(w, bytes_received, r->status.len);
        msg_complete(r, MSG_SUCCESS);
        msg_complete(s, MSG_SUCCESS);
        return;
    }
    /* Also if the unexpected queue is full: no other rank can receive an XOFF, so the send itself waits. */
    int holds = mode == MSG_SYNCHRONOUS || w->policy.synchronous || s->len > w->peers[w->rank].eager_limit ||
                w->unexpected_bytes > (size_t)w->policy.unexpected_bytes;
    msg_message *m = msg_message_new(w, holds ? 0 : s->len);
    if (m == NULL) {
        msg_complete(s, MSG_ERR_NO_MEMORY);
        return;
    }
    m->packet = p;
    m->source = w->rank;
    if (holds) {
        /* For msg_deliver_unexpected, NULL marks an announced message, and `from` its send. */
        m->data = NULL;
        m->len = s->len;
        m->from = s;
        s->flags |= MSG_ANNOUNCED;
    } else if (s->len) {
        memcpy(m->data, s->buf, s->len);
        msg_count_copy(w, s->len);
    }
    if (msg_add_unexpected(w, m) != MSG_SUCCESS) {
        msg_message_put(w, m);
        msg_complete(s, MSG_ERR_NO_MEMORY);
        return;
    }
    MSG_COUNT(w, unexpected, 1);
    MSG_COUNT(w, ready_missed, mode == MSG_READY);
    if (!holds)
        msg_complete(s, MSG_SUCCESS);
}

/* Copies the data before it is sent, as some libraries do (policies copy_send and convert), and for buffered sends
 * into the program's buffer. On success r->buf is the copy, and a flag marks its owner. */
static int pack(msg_request *r, msg_mode mode)
{
    msg_world *w = r->world;
    void *copy;
    if (mode == MSG_BUFFERED) {
        copy = msg_buffer_get(w, r->len);
        if (copy == NULL)
            return msg_fail(w, MSG_ERR_BUFFER,
                            "no room for a buffered send of %zu byte%s: attach a larger buffer, or wait "
                            "until earlier ones are sent",
                            r->len, vk_s(r->len));
        r->flags |= MSG_BSEND;
    } else {
        if (r->len == 0)
            return MSG_SUCCESS;
        copy = malloc(r->len);
        if (copy == NULL)
            return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory to pack %zu byte%s", r->len, vk_s(r->len));
        r->flags |= MSG_OWN_COPY;
    }
    if (w->policy.convert)
        msg_convert(copy, r->buf, r->len);
    else if (r->len)
        memcpy(copy, r->buf, r->len);
    msg_count_copy(w, r->len);
    r->buf = copy;
    return MSG_SUCCESS;
}

/* A program that only starts sends never handles incoming packets. Where credits do not stop it (tcp, which has no
 * push_short), it polls now and then for an XOFF. Otherwise it could fill the receiver's memory. The poll may end
 * requests, so no pointer to one may be held across the call. */
static void poll_for_xoff(struct msg_peer *peer, size_t len)
{
    /* Short messages are not counted, because the receiver's bound does not count them either (request.c). */
    if (len <= MSG_INLINE || (peer->unpolled += len) < POLL_EVERY)
        return;
    peer->unpolled = 0;
    msg_step(peer->world);
}

/* Checks the arguments, packs the data if the mode or the policy requires it, and starts the send. *out is set on
 * success, and may be complete already (in error, too). Lock held. */
static int start_send(msg_world *w, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode,
                      msg_request **out)
{
    int code = check_send(w, context, buf, len, dst, tag);
    if (code)
        return code;
    if (vk_unlikely((unsigned)mode > MSG_READY))
        return msg_fail(w, MSG_ERR_ARG, "mode %d: there is standard (0), synchronous (1), buffered (2), ready (3)",
                        (int)mode);
    if (dst >= 0 && dst != w->rank && w->peers[dst].channel->push_short == NULL)
        poll_for_xoff(&w->peers[dst], len); /* Polls before the request exists, because the poll may end requests. */
    if (vk_unlikely(w->n_revoked) && msg_revoked_error(w, context))
        return msg_fail_plain(w, MSG_ERR_REVOKED);
    msg_request *r = msg_request_new(w, MSG_REQ_SEND, context, dst, tag, (void *)(uintptr_t)buf, len);
    if (r == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for another request");
    r->status.len = len;
    if (dst == MSG_PROC_NULL) {
        r->status.len = 0;
        msg_complete(r, MSG_SUCCESS);
        *out = r;
        return MSG_SUCCESS;
    }
    struct msg_peer *peer = &w->peers[dst];
    int remote = dst != w->rank;
    /* Messages to this rank itself are copied once or twice anyway, so copy_send does not apply to them. */
    if (vk_unlikely(mode == MSG_BUFFERED || w->policy.convert || (remote && w->policy.copy_send))) {
        code = pack(r, mode);
        if (code) {
            msg_request_put(w, r);
            return code;
        }
    }
    *out = r;
    if (mode == MSG_BUFFERED) { /* Complete for the caller. The copy travels with a separate request. */
        msg_request *own = msg_request_new(w, MSG_REQ_SEND, context, dst, tag, r->buf, len);
        if (own == NULL) {
            r->flags &= (uint8_t)~MSG_BSEND;
            msg_buffer_put(w, r->buf);
            msg_request_put(w, r);
            return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for another request");
        }
        /* Two requests: r, which the caller sees and which is complete, and `own`, which has the copy and frees
         * itself on completion. */
        own->flags = MSG_BSEND | MSG_DETACHED;
        r->flags &= (uint8_t)~MSG_BSEND;
        msg_complete(r, MSG_SUCCESS);
        r = own;
        mode = MSG_STANDARD;
    }
    MSG_COUNT(w, sent, 1);
    MSG_COUNT(w, bytes_sent, len);
    vk_charge(VK_CHARGE_MESSAGE, 1);
    if (!remote) {
        send_to_self(r, mode);
    } else if (vk_unlikely(peer->state != MSG_PEER_CONNECTED)) {
        msg_fail(w, msg_peer_error(peer), "rank %d %s", dst,
                 peer->state == MSG_PEER_LEFT ? "has closed its world" : "has died");
        msg_complete(r, msg_peer_error(peer));
    } else
        msg_begin_send(r, peer, mode);
    return MSG_SUCCESS;
}

/* *out is set on success only. An error of the message itself, such as a dead rank, is in the request's status. */
int msg_isend(msg_world *w, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode,
              msg_request **out)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    msg_request *r = NULL;
    int code = start_send(w, context, buf, len, dst, tag, mode, &r);
    if (code == MSG_SUCCESS)
        *out = r;
    msg_unlock(w);
    return code;
}

/* The caller takes back its buffer before the message has been sent. A copy of the data is sent instead, and the
 * request continues detached. Returns 0, or -1 if RDMA uses the buffer (`registered`) or memory is exhausted. */
static int keep_copy(msg_request *r)
{
    if (r->registered || r->flags & (MSG_OWN_COPY | MSG_BSEND))
        return r->registered ? -1 : 0;
    void *copy = malloc(r->len ? r->len : 1);
    if (copy == NULL)
        return -1;
    memcpy(copy, r->buf, r->len);
    /* The queued packet points into the old buffer, possibly into its middle (DATA that was sent in part). */
    if (r->out.data)
        r->out.data = (char *)copy + (r->out.data - (const char *)r->buf);
    r->buf = copy;
    r->flags |= MSG_OWN_COPY;
    return 0;
}

/* A blocking send that cannot complete at once, by a request that the caller never sees. Lock held. */
static int send_blocking(msg_world *w, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode)
{
    msg_request *r;
    msg_status status;
    /* A caller that may be interrupted needs its buffer back at once. So the buffer must not be offered for reading
     * (RGET). */
    w->may_withdraw = w->interrupt != NULL;
    int code = start_send(w, context, buf, len, dst, tag, mode, &r);
    w->may_withdraw = 0;
    if (code)
        return code;
    code = msg_wait_until(w, msg_is_complete, r, MSG_FOREVER);
    /* Interrupted. The message may still be delivered, but no call waits for it. It is freed on completion. */
    if (code != MSG_SUCCESS && code != MSG_ERR_PROCESS && !r->complete && keep_copy(r) == 0) {
        r->flags |= MSG_DETACHED;
        return code;
    }
    if (code == MSG_ERR_PROCESS)
        return code;
    /* RDMA is reading the caller's memory, or a receiver is that waits for the message in a call. That ends soon, with
     * success or failure. */
    while (!r->complete)
        if (msg_wait_until(w, msg_is_complete, r, MSG_FOREVER) == MSG_ERR_PROCESS)
            return MSG_ERR_PROCESS;
    msg_reap(w, &r, &status);
    return status.error;
}

/* The short path of standard mode. Returns 1 if the message has been sent. If any part of the condition fails, the
 * caller continues with send_blocking, which checks that part again and reports errors. n_short is 0 if the policy
 * requires other handling of the data, and for this rank itself. Packets queued for the rank always go first, hence the
 * check of `queue`. Lock held. */
static inline int send_short(msg_world *w, int context, const void *buf, size_t len, int dst, int tag)
{
    if (vk_unlikely((unsigned)dst >= (unsigned)w->n_ranks))
        return 0;
    struct msg_peer *peer = &w->peers[dst];
    if (vk_unlikely(len >= peer->n_short || peer->queue != NULL || peer->state != MSG_PEER_CONNECTED ||
                    (peer->off && len > MSG_INLINE) || tag < 0 || (unsigned)context > MSG_MAX_CONTEXT ||
                    (buf == NULL && len) || w->n_revoked))
        return 0;
    struct msg_head head = {.kind = MSG_PKT_EAGER, .context = (uint16_t)context, .tag = tag};
    vk_charge(VK_CHARGE_MESSAGE, 1);
    if (vk_unlikely(peer->channel->push_short(peer, head, buf, len) != 1))
        return 0;
    MSG_COUNT(w, sent, 1);
    MSG_COUNT(w, bytes_sent, len);
    MSG_COUNT(w, eager_sent, 1);
    return 1;
}

int msg_send(msg_world *w, int context, const void *buf, size_t len, int dst, int tag, msg_mode mode)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = MSG_SUCCESS;
    if (mode != MSG_STANDARD || !send_short(w, context, buf, len, dst, tag))
        code = send_blocking(w, context, buf, len, dst, tag, mode);
    msg_unlock(w);
    return code;
}

int msg_send_now(msg_world *w, int context, const void *buf, size_t len, int dst, int tag)
{
    if (vk_time_is_virtual() || !msg_try_enter(w))
        return MSG_PENDING;
    int sent = send_short(w, context, buf, len, dst, tag);
    msg_unlock(w);
    return sent ? MSG_SUCCESS : MSG_PENDING;
}
