/*
 * bench/ep_via.c - VIA on any link, through vipl.h only, as a program of 2001 would use it.
 *
 * Buffers are ordinary memory, as in a typical program, or come from viakit_alloc (BENCH_MEMORY_VIAKIT), which a peer
 * on the same host can map. Either is registered once for many runs. Descriptors are built in advance. Posting one
 * means setting address, two lengths and the status.
 *
 *      sends[]:     | reaped | posted ......... |        n_reaped <= n_sent
 *      receives[]:  | taken  | posted ......... |        n_taken <= n_posted <= n_expected
 *
 * Counts are of messages of this run, and number % DEPTH is the descriptor. Queues of a VI complete in the order of
 * posting, so the oldest is always the next. Bounds: n_sent - n_reaped <= depth, n_posted - n_taken <= depth < DEPTH.
 *
 * On a reliable connection a message without a receive descriptor breaks the connection. Hence the window of the loop,
 * with `window` + 2 receives posted in advance. In a whole run exactly as many receives are posted as messages will
 * come, so that none is left posted when the next run uses another size.
 *
 * Polled: VipRecvDone until a message arrives; it drives the NIC, so nothing else is needed. Blocking: VipRecvWait for
 * a slice. By default that call polls before it sleeps. The figure would then be comparable neither with polling nor
 * with a TCP that sleeps at once. Polling is therefore off, unless the options set its time.
 *
 * Messages may be RDMA writes with immediate data (options->rdma_write). Message i goes to the peer's receive buffer i,
 * whose place follows from the plan, and consumes an empty receive there. The immediate data is its length. Each side's
 * first message of a run is a send with the place of its receive buffers.
 *
 * A descriptor and its buffer belong to the NIC from the post until they are reaped or taken, and to this endpoint
 * otherwise. ep_via_open.c opens and connects the endpoint.
 */
#include "bench/ep_via.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---------------------------------------------------------------- errors */

/* The name of a code, for texts. Never NULL. */
static const char *code_name(VIP_RETURN code)
{
    const char *name = viakit_return_name((int)code);
    return name ? name : "an unknown code";
}

int ep_via_failed(via_ep *ep, const char *call, VIP_RETURN code)
{
    const char *why = viakit_last_error();
    return bench_fail(&ep->ep, BENCH_ERROR, "%s: %s%s%s", call, code_name(code), *why ? ": " : "", why);
}

/* A descriptor completed with an error, or the queue is empty although a completion is due. `d` may be NULL. A lost
 * connection is BENCH_GONE, because the loop's caller reports it differently. */
static int descriptor_failed(via_ep *ep, const char *what, const VIP_DESCRIPTOR *d)
{
    VIP_UINT32 status = d ? d->CS.Status & VIP_STATUS_ERROR_MASK : 0;
    int lost = atomic_load(&ep->lost);
    if (lost || (status & VIP_STATUS_DESC_FLUSHED_ERROR)) {
        const char *text = lost ? viakit_error_code_text(lost - 1) : NULL;
        return bench_fail(&ep->ep, BENCH_GONE, "the connection to the peer was lost%s%s%s", text ? " (" : "",
                          text ? text : "", text ? ")" : "");
    }
    if (!d)
        return bench_fail(&ep->ep, BENCH_ERROR, "%s: the queue is empty, nothing was posted", what);
    if (status == VIP_STATUS_TRANSPORT_ERROR)
        return bench_fail(&ep->ep, BENCH_ERROR, "%s: transport error, the peer cannot be reached any more", what);
    return bench_fail(&ep->ep, BENCH_ERROR, "%s: the descriptor completed with status 0x%x", what, status);
}

/* Runs on the NIC's own thread, hence atomic. Stores 1 + the code, because a code may be 0. The queues report the end
 * as well, and descriptor_failed then adds the reason. */
void ep_via_on_error(void *context, VIP_ERROR_DESCRIPTOR *error)
{
    via_ep *ep = context;
    atomic_store(&ep->lost, 1 + (int)error->ErrorCode);
}

/* ---------------------------------------------------------------- memory */

/* Frees memory that is not registered. */
static void give_back(via_ep *ep, void *memory, size_t len, bench_memory kind)
{
    if (kind == BENCH_MEMORY_VIAKIT)
        viakit_free(ep->nic, memory);
    else
        munmap(memory, len);
}

