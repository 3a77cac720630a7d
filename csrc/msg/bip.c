/*
 * The `bip` channel: the message engine on BIP, as MPI-BIP was (Prylli and Tourancheau 1997, section 3:
 * "MPI-BIP is doing a credit-based flow control taking into account the sizes of the BIP queues").
 *
 *     packets      BIP's short messages: into the ring at the receiver, which has a credit for each place; without one
 *                  the packet waits here, so that nothing is ever dropped for want of room. BIP tells of each as it
 *                  arrives, where it lies in the ring.
 *     rendezvous   RTS and CTS are packets. CTS names a tag that is the receive's own: the receiver has posted BIP's
 *                  receive under it, and the sender begins BIP's send to it, which goes through BIP's pipeline straight
 *                  into the buffer. BIP tells both when it is over: there is no FIN.
 *     R3           what BIP cannot take (short, or more buffers registered at a time than it keeps) goes in segments as
 *                  packets.
 *
 *     sender                                      receiver
 *     RTS ----------- short ------------------>   matches; holds the buffer; BIP's receive with tag t
 *         <---------- short ------------- CTS t
 *     BIP's send to t == ASK, GO, packets ====>   received
 *
 * BIP has one send outstanding; the others wait in world->moving, and put() begins them in
 * turn. Packets do not wait for it. What its send is doing:
 *
 *     busy 0                     none
 *     busy 1, over 0             BIP is moving the data of request `sending`
 *     busy 1, over 1 or -1       ended (sent() was told); the request's next put() returns that, and busy is 0 again
 *
 * Invariant: `sending` is an id and not a pointer, for its request may end in error at any
 * time; whoever finds it ended sets busy back. BIP calls back from within its progress, with
 * the world's lock held, as the engine called it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bip/job.h"
#include "channel.h"
#include "viakit.h"

#define TAG_PACKETS (-1) /* receives' tags are their requests' places, from 0 on */
#define CLOSE_MS 1000
#define NO_RECEIVE UINT32_MAX
#define LEAST_SLOTS 8

/* The channel's state. `busy` and `over` follow BIP's one send: put() begins it, sent() notes its end, put() reports
 * it. */
struct bc_world {
    msg_world *world;
    bip_job *job;
    uint64_t sending;     /* the request whose data BIP is moving; 0: none (no request for one: see put) */
    int busy, over;       /* BIP has a send of ours; it has ended: 1 well, -1 not */
    uint32_t n_unsettled; /* looked at without the lock */
    uint32_t turn;
    int n_events; /* of the present progress call */
};

struct bc_card {
    uint8_t card[BIP_CARD_LEN];
    int32_t failed;
    struct msg_room room;
};

static inline struct bc_world *bc_of(msg_world *w)
{
    return w->at;
}

static inline bip_job *job_of(struct msg_peer *peer)
{
    return bc_of(peer->world)->job;
}

/* ---------------------------------------------------------------- BIP tells */

/* Packets of this channel all come under one tag; a packet is read where it lies, in the ring. Its place is
 * free again when this returns, so what the engine wants to keep it copies. */
static void short_arrived(void *context, int node, int tag, const void *data, size_t len)
{
    struct bc_world *b = context;
    struct msg_peer *peer = &b->world->peers[node];
    const struct msg_packet *p = data;
    if (vk_unlikely(len < sizeof p->head || tag != TAG_PACKETS)) {
        msg_peer_failed(peer, "a packet was too short, or none");
        return;
    }
    size_t head = msg_packet_len(p);
    if (vk_unlikely(len < head)) {
        msg_peer_failed(peer, "a packet was too short");
        return;
    }
    b->n_events++;
    msg_arrived(peer, p, (const char *)data + head, len - head);
}

/* BIP's send has ended. The engine hears of it when it asks put() again. A request that has
 * ended meanwhile (its rank failed) will not be asked about. */
