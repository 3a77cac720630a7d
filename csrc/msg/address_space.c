/*
 * Address space for the other ranks of this host, checked before the ranks connect.
 *
 * On shm, connecting maps the other rank's whole segment. If address space is limited (RLIMIT_AS: ulimit -v, batch
 * systems), it may not suffice. A rank that detected this only while connecting would leave the others retrying until
 * their deadline. So each rank states on its card the address space that mapping it needs, and whether its own is
 * limited. If any rank is limited, each tries whether all mappings fit, and reports the result:
 *
 *      cards (the channel's exchange):  cost, limited or not       all ranks hold the same cards and decide the same:
 *      no rank is limited               connect
 *      a rank is limited                exchange missing bytes; connect if no rank lacks any
 *
 * All ranks take part in that exchange, as in every other (world.c).
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "msg/engine.h"

/* Needed beside the segments: memory for connecting, such as BIP's queues and a thread's stack (attendant_begin in
 * world.c). */
#define SPARE (32ull << 20)

/* This rank's part of its card: the cost for others to map it, and whether its own address space has a limit. */
struct msg_address_space msg_address_space_of(uint64_t bytes_to_map)
{
    struct rlimit limit;
    return (struct msg_address_space){.cost = bytes_to_map,
                                      .limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY};
}

/* Reserves that much address space at once and releases it. If this succeeds, smaller mappings succeed, too. */
static int can_reserve(uint64_t bytes)
{
    void *p = bytes <= SIZE_MAX
                  ? mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                  : MAP_FAILED;
    if (p == MAP_FAILED)
        return 0;
    munmap(p, (size_t)bytes);
    return 1;
}

/* `first` is the struct in the first rank's card, and `stride` the bytes from card to card. Returns MSG_SUCCESS, or an
 * error on every rank if any rank lacks space. So all ranks give up together, and none waits for a peer that cannot
 * connect. */
int msg_check_address_space(msg_world *w, const msg_options *o, const struct msg_address_space *first, size_t stride)
{
    uint64_t needed = SPARE, lacking = 0;
    uint32_t limited = 0;
    for (int i = 0; i < w->n_ranks; i++) {
        const struct msg_address_space *space = (const void *)((const char *)first + (size_t)i * stride);
        limited |= space->limited;
        if (i != w->rank && w->peers[i].host == w->peers[w->rank].host)
            needed += space->cost;
    }
    if (!limited)
        return MSG_SUCCESS;
    if (!can_reserve(needed))
        lacking = needed;
    uint64_t *all = calloc((size_t)w->n_ranks, sizeof *all);
    int code = all ? msg_allgather(w, o, &lacking, sizeof lacking, all) : msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    for (int i = 0; code == MSG_SUCCESS && lacking == 0 && i < w->n_ranks; i++)
        if (all[i])
            code = msg_fail(w, MSG_ERR_CHANNEL,
                            "rank %d lacks address space: it requested %llu MiB more, for the memory of the other "
                            "ranks of its host; raise or lift its limit (ulimit -v)",
                            i, (unsigned long long)(all[i] >> 20));
    free(all);
    if (lacking)
        code = msg_fail(w, MSG_ERR_CHANNEL,
                        "address space is missing: %llu MiB more were requested, for the memory of the other ranks of "
                        "this host (%d); raise or lift the limit (ulimit -v)",
                        (unsigned long long)(lacking >> 20), w->n_local - 1);
    return code;
}
