/*
 * The `via` channel: packets as messages of a VI, long data by RDMA. It uses only the public calls of VIPL. See via.h
 * and peers/peers.h for credits.
 *
 *      eager buffer:  | head 8 | data ...          an EAGER packet
 *                     | head 8 | rest 40 | data ...   any other
 *
 * A short message costs one copy into the send buffer, VipPostSend, and one VipSendDone on links without
 * acknowledgements. The receiver needs VipCQDone, VipRecvDone, one copy, and VipPostRecv.
 *
 * A descriptor (slot) is in one place at a time:
 *
 *      send slot      free_sends --take_slot--> filled --post--> on its VI (n_outstanding) --VipSendDone--> free_sends
 *      RDMA slot      free_rdma  --start_rdma------------post--> on its VI (n_outstanding) --VipSendDone--> reported to
 *                                                        its request (send_done), now or later (unreported) -->
 *                                                        free_rdma
 *      receive slot   on its VI, except while receive() handles it; one may then be `late` (give_back_later)
 *
 * Sends complete without a queue entry. So ranks with outstanding sends are on the list `unsettled`, which progress
 * scans. The list also holds ranks with owed credits for which no buffer was free.
 *
 * Many of these calls can end a rank (msg_peer_failed) and with it its requests. Afterwards a request is found again by
 * its id, never by a stored pointer. Reporting a completion to a request may also start a new send, which uses credits
 * and buffers. So no completion is reported between the check of a credit and its use (take_slot, `unreported`).
 *
 * All functions but channel_sleep are called with the world's lock held.
 */
#include "msg/via.h"
#include "base/plural.h"
#include "base/virtual.h"

#include <stdlib.h>

/* Packets handled per NIC in one progress call, so that a rank that sends constantly does not keep the caller here. */
#define BUDGET 64

static inline struct peers_pair *rank_of(struct msg_peer *peer)
{
    return peer->at;
}

static inline struct msg_peer *peer_of(struct peers_pair *rank)
{
    return ((struct vc_rank *)(void *)rank)->peer;
}

static inline struct vc_slot *slot_of(struct peers_slot *slot)
{
    return (struct vc_slot *)(void *)slot;
}

/* A port's owner is the world that opened it (via_open.c: make_world). */
static inline msg_world *world_of(const struct peers_pair *rank)
{
    return rank->port->owner;
}

static inline struct vc_world *vc_of(msg_world *w)
{
    return w->at;
}

/* ---------------------------------------------------------------- completed sends */

/* Frees the slot of a completed send, and reports RDMA to its request. The slot is freed first, because the report
 * may need one at once. A request that has ended meanwhile (its rank failed) is not found. */
static inline void send_done(struct peers_slot *slot, bool failed)
{
    struct peers_pair *rank = slot->pair;
    size_t len = slot_of(slot)->len;
    rank->n_outstanding--;
    if (len) {
        msg_request *r = msg_request_find(world_of(rank), slot_of(slot)->request);
        peers_put_rdma(rank->port, slot);
        if (r)
            msg_moved(r, len, failed);
    } else {
        /* Send slots have SegCount 1, so 2 means that put_short made it an RDMA write. DS[1] has the buffer's
         * address and handle that DS[0] had before. The length is set for each packet. */
        if (vk_unlikely(slot->d.CS.SegCount == 2)) {
            slot->d.CS.SegCount = 1;
            slot->d.CS.Control = VIP_CONTROL_OP_SENDRECV;
            slot->d.DS[0].Local = slot->d.DS[1].Local;
        }
        peers_put_send(rank->port, slot);
    }
    if (vk_unlikely(failed))
        msg_peer_failed(peer_of(rank), "a send failed");
}

/* Reports the deferred completions, in order. Each is removed from the list first, because send_done may call this
 * function again. */
static void report_deferred(struct vc_world *v)
{
    for (struct peers_slot *slot; (slot = v->unreported) != NULL;) {
        v->unreported = slot->next;
        send_done(slot, slot_of(slot)->failed != 0);
    }
}

/* Reaps completed sends, up to the first incomplete one. */
void vc_reap(struct peers_pair *rank)
{
    struct peers_slot *slot;
    bool failed;
    report_deferred(vc_of(world_of(rank)));
    while ((slot = peers_next_done(rank, &failed)) != NULL)
        send_done(slot, failed);
}

/* Reaps only buffers. Completions that must be reported are left to the next vc_reap: the caller is about to use a
 * credit, and a report could use it first. Those stay in order, behind earlier ones. */
