/*
 * machine.h - what the bytes of a fuzzer's input mean: a scene (which link, level and rights) and then operations:
 * frames that arrive, right but for what the input says is to be wrong with them, and calls that a program makes
 * meanwhile. Every sequence of bytes is a valid input; so a byte changed by the fuzzer is a field changed, not a
 * checksum broken.
 *
 *   scene      | link, level, rights, which VIs have a secret | receives posted | sends posted |
 *   operation  | which | its fields ...                     (see the functions op_* in machine.c and machine_frames.c)
 *
 * After each input all is undone by the calls that a program would use, and the machine checks:
 *   - no byte has changed but in posted receives, and in the one region that grants writes to the VI with the right;
 *   - the bystander, another VI of the same NIC with a connection of its own, has not noticed anything;
 *   - every descriptor came back once, and no pending connection, deferred frame or object is left;
 *   - no frame was answered by more bytes than it had, unless it belonged to a connection.
 */
#ifndef MACHINE_H
#define MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* Runs one input. connected: the scene begins with a connection; else with connection requests of the input's
 * making. */
void machine_run(const uint8_t *data, size_t len, int connected);

/* From now on the frames of scenes with HOLLOW_ETHERNET come by carry (hollow.h). */
struct hollow;
void machine_carry(int (*carry)(struct hollow *h, const uint8_t *frame, size_t len));

#endif
