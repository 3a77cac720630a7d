/*
 * test_meet.c - the way of a C program to a meeting point that listens (bip/meet.h): over unix and tcp, with points
 * that have the secret, and with some that have not. The proofs are compared with those of Python's hashlib. Then the
 * exchange (exchange.c) by a meeting point that changes blobs, and the secret's file (secret.c).
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/blake2s.h"
#include "bip/meet.h"
#include "check.h"

/* CROWDED: drops calls, as a meeting point with many callers does, and takes the last. REFUSES: drops each call after
 * its proof. */
enum how { HONEST, WRONG_SECRET, WRONG_MAGIC, REFLECTS, SILENT, CROWDED, REFUSES };

#define N_DROPPED 8
#define N_REFUSED 5

struct point {
    int listener;
    enum how how;
    bip_launch launch; /* as the rank has it */
};

static void read_all(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = recv(fd, (char *)to + got, len - got, 0);
        CHECK(n > 0);
        got += (size_t)n;
    }
}

/* The bytes of the protocol, written down once more. */
static void prove(const uint8_t *secret, const char *label, const uint8_t *s, const uint8_t *c, const uint8_t *numbers,
                  uint8_t proof[32])
{
    struct vk_blake2s state;
    vk_blake2s_begin(&state, secret, 32);
    vk_blake2s_add(&state, label, strlen(label));
    vk_blake2s_add(&state, s, 16);
    vk_blake2s_add(&state, c, 16);
    vk_blake2s_add(&state, numbers, 8);
    vk_blake2s_end(&state, proof);
}

static void *hold(void *argument)
{
    const struct point *p = argument;
    uint8_t challenge[20] = "VKC2", hello[60], welcome[36] = "VKW2", right[32], secret[32], one;
    int fd = accept(p->listener, NULL, NULL), honest = p->how == HONEST || p->how == CROWDED;
    CHECK(fd >= 0);
    for (int i = 0; p->how == CROWDED && i < N_DROPPED; i++) {
        close(fd);
        fd = accept(p->listener, NULL, NULL);
        CHECK(fd >= 0);
    }
    memcpy(secret, p->launch.secret, sizeof(secret));
    secret[31] ^= p->how == WRONG_SECRET;
    for (int i = 0; i < 16; i++)
        challenge[4 + i] = (uint8_t)i;
    if (p->how == WRONG_MAGIC)
        challenge[3] = '1';
    if (p->how == SILENT)
        CHECK(recv(fd, &one, 1, 0) <= 0); /* until the rank gives up */
    else
        CHECK_EQ(send(fd, challenge, sizeof(challenge), MSG_NOSIGNAL), sizeof(challenge));
    for (int i = 1; p->how == REFUSES; i++) {
        read_all(fd, hello, sizeof(hello));
        close(fd);
        if (i == N_REFUSED)
            return NULL;
        fd = accept(p->listener, NULL, NULL);
        CHECK(fd >= 0);
        CHECK_EQ(send(fd, challenge, sizeof(challenge), MSG_NOSIGNAL), sizeof(challenge));
    }
    if (honest || p->how == WRONG_SECRET || p->how == REFLECTS) {
        read_all(fd, hello, sizeof(hello));
        CHECK(memcmp(hello, "VKH2\x02\0\0\0\x05\0\0\0", 12) == 0);
        prove(p->launch.secret, "viakit meeting rank", challenge + 4, hello + 12, hello + 4, right);
        CHECK(memcmp(hello + 28, right, 32) == 0);
        prove(secret, "viakit meeting point", challenge + 4, hello + 12, hello + 4, welcome + 4);
        if (p->how == REFLECTS)
            memcpy(welcome + 4, hello + 28, 32);
        CHECK_EQ(send(fd, welcome, sizeof(welcome), MSG_NOSIGNAL), sizeof(welcome));
    }
    if (honest) { /* the descriptor is good for what follows */
        read_all(fd, &one, 1);
        CHECK_EQ(one, 'x');
    }
    close(fd);
    return NULL;
}

