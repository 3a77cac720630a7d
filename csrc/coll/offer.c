/* Memory shared by the ranks of a node: see offer.h. */
#include "coll/offer.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/sealed.h"

#define NAME "viakit barrier"
#define MAGIC_LEN (2 * sizeof(uint64_t))

/* The length cannot change, and no seal can be added: another rank could otherwise forbid writing to the memory. */
static const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int coll_offer_make(size_t len, uint64_t magic[2])
{
    int fd = memfd_create(NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return -1;
    /* The length is set before it is sealed. Any failure leaves no file. */
    if (getrandom(magic, MAGIC_LEN, 0) == (ssize_t)MAGIC_LEN && ftruncate(fd, (off_t)len) == 0 &&
        pwrite(fd, magic, MAGIC_LEN, 0) == (ssize_t)MAGIC_LEN && fcntl(fd, F_ADD_SEALS, seals) == 0)
        return fd;
    close(fd);
    return -1;
}

/* The link of a memfd. Reading it does not open the file: to open a device or a pipe has effects of its own. The buffer
 * has a byte more than the name, so a longer name differs in length. A file in a file system may have the same link;
 * is_safe() excludes it. */
static int has_the_name(const char *path)
{
    static const char name[] = "/memfd:" NAME " (deleted)";
    char link[sizeof name + 1];
    ssize_t n = readlink(path, link, sizeof link);
    return n == (ssize_t)(sizeof name - 1) && memcmp(link, name, sizeof name - 1) == 0;
}

/* Checked on the descriptor that is then mapped, so the file cannot be exchanged meanwhile. No links (st_nlink 0): it
 * has no name in a file system. */
static int is_safe(int fd, size_t len)
{
    struct stat st;
    return vk_file_is_sealed(fd) && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() &&
           st.st_nlink == 0 && st.st_size >= 0 && (uint64_t)st.st_size >= len;
}

/* The kernel lets a process follow these links only for processes that it may inspect (ptrace access modes, proc(5)).
 * open() makes a descriptor of this process's own, so the master may close its one afterwards. The mapping stays
 * valid when both are closed. */
int coll_offer_map(int pid, int fd, size_t len, const uint64_t magic[2], void **memory)
{
    char path[64];
    *memory = NULL;
    if (pid <= 0 || fd < 0 || len < MAGIC_LEN)
        return 0;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    if (!has_the_name(path))
        return 0;
    /* The flags limit the effect of a file that took the place of the memfd since the link was read: no wait, and no
     * terminal. */
    int opened = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (opened < 0)
        return 0;
    if (!is_safe(opened, len)) {
        close(opened);
        return -1;
    }
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    close(opened);
    if (p == MAP_FAILED)
        return 0;
    if (memcmp(p, magic, MAGIC_LEN) != 0) { /* another group's, of a process with that number in another container */
        munmap(p, len);
        return 0;
    }
    *memory = p;
    return 0;
}
