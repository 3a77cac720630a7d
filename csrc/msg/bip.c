/*
 * The `bip` channel: the message engine on BIP, like MPI-BIP (Prylli and Tourancheau 1997, section 3: "MPI-BIP is doing
 * a credit-based flow control taking into account the sizes of the BIP queues").
 *
 * - packets: BIP's short messages. They go into the ring at the receiver, with a credit for each place. Without a
 *   credit the packet waits here, so no packet is dropped for lack of room. BIP reports each packet on arrival, in
 *   place in the ring.
 * - rendezvous: RTS and CTS are packets. CTS carries a tag that is unique to the receive. The receiver has posted BIP's
 *   receive with this tag, and the sender starts BIP's send to it. The data goes through BIP's pipeline straight into
 *   the buffer. BIP reports completion to both sides, so there is no FIN.
 * - R3: messages that BIP cannot transfer so (short, or with too many registered buffers) go in segments as packets.
 *
 *     sender                                      receiver
 *     RTS ----------- short ------------------>   matches, holds the buffer, BIP's receive with tag t
 *         <---------- short ------------- CTS t
 *     BIP's send to t == REQUEST, GO, packets =>  received
 *
 * BIP has one outstanding send. The others wait in world->moving, and put() starts them in turn. Packets do not wait
 * for it. State of BIP's send:
 *
 *     busy 0                     none
 *     busy 1, over 0             BIP is transferring the data of request `sending`
 *     busy 1, over 1 or -1       ended (sent() was called); the request's next put() returns that, and busy is 0 again
 *
 * Invariant: `sending` is an id and not a pointer, because its request may end in error at any time. The code that
 * finds it ended resets busy. BIP calls back from within its progress, with the world's lock held, as the engine called
 * it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "bip/job.h"
#include "msg/channel.h"
#include "peers/peers.h"

#define TAG_PACKETS (-1) /* receives use the places of their requests as tags, from 0 on */
/* How long bip_close waits for acknowledgements. A chosen value, as in via_open.c. */
#define CLOSE_MS 1000
#define NO_RECEIVE UINT32_MAX
#define LEAST_SLOTS 8 /* places in the ring for each rank, even beyond pool_bytes; as VC_LEAST_CREDITS in via.h */

/* The channel's state. `busy` and `over` follow BIP's one send: put() starts it, sent() records its end, put()
 * reports it. */
struct bc_world {
    msg_world *world;
    bip_job *job;
    uint64_t sending; /* the request whose data BIP is transferring; 0: none */
    /* busy: BIP has a send of this channel. over: it has ended, 1 with success, -1 with an error. */
    int busy, over;
    int n_events; /* of the current progress call */
};

/* Sent by each rank to all others before they connect. BIP's own card is opaque here. */
struct bc_card {
    uint8_t card[BIP_CARD_LEN];
    int32_t failed;
    struct msg_address_space space;
};

static inline struct bc_world *bc_of(msg_world *w)
{
    return w->at;
}

static inline bip_job *job_of(struct msg_peer *peer)
{
    return bc_of(peer->world)->job;
}

/* ---------------------------------------------------------------- BIP's callbacks */

/* All packets of this channel have one tag. A packet is read in place, in the ring. Its place is free again when
 * this function returns, so the engine copies all data that it keeps. */
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

/* BIP's send has ended. The engine gets this result from its next put(). If the request has ended meanwhile (its
 * rank failed), no put() will follow. */
static void sent(void *context, uint64_t cookie, int code)
{
    struct bc_world *b = context;
    b->n_events++;
    b->over = code == 0 ? 1 : -1;
    if (msg_request_find(b->world, cookie) == NULL)
        b->busy = b->over = 0;
}

/* BIP's receive has ended and is gone: NO_RECEIVE makes drop() cancel nothing. */
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

/* BIP has found the connection to the node broken. It may be reported more than once; the first report counts. */
static void lost(void *context, int node)
{
    struct bc_world *b = context;
    b->n_events++;
    msg_peer_failed(&b->world->peers[node], "the connection was lost");
}

/* ---------------------------------------------------------------- packets */

/* The header and the data go as two parts, which BIP copies into its buffer in one pass, so nothing is assembled here.
 * Returns 1, 0 for no credit or buffer, or an error if the rank is gone. */
static int push_short(struct msg_peer *peer, struct msg_head head, const void *data, size_t len)
{
    struct bc_world *b = bc_of(peer->world);
    int taken = bip_send_parts(b->job, peer->rank, TAG_PACKETS, &head, sizeof head, data, len);
    if (vk_unlikely(taken == 0))
        MSG_COUNT(peer->world, credit_stalls, 1);
    msg_count_copy(peer->world, taken == 1 ? len : 0);
    return taken;
}

