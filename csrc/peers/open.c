/*
 * Opening a job's NICs, their buffers and VIs; and closing them.
 *
 * The NICs of one job have a private name on shm, by which ranks of this host connect. All others connect through the
 * network device. A local NIC has no thread: on one host nothing needs acknowledging, and 64 more threads would compete
 * for the cores. Frames are lost there only if faults are injected. Then the NIC has a thread, to retransmit while the
 * program computes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plural.h"
#include "peers/peers.h"

/* ---------------------------------------------------------------- errors */

int peers_nic_failed(struct peers *p, const char *call, VIP_RETURN code)
{
    const char *name = viakit_return_name((int)code), *why = viakit_last_error();
    char text[512];
    snprintf(text, sizeof text, "%s: %s%s%s", call, name ? name : "failed", *why ? ": " : "", why);
    return p->failed(p->owner, PEERS_ERR_NIC, text);
}

/* Reports that `len` bytes of buffers, or (0) something small, could not be allocated. Returns the user's code. */
static int no_memory(struct peers *p, size_t len)
{
    char text[64] = "no memory";
    if (len)
        snprintf(text, sizeof text, "no memory for %zu byte%s of buffers", len, vk_s(len));
    return p->failed(p->owner, PEERS_ERR_NO_MEMORY, text);
}

/* Called by the provider from any thread, so it only sets a flag. The queues report the consequences. Release, paired
 * with an acquire where a user reads it while it connects. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    struct peers_port *port = context;
    if (error->ErrorCode == VIP_ERROR_CONN_LOST)
        vk_store_release(&port->lost, 1);
}

/* ---------------------------------------------------------------- NICs */

/* The tables have an entry for each rank. pair_len is the length of the user's struct, which begins with a struct
 * peers_pair. All zeros: no pair has a port or a VI yet. peers_close frees the tables. */
int peers_init(struct peers *p)
{
    p->pairs = calloc((size_t)p->n_ranks, p->pair_len);
    p->unsettled = calloc((size_t)p->n_ranks, sizeof(struct peers_pair *));
    p->meeting = calloc((size_t)p->n_ranks, sizeof(struct peers_pair *));
    return p->pairs && p->unsettled && p->meeting ? 0 : no_memory(p, 0);
}

/* All ranks of a host have one address on its local link, so the port completes it. */
static int find_address(struct peers_port *port)
{
    const VIP_NIC_ATTRIBUTES *a = &port->attributes;
    size_t most = sizeof port->address - (port->index == 0 ? sizeof port->info.port : 0);
    char text[128];
    if (a->NicAddressLen > most) {
        snprintf(text, sizeof text, "%s: addresses of %u byte%s", port->device, a->NicAddressLen,
                 vk_s(a->NicAddressLen));
        return port->peers->failed(port->owner, PEERS_ERR_NIC, text);
    }
    port->address_len = (uint8_t)a->NicAddressLen;
    memcpy(port->address, a->LocalNicAddress, port->address_len);
    if (port->index == 0) {
        memcpy(port->address + port->address_len, &port->info.port, sizeof port->info.port);
        port->address_len = sizeof port->address;
    }
    return 0;
}

/* Parses a text of faults, and sets them on the NIC: it spoils the frames that it sends from here on. */
static VIP_RETURN inject(const struct peers_port *port, const char *text)
{
    viakit_faults faults = {.size = sizeof faults};
    VIP_RETURN code = viakit_parse_faults(text, &faults);
    return code == VIP_SUCCESS ? viakit_set_faults(port->nic, &faults) : code;
}

