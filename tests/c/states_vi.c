/*
 * states_vi.c - brings a VI into each of its states and makes each event of docs/states.md happen there.
 *
 * In every scene host a has the VI that is looked at, host b its partner. The columns of the tables are numbered from
 * 0. An event returns what its call answered, or what was reported; what the other side sees goes into scene.effect.
 */
#include "states.h"

enum { IDLE, PENDING, CONNECTED, ERROR };

/* ---------------------------------------------------------------- a VI in a state */

static void connect_scene(scene *s)
{
    CHECK_OK(VipConnectAccept(s->conn, s->partner));
    s->conn = NULL;
    CHECK_OK(request_join(&s->request));
}

/* timeout_ms: of the request that makes a VI CONNECT_PENDING or CONNECTED. */
static void scene_open(scene *s, int column, VIP_RELIABILITY_LEVEL level, VIP_ULONG timeout_ms)
{
    memset(s, 0, sizeof(*s));
    host_open(&s->a);
    host_open(&s->b);
    s->level = level;
    s->vi = host_vi(&s->a, level, 0);
    s->partner = host_vi(&s->b, level, 0);
    if (column == IDLE)
        return;
    request_start(&s->request, &s->a, &s->b, s->vi, "door", timeout_ms);
    s->conn = take_request(&s->b, "door");
    if (column == PENDING) {
        wait_for_state(s->vi, VIP_STATE_CONNECT_PENDING);
        return;
    }
    connect_scene(s);
    if (column == ERROR) {
        CHECK_OK(VipDisconnect(s->partner));
        host_wait_error(&s->a, VIP_ERROR_CONN_LOST);
        wait_for_state(s->vi, VIP_STATE_ERROR);
    }
}

/* Closing the NICs closes what is on them; only the thread must be brought home before. */
static void scene_close(scene *s)
{
    if (s->conn && !s->b.closed)
        VipConnectReject(s->conn);
    request_join(&s->request);
    host_close(&s->a);
    host_close(&s->b);
    CHECK_NOTHING_LEFT();
}

/* ---------------------------------------------------------------- what the other side sees */

static void see_request(scene *s)
{
    snprintf(s->effect, sizeof(s->effect), "request: %s", short_name(request_join(&s->request)));
}

static void see_partner_lost(scene *s)
{
    host_wait_error(&s->b, VIP_ERROR_CONN_LOST);
    wait_for_state(s->partner, VIP_STATE_ERROR);
    snprintf(s->effect, sizeof(s->effect), "partner: CONN_LOST, %s", state_of(s->partner));
}

/* The head of a queue, whatever became of it. */
static VIP_DESCRIPTOR *wait_done(VIP_VI_HANDLE vi, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **))
{
    VIP_DESCRIPTOR *d = NULL;
    WAIT_UNTIL(done(vi, &d) != VIP_NOT_DONE);
    CHECK(d != NULL);
    return d;
}

/* The one error of a status, as the page writes it. */
static const char *error_word(const VIP_DESCRIPTOR *d)
{
    switch (d->CS.Status & VIP_STATUS_ERROR_MASK) {
    case 0:
        return "no error";
    case VIP_STATUS_DESC_FLUSHED_ERROR:
        return "flushed";
    case VIP_STATUS_PROTECTION_ERROR:
        return "PROTECTION_ERROR";
    case VIP_STATUS_REMOTE_DESC_ERROR:
        return "REMOTE_DESC_ERROR";
    default:
        return "another error";
    }
}

/* ---------------------------------------------------------------- calls on the VI */

static const char *query(scene *s, int column)
{
    VIP_VI_STATE state;
    (void)column;
    return short_name(VipQueryVi(s->vi, &state, NULL, NULL, NULL));
}

/* Whether it stays on the queue or comes straight back. */
static const char *post_recv(scene *s, int column)
{
    VIP_DESCRIPTOR *d = host_descriptor(&s->a, 0, 8), *got = NULL;
    (void)column;
    CHECK_OK(VipPostRecv(s->vi, d, s->a.mh));
    if (VipRecvDone(s->vi, &got) == VIP_NOT_DONE)
        return "queued";
    CHECK(got == d);
    return error_word(d);
}

