/*
 * How two VIs find each other: the client-server model.
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
 * Every frame may be lost or come twice. The client repeats REQUEST until there is an answer; the server remembers each request
 * (struct via_conn) for a while after its answer and repeats the answer when the request is repeated; ACCEPT is repeated until
 * the client is heard. A request goes to every NIC of the station (port 0): each answers for itself, and NOMATCH is
 * believed when all have said so. On Ethernet nobody knows how many hear a request, so NOMATCH tells how many neighbours there are.
 */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "../link/fault.h"
#include "internal.h"

struct vk_pool via_conn_pool = VK_POOL_INIT(struct via_conn, 65536);

#define REPEAT_FIRST (5 * VK_MS)
#define REPEAT_LONGEST (200 * VK_MS)
#define REMEMBER (5 * VK_SECOND) /* an answered request, to repeat the answer */
#define N_REFUSED (sizeof(((struct via_nic *)0)->refused) / sizeof(uint32_t))
#define NO_MATCH_GRACE (100 * VK_MS) /* for the other NICs of the station to answer */

static uint32_t random_key(void)
{
    static __thread uint32_t pool[64], n;
    if (n == 0) {
        if (getrandom(pool, sizeof pool, 0) != (ssize_t)sizeof pool)
            for (size_t i = 0; i < 64; i++)
                pool[i] = (uint32_t)(vk_now() * 2654435761u >> i % 8);
        n = 64;
    }
    uint32_t key = pool[--n];
    return key ? key : 1;
}

/* ---------------------------------------------------------------- what the two sides tell each other */

