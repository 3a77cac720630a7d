/*
 * Posting descriptors and taking them back: the calls on each work queue that a program makes per message.
 *
 *    VipPostSend, VipPostRecv      check, queue, ring the doorbell
 *    VipSendDone, VipRecvDone      the head of the queue if it is complete; else one look at the link. Never waits
 *    VipSendWait, VipRecvWait      the same, waiting: spins, then sleeps (engine.c)
 *
 * Posting checks the descriptor where it lies and copies what later steps need into a struct via_work: a program
 * that changes a posted descriptor changes what is sent, but not what memory may be touched, for every access is
 * checked again when it is made. Two kinds of errors, and VIPL keeps them apart:
 *
 *    of the call         handle, alignment, the descriptor's own memory, a full queue: nothing is queued, the call
 *                        says so
 *    of the descriptor   format, length, protection: the call succeeds; the error stands in the descriptor's status
 *                        when its turn comes, after everything posted before it
 *
 * A post to a VI that is not connected: receives wait (they may be posted before the connection), sends complete as
 * flushed.
 *
 * The straight line through here, for one message of one segment, is what a message costs: no lock, no allocation,
 * no system call, and each struct's hot fields in a cache line or two. Hence the many vk_likely, and the checks in
 * an order that looks odd at first.
 */
#include "internal.h"
#include "tap.h"

/* Checks the local segments [from, n). Returns the status bits of what is wrong, 0 if nothing; their sum in *sum.
 * Nothing stops at the first wrong one: the sum is needed all the same, for a wrong sum is the graver error. */
static uint32_t check_segments(const struct via_vi *vi, const VIP_DESCRIPTOR *d, uint32_t from, uint32_t n,
                               uint64_t *sum)
{
    uint32_t error = 0;
    for (uint32_t i = from; i < n; i++) {
        const VIP_DATA_SEGMENT *s = &via_segment(d, i)->Local;
        if (s->Length == 0)
            continue; /* points nowhere and needs no right */
        *sum += s->Length;
        if (!via_mem_grants(vi->nic, s->Handle, s->Data.Address, s->Length, vi->ptag))
            error |= VIP_STATUS_PROTECTION_ERROR;
    }
    return error;
}

/* What is wrong with a send, RDMA write or RDMA read, 0 if nothing; fills in w. A wrong format says no more than that,
 * nor does a wrong length; protection is complained of only where both are right. */
static uint32_t check_send(struct via_vi *vi, const VIP_DESCRIPTOR *d, struct via_work *w)
{
    uint32_t op = d->CS.Control & VIP_CONTROL_OP_MASK, n = d->CS.SegCount,
             first = op == VIP_CONTROL_OP_SENDRECV ? 0 : 1;
    uint64_t sum = 0;
    /* A message of one local segment, without a fence: it may be sent by transmit_short(), as long as no region goes
     * (epoch). */
    w->is_short = 0;
    if (vk_likely(n == 1 && first == 0 &&
                  !(d->CS.Control & (VIP_CONTROL_RESERVED | VIP_CONTROL_QFENCE)))) { /* most are so */
        /* All that can be wrong is asked in one condition; if any of it is, the long way below finds out which. */
        const VIP_DATA_SEGMENT *s = &d->DS[0].Local;
        w->is_short = 1;
        w->data = s->Data.Address;
        sum = s->Length;
        if (sum == d->CS.Length && sum <= vi->attributes.MaxTransferSize &&
            (sum == 0 || via_mem_grants(vi->nic, s->Handle, w->data, sum, vi->ptag))) {
            w->len = (uint32_t)sum;
            w->epoch = vi->nic->region_epoch;
            return 0;
        }
        sum = 0;
    }
    if ((d->CS.Control & VIP_CONTROL_RESERVED) || op == VIP_CONTROL_OP_RESERVED || n > VIA_MAX_SEGMENTS || n < first)
        return VIP_STATUS_FORMAT_ERROR;
    if (op == VIP_CONTROL_OP_RDMAREAD && (!vi->reliable || d->CS.Control & VIP_CONTROL_IMMEDIATE))
        return VIP_STATUS_FORMAT_ERROR; /* what would be lost for good; what nobody would be told */
    /* RDMA has the remote address in segment 0: whether that is granted only the target can say. */
    uint32_t error = check_segments(vi, d, first, n, &sum);
    if (sum != d->CS.Length)
        return VIP_STATUS_FORMAT_ERROR;
    if (sum > vi->attributes.MaxTransferSize)
        return VIP_STATUS_LENGTH_ERROR;
    w->len = (uint32_t)sum;
    if (op == VIP_CONTROL_OP_RDMAREAD && !via_reads_ready(vi))
        error |= VIP_STATUS_TRANSPORT_ERROR; /* memory is exhausted */
    return error;
}

