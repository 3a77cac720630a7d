/*
 * faults_gap.c - cases of test_faults: what happens between a loss and its repair. The times are long, so that neither
 * a tail probe nor a time-out takes part unless a case needs it.
 */
#include "test_faults.h"

#define PIECES 24 /* fewer than the window, so that all are sent before the first reply */

void patient(viakit_nic_options *o)
{
    o->rto_us = 1000000;
    o->ack_delay_us = 400000;
}

/* Bytes of a message of PIECES frames. */
static size_t long_message(side *s)
{
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(s->nic, &info));
    return (PIECES - 1) * info.max_payload + 100;
}

/* ---- early: what arrives behind a gap is placed before the gap is closed. No NIC has a thread, because the case reads
 * memory of a receive that is not complete: only its own polls may write there meanwhile */

void early_a(side *s)
{
    endpoint e;
    size_t len = long_message(s);
    meet_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0, len);
    set_faults(s, "drop=send:2");
    SIDE_SYNC(s, 2);
    send_number(&e, descriptor(&e, 1), buffer(&e, len), len, 7);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_dropped), 1);
    SIDE_SYNC(s, 1);
    leave(&e);
}

void early_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d;
    size_t len = long_message(s);
    meet_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0, len);
    uint8_t *data = buffer(&e, len), *due = malloc(len);
    CHECK(due != NULL);
    memset(data, 0, len);
    pattern_fill(due, len, 7);
    /* A does not know what is missing until a probe is answered. */
    set_faults(s, "drop=ack:0-1000,drop=nak:0-1000");
    post_recv(&e, prep_recv(&e, descriptor(&e, 1), data, len));
    SIDE_SYNC(s, 2);
    size_t half = len / 2, most = 3 * (len / PIECES);
    WAIT_UNTIL(VipRecvDone(e.vi, &d) != VIP_NOT_DONE || memcmp(data + half, due + half, len - half - most) == 0);
    CHECK_RET(VipRecvDone(e.vi, &d), VIP_NOT_DONE);
    CHECK(memcmp(data, due, half) != 0);
    CHECK_OK(viakit_set_faults(s->nic, NULL));
    CHECK_EQ(receive_number(&e), 7);
    free(due);
    SIDE_SYNC(s, 1);
    leave(&e);
}

/* ---- lost_twice: a retransmission is lost, and no new frame follows. The next retransmission shows it. On a machine
 * that pauses a side, a probe or a time-out may be faster, but not at each attempt */

#define ATTEMPTS 20

static uint64_t late_sends(side *s)
{
    return nic_counter(s, VIAKIT_COUNTER_tail_probes) + nic_counter(s, VIAKIT_COUNTER_timeouts);
}

void lost_twice_a(side *s)
{
    endpoint e;
    char faults[80];
    size_t len = long_message(s);
    meet_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0, len);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, len);
    send_number(&e, d, data, len, 0);
    /* The third frame to be dropped is the first retransmission, because it follows the PIECES frames of the
     * message. */
    snprintf(faults, sizeof faults, "drop=send:2,drop=send:5,drop=send:%d", PIECES);
    for (uint32_t i = 1; i <= ATTEMPTS; i++) {
        uint64_t dropped = nic_counter(s, VIAKIT_COUNTER_fault_dropped), late = late_sends(s);
        uint64_t resent = nic_counter(s, VIAKIT_COUNTER_frames_retransmitted);
        set_faults(s, faults);
        send_number(&e, d, data, len, i);
        CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_dropped) - dropped, 3);
        CHECK_OK(viakit_set_faults(s->nic, NULL));
        int prompt = late_sends(s) == late;
        if (prompt)
            CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_frames_retransmitted) - resent, 3);
        side_exchange(s, prompt || i == ATTEMPTS);
        if (prompt)
            break;
        CHECK(i < ATTEMPTS);
    }
    SIDE_SYNC(s, 1);
    leave(&e);
}

void lost_twice_b(side *s)
{
    endpoint e;
    meet_with(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 1 + ATTEMPTS, long_message(s));
    CHECK_EQ(receive_number(&e), 0);
    for (uint32_t i = 1, done = 0; !done; i++) {
        CHECK_EQ(receive_number(&e), i);
        done = (uint32_t)side_exchange(s, 0);
    }
    SIDE_SYNC(s, 1);
    leave(&e);
}
