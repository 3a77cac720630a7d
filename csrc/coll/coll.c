/*
 * Groups: the location of each rank, and the memory that barriers and collectives use.
 *
 *     create:  rank i                               rank 0
 *              expose cells, offer shared memory    the same
 *              card ------------------------------> gathers all cards, along a tree
 *                   <------------------------------ all cards, to all                     (Gupta et al., 6.2)
 *              maps the memory of its node's master
 *              "mapped" --------------------------> gathers
 *                   <------------------------------ all, to all: has every rank the memory for barriers?
 *
 * The second round makes all ranks of a group agree on its abilities: cells and shared exist on all, or on none.
 *
 * The shared memory is a memfd of the master's, which the others open through /proc (offer.h): it has no name that
 * could be guessed or left behind. Where that is not possible (other containers, other users) the group goes without.
 * A file that is not safe to map is an error on all ranks. Its layout:
 *
 *     | coll_shared: counter, generation | a line of each rank of the node | two areas of each rank, on pages |
 *
 * Memory that others write to by RDMA (cells, slots) may only be freed when no rank will write to it any more: after a
 * last exchange of messages (coll_close), or after a barrier. In a failed group it stays until the world closes.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "coll/inside.h"
#include "coll/offer.h"
#include "msg/engine.h"
#include "msg/policy.h"

/* The description of itself that a rank sends to all others. fd is -1 without shared memory, rdma 0 without cells.
 * `exposed` is valid only with rdma. `crowded`: its machine has more ranks than cores. */
struct card {
    uint64_t magic[2];
    msg_exposed exposed;
    int32_t pid, fd, crowded, cores, rdma;
};

/* ---------------------------------------------------------------- creating a group */

/* To rank 0 and back along a binomial tree. The distances of its edges are powers of two. In a group of all ranks these
 * pairs are connected already (msg/news.c). Let d be the lowest bit of r. Rank r collects d - 1 blobs, of r + 1 and
 * those behind it. They come from r + 1, r + 2, r + 4 and so on. Rank r passes them to r - d:
 *
 *      7 -> 6    6 7 -> 4    5 -> 4    4 5 6 7 -> 0    3 -> 2    2 3 -> 0    1 -> 0 */
int coll_gather_all(coll *c, const void *own, size_t len, void *all)
{
    int code = MSG_SUCCESS, n = c->n, rank = c->rank, d = 1;
    char *blobs = all;
    memcpy(blobs + (size_t)rank * len, own, len);
    for (; d < n && !(rank & d) && code == MSG_SUCCESS; d *= 2)
        if (rank + d < n)
            code = coll_recv(c, COLL_TAG_SETUP, blobs + (size_t)(rank + d) * len,
                             (size_t)(n - rank - d < d ? n - rank - d : d) * len, rank + d);
    if (rank && code == MSG_SUCCESS)
        code = coll_send(c, COLL_TAG_SETUP, blobs + (size_t)rank * len, (size_t)(n - rank < d ? n - rank : d) * len,
                         rank - d);
    if (rank && code == MSG_SUCCESS)
        code = coll_recv(c, COLL_TAG_SETUP, all, len * (size_t)n, rank - d);
    for (d /= 2; d > 0 && code == MSG_SUCCESS; d /= 2)
        if (rank + d < n)
            code = coll_send(c, COLL_TAG_SETUP, all, len * (size_t)n, rank + d);
    return code;
}

/* Gupta et al., 6.1 and 6.3: register a buffer for every rank, which begins with a number that no barrier has. There
 * are n cells for all ranks, and behind them one for each node. The number of nodes is not known yet; it is at most n.
 * A failure here only means that the group has no RDMA. */
static void expose_cells(coll *c, struct card *card)
{
    size_t n = 2 * (size_t)c->n, len = n * sizeof(struct coll_cell);
    void *memory = NULL;
    if (msg_alloc(c->world, len, &memory) != MSG_SUCCESS)
        return;
    c->cells = memory;
    memset(memory, 0, len);
    for (size_t i = 0; i < n; i++)
        c->cells[i].number = -1;
    if (msg_expose(c->world, memory, len, &c->exposed) != MSG_SUCCESS) {
        msg_free(c->world, memory);
        c->cells = NULL;
        return;
    }
    card->rdma = 1;
    card->exposed = c->exposed;
}

