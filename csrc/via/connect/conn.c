/*
 * Connections: the parts that all ways of connecting share, and the end of a connection.
 *
 *      client                                   server
 *   ConnectRequest --- REQUEST(discriminator) -->  does a ConnectWait match?
 *        |        <-------- PENDING -------------  yes: it returns with a connection handle
 *        |        <-------- NOMATCH -------------  no
 *        |        <-------- ACCEPT --------------  VipConnectAccept: server VI CONNECTED
 *    CONNECTED    --------- CONFIRM ------------>
 *        |        <-------- REJECT --------------  VipConnectReject
 *    timed out    --------- CANCEL ------------->  the handle becomes invalid
 *
 * Every frame may be lost or duplicated:
 *
 * - The client retransmits REQUEST until it receives a reply (conn_client.c).
 * - The server keeps each request for a while after its reply, and repeats the reply if the request is repeated.
 * - The server retransmits ACCEPT until a frame of the client arrives (conn_server.c).
 *
 * A request goes to every NIC of the station (port 0). Each NIC replies for itself, and NOMATCH is final when all have
 * sent it. On Ethernet the number of NICs that receive a request is not known, so NOMATCH carries the number of
 * neighbours.
 *
 * VIs with a secret prove it to each other in REQUEST, ACCEPT and CONFIRM (proof.h). The server's VI is then CONNECTED
 * only when CONFIRM has arrived.
 *
 * A handshake also negotiates:
 *
 * - for each direction a key, drawn by the receiver, which checks it, and a first sequence number, drawn by the sender;
 * - the largest payload of a frame;
 * - whether the link may be relied upon (`lossless`: only if both sides set it);
 * - the VI's attributes, of which VIPL requires reliability level, transfer size and quality of service to be equal.
 */
#include "via/connect/conn.h"
#include "base/explain.h"
#include "via/connect/proof.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "base/blake2s.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/plural.h"
#include "base/thread.h"
#include "link/fault/fault.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/link_services.h"
#include "via/nic.h"
#include "via/pending.h"
#include "via/vi.h"

/* Drawn 64 at a time, because each draw is a system call. */
static __thread uint32_t drawn[64], n_drawn;

/* After a fork, parent and children would have the same numbers, and a server would confuse their requests. So a child
 * discards them. */
static void child_of_fork(void)
{
    n_drawn = 0;
}

VK_AT_FORK(child_of_fork)

/* If the kernel has no random bytes (getrandom fails), numbers are derived from the clock: guessable, but different
 * each time. 0 becomes 1, because a key of 0 means "no connection". */
