/* A rename that never replaces: by renameat2 where the file system has it, else by a link for files. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ops.h"

#define NOREPLACE 1u /* RENAME_NOREPLACE */

int kf_rename_new(int from_dir, const char *from, int to_dir, const char *to)
{
    if (syscall(SYS_renameat2, from_dir, from, to_dir, to, NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS)
        return -1;
    struct stat st;
    if (fstatat(to_dir, to, &st, AT_SYMLINK_NOFOLLOW) == 0)
        errno = EEXIST;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOENT)
        return -1;
    if (linkat(from_dir, from, to_dir, to, 0) == 0)
        return unlinkat(from_dir, from, 0);
    /* a directory, or a file system without hard links: look and rename is the best there is */
    return errno == EPERM || errno == EOPNOTSUPP ? renameat(from_dir, from, to_dir, to) : -1;
}
