/*
 * Memory of the `via` channel that peers use: exposed ranges, and what the NICs offer for it. The contracts are in
 * channel.h. via.c registers the buffers of messages itself, through the cache (peers/cache.h).
 *
 * A range is registered once with each NIC, because a memory handle and a protection tag are valid on one NIC only
 * (VipRegisterMem and VipCreatePtag take its handle):
 *
 *      ports[0]   shm       handle[0], for ranks of this host
 *      ports[1]   network   handle[1], for all others             a port without ranks is NULL, and its handle stays 0
 *
 * Called with the world's lock held. Nothing here waits.
 */
#include "base/plural.h"
#include "msg/via.h"

/* Exposed memory has a handle for each NIC. A peer uses the handle of the NIC that connects it. */
int vc_handle_index(struct msg_peer *peer)
{
    return ((const struct peers_pair *)peer->at)->port->index;
}

/* For viakit_alloc: on shm its memory can be mapped by other ranks, so the local NIC is preferred. Never NULL, because
 * a world with a channel has at least two ranks. */
void *vc_any_nic(msg_world *w)
{
    const struct peers *net = &((struct vc_world *)w->at)->net;
    return net->ports[0] ? net->ports[0]->nic : net->ports[1]->nic;
}

/* Adds, because a rank may have two NICs and the caller has zeroed the sums. */
void vc_nic_counters(msg_world *w, uint64_t *values)
{
    VIP_UINT64 one[VIAKIT_N_COUNTERS];
    for (int i = 0; i < 2; i++) {
        const struct peers_port *port = ((struct vc_world *)w->at)->net.ports[i];
        if (port == NULL || viakit_nic_counters(port->nic, one) != VIP_SUCCESS)
            continue;
        for (int k = 0; k < VIAKIT_N_COUNTERS; k++)
            values[k] += one[k];
    }
}

void vc_forget(msg_world *w, const void *buf, size_t len)
{
    peers_forget(&((struct vc_world *)w->at)->net, buf, len);
}

/* Makes a separate region outside the cache, so that no eviction ends it: it stays until msg_hide, and peers may write
 * to it, and read it, until then. All NICs or none: a failure of the second takes back the first. */
int vc_expose(msg_world *w, void *buf, size_t len, msg_exposed *exposed)
{
    struct peers_port **ports = ((struct vc_world *)w->at)->net.ports;
    msg_exposed e = {.address = (uint64_t)(uintptr_t)buf, .len = len};
    for (int i = 0; i < 2; i++) {
        struct peers_port *port = ports[i];
        VIP_MEM_HANDLE handle = 0;
        if (port == NULL)
            continue;
        VIP_MEM_ATTRIBUTES attributes = {
            .Ptag = port->ptag, .EnableRdmaWrite = VIP_TRUE, .EnableRdmaRead = port->can_read ? VIP_TRUE : VIP_FALSE};
        if (VipRegisterMem(port->nic, buf, len, &attributes, &handle) != VIP_SUCCESS) {
            if (i == 1 && ports[0])
                VipDeregisterMem(ports[0]->nic, buf, e.handle[0]);
            return msg_fail(w, MSG_ERR_NO_MEMORY, "%zu byte%s could not be exposed: %s", len, vk_s(len),
                            viakit_last_error());
        }
        e.handle[i] = handle;
    }
    *exposed = e;
    return MSG_SUCCESS;
}

/* Goes on after a failure, so that no NIC keeps the region. RDMA of a peer that arrives later fails, and breaks the
 * connection to it (VIA: a protection error on a reliable VI). */
int vc_hide(msg_world *w, const msg_exposed *exposed)
{
    int code = MSG_SUCCESS;
    for (int i = 0; i < 2; i++) {
        struct peers_port *port = ((struct vc_world *)w->at)->net.ports[i];
        if (port && VipDeregisterMem(port->nic, (void *)(uintptr_t)exposed->address, exposed->handle[i]) != VIP_SUCCESS)
            code = msg_fail(w, MSG_ERR_ARG, "this range was not exposed, or is hidden already");
    }
    return code;
}
