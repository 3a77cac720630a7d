/*
 * Open files that a child of fork() must not keep, sockets above all. The kernel reports a process's death to its peer
 * when the last copy of the socket is closed. A child that lives on would hide the death of its parent for ever, and
 * keep names and ports in use. The child cannot use the files anyway, because a NIC belongs to the process that opened
 * it.
 *
 * Code that opens such a file registers it with vk_file_own() and closes it with vk_file_close(). Any thread may call
 * these functions; they do not block. A fork between open() and vk_file_own() leaves that one file to the child. An
 * executed program keeps no file, because all are CLOEXEC.
 */
#ifndef VIAKIT_FILES_H
#define VIAKIT_FILES_H

/* Moves a newly opened file to a number that is not standard input, output or error. A program that has closed those,
 * as daemons do, may still print, and must not print into a socket. Returns fd or another number of the same file.
 * Returns a negative value with errno if fd is negative or no other number is free. */
int vk_file_above(int fd);

/* Like vk_file_above, and registers the file, so that a child of fork() closes it. Wraps the call that opens the
 * file. */
int vk_file_own(int fd);

/* Closes the file, also one that was not registered. No effect if fd is negative. */
void vk_file_close(int fd);

/* Undoes vk_file_own for a file that another library is about to close. No effect if fd is negative or was not
 * registered. */
void vk_file_disown(int fd);

#endif
