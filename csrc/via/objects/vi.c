/*
 * Virtual interfaces: life cycle, states, and completion of descriptors.
 *
 *            ConnectRequest                 accepted
 *    IDLE ------------------> CONNECT_PENDING ------> CONNECTED
 *     ^  <-------------------      |                     |   |
 *     |   refused, timed out       |                     |   | error, or the peer left
 *     |                            |                     |   v
 *     +---------- Disconnect ------+---------------------+-- ERROR
 *
 * docs/states.md has the whole table. VIPL's rules for the states:
 *
 * - In IDLE and CONNECT_PENDING receives may be posted and wait; sends complete at once as flushed.
 * - On the way to ERROR and to IDLE everything outstanding is flushed.
 * - A VI is destroyed only if it is IDLE and the program has reaped every descriptor.
 *
 * Invariant: each work queue completes strictly in posting order. A descriptor that was invalid when posted waits for
 * its turn, with its error in struct via_work, and so does one that failed in transit. Descriptors complete only in
 * via_complete(), which writes the status and notifies completion queue, sleepers, notifications and tap.
 *
 * The caller of all functions here is the NIC's owner. The Vip* and viakit_* functions enter the NIC themselves
 * (enter.h).
 *
 * The functions that complete descriptors:
 *
 *    a send      via_complete_sends (reliable.c), when it was sent, or acknowledged where that is required
 *    a receive   place.c and whole_message (rx.c), when the last frame of its message is placed
 *    either      via_settle_errors, when its turn comes; via_flush, when the connection ends
 *    the head    of the send queue, when the connection breaks: via_remote_error, via_give_up (reliable.c)
 */
#include <string.h>
#include <sys/mman.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/list.h"
#include "base/pool.h"
#include "link/frame_format.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/notify.h"
#include "via/observer.h"
#include "via/pending.h"
#include "via/vi.h"
#include "via/work.h"

#define WORK_LEN (2 * VIA_MAX_QUEUE * sizeof(struct via_work)) /* of both queues of a VI */

/* `nic` stays readable when the VI is gone: it precedes `number` and is not cleared. */
struct vk_pool via_vi_pool = VK_POOL_INIT(struct via_vi, VIA_VI_POOL, number);

/* Return the status bits for the operation. An RDMA write with immediate data cannot be recognised at its target from
 * the descriptor: there the caller passes OP_REMOTE_RDMA_WRITE itself. */
static uint32_t operation_of(const struct via_queue *q, const struct via_work *w)
{
    if (q->is_recv)
        return VIP_STATUS_OP_RECEIVE;
    switch (w->control & VIP_CONTROL_OP_MASK) {
    case VIP_CONTROL_OP_RDMAWRITE:
        return VIP_STATUS_OP_RDMA_WRITE;
    case VIP_CONTROL_OP_RDMAREAD:
        return VIP_STATUS_OP_RDMA_READ;
    default:
        return VIP_STATUS_OP_SEND;
    }
}

/* Complete the entry at q->done. As soon as the status is written, the program may reuse the descriptor on another
 * processor, so it is not read afterwards. `next` advances if the entry was never sent (a flush, an error of the post).
 * release: pairs with the program's load of Status. On processors that keep loads in order (x86) a plain load suffices.
 */
void via_complete(struct via_vi *vi, struct via_queue *q, uint32_t status)
{
    struct via_work *w = via_work_at(q, q->done);
    if ((status & VIP_STATUS_OP_MASK) == 0)
        status |= operation_of(q, w);
    VIA_OBSERVE(vi->nic, completed, vi, q, status | VIP_STATUS_DONE);
    /* length, immediate data and the message itself are visible before the status */
    vk_store_release(&w->descriptor->CS.Status, status | VIP_STATUS_DONE);
    q->done++;
    if (wire_before(q->next, q->done))
        q->next = q->done;
    if (q->cq)
        via_cq_push(q->cq, vi, q->is_recv);
    /* Without a completion queue only calls that wait on a work queue can wait for this entry. A thread that sleeps in
     * VipCQWait while another one sends would otherwise be woken by every send, with a system call. */
    if (q->cq || vi->nic->n_queue_waits || vi->nic->notifications)
        via_wake_waiters(vi->nic);
}

