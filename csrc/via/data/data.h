/*
 * data.h - the path of a message's frames: tx.c cuts messages, control.c hands frames to the link, rx.c checks them.
 * reliable.c acknowledges and retransmits. reorder.c (with ahead.c) and retransmit.c are the two sides of selective
 * repeat, and rtt.c measures. read.c and read_target.c are the two sides of RDMA reads. card.c is RDMA by the link's
 * card.
 *
 * Only the NIC's owner (own.h) calls these functions, unless a contract states otherwise.
 */
#ifndef VIAKIT_VIA_DATA_H
#define VIAKIT_VIA_DATA_H

#include <stdint.h>
#include <sys/uio.h>

#include "link/frame_format.h"
#include "link/link.h"
#include "via/nic.h"
#include "via/vi.h"
#include "via/work.h"

/* Sends as much of the VI's queue as the window and the link allow. */
void via_transmit(struct via_vi *vi);
/* Notes that the VI waits for room in the link: each poll then calls via_transmit for it. */
void via_stall(struct via_vi *vi);
/* Sends a control frame without payload to the VI's peer. Returns 1 if the link accepted it at once. */
int via_send_control(struct via_vi *vi, int kind, uint32_t psn, uint32_t immediate);
/* Sends frames to any peer. Returns the result of the link's send. */
int via_link_send(struct via_nic *nic, struct link_peer *peer, struct link_frame *frames, int n);
/* Begins a frame that belongs to no connection: only the kind and this NIC's port are set. */
void via_frame_init(struct via_nic *nic, struct link_frame *f, int kind);
/* A route back to a sender that gets one answer and is then forgotten: unknown peers can arrive from any number of
 * addresses. The peer may be used for one frame, sent at once; it must not be kept. */
static inline int via_route_in_passing(struct via_nic *nic, const uint8_t address[6], uint16_t port,
                                       struct link_peer **peer)
{
    return (nic->ops->passing ? nic->ops->passing : nic->ops->route)(nic->link, address, port, peer);
}

/* Keeps a copy of a frame that must not be lost because the link is full; via_drive sends it. VIA_MAX_DEFERRED waiting
 * frames mean that a peer does not read its frames: any further frame is dropped and counted. */
void via_defer(struct via_nic *nic, struct link_peer *peer, const struct link_frame *f);
/* Sends the deferred frames that the link accepts, in order for each peer. */
void via_send_deferred(struct via_nic *nic);
/* Drops those for a peer that is gone; NULL: for all peers. */
void via_drop_deferred(struct via_nic *nic, const struct link_peer *peer);
/* Collects the pieces of local memory that hold bytes [offset, offset+len) of the work's message. Returns their number,
 * or -1 if memory is not (or no longer) granted. */
int via_gather(struct via_vi *vi, const struct via_work *w, uint32_t offset, uint32_t len, struct iovec *iov, int max);

/* Retransmits up to n frames from psn on, within one message and one batch. Returns how many the link accepted; -1: the
 * message's memory is no longer granted, and the connection has ended. *hint is the index on the send queue where the
 * search starts: no earlier entry matters. */
int via_send_again(struct via_vi *vi, uint32_t psn, uint32_t n, uint8_t flags, uint32_t *hint);
/* Sends a control frame with a block of len bytes. Returns the result of the link's send; a frame that was not sent is
 * not deferred. */
int via_send_block(struct via_vi *vi, int kind, uint8_t flags, uint32_t psn, uint32_t immediate, const void *block,
                   size_t len);
/* Fills in the common fields of all frames for the VI's peer, with an acknowledgement. */
static inline void via_address_frame(struct via_vi *vi, struct link_frame *f, int kind, uint32_t psn)
{
    /* One copy of 32 bytes, then the few fields in which frames differ. */
    f->header = vi->tx_header;
    f->header.version_kind = wire_version_kind(kind);
    f->header.psn = psn;
    f->header.ack = vi->expected_psn;
    f->header_len = sizeof f->header;
    f->n_iov = 0;
    f->in_flight = vi->flight_tail - vi->flight_seen;
    f->payload_len = 0;
    f->iov = NULL;
}

/* Notes that an acknowledgement was sent: every frame of a connection carries the expected number, so none is owed any
 * more. */
