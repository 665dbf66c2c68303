/* LIST, recursive REMOVE and claims: trees that are wide, deep, locked or hostile. */
#include <errno.h>
#include <sys/time.h>

#include "room.h"
#include "sha256.h"

/* Make a chain of directories below `fd` by descriptor, as deep as wanted, with a file at each level. */
static void dig(int fd, int depth, bool files)
{
    int here = dup(fd);
    for (int i = 0; i < depth; i++) {
        MUST(mkdirat(here, "d", 0755) == 0);
        int next = openat(here, "d", O_RDONLY | O_DIRECTORY);
        MUST(next >= 0);
        close(here);
        here = next;
        if (files)
            close(openat(here, "f", O_WRONLY | O_CREAT, 0644));
    }
    close(here);
}

static struct answer list(const struct room *room, const char *path, uint32_t depth, uint32_t most, int flags)
{
    return finish(begin(room, KF_LIST, "s441", path, depth, most, flags));
}

static bool truncated(const struct answer *a) { return a->payload[0] == 1; }

static uint64_t count_of(const struct answer *a)
{
    struct kf_reader r = kf_reader(a->payload + 1, 8);
    return kf_get_u64(&r);
}

static bool listed(const struct answer *a, const char *path)
{
    for (uint64_t i = 0; i < a->item_count && i < KEPT_ITEMS; i++)
        if (a->items[i].ok && strcmp(a->items[i].path, path) == 0)
            return true;
    return false;
}

static void check_lists(const struct room *room)
{
    put_dir(room, "l"), put_dir(room, "l/sub"), put_dir(room, "l/sub/deep"), put(room, "l/sub/deep/f", "1"), put(room, "l/a", "22");
    put_link(room, "/etc", "l/link");
    put_dir(room, ".kinfold"), put(room, ".kinfold/scratch", "x"), put_dir(room, "l/.kinfold");
    struct answer a = list(room, "l", 1, 100, 0);
    CHECK(a.kind == 0 && !truncated(&a) && count_of(&a) == 4 && a.item_count == 4 && listed(&a, "sub") && listed(&a, ".kinfold"));
    a = list(room, "/workspace/l/", 3, 100, 0);
    CHECK(count_of(&a) == 6 && listed(&a, "sub/deep/f") && listed(&a, "link") && !listed(&a, "link/passwd"));
    a = list(room, "l", 2, 100, 0);
    CHECK(count_of(&a) == 5 && !truncated(&a));
    a = list(room, "l", UINT32_MAX, 6, 0);
    CHECK(count_of(&a) == 6 && !truncated(&a));
    a = list(room, "l", UINT32_MAX, 5, 0);
    CHECK(count_of(&a) == 5 && truncated(&a));
    a = list(room, "l", 1, 0, 0);
    CHECK(count_of(&a) == 0 && truncated(&a));
    a = list(room, ".", UINT32_MAX, 100, 0);
    CHECK(!listed(&a, ".kinfold") && !listed(&a, ".kinfold/scratch") && listed(&a, "l/.kinfold"));
    a = list(room, ".", UINT32_MAX, 100, 1);
    CHECK(listed(&a, ".kinfold/scratch"));
    static const struct { const char *path; uint32_t depth; uint8_t kind; } bad[] = {
        {"l", 0, KF_INVALID}, {"l/a", 1, KF_NOT_A_DIRECTORY}, {"none", 1, KF_NOT_FOUND}, {"..", 1, KF_PATH_ESCAPE},
        {"l/link", 1, KF_NOT_A_DIRECTORY}, {"l/link/", 1, KF_PATH_ESCAPE},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        a = list(room, bad[i].path, bad[i].depth, 10, 0);
        SAME(a.kind, bad[i].kind);
    }
}

static void check_wide(const struct room *room)
{
    enum { MANY = 20000 };
    char name[32];
    put_dir(room, "wide");
    int fd = openat(room->root.fd, "wide", O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < MANY; i++) {
        snprintf(name, sizeof name, "file-%d", i);
        MUST(mknodat(fd, name, S_IFREG | 0644, 0) == 0);
    }
    close(fd);
    struct answer a = list(room, "wide", 1, UINT32_MAX, 0);
    CHECK(a.kind == 0 && count_of(&a) == MANY && a.steps > 1 && a.longest_emit <= KF_STEP_BYTES);
    struct item claim = stat_one(room, "wide", 2);
    CHECK(claim.ok && claim.entries == MANY && claim.size == 0 && (claim.has & 2));
    a = finish(begin(room, KF_REMOVE, "s1", "wide", 0));
    SAME(a.kind, KF_CONFLICT);
    a = finish(begin(room, KF_REMOVE, "s1", "wide", 1));
    struct kf_reader r = kf_reader(a.payload, a.payload_length);
    SAME(kf_get_u64(&r), MANY + 1);
    CHECK(a.steps > 1);
}