/* On a connected VI it is to arrive, so the partner has a receive. */
static const char *post_send(scene *s, int column)
{
    VIP_DESCRIPTOR *d = host_descriptor(&s->a, 0, 8);
    if (column == CONNECTED)
        CHECK_OK(VipPostRecv(s->partner, host_descriptor(&s->b, 0, 8), s->b.mh));
    CHECK_OK(VipPostSend(s->vi, d, s->a.mh));
    CHECK(wait_done(s->vi, VipSendDone) == d);
    return d->CS.Status & VIP_STATUS_ERROR_MASK ? error_word(d) : "sent";
}

/* Not NULL, so that the call has to set it. */
static const char *recv_done_empty(scene *s, int column)
{
    VIP_DESCRIPTOR *got = (VIP_DESCRIPTOR *)(void *)s->a.mem;
    VIP_RETURN r = VipRecvDone(s->vi, &got);
    (void)column;
    return r == VIP_DESCRIPTOR_ERROR && !got ? "DESCRIPTOR_ERROR, NULL" : short_name(r);
}

static VIP_RETURN request_now(scene *s, const char *discriminator)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    return VipConnectRequest(s->vi, &host_address(&s->a, discriminator, &local)->net,
                             &host_address(&s->b, discriminator, &remote)->net, 1000 * CHECK_WAIT_S, &attr);
}

/* While IDLE, a request that the partner accepts. In the other states the call refuses it before it is sent. */
static const char *request_accepted(scene *s, int column)
{
    if (column != IDLE)
        return short_name(request_now(s, "other"));
    request_start(&s->request, &s->a, &s->b, s->vi, "door", 1000 * CHECK_WAIT_S);
    CHECK_OK(VipConnectAccept(take_request(&s->b, "door"), s->partner));
    return short_name(request_join(&s->request));
}

/* The partner's NIC exists, but no VI waits for this name. */
static const char *request_no_server(scene *s, int column)
{
    (void)column;
    return short_name(request_now(s, "absent"));
}

/* A third VI, on b, sends a request to a, and a accepts with the VI under test. */
static const char *accept_with(scene *s, int column)
{
    requester third;
    VIP_CONN_HANDLE conn;
    VIP_RETURN r;
    (void)column;
    request_start(&third, &s->b, &s->a, host_vi(&s->b, s->level, 0), "in", 1000 * CHECK_WAIT_S);
    conn = take_request(&s->a, "in");
    r = VipConnectAccept(conn, s->vi);
    if (r != VIP_SUCCESS)
        CHECK_OK(VipConnectReject(conn));
    CHECK_RET(request_join(&third), r == VIP_SUCCESS ? VIP_SUCCESS : VIP_REJECT);
    return short_name(r);
}

static const char *disconnect(scene *s, int column)
{
    VIP_RETURN r = VipDisconnect(s->vi);
    if (column == PENDING)
        see_request(s);
    if (column == CONNECTED)
        see_partner_lost(s);
    return short_name(r);
}

static const char *disconnect_posted(scene *s, int column)
{
    static char text[64];
    VIP_DESCRIPTOR *d = host_descriptor(&s->a, 0, 8);
    const char *result;
    if (column == ERROR) /* nothing stays posted there */
        return disconnect(s, column);
    CHECK_OK(VipPostRecv(s->vi, d, s->a.mh));
    result = disconnect(s, column);
    CHECK(wait_done(s->vi, VipRecvDone) == d);
    snprintf(text, sizeof(text), "%s, %s", result, error_word(d));
    return text;
}

static const char *destroy(scene *s, int column)
{
    (void)column;
    return short_name(VipDestroyVi(s->vi));
}

static const char *destroy_posted(scene *s, int column)
{
    CHECK_OK(VipPostRecv(s->vi, host_descriptor(&s->a, 0, 8), s->a.mh));
    return destroy(s, column);
}

static const char *close_nic(scene *s, int column)
{
    VIP_RETURN r = VipCloseNic(s->a.nic);
    s->a.closed = 1;
    if (column == PENDING)
        see_request(s);
    if (column == CONNECTED)
        see_partner_lost(s);
    return short_name(r);
}

