/*
 * Frames that the decorator `fault` keeps: by the clock (stalls, delays, cuts), and until others have overtaken them.
 *
 *    late   frames that others shall overtake: each goes behind frame number `after`, or when `due`, if none comes
 *    line   a delay line, first in, first out: while there is a delay or a stall everything passes it
 *
 * Bounds: LATE_MOST frames are late, LINE_MOST bytes are in the line; then the former go in order and the latter
 * looks like a full link.
 */
#include "fault_keep.h"

#include <errno.h>
#include <stdlib.h>

#include "../base/clock.h"

#define LATE_NS (5 * VK_MS) /* a late frame that nobody overtakes goes then */

int fault_send_flat(struct link *link, const struct link_flat *flat)
{
    struct link_frame f;
    struct iovec iov;
    link_unflatten(flat, &f, &iov);
    return link->inner->send(link->link, flat->peer, &f, 1);
}

/* ---------------------------------------------------------------- time */

int fault_cut_by_time(const struct link *link, uint64_t now)
{
    const viakit_faults *f = &link->faults;
    if (!link->active)
        return 0;
    double t = (double)(now - link->began) * 1e-3 - f->partition_after_us;
    return f->partition_us != 0 && t >= 0 && (f->partition_us < 0 || t < f->partition_us);
}

int fault_is_cut(const struct link *link, uint64_t now)
{
    return fault_cut_by_time(link, now) || (link->active && fault_cut_by_number(&link->faults, link->index));
}

/* ns until the stall ends in which the moment `at` lies; 0: in none. */
static uint64_t stalled_for(const struct link *link, uint64_t at)
{
    const viakit_faults *f = &link->faults;
    uint64_t every = (uint64_t)(f->stall_every_us * 1e3), stall = (uint64_t)(f->stall_us * 1e3);
    if (!link->active || stall == 0 || every == 0)
        return 0;
    uint64_t phase = (at - link->began) % every;
    return phase + stall >= every ? every - phase : 0;
}

int fault_through_line(const struct link *link, uint64_t now)
{
    return link->line || (link->active && (link->faults.delay_us > 0 || link->faults.jitter_us > 0)) ||
           stalled_for(link, now);
}

/* ---------------------------------------------------------------- the line */

void fault_enqueue(struct link *link, struct link_flat *flat, uint64_t number, uint64_t now)
{
    const viakit_faults *f = &link->faults;
    double later_us = link->active ? f->delay_us : 0;
    if (link->active && f->jitter_us > 0)
        later_us += f->jitter_us * fault_chance(f->seed, number, FAULT_JITTER);
    uint64_t due = now + (uint64_t)(later_us * 1e3), stalled = stalled_for(link, due);
    if (stalled)
        LINK_COUNT(link->nic, fault_stalled, 1);
    else if (later_us > 0)
        LINK_COUNT(link->nic, fault_delayed, 1);
    due += stalled;
    if (due < link->line_due)
        due = link->line_due;
    flat->due = link->line_due = due;
    flat->next = NULL;
    *link->line_end = flat;
    link->line_end = &flat->next;
    link->line_bytes += flat->len;
    link_timer(link->nic, due);
}

static struct link_flat *line_pop(struct link *link)
{
    struct link_flat *flat = link->line;
    link->line = flat->next;
    if (link->line == NULL)
        link->line_end = &link->line;
    link->line_bytes -= flat->len;
    return flat;
}

/* In runs to one peer, so that what was a super-frame can be one again. */
void fault_advance_line(struct link *link, uint64_t now)
{
    while (link->line && link->line->due <= now) {
        int n = 0;
        struct link_peer *peer = link->line->peer;
        for (struct link_flat *p = link->line; p && p->due <= now && p->peer == peer && n < CHUNK; p = p->next, n++)
            link_unflatten(p, &link->out[n], &link->iov[n]);
        int sent = link->inner->send(link->link, peer, link->out, n);
        for (int i = 0; i < sent; i++)
            free(line_pop(link));
        if (sent < n)
            return;
    }
}

/* ---------------------------------------------------------------- late frames */

/* At the end of the list, which is thereby in the order of numbers. `due` is for a frame that nobody comes to
 * overtake. */
void fault_keep_late(struct link *link, struct link_flat *flat, uint64_t number, uint64_t distance)
{
    flat->number = number;
    flat->after = number + distance;
    flat->due = vk_now() + LATE_NS;
    flat->next = NULL;
    struct link_flat **p = &link->late;
    while (*p)
        p = &(*p)->next;
    *p = flat;
    link->n_late++;
    link_timer(link->nic, flat->due);
}

void fault_forget_late(struct link *link, struct link_flat *flat)
{
    struct link_flat **p = &link->late;
    while (*p != flat)
        p = &(*p)->next;
    *p = flat->next;
    link->n_late--;
}

void fault_send_overdue(struct link *link, uint64_t now, int all)
{
    for (struct link_flat *p = link->late, *next; p; p = next) {
        next = p->next;
        if (!all && p->due > now && p->after >= link->index)
            continue;
        if (fault_through_line(link, now)) {
            fault_forget_late(link, p);
            fault_enqueue(link, p, p->number, now);
        } else {
            if (fault_send_flat(link, p) == -EAGAIN)
                continue;
            fault_forget_late(link, p);
            free(p);
        }
        LINK_COUNT(link->nic, fault_reordered, 1);
    }
}

/* ---------------------------------------------------------------- letting go */

void fault_send_all_kept(struct link *link)
{
    link->active = 0;
    fault_advance_line(link, VK_NEVER);
    fault_send_overdue(link, vk_now(), 1);
}

void fault_forget_kept(struct link *link, const struct link_peer *peer)
{
    for (struct link_flat *p = link->late, *next; p; p = next) {
        next = p->next;
        if (peer == NULL || p->peer == peer) {
            fault_forget_late(link, p);
            free(p);
        }
    }
    link->line_end = &link->line;
    for (struct link_flat *p = link->line, *next; p; p = next) {
        next = p->next;
        if (peer == NULL || p->peer == peer) {
            link->line_bytes -= p->len;
            free(p);
        } else {
            *link->line_end = p;
            link->line_end = &p->next;
        }
    }
    *link->line_end = NULL;
    if (link->held && (peer == NULL || link->held->peer == peer)) {
        free(link->held);
        link->held = NULL;
    }
}
