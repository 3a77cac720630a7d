/*
 * cases_peer.c - connections between equals: both sides call VipConnectPeerRequest.
 *
 * Holds the provider to the table "The connection between equals" of docs/states.md, on every link. Neither side is
 * client or server. A and B do the same, or begin in another order. The call returns at once. VipConnectPeerDone (a
 * poll) or VipConnectPeerWait returns its result, once.
 */
#include <sys/mman.h>

#include "conformance.h"

/* A request from the name `own` at this host to the name `wanted` at the partner's. */
static VIP_RETURN request_named(endpoint *e, const char *own, const char *wanted, VIP_ULONG timeout_ms)
{
    side *s = e->s;
    address local, remote;
    make_address(&local, s->attr.LocalNicAddress, own, strlen(own));
    make_address(&remote, s->peer_host, wanted, strlen(wanted));
    return VipConnectPeerRequest(e->vi, &local.net, &remote.net, timeout_ms);
}

/* By "NAME a" and "NAME b". */
static void request(endpoint *e, const char *name, VIP_ULONG timeout_ms)
{
    char own[32], wanted[32];
    snprintf(own, sizeof(own), "%s %c", name, "ab"[e->s->role]);
    snprintf(wanted, sizeof(wanted), "%s %c", name, "ba"[e->s->role]);
    CHECK_OK(request_named(e, own, wanted, timeout_ms));
}

/* On a network each look also drives the NIC: the partner's answer may have to be fetched. */
static VIP_RETURN poll_done(endpoint *e, VIP_VI_ATTRIBUTES *attr)
{
    VIP_RETURN r;
    double end = check_now() + CHECK_WAIT_S;
    while ((r = VipConnectPeerDone(e->vi, attr)) == VIP_NOT_DONE) {
        if (check_now() > end)
            FAIL("VipConnectPeerDone says NOT_DONE after %d s", CHECK_WAIT_S);
        sched_yield();
    }
    return r;
}

/* One message each way, at the same time. */
static void swap(endpoint *e, uint64_t word, uint64_t *peer_word)
{
    VIP_DESCRIPTOR *sd = descriptor(e, 1), *rd = descriptor(e, 1);
    uint8_t *out = buffer(e, 8), *in = buffer(e, 8);
    memcpy(out, &word, 8);
    post_recv(e, prep_recv(e, rd, in, 8));
    SIDE_SYNC(e->s, 300);
    post_send(e, prep_send(e, sd, out, 8));
    reap_send(e, sd, VIP_STATUS_OP_SEND);
    reap_recv(e, rd, VIP_STATUS_OP_RECEIVE);
    memcpy(peer_word, in, 8);
}

/* ---- peer_connect: every level, polled and waiting, both at once or one after the other */

static void peer_connect_both(side *s)
{
    /* how: the lowest bit chooses between polling and waiting; 1 and 2 let one side request before the other, 0 and 3
     * leave the order open. */
    for (int i = 0; i < s->n_levels; i++)
        for (int how = 0; how < 4; how++) {
            endpoint e;
            VIP_VI_ATTRIBUTES attr;
            uint64_t peer_word;
            endpoint_open(&e, s, s->levels[i], 4096);
            /* There is no result before a request. */
            CHECK_RET(VipConnectPeerDone(e.vi, &attr), VIP_INVALID_STATE);
            CHECK_RET(VipConnectPeerWait(e.vi, &attr), VIP_INVALID_STATE);
            SIDE_SYNC(s, 1);
            if (how == 1 + (int)s->role) { /* the other one first */
                SIDE_SYNC(s, 2);
                /* The partner has requested, and has checked that no reply has arrived yet. */
                request(&e, "peer", 1000 * CHECK_WAIT_S);
            } else {
                request(&e, "peer", 1000 * CHECK_WAIT_S);
                /* A VI requests one partner at a time. */
                CHECK_RET(request_named(&e, "x", "y", 1000), VIP_INVALID_STATE);
                if (how == 2 - (int)s->role) {
                    CHECK_RET(VipConnectPeerDone(e.vi, &attr), VIP_NOT_DONE);
                    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECT_PENDING);
                    SIDE_SYNC(s, 2);
                }
            }
            /* Junk, so that what is checked was written by the call. */
            memset(&attr, 0xEE, sizeof(attr));
            CHECK_OK(how & 1 ? VipConnectPeerWait(e.vi, &attr) : poll_done(&e, &attr));
            CHECK_EQ(attr.ReliabilityLevel, s->levels[i]);
            CHECK_EQ(attr.MaxTransferSize, s->attr.MaxTransferSize);
            CHECK_EQ(attr.EnableRdmaWrite, VIP_TRUE);
            CHECK_RET(VipConnectPeerDone(e.vi, &attr), VIP_INVALID_STATE); /* the result is given once */
            swap(&e, s->role, &peer_word);
            CHECK_EQ(peer_word, !s->role);
            endpoint_disconnect(&e);
            endpoint_close(&e);
        }
}

