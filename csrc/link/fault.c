/*
 * The decorator `fault`: a link in front of a link, which spoils what is sent.
 *
 *    provider --> fault --> shm | eth | loop | ...
 *             <------------ frames that arrive: straight from the inner link to the provider
 *
 * It is put in place when faults are first asked for (via/fault.c) and taken away when they end: a NIC without faults does not know of it.
 * Everything happens on sending, so each side of a connection spoils its own frames. Frames of connections that rely on the link's
 * losing nothing (loop, shm, made before the faults) go past it unharmed.
 *
 * A decision is made per frame, in the order of sending. A frame that the inner link cannot take at the moment is decided upon again when it is
 * offered again, with the same index and so with the same result.
 */
#include "fault.h"

#include <errno.h>
#include <stdlib.h>

#include "../base/atomic.h"
#include "flat.h"

struct link {
    struct via_nic *nic;
    struct link_ops ops;           /* ours: the inner table, but for what is decorated */
    const struct link_ops *inner;
    struct link *link;             /* the inner one */
    viakit_frame_filter filter;
    void *filter_context;
    uint64_t index;                /* of the next frame */
    int asked;                     /* the filter was asked about it already, and said: */
    viakit_verdict verdict;
    struct link_flat *held;        /* overtaken by the next frame */
};

static int send_flat(struct link *link, const struct link_flat *flat)
{
    struct link_frame f;
    struct iovec iov;
    link_unflatten(flat, &f, &iov);
    return link->inner->send(link->link, flat->peer, &f, 1);
}

static void drop_held(struct link *link)
{
    free(link->held);
    link->held = NULL;
}

/* ---------------------------------------------------------------- a test's filter */

/* One frame. The checksum is made here, before CORRUPT spoils the frame. 1 taken, otherwise what the inner link said. */
static int send_filtered(struct link *link, struct link_peer *peer, struct link_frame *f)
{
    struct link_flat *flat = link_flatten(peer, f);
    if (flat == NULL)
        return -EAGAIN;
    link_flat_checksum(flat);
    int sent = 1;
    if (!link->asked) /* once per index: a frame that has to wait for room must not throw the dice until it is lost */
        link->verdict =
            link->filter(link->filter_context, link->index, f->header.version_kind & 15, flat->len);
    link->asked = 1;
    switch (link->verdict) {
    case VIAKIT_DROP:
        LINK_COUNT(link->nic, dropped_filter, 1);
        break;
    case VIAKIT_HOLD:
        if (link->held == NULL) {
            link->held = flat;
            link->index++;
            link->asked = 0;
            return 1;
        }
        sent = send_flat(link, flat);
        break;
    case VIAKIT_CORRUPT:
        flat->bytes[(link->index * 7919) % flat->len] ^= (uint8_t)(1u << (link->index & 7));
        sent = send_flat(link, flat);
        break;
    case VIAKIT_DUPLICATE:
        sent = send_flat(link, flat);
        if (sent == 1)
            send_flat(link, flat);
        break;
    default:
        sent = send_flat(link, flat);
    }
    free(flat);
    if (sent != 1)
        return sent;
    link->index++;
    link->asked = 0;
    if (link->held) { /* a frame was overtaken: now it follows */
        send_flat(link, link->held);
        drop_held(link);
    }
    return 1;
}

/* ---------------------------------------------------------------- what is decorated */

static int fault_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    if (link->filter == NULL)
        return link->inner->send(link->link, peer, frames, n);
    for (int i = 0; i < n; i++) {
        int sent = send_filtered(link, peer, &frames[i]);
        if (sent != 1)
            return i ? i : sent;
    }
    return n;
}

/* Not this way: send() comes next, and decides. */
static int fault_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS],
                            const void *payload, size_t len)
{
    return link->filter ? 0 : link->inner->send_short(link->link, peer, header, payload, len);
}

static void fault_close(struct link *link)
{
    drop_held(link);
    link->inner->close(link->link);
    free(link);
}

/* ---------------------------------------------------------------- what is only passed on */

static int fault_route(struct link *link, const uint8_t address[6], uint16_t port, struct link_peer **peer)
{
    return link->inner->route(link->link, address, port, peer);
}

static int fault_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame)
{
    return link->inner->ask_all(link->link, address, frame);
}

static int fault_count_neighbours(struct link *link)
{
    return link->inner->count_neighbours(link->link);
}

static int fault_poll(struct link *link, int budget)
{
    return link->inner->poll(link->link, budget);
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

static int fault_place(struct link *link, struct link_peer *peer, uint32_t handle, uint32_t ptag, uint64_t address,
                       const struct iovec *from, int n_from, size_t len)
{
    return link->inner->place(link->link, peer, handle, ptag, address, from, n_from, len);
}

/* ---------------------------------------------------------------- coming and going */

int fault_wrap(struct via_nic *nic, const struct link_ops **ops, struct link **inner)
{
    struct link *link = calloc(1, sizeof *link);
    if (link == NULL)
        return -ENOMEM;
    link->nic = nic;
    link->inner = *ops;
    link->link = *inner;
    link->ops = **ops; /* name and open stay the inner link's; an operation that it lacks is lacking here */
#define DECORATE(operation) link->ops.operation = link->inner->operation ? fault_##operation : NULL
    DECORATE(close);
    DECORATE(route);
    DECORATE(ask_all);
    DECORATE(count_neighbours);
    DECORATE(send);
    DECORATE(send_short);
    DECORATE(poll);
    DECORATE(descriptors);
    DECORATE(arm);
    DECORATE(disarm);
    DECORATE(control);
    DECORATE(info);
    DECORATE(alloc);
    DECORATE(free);
    DECORATE(region_table);
    DECORATE(reach);
    DECORATE(fetch);
    DECORATE(place);
#undef DECORATE
    *ops = &link->ops;
    *inner = link;
    return 0;
}

void fault_unwrap(const struct link_ops **ops, struct link **link)
{
    struct link *fault = *link;
    *ops = fault->inner;
    *link = fault->link;
    drop_held(fault);
    free(fault);
}

void fault_set_filter(struct link *link, viakit_frame_filter filter, void *context)
{
    link->filter = filter;
    link->filter_context = context;
    if (filter == NULL)
        drop_held(link);
}

void fault_forget_peer(struct link *link, const struct link_peer *peer)
{
    if (link->held && (peer == NULL || link->held->peer == peer))
        drop_held(link);
}
