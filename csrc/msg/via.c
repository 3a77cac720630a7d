/*
 * The `via` channel: packets as messages of a VI, long data by RDMA. Written with the public
 * calls of VIPL only. See via.h for credits.
 *
 *      eager buffer:  | head 8 | data ...          an EAGER packet
 *                     | head 8 | rest 40 | data ...   any other
 *
 * A short message costs one copy into the send buffer, VipPostSend, and on links that need no acknowledgement
 * one VipSendDone; the receiver VipCQDone, VipRecvDone, one copy, VipPostRecv.
 *
 * Where a descriptor (slot) is; it is in one place at a time:
 *
 *      send slot      free_sends --take_slot--> filled --post--> on its VI (n_outstanding) --VipSendDone--> free_sends
 *      RDMA slot      free_rdma  --start_rdma------------post--> on its VI (n_outstanding) --VipSendDone--> its request
 *                                                        is told (send_done), or will be (untold) --> free_rdma
 *      receive slot   on its VI, always, but for the moment in which receive() has it in its hands
 *
 * Sends complete without a queue's telling, so ranks with something outstanding are on the list `unsettled`,
 * which progress looks through. Ranks to which credits are owed that no buffer was free for are on it as well.
 *
 * Many of these calls can end a rank (msg_peer_failed) and with it its requests: a request is found
 * again by its id afterwards, never by a pointer that was kept. And who is told that his data has
 * been moved may send in turn, which takes credits and buffers: so between the look at a credit and
 * its use nobody is told of anything (take_slot, `untold`).
 *
 * All functions are called with the world's lock held, but channel_sleep.
 */
#include "via.h"
#include "base/plural.h"

#include <stdlib.h>

/* Packets handled in one progress call, of a NIC: a rank that always sends does not keep the caller here. */
#define BUDGET 64

static inline struct vc_rank *rank_of(struct msg_peer *peer)
{
    return peer->at;
}

static inline struct vc_world *vc_of(msg_world *w)
{
    return w->at;
}

/* ---------------------------------------------------------------- sends come back */

/* On the list of those that settle() attends to; at most once. */
static void unsettle(struct vc_rank *rank)
{
    struct vc_world *v = vc_of(rank->port->world);
    if (rank->on_list)
        return;
    rank->on_list = 1;
    rank->next = v->unsettled;
    v->unsettled = rank;
    /* Relaxed: channel_sleep reads it without the lock, as a hint how long to sleep; nothing else hangs on it. */
    vk_store_relaxed(&v->n_unsettled, v->n_unsettled + 1);
}

/* A send has been taken back: its slot is free, and RDMA tells its request. The slot is freed before anybody is
 * told, for who is told may want it at once. A request that has ended meanwhile (its rank failed) is not found. */
static inline void send_done(struct vc_slot *slot, int failed)
{
    struct vc_rank *rank = slot->rank;
    struct vc_port *port = rank->port;
    rank->n_outstanding--;
    if (slot->len) {
        msg_request *r = msg_request_find(port->world, slot->request);
        slot->next = port->free_rdma;
        port->free_rdma = slot;
        if (r)
            msg_moved(r, slot->len, failed);
    } else {
        /* Send slots have SegCount 1, so 2 tells that put_short made an RDMA write of it. DS[1] has the
         * buffer's address and handle that DS[0] had before; the length is set anew for each packet. */
        if (vk_unlikely(slot->d.CS.SegCount == 2)) { /* it was lent to put_short */
            slot->d.CS.SegCount = 1;
            slot->d.CS.Control = VIP_CONTROL_OP_SENDRECV;
            slot->d.DS[0].Local = slot->d.DS[1].Local;
        }
        slot->next = port->free_sends;
        port->free_sends = slot;
        port->n_free_sends++;
    }
    if (vk_unlikely(failed))
        msg_peer_failed(rank->peer, "a send failed");
}

/* The next that is done, or NULL. A VI completes its sends in the order in which they were
 * posted, so the first that is not done ends the look. */
static inline struct vc_slot *next_done(struct vc_rank *rank, int *failed)
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN code = rank->n_outstanding ? VipSendDone(rank->vi, &d) : VIP_NOT_DONE;
    if (d == NULL || code == VIP_NOT_DONE)
        return NULL;
    *failed = code != VIP_SUCCESS;
    return (struct vc_slot *)(void *)d;
}

