/*
 * notify.h - completion handlers (objects/notify.c), and events tied to a completion queue (objects/extension.c).
 */
#ifndef VIAKIT_VIA_NOTIFY_H
#define VIAKIT_VIA_NOTIFY_H

#include "via/nic.h"
#include "via/vi.h"

/* Notes that an entry completed while notifications are outstanding. */
void via_notify_due(struct via_nic *nic);
/* Cancels the notifications of a VI or a completion queue that is being destroyed. */
void via_notify_cancel(struct via_nic *nic, const void *vi_or_cq);
/* Calls the handlers of the notifications that have a completion. Same thread rule as via_run_handlers. */
void via_run_notifications(struct via_nic *nic);

/* Returns whether handlers of errors or of completions have to run. */
static inline int via_callbacks_wait(const struct via_nic *nic)
{
    return nic->events_head != nic->events_tail || nic->notify_due;
}

/* Signals the events tied to the queue: one write(2) for each. Owner only. */
void via_cq_signal(const struct via_cq *cq);
/* Removes all tags of a queue that is being freed, and closes their descriptors. Owner only. */
void via_cq_drop_tags(struct via_cq *cq);

#endif
