/*
 * Opening the `via` channel: NICs, eager buffers, and a connection to every other rank; and closing it.
 *
 * All ranks connect at the start, pair by pair, as equals (VipConnectPeerRequest): both sides
 * name the pair, nobody waits for anybody, and what is lost is repeated by the provider. Pairs
 * are taken in the order of a tournament, where in each round everybody has another partner,
 * so that both sides come to a pair at about the same time:
 *
 *      4 ranks, round 0:  0-3 1-2      round 1:  0-1 2-3      round 2:  0-2 1-3
 *
 * WINDOW of them are under way at once, which keeps the number of repeated requests small
 * when 64 ranks share 2 cores.
 *
 * The NICs of one job have a name of their own on shm. Ranks of this host are reached through it, all others
 * through the network device. A local NIC has no thread of its own: on one host nothing needs acknowledging,
 * and 64 more threads would only be in the way. Only where the environment asks for faults (VIAKIT_FAULT) is
 * anything lost there, and it has one, to repeat it while the program computes.
 *
 * Memory of a NIC, each block registered once:
 *
 *      slots         [VC_SEND_SLOTS] [VC_RDMA_SLOTS] [n_recv of the first rank] [n_recv of the second] ...
 *      send_memory   a buffer of `room` bytes for each send slot        shared: ranks of this host may read it
 *      recv_memory   the same for each receive slot
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "via.h"

#define WINDOW 16
#define REQUEST_MS 600000 /* of one request: our own deadline comes before */
#define CLOSE_MS 1000     /* for sends that are not acknowledged yet */

/* What each rank tells all others before they connect. How many buffers it keeps ready for each rank depends on
 * how many ranks it meets on that NIC, so where hosts differ the two sides of a pair do. */
struct address_card {
    uint8_t host[2][8]; /* of the local, the network NIC */
    uint8_t len[2];
    uint8_t failed;
    uint32_t n_recv[2];
    struct msg_room room;
};

/* ---------------------------------------------------------------- NICs */

/* Called by the provider, from whatever thread notices, without the world's lock: so only a
 * mark is left here. Release, with the acquire in connect_ranks; once connected nobody looks
 * at it any more, for the queues tell the same. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    struct vc_port *port = context;
    if (error->ErrorCode == VIP_ERROR_CONN_LOST) /* what follows from it is seen by the queues */
        vk_store_release(&port->lost, 1);
}

/* Also of one that was opened half way: what is still NULL or 0 was never made. Regions before their memory,
 * queue and tag after the VIs that used them (destroy_rank was called). */
static void close_port(struct vc_port *port)
{
    vc_cache_fini(port);
    if (port->slots_handle)
        VipDeregisterMem(port->nic, port->slots, port->slots_handle);
    if (port->send_handle)
        VipDeregisterMem(port->nic, port->send_memory, port->send_handle);
    if (port->recv_handle)
        VipDeregisterMem(port->nic, port->recv_memory, port->recv_handle);
    if (port->send_memory)
        viakit_free(port->nic, port->send_memory);
    free(port->recv_memory);
    free(port->slots);
    if (port->cq)
        VipDestroyCQ(port->cq);
    if (port->ptag)
        VipDestroyPtag(port->nic, port->ptag);
    VipCloseNic(port->nic); /* frees what msg_alloc gave out */
    free(port);
}

static int failed(msg_world *w, const char *call, VIP_RETURN code)
{
    const char *name = viakit_return_name((int)code), *why = viakit_last_error();
    return msg_fail(w, MSG_ERR_CHANNEL, "%s: %s%s%s", call, name ? name : "failed", *why ? ": " : "", why);
}

/* Registered memory of the port's own. */
static int reg(struct vc_port *port, void *memory, size_t len, VIP_MEM_HANDLE *handle)
{
    VIP_MEM_ATTRIBUTES attributes = {.Ptag = port->ptag};
    VIP_RETURN code = VipRegisterMem(port->nic, memory, len, &attributes, handle);
    return code == VIP_SUCCESS ? 0 : failed(port->world, "VipRegisterMem", code);
}

