/*
 * Turns descriptors into frames.
 *
 * A message is sent in one of four ways, chosen once, when its turn comes, in start():
 *
 *   frames      pieces of `chunk` bytes, gathered from where the segments lie; every link can do it
 *   reference   one frame with the addresses of the message in our memory: the receiver fetches it in one copy (shm)
 *   placed      an RDMA write that this side stores into the peer's memory itself (shm): no frame, or one for immediate
 *               data
 *   card        an RDMA write by the link's card (verbs), before start(); afterwards it is a placed one (card.c).
 *
 * Frame numbers are assigned when a message starts: frame k of it has psn first_psn + k, so any frame can be built
 * again from its psn alone. next_psn is the next number to assign, to whole messages. tx_psn is the next number to hand
 * to the link, frame by frame; going back means setting it back (reliable.c).
 *
 * On a connection that is reliable over a lossy link, a message is kept (in its descriptor, not copied) until it is
 * acknowledged. A retransmitted frame is gathered again from the program's memory. VIA's rule that posted memory
 * belongs to the NIC makes a retransmission buffer unnecessary.
 *
 * via_transmit() has four callers:
 *
 * - the post (post.c)
 * - an acknowledgement that opens the window or completes a read (reliable.c, read.c)
 * - the stall list when the link was full (engine.c)
 * - a time-out (reliable.c)
 *
 * It continues until the queue is empty, the window is closed or the link is full. In each of these cases one of the
 * callers will call again, so no polling is needed.
 *
 * Only the NIC's owner calls these functions.
 */
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/virtual.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/limits.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/observer.h"
#include "via/vi.h"
#include "via/work.h"

#define REFERENCE_MAPPED 4096 /* from this many bytes on, fetching beats two copies through the ring ... */
#define REFERENCE_CMA 16384   /* ... and from this many if each fetch is a system call */
/* The pieces of one batch. build_batch() begins no frame that might not find space, so at least the first has
 * VIA_MAX_SEGMENTS. */
#define MAX_IOV 640

static inline int is_write(const struct via_work *w)
{
    return (w->control & VIP_CONTROL_OP_MASK) == VIP_CONTROL_OP_RDMAWRITE;
}

static inline int is_read(const struct via_work *w)
{
    return (w->control & VIP_CONTROL_OP_MASK) == VIP_CONTROL_OP_RDMAREAD;
}

/* The index of the first local segment: RDMA has the remote address before it. */
static inline uint32_t first_local(const struct via_work *w)
{
    return (w->control & VIP_CONTROL_OP_MASK) != VIP_CONTROL_OP_SENDRECV;
}

/* Walks the segments up to offset and collects len bytes from there. The descriptor is the program's memory: its
 * lengths may have changed since it was posted, so this function does not rely on their sum. Each piece is checked
 * right before it is used. A program that changes a posted descriptor can change the data that is sent, but no access
 * leaves registered memory. */
int via_gather(struct via_vi *vi, const struct via_work *w, uint32_t offset, uint32_t len, struct iovec *iov, int max)
{
    int n = 0;
    for (uint32_t i = first_local(w); len && i < w->seg_count; i++) {
        const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, i)->Local;
        uint32_t have = s->Length;
        if (offset >= have) {
            offset -= have;
            continue;
        }
        uint32_t take = have - offset < len ? have - offset : len;
        char *p = (char *)s->Data.Address + offset;
        /* Check again: the region may have been deregistered since the descriptor was posted. */
        if (vk_unlikely(n == max || !via_mem_grants(vi->nic, s->Handle, p, take, vi->ptag)))
            return -1;
        iov[n++] = (struct iovec){p, take};
        len -= take;
        offset = 0;
    }
    return len == 0 ? n : -1;
}

/* ---------------------------------------------------------------- choosing how to send a message */

/* Stores an RDMA write directly into the peer's memory. Returns 1 if done. If that is not possible, the write is sent
 * as frames, and the target itself refuses them if it must. */
