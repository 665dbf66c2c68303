/* MAKE_DIR: one directory, or the whole path to it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "ops.h"

struct make_dir_op {
    struct kf_op base;
    struct kf_text path;
    uint32_t mode;
    bool parents;
    struct kf_find find;
};

static enum kf_step make(struct make_dir_op *op, struct kf_run *run)
{
    struct kf_find *f = &op->find;
    mode_t mode = op->mode ? (mode_t)op->mode : 0755;
    if (f->fd < 0 && mkdirat(f->dir, f->name, mode) == 0) {
        f->fd = kf_look(f->dir, f->name, &f->st);
        if (f->fd >= 0 && S_ISDIR(f->st.st_mode))
            return kf_finish_record(&op->base, run, f->fd, NULL);
        return kf_fail(&op->base, run, KF_CONFLICT, 0, "somebody replaced the new directory");
    }
    if (f->fd < 0 && !(errno == EEXIST && op->parents))
        return kf_fail_errno(&op->base, run, errno);
    if (f->fd < 0)
        f->fd = kf_look(f->dir, f->name, &f->st); /* made by somebody else at this moment */
    if (f->fd < 0)
        return kf_fail_errno(&op->base, run, errno);
    if (!op->parents || !S_ISDIR(f->st.st_mode))
        return kf_fail_errno(&op->base, run, EEXIST);
    return kf_finish_record(&op->base, run, f->fd, NULL);
}

static enum kf_step step(struct kf_op *base, struct kf_run *run)
{
    struct make_dir_op *op = (struct make_dir_op *)base;
    if (op->mode > 07777)
        return kf_fail(base, run, KF_INVALID, EINVAL, "the mode has bits outside 07777");
    switch (kf_find_step(&op->find, &run->slice)) {
    case KF_FIND_AGAIN: return KF_AGAIN;
    case KF_FIND_FAILED: return kf_fail(base, run, op->find.kind, op->find.error, NULL);
    default: return make(op, run);
    }
}

static void close_op(struct kf_op *base)
{
    struct make_dir_op *op = (struct make_dir_op *)base;
    kf_find_end(&op->find);
    free(op->path.at);
    free(op);
}

static const struct kf_verbs verbs = {.step = step, .close = close_op};

bool kf_op_make_dir(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **made)
{
    (void)type;
    uint32_t length;
    const uint8_t *path = kf_get_bytes(r, &length);
    uint32_t mode = kf_get_u32(r);
    bool parents = kf_get_bool(r);
    if (!kf_reader_done(r))
        return false;
    struct make_dir_op *op = calloc(1, sizeof *op);
    if (!op || !kf_text_copy(&op->path, path, length)) {
        free(op);
        return true;
    }
    op->base.verbs = &verbs;
    op->mode = mode;
    op->parents = parents;
    unsigned how = KF_ENTRY | (parents ? KF_MAKE | KF_FOLLOW : 0);
    kf_find_begin(&op->find, root, op->path.at, op->path.length, how);
    *made = &op->base;
    return true;
}
