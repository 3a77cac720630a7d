/*
 * conn.h - what the files about connections share: conn.c (what all have in common, and the end of a connection),
 * conn_server.c (VipConnectWait, Accept, Reject), conn_client.c (VipConnectRequest), conn_peer.c (both sides ask).
 *
 * Every frame of the handshakes may be lost or come twice; what each of them means stands in wire.h.
 */
#ifndef VIAKIT_CONN_H
#define VIAKIT_CONN_H

#include "internal.h"

#define CONN_REPEAT_FIRST (5 * VK_MS)
#define CONN_REPEAT_LONGEST (200 * VK_MS)
#define CONN_REMEMBER (5 * VK_SECOND) /* an answered request, to repeat the answer */

/* Never 0, and not to be guessed. */
uint32_t conn_random(void);

/* Our side of the connection, for REQUEST and ACCEPT. A new key and first number are drawn. */
void conn_describe(struct via_vi *vi, uint32_t request, struct wire_connect *c);
/* The other side's, once both are known: the VI is CONNECTED. */
void conn_join(struct via_vi *vi, const uint8_t address[6], struct link_peer *peer, uint16_t port, uint16_t number,
               const struct wire_connect *c);
uint16_t conn_carried(const struct via_nic *nic, struct link_peer *peer);
void conn_told_carried(struct via_vi *vi, const struct wire_connect *c);
void conn_attributes(const struct wire_connect *c, VIP_VI_ATTRIBUTES *a);
/* Do the two sides fit together? VIP_SUCCESS, or the code that says what does not, explained. */
VIP_RETURN conn_check_fit(const char *function, const struct via_vi *vi, const struct wire_connect *remote);

/* A frame to (port, vi) of a peer, now or as soon as the link can take it. */
struct conn_to {
    struct link_peer *peer;
    uint16_t port, vi;
    uint32_t key;
    int passing; /* peer is a stranger's (via_route_in_passing): now or never */
};
void conn_say(struct via_nic *nic, const struct conn_to *to, int kind, uint16_t src_vi, uint32_t immediate,
              const struct wire_connect *body);
/* CONFIRM or CANCEL: the request's number and the requester's key, and in the header the VI and key of the ACCEPT
 * that is answered, if it is one: two VIs may have promised themselves to one request. */
void conn_say_to_server(struct via_nic *nic, const struct conn_to *server, uint16_t src_vi, uint32_t request,
                        uint32_t key, int kind);

/* Both discriminators behind the connection block of a REQUEST. */
void conn_prepare_request(struct via_vi *vi, uint32_t number, const VIP_NET_ADDRESS *local,
                          const VIP_NET_ADDRESS *remote, struct link_frame *f);
/* A REQUEST to the NIC of that port at the address, or (0) to every NIC there. How many were asked; 0: there is none;
 * LINK_UNKNOWN: ask again; LINK_ONLY_US. *asked (it may be NULL) becomes the NIC of that port, if the link has a way to
 * it; where all were asked it is left as it was. */
int conn_ask(struct via_nic *nic, const uint8_t address[6], uint16_t port, struct link_frame *f,
             struct link_peer **asked);
/* Why there is no way to the NIC of that port, or (0) to any, where link_lacks_room() says so. */
VIP_RETURN conn_explain_no_room(const char *function);
/* The port that an address of 8 bytes names (viakit.h), 0 for one of 6: any NIC of the station. */
uint16_t conn_port_of(const VIP_NET_ADDRESS *remote);

/* The checks that VipConnectRequest and VipConnectPeerRequest have in common. */
VIP_RETURN conn_check_addresses(const char *function, const VIP_NET_ADDRESS *local, const VIP_NET_ADDRESS *remote,
                                VIP_ULONG timeout);
void conn_discriminator(const VIP_NET_ADDRESS *a, const uint8_t **discriminator, size_t *len);

/* Doubled, up to the longest. */
static inline uint64_t conn_longer(uint64_t interval)
{
    return interval * 2 < CONN_REPEAT_LONGEST ? interval * 2 : CONN_REPEAT_LONGEST;
}

/* A frame of a handshake, taken apart. */
struct conn_frame {
    const uint8_t *from;
    struct link_peer *peer; /* NULL: conn_route finds it */
    const struct wire_header *h;
    struct wire_connect c;
    const uint8_t *names; /* the discriminators behind the block */
    size_t names_len;
};

/* An answer to somebody of whom we keep nothing, not even the way to him. */
void conn_say_in_passing(struct via_nic *nic, const struct conn_frame *f, int kind, uint32_t immediate,
                         const struct wire_connect *body);
/* The way back to whoever sent it, in f->peer; 0 if there is none. */
int conn_route(struct via_nic *nic, struct conn_frame *f);

/* conn_server.c */
void conn_request_arrived(struct via_nic *nic, struct conn_frame *f);
int conn_server_says(struct via_nic *nic, const struct conn_frame *f,
                     int kind); /* CONFIRM, CANCEL: 1 if it was for us */
int conn_server_waits(struct via_nic *nic, const uint8_t *discriminator, size_t len);
void conn_server_timers(struct via_nic *nic);
void conn_server_lost(struct via_nic *nic, struct link_peer *peer);
void conn_server_fini(struct via_nic *nic);

/* conn_peer.c; those that return something say whether the frame was for a peer request */
int conn_peer_asking(const struct via_nic *nic, uint32_t request);
int conn_peer_wanted(struct via_nic *nic, const struct conn_frame *f);
void conn_peer_request_arrived(struct via_nic *nic, struct conn_frame *f);
int conn_peer_accepted(struct via_nic *nic, struct conn_frame *f);
int conn_peer_answered(struct via_nic *nic, struct conn_frame *f, int kind);
int conn_peer_says(struct via_nic *nic, const struct conn_frame *f, int kind);
void conn_peer_timers(struct via_nic *nic);
void conn_peer_lost(struct via_nic *nic, struct link_peer *peer);
/* Forgets the VI's peer request, whatever has become of it. */
void conn_peer_drop(struct via_vi *vi);

/* What a peer request is about, for snapshots: its VI, whom it asks, and the frame it asks with. Returns the next
 * one. */
struct via_peering *conn_peer_look(struct via_peering *p, struct via_vi **vi, const uint8_t **address,
                                   const struct link_frame **frame);

/* discover.c */
void conn_discovery_arrived(struct via_nic *nic, struct conn_frame *f);
int conn_discovery_answered(struct via_nic *nic, const struct conn_frame *f);
void conn_discovery_timers(struct via_nic *nic);

/* conn_client.c */
int conn_client_asking(const struct via_nic *nic, uint32_t request); /* is it still open? */
void conn_accepted(struct via_nic *nic, struct conn_frame *f);
void conn_answered(struct via_nic *nic, struct conn_frame *f, int kind); /* PENDING, REJECT, NOMATCH */
void conn_client_timers(struct via_nic *nic);
void conn_client_lost(struct via_nic *nic, struct link_peer *peer);
/* Ends the request of this VI with VIP_TIMEOUT. 0 if there is none. */
int conn_client_withdraw(struct via_vi *vi);

#endif