static int try_place(struct via_vi *vi, struct via_work *w)
{
    const struct link_ops *ops = vi->nic->ops;
    const VIP_ADDRESS_SEGMENT *remote = &via_segment(w->descriptor, 0)->Remote;
    struct iovec iov[VIA_MAX_SEGMENTS];
    if (!vi->peer_rdma_write)
        return 0; /* the target will refuse it */
    int n = via_gather(vi, w, 0, w->len, iov, VIA_MAX_SEGMENTS);
    if (n < 0)
        return 0;
    if (ops->place(vi->nic->link, vi->peer, remote->Handle, vi->peer_ptag, remote->Data.AddressBits, iov, n, w->len) !=
        0)
        return 0;
    VI_COUNT(vi, bytes_sent, w->len);
    return 1;
}

/* True if the receiver can fetch the whole message from our memory, and if that pays. The list of addresses must fit
 * into one frame, and each piece must be reachable. If each fetch is a system call, the message must be long enough to
 * pay for it. */
static int may_refer(struct via_vi *vi, const struct via_work *w)
{
    const struct link_ops *ops = vi->nic->ops;
    if (w->len < REFERENCE_MAPPED ||
        w->seg_count * sizeof(struct wire_reference) + sizeof(struct wire_write) > vi->chunk)
        return 0;
    int worst = 1;
    for (uint32_t i = is_write(w) ? 1 : 0; i < w->seg_count; i++) {
        const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, i)->Local;
        int how = s->Length ? ops->reach(vi->nic->link, vi->peer, s->Data.Address, s->Length) : 1;
        if (how == 0)
            return 0;
        worst = how > worst ? how : worst;
    }
    return worst == 1 || w->len >= REFERENCE_CMA;
}

/* A message is cut into equal pieces, as super-frames require. An RDMA write begins with its wire_write block, which
 * takes its space from the first piece. */
static inline uint32_t lead_of(const struct via_work *w)
{
    return is_write(w) ? (uint32_t)sizeof(struct wire_write) : 0;
}

/* Starts a message: chooses how to send it and assigns its numbers. It is not sent yet. wait_ack: the descriptor
 * completes only when the peer has acknowledged. That is so for all reliable sends over links that lose frames. On a
 * lossless link "reliable delivery" is reached as soon as the link has the frame; "reliable reception" (VIPL: the data
 * is in the target's memory) needs the target's acknowledgement. */
static void start(struct via_vi *vi, struct via_work *w)
{
    struct via_nic *nic = vi->nic;
    uint32_t whole = w->len + lead_of(w);
    w->n_frames = vk_likely(whole <= vi->chunk) ? 1 : (whole + vi->chunk - 1) / vi->chunk;
    w->wait_ack = vi->lossless ? vi->attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_RECEPTION : vi->reliable;
    if (vi->lossless) {
        /* A write is stored directly only if no earlier one is still in flight as frames (write_psn): it would overtake
         * it. */
        if (is_write(w) && nic->ops->place && !wire_before(vi->una_psn, vi->write_psn) && try_place(vi, w)) {
            w->how = VIA_HOW_PLACED;
            w->n_frames = w->control & VIP_CONTROL_IMMEDIATE ? 1 : 0;
            w->wait_ack &= w->n_frames != 0;
        } else if (w->len >= REFERENCE_MAPPED && nic->ops->reach && may_refer(vi, w)) {
            w->how = VIA_HOW_REFERENCE;
            w->n_frames = 1;
            w->wait_ack = 1; /* our memory is needed until the peer has fetched it */
        }
    }
    w->first_psn = vi->next_psn;
    vi->next_psn += w->n_frames;
    if (vi->lossless && is_write(w) && w->how != VIA_HOW_PLACED) {
        /* The next write may be placed only when this one is: a program may poll the second to detect the first. */
        w->wait_ack = 1;
        vi->write_psn = vi->next_psn;
    }
    w->started = 1;
    VIA_OBSERVE(nic, doorbell, vi, w);
}

/* ---------------------------------------------------------------- building frames */

/* Builds the work's frame with number psn. Returns the number of iovecs used, -1 if memory is no longer granted. Any
 * frame of any work can be built at any time from its number, so retransmitting means building again. Piece k of a
 * message of equal chunks begins at k * chunk, less the space of the write block in the first piece. */
