/*
 * Opening the `via` channel, its connections, and closing it. csrc/peers opens the NICs and connects the ranks. This
 * file chooses the sizes of the eager buffers, and exchanges the ranks' addresses and credits.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "msg/via.h"

#define CLOSE_MS 1000 /* time for outstanding acknowledgements of sends */

/* Sent by each rank to all others before they connect. The number of buffers for each rank depends on the number of
 * ranks on that NIC. So the two sides of a pair may differ if their hosts do. */
struct address_card {
    uint8_t host[2][8]; /* of the local, the network NIC */
    uint8_t len[2];
    uint8_t failed;
    uint32_t n_recv[2];
    struct msg_address_space space;
};

static int net_failed(void *world, enum peers_error error, const char *text)
{
    return msg_fail(world, error == PEERS_ERR_NO_MEMORY ? MSG_ERR_NO_MEMORY : MSG_ERR_CHANNEL, "%s", text);
}

/* Sets the eager limit and the credits, and allocates their memory. `room` is the size of an eager buffer: the
 * largest packet, rounded up to whole cache lines. It is at least 256 bytes, as put_short requires (MSG_PUT_SHORT).
 * Credits: at most the policy's number, reduced to fit pool_bytes, but at least VC_LEAST_CREDITS. */
static int make_buffers(msg_world *w, struct peers_port *port, uint32_t n_ranks, size_t *eager_limit)
{
    const msg_policy *p = &w->policy;
    *eager_limit =
        msg_rendezvous_threshold(w, port->index == 0, port->attributes.MaxTransferSize - sizeof(struct msg_packet));
    size_t room = (*eager_limit + sizeof(struct msg_packet) + 63) & ~(size_t)63;
    if (room < 256)
        room = 256;
    uint64_t credits = (uint64_t)p->pool_bytes / (n_ranks * room);
    credits = credits > (uint64_t)p->credits ? (uint64_t)p->credits : credits;
    uint64_t limit = port->attributes.MaxDescriptorsPerQueue - VC_RESERVE;
    credits = credits < VC_LEAST_CREDITS ? VC_LEAST_CREDITS : credits > limit ? limit : credits;
    port->owed_most =
        (uint32_t)credits / 2; /* the sender can use the other half while the CREDIT packet is in flight */
    return peers_make_buffers(port, n_ranks, room, (uint32_t)credits + VC_RESERVE);
}

/* Opens a NIC for n_ranks other ranks, with all its objects but the VIs. */
static int open_port(msg_world *w, int index, const char *device, uint32_t n_ranks, size_t *eager_limit)
{
    struct peers *net = &((struct vc_world *)w->at)->net;
    viakit_nic_options options = {.size = sizeof options, .takeover_us = msg_takeover_us(w)};
    int code = peers_open_port(net, index, device, &options, NULL, w->policy.progress != MSG_PROGRESS_CALLER);
    if (code != 0)
        return code;
    /* In the end the smaller limit of both NICs, because one policy applies to all pairs. */
    int64_t most = (int64_t)net->ports[index]->attributes.MaxTransferSize;
    if (w->policy.piece > most)
        w->policy.piece = most;
    return make_buffers(w, net->ports[index], n_ranks, eager_limit);
}

/* Creates all local objects: NICs and VIs. It contacts no other rank, so it may fail on one rank alone. */
static int open_ports(msg_world *w, const msg_options *o)
{
    struct vc_world *v = w->at;
    char name[64];
    size_t eager_limit[2];
    uint32_t n[2] = {(uint32_t)w->n_local - 1, (uint32_t)(w->n_ranks - w->n_local)}; /* other ranks on each NIC */
    int code = 0;
    const char *network = msg_on_machine() ? name : o->network_device;
    snprintf(name, sizeof name, "%s:msg-%.16s", msg_on_machine() ? "sim" : "shm", w->job);
    if (n[0])
        code = open_port(w, 0, o->local_device ? o->local_device : name, n[0], &eager_limit[0]);
    if (code == 0 && n[1])
        code = network ? open_port(w, 1, network, n[1], &eager_limit[1])
                       : msg_fail(w, MSG_ERR_CHANNEL,
                                  "ranks are on several hosts: a network device is needed, such as eth:eth0 "
                                  "or udp:ADDRESS");
    for (int i = 0; code == 0 && i < w->n_ranks; i++) {
        struct vc_rank *rank = (struct vc_rank *)(void *)peers_pair_of(&v->net, i);
        int k = w->peers[i].host != w->peers[w->rank].host;
        rank->peer = &w->peers[i];
        w->peers[i].at = rank;
        if (i == w->rank)
            continue;
        w->peers[i].eager_limit = eager_limit[k];
        rank->pair.port = v->net.ports[k];
        if (!w->sparse || peers_are_neighbours(w->rank, i, w->n_ranks))
            code = peers_make_pair(v->net.ports[k], &rank->pair);
    }
    return code || !w->sparse ? code : peers_admit(&v->net);
}