/* Complete entries whose error was found at posting, once they are at the head of the queue. On a reliable connection
 * such an error ends the connection; the loop then finds the queue flushed and empty. */
void via_settle_errors(struct via_vi *vi, struct via_queue *q)
{
    while (q->done != q->posted && via_work_at(q, q->done)->error) {
        via_complete(vi, q, via_work_at(q, q->done)->error);
        if (vi->reliable && vi->state == VIP_STATE_CONNECTED) {
            via_send_control(vi, WIRE_DISCONNECT, 0, 0);
            via_break(vi, 0);
        }
    }
}

/* Flush sends first, then receives, each in posting order. Entries with an error of their own keep it, because it is
 * more specific than "flushed". */
void via_flush(struct via_vi *vi)
{
    for (int i = 0; i < 2; i++) {
        struct via_queue *q = i ? &vi->recv : &vi->send;
        while (q->done != q->posted) {
            uint32_t error = via_work_at(q, q->done)->error;
            via_complete(vi, q, error ? error : VIP_STATUS_DESC_FLUSHED_ERROR);
        }
    }
}

/* End the connection with an error. Later frames of the peer are answered from error_status (rx.c), for which the peer
 * fields stay valid until VipDisconnect. It does nothing unless the VI is CONNECTED, so several places may call it. */
void via_break(struct via_vi *vi, int report_conn_lost)
{
    if (vi->state != VIP_STATE_CONNECTED)
        return;
    vi->state = VIP_STATE_ERROR;
    vi->rx_source = VIA_NO_SOURCE;
    vi->rto_deadline = VK_NEVER;
    vi->rx_active = 0;
    via_forget_frames(vi);
    via_flush(vi);
    if (report_conn_lost)
        via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_CONN_LOST);
    via_wake_waiters(vi->nic);
}

/* Reset all fields of a connection before the next one. The work queues continue: receives that were posted before the
 * connection belong to it. Called when a VI is created, and for each connection by conn_describe(). */
void via_vi_reset(struct via_vi *vi)
{
    uint32_t first = vi->nic->options.first_psn;
    vi->peer = NULL;
    vi->hold_from = vi->send.posted;
    vi->confirmed = 0;
    /* Both sides draw their first number at random when they describe themselves (conn_describe). This value serves
     * tests of wrap-around. */
    vi->una_psn = vi->next_psn = vi->tx_psn = vi->high_psn = vi->write_psn = first;
    vi->flight_head = vi->flight_seen = vi->flight_tail = first;
    vi->window = vi->threshold = vi->undo_window = vi->nic->options.window;
    vi->window_credit = 0;
    vi->long_trip = 0;
    vi->lost_frames = 0;
    via_rtt_reset(vi);
    vi->rto = via_rtt_timeout(vi);
    vi->rto_deadline = VK_NEVER;
    vi->retries = 0;
    vi->probing = 0;
    vi->ack_owed = vi->nak_sent = vi->rx_active = vi->rx_skip = vi->peer_active = 0;
    vi->error_status = 0;
    vi->error_psn = first;
    /* No NAK was answered yet (via_negative compares with both). */
    vi->nak_psn = vi->nak_high = first - 1;
    vi->received_at = vi->nic->now;
}

/* Check attributes for VipCreateVi and VipSetViAttributes. On success *ptag is the tag's number, 0 for none. VIPL has a
 * code for each refusal; the first error found decides. */
