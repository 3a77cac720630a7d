/*
 * test_users.c - shm joins processes of one user: which pairs of users and user namespaces are let in.
 *
 * A server and a client, each a process, take their user and namespace, open shm NICs of one name, and the client
 * requests a connection. Linux shows all users that have no number in a namespace as the same one (65534). Needs root,
 * to become other users; skipped otherwise.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "address.h"
#include "check.h"
#include "viakit.h"

#define ANNA 23001
#define BERT 23002
#define NOBODY 65534
#define NAME "users"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* Identity of a process: its user, and the number of that user in a user namespace of its own. */
typedef struct {
    const char *name;
    uid_t uid;
    enum { HOST, UNMAPPED, MAPPED } namespace;
    uid_t inside; /* MAPPED: its number there */
} identity;

static const identity anna = {"anna", ANNA, HOST, 0};
static const identity bert = {"bert", BERT, HOST, 0};
static const identity user_nobody = {"nobody", NOBODY, HOST, 0};
static const identity hidden_anna = {"anna without a number", ANNA, UNMAPPED, 0};
static const identity hidden_bert = {"bert without a number", BERT, UNMAPPED, 0};
static const identity hidden_nobody = {"nobody without a number", NOBODY, UNMAPPED, 0};
static const identity contained_anna = {"anna as nobody of a container", ANNA, MAPPED, NOBODY};
static const identity contained_bert = {"bert as nobody of a container", BERT, MAPPED, NOBODY};
static const identity mapped_anna = {"anna with a number", ANNA, MAPPED, ANNA};
static const identity mapped_bert = {"bert with anna's number", BERT, MAPPED, ANNA};

typedef struct {
    const identity *server, *client;
    int joined;     /* they are the same user, and that can be verified */
    int unverified; /* refused because the numbers are equal; else the client finds no server */
    int shared;     /* the client is in the server's namespace. Joined only where the kernel has SO_PEERPIDFD */
} pair;

static const pair pairs[] = {
    {&anna, &anna, 1, 0, 0},
    {&anna, &bert, 0, 0, 0},
    {&user_nobody, &user_nobody, 1, 0, 0},
    {&mapped_anna, &mapped_anna, 1, 0, 0},
    {&hidden_anna, &hidden_bert, 0, 1, 0},
    {&hidden_anna, &hidden_anna, 1, 1, 1},
    {&hidden_anna, &hidden_anna, 0, 1, 0},
    {&contained_anna, &contained_anna, 1, 1, 1},
    {&contained_anna, &contained_anna, 0, 1, 0},
    {&contained_anna, &contained_bert, 0, 1, 0},
    {&contained_anna, &hidden_bert, 0, 1, 0},
    {&hidden_anna, &contained_bert, 0, 1, 0},
    {&user_nobody, &hidden_bert, 0, 1, 0},
    {&hidden_anna, &user_nobody, 0, 0, 0},
    {&hidden_nobody, &hidden_nobody, 1, 1, 1},
    {&mapped_anna, &mapped_bert, 0, 0, 0},
};

static void write_file(pid_t pid, const char *file, const char *text)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, file);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    CHECK_EQ(write(fd, text, strlen(text)), strlen(text));
    close(fd);
}

static void put_byte(int fd)
{
    CHECK_EQ(write(fd, "x", 1), 1);
}

static void get_byte(int fd)
{
    char c;
    CHECK_EQ(read(fd, &c, 1), 1);
}

/* The user first, so that the namespace is that user's. Capabilities in it go, as exec would take them; a process that
 * has changed its user counts as undumpable until it says otherwise. */
static void become(const identity *who, int ctl, pid_t shared_with)
{
    char path[64];
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3];
    memset(none, 0, sizeof(none));
    CHECK_EQ(setgroups(0, NULL), 0);
    CHECK_EQ(setresgid(who->uid, who->uid, who->uid), 0);
    CHECK_EQ(setresuid(who->uid, who->uid, who->uid), 0);
    CHECK_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
    if (shared_with) {
        snprintf(path, sizeof(path), "/proc/%d/ns/user", (int)shared_with);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0);
        CHECK_EQ(setns(fd, CLONE_NEWUSER), 0);
        close(fd);
    } else if (who->namespace != HOST)
        CHECK_EQ(unshare(CLONE_NEWUSER), 0);
    put_byte(ctl); /* the parent, who may, writes the map */
    get_byte(ctl);
    CHECK_EQ(syscall(SYS_capset, &head, none), 0);
    CHECK_EQ(prctl(PR_SET_DUMPABLE, 1), 0);
}

static void map(const identity *who, pid_t pid)
{
    char text[64];
    if (who->namespace != MAPPED)
        return;
    snprintf(text, sizeof(text), "%u %u 1\n", who->inside, who->uid);
    write_file(pid, "uid_map", text);
    write_file(pid, "gid_map", text);
}

static void ignore_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    (void)context;
    (void)error;
}

static VIP_NIC_HANDLE open_nic(const char *device, VIP_VI_HANDLE *vi, uint8_t host[6])
{
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES a;
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY};
    CHECK_OK(viakit_open_nic(device, NULL, &nic));
    CHECK_OK(VipErrorCallback(nic, NULL, ignore_error));
    CHECK_OK(VipQueryNic(nic, &a));
    memcpy(host, a.LocalNicAddress, 6);
    CHECK_OK(VipCreatePtag(nic, &attr.Ptag));
    CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, vi));
    return nic;
}

