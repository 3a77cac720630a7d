/*
 * machine.c - calls, connections and checks of the fuzzers' machine. machine.h describes an input, machine_memory.c has
 * the memory.
 *
 * Worlds (a NIC of each kind with its VIs and memory) are created once and used for every input. undo() restores a
 * world by the calls that a program would use. Anything that cannot be restored is a finding. Inputs choose among small
 * numbers, so that every byte has a meaning and limits are reached within few operations.
 */
#include "machine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/pool.h"
#include "link/frame_format.h"
#include "machine_inside.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/vi.h"
#include "via/work.h"

static viakit_live live_at_rest; /* objects while no input runs */
static struct world worlds[HOLLOW_KINDS];

/* ---------------------------------------------------------------- calls of the program */

/* Cuts len bytes at p into n segments: a third of what is left each, the last one takes the rest. */
static void cut(VIP_DESCRIPTOR *d, int first, int n, uint8_t *p, uint32_t len, VIP_MEM_HANDLE handle)
{
    VIP_DATA_SEGMENT *s = &d->DS[0].Local; /* those beyond two follow in memory */
    for (int i = first; i < n; i++) {
        uint32_t part = i + 1 < n ? len / 3 : len;
        s[i] = (VIP_DATA_SEGMENT){.Data.Address = p, .Handle = handle, .Length = part};
        p += part;
        len -= part;
    }
}

/* Posts the first free receive: no segments to three, of the right tag or another one, sometimes with a format error.
 * The machine records which part of its buffer may change. */
static void op_post_recv(struct machine *x)
{
    uint32_t what = u8(x), len = (u8(x) * 3) % (RECV_BYTES + 1);
    struct world *w = x->w;
    int i = 0, n = (int)(what & 3);
    while (i < N_SLOTS && x->recv[i].posted)
        i++;
    if (i == N_SLOTS)
        return;
    VIP_DESCRIPTOR *d = &w->m->recv_desc[i].d;
    memset(d, 0, sizeof *d);
    d->CS.SegCount = (uint16_t)n;
    cut(d, 0, n, w->m->recv[i].bytes, len, w->handles[what & 0x40 ? AREA_OTHER_TAG : AREA_RECV]);
    if (what & 0x80)
        d->CS.Control = 0x8000; /* a format error, in its turn */
    x->recv[i].len = n == 0 || what & 0xC0 ? 0 : len;
    x->recv[i].posted = VipPostRecv(vk_pool_handle(x->vi), d, w->handles[AREA_DESC]) == VIP_SUCCESS;
    x->recv[i].copy = *d;
}

/* The same for sends: plain, RDMA writes and reads, at targets of the input's choice. */
static void op_post_send(struct machine *x)
{
    uint32_t what = u8(x), len = (u8(x) * 9) % (SEND_BYTES + 1);
    struct world *w = x->w;
    int i = 0, n = (int)(what & 3), first = what & 4 ? 1 : 0;
    while (i < N_SLOTS && x->send[i].posted)
        i++;
    if (i == N_SLOTS)
        return;
    VIP_DESCRIPTOR *d = &w->m->send_desc[i].d;
    memset(d, 0, sizeof *d);
    if (first) {
        VIP_MEM_HANDLE handle;
        d->DS[0].Remote.Data.AddressBits = machine_aim(x, &handle);
        d->DS[0].Remote.Handle = handle;
        /* Behind the address segment. */
        n++;
    }
    d->CS.SegCount = (uint16_t)n;
    d->CS.Control = (uint16_t)((what & 4 ? what & 0x40 ? VIP_CONTROL_OP_RDMAREAD : VIP_CONTROL_OP_RDMAWRITE : 0) |
                               (what & 8 ? VIP_CONTROL_IMMEDIATE : 0) | (what & 16 ? VIP_CONTROL_QFENCE : 0));
    d->CS.Length = n == first ? 0 : len;
    d->CS.ImmediateData = what;
    /* an RDMA read fills its segments: into the buffer of a receive that is not posted, it may */
    cut(d, first, n, w->m->send, len, w->handles[what & 0x20 ? AREA_OTHER_TAG : AREA_SEND]);
    x->send[i].posted = VipPostSend(vk_pool_handle(x->vi), d, w->handles[AREA_DESC]) == VIP_SUCCESS;
    x->send[i].copy = *d;
}

