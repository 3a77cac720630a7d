/*
 * offer.h - the memory that the ranks of a node share: a sealed memfd of the master, which the others open by /proc.
 *
 * Process id and descriptor of the master come in a message, which may have been altered on its way. So the file behind
 * them is opened only if its name is that of such a memfd. It is mapped only if it is a regular file of this user,
 * without a name in a file system. It must be at least `len` bytes long, and sealed so that it cannot shrink. An access
 * to the mapping therefore never raises SIGBUS.
 *
 * Any thread. Nothing here blocks.
 */
#ifndef VIAKIT_COLL_OFFER_H
#define VIAKIT_COLL_OFFER_H

#include <stddef.h>
#include <stdint.h>

/* Makes the memory: len bytes of zeros, but for a random magic in the first 16 bytes. Its length is sealed. Returns a
 * descriptor, which the caller closes, or -1 if the kernel has no such memory to give. */
int coll_offer_make(size_t len, uint64_t magic[2]);

/* Maps len bytes of the memory that process `pid` offers as its descriptor `fd`. The caller unmaps *memory. Returns
 *   0, *memory set     the mapping
 *   0, *memory NULL    the process has no such memory there, or this process may not open it
 *   -1                 there is such a file, but it is not safe to use */
int coll_offer_map(int pid, int fd, size_t len, const uint64_t magic[2], void **memory);

#endif
