/*
 * One queue pair of unreliable datagrams, UD: it reaches any number of peers. A frame is one datagram of at most the
 * port's MTU. The card drops a datagram for which no receive slot is posted, and reports it to neither side. So this
 * link is lossy, like eth and udp, and the provider retransmits.
 *
 * Sending copies a frame into a slot that the card reads, and rings the doorbell once for a batch. Only every
 * VERBS_SIGNAL_EVERY-th send reports its completion, because the card completes sends in order: that one stands for all
 * before it. A short frame travels in the work request itself (inline), so the card reads no slot.
 *
 * Receiving delivers frames in place. Their slots go back to the card in batches. In front of each datagram the card
 * puts the 40 bytes of the global route header, from which the sender's address is read:
 *
 *   IPv4  | 20 bytes, undefined | IPv4 header |       source at 32      IPv6  | IPv6 header |       source at 8
 *
 * The sender's NIC is the one with that address and the port in the frame's own header. If its queue pair is known, the
 * datagram must come from there.
 *
 *   send slot     free --copy, post_send--> the card's --completion of it or of a later one--> free
 *   receive slot  the card's --completion--> read --n_back: next post_recv--> the card's
 *
 * Invariant: `done` <= `sent` <= `done` + VERBS_SENDS, in counts that wrap at 2^32. Each receive slot is in one place:
 * with the card, in taken[], or in recvs[].
 *
 * No barrier stands here. The card writes a slot before its completion, and the driver's poll_cq orders the read of the
 * completion before later reads of the slot. post_send orders the writes to a slot before the doorbell.
 *
 * Not done: sending without a copy. Each frame's payload would have to lie in registered memory until its completion,
 * and send() returns the memory to its caller at once (link.h).
 *
 * Only the NIC's owner calls these functions. None blocks, except for opening and closing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fcntl.h>
#include <sys/random.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/clock.h"
#include "base/copy.h"
#include "base/explain.h"
#include "base/files.h"
#include "link/frame_layout.h"
#include "link/seal.h"
#include "link/verbs.h"

#define LEAST_RECVS 64u /* four batches of VERBS_BATCH; if not even they can be registered, opening fails */
#define ALIGN 64u       /* bytes of a cache line: the card's write of one slot touches no line of the next */
#define GRH_V4_FROM 32  /* 20 bytes in front, and the source is at offset 12 of an IPv4 header (RFC 791) */
#define GRH_V6_FROM 8   /* the source's offset in an IPv6 header (RFC 8200) */

_Static_assert((VERBS_SENDS & (VERBS_SENDS - 1)) == 0, "slots are counted modulo a power of two");
_Static_assert(VERBS_SENDS >= 2 * VERBS_SIGNAL_EVERY, "a full queue has a send that reports its completion");

/* ---------------------------------------------------------------- slots */

static uint8_t *recv_slot(const struct verbs *v, uint32_t i)
{
    return v->memory + (size_t)i * v->slot_len;
}

static uint8_t *send_slot(const struct verbs *v, uint32_t i)
{
    return recv_slot(v, v->n_recvs + (i & (VERBS_SENDS - 1)));
}

/* Posts the slots that were read. If the card refuses (it should not: they are its own), the queue pair is lost.
 * Posting may take the driver's lock, so the thread must not be cancelled inside: VK_HOLD_CANCEL here and below. */
static void give_back(struct verbs *v)
{
    struct ib_recv_wr *bad;
    if (v->n_back == 0)
        return;
    for (int i = 0; i < v->n_back; i++) {
        v->recvs[i].pieces = &v->recv_pieces[i];
        v->recvs[i].n_pieces = 1;
        v->recvs[i].next = i + 1 < v->n_back ? &v->recvs[i + 1] : NULL;
    }
    VK_HOLD_CANCEL;
    int error = v->context->ops.post_recv(v->qp, v->recvs, &bad);
    v->n_back = 0;
    if (error && !v->failed) {
        v->failed = -EIO;
        link_trouble(v->client, "verbs:%s: a receive was refused: %s", v->at.device, strerror(error));
    }
}