static void sent(void *context, uint64_t cookie, int code)
{
    struct bc_world *b = context;
    b->n_events++;
    b->over = code == 0 ? 1 : -1;
    if (msg_request_find(b->world, cookie) == NULL)
        b->busy = b->over = 0;
}

/* BIP's receive has ended, and is gone: NO_RECEIVE tells drop() that there is nothing to cancel. */
static void received(void *context, uint64_t cookie, int code)
{
    struct bc_world *b = context;
    msg_request *r = msg_request_find(b->world, cookie);
    b->n_events++;
    if (r == NULL || r->kind != MSG_REQ_RECV)
        return;
    r->handle = NO_RECEIVE;
    if (code == 0)
        msg_put_arrived(r);
    else
        msg_peer_failed(&b->world->peers[r->peer], bip_code_text(code));
}

static void lost(void *context, int node)
{
    struct bc_world *b = context;
    b->n_events++;
    msg_peer_failed(&b->world->peers[node], "the connection was lost");
}

/* ---------------------------------------------------------------- packets */

static int push_short(struct msg_peer *peer, struct msg_head head, const void *data, size_t len)
{
    struct bc_world *b = bc_of(peer->world);
    int taken = bip_send_parts(b->job, peer->rank, TAG_PACKETS, &head, sizeof head, data, len);
    if (vk_unlikely(taken == 0))
        MSG_COUNT(peer->world, credit_stalls, 1);
    MSG_COUNT(peer->world, copies, taken == 1);
    MSG_COUNT(peer->world, bytes_copied, taken == 1 ? len : 0);
    return taken;
}

/* A packet with n bytes of the out's data, from `sent` on, as one short message: 1, 0 no
 * credit or buffer, or the rank is gone. */
static int push_one(struct msg_peer *peer, const struct msg_out *out, size_t n)
{
    int taken = bip_send_parts(job_of(peer), peer->rank, TAG_PACKETS, &out->packet, msg_packet_len(&out->packet),
                               n ? out->data + out->sent : NULL, n);
    if (taken == 0)
        MSG_COUNT(peer->world, credit_stalls, 1);
    MSG_COUNT(peer->world, copies, taken == 1 && n);
    MSG_COUNT(peer->world, bytes_copied, taken == 1 ? n : 0);
    return taken;
}

static int push(struct msg_peer *peer, struct msg_out *out)
{
    if ((out->packet.head.kind & MSG_PKT_MASK) != MSG_PKT_DATA)
        return push_one(peer, out, out->len);
    /* DATA in segments of a short message's length, multiples of 8 so that copies stay aligned. */
    size_t most = (bip_small(job_of(peer), peer->rank) - sizeof out->packet) & ~(size_t)7;
    while (out->sent < out->len) {
        size_t n = out->len - out->sent < most ? out->len - out->sent : most;
        out->packet.rest.address = out->sent;
        int taken = push_one(peer, out, n);
        if (taken != 1)
            return taken;
        out->sent += n;
    }
    return 1;
}

/* `enough` cannot be honoured: BIP tells of all that has come before it returns. */
static int progress(msg_world *w, const uint8_t *enough)
{
    struct bc_world *b = bc_of(w);
    (void)enough;
    b->n_events = 0;
    bip_progress(b->job);
    /* Relaxed, both here and where it is read without the lock: only how long a sleep may be hangs on it. */
    vk_store_relaxed(&b->n_unsettled, (uint32_t)bip_unsettled(b->job));
    return b->n_events;
}

/* With two NICs none can be slept on for long, and they are slept on in turn; and what only waits for an
 * acknowledgement does not wake. Without the lock: bip_doze touches nothing of the job. */
