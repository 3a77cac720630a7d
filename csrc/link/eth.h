/*
 * Declarations shared by the files of eth: eth.c sends frames, eth_receive.c receives them, eth_open.c finds the
 * interface and sets up the sockets, eth_super.c decides whether super-frames are used and how long they are.
 *
 *   fd         sends single frames, and receives them in the ring `frames`
 *   super_fd   receives super-frames in the ring `supers`, and other frames longer than the MTU allows
 *   stream_fd  receives the super-frames of long messages in its queue, and their beginnings in the ring `streams`
 *   send_fd    sends super-frames: PACKET_VNET_HDR is an option of a socket and also changes what it receives
 *   claim_fd   holds this NIC's port (station.h), nothing else
 *
 * A station is a MAC address. NICs of one interface share it and are distinguished by the port in the wire header. The
 * socket's filter checks that port before the kernel copies anything (eth_filter.h).
 */
#ifndef VIAKIT_ETH_H
#define VIAKIT_ETH_H

#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>

#include "link/link.h"

/* Bytes of IPv4's header without options, and of UDP's. A frame of the form "udp" has both in front of the wire
 * header. */
#define IP_LEN 20
#define UDP_LEN 8
#define IP_UDP_LEN (IP_LEN + UDP_LEN)
#define BLOCK (1u << 20)       /* size of the ring's blocks, bytes */
#define SUPER_SLOT (66u << 10) /* bytes of a super-frame with all its headers */
#define MOST_BYTES 65507u      /* the most bytes that UDP over IPv4 carries */
#define SMALL 256u /* payloads up to this size are copied into one buffer, which costs the kernel less than a vector */

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

/* ---- sizes of super-frames, as functions of their arguments only */

#define ETH_GSO_BYTES 65536u /* gso_max_size of an interface that does not report it */
#define ETH_GSO_SEGMENTS 65535u
/* The kernel refuses super-frames with more segments (UDP_MAX_SEGMENTS; 128 since Linux 6.9). */
#define ETH_MOST_SEGMENTS 64u

/* Returns the most bytes of segments in one super-frame. The kernel requires that the frame, Ethernet header included,
 * is shorter than gso_max_size. */
static inline uint32_t eth_super_bytes(uint32_t gso_max_size)
{
    const uint32_t head = (uint32_t)sizeof(struct ether_header) + IP_UDP_LEN;
    if (gso_max_size <= head)
        return 0;
    return gso_max_size - 1 - head < MOST_BYTES ? gso_max_size - 1 - head : MOST_BYTES;
}

static inline uint32_t eth_super_segments(uint32_t gso_max_segs)
{
    return gso_max_segs < ETH_MOST_SEGMENTS ? gso_max_segs : ETH_MOST_SEGMENTS;
}

/* Returns how many full frames of `segment` bytes fit into one super-frame of these limits; 1: no super-frame. */
static inline uint32_t eth_super_batch(uint32_t segment, uint32_t bytes, uint32_t segments)
{
    uint32_t n = bytes / segment < segments ? bytes / segment : segments;
    return n > 1 ? n : 1;
}

/* Result of sending a frame or super-frame. */
enum eth_verdict {
    ETH_FAILED = -2,  /* the interface has accepted no frame for seconds: link->error */
    ETH_REFUSED = -1, /* the kernel does not support this form */
    ETH_FULL = 0,     /* retry later */
    ETH_SENT = 1,
    ETH_LOST = 2, /* dropped by the interface, which is down or has no carrier */
};

/* Features of the interface that super-frames need: the first, and one of the other two. */
enum { ETH_FEATURE_UDP_SEGMENTATION, ETH_FEATURE_CHECKSUM, ETH_FEATURE_CHECKSUM_IPV4, ETH_N_FEATURES };

/* A station, fully described by its address. Kept until the NIC closes. */
struct link_peer {
    uint8_t address[6];
    struct link_peer *next;
};

/* The headers in front of the wire header, in the order of the frame. */
struct eth_head {
    struct virtio_net_hdr vnet; /* not on the wire, only with PACKET_VNET_HDR */
    struct ether_header ether;
    uint8_t ip[IP_LEN];
    uint8_t udp[UDP_LEN];
} __attribute__((packed));

