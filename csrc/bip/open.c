/*
 * Opening a job, connecting its ranks, closing it.
 *
 *     bip_open       NICs and tables; no data of the other ranks yet
 *     bip_card       data for the other ranks: addresses, and the number and length of the messages that can queue
 *     bip_connect    meet: sizes of queues for each rank, buffers, a VI for each; then the pairs
 *     bip_close      BYE to all, waits until it is acknowledged, disconnects
 *
 * Ranks of one host connect on a link of that host (shm, under the job's name), ranks of different hosts on the network
 * device. csrc/peers connects them. Its receive slots are BIP's queue for short messages (section 3).
 *
 * Invariant: a job begins with zeros, and every pointer in it is NULL or owned. So bip_close works after any failure of
 * bip_open and bip_connect. After an error the text is in job->error, or in the caller's `error` if there is no job.
 *
 * Cards: the caller exchanges them, by the launcher's meeting point (bip_launch_exchange) or the message engine's
 * exchange.
 *
 * One thread at a time uses a job. bip_open may block on the file system, bip_connect and bip_close until their
 * deadlines.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/blake2s.h"
#include "base/plural.h"
#include "bip/internal.h"

#define CARD_MAGIC 0x42495031u /* "BIP1", which also detects a different byte order */
#define SMALL_LEAST 252        /* guaranteed by BIPSMALLSIZE */
#define SMALL_MOST 65536       /* as bip_table_read accepts from a calibration */
#define DEFAULT_SLOTS 32       /* a chosen value, as that of the policy `bip` (msg/policy.c: credits) */
#define SLOTS_MOST 1000        /* with RESERVED and BEATS they fit a VI's 1024 descriptors (MaxDescriptorsPerQueue) */

/* A card: the data that a rank sends to all others, within BIP_CARD_LEN bytes. [0] local, [1] network. len 0: no
 * such NIC. */
typedef struct {
    uint32_t magic, n_slots;                            /* n_slots: places of this rank's queue for each other rank */
    uint64_t host;                                      /* hash of the host's text; equal on one host */
    uint32_t room[2];                                   /* bytes of a place, its head included */
    uint8_t len[2], address[2][VIAKIT_NIC_ADDRESS_LEN]; /* of the NICs */
} bip_card_of;

_Static_assert(sizeof(bip_card_of) <= BIP_CARD_LEN, "a card has to fit");

/* ---------------------------------------------------------------- options */

/* Sets *value, if it is still 0, from the environment: a whole number up to `most`. Any other text is refused. A
 * program that requested packets of "4K" and got the calibrated ones would otherwise compare these with themselves. */
static int from_environment(bip_job *job, const char *name, uint64_t most, uint64_t *value)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (*value || text == NULL || *text == 0)
        return 0;
    errno = 0;
    unsigned long long found = strtoull(text, &end, 10);
    /* strtoull accepts "-1", and blanks before it. */
    if (*text < '0' || *text > '9' || *end || errno || found > most)
        return bip_fail(job, BIP_ERR_ARGUMENT, "%s=%.40s: a whole number, 0 to %llu", name, text,
                        (unsigned long long)most);
    *value = found;
    return 0;
}

