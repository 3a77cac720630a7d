/*
 * test_msg.c - the message engine on every channel: test_msg LINK [CASE].
 *
 * The same cases on shm (processes), loop (threads) and tcp (processes), on BIP (bip-shm), and between two hosts on
 * eth, udp, bip-eth and bip-udp: what a channel carries may not depend on which it is. eth+fault and udp+fault lose,
 * double, delay and spoil frames, between ranks of one host (shm) as well. Which case is for which channel, on how many
 * ranks and by which policy stands in msg_cases.h; the cases are in msg_cases_*.c.
 */
#include "msg_cases.h"

#include "check.h"
#include "netns.h"

static const struct {
    const char *name;
    int n_ranks;
    job_main main;
    const char *policy;
    int links; /* MSG_ON_* */
} cases[] = {
#define X(name, ranks, policy, links) {#name, ranks, case_##name, policy, links},
    MSG_CASES(X)
#undef X
};

const char *case_link;
int case_bip;

/* Faults of a bad network, for the links with +fault. */
#define FAULTS "loss=1%,dup=1%,reorder=1%,corrupt=0.5%,seed=11"

/* Cases that move so much that behind faults they say nothing more, later. They can be run by name. */
static int is_long(const char *name)
{
    return strncmp(name, "giant", 5) == 0 || strcmp(name, "many") == 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test_msg LINK [CASE]\n");
        return 2;
    }
    static char link_name[16];
    char *plus;
    snprintf(link_name, sizeof link_name, "%s", argv[1]);
    int network, fault = (plus = strchr(link_name, '+')) != NULL;
    if (fault) {
        *plus = 0;
        setenv("VIAKIT_FAULT", FAULTS, 1); /* every NIC that a rank opens */
    }
    int namespaces[2] = {-1, -1};
    case_bip = strncmp(link_name, "bip-", 4) == 0;
    if (case_bip)
        memmove(link_name, link_name + 4, strlen(link_name) - 3);
    network = strcmp(link_name, "eth") == 0 || strcmp(link_name, "udp") == 0;
    /* A job would take any other name for shm, and a case that there is not would be an empty run that passes. */
    int known = argc == 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        known |= argc > 2 && strcmp(argv[2], cases[i].name) == 0;
    if (!known || !(network || strcmp(link_name, "shm") == 0 || (!case_bip && strcmp(link_name, "loop") == 0) ||
                    (!case_bip && msg_policy_find(link_name)))) {
        fprintf(stderr, "test_msg: no such %s: %s\n", known ? "link" : "case", argv[known ? 1 : 2]);
        return 2;
    }
    int refused = network ? netns_hosts(argv, namespaces) : 0;
    if (refused)
        return refused;
    setenv("VIAKIT_MSG_CALIBRATION", "", 1); /* what this machine was found to be has no say here */
    case_link = link_name;
    int link = strcmp(link_name, "loop") == 0 ? ON_LOOP
               : msg_policy_find(link_name)   ? ON_TCP
               : case_bip                     ? ON_BIP
                                              : ON_SHM;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!(cases[i].links & link) || (argc > 2 && strcmp(argv[2], cases[i].name) != 0))
            continue;
        /* A long case that is named runs nevertheless. */
        if (fault && argc == 2 && is_long(cases[i].name))
            continue;
        snprintf(check_context, sizeof check_context, "%s %s", argv[1], cases[i].name);
        check_deadline(120);
        job j = {.link = link_name, .n_ranks = cases[i].n_ranks, .policy = cases[i].policy, .bip = case_bip};
        /* A case whose name begins with "death" loses rank 1, one with "hosts" runs on two hosts, one with "threads"
         * calls from several threads. */
        if (strncmp(cases[i].name, "death", 5) == 0)
            j.may_die = 2; /* rank 1 */
        if (network || strncmp(cases[i].name, "hosts", 5) == 0)
            j.hosts = 2;
        memcpy(j.namespaces, namespaces, sizeof namespaces);
        if (strcmp(cases[i].name, "few_files") == 0)
            j.open_files = 320;
        if (strncmp(cases[i].name, "threads", 7) == 0)
            j.threads = 1;
        double began = check_now();
        job_run(&j, cases[i].main);
        printf("%-28s %6.2f s\n", cases[i].name, check_now() - began);
        fflush(stdout);
    }
    return 0;
}
