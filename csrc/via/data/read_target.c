/*
 * The target's side of RDMA reads (read.c has the requester's side and the protocol). Each request is answered at once,
 * straight from the region. It waits only if the link is full:
 *
 *    request --> granted? --> pieces --> link          full: vi->reads->answers, which the stall list continues
 *
 * An old request must not be served. Meanwhile the requester may have reported to the target's program that its read is
 * complete. That program may then have deregistered or unmapped the memory. A link that loses frames also delays and
 * duplicates some, and a request that waits for the link grows old, too. Therefore a request carries the number of the
 * data frame that its sender would have sent next. If the target has received that frame before it serves the request,
 * it replies "request again". The requester does so only if pieces are still missing.
 *
 * An old request must not end the connection either. The requester may have reported the completion over another
 * connection, or by other means. Then no number shows that a copy of the request is old, and the copy requests memory
 * that is no longer granted. So the target remembers the last VIA_READ_REQUESTS requests that it granted. A request
 * that it never granted is refused at once, and the connection breaks. A request that it granted before is *denied*,
 * and the requester insists if pieces are still missing. Only then is it refused.
 *
 *        |  --- READ(3, ...) ----------------------->  granted until a moment ago
 *        |  <-- READ 3: denied ---------------------
 *   3 is complete: no reply. Or it is not:
 *        |  --- READ(3, wanted 0) ------------------>  refused
 *        |  <-- ERROR(3, RDMA protection error) ----
 *
 * Only the NIC's owner calls these functions.
 */
#include <string.h>

#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/data/place.h"
#include "via/data/read.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/vi.h"

/* Accepts any length that our link can send and that is not below the smallest frame. If our path is narrower than the
 * requester assumes, the network fragments the frames. */
static int piece_is_possible(const struct via_vi *vi, uint32_t piece)
{
    return piece % 8 == 0 && piece >= via_piece_len(WIRE_LEAST_PAYLOAD) &&
           piece <= via_piece_len(vi->nic->limits.max_payload);
}

static int read_granted(const struct via_vi *vi, const struct wire_read *b)
{
    return via_rdma_granted(vi, VIA_RIGHT_READ, b->handle, b->address, b->len);
}

/* Records the request for was_granted() and is_old(): the last one with this index in the ring, and the highest number.
 */
static void note_granted(struct via_reads *r, const struct answer *a)
{
    const struct wire_read *b = &a->read;
    r->granted[a->number % VIA_READ_REQUESTS] = (struct granted){b->address, a->number, b->handle, b->len};
    if (!wire_before(a->number, r->seen))
        r->seen = a->number + 1;
}

/* True if exactly this request was granted before. A request with any changed field was not. */
static int was_granted(const struct via_vi *vi, const struct answer *a)
{
    const struct granted *g = &vi->reads->granted[a->number % VIA_READ_REQUESTS];
    const struct wire_read *b = &a->read;
    return g->len && g->number == a->number && g->address == b->address && g->handle == b->handle && g->len == b->len;
}

/* Refuses a request. VIPL: that is an error of the target as well, reported to its handler; the connection ends on both
 * sides. */
static void refuse(struct via_vi *vi, uint32_t number)
{
    VI_COUNT(vi, dropped_protection, 1);
    via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAR_PROT);
    vi->error_psn = number;
    vi->error_status = VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_OP_RDMA_READ;
    via_send_control(vi, WIRE_ERROR, vi->error_psn, vi->error_status);
    via_break(vi, 1);
}

