/*
 * The registration cache ("pin-down cache"). RDMA needs both buffers registered. Programs use the same buffers
 * repeatedly, and registering costs more than moving a few kilobytes. "We keep the page locked and remember the
 * translation as long as there is enough memory" (Prylli and Tourancheau, section 4.2). So a registration is kept after
 * use, within the limits. The least recently used one is evicted first.
 *
 *      bucket_of(buf) -> region -chain-> region -chain-> ...          all of them
 *      oldest <-older/younger-> ... <-> newest                      the unused: evicted from the left
 *
 * Invalidation. Where a NIC's hardware reads physical pages, a cached registration goes wrong once its memory is
 * unmapped and mapped again. Libraries of the time intercepted free() and munmap() for that reason. Here every access
 * goes through the process's present mapping, so a stale entry cannot damage a message. One risk remains: a rank that
 * once received the handle of a receive buffer could still write there. Forgetting, eviction, and closing remove an
 * entry.
 *
 * Entries are exact, never rounded to pages, so no rank can access adjacent bytes.
 */
#include "peers/cache.h"

#include <stdlib.h>

/* As many as a policy of the message engine keeps entries by default, so a chain has about one. A power of two. */
#define BUCKETS 1024

/* Adds in unsigned arithmetic, so -len subtracts. A counter that its user does not need is NULL. */
#define COUNT(c, name, by) ((c)->counters->name ? (void)(*(c)->counters->name += (by)) : (void)0)

int peers_cache_init(struct peers_cache *c, VIP_NIC_HANDLE nic, VIP_MEM_ATTRIBUTES attributes,
                     const struct peers_cache_limits *limits, const struct peers_cache_counters *counters)
{
    *c = (struct peers_cache){.nic = nic, .attributes = attributes, .limits = limits, .counters = counters};
    c->buckets = calloc(BUCKETS, sizeof(struct peers_region *));
    return c->buckets ? 0 : -1;
}

/* Multiplies by an odd constant and uses high bits, because the low bits of addresses are mostly zero: Knuth, The Art
 * of Computer Programming, volume 3, section 6.4, with 2^64 divided by the golden ratio. */
static struct peers_region **bucket_of(struct peers_cache *c, const void *buf)
{
    return &c->buckets[(uint64_t)(uintptr_t)buf * 0x9E3779B97F4A7C15ull >> 40 & (BUCKETS - 1)];
}

/* Both ends of the list are pointers in the cache, so the first and the last entry need no case of their own. */
static void unlink_unused(struct peers_cache *c, struct peers_region *r)
{
    *(r->older ? &r->older->younger : &c->oldest) = r->younger;
    *(r->younger ? &r->younger->older : &c->newest) = r->older;
    r->older = r->younger = NULL;
}

static void link_unused(struct peers_cache *c, struct peers_region *r)
{
    r->older = c->newest;
    r->younger = NULL;
    *(c->newest ? &c->newest->younger : &c->oldest) = r;
    c->newest = r;
}

/* Removes an entry from its bucket, and frees it. The caller has removed it from the list of the unused, if it was
 * there. */
static void deregister(struct peers_cache *c, struct peers_region *r)
{
    struct peers_region **p = bucket_of(c, r->buf);
    while (*p != r)
        p = &(*p)->chain;
    *p = r->chain;
    c->n--;
    c->bytes -= r->len;
    COUNT(c, bytes, -r->len);
    VipDeregisterMem(c->nic, r->buf, r->handle);
    free(r);
}

void peers_cache_fini(struct peers_cache *c)
{
    for (uint32_t i = 0; c->buckets && i < BUCKETS; i++)
        while (c->buckets[i])
            deregister(c, c->buckets[i]);
    free(c->buckets);
    c->buckets = NULL;
}

/* Makes room for len more bytes by evicting unused entries. If all are in use, the limits are exceeded for a while
 * unless they are strict, because a message must proceed. peers_cache_put corrects this. */
static void evict(struct peers_cache *c, size_t len)
{
    while (c->oldest && (c->bytes + len > c->limits->bytes || c->n >= c->limits->entries)) {
        struct peers_region *r = c->oldest;
        unlink_unused(c, r);
        deregister(c, r);
        COUNT(c, evictions, 1);
    }
}

/* A shorter entry is not used; it stays until it is evicted. A longer one serves, because a descriptor
 * names only the range of the message. If the registration fails, evicted entries are lost, and nothing else has
 * changed. */
struct peers_region *peers_cache_get(struct peers_cache *c, const void *buf, size_t len, VIP_RETURN *code)
{
    *code = VIP_SUCCESS;
    for (struct peers_region *r = *bucket_of(c, buf); r; r = r->chain)
        if (r->buf == buf && r->len >= len && !r->stale) {
            if (r->users++ == 0)
                unlink_unused(c, r);
            COUNT(c, hits, 1);
            return r;
        }
    evict(c, len);
    struct peers_region *r = c->limits->strict && c->n >= c->limits->entries ? NULL : calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    r->buf = (char *)(uintptr_t)buf;
    if ((*code = VipRegisterMem(c->nic, r->buf, len, &c->attributes, &r->handle)) != VIP_SUCCESS) {
        free(r);
        return NULL;
    }
    r->len = len;
    r->users = 1;
    r->cache = c;
    struct peers_region **bucket = bucket_of(c, buf);
    r->chain = *bucket;
    *bucket = r;
    c->n++;
    c->bytes += len;
    COUNT(c, misses, 1);
    COUNT(c, bytes, len);
    return r;
}

/* The last user keeps the entry in the cache, unless it is stale or the limits are exceeded. */
void peers_cache_put(struct peers_region *r)
{
    struct peers_cache *c = r ? r->cache : NULL;
    if (r == NULL || --r->users)
        return;
    if (r->stale || c->bytes > c->limits->bytes || c->n > c->limits->entries)
        deregister(c, r);
    else
        link_unused(c, r);
}

void peers_cache_forget(struct peers_cache *c, const void *buf, size_t len)
{
    uintptr_t from = (uintptr_t)buf, to = len > UINTPTR_MAX - from ? UINTPTR_MAX : from + len;
    for (uint32_t i = 0; i < BUCKETS; i++)
        for (struct peers_region *r = c->buckets[i], *next; r; r = next) {
            next = r->chain;
            if ((uintptr_t)r->buf >= to || (uintptr_t)r->buf + r->len <= from)
                continue;
            /* New messages no longer find it. Active ones keep it until they end. */
            r->stale = true;
            if (r->users == 0) {
                unlink_unused(c, r);
                deregister(c, r);
            }
        }
}
