/*
 * tcp.h - the `tcp` channel's own structs: tcp.c (packets on streams), tcp_open.c (connecting), tcp_relay.c (daemons).
 *
 * One connection for each pair of ranks. A packet on the stream:
 *
 *      | bytes of data, 8 | head 8 | rest 40, but for EAGER | data ... |
 */
#ifndef VIAKIT_MSG_TCP_H
#define VIAKIT_MSG_TCP_H

#include "channel.h"

#define TC_STAGE 8192 /* what arrives is read into this; data that is longer goes straight to its place */
#define TC_FEW 3      /* up to so many connections are looked at one by one, more by epoll */

struct tc_rank {
    struct msg_peer *peer;
    int fd;
    int wants_out; /* epoll tells when there is room to send */
    /* sending: bytes of the present packet that are on the stream, its front included */
    size_t sent;
    /* receiving */
    char *stage;       /* [TC_STAGE] */
    size_t begin, end; /* unread bytes of stage */
    int in_body;       /* a packet's front was read, its data is coming: */
    struct msg_in in;
    size_t got; /* bytes of it */
    char route[64];
};

struct tc_world {
    int epoll;
    int n_open;   /* connections alive */
    int leftover; /* a stage may hold whole packets */
    struct tc_rank *ranks;
    int relay; /* process id of our daemon, 0 none */
};

/* tcp_open.c */
int tc_open(msg_world *w, const msg_options *options);
void tc_close(msg_world *w);

/* tcp_relay.c: puts a daemon between our ends of the connections and ourselves; each ranks' fd is replaced. 0 or an
 * error. */
int tc_relay_start(msg_world *w);
void tc_relay_stop(msg_world *w);

#endif
