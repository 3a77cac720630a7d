/*
 * Sends. One at a time, as in BIP ("a process may only have one receive per tag and one send posted", section 3):
 *
 *                 a credit                         GO                      all packets acknowledged
 *      QUEUED ---------------> (short) IDLE             MOVING ------------------------------------> IDLE
 *                   \--------> (long) REQUESTED ----------^
 *                                     '--- REFUSE, or its rank lost ---> IDLE, with a code
 *
 * A short message (4.4) is copied once, and its buffer is free at once. A long one (4.3) is written by RDMA in packets
 * of equal size, at most PACKETS of them in flight. The last packet carries immediate data, which notifies the receiver
 * that the message is complete:
 *
 *     sender   REQUEST len -.                .--> write write write ... write + immediate ---.
 *                           |                |                                               |
 *     receiver              '-> posted: GO --'    (address, handle)                       '--> len, checksum? done
 *
 * Counts of a long send: `posted` bytes are with the NIC, `done` bytes are acknowledged; done <= posted <= len. The
 * send has ended when done = len. This code never sends a packet twice: the provider retransmits lost frames.
 *
 * Reason for packets: sending host, wire and receiving host each work on one packet at the same time. This overlap made
 * BIP reach the bandwidth of its wire (4.3, "Pipeline transmission"). Small packets pay the cost per packet too often.
 * Large packets leave the wire idle at both ends. The best size grows with the square root of the length (model.c), and
 * bip_packet() reads it from the table.
 *
 * A send may end within any call here, and a layer's callback may start the next one at once. So no field of job->send
 * is used after bip_send_end().
 */
#include <string.h>

#include "base/copy.h"
#include "base/crc32c.h"
#include "base/plural.h"
#include "bip/internal.h"

#define MOST_IDS 0x3fffffff

/* Ends the send with a code. All fields are set before the layer's callback, because it may start the next send. */
void bip_send_end(bip_job *job, int code)
{
    bip_send_request *s = &job->send;
    peers_cache_put(s->region);
    s->region = NULL;
    s->code = code;
    s->state = SEND_IDLE;
    if (code == 0)
        BIP_COUNT(job, bytes_sent, s->len);
    else
        bip_fail(job, code, "a message of %zu byte%s with tag %d to rank %d: %s", s->len, vk_s(s->len), s->tag,
                 s->peer->rank, bip_code_text(code));
    if (s->noted) {
        s->noted = false;
        job->layer.sent(job->layer.context, s->cookie, code);
    }
}

/* Sends the short message or the REQUEST. Without a credit or a buffer it does nothing, and bip_send_step tries again.
 * It leaves the state at REQUESTED even for a short message, for which bip_send_end() follows at once. */
static void start(bip_job *job)
{
    bip_send_request *s = &job->send;
    bip_peer *peer = s->peer;
    bool is_short = s->len <= peer->small;
    struct peers_slot *slot;
    if (peer->pair.credits == 0 || (slot = bip_take_send(peer, KEPT_SLOTS)) == NULL)
        return;
    bip_head head = {.kind = is_short ? KIND_SHORT : KIND_REQUEST, .seq = peer->send_seq, .tag = s->tag, .len = s->len};
    if (job->options.checksum && is_short)
        head.crc = vk_crc32c(0, s->buf, s->len);
    memcpy(slot->buf, &head, sizeof head);
    if (is_short && s->len)
        memcpy(slot->buf + sizeof head, s->buf, s->len);
    /* From here on the message counts: sequence numbers must have no gaps, or the receiver reports damage. */
    peer->pair.credits--;
    peer->send_seq++;
    s->state = SEND_REQUESTED;
    if (bip_post_head(peer, slot, sizeof head + (is_short ? s->len : 0)) != 0 || !is_short)
        return; /* a failed post has already ended the send */
    BIP_COUNT(job, short_sent, 1);
    bip_send_end(job, 0);
}

/* ---------------------------------------------------------------- the pipeline */

/* Posts as many packets as there are descriptors. The last packet's immediate data follows all data, because writes
 * of one VI are placed in order. */
static void move(bip_job *job)
{
    bip_send_request *s = &job->send;
    struct peers_port *port = s->peer->pair.port;
    struct peers_slot *slot;
    while (s->state == SEND_MOVING && s->posted < s->len && (slot = port->free_rdma) != NULL) {
        size_t n = s->len - s->posted < s->packet ? s->len - s->posted : s->packet;
        bool last = s->posted + n == s->len;
        port->free_rdma = slot->next;
        slot->d.CS.ImmediateData = job->options.checksum ? s->crc : (uint32_t)s->len;
        slot->d.DS[1].Local.Data.Address = (char *)(uintptr_t)s->buf + s->posted;
        slot->d.DS[1].Local.Handle = s->region->handle;
        peers_set_rdma(slot, VIP_CONTROL_OP_RDMAWRITE | (last ? VIP_CONTROL_IMMEDIATE : 0), s->address + s->posted,
                       s->handle, n);
        /* Updated before the post, which may fail and end the send. No field of s is used after that. */
        s->posted += n;
        s->under_way++;
        BIP_COUNT(job, packets_sent, 1);
        if (bip_post_send(s->peer, slot) != 0)
            return;
    }
}