static inline void via_ack_piggybacked(struct via_vi *vi)
{
    vi->acked_psn = vi->expected_psn;
    vi->ack_owed = 0;
}

/* ---------------------------------------------------------------- reliable.c
 *
 * The first four may end the connection: a caller that continues checks the VI's state. */

/* The peer has all frames before ack. Completes sends, and sends more. */
void via_acknowledged(struct via_vi *vi, uint32_t ack);
/* Completes sends in the order of posting, up to the first that may not complete yet. */
void via_complete_sends(struct via_vi *vi);
/* A NAK without a list: the peer keeps no frames, and has all before `from`. Goes back to it. */
void via_negative(struct via_vi *vi, uint32_t from);
/* The peer refused frame psn (or read request psn, as the status shows) and has ended the connection. */
void via_remote_error(struct via_vi *vi, uint32_t psn, uint32_t status);
/* The peer is owed an acknowledgement, which the next frame to it carries. If none follows, it is sent by the next idle
 * poll (urgent), or after ack_delay_us. */
void via_owe_ack(struct via_vi *vi, int urgent);
/* Sends owed acknowledgements: those that are overdue, and also the urgent ones, or all. last: when the clock was read
 * before; VIA_ACKS_OVERDUE leaves out what has been owed since then. */
enum via_acks { VIA_ACKS_OVERDUE, VIA_ACKS_URGENT, VIA_ACKS_ALL };
void via_flush_acks(struct via_nic *nic, enum via_acks which, uint64_t last);
/* Handles what is due on any VI of the NIC: time-outs, probes and the keep-alive. Sets via_timer() for the next
 * time. */
void via_reliable_timers(struct via_nic *nic);
/* Restarts the time-out: the oldest frames in flight wait from now on. */
void via_arm_rto(struct via_vi *vi);
/* Shrinks the window to this many link sends, but not below 4, or the window of the options if that is less. */
void via_shrink_window(struct via_vi *vi, uint32_t to);
/* How far the last frame of a link send in flight is beyond psn; 0 or less: all its frames are before psn. Half of a
 * number suffices, because the frames in flight are fewer than VIA_MAX_AHEAD. (Behind a send that failed they are
 * further apart, but then the connection ends.) */
static inline int32_t via_flight_ahead(const struct via_vi *vi, uint32_t send, uint32_t psn)
{
    return (int16_t)(uint16_t)(vi->flight_end[send & (VIA_FLIGHT - 1)] - (uint16_t)psn);
}
/* Marks the frames before psn as not to be handed to the link (again). */
void via_skip_to(struct via_vi *vi, uint32_t psn);
/* Releases all that a connection kept about frames, when it has ended. */
void via_forget_frames(struct via_vi *vi);

/* Declares the peer failed: it no longer answers. */
void via_give_up(struct via_vi *vi);

/* ---------------------------------------------------------------- card.c: RDMA by the link's card */

/* Decides how the write at the head of the send queue, which has not started, continues. Returns 1 if it is to be sent
 * as frames, or if the card has placed it and the work is prepared for the end. Returns 0 if it must wait;
 * via_transmit() is called again when that changes. Only for links with a card. */
int via_card_write(struct via_vi *vi, struct via_work *w);
/* Starts a read at index on the send queue. Returns 1 if the card reads, 0 if frames have to, -1 if it must wait. */
int via_card_read(struct via_vi *vi, struct via_work *w, uint32_t index);
/* Ends the operations that the card has begun for the VI. Their works are then not complete. */
void via_card_stop(struct via_vi *vi);

/* ---------------------------------------------------------------- read.c: RDMA reads (and read.h) */

/* Allocates the state of the VI's reads; returns 0 if memory is exhausted. via_reads_reset: no read is outstanding
 * afterwards. */
int via_reads_ready(struct via_vi *vi);
void via_reads_reset(struct via_vi *vi);
void via_reads_free(struct via_vi *vi);
/* Begins the read at index on the send queue. Returns 1 if it is already complete. 0: call via_reads_go_on() as soon as
 * q->next is past it. */