/* ---------------------------------------------------------------- what others do to it */

static const char *partner_accepts(scene *s, int column)
{
    static char text[64];
    (void)column;
    CHECK_OK(VipConnectAccept(s->conn, s->partner));
    s->conn = NULL;
    snprintf(text, sizeof(text), "request: %s", short_name(request_join(&s->request)));
    return text;
}

static const char *partner_rejects(scene *s, int column)
{
    static char text[64];
    (void)column;
    CHECK_OK(VipConnectReject(s->conn));
    s->conn = NULL;
    snprintf(text, sizeof(text), "request: %s", short_name(request_join(&s->request)));
    return text;
}

static const char *request_times_out(scene *s, int column)
{
    static char text[64];
    (void)column;
    snprintf(text, sizeof(text), "request: %s", short_name(request_join(&s->request)));
    return text;
}

static const char *partner_disconnects(scene *s, int column)
{
    (void)column;
    CHECK_OK(VipDisconnect(s->partner));
    host_wait_error(&s->a, VIP_ERROR_CONN_LOST);
    return "CONN_LOST";
}

static const char *partner_closes(scene *s, int column)
{
    (void)column;
    CHECK_OK(VipCloseNic(s->b.nic));
    s->b.closed = 1;
    host_wait_error(&s->a, VIP_ERROR_CONN_LOST);
    return "CONN_LOST";
}

/* A handle of another generation: found when the descriptor's turn comes. */
static const char *local_failure(scene *s, int column)
{
    VIP_DESCRIPTOR *d = host_descriptor(&s->a, 0, 8);
    (void)column;
    d->DS[0].Local.Handle ^= 0x10000;
    CHECK_OK(VipPostSend(s->vi, d, s->a.mh));
    CHECK(wait_done(s->vi, VipSendDone) == d);
    if (s->level != VIP_SERVICE_UNRELIABLE)
        see_partner_lost(s);
    return error_word(d);
}

/* The partner sends; nothing is posted for it. */
static const char *no_receive(scene *s, int column)
{
    VIP_DESCRIPTOR *d = host_descriptor(&s->b, 0, 8);
    (void)column;
    CHECK_OK(VipPostSend(s->partner, d, s->b.mh));
    host_wait_error(&s->a, VIP_ERROR_RECVQ_EMPTY);
    CHECK(wait_done(s->partner, VipSendDone) == d);
    if (s->level == VIP_SERVICE_RELIABLE_DELIVERY)
        see_partner_lost(s);
    if (s->level == VIP_SERVICE_RELIABLE_RECEPTION) {
        wait_for_state(s->partner, VIP_STATE_ERROR);
        snprintf(s->effect, sizeof(s->effect), "partner: %s, %s", error_word(d), state_of(s->partner));
    }
    return "RECVQ_EMPTY";
}

/* ---------------------------------------------------------------- the table */

#define ALL 0xF
#define ONLY(column) (1u << (column))

