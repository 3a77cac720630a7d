/*
 * bench/ep_udp.c - messages over datagrams.
 *
 * UDP guarantees nothing. A measurement must neither hang on a lost datagram nor report data that never arrived. This
 * endpoint therefore adds the minimum for messages: a sequence number on every datagram, go-back-N, and a window that
 * keeps a receiver's socket buffer from overflowing. Losses are counted (timeouts, frames_retransmitted,
 * frames_dropped).
 *
 *      datagram:   run | kind | sequence | acknowledges | message length | up to `chunk` bytes of payload
 *                  <----------------- 16 bytes ----------------------->
 *
 * A message longer than a chunk is cut. chunk is at most 65491 bytes (65507 less the header), so over a small MTU IP
 * fragments it, in the kernel. Programs that use UDP for large messages send them like that. A chunk is smaller if the
 * socket buffer could not hold six.
 *
 * Acknowledgements are piggybacked on data: a ping-pong of small messages sends no separate ones. A receiver that has
 * no data to send acknowledges after every half window.
 *
 *      tx_acked <= tx_next: datagrams under way, at most `window`; flight[] has the address of each for retransmission.
 *      If nothing is acknowledged for RTO_NS, all of them are retransmitted.
 *
 * A message's buffer is in use until its last datagram is acknowledged. Where the loop waits for that (a message is
 * written or checked), the last datagram of some messages requests an acknowledgement. The interval is such that half
 * of the send buffers are free when it arrives.
 *
 * The header is written into the 16 bytes before the payload in place, and their former contents are restored. Header
 * and payload thus leave by one plain send without a copy in user space.
 *
 * Invariants. rx_next is the only datagram that is accepted, so nothing is stored out of order. tx_acked <= tx_next in
 * arithmetic modulo 2^32. A message is complete in rbuf before the next datagram is read (rx_ready). One thread has the
 * endpoint.
 */
#include "base/clock.h"
#include "base/plural.h"
#include "bench/bench.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#define HEADER sizeof(header)
#define MAX_CHUNK ((size_t)65507 - sizeof(header))
#define MAX_WINDOW 64u
#define RTO_NS 100000000u     /* long: a peer that lost its core for a while is not a loss */
#define SLICE_US 20000        /* longest sleep, so that the timer is checked */
#define LINGER_NS 1000000000u /* how long finish waits for the last acknowledgement */
#define POLLS_PER_CLOCK 256   /* empty polls between two checks of the retransmission timer */

typedef struct {
    uint32_t run_kind; /* low 30 bits: run; top bits: KIND_* */
    uint32_t seq;
    uint32_t ack; /* everything before this has arrived */
    uint32_t len; /* of the whole message */
} header;

#define KIND_DATA 0x80000000u    /* has payload, possibly of 0 bytes */
#define KIND_ACK_NOW 0x40000000u /* requests an immediate acknowledgement */
#define KIND_MASK (KIND_DATA | KIND_ACK_NOW)

typedef struct {
    bench_ep ep;
    int fd;
    int buffer; /* bytes of the peer's receive buffer, assumed to equal this side's */
    uint32_t run;
    size_t chunk, room; /* payload per datagram, and capacity of rbuf in bytes */
    uint32_t dgrams;    /* window, in datagrams */
    uint64_t ack_every; /* in messages. 0: never request one. */

    uint32_t tx_next, tx_acked;
    /* Each datagram under way, by sequence number modulo MAX_WINDOW: its payload, and the message that it belongs
     * to. */
    struct {
        unsigned char *at;
        size_t n, len;
        uint64_t message;
    } flight[MAX_WINDOW];
    uint64_t n_sent; /* messages */
    size_t tx_at;    /* bytes of the current message already sent */
    bool tx_any;     /* at least one datagram of it was sent */

    uint32_t rx_next, rx_unacked; /* next expected; received since the last acknowledgement */
    size_t rx_at, rx_len;         /* bytes of the current message in rbuf; length of the complete one */
    bool rx_ready;                /* a whole message of rx_len lies in rbuf */

    uint32_t timer_acked; /* tx_acked when the timer was set */
    uint64_t timer_ns;    /* 0: not running */
    uint64_t linger_ns;   /* when finish began to wait; 0: not yet */
    unsigned polls;       /* empty ones, for POLLS_PER_CLOCK */
} udp_ep;

/* Both sides compute the same window from equal plans and buffers. Datagrams of an earlier run are recognised by `run`,
 * and dropped. */
