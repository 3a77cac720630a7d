/*
 * pingpong.c - two programs exchange messages: the smallest complete program for the Virtual Interface Architecture.
 *
 *     pingpong shm                    in one terminal: waits for the other player
 *     pingpong shm localhost 10000    in another: serves, and prints the one-way time
 *
 * The order is always the same: open the NIC, register memory, create a VI, post a receive, connect. The receive comes
 * before the connection: a message without a receive descriptor is lost, or breaks the connection.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>
#include <vipl.h>

#define TABLE "table 1" /* the discriminator distinguishes programs that wait on one host */
#define CHECK(call) check(call, #call)

/* All memory that the NIC accesses is one registered block. Descriptors are aligned to 64 bytes. */
static struct {
    VIP_DESCRIPTOR thrown, caught;
    char ball[64], net[64];
} b __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
static VIP_NET_ADDRESS table[16], other[16]; /* variable length: host bytes, then the discriminator's */
static VIP_NIC_HANDLE nic;
static VIP_VI_HANDLE vi;
static VIP_MEM_HANDLE memory;
static VIP_DESCRIPTOR *done;

static void check(VIP_RETURN code, const char *what)
{
    if (code != VIP_SUCCESS)
        exit((fprintf(stderr, "pingpong: %s: code %d\n", what, (int)code), 1));
}

/* Handles errors without a descriptor. The only expected one: the other player disconnected first. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
    if (e->ErrorCode != VIP_ERROR_CONN_LOST)
        check(VIP_DESCRIPTOR_ERROR, (char *)context);
}

/* Fill a descriptor for one piece of memory. Immediate data travels in the descriptor itself. */
static VIP_DESCRIPTOR *fill(VIP_DESCRIPTOR *d, char *data, VIP_UINT32 immediate)
{
    memset(d, 0, sizeof *d);
    d->CS.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
    d->CS.ImmediateData = immediate;
    d->CS.SegCount = 1;
    d->CS.Length = d->DS[0].Local.Length = sizeof b.ball;
    d->DS[0].Local.Data.Address = data;
    d->DS[0].Local.Handle = memory;
    return d;
}

static void throw_ball(VIP_UINT32 left)
{
    CHECK(VipPostSend(vi, fill(&b.thrown, b.ball, left), memory));
    CHECK(VipSendWait(vi, 5000, &done)); /* only then may the program reuse the descriptor */
}

/* Poll until the ball arrives. The descriptor is reposted before the other side can throw again. Returns the immediate
 * data. Polling needs no time-out here: if the other player ends, the code is an error. */
static VIP_UINT32 catch_ball(void)
{
    VIP_RETURN code;
    VIP_UINT32 left;
    while ((code = VipRecvDone(vi, &done)) == VIP_NOT_DONE)
        continue;
    check(code, "VipRecvDone");
    left = done->CS.ImmediateData;
    CHECK(VipPostRecv(vi, fill(&b.caught, b.net, 0), memory));
    return left;
}

int main(int argc, char **argv)
{
    int serves = argc > 2;
    VIP_UINT32 turns = argc > 3 ? (VIP_UINT32)atoi(argv[3]) : 10000, left = 1;
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 32768, 0, 0, 0, 0}, remote;
    VIP_CONN_HANDLE caller;
    VIP_RETURN code;
    struct timeval t0, t1;

    CHECK(VipOpenNic(argc > 1 ? argv[1] : "shm", &nic));
    CHECK(VipErrorCallback(nic, (char *)"error handler", on_error));
    CHECK(VipRegisterMem(nic, &b, sizeof b, NULL, &memory)); /* no attributes: any VI of this NIC, no RDMA by peers */
    CHECK(VipCreateVi(nic, &attributes, NULL, NULL, &vi));   /* no completion queues: the VI's own calls are polled */
    CHECK(VipPostRecv(vi, fill(&b.caught, b.net, 0), memory));
    CHECK(VipNSInit(nic, NULL));
    CHECK(VipNSGetHostByName(nic, serves ? argv[2] : (char *)"localhost", table, 0));
    table->DiscriminatorLen = sizeof TABLE;
    memcpy(table->HostAddress + table->HostAddressLen, TABLE, sizeof TABLE);
    if (serves) {
        while ((code = VipConnectRequest(vi, NULL, table, 10000, &remote)) == VIP_NO_MATCH || code == VIP_NOT_REACHABLE)
            usleep(10000); /* until the other player waits */
        check(code, "VipConnectRequest");
    } else {
        CHECK(VipConnectWait(nic, table, VIP_INFINITE, other, &remote, &caller));
        CHECK(VipConnectAccept(caller, vi));
    }
    gettimeofday(&t0, NULL);
    /* The number of remaining throws travels with the ball: the player that catches 0 does not throw again. */
    if (serves)
        throw_ball(left = 2 * turns - 1);
    while (left && (left = catch_ball()) > 0)
        throw_ball(--left);
    gettimeofday(&t1, NULL);
    if (serves)
        printf("%.3f us one way\n", ((t1.tv_sec - t0.tv_sec) * 1e6 + t1.tv_usec - t0.tv_usec) / turns / 2);
    CHECK(VipDisconnect(vi)); /* posted descriptors come back, marked as flushed */
    while (VipRecvDone(vi, &done) == VIP_DESCRIPTOR_ERROR && done)
        continue;
    CHECK(VipDestroyVi(vi));
    CHECK(VipDeregisterMem(nic, &b, memory));
    CHECK(VipCloseNic(nic));
    return 0;
}