/* Called in set_up before any rank can write to the cells, and in coll_free after all ranks have done so. */
static void hide_cells(coll *c)
{
    if (c->cells == NULL)
        return;
    msg_hide(c->world, &c->exposed);
    msg_free(c->world, c->cells);
    c->cells = NULL;
}

/* The memory of a node. Every rank offers some, since masters are not known yet. Pages that are never touched cost
 * nothing. */
static void offer_shared(coll *c, struct card *card)
{
    card->fd = coll_offer_make(c->shared_len, card->magic);
    card->pid = (int32_t)getpid();
}

/* The offset of the areas: behind the lines and the packed numbers of n ranks, on the next page. */
static size_t areas_at(int n)
{
    return (sizeof(struct coll_shared) + (size_t)n * (sizeof(struct coll_line) + sizeof(uint64_t)) + 4095) &
           ~(size_t)4095;
}

/* The master's descriptor is still open: it is closed after the second round, when all have theirs. Returns 1 if the
 * memory is mapped, 0 if it cannot be, -1 if the card names a file that is not safe to map. */
static int map_shared(coll *c, const struct card *master)
{
    void *p;
    if (coll_offer_map(master->pid, master->fd, c->shared_len, master->magic, &p) != 0)
        return -1;
    if (p == NULL)
        return 0;
    c->shared = p;
    c->areas = (struct coll_area *)(void *)((char *)p + areas_at(c->n));
    return 1;
}

/* Fills node_of, masters and locals from the hosts that the world found when it opened. Nodes are numbered in the order
 * of their masters, masters are the first ranks of their nodes, so all ranks number alike. all_fit and cores are the
 * same on all, since every card is known to all; `crowded` is this rank's own. */
static void place(coll *c, const struct card *cards)
{
    c->all_fit = 1;
    c->cores = cards[0].cores;
    c->crowded = msg_crowded(c->world);
    for (int i = 0; i < c->n; i++) {
        int node = 0;
        uint64_t host = msg_peer_host(c->world, c->ranks[i]);
        while (node < c->n_nodes && msg_peer_host(c->world, c->ranks[c->masters[node]]) != host)
            node++;
        if (node == c->n_nodes)
            c->masters[c->n_nodes++] = i;
        c->node_of[i] = node;
    }
    c->node = c->node_of[c->rank];
    for (int i = 0; i < c->n; i++) {
        c->all_fit &= !cards[i].crowded; /* counts ranks of other hosts and groups that share the machine, too */
        c->cores = cards[i].cores < c->cores ? cards[i].cores : c->cores;
        if (c->node_of[i] == c->node) {
            if (i == c->rank)
                c->local = c->n_locals;
            c->locals[c->n_locals++] = i;
        }
    }
}

/* Both rounds at the top of this file. `mapped` is the result of map_shared. A rank whose own part failed reports it in
 * its card, and takes part in both rounds. Only a rank without memory for the table cannot: the others wait until it
 * closes its world. */
static int set_up(coll *c, struct card *cards)
{
    struct card own = {.fd = -1, .crowded = msg_crowded(c->world), .cores = msg_cores(c->world)};
    /* From here on a rank takes part in both rounds whatever it could not do itself. */
    int rdma = 1, shared = 1;
    int32_t mapped, *all = calloc((size_t)c->n, sizeof *all);
    expose_cells(c, &own);
    offer_shared(c, &own);
    int code = all ? coll_gather_all(c, &own, sizeof own, cards) : MSG_ERR_NO_MEMORY;
    if (code == MSG_SUCCESS) {
        place(c, cards);
        mapped = map_shared(c, &cards[c->masters[c->node]]);
        code = coll_gather_all(c, &mapped, sizeof mapped, all);
    }
    for (int i = 0; code == MSG_SUCCESS && i < c->n; i++) {
        rdma &= cards[i].rdma;
        shared &= all[i] == 1;
        if (all[i] < 0)
            code = msg_fail(c->world, MSG_ERR_CHANNEL,
                            "rank %d: the memory that rank %d of its host offers for barriers is not that of a rank: "
                            "its card was altered on its way",
                            i, c->masters[c->node_of[i]]);
        c->remote_exposed[i] = cards[i].exposed;
    }
    /* After the second round every rank of the node has mapped the memory. After an error none needs it. */
    if (own.fd >= 0)
        close(own.fd);
    /* No rank has written to the cells yet, so they can go without a further message. */
    if (code == MSG_SUCCESS && !rdma)
        hide_cells(c);
    if ((code != MSG_SUCCESS || !shared) && c->shared) {
        munmap(c->shared, c->shared_len);
        c->shared = NULL;
    }
    free(all);
    return code;
}

