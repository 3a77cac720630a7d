/*
 * VipSendNotify, VipRecvNotify, VipCQNotify: call a handler when something completes.
 *
 * A notification is one-shot. It waits in a list of its NIC, oldest first. As soon as its queue has a completion, the
 * completion is removed from the queue and passed to the handler. The handler runs on the NIC's own thread, outside the
 * NIC, so it may call VIPL and request the next notification. A NIC without a thread runs handlers at the end of
 * viakit_poll and in waiting calls, like those of asynchronous errors.
 *
 *   a completion ... via_wake_waiters() finds nic->listeners != 0 (a test that it makes for waits in any case)
 *       ... sets notify_due and wakes the thread ... which searches the list for queues that have a completion
 *
 * While no notification is requested, completions therefore cost nothing more. Destroying the VI or the completion
 * queue cancels its notifications, but does not wait for a handler that is running.
 *
 *    requested --the queue has a completion--> taken, with that completion --handler returns--> gone
 *        \-- VI or queue destroyed, NIC closed --> freed, no call
 *
 * The list and its entries belong to the NIC's owner. notify_due is also read without ownership: it is stored with
 * release and read with acquire, so that a thread that sees 1 and enters finds the completion.
 */
#include <stdlib.h>

#include "base/atomic.h"
#include "base/explain.h"
#include "base/list.h"
#include "base/pool.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/notify.h"
#include "via/observer.h"
#include "via/own.h"
#include "via/vi.h"
#include "via/work.h"

#define MAX_NOTIFICATIONS 4096 /* of one NIC, one for each of its VIs: the list is searched linearly */

/* A request that waits. Exactly one of on_descriptor and on_entry is set, like vi and cq. */
struct via_notification {
    struct via_notification *next;
    struct via_vi *vi; /* whose queue; NULL for a completion queue */
    struct via_queue *queue;
    struct via_cq *cq;
    VIP_PVOID context;
    VIP_DESC_HANDLER on_descriptor;
    VIP_CQ_HANDLER on_entry;
};

/* The arguments of a handler, collected as owner. */
struct call {
    VIP_PVOID context;
    VIP_DESC_HANDLER on_descriptor;
    VIP_CQ_HANDLER on_entry;
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *descriptor;
    VIP_BOOLEAN recv;
};

/* Marks that a queue with a notification may have a completion, and wakes the thread that runs handlers. Called by the
 * owner, any number of times. */
void via_notify_due(struct via_nic *nic)
{
    if (nic->notify_due)
        return; /* the thread that runs handlers is already notified */
    vk_store_release(&nic->notify_due, 1);
    via_kick_thread(nic);
}

/* ---------------------------------------------------------------- requesting */

/* Return whether the queue has an entry that waits, or a complete descriptor that was not reaped. */
static int is_pending(const struct via_notification *n)
{
    return n->cq ? n->cq->head != n->cq->tail : n->queue->reaped != n->queue->done;
}

/* Append a copy of *n to the list. The list owns the copy until it is delivered or cancelled. `listeners` makes
 * completions look at the list. */
static VIP_RETURN enlist(struct via_nic *nic, const struct via_notification *n)
{
    struct via_notification *own = nic->n_notifications < MAX_NOTIFICATIONS ? malloc(sizeof *own) : NULL;
    if (own == NULL)
        return vk_fail(VIP_ERROR_RESOURCE, "a NIC has at most %d notifications outstanding", MAX_NOTIFICATIONS);
    *own = *n;
    VK_LIST_APPEND(nic->notifications, own, next);
    nic->n_notifications++;
    nic->listeners++;
    /* A completion that already waits counts as completed now. */
    if (is_pending(own))
        via_notify_due(nic);
    return VIP_SUCCESS;
}

/* Request a notification from a work queue. A work queue with a completion queue is refused, as by the Wait calls: its
 * completions are reported there. */
static VIP_RETURN notify_queue(const char *function, VIP_VI_HANDLE handle, VIP_PVOID context, VIP_DESC_HANDLER handler,
                               int recv)
{
    VIP_RETURN code;
    if (handler == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "%s: no handler (NULL)", function);
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    struct via_queue *q = recv ? &vi->recv : &vi->send;
    if (q->cq)
        code = vk_fail(VIP_INVALID_STATE, "%s: the queue belongs to a completion queue: use VipCQNotify", function);
    else
        code =
            enlist(nic, &(struct via_notification){.vi = vi, .queue = q, .context = context, .on_descriptor = handler});
    via_leave(nic);
    return code;
}

