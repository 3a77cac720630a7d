/*
 * bench/ep_via_open.c - opening an endpoint of VIA, connecting it, and describing its NIC.
 *
 *      bench_via_open       NIC, faults, error handler, protection tag, VI with its secret, descriptors
 *      bench_via_address    this side's address, for the other side
 *      bench_via_accept     or bench_via_connect, repeated until DONE or the caller's deadline
 *      bench_prepare        buffers, which depend on the plan (ep_via.c)
 *
 *      connecting:   accept side   VipConnectWait for a slice, VipConnectAccept, repeatedly
 *                    connect side  VipConnectRequest until the peer waits; `token` is the discriminator that both name
 *
 * Both sides name the token, so two measurements on one host do not meet. The secret, if given, is proven in both
 * directions before the VI is connected.
 *
 * Invariant: after any failure the fields that ep_via.c closes by are NULL or valid, so bench_close always works. One
 * thread has the endpoint; only the error handler (ep_via.c: ep_via_on_error) runs in a thread of the NIC.
 */
#include "base/plural.h"
#include "base/text.h"
#include "bench/ep_via.h"

#include <string.h>

/* Limit of one request. The other side waits in slices of BENCH_SLICE_MS, so a request meets several of them. */
#define CONNECT_TIMEOUT_MS 500
#define MAX_TOKEN 64  /* bytes; the NIC's own limit may be lower (MaxDiscriminatorLen) */
#define SECRET_LEN 32 /* bytes, as viakit_set_vi_secret requires */

/* An address with space for the longest: the bytes follow a header of 4. */
typedef union {
    VIP_NET_ADDRESS net;
    unsigned char room[4 + 64 + MAX_TOKEN];
} address;

/* Create everything that a VI needs before it connects. BENCH_DONE or an error. The error handler is set before the VI
 * exists, so it misses no error. Faults are set before anything connects. After an error bench_close releases what was
 * made. */
static int open_all(via_ep *ep, const bench_via_options *options)
{
    viakit_nic_options nic;
    memset(&nic, 0, sizeof nic);
    nic.size = sizeof nic;
    nic.form = (viakit_form)options->form;
    nic.mtu = options->mtu;
    nic.retransmission = (viakit_retransmission)options->retransmission;
    nic.checksum = (viakit_checksum)options->checksum;
    nic.spin_us = options->spin_us > 0 ? options->spin_us
                  : options->polled    ? 0
                                       : -1; /* 0 means the default, not "never" */
    VIP_RETURN code = viakit_open_nic(options->device, &nic, &ep->nic);
    if (code != VIP_SUCCESS) {
        ep->nic = NULL;
        return ep_via_failed(ep, options->device, code);
    }
    if (options->faults && *options->faults) {
        viakit_faults faults = {.size = sizeof faults};
        if ((code = viakit_parse_faults(options->faults, &faults)) != VIP_SUCCESS ||
            (code = viakit_set_faults(ep->nic, &faults)) != VIP_SUCCESS)
            return ep_via_failed(ep, "viakit_set_faults", code);
    }
    VipErrorCallback(ep->nic, ep, ep_via_on_error);
    if ((code = VipQueryNic(ep->nic, &ep->attributes)) != VIP_SUCCESS)
        return ep_via_failed(ep, "VipQueryNic", code);
    if ((code = VipNSInit(ep->nic, NULL)) != VIP_SUCCESS)
        return ep_via_failed(ep, "VipNSInit", code);
    if ((code = VipCreatePtag(ep->nic, &ep->ptag)) != VIP_SUCCESS)
        return ep_via_failed(ep, "VipCreatePtag", code);
    ep->write = options->rdma_write;
    VIP_VI_ATTRIBUTES attributes = {
        .EnableRdmaWrite = options->rdma_write,
        .ReliabilityLevel =
            (VIP_RELIABILITY_LEVEL)(options->reliability ? options->reliability : VIP_SERVICE_RELIABLE_DELIVERY),
        .MaxTransferSize = ep->attributes.MaxTransferSize,
        .Ptag = ep->ptag,
    };
    if ((code = VipCreateVi(ep->nic, &attributes, NULL, NULL, &ep->vi)) != VIP_SUCCESS) {
        ep->vi = NULL;
        return ep_via_failed(ep, "VipCreateVi", code);
    }
    if (options->secret && (code = viakit_set_vi_secret(ep->vi, options->secret, SECRET_LEN)) != VIP_SUCCESS)
        return ep_via_failed(ep, "viakit_set_vi_secret", code);
    void *block = NULL;
    int rc = ep_via_allocate(ep, DESCRIPTORS_LEN, BENCH_MEMORY_USER, &block, &ep->descriptors_handle);
    if (rc < 0)
        return rc;
    ep->sends = block;
    ep->receives = ep->sends + DEPTH;
    ep->keys = (struct keys *)(void *)(ep->receives + DEPTH);
    return BENCH_DONE;
}

