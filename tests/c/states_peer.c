/*
 * states_peer.c - a peer request in each of its states, and every event of docs/states.md there.
 *
 * A on host a is called "anna", its partner on host b "bert"; each requests the other's name. The state is read through
 * the result, which is returned once, so this is a scene's last step.
 */
#include "states.h"

enum { NOTHING, ASKING, ANSWERED, FAILED };

/* On a: `vi`, with the peer request under test. On b: `partner`, which requests it by the opposite names. */
static VIP_RETURN post_request(scene *s, VIP_VI_HANDLE vi, int from_b, VIP_ULONG timeout_ms)
{
    address local, remote;
    host_address(from_b ? &s->b : &s->a, from_b ? "bert" : "anna", &local);
    host_address(from_b ? &s->a : &s->b, from_b ? "anna" : "bert", &remote);
    return VipConnectPeerRequest(vi, &local.net, &remote.net, timeout_ms);
}

/* A VI that never requested, with other attributes. */
static void replace_partner(scene *s, VIP_RELIABILITY_LEVEL level, VIP_ULONG max_transfer)
{
    CHECK_OK(VipDestroyVi(s->partner));
    s->partner = host_vi(&s->b, level, max_transfer);
}

/* The partner requests too. Its result is the effect, and vi's own result waits to be collected. */
static void partner_requests(scene *s, VIP_RELIABILITY_LEVEL level, VIP_ULONG max_transfer)
{
    replace_partner(s, level, max_transfer);
    CHECK_OK(post_request(s, s->partner, 1, 1000 * CHECK_WAIT_S));
    snprintf(s->effect, sizeof(s->effect), "partner: %s", short_name(VipConnectPeerWait(s->partner, NULL)));
}

