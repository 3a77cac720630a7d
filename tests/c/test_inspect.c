/*
 * test_inspect.c - snapshots, and a process that replies about its NICs while it works. The reports are true while
 * other threads open, close, send and fork. Traffic is not disturbed, and nothing is left.
 *
 * viakit_snapshot() describes one NIC as JSON. A process with a NIC also answers on a socket in the abstract namespace
 * (docs/inspect.md), which `viakit inspect` queries. Here the test queries it.
 */
#include <errno.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "check.h"

#define PLENTY (1 << 20)

/* ---------------------------------------------------------------- reading */

/* Checks brackets, strings and commas of one JSON object: brackets are balanced, and each comma is followed by a
 * value. */
static int is_balanced(const char *text)
{
    int depth = 0, in_string = 0;
    const char *p = text;
    for (; *p && *p != '\n'; p++) {
        if (in_string) {
            if (*p == '\\')
                p++;
            else if (*p == '"')
                in_string = 0;
        } else if (*p == '"')
            in_string = 1;
        else if (*p == '{' || *p == '[')
            depth++;
        else if (*p == '}' || *p == ']')
            depth--;
        else if (*p == ',' && (p[1] == ',' || p[1] == ']' || p[1] == '}'))
            return 0;
        if (depth == 0)
            return p[1] == 0 || p[1] == '\n';
    }
    return 0;
}

static int count(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)) != NULL; text++)
        n++;
    return n;
}

/* -1 if that process does not listen. The only valid reason is "refused". */
static int connect_to(int pid)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "viakit/inspect/%d", pid);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(s >= 0);
    if (connect(s, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)) != 0) {
        CHECK_EQ(errno, ECONNREFUSED);
        close(s);
        return -1;
    }
    return s;
}

/* The whole reply of a process, or NULL if it does not listen. */
static char *request(int pid)
{
    int s = connect_to(pid);
    if (s < 0)
        return NULL;
    size_t len = 0;
    char *text = malloc(PLENTY);
    CHECK(text != NULL);
    for (;;) {
        ssize_t n = read(s, text + len, PLENTY - 1 - len);
        if (n <= 0)
            break;
        len += (size_t)n;
    }
    text[len] = 0;
    close(s);
    return text;
}

/* ---------------------------------------------------------------- one NIC */

static void test_contents(void)
{
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_MEM_HANDLE mh;
    VIP_VI_ATTRIBUTES attr = {VIP_SERVICE_RELIABLE_RECEPTION, 4096, 0, 0, VIP_TRUE, 0};
    static uint8_t mem[4096] __attribute__((aligned(64)));
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)mem;
    static char text[65536];
    char wanted[64];
    size_t len = 0, again = 0;
    uint64_t before[VIAKIT_N_COUNTERS], after[VIAKIT_N_COUNTERS];

    /* A NIC with one of everything: a name with quotation marks in it, 20 receives of 1000 + 24 bytes. */
    snprintf(check_context, sizeof check_context, "contents");
    CHECK_OK(VipOpenNic("loop:inspect \"quoted\"", &nic));
    CHECK_OK(VipCreateCQ(nic, 7, &cq));
    CHECK_OK(VipCreateVi(nic, &attr, NULL, cq, &vi));
    CHECK_OK(VipRegisterMem(nic, mem, sizeof mem, NULL, &mh));
    for (int i = 0; i < 20; i++) {
        d[i].CS.SegCount = 2;
        d[i].DS[0].Local.Data.Address = d[i].DS[1].Local.Data.Address = mem + 2048;
        d[i].DS[0].Local.Handle = d[i].DS[1].Local.Handle = mh;
        d[i].DS[0].Local.Length = 1000;
        d[i].DS[1].Local.Length = 24;
        CHECK_OK(VipPostRecv(vi, &d[i], mh));
    }
    CHECK_OK(viakit_nic_counters(nic, (VIP_UINT64 *)before));
    CHECK_OK(viakit_snapshot(nic, text, sizeof text, &len));
    CHECK_OK(viakit_nic_counters(nic, (VIP_UINT64 *)after));
    CHECK_EQ(strlen(text), len);
    CHECK(is_balanced(text));
    /* Looking sends nothing, moves nothing and completes nothing. */
    CHECK_EQ(after[VIAKIT_COUNTER_frames_sent], before[VIAKIT_COUNTER_frames_sent]);
    CHECK_EQ(after[VIAKIT_COUNTER_messages_received], before[VIAKIT_COUNTER_messages_received]);
    CHECK_EQ(after[VIAKIT_COUNTER_copies], before[VIAKIT_COUNTER_copies]);
    /* Each object once, under its own handle, with its own figures. The first 16 of 20 descriptors are listed. */
    CHECK(strstr(text, "\"device\":\"loop:inspect \\u0022quoted\\u0022\"") != NULL);
    CHECK(strstr(text, "\"level\":\"reliable reception\"") != NULL);
    CHECK(strstr(text, "\"rdma_write\":true,\"rdma_read\":false,\"max_transfer_size\":4096") != NULL);
    CHECK(strstr(text, "\"recv\":{\"posted\":20,\"done\":0,") != NULL);
    CHECK_EQ(count(text, "\"operation\":\"receive\",\"state\":\"posted\",\"segments\":2,\"length\":1024"), 16);
    snprintf(wanted, sizeof wanted, "\"handle\":\"0x%lx\"", (unsigned long)(uintptr_t)vi);
    CHECK_EQ(count(text, wanted), 1);
    snprintf(wanted, sizeof wanted, "\"handle\":\"0x%x\"", (unsigned)mh);
    CHECK_EQ(count(text, wanted), 1);
    snprintf(wanted, sizeof wanted, "\"cq\":\"0x%lx\"", (unsigned long)(uintptr_t)cq);
    CHECK_EQ(count(text, wanted), 1);
    CHECK(strstr(text, "\"capacity\":7,\"entries\":0,\"queues\":1") != NULL);

    /* A buffer that is far too small, whose end AddressSanitizer guards: its text is terminated, and the needed size is
     * returned. Then no buffer, no place for the size, and no NIC. */
    char *small = malloc(10);
    CHECK(small != NULL);
    CHECK_RET(viakit_snapshot(nic, small, 10, &again), VIP_ERROR_RESOURCE);
    CHECK_EQ(strlen(small), 9);
    CHECK_EQ(strncmp(small, text, 9), 0);
    CHECK(again > 1000);
    CHECK_RET(viakit_snapshot(nic, NULL, 0, &again), VIP_ERROR_RESOURCE);
    CHECK(again > 1000);
    CHECK_RET(viakit_snapshot(nic, NULL, 10, &again), VIP_INVALID_PARAMETER);
    CHECK_RET(viakit_snapshot(nic, text, sizeof text, NULL), VIP_INVALID_PARAMETER);
    CHECK_RET(viakit_snapshot(vi, text, sizeof text, &len), VIP_INVALID_PARAMETER);
    free(small);
    /* Gone: no snapshot either. */
    CHECK_OK(VipCloseNic(nic));
    CHECK_RET(viakit_snapshot(nic, text, sizeof text, &len), VIP_INVALID_PARAMETER);
    CHECK_NOTHING_LEFT();
}

