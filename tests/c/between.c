/*
 * between.c - see between.h. The NIC's table of link operations is replaced by a copy whose send operations look at
 * frames first, as the provider's own decorators do (link/fault/fault.c). All of it happens under the NIC's ownership.
 */
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/enter.h"
#include "via/link_services.h"
#include "via/nic.h"

#include "between.h"
#include <string.h>

static between *between_of(struct link *link)
{
    return (between *)(uintptr_t)via_nic_of(((struct link_base *)link)->client)->ops;
}

/* A frame of a handshake, and not one that the provider had put off: those have no block any more. */
static int is_handshake(const struct link_frame *f)
{
    return (f->header.version_kind & 15) >= WIRE_REQUEST && f->n_iov == 0;
}

static void note(between *b, struct link_frame *f)
{
    int kind = f->header.version_kind & 15;
    b->last[kind] = *f;
    b->n_sent[kind]++;
    if (kind != b->spoil_kind || b->n_spoil == 0 || b->spoil_at >= f->header.len)
        return;
    b->n_spoil--;
    b->n_spoilt++;
    f->block.bytes[b->spoil_at] ^= 1;
    f->header.flags &= (uint8_t)~WIRE_FLAG_CRC; /* to be computed anew */
}

static int send_between(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    between *b = between_of(link);
    if (n != 1 || !is_handshake(frames))
        return b->real->send(link, peer, frames, n);
    struct link_frame copy = frames[0];
    note(b, &copy);
    return b->real->send(link, peer, &copy, 1);
}

static int request_between(struct link *link, const uint8_t station[6], struct link_frame *frame)
{
    between *b = between_of(link);
    struct link_frame copy = *frame;
    note(b, &copy);
    return b->real->request_all(link, station, &copy);
}

static struct via_nic *enter(VIP_NIC_HANDLE handle)
{
    VIP_RETURN code = VIP_SUCCESS;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        FAIL("the NIC cannot be entered: %s", viakit_last_error());
    return nic;
}

void between_open(between *b, VIP_NIC_HANDLE handle)
{
    memset(b, 0, sizeof(*b));
    b->spoil_kind = -1;
    b->nic = enter(handle);
    b->real = b->nic->ops;
    b->ops = *b->real;
    b->ops.send = send_between;
    b->ops.request_all = request_between;
    b->nic->ops = &b->ops;
    via_leave(b->nic);
}

void between_close(between *b)
{
    via_enter(b->nic);
    b->nic->ops = b->real;
    via_leave(b->nic);
}

void between_spoil(between *b, int kind, unsigned at, unsigned n)
{
    via_enter(b->nic);
    b->spoil_kind = kind;
    b->spoil_at = at;
    b->n_spoil = n;
    b->n_spoilt = 0;
    via_leave(b->nic);
}

unsigned between_spoilt(between *b)
{
    via_enter(b->nic);
    unsigned n = b->n_spoilt;
    via_leave(b->nic);
    return n;
}

int between_has(between *b, int kind)
{
    via_enter(b->nic);
    int has = b->n_sent[kind] != 0;
    via_leave(b->nic);
    return has;
}

struct link_frame between_last(between *b, int kind)
{
    CHECK(between_has(b, kind));
    via_enter(b->nic);
    struct link_frame f = b->last[kind];
    via_leave(b->nic);
    return f;
}

/* On shm the way to a NIC may have to be made first. */
void send_by_hand(VIP_NIC_HANDLE handle, const uint8_t station[6], uint16_t port, const struct link_frame *frame)
{
    double end = check_now() + CHECK_WAIT_S;
    for (int sent = 0; !sent;) {
        struct via_nic *nic = enter(handle);
        struct link_frame f = *frame;
        struct link_peer *peer;
        f.header.dst_port = port;
        f.header.flags &= (uint8_t)~WIRE_FLAG_CRC;
        sent = nic->ops->route(nic->link, station, port, &peer) == 0 && via_link_send(nic, peer, &f, 1) == 1;
        via_leave(nic);
        if (!sent) {
            CHECK(check_now() < end);
            viakit_poll(handle, NULL);
            sched_yield();
        }
    }
}

uint16_t port_of(VIP_NIC_HANDLE handle)
{
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(handle, &info));
    return info.port;
}