static void channel_sleep(msg_world *w, uint64_t ns, struct msg_token *token)
{
    struct bc_world *b = bc_of(w);
    uint64_t ms = (ns + VK_MS - 1) / VK_MS;
    int nic = bip_has_nic(b->job, 0) ? 0 : 1;
    if (nic == 0 && bip_has_nic(b->job, 1)) {
        /* Several threads may be about to sleep at once; each takes the next turn. */
        nic = (int)(vk_add(&b->turn, 1) & 1);
        ms = 1;
    }
    if (vk_load_relaxed(&b->n_unsettled))
        ms = 1;
    token->what = bip_doze(b->job, nic, (int)ms);
}

static void wake(msg_world *w, struct msg_token *token)
{
    bip_woken(bc_of(w)->job, token->what);
}

static const char *route(struct msg_peer *peer)
{
    struct bc_world *b = bc_of(peer->world);
    const char *link = b && b->job ? bip_link(b->job, peer->rank) : NULL;
    return link ? link : "bip";
}

/* ---------------------------------------------------------------- long messages */

/* A receive is told its tag (its address), under which BIP's receive is posted from here on; a
 * send only keeps its buffer registered until its turn comes. BIP has no reading by the other
 * side (remote 2). The tag is the request's place in the pool, the lower half of its id: no two
 * requests alive share one. */
static int hold(struct msg_peer *peer, msg_request *r, size_t len, int remote)
{
    bip_job *job = job_of(peer);
    if (len <= bip_small(job, peer->rank) || remote == 2)
        return MSG_ERR_NOT_SUPPORTED;
    r->registered = bip_reserve(job, peer->rank, r->buf, len);
    if (r->registered == NULL)
        return MSG_ERR_NO_MEMORY;
    if (!remote)
        return 0;
    int tag = (int)(uint32_t)(r->id & INT32_MAX), id = bip_irecv_noted(job, tag, r->buf, len, r->id);
    if (id < 0) {
        bip_release(r->registered);
        r->registered = NULL;
        return MSG_ERR_NO_MEMORY;
    }
    r->address = (uint64_t)tag;
    r->handle = (uint32_t)id;
    return 0;
}

/* The hold ends: BIP's receive is withdrawn if nothing comes in for it yet, and the
 * registration may be given up. */
static void drop(struct msg_peer *peer, msg_request *r)
{
    if (r->kind == MSG_REQ_RECV && r->handle != NO_RECEIVE)
        bip_rcancel_id(job_of(peer), (int)r->handle);
    bip_release(r->registered);
}

/* Asked again and again until it says that all is done: 1. The whole message is one piece (world.c: by_bip),
 * for BIP's pipeline cuts it. 0: another send is BIP's one at present, or this one is not over. */
static int put(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle)
{
    struct bc_world *b = bc_of(peer->world);
    (void)handle;
    if (b->busy && b->over && msg_request_find(b->world, b->sending) == NULL)
        b->busy = b->over = 0; /* it ended with its rank after sent(), and nobody will ask about it */
    if (b->busy && b->sending != r->id)
        return 0;
    if (!b->busy) {
        b->busy = 1;
        b->over = 0;
        b->sending = r->id;
        int id = bip_isend_noted(b->job, peer->rank, (int)address, (char *)r->buf + offset, len, r->id);
        if (id < 0) {
            b->busy = 0;
            return id == BIP_ERR_BUSY || id == BIP_ERR_RESOURCE ? 0 : -1;
        }
    }
    if (b->over == 0)
        return 0;
    b->busy = 0;
    if (b->over < 0)
        return -1;
    msg_moved(r, len, 0);
    return 1;
}

/* ---------------------------------------------------------------- memory */

/* Any NIC of the job's will do for memory that ranks of this host can map. */
static void *any_nic(msg_world *w)
{
    void *nic = NULL;
    for (int i = 0; nic == NULL && i < w->n_ranks; i++)
        nic = bip_nic(bc_of(w)->job, i);
    return nic;
}

