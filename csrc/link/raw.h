/*
 * Packet sockets for users without CAP_NET_RAW, made by a small program that has it: viakit-raw (csrc/raw/).
 *
 *   NIC                                          viakit-raw INTERFACE LEAST MOST
 *    | posix_spawn: RAW_CLAIM_FD, RAW_REPLY_FD ->  | checks the arguments, and the name of the claim socket
 *    |                                             | socket(AF_PACKET), filter, SO_LOCK_FILTER
 *    | <- one byte and the descriptor, or a text   | exits
 *
 * The claim socket holds the abstract name viakit/eth/INTERFACE/PORT (station.h). The process that has it owns the NIC
 * with this port, so the helper makes a filter for this port, and for no other.
 */
#ifndef VIAKIT_RAW_H
#define VIAKIT_RAW_H

#include <net/if.h>
#include <stdint.h>

#define RAW_CLAIM_FD 3
#define RAW_REPLY_FD 4
#define RAW_TEXT 256 /* bytes of a refusal, at most */

struct raw_request {
    char interface[IFNAMSIZ];
    uint32_t least, most; /* bytes of the frames to receive; least > most: none */
};

/* Reads the helper's arguments: INTERFACE LEAST MOST. Returns NULL, or what is wrong with them. */
const char *raw_parse(int n, const char *const *arguments, struct raw_request *request);

/* Reads the port from the name of a claim socket, viakit/eth/INTERFACE/PORT; `len` is the name's length without the
 * leading zero byte. Returns it, or 0 if the name is another one. */
uint16_t raw_claimed_port(const char *name, size_t len, const char *interface);

/* Has the helper make a packet socket with a locked filter (eth_filter.h) for the port that claim_fd holds. Waits up to
 * five seconds. Returns the socket, or -errno after having explained it: -EPERM without a usable helper. */
int raw_socket(const char *interface, int claim_fd, uint32_t least, uint32_t most);

#endif
