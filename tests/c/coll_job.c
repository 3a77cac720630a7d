#include "coll_job.h"

#include <signal.h>

#include "base/turn.h"
#include "check.h"
#include "netns.h"

const char *link_name;
int asleep;

static const char *only; /* the case that was asked for; NULL: all */
static int eth_hosts[2] = {-1, -1};

coll *make_group(msg_world *w, int first, int n, int context)
{
    int ranks[64];
    coll *c = NULL;
    for (int i = 0; i < n; i++)
        ranks[i] = first + i;
    if (asleep)
        vk_turn_took(vk_now() - VK_SECOND, vk_now());
    OK(coll_create(w, ranks, n, context, &c));
    CHECK_EQ(coll_rank(c), msg_rank(w) - first);
    CHECK_EQ(coll_size(c), n);
    return c;
}

coll *make_without(msg_world *w, int rank, int n, int context)
{
    int ranks[64], n_left = 0;
    coll *c = NULL;
    for (int i = 0; i < n; i++)
        if (i != rank)
            ranks[n_left++] = i;
    OK(coll_create(w, ranks, n_left, context, &c));
    return c;
}

int die(void *context)
{
    (void)context;
    kill(getpid(), SIGKILL);
    return 0;
}

int start_cases(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: %s LINK [CASE]\n", argv[0]);
        return 2;
    }
    link_name = argv[1];
    only = argc > 2 ? argv[2] : NULL;
    return strcmp(link_name, "eth") == 0 ? netns_hosts(argv, eth_hosts) : 0;
}

void run_case(const char *name, const char *how, job_main main, int n_ranks, int hosts, int may_die)
{
    if (only && strcmp(only, name) != 0)
        return;
    int eth = strcmp(link_name, "eth") == 0;
    job j = {.link = link_name, .n_ranks = n_ranks, .may_die = may_die, .hosts = eth ? 2 : hosts};
    memcpy(j.namespaces, eth_hosts, sizeof eth_hosts);
    char what[128];
    snprintf(what, sizeof what, "%s %s %s", link_name, name, how);
    job_case(&j, main, what);
}
