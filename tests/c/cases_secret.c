/*
 * cases_secret.c - VIs with a secret (viakit_set_vi_secret): which connect, and what no forged frame achieves.
 *
 * Each case runs in both models of connecting: client and server, and peers. An attacker is what stands between a NIC
 * and its link (between.h), or a NIC of the same station that has seen all that was sent. After each attack the honest
 * pair connects, which proves that the attack has left nothing behind.
 */
#include <sys/socket.h>

#include "between.h"
#include "conformance.h"
#include <string.h>

#include "link/frame_format.h"
#include "link/link.h"

enum { CLIENT, PEERS, N_MODELS };

static const uint8_t the_secret[VIAKIT_SECRET_MOST] = "thirty-two bytes of test secret";
static const uint8_t other_secret[VIAKIT_SECRET_MOST] = "thirty-two bytes of wrong secret";

/* Long enough for a pair that could connect; a pair that must not connect waits that long. */
#define NOT_LONG_MS 150
#define LONG_MS (1000 * CHECK_WAIT_S)

static void give(endpoint *e, const uint8_t *secret)
{
    CHECK_OK(viakit_set_vi_secret(e->vi, secret, secret ? VIAKIT_SECRET_MOST : 0));
}

/* Addresses by "NAME a" and "NAME b" between peers, by NAME between client and server. */
static void addresses(side *s, int model, const char *name, address *local, address *remote)
{
    char own[32], wanted[32];
    snprintf(own, sizeof(own), "%s %c", name, "ab"[s->role]);
    snprintf(wanted, sizeof(wanted), "%s %c", name, "ba"[s->role]);
    make_address(local, s->attr.LocalNicAddress, model == PEERS ? own : name, strlen(model == PEERS ? own : name));
    make_address(remote, s->peer_host, model == PEERS ? wanted : name, strlen(model == PEERS ? wanted : name));
}

static VIP_RETURN connect_peers(endpoint *e, const char *name, VIP_ULONG timeout_ms)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    addresses(e->s, PEERS, name, &local, &remote);
    CHECK_OK(VipConnectPeerRequest(e->vi, &local.net, &remote.net, timeout_ms));
    return VipConnectPeerWait(e->vi, &attr);
}

/* NO_MATCH is an answer only as long as the server may not have begun to wait. */
static VIP_RETURN connect_client(endpoint *e, const char *name, VIP_ULONG timeout_ms)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN r;
    double end = check_now() + CHECK_WAIT_S;
    addresses(e->s, CLIENT, name, &local, &remote);
    while ((r = VipConnectRequest(e->vi, &local.net, &remote.net, timeout_ms, &attr)) == VIP_NO_MATCH)
        CHECK(check_now() < end);
    return r;
}

/* Waits for one request and accepts it. A request that does not fit is rejected. */
static VIP_RETURN accept_one(endpoint *e, const char *name)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    addresses(e->s, CLIENT, name, &local, &remote);
    CHECK_OK(VipConnectWait(e->s->nic, &local.net, LONG_MS, &remote.net, &attr, &conn));
    VIP_RETURN r = VipConnectAccept(conn, e->vi);
    if (r != VIP_SUCCESS && r != VIP_TIMEOUT)
        CHECK_OK(VipConnectReject(conn));
    return r;
}

static VIP_RETURN try_connect(endpoint *e, int model, const char *name, VIP_ULONG timeout_ms)
{
    if (model == PEERS)
        return connect_peers(e, name, timeout_ms);
    return e->s->role == SIDE_A ? connect_client(e, name, timeout_ms) : accept_one(e, name);
}

/* Connects, exchanges one message each way, and disconnects. */
static void use(endpoint *e, int model, const char *name)
{
    VIP_DESCRIPTOR *sd = descriptor(e, 1), *rd = descriptor(e, 1);
    uint8_t *out = buffer(e, 8), *in = buffer(e, 8);
    post_recv(e, prep_recv(e, rd, in, 8));
    memset(out, 'A' + (int)e->s->role, 8);
    CHECK_OK(try_connect(e, model, name, LONG_MS));
    CHECK_EQ(vi_state(e->vi), VIP_STATE_CONNECTED);
    SIDE_SYNC(e->s, 700);
    post_send(e, prep_send(e, sd, out, 8));
    reap_send(e, sd, VIP_STATUS_OP_SEND);
    reap_recv(e, rd, VIP_STATUS_OP_RECEIVE);
    CHECK_EQ(in[0], 'A' + !e->s->role);
    endpoint_disconnect(e);
}

