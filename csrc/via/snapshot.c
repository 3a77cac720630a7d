/*
 * Snapshots: what a NIC and everything on it is doing at this moment.
 *
 *   take   memory is allocated for as much as there was a moment ago, the NIC is entered, plain words are copied, the
 *          NIC is left. Should there be more by then, once more with more memory.
 *   text   snapshot_text.c, afterwards and without the NIC.
 *
 * The NIC is entered as its own thread enters it: a program's thread that uses the NIC keeps its free way in
 * (own.h), and nothing is driven, completed or counted. Descriptors are not looked into: they are the program's,
 * which may have unmapped those that are done; what the NIC noted when they were posted is told instead.
 */
#include <stdlib.h>
#include <string.h>

#include "conn.h"
#include "snapshot.h"

#define SNAP_MAX_CONNS 256

/* ---------------------------------------------------------------- copying, as owner */

/* The oldest descriptors of a queue, as the NIC noted them; how many there are in all stands beside. */
static void copy_queue(const struct via_queue *q, struct snap_queue *to)
{
    to->cq = q->cq ? vk_pool_handle(q->cq) : NULL;
    to->n_done = q->done - q->reaped;
    to->n_posted = q->posted - q->done;
    to->n_listed = 0;
    for (uint32_t i = q->reaped; i != q->posted && to->n_listed < SNAP_DESCRIPTORS; i++) {
        const struct via_work *w = &q->work[i & (VIA_MAX_QUEUE - 1)];
        to->work[to->n_listed++] = (struct snap_work){.descriptor = w->descriptor,
                                                      .len = q->is_recv ? w->room : w->len,
                                                      .error = w->error,
                                                      .control = w->control,
                                                      .seg_count = w->seg_count,
                                                      .done = wire_before(i, q->done),
                                                      .started = w->started,
                                                      .sent = w->sent};
    }
}

/* What the program and the peer see of it, and how far the two directions are. */
static void copy_vi(const struct via_vi *vi, struct snap_vi *to)
{
    to->handle = vk_pool_handle(vi);
    to->state = (int)vi->state;
    to->attributes = vi->attributes;
    to->number = vi->number;
    to->ptag = vi->ptag;
    copy_queue(&vi->send, &to->send);
    copy_queue(&vi->recv, &to->recv);
    /* The peer fields are kept after the end of a connection, and mean nothing then. */
    to->has_peer = vi->peer != NULL && (vi->state == VIP_STATE_CONNECTED || vi->state == VIP_STATE_ERROR);
    to->confirmed = vi->confirmed;
    to->lossless = vi->lossless;
    memcpy(to->peer_address, vi->peer_address, sizeof to->peer_address);
    to->peer_port = vi->peer_port;
    to->peer_vi = vi->peer_vi;
    to->chunk = vi->chunk;
    to->next_psn = vi->next_psn;
    to->una_psn = vi->una_psn;
    to->expected_psn = vi->expected_psn;
    to->acked_psn = vi->acked_psn;
    to->window = vi->window;
    to->n_in_flight = vi->flight_tail - vi->flight_head;
    to->retries = vi->retries;
    to->rto = vi->rto;
    to->srtt = vi->rtt.smoothed;
    to->rttvar = vi->rtt.variation;
    to->n_reads = via_reads_open(vi);
    memcpy(to->counters, vi->counters, sizeof to->counters);
}

/* Room for one more entry, or a place where it does no harm: there may be more than are listed, and all are counted. */
static struct snap_conn *add_conn(struct snapshot *s, const char *kind, struct via_vi *vi)
{
    static __thread struct snap_conn nowhere; /* counted only: nobody reads it */
    struct snap_conn *c = s->n_conns < s->room_conns ? &s->conns[s->n_conns] : &nowhere;
    s->n_conns++;
    memset(c, 0, sizeof *c);
    c->kind = kind;
    c->vi = vi ? vk_pool_handle(vi) : NULL;
    return c;
}

/* port 0: any NIC of that station. */
static void set_address(struct snap_conn *c, const uint8_t address[6], uint16_t port)
{
    c->has_address = 1;
    memcpy(c->address, address, sizeof c->address);
    c->port = port;
}

