/* Renames with a condition: one that never replaces, and one that replaces without waiting for the disk. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ops.h"

#define NOREPLACE 1u /* RENAME_NOREPLACE */
#define EXCHANGE 2u  /* RENAME_EXCHANGE */

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

/* ext4 writes a file's data out when a plain rename puts it over another: a quarter of a second for 256 MiB here, in the
 * one thread that serves everybody. Swapped names and an unlink are as atomic to a reader, and do not wait. */
int kf_rename_over(int dir, const char *from, const char *to)
{
    struct stat st;
    if (syscall(SYS_renameat2, dir, from, dir, to, EXCHANGE) != 0)
        return renameat(dir, from, dir, to); /* nothing there to swap with, or no such call here */
    if (fstatat(dir, from, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
        syscall(SYS_renameat2, dir, from, dir, to, EXCHANGE); /* somebody put a directory there meanwhile: it stays */
        errno = EISDIR;
        return -1;
    }
    return unlinkat(dir, from, 0) == 0 || errno == ENOENT ? 0 : -1;
}