/* A VI for one attempt. Lone messages of unreliable VIs are lost under faults. */
static void open_with(endpoint *e, side *s, const uint8_t *secret)
{
    endpoint_open(e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    give(e, secret);
}

/* ---- secret_right: every level, both models, one VI again and again; and what the call refuses */

static void secret_right_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++)
        for (int model = 0; model < N_MODELS; model++) {
            endpoint e;
            endpoint_open(&e, s, s->levels[i], 4096);
            CHECK_RET(viakit_set_vi_secret(e.vi, the_secret, VIAKIT_SECRET_LEAST - 1), VIP_INVALID_PARAMETER);
            CHECK_RET(viakit_set_vi_secret(e.vi, the_secret, VIAKIT_SECRET_MOST + 1), VIP_INVALID_PARAMETER);
            CHECK_RET(viakit_set_vi_secret(e.vi, NULL, VIAKIT_SECRET_MOST), VIP_INVALID_PARAMETER);
            give(&e, the_secret);
            use(&e, model, "right");
            use(&e, model, "again");
            CHECK_OK(viakit_set_vi_secret(e.vi, other_secret, VIAKIT_SECRET_LEAST));
            use(&e, model, "short");
            give(&e, NULL);
            use(&e, model, "none");
            endpoint_close(&e);
        }
    /* Not while it is connected. */
    endpoint e;
    open_with(&e, s, the_secret);
    CHECK_OK(try_connect(&e, PEERS, "busy", LONG_MS));
    CHECK_RET(viakit_set_vi_secret(e.vi, other_secret, VIAKIT_SECRET_MOST), VIP_INVALID_STATE);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void secret_right_a(side *s)
{
    secret_right_both(s);
}

void secret_right_b(side *s)
{
    secret_right_both(s);
}

/* ---- secret_wrong: another secret, or none on one side; nothing connects, and the right one does afterwards */

static void secret_wrong_both(side *s)
{
    const struct {
        const uint8_t *a, *b;
    } pairs[] = {{the_secret, other_secret}, {the_secret, NULL}, {NULL, the_secret}};
    for (int model = 0; model < N_MODELS; model++)
        for (size_t i = 0; i < sizeof(pairs) / sizeof(*pairs); i++) {
            endpoint e;
            open_with(&e, s, s->role == SIDE_A ? pairs[i].a : pairs[i].b);
            CHECK_RET(try_connect(&e, model, "wrong", model == PEERS ? NOT_LONG_MS : LONG_MS),
                      model == PEERS ? VIP_TIMEOUT : VIP_REJECT);
            CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
            SIDE_SYNC(s, 10);
            give(&e, the_secret);
            use(&e, model, "then right");
            endpoint_close(&e);
        }
}

void secret_wrong_a(side *s)
{
    secret_wrong_both(s);
}

void secret_wrong_b(side *s)
{
    secret_wrong_both(s);
}

/* ---- secret_mismatch: VIs that do not fit are refused at once, with a proof */

static void secret_mismatch_both(side *s)
{
    endpoint e;
    endpoint_open_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096, s->role == SIDE_A ? 4096 : 8192, NULL, NULL);
    give(&e, the_secret);
    CHECK_RET(try_connect(&e, PEERS, "mismatch", LONG_MS), VIP_INVALID_MTU);
    endpoint_close(&e);
}

void secret_mismatch_a(side *s)
{
    secret_mismatch_both(s);
}

void secret_mismatch_b(side *s)
{
    secret_mismatch_both(s);
}

/* ---- secret_tampered: one bit of each field and of each proof, in the first two frames of a kind */

#define IN_BLOCK(field) offsetof(struct wire_connect, field)
#define IN_PROOF(field) (sizeof(struct wire_connect) + offsetof(struct wire_proof, field))