static VIP_NET_ADDRESS *address_of(address *a, const uint8_t host[6])
{
    memset(a, 0, sizeof(*a));
    a->net.HostAddressLen = 6;
    a->net.DiscriminatorLen = 1;
    memcpy(a->net.HostAddress, host, 6);
    a->net.HostAddress[6] = 'u';
    return &a->net;
}

/* Ends with 1 if a client was accepted, 0 if the parent said that it is over. */
__attribute__((noreturn)) static void server(const identity *who, const char *device, int ctl)
{
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    address local, remote;
    uint8_t host[6];
    int accepted = 0;
    become(who, ctl, 0);
    nic = open_nic(device, &vi, host);
    put_byte(ctl);
    for (struct pollfd p = {.fd = ctl, .events = POLLIN}; poll(&p, 1, 0) == 0;) {
        address_of(&remote, host);
        VIP_RETURN r = VipConnectWait(nic, address_of(&local, host), 50, &remote.net, &attr, &conn);
        if (r == VIP_SUCCESS) {
            accepted = 1;
            CHECK_OK(VipConnectAccept(conn, vi));
        }
    }
    CHECK_OK(VipDisconnect(vi));
    CHECK_OK(VipCloseNic(nic));
    _exit(accepted ? 10 : 11);
}

/* Ends with 10 if it was accepted, 11 if refused for what the pair says. */
__attribute__((noreturn)) static void client(const pair *p, const char *device, int ctl, pid_t server_pid)
{
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi;
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN r;
    address local, remote;
    uint8_t host[6];
    VIP_UINT64 counters[VIAKIT_N_COUNTERS];
    double end = check_now() + CHECK_WAIT_S;
    become(p->client, ctl, p->shared ? server_pid : 0);
    get_byte(ctl); /* the server listens */
    nic = open_nic(device, &vi, host);
    do {
        r = VipConnectRequest(vi, address_of(&local, host), address_of(&remote, host), 5000, &attr);
        CHECK(check_now() < end);
    } while (r == VIP_NO_MATCH); /* the server is between two waits */
    if (r != VIP_SUCCESS) {
        CHECK_RET(r, VIP_NOT_REACHABLE);
        CHECK_OK(viakit_nic_counters(nic, counters));
        if (p->unverified) {
            CHECK(strstr(viakit_last_error(), "cannot be verified") != NULL);
            CHECK(counters[VIAKIT_COUNTER_refused_users] > 0);
        } else
            CHECK(strstr(viakit_last_error(), "same user") != NULL);
    }
    CHECK_OK(VipDisconnect(vi));
    CHECK_OK(VipCloseNic(nic));
    _exit(r == VIP_SUCCESS ? 10 : 11);
}

static int has_peer_pidfd(void)
{
    int fds[2], pidfd = -1;
    socklen_t len = sizeof(pidfd);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    int has = getsockopt(fds[0], SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) == 0;
    if (has)
        close(pidfd);
    close(fds[0]);
    close(fds[1]);
    return has;
}

static int status_of(pid_t pid)
{
    int status;
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void run(const pair *p)
{
    int ctl[2][2];
    pid_t pids[2];
    char device[32];
    snprintf(device, sizeof(device), "shm:%s%d", NAME, (int)getpid());
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        const identity *who = i ? p->client : p->server;
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ctl[i]), 0);
        if ((pids[i] = fork()) == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            check_deadline(40);
            snprintf(check_context, sizeof(check_context), "%s, server %s, client %s", i ? "client" : "server",
                     p->server->name, p->client->name);
            i ? client(p, device, ctl[i][1], pids[0]) : server(who, device, ctl[i][1]);
        }
        CHECK(pids[i] > 0);
        close(ctl[i][1]);
        get_byte(ctl[i][0]);
        if (i == 0 || !p->shared)
            map(who, pids[i]);
        put_byte(ctl[i][0]);
    }
    get_byte(ctl[0][0]);
    put_byte(ctl[1][0]);
    int joined = p->joined && (!p->shared || has_peer_pidfd()), client_status = status_of(pids[1]);
    put_byte(ctl[0][0]);
    int server_status = status_of(pids[0]);
    printf("%-30s %-30s %-16s %s\n", p->server->name, p->client->name, p->shared ? "one namespace" : "",
           client_status == 10 ? "joined" : "refused");
    CHECK_EQ(client_status, joined ? 10 : 11);
    CHECK_EQ(server_status, joined ? 10 : 11);
    close(ctl[0][0]);
    close(ctl[1][0]);
}

int main(void)
{
    check_deadline(120);
    if (geteuid() != 0) {
        printf("skipped: only root can become other users\n");
        return CHECK_SKIPPED;
    }
    /* A container's root may lack the right to change users or to make namespaces. */
    pid_t pid = fork();
    if (pid == 0)
        _exit(setresuid(BERT, BERT, BERT) != 0 || unshare(CLONE_NEWUSER) != 0);
    if (status_of(pid) != 0) {
        printf("skipped: this root cannot become other users with user namespaces of their own (a container, or "
               "ThreadSanitizer's thread)\n");
        return CHECK_SKIPPED;
    }
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        run(&pairs[i]);
    return 0;
}