/* Those whose turn to be told had not come, in order. Each is taken off before it is told:
 * send_done may lead here again. */
static void tell(struct vc_world *v)
{
    for (struct vc_slot *slot; (slot = v->untold) != NULL;) {
        v->untold = slot->next;
        send_done(slot, slot->failed != 0);
    }
}

/* Takes back what is done: the first that is not ends the look. */
void vc_reap(struct vc_rank *rank)
{
    struct vc_slot *slot;
    int failed;
    tell(vc_of(rank->port->world));
    while ((slot = next_done(rank, &failed)) != NULL)
        send_done(slot, failed);
}

/* Only buffers. What somebody would have to be told of is left to the next vc_reap: its rank counts it as outstanding
 * until then. */
static void take_back_buffers(struct vc_world *v)
{
    struct vc_slot *slot, **end = &v->untold;
    int failed;
    while (*end)
        end = &(*end)->next;
    for (struct vc_rank *rank = v->unsettled; rank; rank = rank->next)
        while ((slot = next_done(rank, &failed)) != NULL) {
            if (slot->len == 0 && !failed) {
                send_done(slot, 0);
                continue;
            }
            slot->failed = (uint64_t)failed;
            slot->next = NULL;
            *end = slot;
            end = &slot->next;
        }
}

/* Posts the slot. On a lossless link it has most likely been done when the call returns, and is
 * taken back at once, so that its buffer is used again while it is in the cache. The one taken
 * back is the oldest that is done, which need not be this one. 0, or -1: the rank is gone, be it
 * that what was told of an earlier descriptor has shown it. */
static inline int post(struct vc_rank *rank, struct vc_slot *slot)
{
    slot->rank = rank;
    rank->n_outstanding++;
    if (vk_unlikely(VipPostSend(rank->vi, &slot->d, rank->port->slots_handle) != VIP_SUCCESS)) {
        send_done(slot, 1);
        return -1;
    }
    if (vk_likely(rank->port->lossless)) {
        VIP_DESCRIPTOR *d = NULL;
        VIP_RETURN code = VipSendDone(rank->vi, &d);
        if (vk_likely(code == VIP_SUCCESS)) {
            send_done((struct vc_slot *)(void *)d, 0);
            return vk_unlikely(rank->peer->gone) ? -1 : 0;
        }
        if (code == VIP_DESCRIPTOR_ERROR && d)
            send_done((struct vc_slot *)(void *)d, 1);
    }
    if (rank->n_outstanding)
        unsettle(rank);
    return vk_unlikely(rank->peer->gone) ? -1 : 0;
}

/* ---------------------------------------------------------------- packets out */

/* An eager buffer, or NULL. The last `keep` are left for credits (send_credits keeps none): where all others
 * wait for acknowledgements, ranks can still be told that they may send. */
static inline struct vc_slot *take_slot(struct vc_rank *rank, uint32_t keep)
{
    struct vc_port *port = rank->port;
    if (vk_unlikely(port->n_free_sends <= keep)) {
        take_back_buffers(vc_of(port->world));
        if (port->n_free_sends <= keep)
            return NULL;
    }
    struct vc_slot *slot = port->free_sends;
    port->free_sends = slot->next;
    port->n_free_sends--;
    return slot;
}

/* What this rank is owed goes along with a packet; the rest with the next, for the field is a byte. From here
 * on the packet has to be posted, or the credits are lost. */
static inline uint8_t pay(struct vc_rank *rank)
{
    uint32_t n = rank->owed < 255 ? rank->owed : 255;
    rank->owed -= n;
    return (uint8_t)n;
}

static inline int post_bytes(struct vc_rank *rank, struct vc_slot *slot, size_t len)
{
    slot->d.CS.Length = slot->d.DS[0].Local.Length = (VIP_UINT32)len;
    return post(rank, slot);
}

/* The short way of msg_send. First the credit, then the buffer, then what is owed: what can fail comes before
 * what cannot be taken back. 1 taken, 0 no credit or no buffer, -1 the rank is gone. */
