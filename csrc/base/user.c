/*
 * Determines the user of a peer: see user.h.
 *
 *   the number differs                                     another user
 *   the number is not the overflow uid                     this user
 *   it is, and all users have numbers here                 this user (`nobody`, on a host)
 *   it is, and the kernel permits inspecting that process  this user
 *   otherwise                                              unknown
 *
 * The kernel's check for inspection (ptrace_may_access, mode READ) compares the users themselves, not their numbers. It
 * requires that real, effective and saved user of that process are this process's. It proves nothing if this process
 * has CAP_SYS_PTRACE, so that case is unknown. The kernel recorded the peer's pidfd when the two sockets were
 * connected. The pidfd shows that the inspected process is that one, and not a later one with its number.
 */
#include "base/user.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* since Linux 6.5 */
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif

#define OVERFLOW_UID 65534u   /* default, if /proc has no other value */
#define ALL_USERS 4294967295u /* numbers in a map that omits no user; -1 is not a user */

/* Returns the number of all users that have none here. Any failure gives the default. */
static unsigned overflow_uid(void)
{
    unsigned uid = OVERFLOW_UID;
    FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");
    if (f && fscanf(f, "%u", &uid) != 1)
        uid = OVERFLOW_UID;
    if (f)
        fclose(f);
    return uid;
}

/* Returns whether each user has a number of its own in this namespace. A map that is complete here is complete in all
 * namespaces above. */
static int all_users_mapped(void)
{
    unsigned long long total = 0;
    unsigned first, above, count;
    FILE *f = fopen("/proc/self/uid_map", "re");
    if (f == NULL) /* a kernel without user namespaces has /proc, but not this file */
        return access("/proc/self/status", F_OK) == 0;
    while (fscanf(f, "%u %u %u", &first, &above, &count) == 3)
        total += count;
    fclose(f);
    return total == ALL_USERS;
}

/* Returns whether the calling thread has CAP_SYS_PTRACE; unknown counts as yes. */
static int may_inspect_others(void)
{
    struct __user_cap_header_struct head = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];
    memset(data, 0, sizeof data);
    return syscall(SYS_capget, &head, data) != 0 || (data[0].effective & 1u << CAP_SYS_PTRACE);
}

/* Returns whether the numbers in /proc are those of this process's pid namespace. */
static int proc_is_ours(void)
{
    char text[32];
    ssize_t n = readlink("/proc/self", text, sizeof text - 1);
    if (n <= 0)
        return 0;
    text[n] = '\0';
    return strtol(text, NULL, 10) == (long)getpid();
}

/* Returns whether the kernel permits this process to inspect the peer. The link ns/user in /proc can be read only with
 * that permission. pid 0: the peer is in a pid namespace that this one does not contain. */
static int is_inspectable(int socket, pid_t pid)
{
    char path[64], target[64];
    int pidfd = -1;
    socklen_t len = sizeof pidfd;
    if (pid <= 0 || may_inspect_others() || !proc_is_ours() ||
        getsockopt(socket, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &len) != 0)
        return 0;
    snprintf(path, sizeof path, "/proc/%ld/ns/user", (long)pid);
    int allowed = readlink(path, target, sizeof target) > 0;
    /* Checked in this order: if the process still exists now, the number was its own before. */
    allowed = allowed && syscall(SYS_pidfd_send_signal, pidfd, 0, NULL, 0) == 0;
    close(pidfd);
    return allowed;
}

/* SO_PEERCRED has the user at the time of the connection, whatever the process has become since. */
enum vk_user vk_user_of_peer(int socket, uid_t uid)
{
    struct ucred who;
    socklen_t len = sizeof who;
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0 || who.uid != uid)
        return VK_USER_OTHER;
    if (uid != overflow_uid() || all_users_mapped())
        return VK_USER_SAME;
    return uid == geteuid() && is_inspectable(socket, who.pid) ? VK_USER_SAME : VK_USER_UNKNOWN;
}
