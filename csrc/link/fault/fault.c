/*
 * The decorator `fault`: operations in front of a link's own, which apply faults to the frames that are sent.
 *
 *    provider --> its faults (plan.c) --> late --> line --> shm | eth | loop | ...
 *             <------------ frames that arrive: straight from the inner link to the provider
 *
 * keep.c stores late frames and those in the line.
 *
 * One chunk of frames takes four steps. Only the third one calls the link:
 *
 *    plan     decide each frame's fate, and list what to send: items      numbers advance by n
 *    hand_on  send the items, in runs to one peer                         `done` items accepted
 *    settle   count what happened to accepted frames                      numbers go back by n - taken
 *             forget what was planned for the others
 *
 * Invariant: between two calls `index` is the number of frames whose fate was carried out, and of_kind[] their number
 * by kind. The fate of frame i is a function of the configuration, of i and of its number among its kind. So a run can
 * be repeated with the same seed, however often the link was full.
 *
 * Only the NIC's owner calls these functions, and none blocks.
 *
 * Frames have numbers, in the order in which the provider offers them. If the inner link cannot accept a frame at the
 * moment, the frame is offered again, with the same number and hence with the same faults. Super-frames remain
 * super-frames: a batch without its lost frames, and with duplicates and late ones among them, is still sent in one
 * piece. A corrupted frame is sent alone, because its length may be corrupted, and that must not affect the frames
 * behind it.
 */
#include "link/fault/fault.h"

#include <errno.h>
#include <stdlib.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "link/fault/keep.h"

/* Shorter than a time-out of the provider, so that a full link is not taken for a lost frame. */
#define RETRY_NS (50 * VK_US) /* next attempt after the inner link had no room */

/* The link's struct stays the argument of every operation and leads to the decorator by its client. */
static inline struct fault *fault_of(struct link *link)
{
    return ((struct link_base *)(void *)link)->client->fault;
}

/* ---------------------------------------------------------------- a test's filter */

/* Sends a stored frame, with a remark for captures. Returns the same as fault_send_flat(). */
static int send_with_remark(struct fault *fault, const struct link_flat *flat, const char *remark)
{
    link_remark(fault->client, remark);
    int sent = fault_send_flat(fault, flat);
    link_remark(fault->client, NULL);
    return sent;
}

/* Sends one frame. The checksum is computed before CORRUPT changes the frame. Returns 1 if accepted, otherwise the
 * inner link's result. One frame at most is held: a second HOLD sends its frame at once, and with it the held one. */
static int send_filtered(struct fault *fault, struct link_peer *peer, struct link_frame *f)
{
    struct link_flat *flat = link_flatten(peer, f);
    if (flat == NULL)
        return -EAGAIN;
    /* The filter corrupts a frame behind its checksum, as a wire does. The receiver must detect it. */
    link_flat_checksum(flat);
    int sent = 1;
    if (!fault->decided) /* once per index: a frame that waits for room must not be decided on again until it is lost */
        fault->verdict = fault->filter(fault->filter_context, fault->index, f->header.version_kind & 15, flat->len);
    fault->decided = 1;
    switch (fault->verdict) {
    case VIAKIT_DROP: {
        struct link_frame lost;
        struct iovec iov;
        LINK_COUNT(fault->client, dropped_filter, 1);
        link_unflatten(flat, &lost, &iov);
        link_note_lost(fault->client, peer, &lost, "lost on purpose");
        break;
    }
    case VIAKIT_HOLD:
        if (fault->held == NULL) {
            fault->held = flat;
            fault->index++;
            fault->decided = 0;
            return 1;
        }
        sent = fault_send_flat(fault, flat);
        break;
    case VIAKIT_CORRUPT:
        /* A prime stride: successive frames are damaged at different places, and the same ones in each run. */
        flat->bytes[(fault->index * 7919) % flat->len] ^= (uint8_t)(1u << (fault->index & 7));
        sent = send_with_remark(fault, flat, "corrupted on purpose");
        break;
    case VIAKIT_DUPLICATE:
        sent = fault_send_flat(fault, flat);
        if (sent == 1)
            send_with_remark(fault, flat, "doubled on purpose");
        break;
    default:
        sent = fault_send_flat(fault, flat);
    }
    free(flat);
    /* Not accepted: the provider offers the frame again, with the same index and verdict. */
    if (sent != 1)
        return sent;
    fault->index++;
    fault->decided = 0;
    if (fault->held) { /* the held frame has been overtaken: send it */
        send_with_remark(fault, fault->held, "overtaken on purpose");
        free(fault->held);
        fault->held = NULL;
    }
    return 1;
}