/* Applies options, then the environment for unset ones, then defaults. Invalid values are refused. */
static int check_options(bip_job *job, const bip_options *given)
{
    bip_options *o = &job->options;
    *o = *given;
    if (given->size != sizeof *given)
        return bip_fail(job, BIP_ERR_ARGUMENT, "options of another version: size is %zu, not %zu", given->size,
                        sizeof *given);
    if (o->n_ranks < 1 || o->n_ranks > BIP_MAX_RANKS || o->rank < 0 || o->rank >= o->n_ranks)
        return bip_fail(job, BIP_ERR_ARGUMENT, "rank %d of %d: ranks are 0 to size - 1, size 1 to %d", o->rank,
                        o->n_ranks, BIP_MAX_RANKS);
    uint64_t n_slots = o->n_slots, strict = o->strict != 0, checksum = o->checksum != 0;
    uint64_t unreliable = o->unreliable != 0;
    bool small_given = o->small != 0;
    if (from_environment(job, "VIAKIT_BIP_SLOTS", SLOTS_MOST, &n_slots) ||
        from_environment(job, "VIAKIT_BIP_PACKET", UINT32_MAX, &o->packet) ||
        from_environment(job, "VIAKIT_BIP_SMALL", SMALL_MOST, &o->small) ||
        from_environment(job, "VIAKIT_BIP_STRICT", 1, &strict) ||
        from_environment(job, "VIAKIT_BIP_UNRELIABLE", 1, &unreliable) ||
        from_environment(job, "VIAKIT_BIP_CHECKSUM", 1, &checksum))
        return BIP_ERR_ARGUMENT;
    o->n_slots = n_slots ? (uint32_t)n_slots : DEFAULT_SLOTS;
    o->strict = strict != 0;
    o->unreliable = unreliable != 0;
    o->checksum = checksum != 0 || o->unreliable;
    if (o->unreliable && o->layer)
        return bip_fail(job, BIP_ERR_ARGUMENT,
                        "the message engine needs reliable delivery: leave VIAKIT_BIP_UNRELIABLE unset");
    if (o->n_slots > SLOTS_MOST)
        return bip_fail(job, BIP_ERR_ARGUMENT, "a queue of %u message%s: at most %d", o->n_slots, vk_s(o->n_slots),
                        SLOTS_MOST);
    if (o->packet && o->packet < BIP_MIN_PACKET)
        return bip_fail(job, BIP_ERR_ARGUMENT, "packets of %llu byte%s: at least %d", (unsigned long long)o->packet,
                        vk_s(o->packet), BIP_MIN_PACKET);
    if (!small_given && o->small && o->small < SMALL_LEAST)
        o->small = SMALL_LEAST;
    if (o->small > SMALL_MOST)
        return bip_fail(job, BIP_ERR_ARGUMENT, "short messages of %llu byte%s: at most %d",
                        (unsigned long long)o->small, vk_s(o->small), SMALL_MOST);
    o->spin_us = o->spin_us < 0 ? 0 : o->spin_us == 0 ? 50 : o->spin_us;
    snprintf(job->name, sizeof job->name, "%s", o->job ? o->job : "");
    if (o->n_ranks > 1 && job->name[0] == 0)
        return bip_fail(job, BIP_ERR_ARGUMENT, "a job of several ranks needs a name that they share");
    if (o->n_ranks > 1 && o->secret == NULL)
        return bip_fail(
            job, BIP_ERR_ARGUMENT,
            "a job of several ranks needs a secret of %d bytes that only its ranks have: `viakit run` makes "
            "one (VIAKIT_SECRET)",
            BIP_SECRET_LEN);
    if (o->secret)
        memcpy(job->secret, o->secret, sizeof job->secret);
    /* Compared only for equality, so a hash of the host's text suffices. */
    job->host = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *p = o->host ? o->host : ""; *p; p++)
        job->host = (job->host ^ (uint8_t)*p) * 0x100000001b3u;
    return 0;
}

/* ---------------------------------------------------------------- NICs */

/* csrc/peers reports its errors here: the text becomes the job's, and the result is BIP's code. */
static int net_failed(void *job, enum peers_error error, const char *text)
{
    return bip_fail(job, error == PEERS_ERR_TIMEOUT ? BIP_ERR_TIMEOUT : BIP_ERR_RESOURCE, "%s", text);
}

/* Opens a NIC, and chooses the table of its link and the length of its slots. The table comes from the caller, else
 * from this machine's calibration, else from the built-in model. Returns 0 or a code with a text. */
static int open_port(bip_job *job, int index, const char *device)
{
    const bip_options *o = &job->options;
    bip_table *table = &job->tables[index];
    char path[512];
    viakit_nic_options options = {.size = sizeof options,
                                  .takeover_us = o->takeover_us,
                                  .mtu = (VIP_UINT32)o->mtu,
                                  .form = (viakit_form)o->form,
                                  .retransmission = o->go_back_n ? VIAKIT_GO_BACK_N : VIAKIT_SELECTIVE,
                                  .checksum = o->crc_always ? VIAKIT_CHECKSUM_CRC : VIAKIT_CHECKSUM_AUTO};
    int code = peers_open_port(&job->net, index, device, &options, o->faults, false);
    if (code)
        return code;
    struct peers_port *port = job->net.ports[index];
    if (o->table)
        *table = *o->table;
    else if (bip_table_path(port->info.link, path, sizeof path) != 0 || bip_table_read(path, table) != 0)
        bip_table_default(port->info.link, table);
    /* A slot's buffer holds the longest short message, in whole cache lines. */
    table->small = o->small ? o->small : table->small < SMALL_LEAST ? SMALL_LEAST : table->small;
    port->room = (table->small + sizeof(bip_head) + 63) & ~(size_t)63;
    port->owed_most = (o->n_slots + 1) / 2; /* half the queue suffices for a waiting sender */
    return 0;
}

