/* notag.c - a program that gives a tag to its VI, to its memory, to both or to neither: notag DEVICE HOST VI MEMORY,
 * the last two being "tag", "null" or, for memory, "none" (no attributes). All combinations exchange messages; with
 * rights the client writes, too, by RDMA with immediate data. */
#include "old.h"

#define LONG 30000

static VIP_DESCRIPTOR *received(void)
{
    VIP_DESCRIPTOR *d = NULL;
    TRY(VipRecvWait(vi, PATIENT, &d));
    return d;
}

static void sent(VIP_DESCRIPTOR *d)
{
    VIP_DESCRIPTOR *done = NULL;
    TRY(VipPostSend(vi, d, handle));
    TRY(VipSendWait(vi, PATIENT, &done));
    EXPECT(done == d);
}

/* Where the client may write: sent as it lies in memory. */
struct place {
    VIP_UINT64 at;
    VIP_MEM_HANDLE handle;
};

static void serve(int rdma)
{
    struct place *here = (struct place *)(void *)data_at(0);
    VIP_DESCRIPTOR *d = received();
    EXPECT(d->CS.Length == 5 && memcmp(d->DS[0].Local.Data.Address, "hello", 5) == 0);
    here->at = (VIP_UINT64)(unsigned long)data_at(4096);
    here->handle = handle;
    sent(fill(10, data_at(0), sizeof(*here)));
    if (!rdma)
        return;
    d = received();
    EXPECT((d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_REMOTE_RDMA_WRITE);
    EXPECT(d->CS.ImmediateData == LONG && d->CS.Length == 0);
    EXPECT(data_at(4096)[0] == 'x' && data_at(4096)[LONG - 1] == 'x');
    sent(fill(11, data_at(0), 0));
}

static void ask(int rdma)
{
    struct place there;
    VIP_DESCRIPTOR *d;
    memcpy(data_at(0), "hello", 5);
    sent(fill(10, data_at(0), 5));
    memcpy(&there, received()->DS[0].Local.Data.Address, sizeof(there));
    if (!rdma)
        return;
    memset(data_at(4096), 'x', LONG);
    d = fill(11, NULL, 0);
    d->CS.Control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
    d->CS.ImmediateData = d->CS.Length = LONG;
    d->CS.SegCount = 2;
    d->DS[0].Remote.Data.AddressBits = there.at;
    d->DS[0].Remote.Handle = there.handle;
    d->DS[1].Local.Data.Address = data_at(4096);
    d->DS[1].Local.Handle = handle;
    d->DS[1].Local.Length = LONG;
    sent(d);
    received();
}

int main(int argc, char **argv)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_MEM_ATTRIBUTES rights;
    VIP_PROTECTION_HANDLE tag = NULL;
    int rdma, i;
    EXPECT(argc == 5);
    rdma = strcmp(argv[4], "none") != 0;
    open_nic(argv[1]);
    if (strcmp(argv[3], "tag") == 0 || strcmp(argv[4], "tag") == 0)
        TRY(VipCreatePtag(nic, &tag));
    memset(&rights, 0, sizeof(rights));
    rights.Ptag = strcmp(argv[4], "tag") == 0 ? tag : NULL;
    rights.EnableRdmaWrite = VIP_TRUE;
    allocate();
    TRY(VipRegisterMem(nic, memory, ROOM, rdma ? &rights : NULL, &handle));
    memset(&attributes, 0, sizeof(attributes));
    attributes.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    attributes.MaxTransferSize = 65536;
    attributes.EnableRdmaWrite = VIP_TRUE;
    attributes.Ptag = strcmp(argv[3], "tag") == 0 ? tag : NULL;
    TRY(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
    for (i = 0; i < 2; i++)
        TRY(VipPostRecv(vi, fill(i, data_at(1024 + 64 * i), 64), handle));
    connect_to(argv[2]);
    if (strcmp(argv[2], "-") == 0)
        serve(rdma);
    else
        ask(rdma);
    printf("done\n");
    TRY(VipDisconnect(vi));
    TRY(VipCloseNic(nic));
    return 0;
}
