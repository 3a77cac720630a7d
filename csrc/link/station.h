/*
 * Several NICs share a station (a host's name on shm, an interface on eth) and are told apart by ports. A port is
 * claimed by binding a Unix socket to an abstract name, PREFIX/PORT: it is unique within the network namespace and
 * vanishes with its process, however that ends. So there is no file that a crash leaves behind, no daemon that hands
 * out numbers, and two hosts of a testbed (two namespaces) do not see each other's.
 *
 *   @viakit/shm/UID/NAME/PORT    the listener of a shm NIC (shm_control.c)
 *   @viakit/eth/INTERFACE/PORT   a socket that only holds the name (eth_open.c); the same for udp (udp_station.c)
 *
 * The kernel's list of such names is the list of NICs (station_ports): for connection requests to all of a station,
 * and for the number that NOMATCH answers carry.
 */
#ifndef VIAKIT_STATION_H
#define VIAKIT_STATION_H

#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

/* The abstract name PREFIX/PORT. Returns its length. */
socklen_t station_name(const char *prefix, uint16_t port, struct sockaddr_un *a);

/* Binds the socket to a free port of the prefix, 1..65535, beginning at a random one. 0 or -errno. */
int station_claim(int socket, const char *prefix, uint16_t *port);

/* The ports that are claimed now, each once. Returns their number, at most max. */
int station_ports(const char *prefix, uint16_t *ports, int max);

/* A user other than uid who has claimed ports of HEAD/USER/TAIL; -1: there is none. For explanations only. */
long station_other_user(const char *head, unsigned uid, const char *tail);

#endif
