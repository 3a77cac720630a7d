/*
 * Completion queues: a ring of (VI, queue) pairs. One completion queue serves any number of work queues.
 *
 *        head                tail
 *      ---+-------------------+----------------      removed entries | waiting | free; both free-running,
 *         | (vi, recv?) ...   |                      tail - head <= capacity, masked by the array's size
 *
 * An entry reports that one descriptor of a work queue is complete. The program then removes the descriptor with
 * VipSendDone or VipRecvDone. An entry carries no descriptor, so the entries of one work queue are interchangeable.
 * Only their number matters: it equals the number of completions.
 *
 * The program chooses the size, as VIPL requires. If a completion queue overflows, the entry is lost and a catastrophic
 * error of the queue is reported. The descriptors are not lost: they remain in their work queues.
 *
 * All functions run as the NIC's owner, except for the Vip calls, which enter the NIC themselves.
 */
#include <stdlib.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/explain.h"
#include "base/pool.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/notify.h"
#include "via/vi.h"
#include "via/work.h"

/* Slots keep what precedes `entries`, the object and its NIC, for calls with an old handle (enter.h). */
struct vk_pool via_cq_pool = VK_POOL_INIT(struct via_cq, VIA_CQ_POOL, entries);

/* Add an entry. It runs for each completion, so the common case costs one comparison: `limit` is the capacity, or 0 if
 * the queue has tags, which sends every entry through the slow branch. */
void via_cq_push(struct via_cq *cq, struct via_vi *vi, int recv)
{
    if (vk_unlikely(cq->tail - cq->head >= cq->limit)) { /* full, or there are tags to check */
        /* The error handler runs for every lost entry, because a program that waits for the entry must be notified. */
        if (cq->tail - cq->head >= cq->capacity) {
            via_report(cq->nic, vi, cq, NULL, VIP_RESOURCE_CQ, VIP_ERROR_CATASTROPHIC);
            return;
        }
        via_cq_signal(cq);
    }
    cq->entries[cq->tail & cq->mask] = (struct via_cq_entry){vk_pool_handle(vi), recv ? VIP_TRUE : VIP_FALSE};
    cq->tail++;
}

/* Return the smallest power of two that is at least n. */
static uint32_t ring_size(VIP_ULONG n)
{
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    return size;
}

/* The ring is allocated before the NIC is entered: page faults are slow, and other threads may wait to enter. */
VIP_RETURN VipCreateCQ(VIP_NIC_HANDLE handle, VIP_ULONG n, VIP_CQ_HANDLE *out)
{
    VIP_RETURN code;
    if (out == NULL || n == 0 || n > VIA_MAX_CQ_ENTRIES)
        return vk_fail(VIP_INVALID_PARAMETER, "VipCreateCQ: %lu entries: give 1 to %d, and a place for the handle", n,
                       VIA_MAX_CQ_ENTRIES);
    uint32_t size = ring_size(n);
    struct via_cq_entry *entries = calloc(size, sizeof *entries);
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL) {
        free(entries);
        return code;
    }
    int full = nic->n_cqs >= VIA_MAX_CQ;
    struct via_cq *cq = entries && !full ? vk_pool_get(&via_cq_pool) : NULL;
    if (cq) {
        vk_store_relaxed(&cq->nic, nic); /* another thread may be checking an old handle of this slot */
        cq->entries = entries;
        cq->capacity = cq->limit = (uint32_t)n;
        cq->mask = size - 1;
        /* Both counters run freely, so they may start anywhere. Tests choose a number that soon wraps. */
        cq->head = cq->tail = nic->options.first_psn;
        cq->next = nic->cqs;
        if (nic->cqs)
            nic->cqs->prev = cq;
        nic->cqs = cq;
        nic->n_cqs++;
        *out = vk_pool_handle(cq);
    }
    via_leave(nic);
    if (cq == NULL) {
        int no_memory = entries == NULL;
        free(entries);
        if (no_memory)
            return via_no_memory("VipCreateCQ");
        if (full)
            return vk_fail(VIP_ERROR_RESOURCE, "VipCreateCQ: a NIC has at most %d completion queues", VIA_MAX_CQ);
        return via_no_object("VipCreateCQ", &via_cq_pool, "completion queues");
    }
    return VIP_SUCCESS;
}

/* Destroy a queue that no work queue uses, or whose NIC is closing. Entries that wait in it are discarded. The caller
 * owns the NIC; the handle is invalid afterwards. */
void via_cq_free(struct via_cq *cq)
{
    struct via_nic *nic = cq->nic;
    /* The pointer to this queue: in its predecessor, or the head of the list. */
    *(cq->prev ? &cq->prev->next : &nic->cqs) = cq->next;
    if (cq->next)
        cq->next->prev = cq->prev;
    nic->n_cqs--;
    via_notify_cancel(nic, cq);
    via_cq_drop_tags(cq);
    free(cq->entries);
    vk_pool_put(&via_cq_pool, cq);
    via_wake_waiters(nic); /* calls that wait on the queue must find that it is gone */
}

/* Destroy a queue. It is refused while work queues use the queue, because their completions would write to freed
 * memory. */
