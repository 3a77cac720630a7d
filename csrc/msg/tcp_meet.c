/*
 * Connecting the ranks of the `tcp` channel. Every rank calls all lower ranks and is called by all higher ones, all at
 * the same time, in one loop around poll(2). So no rank waits for the calls of another to end.
 *
 *      caller (higher rank)                                listener (lower rank)
 *         connect  ------------------------------------->  accept
 *                  <--------  nonce S  ------------------
 *                  --  intro {job, rank}, nonce C, proof ->  the caller is a rank of this job, or is dropped
 *         done     <--------  proof  --------------------  done
 *
 *      proof = BLAKE2s(key = secret, label | S | C | intro | rank of the listener | number of ranks)
 *
 * There is a label for each direction. A listener uses no field of an intro before it has verified the proof. The
 * caller sends no message before it has verified the listener's proof. So calls from other processes, whatever they
 * send, only occupy places in `incoming_calls`.
 *
 * Bounds: N_INCOMING calls wait for their proof at a time, each at most INCOMING_FOR. If one more arrives, the oldest
 * is dropped. A rank whose call was dropped, or not accepted within CONNECT_FOR and NONCE_FOR, calls again until the
 * deadline. So silent callers do not delay the ranks, and no number of callers exhausts the process's descriptors.
 *
 * A call of this rank, and an incoming call:
 *
 *     CONNECTING --connected--> AWAITING_NONCE --nonce S--> AWAITING_PROOF --right proof--> DONE: hand_over
 *         '---------------------------'-------- closed, or too slow: call_again after PAUSE
 *
 *     accepted, S sent --reply complete--> right: own proof sent, hand_over
 *         '----- closed, wrong, too slow, or pushed out by newer calls: dropped
 *
 * Only a proof in the name of another secret ends the meeting with an error: the listener has answered, and it is not
 * the rank that was called. Every other failure of a call is repeated, because a listener under load causes the same.
 *
 * Not done: encryption. After the meeting packets travel in clear, so an attacker who can change the packets of an
 * established TCP connection is not kept out. TLS would go into send_some and recv_some of tcp.c.
 *
 * Called by the thread that opens the world, while no other thread uses it. Blocks; an interrupt is noticed within
 * SLICE_MS.
 */
#include "msg/tcp_meet.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/blake2s.h"

/* Chosen values. 64 calls at once cost as many descriptors. A rank replies within a round trip unless its host is busy,
 * so
 * 2 s are long, and other processes hold a place no longer than that. */
#define N_INCOMING 64
#define INCOMING_FOR (2 * VK_SECOND)
#define CONNECT_FOR (3 * VK_SECOND) /* of one call: a SYN may be lost while the backlog is full */
#define NONCE_FOR (10 * VK_SECOND)  /* of one call, until the listener accepts it */
#define PAUSE (20 * VK_MS)          /* before a rank is called again */
#define SLICE_MS 20                 /* between calls of the interrupt callback */
#define LABEL 24                    /* bytes of a label, zeros at its end included */

static const char caller_label[LABEL] = "viakit tcp caller";
static const char listener_label[LABEL] = "viakit tcp listener";

/* The fields of a caller's reply that the proof covers. Sent in host byte order, as all packets (packet.h). */
struct intro {
    char job[32];            /* hex digits, without a final 0 */
    uint32_t rank, reserved; /* of the caller; reserved: 0 */
};

/* The caller's reply, sent in one piece. */
struct reply {
    struct intro intro;
    uint8_t nonce[16];
    uint8_t proof[32];
};
_Static_assert(sizeof(struct reply) == 88, "no padding: it travels as it lies");

/* One call: made by this rank, or incoming. fd -1: none. The connection belongs to the call until hand_over. */
struct call {
    int fd;
    int rank;                                                        /* own call: the rank that is called */
    enum { CONNECTING, AWAITING_NONCE, AWAITING_PROOF, DONE } state; /* of its own call */
    uint64_t again_at;                                               /* own call, fd -1: when to call again */
    int n_refused;      /* own call: calls that ended after this rank's proof */
    int why;            /* own call: errno of the last call that failed, or 0 */
    uint64_t until;     /* when it is dropped */
    uint8_t nonce[16];  /* S */
    struct reply reply; /* of this rank's call: as sent; of an incoming call: as far as it has arrived */
    uint8_t proof[32];  /* own call: of the listener, as far as it has come */
    size_t got;         /* bytes of what is awaited */
};

/* The state of one tc_meet, on the heap because of its size (64 incoming calls). Only the calling thread has it. */
struct meeting {
    msg_world *w;
    const struct tc_card *cards;
    struct call *calls; /* one for each lower rank */
    struct call incoming_calls[N_INCOMING];
    struct pollfd *polls; /* listener, incoming calls, this rank's calls */
    int n_left;           /* missing connections of both kinds */
};