static void tampered_both(side *s, int kind, unsigned at, int model)
{
    between b;
    endpoint e;
    char name[32];
    snprintf(name, sizeof(name), "bit %d %u", kind, at);
    open_with(&e, s, the_secret);
    between_open(&b, s->nic);
    int refused = model == CLIENT && kind == WIRE_REQUEST;
    between_spoil(&b, kind, at, refused ? ~0u : 2);
    SIDE_SYNC(s, 20);
    /* A server takes a corrupted request for a wrong one, and replies. Any other frame is retransmitted until it
     * arrives intact. */
    if (refused) {
        CHECK_RET(try_connect(&e, model, name, LONG_MS), VIP_REJECT);
        SIDE_SYNC(s, 21);
        between_spoil(&b, -1, 0, 0);
        use(&e, model, name);
    } else {
        use(&e, model, name);
        CHECK(between_spoilt(&b) + side_exchange(s, between_spoilt(&b)) >= 1);
    }
    between_close(&b);
    SIDE_SYNC(s, 22);
    endpoint_close(&e);
}

static void secret_tampered_both(side *s)
{
    static const unsigned in_request[] = {IN_BLOCK(first_psn), IN_BLOCK(max_payload), IN_BLOCK(rdma_write),
                                          IN_BLOCK(lossless)};
    static const unsigned in_answer[] = {IN_BLOCK(first_psn),   IN_BLOCK(max_payload), IN_BLOCK(rdma_write),
                                         IN_BLOCK(reliability), IN_BLOCK(lossless),    IN_BLOCK(proof),
                                         IN_PROOF(nonce),       IN_PROOF(mac),         IN_PROOF(mac) + 31};
    static const unsigned in_confirm[] = {IN_BLOCK(max_payload), IN_BLOCK(lossless), IN_BLOCK(proof), IN_PROOF(mac)};
    for (int model = 0; model < N_MODELS; model++) {
        for (size_t i = 0; i < sizeof(in_request) / sizeof(*in_request); i++)
            tampered_both(s, WIRE_REQUEST, in_request[i], model);
        for (size_t i = 0; i < sizeof(in_answer) / sizeof(*in_answer); i++)
            tampered_both(s, WIRE_ACCEPT, in_answer[i], model);
        for (size_t i = 0; i < sizeof(in_confirm) / sizeof(*in_confirm); i++)
            tampered_both(s, WIRE_CONFIRM, in_confirm[i], model);
    }
}

void secret_tampered_a(side *s)
{
    secret_tampered_both(s);
}

void secret_tampered_b(side *s)
{
    secret_tampered_both(s);
}

/* ---- secret_replayed: all frames of a connection are sent again, to VIs that request or accept anew */

