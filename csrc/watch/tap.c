/*
 * Records the frames and events of a NIC's tap.
 *
 * Outgoing frames: the tap stands between the provider and its link. It has an ops table of its own, the link's with
 * the sending operations replaced. It stands below the decorator that loses or duplicates frames, so a capture shows
 * what was really handed to the wire. Incoming frames are recorded in link_deliver (rx.c): whole_message of a tapped
 * NIC matches nothing, so all frames take the long path, which calls the tap. The hooks report the life of descriptors.
 *
 * All recording runs under the NIC's ownership, so the owner is the ring's only producer. Recording never waits: a full
 * ring loses records.
 *
 * The events of one message, and the side whose tap records them:
 *
 *       sender                                       receiver
 *    POSTED        VipPostSend queued it          POSTED      VipPostRecv queued a receive
 *    DOORBELL      its turn: numbers assigned
 *       frames --------------------------------> PLACED      a frame's bytes are in memory
 *    ACKNOWLEDGED  the peer has all before psn    COMPLETED   the last one was placed
 *    COMPLETED     status written                 REAPED      VipRecvDone returned it
 *    REAPED        VipSendDone returned it
 */
#include "watch/tap.h"
#include "base/explain.h"
#include "via/observer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/ring.h"
#include "link/fault/fault.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/link_services.h"
#include "via/nic.h"
#include "via/vi.h"
#include "via/work.h"

/* The default of ring_bytes: some 5000 frames of 1500 bytes, for the writer's interval of 2 to 16 ms (tap_file.c). */
#define RING_BYTES (8u << 20)
#define LEAST_SNAP 48u /* the wire header and an RDMA block */

/* ---------------------------------------------------------------- records */

/* Copies up to `room` bytes of the pieces; returns the number copied. */
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

/* Records a frame of len bytes in pieces. Returns the record, not yet visible to the consumer, or NULL if it was lost.
 */
static struct tap_frame *record_frame(struct via_tap *tap, uint64_t time, size_t len, const struct iovec *iov,
                                      uint32_t n)
{
    /* snap_len 0: the whole frame. */
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

/* Records a frame that the link has accepted, with its bytes and a note. If the ring is full, the record is only
 * counted as lost. */
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

/* The same for a frame in the provider's form: header, block and pieces. */
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

/* Records an event of the VI at that time (0: now). Called by hooks, so with the NIC's ownership; the tap exists then.
 * The fields common to all events are filled in here. */
static void record_event(const struct via_vi *vi, uint64_t time, viakit_event event)
{
    struct via_tap *tap = vi->nic->tap;
    struct tap_event *r = tap->events ? vk_ring_reserve(&tap->ring, sizeof *r, TAP_EVENT) : NULL;
    if (r == NULL)
        return;
    r->time = time ? time : vk_now();
    r->lost = tap->ring.lost;
    r->event = event;
    r->event.version = 1;
    r->event.vi = vi->number;
    r->event.key = vi->key;
    tap->n_events++;
    vk_ring_show(&tap->ring);
}

/* ---------------------------------------------------------------- between the provider and its link */

/* Every link's struct begins with struct link_base, which has its client (link.h). */
static inline struct via_tap *tap_of(struct link *link)
{
    return via_nic_of(((struct link_base *)(void *)link)->client)->tap;
}

/* Replaces the link's own operation in the table of a tapped NIC. The time is read before the call, because the frame
 * is in flight when the call returns. After it, the accepted frames are recorded. */
static int tap_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    struct via_tap *tap = tap_of(link);
    /* The link counts super-frames: a change of the counter shows how these frames were sent. */
    uint64_t now = vk_now(), *super = &tap->nic->counters[VIAKIT_COUNTER_super_frames_sent], before = *super;
    int sent = tap->real->send(link, peer, frames, n); /* time first: the link fills in checksums */
    const char *note = *super != before ? "left as part of a super-frame" : tap->remark;
    for (int i = 0; i < sent; i++)
        record_link_frame(tap, now, link_peer_address(peer), &frames[i], note);
    return sent;
}

/* Only the header's words are available: the VI is found by its number. The short path makes no DOORBELL event, so this
 * function makes it. */