/* Copy the ranks, reject duplicates, and find this rank among them. */
static int choose_members(coll *c, const int *ranks)
{
    c->rank = -1;
    for (int i = 0; i < c->n; i++) {
        if ((unsigned)ranks[i] >= (unsigned)msg_size(c->world))
            return MSG_ERR_RANK;
        for (int k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return MSG_ERR_RANK;
        if (ranks[i] == msg_rank(c->world))
            c->rank = i;
        c->ranks[i] = ranks[i];
    }
    return c->rank < 0 ? MSG_ERR_RANK : MSG_SUCCESS;
}

/* Allocate the tables and copy the options. Nothing is sent. After an error coll_free frees the parts. */
static int start(coll *c, const coll_options *o, const int *ranks)
{
    size_t count = (size_t)c->n;
    const msg_policy *policy = msg_world_policy(c->world);
    c->fork_epoch = msg_fork_epoch;
    /* Six arrays of n in one block, which c->ranks begins. */
    int *numbers = calloc(6 * count, sizeof *numbers);
    c->ranks = numbers;
    c->remote_exposed = calloc(count, sizeof *c->remote_exposed);
    c->notes = calloc(count, sizeof *c->notes);
    c->words = calloc(1, sizeof *c->words);
    c->notices = calloc(count, sizeof *c->notices);
    c->abort_words = calloc(count, sizeof *c->abort_words);
    if (numbers == NULL || c->abort_words == NULL || c->remote_exposed == NULL || c->notes == NULL ||
        c->words == NULL || c->notices == NULL)
        return MSG_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++)
        c->notices[i].shown = -1;
    c->node_of = numbers + count;
    c->masters = numbers + 2 * count;
    c->locals = numbers + 3 * count;
    c->delegates = numbers + 4 * count;
    c->gave_up = numbers + 5 * count;
    /* Ten times as long as for messages, because the awaited event does not end a sleep here. */
    c->spin_ns = policy->spin_us < 0 ? 0 : 10 * (uint64_t)policy->spin_us * VK_US;
    /* Polling memory is cheap, and two ranks may share a core although others are free: yield sooner than for
     * messages. */
    c->yield_ns = policy->yield_us < 0 ? VK_NEVER : (uint64_t)policy->yield_us * VK_US / 8;
    /* Space for all ranks on one node, the maximum: every rank maps the same length. */
    c->shared_len = areas_at(c->n) + 2 * count * sizeof(struct coll_area);
    if (o) {
        c->now.number = o->number + 1; /* this one's number: notes about it may be read in the next collective */
        c->now.incarnation = o->incarnation;
        c->now.oldest = o->oldest;
        c->revocable = o->revocable;
        c->wanted = o->wanted;
        c->meanwhile = o->wanted ? o->meanwhile : NULL;
        c->crossed = o->crossed;
        c->meanwhile_context = o->context;
    }
    return choose_members(c, ranks);
}

int coll_create_with(msg_world *world, const int *ranks, int n, int context, const coll_options *options, coll **group)
{
    if (n < 1 || ranks == NULL || group == NULL)
        return MSG_ERR_ARG;
    if (context < 0 || context > MSG_MAX_CONTEXT)
        return MSG_ERR_CONTEXT;
    /* A failure before the first exchange must occur on all ranks, or the others wait for this one. This holds if all
     * ranks pass the same arguments. */
    coll *c = calloc(1, sizeof *c);
    struct card *cards = calloc((size_t)n, sizeof *cards);
    int code = MSG_ERR_NO_MEMORY;
    if (c && cards) {
        c->world = world;
        c->n = n;
        c->context = c->revocable = context;
        code = start(c, options, ranks);
        if (code == MSG_SUCCESS)
            code = set_up(c, cards);
        if (code != MSG_SUCCESS && c->error && options && options->cause)
            *options->cause = *coll_cause(c);
        if (code != MSG_SUCCESS && coll_may_retry(c))
            code = MSG_ERR_NOT_SUPPORTED;
    }
    if (code == MSG_SUCCESS)
        *group = c;
    else
        coll_free(c);
    free(cards);
    return code;
}

