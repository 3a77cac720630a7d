/*
 * RDMA reads: data moves from the peer's memory to local memory, without any action by the peer's program.
 *
 *      requester                                   target
 *   PostSend(RDMAREAD)
 *        |  --- READ(number, address, handle) ------>  granted? then at once, from where the memory lies:
 *        |  <-- READ data, a piece ... -------------
 *   placed by offset, in any order; when all pieces have arrived the descriptor completes
 *
 * Between processes of one host the requester copies from the target's memory itself, and no frame is sent (link
 * operation `take`). On a link with a card (verbs) the card reads, if it can (card.c).
 *
 * Only the requester keeps state. It cuts a read into *requests* of up to 64 pieces (`struct read_request`), has at
 * most VIA_READ_REQUESTS of them outstanding, and keeps a bit per piece. Missing pieces are requested again, by their
 * bits. Each request states its piece length, because the two sides may see paths of different MTU. The target replies
 * to a request as often as it arrives. So no part of a read is in the sequence of the data frames, and the target keeps
 * no retransmission buffer: it sends again from the region itself. A request waits at the target only if the link is
 * full, and at most VIA_READ_REQUESTS can wait.
 *
 * Order: a read is requested when everything sent before it has been acknowledged, so it sees the data of earlier RDMA
 * writes. Descriptors posted behind a read do not wait for it, unless they have VIP_CONTROL_QFENCE set.
 *
 * Losses: each request has a serial number, which its reply repeats. Requests and replies keep their order, so a piece
 * for a later request shows that missing pieces of earlier ones are lost. If nothing follows that could show it, a
 * time-out does.
 *
 * Only the NIC's owner calls these functions.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/data/place.h"
#include "via/data/read.h"
#include "via/engine.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/observer.h"
#include "via/vi.h"
#include "via/work.h"

#define PLAIN_PIECES 16 /* per request, if each piece takes a slot of the receiver's ring */
#define WAIT_LONGEST (500 * VK_MS)

/* True if the read has begun, and has neither completed nor failed. */
static inline int is_open(const struct via_work *w)
{
    return w->how == VIA_HOW_READ && w->started && !w->sent && !w->error;
}

/* pieces_per_request: pieces in one request. most_requests: how many requests may be outstanding, as many as fit the
 * window of link sends. A reply arrives as one burst. If the link makes super-frames, one request is one super-frame;
 * if each piece takes a slot of the receiver's ring, a request has fewer pieces. */
static uint32_t pieces_per_request(const struct via_vi *vi)
{
    uint32_t batch = vi->nic->limits.max_batch;
    return batch == 1 ? PLAIN_PIECES : batch < REQUEST_PIECES ? batch : REQUEST_PIECES;
}

static uint32_t most_requests(const struct via_vi *vi)
{
    uint32_t window = vi->nic->options.window, n = vi->nic->limits.max_batch == 1 ? window / PLAIN_PIECES : window;
    return n < 1 ? 1 : n < VIA_READ_REQUESTS ? n : VIA_READ_REQUESTS;
}

/* Allocated when the first read is posted here, or the first request arrives from the peer; most connections never
 * read. */
int via_reads_ready(struct via_vi *vi)
{
    if (vi->reads == NULL && (vi->reads = calloc(1, sizeof *vi->reads)) != NULL)
        via_reads_reset(vi);
    return vi->reads != NULL;
}

/* Resets for a new connection. The struct stays: a VI that has used reads will probably use them again. */
void via_reads_reset(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    if (r == NULL)
        return;
    r->head = r->tail = 0;
    r->answer_head = r->answer_tail = 0;
    r->n_open = r->retries = 0;
    r->serial = r->last_serial = r->seen = r->counted = 0;
    memset(r->granted, 0, sizeof r->granted);
    r->progress = 0;
    r->deadline = VK_NEVER;
    r->allowed = VIA_READ_REQUESTS;
}

void via_reads_free(struct via_vi *vi)
{
    free(vi->reads);
    vi->reads = NULL;
}

uint32_t via_reads_open(const struct via_vi *vi)
{
    return vi->reads ? vi->reads->n_open : 0;
}

uint64_t via_reads_deadline(const struct via_vi *vi)
{
    return vi->reads ? vi->reads->deadline : VK_NEVER;
}

/* ---------------------------------------------------------------- requests */

/* Starts the time-out. One serves all requests: a piece of any of them is progress. The deadline is not moved for each
 * piece: via_read_time_out starts it anew if there was progress, which saves reading the clock. */
static void arm(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    if (vi->lossless)
        return; /* no frame is lost: only a dead peer does not reply, and the link reports that */
    vi->nic->now = vk_now();
    r->progress = 0;
    r->deadline = vi->nic->now + r->wait;
    via_timer(vi->nic, r->deadline);
}

