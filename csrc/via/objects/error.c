/*
 * Explanations, names and texts of codes, asynchronous errors, names of counters.
 *
 * A call error changes nothing. It is the call's return value, explained by viakit_last_error(). A completion error is
 * in the descriptor's status. An asynchronous error belongs to no call: it is queued here, and the handler runs later,
 * without ownership of the NIC, so that it may call VIPL.
 *
 * The tables below are X-macros: one line per code defines its name and its text, so that both always exist and agree.
 *
 * The queue of asynchronous errors is a ring of VIA_MAX_EVENTS entries:
 *
 *       events_head              events_tail
 *     ----+-------------------------+-------        head <= tail <= head + VIA_MAX_EVENTS, free-running
 *         | not yet delivered       | free
 *
 * Only the NIC's owner moves the two ends. Threads that may run handlers read the tail without ownership, so it is
 * stored with release and read with acquire.
 *
 * Any thread may call the functions for names and texts; they return constants. An explanation belongs to the thread
 * that made the failed call (base/explain.h). If the ring is full, further errors are only counted (async_errors).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/explain.h"
#include "base/pool.h"
#include "base/words.h"
#include "link/link.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/link_services.h"
#include "via/nic.h"
#include "via/own.h"
#include "via/vi.h"
#include "via/work.h"

/* The text is this thread's, and valid until its next failed call. "" if no call has failed. */
const char *viakit_last_error(void)
{
    return vk_explanation();
}

/* Service of links. The last trouble stays until the next one: viakit_query_nic has no way to report that it is
 * over. */
void via_link_trouble(struct link_client *client, const char *text)
{
    struct via_nic *nic = via_nic_of(client);
    snprintf(nic->trouble, sizeof nic->trouble, "%s", text);
}

/* A limit of address space is named, because malloc() then fails on a host with free memory. */
VIP_RETURN via_no_memory(const char *function)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        return vk_fail(VIP_ERROR_RESOURCE,
                       "%s: no memory: the address space of this process may have %llu MiB; raise or lift the limit "
                       "(ulimit -v)",
                       function, (unsigned long long)limit.rlim_cur >> 20);
    return vk_fail(VIP_ERROR_RESOURCE, "%s: memory is exhausted", function);
}

/* n_alive may change at this moment: the wrong one of two true reasons is then given. */
VIP_RETURN via_no_object(const char *function, const struct vk_pool *pool, const char *what)
{
    if (vk_load_relaxed(&pool->n_alive) < pool->capacity)
        return via_no_memory(function);
    return vk_fail(VIP_ERROR_RESOURCE, "%s: this process has %u %s, and cannot have more", function,
                   (unsigned)pool->capacity, what);
}

VIP_RETURN via_bad_handle(const char *what, const void *handle)
{
    return vk_fail(VIP_INVALID_PARAMETER,
                   "%p is not the handle of a living %s (NULL, never given out, or already closed)", handle, what);
}

/* ---------------------------------------------------------------- names and texts: one list per enum */

/* VIPL's return values: code, and the text that explains it to a program's user. */
#define RETURNS(X)                                                                                        \
    X(VIP_SUCCESS, "The call succeeded")                                                                  \
    X(VIP_NOT_DONE, "Nothing has completed yet")                                                          \
    X(VIP_INVALID_PARAMETER, "A handle or an argument is not valid")                                      \
    X(VIP_ERROR_RESOURCE, "A resource is exhausted, or still in use")                                     \
    X(VIP_TIMEOUT, "The time-out passed first")                                                           \
    X(VIP_REJECT, "The other side rejected the connection")                                               \
    X(VIP_INVALID_RELIABILITY_LEVEL, "The reliability level is unknown or differs from the other side's") \
    X(VIP_INVALID_MTU, "The maximal transfer size is not possible or differs from the other side's")      \
    X(VIP_INVALID_QOS, "The quality of service differs from the other side's")                            \
    X(VIP_INVALID_PTAG, "The protection tag is not one of this NIC")                                      \
    X(VIP_INVALID_RDMAREAD, "RDMA read is not possible here")                                             \
    X(VIP_DESCRIPTOR_ERROR, "The descriptor completed with an error, or the queue is empty")              \
    X(VIP_INVALID_STATE, "The object's state does not allow this call")                                   \
    X(VIP_ERROR_NAMESERVICE, "The name service could not resolve the name or address")                    \
    X(VIP_NO_MATCH, "No server waits at that address for that discriminator")                             \
    X(VIP_NOT_REACHABLE, "That address cannot be reached")                                                \
    X(VIP_ERROR_NOT_SUPPORTED, "This provider does not offer the function")