static int tap_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                          const void *payload, size_t len)
{
    struct via_tap *tap = tap_of(link);
    uint64_t begun = vk_now();
    if (!tap->real->send_short(link, peer, header, payload, len))
        return 0;
    uint32_t number = (uint32_t)(header[1] >> 16) & 0xFFFF;
    struct via_vi *vi = number < VIA_MAX_VI ? tap->nic->vi_by_number[number] : NULL;
    if (vi)
        record_event(vi, begun,
                     (viakit_event){.kind = VIAKIT_EVENT_DOORBELL,
                                    .index = vi->send.next,
                                    .psn = (uint32_t)header[2],
                                    .n_frames = 1,
                                    .len = (uint32_t)len});
    struct wire_header h;
    struct iovec iov[2] = {{&h, sizeof h}, {(void *)(uintptr_t)payload, len}};
    memcpy(&h, header, sizeof h);
    if (tap->nic->limits.checksum) { /* the link computed it in its own copy */
        h.flags |= WIRE_FLAG_CRC;
        h.crc = vk_crc32c(vk_crc32c(0, &h, sizeof h), payload, len);
    }
    record_sent(tap, begun, link_peer_address(peer), iov, 2, NULL);
    return 1;
}

/* Makes one record for all NICs addressed. 0 and LINK_ONLY_US mean that nothing was sent. */
static int tap_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    struct via_tap *tap = tap_of(link);
    uint64_t now = vk_now();
    int addressed = tap->real->request_all(link, address, frame);
    if (addressed && addressed != LINK_ONLY_US)
        record_link_frame(tap, now, address, frame, NULL);
    return addressed;
}

/* The frames that follow get this note until the next call; NULL: none. */
static void tap_remark(struct via_nic *nic, const char *remark)
{
    nic->tap->remark = remark;
}

/* A frame that the fault decorator withheld never reaches the tap's send, so the decorator reports it here. */
static void tap_note_lost(struct via_nic *nic, struct link_peer *peer, const struct link_frame *frame, const char *why)
{
    record_link_frame(nic->tap, vk_now(), link_peer_address(peer), frame, why);
}

/* ---------------------------------------------------------------- arriving frames */

/* Records a frame as it arrived, and copies the counters: their changes show later how it was handled. */
static void tap_frame_arrived(struct via_nic *nic, const uint8_t from[6], const void *header, size_t header_len,
                              const void *payload, size_t len)
{
    struct via_tap *tap = nic->tap;
    struct wire_header h;
    tap->arrived = NULL;
    tap->arrived_vi = NULL;
    vk_ring_hold(&tap->ring); /* the note is written later */
    if (!tap->frames)
        return;
    struct iovec iov[2] = {{(void *)(uintptr_t)header, header_len}, {(void *)(uintptr_t)payload, len}};
    /* Held back (vk_ring_hold), so the writer does not see it before its note is written. */
    struct tap_frame *r = record_frame(tap, vk_now(), header_len + len, iov, 2);
    if (r == NULL)
        return;
    tap->arrived = r;
    r->out = 0;
    memcpy(r->to, nic->limits.address, 6);
    memcpy(r->from, from, 6);
    tap->n_received++;
    memcpy(tap->nic_counts, nic->counters, sizeof tap->nic_counts);
    /* The counters of the VI in the header may change, whether the frame turns out to be for it or not. */
    if (header_len + len < sizeof h)
        return;
    copy_pieces((uint8_t *)&h, sizeof h, iov, 2);
    tap->arrived_vi = h.dst_vi < VIA_MAX_VI ? nic->vi_by_number[h.dst_vi] : NULL;
    if (tap->arrived_vi)
        memcpy(tap->vi_counts, tap->arrived_vi->counters, sizeof tap->vi_counts);
}

/* The first drop counter that changed gives the reason. If none changed, the frame was accepted. */
static void tap_frame_handled(struct via_nic *nic)
{
    struct via_tap *tap = nic->tap;
    const struct via_vi *vi = tap->arrived_vi;
    for (int i = 0; tap->arrived && i < VIAKIT_N_COUNTERS; i++) {
        int moved = nic->counters[i] != tap->nic_counts[i] || (vi && vi->counters[i] != tap->vi_counts[i]);
        if (moved && (i == VIAKIT_COUNTER_fault_cut_received || strncmp(viakit_counter_name(i), "dropped_", 8) == 0)) {
            tap->arrived->note = viakit_counter_text(i);
            break;
        }
    }
    vk_ring_release(&tap->ring);
}

/* ---------------------------------------------------------------- the life of a descriptor */