/* A descriptor came back: it is one that was posted, and only what it allows has changed. */
static void came_back(struct machine *x, VIP_DESCRIPTOR *d)
{
    struct memory *m = x->w->m;
    for (int i = 0; i < N_SLOTS; i++) {
        int recv = d == &m->recv_desc[i].d;
        struct slot *s = recv ? &x->recv[i] : &x->send[i];
        if (!recv && d != &m->send_desc[i].d)
            continue;
        HOLLOW_CHECK(s->posted, "descriptor %d came back twice", i);
        HOLLOW_CHECK(d->CS.Status & VIP_STATUS_DONE, "descriptor %d came back undone, status %x", i, d->CS.Status);
        HOLLOW_CHECK(memcmp(d->DS, s->copy.DS, sizeof d->DS) == 0, "segments of descriptor %d were changed", i);
        if (recv) {
            int read = (d->CS.Status & (VIP_STATUS_ERROR_MASK | VIP_STATUS_OP_MASK)) == VIP_STATUS_OP_RECEIVE;
            HOLLOW_CHECK(!read || d->CS.Length <= s->len, "%u bytes in a receive of %u", d->CS.Length, s->len);
            memset(m->recv[i].bytes, FILL, s->len);
        }
        s->posted = 0;
        return;
    }
    HOLLOW_CHECK(0, "descriptor %p was never posted", (void *)d);
}

/* Takes back what is done; at most n of each kind. */
static int reap(struct machine *x, struct via_vi *vi, int n)
{
    int taken = 0;
    for (int recv = 0; recv < 2; recv++)
        for (int i = 0; i < n; i++) {
            VIP_DESCRIPTOR *d = NULL;
            VIP_VI_HANDLE handle = vk_pool_handle(vi);
            /* An empty queue gives no descriptor. */
            VIP_RETURN code = recv ? VipRecvDone(handle, &d) : VipSendDone(handle, &d);
            if (code == VIP_NOT_DONE || d == NULL)
                break;
            came_back(x, d);
            taken++;
        }
    return taken;
}

/* Up to 127 ms, or up to five seconds: time-outs, probes, requests that are forgotten. */
static void op_time(struct machine *x)
{
    uint32_t ms = u8(x);
    x->w->bystander->peer_active = 1; /* its peer is well */
    hollow_time_passes(&x->w->h, ms & 0x80 ? (ms & 0x7F) * 40 : ms & 0x7F);
}

/* Calls between frames: reaping, queries, disconnecting, deregistering and changing rights. The link also fills and
 * empties. */
static void op_local(struct machine *x)
{
    struct world *w = x->w;
    uint32_t what = u8(x);
    VIP_VI_HANDLE vi = vk_pool_handle(what & 0x80 ? x->other : x->vi);
    size_t len;
    switch (what & 7) {
    case 0:
        reap(x, x->vi, 2);
        break;
    case 1:
        /* So many frames, and then the link is full. */
        w->h.room = (what >> 3) & 15;
        break;
    case 2:
        w->h.room = UINT32_MAX;
        via_drive_rest(w->h.nic, 0);
        break;
    case 3:
        /* Bits of what place() and reach() answer (hollow.c). */
        w->h.can_place = (int)(what >> 3) & 15;
        break;
    case 4: {
        int which = what & 8 ? AREA_WRITE : what & 16 ? AREA_SEND : AREA_RECV;
        /* At most once per input; undo() registers it again. */
        if (!(x->reregister & 1 << which))
            VipDeregisterMem(w->h.handle, machine_area(w, which, &len), w->handles[which]);
        x->reregister |= 1 << which;
        break;
    }
    case 5:
        VipDisconnect(vi);
        break;
    case 6:
        viakit_poll(w->h.handle, NULL);
        break;
    default: {
        VIP_MEM_ATTRIBUTES a = {.Ptag = w->tag, .EnableRdmaWrite = (what >> 3) & 1, .EnableRdmaRead = (what >> 4) & 1};
        if (!(x->reregister & 1 << AREA_WRITE))
            VipSetMemAttributes(w->h.handle, w->m->granted, w->handles[AREA_WRITE], &a);
        x->reregister |= 1 << N_AREAS;
    }
    }
}

/* ---------------------------------------------------------------- connecting */

/* A VIP_NET_ADDRESS of six bytes and a discriminator of one. */
struct net_address {
    uint16_t host_len, discriminator_len;
    uint8_t bytes[8];
};

static struct net_address address_of(struct world *w, char discriminator)
{
    struct net_address a = {6, 1, {0}};
    memcpy(a.bytes, w->h.nic->limits.address, 6);
    a.bytes[6] = (uint8_t)discriminator;
    return a;
}

