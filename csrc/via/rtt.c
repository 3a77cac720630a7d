/*
 * How long to wait for an acknowledgement: the round trip as measured, after RFC 6298 (SRTT and RTTVAR) and Karn's
 * rule.
 *
 * One frame at a time is timed, from its sending until the peer says that it has come, be it by a cumulative
 * acknowledgement or as one that is kept behind a gap. A frame that is sent again is not timed any further: nobody
 * could tell which of the two was answered. What is measured is honest for this kind of network: the peer's thread
 * may be asleep or wait for a processor, and an acknowledgement waits for a frame to ride on. All of that is in the
 * samples, and in their variation.
 *
 * Two times follow.
 *
 *   probe     nothing was heard for a round trip and a bit: the last frame is sent once more. The peer then says what
 *             it has. That mends the loss of a burst's last frame, of a repeated one, or of an acknowledgement, and
 *             costs one small frame if it was a mistake.
 *   time-out  nothing was heard for long: everything unacknowledged is thought lost, and the window closes. That is
 *             dear, so it has a floor: two cores that are shared by many processes let one of them wait for some
 *             milliseconds.
 */
#include "internal.h"

/* Nanoseconds. A floor or ceiling holds whatever was measured. */
#define TIMEOUT_FLOOR (5 * VK_MS)
#define VARIATION_FLOOR VK_MS
#define TIMEOUT_LONGEST (500 * VK_MS)
#define PROBE_FLOOR VK_MS           /* a tick of the scheduler */
#define SAMPLES_APART (100 * VK_US) /* to look at the clock more often would teach nothing */

void via_rtt_reset(struct via_vi *vi)
{
    vi->rtt = (struct via_rtt){0};
}

/* Only a frame that goes out for the first time (tx_psn is where nothing was sent beyond), and none while another is
 * timed. */
void via_rtt_begin(struct via_vi *vi)
{
    struct via_rtt *r = &vi->rtt;
    if (r->timing || vi->nic->now < r->next_at || vi->tx_psn != vi->high_psn)
        return;
    r->timing = 1;
    r->psn = vi->tx_psn;
    r->begun_at = vi->nic->now = vk_now();
}

/* A later frame than the timed one has come, or it itself. Earlier news says nothing of it. */
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
    if (r->smoothed == 0) {
        r->smoothed = ns ? ns : 1;
        r->variation = ns / 2;
        return;
    }
    uint64_t off = ns > r->smoothed ? ns - r->smoothed : r->smoothed - ns;
    /* What is old shrinks first: with the share of the new sample added before, both would settle below what is
     * measured, SRTT at seven eighths of it. off is taken from the old SRTT, as the RFC has it. */
    r->variation -= r->variation / 4;
    r->variation += off / 4;
    r->smoothed -= r->smoothed / 8;
    r->smoothed += ns / 8;
}

/* SRTT + 4 RTTVAR, within bounds; before anything was measured, what the NIC's options say. A program that asks for
 * a shorter time than the floor gets it. */
uint64_t via_rtt_timeout(const struct via_vi *vi)
{
    const struct via_rtt *r = &vi->rtt;
    uint64_t initial = (uint64_t)vi->nic->options.rto_us * VK_US;
    if (r->smoothed == 0)
        return initial;
    uint64_t floor = initial < TIMEOUT_FLOOR ? initial : TIMEOUT_FLOOR;
    uint64_t t = r->smoothed + (4 * r->variation > VARIATION_FLOOR ? 4 * r->variation : VARIATION_FLOOR);
    t = t > floor ? t : floor;
    return t < TIMEOUT_LONGEST ? t : TIMEOUT_LONGEST;
}

/* The peer may hold its acknowledgement back for ack_delay_us, and then some. */
uint64_t via_rtt_probe(const struct via_vi *vi)
{
    const struct via_rtt *r = &vi->rtt;
    if (r->smoothed == 0)
        return (uint64_t)vi->nic->options.rto_us * VK_US / 4;
    uint64_t t = r->smoothed + (4 * r->variation > r->smoothed ? 4 * r->variation : r->smoothed);
    t += 2 * (uint64_t)vi->nic->options.ack_delay_us * VK_US;
    return t > PROBE_FLOOR ? t : PROBE_FLOOR;
}
