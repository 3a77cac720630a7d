/*
 * between.h - something that stands between a NIC and its link: it sees every frame of a handshake that the NIC sends,
 * keeps copies, and may change frames. And frames made by hand, sent by a NIC's own link. On every link.
 */
#ifndef BETWEEN_H
#define BETWEEN_H

/* First: it has parameters with the name of a type of the harness. */
#include "link/link.h"
#include "via/nic.h"

#include "harness.h"

#define BETWEEN_KINDS 16

typedef struct {
    struct link_ops ops; /* first: a NIC's ops lead back to this struct */
    const struct link_ops *real;
    struct via_nic *nic;
    /* The last frame of each kind that the NIC sent, as it was before it was changed; n_sent 0: none. */
    struct link_frame last[BETWEEN_KINDS];
    unsigned n_sent[BETWEEN_KINDS];
    /* The next n_spoil frames of this kind have a bit flipped, at this byte behind the header. */
    int spoil_kind;
    unsigned spoil_at, n_spoil, n_spoilt;
} between;

/* Between open and close the NIC must not be closed. */
void between_open(between *b, VIP_NIC_HANDLE nic);
void between_close(between *b);
void between_spoil(between *b, int kind, unsigned at, unsigned n);
unsigned between_spoilt(between *b); /* frames so far, since between_spoil */
/* A copy of the last frame of that kind. Fails the test if no such frame has passed. */
struct link_frame between_last(between *b, int kind);
/* Was there one since between_open? */
int between_has(between *b, int kind);

/* Sends a frame from this NIC to the NIC of that port at the station; waits as long as the link is full. */
void send_by_hand(VIP_NIC_HANDLE nic, const uint8_t station[6], uint16_t port, const struct link_frame *frame);
uint16_t port_of(VIP_NIC_HANDLE nic);

#endif