static void operations(struct machine *x);

/* While a call of the program waits, the input goes on: frames arrive, time passes. Not deeper than twice, for what
 * arrives may make the program call again. */
static int feed(struct hollow *h, void *context)
{
    struct machine *x = context;
    uint64_t before = h->nic->counters[VIAKIT_COUNTER_frames_received];
    if (x->depth >= 2)
        return 0;
    x->depth++;
    if (x->p < x->end && x->n_ops++ < MAX_OPS)
        u8(x) & 0x80 ? machine_op_raw(x) : machine_op_frame(x);
    x->depth--;
    return (int)(h->nic->counters[VIAKIT_COUNTER_frames_received] - before);
}

/* From here on its granted area may be written. */
static void connected(struct machine *x, const struct via_vi *vi)
{
    if (vi->state != VIP_STATE_IDLE && vi->attributes.EnableRdmaWrite)
        x->may_write = 1;
}

/* The input has no more frames, so nothing ends the wait but time. */
static int input_is_over(void *context)
{
    const struct machine *x = context;
    return x->p >= x->end || x->n_ops >= MAX_OPS;
}

/* With a secret the call waits for the proof of a client that may not send one. */
static VIP_RETURN accept_held(struct machine *x, struct via_vi *vi)
{
    viakit_set_interrupt(input_is_over, x);
    VIP_RETURN code = VipConnectAccept(x->held, vk_pool_handle(vi));
    viakit_set_interrupt(NULL, NULL);
    return code;
}

/* Requests a connection, or waits for one and accepts, rejects or keeps it, while frames of the input arrive. */
static void op_connect(struct machine *x)
{
    struct world *w = x->w;
    uint32_t what = u8(x);
    struct via_vi *vi = what & 1 ? x->other : x->vi;
    struct net_address a = address_of(w, 'f'), b = address_of(w, 'g');
    VIP_VI_ATTRIBUTES attributes;
    w->h.feed = x->depth == 0 ? feed : NULL;
    w->h.feed_context = x;
    if (what & 2)
        VipConnectRequest(vk_pool_handle(vi), what & 4 ? (VIP_NET_ADDRESS *)(void *)&b : NULL,
                          (VIP_NET_ADDRESS *)(void *)&a, 1 + (what >> 5), &attributes);
    else if (x->held == NULL && VipConnectWait(w->h.handle, (VIP_NET_ADDRESS *)(void *)&a, what >> 5, NULL, &attributes,
                                               &x->held) != VIP_SUCCESS)
        x->held = NULL;
    else if (what & 4) {
        VipConnectReject(x->held);
        x->held = NULL;
    } else if (accept_held(x, vi) != VIP_INVALID_STATE || what & 8) {
        VipConnectReject(x->held); /* no handle any more if it was accepted */
        x->held = NULL;
    }
    w->h.feed = NULL;
    connected(x, vi);
}

/* The setting up of a connection by the rules, server's side. */
struct good {
    struct via_vi *vi;
    uint32_t key;
    int lossless, n;
};

static int feed_good_request(struct hollow *h, void *context)
{
    struct good *g = context;
    uint8_t frame[128];
    struct wire_connect c = {.request = 5,
                             .key = g->key,
                             .first_psn = PEER_PSN,
                             .max_transfer = MAX_TRANSFER,
                             .reliability = g->vi->attributes.ReliabilityLevel,
                             .max_payload = CHUNK,
                             .rdma_write = 1,
                             .rdma_read = 1,
                             .lossless = (uint8_t)g->lossless,
                             .wanted_len = 1};
    struct wire_header f = {.version_kind = wire_version_kind(WIRE_REQUEST),
                            .len = sizeof c + 1,
                            .src_port = PEER_PORT,
                            .src_vi = g->vi->number == 0 ? PEER_VI : PEER_VI + 1};
    /* Once: the waiting call must find the request when it looks. */
    if (g->n++)
        return 0;
    f.src_vi = PEER_VI;
    memcpy(frame, &f, sizeof f);
    memcpy(frame + sizeof f, &c, sizeof c);
    frame[sizeof f + sizeof c] = 'f';
    machine_seal(frame, sizeof f + sizeof c + 1);
    hollow_deliver(h, frame, sizeof f + sizeof c + 1);
    return 1;
}

