/* The walk: one component at a time, each opened with O_NOFOLLOW from the directory before it, links read and resolved
 * here. It serves where openat2 is missing, for paths over PATH_MAX and for absolute links that point back into the
 * root. It can stop between two components. ".." goes up through the kernel, and what it finds must be the very
 * directory that the walk came through; where somebody moved the directory meanwhile, the walk starts again. */
#include "paths.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int standing(const struct kf_find *f) { return f->here < 0 ? f->root->fd : f->here; }

static void back_to_root(struct kf_find *f)
{
    if (f->here >= 0)
        close(kf_find_take(&f->here));
    f->depth = 0;
}

/* Start, or start again, with the path as requested. False: no memory, or too many starts (the kind is set). */
static bool start(struct kf_find *f)
{
    free(f->text);
    f->text = malloc(f->length);
    if (!f->text || f->restarts++ > KF_MAX_RETRIES) {
        kf_find_fail(f, f->text ? EAGAIN : ENOMEM);
        return false;
    }
    memcpy(f->text, f->path, f->length);
    f->at = 0;
    f->end = f->own = f->length;
    f->links = 0;
    f->was_link = false;
    back_to_root(f);
    return true;
}

static bool descend(struct kf_find *f, int fd, const struct stat *st)
{
    if (f->depth == f->level_room) {
        size_t room = f->level_room ? f->level_room * 2 : 32;
        struct kf_level *levels = realloc(f->levels, room * sizeof *levels);
        if (!levels) {
            close(fd);
            kf_find_fail(f, ENOMEM);
            return false;
        }
        f->levels = levels;
        f->level_room = room;
    }
    f->levels[f->depth++] = (struct kf_level){st->st_dev, st->st_ino};
    if (f->here >= 0)
        close(f->here);
    f->here = fd;
    return true;
}

/* One "..": true where the walk goes on. */
static bool ascend(struct kf_find *f)
{
    if (f->depth == 0) {
        kf_find_fail(f, EXDEV);
        return false;
    }
    if (f->depth == 1) {
        back_to_root(f);
        return true;
    }
    struct stat st;
    int fd = openat(f->here, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        kf_find_fail(f, errno);
        if (fd >= 0)
            close(fd);
        return false;
    }
    const struct kf_level *parent = &f->levels[f->depth - 2];
    if (st.st_dev != parent->device || st.st_ino != parent->inode) {
        close(fd);
        return start(f);
    }
    close(f->here);
    f->here = fd;
    f->depth--;
    return true;
}

/* Put a link's text in front of what is left to walk. Takes the descriptor. */
static bool follow(struct kf_find *f, int link)
{
    char target[PATH_MAX];
    ssize_t n = readlinkat(link, "", target, sizeof target);
    int error = n < 0 ? errno : n == 0 ? ENOENT : (size_t)n == sizeof target ? ENAMETOOLONG : 0;
    close(link);
    const uint8_t *text = (const uint8_t *)target;
    size_t length = n > 0 ? (size_t)n : 0, rest = f->end - f->at;
    if (!error && ++f->links > KF_MAX_LINKS)
        error = ELOOP;
    if (!error && text[0] == '/') {
        text = kf_beneath(f->root, text, &length);
        error = text ? 0 : EXDEV;
        if (text)
            back_to_root(f);
    }
    uint8_t *joined = error ? NULL : malloc(length + rest + 1);
    if (!joined) {
        kf_find_fail(f, error ? error : ENOMEM);
        return false;
    }
    memcpy(joined, text, length);
    joined[length] = '/'; /* only where something follows: a link as the last component is not a directory by that */
    memcpy(joined + length + (rest > 0), f->text + f->at, rest);
    free(f->text);
    f->text = joined;
    f->at = 0;
    f->end = length + (rest > 0) + rest;
    f->own = f->own < rest ? f->own : rest;
    return true;
}

