/*
 * inside.h - what the files of csrc/coll share.
 *
 * Ranks are numbered within the group. A *node* is a host of the group; its *master* is the first rank there. What lies where:
 *
 *   cells      memory of each rank that the others write to by RDMA (6.1): one cell for each rank, then one for each node
 *   shared     memory that the ranks of one node map: a line for each rank, and a counter
 *
 * A cell and a line have a cache line or two of their own, so that no two writers ever want the same one (3).
 */
#ifndef VIAKIT_COLL_INSIDE_H
#define VIAKIT_COLL_INSIDE_H

#include "../base/atomic.h"
#include "../base/clock.h"
#include "coll.h"

enum { COLL_TAG_SETUP = 1, COLL_TAG_BARRIER, COLL_TAG_ABORT };

struct coll_cell {
    int64_t number; /* of the latest barrier that its writer has come to; -1 before the first (6.3) */
    uint8_t pad[VK_CACHE_LINE - 8];
};

struct coll_line {
    uint32_t flag;                       /* flat: 1 from the rank's arrival until the master lets it go (5.2) */
    uint64_t number;                     /* flags: of the latest barrier that the rank has come to */
    uint8_t pad[2 * VK_CACHE_LINE - 16]; /* processors fetch lines in pairs */
};

struct coll_shared {
    uint64_t magic[2]; /* drawn by the master */
    uint8_t pad0[2 * VK_CACHE_LINE - 16];
    uint32_t arrived; /* counter: ranks that have come to the present barrier */
    uint8_t pad1[2 * VK_CACHE_LINE - 4];
    uint64_t generation; /* counter: barriers that are over */
    uint8_t pad2[2 * VK_CACHE_LINE - 8];
    struct coll_line lines[]; /* [ranks of this node] */
};
_Static_assert(sizeof(struct coll_line) == 128 && offsetof(struct coll_shared, lines) == 384, "lines do not overlap");

struct coll {
    msg_world *world;
    int rank, n, context;
    int *ranks;       /* [n] in the world */
    int error;        /* the group is broken: what every call gives */
    int crowded;      /* more ranks than cores here: give the core away at once */
    uint64_t spin_ns; /* a wait sleeps after so long */
    uint64_t yield_ns;

    int n_nodes, node; /* of this rank */
    int *node_of;      /* [n] */
    int *masters;      /* [n_nodes] ranks */
    int *locals;       /* [n_locals] ranks of this node, in order */
    int n_locals, local;
    int all_fit; /* every node has a core for each of its ranks */

    struct coll_shared *shared; /* NULL: some node has none, or all have one rank */
    size_t shared_len;
    uint64_t n_flags, n_counter;

    struct coll_cell *cells; /* [n + n_nodes]; NULL: no RDMA */
    msg_exposed exposed;
    msg_exposed *theirs; /* [n] */
    int64_t n_rdma, n_overall;
};

/* ---------------------------------------------------------------- coll.c: waiting
 *
 * For loops that look at memory:
 *     struct coll_patience p = {.source = who};
 *     while (!arrived)
 *         if ((code = coll_pause(c, &p)) != 0) return code;
 * It pauses, then gives the core away, then sleeps; moves messages and RDMA meanwhile, and notices failures. */
struct coll_patience {
    int source;  /* the rank that is waited for: when it has left the world it will not come */
    int network; /* what is waited for comes from another host: look at the NIC each time */
    int stage;   /* 0 pause, 1 give the core away, 2 sleep */
    unsigned looks;
    uint64_t began;              /* of the long part */
    uint64_t checked, failed_at; /* failed_at: a rank of the group was first seen to be gone */
};
int coll_pause_long(coll *c, struct coll_patience *p);
/* Has the group failed? To be called every few milliseconds of a wait. */
int coll_check(coll *c, struct coll_patience *p, uint64_t now);

static inline int coll_pause(coll *c, struct coll_patience *p)
{
    p->looks++;
    if (p->network)
        msg_progress(c->world);
    if (vk_unlikely(c->crowded || p->looks > 200))
        return coll_pause_long(c, p);
    vk_pause();
    return MSG_SUCCESS;
}

/* The group is broken: tells the others. Returns the code. */
int coll_fail(coll *c, int code);
/* Waits for the request, which is freed. */
int coll_finish(coll *c, msg_request **request, msg_status *status);

/* Messages within the group. Waits for both ends; dst or src may be MSG_PROC_NULL. */
int coll_sendrecv(coll *c, int tag, const void *sendbuf, size_t send_len, int dst, void *recvbuf, size_t recv_len,
                  int src);
static inline int coll_send(coll *c, int tag, const void *buf, size_t len, int dst)
{
    return coll_sendrecv(c, tag, buf, len, dst, NULL, 0, MSG_PROC_NULL);
}
static inline int coll_recv(coll *c, int tag, void *buf, size_t len, int src)
{
    return coll_sendrecv(c, tag, NULL, 0, MSG_PROC_NULL, buf, len, src);
}

#endif
