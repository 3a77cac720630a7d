/* address.h - a VIP_NET_ADDRESS with room for a NIC's address of 6 bytes and a discriminator of up to 64. */
#ifndef ADDRESS_H
#define ADDRESS_H

#include <stdint.h>

#include "vipl.h"

typedef union {
    VIP_NET_ADDRESS net;
    uint8_t room[4 + 6 + 64];
} address;

#endif
