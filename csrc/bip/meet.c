/*
 * The meeting point of a job without a launcher: rank 0, or another process, listens, and all ranks connect. First,
 * both sides prove to each other that they have the job's secret:
 *
 *     meeting point   "VKC2" | nonce S
 *     rank            "VKH2" | rank | number of ranks | nonce C | proof
 *     meeting point   "VKW2" | proof
 *
 *     proof = BLAKE2s(key = secret, label | S | C | rank | number of ranks)
 *
 * Nonces have 16 bytes, proofs 32, numbers 4, little-endian. The labels are "viakit meeting rank" and "viakit meeting
 * point", without a zero. The rest is the same as over fd:N (exchange.c).
 *
 * Neither side uses a field of the other before it has verified the proof, except `magic` and the rank's own numbers.
 * The proof covers both nonces, so a recorded conversation cannot be repeated.
 *
 * Not protected here: the bytes after the proofs. Over TCP the blobs of the exchange have tags of their own
 * (exchange.c); a Unix socket leaves no host.
 *
 * Only for programs of classic.c, in the thread that calls bip_init. Blocks until the deadline at most, except in the
 * resolver.
 */
#include "bip/meet.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/blake2s.h"
#include "base/clock.h"
#include "bip/stream.h"

#define PAUSE_MS 50     /* before the meeting point is called again */
#define ANSWER_MS 10000 /* that the meeting point may take for its part of the proof, before it is called again */
#define REFUSALS 5      /* of this rank's proof: then the secrets differ */

static const char rank_label[] = "viakit meeting rank", point_label[] = "viakit meeting point";

/* The three messages, in the order of the picture. */
struct challenge {
    char magic[4];
    uint8_t nonce[16];
};
struct hello {
    char magic[4];
    uint32_t rank, n_ranks;
    uint8_t nonce[16], proof[32];
};
struct welcome {
    char magic[4];
    uint8_t proof[32];
};
_Static_assert(sizeof(struct challenge) == 20 && sizeof(struct hello) == 60 && sizeof(struct welcome) == 36,
               "no padding: they travel as they lie");

/* Computes a proof (see above). Both sides compute both proofs, so the secret never leaves a process. The labels
 * differ, so a proof cannot be sent back to its sender. */
static void prove(const bip_launch *launch, const char *label, const uint8_t *s_nonce, const struct hello *hello,
                  uint8_t proof[32])
{
    struct vk_blake2s s;
    vk_blake2s_begin(&s, launch->secret, sizeof launch->secret);
    vk_blake2s_add(&s, label, strlen(label));
    vk_blake2s_add(&s, s_nonce, 16);
    vk_blake2s_add(&s, hello->nonce, 16);
    vk_blake2s_add(&s, &hello->rank, 4);
    vk_blake2s_add(&s, &hello->n_ranks, 4);
    vk_blake2s_end(&s, proof);
}

/* How a call ended. A meeting point with many callers drops the oldest one, so a call that was dropped is repeated. One
 * that was dropped after its proof is repeated a few times only, because then the secrets probably differ. */
enum outcome { LET_IN, DROPPED, PROOF_DROPPED, REFUSED };

/* The exchange of proofs on a new connection. Every outcome but LET_IN has a text in error; the caller closes fd then.
 */
static enum outcome introduce(int fd, const bip_launch *launch, const char *address, uint64_t deadline, char *error)
{
    struct challenge challenge;
    struct hello hello = {
        .magic = {'V', 'K', 'H', '2'}, .rank = (uint32_t)launch->rank, .n_ranks = (uint32_t)launch->n_ranks};
    struct welcome welcome;
    uint8_t right[32];
    if (vk_random_bytes(hello.nonce, sizeof hello.nonce) != 0) {
        snprintf(error, BIP_ERROR_LEN, "the kernel has no random bytes");
        return REFUSED;
    }
    if (bip_stream_recv(fd, &challenge, sizeof challenge, deadline) != 0) {
        snprintf(error, BIP_ERROR_LEN, "rank %d: what listens at %.200s does not speak as a meeting point does: %s",
                 launch->rank, address, strerror(errno));
        return DROPPED;
    }
    prove(launch, rank_label, challenge.nonce, &hello, hello.proof);
    if (memcmp(challenge.magic, "VKC2", 4) != 0) {
        snprintf(error, BIP_ERROR_LEN, "rank %d: the process at %.200s is no meeting point of this version of viakit",
                 launch->rank, address);
        return REFUSED;
    }
    if (bip_stream_send(fd, &hello, sizeof hello, deadline) != 0 ||
        bip_stream_recv(fd, &welcome, sizeof welcome, deadline) != 0) {
        snprintf(
            error, BIP_ERROR_LEN,
            "rank %d: the meeting point at %.200s refused this rank (%s): do all ranks have the same VIAKIT_SECRET?",
            launch->rank, address, strerror(errno));
        return PROOF_DROPPED;
    }
    prove(launch, point_label, challenge.nonce, &hello, right);
    if (memcmp(welcome.magic, "VKW2", 4) != 0 || !vk_equal_secret(right, welcome.proof, sizeof right)) {
        snprintf(error, BIP_ERROR_LEN, "rank %d: the process at %.200s does not have the job's secret", launch->rank,
                 address);
        return REFUSED;
    }
    return LET_IN;
}

