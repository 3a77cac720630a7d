/*
 * One-sided writes and reads: RDMA in the order that flags and messages rely on. No matching, and no receive at the
 * target.
 *
 * Writes from one rank to another arrive in the order in which they were started, and so do later messages. A flag
 * that follows data must not overtake it. The channel keeps the order of the packets that it has accepted. Until
 * then this file keeps it:
 *
 *     a write after a write        waits until the first has been handed over completely (may_begin)
 *     a message after a write      waits in the queue, behind a fence (msg_fence)
 *     a write after messages       may overtake those without credit: it needs no buffer of the target (msg.h)
 *
 * Two forms of a write:
 *
 *     up to MSG_PUT_SHORT bytes     copied to an eager buffer of the channel (put_short): complete when it is accepted
 *     longer, with a request        from the caller's memory, in pieces: on world->moving until all are handed over
 *
 * Neither reports to this rank that the data is in the target's memory. msg_all_written answers that for all writes to
 * a rank, as MPI_Win_flush needs it (csrc/rma).
 *
 * Lock held in all static functions and in those whose name ends in _locked. A wait releases it (wait.c), so each
 * function checks the rank's state again after a wait.
 */
#include "base/plural.h"
#include "msg/channel.h"

/* The arguments of one write or read, on the stack of the call. buf, address and handle stay valid while it waits. */
struct write {
    msg_world *w;
    struct msg_peer *peer;
    int target;
    const void *buf;
    size_t len;
    uint64_t address;
    uint32_t handle;
    int notify; /* the target is notified of it */
    int code;   /* result of put_short: 1 if accepted, negative if the rank is gone */
};

/* True also if the rank is gone: put_away then reports the error. */
static int may_begin(void *argument)
{
    const struct write *a = argument;
    return a->peer->state != MSG_PEER_CONNECTED || !msg_is_writing(a->w, a->target);
}

/* Condition for msg_wait_until: tries again after each event that may have made room. It must not be called again
 * once the channel has accepted the bytes, because that would write them twice. */
static int was_taken(void *argument)
{
    struct write *a = argument;
    a->code = a->peer->channel->put_short(a->peer, a->buf, a->len, a->address, a->handle, a->notify);
    return a->code != 0 || a->peer->state != MSG_PEER_CONNECTED;
}

/* Returns MSG_SUCCESS once the channel has a copy of the bytes, or the error. Interrupted: nothing was written. */
static int put_short(struct write *a)
{
    if (was_taken(a) || !msg_wait_until(a->w, was_taken, a, -1))
        return a->code == 1 ? MSG_SUCCESS : a->peer->state == MSG_PEER_LEFT ? MSG_ERR_LEFT : MSG_ERR_PROC_FAILED;
    return msg_same_process(a->w) ? MSG_INTERRUPTED : MSG_ERR_PROCESS;
}

/* Waits until an earlier write to the rank is handed over. Returns MSG_SUCCESS with the rank connected, or an error
 * with its text. */
static int await_turn(struct write *a)
{
    int code = may_begin(a) ? MSG_SUCCESS : msg_wait_until(a->w, may_begin, a, -1);
    if (code == MSG_SUCCESS && a->peer->state != MSG_PEER_CONNECTED)
        code = msg_fail_plain(a->w, msg_peer_error(a->peer));
    return code;
}

/* Adds the request to the list that msg_move serves. If a part of a write could not be started, a fence holds back
 * later messages. Returns an error if the buffer cannot be registered: nothing has started then. The request may be
 * complete on return. */
static int move_long(const struct write *a, msg_request *r)
{
    r->want = a->len;
    int code = a->peer->channel->hold(a->peer, r, a->len, 0);
    r->address = a->address;
    r->handle = a->handle;
    if (code)
        return code;
    r->moving = a->w->moving;
    a->w->moving = r;
    msg_move(a->w);
    if (msg_is_writing(a->w, a->target) && msg_fence(a->peer) != MSG_SUCCESS)
        msg_peer_failed(a->peer, "memory is exhausted: messages behind a write could not be kept back");
    return MSG_SUCCESS;
}

