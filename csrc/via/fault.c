/*
 * Faults on request: the calls that put the decorator of link/fault.c before a NIC's link and take it away again.
 *
 * While it is there the NIC says so to its peers (`lossy`): connections made meanwhile run the whole protocol even over a link that loses
 * nothing.
 */
#include "../link/fault.h"
#include "internal.h"

VIP_RETURN viakit_set_frame_filter(VIP_NIC_HANDLE handle, viakit_frame_filter filter, void *context)
{
    VIP_RETURN code = VIP_SUCCESS;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    if (nic->fault == NULL && filter && fault_wrap(nic, &nic->ops, &nic->link) == 0)
        nic->fault = nic->link;
    if (filter && nic->fault == NULL)
        code = via_fail(VIP_ERROR_RESOURCE, "viakit_set_frame_filter: memory is exhausted");
    else if (filter)
        fault_set_filter(nic->fault, filter, context);
    else if (nic->fault) {
        fault_unwrap(&nic->ops, &nic->link);
        nic->fault = NULL;
    }
    nic->lossy = nic->fault != NULL;
    via_leave(nic);
    return code;
}