/* ---------------------------------------------------------------- queried during traffic */

static int stop; /* atomic */

/* A NIC that comes and goes, with 20 VIs: the client may meet it at any stage of its making or ending. */
static void *open_and_close(void *unused)
{
    VIP_VI_ATTRIBUTES attr = {VIP_SERVICE_RELIABLE_DELIVERY, 0, 0, 0, 0, 0};
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        VIP_NIC_HANDLE nic;
        VIP_VI_HANDLE vi;
        CHECK_OK(VipOpenNic("loop:coming and going", &nic));
        for (int i = 0; i < 20; i++)
            CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
        CHECK_OK(VipCloseNic(nic));
    }
    return unused;
}

/* Posts and takes back, as fast as it can, on a NIC that it has for itself. */
static void *work(void *argument)
{
    VIP_NIC_HANDLE nic = argument;
    static uint8_t mem[4096] __attribute__((aligned(64)));
    VIP_VI_ATTRIBUTES attr = {VIP_SERVICE_RELIABLE_DELIVERY, 0, 0, 0, 0, 0};
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)mem, *got;
    VIP_VI_HANDLE vi;
    VIP_MEM_HANDLE mh;
    CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
    CHECK_OK(VipRegisterMem(nic, mem, sizeof mem, NULL, &mh));
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        CHECK_OK(VipPostSend(vi, d, mh)); /* not connected: flushed */
        CHECK_RET(VipSendDone(vi, &got), VIP_DESCRIPTOR_ERROR);
        CHECK(got == d);
        CHECK_RET(VipRecvDone(vi, &got), VIP_DESCRIPTOR_ERROR);
    }
    return NULL;
}