static const struct {
    const char *row;
    const char *(*event)(scene *s, int column);
    unsigned columns;            /* in which the event can happen */
    VIP_RELIABILITY_LEVEL level; /* 0: reliable delivery */
} events[] = {
    {"QueryVi", query, ALL, 0},
    {"PostRecv", post_recv, ALL, 0},
    {"PostSend", post_send, ALL, 0},
    {"RecvDone, empty queue", recv_done_empty, ALL, 0},
    {"ConnectRequest, accepted", request_accepted, ALL, 0},
    {"ConnectRequest, no server", request_no_server, ALL, 0},
    {"ConnectAccept", accept_with, ALL, 0},
    {"Disconnect", disconnect, ALL, 0},
    {"Disconnect, a receive posted", disconnect_posted, ALL, 0},
    {"DestroyVi", destroy, ALL, 0},
    {"DestroyVi, a receive posted", destroy_posted, ALL, 0},
    {"CloseNic", close_nic, ALL, 0},
    {"partner accepts", partner_accepts, ONLY(PENDING), 0},
    {"partner rejects", partner_rejects, ONLY(PENDING), 0},
    {"time-out of the request", request_times_out, ONLY(PENDING), 0},
    {"partner disconnects", partner_disconnects, ONLY(CONNECTED), 0},
    {"partner closes its NIC", partner_closes, ONLY(CONNECTED), 0},
    {"local descriptor fails, unreliable", local_failure, ONLY(CONNECTED), VIP_SERVICE_UNRELIABLE},
    {"local descriptor fails, reliable delivery", local_failure, ONLY(CONNECTED), VIP_SERVICE_RELIABLE_DELIVERY},
    {"local descriptor fails, reliable reception", local_failure, ONLY(CONNECTED), VIP_SERVICE_RELIABLE_RECEPTION},
    {"message without a receive, unreliable", no_receive, ONLY(CONNECTED), VIP_SERVICE_UNRELIABLE},
    {"message without a receive, reliable delivery", no_receive, ONLY(CONNECTED), VIP_SERVICE_RELIABLE_DELIVERY},
    {"message without a receive, reliable reception", no_receive, ONLY(CONNECTED), VIP_SERVICE_RELIABLE_RECEPTION},
};

int drive_vi(const char *row, int column, char *seen)
{
    for (size_t i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
        scene s;
        const char *result;
        /* Only the request that is to time out has a time that passes. */
        VIP_ULONG timeout_ms = events[i].event == request_times_out ? 300 : 1000 * CHECK_WAIT_S;
        if (strcmp(events[i].row, row))
            continue;
        if (!(events[i].columns & (1u << column))) {
            strcpy(seen, "-");
            return 1;
        }
        scene_open(&s, column, events[i].level ? events[i].level : VIP_SERVICE_RELIABLE_DELIVERY, timeout_ms);
        result = events[i].event(&s, column);
        snprintf(seen, CELL, "%s -> %s%s%s", result, state_of(s.vi), s.effect[0] ? "; " : "", s.effect);
        scene_close(&s);
        return 1;
    }
    return 0;
}

/* ---------------------------------------------------------------- the descriptor's table */

enum { FREE, POSTED, DONE, FAILED };

/* The one receive of these scenes. */
static VIP_DESCRIPTOR *last_recv(scene *s)
{
    return (VIP_DESCRIPTOR *)(void *)s->a.mem;
}

/* Sent without error: at the unreliable level the sender gets no result from the receiver. */
static void partner_sends(scene *s, size_t len)
{
    VIP_DESCRIPTOR *d = host_descriptor(&s->b, 0, len);
    CHECK_OK(VipPostSend(s->partner, d, s->b.mh));
    CHECK(wait_done(s->partner, VipSendDone) == d);
    CHECK_EQ(d->CS.Status & VIP_STATUS_ERROR_MASK, 0);
}

/* Written by the NIC's thread. */
static uint32_t status_of(VIP_DESCRIPTOR *d)
{
    return __atomic_load_n(&d->CS.Status, __ATOMIC_ACQUIRE);
}

/* Lets the NIC work until the receive has completed. */
static const char *wait_completed(scene *s)
{
    WAIT_UNTIL(state_of(s->vi) && (status_of(last_recv(s)) & VIP_STATUS_DONE));
    switch (status_of(last_recv(s)) & VIP_STATUS_ERROR_MASK) {
    case 0:
        return "DONE";
    case VIP_STATUS_LENGTH_ERROR:
        return "LENGTH_ERROR";
    case VIP_STATUS_PROTECTION_ERROR:
        return "PROTECTION_ERROR";
    case VIP_STATUS_DESC_FLUSHED_ERROR:
        return "DESC_FLUSHED_ERROR";
    default:
        return "another error";
    }
}

/* As the page has it: not on a queue, not completed, completed well, or with an error. */
static const char *descriptor_state(scene *s)
{
    VIP_BOOLEAN empty;
    CHECK_OK(VipQueryVi(s->vi, NULL, NULL, NULL, &empty));
    if (empty)
        return "free";
    if (!(status_of(last_recv(s)) & VIP_STATUS_DONE))
        return "posted";
    return status_of(last_recv(s)) & VIP_STATUS_ERROR_MASK ? "failed" : "done";
}

