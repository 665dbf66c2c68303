/* Path resolution beneath the held root: by openat2 where the kernel has it and the path allows it, else by the walk
 * of paths_walk.c, which also resolves absolute links that point back into the root. Descriptors found are O_PATH:
 * nothing is opened for real before its type is known, so a FIFO or a device never blocks. */
#include "paths.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "frames.h"
#include "kinds.h"

#ifndef SYS_openat2
#define SYS_openat2 437
#endif
#define NO_MAGICLINKS 0x02u /* RESOLVE_NO_MAGICLINKS: older headers lack it */
#define BENEATH 0x08u       /* RESOLVE_BENEATH */

struct how { uint64_t flags, mode, resolve; };

/* openat2 says EAGAIN when somebody renames while a ".." is resolved; almost always it works at the next try. */
int kf_open_beneath(const struct kf_root *root, const char *path, int flags)
{
    struct how how = {.flags = (uint64_t)(flags | O_PATH | O_CLOEXEC), .resolve = BENEATH | NO_MAGICLINKS};
    for (unsigned i = 0; i < KF_MAX_RETRIES; i++) {
        int fd = (int)syscall(SYS_openat2, root->fd, path, &how, sizeof how);
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
            return fd;
    }
    errno = EAGAIN;
    return -1;
}

void kf_files_probe(struct kf_root *root)
{
    int fd = kf_open_beneath(root, ".", O_DIRECTORY);
    root->have_openat2 = fd >= 0;
    if (fd >= 0)
        close(fd);
}

enum kf_found kf_find_fail(struct kf_find *f, int error)
{
    f->error = error;
    f->kind = kf_kind_of(error);
    return KF_FIND_FAILED;
}

int kf_look(int directory, const char *name, struct stat *st)
{
    int fd = openat(directory, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, st) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

enum kf_found kf_find_at_directory(struct kf_find *f, int directory)
{
    if (directory < 0)
        return kf_find_fail(f, errno);
    f->fd = directory;
    f->name[0] = '\0';
    return fstat(f->fd, &f->st) == 0 ? KF_FOUND : kf_find_fail(f, errno);
}

const uint8_t *kf_beneath(const struct kf_root *root, const uint8_t *path, size_t *length)
{
    size_t at = 0, mount = strlen(root->mount);
    while (at < *length && path[at] == '/')
        at++;
    at--; /* any number of leading slashes is one */
    if (*length - at < mount || memcmp(path + at, root->mount, mount) != 0)
        return NULL;
    at += mount;
    if (at < *length && path[at] != '/')
        return NULL; /* "/workspace-evil" */
    while (at < *length && path[at] == '/')
        at++;
    *length -= at;
    return path + at;
}

/* 0, or the errno that describes what no path may have. */
static int check_text(const uint8_t *path, size_t length)
{
    if (length == 0 || memchr(path, '\0', length))
        return EINVAL;
    if (length > KF_MAX_PATH)
        return ENAMETOOLONG;
    for (size_t at = 0; at < length;) {
        const uint8_t *slash = memchr(path + at, '/', length - at);
        size_t end = slash ? (size_t)(slash - path) : length;
        if (end - at > NAME_MAX)
            return ENAMETOOLONG;
        at = end + 1;
    }
    return 0;
}

void kf_find_begin(struct kf_find *f, const struct kf_root *root, const uint8_t *path, size_t length, unsigned flags)
{
    *f = (struct kf_find){.root = root, .flags = flags, .fd = -1, .dir = -1, .here = -1};
    int error = check_text(path, length);
    if (error) {
        kf_find_fail(f, error);
        return;
    }
    f->slash = path[length - 1] == '/';
    if (path[0] == '/')
        path = kf_beneath(root, path, &length);
    if (!path) {
        kf_find_fail(f, EXDEV);
        return;
    }
    f->path = length ? path : (const uint8_t *)".";
    f->length = length ? length : 1;
}

/* Only the walk can say more: the path is too long for one call, a link is absolute, somebody renames all the time. */
static bool needs_walk(const struct kf_find *f, int error)
{
    return error == EXDEV || error == EAGAIN || error == ENAMETOOLONG || (error == ENOENT && (f->flags & KF_MAKE));
}

static enum kf_found walk_or_fail(struct kf_find *f, int error)
{
    if (!needs_walk(f, error))
        return kf_find_fail(f, error);
    f->walking = true;
    return KF_FIND_AGAIN;
}

/* KF_ENTRY by the kernel: open the parent beneath the root, then look at the one name in it. */
static enum kf_found entry_by_kernel(struct kf_find *f, char *path)
{
    size_t length = strlen(path);
    while (length > 1 && path[length - 1] == '/')
        path[--length] = '\0';
    char *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path;
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        int fd = kf_open_beneath(f->root, path, O_DIRECTORY);
        return fd < 0 ? walk_or_fail(f, errno) : kf_find_at_directory(f, fd);
    }
    strcpy(f->name, name); /* at most NAME_MAX bytes: check_text */
    if (slash)
        *slash = '\0';
    f->dir = kf_open_beneath(f->root, slash ? path : ".", O_DIRECTORY);
    if (f->dir < 0)
        return walk_or_fail(f, errno);
    f->fd = kf_look(f->dir, f->name, &f->st);
    if (f->fd < 0)
        return errno == ENOENT ? KF_FOUND : kf_find_fail(f, errno);
    if (S_ISLNK(f->st.st_mode) && (f->flags & KF_FOLLOW)) {
        close(kf_find_take(&f->fd));
        close(kf_find_take(&f->dir));
        return walk_or_fail(f, EXDEV);
    }
    return f->slash && !S_ISDIR(f->st.st_mode) ? kf_find_fail(f, ENOTDIR) : KF_FOUND;
}