/* One packet is acknowledged: all of it is in the receiver's memory. Packets complete in order, but only their sum
 * matters. */
void bip_packet_sent(struct peers_slot *slot, bool failed)
{
    bip_job *job = bip_job_of(bip_peer_of(slot));
    bip_send_request *s = &job->send;
    if (s->state != SEND_MOVING || s->peer != bip_peer_of(slot))
        return; /* belongs to a send that has failed */
    s->under_way--;
    s->done += slot->d.CS.Length;
    if (failed || s->done < s->len)
        return; /* the loss of the peer ends it */
    BIP_COUNT(job, long_sent, 1);
    bip_send_end(job, 0);
}

/* The receiver has sent its address. A GO that matches no send belongs to one that has ended, and is dropped. The
 * packet size is chosen only now; it depends on the length alone. */
void bip_send_go(bip_peer *peer, const bip_go *go)
{
    bip_job *job = bip_job_of(peer);
    bip_send_request *s = &job->send;
    if (s->state != SEND_REQUESTED || s->peer != peer)
        return;
    s->address = go->address;
    s->handle = go->handle;
    s->posted = s->done = 0;
    s->under_way = 0;
    s->packet = bip_packet(job, peer->rank, s->len);
    s->state = SEND_MOVING;
    peer->long_sent++;
    move(job);
}

/* Called from every bip_progress while a send is outstanding. REQUESTED waits for the peer, so there is nothing to
 * do. */
void bip_send_step(bip_job *job)
{
    if (job->send.state == SEND_QUEUED)
        start(job);
    else if (job->send.state == SEND_MOVING)
        move(job);
}

/* ---------------------------------------------------------------- the calls */

/* Returns the bytes of each packet of a message of len bytes. Packets are equal, so that the last is not a short one
 * with the full overhead. They never exceed one descriptor's maximum; bip_equal_packets rounds up, hence the second
 * comparison. */
size_t bip_packet(const bip_job *job, int dst, size_t len)
{
    if (dst < 0 || dst >= job->options.n_ranks || job->peers[dst].pair.port == NULL)
        return len;
    const struct peers_port *port = job->peers[dst].pair.port;
    uint64_t p = job->options.packet ? job->options.packet : bip_table_packet(&job->tables[port->index], len);
    if (p > port->attributes.MaxTransferSize)
        p = port->attributes.MaxTransferSize;
    p = bip_equal_packets(len, p);
    return p < port->attributes.MaxTransferSize ? p : port->attributes.MaxTransferSize;
}

/* Starts a send, as far as possible at once. Returns the id, or an error. */
static int begin(bip_job *job, int dst, int tag, const void *buf, size_t len, bool noted, uint64_t cookie)
{
    bip_send_request *s = &job->send;
    if (dst < 0 || dst >= job->options.n_ranks)
        return bip_fail(job, BIP_ERR_ARGUMENT, "there is no rank %d: there are %d", dst, job->options.n_ranks);
    if (dst == job->options.rank)
        return bip_fail(job, BIP_ERR_SELF, "rank %d sends to itself: BIP does not do that", dst);
    if (buf == NULL && len)
        return bip_fail(job, BIP_ERR_ARGUMENT, "a message of %zu byte%s without a buffer", len, vk_s(len));
    if (!job->connected)
        return bip_fail(job, BIP_ERR_ARGUMENT, "the job is not connected yet");
    if (s->state != SEND_IDLE)
        return bip_fail(job, BIP_ERR_BUSY, "the send to rank %d is still outstanding: wait for it first",
                        s->peer->rank);
    bip_peer *peer = &job->peers[dst];
    if (peer->lost || peer->bye_arrived)
        return bip_fail(job, peer->bye_arrived ? BIP_ERR_LEFT : BIP_ERR_PEER, "rank %d %s", dst,
                        peer->bye_arrived ? "has left the job" : "died");
    /* Registered before the REQUEST is sent, so that it cannot fail after the receiver's reply. */
    struct peers_region *region = NULL;
    if (len > peer->small && (region = bip_region_get(peer, buf, len)) == NULL)
        return BIP_ERR_RESOURCE;
    /* Consecutive from 1 on, never negative. They repeat only after MOST_IDS sends (was_issued). */
    int id = (int)(job->n_sends++ % MOST_IDS) + 1;
    *s = (bip_send_request){.state = SEND_QUEUED,
                            .noted = noted,
                            .cookie = cookie,
                            .id = id,
                            .peer = peer,
                            .tag = tag,
                            .buf = buf,
                            .len = len,
                            .crc = region && job->options.checksum ? vk_crc32c(0, buf, len) : 0,
                            .region = region};
    start(job); /* it may end there, and a layer may start the next one */
    return id;
}