static void connect_well(struct world *w, struct via_vi *vi, uint32_t key, int lossless)
{
    struct good g = {vi, key, lossless, 0};
    struct net_address a = address_of(w, 'f');
    VIP_CONN_HANDLE conn;
    /* This request goes straight to the NIC, whatever brings it the frames of inputs. */
    int (*carry)(struct hollow *, const uint8_t *, size_t) = w->h.carry;
    w->h.carry = NULL;
    w->h.feed = feed_good_request;
    w->h.feed_context = &g;
    VIP_RETURN code = VipConnectWait(w->h.handle, (VIP_NET_ADDRESS *)(void *)&a, 0, NULL, NULL, &conn);
    HOLLOW_CHECK(code == VIP_SUCCESS, "wait: %s", viakit_return_name(code));
    w->h.feed = NULL;
    code = VipConnectAccept(conn, vk_pool_handle(vi));
    HOLLOW_CHECK(code == VIP_SUCCESS, "accept: %s: %s", viakit_return_name(code), viakit_last_error());
    /* As if the client had confirmed. */
    vi->confirmed = 1;
    w->h.carry = carry;
}

/* ---------------------------------------------------------------- worlds */

static struct via_vi *create_vi(struct world *w, VIP_RELIABILITY_LEVEL level, int write, VIP_CQ_HANDLE cq)
{
    VIP_VI_ATTRIBUTES a = {.ReliabilityLevel = level, .MaxTransferSize = MAX_TRANSFER, .Ptag = w->tag};
    VIP_VI_HANDLE handle;
    a.EnableRdmaWrite = write;
    a.EnableRdmaRead = write && level != VIP_SERVICE_UNRELIABLE;
    VIP_RETURN code = VipCreateVi(w->h.handle, &a, cq, cq, &handle);
    if (code == VIP_INVALID_RDMAREAD) {
        a.EnableRdmaRead = VIP_FALSE;
        code = VipCreateVi(w->h.handle, &a, cq, cq, &handle);
    }
    HOLLOW_CHECK(code == VIP_SUCCESS, "%s", viakit_last_error());
    via_reads_ready(vk_pool_find(&via_vi_pool, handle)); /* made when first needed, and then kept with the VI */
    return (struct via_vi *)vk_pool_find(&via_vi_pool, handle);
}

/* The bystander: connected, one receive posted. Its key is the kernel's random number, not the input's, for a fuzzer
 * learns what is compared. */
static void place_bystander(struct world *w)
{
    struct memory *m = w->m;
    uint32_t key = 0;
    HOLLOW_CHECK(syscall(SYS_getrandom, &key, sizeof key, 0) == sizeof key, "no random numbers");
    key |= 1;
    VIP_DESCRIPTOR *d;
    VipDisconnect(vk_pool_handle(w->bystander));
    while (VipRecvDone(vk_pool_handle(w->bystander), &d) != VIP_NOT_DONE && d) {}
    memset(m->bystander_bytes, FILL, sizeof m->bystander_bytes);
    memset(&m->bystander, 0, sizeof m->bystander);
    m->bystander.CS.SegCount = 1;
    m->bystander.DS[0].Local = (VIP_DATA_SEGMENT){
        .Data.Address = m->bystander_bytes, .Handle = w->handles[AREA_DESC], .Length = sizeof m->bystander_bytes};
    VIP_RETURN code = VipPostRecv(vk_pool_handle(w->bystander), &m->bystander, w->handles[AREA_DESC]);
    HOLLOW_CHECK(code == VIP_SUCCESS, "%s", viakit_last_error());
    connect_well(w, w->bystander, key, w->h.kind != HOLLOW_ETHERNET);
}

static void make_world(struct world *w, enum hollow_kind kind)
{
    static const VIP_RELIABILITY_LEVEL levels[3] = {VIP_SERVICE_UNRELIABLE, VIP_SERVICE_RELIABLE_DELIVERY,
                                                    VIP_SERVICE_RELIABLE_RECEPTION};
    viakit_nic_options o;
    void *p;
    memset(&o, 0, sizeof o);
    o.size = sizeof o;
    o.no_thread = 1;          /* the machine drives */
    o.first_psn = 0xFFFFFFFA; /* ours wrap, too */
    o.window = 8;
    /* Waits do not spin: one without a completion takes the next frame of the input. */
    o.spin_us = -1;
    hollow_open(&w->h, kind, &o);
    HOLLOW_CHECK(posix_memalign(&p, 4096, sizeof *w->m) == 0, "no memory");
    w->m = memset(p, FILL, sizeof *w->m);
    VipCreatePtag(w->h.handle, &w->tag);
    VipCreatePtag(w->h.handle, &w->second_tag);
    for (int i = 0; i < N_AREAS; i++)
        machine_register_area(w, i);
    VipDeregisterMem(w->h.handle, w->m->stale, w->handles[AREA_STALE]);
    HOLLOW_CHECK(VipCreateCQ(w->h.handle, 4, &w->cq) == VIP_SUCCESS, "%s", viakit_last_error());
    for (int i = 0; i < 3; i++)
        /* For each level one VI that may be written and read, and one that may not. */
        for (int write = 0; write < 2; write++)
            w->vis[i][write] = create_vi(w, levels[i], write, write && i ? w->cq : NULL);
    w->bystander = create_vi(w, VIP_SERVICE_RELIABLE_RECEPTION, 1, NULL);
    place_bystander(w);
    hollow_time_passes(&w->h, 6000); /* the request that connected it is forgotten */
}

