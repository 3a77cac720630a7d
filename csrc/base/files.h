/*
 * files.h - open files that a child of fork() must not keep: sockets above all. A peer is told by the kernel that a
 * process has died when the last copy of its socket is closed; a child that lives on would hide the death of its
 * parent for ever, and keep names and ports taken. The child cannot use them anyway, since a NIC belongs to the
 * process that opened it.
 *
 * Whoever opens such a file says so, and closes it here. Any thread may call; nothing blocks. A fork that falls
 * between open() and vk_file_own() leaves that one file to the child. (A program that is executed keeps none: they
 * are all CLOEXEC.)
 */
#ifndef VIAKIT_FILES_H
#define VIAKIT_FILES_H

/* A file just opened, at a number that is not standard input, output or error. Programs that have closed those,
 * as daemons do, may print all the same, and must not print into our sockets. Returns fd or another number of the same
 * file; negative with errno if fd was, or if there is no other number. */
int vk_file_above(int fd);

/* The same, and it is ours as told above. So it stands around the call that opens. */
int vk_file_own(int fd);

/* Also of a file that was never owned; nothing if fd is negative. */
void vk_file_close(int fd);

#endif
