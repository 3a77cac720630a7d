/*
 * VipQuerySystemManagementInfo(VIP_SMI_AUTODISCOVERY): find the NICs to which connections are possible.
 *
 *   loop, shm   the NIC's own station, which is the only one
 *   others      this station, the hosts that the user has named (config.h), and all stations that reply to a
 *               broadcast: a connection request that no server can wait for, which every NIC answers with NOMATCH. It
 *               is sent twice within a fifth of a second. If both frames are lost, a host is missing.
 *
 * The list belongs to the provider and stays valid until the next query of the same NIC, or until the NIC is closed.
 * Its addresses have no discriminator and lie 4 + NicAddressLen bytes apart.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/list.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/connect/config.h"
#include "via/connect/conn.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/nic.h"

/* Stations in one list, milliseconds for all replies, bytes from one VIP_NET_ADDRESS of the list to the next. */
#define MOST 256
#define QUERY_MS 200
#define STRIDE (4 + 6)

/* The query of one thread; on its stack. */
struct via_discovery {
    struct via_discovery *next;
    uint32_t number, key; /* random; only replies that repeat both count */
    struct link_frame frame;
    uint64_t again_at; /* ns of vk_now(): the second broadcast; VK_NEVER: it was sent */
    uint32_t n;        /* stations found so far */
    uint8_t addresses[MOST][6];
};

/* Add a station once: it replies to each request, and with each of its NICs. */
static void add(struct via_discovery *d, const uint8_t address[6])
{
    for (uint32_t i = 0; i < d->n; i++)
        if (memcmp(d->addresses[i], address, 6) == 0)
            return;
    if (d->n < MOST)
        memcpy(d->addresses[d->n++], address, 6);
}

/* ---------------------------------------------------------------- frames */

/* A broadcast of another NIC arrived: reply with NOMATCH and store nothing about the sender. */
void conn_discovery_arrived(struct via_nic *nic, struct conn_frame *f)
{
    conn_reply_in_passing(nic, f, WIRE_NOMATCH, 0, &(struct wire_connect){.request = f->c.request}, NULL);
}

/* Return 1 if the reply belongs to a query of this NIC: number and key must match. The key is in the reply's header,
 * where conn_reply_in_passing() puts the requester's. The station is added to the query's list. */
int conn_discovery_answered(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_discovery *d = nic->discoveries; d; d = d->next)
        if (d->number == f->c.request && d->key == f->h->key) {
            add(d, f->from);
            return 1;
        }
    return 0;
}

/* Send the broadcast. It is repeated after half the time, because the first frame may have been lost. */
static void send_broadcast(struct via_nic *nic, struct via_discovery *d)
{
    static const uint8_t broadcast[6] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    nic->ops->request_all(nic->link, broadcast, &d->frame);
    NIC_COUNT(nic, frames_sent, 1);
}

/* again_at is VK_NEVER once the broadcast has been sent twice; via_timer() ignores that. */
void conn_discovery_timers(struct via_nic *nic)
{
    for (struct via_discovery *d = nic->discoveries; d; d = d->next) {
        if (d->again_at <= nic->now) {
            d->again_at = VK_NEVER;
            send_broadcast(nic, d);
        }
        via_timer(nic, d->again_at);
    }
}

/* ---------------------------------------------------------------- the call */

/* Add the hosts given by six bytes. Any other form is a name, which would require a name service. Runs outside of the
 * NIC: the query is not on the NIC's list yet, so no other thread uses it. Returns 0, so that config_each() visits
 * every entry. */
static int named_host(void *context, const char *name, const char *value, const char *where)
{
    uint8_t address[6];
    (void)name, (void)where;
    if (config_parse_address(value, address))
        add(context, address);
    return 0;
}

/* The condition of the wait: never true, so that replies are collected for the whole time. Their number is not known.
 */
static int never(void *argument)
{
    (void)argument;
    return 0;
}

/* Takes the query off the NIC's list. Also runs if the thread is cancelled during the wait, because the list must not
 * point at a stack that is gone. */
