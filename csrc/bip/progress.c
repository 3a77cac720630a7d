/*
 * Progress: polls the completion queue for receives and handles them, reaps completed sends, and continues operations
 * that waited for either. Only sleep_for blocks.
 *
 *      VipCQDone -> receive -> dispatch: SHORT, REQUEST -> recv.c    GO, REFUSE -> send.c    CREDIT, BYE here
 *      VipSendDone -> send_done: a packet -> send.c (bip_packet_sent)    a buffer -> free again
 *
 * There is no thread and no interrupt: BIP makes progress when the program calls it. Data that arrives meanwhile lies
 * in posted buffers (short) or is written by RDMA (long), and is handled by the next call.
 *
 * Credits, for one direction of a pair; n_slots is the length of the queue at the receiver:
 *
 *     n_slots = credits at the sender + messages queued or in flight + owed at the receiver + reported, in flight
 *
 * Each received message frees a place in the queue (`owed`). Owed places are reported on the next message to that rank,
 * or in a separate CREDIT when half the queue is owed. So a stream in one direction costs one CREDIT for each half
 * queue. (Section 3: "to ensure all messages send can be received by the destination node"; BIP itself left this to
 * MPI-BIP.)
 *
 * Unreliable jobs (options.unreliable) work as BIP did: "sequence numbers and checks CRC so that any error or loss of
 * message on the medium will be detected (but not recovered)" (section 3). VIA then drops damaged frames. Each head has
 * a number, so the next one reveals a lost one. The last one before a pause has no successor. So a rank in a call sends
 * BEATs, which repeat the numbers. Checksums reveal lost packets of a long message, and a BEAT reveals that its last
 * one was lost. A loss ends the connection, on both sides, and all waits (DAMAGED; PEER at the other rank).
 *
 * Out-of-order, duplicate or unexpected messages:
 *
 *     a wrong sequence number, more credits than places, a second REQUEST  damaged: the connection ends
 *     a GO or REFUSE for a send that has ended                             dropped
 *     immediate data for a receive that was dropped                        dropped; only a lost peer causes it
 *     a BYE                                                                earlier messages are still received
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/words.h"
#include "bip/internal.h"

#define BUDGET 64                   /* completions in one poll of a NIC, so that sends proceed under a flood */
#define YIELD_AFTER (20 * VK_US)    /* without an event; some 256 polls */
#define BEAT_EVERY_NS (20 * VK_MS)  /* within this time a loss is detected, if the peer is in a call */
#define CHECK_EVERY_NS (20 * VK_MS) /* for the interrupt */

/* ---------------------------------------------------------------- errors */

/* The first function that detects an error writes its text; its callers return the code. */
int bip_fail(bip_job *job, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(job->error, sizeof job->error, format, arguments);
    va_end(arguments);
    return code;
}

#define CODE(name, value, text) {value, #name, text},
#define COUNTER(name, text) {BIP_COUNTER_##name, #name, text},
static const struct vk_word codes[] = {BIP_CODES(CODE)};
static const struct vk_word counters[] = {BIP_COUNTERS(COUNTER)};

const char *bip_code_name(int code)
{
    return VK_WORD(codes, code)->name;
}

const char *bip_code_text(int code)
{
    return VK_WORD(codes, code)->text;
}

const char *bip_counter_name(int counter)
{
    return VK_WORD(counters, counter)->name;
}

/* ---------------------------------------------------------------- a connection ends */

/* A peer that has sent BYE has left. Any other lost peer has died, and its death ends the job's waits (recv.c:
 * bip_receive_error). The first to die is reported. */
static void peer_lost(bip_peer *peer)
{
    bip_job *job = bip_job_of(peer);
    if (peer->lost)
        return;
    peer->lost = true;
    job->n_left += !peer->bye_arrived;
    if (!peer->bye_arrived && job->dead < 0)
        job->dead = peer->rank;
    int code = peer->bye_arrived ? BIP_ERR_LEFT : job->dead == peer->rank ? job->dead_code : BIP_ERR_PEER;
    if (job->send.state != SEND_IDLE && job->send.peer == peer)
        bip_send_end(job, code);
    if (peer->incoming)
        bip_recv_end(job, peer->incoming, code);
    peer->incoming = NULL;
    if (job->options.layer)
        job->layer.lost(job->layer.context, peer->rank);
}

