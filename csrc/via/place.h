/*
 * place.h - what rx.c calls in place.c, which puts a frame's bytes where they belong. All of it is for the NIC's owner.
 */
#ifndef VIAKIT_PLACE_H
#define VIAKIT_PLACE_H

#include "internal.h"

/* The piece of a send (of an RDMA write) that this frame brings, h->len bytes at payload. It is its turn, and pieces
 * are not being skipped. The connection may be broken afterwards: ask for the state. */
void via_place_send(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);
void via_place_write(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);

/* The message that is being received will never be whole: it ends here, and what still comes of it is skipped. */
void via_abandon_message(struct via_vi *vi);

/* Does (handle, address, len) lie in a region that lets this VI's peer write? */
int via_write_granted(const struct via_vi *vi, uint32_t handle, uint64_t address, uint64_t len);

/* len bytes were copied in user space: what viakit calls zero-copy is these two counters not moving. */
static inline void via_count_copy(struct via_vi *vi, size_t len)
{
    VI_COUNT(vi, copies, 1);
    VI_COUNT(vi, bytes_copied, len);
}

/* The head of the receive queue completes. What comes after it may have been found wrong when it was posted: now is
 * its turn. */
static inline void via_complete_receive(struct via_vi *vi, uint32_t status)
{
    struct via_queue *q = &vi->recv;
    via_complete(vi, q, status);
    if (vk_unlikely(q->done != q->posted && via_work_at(q, q->done)->error))
        via_settle_errors(vi, q);
}

#endif
