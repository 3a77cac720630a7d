/*
 * measure_msg.c - what the message engine adds to VIA: both play ping-pong between two processes, in turns, so that a
 * noisy machine is noisy for both. Not a test (it asserts no time); prints the first decile of each, and differences
 * and ratios.
 *
 *     measure_msg [ROUNDS [POLICY]]
 *
 * VIA itself: VipRecvDone in a loop, VipPostRecv, VipPostSend, VipSendDone, as csrc/bench/ep_via.c does. Messages: once
 * from memory that the other process can map, once from memory of malloc.
 */
#include <errno.h>

#include "check.h"
#include "msg_job.h"
#include "vipl.h"

static int rounds = 201;

struct raw {
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_VI_HANDLE vi;
    VIP_NIC_ATTRIBUTES attributes;
    VIP_DESCRIPTOR *d; /* [0] send, [1..2] receive */
    VIP_MEM_HANDLE d_handle, handle;
    char *memory; /* [2 * MOST] */
    int next;
};
#define MOST (4u << 20)

/* Receive i of two, into the second half of the memory: one is posted while the other is taken. */
static void raw_post(struct raw *r, int i, size_t len)
{
    VIP_DESCRIPTOR *d = &r->d[1 + i];
    d->CS.Control = 0;
    d->CS.SegCount = 1;
    d->CS.Length = d->DS[0].Local.Length = (VIP_UINT32)len;
    d->DS[0].Local.Data.Address = r->memory + MOST;
    d->DS[0].Local.Handle = r->handle;
    CHECK_OK(VipPostRecv(r->vi, d, r->d_handle));
}

static void raw_open(struct raw *r, int rank)
{
    union {
        VIP_NET_ADDRESS net;
        char room[32];
    } local = {.room = ""}, remote;
    char name[64];
    snprintf(name, sizeof name, "shm:measure-%d", (int)getppid());
    viakit_nic_options o = {.size = sizeof o, .spin_us = 0};
    CHECK_OK(viakit_open_nic(name, &o, &r->nic));
    CHECK_OK(VipQueryNic(r->nic, &r->attributes));
    CHECK_OK(VipCreatePtag(r->nic, &r->ptag));
    VIP_VI_ATTRIBUTES a = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY, .Ptag = r->ptag};
    CHECK_OK(VipCreateVi(r->nic, &a, NULL, NULL, &r->vi));
    void *p;
    VIP_MEM_ATTRIBUTES m = {.Ptag = r->ptag};
    CHECK_OK(viakit_alloc(r->nic, 2 * MOST, &p));
    r->memory = p;
    memset(p, 1, 2 * MOST);
    CHECK_OK(VipRegisterMem(r->nic, p, 2 * MOST, &m, &r->handle));
    CHECK_OK(viakit_alloc(r->nic, 4 * sizeof *r->d, &p));
    r->d = p;
    memset(p, 0, 4 * sizeof *r->d);
    CHECK_OK(VipRegisterMem(r->nic, p, 4 * sizeof *r->d, &m, &r->d_handle));
    local.net.HostAddressLen = 6;
    local.net.DiscriminatorLen = 1;
    memcpy(local.net.HostAddress, r->attributes.LocalNicAddress, 6);
    remote = local;
    local.room[10] = (char)('a' + rank);
    remote.room[10] = (char)('a' + !rank);
    CHECK_OK(VipConnectPeerRequest(r->vi, &local.net, &remote.net, 20000));
    VIP_RETURN code;
    WAIT_UNTIL((code = VipConnectPeerDone(r->vi, &a)) != VIP_NOT_DONE);
    CHECK_OK(code);
}

static void raw_send(struct raw *r, size_t len)
{
    VIP_DESCRIPTOR *d = &r->d[0];
    d->CS.Control = 0;
    d->CS.SegCount = 1;
    d->CS.Length = d->DS[0].Local.Length = (VIP_UINT32)len;
    d->DS[0].Local.Data.Address = r->memory;
    d->DS[0].Local.Handle = r->handle;
    CHECK_OK(VipPostSend(r->vi, d, r->d_handle));
    while (VipSendDone(r->vi, &d) == VIP_NOT_DONE) {}
}