/* The peer leaves. It will receive no further message, so a send to it that waits for a credit or a GO ends. A send
 * that is written completely may have succeeded: the peer may have left so soon that the acknowledgement was lost
 * with the connection. The BYE therefore carries the number of long messages received. */
static void handle_bye(bip_peer *peer, uint32_t long_received)
{
    bip_job *job = bip_job_of(peer);
    job->n_left += !peer->bye_arrived;
    peer->bye_arrived = true;
    if (job->send.peer == peer && job->send.state == SEND_MOVING && job->send.posted == job->send.len &&
        long_received == peer->long_sent) {
        BIP_COUNT(job, long_sent, 1);
        bip_send_end(job, 0);
    }
    if (job->send.peer == peer && (job->send.state == SEND_QUEUED || job->send.state == SEND_REQUESTED))
        bip_send_end(job, BIP_ERR_LEFT);
}

/* ---------------------------------------------------------------- sends */

/* Handles a reaped send: a packet counts for the pipeline, a buffer becomes free. A failed send ends the connection. */
static void send_done(struct peers_slot *slot, bool failed)
{
    bip_peer *peer = bip_peer_of(slot);
    peer->pair.n_outstanding--;
    if (slot->buf == NULL) {
        bip_packet_sent(slot, failed);
        peers_put_rdma(peer->pair.port, slot);
    } else
        peers_put_send(peer->pair.port, slot);
    if (failed)
        peer_lost(peer);
}

/* Reaps in posting order, as a VI completes. The first incomplete descriptor ends the loop. */
static void reap(bip_peer *peer)
{
    struct peers_slot *slot;
    bool failed;
    while ((slot = peers_next_done(&peer->pair, &failed)) != NULL)
        send_done(slot, failed);
}

/* Posts the send, and adds the peer to the list of peers to be reaped. Returns 0, or an error: the connection is
 * lost. */
int bip_post_send(bip_peer *peer, struct peers_slot *slot)
{
    peers_unsettle(&peer->pair);
    VIP_RETURN code = peers_post(&peer->pair, slot);
    if (code == VIP_SUCCESS)
        return 0;
    peers_nic_failed(&bip_job_of(peer)->net, "VipPostSend", code);
    send_done(slot, true);
    return BIP_ERR_RESOURCE;
}

/* Returns a send buffer, of which `keep` stay for others. NULL: all are in use, or the peer is lost. Messages leave
 * KEPT_SLOTS free; GO, REFUSE, CREDIT and BYE may use all. So control messages go out even when messages cannot. */
struct peers_slot *bip_take_send(bip_peer *peer, uint32_t keep)
{
    struct peers_port *port = peer->pair.port;
    if (port->n_free_sends <= keep) {
        struct peers *net = port->peers;
        for (uint32_t i = 0; i < net->n_unsettled; i++)
            reap((bip_peer *)(void *)net->unsettled[i]);
        if (port->n_free_sends <= keep || peer->lost) /* reaping may have detected the loss */
            return NULL;
    }
    return peers_take_send(port);
}

/* Adds the number and owed credits to the head. A BEAT has no credits, because its loss is not detected. */
int bip_post_head(bip_peer *peer, struct peers_slot *slot, size_t len)
{
    bip_head *head = (bip_head *)(void *)slot->buf;
    head->number = peer->sent_number;
    if (head->kind != KIND_BEAT) {
        peer->sent_number++;
        head->credits = peers_pay(&peer->pair);
    }
    slot->d.CS.Length = slot->d.DS[0].Local.Length = (VIP_UINT32)len;
    return bip_post_send(peer, slot);
}

/* Returns the number of long messages to that rank whose last packet has been posted. */
static uint32_t long_written(const bip_peer *peer)
{
    const bip_send_request *s = &bip_job_of(peer)->send;
    return peer->long_sent - (s->state == SEND_MOVING && s->peer == peer && s->posted < s->len);
}

/* Sends a head without data. It costs no credit: the receiver has RESERVED buffers for these (internal.h). */
int bip_control(bip_peer *peer, int kind, int tag)
{
    struct peers_slot *slot = bip_take_send(peer, 0);
    if (slot == NULL)
        return 0;
    bip_head head = {.kind = (uint8_t)kind, .tag = tag, .seq = kind == KIND_BYE ? peer->long_received : 0};
    if (kind == KIND_BEAT)
        head.seq = long_written(peer);
    memcpy(slot->buf, &head, sizeof head);
    BIP_COUNT(bip_job_of(peer), credits_sent, kind == KIND_CREDIT);
    return bip_post_head(peer, slot, sizeof head) == 0;
}

