/*
 * From descriptors to frames.
 *
 * A message becomes one of three things (decided once, when its turn comes, in start()):
 *   frames      pieces of `chunk` bytes, gathered from where the segments lie; every link can do it;
 *   reference   one frame that says where the message lies in our memory: the receiver fetches it in one copy (shm);
 *   placed      an RDMA write that we store into the peer's memory ourselves (shm): no frame, or one for immediate
 *               data.
 *
 * Frame numbers are given out when a message starts: frame k of it has psn first_psn + k, so that any frame can be
 * built again from its psn alone. tx_psn is the next one to hand to the link; going back means setting it back
 * (reliable.c).
 *
 * Numbers: next_psn is given out, to whole messages; tx_psn is handed to the link, frame by frame. On a connection
 * that is reliable over a lossy link, a message is kept (in its descriptor, not copied) until it is acknowledged,
 * and a frame that is sent again is gathered again from the program's memory: VIA's rule that posted memory belongs
 * to the NIC makes a retransmission buffer unnecessary.
 *
 * Who calls via_transmit(): the post (post.c), an acknowledgement that opens the window or completes a read
 * (reliable.c, read.c), the stall list when the link was full (engine.c), a time-out. It goes on until the queue is
 * empty, the window is closed or the link is full, and in each of these cases one of the callers will come again:
 * nothing is polled for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../link/flat.h"
#include "internal.h"
#include "tap.h"

#define REFERENCE_MAPPED 1024 /* from this many bytes on fetching beats two copies through the ring ... */
#define REFERENCE_CMA 16384   /* ... and from this many where each fetch is a system call */
/* Pieces of one batch. build_batch() begins no frame that might not find room, so at least the first has
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

/* The first local segment: before it RDMA has the remote address. */
static inline uint32_t first_local(const struct via_work *w)
{
    return (w->control & VIP_CONTROL_OP_MASK) != VIP_CONTROL_OP_SENDRECV;
}

/* Walks the segments up to offset and from there takes len bytes. The descriptor is the program's memory: lengths in
 * it may have changed since it was posted, so nothing here relies on their sum. Each piece is asked for right before
 * it is used, so what the program changes in a posted descriptor can change what is sent, but never lead outside
 * what is registered. */
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
        /* again, for the region may have been deregistered since the descriptor was posted */
        if (vk_unlikely(n == max || !via_mem_grants(vi->nic, s->Handle, p, take, vi->ptag)))
            return -1;
        iov[n++] = (struct iovec){p, take};
        len -= take;
        offset = 0;
    }
    return len == 0 ? n : -1;
}

/* A frame that belongs to no connection: handshakes, RESET. */
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

/* Fills in what all frames for the VI's peer have; an acknowledgement rides along. */
static inline void address_frame(struct via_vi *vi, struct link_frame *f, int kind, uint32_t psn)
{
    /* One copy of 32 bytes, then the few fields in which frames differ. */
    f->header = vi->tx_header;
    f->header.version_kind = wire_version_kind(kind);
    f->header.psn = psn;
    f->header.ack = vi->expected_psn;
    f->header_len = sizeof f->header;
    f->n_iov = 0;
    f->payload_len = 0;
    f->iov = NULL;
}

/* Every frame of a connection says what is expected next, so it acknowledges; what was owed is paid. */
static inline void ack_went_along(struct via_vi *vi)
{
    vi->acked_psn = vi->expected_psn;
    vi->ack_owed = 0;
}

/* Is there a frame for the peer in the list, before `end`? */
static int is_deferred(const struct link_flat *list, const struct link_flat *end, const struct link_peer *peer)
{
    for (; list != end; list = list->next)
        if (list->peer == peer)
            return 1;
    return 0;
}

/* All frames of connections but those of the short way go through here. What was put off for the same peer goes first.
 */
