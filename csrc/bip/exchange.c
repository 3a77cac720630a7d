/*
 * The exchange of blobs over VIAKIT_RENDEZVOUS (docs/running.md):
 *
 *     to the meeting point     "VKX1" | len | len bytes of this rank
 *     from it                  0 | n | n times: len, len bytes          of all ranks, in their order
 *                          or  not 0 | length | a text                  ranks are missing
 *
 * Numbers have 4 bytes and are little-endian, as on every machine that runs this.
 *
 * Over TCP other processes may change bytes on their way, and a secret may serve several jobs. So the blob of the first
 * exchange is a nonce, and each later blob ends with a tag. viakit/launch/rendezvous.py (Sealed) does the same:
 *
 *     key    BLAKE2s(key = secret, "viakit exchange" | 0 | number of ranks | nonces of all ranks)
 *     tag    the first 16 bytes of BLAKE2s(key = key, number of the exchange | rank | blob)
 *
 * A rank requires that its own nonce and blobs return unchanged.
 *
 * A BIP program makes two exchanges: bip_launch_name, and the ranks' cards. viakit/bip.py (open) makes the same two, so
 * a job may have ranks in both languages.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/blake2s.h"
#include "base/clock.h"
#include "bip/launch.h"
#include "bip/stream.h"

#define TAG 16
#define NONCE 16
#define WORD 32
#define NAME_BYTES 7 /* of the hash: the name of an shm link has room for 15 digits */

/* The socket failed or the time is over: errno has the reason. Returns -1 with a text in error. */
static int failed(char *error)
{
    snprintf(error, BIP_ERROR_LEN,
             errno == ETIMEDOUT ? "not all ranks came to the exchange in time"
                                : "the meeting point of this job is gone: %s",
             strerror(errno));
    return -1;
}

/* One exchange of blobs that all have len bytes. The answer is verified, for other programs may be at the meeting.
 * Returns 0, or -1 with a text. After an error the position in the stream is unknown, so the descriptor cannot be used
 * for another exchange. */
static int exchange(const bip_launch *launch, const void *own, size_t len, void *all, uint64_t deadline, char *error)
{
    uint32_t word = (uint32_t)len, state = 0, n = 0;
    int fd = launch->fd;
    if (bip_stream_send(fd, "VKX1", 4, deadline) != 0 || bip_stream_send(fd, &word, 4, deadline) != 0 ||
        bip_stream_send(fd, own, len, deadline) != 0 || bip_stream_recv(fd, &state, 4, deadline) != 0 ||
        bip_stream_recv(fd, &n, 4, deadline) != 0)
        return failed(error);
    if (state) { /* n is the length of a text */
        char text[256] = "";
        bip_stream_recv(fd, text, n < sizeof text - 1 ? n : sizeof text - 1, deadline);
        snprintf(error, BIP_ERROR_LEN, "ranks are missing: %s", text);
        return -1;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (bip_stream_recv(fd, &word, 4, deadline) != 0)
            return failed(error);
        if (word != len || n != (uint32_t)launch->n_ranks) {
            snprintf(error, BIP_ERROR_LEN,
                     "rank %u of %u gave %u bytes to the exchange, expected %zu bytes of %d ranks: are all ranks BIP "
                     "programs of this version of viakit?",
                     i, n, word, len, launch->n_ranks);
            return -1;
        }
        if (bip_stream_recv(fd, (char *)all + i * len, len, deadline) != 0)
            return failed(error);
    }
    return 0;
}

/* Requires that this rank's blob has come back unchanged, at its place. Returns 0, or -1 with a text. */
static int require_own(const bip_launch *launch, const void *all, const void *own, size_t len, char *error)
{
    if (memcmp((const char *)all + (size_t)launch->rank * len, own, len) == 0)
        return 0;
    snprintf(error, BIP_ERROR_LEN,
             "the exchange did not return the blob of rank %d unchanged: it was changed or forged on its way",
             launch->rank);
    return -1;
}

/* Exchanges nonces, and derives the key of all later tags. The nonces make the key new for each job, also if two jobs
 * have the same secret. A blob of one job is then refused in the other. Returns 0, or -1 with a text. */