/* The parameters of csrc/peers for BIP. `strict` limits the registered buffers to REGIONS for each NIC: a receive that
 * needs another one waits, and a send fails. */
static void choose_net(bip_job *job)
{
    job->net =
        (struct peers){.owner = job,
                       .failed = net_failed,
                       .rank = job->options.rank,
                       .n_ranks = job->options.n_ranks,
                       .name = job->name,
                       .name_len = sizeof job->name,
                       .secret = job->secret,
                       .reliability = job->options.unreliable ? VIP_SERVICE_UNRELIABLE : VIP_SERVICE_RELIABLE_DELIVERY,
                       .n_sends = SEND_SLOTS,
                       .n_rdma = PACKETS,
                       .slot_len = sizeof(bip_slot),
                       .pair_len = sizeof(bip_peer),
                       .limits = {.bytes = UINT64_MAX, .entries = REGIONS, .strict = true},
                       .counters = {.misses = &job->counters[BIP_COUNTER_registrations]}};
}

/* All errors after the first allocation leave by one place, which closes the job. bip_close works on a job in any
 * state, because a job begins with zeros. */
int bip_open(const bip_options *options, bip_job **job_out, char *error)
{
    bip_job *job = calloc(1, sizeof *job);
    char name[64];
    if (job == NULL) {
        snprintf(error, BIP_ERROR_LEN, "no memory");
        return BIP_ERR_RESOURCE;
    }
    job->dead = -1;
    job->dead_code = BIP_ERR_PEER;
    int code = check_options(job, options);
    const bip_options *o = &job->options;
    if (code == 0) {
        choose_net(job);
        code = peers_init(&job->net);
        job->peers = (bip_peer *)(void *)job->net.pairs;
    }
    snprintf(name, sizeof name, "shm:bip-%s", job->name);
    const char *local = o->local_device ? o->local_device : name;
    if (code == 0 && o->n_ranks > 1 && *local)
        code = open_port(job, 0, local);
    if (code == 0 && o->n_ranks > 1 && o->network_device && *o->network_device)
        code = open_port(job, 1, o->network_device);
    if (code) {
        snprintf(error, BIP_ERROR_LEN, "%s", job->error);
        bip_close(job, 0);
        return code;
    }
    /* the texts have been read, and belong to the caller */
    job->options.job = job->options.host = job->options.local_device = job->options.network_device = NULL;
    job->options.faults = NULL;
    job->options.table = NULL;
    job->options.secret = NULL;
    /* The caller may free its struct, because the job has a copy. */
    if (job->options.layer) {
        job->layer = *job->options.layer;
        job->options.layer = &job->layer;
    }
    /* A single rank has no peer to connect to. */
    job->connected = o->n_ranks == 1;
    *job_out = job;
    return 0;
}

/* Only the local link maps memory of other processes. */
uint64_t bip_bytes_to_map(const bip_job *job)
{
    return job->net.ports[0] ? job->net.ports[0]->info.bytes_to_map : 0;
}

/* The rest of the card is zero, for a later version. Valid after bip_open. */
void bip_card(const bip_job *job, uint8_t card[BIP_CARD_LEN])
{
    bip_card_of own = {.magic = CARD_MAGIC, .n_slots = job->options.n_slots, .host = job->host};
    for (int i = 0; i < 2; i++) {
        const struct peers_port *port = job->net.ports[i];
        if (port) {
            own.room[i] = (uint32_t)port->room;
            own.len[i] = port->address_len;
            memcpy(own.address[i], port->address, port->address_len);
        }
    }
    memset(card, 0, BIP_CARD_LEN);
    memcpy(card, &own, sizeof own);
}

