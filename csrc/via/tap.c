/*
 * What a tap records. Frames on their way out are seen by standing between the provider and its link: the tap has an
 * ops table of its own, the link's with the sending operations replaced, and stands below whatever loses or doubles
 * frames on purpose, so that a capture shows what was really handed to the wire. Frames on their way in are seen in
 * link_deliver (rx.c): a tapped NIC's whole_message matches nothing, so that all of them go the long way, where the tap
 * is asked for. The life of descriptors is told by the hooks.
 *
 * All of it runs under the NIC's ownership; that makes the owner the ring's only producer. Nothing here waits: a full
 * ring loses records.
 *
 * The events of one message, and which side's tap sees them:
 *
 *       sender                                       receiver
 *    POSTED        VipPostSend took it            POSTED      VipPostRecv took a receive
 *    DOORBELL      its turn: numbers given out
 *       frames --------------------------------> PLACED      a frame's bytes are in memory
 *    ACKNOWLEDGED  the peer has all before psn    COMPLETED   the last one was there
 *    COMPLETED     status written                 REAPED      VipRecvDone gave it back
 *    REAPED        VipSendDone gave it back
 */
#include "tap.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "../base/crc32c.h"
#include "../link/fault.h"

/* Unless the options say otherwise (ring_bytes). */
#define RING_BYTES (8u << 20)
#define LEAST_SNAP 48u /* the wire header and an RDMA block */

/* ---------------------------------------------------------------- records */

/* Copies up to `room` bytes of the pieces; returns how many. */
static uint32_t copy_pieces(uint8_t *to, uint32_t room, const struct iovec *iov, uint32_t n)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < n && used < room; i++) {
        uint32_t part = iov[i].iov_len < room - used ? (uint32_t)iov[i].iov_len : room - used;
        if (part)
            memcpy(to + used, iov[i].iov_base, part);
        used += part;
    }
    return used;
}

/* A frame of len bytes in pieces. The record, not yet shown, or NULL if it was lost. */
static struct tap_frame *record_frame(struct via_tap *tap, uint64_t time, size_t len, const struct iovec *iov,
                                      uint32_t n)
{
    /* snap_len 0: all of it. */
    uint32_t keep = tap->snap_len && tap->snap_len < len ? tap->snap_len : (uint32_t)len;
    struct tap_frame *r = vk_ring_reserve(&tap->ring, (uint32_t)sizeof *r + keep, TAP_FRAME);
    if (r == NULL)
        return NULL;
    r->time = time;
    r->lost = (uint32_t)tap->ring.lost;
    r->note = NULL;
    r->len = (uint32_t)len;
    r->captured = copy_pieces(r->bytes, keep, iov, n);
    return r;
}

/* Zeroes where a link has no addresses of peers to tell. */
static void address_of(struct via_nic *nic, struct link_peer *peer, uint8_t address[6])
{
    if (nic->tap->real->peer_address)
        nic->tap->real->peer_address(peer, address);
    else
        memset(address, 0, 6);
}

/* A frame that the link has taken, with its bytes and what is to be said of it. No room in the ring: counted as lost
 * there, nothing else. */
static void record_sent(struct via_tap *tap, uint64_t time, const uint8_t to[6], const struct iovec *iov, uint32_t n,
                        const char *note)
{
    size_t len = 0;
    for (uint32_t i = 0; i < n; i++)
        len += iov[i].iov_len;
    struct tap_frame *r = tap->frames ? record_frame(tap, time, len, iov, n) : NULL;
    if (r == NULL)
        return;
    r->out = 1;
    r->note = note;
    memcpy(r->to, to, 6);
    memcpy(r->from, tap->nic->limits.address, 6);
    tap->n_sent++;
    vk_ring_show(&tap->ring);
}