static VIP_RETURN check_attributes(struct via_nic *nic, VIP_VI_ATTRIBUTES *a, uint32_t *ptag)
{
    int valid;
    if (a->ReliabilityLevel != VIP_SERVICE_UNRELIABLE && a->ReliabilityLevel != VIP_SERVICE_RELIABLE_DELIVERY &&
        a->ReliabilityLevel != VIP_SERVICE_RELIABLE_RECEPTION)
        return vk_fail(
            VIP_INVALID_RELIABILITY_LEVEL,
            "reliability level %u: give one of unreliable (1), reliable delivery (2), reliable reception (4)",
            a->ReliabilityLevel);
    if (a->MaxTransferSize > VIA_MAX_TRANSFER)
        return vk_fail(VIP_INVALID_MTU, "MaxTransferSize %lu: at most %lu here", a->MaxTransferSize, VIA_MAX_TRANSFER);
    *ptag = via_ptag_number(nic, a->Ptag, &valid);
    if (!valid)
        return vk_fail(VIP_INVALID_PTAG, "%p is not a protection tag of this NIC", a->Ptag);
    /* In VIPL reads are optional, and only for reliable levels (RDMAReadSupport in the NIC's attributes). */
    if (a->EnableRdmaRead && !(a->ReliabilityLevel & VIA_RDMA_READ_LEVELS))
        return vk_fail(VIP_INVALID_RDMAREAD,
                       "RDMA read needs a reliable level (2 or 4), which requests lost data again");
    return VIP_SUCCESS;
}

/* Set checked attributes. Tags count their users, and VipDestroyPtag refuses a tag in use. The new tag is counted
 * before the old one is released, because they may be the same. */
static void set_attributes(struct via_vi *vi, const VIP_VI_ATTRIBUTES *a, uint32_t ptag)
{
    struct via_nic *nic = vi->nic;
    vi->attributes = *a;
    if (vi->attributes.MaxTransferSize == 0)
        vi->attributes.MaxTransferSize = VIA_MAX_TRANSFER;
    vi->reliable = a->ReliabilityLevel != VIP_SERVICE_UNRELIABLE;
    if (ptag)
        nic->ptags[ptag]->n_users++;
    if (vi->ptag)
        nic->ptags[vi->ptag]->n_users--;
    vi->ptag = ptag;
}

/* Attach a completion queue, for the life of the VI. With NULL, VipSendWait and VipRecvWait wait for the work queue
 * itself. n_queues keeps the program from destroying a queue in use. */
static void attach(struct via_queue *q, struct via_cq *cq)
{
    q->cq = cq;
    if (cq)
        cq->n_queues++;
}

/* Map the entries of both work queues, about 100 KiB. They are zero, and a page costs memory only once it is used: a
 * job of 256 ranks has 255 VIs in each, of which most carry few messages. calloc would write part of the block, and a
 * huge page would back the entries of many VIs at once. NULL: memory is exhausted. free_vi() unmaps it. */