/* What never changes in a slot: which buffer it sends from or receives into. SegCount 1 marks
 * it as no RDMA (via.c). */
static void prepare_slot(struct vc_slot *slot, char *buf, VIP_MEM_HANDLE handle, size_t len)
{
    slot->buf = buf;
    slot->d.CS.SegCount = 1;
    slot->d.DS[0].Local.Data.Address = buf;
    slot->d.DS[0].Local.Handle = handle;
    slot->d.DS[0].Local.Length = (VIP_UINT32)len;
}

/* Eager limit, credits, and memory for them. `room` is an eager buffer: the largest packet, rounded up to whole
 * cache lines, and at least 256 bytes, for put_short needs that many (MSG_PUT_SHORT). Credits: as many as the
 * policy names, as few as pool_bytes allows, VC_LEAST_CREDITS in any case. */
static int make_buffers(struct vc_port *port)
{
    msg_world *w = port->world;
    const msg_policy *p = &w->policy;
    port->eager_limit = (size_t)(port->index == 0 ? p->eager_limit_local : p->eager_limit);
    size_t most = port->attributes.MaxTransferSize - sizeof(struct msg_packet);
    if (port->eager_limit > most)
        port->eager_limit = most;
    port->room = (port->eager_limit + sizeof(struct msg_packet) + 63) & ~(size_t)63;
    if (port->room < 256)
        port->room = 256;
    uint64_t credits = (uint64_t)p->pool_bytes / (port->n_ranks * port->room);
    credits = credits > (uint64_t)p->credits ? (uint64_t)p->credits : credits;
    uint64_t limit = port->attributes.MaxDescriptorsPerQueue - VC_RESERVE;
    credits = credits < VC_LEAST_CREDITS ? VC_LEAST_CREDITS : credits > limit ? limit : credits;
    port->n_recv = (uint32_t)credits + VC_RESERVE;
    port->recv_bytes = (size_t)port->n_ranks * port->n_recv * port->room;
    port->n_slots = VC_SEND_SLOTS + VC_RDMA_SLOTS + (size_t)port->n_ranks * port->n_recv;
    void *slots = NULL, *recv = NULL, *send = NULL;
    if (posix_memalign(&slots, 4096, port->n_slots * sizeof *port->slots) != 0 ||
        posix_memalign(&recv, 4096, port->recv_bytes) != 0) {
        free(slots);
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory for %zu bytes of eager buffers", port->recv_bytes);
    }
    memset(slots, 0, port->n_slots * sizeof *port->slots);
    port->slots = slots;
    port->recv_memory = recv;
    VIP_RETURN code = viakit_alloc(port->nic, VC_SEND_SLOTS * port->room, &send); /* readable by ranks of this host */
    if (code != VIP_SUCCESS)
        return failed(w, "viakit_alloc", code);
    port->send_memory = send;
    if (reg(port, slots, port->n_slots * sizeof *port->slots, &port->slots_handle) != 0 ||
        reg(port, recv, port->recv_bytes, &port->recv_handle) != 0 ||
        reg(port, send, VC_SEND_SLOTS * port->room, &port->send_handle) != 0)
        return MSG_ERR_CHANNEL;
    for (size_t i = 0; i < VC_SEND_SLOTS; i++) {
        prepare_slot(&port->slots[i], port->send_memory + i * port->room, port->send_handle, port->room);
        port->slots[i].next = port->free_sends;
        port->free_sends = &port->slots[i];
    }
    port->n_free_sends = VC_SEND_SLOTS;
    for (size_t i = VC_SEND_SLOTS; i < VC_SEND_SLOTS + VC_RDMA_SLOTS; i++) {
        port->slots[i].next = port->free_rdma;
        port->free_rdma = &port->slots[i];
    }
    for (size_t i = VC_SEND_SLOTS + VC_RDMA_SLOTS, k = 0; i < port->n_slots; i++, k++)
        prepare_slot(&port->slots[i], port->recv_memory + k * port->room, port->recv_handle, port->room);
    return 0;
}