int peers_open_port(struct peers *p, int index, const char *device, viakit_nic_options *options, const char *faults,
                    bool thread)
{
    struct peers_port *port = calloc(1, sizeof *port);
    /* A NIC applies VIAKIT_FAULT itself when it opens. Here it only decides about the thread. */
    const char *lossy = faults && *faults ? faults : getenv("VIAKIT_FAULT");
    VIP_RETURN code;
    if (port == NULL)
        return no_memory(p, 0);
    options->spin_us = -1; /* users spin themselves */
    const viakit_link_info *link = viakit_link_of(device);
    options->no_thread = link && link->maps_memory && link->lossless && !thread && !(lossy && *lossy);
    port->peers = p;
    port->owner = p->owner;
    port->index = index;
    snprintf(port->device, sizeof port->device, "%s", device);
    if ((code = viakit_open_nic(device, options, &port->nic)) != VIP_SUCCESS) {
        free(port);
        return peers_nic_failed(p, device, code);
    }
    /* From here on peers_close_port undoes every step, so errors only return. */
    p->ports[index] = port;
    VipErrorCallback(port->nic, port, on_error);
    if (faults && *faults && (code = inject(port, faults)) != VIP_SUCCESS)
        return peers_nic_failed(p, "viakit_set_faults", code);
    if ((code = VipQueryNic(port->nic, &port->attributes)) != VIP_SUCCESS)
        return peers_nic_failed(p, "VipQueryNic", code);
    if ((code = viakit_query_nic(port->nic, &port->info)) != VIP_SUCCESS)
        return peers_nic_failed(p, "viakit_query_nic", code);
    if ((code = VipCreatePtag(port->nic, &port->ptag)) != VIP_SUCCESS)
        return peers_nic_failed(p, "VipCreatePtag", code);
    /* RDMA read is optional in VIA. The attribute has a bit for each reliability level that supports it. */
    port->can_read = p->reads && (port->attributes.RDMAReadSupport & p->reliability) != 0;
    port->lossless = port->info.lossless && p->reliability == VIP_SERVICE_RELIABLE_DELIVERY;
    /* Registered for all uses at once, because many programs send and receive with one buffer. */
    VIP_MEM_ATTRIBUTES uses = {
        .Ptag = port->ptag, .EnableRdmaWrite = VIP_TRUE, .EnableRdmaRead = port->can_read ? VIP_TRUE : VIP_FALSE};
    if (peers_cache_init(&port->cache, port->nic, uses, &p->limits, &p->counters) != 0)
        return no_memory(p, 0);
    return find_address(port);
}

/* Also closes a port that was opened only in part. VIPL's order: regions, then their memory, queue and tag. No VI uses
 * them any more. */
void peers_close_port(struct peers *p, int index)
{
    struct peers_port *port = p->ports[index];
    if (port == NULL)
        return;
    p->ports[index] = NULL;
    peers_cache_fini(&port->cache);
    if (port->slots_handle)
        VipDeregisterMem(port->nic, port->slots, port->slots_handle);
    if (port->send_handle)
        VipDeregisterMem(port->nic, port->send_memory, port->send_handle);
    if (port->send_memory)
        viakit_free(port->nic, port->send_memory);
    if (port->cq)
        VipDestroyCQ(port->cq);
    if (port->ptag)
        VipDestroyPtag(port->nic, port->ptag);
    VipCloseNic(port->nic); /* frees all shared memory that users allocated there */
    free(port->slots);
    free(port);
}

/* ---------------------------------------------------------------- buffers */

/* Registers private memory of the port. Without RDMA rights: no handle gives a peer access to slots, eager buffers or
 * the buffers of receives. */
static int reg(struct peers_port *port, void *memory, size_t len, VIP_MEM_HANDLE *handle)
{
    VIP_MEM_ATTRIBUTES attributes = {.Ptag = port->ptag};
    VIP_RETURN code = VipRegisterMem(port->nic, memory, len, &attributes, handle);
    return code == VIP_SUCCESS ? 0 : peers_nic_failed(port->peers, "VipRegisterMem", code);
}

/* All slots of a port are one array; slot_len is the length of the user's struct, which begins with a peers_slot:
 *
 *      | n_sends | n_rdma | n_recv of the first pair made | n_recv of the second | ...
 */