static int channel_alloc(msg_world *w, size_t len, void **memory)
{
    if (viakit_alloc(any_nic(w), len ? len : 1, memory) != VIP_SUCCESS)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "%zu bytes of shared memory: %s", len, viakit_last_error());
    return MSG_SUCCESS;
}

static void channel_forget(msg_world *w, const void *buf, size_t len)
{
    bip_forget(bc_of(w)->job, buf, len);
}

/* Its registrations must go first; how long it is only the arena knows, so all that begins behind its first byte
 * does. */
static int channel_free(msg_world *w, void *memory)
{
    void *nic = any_nic(w);
    channel_forget(w, memory, SIZE_MAX - (uintptr_t)memory);
    if (viakit_free(nic, memory) != VIP_SUCCESS)
        return msg_fail(w, MSG_ERR_ARG, "%p cannot be freed: %s", memory, viakit_last_error());
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- opening and closing */

static void close_job(msg_world *w)
{
    struct bc_world *b = w->at;
    if (b == NULL)
        return;
    if (b->job)
        bip_close(b->job, CLOSE_MS);
    b->job = NULL;
    free(b);
    w->at = NULL;
}

/* The table that `viakit calibrate --what bip` has kept for the link, or what is built in. */
static void calibrated(const char *link, bip_table *table)
{
    char path[512];
    if (bip_table_path(link, path, sizeof path) != 0 || bip_table_read(path, table) != 0)
        bip_table_default(link, table);
}

/* The policy's words in BIP's. The longest short message is the longest packet: eager limit and head, or, where the
 * policy leaves it open, as BIP's tables have it for each link. Places in the ring are cut so that all of them fit
 * pool_bytes, reckoned with the longer limit of both links, but not below LEAST_SLOTS. */
static void choose(msg_world *w, const msg_options *o, bip_options *options)
{
    const msg_policy *p = &w->policy;
    bip_table local, network;
    calibrated("shm", &local);
    network = local;
    if (w->n_local < w->n_ranks)
        calibrated(o->network_device && strncmp(o->network_device, "udp", 3) == 0 ? "udp" : "eth", &network);
    uint64_t small = local.small > network.small ? local.small : network.small;
    if (p->eager_limit >= 0) {
        small = (uint64_t)p->eager_limit + sizeof(struct msg_packet);
        options->small = small = small < 65536 ? small : 65536;
    }
    uint64_t n = (uint64_t)p->pool_bytes / ((uint64_t)w->n_ranks * small);
    n = n < (uint64_t)p->credits ? n : (uint64_t)p->credits;
    options->n_slots = (uint32_t)(n < LEAST_SLOTS ? LEAST_SLOTS : n > 1000 ? 1000 : n);
}

static int interrupted(void *context)
{
    msg_world *w = context;
    return w->interrupt && w->interrupt(w->interrupt_context);
}

static int start(msg_world *w, const msg_options *o)
{
    struct bc_world *b = w->at;
    char host[32], name[64], error[BIP_ERROR_LEN] = "";
    const bip_layer layer = {short_arrived, sent, received, lost, b};
    bip_options options = {.size = sizeof options,
                           .rank = w->rank,
                           .n_ranks = w->n_ranks,
                           .job = w->job,
                           .host = host,
                           .local_device = w->n_local > 1 ? name : "",
                           .network_device = w->n_local < w->n_ranks ? o->network_device : NULL,
                           .takeover_us = msg_takeover_us(w),
                           .interrupt = interrupted,
                           .interrupt_context = w,
                           .layer = &layer};
    snprintf(host, sizeof host, "%016llx", (unsigned long long)w->peers[w->rank].host);
    snprintf(name, sizeof name, "%s%.16s", o->local_device ? o->local_device : "shm:msg-",
             o->local_device ? "" : w->job);
    if (w->n_local < w->n_ranks && o->network_device == NULL)
        return msg_fail(w, MSG_ERR_CHANNEL,
                        "ranks are on several hosts: a network device is needed, such as eth:eth0 or udp:ADDRESS");
    choose(w, o, &options);
    if (bip_open(&options, &b->job, error) != 0) {
        b->job = NULL;
        return msg_fail(w, MSG_ERR_CHANNEL, "BIP: %s", error);
    }
    return MSG_SUCCESS;
}

/* With everybody's card: connects, and reads from BIP what a packet may hold, to each rank. */
static int meet(msg_world *w, const msg_options *o, const struct bc_card *cards)
{
    struct bc_world *b = w->at;
    uint8_t *plain = malloc((size_t)w->n_ranks * BIP_CARD_LEN);
    if (plain == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    for (int i = 0; i < w->n_ranks; i++)
        memcpy(plain + (size_t)i * BIP_CARD_LEN, cards[i].card, BIP_CARD_LEN);
    int code = bip_connect(b->job, plain, o->open_timeout_ms > 0 ? (int)o->open_timeout_ms : 60000);
    free(plain);
    if (code)
        return msg_fail(w, code == BIP_ERR_INTERRUPTED ? MSG_INTERRUPTED : MSG_ERR_CHANNEL, "BIP: %s",
                        bip_error(b->job));
    for (int i = 0; i < w->n_ranks; i++) {
        if (i == w->rank)
            continue;
        size_t small = bip_small(b->job, i);
        w->peers[i].at = b;
        w->peers[i].eager_limit = small - sizeof(struct msg_packet);
        if (w->peers[i].host == w->peers[w->rank].host) /* what was decided can be read in the policy */
            w->policy.eager_limit_local = (int64_t)w->peers[i].eager_limit;
        else
            w->policy.eager_limit = (int64_t)w->peers[i].eager_limit;
    }
    if (w->policy.eager_limit < 0)
        w->policy.eager_limit = w->policy.eager_limit_local;
    return MSG_SUCCESS;
}

/* Every rank takes part in the exchange whether it could start or not, so that all of them learn of it. */
static int open_job(msg_world *w, const msg_options *o)
{
    struct bc_card *cards = calloc((size_t)w->n_ranks, sizeof *cards), mine = {.failed = 0};
    struct bc_world *b = calloc(1, sizeof *b);
    w->at = b;
    int code = MSG_ERR_NO_MEMORY;
    if (b && cards) {
        b->world = w;
        code = start(w, o);
    } else
        msg_fail(w, code, "no memory");
    mine.failed = code != MSG_SUCCESS;
    if (code == MSG_SUCCESS)
        bip_card(b->job, mine.card);
    mine.room = msg_room_of(code == MSG_SUCCESS ? bip_bytes_to_map(b->job) : 0);
    int gathered = cards ? msg_allgather(w, o, &mine, sizeof mine, cards) : MSG_ERR_NO_MEMORY;
    for (int i = 0; code == MSG_SUCCESS && gathered == MSG_SUCCESS && i < w->n_ranks; i++)
        if (cards[i].failed)
            code = msg_fail(w, MSG_ERR_CHANNEL, "rank %d could not open its NIC", i);
    code = code ? code : gathered;
    if (code == MSG_SUCCESS)
        code = msg_check_room(w, o, &cards->room, sizeof *cards);
    if (code == MSG_SUCCESS)
        code = meet(w, o, cards);
    free(cards);
    if (code)
        close_job(w);
    return code;
}

static void attend(msg_world *w)
{
    bip_attend(((struct bc_world *)w->at)->job);
}

const struct msg_channel msg_channel_bip = {
    .name = "bip",
    .open = open_job,
    .close = close_job,
    .push = push,
    .push_short = push_short,
    .progress = progress,
    .sleep = channel_sleep,
    .wake = wake,
    .attend = attend,
    .route = route,
    .hold = hold,
    .drop = drop,
    .put = put,
    .tells_receiver = 1,
    .alloc = channel_alloc,
    .free = channel_free,
    .forget = channel_forget,
};