static inline int build(struct via_vi *vi, const struct via_work *w, uint32_t psn, struct link_frame *f,
                        struct iovec *iov)
{
    /*     piece 0: | block | chunk - lead bytes |   piece 1: | chunk bytes |   ...   last: | the rest |
     *       offset  0                                 chunk - lead                  k * chunk - lead */
    uint32_t k = psn - w->first_psn, lead = lead_of(w), begin = k * vi->chunk, len = 0;
    uint32_t offset = k ? begin - lead : 0, room = k ? vi->chunk : vi->chunk - lead;
    int n = 0;
    via_address_frame(vi, f, is_write(w) ? WIRE_WRITE : WIRE_SEND, psn);
    if (k == 0)
        f->header.flags |= WIRE_FLAG_FIRST;
    if (k + 1 == w->n_frames) {
        f->header.flags |= WIRE_FLAG_LAST;
    }
    /* With the last frame, to be delivered; also with the first of a write, because the target must know how to refuse
     * it. */
    if ((w->control & VIP_CONTROL_IMMEDIATE) && (k + 1 == w->n_frames || (k == 0 && is_write(w)))) {
        f->header.flags |= WIRE_FLAG_IMMEDIATE;
        f->header.immediate = w->descriptor->CS.ImmediateData;
    } else
        f->header.immediate = k; /* the receiver can place the frame before the ones in front of it (ahead.c) */
    /* On a lossless link acknowledgements are requested only if they are needed. A reference keeps our memory in use
     * until then. The program of a write's target may find the data in its memory and not call the library again for
     * long. So both request one at once. Not for writes in virtual time, where the acknowledgement would wake a writer
     * that sleeps until an interrupt, and spare it the interrupt of the data that it waits for. */
    if (w->wait_ack && vi->lossless) {
        int now = w->how == VIA_HOW_REFERENCE || (is_write(w) && k + 1 == w->n_frames && !vk_time_is_virtual());
        f->header.flags |= WIRE_FLAG_MUST_ACK | (now ? WIRE_FLAG_ACK_NOW : 0);
    }
    /* The destination of a write precedes its first piece; later pieces are placed behind it (place.c). */
    if (is_write(w) && k == 0) {
        const VIP_ADDRESS_SEGMENT *remote = &via_segment(w->descriptor, 0)->Remote;
        f->block.write = (struct wire_write){remote->Data.AddressBits, remote->Handle, w->len};
        f->header_len += (uint32_t)sizeof f->block.write;
    }
    if (vk_likely(w->how == VIA_HOW_FRAMES)) {
        len = w->len - offset < room ? w->len - offset : room;
        n = len ? via_gather(vi, w, offset, len, iov, MAX_IOV) : 0;
    } else if (w->how == VIA_HOW_PLACED)
        f->header.flags |= WIRE_FLAG_PLACED;
    if (n < 0)
        return -1;
    f->iov = iov;
    f->n_iov = (uint32_t)n;
    f->payload_len = len;
    f->header.len = (uint16_t)(f->header_len - sizeof f->header + len);
    return n;
}

/* Replaces the payload of a built frame by the list of addresses of the message. */
static int refer(struct via_vi *vi, const struct via_work *w, struct link_frame *f, struct wire_reference *list,
                 struct iovec *iov)
{
    struct iovec pieces[VIA_MAX_SEGMENTS];
    int n = via_gather(vi, w, 0, w->len, pieces, VIA_MAX_SEGMENTS);
    if (n < 0)
        return -1;
    for (int i = 0; i < n; i++)
        list[i] = (struct wire_reference){(uint64_t)(uintptr_t)pieces[i].iov_base, pieces[i].iov_len};
    f->header.flags |= WIRE_FLAG_REFERENCE;
    *iov = (struct iovec){list, (size_t)n * sizeof *list};
    f->iov = iov;
    f->n_iov = 1;
    f->payload_len = iov->iov_len;
    f->header.len = (uint16_t)(f->header_len - sizeof f->header + f->payload_len);
    return 1;
}

/* True if the window allows another link send. Lossless links return -EAGAIN instead, and unreliable connections have
 * no window. */
static inline int window_open(const struct via_vi *vi)
{
    return vi->lossless || !vi->reliable || vi->flight_tail - vi->flight_seen < vi->window;
}

/* Requests an acknowledgement four times per window, and when the window is full; a single message waits until a frame
 * carries one. While time-outs pass without progress (retries) every send requests one. */
