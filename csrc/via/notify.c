/*
 * VipSendNotify, VipRecvNotify, VipCQNotify: call me when something completes.
 *
 * A notification is one-shot. It waits in a list of its NIC, oldest first; as soon as its queue has a completion,
 * the completion is taken from the queue and the handler is called with it, on the NIC's own thread and outside the
 * NIC, so that it may call VIPL and ask to be called again. A NIC without a thread runs handlers at the end of
 * viakit_poll and in waiting calls, like those of asynchronous errors.
 *
 *   a completion ... via_wake_waiters() finds nic->listeners != 0 (the one test that it makes anyway, for waits)
 *       ... sets notify_due and wakes the thread ... which looks through the list for queues that have something
 *
 * So while no notification is asked for, a completion costs nothing more than before. Destroying the VI or the
 * completion queue takes its notifications back; a handler that has begun is not waited for.
 */
#include <stdlib.h>

#include "internal.h"
#include "tap.h"

#define MAX_NOTIFICATIONS 4096 /* of one NIC: the list is walked */

struct via_notification {
    struct via_notification *next;
    struct via_vi *vi; /* whose queue; NULL for a completion queue */
    struct via_queue *queue;
    struct via_cq *cq;
    VIP_PVOID context;
    VIP_DESC_HANDLER on_descriptor;
    VIP_CQ_HANDLER on_entry;
};

/* What a handler is called with, taken while we were inside. */
struct call {
    VIP_PVOID context;
    VIP_DESC_HANDLER on_descriptor;
    VIP_CQ_HANDLER on_entry;
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_DESCRIPTOR *descriptor;
    VIP_BOOLEAN recv;
};

void via_notify_due(struct via_nic *nic)
{
    if (nic->notify_due)
        return; /* whoever runs handlers knows already */
    vk_store_release(&nic->notify_due, 1);
    via_kick_thread(nic);
}

/* ---------------------------------------------------------------- asking */

/* An entry that nobody has taken, or a descriptor that is complete and not taken back. */
static int has_something(const struct via_notification *n)
{
    return n->cq ? n->cq->head != n->cq->tail : n->queue->reaped != n->queue->done;
}

/* Puts a copy of *n at the end of the list. */
static VIP_RETURN enlist(struct via_nic *nic, const struct via_notification *n)
{
    struct via_notification *own = nic->n_notifications < MAX_NOTIFICATIONS ? malloc(sizeof *own) : NULL;
    struct via_notification **end = &nic->notifications;
    if (own == NULL)
        return via_fail(VIP_ERROR_RESOURCE, "a NIC has at most %d notifications outstanding", MAX_NOTIFICATIONS);
    *own = *n;
    own->next = NULL;
    while (*end)
        end = &(*end)->next;
    *end = own;
    nic->n_notifications++;
    nic->listeners++;
    /* What is there already counts as completed now. */
    if (has_something(own))
        via_notify_due(nic);
    return VIP_SUCCESS;
}

/* A queue with a completion queue tells its completions there, as for the Wait calls. */
static VIP_RETURN notify_queue(const char *function, VIP_VI_HANDLE handle, VIP_PVOID context, VIP_DESC_HANDLER handler,
                               int recv)
{
    VIP_RETURN code;
    if (handler == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "%s: no handler (NULL)", function);
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL)
        return code;
    struct via_nic *nic = vi->nic;
    struct via_queue *q = recv ? &vi->recv : &vi->send;
    if (q->cq)
        code = via_fail(VIP_INVALID_STATE, "%s: the queue belongs to a completion queue: use VipCQNotify", function);
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

/* If an entry is there already it is taken and told at once, that is, by whoever runs handlers, not by this call. */
VIP_RETURN VipCQNotify(VIP_CQ_HANDLE handle, VIP_PVOID context, VIP_CQ_HANDLER handler)
{
    VIP_RETURN code;
    if (handler == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipCQNotify: no handler (NULL)");
    struct via_cq *cq = via_cq_enter(handle, &code);
    if (cq == NULL)
        return code;
    struct via_nic *nic = cq->nic;
    code = enlist(nic, &(struct via_notification){.cq = cq, .context = context, .on_entry = handler});
    via_leave(nic);
    return code;
}

/* ---------------------------------------------------------------- taking back */

/* *p is the pointer that leads to it; afterwards it leads to the next one. `listeners` is what completions look at. */
static void remove_from_list(struct via_nic *nic, struct via_notification **p)
{
    struct via_notification *n = *p;
    *p = n->next;
    nic->n_notifications--;
    nic->listeners--;
    free(n);
}

void via_notify_cancel(struct via_nic *nic, const void *vi_or_cq)
{
    for (struct via_notification **p = &nic->notifications; *p;) {
        if ((*p)->vi == vi_or_cq || (*p)->cq == vi_or_cq)
            remove_from_list(nic, p);
        else
            p = &(*p)->next;
    }
}

/* ---------------------------------------------------------------- calling */

/* The oldest notification whose queue has something: the completion is taken, the notification is used up. */
static int take_one(struct via_nic *nic, struct call *c)
{
    for (struct via_notification **p = &nic->notifications; *p; p = &(*p)->next) {
        struct via_notification *n = *p;
        if (!has_something(n))
            continue;
        *c = (struct call){.context = n->context, .on_descriptor = n->on_descriptor, .on_entry = n->on_entry};
        c->nic = vk_pool_handle(nic);
        if (n->cq)
            via_cq_take(n->cq, &c->vi, &c->recv);
        else {
            c->vi = vk_pool_handle(n->vi);
            c->descriptor = via_work_at(n->queue, n->queue->reaped)->descriptor;
            VIA_TAP(nic, via_tap_reaped(n->queue, c->descriptor, n->vi));
            n->queue->reaped++;
        }
        remove_from_list(nic, p);
        return 1;
    }
    return 0;
}

/* Inside to take one completion, outside to call; then the next. notify_due is cleared only when a look through the
 * whole list, inside, found nothing: a completion that comes after that sets it again. */
void via_run_notifications(struct via_nic *nic)
{
    /* acquire: pairs with via_notify_due's release, though what counts is looked at inside; closing: nobody may be
     * called any more. */
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