/* ---------------------------------------------------------------- connecting */

/* Evaluates all cards: ranks of this host, the limit of short messages in each direction, and the room in each other
 * rank's queue. A card is data of another process, so every field is checked before it is used. Returns 0 or a code. */
static int meet(bip_job *job, const bip_card_of *cards)
{
    uint32_t n[2] = {0, 0}; /* ranks on each NIC */
    int me = job->options.rank, code = 0;
    for (int i = 0; i < job->options.n_ranks; i++) {
        bip_peer *peer = &job->peers[i];
        int k = cards[i].host != cards[me].host;
        struct peers_port *port = job->net.ports[k];
        peer->rank = i;
        if (cards[i].magic != CARD_MAGIC || cards[i].len[k] > sizeof cards[i].address[k] || cards[i].n_slots == 0 ||
            cards[i].n_slots > SLOTS_MOST)
            return bip_fail(job, BIP_ERR_ARGUMENT,
                            "the card of rank %d is none, or is of another version or kind of machine", i);
        if (i == me)
            continue;
        if (port == NULL || cards[i].len[k] == 0 || cards[i].room[k] <= sizeof(bip_head))
            return bip_fail(
                job, BIP_ERR_ARGUMENT,
                k ? "rank %d is on another host: a network device is needed, such as eth:eth0 or udp:ADDRESS"
                  : "rank %d is on this host: a local device is needed",
                i);
        peer->pair.port = port;
        peers_set_address(&peer->pair, cards[i].address[k], cards[i].len[k]);
        /* The smaller of both: a message must fit the peer's slots, and the buffers here are no longer. */
        size_t remote_room = cards[i].room[k] - sizeof(bip_head);
        peer->small = job->tables[k].small < remote_room ? job->tables[k].small : remote_room;
        peer->n_slots = peer->pair.credits = cards[i].n_slots;
        n[k]++;
    }
    job->net.n_local = (int)n[0] + 1;
    for (int k = 0; k < 2 && code == 0; k++) {
        struct peers_port *port = job->net.ports[k];
        uint32_t n_recv = job->options.n_slots + RESERVED + (job->options.unreliable ? BEATS : 0);
        if (n[k] == 0)
            peers_close_port(&job->net, k); /* no rank uses this NIC */
        else if ((code = peers_make_buffers(port, n[k], port->room, n_recv)) == 0)
            job->memory += port->slots_len + port->recv_len + port->send_len;
    }
    for (int i = 0; i < job->options.n_ranks && code == 0; i++)
        if (job->peers[i].pair.port)
            code = peers_make_pair(job->peers[i].pair.port, &job->peers[i].pair);
    return code;
}

/* See job.h. For a thread beside one that waits in the launcher. */
void bip_attend(bip_job *job)
{
    peers_attend(&job->net);
}

/* The argument of while_connecting(), which csrc/peers calls between two tries. The job makes progress meanwhile,
 * because a rank that is connected already may send. */
struct connecting {
    bip_job *job;
    bip_wait wait;
};

static int while_connecting(void *context)
{
    struct connecting *c = context;
    return bip_wait_step(c->job, &c->wait);
}

/* The cards are copied into aligned structs first. In the caller's memory they may lie at any address. */
int bip_connect(bip_job *job, const uint8_t *raw, int timeout_ms)
{
    int n = job->options.n_ranks;
    uint64_t deadline = timeout_ms < 0 ? VK_NEVER : vk_now() + (uint64_t)timeout_ms * VK_MS;
    struct connecting c = {.job = job};
    if (job->connected)
        return n == 1 ? 0 : bip_fail(job, BIP_ERR_ARGUMENT, "the job is connected already");
    bip_card_of *cards = calloc((size_t)n, sizeof *cards);
    if (cards == NULL)
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory");
    for (int i = 0; i < n; i++)
        memcpy(&cards[i], raw + (size_t)i * BIP_CARD_LEN, sizeof *cards);
    int code = meet(job, cards);
    free(cards);
    if (code)
        return code;
    bip_wait_begin(job, &c.wait, -1);
    /* No sleeping here: the wait is for connections, and no receive would end the sleep. */
    c.wait.sleep_after = VK_NEVER;
    code = peers_connect(&job->net, deadline, while_connecting, &c);
    job->connected = code == 0;
    return code;
}