int via_link_send(struct via_nic *nic, struct link_peer *peer, struct link_frame *frames, int n)
{
    if (vk_unlikely(nic->deferred)) {
        via_send_deferred(nic);
        if (is_deferred(nic->deferred, NULL, peer))
            return -EAGAIN; /* nothing overtakes what was put off */
    }
    int sent = nic->ops->send(nic->link, peer, frames, n);
    if (vk_likely(sent > 0))
        NIC_COUNT(nic, frames_sent, sent);
    else
        NIC_COUNT(nic, send_stalls, 1);
    return sent;
}

void via_address_frame(struct via_vi *vi, struct link_frame *f, int kind, uint32_t psn)
{
    address_frame(vi, f, kind, psn);
}

int via_send_block(struct via_vi *vi, int kind, uint8_t flags, uint32_t psn, uint32_t immediate, const void *block,
                   size_t len)
{
    struct link_frame f;
    address_frame(vi, &f, kind, psn);
    f.header.flags |= flags;
    f.header.immediate = immediate;
    memcpy(f.block.bytes, block, len);
    f.header.len = (uint16_t)len;
    f.header_len += (uint32_t)len;
    int sent = via_link_send(vi->nic, vi->peer, &f, 1);
    if (sent == 1)
        ack_went_along(vi);
    return sent;
}

/* An acknowledgement or a probe that finds the link full is not put off: the one is owed then (via_send_ack), the other
 * repeated by its timer. What nobody would repeat (ERROR, DISCONNECT, NAK) is. */
int via_send_control(struct via_vi *vi, int kind, uint32_t psn, uint32_t immediate)
{
    struct link_frame f;
    address_frame(vi, &f, kind, psn);
    f.header.immediate = immediate;
    int sent = via_link_send(vi->nic, vi->peer, &f, 1);
    if (sent == 1)
        ack_went_along(vi);
    else if (kind != WIRE_ACK && kind != WIRE_PROBE)
        via_defer(vi->nic, vi->peer, &f);
    if (kind == WIRE_ACK && sent == 1)
        VI_COUNT(vi, acks_sent, 1);
    else if (kind == WIRE_NAK)
        VI_COUNT(vi, naks_sent, 1);
    return sent == 1;
}

/* ---------------------------------------------------------------- frames put off: the link was full */

void via_defer(struct via_nic *nic, struct link_peer *peer, const struct link_frame *f)
{
    struct link_flat *flat = nic->n_deferred < VIA_MAX_DEFERRED ? link_flatten(peer, f) : NULL, **end = &nic->deferred;
    if (flat == NULL) { /* as if the link had lost it: somebody makes us answer and does not read */
        NIC_COUNT(nic, dropped_backlog, 1);
        return;
    }
    nic->n_deferred++;
    while (*end)
        end = &(*end)->next;
    *end = flat;
    via_timer(nic, nic->now); /* whoever sleeps has something to do */
}

/* What link send returns. */
static int send_flat(struct via_nic *nic, const struct link_flat *flat)
{
    struct link_frame f;
    struct iovec iov;
    link_unflatten(flat, &f, &iov);
    return nic->ops->send(nic->link, flat->peer, &f, 1);
}

/* Those that can go now do. Each peer's keep their order; the list is short, and is walked as a whole. */
void via_send_deferred(struct via_nic *nic)
{
    for (struct link_flat **p = &nic->deferred; *p;) {
        struct link_flat *flat = *p;
        /* in order to each peer; one that is full does not hold up the others */
        if (is_deferred(nic->deferred, flat, flat->peer) || send_flat(nic, flat) == -EAGAIN) {
            p = &flat->next;
            continue;
        }
        NIC_COUNT(nic, frames_sent, 1);
        *p = flat->next;
        nic->n_deferred--;
        free(flat);
    }
}

/* A peer went away (NULL: all of them): nothing more for it. */
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

/* ---------------------------------------------------------------- how a message goes */

/* An RDMA write that we can store ourselves. 1 if done. Whoever cannot be stored to directly gets frames, whose
 * refusal, if it is one, comes from the target itself. */
