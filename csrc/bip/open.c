/*
 * Opening a job, connecting its ranks, closing it.
 *
 *     bip_open       NICs and tables; nothing is known of the others yet
 *     bip_card       what they must know of this rank: addresses, and how many messages of what length it has room for
 *     bip_connect    meet: sizes of queues for each rank, buffers, a VI for each, all receives posted; then the pairs
 *     bip_close      BYE to all, waits until it is acknowledged, disconnects
 *
 * Ranks of one host meet on a link of that host (shm, under the job's name), ranks of different
 * hosts on the network device. Every pair connects as equals (VipConnectPeerRequest): both name
 * the pair, and neither waits for the other. In round r rank i asks rank (r - i) mod n, which in
 * the same round asks i; WINDOW rounds are under way at once.
 *
 *     4 ranks, round 0:  1-3 (0, 2 alone)    round 1:  0-1 2-3    round 2:  0-2 (1, 3 alone)    round 3:  0-3 1-2
 *
 * Invariant: receives are posted before a VI is connected, so nothing that arrives ever finds none.
 *
 * Memory of a NIC, each block registered once:
 *
 *     slots         [SEND_SLOTS] [PACKETS] [n_slots + RESERVED of the first rank] [of the second] ...
 *     send_memory   `room` bytes for each send slot; packets have none: they send from the program's buffer
 *     recv_memory   `room` bytes for each receive slot: BIP's queue for short messages (section 3)
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plural.h"
#include "bip/internal.h"

#define WINDOW 16
#define CARD_MAGIC 0x42495031u /* "BIP1", which also tells byte orders apart */
#define SMALL_LEAST 252        /* what BIPSMALLSIZE promises */
#define SMALL_MOST 65536
#define DEFAULT_SLOTS 32
#define SLOTS_MOST 1000

/* A card: what a rank tells all others, within BIP_CARD_LEN bytes. [0] local, [1] network;
 * len 0: it has no such NIC. */
typedef struct {
    uint32_t magic, n_slots;
    uint64_t host;
    uint32_t room[2];
    uint8_t len[2], address[2][8];
} bip_card_of;

_Static_assert(sizeof(bip_card_of) <= BIP_CARD_LEN, "a card has to fit");

/* ---------------------------------------------------------------- options */

/* Into *value, where it is still 0, what the environment says: a whole number up to `most`. Anything else is refused:
 * whoever asked for packets of "4K" and got the calibrated ones would compare these with themselves. */
static int from_environment(bip_job *job, const char *name, uint64_t most, uint64_t *value)
{
    const char *text = getenv(name);
    char *end = NULL;
    if (*value || text == NULL || *text == 0)
        return 0;
    errno = 0;
    unsigned long long found = strtoull(text, &end, 10);
    /* strtoull takes "-1", and blanks before it. */
    if (*text < '0' || *text > '9' || *end || errno || found > most)
        return bip_fail(job, BIP_ERR_ARGUMENT, "%s=%.40s: a whole number, 0 to %llu", name, text,
                        (unsigned long long)most);
    *value = found;
    return 0;
}

/* Options as given, then the environment where they are silent, then defaults; what makes no sense is refused. */
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
    bool small_given = o->small != 0;
    if (from_environment(job, "VIAKIT_BIP_SLOTS", SLOTS_MOST, &n_slots) ||
        from_environment(job, "VIAKIT_BIP_PACKET", UINT32_MAX, &o->packet) ||
        from_environment(job, "VIAKIT_BIP_SMALL", SMALL_MOST, &o->small) ||
        from_environment(job, "VIAKIT_BIP_STRICT", 1, &strict) ||
        from_environment(job, "VIAKIT_BIP_CHECKSUM", 1, &checksum))
        return BIP_ERR_ARGUMENT;
    o->n_slots = n_slots ? (uint32_t)n_slots : DEFAULT_SLOTS;
    o->strict = strict != 0;
    o->checksum = checksum != 0;
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
    /* Only compared for equality, so a hash of the host's text does. */
    job->host = 0xcbf29ce484222325u; /* FNV-1a */
    for (const char *p = o->host ? o->host : ""; *p; p++)
        job->host = (job->host ^ (uint8_t)*p) * 0x100000001b3u;
    return 0;
}

