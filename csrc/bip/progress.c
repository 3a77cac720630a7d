/*
 * Progress: completed receives are taken from the completion queue and understood, completed sends are reaped,
 * and what waited for either goes on. Nothing here blocks but bip_sleep.
 *
 *      VipCQDone -> receive -> understand: SHORT, ASK -> recv.c    GO, REFUSE -> send.c    CREDIT, BYE here
 *      VipSendDone -> send_done: a packet -> send.c (bip_packet_sent)    a buffer -> free again
 *
 * There is no thread and no interrupt: BIP moves when the program calls it. What comes meanwhile lies in posted
 * buffers (short) or is written by RDMA (long) without anybody's help, and is understood at the next call.
 *
 * Credits, of one direction of a pair; n_slots is the length of the queue at the receiver:
 *
 *     n_slots = credits at the sender + messages in the queue or on their way + owed at the receiver + told, on the way
 *
 * Each message that is taken frees a place in the queue (`owed`). What is owed rides on the next
 * message to that rank, or goes alone when half the queue is owed, so that a stream in one direction
 * costs one CREDIT for each half queue. (Section 3: "to ensure all messages send can be received by
 * the destination node"; BIP itself left this to MPI-BIP.)
 *
 * What comes out of order, twice or unasked:
 *
 *     a wrong sequence number, more credits than places, a second ASK    damaged: the connection ends
 *     a GO or REFUSE for a send that has ended                           dropped
 *     immediate data for a receive that was given up                     dropped; only a lost peer does that
 *     a BYE                                                              what it sent before is still received
 */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/crc32c.h"
#include "bip/internal.h"

#define BUDGET 64                   /* completions in one look at a NIC */
#define YIELD_AFTER 256             /* looks that found nothing */
#define CHECK_EVERY_NS (20 * VK_MS) /* for the interrupt */

/* ---------------------------------------------------------------- errors */

int bip_fail(bip_job *job, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(job->error, sizeof job->error, format, arguments);
    va_end(arguments);
    return code;
}

int bip_nic_failed(bip_job *job, const char *call, VIP_RETURN code)
{
    const char *name = viakit_return_name((int)code), *why = viakit_last_error();
    return bip_fail(job, BIP_ERR_RESOURCE, "%s: %s%s%s", call, name ? name : "failed", *why ? ": " : "", why);
}

const char *bip_code_name(int code)
{
    switch (code) {
#define BIP_X(name, value, text) \
    case value:                  \
        return #name;
        BIP_CODES(BIP_X)
#undef BIP_X
    default:
        return NULL;
    }
}

const char *bip_code_text(int code)
{
    switch (code) {
#define BIP_X(name, value, text) \
    case value:                  \
        return text;
        BIP_CODES(BIP_X)
#undef BIP_X
    default:
        return NULL;
    }
}

const char *bip_counter_name(int counter)
{
    static const char *const names[] = {
#define BIP_X(name, text) #name,
        BIP_COUNTERS(BIP_X)
#undef BIP_X
    };
    return counter >= 0 && counter < BIP_N_COUNTERS ? names[counter] : NULL;
}

/* ---------------------------------------------------------------- a connection ends */

/* Whoever has said good-bye has left; whoever has not has died, and with him the job: its waits end
 * (recv.c: alone). The first to die is the one that is named. */
static void peer_lost(bip_peer *peer)
{
    bip_job *job = peer->port->job;
    if (peer->lost)
        return;
    peer->lost = true;
    job->n_left += !peer->said_bye;
    if (!peer->said_bye && job->dead < 0)
        job->dead = peer->rank;
    int code = peer->said_bye ? BIP_ERR_LEFT : BIP_ERR_PEER;
    if (job->send.state != SEND_IDLE && job->send.peer == peer)
        bip_send_end(job, code);
    if (peer->incoming)
        bip_recv_end(job, peer->incoming, code);
    peer->incoming = NULL;
    if (job->options.layer)
        job->layer.lost(job->layer.context, peer->rank);
}