static int push_short(struct msg_peer *peer, struct msg_head head, const void *data, size_t len)
{
    struct vc_rank *rank = rank_of(peer);
    struct vc_slot *slot;
    if (vk_unlikely(rank->credits == 0)) {
        MSG_COUNT(peer->world, credit_stalls, 1);
        return 0;
    }
    if (vk_unlikely((slot = take_slot(rank, 2)) == NULL))
        return 0;
    head.credits = pay(rank);
    memcpy(slot->buf, &head, sizeof head);
    if (len)
        vk_copy_short(slot->buf + sizeof head, data, len);
    rank->credits--;
    MSG_COUNT(peer->world, copies, 1);
    MSG_COUNT(peer->world, bytes_copied, len);
    return post_bytes(rank, slot, sizeof head + len) == 0 ? 1 : -1;
}

/* One packet with n bytes of the out's data, from `sent` on. */
static int push_one(struct vc_rank *rank, struct msg_out *out, size_t n)
{
    struct vc_slot *slot;
    size_t head_len = msg_packet_len(&out->packet);
    if (rank->credits == 0) {
        MSG_COUNT(rank->port->world, credit_stalls, 1);
        return 0;
    }
    if ((slot = take_slot(rank, 2)) == NULL)
        return 0;
    out->packet.head.credits = pay(rank);
    memcpy(slot->buf, &out->packet, head_len);
    if (n)
        memcpy(slot->buf + head_len, out->data + out->sent, n);
    rank->credits--;
    MSG_COUNT(rank->port->world, copies, n != 0);
    MSG_COUNT(rank->port->world, bytes_copied, n);
    return post_bytes(rank, slot, head_len + n) == 0 ? 1 : -1;
}

/* DATA is cut into packets that fit an eager buffer, in multiples of 8 so that the receiver's
 * copies stay aligned. `address` is the piece's offset in the message; out->sent remembers
 * how far it is when credits run out. */
static int push(struct msg_peer *peer, struct msg_out *out)
{
    struct vc_rank *rank = rank_of(peer);
    if ((out->packet.head.kind & MSG_PKT_MASK) != MSG_PKT_DATA)
        return push_one(rank, out, out->len);
    size_t most = (rank->port->room - sizeof out->packet) & ~(size_t)7;
    while (out->sent < out->len) {
        size_t n = out->len - out->sent < most ? out->len - out->sent : most;
        out->packet.rest.address = out->sent;
        int taken = push_one(rank, out, n);
        if (taken != 1)
            return taken;
        out->sent += n;
    }
    return 1;
}

/* Only credits. Not to be paid for by a credit, or two ranks without any could not help each
 * other: the receiver has VC_RESERVE buffers more than it lends (via.h says why that is
 * enough). 1, or 0: no buffer, or the rank is gone. */
static int send_credits(struct vc_rank *rank)
{
    struct vc_slot *slot = take_slot(rank, 0);
    if (slot == NULL)
        return 0;
    struct msg_head head = {.kind = MSG_PKT_CREDIT, .credits = pay(rank)};
    memcpy(slot->buf, &head, sizeof head);
    MSG_COUNT(rank->port->world, credits_explicit, 1);
    return post_bytes(rank, slot, sizeof head) == 0;
}

/* ---------------------------------------------------------------- packets in */

int vc_post_recv(struct vc_rank *rank, struct vc_slot *slot)
{
    slot->rank = rank;
    /* Room is what the segment says: CS.Length, in which the provider has left what was received, is not looked at. */
    slot->d.CS.Control = 0;
    return VipPostRecv(rank->vi, &slot->d, rank->port->slots_handle) == VIP_SUCCESS ? 0 : -1;
}

/* An entry of the completion queue: one receive of this VI is done. The order inside matters: what the packet
 * pays us counts before it is delivered, for who gets it may answer; its buffer is posted again before it is
 * owed, for the sender may use what it is told of at once. */