/* memset makes the pages resident, so that no run includes page faults. */
int ep_via_allocate(via_ep *ep, size_t len, bench_memory kind, void **memory, VIP_MEM_HANDLE *handle)
{
    VIP_MEM_ATTRIBUTES attributes = {.Ptag = ep->ptag, .EnableRdmaWrite = ep->write};
    void *made = NULL;
    if (kind == BENCH_MEMORY_VIAKIT) {
        VIP_RETURN code = viakit_alloc(ep->nic, len, &made);
        if (code != VIP_SUCCESS)
            return ep_via_failed(ep, "viakit_alloc", code);
    } else {
        made = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (made == MAP_FAILED)
            return bench_fail(&ep->ep, BENCH_ERROR, "no memory for buffers of %zu bytes", len);
    }
    memset(made, 0, len);
    VIP_RETURN code = VipRegisterMem(ep->nic, made, len, &attributes, handle);
    if (code != VIP_SUCCESS) {
        int rc = ep_via_failed(ep, "VipRegisterMem", code);
        give_back(ep, made, len, kind);
        return rc;
    }
    *memory = made;
    return BENCH_DONE;
}

/* Does nothing if no memory was allocated. */
static void release(via_ep *ep, void *memory, size_t len, bench_memory kind, VIP_MEM_HANDLE handle)
{
    if (memory) {
        VipDeregisterMem(ep->nic, memory, handle);
        give_back(ep, memory, len, kind);
    }
}

/* Fill in all fields that do not change from message to message. A message has one segment. A receive has room for 1
 * byte at least, because replies and credits have that length. */
static void build_descriptors(via_ep *ep, const bench_plan *plan)
{
    size_t room = plan->len ? plan->len : 1;
    memset(ep->sends, 0, DEPTH * sizeof *ep->sends);
    memset(ep->receives, 0, DEPTH * sizeof *ep->receives);
    for (size_t i = 0; i < DEPTH; i++) {
        VIP_DESCRIPTOR *s = &ep->sends[i], *r = &ep->receives[i];
        s->CS.SegCount = r->CS.SegCount = 1;
        s->DS[0].Local.Handle = r->DS[0].Local.Handle = ep->memory_handle;
        r->DS[0].Local.Length = r->CS.Length = (VIP_UINT32)room;
        if (ep->write) /* it takes only immediate data */
            r->CS.SegCount = r->DS[0].Local.Length = r->CS.Length = 0;
    }
}

/* Post the receive of the peer's key, in front of all others of the run. */
static int post_key_receive(via_ep *ep)
{
    VIP_DESCRIPTOR *d = &ep->keys->receive;
    memset(d, 0, sizeof *d);
    d->CS.SegCount = 1;
    d->CS.Length = d->DS[0].Local.Length = sizeof ep->keys->peers;
    d->DS[0].Local.Data.Address = &ep->keys->peers;
    d->DS[0].Local.Handle = ep->descriptors_handle;
    VIP_RETURN code = VipPostRecv(ep->vi, d, ep->descriptors_handle);
    return code == VIP_SUCCESS ? BENCH_DONE : ep_via_failed(ep, "VipPostRecv", code);
}

/* Memory that is long enough is kept, with its registration: no run includes the cost of registering. All descriptors
 * are the program's here, because the last run has reaped or taken each of them (flush, and the count of expect). */
static int via_prepare(bench_ep *base, const bench_plan *plan)
{
    via_ep *ep = (via_ep *)base;
    if (!ep->connected)
        return bench_fail(base, BENCH_ERROR, "via: not connected");
    if (plan->len > ep->attributes.MaxTransferSize)
        return bench_fail(base, BENCH_ERROR,
                          "VIA takes messages of at most %lu bytes here (MaxTransferSize), not of %zu",
                          ep->attributes.MaxTransferSize, plan->len);
    /* Before the buffers, because their number depends on it. */
    base->window = bench_window(plan);
    ep->depth = base->window + 2;
    size_t need = bench_buffers_need(plan, ep->depth);
    if (need > ep->memory_len || plan->memory != ep->kind) {
        void *memory = NULL;
        release(ep, ep->memory, ep->memory_len, ep->kind, ep->memory_handle);
        ep->memory = NULL;
        ep->memory_len = 0;
        int rc = ep_via_allocate(ep, need, plan->memory, &memory, &ep->memory_handle);
        if (rc < 0)
            return rc;
        ep->memory = memory;
        ep->memory_len = need;
        ep->kind = plan->memory;
    }
    bench_buffers_place(base, plan, ep->depth, ep->memory);
    build_descriptors(ep, plan);
    ep->n_sent = ep->n_reaped = ep->n_expected = ep->n_posted = ep->n_taken = 0;
    ep->has_sent_key = ep->has_key = !ep->write;
    return ep->write ? post_key_receive(ep) : BENCH_DONE;
}