int coll_create(msg_world *world, const int *ranks, int n, int context, coll **group)
{
    return coll_create_with(world, ranks, n, context, NULL, group);
}

void coll_set_number(coll *c, uint64_t number)
{
    c->now.number = number;
}

void coll_set_oldest(coll *c, uint64_t number)
{
    c->now.oldest = number;
}

int coll_set_release(coll *c, void (*release)(void *context), void *context)
{
    /* In shared memory nothing takes long or calls back before coll_pause_long has called `release`. Messages and RDMA
     * may do both at any time. */
    if (release && (c->n_nodes != 1 || c->shared == NULL || vk_time_is_virtual()))
        return 0;
    c->release = release;
    c->release_context = context;
    return 1;
}

int coll_take_control(msg_world *w, int context, int tag, void *what, size_t len, int *source)
{
    msg_status status;
    int there = 0;
    /* A probe would connect to the rank. Its messages arrive once the two have met. */
    if (*source != MSG_ANY_SOURCE && !vk_load_relaxed(&w->peers[*source].met))
        return 0;
    if (msg_iprobe(w, context, *source, tag, &there, &status) != MSG_SUCCESS || !there)
        return 0;
    /* The message has arrived and this thread alone receives in the group, so msg_recv does not wait. One of another
     * length is taken out, and the caller does not see it. */
    *source = status.source;
    return msg_recv(w, context, what, len, *source, tag, &status) == MSG_SUCCESS && status.len == len;
}

/* For callers with collectives of their own, one of which was interrupted. */
void coll_break(coll *c, int code, const char *reason)
{
    /* In a broken group the first reason stays. */
    if (reason && !c->error)
        snprintf(c->words->abort.reason, sizeof c->words->abort.reason, "%s", reason);
    coll_fail(c, code);
}

const struct coll_word *coll_cause(const coll *c)
{
    return &c->words->abort;
}

uint64_t coll_error_at(const coll *c)
{
    return c->error_at;
}

int coll_error(const coll *c)
{
    return c->error;
}

/* The memory grows and stays, because the same length is requested repeatedly. Its contents are lost. */
void *coll_scratch(coll *c, size_t len)
{
    if (c->scratch == NULL || len > c->scratch_len) {
        void *more = realloc(c->scratch, len ? len : 1);
        if (more == NULL)
            return NULL;
        c->scratch = more;
        c->scratch_len = len;
    }
    return c->scratch;
}

/* Frees only memory of this process. c->ranks begins the block of six arrays (start). */
void coll_forget(coll *c)
{
    if (c == NULL)
        return;
    if (c->shared)
        munmap(c->shared, c->shared_len);
    coll_slots_free(c);
    free(c->scratch);
    free(c->words);
    free(c->notes);
    free(c->notices);
    free(c->abort_words);
    free(c->remote_exposed);
    free(c->ranks);
    free(c);
}

/* Free first the memory that others write to, then its bookkeeping. The top of the file describes the memory that
 * stays. */
void coll_free(coll *c)
{
    if (c == NULL)
        return;
    if (c->words && c->words->sending && msg_test(c->world, &c->words->sending, NULL) != MSG_SUCCESS)
        c->words->lent = 1;
    if (c->error == MSG_SUCCESS) { /* then all writes to this rank have arrived */
        hide_cells(c);
        if (c->dynamic)
            msg_free(c->world, c->dynamic);
    }
    coll_slots_hide(c, c->error == MSG_SUCCESS);
    if (c->words && c->words->lent)
        c->words = NULL; /* a message is still under way: these few bytes stay as long as the process */
    coll_forget(c);
}

/* Round d: an empty message to the rank d further on, and one from the rank d before.
 *
 * Messages and writes of a pair of ranks arrive in order. After a message from each rank none of its writes is
 * outstanding, and all memory can be freed. */
void coll_close(coll *c)
{
    int code = c ? c->error : MSG_SUCCESS;
    for (int d = 1; c && d < c->n && code == MSG_SUCCESS; d++)
        code = coll_sendrecv(c, COLL_TAG_SETUP, NULL, 0, (c->rank + d) % c->n, NULL, 0, (c->rank - d + c->n) % c->n);
    coll_free(c);
}

int coll_rank(const coll *c)
{
    return c->rank;
}

int coll_size(const coll *c)
{
    return c->n;
}

int coll_hosts(const coll *c)
{
    return c->n_nodes;
}
