/*
 * Sends. One at a time, as BIP has it ("a process may only have one receive per tag and one
 * send posted", section 3):
 *
 *                 a credit                     GO                      all packets acknowledged
 *      QUEUED ---------------> (short) IDLE         MOVING ------------------------------------> IDLE
 *                   \--------> (long) ASKED ----------^
 *                                     '--- REFUSE, or its rank lost ---> IDLE, with a code
 *
 * A short message (4.4) is copied once and the buffer is free again at once. A long one (4.3) is written
 * by RDMA in packets of equal size, PACKETS of which are under way at most; the last one carries
 * immediate data, which tells the receiver that all of it is there:
 *
 *     sender   ASK len ---.                 .--> write write write ... write + immediate ---.
 *                         |                 |                                               |
 *     receiver            '--> posted: GO --'    (address, handle)                       '--> len, checksum right? done
 *
 * Counts of a long send: posted bytes are with the NIC, done bytes are acknowledged; done <= posted <= len, and
 * it has ended when done = len. No packet is ever sent again from here: what is lost the provider repeats.
 *
 * Why packets: sending host, wire and receiving host work on one packet each at the same time, which is what
 * made BIP reach the bandwidth of its wire (4.3, "Pipeline transmission"). A packet too small pays its own
 * cost too often, one too large leaves the wire idle at both ends; the best size grows with the root of the
 * length (model.c), and bip_packet() asks the table for it.
 *
 * A send may end within any call here, and a layer's callback may begin the next one at once:
 * nothing of job->send is used after bip_send_end().
 */
#include <string.h>

#include "base/copy.h"
#include "base/crc32c.h"
#include "base/plural.h"
#include "bip/internal.h"

#define MOST_IDS 0x3fffffff