static void take_back_buffers(struct vc_world *v)
{
    struct peers_slot *slot, **end = &v->unreported;
    bool failed;
    while (*end)
        end = &(*end)->next;
    for (uint32_t i = 0; i < v->net.n_unsettled; i++)
        while ((slot = peers_next_done(v->net.unsettled[i], &failed)) != NULL) {
            if (slot_of(slot)->len == 0 && !failed) {
                send_done(slot, false);
                continue;
            }
            slot_of(slot)->failed = failed;
            slot->next = NULL;
            *end = slot;
            end = &slot->next;
        }
}

static void post_late(struct vc_world *v);

/* The packet is on its way. Meanwhile this posts the receive that was put off, so posting it adds nothing to the
 * latency of the packet. Returns 0, or -1: the rank is gone. */
static inline int after_post(struct peers_pair *rank)
{
    if (vc_of(rank->port->owner)->late)
        post_late(vc_of(rank->port->owner));
    return vk_unlikely(peer_of(rank)->gone) ? -1 : 0;
}

/* Posts the slot. On a lossless link the send is usually complete when the call returns. It is reaped at once, so
 * that its buffer is reused while it is in the cache. The reaped send is the oldest complete one, not necessarily
 * this one. Returns 0, or -1: the rank is gone, possibly detected by the report of an earlier descriptor. */
static inline int post(struct peers_pair *rank, struct peers_slot *slot)
{
    if (vk_unlikely(peers_post(rank, slot) != VIP_SUCCESS)) {
        send_done(slot, true);
        return -1;
    }
    if (vk_likely(rank->port->lossless)) {
        VIP_DESCRIPTOR *d = NULL;
        VIP_RETURN code = VipSendDone(rank->vi, &d);
        if (vk_likely(code == VIP_SUCCESS)) {
            send_done((struct peers_slot *)(void *)d, false);
            return after_post(rank);
        }
        if (code == VIP_DESCRIPTOR_ERROR && d)
            send_done((struct peers_slot *)(void *)d, true);
    }
    if (rank->n_outstanding)
        peers_unsettle(rank);
    return after_post(rank);
}

/* ---------------------------------------------------------------- outgoing packets */

/* Returns an eager buffer, or NULL. The last `keep` are left for credits (send_credits passes 0), so that credits
 * can be sent even while all other buffers wait for acknowledgements. */
static inline struct peers_slot *take_slot(struct peers_pair *rank, uint32_t keep)
{
    struct peers_port *port = rank->port;
    if (vk_unlikely(port->n_free_sends <= keep)) {
        take_back_buffers(vc_of(port->owner));
        if (port->n_free_sends <= keep)
            return NULL;
    }
    return peers_take_send(port);
}

/* For packets: a send slot has one segment, whose length is that of the packet. Returns 0, or -1: the rank is gone. */
static inline int post_bytes(struct peers_pair *rank, struct peers_slot *slot, size_t len)
{
    slot->d.CS.Length = slot->d.DS[0].Local.Length = (VIP_UINT32)len;
    return post(rank, slot);
}

/* This rank has no credit for a packet. It has none before the two ranks have met, so the short path needs no check of
 * its own for that. Returns 0, or -1: the rank is gone. */
static int without_credit(struct msg_peer *peer)
{
    if (rank_of(peer)->state != PEERS_MET)
        return vc_meet(peer);
    MSG_COUNT(peer->world, credit_stalls, 1);
    return 0;
}

/* The short path of msg_send. It takes the credit, then the buffer, then the owed credits: the steps that can fail
 * come before the step that cannot be undone. Returns 1 if accepted, 0 for no credit or no buffer, -1 if the rank is
 * gone. */
static int push_short(struct msg_peer *peer, struct msg_head head, const void *data, size_t len)
{
    struct peers_pair *rank = rank_of(peer);
    struct peers_slot *slot;
    if (vk_unlikely(rank->credits == 0))
        return without_credit(peer);
    if (vk_unlikely((slot = take_slot(rank, 2)) == NULL))
        return 0;
    head.credits = peers_pay(rank);
    memcpy(slot->buf, &head, sizeof head);
    if (len)
        vk_copy_short(slot->buf + sizeof head, data, len);
    rank->credits--;
    msg_count_copy(peer->world, len);
    return post_bytes(rank, slot, sizeof head + len) == 0 ? 1 : -1;
}

/* Sends one packet with n bytes of the out's data, from `sent` on. One copy into the eager buffer, so the caller's data
 * is free on return. Returns as push_short. */
