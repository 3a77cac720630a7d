/*
 * A snapshot in words: JSON, described in docs/inspect.md. One writer function per kind of object; the writer counts
 * on when the buffer is full, so that the caller learns how much room is wanted.
 *
 * Numbers are JSON numbers, handles and addresses hexadecimal strings, names those of vipl.h without their prefix.
 *
 *    {"schema":"viakit.snapshot/1","pid":...,"device":"shm",..., "counters":{...},
 *     "vis":[{"handle":"0x...","state":"connected","peer":{...},"transmitter":{...},"receiver":{...},
 *             "send":{"posted":0,"done":0,...,"descriptors":[...]},"recv":{...},"counters":{...}}],
 *     "cqs":[...],"regions":[...],"ptags":[...],"connections":[...]}
 */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "snapshot.h"

/*    { "vis": [ {...} , {...} ] }      each brace or bracket makes `first` true, each element false;
 *                                      closing one ends an element of what is around it */
struct out {
    char *text;
    size_t size, len;
    int first; /* nothing yet in the innermost list or object */
};

/* As snprintf: what does not fit is counted and not written. */
static void put(struct out *o, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct out *o, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    int n =
        vsnprintf(o->len < o->size ? o->text + o->len : NULL, o->len < o->size ? o->size - o->len : 0, format, list);
    va_end(list);
    if (n > 0)
        o->len += (size_t)n;
}

/* Text that is ours, so that nothing in it needs an escape. */
static void put_plain(struct out *o, const char *text)
{
    put(o, "%s", text);
}

/* "{" or "[": what comes next is the first in it. */
static void open_with(struct out *o, const char *bracket)
{
    put_plain(o, bracket);
    o->first = 1;
}

/* "}" or "]": what is around it has an element now. */
static void close_with(struct out *o, const char *bracket)
{
    put_plain(o, bracket);
    o->first = 0;
}

/* The comma before the next element, and its name if it has one. */
static void next(struct out *o, const char *name)
{
    put_plain(o, o->first ? "" : ",");
    o->first = 0;
    if (name)
        put(o, "\"%s\":", name);
}

static void put_number(struct out *o, const char *name, uint64_t value)
{
    next(o, name);
    put(o, "%llu", (unsigned long long)value);
}

static void put_bool(struct out *o, const char *name, int value)
{
    next(o, name);
    put_plain(o, value ? "true" : "false");
}

/* As a string: JSON's numbers are doubles to most readers, and lose the lowest bits of 64. */
static void put_hex(struct out *o, const char *name, uint64_t value)
{
    next(o, name);
    put(o, "\"0x%llx\"", (unsigned long long)value);
}

/* NULL is JSON's null. */
static void put_handle(struct out *o, const char *name, const void *handle)
{
    if (handle)
        put_hex(o, name, (uint64_t)(uintptr_t)handle);
    else {
        next(o, name);
        put_plain(o, "null");
    }
}

/* Bytes that somebody else chose: whatever is not plain ASCII is written as an escape for one character of that
 * value. */
static void put_text(struct out *o, const char *name, const void *bytes, size_t len)
{
    const unsigned char *p = bytes;
    next(o, name);
    put_plain(o, "\"");
    for (size_t i = 0; i < len; i++)
        put(o, p[i] < 0x80 && isprint(p[i]) && p[i] != '"' && p[i] != '\\' ? "%c" : "\\u%04x", p[i]);
    put_plain(o, "\"");
}

static void put_string(struct out *o, const char *name, const char *text)
{
    put_text(o, name, text, strlen(text));
}

