/*
 * observer.h - the hooks by which code above the provider watches a NIC (watch/tap.c, watch/inspect.c). The provider
 * calls them and does not depend on what they record.
 *
 * A NIC without an observer has nic->observer == NULL: each hook of a descriptor's life is one test that is not taken
 * (VIA_OBSERVE). While it has one, every arriving frame takes the long path (via_whole_message).
 */
#ifndef VIAKIT_VIA_OBSERVER_H
#define VIAKIT_VIA_OBSERVER_H

#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "link/link.h"
#include "vipl.h"

struct via_nic;
struct via_queue;
struct via_vi;
struct via_work;

/* Called by the NIC's owner. No entry is NULL. */
struct via_observer {
    /* The life of a descriptor: posted, transmission begun, payload placed at the receiver, acknowledged, completed,
     * reaped. acknowledged is called while una_psn is still the old one. completed is called right before the status is
     * written. */
    void (*posted)(struct via_vi *vi, const struct via_queue *q, const VIP_DESCRIPTOR *d);
    void (*doorbell)(struct via_vi *vi, const struct via_work *w);
    void (*placed)(struct via_vi *vi, uint32_t psn, uint32_t len, int into_receive);
    void (*acknowledged)(struct via_vi *vi, uint32_t ack);
    void (*completed)(struct via_vi *vi, const struct via_queue *q, uint32_t status);
    void (*reaped)(const struct via_queue *q, const VIP_DESCRIPTOR *d, struct via_vi *vi);

    /* A frame arrived, with header and payload apart; and the same frame was handled, or dropped and counted. The calls
     * come in pairs and are not nested. */
    void (*frame_arrived)(struct via_nic *nic, const uint8_t from[6], const void *header, size_t header_len,
                          const void *payload, size_t len);
    void (*frame_handled)(struct via_nic *nic);

    /* Notes of decorators: contracts in link.h. */
    void (*remark)(struct via_nic *nic, const char *remark);
    void (*note_lost)(struct via_nic *nic, struct link_peer *peer, const struct link_frame *frame, const char *why);
};

/* VIAKIT_NO_TAPS removes the tests, to measure their cost (tests/c/path_cost.c). */
#ifdef VIAKIT_NO_TAPS
#define VIA_OBSERVED(nic) 0
#else
#define VIA_OBSERVED(nic) vk_unlikely((nic)->observer != NULL)
#endif
#define VIA_OBSERVE(nic, hook, ...)             \
    do {                                        \
        if (VIA_OBSERVED(nic))                  \
            (nic)->observer->hook(__VA_ARGS__); \
    } while (0)

/* An observer of all NICs of the process. The code above sets it before main() begins; NULL: none. */
struct via_watch {
    /* A NIC is about to be returned to the program. If this fails, the NIC is closed and VipOpenNic returns the code.
     */
    VIP_RETURN (*nic_opened)(struct via_nic *nic);
    /* The NIC was returned to the program: it is complete, and other threads may enter it. */
    void (*nic_visible)(struct via_nic *nic);
    /* The NIC is being closed. Called without ownership; the NIC has no VIs any more, and its link is still open. */
    void (*nic_closing)(struct via_nic *nic);
    /* A NIC that was visible is gone. Called without ownership of any NIC. */
    void (*nic_closed)(void);
};
extern const struct via_watch *via_watch;

#endif