/* Our side of the connection, for REQUEST and ACCEPT. A new key and first number are drawn. */
static void describe(struct via_vi *vi, uint32_t request, struct wire_connect *c)
{
    struct via_nic *nic = vi->nic;
    memset(c, 0, sizeof *c);
    via_vi_reset(vi);
    vi->key = random_key();
    if (nic->options.first_psn == 0) {
        uint32_t first = random_key();
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
    c->lossless = nic->limits.lossless && !nic->lossy;
}

/* The other side's, once both are known. */
static void join(struct via_vi *vi, const uint8_t address[6], struct link_peer *peer, uint16_t port, uint16_t number,
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
    vi->expected_psn = vi->acked_psn = c->first_psn;
    vi->chunk = c->max_payload < nic->limits.max_payload ? c->max_payload : nic->limits.max_payload;
    vi->lossless = c->lossless && nic->limits.lossless && !nic->lossy;
    vi->tx_header = (struct wire_header){.version_kind = wire_version_kind(WIRE_SEND),
                                         .dst_port = port,
                                         .dst_vi = number,
                                         .src_port = nic->limits.port,
                                         .src_vi = vi->number,
                                         .key = c->key};
    vi->tx_words[0] =
        wire_word_destination(vi->tx_header.version_kind, WIRE_FLAG_FIRST | WIRE_FLAG_LAST, 0, port, number);
    vi->tx_words[1] = wire_word_source(nic->limits.port, vi->number, c->key);
    vi->rx_source = wire_word_source(port, number, vi->key);
    vi->owes_acks = vi->reliable && !vi->lossless;
    vi->state = VIP_STATE_CONNECTED;
    vi->heard_at = nic->now = vk_now();
    if (!vi->lossless)
        via_timer(nic, nic->now + (uint64_t)nic->options.keepalive_ms * VK_MS);
}

static void attributes_of(const struct wire_connect *c, VIP_VI_ATTRIBUTES *a)
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

/* ---------------------------------------------------------------- the server's side */

/* An answer to the requester: kind, and for ACCEPT the accepting VI's description. */
static void answer(struct via_conn *conn, int kind, const struct wire_connect *body)
{
    struct via_nic *nic = conn->nic;
    struct link_frame f;
    via_frame_init(nic, &f, kind);
    f.header.dst_port = conn->port;
    f.header.dst_vi = conn->vi;
    f.header.key = conn->remote.key;
    f.header.src_vi = conn->accepted ? conn->accepted->number : 0;
    f.block.connect = body ? *body : (struct wire_connect){.request = conn->remote.request};
    f.header_len += (uint32_t)sizeof f.block.connect;
    f.header.len = (uint16_t)sizeof f.block.connect;
    if (via_link_send(nic, conn->peer, &f, 1) == -EAGAIN)
        via_defer(nic, conn->peer, &f);
}

static void answer_no_match(struct via_nic *nic, struct link_peer *peer, const struct wire_header *h,
                            const struct wire_connect *c)
{
    struct via_conn once = {.nic = nic, .peer = peer, .port = h->src_port, .vi = h->src_vi, .remote = *c};
    struct link_frame f;
    via_frame_init(nic, &f, WIRE_NOMATCH);
    f.header.dst_port = once.port;
    f.header.dst_vi = once.vi;
    f.header.key = c->key;
    f.header.immediate = (uint32_t)nic->ops->count_neighbours(nic->link);
    f.block.connect = (struct wire_connect){.request = c->request};
    f.header_len += (uint32_t)sizeof f.block.connect;
    f.header.len = (uint16_t)sizeof f.block.connect;
    if (via_link_send(nic, peer, &f, 1) == -EAGAIN)
        via_defer(nic, peer, &f);
}

/* The accepting VI as ACCEPT tells it; the same each time it is repeated. */
static void accept_body(const struct via_conn *conn, struct wire_connect *body)
{
    const struct via_vi *vi = conn->accepted;
    *body = conn->accept_body;
    body->key = vi->key;
}

static struct via_conn *known_request(struct via_nic *nic, const uint8_t from[6], const struct wire_header *h,
                                      uint32_t request)
{
    for (struct via_conn *c = nic->conns; c; c = c->next)
        if (c->remote.request == request && c->port == h->src_port && c->vi == h->src_vi &&
            memcmp(c->address, from, 6) == 0)
            return c;
    return NULL;
}

static void repeat_answer(struct via_conn *conn)
{
    struct wire_connect body;
    switch (conn->state) {
    case VIA_CONN_OFFERED:
        answer(conn, WIRE_PENDING, NULL);
        break;
    case VIA_CONN_ACCEPTED:
        if (conn->accepted) {
            accept_body(conn, &body);
            answer(conn, WIRE_ACCEPT, &body);
        }
        break;
    case VIA_CONN_REJECTED:
        answer(conn, WIRE_REJECT, NULL);
        break;
    case VIA_CONN_CANCELLED:
        break;
    }
}

/* The waiter that has waited longest for this discriminator. */
static struct via_waiter *find_waiter(struct via_nic *nic, const uint8_t *wanted, size_t len)
{
    for (struct via_waiter *w = nic->waiters; w; w = w->next)
        if (w->conn == NULL && w->len == len && memcmp(w->discriminator, wanted, len) == 0)
            return w;
    return NULL;
}

/* The requester may have believed our NOMATCH: a repetition that crossed it, or was late, must hear the same. */
static int was_refused(const struct via_nic *nic, uint32_t request)
{
    for (size_t i = 0; i < N_REFUSED; i++)
        if (nic->refused[i] == request)
            return 1;
    return 0;
}

static void request_arrived(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer,
                            const struct wire_header *h, const struct wire_connect *c, const uint8_t *names,
                            size_t names_len)
{
    if ((size_t)c->wanted_len + c->own_len > names_len || c->wanted_len > WIRE_MAX_DISCRIMINATOR ||
        c->own_len > WIRE_MAX_DISCRIMINATOR || c->max_payload < WIRE_LEAST_PAYLOAD) {
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    struct via_conn *conn = known_request(nic, from, h, c->request);
    if (conn) {
        repeat_answer(conn);
        return;
    }
    if (peer == NULL && nic->ops->route(nic->link, from, h->src_port, &peer) != 0)
        return;
    struct via_waiter *w = was_refused(nic, c->request) ? NULL : find_waiter(nic, names, c->wanted_len);
    conn = w ? vk_pool_get(&via_conn_pool) : NULL;
    if (conn == NULL) {
        if (!was_refused(nic, c->request))
            nic->refused[nic->n_refused++ % N_REFUSED] = c->request;
        answer_no_match(nic, peer, h, c);
        return;
    }
    conn->nic = nic;
    conn->state = VIA_CONN_OFFERED;
    conn->held = 1;
    conn->peer = peer;
    memcpy(conn->address, from, 6);
    conn->port = h->src_port;
    conn->vi = h->src_vi;
    conn->remote = *c;
    memcpy(conn->own_discriminator, names + c->wanted_len, c->own_len);
    conn->forget_at = VK_NEVER;
    conn->next = nic->conns;
    nic->conns = conn;
    nic->n_conns++;
    w->conn = conn;
    answer(conn, WIRE_PENDING, NULL);
    via_wake_waiters(nic);
}

/* CONFIRM and CANCEL from the requester. */
static void requester_says(struct via_nic *nic, const uint8_t from[6], const struct wire_header *h,
                           const struct wire_connect *c, int kind)
{
    struct via_conn *conn = known_request(nic, from, h, c->request);
    if (conn == NULL || conn->remote.key != c->key) {
        NIC_COUNT(nic, dropped_stranger, 1);
        return;
    }
    if (kind == WIRE_CONFIRM) {
        if (conn->accepted)
            conn->accepted->confirmed = 1;
        return;
    }
    if (conn->state == VIA_CONN_ACCEPTED && conn->accepted && conn->accepted->key == conn->accepted_key)
        via_break(conn->accepted, 1); /* it gave up before our answer came */
    conn->state = VIA_CONN_CANCELLED;
    if (!conn->held)
        conn->forget_at = nic->now + REMEMBER;
}

static void parse_host(const VIP_NET_ADDRESS *a, const uint8_t **discriminator, size_t *len)
{
    *discriminator = (const uint8_t *)a->HostAddress + a->HostAddressLen;
    *len = a->DiscriminatorLen;
}

static int waiter_matched(void *argument)
{
    return ((struct via_waiter *)argument)->conn != NULL;
}

static void remove_waiter(struct via_nic *nic, struct via_waiter *w)
{
    for (struct via_waiter **p = &nic->waiters; *p; p = &(*p)->next)
        if (*p == w) {
            *p = w->next;
            return;
        }
}

static void forget(struct via_nic *nic, struct via_conn *conn)
{
    for (struct via_conn **p = &nic->conns; *p; p = &(*p)->next)
        if (*p == conn) {
            *p = conn->next;
            break;
        }
    nic->n_conns--;
    vk_pool_put(&via_conn_pool, conn);
}

static void tell_remote(const struct via_conn *conn, VIP_NET_ADDRESS *out)
{
    if (out == NULL)
        return;
    out->HostAddressLen = 6;
    out->DiscriminatorLen = conn->remote.own_len;
    uint8_t *bytes = out->HostAddress;
    memcpy(bytes, conn->address, 6);
    memcpy(bytes + 6, conn->own_discriminator, conn->remote.own_len);
}

VIP_RETURN VipConnectWait(VIP_NIC_HANDLE handle, VIP_NET_ADDRESS *local, VIP_ULONG timeout, VIP_NET_ADDRESS *remote,
                          VIP_VI_ATTRIBUTES *attributes, VIP_CONN_HANDLE *out)
{
    struct via_nic *nic = via_nic_find(handle);
    if (nic == NULL)
        return via_bad_handle("NIC", handle);
    if (local == NULL || out == NULL)
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipConnectWait: a local address and a place for the handle are needed (NULL)");
    if (local->HostAddressLen != 6 && local->HostAddressLen != 0)
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectWait: host address of %u bytes: addresses here have 6",
                        local->HostAddressLen);
    if (local->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR)
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectWait: discriminator of %u bytes: at most %d",
                        local->DiscriminatorLen, WIRE_MAX_DISCRIMINATOR);
    VIP_RETURN code = via_check_process(nic);
    if (code)
        return code;
    struct via_waiter w = {0}, **end;
    parse_host(local, &w.discriminator, &w.len);
    via_enter(nic);
    if (local->HostAddressLen == 6 && memcmp(local->HostAddress, nic->limits.address, 6) != 0) {
        via_leave(nic);
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipConnectWait: the local address is not this NIC's: use its LocalNicAddress");
    }
    for (end = &nic->waiters; *end; end = &(*end)->next) {}
    *end = &w;
    code = via_wait_owned(nic, timeout, waiter_matched, &w);
    remove_waiter(nic, &w);
    if (code == VIP_SUCCESS) {
        tell_remote(w.conn, remote);
        attributes_of(&w.conn->remote, attributes);
        *out = vk_pool_handle(w.conn);
    } else if (w.conn) {
        answer(w.conn, WIRE_REJECT, NULL); /* it was told PENDING */
        forget(nic, w.conn);
    }
    via_leave(nic);
    return code;
}

