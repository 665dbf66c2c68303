/* A temporary root for file requests, and a way to send them and keep what comes back. For tests only: a failure of the
 * set-up ends the process. */
#ifndef KF_ROOM_H
#define KF_ROOM_H

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "files.h"
#include "frames.h"
#include "slice.h"

#define MUST(condition)                                                       \
    do {                                                                      \
        if (!(condition)) {                                                   \
            perror(#condition);                                               \
            fprintf(stderr, "%s:%d: set-up failed\n", __FILE__, __LINE__);     \
            exit(2);                                                          \
        }                                                                     \
    } while (0)

struct room {
    char outer[64], inside[80]; /* outer/ holds secret and ws/, the root */
    struct kf_root root;
};

struct item {
    char path[512];
    uint32_t path_length;
    bool ok;
    uint8_t kind, type, has, target_type;
    int32_t error;
    uint32_t mode;
    uint64_t size, inode, entries;
    char target[512];
    uint8_t hash[32];
};

#define KEPT_ITEMS 64
#define KEPT_BYTES (4u << 20)

struct answer {
    unsigned terminals; /* must be 1 in the end */
    uint8_t kind;       /* 0: OK */
    int32_t error;
    uint8_t payload[8192];
    size_t payload_length;
    struct item items[KEPT_ITEMS]; /* the first ones */
    uint64_t item_count, error_items;
    uint8_t *bytes; /* of DATA, the first KEPT_BYTES */
    uint64_t byte_count;
    uint64_t window;
    uint64_t longest_ns, steps, longest_emit, emitted;
    enum kf_step last;
};

static inline struct room room_make(bool openat2)
{
    struct room room = {.outer = "/tmp/kf-test-XXXXXX"};
    MUST(mkdtemp(room.outer));
    snprintf(room.inside, sizeof room.inside, "%s/ws", room.outer);
    MUST(mkdir(room.inside, 0755) == 0);
    char path[128];
    snprintf(path, sizeof path, "%s/secret", room.outer);
    FILE *f = fopen(path, "w");
    MUST(f && fputs("SECRET", f) >= 0 && fclose(f) == 0);
    room.root = (struct kf_root){.fd = open(room.inside, O_PATH | O_DIRECTORY | O_CLOEXEC), .mount = "/workspace"};
    MUST(room.root.fd >= 0);
    kf_files_probe(&room.root);
    room.root.have_openat2 = room.root.have_openat2 && openat2;
    return room;
}

static inline void put(const struct room *room, const char *name, const char *text)
{
    int fd = openat(room->root.fd, name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    MUST(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
}

static inline void put_dir(const struct room *room, const char *name) { MUST(mkdirat(room->root.fd, name, 0755) == 0); }

static inline void put_link(const struct room *room, const char *target, const char *name)
{
    MUST(symlinkat(target, room->root.fd, name) == 0);
}

static inline void read_record(struct kf_reader *r, struct item *item)
{
    item->type = kf_get_u8(r);
    item->mode = kf_get_u32(r);
    item->size = kf_get_u64(r);
    kf_get_u64(r), kf_get_u64(r);
    item->inode = kf_get_u64(r);
    item->has = kf_get_u8(r);
    if (item->has & 1) {
        uint32_t n;
        const uint8_t *at = kf_get_bytes(r, &n);
        snprintf(item->target, sizeof item->target, "%.*s", at ? (int)n : 0, at ? (const char *)at : "");
    }
    if (item->has & 2) {
        const uint8_t *hash = kf_get_raw(r, 32);
        if (hash)
            memcpy(item->hash, hash, 32);
    }
    if (item->has & 4)
        item->entries = kf_get_u64(r);
    if (item->has & 8)
        item->target_type = kf_get_u8(r);
}

static inline void keep_items(struct answer *a, struct kf_reader r)
{
    uint32_t count = kf_get_count(&r, 10);
    for (uint32_t i = 0; i < count; i++) {
        struct item item = {.ok = false};
        const uint8_t *path = kf_get_bytes(&r, &item.path_length);
        uint32_t n = item.path_length < sizeof item.path - 1 ? item.path_length : sizeof item.path - 1;
        if (path)
            memcpy(item.path, path, n);
        item.ok = kf_get_u8(&r);
        if (item.ok) {
            read_record(&r, &item);
        } else {
            item.kind = kf_get_u8(&r);
            item.error = (int32_t)kf_get_u32(&r);
            a->error_items++;
        }
        if (a->item_count < KEPT_ITEMS)
            a->items[a->item_count] = item;
        a->item_count++;
    }
    CHECK(kf_reader_done(&r));
}

static inline void take_frame(void *channel, uint8_t type, uint64_t id, const void *payload, size_t length)
{
    struct answer *a = channel;
    struct kf_reader r = kf_reader(payload, length);
    CHECK(id == 7 && length <= KF_MAX_PAYLOAD && a->terminals == 0);
    a->emitted += length;
    switch (type) {
    case KF_OK:
        a->terminals++;
        a->payload_length = length;
        if (length)
            memcpy(a->payload, payload, length < sizeof a->payload ? length : sizeof a->payload);
        break;
    case KF_ERROR: {
        uint32_t words;
        a->terminals++;
        a->kind = kf_get_u8(&r);
        a->error = (int32_t)kf_get_u32(&r);
        kf_get_bytes(&r, &words);
        CHECK(kf_reader_done(&r) && a->kind != 0 && words > 0 && words <= 1024);
        break;
    }
    case KF_ITEMS: keep_items(a, r); break;
    case KF_DATA:
        CHECK(length > 0);
        if (!a->bytes)
            MUST(a->bytes = malloc(KEPT_BYTES));
        if (a->byte_count + length <= KEPT_BYTES)
            memcpy(a->bytes + a->byte_count, payload, length);
        a->byte_count += length;
        break;
    case KF_WINDOW:
        CHECK(kf_get_u8(&r) == 0);
        a->window = kf_get_u64(&r);
        break;
    default: CHECK(!"a frame of a known type");
    }
}

static inline void answer_free(struct answer *a)
{
    free(a->bytes);
    a->bytes = NULL;
}

/* Step until the request ends or waits. */
static inline void go_on(struct kf_op *op, struct answer *a)
{
    struct kf_emitter out = {.channel = a, .emit = take_frame};
    do {
        uint64_t before = a->emitted, start = kf_now_ns();
        a->last = kf_op_step(op, &out);
        uint64_t took = kf_now_ns() - start;
        a->longest_ns = took > a->longest_ns ? took : a->longest_ns;
        a->longest_emit = a->emitted - before > a->longest_emit ? a->emitted - before : a->longest_emit;
        a->steps++;
    } while (a->last == KF_AGAIN);
    CHECK((a->last == KF_DONE) == (a->terminals == 1));
}

/* Build a payload: b bytes (pointer, size), s string, 1 2 4 8 integers of that many bytes, h 32 raw bytes. */
static inline size_t build(uint8_t *payload, size_t room, const char *schema, va_list values)
{
    struct kf_writer w = kf_writer(payload, room);
    for (; *schema; schema++) {
        const char *text;
        switch (*schema) {
        case 'b':
            text = va_arg(values, const char *);
            kf_put_bytes(&w, text, (uint32_t)va_arg(values, size_t));
            break;
        case 's':
            text = va_arg(values, const char *);
            kf_put_bytes(&w, text, (uint32_t)strlen(text));
            break;
        case '1': kf_put_u8(&w, (uint8_t)va_arg(values, int)); break;
        case '4': kf_put_u32(&w, (uint32_t)va_arg(values, unsigned)); break;
        case '8': kf_put_u64(&w, va_arg(values, uint64_t)); break;
        case 'h': kf_put_raw(&w, va_arg(values, const uint8_t *), 32); break;
        default: MUST(!"a schema letter");
        }
    }
    MUST(w.ok);
    return kf_written(&w);
}

/* Begin a request. */
static inline struct kf_op *begin(const struct room *room, uint8_t type, const char *schema, ...)
{
    static uint8_t payload[KF_MAX_PAYLOAD];
    va_list values;
    va_start(values, schema);
    size_t length = build(payload, sizeof payload, schema, values);
    va_end(values);
    struct kf_op *op = kf_op_new(&room->root, type, 7, payload, length);
    MUST(op);
    return op;
}

/* Run a begun request to its end. */
static inline struct answer finish(struct kf_op *op)
{
    struct answer a = {.terminals = 0};
    go_on(op, &a);
    CHECK(a.last == KF_DONE);
    kf_op_free(op);
    return a;
}

static inline struct item result_record(const struct answer *a)
{
    struct item item = {.ok = a->kind == 0};
    struct kf_reader r = kf_reader(a->payload, a->payload_length);
    read_record(&r, &item);
    CHECK(a->kind != 0 || kf_reader_done(&r));
    return item;
}

/* One STAT of one path. */
static inline struct item stat_one(const struct room *room, const char *path, int flags)
{
    struct answer a = finish(begin(room, KF_STAT, "14s", flags, 1u, path));
    CHECK(a.kind == 0 && a.item_count == 1);
    return a.items[0];
}

/* The bytes of a file as a string (static buffer), or NULL with the kind. */
static inline const char *read_text(const struct room *room, const char *path, uint8_t *kind)
{
    static char text[4096];
    struct answer a = finish(begin(room, KF_READ, "s8818", path, (uint64_t)0, (uint64_t)4000, 0, UINT64_MAX));
    *kind = a.kind;
    if (a.bytes)
        memcpy(text, a.bytes, a.byte_count);
    text[a.bytes ? a.byte_count : 0] = '\0';
    answer_free(&a);
    return *kind ? NULL : text;
}

#define WRITE_PARENTS 1
#define WRITE_DIGEST 8
#define WRITE_EXCLUSIVE 2
#define WRITE_IF_MATCH 4

static inline struct answer write_text(const struct room *room, const char *path, const char *text, int flags, unsigned mode,
                                       const uint8_t *match)
{
    struct answer a = {.terminals = 0};
    struct kf_emitter out = {.channel = &a, .emit = take_frame};
    struct kf_op *op = match ? begin(room, KF_WRITE, "s14h", path, flags | WRITE_IF_MATCH, mode, match)
                             : begin(room, KF_WRITE, "s14", path, flags, mode);
    CHECK(kf_op_data(op, (const uint8_t *)text, strlen(text), &out));
    CHECK(kf_op_eof(op));
    go_on(op, &a);
    CHECK(a.last == KF_DONE);
    kf_op_free(op);
    return a;
}

/* Names left in the root, those of kinfold's temporary files only where asked for. */
static inline int count_temporaries(const struct room *room, const char *directory)
{
    char command[512];
    int n = -1;
    snprintf(command, sizeof command, "ls -A '%s/%s' | grep -c '^[.]kf-'", room->inside, directory);
    FILE *f = popen(command, "r");
    MUST(f && fscanf(f, "%d", &n) == 1);
    pclose(f);
    return n;
}

/* The root is removed by the code under test, so that every test ends with a check of it. */
static inline void room_remove(struct room *room)
{
    char path[128];
    close(room->root.fd);
    room->root.fd = open(room->outer, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct answer a = finish(begin(room, KF_REMOVE, "s1", "ws", 1));
    SAME(a.kind, 0);
    snprintf(path, sizeof path, "%s/secret", room->outer);
    struct stat st;
    CHECK(stat(path, &st) == 0 && st.st_size == 6);
    MUST(unlink(path) == 0 && rmdir(room->outer) == 0);
    close(room->root.fd);
}

#endif