/* Sends a packet with n bytes of the out's data, from `sent` on, as one short message. Returns 1, 0 for no credit or
 * buffer, or an error if the rank is gone. */
static int push_one(struct msg_peer *peer, struct msg_out *out, size_t n)
{
    int taken = bip_send_parts(job_of(peer), peer->rank, TAG_PACKETS, &out->packet, msg_packet_len(&out->packet),
                               n ? out->data + out->sent : NULL, n);
    if (taken == 0)
        MSG_COUNT(peer->world, credit_stalls, 1);
    msg_count_copy(peer->world, taken == 1 ? n : 0);
    return taken;
}

/* BIP's longest short message bounds the packets (bip/model.h). */
static int push(struct msg_peer *peer, struct msg_out *out)
{
    return msg_push_segments(peer, out, bip_small(job_of(peer), peer->rank), push_one);
}

/* Ignores `enough`, because BIP reports all arrived packets before it returns. */
static int progress(msg_world *w, const uint8_t *enough)
{
    struct bc_world *b = bc_of(w);
    (void)enough;
    b->n_events = 0;
    bip_progress(b->job);
    return b->n_events;
}

/* Called without the lock: bip_sleep_unlocked changes nothing in the job. */
static void channel_sleep(msg_world *w, uint64_t ns, struct msg_token *token)
{
    token->what = bip_sleep_unlocked(bc_of(w)->job, (ns + VK_MS - 1) / VK_MS);
}

/* BIP handles the completion that ended the sleep, and calls back as from bip_progress. */
static void wake(msg_world *w, struct msg_token *token)
{
    bip_woken(bc_of(w)->job, token->what);
}

/* Before opening, and for this rank itself, only the name of the channel. */
static const char *route(struct msg_peer *peer)
{
    struct bc_world *b = bc_of(peer->world);
    const char *link = b && b->job ? bip_link(b->job, peer->rank) : NULL;
    return link ? link : "bip";
}

/* ---------------------------------------------------------------- long messages */

/* A receive gets its tag (as its address), and BIP's receive is posted under it from here on. A send only keeps its
 * buffer registered until its turn. BIP has no reads by the peer (remote 2). The tag is the request's place in the
 * pool, the lower half of its id, so no two active requests share one. */
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

/* Ends the hold: cancels BIP's receive unless data is already arriving for it, and releases the registration. */
static void drop(struct msg_peer *peer, msg_request *r)
{
    if (r->kind == MSG_REQ_RECV && r->handle != NO_RECEIVE)
        bip_rcancel_id(job_of(peer), (int)r->handle);
    bip_release(r->registered);
}

/* The engine repeats this call until it returns 1: all is done. The whole message is one piece (world.c: by_bip),
 * because BIP's pipeline segments it. 0: BIP is busy with another send, or this send is not complete. */
