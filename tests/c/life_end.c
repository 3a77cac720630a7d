/*
 * life_end.c - cases of test_life: processes that end, with and without a word, and with children that live on.
 *
 * The difficulty is the same in all of them: an end is noticed by what the kernel closes, and a child of a fork keeps
 * open what it has inherited. A NIC's files must not live on in children, or the death of its process would go
 * unnoticed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "test_life.h"

/* B ends when both sides have come here, and the connection with it. Closes the endpoint, and returns the word that B
 * came with. */
static uint64_t until_b_ends(endpoint *e, const char *what)
{
    side *s = e->s;
    uint64_t word = side_exchange(s, 0);
    double begin = check_now();
    life_over(e, 1);
    life_report(s, what, begin);
    endpoint_close(e);
    return word;
}

/* ---- client_killed: as peer_killed, but the one that dies is the one that connected */

void client_killed_a(side *s)
{
    endpoint e;
    address local, remote = {.room = {0}};
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    /* The client's discriminator goes behind its host address, so there must be room. */
    make_address(&remote, s->peer_host, (const char[64]){0}, 64); /* room for the client's */
    CHECK_OK(VipConnectWait(s->nic, make_address(&local, s->attr.LocalNicAddress, "client", 6), CHECK_WAIT_S * 1000,
                            &remote.net, &attr, &conn));
    CHECK_OK(VipConnectAccept(conn, e.vi));
    /* Both are connected; B dies. */
    until_b_ends(&e, "the death of the client was noticed");
}

void client_killed_b(side *s)
{
    endpoint e;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN r;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    make_address(&local, s->attr.LocalNicAddress, "me", 2);
    make_address(&remote, s->peer_host, "client", 6);
    WAIT_UNTIL((r = VipConnectRequest(e.vi, &local.net, &remote.net, CHECK_WAIT_S * 1000, &attr)) != VIP_NO_MATCH);
    CHECK_OK(r);
    side_exchange(s, 0);
    raise(SIGKILL);
}

#ifndef __SANITIZE_THREAD__
/* ---- left: B's process ends as a careless program does, without closing anything: as a killed one, and no sooner
 * noticed */

/* That process leaves everything as it is, on purpose. LeakSanitizer calls this at the end of each process to find out
 * whether to check. All other processes must close what they open. */
static int careless;

int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return careless;
}

void left_a(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 65536);
    endpoint_connect(&e, "left");
    /* The child's number, so that the case fails if no child came to the end of its part. */
    pid_t child = (pid_t)until_b_ends(&e, "the end of the process was noticed");
    CHECK(child > 0);
}

