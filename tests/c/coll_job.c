/*
 * coll_job.c - shared parts of test_coll and test_collective: members of a group, ranks that die, selection of cases.
 *
 * Both run the same case many times, once per algorithm and number of ranks, so a case is named on the command line but
 * counted per run. A failure is reported with the algorithm (`how`), the number of ranks and that of hosts.
 */
#include "coll_job.h"

#include <signal.h>

#include "base/wait.h"
#include "check.h"
#include "netns.h"

const char *link_name;
int asleep;

static const char *only; /* the requested case; NULL: all */
static int n_ran;
static int eth_hosts[2] = {-1, -1};

coll *make_group(msg_world *w, int first, int n, int context)
{
    int ranks[64];
    coll *c = NULL;
    for (int i = 0; i < n; i++)
        ranks[i] = first + i;
    if (asleep)
        vk_yield_took(vk_now() - VK_SECOND, vk_now());
    OK(coll_create(w, ranks, n, context, &c));
    /* A member's rank in the group is its place in the list, not its rank in the world. */
    CHECK_EQ(coll_rank(c), msg_rank(w) - first);
    CHECK_EQ(coll_size(c), n);
    return c;
}

coll *make_without(msg_world *w, int rank, int n, int context)
{
    int ranks[64], n_left = 0;
    coll *c = NULL;
    /* The ranks that are left keep their order, so each has the place in the group that the list gives it. */
    for (int i = 0; i < n; i++)
        if (i != rank)
            ranks[n_left++] = i;
    OK(coll_create(w, ranks, n_left, context, &c));
    return c;
}

int die(void *context)
{
    (void)context;
    /* No handler and no exit function runs: nothing of this rank says goodbye, and the others have to find out. */
    kill(getpid(), SIGKILL);
    return 0;
}

int start_cases(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s shm|loop|tcp|eth [CASE]\n", argv[0]);
        return 2;
    }
    link_name = argv[1];
    /* A job would take any other name for shm, and pass without the link that was meant. */
    if (strcmp(link_name, "shm") && strcmp(link_name, "loop") && strcmp(link_name, "tcp") && strcmp(link_name, "eth")) {
        fprintf(stderr, "%s: no link is called %s\n", argv[0], link_name);
        return 2;
    }
    only = argc > 2 ? argv[2] : NULL;
    /* Only eth needs hosts of its own: two network namespaces, or the whole program is skipped. */
    return strcmp(link_name, "eth") == 0 ? netns_hosts(argv, eth_hosts) : 0;
}

int end_cases(void)
{
    if (n_ran == 0)
        fprintf(stderr, "no case %s on %s\n", only, link_name);
    return n_ran == 0 ? 2 : 0;
}

void run_case(const char *name, const char *how, job_main main, int n_ranks, int hosts, int may_die)
{
    if (only && strcmp(only, name) != 0)
        return;
    n_ran++;
    int eth = strcmp(link_name, "eth") == 0;
    job j = {.link = link_name, .n_ranks = n_ranks, .may_die = may_die, .hosts = eth ? 2 : hosts};
    memcpy(j.namespaces, eth_hosts, sizeof eth_hosts);
    char what[128];
    snprintf(what, sizeof what, "%s %s %s", link_name, name, how);
    job_case(&j, main, what);
}
