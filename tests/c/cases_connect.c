/*
 * cases_connect.c - connections: made, refused, unanswered, given up, made again.
 *
 * Holds the provider to the tables "The virtual interface" and "The connection, as its server sees it" of
 * docs/states.md, on every link. A is the client (VipConnectRequest), B the server (VipConnectWait, then Accept or
 * Reject). Wherever a connection comes about one message goes each way, for a VI that says CONNECTED may still not
 * carry any.
 */
#include "conformance.h"

/* Waits as B for one request on `discriminator`; fails unless it comes. */
static VIP_CONN_HANDLE wait_request(side *s, const void *discriminator, size_t len, VIP_VI_ATTRIBUTES *attr)
{
    address local, remote;
    VIP_CONN_HANDLE conn = NULL;
    /* Junk, so that what the checks below find was written by the call. */
    memset(&remote, 0xEE, sizeof(remote));
    make_address(&local, s->attr.LocalNicAddress, discriminator, len);
    CHECK_OK(VipConnectWait(s->nic, &local.net, 1000 * CHECK_WAIT_S, &remote.net, attr, &conn));
    CHECK(conn != NULL);
    CHECK_EQ(remote.net.HostAddressLen, 6);
    CHECK(!memcmp(remote.room + 4, s->peer_host, 6));
    return conn;
}

/* Requests as A until B waits. Before B is in VipConnectWait, the reply is an immediate NO_MATCH, which is not a result
 * of the case. */
static VIP_RETURN request(side *s, VIP_VI_HANDLE vi, const void *discriminator, size_t len, VIP_ULONG timeout_ms,
                          VIP_VI_ATTRIBUTES *attr)
{
    address local, remote;
    VIP_RETURN r;
    double end = check_now() + CHECK_WAIT_S;
    make_address(&local, s->attr.LocalNicAddress, discriminator, len);
    make_address(&remote, s->peer_host, discriminator, len);
    while ((r = VipConnectRequest(vi, &local.net, &remote.net, timeout_ms, attr)) == VIP_NO_MATCH && check_now() < end)
        sched_yield();
    return r;
}

/* One message from A to B and one back. */
static void ping_pong(endpoint *e)
{
    VIP_DESCRIPTOR *rd = descriptor(e, 1), *sd = descriptor(e, 1);
    uint8_t *in = buffer(e, 100), *out = buffer(e, 100);
    /* Both receives are posted before anything is sent: a message without one breaks the connection. */
    post_recv(e, prep_recv(e, rd, in, 100));
    SIDE_SYNC(e->s, 100);
    pattern_fill(out, 100, 1 + e->s->role);
    if (e->s->role == SIDE_A) {
        post_send(e, prep_send(e, sd, out, 100));
        reap_recv(e, rd, VIP_STATUS_OP_RECEIVE);
    } else {
        reap_recv(e, rd, VIP_STATUS_OP_RECEIVE);
        post_send(e, prep_send(e, sd, out, 100));
    }
    reap_send(e, sd, VIP_STATUS_OP_SEND);
    CHECK_EQ(rd->CS.Length, 100);
    pattern_check(in, 100, 1 + !e->s->role);
}

/* ---- connect: every level, attributes of the partner, data both ways, disconnected on both sides */