/* ---------------------------------------------------------------- NICs */

/* In VIPL's order: regions, then their memory, queue and tag; no VI uses them any more. Also of one half made. */
static void close_port(bip_port *port)
{
    bip_regions_fini(port);
    if (port->slots_handle)
        VipDeregisterMem(port->nic, port->slots, port->slots_handle);
    if (port->recv_handle)
        VipDeregisterMem(port->nic, port->recv_memory, port->recv_handle);
    if (port->send_handle)
        VipDeregisterMem(port->nic, port->send_memory, port->send_handle);
    if (port->send_memory)
        viakit_free(port->nic, port->send_memory);
    if (port->cq)
        VipDestroyCQ(port->cq);
    if (port->ptag)
        VipDestroyPtag(port->nic, port->ptag);
    VipCloseNic(port->nic);
    free(port->recv_memory);
    free(port->slots);
    free(port);
}

/* On an error what was made stays in job->ports, where bip_close finds it. */
static int open_port(bip_job *job, int index, const char *device)
{
    const bip_options *o = &job->options;
    viakit_nic_options options = {.size = sizeof options};
    viakit_nic_info info;
    bip_port *port = calloc(1, sizeof *port);
    if (port == NULL)
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory");
    options.spin_us = -1; /* we spin ourselves */
    options.takeover_us = o->takeover_us;
    /* Under faults what is lost on shm, too, is repeated while the program computes. */
    const char *lossy = o->faults && *o->faults ? o->faults : getenv("VIAKIT_FAULT");
    options.no_thread = strncmp(device, "shm", 3) == 0 && !(lossy && *lossy);
    options.mtu = (VIP_UINT32)o->mtu;
    options.form = (viakit_form)o->form;
    options.retransmission = o->go_back_n ? VIAKIT_GO_BACK_N : VIAKIT_SELECTIVE;
    options.checksum = o->crc_always ? VIAKIT_CHECKSUM_CRC : VIAKIT_CHECKSUM_AUTO;
    port->job = job;
    VIP_RETURN code = viakit_open_nic(device, &options, &port->nic);
    if (code != VIP_SUCCESS) {
        free(port);
        return bip_nic_failed(job, device, code);
    }
    job->ports[index] = port;
    snprintf(port->device, sizeof port->device, "%s", device);
    if (o->faults && *o->faults) {
        viakit_faults faults = {.size = sizeof faults};
        if ((code = viakit_parse_faults(o->faults, &faults)) != VIP_SUCCESS ||
            (code = viakit_set_faults(port->nic, &faults)) != VIP_SUCCESS)
            return bip_nic_failed(job, "viakit_set_faults", code);
    }
    if ((code = VipQueryNic(port->nic, &port->attributes)) != VIP_SUCCESS)
        return bip_nic_failed(job, "VipQueryNic", code);
    if ((code = viakit_query_nic(port->nic, &info)) != VIP_SUCCESS)
        return bip_nic_failed(job, "viakit_query_nic", code);
    if ((code = VipCreatePtag(port->nic, &port->ptag)) != VIP_SUCCESS)
        return bip_nic_failed(job, "VipCreatePtag", code);
    /* A card has room for 8 bytes of address. */
    if (port->attributes.NicAddressLen > sizeof((bip_card_of *)0)->address[0])
        return bip_fail(job, BIP_ERR_RESOURCE, "%s: addresses of %u byte%s", device, port->attributes.NicAddressLen,
                        vk_s(port->attributes.NicAddressLen));
    snprintf(port->link, sizeof port->link, "%s", info.link);
    port->nic_port = info.port;
    port->bytes_to_map = info.bytes_to_map;
    char path[512];
    if (o->table)
        port->table = *o->table;
    else if (bip_table_path(info.link, path, sizeof path) != 0 || bip_table_read(path, &port->table) != 0)
        bip_table_default(info.link, &port->table);
    /* A slot's buffer holds the longest short message, in whole cache lines. */
    uint64_t small = o->small ? o->small : port->table.small < SMALL_LEAST ? SMALL_LEAST : port->table.small;
    port->room = (small + sizeof(bip_head) + 63) & ~(size_t)63;
    port->table.small = small;
    return 0;
}

