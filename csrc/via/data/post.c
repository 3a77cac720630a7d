/*
 * Posting and reaping descriptors: the calls on each work queue that a program makes per message.
 *
 *    VipPostSend, VipPostRecv      check, queue, ring the doorbell
 *    VipSendDone, VipRecvDone      the head of the queue if it is complete; else poll the link once. Never waits
 *    VipSendWait, VipRecvWait      the same, waiting: spins, then sleeps (wait.c)
 *
 * Posting checks the descriptor in place and copies the fields for later steps into a struct via_work. A program that
 * changes a posted descriptor can change the data that is sent. It cannot extend the memory that may be accessed,
 * because every access is checked again when it is made. VIPL has two kinds of errors and keeps them apart:
 *
 *    of the call         handle, alignment, the descriptor's own memory, a full queue: nothing is queued, and the call
 *                        returns the error
 *    of the descriptor   format, length, protection: the call succeeds; the error is in the descriptor's status
 *                        when it completes in its turn, after everything posted before it
 *
 * Posts to a VI that is not connected: receives wait (they may be posted before the connection), sends complete as
 * flushed.
 *
 * The straight path through this file, for one message of one segment, is the cost of a message: no lock, no
 * allocation, no system call, and each struct's hot fields in a cache line or two. Therefore the file has many
 * vk_likely, and some checks are in an unusual order.
 *
 * Any thread may call the VIPL functions; the others run in the NIC's owner.
 */
#include "base/atomic.h"
#include "base/explain.h"
#include "base/pool.h"
#include "base/virtual.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/observer.h"
#include "via/vi.h"
#include "via/work.h"

/* Checks the local segments [from, n). Returns the status bits of all errors, or 0, and the sum of the lengths in *sum.
 * The loop does not stop at the first error: a wrong sum is the graver error, so the sum is always needed. */
static uint32_t check_segments(const struct via_vi *vi, const VIP_DESCRIPTOR *d, uint32_t from, uint32_t n,
                               uint64_t *sum)
{
    uint32_t error = 0;
    for (uint32_t i = from; i < n; i++) {
        const VIP_DATA_SEGMENT *s = &via_segment(d, i)->Local;
        if (s->Length == 0)
            continue; /* no address and no right needed */
        *sum += s->Length;
        if (!via_mem_grants(vi->nic, s->Handle, s->Data.Address, s->Length, vi->ptag))
            error |= VIP_STATUS_PROTECTION_ERROR;
    }
    return error;
}

/* Checks a send, RDMA write or RDMA read and fills in w. Returns its status bits, 0 if it is valid. A wrong format or a
 * wrong length is reported alone; protection is reported only if both are right. */