/* ---------------------------------------------------------------- receives */

/* Posts a slot of the queue again. Not for a lost peer, whose VI takes no descriptors. A failure is only recorded as a
 * text: the connection is breaking then, and its failed descriptors report it. */
static void post_recv(bip_peer *peer, struct peers_slot *slot)
{
    VIP_RETURN code = peer->lost ? VIP_SUCCESS : peers_post_recv(&peer->pair, slot);
    if (code != VIP_SUCCESS)
        peers_nic_failed(&bip_job_of(peer)->net, "VipPostRecv", code);
}

/* Returns true if free places must be reported to a peer: when half the queue is owed, which suffices for a waiting
 * sender. */
static inline bool owes(const bip_peer *peer)
{
    return peers_owes(&peer->pair) && !peer->lost && !peer->bye_arrived;
}

/* Posted before the credit is owed, because the sender may use the place as soon as it is reported. */
void bip_free_slot(struct peers_slot *slot)
{
    bip_peer *peer = bip_peer_of(slot);
    post_recv(peer, slot);
    peer->pair.owed++;
    if (owes(peer) && !bip_control(peer, KIND_CREDIT, 0))
        bip_job_of(peer)->control_due = true;
}

/* Messages of that rank can no longer be trusted, so the connection ends. */
static void damaged(bip_peer *peer, const char *what)
{
    bip_job *job = bip_job_of(peer);
    if (job->dead < 0)
        job->dead_code = BIP_ERR_DAMAGED;
    /* Even after a BYE, this is not an orderly end. */
    peer->bye_arrived = false;
    peer_lost(peer);
    if (job->options.unreliable) /* it may wait for what was lost, and this rank sends it no BEAT any more */
        VipDisconnect(peer->pair.vi);
    bip_fail(job, BIP_ERR_DAMAGED, "a message of rank %d: %s", peer->rank, what);
}

/* Handles a SHORT or REQUEST. First checks it: next in sequence, one REQUEST at a time, correct checksum. Then the
 * layer receives it at once, or it keeps its slot until the program has received it. */
static void message(bip_peer *peer, struct peers_slot *slot, const bip_head *head)
{
    if (head->seq != peer->recv_seq) {
        damaged(peer, "its sequence number is not the next one");
        return;
    }
    peer->recv_seq++;
    if (head->kind == KIND_REQUEST && peer->requesting) { /* a job has one send at a time */
        damaged(peer, "a second REQUEST before the first has ended");
        return;
    }
    if (head->kind == KIND_REQUEST)
        peer->requesting = true;
    if (bip_job_of(peer)->options.checksum && head->kind == KIND_SHORT &&
        vk_crc32c(0, slot->buf + sizeof *head, head->len) != head->crc) {
        damaged(peer, "its checksum is wrong");
        return;
    }
    /* A layer receives messages in place on arrival; the slot is free when it returns. */
    if (bip_job_of(peer)->options.layer && head->kind == KIND_SHORT) {
        bip_job *job = bip_job_of(peer);
        BIP_COUNT(job, short_received, 1);
        BIP_COUNT(job, bytes_received, head->len);
        job->layer.short_arrived(job->layer.context, peer->rank, head->tag, slot->buf + sizeof *head, head->len);
        bip_free_slot(slot);
        return;
    }
    bip_arrival *arrival = &((bip_slot *)(void *)slot)->arrival;
    *arrival = (bip_arrival){.peer = peer, .head = *head, .data = slot->buf + sizeof *head, .slot = slot};
    bip_arrived(arrival);
}

/* Checks a message before it takes effect. An invalid one ends the connection (damaged), because later messages
 * cannot be trusted either. The receive is posted again unless the message stays in it. */