void peer_connect_a(side *s)
{
    peer_connect_both(s);
}

void peer_connect_b(side *s)
{
    peer_connect_both(s);
}

/* ---- peer_handler: a VI that is created when its partner's request arrives */

static void count_requests(void *context, const VIP_UINT8 *discriminator, size_t len)
{
    /* On links to all NICs of a station, requests of other programs may arrive, too. */
    if (len == 9 && memcmp(discriminator, "handled b", 9) == 0)
        __atomic_add_fetch((int *)context, 1, __ATOMIC_SEQ_CST);
}

void peer_handler_a(side *s)
{
    endpoint e;
    uint64_t peer_word;
    endpoint_open(&e, s, s->levels[0], 4096);
    SIDE_SYNC(s, 1);
    request(&e, "handled", 1000 * CHECK_WAIT_S);
    CHECK_OK(VipConnectPeerWait(e.vi, NULL));
    swap(&e, 7, &peer_word);
    CHECK_EQ(peer_word, 8);
    endpoint_disconnect(&e); /* after both: the acknowledgement of the last message may be lost */
    endpoint_close(&e);
}

void peer_handler_b(side *s)
{
    endpoint e;
    uint64_t peer_word;
    int n = 0;
    CHECK_OK(viakit_on_peer_request(s->nic, &n, count_requests));
    SIDE_SYNC(s, 1);
    WAIT_UNTIL(viakit_poll(s->nic, NULL) == VIP_SUCCESS && __atomic_load_n(&n, __ATOMIC_SEQ_CST) > 1); /* it repeats */
    endpoint_open(&e, s, s->levels[0], 4096);
    request(&e, "handled", 1000 * CHECK_WAIT_S);
    CHECK_OK(VipConnectPeerWait(e.vi, NULL));
    CHECK_OK(viakit_on_peer_request(s->nic, NULL, NULL));
    swap(&e, 8, &peer_word);
    CHECK_EQ(peer_word, 7);
    endpoint_disconnect(&e); /* after both: the acknowledgement of the last message may be lost */
    endpoint_close(&e);
}

/* ---- one_nic: an address of eight bytes means one NIC of its station */

