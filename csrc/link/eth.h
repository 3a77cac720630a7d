/*
 * What the two halves of eth share: eth.c moves frames, eth_open.c finds the interface and sets the sockets up.
 *
 *   fd         sends single frames, and receives them in the ring `frames`
 *   super_fd   receives super-frames in the ring `supers`, and what else is longer than a frame of the MTU
 *   send_fd    sends super-frames: PACKET_VNET_HDR is an option of a socket, and changes what it receives, too
 *   claim_fd   holds this NIC's port (station.h), nothing else
 *
 * A station is a MAC address. NICs of one interface share it and are told apart by the port in the wire header, which
 * the socket's filter looks at before the kernel copies anything (set_filter).
 */
#ifndef VIAKIT_ETH_H
#define VIAKIT_ETH_H

#include <linux/if_packet.h>
#include <linux/virtio_net.h>
#include <net/ethernet.h>
#include <net/if.h>

#include "link.h"

/* Bytes of IPv4's header without options, and of UDP's. A dressed frame has both in front of the wire header. */
#define IP_LEN 20
#define UDP_LEN 8
#define DRESS_LEN (IP_LEN + UDP_LEN)
#define BLOCK (1u << 20)       /* the ring is allocated in such pieces */
#define SUPER_SLOT (66u << 10) /* a super-frame with all its headers */
#define SUPER_BYTES 65507u     /* most that UDP over IPv4 carries */
#define SMALL 256u /* up to so much payload is gathered into one buffer: cheaper than a vector for the kernel */

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif
#ifndef VIRTIO_NET_HDR_GSO_UDP_L4
#define VIRTIO_NET_HDR_GSO_UDP_L4 5
#endif

/* A station: the address is all there is to know. Kept until the NIC closes. */
struct link_peer {
    struct link_peer *next;
    uint8_t address[6];
};

/* The headers in front of the wire header, in the order of the frame. */
struct eth_head {
    struct virtio_net_hdr vnet; /* not on the wire; only with PACKET_VNET_HDR */
    struct ether_header ether;
    uint8_t ip[IP_LEN];
    uint8_t udp[UDP_LEN];
} __attribute__((packed));

/* Slots that the kernel fills and we read in place. */
struct eth_ring {
    uint8_t *memory; /* NULL: there is none */
    size_t len;
    uint32_t n_slots, slot_len, slots_per_block;
    uint32_t at; /* the slot that is filled next, or the first that was and is not taken yet */
};

/* Written by the owner of the NIC, but for the rings' slots; `status` of a slot says whose it is. */
struct link {
    struct via_nic *nic;
    int fd, super_fd, send_fd, claim_fd; /* -1: none */
    char interface[IFNAMSIZ];
    uint8_t address[6];
    uint16_t port;
    viakit_form form;
    int super_frames; /* the kernel takes UDP super-frames */
    int crc_always;   /* also of super-frames, which have UDP's checksum */
    uint32_t segment; /* wire header and payload of a full frame */
    struct eth_ring frames, supers;
    struct link_peer *peers;
    uint32_t n_peers;
    struct link_peer passing; /* who gets one answer */
    uint16_t ip_id;
    uint8_t small[sizeof(struct eth_head) + sizeof(struct wire_header) + 200 + SMALL];
};

/* Beginning of the names by which the NICs of an interface find each other (station.h). */
void eth_station_prefix(const struct link *link, char prefix[64]);

/* Interface, sockets, filters and rings, in an order in which nothing is received before its filter stands. 0, or
 * -errno after having explained it. *mtu: of the frames that will be used. */
int eth_bring_up(struct link *link, const viakit_nic_options *options, uint32_t *mtu);

/* Says which interfaces there are instead. Returns -ENODEV. */
int eth_refuse_interface(const char *name);

/* Gives back whatever there is. */
void eth_close(struct link *link);

#endif
