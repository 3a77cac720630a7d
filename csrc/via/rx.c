/*
 * From frames to completions. Everything here was written by somebody else: each field is checked before it is used, and a frame that
 * does not fit is dropped and counted by reason. Nothing is written but into receive descriptors that the program posted and
 * regions that grant it.
 *
 * Order of the checks: shape (length, version, kind), checksum, destination (port, VI, key), acknowledgement, sequence number, and
 * only then the content. Pieces of a message are placed as they come, in order; the status of the receive descriptor is written last.
 */
#include <string.h>

#include "../base/copy.h"
#include "../base/crc32c.h"
#include "internal.h"
#include "tap.h"

/* ---------------------------------------------------------------- placing bytes */

/* Where the next len bytes of the receive descriptor go: local pieces from the present position on. Returns their number, and what
 * is wrong in *error: PROTECTION (memory not granted any more) or LENGTH (the message is longer than the descriptor). */
static int receive_pieces(struct via_vi *vi, const struct via_work *w, size_t len, struct iovec *iov, uint32_t *error)
{
    int n = 0;
    *error = 0;
    while (len && vi->rx_segment < w->seg_count && n < VIA_MAX_SEGMENTS) {
        const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, vi->rx_segment)->Local;
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

static void count_copy(struct via_vi *vi, size_t len)
{
    VI_COUNT(vi, copies, 1);
    VI_COUNT(vi, bytes_copied, len);
}

static size_t total(const struct iovec *iov, int n)
{
    size_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += iov[i].iov_len;
    return sum;
}

/* The payload of a REFERENCE frame: fetches what it points at. 0 or an error status. */
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
        count_copy(vi, r.len);
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

/* The head of the receive queue completes. What comes after it may have been found wrong when it was posted: now is its turn. */
static inline void complete_receive(struct via_vi *vi, uint32_t status)
{
    struct via_queue *q = &vi->recv;
    via_complete(vi, q, status);
    if (vk_unlikely(q->done != q->posted && via_work_at(q, q->done)->error))
        via_settle_errors(vi, q);
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

/* The receive descriptor in hand completes with an error. */
static void fail_receive(struct via_vi *vi, uint32_t psn, uint32_t status, uint32_t remote_status)
{
    struct via_work *w = via_work_at(&vi->recv, vi->recv.done);
    w->descriptor->CS.Length = vi->rx_len;
    complete_receive(vi, status);
    refuse(vi, psn, remote_status);
}

static struct via_work *take_receive(struct via_vi *vi, uint32_t psn)
{
    if (vk_likely(vi->recv.done != vi->recv.posted))
        return via_work_at(&vi->recv, vi->recv.done);
    VI_COUNT(vi, dropped_no_descriptor, 1);
    via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RECVQ_EMPTY);
    refuse(vi, psn, VIP_STATUS_REMOTE_DESC_ERROR);
    return NULL;
}

/* The message is here, but the program has deregistered the descriptor's own memory meanwhile: no completion may stand there. It is written all the
 * same, so that the descriptor can be taken back, as an error. (whole_message() need not look: a deregistration ends what it knows.) */
static void completion_denied(struct via_vi *vi, uint32_t psn)
{
    via_report(vi->nic, vi, NULL, via_work_at(&vi->recv, vi->recv.done)->descriptor, VIP_RESOURCE_DESCRIPTOR,
               VIP_ERROR_COMP_PROT);
    fail_receive(vi, psn, VIP_STATUS_PROTECTION_ERROR, VIP_STATUS_REMOTE_DESC_ERROR);
    vi->rx_skip = 0; /* nothing of this message is to come */
}

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
    complete_receive(vi, status);
}

/* ---------------------------------------------------------------- a piece of a send */

static void piece_of_send(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
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
                    count_copy(vi, iov[i].iov_len);
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
            want += r.len <= VIA_MAX_TRANSFER ? r.len : VIA_MAX_TRANSFER + 1;
        }
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

/* Does (handle, address, len) lie in a region that lets this VI write? */
static int write_granted(const struct via_vi *vi, uint32_t handle, uint64_t address, uint64_t len)
{
    if (!vi->attributes.EnableRdmaWrite)
        return 0;
    if (len == 0)
        return 1;
    return via_mem_grants(vi->nic, handle, (void *)(uintptr_t)address, len, vi->ptag) &&
           (vi->nic->regions[handle & 0xFFFF].rights & VIA_RIGHT_WRITE);
}

