/*
 * test_faults.h - the connection, the numbered messages and the faults of the cases of test_faults.
 */
#ifndef TEST_FAULTS_H
#define TEST_FAULTS_H

#include "harness.h"

/* Parse faults in the form of docs/faults.md. */
static inline viakit_faults faults_of(const char *text)
{
    viakit_faults f = {.size = sizeof(f)};
    if (viakit_parse_faults(text, &f) != VIP_SUCCESS)
        FAIL("'%s' was not understood", text);
    return f;
}

static inline void set_faults(side *s, const char *text)
{
    viakit_faults f = faults_of(text);
    CHECK_OK(viakit_set_faults(s->nic, &f));
}

#define ROOM 4096 /* bytes of a buffer */

/* Connect the two sides, with n posted receives of `room` bytes each. Faults are active during the connection, so that
 * it does not rely on the link. There is memory for one more message. */
static inline void meet_with(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, int n, size_t room)
{
    set_faults(s, "");
    endpoint_open(e, s, level, 65536 + (size_t)(n + 1) * (room + 512));
    for (int i = 0; i < n; i++)
        post_recv(e, prep_recv(e, descriptor(e, 1), buffer(e, room), room));
    endpoint_connect(e, "faults");
    CHECK_OK(viakit_set_faults(s->nic, NULL));
    SIDE_SYNC(s, 100);
}

static inline void meet(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, int n)
{
    meet_with(e, s, level, n, ROOM);
}

/* Remove this side's faults, so that its disconnect is not lost, and disconnect. */
static inline void leave(endpoint *e)
{
    CHECK_OK(viakit_set_faults(e->s->nic, NULL));
    endpoint_disconnect(e);
    endpoint_close(e);
}

/* Post one message. Its data is derived from its number. */
static inline void post_number(endpoint *e, VIP_DESCRIPTOR *d, uint8_t *data, size_t len, uint32_t number)
{
    pattern_fill(data, len, number);
    prep_send(e, d, data, len);
    d->CS.Control |= VIP_CONTROL_IMMEDIATE;
    d->CS.ImmediateData = number;
    post_send(e, d);
}

/* Post one message and wait until it is complete. */
static inline void send_number(endpoint *e, VIP_DESCRIPTOR *d, uint8_t *data, size_t len, uint32_t number)
{
    post_number(e, d, data, len, number);
    CHECK(next_send(e) == d);
    CHECK_EQ(d->CS.Status & VIP_STATUS_ERROR_MASK, 0);
}

/* Receive the next message, check its data, and return its number. */
static inline uint32_t receive_number(endpoint *e)
{
    VIP_DESCRIPTOR *d = next_recv(e);
    CHECK_EQ(d->CS.Status & VIP_STATUS_ERROR_MASK, 0);
    pattern_check(d->DS[0].Local.Data.Address, d->CS.Length, d->CS.ImmediateData);
    return d->CS.ImmediateData;
}

/* Side B of cases in which A sends one message. */
static inline void one_number_b(side *s, VIP_RELIABILITY_LEVEL level, uint32_t number)
{
    endpoint e;
    meet(&e, s, level, 1);
    CHECK_EQ(receive_number(&e), number);
    SIDE_SYNC(s, 1);
    leave(&e);
}

/* Return whether no message has arrived. A message sent before the last sync arrives within this number of polls. */
static inline int nothing_more(endpoint *e)
{
    VIP_DESCRIPTOR *d;
    for (int i = 0; i < 1000; i++)
        if (VipRecvDone(e->vi, &d) != VIP_NOT_DONE)
            return 0;
    return 1;
}

/* faults_partition.c */
void partition_heals_a(side *s);
void partition_heals_b(side *s);
void cut_by_count_a(side *s);
void cut_by_count_b(side *s);
void partition_for_ever_a(side *s);
void partition_for_ever_b(side *s);
void silence_a(side *s);
void silence_b(side *s);
void lost_soon(viakit_nic_options *o);          /* a connection is lost after some hundred milliseconds */
void keepalive_of_20_ms(viakit_nic_options *o); /* and a connection outlives the case */

/* faults_delay.c */
void slow_a(side *s);
void slow_b(side *s);
void slower_a(side *s);
void slower_b(side *s);
void far_window(viakit_nic_options *o); /* a window of few sends, requested by the program */
void far_a(side *s);
void far_b(side *s);
void far_limited_a(side *s);
void far_limited_b(side *s);

/* faults_gap.c */
void patient(viakit_nic_options *o); /* neither probes nor time-outs come before a second */
void early_a(side *s);
void early_b(side *s);
void lost_twice_a(side *s);
void lost_twice_b(side *s);

#endif
