/*
 * sealed.h - memory files (memfd) of other processes: whether a mapping of one keeps its pages for good.
 *
 * An access to a page that the file does not have ends in SIGBUS. A file that is sealed against shrinking keeps its
 * length. A file of huge pages (MFD_HUGETLB) can lack pages within its length, because they come from a pool that may
 * be empty.
 */
#ifndef VIAKIT_SEALED_H
#define VIAKIT_SEALED_H

/* Return 1 if the file is sealed against shrinking and has pages of the usual size, else 0. Thread-safe. */
int vk_file_is_sealed(int fd);

#endif