/* The same of a frame in the provider's form: header, block and pieces. */
static void record_link_frame(struct via_tap *tap, uint64_t time, const uint8_t to[6], const struct link_frame *f,
                              const char *note)
{
    struct iovec iov[2 + VIA_MAX_SEGMENTS];
    uint32_t n = 2;
    iov[0] = (struct iovec){(void *)(uintptr_t)&f->header, sizeof f->header};
    iov[1] = (struct iovec){(void *)(uintptr_t)&f->block, f->header_len - sizeof f->header};
    for (uint32_t i = 0; i < f->n_iov && n < 2 + VIA_MAX_SEGMENTS; i++)
        iov[n++] = f->iov[i];
    record_sent(tap, time, to, iov, n, note);
}

/* Everything of an event but what its kind is about. */
static viakit_event *record_event(struct via_vi *vi, int kind)
{
    struct via_tap *tap = vi->nic->tap;
    struct tap_event *r = tap->events ? vk_ring_reserve(&tap->ring, sizeof *r, TAP_EVENT) : NULL;
    if (r == NULL)
        return NULL;
    r->time = vk_now();
    r->lost = tap->ring.lost;
    memset(&r->event, 0, sizeof r->event);
    r->event.version = 1;
    r->event.kind = (uint8_t)kind;
    r->event.vi = vi->number;
    r->event.key = vi->key;
    tap->n_events++;
    return &r->event;
}

/* ---------------------------------------------------------------- between the provider and its link */

/* Every link's struct begins with its NIC (link.h). */
static inline struct via_tap *tap_of(struct link *link)
{
    return ((struct link_base *)(void *)link)->nic->tap;
}

/* Stands in place of the link's own operation in the table of a tapped NIC. The time is taken before, for the frame is
 * on its way when the call returns; what is recorded is what was taken, after it. */
static int tap_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct via_tap *tap = tap_of(link);
    /* The link counts super-frames: whether the counter has moved tells how these frames have left. */
    uint64_t now = vk_now(), *super = &tap->nic->counters[VIAKIT_COUNTER_super_frames_sent], before = *super;
    uint8_t to[6];
    address_of(tap->nic, peer, to);
    int sent = tap->real->send(link, peer, frames, n); /* before: the link fills in checksums */
    const char *note = *super != before ? "left as part of a super-frame" : tap->remark;
    for (int i = 0; i < sent; i++)
        record_link_frame(tap, now, to, &frames[i], note);
    return sent;
}

/* Only the header's words are here: the VI is looked up by its number, and the DOORBELL event, which the short way does
 * not make, is made here. */
static int tap_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                          const void *payload, size_t len)
{
    struct via_tap *tap = tap_of(link);
    uint64_t begun = vk_now();
    if (!tap->real->send_short(link, peer, header, payload, len))
        return 0;
    uint32_t number = (uint32_t)(header[1] >> 16) & 0xFFFF;
    struct via_vi *vi = number < VIA_MAX_VI ? tap->nic->vi_by_number[number] : NULL;
    /* The event lies within its record: from one back to the other, to put in the time from before the call. */
    viakit_event *e = vi ? record_event(vi, VIAKIT_EVENT_DOORBELL) : NULL;
    if (e) {
        struct tap_event *r = (struct tap_event *)(void *)((char *)e - offsetof(struct tap_event, event));
        r->time = begun;
        e->index = vi->send.next;
        e->psn = (uint32_t)header[2];
        e->n_frames = 1;
        e->len = (uint32_t)len;
        vk_ring_show(&tap->ring);
    }
    struct wire_header h;
    struct iovec iov[2] = {{&h, sizeof h}, {(void *)(uintptr_t)payload, len}};
    uint8_t to[6];
    memcpy(&h, header, sizeof h);
    if (tap->nic->limits.checksum) { /* the link made it in a copy of its own */
        h.flags |= WIRE_FLAG_CRC;
        h.crc = vk_crc32c(vk_crc32c(0, &h, sizeof h), payload, len);
    }
    address_of(tap->nic, peer, to);
    record_sent(tap, begun, to, iov, 2, NULL);
    return 1;
}