/* The same for a receive. Its segments need not add up to CS.Length: they are room, and how much of it is used the
 * message decides. */
static uint32_t check_recv(const struct via_vi *vi, const VIP_DESCRIPTOR *d, struct via_work *w)
{
    uint64_t sum = 0;
    w->is_short = 0;
    if ((d->CS.Control & ~(VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE)) != 0 || d->CS.SegCount > VIA_MAX_SEGMENTS)
        return VIP_STATUS_FORMAT_ERROR;
    uint32_t error = check_segments(vi, d, 0, d->CS.SegCount, &sum);
    w->room = (uint32_t)sum;
    /* One segment, found granted: rx.c may copy a short message into it without asking again, while the epoch stands.
     */
    if (d->CS.SegCount == 1 && !error) {
        w->is_short = 1;
        w->data = d->DS[0].Local.Data.Address;
        w->epoch = vi->nic->region_epoch;
    }
    return error;
}

/* The checks that fail the call itself: nothing is queued then. It finds out again, at leisure, which of the conditions
 * in may_post() failed. VIPL wants the error handler called as well. */
static VIP_RETURN refuse_post(struct via_vi *vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE handle, const struct via_queue *q)
{
    if (d == NULL || ((uintptr_t)d & (VIP_DESCRIPTOR_ALIGNMENT - 1))) {
        via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_DESCRIPTOR, VIP_ERROR_POST_DESC);
        return via_fail(VIP_INVALID_PARAMETER, "descriptor at %p: must be aligned to %d bytes", (void *)d,
                        VIP_DESCRIPTOR_ALIGNMENT);
    }
    if (q->posted - q->reaped == VIA_MAX_QUEUE) {
        /* Nobody has looked yet whether the descriptor is memory at all: it is named only if it is. */
        int here = via_mem_grants(vi->nic, handle, d, sizeof(VIP_CONTROL_SEGMENT), vi->ptag);
        via_report(vi->nic, vi, NULL, here ? d : NULL, VIP_RESOURCE_VI, VIP_ERROR_VI_OVERRUN);
        return via_fail(VIP_ERROR_RESOURCE, "%d descriptors are posted: take completed ones back first", VIA_MAX_QUEUE);
    }
    via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_DESCRIPTOR, VIP_ERROR_POST_DESC);
    return via_fail(
        VIP_INVALID_PARAMETER,
        "descriptor at %p is not inside the region of handle 0x%08x, registered with this NIC and the VI's tag",
        (void *)d, handle);
}

/* May the descriptor be read, and is there room? The usual one has up to two segments, and is granted as 64 bytes in
 * one look. Otherwise the control segment must be granted before SegCount may be read from it, and then as many
 * segments as it says. */
static inline int may_post(const struct via_vi *vi, const VIP_DESCRIPTOR *d, VIP_MEM_HANDLE handle,
                           const struct via_queue *q)
{
    if (((uintptr_t)d & (VIP_DESCRIPTOR_ALIGNMENT - 1)) || q->posted - q->reaped == VIA_MAX_QUEUE)
        return 0;
    if (vk_likely(via_mem_grants(vi->nic, handle, d, sizeof *d, vi->ptag) && d->CS.SegCount <= 2))
        return 1;
    if (!via_mem_grants(vi->nic, handle, d, sizeof(VIP_CONTROL_SEGMENT), vi->ptag))
        return 0;
    uint64_t n = d->CS.SegCount <= VIA_MAX_SEGMENTS ? d->CS.SegCount : 0; /* too many: a format error, later */
    return via_mem_grants(vi->nic, handle, d, sizeof(VIP_CONTROL_SEGMENT) + 16 * n, vi->ptag);
}

