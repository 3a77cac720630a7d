/*
 * faults_partition.c - cases of test_faults: NICs that are cut off for a time or for ever, and silent peers.
 */
#include <sys/select.h>

#include "test_faults.h"

/* ---- partition_heals: partitions by number of frames and by time, in both directions. No message is missing. */

void partition_heals_a(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 300);
    /* Five frames are cut off, from the tenth on. All of them are retransmitted. */
    set_faults(s, "partition=5f@10f");
    for (uint32_t i = 0; i < 40; i++)
        send_number(&e, d, data, 300, i);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_cut_sent), 5);
    SIDE_SYNC(s, 1);
    /* By time: time-outs expire meanwhile. Arriving frames are dropped, too, among them acknowledgements. */
    set_faults(s, "partition=100ms");
    for (uint32_t i = 0; i < 40; i++)
        send_number(&e, d, data, 300, i);
    CHECK(nic_counter(s, VIAKIT_COUNTER_fault_cut_sent) > 5);
    SIDE_SYNC(s, 2);
    SIDE_SYNC(s, 3); /* B is cut off now. When the partition ends, it receives the retransmissions. */
    for (uint32_t i = 0; i < 40; i++)
        send_number(&e, d, data, 300, i);
    SIDE_SYNC(s, 4);
    leave(&e);
}

void partition_heals_b(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 125);
    for (uint32_t i = 0; i < 40; i++)
        CHECK_EQ(receive_number(&e), i);
    SIDE_SYNC(s, 1);
    for (uint32_t i = 0; i < 40; i++)
        CHECK_EQ(receive_number(&e), i);
    SIDE_SYNC(s, 2);
    set_faults(s, "partition=100ms");
    SIDE_SYNC(s, 3);
    /* B is cut off this time: A's frames are dropped on arrival. */
    for (uint32_t i = 0; i < 40; i++)
        CHECK_EQ(receive_number(&e), i);
    CHECK(nic_counter(s, VIAKIT_COUNTER_fault_cut_received) > 0);
    SIDE_SYNC(s, 4);
    leave(&e);
}

/* ---- cut_by_count: frames that are handed to the link together are counted one by one. Those after the partition
 * pass. */

/* 32000 bytes are many frames, which the provider hands to the link together, or a single frame on some links. */
void cut_by_count_a(side *s)
{
    endpoint e;
    meet_with(&e, s, VIP_SERVICE_UNRELIABLE, 0, 32768);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 32000);
    set_faults(s, "partition=1f@1f");
    for (uint32_t i = 0; i < 3; i++) /* on some links one frame each */
        send_number(&e, d, data, 32000, i);
    /* Exactly one frame is cut off, not all frames of the call. */
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_cut_sent), 1);
    CHECK_EQ(nic_counter(s, VIAKIT_COUNTER_fault_dropped), 0);
    SIDE_SYNC(s, 1);
    leave(&e);
}

void cut_by_count_b(side *s)
{
    endpoint e;
    meet_with(&e, s, VIP_SERVICE_UNRELIABLE, 3, 32768);
    SIDE_SYNC(s, 1);
    leave(&e);
}

/* ---- partition_for_ever: both sides detect the loss of the connection, although only A is cut off */

void lost_soon(viakit_nic_options *o)
{
    o->keepalive_ms = 50;
    o->max_retries = 4;
}

void partition_for_ever_a(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    set_faults(s, "partition=ever");
    wait_error(s, VIP_ERROR_CONN_LOST, 1);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_ERROR);
    SIDE_SYNC(s, 1);
    CHECK_OK(viakit_set_faults(s->nic, NULL));
    endpoint_close(&e);
}

/* B's frames are sent, but get no reply. */
void partition_for_ever_b(side *s)
{
    endpoint e;
    meet(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    wait_error(s, VIP_ERROR_CONN_LOST, 1);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_ERROR);
    SIDE_SYNC(s, 1);
    endpoint_close(&e);
}

/* ---- silence: while a peer is silent for longer than keepalive_ms, and data waits for it, the NIC's thread sleeps
 * between time-outs */

/* The peer is silent for ten times as long while the test computes. */
void keepalive_of_20_ms(viakit_nic_options *o)
{
    o->keepalive_ms = 20;
    o->max_retries = 20; /* the connection is not lost before the check */
}

void silence_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *done;
    meet(&e, s, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    VIP_DESCRIPTOR *d = descriptor(&e, 1);
    uint8_t *data = buffer(&e, 8);
    set_faults(s, "partition=ever");
    /* The test does not wait for its completion: it cannot complete while no frame passes. */
    post_number(&e, d, data, 8, 7);
    double end = check_now() + 0.2; /* computes: the thread has taken over, and the peer has been silent for long */
    while (check_now() < end) {}
    /* A thread that probed the silent peer all the time would be found awake. */
    WAIT_UNTIL(nic_thread_sleeps());
    CHECK_RET(VipSendDone(e.vi, &done), VIP_NOT_DONE);
    CHECK_EQ(vi_state(e.vi), VIP_STATE_CONNECTED);
    /* Healed: what is not given up yet goes. */
    CHECK_OK(viakit_set_faults(s->nic, NULL));
    reap_send(&e, d, VIP_STATUS_OP_SEND | VIP_STATUS_IMMEDIATE);
    SIDE_SYNC(s, 1);
    leave(&e);
}

void silence_b(side *s)
{
    one_number_b(s, VIP_SERVICE_RELIABLE_DELIVERY, 7);
}
