/* RENAME: both ends are found as directory and name, and the kernel renames between those two directories. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops.h"

struct rename_op {
    struct kf_op base;
    struct kf_text from_path, to_path;
    bool replace;
    bool from_found;
    struct kf_find from, to;
};

static enum kf_step invalid(struct rename_op *op, struct kf_run *run, const char *words)
{
    return kf_fail(&op->base, run, KF_INVALID, EINVAL, words);
}

/* Both names are one file. The kernel's rename would do nothing and call it done: the old name must go, unless it is
 * the new one. */
static enum kf_step one_file(struct rename_op *op, struct kf_run *run)
{
    struct kf_find *from = &op->from, *to = &op->to;
    struct stat a, b;
    if (fstat(from->dir, &a) != 0 || fstat(to->dir, &b) != 0)
        return kf_fail_errno(&op->base, run, errno);
    bool one_name = a.st_ino == b.st_ino && a.st_dev == b.st_dev && strcmp(from->name, to->name) == 0;
    if (!one_name && unlinkat(from->dir, from->name, 0) != 0)
        return kf_fail_errno(&op->base, run, errno);
    return kf_finish_record(&op->base, run, to->fd, NULL);
}

static enum kf_step rename_found(struct rename_op *op, struct kf_run *run)
{
    struct kf_find *from = &op->from, *to = &op->to;
    if (from->name[0] == '\0' || to->name[0] == '\0')
        return invalid(op, run, "a path that ends in . or .., or is the root, cannot be renamed");
    if (from->fd < 0)
        return kf_fail_errno(&op->base, run, ENOENT);
    if (to->slash && !S_ISDIR(from->st.st_mode))
        return kf_fail_errno(&op->base, run, ENOTDIR);
    bool same = to->fd >= 0 && from->st.st_ino == to->st.st_ino && from->st.st_dev == to->st.st_dev;
    if (same && S_ISDIR(from->st.st_mode))
        return invalid(op, run, "a directory cannot be renamed onto itself");
    if (same && op->replace)
        return one_file(op, run);
    int done = op->replace ? renameat(from->dir, from->name, to->dir, to->name)
                           : kf_rename_new(from->dir, from->name, to->dir, to->name);
    if (done == 0)
        return kf_finish_record(&op->base, run, from->fd, NULL);
    if (errno == EXDEV)
        return kf_fail(&op->base, run, KF_UNSUPPORTED, EXDEV, "the two paths lie on different file systems");
    return kf_fail_errno(&op->base, run, errno);
}

static enum kf_step step(struct kf_op *base, struct kf_run *run)
{
    struct rename_op *op = (struct rename_op *)base;
    for (;;) {
        struct kf_find *f = op->from_found ? &op->to : &op->from;
        enum kf_found found = kf_find_step(f, &run->slice);
        if (found == KF_FIND_AGAIN)
            return KF_AGAIN;
        if (found == KF_FIND_FAILED)
            return kf_fail(base, run, f->kind, f->error, NULL);
        if (op->from_found)
            return rename_found(op, run);
        op->from_found = true;
    }
}

static void close_op(struct kf_op *base)
{
    struct rename_op *op = (struct rename_op *)base;
    kf_find_end(&op->from);
    kf_find_end(&op->to);
    free(op->from_path.at);
    free(op->to_path.at);
    free(op);
}

static const struct kf_verbs verbs = {.step = step, .close = close_op};

bool kf_op_rename(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **made)
{
    (void)type;
    uint32_t from_length, to_length;
    const uint8_t *from = kf_get_bytes(r, &from_length);
    const uint8_t *to = kf_get_bytes(r, &to_length);
    bool replace = kf_get_bool(r);
    if (!kf_reader_done(r))
        return false;
    struct rename_op *op = calloc(1, sizeof *op);
    if (!op)
        return true;
    if (!kf_text_copy(&op->from_path, from, from_length) || !kf_text_copy(&op->to_path, to, to_length)) {
        free(op->from_path.at);
        free(op);
        return true;
    }
    op->base.verbs = &verbs;
    op->replace = replace;
    kf_find_begin(&op->from, root, op->from_path.at, op->from_path.length, KF_ENTRY);
    kf_find_begin(&op->to, root, op->to_path.at, op->to_path.length, KF_ENTRY);
    *made = &op->base;
    return true;
}
