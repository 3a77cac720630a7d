/*
 * The decorator `fault`: a link in front of a link, which spoils what is sent.
 *
 *    provider --> what happens to it (fault_plan.c) --> late --> line --> shm | eth | loop | ...
 *             <------------ frames that arrive: straight from the inner link to the provider
 *
 * What is late and what is in the line is kept by fault_keep.c.
 *
 * Frames have numbers, in the order in which the provider hands them over. A frame that the inner link cannot take
 * at the moment has not been handed over: it is offered again, with the same number and so with the same fate.
 * Super-frames stay super-frames: a batch without its lost frames, and with doubled and late ones among them, is
 * still handed on in one piece. A corrupted frame goes alone, for its length may be what was spoilt, and it must not
 * spoil those behind it.
 */
#include "fault.h"

#include <errno.h>
#include <stdlib.h>

#include "../base/atomic.h"
#include "../base/clock.h"
#include "fault_keep.h"

#define RETRY_NS (50 * VK_US) /* the inner link had no room */

/* ---------------------------------------------------------------- a test's filter */

/* One frame. The checksum is made here, before CORRUPT spoils the frame. 1 taken, otherwise what the inner link
 * said. */
static int send_filtered(struct link *link, struct link_peer *peer, struct link_frame *f)
{
    struct link_flat *flat = link_flatten(peer, f);
    if (flat == NULL)
        return -EAGAIN;
    link_flat_checksum(flat);
    int sent = 1;
    if (!link->asked) /* once per index: a frame that has to wait for room must not throw the dice until it is lost */
        link->verdict = link->filter(link->filter_context, link->index, f->header.version_kind & 15, flat->len);
    link->asked = 1;
    switch (link->verdict) {
    case VIAKIT_DROP: {
        struct link_frame lost;
        struct iovec iov;
        LINK_COUNT(link->nic, dropped_filter, 1);
        link_unflatten(flat, &lost, &iov);
        link_note_lost(link->nic, peer, &lost, "lost on purpose");
        break;
    }
    case VIAKIT_HOLD:
        if (link->held == NULL) {
            link->held = flat;
            link->index++;
            link->asked = 0;
            return 1;
        }
        sent = fault_send_flat(link, flat);
        break;
    case VIAKIT_CORRUPT:
        flat->bytes[(link->index * 7919) % flat->len] ^= (uint8_t)(1u << (link->index & 7));
        link_remark(link->nic, "spoilt on purpose");
        sent = fault_send_flat(link, flat);
        link_remark(link->nic, NULL);
        break;
    case VIAKIT_DUPLICATE:
        sent = fault_send_flat(link, flat);
        if (sent == 1) {
            link_remark(link->nic, "doubled on purpose");
            fault_send_flat(link, flat);
            link_remark(link->nic, NULL);
        }
        break;
    default:
        sent = fault_send_flat(link, flat);
    }
    free(flat);
    if (sent != 1)
        return sent;
    link->index++;
    link->asked = 0;
    if (link->held) { /* a frame was overtaken: now it follows */
        link_remark(link->nic, "overtaken on purpose");
        fault_send_flat(link, link->held);
        link_remark(link->nic, NULL);
        free(link->held);
        link->held = NULL;
    }
    return 1;
}

/* ---------------------------------------------------------------- sending */

/* Room for all: each frame makes two items at most, and each late one is added once, behind the frame that it waits
 * for. */
static struct item *add_item(struct link *link, int source, struct link_peer *peer, uint64_t number,
                             struct link_flat *flat)
{
    struct item *item = &link->items[link->n_items++];
    *item = (struct item){.source = source, .peer = peer, .number = number, .flat = flat};
    return item;
}

/* A copy with some bits turned over. Not the one that says that there is a checksum: on some links nobody would miss
 * it. `draw` is what the frame's draws go by. */
