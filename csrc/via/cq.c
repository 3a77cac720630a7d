/*
 * Completion queues: a ring of (VI, queue) pairs. One place to look at for any number of work queues.
 *
 *      head                tail
 *    ---+-------------------+----------------      taken entries | waiting | free; both free-running,
 *       | (vi, recv?) ...   |                      tail - head <= capacity, masked by the array's size
 *
 * An entry says that one descriptor of that work queue is done; the program then takes it with VipSendDone or
 * VipRecvDone. So an entry carries no descriptor, and the entries of one queue are interchangeable: what counts is that
 * there are as many as completions.
 *
 * Sizing is the program's duty, as VIPL has it; an entry that finds the ring full is lost and reported as a
 * catastrophic error of the queue. The descriptors themselves are not lost, they still lie in their work queues.
 */
#include <stdlib.h>

#include "internal.h"

struct vk_pool via_cq_pool = VK_POOL_INIT(struct via_cq, VIA_CQ_POOL, entries);

/* Called for each completion, so it makes one comparison in the common case: `limit` is the capacity, or 0 where there
 * are tags, which sends every entry the long way round. */
void via_cq_push(struct via_cq *cq, struct via_vi *vi, int recv)
{
    if (vk_unlikely(cq->tail - cq->head >= cq->limit)) { /* full, or there are tags to look at */
        /* The handler hears it each time. An entry that is not there will be missed by a program that waits for it: it
         * must know. */
        if (cq->tail - cq->head >= cq->capacity) {
            via_report(cq->nic, vi, cq, NULL, VIP_RESOURCE_CQ, VIP_ERROR_CATASTROPHIC);
            return;
        }
        via_cq_signal(cq);
    }
    cq->entries[cq->tail & cq->mask] = (struct via_cq_entry){vk_pool_handle(vi), recv ? VIP_TRUE : VIP_FALSE};
    cq->tail++;
}

/* The power of two that holds n. */
static uint32_t ring_size(VIP_ULONG n)
{
    uint32_t size = 1;
    while (size < n)
        size *= 2;
    return size;
}

/* The ring is allocated before the NIC is entered: pages are slow, and others wait outside. */
VIP_RETURN VipCreateCQ(VIP_NIC_HANDLE handle, VIP_ULONG n, VIP_CQ_HANDLE *out)
{
    VIP_RETURN code;
    if (out == NULL || n == 0 || n > VIA_MAX_CQ_ENTRIES)
        return via_fail(VIP_INVALID_PARAMETER, "VipCreateCQ: %lu entries: give 1 to %d, and a place for the handle", n,
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
        vk_store_relaxed(&cq->nic, nic); /* an old handle of this slot may be looked at right now */
        cq->entries = entries;
        cq->capacity = cq->limit = (uint32_t)n;
        cq->mask = size - 1;
        /* Any number will do, for both run freely; tests make it one that soon wraps. */
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
            return via_fail(VIP_ERROR_RESOURCE, "VipCreateCQ: a NIC has at most %d completion queues", VIA_MAX_CQ);
        return via_no_object("VipCreateCQ", &via_cq_pool, "completion queues");
    }
    return VIP_SUCCESS;
}

/* Of a queue that no work queue uses, or of a NIC that closes. Entries that wait in it are forgotten with it. */
void via_cq_free(struct via_cq *cq)
{
    struct via_nic *nic = cq->nic;
    /* The pointer that leads to it: its predecessor's, or the head of the list. */
    *(cq->prev ? &cq->prev->next : &nic->cqs) = cq->next;
    if (cq->next)
        cq->next->prev = cq->prev;
    nic->n_cqs--;
    via_notify_cancel(nic, cq);
    via_cq_drop_tags(cq);
    free(cq->entries);
    vk_pool_put(&via_cq_pool, cq);
    via_wake_waiters(nic); /* a call that waits on it shall see that it is gone */
}

/* Refused while work queues are tied to it: each completion of theirs would write into what is gone. */
VIP_RETURN VipDestroyCQ(VIP_CQ_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = VIP_SUCCESS;
    struct via_cq *cq = via_cq_enter(handle, &code);
    if (cq == NULL)
        return code;
    struct via_nic *nic = cq->nic;
    if (cq->n_queues)
        code =
            via_fail(VIP_ERROR_RESOURCE, "VipDestroyCQ: %u work queues use it: destroy their VIs first", cq->n_queues);
    else
        via_cq_free(cq);
    via_leave(nic);
    return code;
}

/* The entries move to a ring of the new size, in order. Smaller than what is in it: then nothing changes. So a program
 * that must not lose entries makes it larger before it attaches another VI. */
VIP_RETURN VipResizeCQ(VIP_CQ_HANDLE handle, VIP_ULONG n)
{
    VIP_RETURN code = VIP_SUCCESS;
    if (n == 0 || n > VIA_MAX_CQ_ENTRIES)
        return via_fail(VIP_INVALID_PARAMETER, "VipResizeCQ: %lu entries: give 1 to %d", n, VIA_MAX_CQ_ENTRIES);
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
        code = via_fail(VIP_ERROR_RESOURCE,
                        "VipResizeCQ: %lu entries: %u completions wait to be taken: take them with VipCQDone first", n,
                        used);
    if (code == VIP_SUCCESS) {
        for (uint32_t i = cq->head; i != cq->tail; i++)
            /* head and tail stay as they are: only the places in the ring are others. */
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

/* 1 and the entry, or 0. The VI's handle may be of a VI that was destroyed since: entries are not looked through for
 * that. */
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

/* What is there is taken first, without a look at the link: a program that drains a full queue does not pay for
 * driving. VIP_NOT_DONE: there was nothing, and the one look brought nothing. */
VIP_RETURN VipCQDone(VIP_CQ_HANDLE handle, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv)
{
    VIP_RETURN code;
    if (vk_unlikely(vi == NULL || recv == NULL))
        return via_fail(VIP_INVALID_PARAMETER, "VipCQDone: no place for the VI or the queue (NULL)");
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

/* What a waiting call waits for. Another thread may destroy the queue meanwhile. */
struct patience {
    const struct via_cq *cq;
    uint32_t generation;
};

static int gone(const struct patience *p)
{
    return !vk_object_is(&p->cq->object, p->generation);
}

/* The entry is asked for before the generation; of a queue that is gone the answer means nothing, and gone() is asked
 * again after the wait. */
static int not_empty(void *argument)
{
    const struct patience *p = argument;
    return p->cq->head != p->cq->tail || gone(p);
}

/* Waits for an entry of any of the queue's VIs. Other threads may wait on the same queue: who is woken and finds it
 * empty again waits on. */
VIP_RETURN VipCQWait(VIP_CQ_HANDLE handle, VIP_ULONG timeout, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv)
{
    VIP_RETURN code;
    if (vi == NULL || recv == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipCQWait: no place for the VI or the queue (NULL)");
    struct via_cq *cq = via_cq_enter(handle, &code);
    if (cq == NULL)
        return code;
    struct via_nic *nic = cq->nic;
    struct patience p = {cq, cq->object.generation};
    code = via_wait_owned(nic, timeout, not_empty, &p, "VipCQWait: nothing completed", NULL);
    if (gone(&p))
        code = via_fail(VIP_INVALID_PARAMETER, "the completion queue was destroyed while a call waited on it");
    else if (code == VIP_SUCCESS)
        via_cq_take(cq, vi, recv);
    via_leave(nic);
    return code;
}
