/*
 * Groups: who is where, and the memory that barriers and collectives use.
 *
 *     create:  rank i                               rank 0
 *              expose cells, offer shared memory    the same
 *              card ------------------------------> gathers all cards
 *                   <------------------------------ all cards, to all                     (6.2)
 *              maps the memory of its node's master
 *              "have it" -------------------------> gathers
 *                   <------------------------------ all, to all: has everybody what barriers need?
 *
 * The second round is why all ranks of a group agree on what it can do: cells and shared are
 * there on all, or on none.
 *
 * The shared memory is a memfd of the master's, which the others open through /proc: it has
 * no name that could be guessed or left behind. Where that is not possible (other containers,
 * other users) the group goes without. Its layout:
 *
 *     | coll_shared: counter, generation | a line of each rank of the node | two areas of each rank, on pages |
 *
 * Memory that others write to by RDMA (cells, slots) may only be given back when nobody is
 * about to write: after a last exchange of messages (coll_close), or after a barrier; in a
 * group that has failed it stays until the world closes.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "inside.h"
#include "msg/policy.h"

/* What a rank tells all others. fd is -1 where there is no shared memory, rdma 0 where there are no cells. */
struct card {
    uint64_t host, magic[2];
    msg_exposed exposed;
    int32_t pid, fd, crowded, cores, rdma;
};

/* ---------------------------------------------------------------- making a group */

/* Rank 0 as the centre: 2 (n - 1) messages. Once per group, so their latency does not matter. */
int coll_gather_all(coll *c, const void *mine, size_t len, void *all)
{
    int code = MSG_SUCCESS;
    memcpy((char *)all + (size_t)c->rank * len, mine, len);
    if (c->rank) {
        code = coll_send(c, COLL_TAG_SETUP, mine, len, 0);
        return code ? code : coll_recv(c, COLL_TAG_SETUP, all, len * (size_t)c->n, 0);
    }
    for (int i = 1; i < c->n && code == MSG_SUCCESS; i++)
        code = coll_recv(c, COLL_TAG_SETUP, (char *)all + (size_t)i * len, len, i);
    for (int i = 1; i < c->n && code == MSG_SUCCESS; i++)
        code = coll_send(c, COLL_TAG_SETUP, all, len * (size_t)c->n, i);
    return code;
}

/* 6.1 and 6.3: a buffer is registered for every rank, and begins with a number that no barrier has.
 * n cells for all ranks, and behind them as many as there are nodes, which is not known yet and at
 * most n. What fails here only means that there is no RDMA. */
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

static void hide_cells(coll *c)
{
    if (c->cells == NULL)
        return;
    msg_hide(c->world, &c->exposed);
    msg_free(c->world, c->cells);
    c->cells = NULL;
}

/* The memory of a node, whoever turns out to be its master: all ranks offer some, most of it is never used, and
 * a memfd that nobody has touched takes no pages. The magic tells it from another file under the same number. */
static void offer_shared(coll *c, struct card *card)
{
    card->fd = memfd_create("viakit barrier", MFD_CLOEXEC);
    card->pid = (int32_t)getpid();
    if (card->fd < 0)
        return;
    if (getrandom(card->magic, sizeof card->magic, 0) != (ssize_t)sizeof card->magic ||
        ftruncate(card->fd, (off_t)c->shared_len) != 0 ||
        pwrite(card->fd, card->magic, sizeof card->magic, 0) != (ssize_t)sizeof card->magic) {
        close(card->fd);
        card->fd = -1;
    }
}

static size_t areas_at(int n)
{
    return (sizeof(struct coll_shared) + (size_t)n * sizeof(struct coll_line) + 4095) & ~(size_t)4095;
}

/* The master's descriptor is still open: it is closed after the second round, when all have theirs. */
static void map_shared(coll *c, const struct card *master)
{
    char path[64];
    if (master->fd < 0)
        return;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)master->pid, (int)master->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *p = mmap(NULL, c->shared_len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (p == MAP_FAILED)
        return;
    c->shared = p;
    c->areas = (struct coll_area *)(void *)((char *)p + areas_at(c->n));
    if (memcmp(c->shared->magic, master->magic, sizeof master->magic) != 0) { /* another process of that number */
        munmap(p, c->shared_len);
        c->shared = NULL;
    }
}

/* Who is where: fills node_of, masters, locals. Nodes are numbered in the order of their masters,
 * masters are the first ranks of their nodes, so all ranks number alike. all_fit and cores are the same on all,
 * since every card is known to all; `crowded` is this rank's own. */
static void place(coll *c, const struct card *cards)
{
    c->all_fit = 1;
    c->cores = cards[0].cores;
    c->crowded = msg_crowded(c->world);
    for (int i = 0; i < c->n; i++) {
        int node = 0;
        while (node < c->n_nodes && cards[c->masters[node]].host != cards[i].host)
            node++;
        if (node == c->n_nodes)
            c->masters[c->n_nodes++] = i;
        c->node_of[i] = node;
    }
    c->node = c->node_of[c->rank];
    for (int i = 0; i < c->n; i++) {
        c->all_fit &=
            !cards[i].crowded; /* ranks of other hosts and groups want cores, too, if they share the machine */
        c->cores = cards[i].cores < c->cores ? cards[i].cores : c->cores;
        if (c->node_of[i] == c->node) {
            if (i == c->rank)
                c->local = c->n_locals;
            c->locals[c->n_locals++] = i;
        }
    }
}