static void meet(struct point *p, enum how how, const char *address)
{
    char error[BIP_ERROR_LEN] = "";
    pthread_t thread;
    p->how = how;
    CHECK_EQ(pthread_create(&thread, NULL, hold, p), 0);
    int fd = bip_meet(address, &p->launch, how == SILENT ? 200 : 1000 * CHECK_WAIT_S, error);
    if (how == HONEST || how == CROWDED) {
        if (fd < 0)
            FAIL("%s: %s", address, error);
        CHECK_EQ(write(fd, "x", 1), 1);
        close(fd);
    } else {
        CHECK_EQ(fd, -1);
        CHECK(strstr(error, how == WRONG_SECRET || how == REFLECTS ? "secret"
                            : how == REFUSES                       ? "same VIAKIT_SECRET"
                                                                   : "meeting point") != NULL);
    }
    pthread_join(thread, NULL);
}

/* ---- the exchange: this side is the meeting point, which passes blobs on, or changes them */

enum wire { FAITHFUL, CHANGES_NONCE, CHANGES_OWN, CHANGES_OTHER, REPLAYS, LONGER, HALTS };

struct two_ranks {
    int fd[2];
    bip_launch launch[2];
    char error[2][BIP_ERROR_LEN];
    int code[2], n_done[2];
    int timeout_ms;
};
struct one_rank {
    struct two_ranks *job;
    int rank;
};

static void *exchange_twice(void *argument)
{
    const struct one_rank *r = argument;
    struct two_ranks *j = r->job;
    for (uint8_t i = 0; i < 2 && j->code[r->rank] == 0; i++) {
        uint8_t own[5] = {'c', 'a', 'r', (uint8_t)r->rank, i}, all[2][5];
        j->code[r->rank] =
            bip_launch_exchange(&j->launch[r->rank], own, sizeof(own), all, j->timeout_ms, j->error[r->rank]);
        for (int k = 0; k < 2 && j->code[r->rank] == 0; k++)
            CHECK(memcmp(all[k], (uint8_t[5]){'c', 'a', 'r', (uint8_t)k, i}, 5) == 0);
        j->n_done[r->rank] += j->code[r->rank] == 0;
    }
    shutdown(j->launch[r->rank].fd, SHUT_RDWR);
    return NULL;
}

/* Serves one exchange. `blobs` gets what the ranks gave; returns the length, 0 if a rank has gone. */
static uint32_t serve(struct two_ranks *j, enum wire wire, int round, uint8_t blobs[2][64])
{
    static uint8_t earlier[2][64];
    uint32_t head[2], len = 0;
    for (int i = 0; i < 2; i++) {
        if (recv(j->fd[i], head, 8, MSG_WAITALL) != 8 || memcmp(head, "VKX1", 4) != 0)
            return 0;
        len = head[1];
        CHECK(len <= 64);
        read_all(j->fd[i], blobs[i], len);
    }
    if (wire == HALTS && round == 1)
        return 0;
    for (int to = 0; to < 2; to++) {
        uint8_t answer[8 + 2 * (4 + 64)], *at = answer + 8;
        uint32_t words[2] = {0, 2}, told = len + (wire == LONGER && round == 1);
        memcpy(answer, words, 8);
        for (int i = 0; i < 2; i++) {
            int replays = wire == REPLAYS && round == 2 && i != to;
            memcpy(at, &told, 4);
            memcpy(at + 4, replays ? earlier[i] : blobs[i], len);
            at[4] ^= (wire == CHANGES_NONCE && round == 0) || (wire == CHANGES_OWN && round == 1 && i == to) ||
                     (wire == CHANGES_OTHER && round == 1 && i != to);
            at += 4 + len;
        }
        send(j->fd[to], answer, (size_t)(at - answer), MSG_NOSIGNAL);
    }
    memcpy(earlier, blobs, sizeof(earlier));
    return len;
}

