/*
 * msg_cases_daemon.c - cases of test_msg: all messages through a daemon on each host (policy: route=daemon). Most run
 * the cases of other files. Others end the daemon, or wait for its end.
 */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "msg/engine.h"
#include "msg_calls.h"
#include "msg_cases.h"
#include "process.h"

/* Returns the process id of the daemon of a job, by its name. 0: it has none. */
static int find_daemon(const char *of)
{
    char wanted[32], path[300], name[32];
    int found = 0;
    snprintf(wanted, sizeof wanted, "viakit-%.8s\n", of);
    DIR *all = opendir("/proc");
    CHECK(all);
    for (const struct dirent *e; found == 0 && (e = readdir(all)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%s/comm", e->d_name);
        FILE *f = atoi(e->d_name) > 0 ? fopen(path, "re") : NULL;
        if (f && fgets(name, sizeof name, f) && strcmp(name, wanted) == 0 &&
            process_state(atoi(e->d_name)) != 'Z') /* init reaps it when it likes */
            found = atoi(e->d_name);
        if (f)
            fclose(f);
    }
    closedir(all);
    return found;
}

/* The daemon is there while the world is open, and ends by itself afterwards. */
void case_daemon_ends(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    char name[33], c = 0;
    memcpy(name, w->job, sizeof name);
    OK(call_sendrecv(w, 1, &c, 1, !rank, 1, &c, 1, !rank, 1, NULL));
    CHECK(find_daemon(name) > 0);
    OK(call_sendrecv(w, 1, &c, 1, !rank, 2, &c, 1, !rank, 2, NULL));
    CHECK_EQ(msg_world_close(w, CHECK_WAIT_S * 1000), MSG_SUCCESS);
    *world = NULL;
    WAIT_UNTIL(find_daemon(name) == 0);
    CHECK_EQ(n_ranks, 2);
}

/* A daemon that dies ends the operations of its ranks with an error, and no wait hangs. */
void case_daemon_killed(msg_world **world, int rank, int n_ranks)
{
    msg_world *w = *world;
    msg_request *r;
    msg_status s;
    char c = 0, d = 0;
    (void)n_ranks;
    OK(call_sendrecv(w, 1, &c, 1, !rank, 1, &d, 1, !rank, 1, NULL));
    OK(msg_irecv(w, 1, &d, 1, !rank, 2, &r));
    if (rank == 1) {
        OK(msg_send(w, 1, &c, 1, 0, 3, MSG_STANDARD)); /* the exchange has ended here, too */
    } else {
        OK(msg_recv(w, 1, &c, 1, 1, 3, NULL));
        int daemon = find_daemon(w->job);
        CHECK(daemon > 0);
        CHECK_EQ(kill(daemon, SIGKILL), 0);
    }
    OK(msg_wait(w, &r, &s, CHECK_WAIT_S * 1000));
    CHECK_EQ(s.error, MSG_ERR_PROC_FAILED);
    CHECK(strstr(msg_last_error(w), "by the daemons has ended"));
}

#define SAME(name, other)                                      \
    void case_##name(msg_world **world, int rank, int n_ranks) \
    {                                                          \
        case_##other(world, rank, n_ranks);                    \
    }

SAME(daemon_sizes, sizes)
SAME(daemon_ring, ring)
SAME(daemon_storm, storm)
SAME(hosts_daemon_sizes, sizes)
SAME(hosts_daemon_ring, ring)
SAME(hosts_daemon_order, order)
SAME(hosts_daemon_storm, storm)
SAME(hosts_daemon_throttle, throttle)
SAME(death_daemon, death)
SAME(leave_daemon, leave)
