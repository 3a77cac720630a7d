/*
 * VipQuerySystemManagementInfo(VIP_SMI_AUTODISCOVERY): which NICs could be talked to.
 *
 *   loop, shm   the NIC's own station: that is the only one there is
 *   others      this station, the hosts that the user has named (config.h), and whoever answers a question to all: a
 *               connection request that nobody can be waiting for, sent to the broadcast address, which every NIC that
 *               hears it answers with NOMATCH. Asked twice within a fifth of a second: frames may be lost, and then a
 *               host is missing.
 *
 * The list belongs to the provider and stays as it is until the next query of the same NIC, or until that is closed.
 * Its addresses have no discriminator and lie 4 + NicAddressLen bytes apart, each behind the other.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "config.h"
#include "conn.h"

/* Stations in one list; milliseconds for all answers; bytes from one VIP_NET_ADDRESS of the list to the next. */
#define MOST 256
#define ASK_FOR_MS 200
#define STRIDE (4 + 6)

/* The thread that asks; on its stack. */
struct via_discovery {
    struct via_discovery *next;
    uint32_t number, key;
    struct link_frame frame;
    uint64_t again_at;
    uint32_t n;
    uint8_t addresses[MOST][6];
};

/* Each station once: it answers as often as it is asked, and with each of its NICs. */
static void add(struct via_discovery *d, const uint8_t address[6])
{
    for (uint32_t i = 0; i < d->n; i++)
        if (memcmp(d->addresses[i], address, 6) == 0)
            return;
    if (d->n < MOST)
        memcpy(d->addresses[d->n++], address, 6);
}

/* ---------------------------------------------------------------- frames */

/* Somebody asks who is there: NOMATCH says that we are, and keeps nothing of the asker. */
void conn_discovery_arrived(struct via_nic *nic, struct conn_frame *f)
{
    conn_say_in_passing(nic, f, WIRE_NOMATCH, 0, &(struct wire_connect){.request = f->c.request});
}

/* 1 if the answer is to one of ours: number and key are what we sent. */
int conn_discovery_answered(struct via_nic *nic, const struct conn_frame *f)
{
    for (struct via_discovery *d = nic->discoveries; d; d = d->next)
        if (d->number == f->c.request && d->key == f->h->key) {
            add(d, f->from);
            return 1;
        }
    return 0;
}

/* To the broadcast address, so whoever hears us answers; once more after half the time, for the first may have been
 * lost. */
static void ask(struct via_nic *nic, struct via_discovery *d)
{
    static const uint8_t everybody[6] = {0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF};
    nic->ops->ask_all(nic->link, everybody, &d->frame);
    NIC_COUNT(nic, frames_sent, 1);
}

/* VK_NEVER once it has been asked twice; via_timer() ignores that. */
void conn_discovery_timers(struct via_nic *nic)
{
    for (struct via_discovery *d = nic->discoveries; d; d = d->next) {
        if (d->again_at <= nic->now) {
            d->again_at = VK_NEVER;
            ask(nic, d);
        }
        via_timer(nic, d->again_at);
    }
}

/* ---------------------------------------------------------------- the call */

/* Entries in six bytes only: another form is a name, which would have to be asked for elsewhere. */
static int named_host(void *context, const char *name, const char *value, const char *where)
{
    unsigned b[6];
    char rest;
    (void)name, (void)where;
    if (sscanf(value, "%2x:%2x:%2x:%2x:%2x:%2x%c", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5], &rest) == 6)
        add(context,
            (uint8_t[6]){(uint8_t)b[0], (uint8_t)b[1], (uint8_t)b[2], (uint8_t)b[3], (uint8_t)b[4], (uint8_t)b[5]});
    return 0;
}

/* So that the wait lasts as long as it was given: answers are gathered meanwhile, and how many there are nobody
 * knows. */
static int never(void *argument)
{
    (void)argument;
    return 0;
}

static void take_off(struct via_nic *nic, void *discovery)
{
    struct via_discovery **p = &nic->discoveries;
    while (*p != discovery)
        p = &(*p)->next;
    *p = (*p)->next;
}

/* Asks on the wire and collects the answers until the time is over. */
static void ask_the_wire(struct via_nic *nic, struct via_discovery *d)
{
    d->number = conn_random();
    d->key = conn_random();
    via_frame_init(nic, &d->frame, WIRE_REQUEST);
    d->frame.block.connect = (struct wire_connect){
        .request = d->number, .key = d->key, .max_payload = WIRE_LEAST_PAYLOAD, .mode = WIRE_MODE_DISCOVER};
    d->frame.header.len = (uint16_t)sizeof d->frame.block.connect;
    d->frame.header_len = (uint32_t)(sizeof d->frame.header + sizeof d->frame.block.connect);
    /* On the list as long as we wait, and no longer: it lies on this stack. */
    d->next = nic->discoveries;
    nic->discoveries = d;
    nic->now = vk_now();
    d->again_at = nic->now + ASK_FOR_MS / 2 * VK_MS;
    via_timer(nic, d->again_at);
    ask(nic, d);
    via_wait_owned(nic, ASK_FOR_MS, never, d, "VipQuerySystemManagementInfo: no further answer", take_off);
    take_off(nic, d);
}

/* The list as the program shall find it. */
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

/* VIPL's AUTODISCOVERY: this station, the hosts that the user has named, and who answers on the wire. The list stays
 * good until the next call of this kind or the NIC's end. NumberOfHops is 0 where there is no wire. */
VIP_RETURN VipQuerySystemManagementInfo(VIP_NIC_HANDLE handle, VIP_ULONG type, VIP_PVOID info)
{
    VK_HOLD_CANCEL;
    VIP_AUTODISCOVERY_LIST *list = info;
    struct via_discovery d = {0};
    VIP_RETURN code = VIP_SUCCESS;
    if (type != VIP_SMI_AUTODISCOVERY)
        return via_fail(VIP_INVALID_PARAMETER, "VipQuerySystemManagementInfo: there is no information of type %lu",
                        type);
    if (list == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipQuerySystemManagementInfo: no place for the list (NULL)");
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    add(&d, nic->limits.address);
    /* Links that lose nothing (loop, shm) have one station only. */
    int wire = !nic->limits.lossless;
    if (wire) {
        nic->n_calls++; /* it stays while we read files */
        via_leave(nic);
        config_each(CONFIG_HOST, NULL, 0, named_host, &d);
        via_enter(nic);
        nic->n_calls--;
        ask_the_wire(nic, &d);
    }
    uint8_t *bytes = lay_out(&d);
    if (nic->closing || bytes == NULL) {
        free(bytes);
        code = nic->closing ? via_fail(VIP_INVALID_PARAMETER, "the NIC is being closed")
                            : via_fail(VIP_ERROR_RESOURCE, "VipQuerySystemManagementInfo: memory is exhausted");
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
