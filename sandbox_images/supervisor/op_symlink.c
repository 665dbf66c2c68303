/* SYMLINK: a link whose text stays beneath the root, judged from the directory where the link really lies. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops.h"

struct symlink_op {
    struct kf_op base;
    struct kf_text target, path;
    struct kf_find find;
};

/* Does the text, read from a directory `depth` levels below the root, go above the root? */
static bool leaves(const struct kf_root *root, const uint8_t *text, size_t length, size_t depth)
{
    if (text[0] == '/') {
        text = kf_beneath(root, text, &length);
        depth = 0;
        if (!text)
            return true;
    }
    for (size_t at = 0; at < length;) {
        const uint8_t *slash = memchr(text + at, '/', length - at);
        size_t end = slash ? (size_t)(slash - text) : length, n = end - at;
        if (n == 2 && memcmp(text + at, "..", 2) == 0) {
            if (depth-- == 0)
                return true;
        } else if (n > 0 && !(n == 1 && text[at] == '.')) {
            depth++;
        }
        at = end + 1;
    }
    return false;
}

static enum kf_step link_found(struct symlink_op *op, struct kf_run *run)
{
    struct kf_find *f = &op->find;
    if (f->name[0] == '\0' || (f->slash && f->fd < 0))
        return kf_fail(&op->base, run, KF_INVALID, EINVAL, "a link's path must end in its name");
    if (f->fd >= 0)
        return kf_fail_errno(&op->base, run, EEXIST);
    if (leaves(op->base.root, op->target.at, op->target.length, f->depth))
        return kf_fail(&op->base, run, KF_PATH_ESCAPE, 0, "the link's target leaves the workspace");
    char text[PATH_MAX];
    memcpy(text, op->target.at, op->target.length);
    text[op->target.length] = '\0';
    if (symlinkat(text, f->dir, f->name) != 0)
        return kf_fail_errno(&op->base, run, errno);
    f->fd = kf_look(f->dir, f->name, &f->st);
    if (f->fd < 0)
        return kf_fail_errno(&op->base, run, errno);
    return kf_finish_record(&op->base, run, f->fd, NULL);
}

static enum kf_step step(struct kf_op *base, struct kf_run *run)
{
    struct symlink_op *op = (struct symlink_op *)base;
    size_t length = op->target.length;
    if (length == 0 || length >= PATH_MAX || memchr(op->target.at, '\0', length))
        return kf_fail(base, run, KF_INVALID, EINVAL, "a link's target has 1 to 4,095 bytes and no NUL");
    switch (kf_find_step(&op->find, &run->slice)) {
    case KF_FIND_AGAIN: return KF_AGAIN;
    case KF_FIND_FAILED: return kf_fail(base, run, op->find.kind, op->find.error, NULL);
    default: return link_found(op, run);
    }
}

static void close_op(struct kf_op *base)
{
    struct symlink_op *op = (struct symlink_op *)base;
    kf_find_end(&op->find);
    free(op->target.at);
    free(op->path.at);
    free(op);
}

static const struct kf_verbs verbs = {.step = step, .close = close_op};

bool kf_op_symlink(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **made)
{
    (void)type;
    uint32_t target_length, path_length;
    const uint8_t *target = kf_get_bytes(r, &target_length);
    const uint8_t *path = kf_get_bytes(r, &path_length);
    if (!kf_reader_done(r))
        return false;
    struct symlink_op *op = calloc(1, sizeof *op);
    if (!op)
        return true;
    if (!kf_text_copy(&op->target, target, target_length) || !kf_text_copy(&op->path, path, path_length)) {
        free(op->target.at);
        free(op);
        return true;
    }
    op->base.verbs = &verbs;
    kf_find_begin(&op->find, root, op->path.at, op->path.length, KF_ENTRY | KF_WALK);
    *made = &op->base;
    return true;
}