static void make_worlds(void)
{
    hollow_set_up_begins();
    for (int kind = 0; kind < HOLLOW_KINDS; kind++)
        make_world(&worlds[kind], (enum hollow_kind)kind);
    viakit_live_objects(&live_at_rest);
    hollow_set_up_ends();
}

/* ---------------------------------------------------------------- an input */

/* Invariant of the send queue: reaped <= done <= next <= posted, and at most as many are posted as fit. */
static void check_queue(const struct via_queue *q)
{
    HOLLOW_CHECK(q->posted - q->reaped <= N_SLOTS && q->next - q->reaped <= q->posted - q->reaped &&
                     q->done - q->reaped <= q->next - q->reaped,
                 "queue: reaped %u done %u next %u posted %u", q->reaped, q->done, q->next, q->posted);
}

static void check_vi(const struct via_vi *vi)
{
    check_queue(&vi->send);
    /* of a receive queue, next means nothing */
    HOLLOW_CHECK(vi->recv.posted - vi->recv.reaped <= N_SLOTS &&
                     vi->recv.done - vi->recv.reaped <= vi->recv.posted - vi->recv.reaped,
                 "receive queue: reaped %u done %u posted %u", vi->recv.reaped, vi->recv.done, vi->recv.posted);
    /* Numbers of the sliding window, which wrap: unacknowledged, sent, highest sent, next. */
    HOLLOW_CHECK(!wire_before(vi->tx_psn, vi->una_psn) && !wire_before(vi->high_psn, vi->tx_psn) &&
                     !wire_before(vi->next_psn, vi->high_psn),
                 "numbers: una %x tx %x high %x next %x", vi->una_psn, vi->tx_psn, vi->high_psn, vi->next_psn);
    HOLLOW_CHECK(vi->flight_tail - vi->flight_head <= VIA_FLIGHT, "%u in flight", vi->flight_tail - vi->flight_head);
}

/* Low bits 0 to 8 are frames, the most frequent operation. */
static void operations(struct machine *x)
{
    while (x->p < x->end && x->n_ops++ < MAX_OPS) {
        switch (u8(x) & 15) {
        case 9:
            machine_op_raw(x);
            break;
        case 10:
        case 11:
            op_post_recv(x);
            break;
        case 12:
            op_post_send(x);
            break;
        case 13:
            op_time(x);
            break;
        case 14:
            op_local(x);
            break;
        case 15:
            op_connect(x);
            break;
        default:
            machine_op_frame(x);
        }
        check_vi(x->vi);
    }
}

static void check_nothing_left(const struct machine *x)
{
    /* The bystander's objects and the world's own are in live_at_rest. */
    const struct world *w = x->w;
    const struct via_nic *nic = w->h.nic;
    viakit_live live;
    viakit_live_objects(&live);
    HOLLOW_CHECK(memcmp(&live, &live_at_rest, sizeof live) == 0, "objects left: %u connections, %u VIs, %u regions",
                 live.connections, live.vis, live.regions);
    HOLLOW_CHECK(!nic->conns && !nic->waiters && !nic->requests && !nic->deferred, "something is in the making");
    HOLLOW_CHECK(!nic->stall_list && !nic->ack_list, "a VI that is idle has something to send");
    for (int i = 0; i < N_SLOTS; i++)
        HOLLOW_CHECK(!x->recv[i].posted && !x->send[i].posted, "descriptor %d never came back", i);
}

