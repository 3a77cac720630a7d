/*
 * Runs the helper viakit-raw and takes the packet socket that it makes. Called while a NIC is opened; blocks for the
 * time that a program takes to start, and for five seconds at most.
 *
 * The helper is looked for where an administrator installs it, then beside libvipl. VIAKIT_RAW names another one, which
 * gives a user nothing that the user's own programs do not have.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/explain.h"
#include "base/files.h"
#include "link/raw.h"

#define REPLY_MS 5000
#define ADVICE                                                                                          \
    "use udp, hosts made of namespaces (--hosts testbed), or have an administrator install viakit-raw " \
    "(`viakit config --raw` prints how)"

extern char **environ;

/* Writes the path of the helper. Returns 0 if no helper was found. One that VIAKIT_RAW names is not checked: start()
 * fails if it is missing. */
static int find_helper(char path[PATH_MAX])
{
    static const char *const installed[] = {"/usr/local/libexec/viakit-raw", "/usr/libexec/viakit-raw"};
    const char *named = getenv("VIAKIT_RAW");
    if (named && *named)
        return snprintf(path, PATH_MAX, "%s", named) < PATH_MAX;
    for (size_t i = 0; i < sizeof installed / sizeof *installed; i++) {
        strcpy(path, installed[i]);
        if (access(path, X_OK) == 0)
            return 1;
    }
    Dl_info library;
    if (dladdr((void *)(uintptr_t)raw_socket, &library) == 0 || library.dli_fname == NULL)
        return 0;
    const char *slash = strrchr(library.dli_fname, '/');
    int folder = slash ? (int)(slash - library.dli_fname) : 0;
    return folder && snprintf(path, PATH_MAX, "%.*s/viakit-raw", folder, library.dli_fname) < PATH_MAX &&
           access(path, X_OK) == 0;
}

/* Starts the helper with two descriptors, at the numbers RAW_CLAIM_FD and RAW_REPLY_FD. Returns its process id, or
 * -errno. The copies are close-on-exec and the results of dup2 are not, so the helper has only these two of them. */
static pid_t start(const char *path, const char *interface, uint32_t least, uint32_t most, int claim_fd, int reply_fd)
{
    char from[16], to[16];
    snprintf(from, sizeof from, "%u", least);
    snprintf(to, sizeof to, "%u", most);
    const char *argv[] = {"viakit-raw", interface, from, to, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid = 0;
    /* Copies above the two numbers, so that neither dup2 overwrites a descriptor that is still needed. */
    int claim = fcntl(claim_fd, F_DUPFD_CLOEXEC, RAW_REPLY_FD + 1);
    int reply = fcntl(reply_fd, F_DUPFD_CLOEXEC, RAW_REPLY_FD + 1);
    int error = claim < 0 || reply < 0 ? errno : posix_spawn_file_actions_init(&actions);
    if (error == 0) {
        if ((error = posix_spawn_file_actions_adddup2(&actions, claim, RAW_CLAIM_FD)) == 0 &&
            (error = posix_spawn_file_actions_adddup2(&actions, reply, RAW_REPLY_FD)) == 0)
            error = posix_spawn(&pid, path, &actions, NULL, (char *const *)(uintptr_t)argv, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    if (claim >= 0)
        close(claim);
    if (reply >= 0)
        close(reply);
    return error ? -error : pid;
}

/* Waits for the helper's reply. Returns the socket in it; -1 and the refusal's text, empty if there was no reply. */
static int receive_reply(int fd, char text[RAW_TEXT])
{
    union {
        struct cmsghdr head;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {text, RAW_TEXT - 1};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    int got = -1, n;
    text[0] = 0;
    while ((n = poll(&ready, 1, REPLY_MS)) < 0 && errno == EINTR)
        ;
    ssize_t len = n > 0 ? recvmsg(fd, &message, MSG_CMSG_CLOEXEC) : -1;
    text[len > 0 ? len : 0] = 0;
    struct cmsghdr *head = len > 0 ? CMSG_FIRSTHDR(&message) : NULL;
    if (head && head->cmsg_type == SCM_RIGHTS && head->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&got, CMSG_DATA(head), sizeof got);
    return got;
}

/* Ends the helper, which has replied or is too late, and waits for it. A program that ignores SIGCHLD has no child to
 * wait for. */
static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
}

/* The reply arrives on a socket pair whose other end only the helper has. So the end of the helper, for whatever
 * reason, ends the wait. The helper is always reaped before this returns. */
int raw_socket(const char *interface, int claim_fd, uint32_t least, uint32_t most)
{
    char path[PATH_MAX], text[RAW_TEXT];
    int pair[2], got = -1;
    if (!find_helper(path)) {
        vk_explain("eth: raw frames need CAP_NET_RAW, which this process lacks: " ADVICE);
        return -EPERM;
    }
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        return -errno;
    pid_t pid = start(path, interface, least, most, claim_fd, pair[1]);
    close(pair[1]); /* else the end of the helper would not end the wait */
    if (pid > 0) {
        got = receive_reply(pair[0], text);
        end(pid);
    } else {
        snprintf(text, sizeof text, "%s", strerror((int)-pid));
    }
    close(pair[0]);
    if (got >= 0)
        return got;
    vk_explain("eth: raw frames need CAP_NET_RAW, which this process lacks, and %s failed: %s; " ADVICE, path,
               *text ? text : "no reply");
    return -EPERM;
}
