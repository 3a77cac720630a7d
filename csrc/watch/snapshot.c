/*
 * Snapshots: the current state of a NIC and of everything on it, as JSON, described in docs/inspect.md.
 *
 *   note    in the NIC: one function per kind of object lists its fields, as items of a name, a form and a value
 *   text    afterwards and without the NIC: the items become text
 *
 *    {"schema":"viakit.snapshot/1","pid":...,"device":"shm",..., "counters":{...},
 *     "vis":[{"handle":"0x...","state":"connected","peer":{...},"transmitter":{...},"receiver":{...},
 *             "send":{"posted":0,"done":0,...,"descriptors":[...]},"recv":{...},"counters":{...}}],
 *     "cqs":[...],"regions":[...],"ptags":[...],"connections":[...]}
 *
 * A snapshot must not disturb the program. The NIC is held only while plain words are noted in memory that was
 * allocated before; if the items are more than fit, this is repeated with more memory. The NIC is entered in the same
 * way as its own thread enters it: a program's thread that uses the NIC keeps its bias (own.h), and nothing is driven,
 * completed or counted. Descriptors are not read: they belong to the program, which may have unmapped those that are
 * done. The snapshot has the values that the NIC noted when they were posted.
 *
 * Memory of a snapshot: items of equal size, in the order of the text. Bytes of the program take the place of whole
 * items behind the item that has their number:
 *
 *     | OBJECT | "device" BYTES 9 | eth:eth0. ...... | "mtu" NUMBER 1500 | ... | END_OBJECT |
 *                                   ^ items_of(9) items that hold bytes
 *
 * Invariant: n counts every item, also those that did not fit. So one try shows how much the next one needs, and a
 * snapshot is complete if n <= room.
 *
 * Threads: any may take a snapshot of any NIC of the process. via_snapshot_text needs no NIC, and no lock.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/pool.h"
#include "base/text.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/connect/conn.h"
#include "via/data/data.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/own.h"
#include "via/pending.h"
#include "via/vi.h"
#include "via/work.h"
#include "watch/snapshot.h"

#define MOST_DESCRIPTORS 16 /* listed per queue, the oldest; the others are only counted */
#define MOST_CONNS 256      /* listed: unknown peers can make any number of them */
#define FIRST_ROOM 512      /* items, 12 KiB: enough for a NIC with some VIs */

/* The forms of values in JSON. Handles and addresses are strings of hexadecimal digits, because most readers parse
 * JSON's numbers as doubles and lose the lowest bits of 64. */
enum form { OBJECT, LIST, END_OBJECT, END_LIST, NUMBER, BOOL, HEX, NOTHING, ADDRESS, WORD, BYTES };

/* One value, or the beginning or end of a list or object. 24 bytes. */
struct item {
    const char *name; /* NULL: an element of a list */
    uint64_t value; /* WORD: a string of this library. BYTES: their number; the bytes take the place of items behind */
    enum form form;
};

struct snapshot {
    struct item *items; /* [room], allocated and resident before the NIC is entered */
    size_t room, n;     /* n counts also the items that did not fit */
};

/* ---------------------------------------------------------------- noting, as the owner */

/* Appends an item, or only counts it if it does not fit. `name` is a string constant, because it is read after the NIC
 * has been left. All functions note_...() run as the NIC's owner: they allocate nothing and do not fail. */
static void note(struct snapshot *s, const char *name, enum form form, uint64_t value)
{
    if (s->n < s->room)
        s->items[s->n] = (struct item){name, value, form};
    s->n++;
}

/* One function per form of a value. Each takes the value as the NIC has it. */
static void note_number(struct snapshot *s, const char *name, uint64_t value)
{
    note(s, name, NUMBER, value);
}

/* JSON's true and false, so any value but 0 becomes 1. */
static void note_bool(struct snapshot *s, const char *name, int value)
{
    note(s, name, BOOL, value != 0);
}