/* The send is over, well or not. Everything is set before the layer is told, for it may begin the next one. */
void bip_send_end(bip_job *job, int code)
{
    bip_send_request *s = &job->send;
    bip_region_put(s->region);
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

/* The message, or the question whether it may come. Without a credit or a buffer nothing happens: bip_send_step tries
 * again. */
static void start(bip_job *job)
{
    bip_send_request *s = &job->send;
    bip_peer *peer = s->peer;
    bool is_short = s->len <= peer->small;
    bip_slot *slot;
    if (peer->credits == 0 || (slot = bip_take_send(peer, KEPT_SLOTS)) == NULL)
        return;
    bip_head head = {.kind = is_short ? KIND_SHORT : KIND_ASK, .seq = peer->send_seq, .tag = s->tag, .len = s->len};
    if (job->options.checksum && is_short)
        head.crc = vk_crc32c(0, s->buf, s->len);
    memcpy(slot->buf, &head, sizeof head);
    if (is_short && s->len)
        memcpy(slot->buf + sizeof head, s->buf, s->len);
    /* From here on the message counts: sequence numbers have no gaps, or the receiver takes it for damaged. */
    peer->credits--;
    peer->send_seq++;
    s->state = SEND_ASKED;
    if (bip_post_head(peer, slot, sizeof head + (is_short ? s->len : 0)) != 0 || !is_short)
        return; /* a post that failed has ended the send already */
    BIP_COUNT(job, short_sent, 1);
    bip_send_end(job, 0);
}

/* ---------------------------------------------------------------- the pipeline */

/* As many packets as there are descriptors for. The last packet's immediate data follows all data: writes of one VI
 * are placed in order. */
static void move(bip_job *job)
{
    bip_send_request *s = &job->send;
    bip_port *port = s->peer->port;
    bip_slot *slot;
    while (s->state == SEND_MOVING && s->posted < s->len && (slot = port->free_packets) != NULL) {
        size_t n = s->len - s->posted < s->packet ? s->len - s->posted : s->packet;
        bool last = s->posted + n == s->len;
        port->free_packets = slot->next;
        slot->d.CS.Control = (VIP_UINT16)(VIP_CONTROL_OP_RDMAWRITE | (last ? VIP_CONTROL_IMMEDIATE : 0));
        slot->d.CS.ImmediateData = job->options.checksum ? s->crc : (uint32_t)s->len;
        slot->d.CS.SegCount = 2;
        slot->d.CS.Length = (VIP_UINT32)n;
        slot->d.DS[0].Remote.Data.AddressBits = s->address + s->posted;
        slot->d.DS[0].Remote.Handle = s->handle;
        slot->d.DS[0].Remote.Reserved = 0;
        slot->d.DS[1].Local.Data.Address = (char *)(uintptr_t)s->buf + s->posted;
        slot->d.DS[1].Local.Handle = s->region->handle;
        slot->d.DS[1].Local.Length = (VIP_UINT32)n;
        /* Before the post, which may fail and end the send: nothing of s is touched after it then. */
        s->posted += n;
        s->under_way++;
        BIP_COUNT(job, packets_sent, 1);
        if (bip_post_send(s->peer, slot) != 0)
            return;
    }
}

/* One packet is acknowledged: all of it is in the receiver's memory. Packets complete in
 * order, but only their sum matters. */
void bip_packet_sent(bip_slot *slot, bool failed)
{
    bip_job *job = slot->peer->port->job;
    bip_send_request *s = &job->send;
    if (s->state != SEND_MOVING || s->peer != slot->peer)
        return; /* of a send that has failed */
    s->under_way--;
    s->done += slot->d.CS.Length;
    if (failed || s->done < s->len)
        return; /* losing the peer ends it */
    BIP_COUNT(job, long_sent, 1);
    bip_send_end(job, 0);
}

/* The receiver has told where. A GO that fits no send is an answer to one that has ended: dropped. Only now
 * is the packet size chosen: it depends on the length alone. */
void bip_send_go(bip_peer *peer, const bip_go *go)
{
    bip_job *job = peer->port->job;
    bip_send_request *s = &job->send;
    if (s->state != SEND_ASKED || s->peer != peer)
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

void bip_send_step(bip_job *job)
{
    if (job->send.state == SEND_QUEUED)
        start(job);
    else if (job->send.state == SEND_MOVING)
        move(job);
}

/* ---------------------------------------------------------------- the calls */

/* Bytes of each packet of a message of len bytes. Equal packets, so that the last one is not
 * a short one that pays for nothing; never more than one descriptor can move.
 * bip_equal_packets rounds up, hence the second comparison. */
size_t bip_packet(const bip_job *job, int dst, size_t len)
{
    if (dst < 0 || dst >= job->options.n_ranks || job->peers[dst].port == NULL)
        return len;
    const bip_port *port = job->peers[dst].port;
    uint64_t p = job->options.packet ? job->options.packet : bip_table_packet(&port->table, len);
    if (p > port->attributes.MaxTransferSize)
        p = port->attributes.MaxTransferSize;
    p = bip_equal_packets(len, p);
    return p < port->attributes.MaxTransferSize ? p : port->attributes.MaxTransferSize;
}

/* Begins a send, as far as that goes at once; the id, or what is wrong. */
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
    if (peer->lost || peer->said_bye)
        return bip_fail(job, peer->said_bye ? BIP_ERR_LEFT : BIP_ERR_PEER, "rank %d %s", dst,
                        peer->said_bye ? "has left the job" : "died");
    /* Registered before the question is asked, so that it cannot fail once the receiver has answered. */
    bip_region *region = NULL;
    if (len > peer->small && (region = bip_region_get(peer->port, buf, len)) == NULL)
        return BIP_ERR_RESOURCE;
    /* One after the other from 1 on, never negative, and again only after a thousand million sends (was_given). */
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
    start(job); /* it may end in there, and a layer begin the next one */
    return id;
}

int bip_isend_bytes(bip_job *job, int dst, int tag, const void *buf, size_t len)
{
    int id = begin(job, dst, tag, buf, len, false, 0);
    /* The credit it lacks may have arrived already. */
    if (id >= 0 && job->send.state == SEND_QUEUED) {
        bip_progress(job);
        BIP_COUNT(job, queue_full, job->send.state == SEND_QUEUED);
    }
    return id;
}

int bip_isend_noted(bip_job *job, int dst, int tag, const void *buf, size_t len, uint64_t cookie)
{
    return begin(job, dst, tag, buf, len, true, cookie);
}

/* A short message of two pieces, at once or not at all: 1, 0 no credit or buffer now, or an error. The layer above
 * (msg/bip.c) sends its packets so; they do not count as the one send outstanding. */
int bip_send_parts(bip_job *job, int dst, int tag, const void *head, size_t head_len, const void *data, size_t len)
{
    bip_peer *peer = &job->peers[dst];
    bip_slot *slot;
    if (vk_unlikely(peer->lost || peer->port == NULL))
        return BIP_ERR_PEER;
    if (vk_unlikely(peer->credits == 0 || (slot = bip_take_send(peer, KEPT_SLOTS)) == NULL)) {
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
    peer->credits--;
    BIP_COUNT(job, short_sent, 1);
    BIP_COUNT(job, bytes_sent, n);
    return bip_post_head(peer, slot, sizeof h + n) == 0 ? 1 : BIP_ERR_PEER;
}

/* Has a send had this id? */
static bool was_given(const bip_job *job, int id)
{
    return id > 0 && id <= MOST_IDS && (uint64_t)id <= job->n_sends;
}

/* 1 the buffer is free again, 0 not yet, or what went wrong with it. */
int bip_stest_id(bip_job *job, int id)
{
    bip_send_request *s = &job->send;
    if (!was_given(job, id))
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

/* What a send that has not ended waits for. */
static int too_late(bip_job *job)
{
    const bip_send_request *s = &job->send;
    const char *what = s->state == SEND_QUEUED  ? "room in its queue"
                       : s->state == SEND_ASKED ? "receive for it"
                                                : "end of its data";
    return bip_fail(job, BIP_ERR_TIMEOUT, "a message of %zu byte%s with tag %d to rank %d: no %s in the time given",
                    s->len, vk_s(s->len), s->tag, s->peer->rank, what);
}

/* On TIMEOUT and INTERRUPTED the send goes on, and may be waited for again. */
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