/* Opens a NIC and makes what it needs but for VIs. The completion queue has room for every receive of every
 * rank: it cannot overrun. On an error what was made stays in v->ports, where vc_close finds it. */
static int open_port(msg_world *w, int index, const char *device, uint32_t n_ranks)
{
    struct vc_world *v = w->at;
    viakit_nic_options options = {.size = sizeof options};
    viakit_nic_info info;
    struct vc_port *port = calloc(1, sizeof *port);
    if (port == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    options.spin_us = -1; /* we spin ourselves */
    options.takeover_us = msg_takeover_us(w);
    const char *faults = getenv("VIAKIT_FAULT");
    /* No thread of the NIC's only where nothing has to be repeated and the program itself makes progress. */
    options.no_thread =
        strncmp(device, "shm", 3) == 0 && w->policy.progress == MSG_PROGRESS_CALLER && !(faults && *faults);
    port->world = w;
    port->index = index;
    port->n_ranks = n_ranks;
    snprintf(port->device, sizeof port->device, "%s", device);
    VIP_RETURN code = viakit_open_nic(device, &options, &port->nic);
    if (code != VIP_SUCCESS) {
        free(port);
        return failed(w, device, code);
    }
    v->ports[index] = port;
    VipErrorCallback(port->nic, port, on_error);
    if ((code = VipQueryNic(port->nic, &port->attributes)) != VIP_SUCCESS)
        return failed(w, "VipQueryNic", code);
    if ((code = viakit_query_nic(port->nic, &info)) != VIP_SUCCESS)
        return failed(w, "viakit_query_nic", code);
    if ((code = VipCreatePtag(port->nic, &port->ptag)) != VIP_SUCCESS)
        return failed(w, "VipCreatePtag", code);
    port->nic_port = info.port;
    port->bytes_to_map = info.bytes_to_map;
    /* The least of both NICs', in the end: one policy holds for all pairs. */
    if (w->policy.piece > (int64_t)port->attributes.MaxTransferSize)
        w->policy.piece = (int64_t)port->attributes.MaxTransferSize;
    port->lossless = info.lossless && w->policy.reliability == VIP_SERVICE_RELIABLE_DELIVERY;
    /* RDMARead is optional in VIA; the attribute has a bit for each level of reliability that has it. */
    port->can_read = (port->attributes.RDMAReadSupport & w->policy.reliability) != 0;
    if (vc_cache_init(port) != 0 || make_buffers(port) != 0)
        return MSG_ERR_CHANNEL;
    code = VipCreateCQ(port->nic, (VIP_ULONG)n_ranks * port->n_recv + 1, &port->cq);
    return code == VIP_SUCCESS ? 0 : failed(w, "VipCreateCQ", code);
}

/* ---------------------------------------------------------------- VIs */

/* A VI for this rank with all its receives posted, before it is connected: nothing that arrives finds none. */
static int make_rank(struct vc_rank *rank, struct vc_port *port, uint32_t place)
{
    VIP_VI_ATTRIBUTES attributes = {
        .ReliabilityLevel = (VIP_RELIABILITY_LEVEL)port->world->policy.reliability,
        .MaxTransferSize = port->attributes.MaxTransferSize,
        .Ptag = port->ptag,
        .EnableRdmaWrite = VIP_TRUE,
        .EnableRdmaRead = port->can_read ? VIP_TRUE : VIP_FALSE,
    };
    VIP_RETURN code = VipCreateVi(port->nic, &attributes, NULL, port->cq, &rank->vi);
    if (code != VIP_SUCCESS) {
        rank->vi = NULL;
        return failed(port->world, "VipCreateVi", code);
    }
    rank->port = port;
    rank->recv = port->slots + VC_SEND_SLOTS + VC_RDMA_SLOTS + (size_t)place * port->n_recv;
    rank->peer->eager_limit = port->eager_limit;
    /* All of them, VC_RESERVE more than the other side has credits. */
    for (uint32_t i = 0; i < port->n_recv; i++)
        if (vc_post_recv(rank, &rank->recv[i]) != 0)
            return failed(port->world, "VipPostRecv", VIP_ERROR_RESOURCE);
    return 0;
}

/* ---------------------------------------------------------------- connecting */

/* A net address is host, then discriminator, of any lengths: room for the longest that is used here. */
union net_address {
    VIP_NET_ADDRESS net;
    uint8_t bytes[4 + 8 + 16];
};

/* Host, then the discriminator "this job, from, to": 8 bytes of the job's name and two ranks. Both ends of a
 * pair name the same VI-to-VI connection by it, and no other job or pair does. */
static void name_end(union net_address *a, const uint8_t *host, size_t host_len, const char *job, int from, int to)
{
    uint32_t pair[2] = {(uint32_t)from, (uint32_t)to};
    uint8_t *p = a->bytes + offsetof(VIP_NET_ADDRESS, HostAddress);
    memset(a, 0, sizeof *a);
    a->net.HostAddressLen = (VIP_UINT16)host_len;
    a->net.DiscriminatorLen = 16;
    memcpy(p, host, host_len);
    memcpy(p + host_len, job, 8);
    memcpy(p + host_len + 8, pair, sizeof pair);
}

/* Who our partner is in a round of a tournament of n; -1: no one. The circle method: one stands still, the
 * others turn around it, each meeting whoever is opposite. If n is odd the one who stands is nobody, and who
 * meets him rests. Each pair meets in exactly one round, and both compute the same. */
static int partner_in(int round, int rank, int n)
{
    int all = n + n % 2, circle = all - 1;
    int partner =
        rank == circle ? (int)((int64_t)round * (all / 2) % circle) : ((round - rank) % circle + circle) % circle;
    if (partner == rank)
        partner = circle;
    return partner < n ? partner : -1;
}

static int ask(msg_world *w, int rank, const struct address_card *cards)
{
    struct vc_rank *r = &((struct vc_world *)w->at)->ranks[rank];
    int k = r->port->index;
    union net_address local, remote;
    name_end(&local, cards[w->rank].host[k], 6, w->job, w->rank, rank);
    name_end(&remote, cards[rank].host[k], cards[rank].len[k], w->job, rank, w->rank);
    VIP_RETURN code = VipConnectPeerRequest(r->vi, &local.net, &remote.net, REQUEST_MS);
    return code == VIP_SUCCESS ? 0 : failed(w, "VipConnectPeerRequest", code);
}

/* Are those under way connected? Returns how many more are, or a negative error. */
static int collect(msg_world *w, int *under_way, int *n)
{
    struct vc_world *v = w->at;
    int done = 0;
    for (int i = 0; i < *n;) {
        VIP_VI_ATTRIBUTES attributes;
        VIP_RETURN code = VipConnectPeerDone(v->ranks[under_way[i]].vi, &attributes);
        if (code == VIP_SUCCESS) {
            /* The last takes the place of the one that is done, and is looked at next. */
            under_way[i] = under_way[--*n];
            done++;
        } else if (code == VIP_NOT_DONE)
            i++;
        else {
            failed(w, "VipConnectPeerDone", code);
            return -1;
        }
    }
    return done;
}

/* Why, as far as it can be known here. */
static int out_of_time(msg_world *w, int rank)
{
    /* A descriptor is opened to see whether one can be: the provider has no other way to tell why
     * the other side never came. */
    int fd = epoll_create1(EPOLL_CLOEXEC), none_left = fd < 0 && errno == EMFILE;
    if (fd >= 0)
        close(fd);
    return msg_fail(w, MSG_ERR_CHANNEL,
                    none_left ? "rank %d could not be connected: this process may not open more files, and over shm it "
                                "needs four for each rank of its host; raise the limit (ulimit -n)"
                              : "rank %d could not be connected in time: is it running?",
                    rank);
}

/* All pairs, at most WINDOW at a time, until the deadline, an interrupt or a death. */
static int connect_ranks(msg_world *w, const msg_options *o, const struct address_card *cards)
{
    struct vc_world *v = w->at;
    int under_way[WINDOW], n = 0, rounds = w->n_ranks + w->n_ranks % 2 - 1;
    uint64_t deadline = vk_now() + (uint64_t)(o->open_timeout_ms > 0 ? o->open_timeout_ms : 60000) * VK_MS;
    for (int round = 0, done = 0; round < rounds || n;) {
        while (round < rounds && n < WINDOW) {
            int partner = partner_in(round++, w->rank, w->n_ranks);
            if (partner < 0)
                continue;
            if (ask(w, partner, cards) != 0)
                return MSG_ERR_CHANNEL;
            under_way[n++] = partner;
        }
        if ((done = collect(w, under_way, &n)) < 0)
            return MSG_ERR_CHANNEL;
        for (int i = 0; i < 2; i++)
            if (v->ports[i] && vk_load_acquire(&v->ports[i]->lost))
                return msg_fail(w, MSG_ERR_PROC_FAILED, "a rank died while the ranks were connecting");
        /* Only when nothing has got on: as long as pairs connect nobody is given up. */
        if (done == 0 && vk_now() > deadline)
            return out_of_time(w, under_way[0]);
        if (done == 0 && w->interrupt && w->interrupt(w->interrupt_context))
            return msg_fail(w, MSG_INTERRUPTED, "opening was interrupted");
        if (done == 0)
            sched_yield();
    }
    return 0;
}

/* Connections on shm are ready for direct writes when both sides have shown each other their memory, which may come a
 * little later than the first frame. Without a thread of the NIC's it is our polling that takes notice: a look that
 * finds nothing does. */
static void take_notice(const msg_world *w)
{
    const struct vc_world *v = w->at;
    for (int idle = 0, n = 0; v->ports[0] && idle < 4 + w->n_local / 8;) {
        if (viakit_poll(v->ports[0]->nic, &n) != VIP_SUCCESS)
            return;
        idle += n == 0;
    }
}

/* Channel operation: on networks the NIC's own thread does it. */
void vc_attend(msg_world *w)
{
    const struct vc_world *v = w->at;
    if (v->ports[0])
        viakit_poll(v->ports[0]->nic, NULL);
}

/* Everything that concerns only ourselves: NICs and VIs. No other rank is spoken to, so it
 * may fail on one alone. */
static int open_ports(msg_world *w, const msg_options *o)
{
    struct vc_world *v = w->at;
    char name[64];
    /* Of both kinds: how many other ranks there are, and how many have got their slots so far. */
    uint32_t n[2] = {(uint32_t)w->n_local - 1, (uint32_t)(w->n_ranks - w->n_local)}, place[2] = {0, 0};
    snprintf(name, sizeof name, "shm:msg-%.16s", w->job);
    if (n[0] && open_port(w, 0, o->local_device ? o->local_device : name, n[0]) != 0)
        return MSG_ERR_CHANNEL;
    if (n[1] && o->network_device == NULL)
        return msg_fail(w, MSG_ERR_CHANNEL,
                        "ranks are on several hosts: a network device is needed, such as eth:eth0 or "
                        "udp:ADDRESS");
    if (n[1] && open_port(w, 1, o->network_device, n[1]) != 0)
        return MSG_ERR_CHANNEL;
    for (int i = 0; i < w->n_ranks; i++) {
        int k = w->peers[i].host != w->peers[w->rank].host;
        v->ranks[i].peer = &w->peers[i];
        w->peers[i].at = &v->ranks[i];
        if (i != w->rank && make_rank(&v->ranks[i], v->ports[k], place[k]++) != 0)
            return MSG_ERR_CHANNEL;
    }
    return 0;
}

int vc_open(msg_world *w, const msg_options *o)
{
    struct vc_world *v = calloc(1, sizeof *v);
    struct address_card *cards = calloc((size_t)w->n_ranks, sizeof *cards), mine = {.failed = 0};
    w->at = v;
    if (v)
        v->ranks = calloc((size_t)w->n_ranks, sizeof *v->ranks);
    int code = v && v->ranks && cards ? open_ports(w, o) : msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    /* From here to msg_allgather whatever has failed is only noted: the exchange has to take place. */
    mine.failed = code != 0;
    for (int i = 0; i < 2 && code == 0; i++)
        if (v->ports[i] && v->ports[i]->attributes.NicAddressLen <= sizeof mine.host[i]) {
            mine.len[i] = (uint8_t)v->ports[i]->attributes.NicAddressLen;
            memcpy(mine.host[i], v->ports[i]->attributes.LocalNicAddress, mine.len[i]);
            mine.n_recv[i] = v->ports[i]->n_recv;
        }
    mine.room = msg_room_of(code == 0 && v->ports[0] ? v->ports[0]->bytes_to_map : 0);
    if (code == 0 && v->ports[0]) { /* all ranks of a host have one address there: say which NIC */
        memcpy(mine.host[0] + mine.len[0], &v->ports[0]->nic_port, sizeof v->ports[0]->nic_port);
        mine.len[0] = VIAKIT_NIC_ADDRESS_LEN;
    }
    int gathered = cards ? msg_allgather(w, o, &mine, sizeof mine, cards) : MSG_ERR_NO_MEMORY;
    for (int i = 0; code == 0 && gathered == 0 && i < w->n_ranks; i++)
        if (cards[i].failed)
            code = msg_fail(w, MSG_ERR_CHANNEL, "rank %d could not open its NIC", i);
    code = code ? code : gathered;
    /* What the other side keeps ready for us, not what we keep for it. */
    for (int i = 0; code == 0 && i < w->n_ranks; i++)
        if (i != w->rank)
            v->ranks[i].credits = cards[i].n_recv[v->ranks[i].port->index] - VC_RESERVE;
    if (code == 0)
        code = msg_check_room(w, o, &cards->room, sizeof *cards);
    if (code == 0)
        code = connect_ranks(w, o, cards);
    if (code == 0)
        take_notice(w);
    free(cards);
    if (code)
        vc_close(w);
    return code;
}

/* ---------------------------------------------------------------- closing */

/* Sends that the other side has not acknowledged would be lost with the connection: our BYE, for one. */
static void drain(struct vc_world *v, int n_ranks)
{
    uint64_t deadline = vk_now() + CLOSE_MS * VK_MS;
    for (int i = 0; i < n_ranks; i++) {
        struct vc_rank *rank = &v->ranks[i];
        while (rank->vi && rank->n_outstanding && !rank->peer->gone && vk_now() < deadline) {
            vc_reap(rank);
            if (rank->n_outstanding)
                sched_yield();
        }
    }
}

static void destroy_rank(struct vc_rank *rank)
{
    VIP_DESCRIPTOR *d;
    if (rank->vi == NULL)
        return;
    VipDisconnect(rank->vi);
    /* Whether they were done well does not matter any more; VIP_INVALID_PARAMETER is the end of a
     * VI that cannot be asked. */
    do /* flushed descriptors have to be taken back */
        d = NULL;
    while (VipSendDone(rank->vi, &d) != VIP_INVALID_PARAMETER && d);
    do
        d = NULL;
    while (VipRecvDone(rank->vi, &d) != VIP_INVALID_PARAMETER && d);
    VipDestroyVi(rank->vi);
    rank->vi = NULL;
}

/* In the order that VIPL asks for: disconnect, take descriptors back, destroy VIs, then queue, regions, tag and NIC. */
void vc_close(msg_world *w)
{
    struct vc_world *v = w->at;
    if (v == NULL)
        return;
    if (v->ranks)
        drain(v, w->n_ranks);
    for (int i = 0; v->ranks && i < w->n_ranks; i++)
        destroy_rank(&v->ranks[i]);
    for (int i = 0; i < 2; i++)
        if (v->ports[i])
            close_port(v->ports[i]);
    free(v->ranks);
    free(v);
    w->at = NULL;
}
