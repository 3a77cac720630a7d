/*
 * Signals by RDMA write of which the target's NIC notifies it: the alternatives of Gupta et al., 4.2.
 *
 *     signal   put(stamp -> cell "from me" of the peer's memory, immediate data)   consumes a receive of the peer
 *     await    until a receive is complete, then my cell "from the peer" >= stamp
 *
 * The waiting rank reads its cell only after a notice. It keeps the value (`shown`), because the awaited rank may
 * be one barrier ahead: then one read covers two notices. Several groups share the count of a world's notices, so a
 * notice may be another group's. Such a notice costs a further read of the cell, and nothing else.
 *
 * Invariant: after the last notice that was seen the cell was read once. So `shown` is at least the stamp of each write
 * whose notice was seen, and a wait never misses one. One thread of each rank.
 */
#include "coll/inside.h"

/* Waits, like a message, until the peer has a receive. */
int coll_signal_with_notice(coll *c, int to, int64_t stamp)
{
    int code = msg_put_notified(c->world, &stamp, sizeof stamp, c->ranks[to], &c->remote_exposed[to],
                                (uint64_t)c->rank * sizeof(struct coll_cell));
    return code ? coll_fail(c, code) : MSG_SUCCESS;
}

/* Read the cell if there are notices that were not seen. Returns coll_shows' result. */
static int look(const coll *c, int from, int64_t stamp)
{
    struct coll_notices *n = &c->notices[from];
    uint32_t count = msg_notices(c->world, c->ranks[from]);
    if (count != n->seen) {
        n->seen = count;
        n->shown = vk_load_acquire(&c->cells[from].number); /* the rank's writes before the barrier are visible */
    }
    return coll_shows(n->shown, stamp);
}

/* A completed receive needs this rank's progress, also if the writer is on this host. coll_pause_long makes progress
 * before its sleep, and the sleep handles what ended it. */
int coll_await_notice(coll *c, int from, int64_t stamp, int asleep)
{
    struct coll_wait p = {.source = from, .awaits = 1, .network = 1, .asleep = asleep};
    int found, code;
    while ((found = look(c, from, stamp)) == 0)
        if ((code = asleep ? coll_pause_long(c, &p) : coll_pause(c, &p)) != MSG_SUCCESS)
            return code;
    return found > 0 ? MSG_SUCCESS : coll_fail(c, MSG_ERR_COLLECTIVE);
}
