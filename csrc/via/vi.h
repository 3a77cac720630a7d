/*
 * vi.h - a VI: its two queues, its peer, and both directions of its connection. Functions: objects/vi.c, objects/cq.c.
 *
 * Only the NIC's owner (own.h) touches these fields, unless a contract states otherwise.
 */
#ifndef VIAKIT_VIA_VI_H
#define VIAKIT_VIA_VI_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/atomic.h"
#include "base/pool.h"
#include "link/frame_format.h"
#include "via/work.h"
#include "viakit.h"

struct via_cq;
struct via_nic;

/* The measured round trip of a connection (rtt.c), ns. One frame at a time is timed. Retransmitted frames are not,
 * because an acknowledgement does not show which copy arrived (Karn and Partridge, 1987). */
struct via_rtt {
    uint64_t smoothed, variation; /* RFC 6298's SRTT and RTTVAR; smoothed 0: nothing measured yet */
    uint64_t least;               /* the shortest sample, or that of the handshake; 0: none yet */
    uint64_t handshake;           /* the round trip of the handshake, used until the first sample; 0: unknown */
    uint64_t begun_at, next_at;   /* when the timed frame was sent; no other frame is timed before next_at */
    uint32_t psn;                 /* the number after the timed frame's */
    uint8_t timing;
    uint8_t tail_probes; /* sent since the last progress */
    uint8_t backoff;     /* probes and time-outs since the last sample; each doubles the time before the next one */
};

/* The latest message whose frames are placed while an earlier one is missing (ahead.c). */
struct via_cursor {
    uint32_t first; /* number of its first frame */
    uint32_t index; /* its receive descriptor, or the next one, if it is no send */
    uint32_t piece; /* bytes of each piece but the last; 0: unknown */
    uint8_t valid;
};

/* The value of rx_source that closes the short path: its key is 0, and whole_message() accepts no frame with that key.
 * A new, zeroed VI starts with it. */
#define VIA_NO_SOURCE 0

/* Units: numbers of frames (psn) and indices of link sends are free-running and wrap at 2^32, times are ns of vk_now(),
 * lengths are bytes. A field without an owner's name is written by the NIC's owner only.
 *
 * `object` and `nic` precede `number`, so they stay readable after the VI is destroyed (VK_POOL_INIT in vi.c). The
 * fields of a connection are reset by via_vi_reset(), those of the VI itself live until it is destroyed. */
struct via_vi {
    struct vk_object object;
    struct via_nic *nic;
    uint16_t number;  /* index in nic->vis */
    uint8_t reliable; /* level is not UNRELIABLE */
    uint8_t
        lossless; /* the connection runs over a lossless link without faults: no sequence checks, no retransmission */
    VIP_VI_STATE state __attribute__((aligned(8)));
    uint32_t deferring; /* sends from hold_from on wait for the program's command (VipPostDeferredSends) */
    uint32_t hold_from;
    VIP_VI_ATTRIBUTES attributes;
    uint32_t ptag; /* number */
    VIP_PVOID user_data;
    struct via_proof *proof; /* the secret for the VI's connections (proof.c); NULL: none */
    struct via_queue send, recv;
    struct via_peering *peering; /* the VI's peer request until its result is collected (conn_peer.c) */
    struct via_conn
        *accepted_by; /* the request that made its connection, while remembered; NULL if this VI was the requester */

    /* The peer. Valid while CONNECTED, and in ERROR to answer frames that still arrive. */
    struct link_peer *peer;
    uint8_t peer_address[6];
    uint16_t peer_port, peer_vi;
    uint32_t key, peer_key; /* in frames to us / to the peer */
    uint32_t peer_ptag;
    uint8_t peer_rdma_write, peer_rdma_read;
    uint8_t confirmed;            /* the peer is known to be connected: it sent CONFIRM or data */
    uint32_t chunk;               /* payload bytes per frame that this VI sends */
    uint32_t read_chunk;          /* ... and that it requests in reads: the peer may be able to send less */
    struct wire_header tx_header; /* the common part of all frames to this peer ... */
    uint64_t tx_words[2];         /* ... and the first two words of a whole message, without its length */
    uint64_t rx_source;           /* second word of the peer's frames; VIA_NO_SOURCE unless CONNECTED */

    /* transmitter: una_psn <= tx_psn <= high_psn <= next_psn, with the picture in reliable.c.
     * flight_head <= flight_seen <= flight_tail; flight_tail - flight_seen is compared with the window. */
    uint32_t next_psn;               /* of the next new frame */
    uint32_t una_psn;                /* oldest unacknowledged */
    uint32_t tx_psn;                 /* next to hand to the link; set back to retransmit */
    uint32_t high_psn;               /* after the last one ever handed to the link */
    uint16_t flight_end[VIA_FLIGHT]; /* psn after the last frame of each link send in flight, its lower half */
    uint32_t flight_head, flight_tail;
    uint32_t flight_seen; /* sends before it have arrived, except for single frames: the window no longer counts them */
    uint32_t window;      /* congestion window, link sends */
    uint32_t threshold;   /* below it the window doubles per round trip */
    uint32_t undo_window; /* the window before the last loss */
    uint32_t window_credit;     /* acknowledged sends since the window last grew */
    uint8_t long_trip;          /* the window may exceed that of the options, up to the NIC's long_window */
    uint32_t lost_frames;       /* single frames lost that have not yet reduced the window */
    uint32_t recover_psn;       /* until this is acknowledged, further bursts of losses do not halve the window again */
    struct via_resent *resent;  /* frames that were retransmitted one by one (retransmit.c); NULL: none lately */
    uint32_t write_psn;         /* after the last RDMA write that was sent as frames on a lossless link */
    uint32_t nak_psn, nak_high; /* psn of the last NAK, and high_psn at that time: copies of the NAK are ignored */
    uint64_t rto_deadline;      /* VK_NEVER: nothing is awaited */
    uint64_t rto;           /* current time-out, ns: the measured one, doubled by each that passed without progress */
    uint64_t waiting_since; /* the last progress, or the first frame in flight */
    uint32_t retries;
    uint8_t probing;
    struct via_rtt rtt;