static int push_one(struct msg_peer *peer, struct msg_out *out, size_t n)
{
    struct peers_pair *rank = rank_of(peer);
    struct peers_slot *slot;
    size_t head_len = msg_packet_len(&out->packet);
    if (rank->credits == 0)
        return without_credit(peer);
    if ((slot = take_slot(rank, 2)) == NULL)
        return 0;
    out->packet.head.credits = peers_pay(rank);
    memcpy(slot->buf, &out->packet, head_len);
    if (n)
        memcpy(slot->buf + head_len, out->data + out->sent, n);
    rank->credits--;
    msg_count_copy(peer->world, n);
    return post_bytes(rank, slot, head_len + n) == 0 ? 1 : -1;
}

/* A DATA packet is segmented by the size of an eager buffer; all others fit one (eager_limit). */
static int push(struct msg_peer *peer, struct msg_out *out)
{
    return msg_push_segments(peer, out, rank_of(peer)->port->room, push_one);
}

/* Sends a CREDIT packet. It costs no credit; otherwise two ranks without credits would deadlock. The receiver has
 * VC_RESERVE buffers more than it grants (via.h shows that this suffices). Returns 1, or 0: no buffer, or the rank
 * is gone. */
static int send_credits(struct peers_pair *rank)
{
    struct peers_slot *slot = take_slot(rank, 0);
    if (slot == NULL)
        return 0;
    struct msg_head head = {.kind = MSG_PKT_CREDIT, .credits = peers_pay(rank)};
    memcpy(slot->buf, &head, sizeof head);
    MSG_COUNT(world_of(rank), credits_explicit, 1);
    return post_bytes(rank, slot, sizeof head) == 0;
}

/* ---------------------------------------------------------------- incoming packets */

/* An RDMA write with immediate data consumed this receive. It placed nothing in the receive's buffer, and its length
 * there is 0. So the receive's buffer still has an old packet, which must not be parsed. */
static bool is_notice(const VIP_DESCRIPTOR *d)
{
    return (d->CS.Status & (VIP_STATUS_IMMEDIATE | VIP_STATUS_OP_MASK)) ==
           (VIP_STATUS_IMMEDIATE | VIP_STATUS_OP_REMOTE_RDMA_WRITE);
}

/* Posts a receive again. Its credit, if it cost one, is owed from here on, and not before: the peer may use it at once,
 * and would find no receive. If no buffer is free for a CREDIT packet, the list `unsettled` repeats the attempt. */
static inline void give_back(struct peers_pair *rank, struct peers_slot *slot, uint32_t credit)
{
    if (vk_unlikely(peers_post_recv(rank, slot) != VIP_SUCCESS)) {
        msg_peer_failed(peer_of(rank), "no receive could be posted");
        return;
    }
    rank->owed += credit;
    if (vk_unlikely(peers_owes(rank)) && !send_credits(rank))
        peers_unsettle(rank);
}

/* A rank that has died since needs no receive; its slots are freed with the NIC. */
static void post_late(struct vc_world *v)
{
    struct peers_slot *slot = v->late;
    v->late = NULL;
    if (!peer_of(slot->pair)->gone)
        give_back(slot->pair, slot, 1);
}

/* Puts off posting the receive until this rank has sent its reply, or makes progress: posting takes longer than the
 * rest of a short receive. Its credit is owed only from then on. It is put off only if owing it now would not cause a
 * packet, so the sender has as many credits as otherwise. */
static inline void give_back_later(struct peers_pair *rank, struct peers_slot *slot)
{
    struct vc_world *v = vc_of(rank->port->owner);
    if (v->late)
        post_late(v);
    if (vk_likely(rank->owed + 1 < rank->port->owed_most && !vk_time_is_virtual()))
        v->late = slot;
    else
        give_back(rank, slot, 1);
}

/* Handles an entry of the completion queue: one receive of this VI is complete. The order matters. Credits on the
 * packet count before its delivery, because the delivery may cause a reply. Its buffer is posted again before it is
 * owed, because the sender may use the credit at once. */