/* NULL is JSON's null. */
static void note_handle(struct snapshot *s, const char *name, const void *handle)
{
    note(s, name, handle ? HEX : NOTHING, (uintptr_t)handle);
}

/* A station's address: six bytes, in the first six of the value. */
static void note_address(struct snapshot *s, const char *name, const uint8_t address[6])
{
    uint64_t value = 0;
    memcpy(&value, address, 6);
    note(s, name, ADDRESS, value);
}

/* Text of this library that lives as long as it. */
static void note_word(struct snapshot *s, const char *name, const char *word)
{
    note(s, name, WORD, (uintptr_t)word);
}

/* The number of items whose place len bytes take. */
static size_t items_of(size_t len)
{
    return (len + sizeof(struct item) - 1) / sizeof(struct item);
}

/* Bytes that the program or the peer chose, which need not be text. They are copied. */
static void note_bytes(struct snapshot *s, const char *name, const void *bytes, size_t len)
{
    note(s, name, BYTES, len);
    if (s->n + items_of(len) <= s->room)
        memcpy(&s->items[s->n], bytes, len);
    s->n += items_of(len);
}

/* A text that does not live as long as the library, such as a device's name. It is copied. */
static void note_string(struct snapshot *s, const char *name, const char *text)
{
    note_bytes(s, name, text, strlen(text));
}

/* all: also counters that are 0. Most counters of a VI are 0. */
static void note_counters(struct snapshot *s, const uint64_t *values, int all)
{
    note(s, "counters", OBJECT, 0);
    for (int i = 0; i < VIAKIT_N_COUNTERS; i++)
        if (all || values[i])
            note_number(s, viakit_counter_name(i), values[i]);
    note(s, NULL, END_OBJECT, 0);
}

/* The operation of a descriptor, from the bits of its control word that VIPL defines (VIP_CONTROL_OP_*). A receive has
 * none of them. */
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

/* The numbers of descriptors, and the oldest ones as the NIC noted them. The three counts run freely: reaped <= done <=
 * posted, modulo 2^32. The order of the tests for a state matters: a done descriptor was also sent. */
static void note_queue(struct snapshot *s, const char *name, const struct via_queue *q)
{
    note(s, name, OBJECT, 0);
    note_number(s, "posted", q->posted - q->done);
    note_number(s, "done", q->done - q->reaped);
    /* A done descriptor takes space until the program reaps it. */
    note_number(s, "room", VIA_MAX_QUEUE - (q->posted - q->reaped));
    note_handle(s, "cq", q->cq ? vk_pool_handle(q->cq) : NULL);
    note(s, "descriptors", LIST, 0);
    for (uint32_t i = q->reaped; i != q->posted && i - q->reaped < MOST_DESCRIPTORS; i++) {
        const struct via_work *w = &q->work[i & (VIA_MAX_QUEUE - 1)];
        note(s, NULL, OBJECT, 0);
        note_handle(s, "descriptor", w->descriptor);
        note_word(s, "operation", operation_name(q->is_recv, w->control));
        note_word(s, "state",
                  wire_before(i, q->done) ? "done"
                  : w->error              ? "wrong"
                  : q->is_recv            ? "posted"
                  : w->sent               ? "sent"
                  : w->started            ? "being sent"
                                          : "posted");
        note_number(s, "segments", w->seg_count);
        note_number(s, "length", q->is_recv ? w->room : w->len);
        note(s, NULL, END_OBJECT, 0);
    }
    note(s, NULL, END_LIST, 0);
    note(s, NULL, END_OBJECT, 0);
}

/* The peer's fields are kept after the end of a connection, and are void then. */
static void note_peer(struct snapshot *s, const struct via_vi *vi)
{
    if (vi->peer == NULL || (vi->state != VIP_STATE_CONNECTED && vi->state != VIP_STATE_ERROR)) {
        note(s, "peer", NOTHING, 0);
        return;
    }
    note(s, "peer", OBJECT, 0);
    note_address(s, "address", vi->peer_address);
    note_number(s, "port", vi->peer_port);
    note_number(s, "vi", vi->peer_vi);
    note_bool(s, "confirmed", vi->confirmed);
    note(s, NULL, END_OBJECT, 0);
}