/* Has the other side come to its next sync? */
static int other_side_waits(side *s)
{
    char c;
    return recv(s->ctl, &c, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
}

/* Everything that A had sent, as it was; to a server also under a new number, for one that is known is not taken again.
 * Until B has seen what it waits for. */
static void replay_all(side *s, int model, between *b, uint16_t port)
{
    static const int kinds[] = {WIRE_REQUEST, WIRE_ACCEPT, WIRE_CONFIRM};
    for (uint32_t again = 0; again < 3 || (model == CLIENT && !other_side_waits(s)); again++)
        for (size_t i = 0; i < 3; i++)
            if (between_has(b, kinds[i])) {
                struct link_frame f = between_last(b, kinds[i]);
                send_by_hand(s->nic, s->peer_host, port, &f);
                f.block.connect.request += 1 + again;
                if (kinds[i] == WIRE_REQUEST)
                    send_by_hand(s->nic, s->peer_host, port, &f);
            }
}

static void secret_replayed_both(side *s, int model)
{
    between b;
    endpoint e;
    uint16_t port = (uint16_t)side_exchange(s, port_of(s->nic));
    open_with(&e, s, the_secret);
    between_open(&b, s->nic);
    use(&e, model, "replay");
    SIDE_SYNC(s, 30);
    if (s->role == SIDE_A) {
        SIDE_SYNC(s, 31); /* a peer has requested */
        replay_all(s, model, &b, port);
    } else if (model == PEERS) {
        address local, remote;
        VIP_VI_ATTRIBUTES attr;
        addresses(s, model, "replay", &local, &remote);
        CHECK_OK(VipConnectPeerRequest(e.vi, &local.net, &remote.net, LONG_MS));
        SIDE_SYNC(s, 31);
        SIDE_SYNC(s, 32);
        CHECK_RET(VipConnectPeerDone(e.vi, &attr), VIP_NOT_DONE);
        CHECK_OK(VipDisconnect(e.vi));
    } else {
        SIDE_SYNC(s, 31);
        CHECK_RET(accept_one(&e, "replay"), VIP_REJECT);
        CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
        SIDE_SYNC(s, 32);
    }
    if (s->role == SIDE_A)
        SIDE_SYNC(s, 32);
    between_close(&b);
    SIDE_SYNC(s, 33); /* B has looked at what has become of its request */
    /* By another name: replayed frames may still be under way. */
    use(&e, model, "afterwards");
    endpoint_close(&e);
}

void secret_replayed_a(side *s)
{
    for (int model = 0; model < N_MODELS; model++)
        secret_replayed_both(s, model);
}

void secret_replayed_b(side *s)
{
    for (int model = 0; model < N_MODELS; model++)
        secret_replayed_both(s, model);
}

/* ---- secret_forged: a NIC that has seen a request answers it by hand, without the secret */

static struct link_frame answer_to(const struct link_frame *request, int kind, const struct wire_connect *body)
{
    struct link_frame f;
    memset(&f, 0, sizeof(f));
    f.header.version_kind = wire_version_kind(kind);
    f.header.src_vi = 9;
    f.header.dst_vi = request->header.src_vi;
    f.header.key = request->block.connect.key;
    f.header.len = sizeof(struct wire_connect);
    f.block.connect = *body;
    f.block.connect.request = request->block.connect.request;
    if (body->proof)
        f.header.len = (uint16_t)(f.header.len + sizeof(struct wire_proof));
    f.header_len = (uint32_t)sizeof(f.header) + f.header.len;
    return f;
}

/* Sent from both of A's NICs. B has requested neither, only the station. */
static void send_from_all(side *s, VIP_NIC_HANDLE second, uint16_t port, struct link_frame *f)
{
    f->header.src_port = port_of(s->nic);
    send_by_hand(s->nic, s->peer_host, port, f);
    f->header.src_port = port_of(second);
    send_by_hand(second, s->peer_host, port, f);
}

/* All frames that could end or take B's request, to the requesting VI. */
static void answer_by_hand(side *s, VIP_NIC_HANDLE second, uint16_t port, const struct link_frame *request)
{
    const struct wire_connect *requested = &request->block.connect;
    struct wire_connect body = *requested;
    const uint8_t *proof = request->block.bytes + sizeof(*requested) + requested->wanted_len + requested->own_len;
    struct link_frame f;
    body.key = 4711;
    /* Downgraded: as a VI without a secret accepts. */
    body.proof = 0;
    f = answer_to(request, WIRE_ACCEPT, &body);
    send_from_all(s, second, port, &f);
    /* Too short for the proof that it announces. */
    body.proof = WIRE_PROOF;
    f = answer_to(request, WIRE_ACCEPT, &body);
    f.header.len -= 1;
    f.header_len -= 1;
    send_from_all(s, second, port, &f);
    /* No proof, B's own proof sent back, and a made-up one. */
    for (int how = 0; how < 3; how++) {
        f = answer_to(request, WIRE_ACCEPT, &body);
        if (how == 1)
            memcpy(f.block.bytes + sizeof(body), proof, WIRE_REQUEST_PROOF);
        else if (how == 2)
            memset(f.block.bytes + sizeof(body), 0x5A, sizeof(struct wire_proof));
        send_from_all(s, second, port, &f);
        f = answer_to(request, WIRE_CONFIRM, &body);
        send_from_all(s, second, port, &f);
        f = answer_to(request, WIRE_REJECT, &body);
        f.header.immediate = VIP_INVALID_MTU;
        send_from_all(s, second, port, &f);
    }
    static const int ends[] = {WIRE_REJECT, WIRE_NOMATCH, WIRE_CANCEL, WIRE_PENDING};
    for (size_t i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
        f = answer_to(request, ends[i], &(struct wire_connect){.key = requested->key});
        send_from_all(s, second, port, &f);
    }
}

/* The opposite request, with B's own proof in it; from A's station, with the right discriminators. */
static void reflect_request(side *s, VIP_NIC_HANDLE second, uint16_t port, const struct link_frame *request)
{
    struct link_frame f = *request;
    const struct wire_connect *requested = &request->block.connect;
    uint8_t *names = f.block.bytes + sizeof(*requested);
    const uint8_t *names_sent = request->block.bytes + sizeof(*requested);
    f.block.connect.wanted_len = requested->own_len;
    f.block.connect.own_len = requested->wanted_len;
    memcpy(names, names_sent + requested->wanted_len, requested->own_len);
    memcpy(names + requested->own_len, names_sent, requested->wanted_len);
    send_from_all(s, second, port, &f);
    f.block.connect.request++;
    f.block.connect.proof = 0;
    send_from_all(s, second, port, &f);
}

void secret_forged_a(side *s)
{
    endpoint e;
    VIP_NIC_HANDLE second;
    struct link_frame request;
    uint16_t port = (uint16_t)side_exchange(s, port_of(s->nic));
    CHECK_OK(VipOpenNic(s->device, &second));
    side_recv(s, &request, sizeof(request));
    for (int again = 0; again < 3; again++) {
        answer_by_hand(s, second, port, &request);
        reflect_request(s, second, port, &request);
    }
    /* An attacker's VI that knows all names, but not the secret. */
    open_with(&e, s, other_secret);
    CHECK_RET(try_connect(&e, PEERS, "forged", NOT_LONG_MS), VIP_TIMEOUT);
    give(&e, NULL);
    CHECK_RET(try_connect(&e, PEERS, "forged", NOT_LONG_MS), VIP_TIMEOUT);
    give(&e, the_secret);
    SIDE_SYNC(s, 40);
    SIDE_SYNC(s, 41);
    CHECK_OK(try_connect(&e, PEERS, "forged", LONG_MS));
    endpoint_disconnect(&e);
    endpoint_close(&e);
    CHECK_OK(VipCloseNic(second));
}

/* B's one request outlives all of it, and connects with the honest partner. */
void secret_forged_b(side *s)
{
    between b;
    endpoint e;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    side_exchange(s, port_of(s->nic));
    open_with(&e, s, the_secret);
    between_open(&b, s->nic);
    addresses(s, PEERS, "forged", &local, &remote);
    CHECK_OK(VipConnectPeerRequest(e.vi, &local.net, &remote.net, LONG_MS));
    struct link_frame request = between_last(&b, WIRE_REQUEST);
    side_send(s, &request, sizeof(request));
    SIDE_SYNC(s, 40);
    CHECK_RET(VipConnectPeerDone(e.vi, &attr), VIP_NOT_DONE);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECT_PENDING);
    SIDE_SYNC(s, 41);
    CHECK_OK(VipConnectPeerWait(e.vi, &attr));
    endpoint_disconnect(&e);
    between_close(&b);
    endpoint_close(&e);
}