static int put(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle)
{
    struct bc_world *b = bc_of(peer->world);
    (void)handle;
    if (b->busy && b->over && msg_request_find(b->world, b->sending) == NULL)
        b->busy = b->over = 0; /* it ended with its rank after sent(), so no put() will follow */
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

/* Any NIC of the job serves for memory that ranks of this host can map. */
static void *any_nic(msg_world *w)
{
    void *nic = NULL;
    for (int i = 0; nic == NULL && i < w->n_ranks; i++)
        nic = bip_nic(bc_of(w)->job, i);
    return nic;
}

static void channel_forget(msg_world *w, const void *buf, size_t len)
{
    bip_forget(bc_of(w)->job, buf, len);
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

/* Reads the table that `viakit calibrate --what bip` stored for the link, or uses the built-in one. */
static void calibrated(const char *link, bip_table *table)
{
    char path[512];
    if (msg_on_machine() || bip_table_path(link, path, sizeof path) != 0 || bip_table_read(path, table) != 0)
        bip_table_default(link, table);
}

/* Translates the policy to BIP's options. The longest short message is the longest packet: eager limit and header.
 * If the policy leaves it open, BIP's tables have it for each link. The number of places in the ring is reduced so
 * that all fit pool_bytes, computed with the longer limit of both links, but not below LEAST_SLOTS. */
static void choose(msg_world *w, const msg_options *o, bip_options *options)
{
    const msg_policy *p = &w->policy;
    bip_table local, network;
    calibrated("shm", &local);
    network = local;
    const viakit_link_info *link = o->network_device ? viakit_link_of(o->network_device) : NULL;
    if (msg_on_machine())
        link = viakit_link_of("sim");
    if (w->n_local < w->n_ranks)
        calibrated(link ? link->name : "eth", &network);
    uint64_t small = local.small > network.small ? local.small : network.small;
    if (p->eager_limit >= 0) {
        small = (uint64_t)p->eager_limit + sizeof(struct msg_packet);
        options->small = small = small < 65536 ? small : 65536;
    }
    uint64_t n = (uint64_t)p->pool_bytes / ((uint64_t)w->n_ranks * small);
    n = n < (uint64_t)p->credits ? n : (uint64_t)p->credits;
    options->n_slots = (uint32_t)(n < LEAST_SLOTS ? LEAST_SLOTS : n > 1000 ? 1000 : n);
}

/* BIP's interrupt callback, while it connects. It passes on the program's. */
static int interrupted(void *context)
{
    msg_world *w = context;
    return w->interrupt && w->interrupt(w->interrupt_context);
}

/* Opens the job's NICs by BIP, contacting no other rank, so it may fail on one rank alone. Returns MSG_SUCCESS or an
 * error. On failure b->job is NULL. */
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
                           .layer = &layer,
                           .secret = w->secret};
    snprintf(host, sizeof host, "%016llx", (unsigned long long)w->peers[w->rank].host);
    snprintf(name, sizeof name, "%s%.16s", o->local_device ? o->local_device : "shm:msg-",
             o->local_device ? "" : w->job);
    if (msg_on_machine()) {
        snprintf(name, sizeof name, "sim:msg-%.16s", w->job);
        options.network_device = name;
    }
    if (w->n_local < w->n_ranks && options.network_device == NULL)
        return msg_fail(w, MSG_ERR_CHANNEL,
                        "ranks are on several hosts: a network device is needed, such as eth:eth0 or udp:ADDRESS");
    choose(w, o, &options);
    if (bip_open(&options, &b->job, error) != 0) {
        b->job = NULL;
        return msg_fail(w, MSG_ERR_CHANNEL, "BIP: %s", error);
    }
    return MSG_SUCCESS;
}

/* With all ranks' cards: connects, and reads BIP's maximum packet length for each rank. The eager limit follows from
 * it, because a message up to the limit must fit one packet with its longest header. Returns MSG_SUCCESS or an
 * error. */
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
        if (w->peers[i].host == w->peers[w->rank].host) /* makes the result readable in the policy */
            w->policy.eager_limit_local = (int64_t)w->peers[i].eager_limit;
        else
            w->policy.eager_limit = (int64_t)w->peers[i].eager_limit;
    }
    if (w->policy.eager_limit < 0)
        w->policy.eager_limit = w->policy.eager_limit_local;
    return MSG_SUCCESS;
}

/* Every rank takes part in the exchange even if it could not start, so that all ranks get its failure. */
static int open_job(msg_world *w, const msg_options *o)
{
    struct bc_card *cards = calloc((size_t)w->n_ranks, sizeof *cards), own = {.failed = 0};
    struct bc_world *b = calloc(1, sizeof *b);
    w->at = b;
    int code = MSG_ERR_NO_MEMORY;
    if (b && cards) {
        b->world = w;
        code = start(w, o);
    } else
        msg_fail(w, code, "no memory");
    own.failed = code != MSG_SUCCESS;
    if (code == MSG_SUCCESS)
        bip_card(b->job, own.card);
    own.space = msg_address_space_of(code == MSG_SUCCESS ? bip_bytes_to_map(b->job) : 0);
    int gathered = cards ? msg_allgather(w, o, &own, sizeof own, cards) : MSG_ERR_NO_MEMORY;
    for (int i = 0; code == MSG_SUCCESS && gathered == MSG_SUCCESS && i < w->n_ranks; i++)
        if (cards[i].failed)
            code = msg_fail(w, MSG_ERR_CHANNEL, "rank %d could not open its NIC", i);
    code = code ? code : gathered;
    if (code == MSG_SUCCESS)
        code = msg_check_address_space(w, o, &cards->space, sizeof *cards);
    if (code == MSG_SUCCESS)
        code = meet(w, o, cards);
    free(cards);
    if (code)
        close_job(w);
    return code;
}

/* Called from the attendant's thread (world.c), while the main thread waits in the launcher. */
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
    .notifies_receiver = 1,
    .nic = any_nic,
    .forget = channel_forget,
};
