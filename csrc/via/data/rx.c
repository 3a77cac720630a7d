/*
 * Receives frames: the checks, in order. Valid frames go to place.c (bytes), conn.c (handshakes) or reliable.c
 * (acknowledgements).
 *
 *    link_deliver          whole_message: two comparisons, for most frames
 *      take_frame          shape (length, version), checksum, port
 *        deliver_to_vi     VI, key and source: addressee(), state, acknowledgement
 *          data_frame      sequence: expected, out of order, or a copy
 *          control_frame   ACK, NAK, PROBE, ERROR, DISCONNECT, READ
 *        via_conn_deliver  handshakes
 *
 * All input here is written by another process: each field is checked before it is used, and a frame that fails a check
 * is dropped and counted by reason (docs/security.md). The header is copied once and then read from the copy. On shm
 * the sender shares the memory of the header, and could change it between a check and a use.
 *
 * Sequence: `expected_psn` is the number of the next frame in sequence. A frame before it is a copy, whose
 * acknowledgement was perhaps lost. A frame after it means that a frame is missing. An unreliable connection then
 * continues behind the gap. A reliable one depends on whether out-of-order frames are kept (reorder.c). On a lossless
 * link every frame is the expected one.
 *
 * Only the NIC's owner calls these functions.
 */
#include <string.h>

#include "base/atomic.h"
#include "base/copy.h"
#include "base/crc32c.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/data/place.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/link_services.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/observer.h"
#include "via/pending.h"
#include "via/vi.h"
#include "via/work.h"

/* ---------------------------------------------------------------- sequence */

/* Selective repeat: keeps an out-of-order frame, and schedules a NAK if it opens a new gap or requests an
 * acknowledgement. */
static void out_of_order_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (h->psn - vi->expected_psn >= VIA_MAX_AHEAD) { /* further than any window reaches: not worth a reply */
        VI_COUNT(vi, dropped_out_of_order, 1);
        return;
    }
    if (!vi->has_gap) {
        vi->has_gap = 1;
        vi->rx_source = VIA_NO_SOURCE; /* whole_message() does not consider frames that are kept */
        vi->ahead_psn = vi->expected_psn;
        vi->rx_cursor.valid = 0;
    }
    via_reorder_keep(vi, h, payload);
    /* A frame right behind the furthest one opens no gap: the report for the gap before it has been scheduled. */
    if (h->psn != vi->ahead_psn || h->flags & WIRE_FLAG_ACK_NOW)
        via_owe_reply(vi);
    if (!wire_before(h->psn, vi->ahead_psn))
        vi->ahead_psn = h->psn + 1;
}

/* Handles a frame that is not the expected one. Returns 1 if it shall be processed all the same (unreliable, after a
 * gap). A copy is acknowledged again, because its sender waits for an acknowledgement that should have arrived. */
static int out_of_sequence(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (wire_before(h->psn, vi->expected_psn)) {
        VI_COUNT(vi, dropped_duplicate, 1);
        if (vi->reliable && (vi->has_gap || h->flags & WIRE_FLAG_ACK_NOW))
            via_owe_reply(vi);
        else if (vi->reliable)
            via_owe_ack(vi, 1); /* our acknowledgement may have been lost */
        return 0;
    }
    if (!vi->reliable) {
        via_abandon_message(vi);
        return 1;
    }
    if (vi->keeps_out_of_order) {
        out_of_order_frame(vi, h, payload);
        return 0;
    }
    VI_COUNT(vi, dropped_out_of_order, 1);
    /* Go-back-N: one NAK per pass of the sender. Another one follows only when the sender has started again and a frame
     * is missing again. */
    if (!vi->nak_sent || !wire_before(vi->ahead_psn, h->psn)) {
        vi->nak_sent = 1;
        via_send_control(vi, WIRE_NAK, 0, 0);
    }
    vi->ahead_psn = h->psn;
    return 0;
}

/* Processes a frame in sequence. It advances expected_psn first, so that frames caused by the message (an ERROR, for
 * example) carry the right acknowledgement. refuse() in place.c sets it back for a frame that was refused. */