/* The provider tells of lost connections by the queues as well, where progress finds them.
 * Without a handler of ours the default one would write to standard error. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    (void)error;
}

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
        job->peers = calloc((size_t)o->n_ranks, sizeof *job->peers);
        job->unsettled = calloc((size_t)o->n_ranks, sizeof(bip_peer *));
        if (job->peers == NULL || job->unsettled == NULL)
            code = bip_fail(job, BIP_ERR_RESOURCE, "no memory");
    }
    snprintf(name, sizeof name, "shm:bip-%s", job->name);
    const char *local = o->local_device ? o->local_device : name;
    if (code == 0 && o->n_ranks > 1 && *local)
        code = open_port(job, 0, local);
    if (code == 0 && o->n_ranks > 1 && o->network_device && *o->network_device)
        code = open_port(job, 1, o->network_device);
    for (int i = 0; code == 0 && i < 2; i++)
        if (job->ports[i])
            VipErrorCallback(job->ports[i]->nic, job->ports[i], on_error);
    if (code) {
        snprintf(error, BIP_ERROR_LEN, "%s", job->error);
        bip_close(job, 0);
        return code;
    }
    /* texts were read, and belong to the caller */
    job->options.job = job->options.host = job->options.local_device = job->options.network_device = NULL;
    job->options.faults = NULL;
    job->options.table = NULL;
    /* The caller's struct may go: the job has its own. */
    if (job->options.layer) {
        job->layer = *job->options.layer;
        job->options.layer = &job->layer;
    }
    /* Alone there is nobody to connect to. */
    job->connected = o->n_ranks == 1;
    *job_out = job;
    return 0;
}

uint64_t bip_bytes_to_map(const bip_job *job)
{
    return job->ports[0] ? job->ports[0]->bytes_to_map : 0;
}

void bip_card(const bip_job *job, uint8_t card[BIP_CARD_LEN])
{
    bip_card_of mine = {.magic = CARD_MAGIC, .n_slots = job->options.n_slots, .host = job->host};
    for (int i = 0; i < 2; i++) {
        const bip_port *port = job->ports[i];
        if (port) {
            mine.room[i] = (uint32_t)port->room;
            mine.len[i] = (uint8_t)port->attributes.NicAddressLen;
            memcpy(mine.address[i], port->attributes.LocalNicAddress, mine.len[i]);
        }
    }
    if (job->ports[0]) { /* all ranks of a host have one address there: say which NIC */
        memcpy(mine.address[0] + mine.len[0], &job->ports[0]->nic_port, sizeof job->ports[0]->nic_port);
        mine.len[0] = VIAKIT_NIC_ADDRESS_LEN;
    }
    memset(card, 0, BIP_CARD_LEN);
    memcpy(card, &mine, sizeof mine);
}

/* ---------------------------------------------------------------- buffers */

/* Memory of the NIC's own, for sending and receiving: nobody else may write to it. */
static int reg(bip_port *port, void *memory, size_t len, VIP_MEM_HANDLE *handle)
{
    VIP_MEM_ATTRIBUTES attributes = {.Ptag = port->ptag};
    VIP_RETURN code = VipRegisterMem(port->nic, memory, len, &attributes, handle);
    return code == VIP_SUCCESS ? 0 : bip_nic_failed(port->job, "VipRegisterMem", code);
}

/* What never changes in a slot. */
static void prepare(bip_slot *slot, char *buf, VIP_MEM_HANDLE handle, size_t len)
{
    slot->buf = buf;
    slot->d.CS.SegCount = 1;
    slot->d.DS[0].Local.Data.Address = buf;
    slot->d.DS[0].Local.Handle = handle;
    slot->d.DS[0].Local.Length = (VIP_UINT32)len;
}

/* Everything of a NIC that depends on how many ranks are reached through it. All slots lie in one block: their
 * order is the picture at the top, and their kind follows from their place. */
