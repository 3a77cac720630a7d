/*
 * cases_notify.c - handlers called on completion (VipSendNotify, VipRecvNotify, VipCQNotify), events tied to a
 * completion queue (VipAddTagCQ), and deferred sends (VipPostDeferredSends).
 *
 * VIPL's rule for a handler: one completion per request, in the order of the queue, on a thread of the provider, which
 * may make any call. On a NIC without a thread, the polling thread calls the handlers.
 */
#include <poll.h>
#include <sys/eventfd.h>

#include "conformance.h"

#define MESSAGES 20

/* State of a handler: it reaps one completion after the other, and requests the next call from within. */
typedef struct {
    endpoint *e;
    VIP_CQ_HANDLE cq;
    pthread_t waiter; /* the thread that waits: handlers run on another, unless the NIC has none */
    int wanted;
    atomic_int n, again;
    VIP_DESCRIPTOR *got[MESSAGES];
} collector;

/* Takes what VipSendNotify or VipRecvNotify bring: the descriptor is off its queue already. The count rises last, when
 * all that the waiting thread looks at is written. */
static void on_descriptor(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d)
{
    collector *c = context;
    int n = atomic_load(&c->n);
    CHECK(nic == c->e->s->nic && vi == c->e->vi);
    CHECK(d->CS.Status & VIP_STATUS_DONE);
    CHECK(c->e->s->options.no_thread || !pthread_equal(pthread_self(), c->waiter));
    c->got[n] = d;
    if (n + 1 < c->wanted) {
        VIP_BOOLEAN empty;
        CHECK_OK(VipQueryVi(vi, NULL, NULL, &empty, NULL)); /* any call may be made here */
        CHECK_OK((d->CS.Status & VIP_STATUS_OP_MASK) == VIP_STATUS_OP_RECEIVE ? VipRecvNotify(vi, c, on_descriptor)
                                                                              : VipSendNotify(vi, c, on_descriptor));
    }
    atomic_store(&c->n, n + 1);
}

/* A completion queue's handler gets an entry only. The descriptor is still on its queue and is reaped here. */
static void on_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv)
{
    collector *c = context;
    int n = atomic_load(&c->n);
    VIP_DESCRIPTOR *d;
    CHECK(nic == c->e->s->nic && vi == c->e->vi);
    VIP_RETURN r = recv ? VipRecvDone(vi, &d) : VipSendDone(vi, &d);
    CHECK(r == VIP_SUCCESS || (r == VIP_DESCRIPTOR_ERROR && d));
    c->got[n] = d;
    if (n + 1 < c->wanted)
        CHECK_OK(VipCQNotify(c->cq, c, on_entry));
    atomic_store(&c->n, n + 1);
}

static void wait_for(collector *c, int n)
{
    double end = check_now() + CHECK_WAIT_S;
    while (atomic_load(&c->n) < n) {
        if (check_now() > end)
            FAIL("the handler was called %d times in %d s, expected %d", atomic_load(&c->n), CHECK_WAIT_S, n);
        if (c->e->s->options.no_thread)
            viakit_poll(c->e->s->nic, NULL);
        sched_yield();
    }
}

/* ---- notify_queues, notify_polled: B's handler is called for each message, in order, and A's for each send. Handlers
 * are re-armed from within, or requested several times at once */

static void notify_both(side *s)
{
    /* several: all requests are made before the first message, and a handler makes none; else each handler makes the
     * next. */
    for (int several = 0; several < 2; several++) {
        endpoint e;
        collector c = {.e = &e, .waiter = pthread_self(), .wanted = several ? 1 : MESSAGES};
        VIP_DESCRIPTOR *d[MESSAGES];
        endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
        CHECK_RET(VipRecvNotify(e.vi, &c, NULL), VIP_INVALID_PARAMETER);
        CHECK_RET(VipSendNotify(NULL, &c, on_descriptor), VIP_INVALID_PARAMETER);
        for (int i = 0; i < MESSAGES; i++) {
            d[i] = descriptor(&e, 1);
            if (s->role == SIDE_B)
                post_recv(&e, prep_recv(&e, d[i], buffer(&e, 100), 100));
        }
        for (int i = 0; i < (several ? MESSAGES : 1); i++)
            CHECK_OK(s->role == SIDE_B ? VipRecvNotify(e.vi, &c, on_descriptor)
                                       : VipSendNotify(e.vi, &c, on_descriptor));
        /* Only now, when the requests stand, can the first completion come. */
        endpoint_connect(&e, "notify");
        SIDE_SYNC(s, 1);
        if (s->role == SIDE_A)
            for (int i = 0; i < MESSAGES; i++)
                post_send(&e, prep_send(&e, d[i], buffer(&e, 100), 100));
        wait_for(&c, MESSAGES);
        for (int i = 0; i < MESSAGES; i++)
            CHECK(c.got[i] == d[i]);
        /* Flushing nothing, the disconnect must not call the handler once more. */
        endpoint_disconnect(&e);
        CHECK_EQ(atomic_load(&c.n), MESSAGES);
        endpoint_close(&e);
    }
}