/* Adds a slot to those that go back to the card. recvs[] has room, because a full batch is posted at once. The card may
 * write the route header and one MTU, not the rest of the slot, which only aligns the next one. */
static void add_back(struct verbs *v, uint64_t slot)
{
    v->recvs[v->n_back].id = slot;
    v->recv_pieces[v->n_back++] = (struct ib_sge){
        .address = (uint64_t)(uintptr_t)recv_slot(v, (uint32_t)slot), .len = IB_GRH_LEN + v->mtu, .lkey = v->mr->lkey};
    if (v->n_back == VERBS_BATCH)
        give_back(v);
}

/* ---------------------------------------------------------------- sending */

/* The card reported an error of the queue pair, which does not pass. All connections over it end. */
static void fail(struct verbs *v, const char *what, int status)
{
    if (v->failed)
        return;
    v->failed = -EIO;
    link_trouble(v->client, "verbs:%s: %s failed with status %d: the queue pair has stopped", v->at.device, what,
                 status);
}

/* Takes the completions of sends. The id of each is the number of sends up to it, modulo 2^32, so the last one frees
 * the slots of all. After an error each later send reports a completion, signalled or not, in the same order. */
static void reap(struct verbs *v)
{
    struct ib_wc wc[8];
    int n;
    do {
        n = v->context->ops.poll_cq(v->send_cq, 8, wc);
        for (int i = 0; i < n; i++) {
            if (wc[i].status)
                fail(v, "a send", wc[i].status);
            v->done = (uint32_t)wc[i].id;
        }
    } while (n == 8);
    if (n < 0)
        fail(v, "polling for sends", n);
}

/* Returns how many of n frames have slots now. The sender is called again soon if it has no room. */
static int room_for(struct verbs *v, int n)
{
    if (v->sent - v->done + (uint32_t)n > VERBS_SENDS)
        reap(v);
    uint32_t room = VERBS_SENDS - (v->sent - v->done);
    if (room == 0)
        link_timer(v->client, vk_now() + 20 * VK_US);
    return (uint32_t)n < room ? n : (int)room;
}

/* Describes the frame of len bytes that lies in the slot of send number `number`. With IB_INLINE the library copies it
 * into the work request during post_send. It saves the card one read of host memory, and costs the processor a copy, so
 * inline_most bounds it. */
static void describe(struct verbs *v, const struct verbs_route *route, uint32_t number, uint32_t len,
                     struct ib_send_wr *wr, struct ib_sge *piece)
{
    *piece = (struct ib_sge){(uint64_t)(uintptr_t)send_slot(v, number), len, v->mr->lkey};
    *wr = (struct ib_send_wr){.id = number + 1,
                              .pieces = piece,
                              .n_pieces = 1,
                              .opcode = IB_SEND,
                              .flags = len <= v->inline_most ? IB_INLINE : 0,
                              .ah = route->ah,
                              .qpn = route->qpn,
                              .qkey = route->qkey};
    if ((number + 1) % VERBS_SIGNAL_EVERY == 0)
        wr->flags |= IB_SIGNALED;
}

/* Rings the doorbell. Returns how many of n requests were accepted, or -errno on a lasting fault. Slots of refused
 * requests stay free, because `sent` counts accepted ones only: the provider lays the frames out again. */
static int ring(struct verbs *v, struct ib_send_wr *wrs, int n)
{
    VK_HOLD_CANCEL;
    struct ib_send_wr *bad = NULL;
    int error = v->context->ops.post_send(v->qp, wrs, &bad);
    int accepted = error == 0 ? n : bad ? (int)(bad - wrs) : 0;
    v->sent += (uint32_t)accepted;
    if (error && error != ENOMEM && error != EAGAIN) { /* those two: the queue is full for the moment */
        fail(v, "posting a send", error);
        return v->failed;
    }
    if (accepted < n)
        link_timer(v->client, vk_now() + 20 * VK_US);
    return accepted;
}