/* The peer leaves. Nothing that he has not asked for yet will be taken, so a send to him that waits
 * for a credit or an answer ends. One that has been written as a whole may have ended well: he may
 * have left so soon after our last packet that its acknowledgement was lost with the connection, and
 * his good-bye tells how many long messages he has received. */
static void good_bye(bip_peer *peer, uint32_t long_received)
{
    bip_job *job = peer->port->job;
    job->n_left += !peer->said_bye;
    peer->said_bye = true;
    if (job->send.peer == peer && job->send.state == SEND_MOVING && job->send.posted == job->send.len &&
        long_received == peer->long_sent) {
        BIP_COUNT(job, long_sent, 1);
        bip_send_end(job, 0);
    }
    if (job->send.peer == peer && (job->send.state == SEND_QUEUED || job->send.state == SEND_ASKED))
        bip_send_end(job, BIP_ERR_LEFT);
}

/* ---------------------------------------------------------------- sends */

/* A send has been taken back: a packet counts for the pipeline, a buffer is free. One that
 * failed is the end of the connection. */
static void send_done(bip_slot *slot, bool failed)
{
    bip_peer *peer = slot->peer;
    bip_port *port = peer->port;
    peer->outstanding--;
    if (slot->packet) {
        bip_packet_sent(slot, failed);
        slot->next = port->free_packets;
        port->free_packets = slot;
    } else {
        slot->next = port->free_sends;
        port->free_sends = slot;
        port->n_free_sends++;
    }
    if (failed)
        peer_lost(peer);
}

/* In posting order, as a VI completes: a descriptor that is not done ends the look. */
void bip_reap(bip_peer *peer)
{
    while (peer->outstanding) {
        VIP_DESCRIPTOR *d = NULL;
        VIP_RETURN code = VipSendDone(peer->vi, &d);
        if (d == NULL || code == VIP_NOT_DONE)
            return;
        send_done((bip_slot *)(void *)d, code != VIP_SUCCESS);
    }
}

/* Posts, and puts the peer on the list of those with something to reap. 0, or the connection is lost. */
int bip_post_send(bip_peer *peer, bip_slot *slot)
{
    bip_job *job = peer->port->job;
    slot->peer = peer;
    peer->outstanding++;
    /* Each peer is on the list once; there is room for all of them. */
    if (!peer->listed) {
        peer->listed = true;
        job->unsettled[job->n_unsettled++] = peer;
    }
    VIP_RETURN code = VipPostSend(peer->vi, &slot->d, peer->port->slots_handle);
    if (code == VIP_SUCCESS)
        return 0;
    bip_nic_failed(job, "VipPostSend", code);
    send_done(slot, true);
    return BIP_ERR_RESOURCE;
}

/* A send buffer, of which `keep` stay for others; NULL: all are under way, or the peer is lost. Messages leave
 * KEPT_SLOTS, GO, REFUSE, CREDIT and BYE none: what others wait for goes out even when messages cannot. */
bip_slot *bip_take_send(bip_peer *peer, uint32_t keep)
{
    bip_port *port = peer->port;
    if (port->n_free_sends <= keep) {
        bip_job *job = port->job;
        for (int i = 0; i < job->n_unsettled; i++)
            bip_reap(job->unsettled[i]);
        if (port->n_free_sends <= keep || peer->lost) /* which it may have shown */
            return NULL;
    }
    bip_slot *slot = port->free_sends;
    port->free_sends = slot->next;
    port->n_free_sends--;
    return slot;
}

/* Completes the head with what this rank is owed; 255 at a time, for the field is a byte. */
int bip_post_head(bip_peer *peer, bip_slot *slot, size_t len)
{
    uint32_t told = peer->owed < 255 ? peer->owed : 255;
    ((bip_head *)(void *)slot->buf)->credits = (uint8_t)told;
    peer->owed -= told;
    slot->d.CS.Length = slot->d.DS[0].Local.Length = (VIP_UINT32)len;
    return bip_post_send(peer, slot);
}

