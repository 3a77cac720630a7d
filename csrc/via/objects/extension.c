/*
 * Calls that VIA providers, above all Giganet's cLAN, added to VIPL: tags on completion queues, deferred sends, and a
 * pointer of the program on each VI. docs/choices.md lists the decisions where their documentation is incomplete.
 *
 *    VipAddTagCQ      eventfd --duplicate--> cq->tags, sorted by priority; limit = 0: via_cq_push() takes the slow path
 *    via_cq_push      write 1 to each tag's eventfd, then add the entry
 *    VipRemoveTagCQ   close the duplicate; the last one removed: limit = capacity
 *
 * The entry is added after the events are signalled, but both by the owner: a program that wakes up and calls VipCQDone
 * enters the NIC behind it, and finds the entry.
 *
 * The Vip functions enter the NIC themselves, any thread may call them, and none blocks. The others need ownership.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/explain.h"
#include "via/data/data.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"
#include "via/notify.h"
#include "via/vi.h"
#include "via/work.h"

/* ---------------------------------------------------------------- tags on completion queues
 *
 * A tag ties an event to a completion queue: whenever an entry is added, the event is signalled, that is, 1 is written
 * to an eventfd. A program can then sleep in poll or epoll on many completion queues, sockets and timers at once. */

struct via_tag {
    struct via_tag *next; /* of the same queue, higher priority first */
    VIP_EVENT_HANDLE event;
    VIP_ULONG tag, priority;
    int fd; /* a duplicate: the program may close its own */
};

/* Signals all tags, and not only the first one: each may wake another thread. Priority is the order of the writes, and
 * nothing more, because the kernel decides which thread runs first. One system call for each tag and entry. */
void via_cq_signal(const struct via_cq *cq)
{
    const uint64_t one = 1;
    for (const struct via_tag *t = cq->tags; t; t = t->next) {
        ssize_t written = vk_write(t->fd, &one, sizeof one);
        (void)written; /* a write fails only if the counter is full, and it is readable then */
        NIC_COUNT(cq->nic, system_calls, 1);
    }
}

static void set_limit(struct via_cq *cq)
{
    cq->limit = cq->tags ? 0 : cq->capacity; /* 0: every entry takes the slow branch, which signals tags */
}

void via_cq_drop_tags(struct via_cq *cq)
{
    while (cq->tags) {
        struct via_tag *t = cq->tags;
        cq->tags = t->next;
        close(t->fd);
        free(t);
    }
    set_limit(cq);
}

/* Any other descriptor would accept the write, too: 8 bytes would appear in an unrelated file or socket. */
static int is_eventfd(int fd)
{
    char path[64], target[64] = "";
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(path, target, sizeof target - 1);
    return n > 0 && strstr(target, "[eventfd]") != NULL;
}

/* An event is a file descriptor cast to a pointer. Return a duplicate, or -1. The duplicate keeps the event alive until
 * the tag is removed, and names the same event if the program reuses the number. */
static int copy_event(VIP_EVENT_HANDLE event)
{
    intptr_t fd = (intptr_t)event;
    if (fd < 0 || fd > INT32_MAX || !is_eventfd((int)fd))
        return -1;
    return fcntl((int)fd, F_DUPFD_CLOEXEC, 0);
}

/* The event is duplicated before the NIC is entered. Entries that already wait count as added now. */
VIP_RETURN VipAddTagCQ(VIP_CQ_HANDLE handle, VIP_EVENT_HANDLE event, VIP_ULONG tag, VIP_ULONG priority)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    int fd = copy_event(event);
    if (fd < 0)
        return vk_fail(VIP_INVALID_PARAMETER,
                       "VipAddTagCQ: %ld is not an eventfd: make one with eventfd(0, 0) and pass (VIP_EVENT_HANDLE)fd",
                       (long)(intptr_t)event);
    struct via_tag *t = malloc(sizeof *t), **p;
    struct via_cq *cq = via_cq_enter(handle, &code);
    if (t == NULL || cq == NULL) {
        if (cq)
            via_leave(cq->nic);
        close(fd);
        free(t);
        return cq ? vk_fail(VIP_ERROR_RESOURCE, "VipAddTagCQ: memory is exhausted") : code;
    }
    *t = (struct via_tag){.event = event, .tag = tag, .priority = priority, .fd = fd};
    /* Behind tags of the same priority: these are signalled in the order in which they were added. */
    for (p = &cq->tags; *p && (*p)->priority >= priority; p = &(*p)->next) {}
    t->next = *p;
    *p = t;
    set_limit(cq);
    if (cq->head != cq->tail)
        via_cq_signal(cq); /* a program that goes to sleep now must not miss waiting entries */
    via_leave(cq->nic);
    return VIP_SUCCESS;
}

/* Remove a tag by event and tag number as given to VipAddTagCQ. The duplicate of the descriptor is closed; the
 * program's own is not touched. */
VIP_RETURN VipRemoveTagCQ(VIP_CQ_HANDLE handle, VIP_EVENT_HANDLE event, VIP_ULONG tag)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code = VIP_SUCCESS;
    VIA_ENTER_CQ(cq, handle);
    struct via_tag **p = &cq->tags;
    while (*p && ((*p)->event != event || (*p)->tag != tag))
        p = &(*p)->next;
    struct via_tag *t = *p;
    if (t) {
        *p = t->next;
        close(t->fd);
        free(t);
        set_limit(cq);
    } else
        code = vk_fail(VIP_INVALID_PARAMETER, "VipRemoveTagCQ: the queue has no tag %lu with that event", tag);
    via_leave(cq->nic);
    return code;
}

/* ---------------------------------------------------------------- deferred sends
 *
 * While sends are deferred, VipPostSend only queues: no frame leaves. At the end of the deferral all queued sends leave
 * at once, batched where they fit together. */

/* Begin or end the deferral. hold_from is the first send that waits; sends posted before continue. *deferred: whether
 * sends were deferred until now. */
VIP_RETURN VipPostDeferredSends(VIP_VI_HANDLE handle, VIP_BOOLEAN enable, VIP_BOOLEAN *deferred)
{
    VIA_ENTER_VI(vi, handle);
    if (deferred)
        *deferred = vi->deferring ? VIP_TRUE : VIP_FALSE;
    /* Enabling twice does not move the position from which sends wait. */
    if (enable && !vi->deferring)
        vi->hold_from = vi->send.posted;
    vi->deferring = enable != 0;
    if (!enable && via_may_transmit(vi))
        via_transmit(vi);
    via_leave(vi->nic);
    return VIP_SUCCESS;
}

/* ---------------------------------------------------------------- the program's pointer */

/* NULL is also what a VI without data has. */
VIP_PVOID VipGetUserData(VIP_VI_HANDLE handle)
{
    VIP_RETURN code;
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL)
        return NULL; /* explained; the function has no other way to report an error */
    VIP_PVOID data = vi->user_data;
    via_leave(vi->nic);
    return data;
}

/* The pointer is the program's: it is never read here, and nothing is freed with the VI. */
void VipSetUserData(VIP_VI_HANDLE handle, VIP_PVOID data)
{
    VIP_RETURN code;
    struct via_vi *vi = via_vi_enter(handle, &code);
    if (vi == NULL)
        return;
    vi->user_data = data;
    via_leave(vi->nic);
}