/* Makes the request of a transfer, and starts the transfer if it is long. A short one is complete, because the channel
 * has a copy of its data. */
static int begin_request(const struct write *a, int kind, int is_short, msg_request **out)
{
    msg_request *r = msg_request_new(a->w, kind, 0, a->target, 0, (void *)(uintptr_t)a->buf, a->len);
    int code = MSG_SUCCESS;
    if (r == NULL)
        return msg_fail(a->w, MSG_ERR_NO_MEMORY, "no memory for another request");
    r->flags |= MSG_MOVING; /* its buffer is in use, and it completes, even if the rank leaves */
    if (is_short)
        msg_complete(r, MSG_SUCCESS);
    else if ((code = move_long(a, r)) != MSG_SUCCESS) {
        msg_request_put(a->w, r);
        return code;
    }
    *out = r;
    return MSG_SUCCESS;
}

/* Validates the arguments of a write or read against what the target has exposed. The target's NIC checks the range
 * again (VIA protection), but a violation there would break the connection. `request`: the caller takes one. Returns
 * MSG_SUCCESS or an error with its text. */
static int check_put(const struct write *a, const msg_exposed *exposed, uint64_t offset, int request)
{
    msg_world *w = a->w;
    const struct msg_peer *peer = a->peer;
    if (peer == NULL)
        return msg_bad_rank(w, a->target);
    if (exposed == NULL || offset > exposed->len || a->len > exposed->len - offset || (a->buf == NULL && a->len))
        return msg_fail(w, MSG_ERR_ARG, "a write of %zu byte%s at %llu does not fit what was exposed", a->len,
                        vk_s(a->len), (unsigned long long)offset);
    if (peer->channel == NULL)
        return MSG_SUCCESS;
    if (peer->channel->put_short == NULL)
        return msg_fail(w, MSG_ERR_NOT_SUPPORTED, "channel %s has no one-sided writes", peer->channel->name);
    if (!request && a->len > MSG_PUT_SHORT)
        return msg_fail(w, MSG_ERR_ARG, "a write of more than %d bytes needs a request", MSG_PUT_SHORT);
    return MSG_SUCCESS;
}

/* Starts the write, after waiting for room in the channel. Returns when the channel has the data, or with a request
 * for longer data. A write to this rank itself is a copy. */
static int put_away(struct write *a, msg_request **out)
{
    int code = MSG_SUCCESS, remote = a->peer->channel != NULL, is_short = !remote || a->len <= MSG_PUT_SHORT;
    if (remote)
        code = await_turn(a);
    if (code)
        return code;
    if (remote && a->peer->queue)
        msg_push_queue(a->peer); /* Packets held back by an earlier write go first, as far as there is room. */
    MSG_COUNT(a->w, puts, 1);
    if (!remote && a->len) {
        memmove((char *)(uintptr_t)a->address, a->buf, a->len);
        msg_count_copy(a->w, a->len);
    }
    if (!remote && a->notify)
        msg_noticed(a->peer);
    if (remote && is_short && a->len && (code = put_short(a)) != MSG_SUCCESS)
        return code;
    return out ? begin_request(a, MSG_REQ_PUT, is_short, out) : MSG_SUCCESS;
}

/* peer NULL: there is no such rank (check_put). */
static struct write a_write(msg_world *w, const void *buf, size_t len, int target)
{
    return (struct write){.w = w,
                          .target = target,
                          .buf = buf,
                          .len = len,
                          .peer = (unsigned)target < (unsigned)w->n_ranks ? &w->peers[target] : NULL};
}

/* Without a request (out NULL) at most MSG_PUT_SHORT bytes, copied before this returns. Waits only for room in the
 * channel, which progress of this rank makes, and for a notice until the target has a receive. Failure of the rank and
 * an interrupt end the wait. */
static int put_checked(struct write *a, const msg_exposed *exposed, uint64_t offset, msg_request **out)
{
    int code = check_put(a, exposed, offset, out != NULL);
    if (code == MSG_SUCCESS) {
        a->address = exposed->address + offset;
        a->handle = a->peer->channel ? exposed->handle[a->peer->channel->handle_index(a->peer)] : 0;
        code = put_away(a, out);
    }
    return code;
}

