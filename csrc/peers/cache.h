/*
 * peers/cache.h - registrations that are kept after use, found by the first byte of their memory.
 *
 * A port of csrc/peers has one cache, for its NIC. The cache has no lock: the rule for threads in peers.h covers it.
 */
#ifndef VIAKIT_PEERS_CACHE_H
#define VIAKIT_PEERS_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "viakit.h"
#include "vipl.h"

struct peers_cache;

/* One registration. Its user reads `handle`. In use (users > 0) it is only in its bucket. Unused, it is also in the
 * list from the oldest to the newest. */
struct peers_region {
    char *buf;
    size_t len;
    VIP_MEM_HANDLE handle;
    uint32_t users;
    bool stale; /* forgotten: freed by its last user */
    struct peers_cache *cache;
    struct peers_region *chain;           /* in its bucket */
    struct peers_region *older, *younger; /* in the list of the unused */
};

/* `bytes` is the sum of the lengths and `entries` their number, of each cache. Unused entries are evicted to keep both.
 * Two caches with the same limits may together hold twice as much. */
struct peers_cache_limits {
    uint64_t bytes, entries;
    bool strict; /* entries in use never exceed `entries`; a call that would need more fails */
};

/* The user's counters; NULL: not counted. `bytes` is the present sum, the others only grow. `misses` counts successful
 * registrations. */
struct peers_cache_counters {
    uint64_t *hits, *misses, *evictions, *bytes;
};

struct peers_cache {
    VIP_NIC_HANDLE nic;
    VIP_MEM_ATTRIBUTES attributes;
    const struct peers_cache_limits *limits;
    const struct peers_cache_counters *counters;
    struct peers_region **buckets, *oldest, *newest;
    uint64_t bytes, n;
};

/* The cache keeps the pointers. Returns 0, or -1: no memory. */
int peers_cache_init(struct peers_cache *c, VIP_NIC_HANDLE nic, VIP_MEM_ATTRIBUTES attributes,
                     const struct peers_cache_limits *limits, const struct peers_cache_counters *counters);
/* Deregisters all entries, also those in use. The caller has ended all transfers, and puts none of them back
 * afterwards. Also valid for a cache of zeros. */
void peers_cache_fini(struct peers_cache *c);
/* Returns a registration that covers [buf, buf+len), held until peers_cache_put. NULL: cannot be registered, with the
 * NIC's code in *code, or VIP_SUCCESS if there is no memory or all entries are in use. */
struct peers_region *peers_cache_get(struct peers_cache *c, const void *buf, size_t len, VIP_RETURN *code);
/* Ends one use. The entry stays in the cache, or is freed at once: the pointer is invalid from here on. Accepts
 * NULL. */
void peers_cache_put(struct peers_region *r);
/* The range is about to be freed: overlapping entries are dropped now, or by their last user. Looks at every bucket, so
 * it is not for the short path. */
void peers_cache_forget(struct peers_cache *c, const void *buf, size_t len);

#endif
