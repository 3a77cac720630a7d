/* lastword.c - a server that calls exit() right after it has taken the last message, without closing anything:
 * lastword DEVICE HOST LEVEL COUNT BYTES [MODE], COUNT at most 8. Each send of the client must complete without an
 * error. MODE says what happens at the server:
 *   (none)    exit() in main()
 *   callback  exit() in a callback of the NIC
 *   thread    exit() in main() beside a thread that waits on the NIC; at the client, too
 *   signal    exit() in a signal handler that interrupts VipRecvDone
 *   fork      before the first message a child of fork calls exit(), which must not end the connection
 */
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "old.h"

static int left;
static VIP_CQ_HANDLE idle_cq;

static void end(void)
{
    printf("done\n");
    exit(0);
}

static void taken(VIP_PVOID context, VIP_NIC_HANDLE n, VIP_VI_HANDLE v, VIP_DESCRIPTOR *d)
{
    (void)context;
    (void)n;
    EXPECT((d->CS.Status & VIP_STATUS_ERROR_MASK) == 0);
    if (--left == 0)
        end();
    TRY(VipPostRecv(v, d, handle));
    TRY(VipRecvNotify(v, NULL, taken));
}

static void *wait_on(void *argument)
{
    VIP_VI_HANDLE v;
    VIP_BOOLEAN recv;
    (void)argument;
    VipCQWait(idle_cq, VIP_INFINITE, &v, &recv);
    return NULL;
}

static void on_alarm(int number)
{
    (void)number;
    exit(0);
}

static void serve(const char *mode)
{
    VIP_DESCRIPTOR *d = NULL;
    if (strcmp(mode, "fork") == 0) {
        int status = 1;
        pid_t child = fork();
        if (child == 0)
            exit(0);
        EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    }
    if (strcmp(mode, "callback") == 0) {
        TRY(VipRecvNotify(vi, NULL, taken));
        for (;;)
            pause();
    }
    while (left--) {
        TRY(VipRecvWait(vi, PATIENT, &d));
        if (left)
            TRY(VipPostRecv(vi, d, handle));
    }
    if (strcmp(mode, "signal") == 0) {
        struct itimerval soon = {{0, 0}, {0, 1000}};
        printf("done\n");
        fflush(stdout);
        signal(SIGALRM, on_alarm);
        EXPECT(setitimer(ITIMER_REAL, &soon, NULL) == 0);
        for (;;)
            VipRecvDone(vi, &d);
    }
    end();
}

int main(int argc, char **argv)
{
    VIP_VI_ATTRIBUTES attributes;
    VIP_DESCRIPTOR *d = NULL;
    pthread_t thread;
    const char *mode;
    long len;
    int i, serves;
    EXPECT(argc >= 6);
    serves = strcmp(argv[2], "-") == 0;
    left = atoi(argv[4]);
    len = atol(argv[5]);
    mode = argc > 6 ? argv[6] : "";
    open_nic(argv[1]);
    allocate();
    TRY(VipRegisterMem(nic, memory, ROOM, NULL, &handle));
    memset(&attributes, 0, sizeof(attributes));
    attributes.ReliabilityLevel = (VIP_RELIABILITY_LEVEL)atoi(argv[3]);
    TRY(VipCreateVi(nic, &attributes, NULL, NULL, &vi));
    for (i = 0; i < 8 && serves; i++)
        TRY(VipPostRecv(vi, fill(i, data_at(0), len), handle));
    if (strcmp(mode, "thread") == 0) {
        TRY(VipCreateCQ(nic, 16, &idle_cq));
        EXPECT(pthread_create(&thread, NULL, wait_on, NULL) == 0);
    }
    connect_to(argv[2]);
    if (serves)
        serve(mode);
    while (left--) {
        VIP_RETURN code;
        TRY(VipPostSend(vi, fill(10, data_at(0), len), handle));
        code = VipSendWait(vi, PATIENT, &d);
        if (code != VIP_SUCCESS) {
            fprintf(stderr, "the send before %d others: %d, status 0x%x\n", left, (int)code, d ? d->CS.Status : 0);
            exit(1);
        }
    }
    end();
    return 0;
}
