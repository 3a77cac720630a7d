/*
 * states_connection.c - a connection in the making, as its server sees it: brings it into each state of docs/states.md
 * and makes each event happen there.
 *
 * Host a is the client, host b the server; the discriminator is "door". Only one of the states shows in a VI. The
 * others show in what the connection handle returns, so reading the state is the last thing that a scene does.
 */
#include "states.h"

enum { NOBODY, WAITING, OFFERED, WITHDRAWN, ANSWERED };

typedef struct {
    host a, b;
    VIP_VI_HANDLE vi, second;                    /* on a: of the request, and for another request */
    VIP_VI_HANDLE right, other_level, other_mtu; /* on b */
    VIP_CONN_HANDLE conn;
    requester request;
    pthread_t waiter;
    int waiter_started;
    atomic_int waiter_over;
    VIP_ULONG wait_ms;
    VIP_RETURN wait_result;
    char client[48]; /* what the client saw */
} door;

/* In a thread: VipConnectWait, which the event or the scene's end brings home. */
static void *wait_at_door(void *p)
{
    door *d = p;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    host_address(&d->b, "door", &local);
    d->wait_result = VipConnectWait(d->b.nic, &local.net, d->wait_ms, &remote.net, &attr, &d->conn);
    atomic_store(&d->waiter_over, 1);
    return NULL;
}

static VIP_RETURN waiter_join(door *d)
{
    if (d->waiter_started)
        CHECK_EQ(pthread_join(d->waiter, NULL), 0);
    d->waiter_started = 0;
    return d->wait_result;
}

/* A second request of the client's, by a VI of its own; what it is answered. */
static VIP_RETURN request_from_client(door *d, const char *discriminator)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    host_address(&d->a, discriminator, &local);
    host_address(&d->b, discriminator, &remote);
    return VipConnectRequest(d->second, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr);
}

/* A waiting thread that certainly waits. A request for another discriminator has no effect on it, and one for this one
 * would be taken. So only the request in question, or the state of the thread, can show that it waits. */
static void start_waiter(door *d, VIP_ULONG wait_ms)
{
    d->wait_ms = wait_ms;
    d->waiter_started = 1;
    CHECK_EQ(pthread_create(&d->waiter, NULL, wait_at_door, d), 0);
}