/* Sends a request for these pieces. Returns 0 if the link is full. */
static int send_request(struct via_vi *vi, uint32_t number, uint64_t wanted, uint32_t serial)
{
    const struct read_request *a = &vi->reads->requests[number % VIA_READ_REQUESTS];
    const struct via_work *w = via_work_at(&vi->send, a->work);
    const VIP_ADDRESS_SEGMENT *remote = &via_segment(w->descriptor, 0)->Remote;
    /* next_psn is included so that the target can distinguish an old request from a new one (is_old). */
    struct wire_read b = {remote->Data.AddressBits + a->offset, wanted, remote->Handle, a->len, vi->next_psn, a->piece};
    uint8_t flags = WIRE_FLAG_FIRST | (a->offset + a->len == w->len ? WIRE_FLAG_LAST : 0);
    return via_send_block(vi, WIRE_READ, flags, number, serial, &b, sizeof b) == 1;
}

/* Requests the missing pieces (again). Returns 0 if the link is full. */
static int request_missing(struct via_vi *vi, uint32_t number)
{
    struct via_reads *r = vi->reads;
    struct read_request *a = &r->requests[number % VIA_READ_REQUESTS];
    if (!send_request(vi, number, a->missing, r->serial + 1))
        return 0;
    a->serial = ++r->serial;
    a->wanted = a->missing;
    if (r->deadline == VK_NEVER) {
        r->wait = via_rtt_probe(vi);
        arm(vi);
    }
    return 1;
}

/* Requests the next part of the read. Returns 0 if no request can be sent at present. */
static int request_more(struct via_vi *vi, uint32_t index, struct via_work *w)
{
    struct via_reads *r = vi->reads;
    uint32_t piece = via_piece_len(vi->read_chunk), most = pieces_per_request(vi) * piece, left = w->len - w->requested;
    uint32_t allowed = most_requests(vi) < r->allowed ? most_requests(vi) : r->allowed;
    if (r->tail - r->head >= allowed)
        return 0;
    struct read_request *a = &r->requests[r->tail % VIA_READ_REQUESTS];
    *a = (struct read_request){.work = index, .offset = w->requested, .len = left < most ? left : most, .piece = piece};
    a->missing = via_all_pieces(piece, a->len);
    if (!request_missing(vi, r->tail)) {
        via_stall(vi);
        return 0;
    }
    r->tail++;
    w->requested += a->len;
    w->all_requested = w->requested == w->len;
    return 1;
}

/* Requests all reads that have begun, in order, up to the maximum of outstanding requests. A read waits until
 * everything sent before it is acknowledged, because it must see the data of earlier writes. On a lossless link frames
 * keep their order, so it need not wait. */
static void request_all(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    for (; r->n_open && wire_before(r->next, vi->send.next); r->next++) {
        struct via_work *w = via_work_at(&vi->send, r->next);
        if (!is_open(w))
            continue;
        if (!vi->lossless && wire_before(vi->una_psn, w->first_psn))
            return; /* the next acknowledgement calls again */
        /* Not behind a read by frames: if the target refuses that one, no later read may have placed data. */
        if (vi->nic->ops->card && w->requested == 0 && r->head == r->tail) {
            int by_card = via_card_read(vi, w, r->next);
            if (by_card < 0)
                return; /* the stall list calls again */
            if (by_card)
                continue;
        }
        while (!w->all_requested)
            if (!request_more(vi, r->next, w))
                return;
    }
}

/* Copies directly from the peer's memory, on one host. Returns 1 if done. The copy must not overtake writes that were
 * sent as frames: then the read uses frames, too. */
static int try_take(struct via_vi *vi, const struct via_work *w)
{
    const struct link_ops *ops = vi->nic->ops;
    const VIP_ADDRESS_SEGMENT *remote = &via_segment(w->descriptor, 0)->Remote;
    struct iovec iov[VIA_MAX_SEGMENTS];
    if (!vi->lossless || ops->take == NULL || !vi->peer_rdma_read || wire_before(vi->una_psn, vi->write_psn))
        return 0; /* frames, behind the writes that were sent as frames; or the peer will refuse */
    int n = via_gather(vi, w, 0, w->len, iov, VIA_MAX_SEGMENTS);
    if (n < 0)
        return 0;
    return ops->take(vi->nic->link, vi->peer, remote->Handle, vi->peer_ptag, remote->Data.AddressBits, iov, n,
                     w->len) == 0;
}

/* Notes that all bytes have arrived; the descriptor completes in its turn (via_complete_sends). */
static void read_is_here(struct via_vi *vi, struct via_work *w)
{
    w->sent = 1;
    VI_COUNT(vi, rdma_reads_sent, 1);
    VI_COUNT(vi, bytes_received, w->len);
}