static int udp_prepare(bench_ep *base, const bench_plan *plan)
{
    udp_ep *ep = (udp_ep *)base;
    size_t chunk = (size_t)ep->buffer / 6;
    ep->chunk = chunk < 1024 ? 1024 : chunk > MAX_CHUNK ? MAX_CHUNK : chunk;
    ep->room = plan->len + 1;

    /* The share of the receive buffer that a datagram uses: the kernel charges for pages and bookkeeping, not for
     * bytes. A window fits the buffer, with half of it acknowledged at a time, so that nothing is lost there. */
    size_t charge = (plan->len < ep->chunk ? plan->len : ep->chunk) * 7 / 4 + 2560;
    size_t fit = (size_t)ep->buffer / charge;
    ep->dgrams = fit < 4 ? 4 : fit > MAX_WINDOW ? MAX_WINDOW : (uint32_t)fit;

    ep->run = plan->run_id & ~KIND_MASK;
    ep->tx_next = ep->tx_acked = ep->rx_next = ep->rx_unacked = 0;
    ep->tx_at = ep->rx_at = ep->rx_len = 0;
    ep->tx_any = ep->rx_ready = false;
    ep->timer_ns = ep->linger_ns = 0;
    base->window = 0;
    ep->n_sent = 0;
    int rc = bench_buffers(base, plan, 1);
    /* In ping-pong the reply acknowledges in time. */
    bool waited_for = plan->mode != BENCH_PINGPONG && (plan->validate || plan->buffers == BENCH_TOUCHED);
    ep->ack_every = !waited_for ? 0 : base->n_sends > 1 ? base->n_sends / 2 : 1;
    return rc;
}

/* ---------------------------------------------------------------- sending */

/* Send one datagram: header, then n bytes of payload from `at`. */
static int transmit(udp_ep *ep, uint32_t kind, uint32_t seq, unsigned char *at, size_t n, size_t len)
{
    unsigned char *start = at - HEADER, kept[HEADER];
    header h = {.run_kind = ep->run | kind, .seq = seq, .ack = ep->rx_next, .len = (uint32_t)len};
    memcpy(kept, start, HEADER);
    memcpy(start, &h, HEADER);
    ssize_t sent = send(ep->fd, start, HEADER + n, MSG_NOSIGNAL | (ep->ep.dontwait ? MSG_DONTWAIT : 0));
    int why = errno;
    memcpy(start, kept, HEADER);
    ep->ep.count[BENCH_COUNTER_system_calls]++;
    if (sent < 0) {
        if (why == EAGAIN || why == EWOULDBLOCK || why == EINTR || why == ENOBUFS)
            return BENCH_NOT_YET;
        if (why == ECONNREFUSED)
            return bench_fail(&ep->ep, BENCH_GONE, "the peer's UDP port is closed");
        return bench_fail(&ep->ep, BENCH_ERROR, "send of a datagram of %zu byte%s: %s", HEADER + n, vk_s(HEADER + n),
                          strerror(why));
    }
    ep->rx_unacked = 0; /* the header has acknowledged everything */
    return BENCH_DONE;
}

/* Sends an acknowledgement of all that has arrived. It has no payload and uses up no sequence number. sbuf only
 * provides the bytes in front of it for the header. */
static int acknowledge(udp_ep *ep)
{
    ep->ep.count[BENCH_COUNTER_acks_sent]++;
    return transmit(ep, 0, ep->tx_next, ep->ep.sbuf, 0, 0);
}

/* Go-back-N: retransmit all unacknowledged datagrams if nothing was acknowledged for RTO_NS. The timer runs from the
 * latest progress (timer_acked), and is checked only when there is nothing to receive. */
static int check_timer(udp_ep *ep)
{
    if (ep->tx_acked == ep->tx_next) {
        ep->timer_ns = 0;
        return BENCH_NOT_YET;
    }
    uint64_t now = vk_now();
    if (!ep->timer_ns || ep->timer_acked != ep->tx_acked) {
        ep->timer_acked = ep->tx_acked;
        ep->timer_ns = now;
        return BENCH_NOT_YET;
    }
    if (now - ep->timer_ns < RTO_NS)
        return BENCH_NOT_YET;
    ep->timer_ns = now;
    ep->ep.count[BENCH_COUNTER_timeouts]++;
    for (uint32_t seq = ep->tx_acked; seq != ep->tx_next; seq++) {
        uint32_t i = seq % MAX_WINDOW;
        int rc = transmit(ep, KIND_DATA | KIND_ACK_NOW, seq, ep->flight[i].at, ep->flight[i].n, ep->flight[i].len);
        if (rc != BENCH_DONE)
            return rc;
        ep->ep.count[BENCH_COUNTER_frames_retransmitted]++;
    }
    return BENCH_NOT_YET;
}