/* short_request, short_wait: their time-outs are to pass. */
static void door_open(door *d, int column, int short_request, int short_wait)
{
    memset(d, 0, sizeof(*d));
    host_open(&d->a);
    host_open(&d->b);
    d->vi = host_vi(&d->a, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    d->second = host_vi(&d->a, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    d->right = host_vi(&d->b, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    d->other_level = host_vi(&d->b, VIP_SERVICE_RELIABLE_RECEPTION, 65536);
    d->other_mtu = host_vi(&d->b, VIP_SERVICE_RELIABLE_DELIVERY, 32768);
    if (column == WAITING)
        start_waiter(d, short_wait ? 100 : 1000 * CHECK_WAIT_S);
    if (column < OFFERED)
        return;
    request_start(&d->request, &d->a, &d->b, d->vi, "door",
                  column == WITHDRAWN || short_request ? 300 : 1000 * CHECK_WAIT_S);
    d->conn = take_request(&d->b, "door");
    /* WITHDRAWN: the client's time-out has passed, and the handle does not know it yet. */
    if (column == WITHDRAWN)
        CHECK_RET(request_join(&d->request), VIP_TIMEOUT);
    if (column == ANSWERED) {
        CHECK_OK(VipConnectAccept(d->conn, d->right));
        CHECK_OK(request_join(&d->request));
    }
}

static void door_close(door *d)
{
    if (d->conn && !d->b.closed)
        VipConnectReject(d->conn);
    request_join(&d->request);
    host_close(&d->a);
    host_close(&d->b); /* ends a wait without a result */
    waiter_join(d);
    CHECK_NOTHING_LEFT();
}

/* The handle's state follows from its result for a VI that does not fit. Probing a withdrawn one uses it up. */
static const char *door_state(door *d)
{
    if (d->b.closed) {
        if (d->conn)
            CHECK_RET(VipConnectReject(d->conn), VIP_INVALID_PARAMETER);
        return "gone";
    }
    if (d->waiter_started)
        return atomic_load(&d->waiter_over) ? "?" : "waiting";
    if (!d->conn)
        return "no server";
    switch (VipConnectAccept(d->conn, d->other_level)) {
    case VIP_INVALID_RELIABILITY_LEVEL:
        return "offered";
    case VIP_TIMEOUT:
        return "withdrawn";
    case VIP_INVALID_PARAMETER:
        return "answered";
    default:
        return "?";
    }
}

/* ---------------------------------------------------------------- events */

static void see_client(door *d, const char *what)
{
    snprintf(d->client, sizeof(d->client), "client: %s", what);
}

/* Without a waiter, and while the handle is in use, the request is refused. A waiter takes it. */
static const char *request_arrives(door *d, int column)
{
    if (column != WAITING) {
        see_client(d, short_name(request_from_client(d, "door")));
        return "";
    }
    request_start(&d->request, &d->a, &d->b, d->vi, "door", 1000 * CHECK_WAIT_S);
    CHECK_OK(waiter_join(d));
    return "";
}

static const char *other_request_arrives(door *d, int column)
{
    (void)column;
    see_client(d, short_name(request_from_client(d, "window")));
    return "";
}

static const char *wait_times_out(door *d, int column)
{
    (void)column;
    return short_name(waiter_join(d));
}

/* Only an answer to an offered request reaches the client. */
static const char *answer(door *d, int column, VIP_RETURN r)
{
    if (column == OFFERED && r == VIP_SUCCESS)
        see_client(d, short_name(request_join(&d->request)));
    return short_name(r);
}

static const char *accepts(door *d, int column)
{
    return answer(d, column, VipConnectAccept(d->conn, d->right));
}

static const char *accepts_other_level(door *d, int column)
{
    return answer(d, column, VipConnectAccept(d->conn, d->other_level));
}

static const char *accepts_other_mtu(door *d, int column)
{
    return answer(d, column, VipConnectAccept(d->conn, d->other_mtu));
}

static const char *rejects(door *d, int column)
{
    return answer(d, column, VipConnectReject(d->conn));
}

static const char *client_gives_up(door *d, int column)
{
    (void)column;
    see_client(d, short_name(request_join(&d->request)));
    return "";
}

static const char *client_closes(door *d, int column)
{
    (void)column;
    CHECK_OK(VipCloseNic(d->a.nic));
    d->a.closed = 1;
    see_client(d, short_name(request_join(&d->request)));
    return "";
}

/* Result at the client: nothing, a refused request, or a lost connection. */
static const char *server_closes(door *d, int column)
{
    CHECK_OK(VipCloseNic(d->b.nic));
    d->b.closed = 1;
    if (column == WAITING)
        return short_name(waiter_join(d));
    if (column == OFFERED)
        see_client(d, short_name(request_join(&d->request)));
    if (column == ANSWERED) {
        host_wait_error(&d->a, VIP_ERROR_CONN_LOST);
        see_client(d, "CONN_LOST");
    }
    return "";
}

/* Events that need a handle cannot happen in the others. */
#define WITH_HANDLE (1u << OFFERED | 1u << WITHDRAWN | 1u << ANSWERED)
#define ALL 0x1F

static const struct {
    const char *row;
    const char *(*event)(door *d, int column);
    unsigned columns;
} events[] = {
    {"request arrives", request_arrives, ALL},
    {"request for another discriminator arrives", other_request_arrives, ALL},
    {"time-out of ConnectWait", wait_times_out, 1u << WAITING},
    {"ConnectAccept", accepts, WITH_HANDLE},
    {"ConnectAccept, another level", accepts_other_level, WITH_HANDLE},
    {"ConnectAccept, another MaxTransferSize", accepts_other_mtu, WITH_HANDLE},
    {"ConnectReject", rejects, WITH_HANDLE},
    {"client gives up", client_gives_up, 1u << OFFERED},
    {"client closes its NIC", client_closes, 1u << OFFERED},
    {"server closes its NIC", server_closes, ALL},
};

int drive_connection(const char *row, int column, char *seen)
{
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        door d;
        const char *result;
        if (strcmp(events[i].row, row))
            continue;
        if (!(events[i].columns & (1u << column))) {
            strcpy(seen, "-");
            return 1;
        }
        door_open(&d, column, events[i].event == client_gives_up, events[i].event == wait_times_out);
        result = events[i].event(&d, column);
        snprintf(seen, CELL, "%s%s-> %s%s%s", result, result[0] ? " " : "", door_state(&d), d.client[0] ? "; " : "",
                 d.client);
        door_close(&d);
        return 1;
    }
    return 0;
}
