/* Checks of memory files that come from other processes (sealed.h). */
#include "base/sealed.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

/* F_GET_SEALS fails for files that cannot have seals. Files of huge pages can, so the type of the file system is
 * checked, too. */
int vk_file_is_sealed(int fd)
{
    struct statfs about;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) && fstatfs(fd, &about) == 0 && about.f_type != HUGETLBFS_MAGIC;
}
