/*
 * Secrets of VIs, and the proofs of a handshake. proof.h describes the protocol; this file computes and compares.
 *
 * Each proof begins with its own label of 24 bytes, so that proofs of different kinds cannot be confused. All other
 * parts have fixed lengths, or lengths that an earlier part contains, so no two handshakes have the same bytes.
 *
 *   side         | station, 6 | port, 2 | VI, 2 | connection block | nonce |                 bytes, little-endian
 *   request      | label | side of the requester | wanted name | own name |
 *   transcript   | label | side of the requester | both names | side of the acceptor |
 *   accept       | label | transcript, 32 |       confirm   | label | transcript, 32 | connection block |
 *   reject       | label | requester's nonce | connection block | code, 4 |
 *
 * Every line is a message of BLAKE2s with the secret as its key (RFC 7693). A keyed BLAKE2s is a mac by itself and
 * needs no HMAC around it.
 *
 * Not done: forward secrecy and encryption. A proof shows who connects. It protects neither data nor later frames,
 * which only carry the connection's key (docs/security.md).
 *
 * The NIC's owner calls all functions, except viakit_set_vi_secret(), which enters the NIC. None blocks, except for
 * vk_random_bytes() early in the boot of a host.
 */
#include "via/connect/proof.h"
#include "base/explain.h"

#include <stdlib.h>

#include "base/blake2s.h"
#include <string.h>

#include "link/frame_format.h"
#include "link/link.h"
#include "via/connect/conn.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

/* Part of the protocol: both sides must have the same bytes. The rest of each label is zero. */
#define LABEL 24
static const char request_label[LABEL] = "viakit via request";
static const char transcript_label[LABEL] = "viakit via transcript";
static const char accept_label[LABEL] = "viakit via accept";
static const char confirm_label[LABEL] = "viakit via confirm";
static const char reject_label[LABEL] = "viakit via reject";

/* ---------------------------------------------------------------- the secret */

/* The secret is wiped first: freed memory may be given to other code of the program. Called when a VI is destroyed, and
 * when its secret is replaced. */
void via_proof_free(struct via_vi *vi)
{
    if (vi->proof == NULL)
        return;
    vk_wipe(vi->proof, sizeof *vi->proof);
    free(vi->proof);
    vi->proof = NULL;
}

/* The secret is copied: the program may wipe its own copy at once. Any thread may call this. */
VIP_RETURN viakit_set_vi_secret(VIP_VI_HANDLE handle, const void *secret, size_t len)
{
    VIP_RETURN code;
    if ((secret == NULL) != (len == 0) || (len && (len < VIAKIT_SECRET_LEAST || len > VIAKIT_SECRET_MOST)))
        return vk_fail(VIP_INVALID_PARAMETER,
                       "viakit_set_vi_secret: %zu bytes at %p: give %d to %d bytes, or NULL and 0 to remove it", len,
                       secret, VIAKIT_SECRET_LEAST, VIAKIT_SECRET_MOST);
    /* Allocated before the NIC is entered, so that no memory is allocated inside. */
    struct via_proof *proof = len ? calloc(1, sizeof *proof) : NULL;
    if (len && proof == NULL)
        return via_no_memory("viakit_set_vi_secret");
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL) {
        free(proof);
        return code;
    }
    struct via_nic *nic = vi->nic;
    if (vi->state != VIP_STATE_IDLE) {
        code = vk_fail(VIP_INVALID_STATE, "viakit_set_vi_secret: the VI is in %s: set the secret while it is idle",
                       viakit_state_name((int)vi->state));
        free(proof);
    } else {
        /* An idle VI has no handshake under way, so no proof by the previous secret is outstanding. */
        via_proof_free(vi);
        if (proof) {
            memcpy(proof->secret.bytes, secret, len);
            proof->secret.len = (uint32_t)len;
        }
        vi->proof = proof;
        code = VIP_SUCCESS;
    }
    via_leave(nic);
    return code;
}

