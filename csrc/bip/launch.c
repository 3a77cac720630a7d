/*
 * How a C program finds its job: the environment that `viakit run` sets, or the user (docs/running.md). The ranks meet
 * over VIAKIT_RENDEZVOUS: fd:N, a socket that the launcher gave to this process, or a meeting point that listens
 * (meet.c). They exchange blobs there (exchange.c). Only for classic.c.
 */
#include "bip/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bip/meet.h"

/* A number from the environment: -1 where it is not set, or is none, or is beyond what a
 * number of ranks can be. */
static int number(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : -1;
    return text && end != text && *end == 0 && value >= 0 && value < 1 << 20 ? (int)value : -1;
}

/* The secret is read before the rank connects, because its first message to a meeting point contains a proof. The
 * network is not used if VIAKIT_LOCAL_SIZE shows that all ranks are on this host. */
int bip_launch_find(bip_launch *launch, char *error)
{
    const char *rendezvous = getenv("VIAKIT_RENDEZVOUS");
    int local = number("VIAKIT_LOCAL_SIZE");
    *launch = (bip_launch){.rank = number("VIAKIT_RANK"), .n_ranks = number("VIAKIT_SIZE"), .fd = -1};
    /* Started without a launcher: a job of one rank. */
    if (launch->rank < 0 || launch->n_ranks < 1) {
        launch->rank = 0;
        launch->n_ranks = 1;
        return 0;
    }
    if (launch->rank >= launch->n_ranks) {
        snprintf(error, BIP_ERROR_LEN, "VIAKIT_RANK is %d, expected less than VIAKIT_SIZE, which is %d", launch->rank,
                 launch->n_ranks);
        return -1;
    }
    if (launch->n_ranks == 1)
        return 0;
    char why[BIP_ERROR_LEN];
    if (bip_launch_secret(launch->secret, why) != 0) {
        snprintf(error, BIP_ERROR_LEN, "rank %d of %d: %.440s", launch->rank, launch->n_ranks, why);
        return -1;
    }
    int listens = rendezvous && (strncmp(rendezvous, "unix:@", 6) == 0 || strncmp(rendezvous, "tcp:", 4) == 0);
    if (!listens && (rendezvous == NULL || sscanf(rendezvous, "fd:%d", &launch->fd) != 1)) {
        snprintf(
            error, BIP_ERROR_LEN,
            "rank %d of %d cannot find the others: VIAKIT_RENDEZVOUS is %s, not fd:N, unix:@NAME or tcp:HOST:PORT; "
            "start the program with `viakit run`",
            launch->rank, launch->n_ranks, rendezvous ? rendezvous : "not set");
        return -1;
    }
    launch->tagged = listens && strncmp(rendezvous, "tcp:", 4) == 0;
    if (listens && (launch->fd = bip_meet(rendezvous, launch, BIP_MEET_MS, error)) < 0)
        return -1;
    const char *network = getenv("VIAKIT_NETWORK"), *host = getenv("VIAKIT_ADDRESS");
    launch->network = network && *network && (local < 0 || local < launch->n_ranks) ? network : NULL;
    launch->host = launch->network ? host : NULL;
    return 0;
}