/* A head without data. It costs no credit: the receiver has RESERVED buffers for these (internal.h). */
int bip_control(bip_peer *peer, int kind, int tag)
{
    bip_slot *slot = bip_take_send(peer, 0);
    if (slot == NULL)
        return 0;
    bip_head head = {.kind = (uint8_t)kind, .tag = tag, .seq = kind == KIND_BYE ? peer->long_received : 0};
    memcpy(slot->buf, &head, sizeof head);
    BIP_COUNT(peer->port->job, credits_sent, kind == KIND_CREDIT);
    return bip_post_head(peer, slot, sizeof head) == 0;
}

/* ---------------------------------------------------------------- receives */

/* A receive, posted anew: the descriptor's status and length are the last message's. Length
 * is what the buffer holds. */
int bip_post_slot(bip_peer *peer, bip_slot *slot)
{
    if (peer->lost)
        return 0;
    slot->d.CS.Control = 0;
    slot->d.CS.Length = slot->d.DS[0].Local.Length;
    VIP_RETURN code = VipPostRecv(peer->vi, &slot->d, peer->port->slots_handle);
    return code == VIP_SUCCESS ? 0 : bip_nic_failed(peer->port->job, "VipPostRecv", code);
}

/* Is it time to tell a peer of room in our queue? When it is half the queue: whoever waits needs no more than that. */
static inline bool owes(const bip_peer *peer)
{
    return peer->owed >= (peer->port->job->options.n_slots + 1) / 2 && !peer->lost && !peer->said_bye;
}

/* Posted again before the credit is owed: the sender may use the place as soon as it hears of it. */
void bip_free_slot(bip_slot *slot)
{
    bip_peer *peer = slot->peer;
    bip_post_slot(peer, slot);
    peer->owed++;
    if (owes(peer) && !bip_control(peer, KIND_CREDIT, 0))
        peer->port->job->words_due = true;
}

/* What comes from that rank cannot be trusted any more. */
static void damaged(bip_peer *peer, const char *what)
{
    bip_job *job = peer->port->job;
    if (job->dead < 0)
        job->dead_code = BIP_ERR_DAMAGED;
    /* Whatever he has said, this is not an orderly end. */
    peer->said_bye = false;
    peer_lost(peer);
    bip_fail(job, BIP_ERR_DAMAGED, "a message of rank %d: %s", peer->rank, what);
}

/* A message of the queue: SHORT or ASK. Checked first (the next in sequence, one question at a time, its
 * checksum); then the layer has it at once, or it keeps its slot until the program has taken it. */
static void message(bip_peer *peer, bip_slot *slot, const bip_head *head)
{
    if (head->seq != peer->recv_seq) {
        damaged(peer, "its sequence number is not the next one");
        return;
    }
    peer->recv_seq++;
    if (head->kind == KIND_ASK && peer->asking) { /* a job has one send at a time */
        damaged(peer, "it asks again before it was answered");
        return;
    }
    if (head->kind == KIND_ASK)
        peer->asking = true;
    if (peer->port->job->options.checksum && head->kind == KIND_SHORT &&
        vk_crc32c(0, slot->buf + sizeof *head, head->len) != head->crc) {
        damaged(peer, "its checksum is wrong");
        return;
    }
    /* A layer takes messages as they come, where they lie; the slot is free when it returns. */
    if (peer->port->job->options.layer && head->kind == KIND_SHORT) {
        bip_job *job = peer->port->job;
        BIP_COUNT(job, short_received, 1);
        BIP_COUNT(job, bytes_received, head->len);
        job->layer.short_arrived(job->layer.context, peer->rank, head->tag, slot->buf + sizeof *head, head->len);
        bip_free_slot(slot);
        return;
    }
    slot->arrival = (bip_arrival){.peer = peer, .head = *head, .data = slot->buf + sizeof *head, .slot = slot};
    bip_arrived(&slot->arrival);
}

/* What a peer says is checked before it is acted on; nonsense ends the connection (damaged), for nothing after it can
 * be trusted either. The receive is posted again unless the message stays in it. */