/* One record for all that were asked; 0 means that nothing was sent. */
static int tap_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    struct via_tap *tap = tap_of(link);
    uint64_t now = vk_now();
    int asked = tap->real->ask_all(link, address, frame);
    if (asked && asked != LINK_ONLY_US)
        record_link_frame(tap, now, address, frame, NULL);
    return asked;
}

void link_remark(struct via_nic *nic, const char *remark)
{
    if (nic->tap)
        nic->tap->remark = remark;
}

void link_note_lost(struct via_nic *nic, struct link_peer *peer, const struct link_frame *frame, const char *why)
{
    uint8_t to[6];
    if (nic->tap == NULL)
        return;
    address_of(nic, peer, to);
    record_link_frame(nic->tap, vk_now(), to, frame, why);
}

/* ---------------------------------------------------------------- arriving */

/* Before the frame is looked at: it is copied as it came, and the counters are kept, to see afterwards what became of
 * it. */
void via_tap_arrived(struct via_nic *nic, struct via_tap_arrival *a, const uint8_t from[6], const void *header,
                     size_t header_len, const void *payload, size_t len)
{
    struct via_tap *tap = nic->tap;
    struct wire_header h;
    a->frame = NULL;
    a->vi = NULL;
    vk_ring_hold(&tap->ring); /* the reason comes later */
    if (!tap->frames)
        return;
    struct iovec iov[2] = {{(void *)(uintptr_t)header, header_len}, {(void *)(uintptr_t)payload, len}};
    /* Held back (vk_ring_hold), so the writer does not see it before its note is written. */
    a->frame = record_frame(tap, vk_now(), header_len + len, iov, 2);
    if (a->frame == NULL)
        return;
    a->frame->out = 0;
    memcpy(a->frame->to, nic->limits.address, 6);
    memcpy(a->frame->from, from, 6);
    tap->n_received++;
    memcpy(a->nic_counts, nic->counters, sizeof a->nic_counts);
    /* The VI that the header names, whether the frame turns out to be its or not: its counters may be those that
     * move. */
    if (header_len + len < sizeof h)
        return;
    copy_pieces((uint8_t *)&h, sizeof h, iov, 2);
    a->vi = h.dst_vi < VIA_MAX_VI ? nic->vi_by_number[h.dst_vi] : NULL;
    if (a->vi)
        memcpy(a->vi_counts, a->vi->counters, sizeof a->vi_counts);
}

/* The first counter of drops that moved says why. A frame that no such counter tells of was taken. */
void via_tap_taken(struct via_nic *nic, const struct via_tap_arrival *a)
{
    for (int i = 0; a->frame && i < VIAKIT_N_COUNTERS; i++) {
        int moved = nic->counters[i] != a->nic_counts[i] || (a->vi && a->vi->counters[i] != a->vi_counts[i]);
        if (moved && (i == VIAKIT_COUNTER_fault_cut_received || strncmp(viakit_counter_name(i), "dropped_", 8) == 0)) {
            a->frame->note = viakit_counter_text(i);
            break;
        }
    }
    vk_ring_release(&nic->tap->ring);
}

/* ---------------------------------------------------------------- the life of a descriptor */

/* The program has handed a descriptor over; nothing has become of it yet. */
void via_tap_posted(struct via_vi *vi, const struct via_queue *q, const VIP_DESCRIPTOR *d)
{
    viakit_event *e = record_event(vi, VIAKIT_EVENT_POSTED);
    if (e == NULL)
        return;
    e->queue = (uint8_t)q->is_recv;
    e->index = q->posted;
    e->descriptor = (uint64_t)(uintptr_t)d;
    e->len = d->CS.Length;
    e->control = d->CS.Control;
    vk_ring_show(&vi->nic->tap->ring);
}

/* Its turn has come: how it goes, and under which numbers. */
void via_tap_doorbell(struct via_vi *vi, const struct via_work *w)
{
    viakit_event *e = record_event(vi, VIAKIT_EVENT_DOORBELL);
    if (e == NULL)
        return;
    e->index = vi->send.next;
    e->psn = w->first_psn;
    e->n_frames = w->n_frames;
    e->how = w->how;
    e->len = w->len;
    e->control = w->control;
    vk_ring_show(&vi->nic->tap->ring);
}

