/*
 * Posting descriptors and taking them back: the two calls on each work queue that a program makes per message.
 *
 * Posting checks the descriptor where it lies (alignment, registration, format), puts a struct via_work on the queue and
 * rings the doorbell, that is, tries to send at once. What is wrong with the descriptor's *content* does not fail the
 * call: it stands in the descriptor's status when its turn comes, after everything posted before it.
 *
 * A post to a VI that is not connected: receives wait (they may be posted before the connection), sends complete as flushed.
 */
#include "internal.h"
#include "tap.h"

/* Checks the local segments [from, n). Returns the status bits of what is wrong, 0 if nothing; their sum in *sum. */
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

static uint32_t check_send(struct via_vi *vi, const VIP_DESCRIPTOR *d, struct via_work *w)
{
    uint32_t op = d->CS.Control & VIP_CONTROL_OP_MASK, n = d->CS.SegCount,
             first = op == VIP_CONTROL_OP_SENDRECV ? 0 : 1;
    uint64_t sum = 0;
    w->is_short = 0;
    if (vk_likely(n == 1 && first == 0 &&
                  !(d->CS.Control & (VIP_CONTROL_RESERVED | VIP_CONTROL_QFENCE)))) { /* most are so */
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

static uint32_t check_recv(const struct via_vi *vi, const VIP_DESCRIPTOR *d, struct via_work *w)
{
    uint64_t sum = 0;
    w->is_short = 0;
    if ((d->CS.Control & ~(VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE)) != 0 || d->CS.SegCount > VIA_MAX_SEGMENTS)
        return VIP_STATUS_FORMAT_ERROR;
    uint32_t error = check_segments(vi, d, 0, d->CS.SegCount, &sum);
    w->room = (uint32_t)sum;
    if (d->CS.SegCount == 1 && !error) {
        w->is_short = 1;
        w->data = d->DS[0].Local.Data.Address;
        w->epoch = vi->nic->region_epoch;
    }
    return error;
}

/* The checks that fail the call itself: nothing is queued then. */
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
    q->posted++;
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

/* Takes the completed head. */
static inline VIP_RETURN reap(struct via_vi *vi, struct via_queue *q, VIP_DESCRIPTOR **out)
{
    VIP_DESCRIPTOR *d = via_work_at(q, q->reaped)->descriptor;
    VIA_TAP(vi->nic, via_tap_reaped(q, d, vi));
    q->reaped++;
    *out = d;
    return d->CS.Status & VIP_STATUS_ERROR_MASK ? VIP_DESCRIPTOR_ERROR : VIP_SUCCESS;
}

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
        code = VIP_DESCRIPTOR_ERROR;
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

static int something(void *argument)
{
    const struct patience *p = argument;
    return p->q->reaped != p->q->done || p->q->reaped == p->q->posted || !vk_object_is(p->object, p->generation);
}

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
    code = via_wait_owned(nic, timeout, something, &p);
    if (!vk_object_is(p.object, p.generation))
        code = via_fail(VIP_INVALID_PARAMETER, "the VI was destroyed while a call waited on it");
    else if (code == VIP_SUCCESS && q->reaped != q->done)
        code = reap(vi, q, out);
    else if (code == VIP_SUCCESS) {
        *out = NULL; /* an empty queue: nothing will ever come */
        code = VIP_DESCRIPTOR_ERROR;
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