/* ---------------------------------------------------------------- the operations */

/* Reap the oldest send, if it is done: DONE, NOT_YET or an error. May sleep for a slice unless dontwait is set. */
static inline int reap(via_ep *ep)
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN code = ep->ep.dontwait ? VipSendDone(ep->vi, &d) : VipSendWait(ep->vi, BENCH_SLICE_MS, &d);
    if (code == VIP_NOT_DONE || code == VIP_TIMEOUT)
        return BENCH_NOT_YET;
    if (code != VIP_SUCCESS)
        return code == VIP_DESCRIPTOR_ERROR ? descriptor_failed(ep, "send", d) : ep_via_failed(ep, "VipSendDone", code);
    ep->n_reaped++;
    return BENCH_DONE;
}

/* Take the oldest receive, if it is done: DONE, NOT_YET or an error. Sleeps for a slice at most, or not at all. */
static inline int take_receive(via_ep *ep, bool dontwait, VIP_DESCRIPTOR **d)
{
    VIP_RETURN code = dontwait ? VipRecvDone(ep->vi, d) : VipRecvWait(ep->vi, BENCH_SLICE_MS, d);
    if (code == VIP_NOT_DONE || code == VIP_TIMEOUT)
        return BENCH_NOT_YET;
    if (code != VIP_SUCCESS)
        return code == VIP_DESCRIPTOR_ERROR ? descriptor_failed(ep, "receive", *d)
                                            : ep_via_failed(ep, "VipRecvDone", code);
    return BENCH_DONE;
}

/* Send this side's key, and receive the peer's. The first is send 0, so message i is send i + 1. DONE when the peer's
 * key is here, NOT_YET, or an error. Both sides have posted their receives before either calls this. */
static int exchange_keys(via_ep *ep)
{
    VIP_DESCRIPTOR *d = &ep->sends[0];
    if (!ep->has_sent_key) {
        ep->keys->mine = (struct key){(uint64_t)(uintptr_t)ep->ep.receives, ep->memory_handle, 0};
        VIP_DESCRIPTOR key = {.CS = {.SegCount = 1, .Length = sizeof ep->keys->mine}};
        key.DS[0].Local.Data.Address = &ep->keys->mine;
        key.DS[0].Local.Handle = ep->descriptors_handle;
        key.DS[0].Local.Length = sizeof ep->keys->mine;
        *d = key;
        VIP_RETURN code = VipPostSend(ep->vi, d, ep->descriptors_handle);
        if (code != VIP_SUCCESS)
            return ep_via_failed(ep, "VipPostSend", code);
        ep->has_sent_key = true;
        ep->n_sent++;
    }
    int rc = take_receive(ep, true, &d);
    ep->has_key = rc == BENCH_DONE;
    return rc;
}

/* Fill in a write to the peer's buffer of this message. */
static void address_write(via_ep *ep, VIP_DESCRIPTOR *d, size_t len)
{
    size_t at = (size_t)(bench_receive_buffer(&ep->ep, ep->n_sent - 1) - ep->ep.receives);
    d->CS.SegCount = 2;
    d->CS.Control = VIP_CONTROL_OP_RDMAWRITE | VIP_CONTROL_IMMEDIATE;
    d->CS.ImmediateData = (VIP_UINT32)len;
    d->DS[0].Remote.Data.AddressBits = ep->keys->peers.start + at;
    d->DS[0].Remote.Handle = ep->keys->peers.handle;
    d->DS[1].Local.Handle = ep->memory_handle;
}

/* Post as many receives as the depth allows, and never more than messages will come. */
static inline int post_receives(via_ep *ep)
{
    while (ep->n_posted < ep->n_expected && ep->n_posted - ep->n_taken < ep->depth) {
        VIP_DESCRIPTOR *d = &ep->receives[ep->n_posted % DEPTH];
        d->DS[0].Local.Data.Address = bench_receive_buffer(&ep->ep, ep->n_posted);
        d->CS.Length = d->DS[0].Local.Length; /* the provider has overwritten it with the length received */
        d->CS.Control = 0;
        d->CS.Status = 0;
        VIP_RETURN code = VipPostRecv(ep->vi, d, ep->descriptors_handle);
        if (code != VIP_SUCCESS)
            return ep_via_failed(ep, "VipPostRecv", code);
        ep->n_posted++;
    }
    return BENCH_DONE;
}

/* The number of messages is known, so receives are posted up to the depth before the first message can arrive. */
static int via_expect(bench_ep *base, size_t len, uint64_t n)
{
    (void)len;
    ((via_ep *)base)->n_expected = n;
    return post_receives((via_ep *)base);
}