VIP_RETURN VipSendNotify(VIP_VI_HANDLE vi, VIP_PVOID context, VIP_DESC_HANDLER handler)
{
    return notify_queue("VipSendNotify", vi, context, handler, 0);
}

VIP_RETURN VipRecvNotify(VIP_VI_HANDLE vi, VIP_PVOID context, VIP_DESC_HANDLER handler)
{
    return notify_queue("VipRecvNotify", vi, context, handler, 1);
}

/* Request a notification from a completion queue. If an entry already waits, it is delivered at once, but by the thread
 * that runs handlers, not by this call. */
VIP_RETURN VipCQNotify(VIP_CQ_HANDLE handle, VIP_PVOID context, VIP_CQ_HANDLER handler)
{
    if (handler == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipCQNotify: no handler (NULL)");
    VIA_ENTER_CQ(cq, handle);
    struct via_nic *nic = cq->nic;
    VIP_RETURN code = enlist(nic, &(struct via_notification){.cq = cq, .context = context, .on_entry = handler});
    via_leave(nic);
    return code;
}

/* ---------------------------------------------------------------- cancelling */

/* *p is the pointer to the notification; afterwards it points to the next one. Completions test `listeners`. */
static void remove_from_list(struct via_nic *nic, struct via_notification **p)
{
    struct via_notification *n = *p;
    *p = n->next;
    nic->n_notifications--;
    nic->listeners--;
    free(n);
}

/* Their handlers are not called any more, except one that runs already. */
void via_notify_cancel(struct via_nic *nic, const void *vi_or_cq)
{
    for (struct via_notification **p = &nic->notifications; *p;) {
        if ((*p)->vi == vi_or_cq || (*p)->cq == vi_or_cq)
            remove_from_list(nic, p);
        else
            p = &(*p)->next;
    }
}

/* ---------------------------------------------------------------- delivering */

/* Remove the oldest notification whose queue has a completion, and that completion. Return 0 if no queue has one. The
 * descriptor counts as reaped, because its handler gets it. The search starts at the oldest request, so none is passed
 * over for ever. */
static int take_one(struct via_nic *nic, struct call *c)
{
    for (struct via_notification **p = &nic->notifications; *p; p = &(*p)->next) {
        struct via_notification *n = *p;
        if (!is_pending(n))
            continue;
        *c = (struct call){.context = n->context, .on_descriptor = n->on_descriptor, .on_entry = n->on_entry};
        c->nic = vk_pool_handle(nic);
        if (n->cq)
            via_cq_take(n->cq, &c->vi, &c->recv);
        else {
            c->vi = vk_pool_handle(n->vi);
            c->descriptor = via_work_at(n->queue, n->queue->reaped)->descriptor;
            VIA_OBSERVE(nic, reaped, n->queue, c->descriptor, n->vi);
            n->queue->reaped++;
        }
        remove_from_list(nic, p);
        return 1;
    }
    return 0;
}

/* Deliver completions one at a time: remove one as owner, call the handler without ownership. notify_due is cleared
 * only after a search of the whole list as owner found nothing. A later completion sets it again. */
void via_run_notifications(struct via_nic *nic)
{
    /* acquire: pairs with via_notify_due's release, although the queues are read only as owner. When the NIC is
     * closing, no handler may run any more. */
    while (vk_load_acquire(&nic->notify_due) && !vk_load_relaxed(&nic->closing)) {
        struct call c;
        via_own_enter_slow(&nic->own, 1);
        int got = take_one(nic, &c);
        if (!got)
            vk_store_relaxed(&nic->notify_due, 0); /* the next completion sets it again */
        via_own_leave_slow(&nic->own);
        if (!got)
            return;
        struct via_handling here;
        via_handling_begin(&here, nic);
        if (c.on_entry)
            c.on_entry(c.context, c.nic, c.vi, c.recv);
        else
            c.on_descriptor(c.context, c.nic, c.vi, c.descriptor);
        via_handling_end(&here);
    }
}