/* The program's bytes, which need not be text. */
static void set_discriminator(struct snap_conn *c, const void *bytes, size_t len)
{
    c->len = (uint32_t)(len < WIRE_MAX_DISCRIMINATOR ? len : WIRE_MAX_DISCRIMINATOR);
    memcpy(c->discriminator, bytes, c->len);
}

/* A REQUEST of ours: whom it asks for what. The discriminator stands behind the connection block. */
static void copy_request(struct snapshot *s, const char *kind, struct via_vi *vi, const uint8_t address[6],
                         const struct link_frame *f)
{
    struct snap_conn *c = add_conn(s, kind, vi);
    set_address(c, address, 0);
    set_discriminator(c, f->block.bytes + sizeof f->block.connect, f->block.connect.wanted_len);
}

/* All that is neither idle nor connected: who waits, who asks, who was asked. */
static void copy_conns(struct via_nic *nic, struct snapshot *s)
{
    static const char *const names[] = {
        [VIA_CONN_OFFERED] = "offered",
        [VIA_CONN_ACCEPTED] = "accepted",
        [VIA_CONN_REJECTED] = "rejected",
        [VIA_CONN_CANCELLED] = "withdrawn",
    };
    s->n_conns = 0;
    for (struct via_waiter *w = nic->waiters; w; w = w->next)
        set_discriminator(add_conn(s, "waiting", NULL), w->discriminator, w->len);
    for (struct via_request *r = nic->requests; r; r = r->next)
        copy_request(s, r->offered ? "being answered" : "requesting", r->vi, r->address, &r->frame);
    for (struct via_peering *p = nic->peerings; p;) {
        struct via_vi *vi;
        const uint8_t *address;
        const struct link_frame *f;
        p = conn_peer_look(p, &vi, &address, &f);
        copy_request(s, "peer request", vi, address, f);
    }
    for (const struct via_conn *c = nic->conns; c; c = c->next) {
        struct snap_conn *to = add_conn(s, c->held ? "to be answered" : names[c->state], c->accepted);
        set_address(to, c->address, c->port);
        set_discriminator(to, c->own_discriminator, c->remote.own_len);
    }
}

/* Everything; n_* say how much there was, even beyond the room. */
static void copy_nic(struct via_nic *nic, struct snapshot *s)
{
    via_nic_info(nic, &s->info);
    s->handle = vk_pool_handle(nic);
    s->pid = nic->pid;
    s->time_ns = vk_now();
    s->n_waiting = nic->n_waiting;
    s->sleeper = (int)nic->sleeper;
    s->n_events = nic->events_tail - nic->events_head;
    /* As viakit_nic_counters adds them up; the VIs' shares follow with the VIs. */
    memcpy(s->counters, nic->counters, sizeof s->counters);
    s->counters[VIAKIT_COUNTER_polls] = nic->polls;
    s->counters[VIAKIT_COUNTER_lock_waits] = nic->own.waits;
    s->n_vis = s->n_cqs = s->n_regions = s->n_ptags = 0;
    for (const struct via_vi *vi = nic->vis; vi; vi = vi->next, s->n_vis++) {
        via_add_counters(s->counters, vi);
        if (s->n_vis < s->room_vis)
            copy_vi(vi, &s->vis[s->n_vis]);
    }
    for (const struct via_cq *cq = nic->cqs; cq; cq = cq->next, s->n_cqs++)
        if (s->n_cqs < s->room_cqs)
            s->cqs[s->n_cqs] = (struct snap_cq){vk_pool_handle(cq), cq->capacity, cq->tail - cq->head, cq->n_queues};
    /* From index 1 on, up to the highest that was ever used: holes are free entries. */
    for (uint32_t i = 1; i < nic->region_touched; i++) {
        const struct via_region *r = &nic->regions[i];
        if (r->handle && s->n_regions++ < s->room_regions)
            s->regions[s->n_regions - 1] =
                (struct snap_region){r->address, r->len,
                                     /* peers announce themselves in the table that they can see, not in ours */
                                     r->handle, r->ptag, r->rights,
                                     nic->published ? vk_load_relaxed(&nic->published[i].users) : 0, r->pinned};
    }
    for (uint32_t i = 1; i < VIA_MAX_PTAGS && s->n_ptags < nic->n_ptags; i++)
        if (nic->ptags[i] && s->n_ptags++ < s->room_ptags)
            s->ptags[s->n_ptags - 1] = (struct snap_ptag){i, nic->ptags[i]->n_users};
    copy_conns(nic, s);
}