static struct link_flat *spoil(const struct link *link, struct link_peer *peer, const struct link_frame *f,
                               uint64_t draw)
{
    struct link_flat *flat = link_flatten(peer, f);
    if (flat == NULL)
        return NULL;
    link_flat_checksum(flat);
    const uint64_t flag = 8 * offsetof(struct wire_header, flags) + 6;
    uint32_t n = link->faults.corrupt_bits ? link->faults.corrupt_bits : 1;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bit = fault_draw(link->faults.seed, draw, FAULT_BIT + i) % (8 * flat->len);
        bit += bit == flag;
        flat->bytes[bit / 8] ^= (uint8_t)(1u << (bit & 7));
    }
    return flat;
}

/* What is to be handed on for frame i of those offered. */
static void plan_frame(struct link *link, struct link_peer *peer, struct link_frame *frames, int i, unsigned what)
{
    int kind = frames[i].header.version_kind & 15;
    uint64_t number = link->index, draw = fault_number(kind, link->of_kind[kind]);
    struct link_flat *spoilt = NULL;
    int n = what & 1u << VIAKIT_DUPLICATE ? 2 : 1;
    if (what & 1u << VIAKIT_CORRUPT)
        spoilt = spoil(link, peer, &frames[i], draw);
    else if (what & 1u << VIAKIT_HOLD && link->n_late < LATE_MOST) {
        struct link_flat *late = link_flatten(peer, &frames[i]);
        if (late) {
            fault_keep_late(link, late, number, fault_distance(&link->faults, draw));
            n--; /* of a pair one is on time */
        }
    }
    for (int k = 0; k < n; k++) { /* of a pair one is whole */
        struct item *item = add_item(link, i, peer, number, k == 0 ? spoilt : NULL);
        item->extra = k;
        item->alone = item->flat != NULL;
    }
}

/* What is to be handed on for all of them, late ones of before included. */
static void plan(struct link *link, struct link_peer *peer, struct link_frame *frames, int n, int cut)
{
    link->n_items = 0;
    link->plain = 1;
    for (int i = 0; i < n; i++) {
        int kind = frames[i].header.version_kind & 15;
        unsigned what = cut ? 1u << VIAKIT_DROP : fault_decide(&link->faults, link->index, kind, link->of_kind[kind]);
        link->fate[i] = (uint8_t)what;
        link->plain &= what == 0;
        if (!(what & 1u << VIAKIT_DROP))
            plan_frame(link, peer, frames, i, what);
        link->of_kind[kind]++;
        link->index++;
        for (struct link_flat *p = link->late; p; p = p->next)
            if (p->after == link->index - 1) {
                add_item(link, i, p->peer, p->number, p)->extra = 1;
                link->plain = 0;
            }
    }
}

/* Hands items on, as many as find room; the number of them, or what the inner link said to the first. */
static int hand_on(struct link *link, struct link_frame *frames)
{
    int done = 0;
    if (link->plain)
        return link->inner->send(link->link, link->items[0].peer, frames, link->n_items);
    for (int k = 0; k < link->n_items; k++) {
        const struct item *item = &link->items[k];
        if (item->flat)
            link_unflatten(item->flat, &link->out[k], &link->iov[k]);
        else
            link->out[k] = frames[item->source];
    }
    while (done < link->n_items) {
        const struct item *first = &link->items[done];
        int run = 1;
        while (!first->alone && done + run < link->n_items && !first[run].alone && first[run].peer == first->peer)
            run++;
        link_remark(link->nic, first->alone ? "spoilt on purpose" : NULL);
        int sent = link->inner->send(link->link, first->peer, &link->out[done], run);
        link_remark(link->nic, NULL);
        if (sent <= 0)
            return done ? done : sent;
        done += sent;
        if (sent < run)
            break;
    }
    return done;
}

/* The same into the line. The bytes of a late frame, or of a spoilt one, move there; others are copied. */
static int hand_to_line(struct link *link, struct link_frame *frames, uint64_t now)
{
    int done = 0;
    for (; done < link->n_items && link->line_bytes < LINE_MOST; done++) {
        struct item *item = &link->items[done];
        struct link_flat *copy;
        if (item->flat) {
            struct link_frame f;
            struct iovec iov;
            link_unflatten(item->flat, &f, &iov);
            copy = link_flatten(item->peer, &f);
        } else
            copy = link_flatten(item->peer, &frames[item->source]);
        if (copy) /* otherwise it is as if lost */
            fault_enqueue(link, copy, item->number, now);
    }
    return done ? done : -EAGAIN;
}