static void receive(VIP_VI_HANDLE vi)
{
    bool failed;
    struct peers_slot *slot = peers_received(vi, &failed);
    if (vk_unlikely(slot == NULL))
        return;
    struct peers_pair *rank = slot->pair;
    struct msg_peer *peer = peer_of(rank);
    if (vk_unlikely(failed)) {
        msg_peer_failed(peer, "the connection was lost");
        return;
    }
    const struct msg_packet *p = (const struct msg_packet *)(const void *)slot->buf;
    size_t len = slot->d.CS.Length;
    int kind = p->head.kind & MSG_PKT_MASK;
    if (vk_unlikely(len < sizeof p->head || (kind != MSG_PKT_EAGER && kind != MSG_PKT_CREDIT && len < sizeof *p))) {
        if (is_notice(&slot->d)) {
            rank->credits += slot->d.CS.ImmediateData & 0xFF;
            MSG_COUNT(peer->world, notices, 1);
            msg_noticed(peer);
            give_back(rank, slot, 1);
        } else
            msg_peer_failed(peer, "a packet was too short");
        return;
    }
    rank->credits += p->head.credits;
    if (vk_likely(kind == MSG_PKT_EAGER)) {
        msg_arrived(peer, p, slot->buf + sizeof p->head, len - sizeof p->head);
        give_back_later(rank, slot);
        return;
    }
    if (kind != MSG_PKT_CREDIT)
        msg_arrived(peer, p, slot->buf + sizeof *p, len - sizeof *p);
    /* A CREDIT packet used none of the sender's credits, so none is owed for it. */
    give_back(rank, slot, kind != MSG_PKT_CREDIT);
}

/* Serves ranks with outstanding sends or owed credits, as many as are listed now. Reports may append more ranks
 * meanwhile. Returns by how many outstanding sends have decreased, as a count of events. Sends that a report starts
 * count against it. */
static int settle(struct vc_world *v)
{
    int n = 0;
    for (uint32_t i = 0, left = v->net.n_unsettled; left; left--) {
        struct peers_pair *rank = v->net.unsettled[i];
        uint32_t before = rank->n_outstanding;
        vc_reap(rank);
        n += (int)(before - rank->n_outstanding);
        bool owes = rank->n_outstanding == 0 && peers_owes(rank) && !peer_of(rank)->gone;
        if ((owes && !send_credits(rank)) || rank->n_outstanding)
            i++;
        else
            peers_settled(&v->net, i);
    }
    return n;
}

/* Polls one NIC after the other, at most BUDGET packets each, then completed sends. `enough`: see channel.h. */
static int progress(msg_world *w, const uint8_t *enough)
{
    struct vc_world *v = vc_of(w);
    if (v->late)
        post_late(v);
    int n = vk_unlikely(peers_are_meeting(&v->net)) ? peers_meetings(&v->net, vc_met) + msg_check_doomed(w) : 0;
    for (int i = 0; i < 2; i++) {
        const struct peers_port *port = v->net.ports[i];
        if (port == NULL)
            continue;
        for (int budget = BUDGET; budget > 0; budget--) {
            VIP_VI_HANDLE vi = peers_poll(port);
            if (vi == NULL)
                break;
            receive(vi);
            n++;
            if (enough && *enough)
                return n;
        }
    }
    if (vk_unlikely(v->net.n_unsettled))
        n += settle(v);
    return n;
}

/* Without the lock. In whole milliseconds, rounded up, so that a short sleep is not turned into polling. peers_sleep
 * may run beside other threads (peers.h). */
static void channel_sleep(msg_world *w, uint64_t ns, struct msg_token *token)
{
    token->what = peers_sleep(&vc_of(w)->net, (ns + VK_MS - 1) / VK_MS);
}

/* The sleep may have taken an entry out of the completion queue. Only its receive is handled here; the next progress
 * handles the others. */
static void wake(msg_world *w, struct msg_token *token)
{
    (void)w;
    if (token->what)
        receive(token->what);
}

static void attend(msg_world *w)
{
    peers_attend(&vc_of(w)->net);
}

/* ---------------------------------------------------------------- RDMA */

/* Registers through the cache: a buffer that is reused is registered once, for all uses. With `remote`, sets the
 * address and handle for the peer. The region always permits writing, and reading if the NIC supports it. */
static int hold(struct msg_peer *peer, msg_request *r, size_t len, int remote)
{
    struct peers_cache *cache = &rank_of(peer)->port->cache;
    uint64_t before = *cache->counters->misses;
    VIP_RETURN code;
    struct peers_region *region = peers_cache_get(cache, r->buf, len, &code);
    if (region == NULL)
        return msg_fail(peer->world, MSG_ERR_NO_MEMORY, "a buffer of %zu byte%s could not be registered: %s", len,
                        vk_s(len), viakit_last_error());
    MSG_COUNT(peer->world, allocations, *cache->counters->misses - before);
    r->registered = region;
    if (remote) {
        r->address = (uint64_t)(uintptr_t)r->buf;
        r->handle = region->handle;
    }
    return 0;
}