void left_b(side *s)
{
    endpoint e;
    int status;
    /* B itself has to report to the harness, so a child of it is the careless one. It opens a NIC of its own: its
     * parent's is none of its. */
    pid_t child = fork();
    if (child == 0) {
        side of_child = *s;
        check_deadline(60);
        CHECK_OK(viakit_open_nic(s->device, &s->options, &of_child.nic));
        CHECK_OK(VipQueryNic(of_child.nic, &of_child.attr));
        endpoint_open(&e, &of_child, VIP_SERVICE_RELIABLE_RECEPTION, 65536);
        endpoint_connect(&e, "left");
        side_exchange(s, (uint64_t)getpid());
        careless = 1;
        exit(42); /* not _exit: what the library does at exit must not hang or crash */
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
}

#endif

/* As fork(), but no handler of any library runs in the child, so it holds all files that are open. It ends with its
 * parent. */
static pid_t bare_child(void)
{
    pid_t parent = getpid(), child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    CHECK(child >= 0);
    if (child == 0)
        syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
    if (child == 0 && syscall(SYS_getppid) != parent)
        syscall(SYS_exit_group, 0);
    return child;
}

static int n_open_files(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    CHECK(d != NULL);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* ---- outlived: B has forked; that its child lives on does not hide B's death */

void outlived_a(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_connect(&e, "outlived");
    until_b_ends(&e, "the death of the parent was noticed");
}

void outlived_b(side *s)
{
    endpoint e;
    char word;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_connect(&e, "outlived");
    /* Compared with the number in the child: forking must have closed the NIC's. */
    int files = n_open_files(), ready[2];
    CHECK_EQ(pipe2(ready, O_CLOEXEC), 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) { /* until A has ended */
        check_deadline(60);
        close(ready[0]);
        CHECK_EQ(write(ready[1], n_open_files() < files ? "y" : "n", 1), 1);
        /* It lives on, holding what it has, until A is through. */
        CHECK_EQ(poll(&(struct pollfd){.fd = s->ctl, .events = POLLRDHUP}, 1, -1), 1);
        _exit(0);
    }
    CHECK_EQ(read(ready[0], &word, 1), 1);
    CHECK_EQ(word, 'y'); /* the NIC's files are closed in it */
    side_exchange(s, 0);
    raise(SIGKILL);
}

/* ---- closed: the same of a NIC that B closes, with a child in which the library could close nothing */

void closed_a(side *s)
{
    endpoint e;
    address remote;
    VIP_VI_ATTRIBUTES attr;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_connect(&e, "closed");
    /* The port of the NIC that B closes. It is requested afterwards, when no NIC has it. */
    uint16_t port = (uint16_t)side_exchange(s, 0);
    endpoint_disconnect(&e);
    SIDE_SYNC(s, 1);
    make_address(&remote, s->peer_host, (const uint8_t[]){(uint8_t)port, (uint8_t)(port >> 8), 'c'}, 3);
    remote.net.HostAddressLen = VIAKIT_NIC_ADDRESS_LEN;
    remote.net.DiscriminatorLen = 1;
    /* NOT_REACHABLE, and not a time-out: nothing answers for the port any more, although a child still holds files of
     * that NIC. */
    CHECK_RET(VipConnectRequest(e.vi, NULL, &remote.net, 1000 * CHECK_WAIT_S, &attr), VIP_NOT_REACHABLE);
    SIDE_SYNC(s, 2);
    endpoint_close(&e);
}

void closed_b(side *s)
{
    endpoint e;
    viakit_nic_info info;
    int status;
    side closing = *s;
    CHECK_OK(viakit_open_nic(s->device, &s->options, &closing.nic));
    CHECK_OK(viakit_query_nic(closing.nic, &info));
    endpoint_open(&e, &closing, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_connect(&e, "closed");
    side_exchange(s, info.port);
    pid_t child = bare_child();
    /* The child does nothing but hold the files; it may call nothing of libc, because no library was notified of the
     * fork. */
    while (child == 0)
        syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    CHECK_OK(VipCloseNic(closing.nic));
    SIDE_SYNC(s, 1);
    SIDE_SYNC(s, 2);
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
}

/* ---- callers_gone: a process that called on shm and ended without a message is removed, although a child of this
 * process holds its socket, too */

#define CALLERS 20

void callers_gone_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    viakit_nic_info info;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int callers[CALLERS], files = n_open_files(), status;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    post_recv(&e, prep_recv(&e, d = descriptor(&e, 1), NULL, 0));
    CHECK_OK(viakit_query_nic(s->nic, &info));
    /* The name of the NIC's socket, by which others find it. */
    int n = snprintf(to.sun_path + 1, sizeof(to.sun_path) - 1, "viakit/shm/%u/%s/%u", (unsigned)getuid(),
                     strchr(s->device, ':') + 1, info.port);
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        CHECK_EQ(connect(callers[i], (struct sockaddr *)(void *)&to,
                         (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)),
                 0);
    }
    /* Each call is two files here: the caller's end and the NIC's. */
    WAIT_UNTIL(n_open_files() == files + 2 * CALLERS); /* the NIC has taken all calls */
    pid_t child = bare_child();
    if (child == 0) {
        /* The child keeps the NIC's ends of the calls, not the callers'. */
        for (int i = 0; i < CALLERS; i++)
            syscall(SYS_close, callers[i]);
        for (;;)
            syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
    }
    for (int i = 0; i < CALLERS; i++)
        close(callers[i]);
    /* The callers are gone; the NIC must have closed its ends, although the child holds copies of them. */
    WAIT_UNTIL(n_open_files() == files);
    WAIT_UNTIL(nic_thread_sleeps()); /* nothing wakes it again and again */
    SIDE_SYNC(s, 1);
    endpoint_connect(&e, "callers"); /* its memory is what the callers had */
    reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
    SIDE_SYNC(s, 2);
    CHECK_EQ(kill(child, SIGKILL), 0);
    CHECK_EQ(waitpid(child, &status, 0), child);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void callers_gone_b(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    SIDE_SYNC(s, 1);
    endpoint_connect(&e, "callers");
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    post_send(&e, prep_send(&e, d, NULL, 0));
    reap_send(&e, d, VIP_STATUS_OP_SEND);
    SIDE_SYNC(s, 2);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* kill() returns before the last thread has stopped. */
int life_stands_still(pid_t pid)
{
    char path[300], state = 0;
    struct dirent *entry;
    int still = 1;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    CHECK(tasks != NULL);
    while ((entry = readdir(tasks)) != NULL) {
        snprintf(path, sizeof(path), "/proc/%d/task/%.20s/stat", (int)pid, entry->d_name);
        FILE *f = fopen(path, "re");
        if (f == NULL)
            continue;
        still &= fscanf(f, "%*d (%*[^)]) %c", &state) == 1 && state == 'T';
        fclose(f);
    }
    closedir(tasks);
    return still;
}

/* ---- stopped_idle: B is stopped while one connection is idle and the ring to it is full of another's messages, so
 * that not even the probes of the idle one have room */

void life_impatient_and_small(viakit_nic_options *o)
{
    life_impatient(o);
    /* A window of four rings: the messages that are sent at once cannot have room. */
    o->ring_slots = 16;
    o->window = 64;
}

/* Takes completed descriptors of a queue until all LIFE_MESSAGES are done or the connection is lost. Returns how many
 * are done without an error. */
static int taken_until_lost(endpoint *e, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **))
{
    VIP_DESCRIPTOR *d;
    int good = 0;
    double end = check_now() + CHECK_WAIT_S;
    while (good < LIFE_MESSAGES) {
        int lost = vi_state(e->vi) != VIP_STATE_CONNECTED;
        VIP_RETURN r = done(e->vi, &d);
        if (r == VIP_SUCCESS) {
            pattern_check(d->DS[0].Local.Data.Address, d->CS.Length, (uint64_t)good);
            good++;
            end = check_now() + CHECK_WAIT_S; /* this side may have been stopped meanwhile */
        } else if (lost || r == VIP_DESCRIPTOR_ERROR)
            break;
        if (check_now() > end)
            FAIL("%d messages in %d s, and the connection is not lost", good, CHECK_WAIT_S);
        sched_yield();
    }
    return good;
}

/* Both sides come to the same state, connected or not. */
static void agree(endpoint *e)
{
    double end = check_now() + CHECK_WAIT_S;
    uint64_t state;
    do {
        state = vi_state(e->vi) == VIP_STATE_CONNECTED;
        if (check_now() > end)
            FAIL("one side is connected, the other is not, for %d s", CHECK_WAIT_S);
        sched_yield();
    } while (side_exchange(e->s, state) != state);
}

static void stopped_idle_open(side *s, endpoint *idle, endpoint *busy, VIP_DESCRIPTOR *d[LIFE_MESSAGES])
{
    life_prepare(idle, s, NULL, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    life_prepare(busy, s, d, VIP_SERVICE_RELIABLE_RECEPTION, 1);
    endpoint_connect(idle, "idle");
    endpoint_connect(busy, "busy");
    SIDE_SYNC(s, 1);
}

/* On a network, silence ends both connections. On shm without faults neither ends. With faults it depends on the room:
 * what found no room in the ring is not lost, so it has no time-out. No message that was reported as received may be
 * missing, and the sides agree in the end. */
void stopped_idle_a(side *s)
{
    endpoint idle, busy;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES];
    stopped_idle_open(s, &idle, &busy, d);
    uint64_t stalls = nic_counter(s, VIAKIT_COUNTER_send_stalls);
    CHECK_EQ(kill(s->peer_pid, SIGSTOP), 0);
    WAIT_UNTIL(life_stands_still(s->peer_pid));
    life_post_all(&busy, d);
    /* On a busy machine the time-outs may end the connection before the ring is full. */
    if (s->link->kind == ON_SHM && s->link->fault)
        WAIT_UNTIL(nic_counter(s, VIAKIT_COUNTER_send_stalls) > stalls || error_count(s, VIP_ERROR_CONN_LOST) > 0);
    if (s->link->kind >= ON_ETH)
        wait_error(s, VIP_ERROR_CONN_LOST, 2);
    else
        life_feel_silence();
    CHECK_EQ(kill(s->peer_pid, SIGCONT), 0);
    int sent = taken_until_lost(&busy, VipSendDone);
    int received = (int)side_exchange(s, (uint64_t)sent);
    CHECK(received >= sent);
    CHECK(sent == LIFE_MESSAGES || s->link->fault || s->link->kind >= ON_ETH);
    agree(&busy);
    agree(&idle);
    CHECK(vi_state(idle.vi) == VIP_STATE_CONNECTED || s->link->fault || s->link->kind >= ON_ETH);
    SIDE_SYNC(s, 2);
    endpoint_close(&idle);
    endpoint_close(&busy);
}

void stopped_idle_b(side *s)
{
    endpoint idle, busy;
    stopped_idle_open(s, &idle, &busy, NULL);
    side_exchange(s, (uint64_t)taken_until_lost(&busy, VipRecvDone));
    agree(&busy);
    agree(&idle);
    SIDE_SYNC(s, 2);
    endpoint_close(&idle);
    endpoint_close(&busy);
}
