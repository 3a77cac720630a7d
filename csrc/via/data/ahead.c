/*
 * Finds the place of frames that arrive ahead of a missing one (reorder.c), so that their bytes are copied there at
 * once. Without this, a link that loses one frame in a hundred copies nearly every byte twice: some frame is always
 * missing, and all later ones would be kept in memory of their own.
 *
 *    message      first                             first of the next
 *              ----+-----+-----+-----+-----+-----+----+--- psn ->
 *    piece         |  0  |  1  | gap |  3  |  4  | 0  |       place of piece k: k * (bytes per piece)
 *                              ^ expected
 *
 * A frame shows the message that it belongs to: its `immediate` is the number of its piece, unless it carries immediate
 * data. All pieces of a message but the last have one length. So the message in progress needs no further state. Later
 * messages lie in later receive descriptors. The *cursor* is the number of a message's first frame and the index of its
 * descriptor. It advances when the last frame of its message arrives, in order or not.
 *
 * Only the bytes are placed early. Everything that a program or a peer could notice, such as lengths, completions,
 * errors and acknowledgements, waits for the frame's turn (place.c). Therefore frames in doubt are simply not placed
 * early. The last piece of an RDMA write never is: a program may poll its last word.
 *
 * The piece number was written by the peer. A wrong one can only misplace bytes within the posted memory of the peer's
 * own messages: each place is checked against the descriptor's segments, or the range that is granted to the write.
 * When the frame's turn comes, its place is computed again from the bytes in front of it (via_next_place). If the two
 * differ, the frame counts as missing.
 *
 * Only the NIC's owner calls these functions.
 */
#include "link/frame_format.h"
#include "via/data/data.h"
#include "via/data/place.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/vi.h"
#include "via/work.h"

/* The number of a frame's piece; returns 0 if the frame does not show it. */
static int piece_of(const struct wire_header *h, uint32_t *k)
{
    *k = h->flags & WIRE_FLAG_FIRST ? 0 : h->immediate;
    return h->flags & WIRE_FLAG_FIRST || (h->immediate && !(h->flags & WIRE_FLAG_IMMEDIATE));
}

/* Returns the place of len bytes at `offset` of a send, or NULL unless they lie in one segment of the descriptor. */
static void *place_in_receive(struct via_vi *vi, uint32_t index, uint64_t offset, size_t len)
{
    const struct via_work *w = via_work_at(&vi->recv, index);
    if ((int32_t)(vi->recv.posted - index) <= 0 || w->error || offset + len > vi->attributes.MaxTransferSize)
        return NULL;
    for (uint32_t i = 0; i < w->seg_count; i++) {
        const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, i)->Local;
        uint32_t have = s->Length; /* read once: the descriptor is the program's memory */
        if (offset < have) {
            char *to = (char *)s->Data.Address + offset;
            return len <= have - offset && via_mem_grants(vi->nic, s->Handle, to, len, vi->ptag) ? to : NULL;
        }
        offset -= have;
    }
    return NULL;
}

/* The same for the RDMA write in progress. Its bytes begin rx_len before the next address; piece 0 is shorter, because
 * it has the wire_write block. */
static void *place_in_write(struct via_vi *vi, uint64_t offset, size_t len)
{
    uint64_t total = (uint64_t)vi->rx_len + vi->rx_left, to = vi->rx_address - vi->rx_len + offset;
    if (offset > total || len > total - offset || !via_rdma_granted(vi, VIA_RIGHT_WRITE, vi->rx_handle, to, len))
        return NULL;
    return (void *)(uintptr_t)to;
}

/* Sets the cursor to the message in progress, or to the next one, if it lags behind. index: the first receive that no
 * message before the cursor takes. */
static void catch_up(struct via_vi *vi)
{
    struct via_cursor *c = &vi->rx_cursor;
    uint32_t first = vi->rx_active ? vi->rx_first_psn : vi->expected_psn;
    if (!c->valid || wire_before(c->first, first))
        *c = (struct via_cursor){.valid = 1, .first = first, .index = vi->recv.done};
}

