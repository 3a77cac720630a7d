/*
 * test_rtt.c - the round trip that a connection reckons with (via/data/rtt.c) is the one that was measured, by the
 * formulas of RFC 6298: samples are given, none is measured.
 *
 *    RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R|     SRTT = 7/8 SRTT + 1/8 R
 *    probe = SRTT + max(SRTT, 4 RTTVAR) + twice the delay of acknowledgements     time-out = 5/4 probe
 */
#include "base/clock.h"
#include "check.h"
#include "via/data/data.h"
#include "via/nic.h"
#include "via/vi.h"

/* Before the first sample. */
static void handshake(struct via_vi *vi)
{
    /* The acceptance may not have arrived, so data that was not acknowledged is no loss. */
    CHECK_EQ(via_rtt_timeout(vi), 200 * VK_MS);

    /* Connected, and nothing measured: the time in the options; a probe comes earlier. */
    via_rtt_confirmed(vi, 0);
    CHECK_EQ(vi->rto, 10 * VK_MS);
    CHECK_EQ(via_rtt_timeout(vi), 10 * VK_MS);
    CHECK_EQ(via_rtt_probe(vi), 10 * VK_MS / 4);

    /* A short round trip of the handshake shortens nothing. A long one is the first estimate of RFC 6298: 3 R. */
    via_rtt_confirmed(vi, 50 * VK_US);
    CHECK_EQ(via_rtt_timeout(vi), 10 * VK_MS);
    CHECK_EQ(via_rtt_probe(vi), 10 * VK_MS / 4);
    via_rtt_confirmed(vi, 20 * VK_MS);
    CHECK_EQ(vi->rto, 60 * VK_MS);
    CHECK_EQ(via_rtt_timeout(vi), 60 * VK_MS);
    CHECK_EQ(via_rtt_probe(vi), 40 * VK_MS + 400 * VK_US);
    via_rtt_confirmed(vi, VK_SECOND);
    CHECK_EQ(via_rtt_timeout(vi), 500 * VK_MS);

    /* An unanswered time-out stays backed off. */
    vi->retries = 1;
    vi->rto = 77 * VK_MS;
    via_rtt_confirmed(vi, 20 * VK_MS);
    CHECK_EQ(vi->rto, 77 * VK_MS);
    vi->retries = 0;
    vi->rtt.backoff = 3; /* the next sample ends it */
}

int main(void)
{
    check_deadline(60);
    struct via_nic *nic = calloc(1, sizeof *nic);
    struct via_vi *vi = calloc(1, sizeof *vi);
    CHECK(nic && vi);
    nic->options.rto_us = 10000;
    nic->options.ack_delay_us = 200;
    vi->nic = nic;
    vi->rto_deadline = VK_NEVER;
    handshake(vi);

    /* the first sample, and then always the same: SRTT is that, and there is no variation left */
    CHECK_EQ(vi->rtt.least, 50 * VK_US); /* of the handshakes */
    via_rtt_sample(vi, 8 * VK_MS);
    CHECK_EQ(vi->rtt.smoothed, 8 * VK_MS);
    CHECK_EQ(vi->rtt.variation, 4 * VK_MS);
    CHECK_EQ(vi->rtt.backoff, 0);
    CHECK_EQ(via_rtt_probe(vi), (24 * VK_MS + 400 * VK_US));
    CHECK_EQ(via_rtt_timeout(vi), (24 * VK_MS + 400 * VK_US) * 5 / 4);
    for (int i = 0; i < 100; i++)
        via_rtt_sample(vi, 8 * VK_MS);
    CHECK_EQ(vi->rtt.smoothed, 8 * VK_MS);
    CHECK(vi->rtt.variation < 4); /* what a division by 4 no longer takes away */
    /* the probe goes first on a long wire, too, and the time-out leaves a late peer some milliseconds */
    CHECK(via_rtt_probe(vi) - (16 * VK_MS + 400 * VK_US) < 16);
    CHECK(via_rtt_timeout(vi) - (16 * VK_MS + 400 * VK_US) * 5 / 4 < 16);

    /* one that is off by 8 ms moves SRTT by an eighth of that, and RTTVAR by a quarter */
    vi->rtt.variation = 4 * VK_MS;
    via_rtt_sample(vi, 16 * VK_MS);
    CHECK_EQ(vi->rtt.variation, 5 * VK_MS);
    CHECK_EQ(vi->rtt.smoothed, 9 * VK_MS);

    /* bounds: 5 ms where the wire is quick, half a second where nothing comes back for long */
    for (int i = 0; i < 200; i++)
        via_rtt_sample(vi, 10 * VK_US);
    CHECK_EQ(via_rtt_timeout(vi), 5 * VK_MS);
    CHECK_EQ(via_rtt_probe(vi), VK_MS);
    for (int i = 0; i < 200; i++)
        via_rtt_sample(vi, VK_SECOND);
    CHECK_EQ(via_rtt_timeout(vi), 500 * VK_MS);

    free(vi);
    free(nic);
    return 0;
}
