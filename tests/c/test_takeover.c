/*
 * test_takeover.c - a process outside the job answers a rank in another rank's place, over udp, on channels via and bip
 * (secret_job.h).
 *
 * The attacker is another process and, if the test may choose one, another user. Its NIC is at rank 1's station, and
 * has the discriminators of ranks 0 and 1, which it computes from the job's word: all users read it in /proc/net/unix.
 */
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "secret_job.h"

#define OTHER_USER 65534

static void release(job *j)
{
    pthread_mutex_lock(&j->mutex);
    j->released = 1;
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->mutex);
}

static int exchanges_made(job *j)
{
    pthread_mutex_lock(&j->mutex);
    int n = j->round;
    pthread_mutex_unlock(&j->mutex);
    return n;
}

/* From the exchange of cards on rank 1 stands still. */
static void hold_rank_1(job *j, const void *all, size_t len)
{
    learn_word(j, all, len);
    if (j->n_exchanges == 2)
        j->released = 0;
}

/* Channel via takes 8 characters of the word, BIP takes 15 and a zero. */
static void name_end(address *a, const uint8_t host[6], const char *policy, const char *word, uint32_t from,
                     uint32_t to)
{
    uint8_t discriminator[24] = {0};
    size_t used = strcmp(policy, "bip") == 0 ? 15 : 8, len = (used + 7) / 8 * 8;
    memcpy(discriminator, word, used);
    memcpy(discriminator + len, &from, 4);
    memcpy(discriminator + len + 4, &to, 4);
    make_address(a, host, discriminator, len + 8);
}

/* A NIC of this test at rank 1's station sends requests to rank 0 as rank 1 would. It gets rank 0's requests, which go
 * to all NICs of the station, and must not be connected by any number of replies. Returns whether it was. */
static int try_to_take_over(const char *policy, const char *word)
{
    viakit_nic_options options = {.size = sizeof(options)};
    VIP_NIC_HANDLE nic, scout;
    VIP_NIC_ATTRIBUTES own, remote_nic;
    VIP_PROTECTION_HANDLE tag;
    VIP_VI_HANDLE vi;
    address local, remote;
    int taken = 0;
    CHECK_OK(viakit_open_nic("udp:127.0.0.2", &options, &nic));
    CHECK_OK(viakit_open_nic("udp:127.0.0.1", &options, &scout));
    CHECK_OK(VipQueryNic(nic, &own));
    CHECK_OK(VipQueryNic(scout, &remote_nic));
    CHECK_OK(VipCreatePtag(nic, &tag));
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY,
                              .MaxTransferSize = own.MaxTransferSize,
                              .Ptag = tag,
                              .EnableRdmaWrite = VIP_TRUE,
                              .EnableRdmaRead = VIP_TRUE};
    CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
    name_end(&local, own.LocalNicAddress, policy, word, 1, 0);
    name_end(&remote, remote_nic.LocalNicAddress, policy, word, 0, 1);
    /* Several attempts, each while rank 0 repeats its request: at least every 200 ms. */
    for (int i = 0; i < 4 && !taken; i++) {
        CHECK_OK(VipConnectPeerRequest(vi, &local.net, &remote.net, 500));
        VIP_RETURN r = VipConnectPeerWait(vi, &attr);
        taken = r == VIP_SUCCESS;
        if (!taken)
            CHECK_RET(r, VIP_TIMEOUT);
    }
    CHECK_OK(VipDisconnect(vi));
    CHECK_OK(VipDestroyVi(vi));
    CHECK_OK(VipDestroyPtag(nic, tag));
    CHECK_OK(VipCloseNic(scout));
    CHECK_OK(VipCloseNic(nic));
    return taken;
}

/* The attacker, a process that begins before the library is used. It reads the job's word, and reports the result. */
typedef struct {
    const char *policy;
    int ctl; /* its parent's end of a socket pair */
    pid_t pid;
} attacker;

static void start_attacker(attacker *a, const char *policy)
{
    int fds[2];
    char word[33], taken;
    CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    a->policy = policy;
    a->ctl = fds[0];
    a->pid = fork();
    CHECK(a->pid >= 0);
    if (a->pid) {
        close(fds[1]);
        return;
    }
    close(fds[0]);
    snprintf(check_context, sizeof(check_context), "attacker of %s", policy);
    if (geteuid() == 0) {
        CHECK_EQ(setgroups(0, NULL), 0);
        CHECK_EQ(setresgid(OTHER_USER, OTHER_USER, OTHER_USER), 0);
        CHECK_EQ(setresuid(OTHER_USER, OTHER_USER, OTHER_USER), 0);
    }
    if (recv(fds[1], word, sizeof(word), 0) != sizeof(word))
        exit(1); /* the test has failed before */
    taken = (char)try_to_take_over(policy, word);
    CHECK_EQ(send(fds[1], &taken, 1, MSG_NOSIGNAL), 1);
    exit(0);
}

static void test_taken_over(attacker *a)
{
    static job j;
    rank_of_job ranks[N_RANKS];
    pthread_t threads[N_RANKS];
    char taken = 1;
    int status;
    snprintf(check_context, sizeof(check_context), "taken over: %s", a->policy);
    init_job(&j, a->policy, 2);
    j.attack = hold_rank_1;
    begin_all(&j, open_rank, ranks, threads);
    double end = check_now() + CHECK_WAIT_S;
    while (exchanges_made(&j) < 4) { /* two exchanges, of two rounds each */
        CHECK(check_now() < end);
        sched_yield();
    }
    CHECK_EQ(send(a->ctl, j.word, sizeof(j.word), MSG_NOSIGNAL), sizeof(j.word));
    CHECK_EQ(recv(a->ctl, &taken, 1, 0), 1);
    CHECK_EQ(waitpid(a->pid, &status, 0), a->pid);
    CHECK_EQ(status, 0);
    close(a->ctl);
    if (taken)
        FAIL("a NIC without the job's secret is connected with rank 0 in rank 1's place");
    release(&j);
    end_all(&j, threads);
    begin_all(&j, talk, ranks, threads);
    end_all(&j, threads);
}

int main(void)
{
    attacker of_via, of_bip;
    start_attacker(&of_via, "via");
    start_attacker(&of_bip, "bip");
    test_taken_over(&of_via);
    test_taken_over(&of_bip);
    return 0;
}
