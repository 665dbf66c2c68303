/* What is told of a file: the record of FRAMES.md, and items in batches. */
#include "ops.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH 16384u                                           /* emitted when it holds this much */
#define BATCH_ROOM (BATCH + KF_MAX_PATH + PATH_MAX + 128u)     /* and one item more always fits */

uint8_t kf_type_of(mode_t mode)
{
    if (S_ISREG(mode))
        return KF_FILE;
    if (S_ISDIR(mode))
        return KF_DIRECTORY;
    return S_ISLNK(mode) ? KF_LINK : KF_OTHER;
}

/* Nanoseconds; a time that a hostile file carries beyond the range stops at its end. */
static uint64_t nanoseconds(struct timespec t)
{
    int64_t ns;
    if (__builtin_mul_overflow((int64_t)t.tv_sec, (int64_t)1000000000, &ns) ||
        __builtin_add_overflow(ns, (int64_t)t.tv_nsec, &ns))
        ns = t.tv_sec < 0 ? INT64_MIN : INT64_MAX;
    return (uint64_t)ns;
}

void kf_put_record(struct kf_writer *w, const struct kf_record *record)
{
    const struct stat *st = &record->st;
    kf_put_u8(w, kf_type_of(st->st_mode));
    kf_put_u32(w, st->st_mode & 07777);
    kf_put_u64(w, (uint64_t)st->st_size);
    kf_put_u64(w, nanoseconds(st->st_mtim));
    kf_put_u64(w, nanoseconds(st->st_ctim));
    kf_put_u64(w, st->st_ino);
    kf_put_u8(w, record->has);
    if (record->has & KF_HAS_TARGET)
        kf_put_bytes(w, record->target, (uint32_t)record->target_length);
    if (record->has & KF_HAS_HASH)
        kf_put_raw(w, record->hash, KF_HASH);
    if (record->has & KF_HAS_ENTRIES)
        kf_put_u64(w, record->entries);
    if (record->has & KF_HAS_TARGET_TYPE)
        kf_put_u8(w, record->target_type);
}

void kf_record_link(struct kf_record *record, int directory, const char *name, char *buffer)
{
    ssize_t n = readlinkat(directory, name, buffer, PATH_MAX);
    if (n < 0)
        return;
    record->target = buffer;
    record->target_length = (size_t)n;
    record->has |= KF_HAS_TARGET;
}

enum kf_step kf_finish_record(const struct kf_op *op, struct kf_run *run, int fd, const uint8_t *hash)
{
    uint8_t payload[PATH_MAX + 256];
    char target[PATH_MAX];
    struct kf_record record = {.has = 0};
    if (fstat(fd, &record.st) != 0)
        return kf_fail(op, run, KF_INTERNAL, 0, "the result cannot be looked at");
    if (S_ISLNK(record.st.st_mode))
        kf_record_link(&record, fd, "", target);
    if (hash) {
        record.has |= KF_HAS_HASH;
        memcpy(record.hash, hash, KF_HASH);
    }
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_record(&w, &record);
    return kf_finish(op, run, payload, kf_written(&w));
}

static void empty(struct kf_items *items)
{
    items->w = kf_writer(items->buffer, BATCH_ROOM);
    kf_put_u32(&items->w, 0); /* the count, known when it is emitted */
    items->count = 0;
}

bool kf_items_begin(struct kf_items *items)
{
    items->buffer = malloc(BATCH_ROOM);
    if (items->buffer)
        empty(items);
    return items->buffer != NULL;
}

void kf_items_flush(struct kf_items *items, const struct kf_op *op, struct kf_run *run)
{
    if (items->count == 0)
        return;
    struct kf_writer count = kf_writer(items->buffer, 4);
    kf_put_u32(&count, items->count);
    kf_emit(op, run, KF_ITEMS, items->buffer, kf_written(&items->w));
    empty(items);
}

static void added(struct kf_items *items, const struct kf_op *op, struct kf_run *run)
{
    items->count++;
    if (kf_written(&items->w) >= BATCH)
        kf_items_flush(items, op, run);
}

void kf_items_record(struct kf_items *items, const struct kf_op *op, struct kf_run *run, const void *path,
                     size_t length, const struct kf_record *record)
{
    kf_put_bytes(&items->w, path, (uint32_t)length);
    kf_put_u8(&items->w, 1);
    kf_put_record(&items->w, record);
    added(items, op, run);
}

void kf_items_error(struct kf_items *items, const struct kf_op *op, struct kf_run *run, const void *path, size_t length,
                    uint8_t kind, int error)
{
    kf_put_bytes(&items->w, path, (uint32_t)length);
    kf_put_u8(&items->w, 0);
    kf_put_u8(&items->w, kind);
    kf_put_u32(&items->w, (uint32_t)error);
    added(items, op, run);
}

void kf_items_end(struct kf_items *items)
{
    free(items->buffer);
    items->buffer = NULL;
}
