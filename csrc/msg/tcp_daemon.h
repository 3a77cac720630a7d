/*
 * tcp_daemon.h - the daemon of a host, between its ranks and the daemons of other hosts (tcp_daemon.c), and the
 * descriptors that ranks hand over to it (tcp_relay.c).
 */
#ifndef VIAKIT_MSG_TCP_DAEMON_H
#define VIAKIT_MSG_TCP_DAEMON_H

#include "msg/tcp_meet.h"

#define TD_WINDOW MSG_DAEMON_WINDOW /* bytes of a stream that are under way or wait here */
#define TD_PACKET MSG_DAEMON_BYTES  /* the most bytes of data in a datagram */
#define TD_PAUSE (20 * VK_MS)       /* before the first repetition */
#define TD_AT_ONCE 128              /* descriptors in one handover */
#define TD_NONCE 16
#define TD_PROOF 32

/* One handover: descriptors for the streams of `rank` to the ranks from `first` on, without itself. The proof is of the
 * job's secret, the daemon's nonce and the other fields. */
struct td_handover {
    uint32_t rank, first, n;
    uint8_t proof[TD_PROOF];
};

/* The stream from a rank of this host to another rank. Offsets count bytes since the start. The end of a stream counts
 * as one byte. `fd` is this end of the rank's socket pair, -1 once it is useless.
 *
 *     acked ............ sent ............ read        the ring holds the bytes from acked to read, at most TD_WINDOW
 *       |<- under way ->|<- not sent yet ->|
 *
 * `received`, `full` and `peer_ended` belong to the other direction: the stream from the peer to this rank. */
struct td_stream {
    int fd, to;          /* to: the other rank's fd if it is on this host */
    uint32_t rank, peer; /* of this host; the other one */
    char *bytes;         /* [TD_WINDOW], a ring: offset modulo TD_WINDOW */
    uint64_t read, sent, acked;
    uint64_t received;  /* from the peer, and written to the rank's socket */
    uint64_t resend_at; /* when to go back to `acked`; VK_NEVER: nothing is under way */
    uint64_t pause;     /* before that; doubles until an acknowledgement arrives */
    uint64_t heard_at;  /* the peer's last acknowledgement, or the first datagram after it */
    uint8_t full;       /* the rank's socket had no room for data of the peer */
    uint8_t ended;      /* the rank has closed its end, at `read` */
    uint8_t peer_ended; /* the peer has, and the rank was notified */
};

/* Everything that the daemon uses: allocated before the fork, because the daemon may not allocate. */
struct td_plan {
    int listener, udp;
    int rank, n_ranks, n_streams;
    uint32_t packet;           /* bytes of data in a datagram, at most TD_PACKET */
    uint64_t packets;          /* whose bytes may be unacknowledged; 0: those of TD_WINDOW */
    int *local;                /* [n_ranks] index of a rank of this host, or -1 */
    struct tc_card *hosts;     /* [n_ranks] address of the daemon that serves the rank */
    struct td_stream *streams; /* [n local ranks][n_ranks], with an unused one for each rank itself */
    struct pollfd *polls;      /* [n_streams + 1] */
    char *bytes;
    uint8_t key[16]; /* of every datagram of this job */
    uint8_t secret[MSG_SECRET_LEN];
};

/* Accepts the handovers of all ranks of the host, then serves their streams until all have ended. */
void td_run(struct td_plan *plan);
void td_proof(const uint8_t secret[MSG_SECRET_LEN], const uint8_t nonce[TD_NONCE], const struct td_handover *h,
              uint8_t proof[TD_PROOF]);

#endif
