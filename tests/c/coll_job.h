/*
 * coll_job.h - what test_coll and test_collective share: groups of ranks, one of whom may die, and cases on the link of
 * the command line.
 */
#ifndef COLL_JOB_H
#define COLL_JOB_H

#include "coll/coll.h"
#include "msg_job.h"

extern const char *link_name; /* of the command line */
/* Yielding the core is expensive: if ranks outnumber cores, a waiting rank sleeps in the kernel and is woken. */
extern int asleep;

/* A call that must give this code; as GIVES, where no world is at hand. */
#define GIVE(call, code)                                                            \
    do {                                                                            \
        int check_code = (call);                                                    \
        if (check_code != (code))                                                   \
            FAIL("%s: %s instead of %s", #call, msg_error_name(check_code), #code); \
    } while (0)

/* The group of `n` ranks from `first` on. asleep: a turn of the scheduler is claimed to have taken a second, so that
 * waiting ranks go to sleep. */
coll *make_group(msg_world *w, int first, int n, int context);
/* The group of all `n` ranks but one. */
coll *make_without(msg_world *w, int rank, int n, int context);

/* For msg_set_interrupt: ends the process as a crash does. */
int die(void *context);

/* Takes LINK [CASE] from the command line. 0, or what the program has to end with. */
int start_cases(int argc, char **argv);
/* Exit status of the program: 0, or an error if the requested case never ran. */
int end_cases(void);

/* Runs a case, if it was requested or no case was. `how` is printed with its name. hosts: 0 for the real one, else as
 * if on so many (eth has its two). may_die: a bit per rank. */
void run_case(const char *name, const char *how, job_main main, int n_ranks, int hosts, int may_die);

#endif