/* ---------------------------------------------------------------- receiving */

/* Accept the datagram with n bytes of payload that has been read to rbuf + rx_at, if it is the next one. The payload of
 * a datagram that is not accepted is overwritten by the next one, because rx_at has not moved. */
static int take(udp_ep *ep, const header *h, size_t n)
{
    if (n > h->len || h->seq != ep->rx_next) {
        /* A duplicate, or a datagram before it is missing: repeat the latest acknowledgement. */
        ep->ep.count[BENCH_COUNTER_frames_dropped]++;
        int rc = acknowledge(ep);
        return rc < 0 ? rc : BENCH_NOT_YET;
    }
    ep->rx_next++;
    ep->rx_unacked++;
    ep->rx_at += n;
    if (ep->rx_at >= h->len) {
        ep->rx_len = h->len;
        ep->rx_at = 0;
        ep->rx_ready = true;
    }
    if (ep->rx_unacked >= ep->dgrams / 2 || (h->run_kind & KIND_ACK_NOW))
        return acknowledge(ep) < 0 ? BENCH_GONE : BENCH_DONE;
    return BENCH_DONE;
}

/* Read one datagram, unless rbuf holds a message that the loop has not read. DONE: one was read. The header arrives in
 * the 16 bytes in front of the payload's place. These belong to the datagram before, or to the headroom, so they are
 * kept and restored. */
static int input(udp_ep *ep)
{
    unsigned char *start = ep->ep.rbuf + ep->rx_at - HEADER, kept[HEADER];
    size_t left = ep->room - ep->rx_at, room = left < ep->chunk ? left : ep->chunk;
    header h;
    if (ep->rx_ready)
        return BENCH_NOT_YET;
    memcpy(kept, start, HEADER);
    ssize_t n = recv(ep->fd, start, HEADER + room, ep->ep.dontwait ? MSG_DONTWAIT : 0);
    int why = errno;
    memcpy(&h, start, HEADER);
    memcpy(start, kept, HEADER);
    ep->ep.count[BENCH_COUNTER_system_calls]++;
    if (n < 0) {
        if (why == ECONNREFUSED)
            return bench_fail(&ep->ep, BENCH_GONE, "the peer's UDP port is closed");
        if (why != EAGAIN && why != EWOULDBLOCK && why != EINTR)
            return bench_fail(&ep->ep, BENCH_ERROR, "recv of a datagram: %s", strerror(why));
        if (ep->ep.dontwait && ++ep->polls % POLLS_PER_CLOCK)
            return BENCH_NOT_YET;
        return check_timer(ep);
    }
    if ((size_t)n < HEADER || (h.run_kind & ~KIND_MASK) != ep->run) {
        ep->ep.count[BENCH_COUNTER_frames_dropped]++;
        return BENCH_NOT_YET;
    }
    /* Counters wrap, so compare differences. The difference of an old, late acknowledgement exceeds the number under
     * way: it is ignored. */
    if (h.ack - ep->tx_acked <= ep->tx_next - ep->tx_acked)
        ep->tx_acked = h.ack;
    if (!(h.run_kind & KIND_DATA))
        return BENCH_DONE;
    return take(ep, &h, (size_t)n - HEADER);
}

/* ---------------------------------------------------------------- the operations */

/* A message of 0 bytes is one datagram, hence tx_any. flight[] is filled after the send, because a datagram that was
 * not sent must not be retransmitted. */
static int udp_send(bench_ep *base, size_t len)
{
    udp_ep *ep = (udp_ep *)base;
    while (ep->tx_at < len || !ep->tx_any) {
        if (ep->tx_next - ep->tx_acked >= ep->dgrams) {
            /* The window is full. Only an acknowledgement opens it, which arrives as input. */
            int rc = input(ep);
            if (rc < 0)
                return rc;
            if (ep->tx_next - ep->tx_acked >= ep->dgrams)
                return BENCH_NOT_YET;
        }
        size_t n = len - ep->tx_at < ep->chunk ? len - ep->tx_at : ep->chunk;
        uint32_t i = ep->tx_next % MAX_WINDOW, kind = KIND_DATA;
        if (ep->ack_every && ep->tx_at + n == len && (ep->n_sent + 1) % ep->ack_every == 0)
            kind |= KIND_ACK_NOW;
        int rc = transmit(ep, kind, ep->tx_next, base->sbuf + ep->tx_at, n, len);
        if (rc != BENCH_DONE)
            return rc;
        ep->flight[i].at = base->sbuf + ep->tx_at;
        ep->flight[i].n = n;
        ep->flight[i].len = len;
        ep->flight[i].message = ep->n_sent;
        ep->tx_next++;
        ep->tx_at += n;
        ep->tx_any = true;
    }
    ep->tx_at = 0;
    ep->tx_any = false;
    ep->n_sent++;
    return BENCH_DONE;
}