int verbs_post(struct verbs *v, const struct verbs_route *route, struct link_frame *frames, int n)
{
    struct ib_send_wr wrs[VERBS_BATCH];
    struct ib_sge pieces[VERBS_BATCH];
    if (vk_unlikely(v->failed))
        return v->failed;
    n = room_for(v, n < VERBS_BATCH ? n : VERBS_BATCH);
    for (int i = 0; i < n; i++) {
        struct link_frame *f = &frames[i];
        uint8_t *slot = send_slot(v, v->sent + (uint32_t)i);
        v->crc_always ? link_seal(f) : link_seal_header(f); /* the card's checksum covers the rest */
        uint32_t len = (uint32_t)(link_lay_out(slot, f) - slot);
        describe(v, route, v->sent + (uint32_t)i, len, &wrs[i], &pieces[i]);
        wrs[i].next = i + 1 < n ? &wrs[i + 1] : NULL;
    }
    int accepted = n ? ring(v, wrs, n) : 0;
    for (int i = 0; i < accepted; i++)
        link_count_copied(v->client, frames[i].payload_len);
    return accepted ? accepted : -EAGAIN;
}

/* A failed queue pair reports 0 here, not its error: the provider retries by verbs_post(), which returns the error. */
int verbs_post_short(struct verbs *v, const struct verbs_route *route, const uint64_t header[WIRE_WORDS],
                     const void *payload, size_t len)
{
    struct ib_send_wr wr;
    struct ib_sge piece;
    if (vk_unlikely(v->failed) || room_for(v, 1) == 0)
        return 0;
    link_seal_short(send_slot(v, v->sent), header, payload, len);
    describe(v, route, v->sent, (uint32_t)(sizeof(struct wire_header) + len), &wr, &piece);
    if (ring(v, &wr, 1) != 1)
        return 0;
    link_count_copied(v->client, len);
    return 1;
}

/* ---------------------------------------------------------------- receiving */

/* Reads the sender's name: the address from the global route header, the port from the frame. */
static void name_of(const struct verbs *v, const uint8_t *slot, union udp_name *name)
{
    uint16_t port;
    memcpy(&port, slot + IB_GRH_LEN + offsetof(struct wire_header, src_port), sizeof port);
    *name = v->udp->name; /* family and scope */
    if (name->any.sa_family == AF_INET)
        memcpy(&name->v4.sin_addr, slot + GRH_V4_FROM, 4);
    else
        memcpy(&name->v6.sin6_addr, slot + GRH_V6_FROM, 16);
    udp_set_port(name, port);
}

/* Delivers a datagram. Frames that connect travel by the link below, which verifies their senders. They are refused
 * here. */
static void deliver(struct verbs *v, const struct ib_wc *wc)
{
    const uint8_t *slot = recv_slot(v, (uint32_t)wc->id), *frame = slot + IB_GRH_LEN;
    union udp_name name;
    if (wc->len < IB_GRH_LEN + sizeof(struct wire_header) || (frame[0] & 15) >= WIRE_RESET) {
        LINK_COUNT(v->client, dropped_malformed, 1);
        return;
    }
    name_of(v, slot, &name);
    struct link_peer *peer = udp_find_peer(v->udp, &name);
    if (peer == NULL || (peer->route && peer->route->ah && peer->route->qpn != wc->source_qpn)) {
        LINK_COUNT(v->client, dropped_unknown_peer, 1);
        return;
    }
    peer->refusals = 0;
    link_deliver(v->client, peer->address, peer, frame, wc->len - IB_GRH_LEN);
}

/* Takes completions from the queue, if none are left from the last time. Returns whether there are any. They are copied
 * out in one call, because each poll_cq takes a lock and may ring a doorbell. verbs_take() may leave some for its next
 * call, when its budget is used up. */
static int refill(struct verbs *v)
{
    if (v->at_taken < v->n_taken)
        return 1;
    int n = v->context->ops.poll_cq(v->recv_cq, VERBS_TAKEN, v->taken);
    v->at_taken = 0;
    v->n_taken = n > 0 ? n : 0;
    if (vk_unlikely(n < 0))
        fail(v, "polling for receives", n);
    return n > 0;
}

/* The completion is copied and at_taken is moved before the delivery, because deliver() may call the link again
 * (link.h). The slot of a failed receive is not posted again: the queue pair has stopped. */
