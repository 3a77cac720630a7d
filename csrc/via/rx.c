/*
 * From frames to their place: the checks, in order. What passes them goes to place.c (bytes), conn.c (handshakes) or
 * reliable.c (what the sender learns).
 *
 *    link_deliver          whole_message: two comparisons, for what most frames are
 *      take_frame          shape (length, version), checksum, port
 *        deliver_to_vi     VI, key and source: addressee(); state; acknowledgement
 *          data_frame      sequence: in turn, early, or again
 *          control_frame   ACK, NAK, PROBE, ERROR, DISCONNECT, READ
 *        via_conn_deliver  handshakes
 *
 * Everything here was written by somebody else: each field is checked before it is used, and a frame that does not fit
 * is dropped and counted by reason (docs/security.md). The header is copied once and then read from the copy, because
 * on shm the sender shares the memory that it lies in and could change it between a check and a use.
 *
 * Sequence: `expected_psn` is the number of the frame whose turn it is. Before it: a copy, whose acknowledgement was
 * lost perhaps. After it: something is missing; what follows from that depends on the level (unreliable goes on behind
 * the gap) and, where it is reliable, on whether early frames are kept (early.c). On a lossless link every frame is the
 * expected one.
 */
#include <string.h>

#include "../base/copy.h"
#include "../base/crc32c.h"
#include "place.h"
#include "tap.h"

/* ---------------------------------------------------------------- sequence */

/* Selective repeat: the frame is kept, and the peer is told when there is a new gap, or when it asks. */
static void early_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (h->psn - vi->expected_psn >= VIA_MAX_AHEAD) { /* further than any window reaches: not even worth an answer */
        VI_COUNT(vi, dropped_out_of_order, 1);
        return;
    }
    if (!vi->has_gap) {
        vi->has_gap = 1;
        vi->rx_source = VIA_NO_SOURCE; /* whole_message() does not look for frames that are kept */
        vi->ahead_psn = vi->expected_psn;
    }
    via_early_keep(vi, h, payload);
    if (h->psn != vi->ahead_psn || h->flags & WIRE_FLAG_ACK_NOW)
        via_owe_answer(vi);
    if (!wire_before(h->psn, vi->ahead_psn))
        vi->ahead_psn = h->psn + 1;
}

/* A frame that is not the expected one. Returns 1 if it shall be taken all the same (unreliable, after a gap). A copy
 * is answered at once, for its sender waits for an acknowledgement that it should have had. */
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
        via_abandon_message(vi);
        return 1;
    }
    if (vi->keeps_early) {
        early_frame(vi, h, payload);
        return 0;
    }
    VI_COUNT(vi, dropped_out_of_order, 1);
    /* Go-back-N. One negative acknowledgement per pass of the sender: again only when it began anew and a frame is
     * missing again. */
    if (!vi->nak_sent || !wire_before(vi->ahead_psn, h->psn)) {
        vi->nak_sent = 1;
        via_send_control(vi, WIRE_NAK, 0, 0);
    }
    vi->ahead_psn = h->psn;
    return 0;
}

/* A frame whose turn it is. Moves expected_psn first: the acknowledgement that rides on what the message causes (an
 * ERROR, say) is right then; refuse() in place.c takes it back for a frame that was not taken. */