/* The parts of a VI that the program and the peer see, and the progress of both directions. No other thread changes
 * them meanwhile, because the caller owns the NIC. */
static void note_vi(struct snapshot *s, const struct via_vi *vi)
{
    /* By VIP_STATE_*, of which there are four. */
    static const char *const states[] = {"idle", "connected", "pending", "error"};
    int level = vi->attributes.ReliabilityLevel; /* one of the three bits is set (VipCreateVi ensures that) */
    note(s, NULL, OBJECT, 0);
    note_handle(s, "handle", vk_pool_handle(vi));
    note_number(s, "number", vi->number);
    note_word(s, "state", states[vi->state & 3]);
    note_word(s, "level",
              level == VIP_SERVICE_UNRELIABLE          ? "unreliable"
              : level == VIP_SERVICE_RELIABLE_DELIVERY ? "reliable delivery"
                                                       : "reliable reception");
    note_number(s, "ptag", vi->ptag);
    note_bool(s, "rdma_write", vi->attributes.EnableRdmaWrite != VIP_FALSE);
    note_bool(s, "rdma_read", vi->attributes.EnableRdmaRead != VIP_FALSE);
    note_number(s, "max_transfer_size", vi->attributes.MaxTransferSize);
    note_peer(s, vi);
    /* Assigned and unacknowledged numbers, and the window: tx.c and reliable.c. */
    note(s, "transmitter", OBJECT, 0);
    note_number(s, "next_psn", vi->next_psn);
    note_number(s, "unacknowledged_psn", vi->una_psn);
    note_number(s, "in_flight", vi->flight_tail - vi->flight_head);
    note_number(s, "window", vi->window);
    note_number(s, "payload", vi->chunk);
    note_number(s, "rto_us", vi->rto / VK_US);
    note_number(s, "srtt_us", vi->rtt.smoothed / VK_US);
    note_number(s, "rttvar_us", vi->rtt.variation / VK_US);
    note_number(s, "reads_open", via_reads_open(vi));
    note_number(s, "retries", vi->retries);
    note_bool(s, "lossless", vi->lossless);
    note(s, NULL, END_OBJECT, 0);
    /* The next expected number, and the last one acknowledged to the peer: rx.c. */
    note(s, "receiver", OBJECT, 0);
    note_number(s, "expected_psn", vi->expected_psn);
    note_number(s, "acknowledged_psn", vi->acked_psn);
    note(s, NULL, END_OBJECT, 0);
    note_queue(s, "send", &vi->send);
    note_queue(s, "recv", &vi->recv);
    note_counters(s, vi->counters, 0);
    note(s, NULL, END_OBJECT, 0);
}

/* users: peers that read or write the region directly at present (shm). They register in the table that they can see,
 * not in the NIC's own. */
static void note_region(struct snapshot *s, const struct via_nic *nic, uint32_t i)
{
    const struct via_region *r = &nic->regions[i];
    note(s, NULL, OBJECT, 0);
    note(s, "handle", HEX, r->handle);
    note(s, "address", HEX, r->address);
    note_number(s, "length", r->len);
    note_number(s, "ptag", r->ptag);
    note_bool(s, "rdma_write", r->rights & VIA_RIGHT_WRITE);
    note_bool(s, "rdma_read", r->rights & VIA_RIGHT_READ);
    note_bool(s, "pinned", r->pinned);
    note_number(s, "writers", nic->published ? vk_load_relaxed(&nic->published[i].users) : 0);
    note(s, NULL, END_OBJECT, 0);
}

/* One connection that is neither idle nor connected. address NULL: none. port 0: any NIC of that station. `vi` NULL: no
 * VI is assigned yet. The discriminator is cut at WIRE_MAX_DISCRIMINATOR bytes. */
