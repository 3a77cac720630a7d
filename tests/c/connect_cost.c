/*
 * connect_cost.c - how many connections two VIs make per second, with and without a secret. Peer requests, as ranks
 * make them, between two NICs with a thread of the program each. Not a test: it asserts no time.
 *
 *     connect_cost [DEVICE_A DEVICE_B [CONNECTIONS [ROUNDS]]]
 *
 *     connect_cost shm:cost shm:cost              two NICs of this process
 *     connect_cost udp:127.0.0.1 udp:127.0.0.2
 *     connect_cost eth:veth0 eth:veth1            interfaces of one host that reach each other
 *
 * Without arguments: shm and udp as above. For each round, in turns, one line: device, "plain" or "secret", connections
 * per second, median microseconds of a connection.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "harness.h"

#include "base/clock.h"

#define MOST 100000

static const uint8_t secret[VIAKIT_SECRET_MOST] = "measured with this secret";

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE tag;
    VIP_VI_HANDLE vi;
    VIP_NIC_ATTRIBUTES attr;
    const uint8_t *peer_host;
    const char *own, *wanted;
    int n;
    double *us; /* [n] of each connection; NULL: not measured */
    pthread_barrier_t *both;
} end;

/* Which of the two disconnects first is left to chance: the other one's connection is lost. */
static void ignore(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    (void)error;
}

static void open_end(end *e, const char *device, const char *own, const char *wanted)
{
    CHECK_OK(VipOpenNic(device, &e->nic));
    CHECK_OK(VipErrorCallback(e->nic, NULL, ignore));
    CHECK_OK(VipQueryNic(e->nic, &e->attr));
    CHECK_OK(VipCreatePtag(e->nic, &e->tag));
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY, .Ptag = e->tag};
    CHECK_OK(VipCreateVi(e->nic, &attr, NULL, NULL, &e->vi));
    e->own = own;
    e->wanted = wanted;
}

static void close_end(end *e)
{
    CHECK_OK(VipDestroyVi(e->vi));
    CHECK_OK(VipDestroyPtag(e->nic, e->tag));
    CHECK_OK(VipCloseNic(e->nic));
}

/* Both ends poll, as ranks do that connect. */
static void *run(void *argument)
{
    end *e = argument;
    for (int i = 0; i < e->n; i++) {
        address local, remote;
        VIP_VI_ATTRIBUTES attr;
        VIP_RETURN r;
        make_address(&local, e->attr.LocalNicAddress, e->own, strlen(e->own));
        make_address(&remote, e->peer_host, e->wanted, strlen(e->wanted));
        pthread_barrier_wait(e->both);
        uint64_t began = vk_now();
        CHECK_OK(VipConnectPeerRequest(e->vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S));
        while ((r = VipConnectPeerDone(e->vi, &attr)) == VIP_NOT_DONE)
            sched_yield(); /* the two ends may share a core */
        CHECK_OK(r);
        if (e->us)
            e->us[i] = (double)(vk_now() - began) / VK_US;
        /* Disconnected by both at the same time: neither takes the other's next request for this connection. */
        pthread_barrier_wait(e->both);
        CHECK_OK(VipDisconnect(e->vi));
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(end ends[2], const char *device, int n, int with_secret)
{
    pthread_t thread;
    static double us[MOST];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(viakit_set_vi_secret(ends[i].vi, with_secret ? secret : NULL, with_secret ? sizeof(secret) : 0));
        ends[i].n = n;
    }
    ends[0].us = us;
    ends[1].us = NULL;
    uint64_t began = vk_now();
    CHECK_EQ(pthread_create(&thread, NULL, run, &ends[1]), 0);
    run(&ends[0]);
    pthread_join(thread, NULL);
    double s = (double)(vk_now() - began) / VK_SECOND;
    qsort(us, (size_t)n, sizeof(*us), compare);
    printf("%-16s %-6s %9.0f connections/s %9.1f us\n", device, with_secret ? "secret" : "plain", n / s, us[n / 2]);
    fflush(stdout);
}

static void measure_device(const char *a, const char *b, int n, int rounds)
{
    end ends[2];
    pthread_barrier_t both;
    memset(ends, 0, sizeof(ends));
    CHECK_EQ(pthread_barrier_init(&both, NULL, 2), 0);
    open_end(&ends[0], a, "one", "two");
    open_end(&ends[1], b, "two", "one");
    for (int i = 0; i < 2; i++) {
        ends[i].peer_host = ends[!i].attr.LocalNicAddress;
        ends[i].both = &both;
    }
    for (int i = 0; i < rounds; i++) { /* in turns, so that what else runs meets both */
        measure(ends, a, n, 0);
        measure(ends, a, n, 1);
    }
    close_end(&ends[0]);
    close_end(&ends[1]);
    pthread_barrier_destroy(&both);
}

int main(int argc, char **argv)
{
    int n = argc > 3 ? atoi(argv[3]) : 1000, rounds = argc > 4 ? atoi(argv[4]) : 5;
    if (argc == 2 || n < 1 || n > MOST || rounds < 1) {
        fprintf(stderr, "usage: connect_cost [DEVICE_A DEVICE_B [CONNECTIONS [ROUNDS]]], at most %d connections\n",
                MOST);
        return 2;
    }
    if (argc > 2)
        measure_device(argv[1], argv[2], n, rounds);
    else {
        measure_device("shm:connect-cost", "shm:connect-cost", n, rounds);
        measure_device("udp:127.0.0.1", "udp:127.0.0.2", n, rounds);
    }
    return 0;
}
