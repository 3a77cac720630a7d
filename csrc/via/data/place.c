/*
 * Places the bytes of a message in receive descriptors, or in regions that grant it.
 *
 * rx.c has verified that a frame belongs to a connection and is in sequence. Its content is still written by the peer,
 * and is checked here: whether a descriptor is posted, whether it is long enough, whether the memory is granted. Bytes
 * are written only to memory that the program has posted or registered for this purpose.
 *
 *   a send    take_receive -> receive_pieces: from (rx_segment, rx_segment_used) on -> copy or fetch -> finish_receive
 *   a write   address, handle, length from the first frame -> via_rdma_granted, for each frame again -> finish_write
 *
 * The state between frames is in the VI: rx_active (the kind of the message in progress), rx_len (bytes placed so far),
 * and the position. rx.c delivers frames in order, so a position is enough.
 *
 * Errors: on a reliable connection the sender gets the reason (ERROR, with status bits for its descriptor), and the
 * connection breaks on both sides. On an unreliable one only the message is lost, and its pieces are skipped until the
 * next first piece.
 *
 * Only the NIC's owner calls these functions.
 */
#include "via/data/place.h"

#include <string.h>

#include "base/atomic.h"
#include "base/copy.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/observer.h"
#include "via/vi.h"
#include "via/work.h"

/* ---------------------------------------------------------------- placing bytes */

/* Finds the memory for the next len bytes of the receive descriptor: local pieces from the current position on. Returns
 * their number. *error is PROTECTION (the memory of a piece is not, or no longer, granted), LENGTH (the message is
 * longer than the descriptor), or 0. Advances the position. After an error the position is
 * of no use, because the message ends.
 *
 *      segments     |.......|.....####|#######....|       rx_segment 1, rx_segment_used 5; #: the next len bytes
 *      pieces                     0000 1111111            */
static int receive_pieces(struct via_vi *vi, const struct via_work *w, size_t len, struct iovec *iov, uint32_t *error)
{
    int n = 0;
    *error = 0;
    while (len && vi->rx_segment < w->seg_count && n < VIA_MAX_SEGMENTS) {
        const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, vi->rx_segment)->Local;
        /* Lengths are read again for each piece. If the program has changed one, `room` may wrap; then only the
         * region's bounds protect the memory. */
        uint32_t room = s->Length - vi->rx_segment_used, take = len < room ? (uint32_t)len : room;
        if (take) {
            char *p = (char *)s->Data.Address + vi->rx_segment_used;
            if (!via_mem_grants(vi->nic, s->Handle, p, take, vi->ptag)) {
                *error = VIP_STATUS_PROTECTION_ERROR;
                return n;
            }
            iov[n++] = (struct iovec){p, take};
        }
        len -= take;
        vi->rx_segment_used += take;
        if (vi->rx_segment_used == s->Length) {
            vi->rx_segment++;
            vi->rx_segment_used = 0;
        }
    }
    if (len)
        *error = VIP_STATUS_LENGTH_ERROR;
    return n;
}

static size_t total(const struct iovec *iov, int n)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += iov[i].iov_len;
    return sum;
}

/* Fetches the memory that a REFERENCE frame's payload points at. Returns 0 or an error status. The list was written by
 * the peer, so each length is compared with the space that is left before the copy. The kernel or the mapping checks
 * whether the peer may give out the addresses (link operation `fetch`). */
