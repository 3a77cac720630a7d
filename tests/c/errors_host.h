/*
 * errors_host.h - for test_errors.c: a NIC on loop with a VI, memory and a filter that loses or corrupts frames.
 */
#ifndef ERRORS_HOST_H
#define ERRORS_HOST_H

#include <stdatomic.h>
#include <sys/mman.h>

#include "address.h"
#include "check.h"

#define MEMORY (1 << 18)
#define BIG 40000 /* several frames */

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attr;
    VIP_PROTECTION_HANDLE tag, other_tag;
    uint8_t *mem; /* descriptors first, data from DATA on */
    /* Three registrations of mem: with the right to write, with another tag, without the right. */
    VIP_MEM_HANDLE mh, other_mh, extra_mh;
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_DESCRIPTOR *looked_at; /* the descriptor whose status the table gives */
    atomic_int errors[VIP_ERROR_CATASTROPHIC + 1];
} host;

#define DATA 8192

/* The frames that the filter of the side `here` loses. The test's thread sets it while the NIC's thread may be sending;
 * `kind` is set last, and starts the loss. */
static struct {
    atomic_int kind;    /* kind of the frames; 0 all, -1 none */
    atomic_int skip, n; /* let `skip` of them pass, then lose n */
    atomic_int spoil;   /* corrupt a bit instead of losing them */
} lose;

static inline void lose_frames(int skip, int n, int kind)
{
    lose.skip = skip;
    lose.n = n;
    lose.kind = kind;
}

static inline viakit_verdict filter(void *context, VIP_UINT64 index, int kind, size_t len)
{
    (void)context;
    if (lose.kind < 0 || (lose.kind && kind != lose.kind) || lose.n == 0)
        return VIAKIT_PASS;
    if (lose.skip > 0) {
        lose.skip--;
        return VIAKIT_PASS;
    }
    /* The corrupt byte must be in the payload, so that the header still identifies the VI; see
     * csrc/link/fault/fault.c. */
    if (lose.spoil && index * 7919 % len < 64)
        return VIAKIT_PASS;
    lose.n--;
    return lose.spoil ? VIAKIT_CORRUPT : VIAKIT_DROP;
}

static inline void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    atomic_fetch_add(&((host *)context)->errors[error->ErrorCode], 1);
}

static inline void host_open(host *h, VIP_RELIABILITY_LEVEL level, int small_cq)
{
    viakit_nic_options o;
    VIP_MEM_ATTRIBUTES attr = {0};
    VIP_VI_ATTRIBUTES vi = {0};
    memset(h, 0, sizeof(*h));
    memset(&o, 0, sizeof(o));
    o.size = sizeof(o);
    o.rto_us = 2000;
    o.max_retries = 4;        /* the connection to a silent peer is lost soon, */
    o.keepalive_ms = 3600000; /* and idle peers are not probed */
    CHECK_OK(viakit_open_nic("loop:errors", &o, &h->nic));
    CHECK_OK(VipErrorCallback(h->nic, h, on_error));
    CHECK_OK(VipQueryNic(h->nic, &h->attr));
    CHECK_OK(VipCreatePtag(h->nic, &h->tag));
    CHECK_OK(VipCreatePtag(h->nic, &h->other_tag));
    h->mem = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(h->mem != MAP_FAILED);
    attr.Ptag = h->other_tag;
    CHECK_OK(VipRegisterMem(h->nic, h->mem, MEMORY, &attr, &h->other_mh));
    attr.Ptag = h->tag;
    CHECK_OK(VipRegisterMem(h->nic, h->mem, MEMORY, &attr, &h->extra_mh));
    attr.EnableRdmaWrite = VIP_TRUE;
    CHECK_OK(VipRegisterMem(h->nic, h->mem, MEMORY, &attr, &h->mh));
    /* One entry. The table's last cause adds two. */
    if (small_cq)
        CHECK_OK(VipCreateCQ(h->nic, 1, &h->cq));
    vi.ReliabilityLevel = level;
    vi.MaxTransferSize = 65536;
    vi.Ptag = h->tag;
    vi.EnableRdmaWrite = VIP_TRUE;
    CHECK_OK(VipCreateVi(h->nic, &vi, NULL, h->cq, &h->vi));
}

static inline void host_close(host *h)
{
    CHECK_OK(VipCloseNic(h->nic));
    munmap(h->mem, MEMORY);
}

static inline address *host_address(host *h, const char *discriminator, address *a)
{
    memset(a, 0, sizeof(*a));
    a->net.HostAddressLen = 6;
    a->net.DiscriminatorLen = (VIP_UINT16)strlen(discriminator);
    memcpy(a->room + 4, h->attr.LocalNicAddress, 6);
    memcpy(a->room + 10, discriminator, strlen(discriminator));
    return a;
}

/* A peer-to-peer connection, which needs no second thread. */
static inline void join_hosts(host *here, host *there)
{
    address local, peer;
    host_address(here, "here", &local);
    host_address(there, "there", &peer);
    CHECK_OK(VipConnectPeerRequest(here->vi, &local.net, &peer.net, 1000 * CHECK_WAIT_S));
    CHECK_OK(VipConnectPeerRequest(there->vi, &peer.net, &local.net, 1000 * CHECK_WAIT_S));
    CHECK_OK(VipConnectPeerWait(here->vi, NULL));
    CHECK_OK(VipConnectPeerWait(there->vi, NULL));
}

/* Descriptor `which` with one segment of `len` bytes. */
static inline VIP_DESCRIPTOR *prepare(host *h, int which, size_t len)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)(h->mem + 64 * which);
    memset(d, 0, sizeof(*d));
    d->CS.SegCount = 1;
    d->CS.Length = (VIP_UINT32)len;
    d->DS[0].Local.Data.Address = h->mem + DATA;
    d->DS[0].Local.Handle = h->mh;
    d->DS[0].Local.Length = (VIP_UINT32)len;
    return d;
}

static inline VIP_DESCRIPTOR *prepare_write(host *h, host *to, VIP_MEM_HANDLE remote, size_t len)
{
    VIP_DESCRIPTOR *d = prepare(h, 0, len);
    d->DS[1] = d->DS[0];
    d->CS.SegCount = 2;
    d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    memset(&d->DS[0], 0, sizeof(d->DS[0]));
    d->DS[0].Remote.Data.Address = to->mem + DATA;
    d->DS[0].Remote.Handle = remote;
    return d;
}

static inline void send_now(host *h, VIP_DESCRIPTOR *d)
{
    h->looked_at = d;
    CHECK_OK(VipPostSend(h->vi, d, h->mh));
}

static inline void post_recv(host *h, VIP_DESCRIPTOR *d)
{
    h->looked_at = d;
    CHECK_OK(VipPostRecv(h->vi, d, h->mh));
}

#endif
