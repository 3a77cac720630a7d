/*
 * Groups: who is where, the memory that barriers and collectives use, waiting, and what happens when a rank dies.
 *
 *   create:  each rank exposes its cells, each master makes the memory that its node shares; rank 0 gathers a card of each and sends all
 *            cards to all (6.2); the ranks of a node map its memory; a second round says whether everybody has it, so that all
 *            ranks of a group agree on what it can do
 *
 * The shared memory is a memfd of the master's, which the others open through /proc: it has no name that could be guessed or left
 * behind. Where that is not possible (other containers, other users) the group goes without.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "inside.h"
#include "msg/policy.h"

#define CHECK_NS (5 * VK_MS)
#define LEAST_SLEEP (50 * VK_US)
#define LONGEST_SLEEP VK_MS
#define LONGEST_SLICE_MS 100
#define LET_FINISH_MS 5000 /* data that is on its way into a buffer of a collective that has failed */

struct card {
    uint64_t host, magic[2];
    msg_exposed exposed;
    int32_t pid, fd, cores, rdma;
};

/* ---------------------------------------------------------------- failures */

int coll_fail(coll *c, int code)
{
    if (c->error)
        return c->error;
    c->error = code;
    for (int i = 0; i < c->n; i++) {
        msg_request *r = NULL;
        if (i == c->rank || msg_peer_status(c->world, c->ranks[i]) != MSG_PEER_CONNECTED)
            continue;
        if (msg_isend(c->world, c->context, &code, sizeof code, c->ranks[i], COLL_TAG_ABORT, MSG_STANDARD, &r) ==
            MSG_SUCCESS)
            msg_request_free(c->world, &r); /* so short a message is copied at once */
    }
    return code;
}

/* Somebody's word that it gave up. */
static int aborted(coll *c)
{
    for (int i = 0; i < c->n; i++) {
        int there = 0, code = 0;
        if (i == c->rank || msg_iprobe(c->world, c->context, c->ranks[i], COLL_TAG_ABORT, &there, NULL) || !there)
            continue;
        msg_recv(c->world, c->context, &code, sizeof code, c->ranks[i], COLL_TAG_ABORT, NULL);
        return code == MSG_ERR_PROC_FAILED ? code : MSG_ERR_LEFT;
    }
    return MSG_SUCCESS;
}

int coll_check(coll *c, struct coll_patience *p, uint64_t now)
{
    int gone = MSG_SUCCESS, code;
    p->checked = now;
    if (msg_interrupted(c->world))
        return coll_fail(c, MSG_INTERRUPTED);
    msg_progress(c->world);
    for (int i = 0; i < c->n && gone != MSG_ERR_PROC_FAILED; i++) {
        int state = msg_peer_status(c->world, c->ranks[i]);
        if (state == MSG_PEER_FAILED)
            gone = MSG_ERR_PROC_FAILED;
        else if (state == MSG_PEER_LEFT && (p->source < 0 || p->source == i))
            gone = MSG_ERR_LEFT; /* of other ranks it may be the right moment to leave */
    }
    if ((code = aborted(c)) != MSG_SUCCESS)
        return coll_fail(c, code);
    if (gone == MSG_SUCCESS)
        return MSG_SUCCESS;
    if (p->failed_at == 0)
        p->failed_at = now;
    return now - p->failed_at >= COLL_GRACE_MS * VK_MS ? coll_fail(c, gone) : MSG_SUCCESS;
}

/* ---------------------------------------------------------------- waiting for memory */

int coll_pause_long(coll *c, struct coll_patience *p)
{
    if (p->began == 0) {
        p->began = p->checked = vk_now();
        p->stage = c->crowded;
    }
    if (p->looks % 8 == 0 || p->stage == 2)
        msg_progress(c->world);
    if (p->looks % 32 == 0 || p->stage == 2) {
        uint64_t now = vk_now(), waited = now - p->began;
        p->stage = waited >= c->spin_ns ? 2 : c->crowded || waited >= c->yield_ns;
        if (now - p->checked >= CHECK_NS) {
            int code = coll_check(c, p, now);
            if (code != MSG_SUCCESS)
                return code;
        }
        if (p->stage == 2) {
            uint64_t ns = waited / 16;
            ns = ns < LEAST_SLEEP ? LEAST_SLEEP : ns > LONGEST_SLEEP ? LONGEST_SLEEP : ns;
            struct timespec t = {0, (long)ns};
            nanosleep(&t, NULL);
            return MSG_SUCCESS;
        }
    }
    if (p->stage == 1)
        sched_yield();
    else
        vk_pause();
    return MSG_SUCCESS;
}

/* ---------------------------------------------------------------- waiting for messages */

/* The request of a collective that has failed: its buffer is the caller's again. */
static void give_up(coll *c, msg_request **request)
{
    if (*request == NULL)
        return;
    msg_cancel(c->world, *request);
    if (msg_wait(c->world, request, NULL, LET_FINISH_MS) != MSG_SUCCESS)
        msg_request_free(c->world, request);
}