static void check_deep(const struct room *room)
{
    put_dir(room, "hole");
    int fd = openat(room->root.fd, "hole", O_RDONLY | O_DIRECTORY), before = dup(fd);
    dig(fd, 3000, true);
    struct answer a = list(room, "hole", UINT32_MAX, UINT32_MAX, 0);
    CHECK(a.kind == 0 && truncated(&a) && count_of(&a) == 200 + 199);
    SAME(stat_one(room, "hole", 2).kind, KF_TOO_LARGE);
    static char path[65536]; /* "hole/d/d/…/f", 6 KB, past PATH_MAX: only in pieces */
    strcpy(path, "hole");
    for (int i = 0; i < 3000; i++)
        strcpy(path + 4 + 2 * i, "/d");
    strcat(path, "/f");
    CHECK(stat_one(room, path, 0).type == 1);
    uint8_t kind;
    CHECK(read_text(room, path, &kind) != NULL);
    a = write_text(room, path, "deep", 0, 0, NULL);
    SAME(a.kind, 0);
    strcat(path, "/../../../none");
    SAME(stat_one(room, path, 0).kind, KF_NOT_A_DIRECTORY);
    for (int i = 0; i < 3000; i++) /* down and all the way up again */
        strcpy(path + 4 + 2 * 3000 + 3 * i, "/..");
    strcat(path, "/../hole/d/f");
    CHECK(stat_one(room, path, 0).type == 1);
    strcpy(path + 4 + 5 * 3000, "/../../secret");
    SAME(stat_one(room, path, 0).kind, KF_PATH_ESCAPE);
    a = finish(begin(room, KF_REMOVE, "s1", "hole", 1));
    struct kf_reader r = kf_reader(a.payload, a.payload_length);
    CHECK(a.kind == 0 && kf_get_u64(&r) == 6001);
    int after = dup(fd);
    SAME(after, before + 1); /* no descriptor was left open */
    close(after), close(before), close(fd);
}

static void check_locked(const struct room *room)
{
    put_dir(room, "locked"), put_dir(room, "locked/a"), put_dir(room, "locked/a/b"), put(room, "locked/a/b/f", "x");
    put_dir(room, "locked/ro"), put(room, "locked/ro/f", "x"), put(room, "file000", "x"), put(room, "locked/plain", "x");
    put_dir(room, "keep"), put(room, "keep/me", "x");
    MUST(symlinkat("../../keep", room->root.fd, "locked/a/b/link") == 0);
    MUST(fchmodat(room->root.fd, "locked/a/b", 0000, 0) == 0 && fchmodat(room->root.fd, "locked/a", 0000, 0) == 0);
    MUST(fchmodat(room->root.fd, "locked/ro", 0555, 0) == 0 && fchmodat(room->root.fd, "file000", 0000, 0) == 0);
    if (room->root.change_uid || geteuid() != 0) { /* root reads everything: nothing to see */
        uint8_t kind;
        struct answer a = list(room, "locked", UINT32_MAX, 100, 0);
        CHECK(a.kind == 0 && a.error_items == 1 && listed(&a, "a") && listed(&a, "ro/f") && !truncated(&a));
        SAME(stat_one(room, "locked", 2).kind, KF_PERMISSION_DENIED);
        SAME(stat_one(room, "file000", 1).kind, KF_PERMISSION_DENIED);
        CHECK(stat_one(room, "file000", 0).ok);
        CHECK(!read_text(room, "file000", &kind) && kind == KF_PERMISSION_DENIED);
        SAME(stat_one(room, "locked/a/b", 0).kind, KF_PERMISSION_DENIED);
    }
    struct answer a = finish(begin(room, KF_REMOVE, "s1", "locked", 1));
    SAME(a.kind, 0);
    struct kf_reader r = kf_reader(a.payload, a.payload_length);
    SAME(kf_get_u64(&r), 8);
    CHECK(stat_one(room, "keep/me", 0).ok && !stat_one(room, "locked", 0).ok);
    a = finish(begin(room, KF_REMOVE, "s1", "file000", 0));
    SAME(a.kind, 0);
}

static void add_line(struct kf_sha256 *s, const char *path, const char *text)
{
    struct kf_sha256 inner;
    uint8_t hash[32];
    char hex[66];
    kf_sha256_start(&inner);
    kf_sha256_add(&inner, text, strlen(text));
    kf_sha256_end(&inner, hash);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    kf_sha256_add(s, path, strlen(path) + 1);
    hex[64] = '\n';
    kf_sha256_add(s, hex, 65);
}

