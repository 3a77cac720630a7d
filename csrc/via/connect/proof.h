/*
 * proof.h - how two VIs prove to each other that they have the same secret, before either is CONNECTED.
 *
 *      requester                                             acceptor (server, or the higher of two peers)
 *          ----- REQUEST  nonce R, request mac ----------->  a request without a valid mac is not matched
 *          <---- ACCEPT   nonce A, accept mac -------------
 *      CONNECTED, if the mac is valid
 *          ----- CONFIRM  confirm mac -------------------->  CONNECTED, if the mac is valid
 *          <---- REJECT   reject mac ----------------------  peers only: the attributes differ
 *
 * A mac is BLAKE2s keyed with the secret, over a label and
 *
 *      request   the requester's side: station, port, VI, connection block, nonce, both discriminators
 *      accept    the transcript
 *      confirm   the transcript, and the connection block of the CONFIRM
 *      reject    nonce R, the connection block of the REJECT, its code
 *
 * The transcript is itself BLAKE2s, keyed with the secret, over both sides as above. A proof is therefore valid for one
 * pair of nonces, and for these two VIs with the keys, first numbers, rights and discriminators that both have
 * received. Labels and positions differ, so a proof that is sent back to its maker, or one of another handshake, is
 * never valid.
 *
 * The mac of a REQUEST is short and can be replayed: it only prevents matching of requests without the secret. A
 * replayed REQUEST leads to an ACCEPT that cannot be confirmed, which delays the acceptor until its time-out.
 *
 * All functions run as the NIC's owner. Those that verify return 1 or 0 and change nothing.
 */
#ifndef VIAKIT_PROOF_H
#define VIAKIT_PROOF_H

#include "link/frame_format.h"
#include "link/link.h"
#include "via/connect/conn.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

struct via_proof {
    struct via_secret secret;
    /* The CONFIRM of the connection that this VI requested, to repeat it; request 0: none yet. */
    struct wire_connect confirm;
    struct wire_proof confirm_proof;
};

/* One side of a handshake, as both sides see it. */
struct conn_side {
    const uint8_t *address; /* of the station, 6 bytes */
    uint16_t port, vi;
    const struct wire_connect *connect;
    const uint8_t *nonce;
};

/* The discriminators of a REQUEST as its sender wrote them: connect->wanted_len and own_len bytes. */
struct conn_names {
    const uint8_t *wanted, *own;
};

/* Append nonce and mac to the discriminators of a REQUEST that is otherwise complete. Returns as conn_prepare_request.
 */
VIP_RETURN conn_proof_add_to_request(struct via_vi *vi, struct link_frame *f);
/* Return the nonce and the discriminators of such a REQUEST. */
const uint8_t *conn_proof_nonce(const struct link_frame *request);
struct conn_names conn_proof_names(const struct link_frame *request);
/* Return this NIC as the sender of the request. */
struct conn_side conn_proof_requester(const struct via_nic *nic, const struct link_frame *request);
/* Compute the mac of a REQUEST, which carries the first WIRE_REQUEST_MAC bytes of it. */
void conn_proof_request(const struct via_secret *secret, const struct conn_side *requester, struct conn_names names,
                        uint8_t mac[32]);
/* Return whether the incoming REQUEST proves this secret. Its discriminators are passed separately. */
int conn_proof_request_right(const struct via_secret *secret, const struct conn_side *requester,
                             struct conn_names names, const struct wire_proof *proof);

/* Compute the transcript, on which ACCEPT and CONFIRM are based. */
void conn_proof_transcript(const struct via_secret *secret, const struct conn_side *requester, struct conn_names names,
                           const struct conn_side *acceptor, uint8_t transcript[32]);
void conn_proof_accept(const struct via_secret *secret, const uint8_t transcript[32], uint8_t mac[32]);

/* Return whether an ACCEPT that answers `request` proves the VI's secret. If the VI has none, the ACCEPT must have no
 * proof. transcript is set only for a VI with a secret. */
int conn_proof_accept_right(const struct via_vi *vi, const struct link_frame *request, const struct conn_frame *f,
                            uint8_t transcript[32]);
/* Send the CONFIRM of the connection that `request` has made, with a proof if the VI has a secret. f is the ACCEPT, its
 * peer is set. */
void conn_proof_confirm(struct via_vi *vi, const struct link_frame *request, const struct conn_frame *f,
                        const uint8_t transcript[32]);
/* Repeat that CONFIRM, for a VI with a secret. Return 1 if it was for that request, else 0. */
int conn_proof_confirm_again(struct via_vi *vi, const struct conn_to *to, uint32_t request);
/* Compute the mac of a CONFIRM with this block. */
void conn_proof_confirm_mac(const struct via_secret *secret, const uint8_t transcript[32],
                            const struct wire_connect *body, uint8_t mac[32]);
/* Return whether the CONFIRM is valid for this transcript. */
int conn_proof_confirm_right(const struct via_secret *secret, const uint8_t transcript[32], const struct conn_frame *f);

/* Return VIP_SUCCESS if the request was made by a VI with this VI's secret or, if this VI has none, by one without.
 * Otherwise return VIP_REJECT, explained. */
VIP_RETURN conn_proof_check_client(const struct via_conn *conn, const struct via_vi *vi);
/* Draw the nonce and make the proof for the ACCEPT that conn->accept_body describes; ACCEPT is repeated unchanged.
 * Return VIP_SUCCESS, or VIP_ERROR_RESOURCE, explained. */
VIP_RETURN conn_proof_of_acceptance(struct via_conn *conn, const struct via_vi *vi);

/* Compute the mac of a REJECT with this block and code, for the requester with this nonce. */
void conn_proof_reject(const struct via_secret *secret, const uint8_t *nonce, const struct wire_connect *body,
                       uint32_t code, uint8_t mac[32]);

#endif