static void dispatch(bip_peer *peer, struct peers_slot *slot)
{
    bip_job *job = bip_job_of(peer);
    size_t len = slot->d.CS.Length;
    bip_head head;
    /* The last packet of a long message: it used a receive for its immediate data and carried no other. RESERVED
     * includes it. */
    if (slot->d.CS.Status & VIP_STATUS_IMMEDIATE) {
        uint32_t immediate = slot->d.CS.ImmediateData;
        post_recv(peer, slot);
        bip_long_arrived(peer, immediate);
        return;
    }
    /* Copied first, so that every field is read once: the buffer may be written by the peer. */
    memcpy(&head, slot->buf, sizeof head);
    if (len < sizeof head || (head.kind == KIND_SHORT && head.len != len - sizeof head) ||
        (head.kind == KIND_GO && len != sizeof(bip_go))) {
        damaged(peer, "its length contradicts itself");
        return;
    }
    if (head.number != peer->recv_number) {
        damaged(peer, "one before it was lost");
        return;
    }
    peer->n_beats = 0;
    peer->recv_number += head.kind != KIND_BEAT;
    peer->pair.credits += head.credits;
    if (peer->pair.credits > peer->n_slots) {
        damaged(peer, "it reports more room than the queue has");
        return;
    }
    switch (head.kind) {
    case KIND_SHORT:
    case KIND_REQUEST:
        message(peer, slot, &head);
        return;
    case KIND_GO: {
        bip_go go;
        memcpy(&go, slot->buf, sizeof go);
        bip_send_go(peer, &go);
        break;
    }
    case KIND_REFUSE:
        if (job->send.state == SEND_REQUESTED && job->send.peer == peer)
            bip_send_end(job, bip_code_name(head.tag) ? head.tag : BIP_ERR_DAMAGED);
        break;
    case KIND_BYE:
        handle_bye(peer, head.seq);
        break;
    case KIND_BEAT:
        if (head.seq != peer->long_received) {
            damaged(peer, "the end of a long one was lost");
            return;
        }
        break;
    case KIND_CREDIT:
        break;
    default:
        damaged(peer, "it is of no known kind");
        return;
    }
    post_recv(peer, slot);
}

/* Handles one entry of a completion queue, which stands for one receive of that VI. A failed receive ends the
 * connection: with reliable delivery, no later message could be trusted to be complete. At the unreliable level a part
 * of the message is missing, unless the connection has ended, which flushes receives. */
static void receive(VIP_VI_HANDLE vi)
{
    bool failed;
    struct peers_slot *slot = peers_received(vi, &failed);
    if (slot == NULL)
        return;
    bool flushed = slot->d.CS.Status & VIP_STATUS_DESC_FLUSHED_ERROR;
    if (failed && !flushed && !bip_peer_of(slot)->lost && bip_job_of(bip_peer_of(slot))->options.unreliable)
        damaged(bip_peer_of(slot), "a part of it was lost");
    else if (failed)
        peer_lost(bip_peer_of(slot));
    else if (!bip_peer_of(slot)->lost)
        dispatch(bip_peer_of(slot), slot);
}

/* ---------------------------------------------------------------- progress */

/* Reaps, and removes peers without outstanding sends from the list (the last entry fills the gap). Returns by how many
 * outstanding sends have decreased, as a count of events. */
static int settle(bip_job *job)
{
    int n = 0;
    for (uint32_t i = 0; i < job->net.n_unsettled;) {
        struct peers_pair *pair = job->net.unsettled[i];
        uint32_t before = pair->n_outstanding;
        reap((bip_peer *)(void *)pair);
        n += (int)(before - pair->n_outstanding);
        if (pair->n_outstanding == 0)
            peers_settled(&job->net, i);
        else
            i++;
    }
    return n;
}

/* Sends refusals and credits that found no buffer before. A sender may wait for either. */
static void send_due_control(bip_job *job)
{
    job->control_due = false;
    for (int i = 0; i < job->options.n_ranks; i++) {
        bip_peer *peer = &job->peers[i];
        if (peer->refusal && !peer->lost) {
            if (!bip_control(peer, KIND_REFUSE, peer->refusal)) {
                job->control_due = true;
                continue;
            }
            peer->refusal = 0;
            peer->requesting = false;
        }
        if (peer->pair.port && owes(peer) && !bip_control(peer, KIND_CREDIT, 0))
            job->control_due = true;
    }
}

/* Repeats to all ranks the numbers of what was sent to them, so that a loss is detected even if nothing follows it. */
static void beat(bip_job *job)
{
    uint64_t now = vk_now();
    if (now < job->next_beat)
        return;
    job->next_beat = now + BEAT_EVERY_NS;
    for (int i = 0; i < job->options.n_ranks; i++) {
        bip_peer *peer = &job->peers[i];
        if (peer->pair.port && !peer->lost && !peer->bye_arrived && peer->n_beats < BEATS)
            peer->n_beats += bip_control(peer, KIND_BEAT, 0) == 1;
    }
}

