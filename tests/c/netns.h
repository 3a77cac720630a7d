/* netns.h - two hosts out of thin air: network namespaces joined by a veth pair, without root. */
#ifndef NETNS_H
#define NETNS_H

#include <stddef.h>
#include <stdint.h>

/* Makes this program run in a user and network namespace of its own: the first call starts the program again there
 * (argv as given) and never returns; the second, inside, returns 0. -1 with the reason in `why` where the kernel
 * refuses. Call it first thing in main, before any thread exists. */
int netns_enter(char **argv, char *why, size_t why_len);

/* Inside: makes a second namespace and a veth pair between the two, both ends called eth0, up, with this MTU.
 * fds[0] and fds[1] are the namespaces (setns(fd, CLONE_NEWNET)); the caller stays in fds[0]. -1 with `why`. */
int netns_make_pair(int mtu, int fds[2], char *why, size_t why_len);

/* Both of these, as the main of a test wants them: 0, or, where the kernel refuses, what the test is to exit with:
 * 77, skipped. It was said why. */
int netns_hosts(char **argv, int fds[2]);

/* The address that the pair's host 0 or 1 has on eth0, as text. Loopback interfaces have 127.0.0.1 and ::1. */
const char *netns_address(int ipv6, int host);

/* Change this host's eth0: its MTU, whether it is up, a feature by ethtool's name for it (such as
 * "tx-udp-segmentation"), the limits of segmentation offload. 0, or an errno. */
int netns_set_mtu(int mtu);
int netns_set_up(int up);
int netns_set_feature(const char *name, int on);
int netns_set_gso(uint32_t max_size, uint32_t max_segments);

#endif /* NETNS_H */
