/*
 * states_scene.c - two NICs on `loop`, requests in threads, and words for what is seen. Used by test_states.c.
 */
#include "states.h"

/* Counted by code; a test waits for a count to rise. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    host *h = context;
    atomic_fetch_add(&h->errors[error->ErrorCode], 1);
}

/* A NIC with a page of registered memory and a tag; both hosts are NICs of this process, on one link. */
void host_open(host *h)
{
    VIP_MEM_ATTRIBUTES attr = {0};
    memset(h, 0, sizeof(*h));
    CHECK_OK(VipOpenNic("loop:states", &h->nic));
    CHECK_OK(VipErrorCallback(h->nic, h, on_error));
    CHECK_OK(VipQueryNic(h->nic, &h->attr));
    CHECK_OK(VipCreatePtag(h->nic, &h->ptag));
    h->mem = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(h->mem != MAP_FAILED);
    attr.Ptag = h->ptag;
    CHECK_OK(VipRegisterMem(h->nic, h->mem, 4096, &attr, &h->mh));
}

void host_close(host *h)
{
    if (!h->closed)
        CHECK_OK(VipCloseNic(h->nic));
    h->closed = 1;
    if (h->mem)
        munmap(h->mem, 4096);
    h->mem = NULL;
}

/* max_transfer 0: the NIC's own. */
VIP_VI_HANDLE host_vi(host *h, VIP_RELIABILITY_LEVEL level, VIP_ULONG max_transfer)
{
    VIP_VI_ATTRIBUTES attr = {0};
    VIP_VI_HANDLE vi;
    attr.ReliabilityLevel = level;
    attr.MaxTransferSize = max_transfer;
    attr.Ptag = h->ptag;
    CHECK_OK(VipCreateVi(h->nic, &attr, NULL, NULL, &vi));
    return vi;
}

/* Descriptors in the first half of the page, 64 bytes each; data in the second, 128 bytes each. */
VIP_DESCRIPTOR *host_descriptor(host *h, int which, size_t len)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)(h->mem + 64 * which);
    memset(d, 0, sizeof(*d));
    d->CS.SegCount = len > 0;
    d->CS.Length = (VIP_UINT32)len;
    d->DS[0].Local.Data.Address = h->mem + 2048 + 128 * which;
    d->DS[0].Local.Handle = h->mh;
    d->DS[0].Local.Length = (VIP_UINT32)len;
    return d;
}

address *host_address(host *h, const char *discriminator, address *room)
{
    memset(room, 0, sizeof(*room));
    room->net.HostAddressLen = 6;
    room->net.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(room->room + 4, h->attr.LocalNicAddress, 6);
    memcpy(room->room + 10, discriminator, strlen(discriminator));
    return room;
}

void host_wait_error(host *h, VIP_ERROR_CODE code)
{
    double end = check_now() + CHECK_WAIT_S;
    while (!atomic_load(&h->errors[code])) {
        if (check_now() > end)
            FAIL("%s was never reported", viakit_error_code_name(code));
        sched_yield();
    }
}

static void *request_run(void *p)
{
    requester *r = p;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    host_address(r->from, r->discriminator, &local);
    host_address(r->to, r->discriminator, &remote);
    /* A request in the background may arrive before the server's wait: it is repeated, as clients do. */
    do {
        r->result = VipConnectRequest(r->vi, &local.net, &remote.net, r->timeout_ms, &attr);
    } while (r->result == VIP_NO_MATCH);
    atomic_store(&r->over, 1);
    return NULL;
}

/* In a thread, as the call blocks; request_join() gives what it returned. */
void request_start(requester *r, host *from, host *to, VIP_VI_HANDLE vi, const char *discriminator,
                   VIP_ULONG timeout_ms)
{
    memset(r, 0, sizeof(*r));
    r->from = from;
    r->to = to;
    r->vi = vi;
    r->discriminator = discriminator;
    r->timeout_ms = timeout_ms;
    r->started = 1;
    CHECK_EQ(pthread_create(&r->thread, NULL, request_run, r), 0);
}

/* May be called again: the result stays. */
VIP_RETURN request_join(requester *r)
{
    if (r->started)
        CHECK_EQ(pthread_join(r->thread, NULL), 0);
    r->started = 0;
    return r->result;
}

/* Waits as a server for the request of that name. */
VIP_CONN_HANDLE take_request(host *h, const char *discriminator)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    host_address(h, discriminator, &local);
    CHECK_OK(VipConnectWait(h->nic, &local.net, 1000 * CHECK_WAIT_S, &remote.net, &attr, &conn));
    return conn;
}

const char *short_name(int code)
{
    const char *name = viakit_return_name(code);
    return name ? name + strlen("VIP_") : "?";
}

/* In the page's words; a VI whose handle is dead is "gone". */
const char *state_of(VIP_VI_HANDLE vi)
{
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attr;
    VIP_BOOLEAN x, y;
    VIP_RETURN r = VipQueryVi(vi, &state, &attr, &x, &y);
    if (r == VIP_INVALID_PARAMETER)
        return "gone";
    CHECK_OK(r);
    return viakit_state_name(state) + strlen("VIP_STATE_");
}

void wait_for_state(VIP_VI_HANDLE vi, VIP_VI_STATE state)
{
    double end = check_now() + CHECK_WAIT_S;
    const char *name = viakit_state_name(state) + strlen("VIP_STATE_");
    while (strcmp(state_of(vi), name)) {
        if (check_now() > end)
            FAIL("the VI is in %s, expected %s", state_of(vi), name);
        sched_yield();
    }
}
