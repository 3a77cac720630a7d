/*
 * conn_peer.h - a peer request (VipConnectPeerRequest), for the two files that handle it: conn_peer.c has the
 * protocol, conn_peer_calls.c the VIPL calls.
 */
#ifndef VIAKIT_CONN_PEER_H
#define VIAKIT_CONN_PEER_H

#include <stdint.h>

#include "link/frame_format.h"
#include "link/link.h"
#include "via/connect/conn.h"
#include "via/nic.h"
#include "via/vi.h"

/* The states of a peer request, and what leads from one to the next:
 *
 *      REQUESTING --> PROMISED     a matching REQUEST of a lower peer
 *      REQUESTING --> OVER         ACCEPT: connected
 *      PROMISED   --> REQUESTING   CANCEL, the end of the promise, or the loss of the partner
 *      PROMISED   --> OVER         CONFIRM: connected
 *      either     --> OVER         REJECT, or the program's time-out
 *      REQUESTING --> OVER         CONFIRM of an expired promise, or no address space for the peer's memory
 *
 * REQUESTING repeats REQUEST. PROMISED repeats ACCEPT instead, to one partner. OVER sends nothing, and `result` is
 * valid. The VI is CONNECT_PENDING in the first two states. */
enum peering_state { REQUESTING, PROMISED, OVER };

/* One VipConnectPeerRequest, until its result is collected. Allocated by that call and owned by its VI, which has at
 * most one: conn_peer_drop() frees it. Only the NIC's owner uses it. */
struct via_peering {
    struct via_peering *next; /* all of the NIC, oldest first */
    struct via_vi *vi;
    enum peering_state state;
    VIP_RETURN result;       /* valid if OVER */
    uint32_t number;         /* of the request, random: replies repeat it */
    uint8_t address[6];      /* of the remote station */
    uint16_t port;           /* of the one NIC there; 0: any */
    struct link_frame frame; /* REQUEST, with both discriminators and the proof; its block also describes this side */
    uint64_t deadline;       /* ns: the program's time-out */
    uint64_t next_send, interval; /* ns: of REQUEST or ACCEPT, by the state */
    unsigned long timeout_ms;     /* for the explanation */
    /* the partner of the last promise; zero: none yet. Kept after the promise, for a late CONFIRM */
    struct conn_to partner;
    uint8_t partner_address[6];
    struct wire_connect remote;
    uint64_t promised_until;
    /* the promise of a VI with a secret: the same each time, because the partner's CONFIRM proves receipt of it */
    struct wire_connect accept;
    struct wire_proof accept_proof;
    uint8_t transcript[32];
};

/* Send REQUEST, to all NICs of the station or to one, and set the time of the next one from nic->now, which the caller
 * has set. The caller also sets via_timer(). If one NIC is addressed and address space for its memory is missing, the
 * request is OVER afterwards. */
void conn_peer_send_request(struct via_nic *nic, struct via_peering *p);

#endif