/* Moves the cursor to the next message, behind the last frame h of its own. */
static void advance(struct via_vi *vi, const struct wire_header *h)
{
    struct via_cursor *c = &vi->rx_cursor;
    c->index += (h->version_kind & 15) == WIRE_SEND || h->flags & WIRE_FLAG_IMMEDIATE;
    c->first = h->psn + 1;
    c->piece = 0;
    /* Receives that were found wrong when they were posted take no message. */
    while ((int32_t)(vi->recv.posted - c->index) > 0 && via_work_at(&vi->recv, c->index)->error)
        c->index++;
}

/* Returns the place of len bytes of the message that begins with frame `first`, from its piece k on; NULL: unknown. */
static void *place_of(struct via_vi *vi, int kind, uint32_t first, uint32_t k, size_t len)
{
    int active = vi->rx_active && first == vi->rx_first_psn;
    uint32_t piece = active ? vi->rx_piece : first == vi->rx_cursor.first ? vi->rx_cursor.piece : 0;
    uint64_t offset = (uint64_t)k * piece;
    if (piece == 0 || len == 0 || (active && kind != vi->rx_active))
        return NULL;
    if (kind == WIRE_SEND)
        return place_in_receive(vi, active ? vi->recv.done : vi->rx_cursor.index, offset, len);
    return active && k ? place_in_write(vi, offset - sizeof(struct wire_write), len) : NULL;
}

void *via_place_early(struct via_vi *vi, const struct wire_header *h)
{
    struct via_cursor *c = &vi->rx_cursor;
    int kind = h->version_kind & 15, last = h->flags & WIRE_FLAG_LAST;
    uint32_t k;
    void *to = NULL;
    catch_up(vi);
    if (!piece_of(h, &k))
        return NULL;
    uint32_t first = h->psn - k, *piece = vi->rx_active && first == vi->rx_first_psn ? &vi->rx_piece : &c->piece;
    if (first == c->first && !last && c->piece == 0)
        c->piece = h->len;
    if (!(h->flags & (WIRE_FLAG_REFERENCE | WIRE_FLAG_PLACED)) && (last ? h->len <= *piece : h->len == *piece) &&
        !(last && kind == WIRE_WRITE))
        to = place_of(vi, kind, first, k, h->len);
    if (last && first == c->first)
        advance(vi, h);
    return to;
}

void *via_place_behind(struct via_vi *vi, const struct wire_header *h, size_t len)
{
    int kind = h->version_kind & 15;
    uint32_t k, n = h->len ? (uint32_t)((len + h->len - 1) / h->len) : 0;
    if (vi->has_gap && via_reorder_holds(vi, h->psn + 1, n))
        return NULL; /* their bytes may be there already */
    if (vi->expected_psn == h->psn + 1)
        return via_next_place(vi, kind, len);
    if (!vi->has_gap || !via_reorder_holds(vi, h->psn, 1) || h->flags & WIRE_FLAG_LAST || !piece_of(h, &k))
        return NULL;
    return place_of(vi, kind, h->psn - k, k + 1, len);
}

void *via_next_place(struct via_vi *vi, int kind, size_t len)
{
    if (vi->rx_skip || vi->rx_active != kind || kind == WIRE_READ)
        return NULL;
    if (kind == WIRE_WRITE) {
        void *to = (void *)(uintptr_t)vi->rx_address;
        return len <= vi->rx_left && via_rdma_granted(vi, VIA_RIGHT_WRITE, vi->rx_handle, vi->rx_address, len) ? to
                                                                                                               : NULL;
    }
    const struct via_work *w = via_work_at(&vi->recv, vi->recv.done);
    if (vi->rx_segment >= w->seg_count || vi->rx_len + len > vi->attributes.MaxTransferSize)
        return NULL;
    const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, vi->rx_segment)->Local;
    char *to = (char *)s->Data.Address + vi->rx_segment_used;
    return len <= s->Length - vi->rx_segment_used && via_mem_grants(vi->nic, s->Handle, to, len, vi->ptag) ? to : NULL;
}

void *via_first_place(struct via_vi *vi, size_t len)
{
    return place_in_receive(vi, vi->recv.done, 0, len);
}