bench_ep *bench_via_open(const bench_via_options *options, char *error)
{
    via_ep *ep = bench_ep_new(sizeof *ep, &ep_via_ops, options->polled, error);
    if (ep && open_all(ep, options) < 0)
        return bench_ep_fail(&ep->ep, error, "%s", ep->ep.error);
    return ep ? &ep->ep : NULL;
}

/* Return the length of the address in bytes. */
int bench_via_address(bench_ep *base, unsigned char *host, size_t room)
{
    via_ep *ep = (via_ep *)base;
    if (room < ep->attributes.NicAddressLen)
        return bench_fail(base, BENCH_ERROR, "no room for an address of %u byte%s", ep->attributes.NicAddressLen,
                          vk_s(ep->attributes.NicAddressLen));
    memcpy(host, ep->attributes.LocalNicAddress, ep->attributes.NicAddressLen);
    return ep->attributes.NicAddressLen;
}

/* Build a VIP_NET_ADDRESS of host and token, which is the discriminator. VIPL's address is the host's bytes, then the
 * discriminator's, with both lengths in front. */
static int make_address(via_ep *ep, address *a, const unsigned char *host, size_t host_len, const unsigned char *token,
                        size_t token_len)
{
    if (host_len > 64 || token_len > MAX_TOKEN || token_len > ep->attributes.MaxDiscriminatorLen)
        return bench_fail(&ep->ep, BENCH_ERROR, "address of %zu or discriminator of %zu byte%s is too long", host_len,
                          token_len, vk_s(token_len));
    memset(a, 0, sizeof *a);
    a->net.HostAddressLen = (VIP_UINT16)host_len;
    a->net.DiscriminatorLen = (VIP_UINT16)token_len;
    memcpy(a->room + offsetof(VIP_NET_ADDRESS, HostAddress), host, host_len);
    memcpy(a->room + offsetof(VIP_NET_ADDRESS, HostAddress) + host_len, token, token_len);
    return BENCH_DONE;
}

/* One try, of a slice. The caller repeats it and checks its own deadline in between. The room for the remote address is
 * given in its two lengths, as VipConnectWait requires. */
int bench_via_accept(bench_ep *base, const unsigned char *token, size_t token_len)
{
    via_ep *ep = (via_ep *)base;
    address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    VIP_CONN_HANDLE connection = NULL;
    int rc = make_address(ep, &local, ep->attributes.LocalNicAddress, ep->attributes.NicAddressLen, token, token_len);
    if (rc < 0)
        return rc;
    memset(&remote, 0, sizeof remote);
    remote.net.HostAddressLen = 64;
    remote.net.DiscriminatorLen = MAX_TOKEN;
    VIP_RETURN code = VipConnectWait(ep->nic, &local.net, BENCH_SLICE_MS, &remote.net, &attributes, &connection);
    if (code == VIP_TIMEOUT)
        return BENCH_NOT_YET;
    if (code != VIP_SUCCESS)
        return ep_via_failed(ep, "VipConnectWait", code);
    code = VipConnectAccept(connection, ep->vi);
    if (code == VIP_TIMEOUT)
        return BENCH_NOT_YET; /* the peer gave this request up, and will send another */
    if (code == VIP_REJECT) { /* another process, which lacks the secret, has requested the discriminator */
        VipConnectReject(connection);
        return BENCH_NOT_YET;
    }
    if (code != VIP_SUCCESS) {
        int failed = ep_via_failed(ep, "VipConnectAccept", code);
        VipConnectReject(connection);
        return failed;
    }
    ep->connected = true;
    return BENCH_DONE;
}

/* Also one try: NOT_YET until the other side waits. */
int bench_via_connect(bench_ep *base, const unsigned char *host, size_t host_len, const unsigned char *token,
                      size_t token_len)
{
    via_ep *ep = (via_ep *)base;
    address local, remote;
    VIP_VI_ATTRIBUTES attributes;
    int rc = make_address(ep, &remote, host, host_len, token, token_len);
    if (rc > 0)
        rc = make_address(ep, &local, ep->attributes.LocalNicAddress, ep->attributes.NicAddressLen, token, token_len);
    if (rc < 0)
        return rc;
    VIP_RETURN code = VipConnectRequest(ep->vi, &local.net, &remote.net, CONNECT_TIMEOUT_MS, &attributes);
    if (code == VIP_NO_MATCH || code == VIP_TIMEOUT)
        return BENCH_NOT_YET; /* the peer is not waiting yet, or is between two slices of waiting */
    if (code != VIP_SUCCESS)
        return ep_via_failed(ep, "VipConnectRequest", code);
    ep->connected = true;
    return BENCH_DONE;
}

/* ---------------------------------------------------------------- counters and description */

int bench_via_counters(bench_ep *base, uint64_t *values, int n)
{
    return bench_nic_counters(((via_ep *)base)->nic, values, n);
}

int bench_via_describe(bench_ep *base, char *text, size_t room)
{
    via_ep *ep = (via_ep *)base;
    struct vk_text t = {text, room, 0};
    int rc = bench_nic_describe(base, ep->nic, &t);
    vk_put(&t, "nic_name=%s\n", ep->attributes.Name);
    return rc < 0 ? rc : (int)t.len;
}