static void note_conn(struct snapshot *s, const char *state, const struct via_vi *vi, const uint8_t *address,
                      uint16_t port, const void *discriminator, size_t len)
{
    note(s, NULL, OBJECT, 0);
    note_word(s, "state", state);
    note_handle(s, "vi", vi ? vk_pool_handle(vi) : NULL);
    if (address) {
        note_address(s, "address", address);
        note_number(s, "port", port);
    }
    note_bytes(s, "discriminator", discriminator, len < WIRE_MAX_DISCRIMINATOR ? len : WIRE_MAX_DISCRIMINATOR);
    note(s, NULL, END_OBJECT, 0);
}

/* A REQUEST of this NIC: its target and its discriminator, which follows the connection block. */
static void note_request(struct snapshot *s, const char *state, const struct via_vi *vi, const uint8_t *address,
                         const struct link_frame *f)
{
    note_conn(s, state, vi, address, 0, f->block.bytes + sizeof f->block.connect, f->block.connect.wanted_len);
}

/* Waiting calls, own requests, and requests that arrived. At most MOST_CONNS together, in this order, so that a flood
 * of requests cannot hide the program's own calls. */
static void note_conns(struct snapshot *s, struct via_nic *nic)
{
    static const char *const names[] = {
        [VIA_CONN_OFFERED] = "offered",
        [VIA_CONN_ACCEPTED] = "accepted",
        [VIA_CONN_REJECTED] = "rejected",
        [VIA_CONN_CANCELLED] = "withdrawn",
    };
    int left = MOST_CONNS;
    for (struct via_waiter *w = nic->waiters; w && left; w = w->next, left--)
        note_conn(s, "waiting", NULL, NULL, 0, w->discriminator, w->len);
    for (struct via_request *r = nic->requests; r && left; r = r->next, left--)
        note_request(s, r->offered ? "being answered" : "requesting", r->vi, r->address, &r->frame);
    for (struct via_peering *p = nic->peerings; p && left; left--) {
        struct via_vi *vi;
        const uint8_t *address;
        const struct link_frame *f;
        p = conn_peer_inspect(p, &vi, &address, &f);
        note_request(s, "peer request", vi, address, f);
    }
    for (const struct via_conn *c = nic->conns; c && left; c = c->next, left--)
        note_conn(s, c->held ? "to be answered" : names[c->state], c->accepted, c->address, c->port,
                  c->own_discriminator, c->remote.own_len);
}

/* The information of viakit_query_nic, and the waiting and sleeping threads. docs/inspect.md describes each item, so a
 * new one is added there, too. */
static void note_info(struct snapshot *s, struct via_nic *nic)
{
    /* By nic->sleeper. */
    static const char *const sleepers[] = {"none", "the NIC's thread", "a waiting call"};
    viakit_nic_info i;
    via_nic_info(nic, &i);
    /* Fields may be added under the same schema number; the meaning of a field does not change. */
    note_word(s, "schema", "viakit.snapshot/1");
    note_number(s, "pid", (uint64_t)nic->pid);
    note_number(s, "time_ns", vk_now());
    note_handle(s, "handle", vk_pool_handle(nic));
    note_string(s, "device", i.device);
    note_string(s, "link", i.link);
    note_string(s, "interface", i.interface);
    note_string(s, "form", i.form);
    note_address(s, "address", i.address);
    note_number(s, "port", i.port);
    note_number(s, "mtu", i.mtu);
    note_number(s, "max_payload", i.max_payload);
    note_number(s, "super_payload", i.super_payload);
    note_number(s, "ring_slots", i.ring_slots);
    note_number(s, "window", i.window);
    note_bool(s, "lossless", i.lossless);
    note_bool(s, "thread", i.thread);
    note_string(s, "trouble", i.trouble);
    note_number(s, "bytes_registered", i.bytes_registered);
    note_number(s, "bytes_pinned", i.bytes_pinned);
    note_number(s, "waiting_calls", nic->n_waiting);
    note_word(s, "asleep", sleepers[nic->sleeper % 3]);
    note_number(s, "errors_to_report", nic->events_tail - nic->events_head);
}