/* At the receiver: a frame's bytes are where they belong. */
void via_tap_placed(struct via_vi *vi, uint32_t psn, uint32_t len, int into_receive)
{
    viakit_event *e = record_event(vi, VIAKIT_EVENT_PLACED);
    if (e == NULL)
        return;
    e->queue = (uint8_t)into_receive;
    e->index = into_receive ? vi->recv.done : 0;
    e->psn = psn;
    e->len = len;
    vk_ring_show(&vi->nic->tap->ring);
}

/* At the sender: the peer has all before `ack`. Called while una_psn is still the old one. */
void via_tap_acknowledged(struct via_vi *vi, uint32_t ack)
{
    viakit_event *e = record_event(vi, VIAKIT_EVENT_ACKNOWLEDGED);
    if (e == NULL)
        return;
    e->psn = ack;
    vk_ring_show(&vi->nic->tap->ring);
}

/* Right before the status is written, after which the descriptor is the program's and must not be read. */
void via_tap_completed(struct via_vi *vi, const struct via_queue *q, uint32_t status)
{
    viakit_event *e = record_event(vi, VIAKIT_EVENT_COMPLETED);
    if (e == NULL)
        return;
    const VIP_DESCRIPTOR *d = q->work[q->done & (VIA_MAX_QUEUE - 1)].descriptor;
    e->queue = (uint8_t)q->is_recv;
    e->index = q->done;
    e->descriptor = (uint64_t)(uintptr_t)d;
    e->status = status;
    e->len = d->CS.Length;
    vk_ring_show(&vi->nic->tap->ring);
}

/* The program takes it back. */
void via_tap_reaped(const struct via_queue *q, const VIP_DESCRIPTOR *d, struct via_vi *vi)
{
    viakit_event *e = record_event(vi, VIAKIT_EVENT_REAPED);
    if (e == NULL)
        return;
    e->queue = (uint8_t)q->is_recv;
    e->index = q->reaped;
    e->descriptor = (uint64_t)(uintptr_t)d;
    e->status = d->CS.Status;
    vk_ring_show(&vi->nic->tap->ring);
}

/* ---------------------------------------------------------------- opening and closing */

/* Who points to the link's table: the NIC, or what loses frames for it on purpose. */
static const struct link_ops **place_of(struct via_nic *nic)
{
    return nic->fault ? fault_inner(nic->fault) : &nic->ops;
}

/* Called by the owner. From here on each frame passes the tap, in both directions: whole_message matches nothing any
 * more. */
static void put_in(struct via_nic *nic, struct via_tap *tap)
{
    const struct link_ops **place = place_of(nic);
    tap->real = *place;
    /* What the tap does not replace stays the link's own. */
    tap->ops = **place;
    tap->ops.send = tap_send;
    tap->ops.ask_all = tap_ask_all;
    if (tap->ops.send_short)
        tap->ops.send_short = tap_send_short;
    *place = &tap->ops;
    nic->tap = tap;
    nic->whole_message = via_whole_message(nic);
}

/* Called by the owner. Whoever walks through the ring does so under the mutex, which the caller holds. */
static void take_out(struct via_nic *nic, struct via_tap *tap)
{
    *place_of(nic) = tap->real;
    nic->tap = NULL;
    nic->whole_message = via_whole_message(nic);
}

/* A tap, ready but not in its place. NULL if memory is exhausted. The options may come from a program that was
 * compiled with a shorter struct (`size`). */
static struct via_tap *make_tap(struct via_nic *nic, const viakit_tap_options *given)
{
    viakit_tap_options o = {.size = sizeof o};
    if (given)
        memcpy(&o, given, given->size && given->size < sizeof o ? given->size : sizeof o);
    struct via_tap *tap = calloc(1, sizeof *tap);
    if (tap == NULL || vk_ring_init(&tap->ring, o.ring_bytes ? o.ring_bytes : RING_BYTES) != 0) {
        free(tap);
        return NULL;
    }
    tap->nic = nic;
    tap->snap_len = o.snap_len && o.snap_len < LEAST_SNAP ? LEAST_SNAP : o.snap_len;
    tap->events = o.events;
    tap->frames = !o.no_frames;
    tap->file_bytes = o.file_bytes;
    return tap;
}

