/*
 * test_races.c - handles that die in other threads' hands: a VI, a completion queue, a NIC is destroyed while calls on
 * it begin, run and wait.
 *
 * Each call must either do its work or return VIP_INVALID_PARAMETER. The sanitizers check that no freed memory is
 * touched. Other cases: a request that another thread repeats, and a fork while other threads are inside the library,
 * whose child opens a NIC of its own. Rounds are short and many, so that a handle also dies between two lines of a
 * call.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "check.h"

#define ROUNDS 300
#define CALLERS 3

/* Targets of the callers, replaced each round. A handle may be stale when it is used, on purpose. */
static _Atomic(VIP_NIC_HANDLE) the_nic;
static _Atomic(VIP_VI_HANDLE) the_vi;
static _Atomic(VIP_CQ_HANDLE) the_cq;
static atomic_int stop;
static atomic_long n_good, n_stale;

static void no_log(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context, (void)error;
}

/* The call worked, or its handle was dead: nothing else may come of it. */
static void judge(VIP_RETURN r, const char *call)
{
    switch (r) {
    case VIP_SUCCESS:
    case VIP_NOT_DONE:
    case VIP_TIMEOUT:
    case VIP_DESCRIPTOR_ERROR:
    case VIP_INVALID_STATE:
    case VIP_ERROR_RESOURCE:
        atomic_fetch_add(&n_good, 1);
        break;
    case VIP_INVALID_PARAMETER:
        atomic_fetch_add(&n_stale, 1);
        break;
    default:
        FAIL("%s returned %s", call, check_return_name(r));
    }
}
#define JUDGE(call) judge(call, #call)

static void *caller(void *p)
{
    unsigned step = (unsigned)(uintptr_t)p;
    while (!atomic_load(&stop)) {
        /* Read once per turn: between this and the call the handle may die. */
        VIP_NIC_HANDLE nic = atomic_load(&the_nic), vi_out;
        VIP_VI_HANDLE vi = atomic_load(&the_vi);
        VIP_CQ_HANDLE cq = atomic_load(&the_cq);
        VIP_DESCRIPTOR *d;
        VIP_BOOLEAN recv;
        VIP_VI_STATE state;
        VIP_NIC_ATTRIBUTES attr;
        VIP_UINT64 counters[VIAKIT_N_COUNTERS];
        /* Every kind of call: with and without waiting, on each kind of handle, reading and changing. */
        switch (step++ % 8) {
        case 0:
            JUDGE(VipRecvDone(vi, &d));
            break;
        case 1:
            JUDGE(VipRecvWait(vi, 1, &d));
            break;
        case 2:
            JUDGE(VipQueryVi(vi, &state, NULL, NULL, NULL));
            break;
        case 3:
            JUDGE(VipCQWait(cq, 1, &vi_out, &recv));
            break;
        case 4:
            JUDGE(VipCQDone(cq, &vi_out, &recv));
            break;
        case 5:
            JUDGE(VipQueryNic(nic, &attr));
            break;
        case 6:
            JUDGE(viakit_nic_counters(nic, counters));
            break;
        case 7:
            JUDGE(VipDisconnect(vi));
            break;
        }
    }
    return NULL;
}

/* A NIC with a VI, a receive posted on it, and a completion queue; then all of it goes, in one of several ways. */
static void one_round(int round)
{
    static uint8_t memory[4096] __attribute__((aligned(64)));
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)memory, *got;
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY};
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_MEM_HANDLE mh;
    CHECK_OK(VipOpenNic("loop:races", &nic));
    CHECK_OK(VipErrorCallback(nic, NULL, no_log));
    CHECK_OK(VipRegisterMem(nic, memory, sizeof(memory), NULL, &mh));
    CHECK_OK(VipCreateCQ(nic, 8, &cq));
    CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
    memset(d, 0, sizeof(*d));
    CHECK_OK(VipPostRecv(vi, d, mh));
    atomic_store(&the_nic, nic);
    atomic_store(&the_vi, vi);
    atomic_store(&the_cq, cq);
    long seen = atomic_load(&n_good);
    WAIT_UNTIL(atomic_load(&n_good) > seen + CALLERS); /* they have got hold of it */
    /* In every second round object by object, as a tidy program does, else all with the NIC. */
    if (round % 2 == 0) {
        CHECK_OK(VipDisconnect(vi));
        while (VipRecvDone(vi, &got) != VIP_DESCRIPTOR_ERROR || got != NULL) {}
        CHECK_OK(VipDestroyVi(vi));
        CHECK_OK(VipDestroyCQ(cq));
    }
    CHECK_OK(VipCloseNic(nic));
    /* Dead for the one that has closed it, too. */
    CHECK_RET(VipCloseNic(nic), VIP_INVALID_PARAMETER);
}