/* Not granted: reported in the receive descriptor if the write would have consumed one, else by the handler. */
static void refuse_write(struct via_vi *vi, const struct wire_header *h)
{
    VI_COUNT(vi, dropped_protection, 1);
    vi->rx_active = 0;
    if ((h->flags & WIRE_FLAG_IMMEDIATE) && vi->recv.done != vi->recv.posted) {
        vi->rx_len = 0;
        via_work_at(&vi->recv, vi->recv.done)->descriptor->CS.Length = 0;
        complete_receive(vi, VIP_STATUS_RDMA_PROT_ERROR | VIP_STATUS_OP_REMOTE_RDMA_WRITE);
    } else
        via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAW_PROT);
    refuse(vi, h->psn, VIP_STATUS_RDMA_PROT_ERROR);
}

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

static void piece_of_write(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
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
        if (h->flags & WIRE_FLAG_PLACED || !write_granted(vi, w.handle, w.address, w.len)) {
            refuse_write(vi, h);
            return;
        }
    } else if (vi->rx_active != WIRE_WRITE) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    uint32_t last = h->flags & WIRE_FLAG_LAST, error = 0;
    uint32_t n = h->flags & WIRE_FLAG_REFERENCE ? vi->rx_left : (uint32_t)len;
    if (n > vi->rx_left || (last && n != vi->rx_left)) {
        NIC_COUNT(vi->nic, dropped_malformed, 1);
        return;
    }
    /* again for each piece: the region may have been deregistered since the first */
    if (n && !write_granted(vi, vi->rx_handle, vi->rx_address, n)) {
        refuse_write(vi, h);
        return;
    }
    uint8_t *to = (uint8_t *)(uintptr_t)vi->rx_address;
    if (h->flags & WIRE_FLAG_REFERENCE) {
        struct iovec iov = {to, n};
        uint32_t placed = 0;
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
        count_copy(vi, n);
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

/* ---------------------------------------------------------------- sequence */

/* Unreliable: what is missing stays missing. A message in pieces whose middle was lost completes as partial. */
static void gap_unreliable(struct via_vi *vi)
{
    if (vi->rx_active == WIRE_SEND) {
        via_work_at(&vi->recv, vi->recv.done)->descriptor->CS.Length = vi->rx_len;
        vi->rx_active = 0;
        complete_receive(vi, VIP_STATUS_PARTIAL_ERROR | VIP_STATUS_TRANSPORT_ERROR);
    } else if (vi->rx_active == WIRE_WRITE) {
        vi->rx_active = 0;
        via_report(vi->nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAW_ABORT);
    }
    vi->rx_skip = 1;
}

/* Selective repeat: the frame is kept, and the peer is told when there is a new gap, or when it asks. */
static void early_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (h->psn - vi->expected_psn >= VIA_MAX_AHEAD) { /* further than any window reaches: not even worth an answer */
        VI_COUNT(vi, dropped_out_of_order, 1);
        return;
    }
    if (!vi->has_gap) {
        vi->has_gap = 1;
        vi->rx_source = 0; /* whole_message() does not look for frames that are kept */
        vi->ahead_psn = vi->expected_psn;
    }
    via_early_keep(vi, h, payload);
    if (h->psn != vi->ahead_psn || h->flags & WIRE_FLAG_ACK_NOW)
        via_owe_answer(vi);
    if (!wire_before(h->psn, vi->ahead_psn))
        vi->ahead_psn = h->psn + 1;
}

/* A frame that is not the expected one. Returns 1 if it shall be taken all the same (unreliable, after a gap). */
static int out_of_sequence(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (wire_before(h->psn, vi->expected_psn)) {
        VI_COUNT(vi, dropped_duplicate, 1);
        if (vi->reliable && (vi->has_gap || h->flags & WIRE_FLAG_ACK_NOW))
            via_owe_answer(vi);
        else if (vi->reliable)
            via_owe_ack(vi, 1); /* our acknowledgement may have been lost */
        return 0;
    }
    if (!vi->reliable) {
        gap_unreliable(vi);
        return 1;
    }
    if (vi->keeps_early) {
        early_frame(vi, h, payload);
        return 0;
    }
    VI_COUNT(vi, dropped_out_of_order, 1);
    /* Go-back-N. One negative acknowledgement per pass of the sender: again only when it began anew and a frame is missing again. */
    if (!vi->nak_sent || !wire_before(vi->ahead_psn, h->psn)) {
        vi->nak_sent = 1;
        via_send_control(vi, WIRE_NAK, 0, 0);
    }
    vi->ahead_psn = h->psn;
    return 0;
}

