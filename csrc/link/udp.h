/*
 * What the files of the link `udp` share. Reading order: udp.c (opening, the table of operations), udp_address.c
 * (six bytes for an address), udp_station.c (how NICs find each other), udp_send.c and udp_receive.c (the data's
 * way).
 */
#ifndef VIAKIT_UDP_H
#define VIAKIT_UDP_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#include "link.h"

#define UDP_MAX_PEERS 4096
#define UDP_BUCKETS 1024   /* of the table of peers; a power of two */
#define UDP_LANES 4        /* connected sockets, for the peers that talk most */
#define UDP_SLOTS 16       /* datagrams taken by one call */
#define UDP_SLOT 65536u    /* the longest datagram fits */
#define UDP_SMALL 256u     /* up to so much payload is gathered into one buffer: cheaper than a vector for the kernel */
#define UDP_MAX_LISTED 256 /* NICs of one station that are named to who asks */
#define UDP_MAX_ASKS 8192  /* requests whose station was asked who is there: one per VI, and some */

/* An address and port of either family. */
union udp_name {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static inline socklen_t udp_name_len(const union udp_name *name)
{
    return name->any.sa_family == AF_INET ? sizeof name->v4 : sizeof name->v6;
}

static inline uint16_t udp_port(const union udp_name *name)
{
    return ntohs(name->any.sa_family == AF_INET ? name->v4.sin_port : name->v6.sin6_port);
}

static inline void udp_set_port(union udp_name *name, uint16_t port)
{
    if (name->any.sa_family == AF_INET)
        name->v4.sin_port = htons(port);
    else
        name->v6.sin6_port = htons(port);
}

int udp_same_host(const union udp_name *a, const union udp_name *b);

static inline int udp_same(const union udp_name *a, const union udp_name *b)
{
    return udp_port(a) == udp_port(b) && udp_same_host(a, b);
}

/* One NIC that we talk to. It has proved that it is where it says: it answered us, or gave back a cookie sent there. */
struct link_peer {
    struct link_peer *next; /* in its bucket */
    union udp_name name;    /* where its datagrams come from and ours go to */
    uint8_t address[6];     /* its station */
    uint8_t lane;           /* index of the socket for it; 0: the common one */
    uint8_t refusals;       /* times its host said that nobody is there, since it was last heard */
    uint8_t lost;           /* to be reported */
    uint8_t has_cookie;
    uint32_t traffic;      /* datagrams from it by the common socket: who has many gets a lane */
    uint32_t segment;      /* wire header and payload that the path carries in one piece */
    uint32_t singles;      /* sends to go before super-frames are tried again ... */
    uint32_t next_singles; /* ... and how many when they are refused the next time */
    uint64_t cookie;       /* that it wants to see in requests */
};

/* sockets[0] takes whatever comes; the others are lanes, each connected to one peer: the kernel then knows the route
 * and the receiver. */
struct udp_socket {
    int fd;                         /* -1: none */
    struct link_peer *peer;         /* lane: whose */
    uint8_t streak;                 /* looks in a row that found something */
    uint32_t segments;              /* lane: frames in the datagram that came last */
    uint8_t fresh;                  /* bound a moment before it was connected: others' datagrams may still lie in it */
    uint32_t seen_traffic, traffic; /* datagrams; at the last search for a lane to give to another, and now */
    uint32_t dropped;               /* by the kernel, as far as counted */
};

/* A connection request on its way to the NICs of a station, which have to be asked for first. */
struct udp_ask {
    uint64_t nonce, until; /* 0: unused */
    union udp_name station;
    uint8_t address[6];
    uint32_t number, len;
    uint8_t bytes[sizeof(struct wire_header) + sizeof(((struct link_frame *)0)->block)];
};

/* One NIC's end. Only its owner touches it: what several NICs share lies in the kernel (the door, the names of
 * station.h) and in udp_address.c, which has a mutex. */
struct link {
    struct via_nic *nic;
    struct udp_socket sockets[1 + UDP_LANES];
    int door_fd, claim_fd;
    union udp_name name;      /* of sockets[0] */
    uint8_t address[6];       /* station: IPv4 address or mark of an IPv6 address, and the door's port */
    uint16_t station;         /* the door's port */
    char interface[IFNAMSIZ]; /* that has the address */
    char prefix[80];          /* of the names by which the NICs of this station know each other */
    uint32_t mtu;
    uint32_t head;        /* IP and UDP headers */
    uint32_t segment;     /* wire header and payload of a full frame */
    uint32_t super_bytes; /* of a super-frame, at most */
    int super_frames;     /* the kernel takes them (UDP_SEGMENT) */
    int crc_always;       /* over all that UDP's checksum covers already */
    int receive_super;    /* and delivers them whole (UDP_GRO) */
    uint32_t granted;     /* receive buffer of a socket, bytes */
    int n_lanes, hot,
        other; /* lanes open; the socket that brought something last; the one of the others that was looked at last */
    uint32_t looks, finds;
    int asleep;     /* somebody sleeps on the sockets */
    uint32_t woken; /* a bit for each socket that ended his sleep */
    int errors;     /* the common socket's error queue may hold something */
    int n_lost;     /* peers marked lost */
    struct link_peer *wants_lane;
    struct link_peer *peers[UDP_BUCKETS];
    uint32_t n_peers;
    struct udp_ask *asks; /* [n_asks] */
    int n_asks;
    uint64_t secret[2]; /* of the cookies */
    uint16_t listed[UDP_MAX_LISTED];
    int n_listed;
    uint64_t listed_at, list_credit; /* when the list was read; how often it may be read yet */
    uint8_t *buffer;                 /* [UDP_SLOTS][UDP_SLOT] */
    uint8_t small[sizeof(struct wire_header) + 200 + UDP_SMALL];
};

/* ---- udp_address.c ---- */

/* "ADDRESS", "ADDRESS%IF", "IF" or "", and ":PORT": *name (port 0) and *station, and the interface that has it with
 * its MTU. 0 or -errno, explained. */
int udp_parse_device(const char *device, union udp_name *name, uint16_t *station, char interface[IFNAMSIZ],
                     uint32_t *mtu);
/* A station's six bytes, and back. -EHOSTUNREACH, explained, if they stand for no address of that family. */
void udp_pack(const union udp_name *name, uint16_t station, uint8_t address[6]);
int udp_unpack(const uint8_t address[6], int family, union udp_name *name);
/* Remembers an IPv6 address, so that udp_unpack() knows it by its mark. Any thread. */
void udp_learn(const union udp_name *name);
void udp_text(const union udp_name *name, char text[INET6_ADDRSTRLEN]);
int udp_resolve(const uint8_t own[6], const char *name, unsigned index, uint8_t address[6]);

/* ---- udp_station.c ---- */

int udp_claim(struct link *link);
int udp_open_door(struct link *link);
struct link_peer *udp_find_peer(struct link *link, const union udp_name *name);
/* Finds or makes the peer; NULL if there are too many. */
struct link_peer *udp_get_peer(struct link *link, const union udp_name *name, const uint8_t address[6]);
void udp_free_peers(struct link *link);
int udp_ask_all(struct link *link, const uint8_t address[6], struct link_frame *frame);
int udp_count_neighbours(struct link *link);
/* Whoever knocked at the door is told who lives here. */
void udp_control(struct link *link);
/* A frame between links, not for the provider (UDP_CALL). peer may be NULL. */
void udp_call_arrived(struct link *link, const union udp_name *from, struct link_peer *peer, const uint8_t *frame,
                      size_t len);
/* A connection request from somebody unknown: the peer, if it shows a cookie of ours; else it is given one. */
struct link_peer *udp_stranger_asks(struct link *link, const union udp_name *from, const uint8_t *frame, size_t len);
/* Nobody is at that name, says its host. */
void udp_refused(struct link *link, const union udp_name *name);

#define UDP_TRAILER 12 /* bytes behind a REQUEST: the sender's station port, and the receiver's cookie */
#define UDP_CALL 0xF0  /* first byte of frames between links: a version that no frame of the provider has */

/* ---- udp_send.c ---- */

int udp_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n);
int udp_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS], const void *payload,
                   size_t len);
/* Bytes to a name, outside the provider's protocol: sent, or lost with -errno. */
int udp_put(struct link *link, int fd, const union udp_name *to, const void *bytes, size_t len);

/* ---- udp_receive.c ---- */

int udp_poll(struct link *link, int budget);
int udp_watch(struct link *link, struct pollfd *fds);
void udp_woken(struct link *link, const struct pollfd *fds, int n);
void udp_count_losses(struct link *link);
/* The options that every socket for data has. */
void udp_set_options(struct link *link, int fd);
void udp_close_lane(struct link *link, int lane);

#endif