/* Open a component; a missing directory on the way is made where that was asked for. */
static int open_component(struct kf_find *f, const char *name, bool last, bool from_link, struct stat *st)
{
    for (unsigned i = 0;; i++) {
        int fd = kf_look(standing(f), name, st);
        bool make = (f->flags & KF_MAKE) && !from_link && !((f->flags & KF_ENTRY) && last);
        if (fd >= 0 || errno != ENOENT || !make || i == KF_MAX_RETRIES)
            return fd;
        if (mkdirat(standing(f), name, 0755) != 0 && errno != EEXIST)
            return -1;
    }
}

/* A copy of the directory where the walk stands. */
static int standing_copy(const struct kf_find *f)
{
    return openat(standing(f), ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
}

/* Hand out the last component: fd is what is there, or -1. */
static enum kf_found arrive(struct kf_find *f, const char *name, int fd, const struct stat *st, bool directory_only)
{
    f->fd = fd;
    if (fd >= 0)
        f->st = *st;
    if (fd >= 0 && directory_only && !S_ISDIR(st->st_mode))
        return kf_find_fail(f, ENOTDIR);
    if (!(f->flags & KF_ENTRY))
        return KF_FOUND;
    strcpy(f->name, name);
    f->dir = f->here < 0 ? openat(f->root->fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC) : kf_find_take(&f->here);
    return f->dir < 0 ? kf_find_fail(f, errno) : KF_FOUND;
}

/* Cut the next component out of the text. False: nothing is left. */
static bool next_component(struct kf_find *f, const uint8_t **component, size_t *length)
{
    while (f->at < f->end && f->text[f->at] == '/')
        f->at++;
    if (f->at == f->end)
        return false;
    *component = f->text + f->at;
    const uint8_t *slash = memchr(*component, '/', f->end - f->at);
    *length = slash ? (size_t)(slash - *component) : f->end - f->at;
    f->at += *length;
    return true;
}

static enum kf_found named(struct kf_find *f, const char *name, bool from_link)
{
    size_t after = f->at;
    while (after < f->end && f->text[after] == '/')
        after++;
    bool last = after == f->end, slash = f->at < f->end || (last && f->slash);
    struct stat st;
    int fd = open_component(f, name, last, from_link, &st);
    if (fd < 0) {
        bool nothing = errno == ENOENT && last && !from_link && (f->flags & KF_ENTRY);
        return nothing ? arrive(f, name, -1, NULL, false) : kf_find_fail(f, errno);
    }
    if (S_ISLNK(st.st_mode) && last && !from_link) {
        f->was_link = true;
        f->link_device = st.st_dev;
        f->link_inode = st.st_ino;
    }
    if (S_ISLNK(st.st_mode) && (!last || (f->flags & KF_FOLLOW) || (slash && !(f->flags & KF_ENTRY))))
        return follow(f, fd) ? KF_FIND_AGAIN : KF_FIND_FAILED;
    if (last)
        return arrive(f, name, fd, &st, slash);
    if (!S_ISDIR(st.st_mode)) {
        close(fd);
        return kf_find_fail(f, ENOTDIR);
    }
    return descend(f, fd, &st) ? KF_FIND_AGAIN : KF_FIND_FAILED;
}

static enum kf_found one_component(struct kf_find *f)
{
    const uint8_t *component;
    size_t length;
    if (!next_component(f, &component, &length))
        return kf_find_at_directory(f, standing_copy(f));
    if (length > NAME_MAX)
        return kf_find_fail(f, ENAMETOOLONG);
    bool from_link = (size_t)(component - f->text) < f->end - f->own;
    char name[NAME_MAX + 1];
    memcpy(name, component, length);
    name[length] = '\0';
    if (strcmp(name, ".") == 0)
        return KF_FIND_AGAIN;
    if (strcmp(name, "..") == 0)
        return ascend(f) ? KF_FIND_AGAIN : KF_FIND_FAILED;
    return named(f, name, from_link);
}

enum kf_found kf_find_walk(struct kf_find *f, struct kf_slice *slice)
{
    if (!f->text && !start(f))
        return KF_FIND_FAILED;
    for (;;) {
        enum kf_found found = one_component(f);
        if (found != KF_FIND_AGAIN || kf_slice_unit(slice))
            return found;
    }
}