/* The program posted a descriptor. It has not been processed yet. */
static void tap_posted(struct via_vi *vi, const struct via_queue *q, const VIP_DESCRIPTOR *d)
{
    record_event(vi, 0,
                 (viakit_event){.kind = VIAKIT_EVENT_POSTED,
                                .queue = (uint8_t)q->is_recv,
                                .index = q->posted,
                                .descriptor = (uint64_t)(uintptr_t)d,
                                .len = d->CS.Length,
                                .control = d->CS.Control});
}

/* The descriptor's turn has come: how it is sent, and its numbers. */
static void tap_doorbell(struct via_vi *vi, const struct via_work *w)
{
    record_event(vi, 0,
                 (viakit_event){.kind = VIAKIT_EVENT_DOORBELL,
                                .index = vi->send.next,
                                .psn = w->first_psn,
                                .n_frames = w->n_frames,
                                .how = w->how,
                                .len = w->len,
                                .control = w->control});
}

/* At the receiver: a frame's bytes were placed. */
static void tap_placed(struct via_vi *vi, uint32_t psn, uint32_t len, int into_receive)
{
    record_event(vi, 0,
                 (viakit_event){.kind = VIAKIT_EVENT_PLACED,
                                .queue = (uint8_t)into_receive,
                                .index = into_receive ? vi->recv.done : 0,
                                .psn = psn,
                                .len = len});
}

/* At the sender: the peer has all frames before `ack`. Called while una_psn is still the old one. */
static void tap_acknowledged(struct via_vi *vi, uint32_t ack)
{
    record_event(vi, 0, (viakit_event){.kind = VIAKIT_EVENT_ACKNOWLEDGED, .psn = ack});
}

/* Called right before the status is written. After that the descriptor belongs to the program and must not be read. */
static void tap_completed(struct via_vi *vi, const struct via_queue *q, uint32_t status)
{
    const VIP_DESCRIPTOR *d = q->work[q->done & (VIA_MAX_QUEUE - 1)].descriptor;
    record_event(vi, 0,
                 (viakit_event){.kind = VIAKIT_EVENT_COMPLETED,
                                .queue = (uint8_t)q->is_recv,
                                .index = q->done,
                                .descriptor = (uint64_t)(uintptr_t)d,
                                .status = status,
                                .len = d->CS.Length});
}

/* The program reaps a descriptor. */
static void tap_reaped(const struct via_queue *q, const VIP_DESCRIPTOR *d, struct via_vi *vi)
{
    record_event(vi, 0,
                 (viakit_event){.kind = VIAKIT_EVENT_REAPED,
                                .queue = (uint8_t)q->is_recv,
                                .index = q->reaped,
                                .descriptor = (uint64_t)(uintptr_t)d,
                                .status = d->CS.Status});
}

static const struct via_observer observer = {
    .posted = tap_posted,
    .doorbell = tap_doorbell,
    .placed = tap_placed,
    .acknowledged = tap_acknowledged,
    .completed = tap_completed,
    .reaped = tap_reaped,
    .frame_arrived = tap_frame_arrived,
    .frame_handled = tap_frame_handled,
    .remark = tap_remark,
    .note_lost = tap_note_lost,
};

/* ---------------------------------------------------------------- opening and closing */

/* Returns the pointer to the link's table: in the NIC, or in the fault decorator above the link. */
static const struct link_ops **place_of(struct via_nic *nic)
{
    return nic->link_client.fault ? fault_inner(nic->link_client.fault) : &nic->ops;
}

/* Installs the tap. Called by the owner, so no frame is being sent or handled meanwhile. From here on every frame
 * passes the tap, in both directions: whole_message matches nothing any more. */
static void put_in(struct via_nic *nic, struct via_tap *tap)
{
    const struct link_ops **place = place_of(nic);
    tap->real = *place;
    /* Operations that the tap does not replace stay the link's own. */
    tap->ops = **place;
    tap->ops.send = tap_send;
    tap->ops.request_all = tap_request_all;
    if (tap->ops.send_short)
        tap->ops.send_short = tap_send_short;
    *place = &tap->ops;
    nic->tap = tap;
    nic->observer = &observer;
    nic->whole_message = via_whole_message(nic);
}

/* Removes the tap. Called by the owner. The consumer of the ring works under the mutex, which the caller holds. The
 * records in the ring stay there, for tap_file_detach. */
static void take_out(struct via_nic *nic, struct via_tap *tap)
{
    *place_of(nic) = tap->real;
    nic->tap = NULL;
    nic->observer = NULL;
    nic->whole_message = via_whole_message(nic);
}

/* Creates a tap without installing it. Returns NULL if memory is exhausted. The options may come from a program that
 * was compiled with a shorter struct (`size`). */
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