static void connect_both(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_VI_STATE state;
        VIP_VI_ATTRIBUTES attr;
        /* Neither VIP_TRUE nor VIP_FALSE. */
        VIP_BOOLEAN send_empty = 7, recv_empty = 7;
        endpoint_open(&e, s, s->levels[i], 4096);
        CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
        endpoint_connect(&e, "connect");
        CHECK_OK(VipQueryVi(e.vi, &state, &attr, &send_empty, &recv_empty));
        CHECK_EQ(attr.ReliabilityLevel, s->levels[i]);
        CHECK_EQ(attr.EnableRdmaWrite, VIP_TRUE);
        CHECK(attr.MaxTransferSize >= 32768); /* every VI implementation handles 32k */
        CHECK_EQ(send_empty, VIP_TRUE);
        CHECK_EQ(recv_empty, VIP_TRUE);
        ping_pong(&e);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void connect_a(side *s)
{
    connect_both(s);
}

void connect_b(side *s)
{
    connect_both(s);
}

/* ---- reject: the client gets VIP_REJECT, its VI is idle and can be used again, and the handle becomes invalid */

void reject_a(side *s)
{
    endpoint e;
    VIP_VI_ATTRIBUTES attr;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    CHECK_RET(request(s, e.vi, "reject", 6, 1000 * CHECK_WAIT_S, &attr), VIP_REJECT);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    endpoint_connect(&e, "after");
    ping_pong(&e);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void reject_b(side *s)
{
    endpoint e;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn = wait_request(s, "reject", 6, &attr);
    CHECK_EQ(attr.ReliabilityLevel, VIP_SERVICE_RELIABLE_DELIVERY);
    CHECK_OK(VipConnectReject(conn));
    /* The handle is used up: it can neither reject again nor accept. */
    CHECK_RET(VipConnectReject(conn), VIP_INVALID_PARAMETER);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    CHECK_RET(VipConnectAccept(conn, e.vi), VIP_INVALID_PARAMETER);
    endpoint_connect(&e, "after");
    ping_pong(&e);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- no_match: no VI waits there, no NIC has the address, and a time-out of 0 ends at once */

/* NO_MATCH comes at once from the partner's NIC, so the long time-out is never used up. NOT_REACHABLE differs: no NIC
 * has that address. Here the address has the bit of locally administered addresses, and no NIC on the test's wire has
 * it. */
void no_match_a(side *s)
{
    endpoint e;
    address local, remote, nowhere;
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN r;
    static const uint8_t absent[6] = {0x02, 0xde, 0xad, 0, 0, 1};
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    make_address(&local, s->attr.LocalNicAddress, "no-match", 8);
    make_address(&remote, s->peer_host, "no-match", 8);
    make_address(&nowhere, absent, "no-match", 8);
    /* No VI waits, but the NIC exists and reports it. */
    CHECK_RET(VipConnectRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr), VIP_NO_MATCH);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    CHECK_RET(VipConnectRequest(e.vi, &local.net, &remote.net, 0, &attr), VIP_INVALID_PARAMETER);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    /* On an Ethernet, a frame to an unused address is lost. Other links detect that the address is unused, which ends
     * the call. */
    r = VipConnectRequest(e.vi, &local.net, &nowhere.net, s->link->kind == ON_ETH ? 50 : 1000 * CHECK_WAIT_S, &attr);
    CHECK_RET(r, s->link->kind == ON_ETH ? VIP_TIMEOUT : VIP_NOT_REACHABLE);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    SIDE_SYNC(s, 1);
    /* Now a VI waits, but for another discriminator with the same beginning. */
    /* A prefix of what is waited for, "no-match" of "no-match-2", is another discriminator. */
    CHECK_RET(VipConnectRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr), VIP_NO_MATCH);
    endpoint_connect(&e, "no-match-2");
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void no_match_b(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    SIDE_SYNC(s, 1);
    endpoint_connect(&e, "no-match-2");
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- connect_timeout: the server takes the request and does not answer; then it answers too late */

/* Requests as A, and gives up. If B could not take the request meanwhile, A waits longer for the next one. */
static void request_in_vain(side *s, VIP_VI_HANDLE vi)
{
    VIP_VI_ATTRIBUTES attr;
    VIP_ULONG timeout_ms = 300 * CHECK_SLOWER;
    do {
        CHECK_RET(request(s, vi, "late", 4, timeout_ms, &attr), VIP_TIMEOUT);
        CHECK_EQ(vi_state(vi), VIP_STATE_IDLE);
        timeout_ms *= 2;
    } while (!side_exchange(s, 0));
}

/* Takes as B a request that A gives up before B answers it. */
static VIP_CONN_HANDLE take_late_request(side *s)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn = NULL;
    VIP_RETURN r;
    make_address(&local, s->attr.LocalNicAddress, "late", 4);
    do {
        r = VipConnectWait(s->nic, &local.net, 500 * CHECK_WAIT_S, &remote.net, &attr, &conn);
        side_exchange(s, r == VIP_SUCCESS);
    } while (r == VIP_TIMEOUT);
    CHECK_OK(r);
    return conn;
}

void connect_timeout_a(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 4096);
    for (int i = 0; i < 2; i++) {
        SIDE_SYNC(s, 1 + i);
        request_in_vain(s, e.vi);
    }
    endpoint_connect(&e, "in time");
    ping_pong(&e);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void connect_timeout_b(side *s)
{
    endpoint e;
    VIP_CONN_HANDLE conn;
    VIP_RETURN r;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 4096);
    SIDE_SYNC(s, 1);
    conn = take_late_request(s);
    /* The client has given up. With faults the word of it may be lost; then this side finds out after accepting. */
    /* VipConnectAccept detects that the client is gone, and so does Disconnect afterwards. */
    r = VipConnectAccept(conn, e.vi);
    if (s->link->fault && r == VIP_SUCCESS) {
        wait_state(&e, VIP_STATE_ERROR);
        CHECK_OK(VipDisconnect(e.vi));
    } else {
        CHECK_RET(r, VIP_TIMEOUT);
    }
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    CHECK_RET(VipConnectAccept(conn, e.vi), VIP_INVALID_PARAMETER);
    /* Once more, and this time the server rejects a client that is gone. */
    SIDE_SYNC(s, 2);
    conn = take_late_request(s);
    r = VipConnectReject(conn);
    CHECK(r == VIP_SUCCESS || r == VIP_TIMEOUT);
    CHECK_RET(VipConnectReject(conn), VIP_INVALID_PARAMETER);
    endpoint_connect(&e, "in time");
    ping_pong(&e);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- wait_timeout: a server that waits in vain. A time-out of 0 checks for a request that has arrived, and is no
 * error. */

void wait_timeout_a(side *s)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn = NULL;
    make_address(&local, s->attr.LocalNicAddress, "in vain", 7);
    CHECK_RET(VipConnectWait(s->nic, &local.net, 0, &remote.net, &attr, &conn), VIP_TIMEOUT);
    CHECK_RET(VipConnectWait(s->nic, &local.net, 30, &remote.net, &attr, &conn), VIP_TIMEOUT);
    CHECK(conn == NULL);
}

void wait_timeout_b(side *s)
{
    wait_timeout_a(s);
}

/* ---- accept_mismatch: VIs that do not fit together; nothing is said to the client, the right VI may follow */

void accept_mismatch_a(side *s)
{
    endpoint e;
    VIP_VI_ATTRIBUTES attr;
    endpoint_open_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096, 32768, NULL, NULL);
    CHECK_OK(request(s, e.vi, "fit", 3, 1000 * CHECK_WAIT_S, &attr));
    CHECK_EQ(attr.MaxTransferSize, 32768);
    ping_pong(&e);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void accept_mismatch_b(side *s)
{
    /* All three VIs are ready before the request comes: the client's time runs while the server tries them. */
    endpoint right, level, mtu;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    endpoint_open_with(&right, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096, 32768, NULL, NULL);
    endpoint_open_with(&level, s, VIP_SERVICE_RELIABLE_RECEPTION, 4096, 32768, NULL, NULL);
    endpoint_open_with(&mtu, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096, 65536, NULL, NULL);
    conn = wait_request(s, "fit", 3, &attr);
    CHECK_EQ(attr.MaxTransferSize, 32768);
    /* VIPL's promise to a server that errs: an Accept that does not fit uses nothing up, neither the handle nor the
     * VI. */
    CHECK_RET(VipConnectAccept(conn, level.vi), VIP_INVALID_RELIABILITY_LEVEL);
    CHECK_RET(VipConnectAccept(conn, mtu.vi), VIP_INVALID_MTU);
    CHECK_EQ(vi_state(level.vi), VIP_STATE_IDLE);
    CHECK_EQ(vi_state(mtu.vi), VIP_STATE_IDLE);
    CHECK_RET(VipConnectAccept(conn, NULL), VIP_INVALID_PARAMETER);
    CHECK_OK(VipConnectAccept(conn, right.vi));
    CHECK_EQ(vi_state(right.vi), VIP_STATE_CONNECTED);
    ping_pong(&right);
    endpoint_disconnect(&right);
    endpoint_close(&right);
    endpoint_close(&level);
    endpoint_close(&mtu);
}

/* ---- discriminators: of every length, any bytes; compared whole */

void discriminators_a(side *s)
{
    uint8_t bytes[64];
    VIP_VI_ATTRIBUTES attr;
    CHECK(s->attr.MaxDiscriminatorLen >= 16);
    /* 0 to 4 one by one, then in steps of 20 up to the longest; the bytes are random, so zeros are among them. */
    for (size_t len = 0; len <= s->attr.MaxDiscriminatorLen; len += len < 4 ? 1 : 20) {
        endpoint e;
        endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
        pattern_fill(bytes, sizeof(bytes), len);
        CHECK_OK(request(s, e.vi, bytes, len, 1000 * CHECK_WAIT_S, &attr));
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void discriminators_b(side *s)
{
    uint8_t bytes[64];
    VIP_VI_ATTRIBUTES attr;
    for (size_t len = 0; len <= s->attr.MaxDiscriminatorLen; len += len < 4 ? 1 : 20) {
        endpoint e;
        endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
        pattern_fill(bytes, sizeof(bytes), len);
        CHECK_OK(VipConnectAccept(wait_request(s, bytes, len, &attr), e.vi));
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- two_waiters: two threads of the server wait for the same discriminator, a third for another */

/* One of B's threads, with the VI that it will connect. */
struct waiter {
    endpoint e;
    side *s;
    const char *discriminator;
};

static void *waiter_thread(void *p)
{
    struct waiter *w = p;
    VIP_VI_ATTRIBUTES attr;
    CHECK_OK(VipConnectAccept(wait_request(w->s, w->discriminator, strlen(w->discriminator), &attr), w->e.vi));
    return NULL;
}

/* A requests "other" between the two "same". B's threads wait for them in another order. A request goes to a waiter
 * with its discriminator, in whatever order they began to wait. */
void two_waiters_a(side *s)
{
    static const char *const names[3] = {"same", "other", "same"};
    endpoint e[3];
    VIP_VI_ATTRIBUTES attr;
    for (int i = 0; i < 3; i++) {
        endpoint_open(&e[i], s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
        CHECK_OK(request(s, e[i].vi, names[i], strlen(names[i]), 1000 * CHECK_WAIT_S, &attr));
    }
    SIDE_SYNC(s, 1);
    for (int i = 0; i < 3; i++)
        endpoint_close(&e[i]);
}

void two_waiters_b(side *s)
{
    static const char *const names[3] = {"same", "same", "other"};
    struct waiter w[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) {
        /* The thread waits at once; the NIC is used by three threads at a time from here on. */
        w[i].s = s;
        w[i].discriminator = names[i];
        endpoint_open(&w[i].e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
        CHECK_EQ(pthread_create(&threads[i], NULL, waiter_thread, &w[i]), 0);
    }
    for (int i = 0; i < 3; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    SIDE_SYNC(s, 1);
    for (int i = 0; i < 3; i++)
        endpoint_close(&w[i].e);
}

/* ---- one_nic_alone: server and client are two threads with one NIC; and it is the only one of its station. So there
 * is no other NIC whose address the frames could go to: the NIC must take what it sends to itself. */

static void *serve_alone(void *argument)
{
    endpoint_accept(argument, "alone");
    return NULL;
}

static void meet_alone(side *s)
{
    endpoint server, client;
    address own;
    VIP_VI_ATTRIBUTES attr;
    VIP_DESCRIPTOR *sd, *rd;
    pthread_t thread;
    VIP_RETURN r;
    endpoint_open(&server, s, VIP_SERVICE_RELIABLE_RECEPTION, 65536);
    endpoint_open(&client, s, VIP_SERVICE_RELIABLE_RECEPTION, 65536);
    make_address(&own, s->attr.LocalNicAddress, "alone", 5);
    /* Without a server first: the NIC itself replies that no VI waits. */
    CHECK_RET(VipConnectRequest(client.vi, NULL, &own.net, 1000 * CHECK_WAIT_S, &attr), VIP_NO_MATCH);
    CHECK_EQ(pthread_create(&thread, NULL, serve_alone, &server), 0);
    WAIT_UNTIL((r = VipConnectRequest(client.vi, NULL, &own.net, 1000 * CHECK_WAIT_S, &attr)) != VIP_NO_MATCH);
    CHECK_OK(r);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    /* 8, 128, 2048 and 32768 bytes: short and long messages take different ways on shm. */
    for (size_t len = 8; len <= 32768; len *= 16) {
        rd = descriptor(&server, 1);
        post_recv(&server, prep_recv(&server, rd, buffer(&server, len), len));
        sd = descriptor(&client, 1);
        pattern_fill(buffer(&client, len), len, len);
        post_send(&client, prep_send(&client, sd, client.buffers[client.n_buffers - 1].start, len));
        reap_recv(&server, rd, VIP_STATUS_OP_RECEIVE);
        reap_send(&client, sd, VIP_STATUS_OP_SEND);
        pattern_check(rd->DS[0].Local.Data.Address, len, len);
    }
    /* And a write, which on shm goes straight into the target's memory. */
    sd = descriptor(&client, 2);
    uint8_t *target = buffer(&server, 8), *word = buffer(&client, 8);
    pattern_fill(word, 8, 7);
    post_send(&client, prep_write(&client, sd, word, 8, (uint64_t)(uintptr_t)target, server.mh));
    reap_send(&client, sd, VIP_STATUS_OP_RDMA_WRITE);
    pattern_check(target, 8, 7);
    CHECK_OK(VipDisconnect(client.vi));
    wait_state(&server, VIP_STATE_ERROR);
    endpoint_close(&client);
    endpoint_close(&server);
}

static void ignore_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context, (void)error;
}

/* The other case: a station that has this one NIC, and B has none there. */
static void one_nic_alone_both(side *s)
{
    side lone = *s;
    meet_alone(s);
    SIDE_SYNC(s, 1);
    if (s->link->kind != ON_SHM)
        return;
    snprintf(lone.device, sizeof(lone.device), "shm:lone %d", (int)getpid());
    CHECK_OK(viakit_open_nic(lone.device, &s->options, &lone.nic));
    CHECK_OK(VipQueryNic(lone.nic, &lone.attr));
    CHECK_OK(VipErrorCallback(lone.nic, NULL, ignore_error));
    meet_alone(&lone);
    CHECK_OK(VipCloseNic(lone.nic));
}

void one_nic_alone_a(side *s)
{
    one_nic_alone_both(s);
    SIDE_SYNC(s, 2);
}

void one_nic_alone_b(side *s)
{
    SIDE_SYNC(s, 1);
    SIDE_SYNC(s, 2);
}

/* ---- reconnect: one VI, many lives; nothing of an earlier life shows in a later one */

static void reconnect_both(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    /* 20 lives: a receive that is left posted at the end of one must be flushed, and must not take a message of the
     * next. */
    for (int i = 0; i < 20; i++) {
        VIP_DESCRIPTOR *unused = descriptor(&e, 1);
        endpoint_connect(&e, "again");
        ping_pong(&e);
        post_recv(&e, prep_recv(&e, unused, buffer(&e, 8), 8));
        endpoint_disconnect(&e); /* flushes `unused` */
        CHECK_STATUS(unused, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
    }
    endpoint_close(&e);
}

void reconnect_a(side *s)
{
    reconnect_both(s);
}

void reconnect_b(side *s)
{
    reconnect_both(s);
}

/* ---- many_vis: 200 connections at once between two NICs; each carries its own messages */

#define MANY 200

static void many_both(side *s)
{
    endpoint *e = calloc(MANY, sizeof(*e));
    VIP_DESCRIPTOR *rd[MANY], *sd[MANY];
    uint8_t *in[MANY], *out[MANY];
    CHECK(e != NULL);
    for (int i = 0; i < MANY; i++) {
        char name[32];
        snprintf(name, sizeof(name), "many-%d", i);
        endpoint_open(&e[i], s, s->levels[i % s->n_burst_levels], 4096);
        endpoint_connect(&e[i], name);
        rd[i] = descriptor(&e[i], 1);
        sd[i] = descriptor(&e[i], 1);
        in[i] = buffer(&e[i], 200);
        out[i] = buffer(&e[i], 200);
        post_recv(&e[i], prep_recv(&e[i], rd[i], in[i], 200));
    }
    SIDE_SYNC(s, 1);
    /* A goes through its connections upwards, B downwards: nearly every message has to find its VI among many that
     * wait. */
    for (int k = 0; k < MANY; k++) {
        int i = s->role == SIDE_A ? k : MANY - 1 - k;
        pattern_fill(out[i], 200, (uint64_t)(2 * i + s->role));
        post_send(&e[i], prep_send(&e[i], sd[i], out[i], 200));
    }
    for (int i = 0; i < MANY; i++) {
        reap_recv(&e[i], rd[i], VIP_STATUS_OP_RECEIVE);
        reap_send(&e[i], sd[i], VIP_STATUS_OP_SEND);
        pattern_check(in[i], 200, (uint64_t)(2 * i + !s->role));
    }
    SIDE_SYNC(s, 2);
    for (int i = 0; i < MANY; i++)
        endpoint_close(&e[i]);
    free(e);
}

void many_vis_a(side *s)
{
    many_both(s);
}

void many_vis_b(side *s)
{
    many_both(s);
}

/* ---- discover: on a wire, who answers a question to all; on one host, the only station there is */

static void discover_both(side *s)
{
    VIP_AUTODISCOVERY_LIST list;
    int seen_self = 0, seen_peer = 0;
    /* The answers are counted after both NICs are open, and before either is closed. */
    SIDE_SYNC(s, 1);
    CHECK_OK(VipQuerySystemManagementInfo(s->nic, VIP_SMI_AUTODISCOVERY, &list));
    /* An entry is a VIP_NET_ADDRESS: lengths of the address (6) and of the discriminator (0), then the address
     * itself. */
    for (VIP_ULONG i = 0; i < list.NumAdAddrs; i++) {
        const uint8_t *a = (const uint8_t *)list.ADAddrArray + i * (4 + (size_t)s->attr.NicAddressLen);
        CHECK(a[0] == 6 && a[2] == 0);
        seen_self += !memcmp(a + 4, s->attr.LocalNicAddress, 6);
        seen_peer += !memcmp(a + 4, s->peer_host, 6);
    }
    CHECK_EQ(seen_self, 1);
    /* Where a question reaches all stations the partner must answer. On one host both sides are the same station, and
     * UDP has no question to all. */
    if (s->link->kind == ON_ETH)
        CHECK_EQ(seen_peer, 1);
    CHECK_EQ(list.NumberOfHops, s->link->kind != ON_LOOP && s->link->kind != ON_SHM);
    SIDE_SYNC(s, 2);
}

void discover_a(side *s)
{
    discover_both(s);
}

void discover_b(side *s)
{
    discover_both(s);
}