static void free_tap(struct via_tap *tap)
{
    vk_ring_fini(&tap->ring);
    free(tap);
}

/* With the mutex. */
static VIP_RETURN open_tap(struct via_nic *nic, const char *file, const viakit_tap_options *options, int append)
{
    if (nic->tap)
        return via_fail(VIP_INVALID_STATE, "the NIC %s has a tap already%s%s: close that first", nic->device,
                        *tap_file_path(nic->tap) ? ", into " : "", tap_file_path(nic->tap));
    struct via_tap *tap = make_tap(nic, options);
    if (tap == NULL)
        return via_fail(VIP_ERROR_RESOURCE, "viakit_tap_open: no memory for the ring: give a smaller ring_bytes");
    if (tap_file_attach(tap, file, append) != 0) {
        free_tap(tap);
        return VIP_ERROR_RESOURCE; /* explained */
    }
    via_enter(nic);
    put_in(nic, tap);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* With the mutex. Taken out of its place first, as owner; then nobody writes to the ring any more, and it is emptied
 * into the file to its end. */
static VIP_RETURN close_tap(struct via_nic *nic)
{
    struct via_tap *tap = nic->tap;
    char path[sizeof((viakit_tap_info *)0)->file];
    via_enter(nic);
    take_out(nic, tap);
    via_leave(nic);
    strcpy(path, tap_file_path(tap));
    int error = tap_file_detach(tap);
    free_tap(tap);
    if (error)
        return via_fail(VIP_ERROR_RESOURCE, "%s: the capture is not whole: %s", path, strerror(-error));
    return VIP_SUCCESS;
}

/* With which every call on a tap begins. The NIC, with the mutex held, so that it cannot go; NULL, and *code says
 * why: it is not held. The mutex keeps the NIC: VipCloseNic takes it (via_tap_end) before the NIC goes. Lock order:
 * this mutex, then ownership; so the NIC is entered here and left again, to find out whether it lives. */
static struct via_nic *begin(VIP_NIC_HANDLE handle, int needs_tap, VIP_RETURN *code)
{
    via_tap_lock();
    struct via_nic *nic = via_nic_enter(handle, code);
    if (nic) {
        via_leave(nic);
        if (nic->tap || !needs_tap)
            return nic;
        *code = via_fail(VIP_INVALID_STATE, "the NIC %s has no tap: open one with viakit_tap_open", nic->device);
    }
    via_tap_unlock();
    return NULL;
}

VIP_RETURN viakit_tap_open(VIP_NIC_HANDLE handle, const char *file, const viakit_tap_options *options)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_nic *nic = begin(handle, 0, &code);
    if (nic) {
        code = open_tap(nic, file, options, 0);
        via_tap_unlock();
    }
    return code;
}

/* An error of the disk is told here at the latest: the capture is not whole then. */
VIP_RETURN viakit_tap_close(VIP_NIC_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_nic *nic = begin(handle, 1, &code);
    if (nic) {
        code = close_tap(nic);
        via_tap_unlock();
    }
    return code;
}

/* When it returns, all that was recorded before is in the file. */
VIP_RETURN viakit_tap_flush(VIP_NIC_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = VIP_SUCCESS;
    struct via_nic *nic = begin(handle, 1, &code);
    if (nic) {
        int error = tap_file_flush(nic->tap);
        if (error)
            code = via_fail(VIP_ERROR_RESOURCE, "%s: the capture is not whole: %s", tap_file_path(nic->tap),
                            strerror(-error));
        via_tap_unlock();
    }
    return code;
}