/* A frame whose turn it is. */
static void take_in_turn(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    vi->expected_psn = h->psn + 1;
    vi->nak_sent = 0;
    if (h->flags & WIRE_FLAG_FIRST) {
        if (vk_unlikely(vi->rx_active))
            gap_unreliable(vi);
        vi->rx_skip = 0;
    }
    /* rx_skip: unreliable, in the middle of a message that cannot be taken. It is acknowledged all the same where the sender waits. */
    if (vk_likely(!vi->rx_skip)) {
        if ((h->version_kind & 15) == WIRE_SEND)
            piece_of_send(vi, h, payload);
        else
            piece_of_write(vi, h, payload);
    }
    if (vi->state != VIP_STATE_CONNECTED)
        return;
    if (vi->lossless ? h->flags & WIRE_FLAG_MUST_ACK : vi->reliable) {
        if (h->flags & WIRE_FLAG_ACK_NOW && !vi->has_gap) /* otherwise close_gap() will have more to tell */
            via_send_ack(vi);
        else
            via_owe_ack(vi, h->flags & WIRE_FLAG_LAST);
    }
}

/* A missing frame has come: those that were kept behind it follow, up to the next gap. */
static void close_gap(struct via_vi *vi)
{
    const uint8_t *frame;
    while (vi->state == VIP_STATE_CONNECTED && (frame = via_early_next(vi)) != NULL) {
        struct wire_header h;
        memcpy(&h, frame, sizeof h);
        h.flags &= (uint8_t)~WIRE_FLAG_ACK_NOW; /* answered when it came */
        take_in_turn(vi, &h, frame + sizeof h);
        if (vi->state == VIP_STATE_CONNECTED)
            via_early_done(vi, h.psn);
    }
    if (vi->state != VIP_STATE_CONNECTED)
        return;
    if (!wire_before(vi->expected_psn, vi->ahead_psn)) {
        vi->has_gap = 0;
        vi->rx_source = wire_word_source(vi->peer_port, vi->peer_vi, vi->key);
    }
    via_owe_answer(vi);
}

static void data_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (vk_unlikely(h->psn != vi->expected_psn) && !out_of_sequence(vi, h, payload))
        return;
    take_in_turn(vi, h, payload);
    if (vk_unlikely(vi->has_gap))
        close_gap(vi);
}

/* ---------------------------------------------------------------- dispatch */

/* A frame for a connection that does not exist (any more). Say so, but never answer an answer. */
static void stranger(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const struct wire_header *h)
{
    int kind = h->version_kind & 15;
    NIC_COUNT(nic, dropped_stranger, 1);
    if (kind != WIRE_SEND && kind != WIRE_WRITE && kind != WIRE_PROBE && kind != WIRE_READ)
        return;
    if (peer == NULL && via_route_in_passing(nic, from, h->src_port, &peer) != 0)
        return;
    struct link_frame f;
    via_frame_init(nic, &f, WIRE_RESET);
    f.header.dst_port = h->src_port;
    f.header.dst_vi = h->src_vi;
    f.header.src_vi = h->dst_vi; /* of another VI than its own peer the sender believes nothing */
    f.header.immediate = h->key;
    via_link_send(nic, peer, &f, 1);
}

/* Does the frame come from the VI that this one is connected with? from may be NULL: then the station was looked at already. */
static int from_its_peer(const struct via_vi *vi, const struct wire_header *h, const uint8_t from[6])
{
    return h->src_port == vi->peer_port && h->src_vi == vi->peer_vi &&
           (from == NULL || memcmp(from, vi->peer_address, 6) == 0);
}

/* The VI a frame is for, if the frame proves that it belongs to its connection: by the key, and by its source, without which a key
 * would be all that somebody has to guess. While a connection is being made the peer is not known yet; the key is. */