/* Counts what has happened and takes back what has not: of n frames, `taken` were handed over. */
static void settle(struct link *link, struct link_peer *peer, const struct link_frame *frames, int n, int taken,
                   int done, int cut)
{
    uint64_t first = link->index - (uint64_t)n; /* number of frames[0] */
    for (int i = 0; i < taken; i++) {
        if (link->fate[i] & 1u << VIAKIT_DROP) {
            int is_cut_off = cut || fault_cut_by_number(&link->faults, first + (uint64_t)i);
            if (is_cut_off)
                LINK_COUNT(link->nic, fault_cut_sent, 1);
            else
                LINK_COUNT(link->nic, fault_dropped, 1);
            link_note_lost(link->nic, peer, &frames[i], is_cut_off ? "lost on purpose: cut off" : "lost on purpose");
        }
        LINK_COUNT(link->nic, fault_corrupted, link->fate[i] >> VIAKIT_CORRUPT & 1);
        LINK_COUNT(link->nic, fault_duplicated, link->fate[i] >> VIAKIT_DUPLICATE & 1);
    }
    for (int i = taken; i < n; i++)
        link->of_kind[frames[i].header.version_kind & 15]--;
    link->index -= (uint64_t)(n - taken);
    for (int k = 0; k < link->n_items; k++) {
        struct item *item = &link->items[k];
        if (item->alone)
            free(item->flat);
        else if (item->flat && k < done) {
            LINK_COUNT(link->nic, fault_reordered, 1);
            fault_forget_late(link, item->flat);
            free(item->flat);
        }
    }
    for (struct link_flat *p = link->late, *next; p; p = next) {
        next = p->next;
        if (p->due && p->number >= link->index) { /* its frame will be offered again */
            fault_forget_late(link, p);
            free(p);
        }
    }
}

/* Up to CHUNK frames: decide, hand on, count. If the inner link takes a part, the numbers of the others are given
 * back, so that they meet the same fate when they are offered again. Returns what link_ops.send returns. */
static int send_chunk(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    const viakit_faults *f = &link->faults;
    uint64_t now = f->partition_us != 0 || f->stall_us > 0 || f->delay_us > 0 || f->jitter_us > 0 ? vk_now() : 0;
    int cut = fault_cut_by_time(link, now), lined = fault_through_line(link, now);
    plan(link, peer, frames, n, cut);
    int done = link->n_items == 0 ? 0 : lined ? hand_to_line(link, frames, now) : hand_on(link, frames), taken = n;
    if (done < link->n_items) {
        const struct item *next = &link->items[done > 0 ? done : 0];
        taken = next->source + next->extra;
    }
    settle(link, peer, frames, n, taken, done > 0 ? done : 0, cut);
    return taken ? taken : done;
}

/* Link operation. A frame of a connection that relies on the link goes past, and so does everything while no faults
 * are set. */
static int fault_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int done = 0;
    if ((!link->active && !link->filter) || link_must_arrive(link->nic, &frames[0].header))
        return link->inner->send(link->link, peer, frames, n);
    while (done < n) {
        int left = n - done, part = link->filter ? 1 : left < CHUNK ? left : CHUNK;
        int taken =
            link->filter ? send_filtered(link, peer, &frames[done]) : send_chunk(link, peer, &frames[done], part);
        if (taken <= 0)
            return done ? done : taken;
        done += taken;
        if (taken < part)
            break;
    }
    return done;
}