/* ---------------------------------------------------------------- parts of the proofs */

/* Starts a mac. vk_blake2s_end() wipes the state, which contains the key. */
static void begin(struct vk_blake2s *s, const struct via_secret *secret, const char label[LABEL])
{
    vk_blake2s_begin(s, secret->bytes, secret->len);
    vk_blake2s_add(s, label, LABEL);
}

/* The identity of the side (station, port, VI), and its key, first number and rights in the block. A host between the
 * two could otherwise change them. The block is hashed as it is on the wire, so both sides hash the same bytes. */
static void add_side(struct vk_blake2s *s, const struct conn_side *side)
{
    vk_blake2s_add(s, side->address, 6);
    vk_blake2s_add(s, &side->port, sizeof side->port);
    vk_blake2s_add(s, &side->vi, sizeof side->vi);
    vk_blake2s_add(s, side->connect, sizeof *side->connect);
    vk_blake2s_add(s, side->nonce, sizeof((struct wire_proof *)0)->nonce);
}

/* The lengths of both names are in the block, which has been hashed before them: the border between them is covered,
 * too. */
static void add_requester(struct vk_blake2s *s, const struct conn_side *requester, struct conn_names names)
{
    add_side(s, requester);
    vk_blake2s_add(s, names.wanted, requester->connect->wanted_len);
    vk_blake2s_add(s, names.own, requester->connect->own_len);
}

/* ---------------------------------------------------------------- REQUEST */

/* The body of a REQUEST: block, wanted name, own name, nonce, mac. The caller has built the frame, so the lengths need
 * no check here. */
const uint8_t *conn_proof_nonce(const struct link_frame *request)
{
    const struct wire_connect *c = &request->block.connect;
    return request->block.bytes + sizeof *c + c->wanted_len + c->own_len;
}

struct conn_names conn_proof_names(const struct link_frame *request)
{
    const struct wire_connect *c = &request->block.connect;
    const uint8_t *names = request->block.bytes + sizeof *c;
    return (struct conn_names){names, names + c->wanted_len};
}

/* Return the requester as it describes itself in its frame. */
struct conn_side conn_proof_requester(const struct via_nic *nic, const struct link_frame *request)
{
    return (struct conn_side){nic->limits.address, nic->limits.port, request->header.src_vi, &request->block.connect,
                              conn_proof_nonce(request)};
}

/* The frame carries only the first WIRE_REQUEST_MAC bytes: a request with the longest names has to fit the smallest
 * MTU (frame_format.h). The other macs are sent in full. */
void conn_proof_request(const struct via_secret *secret, const struct conn_side *requester, struct conn_names names,
                        uint8_t mac[32])
{
    struct vk_blake2s s;
    begin(&s, secret, request_label);
    add_requester(&s, requester, names);
    vk_blake2s_end(&s, mac);
}

/* The nonce is drawn once for a request, and not for each copy of its frame: copies must have the same bytes, because
 * the transcript is computed from the stored frame. */
VIP_RETURN conn_proof_add_to_request(struct via_vi *vi, struct link_frame *f)
{
    uint8_t *at = f->block.bytes + f->header.len;
    struct wire_proof proof;
    if (vk_random_bytes(proof.nonce, sizeof proof.nonce) != 0)
        return vk_fail(VIP_ERROR_RESOURCE, "%s: the kernel has no random bytes, which a VI with a secret needs",
                       f->block.connect.mode == WIRE_MODE_PEER ? "VipConnectPeerRequest" : "VipConnectRequest");
    f->block.connect.proof = WIRE_PROOF;
    memcpy(at, proof.nonce, sizeof proof.nonce);
    struct conn_side requester = conn_proof_requester(vi->nic, f);
    conn_proof_request(&vi->proof->secret, &requester, conn_proof_names(f), proof.mac);
    /* The nonce was in place before: the mac covers it, and is computed from the frame itself. */
    memcpy(at, &proof, WIRE_REQUEST_PROOF);
    f->header.len = (uint16_t)(f->header.len + WIRE_REQUEST_PROOF);
    return VIP_SUCCESS;
}