static struct via_vi *addressee(struct via_nic *nic, const struct wire_header *h, const uint8_t from[6])
{
    struct via_vi *vi = h->dst_vi < VIA_MAX_VI ? nic->vi_by_number[h->dst_vi] : NULL;
    if (vk_unlikely(vi == NULL || vi->key != h->key || vi->state == VIP_STATE_IDLE))
        return NULL;
    return vi->state == VIP_STATE_CONNECT_PENDING || from_its_peer(vi, h, from) ? vi : NULL;
}

/* Frames to a VI that is not CONNECTED: in ERROR the sender is told (again) why; while pending the sender is ahead of us. */
static void not_connected(struct via_vi *vi, const struct wire_header *h)
{
    int kind = h->version_kind & 15;
    if (vi->state != VIP_STATE_ERROR || kind == WIRE_ACK || kind == WIRE_ERROR || kind == WIRE_DISCONNECT ||
        kind == WIRE_RESET)
        return;
    via_send_control(vi, WIRE_ERROR, vi->error_psn, vi->error_status);
}

/* What ends a connection has to know more of it than its key: it carries an acknowledgement, as all frames do, and who guesses that of a
 * reliable connection finds one in 65536, of an unreliable one, whose peer may have missed any number of frames, one in 256. A peer on the same
 * host can end the connection in easier ways. */
static int knows_where_we_are(const struct via_vi *vi, uint32_t ack)
{
    uint32_t behind = vi->high_psn - ack, most = vi->reliable ? 1u << 16 : 1u << 24;
    return vi->lossless || behind <= most + (vi->reliable ? vi->high_psn - vi->una_psn : 0);
}

static void control_frame(struct via_vi *vi, const struct wire_header *h, int kind, const uint8_t *payload)
{
    switch (kind) {
    case WIRE_ACK:
        VI_COUNT(vi, acks_received, 1);
        break;
    case WIRE_NAK:
        VI_COUNT(vi, naks_received, 1);
        if (!vi->reliable || vi->lossless)
            break;
        if (h->len)
            via_repeat(vi, h->ack, payload, h->len);
        else
            via_negative(vi, h->ack);
        break;
    case WIRE_PROBE:
        via_send_ack(vi);
        break;
    case WIRE_ERROR:
    case WIRE_DISCONNECT:
        if (!knows_where_we_are(vi, h->ack))
            NIC_COUNT(vi->nic, dropped_stranger, 1);
        else if (kind == WIRE_ERROR)
            via_remote_error(vi, h->psn, h->immediate);
        else
            via_break(vi, 1);
        break;
    case WIRE_READ:
        via_read_frame(vi, h, payload);
        break;
    default:
        NIC_COUNT(vi->nic, dropped_malformed, 1);
    }
}

static void deliver_to_vi(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                          const struct wire_header *h, const uint8_t *payload)
{
    int kind = h->version_kind & 15;
    if (vk_unlikely(kind == WIRE_RESET)) {
        /* It cannot know our key; it proves itself by the one that we used. */
        struct via_vi *vi = h->dst_vi < VIA_MAX_VI ? nic->vi_by_number[h->dst_vi] : NULL;
        if (vi && vi->state == VIP_STATE_CONNECTED && vi->peer_key == h->immediate && from_its_peer(vi, h, from))
            via_break(vi, 1);
        else
            NIC_COUNT(nic, dropped_stranger, 1);
        return;
    }
    struct via_vi *vi = addressee(nic, h, from);
    if (vk_unlikely(vi == NULL)) {
        stranger(nic, from, peer, h);
        return;
    }
    vi->counters[VIAKIT_COUNTER_frames_received]++;
    vi->heard = 1;
    if (vk_unlikely(vi->state != VIP_STATE_CONNECTED)) {
        not_connected(vi, h);
        return;
    }
    vi->confirmed = 1;
    if ((vi->reliable || vi->lossless) && h->ack != vi->una_psn) { /* also of references, which any level may send */
        via_acknowledged(vi, h->ack);
        if (vk_unlikely(vi->state != VIP_STATE_CONNECTED))
            return; /* a send behind the acknowledged ones had failed: that broke the connection, and nothing lands any more */
    }
    if (vk_likely(kind == WIRE_SEND || kind == WIRE_WRITE))
        data_frame(vi, h, payload);
    else
        control_frame(vi, h, kind, payload);
}

/* A frame with a wrong checksum is dropped, whatever it was. But where an unreliable VI's RDMA write was damaged nothing will be repeated, and its
 * program shall hear of it, if the header still proves whose it was. */
