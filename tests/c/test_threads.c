/*
 * test_threads.c - threads and files of programs: cancelling a thread that waits in VIPL or sends, sends beside a
 * thread that waits, a daemon without standard input, output and error, and a time-out larger than any clock.
 *
 * After a cancellation the NIC must serve the other threads as before: no thread is inside, none counts as waiting, and
 * the call's effects are undone.
 */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "address.h"
#include "check.h"

/* Two NICs, and a connected pair of VIs: `vi` on `nic` has a receive posted. */
static struct {
    VIP_NIC_HANDLE nic, other;
    VIP_VI_HANDLE vi, idle, remote;
    VIP_CQ_HANDLE cq;
    VIP_MEM_HANDLE memory, their_memory;
    VIP_CONN_HANDLE request;
    address door, absent;
} s;
static VIP_DESCRIPTOR descriptors[4] __attribute__((aligned(64)));
static atomic_int got_so_far;

static void no_log(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context, (void)error;
}

static void name(VIP_NIC_HANDLE nic, const char *discriminator, address *a)
{
    memset(a, 0, sizeof(*a));
    CHECK_OK(VipNSGetHostByName(nic, (char *)(uintptr_t)"localhost", &a->net, 0));
    a->net.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(a->net.HostAddress + a->net.HostAddressLen, discriminator, strlen(discriminator));
}

static void *accept_one(void *unused)
{
    address from;
    VIP_VI_ATTRIBUTES remote;
    VIP_CONN_HANDLE conn;
    (void)unused;
    CHECK_OK(VipConnectWait(s.other, &s.door.net, 1000 * CHECK_WAIT_S, &from.net, &remote, &conn));
    CHECK_OK(VipConnectAccept(conn, s.remote));
    return NULL;
}

static void set_up(const char *device, int with_cq)
{
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY}, remote;
    pthread_t server;
    VIP_RETURN r;
    snprintf(check_context, sizeof(check_context), "%s", device);
    CHECK_OK(VipOpenNic(device, &s.nic));
    CHECK_OK(VipOpenNic(device, &s.other));
    CHECK_OK(VipErrorCallback(s.nic, NULL, no_log));
    CHECK_OK(VipErrorCallback(s.other, NULL, no_log));
    name(s.other, "door", &s.door);
    name(s.other, "absent", &s.absent);
    CHECK_OK(VipRegisterMem(s.nic, descriptors, sizeof(descriptors), NULL, &s.memory));
    CHECK_OK(VipRegisterMem(s.other, descriptors, sizeof(descriptors), NULL, &s.their_memory));
    CHECK_OK(VipCreateCQ(s.nic, 8, &s.cq));
    CHECK_OK(VipCreateVi(s.nic, &attr, NULL, with_cq ? s.cq : NULL, &s.vi));
    CHECK_OK(VipCreateVi(s.nic, &attr, NULL, NULL, &s.idle));
    CHECK_OK(VipCreateVi(s.other, &attr, NULL, NULL, &s.remote));
    memset(descriptors, 0, sizeof(descriptors));
    CHECK_OK(VipPostRecv(s.vi, &descriptors[0], s.memory));
    CHECK_EQ(pthread_create(&server, NULL, accept_one, NULL), 0);
    do
        r = VipConnectRequest(s.vi, NULL, &s.door.net, 1000 * CHECK_WAIT_S, &remote);
    while (r == VIP_NO_MATCH);
    CHECK_OK(r);
    CHECK_EQ(pthread_join(server, NULL), 0);
}

/* One message to the receive that is posted: the NICs work, and a call that waits is woken. */
static void message(int with_cq)
{
    VIP_DESCRIPTOR *done;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    CHECK_OK(VipPostSend(s.remote, &descriptors[1], s.their_memory));
    CHECK_OK(VipSendWait(s.remote, 1000 * CHECK_WAIT_S, &done));
    if (with_cq) {
        CHECK_OK(VipCQWait(s.cq, 1000 * CHECK_WAIT_S, &vi, &recv));
        CHECK(vi == s.vi && recv);
        CHECK_OK(VipRecvDone(s.vi, &done));
    } else
        CHECK_OK(VipRecvWait(s.vi, 1000 * CHECK_WAIT_S, &done));
    CHECK(done == &descriptors[0]);
}

static void tear_down(void)
{
    CHECK_OK(VipCloseNic(s.nic));
    CHECK_OK(VipCloseNic(s.other));
    CHECK_NOTHING_LEFT();
}

/* As the NIC's snapshot reports it. */
static int waiting_calls(void)
{
    static char text[1 << 18];
    size_t len;
    CHECK_OK(viakit_snapshot(s.nic, text, sizeof(text), &len));
    const char *p = strstr(text, "\"waiting_calls\":");
    CHECK(p != NULL);
    return atoi(p + strlen("\"waiting_calls\":"));
}