static struct via_conn *held_conn(VIP_CONN_HANDLE handle)
{
    struct via_conn *conn = vk_pool_find(&via_conn_pool, handle);
    return conn && conn->held ? conn : NULL;
}

static VIP_RETURN check_acceptable(const struct via_conn *conn, const struct via_vi *vi)
{
    if (vi->state != VIP_STATE_IDLE)
        return via_fail(VIP_INVALID_STATE, "VipConnectAccept: the VI is in %s: give an idle one",
                        viakit_state_name((int)vi->state));
    if (vi->attributes.ReliabilityLevel != conn->remote.reliability)
        return via_fail(VIP_INVALID_RELIABILITY_LEVEL,
                        "VipConnectAccept: our VI has reliability level %u, the other %u",
                        vi->attributes.ReliabilityLevel, conn->remote.reliability);
    if (vi->attributes.MaxTransferSize != conn->remote.max_transfer)
        return via_fail(VIP_INVALID_MTU, "VipConnectAccept: our VI has MaxTransferSize %lu, the other %u",
                        vi->attributes.MaxTransferSize, conn->remote.max_transfer);
    if ((uint64_t)(uintptr_t)vi->attributes.QoS != conn->remote.qos)
        return via_fail(VIP_INVALID_QOS, "VipConnectAccept: the two VIs differ in quality of service");
    return VIP_SUCCESS;
}