void notify_queues_a(side *s)
{
    notify_both(s);
}

void notify_queues_b(side *s)
{
    notify_both(s);
}

/* Without a thread, the polling thread runs the handlers. */
void notify_polled_a(side *s)
{
    notify_both(s);
}

void notify_polled_b(side *s)
{
    notify_both(s);
}

/* ---- notify_cq: an existing entry, a later one, withdrawal when the queue or the VI is destroyed, and a flush */

void notify_cq_a(side *s)
{
    endpoint e;
    VIP_CQ_HANDLE cq, other;
    /* `never`: of requests that must be dropped without a call. */
    collector c = {.e = &e, .waiter = pthread_self(), .wanted = 2}, never = {.e = &e};
    VIP_DESCRIPTOR *d[3];
    CHECK_OK(VipCreateCQ(s->nic, 64, &cq));
    CHECK_OK(VipCreateCQ(s->nic, 64, &other));
    endpoint_open_with(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 4096, 0, NULL, cq);
    c.cq = cq;
    /* Two notifications of one queue would take entries from each other. */
    CHECK_RET(VipRecvNotify(e.vi, &c, on_descriptor), VIP_INVALID_STATE); /* its queue has a completion queue */
    for (int i = 0; i < 3; i++)
        post_recv(&e, prep_recv(&e, d[i] = descriptor(&e, 1), buffer(&e, 8), 8));
    endpoint_connect(&e, "notify-cq");
    SIDE_SYNC(s, 1);
    SIDE_SYNC(s, 2); /* the first message has arrived */
    CHECK_OK(VipCQNotify(cq, &c, on_entry));
    wait_for(&c, 1);
    SIDE_SYNC(s, 3);
    wait_for(&c, 2); /* the second came later */
    CHECK(c.got[0] == d[0] && c.got[1] == d[1]);
    CHECK_STATUS(d[1], VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
    c.wanted = 3;
    CHECK_OK(VipCQNotify(cq, &c, on_entry));
    CHECK_OK(VipDisconnect(e.vi)); /* the third is flushed, which completes it */
    wait_for(&c, 3);
    CHECK_STATUS(d[2], VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE | VIP_STATUS_DESC_FLUSHED_ERROR);
    /* Requests that nothing answers: they go with their completion queue or with the VI. */
    CHECK_OK(VipCQNotify(other, &never, on_entry));
    CHECK_OK(VipDestroyCQ(other));
    CHECK_OK(VipCQNotify(cq, &never, on_entry));
    CHECK_OK(VipSendNotify(e.vi, &never, on_descriptor));
    endpoint_close(&e);
    CHECK_OK(VipDestroyCQ(cq));
    CHECK_EQ(atomic_load(&never.n), 0);
}

void notify_cq_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 4096);
    endpoint_connect(&e, "notify-cq");
    SIDE_SYNC(s, 1);
    for (int i = 0; i < 2; i++) {
        d = descriptor(&e, 1);
        post_send(&e, prep_send(&e, d, buffer(&e, 8), 8));
        reap_send(&e, d, VIP_STATUS_OP_SEND);
        SIDE_SYNC(s, 2 + i);
    }
    wait_state(&e, VIP_STATE_ERROR);
    endpoint_close(&e);
}

/* ---- cq_tags: an eventfd is signalled for each entry, so a program can sleep in poll() */

static int signalled(int fd, int timeout_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, timeout_ms) == 1;
}

void cq_tags_a(side *s)
{
    endpoint e;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    /* Nonblocking: cq_tags reads only after poll() has promised something. */
    int fds[2] = {eventfd(0, EFD_NONBLOCK), eventfd(0, EFD_NONBLOCK)};
    uint64_t count;
    CHECK_OK(VipCreateCQ(s->nic, 64, &cq));
    endpoint_open_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536, 0, NULL, cq);
    /* A number without a file, and a socket, which the provider may not signal. */
    CHECK_RET(VipAddTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)-1, 1, 0), VIP_INVALID_PARAMETER);
    CHECK_RET(VipAddTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)s->ctl, 1, 0), VIP_INVALID_PARAMETER);
    CHECK_OK(VipAddTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)fds[0], 7, 0));
    CHECK_OK(VipAddTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)fds[1], 8, 1));
    /* A tag is a pair of file and number; half of it finds nothing. */
    CHECK_RET(VipRemoveTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)fds[0], 8), VIP_INVALID_PARAMETER);
    for (int i = 0; i < MESSAGES; i++)
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), buffer(&e, 8), 8));
    /* Posting completes nothing. */
    CHECK(!signalled(fds[0], 0));
    endpoint_connect(&e, "tags");
    SIDE_SYNC(s, 1);
    for (int n = 0; n < MESSAGES;) {
        CHECK(signalled(fds[0], 1000 * CHECK_WAIT_S));
        /* An eventfd counts: one read takes several signals, so all entries are taken after it. */
        CHECK_EQ(read(fds[0], &count, sizeof(count)), (ssize_t)sizeof(count));
        while (VipCQDone(cq, &vi, &recv) == VIP_SUCCESS) {
            CHECK(vi == e.vi && recv);
            next_recv(&e);
            n++;
        }
    }
    /* The second tag's file was signalled as well, and has not been read. */
    CHECK(signalled(fds[1], 0));
    CHECK_OK(VipRemoveTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)fds[0], 7));
    CHECK_RET(VipRemoveTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)fds[0], 7), VIP_INVALID_PARAMETER);
    close(fds[1]); /* the queue has a copy of its own, and closes that */
    close(fds[0]);
    SIDE_SYNC(s, 2);
    endpoint_close(&e);
    CHECK_OK(VipDestroyCQ(cq));
}