/* Is the card of rank i usable? Lengths are copied and receives counted by it, so it must fit what is used here. */
static int check_card(msg_world *w, const struct address_card *cards, int i)
{
    const struct address_card *card = &cards[i];
    int k = ((struct peers_pair *)w->peers[i].at)->port->index;
    if (card->failed)
        return msg_fail(w, MSG_ERR_CHANNEL, "rank %d could not open its NIC", i);
    if (card->len[k] == 0 || card->len[k] > sizeof card->host[k] || card->n_recv[k] <= VC_RESERVE)
        return msg_fail(w, MSG_ERR_CHANNEL,
                        "the card of rank %d has an address of %u bytes and %u receives, expected 1 to %zu bytes and "
                        "more than %d receives: it is damaged, or of another version of viakit",
                        i, card->len[k], card->n_recv[k], sizeof card->host[k], VC_RESERVE);
    return 0;
}

/* Stores each rank's address, and the number of packets that this rank may send it: the buffers that the other side
 * keeps for this rank, not those that this rank keeps for it. */
static int read_cards(msg_world *w, const struct address_card *cards)
{
    for (int i = 0; i < w->n_ranks; i++) {
        struct peers_pair *pair = w->peers[i].at;
        int code = i == w->rank ? 0 : check_card(w, cards, i);
        if (code)
            return code;
        if (i == w->rank)
            continue;
        peers_set_address(pair, cards[i].host[pair->port->index], cards[i].len[pair->port->index]);
        ((struct vc_rank *)(void *)pair)->grant = cards[i].n_recv[pair->port->index] - VC_RESERVE;
    }
    return 0;
}

/* ---------------------------------------------------------------- connections */

/* The rank is connected. Packets of it may have arrived before, and with them credits. */
static void connected(const msg_world *w, int i)
{
    struct vc_rank *rank = w->peers[i].at;
    rank->pair.credits += rank->grant;
}

void vc_met(void *world, int rank, int code)
{
    msg_world *w = world;
    char why[MSG_ERROR_LEN];
    if (w->peers[rank].gone)
        return;
    if (code) {
        snprintf(why, sizeof why, "%s", w->error);
        msg_peer_failed(&w->peers[rank], why);
        return;
    }
    connected(w, rank);
    msg_met(&w->peers[rank]);
}

int vc_meet(struct msg_peer *peer)
{
    struct peers *net = &((struct vc_world *)peer->world->at)->net;
    if (((struct peers_pair *)peer->at)->state == PEERS_MEETING)
        return 0;
    int code = peers_meet(net, peer->rank);
    if (code)
        vc_met(peer->world, peer->rank, code);
    return peer->gone ? -1 : 0;
}

void vc_part(struct msg_peer *peer)
{
    peers_part(&((struct vc_world *)peer->world->at)->net, peer->rank);
}

int vc_is_meeting(const struct msg_peer *peer)
{
    return ((const struct peers_pair *)peer->at)->state == PEERS_MEETING;
}

/* Called while the ranks connect. After connecting `lost` is unused, because the queues report the same. */
static int connecting(void *world)
{
    msg_world *w = world;
    const struct peers *net = &((struct vc_world *)w->at)->net;
    for (int i = 0; i < 2; i++)
        if (net->ports[i] && vk_load_acquire(&net->ports[i]->lost))
            return msg_fail(w, MSG_ERR_PROC_FAILED, "a rank died while the ranks were connecting");
    if (w->interrupt && w->interrupt(w->interrupt_context))
        return msg_fail(w, MSG_INTERRUPTED, "opening was interrupted");
    return 0;
}