static struct peers_slot *slot_at(const struct peers_port *port, size_t i)
{
    return (struct peers_slot *)(void *)(port->slots + i * port->peers->slot_len);
}

/* Sets the constant part of a slot. SegCount 1 marks it as no RDMA. */
static void prepare(struct peers_slot *slot, char *buf, VIP_MEM_HANDLE handle, size_t len)
{
    slot->buf = buf;
    slot->d.CS.SegCount = 1;
    slot->d.DS[0].Local.Data.Address = buf;
    slot->d.DS[0].Local.Handle = handle;
    slot->d.DS[0].Local.Length = (VIP_UINT32)len;
}

/* The completion queue has room for every receive of every rank, so it cannot overflow. The buffers of the receives are
 * made with each pair, because most pairs of a large job never meet. */
int peers_make_buffers(struct peers_port *port, uint32_t n_ranks, size_t room, uint32_t n_recv)
{
    struct peers *p = port->peers;
    size_t first = p->n_sends + p->n_rdma, n_recvs = (size_t)n_ranks * n_recv, n = first + n_recvs;
    void *slots = NULL, *send = NULL;
    int failed;
    port->room = room;
    port->n_recv = n_recv;
    port->slots_len = n * p->slot_len;
    port->recv_len = n_recvs * room;
    port->send_len = p->n_sends * room;
    if (posix_memalign(&slots, 4096, port->slots_len) != 0)
        return no_memory(p, port->slots_len);
    port->slots = memset(slots, 0, port->slots_len);
    VIP_RETURN code = viakit_alloc(port->nic, port->send_len, &send); /* readable by ranks of this host */
    if (code != VIP_SUCCESS)
        return peers_nic_failed(p, "viakit_alloc", code);
    port->send_memory = send;
    if ((failed = reg(port, slots, port->slots_len, &port->slots_handle)) != 0 ||
        (failed = reg(port, send, port->send_len, &port->send_handle)) != 0)
        return failed;
    for (size_t i = 0; i < p->n_sends; i++) {
        prepare(slot_at(port, i), port->send_memory + i * room, port->send_handle, room);
        peers_put_send(port, slot_at(port, i));
    }
    /* RDMA slots have no buffer. BIP distinguishes them from send slots by buf == NULL. */
    for (size_t i = p->n_sends; i < first; i++)
        peers_put_rdma(port, slot_at(port, i));
    code = VipCreateCQ(port->nic, (VIP_ULONG)n_recvs + 1, &port->cq);
    return code == VIP_SUCCESS ? 0 : peers_nic_failed(p, "VipCreateCQ", code);
}

/* Makes the buffers of a pair's receives, and posts them. */
static int post_receives(struct peers_port *port, struct peers_pair *pair)
{
    const struct peers *p = port->peers;
    size_t first = p->n_sends + p->n_rdma + (size_t)port->n_pairs++ * port->n_recv, len = port->n_recv * port->room;
    void *memory = NULL;
    VIP_RETURN code;
    if (posix_memalign(&memory, 4096, len) != 0)
        return no_memory(port->peers, len);
    /* Stored before the registration, so that destroy_pair frees it after any error. */
    pair->recv_memory = memory;
    int failed = reg(port, memory, len, &pair->recv_handle);
    for (uint32_t i = 0; failed == 0 && i < port->n_recv; i++) {
        struct peers_slot *slot = slot_at(port, first + i);
        prepare(slot, pair->recv_memory + i * port->room, pair->recv_handle, port->room);
        slot->pair = pair;
        if ((code = peers_post_recv(pair, slot)) != VIP_SUCCESS)
            failed = peers_nic_failed(port->peers, "VipPostRecv", code);
    }
    return failed;
}

/* Posts all receives before the VI connects, so every packet finds one. Sends have no completion queue (NULL), because
 * their completions matter only when a buffer is needed or a transfer is tracked. After an error the VI may exist; it
 * stays for peers_close. */