static enum kf_found by_kernel(struct kf_find *f)
{
    char path[PATH_MAX];
    if (f->length >= sizeof path)
        return walk_or_fail(f, ENAMETOOLONG);
    memcpy(path, f->path, f->length);
    path[f->length] = '\0';
    if (f->flags & KF_ENTRY)
        return entry_by_kernel(f, path);
    f->fd = kf_open_beneath(f->root, path, f->flags & KF_FOLLOW ? 0 : O_NOFOLLOW);
    if (f->fd < 0)
        return walk_or_fail(f, errno);
    return fstat(f->fd, &f->st) == 0 ? KF_FOUND : kf_find_fail(f, errno);
}

enum kf_found kf_find_step(struct kf_find *f, struct kf_slice *slice)
{
    if (f->kind)
        return KF_FIND_FAILED;
    if (!f->walking) {
        f->walking = !f->root->have_openat2 || (f->flags & KF_WALK);
        enum kf_found found = f->walking ? KF_FIND_AGAIN : by_kernel(f);
        if (found != KF_FIND_AGAIN)
            return found;
    }
    return kf_find_walk(f, slice);
}

int kf_find_take(int *fd)
{
    int taken = *fd;
    *fd = -1;
    return taken;
}

void kf_find_end(struct kf_find *f)
{
    int *all[] = {&f->fd, &f->dir, &f->here};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (*all[i] >= 0)
            close(kf_find_take(all[i]));
    free(f->text);
    free(f->levels);
    f->text = NULL;
    f->levels = NULL;
}

int kf_open_dir(const struct kf_root *root, const char *path, size_t length, uint8_t *kind)
{
    struct kf_find f;
    enum kf_found found = KF_FIND_AGAIN;
    kf_find_begin(&f, root, (const uint8_t *)path, length, KF_FOLLOW);
    while (found == KF_FIND_AGAIN) {
        struct kf_slice slice = kf_slice_of(KF_SLICE_NS);
        found = kf_find_step(&f, &slice);
    }
    if (found == KF_FOUND && !S_ISDIR(f.st.st_mode))
        found = kf_find_fail(&f, ENOTDIR);
    int fd = found == KF_FOUND ? kf_find_take(&f.fd) : -1, error = f.error;
    *kind = f.kind;
    kf_find_end(&f);
    errno = error;
    return fd;
}

int kf_reopen(int path_fd, int flags, const struct stat *expected)
{
    char link[32];
    snprintf(link, sizeof link, "/proc/self/fd/%d", path_fd);
    /* O_NONBLOCK: the owner of a file may hold a lease on it, which makes a plain open wait for up to 45 s */
    int fd = open(link, flags | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        if (errno == ENOENT)
            errno = ENOSYS; /* the descriptor is alive, so it is /proc that is missing */
        return -1;
    }
    struct stat st;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_dev == expected->st_dev && st.st_ino == expected->st_ino)
        return fd;
    close(fd);
    errno = ESTALE;
    return -1;
}
