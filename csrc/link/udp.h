/*
 * Declarations shared by the files of the link `udp`. Reading order: udp.c (opening, the table of operations),
 * udp_address.c (six-byte addresses), udp_station.c (how NICs find each other), udp_send.c and udp_receive.c (the data
 * path). The link verbs is built on this one: it connects by it, and sends its data another way (verbs.c).
 */
#ifndef VIAKIT_UDP_H
#define VIAKIT_UDP_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/budget.h"
#include "link/link.h"

#define UDP_MAX_PEERS 4096
#define UDP_BUCKETS 1024 /* size of the hash table of peers, a power of two */
#define UDP_LANES 4      /* connected sockets, for the peers with the most traffic */
#define UDP_SLOTS 16     /* the most datagrams of one receiving call */
#define UDP_SLOT 65536u  /* the longest datagram fits */
#define UDP_SMALL 256u   /* payloads up to this size are copied into one buffer, cheaper for the kernel than a vector */
#define UDP_HEADER_LEN 8
#define UDP_UNSUMMED 1       /* bytes that are kept of a datagram without a checksum, fewer than any frame has */
#define UDP_MAX_LISTED 256   /* the most NICs of one station that a reply to WHO lists */
#define UDP_MAX_PENDING 8192 /* the most requests that wait for a list of NICs: one per VI, and some */

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

/* Whether the two have one address, whatever their ports. udp_same compares both. */
int udp_same_host(const union udp_name *a, const union udp_name *b);

static inline int udp_same(const union udp_name *a, const union udp_name *b)
{
    return udp_port(a) == udp_port(b) && udp_same_host(a, b);
}

/* A NIC that this one exchanges frames with. Its address is verified: it has replied, or has returned a cookie that was
 * sent there. */
struct link_peer {
    uint8_t address[6];     /* address of its station */
    struct link_peer *next; /* in its bucket */
    union udp_name name;    /* address and port of its datagrams */
    uint8_t lane;           /* index of its socket; 0: the unconnected one */
    uint8_t refusals;       /* "port unreachable" errors since its last datagram */
    uint8_t lost;           /* to be reported as lost */
    uint8_t has_cookie;
    uint32_t traffic;          /* datagrams from it on the unconnected socket: a busy peer gets a lane */
    uint32_t segment;          /* bytes of wire header and payload that the path carries in one piece */
    uint32_t singles;          /* sends left before super-frames are tried again ... */
    uint32_t next_singles;     /* ... and their number after the next refusal */
    uint64_t cookie;           /* the cookie that it expects in requests */
    struct verbs_route *route; /* the link verbs, which owns it; else NULL */
};

/* sockets[0] receives from any peer. The others are lanes, each connected to one peer, so that the kernel need not look
 * up the route and the receiver. */
struct udp_socket {
    int fd;                 /* -1: none */
    struct link_peer *peer; /* lane: its peer */
    uint8_t streak;         /* consecutive polls that received something */
    uint32_t segments;      /* lane: frames in the last datagram */
    uint8_t fresh;          /* bound but not yet drained: datagrams from before connect() may be another peer's */
    uint32_t seen_traffic, traffic; /* datagrams at the last search for an idle lane, and now */
    uint32_t dropped;               /* datagrams dropped by the kernel, at the last count */
};

/* A connection request that waits for the list of a station's NICs. */
struct udp_pending {
    uint64_t nonce, until; /* 0: unused */
    union udp_name station;
    uint8_t address[6];
    uint32_t number, len;
    uint8_t bytes[sizeof(struct wire_header) + sizeof(((struct link_frame *)0)->block)];
};

/* One NIC's end. Only its owner accesses it. State shared by several NICs lies in the kernel (the station's common
 * port, the names of station.h) and in udp_address.c, which has a mutex. Descriptors are -1 or open, and belong to the
 * link. Peers live until it closes. buffer is overwritten by each receiving call, small by each sending one. */
struct link {
    struct link_client *client;
    struct udp_socket sockets[1 + UDP_LANES];
    int station_fd, claim_fd;
    union udp_name name;      /* address and port of sockets[0] */
    uint8_t address[6];       /* station: IPv4 address, or mark of an IPv6 address, and the station's common port */
    uint16_t station;         /* the station's common port */
    char interface[IFNAMSIZ]; /* interface that has the address */
    char prefix[80];          /* prefix of the names by which the NICs of this station find each other */
    uint32_t mtu;
    uint32_t head;        /* bytes of IP and UDP headers */
    uint32_t segment;     /* bytes of wire header and payload of a full frame */
    uint32_t super_bytes; /* the most bytes of a super-frame */
    int super_frames;     /* the kernel accepts super-frames (UDP_SEGMENT) */
    int crc_always;       /* CRC32C also over all data that UDP's checksum covers */
    int receive_super;    /* the kernel delivers super-frames whole (UDP_GRO) */
    uint32_t granted;     /* bytes of a socket's receive buffer */
    int n_lanes, hot,
        other; /* open lanes, the socket that last received something, the other socket that was polled last */
    uint32_t n_polls, n_received;
    int asleep;     /* a thread sleeps on the sockets */
    uint32_t woken; /* a bit for each socket that ended the sleep */
    int errors;     /* the unconnected socket's error queue may not be empty */
    int n_lost;     /* peers marked lost */
    struct link_peer *wants_lane;
    struct link_peer *peers[UDP_BUCKETS];
    uint32_t n_peers;
    struct udp_pending *pending; /* [n_pending] */
    int n_pending;
    uint64_t secret[2]; /* key of the cookies */
    uint16_t listed[UDP_MAX_LISTED];
    int n_listed;
    struct vk_budget listing; /* how often the list may be read */
    uint8_t *buffer;          /* [UDP_SLOTS][UDP_SLOT] */
    uint8_t small[sizeof(struct wire_header) + 200 + UDP_SMALL];
    /* The link that is built on this one (NULL: none), and its handler of calls from UDP_CALL_BEYOND on. The peer is
     * known, and the frame has at least 32 bytes. */
    void *beyond;
    void (*call_beyond)(struct link *link, struct link_peer *peer, const uint8_t *frame);
};