static void take_in_turn(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    vi->expected_psn = h->psn + 1;
    vi->nak_sent = 0;
    if (h->flags & WIRE_FLAG_FIRST) {
        /* A message begins before the last one has ended: its last piece was lost (unreliable), or the peer breaks the
         * protocol. */
        if (vk_unlikely(vi->rx_active))
            via_abandon_message(vi);
        vi->rx_skip = 0;
    }
    /* rx_skip: unreliable, in the middle of a message that was refused. The frame is still acknowledged if the sender
     * waits for that. */
    if (vk_likely(!vi->rx_skip)) {
        if ((h->version_kind & 15) == WIRE_SEND)
            via_place_send(vi, h, payload);
        else
            via_place_write(vi, h, payload);
    }
    if (vi->state != VIP_STATE_CONNECTED)
        return;
    if (vi->lossless ? h->flags & WIRE_FLAG_MUST_ACK : vi->reliable) {
        if (h->flags & WIRE_FLAG_ACK_NOW && !vi->has_gap) /* otherwise close_gap() will report more */
            via_send_ack(vi);
        else
            via_owe_ack(vi, h->flags & WIRE_FLAG_LAST);
    }
}

/* Processes the frames kept behind a gap, after the missing frame has arrived, up to the next gap. The frames lie in
 * reorder.c's memory, which stays until the next call of the timers even if a frame breaks the connection. */
static void close_gap(struct via_vi *vi)
{
    const uint8_t *payload;
    struct wire_header h;
    while (vi->state == VIP_STATE_CONNECTED && (payload = via_reorder_next(vi, &h)) != NULL) {
        h.flags &= (uint8_t)~WIRE_FLAG_ACK_NOW; /* acknowledged when it arrived */
        take_in_turn(vi, &h, payload);
        if (vi->state == VIP_STATE_CONNECTED)
            via_reorder_done(vi, h.psn);
    }
    if (vi->state != VIP_STATE_CONNECTED)
        return;
    if (!wire_before(vi->expected_psn, vi->ahead_psn)) {
        vi->has_gap = 0;
        vi->rx_source = wire_word_source(vi->peer_port, vi->peer_vi, vi->key);
    }
    via_owe_reply(vi);
}

/* Handles a piece of a message: in sequence, and then the frames that waited for it. */
static void data_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (vk_unlikely(h->psn != vi->expected_psn) && !out_of_sequence(vi, h, payload))
        return;
    take_in_turn(vi, h, payload);
    if (vk_unlikely(vi->has_gap))
        close_gap(vi);
}

/* ---------------------------------------------------------------- dispatch */

/* Replies RESET to a frame for a connection that does not exist (any more). The sender may have missed a disconnect, or
 * be a connection from before a restart. RESET reports at once what a time-out would find in seconds. A RESET, an ERROR
 * or an acknowledgement gets no reply: two NICs must not reply to each other for ever. */
static void reply_reset(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const struct wire_header *h)
{
    int kind = h->version_kind & 15;
    NIC_COUNT(nic, dropped_unknown_peer, 1);
    if (kind != WIRE_SEND && kind != WIRE_WRITE && kind != WIRE_PROBE && kind != WIRE_READ)
        return;
    if (peer == NULL && via_route_in_passing(nic, from, h->src_port, &peer) != 0)
        return;
    struct link_frame f;
    via_frame_init(nic, &f, WIRE_RESET);
    f.header.dst_port = h->src_port;
    f.header.dst_vi = h->src_vi;
    f.header.src_vi = h->dst_vi; /* the sender accepts it only from its own peer VI */
    f.header.immediate = h->key;
    via_link_send(nic, peer, &f, 1);
}

/* True if the frame comes from the VI that this one is connected with. from may be NULL: then the station has already
 * been checked. */
static int from_its_peer(const struct via_vi *vi, const struct wire_header *h, const uint8_t from[6])
{
    return h->src_port == vi->peer_port && h->src_vi == vi->peer_vi &&
           (from == NULL || memcmp(from, vi->peer_address, 6) == 0);
}

/* Returns the VI that a frame is for, if the frame proves that it belongs to the VI's connection. The proof is the key
 * and the source; without the source, guessing the key would suffice. While a connection is being set up the peer is
 * not known yet; the key is. */
static struct via_vi *addressee(struct via_nic *nic, const struct wire_header *h, const uint8_t from[6])
{
    struct via_vi *vi = h->dst_vi < VIA_MAX_VI ? nic->vi_by_number[h->dst_vi] : NULL;
    if (vk_unlikely(vi == NULL || vi->key != h->key || vi->state == VIP_STATE_IDLE))
        return NULL;
    return vi->state == VIP_STATE_CONNECT_PENDING || from_its_peer(vi, h, from) ? vi : NULL;
}

/* Handles a frame to a VI that is not CONNECTED. In ERROR the sender gets the reason (again); while pending the sender
 * is ahead of this side. */