static inline uint8_t ack_request(const struct via_vi *vi)
{
    if (vi->lossless || !vi->reliable)
        return 0;
    uint32_t in_flight = vi->flight_tail - vi->flight_seen + 1, quarter = vi->window / 4 ? vi->window / 4 : 1;
    int request = in_flight >= vi->window || (in_flight > 1 && in_flight % quarter == 0) || vi->retries;
    return request ? WIRE_FLAG_ACK_NOW : 0;
}

/* Notes one more link send in flight, up to tx_psn. If frames may be lost, the end of each link send is remembered,
 * because the window counts sends and acknowledgements count frames. again: its last frame was sent before. */
static inline void note_in_flight(struct via_vi *vi, int again)
{
    if (vi->lossless || !vi->reliable)
        return;
    vi->flight_end[vi->flight_tail++ & (VIA_FLIGHT - 1)] = (uint16_t)vi->tx_psn;
    if (vi->rto_deadline == VK_NEVER)
        via_arm_rto(vi);
    if (!again && !vi->rtt.timing && vi->nic->now >= vi->rtt.next_at)
        via_rtt_begin(vi);
}

/* Updates the VI after the link has accepted n frames from tx_psn on: counts them, advances tx_psn (and high_psn,
 * unless the frames were retransmitted), and after the last frame of the work advances to the next work. */
static void note_sent(struct via_vi *vi, struct via_work *w, int n, uint32_t bytes)
{
    /* Frames below the highest number ever sent are retransmissions. */
    int again = wire_before(vi->tx_psn, vi->high_psn);
    if (vk_unlikely(again))
        VI_COUNT(vi, frames_retransmitted, n);
    else
        VI_COUNT(vi, bytes_sent, bytes);
    vi->counters[VIAKIT_COUNTER_frames_sent] += (uint64_t)n;
    vi->tx_psn += (uint32_t)n;
    if (wire_before(vi->high_psn, vi->tx_psn))
        vi->high_psn = vi->tx_psn;
    via_ack_piggybacked(vi);
    note_in_flight(vi, again);
    /* The last frame may be sent again, after a time-out; the message is counted once. */
    if (vi->tx_psn == w->first_psn + w->n_frames) {
        if (!w->sent) {
            w->sent = 1;
            VI_COUNT(vi, messages_sent, 1);
            if (is_write(w))
                VI_COUNT(vi, rdma_writes_sent, 1);
        }
        vi->send.next++;
    }
}

/* Skips the rest of the work's frames, which are never sent. Their numbers are used all the same, because those of
 * later works follow them: the receiver sees a gap. */
static void skip_rest(struct via_vi *vi, const struct via_work *w)
{
    vi->tx_psn = w->first_psn + w->n_frames;
    if (wire_before(vi->high_psn, vi->tx_psn))
        vi->high_psn = vi->tx_psn;
}

/* Fails a work whose memory was deregistered while it was sent. It completes in its turn, and ends a reliable
 * connection. */
static void spoil(struct via_vi *vi, struct via_work *w)
{
    w->error = VIP_STATUS_PROTECTION_ERROR;
    w->sent = 1;
    skip_rest(vi, w);
    vi->send.next++;
    via_complete_sends(vi);
}

/* The frames of one link send, while they are built. */
struct batch {
    struct link_frame frames[VIA_BATCH];
    struct iovec iov[MAX_IOV];
    struct wire_reference list[VIA_MAX_SEGMENTS];
};

/* Builds the work's frames from psn on: a batch, or the rest of it, at most `most`. Returns their number, -1 if memory
 * is no longer granted. */
static inline __attribute__((always_inline)) int build_batch(struct via_vi *vi, const struct via_work *w, uint32_t psn,
                                                             uint32_t most, struct batch *b)
{
    uint32_t end = w->first_psn + w->n_frames, max = vi->nic->limits.max_batch;
    int n = 0, used = 0;
    max = most < max ? most : max;
    /* Stops before a frame whose pieces might not fit: a frame has VIA_MAX_SEGMENTS at most. */
    while (psn + (uint32_t)n != end && n < (int)max && used + VIA_MAX_SEGMENTS < MAX_IOV) {
        int k = build(vi, w, psn + (uint32_t)n, &b->frames[n], &b->iov[used]);
        if (k >= 0 && w->how == VIA_HOW_REFERENCE)
            k = refer(vi, w, &b->frames[n], b->list, &b->iov[used]);
        if (k < 0)
            return -1;
        used += k;
        n++;
    }
    return n;
}