/* The queue's next entry, not counted yet. Status is cleared, so a poller of the program sees 0 until via_complete().
 */
static struct via_work *append(struct via_queue *q, VIP_DESCRIPTOR *d)
{
    struct via_work *w = via_work_at(q, q->posted);
    w->descriptor = d;
    w->control = d->CS.Control;
    w->seg_count = d->CS.SegCount;
    w->how = VIA_HOW_FRAMES;
    w->started = w->sent = w->wait_ack = 0;
    d->CS.Status = 0;
    return w;
}

/* The two post calls differ only in the queue and in what follows. */
static VIP_RETURN post(VIP_VI_HANDLE handle, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE mem, int recv)
{
    VIP_RETURN code;
    struct via_vi *vi = via_vi_enter_inline(handle, &code);
    if (vk_unlikely(vi == NULL))
        return code;
    struct via_nic *nic = vi->nic;
    struct via_queue *q = recv ? &vi->recv : &vi->send;
    if (vk_unlikely(!may_post(vi, d, mem, q))) {
        code = refuse_post(vi, d, mem, q);
        via_leave(nic);
        return code;
    }
    VIA_TAP(nic, via_tap_posted(vi, q, d));
    struct via_work *w = append(q, d);
    w->error = recv ? check_recv(vi, d, w) : check_send(vi, d, w);
    /* From here on the descriptor belongs to the NIC. The doorbell follows: there is no other processor to ring at, so
     * it means "send now". */
    q->posted++;
    /* A receive causes nothing; but a wrong one at the head of the queue, or any on a broken VI, is complete already.
     */
    if (recv) {
        w->mem = mem;
        if (vk_unlikely(w->error))
            via_settle_errors(vi, q);
        if (vk_unlikely(vi->state == VIP_STATE_ERROR))
            via_flush(vi);
    } else if (vk_likely(via_may_transmit(vi)))
        via_transmit(vi);
    else if (vi->state == VIP_STATE_CONNECTED)
        w->is_short = 0; /* deferred: it goes with the others, later, and by the way that all can go */
    else
        while (q->done != q->posted)
            via_complete(vi, q, w->error ? w->error : VIP_STATUS_DESC_FLUSHED_ERROR);
    via_leave(nic);
    return VIP_SUCCESS;
}

VIP_RETURN VipPostSend(VIP_VI_HANDLE handle, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE mem)
{
    return post(handle, d, mem, 0);
}

VIP_RETURN VipPostRecv(VIP_VI_HANDLE handle, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE mem)
{
    return post(handle, d, mem, 1);
}

static VIP_RETURN explain_failed(const VIP_DESCRIPTOR *d)
{
    return via_fail(VIP_DESCRIPTOR_ERROR, "the descriptor completed with an error: its status is %#lx",
                    (unsigned long)d->CS.Status);
}

static VIP_RETURN explain_empty(int recv)
{
    return via_fail_with(VIP_DESCRIPTOR_ERROR, /* a program may poll a queue in which there is nothing */
                         recv ? "the receive queue is empty: post a descriptor before asking for one"
                              : "the send queue is empty: post a descriptor before asking for one");
}

/* Takes the completed head. VIP_SUCCESS or VIP_DESCRIPTOR_ERROR, by its status; *out is the descriptor either way. That
 * pointer is what the program posted, never a copy: programs compare the two. */
static inline VIP_RETURN reap(struct via_vi *vi, struct via_queue *q, VIP_DESCRIPTOR **out)
{
    VIP_DESCRIPTOR *d = via_work_at(q, q->reaped)->descriptor;
    VIA_TAP(vi->nic, via_tap_reaped(q, d, vi));
    q->reaped++;
    *out = d;
    return vk_unlikely(d->CS.Status & VIP_STATUS_ERROR_MASK) ? explain_failed(d) : VIP_SUCCESS;
}

