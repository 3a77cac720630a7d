/*
 * manyvis.c - one completion queue over many VIs: a server waits for all of its clients at once.
 *
 *     manyvis loop              server and clients in one process, as two threads
 *     manyvis shm serve         the server alone, for eight clients ...
 *     manyvis shm localhost     ... which are these
 *
 * An entry names the VI that has a completion. The descriptor is then reaped from that VI's queue as usual.
 *
 *     client 0  VI ---- VI --.
 *     client 1  VI ---- VI ---+-- completion queue -- VipCQWait -> vi -- VipRecvDone(vi) -> descriptor
 *     ...           ... ... --'
 */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vipl.h>

#define SERVICE "many" /* the discriminator */
#define CLIENTS 8
#define ROUNDS 100
#define CHECK(call) check(call, #call)

/* The data of one VI, on either side. The receive is first, so a completed descriptor's address is that of its line. */
struct line {
    VIP_DESCRIPTOR recv, send;
    char in[64], out[64];
} __attribute__((aligned(VIP_DESCRIPTOR_ALIGNMENT)));
static struct line lines[2][CLIENTS]; /* the server's and the clients': with `loop` both are in this process */
static char *device;

static void check(VIP_RETURN code, const char *what)
{
    if (code != VIP_SUCCESS)
        exit((fprintf(stderr, "manyvis: %s: code %d\n", what, (int)code), 1));
}

/* Handles errors without a descriptor. The only expected one: the other side disconnected first. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
    if (e->ErrorCode != VIP_ERROR_CONN_LOST)
        check(VIP_DESCRIPTOR_ERROR, (char *)context);
}

static VIP_DESCRIPTOR *fill(VIP_DESCRIPTOR *d, char *data, VIP_MEM_HANDLE memory)
{
    memset(d, 0, sizeof *d); /* a completed descriptor holds its results */
    d->CS.SegCount = 1;
    d->CS.Length = d->DS[0].Local.Length = 64;
    d->DS[0].Local.Data.Address = data;
    d->DS[0].Local.Handle = memory;
    return d;
}

static void send_line(VIP_VI_HANDLE vi, struct line *l, VIP_MEM_HANDLE memory)
{
    VIP_DESCRIPTOR *done;
    CHECK(VipPostSend(vi, fill(&l->send, l->out, memory), memory));
    CHECK(VipSendWait(vi, 5000, &done)); /* send queues have no completion queue here, so waiting on them is allowed */
}

/* The server (host is NULL), or the clients of a server at host. */
static void *run(void *host)
{
    VIP_VI_ATTRIBUTES attributes = {VIP_SERVICE_RELIABLE_DELIVERY, 32768, 0, 0, 0, 0}, remote;
    VIP_NET_ADDRESS address[16], caller[16];
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_MEM_HANDLE memory;
    VIP_CONN_HANDLE request;
    VIP_DESCRIPTOR *done;
    VIP_BOOLEAN is_recv;
    struct line *l = lines[host != NULL];
    int i;

    CHECK(VipOpenNic(device, &nic));
    CHECK(VipErrorCallback(nic, (char *)"error handler", on_error));
    CHECK(VipRegisterMem(nic, l, sizeof lines[0], NULL, &memory));
    CHECK(VipNSGetHostByName(nic, (char *)(host ? host : "localhost"), address, 0));
    address->DiscriminatorLen = sizeof SERVICE;
    memcpy(address->HostAddress + address->HostAddressLen, SERVICE, sizeof SERVICE);
    CHECK(VipCreateCQ(nic, CLIENTS, &cq)); /* room for all simultaneous completions: an overflow loses entries */
    for (i = 0; i < CLIENTS; i++, l++) {
        CHECK(VipCreateVi(nic, &attributes, NULL, cq, &vi));
        /* Before the connection, so that an arriving message finds it. */
        CHECK(VipPostRecv(vi, fill(&l->recv, l->in, memory), memory));
        if (host) {
            while (VipConnectRequest(vi, NULL, address, 10000, &remote) != VIP_SUCCESS)
                sched_yield(); /* until the server waits */
            send_line(vi, l, memory);
        } else {
            CHECK(VipConnectWait(nic, address, VIP_INFINITE, caller, &remote, &request));
            CHECK(VipConnectAccept(request, vi));
        }
    }
    for (i = 0; i < CLIENTS * ROUNDS; i++) {
        CHECK(VipCQWait(cq, VIP_INFINITE, &vi, &is_recv));
        CHECK(VipRecvDone(vi, &done));
        l = (struct line *)done;
        l->out[0] = (char)(l->in[0] + 1);
        CHECK(VipPostRecv(vi, fill(done, l->in, memory), memory)); /* before the reply, which triggers the next */
        if (!host || i < CLIENTS * (ROUNDS - 1))
            send_line(vi, l, memory);
    }
    printf("%s received %d texts on %d VIs\n", host ? "clients" : "server", i, CLIENTS);
    return VipCloseNic(nic) == VIP_SUCCESS ? NULL : host; /* closes the VIs, the queue and the memory, too */
}

int main(int argc, char **argv)
{
    pthread_t other;
    device = argc > 1 ? argv[1] : (char *)"loop";
    if (argc > 2)
        return run(strcmp(argv[2], "serve") ? argv[2] : NULL) != NULL;
    return pthread_create(&other, NULL, run, NULL) || run((char *)"localhost") || pthread_join(other, NULL);
}