/* Sends up to a batch of the work's frames. Returns 0 if the VI must wait. */
static int send_some(struct via_vi *vi, struct via_work *w)
{
    struct batch b;
    uint32_t bytes = 0;
    int n = build_batch(vi, w, vi->tx_psn, VIA_BATCH, &b);
    if (n < 0) {
        spoil(vi, w);
        return 1;
    }
    /* Only the last one: a receiver that has it in sequence has all of them. */
    b.frames[n - 1].header.flags |= ack_request(vi);
    int sent = via_link_send(vi->nic, vi->peer, b.frames, n);
    if (sent <= 0)
        return 0;
    /* A frame with a reference has a list as its payload, but stands for the whole message. */
    for (int i = 0; i < sent; i++)
        bytes += w->how == VIA_HOW_REFERENCE ? w->len : (uint32_t)b.frames[i].payload_len;
    note_sent(vi, w, sent, bytes);
    return sent == n;
}

/* For retransmit.c and the tail probe: the frames are built and sent again; tx_psn and the window do not change. */
int via_send_again(struct via_vi *vi, uint32_t psn, uint32_t n, uint8_t flags, uint32_t *hint)
{
    struct via_queue *q = &vi->send;
    struct via_work *w = NULL;
    struct batch b;
    /* Find the work with that frame number. Works hold rising numbers, so a caller with rising numbers keeps the hint.
     */
    for (; *hint != q->posted; ++*hint) {
        w = via_work_at(q, *hint);
        if (w->started && !wire_before(psn, w->first_psn) && wire_before(psn, w->first_psn + w->n_frames))
            break;
    }
    if (*hint == q->posted)
        return 0; /* a failed work: never sent */
    int built = build_batch(vi, w, psn, n, &b);
    if (built < 0) {
        w->error = VIP_STATUS_PROTECTION_ERROR; /* completes now: all before it is acknowledged */
        via_complete_sends(vi);
        return -1;
    }
    b.frames[built - 1].header.flags |= flags;
    int sent = via_link_send(vi->nic, vi->peer, b.frames, built);
    if (sent <= 0)
        return 0;
    VI_COUNT(vi, frames_retransmitted, sent);
    VI_COUNT(vi, frames_sent, sent);
    via_ack_piggybacked(vi);
    if (vi->rtt.timing && !wire_before(vi->rtt.psn - 1, psn) && wire_before(vi->rtt.psn - 1, psn + (uint32_t)sent))
        vi->rtt.timing = 0; /* the reply could not be attributed to one of the copies */
    return sent;
}

/* Puts the VI on the stall list because the link was full: engine.c calls via_transmit() again at each poll until there
 * is space. A VI is on the list once. */
void via_stall(struct via_vi *vi)
{
    struct via_nic *nic = vi->nic;
    if (vi->on_stall_list)
        return;
    vi->on_stall_list = 1;
    vi->stall_next = nic->stall_list;
    nic->stall_list = vi;
    via_timer(nic, nic->now);
}

/* The short path of most messages: one frame, one piece, nothing waiting before it. Returns 0, with nothing changed, if
 * the message needs the long path. The conditions, in order:
 *
 * - one segment, found granted
 * - short enough for the link's short path
 * - no error in the work
 * - no deferred frame that it would overtake
 * - no region removed since (epoch)
 * - all earlier frames handed to the link, and none being retransmitted
 * - the window open. */
