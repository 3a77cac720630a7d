/*
 * test_api.c - every function with wrong arguments: the call returns an error, changes nothing and never crashes.
 * test_handles.c has wrong handles.
 *
 * A call sets its results only on success. viakit_last_error describes the error in words. The device is loop, because
 * no case uses a link.
 */
#include <sys/wait.h>

#include "api_objects.h"

/* ---------------------------------------------------------------- values */

static void test_open(void)
{
    VIP_NIC_HANDLE nic = (VIP_NIC_HANDLE)&nic;
    char name[300];
    /* Names of no link, of no interface, and such as a path or a list could be made of. */
    static const char *const none[] = {"", "nosuch", "loopy", "eth:", "eth:nosuchif0", "shm/", ":", "eth:lo lo"};
    CHECK_RET(VipOpenNic(NULL, &nic), bad);
    CHECK_RET(VipOpenNic(DEVICE, NULL), bad);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        VIP_RETURN r = VipOpenNic(none[i], &nic);
        if (r != VIP_INVALID_PARAMETER && r != VIP_ERROR_RESOURCE)
            FAIL("VipOpenNic(\"%s\") returned %s", none[i], check_return_name(r));
        CHECK(strlen(viakit_last_error()) > 20); /* a sentence, not a code */
    }
    /* Longer than any name may be, on both links that take a name of one's own. */
    memset(name, 'x', sizeof(name));
    memcpy(name, "loop:", 5);
    name[sizeof(name) - 1] = 0;
    CHECK(VipOpenNic(name, &nic) != VIP_SUCCESS);
    memcpy(name, "shm::", 5);
    CHECK(VipOpenNic(name, &nic) != VIP_SUCCESS);
    CHECK(nic == (VIP_NIC_HANDLE)&nic); /* results are set on success only */
    /* The name becomes part of a socket's name; it must not lead anywhere. */
    CHECK(VipOpenNic("shm:../../etc/passwd", &nic) != VIP_SUCCESS);
}

/* Every pointer for a result, and every one that is needed for an argument, once as NULL. */
static void test_nulls(void)
{
    objects o;
    VIP_CONN_HANDLE conn;
    VIP_VI_ATTRIBUTES attr;
    address local, remote;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    open_objects(&o);
    own_address(&o, &local, "x");
    CHECK_RET(VipQueryNic(o.nic, NULL), bad);
    CHECK_RET(VipCreatePtag(o.nic, NULL), bad);
    CHECK_RET(VipRegisterMem(o.nic, o.mem, 64, NULL, NULL), bad);
    CHECK_RET(VipQueryMem(o.nic, o.mem, o.mh, NULL), bad);
    CHECK_RET(VipSetMemAttributes(o.nic, o.mem, o.mh, NULL), bad);
    CHECK_RET(VipCreateVi(o.nic, NULL, NULL, NULL, &vi), bad);
    CHECK_RET(VipCreateVi(o.nic, &o.vi_attr, NULL, NULL, NULL), bad);
    CHECK_RET(VipSendDone(o.vi, NULL), bad);
    CHECK_RET(VipRecvDone(o.vi, NULL), bad);
    CHECK_RET(VipSendWait(o.vi, 1, NULL), bad);
    CHECK_RET(VipRecvWait(o.vi, 1, NULL), bad);
    CHECK_RET(VipCreateCQ(o.nic, 16, NULL), bad);
    CHECK_RET(VipCQDone(o.cq, NULL, &recv), bad);
    CHECK_RET(VipCQDone(o.cq, &vi, NULL), bad);
    CHECK_RET(VipCQWait(o.cq, 1, NULL, &recv), bad);
    CHECK_RET(VipConnectWait(o.nic, NULL, 0, &remote.net, &attr, &conn), bad);
    CHECK_RET(VipConnectWait(o.nic, &local.net, 0, &remote.net, &attr, NULL), bad);
    CHECK_RET(VipConnectRequest(o.vi, &local.net, NULL, 10, &attr), bad);
    CHECK_RET(VipNSGetHostByName(o.nic, NULL, &remote.net, 0), bad);
    CHECK_RET(VipNSGetHostByName(o.nic, (VIP_CHAR *)"localhost", NULL, 0), bad);
    CHECK_RET(viakit_query_nic(o.nic, NULL), bad);
    CHECK_RET(viakit_nic_counters(o.nic, NULL), bad);
    CHECK_RET(viakit_vi_counters(o.vi, NULL), bad);
    CHECK_RET(viakit_alloc(o.nic, 64, NULL), bad);
    CHECK_OK(viakit_poll(o.nic, NULL));
    close_objects(&o);
}