static void receive(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN code = VipRecvDone(vi, &d);
    if (vk_unlikely(d == NULL || code == VIP_NOT_DONE))
        return;
    struct vc_slot *slot = (struct vc_slot *)(void *)d;
    struct vc_rank *rank = slot->rank;
    if (vk_unlikely(code != VIP_SUCCESS)) {
        msg_peer_failed(rank->peer, "the connection was lost");
        return;
    }
    const struct msg_packet *p = (const struct msg_packet *)(const void *)slot->buf;
    size_t len = d->CS.Length;
    int kind = p->head.kind & MSG_PKT_MASK;
    if (vk_unlikely(len < sizeof p->head || (kind != MSG_PKT_EAGER && kind != MSG_PKT_CREDIT && len < sizeof *p))) {
        msg_peer_failed(rank->peer, "a packet was too short");
        return;
    }
    rank->credits += p->head.credits;
    if (vk_likely(kind == MSG_PKT_EAGER))
        msg_arrived(rank->peer, p, slot->buf + sizeof p->head, len - sizeof p->head);
    else if (kind != MSG_PKT_CREDIT)
        msg_arrived(rank->peer, p, slot->buf + sizeof *p, len - sizeof *p);
    if (vk_unlikely(vc_post_recv(rank, slot) != 0)) {
        msg_peer_failed(rank->peer, "no receive could be posted");
        return;
    }
    /* A CREDIT packet used none of the sender's credits, so none is owed for it. */
    rank->owed += kind != MSG_PKT_CREDIT;
    if (vk_unlikely(rank->owed >= (rank->port->n_recv - VC_RESERVE) / 2) && !send_credits(rank))
        unsettle(rank);
}

/* Looks after ranks with something outstanding or owed. The list is taken off first, since what is begun
 * meanwhile puts ranks on it again; each is attended to once. Returns the number of sends taken back. */
static int settle(struct vc_world *v)
{
    struct vc_rank *rank = v->unsettled, *next;
    int n = 0;
    vk_store_relaxed(&v->n_unsettled, 0);
    v->unsettled = NULL; /* what is begun meanwhile makes a new list */
    for (; rank; rank = next) {
        uint32_t before = rank->n_outstanding;
        next = rank->next;
        rank->on_list = 0;
        vc_reap(rank);
        n += (int)(before - rank->n_outstanding);
        /* Half of what we lend: the sender still has the other half to go on with while this is on its way. */
        int owes = rank->owed >= (rank->port->n_recv - VC_RESERVE) / 2 && !rank->peer->gone;
        if (rank->n_outstanding || (owes && !send_credits(rank)))
            unsettle(rank);
    }
    return n;
}

/* One NIC after the other, at most BUDGET packets each; then what was sent. `enough`: see channel.h. */
static int progress(msg_world *w, const uint8_t *enough)
{
    struct vc_world *v = vc_of(w);
    int n = 0;
    for (int i = 0; i < 2; i++) {
        struct vc_port *port = v->ports[i];
        if (port == NULL)
            continue;
        for (int budget = BUDGET; budget > 0; budget--) {
            VIP_VI_HANDLE vi;
            VIP_BOOLEAN recv;
            if (VipCQDone(port->cq, &vi, &recv) != VIP_SUCCESS)
                break;
            receive(vi);
            n++;
            if (enough && *enough)
                return n;
        }
    }
    if (vk_unlikely(v->unsettled != NULL))
        n += settle(v);
    return n;
}

/* With two NICs none can be slept on for long; and completions of sends do not wake. */
static void channel_sleep(msg_world *w, uint64_t ns, struct msg_token *token)
{
    struct vc_world *v = vc_of(w);
    struct vc_port *port = v->ports[0] ? v->ports[0] : v->ports[1];
    uint64_t ms = (ns + VK_MS - 1) / VK_MS;
    if (v->ports[0] && v->ports[1]) {
        /* Without the lock, by several threads perhaps: each takes the next turn. */
        port = v->ports[vk_add(&v->turn, 1) & 1];
        ms = 1;
    }
    /* The wait is for receives; so with sends outstanding it is short, and they are looked at after it. */
    if (vk_load_relaxed(&v->n_unsettled))
        ms = 1;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    if (VipCQWait(port->cq, (VIP_ULONG)(ms ? ms : 1), &vi, &recv) == VIP_SUCCESS) {
        token->what = vi;
        token->n = 1;
    }
}

static void wake(msg_world *w, struct msg_token *token)
{
    (void)w;
    if (token->n)
        receive(token->what);
}