static int make_buffers(bip_port *port)
{
    bip_job *job = port->job;
    size_t n_recv = (size_t)port->n_peers * (job->options.n_slots + RESERVED);
    size_t n = SEND_SLOTS + PACKETS + n_recv;
    void *slots = NULL, *recv = NULL, *send = NULL;
    port->slots_len = n * sizeof *port->slots;
    port->recv_len = n_recv * port->room;
    port->send_len = SEND_SLOTS * port->room;
    if (posix_memalign(&slots, 4096, port->slots_len) != 0 || posix_memalign(&recv, 4096, port->recv_len) != 0) {
        free(slots);
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory for queues of %zu byte%s", port->recv_len,
                        vk_s(port->recv_len));
    }
    memset(slots, 0, port->slots_len);
    port->slots = slots;
    port->recv_memory = recv;
    VIP_RETURN code = viakit_alloc(port->nic, port->send_len, &send); /* readable by ranks of this host */
    if (code != VIP_SUCCESS)
        return bip_nic_failed(job, "viakit_alloc", code);
    port->send_memory = send;
    job->memory += port->slots_len + port->recv_len + port->send_len;
    if (reg(port, slots, port->slots_len, &port->slots_handle) != 0 ||
        reg(port, recv, port->recv_len, &port->recv_handle) != 0 ||
        reg(port, send, port->send_len, &port->send_handle) != 0)
        return BIP_ERR_RESOURCE;
    for (size_t i = 0; i < n; i++) {
        bip_slot *slot = &port->slots[i];
        if (i < SEND_SLOTS) {
            prepare(slot, port->send_memory + i * port->room, port->send_handle, port->room);
            slot->next = port->free_sends;
            port->free_sends = slot;
        } else if (i < SEND_SLOTS + PACKETS) {
            slot->packet = true;
            slot->next = port->free_packets;
            port->free_packets = slot;
        } else
            prepare(slot, port->recv_memory + (i - SEND_SLOTS - PACKETS) * port->room, port->recv_handle, port->room);
    }
    port->n_free_sends = SEND_SLOTS;
    /* Room for every receive there is: it cannot overrun. */
    code = VipCreateCQ(port->nic, n_recv + 1, &port->cq);
    return code == VIP_SUCCESS ? 0 : bip_nic_failed(job, "VipCreateCQ", code);
}

/* A VI for this rank, with its part of the NIC's receives posted; `place` is the rank's
 * number among those of the NIC. */
static int make_vi(bip_peer *peer, uint32_t place)
{
    bip_port *port = peer->port;
    uint32_t n = port->job->options.n_slots + RESERVED;
    VIP_VI_ATTRIBUTES attributes = {
        .ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
        .MaxTransferSize = port->attributes.MaxTransferSize,
        .Ptag = port->ptag,
        .EnableRdmaWrite = VIP_TRUE,
    };
    VIP_RETURN code = VipCreateVi(port->nic, &attributes, NULL, port->cq, &peer->vi);
    if (code != VIP_SUCCESS) {
        peer->vi = NULL;
        return bip_nic_failed(port->job, "VipCreateVi", code);
    }
    peer->recv_slots = port->slots + SEND_SLOTS + PACKETS + (size_t)place * n;
    for (uint32_t i = 0; i < n; i++) {
        peer->recv_slots[i].peer = peer;
        if (bip_post_slot(peer, &peer->recv_slots[i]) != 0)
            return BIP_ERR_RESOURCE;
    }
    return 0;
}

/* ---------------------------------------------------------------- connecting */

union net_address {
    VIP_NET_ADDRESS net;
    uint8_t bytes[4 + 8 + 24];
};

/* Host, then the discriminator "this job, from, to": both ends name the same connection by
 * it, and no other pair or job does. */
static void name_end(union net_address *a, const uint8_t *host, size_t host_len, const char *job, int from, int to)
{
    uint32_t pair[2] = {(uint32_t)from, (uint32_t)to};
    uint8_t *p = a->bytes + offsetof(VIP_NET_ADDRESS, HostAddress);
    memset(a, 0, sizeof *a);
    a->net.HostAddressLen = (VIP_UINT16)host_len;
    a->net.DiscriminatorLen = 24;
    memcpy(p, host, host_len);
    memcpy(p + host_len, job, 16);
    memcpy(p + host_len + 16, pair, sizeof pair);
}

/* Everybody's cards: who is near, how long a short message may be on each way, and how many
 * the other side has room for. */