/* ---------------------------------------------------------------- sending */

/* items has room for all (keep.h): each frame makes two items at most, and each late one is added once, behind the
 * frame that it waits for. `source` is the offered frame that the item stands for or follows. */
static struct item *add_item(struct fault *fault, int source, struct link_peer *peer, uint64_t number,
                             struct link_flat *flat)
{
    struct item *item = &fault->items[fault->n_items++];
    *item = (struct item){.source = source, .peer = peer, .number = number, .flat = flat};
    return item;
}

/* Returns a copy with some bits flipped, except the flag that announces the checksum: without the flag some links would
 * not detect the damage. `draw` is the number that the frame's draws depend on. Two draws may hit the same bit, which
 * then is unchanged: with n bits requested, at most n differ. NULL: no memory. */
static struct link_flat *corrupt(const struct fault *fault, struct link_peer *peer, const struct link_frame *f,
                                 uint64_t draw)
{
    struct link_flat *flat = link_flatten(peer, f);
    if (flat == NULL)
        return NULL;
    link_flat_checksum(flat);
    /* The number of the bit in the frame. A draw that hits it moves to the next bit. */
    const uint64_t flag = 8 * offsetof(struct wire_header, flags) + 6;
    uint32_t n = fault->faults.corrupt_bits ? fault->faults.corrupt_bits : 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bit = fault_draw(fault->faults.seed, draw, FAULT_BIT + i) % (8 * flat->len);
        bit += bit == flag;
        flat->bytes[bit / 8] ^= (uint8_t)(1u << (bit & 7));
    }
    return flat;
}

/* Adds the items to send for frame i of the offered ones. `what` is the set of verdicts (fault_decide()). */
static void plan_frame(struct fault *fault, struct link_peer *peer, struct link_frame *frames, int i, unsigned what)
{
    int kind = frames[i].header.version_kind & 15;
    uint64_t number = fault->index, draw = fault_number(kind, fault->of_kind[kind]);
    struct link_flat *corrupted = NULL;
    int n = what & 1u << VIAKIT_DUPLICATE ? 2 : 1;
    /* One frame has at most one of the two: a corrupted frame is not late. Without memory for the copy the fault does
     * not happen. */
    if (what & 1u << VIAKIT_CORRUPT)
        corrupted = corrupt(fault, peer, &frames[i], draw);
    else if (what & 1u << VIAKIT_HOLD && fault->n_late < LATE_MOST) {
        struct link_flat *late = link_flatten(peer, &frames[i]);
        if (late) {
            fault_keep_late(fault, late, number, fault_distance(&fault->faults, draw));
            n--; /* one copy of a pair is on time */
        }
    }
    for (int k = 0; k < n; k++) { /* one copy of a pair is intact */
        struct item *item = add_item(fault, i, peer, number, k == 0 ? corrupted : NULL);
        item->extra = k;
        item->alone = item->flat != NULL;
    }
}

/* Adds the items to send for all offered frames, including earlier ones that were late. */
static void plan(struct fault *fault, struct link_peer *peer, struct link_frame *frames, int n, int cut)
{
    fault->n_items = 0;
    fault->plain = 1;
    for (int i = 0; i < n; i++) {
        int kind = frames[i].header.version_kind & 15;
        /* During a partition every frame is lost, and no draw is made. Draws depend on numbers only, so those behind
         * the partition stay the same. */
        unsigned what =
            cut ? 1u << VIAKIT_DROP : fault_decide(&fault->faults, fault->index, kind, fault->of_kind[kind]);
        fault->fate[i] = (uint8_t)what;
        fault->plain &= what == 0;
        if (!(what & 1u << VIAKIT_DROP))
            plan_frame(fault, peer, frames, i, what);
        fault->of_kind[kind]++;
        fault->index++;
        /* A late frame whose turn has come goes right behind the frame that had to overtake it. */
        for (struct link_flat *p = fault->late; p; p = p->next)
            if (p->after == fault->index - 1) {
                add_item(fault, i, p->peer, p->number, p)->extra = 1;
                fault->plain = 0;
            }
    }
}