/* A read takes no sequence number: first_psn only notes which frames must be acknowledged first. */
int via_read_begin(struct via_vi *vi, struct via_work *w, uint32_t index)
{
    struct via_reads *r = vi->reads;
    w->how = VIA_HOW_READ;
    w->first_psn = vi->next_psn;
    w->n_frames = 0;
    w->requested = w->arrived = 0;
    w->all_requested = 0;
    w->started = 1;
    VIA_OBSERVE(vi->nic, doorbell, vi, w);
    if (r->n_open == 0 && try_take(vi, w)) {
        read_is_here(vi, w);
        return 1;
    }
    if (r->n_open++ == 0)
        r->next = index;
    return 0;
}

/* ---------------------------------------------------------------- replies */

/* Closes a read that has arrived or failed: its requests want no more pieces. Pieces that still arrive for them count
 * as duplicates. settle() then advances the ring. */
static void close_read(struct via_vi *vi, uint32_t index)
{
    struct via_reads *r = vi->reads;
    for (uint32_t i = r->head; i != r->tail; i++)
        if (r->requests[i % VIA_READ_REQUESTS].work == index)
            r->requests[i % VIA_READ_REQUESTS].missing = 0;
    r->n_open--;
}

/* Places one piece. Returns 0 if local memory is no longer granted. */
static int place(struct via_vi *vi, const struct via_work *w, uint32_t offset, const uint8_t *payload, uint32_t len)
{
    struct iovec iov[VIA_MAX_SEGMENTS];
    int n = len ? via_gather(vi, w, offset, len, iov, VIA_MAX_SEGMENTS) : 0;
    for (int i = 0; i < n; i++) {
        memcpy(iov[i].iov_base, payload, iov[i].iov_len);
        payload += iov[i].iov_len;
        via_count_copy(vi, iov[i].iov_len);
    }
    return n >= 0;
}

/* Requests the missing pieces of earlier requests again: a reply to a later one shows that they are lost. If the link
 * is full, the next piece or the time-out continues. */
static void find_losses(struct via_vi *vi, uint32_t serial)
{
    struct via_reads *r = vi->reads;
    for (uint32_t i = r->head; i != r->tail; i++) {
        struct read_request *a = &r->requests[i % VIA_READ_REQUESTS];
        if (a->missing && wire_before(a->serial, serial) && !request_missing(vi, i))
            return;
    }
}

/* Updates the request, the read and the queue after a piece was placed, or could not be. */
static void settle(struct via_vi *vi, struct read_request *a, int placed)
{
    struct via_reads *r = vi->reads;
    struct via_work *w = via_work_at(&vi->send, a->work);
    if (!placed) {
        w->error = VIP_STATUS_PROTECTION_ERROR;
        w->sent = 1;
        close_read(vi, a->work);
    } else if (a->missing == 0) {
        if (r->allowed < VIA_READ_REQUESTS)
            r->allowed++;
        if (w->arrived == w->len && w->all_requested) {
            close_read(vi, a->work);
            read_is_here(vi, w);
        }
    }
    /* Requests finish in any order; the ring advances when its oldest one has finished. */
    while (r->head != r->tail && r->requests[r->head % VIA_READ_REQUESTS].missing == 0)
        r->head++;
    if (r->head == r->tail)
        r->deadline = VK_NEVER;
    if (w->sent)
        via_complete_sends(vi);
    if (vi->state == VIP_STATE_CONNECTED)
        request_all(vi);
    if (vi->state == VIP_STATE_CONNECTED && w->sent && vi->send.next != vi->send.posted)
        via_transmit(vi); /* a fence may have waited for it */
}

/* Handles a reply without data. Either the request arrived too late: if it was the latest for this part, send another.
 * Or it was denied: insist, unless it was a copy of a finished one. The time-out sends what the link cannot accept now.
 */
static void no_data(struct via_vi *vi, const struct wire_header *h)
{
    struct via_reads *r = vi->reads;
    struct read_request *a = &r->requests[h->psn % VIA_READ_REQUESTS];
    r->retries = 0;
    r->progress = 1;
    if (a->missing && h->len)
        send_request(vi, h->psn, 0, a->serial);
    else if (a->missing && a->serial == h->immediate)
        request_missing(vi, h->psn);
}

/* Handles a piece of data. It must belong to an outstanding request, and to no later one than was made. It must begin
 * at the boundary of a piece and have its length. Copies are dropped. */