int coll_finish(coll *c, msg_request **request, msg_status *status)
{
    struct coll_patience p = {.source = -2}; /* messages know by themselves when their sender has left */
    msg_status own;
    status = status ? status : &own;
    for (int64_t slice = 10;;) {
        int code = msg_wait(c->world, request, status, slice);
        if (code == MSG_SUCCESS)
            return status->error ? coll_fail(c, status->error) : MSG_SUCCESS;
        if (code == MSG_TIMEOUT)
            code = coll_check(c, &p, vk_now());
        else
            coll_fail(c, code);
        if (code != MSG_SUCCESS) {
            give_up(c, request);
            return c->error;
        }
        slice = 2 * slice < LONGEST_SLICE_MS ? 2 * slice : LONGEST_SLICE_MS;
    }
}

int coll_sendrecv(coll *c, int tag, const void *sendbuf, size_t send_len, int dst, void *recvbuf, size_t recv_len,
                  int src)
{
    msg_world *w = c->world;
    msg_request *in = NULL, *out = NULL;
    int code = MSG_SUCCESS;
    if (src != MSG_PROC_NULL)
        code = msg_irecv(w, c->context, recvbuf, recv_len, c->ranks[src], tag, &in);
    if (code == MSG_SUCCESS && dst != MSG_PROC_NULL)
        code = msg_isend(w, c->context, sendbuf, send_len, c->ranks[dst], tag, MSG_STANDARD, &out);
    if (code != MSG_SUCCESS)
        coll_fail(c, code);
    if (code == MSG_SUCCESS && out)
        code = coll_finish(c, &out, NULL);
    if (code == MSG_SUCCESS && in)
        code = coll_finish(c, &in, NULL);
    if (code != MSG_SUCCESS) {
        give_up(c, &in);
        give_up(c, &out);
    }
    return code;
}

/* ---------------------------------------------------------------- making a group */

/* Everybody's len bytes to everybody, by way of rank 0. */
static int gather_all(coll *c, const void *mine, size_t len, void *all)
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

static int count_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

/* 6.1 and 6.3: a buffer is registered for every rank, and begins with a number that no barrier has. */
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

/* The memory of a node, whoever turns out to be its master: all ranks offer some, most of it is never used. */
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
    if (memcmp(c->shared->magic, master->magic, sizeof master->magic) != 0) { /* another process of that number */
        munmap(p, c->shared_len);
        c->shared = NULL;
    }
}

/* Who is where. Nodes are numbered in the order of their masters. */
static void place(coll *c, const struct card *cards)
{
    c->all_fit = 1;
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
        int here = 0;
        for (int k = 0; k < c->n; k++)
            here += c->node_of[k] == c->node_of[i];
        if (here > cards[i].cores) {
            c->all_fit = 0;
            c->crowded |= c->node_of[i] == c->node;
        }
        if (c->node_of[i] == c->node) {
            if (i == c->rank)
                c->local = c->n_locals;
            c->locals[c->n_locals++] = i;
        }
    }
}

static int set_up(coll *c, struct card *cards)
{
    struct card mine = {.host = msg_peer_host(c->world, c->ranks[c->rank]), .fd = -1, .cores = count_cores()};
    int rdma = 1, shared = 1;
    int32_t mapped, *all = calloc((size_t)c->n, sizeof *all);
    expose_cells(c, &mine);
    offer_shared(c, &mine);
    int code = all ? gather_all(c, &mine, sizeof mine, cards) : MSG_ERR_NO_MEMORY;
    if (code == MSG_SUCCESS) {
        place(c, cards);
        map_shared(c, &cards[c->masters[c->node]]);
        mapped = c->shared != NULL;
        code = gather_all(c, &mapped, sizeof mapped, all);
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

int coll_create(msg_world *world, const int *ranks, int n, int context, coll **group)
{
    if (n < 1 || ranks == NULL || group == NULL)
        return MSG_ERR_ARG;
    if (context < 0 || context > MSG_MAX_CONTEXT)
        return MSG_ERR_CONTEXT;
    size_t count = (size_t)n;
    const msg_policy *policy = msg_world_policy(world);
    coll *c = calloc(1, sizeof *c);
    struct card *cards = calloc(count, sizeof *cards);
    int *numbers = calloc(4 * count, sizeof *numbers), code = MSG_ERR_NO_MEMORY;
    if (c && cards && numbers && (c->theirs = calloc(count, sizeof *c->theirs)) != NULL) {
        c->world = world;
        c->n = n;
        c->context = context;
        c->ranks = numbers;
        c->node_of = numbers + count;
        c->masters = numbers + 2 * count;
        c->locals = numbers + 3 * count;
        c->spin_ns = policy->spin_us < 0 ? 0 : 10 * (uint64_t)policy->spin_us * VK_US;
        /* A look at memory is cheap, and two ranks may share a core although there are others: sooner than for messages. */
        c->yield_ns = policy->yield_us < 0 ? VK_NEVER : (uint64_t)policy->yield_us * VK_US / 8;
        c->shared_len = sizeof(struct coll_shared) + count * sizeof(struct coll_line);
        code = choose_members(c, ranks);
        if (code == MSG_SUCCESS)
            code = set_up(c, cards);
        if (code == MSG_SUCCESS)
            *group = c;
        else
            coll_free(c);
    } else {
        free(numbers);
        free(c);
    }
    free(cards);
    return code;
}

void coll_free(coll *c)
{
    if (c == NULL)
        return;
    if (c->error == MSG_SUCCESS) /* then all that was to be written to us has been */
        hide_cells(c);
    if (c->shared)
        munmap(c->shared, c->shared_len);
    free(c->theirs);
    free(c->ranks);
    free(c);
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
