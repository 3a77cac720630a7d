/*
 * Data from rank to rank, by RDMA write.
 *
 * Each rank owns memory that all others may write to, with a *box* for each of them:
 *
 *   box of rank f in my memory, written by f only:
 *     taken      number of my messages to f that f has copied out of its box for me
 *     offer      the destination of my next long message to f: an address in f's memory, with the message's number
 *     slot 0 ..  | ......... data | what | number |      COLL_SLOTS of them, used in turn
 *
 *   short      Data and the two words behind it, right-aligned, are one write. The number lands last. The receiver
 *              waits for it, compares `what`, and copies. The sender counts the messages taken, and never has more than
 *              COLL_SLOTS under way.
 *   long       The receiver offers its buffer. The sender writes straight into it, and then the two words into a slot:
 *              no copy. Buffers stay registered for the next time (a cache of COLL_OFFERS).
 *
 * Numbers begin at 1 and count the messages of a pair of ranks, so a slot needs no clearing. Nothing is overwritten
 * while it is still needed: a slot has one writer, which reuses it only after the message was taken. A rank makes an
 * offer only when the previous one has been used.
 *
 * A write to a rank of this host is complete when the call returns. A write to another host is complete when it is
 * acknowledged. To avoid waiting for that, short data goes through a stage, as messages do.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "coll/inside.h"

/* COLL_SLOTS: two messages under way and two being returned, because the receiver reports every second one.
 * COLL_STAGES: copies under way. COLL_OFFERS: buffers that stay exposed. */
#define COLL_SLOTS 4
#define COLL_STAGES 8
#define COLL_OFFERS 16
#define TRAILER 16 /* what, number */

/* One write of 32 bytes: the number lands last, as with any put, so a rank that sees the number sees the place. */
struct coll_offer {
    msg_exposed place;
    uint64_t number; /* written last */
};

struct box_head {
    uint64_t taken;
    uint8_t pad0[VK_CACHE_LINE - 8];
    struct coll_offer offer;
    uint8_t pad1[VK_CACHE_LINE - sizeof(struct coll_offer)];
};
_Static_assert(sizeof(struct box_head) == 128, "each has a line of its own");

/* sent, received and `reported` count messages per rank; they are free-running. */
struct coll_slots {
    char *memory; /* [n] boxes, then the stages; exposed */
    size_t box_len, slot_len, len;
    msg_exposed local, *remote;           /* [n] */
    uint64_t *sent, *received, *reported; /* [n]; `reported`: received messages reported to the sender */
    msg_request *staged[COLL_STAGES];
    unsigned stage;
    struct {
        void *buf;
        size_t len;
        msg_exposed place;
    } offers[COLL_OFFERS];
    unsigned next_offer;
};

/* ---------------------------------------------------------------- allocation */

/* Allocate and expose, without the exchange of addresses. On failure the parts made so far stay for coll_slots_hide and
 * coll_slots_free. */
static int make_slots(coll *c)
{
    size_t n = (size_t)c->n;
    struct coll_slots *s = calloc(1, sizeof *s);
    if (s == NULL)
        return MSG_ERR_NO_MEMORY;
    c->slots = s;
    s->slot_len = n <= 8    ? 16384
                  : n <= 32 ? 4096
                            : 2048; /* memory grows with the ranks: 64 KiB to 8 KiB for each other rank */
    s->box_len = sizeof(struct box_head) + COLL_SLOTS * s->slot_len;
    s->len = n * s->box_len + COLL_STAGES * s->slot_len;
    s->remote = calloc(n, sizeof *s->remote);
    s->sent = calloc(3 * n, sizeof *s->sent);
    if (s->remote == NULL || s->sent == NULL)
        return MSG_ERR_NO_MEMORY;
    s->received = s->sent + n;
    s->reported = s->sent + 2 * n;
    void *memory = NULL;
    int code = msg_alloc(c->world, s->len, &memory);
    if (code != MSG_SUCCESS)
        return code;
    memset(memory, 0, s->len); /* numbers begin at 1 */
    if ((code = msg_expose(c->world, memory, s->len, &s->local)) != MSG_SUCCESS) {
        msg_free(c->world, memory);
        return code;
    }
    s->memory = memory;
    return MSG_SUCCESS;
}

/* The slots are allocated at the first exchange by RDMA: many groups never have one, and each rank needs n boxes. */
int coll_slots_need(coll *c)
{
    if (vk_likely(c->slots != NULL))
        return MSG_SUCCESS;
    int code = make_slots(c);
    if (code != MSG_SUCCESS)
        return coll_fail(c, code);
    return coll_gather_all(c, &c->slots->local, sizeof c->slots->local, c->slots->remote);
}

