/* READ: a regular file's bytes, as far as the host's credit goes, with the digest of exactly what was sent. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ops.h"

enum { FLAG_DIGEST = 1 };
#define CHUNK 131072u

struct read_op {
    struct kf_op base;
    struct kf_text path;
    uint64_t offset, limit, credit, sent;
    uint8_t flags;
    struct kf_find find;
    int fd;
    struct kf_sha256 sha;
};

/* Open what was found, after a look at what it is. */
static enum kf_step open_found(struct read_op *op, struct kf_run *run)
{
    const struct stat *st = &op->find.st;
    if (S_ISDIR(st->st_mode))
        return kf_fail_errno(&op->base, run, EISDIR);
    if (!S_ISREG(st->st_mode))
        return kf_fail(&op->base, run, KF_NOT_REGULAR, 0, NULL);
    op->fd = kf_reopen(op->find.fd, O_RDONLY, st);
    if (op->fd < 0)
        return kf_fail_errno(&op->base, run, errno);
    struct kf_items items;
    struct kf_record record = {.has = 0};
    if (fstat(op->fd, &record.st) != 0 || !kf_items_begin(&items))
        return kf_fail_errno(&op->base, run, ENOMEM);
    kf_items_record(&items, &op->base, run, op->path.at, op->path.length, &record);
    kf_items_flush(&items, &op->base, run);
    kf_items_end(&items);
    kf_find_end(&op->find);
    kf_sha256_start(&op->sha);
    return KF_AGAIN;
}

static enum kf_step step_find(struct read_op *op, struct kf_run *run)
{
    if (op->offset > INT64_MAX)
        return kf_fail(&op->base, run, KF_INVALID, EINVAL, "the offset is over 2^63-1");
    switch (kf_find_step(&op->find, &run->slice)) {
    case KF_FIND_AGAIN: return KF_AGAIN;
    case KF_FIND_FAILED: return kf_fail(&op->base, run, op->find.kind, op->find.error, NULL);
    default: return open_found(op, run);
    }
}

static enum kf_step finish(struct read_op *op, struct kf_run *run)
{
    uint8_t payload[1 + KF_HASH] = {op->flags & FLAG_DIGEST};
    if (payload[0])
        kf_sha256_end(&op->sha, payload + 1);
    return kf_finish(&op->base, run, payload, payload[0] ? sizeof payload : 1);
}

/* One DATA frame. */
static enum kf_step send_chunk(struct read_op *op, struct kf_run *run)
{
    static uint8_t chunk[CHUNK];
    uint64_t most = op->limit - op->sent, at = op->offset + op->sent, last = INT64_MAX;
    if (most > last - at)
        most = last - at; /* no file reaches further, and pread refuses to try */
    if (most == 0)
        return finish(op, run);
    if (op->credit <= op->sent)
        return KF_WAIT;
    if (most > op->credit - op->sent)
        most = op->credit - op->sent;
    ssize_t n = pread(op->fd, chunk, most < CHUNK ? (size_t)most : CHUNK, (off_t)at);
    if (n < 0 && errno == EINTR)
        return KF_AGAIN;
    if (n < 0)
        return kf_fail_errno(&op->base, run, errno);
    if (n == 0)
        return finish(op, run);
    if (op->flags & FLAG_DIGEST)
        kf_sha256_add(&op->sha, chunk, (size_t)n);
    kf_emit(&op->base, run, KF_DATA, chunk, (size_t)n);
    op->sent += (uint64_t)n;
    return KF_AGAIN;
}

static enum kf_step step(struct kf_op *base, struct kf_run *run)
{
    struct read_op *op = (struct read_op *)base;
    enum kf_step result;
    do
        result = op->fd < 0 ? step_find(op, run) : send_chunk(op, run);
    while (result == KF_AGAIN && !kf_run_over(run));
    return result;
}

static void credit(struct kf_op *base, uint64_t limit)
{
    struct read_op *op = (struct read_op *)base;
    if (limit > op->credit)
        op->credit = limit;
}

static void close_op(struct kf_op *base)
{
    struct read_op *op = (struct read_op *)base;
    kf_find_end(&op->find);
    if (op->fd >= 0)
        close(op->fd);
    free(op->path.at);
    free(op);
}

static const struct kf_verbs verbs = {.step = step, .close = close_op, .credit = credit};

bool kf_op_read(struct kf_reader *r, const struct kf_root *root, uint8_t type, struct kf_op **made)
{
    (void)type;
    uint32_t length;
    const uint8_t *path = kf_get_bytes(r, &length);
    struct read_op request = {.base.verbs = &verbs, .fd = -1};
    request.offset = kf_get_u64(r);
    request.limit = kf_get_u64(r);
    request.flags = kf_get_u8(r);
    request.credit = kf_get_u64(r);
    if (!kf_reader_done(r) || request.flags > FLAG_DIGEST)
        return false;
    struct read_op *op = malloc(sizeof *op);
    if (!op || !kf_text_copy(&request.path, path, length)) {
        free(op);
        return true;
    }
    *op = request;
    kf_find_begin(&op->find, root, op->path.at, op->path.length, KF_FOLLOW);
    *made = &op->base;
    return true;
}