/* ---------------------------------------------------------------- RDMA */

/* By the cache: a buffer that is used again and again is registered once, for whatever is
 * done with it. `remote` asks for address and handle to tell the peer; the region allows
 * writing, and reading where the NIC can, in any case. */
static int hold(struct msg_peer *peer, msg_request *r, size_t len, int remote)
{
    struct vc_port *port = rank_of(peer)->port;
    struct vc_region *region = vc_cache_get(port, r->buf, len);
    if (region == NULL)
        return msg_fail(peer->world, MSG_ERR_NO_MEMORY, "a buffer of %zu byte%s could not be registered: %s", len,
                        vk_s(len), viakit_last_error());
    r->registered = region;
    if (remote) {
        r->address = (uint64_t)(uintptr_t)r->buf;
        r->handle = vc_region_handle(region);
    }
    return 0;
}

static void drop(struct msg_peer *peer, msg_request *r)
{
    vc_cache_put(rank_of(peer)->port, r->registered);
}

/* One RDMA descriptor: DS[0] names the place at the other side, DS[1] ours. 1 started, 0 no
 * descriptor is free, -1 the rank is gone. The slot remembers the request by its id: it may
 * have ended when the data has been moved. */
static int start_rdma(struct vc_rank *rank, int operation, uint64_t id, void *local, VIP_MEM_HANDLE local_handle,
                      size_t len, uint64_t address, uint32_t handle)
{
    struct vc_slot *slot = rank->port->free_rdma;
    if (slot == NULL) {
        vc_reap(rank);
        /* Looked at again, not kept from before: who was told by vc_reap may have taken or freed slots. */
        if ((slot = rank->port->free_rdma) == NULL)
            return 0;
    }
    rank->port->free_rdma = slot->next;
    slot->request = id;
    slot->len = len;
    slot->d.CS.Control = (VIP_UINT16)operation;
    slot->d.CS.SegCount = 2;
    slot->d.CS.Length = (VIP_UINT32)len;
    slot->d.DS[0].Remote.Data.AddressBits = address;
    slot->d.DS[0].Remote.Handle = handle;
    slot->d.DS[0].Remote.Reserved = 0;
    slot->d.DS[1].Local.Data.Address = local;
    slot->d.DS[1].Local.Handle = local_handle;
    slot->d.DS[1].Local.Length = (VIP_UINT32)len;
    return post(rank, slot) == 0 ? 1 : -1;
}

static int put(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle)
{
    return start_rdma(rank_of(peer), VIP_CONTROL_OP_RDMAWRITE, r->id, (char *)r->buf + offset,
                      vc_region_handle(r->registered), len, address, handle);
}

static int get(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle)
{
    return start_rdma(rank_of(peer), VIP_CONTROL_OP_RDMAREAD, r->id, (char *)r->buf + offset,
                      vc_region_handle(r->registered), len, address, handle);
}

/* From an eager buffer, so the caller has his back at once. An RDMA write takes no receive buffer of the
 * target's: no credit is needed. Its slot is a send slot, lent, which send_done restores. */
static int put_short(struct msg_peer *peer, const void *data, size_t len, uint64_t address, uint32_t handle)
{
    struct vc_rank *rank = rank_of(peer);
    struct vc_slot *slot = take_slot(rank, 2);
    if (slot == NULL)
        return 0;
    memcpy(slot->buf, data, len);
    slot->d.CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    slot->d.CS.SegCount = 2;
    slot->d.CS.Length = (VIP_UINT32)len;
    slot->d.DS[1].Local = slot->d.DS[0].Local;
    slot->d.DS[1].Local.Length = (VIP_UINT32)len;
    slot->d.DS[0].Remote.Data.AddressBits = address;
    slot->d.DS[0].Remote.Handle = handle;
    slot->d.DS[0].Remote.Reserved = 0;
    return post(rank, slot) == 0 ? 1 : -1;
}

static int can_get(struct msg_peer *peer)
{
    return rank_of(peer)->port->can_read;
}

/* Memory that is exposed has a handle for each NIC; a peer uses that of the NIC by which it is reached. */
static int handle_index(struct msg_peer *peer)
{
    return rank_of(peer)->port->index;
}