/* Sends as many of the requested pieces as the link accepts, directly from the region. Returns 0 if some are left. */
static int send_pieces(struct via_vi *vi, struct answer *a)
{
    struct link_frame frames[VIA_BATCH];
    struct iovec iov[VIA_BATCH];
    uint32_t piece = a->read.piece, most = vi->nic->limits.max_batch;
    while (a->read.wanted) {
        int n = 0;
        /* From the lowest bit on; bits & bits - 1 clears it. */
        for (uint64_t bits = a->read.wanted; bits && n < (int)most; bits &= bits - 1, n++) {
            uint32_t offset = (uint32_t)__builtin_ctzll(bits) * piece, left = a->read.len - offset;
            struct link_frame *f = &frames[n];
            struct wire_read_data d = {offset, a->read.len};
            via_address_frame(vi, f, WIRE_READ, a->number);
            f->header.immediate = a->serial;
            memcpy(f->block.bytes, &d, sizeof d);
            f->header_len += (uint32_t)sizeof d;
            f->payload_len = left < piece ? left : piece;
            f->header.len = (uint16_t)(sizeof d + f->payload_len);
            iov[n] = (struct iovec){(void *)(uintptr_t)(a->read.address + offset), f->payload_len};
            f->iov = &iov[n];
            f->n_iov = f->payload_len != 0;
        }
        int sent = via_link_send(vi->nic, vi->peer, frames, n);
        for (int i = 0; i < sent; i++) {
            VI_COUNT(vi, bytes_sent, frames[i].payload_len);
            VI_COUNT(vi, frames_sent, 1);
            a->read.wanted &= a->read.wanted - 1;
        }
        if (sent < n)
            return 0;
    }
    return 1;
}

/* True if data frames that the requester sent after this request have arrived. Also true if a request was granted that
 * it only makes when this one is finished. On a lossless link every request is made once, and the requester waits for
 * its complete reply. */
static int is_old(const struct via_vi *vi, const struct answer *a)
{
    return !vi->lossless &&
           (wire_before(a->read.next, vi->expected_psn) || wire_before(a->number + VIA_READ_REQUESTS, vi->reads->seen));
}

/* Sends a reply without data. Its length distinguishes the two kinds. */
static void send_no_data(struct via_vi *vi, const struct answer *a, size_t len)
{
    static const uint8_t zeros[WIRE_READ_DENIED];
    VI_COUNT(vi, dropped_duplicate, 1);
    via_send_block(vi, WIRE_READ, WIRE_FLAG_LAST, a->number, a->serial, zeros, len);
}

/* Serves a request; returns 0 if the rest must wait for the link. The order matters: an old request gets its reply
 * without an access to the memory, and a refusal comes before anything is sent. */
static int serve(struct via_vi *vi, struct answer *a)
{
    if (is_old(vi, a)) {
        send_no_data(vi, a, 0);
        return 1;
    }
    if (!read_granted(vi, &a->read)) { /* check again after it has waited: the region may have been deregistered */
        if (a->read.wanted && !vi->lossless && was_granted(vi, a))
            send_no_data(vi, a, WIRE_READ_DENIED);
        else
            refuse(vi, a->number);
        return 1;
    }
    note_granted(vi->reads, a);
    return send_pieces(vi, a);
}

/* Handles an arriving request. It is served at once if no other waits; the stall list continues what the link does not
 * accept. */
void via_serve_request(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    struct answer a = {.number = h->psn, .serial = h->immediate};
    if (h->len != sizeof a.read || !via_reads_ready(vi)) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    memcpy(&a.read, payload, sizeof a.read);
    struct via_reads *r = vi->reads;
    uint64_t all = piece_is_possible(vi, a.read.piece) ? via_all_pieces(a.read.piece, a.read.len) : 0;
    if (all == 0 || (a.read.wanted & ~all) || (a.read.wanted == 0 && !was_granted(vi, &a)) ||
        r->answer_tail - r->answer_head == VIA_READ_REQUESTS) {
        NIC_COUNT(vi->nic, dropped_malformed,
                  1); /* no correct peer requests so much or so often, or insists on a new request */
        return;
    }
    if (h->flags & WIRE_FLAG_LAST && !wire_before(h->psn, r->counted) && !is_old(vi, &a) && read_granted(vi, &a.read)) {
        r->counted = h->psn + 1; /* a repeated request belongs to the same read */
        VI_COUNT(vi, rdma_reads_received, 1);
    }
    if (r->answer_head == r->answer_tail && serve(vi, &a))
        return;
    r->answers[r->answer_tail++ % VIA_READ_REQUESTS] = a;
    via_stall(vi);
}

void via_serve_waiting(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    while (vi->state == VIP_STATE_CONNECTED && r->answer_head != r->answer_tail) {
        if (!serve(vi, &r->answers[r->answer_head % VIA_READ_REQUESTS])) {
            via_stall(vi);
            break;
        }
        if (r->answer_head != r->answer_tail) /* a refusal has emptied the list */
            r->answer_head++;
    }
}