/* `whole`: no rank can write any more. In a broken group a rank may still write, so the memory stays exposed and
 * allocated until the world is closed. Offers, which are the caller's memory, are hidden in any case. */
void coll_slots_hide(coll *c, int whole)
{
    struct coll_slots *s = c->slots;
    if (s == NULL)
        return;
    for (int i = 0; i < COLL_STAGES; i++)
        coll_give_up(c, &s->staged[i], COLL_ANY_RANK);
    for (int i = 0; i < COLL_OFFERS; i++)
        if (s->offers[i].buf)
            msg_hide(c->world, &s->offers[i].place);
    if (s->memory && whole) {
        msg_hide(c->world, &s->local);
        msg_free(c->world, s->memory);
    }
    s->memory = NULL;
}

void coll_slots_free(coll *c)
{
    if (c->slots == NULL)
        return;
    free(c->slots->remote);
    free(c->slots->sent);
    free(c->slots);
    c->slots = NULL;
}

/* The box that the rank writes to, in this rank's memory. A put to that rank goes to this rank's box there. */
static inline struct box_head *box_of(const struct coll_slots *s, int rank)
{
    return (struct box_head *)(void *)(s->memory + (size_t)rank * s->box_len);
}

/* The offset of the slot of message `number` within a box. */
static inline size_t slot_at(const struct coll_slots *s, uint64_t number)
{
    return sizeof(struct box_head) + (size_t)((number - 1) % COLL_SLOTS) * s->slot_len;
}

/* Write at an offset of my box in a rank's memory. The box of rank r lies at r * box_len in every rank's memory.
 * box_len is the same everywhere, since it depends on n only. */
static int put(coll *c, int to, size_t offset, const void *data, size_t len, msg_request **request)
{
    struct coll_slots *s = c->slots;
    int code =
        msg_put(c->world, data, len, c->ranks[to], &s->remote[to], (uint64_t)c->rank * s->box_len + offset, request);
    return code == MSG_SUCCESS ? code : coll_fail(c, code);
}

/* ---------------------------------------------------------------- sending */

/* Wait until my box in the peer's memory has a free slot. */
static int wait_for_slot(coll *c, int to)
{
    struct coll_slots *s = c->slots;
    struct coll_wait p = {.source = to, .network = c->node_of[to] != c->node};
    const struct box_head *box = box_of(s, to);
    int code;
    while (s->sent[to] - vk_load_acquire(&box->taken) >= COLL_SLOTS) /* the peer reads a slot before it reports it */
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return MSG_SUCCESS;
}

/* Write only the two words, for data that has been put elsewhere. They are the last of the slot, where a receiver
 * expects them. */
static int put_trailer(coll *c, int to, uint64_t number, uint64_t what)
{
    uint64_t words[2] = {what, number};
    return put(c, to, slot_at(c->slots, number) + c->slots->slot_len - TRAILER, words, sizeof words, NULL);
}

/* Data and trailer are one write, so that a message costs one. They are right-aligned, so that the trailer's position
 * does not depend on the length. Data is padded to a multiple of 8 to keep the words aligned. */
static int send_short(coll *c, const void *data, size_t len, int to, uint64_t number)
{
    struct coll_slots *s = c->slots;
    uint64_t words[2] = {coll_what(c, len), number};
    size_t padded = (len + 7) & ~(size_t)7, at = slot_at(s, number) + s->slot_len - TRAILER - padded;
    char small[MSG_PUT_SHORT], *stage = small;
    int code, i = -1;
    /* Up to MSG_PUT_SHORT bytes a put copies its data at once, from the stack. Longer data must not change until the
     * put is complete, so it is copied to a stage. A stage is reused after COLL_STAGES others, when its put is most
     * likely complete. */
    if (padded + TRAILER > sizeof small) {
        i = (int)(s->stage++ % COLL_STAGES);
        if (s->staged[i] && (code = coll_finish(c, &s->staged[i], NULL, COLL_ANY_RANK, 0)) != MSG_SUCCESS)
            return code;
        stage = s->memory + (size_t)c->n * s->box_len + (size_t)i * s->slot_len;
    }
    if (len)
        memcpy(stage, data, len);
    memcpy(stage + padded, words, sizeof words);
    return put(c, to, at, stage, padded + TRAILER, i < 0 ? NULL : &s->staged[i]);
}