/* The result of a Done call. An error without a descriptor is that of the empty queue. */
static const char *done_word(VIP_RETURN r, VIP_DESCRIPTOR *got, scene *s)
{
    if (r == VIP_DESCRIPTOR_ERROR && !got)
        return "DESCRIPTOR_ERROR, NULL";
    if (r == VIP_SUCCESS || r == VIP_DESCRIPTOR_ERROR)
        CHECK(got == last_recv(s));
    return short_name(r);
}

/* Makes the event happen; NULL if it cannot in this state. `extra` is a second handle of the data's memory. */
static const char *descriptor_event(scene *s, const char *row, int column, VIP_MEM_HANDLE extra)
{
    VIP_DESCRIPTOR *got = NULL;
    if (!strcmp(row, "PostRecv"))
        return column == FREE ? short_name(VipPostRecv(s->vi, host_descriptor(&s->a, 0, 8), s->a.mh)) : NULL;
    if (!strcmp(row, "RecvDone")) {
        VIP_RETURN r = VipRecvDone(s->vi, &got);
        return done_word(r, got, s);
    }
    if (!strcmp(row, "RecvWait")) {
        VIP_RETURN r = VipRecvWait(s->vi, 10, &got);
        return done_word(r, got, s);
    }
    if (!strcmp(row, "memory deregistered")) {
        CHECK_OK(VipDeregisterMem(s->a.nic, s->a.mem, extra));
        return "";
    }
    if (!strcmp(row, "Disconnect") || !strcmp(row, "partner disconnects")) {
        CHECK_OK(VipDisconnect(row[0] == 'D' ? s->vi : s->partner));
        if (row[0] == 'p')
            wait_for_state(s->vi, VIP_STATE_ERROR);
        return column == POSTED ? wait_completed(s) : "";
    }
    if (column != POSTED)
        return NULL;
    if (!strcmp(row, "message arrives, memory deregistered"))
        CHECK_OK(VipDeregisterMem(s->a.nic, s->a.mem, extra));
    partner_sends(s, !strcmp(row, "message arrives that is too long") ? 9 : 8);
    return wait_completed(s);
}

int drive_descriptor(const char *row, int column, char *seen)
{
    static const char *const rows[] = {"PostRecv",
                                       "RecvDone",
                                       "RecvWait",
                                       "message arrives",
                                       "message arrives that is too long",
                                       "message arrives, memory deregistered",
                                       "memory deregistered",
                                       "Disconnect",
                                       "partner disconnects"};
    scene s;
    VIP_MEM_ATTRIBUTES attr;
    VIP_MEM_HANDLE extra;
    const char *result;
    size_t known = 0;
    while (known < sizeof(rows) / sizeof(rows[0]) && strcmp(rows[known], row))
        known++;
    if (known == sizeof(rows) / sizeof(rows[0]))
        return 0;
    /* At the unreliable level, where an error leaves the connection as it is. */
    scene_open(&s, CONNECTED, VIP_SERVICE_UNRELIABLE, 1000 * CHECK_WAIT_S);
    memset(&attr, 0, sizeof(attr));
    attr.Ptag = s.a.ptag;
    CHECK_OK(VipRegisterMem(s.a.nic, s.a.mem, 4096, &attr, &extra));
    /* Into the state of the column: posted, then completed by a message that fits (8 bytes) or does not (9). */
    if (column != FREE) {
        VIP_DESCRIPTOR *d = host_descriptor(&s.a, 0, 8);
        d->DS[0].Local.Handle = extra;
        CHECK_OK(VipPostRecv(s.vi, d, s.a.mh));
        if (column != POSTED) {
            partner_sends(&s, column == DONE ? 8 : 9);
            wait_completed(&s);
        }
    }
    result = descriptor_event(&s, row, column, extra);
    if (result)
        snprintf(seen, CELL, "%s%s-> %s", result, result[0] ? " " : "", descriptor_state(&s));
    else
        strcpy(seen, "-");
    scene_close(&s);
    return 1;
}
