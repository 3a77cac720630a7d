/*
 * conn.h - declarations shared by the connection files: conn.c (common parts, and the end of a connection),
 * conn_server.c and conn_server_calls.c (VipConnectWait, Accept, Reject), conn_client.c (VipConnectRequest),
 * conn_peer.c and conn_peer_calls.c (both sides request), discover.c.
 *
 * Every frame of a handshake may be lost or duplicated; frame_format.h defines the frames. All functions run as the
 * NIC's owner.
 */
#ifndef VIAKIT_CONN_H
#define VIAKIT_CONN_H

#include "base/clock.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

#define CONN_RETRANSMIT_FIRST (5 * VK_MS)
#define CONN_RETRANSMIT_LONGEST (200 * VK_MS)
#define CONN_REMEMBER (5 * VK_SECOND) /* how long an answered request is kept, to repeat the reply */

/* Return a random number that is never 0 and not guessable. */
uint32_t conn_random(void);

/* Describe this side of the connection, for REQUEST and ACCEPT. A new key and first number are drawn. */
void conn_describe(struct via_vi *vi, uint32_t request, struct wire_connect *c);
/* Apply the peer's description, once both sides are known: the VI is CONNECTED. */
void conn_join(struct via_vi *vi, const uint8_t address[6], struct link_peer *peer, uint16_t port, uint16_t number,
               const struct wire_connect *c);
/* The largest payload of a frame to this peer, and (conn_set_carried) of the peer's frames to this side, as it reports
 * it. They differ if the path has another limit in each direction. */
uint16_t conn_carried(const struct via_nic *nic, struct link_peer *peer);
void conn_set_carried(struct via_vi *vi, const struct wire_connect *c);
/* Fill in the attributes of the peer's VI; a may be NULL. */
void conn_attributes(const struct wire_connect *c, VIP_VI_ATTRIBUTES *a);
/* Check that the attributes of the two sides are compatible. Return VIP_SUCCESS, or the code for the difference,
 * explained. */
VIP_RETURN conn_check_fit(const char *function, const struct via_vi *vi, const struct wire_connect *remote);

/* The destination (port, vi) of a frame to a peer, which is sent now or as soon as the link has room. */
struct conn_to {
    struct link_peer *peer;
    uint16_t port, vi;
    uint32_t key;
    int passing; /* peer is a temporary route (via_route_in_passing): send now or never */
};
/* Send a frame of a handshake. The proof follows the block if body->proof is set; otherwise it may be NULL. */
void conn_send(struct via_nic *nic, const struct conn_to *to, int kind, uint16_t src_vi, uint32_t immediate,
               const struct wire_connect *body, const struct wire_proof *proof);
/* Write the time of sending into a handshake's frame, and the time of the frame to which it replies at once (0:
 * none). */
void conn_stamp(struct link_frame *f, uint16_t echo);
/* Send CONFIRM or CANCEL with the request's number and the requester's key. If it replies to an ACCEPT, the header has
 * the VI and key of that ACCEPT, because two VIs may have accepted one request. A VI with a secret sends CONFIRM by
 * conn_proof_confirm instead. */
void conn_send_to_server(struct via_nic *nic, const struct conn_to *server, uint16_t src_vi, uint32_t request,
                         uint32_t key, int kind);

/* Prepare a REQUEST of that mode (WIRE_MODE_*): both discriminators behind the connection block, and a proof if the VI
 * has a secret. Return VIP_SUCCESS. Return VIP_ERROR_RESOURCE, explained, if the kernel has no random bytes for a
 * nonce. The VI is then unchanged, except for what conn_describe resets. */
VIP_RETURN conn_prepare_request(int mode, struct via_vi *vi, uint32_t number, const VIP_NET_ADDRESS *local,
                                const VIP_NET_ADDRESS *remote, struct link_frame *f);
/* Send a REQUEST to the NIC of that port at the address, or (0) to every NIC there. Return the number of NICs
 * addressed, 0 if the address has none, LINK_UNKNOWN to retry, or LINK_ONLY_US. *addressed (may be NULL) becomes the
 * NIC of that port, if the link has a route to it. For port 0 it is unchanged. */
int conn_send_request(struct via_nic *nic, const uint8_t address[6], uint16_t port, struct link_frame *f,
                      struct link_peer **addressed);
/* Explain why there is no route to a NIC for which link_lacks_address_space() is true. Return the code. */
VIP_RETURN conn_explain_no_room(const char *function);
/* Return the port in an address of 8 bytes (viakit.h), or 0 (any NIC of the station) for one of 6. */
uint16_t conn_port_of(const VIP_NET_ADDRESS *remote);

/* The checks that VipConnectRequest and VipConnectPeerRequest share. */
VIP_RETURN conn_check_addresses(const char *function, const VIP_NET_ADDRESS *local, const VIP_NET_ADDRESS *remote,
                                VIP_ULONG timeout);