/* ---------------------------------------------------------------- registered buffers */

/* Through the cache, so a buffer that is sent again is found registered. The limit of REGIONS is strict: NULL then
 * means that as many are in use, and the caller tries again when one has ended. */
struct peers_region *bip_region_get(bip_peer *peer, const void *buf, size_t len)
{
    VIP_RETURN code;
    struct peers_region *region = peers_cache_get(&peer->pair.port->cache, buf, len, &code);
    if (code != VIP_SUCCESS)
        peers_nic_failed(&bip_job_of(peer)->net, "VipRegisterMem", code);
    return region;
}

/* The result is opaque to a layer. It keeps the buffer's registration in the cache until bip_release. */
void *bip_reserve(bip_job *job, int rank, const void *buf, size_t len)
{
    bip_peer *peer = rank >= 0 && rank < job->options.n_ranks ? &job->peers[rank] : NULL;
    return peer && peer->pair.port && buf && len ? bip_region_get(peer, buf, len) : NULL;
}

void bip_release(void *reserved)
{
    peers_cache_put(reserved);
}

/* A program calls this before it frees memory that it sent from. */
void bip_forget(bip_job *job, const void *buf, size_t len)
{
    peers_forget(&job->net, buf, len);
}

/* ---------------------------------------------------------------- closing */

/* Returns true if no send of this rank is in flight. Owed credits do not count, because waiting senders have
 * received theirs. Lost ranks are not waited for. */
static bool settled(bip_job *job)
{
    bip_progress(job);
    for (int i = 0; i < job->options.n_ranks; i++)
        if (job->peers[i].pair.n_outstanding && !job->peers[i].lost)
            return false;
    return job->send.state != SEND_MOVING;
}

/* Always frees. If a long message is in progress, waits for its end until the deadline. All other ranks receive BYE,
 * so that they do not report this rank as dead. LEFT: a send had not begun. */
int bip_close(bip_job *job, int timeout_ms)
{
    int code = 0, n = job->peers && job->connected ? job->options.n_ranks : 0;
    bip_wait wait;
    bip_wait_begin(job, &wait, timeout_ms);
    if (n)
        bip_progress(job); /* its receive may have been posted */
    bool given_up = n && job->send.state != SEND_IDLE && job->send.state != SEND_MOVING;
    if (given_up)
        bip_send_end(job, BIP_ERR_LEFT); /* it has not begun: its buffer belongs to the caller again */
    for (int i = 0; i < n && code == 0; i++) {
        bip_peer *peer = &job->peers[i];
        while (peer->pair.port && !peer->lost && bip_control(peer, KIND_BYE, 0) == 0 && !peer->lost)
            if ((code = bip_wait_step(job, &wait)) != 0)
                break;
    }
    while (n && code == 0 && !settled(job))
        code = bip_wait_step(job, &wait);
    peers_close(&job->net);
    bip_tags_fini(job);
    vk_wipe(job->secret, sizeof job->secret);
    free(job);
    return code ? code : given_up ? BIP_ERR_LEFT : 0;
}

/* ---------------------------------------------------------------- queries */

const char *bip_error(const bip_job *job)
{
    return job->error;
}

size_t bip_small(const bip_job *job, int dst)
{
    return dst >= 0 && dst < job->options.n_ranks ? job->peers[dst].small : 0;
}

size_t bip_memory(const bip_job *job)
{
    return job->memory;
}

void bip_counters(const bip_job *job, uint64_t values[BIP_N_COUNTERS])
{
    memcpy(values, job->counters, sizeof job->counters);
}

const char *bip_link(const bip_job *job, int rank)
{
    const struct peers_port *port = rank >= 0 && rank < job->options.n_ranks ? job->peers[rank].pair.port : NULL;
    return port ? port->device : NULL;
}

void *bip_nic(const bip_job *job, int rank)
{
    if (rank < 0 || rank >= job->options.n_ranks || job->peers[rank].pair.port == NULL)
        return NULL;
    return job->peers[rank].pair.port->nic;
}