static int try_place(struct via_vi *vi, struct via_work *w)
{
    const struct link_ops *ops = vi->nic->ops;
    const VIP_ADDRESS_SEGMENT *remote = &via_segment(w->descriptor, 0)->Remote;
    struct iovec iov[VIA_MAX_SEGMENTS];
    if (!vi->peer_rdma_write)
        return 0; /* the peer will say so */
    int n = via_gather(vi, w, 0, w->len, iov, VIA_MAX_SEGMENTS);
    if (n < 0)
        return 0;
    if (ops->place(vi->nic->link, vi->peer, remote->Handle, vi->peer_ptag, remote->Data.AddressBits, iov, n, w->len) !=
        0)
        return 0;
    VI_COUNT(vi, bytes_sent, w->len);
    return 1;
}

/* Can the receiver fetch all of the message from our memory, and is it worth it? The list of places must fit into one
 * frame, each piece must be reachable, and where each fetch is a system call the message must be long enough to pay for
 * it. */
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

/* A message is cut into equal pieces (super-frames need that). An RDMA write begins with its wire_write block, which
 * takes its place in the first piece. */
static inline uint32_t lead_of(const struct via_work *w)
{
    return is_write(w) ? (uint32_t)sizeof(struct wire_write) : 0;
}

/* The message's turn has come: how it goes is decided, its numbers are given out. It is not sent yet. wait_ack: the
 * descriptor completes only when the peer has acknowledged, which is so for all reliable sends over links that lose;
 * where nothing is lost "reliable delivery" is kept as soon as the link has the frame, and "reliable reception" (VIPL:
 * the data is in the target's memory) needs the word of the target. */
static void start(struct via_vi *vi, struct via_work *w)
{
    struct via_nic *nic = vi->nic;
    uint32_t whole = w->len + lead_of(w);
    w->n_frames = vk_likely(whole <= vi->chunk) ? 1 : (whole + vi->chunk - 1) / vi->chunk;
    w->wait_ack = vi->lossless ? vi->attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_RECEPTION : vi->reliable;
    if (vi->lossless) {
        /* A write is stored directly only when no earlier one is still under way by frames (write_psn): it would
         * overtake it. */
        if (is_write(w) && nic->ops->place && !wire_before(vi->una_psn, vi->write_psn) && try_place(vi, w)) {
            w->how = VIA_HOW_PLACED;
            w->n_frames = w->control & VIP_CONTROL_IMMEDIATE ? 1 : 0;
            w->wait_ack &= w->n_frames != 0;
        } else if (w->len >= REFERENCE_MAPPED && nic->ops->reach && may_refer(vi, w)) {
            w->how = VIA_HOW_REFERENCE;
            w->n_frames = 1;
            w->wait_ack = 1; /* our memory is needed until the peer has fetched */
        }
    }
    w->first_psn = vi->next_psn;
    vi->next_psn += w->n_frames;
    if (vi->lossless && is_write(w) && w->how != VIA_HOW_PLACED) {
        /* The next write may be placed only when this one is: a program may spin on the second to know of the first. */
        w->wait_ack = 1;
        vi->write_psn = vi->next_psn;
    }
    w->started = 1;
    VIA_TAP(nic, via_tap_doorbell(vi, w));
}

/* ---------------------------------------------------------------- building frames */

/* The frame with number psn of the work. Returns the iovecs used, -1 if memory is no longer granted. Any frame of any
 * work can be built at any time from its number: so sending again is building again. Piece k of a message of equal
 * chunks begins at k * chunk, less what the write block took of the first. */