/* After a call that failed for another reason, call must answer code and explain it in words that contain `part`. */
#define EXPLAINED(call, code, part)                                                        \
    do {                                                                                   \
        VIP_NIC_HANDLE never;                                                              \
        CHECK_RET(VipOpenNic("nosuch", &never), bad);                                      \
        CHECK_RET(call, code);                                                             \
        if (!strstr(viakit_last_error(), part))                                            \
            FAIL("%s: \"%s\", expected to read \"%s\"", #call, viakit_last_error(), part); \
    } while (0)

/* Every answer that a program meets often: its words must say what was waited for, and for how long. */
static void test_explanations(void)
{
    objects o;
    VIP_VI_ATTRIBUTES remote_attr;
    VIP_CONN_HANDLE conn;
    VIP_DESCRIPTOR *got;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    address local, remote = {.net.HostAddressLen = 6, .net.DiscriminatorLen = 64};
    open_objects(&o);
    own_address(&o, &local, "x");
    EXPLAINED(VipRecvDone(o.vi, &got), VIP_DESCRIPTOR_ERROR, "the receive queue is empty");
    EXPLAINED(VipSendWait(o.vi, 1, &got), VIP_DESCRIPTOR_ERROR, "the send queue is empty");
    VIP_DESCRIPTOR *d = memset(o.mem, 0, sizeof *d);
    CHECK_OK(VipPostRecv(o.vi, d, o.mh));
    EXPLAINED(VipRecvWait(o.vi, 1, &got), VIP_TIMEOUT, "no receive was complete within 1 ms");
    EXPLAINED(VipCQWait(o.cq, 2, &vi, &recv), VIP_TIMEOUT, "nothing completed within 2 ms");
    EXPLAINED(VipConnectWait(o.nic, &local.net, 3, &remote.net, &remote_attr, &conn), VIP_TIMEOUT,
              "no client requested the discriminator within 3 ms");
    CHECK_OK(VipDisconnect(o.vi));
    EXPLAINED(VipRecvDone(o.vi, &got), VIP_DESCRIPTOR_ERROR, "completed with an error");
    close_objects(&o);
}

/* The properties by which programs distinguish links, without a NIC. A NIC reports the same. */
static void test_links(void)
{
    int n = 0;
    for (; viakit_link(n); n++) {
        const viakit_link_info *about = viakit_link(n);
        CHECK(*about->name && strlen(about->name) < sizeof((viakit_nic_info *)0)->link);
        CHECK(strncmp(about->devices, about->name, strlen(about->name)) == 0 && *about->transport);
        CHECK(viakit_link_of(about->name) == about);
        CHECK(about->leaves_process || !about->leaves_host);
    }
    CHECK(n >= 4 && viakit_link(-1) == NULL && viakit_link(n + 1) == NULL);
    CHECK(viakit_link_of("nic0") == viakit_link_of("shm:a")); /* an alias */
    CHECK(viakit_link_of("shm")->maps_memory && viakit_link_of("shm")->lossless && !viakit_link_of("shm")->leaves_host);
    CHECK(viakit_link_of("eth:no-such-interface")->named_by == VIAKIT_BY_INTERFACE);
    CHECK(viakit_link_of("udp:")->leaves_host && !viakit_link_of("loop")->leaves_process);
    CHECK(viakit_link_of("pigeon:3") == NULL && strstr(viakit_last_error(), viakit_link(0)->devices) &&
          strstr(viakit_last_error(), viakit_link(n - 1)->devices));
    CHECK(viakit_link_of(NULL) == NULL);
}

static void test_attributes(void)
{
    objects o, other;
    VIP_VI_ATTRIBUTES a;
    VIP_VI_HANDLE vi = NULL;
    VIP_CQ_HANDLE cq;
    /* VIPL's levels are 1, 2 and 4; sums of them are none. */
    static const VIP_RELIABILITY_LEVEL levels[] = {0, 3, 5, 6, 7, 8, 1 << 14};
    open_objects(&o);
    open_objects(&other);
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        a = o.vi_attr;
        a.ReliabilityLevel = levels[i];
        CHECK_RET(VipCreateVi(o.nic, &a, NULL, NULL, &vi), VIP_INVALID_RELIABILITY_LEVEL);
    }
    a = o.vi_attr;
    a.MaxTransferSize = o.attr.MaxTransferSize + 1;
    CHECK_RET(VipCreateVi(o.nic, &a, NULL, NULL, &vi), VIP_INVALID_MTU);
    a = o.vi_attr;
    /* Another NIC's tag, and what is no tag at all. */
    a.Ptag = other.ptag;
    CHECK_RET(VipCreateVi(o.nic, &a, NULL, NULL, &vi), VIP_INVALID_PTAG);
    a.Ptag = o.cq;
    CHECK_RET(VipCreateVi(o.nic, &a, NULL, NULL, &vi), VIP_INVALID_PTAG);
    a = o.vi_attr;
    a.ReliabilityLevel = VIP_SERVICE_UNRELIABLE; /* a level without reads */
    a.EnableRdmaRead = VIP_TRUE;
    CHECK_RET(VipCreateVi(o.nic, &a, NULL, NULL, &vi), VIP_INVALID_RDMAREAD);
    /* Another NIC's completion queue, for either of the VI's queues. */
    CHECK_RET(VipCreateVi(o.nic, &o.vi_attr, other.cq, NULL, &vi), bad);
    CHECK_RET(VipCreateVi(o.nic, &o.vi_attr, NULL, other.cq, &vi), bad);
    CHECK(vi == NULL);
    CHECK_RET(VipCreateCQ(o.nic, 0, &cq), bad);
    CHECK_RET(VipCreateCQ(o.nic, o.attr.MaxCQEntries + 1, &cq), bad);
    CHECK_OK(VipCreateCQ(o.nic, o.attr.MaxCQEntries, &cq));
    CHECK_OK(VipDestroyCQ(cq));
    CHECK_OK(VipCreateVi(o.nic, &o.vi_attr, o.cq, o.cq, &vi)); /* one queue for both */
    CHECK_RET(VipDestroyCQ(o.cq), VIP_ERROR_RESOURCE);
    CHECK_OK(VipDestroyVi(vi));
    /* Another NIC's tag is unknown here; our own is in use. */
    CHECK_RET(VipDestroyPtag(o.nic, other.ptag), bad);
    CHECK_RET(VipDestroyPtag(o.nic, o.ptag), VIP_ERROR_RESOURCE);
    close_objects(&other);
    close_objects(&o);
}

