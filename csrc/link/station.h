/*
 * Several NICs share a station (a host's name on shm, an interface on eth) and are distinguished by ports. A NIC claims
 * a port by binding a Unix socket to an abstract name, PREFIX/PORT. The name is unique within the network namespace and
 * vanishes with its process, however the process ends. Hence a crash leaves no file behind, no daemon assigns numbers,
 * and two hosts of a testbed (two namespaces) do not see each other's names.
 *
 *   @viakit/shm/UID/NAME/PORT    the listener of a shm NIC (shm_control.c)
 *   @viakit/eth/INTERFACE/PORT   a socket that only holds the name (eth_open.c); the same for udp (udp_station.c)
 *
 * The kernel's list of such names is the list of NICs (station_ports). It serves for connection requests to all NICs of
 * a station, and for the number that NOMATCH replies carry.
 */
#ifndef VIAKIT_STATION_H
#define VIAKIT_STATION_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* Derives a station's address from its name: 48 bits of FNV-1a over kind and name, marked as locally administered. */
void station_name_to_address(const char *kind, const char *name, uint8_t address[6]);

/* Builds the abstract name PREFIX/PORT. Returns its length. */
socklen_t station_name(const char *prefix, uint16_t port, struct sockaddr_un *a);

/* Binds the socket to a free port of the prefix, 1..65535, beginning at a random one. Returns 0 or -errno. */
int station_claim(int socket, const char *prefix, uint16_t *port);

/* Lists the ports that are claimed now, each once. Returns their number, at most max. With a uid of 0 or more, the
 * names that this user has bound come first, if the kernel reports users (Linux 5.3). Other users' names cannot crowd
 * them out. */
int station_ports(const char *prefix, long uid, uint16_t *ports, int max);

/* Returns a user other than uid that has claimed ports of HEAD/USER/TAIL, or -1 if no other user has. For explanations
 * only. */
long station_other_user(const char *head, unsigned uid, const char *tail);

#endif