VIP_RETURN VipConnectAccept(VIP_CONN_HANDLE handle, VIP_VI_HANDLE vi_handle)
{
    struct via_conn *conn = held_conn(handle);
    struct via_vi *vi = via_vi_find(vi_handle);
    if (conn == NULL)
        return via_bad_handle("connection request", handle);
    if (vi == NULL || vi->nic != conn->nic)
        return via_bad_handle("VI of the connection's NIC", vi_handle);
    struct via_nic *nic = conn->nic;
    VIP_RETURN code = via_check_process(nic);
    if (code)
        return code;
    via_enter(nic);
    via_drive(nic);
    if (conn->state == VIA_CONN_CANCELLED) {
        forget(nic, conn);
        code = via_fail(VIP_TIMEOUT, "VipConnectAccept: the other side gave up waiting");
    } else
        code = check_acceptable(conn, vi);
    if (code == VIP_SUCCESS) {
        describe(vi, conn->remote.request, &conn->accept_body);
        join(vi, conn->address, conn->peer, conn->port, conn->vi, &conn->remote);
        conn->state = VIA_CONN_ACCEPTED;
        conn->accepted = vi;
        conn->accepted_key = vi->key;
        conn->held = 0;
        conn->forget_at = nic->now + REMEMBER;
        conn->repeat = REPEAT_FIRST;
        conn->repeat_at = nic->now + conn->repeat;
        via_timer(nic, vi->lossless ? conn->forget_at : conn->repeat_at);
        repeat_answer(conn);
    }
    via_leave(nic);
    return code;
}