static inline int transmit_short(struct via_vi *vi, struct via_work *w)
{
    struct via_nic *nic = vi->nic;
    if (!w->is_short || w->len >= nic->limits.short_below || w->error || nic->deferred ||
        w->epoch != nic->region_epoch || vi->tx_psn != vi->next_psn || vi->high_psn != vi->next_psn || !window_open(vi))
        return 0;
    int wait_ack = vi->reliable && (!vi->lossless || vi->attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_RECEPTION);
    uint32_t flags = ack_request(vi), immediate = 0;
    if (vi->lossless && wait_ack)
        flags |= WIRE_FLAG_MUST_ACK;
    if (vk_unlikely(w->control & VIP_CONTROL_IMMEDIATE)) {
        flags |= WIRE_FLAG_IMMEDIATE;
        immediate = w->descriptor->CS.ImmediateData;
    }
    /* The words of frame_format.h. The first has flags from bit 8 and the length from bit 16. The third has psn and
     * acknowledgement. The fourth has immediate data and a checksum field of 0, which the link fills in. */
    const uint64_t header[WIRE_WORDS] = {vi->tx_words[0] | flags << 8 | w->len << 16, vi->tx_words[1],
                                         vi->next_psn | (uint64_t)vi->expected_psn << 32, immediate};
    /* The link comes before all changes: if it is full, the long path finds the VI as it was. */
    if (vk_unlikely(!nic->ops->send_short(nic->link, vi->peer, header, w->data, w->len)))
        return 0;
    w->first_psn = vi->next_psn++;
    w->n_frames = 1;
    w->started = w->sent = 1;
    w->wait_ack = (uint8_t)wait_ack;
    vi->tx_psn = vi->high_psn = vi->next_psn;
    vi->send.next++;
    via_ack_piggybacked(vi);
    note_in_flight(vi, 0);
    NIC_COUNT(nic, frames_sent, 1);
    VI_COUNT(vi, frames_sent, 1);
    VI_COUNT(vi, messages_sent, 1);
    VI_COUNT(vi, bytes_sent, w->len);
    if (!wait_ack && vi->send.done + 1 == vi->send.next) {
        vi->una_psn = vi->next_psn; /* nothing is outstanding */
        via_complete(vi, &vi->send, w->control & VIP_CONTROL_IMMEDIATE ? VIP_STATUS_IMMEDIATE : 0);
    }
    return 1;
}

/* Begins the read that is next on the queue. It takes no number in the sequence, and the works behind it do not wait.
 */
static void begin_read(struct via_vi *vi, struct via_work *w)
{
    int complete = !w->started && via_read_begin(vi, w, vi->send.next);
    vi->send.next++;
    if (complete)
        via_complete_sends(vi);
    else
        via_reads_go_on(vi);
}

/* Sends what the window and the link allow. The loop handles one work or batch per pass: each `continue` has advanced
 * q->next, each `return` leaves a caller that will call again. */
void via_transmit(struct via_vi *vi)
{
    struct via_queue *q = &vi->send;
    const struct via_nic *nic = vi->nic;
    if (vk_likely(q->next + 1 == q->posted) && transmit_short(vi, via_work_at(q, q->next)))
        return;
    while (q->next != q->posted && vi->state == VIP_STATE_CONNECTED) {
        if (vk_unlikely(vi->deferring && q->next == vi->hold_from))
            return; /* until the program calls VipPostDeferredSends */
        struct via_work *w = via_work_at(q, q->next);
        if (vk_unlikely(w->error)) {
            if (w->started) /* failed after its start, and reached again */
                skip_rest(vi, w);
            else if (!w->sent) { /* no frames, but a position in the sequence, for going back or skipping */
                w->first_psn = vi->next_psn;
                w->n_frames = 0;
            }
            w->sent = 1;
            q->next++;
            via_complete_sends(vi);
            continue;
        }
        if (vk_unlikely(w->control & (VIP_CONTROL_QFENCE | VIP_CONTROL_OP_MASK))) {
            if (!w->started && w->control & VIP_CONTROL_QFENCE && via_reads_open(vi))
                return; /* the last of the reads will call again */
            if (is_read(w)) {
                begin_read(vi, w);
                continue;
            }
            if (is_write(w) && nic->ops->card && !w->started && !via_card_write(vi, w))
                return; /* until the card has placed it, or cannot */
        }
        if (!w->started)
            start(vi, w);
        if (w->n_frames == 0) { /* placed, and no frame to send */
            w->sent = 1;
            q->next++;
            VI_COUNT(vi, messages_sent, 1);
            VI_COUNT(vi, rdma_writes_sent, 1);
            via_complete_sends(vi);
            continue;
        }
        if (vk_unlikely(!window_open(vi))) {
            VI_COUNT(vi, window_stalls, 1);
            return; /* an acknowledgement will call again */
        }
        if (vk_unlikely(!send_some(vi, w))) {
            via_stall(vi);
            return;
        }
        if (!vi->reliable || vi->lossless)
            via_complete_sends(vi);
    }
}