static void test_addresses(void)
{
    objects o;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    open_objects(&o);
    /* Lengths that would lead behind the address, in the request and in the wait. */
    for (int i = 0; i < 4; i++) {
        own_address(&o, &local, "x");
        own_address(&o, &remote, "x");
        switch (i) {
        case 0:
            remote.net.HostAddressLen = 5;
            break;
        case 1:
            remote.net.HostAddressLen = 0xFFFF;
            break;
        case 2:
            remote.net.DiscriminatorLen = (VIP_UINT16)(o.attr.MaxDiscriminatorLen + 1);
            break;
        default:
            remote.net.DiscriminatorLen = 0xFFFF;
        }
        CHECK_RET(VipConnectRequest(o.vi, &local.net, &remote.net, 10, &attr), bad);
        CHECK_RET(VipConnectWait(o.nic, &remote.net, 0, &local.net, &attr, &conn), bad);
    }
    own_address(&o, &remote, "x");
    CHECK_RET(VipConnectRequest(o.vi, &local.net, &remote.net, 0, &attr), bad);
    /* To itself: no VI waits, and the call must not wait for itself. */
    CHECK_RET(VipConnectRequest(o.vi, own_address(&o, &local, "x"), &remote.net, 1000, &attr), VIP_NO_MATCH);
    close_objects(&o);
}