/* A long message, the k-th from this sender to this receiver:
 *
 *      receiver                                              sender
 *      exposes its buffer
 *      offer {place, k}   ---- put into its box there --->   waits until offer.number is k
 *                         <--- put into the buffer -------   data
 *      waits for k        <--- put into slot k -----------   what, k
 *      taken = k          ---- put, every second time ---->  may reuse the slot
 */
/* Write straight into the receiver's buffer: wait for the offer of this number, write the data, then the trailer. The
 * trailer cannot overtake the data (msg.h: puts to one rank keep their order). */
static int send_long(coll *c, const void *data, size_t len, int to, uint64_t number, msg_request **request)
{
    struct coll_slots *s = c->slots;
    struct box_head *box = box_of(s, to);
    struct coll_wait p = {.source = to, .network = 1, .awaits = 1};
    int code;
    while (vk_load_acquire(&box->offer.number) < number) /* the place is there before its number */
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    /* The receiver expects another length: mismatched collectives. Nothing must be written then. */
    if (box->offer.place.len != len)
        return coll_fail(c, MSG_ERR_COLLECTIVE);
    msg_progress(c->world); /* a rank that gives up reclaims its buffer once we have received its abort message */
    if (coll_gave_up(c, to) != MSG_SUCCESS)
        return coll_fail_with(c, to);
    if ((code = msg_put(c->world, data, len, c->ranks[to], &box->offer.place, 0, request)) != MSG_SUCCESS)
        return coll_fail(c, code);
    return put_trailer(c, to, number, coll_what(c, len));
}

/* ---------------------------------------------------------------- receiving */

/* Expose the buffer, or find its last exposure if it is the same. NULL: it cannot be exposed. A new offer replaces the
 * oldest one. That one has long been used, because a rank has one receive at a time. */
static const msg_exposed *expose(coll *c, void *buf, size_t len)
{
    struct coll_slots *s = c->slots;
    for (unsigned i = 0; i < COLL_OFFERS; i++)
        if (s->offers[i].buf == buf && s->offers[i].len == len)
            return &s->offers[i].place;
    unsigned i = s->next_offer++ % COLL_OFFERS;
    if (s->offers[i].buf)
        msg_hide(c->world, &s->offers[i].place);
    s->offers[i].buf = NULL;
    if (msg_expose(c->world, buf, len, &s->offers[i].place) != MSG_SUCCESS)
        return NULL;
    s->offers[i].buf = buf;
    s->offers[i].len = len;
    return &s->offers[i].place;
}

/* Send the sender the destination of its next message to this rank. The number is that of the message, so an old offer
 * is never mistaken for a new one. */
static int offer(coll *c, void *buf, size_t len, int from)
{
    struct coll_offer o = {.number = c->slots->received[from] + 1};
    const msg_exposed *place = expose(c, buf, len);
    if (place == NULL)
        return coll_fail(c, MSG_ERR_NO_MEMORY);
    /* From the stack: the offer is shorter than MSG_PUT_SHORT, so the put copies it. */
    o.place = *place;
    return put(c, from, offsetof(struct box_head, offer), &o, sizeof o, NULL);
}

/* Withdraw an offer after the collective has failed. The buffer belongs to the caller again only when its writer has
 * written, has given up, too, or is gone. Messages and writes arrive in the order in which they were begun, so nothing
 * is written after an abort message. If the writer does neither for COLL_LET_FINISH_MS, the region is removed. A later
 * write is then refused, which costs the connection. */
static void withdraw(coll *c, void *buf, size_t len, int from)
{
    struct coll_slots *s = c->slots;
    uint64_t number = s->received[from] + 1, deadline = vk_now() + COLL_LET_FINISH_MS * VK_MS;
    const char *end = (const char *)box_of(s, from) + slot_at(s, number) + s->slot_len;
    const uint64_t *landed = (const uint64_t *)(const void *)(end - 8);
    /* The data is in the buffer before the number is in the slot. After the number nothing of this message is
     * written. */
    while (vk_load_acquire(landed) < number && msg_peer_status(c->world, c->ranks[from]) == MSG_PEER_CONNECTED &&
           !coll_gave_up(c, from)) {
        if (vk_now() > deadline || msg_interrupted(c->world)) {
            for (unsigned i = 0; i < COLL_OFFERS; i++)
                if (s->offers[i].buf == buf && s->offers[i].len == len) {
                    msg_hide(c->world, &s->offers[i].place);
                    s->offers[i].buf = NULL;
                }
            return;
        }
        msg_progress(c->world);
        sched_yield();
    }
}