int verbs_take(struct verbs *v, int budget)
{
    int n = 0;
    while (n < budget && refill(v)) {
        struct ib_wc wc = v->taken[v->at_taken++];
        if (wc.id & VERBS_RDMA) {
            verbs_rdma_completed(v, &wc);
            n++;
            continue;
        }
        if (vk_unlikely(wc.status)) {
            fail(v, "a receive", wc.status);
            continue;
        }
        deliver(v, &wc);
        add_back(v, wc.id);
        n++;
    }
    give_back(v);
    return n;
}

/* The request comes first: a frame that arrives between it and the check is notified. In the other order, a frame
 * between the two would wait until the next one. */
int verbs_arm_queue(struct verbs *v)
{
    VK_HOLD_CANCEL;
    v->context->ops.req_notify_cq(v->recv_cq, 0);
    return refill(v);
}

/* All events are of recv_cq, the only queue with this channel. They are acknowledged in one call, because that takes a
 * mutex (ibv_ack_cq_events(3)). */
void verbs_clear_channel(struct verbs *v)
{
    VK_HOLD_CANCEL;
    struct ib_cq *cq;
    void *context;
    unsigned n = 0;
    while (v->lib->get_cq_event(v->channel, &cq, &context) == 0)
        n++;
    if (n)
        v->lib->ack_cq_events(v->recv_cq, n);
}

/* ---------------------------------------------------------------- opening */

/* Maps and registers the slots. A child of fork() gets no copy of them: the card would go on writing to the parent's
 * pages only, and the kernel would have to copy all of them. */
static int map_slots(struct verbs *v)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), len = (size_t)(v->n_recvs + VERBS_SENDS) * v->slot_len;
    v->memory_len = (len + page - 1) / page * page;
    void *memory = mmap(NULL, v->memory_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
    v->memory = memory;
    madvise(memory, v->memory_len, MADV_DONTFORK);
    v->mr = v->lib->reg_mr(v->pd, memory, v->memory_len, IB_LOCAL_WRITE);
    if (v->mr)
        return 0;
    int error = errno ? -errno : -EIO;
    munmap(memory, v->memory_len);
    v->memory = NULL;
    return error;
}

/* Registers as many slots as the limit of locked memory allows, at least LEAST_RECVS. A registration pins its pages,
 * and the kernel counts them against RLIMIT_MEMLOCK (by default 8 MiB since Linux 5.16, 64 KiB before). Returns 0 or
 * -errno, explained. */
static int make_slots(struct verbs *v)
{
    for (;;) {
        int error = map_slots(v);
        if (error == 0)
            return 0;
        if (error == -ENOMEM && v->n_recvs / 2 >= LEAST_RECVS) {
            v->n_recvs /= 2;
            continue;
        }
        struct rlimit limit = {0, 0};
        getrlimit(RLIMIT_MEMLOCK, &limit);
        if (error == -ENOMEM && limit.rlim_cur != RLIM_INFINITY)
            vk_explain("verbs: %zu KiB cannot be registered with %s, because the limit of locked memory is %llu KiB: "
                       "raise it (ulimit -l, or memlock in /etc/security/limits.conf)",
                       v->memory_len >> 10, v->at.device, (unsigned long long)limit.rlim_cur >> 10);
        else
            vk_explain("verbs: %zu KiB cannot be registered with %s: %s", v->memory_len >> 10, v->at.device,
                       strerror(-error));
        return error;
    }
}

/* Creates the queue pair. A card that offers no inline data refuses the request for it. */
static int make_pair(struct verbs *v)
{
    struct ib_qp_init init = {.send_cq = v->send_cq, .recv_cq = v->recv_cq, .type = IB_QP_UD};
    const uint32_t wanted[] = {sizeof(struct wire_header) + VERBS_SMALL, 0};
    for (int i = 0; i < 2 && v->qp == NULL; i++) {
        init.cap = (struct ib_qp_cap){.send_wrs = VERBS_SENDS,
                                      .recv_wrs = v->n_recvs,
                                      .send_pieces = 1,
                                      .recv_pieces = 1,
                                      .inline_data = wanted[i]};
        v->qp = v->lib->create_qp(v->pd, &init);
        v->inline_most = init.cap.inline_data;
    }
    return v->qp ? 0 : errno ? -errno : -EIO;
}