/* Sends as many items as fit. Returns their number, or the inner link's result for the first. */
static int hand_on(struct fault *fault, struct link_frame *frames)
{
    int done = 0;
    /* No fault in this chunk: the frames go on as they are, in one call, and without copies of their headers. */
    if (fault->plain)
        return fault->inner->send(fault->link, fault->items[0].peer, frames, fault->n_items);
    for (int k = 0; k < fault->n_items; k++) {
        const struct item *item = &fault->items[k];
        if (item->flat)
            link_unflatten(item->flat, &fault->out[k], &fault->iov[k]);
        else
            fault->out[k] = frames[item->source];
    }
    while (done < fault->n_items) {
        const struct item *first = &fault->items[done];
        int run = 1;
        /* The longest run for one peer, so that the link can make a super-frame of it. */
        while (!first->alone && done + run < fault->n_items && !first[run].alone && first[run].peer == first->peer)
            run++;
        link_remark(fault->client, first->alone ? "corrupted on purpose" : NULL);
        int sent = fault->inner->send(fault->link, first->peer, &fault->out[done], run);
        link_remark(fault->client, NULL);
        if (sent <= 0)
            return done ? done : sent;
        done += sent;
        /* The link is full. The rest is offered again by the provider. */
        if (sent < run)
            break;
    }
    return done;
}

/* Appends the items to the line. The frames are copied, because the program may change its payload after send() has
 * returned. Returns the number of items, or -EAGAIN if the line is full: a slow wire then holds the sender back. */
static int hand_to_line(struct fault *fault, struct link_frame *frames, uint64_t now)
{
    int done = 0;
    for (; done < fault->n_items && fault->line_bytes < LINE_MOST; done++) {
        struct item *item = &fault->items[done];
        struct link_flat *copy;
        if (item->flat) {
            struct link_frame f;
            struct iovec iov;
            link_unflatten(item->flat, &f, &iov);
            copy = link_flatten(item->peer, &f);
        } else
            copy = link_flatten(item->peer, &frames[item->source]);
        if (copy) /* otherwise the frame counts as lost */
            fault_enqueue(fault, copy, item->number, now);
    }
    return done ? done : -EAGAIN;
}

/* Counts the faults that were applied, and undoes the others: of n frames, `taken` were accepted. Called after each
 * chunk, with the numbers as plan() has advanced them. The other frames must leave no trace: the same draws are made
 * when they are offered again. */
static void settle(struct fault *fault, struct link_peer *peer, const struct link_frame *frames, int n, int taken,
                   int done, int cut)
{
    uint64_t first = fault->index - (uint64_t)n; /* number of frames[0] */
    for (int i = 0; i < taken; i++) {
        if (fault->fate[i] & 1u << VIAKIT_DROP) {
            int is_cut_off = cut || fault_cut_by_number(&fault->faults, first + (uint64_t)i);
            if (is_cut_off)
                LINK_COUNT(fault->client, fault_cut_sent, 1);
            else
                LINK_COUNT(fault->client, fault_dropped, 1);
            link_note_lost(fault->client, peer, &frames[i],
                           is_cut_off ? "lost on purpose: cut off" : "lost on purpose");
        }
        LINK_COUNT(fault->client, fault_corrupted, fault->fate[i] >> VIAKIT_CORRUPT & 1);
        LINK_COUNT(fault->client, fault_duplicated, fault->fate[i] >> VIAKIT_DUPLICATE & 1);
    }
    for (int i = taken; i < n; i++)
        fault->of_kind[frames[i].header.version_kind & 15]--;
    fault->index -= (uint64_t)(n - taken);
    /* Copies of corrupted frames belong to the item. A late frame belongs to the list until it was sent. */
    for (int k = 0; k < fault->n_items; k++) {
        struct item *item = &fault->items[k];
        if (item->alone)
            free(item->flat);
        else if (item->flat && k < done) {
            LINK_COUNT(fault->client, fault_reordered, 1);
            fault_forget_late(fault, item->flat);
            free(item->flat);
        }
    }
    for (struct link_flat *p = fault->late, *next; p; p = next) {
        next = p->next;
        if (p->due && p->number >= fault->index) { /* its frame will be offered again */
            fault_forget_late(fault, p);
            free(p);
        }
    }
}

/* Sends up to CHUNK frames: decides, sends, counts. If the inner link accepts only a part, the numbers of the others
 * are returned, so that they get the same faults when they are offered again. Returns the same as link_ops.send. */