void cq_tags_b(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_connect(&e, "tags");
    SIDE_SYNC(s, 1);
    for (int i = 0; i < MESSAGES; i++) {
        VIP_DESCRIPTOR *d = descriptor(&e, 1);
        post_send(&e, prep_send(&e, d, buffer(&e, 8), 8));
        reap_send(&e, d, VIP_STATUS_OP_SEND);
    }
    SIDE_SYNC(s, 2);
    endpoint_close(&e);
}

/* ---- deferred: sends wait for the program's word, then all go, in order; flushed with the others */

void deferred_a(side *s)
{
    /* At the levels at which ten messages at once are never lost. */
    for (int i = 0; i < s->n_burst_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d[10], *got;
        VIP_BOOLEAN before = 7;
        endpoint_open(&e, s, s->levels[i], 1 << 20);
        endpoint_connect(&e, "deferred");
        SIDE_SYNC(s, 1);
        for (int k = 0; k < 10; k++) { /* the first one leaves at once, the others wait; some are of many frames */
            size_t len = k % 3 ? 8 : 40000;
            d[k] = descriptor(&e, 1);
            if (k == 1) {
                CHECK_OK(VipPostDeferredSends(e.vi, VIP_TRUE, &before));
                CHECK_EQ(before, VIP_FALSE);
            }
            post_send(&e, prep_send(&e, d[k], buffer(&e, len), len));
        }
        reap_send(&e, d[0], VIP_STATUS_OP_SEND);
        /* Between this sync and the next both sides look, and nothing has moved. */
        SIDE_SYNC(s, 2);
        CHECK_RET(VipSendDone(e.vi, &got), VIP_NOT_DONE);
        CHECK_OK(VipPostDeferredSends(e.vi, VIP_TRUE, &before));
        CHECK_EQ(before, VIP_TRUE);
        SIDE_SYNC(s, 3);
        /* The word: all go at once. */
        CHECK_OK(VipPostDeferredSends(e.vi, VIP_FALSE, NULL));
        for (int k = 1; k < 10; k++)
            reap_send(&e, d[k], VIP_STATUS_OP_SEND);
        /* Once more put off: what is not sent when the connection ends is flushed like everything else. */
        SIDE_SYNC(s, 4);
        CHECK_OK(VipPostDeferredSends(e.vi, VIP_TRUE, NULL));
        post_send(&e, prep_send(&e, d[0], buffer(&e, 8), 8));
        CHECK_OK(VipDisconnect(e.vi));
        reap_send(&e, d[0], VIP_STATUS_OP_SEND | VIP_STATUS_DESC_FLUSHED_ERROR);
        endpoint_close(&e);
    }
}

void deferred_b(side *s)
{
    for (int i = 0; i < s->n_burst_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d[10], *got;
        endpoint_open(&e, s, s->levels[i], 1 << 20);
        for (int k = 0; k < 10; k++)
            post_recv(&e, prep_recv(&e, d[k] = descriptor(&e, 1), buffer(&e, 40000), 40000));
        endpoint_connect(&e, "deferred");
        SIDE_SYNC(s, 1);
        reap_recv(&e, d[0], VIP_STATUS_OP_RECEIVE);
        SIDE_SYNC(s, 2);
        CHECK_RET(VipRecvDone(e.vi, &got), VIP_NOT_DONE);
        SIDE_SYNC(s, 3);
        for (int k = 1; k < 10; k++) {
            reap_recv(&e, d[k], VIP_STATUS_OP_RECEIVE);
            /* In the order of posting, the long ones too. */
            CHECK_EQ(d[k]->CS.Length, k % 3 ? 8 : 40000);
        }
        SIDE_SYNC(s, 4);
        endpoint_close(&e);
    }
}