static void note_damage(struct via_nic *nic, const uint8_t from[6], const struct wire_header *h)
{
    NIC_COUNT(nic, dropped_checksum, 1);
    if ((h->version_kind & 15) != WIRE_WRITE || h->dst_port != nic->limits.port)
        return;
    struct via_vi *vi = addressee(nic, h, from);
    if (vi && vi->state == VIP_STATE_CONNECTED && !vi->reliable)
        via_report(nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAW_DATA);
}

/* len: how many bytes of the payload the checksum covers, all or none. */
static int checksum_right(const struct wire_header *h, const uint8_t *payload, size_t len)
{
    struct wire_header copy = *h;
    copy.crc = 0;
    uint32_t crc = vk_crc32c(0, &copy, sizeof copy);
    return (len ? vk_crc32c(crc, payload, len) : crc) == h->crc;
}

/* What most frames are: a whole message, in sequence, for a receive descriptor of one segment that was found granted when it was posted.
 * Two comparisons of words say that it is ours, of the right peer and key. Returns 0, having changed nothing, if it is something else. */
static inline int whole_message(struct via_nic *nic, const uint8_t *frame, size_t len)
{
    uint64_t w[WIRE_WORDS];
    const uint64_t flags = WIRE_FLAG_ACK_NOW | WIRE_FLAG_MUST_ACK | WIRE_FLAG_CRC | WIRE_FLAG_IMMEDIATE;
    if (vk_unlikely(len < sizeof w))
        return 0;
    for (int i = 0; i < WIRE_WORDS; i++)
        memcpy(&w[i], frame + 8 * i, 8);
    uint32_t n = (uint32_t)(w[0] >> 16) & 0xFFFF, number = (uint32_t)(w[0] >> 48), psn = (uint32_t)w[2],
             ack = (uint32_t)(w[2] >> 32);
    if (vk_unlikely((w[0] & (0x0000FFFF0000FFFFu & ~(flags << 8))) != nic->whole_message || n > len - sizeof w ||
                    number >= VIA_MAX_VI))
        return 0;
    struct via_vi *vi = nic->vi_by_number[number];
    if (vk_unlikely(vi == NULL || vi->rx_source != w[1] || vi->expected_psn != psn || vi->rx_active || vi->rx_skip))
        return 0;
    struct via_queue *q = &vi->recv;
    struct via_work *r = via_work_at(q, q->done);
    if (vk_unlikely(q->done == q->posted || !r->is_short || n > r->room || r->epoch != nic->region_epoch ||
                    n > vi->attributes.MaxTransferSize))
        return 0;
    if (nic->checksum) {
        struct wire_header h;
        memcpy(&h, frame, sizeof h);
        if (!(h.flags & WIRE_FLAG_CRC) || !checksum_right(&h, frame + sizeof h, h.len))
            return 0; /* the long way counts and drops it */
    } else if (vk_unlikely(w[0] & WIRE_FLAG_CRC << 8))
        return 0;
    vk_copy_short(r->data, frame + sizeof w, n);
    VIP_DESCRIPTOR *d = r->descriptor;
    uint32_t status = VIP_STATUS_OP_RECEIVE;
    if (vk_unlikely(w[0] & WIRE_FLAG_IMMEDIATE << 8)) {
        d->CS.ImmediateData = (uint32_t)w[3];
        status |= VIP_STATUS_IMMEDIATE;
    }
    d->CS.Length = n;
    vi->expected_psn = psn + 1;
    complete_receive(vi, status);
    vi->heard = vi->confirmed = 1;
    vi->nak_sent = 0;
    NIC_COUNT(nic, frames_received, 1);
    VI_COUNT(vi, frames_received, 1);
    VI_COUNT(vi, messages_received, 1);
    VI_COUNT(vi, bytes_received, n);
    if (n)
        count_copy(vi, n);
    if (ack != vi->una_psn && (vi->reliable || vi->lossless))
        via_acknowledged(vi, ack);
    if (vi->owes_acks || (w[0] & WIRE_FLAG_MUST_ACK << 8)) {
        if (w[0] & WIRE_FLAG_ACK_NOW << 8)
            via_send_control(vi, WIRE_ACK, 0, 0);
        else
            via_owe_ack(vi, 1);
    }
    return 1;
}

