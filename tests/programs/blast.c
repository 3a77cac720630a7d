/*
 * blast.c - a program as it was written for Giganet cLAN in about 2001: streams messages to a server, with credits.
 *
 * Nothing in it knows viakit. It does what programs did and a provider has to bear. It uses either naming of the
 * descriptor (-DVIPL095 or not), hard-coded address lengths and uninitialised buffers of the name service. Descriptors
 * and their data are carved out of one block that is registered once, and both queues of a VI are on one completion
 * queue. A discriminator has an odd address, and messages have no data. Its order is disconnect, drain, destroy,
 * deregister.
 *
 *     blast                      serves one client
 *     blast -h HOST [-n COUNT]   sends COUNT messages
 *     -d DEVICE                  instead of VI_DEVICE in the environment, or /dev/clanvi0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <vipl.h>

#ifdef VIPL095
#define CTL(d) ((d)->CS)
#define SEG(d, i) ((d)->DS[i].Local)
#else
#define CTL(d) ((d)->Control)
#define SEG(d, i) ((d)->Data[i])
#endif

#define NIC_ADDR_LEN 6 /* Ethernet, what else */
#define PORT 4711
#define NBUF 16
#define BUFSIZE 4096 /* descriptor and data */
#define MSGSIZE (BUFSIZE - sizeof(VIP_DESCRIPTOR))
#define TIMEOUT 5000

static VIP_NIC_HANDLE nic;
static VIP_NIC_ATTRIBUTES nicAttr;
static VIP_PROTECTION_HANDLE ptag;
static VIP_MEM_HANDLE memHandle;
static VIP_VI_HANDLE vi;
static VIP_CQ_HANDLE cq;
static VIP_DESCRIPTOR *sendDesc[NBUF], *recvDesc[NBUF];
static char *block, *pool;

#define DATA(d) ((char *)(d) + sizeof(VIP_DESCRIPTOR))

static void fatal(char *where, VIP_RETURN rc)
{
    fprintf(stderr, "blast: %s returned %d\n", where, rc);
    exit(1);
}