static void understand(bip_peer *peer, bip_slot *slot)
{
    bip_job *job = peer->port->job;
    size_t len = slot->d.CS.Length;
    bip_head head;
    /* The last packet of a long message: it took a receive for its immediate data, and brought
     * nothing else in it. RESERVED counts it. */
    if (slot->d.CS.Status & VIP_STATUS_IMMEDIATE) {
        uint32_t immediate = slot->d.CS.ImmediateData;
        bip_post_slot(peer, slot);
        bip_long_arrived(peer, immediate);
        return;
    }
    /* Copied first: every field is looked at once, and the buffer is the peer's. */
    memcpy(&head, slot->buf, sizeof head);
    if (len < sizeof head || (head.kind == KIND_SHORT && head.len != len - sizeof head) ||
        (head.kind == KIND_GO && len != sizeof(bip_go))) {
        damaged(peer, "its length contradicts itself");
        return;
    }
    peer->credits += head.credits;
    if (peer->credits > peer->n_slots) {
        damaged(peer, "it tells of more room than there is");
        return;
    }
    switch (head.kind) {
    case KIND_SHORT:
    case KIND_ASK:
        message(peer, slot, &head);
        return;
    case KIND_GO: {
        bip_go go;
        memcpy(&go, slot->buf, sizeof go);
        bip_send_go(peer, &go);
        break;
    }
    case KIND_REFUSE:
        if (job->send.state == SEND_ASKED && job->send.peer == peer)
            bip_send_end(job, bip_code_name(head.tag) ? head.tag : BIP_ERR_DAMAGED);
        break;
    case KIND_BYE:
        good_bye(peer, head.seq);
        break;
    case KIND_CREDIT:
        break;
    default:
        damaged(peer, "it is of no known kind");
        return;
    }
    bip_post_slot(peer, slot);
}

/* One entry of a completion queue. It stands for one receive of that VI. One that failed is the end of the
 * connection: with reliable delivery nothing that follows could be trusted to be complete. */
static void receive(VIP_VI_HANDLE vi)
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN code = VipRecvDone(vi, &d);
    if (d == NULL || code == VIP_NOT_DONE)
        return;
    bip_slot *slot = (bip_slot *)(void *)d;
    if (code != VIP_SUCCESS)
        peer_lost(slot->peer);
    else if (!slot->peer->lost)
        understand(slot->peer, slot);
}

/* ---------------------------------------------------------------- progress */

/* Reaps, and takes those off the list that have nothing outstanding (their place goes to the last). */
static int settle(bip_job *job)
{
    int n = 0;
    for (int i = 0; i < job->n_unsettled;) {
        bip_peer *peer = job->unsettled[i];
        uint32_t before = peer->outstanding;
        bip_reap(peer);
        n += (int)(before - peer->outstanding);
        if (peer->outstanding == 0) {
            peer->listed = false;
            job->unsettled[i] = job->unsettled[--job->n_unsettled];
        } else
            i++;
    }
    return n;
}

/* Refusals and credits for which there was no buffer. A sender may wait for either. */
static void tell_words(bip_job *job)
{
    job->words_due = false;
    for (int i = 0; i < job->options.n_ranks; i++) {
        bip_peer *peer = &job->peers[i];
        if (peer->refusal && !peer->lost) {
            if (!bip_control(peer, KIND_REFUSE, peer->refusal)) {
                job->words_due = true;
                continue;
            }
            peer->refusal = 0;
            peer->asking = false;
        }
        if (peer->port && owes(peer) && !bip_control(peer, KIND_CREDIT, 0))
            job->words_due = true;
    }
}

/* One look at everything: what arrived (at most BUDGET of each NIC), what was sent, then what
 * may go on because of it. */
int bip_progress(bip_job *job)
{
    int n = 0;
    for (int i = 0; i < 2; i++) {
        bip_port *port = job->ports[i];
        for (int budget = BUDGET; port && budget > 0; budget--) {
            VIP_VI_HANDLE vi;
            VIP_BOOLEAN recv;
            if (VipCQDone(port->cq, &vi, &recv) != VIP_SUCCESS)
                break;
            receive(vi);
            n++;
        }
    }
    if (job->n_unsettled)
        n += settle(job);
    if (job->send.state != SEND_IDLE)
        bip_send_step(job);
    if (job->wants_go)
        bip_recv_step(job);
    if (job->words_due)
        tell_words(job);
    return n;
}