/* ---------------------------------------------------------------- taking */

/* NULL is allowed. */
void via_snapshot_free(struct snapshot *s)
{
    if (s) {
        free(s->vis);
        free(s->cqs);
        free(s->regions);
        free(s->ptags);
        free(s->conns);
        free(s);
    }
}

/* Makes the room of each list at least `n`, with some to spare. 0 if memory is exhausted. */
static int make_room(void **list, uint32_t *room, uint32_t n, size_t size)
{
    if (n <= *room && *list)
        return 1;
    free(*list);
    *room = n + n / 8 + 4;
    *list = malloc(*room * size);
    if (*list == NULL) {
        *room = 0;
        return 0;
    }
    memset(*list, 0, *room * size); /* so that the kernel brings the pages now and not while the NIC waits */
    return 1;
}

/* Of connections no more than SNAP_MAX_CONNS: strangers can make any number of them. */
static int make_rooms(struct snapshot *s)
{
    uint32_t conns = s->n_conns < SNAP_MAX_CONNS ? s->n_conns : SNAP_MAX_CONNS;
    return make_room((void **)&s->vis, &s->room_vis, s->n_vis, sizeof *s->vis) &&
           make_room((void **)&s->cqs, &s->room_cqs, s->n_cqs, sizeof *s->cqs) &&
           make_room((void **)&s->regions, &s->room_regions, s->n_regions, sizeof *s->regions) &&
           make_room((void **)&s->ptags, &s->room_ptags, s->n_ptags, sizeof *s->ptags) &&
           make_room((void **)&s->conns, &s->room_conns, conns, sizeof *s->conns);
}

/* Connections in the making may be more than the room: of these only so many are listed. */
static int fits(const struct snapshot *s)
{
    return s->n_vis <= s->room_vis && s->n_cqs <= s->room_cqs && s->n_regions <= s->room_regions &&
           s->n_ptags <= s->room_ptags;
}

/* First with room for nothing, which counts; then with as much as was counted. It ends when nothing was added in
 * between. NULL: *code says why. */
struct snapshot *via_snapshot_take(VIP_NIC_HANDLE handle, VIP_RETURN *code)
{
    struct snapshot *s = calloc(1, sizeof *s);
    int complete = 0;
    while (!complete) {
        if (s == NULL || !make_rooms(s)) {
            *code = via_fail(VIP_ERROR_RESOURCE, "viakit_snapshot: memory is exhausted");
            break;
        }
        struct via_nic *nic = via_nic_enter_quietly(handle, code);
        if (nic == NULL)
            break;
        copy_nic(nic, s);
        via_own_leave_slow(&nic->own);
        complete = fits(s);
    }
    if (complete) {
        if (s->n_conns > s->room_conns)
            s->n_conns = s->room_conns;
        return s;
    }
    via_snapshot_free(s);
    return NULL;
}

/* *len is the text's length, also where it did not fit: then VIP_ERROR_RESOURCE, and the buffer has the beginning. */
VIP_RETURN viakit_snapshot(VIP_NIC_HANDLE handle, char *text, size_t size, size_t *len)
{
    VIP_RETURN code;
    if (len == NULL || (text == NULL && size))
        return via_fail(VIP_INVALID_PARAMETER, "viakit_snapshot: no place for the text or its length (NULL)");
    struct snapshot *s = via_snapshot_take(handle, &code);
    if (s == NULL)
        return code;
    *len = via_snapshot_text(s, text, size);
    via_snapshot_free(s);
    if (*len >= size)
        return via_fail(VIP_ERROR_RESOURCE, "viakit_snapshot: the text has %zu bytes and the buffer %zu", *len + 1,
                        size);
    return VIP_SUCCESS;
}
