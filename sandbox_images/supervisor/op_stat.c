/* STAT: thousands of paths in one request, each a record or an error, in order; with a digest or as a claim. */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "claim.h"
#include "kinds.h"
#include "near.h"

enum { FLAG_DIGEST = 1, FLAG_CLAIM = 2 };
enum stage { NEXT, FIND, FIND_TARGET, HASH, TREE };

struct stat_op {
    struct kf_op base;
    uint8_t flags;
    uint32_t left; /* paths not yet begun */
    struct kf_text payload;
    struct kf_reader paths;

    enum stage stage;
    const uint8_t *path; /* the current one */
    uint32_t length;
    unsigned retries;
    struct kf_near near;
    struct kf_find find;
    struct kf_record record;
    char target[PATH_MAX];
    struct kf_digest digest;
    struct kf_claim *claim;
    struct kf_items items;
};

static void end_item(struct stat_op *op)
{
    kf_find_end(&op->find);
    kf_digest_end(&op->digest);
    if (op->claim)
        kf_claim_end(op->claim);
    free(op->claim);
    op->claim = NULL;
    op->stage = NEXT;
}

/* A path over the limit is an error, and is repeated only up to it: the whole would not fit a frame. */
static size_t repeated(const struct stat_op *op) { return op->length < KF_MAX_PATH ? op->length : KF_MAX_PATH; }

static void give_error(struct stat_op *op, struct kf_run *run, uint8_t kind, int error)
{
    kf_items_error(&op->items, &op->base, run, op->path, repeated(op), kind, error);
    end_item(op);
}

static void give_errno(struct stat_op *op, struct kf_run *run, int error)
{
    give_error(op, run, kf_kind_of(error), error);
}

static void give_record(struct stat_op *op, struct kf_run *run)
{
    kf_items_record(&op->items, &op->base, run, op->path, repeated(op), &op->record);
    end_item(op);
}

static void find_path(struct stat_op *op)
{
    op->record = (struct kf_record){.has = 0};
    kf_find_begin(&op->find, op->base.root, op->path, op->length, 0);
    op->stage = FIND;
}

static void begin_path(struct stat_op *op, struct kf_run *run)
{
    op->left--;
    op->retries = 0;
    op->path = kf_get_bytes(&op->paths, &op->length);
    if (op->flags == 0 && kf_near_look(&op->near, op->base.root, op->path, op->length, &op->record.st)) {
        op->record.has = 0;
        kf_items_record(&op->items, &op->base, run, op->path, op->length, &op->record);
    } else {
        find_path(op);
    }
}

/* Hash or walk what the descriptor in `find` stands for: the claimed thing itself, or a claimed link's target. */
static void begin_content(struct stat_op *op, struct kf_run *run)
{
    const struct stat *st = &op->find.st;
    if (S_ISREG(st->st_mode)) {
        uint64_t limit = KF_DIGEST_LIMIT;
        op->record.st.st_size = st->st_size; /* a claimed link has its target's */
        if ((uint64_t)st->st_size > limit)
            give_record(op, run);
        else if (kf_digest_begin(&op->digest, op->find.fd, st, limit))
            op->stage = HASH;
        else
            give_errno(op, run, errno);
        return;
    }
    if (!S_ISDIR(st->st_mode)) {
        give_error(op, run, KF_NOT_REGULAR, 0);
        return;
    }
    struct stat root;
    bool at_root = fstat(op->base.root->fd, &root) == 0 && root.st_ino == st->st_ino && root.st_dev == st->st_dev;
    op->claim = malloc(sizeof *op->claim);
    if (op->claim && kf_claim_begin(op->claim, op->find.fd, at_root))
        op->stage = TREE;
    else
        give_errno(op, run, op->claim ? errno : ENOMEM);
}

static void found(struct stat_op *op, struct kf_run *run)
{
    op->record.st = op->find.st;
    bool link = S_ISLNK(op->record.st.st_mode);
    if (link)
        kf_record_link(&op->record, op->find.fd, "", op->target);
    if (link && (op->flags & FLAG_CLAIM)) {
        kf_find_end(&op->find);
        kf_find_begin(&op->find, op->base.root, op->path, op->length, KF_FOLLOW | KF_WALK);
        op->stage = FIND_TARGET;
    } else if ((op->flags & FLAG_CLAIM) || ((op->flags & FLAG_DIGEST) && S_ISREG(op->record.st.st_mode))) {
        begin_content(op, run);
    } else {
        give_record(op, run);
    }
}