VIP_RETURN VipConnectReject(VIP_CONN_HANDLE handle)
{
    struct via_conn *conn = held_conn(handle);
    if (conn == NULL)
        return via_bad_handle("connection request", handle);
    struct via_nic *nic = conn->nic;
    VIP_RETURN code = via_check_process(nic);
    if (code)
        return code;
    via_enter(nic);
    nic->now = vk_now();
    conn->held = 0;
    if (conn->state == VIA_CONN_OFFERED) {
        conn->state = VIA_CONN_REJECTED;
        repeat_answer(conn);
    }
    conn->forget_at = nic->now + REMEMBER;
    via_timer(nic, conn->forget_at);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* ---------------------------------------------------------------- the client's side */

static struct via_request *open_request(struct via_nic *nic, const struct wire_header *h, const struct wire_connect *c)
{
    for (struct via_request *r = nic->requests; r; r = r->next)
        if (r->number == c->request && r->vi->number == h->dst_vi && r->vi->key == h->key)
            return r;
    return NULL;
}

static void finish_request(struct via_request *r, VIP_RETURN result)
{
    r->done = 1;
    r->result = result;
    via_wake_waiters(r->vi->nic);
}

/* CONFIRM or CANCEL to whoever took the request. */
static void say_to_server(struct via_nic *nic, struct link_peer *peer, uint16_t port, const struct via_vi *vi,
                          uint32_t request, uint32_t key, int kind)
{
    struct link_frame f;
    via_frame_init(nic, &f, kind);
    f.header.dst_port = port;
    f.header.src_vi = vi->number;
    f.block.connect = (struct wire_connect){.request = request, .key = key};
    f.header_len += (uint32_t)sizeof f.block.connect;
    f.header.len = (uint16_t)sizeof f.block.connect;
    if (via_link_send(nic, peer, &f, 1) == -EAGAIN)
        via_defer(nic, peer, &f);
}

static void accepted(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const struct wire_header *h,
                     const struct wire_connect *c)
{
    if (c->max_payload < WIRE_LEAST_PAYLOAD) {
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    struct via_request *r = open_request(nic, h, c);
    if (peer == NULL && nic->ops->route(nic->link, from, h->src_port, &peer) != 0)
        return;
    if (r && !r->done) {
        r->remote = *c;
        join(r->vi, from, peer, h->src_port, h->src_vi, c);
        r->vi->confirmed = 1;
        say_to_server(nic, peer, h->src_port, r->vi, r->number, r->vi->key, WIRE_CONFIRM);
        finish_request(r, VIP_SUCCESS);
        return;
    }
    /* Again: either our CONFIRM was lost, or we had given up. */
    struct via_vi *vi = h->dst_vi < VIA_MAX_VI ? nic->vi_by_number[h->dst_vi] : NULL;
    if (vi && vi->key == h->key && vi->state == VIP_STATE_CONNECTED && vi->peer_key == c->key)
        say_to_server(nic, peer, h->src_port, vi, c->request, vi->key, WIRE_CONFIRM);
    else {
        struct via_vi stranger = {.number = h->dst_vi};
        say_to_server(nic, peer, h->src_port, &stranger, c->request, h->key, WIRE_CANCEL);
    }
}

/* One NIC's answer says nothing about the others: where it is known how many were asked, all are waited for. */
static void no_match(struct via_nic *nic, struct via_request *r, uint16_t port, uint32_t neighbours)
{
    int i = 0;
    while (i < r->no_match && r->said_no[i] != port)
        i++;
    if (i == r->no_match && i < (int)(sizeof r->said_no / sizeof *r->said_no))
        r->said_no[r->no_match++] = port;
    int asked = r->asked >= 0 ? r->asked : (int)neighbours;
    if (r->no_match >= asked && !r->offered) {
        finish_request(r, VIP_NO_MATCH);
        return;
    }
    uint64_t grace = nic->now + NO_MATCH_GRACE;
    if (r->asked < 0 && r->give_up_no_match > grace) {
        r->give_up_no_match = grace;
        via_timer(nic, grace);
    }
}

void via_conn_deliver(struct via_nic *nic, const uint8_t from[6], struct link_peer *peer, const struct wire_header *h,
                      const uint8_t *payload, size_t len)
{
    struct wire_connect c;
    int kind = h->version_kind & 15;
    if (len < sizeof c) {
        NIC_COUNT(nic, dropped_malformed, 1);
        return;
    }
    memcpy(&c, payload, sizeof c);
    nic->now = vk_now();
    if (kind == WIRE_REQUEST) {
        request_arrived(nic, from, peer, h, &c, payload + sizeof c, len - sizeof c);
        return;
    }
    if (kind == WIRE_CONFIRM || kind == WIRE_CANCEL) {
        requester_says(nic, from, h, &c, kind);
        return;
    }
    if (kind == WIRE_ACCEPT) {
        accepted(nic, from, peer, h, &c);
        return;
    }
    struct via_request *r = open_request(nic, h, &c);
    if (r == NULL || r->done) {
        NIC_COUNT(nic, dropped_stranger, 1);
        return;
    }
    if (kind == WIRE_PENDING) {
        r->offered = 1;
        r->give_up_no_match = VK_NEVER;
        if (peer == NULL && nic->ops->route(nic->link, from, h->src_port, &peer) != 0)
            return;
        r->server = peer;
        r->server_port = h->src_port;
    } else if (kind == WIRE_REJECT)
        finish_request(r, VIP_REJECT);
    else
        no_match(nic, r, h->src_port, h->immediate);
}

static void ask(struct via_nic *nic, struct via_request *r)
{
    int asked = nic->ops->ask_all(nic->link, r->address, &r->frame);
    NIC_COUNT(nic, frames_sent, asked > 0 ? asked : 1);
    r->asked = asked; /* NICs come and go */
    r->next_send = nic->now + r->interval;
    r->interval = r->interval * 2 < REPEAT_LONGEST ? r->interval * 2 : REPEAT_LONGEST;
    via_timer(nic, r->next_send);
}

/* Repeats what was not answered, forgets what was answered long ago. */
void via_conn_timers(struct via_nic *nic)
{
    for (struct via_request *r = nic->requests; r; r = r->next) {
        if (r->done)
            continue;
        if (!r->offered && r->give_up_no_match <= nic->now)
            finish_request(r, VIP_NO_MATCH);
        else if (r->next_send <= nic->now)
            ask(nic, r);
        via_timer(nic, r->next_send < r->give_up_no_match ? r->next_send : r->give_up_no_match);
    }
    for (struct via_conn *c = nic->conns, *next; c; c = next) {
        next = c->next;
        if (c->held)
            continue;
        struct via_vi *vi = c->state == VIA_CONN_ACCEPTED ? c->accepted : NULL;
        if (vi && vi->key == c->accepted_key && vi->state == VIP_STATE_CONNECTED && !vi->confirmed) {
            if (c->repeat_at <= nic->now && !vi->lossless) {
                repeat_answer(c);
                c->repeat = c->repeat * 2 < REPEAT_LONGEST ? c->repeat * 2 : REPEAT_LONGEST;
                c->repeat_at = nic->now + c->repeat;
            }
            if (c->forget_at <= nic->now) {
                via_break(vi, 1); /* the client never heard that it was accepted */
                forget(nic, c);
                continue;
            }
            via_timer(nic, vi->lossless ? c->forget_at : c->repeat_at);
        } else if (c->forget_at <= nic->now)
            forget(nic, c);
        else
            via_timer(nic, c->forget_at);
    }
}

static int request_done(void *argument)
{
    return ((struct via_request *)argument)->done;
}

static void remove_request(struct via_nic *nic, struct via_request *r)
{
    for (struct via_request **p = &nic->requests; *p; p = &(*p)->next)
        if (*p == r) {
            *p = r->next;
            return;
        }
}

/* REQUEST with both discriminators behind the connection block. */
static void prepare(struct via_request *r, const VIP_NET_ADDRESS *local, const VIP_NET_ADDRESS *remote)
{
    struct link_frame *f = &r->frame;
    const uint8_t *wanted, *own = NULL;
    size_t wanted_len, own_len = 0;
    parse_host(remote, &wanted, &wanted_len);
    if (local)
        parse_host(local, &own, &own_len);
    via_frame_init(r->vi->nic, f, WIRE_REQUEST);
    f->header.src_vi = r->vi->number;
    describe(r->vi, r->number, &f->block.connect);
    f->block.connect.wanted_len = (uint8_t)wanted_len;
    f->block.connect.own_len = (uint8_t)own_len;
    memcpy(f->block.bytes + sizeof f->block.connect, wanted, wanted_len);
    if (own_len)
        memcpy(f->block.bytes + sizeof f->block.connect + wanted_len, own, own_len);
    f->header.len = (uint16_t)(sizeof f->block.connect + wanted_len + own_len);
    f->header_len = (uint32_t)sizeof f->header + f->header.len;
}

static VIP_RETURN check_request(struct via_vi *vi, const VIP_NET_ADDRESS *local, const VIP_NET_ADDRESS *remote,
                                VIP_ULONG timeout)
{
    if (remote == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectRequest: no remote address (NULL)");
    if (timeout == 0)
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectRequest: timeout 0 ms: give at least 1, or VIP_INFINITE");
    if (remote->HostAddressLen != 6 || (local && local->HostAddressLen != 6 && local->HostAddressLen != 0))
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectRequest: host address of %u bytes: addresses here have 6",
                        remote->HostAddressLen != 6 ? remote->HostAddressLen : local->HostAddressLen);
    if (remote->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR ||
        (local && local->DiscriminatorLen > WIRE_MAX_DISCRIMINATOR))
        return via_fail(VIP_INVALID_PARAMETER, "VipConnectRequest: discriminators have at most %d bytes",
                        WIRE_MAX_DISCRIMINATOR);
    if (vi->state != VIP_STATE_IDLE)
        return via_fail(VIP_INVALID_STATE, "VipConnectRequest: the VI is in %s: it must be idle",
                        viakit_state_name((int)vi->state));
    return VIP_SUCCESS;
}

static VIP_RETURN explain_result(VIP_RETURN code, unsigned long timeout)
{
    switch (code) {
    case VIP_NO_MATCH:
        return via_fail(
            code, "VipConnectRequest: nobody waits at that address for that discriminator: start the server first, "
                  "or ask again");
    case VIP_REJECT:
        return via_fail(code, "VipConnectRequest: the server rejected the connection");
    case VIP_TIMEOUT:
        return via_fail(code, "VipConnectRequest: no answer within %lu ms", timeout);
    default:
        return code;
    }
}

VIP_RETURN VipConnectRequest(VIP_VI_HANDLE handle, VIP_NET_ADDRESS *local, VIP_NET_ADDRESS *remote, VIP_ULONG timeout,
                             VIP_VI_ATTRIBUTES *attributes)
{
    struct via_vi *vi = via_vi_find(handle);
    if (vi == NULL)
        return via_bad_handle("VI", handle);
    struct via_nic *nic = vi->nic;
    VIP_RETURN code = via_check_process(nic);
    if (code)
        return code;
    struct via_request r = {.vi = vi, .interval = REPEAT_FIRST, .asked = -1, .give_up_no_match = VK_NEVER};
    via_enter(nic);
    code = check_request(vi, local, remote, timeout);
    if (code) {
        via_leave(nic);
        return code;
    }
    memcpy(r.address, remote->HostAddress, 6);
    r.number = random_key(); /* not counted up: a restarted program must not look like its predecessor */
    prepare(&r, local, remote);
    vi->state = VIP_STATE_CONNECT_PENDING;
    r.next = nic->requests;
    nic->requests = &r;
    nic->now = vk_now();
    ask(nic, &r);
    if (r.asked == 0) {
        r.done = 1;
        r.result = via_fail(VIP_NOT_REACHABLE, "VipConnectRequest: there is no NIC at that address");
    }
    code = via_wait_owned(nic, timeout, request_done, &r);
    remove_request(nic, &r);
    if (code == VIP_SUCCESS)
        code = r.result;
    if (vi->state == VIP_STATE_CONNECT_PENDING) {
        vi->state = VIP_STATE_IDLE;
        if (r.offered && code == VIP_TIMEOUT && r.server)
            say_to_server(nic, r.server, r.server_port, vi, r.number, vi->key, WIRE_CANCEL);
        vi->key = 0;
    }
    via_leave(nic);
    if (code == VIP_SUCCESS)
        attributes_of(&r.remote, attributes);
    return explain_result(code, timeout);
}

/* ---------------------------------------------------------------- the end of a connection */

void via_conn_forget_vi(struct via_nic *nic, struct via_vi *vi)
{
    for (struct via_conn *c = nic->conns; c; c = c->next)
        if (c->accepted == vi)
            c->accepted = NULL;
}

/* To IDLE from wherever, everything outstanding flushed, the peer told. */
void via_disconnect(struct via_vi *vi)
{
    if (vi->state == VIP_STATE_CONNECTED) {
        via_send_control(vi, WIRE_DISCONNECT, 0, 0);
    }
    vi->rto_deadline = VK_NEVER;
    vi->rx_active = 0;
    vi->rx_source = 0;
    vi->key = 0;
    vi->state = VIP_STATE_IDLE;
    vi->ack_owed = 0;
    via_conn_forget_vi(vi->nic, vi);
    via_flush(vi);
    via_wake_waiters(vi->nic);
}

VIP_RETURN VipDisconnect(VIP_VI_HANDLE handle)
{
    struct via_vi *vi = via_vi_find(handle);
    if (vi == NULL)
        return via_bad_handle("VI", handle);
    struct via_nic *nic = vi->nic;
    VIP_RETURN code = via_check_process(nic);
    if (code)
        return code;
    via_enter(nic);
    struct via_request *r = nic->requests;
    while (r && r->vi != vi)
        r = r->next;
    if (r && !r->done) { /* another thread is connecting it: that call ends with a time-out */
        finish_request(r, VIP_TIMEOUT);
        via_flush(vi);
    } else
        via_disconnect(vi);
    via_leave(nic);
    return VIP_SUCCESS;
}

void link_peer_lost(struct via_nic *nic, struct link_peer *peer)
{
    via_drop_deferred(nic, peer);
    if (nic->fault)
        fault_forget_peer(nic->fault, peer);
    for (struct via_vi *vi = nic->vis; vi; vi = vi->next)
        if (vi->state == VIP_STATE_CONNECTED && vi->peer == peer)
            via_break(vi, 1);
    for (struct via_conn *c = nic->conns, *next; c; c = next) {
        next = c->next;
        if (c->peer != peer)
            continue;
        c->state = VIA_CONN_CANCELLED;
        if (!c->held)
            forget(nic, c);
    }
    for (struct via_request *r = nic->requests; r; r = r->next)
        if (!r->done && r->server == peer) {
            r->server = NULL;
            finish_request(r, VIP_NOT_REACHABLE);
        }
}

/* The NIC closes: whoever still waits for an answer is rejected. */
void via_conn_fini(struct via_nic *nic)
{
    for (struct via_conn *c = nic->conns; c; c = c->next)
        if (c->state == VIA_CONN_OFFERED)
            answer(c, WIRE_REJECT, NULL);
    while (nic->conns)
        forget(nic, nic->conns);
}
