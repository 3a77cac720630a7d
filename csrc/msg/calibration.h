/* calibration.h - thresholds of the message engine, measured on this machine (calibration.c). */
#ifndef VIAKIT_MSG_CALIBRATION_H
#define VIAKIT_MSG_CALIBRATION_H

#include <stddef.h>
#include <stdint.h>

#include "msg/msg.h"
#include "msg/policy.h"

typedef struct {
    int64_t eager_limit, rendezvous, credits;
} msg_calibration;

/* Path of the calibration of a link ("shm", "eth", "udp", "tcp"). Returns 0, or -1: no folder for it. */
int msg_calibration_path(const char *link, char *path, size_t room);

/* For ranks of one host [0] and of several [1], by the channel and the network device (NULL: none). */
void msg_calibration_of(const msg_policy *policy, const char *network_device, msg_calibration both[2]);
/* In rendezvous.c: decides the thresholds and the kinds of transfer of a world, from its policy and the calibrations of
 * rank 0. */
void msg_choose_rendezvous(msg_world *world, const msg_calibration both[2]);

#endif
