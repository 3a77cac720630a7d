/*
 * RDMA by the link's card (verbs): the card moves the data between the registered memory of both processes, and the
 * target's processor takes no part. Sends, control frames and short writes stay frames.
 *
 *   write    | card: data |--- end ---> placed: no frame, or one for immediate data      (tx.c goes on)
 *   read     | card: data |--- end ---> complete                                         (read.c goes on)
 *   either   | refused, or failed |---> frames: the target's provider produces VIPL's errors
 *
 * A write of one frame goes as a frame: it is one packet either way, and what follows need not wait for it. All reads
 * go by the card, because nothing waits for a read.
 *
 * Order: card and frames are two ways, and neither knows of the other. So a write begins when everything sent before it
 * is acknowledged. It stays at the head of the send queue until it has ended, and what follows it waits. Only writes
 * that follow it directly begin at once, because the card keeps their order. A write with immediate data is the last of
 * such a row, because its frame comes after its data.
 *
 *   send queue   | ... acknowledged | write, at the card | write, at the card | send
 *                                     next                                      waits
 *
 * A work at the card has not "started" in the sense of tx.c: it has no number, and nothing of it is sent again by
 * reliable.c.
 *
 * Rights: the target's provider grants access to a region for one VI and its tag (via_link_grant), and the link gives
 * the peer a key. The key is valid as long as the registration. The card checks bounds and rights by it. A tag is
 * checked when the key is given.
 *
 * Only the NIC's owner calls these functions.
 */
#include <errno.h>

#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/limits.h"
#include "via/link_services.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/observer.h"
#include "via/vi.h"
#include "via/work.h"

_Static_assert(VIA_RIGHT_WRITE == LINK_MAY_WRITE && VIA_RIGHT_READ == LINK_MAY_READ, "the link uses the same bits");

/* Returns the card's registration of the region, made at its first use. Registering pins all pages of a region, which
 * programs that never use RDMA need not pay for. NULL: memory is exhausted. */
static struct link_memory *memory_of(struct via_nic *nic, struct via_region *r)
{
    if (r->memory == NULL)
        r->memory = nic->ops->card->add_memory(nic->link, (void *)(uintptr_t)r->address, r->len, r->rights);
    return r->memory;
}

/* Collects the work's local memory. Returns the number of pieces, or -1 if frames have to serve: too many pieces, or
 * memory that is no longer granted, which the frames' path reports. */
static int collect(struct via_vi *vi, const struct via_work *w, struct link_piece *pieces)
{
    uint32_t left = w->len;
    int n = 0;
    for (uint32_t i = 1; left && i < w->seg_count; i++) {
        const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, i)->Local;
        uint32_t handle = s->Handle, len = s->Length;
        void *address = s->Data.Address;
        if (len == 0)
            continue;
        if (n == LINK_CARD_PIECES || len > left || !via_mem_grants(vi->nic, handle, address, len, vi->ptag))
            return -1;
        pieces[n] = (struct link_piece){address, len, memory_of(vi->nic, &vi->nic->regions[handle & 0xFFFF])};
        if (pieces[n++].memory == NULL)
            return -1;
        left -= len;
    }
    return left ? -1 : n;
}

/* Hands the work at `index` to the card. Returns the result of the link. */
static int begin(struct via_vi *vi, struct via_work *w, uint32_t index, uint32_t right)
{
    const VIP_ADDRESS_SEGMENT *remote = &via_segment(w->descriptor, 0)->Remote;
    struct link_piece pieces[LINK_CARD_PIECES];
    int n = collect(vi, w, pieces);
    if (n <= 0)
        return -EOPNOTSUPP;
    struct link_rdma rdma = {.right = right,
                             .key = vi->peer_key,
                             .vi = vi->peer_vi,
                             .handle = remote->Handle,
                             .address = remote->Data.AddressBits,
                             .len = w->len,
                             .pieces = pieces,
                             .n_pieces = n,
                             .owner = vi,
                             .index = index};
    int error = vi->nic->ops->card->start(vi->nic->link, vi->peer, &rdma);
    if (error == 0) {
        w->how = VIA_HOW_CARD;
        vi->card_open++;
    }
    return error;
}

/* Injected faults apply to frames, so a NIC with faults uses frames. */
static int serves(const struct via_vi *vi)
{
    return vi->reliable && !vi->lossless && !vi->nic->lossy;
}

static int is_long_write(const struct via_vi *vi, const struct via_work *w)
{
    return (w->control & VIP_CONTROL_OP_MASK) == VIP_CONTROL_OP_RDMAWRITE && vi->peer_rdma_write &&
           w->len + sizeof(struct wire_write) > vi->chunk;
}