/* What a claimed link leads to: the link followed must be the very one whose record is given. */
static void found_target(struct stat_op *op, struct kf_run *run)
{
    const struct kf_find *f = &op->find;
    const struct stat *link = &op->record.st;
    if (!f->was_link || f->link_inode != link->st_ino || f->link_device != link->st_dev) {
        kf_find_end(&op->find);
        if (++op->retries > KF_MAX_RETRIES)
            give_errno(op, run, EAGAIN);
        else
            find_path(op);
        return;
    }
    op->record.target_type = kf_type_of(op->find.st.st_mode);
    op->record.has |= KF_HAS_TARGET_TYPE;
    begin_content(op, run);
}

static void step_find(struct stat_op *op, struct kf_run *run)
{
    enum kf_found result = kf_find_step(&op->find, &run->slice);
    if (result == KF_FIND_FAILED)
        give_error(op, run, op->find.kind, op->find.error);
    else if (result == KF_FOUND && op->stage == FIND)
        found(op, run);
    else if (result == KF_FOUND)
        found_target(op, run);
}

/* False: the slice is over, and only that ends a piece of hashing. */
static bool step_hash(struct stat_op *op, struct kf_run *run)
{
    switch (kf_digest_step(&op->digest, &run->slice)) {
    case KF_DIGEST_AGAIN: return false;
    case KF_DIGEST_FAILED: give_errno(op, run, errno); return true;
    case KF_DIGEST_TOO_LARGE: give_record(op, run); return true; /* grew over the limit meanwhile: no hash */
    case KF_DIGEST_READY: break;
    }
    op->record.st.st_size = (off_t)op->digest.done;
    op->record.has |= KF_HAS_HASH;
    memcpy(op->record.hash, op->digest.hash, KF_HASH);
    give_record(op, run);
    return true;
}

/* As step_hash(). */
static bool step_tree(struct stat_op *op, struct kf_run *run)
{
    struct kf_claim *claim = op->claim;
    switch (kf_claim_step(claim, &run->slice)) {
    case KF_CLAIM_AGAIN: return false;
    case KF_CLAIM_FAILED: give_error(op, run, claim->kind, claim->error); return true;
    case KF_CLAIM_READY: break;
    }
    op->record.st.st_size = (off_t)(claim->size > INT64_MAX ? INT64_MAX : claim->size);
    op->record.entries = claim->entries;
    op->record.has |= KF_HAS_ENTRIES;
    if (claim->hashing) {
        op->record.has |= KF_HAS_HASH;
        memcpy(op->record.hash, claim->hash, KF_HASH);
    }
    give_record(op, run);
    return true;
}

static enum kf_step step(struct kf_op *base, struct kf_run *run)
{
    struct stat_op *op = (struct stat_op *)base;
    bool time_left = true;
    do {
        switch (op->stage) {
        case NEXT:
            if (op->left == 0) {
                kf_items_flush(&op->items, base, run);
                return kf_finish(base, run, NULL, 0);
            }
            begin_path(op, run);
            break;
        case FIND:
        case FIND_TARGET: step_find(op, run); break;
        case HASH: time_left = step_hash(op, run); break;
        case TREE: time_left = step_tree(op, run); break;
        }
    } while (time_left && !kf_slice_unit(&run->slice) && run->emitted + KF_MAX_PAYLOAD <= KF_STEP_BYTES);
    kf_near_end(&op->near);
    return KF_AGAIN;
}

static void close_op(struct kf_op *base)
{
    struct stat_op *op = (struct stat_op *)base;
    end_item(op);
    kf_near_end(&op->near);
    kf_items_end(&op->items);
    free(op->payload.at);
    free(op);
}

static const struct kf_verbs verbs = {.step = step, .close = close_op};

bool kf_op_stat(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **made)
{
    (void)root, (void)type;
    uint8_t flags = kf_get_u8(r);
    uint32_t count = kf_get_count(r, 4);
    const uint8_t *start = r->at;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length;
        kf_get_bytes(r, &length);
    }
    if (!kf_reader_done(r) || flags > (FLAG_DIGEST | FLAG_CLAIM))
        return false;
    struct stat_op *op = calloc(1, sizeof *op);
    if (!op)
        return true;
    op->base.verbs = &verbs;
    op->flags = flags;
    op->left = count;
    op->near.dir = op->find.fd = op->find.dir = op->find.here = op->digest.fd = -1;
    *made = &op->base;
    if (!kf_items_begin(&op->items) || !kf_text_copy(&op->payload, start, (size_t)(r->end - start))) {
        close_op(&op->base);
        *made = NULL;
    }
    op->paths = *made ? kf_reader(op->payload.at, op->payload.length) : op->paths;
    return true;
}