/* Or takes it away. The same for all VIs; the VI is idle. */
static void give_secret(struct via_vi *vi, uint32_t wanted)
{
    static const uint8_t secret[VIAKIT_SECRET_MOST] = "the secret of fuzzed VIs";
    VIP_RETURN code = viakit_set_vi_secret(vk_pool_handle(vi), wanted ? secret : NULL, wanted ? VIAKIT_SECRET_MOST : 0);
    HOLLOW_CHECK(code == VIP_SUCCESS, "secret: %s", viakit_last_error());
}

/* The input is over: a program would close its connections, wait for its descriptors and look at its memory. */
static void undo(struct machine *x)
{
    struct world *w = x->w;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    w->h.feed = NULL;
    w->h.room = UINT32_MAX;
    if (x->held)
        VipConnectReject(x->held);
    /* Both VIs of the input end IDLE, and everything that was posted is taken. */
    VipDisconnect(vk_pool_handle(x->vi));
    VipDisconnect(vk_pool_handle(x->other));
    while (reap(x, x->vi, N_SLOTS) || reap(x, x->other, N_SLOTS)) {}
    while (VipCQDone(w->cq, &vi, &recv) == VIP_SUCCESS) {}
    w->bystander->peer_active = 1;
    hollow_time_passes(&w->h, 6000); /* answered requests are forgotten */
    hollow_time_passes(&w->h, 0);
    for (int i = 0; i < N_AREAS; i++)
        if (x->reregister & 1 << i)
            machine_register_area(w, i);
    if (x->reregister & 1 << N_AREAS) {
        VIP_MEM_ATTRIBUTES a = {.Ptag = w->tag, .EnableRdmaWrite = VIP_TRUE};
        VipSetMemAttributes(w->h.handle, w->m->granted, w->handles[AREA_WRITE], &a);
    }
    give_secret(x->vi, 0);
    give_secret(x->other, 0);
    machine_check_memory(x);
    if (x->bystander_hit) {
        place_bystander(w);
        hollow_time_passes(&w->h, 6000);
    }
    /* Connected, its receive still posted, and no frame of its sequence taken. */
    HOLLOW_CHECK(w->bystander->state == VIP_STATE_CONNECTED && w->bystander->recv.done != w->bystander->recv.posted &&
                     w->bystander->expected_psn == PEER_PSN,
                 "the bystander noticed: state %d", (int)w->bystander->state);
    check_nothing_left(x);
}

void machine_carry(int (*carry)(struct hollow *h, const uint8_t *frame, size_t len))
{
    if (worlds[0].m == NULL)
        make_worlds();
    worlds[HOLLOW_ETHERNET].h.carry = carry;
}

void machine_run(const uint8_t *data, size_t len, int begin_connected)
{
    struct machine x = {.p = data, .end = data + len};
    /* The scene: kind of link, level, which of the level's two VIs; then how many receives and sends are there before
     * the first frame. */
    uint32_t scene = u8(&x), recvs = u8(&x), sends = u8(&x);
    struct world *w = x.w = &worlds[(scene & 3) % HOLLOW_KINDS];
    if (w->m == NULL)
        make_worlds();
    hollow_input_begins();
    w->h.nic->idle = 1;
    w->h.can_place = 0;
    x.vi = w->vis[(scene >> 2 & 3) % 3][scene >> 4 & 1];
    x.other = w->vis[(scene >> 2 & 3) % 3][!(scene >> 4 & 1)];
    if (!begin_connected) {
        give_secret(x.vi, scene & 0x40);
        give_secret(x.other, scene & 0x80);
    }
    if (begin_connected) {
        connect_well(w, x.vi, PEER_KEY, w->h.kind != HOLLOW_ETHERNET && !(scene & 0x20));
        connected(&x, x.vi);
        for (uint32_t i = 0; i < (recvs & 7); i++) {
            const uint8_t post[2] = {(uint8_t)(1 + (recvs >> 3) % 3), (uint8_t)(10 + 20 * i)};
            struct machine y = x;
            /* By the operation's own code: the two or five bytes that it would take from the input are given to it
             * instead. */
            x.p = post, x.end = post + 2;
            op_post_recv(&x);
            x.p = y.p, x.end = y.end;
        }
        for (uint32_t i = 0; i < (sends & 7); i++) {
            const uint8_t post[5] = {(uint8_t)(1 + (sends >> 3)), (uint8_t)(1 + 40 * i)};
            struct machine y = x;
            x.p = post, x.end = post + 5;
            op_post_send(&x);
            x.p = y.p, x.end = y.end;
        }
    }
    operations(&x);
    undo(&x);
    hollow_input_ends();
}