static void take_in_turn(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    vi->expected_psn = h->psn + 1;
    vi->nak_sent = 0;
    if (h->flags & WIRE_FLAG_FIRST) {
        if (vk_unlikely(vi->rx_active))
            via_abandon_message(vi);
        vi->rx_skip = 0;
    }
    /* rx_skip: unreliable, in the middle of a message that cannot be taken. It is acknowledged all the same where the
     * sender waits. */
    if (vk_likely(!vi->rx_skip)) {
        if ((h->version_kind & 15) == WIRE_SEND)
            via_place_send(vi, h, payload);
        else
            via_place_write(vi, h, payload);
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

/* A missing frame has come: those that were kept behind it follow, up to the next gap. The frames lie in early.c's
 * memory, which stays until the next call of the timers even where a frame breaks the connection. */
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

/* A piece of a message: in turn, and then perhaps what had waited for it. */
static void data_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (vk_unlikely(h->psn != vi->expected_psn) && !out_of_sequence(vi, h, payload))
        return;
    take_in_turn(vi, h, payload);
    if (vk_unlikely(vi->has_gap))
        close_gap(vi);
}

/* ---------------------------------------------------------------- dispatch */

/* A frame for a connection that does not exist (any more). Say so, but never answer an answer. The sender may have
 * missed a disconnect, or be the one before a restart: RESET tells it at once what a time-out would tell it in seconds.
 * A RESET, an ERROR, an acknowledgement is not answered: two NICs must not answer each other for ever. */
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

/* Does the frame come from the VI that this one is connected with? from may be NULL: then the station was looked at
 * already. */
static int from_its_peer(const struct via_vi *vi, const struct wire_header *h, const uint8_t from[6])
{
    return h->src_port == vi->peer_port && h->src_vi == vi->peer_vi &&
           (from == NULL || memcmp(from, vi->peer_address, 6) == 0);
}

/* The VI a frame is for, if the frame proves that it belongs to its connection: by the key, and by its source, without
 * which a key would be all that somebody has to guess. While a connection is being made the peer is not known yet; the
 * key is. */
static struct via_vi *addressee(struct via_nic *nic, const struct wire_header *h, const uint8_t from[6])
{
    struct via_vi *vi = h->dst_vi < VIA_MAX_VI ? nic->vi_by_number[h->dst_vi] : NULL;
    if (vk_unlikely(vi == NULL || vi->key != h->key || vi->state == VIP_STATE_IDLE))
        return NULL;
    return vi->state == VIP_STATE_CONNECT_PENDING || from_its_peer(vi, h, from) ? vi : NULL;
}

/* Frames to a VI that is not CONNECTED: in ERROR the sender is told (again) why; while pending the sender is ahead of
 * us. */
static void not_connected(struct via_vi *vi, const struct wire_header *h)
{
    int kind = h->version_kind & 15;
    if (vi->state != VIP_STATE_ERROR || kind == WIRE_ACK || kind == WIRE_ERROR || kind == WIRE_DISCONNECT ||
        kind == WIRE_RESET)
        return;
    via_send_control(vi, WIRE_ERROR, vi->error_psn, vi->error_status);
}

/* What ends a connection has to know more of it than its key: it carries an acknowledgement, as all frames do, and who
 * guesses that of a reliable connection finds one in 65536, of an unreliable one, whose peer may have missed any number
 * of frames, one in 256. A peer on the same host can end the connection in easier ways. */
static int knows_where_we_are(const struct via_vi *vi, uint32_t ack)
{
    /* How far the acknowledgement lies behind the last frame that we have sent; one before it, or ahead, wraps. */
    uint32_t behind = vi->high_psn - ack, most = vi->reliable ? 1u << 16 : 1u << 24;
    return vi->lossless || behind <= most + (vi->reliable ? vi->high_psn - vi->una_psn : 0);
}

/* Frames without message data. Those that end a connection ask for more proof than the key. */
static void control_frame(struct via_vi *vi, const struct wire_header *h, int kind, const uint8_t *payload)
{
    switch (kind) {
    case WIRE_ACK:
        VI_COUNT(vi, acks_received, 1);
        break;
    /* With a list: of a receiver that keeps early frames. Without: of one that wants everything from there on. */
    case WIRE_NAK:
        VI_COUNT(vi, naks_received, 1);
        if (!vi->reliable || vi->lossless)
            break;
        if (h->len)
            via_repeat(vi, h->ack, payload, h->len);
        else
            via_negative(vi, h->ack);
        break;
    /* Any answer would do, for it shows that we live; this one also tells how far we are. */
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

/* A frame for a VI. RESET apart, it carries the key that we drew for this connection, or it is a stranger's. Any frame
 * that passes shows that the peer lives (heard) and has our acceptance (confirmed), and acknowledges. */
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
        /* A send behind the acknowledged ones had failed: that broke the connection, and nothing lands any more. */
        if (vk_unlikely(vi->state != VIP_STATE_CONNECTED))
            return;
    }
    if (vk_likely(kind == WIRE_SEND || kind == WIRE_WRITE))
        data_frame(vi, h, payload);
    else
        control_frame(vi, h, kind, payload);
}

/* A frame with a wrong checksum is dropped, whatever it was. But where an unreliable VI's RDMA write was damaged
 * nothing will be repeated, and its program shall hear of it, if the header still proves whose it was. */
static void note_damage(struct via_nic *nic, const uint8_t from[6], const struct wire_header *h)
{
    NIC_COUNT(nic, dropped_checksum, 1);
    if ((h->version_kind & 15) != WIRE_WRITE || h->dst_port != nic->limits.port)
        return;
    struct via_vi *vi = addressee(nic, h, from);
    if (vi && vi->state == VIP_STATE_CONNECTED && !vi->reliable)
        via_report(nic, vi, NULL, NULL, VIP_RESOURCE_VI, VIP_ERROR_RDMAW_DATA);
}

/* len: how many bytes of the payload the checksum covers, all or none. The checksum field counts as 0. Returns whether
 * it is right. */
static int checksum_right(const struct wire_header *h, const uint8_t *payload, size_t len)
{
    struct wire_header copy = *h;
    copy.crc = 0;
    uint32_t crc = vk_crc32c(0, &copy, sizeof copy);
    return (len ? vk_crc32c(crc, payload, len) : crc) == h->crc;
}

/* What most frames are: a whole message, in sequence, for a receive descriptor of one segment that was found granted
 * when it was posted. Two comparisons of words say that it is ours, of the right peer and key. Returns 0, having
 * changed nothing, if it is something else. It does not look at the station that the frame came from: a stranger
 * would have to know port, VI, key and the exact sequence number. The two words are made once, when the NIC opens
 * (whole_message) and when a connection is made (rx_source, VIA_NO_SOURCE unless it is CONNECTED without a gap); a
 * tap and a partition (deaf) close this way, for they must see every frame. */
static inline int whole_message(struct via_nic *nic, const uint8_t *frame, size_t len)
{
    uint64_t w[WIRE_WORDS];
    /* Flags that a whole message may have; all others must be as in nic->whole_message, where FIRST and LAST are
     * set. */
    const uint64_t flags = WIRE_FLAG_ACK_NOW | WIRE_FLAG_MUST_ACK | WIRE_FLAG_CRC | WIRE_FLAG_IMMEDIATE;
    if (vk_unlikely(len < sizeof w))
        return 0;
    for (int i = 0; i < WIRE_WORDS; i++)
        memcpy(&w[i], frame + 8 * i, 8);
    /* The fields of wire.h, by shifts: a word is loaded once, and cannot change between check and use. */
    uint32_t n = (uint32_t)(w[0] >> 16) & 0xFFFF, number = (uint32_t)(w[0] >> 48), psn = (uint32_t)w[2],
             ack = (uint32_t)(w[2] >> 32);
    if (vk_unlikely((w[0] & (0x0000FFFF0000FFFFu & ~(flags << 8))) != nic->whole_message || n > len - sizeof w ||
                    number >= VIA_MAX_VI))
        return 0;
    struct via_vi *vi = nic->vi_by_number[number];
    /* The key first: any word may stand in a frame, VIA_NO_SOURCE as well, but no connection has the key 0. */
    if (vk_unlikely(vi == NULL || wire_source_key(w[1]) == 0 || vi->rx_source != w[1] || vi->expected_psn != psn ||
                    vi->rx_active || vi->rx_skip))
        return 0;
    /* The receive was found granted when it was posted, and no region has gone or changed since (epoch): nothing is
     * asked again. */
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
    /* Everything is checked: from here on the frame is taken. Data first, then length, then status (via_complete). */
    vk_copy_short(r->data, frame + sizeof w, n);
    VIP_DESCRIPTOR *d = r->descriptor;
    uint32_t status = VIP_STATUS_OP_RECEIVE;
    if (vk_unlikely(w[0] & WIRE_FLAG_IMMEDIATE << 8)) {
        d->CS.ImmediateData = (uint32_t)w[3];
        status |= VIP_STATUS_IMMEDIATE;
    }
    d->CS.Length = n;
    /* Before the completion, for what that causes may send (a DISCONNECT, say), and every frame says what is
     * expected. */
    vi->expected_psn = psn + 1;
    via_complete_receive(vi, status);
    vi->heard = vi->confirmed = 1;
    vi->nak_sent = 0;
    NIC_COUNT(nic, frames_received, 1);
    VI_COUNT(vi, frames_received, 1);
    VI_COUNT(vi, messages_received, 1);
    VI_COUNT(vi, bytes_received, n);
    if (n)
        via_count_copy(vi, n);
    if (ack != vi->una_psn && (vi->reliable || vi->lossless))
        via_acknowledged(vi, ack);
    /* As take_in_turn() does. */
    if (vi->owes_acks || (w[0] & WIRE_FLAG_MUST_ACK << 8)) {
        if (w[0] & WIRE_FLAG_ACK_NOW << 8)
            via_send_ack(vi);
        else
            via_owe_ack(vi, 1);
    }
    return 1;
}

/* len bytes of payload at hand. The whole way, for what is not a whole message in turn. `header` may lie in memory that
 * its sender shares: one copy, then checks. */
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
    /* Three cases: the frame has a checksum of its own, which must be right; it has one of its header, and the link
     * vouches for the rest; or this wire damages nothing, and none is needed. */
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
    if (vk_unlikely(h.dst_port != nic->limits.port && kind != WIRE_REQUEST && (h.dst_port || kind != WIRE_CANCEL))) {
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
    if (VIA_TAPPED(nic))
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
        if (VIA_TAPPED(nic)) {
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

/* For super-frames (udp): the kernel copies the payload of the frames behind `last` straight to where this says, and
 * link_deliver_parts finds it there. So every check of place.c is made here beforehand, without changing anything; what
 * is in doubt goes the usual way. */
void *link_place_ahead(struct via_nic *nic, const struct wire_header *last, size_t len)
{
    struct via_vi *vi = last->dst_port == nic->limits.port ? addressee(nic, last, NULL) : NULL;
    int kind = last->version_kind & 15;
    if (nic->deaf || vi == NULL || vi->state != VIP_STATE_CONNECTED || vi->expected_psn != last->psn + 1 ||
        vi->rx_skip || vi->rx_active != kind || kind == WIRE_READ)
        return NULL;
    if (kind == WIRE_WRITE) {
        void *to = (void *)(uintptr_t)vi->rx_address;
        return len <= vi->rx_left && via_write_granted(vi, vi->rx_handle, vi->rx_address, len) ? to : NULL;
    }
    const struct via_work *w = via_work_at(&vi->recv, vi->recv.done);
    if (vi->rx_segment >= w->seg_count || vi->rx_len + len > vi->attributes.MaxTransferSize)
        return NULL;
    const VIP_DATA_SEGMENT *s = &via_segment(w->descriptor, vi->rx_segment)->Local;
    char *to = (char *)s->Data.Address + vi->rx_segment_used;
    return len <= s->Length - vi->rx_segment_used && via_mem_grants(nic, s->Handle, to, len, vi->ptag) ? to : NULL;
}
