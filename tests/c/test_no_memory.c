/*
 * test_no_memory.c - what calls say for which the process has no memory left, under a limit of its address space: that
 * it is memory that is missing, and which limit there is; not that there are too many of something.
 */
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <string.h>

#include "address.h"
#include "check.h"
#include "space.h"
#include "viakit.h"

static void no_memory_for(const char *function)
{
    CHECK(strncmp(viakit_last_error(), function, strlen(function)) == 0);
    CHECK(strstr(viakit_last_error(), "no memory") != NULL);
    CHECK(strstr(viakit_last_error(), "ulimit -v") != NULL);
}

int main(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    puts("sanitizers have to map memory of their own");
    return CHECK_SKIPPED;
#endif
    VIP_NIC_HANDLE nic, other;
    VIP_PROTECTION_HANDLE tag;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES attributes = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY};
    check_deadline(30);
    CHECK_OK(VipOpenNic("loop", &nic));
    limit_address_space(1);
    CHECK_RET(VipCreatePtag(nic, &tag), VIP_ERROR_RESOURCE);
    no_memory_for("VipCreatePtag");
    CHECK_RET(VipCreateVi(nic, &attributes, NULL, NULL, &vi), VIP_ERROR_RESOURCE);
    no_memory_for("VipCreateVi");
    CHECK_RET(VipCreateCQ(nic, 8, &cq), VIP_ERROR_RESOURCE);
    no_memory_for("VipCreateCQ");
    CHECK_RET(VipOpenNic("loop", &other), VIP_ERROR_RESOURCE);
    no_memory_for("VipOpenNic");
    limit_address_space(0);
    CHECK_OK(VipCreatePtag(nic, &tag));
    CHECK_OK(VipCreateCQ(nic, 8, &cq));
    attributes.Ptag = tag;
    CHECK_OK(VipCreateVi(nic, &attributes, NULL, cq, &vi));
    CHECK_OK(VipDestroyVi(vi));
    CHECK_OK(VipDestroyCQ(cq));
    CHECK_OK(VipDestroyPtag(nic, tag));
    CHECK_OK(VipCloseNic(nic));
    return 0;
}