static int set_up(coll *c, struct card *cards)
{
    struct card mine = {.host = msg_peer_host(c->world, c->ranks[c->rank]),
                        .fd = -1,
                        .crowded = msg_crowded(c->world),
                        .cores = msg_cores(c->world)};
    /* From here on a rank takes part in both rounds whatever it could not do itself. */
    int rdma = 1, shared = 1;
    int32_t mapped, *all = calloc((size_t)c->n, sizeof *all);
    expose_cells(c, &mine);
    offer_shared(c, &mine);
    int code = all ? coll_gather_all(c, &mine, sizeof mine, cards) : MSG_ERR_NO_MEMORY;
    if (code == MSG_SUCCESS) {
        place(c, cards);
        map_shared(c, &cards[c->masters[c->node]]);
        mapped = c->shared != NULL;
        code = coll_gather_all(c, &mapped, sizeof mapped, all);
    }
    for (int i = 0; code == MSG_SUCCESS && i < c->n; i++) {
        rdma &= cards[i].rdma;
        shared &= all[i];
        c->theirs[i] = cards[i].exposed;
    }
    if (mine.fd >= 0)
        close(mine.fd);
    if (code == MSG_SUCCESS && !rdma)
        hide_cells(c);
    if (code == MSG_SUCCESS && !shared && c->shared) {
        munmap(c->shared, c->shared_len);
        c->shared = NULL;
    }
    free(all);
    return code;
}

/* Copies the ranks, each once, and finds this one among them. */
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

static int start(coll *c, const coll_options *o, const int *ranks)
{
    size_t count = (size_t)c->n;
    const msg_policy *policy = msg_world_policy(c->world);
    /* Six arrays of n in one block, which c->ranks begins. */
    int *numbers = calloc(6 * count, sizeof *numbers);
    c->ranks = numbers;
    c->theirs = calloc(count, sizeof *c->theirs);
    c->notes = calloc(count, sizeof *c->notes);
    c->words = calloc(1, sizeof *c->words);
    c->gave_up_at = calloc(count, sizeof *c->gave_up_at);
    if (numbers == NULL || c->gave_up_at == NULL || c->theirs == NULL || c->notes == NULL || c->words == NULL)
        return MSG_ERR_NO_MEMORY;
    c->node_of = numbers + count;
    c->masters = numbers + 2 * count;
    c->locals = numbers + 3 * count;
    c->stands = numbers + 4 * count;
    c->gave_up = numbers + 5 * count;
    /* Ten times as long as for messages: a sleep here is not ended by what is waited for. */
    c->spin_ns = policy->spin_us < 0 ? 0 : 10 * (uint64_t)policy->spin_us * VK_US;
    /* A look at memory is cheap, and two ranks may share a core although there are others: sooner than for messages. */
    c->yield_ns = policy->yield_us < 0 ? VK_NEVER : (uint64_t)policy->yield_us * VK_US / 8;
    /* Room for all ranks on one node, which is the most there can be: every rank maps the same length. */
    c->shared_len = areas_at(c->n) + 2 * count * sizeof(struct coll_area);
    if (o) {
        c->now.number = o->number + 1; /* its own: notes about it may be read in the next collective */
        c->now.birth = o->birth;
        c->wanted = o->wanted;
        c->meanwhile = o->wanted ? o->meanwhile : NULL;
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
    /* What fails before the first exchange fails on all ranks, or the others wait for this one:
     * arguments are to be alike. */
    coll *c = calloc(1, sizeof *c);
    struct card *cards = calloc((size_t)n, sizeof *cards);
    int code = MSG_ERR_NO_MEMORY;
    if (c && cards) {
        c->world = world;
        c->n = n;
        c->context = context;
        code = start(c, options, ranks);
        if (code == MSG_SUCCESS)
            code = set_up(c, cards);
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

/* For callers with collectives of their own besides, one of which was interrupted. */
void coll_break(coll *c, int code)
{
    coll_fail(c, code);
}

int coll_error(const coll *c)
{
    return c->error;
}

/* Grows and stays: the same length is asked for again and again. What was in it is lost. */
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
    free(c->gave_up_at);
    free(c->theirs);
    free(c->ranks);
    free(c);
}

/* Order: first what others write to, then what it is managed with. See the top of the file for what stays. */
void coll_free(coll *c)
{
    if (c == NULL)
        return;
    if (c->words && c->words->sending && msg_test(c->world, &c->words->sending, NULL) != MSG_SUCCESS)
        c->words->lent = 1;
    if (c->error == MSG_SUCCESS) /* then all that was to be written to us has been */
        hide_cells(c);
    coll_slots_hide(c, c->error == MSG_SUCCESS);
    if (c->words && c->words->lent)
        c->words = NULL; /* a word is still on its way: these few bytes stay as long as the process */
    coll_forget(c);
}

/* Messages and writes of a pair of ranks come in order: after a message from each rank
 * nothing of it is behind, and all memory can go. */
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