/* Only what passes or is lost goes this way; whatever is more trouble comes again by send(). */
static int fault_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                            const void *payload, size_t len)
{
    const viakit_faults *f = &link->faults;
    struct wire_header h;
    memcpy(&h, header, sizeof h);
    int kind = h.version_kind & 15;
    if ((!link->active && !link->filter) || link_must_arrive(link->nic, &h))
        return link->inner->send_short(link->link, peer, header, payload, len);
    if (link->filter || link->late || link->line || f->delay_us > 0 || f->jitter_us > 0 || f->stall_us > 0 ||
        f->partition_us != 0 || f->partition_frames)
        return 0;
    unsigned what = fault_decide(f, link->index, kind, link->of_kind[kind]);
    if (what & ~(1u << VIAKIT_DROP))
        return 0;
    if (what)
        LINK_COUNT(link->nic, fault_dropped, 1);
    else if (!link->inner->send_short(link->link, peer, header, payload, len))
        return 0;
    link->index++;
    link->of_kind[kind]++;
    return 1;
}

/* A connection request to all NICs of a station is lost for all of them, and is neither late nor delayed. A spoilt
 * one is not sent: the link has yet to fill in each NIC's port, and the checksum with it, and everyone would drop
 * it. */
static int fault_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    int kind = frame->header.version_kind & 15;
    if (!link->active)
        return link->inner->ask_all(link->link, address, frame);
    int cut = fault_is_cut(link, vk_now());
    unsigned what = fault_decide(&link->faults, link->index++, kind, link->of_kind[kind]++);
    if (cut || what & (1u << VIAKIT_DROP | 1u << VIAKIT_CORRUPT)) {
        if (cut)
            LINK_COUNT(link->nic, fault_cut_sent, 1);
        else if (what & 1u << VIAKIT_DROP)
            LINK_COUNT(link->nic, fault_dropped, 1);
        else
            LINK_COUNT(link->nic, fault_corrupted, 1);
        return -1;
    }
    if (what & 1u << VIAKIT_DUPLICATE) {
        LINK_COUNT(link->nic, fault_duplicated, 1);
        link->inner->ask_all(link->link, address, frame);
    }
    return link->inner->ask_all(link->link, address, frame);
}

/* ---------------------------------------------------------------- receiving: only to be on time, and to be cut off */

static int fault_poll(struct link *link, int budget)
{
    int timed = link->active && (link->faults.partition_us != 0 || link->faults.partition_frames), cut = 0;
    if (timed || link->late || link->line) {
        uint64_t now = vk_now();
        cut = fault_is_cut(link, now);
        fault_send_overdue(link, now, 0);
        fault_advance_line(link, now);
    }
    if (!cut)
        return link->inner->poll(link->link, budget);
    link_deafen(link->nic, 1);
    int n = link->inner->poll(link->link, budget);
    link_deafen(link->nic, 0);
    return n;
}

/* Link operation: the first of the line, or the late frame that is due first. */
static uint64_t fault_due(struct link *link)
{
    uint64_t due = link->line ? link->line->due : VK_NEVER;
    for (struct link_flat *p = link->late; p; p = p->next)
        due = p->due < due ? p->due : due;
    if (due == VK_NEVER)
        return due;
    uint64_t soon = vk_now() + RETRY_NS; /* overdue: there was no room */
    return due < soon ? soon : due;
}

/* ---------------------------------------------------------------- passed on as it is: peers are the inner link's */

static int fault_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **peer)
{
    return link->inner->route(link->link, address, port, peer);
}

static uint32_t fault_payload_to(struct link *link, struct link_peer *peer)
{
    return link->inner->payload_to(link->link, peer);
}

static int fault_count_neighbours(struct link *link)
{
    return link->inner->count_neighbours(link->link);
}

static void fault_descriptors(struct link *link, int *data_fd, int *control_fd)
{
    link->inner->descriptors(link->link, data_fd, control_fd);
}

static int fault_arm(struct link *link)
{
    return link->inner->arm(link->link);
}

static void fault_disarm(struct link *link)
{
    link->inner->disarm(link->link);
}

static int fault_watch(struct link *link, struct pollfd *fds)
{
    return link->inner->watch(link->link, fds);
}

static void fault_woken(struct link *link, const struct pollfd *fds, int n)
{
    link->inner->woken(link->link, fds, n);
}

static void fault_control(struct link *link)
{
    link->inner->control(link->link);
}

