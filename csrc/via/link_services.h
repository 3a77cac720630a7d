/*
 * link_services.h - the services of the provider to its links. Contracts: link.h. Table: link_services.c.
 */
#ifndef VIAKIT_VIA_LINK_SERVICES_H
#define VIAKIT_VIA_LINK_SERVICES_H

#include "via/nic.h"

/* The NIC that a link's client pointer belongs to. */
static inline struct via_nic *via_nic_of(struct link_client *client)
{
    return (struct via_nic *)(void *)((char *)client - offsetof(struct via_nic, link_client));
}

/* One table serves all links and NICs: the client identifies the NIC. */
extern const struct link_services via_link_services;

/* data/rx.c: arriving frames */
void via_link_deliver(struct link_client *client, const uint8_t from[6], struct link_peer *peer, const void *frame,
                      size_t len);
void via_link_deliver_parts(struct link_client *client, const uint8_t from[6], struct link_peer *peer,
                            const struct wire_header *header, const void *payload, size_t len);
void *via_link_place_ahead(struct link_client *client, const struct wire_header *last, size_t len);
void via_link_set_checksum_verified(struct link_client *client, int verified);

/* data/card.c: RDMA by a card */
int via_link_grant(struct link_client *client, const struct link_peer *peer, uint16_t number, uint32_t key,
                   uint32_t handle, struct link_grant *grant);
void via_link_rdma_done(struct link_client *client, void *owner, uint32_t index, int error);

/* connect/conn.c and, for no_nic, conn_client.c: requests, and peers that are lost */
void via_link_peer_lost(struct link_client *client, struct link_peer *peer);
int via_link_request_is_open(struct link_client *client, uint32_t request);
int via_link_matches_own_request(struct link_client *client, const struct link_frame *frame);
void via_link_no_address_space(struct link_client *client, uint16_t port);
int via_link_lacks_address_space(struct link_client *client, uint16_t port);
void via_link_no_nic(struct link_client *client, const uint8_t address[6]);

/* objects/engine.c: when the next timer is due */
uint64_t via_link_due(struct link_client *client);

/* objects/faults.c: what the fault decorator needs */
void via_link_timer(struct link_client *client, uint64_t at);
int via_link_must_arrive(struct link_client *client, const struct wire_header *h);
void via_link_discard_arrivals(struct link_client *client, int discard);

/* objects/error.c: permanent failures */
void via_link_trouble(struct link_client *client, const char *text);

#endif
