/* Removing a tree, depth first. The top levels stay open with their place in the listing; below them only the current
 * directory is open, and the way up is "..", which must lead to the very directory that the way down came through. */
#include "removal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kinds.h"

static enum kf_removal_step fail(struct kf_removal *r, uint8_t kind, int error)
{
    r->kind = kind;
    r->error = error;
    return KF_REMOVAL_FAILED;
}

static enum kf_removal_step fail_errno(struct kf_removal *r, int error) { return fail(r, kf_kind_of(error), error); }

static struct kf_removal_level *top(struct kf_removal *r) { return &r->levels[r->count - 1]; }

/* Make a directory of the agent's readable, writable and searchable, through a descriptor that was looked at. */
static bool open_up(int directory, const char *name)
{
    struct stat st;
    char link[32];
    int fd = kf_look(directory, name, &st);
    if (fd < 0)
        return false;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bool done = S_ISDIR(st.st_mode) && chmod(link, (st.st_mode & 07777) | 0700) == 0;
    close(fd);
    return done;
}

/* The same for a directory that is open but refuses; once per directory. */
static bool open_up_level(struct kf_removal_level *level)
{
    struct stat st;
    if (level->opened_up || level->directory.fd < 0 || fstat(level->directory.fd, &st) != 0)
        return false;
    level->opened_up = true;
    return fchmod(level->directory.fd, (st.st_mode & 07777) | 0700) == 0;
}

static bool open_directory(struct kf_directory *d, int directory, const char *name)
{
    if (kf_directory_open(d, directory, name))
        return true;
    int error = errno;
    if (error == EACCES && open_up(directory, name))
        return kf_directory_open(d, directory, name);
    errno = error;
    return false;
}

static bool identify(int fd, struct kf_level *identity)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return false;
    *identity = (struct kf_level){st.st_dev, st.st_ino};
    return true;
}

static bool reserve(struct kf_removal *r)
{
    if (r->count < r->room)
        return true;
    size_t room = r->room ? r->room * 2 : 64;
    struct kf_removal_level *levels = realloc(r->levels, room * sizeof *levels);
    if (!levels)
        return false;
    r->levels = levels;
    r->room = room;
    return true;
}

/* Push an open directory; takes it. */
static enum kf_removal_step push(struct kf_removal *r, struct kf_directory *d, const char *name)
{
    struct kf_removal_level level = {.directory = *d, .name = strdup(name)};
    size_t bytes = strlen(name) + 1 + sizeof level;
    bool memory = level.name && reserve(r);
    if (!memory || !identify(d->fd, &level.identity) || r->bytes + bytes > KF_REMOVAL_BYTES) {
        int error = !memory ? ENOMEM : r->bytes + bytes > KF_REMOVAL_BYTES ? EFBIG : errno;
        free(level.name);
        kf_directory_close(d);
        return fail_errno(r, error);
    }
    if (r->count >= KF_REMOVAL_OPEN)
        kf_directory_close(&top(r)->directory);
    r->bytes += bytes;
    r->levels[r->count++] = level;
    return KF_REMOVAL_AGAIN;
}

static void pop(struct kf_removal *r)
{
    struct kf_removal_level *level = top(r);
    r->bytes -= strlen(level->name) + 1 + sizeof *level;
    kf_directory_close(&level->directory);
    free(level->name);
    r->count--;
}

enum kf_removal_step kf_removal_begin(struct kf_removal *r, int directory, const char *name)
{
    struct kf_directory d;
    memset(r, 0, sizeof *r);
    r->top_dir = directory;
    if (!open_directory(&d, directory, name))
        return fail_errno(r, errno);
    return push(r, &d, name);
}

static bool vanished(int error) { return error == ENOENT || error == ESTALE; }

/* Go into a subdirectory of the current one. */
static enum kf_removal_step enter(struct kf_removal *r, const char *name)
{
    struct kf_directory d;
    if (open_directory(&d, top(r)->directory.fd, name))
        return push(r, &d, name);
    int error = errno;
    if (unlinkat(top(r)->directory.fd, name, AT_REMOVEDIR) == 0) { /* somebody else's and closed, but empty */
        r->removed++;
        return KF_REMOVAL_AGAIN;
    }
    errno = error;
    /* swapped for something else meanwhile: the next scan of this directory sees it */
    return vanished(errno) || errno == ENOTDIR || errno == ELOOP ? KF_REMOVAL_AGAIN : fail_errno(r, errno);
}