#define TRY(f, args)             \
    do {                         \
        VIP_RETURN rc_ = f args; \
        if (rc_ != VIP_SUCCESS)  \
            fatal(#f, rc_);      \
    } while (0)

static void errorHandler(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *err)
{
    if (err->ErrorCode == VIP_ERROR_CONN_LOST && err->ResourceCode == VIP_RESOURCE_VI)
        return; /* the other side has finished */
    fprintf(stderr, "blast: %s: asynchronous error %d\n", (char *)context, err->ErrorCode);
    exit(1);
}

/* Descriptors sit right before their data, all in one registered block. */
static void allocateBuffers(void)
{
    VIP_MEM_ATTRIBUTES memAttr;
    VIP_ULONG length = 2 * NBUF * BUFSIZE;
    int i;

    block = malloc(length + VIP_DESCRIPTOR_ALIGNMENT);
    pool = (char *)(((unsigned long)block + VIP_DESCRIPTOR_ALIGNMENT - 1) & ~(VIP_DESCRIPTOR_ALIGNMENT - 1UL));
    memAttr.Ptag = ptag;
    memAttr.EnableRdmaWrite = VIP_FALSE;
    memAttr.EnableRdmaRead = VIP_FALSE;
    TRY(VipRegisterMem, (nic, pool, length, &memAttr, &memHandle));
    for (i = 0; i < NBUF; i++) {
        sendDesc[i] = (VIP_DESCRIPTOR *)(pool + 2 * i * BUFSIZE);
        recvDesc[i] = (VIP_DESCRIPTOR *)(pool + (2 * i + 1) * BUFSIZE);
    }
}

static void postRecv(VIP_DESCRIPTOR *d)
{
    CTL(d).Control = VIP_CONTROL_OP_SENDRECV;
    CTL(d).SegCount = 1;
    CTL(d).Reserved = 0;
    CTL(d).Length = MSGSIZE;
    CTL(d).Status = 0;
    SEG(d, 0).Data.Address = DATA(d);
    SEG(d, 0).Handle = memHandle;
    SEG(d, 0).Length = MSGSIZE;
    TRY(VipPostRecv, (vi, d, memHandle));
}

static void postSend(VIP_DESCRIPTOR *d, int length, VIP_UINT32 immediate)
{
    CTL(d).Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
    CTL(d).SegCount = length ? 1 : 0;
    CTL(d).Reserved = 0;
    CTL(d).ImmediateData = immediate;
    CTL(d).Length = length;
    CTL(d).Status = 0;
    SEG(d, 0).Data.Address = DATA(d);
    SEG(d, 0).Handle = memHandle;
    SEG(d, 0).Length = length;
    TRY(VipPostSend, (vi, d, memHandle));
}

/* Host address, then four bytes of port number, at an odd place. The name service fills in what it knows and
 * finds in the rest whatever malloc left there. */
static VIP_NET_ADDRESS *makeAddress(char *host, int port)
{
    VIP_NET_ADDRESS *address = malloc(sizeof(VIP_NET_ADDRESS) + NIC_ADDR_LEN + sizeof(port));

    memset(address, 0xEE, sizeof(VIP_NET_ADDRESS) + NIC_ADDR_LEN + sizeof(port));
    TRY(VipNSGetHostByName, (nic, host, address, 0));
    address->HostAddressLen = NIC_ADDR_LEN;
    address->DiscriminatorLen = sizeof(port);
    memcpy(address->HostAddress + NIC_ADDR_LEN, &port, sizeof(port));
    return address;
}

static void connectTo(char *host)
{
    VIP_NET_ADDRESS *local = makeAddress("localhost", PORT), *remote = makeAddress(host ? host : "localhost", PORT);
    VIP_VI_ATTRIBUTES remoteAttr;
    VIP_CONN_HANDLE conn;
    VIP_RETURN rc;

    if (host) {
        do {
            rc = VipConnectRequest(vi, local, remote, TIMEOUT, &remoteAttr);
            if (rc == VIP_NO_MATCH || rc == VIP_NOT_REACHABLE)
                usleep(10000);
        } while (rc == VIP_NO_MATCH || rc == VIP_NOT_REACHABLE);
        if (rc != VIP_SUCCESS)
            fatal("VipConnectRequest", rc);
    } else {
        TRY(VipConnectWait, (nic, local, VIP_INFINITE, remote, &remoteAttr, &conn));
        if (remoteAttr.ReliabilityLevel != VIP_SERVICE_RELIABLE_DELIVERY)
            fatal("remote reliability", VIP_INVALID_RELIABILITY_LEVEL);
        TRY(VipConnectAccept, (conn, vi));
    }
    free(local);
    free(remote);
}

/* One completion of either queue, from the completion queue and then from the work queue. */
static VIP_DESCRIPTOR *nextDone(VIP_BOOLEAN *isRecv)
{
    VIP_VI_HANDLE which;
    VIP_DESCRIPTOR *d;

    TRY(VipCQWait, (cq, TIMEOUT, &which, isRecv));
    if (which != vi)
        fatal("VipCQWait, another VI", VIP_ERROR_RESOURCE);
    if (*isRecv)
        TRY(VipRecvDone, (which, &d));
    else
        TRY(VipSendDone, (which, &d));
    if ((CTL(d).Status & VIP_STATUS_ERROR_MASK) || !(CTL(d).Status & VIP_STATUS_DONE))
        fatal("descriptor status", VIP_DESCRIPTOR_ERROR);
    return d;
}

/* Every message carries its number and is filled with it; the last has immediate data 0. */
static int serve(void)
{
    VIP_DESCRIPTOR *d;
    VIP_BOOLEAN isRecv;
    VIP_UINT32 more = 1;
    int n = 0, credits = 0, sends = 0, posted = 0;
    VIP_ULONG i;

    while (more || sends) {
        d = nextDone(&isRecv);
        if (!isRecv) {
            sends--;
            continue;
        }
        for (i = 0; i < CTL(d).Length; i++)
            if (DATA(d)[i] != (char)n)
                fatal("contents", VIP_DESCRIPTOR_ERROR);
        more = CTL(d).ImmediateData;
        n++;
        postRecv(d);
        if (++credits == NBUF / 2 || !more) {
            postSend(sendDesc[posted++ % NBUF], 0, credits); /* no data: the immediate word says it all */
            sends++;
            credits = 0;
        }
    }
    return n;
}

static int blast(int count)
{
    VIP_DESCRIPTOR *d;
    VIP_BOOLEAN isRecv;
    int n = 0, credits = NBUF, unreaped = 0, length;

    while (n < count || credits < NBUF || unreaped) {
        if (n < count && credits && unreaped < NBUF) {
            length = n * 37 % (MSGSIZE + 1);
            d = sendDesc[n % NBUF];
            memset(DATA(d), n, length);
            postSend(d, length, count - 1 - n);
            n++;
            credits--;
            unreaped++;
            continue;
        }
        d = nextDone(&isRecv);
        if (isRecv) {
            credits += CTL(d).ImmediateData;
            postRecv(d);
        } else
            unreaped--;
    }
    return n;
}

static void cleanUp(void)
{
    VIP_DESCRIPTOR *d;
    VIP_RETURN rc;
    VIP_VI_HANDLE which;
    VIP_BOOLEAN isRecv;
    int flushed = 0;

    TRY(VipDisconnect, (vi));
    while ((rc = VipRecvDone(vi, &d)) == VIP_DESCRIPTOR_ERROR && d != NULL)
        flushed++;
    if (flushed != NBUF)
        fatal("draining", rc);
    while (VipCQDone(cq, &which, &isRecv) == VIP_SUCCESS)
        ;
    TRY(VipDisconnect, (vi)); /* once more does no harm */
    TRY(VipDestroyVi, (vi));
    TRY(VipDestroyCQ, (cq));
    TRY(VipDeregisterMem, (nic, pool, memHandle));
    TRY(VipDestroyPtag, (nic, ptag));
    TRY(VipNSShutdown, (nic));
    TRY(VipCloseNic, (nic));
    free(block);
}

int main(int argc, char *argv[])
{
    char *device = getenv("VI_DEVICE"), *host = NULL;
    VIP_VI_ATTRIBUTES viAttr;
    int c, i, n, count = 1000;

    if (device == NULL)
        device = "/dev/clanvi0";
    while ((c = getopt(argc, argv, "d:h:n:")) != -1)
        switch (c) {
        case 'd':
            device = optarg;
            break;
        case 'h':
            host = optarg;
            break;
        case 'n':
            count = atoi(optarg);
            break;
        default:
            return 2;
        }
    TRY(VipOpenNic, (device, &nic));
    TRY(VipErrorCallback, (nic, (VIP_PVOID) "blast", errorHandler));
    TRY(VipNSInit, (nic, NULL));
    TRY(VipQueryNic, (nic, &nicAttr));
    printf("%s: MTU %ld, %ld VIs, %lu bytes at most\n", nicAttr.Name, nicAttr.NativeMTU, nicAttr.MaxVI,
           nicAttr.MaxTransferSize);
    TRY(VipCreatePtag, (nic, &ptag));
    allocateBuffers();
    TRY(VipCreateCQ, (nic, 4 * NBUF, &cq));
    viAttr.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    viAttr.MaxTransferSize = nicAttr.MaxTransferSize;
    viAttr.QoS = 0;
    viAttr.Ptag = ptag;
    viAttr.EnableRdmaWrite = VIP_FALSE;
    viAttr.EnableRdmaRead = VIP_FALSE;
    TRY(VipCreateVi, (nic, &viAttr, cq, cq, &vi));
    for (i = 0; i < NBUF; i++)
        postRecv(recvDesc[i]);
    connectTo(host);
    n = host ? blast(count) : serve();
    cleanUp();
    printf("%d messages\n", n);
    return 0;
}