/* Returns a connected socket, or -1 with errno. Waits for the connection, until the deadline at most. */
static int connect_to(const struct sockaddr *a, socklen_t len, uint64_t deadline)
{
    int fd = socket(a->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), so_error = 0;
    socklen_t size = sizeof so_error;
    if (fd < 0)
        return -1;
    /* EAGAIN on a Unix socket: the backlog is full at present. */
    if (connect(fd, a, len) != 0 && errno != EINPROGRESS)
        so_error = errno;
    else if (bip_stream_wait(fd, POLLOUT, deadline) != 0)
        so_error = errno;
    else
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &so_error, &size);
    if (so_error == 0)
        return fd;
    close(fd);
    errno = so_error;
    return -1;
}

/* Connects to an abstract name, "@NAME". Returns as connect_to. */
static int call_unix(const char *name, uint64_t deadline)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t n = strlen(name); /* from the '@' on, which a zero replaces */
    if (n >= sizeof a.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(a.sun_path + 1, name + 1, n - 1);
    return connect_to((const struct sockaddr *)(const void *)&a,
                      (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n), deadline);
}

/* Connects to any of the host's addresses. `where` is HOST:PORT, or [ADDRESS]:PORT for numeric IPv6. The resolver may
 * block beyond the deadline. Returns as connect_to; errno is that of the last address. */
static int call_tcp(const char *where, uint64_t deadline)
{
    char host[256];
    const char *port = strrchr(where, ':');
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *all, *i;
    int fd = -1;
    if (port == NULL || (size_t)(port - where) >= sizeof host) {
        errno = EINVAL;
        return -1;
    }
    int bracketed = where[0] == '[' && port > where + 1 && port[-1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(port - where) - 2 * bracketed, where + bracketed);
    if (getaddrinfo(host, port + 1, &hints, &all) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    for (i = all; i && fd < 0; i = i->ai_next)
        fd = connect_to(i->ai_addr, i->ai_addrlen, deadline);
    int why = errno;
    freeaddrinfo(all);
    errno = why;
    return fd;
}

/* Returns 1 if a process may still start to listen there. */
static int is_retryable(int why)
{
    return why == ECONNREFUSED || why == ENOENT || why == ECONNRESET || why == EAGAIN;
}

/* One call after the other, PAUSE_MS apart, until one is let in. An answer has ANSWER_MS, so that a process that only
 * accepts connections does not take all of the time. */
int bip_meet(const char *address, const bip_launch *launch, int timeout_ms, char *error)
{
    uint64_t deadline = vk_now() + (uint64_t)timeout_ms * VK_MS;
    for (int n_refused = 0;;) {
        enum outcome outcome = DROPPED;
        int fd =
            strncmp(address, "unix:@", 6) == 0 ? call_unix(address + 5, deadline) : call_tcp(address + 4, deadline);
        if (fd < 0) {
            outcome = is_retryable(errno) ? DROPPED : REFUSED;
            snprintf(error, BIP_ERROR_LEN, "rank %d finds no meeting point at %.200s: %s", launch->rank, address,
                     strerror(errno));
        } else {
            uint64_t until = vk_now() + ANSWER_MS * VK_MS;
            outcome = introduce(fd, launch, address, until < deadline ? until : deadline, error);
        }
        if (outcome == LET_IN)
            return fd;
        if (fd >= 0)
            close(fd);
        n_refused += outcome == PROOF_DROPPED;
        if (outcome == REFUSED || n_refused >= REFUSALS || vk_now() > deadline)
            return -1;
        poll(NULL, 0, PAUSE_MS); /* there is nothing to be woken by */
    }
}