/* Post a send; tidy or flush reap its descriptor. NOT_YET if all descriptors are in use and none has completed; nothing
 * was posted then. */
static int via_send(bench_ep *base, size_t len)
{
    via_ep *ep = (via_ep *)base;
    int rc = ep->has_key ? BENCH_DONE : exchange_keys(ep);
    if (rc == BENCH_DONE && ep->n_sent - ep->n_reaped == ep->depth)
        rc = reap(ep); /* all descriptors are under way: the oldest must complete first */
    if (rc != BENCH_DONE)
        return rc;
    VIP_DESCRIPTOR *d = &ep->sends[ep->n_sent % DEPTH];
    VIP_DATA_SEGMENT *local = &d->DS[ep->write].Local;
    if (ep->write)
        address_write(ep, d, len);
    local->Data.Address = base->sbuf;
    d->CS.Length = local->Length = (VIP_UINT32)len;
    d->CS.Status = 0;
    VIP_RETURN code = VipPostSend(ep->vi, d, ep->descriptors_handle);
    if (code != VIP_SUCCESS)
        return ep_via_failed(ep, "VipPostSend", code);
    ep->n_sent++;
    return BENCH_DONE;
}

/* DONE with the message in the buffer of its receive. NOT_YET. Or an error that ends the run. */
static int via_recv(bench_ep *base, size_t len)
{
    via_ep *ep = (via_ep *)base;
    VIP_DESCRIPTOR *d = NULL;
    int rc = ep->has_key ? BENCH_DONE : exchange_keys(ep);
    if (rc == BENCH_DONE)
        rc = take_receive(ep, base->dontwait, &d);
    if (rc != BENCH_DONE)
        return rc;
    base->rmsg = ep->write ? bench_receive_buffer(base, ep->n_taken) : d->DS[0].Local.Data.Address;
    ep->n_taken++;
    size_t got = ep->write ? d->CS.ImmediateData : d->CS.Length;
    return got == len ? BENCH_DONE : bench_wrong_length(base, got, len);
}

/* Repost receives; reap up to two sends, always leaving the latest. This keeps up with any number of messages and costs
 * each the same. A reap must not sleep here, hence dontwait. */
static int via_tidy(bench_ep *base)
{
    via_ep *ep = (via_ep *)base;
    int rc = post_receives(ep);
    bool dontwait = base->dontwait;
    base->dontwait = true;
    for (int i = 0; i < 2 && rc >= 0 && ep->n_sent - ep->n_reaped > 1; i++) {
        rc = reap(ep);
        if (rc == BENCH_NOT_YET)
            break;
    }
    base->dontwait = dontwait;
    return rc;
}

/* A reaped send no longer uses its buffer. The peer's key is taken also by a side that has sent and received
 * nothing. */
static int via_flush(bench_ep *base, size_t most)
{
    via_ep *ep = (via_ep *)base;
    int rc = ep->has_key ? BENCH_DONE : exchange_keys(ep);
    while (rc == BENCH_DONE && ep->n_sent - ep->n_reaped > most)
        rc = reap(ep);
    return rc;
}

/* In the order that VIPL requires: a VI before its protection tag, memory before the tag and the NIC. */
static void via_close(bench_ep *base)
{
    via_ep *ep = (via_ep *)base;
    VIP_DESCRIPTOR *d;
    if (ep->vi) {
        VipDisconnect(ep->vi);
        /* Flushed descriptors must be reaped before the VI can be destroyed. The loop covers the largest possible
         * number; further calls find nothing and are harmless. */
        for (int i = 0; i < 2 * DEPTH; i++) {
            VipSendDone(ep->vi, &d);
            VipRecvDone(ep->vi, &d);
        }
        VipDestroyVi(ep->vi);
    }
    if (ep->nic) {
        release(ep, ep->memory, ep->memory_len, ep->kind, ep->memory_handle);
        release(ep, ep->sends, DESCRIPTORS_LEN, BENCH_MEMORY_USER, ep->descriptors_handle);
        if (ep->ptag)
            VipDestroyPtag(ep->nic, ep->ptag);
        VipCloseNic(ep->nic);
    }
}

const bench_ops ep_via_ops = {
    .name = "via",
    .min_len = 0,
    .allocates = true,
    .max_len = (size_t)1 << 30, /* the NIC's MaxTransferSize is checked by prepare */
    .prepare = via_prepare,
    .expect = via_expect,
    .send = via_send,
    .recv = via_recv,
    .tidy = via_tidy,
    .flush = via_flush,
    .close = via_close,
};
