/*
 * tcp_meet.h - the ranks of a job connect over TCP, and prove to each other that they belong to it (tcp_meet.c).
 */
#ifndef VIAKIT_MSG_TCP_MEET_H
#define VIAKIT_MSG_TCP_MEET_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "msg/tcp.h"

union tc_address {
    struct sockaddr any;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

/* Address at which a rank listens, sent to all others. The kernel chooses the port. */
struct tc_card {
    union tc_address address;
    uint32_t len;
    uint32_t failed; /* it cannot listen */
};

/* Calls all lower ranks and accepts the calls of all higher ones at `listener`. Returns when every rank's fd is a
 * connection proven in both directions, or the deadline (vk_now) has passed. Blocks. Returns 0, or an error of msg.h
 * with its text set. Connections made by then stay in the ranks' fds. */
int tc_meet(msg_world *w, int listener, const struct tc_card *cards, uint64_t deadline);

/* tcp_open.c: sets buffers, before a connection is made, and options, after it. The socket becomes non-blocking. */
void tc_set_buffers(const msg_world *w, int fd);
void tc_set_options(const msg_world *w, int fd);

#endif
