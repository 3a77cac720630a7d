/*
 * Connections: what all ways of making them have in common, and how they end.
 *
 *      client                                   server
 *   ConnectRequest --- REQUEST(discriminator) -->  a ConnectWait takes it?
 *        |        <-------- PENDING -------------  yes: it returns with a connection handle
 *        |        <-------- NOMATCH -------------  no
 *        |        <-------- ACCEPT --------------  VipConnectAccept: server VI CONNECTED
 *    CONNECTED    --------- CONFIRM ------------>
 *        |        <-------- REJECT --------------  VipConnectReject
 *    gave up      --------- CANCEL ------------->  the handle is worth nothing any more
 *
 * Every frame may be lost or come twice. The client repeats REQUEST until there is an answer (conn_client.c); the
 * server remembers each request for a while after its answer and repeats the answer when the request is repeated;
 * ACCEPT is repeated until the client is heard (conn_server.c). A request goes to every NIC of the station (port 0):
 * each answers for itself, and NOMATCH is believed when all have said so. On Ethernet nobody knows how many hear a
 * request, so NOMATCH tells how many neighbours there are.
 *
 * What a handshake agrees on, besides that there is a connection: for each direction a key (drawn by the side that will
 * check it) and a first sequence number (drawn by the side that will send), the largest payload of a frame, whether the
 * link may be relied upon (`lossless`: only if both say so), and the VI's attributes, of which VIPL wants reliability
 * level, transfer size and quality of service to be equal.
 */
#include "conn.h"

#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "../base/plural.h"
#include "../link/fault.h"

/* Drawn 64 at a time: each drawing is a system call. */
static __thread uint32_t drawn[64], n_drawn;

/* The child of a fork has its parent's numbers, and so has its sibling: what one of them asked by, a server would take
 * for the other's. */
static void child_of_fork(void)
{
    n_drawn = 0;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, child_of_fork);
}

/* Where the kernel has no random bytes (getrandom fails) the clock, spread out, has to do: guessable, but different
 * each time. 0 becomes 1: a key of 0 means "no connection". */
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

/* ---------------------------------------------------------------- what the two sides tell each other */

/* Resets the VI for a new connection and fills in what the other side has to know. Called once per request or
 * acceptance: a frame that is sent again repeats what was drawn here. */
void conn_describe(struct via_vi *vi, uint32_t request, struct wire_connect *c)
{
    struct via_nic *nic = vi->nic;
    memset(c, 0, sizeof *c);
    via_vi_reset(vi);
    vi->key = conn_random();
    /* Frames of an earlier connection between the same two VIs must not fit into this one: the key tells them apart,
     * and so does this. */
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
    vi->lossless = c->lossless = nic->limits.lossless && !nic->lossy; /* both must say so */
}

/* The largest payload of a frame from here to that peer. The way back may carry less, or more: each side finds out its
 * own, and says so when it knows whom it talks to (ACCEPT, CONFIRM). */
uint16_t conn_carried(const struct via_nic *nic, struct link_peer *peer)
{
    return (uint16_t)(nic->ops->payload_to ? nic->ops->payload_to(nic->link, peer) : nic->limits.max_payload);
}

/* The peer has said what the way from it to us carries. Frames of ours that are under way stay as they are; what we
 * read from now on comes in pieces that fit. */
void conn_told_carried(struct via_vi *vi, const struct wire_connect *c)
{
    if (c->max_payload >= WIRE_LEAST_PAYLOAD && c->max_payload < vi->read_chunk)
        vi->read_chunk = c->max_payload;
}

/* Each side calls this when it has the other's description. Everything that frames look at is made here, and with state
 * and rx_source the connection is open for them. */
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
    /* The smaller of what the peer's NIC can take and what the path to it carries in one piece. */
    uint32_t carried = conn_carried(nic, peer);
    vi->chunk = vi->read_chunk = c->max_payload < carried ? c->max_payload : carried;
    /* Ours was said in conn_describe(). */
    vi->lossless &= c->lossless;
    vi->tx_header = (struct wire_header){.version_kind = wire_version_kind(WIRE_SEND),
                                         .dst_port = port,
                                         .dst_vi = number,
                                         .src_port = nic->limits.port,
                                         .src_vi = vi->number,
                                         .key = c->key};
    /* The same header as two words, for the short way (tx.c); and the word by which the peer's frames are known, for
     * the short way in (rx.c). */
    vi->tx_words[0] =
        wire_word_destination(vi->tx_header.version_kind, WIRE_FLAG_FIRST | WIRE_FLAG_LAST, 0, port, number);
    vi->tx_words[1] = wire_word_source(nic->limits.port, vi->number, c->key);
    vi->rx_source = wire_word_source(port, number, vi->key);
    /* Derived once, so that frames need not look at two or three fields each. */
    vi->owes_acks = vi->reliable && !vi->lossless;
    vi->keeps_early = vi->owes_acks && nic->options.retransmission == VIAKIT_SELECTIVE;
    vi->recover_psn = vi->una_psn;
    vi->state = VIP_STATE_CONNECTED;
    vi->heard_at = nic->now = vk_now();
    if (!vi->lossless)
        via_timer(nic, nic->now + (uint64_t)nic->options.keepalive_ms * VK_MS);
}