static struct via_work *map_work(void)
{
    void *work = mmap(NULL, WORK_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (work == MAP_FAILED)
        return NULL;
    (void)madvise(work, WORK_LEN, MADV_NOHUGEPAGE); /* fails only on kernels without huge pages */
    return work;
}

/* Create a VI. NULL: memory is exhausted, or all VIs of the process are in use. The pool's object is taken last, so
 * that a failure has only the mapping to undo. */
static struct via_vi *new_vi(struct via_nic *nic, const VIP_VI_ATTRIBUTES *a, uint32_t ptag)
{
    struct via_work *work = map_work();
    struct via_vi *vi = work ? vk_pool_get(&via_vi_pool) : NULL;
    if (vi == NULL) {
        if (work)
            munmap(work, WORK_LEN);
        return NULL;
    }
    /* Numbers are assigned in turn, so a freed number is not reused at once. A late frame of the old connection then
     * finds no VI instead of the wrong one. (Its key would not match either.) The caller has ensured that a number is
     * free. */
    while (nic->vi_by_number[nic->next_vi_number % VIA_MAX_VI])
        nic->next_vi_number++;
    vi->number = (uint16_t)(nic->next_vi_number++ % VIA_MAX_VI);
    nic->vi_by_number[vi->number] = vi;
    vk_store_relaxed(&vi->nic, nic); /* another thread may be checking an old handle of this slot */
    set_attributes(vi, a, ptag);
    vi->send.work = work;
    vi->recv.work = work + VIA_MAX_QUEUE;
    vi->recv.is_recv = 1;
    /* The four indices of each queue start equal; see struct via_queue. */
    uint32_t first = nic->options.first_psn; /* 0 except in tests of wrap-around */
    vi->send.reaped = vi->send.done = vi->send.next = vi->send.posted = first;
    vi->recv.reaped = vi->recv.done = vi->recv.next = vi->recv.posted = first;
    vi->next = nic->vis;
    if (nic->vis)
        nic->vis->prev = vi;
    nic->vis = vi;
    nic->n_vis++;
    via_vi_reset(vi);
    return vi;
}

/* Find a completion queue of the NIC. NULL gives NULL. */
static VIP_RETURN find_cq(const struct via_nic *nic, VIP_CQ_HANDLE handle, struct via_cq **cq)
{
    *cq = handle ? vk_pool_find(&via_cq_pool, handle) : NULL;
    return handle && (*cq == NULL || (*cq)->nic != nic) ? via_bad_handle("completion queue of this NIC", handle)
                                                        : VIP_SUCCESS;
}

/* All or nothing: attributes, both completion queues and limits are checked before anything is counted. */
VIP_RETURN VipCreateVi(VIP_NIC_HANDLE handle, VIP_VI_ATTRIBUTES *attributes, VIP_CQ_HANDLE send_cq,
                       VIP_CQ_HANDLE recv_cq, VIP_VI_HANDLE *out)
{
    if (attributes == NULL || out == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipCreateVi: attributes and a place for the handle are needed (NULL)");
    VIA_ENTER_NIC(nic, handle);
    uint32_t ptag = 0;
    struct via_vi *vi = NULL;
    struct via_cq *cqs[2] = {NULL, NULL};
    VIP_RETURN code = check_attributes(nic, attributes, &ptag);
    for (int i = 0; i < 2 && code == VIP_SUCCESS; i++)
        code = find_cq(nic, i ? recv_cq : send_cq, &cqs[i]);
    if (code == VIP_SUCCESS) {
        int full = nic->n_vis >= VIA_MAX_VI;
        vi = full ? NULL : new_vi(nic, attributes, ptag);
        if (full)
            code = vk_fail(VIP_ERROR_RESOURCE, "VipCreateVi: a NIC has at most %d VIs: destroy one first", VIA_MAX_VI);
        else if (vi == NULL)
            code = via_no_object("VipCreateVi", &via_vi_pool, "VIs");
    }
    /* The tag is counted in new_vi, the queues here: a failure before has nothing to undo. */
    if (vi) {
        attach(&vi->send, cqs[0]);
        attach(&vi->recv, cqs[1]);
        *out = vk_pool_handle(vi);
    }
    via_leave(nic);
    return code;
}

/* Free a VI in state IDLE whose work queues are empty or discarded. All references of the NIC to it are removed; its
 * counts stay with the NIC. */
static void free_vi(struct via_vi *vi)
{
    struct via_nic *nic = vi->nic;
    /* Remove it from every list of the NIC first, before anything walks one of them. The lists are short: they hold the
     * VIs that owe or wait at this moment. */
    VK_LIST_REMOVE(nic->ack_list, vi, ack_next);
    VK_LIST_REMOVE(nic->answer_list, vi, answer_next);
    VK_LIST_REMOVE(nic->stall_list, vi, stall_next);
    via_forget_frames(vi);
    via_reads_free(vi);
    via_proof_free(vi);
    via_conn_forget_vi(vi);
    via_notify_cancel(nic, vi);
    /* the NIC's sums must not shrink when a VI goes */
    via_add_counters(nic->counters, vi);
    *(vi->prev ? &vi->prev->next : &nic->vis) = vi->next;
    if (vi->next)
        vi->next->prev = vi->prev;
    nic->vi_by_number[vi->number] = NULL;
    nic->n_vis--;
    if (vi->ptag)
        nic->ptags[vi->ptag]->n_users--;
    if (vi->send.cq)
        vi->send.cq->n_queues--;
    if (vi->recv.cq)
        vi->recv.cq->n_queues--;
    munmap(vi->send.work, WORK_LEN);
    vk_pool_put(&via_vi_pool, vi);
    via_wake_waiters(nic); /* calls that wait on it must find that it is gone */
}

/* Destroy a VI. VIPL refuses here rather than clean up: queued descriptors are the program's memory, and the program
 * must reap them. */
VIP_RETURN via_vi_destroy(struct via_vi *vi)
{
    if (vi->state != VIP_STATE_IDLE)
        return vk_fail(VIP_ERROR_RESOURCE, "VipDestroyVi: the VI is in %s: disconnect it first",
                       viakit_state_name((int)vi->state));
    if (vi->send.reaped != vi->send.posted || vi->recv.reaped != vi->recv.posted)
        return vk_fail(
            VIP_ERROR_RESOURCE,
            "VipDestroyVi: %u send and %u receive descriptors were not taken back with VipSendDone and VipRecvDone",
            vi->send.posted - vi->send.reaped, vi->recv.posted - vi->recv.reaped);
    free_vi(vi);
    return VIP_SUCCESS;
}

/* A thread that waits on the VI is woken and finds it gone (free_vi). */
VIP_RETURN VipDestroyVi(VIP_VI_HANDLE handle)
{
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    VIP_RETURN code = via_vi_destroy(vi);
    via_leave(nic);
    return code;
}

/* Any of the result pointers may be NULL. The link is polled first, so that a program that only queries the state still
 * detects a lost peer. */
VIP_RETURN VipQueryVi(VIP_VI_HANDLE handle, VIP_VI_STATE *state, VIP_VI_ATTRIBUTES *attributes, VIP_BOOLEAN *send_empty,
                      VIP_BOOLEAN *recv_empty)
{
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    via_drive(nic);
    if (state)
        *state = vi->state;
    if (attributes)
        *attributes = vi->attributes;
    if (send_empty)
        *send_empty = vi->send.reaped == vi->send.posted;
    if (recv_empty)
        *recv_empty = vi->recv.reaped == vi->recv.posted;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Set attributes, only when IDLE: a connected or connecting peer has received and accepted the old ones. */
VIP_RETURN VipSetViAttributes(VIP_VI_HANDLE handle, VIP_VI_ATTRIBUTES *attributes)
{
    VIP_RETURN code;
    uint32_t ptag;
    if (attributes == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipSetViAttributes: no attributes (NULL)");
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    if (vi->state != VIP_STATE_IDLE)
        code = vk_fail(VIP_INVALID_STATE, "VipSetViAttributes: the VI is in %s: disconnect it first",
                       viakit_state_name((int)vi->state));
    else
        code = check_attributes(nic, attributes, &ptag);
    if (code == VIP_SUCCESS) {
        set_attributes(vi, attributes, ptag);
        nic->region_epoch++; /* posted receives must be checked again under the new tag */
    }
    via_leave(nic);
    return code;
}

/* Return the present state of the transmitter, for instruments: round trip, window, frames in flight, frames missing.
 * It drives nothing. */
VIP_RETURN viakit_query_vi(VIP_VI_HANDLE handle, viakit_vi_info *info)
{
    if (info == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_query_vi: no place for the information (NULL)");
    VIA_ENTER_VI(vi, handle);
    memset(info, 0, sizeof *info);
    /* nanoseconds inside, microseconds outside */
    info->lossless = vi->lossless;
    info->retransmission = vi->nic->options.retransmission;
    info->srtt_us = (double)vi->rtt.smoothed / VK_US;
    info->rttvar_us = (double)vi->rtt.variation / VK_US;
    info->rto_us = (double)vi->rto / VK_US;
    info->tail_probe_us = (double)via_rtt_probe(vi) / VK_US;
    info->window = vi->window;
    info->sends_in_flight = vi->flight_tail - vi->flight_head;
    info->frames_in_flight = vi->high_psn - vi->una_psn;
    info->frames_missing = via_reorder_missing(vi);
    info->reads_open = via_reads_open(vi);
    info->retries = vi->retries;
    via_leave(vi->nic);
    return VIP_SUCCESS;
}

/* Return this VI's counters. The NIC also counts frames_sent and frames_received, because some frames belong to no VI.
 */
VIP_RETURN viakit_vi_counters(VIP_VI_HANDLE handle, VIP_UINT64 *values)
{
    if (values == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_vi_counters: no place for the values (NULL)");
    VIA_ENTER_VI(vi, handle);
    memcpy(values, vi->counters, sizeof vi->counters);
    via_leave(vi->nic);
    return VIP_SUCCESS;
}
