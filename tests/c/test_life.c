/*
 * test_life.c - failures of programs, hosts and wires, and what each side observes: test_life LINK [CASE...], see
 * harness.h for LINK.
 *
 * docs/faults.md has the table. Each line of it is a case here, in life_end.c, in life_wire.c, or in the conformance
 * suite (peer_killed, no_receive). A case causes a failure of the other side (SIGSTOP, an interface that goes down) and
 * waits for its observable effect: a number of time-outs, an error, a state, never a time.
 *
 * The short form opens NICs with short time-outs, so that a connection to a silent peer is lost in less than a second.
 * VIAKIT_LONG=1 selects the defaults and ten seconds of silence. VIAKIT_CYCLES is the number of connections in
 * `cycles`.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "test_life.h"

static int long_form(void)
{
    return getenv("VIAKIT_LONG") != NULL;
}

void life_impatient(viakit_nic_options *o)
{
    if (long_form())
        return;
    o->keepalive_ms = 50;
    o->max_retries = 4; /* lost after 10 + 20 + 40 + 80 + 160 ms */
}

static int is_network(const side *s)
{
    return s->link->kind >= ON_ETH;
}

/* ---------------------------------------------------------------- a round of messages with numbers */

/* Two of three messages are short. */
void life_prepare(endpoint *e, side *s, VIP_DESCRIPTOR *d[LIFE_MESSAGES], VIP_RELIABILITY_LEVEL level, int n_rounds)
{
    endpoint_open(e, s, level, 65536 + (size_t)(n_rounds * LIFE_MESSAGES + 1) * (ROOM + 512));
    for (int round = 0; round < n_rounds; round++)
        for (int i = 0; i < LIFE_MESSAGES; i++) {
            VIP_DESCRIPTOR *one = descriptor(e, 1);
            uint8_t *data = buffer(e, ROOM);
            if (s->role == SIDE_B)
                post_recv(e, prep_recv(e, one, data, ROOM));
            else {
                prep_send(e, one, data, i % 3 ? 40 : ROOM);
                pattern_fill(data, ROOM, (uint64_t)i);
            }
            if (d && round == 0)
                d[i] = one;
        }
}

/* Reset the descriptors, which may have been used before, and post them. */
void life_post_all(endpoint *e, VIP_DESCRIPTOR *d[LIFE_MESSAGES])
{
    for (int i = 0; i < LIFE_MESSAGES; i++) {
        d[i]->CS.Control = VIP_CONTROL_OP_SENDRECV | VIP_CONTROL_IMMEDIATE;
        d[i]->CS.Status = 0;
        d[i]->CS.ImmediateData = (VIP_UINT32)i;
        d[i]->CS.Length = d[i]->DS[0].Local.Length;
        post_send(e, d[i]);
    }
}

void life_all_sent(endpoint *e, VIP_DESCRIPTOR *d[LIFE_MESSAGES])
{
    for (int i = 0; i < LIFE_MESSAGES; i++) {
        CHECK(next_send(e) == d[i]);
        CHECK_EQ(d[i]->CS.Status & VIP_STATUS_ERROR_MASK, 0);
    }
}

void life_all_received(endpoint *e)
{
    for (int i = 0; i < LIFE_MESSAGES; i++) {
        VIP_DESCRIPTOR *d = next_recv(e);
        CHECK_EQ(d->CS.Status & VIP_STATUS_ERROR_MASK, 0);
        CHECK_EQ(d->CS.ImmediateData, i);
        CHECK_EQ(d->CS.Length, i % 3 ? 40 : ROOM);
        pattern_check(d->DS[0].Local.Data.Address, d->CS.Length, (uint64_t)i);
    }
}

void life_feel_silence(void)
{
    double end = check_now() + (long_form() ? 10 : 0.25);
    while (check_now() < end)
        sched_yield();
}

/* The connection is lost: CONN_LOST is reported n_errors times on this side, the VI is in state ERROR, and its queues
 * can be drained after VipDisconnect. The VI is then idle. */
