/*
 * How a C program finds its job: the environment that `viakit run` sets, and the exchange over
 * VIAKIT_RENDEZVOUS=fd:N (docs/running.md). Both only for classic.c.
 *
 *     to the launcher     "VKX1" | len | len bytes of mine
 *     from it             0 | n | n times: len, len bytes          everybody's, in the order of ranks
 *                     or  not 0 | length | a text                  somebody is missing, and who
 *
 * Numbers have 4 bytes and are little-endian, as on every machine that runs this.
 */
#include "bip/launch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All of len bytes, or -1: the other side has hung up. Signals interrupt nothing for long. */
static int read_all(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (char *)to + got, len - got);
        if (n <= 0 && !(n < 0 && errno == EINTR))
            return -1;
        got += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

static int write_all(int fd, const void *from, size_t len)
{
    for (size_t put = 0; put < len;) {
        ssize_t n = write(fd, (const char *)from + put, len - put);
        if (n <= 0 && !(n < 0 && errno == EINTR))
            return -1;
        put += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* A number from the environment: -1 where it is not set, or is none, or is beyond what a
 * number of ranks can be. */
static int number(const char *name)
{
    const char *text = getenv(name);
    char *end = NULL;
    long value = text ? strtol(text, &end, 10) : -1;
    return text && end != text && *end == 0 && value >= 0 && value < 1 << 20 ? (int)value : -1;
}

int bip_launch_find(bip_launch *launch, char *error)
{
    const char *rendezvous = getenv("VIAKIT_RENDEZVOUS"), *job = getenv("VIAKIT_JOB");
    int local = number("VIAKIT_LOCAL_SIZE");
    *launch = (bip_launch){.rank = number("VIAKIT_RANK"), .n_ranks = number("VIAKIT_SIZE"), .fd = -1};
    /* Started by hand: a job of one. */
    if (launch->rank < 0 || launch->n_ranks < 1) {
        launch->rank = 0;
        launch->n_ranks = 1;
        return 0;
    }
    /* the name of an shm link has room for 15 bytes of it: the job's word is hashed */
    unsigned long long hash = 0xcbf29ce484222325ull;
    for (const char *p = job ? job : ""; *p; p++)
        hash = (hash ^ (unsigned char)*p) * 0x100000001b3ull;
    snprintf(launch->job, sizeof launch->job, "%.15llx", hash >> 4);
    if (launch->n_ranks == 1)
        return 0;
    if (rendezvous == NULL || sscanf(rendezvous, "fd:%d", &launch->fd) != 1) {
        snprintf(error, BIP_ERROR_LEN,
                 "rank %d of %d cannot find the others: VIAKIT_RENDEZVOUS is %s, not fd:N; start the program with "
                 "`viakit run`",
                 launch->rank, launch->n_ranks, rendezvous ? rendezvous : "not set");
        return -1;
    }
    const char *network = getenv("VIAKIT_NETWORK"), *host = getenv("VIAKIT_ADDRESS");
    launch->network = network && *network && (local < 0 || local < launch->n_ranks) ? network : NULL;
    launch->host = launch->network ? host : NULL;
    return 0;
}

/* Everybody's len bytes in the order of ranks; blocks until all have come. What the launcher says is held
 * against what we know, for it may be speaking to programs of another kind. */
int bip_launch_exchange(const bip_launch *launch, const void *mine, size_t len, void *all, char *error)
{
    uint32_t word = (uint32_t)len, state = 0, n = 0;
    if (write_all(launch->fd, "VKX1", 4) != 0 || write_all(launch->fd, &word, 4) != 0 ||
        write_all(launch->fd, mine, len) != 0 || read_all(launch->fd, &state, 4) != 0 ||
        read_all(launch->fd, &n, 4) != 0) {
        snprintf(error, BIP_ERROR_LEN, "the launcher hung up: %s", strerror(errno));
        return -1;
    }
    if (state) { /* n is the length of a text */
        char text[256] = "";
        read_all(launch->fd, text, n < sizeof text - 1 ? n : sizeof text - 1);
        snprintf(error, BIP_ERROR_LEN, "ranks are missing: %s", text);
        return -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (read_all(launch->fd, &word, 4) != 0 || word != len || n != (uint32_t)launch->n_ranks ||
            read_all(launch->fd, (char *)all + i * len, len) != 0) {
            snprintf(error, BIP_ERROR_LEN,
                     "what the launcher said about rank %u makes no sense: are all ranks BIP programs?", i);
            return -1;
        }
    }
    return 0;
}
