/*
 * The frames that the decorator `fault` stores: by the clock (stalls, delays, partitions), or until others have
 * overtaken them.
 *
 *    late   frames that others shall overtake: each goes behind frame number `after`, or when `due`, if none comes
 *    line   a delay line, first in, first out: all frames pass it while there is a delay or a stall
 *
 * Bounds: at most LATE_MOST frames are late; further ones are sent in order. The line holds at most LINE_MOST bytes; if
 * it is full, the link appears full.
 */
#include "link/fault/keep.h"

#include <errno.h>
#include <stdlib.h>

#include "base/clock.h"

#define LATE_NS (5 * VK_MS) /* a late frame that is not overtaken is sent after this time */

int fault_send_flat(struct fault *fault, const struct link_flat *flat)
{
    struct link_frame f;
    struct iovec iov;
    link_unflatten(flat, &f, &iov);
    return fault->inner->send(fault->link, flat->peer, &f, 1);
}

/* ---------------------------------------------------------------- time */

int fault_cut_by_time(const struct fault *fault, uint64_t now)
{
    const viakit_faults *f = &fault->faults;
    if (!fault->active)
        return 0;
    /* In microseconds since the partition's begin. A negative length has no end. */
    double t = (double)(now - fault->began) * 1e-3 - f->partition_after_us;
    return f->partition_us != 0 && t >= 0 && (f->partition_us < 0 || t < f->partition_us);
}

int fault_is_cut(const struct fault *fault, uint64_t now)
{
    return fault_cut_by_time(fault, now) || (fault->active && fault_cut_by_number(&fault->faults, fault->index));
}

/* Returns the ns until the end of the stall at time `at`; 0: no stall. */
static uint64_t stalled_for(const struct fault *fault, uint64_t at)
{
    const viakit_faults *f = &fault->faults;
    uint64_t every = (uint64_t)(f->stall_every_us * 1e3), stall = (uint64_t)(f->stall_us * 1e3);
    if (!fault->active || stall == 0 || every == 0)
        return 0;
    /* The stall is the last part of each period, so that a connection can be set up before the first one. */
    uint64_t phase = (at - fault->began) % every;
    return phase + stall >= every ? every - phase : 0;
}

/* Once a frame is in the line, all later ones go through it, too: otherwise they would overtake it. */
int fault_through_line(const struct fault *fault, uint64_t now)
{
    return fault->line || (fault->active && (fault->faults.delay_us > 0 || fault->faults.jitter_us > 0)) ||
           stalled_for(fault, now);
}

/* ---------------------------------------------------------------- the line */

void fault_enqueue(struct fault *fault, struct link_flat *flat, uint64_t number, uint64_t now)
{
    const viakit_faults *f = &fault->faults;
    double later_us = fault->active ? f->delay_us : 0;
    if (fault->active && f->jitter_us > 0)
        later_us += f->jitter_us * fault_chance(f->seed, number, FAULT_JITTER);
    uint64_t due = now + (uint64_t)(later_us * 1e3), stalled = stalled_for(fault, due);
    if (stalled)
        LINK_COUNT(fault->client, fault_stalled, 1);
    else if (later_us > 0)
        LINK_COUNT(fault->client, fault_delayed, 1);
    due += stalled;
    /* First in, first out: jitter moves frames in time and never past each other. Overtaking is a fault of its own
     * (late). */
    if (due < fault->line_due)
        due = fault->line_due;
    flat->due = fault->line_due = due;
    flat->next = NULL;
    *fault->line_end = flat;
    fault->line_end = &flat->next;
    fault->line_bytes += flat->len;
    /* The NIC's thread, or a poll, runs fault_advance_line() then. */
    link_timer(fault->client, due);
}

/* Removes the first frame of the line, which is not empty. The caller owns it. */
static struct link_flat *line_pop(struct fault *fault)
{
    struct link_flat *flat = fault->line;
    fault->line = flat->next;
    if (fault->line == NULL)
        fault->line_end = &fault->line;
    fault->line_bytes -= flat->len;
    return flat;
}