/* Checks that a local address is this NIC's. One without a host address is. */
VIP_RETURN conn_check_local(const char *function, const struct via_nic *nic, const VIP_NET_ADDRESS *local);
/* Set the two to the discriminator of an address. It lies in the address, and is not copied. */
void conn_discriminator(const VIP_NET_ADDRESS *a, const uint8_t **discriminator, size_t *len);

/* Return the next interval: doubled, up to the longest. */
static inline uint64_t conn_longer(uint64_t interval)
{
    return interval * 2 < CONN_RETRANSMIT_LONGEST ? interval * 2 : CONN_RETRANSMIT_LONGEST;
}

/* A received frame of a handshake, parsed. */
struct conn_frame {
    const uint8_t *from;
    struct link_peer *peer; /* NULL until conn_route finds it */
    const struct wire_header *h;
    struct wire_connect c;
    const uint8_t *names;    /* the discriminators behind the block */
    size_t names_len;        /* including a proof */
    struct wire_proof proof; /* valid if c.proof */
};

/* Return the round trip between this NIC and the sender of a reply, ns; 0 if the reply does not show it. */
uint64_t conn_round_trip(const struct conn_frame *f);
/* Reply to a sender for which no state is kept, not even a route. */
void conn_reply_in_passing(struct via_nic *nic, const struct conn_frame *f, int kind, uint32_t immediate,
                           const struct wire_connect *body, const struct wire_proof *proof);
/* Find the route to the sender, in f->peer. Return 0 if none exists. */
int conn_route(struct via_nic *nic, struct conn_frame *f);

/* The functions of the four files below have names of one form:
 *
 *     ..._arrived    a frame: REQUEST
 *     ..._accepted   ACCEPT
 *     ..._answered   PENDING, REJECT or NOMATCH
 *     ..._receive    CONFIRM or CANCEL
 *     ..._timers     something is due: repeat it or drop it, and set via_timer() for the next time
 *     ..._lost       the link has lost the peer: what waits for it ends
 *
 * The lengths in a frame have been checked. Its numbers have not: an unknown sender may have invented them. */

/* conn_server.c */
void conn_request_arrived(struct via_nic *nic, struct conn_frame *f);
/* Return 1 if the frame matched a request. */
int conn_server_receive(struct via_nic *nic, const struct conn_frame *f, int kind);
/* Return 1 if a VipConnectWait waits for this discriminator, and has no request yet. */
int conn_server_waits(struct via_nic *nic, const uint8_t *discriminator, size_t len);
void conn_server_timers(struct via_nic *nic);
void conn_server_lost(struct via_nic *nic, struct link_peer *peer);
/* Reject what is unanswered, and free all requests. */
void conn_server_fini(struct via_nic *nic);

/* conn_peer.c; functions with a result return whether the frame belongs to a peer request */
int conn_peer_is_open(const struct via_nic *nic, uint32_t request);
int conn_peer_wanted(struct via_nic *nic, const struct conn_frame *f);
void conn_peer_request_arrived(struct via_nic *nic, struct conn_frame *f);
int conn_peer_accepted(struct via_nic *nic, struct conn_frame *f);
int conn_peer_answered(struct via_nic *nic, struct conn_frame *f, int kind);
int conn_peer_receive(struct via_nic *nic, const struct conn_frame *f, int kind);
void conn_peer_timers(struct via_nic *nic);
void conn_peer_lost(struct via_nic *nic, struct link_peer *peer);
/* Remove the VI's peer request in any state. */
void conn_peer_drop(struct via_vi *vi);

/* Return the VI, the remote address and the request frame of a peer request, for snapshots. The result is the next
 * request. */
struct via_peering *conn_peer_inspect(struct via_peering *p, struct via_vi **vi, const uint8_t **address,
                                      const struct link_frame **frame);

/* discover.c */
void conn_discovery_arrived(struct via_nic *nic, struct conn_frame *f);
int conn_discovery_answered(struct via_nic *nic, const struct conn_frame *f);
void conn_discovery_timers(struct via_nic *nic);

/* conn_client.c */
int conn_client_is_open(const struct via_nic *nic, uint32_t request); /* whether the request is still open */
/* Also answers an ACCEPT that matches no request. */
void conn_accepted(struct via_nic *nic, struct conn_frame *f);
void conn_answered(struct via_nic *nic, struct conn_frame *f, int kind);
void conn_client_timers(struct via_nic *nic);
void conn_client_lost(struct via_nic *nic, struct link_peer *peer);
/* End the request of this VI with VIP_TIMEOUT. Return 0 if it has none. */
int conn_client_withdraw(struct via_vi *vi);

#endif
