/* LIST: the entries of a directory or of the tree beneath it, as they are met. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>

#include "kinds.h"
#include "ops.h"
#include "walk.h"

enum { FLAG_SCRATCH = 1 };

struct list_op {
    struct kf_op base;
    struct kf_text path;
    uint32_t depth, max_entries;
    uint8_t flags;
    struct kf_find find;
    bool walking;
    struct kf_tree tree;
    uint64_t count;
    struct kf_items items;
};

static enum kf_step begin(struct list_op *op, struct kf_run *run)
{
    if (op->depth == 0)
        return kf_fail(&op->base, run, KF_INVALID, EINVAL, "depth 0 lists nothing; 1 is the directory's own entries");
    switch (kf_find_step(&op->find, &run->slice)) {
    case KF_FIND_AGAIN: return KF_AGAIN;
    case KF_FIND_FAILED: return kf_fail(&op->base, run, op->find.kind, op->find.error, NULL);
    default: break;
    }
    const struct stat *st = &op->find.st;
    if (!S_ISDIR(st->st_mode))
        return kf_fail_errno(&op->base, run, ENOTDIR);
    struct stat root;
    bool at_root = fstat(op->base.root->fd, &root) == 0 && root.st_ino == st->st_ino && root.st_dev == st->st_dev;
    if (!kf_tree_begin(&op->tree, op->find.fd, op->depth, at_root && !(op->flags & FLAG_SCRATCH)))
        return kf_fail_errno(&op->base, run, errno);
    kf_find_end(&op->find);
    op->walking = true;
    return KF_AGAIN;
}

static enum kf_step finish(struct list_op *op, struct kf_run *run, bool truncated)
{
    uint8_t payload[9];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_u8(&w, truncated);
    kf_put_u64(&w, op->count);
    kf_items_flush(&op->items, &op->base, run);
    return kf_finish(&op->base, run, payload, kf_written(&w));
}

static void give_entry(struct list_op *op, struct kf_run *run)
{
    char target[PATH_MAX];
    struct kf_record record = {.st = op->tree.st};
    if (S_ISLNK(record.st.st_mode))
        kf_record_link(&record, kf_tree_directory(&op->tree), op->tree.name, target);
    kf_items_record(&op->items, &op->base, run, op->tree.path, op->tree.length, &record);
    op->count++;
}

static enum kf_step next(struct list_op *op, struct kf_run *run)
{
    struct kf_tree *t = &op->tree;
    switch (kf_tree_next(t)) {
    case KF_TREE_END: return finish(op, run, t->truncated);
    case KF_TREE_FAILED: return kf_fail_errno(&op->base, run, t->error);
    case KF_TREE_UNSEEN:
    case KF_TREE_UNREADABLE:
        if (t->length == 0) /* the listed directory itself */
            return kf_fail_errno(&op->base, run, t->error);
        kf_items_error(&op->items, &op->base, run, t->path, t->length, kf_kind_of(t->error), t->error);
        return KF_AGAIN;
    case KF_TREE_ENTRY: break;
    }
    if (op->count == op->max_entries)
        return finish(op, run, true);
    give_entry(op, run);
    return KF_AGAIN;
}

static enum kf_step step(struct kf_op *base, struct kf_run *run)
{
    struct list_op *op = (struct list_op *)base;
    enum kf_step result;
    do
        result = op->walking ? next(op, run) : begin(op, run);
    while (result == KF_AGAIN && !kf_slice_unit(&run->slice) && run->emitted + KF_MAX_PAYLOAD <= KF_STEP_BYTES);
    return result;
}

static void close_op(struct kf_op *base)
{
    struct list_op *op = (struct list_op *)base;
    kf_find_end(&op->find);
    kf_tree_end(&op->tree);
    kf_items_end(&op->items);
    free(op->path.at);
    free(op);
}

static const struct kf_verbs verbs = {.step = step, .close = close_op};

bool kf_op_list(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **made)
{
    (void)type;
    uint32_t length;
    const uint8_t *path = kf_get_bytes(r, &length);
    uint32_t depth = kf_get_u32(r), max_entries = kf_get_u32(r);
    uint8_t flags = kf_get_u8(r);
    if (!kf_reader_done(r) || flags > FLAG_SCRATCH)
        return false;
    struct list_op *op = calloc(1, sizeof *op);
    if (!op)
        return true;
    op->base.verbs = &verbs;
    op->depth = depth;
    op->max_entries = max_entries;
    op->flags = flags;
    op->find.fd = op->find.dir = op->find.here = -1;
    if (!kf_items_begin(&op->items) || !kf_text_copy(&op->path, path, length)) {
        close_op(&op->base);
        return true;
    }
    kf_find_begin(&op->find, root, op->path.at, op->path.length, 0);
    *made = &op->base;
    return true;
}