/* For a system call that has just failed: errno is part of the text. */
static int failed(msg_world *w, const char *what)
{
    return msg_fail(w, MSG_ERR_CHANNEL, "%s: %s", what, strerror(errno));
}

/* Computes the proof of one direction. Both nonces are part of it, so a recorded proof is worthless in another call.
 * `listener` is part of it, so a proof cannot be relayed to another rank; the label keeps a proof from being sent back
 * as the reply. */
static void make_proof(const msg_world *w, const char label[LABEL], const struct call *c, int listener,
                       uint8_t proof[32])
{
    uint32_t numbers[2] = {(uint32_t)listener, (uint32_t)w->n_ranks};
    struct vk_blake2s s;
    vk_blake2s_begin(&s, w->secret, sizeof w->secret);
    vk_blake2s_add(&s, label, LABEL);
    vk_blake2s_add(&s, c->nonce, sizeof c->nonce);
    vk_blake2s_add(&s, c->reply.nonce, sizeof c->reply.nonce);
    vk_blake2s_add(&s, &c->reply.intro, sizeof c->reply.intro);
    vk_blake2s_add(&s, numbers, sizeof numbers);
    vk_blake2s_end(&s, proof);
}

static void drop(struct call *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
}

/* Sends a few bytes on a socket that has sent nothing yet. Its buffer has room for them, so a short send is an error.
 * Returns 0, or -1: the connection is gone. */
static int send_all(int fd, const void *bytes, size_t len)
{
    ssize_t n;
    do
        n = send(fd, bytes, len, MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    return n == (ssize_t)len ? 0 : -1;
}

/* Never reads beyond the awaited data, because the bytes after it belong to the channel. Returns 1 if all has been
 * received, 0 if not yet, -1 if the peer has closed the connection. */
static int take(struct call *c, void *to, size_t len)
{
    while (c->got < len) {
        ssize_t n = recv(c->fd, (char *)to + c->got, len - c->got, 0);
        if (n > 0)
            c->got += (size_t)n;
        else if (n < 0 && errno == EINTR)
            continue;
        else
            return n < 0 && errno == EAGAIN ? 0 : -1;
    }
    c->got = 0;
    return 1;
}

/* Passes the connection to the channel: from here on tc_close closes it. The call is over, and its place is free. */
static void hand_over(struct meeting *m, struct call *c, int rank)
{
    struct tc_world *t = m->w->at;
    tc_set_options(m->w, c->fd);
    t->ranks[rank].fd = c->fd;
    t->n_open++;
    c->fd = -1;
    c->state = DONE;
    m->n_left--;
}

/* ---------------------------------------------------------------- calling */

/* connect() returns at once. It completes, with success or failure, when there is room to write. Returns 0, or an
 * error with its text set. */
static int begin_call(struct meeting *m, struct call *c)
{
    const struct tc_card *card = &m->cards[c->rank];
    const struct tc_world *t = m->w->at;
    c->fd = socket(card->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->fd < 0)
        return failed(m->w, "socket");
    tc_set_buffers(m->w, c->fd);
    c->state = CONNECTING;
    c->got = 0;
    c->until = vk_now() + CONNECT_FOR;
    if (connect(c->fd, &card->address.any, card->len) != 0 && errno != EINPROGRESS)
        return msg_fail(m->w, MSG_ERR_CHANNEL, "rank %d at %s: %s", c->rank, t->ranks[c->rank].route, strerror(errno));
    return 0;
}

/* The listener has closed the connection or does not reply: it may have too many callers. meet() has the deadline.
 * Always returns 0, as a result for advance_call(): a refused call is no error. */
static int call_again(struct call *c, int why)
{
    drop(c);
    c->why = why;
    c->n_refused += c->state == AWAITING_PROOF;
    c->again_at = vk_now() + PAUSE;
    return 0;
}

/* Explains which rank is missing at the deadline, and why, as far as its calls show. */
static int out_of_time(const struct meeting *m)
{
    const struct tc_world *t = m->w->at;
    for (int i = 0; i < m->w->rank; i++) {
        const struct call *c = &m->calls[i];
        if (c->state != DONE)
            return msg_fail(m->w, MSG_ERR_CHANNEL, "rank %d at %s could not be connected in time: %s%s", i,
                            t->ranks[i].route,
                            c->n_refused ? "it closed the connection upon this rank's proof of the secret"
                            : c->why     ? strerror(c->why)
                                         : "it did not answer",
                            c->n_refused ? "; do all ranks have the same secret?" : "");
    }
    return msg_fail(m->w, MSG_ERR_CHANNEL, "not all ranks could be connected in time: higher ranks did not call");
}

/* The socket is writable: connect() has ended. A reset or a time-out may come from a full backlog and is repeated.
 * Other errors are final: the rank has listened since before it sent its address, so ECONNREFUSED or EHOSTUNREACH show
 * a wrong address or a firewall. Returns 0, or an error with its text set. */
static int finish_connect(struct meeting *m, struct call *c)
{
    const struct tc_world *t = m->w->at;
    int so_error = 0;
    socklen_t size = sizeof so_error;
    if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &so_error, &size) != 0)
        return failed(m->w, "getsockopt");
    if (so_error == ECONNRESET || so_error == ETIMEDOUT)
        return call_again(c, so_error);
    if (so_error)
        return msg_fail(m->w, MSG_ERR_CHANNEL, "rank %d at %s: %s", c->rank, t->ranks[c->rank].route,
                        strerror(so_error));
    c->state = AWAITING_NONCE;
    c->until = vk_now() + NONCE_FOR;
    return 0;
}