/* ---------------------------------------------------------------- waiting calls */

static void *wait_for_vi(void *p)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(uintptr_t)1;
    VIP_RETURN r = VipRecvWait(p, VIP_INFINITE, &d);
    /* flushed by the disconnect, or taken by the other thread meanwhile, or the VI was gone already */
    CHECK(r == VIP_DESCRIPTOR_ERROR || r == VIP_INVALID_PARAMETER);
    return NULL;
}

static void *wait_for_cq(void *p)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    /* Nothing ever completes: only the end of the queue ends this wait. */
    CHECK_RET(VipCQWait(p, VIP_INFINITE, &vi, &recv), VIP_INVALID_PARAMETER);
    return NULL;
}

/* ---------------------------------------------------------------- a request that comes after another's end */

/* Address and discriminator 'r' of a NIC in 12 bytes: two lengths, six bytes, one. */
static VIP_NET_ADDRESS *address_of(VIP_NIC_HANDLE nic, uint8_t room[12])
{
    VIP_NIC_ATTRIBUTES attr;
    VIP_NET_ADDRESS *a = (VIP_NET_ADDRESS *)(void *)room;
    CHECK_OK(VipQueryNic(nic, &attr));
    a->HostAddressLen = 6;
    a->DiscriminatorLen = 1;
    memcpy(a->HostAddress, attr.LocalNicAddress, 6);
    a->HostAddress[6] = 'r';
    return a;
}

static void *wait_for_server(void *p)
{
    _Alignas(VIP_NET_ADDRESS) uint8_t room[12];
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN r;
    VIP_NET_ADDRESS *there = address_of(atomic_load(&the_nic), room);
    while ((r = VipConnectRequest(p, NULL, there, 1000 * CHECK_WAIT_S, &attr)) == VIP_NO_MATCH) {
    } /* it does not wait yet */
    /* Its request was withdrawn while a server held it: to the caller that is a time-out. */
    CHECK_RET(r, VIP_TIMEOUT);
    return NULL;
}

/* A thread requests a connection, and the server does not reply yet. Another thread withdraws the request, and makes a
 * new one before the first thread has returned. The first thread must not end the new request. */
static void newer_request(void)
{
    _Alignas(VIP_NET_ADDRESS) uint8_t room[12], remote[12 + 64];
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY}, peer_attr;
    VIP_NIC_HANDLE nic, server;
    VIP_VI_HANDLE vi;
    VIP_VI_STATE state;
    VIP_CONN_HANDLE conn;
    CHECK_OK(VipOpenNic("loop:races", &nic));
    CHECK_OK(VipOpenNic("loop:races", &server));
    CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
    atomic_store(&the_nic, nic);
    for (int i = 0; i < 200 / CHECK_SLOWER; i++) {
        pthread_t thread;
        VIP_NET_ADDRESS *here = address_of(nic, room);
        CHECK_EQ(pthread_create(&thread, NULL, wait_for_server, vi), 0);
        /* Here the request is in the server's hands, unanswered. */
        while (VipConnectWait(server, here, 1000, (VIP_NET_ADDRESS *)(void *)remote, &peer_attr, &conn) !=
               VIP_SUCCESS) {}
        CHECK_OK(VipDisconnect(vi)); /* ends the request; its thread must return */
        CHECK_OK(VipDisconnect(vi)); /* the VI is idle, whether it has or not */
        /* The new request, while the first one's thread may still be on its way out of its call. */
        CHECK_OK(VipConnectPeerRequest(vi, here, here, 1000 * CHECK_WAIT_S));
        CHECK_EQ(pthread_join(thread, NULL), 0);
        CHECK_OK(VipQueryVi(vi, &state, NULL, NULL, NULL));
        /* The first one's end has not taken the second request with it. */
        CHECK_EQ(state, VIP_STATE_CONNECT_PENDING);
        CHECK_RET(VipConnectPeerDone(vi, &peer_attr), VIP_NOT_DONE);
        CHECK_OK(VipDisconnect(vi));
        /* The server's handle is of a request that is gone, which a rejection may still say. */
        CHECK_OK(VipConnectReject(conn));
    }
    CHECK_OK(VipCloseNic(server));
    CHECK_OK(VipCloseNic(nic));
}

