/*
 * cases_wait.c - waiting instead of polling, and completion queues.
 *
 * A wait that finds nothing sleeps in the kernel, on the link's own files where the link has some. An arrival must wake
 * the thread that waits for it, and only that. Waits end no earlier than their time-out. No test checks that they end
 * soon, because a loaded machine is late.
 */
#define _GNU_SOURCE
#include <sys/syscall.h>

#include "conformance.h"

/* ---- wait_timeouts: the result of a wait without completions, which comes no earlier than the time-out */

void wait_timeouts_a(side *s)
{
    endpoint e, with_cq;
    VIP_DESCRIPTOR *d, *got;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    double start;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_connect(&e, "wait");
    /* Not NULL, so that the call has to set it. */
    got = (VIP_DESCRIPTOR *)&e;
    CHECK_RET(VipRecvWait(e.vi, VIP_INFINITE, &got), VIP_DESCRIPTOR_ERROR); /* an empty queue never gets better */
    CHECK(got == NULL);
    got = (VIP_DESCRIPTOR *)&e;
    CHECK_RET(VipSendWait(e.vi, VIP_INFINITE, &got), VIP_DESCRIPTOR_ERROR);
    CHECK(got == NULL);
    post_recv(&e, prep_recv(&e, d = descriptor(&e, 1), buffer(&e, 8), 8));
    /* 0: look once. */
    CHECK_RET(VipRecvWait(e.vi, 0, &got), VIP_TIMEOUT);
    start = check_now();
    CHECK_RET(VipRecvWait(e.vi, 30, &got), VIP_TIMEOUT);
    /* A little less than 30: clocks differ by their grain. */
    CHECK(check_now() - start >= 0.029);
    CHECK_RET(VipRecvDone(e.vi, &got), VIP_NOT_DONE); /* it is still posted */
    CHECK_OK(VipCreateCQ(s->nic, 16, &cq));
    CHECK_RET(VipCQDone(cq, &vi, &recv), VIP_NOT_DONE);
    CHECK_RET(VipCQWait(cq, 0, &vi, &recv), VIP_TIMEOUT);
    start = check_now();
    CHECK_RET(VipCQWait(cq, 30, &vi, &recv), VIP_TIMEOUT);
    CHECK(check_now() - start >= 0.029);
    /* A queue with a completion queue is waited for there. */
    endpoint_open_with(&with_cq, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096, 0, cq, cq);
    post_recv(&with_cq, prep_recv(&with_cq, descriptor(&with_cq, 1), NULL, 0));
    CHECK_RET(VipRecvWait(with_cq.vi, 10, &got), VIP_INVALID_STATE);
    CHECK_RET(VipDestroyCQ(cq), VIP_ERROR_RESOURCE);
    endpoint_close(&with_cq);
    CHECK_OK(VipDestroyCQ(cq));
    SIDE_SYNC(s, 1);
    CHECK_OK(VipRecvWait(e.vi, 1000 * CHECK_WAIT_S, &got));
    CHECK(got == d);
    endpoint_disconnect(&e);
    /* Only here B sends: the wait of a message that comes. */
    endpoint_close(&e);
}

void wait_timeouts_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d, *got;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    endpoint_connect(&e, "wait");
    SIDE_SYNC(s, 1);
    post_send(&e, prep_send(&e, d = descriptor(&e, 1), buffer(&e, 8), 8));
    CHECK_OK(VipSendWait(e.vi, 1000 * CHECK_WAIT_S, &got));
    CHECK(got == d);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- sleeper_woken: B really sleeps in the kernel before A sends; on a network the frame itself wakes it, without an
 * eventfd */

/* The thread's state, from the kernel: 'S' is asleep. */
static char thread_state(pid_t pid, pid_t tid)
{
    char path[64], text[512], *end;
    size_t n;
    FILE *f;
    snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)tid);
    f = fopen(path, "r");
    if (!f)
        return 0;
    n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = 0;
    end = strrchr(text, ')');
    return end && end[1] ? end[2] : 0;
}

