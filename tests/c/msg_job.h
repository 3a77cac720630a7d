/*
 * msg_job.h - jobs for tests of the message engine: n ranks as forked processes (or threads, where the link is loop),
 * with an exchange through the process that started them.
 */
#ifndef MSG_JOB_H
#define MSG_JOB_H

#include "msg/msg.h"
#include "msg/policy.h"
#include "pattern.h"

typedef struct {
    const char *link; /* a device, "shm", "loop", "eth", "udp", or the channel that replaces VIA, "tcp" */
    int n_ranks;
    const char *policy; /* on top of the link's own, as msg_policy_parse takes it; NULL: nothing */
    int bip;            /* by channel bip on that link */
    int threads;        /* worlds opened for several threads */
    int may_die;        /* bit r: rank r may end in any way */
    int hosts;          /* pretend that ranks are on so many hosts, round robin; 0: one */
    int open_files;     /* so many, and no right to have more; 0: as it is */
    int namespaces[2];  /* link eth: the two hosts (netns.h), which ranks are on in turn */
} job;

/* The program of each rank. It returns on success. The world is open, and is closed afterwards unless *world was set to
 * NULL. */
typedef void (*job_main)(msg_world **world, int rank, int n_ranks);

/* Runs it and fails the test if a rank fails. */
void job_run(const job *j, job_main main);

/* Runs a case, within two minutes; says what it is called (as every failure in it will) and how long it took. */
void job_case(const job *j, job_main main, const char *what);

/* Opens the world of a rank of the running job once more (all ranks must), for tests of opening itself. */
int job_open(const char *policy, msg_world **world, char *error);

/* All ranks meet; none goes on before all have arrived. Outside the engine, so that it sends no message. */
void job_meet(void);

/* A call on the world `w` that must succeed. */
#define OK(call)                                                                       \
    do {                                                                               \
        int check_code = (call);                                                       \
        if (check_code != MSG_SUCCESS)                                                 \
            FAIL("%s: %s (%s)", #call, msg_error_name(check_code), msg_last_error(w)); \
    } while (0)
/* One that must give this code. */
#define GIVES(call, code)                                                                                   \
    do {                                                                                                    \
        int check_code = (call);                                                                            \
        if (check_code != (code))                                                                           \
            FAIL("%s: %s instead of %s (%s)", #call, msg_error_name(check_code), #code, msg_last_error(w)); \
    } while (0)

uint64_t job_counter(msg_world *world, msg_counter counter);

#endif
