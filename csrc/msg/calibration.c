/*
 * Results of `viakit calibrate`: a file per link, msg-LINK.txt in $XDG_CACHE_HOME/viakit or ~/.cache/viakit, or in the
 * folder named by VIAKIT_MSG_CALIBRATION (empty: none is read). Its lines are "FIELD VALUE" with the fields of this
 * table; text after # is a comment:
 *
 *     eager_limit 8192
 *     rendezvous rget
 *     credits 64
 *
 * A field that the policy leaves open (MSG_CALIBRATED) gets its value from here, or a built-in value if there is no
 * file. Both sides of a connection must agree, and hosts may have different results. So the file of rank 0 counts for
 * all (hello.c).
 *
 * In pairs of calibrations [0] is for ranks of one host, [1] for ranks of several.
 */
#include "msg/calibration.h"
#include "msg/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "viakit.h"

/* Fields that a file may set, and their bounds. A value beyond them is an error in the file, not a measurement. */
static const struct {
    const char *name;
    size_t at; /* in msg_calibration */
    int64_t least, most;
} fields[] = {
    {"eager_limit", offsetof(msg_calibration, eager_limit), 0, 1 << 20},
    {"rendezvous", offsetof(msg_calibration, rendezvous), MSG_RPUT, MSG_R3},
    {"credits", offsetof(msg_calibration, credits), 8, 1000},
};
#define N_FIELDS (sizeof fields / sizeof *fields)

/* Values for links that have not been measured. */
static const struct {
    const char *link;
    msg_calibration values;
} built_in[] = {
    {"shm", {8192, MSG_RGET, 64}}, /* reading another process's memory saves one packet, the CTS */
    {"eth", {16384, MSG_RPUT, 64}},
    {"udp", {16384, MSG_RPUT, 64}},
    {"tcp", {65536, MSG_R3, 64}},
};

/* Returns 0, or -1: there is no folder for it, or the path is too long. */
int msg_calibration_path(const char *link, char *path, size_t room)
{
    const char *given = getenv("VIAKIT_MSG_CALIBRATION"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (given)
        n = *given ? snprintf(path, room, "%s/msg-%s.txt", given, link) : -1;
    else if (cache && *cache)
        n = snprintf(path, room, "%s/viakit/msg-%s.txt", cache, link);
    else if (home && *home)
        n = snprintf(path, room, "%s/.cache/viakit/msg-%s.txt", home, link);
    return n > 0 && (size_t)n < room ? 0 : -1;
}

/* Skips invalid lines: the file is a cache, and programs must start. Words and units are those of policies ("64K",
 * "rget"). So the line is applied to a policy with msg_policy_set, and the number is taken from there. */
static void take(const char *line, msg_calibration *c)
{
    char name[32], word[32];
    msg_policy p = *msg_policy_at(0);
    if (sscanf(line, "%31s %31s", name, word) != 2)
        return;
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (strcmp(fields[i].name, name) != 0 || msg_policy_set(&p, name, word, NULL) != 0)
            continue;
        int64_t value = strcmp(name, "eager_limit") == 0 ? p.eager_limit
                        : strcmp(name, "credits") == 0   ? p.credits
                                                         : p.rendezvous;
        if (value >= fields[i].least && value <= fields[i].most)
            *(int64_t *)(void *)((char *)c + fields[i].at) = value;
    }
}

/* Built-in values, overridden by the file's lines. An unknown link counts as eth. */
static void read_calibration(const char *link, msg_calibration *c)
{
    char path[512], line[256];
    FILE *file = NULL;
    *c = built_in[1].values;
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (strcmp(built_in[i].link, link) == 0)
            *c = built_in[i].values;
    /* On a described machine, results must not depend on this one's. */
    if (!msg_on_machine() && msg_calibration_path(link, path, sizeof path) == 0)
        file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        take(line, c);
    if (file)
        fclose(file);
}

void msg_calibration_of(const msg_policy *policy, const char *network_device, msg_calibration both[2])
{
    int tcp = strcmp(policy->channel, "tcp") == 0;
    const viakit_link_info *network = network_device ? viakit_link_of(network_device) : NULL;
    read_calibration(tcp ? "tcp" : "shm", &both[0]);
    read_calibration(tcp ? "tcp" : network ? network->name : "eth", &both[1]);
}