int peers_make_pair(struct peers_port *port, struct peers_pair *pair)
{
    struct peers *p = port->peers;
    VIP_VI_ATTRIBUTES attributes = {
        .ReliabilityLevel = p->reliability,
        .MaxTransferSize = port->attributes.MaxTransferSize,
        .Ptag = port->ptag,
        .EnableRdmaWrite = VIP_TRUE,
        .EnableRdmaRead = port->can_read ? VIP_TRUE : VIP_FALSE,
    };
    VIP_RETURN code = VipCreateVi(port->nic, &attributes, NULL, port->cq, &pair->vi);
    pair->port = port;
    if (code != VIP_SUCCESS) {
        pair->vi = NULL;
        return peers_nic_failed(p, "VipCreateVi", code);
    }
    /* It connects only with a rank of this job, which must prove that it has the secret. */
    if ((code = viakit_set_vi_secret(pair->vi, p->secret, PEERS_SECRET_LEN)) != VIP_SUCCESS)
        return peers_nic_failed(p, "viakit_set_vi_secret", code);
    return post_receives(port, pair);
}

/* ---------------------------------------------------------------- use */

void peers_forget(struct peers *p, const void *buf, size_t len)
{
    for (int i = 0; i < 2; i++)
        if (p->ports[i])
            peers_cache_forget(&p->ports[i]->cache, buf, len);
}

/* The local NIC may have no thread that drives it (peers_open_port). */
void peers_attend(const struct peers *p)
{
    if (p->ports[0])
        viakit_poll(p->ports[0]->nic, NULL);
}

/* With two NICs each sleep is short, on one NIC in turn; several threads may be about to sleep at once. Completions of
 * sends cause no wake-up. So with sends outstanding the sleep is short, too. ms 0 also sleeps for 1 ms. Returns the VI
 * of a completion, which the caller reaps from that VI's queue, or NULL. */
VIP_VI_HANDLE peers_sleep(struct peers *p, uint64_t ms)
{
    const struct peers_port *port = p->ports[0] ? p->ports[0] : p->ports[1];
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    /* No call of VIPL waits on two NICs. */
    if (p->ports[0] && p->ports[1]) {
        port = p->ports[vk_add(&p->next_sleep, 1) & 1];
        ms = 1;
    }
    if (ms == 0 || vk_load_relaxed(&p->n_unsettled) || vk_load_relaxed(&p->n_meeting))
        ms = 1;
    return VipCQWait(port->cq, (VIP_ULONG)ms, &vi, &recv) == VIP_SUCCESS ? vi : NULL;
}

/* ---------------------------------------------------------------- closing */

/* VIPL requires this order: disconnect, reap all descriptors, destroy. Their status no longer matters. */
static void destroy_pair(struct peers_pair *pair)
{
    VIP_DESCRIPTOR *d;
    if (pair->vi == NULL)
        return;
    VipDisconnect(pair->vi);
    /* VIP_INVALID_PARAMETER ends a loop if the VI cannot be queried. */
    do
        d = NULL;
    while (VipSendDone(pair->vi, &d) != VIP_INVALID_PARAMETER && d);
    do
        d = NULL;
    while (VipRecvDone(pair->vi, &d) != VIP_INVALID_PARAMETER && d);
    VipDestroyVi(pair->vi);
    pair->vi = NULL;
    /* After VipDeregisterMem neither the NIC nor a peer writes to the memory, so it can be freed. */
    if (pair->recv_handle)
        VipDeregisterMem(pair->port->nic, pair->recv_memory, pair->recv_handle);
    free(pair->recv_memory);
}

/* Also closes a job that was opened only in part, whose tables may be NULL. A second call has no effect. */
void peers_close(struct peers *p)
{
    for (int i = 0; p->pairs && i < p->n_ranks; i++)
        destroy_pair(peers_pair_of(p, i));
    for (int i = 0; i < 2; i++)
        peers_close_port(p, i);
    free(p->pairs);
    free(p->unsettled);
    free(p->meeting);
    p->pairs = NULL;
    p->unsettled = p->meeting = NULL;
}