/* Slots that the kernel fills and the link reads in place. */
struct eth_ring {
    uint8_t *memory; /* NULL: no ring */
    size_t len;
    uint32_t n_slots, slot_len, slots_per_block;
    uint32_t at;                /* index of the first slot that has not been read ... */
    struct tpacket2_hdr *first; /* ... and that slot; without a ring one that is always the kernel's */
};

/* The owner of the NIC writes it. Only a ring's slots are shared: `status` of a slot names its present owner. */
struct link {
    struct link_client *client;
    int fd, super_fd, stream_fd, send_fd, claim_fd; /* -1: none */
    char interface[IFNAMSIZ];
    uint8_t address[6];
    uint16_t port;
    viakit_form form;
    int super_frames;        /* super-frames are in use */
    int crc_always;          /* CRC32C also over super-frames, which have UDP's checksum */
    uint32_t segment;        /* wire header and payload of a full frame */
    uint32_t super_bytes;    /* the most bytes of all segments of a super-frame */
    uint32_t super_segments; /* the most segments of a super-frame */
    struct eth_ring frames, supers, streams;
    uint32_t stream_room;           /* super-frames that have room in the queue of stream_fd */
    uint8_t *queued;                /* SUPER_SLOT bytes for super-frames out of that queue */
    const struct link_peer *stream; /* the last data were a super-frame of full length to this peer, if not NULL */
    uint32_t mark;                  /* of the super-frame that is being sent: ETH_MARK or 0 */
    struct link_peer *peers;
    uint32_t n_peers;
    struct link_peer passing; /* destination of a single reply to an unknown peer */
    uint16_t ip_id;
    /* eth_super.c */
    int index;                        /* index of the interface */
    int super_possible;               /* the form and the kernel allow super-frames; the interface may not */
    int features_known;               /* feature_bits were read */
    int feature_bits[ETH_N_FEATURES]; /* -1: this kernel has no such feature */
    uint32_t strikes;                 /* consecutive refusals of super-frames that the interface should accept */
    uint32_t pause, pause_left;       /* frames to send before super-frames are tried again */
    uint64_t full_since, full_last; /* ns: first and last of a series of refusals during which no frame was accepted */
    uint64_t full_taken;            /* frames accepted before the series */
    int error;                      /* -errno of ETH_FAILED */
    uint8_t small[sizeof(struct eth_head) + sizeof(struct wire_header) + 200 + SMALL];
};

/* Writes the prefix of the names by which the NICs of an interface find each other (station.h). */
void eth_station_prefix(const struct link *link, char prefix[64]);

/* Opens interface, sockets, filters and rings. The filters are in place before any frame is received. Returns 0, or
 * -errno after having explained it. *mtu is set to the MTU of the frames that will be used. */
int eth_bring_up(struct link *link, const viakit_nic_options *options, uint32_t *mtu);

/* ---- eth_receive.c: operations of the link */

int eth_poll(struct link *link, int budget);
int eth_arm(struct link *link);
int eth_watch(struct link *link, struct pollfd *fds);
void eth_woken(struct link *link, const struct pollfd *fds, int n);

/* Counts the frames that the kernel dropped since the last call. */
void eth_count_losses(struct link *link);

/* ---- eth_super.c */

/* Decides at open whether super-frames are used. super_possible and segment are set, the sockets are open. */
void eth_super_start(struct link *link);

/* Handles the refusal of a super-frame whose first frame was then accepted alone. Shortens super-frames or switches
 * them off. */
void eth_super_refused(struct link *link);

/* Called when a frame of a run is sent by itself because super-frames are off. Reads the features again when the pause
 * is over. */
void eth_super_paused(struct link *link);

/* Handles the refusal of a single frame with ENOBUFS, ENOMEM or EAGAIN. Returns
 *
 * - ETH_FULL: retry later,
 * - ETH_LOST: the interface has no carrier,
 * - ETH_FAILED: it has refused every frame for seconds. link->error and the NIC's trouble are set. */
enum eth_verdict eth_full(struct link *link, int error);

/* Explains which interfaces exist instead. Returns -ENODEV. */
int eth_refuse_interface(const char *name);

/* Releases everything, also after an incomplete open. */
void eth_close(struct link *link);

#endif
