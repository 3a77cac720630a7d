/* bip/meet.h - connects a rank to the listening meeting point of its job. */
#ifndef BIP_MEET_H
#define BIP_MEET_H

#include "bip/launch.h"

/* Connects to "unix:@NAME" or "tcp:HOST:PORT" (HOST may be numeric IPv6 in brackets). Waits until a process listens
 * there, and proves the secret of `launch` in both directions. Returns the connected descriptor, which the caller
 * closes, or -1 with the reason in error[BIP_ERROR_LEN]. Blocks for at most timeout_ms, excluding the resolver. */
int bip_meet(const char *address, const bip_launch *launch, int timeout_ms, char *error);

#endif