#define ERROR_CODES(X)                                       \
    X(VIP_ERROR_POST_DESC, "Error posting descriptor")       \
    X(VIP_ERROR_CONN_LOST, "Connection lost")                \
    X(VIP_ERROR_RECVQ_EMPTY, "Receive on empty queue")       \
    X(VIP_ERROR_VI_OVERRUN, "VI over-run")                   \
    X(VIP_ERROR_RDMAW_PROT, "RDMA write protection error")   \
    X(VIP_ERROR_RDMAW_DATA, "RDMA write data error")         \
    X(VIP_ERROR_RDMAW_ABORT, "RDMA write abort")             \
    X(VIP_ERROR_RDMAR_PROT, "RDMA read protection error")    \
    X(VIP_ERROR_COMP_PROT, "Protection error on completion") \
    X(VIP_ERROR_RDMA_TRANSPORT, "RDMA transport error")      \
    X(VIP_ERROR_CATASTROPHIC, "Catastrophic error")

#define STATES(X)                                              \
    X(VIP_STATE_IDLE, "not connected")                         \
    X(VIP_STATE_CONNECTED, "connected")                        \
    X(VIP_STATE_CONNECT_PENDING, "a connection is being made") \
    X(VIP_STATE_ERROR, "the connection broke: disconnect to use the VI again")

#define WORD(code, text) {code, #code, text},
static const struct vk_word return_words[] = {RETURNS(WORD)};
static const struct vk_word error_words[] = {ERROR_CODES(WORD)};
static const struct vk_word state_words[] = {STATES(WORD)};

const char *viakit_return_name(int code)
{
    return VK_WORD(return_words, code)->name;
}
const char *viakit_return_text(int code)
{
    return VK_WORD(return_words, code)->text;
}
const char *viakit_error_code_name(int code)
{
    return VK_WORD(error_words, code)->name;
}
const char *viakit_error_code_text(int code)
{
    return VK_WORD(error_words, code)->text;
}
const char *viakit_state_name(int code)
{
    return VK_WORD(state_words, code)->name;
}

static const struct vk_word counter_words[] = {
#define COUNTER(name, text) {VIAKIT_COUNTER_##name, #name, text},
    VIAKIT_COUNTERS(COUNTER)
#undef COUNTER
};

const char *viakit_counter_name(int counter)
{
    return VK_WORD(counter_words, counter)->name;
}
const char *viakit_counter_text(int counter)
{
    return VK_WORD(counter_words, counter)->text;
}

/* ---------------------------------------------------------------- asynchronous errors */

/* Queue an error. It may be called anywhere inside the NIC, in any state, because it only records the error. d is read,
 * so it must be memory, or NULL. */