static void case_exchange(enum wire wire, const char *expected)
{
    struct two_ranks j = {.timeout_ms = wire == HALTS ? 100 : 1000 * CHECK_WAIT_S};
    struct one_rank ranks[2] = {{&j, 0}, {&j, 1}};
    pthread_t threads[2];
    uint8_t blobs[2][64];
    for (int i = 0; i < 2; i++) {
        int pair[2];
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        j.fd[i] = pair[0];
        j.launch[i] = (bip_launch){.rank = i, .n_ranks = 2, .fd = pair[1], .tagged = 1};
        memset(j.launch[i].secret, 'k', sizeof(j.launch[i].secret));
        CHECK_EQ(pthread_create(&threads[i], NULL, exchange_twice, &ranks[i]), 0);
    }
    for (int round = 0; round < 3 && serve(&j, wire, round, blobs); round++) {}
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        close(j.fd[i]);
        close(j.launch[i].fd);
        CHECK_EQ(j.code[i] == 0, wire == FAITHFUL);
        if (strstr(j.error[i], expected) == NULL)
            FAIL("wire %d, rank %d: '%s'", (int)wire, i, j.error[i]);
        CHECK_EQ(j.n_done[i], wire == FAITHFUL ? 2 : wire == REPLAYS ? 1 : 0);
    }
}

static void exchanges(void)
{
    case_exchange(FAITHFUL, "");
    case_exchange(CHANGES_NONCE, "unchanged");
    case_exchange(CHANGES_OWN, "unchanged");
    case_exchange(CHANGES_OTHER, "changed or forged");
    case_exchange(REPLAYS, "changed or forged");
    case_exchange(LONGER, "gave 22 bytes to the exchange, expected 21");
    case_exchange(HALTS, "in time");
}

/* ---- the secret's file, as viakit/base/secret.py reads it */

static void secret_files(void)
{
    /* hashlib.blake2s(b"viakit secret file" + bytes(range(32))).digest() */
    static const char digest[] = "a77412f0e32bf3938b7f5d19520446680b255b8edd3d968bcf9653e210b3eb1f";
    char path[] = "/tmp/viakit-test-secret-XXXXXX", link[64], error[BIP_ERROR_LEN] = "";
    unsigned char secret[BIP_SECRET_LEN], right[BIP_SECRET_LEN], content[4097];
    int fd = mkstemp(path);
    CHECK(fd >= 0);
    for (size_t i = 0; i < sizeof(content); i++)
        content[i] = (unsigned char)i;
    unsetenv("VIAKIT_SECRET");
    unsetenv("VIAKIT_SECRET_FILE");
    CHECK_EQ(bip_launch_secret(secret, error), -1);
    CHECK(strstr(error, "not set") != NULL);
    setenv("VIAKIT_SECRET_FILE", path, 1);
    CHECK_EQ(write(fd, content, 31), 31);
    CHECK_EQ(bip_launch_secret(secret, error), -1);
    CHECK(strstr(error, "too short") != NULL);
    CHECK_EQ(pwrite(fd, content, 32, 0), 32);
    CHECK_EQ(bip_launch_secret(secret, error), 0);
    CHECK_EQ(vk_read_hex(digest, right, sizeof(right)), 0);
    CHECK(memcmp(secret, right, sizeof(right)) == 0);
    CHECK_EQ(fchmod(fd, 0640), 0);
    CHECK_EQ(bip_launch_secret(secret, error), -1);
    CHECK(strstr(error, "mode") != NULL);
    CHECK_EQ(fchmod(fd, 0600), 0);
    CHECK_EQ(pwrite(fd, content, sizeof(content), 0), (ssize_t)sizeof(content));
    CHECK_EQ(bip_launch_secret(secret, error), -1);
    CHECK(strstr(error, "too long") != NULL);
    CHECK_EQ(ftruncate(fd, 32), 0);
    snprintf(link, sizeof(link), "%s-link", path);
    CHECK_EQ(symlink(path, link), 0);
    setenv("VIAKIT_SECRET_FILE", link, 1);
    CHECK_EQ(bip_launch_secret(secret, error), -1);
    CHECK(strstr(error, "symbolic link") != NULL);
    CHECK_EQ(unlink(link), 0);
    CHECK_EQ(mkfifo(link, 0600), 0);
    CHECK_EQ(bip_launch_secret(secret, error), -1);
    CHECK(strstr(error, "not a regular file") != NULL);
    CHECK_EQ(unlink(link), 0);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(bip_launch_secret(secret, error), -1);
    /* VIAKIT_SECRET comes first. */
    setenv("VIAKIT_SECRET", digest, 1);
    CHECK_EQ(bip_launch_secret(secret, error), 0);
    CHECK(memcmp(secret, right, sizeof(right)) == 0);
    setenv("VIAKIT_SECRET", "0123", 1);
    CHECK_EQ(bip_launch_secret(secret, error), -1);
    CHECK(strstr(error, "0123") == NULL);
    close(fd);
}

