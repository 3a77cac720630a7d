/*
 * Registered buffers. "We keep the page locked and remember the translation as long as there is enough memory" (BIP,
 * section 4.2): the last REGIONS buffers stay registered, exactly as long as they were given, and the one unused for
 * longest makes room.
 *
 * A registration that outlives its memory (freed, and given to somebody else) does no harm here: the provider reads
 * and writes through the process's present mapping, and a peer writes only to what it was just told.
 */
#include "bip/internal.h"

/* A registration for buf: the same again if there is one of at least this length from the same first byte, else
 * a new one in the place of the one unused for longest (used: a counter, not a time). A linear look at REGIONS
 * entries: 64 pointers are compared in less time than a packet takes. A region in use is never evicted. */
bip_region *bip_region_get(bip_port *port, const void *buf, size_t len)
{
    bip_region *oldest = NULL;
    for (int i = 0; i < REGIONS; i++) {
        bip_region *r = &port->regions[i];
        if (r->buf == buf && r->len >= len) {
            r->users++;
            r->used = ++port->n_uses;
            return r;
        }
        if (r->users == 0 && (oldest == NULL || r->used < oldest->used))
            oldest = r;
    }
    if (oldest == NULL)
        return NULL; /* all in use: the caller tries again later */
    if (oldest->buf) {
        VipDeregisterMem(port->nic, oldest->buf, oldest->handle);
        /* If registering fails now the place is empty and the first to be taken. */
        oldest->buf = NULL;
        oldest->used = 0;
    }
    /* buffers of sends are registered like those of receives: many programs use one for both */
    VIP_MEM_ATTRIBUTES attributes = {.Ptag = port->ptag, .EnableRdmaWrite = VIP_TRUE};
    VIP_RETURN code = VipRegisterMem(port->nic, (void *)(uintptr_t)buf, len, &attributes, &oldest->handle);
    if (code != VIP_SUCCESS) {
        bip_nic_failed(port->job, "VipRegisterMem", code);
        return NULL;
    }
    oldest->buf = (char *)(uintptr_t)buf;
    oldest->len = len;
    oldest->users = 1;
    oldest->used = ++port->n_uses;
    BIP_COUNT(port->job, registrations, 1);
    return oldest;
}

/* NULL is fine. The registration stays, for the next message from or to the same buffer. */
void bip_region_put(bip_region *region)
{
    if (region)
        region->users--;
}

void *bip_reserve(bip_job *job, int rank, const void *buf, size_t len)
{
    bip_port *port = rank >= 0 && rank < job->options.n_ranks ? job->peers[rank].port : NULL;
    return port && buf && len ? bip_region_get(port, buf, len) : NULL;
}

void bip_release(void *reserved)
{
    bip_region_put(reserved);
}

/* Ranges that overlap and are not in use. A program calls this before it frees memory that it sent from. */
void bip_forget(bip_job *job, const void *buf, size_t len)
{
    uintptr_t from = (uintptr_t)buf, to = len > UINTPTR_MAX - from ? UINTPTR_MAX : from + len;
    for (int k = 0; k < 2; k++)
        for (int i = 0; job->ports[k] && i < REGIONS; i++) {
            bip_region *r = &job->ports[k]->regions[i];
            if (r->buf == NULL || r->users || (uintptr_t)r->buf >= to || (uintptr_t)r->buf + r->len <= from)
                continue;
            VipDeregisterMem(job->ports[k]->nic, r->buf, r->handle);
            *r = (bip_region){.buf = NULL};
        }
}

void bip_regions_fini(bip_port *port)
{
    for (int i = 0; i < REGIONS; i++)
        if (port->regions[i].buf)
            VipDeregisterMem(port->nic, port->regions[i].buf, port->regions[i].handle);
}