/* ---- udp_address.c ---- */

/* Parses "ADDRESS", "ADDRESS%IF", "IF" or "", each with an optional ":PORT". Sets *name (port 0), *station, and the
 * interface that has the address, with its MTU. Returns 0 or -errno, explained. */
int udp_parse_device(const char *device, union udp_name *name, uint16_t *station, char interface[IFNAMSIZ],
                     uint32_t *mtu);
/* Converts an address and the station's port to six bytes, and back. udp_unpack returns -EHOSTUNREACH, explained, if
 * the bytes stand for no address of that family. */
void udp_pack(const union udp_name *name, uint16_t station, uint8_t address[6]);
int udp_unpack(const uint8_t address[6], int family, union udp_name *name);
/* Stores an IPv6 address, so that udp_unpack() finds it by its mark. Any thread. */
void udp_learn(const union udp_name *name);
/* Writes the address, without the port, as text. */
void udp_text(const union udp_name *name, char text[INET6_ADDRSTRLEN]);
/* Link operation: the index-th address of a host's name, of the family of `own`. May block. */
int udp_resolve(const uint8_t own[6], const char *name, unsigned index, uint8_t address[6]);
/* The same with another common port for names without one. */
int udp_resolve_at(const uint8_t own[6], const char *name, unsigned index, uint16_t station, uint8_t address[6]);

/* ---- udp_station.c ---- */

/* Opens the unconnected socket, at a port that no other NIC of the station has, and announces the port. Returns 0 or
 * -errno. */
int udp_claim(struct link *link);
/* Opens a socket at the station's common port. Returns 0 or -errno, explained. */
int udp_open_station(struct link *link);
/* NULL: no peer has that name. */
struct link_peer *udp_find_peer(struct link *link, const union udp_name *name);
/* Finds or adds the peer. Returns NULL if there are too many. */
struct link_peer *udp_get_peer(struct link *link, const union udp_name *name, const uint8_t address[6]);
void udp_free_peers(struct link *link);
int udp_request_all(struct link *link, const uint8_t address[6], struct link_frame *frame);
int udp_count_neighbours(struct link *link);
/* Replies to the WHO datagrams at the station's common port. */
void udp_control(struct link *link);
/* Handles a frame between links, which is not passed to the provider (UDP_CALL). peer may be NULL. */
void udp_call_arrived(struct link *link, const union udp_name *from, struct link_peer *peer, const uint8_t *frame,
                      size_t len);
/* Handles a connection request from an unknown sender. Returns the new peer if the request has a valid cookie. Else
 * sends a challenge with the cookie and returns NULL. */
struct link_peer *udp_admit_sender(struct link *link, const union udp_name *from, const uint8_t *frame, size_t len);
/* Handles the report of a host that no socket is open at that address and port. */
void udp_refused(struct link *link, const union udp_name *name);

#define UDP_TRAILER 12     /* bytes behind a REQUEST: the port of the sender's station, and the receiver's cookie */
#define UDP_CALL 0xF0      /* first byte of frames between links: a version that no frame of the provider has */
#define UDP_CALL_BEYOND 16 /* second byte from this on: a call of the link that is built on this one */

/* ---- udp_send.c ---- link operations, except udp_put */

int udp_send(struct link *link, struct link_peer *peer, struct link_frame *frames, int n);
int udp_send_short(struct link *link, struct link_peer *peer, const uint64_t header[WIRE_WORDS], const void *payload,
                   size_t len);
/* Sends bytes to a name, outside the provider's protocol. Returns 0 if sent, -errno if lost. */
int udp_put(struct link *link, int fd, const union udp_name *to, const void *bytes, size_t len);

/* ---- udp_receive.c ---- the first three are link operations */

int udp_poll(struct link *link, int budget);
int udp_watch(struct link *link, struct pollfd *fds);
void udp_woken(struct link *link, const struct pollfd *fds, int n);
/* Adds the datagrams that the kernel has dropped at the sockets since the last call to dropped_ring_full. */
void udp_count_losses(struct link *link);
/* Has the kernel cut datagrams without UDP's checksum to UDP_UNSUMMED bytes. They are counted as dropped_checksum.
 * Called for each receiving socket before it is bound. Returns 0 or -errno. */
int udp_require_checksum(int fd);
/* Sets the options that every data socket has. */
void udp_set_options(struct link *link, int fd);
/* Closes a lane. Its peer is served by the unconnected socket again. */
void udp_close_lane(struct link *link, int lane);

#endif
