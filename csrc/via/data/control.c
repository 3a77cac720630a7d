/*
 * The way of frames to the link, except for those of the short path (tx.c): control frames, and frames deferred because
 * the link was full.
 *
 * Data frames that find the link full stay in their descriptors, and the VI goes on the stall list (tx.c). Control
 * frames have no descriptor. Those that a timer repeats are dropped; the others are copied to nic->deferred. No frame
 * overtakes a deferred one for the same peer:
 *
 *    nic->deferred --> to A --> to B --> to A ...        oldest first; via_drive sends what the link accepts
 *
 * Only the NIC's owner calls these functions.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/list.h"
#include "link/flat.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/vi.h"

/* Fills in a frame that belongs to no connection: handshakes, RESET. */
void via_frame_init(struct via_nic *nic, struct link_frame *f, int kind)
{
    memset(&f->header, 0, sizeof f->header);
    f->header.version_kind = wire_version_kind(kind);
    f->header.src_port = nic->limits.port;
    f->header_len = sizeof f->header;
    f->n_iov = 0;
    f->payload_len = 0;
    f->iov = NULL;
}

/* True if the list has a frame for the peer before `end`. */
static int is_deferred(const struct link_flat *list, const struct link_flat *end, const struct link_peer *peer)
{
    for (; list != end; list = list->next)
        if (list->peer == peer)
            return 1;
    return 0;
}

/* Notes a lasting failure of the route to a peer. The timers end its connections, because the callers still use them.
 * If more than VIA_FAILED_PEERS fail before that, the others are noted when they fail again. */
static void note_failed(struct via_nic *nic, struct link_peer *peer)
{
    size_t i = 0;
    while (i < nic->n_failed_peers && nic->failed_peers[i] != peer)
        i++;
    if (i == nic->n_failed_peers && i < VIA_FAILED_PEERS)
        nic->failed_peers[nic->n_failed_peers++] = peer;
    via_timer(nic, nic->now);
}

/* Sends frames: all frames of connections except those of the short path. Deferred frames for the same peer go first.
 * Returns how many the link accepted; 0 or below: none. After a lasting failure the connection ends later, by the
 * timers, because the callers still use it. */
int via_link_send(struct via_nic *nic, struct link_peer *peer, struct link_frame *frames, int n)
{
    if (vk_unlikely(nic->deferred)) {
        via_send_deferred(nic);
        if (is_deferred(nic->deferred, NULL, peer))
            return -EAGAIN; /* no frame overtakes a deferred one */
    }
    int sent = nic->ops->send(nic->link, peer, frames, n);
    if (vk_likely(sent > 0))
        NIC_COUNT(nic, frames_sent, sent);
    else {
        NIC_COUNT(nic, send_stalls, 1);
        if (vk_unlikely(sent < 0 && sent != -EAGAIN))
            note_failed(nic, peer);
    }
    return sent;
}

int via_send_block(struct via_vi *vi, int kind, uint8_t flags, uint32_t psn, uint32_t immediate, const void *block,
                   size_t len)
{
    struct link_frame f;
    via_address_frame(vi, &f, kind, psn);
    f.header.flags |= flags;
    f.header.immediate = immediate;
    /* The block travels in the frame itself, so its memory may be reused when this returns. */
    memcpy(f.block.bytes, block, len);
    f.header.len = (uint16_t)len;
    f.header_len += (uint32_t)len;
    int sent = via_link_send(vi->nic, vi->peer, &f, 1);
    if (sent == 1)
        via_ack_piggybacked(vi);
    return sent;
}

/* Sends a control frame. An acknowledgement or a probe that finds the link full is not deferred: the first is then owed
 * (via_send_ack), the second is repeated by its timer. The frames that nothing repeats (ERROR, DISCONNECT, NAK) are
 * deferred. */
int via_send_control(struct via_vi *vi, int kind, uint32_t psn, uint32_t immediate)
{
    struct link_frame f;
    via_address_frame(vi, &f, kind, psn);
    f.header.immediate = immediate;
    int sent = via_link_send(vi->nic, vi->peer, &f, 1);
    if (sent == 1)
        via_ack_piggybacked(vi);
    else if (kind != WIRE_ACK && kind != WIRE_PROBE)
        via_defer(vi->nic, vi->peer, &f);
    if (kind == WIRE_ACK && sent == 1)
        VI_COUNT(vi, acks_sent, 1);
    else if (kind == WIRE_NAK)
        VI_COUNT(vi, naks_sent, 1);
    return sent == 1;
}

/* ---------------------------------------------------------------- frames deferred because the link was full */

void via_defer(struct via_nic *nic, struct link_peer *peer, const struct link_frame *f)
{
    struct link_flat *flat = nic->n_deferred < VIA_MAX_DEFERRED ? link_flatten(peer, f) : NULL;
    if (flat == NULL) { /* as if the link had lost it: the peer causes replies and does not read them */
        NIC_COUNT(nic, dropped_backlog, 1);
        return;
    }
    nic->n_deferred++;
    VK_LIST_APPEND(nic->deferred, flat, next);
    via_timer(nic, nic->now); /* wake a sleeping thread: there is work */
}

/* Returns 1 if the frame stays deferred: the link has not accepted it. Not via_link_send, which would send the deferred
 * frames first. */
static int finds_no_room(struct via_nic *nic, const struct link_flat *flat)
{
    struct link_frame f;
    struct iovec iov;
    link_unflatten(flat, &f, &iov);
    int sent = nic->ops->send(nic->link, flat->peer, &f, 1);
    return sent == 0 || sent == -EAGAIN;
}

/* Sends the deferred frames that the link accepts. The frames for each peer keep their order; the list is short, and is
 * walked as a whole. */
void via_send_deferred(struct via_nic *nic)
{
    for (struct link_flat **p = &nic->deferred; *p;) {
        struct link_flat *flat = *p;
        /* In order for each peer; a peer whose queue is full does not delay the others. A frame whose route has failed
         * for good is dropped here, and counts as sent. */
        if (is_deferred(nic->deferred, flat, flat->peer) || finds_no_room(nic, flat)) {
            p = &flat->next;
            continue;
        }
        NIC_COUNT(nic, frames_sent, 1);
        *p = flat->next;
        nic->n_deferred--;
        free(flat);
    }
}

/* Drops the frames deferred for a peer that is gone (NULL: for all peers). */
void via_drop_deferred(struct via_nic *nic, const struct link_peer *peer)
{
    for (struct link_flat **p = &nic->deferred; *p;) {
        struct link_flat *flat = *p;
        if (peer && flat->peer != peer) {
            p = &flat->next;
            continue;
        }
        *p = flat->next;
        nic->n_deferred--;
        free(flat);
    }
}