void life_over(endpoint *e, int n_errors)
{
    wait_error(e->s, VIP_ERROR_CONN_LOST, n_errors);
    wait_state(e, VIP_STATE_ERROR);
    CHECK_OK(VipDisconnect(e->vi));
    drain(e->vi);
    CHECK_EQ(vi_state(e->vi), VIP_STATE_IDLE);
}

/* For the test's output only. */
void life_report(side *s, const char *what, double since)
{
    printf("       %s %s %c: %s after %.2f s\n", s->link->name, s->test->name, s->role == SIDE_A ? 'A' : 'B', what,
           check_now() - since);
    fflush(stdout);
}

/* ---- stopped: B is stopped for a while and then continues. The connection survives, and no message is missing. */

static void stopped_a(side *s)
{
    for (int level = 0; level < 2; level++) {
        endpoint e;
        VIP_DESCRIPTOR *d[LIFE_MESSAGES];
        life_prepare(&e, s, d, s->levels[level], 1);
        endpoint_connect(&e, "stopped");
        SIDE_SYNC(s, 1);
        /* B is stopped and acknowledges nothing: A must have had a time-out before B goes on. */
        uint64_t before = nic_counter(s, VIAKIT_COUNTER_timeouts);
        CHECK_EQ(kill(s->peer_pid, SIGSTOP), 0);
        life_post_all(&e, d);
        double end = check_now() + 0.25;
        if (is_network(s))
            WAIT_UNTIL(nic_counter(s, VIAKIT_COUNTER_timeouts) >= before + 3);
        else
            while (check_now() < end)
                sched_yield();
        CHECK_EQ(kill(s->peer_pid, SIGCONT), 0);
        life_all_sent(&e, d);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* B knows nothing of it. */
static void stopped_b(side *s)
{
    for (int level = 0; level < 2; level++) {
        endpoint e;
        life_prepare(&e, s, NULL, s->levels[level], 1);
        endpoint_connect(&e, "stopped");
        SIDE_SYNC(s, 1);
        life_all_received(&e);
        endpoint_disconnect(&e);
        endpoint_close(&e);
    }
}

/* ---- withdrawn: B is stopped in VipConnectWait while A requests, gives up, and requests again later. B does not get
 * the request that A has given up */

/* B's thread must be in VipConnectWait, and all of B asleep, when A's request arrives and is given up: B's queue then
 * holds a withdrawn request. */
static void withdrawn_a(side *s)
{
    endpoint e;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_NIC_HANDLE other;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_connect(&e, "first"); /* the two NICs know each other from here on */
    endpoint_disconnect(&e);
    CHECK_OK(viakit_open_nic(s->device, &s->options, &other)); /* on one host: a NIC that replies that no VI waits */
    make_address(&local, s->attr.LocalNicAddress, "me", 2);
    make_address(&remote, s->peer_host, "second", 6);
    SIDE_SYNC(s, 1);
    CHECK_EQ(kill(s->peer_pid, SIGSTOP), 0);
    WAIT_UNTIL(life_stands_still(s->peer_pid));
    /* NO_MATCH or TIMEOUT: on one host the other NIC at A's side replies that no VI waits there. */
    VIP_RETURN r = VipConnectRequest(e.vi, &local.net, &remote.net, 500, &attr);
    CHECK(r == VIP_NO_MATCH || r == VIP_TIMEOUT);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_IDLE);
    CHECK_EQ(kill(s->peer_pid, SIGCONT), 0);
    /* B goes on, finds the old request and the new one, and may answer the new one only. */
    WAIT_UNTIL((r = VipConnectRequest(e.vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr)) != VIP_NO_MATCH);
    CHECK_OK(r);
    SIDE_SYNC(s, 2);
    /* After the sync B has answered whatever it meant to answer. */
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    SIDE_SYNC(s, 3);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    CHECK_OK(VipCloseNic(other));
}

static void *wait_for_second(void *argument)
{
    endpoint_accept(argument, "second");
    return NULL;
}

static void withdrawn_b(side *s)
{
    static char text[65536];
    endpoint e;
    pthread_t thread;
    size_t len;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    endpoint_connect(&e, "first");
    endpoint_disconnect(&e);
    CHECK_EQ(pthread_create(&thread, NULL, wait_for_second, &e), 0);
    /* The snapshot shows that the thread is in its call. */
    WAIT_UNTIL(viakit_snapshot(s->nic, text, sizeof(text), &len) == VIP_SUCCESS && strstr(text, "\"waiting\""));
    SIDE_SYNC(s, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    SIDE_SYNC(s, 2);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    SIDE_SYNC(s, 3);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- stopped_long: B stands still for longer than a connection over a network lives. On shm it lives: the process
 * is there */

static void stopped_long_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES];
    life_prepare(&e, s, d, VIP_SERVICE_RELIABLE_RECEPTION, 1);
    endpoint_connect(&e, "stopped");
    SIDE_SYNC(s, 1);
    CHECK_EQ(kill(s->peer_pid, SIGSTOP), 0);
    life_post_all(&e, d);
    /* Over a network silence ends the connection, and A does not wait for B to go on. */
    double begin = check_now();
    if (is_network(s)) {
        life_over(&e, 1);
        life_report(s, "given up", begin);
        while (long_form() && check_now() < begin + 10)
            sched_yield();
    } else
        life_feel_silence();
    CHECK_EQ(kill(s->peer_pid, SIGCONT), 0);
    if (!is_network(s))
        life_all_sent(&e, d);
    SIDE_SYNC(s, 2);
    /* If the connection was lost, B need not end it. */
    if (!is_network(s))
        endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void stopped_long_b(side *s)
{
    endpoint e;
    life_prepare(&e, s, NULL, VIP_SERVICE_RELIABLE_RECEPTION, 1);
    endpoint_connect(&e, "stopped");
    SIDE_SYNC(s, 1);
    if (is_network(s))
        life_over(&e, 1); /* A was silent, too, or says that it knows of no such connection */
    else
        life_all_received(&e);
    SIDE_SYNC(s, 2);
    if (!is_network(s))
        endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- ring_full: B does not look at all, its ring is small, and there is no thread that would look for it */

static void small_and_alone(viakit_nic_options *o)
{
    /* 16 frames, and a window of four times that: what is sent at once cannot have room. */
    o->ring_slots = 16;
    o->window = 64;
}

static void ring_full_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES];
    life_prepare(&e, s, d, VIP_SERVICE_RELIABLE_RECEPTION, 1);
    endpoint_connect(&e, "full");
    SIDE_SYNC(s, 1);
    uint64_t before = nic_counter(s, VIAKIT_COUNTER_timeouts);
    life_post_all(&e, d);
    double end = check_now() + 0.1;
    /* On a network the peer's ring drops what it has no room for, which time-outs show; elsewhere the sender waits. */
    WAIT_UNTIL(viakit_poll(s->nic, NULL) != VIP_SUCCESS ||
               (is_network(s) ? nic_counter(s, VIAKIT_COUNTER_timeouts) >= before + 2 : check_now() > end));
    /* B may look now. */
    CHECK_EQ(send(s->ctl, "", 1, 0), 1);
    life_all_sent(&e, d);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void ring_full_b(side *s)
{
    endpoint e;
    life_prepare(&e, s, NULL, VIP_SERVICE_RELIABLE_RECEPTION, 1);
    endpoint_connect(&e, "full");
    SIDE_SYNC(s, 1);
    CHECK_EQ(recv(s->ctl, &(char){0}, 1, 0), 1); /* not by side_recv(), which looks at the NIC meanwhile */
    life_all_received(&e);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- computing: A computes while its NIC's thread owes B an acknowledgement for which B, which does not look, has
 * no room. A's calls return all the same */

#define MANY 200

static void computing_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[MANY], *got, *one;
    side threaded = *s;
    threaded.options.no_thread = 0; /* A's own NIC has none, for B has none */
    CHECK_OK(viakit_open_nic(s->device, &threaded.options, &threaded.nic));
    endpoint_open(&e, &threaded, VIP_SERVICE_RELIABLE_RECEPTION, (MANY + 3) * 512 + 1024);
    uint8_t *data = buffer(&e, 1000);
    post_recv(&e, prep_recv(&e, got = descriptor(&e, 1), buffer(&e, 8), 8));
    post_recv(&e, prep_recv(&e, descriptor(&e, 1), NULL, 0)); /* nothing comes for it */
    endpoint_connect(&e, "computing");
    for (int i = 0; i < MANY; i++)
        post_send(&e, prep_send(&e, d[i] = descriptor(&e, 1), data, 1000)); /* more than B has room for */
    CHECK_EQ(send(s->ctl, "", 1, 0), 1);
    /* B's message arrives all the same, as it needs room at A's; the acknowledgement that A then owes cannot leave.
     * Every call in the loop has to return. */
    for (int i = 0; i < 20; i++) { /* the first of them until B's message is here */
        double end = check_now() + 0.002, last = check_now() + CHECK_WAIT_S;
        while (check_now() < end || (__atomic_load_n(&got->CS.Status, __ATOMIC_ACQUIRE) == 0 && check_now() < last)) {}
        CHECK_RET(VipRecvDone(e.vi, &one), i == 0 ? VIP_SUCCESS : VIP_NOT_DONE);
    }
    CHECK_EQ(send(s->ctl, "", 1, 0), 1);
    for (int i = 0; i < MANY; i++)
        reap_send(&e, d[i], VIP_STATUS_OP_SEND);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    CHECK_OK(VipCloseNic(threaded.nic));
}

static void computing_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[MANY], *one;
    char word;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, MANY * 512 + MANY * 1152);
    one = descriptor(&e, 1);
    for (int i = 0; i < MANY; i++)
        post_recv(&e, prep_recv(&e, d[i] = descriptor(&e, 1), buffer(&e, 1000), 1000));
    endpoint_connect(&e, "computing");
    /* Once: the connection is made, the rest must wait in the ring. */
    CHECK_OK(viakit_poll(s->nic, NULL));
    CHECK_EQ(recv(s->ctl, &word, 1, 0), 1); /* not by side_recv(), which looks at the NIC meanwhile */
    post_send(&e, prep_send(&e, one, NULL, 0));
    CHECK_EQ(recv(s->ctl, &word, 1, 0), 1);
    for (int i = 0; i < MANY; i++)
        reap_recv(&e, d[i], VIP_STATUS_OP_RECEIVE);
    reap_send(&e, one, VIP_STATUS_OP_SEND);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- slow_receiver: B looks once in a while; it posts a receive only when it has taken one, and grants each by a
 * message */

static void slow_receiver_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES], *grant;
    life_prepare(&e, s, d, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    grant = descriptor(&e, 1);
    post_recv(&e, prep_recv(&e, grant, NULL, 0));
    endpoint_connect(&e, "slow");
    /* A sends one message per grant, so B never has more than one receive. */
    for (int i = 0; i < LIFE_MESSAGES; i++) {
        post_send(&e, d[i]);
        CHECK(next_send(&e) == d[i]);
        CHECK_EQ(d[i]->CS.Status & VIP_STATUS_ERROR_MASK, 0);
        reap_recv(&e, grant, VIP_STATUS_OP_RECEIVE);
        post_recv(&e, prep_recv(&e, grant, NULL, 0));
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

static void slow_receiver_b(side *s)
{
    endpoint e;
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    VIP_DESCRIPTOR *d = descriptor(&e, 1), *grant = descriptor(&e, 1);
    uint8_t *data = buffer(&e, ROOM);
    post_recv(&e, prep_recv(&e, d, data, ROOM));
    endpoint_connect(&e, "slow");
    for (int i = 0; i < LIFE_MESSAGES; i++) {
        /* Every eighth time for so long that time-outs pass at the sender. */
        double end = check_now() + (i % 8 ? 0.0005 : 0.02);
        while (check_now() < end) /* computes */
            ;
        CHECK(next_recv(&e) == d);
        pattern_check(data, i % 3 ? 40 : ROOM, (uint64_t)i);
        post_recv(&e, prep_recv(&e, d, data, ROOM));
        post_send(&e, prep_send(&e, grant, NULL, 0));
        reap_send(&e, grant, VIP_STATUS_OP_SEND);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- thousand: a thousand VIs on one NIC, each with a connection and a message in each direction */

#define THOUSAND (1000 / CHECK_SLOWER)

static void thousand_both(side *s)
{
    VIP_PROTECTION_HANDLE tag;
    VIP_MEM_HANDLE handle;
    VIP_VI_HANDLE *vi = calloc(THOUSAND, sizeof(*vi));
    /* Per VI: a receive, a send, and 8 bytes of data for each. */
    size_t each = 256, size = THOUSAND * each;
    uint8_t *memory = aligned_alloc(4096, (size + 4095) & ~4095ul);
    VIP_MEM_ATTRIBUTES rights;
    /* Just enough of an endpoint for the functions of the harness. */
    endpoint e = {.s = s};
    CHECK(vi != NULL && memory != NULL);
    CHECK_OK(VipCreatePtag(s->nic, &tag));
    memset(&rights, 0, sizeof(rights));
    rights.Ptag = tag;
    CHECK_OK(VipRegisterMem(s->nic, memory, size, &rights, &handle));
    e.mh = handle;
    for (int i = 0; i < THOUSAND; i++) {
        VIP_VI_ATTRIBUTES a = {.ReliabilityLevel = s->levels[i % 2], .Ptag = tag};
        VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)(memory + (size_t)i * each);
        char name[32];
        snprintf(name, sizeof(name), "thousand-%d", i);
        CHECK_OK(VipCreateVi(s->nic, &a, NULL, NULL, &vi[i]));
        e.vi = vi[i];
        CHECK_OK(VipQueryVi(vi[i], &(VIP_VI_STATE){VIP_STATE_IDLE}, &e.attr, &(VIP_BOOLEAN){VIP_FALSE},
                            &(VIP_BOOLEAN){VIP_FALSE}));
        CHECK_OK(VipPostRecv(vi[i], prep_recv(&e, d, memory + (size_t)i * each + 192, 8), handle));
        endpoint_connect(&e, name);
    }
    SIDE_SYNC(s, 1);
    /* A upwards, B downwards: each message has to find its VI among a thousand that wait. */
    for (int k = 0; k < THOUSAND; k++) {
        int i = s->role == SIDE_A ? k : THOUSAND - 1 - k;
        VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)(memory + (size_t)i * each + 64);
        uint64_t word = (uint64_t)i * 2 + s->role;
        memcpy(memory + (size_t)i * each + 200, &word, 8);
        CHECK_OK(VipPostSend(vi[i], prep_send(&e, d, memory + (size_t)i * each + 200, 8), handle));
    }
    for (int i = 0; i < THOUSAND; i++) {
        uint64_t word;
        e.vi = vi[i];
        CHECK_EQ(next_recv(&e)->CS.Status & VIP_STATUS_ERROR_MASK, 0);
        CHECK_EQ(next_send(&e)->CS.Status & VIP_STATUS_ERROR_MASK, 0);
        memcpy(&word, memory + (size_t)i * each + 192, 8);
        CHECK_EQ(word, i * 2 + !s->role);
    }
    SIDE_SYNC(s, 2);
    for (int i = 0; i < THOUSAND; i++) {
        CHECK_OK(VipDisconnect(vi[i]));
        CHECK_OK(VipDestroyVi(vi[i]));
    }
    CHECK_OK(VipDeregisterMem(s->nic, memory, handle));
    CHECK_OK(VipDestroyPtag(s->nic, tag));
    free(memory);
    free(vi);
}

/* ---- cycles: many connections one after the other. Memory and other resources do not grow with their number. */

static size_t peak_memory(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (size_t)u.ru_maxrss << 10;
}

/* Memory may grow at first, for buffers and tables; in the second half not with the number of connections. */
static void cycles_both(side *s)
{
    const char *given = getenv("VIAKIT_CYCLES");
    int n = given ? atoi(given) : (is_network(s) ? 400 : 2000) / CHECK_SLOWER;
    size_t warm = 0;
    endpoint e;
    viakit_live before, after;
    check_deadline((unsigned)(60 + n / 50));
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 65536);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 64);
    double begin = check_now();
    SIDE_SYNC(s, 1);
    /* Counted while neither side is connected. */
    viakit_live_objects(&before);
    SIDE_SYNC(s, 5);
    for (int i = 0; i < n; i++) {
        if (s->role == SIDE_B)
            post_recv(&e, prep_recv(&e, d, data, 64));
        endpoint_connect(&e, "cycle");
        if (s->role == SIDE_A) {
            pattern_fill(data, 64, (uint64_t)i);
            post_send(&e, prep_send(&e, d, data, 64));
            reap_send(&e, d, VIP_STATUS_OP_SEND);
        } else {
            reap_recv(&e, d, VIP_STATUS_OP_RECEIVE);
            pattern_check(data, 64, (uint64_t)i);
        }
        SIDE_SYNC(s, 2);
        CHECK_OK(VipDisconnect(e.vi));
        drain(e.vi);
        if (i == n / 2)
            warm = peak_memory();
    }
    SIDE_SYNC(s, 3);
    viakit_live_objects(&after);
    printf("       %s cycles %c: %d connections, %.0f us each; peak memory %.1f MiB, %.1f since half; %u requests "
           "remembered\n",
           s->link->name, s->role == SIDE_A ? 'A' : 'B', n, (check_now() - begin) / n * 1e6,
           (double)peak_memory() / 1048576, (double)(peak_memory() - warm) / 1048576, after.connections);
    fflush(stdout);
    /* 16 MiB: more than the allocator's moods, and less than a kilobyte for each connection of a long run. */
    CHECK(peak_memory() - warm < (16u << 20));
    SIDE_SYNC(s, 4);
    CHECK_EQ(after.vis, before.vis);
    CHECK_EQ(after.regions, before.regions);
    endpoint_close(&e);
}

