/*
 * via.h - the `via` channel's private structs, shared by via.c (packets and RDMA), via_memory.c (exposed memory) and
 * via_open.c (opening and closing).
 *
 * The ranks are connected, and its credits counted, by csrc/peers. Each side sends the number of its receives when it
 * connects; the two differ if hosts have different numbers of ranks. The other side gets all but VC_RESERVE as credits.
 *
 * A CREDIT packet uses the reserve. It returns half of the credits, or 255, the maximum of its field.
 * MaxDescriptorsPerQueue is 1024, so the other side must have used a quarter of its credits for each CREDIT packet. At
 * most VC_RESERVE of them can therefore be in flight.
 */
#ifndef VIAKIT_MSG_VIA_H
#define VIAKIT_MSG_VIA_H

#include "msg/channel.h"
#include "peers/peers.h"

#define VC_RESERVE 4 /* receives beyond the credits, for CREDIT packets; see above */
/* Fewer would stop a sender for a CREDIT packet every few messages. A bound below the policy's pool_bytes gives way. */
#define VC_LEAST_CREDITS 8
#define VC_SEND_SLOTS 64 /* eager send buffers of a NIC; the last two are for credits */
#define VC_RDMA_SLOTS 64 /* RDMA descriptors of a NIC; further transfers wait in world->moving */

/* A descriptor of this channel, in registered memory. Two cache lines, so that slots never share one. */
struct vc_slot {
    struct peers_slot at;
    uint64_t request; /* RDMA: id of the request whose data is moved */
    size_t len;       /* bytes of RDMA; 0: not RDMA */
    uint64_t failed;  /* in the unreported list: 1 if it failed */
    uint64_t reserved[2];
};
_Static_assert(sizeof(struct vc_slot) == 128, "a descriptor and a line of state");

/* The connection to another rank, behind peer->at. `pair` is the first member: csrc/peers knows only that. */
struct vc_rank {
    struct peers_pair pair;
    struct msg_peer *peer;
    uint32_t grant; /* credits from the moment of the connection on */
};

/* The channel's state, behind world->at. Guarded by the world's lock, like all that hangs on it. */
struct vc_world {
    struct peers net;
    struct peers_slot *unreported; /* by `next`: reaped, but completion not yet reported: RDMA, and failed sends */
    struct peers_slot *late;       /* a receive slot whose packet was read, to be posted again; see receive() */
};

/* via_open.c */
int vc_open(msg_world *w, const msg_options *options);
void vc_close(msg_world *w);
/* As channel.h: meet, part, is_meeting. */
int vc_meet(struct msg_peer *peer);
void vc_part(struct msg_peer *peer);
int vc_is_meeting(const struct msg_peer *peer);
int vc_can_get(struct msg_peer *peer);
int vc_can_share(struct msg_peer *peer);
/* For peers_meetings: the connection to `rank` is made (code 0), or cannot be. */
void vc_met(void *world, int rank, int code);

/* via_memory.c. As channel.h: nic, nic_counters, forget, expose, hide, handle_index. */
void *vc_any_nic(msg_world *w);
void vc_nic_counters(msg_world *w, uint64_t *values);
void vc_forget(msg_world *w, const void *buf, size_t len);
int vc_expose(msg_world *w, void *buf, size_t len, msg_exposed *exposed);
int vc_hide(msg_world *w, const msg_exposed *exposed);
int vc_handle_index(struct msg_peer *peer);

/* via.c. Reaps completed sends of the pair, up to the first incomplete one. May end ranks. */
void vc_reap(struct peers_pair *rank);

#endif
