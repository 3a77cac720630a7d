/*
 * Acknowledgement time-outs from the measured round trip, after RFC 6298 (SRTT and RTTVAR) and Karn's rule.
 *
 * One frame at a time is timed, from its sending until the peer reports its arrival. The report is a cumulative
 * acknowledgement, or lists the frame as kept behind a gap. A frame that is retransmitted is no longer timed: the reply
 * could belong to either copy. The back-off stays until the next sample, which is the other half of Karn's rule.
 * Otherwise a round trip longer than the time-out would never be measured, because every frame would be retransmitted.
 *
 * The samples include the delays of this kind of network and their variation: the peer's thread may be asleep or wait
 * for a processor, and an acknowledgement waits for a frame to carry it.
 *
 * Before the first sample the round trip of the handshake (conn.c) can only lengthen the times: the peer of a fast wire
 * may still be busy with its start.
 *
 * Two times follow from the measurement:
 *
 *    probe     no frame from the peer for a little more than a round trip: the last frame is retransmitted, and the
 *              peer then reports what it has. This recovers the loss of a burst's last frame, of a retransmitted one,
 *              or of an acknowledgement. If nothing was lost, it costs one small frame.
 *    time-out  no frame from the peer for long: everything unacknowledged counts as lost, and the window closes. That
 *              is expensive, so a probe comes first, and the time has a floor: when many processes share two cores, a
 *              peer can wait several milliseconds for a processor. Until the peer is known to be connected, there are
 *              no probes, because ACCEPT has its own timer.
 *
 * Only the NIC's owner calls these functions.
 */
#include "base/clock.h"
#include "link/frame_format.h"
#include "via/data/data.h"
#include "via/nic.h"
#include "via/vi.h"

/* Nanoseconds. The floors and ceilings apply to every measurement. */
#define TIMEOUT_FLOOR (5 * VK_MS)
#define TIMEOUT_LONGEST (500 * VK_MS)
#define TIMEOUT_UNCONFIRMED (200 * VK_MS) /* the peer may not have received ACCEPT, whose own timer is shorter */
#define PROBE_FLOOR VK_MS                 /* a tick of the scheduler */
#define SAMPLES_APART (100 * VK_US)       /* more frequent readings of the clock would add no information */

void via_rtt_reset(struct via_vi *vi)
{
    vi->rtt = (struct via_rtt){0};
}

static void note_least(struct via_rtt *r, uint64_t ns)
{
    if (r->least == 0 || ns < r->least)
        r->least = ns;
}

/* One frame at a time. The caller has sent it for the first time. */
void via_rtt_begin(struct via_vi *vi)
{
    struct via_rtt *r = &vi->rtt;
    if (r->timing || vi->nic->now < r->next_at)
        return;
    r->timing = 1;
    r->psn = vi->tx_psn;
    r->begun_at = vi->nic->now = vk_now();
}

/* Ends the timing if the timed frame or a later one has arrived. Reports of earlier frames do not end it. */
void via_rtt_arrived(struct via_vi *vi, uint32_t psn)
{
    struct via_rtt *r = &vi->rtt;
    if (!r->timing || wire_before(psn, r->psn))
        return;
    r->timing = 0;
    vi->nic->now = vk_now();
    r->next_at = vi->nic->now + SAMPLES_APART;
    via_rtt_sample(vi, vi->nic->now - r->begun_at);
}

/* RFC 6298, section 2, with its alpha of 1/8 and beta of 1/4:
 *
 *    first sample    SRTT = R                       RTTVAR = R / 2
 *    each further    SRTT = 7/8 SRTT + 1/8 R        RTTVAR = 3/4 RTTVAR + 1/4 |SRTT - R| */
void via_rtt_sample(struct via_vi *vi, uint64_t ns)
{
    struct via_rtt *r = &vi->rtt;
    r->backoff = 0;
    note_least(r, ns ? ns : 1);
    if (r->smoothed == 0) {
        r->smoothed = ns ? ns : 1;
        r->variation = ns / 2;
        return;
    }
    uint64_t off = ns > r->smoothed ? ns - r->smoothed : r->smoothed - ns;
    /* The old value shrinks first. If the share of the new sample were added before, both would settle below the
     * measured value, SRTT at seven eighths of it. off uses the old SRTT, as in the RFC. */
    r->variation -= r->variation / 4;
    r->variation += off / 4;
    r->smoothed -= r->smoothed / 8;
    r->smoothed += ns / 8;
}

/* The times so far were those of an unconfirmed connection, or of an unknown round trip. So frames in flight wait anew.
 */
void via_rtt_confirmed(struct via_vi *vi, uint64_t ns)
{
    struct via_rtt *r = &vi->rtt;
    vi->confirmed = 1;
    if (ns) {
        r->handshake = ns;
        note_least(r, ns);
    }
    if (r->smoothed || vi->retries)
        return;
    vi->rto = via_rtt_timeout(vi);
    if (vi->rto_deadline != VK_NEVER)
        via_arm_rto(vi);
}

/* The peer may delay its acknowledgement by ack_delay_us, so the probe waits for twice that in addition. */
uint64_t via_rtt_probe(const struct via_vi *vi)
{
    const struct via_rtt *r = &vi->rtt;
    uint64_t delays = 2 * (uint64_t)vi->nic->options.ack_delay_us * VK_US;
    uint64_t least = r->smoothed ? PROBE_FLOOR : (uint64_t)vi->nic->options.rto_us * VK_US / 4;
    uint64_t t = r->smoothed + (4 * r->variation > r->smoothed ? 4 * r->variation : r->smoothed) + delays;
    if (r->smoothed == 0)
        t = r->handshake ? 2 * r->handshake + delays : 0;
    return t > least ? t : least;
}

/* Returns the time-out without back-off: a quarter longer than the probe, which includes SRTT + 4 RTTVAR, and at least
 * the floor. If the options request a time below the floor, that time is the floor. Before the first measurement the
 * time is that in the options, or three round trips of the handshake, as after a first sample. */
uint64_t via_rtt_timeout(const struct via_vi *vi)
{
    const struct via_rtt *r = &vi->rtt;
    uint64_t initial = (uint64_t)vi->nic->options.rto_us * VK_US;
    uint64_t floor = initial < TIMEOUT_FLOOR ? initial : TIMEOUT_FLOOR;
    uint64_t t = via_rtt_probe(vi) * 5 / 4;
    if (r->smoothed == 0) {
        floor = vi->confirmed || initial > TIMEOUT_UNCONFIRMED ? initial : TIMEOUT_UNCONFIRMED;
        t = t > 3 * r->handshake ? t : 3 * r->handshake;
    }
    t = t > floor ? t : floor;
    return t < TIMEOUT_LONGEST ? t : TIMEOUT_LONGEST;
}
