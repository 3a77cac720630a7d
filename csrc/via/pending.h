/*
 * pending.h - connections being set up: requests that arrived, waiting calls, and our own requests (connect/).
 *
 * Only the NIC's owner (own.h) touches these fields, unless a contract states otherwise.
 */
#ifndef VIAKIT_VIA_PENDING_H
#define VIAKIT_VIA_PENDING_H

#include <stddef.h>
#include <stdint.h>

#include "base/pool.h"
#include "link/link.h"
#include "viakit.h"
#include "vipl.h"

struct via_nic;
struct via_vi;

/* A secret shared by VIs, len bytes; 0: none. Wiped before its memory is freed. */
struct via_secret {
    uint8_t bytes[VIAKIT_SECRET_MOST];
    uint32_t len;
};

enum via_conn_state { VIA_CONN_OFFERED = 1, VIA_CONN_ACCEPTED, VIA_CONN_REJECTED, VIA_CONN_CANCELLED };

/* The server's side of one request, from its arrival until some time after its answer. */
struct via_conn {
    struct vk_object object;
    struct via_nic *nic;
    struct via_conn *next, *newer; /* of all requests that the NIC remembers, older and newer */
    struct via_conn *same;         /* with the same hash (conn_server.c) */
    enum via_conn_state state;
    int held; /* the program has the handle and has not answered */
    struct link_peer *peer;
    uint8_t address[6];
    uint16_t port, vi; /* of the requester */
    struct wire_connect remote;
    uint8_t own_discriminator[WIRE_MAX_DISCRIMINATOR]; /* the requester's */
    uint8_t wanted_discriminator[WIRE_MAX_DISCRIMINATOR];
    struct wire_proof remote_proof; /* of the request, if remote.proof states that it has one */
    struct via_vi *accepted;        /* our VI, while connected by this request */
    uint32_t accepted_key;
    struct wire_connect accept_body; /* the body of ACCEPT, to repeat it */
    struct wire_proof accept_proof;
    uint8_t transcript[32];            /* of a handshake with proofs (proof.h), for the client's CONFIRM */
    struct via_acceptance *acceptance; /* the VipConnectAccept call that waits for it; NULL: none */
    uint64_t retransmit_interval, retransmit_at;
    uint64_t forget_at; /* when an answered request is removed; until then its answer is repeated */
};

struct via_acceptance; /* connect/conn_server.h */

/* A thread in VipConnectWait. On its stack. */
struct via_waiter {
    struct via_waiter *next;
    const uint8_t *discriminator;
    size_t len;
    struct via_conn *conn; /* set when matched */
};

/* A thread in VipConnectRequest. On its stack. */
struct via_request {
    struct via_request *next;
    struct via_vi *vi;
    uint32_t number;
    struct link_frame frame;
    uint8_t address[6];
    uint16_t port;             /* of the one NIC that is addressed; 0: all NICs at the address */
    int n_addressed, no_match; /* NICs addressed (-1 unknown), NICs that answered NOMATCH */
    uint16_t
        no_match_ports[256]; /* ports of the NICs that answered NOMATCH: each counts once, however often it answers */
    int offered;             /* a server accepted the request for decision (PENDING) */
    int lacked;              /* an addressed NIC could not be reached for lack of address space */
    uint64_t next_send, interval, give_up_no_match;
    int done;
    VIP_RETURN result;
    struct wire_connect remote;
    struct link_peer *server; /* the server that sent PENDING; before that, the NIC of `port` if one was named */
    uint16_t server_port;
};

/* A peer request that did not match (conn_peer.c). */
struct via_peer_refusal {
    uint32_t request, own; /* numbers of the two requests that do not match */
    uint32_t code;
    struct via_secret secret; /* of our VI, to prove the refusal with; len 0: none */
};
#define VIA_PEER_REFUSALS 32

/* ---------------------------------------------------------------- what connect/ provides to the other rooms */

/* Wipes and frees the VI's secret, if it has one. */
void via_proof_free(struct via_vi *vi);

/* Handles a frame of a handshake. len is the payload's, which is valid during the call. peer: as in deliver
 * (link.h). */
void via_conn_deliver(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const struct wire_header *h,
                      const uint8_t *payload, size_t len);
/* Repeats and ends what is due, for all connections being made. */
void via_conn_timers(struct via_nic *nic);
/* The NIC closes: unanswered requests are rejected, and all state of connecting is freed. */
void via_conn_fini(struct via_nic *nic);
/* The VI is disconnected or destroyed: nothing of connect/ refers to it afterwards. */
void via_conn_forget_vi(struct via_vi *vi);
/* Ends the VI's connection in any state, notifies the peer, and flushes both queues. The VI is idle afterwards. */
void via_disconnect(struct via_vi *vi);

#endif