/* VIPL's three answers for a queue: the head is complete (taken); not yet (VIP_NOT_DONE, *out untouched); the queue is
 * empty, which is VIP_DESCRIPTOR_ERROR with *out = NULL, so that a program can drain a queue by calling until it sees
 * that. */
static VIP_RETURN done(VIP_VI_HANDLE handle, VIP_DESCRIPTOR **out, int recv)
{
    VIP_RETURN code;
    if (vk_unlikely(out == NULL))
        return via_fail(VIP_INVALID_PARAMETER, "no place for the descriptor (NULL)");
    struct via_vi *vi = via_vi_enter_inline(handle, &code);
    if (vk_unlikely(vi == NULL))
        return code;
    struct via_nic *nic = vi->nic;
    struct via_queue *q = recv ? &vi->recv : &vi->send;
    if (q->reaped == q->done) /* nothing there yet: look at the link, once */
        via_drive(nic);
    if (q->reaped != q->done)
        code = reap(vi, q, out);
    else if (q->reaped != q->posted)
        code = VIP_NOT_DONE;
    else {
        *out = NULL;
        code = explain_empty(recv);
    }
    via_leave(nic);
    return code;
}

VIP_RETURN VipSendDone(VIP_VI_HANDLE handle, VIP_DESCRIPTOR **out)
{
    return done(handle, out, 0);
}

VIP_RETURN VipRecvDone(VIP_VI_HANDLE handle, VIP_DESCRIPTOR **out)
{
    return done(handle, out, 1);
}

/* What a waiting call waits for. Another thread may destroy the VI meanwhile. */
struct patience {
    const struct vk_object *object;
    uint32_t generation;
    const struct via_queue *q;
};

/* Called by the owner, between sleeps. An empty queue ends the wait as well, for another thread may have taken what we
 * wait for. The last question is the one whose answer counts; the first two may be about another VI in the same slot,
 * and cost at most one turn. */
static int something(void *argument)
{
    const struct patience *p = argument;
    return p->q->reaped != p->q->done || p->q->reaped == p->q->posted || !vk_object_is(p->object, p->generation);
}

/* VIPL forbids to wait on a queue that has a completion queue: its completions are told there, and only there. */
static VIP_RETURN wait(VIP_VI_HANDLE handle, VIP_ULONG timeout, VIP_DESCRIPTOR **out, int recv)
{
    VIP_RETURN code;
    if (out == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "no place for the descriptor (NULL)");
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL)
        return code;
    struct via_nic *nic = vi->nic;
    struct via_queue *q = recv ? &vi->recv : &vi->send;
    struct patience p = {&vi->object, vi->object.generation, q};
    if (q->cq) {
        via_leave(nic);
        return via_fail(VIP_INVALID_STATE,
                        "the queue belongs to a completion queue: wait with VipCQWait, then take with Done");
    }
    code = via_wait_owned(nic, timeout, something, &p,
                          recv ? "VipRecvWait: no receive was complete" : "VipSendWait: no send was complete", NULL);
    /* What the wait found is believed only if the VI is still the one that we were called for. */
    if (!vk_object_is(p.object, p.generation))
        code = via_fail(VIP_INVALID_PARAMETER, "the VI was destroyed while a call waited on it");
    else if (code == VIP_SUCCESS && q->reaped != q->done)
        code = reap(vi, q, out);
    else if (code == VIP_SUCCESS) {
        *out = NULL; /* nothing will ever come */
        code = explain_empty(recv);
    }
    via_leave(nic);
    return code;
}

VIP_RETURN VipSendWait(VIP_VI_HANDLE handle, VIP_ULONG timeout, VIP_DESCRIPTOR **out)
{
    return wait(handle, timeout, out, 0);
}

VIP_RETURN VipRecvWait(VIP_VI_HANDLE handle, VIP_ULONG timeout, VIP_DESCRIPTOR **out)
{
    return wait(handle, timeout, out, 1);
}
