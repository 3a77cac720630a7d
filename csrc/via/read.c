/*
 * RDMA reads: memory of the peer comes here, and its program does nothing for it.
 *
 *      requester                                   target
 *   PostSend(RDMAREAD)
 *        |  --- READ(number, address, handle) ------>  granted? then at once, from where the memory lies:
 *        |  <-- READ data, a piece ... -------------
 *   placed by offset, in any order; when all pieces are here the descriptor completes
 *
 * Between processes of one host the requester copies from the target's memory itself, and no frame is sent (link
 * operation `take`).
 *
 * The requester alone keeps account. It cuts a read into *asks* of up to 64 pieces, has at most VIA_ASKS of them
 * outstanding, and keeps a bit per piece: what is missing is asked for again, by its bits. How long a piece is each
 * ask says, for the two sides may see paths of different width. An ask is answered as often as it comes. (So nothing
 * of a read is in the sequence of the data frames, and nothing is kept to be sent again: the region itself is what is
 * sent again.) Only where the link is full an ask waits at the target, and no more than VIA_ASKS may.
 *
 * Order: a read is asked for when everything that was sent before it has been acknowledged, so it sees what earlier
 * RDMA writes wrote. What is posted behind it does not wait, unless it has VIP_CONTROL_QFENCE set.
 *
 * An old request must not be answered: behind it the requester may have sent word that its read is complete, and the
 * program here may have deregistered or unmapped the memory when it heard it. A link that loses frames also keeps
 * some back and brings some twice, and an ask that waits for the link grows old, too. So a request says which data
 * frame its sender would have sent next, and one that comes to its turn after that frame gets the answer "ask
 * again", which is only heeded if something is still missing.
 *
 * Nor may an old request end the connection. The requester may have told by another connection, or by no connection
 * at all, that its read is complete; then no number shows that a copy of the request is old, and it asks for memory
 * that is not granted any more. So the target notes the last VIA_ASKS asks that it granted. What it has never
 * granted it refuses at once, and the connection breaks; what it has granted before it *denies*, and the requester
 * insists if something is still missing. Only then it is refused.
 *
 *        |  --- READ(3, ...) ----------------------->  granted until a moment ago
 *        |  <-- READ 3: denied ---------------------
 *   3 is complete: nothing more. Or it is not:
 *        |  --- READ(3, wanted 0) ------------------>  refused
 *        |  <-- ERROR(3, RDMA protection error) ----
 *
 * Losses: each request has a serial number, which its answer repeats. Requests and answers keep their order, so a
 * piece for a later request shows that what is missing of earlier ones is lost. Where nothing follows that could
 * show it, a time-out does.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "tap.h"

#define ASK_PIECES 64   /* as many as a word has bits */
#define PLAIN_PIECES 16 /* of one ask, where each piece takes a slot of our ring */
#define WAIT_LONGEST (500 * VK_MS)

/* The requester's side: part of a read. Its number is its index in the ring, free-running. */
struct ask {
    uint32_t work;        /* index on the send queue */
    uint32_t offset, len; /* of the read's bytes */
    uint32_t piece;       /* bytes of one piece */
    uint32_t serial;      /* of the latest request for it */
    uint64_t missing;     /* a bit per piece that is not here yet; 0: done */
    uint64_t wanted;      /* what the latest request asked for */
};

/* The target's side: an ask that waits for the link. */
struct answer {
    struct wire_read read; /* wanted: what is still to be sent */
    uint32_t number, serial;
};

/* ... and an ask that was granted. */
struct granted {
    uint64_t address;
    uint32_t number, handle, len; /* len 0: none; an ask of no bytes cannot come to be denied */
};

struct via_reads {
    uint64_t deadline; /* VK_NEVER: nothing is outstanding */
    uint64_t wait;     /* present time-out */
    struct ask asks[VIA_ASKS];
    uint32_t head, tail; /* outstanding */
    uint32_t next;       /* on the send queue: the first read not wholly asked for is here or behind */
    uint32_t n_open;     /* reads begun and not complete */
    uint32_t allowed;    /* asks outstanding at most, now: fewer after a time-out */
    uint32_t serial, heard_serial;
    uint32_t retries;
    int progress; /* since the deadline was set */
    struct answer answers[VIA_ASKS];
    uint32_t answer_head, answer_tail;
    struct granted granted[VIA_ASKS]; /* by number */
    uint32_t seen;                    /* the ask behind the latest that was granted */
    uint32_t counted;                 /* the ask behind the last one that was counted as the end of a read */
};

