/*
 * The services that the provider offers to its links (link/link.h), as one table. Each function is in the file of its
 * subject: arriving frames in data/rx.c, connections in connect/, faults in objects/faults.c, captures in the observer.
 * The links call them as link/link.h states.
 */
#include "via/link_services.h"
#include "link/link.h"
#include "via/nic.h"
#include "via/observer.h"

/* These two have no subject of their own: they pass the call to the observer, if the NIC has one. */
static void remark(struct link_client *client, const char *text)
{
    struct via_nic *nic = via_nic_of(client);
    VIA_OBSERVE(nic, remark, nic, text);
}

static void note_lost(struct link_client *client, struct link_peer *peer, const struct link_frame *frame,
                      const char *why)
{
    struct via_nic *nic = via_nic_of(client);
    VIA_OBSERVE(nic, note_lost, nic, peer, frame, why);
}

const struct link_services via_link_services = {
    .deliver = via_link_deliver,
    .deliver_parts = via_link_deliver_parts,
    .place_ahead = via_link_place_ahead,
    .peer_lost = via_link_peer_lost,
    .request_is_open = via_link_request_is_open,
    .matches_own_request = via_link_matches_own_request,
    .report_no_address_space = via_link_no_address_space,
    .lacks_address_space = via_link_lacks_address_space,
    .report_no_nic = via_link_no_nic,
    .due = via_link_due,
    .timer = via_link_timer,
    .must_arrive = via_link_must_arrive,
    .set_checksum_verified = via_link_set_checksum_verified,
    .discard_arrivals = via_link_discard_arrivals,
    .report_trouble = via_link_trouble,
    .grant = via_link_grant,
    .rdma_done = via_link_rdma_done,
    .remark = remark,
    .note_lost = note_lost,
};
