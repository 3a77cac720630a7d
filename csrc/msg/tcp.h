/*
 * tcp.h - the `tcp` channel's private structs: tcp.c (packets on streams), tcp_open.c (connecting), tcp_relay.c
 * and tcp_daemon.c (daemons).
 *
 * There is one connection for each pair of ranks. A packet on the stream:
 *
 *      | bytes of data, 8 | head 8 | rest 40, but for EAGER | data ... |
 */
#ifndef VIAKIT_MSG_TCP_H
#define VIAKIT_MSG_TCP_H

#include "msg/channel.h"

#define TC_STAGE 8192    /* arriving bytes are read into this buffer; longer data goes straight to its destination */
#define TC_POLLED_MOST 3 /* up to this many connections are polled one by one, more by epoll */

struct vk_stream;

struct tc_rank {
    struct msg_peer *peer;
    int fd;
    struct vk_stream *stream; /* on a described machine it carries the packets, and fd connects it; else NULL */
    int wants_out;            /* epoll also reports room to send */
    /* sending: bytes of the current packet that are on the stream, header included */
    size_t sent;
    /* receiving */
    char *stage;       /* [TC_STAGE] */
    size_t begin, end; /* unread bytes of stage */
    int in_body;       /* a packet's header was read, its data is arriving: */
    struct msg_in in;
    size_t got; /* bytes of it received */
    char route[64];
};

struct tc_world {
    int epoll;
    int n_open;   /* open connections */
    int leftover; /* a stage may hold whole packets */
    int streams;  /* on a described machine, whose streams epoll does not see */
    struct tc_rank *ranks;
};

/* tcp_open.c */
int tc_open(msg_world *w, const msg_options *options);
void tc_close(msg_world *w);

struct tc_card;
/* tcp_relay.c: starts the daemon of this host if this is its lowest rank, and replaces each rank's fd by a way through
 * it. All ranks call it, with their own code of opening so far, because it has an exchange. Returns 0 or an error. */
int tc_relay_start(msg_world *w, const msg_options *options, const struct tc_card *own, int code);

#endif
