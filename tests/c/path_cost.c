/*
 * path_cost.c - what one message costs on the loss-free path, in instructions: both ends of a connection are in one
 * thread, on link loop, so the program never waits and uses one core.
 *
 * Built twice, path_cost with all that the library has, path_cost_bare without its taps (VIAKIT_NO_TAPS); `make bench`
 * runs the two in turns. Not a test: it asserts no time.
 *
 *     path_cost [BATCHES [NBYTES]]
 *
 * Prints the nanoseconds per message of each batch, one per line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "check.h"
#include "vipl.h"

#define BATCH 2000
#define MOST 65536

struct end {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_HANDLE vi;
    VIP_MEM_HANDLE handle;
    struct {
        VIP_DESCRIPTOR send, receive;
        char data[2 * MOST];
    } *memory;
};

/* One descriptor with one segment; `how` is VipPostSend or VipPostRecv. */
static void post(struct end *e, VIP_DESCRIPTOR *d, char *data, size_t len,
                 VIP_RETURN (*how)(VIP_VI_HANDLE, VIP_DESCRIPTOR *, VIP_MEM_HANDLE))
{
    d->CS.Control = 0;
    d->CS.SegCount = 1;
    d->CS.Length = d->DS[0].Local.Length = (VIP_UINT32)len;
    d->DS[0].Local.Data.Address = data;
    d->DS[0].Local.Handle = e->handle;
    CHECK_OK(how(e->vi, d, e->handle));
}

/* Between equals, by the names a and b: neither end has to wait in a thread. */
static void open_end(struct end *e, int which)
{
    union {
        VIP_NET_ADDRESS net;
        char room[32];
    } local = {.room = ""}, remote;
    VIP_NIC_ATTRIBUTES attributes;
    CHECK_OK(VipOpenNic("loop:cost", &e->nic));
    CHECK_OK(VipQueryNic(e->nic, &attributes));
    CHECK_OK(VipCreatePtag(e->nic, &e->ptag));
    VIP_VI_ATTRIBUTES a = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY, .Ptag = e->ptag};
    CHECK_OK(VipCreateVi(e->nic, &a, NULL, NULL, &e->vi));
    VIP_MEM_ATTRIBUTES m = {.Ptag = e->ptag};
    CHECK(posix_memalign((void **)&e->memory, 4096, sizeof *e->memory) == 0);
    memset(e->memory, 0, sizeof *e->memory);
    CHECK_OK(VipRegisterMem(e->nic, e->memory, sizeof *e->memory, &m, &e->handle));
    local.net.HostAddressLen = attributes.NicAddressLen;
    local.net.DiscriminatorLen = 1;
    memcpy(local.net.HostAddress, attributes.LocalNicAddress, attributes.NicAddressLen);
    remote = local;
    local.net.HostAddress[attributes.NicAddressLen] = (VIP_UINT8)('a' + which);
    remote.net.HostAddress[attributes.NicAddressLen] = (VIP_UINT8)('b' - which);
    CHECK_OK(VipConnectPeerRequest(e->vi, &local.net, &remote.net, 10000));
}

/* Posted, sent, received and taken off both queues: all that a program does per message. */
static void send_over(struct end *from, struct end *to, size_t len)
{
    VIP_DESCRIPTOR *d;
    post(to, &to->memory->receive, to->memory->data, len, VipPostRecv);
    post(from, &from->memory->send, from->memory->data + MOST, len, VipPostSend);
    while (VipRecvDone(to->vi, &d) == VIP_NOT_DONE) {}
    while (VipSendDone(from->vi, &d) == VIP_NOT_DONE) {}
}

int main(int argc, char **argv)
{
    int batches = argc > 1 ? atoi(argv[1]) : 101;
    size_t len = argc > 2 ? (size_t)atol(argv[2]) : 8;
    struct end ends[2];
    VIP_VI_ATTRIBUTES a;
    if (batches < 1 || len > MOST) {
        fprintf(stderr, "path_cost: BATCHES is at least 1, NBYTES at most %d\n", MOST);
        return 2;
    }
    for (int i = 0; i < 2; i++)
        open_end(&ends[i], i);
    for (int i = 0; i < 2; i++) {
        VIP_RETURN code;
        WAIT_UNTIL((code = VipConnectPeerDone(ends[i].vi, &a)) != VIP_NOT_DONE);
        CHECK_OK(code);
    }
    for (int i = -1; i < batches; i++) { /* the first one warms up */
        uint64_t began = vk_now();
        for (int k = 0; k < BATCH / 2; k++) {
            send_over(&ends[0], &ends[1], len);
            send_over(&ends[1], &ends[0], len);
        }
        if (i >= 0)
            printf("%.3f\n", (double)(vk_now() - began) / BATCH);
    }
    /* Flushes what is posted, so the VIs can go. */
    for (int i = 0; i < 2; i++)
        VipDisconnect(ends[i].vi);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(VipDestroyVi(ends[i].vi));
        CHECK_OK(VipDeregisterMem(ends[i].nic, ends[i].memory, ends[i].handle));
        CHECK_OK(VipDestroyPtag(ends[i].nic, ends[i].ptag));
        CHECK_OK(VipCloseNic(ends[i].nic));
        free(ends[i].memory);
    }
    return 0;
}
