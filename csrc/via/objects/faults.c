/*
 * Fault injection: the calls that insert the decorator of link/fault/fault.c before a NIC's link and remove it, and the
 * services through which the decorator queries connections.
 *
 * While the decorator is inserted, the NIC announces that to its peers (`lossy`). Connections made during that time run
 * the whole protocol, even over a link that loses nothing.
 *
 *     nic->ops --> fault --> (tap) --> link       decorated; without faults: --> (tap) --> link
 */
#include <stdlib.h>
#include <string.h>

#include "base/explain.h"
#include "link/fault/fault.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/link_services.h"
#include "via/nic.h"
#include "via/objects/faults.h"
#include "via/vi.h"

/* ---------------------------------------------------------------- services for the decorator */

/* The decorator has frames to pass on at that time. */
void via_link_timer(struct link_client *client, uint64_t at)
{
    via_timer(via_nic_of(client), at);
}

/* Return whether a frame must not be lost: it belongs to a VI with a lossless connection. The frame is identified by
 * the sender's VI and key, so that only frames of the present connection match. Frames of a handshake are excluded,
 * because they are retransmitted if lost. */
int via_link_must_arrive(struct link_client *client, const struct wire_header *h)
{
    const struct via_nic *nic = via_nic_of(client);
    const struct via_vi *vi = h->src_vi < VIA_MAX_VI ? nic->vi_by_number[h->src_vi] : NULL;
    return vi && vi->lossless && vi->peer_key == h->key && vi->state != VIP_STATE_CONNECT_PENDING;
}

void via_link_discard_arrivals(struct link_client *client, int discard)
{
    struct via_nic *nic = via_nic_of(client);
    nic->discards_arrivals = discard;
    nic->whole_message =
        via_whole_message(nic); /* all frames go through link_deliver(), which checks `discards_arrivals` */
}

/* ---------------------------------------------------------------- the calls */

/* Insert the decorator unless it is there. Return VIP_SUCCESS or VIP_ERROR_RESOURCE. Owner only. From now on nic->ops
 * and nic->link are the decorator's, which passes unaffected frames on to the link behind it. */
static VIP_RETURN decorate(struct via_nic *nic)
{
    if (nic->link_client.fault == NULL && fault_wrap(&nic->link_client, &nic->ops, nic->link) != 0)
        return vk_fail(VIP_ERROR_RESOURCE, "faults: memory is exhausted");
    nic->lossy = 1;
    return VIP_SUCCESS;
}

/* Remove the decorator. Frames that it delayed leave at once. Connections made under it keep running the whole
 * protocol. */
static void undecorate(struct via_nic *nic)
{
    if (nic->link_client.fault)
        fault_unwrap(&nic->link_client, &nic->ops);
    nic->lossy = 0;
}

/* Set the faults; NULL removes the decorator. Frames are counted from 0 from now on, even if faults were set before. */
VIP_RETURN viakit_set_faults(VIP_NIC_HANDLE handle, const viakit_faults *faults)
{
    viakit_faults settled;
    VIP_RETURN code = faults ? fault_settle(faults, &settled) : VIP_SUCCESS;
    struct via_nic *nic = code ? NULL : via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    if (faults == NULL)
        undecorate(nic);
    else if ((code = decorate(nic)) == VIP_SUCCESS)
        fault_set(nic->link_client.fault, &settled);
    via_leave(nic);
    return code;
}

/* Return the faults as settled. If none are set, all fields are 0, which as faults has no effect. */
VIP_RETURN viakit_get_faults(VIP_NIC_HANDLE handle, viakit_faults *faults, int *active)
{
    static const viakit_faults none;
    if (faults == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_get_faults: no place for the faults (NULL)");
    VIP_RETURN code = fault_check_size("viakit_get_faults", faults);
    struct via_nic *nic = code ? NULL : via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    const viakit_faults *set = nic->link_client.fault ? fault_get(nic->link_client.fault) : NULL;
    fault_copy_out(set ? set : &none, faults);
    if (active)
        *active = set != NULL;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* For tests: the filter runs for each frame, as owner of the NIC, so it must not call VIPL. */
VIP_RETURN viakit_set_frame_filter(VIP_NIC_HANDLE handle, viakit_frame_filter filter, void *context)
{
    VIP_RETURN code = VIP_SUCCESS;
    VIA_ENTER_NIC(nic, handle);
    if (filter == NULL)
        undecorate(nic);
    else if ((code = decorate(nic)) == VIP_SUCCESS)
        fault_set_filter(nic->link_client.fault, filter, context);
    via_leave(nic);
    return code;
}

/* Apply the faults in VIAKIT_FAULT, for programs that do not set faults themselves. Called once the NIC is open. */
VIP_RETURN via_faults_from_environment(struct via_nic *nic)
{
    viakit_faults faults = {.size = sizeof faults};
    const char *text = getenv("VIAKIT_FAULT");
    if (text == NULL || *text == 0)
        return VIP_SUCCESS;
    VIP_RETURN code = viakit_parse_faults(text, &faults);
    if (code)
        return code;
    via_enter(nic);
    code = decorate(nic);
    if (code == VIP_SUCCESS)
        fault_set(nic->link_client.fault, &faults);
    via_leave(nic);
    return code;
}