/* Notes the NIC, its counters, then a list for each kind of object on it. */
static void note_nic(struct snapshot *s, struct via_nic *nic)
{
    /* Summed as in viakit_nic_counters; the VIs' shares follow with the VIs. */
    uint64_t counters[VIAKIT_N_COUNTERS];
    memcpy(counters, nic->counters, sizeof counters);
    counters[VIAKIT_COUNTER_polls] = nic->polls;
    counters[VIAKIT_COUNTER_lock_waits] = nic->own.waits;
    for (const struct via_vi *vi = nic->vis; vi; vi = vi->next)
        via_add_counters(counters, vi);
    s->n = 0;
    note(s, NULL, OBJECT, 0);
    note_info(s, nic);
    note_counters(s, counters, 1);
    note(s, "vis", LIST, 0);
    for (const struct via_vi *vi = nic->vis; vi; vi = vi->next)
        note_vi(s, vi);
    note(s, NULL, END_LIST, 0);
    note(s, "cqs", LIST, 0);
    for (const struct via_cq *cq = nic->cqs; cq; cq = cq->next) {
        note(s, NULL, OBJECT, 0);
        note_handle(s, "handle", vk_pool_handle(cq));
        note_number(s, "capacity", cq->capacity);
        note_number(s, "entries", cq->tail - cq->head);
        note_number(s, "queues", cq->n_queues);
        note(s, NULL, END_OBJECT, 0);
    }
    note(s, NULL, END_LIST, 0);
    note(s, "regions", LIST, 0);
    /* From index 1 on, up to the highest that was ever used: holes are free entries. */
    for (uint32_t i = 1; i < nic->region_touched; i++)
        if (nic->regions[i].handle)
            note_region(s, nic, i);
    note(s, NULL, END_LIST, 0);
    note(s, "ptags", LIST, 0);
    for (uint32_t i = 1, n = 0; i < VIA_MAX_PTAGS && n < nic->n_ptags; i++)
        if (nic->ptags[i]) {
            note(s, NULL, OBJECT, 0);
            note_number(s, "number", i);
            note_number(s, "users", nic->ptags[i]->n_users);
            note(s, NULL, END_OBJECT, 0);
            n++;
        }
    note(s, NULL, END_LIST, 0);
    note(s, "connections", LIST, 0);
    note_conns(s, nic);
    note(s, NULL, END_LIST, 0);
    note(s, NULL, END_OBJECT, 0);
}

/* ---------------------------------------------------------------- taking */

/* NULL is allowed. */
void via_snapshot_free(struct snapshot *s)
{
    if (s)
        free(s->items);
    free(s);
}

/* Makes room for n items and some to spare. Returns 0 if memory is exhausted. An eighth is to spare, because the
 * program may create objects between two tries. The earlier items are lost. */
static int make_room(struct snapshot *s, size_t n)
{
    free(s->items);
    s->room = n + n / 8;
    s->items = malloc(s->room * sizeof *s->items);
    if (s->items)
        memset(s->items, 0, s->room * sizeof *s->items); /* the kernel maps the pages now, not while the NIC is held */
    return s->items != NULL;
}

/* Repeats with as much memory as was counted, until no object was added in between. No bound on the tries is needed:
 * each has at least an eighth more room than the program needed at the last. NULL: *code has the reason. */
struct snapshot *via_snapshot_take(VIP_NIC_HANDLE handle, VIP_RETURN *code)
{
    struct snapshot *s = calloc(1, sizeof *s);
    size_t need = FIRST_ROOM;
    for (;;) {
        if (s == NULL || !make_room(s, need)) {
            *code = vk_fail(VIP_ERROR_RESOURCE, "viakit_snapshot: memory is exhausted");
            break;
        }
        struct via_nic *nic = via_nic_enter_quietly(handle, code);
        if (nic == NULL)
            break;
        note_nic(s, nic);
        via_own_leave_slow(&nic->own);
        if (s->n <= s->room)
            return s;
        need = s->n;
    }
    via_snapshot_free(s);
    return NULL;
}