uint32_t conn_random(void)
{
    VK_HOLD_CANCEL;
    if (n_drawn == 0) {
        if (getrandom(drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
            for (size_t i = 0; i < 64; i++)
                drawn[i] = (uint32_t)(vk_now() * 2654435761u >> i % 8);
        n_drawn = 64;
    }
    uint32_t key = drawn[--n_drawn];
    return key ? key : 1;
}

/* ---------------------------------------------------------------- exchange of descriptions */

/* Reset the VI for a new connection and fill in its description for the peer. Called once per request or acceptance: a
 * retransmitted frame repeats the numbers drawn here. */
void conn_describe(struct via_vi *vi, uint32_t request, struct wire_connect *c)
{
    struct via_nic *nic = vi->nic;
    memset(c, 0, sizeof *c);
    via_vi_reset(vi);
    vi->key = conn_random();
    /* Frames of an earlier connection between the same two VIs must not match this one. The key distinguishes them, and
     * so does the first number. */
    if (nic->options.first_psn == 0) {
        uint32_t first = conn_random();
        vi->una_psn = vi->next_psn = vi->tx_psn = vi->high_psn = vi->write_psn = first;
    }
    c->request = request;
    c->key = vi->key;
    c->first_psn = vi->next_psn;
    c->max_transfer = (uint32_t)vi->attributes.MaxTransferSize;
    c->qos = (uint64_t)(uintptr_t)vi->attributes.QoS;
    c->ptag = vi->ptag;
    c->reliability = vi->attributes.ReliabilityLevel;
    c->max_payload = (uint16_t)nic->limits.max_payload;
    c->rdma_write = vi->attributes.EnableRdmaWrite != 0;
    c->rdma_read = vi->attributes.EnableRdmaRead != 0;
    vi->lossless = c->lossless = nic->ops->about.lossless && !nic->lossy; /* both sides must set it */
}

/* Return the largest payload of a frame to that peer. The other direction may carry less, or more. Each side determines
 * its own, and reports it once the peer is known (ACCEPT, CONFIRM). */
uint16_t conn_carried(const struct via_nic *nic, struct link_peer *peer)
{
    return (uint16_t)(nic->ops->payload_to ? nic->ops->payload_to(nic->link, peer) : nic->limits.max_payload);
}

/* The peer has reported the largest payload of its frames to this side. Frames in flight are not affected; later reads
 * request pieces that fit. */
void conn_set_carried(struct via_vi *vi, const struct wire_connect *c)
{
    if (c->max_payload >= WIRE_LEAST_PAYLOAD && c->max_payload < vi->read_chunk)
        vi->read_chunk = c->max_payload;
}

/* Connect the VI, on each side once the other's description is known. All fields that frames use are set here. Setting
 * state and rx_source opens the connection for frames. */
void conn_join(struct via_vi *vi, const uint8_t address[6], struct link_peer *peer, uint16_t port, uint16_t number,
               const struct wire_connect *c)
{
    struct via_nic *nic = vi->nic;
    memcpy(vi->peer_address, address, 6);
    vi->peer = peer;
    vi->peer_port = port;
    vi->peer_vi = number;
    vi->peer_key = c->key;
    vi->peer_ptag = c->ptag;
    vi->peer_rdma_write = c->rdma_write;
    vi->peer_rdma_read = c->rdma_read;
    vi->expected_psn = vi->acked_psn = c->first_psn;
    /* The smaller of the peer NIC's limit and the largest frame on the path to it. */
    uint32_t carried = conn_carried(nic, peer);
    vi->chunk = vi->read_chunk = c->max_payload < carried ? c->max_payload : carried;
    /* This side's value was set in conn_describe(). */
    vi->lossless &= c->lossless;
    vi->tx_header = (struct wire_header){.version_kind = wire_version_kind(WIRE_SEND),
                                         .dst_port = port,
                                         .dst_vi = number,
                                         .src_port = nic->limits.port,
                                         .src_vi = vi->number,
                                         .key = c->key};
    /* The same header as two words, for the short path in tx.c, and the word that identifies the peer's frames, for the
     * short path in rx.c. */
    vi->tx_words[0] =
        wire_word_destination(vi->tx_header.version_kind, WIRE_FLAG_FIRST | WIRE_FLAG_LAST, 0, port, number);
    vi->tx_words[1] = wire_word_source(nic->limits.port, vi->number, c->key);
    vi->rx_source = wire_word_source(port, number, vi->key);
    /* Derived once, so that the frame path reads one field instead of two or three. */
    vi->owes_acks = vi->reliable && !vi->lossless;
    vi->keeps_out_of_order = vi->owes_acks && nic->options.retransmission == VIAKIT_SELECTIVE;
    vi->recover_psn = vi->una_psn;
    vi->state = VIP_STATE_CONNECTED;
    vi->received_at = nic->now = vk_now();
    if (!vi->lossless)
        via_timer(nic, nic->now + (uint64_t)nic->options.keepalive_ms * VK_MS);
}

/* Return the attributes of the peer's VI as VIPL defines them. The tag is left out: it has no meaning outside its NIC.
 */
void conn_attributes(const struct wire_connect *c, VIP_VI_ATTRIBUTES *a)
{
    if (a == NULL)
        return;
    memset(a, 0, sizeof *a);
    a->ReliabilityLevel = c->reliability;
    a->MaxTransferSize = c->max_transfer;
    a->QoS = (VIP_QOS)(uintptr_t)c->qos;
    a->EnableRdmaWrite = c->rdma_write;
    a->EnableRdmaRead = c->rdma_read;
}

/* Compare the three attributes that VIPL requires to be equal; each has its own code. The others (RDMA, tags) are
 * checked on use. */
VIP_RETURN conn_check_fit(const char *function, const struct via_vi *vi, const struct wire_connect *remote)
{
    if (vi->attributes.ReliabilityLevel != remote->reliability)
        return vk_fail(VIP_INVALID_RELIABILITY_LEVEL, "%s: our VI has reliability level %u, the other %u", function,
                       vi->attributes.ReliabilityLevel, remote->reliability);
    if (vi->attributes.MaxTransferSize != remote->max_transfer)
        return vk_fail(VIP_INVALID_MTU, "%s: our VI has MaxTransferSize %lu, the other %u", function,
                       vi->attributes.MaxTransferSize, remote->max_transfer);
    if ((uint64_t)(uintptr_t)vi->attributes.QoS != remote->qos)
        return vk_fail(VIP_INVALID_QOS, "%s: the two VIs differ in quality of service", function);
    return VIP_SUCCESS;
}

/* A VIP_NET_ADDRESS is lengths, host address and discriminator without padding; the discriminator may lie at any
 * offset. */
void conn_discriminator(const VIP_NET_ADDRESS *a, const uint8_t **discriminator, size_t *len)
{
    *discriminator = (const uint8_t *)a->HostAddress + a->HostAddressLen;
    *len = a->DiscriminatorLen;
}

VIP_RETURN conn_check_addresses(const char *function, const VIP_NET_ADDRESS *local, const VIP_NET_ADDRESS *remote,
                                VIP_ULONG timeout)
{
    if (remote == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "%s: no remote address (NULL)", function);
    /* VIPL: a time-out of 0 is an error, not a poll. */
    if (timeout == 0)
        return vk_fail(VIP_INVALID_PARAMETER, "%s: timeout 0 ms: give at least 1, or VIP_INFINITE", function);
    if (remote->HostAddressLen != 6 && remote->HostAddressLen != VIAKIT_NIC_ADDRESS_LEN)
        return vk_fail(VIP_INVALID_PARAMETER,
                       "%s: host address of %u byte%s: addresses here have 6, or 8 with the port of one NIC", function,
                       remote->HostAddressLen, vk_s(remote->HostAddressLen));
    if (local && local->HostAddressLen != 6 && local->HostAddressLen != 0)
        return vk_fail(VIP_INVALID_PARAMETER, "%s: local host address of %u byte%s: addresses here have 6", function,
                       local->HostAddressLen, vk_s(local->HostAddressLen));
    if (remote->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR ||
        (local && local->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR))
        return vk_fail(VIP_INVALID_PARAMETER, "%s: discriminators have at most %d bytes", function,
                       WIRE_MAX_DISCRIMINATOR);
    return VIP_SUCCESS;
}

VIP_RETURN conn_check_local(const char *function, const struct via_nic *nic, const VIP_NET_ADDRESS *local)
{
    if (local->HostAddressLen == 6 && memcmp(local->HostAddress, nic->limits.address, 6) != 0)
        return vk_fail(VIP_INVALID_PARAMETER, "%s: the local address is not this NIC's: use its LocalNicAddress",
                       function);
    return VIP_SUCCESS;
}

/* Build the whole REQUEST: header | connection block | wanted discriminator | own discriminator | proof, if the VI has
 * a secret. It is built once and retransmitted unchanged. */
VIP_RETURN conn_prepare_request(int mode, struct via_vi *vi, uint32_t number, const VIP_NET_ADDRESS *local,
                                const VIP_NET_ADDRESS *remote, struct link_frame *f)
{
    const uint8_t *wanted, *own = NULL;
    size_t wanted_len, own_len = 0;
    conn_discriminator(remote, &wanted, &wanted_len);
    if (local)
        conn_discriminator(local, &own, &own_len);
    via_frame_init(vi->nic, f, WIRE_REQUEST);
    f->header.src_vi = vi->number;
    conn_describe(vi, number, &f->block.connect);
    f->block.connect.mode = (uint8_t)mode;
    f->block.connect.wanted_len = (uint8_t)wanted_len;
    f->block.connect.own_len = (uint8_t)own_len;
    memcpy(f->block.bytes + sizeof f->block.connect, wanted, wanted_len);
    if (own_len)
        memcpy(f->block.bytes + sizeof f->block.connect + wanted_len, own, own_len);
    f->header.len = (uint16_t)(sizeof f->block.connect + wanted_len + own_len);
    VIP_RETURN code = vi->proof ? conn_proof_add_to_request(vi, f) : VIP_SUCCESS;
    f->header_len = (uint32_t)sizeof f->header + f->header.len;
    return code;
}

/* ---------------------------------------------------------------- frames out */

/* Write the times of a handshake's frame: now, and the time of the frame to which it replies at once. A frame that is
 * sent again has the time of its last copy, so the reply shows which copy arrived. */
void conn_stamp(struct link_frame *f, uint16_t echo)
{
    uint16_t now = (uint16_t)(vk_now() >> WIRE_TIME_SHIFT);
    f->header.immediate = (now ? now : 1u) | (uint32_t)echo << 16;
    f->header.flags &= (uint8_t)~WIRE_FLAG_CRC; /* a checksum from the last time */
}

/* Return the round trip that a reply shows, rounded up to a unit of the times, ns; 0 if it shows none. The program of
 * the peer is not part of it: only replies that its NIC sends at once carry an echo. */
uint64_t conn_round_trip(const struct conn_frame *f)
{
    uint16_t echo = WIRE_ECHO(f->h->immediate), now = (uint16_t)(vk_now() >> WIRE_TIME_SHIFT);
    return echo ? (uint64_t)((uint16_t)(now - echo) + 1u) << WIRE_TIME_SHIFT : 0;
}

/* Frames of a handshake are retransmitted by their own timers, not by the reliable protocol. If the link has no room,
 * the frame is deferred. On a lossless link, where some timers do not run, it would otherwise be lost for good. */
void conn_send(struct via_nic *nic, const struct conn_to *to, int kind, uint16_t src_vi, uint32_t immediate,
               const struct wire_connect *body, const struct wire_proof *proof)
{
    struct link_frame f;
    via_frame_init(nic, &f, kind);
    f.header.dst_port = to->port;
    f.header.dst_vi = to->vi;
    f.header.key = to->key;
    f.header.src_vi = src_vi;
    f.header.immediate = immediate;
    if (kind == WIRE_PENDING || kind == WIRE_ACCEPT || kind == WIRE_CONFIRM)
        conn_stamp(&f, nic->echo);
    f.block.connect = *body;
    f.header.len = (uint16_t)sizeof f.block.connect;
    if (body->proof && proof) {
        memcpy(f.block.bytes + sizeof f.block.connect, proof, sizeof *proof);
        f.header.len = (uint16_t)(f.header.len + sizeof *proof);
    }
    f.header_len += f.header.len;
    if (via_link_send(nic, to->peer, &f, 1) == -EAGAIN && !to->passing)
        via_defer(nic, to->peer, &f);
}

uint16_t conn_port_of(const VIP_NET_ADDRESS *remote)
{
    uint16_t port = 0;
    if (remote->HostAddressLen == VIAKIT_NIC_ADDRESS_LEN)
        memcpy(&port, remote->HostAddress + 6, sizeof port);
    return port;
}

/* -EAGAIN of route(): the NIC exists but is not reachable at this moment (shm), so the request is retried. */
int conn_send_request(struct via_nic *nic, const uint8_t address[6], uint16_t port, struct link_frame *f,
                      struct link_peer **addressed)
{
    struct link_peer *peer;
    conn_stamp(f, 0);
    /* Port 0: every NIC of the station. The link knows them, or broadcasts. */
    if (port == 0)
        return nic->ops->request_all(nic->link, address, f);
    if (link_lacks_address_space(&nic->link_client, port))
        return 0;
    int error = nic->ops->route(nic->link, address, port, &peer);
    if (error)
        return error == -EAGAIN ? LINK_UNKNOWN : 0;
    f->header.dst_port = port;
    if (addressed)
        *addressed = peer;
    return via_link_send(nic, peer, f, 1) == 1 ? 1 : LINK_UNKNOWN;
}

void conn_send_to_server(struct via_nic *nic, const struct conn_to *server, uint16_t src_vi, uint32_t request,
                         uint32_t key, int kind)
{
    conn_send(nic, server, kind, src_vi, 0,
              &(struct wire_connect){.request = request, .key = key, .max_payload = conn_carried(nic, server->peer)},
              NULL);
}

/* ---------------------------------------------------------------- frames in, time */

/* route() may store state for the peer, so it serves only peers with which a connection will be made. Other senders
 * receive replies over a temporary route. */
int conn_route(struct via_nic *nic, struct conn_frame *f)
{
    return f->peer != NULL || nic->ops->route(nic->link, f->from, f->h->src_port, &f->peer) == 0;
}

void conn_reply_in_passing(struct via_nic *nic, const struct conn_frame *f, int kind, uint32_t immediate,
                           const struct wire_connect *body, const struct wire_proof *proof)
{
    struct conn_to to = {f->peer, f->h->src_port, f->h->src_vi, f->c.key, f->peer == NULL};
    if (to.peer || via_route_in_passing(nic, f->from, f->h->src_port, &to.peer) == 0)
        conn_send(nic, &to, kind, f->h->dst_vi, immediate, body, proof);
}

/* Extract the proof from a frame whose c and names are set. In frames of kinds without a proof, clear c.proof. Return 0
 * if the frame is shorter than announced. */
static int take_proof(struct conn_frame *f, int kind)
{
    size_t before = kind == WIRE_REQUEST ? (size_t)f->c.wanted_len + f->c.own_len : 0;
    size_t len = kind == WIRE_REQUEST ? WIRE_REQUEST_PROOF : sizeof f->proof;
    int may_have = (kind == WIRE_REQUEST && f->c.mode != WIRE_MODE_DISCOVER) || kind == WIRE_ACCEPT ||
                   kind == WIRE_CONFIRM || kind == WIRE_REJECT;
    if (f->c.proof != WIRE_PROOF || !may_have) {
        f->c.proof = 0;
        return 1;
    }
    if (before + len > f->names_len)
        return 0;
    /* A copy, as of all memory that the sender may share. */
    memcpy(&f->proof, f->names + before, len);
    return 1;
}

/* Pass a frame to the part to which its kind belongs. */
static void dispatch(struct via_nic *nic, struct conn_frame *f, int kind)
{
    switch (kind) {
    case WIRE_REQUEST:
        if ((size_t)f->c.wanted_len + f->c.own_len > f->names_len || f->c.wanted_len > WIRE_MAX_DISCRIMINATOR ||
            f->c.own_len > WIRE_MAX_DISCRIMINATOR || f->c.max_payload < WIRE_LEAST_PAYLOAD)
            NIC_COUNT(nic, dropped_malformed, 1);
        else if (f->c.mode == WIRE_MODE_PEER)
            conn_peer_request_arrived(nic, f);
        else if (f->c.mode == WIRE_MODE_CLIENT)
            conn_request_arrived(nic, f);
        else if (f->c.mode == WIRE_MODE_DISCOVER)
            conn_discovery_arrived(nic, f);
        else
            NIC_COUNT(nic, dropped_malformed, 1);
        break;
    /* The number of a request identifies its kind; a NIC may have both kinds open. */
    case WIRE_CONFIRM:
    case WIRE_CANCEL:
        if (!conn_server_receive(nic, f, kind) && !conn_peer_receive(nic, f, kind))
            NIC_COUNT(nic, dropped_unknown_peer, 1);
        break;
    case WIRE_ACCEPT:
        if (f->c.max_payload < WIRE_LEAST_PAYLOAD)
            NIC_COUNT(nic, dropped_malformed, 1);
        else if (!conn_peer_accepted(nic, f))
            conn_accepted(nic, f);
        break;
    default: /* PENDING, REJECT, NOMATCH */
        if (!conn_peer_answered(nic, f, kind) && !conn_discovery_answered(nic, f))
            conn_answered(nic, f, kind);
    }
}

/* rx.c passes every frame of a handshake here, its checksum verified. Each may come from an unknown peer, so lengths
 * are checked first. A frame that matches no request is dropped and counted, or answered once without storing any
 * state. */
void via_conn_deliver(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const struct wire_header *h,
                      const uint8_t *payload, size_t len)
{
    struct conn_frame f = {.from = from, .peer = peer, .h = h};
    int kind = h->version_kind & 15;
    if (len < sizeof f.c) {
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    /* A copy: the sender may share the frame's memory, and change it between a check and a use. */
    memcpy(&f.c, payload, sizeof f.c);
    f.names = payload + sizeof f.c;
    f.names_len = len - sizeof f.c;
    nic->now = vk_now();
    if (!take_proof(&f, kind)) {
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    /* Only while the frame is handled: a reply that is sent later must not show a round trip. */
    nic->echo = kind <= WIRE_CONFIRM ? WIRE_SENT(h->immediate) : 0;
    dispatch(nic, &f, kind);
    nic->echo = 0;
}

/* Retransmit unanswered requests and drop old replies. Called when something is due (engine.c); each part sets
 * via_timer() for its own next time. */
void via_conn_timers(struct via_nic *nic)
{
    conn_client_timers(nic);
    conn_peer_timers(nic);
    conn_discovery_timers(nic);
    conn_server_timers(nic);
}

/* ---------------------------------------------------------------- the end of a connection */

/* Set the VI to IDLE from any state: flush everything outstanding, notify the peer. VIPL allows the call in any state,
 * even twice. The peer's fields and the key are invalid from here on: later frames match no connection and are answered
 * with RESET. */
void via_disconnect(struct via_vi *vi)
{
    if (vi->state == VIP_STATE_CONNECTED) {
        via_send_control(vi, WIRE_DISCONNECT, 0, 0);
    }
    vi->rto_deadline = VK_NEVER;
    vi->rx_active = 0;
    /* Frames of the connection take the long path from now on, which finds no VI for their key. */
    vi->rx_source = VIA_NO_SOURCE;
    vi->key = 0;
    vi->state = VIP_STATE_IDLE;
    vi->ack_owed = 0;
    via_forget_frames(vi);
    via_conn_forget_vi(vi);
    via_flush(vi);
    via_wake_waiters(vi->nic);
}

/* Return at once. The peer is notified by DISCONNECT or, if that is lost, by the RESET that answers its next frame. */
VIP_RETURN VipDisconnect(VIP_VI_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIA_ENTER_VI(vi, handle);
    struct via_nic *nic = vi->nic;
    if (conn_client_withdraw(vi)) /* another thread is connecting it: that call ends with a time-out */
        via_flush(vi);
    else
        via_disconnect(vi);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* The link has detected the loss (a process died, a control socket hung up), so no time-out is needed. The peer's
 * struct stays valid until the link closes, so late replies to it do no harm. */
void via_link_peer_lost(struct link_client *client, struct link_peer *peer)
{
    struct via_nic *nic = via_nic_of(client);
    via_drop_deferred(nic, peer);
    if (nic->link_client.fault)
        fault_forget_peer(nic->link_client.fault, peer);
    for (struct via_vi *vi = nic->vis; vi; vi = vi->next)
        if (vi->state == VIP_STATE_CONNECTED && vi->peer == peer)
            via_break(vi, 1);
    conn_server_lost(nic, peer);
    conn_peer_lost(nic, peer);
    conn_client_lost(nic, peer);
}

VIP_RETURN conn_explain_no_room(const char *function)
{
    return vk_fail(VIP_NOT_REACHABLE,
                   "%s: address space is missing, here or in the other process, for the memory that NICs on shm must "
                   "map of each other; raise or lift the limit (ulimit -v)",
                   function);
}

#define NO_ROOM_LASTS (500 * VK_MS) /* longer than the retransmission interval of requests */

/* The link could not map memory that is needed for the NIC of that port. The latest few are remembered, so that a
 * request to them can be explained. */
void via_link_no_address_space(struct link_client *client, uint16_t port)
{
    struct via_nic *nic = via_nic_of(client);
    uint32_t n = sizeof nic->no_room / sizeof *nic->no_room, i = nic->n_no_room++ % n;
    nic->no_room[i].until = vk_now() + NO_ROOM_LASTS;
    nic->no_room[i].port = port;
    for (struct via_request *r = nic->requests; r; r = r->next)
        r->lacked |= r->port == 0 || r->port == port;
}

int via_link_lacks_address_space(struct link_client *client, uint16_t port)
{
    const struct via_nic *nic = via_nic_of(client);
    uint64_t now = nic->n_no_room ? vk_now() : 0;
    for (uint32_t i = 0; nic->n_no_room && i < sizeof nic->no_room / sizeof *nic->no_room; i++)
        if (nic->no_room[i].until > now && (port == 0 || nic->no_room[i].port == port))
            return 1;
    return 0;
}

int via_link_request_is_open(struct link_client *client, uint32_t request)
{
    const struct via_nic *nic = via_nic_of(client);
    return conn_client_is_open(nic, request) || conn_peer_is_open(nic, request);
}

/* Return whether the NIC's own frame matches one of its peer requests, as if the frame had arrived here. */
int via_link_matches_own_request(struct link_client *client, const struct link_frame *frame)
{
    struct via_nic *nic = via_nic_of(client);
    const struct wire_connect *c = &frame->block.connect;
    struct conn_frame f = {.from = nic->limits.address, .h = &frame->header, .c = *c};
    f.names = frame->block.bytes + sizeof *c;
    f.names_len = frame->header.len - sizeof *c;
    if (!take_proof(&f, WIRE_REQUEST))
        return 0;
    return c->mode == WIRE_MODE_PEER && conn_peer_wanted(nic, &f);
}

VIP_RETURN viakit_on_peer_request(VIP_NIC_HANDLE handle, void *context, viakit_peer_request_handler handler)
{
    VK_HOLD_CANCEL;
    VIA_ENTER_NIC(nic, handle);
    nic->request_handler = handler;
    nic->request_context = context;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* The NIC closes: requests that still wait for a reply are rejected. */
void via_conn_fini(struct via_nic *nic)
{
    conn_server_fini(nic);
    vk_wipe(nic->peer_refusals, sizeof nic->peer_refusals);
}