void sleeper_woken_a(side *s)
{
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d;
        endpoint_open(&e, s, s->levels[i], 4096);
        d = descriptor(&e, 1);
        endpoint_connect(&e, "sleep");
        for (int k = 0; k < 20; k++) {
            pid_t tid;
            side_recv(s, &tid, sizeof(tid));
            /* B spins before it sleeps. Only when the kernel shows it asleep does the message leave. */
            WAIT_UNTIL(thread_state(s->peer_pid, tid) == 'S');
            post_send(&e, prep_send(&e, d, NULL, 0));
            reap_send(&e, d, VIP_STATUS_OP_SEND);
            SIDE_SYNC(s, k);
        }
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

void sleeper_woken_b(side *s)
{
    pid_t tid = (pid_t)syscall(SYS_gettid);
    for (int i = 0; i < s->n_levels; i++) {
        endpoint e;
        VIP_DESCRIPTOR *d, *got;
        VIP_UINT64 before[VIAKIT_N_COUNTERS], after[VIAKIT_N_COUNTERS];
        endpoint_open(&e, s, s->levels[i], 4096);
        d = descriptor(&e, 1);
        endpoint_connect(&e, "sleep");
        CHECK_OK(viakit_nic_counters(s->nic, before));
        for (int k = 0; k < 20; k++) {
            post_recv(&e, prep_recv(&e, d, NULL, 0));
            side_send(s, &tid, sizeof(tid));
            /* Half of the waits have an end of their own, far away. */
            CHECK_OK(VipRecvWait(e.vi, k & 1 ? VIP_INFINITE : (VIP_ULONG)(1000 * CHECK_WAIT_S), &got));
            CHECK(got == d);
            SIDE_SYNC(s, k);
        }
        /* A doorbell is how one process wakes another on a host's own links. On a network the frame itself wakes the
         * sleeper. */
        CHECK_OK(viakit_nic_counters(s->nic, after));
        if (strncmp(s->link->name, "eth", 3) == 0 || strncmp(s->link->name, "udp", 3) == 0)
            CHECK_EQ(after[VIAKIT_COUNTER_doorbells] - before[VIAKIT_COUNTER_doorbells], 0);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- completion_queue: several VIs, both kinds of queue; entries in the order of completion on each queue */

#define N_VIS 5
#define PER_VI 40

/* Both queues of every VI report to one completion queue, and both sides do the same at once. */
static void cq_ring(side *s)
{
    endpoint e[N_VIS];
    VIP_DESCRIPTOR *sd[N_VIS][PER_VI], *rd[N_VIS][PER_VI];
    VIP_CQ_HANDLE cq;
    int received[N_VIS] = {0}, sent[N_VIS] = {0};
    /* Room for every completion: an overflow would be CATASTROPHIC. */
    CHECK_OK(VipCreateCQ(s->nic, 2 * N_VIS * PER_VI, &cq));
    for (int i = 0; i < N_VIS; i++) {
        char name[16];
        snprintf(name, sizeof(name), "cq-%d", i);
        endpoint_open_with(&e[i], s, s->levels[i % s->n_burst_levels], PER_VI * 1024, 0, cq, cq);
        for (int k = 0; k < PER_VI; k++) {
            sd[i][k] = descriptor(&e[i], 1);
            post_recv(&e[i], prep_recv(&e[i], rd[i][k] = descriptor(&e[i], 1), buffer(&e[i], 100), 100));
        }
        endpoint_connect(&e[i], name);
    }
    SIDE_SYNC(s, 1);
    for (int k = 0; k < PER_VI; k++)
        for (int i = 0; i < N_VIS; i++)
            /* The contents do not matter here: 8 bytes from the start of the region. */
            post_send(&e[i], prep_send(&e[i], sd[i][k], e[i].mem, 8));
    for (int left = 2 * N_VIS * PER_VI; left > 0; left--) {
        VIP_VI_HANDLE vi = NULL;
        VIP_BOOLEAN recv = 7;
        VIP_DESCRIPTOR *d = NULL;
        int i = 0;
        /* Half of the entries by polling, half by waiting, in turns. */
        if (left % 2)
            WAIT_UNTIL(VipCQDone(cq, &vi, &recv) == VIP_SUCCESS);
        else
            CHECK_OK(VipCQWait(cq, 1000 * CHECK_WAIT_S, &vi, &recv));
        while (i < N_VIS && e[i].vi != vi)
            i++;
        CHECK(i < N_VIS);
        /* Exactly VIP_TRUE, not just something else than 0. */
        if (recv) {
            CHECK_EQ(recv, VIP_TRUE);
            CHECK_OK(VipRecvDone(vi, &d)); /* the entry promises that it is there */
            CHECK(d == rd[i][received[i]++]);
        } else {
            CHECK_OK(VipSendDone(vi, &d));
            CHECK(d == sd[i][sent[i]++]);
        }
    }
    /* Not one entry more than completions. */
    CHECK_RET(VipCQDone(cq, &(VIP_VI_HANDLE){0}, &(VIP_BOOLEAN){0}), VIP_NOT_DONE);
    SIDE_SYNC(s, 2);
    /* It is in use as long as VIs report to it. */
    CHECK_RET(VipDestroyCQ(cq), VIP_ERROR_RESOURCE);
    for (int i = 0; i < N_VIS; i++)
        endpoint_close(&e[i]);
    CHECK_OK(VipDestroyCQ(cq));
}

void completion_queue_a(side *s)
{
    cq_ring(s);
}

void completion_queue_b(side *s)
{
    cq_ring(s);
}

/* ---- cq_wait_thread: two threads of B sleep on two completion queues; each gets its own. Only one of them can sleep
 * on the link's files; what it finds there for the other it must pass on. */

struct cq_sleeper {
    VIP_CQ_HANDLE cq;
    endpoint e;
    VIP_DESCRIPTOR *d;
};

static void *sleep_on_cq(void *p)
{
    struct cq_sleeper *w = p;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    VIP_DESCRIPTOR *d;
    CHECK_OK(VipCQWait(w->cq, VIP_INFINITE, &vi, &recv));
    CHECK(vi == w->e.vi);
    CHECK_EQ(recv, VIP_TRUE);
    CHECK_OK(VipRecvDone(vi, &d));
    CHECK(d == w->d);
    return NULL;
}

/* A's second message is sent when the first thread still sleeps. */
void cq_wait_thread_a(side *s)
{
    endpoint e[2];
    for (int i = 0; i < 2; i++) {
        endpoint_open(&e[i], s, VIP_SERVICE_RELIABLE_RECEPTION, 4096);
        endpoint_connect(&e[i], i ? "cq two" : "cq one");
    }
    for (int i = 1; i >= 0; i--) { /* the second first: its thread must not depend on the other's */
        VIP_DESCRIPTOR *d = descriptor(&e[i], 1);
        SIDE_SYNC(s, i);
        post_send(&e[i], prep_send(&e[i], d, NULL, 0));
        reap_send(&e[i], d, VIP_STATUS_OP_SEND);
        SIDE_SYNC(s, 10 + i);
    }
    for (int i = 0; i < 2; i++)
        endpoint_close(&e[i]);
}

void cq_wait_thread_b(side *s)
{
    struct cq_sleeper w[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        CHECK_OK(VipCreateCQ(s->nic, 16, &w[i].cq));
        endpoint_open_with(&w[i].e, s, VIP_SERVICE_RELIABLE_RECEPTION, 4096, 0, NULL, w[i].cq);
        post_recv(&w[i].e, prep_recv(&w[i].e, w[i].d = descriptor(&w[i].e, 1), NULL, 0));
        endpoint_connect(&w[i].e, i ? "cq two" : "cq one");
        CHECK_EQ(pthread_create(&threads[i], NULL, sleep_on_cq, &w[i]), 0);
    }
    for (int i = 1; i >= 0; i--) {
        SIDE_SYNC(s, i);
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        SIDE_SYNC(s, 10 + i);
    }
    for (int i = 0; i < 2; i++) {
        endpoint_close(&w[i].e);
        CHECK_OK(VipDestroyCQ(w[i].cq));
    }
}

/* ---- interrupted: a thread's own callback ends its endless waits; nothing is lost by that */

/* Called between two slices of a wait; any other answer than 0 ends it, as if its time were over. */
static int third_time(void *context)
{
    int *calls = context;
    return ++*calls >= 3;
}

/* The callback's answer ends the wait although what was waited for is there by then: it is left for the next call. */
struct meanwhile {
    side *s;
    const VIP_DESCRIPTOR *d;
};

static int until_done(void *context)
{
    const struct meanwhile *m = context;
    /* Lets A send. */
    SIDE_SYNC(m->s, 2);
    WAIT_UNTIL(viakit_poll(m->s->nic, NULL) || __atomic_load_n(&m->d->CS.Status, __ATOMIC_ACQUIRE) & VIP_STATUS_DONE);
    return 1;
}

static void done_meanwhile(side *s, int waits)
{
    endpoint e;
    VIP_DESCRIPTOR *d, *got, *sd;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    if (waits)
        post_recv(&e, prep_recv(&e, d = descriptor(&e, 1), NULL, 0));
    endpoint_connect(&e, "meanwhile");
    if (waits) {
        struct meanwhile m = {s, d};
        viakit_set_interrupt(until_done, &m);
        CHECK_RET(VipRecvWait(e.vi, VIP_INFINITE, &got), VIP_TIMEOUT);
        viakit_set_interrupt(NULL, NULL);
        CHECK_OK(VipRecvDone(e.vi, &got));
        CHECK(got == d);
    } else {
        SIDE_SYNC(s, 2);
        post_send(&e, prep_send(&e, sd = descriptor(&e, 1), NULL, 0));
        reap_send(&e, sd, VIP_STATUS_OP_SEND);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void interrupted_both(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d, *got, *sd;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    VIP_CONN_HANDLE conn;
    VIP_VI_ATTRIBUTES attr;
    address local, remote;
    int calls = 0;
    /* VipRecvWait, VipCQWait and VipConnectWait: each calls the callback, each ends with TIMEOUT. */
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096);
    CHECK_OK(VipCreateCQ(s->nic, 16, &cq));
    post_recv(&e, prep_recv(&e, d = descriptor(&e, 1), NULL, 0));
    endpoint_connect(&e, "interrupt");
    viakit_set_interrupt(third_time, &calls);
    CHECK_RET(VipRecvWait(e.vi, VIP_INFINITE, &got), VIP_TIMEOUT);
    CHECK(calls >= 3);
    calls = 0;
    CHECK_RET(VipCQWait(cq, VIP_INFINITE, &vi, &recv), VIP_TIMEOUT);
    CHECK(calls >= 3);
    calls = 0;
    make_address(&local, s->attr.LocalNicAddress, "absent", 6);
    CHECK_RET(VipConnectWait(s->nic, &local.net, VIP_INFINITE, &remote.net, &attr, &conn), VIP_TIMEOUT);
    CHECK(calls >= 3);
    viakit_set_interrupt(NULL, NULL);
    /* The receive was waited for in vain, but not lost by that. */
    SIDE_SYNC(s, 1);
    post_send(&e, prep_send(&e, sd = descriptor(&e, 1), NULL, 0));
    CHECK_OK(VipRecvWait(e.vi, 1000 * CHECK_WAIT_S, &got));
    CHECK(got == d);
    reap_send(&e, sd, VIP_STATUS_OP_SEND);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    CHECK_OK(VipDestroyCQ(cq));
}

void interrupted_a(side *s)
{
    interrupted_both(s);
    done_meanwhile(s, 1);
}

void interrupted_b(side *s)
{
    interrupted_both(s);
    done_meanwhile(s, 0);
}

/* ---- no_thread: everything works when only calls drive the NIC, error handlers included */

static void no_thread_both(side *s)
{
    endpoint e;
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    CHECK_EQ(info.thread, 0);
    for (int i = 0; i < s->n_levels; i++) {
        VIP_DESCRIPTOR *rd, *sd;
        endpoint_open(&e, s, s->levels[i], 65536);
        rd = descriptor(&e, 1);
        sd = descriptor(&e, 1);
        endpoint_connect(&e, "no thread");
        for (int k = 0; k < 50; k++) {
            post_recv(&e, prep_recv(&e, rd, e.mem, 0));
            SIDE_SYNC(s, k);
            post_send(&e, prep_send(&e, sd, NULL, 0));
            reap_recv(&e, rd, VIP_STATUS_OP_RECEIVE);
            reap_send(&e, sd, VIP_STATUS_OP_SEND);
        }
        /* Errors are reported from within calls as well, because there is no other thread. */
        SIDE_SYNC(s, 100);
        if (s->role == SIDE_A) {
            CHECK_OK(VipDisconnect(e.vi));
        } else {
            wait_error(s, VIP_ERROR_CONN_LOST, i + 1);
            CHECK_EQ(vi_state(e.vi), VIP_STATE_ERROR);
        }
        SIDE_SYNC(s, 101);
        endpoint_close(&e);
    }
}

void no_thread_a(side *s)
{
    no_thread_both(s);
}

void no_thread_b(side *s)
{
    no_thread_both(s);
}

/* ---- opened_twice: one process opens the NIC twice; a thread sleeps on the one while another works on the other. On
 * shm and UDP of one host both NICs are at one station: frames must find the right one. */

/* The other side may be the first to disconnect: its goodbye is no error of the test's. */
static void count_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    if (error->ErrorCode != VIP_ERROR_CONN_LOST)
        atomic_fetch_add((atomic_int *)context, 1);
}

static void opened_twice_both(side *s)
{
    side second = *s;
    atomic_int n_errors = 0;
    struct cq_sleeper w;
    pthread_t thread;
    endpoint e;
    VIP_DESCRIPTOR *rd, *sd;
    CHECK_OK(viakit_open_nic(s->device, &s->options, &second.nic));
    CHECK(second.nic != s->nic);
    CHECK_OK(VipErrorCallback(second.nic, &n_errors, count_error));
    CHECK_OK(VipQueryNic(second.nic, &second.attr));
    /* The same host address: the NICs differ by their ports. */
    CHECK(!memcmp(second.attr.LocalNicAddress, s->attr.LocalNicAddress, 6));
    CHECK_OK(VipCreateCQ(s->nic, 16, &w.cq));
    endpoint_open_with(&w.e, s, VIP_SERVICE_RELIABLE_DELIVERY, 4096, 0, NULL, w.cq);
    post_recv(&w.e, prep_recv(&w.e, w.d = descriptor(&w.e, 1), NULL, 0));
    endpoint_connect(&w.e, "sleeping");
    CHECK_EQ(pthread_create(&thread, NULL, sleep_on_cq, &w), 0);
    endpoint_open(&e, &second, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    rd = descriptor(&e, 1);
    sd = descriptor(&e, 1);
    endpoint_connect(&e, "working");
    /* 200 rounds on the second NIC; the sleeper of the first one must neither wake nor be lost. */
    for (int k = 0; k < 200; k++) {
        post_recv(&e, prep_recv(&e, rd, NULL, 0));
        SIDE_SYNC(&second, k);
        post_send(&e, prep_send(&e, sd, NULL, 0));
        reap_recv(&e, rd, VIP_STATUS_OP_RECEIVE);
        reap_send(&e, sd, VIP_STATUS_OP_SEND);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
    /* Now its message. */
    sd = descriptor(&w.e, 1);
    post_send(&w.e, prep_send(&w.e, sd, NULL, 0));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    reap_send(&w.e, sd, VIP_STATUS_OP_SEND);
    SIDE_SYNC(s, 999);
    endpoint_close(&w.e);
    CHECK_OK(VipDestroyCQ(w.cq));
    CHECK_OK(VipCloseNic(second.nic));
    /* The end of its connection was all that the second NIC had to report. */
    CHECK_EQ(atomic_load(&n_errors), 0);
}

void opened_twice_a(side *s)
{
    opened_twice_both(s);
}

void opened_twice_b(side *s)
{
    opened_twice_both(s);
}