static int send_chunk(struct fault *fault, struct link_peer *peer, struct link_frame *frames, int n)
{
    const viakit_faults *f = &fault->faults;
    uint64_t now = f->partition_us != 0 || f->stall_us > 0 || f->delay_us > 0 || f->jitter_us > 0 ? vk_now() : 0;
    int cut = fault_cut_by_time(fault, now), lined = fault_through_line(fault, now);
    plan(fault, peer, frames, n, cut);
    int done = fault->n_items == 0 ? 0 : lined ? hand_to_line(fault, frames, now) : hand_on(fault, frames), taken = n;
    /* The first item that was not accepted decides: its frame, and all behind it, are offered again. An extra copy is
     * given up, because its frame has been sent. */
    if (done < fault->n_items) {
        const struct item *next = &fault->items[done > 0 ? done : 0];
        taken = next->source + next->extra;
    }
    settle(fault, peer, frames, n, taken, done > 0 ? done : 0, cut);
    return taken ? taken : done;
}

/* Link operation. Frames of a connection that relies on the link pass unchanged. So do all frames while no faults are
 * set. */
static int fault_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct fault *fault = fault_of(link);
    /* All frames of one call belong to one connection, so the first one's header decides. */
    int done = 0;
    if ((!fault->active && !fault->filter) || link_must_arrive(fault->client, &frames[0].header))
        return fault->inner->send(link, peer, frames, n);
    while (done < n) {
        /* A filter decides on single frames, because it may call the program. */
        int left = n - done, part = fault->filter ? 1 : left < CHUNK ? left : CHUNK;
        int taken =
            fault->filter ? send_filtered(fault, peer, &frames[done]) : send_chunk(fault, peer, &frames[done], part);
        if (taken <= 0)
            return done ? done : taken;
        done += taken;
        if (taken < part)
            break;
    }
    return done;
}

/* Link operation. Handles only frames that pass or are lost. For other faults it returns 0, and the frame comes again
 * by send(), with the same number and therefore the same fate. */
static int fault_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                            const void *payload, size_t len)
{
    struct fault *fault = fault_of(link);
    const viakit_faults *f = &fault->faults;
    struct wire_header h;
    memcpy(&h, header, sizeof h);
    int kind = h.version_kind & 15;
    if ((!fault->active && !fault->filter) || link_must_arrive(fault->client, &h))
        return fault->inner->send_short(link, peer, header, payload, len);
    /* All that needs the frame's bytes stored, or the time. The short path has neither. */
    if (fault->filter || fault->late || fault->line || f->delay_us > 0 || f->jitter_us > 0 || f->stall_us > 0 ||
        f->partition_us != 0 || f->partition_frames)
        return 0;
    unsigned what = fault_decide(f, fault->index, kind, fault->of_kind[kind]);
    if (what & ~(1u << VIAKIT_DROP))
        return 0;
    if (what)
        LINK_COUNT(fault->client, fault_dropped, 1);
    else if (!fault->inner->send_short(link, peer, header, payload, len))
        return 0;
    fault->index++;
    fault->of_kind[kind]++;
    return 1;
}

/* If a connection request to all NICs of a station is lost, it is lost for all of them. It is neither late nor delayed.
 * A corrupted one is not sent: the link has yet to fill in each NIC's port and the checksum, and every NIC would drop
 * it. A filter does not see these requests, because they have no bytes yet that it could change. */
static int fault_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    struct fault *fault = fault_of(link);
    int kind = frame->header.version_kind & 15;
    if (!fault->active)
        return fault->inner->request_all(link, address, frame);
    /* A request has a number of its own, as any frame. */
    int cut = fault_is_cut(fault, vk_now());
    unsigned what = fault_decide(&fault->faults, fault->index++, kind, fault->of_kind[kind]++);
    if (cut || what & (1u << VIAKIT_DROP | 1u << VIAKIT_CORRUPT)) {
        if (cut)
            LINK_COUNT(fault->client, fault_cut_sent, 1);
        else if (what & 1u << VIAKIT_DROP)
            LINK_COUNT(fault->client, fault_dropped, 1);
        else
            LINK_COUNT(fault->client, fault_corrupted, 1);
        return -1;
    }
    if (what & 1u << VIAKIT_DUPLICATE) {
        LINK_COUNT(fault->client, fault_duplicated, 1);
        fault->inner->request_all(link, address, frame);
    }
    return fault->inner->request_all(link, address, frame);
}

/* ---------------------------------------------------------------- receiving: only timing and partitions */

/* Link operation. It also sends what is due, because a NIC that only receives makes no other calls. The clock is read
 * only if something depends on it. */