/* The comparison takes the same time wherever the macs differ, so that a sender cannot guess one byte after the
 * other. */
int conn_proof_request_right(const struct via_secret *secret, const struct conn_side *requester,
                             struct conn_names names, const struct wire_proof *proof)
{
    uint8_t mac[32];
    conn_proof_request(secret, requester, names, mac);
    return vk_equal_secret(mac, proof->mac, WIRE_REQUEST_MAC);
}

/* ---------------------------------------------------------------- ACCEPT, CONFIRM, REJECT */

/* The requester comes first on both sides, so both hash the same order. */
void conn_proof_transcript(const struct via_secret *secret, const struct conn_side *requester, struct conn_names names,
                           const struct conn_side *acceptor, uint8_t transcript[32])
{
    struct vk_blake2s s;
    begin(&s, secret, transcript_label);
    add_requester(&s, requester, names);
    add_side(&s, acceptor);
    vk_blake2s_end(&s, transcript);
}

void conn_proof_accept(const struct via_secret *secret, const uint8_t transcript[32], uint8_t mac[32])
{
    struct vk_blake2s s;
    begin(&s, secret, accept_label);
    vk_blake2s_add(&s, transcript, 32);
    vk_blake2s_end(&s, mac);
}

void conn_proof_confirm_mac(const struct via_secret *secret, const uint8_t transcript[32],
                            const struct wire_connect *body, uint8_t mac[32])
{
    struct vk_blake2s s;
    begin(&s, secret, confirm_label);
    vk_blake2s_add(&s, transcript, 32);
    vk_blake2s_add(&s, body, sizeof *body);
    vk_blake2s_end(&s, mac);
}

/* Sets the transcript, which CONFIRM needs, only if the VI has a secret. */
int conn_proof_accept_right(const struct via_vi *vi, const struct link_frame *request, const struct conn_frame *f,
                            uint8_t transcript[32])
{
    uint8_t mac[32];
    /* A secret on one side only is no match: a VI with a secret never connects to one that proves nothing, and the
     * other way round. */
    if (vi->proof == NULL || !f->c.proof)
        return vi->proof == NULL && !f->c.proof;
    struct conn_side requester = conn_proof_requester(vi->nic, request);
    /* The requester takes its own side from its stored REQUEST, and the acceptor from the ACCEPT. If a frame was
     * changed on the way, the two transcripts differ. */
    struct conn_side acceptor = {f->from, f->h->src_port, f->h->src_vi, &f->c, f->proof.nonce};
    conn_proof_transcript(&vi->proof->secret, &requester, conn_proof_names(request), &acceptor, transcript);
    conn_proof_accept(&vi->proof->secret, transcript, mac);
    return vk_equal_secret(mac, f->proof.mac, sizeof mac);
}

/* The body is kept with the proof, which covers it: the largest payload may have changed when CONFIRM is repeated. */
void conn_proof_confirm(struct via_vi *vi, const struct link_frame *request, const struct conn_frame *f,
                        const uint8_t transcript[32])
{
    const struct wire_connect *c = &request->block.connect;
    struct conn_to to = {.peer = f->peer, .port = f->h->src_port, .vi = f->h->src_vi, .key = f->c.key};
    struct via_proof *own = vi->proof;
    /* Without a secret CONFIRM has no proof, and nothing to keep: it can be made again from the ACCEPT. */
    if (own == NULL) {
        conn_send_to_server(vi->nic, &to, vi->number, c->request, c->key, WIRE_CONFIRM);
        return;
    }
    own->confirm = (struct wire_connect){
        .request = c->request, .key = c->key, .max_payload = conn_carried(vi->nic, f->peer), .proof = WIRE_PROOF};
    memcpy(own->confirm_proof.nonce, conn_proof_nonce(request), sizeof own->confirm_proof.nonce);
    conn_proof_confirm_mac(&own->secret, transcript, &own->confirm, own->confirm_proof.mac);
    conn_proof_confirm_again(vi, &to, c->request);
}