int msg_put_locked(msg_world *w, const void *buf, size_t len, int target, const msg_exposed *exposed, uint64_t offset,
                   msg_request **out)
{
    struct write a = a_write(w, buf, len, target);
    return put_checked(&a, exposed, offset, out);
}

/* The condition is that of put_checked without a wait. If any part fails, put_checked checks it again. */
int msg_put_now_locked(msg_world *w, const void *buf, size_t len, int target, const msg_exposed *exposed,
                       uint64_t offset)
{
    struct msg_peer *peer = &w->peers[target];
    if (vk_unlikely(peer->channel == NULL || peer->channel->put_short == NULL || len > MSG_PUT_SHORT ||
                    offset > exposed->len || len > exposed->len - offset || peer->queue ||
                    peer->state != MSG_PEER_CONNECTED || msg_is_writing(w, target)))
        return MSG_PENDING;
    uint32_t handle = exposed->handle[peer->channel->handle_index(peer)];
    if (vk_unlikely(peer->channel->put_short(peer, buf, len, exposed->address + offset, handle, 0) != 1))
        return MSG_PENDING;
    MSG_COUNT(w, puts, 1);
    return MSG_SUCCESS;
}

int msg_put(msg_world *w, const void *buf, size_t len, int target, const msg_exposed *exposed, uint64_t offset,
            msg_request **out)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = msg_put_locked(w, buf, len, target, exposed, offset, out);
    msg_unlock(w);
    return code;
}

/* The notice is the immediate data of the write, so it follows the data into the target's memory (VIA: a descriptor
 * with immediate data consumes a receive after its data has been placed). */
int msg_put_notified(msg_world *w, const void *buf, size_t len, int target, const msg_exposed *exposed, uint64_t offset)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    struct write a = a_write(w, buf, len, target);
    a.notify = 1;
    int code = len ? put_checked(&a, exposed, offset, NULL)
                   : msg_fail(w, MSG_ERR_ARG, "a write of 0 bytes notifies no rank: send an empty message instead");
    msg_unlock(w);
    return code;
}

/* Without the lock. Acquire, paired with the release in msg_noticed (channel.h): a thread that reads the count then
 * reads the data of all counted writes. */
uint32_t msg_notices(const msg_world *w, int source)
{
    return (unsigned)source < (unsigned)w->n_ranks ? vk_load_acquire(&w->peers[source].n_notices) : 0;
}

/* Two conditions: no write waits here for a descriptor, and none of the started ones is without its completion. A
 * channel without one-sided writes has nothing to wait for. */
int msg_all_written(const struct msg_peer *peer)
{
    if (peer->channel == NULL || peer->channel->outstanding == NULL)
        return 1;
    return peer->channel->outstanding(peer) == 0 && !msg_is_writing(peer->world, peer->rank);
}

/* ---------------------------------------------------------------- reads */

/* `get` alone does not suffice: the link of this rank may lack RDMA reads, which are optional in VIA. */
int msg_can_get(const msg_world *w, int target)
{
    struct msg_peer *peer = &w->peers[target];
    return peer->channel && peer->channel->get && peer->channel->can_get && peer->channel->can_get(peer);
}

/* A read needs no place in the order of packets: it changes nothing at the target. The channel's own order makes it
 * see earlier writes of this rank, once those are handed over. */
int msg_get(msg_world *w, void *buf, size_t len, int target, const msg_exposed *exposed, uint64_t offset,
            msg_request **out)
{
    struct write a = a_write(w, buf, len, target);
    int code = check_put(&a, exposed, offset, 1);
    if (code == MSG_SUCCESS && !msg_can_get(w, target))
        code = msg_fail(w, MSG_ERR_NOT_SUPPORTED, "rank %d is connected by a link without RDMA reads", target);
    if (code == MSG_SUCCESS)
        code = await_turn(&a);
    if (code)
        return code;
    MSG_COUNT(w, gets, 1);
    a.address = exposed->address + offset;
    a.handle = exposed->handle[a.peer->channel->handle_index(a.peer)];
    return begin_request(&a, MSG_REQ_GET, len == 0, out);
}
