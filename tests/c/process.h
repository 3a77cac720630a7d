/* process.h - what another process of the test is doing, for cases that wait for it without a word from it. */
#ifndef PROCESS_H
#define PROCESS_H

#include <stdio.h>
#include <string.h>
#include <sys/types.h>

/* The kernel's letter for it: 'T' it is stopped; 'Z' it has ended, and all that it had open is closed. 0: none. */
static inline char process_state(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return 0;
    /* Behind its name, which may hold anything; empty if it went between the two calls. */
    const char *name_end = fgets(text, sizeof text, f) ? strrchr(text, ')') : NULL;
    fclose(f);
    return name_end && name_end[1] == ' ' ? name_end[2] : 0;
}

#endif