static int agree(bip_launch *launch, uint64_t deadline, char *error)
{
    static const char purpose[] = "viakit exchange"; /* with its zero */
    uint8_t own[NONCE], *all = malloc((size_t)launch->n_ranks * NONCE);
    uint32_t n = (uint32_t)launch->n_ranks;
    int code = -1;
    if (all == NULL || vk_random_bytes(own, sizeof own) != 0)
        snprintf(error, BIP_ERROR_LEN, "no memory or no random bytes");
    else if ((code = exchange(launch, own, sizeof own, all, deadline, error)) == 0 &&
             (code = require_own(launch, all, own, sizeof own, error)) == 0) {
        struct vk_blake2s s;
        vk_blake2s_begin(&s, launch->secret, sizeof launch->secret);
        vk_blake2s_add(&s, purpose, sizeof purpose);
        vk_blake2s_add(&s, &n, sizeof n);
        vk_blake2s_add(&s, all, (size_t)n * NONCE);
        vk_blake2s_end(&s, launch->key);
        launch->keyed = 1;
    }
    free(all);
    return code;
}

/* The tag of that rank's blob in the current exchange. It contains both numbers, so a blob of another rank, or of an
 * earlier exchange, has another tag. */
static void make_tag(const bip_launch *launch, int rank, const void *blob, size_t len, uint8_t tag[TAG])
{
    uint32_t numbers[2] = {launch->n_exchanges, (uint32_t)rank};
    uint8_t digest[VK_BLAKE2S_LEN];
    struct vk_blake2s s;
    vk_blake2s_begin(&s, launch->key, sizeof launch->key);
    vk_blake2s_add(&s, numbers, sizeof numbers);
    vk_blake2s_add(&s, blob, len);
    vk_blake2s_end(&s, digest);
    memcpy(tag, digest, TAG);
}

/* blobs: room for those of all ranks with their tags, and behind them for this rank's. Tags are compared in constant
 * time. `all` is complete only on success, because a wrong tag ends the exchange. */
static int exchange_tagged(bip_launch *launch, const void *own, size_t len, uint8_t *blobs, void *all,
                           uint64_t deadline, char *error)
{
    size_t whole = len + TAG;
    uint8_t *tagged = blobs + (size_t)launch->n_ranks * whole, right[TAG];
    memcpy(tagged, own, len);
    make_tag(launch, launch->rank, own, len, tagged + len);
    if (exchange(launch, tagged, whole, blobs, deadline, error) != 0 ||
        require_own(launch, blobs, tagged, whole, error) != 0)
        return -1;
    for (int i = 0; i < launch->n_ranks; i++) {
        const uint8_t *blob = blobs + (size_t)i * whole;
        make_tag(launch, i, blob, len, right);
        if (!vk_equal_secret(right, blob + len, TAG)) {
            snprintf(error, BIP_ERROR_LEN,
                     "what rank %d gave to the exchange was changed or forged on its way, or it has another secret", i);
            return -1;
        }
        memcpy((char *)all + (size_t)i * len, blob, len);
    }
    launch->n_exchanges++;
    return 0;
}

/* Only a meeting over TCP has tags (bip_launch_find). Its first exchange is preceded by that of the nonces, within the
 * same deadline. */
int bip_launch_exchange(bip_launch *launch, const void *own, size_t len, void *all, int timeout_ms, char *error)
{
    uint64_t deadline = vk_now() + (uint64_t)timeout_ms * VK_MS;
    if (!launch->tagged)
        return exchange(launch, own, len, all, deadline, error);
    if (!launch->keyed && agree(launch, deadline, error) != 0)
        return -1;
    uint8_t *blobs = malloc(((size_t)launch->n_ranks + 1) * (len + TAG));
    if (blobs == NULL) {
        snprintf(error, BIP_ERROR_LEN, "no memory");
        return -1;
    }
    int code = exchange_tagged(launch, own, len, blobs, all, deadline, error);
    free(blobs);
    return code;
}

/* Rank 0 draws a word, new for each job, and the name is its hash. All ranks send a word, because all blobs of an
 * exchange have one length. */
int bip_launch_name(bip_launch *launch, int timeout_ms, char *error)
{
    uint8_t digest[VK_BLAKE2S_LEN];
    char own[WORD + 1] = "", *all = malloc((size_t)launch->n_ranks * WORD);
    struct vk_blake2s s;
    int code = -1;
    if (all == NULL || vk_random_bytes(digest, WORD / 2) != 0) {
        snprintf(error, BIP_ERROR_LEN, "no memory or no random bytes");
        free(all);
        return -1;
    }
    for (int i = 0; i < WORD / 2; i++)
        snprintf(own + 2 * i, 3, "%02x", digest[i]);
    if ((code = bip_launch_exchange(launch, own, WORD, all, timeout_ms, error)) == 0) {
        vk_blake2s_begin(&s, NULL, 0);
        vk_blake2s_add(&s, all, WORD);
        vk_blake2s_end(&s, digest);
        for (int i = 0; i < NAME_BYTES; i++)
            snprintf(launch->job + 2 * i, 3, "%02x", digest[i]);
    }
    free(all);
    return code;
}