/* Polls everything once: arrivals (at most BUDGET per NIC), completed sends, then the operations that can continue. */
int bip_progress(bip_job *job)
{
    int n = 0;
    for (int i = 0; i < 2; i++) {
        struct peers_port *port = job->net.ports[i];
        for (int budget = BUDGET; port && budget > 0; budget--) {
            VIP_VI_HANDLE vi = peers_poll(port);
            if (vi == NULL)
                break;
            receive(vi);
            n++;
        }
    }
    if (job->net.n_unsettled)
        n += settle(job);
    if (job->send.state != SEND_IDLE)
        bip_send_step(job);
    if (job->wants_go)
        bip_recv_step(job);
    if (job->control_due)
        send_due_control(job);
    if (vk_unlikely(job->options.unreliable) && job->connected)
        beat(job);
    return n;
}

/* ---------------------------------------------------------------- waiting */

/* Sleeps at most ms, until a packet arrives. If only the pipeline is active, the wait is for the acknowledgements of
 * its packets, and it can sleep on their VI. */
static void sleep_for(bip_job *job, int ms)
{
    if (job->net.ports[0] == NULL && job->net.ports[1] == NULL) {
        sched_yield();
        return;
    }
    if (job->net.n_unsettled == 1 && job->send.state == SEND_MOVING) {
        bip_peer *peer = job->send.peer;
        VIP_DESCRIPTOR *d = NULL;
        bool two = job->net.ports[0] && job->net.ports[1]; /* each sleep is short */
        VIP_RETURN code =
            peer->pair.n_outstanding ? VipSendWait(peer->pair.vi, two ? 1 : (VIP_ULONG)ms, &d) : VIP_TIMEOUT;
        if (d && code != VIP_TIMEOUT && code != VIP_NOT_DONE)
            send_done((struct peers_slot *)(void *)d, code != VIP_SUCCESS);
        return;
    }
    bip_woken(job, bip_sleep_unlocked(job, (uint64_t)ms));
}

/* Then a caller must not sleep for long: only polling finds the completion of a send. */
int bip_unsettled(const bip_job *job)
{
    return job->net.n_unsettled != 0;
}

/* Reads nothing of the job but its NICs, hence beside other threads (peers.h: peers_sleep). */
void *bip_sleep_unlocked(bip_job *job, uint64_t ms)
{
    return peers_sleep(&job->net, ms);
}

/* Handles the result of bip_sleep_unlocked, in the thread that uses the job. */
void bip_woken(bip_job *job, void *what)
{
    (void)job;
    if (what)
        receive(what);
}

/* For a caller's own loop: sleeps, and handles the events. */
void bip_idle(bip_job *job, int ms)
{
    sleep_for(job, ms);
    bip_progress(job);
}

/* A wait that is not `blocking` never sleeps. If ranks share a core it yields after each poll. */
void bip_wait_begin(const bip_job *job, bip_wait *wait, int timeout_ms)
{
    const bip_options *o = &job->options;
    *wait = (bip_wait){.deadline = vk_deadline((unsigned long)timeout_ms),
                       .yield_after = o->one_core ? 0 : YIELD_AFTER,
                       .sleep_after = o->blocking ? (uint64_t)o->spin_us * VK_US : VK_NEVER,
                       .check_every = CHECK_EVERY_NS,
                       .polls_per_clock = 32,
                       .free_polls = o->one_core ? 0 : 31};
}

/* One poll, and then whatever the time waited calls for. 19 ms of sleep, so that with the poll the interrupt is checked
 * about every 20 ms (job.h). */
int bip_wait_step(bip_job *job, bip_wait *wait)
{
    switch (vk_wait_next(wait, bip_progress(job))) {
    case VK_WAIT_SPIN:
        break;
    case VK_WAIT_YIELD:
        vk_wait_yield(wait);
        break;
    case VK_WAIT_SLEEP:
        sleep_for(job, (int)(vk_wait_sleep(wait, 1, 19 * VK_MS, 19 * VK_MS) / VK_MS) + 1);
        break;
    case VK_WAIT_CHECK:
        if (job->options.interrupt && job->options.interrupt(job->options.interrupt_context))
            return bip_fail(job, BIP_ERR_INTERRUPTED, "interrupted");
        break;
    case VK_WAIT_TIMEOUT:
        return bip_fail(job, BIP_ERR_TIMEOUT, "nothing came in the time given");
    }
    return 0;
}