/* The nonce S is complete: sends intro, own nonce C and the proof. Returns 0, or an error: the kernel's generator
 * failed. */
static int answer_nonce(struct meeting *m, struct call *c)
{
    msg_world *w = m->w;
    memset(&c->reply, 0, sizeof c->reply);
    memcpy(c->reply.intro.job, w->job, sizeof c->reply.intro.job);
    c->reply.intro.rank = (uint32_t)w->rank;
    if (vk_random_bytes(c->reply.nonce, sizeof c->reply.nonce) != 0)
        return msg_fail(w, MSG_ERR_CHANNEL, "the kernel has no random bytes");
    make_proof(w, caller_label, c, c->rank, c->reply.proof);
    c->state = AWAITING_PROOF;
    c->until = VK_NEVER; /* the listener may have accepted the proof already */
    return send_all(c->fd, &c->reply, sizeof c->reply) == 0 ? 0 : call_again(c, ECONNRESET);
}

/* Advances a call as far as possible now. Returns 0, or an error with its text set. */
static int advance_call(struct meeting *m, struct call *c)
{
    const struct tc_world *t = m->w->at;
    uint8_t right[32];
    int code = 0, here = 1;
    if (c->state == CONNECTING)
        return finish_connect(m, c);
    if (c->state == AWAITING_NONCE) {
        here = take(c, c->nonce, sizeof c->nonce);
        return here > 0 ? answer_nonce(m, c) : here < 0 ? call_again(c, ECONNRESET) : code;
    }
    here = take(c, c->proof, sizeof c->proof);
    if (here <= 0)
        return here < 0 ? call_again(c, ECONNRESET) : 0;
    make_proof(m->w, listener_label, c, c->rank, right);
    if (!vk_equal_secret(right, c->proof, sizeof right))
        return msg_fail(m->w, MSG_ERR_CHANNEL,
                        "%s does not prove that it is rank %d: it does not have the job's secret",
                        t->ranks[c->rank].route, c->rank);
    hand_over(m, c, c->rank);
    return 0;
}

/* ---------------------------------------------------------------- accepting calls */

/* Returns a free place, or that of the oldest incoming call. */
static struct call *place_for_incoming(struct meeting *m)
{
    struct call *oldest = &m->incoming_calls[0];
    for (int i = 0; i < N_INCOMING; i++) {
        if (m->incoming_calls[i].fd < 0)
            return &m->incoming_calls[i];
        if (m->incoming_calls[i].until < oldest->until)
            oldest = &m->incoming_calls[i];
    }
    drop(oldest);
    return oldest;
}

/* Sends a challenge to every caller. Returns 0, or an error with its text set: the listener itself failed. */
static int take_calls(struct meeting *m, int listener)
{
    for (int i = 0; i < N_INCOMING; i++) { /* bounded, because other processes may call all the time */
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return errno == EAGAIN || errno == ECONNABORTED || errno == EINTR ? 0 : failed(m->w, "accept");
        struct call *incoming = place_for_incoming(m);
        incoming->fd = fd;
        incoming->got = 0;
        incoming->until = vk_now() + INCOMING_FOR;
        if (vk_random_bytes(incoming->nonce, sizeof incoming->nonce) != 0 ||
            send_all(fd, incoming->nonce, sizeof incoming->nonce) != 0)
            drop(incoming);
    }
    return 0;
}

/* Verifies the proof of an incoming call once it is complete. The connection of a rank is handed over; any other is
 * dropped. */