int conn_proof_confirm_again(struct via_vi *vi, const struct conn_to *to, uint32_t request)
{
    const struct via_proof *own = vi->proof;
    /* An ACCEPT may be repeated because our CONFIRM was lost. One that belongs to an earlier connection of this VI gets
     * no answer. */
    if (own->confirm.request != request || own->confirm.key != vi->key)
        return 0;
    conn_send(vi->nic, to, WIRE_CONFIRM, vi->number, 0, &own->confirm, &own->confirm_proof);
    return 1;
}

int conn_proof_confirm_right(const struct via_secret *secret, const uint8_t transcript[32], const struct conn_frame *f)
{
    uint8_t mac[32];
    if (!f->c.proof)
        return 0;
    conn_proof_confirm_mac(secret, transcript, &f->c, mac);
    return vk_equal_secret(mac, f->proof.mac, sizeof mac);
}

/* A REJECT is not based on the transcript. The requester's nonce binds it to this REQUEST. */
void conn_proof_reject(const struct via_secret *secret, const uint8_t *nonce, const struct wire_connect *body,
                       uint32_t code, uint8_t mac[32])
{
    struct vk_blake2s s;
    begin(&s, secret, reject_label);
    vk_blake2s_add(&s, nonce, sizeof((struct wire_proof *)0)->nonce);
    vk_blake2s_add(&s, body, sizeof *body);
    vk_blake2s_add(&s, &code, sizeof code);
    vk_blake2s_end(&s, mac);
}

/* ---------------------------------------------------------------- the server's side */

/* The client as its REQUEST described it, from the copy in the connection. */
static struct conn_side side_of_client(const struct via_conn *conn)
{
    return (struct conn_side){conn->address, conn->port, conn->vi, &conn->remote, conn->remote_proof.nonce};
}

static struct conn_names names_of_client(const struct via_conn *conn)
{
    return (struct conn_names){conn->wanted_discriminator, conn->own_discriminator};
}

VIP_RETURN conn_proof_check_client(const struct via_conn *conn, const struct via_vi *vi)
{
    struct conn_side client = side_of_client(conn);
    /* Each case has a message of its own, because the program that accepts must decide whether to set a secret or to
     * reject. */
    if (vi->proof == NULL && conn->remote.proof)
        return vk_fail(VIP_REJECT,
                       "VipConnectAccept: the client's VI has a secret, and the server's has none: set the same "
                       "with viakit_set_vi_secret, or reject the request");
    if (vi->proof && !conn->remote.proof)
        return vk_fail(VIP_REJECT,
                       "VipConnectAccept: the server's VI has a secret, and the client's has none: reject the request");
    if (vi->proof && !conn_proof_request_right(&vi->proof->secret, &client, names_of_client(conn), &conn->remote_proof))
        return vk_fail(VIP_REJECT,
                       "VipConnectAccept: the client does not have the secret of our VI: reject the request");
    return VIP_SUCCESS;
}

VIP_RETURN conn_proof_of_acceptance(struct via_conn *conn, const struct via_vi *vi)
{
    const struct via_nic *nic = conn->nic;
    if (vk_random_bytes(conn->accept_proof.nonce, sizeof conn->accept_proof.nonce) != 0)
        return vk_fail(VIP_ERROR_RESOURCE,
                       "VipConnectAccept: the kernel has no random bytes, which a VI with a secret needs");
    conn->accept_body.proof = WIRE_PROOF;
    struct conn_side client = side_of_client(conn);
    struct conn_side server = {nic->limits.address, nic->limits.port, vi->number, &conn->accept_body,
                               conn->accept_proof.nonce};
    conn_proof_transcript(&vi->proof->secret, &client, names_of_client(conn), &server, conn->transcript);
    conn_proof_accept(&vi->proof->secret, conn->transcript, conn->accept_proof.mac);
    return VIP_SUCCESS;
}
