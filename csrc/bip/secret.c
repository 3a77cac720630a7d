/*
 * The job's secret, from VIAKIT_SECRET or else from the file of VIAKIT_SECRET_FILE. viakit/base/secret.py reads them in
 * the same way. An error never shows the value, which may be the secret with a digit too many.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/blake2s.h"
#include "bip/launch.h"

#define FILE_LEAST 32
#define FILE_MOST 4096

/* Writes why the file is refused, with the requirements. Returns -1. */
static int refuse(const char *path, const char *why, char *error)
{
    snprintf(error, BIP_ERROR_LEN,
             "VIAKIT_SECRET_FILE=%.200s: %s; expected a regular file of yours with mode 0600 or stricter and %d to %d "
             "bytes",
             path, why, FILE_LEAST, FILE_MOST);
    return -1;
}

/* Owner, mode and size are those of the open file, so that it cannot be exchanged after the check. The secret is a hash
 * of the content, so the file may have any format. One byte more than FILE_MOST is read to detect a longer file. */
static int read_checked(int fd, const char *path, unsigned char secret[BIP_SECRET_LEN], char *error)
{
    static const char purpose[] = "viakit secret file";
    unsigned char content[FILE_MOST + 1];
    struct vk_blake2s s;
    struct stat st;
    size_t len = 0;
    ssize_t n = 1;
    if (fstat(fd, &st) != 0)
        return refuse(path, strerror(errno), error);
    if (!S_ISREG(st.st_mode))
        return refuse(path, "it is not a regular file", error);
    if (st.st_uid != geteuid())
        return refuse(path, "it belongs to another user", error);
    if (st.st_mode & 077)
        return refuse(path, "its mode gives other users access", error);
    while (len < sizeof content && n != 0) {
        n = read(fd, content + len, sizeof content - len);
        if (n < 0 && errno != EINTR)
            return refuse(path, strerror(errno), error);
        len += n > 0 ? (size_t)n : 0;
    }
    if (len >= FILE_LEAST && len <= FILE_MOST) {
        vk_blake2s_begin(&s, NULL, 0);
        vk_blake2s_add(&s, purpose, strlen(purpose));
        vk_blake2s_add(&s, content, len);
        vk_blake2s_end(&s, secret);
    }
    vk_wipe(content, sizeof content);
    return len < FILE_LEAST  ? refuse(path, "it is too short", error)
           : len > FILE_MOST ? refuse(path, "it is too long", error)
                             : 0;
}

/* VIAKIT_SECRET takes precedence. If it is set but malformed, that is an error: the file is not tried, because the rank
 * would then have another secret than the user meant. */
int bip_launch_secret(unsigned char secret[BIP_SECRET_LEN], char *error)
{
    const char *text = getenv("VIAKIT_SECRET"), *path = getenv("VIAKIT_SECRET_FILE");
    if (text && *text) {
        if (vk_read_hex(text, secret, BIP_SECRET_LEN) == 0)
            return 0;
    } else if (path && *path) {
        int fd = open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for a writer */
        if (fd < 0)
            return refuse(path, errno == ELOOP ? "it is a symbolic link" : strerror(errno), error);
        int code = read_checked(fd, path, secret, error);
        close(fd);
        return code;
    }
    snprintf(
        error, BIP_ERROR_LEN,
        "VIAKIT_SECRET is %s, expected %d hexadecimal digits, the same for all ranks of the job; start the program "
        "with `viakit run`, which sets it, or set VIAKIT_SECRET or VIAKIT_SECRET_FILE",
        text && *text ? "something else" : "not set", 2 * BIP_SECRET_LEN);
    return -1;
}