/* len bytes of payload at hand. */
static void take_frame(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                       const struct wire_header *header, const void *payload, size_t len)
{
    struct wire_header h = *header;
    if (vk_unlikely(nic->deaf)) { /* a partition (link/fault.c): it has not arrived */
        NIC_COUNT(nic, fault_cut_received, 1);
        return;
    }
    NIC_COUNT(nic, frames_received, 1);
    if (vk_unlikely(h.version_kind >> 4 != WIRE_VERSION)) {
        NIC_COUNT(nic, dropped_version, 1);
        return;
    }
    if (vk_unlikely(h.len > len)) {
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    if (h.flags & WIRE_FLAG_CRC) {
        if (!checksum_right(&h, payload, h.len)) {
            note_damage(nic, from, &h);
            return;
        }
    } else if (nic->checksum && !(nic->vouched && checksum_right(&h, NULL, 0))) {
        NIC_COUNT(nic, dropped_checksum, 1);
        return;
    }
    int kind = h.version_kind & 15;
    if (vk_unlikely(h.dst_port != nic->limits.port && kind != WIRE_REQUEST)) {
        NIC_COUNT(nic, dropped_stranger, 1);
        return;
    }
    if (vk_likely(kind < WIRE_REQUEST))
        deliver_to_vi(nic, from, peer, &h, payload);
    else
        via_conn_deliver(nic, from, peer, &h, payload, h.len);
}

/* The same with a tap before and behind; a frame too short for a header goes no further. */
static __attribute__((noinline)) void take_frame_tapped(struct via_nic *nic, const uint8_t from[6],
                                                        struct link_peer *peer, const void *header, size_t header_len,
                                                        const void *payload, size_t len)
{
    struct via_tap_arrival a;
    via_tap_arrived(nic, &a, from, header, header_len, payload, len);
    if (header_len == sizeof(struct wire_header)) {
        struct wire_header h;
        memcpy(&h, header, sizeof h);
        take_frame(nic, from, peer, &h, payload, len);
    } else {
        NIC_COUNT(nic, frames_received, 1);
        NIC_COUNT(nic, dropped_malformed, 1);
    }
    via_tap_taken(nic, &a);
}

void link_deliver_parts(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                        const struct wire_header *header, const void *payload, size_t len)
{
    if (vk_unlikely(nic->tap != NULL))
        take_frame_tapped(nic, from, peer, header, sizeof *header, payload, len);
    else
        take_frame(nic, from, peer, header, payload, len);
}

void link_deliver(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const void *frame, size_t len)
{
    struct wire_header h;
    if (vk_likely(whole_message(nic, frame, len)))
        return;
    if (vk_unlikely(len < sizeof h)) {
        if (nic->tap) {
            take_frame_tapped(nic, from, peer, frame, len, NULL, 0);
            return;
        }
        NIC_COUNT(nic, frames_received, 1);
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    memcpy(&h, frame, sizeof h);
    link_deliver_parts(nic, from, peer, &h, (const uint8_t *)frame + sizeof h, len - sizeof h);
}

void link_vouch(struct via_nic *nic, int vouched)
{
    nic->vouched = vouched;
}

void *link_place_ahead(struct via_nic *nic, const struct wire_header *last, size_t len)
{
    struct via_vi *vi = last->dst_port == nic->limits.port ? addressee(nic, last, NULL) : NULL;
    int kind = last->version_kind & 15;
    if (nic->deaf || vi == NULL || vi->state != VIP_STATE_CONNECTED || vi->expected_psn != last->psn + 1 ||
        vi->rx_skip || vi->rx_active != kind || kind == WIRE_READ)
        return NULL;
    if (kind == WIRE_WRITE) {
        void *to = (void *)(uintptr_t)vi->rx_address;
        return len <= vi->rx_left && write_granted(vi, vi->rx_handle, vi->rx_address, len) ? to : NULL;
    }
    const struct via_work *w = via_work_at(&vi->recv, vi->recv.done);
    if (vi->rx_segment >= w->seg_count || vi->rx_len + len > vi->attributes.MaxTransferSize)
        return NULL;
    const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, vi->rx_segment)->Local;
    char *to = (char *)s->Data.Address + vi->rx_segment_used;
    return len <= s->Length - vi->rx_segment_used && via_mem_grants(nic, s->Handle, to, len, vi->ptag) ? to : NULL;
}