static uint32_t fetch(struct via_vi *vi, const uint8_t *payload, size_t len, struct iovec *to, int n_to,
                      uint32_t *placed)
{
    const struct link_ops *ops = vi->nic->ops;
    /* The list moves through `to` from its beginning, so the caller passes an array that may change. */
    size_t n = len / sizeof(struct wire_reference), room = total(to, n_to);
    if (ops->fetch == NULL || len % sizeof(struct wire_reference))
        return VIP_STATUS_TRANSPORT_ERROR;
    for (size_t i = 0; i < n; i++) {
        struct wire_reference r;
        memcpy(&r, payload + i * sizeof r, sizeof r);
        if (r.len > room)
            return VIP_STATUS_LENGTH_ERROR;
        int e = ops->fetch(vi->nic->link, vi->peer, r.address, to, n_to, r.len);
        if (e != 0)
            return VIP_STATUS_TRANSPORT_ERROR;
        via_count_copy(vi, r.len);
        room -= r.len;
        *placed += (uint32_t)r.len;
        for (size_t left = r.len; left;) { /* advance in the local pieces */
            size_t step = left < to->iov_len ? left : to->iov_len;
            to->iov_base = (char *)to->iov_base + step;
            to->iov_len -= step;
            left -= step;
            if (to->iov_len == 0) {
                to++;
                n_to--;
            }
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- errors */

/* Refuses a message. Reliable: reports the reason to the sender and breaks the connection. Unreliable: only this
 * message is lost. */
static void refuse(struct via_vi *vi, uint32_t psn, uint32_t remote_status)
{
    if (!vi->reliable) {
        vi->rx_skip = 1;
        vi->rx_active = 0;
        return;
    }
    vi->error_psn = psn;
    vi->error_status = remote_status;
    vi->expected_psn = psn; /* do not acknowledge this frame: its message has not arrived */
    via_send_control(vi, WIRE_ERROR, psn, remote_status);
    via_break(vi, 1);
}

/* Completes the current receive descriptor with an error. Both sides get it: this one in its descriptor, a sender of
 * level "reliable reception" in its own. The descriptor completes first: refuse() breaks the connection, and all
 * descriptors still in the queue then complete as flushed. */
static void fail_receive(struct via_vi *vi, uint32_t psn, uint32_t status, uint32_t remote_status)
{
    struct via_work *w = via_work_at(&vi->recv, vi->recv.done);
    w->descriptor->CS.Length = vi->rx_len;
    via_complete_receive(vi, status);
    refuse(vi, psn, remote_status);
}

/* Returns the oldest receive descriptor for a message that begins, or NULL if none is posted. VIPL makes that an error
 * of the receiver: it is reported to the error handler, and ends a reliable connection. */
static struct via_work *take_receive(struct via_vi *vi, uint32_t psn)
{
    if (vk_likely(vi->recv.done != vi->recv.posted))
        return via_work_at(&vi->recv, vi->recv.done);
    VI_COUNT(vi, dropped_no_descriptor, 1);
    via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RECVQ_EMPTY);
    refuse(vi, psn, VIP_STATUS_REMOTE_DESC_ERROR);
    return NULL;
}

/* The message has arrived, but the program has deregistered the descriptor's own memory meanwhile, so the NIC may not
 * write a completion there. The status is written all the same, as an error, so that the program can reap the
 * descriptor. (whole_message() need not check this: a deregistration changes the epoch that it compares.) */
static void completion_denied(struct via_vi *vi, uint32_t psn)
{
    via_report(vi->nic, vi, NULL, via_work_at(&vi->recv, vi->recv.done)->descriptor, VIP_RESOURCE_DESCRIPTOR,
               VIP_ERROR_COMP_PROT);
    fail_receive(vi, psn, VIP_STATUS_PROTECTION_ERROR, VIP_STATUS_REMOTE_DESC_ERROR);
    vi->rx_skip = 0; /* no more pieces of this message follow */
}

/* Completes a receive. Immediate data and length are written before the status, because the status makes them valid
 * (via_complete). */
static void finish_receive(struct via_vi *vi, const struct wire_header *h, uint32_t status)
{
    const struct via_work *w = via_work_at(&vi->recv, vi->recv.done);
    VIP_DESCRIPTOR *d = w->descriptor;
    if (vk_unlikely(!via_mem_grants(vi->nic, w->mem, d, sizeof(VIP_CONTROL_SEGMENT), vi->ptag))) {
        completion_denied(vi, h->psn);
        return;
    }
    if (h->flags & WIRE_FLAG_IMMEDIATE) {
        d->CS.ImmediateData = h->immediate;
        status |= VIP_STATUS_IMMEDIATE;
    }
    /* An RDMA write with immediate data places nothing in this descriptor's segments (vipl.h). */
    d->CS.Length = (status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RECEIVE ? vi->rx_len : 0;
    via_complete_receive(vi, status);
}

/* ---------------------------------------------------------------- a piece of a send */

/* The first piece starts a receive descriptor, the last one completes it, and each piece continues where the previous
 * one ended. A piece without a first one belongs to a message that was abandoned or never began. */
void via_place_send(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    size_t len = h->len;
    if (h->flags & WIRE_FLAG_FIRST) {
        if (take_receive(vi, h->psn) == NULL)
            return;
        vi->rx_active = WIRE_SEND;
        vi->rx_first_psn = h->psn;
        vi->rx_piece = h->len;
        vi->rx_len = vi->rx_segment = vi->rx_segment_used = 0;
    } else if (vi->rx_active != WIRE_SEND) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    struct via_work *w = via_work_at(&vi->recv, vi->recv.done);
    uint32_t error = 0;
    if (vk_likely(!(h->flags & WIRE_FLAG_REFERENCE))) {
        if (len) {
            struct iovec iov[VIA_MAX_SEGMENTS];
            int n = receive_pieces(vi, w, len, iov, &error);
            for (int i = 0; i < n && !error; i++) {
                if (iov[i].iov_base != payload) { /* a link may have placed it already (link_place_ahead) */
                    memcpy(iov[i].iov_base, payload, iov[i].iov_len);
                    via_count_copy(vi, iov[i].iov_len);
                }
                payload += iov[i].iov_len;
                vi->rx_len += (uint32_t)iov[i].iov_len;
            }
        }
    } else {
        struct iovec iov[VIA_MAX_SEGMENTS];
        struct wire_reference r;
        size_t want = 0;
        for (size_t i = 0; i + sizeof r <= len; i += sizeof r) {
            memcpy(&r, payload + i, sizeof r);
            /* Clamp invented lengths, so that their sum cannot wrap to a small one. */
            want += r.len <= VIA_MAX_TRANSFER ? r.len : VIA_MAX_TRANSFER + 1;
        }
        /* Find space for the sum of all pieces before fetching any. */
        int n = receive_pieces(vi, w, want, iov, &error);
        if (!error)
            error = fetch(vi, payload, len, iov, n, &vi->rx_len);
        if (vi->state != VIP_STATE_CONNECTED)
            return; /* the peer failed meanwhile */
    }
    if (vk_unlikely(error || vi->rx_len > vi->attributes.MaxTransferSize)) {
        fail_receive(vi, h->psn, error ? error : VIP_STATUS_LENGTH_ERROR, VIP_STATUS_REMOTE_DESC_ERROR);
        return;
    }
    VIA_OBSERVE(vi->nic, placed, vi, h->psn, h->len, 1);
    if (h->flags & WIRE_FLAG_LAST) {
        vi->rx_active = 0;
        VI_COUNT(vi, messages_received, 1);
        VI_COUNT(vi, bytes_received, vi->rx_len);
        finish_receive(vi, h, VIP_STATUS_OP_RECEIVE);
    }
}

/* ---------------------------------------------------------------- a piece of an RDMA write */

/* The write is not granted. The error is reported in the receive descriptor if the write would have consumed one, else
 * to the handler. VIPL: a refused write with immediate data still consumes the receive, which reports the error. */
static void refuse_write(struct via_vi *vi, const struct wire_header *h)
{
    VI_COUNT(vi, dropped_protection, 1);
    vi->rx_active = 0;
    if ((h->flags & WIRE_FLAG_IMMEDIATE) && vi->recv.done != vi->recv.posted) {
        vi->rx_len = 0;
        via_work_at(&vi->recv, vi->recv.done)->descriptor->CS.Length = 0;
        via_complete_receive(vi, VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_OP_REMOTE_RDMA_WRITE);
    } else
        via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAW_PROT);
    refuse(vi, h->psn, VIP_STATUS_RDMA_PROT_ERROR);
}

/* Without immediate data the target's program gets no notification: it can only poll the last word. With it, the write
 * needs a receive, although its data is in place already: without one, the connection breaks. */
static void finish_write(struct via_vi *vi, const struct wire_header *h)
{
    vi->rx_active = 0;
    if ((h->flags & WIRE_FLAG_IMMEDIATE) && take_receive(vi, h->psn) == NULL)
        return;
    VI_COUNT(vi, messages_received, 1);
    VI_COUNT(vi, rdma_writes_received, 1);
    VI_COUNT(vi, bytes_received, vi->rx_len);
    if (h->flags & WIRE_FLAG_IMMEDIATE)
        finish_receive(vi, h, VIP_STATUS_OP_REMOTE_RDMA_WRITE);
}

/* The first frame names the destination once for the whole write; every piece is checked against the region again. The
 * remaining length (rx_left) can only shrink, so no piece can write beyond the range granted to the first one. */
void via_place_write(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    size_t len = h->len;
    if (h->flags & WIRE_FLAG_FIRST) {
        struct wire_write w;
        if (len < sizeof w) {
            NIC_COUNT(vi->nic, dropped_malformed, 1);
            return;
        }
        memcpy(&w, payload, sizeof w);
        payload += sizeof w;
        len -= sizeof w;
        vi->rx_active = WIRE_WRITE;
        vi->rx_first_psn = h->psn;
        vi->rx_piece = h->len;
        vi->rx_len = 0;
        vi->rx_address = w.address;
        vi->rx_handle = w.handle;
        vi->rx_left = w.len;
        if (h->flags & WIRE_FLAG_PLACED && (vi->lossless || vi->nic->ops->card) && vi->attributes.EnableRdmaWrite) {
            /* The sender stored it, after the same checks on our table, or its card did. */
            vi->rx_len = w.len;
            finish_write(vi, h);
            return;
        }
        if (h->flags & WIRE_FLAG_PLACED || !via_rdma_granted(vi, VIA_RIGHT_WRITE, w.handle, w.address, w.len)) {
            refuse_write(vi, h);
            return;
        }
    } else if (vi->rx_active != WIRE_WRITE) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    /* A piece may be shorter than the rest only if others follow; the last piece must end exactly where the write ends.
     */
    uint32_t last = h->flags & WIRE_FLAG_LAST, error = 0;
    /* A reference is the whole write in one frame; its payload is the list of addresses, not the data. */
    uint32_t n = h->flags & WIRE_FLAG_REFERENCE ? vi->rx_left : (uint32_t)len;
    if (n > vi->rx_left || (last && n != vi->rx_left)) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    /* Check again for each piece: the region may have been deregistered since the first. */
    if (n && !via_rdma_granted(vi, VIA_RIGHT_WRITE, vi->rx_handle, vi->rx_address, n)) {
        refuse_write(vi, h);
        return;
    }
    uint8_t *to = (uint8_t *)(uintptr_t)vi->rx_address;
    if (h->flags & WIRE_FLAG_REFERENCE) {
        struct iovec iov = {to, n};
        uint32_t placed = 0;
        /* The receiver copies once, from the sender's memory; the link stores the last word last. */
        error = fetch(vi, payload, len, &iov, 1, &placed);
        if (vi->state != VIP_STATE_CONNECTED)
            return; /* the peer failed meanwhile */
        if (!error && placed != n)
            error = VIP_STATUS_TRANSPORT_ERROR;
        /* Orders the stores of the fetch, which the kernel may have made, before the completion and the
         * acknowledgement. */
        vk_fence_full();
    } else if (n && to != payload) {
        if (last)
            vk_copy_last_word_last(to, payload, n);
        else
            memcpy(to, payload, n);
        via_count_copy(vi, n);
    }
    if (error) {
        via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAW_ABORT);
        refuse(vi, h->psn, VIP_STATUS_RDMA_PROT_ERROR);
        return;
    }
    vi->rx_address += n;
    vi->rx_left -= n;
    vi->rx_len += n;
    VIA_OBSERVE(vi->nic, placed, vi, h->psn, n, 0);
    if (last)
        finish_write(vi, h);
}

/* ---------------------------------------------------------------- incomplete messages */

/* Unreliable: lost pieces are not retransmitted. A send whose middle was lost completes as partial. */
void via_abandon_message(struct via_vi *vi)
{
    if (vi->rx_active == WIRE_SEND) {
        via_work_at(&vi->recv, vi->recv.done)->descriptor->CS.Length = vi->rx_len;
        vi->rx_active = 0;
        via_complete_receive(vi, VIP_STATUS_PARTIAL_ERROR | VIP_STATUS_TRANSPORT_ERROR);
    } else if (vi->rx_active == WIRE_WRITE) {
        vi->rx_active = 0;
        via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAW_ABORT);
    }
    vi->rx_skip = 1;
}
