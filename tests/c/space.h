/* space.h - a limit on address space, as ulimit -v sets it. */
#ifndef SPACE_H
#define SPACE_H

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "check.h"

/* This process may take so much more address space; 0: as much as it likes. */
static inline void limit_address_space(rlim_t more)
{
    struct rlimit limit;
    unsigned long long pages;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL);
    CHECK_EQ(fscanf(file, "%llu", &pages), 1);
    /* Beyond what it has now. */
    fclose(file);
    CHECK_EQ(getrlimit(RLIMIT_AS, &limit), 0);
    limit.rlim_cur = more ? (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + more : limit.rlim_max;
    CHECK_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

#endif