VIP_RETURN VipDestroyCQ(VIP_CQ_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = VIP_SUCCESS;
    VIA_ENTER_CQ(cq, handle);
    struct via_nic *nic = cq->nic;
    if (cq->n_queues)
        code =
            vk_fail(VIP_ERROR_RESOURCE, "VipDestroyCQ: %u work queues use it: destroy their VIs first", cq->n_queues);
    else
        via_cq_free(cq);
    via_leave(nic);
    return code;
}

/* Move the entries to a ring of the new size, in order. A size smaller than the number of waiting entries is refused
 * and changes nothing. To avoid losing entries, enlarge the queue before attaching another VI. */
VIP_RETURN VipResizeCQ(VIP_CQ_HANDLE handle, VIP_ULONG n)
{
    VIP_RETURN code = VIP_SUCCESS;
    if (n == 0 || n > VIA_MAX_CQ_ENTRIES)
        return vk_fail(VIP_INVALID_PARAMETER, "VipResizeCQ: %lu entries: give 1 to %d", n, VIA_MAX_CQ_ENTRIES);
    uint32_t size = ring_size(n);
    struct via_cq_entry *entries = calloc(size, sizeof *entries), *old = NULL;
    struct via_cq *cq = via_cq_enter(handle, &code);
    if (cq == NULL) {
        free(entries);
        return code;
    }
    uint32_t used = cq->tail - cq->head;
    if (entries == NULL)
        code = via_no_memory("VipResizeCQ");
    else if (n < used)
        code = vk_fail(VIP_ERROR_RESOURCE,
                       "VipResizeCQ: %lu entries: %u completions wait to be taken: take them with VipCQDone first", n,
                       used);
    if (code == VIP_SUCCESS) {
        for (uint32_t i = cq->head; i != cq->tail; i++)
            /* head and tail do not change; only the positions in the ring differ. */
            entries[i & (size - 1)] = cq->entries[i & cq->mask];
        old = cq->entries;
        cq->entries = entries;
        cq->capacity = (uint32_t)n;
        cq->limit = cq->tags ? 0 : cq->capacity;
        cq->mask = size - 1;
    }
    via_leave(cq->nic);
    free(code == VIP_SUCCESS ? old : entries);
    return code;
}

/* Remove the oldest entry: return 1 and the entry, or 0. The VI of the handle may have been destroyed since, because
 * entries are not searched when a VI goes. The handle is then invalid, and calls with it report that. */
int via_cq_take(struct via_cq *cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv)
{
    if (cq->head == cq->tail)
        return 0;
    const struct via_cq_entry *e = &cq->entries[cq->head & cq->mask];
    *vi = e->vi;
    *recv = e->recv;
    cq->head++;
    return 1;
}

/* Remove an entry. A waiting entry is returned without polling the link, so a program that drains a full queue does not
 * pay for driving. VIP_NOT_DONE: no entry waited, and one poll of the link completed nothing. */
VIP_RETURN VipCQDone(VIP_CQ_HANDLE handle, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv)
{
    VIP_RETURN code;
    if (vk_unlikely(vi == NULL || recv == NULL))
        return vk_fail(VIP_INVALID_PARAMETER, "VipCQDone: no place for the VI or the queue (NULL)");
    struct via_cq *cq = via_cq_enter_inline(handle, &code);
    if (vk_unlikely(cq == NULL))
        return code;
    struct via_nic *nic = cq->nic;
    int got = via_cq_take(cq, vi, recv);
    if (!got) {
        via_drive(nic);
        got = via_cq_take(cq, vi, recv);
    }
    via_leave(nic);
    return got ? VIP_SUCCESS : VIP_NOT_DONE;
}

/* The condition of a waiting call. Another thread may destroy the queue during the wait. */
struct cq_wait {
    const struct via_cq *cq;
    uint32_t generation; /* when the wait began */
};

/* Whether the queue of the wait has been destroyed. Its slot may have a new queue, which has another generation. */
static int gone(const struct cq_wait *p)
{
    return !vk_object_is(&p->cq->object, p->generation);
}

/* The ring is read before the generation. If the queue is gone, the result means nothing: the caller checks gone()
 * again after the wait. */
static int not_empty(void *argument)
{
    const struct cq_wait *p = argument;
    return p->cq->head != p->cq->tail || gone(p);
}

/* Wait for an entry of any of the queue's VIs. Several threads may wait on one queue: a thread that wakes up and finds
 * it empty continues to wait. */
VIP_RETURN VipCQWait(VIP_CQ_HANDLE handle, VIP_ULONG timeout, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv)
{
    if (vi == NULL || recv == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipCQWait: no place for the VI or the queue (NULL)");
    VIA_ENTER_CQ(cq, handle);
    struct via_nic *nic = cq->nic;
    struct cq_wait p = {cq, cq->object.generation};
    VIP_RETURN code = via_wait_owned(nic, timeout, not_empty, &p, "VipCQWait: nothing completed", NULL);
    if (gone(&p))
        code = vk_fail(VIP_INVALID_PARAMETER, "the completion queue was destroyed while a call waited on it");
    else if (code == VIP_SUCCESS)
        via_cq_take(cq, vi, recv);
    via_leave(nic);
    return code;
}