static int fault_poll(struct link *link, int budget)
{
    struct fault *fault = fault_of(link);
    int timed = fault->active && (fault->faults.partition_us != 0 || fault->faults.partition_frames), cut = 0;
    if (timed || fault->late || fault->line) {
        uint64_t now = vk_now();
        cut = fault_is_cut(fault, now);
        fault_send_overdue(fault, now, 0);
        fault_advance_line(fault, now);
    }
    if (!cut)
        return fault->inner->poll(link, budget);
    /* A partition cuts both directions. The frames are taken from the link, because they would otherwise arrive after
     * it. */
    link_discard_arrivals(fault->client, 1);
    int n = fault->inner->poll(link, budget);
    link_discard_arrivals(fault->client, 0);
    return n;
}

/* Link operation: the due time of the first frame of the line, or of a late frame if that is earlier. The line is
 * sorted by time, the late frames are not. */
static uint64_t fault_due(struct link *link)
{
    const struct fault *fault = fault_of(link);
    uint64_t due = fault->line ? fault->line->due : VK_NEVER;
    for (struct link_flat *p = fault->late; p; p = p->next)
        due = p->due < due ? p->due : due;
    if (due == VK_NEVER)
        return due;
    uint64_t soon = vk_now() + RETRY_NS; /* overdue: there was no room */
    return due < soon ? soon : due;
}

/* ---------------------------------------------------------------- opening and closing */

/* Frames in the line are sent without their delay. Frames that the link does not accept now are lost. */
static void remove_fault(struct fault *fault)
{
    fault_send_all_kept(fault);
    fault_forget_kept(fault, NULL);
    fault->client->fault = NULL;
    free(fault);
}

/* Link operation, for a NIC that closes with its faults still set. */
static void fault_close(struct link *link)
{
    struct fault *fault = fault_of(link);
    /* Read before the decorator is freed. */
    void (*close)(struct link *) = fault->inner->close;
    remove_fault(fault); /* a wire delivers the frames on it, even if the sender is gone */
    close(link);
}

/* The new table is a copy of the link's. So code that tests whether an operation exists gets the link's answer, except
 * for those that the decorator adds or removes. */
int fault_wrap(struct link_client *client, const struct link_ops **ops, struct link *link)
{
    struct fault *fault = calloc(1, sizeof *fault);
    if (fault == NULL)
        return -ENOMEM;
    fault->client = client;
    fault->inner = *ops;
    fault->link = link;
    /* An empty queue: the end points to the head. */
    fault->line_end = &fault->line;
    fault->ops = **ops; /* operations that are not replaced below stay the link's own */
    fault->ops.close = fault_close;
    fault->ops.request_all = fault_request_all;
    fault->ops.send = fault_send;
    if (fault->ops.send_short)
        fault->ops.send_short = fault_send_short;
    fault->ops.poll = fault_poll;
    fault->ops.due = fault_due;
    fault->ops.passing = NULL; /* a frame may be stored here, so its peer must come from route() */
    client->fault = fault;
    *ops = &fault->ops;
    return 0;
}

void fault_unwrap(struct link_client *client, const struct link_ops **ops)
{
    *ops = client->fault->inner;
    remove_fault(client->fault);
}

/* For another decorator (watch/tap.c) that is to stand between this one and the link. */
const struct link_ops **fault_inner(struct fault *fault)
{
    return &fault->inner;
}

/* Counts frames from 0 again, and starts the clock of partitions and stalls. */
static void begin_anew(struct fault *fault)
{
    fault_send_all_kept(fault);
    for (struct link_flat *p = fault->late; p; p = p->next)
        p->number = p->after = p->due = 0; /* it found no room: send it at the next poll */
    fault->index = 0;
    memset(fault->of_kind, 0, sizeof fault->of_kind);
    fault->began = vk_now();
    fault->decided = 0;
}

void fault_set(struct fault *fault, const viakit_faults *faults)
{
    begin_anew(fault);
    fault->faults = *faults;
    fault->active = 1;
    fault->filter = NULL;
}

/* fault_send_all_kept() in begin_anew() has ended the configured faults. */
void fault_set_filter(struct fault *fault, viakit_frame_filter filter, void *context)
{
    begin_anew(fault);
    fault->filter = filter;
    fault->filter_context = context;
}

const viakit_faults *fault_get(const struct fault *fault)
{
    return fault->active ? &fault->faults : NULL;
}

void fault_forget_peer(struct fault *fault, const struct link_peer *peer)
{
    fault_forget_kept(fault, peer);
}