int main(void)
{
    struct point p = {.launch = {.rank = 2, .n_ranks = 5}};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    socklen_t len = sizeof(in);
    char address[2][64], error[BIP_ERROR_LEN] = "";
    uint8_t numbers[8] = {2, 0, 0, 0, 5}, s[16], c[16], proof[32], right[32];
    for (int i = 0; i < 32; i++)
        p.launch.secret[i] = (uint8_t)i;
    for (int i = 0; i < 16; i++) {
        s[i] = (uint8_t)i;
        c[i] = (uint8_t)(0xF0 + i);
    }
    prove(p.launch.secret, "viakit meeting rank", s, c, numbers, proof);
    CHECK_EQ(vk_read_hex("347d19e1a555a5dd37e7bdcd159aadbea7086bc316e4afb459e2fa7d533a1235", right, 32), 0);
    CHECK(memcmp(proof, right, 32) == 0);
    prove(p.launch.secret, "viakit meeting point", s, c, numbers, proof);
    CHECK_EQ(vk_read_hex("a01d47c0b32197ec8e1a83ad1936d1676f4e16dc6025aaccd976063090a172a2", right, 32), 0);
    CHECK(memcmp(proof, right, 32) == 0);
    snprintf(address[0], sizeof(address[0]), "unix:@viakit-test-meet-%d", (int)getpid());
    for (int i = 0; i < 2; i++) {
        if (i == 0) {
            size_t n = strlen(address[0] + 6);
            memcpy(un.sun_path + 1, address[0] + 6, n);
            p.listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
            len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
            CHECK_EQ(bind(p.listener, (struct sockaddr *)(void *)&un, len), 0);
        } else {
            len = sizeof(in);
            p.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            CHECK_EQ(bind(p.listener, (struct sockaddr *)(void *)&in, len), 0);
            CHECK_EQ(getsockname(p.listener, (struct sockaddr *)(void *)&in, &len), 0);
            snprintf(address[1], sizeof(address[1]), "tcp:127.0.0.1:%d", ntohs(in.sin_port));
        }
        CHECK_EQ(listen(p.listener, 4), 0);
        for (enum how how = HONEST; how <= REFUSES; how++)
            meet(&p, how, address[i]);
        meet(&p, HONEST, address[i]);
        close(p.listener);
        /* Nothing listens: the call ends with an error at its time-out. */
        CHECK_EQ(bip_meet(address[i], &p.launch, 120, error), -1);
        CHECK(strstr(error, "finds no meeting point") != NULL);
    }
    CHECK_EQ(bip_meet("tcp:nowhere", &p.launch, 120, error), -1);
    exchanges();
    secret_files();
    return 0;
}