static void remove_discovery(struct via_nic *nic, void *discovery)
{
    struct via_discovery *d = discovery;
    VK_LIST_REMOVE(nic->discoveries, d, next);
}

/* Send the broadcast and collect replies until the time is over. The caller is the NIC's owner; the NIC is left while
 * the thread waits. The result of the wait does not matter: the list has what has arrived, also if the wait was
 * interrupted. */
static void query_wire(struct via_nic *nic, struct via_discovery *d)
{
    d->number = conn_random();
    d->key = conn_random();
    via_frame_init(nic, &d->frame, WIRE_REQUEST);
    d->frame.block.connect = (struct wire_connect){
        .request = d->number, .key = d->key, .max_payload = WIRE_LEAST_PAYLOAD, .mode = WIRE_MODE_DISCOVER};
    d->frame.header.len = (uint16_t)sizeof d->frame.block.connect;
    d->frame.header_len = (uint32_t)(sizeof d->frame.header + sizeof d->frame.block.connect);
    /* On the list only during the wait, because it lies on this stack. */
    d->next = nic->discoveries;
    nic->discoveries = d;
    nic->now = vk_now();
    d->again_at = nic->now + QUERY_MS / 2 * VK_MS;
    via_timer(nic, d->again_at);
    send_broadcast(nic, d);
    via_wait_owned(nic, QUERY_MS, never, d, "VipQuerySystemManagementInfo: no further answer", remove_discovery);
    remove_discovery(nic, d);
}

/* Return the list in the layout that the program receives. NULL: memory is exhausted. Each entry is a VIP_NET_ADDRESS:
 * its two lengths, then the address. The caller owns it. */
static uint8_t *lay_out(const struct via_discovery *d)
{
    uint8_t *bytes = calloc(d->n, STRIDE);
    for (uint32_t i = 0; bytes && i < d->n; i++) {
        uint16_t head[2] = {6, 0};
        memcpy(bytes + STRIDE * i, head, sizeof head);
        memcpy(bytes + STRIDE * i + 4, d->addresses[i], 6);
    }
    return bytes;
}

/* VIPL's AUTODISCOVERY: this station, the hosts that the user has named, and the stations that reply. The list stays
 * valid until the next call of this kind or until the NIC is closed. NumberOfHops is 0 for links without a wire. On a
 * wire the call blocks for QUERY_MS. *info is set only on success. */
VIP_RETURN VipQuerySystemManagementInfo(VIP_NIC_HANDLE handle, VIP_ULONG type, VIP_PVOID info)
{
    VK_HOLD_CANCEL;
    VIP_AUTODISCOVERY_LIST *list = info;
    struct via_discovery d = {0};
    VIP_RETURN code = VIP_SUCCESS;
    if (type != VIP_SMI_AUTODISCOVERY)
        return vk_fail(VIP_INVALID_PARAMETER, "VipQuerySystemManagementInfo: there is no information of type %lu",
                       type);
    if (list == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipQuerySystemManagementInfo: no place for the list (NULL)");
    VIA_ENTER_NIC(nic, handle);
    add(&d, nic->limits.address);
    /* Links within one host have one station only. */
    int wire = nic->ops->about.leaves_host;
    if (wire) {
        nic->n_calls++; /* it keeps the NIC open while files are read */
        via_leave(nic);
        config_each(CONFIG_HOST, NULL, 0, named_host, &d);
        via_enter(nic);
        nic->n_calls--;
        query_wire(nic, &d);
    }
    uint8_t *bytes = lay_out(&d);
    if (nic->closing || bytes == NULL) {
        free(bytes);
        code = nic->closing ? vk_fail(VIP_INVALID_PARAMETER, "the NIC is being closed")
                            : vk_fail(VIP_ERROR_RESOURCE, "VipQuerySystemManagementInfo: memory is exhausted");
    } else {
        free(nic->discovered);
        nic->discovered = bytes;
        list->NumberOfHops = (VIP_ULONG)wire;
        list->ADAddrArray = (VIP_NET_ADDRESS *)(void *)bytes;
        list->NumAdAddrs = d.n;
    }
    via_leave(nic);
    return code;
}
