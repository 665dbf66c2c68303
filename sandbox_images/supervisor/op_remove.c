/* REMOVE: a file, a link, an empty directory, or a whole tree. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "ops.h"
#include "removal.h"

struct remove_op {
    struct kf_op base;
    struct kf_text path;
    bool recursive, removing;
    struct kf_find find;
    struct kf_removal removal;
};

static enum kf_step finish(struct remove_op *op, struct kf_run *run, uint64_t removed)
{
    uint8_t payload[8];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_u64(&w, removed);
    return kf_finish(&op->base, run, payload, sizeof payload);
}

static enum kf_step removal_failed(struct remove_op *op, struct kf_run *run)
{
    const char *words = op->removal.kind == KF_CONFLICT ? "the tree changes while it is being removed" : NULL;
    return kf_fail(&op->base, run, op->removal.kind, op->removal.error, words);
}

static enum kf_step remove_found(struct remove_op *op, struct kf_run *run)
{
    struct kf_find *f = &op->find;
    if (f->name[0] == '\0')
        return kf_fail(&op->base, run, KF_INVALID, EINVAL, "the root, or a path ending in . or .., cannot be removed");
    if (f->fd < 0)
        return kf_fail_errno(&op->base, run, ENOENT);
    bool directory = S_ISDIR(f->st.st_mode);
    close(kf_find_take(&f->fd));
    /* also before a whole tree goes: where the top itself may not be removed, nothing is */
    if (unlinkat(f->dir, f->name, directory ? AT_REMOVEDIR : 0) == 0)
        return finish(op, run, 1);
    bool full = errno == ENOTEMPTY || errno == EEXIST;
    if (full && op->recursive) {
        op->removing = true;
        if (kf_removal_begin(&op->removal, f->dir, f->name) == KF_REMOVAL_FAILED)
            return removal_failed(op, run);
        return KF_AGAIN;
    }
    if (full)
        return kf_fail(&op->base, run, KF_CONFLICT, errno, "the directory is not empty; recursive removes it");
    return kf_fail_errno(&op->base, run, errno);
}

static enum kf_step step(struct kf_op *base, struct kf_run *run)
{
    struct remove_op *op = (struct remove_op *)base;
    if (op->removing) {
        enum kf_removal_step result = kf_removal_step(&op->removal, &run->slice);
        if (result == KF_REMOVAL_AGAIN)
            return KF_AGAIN;
        return result == KF_REMOVAL_READY ? finish(op, run, op->removal.removed) : removal_failed(op, run);
    }
    switch (kf_find_step(&op->find, &run->slice)) {
    case KF_FIND_AGAIN: return KF_AGAIN;
    case KF_FIND_FAILED: return kf_fail(base, run, op->find.kind, op->find.error, NULL);
    default: return remove_found(op, run);
    }
}

static void close_op(struct kf_op *base)
{
    struct remove_op *op = (struct remove_op *)base;
    kf_removal_end(&op->removal);
    kf_find_end(&op->find);
    free(op->path.at);
    free(op);
}

static const struct kf_verbs verbs = {.step = step, .close = close_op};

bool kf_op_remove(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **made)
{
    (void)type;
    uint32_t length;
    const uint8_t *path = kf_get_bytes(r, &length);
    bool recursive = kf_get_bool(r);
    if (!kf_reader_done(r))
        return false;
    struct remove_op *op = calloc(1, sizeof *op);
    if (!op || !kf_text_copy(&op->path, path, length)) {
        free(op);
        return true;
    }
    op->base.verbs = &verbs;
    op->recursive = recursive;
    kf_find_begin(&op->find, root, op->path.at, op->path.length, KF_ENTRY);
    *made = &op->base;
    return true;
}