static void check_claims(const struct room *room)
{
    struct kf_sha256 s;
    uint8_t hash[32];
    put_dir(room, "c"), put_dir(room, "c/b"), put(room, "c/b/x", "one"), put(room, "c/b-x", "three"), put(room, "c/B", "");
    put(room, "c/.kf-abcdefgh.tmp", "hidden"), put_link(room, "x", "c/b/link");
    MUST(mkfifoat(room->root.fd, "c/fifo", 0600) == 0);
    put_link(room, "/workspace/c", "claim-dir"), put_link(room, "c/b/x", "claim-file"), put_link(room, "c/fifo", "claim-fifo");
    put_link(room, "../secret", "claim-out"), put_link(room, "gone", "claim-gone"), put_link(room, "c/b/link", "claim-link");
    kf_sha256_start(&s);
    add_line(&s, "B", ""), add_line(&s, "b-x", "three"), add_line(&s, "b/x", "one"); /* by bytes: '-' before '/' */
    kf_sha256_end(&s, hash);
    struct item item = stat_one(room, "c", 2);
    CHECK(item.ok && item.type == 2 && item.entries == 3 && item.size == 8 && item.has == 6 && memcmp(item.hash, hash, 32) == 0);
    item = stat_one(room, "claim-dir", 2);
    CHECK(item.ok && item.type == 3 && item.target_type == 2 && item.size == 8 && item.has == 15 && memcmp(item.hash, hash, 32) == 0);
    item = stat_one(room, "claim-file", 2);
    CHECK(item.ok && item.type == 3 && item.target_type == 1 && item.size == 3 && item.has == 11);
    item = stat_one(room, "claim-link", 2);
    CHECK(item.ok && item.size == 3 && strcmp(item.target, "c/b/link") == 0);
    SAME(stat_one(room, "claim-out", 2).kind, KF_PATH_ESCAPE);
    SAME(stat_one(room, "claim-gone", 2).kind, KF_NOT_FOUND);
    SAME(stat_one(room, "claim-fifo", 2).kind, KF_NOT_REGULAR);
    item = stat_one(room, "claim-file", 1);
    CHECK(item.ok && item.has == 1 && item.size == 5); /* a digest alone does not follow */
    item = stat_one(room, "c", 1);
    CHECK(item.ok && item.has == 0);
    item = stat_one(room, "c/b/x", 1);
    CHECK(item.ok && item.has == 2 && item.size == 3);
    int fd = openat(room->root.fd, "c/huge", O_WRONLY | O_CREAT, 0600);
    if (ftruncate(fd, (off_t)5 << 30) == 0) {
        item = stat_one(room, "c", 2);
        CHECK(item.ok && item.entries == 4 && item.size == 8 + ((uint64_t)5 << 30) && item.has == 4);
    }
    close(fd);
}

/* Thousands of paths in one request: in order, in slices. */
static void check_batches(const struct room *room)
{
    enum { PATHS = 8000 };
    static uint8_t payload[KF_MAX_PAYLOAD];
    struct kf_writer w = kf_writer(payload, sizeof payload);
    kf_put_u8(&w, 0);
    kf_put_u32(&w, PATHS);
    put(room, "batch", "x");
    for (int i = 0; i < PATHS; i++)
        kf_put_bytes(&w, i % 2 ? "batch" : "no-batch", i % 2 ? 5 : 8);
    struct kf_op *op = kf_op_new(&room->root, KF_STAT, 7, payload, kf_written(&w));
    MUST(op);
    memset(payload, 0xee, sizeof payload); /* the op keeps its own copy */
    struct answer a = finish(op);
    CHECK(a.kind == 0 && a.item_count == PATHS && a.error_items == PATHS / 2 && a.payload_length == 0);
    CHECK(a.longest_emit <= KF_STEP_BYTES);
    for (int i = 0; i < KEPT_ITEMS; i++)
        CHECK(a.items[i].ok == (i % 2 == 1) && strcmp(a.items[i].path, i % 2 ? "batch" : "no-batch") == 0);
}

/* A claim of much content is made in short steps, and can be given up at any of them. */
static void check_slices(const struct room *room)
{
    put_dir(room, "s");
    int fd = openat(room->root.fd, "s/big", O_WRONLY | O_CREAT, 0600);
    MUST(fd >= 0 && ftruncate(fd, 64 << 20) == 0);
    close(fd);
    struct answer a = {.terminals = 0};
    struct kf_emitter out = {.channel = &a, .emit = take_frame};
    struct kf_op *op = begin(room, KF_STAT, "14s", 2, 1u, "s");
    CHECK(kf_op_step(op, &out) == KF_AGAIN && kf_op_step(op, &out) == KF_AGAIN && a.terminals == 0);
    kf_op_free(op);
    a = finish(begin(room, KF_STAT, "14s", 2, 1u, "s"));
    CHECK(a.items[0].ok && a.items[0].size == 64 << 20 && a.steps > 10);
}

int main(void)
{
    for (int openat2 = 1; openat2 >= 0; openat2--) {
        struct room room = room_make(openat2);
        check_lists(&room);
        check_wide(&room);
        check_deep(&room);
        check_locked(&room);
        check_claims(&room);
        check_batches(&room);
        check_slices(&room);
        room_remove(&room);
    }
    DONE();
}