/* ---------------------------------------------------------------- text */

/* Any byte that is not plain ASCII is written as an escape for the character of that value. So the text is ASCII, and
 * valid JSON whatever the bytes are. A reader gets byte 0xNN back as the character U+00NN. */
static void put_bytes(struct vk_text *o, const unsigned char *p, size_t len)
{
    vk_put(o, "\"");
    for (size_t i = 0; i < len; i++)
        vk_put(o, p[i] < 0x80 && isprint(p[i]) && p[i] != '"' && p[i] != '\\' ? "%c" : "\\u%04x", p[i]);
    vk_put(o, "\"");
}

/* Writes an item's value; the bytes of BYTES stand behind the item. */
static void put_value(struct vk_text *o, const struct item *i)
{
    static const char *const brackets[] = {[OBJECT] = "{", [LIST] = "[", [END_OBJECT] = "}", [END_LIST] = "]"};
    uint8_t a[sizeof i->value];
    switch (i->form) {
    case OBJECT:
    case LIST:
    case END_OBJECT:
    case END_LIST:
        vk_put(o, "%s", brackets[i->form]);
        break;
    case NUMBER:
        vk_put(o, "%llu", (unsigned long long)i->value);
        break;
    case BOOL:
        vk_put(o, "%s", i->value ? "true" : "false");
        break;
    case HEX:
        vk_put(o, "\"0x%llx\"", (unsigned long long)i->value);
        break;
    case NOTHING:
        vk_put(o, "null");
        break;
    case ADDRESS:
        memcpy(a, &i->value, sizeof a);
        vk_put(o, "\"%02x:%02x:%02x:%02x:%02x:%02x\"", a[0], a[1], a[2], a[3], a[4], a[5]);
        break;
    case WORD:
        vk_put(o, "\"%s\"", (const char *)(uintptr_t)i->value);
        break;
    case BYTES:
        put_bytes(o, (const unsigned char *)(i + 1), (size_t)i->value);
        break;
    }
}

/*   { "vis": [ {...} , {...} ] }      each opening brace or bracket sets `first`, each element clears it; closing one
 *                                     ends an element of the enclosing list or object */
size_t via_snapshot_text(const struct snapshot *s, char *text, size_t size)
{
    struct vk_text o = {text, size, 0};
    int first = 1; /* nothing written yet in the innermost list or object */
    for (size_t k = 0; k < s->n; k++) {
        const struct item *i = &s->items[k];
        int ends = i->form == END_OBJECT || i->form == END_LIST;
        if (!first && !ends)
            vk_put(&o, ",");
        if (i->name)
            vk_put(&o, "\"%s\":", i->name);
        put_value(&o, i);
        first = i->form == OBJECT || i->form == LIST;
        k += i->form == BYTES ? items_of((size_t)i->value) : 0;
    }
    return o.len;
}

/* *len is the text's length, also if it did not fit. Then the result is VIP_ERROR_RESOURCE, and the buffer has the
 * beginning of the text. */
VIP_RETURN viakit_snapshot(VIP_NIC_HANDLE handle, char *text, size_t size, size_t *len)
{
    VIP_RETURN code;
    if (len == NULL || (text == NULL && size))
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_snapshot: the buffer or the pointer to the length is NULL");
    struct snapshot *s = via_snapshot_take(handle, &code);
    if (s == NULL)
        return code;
    *len = via_snapshot_text(s, text, size);
    via_snapshot_free(s);
    if (*len >= size)
        return vk_fail(VIP_ERROR_RESOURCE, "viakit_snapshot: the text has %zu bytes and the buffer %zu", *len + 1,
                       size);
    return VIP_SUCCESS;
}