/* Begins the writes that directly follow the one at the head of the queue. */
static void begin_row(struct via_vi *vi)
{
    struct via_queue *q = &vi->send;
    for (; vi->card_next != q->posted; vi->card_next++) {
        const struct via_work *before = via_work_at(q, vi->card_next - 1);
        struct via_work *w = via_work_at(q, vi->card_next);
        if ((before->control & VIP_CONTROL_IMMEDIATE) || (vi->deferring && vi->card_next == vi->hold_from) ||
            w->error || (w->control & VIP_CONTROL_QFENCE) || !is_long_write(vi, w) ||
            begin(vi, w, vi->card_next, VIA_RIGHT_WRITE) != 0)
            return;
    }
}

/* Prepares the end of a write that the card has placed: one frame for immediate data, else none. */
static void finish_placed(struct via_vi *vi, struct via_work *w)
{
    w->n_frames = w->control & VIP_CONTROL_IMMEDIATE ? 1 : 0;
    w->wait_ack = w->n_frames != 0;
    w->first_psn = vi->next_psn;
    vi->next_psn += w->n_frames;
    w->started = 1;
    VIA_OBSERVE(vi->nic, doorbell, vi, w);
}

int via_card_write(struct via_vi *vi, struct via_work *w)
{
    if (w->how == VIA_HOW_PLACED) {
        finish_placed(vi, w);
        return 1;
    }
    if (w->how != VIA_HOW_CARD) {
        if (!serves(vi) || !is_long_write(vi, w))
            return 1;
        if (vi->una_psn != vi->next_psn)
            return 0; /* the acknowledgement calls again */
        int error = begin(vi, w, vi->send.next, VIA_RIGHT_WRITE);
        if (error == -EAGAIN)
            via_stall(vi);
        if (error)
            return error != -EAGAIN;
        vi->card_next = vi->send.next + 1;
    }
    begin_row(vi);
    return 0;
}

int via_card_read(struct via_vi *vi, struct via_work *w, uint32_t index)
{
    if (!serves(vi) || !vi->peer_rdma_read || w->len == 0)
        return 0;
    int error = begin(vi, w, index, VIA_RIGHT_READ);
    if (error == -EAGAIN)
        via_stall(vi);
    return error == 0 ? 1 : error == -EAGAIN ? -1 : 0;
}

void via_card_stop(struct via_vi *vi)
{
    if (vk_unlikely(vi->card_open))
        vi->nic->ops->card->cancel(vi->nic->link, vi->peer);
}

/* Service. The operation has ended. A failed one starts again: by the card, or by frames if the link refuses. Not from
 * here, because the link may be about to end the other operations of the peer. */
void via_link_rdma_done(struct link_client *client, void *owner, uint32_t index, int error)
{
    struct via_vi *vi = owner;
    struct via_work *w = via_work_at(&vi->send, index);
    (void)client;
    vi->card_open--;
    if (vi->state != VIP_STATE_CONNECTED)
        return;
    if ((w->control & VIP_CONTROL_OP_MASK) == VIP_CONTROL_OP_RDMAREAD) {
        via_read_by_card(vi, index, error != 0);
        return;
    }
    w->how = error ? VIA_HOW_FRAMES : VIA_HOW_PLACED;
    if (error) {
        via_stall(vi);
        return;
    }
    VI_COUNT(vi, rdma_writes_by_card, 1);
    VI_COUNT(vi, bytes_sent, w->len);
    if (index == vi->send.next)
        via_transmit(vi);
}

/* Service: what a VI of this NIC grants to its peer. */
int via_link_grant(struct link_client *client, const struct link_peer *peer, uint16_t number, uint32_t key,
                   uint32_t handle, struct link_grant *grant)
{
    struct via_nic *nic = via_nic_of(client);
    struct via_vi *vi = number < VIA_MAX_VI ? nic->vi_by_number[number] : NULL;
    uint32_t index = handle & 0xFFFF;
    if (vi == NULL || vi->state != VIP_STATE_CONNECTED || vi->key != key || vi->peer != peer)
        return -1;
    struct via_region *r = index < VIA_MAX_REGIONS ? &nic->regions[index] : NULL;
    if (!serves(vi) || handle == 0 || r == NULL || r->handle != handle || !via_tags_match(r->ptag, vi->ptag))
        return 0;
    uint32_t rights =
        (vi->attributes.EnableRdmaWrite ? VIA_RIGHT_WRITE : 0u) | (vi->attributes.EnableRdmaRead ? VIA_RIGHT_READ : 0u);
    rights &= r->rights;
    if (rights == 0 || memory_of(nic, r) == NULL)
        return 0;
    *grant = (struct link_grant){r->memory, r->address, r->len};
    return (int)rights;
}
