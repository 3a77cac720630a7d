/*
 * One message on an idle machine, frame by frame. Frame i is in stage s from
 *
 *     begin(i, s) = max(end(i, s - 1), end(i - 1, s))        to        end(i, s) = begin(i, s) + cost(i, s)
 *
 * The recurrence is a pipeline whose slowest stage sets the pace. Its fill is the latency of the other stages. A window
 * of w frames adds one term: frame i may not begin before the acknowledgement of frame i - w has arrived. With w frames
 * in less than a round trip the window closes, and the rate falls to w frames per round trip. This is the effect of a
 * socket buffer.
 */
#include <math.h>
#include <stdlib.h>

#include "sim/replay.h"

#define RING 4096 /* acknowledgements remembered; a larger window never closes in practice, and counts as none */

/* The larger of two times. */
static double most(double a, double b)
{
    return a > b ? a : b;
}

/* Works frame by frame, with one time per stage: when the stage has finished the frame before. So the loop needs no
 * memory for frames, and takes time in proportion to their number. Only the acknowledgements are stored, in a ring.
 *
 * `every` is at most `window`, therefore the acknowledgement that frame i waits for belongs to frame i - 1 or an
 * earlier one, and is known when frame i begins. A message of 0 bytes has one frame.
 *
 * Switches, sharing of a host's bus by its two directions, and other messages are left out: the machine is idle, and
 * the caller has put the time of the switches into delay_ns. sim_replay has all of them. */
double sim_message_ns(const sim_path *path, double n)
{
    double payload = path->payload >= 1 ? path->payload : 1, t = 0;
    double free_at[SIM_STAGES] = {0}, acks[RING];
    int64_t frames = n > payload ? (int64_t)ceil(n / payload) : 1, window = (int64_t)path->window;
    int64_t every = path->ack_every >= 1 ? (int64_t)path->ack_every : 1;
    if (window < 0 || window >= RING)
        window = 0;
    if (window && every > window) /* a receiver that waited for more frames than fit would stop the sender */
        every = window;
    free_at[SIM_SEND_CPU] = path->message_ns[SIM_SEND_CPU];
    for (int64_t i = 0; i < frames; i++) {
        double bytes = i + 1 < frames ? payload : n - (double)(frames - 1) * payload;
        /* acks[k]: arrival of the k-th acknowledgement, for the frames up to (k + 1) * every. */
        t = window && i >= window ? acks[(i - window) / every % RING] : 0;
        double head = 0;
        for (int s = 0; s < SIM_STAGES; s++) {
            double cost = path->frame_ns[s] + bytes * path->byte_ns[s], ready = t;
            if (s == SIM_DOWN) {
                t += path->delay_ns;
                ready = path->cut > 0 ? head + path->delay_ns : t;
            }
            double begin = most(ready, free_at[s]);
            if (s == SIM_UP)
                head = begin;
            if (s == SIM_RECV_CPU && i + 1 == frames) /* the completion */
                begin += path->message_ns[s];
            t = most(begin + cost, t); /* a frame does not end on the wire down before its end has come up */
            free_at[s] = t;
        }
        if (window && ((i + 1) % every == 0 || i + 1 == frames))
            acks[i / every % RING] = t + path->ack_ns;
    }
    return t;
}