/* ---------------------------------------------------------------- cancelled while waiting */

static void *in_recv_wait(void *unused)
{
    VIP_DESCRIPTOR *d;
    (void)unused;
    VipRecvWait(s.vi, VIP_INFINITE, &d);
    return NULL;
}

static void *in_cq_wait(void *unused)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    (void)unused;
    VipCQWait(s.cq, VIP_INFINITE, &vi, &recv);
    return NULL;
}

static void *in_connect_wait(void *unused)
{
    address from;
    VIP_VI_ATTRIBUTES remote;
    VIP_CONN_HANDLE conn;
    (void)unused;
    VipConnectWait(s.nic, &s.absent.net, VIP_INFINITE, &from.net, &remote, &conn);
    return NULL;
}

/* A server takes the request, and does not answer. */
static void *in_connect_request(void *unused)
{
    VIP_VI_ATTRIBUTES remote;
    (void)unused;
    while (VipConnectRequest(s.idle, NULL, &s.door.net, VIP_INFINITE, &remote) == VIP_NO_MATCH) {}
    return NULL;
}

static void *in_peer_wait(void *unused)
{
    VIP_VI_ATTRIBUTES remote;
    (void)unused;
    VipConnectPeerWait(s.idle, &remote);
    return NULL;
}

static void cancel_in(const char *device, void *(*wait)(void *), int with_cq)
{
    pthread_t thread;
    void *result;
    VIP_VI_STATE state;
    set_up(device, with_cq);
    if (wait == in_peer_wait)
        CHECK_OK(VipConnectPeerRequest(s.idle, &s.absent.net, &s.absent.net, VIP_INFINITE));
    CHECK_EQ(pthread_create(&thread, NULL, wait, NULL), 0);
    if (wait == in_connect_request) {
        address from;
        VIP_VI_ATTRIBUTES remote;
        CHECK_OK(VipConnectWait(s.other, &s.door.net, 1000 * CHECK_WAIT_S, &from.net, &remote, &s.request));
    }
    WAIT_UNTIL(waiting_calls() == 1);
    CHECK_EQ(pthread_cancel(thread), 0);
    CHECK_EQ(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK_EQ(waiting_calls(), 0);
    CHECK_OK(VipQueryVi(s.idle, &state, NULL, NULL, NULL));
    CHECK_EQ(state, wait == in_peer_wait ? VIP_STATE_CONNECT_PENDING : VIP_STATE_IDLE);
    if (wait == in_connect_request) { /* the server finds it withdrawn, as by any who gives up */
        VIP_RETURN r;
        VIP_VI_HANDLE vi;
        VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_UNRELIABLE};
        CHECK_OK(VipCreateVi(s.other, &attr, NULL, NULL, &vi));
        do
            r = VipConnectAccept(s.request, vi); /* of another level: refused as long as the request is there */
        while (r == VIP_INVALID_RELIABILITY_LEVEL);
        CHECK_RET(r, VIP_TIMEOUT);
    }
    message(with_cq);
    tear_down();
}

/* ---------------------------------------------------------------- cancelled while working */

/* The thread is cancelled already and has not come to a place where it takes note: none of these calls is one. */
static void *works_on(void *unused)
{
    VIP_DESCRIPTOR *done;
    VIP_NIC_HANDLE nic;
    (void)unused;
    pthread_cancel(pthread_self());
    CHECK_OK(VipPostSend(s.remote, &descriptors[1], s.their_memory));
    while (VipSendDone(s.remote, &done) == VIP_NOT_DONE) {}
    while (VipRecvDone(s.vi, &done) == VIP_NOT_DONE) {}
    CHECK_OK(VipPostRecv(s.vi, done, s.memory));
    CHECK_OK(VipOpenNic("loop:cancelled", &nic));
    CHECK_OK(VipCloseNic(nic));
    CHECK_OK(VipDisconnect(s.idle));
    atomic_store(&got_so_far, 1);
    pthread_testcancel();
    return NULL;
}