static int meet(bip_job *job, const bip_card_of *cards)
{
    uint32_t place[2] = {0, 0};
    int me = job->options.rank, code = 0;
    for (int i = 0; i < job->options.n_ranks; i++) {
        bip_peer *peer = &job->peers[i];
        int k = cards[i].host != cards[me].host;
        peer->rank = i;
        if (cards[i].magic != CARD_MAGIC || cards[i].len[k] > 8)
            return bip_fail(job, BIP_ERR_ARGUMENT,
                            "the card of rank %d is none, or is of another version or kind of machine", i);
        if (i == me)
            continue;
        peer->port = job->ports[k];
        if (peer->port == NULL || cards[i].len[k] == 0 || cards[i].room[k] <= sizeof(bip_head)) {
            peer->port = NULL;
            return bip_fail(
                job, BIP_ERR_ARGUMENT,
                k ? "rank %d is on another host: a network device is needed, such as eth:eth0 or udp:ADDRESS"
                  : "rank %d is on this host: a local device is needed",
                i);
        }
        /* The shorter of both: I must fit his slots, and my own buffers are no longer. */
        size_t theirs = cards[i].room[k] - sizeof(bip_head);
        peer->small = peer->port->table.small < theirs ? peer->port->table.small : theirs;
        peer->n_slots = peer->credits = cards[i].n_slots;
        peer->port->n_peers++;
    }
    for (int k = 0; k < 2 && code == 0; k++)
        if (job->ports[k] && job->ports[k]->n_peers)
            code = make_buffers(job->ports[k]);
        else if (job->ports[k]) { /* nobody is there */
            close_port(job->ports[k]);
            job->ports[k] = NULL;
        }
    for (int i = 0; i < job->options.n_ranks && code == 0; i++)
        if (job->peers[i].port)
            code = make_vi(&job->peers[i], place[job->peers[i].port == job->ports[1]]++);
    return code;
}

/* Begins to connect to a rank; VipConnectPeerDone tells when both have asked. */
static int ask(bip_job *job, const bip_card_of *cards, int rank)
{
    bip_peer *peer = &job->peers[rank];
    int k = peer->port == job->ports[1], me = job->options.rank;
    union net_address local, remote;
    name_end(&local, cards[me].address[k], 6, job->name, me, rank);
    name_end(&remote, cards[rank].address[k], cards[rank].len[k], job->name, rank, me);
    VIP_RETURN code =
        VipConnectPeerRequest(peer->vi, &local.net, &remote.net, 600000); /* our own deadline comes before */
    return code == VIP_SUCCESS ? 0 : bip_nic_failed(job, "VipConnectPeerRequest", code);
}

/* Connections on shm are ready for direct writes when both sides have shown each other their memory, a little
 * after the first frame. Without a thread of the NIC's our polling takes notice. */
static void take_notice(const bip_job *job)
{
    for (int idle = 0, n = 0; job->ports[0] && idle < 8;) {
        if (viakit_poll(job->ports[0]->nic, &n) != VIP_SUCCESS)
            return;
        idle += n == 0;
    }
}

/* Only the local NIC: one on a network has a thread of its own. */
void bip_attend(bip_job *job)
{
    if (job->ports[0])
        viakit_poll(job->ports[0]->nic, NULL);
}

int bip_connect(bip_job *job, const uint8_t *raw, int timeout_ms)
{
    int n = job->options.n_ranks, me = job->options.rank, under_way[WINDOW], n_under_way = 0, round = 0, code = 0;
    bip_wait wait;
    if (job->connected)
        return n == 1 ? 0 : bip_fail(job, BIP_ERR_ARGUMENT, "the job is connected already");
    bip_card_of *cards = calloc((size_t)n, sizeof *cards);
    if (cards == NULL)
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory");
    for (int i = 0; i < n; i++)
        memcpy(&cards[i], raw + (size_t)i * BIP_CARD_LEN, sizeof *cards);
    code = meet(job, cards);
    bip_wait_begin(job, &wait, timeout_ms);
    /* No sleeping here: what is waited for are connections, and no receive would end the sleep. */
    wait.spin_until = VK_NEVER;
    while (code == 0 && (round < n || n_under_way)) {
        while (code == 0 && round < n && n_under_way < WINDOW) {
            int partner = ((round++ - me) % n + n) % n;
            if (partner != me && (code = ask(job, cards, partner)) == 0)
                under_way[n_under_way++] = partner;
        }
        int before = n_under_way;
        /* The last takes the place of one that is done, and is looked at next. */
        for (int i = 0; i < n_under_way && code == 0;) {
            VIP_VI_ATTRIBUTES attributes;
            VIP_RETURN done = VipConnectPeerDone(job->peers[under_way[i]].vi, &attributes);
            if (done == VIP_SUCCESS)
                under_way[i] = under_way[--n_under_way];
            else if (done == VIP_NOT_DONE)
                i++;
            else
                code = bip_nic_failed(job, "VipConnectPeerDone", done);
        }
        if (code == 0 && before == n_under_way && n_under_way) {
            code = bip_wait_step(job, &wait);
            if (code == BIP_ERR_TIMEOUT)
                bip_fail(job, code, "rank %d could not be connected in time: is it running?", under_way[0]);
            sched_yield();
        }
    }
    free(cards);
    if (code)
        return code;
    take_notice(job);
    job->connected = true;
    return 0;
}