/* ---------------------------------------------------------------- waiting */

/* Sleeps at most ms, until something arrives. While the pipeline is the only thing under way its packets'
 * acknowledgements are what is waited for, and they can be slept on at their VI. */
void bip_sleep(bip_job *job, int ms)
{
    bip_port *port = job->ports[0] ? job->ports[0] : job->ports[1];
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    if (port == NULL) {
        sched_yield();
        return;
    }
    if (job->ports[0] && job->ports[1]) { /* none can be slept on for long */
        port = job->ports[job->counters[BIP_COUNTER_bytes_received] & 1];
        ms = 1;
    }
    /* completions of sends do not wake a wait for receives: look for them often while there are any */
    if (job->n_unsettled == 1 && job->send.state == SEND_MOVING) {
        bip_peer *peer = job->send.peer;
        VIP_DESCRIPTOR *d = NULL;
        VIP_RETURN code = peer->outstanding ? VipSendWait(peer->vi, (VIP_ULONG)ms, &d) : VIP_TIMEOUT;
        if (d && code != VIP_TIMEOUT && code != VIP_NOT_DONE)
            send_done((bip_slot *)(void *)d, code != VIP_SUCCESS);
        return;
    }
    if (job->n_unsettled)
        ms = 1;
    if (VipCQWait(port->cq, (VIP_ULONG)ms, &vi, &recv) == VIP_SUCCESS)
        receive(vi);
}

int bip_unsettled(const bip_job *job)
{
    return job->n_unsettled != 0;
}

void *bip_doze(const bip_job *job, int nic, int ms)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    return VipCQWait(job->ports[nic]->cq, (VIP_ULONG)(ms > 0 ? ms : 1), &vi, &recv) == VIP_SUCCESS ? vi : NULL;
}

/* What bip_doze brought, back in the thread that uses the job. */
void bip_woken(bip_job *job, void *what)
{
    (void)job;
    if (what)
        receive(what);
}

/* For loops of the caller's: a sleep, and what it brought. */
void bip_idle(bip_job *job, int ms)
{
    bip_sleep(job, ms);
    bip_progress(job);
}

/* A wait that is not `blocking` never sleeps: spin_until never comes. */
void bip_wait_begin(const bip_job *job, bip_wait *wait, int timeout_ms)
{
    uint64_t now = vk_now();
    wait->deadline = timeout_ms < 0 ? VK_NEVER : now + (uint64_t)timeout_ms * VK_MS;
    wait->spin_until = job->options.blocking ? now + (uint64_t)job->options.spin_us * VK_US : VK_NEVER;
    wait->next_check = now + CHECK_EVERY_NS;
    wait->idle = 0;
}

/* One look; if it found nothing: give the core away after YIELD_AFTER such looks (at once
 * where ranks share a core), look at interrupt and deadline every 32 of them, sleep if that
 * was asked for. 0 go on; else the error that ends the wait. */
int bip_wait_step(bip_job *job, bip_wait *wait)
{
    if (bip_progress(job)) {
        wait->idle = 0;
        return 0;
    }
    if (job->options.one_core || ++wait->idle >= YIELD_AFTER)
        sched_yield();
    if (!job->options.one_core && wait->idle % 32)
        return 0;
    uint64_t now = vk_now();
    if (now >= wait->next_check) {
        wait->next_check = now + CHECK_EVERY_NS;
        if (job->options.interrupt && job->options.interrupt(job->options.interrupt_context))
            return bip_fail(job, BIP_ERR_INTERRUPTED, "interrupted");
    }
    if (now >= wait->deadline)
        return bip_fail(job, BIP_ERR_TIMEOUT, "nothing came in the time given");
    if (now >= wait->spin_until) {
        uint64_t left = (wait->deadline - now) / VK_MS + 1;
        bip_sleep(job, left < 20 ? (int)left : 20);
    }
    return 0;
}
