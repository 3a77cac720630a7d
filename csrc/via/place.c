/*
 * Where the bytes of a message go: into receive descriptors, or into regions that grant it.
 *
 * rx.c has found that a frame belongs to a connection and that it is its turn. What is in it was still written by
 * somebody else, and is judged here: whether there is a descriptor, whether it has room, whether the memory is
 * granted. Nothing is written anywhere else than into what the program has posted or registered for it.
 *
 *   a send    take_receive -> receive_pieces: from (rx_segment, rx_segment_used) on -> copy or fetch -> finish_receive
 *   a write   address, handle, length from the first frame -> via_write_granted, for each frame again -> finish_write
 *
 * The state between frames is in the VI: rx_active (in the middle of which kind of message), rx_len (bytes placed so
 * far), and the position. Frames come in order (rx.c sees to that), so a position is enough.
 *
 * What cannot be taken: on a reliable connection the sender is told why (ERROR, with status bits for its descriptor)
 * and the connection breaks, on both sides. On an unreliable one only the message is lost, and its pieces are
 * skipped until the next first one.
 */
#include "place.h"

#include <string.h>

#include "../base/copy.h"
#include "tap.h"

/* ---------------------------------------------------------------- placing bytes */

/* Where the next len bytes of the receive descriptor go: local pieces from the present position on. Returns their
 * number, and what is wrong in *error: PROTECTION (memory not granted any more) or LENGTH (the message is longer than
 * the descriptor). */