static uint32_t check_send(struct via_vi *vi, const VIP_DESCRIPTOR *d, struct via_work *w)
{
    uint32_t op = d->CS.Control & VIP_CONTROL_OP_MASK, n = d->CS.SegCount,
             first = op == VIP_CONTROL_OP_SENDRECV ? 0 : 1;
    uint64_t sum = 0;
    /* A message of one local segment, without a fence: transmit_short() may send it, as long as no region is removed
     * (epoch). */
    w->is_short = 0;
    if (vk_likely(n == 1 && first == 0 &&
                  !(d->CS.Control & (VIP_CONTROL_RESERVED | VIP_CONTROL_QFENCE)))) { /* most messages */
        /* One condition covers all possible errors. If it fails, the long path below finds the error. */
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
        return VIP_STATUS_FORMAT_ERROR; /* not reliable; no program to get the data */
    /* RDMA has the remote address in segment 0. Only the target can check whether that is granted. */
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

/* Checks the segments of a receive: the sum of their lengths goes to *sum, and *whole becomes 0 unless all of their
 * memory is granted. Each segment must begin in memory that is granted, or at its end. A segment may run past its
 * region, because programs post 64 KB near a region's end for messages that never fill it. The message decides: place.c
 * checks each piece before it writes. Returns the status bits of the errors, or 0. */
static uint32_t check_room(const struct via_vi *vi, const VIP_DESCRIPTOR *d, uint64_t *sum, int *whole)
{
    uint32_t error = 0;
    *whole = 1;
    for (uint32_t i = 0; i < d->CS.SegCount; i++) {
        const VIP_DATA_SEGMENT *s = &via_segment(d, i)->Local;
        *sum += s->Length;
        if (s->Length == 0 || via_mem_grants(vi->nic, s->Handle, s->Data.Address, s->Length, vi->ptag))
            continue;
        *whole = 0;
        if (!via_mem_grants(vi->nic, s->Handle, s->Data.Address, 0, vi->ptag))
            error |= VIP_STATUS_PROTECTION_ERROR;
    }
    return error;
}

/* Checks a receive and fills in w. Returns its status bits, 0 if it is valid. CS.Length is not compared with the
 * segments: the message decides how much of the space is used. */
static uint32_t check_recv(const struct via_vi *vi, const VIP_DESCRIPTOR *d, struct via_work *w)
{
    uint64_t sum = 0;
    int whole;
    w->is_short = 0;
    if ((d->CS.Control & ~(VIP_CONTROL_IMMEDIATE | VIP_CONTROL_QFENCE)) != 0 || d->CS.SegCount > VIA_MAX_SEGMENTS)
        return VIP_STATUS_FORMAT_ERROR;
    uint32_t error = check_room(vi, d, &sum, &whole);
    w->room = (uint32_t)sum;
    /* One segment, completely granted: rx.c copies a short message into it without another check, while the epoch is
     * unchanged. */
    if (d->CS.SegCount == 1 && whole) {
        w->is_short = 1;
        w->data = d->DS[0].Local.Data.Address;
        w->epoch = vi->nic->region_epoch;
    }
    return error;
}

/* Finds the condition of may_post() that failed and fails the call: nothing is queued. VIPL requires a call of the
 * error handler as well. */
static VIP_RETURN refuse_post(struct via_vi *vi, VIP_DESCRIPTOR *d, VIP_MEM_HANDLE handle, const struct via_queue *q)
{
    if (d == NULL || ((uintptr_t)d & (VIP_DESCRIPTOR_ALIGNMENT - 1))) {
        via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_DESCRIPTOR, VIP_ERROR_POST_DESC);
        return vk_fail(VIP_INVALID_PARAMETER, "descriptor at %p: must be aligned to %d bytes", (void *)d,
                       VIP_DESCRIPTOR_ALIGNMENT);
    }
    if (q->posted - q->reaped == VIA_MAX_QUEUE) {
        /* The descriptor's address has not been validated yet. Report it only if it lies in registered memory. */
        int here = via_mem_grants(vi->nic, handle, d, sizeof(VIP_CONTROL_SEGMENT), vi->ptag);
        via_report(vi->nic, vi, NULL, here ? d : NULL, VIP_RESOURCE_VI, VIP_ERROR_VI_OVERRUN);
        return vk_fail(VIP_ERROR_RESOURCE, "%d descriptors are posted, the maximum: reap completed ones first",
                       VIA_MAX_QUEUE);
    }
    via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_DESCRIPTOR, VIP_ERROR_POST_DESC);
    return vk_fail(VIP_INVALID_PARAMETER,
                   "descriptor at %p is not inside the region of handle 0x%08x, or the region's tag is not the VI's",
                   (void *)d, handle);
}

/* Checks that the descriptor may be read and that the queue has space. Most descriptors have up to two segments and are
 * granted as 64 bytes by one check. Otherwise the control segment must be granted before SegCount is read from it, and
 * then as many segments as SegCount states. */
static inline int may_post(const struct via_vi *vi, const VIP_DESCRIPTOR *d, VIP_MEM_HANDLE handle,
                           const struct via_queue *q)
{
    if (((uintptr_t)d & (VIP_DESCRIPTOR_ALIGNMENT - 1)) || q->posted - q->reaped == VIA_MAX_QUEUE)
        return 0;
    if (vk_likely(via_mem_grants(vi->nic, handle, d, sizeof *d, vi->ptag) && d->CS.SegCount <= 2))
        return 1;
    if (!via_mem_grants(vi->nic, handle, d, sizeof(VIP_CONTROL_SEGMENT), vi->ptag))
        return 0;
    uint64_t n =
        d->CS.SegCount <= VIA_MAX_SEGMENTS ? d->CS.SegCount : 0; /* too many: reported later as a format error */
    return via_mem_grants(vi->nic, handle, d, sizeof(VIP_CONTROL_SEGMENT) + 16 * n, vi->ptag);
}

/* Fills in the queue's next entry without counting it. The status is cleared, so a program that polls it sees 0 until
 * via_complete(). */
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

/* Posts to either queue: the two calls differ only in the queue and in what follows. */
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
    VIA_OBSERVE(nic, posted, vi, q, d);
    struct via_work *w = append(q, d);
    w->error = recv ? check_recv(vi, d, w) : check_send(vi, d, w);
    /* From here on the descriptor belongs to the NIC. The doorbell follows: there is no other processor to notify, so
     * ringing it means to send now. */
    q->posted++;
    /* A receive needs no action. But an invalid one at the head of the queue, or any on a broken VI, completes at once.
     */
    if (recv) {
        vk_charge(VK_CHARGE_POST, 1);
        w->mem = mem;
        if (vk_unlikely(w->error))
            via_settle_errors(vi, q);
        if (vk_unlikely(vi->state == VIP_STATE_ERROR))
            via_flush(vi);
    } else if (vk_likely(via_may_transmit(vi)))
        via_transmit(vi);
    else if (vi->state == VIP_STATE_CONNECTED)
        w->is_short = 0; /* deferred: it is sent later with the others, by the path that all can take */
    else
        /* Not connected: completes as flushed, unless the descriptor has an error of its own, which is the better
         * reason. */
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
    return vk_fail(VIP_DESCRIPTOR_ERROR, "the descriptor completed with an error: its status is %#lx",
                   (unsigned long)d->CS.Status);
}