/* Brings the queue pair into the state in which it sends. Q_Keys with the highest bit are controlled: the kernel
 * refuses them to programs without privileges (InfiniBand 1.6, 3.5.3). A Q_Key that is not random still works: it
 * keeps strays out, and is no secret from a host on the path. Returns 0 or -errno. */
static int start_pair(struct verbs *v)
{
    if (getrandom(&v->qkey, sizeof v->qkey, 0) != (ssize_t)sizeof v->qkey)
        v->qkey = (uint32_t)vk_now();
    v->qkey &= 0x7FFFFFFF;
    struct ib_qp_attr init = {.state = IB_INIT, .port = (uint8_t)v->at.port, .qkey = v->qkey};
    struct ib_qp_attr receiving = {.state = IB_RTR}, sending = {.state = IB_RTS};
    int error = v->lib->modify_qp(v->qp, &init, IB_SET_STATE | IB_SET_PKEY | IB_SET_PORT | IB_SET_QKEY);
    if (error == 0)
        error = v->lib->modify_qp(v->qp, &receiving, IB_SET_STATE);
    if (error == 0)
        error = v->lib->modify_qp(v->qp, &sending, IB_SET_STATE | IB_SET_SEND_PSN);
    return -error;
}

static int explained(struct verbs *v, const char *what, int error)
{
    vk_explain("verbs: %s has no %s for this NIC: %s", v->at.device, what, strerror(-error));
    return error;
}

/* Sizes of the completion queues: a queue that overflows is an error that does not pass. recv_cq has room for all
 * receive slots, for all RDMA requests under way, and for as many of queue pairs that were destroyed while their
 * completions waited. send_cq has room for all sends, because after an error each one completes.
 *
 * The channel's file is read by a thread that sleeps in poll(2), so get_cq_event must not block: O_NONBLOCK. */
int verbs_open_queue(struct verbs *v, uint32_t n_recvs)
{
    v->slot_len = (IB_GRH_LEN + v->mtu + ALIGN - 1) / ALIGN * ALIGN;
    v->n_recvs = n_recvs;
    v->pd = v->lib->alloc_pd(v->context);
    if (v->pd == NULL)
        return explained(v, "protection domain", errno ? -errno : -EIO);
    int error = make_slots(v);
    if (error)
        return error;
    v->channel = v->lib->create_comp_channel(v->context);
    if (v->channel == NULL)
        return explained(v, "completion channel", errno ? -errno : -EIO);
    if (v->channel->fd > STDERR_FILENO)
        (void)vk_file_own(v->channel->fd);
    fcntl(v->channel->fd, F_SETFL, fcntl(v->channel->fd, F_GETFL) | O_NONBLOCK);
    v->recv_cq = v->lib->create_cq(v->context, (int)(v->n_recvs + 2 * VERBS_ALL_REQUESTS), NULL, v->channel, 0);
    v->send_cq = v->recv_cq ? v->lib->create_cq(v->context, VERBS_SENDS, NULL, NULL, 0) : NULL;
    if (v->send_cq == NULL)
        return explained(v, "completion queue", errno ? -errno : -EIO);
    error = make_pair(v);
    if (error == 0)
        error = start_pair(v);
    if (error)
        return explained(v, "queue pair", error);
    for (uint32_t i = 0; i < v->n_recvs; i++)
        add_back(v, i);
    give_back(v);
    return v->failed;
}

/* Called after the queue pair was destroyed, so the card writes to no slot any more. A completion queue can be
 * destroyed when all notifications that were read are acknowledged. */
void verbs_close_queue(struct verbs *v)
{
    if (v->recv_cq)
        v->lib->destroy_cq(v->recv_cq);
    if (v->send_cq)
        v->lib->destroy_cq(v->send_cq);
    if (v->channel) {
        vk_file_disown(v->channel->fd);
        v->lib->destroy_comp_channel(v->channel);
    }
    if (v->mr)
        v->lib->dereg_mr(v->mr);
    if (v->memory)
        munmap(v->memory, v->memory_len);
    if (v->pd)
        v->lib->dealloc_pd(v->pd);
}