/* Begun, and neither complete nor failed. */
static inline int is_open(const struct via_work *w)
{
    return w->how == VIA_HOW_READ && w->started && !w->sent && !w->error;
}

/* Bytes of memory in a frame of an answer that has so much payload; multiples of a word. */
static inline uint32_t piece_len(uint32_t payload)
{
    return (payload - (uint32_t)sizeof(struct wire_read_data)) & ~7u;
}

/* Any length that our link can send and that is no smaller than a frame may be. Where our path is narrower than the
 * requester knew, the network cuts the frames. */
static int piece_is_possible(const struct via_vi *vi, uint32_t piece)
{
    return piece % 8 == 0 && piece >= piece_len(WIRE_LEAST_PAYLOAD) && piece <= piece_len(vi->nic->limits.max_payload);
}

/* A bit for each piece of an ask of len bytes; 0 if it has too many. An ask of no bytes has one piece, too: it asks for
 * leave. */
static uint64_t all_pieces(uint32_t piece, uint32_t len)
{
    uint32_t n = len ? len / piece + (len % piece != 0) : 1;
    return n > ASK_PIECES ? 0 : n == ASK_PIECES ? ~0ull : (1ull << n) - 1;
}

/* Pieces of one ask, and how many asks may be under way: as many as fit the window of link sends. An ask's answer
 * arrives in a row: where the link makes super-frames of it, one ask is one super-frame; where each piece takes a slot
 * of our ring, fewer at a time. */
static uint32_t ask_pieces(const struct via_vi *vi)
{
    uint32_t batch = vi->nic->limits.max_batch;
    return batch == 1 ? PLAIN_PIECES : batch < ASK_PIECES ? batch : ASK_PIECES;
}

static uint32_t most_asks(const struct via_vi *vi)
{
    uint32_t window = vi->nic->options.window, n = vi->nic->limits.max_batch == 1 ? window / PLAIN_PIECES : window;
    return n < 1 ? 1 : n < VIA_ASKS ? n : VIA_ASKS;
}

/* Made when the first read is posted here, or the first ask comes from the peer; most connections never read. */
int via_reads_ready(struct via_vi *vi)
{
    if (vi->reads == NULL && (vi->reads = calloc(1, sizeof *vi->reads)) != NULL)
        via_reads_reset(vi);
    return vi->reads != NULL;
}