/* ---------------------------------------------------------------- completion queues that are too small */

/* Completions without room: the queue loses their entries and calls the handler once, and the descriptors are still
 * completed. */
static void test_cq_overrun(void)
{
    objects o;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi, from;
    VIP_BOOLEAN recv;
    VIP_DESCRIPTOR *d[3], *got;
    int errors = 0;
    open_objects(&o);
    CHECK_OK(VipErrorCallback(o.nic, &errors, ignore_error));
    CHECK_OK(VipCreateCQ(o.nic, 2, &cq));
    CHECK_OK(VipCreateVi(o.nic, &o.vi_attr, cq, NULL, &vi));
    for (int i = 0; i < 3; i++) { /* not connected: each comes back at once */
        d[i] = (VIP_DESCRIPTOR *)(void *)(o.mem + 64 * i);
        memset(d[i], 0, sizeof(*d[i]));
        CHECK_OK(VipPostSend(vi, d[i], o.mh));
    }
    WAIT_UNTIL(__atomic_load_n(&errors, __ATOMIC_SEQ_CST) == 1); /* catastrophic, once */
    CHECK_OK(VipCQDone(cq, &from, &recv));
    /* The two that had room are there, the third is not. */
    CHECK(from == vi && recv == VIP_FALSE);
    CHECK_OK(VipCQDone(cq, &from, &recv));
    CHECK_RET(VipCQDone(cq, &from, &recv), VIP_NOT_DONE);
    for (int i = 0; i < 3; i++) { /* the descriptors themselves are not lost */
        CHECK_RET(VipSendDone(vi, &got), VIP_DESCRIPTOR_ERROR);
        CHECK(got == d[i]);
        CHECK_STATUS(got, VIP_STATUS_DONE | VIP_STATUS_DESC_FLUSHED_ERROR);
    }
    CHECK_OK(VipErrorCallback(o.nic, NULL, NULL));
    CHECK_OK(VipDestroyVi(vi));
    CHECK_OK(VipDestroyCQ(cq));
    close_objects(&o);
}

/* ---------------------------------------------------------------- a work queue that is full */

/* One more descriptor than fits, and that one is not even memory. */
static void test_overrun(void)
{
    objects o;
    VIP_DESCRIPTOR *d, *got;
    int errors = 0;
    /* If the provider looked at this descriptor before it knew that there is room, it would fault. */
    uint8_t *hole = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(hole != MAP_FAILED);
    open_objects(&o);
    CHECK_OK(VipErrorCallback(o.nic, &errors, ignore_error));
    memset(o.mem, 0, 65536);
    for (VIP_ULONG i = 0; i < o.attr.MaxDescriptorsPerQueue; i++) {
        d = (VIP_DESCRIPTOR *)(void *)(o.mem + 64 * i);
        CHECK_OK(VipPostRecv(o.vi, d, o.mh));
    }
    CHECK_RET(VipPostRecv(o.vi, (VIP_DESCRIPTOR *)(void *)hole, o.mh), VIP_ERROR_RESOURCE);
    WAIT_UNTIL(__atomic_load_n(&errors, __ATOMIC_SEQ_CST) == 1); /* VI_OVERRUN */
    /* All that were taken come back. */
    CHECK_OK(VipDisconnect(o.vi));
    while (VipRecvDone(o.vi, &got) == VIP_DESCRIPTOR_ERROR && got) {}
    CHECK_OK(VipErrorCallback(o.nic, NULL, NULL));
    close_objects(&o);
    munmap(hole, 4096);
}

/* ---------------------------------------------------------------- a handler within a handler */