static void raw_recv(struct raw *r, size_t len)
{
    VIP_DESCRIPTOR *d;
    while (VipRecvDone(r->vi, &d) == VIP_NOT_DONE) {}
    raw_post(r, r->next, len);
    r->next = !r->next;
}

static void raw_close(struct raw *r)
{
    VIP_DESCRIPTOR *d;
    VipDisconnect(r->vi);
    do
        d = NULL;
    while (VipRecvDone(r->vi, &d) != VIP_INVALID_PARAMETER && d);
    CHECK_OK(VipCloseNic(r->nic));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The fastest tenth is what the code costs; the rest is what else the machine had to do. */
static double quick(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return v[n / 10];
}

enum { RAW, MSG, MSG_OWN, WAYS };

/* Seconds per message, of n round trips. */
static double play(msg_world *w, struct raw *r, int rank, int way, size_t len, int n, char *a, char *b)
{
    if (way == RAW) {
        raw_post(r, 0, len);
        raw_post(r, 1, len);
        r->next = 0;
    }
    job_meet();
    double began = check_now();
    for (int i = 0; i < 2 * n; i++) {
        /* Rank 0 sends first. */
        if ((i + rank) % 2 == 0) {
            if (way == RAW)
                raw_send(r, len);
            else
                OK(msg_send(w, 1, a, len, !rank, 1, MSG_STANDARD));
        } else {
            if (way == RAW)
                raw_recv(r, len);
            else
                OK(msg_recv(w, 1, b, len, !rank, 1, NULL));
        }
    }
    double t = (check_now() - began) / (2 * n);
    if (way == RAW) { /* two receives are left posted */
        job_meet();
        for (int i = 0; i < 2; i++)
            /* The partner's leftovers are taken by empty messages, so that each way begins alike. */
            raw_send(r, 0);
        for (int i = 0; i < 2; i++) {
            VIP_DESCRIPTOR *d;
            while (VipRecvDone(r->vi, &d) == VIP_NOT_DONE) {}
        }
        job_meet();
    }
    return t;
}

static void measure(msg_world **world, int rank, int n_ranks)
{
    static const size_t lens[] = {8, 64, 1024, 4096, 8192, 16384, 65536, 262144, 4u << 20};
    msg_world *w = *world;
    struct raw raw = {.next = 0};
    void *shared;
    char *own = malloc(2 * MOST);
    (void)n_ranks;
    memset(own, 1, 2 * MOST);
    OK(msg_alloc(w, 2 * MOST, &shared));
    memset(shared, 1, 2 * MOST);
    raw_open(&raw, rank);
    if (rank == 0)
        printf("%9s %12s %12s %12s   %s\n", "bytes", "VIA us", "messages us", "own memory",
               "difference, VIA/messages, VIA/own");
    for (size_t k = 0; k < sizeof lens / sizeof *lens; k++) {
        static double t[WAYS][1001];
        int n = lens[k] <= 1024 ? 500 : lens[k] <= 65536 ? 100 : 4;
        /* Round -1 warms up; its figures are overwritten. */
        for (int round = -1; round < rounds; round++)
            for (int way = 0; way < WAYS; way++) {
                char *base = way == MSG_OWN ? own : shared;
                t[way][round < 0 ? 0 : round] = play(w, &raw, rank, way, lens[k], n, base, base + MOST) * 1e6;
            }
        double m[WAYS];
        for (int way = 0; way < WAYS; way++)
            m[way] = quick(t[way], rounds);
        if (rank == 0)
            printf("%9zu %12.3f %12.3f %12.3f   %+8.3f us %6.3f %6.3f\n", lens[k], m[RAW], m[MSG], m[MSG_OWN],
                   m[MSG] - m[RAW], m[RAW] / m[MSG], m[RAW] / m[MSG_OWN]);
        fflush(stdout);
    }
    raw_close(&raw);
    OK(msg_free(w, shared));
    free(own);
}

int main(int argc, char **argv)
{
    if (argc > 1)
        rounds = atoi(argv[1]) < 1000 ? atoi(argv[1]) : 1000;
    check_deadline(600);
    job j = {.link = "shm", .n_ranks = 2, .policy = argc > 2 ? argv[2] : NULL};
    job_run(&j, measure);
    return 0;
}