/* ---------------------------------------------------------------- closing */

/* Disconnected before it is destroyed, and emptied between: VIPL wants all three, in this order. */
static void destroy_vi(bip_peer *peer)
{
    VIP_DESCRIPTOR *d;
    if (peer->vi == NULL)
        return;
    VipDisconnect(peer->vi);
    do /* flushed descriptors have to be taken back */
        d = NULL;
    while (VipSendDone(peer->vi, &d) != VIP_INVALID_PARAMETER && d);
    do
        d = NULL;
    while (VipRecvDone(peer->vi, &d) != VIP_INVALID_PARAMETER && d);
    VipDestroyVi(peer->vi);
}

/* Is anything of ours still on its way? Credits that are owed do not count: whoever needs them has
 * been told. Of ranks that are lost nothing is waited for. */
static bool settled(bip_job *job)
{
    bip_progress(job);
    for (int i = 0; i < job->options.n_ranks; i++)
        if (job->peers[i].outstanding && !job->peers[i].lost)
            return false;
    return job->send.state != SEND_MOVING;
}

/* Always frees. Who has an unfinished long message under way to somebody waits for it, until the deadline;
 * everybody else is told good-bye, so that he knows that we have left and not died. LEFT: a send had not begun. */
int bip_close(bip_job *job, int timeout_ms)
{
    int code = 0, n = job->peers && job->connected ? job->options.n_ranks : 0;
    bip_wait wait;
    bip_wait_begin(job, &wait, timeout_ms);
    if (n)
        bip_progress(job); /* its receive may have come */
    bool given_up = n && job->send.state != SEND_IDLE && job->send.state != SEND_MOVING;
    if (given_up)
        bip_send_end(job, BIP_ERR_LEFT); /* it has not begun: its buffer is the caller's again */
    for (int i = 0; i < n && code == 0; i++) {
        bip_peer *peer = &job->peers[i];
        while (peer->port && !peer->lost && bip_control(peer, KIND_BYE, 0) == 0 && !peer->lost)
            if ((code = bip_wait_step(job, &wait)) != 0)
                break;
    }
    while (n && code == 0 && !settled(job))
        code = bip_wait_step(job, &wait);
    for (int i = 0; job->peers && i < job->options.n_ranks; i++)
        destroy_vi(&job->peers[i]);
    for (int i = 0; i < 2; i++)
        if (job->ports[i])
            close_port(job->ports[i]);
    bip_tags_fini(job);
    free(job->peers);
    free(job->unsettled);
    free(job);
    return code ? code : given_up ? BIP_ERR_LEFT : 0;
}

/* ---------------------------------------------------------------- what can be known */

const char *bip_error(const bip_job *job)
{
    return job->error;
}

int bip_rank(const bip_job *job)
{
    return job->options.rank;
}

int bip_n_ranks(const bip_job *job)
{
    return job->options.n_ranks;
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
    const bip_port *port = rank >= 0 && rank < job->options.n_ranks ? job->peers[rank].port : NULL;
    return port ? port->device : NULL;
}

int bip_has_nic(const bip_job *job, int nic)
{
    return job->ports[nic] != NULL;
}

void *bip_nic(const bip_job *job, int rank)
{
    if (rank < 0 || rank >= job->options.n_ranks || job->peers[rank].port == NULL)
        return NULL;
    return job->peers[rank].port->nic;
}
