/*
 * place.h - the interface between rx.c and place.c, which puts a frame's bytes into memory. Only the NIC's owner calls
 * these functions.
 */
#ifndef VIAKIT_PLACE_H
#define VIAKIT_PLACE_H

#include "base/atomic.h"
#include "link/frame_format.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/vi.h"
#include "via/work.h"

/* Places the piece of a send (of an RDMA write) in this frame: h->len bytes at payload. The frame must be in sequence,
 * and pieces must not be being skipped. The connection may be broken afterwards: check the state. */
void via_place_send(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);
void via_place_write(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);

/* ahead.c. via_place_early: the place of an out-of-order frame's payload, or NULL if it must be kept elsewhere. Call it
 * once for each frame that is kept. */
void *via_place_early(struct via_vi *vi, const struct wire_header *h);
/* Where the next len bytes of the message in progress belong, or NULL if they do not lie in one piece of granted
 * memory. */
void *via_next_place(struct via_vi *vi, int kind, size_t len);
/* Where len bytes at the beginning of the next send belong. */
void *via_first_place(struct via_vi *vi, size_t len);
/* The same as via_next_place for len bytes of the frames behind h, which was just accepted, in sequence or not. */
void *via_place_behind(struct via_vi *vi, const struct wire_header *h, size_t len);

/* Ends the message that is being received because it can no longer be completed. Its remaining pieces are skipped. */
void via_abandon_message(struct via_vi *vi);

/* The target's check of an RDMA operation: the VI and the region of (handle, address, len) grant `right`, and their
 * tags match. right: VIA_RIGHT_WRITE or VIA_RIGHT_READ. */
static inline int via_rdma_granted(const struct via_vi *vi, uint32_t right, uint32_t handle, uint64_t address,
                                   uint64_t len)
{
    if (!(right == VIA_RIGHT_READ ? vi->attributes.EnableRdmaRead : vi->attributes.EnableRdmaWrite))
        return 0;
    if (len == 0)
        return 1;
    return via_mem_grants(vi->nic, handle, (void *)(uintptr_t)address, len, vi->ptag) &&
           (vi->nic->regions[handle & 0xFFFF].rights & right);
}

/* Counts a copy of len bytes in user space. A zero-copy transfer leaves these two counters unchanged. */
static inline void via_count_copy(struct via_vi *vi, size_t len)
{
    VI_COUNT(vi, copies, 1);
    VI_COUNT(vi, bytes_copied, len);
}

/* Completes the head of the receive queue. The entries after it may have errors that were found when they were posted:
 * these complete now. */
static inline void via_complete_receive(struct via_vi *vi, uint32_t status)
{
    struct via_queue *q = &vi->recv;
    via_complete(vi, q, status);
    if (vk_unlikely(q->done != q->posted && via_work_at(q, q->done)->error))
        via_settle_errors(vi, q);
}

#endif
