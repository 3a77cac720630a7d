/*
 * test_msg.c - the message engine on every channel: test_msg LINK [CASE]. The same cases on shm (processes), loop (threads) and
 * tcp (processes), and between two hosts on eth: what a channel carries may not depend on which it is.
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

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: test_msg LINK [CASE]\n");
        return 2;
    }
    int namespaces[2] = {-1, -1}, eth = strcmp(argv[1], "eth") == 0;
    char why[256];
    if (eth && (netns_enter(argv, why, sizeof why) != 0 || netns_make_pair(1500, namespaces, why, sizeof why) != 0)) {
        printf("no hosts can be made here: %s\n", why);
        return CHECK_SKIPPED;
    }
    case_link = argv[1];
    int link = strcmp(argv[1], "loop") == 0 ? ON_LOOP : strcmp(argv[1], "tcp") == 0 ? ON_TCP : ON_SHM;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!(cases[i].links & link) || (argc > 2 && strcmp(argv[2], cases[i].name) != 0))
            continue;
        snprintf(check_context, sizeof check_context, "%s %s", argv[1], cases[i].name);
        check_deadline(120);
        job j = {.link = argv[1], .n_ranks = cases[i].n_ranks, .policy = cases[i].policy};
        if (strncmp(cases[i].name, "death", 5) == 0)
            j.may_die = 2; /* rank 1 */
        if (eth || strncmp(cases[i].name, "hosts", 5) == 0)
            j.hosts = 2;
        memcpy(j.namespaces, namespaces, sizeof namespaces);
        if (strncmp(cases[i].name, "threads", 7) == 0)
            j.threads = 1;
        double began = check_now();
        job_run(&j, cases[i].main);
        printf("%-28s %6.2f s\n", cases[i].name, check_now() - began);
        fflush(stdout);
    }
    return 0;
}