/* What VIPL hands to the program of the other side's VI. The tag is not told: it means nothing outside its NIC. */
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

/* The three that VIPL wants to be equal, each with a code of its own. What the rest may differ in (RDMA, tags) is
 * asked when it is used. */
VIP_RETURN conn_check_fit(const char *function, const struct via_vi *vi, const struct wire_connect *remote)
{
    if (vi->attributes.ReliabilityLevel != remote->reliability)
        return via_fail(VIP_INVALID_RELIABILITY_LEVEL, "%s: our VI has reliability level %u, the other %u", function,
                        vi->attributes.ReliabilityLevel, remote->reliability);
    if (vi->attributes.MaxTransferSize != remote->max_transfer)
        return via_fail(VIP_INVALID_MTU, "%s: our VI has MaxTransferSize %lu, the other %u", function,
                        vi->attributes.MaxTransferSize, remote->max_transfer);
    if ((uint64_t)(uintptr_t)vi->attributes.QoS != remote->qos)
        return via_fail(VIP_INVALID_QOS, "%s: the two VIs differ in quality of service", function);
    return VIP_SUCCESS;
}

/* A VIP_NET_ADDRESS is lengths, host address, discriminator, one behind the other; the discriminator may lie at any
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
        return via_fail(VIP_INVALID_PARAMETER, "%s: no remote address (NULL)", function);
    /* VIPL: a time-out of 0 is an error, not a poll. */
    if (timeout == 0)
        return via_fail(VIP_INVALID_PARAMETER, "%s: timeout 0 ms: give at least 1, or VIP_INFINITE", function);
    if (remote->HostAddressLen != 6 && remote->HostAddressLen != VIAKIT_NIC_ADDRESS_LEN)
        return via_fail(VIP_INVALID_PARAMETER,
                        "%s: host address of %u byte%s: addresses here have 6, or 8 with the port of one NIC", function,
                        remote->HostAddressLen, vk_s(remote->HostAddressLen));
    if (local && local->HostAddressLen != 6 && local->HostAddressLen != 0)
        return via_fail(VIP_INVALID_PARAMETER, "%s: local host address of %u byte%s: addresses here have 6", function,
                        local->HostAddressLen, vk_s(local->HostAddressLen));
    if (remote->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR ||
        (local && local->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR))
        return via_fail(VIP_INVALID_PARAMETER, "%s: discriminators have at most %d bytes", function,
                        WIRE_MAX_DISCRIMINATOR);
    return VIP_SUCCESS;
}

/* The whole REQUEST: header | connection block | discriminator that is looked for | our own. It is built once and
 * sent as often as need be. */
void conn_prepare_request(struct via_vi *vi, uint32_t number, const VIP_NET_ADDRESS *local,
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
    f->block.connect.wanted_len = (uint8_t)wanted_len;
    f->block.connect.own_len = (uint8_t)own_len;
    memcpy(f->block.bytes + sizeof f->block.connect, wanted, wanted_len);
    if (own_len)
        memcpy(f->block.bytes + sizeof f->block.connect + wanted_len, own, own_len);
    f->header.len = (uint16_t)(sizeof f->block.connect + wanted_len + own_len);
    f->header_len = (uint32_t)sizeof f->header + f->header.len;
}

/* ---------------------------------------------------------------- frames out */

/* Handshakes are not repeated by the reliable machinery but by their own timers; a frame that finds the link full is
 * put off, since on a link that loses nothing (where some timers do not run) it would be missed for good. */
