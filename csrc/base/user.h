/*
 * Checks whether the process at the other end of a Unix socket belongs to a given user. Any thread.
 *
 * The kernel reports the number of its user (SO_PEERCRED), as this user namespace numbers users. Users without a number
 * here all appear as one, the overflow uid (/proc/sys/kernel/overflowuid, 65534). Two different users may thus have
 * equal numbers: inside `unshare -U`, where no user is mapped, and for a container's user `nobody`, whose own number is
 * 65534.
 */
#ifndef VIAKIT_USER_H
#define VIAKIT_USER_H

#include <sys/types.h>

enum vk_user {
    VK_USER_OTHER,  /* certainly not that user */
    VK_USER_SAME,   /* certainly that user */
    VK_USER_UNKNOWN /* the number is that user's, but others have it as well */
};

/* uid: getuid() or geteuid(), or 0 for root. Makes system calls and may open files of /proc; does not block. */
enum vk_user vk_user_of_peer(int socket, uid_t uid);

#endif
