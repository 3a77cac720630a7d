/*
 * rdmawrite.c - writes into the memory of a program that makes no call: it only polls its own memory.
 *
 *     rdmawrite shm                   in one terminal: the target
 *     rdmawrite shm localhost 1000    in another: writes 1000 pages, and finds the replies in its own memory
 *
 *     send {address, handle, pages} <-------------> receive       both ways, once: after that nothing is posted
 *     RDMA write, number in every word ===========> in[]          until the last word is the number: it is stored last
 *     in[]                             <=========== RDMA write    the same the other way
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vipl.h>

#define SERVICE "pages" /* the discriminator */
#define WORDS 1024
#define CHECK(call) check(call, #call)

static struct {
    VIP_DESCRIPTOR send, recv;     /* 64 bytes each, with space for two segments */
    volatile VIP_UINT32 in[WORDS]; /* the other side writes here */
    VIP_UINT32 out[WORDS];
    VIP_UINT64 own[3], remote[3]; /* address and handle of `in`, number of pages */
} b __attribute__((aligned(4096)));
static VIP_NET_ADDRESS here[16], there[16];
static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE memory;
static VIP_DESCRIPTOR *done;

static void check(VIP_RETURN code, const char *what)
{
    if (code != VIP_SUCCESS)
        exit((fprintf(stderr, "rdmawrite: %s: code %d\n", what, (int)code), 1));
}

/* Handles errors without a descriptor. The only expected one: the other side disconnected first. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
    if (e->ErrorCode != VIP_ERROR_CONN_LOST)
        check(VIP_DESCRIPTOR_ERROR, (char *)context);
}

static VIP_DESCRIPTOR *fill(VIP_DESCRIPTOR *d, int control, int i, void *data, VIP_UINT32 len)
{ /* segment i: a piece of this program's memory */
    d->CS.Control = (VIP_UINT16)control;
    d->CS.SegCount = (VIP_UINT16)(i + 1);
    d->CS.Length = d->DS[i].Local.Length = len;
    d->DS[i].Local.Data.Address = data;
    d->DS[i].Local.Handle = memory;
    d->CS.Status = 0;
    return d;
}

/* The first segment names the destination in the peer's memory, the second the local data. */
static void write_page(VIP_UINT32 number)
{
    int i;
    for (i = 0; i < WORDS; i++)
        b.out[i] = number;
    b.send.DS[0].Remote.Data.AddressBits = b.remote[0];
    b.send.DS[0].Remote.Handle = (VIP_UINT32)b.remote[1];
    CHECK(VipPostSend(vi, fill(&b.send, VIP_CONTROL_OP_RDMAWRITE, 1, b.out, sizeof b.out), memory));
    CHECK(VipSendWait(vi, 5000, &done));
}

/* No call to VIPL: the page arrives while this loop, or other work, runs. Off x86 it needs a load-acquire. */
static void await_page(VIP_UINT32 number)
{
    int i;
    while (b.in[WORDS - 1] != number)
        sched_yield();
    for (i = 0; i < WORDS; i++)
        check(b.in[i] == number ? VIP_SUCCESS : VIP_NOT_DONE, "the last word came first");
}

int main(int argc, char **argv)
{
    VIP_UINT32 writes = argc > 2, pages = argc > 3 ? (VIP_UINT32)atoi(argv[3]) : 1000, n;
    VIP_MEM_ATTRIBUTES rights = {NULL, VIP_TRUE, VIP_FALSE}; /* remote writes are allowed here, through the VI below */
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 32768, 0, 0, VIP_TRUE, 0}, remote;
    VIP_CONN_HANDLE caller;
    VIP_RETURN code;

    CHECK(VipOpenNic(argc > 1 ? argv[1] : "shm", &nic));
    CHECK(VipErrorCallback(nic, (char *)"error handler", on_error));
    CHECK(VipRegisterMem(nic, &b, sizeof b, &rights, &memory));
    CHECK(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
    CHECK(VipPostRecv(vi, fill(&b.recv, VIP_CONTROL_OP_SENDRECV, 0, b.remote, sizeof b.remote), memory));
    CHECK(VipNSGetHostByName(nic, writes ? argv[2] : (char *)"localhost", there, 0));
    there->DiscriminatorLen = sizeof SERVICE;
    memcpy(there->HostAddress + there->HostAddressLen, SERVICE, sizeof SERVICE);
    if (writes) {
        while ((code = VipConnectRequest(vi, NULL, there, 10000, &remote)) == VIP_NO_MATCH || code == VIP_NOT_REACHABLE)
            sched_yield(); /* until the target waits */
        check(code, "VipConnectRequest");
    } else {
        CHECK(VipConnectWait(nic, there, VIP_INFINITE, here, &remote, &caller));
        CHECK(VipConnectAccept(caller, vi));
    }
    b.own[0] = (unsigned long)b.in;
    b.own[1] = memory;
    b.own[2] = pages;
    CHECK(VipPostSend(vi, fill(&b.send, VIP_CONTROL_OP_SENDRECV, 0, b.own, sizeof b.own), memory));
    CHECK(VipSendWait(vi, 5000, &done));
    CHECK(VipRecvWait(vi, 5000, &done));
    for (n = 1; n <= (writes ? pages : b.remote[2]); n++) {
        if (writes)
            write_page(n);
        await_page(n);
        if (!writes)
            write_page(n);
    }
    printf("all pages came, word for word\n");
    CHECK(VipDisconnect(vi));
    return VipCloseNic(nic); /* also frees the VI and the memory */
}