static struct vc_world *make_world(msg_world *w)
{
    struct vc_world *v = calloc(1, sizeof *v);
    if (v == NULL)
        return NULL;
    v->net = (struct peers){
        .owner = w,
        .failed = net_failed,
        .rank = w->rank,
        .n_ranks = w->n_ranks,
        .n_local = w->n_local,
        .name = w->job,
        .name_len = 8,
        .secret = w->secret,
        .reliability = (VIP_RELIABILITY_LEVEL)w->policy.reliability,
        .sparse = w->sparse,
        .reads = true,
        .n_sends = VC_SEND_SLOTS,
        .n_rdma = VC_RDMA_SLOTS,
        .slot_len = sizeof(struct vc_slot),
        .pair_len = sizeof(struct vc_rank),
        .limits = {.bytes = (uint64_t)w->policy.cache_bytes, .entries = (uint64_t)w->policy.cache_entries},
        .counters = {.hits = &w->counters[MSG_COUNTER_cache_hits],
                     .misses = &w->counters[MSG_COUNTER_cache_misses],
                     .evictions = &w->counters[MSG_COUNTER_cache_evictions],
                     .bytes = &w->counters[MSG_COUNTER_cache_bytes_now]}};
    return v;
}

int vc_open(msg_world *w, const msg_options *o)
{
    struct vc_world *v = make_world(w);
    struct address_card *cards = calloc((size_t)w->n_ranks, sizeof *cards), own = {.failed = 0};
    w->at = v;
    int code = v && cards ? peers_init(&v->net) : msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    if (code == 0)
        code = open_ports(w, o);
    /* From here to msg_allgather failures are only recorded, because the exchange must take place. */
    own.failed = code != 0;
    for (int i = 0; i < 2 && code == 0; i++)
        if (v->net.ports[i]) {
            own.len[i] = v->net.ports[i]->address_len;
            memcpy(own.host[i], v->net.ports[i]->address, own.len[i]);
            own.n_recv[i] = v->net.ports[i]->n_recv;
        }
    own.space = msg_address_space_of(code == 0 && v->net.ports[0] ? v->net.ports[0]->info.bytes_to_map : 0);
    int gathered = cards ? msg_allgather(w, o, &own, sizeof own, cards) : MSG_ERR_NO_MEMORY;
    if (code == 0 && gathered == 0)
        code = read_cards(w, cards);
    code = code ? code : gathered;
    if (code == 0)
        code = msg_check_address_space(w, o, &cards->space, sizeof *cards);
    if (code == 0) {
        uint64_t limit_ms = (uint64_t)(o->open_timeout_ms > 0 ? o->open_timeout_ms : 60000);
        code = peers_connect(&v->net, vk_now() + limit_ms * VK_MS, connecting, w);
    }
    for (int i = 0; code == 0 && i < w->n_ranks; i++) {
        if (i == w->rank)
            continue;
        w->peers[i].met = ((struct peers_pair *)w->peers[i].at)->state == PEERS_MET;
        if (w->peers[i].met)
            connected(w, i);
    }
    free(cards);
    if (code)
        vc_close(w);
    return code;
}

/* ---------------------------------------------------------------- what a connection is able to do */

int vc_can_get(struct msg_peer *peer)
{
    const struct peers_pair *pair = peer->at;
    return pair->port->can_read;
}

/* On shm the processor of the caller copies. On other links the NIC or the kernel moves the data of both. */
int vc_can_share(struct msg_peer *peer)
{
    const struct peers_pair *pair = peer->at;
    return pair->port->index == 0 && pair->port->can_read && pair->port->lossless && !vk_time_is_virtual();
}

/* ---------------------------------------------------------------- closing */

/* Waits for acknowledgements, because closing the connection would lose unacknowledged sends, such as the BYE. */
static void drain(msg_world *w)
{
    uint64_t deadline = vk_now() + CLOSE_MS * VK_MS;
    for (int i = 0; i < w->n_ranks; i++) {
        struct peers_pair *pair = w->peers[i].at;
        while (pair && pair->vi && pair->n_outstanding && !w->peers[i].gone && vk_now() < deadline) {
            vc_reap(pair);
            if (pair->n_outstanding)
                sched_yield();
        }
    }
}

void vc_close(msg_world *w)
{
    struct vc_world *v = w->at;
    if (v == NULL)
        return;
    drain(w);
    peers_close(&v->net);
    free(v);
    w->at = NULL;
}
