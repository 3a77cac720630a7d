/*
 * faults_delay.c - connections whose round trip is longer than the first time-outs retransmit nothing for that reason,
 * and their window grows.
 *
 * Only B delays its frames, so each message of A is acknowledged that much later. (A request to every NIC of a station
 * is never delayed, so with a delay on both sides A's handshake would show half of the round trip.)
 */
#include "test_faults.h"

#define N_TIMED 20
#define N_LEARNT 10 /* messages until the round trip is measured, if the handshake did not show it */
#define ALLOWED 5   /* retransmissions: a busy machine may stop a process for longer than a time-out */

/* Connect with these faults on this side, which stay. */
static void meet_under(endpoint *e, side *s, const char *faults, int n)
{
    set_faults(s, faults);
    endpoint_open(e, s, VIP_SERVICE_RELIABLE_RECEPTION, 65536 + (size_t)(n + 1) * (ROOM + 512));
    for (int i = 0; i < n; i++)
        post_recv(e, prep_recv(e, descriptor(e, 1), buffer(e, ROOM), ROOM));
    endpoint_connect(e, "faults");
    SIDE_SYNC(s, 1);
}

/* Send messages, each when the last one is acknowledged. Return how many frames were retransmitted. */
static uint64_t send_in_turn(endpoint *e, VIP_DESCRIPTOR *d, uint8_t *data, uint32_t from, uint32_t to)
{
    uint64_t before = nic_counter(e->s, VIAKIT_COUNTER_frames_retransmitted);
    for (uint32_t i = from; i < to; i++)
        send_number(e, d, data, 100, i);
    return nic_counter(e->s, VIAKIT_COUNTER_frames_retransmitted) - before;
}

/* Receive n messages. The next sync waits until the last one is acknowledged. */
static void receive_in_turn(side *s, endpoint *e, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        CHECK_EQ(receive_number(e), i);
    SIDE_SYNC(s, 2);
    leave(e);
}

/* ---- slow: the handshake shows the round trip before the first message */

void slow_a(side *s)
{
    endpoint e;
    meet_under(&e, s, "", 0);
    CHECK(send_in_turn(&e, descriptor(&e, 1), buffer(&e, 100), 0, N_TIMED) <= ALLOWED);
    SIDE_SYNC(s, 2);
    leave(&e);
}

void slow_b(side *s)
{
    endpoint e;
    meet_under(&e, s, "delay=20ms", N_TIMED);
    receive_in_turn(s, &e, N_TIMED);
}

/* ---- slower: the round trip grows after the handshake; the back-off stays until it is measured */

void slower_a(side *s)
{
    endpoint e;
    meet_under(&e, s, "", 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 100);
    SIDE_SYNC(s, 3);
    send_in_turn(&e, d, data, 0, N_LEARNT);
    CHECK(send_in_turn(&e, d, data, N_LEARNT, N_LEARNT + N_TIMED) <= ALLOWED);
    SIDE_SYNC(s, 2);
    leave(&e);
}

void slower_b(side *s)
{
    endpoint e;
    meet_under(&e, s, "", N_LEARNT + N_TIMED);
    set_faults(s, "delay=20ms");
    SIDE_SYNC(s, 3);
    receive_in_turn(s, &e, N_LEARNT + N_TIMED);
}

/* ---- far, far_limited: over a long wire the window grows beyond its usual size, but not if the program has set it */

#define N_FAR 900
#define FAR_WINDOW 16

void far_window(viakit_nic_options *o)
{
    o->window = FAR_WINDOW;
}

/* Post all messages at once. Return the largest window while they were acknowledged. */
static uint32_t largest_window(endpoint *e)
{
    VIP_DESCRIPTOR *d[N_FAR];
    uint8_t *data = buffer(e, N_FAR * 64);
    uint32_t most = 0;
    viakit_vi_info info;
    for (uint32_t i = 0; i < N_FAR; i++)
        post_number(e, d[i] = descriptor(e, 1), data + (size_t)64 * i, 64, i);
    for (uint32_t i = 0; i < N_FAR; i++) {
        reap_send(e, d[i], VIP_STATUS_IMMEDIATE);
        CHECK_OK(viakit_query_vi(e->vi, &info));
        most = info.window > most ? info.window : most;
    }
    return most;
}

void far_a(side *s)
{
    endpoint e;
    viakit_nic_info info;
    set_faults(s, "");
    endpoint_open(&e, s, VIP_SERVICE_RELIABLE_RECEPTION, 65536 + (size_t)N_FAR * 1024);
    endpoint_connect(&e, "faults");
    SIDE_SYNC(s, 1);
    CHECK_OK(viakit_query_nic(s->nic, &info));
    uint32_t most = largest_window(&e), batch = info.super_payload / info.max_payload;
    /* A ring of super-frames holds no more than the usual window. */
    if (info.window == FAR_WINDOW || info.ring_slots * 3 / 4 <= info.window || 2016 / batch <= info.window)
        CHECK_EQ(most, info.window);
    else
        CHECK(most > info.window);
    SIDE_SYNC(s, 2);
    leave(&e);
}

void far_b(side *s)
{
    endpoint e;
    meet_under(&e, s, "delay=10ms", N_FAR);
    receive_in_turn(s, &e, N_FAR);
}

void far_limited_a(side *s)
{
    far_a(s);
}

void far_limited_b(side *s)
{
    far_b(s);
}
