/*
 * test_offer.c - the memory that ranks of a host share (coll/offer.h): what is offered can be mapped, and files that a
 * forged card may name are neither written nor mapped.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "coll/offer.h"

#define LEN 8192

static const char right_name[] = "viakit barrier";

/* A memfd with the magic of the card. */
static int memfd(const char *name, size_t len, int seals, const uint64_t magic[2])
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(fd >= 0);
    CHECK_EQ(ftruncate(fd, (off_t)len), 0);
    CHECK_EQ(pwrite(fd, magic, 16, 0), 16);
    CHECK_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* Maps descriptor fd of this process, closes it, and returns what coll_offer_map() returned. */
static int outcome(int fd, const uint64_t magic[2], int expected_mapped)
{
    void *memory = &memory;
    int code = coll_offer_map((int)getpid(), fd, LEN, magic, &memory);
    CHECK_EQ(memory != NULL, expected_mapped);
    if (memory)
        munmap(memory, LEN);
    close(fd);
    return code;
}

int main(void)
{
    uint64_t magic[2] = {0}, other[2];
    void *memory = NULL;
    int fd = coll_offer_make(LEN, magic), pipes[2];
    CHECK(fd >= 0 && (magic[0] || magic[1]));
    CHECK_EQ(ftruncate(fd, 16), -1); /* sealed: a mapping never loses its pages */
    CHECK_EQ(ftruncate(fd, 2 * LEN), -1);
    CHECK_EQ(coll_offer_map((int)getpid(), fd, LEN, magic, &memory), 0);
    CHECK(memory != NULL);
    ((char *)memory)[LEN - 1] = 1;
    munmap(memory, LEN);

    /* Another magic, and numbers that name nothing: no memory, no error. */
    memcpy(other, magic, sizeof other);
    other[1] ^= 1;
    CHECK_EQ(outcome(dup(fd), other, 0), 0);
    CHECK_EQ(coll_offer_map((int)getpid(), 1 << 20, LEN, magic, &memory), 0);
    CHECK_EQ(coll_offer_map(0, fd, LEN, magic, &memory), 0);
    CHECK_EQ(coll_offer_map((int)getpid(), -1, LEN, magic, &memory), 0);
    CHECK(memory == NULL);

    /* Files of other kinds and names are not opened at all. */
    char path[] = "/tmp/viakit-test-offer-XXXXXX";
    int file = mkstemp(path);
    CHECK(file >= 0);
    CHECK_EQ(write(file, magic, sizeof magic), 16);
    CHECK_EQ(ftruncate(file, LEN), 0);
    CHECK_EQ(outcome(dup(file), magic, 0), 0);
    CHECK_EQ(unlink(path), 0);
    CHECK_EQ(outcome(file, magic, 0), 0);
    CHECK_EQ(pipe(pipes), 0);
    CHECK_EQ(outcome(pipes[0], magic, 0), 0);
    CHECK_EQ(outcome(pipes[1], magic, 0), 0);
    CHECK_EQ(outcome(open("/dev/null", O_RDWR | O_CLOEXEC), magic, 0), 0);
    CHECK_EQ(outcome(memfd("another", LEN, F_SEAL_SHRINK, magic), magic, 0), 0);

    /* The right name, but too short, or able to shrink: an error in place of a later SIGBUS. */
    CHECK_EQ(outcome(memfd(right_name, LEN, 0, magic), magic, 0), -1);
    CHECK_EQ(outcome(memfd(right_name, LEN, F_SEAL_GROW | F_SEAL_SEAL, magic), magic, 0), -1);
    CHECK_EQ(outcome(memfd(right_name, LEN - 1, F_SEAL_SHRINK, magic), magic, 0), -1);
    CHECK_EQ(outcome(memfd(right_name, LEN, F_SEAL_SHRINK, magic), magic, 1), 0);
    /* Huge pages come from a pool, and may be missing within the file's length. */
    int huge = memfd_create(right_name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (huge >= 0) {
        CHECK_EQ(ftruncate(huge, 4 << 20), 0);
        CHECK_EQ(fcntl(huge, F_ADD_SEALS, F_SEAL_SHRINK), 0);
        CHECK_EQ(outcome(huge, magic, 0), -1);
    }
    close(fd);
    return 0;
}