/* ---- secret_unconfirmed: a server's VI takes no data, and is not connected, before the client has proven itself */

void secret_unconfirmed_a(side *s)
{
    between b;
    endpoint e;
    open_with(&e, s, the_secret);
    between_open(&b, s->nic);
    between_spoil(&b, WIRE_CONFIRM, IN_PROOF(mac), ~0u); /* never a right one */
    CHECK_OK(connect_client(&e, "unconfirmed", LONG_MS));
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    post_send(&e, prep_send(&e, d, buffer(&e, 8), 8));
    SIDE_SYNC(s, 50);
    between_close(&b);
    endpoint_disconnect(&e);
    use(&e, CLIENT, "unconfirmed");
    endpoint_close(&e);
}

void secret_unconfirmed_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *rd;
    open_with(&e, s, the_secret);
    post_recv(&e, prep_recv(&e, rd = descriptor(&e, 1), buffer(&e, 8), 8));
    CHECK_RET(accept_one(&e, "unconfirmed"), VIP_TIMEOUT);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    CHECK_EQ(rd->CS.Status & VIP_STATUS_DONE, 0);
    SIDE_SYNC(s, 50);
    endpoint_disconnect(&e);
    use(&e, CLIENT, "unconfirmed");
    endpoint_close(&e);
}