/* Sends frames in runs to one peer, so that super-frames can be formed again. It stops at the first frame that the link
 * does not accept, so the line keeps its order. */
void fault_advance_line(struct fault *fault, uint64_t now)
{
    while (fault->line && fault->line->due <= now) {
        int n = 0;
        struct link_peer *peer = fault->line->peer;
        for (struct link_flat *p = fault->line; p && p->due <= now && p->peer == peer && n < CHUNK; p = p->next, n++)
            link_unflatten(p, &fault->out[n], &fault->iov[n]);
        int sent = fault->inner->send(fault->link, peer, fault->out, n);
        if (sent < 0 && sent != -EAGAIN)
            sent = n; /* a lasting fault of the link: these frames are lost */
        for (int i = 0; i < sent; i++)
            free(line_pop(fault));
        /* The link is full. fault_due() names a time soon after now. */
        if (sent < n)
            return;
    }
}

/* ---------------------------------------------------------------- late frames */

/* Appends to the list, which is therefore in the order of numbers. `due` serves for a frame that no other overtakes. */
void fault_keep_late(struct fault *fault, struct link_flat *flat, uint64_t number, uint64_t distance)
{
    flat->number = number;
    flat->after = number + distance;
    flat->due = vk_now() + LATE_NS;
    flat->next = NULL;
    struct link_flat **p = &fault->late;
    /* At most LATE_MOST entries, so that a walk to the end costs little. */
    while (*p)
        p = &(*p)->next;
    *p = flat;
    fault->n_late++;
    link_timer(fault->client, flat->due);
}

void fault_forget_late(struct fault *fault, struct link_flat *flat)
{
    struct link_flat **p = &fault->late;
    while (*p != flat)
        p = &(*p)->next;
    *p = flat->next;
    fault->n_late--;
}

/* `next` is read first, because a frame that is sent is freed. A frame that found no room stays in the list for the
 * next poll. */
void fault_send_overdue(struct fault *fault, uint64_t now, int all)
{
    for (struct link_flat *p = fault->late, *next; p; p = next) {
        next = p->next;
        /* Not overtaken yet, and its time has not come. */
        if (!all && p->due > now && p->after >= fault->index)
            continue;
        if (fault_through_line(fault, now)) {
            fault_forget_late(fault, p);
            fault_enqueue(fault, p, p->number, now);
        } else {
            if (fault_send_flat(fault, p) == -EAGAIN)
                continue;
            fault_forget_late(fault, p);
            free(p);
        }
        LINK_COUNT(fault->client, fault_reordered, 1);
    }
}

/* ---------------------------------------------------------------- releasing */

/* The line first, because late frames are to be overtaken. */
void fault_send_all_kept(struct fault *fault)
{
    /* No further fault applies to these frames. VK_NEVER: every due time has passed. */
    fault->active = 0;
    fault_advance_line(fault, VK_NEVER);
    fault_send_overdue(fault, vk_now(), 1);
}

void fault_forget_kept(struct fault *fault, const struct link_peer *peer)
{
    for (struct link_flat *p = fault->late, *next; p; p = next) {
        next = p->next;
        if (peer == NULL || p->peer == peer) {
            fault_forget_late(fault, p);
            free(p);
        }
    }
    /* The line is rebuilt in place from the frames that stay. */
    fault->line_end = &fault->line;
    for (struct link_flat *p = fault->line, *next; p; p = next) {
        next = p->next;
        if (peer == NULL || p->peer == peer) {
            fault->line_bytes -= p->len;
            free(p);
        } else {
            *fault->line_end = p;
            fault->line_end = &p->next;
        }
    }
    *fault->line_end = NULL;
    if (fault->held && (peer == NULL || fault->held->peer == peer)) {
        free(fault->held);
        fault->held = NULL;
    }
}