/* For a tap without a file: whole blocks, as many as fit; the first call brings section and interfaces, too. */
VIP_RETURN viakit_tap_read(VIP_NIC_HANDLE handle, void *buffer, size_t len, size_t *n)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    if (buffer == NULL || n == NULL)
        return via_fail(VIP_INVALID_PARAMETER,
                        "viakit_tap_read: a buffer and a place for its length are needed (NULL)");
    struct via_nic *nic = begin(handle, 1, &code);
    if (nic) {
        code = tap_file_read(nic->tap, buffer, len, n);
        via_tap_unlock();
    }
    return code;
}

/* Counts of what was recorded, and of what was not for want of room, in the ring or in the file. */
VIP_RETURN viakit_query_tap(VIP_NIC_HANDLE handle, viakit_tap_info *info)
{
    VIP_RETURN code;
    if (info == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "viakit_query_tap: no place for the information (NULL)");
    struct via_nic *nic = begin(handle, 1, &code);
    if (nic == NULL)
        return code;
    struct via_tap *tap = nic->tap;
    memset(info, 0, sizeof *info);
    strcpy(info->file, tap_file_path(tap));
    via_enter(nic);
    info->frames_sent = tap->n_sent;
    info->frames_received = tap->n_received;
    info->events = tap->n_events;
    info->lost = tap->ring.lost + tap->skipped;
    via_leave(nic);
    via_tap_unlock();
    return VIP_SUCCESS;
}

void via_tap_end(struct via_nic *nic)
{
    via_tap_lock();
    if (nic->tap)
        close_tap(nic);
    via_tap_unlock();
}

/* ---------------------------------------------------------------- VIAKIT_TAP */

/* "NAME=NUMBER" of this name, at most `most`. 1 if it is one. */
static int parse_number(const char *word, const char *name, unsigned long most, unsigned long *value)
{
    size_t n = strlen(name);
    char *end;
    if (strncmp(word, name, n) != 0 || word[n] != '=' || word[n + 1] < '0' || word[n + 1] > '9')
        return 0;
    *value = strtoul(word + n + 1, &end, 10);
    return *end == 0 && *value <= most;
}

/* One word behind the file name. */
static int parse_word(const char *word, viakit_tap_options *o)
{
    unsigned long v;
    if (strcmp(word, "events") == 0)
        o->events = 1;
    else if (strcmp(word, "noframes") == 0)
        o->no_frames = 1;
    else if (parse_number(word, "snap", UINT32_MAX, &v))
        o->snap_len = (VIP_UINT32)v;
    else if (parse_number(word, "ring", UINT32_MAX, &v))
        o->ring_bytes = (VIP_UINT32)v;
    else if (parse_number(word, "limit", ULONG_MAX, &v))
        o->file_bytes = v;
    else
        return 0;
    return 1;
}

/* VIAKIT_TAP=FILE[,WORD...]. Another NIC of the same process goes on in the same file (append). */
VIP_RETURN via_tap_from_environment(struct via_nic *nic)
{
    const char *text = secure_getenv("VIAKIT_TAP"); /* not where somebody else's environment would choose our files */
    viakit_tap_options o = {.size = sizeof o};
    char words[768], *rest, *word;
    if (text == NULL || *text == 0)
        return VIP_SUCCESS;
    if (strlen(text) >= sizeof words)
        return via_fail(VIP_INVALID_PARAMETER, "VIAKIT_TAP: longer than %zu bytes", sizeof words - 1);
    strcpy(words, text);
    const char *file = strtok_r(words, ",", &rest);
    if (file == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VIAKIT_TAP=%s: begins with the name of a file or folder", text);
    while ((word = strtok_r(NULL, ",", &rest)) != NULL)
        if (!parse_word(word, &o))
            return via_fail(VIP_INVALID_PARAMETER,
                            "VIAKIT_TAP: '%s' is none of events, noframes, snap=BYTES, ring=BYTES, limit=BYTES", word);
    via_tap_lock();
    VIP_RETURN code = open_tap(nic, file, &o, 1);
    via_tap_unlock();
    return code;
}
