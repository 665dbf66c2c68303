/* WRITE: bytes go to a temporary file in the directory of the target and are renamed over it at the end, so that a
 * reader sees the old content or the new, and a failure leaves the old. The new file is the rename's: hard links to
 * the old one keep the old content. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kinds.h"
#include "ops.h"

enum { FLAG_PARENTS = 1, FLAG_EXCLUSIVE = 2, FLAG_IF_MATCH = 4, FLAG_DIGEST = 8 };
enum stage { FIND, RECEIVE, COMPARE, FAILED };
#define WINDOW (1u << 20)
#define WINDOW_STEP (256u << 10) /* a new window is granted when it is this much further */

static const char changed[] = "the file is not the one that was read: it changed, is new or is gone";

struct write_op {
    struct kf_op base;
    struct kf_text path;
    uint8_t flags;
    uint32_t mode;
    uint8_t if_match[KF_HASH];
    enum stage stage;
    struct kf_find find; /* its dir and name are the target's */
    int temporary;
    char temporary_name[KF_TEMPORARY_NAME]; /* "": none to remove */
    uint64_t accepted, window;
    bool eof;
    struct kf_sha256 sha;
    struct kf_digest old; /* the target's content, for if_match */
    struct stat old_st;
    uint8_t kind; /* FAILED: why */
    int error;
    const char *words;
};

static void drop_temporary(struct write_op *op)
{
    if (op->temporary_name[0])
        unlinkat(op->find.dir, op->temporary_name, 0);
    op->temporary_name[0] = '\0';
    if (op->temporary >= 0)
        close(kf_find_take(&op->temporary));
}

static void fail(struct write_op *op, uint8_t kind, int error, const char *words)
{
    drop_temporary(op);
    op->stage = FAILED;
    op->kind = kind;
    op->error = error;
    op->words = words;
}

static void fail_errno(struct write_op *op, int error) { fail(op, kf_kind_of(error), error, NULL); }

static bool must_be_new(const struct write_op *op)
{
    static const uint8_t absent[KF_HASH];
    return (op->flags & FLAG_EXCLUSIVE) || ((op->flags & FLAG_IF_MATCH) && memcmp(op->if_match, absent, KF_HASH) == 0);
}

static bool must_match(const struct write_op *op) { return (op->flags & FLAG_IF_MATCH) && !must_be_new(op); }

/* Can this be written, as far as can be known before the content is here? */
static bool check_target(struct write_op *op)
{
    struct kf_find *f = &op->find;
    bool there = f->fd >= 0;
    if (f->name[0] == '\0' || (there && S_ISDIR(f->st.st_mode)))
        fail_errno(op, EISDIR);
    else if (there && !S_ISREG(f->st.st_mode))
        fail(op, KF_NOT_REGULAR, 0, NULL);
    else if (there && must_be_new(op))
        fail(op, KF_CONFLICT, EEXIST, "the file exists");
    else if (!there && must_match(op))
        fail(op, KF_CONFLICT, ENOENT, changed);
    return op->stage != FAILED;
}

static void open_target(struct write_op *op, struct kf_slice *slice)
{
    if (op->mode > 07777) {
        fail(op, KF_INVALID, EINVAL, "the mode has bits outside 07777");
        return;
    }
    if (op->find.slash && !op->find.kind) {
        fail_errno(op, EISDIR);
        return;
    }
    enum kf_found found = kf_find_step(&op->find, slice);
    if (found == KF_FIND_FAILED)
        fail(op, op->find.kind, op->find.error, NULL);
    if (found != KF_FOUND || !check_target(op))
        return;
    if (op->find.fd >= 0)
        close(kf_find_take(&op->find.fd));
    op->temporary = kf_make_temporary(op->find.dir, op->temporary_name);
    if (op->temporary >= 0) {
        op->stage = RECEIVE;
        return;
    }
    int error = errno;
    op->temporary_name[0] = '\0';
    fail_errno(op, error);
}

static void write_all(struct write_op *op, const uint8_t *data, size_t length)
{
    for (size_t done = 0; done < length;) {
        ssize_t n = write(op->temporary, data + done, length - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            fail_errno(op, errno);
            return;
        }
        done += (size_t)n;
    }
    if (op->flags & FLAG_DIGEST)
        kf_sha256_add(&op->sha, data, length);
}

static bool data(struct kf_op *base, const uint8_t *bytes, size_t length, struct kf_run *run)
{
    struct write_op *op = (struct write_op *)base;
    if (op->eof || length > op->window - op->accepted)
        return false;
    while (op->stage == FIND) { /* the first bytes may be here before the first step */
        struct kf_slice slice = kf_slice_of(KF_SLICE_NS);
        open_target(op, &slice);
    }
    op->accepted += length;
    if (op->stage != RECEIVE)
        return true; /* the host does not know yet that it failed */
    write_all(op, bytes, length);
    if (op->stage == RECEIVE && op->accepted + WINDOW >= op->window + WINDOW_STEP) {
        uint8_t payload[9];
        struct kf_writer w = kf_writer(payload, sizeof payload);
        op->window = op->accepted + WINDOW;
        kf_put_u8(&w, 0);
        kf_put_u64(&w, op->window);
        kf_emit(base, run, KF_WINDOW, payload, kf_written(&w));
    }
    return true;
}

static bool eof(struct kf_op *base)
{
    struct write_op *op = (struct write_op *)base;
    if (op->eof)
        return false;
    op->eof = true;
    return true;
}