static void not_connected(struct via_vi *vi, const struct wire_header *h)
{
    int kind = h->version_kind & 15;
    if (vi->state != VIP_STATE_ERROR || kind == WIRE_ACK || kind == WIRE_ERROR || kind == WIRE_DISCONNECT ||
        kind == WIRE_RESET)
        return;
    via_send_control(vi, WIRE_ERROR, vi->error_psn, vi->error_status);
}

/* Checks the acknowledgement of a frame that ends a connection, because the key alone is not enough proof. Every frame
 * carries an acknowledgement. A guess is accepted with probability 1 in 65536 on a reliable connection. On an
 * unreliable one, whose peer may have missed any number of frames, it is 1 in 256. A peer on the same host can end the
 * connection in easier ways. */
static int ack_is_plausible(const struct via_vi *vi, uint32_t ack)
{
    /* How far the acknowledgement lies behind the last frame sent; one before it, or ahead, wraps. */
    uint32_t behind = vi->high_psn - ack, most = vi->reliable ? 1u << 16 : 1u << 24;
    return vi->lossless || behind <= most + (vi->reliable ? vi->high_psn - vi->una_psn : 0);
}

/* Handles frames without message data. Frames that end a connection need more proof than the key. */
static void control_frame(struct via_vi *vi, const struct wire_header *h, int kind, const uint8_t *payload)
{
    switch (kind) {
    case WIRE_ACK:
        VI_COUNT(vi, acks_received, 1);
        break;
    /* With a list: from a receiver that keeps out-of-order frames. Without: from one that requests everything from
     * there on. */
    case WIRE_NAK:
        VI_COUNT(vi, naks_received, 1);
        /* Such a connection retransmits nothing, so no correct peer sends it a NAK. */
        if (!vi->reliable || vi->lossless)
            break;
        if (h->len)
            via_retransmit_gaps(vi, h->ack, payload, h->len);
        else
            via_negative(vi, h->ack);
        break;
    /* Any reply would do, because it shows that this side is alive; this one also reports what has arrived. */
    case WIRE_PROBE:
        via_send_ack(vi);
        break;
    case WIRE_ERROR:
    case WIRE_DISCONNECT:
        if (!ack_is_plausible(vi, h->ack))
            NIC_COUNT(vi->nic, dropped_unknown_peer, 1);
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

/* Handles a frame for a VI. Except for RESET, it must carry the key that this side drew for the connection. Any valid
 * frame shows that the peer is alive (`heard`) and has received the acceptance (`confirmed`), and it acknowledges. */
static void deliver_to_vi(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                          const struct wire_header *h, const uint8_t *payload)
{
    int kind = h->version_kind & 15;
    if (vk_unlikely(kind == WIRE_RESET)) {
        /* A RESET cannot contain our key; the key that we sent proves that it is genuine. */
        struct via_vi *vi = h->dst_vi < VIA_MAX_VI ? nic->vi_by_number[h->dst_vi] : NULL;
        if (vi && vi->state == VIP_STATE_CONNECTED && vi->peer_key == h->immediate && from_its_peer(vi, h, from))
            via_break(vi, 1);
        else
            NIC_COUNT(nic, dropped_unknown_peer, 1);
        return;
    }
    struct via_vi *vi = addressee(nic, h, from);
    if (vk_unlikely(vi == NULL)) {
        reply_reset(nic, from, peer, h);
        return;
    }
    vi->counters[VIAKIT_COUNTER_frames_received]++;
    vi->peer_active = 1;
    if (vk_unlikely(vi->state != VIP_STATE_CONNECTED)) {
        not_connected(vi, h);
        return;
    }
    vi->confirmed = 1;
    if ((vi->reliable || vi->lossless) && h->ack != vi->una_psn) { /* also for references, which any level may send */
        via_acknowledged(vi, h->ack);
        /* A send behind the acknowledged ones had failed: that broke the connection, and no more data is placed. */
        if (vk_unlikely(vi->state != VIP_STATE_CONNECTED))
            return;
    }
    if (vk_likely(kind == WIRE_SEND || kind == WIRE_WRITE))
        data_frame(vi, h, payload);
    else
        control_frame(vi, h, kind, payload);
}

/* Counts a frame with a wrong checksum, which is dropped. A damaged RDMA write of an unreliable VI is not
 * retransmitted, so its program gets an error if the header still identifies the VI. */
static void note_damage(struct via_nic *nic, const uint8_t from[6], const struct wire_header *h)
{
    NIC_COUNT(nic, dropped_checksum, 1);
    if ((h->version_kind & 15) != WIRE_WRITE || h->dst_port != nic->limits.port)
        return;
    struct via_vi *vi = addressee(nic, h, from);
    if (vi && vi->state == VIP_STATE_CONNECTED && !vi->reliable)
        via_report(nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAW_DATA);
}

/* Returns whether the checksum is right. len: how many bytes of the payload it covers, all or none. The checksum field
 * counts as 0. */
static int checksum_right(const struct wire_header *h, const uint8_t *payload, size_t len)
{
    struct wire_header copy = *h;
    copy.crc = 0;
    uint32_t crc = vk_crc32c(0, &copy, sizeof copy);
    return (len ? vk_crc32c(crc, payload, len) : crc) == h->crc;
}

/* The short path of most frames: a whole message, in sequence, for a receive descriptor of one segment that was found
 * granted when it was posted. Two comparisons of words check destination, peer and key. Returns 0, with nothing
 * changed, if the frame is anything else.
 *
 * The sending station is not checked: an attacker would have to guess port, VI, key and the exact sequence number. The
 * two words are computed once: whole_message when the NIC opens, rx_source when a connection is made. rx_source is
 * VIA_NO_SOURCE unless the VI is CONNECTED without a gap. A tap and a partition (discards_arrivals) close this path,
 * because they must see every frame. */
static inline int whole_message(struct via_nic *nic, const uint8_t *frame, size_t len)
{
    uint64_t w[WIRE_WORDS];
    /* Flags that a whole message may have; all others must be as in nic->whole_message, where FIRST and LAST are set.
     */
    const uint64_t flags = WIRE_FLAG_ACK_NOW | WIRE_FLAG_MUST_ACK | WIRE_FLAG_CRC | WIRE_FLAG_IMMEDIATE;
    if (vk_unlikely(len < sizeof w))
        return 0;
    for (int i = 0; i < WIRE_WORDS; i++)
        memcpy(&w[i], frame + 8 * i, 8);
    /* The fields of frame_format.h, by shifts: a word is loaded once, and cannot change between check and use. */
    uint32_t n = (uint32_t)(w[0] >> 16) & 0xFFFF, number = (uint32_t)(w[0] >> 48), psn = (uint32_t)w[2],
             ack = (uint32_t)(w[2] >> 32);
    if (vk_unlikely((w[0] & (0x0000FFFF0000FFFFu & ~(flags << 8))) != nic->whole_message || n > len - sizeof w ||
                    number >= VIA_MAX_VI))
        return 0;
    struct via_vi *vi = nic->vi_by_number[number];
    /* The key first: a frame may contain any word, also VIA_NO_SOURCE, but no connection has the key 0. */
    if (vk_unlikely(vi == NULL || wire_source_key(w[1]) == 0 || vi->rx_source != w[1] || vi->expected_psn != psn ||
                    vi->rx_active || vi->rx_skip))
        return 0;
    /* The receive was found granted when it was posted, and no region was removed or changed since (epoch), so nothing
     * is checked again. */
    struct via_queue *q = &vi->recv;
    struct via_work *r = via_work_at(q, q->done);
    if (vk_unlikely(q->done == q->posted || !r->is_short || n > r->room || r->epoch != nic->region_epoch ||
                    n > vi->attributes.MaxTransferSize))
        return 0;
    if (nic->checksum) {
        struct wire_header h;
        memcpy(&h, frame, sizeof h);
        if (!(h.flags & WIRE_FLAG_CRC) || !checksum_right(&h, frame + sizeof h, h.len))
            return 0; /* the long path counts and drops it */
    } else if (vk_unlikely(w[0] & WIRE_FLAG_CRC << 8))
        return 0;
    /* All checks have passed: the frame is accepted. Data first, then length, then status (via_complete). */
    vk_copy_short(r->data, frame + sizeof w, n);
    VIP_DESCRIPTOR *d = r->descriptor;
    uint32_t status = VIP_STATUS_OP_RECEIVE;
    if (vk_unlikely(w[0] & WIRE_FLAG_IMMEDIATE << 8)) {
        d->CS.ImmediateData = (uint32_t)w[3];
        status |= VIP_STATUS_IMMEDIATE;
    }
    d->CS.Length = n;
    /* Before the completion, because that may send frames (a DISCONNECT, for example), and every frame carries the
     * expected number. */
    vi->expected_psn = psn + 1;
    via_complete_receive(vi, status);
    vi->peer_active = vi->confirmed = 1;
    vi->nak_sent = 0;
    NIC_COUNT(nic, frames_received, 1);
    VI_COUNT(vi, frames_received, 1);
    VI_COUNT(vi, messages_received, 1);
    VI_COUNT(vi, bytes_received, n);
    if (n)
        via_count_copy(vi, n);
    if (ack != vi->una_psn && (vi->reliable || vi->lossless))
        via_acknowledged(vi, ack);
    /* As in take_in_turn(). */
    if (vi->owes_acks || (w[0] & WIRE_FLAG_MUST_ACK << 8)) {
        if (w[0] & WIRE_FLAG_ACK_NOW << 8)
            via_send_ack(vi);
        else
            via_owe_ack(vi, 1);
    }
    return 1;
}

/* The long path, for everything but a whole message in sequence, with len bytes of payload. `header` may lie in memory
 * that its sender shares, so it is copied once and then checked. */
static void take_frame(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                       const struct wire_header *header, const void *payload, size_t len)
{
    struct wire_header h = *header;
    if (vk_unlikely(nic->discards_arrivals)) { /* a partition (link/fault/fault.c): treat it as not arrived */
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
    /* Three cases:
     *
     * - The frame has a checksum of its own, which must be right.
     * - It has a checksum of its header, and the link has verified the rest.
     * - This link damages nothing, and no checksum is needed. */
    if (h.flags & WIRE_FLAG_CRC) {
        if (!checksum_right(&h, payload, h.len)) {
            note_damage(nic, from, &h);
            return;
        }
    } else if (nic->checksum && !(nic->checksum_verified && checksum_right(&h, NULL, 0))) {
        NIC_COUNT(nic, dropped_checksum, 1);
        return;
    }
    int kind = h.version_kind & 15;
    if (vk_unlikely(h.dst_port != nic->limits.port && kind != WIRE_REQUEST && (h.dst_port || kind != WIRE_CANCEL))) {
        NIC_COUNT(nic, dropped_unknown_peer, 1);
        return;
    }
    if (vk_likely(kind < WIRE_REQUEST))
        deliver_to_vi(nic, from, peer, &h, payload);
    else
        via_conn_deliver(nic, from, peer, &h, payload, h.len);
}

/* The same with the observer's hooks before and after; a frame too short for a header goes no further. */
static __attribute__((noinline)) void take_frame_observed(struct via_nic *nic, const uint8_t from[6],
                                                          struct link_peer *peer, const void *header, size_t header_len,
                                                          const void *payload, size_t len)
{
    nic->observer->frame_arrived(nic, from, header, header_len, payload, len);
    if (header_len == sizeof(struct wire_header)) {
        struct wire_header h;
        memcpy(&h, header, sizeof h);
        take_frame(nic, from, peer, &h, payload, len);
    } else {
        NIC_COUNT(nic, frames_received, 1);
        NIC_COUNT(nic, dropped_malformed, 1);
    }
    nic->observer->frame_handled(nic);
}

static void deliver_parts(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                          const struct wire_header *header, const void *payload, size_t len)
{
    if (VIA_OBSERVED(nic))
        take_frame_observed(nic, from, peer, header, sizeof *header, payload, len);
    else
        take_frame(nic, from, peer, header, payload, len);
}

void via_link_deliver_parts(struct link_client *client, const uint8_t from[6], struct link_peer *peer,
                            const struct wire_header *header, const void *payload, size_t len)
{
    deliver_parts(via_nic_of(client), from, peer, header, payload, len);
}

void via_link_deliver(struct link_client *client, const uint8_t from[6], struct link_peer *peer, const void *frame,
                      size_t len)
{
    struct via_nic *nic = via_nic_of(client);
    struct wire_header h;
    if (vk_likely(whole_message(nic, frame, len)))
        return;
    if (vk_unlikely(len < sizeof h)) {
        if (VIA_OBSERVED(nic)) {
            take_frame_observed(nic, from, peer, frame, len, NULL, 0);
            return;
        }
        NIC_COUNT(nic, frames_received, 1);
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    memcpy(&h, frame, sizeof h);
    deliver_parts(nic, from, peer, &h, (const uint8_t *)frame + sizeof h, len - sizeof h);
}

void via_link_set_checksum_verified(struct link_client *client, int verified)
{
    via_nic_of(client)->checksum_verified = verified;
}

/* Returns where to place payload directly, or NULL. For super-frames (udp): the kernel copies the payload of the frames
 * behind `last` to this address, and link_deliver_parts finds it there. So all checks of place.c are made here
 * beforehand, without changing anything; frames in doubt take the usual path. */
void *via_link_place_ahead(struct link_client *client, const struct wire_header *last, size_t len)
{
    struct via_nic *nic = via_nic_of(client);
    struct via_vi *vi = last->dst_port == nic->limits.port ? addressee(nic, last, NULL) : NULL;
    if (nic->discards_arrivals || vi == NULL || vi->state != VIP_STATE_CONNECTED)
        return NULL;
    return via_place_behind(vi, last, len);
}