/* NICs without threads run handlers in viakit_poll. The outer one's polls the inner NIC, whose handler runs; then it
 * is still a handler. */
typedef struct {
    VIP_NIC_HANDLE inner, outer;
    int n_inner, n_outer;
} nested;

static void inner_handler(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    nested *n = context;
    (void)error;
    n->n_inner++;
    if (n->n_outer) /* in the middle of the outer one's */
        CHECK_RET(VipCloseNic(n->outer), VIP_INVALID_STATE);
}

static void outer_handler(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    nested *n = context;
    (void)error;
    n->n_outer++;
    CHECK_OK(viakit_poll(n->inner, NULL));
    CHECK_EQ(n->n_inner, 1);
    CHECK_RET(VipCloseNic(n->outer), VIP_INVALID_STATE);
}

/* A VI to report an error of: a descriptor that is not aligned was posted. */
static VIP_VI_HANDLE with_error(VIP_NIC_HANDLE nic)
{
    VIP_VI_ATTRIBUTES attr = {0};
    VIP_VI_HANDLE vi;
    attr.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
    CHECK_OK(VipCreateVi(nic, &attr, NULL, NULL, &vi));
    CHECK_RET(VipPostRecv(vi, (VIP_DESCRIPTOR *)(uintptr_t)1, 0), VIP_INVALID_PARAMETER);
    return vi;
}

static void test_nested_handlers(void)
{
    viakit_nic_options options;
    VIP_VI_HANDLE outer, inner;
    nested n = {0};
    memset(&options, 0, sizeof(options));
    options.size = sizeof(options);
    options.no_thread = 1;
    CHECK_OK(viakit_open_nic(DEVICE, &options, &n.inner));
    CHECK_OK(viakit_open_nic(DEVICE, &options, &n.outer));
    CHECK_OK(VipErrorCallback(n.inner, &n, inner_handler));
    CHECK_OK(VipErrorCallback(n.outer, &n, outer_handler));
    inner = with_error(n.inner);
    outer = with_error(n.outer);
    CHECK_OK(viakit_poll(n.outer, NULL));
    CHECK_EQ(n.n_outer, 1);
    CHECK_OK(VipDestroyVi(inner));
    CHECK_OK(VipDestroyVi(outer));
    CHECK_OK(VipCloseNic(n.outer));
    CHECK_OK(VipCloseNic(n.inner));
}

/* ---------------------------------------------------------------- names */

static void test_names(void)
{
    objects o;
    address a;
    int n_counters = 0;
    open_objects(&o);
    CHECK_OK(VipNSInit(o.nic, NULL));
    memset(&a, 0, sizeof(a));
    /* Loop has one host, which every name without dots means. */
    CHECK_OK(VipNSGetHostByName(o.nic, (VIP_CHAR *)"localhost", &a.net, 0));
    CHECK_EQ(a.net.HostAddressLen, 6);
    CHECK(!memcmp(a.room + 4, o.attr.LocalNicAddress, 6));
    memset(&a, 0, sizeof(a));
    CHECK_OK(VipNSGetHostByName(o.nic, (VIP_CHAR *)"any-label", &a.net, 0)); /* loop has one host */
    CHECK(!memcmp(a.room + 4, o.attr.LocalNicAddress, 6));
    CHECK_RET(VipNSGetHostByName(o.nic, (VIP_CHAR *)"no.such.host.anywhere", &a.net, 0), VIP_ERROR_NAMESERVICE);
    /* An address may be written out. */
    CHECK_OK(VipNSGetHostByName(o.nic, (VIP_CHAR *)"02:00:00:00:be:ef", &a.net, 0));
    CHECK_EQ(a.room[9], 0xef);
    CHECK(VipNSGetHostByName(o.nic, (VIP_CHAR *)"localhost", &a.net, 1) != VIP_SUCCESS); /* it has one address */
    CHECK_OK(VipNSShutdown(o.nic));
    /* Every code has a name and a sentence; the neighbours of the range have none. */
    for (int code = 0; code <= VIP_ERROR_NOT_SUPPORTED; code++)
        CHECK(viakit_return_name(code) && viakit_return_text(code));
    CHECK(!viakit_return_name(-1) && !viakit_return_name(VIP_ERROR_NOT_SUPPORTED + 1));
    for (int code = 0; code <= VIP_ERROR_CATASTROPHIC; code++)
        CHECK(viakit_error_code_name(code) && viakit_error_code_text(code));
    for (int state = 0; state <= VIP_STATE_ERROR; state++)
        CHECK(viakit_state_name(state) != NULL);
    CHECK(!strcmp(viakit_return_name(VIP_NO_MATCH), "VIP_NO_MATCH"));
    CHECK(!strcmp(viakit_error_code_text(VIP_ERROR_CONN_LOST), "Connection lost"));
    while (viakit_counter_name(n_counters))
        CHECK(viakit_counter_text(n_counters++) != NULL);
    CHECK_EQ(n_counters, VIAKIT_N_COUNTERS);
    CHECK(!viakit_counter_name(-1));
    close_objects(&o);
}

