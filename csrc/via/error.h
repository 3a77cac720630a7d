/*
 * error.h - explanations of failed calls, and asynchronous errors (objects/error.c).
 */
#ifndef VIAKIT_VIA_ERROR_H
#define VIAKIT_VIA_ERROR_H

#include "base/pool.h"
#include "via/nic.h"
#include "vipl.h"

/* Explains that memory or address space for `function` was exhausted, with the limit if there is one. Returns
 * VIP_ERROR_RESOURCE. */
VIP_RETURN via_no_memory(const char *function);
/* Explains why a pool had no free object: it holds its maximum of `what`, or memory is exhausted. */
VIP_RETURN via_no_object(const char *function, const struct vk_pool *pool, const char *what);
/* Explains that a handle is not, or no longer, one of a `what`. Returns VIP_INVALID_PARAMETER. */
VIP_RETURN via_bad_handle(const char *what, const void *handle);

/* Queues an asynchronous error; the handler runs later, without ownership. */
void via_report(struct via_nic *nic, struct via_vi *vi, struct via_cq *cq, VIP_DESCRIPTOR *d,
                VIP_RESOURCE_CODE resource, VIP_ERROR_CODE code);
/* Runs queued handlers. Called without ownership, by the NIC's thread, or by a thread that polls a NIC without one. */
void via_run_handlers(struct via_nic *nic);
/* The handlers that a thread is running, innermost first: a handler may wait on another NIC and run that NIC's
 * handlers. */
struct via_handling {
    const struct via_nic *nic;
    const struct via_handling *outer;
};
void via_handling_begin(struct via_handling *here, const struct via_nic *nic);
void via_handling_end(const struct via_handling *here);
int via_in_handler(const struct via_nic *nic);

#endif
