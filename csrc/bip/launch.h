/* bip/launch.h - rank, size and peers of a C program, from `viakit run`. */
#ifndef BIP_LAUNCH_H
#define BIP_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include "bip/job.h"

#define BIP_MEET_MS 60000 /* for the meeting point to listen, and for all ranks to come to an exchange */

typedef struct {
    int rank, n_ranks;                    /* 0 of 1 without a launcher */
    int fd;                               /* to the meeting point; -1: none */
    char job[16];                         /* a name for NICs, from bip_launch_name */
    unsigned char secret[BIP_SECRET_LEN]; /* of the job, if it has several ranks */
    const char *network, *host;           /* NULL: one host */
    int tagged;                           /* the meeting is over TCP: blobs carry tags */
    int keyed;                            /* the ranks have agreed on a key of this job */
    unsigned char key[BIP_SECRET_LEN];    /* of the tags */
    uint32_t n_exchanges;                 /* with tags, so far */
} bip_launch;

/* Reads the environment, and connects to the meeting point if one listens. 0, or -1 with the reason in
 * error[BIP_ERROR_LEN]. Blocks for at most BIP_MEET_MS. */
int bip_launch_find(bip_launch *launch, char *error);
/* Reads the job's secret from VIAKIT_SECRET or VIAKIT_SECRET_FILE. 0, or -1 with the reason in error[BIP_ERROR_LEN]. */
int bip_launch_secret(unsigned char secret[BIP_SECRET_LEN], char *error);
/* Agrees with all ranks on launch->job. 0, or -1 with the reason in error[BIP_ERROR_LEN]. Blocks as an
 * exchange does. */
int bip_launch_name(bip_launch *launch, int timeout_ms, char *error);
/* Gathers a blob of len bytes of each rank, in the order of ranks: all[n_ranks * len]. 0, or -1 with the reason in
 * error[BIP_ERROR_LEN]. Blocks until all ranks have called it, for at most timeout_ms. */
int bip_launch_exchange(bip_launch *launch, const void *own, size_t len, void *all, int timeout_ms, char *error);

#endif