static inline int build(struct via_vi *vi, const struct via_work *w, uint32_t psn, struct link_frame *f,
                        struct iovec *iov)
{
    /*     piece 0: | block | chunk - lead bytes |   piece 1: | chunk bytes |   ...   last: | the rest |
     *       offset  0                                 chunk - lead                  k * chunk - lead */
    uint32_t k = psn - w->first_psn, lead = lead_of(w), begin = k * vi->chunk, len = 0;
    uint32_t offset = k ? begin - lead : 0, room = k ? vi->chunk : vi->chunk - lead;
    int n = 0;
    address_frame(vi, f, is_write(w) ? WIRE_WRITE : WIRE_SEND, psn);
    if (k == 0)
        f->header.flags |= WIRE_FLAG_FIRST;
    if (k + 1 == w->n_frames) {
        f->header.flags |= WIRE_FLAG_LAST;
    }
    /* With the last frame, to be delivered; with the first of a write, too, whose target must know how to refuse it. */
    if ((w->control & VIP_CONTROL_IMMEDIATE) && (k + 1 == w->n_frames || (k == 0 && is_write(w)))) {
        f->header.flags |= WIRE_FLAG_IMMEDIATE;
        f->header.immediate = w->descriptor->CS.ImmediateData;
    }
    /* On a lossless link acknowledgements are asked for where they count; a reference keeps our memory busy until
     * then, so it wants its at once. */
    if (w->wait_ack && vi->lossless)
        f->header.flags |= WIRE_FLAG_MUST_ACK | (w->how == VIA_HOW_REFERENCE ? WIRE_FLAG_ACK_NOW : 0);
    /* Where the write goes stands in front of its first piece; what follows is placed behind that (place.c). */
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

/* Turns the payload of a built frame into the list of places where the message lies. */
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

/* Links that lose nothing say -EAGAIN instead, and unreliable connections have nothing to hold back for. */
static inline int window_open(const struct via_vi *vi)
{
    return vi->lossless || !vi->reliable || vi->flight_tail - vi->flight_seen < vi->window;
}

/* Four times per window, and when it is full, an acknowledgement is asked for; a lone message waits for a ride.
 * While time-outs pass in vain (retries) every send asks. */
static inline uint8_t ask_for_ack(const struct via_vi *vi)
{
    if (vi->lossless || !vi->reliable)
        return 0;
    uint32_t in_flight = vi->flight_tail - vi->flight_seen + 1, quarter = vi->window / 4 ? vi->window / 4 : 1;
    int ask = in_flight >= vi->window || (in_flight > 1 && in_flight % quarter == 0) || vi->retries;
    return ask ? WIRE_FLAG_ACK_NOW : 0;
}

/* One more link send, up to tx_psn, is on its way. Where frames may be lost, the end of each link send is remembered:
 * the window counts sends, acknowledgements count frames. */
static inline void took_off(struct via_vi *vi)
{
    if (vi->lossless || !vi->reliable)
        return;
    vi->flight_end[vi->flight_tail++ & (VIA_FLIGHT - 1)] = vi->tx_psn;
    if (vi->rto_deadline == VK_NEVER)
        via_arm_rto(vi);
    if (!vi->rtt.timing && vi->nic->now >= vi->rtt.next_at)
        via_rtt_begin(vi);
}

/* n frames from tx_psn on were taken by the link. Counts, moves tx_psn (and high_psn, unless they were frames sent
 * again), and with the last frame of the work moves on to the next. */
static void took(struct via_vi *vi, struct via_work *w, int n, uint32_t bytes)
{
    /* Below the highest number ever sent: these have been sent before. */
    if (vk_unlikely(wire_before(vi->tx_psn, vi->high_psn)))
        VI_COUNT(vi, frames_retransmitted, n);
    else
        VI_COUNT(vi, bytes_sent, bytes);
    vi->counters[VIAKIT_COUNTER_frames_sent] += (uint64_t)n;
    vi->tx_psn += (uint32_t)n;
    if (wire_before(vi->high_psn, vi->tx_psn))
        vi->high_psn = vi->tx_psn;
    ack_went_along(vi);
    took_off(vi);
    /* The last frame may come by again, after a time-out; the message is counted once. */
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

/* What is left of the work's frames is never sent. Their numbers are used up all the same, for those of the works
 * behind it follow them: the receiver sees a gap. */
static void skip_rest(struct via_vi *vi, const struct via_work *w)
{
    vi->tx_psn = w->first_psn + w->n_frames;
    if (wire_before(vi->high_psn, vi->tx_psn))
        vi->high_psn = vi->tx_psn;
}

/* The work cannot go on: its memory was deregistered under it. It completes in its turn, and takes a reliable
 * connection with it. */
static void spoil(struct via_vi *vi, struct via_work *w)
{
    w->error = VIP_STATUS_PROTECTION_ERROR;
    w->sent = 1;
    skip_rest(vi, w);
    vi->send.next++;
    via_complete_sends(vi);
}

/* Frames of one link send, while they are made. */
struct batch {
    struct link_frame frames[VIA_BATCH];
    struct iovec iov[MAX_IOV];
    struct wire_reference list[VIA_MAX_SEGMENTS];
};

/* The work's frames from psn on: a batch, or what is left of it, at most `most`. Returns their number, -1 if memory is
 * gone. */
static inline __attribute__((always_inline)) int build_batch(struct via_vi *vi, const struct via_work *w, uint32_t psn,
                                                             uint32_t most, struct batch *b)
{
    uint32_t end = w->first_psn + w->n_frames, max = vi->nic->limits.max_batch;
    int n = 0, used = 0;
    max = most < max ? most : max;
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

/* Sends up to a batch of the work's frames. Returns 0 when the VI must wait. */
static int send_some(struct via_vi *vi, struct via_work *w)
{
    struct batch b;
    uint32_t bytes = 0;
    int n = build_batch(vi, w, vi->tx_psn, VIA_BATCH, &b);
    if (n < 0) {
        spoil(vi, w);
        return 1;
    }
    /* The last one only: whoever has it in turn has all of them. */
    b.frames[n - 1].header.flags |= ask_for_ack(vi);
    int sent = via_link_send(vi->nic, vi->peer, b.frames, n);
    if (sent <= 0)
        return 0;
    for (int i = 0; i < sent; i++)
        bytes += w->how == VIA_HOW_REFERENCE ? w->len : (uint32_t)b.frames[i].payload_len;
    took(vi, w, sent, bytes);
    return sent == n;
}

/* For repeat.c and the tail probe: tx_psn and the window stay as they are, only the frames are built and sent once
 * more. */
int via_send_again(struct via_vi *vi, uint32_t psn, uint32_t n, uint8_t flags, uint32_t *hint)
{
    struct via_queue *q = &vi->send;
    struct via_work *w = NULL;
    struct batch b;
    /* The work whose frames have that number. Works hold rising numbers, so a caller who goes upwards keeps the
     * hint. */
    for (; *hint != q->posted; ++*hint) {
        w = via_work_at(q, *hint);
        if (w->started && !wire_before(psn, w->first_psn) && wire_before(psn, w->first_psn + w->n_frames))
            break;
    }
    if (*hint == q->posted)
        return 0; /* spoilt: never sent */
    int built = build_batch(vi, w, psn, n, &b);
    if (built < 0) {
        w->error =
            VIP_STATUS_PROTECTION_ERROR; /* completes in its turn, which has come: all before it is acknowledged */
        via_complete_sends(vi);
        return -1;
    }
    b.frames[built - 1].header.flags |= flags;
    int sent = via_link_send(vi->nic, vi->peer, b.frames, built);
    if (sent <= 0)
        return 0;
    VI_COUNT(vi, frames_retransmitted, sent);
    VI_COUNT(vi, frames_sent, sent);
    ack_went_along(vi);
    if (vi->rtt.timing && !wire_before(vi->rtt.psn - 1, psn) && wire_before(vi->rtt.psn - 1, psn + (uint32_t)sent))
        vi->rtt.timing = 0; /* whose answer it was nobody could tell */
    return sent;
}

/* The link was full: engine.c calls via_transmit() again at each look until there is room. It is on the list once. */
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

/* What most messages are, in a straight line: one frame, one piece, nothing waiting before it. Returns 0 if it has
 * to go the long way after all; nothing is changed then. The conditions, in order: one segment found granted, short
 * enough for the link's short way, nothing wrong with it, nothing put off that it would overtake, no region gone
 * since (epoch), all before it handed to the link, nothing being sent again, window open. */
static inline int transmit_short(struct via_vi *vi, struct via_work *w)
{
    struct via_nic *nic = vi->nic;
    if (!w->is_short || w->len >= nic->limits.short_below || w->error || nic->deferred ||
        w->epoch != nic->region_epoch || vi->tx_psn != vi->next_psn || vi->high_psn != vi->next_psn || !window_open(vi))
        return 0;
    int wait_ack = vi->reliable && (!vi->lossless || vi->attributes.ReliabilityLevel == VIP_SERVICE_RELIABLE_RECEPTION);
    uint32_t flags = ask_for_ack(vi), immediate = 0;
    if (vi->lossless && wait_ack)
        flags |= WIRE_FLAG_MUST_ACK;
    if (vk_unlikely(w->control & VIP_CONTROL_IMMEDIATE)) {
        flags |= WIRE_FLAG_IMMEDIATE;
        immediate = w->descriptor->CS.ImmediateData;
    }
    /* The four words of wire.h: flags from bit 8, length from bit 16 of the first; psn and acknowledgement;
     * immediate data, and a checksum field of 0 for the link to fill in. */
    const uint64_t header[WIRE_WORDS] = {vi->tx_words[0] | flags << 8 | w->len << 16, vi->tx_words[1],
                                         vi->next_psn | (uint64_t)vi->expected_psn << 32, immediate};
    if (vk_unlikely(!nic->ops->send_short(nic->link, vi->peer, header, w->data, w->len)))
        return 0;
    w->first_psn = vi->next_psn++;
    w->n_frames = 1;
    w->started = w->sent = 1;
    w->wait_ack = (uint8_t)wait_ack;
    vi->tx_psn = vi->high_psn = vi->next_psn;
    vi->send.next++;
    ack_went_along(vi);
    took_off(vi);
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

/* The next on the queue is a read: it needs no turn in the sequence, and what is behind it goes on. */
static void begin_read(struct via_vi *vi, struct via_work *w)
{
    int complete = !w->started && via_read_begin(vi, w, vi->send.next);
    vi->send.next++;
    if (complete)
        via_complete_sends(vi);
    else
        via_reads_go_on(vi);
}

/* One turn per work or batch: each `continue` has moved q->next on, each `return` leaves somebody who will call again.
 */
void via_transmit(struct via_vi *vi)
{
    struct via_queue *q = &vi->send;
    if (vk_likely(q->next + 1 == q->posted) && transmit_short(vi, via_work_at(q, q->next)))
        return;
    while (q->next != q->posted && vi->state == VIP_STATE_CONNECTED) {
        if (vk_unlikely(vi->deferring && q->next == vi->hold_from))
            return; /* the program says when */
        struct via_work *w = via_work_at(q, q->next);
        if (vk_unlikely(w->error)) {
            if (w->started) /* spoilt, and come by again */
                skip_rest(vi, w);
            else if (!w->sent) { /* it has no frames, but a place among them: who goes back or forward asks for it */
                w->first_psn = vi->next_psn;
                w->n_frames = 0;
            }
            w->sent = 1;
            q->next++;
            via_complete_sends(vi);
            continue;
        }
        if (vk_unlikely(w->control & (VIP_CONTROL_QFENCE | VIP_CONTROL_OP_RDMAREAD))) {
            if (!w->started && w->control & VIP_CONTROL_QFENCE && via_reads_open(vi))
                return; /* the last of the reads will call again */
            if (is_read(w)) {
                begin_read(vi, w);
                continue;
            }
        }
        if (!w->started)
            start(vi, w);
        if (w->n_frames == 0) { /* placed, and nothing to tell */
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