static void test_while_all_moves(void)
{
    VIP_NIC_HANDLE nic;
    pthread_t threads[2];
    snprintf(check_context, sizeof check_context, "while all moves");
    CHECK_OK(VipOpenNic("loop:worker", &nic));
    __atomic_store_n(&stop, 0, __ATOMIC_RELAXED);
    CHECK_EQ(pthread_create(&threads[0], NULL, open_and_close, NULL), 0);
    CHECK_EQ(pthread_create(&threads[1], NULL, work, nic), 0);
    for (int i = 0; i < 300 / CHECK_SLOWER; i++) {
        char *text = request(getpid());
        CHECK(text != NULL);
        CHECK(is_balanced(text));
        /* Each reply has the worker's whole NIC. The other NIC occurs at most once. */
        CHECK_EQ(count(text, "\"device\":\"loop:worker\""), 1);
        CHECK(count(text, "\"device\":\"loop:coming and going\"") <= 1);
        free(text);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
    CHECK_OK(VipCloseNic(nic));
    CHECK(request(getpid()) == NULL);
    CHECK_NOTHING_LEFT();
}

/* A client that does not read delays neither other clients nor the end. The reply for 800 VIs is larger than any socket
 * buffer. */
static void test_silent_client(void)
{
    VIP_NIC_HANDLE nics[8];
    VIP_VI_ATTRIBUTES attr = {VIP_SERVICE_RELIABLE_DELIVERY, 0, 0, 0, 0, 0};
    VIP_VI_HANDLE vi;
    snprintf(check_context, sizeof check_context, "silent client");
    for (int i = 0; i < 8; i++) {
        CHECK_OK(VipOpenNic("loop:silent", &nics[i]));
        for (int j = 0; j < 100; j++)
            CHECK_OK(VipCreateVi(nics[i], &attr, NULL, NULL, &vi));
    }
    int s = connect_to(getpid());
    char first;
    CHECK(s >= 0);
    CHECK_EQ(read(s, &first, 1), 1);
    char *text = request(getpid()); /* is answered when the time limit of the first is over */
    CHECK(text != NULL && is_balanced(text));
    CHECK_EQ(count(text, "\"device\""), 8);
    free(text);
    /* Once more, to be there when the NICs close. */
    int t = connect_to(getpid());
    CHECK(t >= 0);
    CHECK_EQ(read(t, &first, 1), 1);
    for (int i = 0; i < 8; i++)
        CHECK_OK(VipCloseNic(nics[i]));
    close(s);
    close(t);
    CHECK_NOTHING_LEFT();
}

/* ---------------------------------------------------------------- who answers */

/* A process does not listen without a NIC, if the environment disables it, and for NICs without a thread. */
static void test_answering_process(void)
{
    VIP_NIC_HANDLE nic, second;
    viakit_nic_options options = {0};
    snprintf(check_context, sizeof check_context, "who answers");
    CHECK(request(getpid()) == NULL);
    setenv("VIAKIT_INSPECT", "0", 1);
    CHECK_OK(VipOpenNic("loop", &nic));
    unsetenv("VIAKIT_INSPECT");
    CHECK(request(getpid()) == NULL);
    options.no_thread = 1;
    CHECK_OK(viakit_open_nic("loop", &options, &second));
    CHECK(request(getpid()) == NULL);
    CHECK_OK(VipCloseNic(nic));
    CHECK_OK(VipOpenNic("loop", &nic));
    char *text = request(getpid());
    CHECK(text != NULL);
    CHECK_EQ(count(text, "\"device\""), 1); /* a NIC without a thread keeps to itself */
    free(text);
    CHECK_OK(VipCloseNic(nic));
    CHECK(request(getpid()) == NULL);
    CHECK_OK(VipCloseNic(second));
    CHECK_NOTHING_LEFT();
}

#ifndef __SANITIZE_THREAD__ /* which does not bear threads in the child of a fork */
static void test_fork(void)
{
    VIP_NIC_HANDLE nic;
    int to_child[2], to_parent[2];
    char go = 0;
    snprintf(check_context, sizeof check_context, "fork");
    CHECK_OK(VipOpenNic("loop", &nic));
    CHECK_EQ(pipe(to_child), 0);
    CHECK_EQ(pipe(to_parent), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        close(to_child[1]);
        CHECK_EQ(write(to_parent[1], &go, 1), 1); /* what it had inherited is closed by now */
        CHECK(request(getpid()) == NULL);
        CHECK_OK(VipOpenNic("loop", &nic));
        char *text = request(getpid());
        CHECK(text != NULL && is_balanced(text));
        CHECK_EQ(count(text, "\"device\""), 1);
        free(text);
        CHECK_OK(VipCloseNic(nic));
        CHECK_EQ(read(to_child[0], &go, 1), 0); /* until the parent has looked */
        _exit(0);
    }
    char *text = request(getpid());
    CHECK(text != NULL);
    free(text);
    CHECK_EQ(read(to_parent[0], &go, 1), 1);
    CHECK_OK(VipCloseNic(nic));
    CHECK(request(getpid()) == NULL); /* although the child had inherited the socket */
    close(to_child[0]);
    close(to_child[1]);
    close(to_parent[0]);
    close(to_parent[1]);
    int status;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
    CHECK_NOTHING_LEFT();
}
#endif

int main(void)
{
    check_deadline(90);
    unsetenv("VIAKIT_INSPECT");
    test_contents();
    test_while_all_moves();
    test_silent_client();
    test_answering_process();
#ifndef __SANITIZE_THREAD__
    test_fork();
#endif
    return 0;
}