int via_read_begin(struct via_vi *vi, struct via_work *w, uint32_t index);
/* Sends requests and replies as far as possible; vi->reads must not be NULL. */
void via_reads_go_on(struct via_vi *vi);
/* The number of reads that have begun and are not complete. */
uint32_t via_reads_open(const struct via_vi *vi);
/* When via_read_time_out is due, which repeats the oldest requests or gives the peer up. VK_NEVER: no request is open,
 * or the link is lossless. */
uint64_t via_reads_deadline(const struct via_vi *vi);
void via_read_time_out(struct via_vi *vi);
/* A READ frame of the peer: a request if FIRST is set, else a piece of a reply. */
void via_read_frame(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);
/* The card has read the memory of the read at index, or has failed to: then frames begin to read it. */
void via_read_by_card(struct via_vi *vi, uint32_t index, int failed);
/* The target refused request `number`: its read completes with an error, in its turn. */
void via_read_refused(struct via_vi *vi, uint32_t number);

/* ---------------------------------------------------------------- reorder.c: the receiver of selective repeat */

/* Keeps a frame that arrived out of order. Returns 1 if it was kept, 0 if it was dropped (and counted). */
int via_reorder_keep(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload);
/* The kept frame with the expected number: copies its header and returns its payload, or NULL if it has not arrived.
 * The payload stays in place until via_reorder_done(), to be called after processing it. */
const uint8_t *via_reorder_next(struct via_vi *vi, struct wire_header *h);
/* True if any of the n frames from psn on is kept. */
int via_reorder_holds(const struct via_vi *vi, uint32_t psn, uint32_t n);
void via_reorder_done(struct via_vi *vi, uint32_t psn);
/* Drops all kept frames and frees their memory. */
void via_reorder_drop(struct via_vi *vi);
/* The number of missing frames before the furthest one that has arrived. */
uint32_t via_reorder_missing(const struct via_vi *vi);
/* via_reorder_trim frees memory that was unused for a while; via_reorder_fini frees all of it. */
void via_reorder_trim(struct via_nic *nic);
void via_reorder_fini(struct via_nic *nic);
/* Schedules an ACK or NAK for the end of this poll. */
void via_owe_reply(struct via_vi *vi);
void via_send_answers(struct via_nic *nic);
/* Sends an acknowledgement, which lists the gaps if there are any. If the link is full, the VI owes it. */
void via_send_ack(struct via_vi *vi);

/* ---------------------------------------------------------------- retransmit.c: the sender of selective repeat */

/* Retransmits the frames that the peer reports as missing after `ack`: a list of struct wire_run. */
void via_retransmit_gaps(struct via_vi *vi, uint32_t ack, const uint8_t *list, size_t len);
/* Forgets which frames were retransmitted: they count as lost again. */
void via_retransmit_forget(struct via_vi *vi);

/* ---------------------------------------------------------------- rtt.c */

/* Forgets all measurements, for a new connection. */
void via_rtt_reset(struct via_vi *vi);
/* Starts timing a frame that was sent for the first time, unless another one is timed. tx_psn is the number after
 * it. */
void via_rtt_begin(struct via_vi *vi);
/* Ends the timing if the timed frame lies before psn: all frames before psn have arrived. */
void via_rtt_arrived(struct via_vi *vi, uint32_t psn);
/* Adds a measured round trip (ns), and ends the back-off. */
void via_rtt_sample(struct via_vi *vi, uint64_t ns);
/* Notes that the peer is connected. ns: the round trip that its frame of the handshake shows, or 0. */
void via_rtt_confirmed(struct via_vi *vi, uint64_t ns);
/* Times derived from the measured round trip, ns: the retransmission time-out, and the delay before a tail probe. */
uint64_t via_rtt_timeout(const struct via_vi *vi);
uint64_t via_rtt_probe(const struct via_vi *vi);

/* The value for nic->whole_message. While a NIC is observed or discards arrivals, no frame matches it: the short path
 * is closed. */
static inline uint64_t via_whole_message(const struct via_nic *nic)
{
    if (nic->discards_arrivals || nic->observer)
        return ~0ull;
    return wire_word_destination(wire_version_kind(WIRE_SEND), WIRE_FLAG_FIRST | WIRE_FLAG_LAST, 0, nic->limits.port,
                                 0);
}

#endif