static void fault_info(struct link *link, viakit_nic_info *info)
{
    link->inner->info(link->link, info);
}

static int fault_alloc(struct link *link, size_t len, void **address)
{
    return link->inner->alloc(link->link, len, address);
}

static int fault_free(struct link *link, void *address)
{
    return link->inner->free(link->link, address);
}

static void *fault_region_table(struct link *link, size_t len)
{
    return link->inner->region_table(link->link, len);
}

static int fault_reach(struct link *link, struct link_peer *peer, const void *address, size_t len)
{
    return link->inner->reach(link->link, peer, address, len);
}

static int fault_fetch(struct link *link, struct link_peer *peer, uint64_t address, const struct iovec *to, int n_to,
                       size_t len)
{
    return link->inner->fetch(link->link, peer, address, to, n_to, len);
}

static int fault_take(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                      const struct iovec *to, int n_to, size_t len)
{
    return link->inner->take(link->link, peer, handle, ptag, address, to, n_to, len);
}

static int fault_place(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                       const struct iovec *from, int n_from, size_t len)
{
    return link->inner->place(link->link, peer, handle, ptag, address, from, n_from, len);
}

/* ---------------------------------------------------------------- coming and going */

static void fault_close(struct link *link)
{
    fault_send_all_kept(link); /* a wire delivers what is on it, whatever becomes of the sender */
    fault_forget_kept(link, NULL);
    link->inner->close(link->link);
    free(link);
}

int fault_wrap(struct via_nic *nic, const struct link_ops **ops, struct link **inner)
{
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    link->nic = nic;
    link->inner = *ops;
    link->link = *inner;
    link->line_end = &link->line;
    link->ops = **ops; /* name and open stay the inner link's; an operation that it lacks is lacking here */
#define DECORATE(operation) link->ops.operation = link->inner->operation ? fault_##operation : NULL
    DECORATE(close);
    DECORATE(route);
    DECORATE(ask_all);
    DECORATE(payload_to);
    DECORATE(count_neighbours);
    DECORATE(send);
    DECORATE(send_short);
    DECORATE(poll);
    DECORATE(descriptors);
    DECORATE(arm);
    DECORATE(disarm);
    DECORATE(watch);
    DECORATE(woken);
    DECORATE(control);
    DECORATE(info);
    DECORATE(alloc);
    DECORATE(free);
    DECORATE(region_table);
    DECORATE(reach);
    DECORATE(fetch);
    DECORATE(place);
    DECORATE(take);
#undef DECORATE
    link->ops.passing = NULL; /* a frame may be kept here: route() then */
    link->ops.due = fault_due;
    *ops = &link->ops;
    *inner = link;
    return 0;
}

void fault_unwrap(const struct link_ops **ops, struct link **link)
{
    struct link *fault = *link;
    fault_send_all_kept(fault);
    fault_forget_kept(fault, NULL);
    *ops = fault->inner;
    *link = fault->link;
    free(fault);
}

const struct link_ops **fault_inner(struct link *fault)
{
    return &fault->inner;
}

/* Frames are counted from 0 again, and the clock of partitions and stalls starts. */
static void begin_anew(struct link *link)
{
    fault_send_all_kept(link);
    for (struct link_flat *p = link->late; p; p = p->next)
        p->number = p->after = p->due = 0; /* found no room: with the next look */
    link->index = 0;
    memset(link->of_kind, 0, sizeof link->of_kind);
    link->began = vk_now();
    link->asked = 0;
}

void fault_set(struct link *link, const viakit_faults *faults)
{
    begin_anew(link);
    link->faults = *faults;
    link->active = 1;
    link->filter = NULL;
}

void fault_set_filter(struct link *link, viakit_frame_filter filter, void *context)
{
    begin_anew(link);
    link->filter = filter;
    link->filter_context = context;
}

const viakit_faults *fault_get(const struct link *link)
{
    return link->active ? &link->faults : NULL;
}

void fault_forget_peer(struct link *link, const struct link_peer *peer)
{
    fault_forget_kept(link, peer);
}