/* Wait for the trailer of the rank's next message, compare, copy (short), and count it. Every second time, report to
 * the sender how many messages were taken. */
static int receive(coll *c, void *buf, size_t len, int from, int is_long)
{
    struct coll_slots *s = c->slots;
    uint64_t number = s->received[from] + 1;
    const char *end = (const char *)box_of(s, from) + slot_at(s, number) + s->slot_len;
    const uint64_t *words = (const uint64_t *)(const void *)(end - TRAILER);
    /* Long data may need this rank's progress to reach ordinary memory. */
    struct coll_wait p = {.source = from, .network = is_long || c->node_of[from] != c->node, .awaits = 1};
    int code;
    for (;;) {
        int there = vk_load_acquire(&words[1]) >= number; /* the data and `what` landed before the number */
        if (there && words[0] == coll_what(c, len))
            break;
        /* Data of another collective, or of another length: the ranks are in different collectives. */
        p.behind = there;
        if (p.behind && !coll_is_behind(c, words[0]))
            return coll_fail(c, MSG_ERR_COLLECTIVE);
        if ((code = coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    }
    if (len && !is_long)
        memcpy(buf, end - TRAILER - ((len + 7) & ~(size_t)7), len);
    s->received[from] = number;
    /* Reporting every second message is enough: the sender has two slots left meanwhile. A report for each message
     * would cost a put each time. */
    if (number - s->reported[from] < COLL_SLOTS / 2)
        return MSG_SUCCESS;
    s->reported[from] = number;
    code = msg_put(c->world, &number, sizeof number, c->ranks[from], &s->remote[from],
                   (uint64_t)c->rank * s->box_len + offsetof(struct box_head, taken), NULL);
    return code == MSG_SUCCESS || code == MSG_ERR_LEFT ? MSG_SUCCESS /* a rank that has left needs no slot */
                                                       : coll_fail(c, code);
}

uint64_t coll_slots_next(const coll *c, int rank)
{
    const struct coll_slots *s = c->slots;
    if (s == NULL || s->memory == NULL || rank == c->rank)
        return 0;
    uint64_t number = s->received[rank] + 1;
    const char *end = (const char *)box_of(s, rank) + slot_at(s, number) + s->slot_len;
    const uint64_t *words = (const uint64_t *)(const void *)(end - TRAILER);
    return vk_load_acquire(&words[1]) == number ? words[0] : 0; /* `what` landed before the number */
}

/* ---------------------------------------------------------------- exchange: send and receive at once */

int coll_exchange_rdma(coll *c, const void *out, size_t out_len, int to, void *in, size_t in_len, int from)
{
    msg_request *request = NULL;
    int code = MSG_SUCCESS;
    /* No deadlock: a rank makes its own offer before it waits for one, and a free slot depends only on earlier
     * exchanges. */
    size_t room = c->slots->slot_len - TRAILER;
    /* Both sides classify the message by its length. The lengths are equal, or the collective is mismatched. */
    int offered = from >= 0 && in_len > room;
    if (offered) /* first, because the sender may be waiting */
        code = offer(c, in, in_len, from);
    if (to >= 0 && code == MSG_SUCCESS && (code = wait_for_slot(c, to)) == MSG_SUCCESS) {
        /* Counted before the put: after a failure the group is broken, and the count no longer matters. */
        uint64_t number = ++c->slots->sent[to];
        code =
            out_len > room ? send_long(c, out, out_len, to, number, &request) : send_short(c, out, out_len, to, number);
    }
    if (from >= 0 && code == MSG_SUCCESS)
        code = receive(c, in, in_len, from, offered);
    if (request && code == MSG_SUCCESS)
        code = coll_finish(c, &request, NULL, to, 1);
    /* After success there is no request left. */
    coll_give_up(c, &request, COLL_ANY_RANK);
    if (code != MSG_SUCCESS && offered)
        withdraw(c, in, in_len, from);
    return code;
}

int coll_exchange_message(coll *c, const void *out, size_t out_len, int to, void *in, size_t in_len, int from)
{
    /* Operation and number are in the tag. A message of another collective stays unmatched, and notes reveal the
     * mismatch. */
    return coll_sendrecv(c, coll_tag(c, COLL_TAG_DATA + c->now.operation), out, out_len, to < 0 ? MSG_PROC_NULL : to,
                         in, in_len, from < 0 ? MSG_PROC_NULL : from);
}