static VIP_RETURN explain_empty(int recv)
{
    return vk_fail_text(VIP_DESCRIPTOR_ERROR, /* programs may poll an empty queue, so this is cheap */
                        recv ? "the receive queue is empty: post a descriptor first"
                             : "the send queue is empty: post a descriptor first");
}

/* Removes the completed head. Returns VIP_SUCCESS or VIP_DESCRIPTOR_ERROR, by its status; *out is the descriptor either
 * way. The pointer is the one that the program posted, never a copy: programs compare the two. */
static inline VIP_RETURN reap(struct via_vi *vi, struct via_queue *q, VIP_DESCRIPTOR **out)
{
    VIP_DESCRIPTOR *d = via_work_at(q, q->reaped)->descriptor;
    VIA_OBSERVE(vi->nic, reaped, q, d, vi);
    q->reaped++;
    *out = d;
    return vk_unlikely(d->CS.Status & VIP_STATUS_ERROR_MASK) ? explain_failed(d) : VIP_SUCCESS;
}

/* Implements VIPL's three results for a queue. The head is complete: it is removed. It is not complete: VIP_NOT_DONE,
 * *out unchanged. The queue is empty: VIP_DESCRIPTOR_ERROR with *out = NULL, so a program can drain a queue by calling
 * until it gets that. */
static VIP_RETURN done(VIP_VI_HANDLE handle, VIP_DESCRIPTOR **out, int recv)
{
    VIP_RETURN code;
    if (vk_unlikely(out == NULL))
        return vk_fail(VIP_INVALID_PARAMETER,
                       "the pointer to the result is NULL: pass the address of a VIP_DESCRIPTOR *");
    struct via_vi *vi = via_vi_enter_inline(handle, &code);
    if (vk_unlikely(vi == NULL))
        return code;
    struct via_nic *nic = vi->nic;
    struct via_queue *q = recv ? &vi->recv : &vi->send;
    if (q->reaped == q->done) /* nothing complete yet: poll the link, once */
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

/* The condition of a waiting call. Another thread may destroy the VI meanwhile. The slot of the VI stays readable for
 * ever (base/pool.h), so `q` can be read even then. */
struct waiting {
    const struct vk_object *object;
    uint32_t generation;
    const struct via_queue *q;
};

/* Ends the wait. Called by the owner, between sleeps. An empty queue also ends it, because another thread may have
 * reaped the descriptor. Only the last test is certain: the first two may read another VI in the same slot, which at
 * most ends the sleep early. */
static int may_return(void *argument)
{
    const struct waiting *p = argument;
    return p->q->reaped != p->q->done || p->q->reaped == p->q->posted || !vk_object_is(p->object, p->generation);
}

/* The thread is cancelled in its wait: undoes what wait() has counted. */
static void give_up(struct via_nic *nic, void *argument)
{
    (void)argument;
    nic->n_queue_waits--;
}

/* Waits for the head of a queue. VIPL forbids this on a queue with a completion queue, because its completions are
 * reported only there. */
static VIP_RETURN wait(VIP_VI_HANDLE handle, VIP_ULONG timeout, VIP_DESCRIPTOR **out, int recv)
{
    if (out == NULL)
        return vk_fail(VIP_INVALID_PARAMETER,
                       "the pointer to the result is NULL: pass the address of a VIP_DESCRIPTOR *");
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    struct via_queue *q = recv ? &vi->recv : &vi->send;
    struct waiting p = {&vi->object, vi->object.generation, q};
    if (q->cq) {
        via_leave(nic);
        return vk_fail(VIP_INVALID_STATE,
                       "the queue belongs to a completion queue: wait with VipCQWait, then reap with a Done call");
    }
    /* While it is not 0, each completion notifies waiting threads (via_complete). */
    nic->n_queue_waits++;
    VIP_RETURN code =
        via_wait_owned(nic, timeout, may_return, &p,
                       recv ? "VipRecvWait: no receive was complete" : "VipSendWait: no send was complete", give_up);
    nic->n_queue_waits--;
    /* The result of the wait is used only if the VI is still the one that the call was made for. */
    if (!vk_object_is(p.object, p.generation))
        code = vk_fail(VIP_INVALID_PARAMETER, "the VI was destroyed while a call waited on it");
    else if (code == VIP_SUCCESS && q->reaped != q->done)
        code = reap(vi, q, out);
    else if (code == VIP_SUCCESS) {
        *out = NULL; /* no completion can follow */
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
