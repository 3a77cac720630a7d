/*
 * test_stub.c - a link that misbehaves: a NIC's send operation is replaced, so that what links do once in a long while
 * happens at a chosen frame. And exit() in a thread that the link cannot leave. All NICs are on loop.
 */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "address.h"
#include "check.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/enter.h"
#include "via/link_services.h"
#include "via/nic.h"

#define STUB_DEVICE "loop:stub"
#define LEN 65536 /* a multiple of any page */

/* ---------------------------------------------------------------- the stub */

/* Called in place of the link's send; forwards by calling real->send. */
typedef int stub_function(struct via_nic *nic, struct link *link, struct link_peer *peer, struct link_frame *frames,
                          int n);

static struct {
    struct link_ops ops;
    const struct link_ops *real;
    struct via_nic *nic;
    stub_function *send;
} stub;

static int stub_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    return stub.send(stub.nic, link, peer, frames, n);
}

static void stub_open(VIP_NIC_HANDLE handle, stub_function *send)
{
    VIP_RETURN code;
    stub.nic = via_nic_enter(handle, &code);
    CHECK(stub.nic != NULL);
    stub.send = send;
    stub.real = stub.nic->ops;
    stub.ops = *stub.real;
    stub.ops.send = stub_send;
    stub.nic->ops = &stub.ops;
    via_leave(stub.nic);
}

static void stub_close(void)
{
    via_enter(stub.nic);
    stub.nic->ops = stub.real;
    via_leave(stub.nic);
}

/* ---------------------------------------------------------------- NICs */

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_VI_HANDLE vi[2];
    uint8_t address[6];
    uint8_t *mem;
    VIP_MEM_HANDLE mh;
    atomic_int n_lost;
} host;

static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    if (error->ErrorCode == VIP_ERROR_CONN_LOST)
        atomic_fetch_add(&((host *)context)->n_lost, 1);
}

static void host_open(host *h, int no_thread)
{
    viakit_nic_options o;
    VIP_NIC_ATTRIBUTES attr;
    VIP_VI_ATTRIBUTES vi = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY, .MaxTransferSize = LEN};
    memset(h, 0, sizeof(*h));
    memset(&o, 0, sizeof(o));
    o.size = sizeof(o);
    o.no_thread = no_thread;
    CHECK_OK(viakit_open_nic(STUB_DEVICE, &o, &h->nic));
    CHECK_OK(VipErrorCallback(h->nic, h, on_error));
    CHECK_OK(VipQueryNic(h->nic, &attr));
    memcpy(h->address, attr.LocalNicAddress, 6);
    h->mem = mmap(NULL, 2 * LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(h->mem != MAP_FAILED);
    CHECK_OK(VipRegisterMem(h->nic, h->mem, 2 * LEN, NULL, &h->mh));
    for (int i = 0; i < 2; i++)
        CHECK_OK(VipCreateVi(h->nic, &vi, NULL, NULL, &h->vi[i]));
}

static void host_close(host *h)
{
    CHECK_OK(VipCloseNic(h->nic));
    munmap(h->mem, 2 * LEN);
}

static void name(address *a, const host *h, const char *discriminator)
{
    memset(a, 0, sizeof(*a));
    a->net.HostAddressLen = 6;
    a->net.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(a->room + 4, h->address, 6);
    memcpy(a->room + 10, discriminator, strlen(discriminator));
}

static void join_hosts(host *here, int i, host *there)
{
    address local, remote;
    char local_name[20], remote_name[20];
    snprintf(local_name, sizeof(local_name), "here%d", i);
    snprintf(remote_name, sizeof(remote_name), "there%d", i);
    name(&local, here, local_name);
    name(&remote, there, remote_name);
    CHECK_OK(VipConnectPeerRequest(here->vi[i], &local.net, &remote.net, 1000 * CHECK_WAIT_S));
    CHECK_OK(VipConnectPeerRequest(there->vi[0], &remote.net, &local.net, 1000 * CHECK_WAIT_S));
    CHECK_OK(VipConnectPeerWait(here->vi[i], NULL));
    CHECK_OK(VipConnectPeerWait(there->vi[0], NULL));
}

/* A message in the first half of the host's memory. Descriptors lie in the other half. */
static VIP_DESCRIPTOR *message(host *h, int i)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)(h->mem + LEN) + i;
    memset(d, 0, sizeof(*d));
    d->CS.SegCount = 1;
    d->CS.Control = VIP_CONTROL_OP_SENDRECV;
    d->CS.Length = LEN;
    d->DS[0].Local.Data.Address = h->mem;
    d->DS[0].Local.Handle = h->mh;
    d->DS[0].Local.Length = LEN;
    return d;
}

static VIP_VI_STATE state_of(VIP_VI_HANDLE vi)
{
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attr;
    VIP_BOOLEAN send, recv;
    CHECK_OK(VipQueryVi(vi, &state, &attr, &send, &recv));
    return state;
}

/* ---------------------------------------------------------------- two peers fail before the timers run */

static int n_failures;

/* Each peer fails once; afterwards its frames are accepted. */
static int fail_once(struct via_nic *nic, struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    static const struct link_peer *failed[2];
    (void)nic;
    for (int i = 0; i < n_failures; i++)
        if (failed[i] == peer)
            return stub.real->send(link, peer, frames, n);
    CHECK(n_failures < 2);
    failed[n_failures++] = peer;
    return -EIO;
}