static void drop(struct msg_peer *peer, msg_request *r)
{
    (void)peer;
    peers_cache_put(r->registered);
}

/* Posts one RDMA descriptor: DS[0] is the remote segment, DS[1] the local one. Returns 1 if started, 0 if no
 * descriptor is free, -1 if the rank is gone. The slot stores the request's id, because the request may have ended
 * when the data has been moved. */
static int start_rdma(struct peers_pair *rank, int operation, const msg_request *r, size_t offset, size_t len,
                      uint64_t address, uint32_t handle)
{
    if (vk_unlikely(rank->state != PEERS_MET))
        return vc_meet(peer_of(rank));
    struct peers_slot *slot = rank->port->free_rdma;
    VIP_MEM_HANDLE local_handle = ((const struct peers_region *)r->registered)->handle;
    uint64_t id = r->id;
    char *local = (char *)r->buf + offset;
    if (slot == NULL) {
        vc_reap(rank);
        /* Read again, because reports made by vc_reap may have used or freed slots. */
        if ((slot = rank->port->free_rdma) == NULL)
            return 0;
    }
    rank->port->free_rdma = slot->next;
    slot_of(slot)->request = id;
    slot_of(slot)->len = len;
    slot->d.DS[1].Local.Data.Address = local;
    slot->d.DS[1].Local.Handle = local_handle;
    peers_set_rdma(slot, operation, address, handle, len);
    return post(rank, slot) == 0 ? 1 : -1;
}

/* As channel.h. `put` is started only after `hold`, so the local memory is registered. */
static int put(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle)
{
    return start_rdma(rank_of(peer), VIP_CONTROL_OP_RDMAWRITE, r, offset, len, address, handle);
}

static int get(struct msg_peer *peer, msg_request *r, size_t offset, size_t len, uint64_t address, uint32_t handle)
{
    return start_rdma(rank_of(peer), VIP_CONTROL_OP_RDMAREAD, r, offset, len, address, handle);
}

/* Copies to an eager buffer, so that the caller may reuse its own at once. An RDMA write uses no receive buffer of the
 * target, so it needs no credit. With `notify` it carries immediate data, which consumes a receive and so needs one;
 * the owed credits are its immediate data. Its slot is a send slot, which send_done restores: DS[1] takes over the
 * local segment, because DS[0] of an RDMA descriptor is the remote one (VIA: the address segment comes first). Returns
 * 1 if accepted, 0 for no credit or no buffer, -1 if the rank is gone. */
static int put_short(struct msg_peer *peer, const void *data, size_t len, uint64_t address, uint32_t handle, int notify)
{
    struct peers_pair *rank = rank_of(peer);
    if (vk_unlikely(rank->state != PEERS_MET))
        return vc_meet(peer);
    if (notify && rank->credits == 0)
        return without_credit(peer);
    struct peers_slot *slot = take_slot(rank, 2);
    if (slot == NULL)
        return 0;
    memcpy(slot->buf, data, len);
    msg_count_copy(peer->world, len);
    slot->d.DS[1].Local = slot->d.DS[0].Local;
    peers_set_rdma(slot, VIP_CONTROL_OP_RDMAWRITE, address, handle, len);
    if (notify) {
        slot->d.CS.Control |= VIP_CONTROL_IMMEDIATE;
        slot->d.CS.ImmediateData = peers_pay(rank);
        rank->credits--;
    }
    return post(rank, slot) == 0 ? 1 : -1;
}

/* A write completes when it is in the target's memory: the link has stored it there, or the target has
 * acknowledged it. */
static unsigned outstanding(const struct msg_peer *peer)
{
    return ((const struct peers_pair *)peer->at)->n_outstanding;
}

/* This rank's own entry has no port, and before the channel is open there is no entry. */
static const char *route(struct msg_peer *peer)
{
    struct peers_pair *rank = rank_of(peer);
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
    .attend = attend,
    .meet = vc_meet,
    .part = vc_part,
    .is_meeting = vc_is_meeting,
    .route = route,
    .hold = hold,
    .drop = drop,
    .put = put,
    .get = get,
    .put_short = put_short,
    .can_get = vc_can_get,
    .can_share = vc_can_share,
    .outstanding = outstanding,
    .nic = vc_any_nic,
    .nic_counters = vc_nic_counters,
    .forget = vc_forget,
    .expose = vc_expose,
    .hide = vc_hide,
    .handle_index = vc_handle_index,
};