static void one_nic_both(side *s)
{
    endpoint e;
    address local, remote;
    viakit_nic_info info;
    VIP_VI_ATTRIBUTES attr;
    VIP_NIC_HANDLE gone;
    uint64_t peer_word;
    /* Between equals first, with the partner's very NIC named. */
    VIP_RETURN r;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    uint16_t port = (uint16_t)side_exchange(s, info.port);
    CHECK_OK(viakit_open_nic(s->device, &s->options, &gone));
    CHECK_OK(viakit_query_nic(gone, &info));
    CHECK_OK(VipCloseNic(gone));
    uint16_t port_gone = (uint16_t)side_exchange(s, info.port);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    make_address(&local, s->attr.LocalNicAddress, s->role == SIDE_A ? "one a" : "one b", 5);
    make_address(&remote, s->peer_host, s->role == SIDE_A ? "one b" : "one a", 5);
    add_port(&remote, port);
    CHECK_OK(VipConnectPeerRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S));
    CHECK_OK(VipConnectPeerWait(e.vi, &attr));
    swap(&e, s->role, &peer_word);
    CHECK_EQ(peer_word, !s->role);
    endpoint_disconnect(&e);
    /* Then as client and server: a request to a port that no NIC has fails, although B waits. One to the right port
     * reaches B. */
    make_address(&local, s->attr.LocalNicAddress, "one", 3);
    make_address(&remote, s->peer_host, "one", 3);
    if (s->role == SIDE_A) {
        add_port(&remote, port_gone); /* B waits, but at another port, which an Ethernet cannot report */
        r = VipConnectRequest(e.vi, &local.net, &remote.net, s->link->kind == ON_ETH ? 200 : 1000 * CHECK_WAIT_S,
                              &attr);
        CHECK_RET(r, s->link->kind == ON_ETH ? VIP_TIMEOUT : VIP_NOT_REACHABLE);
        CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
        make_address(&remote, s->peer_host, "one", 3);
        add_port(&remote, port);
        while ((r = VipConnectRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr)) == VIP_NO_MATCH)
            sched_yield(); /* B is not that far yet */
        CHECK_RET(r, VIP_SUCCESS);
    } else {
        VIP_CONN_HANDLE conn;
        CHECK_OK(VipConnectWait(s->nic, &local.net, 1000 * CHECK_WAIT_S, &remote.net, &attr, &conn));
        CHECK_OK(VipConnectAccept(conn, e.vi));
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void one_nic_a(side *s)
{
    one_nic_both(s);
}

void one_nic_b(side *s)
{
    one_nic_both(s);
}

/* ---- peer_names: both addresses and both discriminators must match; NULL and odd arguments */

/* Both sides first try what is no request at all; none of it leaves a trace on the VI. */
static void peer_names_both(side *s)
{
    endpoint e, wrong, client;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    uint64_t peer_word;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_open(&wrong, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_open(&client, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    make_address(&local, s->attr.LocalNicAddress, "x", 1);
    make_address(&remote, s->peer_host, "x", 1);
    CHECK_RET(VipConnectPeerRequest(NULL, &local.net, &remote.net, 100), VIP_INVALID_PARAMETER);
    CHECK_RET(VipConnectPeerRequest(e.vi, &local.net, NULL, 100), VIP_INVALID_PARAMETER);
    CHECK_RET(VipConnectPeerRequest(e.vi, NULL, &remote.net, 100), VIP_INVALID_PARAMETER);
    CHECK_RET(VipConnectPeerRequest(e.vi, &local.net, &remote.net, 0), VIP_INVALID_PARAMETER);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    /* "wrong" requests the right name but has another, on both sides. The two match neither each other nor any other
     * VI. Its time-out is twice that of the others, so it is still requesting when they are done. */
    CHECK_OK(request_named(&wrong, "mine", s->role == SIDE_A ? "names b" : "names a", 2000 * CHECK_WAIT_S));
    request(&e, "names", 1000 * CHECK_WAIT_S);
    CHECK_OK(VipConnectPeerWait(e.vi, NULL));
    swap(&e, s->role, &peer_word);
    CHECK_EQ(peer_word, !s->role);
    CHECK_RET(VipConnectPeerDone(wrong.vi, &attr), VIP_NOT_DONE);
    SIDE_SYNC(s, 1);
    /* A client finds no peer: it looks for a server. */
    make_address(&remote, s->peer_host, "mine", 4);
    CHECK_RET(VipConnectRequest(client.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr), VIP_NO_MATCH);
    SIDE_SYNC(s, 2);
    CHECK_OK(VipDisconnect(wrong.vi));
    CHECK_EQ(vi_state(wrong.vi), VIP_STATE_IDLE);
    CHECK_RET(VipConnectPeerDone(wrong.vi, &attr), VIP_INVALID_STATE);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    endpoint_close(&wrong);
    endpoint_close(&client);
}

void peer_names_a(side *s)
{
    peer_names_both(s);
}

void peer_names_b(side *s)
{
    peer_names_both(s);
}

/* ---- peer_mismatch: both sides of VIs with different attributes get the error, and can be used again */

static void peer_mismatch_both(side *s)
{
    static const VIP_RETURN expected[3] = {VIP_INVALID_RELIABILITY_LEVEL, VIP_INVALID_MTU, VIP_INVALID_QOS};
    for (int i = 0; i < 3; i++) {
        endpoint e;
        VIP_VI_ATTRIBUTES attr;
        uint64_t peer_word;
        /* The odd side differs in one attribute per round: the level, the longest transfer, the quality of service. */
        int odd = s->role == SIDE_B;
        endpoint_open_with(&e, s, odd && i == 0 ? VIP_SERVICE_RELIABLE_RECEPTION : VIP_SERVICE_RELIABLE_DELIVERY, 4096,
                           odd && i == 1 ? 32768 : 65536, NULL, NULL);
        if (i == 2) {
            attr = e.attr;
            attr.QoS = (VIP_QOS)(uintptr_t)(odd ? 1 : 2);
            CHECK_OK(VipSetViAttributes(e.vi, &attr));
        }
        /* Both sides learn the same reason, and the VIs are IDLE again. */
        request(&e, "unlike", 1000 * CHECK_WAIT_S);
        CHECK_RET(i & 1 ? VipConnectPeerWait(e.vi, &attr) : poll_done(&e, &attr), expected[i]);
        CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
        endpoint_close(&e);
        endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
        request(&e, "alike", 1000 * CHECK_WAIT_S);
        CHECK_OK(VipConnectPeerWait(e.vi, &attr));
        swap(&e, s->role, &peer_word);
        CHECK_EQ(peer_word, !s->role);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void peer_mismatch_a(side *s)
{
    peer_mismatch_both(s);
}

void peer_mismatch_b(side *s)
{
    peer_mismatch_both(s);
}

/* ---- peer_timeout: no matching request, withdrawal by another thread, and closing with the NIC */

/* The thread of a VI whose request is taken back under it. */
static void *wait_in_vain(void *p)
{
    endpoint *e = p;
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN r = VipConnectPeerWait(e->vi, &attr);
    CHECK(r == VIP_TIMEOUT || r == VIP_INVALID_STATE); /* withdrawn while it waited, or before it began to */
    return NULL;
}

static void peer_timeout_both(side *s)
{
    endpoint e;
    VIP_VI_ATTRIBUTES attr;
    VIP_DESCRIPTOR *d;
    pthread_t thread;
    uint64_t peer_word;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    /* Two time-outs, reported by a wait and by a poll. 20 ms are enough, because no partner requests. */
    CHECK_OK(request_named(&e, "alone", "absent", 20));
    CHECK_RET(VipConnectPeerWait(e.vi, &attr), VIP_TIMEOUT);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    CHECK_OK(request_named(&e, "alone", "absent", 20));
    CHECK_RET(poll_done(&e, &attr), VIP_TIMEOUT);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    /* Pending: what the program may do with the VI, and that Disconnect takes the request back. */
    d = descriptor(&e, 0);
    post_recv(&e, prep_recv(&e, d, NULL, 0));
    CHECK_OK(request_named(&e, "alone", "absent", VIP_INFINITE));
    CHECK_RET(VipDestroyVi(e.vi), VIP_ERROR_RESOURCE);
    CHECK_EQ(pthread_create(&thread, NULL, wait_in_vain, &e), 0);
    CHECK_OK(VipDisconnect(e.vi));
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    reap_recv(&e, d, VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
    CHECK_OK(request_named(&e, "alone", "absent", 20)); /* for the thread, if it comes too late for the first */
    CHECK_EQ(pthread_join(thread, NULL), 0);
    wait_state(&e, VIP_STATE_IDLE);
    request(&e, "not alone", 1000 * CHECK_WAIT_S);
    CHECK_OK(VipConnectPeerWait(e.vi, &attr));
    swap(&e, s->role, &peer_word);
    CHECK_EQ(peer_word, !s->role);
    endpoint_disconnect(&e);
    CHECK_OK(request_named(&e, "alone", "absent", VIP_INFINITE)); /* endpoint_close takes it back */
    endpoint_close(&e);
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    CHECK_OK(request_named(&e, "alone", "absent", VIP_INFINITE));
    /* From here on the NIC goes with a request under way; the handles are dead, as after any close. */
    SIDE_SYNC(s, 1);
    CHECK_OK(VipCloseNic(s->nic));
    CHECK_RET(VipConnectPeerDone(e.vi, &attr), VIP_INVALID_PARAMETER);
    CHECK_OK(viakit_open_nic(s->device, &s->options, &s->nic));
    if (!s->link->mapped) /* else the memory went with the NIC */
        munmap(e.mem, e.size);
    free(e.buffers);
}

void peer_timeout_a(side *s)
{
    peer_timeout_both(s);
}

void peer_timeout_b(side *s)
{
    peer_timeout_both(s);
}

/* ---- peer_self: two VIs of one process, on one NIC and on two */

static void ignore_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context, (void)error;
}

/* other: a copy of the side, for a NIC of its own. */
/* e[0] is on the side's own NIC, e[1] on it as well or on a second one of the same process and station. */
static void meet_self(side *s, side other, int n_nics)
{
    endpoint e[2];
    address local;
    char name[32];
    VIP_NIC_HANDLE second = NULL;
    VIP_DESCRIPTOR *sd, *rd;
    if (n_nics == 2) {
        CHECK_OK(viakit_open_nic(s->device, &s->options, &second));
        CHECK_OK(VipErrorCallback(second, NULL, ignore_error));
        other.nic = second;
    }
    /* One name for both ends: a VI that requests its own name gets the other VI of that name, never itself. */
    snprintf(name, sizeof(name), "self of %c", "AB"[s->role]);
    make_address(&local, s->attr.LocalNicAddress, name, strlen(name));
    endpoint_open(&e[0], s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_open(&e[1], &other, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    for (int i = 0; i < 2; i++)
        CHECK_OK(VipConnectPeerRequest(e[i].vi, &local.net, &local.net, 1000 * CHECK_WAIT_S));
    for (int i = 0; i < 2; i++)
        CHECK_OK(VipConnectPeerWait(e[i].vi, NULL));
    rd = descriptor(&e[1], 1);
    post_recv(&e[1], prep_recv(&e[1], rd, buffer(&e[1], 100), 100));
    sd = descriptor(&e[0], 1);
    uint8_t *out = buffer(&e[0], 100);
    pattern_fill(out, 100, (uint64_t)n_nics);
    post_send(&e[0], prep_send(&e[0], sd, out, 100));
    reap_recv(&e[1], rd, VIP_STATUS_OP_RECEIVE);
    pattern_check(rd->DS[0].Local.Data.Address, 100, (uint64_t)n_nics);
    reap_send(&e[0], sd, VIP_STATUS_OP_SEND);
    endpoint_close(&e[0]);
    endpoint_close(&e[1]);
    if (second)
        CHECK_OK(VipCloseNic(second));
}

static void peer_self_both(side *s)
{
    const side other = *s; /* before anything can be reported to it: the NIC's thread writes there */
    meet_self(s, other, 1);
    meet_self(s, other, 2);
}

void peer_self_a(side *s)
{
    peer_self_both(s);
}

void peer_self_b(side *s)
{
    peer_self_both(s);
}

/* ---- peer_crowd: many VIs on each side request the same names: each gets one partner */

#define CROWD 8

static void peer_crowd_both(side *s)
{
    /* All eight request by the same two names. Any pairing of A's with B's is right. */
    endpoint e[CROWD];
    unsigned seen = 0;
    for (int i = 0; i < CROWD; i++)
        endpoint_open(&e[i], s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    SIDE_SYNC(s, 1);
    for (int i = 0; i < CROWD; i++)
        request(&e[i], "crowd", 1000 * CHECK_WAIT_S);
    for (int i = 0; i < CROWD; i++)
        CHECK_OK(VipConnectPeerWait(e[i].vi, NULL));
    for (int i = 0; i < CROWD; i++) {
        VIP_DESCRIPTOR *rd = descriptor(&e[i], 1);
        post_recv(&e[i], prep_recv(&e[i], rd, buffer(&e[i], 4), 4));
    }
    SIDE_SYNC(s, 2);
    for (int i = 0; i < CROWD; i++) {
        VIP_DESCRIPTOR *sd = descriptor(&e[i], 1);
        uint8_t *out = buffer(&e[i], 4);
        /* The number of the sender, and which side it is of. */
        int word = i + 1000 * (int)s->role;
        memcpy(out, &word, 4);
        post_send(&e[i], prep_send(&e[i], sd, out, 4));
        reap_send(&e[i], sd, VIP_STATUS_OP_SEND);
    }
    for (int i = 0; i < CROWD; i++) {
        VIP_DESCRIPTOR *d = next_recv(&e[i]);
        /* Each partner occurs once: no message arrives twice, and none is missing. */
        int peer_word;
        CHECK_STATUS(d, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
        memcpy(&peer_word, d->DS[0].Local.Data.Address, 4);
        peer_word -= 1000 * !s->role;
        CHECK(peer_word >= 0 && peer_word < CROWD);
        CHECK(!(seen & 1u << peer_word));
        seen |= 1u << peer_word;
    }
    SIDE_SYNC(s, 3);
    for (int i = 0; i < CROWD; i++)
        endpoint_close(&e[i]);
}

void peer_crowd_a(side *s)
{
    peer_crowd_both(s);
}

void peer_crowd_b(side *s)
{
    peer_crowd_both(s);
}