/* One poll if the message found no credit, so that programs which only send make progress, too. */
int bip_isend_bytes(bip_job *job, int dst, int tag, const void *buf, size_t len)
{
    int id = begin(job, dst, tag, buf, len, false, 0);
    /* The missing credit may have arrived already. */
    if (id >= 0 && job->send.state == SEND_QUEUED) {
        bip_progress(job);
        BIP_COUNT(job, queue_full, job->send.state == SEND_QUEUED);
    }
    return id;
}

/* The layer's callback reports the end, possibly before this returns. The id is of no use to a layer. */
int bip_isend_noted(bip_job *job, int dst, int tag, const void *buf, size_t len, uint64_t cookie)
{
    return begin(job, dst, tag, buf, len, true, cookie);
}

/* Sends a short message of two parts, at once or not at all. Returns 1, 0 for no credit or buffer now, or an error.
 * The layer above (msg/bip.c) sends its packets this way; they do not count as the one outstanding send. */
int bip_send_parts(bip_job *job, int dst, int tag, const void *head, size_t head_len, const void *data, size_t len)
{
    bip_peer *peer = &job->peers[dst];
    struct peers_slot *slot;
    if (vk_unlikely(peer->lost || peer->pair.port == NULL))
        return BIP_ERR_PEER;
    if (vk_unlikely(peer->pair.credits == 0 || (slot = bip_take_send(peer, KEPT_SLOTS)) == NULL)) {
        BIP_COUNT(job, queue_full, 1);
        return peer->lost ? BIP_ERR_PEER : 0;
    }
    size_t n = head_len + len;
    char *to = slot->buf + sizeof(bip_head);
    vk_copy_short(to, head, head_len);
    if (len)
        vk_copy_short(to + head_len, data, len);
    bip_head h = {.kind = KIND_SHORT, .seq = peer->send_seq++, .tag = tag, .len = n};
    if (job->options.checksum)
        h.crc = vk_crc32c(0, to, n);
    memcpy(slot->buf, &h, sizeof h);
    peer->pair.credits--;
    BIP_COUNT(job, short_sent, 1);
    BIP_COUNT(job, bytes_sent, n);
    return bip_post_head(peer, slot, sizeof h + n) == 0 ? 1 : BIP_ERR_PEER;
}

/* Returns true if a send has had this id. */
static bool was_issued(const bip_job *job, int id)
{
    return id > 0 && id <= MOST_IDS && (uint64_t)id <= job->n_sends;
}

/* Returns 1 if the buffer is free again, 0 if not yet, or the send's error. */
int bip_stest_id(bip_job *job, int id)
{
    bip_send_request *s = &job->send;
    if (!was_issued(job, id))
        return bip_fail(job, BIP_ERR_ARGUMENT, "there is no send %d", id);
    if (id != s->id)
        return 1; /* an earlier one: there is one at a time */
    if (s->state != SEND_IDLE)
        bip_progress(job);
    if (s->state != SEND_IDLE)
        return 0;
    int code = s->code;
    s->code = 0;
    return code ? code : 1;
}

/* Reports a time-out, with the event that the send waits for. */
static int too_late(bip_job *job)
{
    const bip_send_request *s = &job->send;
    const char *what = s->state == SEND_QUEUED      ? "room in its queue"
                       : s->state == SEND_REQUESTED ? "receive for it"
                                                    : "end of its data";
    return bip_fail(job, BIP_ERR_TIMEOUT, "a message of %zu byte%s with tag %d to rank %d: no %s in the time given",
                    s->len, vk_s(s->len), s->tag, s->peer->rank, what);
}

/* After TIMEOUT and INTERRUPTED the send continues, and may be waited for again. */
int bip_swait_id(bip_job *job, int id, int timeout_ms)
{
    bip_wait wait;
    int done = bip_stest_id(job, id), code;
    if (done)
        return done < 0 ? done : 0;
    bip_wait_begin(job, &wait, timeout_ms);
    while ((done = job->send.state == SEND_IDLE) == 0)
        if ((code = bip_wait_step(job, &wait)) != 0 && job->send.state != SEND_IDLE)
            return code == BIP_ERR_TIMEOUT ? too_late(job) : code;
    done = bip_stest_id(job, id);
    return done < 0 ? done : 0;
}