/* ---------------------------------------------------------------- fork */

static void test_fork(void)
{
    objects o;
    VIP_NIC_ATTRIBUTES attr;
    VIP_DESCRIPTOR *d;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    pid_t pid;
    int status;
    open_objects(&o);
    pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) { /* the parent's handles are not the child's */
        /* All calls are made before any is judged: a failed check would end the child before it has closed the NIC,
         * which is the call that could do harm. */
        VIP_RETURN r[5];
        r[0] = VipQueryNic(o.nic, &attr);
        r[1] = VipRecvDone(o.vi, &d);
        r[2] = VipCQDone(o.cq, &vi, &recv);
        r[3] = VipDestroyVi(o.vi);
        r[4] = VipCloseNic(o.nic);
        for (int i = 0; i < 5; i++)
            CHECK(r[i] == VIP_INVALID_STATE || r[i] == VIP_INVALID_PARAMETER);
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close_objects(&o); /* and the child has taken nothing away */
}

/* A chance of 2^-128 that both draw the same by accident. */
#define N_DRAWN 8

/* Generations of memory handles: drawn as keys and the numbers of connection requests are. */
static void draw(uint16_t drawn[N_DRAWN])
{
    VIP_NIC_HANDLE nic;
    VIP_MEM_HANDLE handles[N_DRAWN];
    static uint8_t memory[64];
    CHECK_OK(VipOpenNic(DEVICE, &nic));
    for (int i = 0; i < N_DRAWN; i++) {
        CHECK_OK(VipRegisterMem(nic, memory, sizeof(memory), NULL, &handles[i]));
        drawn[i] = (uint16_t)(handles[i] >> 16);
    }
    CHECK_OK(VipCloseNic(nic));
}

/* Parent and child of a fork do not draw the same random numbers: a child that knows its parent's could name the
 * parent's memory and forge its frames. */
static void test_fork_draws(void)
{
    uint16_t first[N_DRAWN], parent[N_DRAWN], child[N_DRAWN];
    int pipe_fd[2], status;
    /* Before the fork, so that a generator exists that both could go on with. */
    draw(first);
    CHECK_EQ(pipe(pipe_fd), 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        draw(child);
        _exit(write(pipe_fd[1], child, sizeof(child)) == (ssize_t)sizeof(child) ? 0 : 1);
    }
    draw(parent);
    CHECK_EQ(read(pipe_fd[0], child, sizeof(child)), (ssize_t)sizeof(child));
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(memcmp(parent, child, sizeof(child)) != 0);
    close(pipe_fd[0]);
    close(pipe_fd[1]);
}

int main(void)
{
    snprintf(check_context, sizeof(check_context), "api");
    check_deadline(120);
    test_open();
    test_nulls();
    test_explanations();
    test_links();
    test_attributes();
    test_addresses();
    test_cq_overrun();
    test_overrun();
    test_nested_handlers();
    test_names();
    test_fork();
    test_fork_draws();
    CHECK_NOTHING_LEFT();
    return 0;
}