/* Not under the sanitizers: there the system calls are the C library's, and those are such places (cancel.h). */
static void cancelled_at_work(const char *device)
{
    pthread_t thread;
    void *result;
    if (CHECK_SLOWER > 1)
        return;
    set_up(device, 0);
    atomic_store(&got_so_far, 0);
    CHECK_EQ(pthread_create(&thread, NULL, works_on, NULL), 0);
    CHECK_EQ(pthread_join(thread, &result), 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK_EQ(atomic_load(&got_so_far), 1);
    message(0);
    tear_down();
}

/* ---------------------------------------------------------------- no standard files; no end of time */

/* In a child, which speaks by its exit status: the number of a file that was taken, or 0. */
static void without_standard_files(const char *device)
{
    int status;
    if (CHECK_SLOWER > 1)
        return; /* a sanitizer's own files and locks do not survive it */
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        check_deadline(20);
        for (int fd = 0; fd < 3; fd++)
            close(fd);
        set_up(device, 0);
        message(0);
        for (int fd = 0; fd < 3; fd++)
            if (fcntl(fd, F_GETFD) != -1 || errno != EBADF)
                _exit(10 + fd);
        tear_down();
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
}

static void *waits_long(void *timeout)
{
    VIP_DESCRIPTOR *done;
    CHECK_OK(VipRecvWait(s.vi, *(const VIP_ULONG *)timeout, &done));
    return NULL;
}

/* Milliseconds that overflow when they are made nanoseconds. */
static void endless(const char *device)
{
    VIP_ULONG timeouts[] = {1UL << 63, 0x20c49ba5e353f8UL, ~0UL - 1};
    for (size_t i = 0; i < sizeof(timeouts) / sizeof(timeouts[0]); i++) {
        pthread_t thread;
        VIP_DESCRIPTOR *done;
        set_up(device, 0);
        CHECK_EQ(pthread_create(&thread, NULL, waits_long, &timeouts[i]), 0);
        WAIT_UNTIL(waiting_calls() == 1);
        CHECK_OK(VipPostSend(s.remote, &descriptors[1], s.their_memory));
        CHECK_OK(VipSendWait(s.remote, timeouts[i], &done));
        CHECK_EQ(pthread_join(thread, NULL), 0);
        tear_down();
    }
}

/* ---------------------------------------------------------------- sends beside a wait */

enum { N_SENDS = 2000 };

/* System calls of this thread that wrote, as the kernel counts them; -1 if it does not. */
static long writes(void)
{
    char line[64];
    long n = -1;
    FILE *file = fopen("/proc/thread-self/io", "r");
    while (file && fgets(line, sizeof(line), file))
        if (sscanf(line, "syscw: %ld", &n) == 1)
            break;
    if (file)
        fclose(file);
    return n;
}

/* A thread sleeps in VipCQWait while another one sends on a VI whose sends have no completion queue. Sends do not wake
 * it: each wake-up would be a write to an eventfd. The few that remain wake the receiving NIC's thread. */
static void sends_beside_a_wait(const char *device)
{
    pthread_t thread;
    VIP_DESCRIPTOR *done;
    set_up(device, 1);
    CHECK_EQ(pthread_create(&thread, NULL, in_cq_wait, NULL), 0);
    WAIT_UNTIL(waiting_calls() == 1);
    long before = writes();
    for (int i = 0; i < N_SENDS; i++) {
        CHECK_OK(VipPostRecv(s.remote, &descriptors[2], s.their_memory));
        CHECK_OK(VipPostSend(s.vi, &descriptors[3], s.memory));
        WAIT_UNTIL(VipSendDone(s.vi, &done) == VIP_SUCCESS);
        WAIT_UNTIL(VipRecvDone(s.remote, &done) == VIP_SUCCESS);
    }
    CHECK(writes() - before <= N_SENDS / 4);
    CHECK_OK(VipPostSend(s.remote, &descriptors[1], s.their_memory));
    CHECK_OK(VipSendWait(s.remote, 1000 * CHECK_WAIT_S, &done));
    CHECK_EQ(pthread_join(thread, NULL), 0); /* woken by what its queue got */
    CHECK_OK(VipRecvDone(s.vi, &done));
    tear_down();
}

int main(void)
{
    char devices[3][40] = {"loop:threads"};
    check_deadline(60);
    /* Names of this process: two builds of the test may run at the same time, and each has a server at "door". */
    snprintf(devices[1], sizeof(devices[1]), "shm:threads%d", (int)getpid());
    snprintf(devices[2], sizeof(devices[2]), "udp:127.0.0.1:%d", 10000 + (int)(getpid() % 20000));
    for (int i = 0; i < 3; i++) {
        cancel_in(devices[i], in_recv_wait, 0);
        cancel_in(devices[i], in_cq_wait, 1);
        cancel_in(devices[i], in_connect_wait, 0);
        cancel_in(devices[i], in_connect_request, 0);
        cancel_in(devices[i], in_peer_wait, 0);
        cancelled_at_work(devices[i]);
        without_standard_files(devices[i]);
        endless(devices[i]);
    }
    sends_beside_a_wait(devices[1]); /* elsewhere the sender's NIC receives acknowledgements */
    return 0;
}