/* Datagrams of the next message stay in the socket until the loop has taken this one (rx_ready). */
static int udp_recv(bench_ep *base, size_t len)
{
    udp_ep *ep = (udp_ep *)base;
    while (!ep->rx_ready) {
        int rc = input(ep);
        if (rc != BENCH_DONE)
            return rc;
    }
    if (ep->rx_len != len)
        return bench_wrong_length(base, ep->rx_len, len);
    ep->rx_ready = false;
    base->rmsg = base->rbuf;
    return BENCH_DONE;
}

/* Messages whose last datagram has not been acknowledged: all from the oldest datagram's message on. */
static uint64_t in_use(const udp_ep *ep)
{
    return ep->tx_acked == ep->tx_next ? 0 : ep->n_sent - ep->flight[ep->tx_acked % MAX_WINDOW].message;
}

/* One try, as all operations: reads at most one datagram. */
static int udp_flush(bench_ep *base, size_t most)
{
    udp_ep *ep = (udp_ep *)base;
    if (in_use(ep) <= most)
        return BENCH_DONE;
    int rc = ep->rx_unacked ? acknowledge(ep) : BENCH_DONE; /* the peer may be waiting for the same */
    if (rc == BENCH_DONE)
        rc = input(ep);
    return rc < 0 ? rc : in_use(ep) <= most ? BENCH_DONE : BENCH_NOT_YET;
}

/* The last acknowledgement is itself not acknowledged and may be lost. A side that waits for it in vain gives up after
 * LINGER_NS; the peer has counted its messages by then. */
static int udp_finish(bench_ep *base)
{
    udp_ep *ep = (udp_ep *)base;
    int rc = ep->rx_unacked ? acknowledge(ep) : BENCH_DONE;
    if (rc == BENCH_DONE)
        rc = udp_flush(base, 0);
    if (rc == BENCH_GONE)
        return BENCH_DONE;
    if (rc != BENCH_NOT_YET)
        return rc;
    uint64_t now = vk_now();
    if (!ep->linger_ns)
        ep->linger_ns = now;
    return now - ep->linger_ns > LINGER_NS ? BENCH_DONE : BENCH_NOT_YET;
}

/* A full window waits only for input. The timer runs here, because a sleeping endpoint makes no empty polls. */
static void udp_idle(bench_ep *base, bool want_send)
{
    udp_ep *ep = (udp_ep *)base;
    bool room = ep->tx_next - ep->tx_acked < ep->dgrams;
    struct pollfd either = {.fd = ep->fd, .events = (short)(POLLIN | (want_send && room ? POLLOUT : 0))};
    base->count[BENCH_COUNTER_system_calls]++;
    if (poll(&either, 1, SLICE_US / 1000) == 0)
        check_timer(ep);
}

static const bench_ops udp_ops = {
    .name = "udp",
    .min_len = 0,
    .max_len = (size_t)1 << 30,
    .prepare = udp_prepare,
    .send = udp_send,
    .recv = udp_recv,
    .flush = udp_flush,
    .finish = udp_finish,
    .idle = udp_idle,
};

/* The socket is connected and stays the caller's, so there is no `close`. Its receive buffer decides the window
 * (udp_prepare). */
BENCH_OPEN(udp)
{
    const int fd = options->fd;
    udp_ep *ep = bench_ep_new(sizeof *ep, &udp_ops, options->polled, error);
    if (!ep)
        return NULL;
    socklen_t size = sizeof ep->buffer;
    if (!bench_socket_slice(fd, SLICE_US) || getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &ep->buffer, &size))
        return bench_ep_fail(&ep->ep, error, "cannot use descriptor %d as a datagram socket: %s", fd, strerror(errno));
    ep->fd = fd;
    return &ep->ep;
}