#define BOTH(name)                \
    static void name##_a(side *s) \
    {                             \
        name##_both(s);           \
    }                             \
    static void name##_b(side *s) \
    {                             \
        name##_both(s);           \
    }

BOTH(thousand)
BOTH(cycles)

static const test_case cases[] = {
    {"client_killed", client_killed_a, client_killed_b, CASE_NO_LOOP | CASE_KILLS_B, life_impatient},
#ifndef __SANITIZE_THREAD__ /* which does not bear threads in the child of a fork */
    {"left", left_a, left_b, CASE_NO_LOOP, life_impatient},
#endif
    {"outlived", outlived_a, outlived_b, CASE_NO_LOOP | CASE_KILLS_B, life_impatient},
    {"closed", closed_a, closed_b, CASE_NO_LOOP | CASE_NO_ETH, NULL},
    {"callers_gone", callers_gone_a, callers_gone_b, CASE_NO_LOOP | CASE_NO_ETH, NULL},
    {"stopped", stopped_a, stopped_b, CASE_NO_LOOP, NULL},
    {"withdrawn", withdrawn_a, withdrawn_b, CASE_NO_LOOP, NULL},
    {"stopped_long", stopped_long_a, stopped_long_b, CASE_NO_LOOP, life_impatient},
    {"stopped_idle", stopped_idle_a, stopped_idle_b, CASE_NO_LOOP, life_impatient_and_small},
    {"interface_down", interface_down_a, interface_down_b, CASE_ONLY_NETWORK, NULL},
    {"interface_down_long", interface_down_long_a, interface_down_long_b, CASE_ONLY_NETWORK, NULL},
    {"mtu_lowered", mtu_lowered_a, mtu_lowered_b, CASE_ONLY_NETWORK, NULL},
    {"mtu_raised", mtu_raised_a, mtu_raised_b, CASE_ONLY_NETWORK, NULL},
    {"ring_full", ring_full_a, ring_full_b, CASE_NO_THREAD, small_and_alone},
    {"computing", computing_a, computing_b, CASE_NO_THREAD, small_and_alone},
    {"slow_receiver", slow_receiver_a, slow_receiver_b, 0, NULL},
    {"thousand", thousand_a, thousand_b, 0, NULL},
    {"cycles", cycles_a, cycles_b, 0, NULL},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
