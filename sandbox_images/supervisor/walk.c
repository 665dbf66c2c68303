/* The tree walker: a stack of open directories, each with a small buffer of its entries. Names come from the kernel
 * and go out as they are; what vanishes between two calls is left out. */
#include "walk.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ops.h"

/* struct linux_dirent64, of which libc may or may not have a declaration. */
enum { RECORD_LENGTH = 16, RECORD_NAME = 19 };

bool kf_directory_open(struct kf_directory *d, int directory, const char *name)
{
    d->at = d->end = 0;
    d->buffer = NULL;
    /* O_DIRECTORY is checked by the kernel before anything is opened, so nothing here blocks */
    d->fd = openat(directory, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (d->fd < 0)
        return false;
    d->buffer = malloc(KF_TREE_BUFFER);
    if (d->buffer)
        return true;
    kf_directory_close(d);
    errno = ENOMEM;
    return false;
}

const char *kf_directory_next(struct kf_directory *d)
{
    for (;;) {
        if (d->at == d->end) {
            long n = syscall(SYS_getdents64, d->fd, d->buffer, KF_TREE_BUFFER);
            if (n <= 0) {
                errno = n == 0 ? 0 : errno;
                return NULL;
            }
            d->at = 0;
            d->end = (size_t)n;
        }
        uint16_t length;
        memcpy(&length, d->buffer + d->at + RECORD_LENGTH, sizeof length);
        const char *name = (const char *)d->buffer + d->at + RECORD_NAME;
        d->at += length;
        if (strcmp(name, ".") != 0 && strcmp(name, "..") != 0)
            return name;
    }
}

void kf_directory_close(struct kf_directory *d)
{
    if (d->fd >= 0)
        close(d->fd);
    free(d->buffer);
    d->fd = -1;
    d->buffer = NULL;
}

bool kf_tree_begin(struct kf_tree *t, int directory, uint32_t depth, bool skip_scratch)
{
    memset(t, 0, sizeof *t);
    t->depth = depth;
    t->skip_scratch = skip_scratch;
    t->path = malloc(KF_TREE_LEVELS * (NAME_MAX + 1) + 1);
    if (!t->path) {
        errno = ENOMEM;
        return false;
    }
    if (!kf_directory_open(&t->levels[0], directory, "."))
        return false;
    t->count = 1;
    return true;
}

static bool vanished(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP || error == ESTALE; }

/* Go into the entry that was given last. */
static enum kf_tree_step descend(struct kf_tree *t)
{
    t->enter = false;
    if (t->count >= t->depth)
        return KF_TREE_ENTRY;
    if (t->count == KF_TREE_LEVELS) {
        t->truncated = true;
        return KF_TREE_ENTRY;
    }
    if (kf_directory_open(&t->levels[t->count], kf_tree_directory(t), t->name)) {
        t->lengths[t->count++] = t->length;
        return KF_TREE_ENTRY;
    }
    t->error = errno;
    if (vanished(t->error))
        return KF_TREE_ENTRY;
    return t->error == ENOMEM || t->error == EMFILE || t->error == ENFILE ? KF_TREE_FAILED : KF_TREE_UNREADABLE;
}

/* A level is read to its end, or cannot be read on. */
static enum kf_tree_step ascend(struct kf_tree *t, int error)
{
    t->length = t->lengths[t->count - 1];
    t->path[t->length] = '\0';
    kf_directory_close(&t->levels[--t->count]);
    t->error = error;
    return error == 0 || vanished(error) ? KF_TREE_ENTRY : KF_TREE_UNREADABLE;
}

/* Put the name behind the path of its directory. */
static void place(struct kf_tree *t, const char *name)
{
    size_t at = t->lengths[t->count - 1], length = strlen(name);
    if (t->count > 1)
        t->path[at++] = '/';
    memcpy(t->path + at, name, length + 1);
    t->name = t->path + at;
    t->length = at + length;
}

static bool hidden(const struct kf_tree *t, const char *name)
{
    return (!t->all && kf_is_temporary(name)) || (t->skip_scratch && t->count == 1 && strcmp(name, ".kinfold") == 0);
}

enum kf_tree_step kf_tree_next(struct kf_tree *t)
{
    if (t->enter) {
        enum kf_tree_step step = descend(t);
        if (step != KF_TREE_ENTRY)
            return step;
    }
    while (t->count > 0) {
        const char *name = kf_directory_next(&t->levels[t->count - 1]);
        if (!name) {
            enum kf_tree_step step = ascend(t, errno);
            if (step != KF_TREE_ENTRY)
                return step;
            continue;
        }
        if (hidden(t, name))
            continue;
        place(t, name);
        if (fstatat(kf_tree_directory(t), t->name, &t->st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) == 0) {
            t->enter = S_ISDIR(t->st.st_mode);
            return KF_TREE_ENTRY;
        }
        t->error = errno;
        if (!vanished(t->error))
            return KF_TREE_UNSEEN;
    }
    return KF_TREE_END;
}

int kf_tree_directory(const struct kf_tree *t) { return t->levels[t->count - 1].fd; }

void kf_tree_end(struct kf_tree *t)
{
    while (t->count > 0)
        kf_directory_close(&t->levels[--t->count]);
    free(t->path);
    t->path = NULL;
}