static void two_peers_fail(void)
{
    static host sender, peers[2];
    host_open(&sender, 1);
    for (int i = 0; i < 2; i++) {
        host_open(&peers[i], 0);
        CHECK_OK(VipPostRecv(peers[i].vi[0], message(&peers[i], 0), peers[i].mh));
        join_hosts(&sender, i, &peers[i]);
    }
    stub_open(sender.nic, fail_once);
    for (int i = 0; i < 2; i++)
        CHECK_OK(VipPostSend(sender.vi[i], message(&sender, i), sender.mh));
    CHECK_EQ(n_failures, 2);
    WAIT_UNTIL(viakit_poll(sender.nic, NULL) == VIP_SUCCESS && atomic_load(&sender.n_lost) == 2);
    for (int i = 0; i < 2; i++)
        CHECK_EQ(state_of(sender.vi[i]), VIP_STATE_ERROR);
    stub_close();
    host_close(&sender);
    for (int i = 0; i < 2; i++)
        host_close(&peers[i]);
}

/* ---------------------------------------------------------------- the client is gone while ACCEPT is sent */

static int n_accepts;

/* A link may find only when it sends that the peer is gone (shm: the peer has hung up before it was greeted). */
static int lose_client(struct via_nic *nic, struct link *link, struct link_peer *peer, struct link_frame *frames, int n)
{
    int sent = stub.real->send(link, peer, frames, n);
    if ((frames[0].header.version_kind & 15) == WIRE_ACCEPT) {
        n_accepts++;
        link_peer_lost(&nic->link_client, peer);
    }
    return sent;
}

static void *request(void *argument)
{
    host *hosts = argument;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN code;
    name(&local, &hosts[0], "client");
    name(&remote, &hosts[1], "server");
    WAIT_UNTIL((code = VipConnectRequest(hosts[0].vi[0], &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr)) !=
               VIP_NO_MATCH);
    /* It has received ACCEPT. Whether the connection broke since, it finds by its first frame. */
    CHECK_OK(code);
    return NULL;
}

/* With a secret VipConnectAccept still has to wait for the client's proof, and would wait for nothing. */
static void accept_overtaken(void)
{
    static const uint8_t secret[32] = "a secret of both sides";
    static host hosts[2];
    host *client = &hosts[0], *server = &hosts[1];
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    pthread_t thread;
    host_open(client, 0);
    host_open(server, 0);
    CHECK_OK(viakit_set_vi_secret(client->vi[0], secret, sizeof(secret)));
    CHECK_OK(viakit_set_vi_secret(server->vi[0], secret, sizeof(secret)));
    CHECK_EQ(pthread_create(&thread, NULL, request, hosts), 0);
    name(&local, server, "server");
    memset(&remote, 0, sizeof(remote));
    CHECK_OK(VipConnectWait(server->nic, &local.net, 1000 * CHECK_WAIT_S, &remote.net, &attr, &conn));
    stub_open(server->nic, lose_client);
    CHECK_RET(VipConnectAccept(conn, server->vi[0]), VIP_TIMEOUT);
    CHECK_EQ(n_accepts, 1);
    stub_close();
    CHECK_EQ(state_of(server->vi[0]), VIP_STATE_IDLE);
    CHECK_RET(VipConnectReject(conn), VIP_INVALID_PARAMETER); /* the handle was used up */
    CHECK_EQ(pthread_join(thread, NULL), 0);
    host_close(client);
    host_close(server);
}

/* ---------------------------------------------------------------- a full link accepts a deferred frame late */

static int n_disconnects;

/* DISCONNECT finds the link full twice. The second result means the same as the first one (link.h). */
static int refuse_disconnect(struct via_nic *nic, struct link *link, struct link_peer *peer, struct link_frame *frames,
                             int n)
{
    static const int results[] = {-EAGAIN, 0};
    (void)nic;
    if ((frames[0].header.version_kind & 15) == WIRE_DISCONNECT && n_disconnects++ < 2)
        return results[n_disconnects - 1];
    return stub.real->send(link, peer, frames, n);
}

static void disconnect_deferred(void)
{
    static host here, there;
    host_open(&here, 1);
    host_open(&there, 0);
    join_hosts(&here, 0, &there);
    stub_open(here.nic, refuse_disconnect);
    CHECK_OK(VipDisconnect(here.vi[0]));
    WAIT_UNTIL(viakit_poll(here.nic, NULL) == VIP_SUCCESS && atomic_load(&there.n_lost) == 1);
    CHECK_EQ(n_disconnects, 3);
    stub_close();
    host_close(&here);
    host_close(&there);
}

/* ---------------------------------------------------------------- exit() in a thread that is inside the link */

static void leave(int sig)
{
    (void)sig;
    exit(42);
}

/* LeakSanitizer calls this at the end of each process. The one that exits here closes nothing, on purpose. */
static int careless;

int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return careless;
}

/* The link copies the message while it holds its mutex. The page is gone, and the handler of the signal calls exit(),
 * whose destructors send DISCONNECT on the other NIC's connection. */
static void exit_inside(void)
{
    int status;
    if (VK_TSAN)
        return; /* it reports every allocation in a signal handler, and exit() is one */
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        static host hosts[2];
        check_deadline(60);
        host_open(&hosts[0], 0);
        host_open(&hosts[1], 0);
        join_hosts(&hosts[0], 0, &hosts[1]);
        VIP_DESCRIPTOR *d = message(&hosts[0], 0);
        CHECK(signal(SIGSEGV, leave) != SIG_ERR);
        careless = 1;
        CHECK_EQ(mprotect(hosts[0].mem, LEN, PROT_NONE), 0);
        VipPostSend(hosts[0].vi[0], d, hosts[0].mh);
        FAIL("the message was sent from memory that cannot be read");
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 42);
}

int main(void)
{
    check_deadline(120);
    exit_inside();
    two_peers_fail();
    accept_overtaken();
    disconnect_deferred();
    CHECK_NOTHING_LEFT();
    return 0;
}