static void put_address(struct out *o, const char *name, const uint8_t a[6])
{
    next(o, name);
    put(o, "\"%02x:%02x:%02x:%02x:%02x:%02x\"", a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* all: those that are 0 as well. Of a VI most are 0. */
static void put_counters(struct out *o, const uint64_t *values, int all)
{
    next(o, "counters");
    open_with(o, "{");
    for (int i = 0; i < VIAKIT_N_COUNTERS; i++)
        if (all || values[i])
            put_number(o, viakit_counter_name(i), values[i]);
    close_with(o, "}");
}

/* Of the three bits one is set (VipCreateVi sees to that). */
static const char *level_name(int level)
{
    return level == VIP_SERVICE_UNRELIABLE          ? "unreliable"
           : level == VIP_SERVICE_RELIABLE_DELIVERY ? "reliable delivery"
                                                    : "reliable reception";
}

static const char *operation_name(int is_recv, uint16_t control)
{
    switch (control & VIP_CONTROL_OP_MASK) {
    case VIP_CONTROL_OP_RDMAWRITE:
        return "RDMA write";
    case VIP_CONTROL_OP_RDMAREAD:
        return "RDMA read";
    default:
        return is_recv ? "receive" : "send";
    }
}

/* The descriptors listed are the oldest. The order of the questions about one's state matters: what is done was
 * sent, too. */
static void put_queue(struct out *o, const char *name, const struct snap_queue *q, int is_recv)
{
    next(o, name);
    open_with(o, "{");
    put_number(o, "posted", q->n_posted);
    put_number(o, "done", q->n_done);
    /* What is done takes a place until the program takes it back. */
    put_number(o, "room", VIA_MAX_QUEUE - q->n_posted - q->n_done);
    put_handle(o, "cq", q->cq);
    next(o, "descriptors");
    open_with(o, "[");
    for (uint32_t i = 0; i < q->n_listed; i++) {
        const struct snap_work *w = &q->work[i];
        next(o, NULL);
        open_with(o, "{");
        put_handle(o, "descriptor", w->descriptor);
        put_string(o, "operation", operation_name(is_recv, w->control));
        put_string(o, "state",
                   w->done      ? "done"
                   : w->error   ? "wrong"
                   : is_recv    ? "posted"
                   : w->sent    ? "sent"
                   : w->started ? "being sent"
                                : "posted");
        put_number(o, "segments", w->seg_count);
        put_number(o, "length", w->len);
        close_with(o, "}");
    }
    close_with(o, "]");
    close_with(o, "}");
}

static void put_vi(struct out *o, const struct snap_vi *vi)
{
    /* By VIP_STATE_*, of which there are four. */
    static const char *const states[] = {"idle", "connected", "pending", "error"};
    next(o, NULL);
    open_with(o, "{");
    put_handle(o, "handle", vi->handle);
    put_number(o, "number", vi->number);
    put_string(o, "state", states[vi->state & 3]);
    put_string(o, "level", level_name(vi->attributes.ReliabilityLevel));
    put_number(o, "ptag", vi->ptag);
    put_bool(o, "rdma_write", vi->attributes.EnableRdmaWrite != VIP_FALSE);
    put_bool(o, "rdma_read", vi->attributes.EnableRdmaRead != VIP_FALSE);
    put_number(o, "max_transfer_size", vi->attributes.MaxTransferSize);
    next(o, "peer");
    if (vi->has_peer) {
        open_with(o, "{");
        put_address(o, "address", vi->peer_address);
        put_number(o, "port", vi->peer_port);
        put_number(o, "vi", vi->peer_vi);
        put_bool(o, "confirmed", vi->confirmed);
        close_with(o, "}");
    } else
        put_plain(o, "null");
    /* What was given out and not acknowledged, and how much may be: tx.c and reliable.c. */
    next(o, "transmitter");
    open_with(o, "{");
    put_number(o, "next_psn", vi->next_psn);
    put_number(o, "unacknowledged_psn", vi->una_psn);
    put_number(o, "in_flight", vi->n_in_flight);
    put_number(o, "window", vi->window);
    put_number(o, "payload", vi->chunk);
    put_number(o, "rto_us", vi->rto / VK_US);
    put_number(o, "srtt_us", vi->srtt / VK_US);
    put_number(o, "rttvar_us", vi->rttvar / VK_US);
    put_number(o, "reads_open", vi->n_reads);
    put_number(o, "retries", vi->retries);
    put_bool(o, "lossless", vi->lossless);
    close_with(o, "}");
    /* Whose turn it is, and what the peer has been told of it: rx.c. */
    next(o, "receiver");
    open_with(o, "{");
    put_number(o, "expected_psn", vi->expected_psn);
    put_number(o, "acknowledged_psn", vi->acked_psn);
    close_with(o, "}");
    put_queue(o, "send", &vi->send, 0);
    put_queue(o, "recv", &vi->recv, 1);
    put_counters(o, vi->counters, 0);
    close_with(o, "}");
}

/* users: peers that read or write it directly at this moment (shm). */
static void put_region(struct out *o, const struct snap_region *r)
{
    next(o, NULL);
    open_with(o, "{");
    put_hex(o, "handle", r->handle);
    put_hex(o, "address", r->address);
    put_number(o, "length", r->len);
    put_number(o, "ptag", r->ptag);
    put_bool(o, "rdma_write", (r->rights & VIA_RIGHT_WRITE) != 0);
    put_bool(o, "rdma_read", (r->rights & VIA_RIGHT_READ) != 0);
    put_bool(o, "pinned", r->pinned != 0);
    put_number(o, "writers", r->users);
    close_with(o, "}");
}

/* The kind is the state's name already (snapshot.c). */
static void put_conn(struct out *o, const struct snap_conn *c)
{
    next(o, NULL);
    open_with(o, "{");
    put_string(o, "state", c->kind);
    put_handle(o, "vi", c->vi);
    if (c->has_address) {
        put_address(o, "address", c->address);
        put_number(o, "port", c->port);
    }
    put_text(o, "discriminator", c->discriminator, c->len);
    close_with(o, "}");
}

/* What viakit_query_nic tells, and who waits and sleeps. */
static void put_nic(struct out *o, const struct snapshot *s)
{
    /* By nic->sleeper. */
    static const char *const sleepers[] = {"nobody", "the NIC's thread", "a waiting call"};
    const viakit_nic_info *i = &s->info;
    /* Fields may be added under the same number; what one means does not change. */
    put_string(o, "schema", "viakit.snapshot/1");
    put_number(o, "pid", (uint64_t)s->pid);
    put_number(o, "time_ns", s->time_ns);
    put_handle(o, "handle", s->handle);
    put_string(o, "device", i->device);
    put_string(o, "link", i->link);
    put_string(o, "interface", i->interface);
    put_string(o, "form", i->form);
    put_address(o, "address", i->address);
    put_number(o, "port", i->port);
    put_number(o, "mtu", i->mtu);
    put_number(o, "max_payload", i->max_payload);
    put_number(o, "super_payload", i->super_payload);
    put_number(o, "ring_slots", i->ring_slots);
    put_number(o, "window", i->window);
    put_bool(o, "lossless", i->lossless);
    put_bool(o, "thread", i->thread);
    put_number(o, "bytes_registered", i->bytes_registered);
    put_number(o, "bytes_pinned", i->bytes_pinned);
    put_number(o, "waiting_calls", s->n_waiting);
    put_string(o, "asleep", sleepers[s->sleeper % 3]);
    put_number(o, "errors_to_report", s->n_events);
}

/* One object: what the NIC is, its counters, then a list for each kind of thing that lives on it. */
size_t via_snapshot_text(const struct snapshot *s, char *text, size_t size)
{
    struct out o = {text, size, 0, 1};
    open_with(&o, "{");
    put_nic(&o, s);
    put_counters(&o, s->counters, 1);
    next(&o, "vis");
    open_with(&o, "[");
    for (uint32_t i = 0; i < s->n_vis; i++)
        put_vi(&o, &s->vis[i]);
    close_with(&o, "]");
    next(&o, "cqs");
    open_with(&o, "[");
    for (uint32_t i = 0; i < s->n_cqs; i++) {
        next(&o, NULL);
        open_with(&o, "{");
        put_handle(&o, "handle", s->cqs[i].handle);
        put_number(&o, "capacity", s->cqs[i].capacity);
        put_number(&o, "entries", s->cqs[i].n_entries);
        put_number(&o, "queues", s->cqs[i].n_queues);
        close_with(&o, "}");
    }
    close_with(&o, "]");
    next(&o, "regions");
    open_with(&o, "[");
    for (uint32_t i = 0; i < s->n_regions; i++)
        put_region(&o, &s->regions[i]);
    close_with(&o, "]");
    next(&o, "ptags");
    open_with(&o, "[");
    for (uint32_t i = 0; i < s->n_ptags; i++) {
        next(&o, NULL);
        open_with(&o, "{");
        put_number(&o, "number", s->ptags[i].number);
        put_number(&o, "users", s->ptags[i].n_users);
        close_with(&o, "}");
    }
    close_with(&o, "]");
    next(&o, "connections");
    open_with(&o, "[");
    for (uint32_t i = 0; i < s->n_conns; i++)
        put_conn(&o, &s->conns[i]);
    close_with(&o, "]");
    close_with(&o, "}");
    return o.len;
}
