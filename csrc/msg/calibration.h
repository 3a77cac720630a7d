/* calibration.h - thresholds of the message engine as they were measured on this machine: calibration.c. */
#ifndef VIAKIT_MSG_CALIBRATION_H
#define VIAKIT_MSG_CALIBRATION_H

#include <stddef.h>
#include <stdint.h>

#include "policy.h"

typedef struct {
    int64_t eager_limit, rendezvous, credits;
} msg_calibration;

/* Where the calibration of a link ("shm", "eth", "udp", "tcp") lies. 0, or -1: nowhere. */
int msg_calibration_path(const char *link, char *path, size_t room);
/* What the file says, and what is built in for the rest. */
void msg_calibration_read(const char *link, msg_calibration *calibration);

/* For ranks of one host [0] and of several [1], by the channel and the network device (NULL: none). */
void msg_calibration_of(const msg_policy *policy, const char *network_device, msg_calibration both[2]);
/* Fills what is MSG_CALIBRATED, or stands for its neighbour. */
void msg_calibration_adopt(msg_policy *policy, const msg_calibration both[2], int several_hosts);

#endif