static enum kf_removal_step remove_entry(struct kf_removal *r, const char *listed)
{
    struct kf_removal_level *level = top(r);
    char name[NAME_MAX + 1];
    strcpy(name, listed); /* the listing's buffer may move */
    int done = unlinkat(level->directory.fd, name, 0);
    if (done != 0 && errno == EACCES && open_up_level(level))
        done = unlinkat(level->directory.fd, name, 0);
    if (done == 0) {
        r->removed++;
        return KF_REMOVAL_AGAIN;
    }
    if (errno == EISDIR)
        return enter(r, name);
    if (vanished(errno))
        return KF_REMOVAL_AGAIN;
    return fail_errno(r, errno);
}

/* Somebody moved a directory: all levels but the first are left, and the walk begins again there. */
static enum kf_removal_step restart(struct kf_removal *r)
{
    if (++r->restarts > KF_REMOVAL_RESTARTS)
        return fail(r, KF_CONFLICT, EAGAIN);
    while (r->count > 1)
        pop(r);
    struct kf_directory *first = &top(r)->directory;
    first->at = first->end = 0;
    return lseek(first->fd, 0, SEEK_SET) == 0 ? KF_REMOVAL_AGAIN : fail_errno(r, errno);
}

/* Open the directory above the current one again; its listing begins anew, and what was in it is gone. */
static enum kf_removal_step reopen_above(struct kf_removal *r)
{
    struct kf_removal_level *current = top(r), *above = current - 1;
    struct kf_level identity;
    if (!kf_directory_open(&above->directory, current->directory.fd, "..") &&
        !(errno == EACCES && open_up_level(current) &&
          kf_directory_open(&above->directory, current->directory.fd, "..")))
        return fail_errno(r, errno);
    if (!identify(above->directory.fd, &identity))
        return fail_errno(r, errno);
    if (identity.device == above->identity.device && identity.inode == above->identity.inode)
        return KF_REMOVAL_AGAIN;
    kf_directory_close(&above->directory);
    return restart(r);
}

/* The current directory is read to its end: remove it from the one above. */
static enum kf_removal_step leave(struct kf_removal *r)
{
    size_t count = r->count;
    if (count > 1 && top(r)[-1].directory.fd < 0) {
        enum kf_removal_step step = reopen_above(r);
        if (step != KF_REMOVAL_AGAIN || r->count != count)
            return step;
    }
    struct kf_removal_level *level = top(r), *above = count > 1 ? level - 1 : NULL;
    int parent = above ? above->directory.fd : r->top_dir;
    int done = unlinkat(parent, level->name, AT_REMOVEDIR);
    if (done != 0 && errno == EACCES && above && open_up_level(above))
        done = unlinkat(parent, level->name, AT_REMOVEDIR);
    if (done != 0 && (errno == ENOTEMPTY || errno == EEXIST) && level->rescans++ < KF_REMOVAL_RESCANS) {
        level->directory.at = level->directory.end = 0;
        return lseek(level->directory.fd, 0, SEEK_SET) == 0 ? KF_REMOVAL_AGAIN : fail_errno(r, errno);
    }
    if (done != 0 && !vanished(errno))
        return errno == ENOTDIR ? fail(r, KF_CONFLICT, errno) : fail_errno(r, errno);
    r->removed += done == 0;
    pop(r);
    return r->count == 0 ? KF_REMOVAL_READY : KF_REMOVAL_AGAIN;
}

enum kf_removal_step kf_removal_step(struct kf_removal *r, struct kf_slice *slice)
{
    for (;;) {
        const char *name = kf_directory_next(&top(r)->directory);
        enum kf_removal_step step = KF_REMOVAL_AGAIN;
        if (name)
            step = remove_entry(r, name);
        else if (errno == 0 || errno == ENOENT)
            step = leave(r);
        else
            step = fail_errno(r, errno);
        if (step != KF_REMOVAL_AGAIN || kf_slice_unit(slice))
            return step;
    }
}

void kf_removal_end(struct kf_removal *r)
{
    while (r->count > 0)
        pop(r);
    free(r->levels);
    r->levels = NULL;
}
