/*
 * Address space for the other ranks of this host, asked for before the ranks connect.
 *
 * On shm each rank maps every other's segment whole when the two connect. Where address space is limited (RLIMIT_AS:
 * ulimit -v, batch systems) that may not fit, and a rank that finds it out amidst connecting is in a bad place: the
 * others ask it again and again until their time is over. So each says on its card what it costs those who map it, and
 * whether it is limited itself. If anybody is, each tries whether all fits, and tells the others:
 *
 *      cards (the channel's exchange):  what I cost, am I limited      all hold the same, so all decide the same:
 *      nobody is limited                connect
 *      somebody is                      what I lack, to all; connect if nobody lacks anything
 *
 * All ranks take part in that exchange, as in every other (world.c).
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "engine.h"

/* Beside the segments: what connecting itself takes, such as BIP's queues and a thread's stack (attendant_begin in
 * world.c). */
#define SPARE (32ull << 20)

struct msg_room msg_room_of(uint64_t bytes_to_map)
{
    struct rlimit limit;
    return (struct msg_room){.cost = bytes_to_map,
                             .limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY};
}

/* Takes so much address space at once, and gives it back: if that goes, pieces of it go, too. */
static int there_is(uint64_t bytes)
{
    void *p = bytes <= SIZE_MAX
                  ? mmap(NULL, (size_t)bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                  : MAP_FAILED;
    if (p == MAP_FAILED)
        return 0;
    munmap(p, (size_t)bytes);
    return 1;
}

int msg_check_room(msg_world *w, const msg_options *o, const struct msg_room *first, size_t stride)
{
    uint64_t needed = SPARE, mine = 0;
    uint32_t limited = 0;
    for (int i = 0; i < w->n_ranks; i++) {
        const struct msg_room *room = (const void *)((const char *)first + (size_t)i * stride);
        limited |= room->limited;
        if (i != w->rank && w->peers[i].host == w->peers[w->rank].host)
            needed += room->cost;
    }
    if (!limited)
        return MSG_SUCCESS;
    if (!there_is(needed))
        mine = needed;
    uint64_t *all = calloc((size_t)w->n_ranks, sizeof *all);
    int code = all ? msg_allgather(w, o, &mine, sizeof mine, all) : msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    for (int i = 0; code == MSG_SUCCESS && mine == 0 && i < w->n_ranks; i++)
        if (all[i])
            code = msg_fail(w, MSG_ERR_CHANNEL,
                            "rank %d lacks address space: it asked for %llu MiB more, for the memory of the other "
                            "ranks of its host; raise or lift its limit (ulimit -v)",
                            i, (unsigned long long)(all[i] >> 20));
    free(all);
    if (mine)
        code = msg_fail(w, MSG_ERR_CHANNEL,
                        "address space is missing: %llu MiB more were asked for, for the memory of the other ranks of "
                        "this host (%d); raise or lift the limit (ulimit -v)",
                        (unsigned long long)(mine >> 20), w->n_local - 1);
    return code;
}