void conn_say(struct via_nic *nic, const struct conn_to *to, int kind, uint16_t src_vi, uint32_t immediate,
              const struct wire_connect *body)
{
    struct link_frame f;
    via_frame_init(nic, &f, kind);
    f.header.dst_port = to->port;
    f.header.dst_vi = to->vi;
    f.header.key = to->key;
    f.header.src_vi = src_vi;
    f.header.immediate = immediate;
    f.block.connect = *body;
    f.header_len += (uint32_t)sizeof f.block.connect;
    f.header.len = (uint16_t)sizeof f.block.connect;
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

/* -EAGAIN of route(): the NIC is there and cannot be called just now (shm), so it is asked again. */
int conn_ask(struct via_nic *nic, const uint8_t address[6], uint16_t port, struct link_frame *f,
             struct link_peer **asked)
{
    struct link_peer *peer;
    if (port == 0)
        return nic->ops->ask_all(nic->link, address, f);
    if (link_lacks_room(nic, port))
        return 0;
    int error = nic->ops->route(nic->link, address, port, &peer);
    if (error)
        return error == -EAGAIN ? LINK_UNKNOWN : 0;
    f->header.dst_port = port;
    if (asked)
        *asked = peer;
    return via_link_send(nic, peer, f, 1) == 1 ? 1 : LINK_UNKNOWN;
}

void conn_say_to_server(struct via_nic *nic, const struct conn_to *server, uint16_t src_vi, uint32_t request,
                        uint32_t key, int kind)
{
    conn_say(nic, server, kind, src_vi, 0,
             &(struct wire_connect){.request = request, .key = key, .max_payload = conn_carried(nic, server->peer)});
}

/* ---------------------------------------------------------------- frames in, time */

/* route() may keep something for the peer, so it is for those with whom we are going to connect; the others are
 * answered in passing. */
int conn_route(struct via_nic *nic, struct conn_frame *f)
{
    return f->peer != NULL || nic->ops->route(nic->link, f->from, f->h->src_port, &f->peer) == 0;
}

void conn_say_in_passing(struct via_nic *nic, const struct conn_frame *f, int kind, uint32_t immediate,
                         const struct wire_connect *body)
{
    struct conn_to to = {f->peer, f->h->src_port, f->h->src_vi, f->c.key, f->peer == NULL};
    if (to.peer || via_route_in_passing(nic, f->from, f->h->src_port, &to.peer) == 0)
        conn_say(nic, &to, kind, f->h->dst_vi, immediate, body);
}

/* Every frame of a handshake comes here, from rx.c, its checksum found right. Each may be a stranger's: lengths are
 * checked before anything is believed, and who is not known is dropped and counted, or answered once in a way that
 * keeps no memory. */
void via_conn_deliver(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const struct wire_header *h,
                      const uint8_t *payload, size_t len)
{
    struct conn_frame f = {.from = from, .peer = peer, .h = h};
    int kind = h->version_kind & 15;
    if (len < sizeof f.c) {
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    /* A copy: the sender may share the memory that the frame lies in, and change it between a check and a use. */
    memcpy(&f.c, payload, sizeof f.c);
    f.names = payload + sizeof f.c;
    f.names_len = len - sizeof f.c;
    nic->now = vk_now();
    switch (kind) {
    case WIRE_REQUEST:
        if ((size_t)f.c.wanted_len + f.c.own_len > f.names_len || f.c.wanted_len > WIRE_MAX_DISCRIMINATOR ||
            f.c.own_len > WIRE_MAX_DISCRIMINATOR || f.c.max_payload < WIRE_LEAST_PAYLOAD)
            NIC_COUNT(nic, dropped_malformed, 1);
        else if (f.c.mode == WIRE_MODE_PEER)
            conn_peer_request_arrived(nic, &f);
        else if (f.c.mode == WIRE_MODE_CLIENT)
            conn_request_arrived(nic, &f);
        else if (f.c.mode == WIRE_MODE_DISCOVER)
            conn_discovery_arrived(nic, &f);
        else
            NIC_COUNT(nic, dropped_malformed, 1);
        break;
    /* The number of a request says whose it is; a NIC may have both kinds under way. */
    case WIRE_CONFIRM:
    case WIRE_CANCEL:
        if (!conn_server_says(nic, &f, kind) && !conn_peer_says(nic, &f, kind))
            NIC_COUNT(nic, dropped_stranger, 1);
        break;
    case WIRE_ACCEPT:
        if (f.c.max_payload < WIRE_LEAST_PAYLOAD)
            NIC_COUNT(nic, dropped_malformed, 1);
        else if (!conn_peer_accepted(nic, &f))
            conn_accepted(nic, &f);
        break;
    default: /* PENDING, REJECT, NOMATCH */
        if (!conn_peer_answered(nic, &f, kind) && !conn_discovery_answered(nic, &f))
            conn_answered(nic, &f, kind);
    }
}

/* Repeats what was not answered, forgets what was answered long ago. Called when something is due (engine.c); each part
 * sets via_timer() for its own next time. */
void via_conn_timers(struct via_nic *nic)
{
    conn_client_timers(nic);
    conn_peer_timers(nic);
    conn_discovery_timers(nic);
    conn_server_timers(nic);
}

/* ---------------------------------------------------------------- the end of a connection */

/* To IDLE from wherever, everything outstanding flushed, the peer told. VIPL lets it be called in any state, twice as
 * well. The peer's fields and the key are void from here on: what still arrives is a stranger's, and is answered with
 * RESET. */
void via_disconnect(struct via_vi *vi)
{
    if (vi->state == VIP_STATE_CONNECTED) {
        via_send_control(vi, WIRE_DISCONNECT, 0, 0);
    }
    vi->rto_deadline = VK_NEVER;
    vi->rx_active = 0;
    vi->rx_source = VIA_NO_SOURCE;
    vi->key = 0;
    vi->state = VIP_STATE_IDLE;
    vi->ack_owed = 0;
    via_forget_frames(vi);
    via_conn_forget_vi(vi);
    via_flush(vi);
    via_wake_waiters(vi->nic);
}

/* Returns at once: the peer hears by a DISCONNECT, or, if that is lost, by the RESET that answers its next frame. */
VIP_RETURN VipDisconnect(VIP_VI_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL)
        return code;
    struct via_nic *nic = vi->nic;
    if (conn_client_withdraw(vi)) /* another thread is connecting it: that call ends with a time-out */
        via_flush(vi);
    else
        via_disconnect(vi);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* The link knows it: a process has died, a control socket has hung up. So no time-out has to find it out. The peer's
 * struct stays valid until the link closes, so late answers to it do no harm. */
void link_peer_lost(struct via_nic *nic, struct link_peer *peer)
{
    via_drop_deferred(nic, peer);
    if (nic->fault)
        fault_forget_peer(nic->fault, peer);
    for (struct via_vi *vi = nic->vis; vi; vi = vi->next)
        if (vi->state == VIP_STATE_CONNECTED && vi->peer == peer)
            via_break(vi, 1);
    conn_server_lost(nic, peer);
    conn_peer_lost(nic, peer);
    conn_client_lost(nic, peer);
}

VIP_RETURN conn_explain_no_room(const char *function)
{
    return via_fail(VIP_NOT_REACHABLE,
                    "%s: address space is missing, here or in the other process, for the memory that NICs on shm must "
                    "see of each other; raise or lift the limit (ulimit -v)",
                    function);
}

#define NO_ROOM_LASTS (500 * VK_MS) /* requests are repeated more often */

void link_no_room(struct via_nic *nic, uint16_t port)
{
    uint32_t n = sizeof nic->no_room / sizeof *nic->no_room, i = nic->n_no_room++ % n;
    nic->no_room[i].until = vk_now() + NO_ROOM_LASTS;
    nic->no_room[i].port = port;
}

int link_lacks_room(const struct via_nic *nic, uint16_t port)
{
    uint64_t now = nic->n_no_room ? vk_now() : 0;
    for (uint32_t i = 0; nic->n_no_room && i < sizeof nic->no_room / sizeof *nic->no_room; i++)
        if (nic->no_room[i].until > now && (port == 0 || nic->no_room[i].port == port))
            return 1;
    return 0;
}

int link_still_asking(struct via_nic *nic, uint32_t request)
{
    return conn_client_asking(nic, request) || conn_peer_asking(nic, request);
}

/* The frame as it would arrive here. */
int link_wanted_here(struct via_nic *nic, const struct link_frame *frame)
{
    const struct wire_connect *c = &frame->block.connect;
    struct conn_frame f = {.from = nic->limits.address, .h = &frame->header, .c = *c};
    f.names = frame->block.bytes + sizeof *c;
    f.names_len = frame->header.len - sizeof *c;
    return c->mode == WIRE_MODE_PEER && conn_peer_wanted(nic, &f);
}

/* The NIC closes: whoever still waits for an answer is rejected. */
void via_conn_fini(struct via_nic *nic)
{
    conn_server_fini(nic);
}
