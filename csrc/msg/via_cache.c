/*
 * The registration cache ("pin-down cache"): a rendezvous needs both buffers registered, programs use the same ones
 * again and again, and registering costs more than moving some kilobytes. So a registration is kept after use, up to
 * the policy's cache_bytes and cache_entries; the one unused for longest goes first.
 *
 * Invalidation. Where a NIC's hardware reads physical pages, a cached registration of memory that was unmapped and
 * mapped anew is a trap, and libraries of the time intercepted free() and munmap() for it. Here every access goes
 * through the process's present mapping, so a stale entry can do no wrong to a message. What remains: a rank that was
 * once told the handle of a receive buffer could still write there. msg_forget() takes an entry away; so does
 * eviction, and closing the world.
 *
 * Entries are exact, never rounded to pages: nobody is granted his neighbour's bytes. They are found by their first
 * byte.
 */
#include <stdlib.h>

#include "via.h"

/* As many as a policy keeps entries by default: a chain has about one. */
#define BUCKETS 1024

/* One registration. In use (users > 0) it is in its bucket only; unused, also in the list
 * from the oldest to the youngest.
 *
 *      bucket_of(buf) -> region -chain-> region -chain-> ...          all of them
 *      oldest <-older/younger-> ... <-> youngest                      those that nobody uses: evicted from the left */
struct vc_region {
    char *buf;
    size_t len;
    VIP_MEM_HANDLE handle;
    uint32_t users;
    int stale; /* forgotten, or too large to be kept: goes with its last user */
    struct vc_region *chain;
    struct vc_region *older, *younger; /* among the unused */
};

int vc_cache_init(struct vc_port *port)
{
    port->cache.buckets = calloc(BUCKETS, sizeof *port->cache.buckets);
    port->cache.mask = BUCKETS - 1;
    return port->cache.buckets ? 0 : MSG_ERR_NO_MEMORY;
}

/* Multiplied by an odd constant, and high bits taken: the low ones of addresses are mostly zero. */
static struct vc_region **bucket_of(struct vc_cache *c, const void *buf)
{
    return &c->buckets[(uint64_t)(uintptr_t)buf * 0x9E3779B97F4A7C15ull >> 40 & c->mask];
}

static void unlink_unused(struct vc_cache *c, struct vc_region *r)
{
    *(r->older ? &r->older->younger : &c->oldest) = r->younger;
    *(r->younger ? &r->younger->older : &c->youngest) = r->older;
    r->older = r->younger = NULL;
}

static void link_unused(struct vc_cache *c, struct vc_region *r)
{
    r->older = c->youngest;
    r->younger = NULL;
    *(c->youngest ? &c->youngest->younger : &c->oldest) = r;
    c->youngest = r;
}

static void deregister(struct vc_port *port, struct vc_region *r)
{
    struct vc_cache *c = &port->cache;
    struct vc_region **p = bucket_of(c, r->buf);
    /* It is in this chain: only regions that were put there get here. */
    while (*p != r)
        p = &(*p)->chain;
    *p = r->chain;
    c->n--;
    c->bytes -= r->len;
    port->world->counters[MSG_COUNTER_cache_bytes_now] -= r->len;
    VipDeregisterMem(port->nic, r->buf, r->handle);
    free(r);
}

void vc_cache_fini(struct vc_port *port)
{
    struct vc_cache *c = &port->cache;
    for (uint32_t i = 0; c->buckets && i <= c->mask; i++)
        while (c->buckets[i])
            deregister(port, c->buckets[i]);
    free(c->buckets);
    c->buckets = NULL;
}

/* Makes room for len bytes more, among those that nobody uses. If all are in use the bounds are passed for a
 * while: a message has to go on, and vc_cache_put makes up for it. */
static void evict(struct vc_port *port, size_t len)
{
    const msg_policy *p = &port->world->policy;
    struct vc_cache *c = &port->cache;
    while (c->oldest && (c->bytes + len > (uint64_t)p->cache_bytes || c->n >= (uint64_t)p->cache_entries)) {
        struct vc_region *r = c->oldest;
        unlink_unused(c, r);
        deregister(port, r);
        MSG_COUNT(port->world, cache_evictions, 1);
    }
}

/* A registration of at least len bytes from buf on, in use until vc_cache_put. One that is too short does not serve;
 * it stays until it is evicted. */
struct vc_region *vc_cache_get(struct vc_port *port, void *buf, size_t len)
{
    struct vc_cache *c = &port->cache;
    for (struct vc_region *r = *bucket_of(c, buf); r; r = r->chain)
        if (r->buf == buf && r->len >= len && !r->stale) {
            if (r->users++ == 0)
                unlink_unused(c, r);
            MSG_COUNT(port->world, cache_hits, 1);
            return r;
        }
    struct vc_region *r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    /* Registered for everything at once, so that one entry serves as source, as target and for reading. */
    VIP_MEM_ATTRIBUTES attributes = {
        .Ptag = port->ptag, .EnableRdmaWrite = VIP_TRUE, .EnableRdmaRead = port->can_read ? VIP_TRUE : VIP_FALSE};
    evict(port, len);
    MSG_COUNT(port->world, cache_misses, 1);
    MSG_COUNT(port->world, allocations, 1);
    if (VipRegisterMem(port->nic, buf, len, &attributes, &r->handle) != VIP_SUCCESS) {
        free(r);
        return NULL;
    }
    r->buf = buf;
    r->len = len;
    r->users = 1;
    struct vc_region **bucket = bucket_of(c, buf);
    r->chain = *bucket;
    *bucket = r;
    c->n++;
    c->bytes += len;
    port->world->counters[MSG_COUNTER_cache_bytes_now] += len;
    return r;
}

/* The last user's end: kept, unless it is stale or the bounds are passed, which may be while all are in use. */
void vc_cache_put(struct vc_port *port, struct vc_region *r)
{
    const msg_policy *p = &port->world->policy;
    if (--r->users)
        return;
    if (r->stale || port->cache.bytes > (uint64_t)p->cache_bytes || port->cache.n > (uint64_t)p->cache_entries)
        deregister(port, r);
    else
        link_unused(&port->cache, r);
}

/* The range is about to be freed: what overlaps it goes now, or with its last user. */
void vc_cache_forget(struct vc_port *port, const void *buf, size_t len)
{
    struct vc_cache *c = &port->cache;
    uintptr_t from = (uintptr_t)buf, to = len > UINTPTR_MAX - from ? UINTPTR_MAX : from + len;
    for (uint32_t i = 0; i <= c->mask; i++)
        for (struct vc_region *r = c->buckets[i], *next; r; r = next) {
            next = r->chain;
            if ((uintptr_t)r->buf >= to || (uintptr_t)r->buf + r->len <= from)
                continue;
            /* No message that begins now finds it any more; those under way keep it until they end. */
            r->stale = 1;
            if (r->users == 0) {
                unlink_unused(c, r);
                deregister(port, r);
            }
        }
}

VIP_MEM_HANDLE vc_region_handle(const struct vc_region *region)
{
    return region->handle;
}