void via_report(struct via_nic *nic, struct via_vi *vi, struct via_cq *cq, VIP_DESCRIPTOR *d,
                VIP_RESOURCE_CODE resource, VIP_ERROR_CODE code)
{
    NIC_COUNT(nic, async_errors, 1);
    if (nic->events_tail - nic->events_head == VIA_MAX_EVENTS)
        return; /* counted; further errors of a burst are dropped */
    VIP_ERROR_DESCRIPTOR *e = &nic->events[nic->events_tail % VIA_MAX_EVENTS].error;
    memset(e, 0, sizeof *e);
    e->NicHandle = vk_pool_handle(nic);
    e->ViHandle = vi ? vk_pool_handle(vi) : NULL;
    e->CQHandle = cq ? vk_pool_handle(cq) : NULL;
    e->DescriptorPtr = d;
    /* The operation that the descriptor requests. */
    e->OpCode = d ? d->CS.Control & VIP_CONTROL_OP_MASK : 0;
    e->ResourceCode = resource;
    e->ErrorCode = code;
    /* The entry is written before the tail moves, because via_run_handlers reads the tail without ownership. */
    vk_store_release(&nic->events_tail, nic->events_tail + 1);
    /* The thread runs the handlers. A NIC without a thread runs them when it is polled (viakit_poll) or waits. */
    via_kick_thread(nic);
}

/* The default handler logs to standard error and nowhere else, as the VIPL guide requires. The NIC is read without
 * ownership: device is constant, and trouble may be a mixture of two texts if it changes at this moment. */
static void log_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *e)
{
    struct via_nic *nic = context;
    fprintf(stderr, "viakit: %s: %s (VI %p, descriptor %p)%s%s\n", nic->device,
            viakit_error_code_text((int)e->ErrorCode), e->ViHandle, (void *)e->DescriptorPtr, *nic->trouble ? ": " : "",
            nic->trouble);
}

static __thread const struct via_handling *handling; /* of this thread, innermost first; on its stack */

/* Marks that this thread runs a handler of the NIC. Calls that would wait for the handler's end are refused then
 * (via_in_handler). *here is on the caller's stack until via_handling_end(). */
void via_handling_begin(struct via_handling *here, const struct via_nic *nic)
{
    *here = (struct via_handling){nic, handling};
    handling = here;
}

void via_handling_end(const struct via_handling *here)
{
    handling = here->outer;
}

/* Returns 1 if this thread runs a handler of the NIC, at any depth. */
int via_in_handler(const struct via_nic *nic)
{
    const struct via_handling *h = handling;
    while (h && h->nic != nic)
        h = h->outer;
    return h != NULL;
}

/* Deliver the queued errors one at a time: remove an error as owner, run the handler without ownership. The handler may
 * call any function of VIPL except VipCloseNic for this NIC. On a NIC without a thread several threads may be here at
 * once. Each error is delivered once. */
void via_run_handlers(struct via_nic *nic)
{
    /* acquire: pairs with via_report's release. The queue is first checked without ownership, so that a thread that
     * finds it empty does not disturb the owner. The check is repeated as owner. */
    while (vk_load_acquire(&nic->events_tail) != vk_load_relaxed(&nic->events_head)) {
        via_own_enter_slow(&nic->own, 1);
        if (nic->events_tail == nic->events_head) {
            via_own_leave_slow(&nic->own);
            return;
        }
        VIP_ERROR_DESCRIPTOR e = nic->events[nic->events_head % VIA_MAX_EVENTS].error;
        VIP_ERROR_HANDLER handler = nic->handler ? nic->handler : log_error;
        void *context = nic->handler ? nic->handler_context : nic;
        vk_store_relaxed(&nic->events_head, nic->events_head + 1);
        via_own_leave_slow(&nic->own);
        struct via_handling here;
        via_handling_begin(&here, nic);
        handler(context, &e);
        via_handling_end(&here);
    }
}

/* Set the error handler. NULL restores the default, which logs. Errors that are already queued go to the new handler.
 */
VIP_RETURN VipErrorCallback(VIP_NIC_HANDLE handle, VIP_PVOID context, VIP_ERROR_HANDLER handler)
{
    VIA_ENTER_NIC(nic, handle);
    nic->handler = handler;
    nic->handler_context = context;
    via_leave(nic);
    return VIP_SUCCESS;
}
