/*
 * What `viakit calibrate` has measured: a file per link, msg-LINK.txt in $XDG_CACHE_HOME/viakit or
 * ~/.cache/viakit, or in the folder that VIAKIT_MSG_CALIBRATION names (empty: none is read). Its lines are
 * "FIELD VALUE" with the fields of this table; what follows # is for people:
 *
 *     eager_limit 8192
 *     rendezvous rget
 *     credits 64
 *
 * A field of a policy that nobody has set (MSG_CALIBRATED) gets its value from here, or what is built in
 * where there is no file. Both sides of a connection have to agree, and hosts may have been measured
 * differently: what rank 0 has read counts for all (world.c: hello).
 *
 * In pairs of calibrations [0] is for ranks of one host, [1] for ranks of several.
 */
#include "calibration.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a file may set, and within which bounds: what exceeds them was not measured but mistyped. */
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

/* What is used where nothing has been measured. */
static const struct {
    const char *link;
    msg_calibration values;
} built_in[] = {
    {"shm", {8192, MSG_RGET, 64}}, /* reading another process's memory saves a message: CTS */
    {"eth", {16384, MSG_RPUT, 64}},
    {"udp", {16384, MSG_RPUT, 64}},
    {"tcp", {65536, MSG_R3, 64}},
};

/* 0, or -1: there is no place for it, or the path is too long. */
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

/* A line that makes no sense is passed over: the file is a cache, and programs must start.
 * Words and units are those of policies ("64K", "rget"), which msg_policy_set knows: the line
 * is tried on a policy, and the number taken from there. */
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

/* Built-in values, over which the file's lines are laid. An unknown link counts as eth. */
void msg_calibration_read(const char *link, msg_calibration *c)
{
    char path[512], line[256];
    FILE *file = NULL;
    *c = built_in[1].values;
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++)
        if (strcmp(built_in[i].link, link) == 0)
            *c = built_in[i].values;
    if (msg_calibration_path(link, path, sizeof path) == 0)
        file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        take(line, c);
    if (file)
        fclose(file);
}

void msg_calibration_of(const msg_policy *policy, const char *network_device, msg_calibration both[2])
{
    int tcp = strcmp(policy->channel, "tcp") == 0;
    int udp = network_device && strncmp(network_device, "udp", 3) == 0;
    msg_calibration_read(tcp ? "tcp" : "shm", &both[0]);
    msg_calibration_read(tcp ? "tcp" : udp ? "udp" : "eth", &both[1]);
}

/* Fills in what the policy leaves open, in this order: limits, then what the local ones inherit from the general
 * ones, then rendezvous the same way. A value that somebody has set is never changed. */
void msg_calibration_adopt(msg_policy *p, const msg_calibration both[2], int several_hosts)
{
    int by_bip = strcmp(p->channel, "bip") == 0; /* which has its own table: csrc/bip/model.h */
    if (p->eager_limit == MSG_CALIBRATED && !by_bip)
        p->eager_limit = both[1].eager_limit;
    if (p->eager_limit_local == MSG_CALIBRATED && !by_bip)
        p->eager_limit_local = both[0].eager_limit;
    if (p->eager_limit_local < 0)
        p->eager_limit_local = p->eager_limit;
    if (p->rendezvous_local == MSG_CALIBRATED || (p->rendezvous_local < 0 && p->rendezvous == MSG_CALIBRATED))
        p->rendezvous_local = both[0].rendezvous;
    if (p->rendezvous == MSG_CALIBRATED)
        p->rendezvous = both[1].rendezvous;
    if (p->rendezvous_local < 0)
        p->rendezvous_local = p->rendezvous;
    if (p->credits == MSG_CALIBRATED) /* one number for both links: the larger serves both */
        p->credits = several_hosts && both[1].credits > both[0].credits ? both[1].credits : both[0].credits;
}