static int receive_pieces(struct via_vi *vi, const struct via_work *w, size_t len, struct iovec *iov, uint32_t *error)
{
    int n = 0;
    *error = 0;
    while (len && vi->rx_segment < w->seg_count && n < VIA_MAX_SEGMENTS) {
        const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, vi->rx_segment)->Local;
        /* Lengths are read anew for each piece: where a program has changed one, `room` may wrap, and then it is the
         * region's bounds alone that hold. */
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

/* The payload of a REFERENCE frame: fetches what it points at. 0 or an error status. The list was written by the peer:
 * lengths are added up against our own room before each copy. Whether the addresses are its to give is the kernel's
 * affair, or the mapping's (link operation `fetch`). */
static uint32_t fetch(struct via_vi *vi, const uint8_t *payload, size_t len, struct iovec *to, int n_to,
                      uint32_t *placed)
{
    const struct link_ops *ops = vi->nic->ops;
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
        for (size_t left = r.len; left;) { /* move on in the local pieces */
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

/* ---------------------------------------------------------------- when a message cannot be taken */

/* Reliable: stop, tell the sender why, break. Unreliable: only this message is lost. */
static void refuse(struct via_vi *vi, uint32_t psn, uint32_t remote_status)
{
    if (!vi->reliable) {
        vi->rx_skip = 1;
        vi->rx_active = 0;
        return;
    }
    vi->error_psn = psn;
    vi->error_status = remote_status;
    vi->expected_psn = psn; /* this frame is not acknowledged: its message has not arrived */
    via_send_control(vi, WIRE_ERROR, psn, remote_status);
    via_break(vi, 1);
}

/* The receive descriptor in hand completes with an error. Both sides learn of it: this one in its descriptor, a sender
 * of level "reliable reception" in its own. */
static void fail_receive(struct via_vi *vi, uint32_t psn, uint32_t status, uint32_t remote_status)
{
    struct via_work *w = via_work_at(&vi->recv, vi->recv.done);
    w->descriptor->CS.Length = vi->rx_len;
    via_complete_receive(vi, status);
    refuse(vi, psn, remote_status);
}

/* The receive descriptor for a message that begins, the oldest; NULL if none is posted. VIPL: that is an error of the
 * receiver, told by its error handler, which on a reliable connection ends the connection. */
static struct via_work *take_receive(struct via_vi *vi, uint32_t psn)
{
    if (vk_likely(vi->recv.done != vi->recv.posted))
        return via_work_at(&vi->recv, vi->recv.done);
    VI_COUNT(vi, dropped_no_descriptor, 1);
    via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RECVQ_EMPTY);
    refuse(vi, psn, VIP_STATUS_REMOTE_DESC_ERROR);
    return NULL;
}

/* The message is here, but the program has deregistered the descriptor's own memory meanwhile: no completion may stand
 * there. It is written all the same, so that the descriptor can be taken back, as an error. (whole_message() need not
 * look: a deregistration ends what it knows.) */
static void completion_denied(struct via_vi *vi, uint32_t psn)
{
    via_report(vi->nic, vi, NULL, via_work_at(&vi->recv, vi->recv.done)->descriptor, VIP_RESOURCE_DESCRIPTOR,
               VIP_ERROR_COMP_PROT);
    fail_receive(vi, psn, VIP_STATUS_PROTECTION_ERROR, VIP_STATUS_REMOTE_DESC_ERROR);
    vi->rx_skip = 0; /* nothing of this message is to come */
}

/* The message is here. Immediate data and length are written before the status, which is what makes them valid
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
    /* of an RDMA write with immediate data nothing went into this descriptor's buffer */
    d->CS.Length = (status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RECEIVE ? vi->rx_len : 0;
    via_complete_receive(vi, status);
}

/* ---------------------------------------------------------------- a piece of a send */

/* The first piece takes a receive descriptor, the last completes it; each goes on where the one before ended. A
 * piece without a first one belongs to a message that was given up, or never began. */
void via_place_send(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    size_t len = h->len;
    if (h->flags & WIRE_FLAG_FIRST) {
        if (take_receive(vi, h->psn) == NULL)
            return;
        vi->rx_active = WIRE_SEND;
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
                if (iov[i].iov_base != payload) { /* a link may have put it there (link_place_ahead) */
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
            /* So that a sum of invented lengths cannot wrap to a small one. */
            want += r.len <= VIA_MAX_TRANSFER ? r.len : VIA_MAX_TRANSFER + 1;
        }
        /* Room for the sum of all pieces is found before anything is fetched. */
        int n = receive_pieces(vi, w, want, iov, &error);
        if (!error)
            error = fetch(vi, payload, len, iov, n, &vi->rx_len);
        if (vi->state != VIP_STATE_CONNECTED)
            return; /* the peer was lost meanwhile */
    }
    if (vk_unlikely(error || vi->rx_len > vi->attributes.MaxTransferSize)) {
        fail_receive(vi, h->psn, error ? error : VIP_STATUS_LENGTH_ERROR, VIP_STATUS_REMOTE_DESC_ERROR);
        return;
    }
    VIA_TAP(vi->nic, via_tap_placed(vi, h->psn, h->len, 1));
    if (h->flags & WIRE_FLAG_LAST) {
        vi->rx_active = 0;
        VI_COUNT(vi, messages_received, 1);
        VI_COUNT(vi, bytes_received, vi->rx_len);
        finish_receive(vi, h, VIP_STATUS_OP_RECEIVE);
    }
}

/* ---------------------------------------------------------------- a piece of an RDMA write */

int via_write_granted(const struct via_vi *vi, uint32_t handle, uint64_t address, uint64_t len)
{
    if (!vi->attributes.EnableRdmaWrite)
        return 0;
    if (len == 0)
        return 1;
    return via_mem_grants(vi->nic, handle, (void *)(uintptr_t)address, len, vi->ptag) &&
           (vi->nic->regions[handle & 0xFFFF].rights & VIA_RIGHT_WRITE);
}

/* Not granted: reported in the receive descriptor if the write would have consumed one, else by the handler. VIPL: a
 * write with immediate data that is refused consumes the receive all the same, and says so in it. */
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

/* Without immediate data nobody at the target is told: it sees the last word change, if it looks. */
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

/* The first frame names the place, once for all; every piece is checked against the region again. What is left
 * (rx_left) may only shrink, so the pieces cannot write beyond what the first one was granted. */
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
        vi->rx_len = 0;
        vi->rx_address = w.address;
        vi->rx_handle = w.handle;
        vi->rx_left = w.len;
        if (h->flags & WIRE_FLAG_PLACED && vi->lossless && vi->attributes.EnableRdmaWrite) {
            /* the sender stored it, after the same checks on our table */
            vi->rx_len = w.len;
            finish_write(vi, h);
            return;
        }
        if (h->flags & WIRE_FLAG_PLACED || !via_write_granted(vi, w.handle, w.address, w.len)) {
            refuse_write(vi, h);
            return;
        }
    } else if (vi->rx_active != WIRE_WRITE) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    /* A piece may be shorter than the rest only if others follow; the last must end exactly where the write does. */
    uint32_t last = h->flags & WIRE_FLAG_LAST, error = 0;
    /* A reference is the whole write in one frame; its payload is the list of places, not the data. */
    uint32_t n = h->flags & WIRE_FLAG_REFERENCE ? vi->rx_left : (uint32_t)len;
    if (n > vi->rx_left || (last && n != vi->rx_left)) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    /* again for each piece: the region may have been deregistered since the first */
    if (n && !via_write_granted(vi, vi->rx_handle, vi->rx_address, n)) {
        refuse_write(vi, h);
        return;
    }
    uint8_t *to = (uint8_t *)(uintptr_t)vi->rx_address;
    if (h->flags & WIRE_FLAG_REFERENCE) {
        struct iovec iov = {to, n};
        uint32_t placed = 0;
        /* One copy by us, out of the sender's memory; the link stores the last word last. */
        error = fetch(vi, payload, len, &iov, 1, &placed);
        if (vi->state != VIP_STATE_CONNECTED)
            return; /* the peer was lost meanwhile */
        if (!error && placed != n)
            error = VIP_STATUS_TRANSPORT_ERROR;
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
    VIA_TAP(vi->nic, via_tap_placed(vi, h->psn, n, 0));
    if (last)
        finish_write(vi, h);
}

/* ---------------------------------------------------------------- a message that will not be whole */

/* Unreliable: what is missing stays missing. A message in pieces whose middle was lost completes as partial. */
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
