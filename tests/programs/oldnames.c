/* oldnames.c - names that headers of the time had: callback types, struct tags, VIP_ERROR and VIP_BASE_SERVICES:
 * oldnames DEVICE HOST. Notifications take their callbacks by those types. */
#include "old.h"

static volatile int got;

static void on_vi(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, struct _VIP_DESCRIPTOR *d)
{
    (void)n;
    EXPECT(context == memory && v == vi && (d->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    got++;
}

static void on_cq(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_BOOLEAN recv)
{
    VIP_DESCRIPTOR *d = NULL;
    (void)n;
    EXPECT(context == memory && recv == VIP_TRUE);
    TRY(VipRecvDone(v, &d));
    got++;
}

static VIP_VI_CALLBACK vi_callback = on_vi;
static VIP_CQ_CALLBACK cq_callback = on_cq;

int main(int argc, char **argv)
{
    struct _VIP_VI_ATTRIBUTES attributes;
    struct _VIP_NIC_ATTRIBUTES about;
    struct _VIP_MEM_ATTRIBUTES rights;
    enum _VIP_ERROR_CODE code = VIP_ERROR_CONN_LOST;
    struct _VIP_NET_ADDRESS *none = NULL;
    VIP_CQ_HANDLE cq;
    VIP_DESCRIPTOR *d = NULL;
    int serves, i;
    EXPECT(argc == 3 && none == NULL && code == 1);
    serves = strcmp(argv[2], "-") == 0;
    open_nic(argv[1]);
    TRY(VipQueryNic(nic, &about));
    EXPECT((about.ReliabilityLevelSupport & VIP_BASE_SERVICES) == VIP_BASE_SERVICES && VIP_BASE_SERVICES == 7);
    allocate();
    memset(&rights, 0, sizeof(rights));
    TRY(VipRegisterMem(nic, memory, ROOM, &rights, &handle));
    memset(&attributes, 0, sizeof(attributes));
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    TRY(VipCreateCQ(nic, 16, &cq));
    TRY(VipCreateVi(nic, &attributes, NULL, cq, &vi));
    EXPECT(VipRecvDone(vi, &d) == VIP_ERROR && d == NULL);
    TRY(VipPostRecv(vi, fill(0, data_at(0), 64), handle));
    TRY(VipCQNotify(cq, memory, cq_callback));
    connect_to(argv[2]);
    TRY(VipPostSend(vi, fill(1, data_at(64), 64), handle));
    TRY(VipSendNotify(vi, memory, vi_callback));
    for (i = 0; i < PATIENT && got < 2; i++)
        usleep(1000);
    EXPECT(got == 2);
    printf("done %d\n", serves);
    TRY(VipDisconnect(vi));
    TRY(VipCloseNic(nic));
    return 0;
}