/* For a new connection. The struct stays: who has read once will read again. */
void via_reads_reset(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    if (r == NULL)
        return;
    r->head = r->tail = 0;
    r->answer_head = r->answer_tail = 0;
    r->n_open = r->retries = 0;
    r->serial = r->heard_serial = r->seen = r->counted = 0;
    memset(r->granted, 0, sizeof r->granted);
    r->progress = 0;
    r->deadline = VK_NEVER;
    r->allowed = VIA_ASKS;
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

/* ---------------------------------------------------------------- asking */

/* The time-out runs from now. One for all asks: a piece of any of them is progress. */
static void arm(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    if (vi->lossless)
        return; /* nothing is lost: who does not answer has died, and the link knows */
    vi->nic->now = vk_now();
    r->progress = 0;
    r->deadline = vi->nic->now + r->wait;
    via_timer(vi->nic, r->deadline);
}

/* A request for those pieces of an ask. 0 if the link is full. */
static int send_request(struct via_vi *vi, uint32_t number, uint64_t wanted, uint32_t serial)
{
    const struct ask *a = &vi->reads->asks[number % VIA_ASKS];
    const struct via_work *w = via_work_at(&vi->send, a->work);
    const VIP_ADDRESS_SEGMENT *remote = &via_segment(w->descriptor, 0)->Remote;
    /* next_psn goes along: by that the target tells an old request from a new one (is_old). */
    struct wire_read b = {remote->Data.AddressBits + a->offset, wanted, remote->Handle, a->len, vi->next_psn, a->piece};
    uint8_t flags = WIRE_FLAG_FIRST | (a->offset + a->len == w->len ? WIRE_FLAG_LAST : 0);
    return via_send_block(vi, WIRE_READ, flags, number, serial, &b, sizeof b) == 1;
}

/* Asks (again) for what is missing. 0 if the link is full. */
static int send_ask(struct via_vi *vi, uint32_t number)
{
    struct via_reads *r = vi->reads;
    struct ask *a = &r->asks[number % VIA_ASKS];
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

/* The next part of the read. 0 if there is nobody to ask at the moment. */
static int ask_more(struct via_vi *vi, uint32_t index, struct via_work *w)
{
    struct via_reads *r = vi->reads;
    uint32_t piece = piece_len(vi->read_chunk), most = ask_pieces(vi) * piece, left = w->len - w->asked;
    uint32_t allowed = most_asks(vi) < r->allowed ? most_asks(vi) : r->allowed;
    if (r->tail - r->head >= allowed)
        return 0;
    struct ask *a = &r->asks[r->tail % VIA_ASKS];
    *a = (struct ask){.work = index, .offset = w->asked, .len = left < most ? left : most, .piece = piece};
    a->missing = all_pieces(piece, a->len);
    if (!send_ask(vi, r->tail)) {
        via_stall(vi);
        return 0;
    }
    r->tail++;
    w->asked += a->len;
    w->all_asked = w->asked == w->len;
    return 1;
}

/* All reads that have begun, in order, as far as asks may be outstanding. A read waits until what was sent before it is
 * acknowledged, for it must see what earlier writes wrote; on a lossless link frames keep their order and that comes by
 * itself. */
static void ask_all(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    for (; r->n_open && wire_before(r->next, vi->send.next); r->next++) {
        struct via_work *w = via_work_at(&vi->send, r->next);
        if (!is_open(w))
            continue;
        if (!vi->lossless && wire_before(vi->una_psn, w->first_psn))
            return; /* an acknowledgement will call again */
        while (!w->all_asked)
            if (!ask_more(vi, r->next, w))
                return;
    }
}

/* Straight from the peer's memory, on one host. 1 if done. Behind writes that went by frames it must not overtake them:
 * then by frames, too. */
static int try_take(struct via_vi *vi, const struct via_work *w)
{
    const struct link_ops *ops = vi->nic->ops;
    const VIP_ADDRESS_SEGMENT *remote = &via_segment(w->descriptor, 0)->Remote;
    struct iovec iov[VIA_MAX_SEGMENTS];
    if (!vi->lossless || ops->take == NULL || !vi->peer_rdma_read || wire_before(vi->una_psn, vi->write_psn))
        return 0; /* frames, behind the writes that went by frames; or the peer will say no */
    int n = via_gather(vi, w, 0, w->len, iov, VIA_MAX_SEGMENTS);
    if (n < 0)
        return 0;
    return ops->take(vi->nic->link, vi->peer, remote->Handle, vi->peer_ptag, remote->Data.AddressBits, iov, n,
                     w->len) == 0;
}

/* All bytes have come; the descriptor completes when its turn comes (via_complete_sends). */
static void read_is_here(struct via_vi *vi, struct via_work *w)
{
    w->sent = 1;
    VI_COUNT(vi, rdma_reads_sent, 1);
    VI_COUNT(vi, bytes_received, w->len);
}

/* It takes no sequence number: first_psn only notes how far the acknowledgements must have come. */
int via_read_begin(struct via_vi *vi, struct via_work *w, uint32_t index)
{
    struct via_reads *r = vi->reads;
    w->how = VIA_HOW_READ;
    w->first_psn = vi->next_psn;
    w->n_frames = 0;
    w->asked = w->arrived = 0;
    w->all_asked = 0;
    w->started = 1;
    VIA_TAP(vi->nic, via_tap_doorbell(vi, w));
    if (r->n_open == 0 && try_take(vi, w)) {
        read_is_here(vi, w);
        return 1;
    }
    if (r->n_open++ == 0)
        r->next = index;
    return 0;
}

/* ---------------------------------------------------------------- what comes */

/* Nothing more is wanted of this read: it is here, or it has failed. */
static void close_read(struct via_vi *vi, uint32_t index)
{
    struct via_reads *r = vi->reads;
    for (uint32_t i = r->head; i != r->tail; i++)
        if (r->asks[i % VIA_ASKS].work == index)
            r->asks[i % VIA_ASKS].missing = 0;
    r->n_open--;
}

/* Places one piece. 0 if our own memory is not granted any more. */
static int place(struct via_vi *vi, const struct via_work *w, uint32_t offset, const uint8_t *payload, uint32_t len)
{
    struct iovec iov[VIA_MAX_SEGMENTS];
    int n = len ? via_gather(vi, w, offset, len, iov, VIA_MAX_SEGMENTS) : 0;
    for (int i = 0; i < n; i++) {
        memcpy(iov[i].iov_base, payload, iov[i].iov_len);
        payload += iov[i].iov_len;
        VI_COUNT(vi, copies, 1);
        VI_COUNT(vi, bytes_copied, iov[i].iov_len);
    }
    return n >= 0;
}

/* A later request is being answered: what is missing of earlier ones is lost. */
static void find_losses(struct via_vi *vi, uint32_t serial)
{
    struct via_reads *r = vi->reads;
    for (uint32_t i = r->head; i != r->tail; i++) {
        struct ask *a = &r->asks[i % VIA_ASKS];
        if (a->missing && wire_before(a->serial, serial) && !send_ask(vi, i))
            return;
    }
}

/* A piece was placed, or could not be. What follows from it for the ask, the read and the queue. */
static void settle(struct via_vi *vi, struct ask *a, int placed)
{
    struct via_reads *r = vi->reads;
    struct via_work *w = via_work_at(&vi->send, a->work);
    if (!placed) {
        w->error = VIP_STATUS_PROTECTION_ERROR;
        w->sent = 1;
        close_read(vi, a->work);
    } else if (a->missing == 0) {
        if (r->allowed < VIA_ASKS)
            r->allowed++;
        if (w->arrived == w->len && w->all_asked) {
            close_read(vi, a->work);
            read_is_here(vi, w);
        }
    }
    /* Asks are done in any order; the ring moves when its oldest is. */
    while (r->head != r->tail && r->asks[r->head % VIA_ASKS].missing == 0)
        r->head++;
    if (r->head == r->tail)
        r->deadline = VK_NEVER;
    if (w->sent)
        via_complete_sends(vi);
    if (vi->state == VIP_STATE_CONNECTED)
        ask_all(vi);
    if (vi->state == VIP_STATE_CONNECTED && w->sent && vi->send.next != vi->send.posted)
        via_transmit(vi); /* a fence may have waited for it */
}

/* An answer without data. Our request came too late to be answered: if it was the latest for this ask we make another.
 * Or it was denied: we insist if it was not a copy of one that is done. What cannot go now the time-out will send. */
static void no_data(struct via_vi *vi, const struct wire_header *h)
{
    struct via_reads *r = vi->reads;
    struct ask *a = &r->asks[h->psn % VIA_ASKS];
    r->retries = 0;
    r->progress = 1;
    if (a->missing && h->len)
        send_request(vi, h->psn, 0, a->serial);
    else if (a->missing && a->serial == h->immediate)
        send_ask(vi, h->psn);
}

/* A piece that we asked for, or somebody says so: it must belong to an ask that is outstanding, to no later request
 * than we have made, begin where a piece begins and be as long as that piece is. Copies are dropped. */
static void data_arrived(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    struct via_reads *r = vi->reads;
    struct wire_read_data d;
    /* The number of an ask that is outstanding lies in [head, tail); with unsigned numbers that is one comparison. */
    if (r == NULL || h->psn - r->head >= r->tail - r->head) {
        VI_COUNT(vi, dropped_duplicate, 1); /* of a read that is complete */
        return;
    }
    if (wire_before(r->serial, h->immediate)) { /* it would have us believe that all we asked for until then is lost */
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    if (h->flags & WIRE_FLAG_LAST && (h->len == 0 || h->len == WIRE_READ_DENIED)) {
        no_data(vi, h);
        return;
    }
    struct ask *a = &r->asks[h->psn % VIA_ASKS];
    uint32_t piece = a->piece, len = h->len < sizeof d ? 0 : h->len - (uint32_t)sizeof d;
    if (h->len < sizeof d) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    memcpy(&d, payload, sizeof d);
    uint32_t k = d.offset / piece, left = d.offset <= a->len ? a->len - d.offset : 0;
    if (d.len != a->len || d.offset % piece || k >= ASK_PIECES || !(all_pieces(piece, a->len) >> k & 1) ||
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
            send_ask(vi, h->psn); /* the last of what was wanted is here, others are not */
        if (a->missing == 0 || !placed)
            settle(vi, a, placed);
    }
    if (vi->state == VIP_STATE_CONNECTED && wire_before(r->heard_serial, h->immediate)) {
        r->heard_serial = h->immediate;
        find_losses(vi, h->immediate);
    }
}

/* Nothing has come since the deadline was set: half as many asks at a time, the oldest first, and twice the
 * patience. After max_retries the peer is given up. n counts asks that were sent; where the link is full the walk
 * ends at once. If not even the oldest could be sent the peer was not asked, and its silence says nothing: that is no
 * retry. Whether it lives the probes of an idle connection find out (keep_alive in reliable.c). */
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
        if (r->asks[i % VIA_ASKS].missing) {
            full = !send_ask(vi, i);
            n += !full;
        }
    if (n) {
        r->retries++;
        r->allowed = allowed;
        r->wait = 2 * r->wait < WAIT_LONGEST ? 2 * r->wait : WAIT_LONGEST;
    }
    arm(vi);
}

/* ---------------------------------------------------------------- answering */

/* The target's check, as for a write: VI and region must both allow it, the tag must be the same. */
static int read_granted(const struct via_vi *vi, const struct wire_read *b)
{
    if (!vi->attributes.EnableRdmaRead)
        return 0;
    if (b->len == 0)
        return 1;
    return via_mem_grants(vi->nic, b->handle, (void *)(uintptr_t)b->address, b->len, vi->ptag) &&
           (vi->nic->regions[b->handle & 0xFFFF].rights & VIA_RIGHT_READ);
}

/* What was_granted() and is_old() look at: the last ask of this place in the ring, and how far the numbers have
 * come. */
static void note_granted(struct via_reads *r, const struct answer *a)
{
    const struct wire_read *b = &a->read;
    r->granted[a->number % VIA_ASKS] = (struct granted){b->address, a->number, b->handle, b->len};
    if (!wire_before(a->number, r->seen))
        r->seen = a->number + 1;
}

/* This very ask, once before? Whoever changes anything in it has not been granted that. */
static int was_granted(const struct via_vi *vi, const struct answer *a)
{
    const struct granted *g = &vi->reads->granted[a->number % VIA_ASKS];
    const struct wire_read *b = &a->read;
    return g->len && g->number == a->number && g->address == b->address && g->handle == b->handle && g->len == b->len;
}

/* VIPL: an error of the target as well, told by its handler; the connection ends on both sides. */
static void refuse(struct via_vi *vi, uint32_t number)
{
    VI_COUNT(vi, dropped_protection, 1);
    via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAR_PROT);
    vi->error_psn = number;
    vi->error_status = VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_OP_RDMA_READ;
    via_send_control(vi, WIRE_ERROR, vi->error_psn, vi->error_status);
    via_break(vi, 1);
}

/* Sends what the link takes of the pieces wanted, straight from where they lie. 0 if some are left. */
static int send_pieces(struct via_vi *vi, struct answer *a)
{
    struct link_frame frames[VIA_BATCH];
    struct iovec iov[VIA_BATCH];
    uint32_t piece = a->read.piece, most = vi->nic->limits.max_batch;
    while (a->read.wanted) {
        int n = 0;
        /* From the lowest bit on; bits & bits - 1 takes it away. */
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

/* Have we taken data frames that its sender sent after it, or granted an ask that it may only make when this one is
 * done? Where nothing is lost or overtaken every ask is made once, and the requester waits for all of its answer. */
static int is_old(const struct via_vi *vi, const struct answer *a)
{
    return !vi->lossless &&
           (wire_before(a->read.next, vi->expected_psn) || wire_before(a->number + VIA_ASKS, vi->reads->seen));
}

/* An answer without data: what it is its length says. */
static void send_no_data(struct via_vi *vi, const struct answer *a, size_t len)
{
    static const uint8_t zeros[WIRE_READ_DENIED];
    VI_COUNT(vi, dropped_duplicate, 1);
    via_send_block(vi, WIRE_READ, WIRE_FLAG_LAST, a->number, a->serial, zeros, len);
}

/* 0 if the rest must wait for the link. In this order: an old request is answered without a look at the memory, a
 * refusal comes before anything is sent. */
static int serve(struct via_vi *vi, struct answer *a)
{
    if (is_old(vi, a)) {
        send_no_data(vi, a, 0);
        return 1;
    }
    if (!read_granted(vi, &a->read)) { /* again, after it has waited: the region may have been deregistered */
        if (a->read.wanted && !vi->lossless && was_granted(vi, a))
            send_no_data(vi, a, WIRE_READ_DENIED);
        else
            refuse(vi, a->number);
        return 1;
    }
    note_granted(vi->reads, a);
    return send_pieces(vi, a);
}

/* A request arrives. It is served at once if nothing waits before it; what the link does not take goes on by the
 * stall list. */
static void asked(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    struct answer a = {.number = h->psn, .serial = h->immediate};
    if (h->len != sizeof a.read || !via_reads_ready(vi)) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    memcpy(&a.read, payload, sizeof a.read);
    struct via_reads *r = vi->reads;
    uint64_t all = piece_is_possible(vi, a.read.piece) ? all_pieces(a.read.piece, a.read.len) : 0;
    if (all == 0 || (a.read.wanted & ~all) || (a.read.wanted == 0 && !was_granted(vi, &a)) ||
        r->answer_tail - r->answer_head == VIA_ASKS) {
        NIC_COUNT(vi->nic, dropped_malformed, 1); /* nobody asks so much or so many times, or insists at once */
        return;
    }
    if (h->flags & WIRE_FLAG_LAST && !wire_before(h->psn, r->counted) && !is_old(vi, &a) && read_granted(vi, &a.read)) {
        r->counted = h->psn + 1; /* asked again it is still the same read */
        VI_COUNT(vi, rdma_reads_received, 1);
    }
    if (r->answer_head == r->answer_tail && serve(vi, &a))
        return;
    r->answers[r->answer_tail++ % VIA_ASKS] = a;
    via_stall(vi);
}

/* FIRST tells requests from answers. Unreliable VIs have no reads (VIPL), so nobody sends them any. */
void via_read_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (!vi->reliable)
        NIC_COUNT(vi->nic, dropped_malformed, 1);
    else if (h->flags & WIRE_FLAG_FIRST)
        asked(vi, h, payload);
    else
        data_arrived(vi, h, payload);
}

/* What the link, the window of asks or an acknowledgement held up goes on: answers first, then asks. */
void via_reads_go_on(struct via_vi *vi)
{
    struct via_reads *r = vi->reads;
    while (vi->state == VIP_STATE_CONNECTED && r->answer_head != r->answer_tail) {
        if (!serve(vi, &r->answers[r->answer_head % VIA_ASKS])) {
            via_stall(vi);
            break;
        }
        if (r->answer_head != r->answer_tail) /* a refusal has emptied the list */
            r->answer_head++;
    }
    if (vi->state == VIP_STATE_CONNECTED)
        ask_all(vi);
}

/* The target refused the ask: its read fails in its turn. */
void via_read_refused(struct via_vi *vi, uint32_t number)
{
    struct via_reads *r = vi->reads;
    if (r == NULL || number - r->head >= r->tail - r->head)
        return;
    struct via_work *w = via_work_at(&vi->send, r->asks[number % VIA_ASKS].work);
    if (is_open(w))
        w->error = VIP_STATUS_RDMA_PROT_ERROR;
}
