/*
 * Opening the `via` channel, its connections, and closing it. csrc/peers opens the NICs and connects the ranks. This
 * file chooses the sizes of the eager buffers, and exchanges the ranks' addresses and credits.
 *
 *      each rank                                      all ranks
 *      open_ports: NICs, buffers, VIs    (local)
 *      own card: addresses, receives     -------->    msg_allgather: every rank has every card
 *      check_card, read_cards            (local)      address, grant of each other rank
 *      peers_connect                     <------->    every pair, or (sparse) every pair of neighbours
 *      credits += grant                  (local)      packets may be sent
 *      vc_meet, later                    <------->    any other pair of a sparse world, on first use
 *
 * ports[0] is the NIC of the ranks of this host (shm), ports[1] that of all others. A port without ranks is NULL, so a
 * job on one host needs no network device.
 *
 * Invariant: before msg_allgather nothing depends on another rank, and no failure returns early. After it, a failure of
 * any rank is on its card, so all ranks give up together (world.c).
 *
 * Threads: opening and closing run in the thread that opens or closes the world. The functions about meeting are called
 * with the world's lock held, from within the channel's progress or push.
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "msg/via.h"

/* Bound in ms of the wait for outstanding acknowledgements of sends. A chosen value: a peer that has closed already
 * does not acknowledge any more, so without a bound the wait might not end. */
#define CLOSE_MS 1000

/* Sent by each rank to all others before they connect. Index 0 is the local NIC, 1 the network NIC; a rank reads only
 * the index of the NIC by which it reaches the sender. The number of buffers for each rank depends on the number of
 * ranks on that NIC. So the two sides of a pair may differ if their hosts do. */
struct address_card {
    uint8_t host[2][VIAKIT_NIC_ADDRESS_LEN];
    uint8_t len[2];                 /* bytes of them; 0: this rank has no such NIC */
    uint8_t failed;                 /* 1: the other fields are zero, because this rank could not open its NICs */
    uint32_t n_recv[2];             /* receives that this rank posts for each other rank, VC_RESERVE included */
    struct msg_address_space space; /* address_space.c */
};

/* The `failed` callback of struct peers: stores the text as this world's error. csrc/peers has reported it nowhere
 * else. */
static int net_failed(void *world, enum peers_error error, const char *text)
{
    return msg_fail(world, error == PEERS_ERR_NO_MEMORY ? MSG_ERR_NO_MEMORY : MSG_ERR_CHANNEL, "%s", text);
}

/* Sets the eager limit and the credits, and allocates their memory. `room` is the size of an eager buffer: the largest
 * packet, rounded up to whole cache lines. It is at least 256 bytes, as put_short requires (MSG_PUT_SHORT).
 *
 *     credits = min(policy's credits, pool_bytes / (ranks * room), MaxDescriptorsPerQueue - VC_RESERVE)
 *               but at least VC_LEAST_CREDITS, even if that exceeds pool_bytes
 *
 * Returns 0, or the code of the failure. *eager_limit is valid in both cases. */
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
    /* The sender can use the other half while the CREDIT packet is in flight. */
    port->owed_most = (uint32_t)credits / 2;
    return peers_make_buffers(port, n_ranks, room, (uint32_t)credits + VC_RESERVE);
}

/* Opens a NIC for n_ranks other ranks, with all its objects but the VIs. Returns 0 or the code of the failure;
 * peers_close releases what was made until then. */
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

/* Creates all local objects: NICs and VIs. It contacts no other rank, so it may fail on one rank alone. Sets peer->at
 * of every rank as far as it comes, this rank included. Only neighbours get a VI in a sparse world; the others get
 * theirs when they meet. Returns 0 or the code of the failure. */
static int open_ports(msg_world *w, const msg_options *o)
{
    struct vc_world *v = w->at;
    char name[64];
    size_t eager_limit[2];
    uint32_t n[2] = {(uint32_t)w->n_local - 1, (uint32_t)(w->n_ranks - w->n_local)}; /* other ranks on each NIC */
    int code = 0;
    /* A described machine has one link, and each of its ranks is a host of its own (hello.c), so n[0] is 0 there. */
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

/* Returns 0 if the card of rank i is usable, else an error with its text. The card comes from the launcher's exchange
 * and is not trusted: lengths are copied and receives counted by it, so it must fit what is used here. */
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
 * keeps for this rank, not those that this rank keeps for it. The reserve is subtracted here, because CREDIT packets
 * use it without a credit (via.h). */
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

/* The rank is connected. Adds the grant and does not assign it: packets of the rank may have arrived before this rank
 * noticed the connection, and they may have brought credits. */
static void connected(const msg_world *w, int i)
{
    struct vc_rank *rank = w->peers[i].at;
    rank->pair.credits += rank->grant;
}

/* Called by vc_meet, and by peers_meetings once for each pair: code 0, or the reason why it cannot be connected. A rank
 * that was given up in the meantime (news.c: it is dead) stays so. */
void vc_met(void *world, int rank, int code)
{
    msg_world *w = world;
    char why[MSG_ERROR_LEN];
    if (w->peers[rank].gone)
        return;
    if (code) {
        /* A copy, because msg_peer_failed writes a new text into w->error, with this one as its end. */
        snprintf(why, sizeof why, "%s", w->error);
        msg_peer_failed(&w->peers[rank], why);
        return;
    }
    connected(w, rank);
    msg_met(&w->peers[rank]);
}

/* Does nothing for a pair that is MEETING. A failure to begin is final: the rank counts as failed, because nothing
 * would repeat the attempt. */
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

/* The `idle` callback of peers_connect: 0, or why connecting ends. Acquire, paired with the release in the NIC's error
 * handler (peers/open.c), which runs in any thread: the break that it reports comes before this load. After connecting
 * `lost` is unused, because the queues report the same. */
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

/* Only the first 8 of the job's 32 hex digits are part of the connections' names: enough to keep apart jobs that run at
 * the same time on one network. The proof of the secret, not the name, keeps out other processes. NULL: no memory. */
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

/* See channel.h. Any failure before msg_allgather only sets own.failed. On failure vc_close releases everything. */
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
    /* Only mappings of the local NIC cost address space of other ranks. */
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
        /* peers_connect has connected every pair that has a VI, so the others are those of a sparse world. */
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

/* Waits for acknowledgements, because closing the connection would lose unacknowledged sends, such as the BYE. One
 * deadline for all ranks: a host that has vanished delays the closing only once. On shm sends are usually complete
 * already, so this loop ends at once. */
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

/* Also for a channel that was opened in part: w->at is NULL before vc_open, and pairs without a VI have nothing to
 * drain. */
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