/* An endless wait on an object that is destroyed returns an error. */
static void waiting_calls(void)
{
    static uint8_t memory[64] __attribute__((aligned(64)));
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)memory, *got;
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY};
    for (int i = 0; i < 20; i++) {
        pthread_t threads[2];
        VIP_NIC_HANDLE nic;
        VIP_VI_HANDLE vi;
        VIP_CQ_HANDLE cq;
        VIP_MEM_HANDLE mh;
        VIP_RETURN r;
        CHECK_OK(VipOpenNic("loop:waiting", &nic));
        CHECK_OK(VipRegisterMem(nic, memory, sizeof(memory), NULL, &mh));
        CHECK_OK(VipCreateCQ(nic, 8, &cq));
        CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
        memset(d, 0, sizeof(*d));
        CHECK_OK(VipPostRecv(vi, d, mh));
        CHECK_EQ(pthread_create(&threads[0], NULL, wait_for_vi, vi), 0);
        CHECK_EQ(pthread_create(&threads[1], NULL, wait_for_cq, cq), 0);
        CHECK_OK(VipDisconnect(vi));
        /* one of the two threads takes the flushed descriptor */
        do
            r = VipRecvDone(vi, &got);
        while (r != VIP_DESCRIPTOR_ERROR || got != NULL);
        CHECK_OK(VipDestroyVi(vi));
        CHECK_OK(VipDestroyCQ(cq));
        CHECK_EQ(pthread_join(threads[0], NULL), 0);
        /* Both threads have returned: no call waits for ever on a destroyed object. */
        CHECK_EQ(pthread_join(threads[1], NULL), 0);
        CHECK_OK(VipCloseNic(nic));
    }
}

/* ---------------------------------------------------------------- fork */

/* The child of a process whose other threads are inside the library: the parent's handles are refused, and a NIC of
 * its own works. */
static void in_the_child(VIP_NIC_HANDLE parents)
{
    VIP_NIC_ATTRIBUTES attr;
    VIP_VI_ATTRIBUTES vi_attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY};
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_MEM_HANDLE mh;
    static uint8_t memory[4096];
    /* A child that hangs, on a lock that its parent's threads held at the fork, ends by this. */
    check_deadline(20);
    CHECK(VipQueryNic(parents, &attr) != VIP_SUCCESS);
    CHECK_OK(VipOpenNic("loop:child", &nic));
    CHECK_OK(VipRegisterMem(nic, memory, sizeof(memory), NULL, &mh));
    CHECK_OK(VipCreateVi(nic, &vi_attr, NULL, NULL, &vi));
    CHECK_OK(VipCloseNic(nic));
    _exit(0);
}

/* Opens and closes without end: forks happen in the middle of what changes the library's tables. */
static void *opener(void *p)
{
    (void)p;
    while (!atomic_load(&stop)) {
        VIP_NIC_HANDLE nic;
        VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY};
        VIP_VI_HANDLE vi;
        CHECK_OK(VipOpenNic("loop:opener", &nic));
        CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
        CHECK_OK(VipCloseNic(nic));
    }
    return NULL;
}

/* Not under ThreadSanitizer, which does not follow the fork of a process with threads, nor under AddressSanitizer:
 * its own allocator's locks stay as the fork finds them (before LLVM 17), and a child whose parent was allocating
 * waits for ever. */
static void forks(void)
{
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    return;
#endif
    pthread_t threads[2];
    VIP_NIC_HANDLE nic;
    CHECK_OK(VipOpenNic("loop:parent", &nic));
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, opener, NULL), 0);
    for (int i = 0; i < 300; i++) {
        int status;
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0)
            in_the_child(nic);
        CHECK_EQ(waitpid(pid, &status, 0), pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_OK(VipCloseNic(nic));
}

int main(void)
{
    pthread_t threads[CALLERS];
    check_deadline(60);
    snprintf(check_context, sizeof(check_context), "races");
    for (int i = 0; i < CALLERS; i++)
        CHECK_EQ(pthread_create(&threads[i], NULL, caller, (void *)(uintptr_t)(unsigned)i), 0);
    for (int i = 0; i < ROUNDS / CHECK_SLOWER; i++)
        one_round(i);
    atomic_store(&stop, 1);
    for (int i = 0; i < CALLERS; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    /* Handles were caught dead, so the rounds were short enough to test something. */
    CHECK(atomic_load(&n_stale) > 0);
    CHECK_NOTHING_LEFT();
    waiting_calls();
    CHECK_NOTHING_LEFT();
    newer_request();
    CHECK_NOTHING_LEFT();
    /* Starts `stop` over, for the threads that forks() makes. */
    atomic_store(&stop, 0);
    forks();
    CHECK_NOTHING_LEFT();
    return 0;
}
