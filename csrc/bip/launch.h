/* bip/launch.h - rank, size and peers of a C program, from `viakit run`. */
#ifndef BIP_LAUNCH_H
#define BIP_LAUNCH_H

#include "bip/job.h"

typedef struct {
    int rank, n_ranks; /* 0 of 1 where nobody launched */
    int fd;            /* to the launcher; -1: none */
    char job[16];
    const char *network, *host; /* NULL: one host */
} bip_launch;

/* 0, or -1 with the reason in error[BIP_ERROR_LEN]. */
int bip_launch_find(bip_launch *launch, char *error);
/* Everybody's blob of len bytes, in the order of ranks: all[n_ranks * len]. Blocks until all have come. */
int bip_launch_exchange(const bip_launch *launch, const void *mine, size_t len, void *all, char *error);

#endif