/* The tap is neither in a NIC nor in a file. */
static void free_tap(struct via_tap *tap)
{
    vk_ring_fini(&tap->ring);
    free(tap);
}

/* The file is opened before the NIC is entered, because opening may block. Frames are recorded from put_in() on. */
VIP_RETURN tap_open(struct via_nic *nic, const char *file, const viakit_tap_options *options, int append)
{
    if (nic->tap)
        return vk_fail(VIP_INVALID_STATE, "the NIC %s has a tap already%s%s: close that first", nic->device,
                       *tap_file_path(nic->tap) ? ", into " : "", tap_file_path(nic->tap));
    struct via_tap *tap = make_tap(nic, options);
    if (tap == NULL)
        return vk_fail(VIP_ERROR_RESOURCE,
                       "viakit_tap_open: memory for the ring is exhausted: give a smaller ring_bytes");
    if (tap_file_attach(tap, file, append) != 0) {
        free_tap(tap);
        return VIP_ERROR_RESOURCE; /* explained by tap_file_attach */
    }
    via_enter(nic);
    put_in(nic, tap);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* The caller holds the mutex. The tap is removed first, as owner; then the ring has no producer any more, and the rest
 * of it is written to the file. The path is copied for the error's text: tap_file_path() is not valid after the
 * detachment. */
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
        return vk_fail(VIP_ERROR_RESOURCE, "%s: the capture is incomplete: %s", path, strerror(-error));
    return VIP_SUCCESS;
}

/* Begins every call on a tap. Returns the NIC, with the mutex held, so that it cannot be closed; or NULL without the
 * mutex, with the reason in *code. The mutex keeps the NIC alive, because VipCloseNic acquires it (via_tap_end) before
 * it frees the NIC. Lock order: this mutex, then ownership. Therefore the NIC is entered here and left again, to check
 * that it is alive. */
static struct via_nic *begin(VIP_NIC_HANDLE handle, int needs_tap, VIP_RETURN *code)
{
    via_tap_lock();
    struct via_nic *nic = via_nic_enter(handle, code);
    if (nic) {
        via_leave(nic);
        if (nic->tap || !needs_tap)
            return nic;
        *code = vk_fail(VIP_INVALID_STATE, "the NIC %s has no tap: open one with viakit_tap_open", nic->device);
    }
    via_tap_unlock();
    return NULL;
}

/* VK_HOLD_CANCEL: a thread that is cancelled here would leave the mutex locked. */
VIP_RETURN viakit_tap_open(VIP_NIC_HANDLE handle, const char *file, const viakit_tap_options *options)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_nic *nic = begin(handle, 0, &code);
    if (nic) {
        code = tap_open(nic, file, options, 0);
        via_tap_unlock();
    }
    return code;
}

/* Reports a write error at the latest: the capture is then incomplete. */
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

/* When it returns, all earlier records are in the file. */
VIP_RETURN viakit_tap_flush(VIP_NIC_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = VIP_SUCCESS;
    struct via_nic *nic = begin(handle, 1, &code);
    if (nic) {
        int error = tap_file_flush(nic->tap);
        if (error)
            code = vk_fail(VIP_ERROR_RESOURCE, "%s: the capture is incomplete: %s", tap_file_path(nic->tap),
                           strerror(-error));
        via_tap_unlock();
    }
    return code;
}

/* For a tap without a file: returns whole blocks, as many as fit. The first call also returns section and interface
 * headers. */
VIP_RETURN viakit_tap_read(VIP_NIC_HANDLE handle, void *buffer, size_t len, size_t *n)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    if (buffer == NULL || n == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_tap_read: the buffer or the pointer to the length is NULL");
    struct via_nic *nic = begin(handle, 1, &code);
    if (nic) {
        code = tap_file_read(nic->tap, buffer, len, n);
        via_tap_unlock();
    }
    return code;
}

/* Returns the numbers of records made, and of those lost because the ring or the file was full. They are read as the
 * NIC's owner, so no record is made in between. */
VIP_RETURN viakit_query_tap(VIP_NIC_HANDLE handle, viakit_tap_info *info)
{
    VIP_RETURN code;
    if (info == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_query_tap: the pointer to the information is NULL");
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

/* Called without ownership, because closing waits for the file. */
void via_tap_end(struct via_nic *nic)
{
    via_tap_lock();
    if (nic->tap)
        close_tap(nic);
    via_tap_unlock();
}
