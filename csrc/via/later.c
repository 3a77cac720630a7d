/* The functions of VIPL that this provider does not offer yet: all answer VIP_ERROR_NOT_SUPPORTED, whatever they are given. */
#include "internal.h"

#define UNUSED(x) (void)(x)

VIP_RETURN VipQuerySystemManagementInfo(VIP_NIC_HANDLE nic, VIP_ULONG type, VIP_PVOID info)
{
    UNUSED(nic), UNUSED(type), UNUSED(info);
    return via_unsupported(__func__);
}

VIP_RETURN VipSendNotify(VIP_VI_HANDLE vi, VIP_PVOID context, VIP_DESC_HANDLER callback)
{
    UNUSED(vi), UNUSED(context), UNUSED(callback);
    return via_unsupported(__func__);
}

VIP_RETURN VipRecvNotify(VIP_VI_HANDLE vi, VIP_PVOID context, VIP_DESC_HANDLER callback)
{
    UNUSED(vi), UNUSED(context), UNUSED(callback);
    return via_unsupported(__func__);
}

VIP_RETURN VipCQNotify(VIP_CQ_HANDLE cq, VIP_PVOID context, VIP_CQ_HANDLER callback)
{
    UNUSED(cq), UNUSED(context), UNUSED(callback);
    return via_unsupported(__func__);
}

VIP_RETURN VipNSGetHostByAddr(VIP_NIC_HANDLE nic, VIP_NET_ADDRESS *address, VIP_CHAR *name, VIP_ULONG *len)
{
    UNUSED(nic), UNUSED(address), UNUSED(name), UNUSED(len);
    return via_unsupported(__func__);
}

VIP_RETURN VipAddTagCQ(VIP_CQ_HANDLE cq, VIP_EVENT_HANDLE event, VIP_ULONG tag, VIP_ULONG priority)
{
    UNUSED(cq), UNUSED(event), UNUSED(tag), UNUSED(priority);
    return via_unsupported(__func__);
}

VIP_RETURN VipRemoveTagCQ(VIP_CQ_HANDLE cq, VIP_EVENT_HANDLE event, VIP_ULONG tag)
{
    UNUSED(cq), UNUSED(event), UNUSED(tag);
    return via_unsupported(__func__);
}

VIP_RETURN VipPostDeferredSends(VIP_VI_HANDLE vi, VIP_BOOLEAN enable, VIP_BOOLEAN *deferred)
{
    UNUSED(vi), UNUSED(enable), UNUSED(deferred);
    return via_unsupported(__func__);
}