static void advance_incoming(struct meeting *m, struct call *incoming)
{
    const struct tc_world *t = m->w->at;
    uint8_t right[32], own[32];
    int here = take(incoming, &incoming->reply, sizeof incoming->reply);
    if (here == 0)
        return;
    const struct intro *intro = &incoming->reply.intro;
    if (here > 0)
        make_proof(m->w, caller_label, incoming, m->w->rank, right);
    if (here < 0 || !vk_equal_secret(right, incoming->reply.proof, sizeof right) ||
        memcmp(intro->job, m->w->job, sizeof intro->job) != 0 || intro->rank >= (uint32_t)m->w->n_ranks ||
        intro->rank <= (uint32_t)m->w->rank || t->ranks[intro->rank].fd >= 0) {
        drop(incoming);
        return;
    }
    make_proof(m->w, listener_label, incoming, m->w->rank, own);
    if (send_all(incoming->fd, own, sizeof own) != 0)
        drop(incoming);
    else
        hand_over(m, incoming, (int)intro->rank);
}

/* ---------------------------------------------------------------- the loop */

/* Handles due timers: repeated calls, and incoming calls whose time is over. */
static int run_timers(struct meeting *m)
{
    uint64_t now = vk_now();
    int code = 0;
    for (int i = 0; i < N_INCOMING; i++)
        if (m->incoming_calls[i].fd >= 0 && m->incoming_calls[i].until <= now)
            drop(&m->incoming_calls[i]);
    for (int i = 0; i < m->w->rank; i++)
        if (m->calls[i].fd >= 0 && m->calls[i].until <= now)
            call_again(&m->calls[i], ETIMEDOUT);
    for (int i = 0; i < m->w->rank && code == 0; i++)
        if (m->calls[i].fd < 0 && m->calls[i].state != DONE && m->calls[i].again_at <= now)
            code = begin_call(m, &m->calls[i]);
    return code;
}

/* Sleeps once, at most SLICE_MS, and handles the events. */
static int poll_once(struct meeting *m, int listener)
{
    struct pollfd *incoming_calls = m->polls + 1, *calls = incoming_calls + N_INCOMING;
    m->polls[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (int i = 0; i < N_INCOMING; i++)
        incoming_calls[i] = (struct pollfd){.fd = m->incoming_calls[i].fd, .events = POLLIN};
    for (int i = 0; i < m->w->rank; i++)
        calls[i] = (struct pollfd){.fd = m->calls[i].fd, .events = m->calls[i].state == CONNECTING ? POLLOUT : POLLIN};
    int n = poll(m->polls, (nfds_t)(1 + N_INCOMING + m->w->rank), SLICE_MS), code = 0;
    if (n < 0)
        return errno == EINTR ? 0 : failed(m->w, "poll");
    for (int i = 0; i < N_INCOMING; i++)
        if (incoming_calls[i].revents)
            advance_incoming(m, &m->incoming_calls[i]);
    for (int i = 0; i < m->w->rank && code == 0; i++)
        if (calls[i].revents)
            code = advance_call(m, &m->calls[i]);
    return code == 0 && m->polls[0].revents ? take_calls(m, listener) : code;
}

/* One round handles timers, then events, then the interrupt callback. Returns 0 once n_left is 0, or an error. The
 * deadline is checked last, so that a connection which is complete at the deadline counts. */
static int meet(struct meeting *m, int listener, uint64_t deadline)
{
    msg_world *w = m->w;
    while (m->n_left) {
        int code = run_timers(m);
        if (code == 0)
            code = poll_once(m, listener);
        if (code)
            return code;
        if (w->interrupt && w->interrupt(w->interrupt_context))
            return msg_fail(w, MSG_INTERRUPTED, "opening was interrupted");
        if (m->n_left && vk_now() > deadline)
            return out_of_time(m);
    }
    return 0;
}

/* See tcp_meet.h. Calls that are not handed over are closed on every way out; the listener stays the caller's. */
int tc_meet(msg_world *w, int listener, const struct tc_card *cards, uint64_t deadline)
{
    struct meeting *m = calloc(1, sizeof *m);
    struct call *calls = calloc((size_t)w->n_ranks, sizeof *calls);
    struct pollfd *polls = calloc((size_t)(1 + N_INCOMING + w->n_ranks), sizeof *polls);
    int code = m && calls && polls ? 0 : msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    if (code == 0) {
        *m = (struct meeting){.w = w, .cards = cards, .calls = calls, .polls = polls, .n_left = w->n_ranks - 1};
        for (int i = 0; i < N_INCOMING; i++)
            m->incoming_calls[i].fd = -1;
        for (int i = 0; i < w->rank; i++) {
            calls[i].fd = -1;
            calls[i].rank = i;
        }
        code = meet(m, listener, deadline);
        for (int i = 0; i < N_INCOMING; i++)
            drop(&m->incoming_calls[i]);
        for (int i = 0; i < w->rank; i++)
            drop(&calls[i]);
    }
    free(polls);
    free(calls);
    free(m);
    return code;
}