/* The last act. */
static enum kf_step put_in_place(struct write_op *op, struct kf_run *run, mode_t mode)
{
    struct stat ours, named;
    int dir = op->find.dir;
    if (fchmod(op->temporary, mode) != 0 || fstat(op->temporary, &ours) != 0 ||
        fstatat(dir, op->temporary_name, &named, AT_SYMLINK_NOFOLLOW) != 0) {
        fail_errno(op, errno);
        return KF_AGAIN;
    }
    if (ours.st_ino != named.st_ino || ours.st_dev != named.st_dev) {
        op->temporary_name[0] = '\0'; /* not ours to remove */
        fail(op, KF_CONFLICT, 0, "somebody replaced the temporary file");
        return KF_AGAIN;
    }
    int done = must_be_new(op) ? kf_rename_new(dir, op->temporary_name, dir, op->find.name)
                               : kf_rename_over(dir, op->temporary_name, op->find.name);
    if (done != 0) {
        fail_errno(op, errno);
        return KF_AGAIN;
    }
    op->temporary_name[0] = '\0';
    uint8_t hash[KF_HASH];
    kf_sha256_end(&op->sha, hash);
    return kf_finish_record(&op->base, run, op->temporary, op->flags & FLAG_DIGEST ? hash : NULL);
}

/* All content is here: look at what is to be replaced. */
static enum kf_step commit(struct write_op *op, struct kf_run *run)
{
    mode_t mode = op->mode ? (mode_t)op->mode : 0644;
    int fd = kf_look(op->find.dir, op->find.name, &op->old_st);
    if (fd < 0 && errno != ENOENT) {
        fail_errno(op, errno);
        return KF_AGAIN;
    }
    bool regular = fd >= 0 && S_ISREG(op->old_st.st_mode), begun = false;
    int error = 0;
    if (regular && must_match(op)) {
        begun = kf_digest_begin(&op->old, fd, &op->old_st, UINT64_MAX);
        error = errno;
    }
    if (fd >= 0)
        close(fd);
    if (!must_match(op))
        return put_in_place(op, run, regular ? op->old_st.st_mode & 07777 : mode);
    if (begun)
        op->stage = COMPARE;
    else if (regular)
        fail_errno(op, error);
    else
        fail(op, KF_CONFLICT, 0, changed);
    return KF_AGAIN;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec &&
           a->st_ctim.tv_sec == b->st_ctim.tv_sec && a->st_ctim.tv_nsec == b->st_ctim.tv_nsec;
}

/* The target's hash must be the expected one, and the target still be what was hashed. */
static enum kf_step compare(struct write_op *op, struct kf_run *run)
{
    enum kf_digest_step result = kf_digest_step(&op->old, &run->slice);
    if (result == KF_DIGEST_AGAIN)
        return KF_AGAIN;
    if (result == KF_DIGEST_FAILED) {
        fail_errno(op, errno);
        return KF_AGAIN;
    }
    struct stat now;
    if (memcmp(op->old.hash, op->if_match, KF_HASH) != 0 ||
        fstatat(op->find.dir, op->find.name, &now, AT_SYMLINK_NOFOLLOW) != 0 || !same_file(&now, &op->old_st)) {
        fail(op, KF_CONFLICT, 0, changed);
        return KF_AGAIN;
    }
    return put_in_place(op, run, now.st_mode & 07777);
}

static enum kf_step step(struct kf_op *base, struct kf_run *run)
{
    struct write_op *op = (struct write_op *)base;
    enum kf_step result = KF_AGAIN;
    do {
        switch (op->stage) {
        case FIND: open_target(op, &run->slice); break;
        case RECEIVE:
            if (!op->eof)
                return KF_WAIT;
            result = commit(op, run);
            break;
        case COMPARE: result = compare(op, run); break;
        case FAILED: return kf_fail(base, run, op->kind, op->error, op->words);
        }
    } while (result == KF_AGAIN && !kf_slice_over(&run->slice));
    return result;
}

static void close_op(struct kf_op *base)
{
    struct write_op *op = (struct write_op *)base;
    drop_temporary(op);
    kf_digest_end(&op->old);
    kf_find_end(&op->find);
    free(op->path.at);
    free(op);
}

static const struct kf_verbs verbs = {.step = step, .close = close_op, .data = data, .eof = eof};

bool kf_op_write(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **made)
{
    (void)type;
    struct write_op request = {.base.verbs = &verbs, .temporary = -1, .old.fd = -1, .window = WINDOW};
    uint32_t length;
    const uint8_t *path = kf_get_bytes(r, &length);
    request.flags = kf_get_u8(r);
    request.mode = kf_get_u32(r);
    const uint8_t *hash = request.flags & FLAG_IF_MATCH ? kf_get_raw(r, KF_HASH) : NULL;
    if (!kf_reader_done(r) || request.flags > (FLAG_PARENTS | FLAG_EXCLUSIVE | FLAG_IF_MATCH | FLAG_DIGEST))
        return false;
    if (hash)
        memcpy(request.if_match, hash, KF_HASH);
    struct write_op *op = malloc(sizeof *op);
    if (!op || !kf_text_copy(&request.path, path, length)) {
        free(op);
        return true;
    }
    *op = request;
    kf_sha256_start(&op->sha);
    unsigned how = KF_ENTRY | KF_FOLLOW | (op->flags & FLAG_PARENTS ? KF_MAKE : 0);
    kf_find_begin(&op->find, root, op->path.at, op->path.length, how);
    *made = &op->base;
    return true;
}