static void peer_open(scene *s, int column, VIP_ULONG timeout_ms)
{
    memset(s, 0, sizeof(*s));
    host_open(&s->a);
    host_open(&s->b);
    s->vi = host_vi(&s->a, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    s->partner = host_vi(&s->b, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    if (column != NOTHING)
        CHECK_OK(post_request(s, s->vi, 0, timeout_ms));
    /* The partner's answer decides between ANSWERED and FAILED; it is not part of the event. */
    if (column >= ANSWERED) {
        partner_requests(s, column == FAILED ? VIP_SERVICE_UNRELIABLE : VIP_SERVICE_RELIABLE_DELIVERY, 0);
        wait_for_state(s->vi, column == FAILED ? VIP_STATE_IDLE : VIP_STATE_CONNECTED);
        s->effect[0] = 0;
    }
}

/* Polls; uses the result up. */
static const char *peer_state(scene *s)
{
    switch (VipConnectPeerDone(s->vi, NULL)) {
    case VIP_INVALID_PARAMETER:
        return "gone";
    case VIP_INVALID_STATE:
        return "no request";
    case VIP_NOT_DONE:
        return "requesting";
    case VIP_SUCCESS:
        return "answered";
    default:
        return "failed";
    }
}

static void see_partner_lost(scene *s)
{
    host_wait_error(&s->b, VIP_ERROR_CONN_LOST);
    snprintf(s->effect, sizeof(s->effect), "partner: CONN_LOST");
}

/* ---------------------------------------------------------------- events; NULL: cannot happen in that state */

static const char *request(scene *s, int column)
{
    (void)column;
    return short_name(post_request(s, s->vi, 0, 1000 * CHECK_WAIT_S));
}

static const char *done(scene *s, int column)
{
    (void)column;
    return short_name(VipConnectPeerDone(s->vi, NULL));
}

static const char *waits(scene *s, int column)
{
    return column == ASKING ? NULL : short_name(VipConnectPeerWait(s->vi, NULL));
}

/* Waits until the request's own time has passed. */
static const char *times_out(scene *s, int column)
{
    return column == ASKING ? short_name(VipConnectPeerWait(s->vi, NULL)) : NULL;
}

static const char *asked_alike(scene *s, int column)
{
    if (column != ASKING)
        return NULL;
    partner_requests(s, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    wait_for_state(s->vi, VIP_STATE_CONNECTED);
    return "";
}

static const char *asked_other_level(scene *s, int column)
{
    if (column != ASKING)
        return NULL;
    partner_requests(s, VIP_SERVICE_RELIABLE_RECEPTION, 0);
    wait_for_state(s->vi, VIP_STATE_IDLE);
    return "";
}

static const char *asked_other_mtu(scene *s, int column)
{
    if (column != ASKING)
        return NULL;
    partner_requests(s, VIP_SERVICE_RELIABLE_DELIVERY, 32768);
    wait_for_state(s->vi, VIP_STATE_IDLE);
    return "";
}

/* A client on b requests anna: it needs a server, and finds none. */
static const char *client_requests(scene *s, int column)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_VI_HANDLE client = host_vi(&s->b, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    (void)column;
    host_address(&s->b, "bert", &local);
    host_address(&s->a, "anna", &remote);
    snprintf(s->effect, sizeof(s->effect), "client: %s",
             short_name(VipConnectRequest(client, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr)));
    return "";
}

static const char *disconnect(scene *s, int column)
{
    const char *result = short_name(VipDisconnect(s->vi));
    if (column == ANSWERED)
        see_partner_lost(s);
    return result;
}

static void *wait_for_peer(void *p)
{
    return (void *)(uintptr_t)VipConnectPeerWait(((scene *)p)->vi, NULL);
}

/* To a program it makes no difference whether the thread waits already or comes to it afterwards. Here it does: a
 * request is withdrawn again and again until the thread has seen it. */
static const char *disconnect_waited_for(scene *s, int column)
{
    pthread_t thread;
    void *result;
    if (column != ASKING)
        return NULL;
    for (;;) {
        CHECK_EQ(pthread_create(&thread, NULL, wait_for_peer, s), 0);
        for (int i = 0; i < 100; i++)
            sched_yield();
        CHECK_OK(VipDisconnect(s->vi));
        CHECK_EQ(pthread_join(thread, &result), 0);
        if ((VIP_RETURN)(uintptr_t)result != VIP_INVALID_STATE)
            break;
        CHECK_OK(post_request(s, s->vi, 0, 1000 * CHECK_WAIT_S)); /* it came too late: once more */
    }
    snprintf(s->effect, sizeof(s->effect), "waiting: %s", short_name((int)(uintptr_t)result));
    return "SUCCESS";
}

static const char *destroy(scene *s, int column)
{
    (void)column;
    return short_name(VipDestroyVi(s->vi));
}

static const char *close_nic(scene *s, int column)
{
    VIP_RETURN r = VipCloseNic(s->a.nic);
    s->a.closed = 1;
    if (column == ANSWERED)
        see_partner_lost(s);
    return short_name(r);
}

static const struct {
    const char *row;
    const char *(*event)(scene *s, int column);
} events[] = {
    {"ConnectPeerRequest", request},
    {"ConnectPeerDone", done},
    {"ConnectPeerWait", waits},
    {"time-out of the request", times_out},
    {"partner requests", asked_alike},
    {"partner requests, another level", asked_other_level},
    {"partner requests, another MaxTransferSize", asked_other_mtu},
    {"a client requests", client_requests},
    {"Disconnect", disconnect},
    {"Disconnect, a thread waits", disconnect_waited_for},
    {"DestroyVi", destroy},
    {"CloseNic", close_nic},
};

int drive_peer(const char *row, int column, char *seen)
{
    scene s;
    const char *result;
    size_t i = 0;
    while (i < sizeof(events) / sizeof(*events) && strcmp(events[i].row, row))
        i++;
    if (i == sizeof(events) / sizeof(*events))
        return 0;
    peer_open(&s, column, events[i].event == times_out ? 20 : 1000 * CHECK_WAIT_S);
    result = events[i].event(&s, column);
    if (result == NULL)
        strcpy(seen, "-");
    else
        snprintf(seen, CELL, "%s%s-> %s%s%s", result, *result ? " " : "", peer_state(&s), *s.effect ? "; " : "",
                 s.effect);
    host_close(&s.a);
    host_close(&s.b);
    CHECK_NOTHING_LEFT();
    return 1;
}