    uint32_t card_open; /* RDMA operations that the card has begun and not finished (card.c) ... */
    uint32_t card_next; /* ... and the first entry of the send queue behind its writes */

    struct via_reads *reads; /* RDMA reads, of both sides (read.c); NULL: none yet */

    /* receiver: all frames before expected_psn are placed, or lost for good (unreliable). Acknowledgements carry it. */
    uint32_t expected_psn;
    uint32_t acked_psn; /* the last acknowledgement sent */
    uint8_t ack_owed;   /* 1: send it after ack_delay_us, 2: with the next idle poll */
    uint8_t nak_sent;
    uint64_t ack_owed_at;
    uint32_t ahead_psn;          /* the last frame that came out of order; selective repeat: after the furthest one */
    struct via_reorder *reorder; /* out-of-order frames that are kept (reorder.c); NULL: none lately */
    uint8_t keeps_out_of_order;  /* selective repeat: out-of-order frames are kept and the gaps reported */
    uint8_t has_gap; /* selective repeat: a frame before ahead_psn is missing; rx_source is VIA_NO_SOURCE meanwhile */
    uint8_t on_answer_list;               /* an ACK or NAK is sent at the end of this poll */
    uint8_t rx_active;                    /* in the middle of a message: WIRE_SEND or WIRE_WRITE */
    uint8_t rx_skip;                      /* drop pieces until the next first piece */
    uint8_t owes_acks;                    /* data is acknowledged even if no flag requests it */
    uint8_t peer_active;                  /* a frame arrived since the keep-alive last checked */
    uint32_t rx_len;                      /* bytes of the message placed so far */
    uint32_t rx_first_psn, rx_piece;      /* number and length of the message's first frame (ahead.c) */
    struct via_cursor rx_cursor;          /* valid while has_gap */
    uint32_t rx_segment, rx_segment_used; /* position in the receive descriptor */
    uint64_t rx_address;                  /* next byte of an RDMA write */
    uint32_t rx_handle, rx_left;
    uint32_t error_psn, error_status; /* the reason for the ERROR state; repeated to a sender that continues */
    uint64_t received_at;

    /* lists of the NIC. A VI is in each at most once: on_... shows it, for the first two and answer_list */
    struct via_vi *next, *prev;           /* all VIs of the NIC */
    struct via_vi *ack_next, *stall_next; /* VIs that owe an acknowledgement / wait to send */
    struct via_vi *answer_next;
    uint8_t on_ack_list, on_stall_list;

    uint64_t counters[VIAKIT_N_COUNTERS];
};
_Static_assert(sizeof(struct via_vi) <= 4096, "a VI fits its pool slot");

/* Counts for a VI. A query of the NIC's counters adds those of its VIs (nic.c). */
#define VI_COUNT(vi, name, n) ((vi)->counters[VIAKIT_COUNTER_##name] += (uint64_t)(n))

/* All functions below need ownership of the NIC, and none blocks. */

/* Completes the queue's entry `done`: writes the status last, then notifies the completion queue and waiting calls. The
 * descriptor is the program's again before the call returns. */
void via_complete(struct via_vi *vi, struct via_queue *q, uint32_t status);
/* Flushes all outstanding descriptors. The caller sets the VI's state. */
void via_flush(struct via_vi *vi);
/* Ends the connection because of an error: VI to ERROR, queues flushed, CONN_LOST reported if requested. */
void via_break(struct via_vi *vi, int report_conn_lost);
/* Adds an entry for a completion of the VI's queue. If the ring is full, the entry is lost and reported as an
 * asynchronous error. */
void via_cq_push(struct via_cq *cq, struct via_vi *vi, int recv);
/* Removes the oldest entry; returns 0 if the queue is empty. */
int via_cq_take(struct via_cq *cq, VIP_VI_HANDLE *vi, VIP_BOOLEAN *recv);
/* Completes the entries at the head whose errors were found when they were posted. */
void via_settle_errors(struct via_vi *vi, struct via_queue *q);
/* Prepares the VI for its next connection: numbers, window, round trip, receiver. The work queues keep their
 * entries. */
void via_vi_reset(struct via_vi *vi);
/* Frees an idle VI whose descriptors were all reaped. Returns VIP_ERROR_RESOURCE, explained, otherwise. */
VIP_RETURN via_vi_destroy(struct via_vi *vi);
/* Adds the VI's counters to sum[VIAKIT_N_COUNTERS], except those that the NIC counts itself. */
void via_add_counters(uint64_t *sum, const struct via_vi *vi);
/* Frees a completion queue with its waiting entries. No work queue uses it, or the NIC is closing. */
void via_cq_free(struct via_cq *cq);

/* True if the VI is connected and its sends are not deferred: one comparison for the two words. */
static inline int via_may_transmit(const struct via_vi *vi)
{
    uint64_t both;
    _Static_assert(sizeof(VIP_VI_STATE) == 4 &&
                       offsetof(struct via_vi, deferring) == offsetof(struct via_vi, state) + 4,
                   "state and deferring are one word");
    memcpy(&both, &vi->state, sizeof both);
    return both == VIP_STATE_CONNECTED;
}

#endif