static void data_arrived(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    struct via_reads *r = vi->reads;
    struct wire_read_data d;
    /* The number of an outstanding request lies in [head, tail); with unsigned numbers that is one comparison. */
    if (r == NULL || h->psn - r->head >= r->tail - r->head) {
        VI_COUNT(vi, dropped_duplicate, 1); /* of a read that is complete */
        return;
    }
    if (wire_before(r->serial, h->immediate)) { /* it would mark all requests up to that number as lost */
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    if (h->flags & WIRE_FLAG_LAST && (h->len == 0 || h->len == WIRE_READ_DENIED)) {
        no_data(vi, h);
        return;
    }
    struct read_request *a = &r->requests[h->psn % VIA_READ_REQUESTS];
    uint32_t piece = a->piece, len = h->len < sizeof d ? 0 : h->len - (uint32_t)sizeof d;
    if (h->len < sizeof d) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    memcpy(&d, payload, sizeof d);
    /* The piece is not 0: request_more has set it. `left` is 0 for an offset beyond the request, which the checks below
     * refuse. */
    uint32_t k = d.offset / piece, left = d.offset <= a->len ? a->len - d.offset : 0;
    if (d.len != a->len || d.offset % piece || k >= REQUEST_PIECES || !(via_all_pieces(piece, a->len) >> k & 1) ||
        len != (left < piece ? left : piece)) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    uint64_t bit = 1ull << k;
    r->retries = 0;
    r->progress = 1;
    if (!(a->missing & bit))
        VI_COUNT(vi, dropped_duplicate, 1);
    else {
        struct via_work *w = via_work_at(&vi->send, a->work);
        int placed = place(vi, w, a->offset + d.offset, payload + sizeof d, len);
        a->missing &= ~bit;
        w->arrived += len;
        if (a->missing && placed && a->serial == h->immediate && !(a->wanted >> k >> 1))
            request_missing(vi, h->psn); /* the last requested piece has arrived, others have not */
        if (a->missing == 0 || !placed)
            settle(vi, a, placed);
    }
    if (vi->state == VIP_STATE_CONNECTED && wire_before(r->last_serial, h->immediate)) {
        r->last_serial = h->immediate;
        find_losses(vi, h->immediate);
    }
}

/* Handles the deadline: no piece has arrived since it was set. The oldest requests are repeated, half as many as
 * before, and the time-out doubles. After max_retries the peer counts as failed. n counts requests that were sent; if
 * the link is full, the loop ends at once. If not even the oldest could be sent, the peer has received no request and
 * its silence means nothing, so that is no retry. The probes of an idle connection find out whether the peer is alive
 * (keep_alive in reliable.c). */
void via_read_time_out(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    if (r->progress) {
        arm(vi);
        return;
    }
    VI_COUNT(vi, timeouts, 1);
    if (r->retries == vi->nic->options.max_retries) {
        via_give_up(vi);
        return;
    }
    uint32_t n = 0, allowed = r->allowed > 1 ? r->allowed / 2 : 1, full = 0;
    for (uint32_t i = r->head; i != r->tail && n < allowed && !full; i++)
        if (r->requests[i % VIA_READ_REQUESTS].missing) {
            full = !request_missing(vi, i);
            n += !full;
        }
    if (n) {
        r->retries++;
        r->allowed = allowed;
        r->wait = 2 * r->wait < WAIT_LONGEST ? 2 * r->wait : WAIT_LONGEST;
    }
    arm(vi);
}

void via_read_by_card(struct via_vi *vi, uint32_t index, int failed)
{
    struct via_reads *r = vi->reads;
    struct via_work *w = via_work_at(&vi->send, index);
    if (failed) {
        w->how = VIA_HOW_READ;
        if (wire_before(index, r->next))
            r->next = index;
        via_stall(vi);
        return;
    }
    r->n_open--;
    read_is_here(vi, w);
    VI_COUNT(vi, rdma_reads_by_card, 1);
    via_complete_sends(vi);
    if (vi->state == VIP_STATE_CONNECTED && vi->send.next != vi->send.posted)
        via_transmit(vi); /* a fence may have waited for it */
}

/* Distinguishes requests from replies by FIRST. Unreliable VIs have no reads (VIPL), so no correct peer sends them any.
 */
void via_read_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (!vi->reliable)
        NIC_COUNT(vi->nic, dropped_malformed, 1);
    else if (h->flags & WIRE_FLAG_FIRST)
        via_serve_request(vi, h, payload);
    else
        data_arrived(vi, h, payload);
}

/* Continues what waited for the link, for the window of requests or for an acknowledgement: replies first, then
 * requests. */
void via_reads_go_on(struct via_vi *vi)
{
    via_serve_waiting(vi);
    if (vi->state == VIP_STATE_CONNECTED)
        request_all(vi);
}

/* Notes that the target refused the request: its read fails in its turn. */
void via_read_refused(struct via_vi *vi, uint32_t number)
{
    struct via_reads *r = vi->reads;
    if (r == NULL || number - r->head >= r->tail - r->head)
        return;
    struct via_work *w = via_work_at(&vi->send, r->requests[number % VIA_READ_REQUESTS].work);
    if (is_open(w))
        w->error = VIP_STATUS_RDMA_PROT_ERROR;
}