/* ---------------------------------------------------------------- memory */

static struct vc_port *first_port(msg_world *w)
{
    struct vc_world *v = vc_of(w);
    return v->ports[0] ? v->ports[0] : v->ports[1];
}

static int channel_alloc(msg_world *w, size_t len, void **memory)
{
    if (viakit_alloc(first_port(w)->nic, len ? len : 1, memory) != VIP_SUCCESS)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "%zu byte%s of shared memory: %s", len, vk_s(len), viakit_last_error());
    return MSG_SUCCESS;
}

/* On both NICs: the range may have been registered with either. */
static void channel_forget(msg_world *w, const void *buf, size_t len)
{
    for (int i = 0; i < 2; i++)
        if (vc_of(w)->ports[i])
            vc_cache_forget(vc_of(w)->ports[i], buf, len);
}

static int channel_free(msg_world *w, void *memory)
{
    /* Memory that is still registered cannot be freed, and the cache may hold it. First only what
     * begins at its first byte is given up; how long it is only the arena knows, so if that was
     * not enough, all that begins in it or behind it. */
    VIP_RETURN code = viakit_free(first_port(w)->nic, memory);
    if (code == VIP_ERROR_RESOURCE) {
        channel_forget(w, memory, 1);
        code = viakit_free(first_port(w)->nic, memory);
    }
    if (code == VIP_ERROR_RESOURCE) {
        channel_forget(w, memory, SIZE_MAX - (uintptr_t)memory);
        code = viakit_free(first_port(w)->nic, memory);
    }
    if (code != VIP_SUCCESS)
        return msg_fail(w, MSG_ERR_ARG, "%p cannot be freed: %s", memory, viakit_last_error());
    return MSG_SUCCESS;
}

/* A region of its own, not the cache's: it stays as long as the program says, and peers may write to it all that
 * time. */
static int expose(msg_world *w, void *buf, size_t len, msg_exposed *exposed)
{
    struct vc_world *v = vc_of(w);
    msg_exposed e = {.address = (uint64_t)(uintptr_t)buf, .len = len};
    for (int i = 0; i < 2; i++) {
        struct vc_port *port = v->ports[i];
        VIP_MEM_ATTRIBUTES attributes = {.Ptag = port ? port->ptag : NULL, .EnableRdmaWrite = VIP_TRUE};
        VIP_MEM_HANDLE handle = 0;
        if (port == NULL)
            continue;
        if (VipRegisterMem(port->nic, buf, len, &attributes, &handle) != VIP_SUCCESS) {
            if (i == 1 && v->ports[0])
                VipDeregisterMem(v->ports[0]->nic, buf, e.handle[0]);
            return msg_fail(w, MSG_ERR_NO_MEMORY, "%zu byte%s could not be exposed: %s", len, vk_s(len),
                            viakit_last_error());
        }
        e.handle[i] = handle;
    }
    *exposed = e;
    return MSG_SUCCESS;
}

static int hide(msg_world *w, const msg_exposed *exposed)
{
    int code = MSG_SUCCESS;
    for (int i = 0; i < 2; i++) {
        struct vc_port *port = vc_of(w)->ports[i];
        if (port && VipDeregisterMem(port->nic, (void *)(uintptr_t)exposed->address, exposed->handle[i]) != VIP_SUCCESS)
            code = msg_fail(w, MSG_ERR_ARG, "this range was not exposed, or is hidden already");
    }
    return code;
}

static const char *route(struct msg_peer *peer)
{
    struct vc_rank *rank = rank_of(peer);
    return rank && rank->port ? rank->port->device : "via";
}

const struct msg_channel msg_channel_via = {
    .name = "via",
    .open = vc_open,
    .close = vc_close,
    .push = push,
    .push_short = push_short,
    .progress = progress,
    .sleep = channel_sleep,
    .wake = wake,
    .attend = vc_attend,
    .route = route,
    .hold = hold,
    .drop = drop,
    .put = put,
    .get = get,
    .put_short = put_short,
    .can_get = can_get,
    .alloc = channel_alloc,
    .free = channel_free,
    .forget = channel_forget,
    .expose = expose,
    .hide = hide,
    .handle_index = handle_index,
};
