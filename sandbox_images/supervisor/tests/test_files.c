/* READ, WRITE, MAKE_DIR, RENAME: contents, credit, windows, conflicts, names and sizes. */
#include <errno.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <signal.h>

#include "room.h"
#include "sha256.h"

static void hash_text(const char *text, uint8_t hash[32])
{
    struct kf_sha256 s;
    kf_sha256_start(&s);
    kf_sha256_add(&s, text, strlen(text));
    kf_sha256_end(&s, hash);
}

static mode_t mode_of(const struct room *room, const char *name)
{
    struct stat st;
    MUST(fstatat(room->root.fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0);
    return st.st_mode & 07777;
}

static void check_reads(const struct room *room)
{
    uint8_t hash[32];
    put(room, "ten", "0123456789");
    static const struct { uint64_t offset, limit; const char *text; } parts[] = {
        {0, UINT64_MAX, "0123456789"}, {3, 4, "3456"}, {9, 100, "9"}, {10, 5, ""}, {1000, UINT64_MAX, ""}, {2, 0, ""},
        {INT64_MAX, UINT64_MAX, ""},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct answer a = finish(begin(room, KF_READ, "s8818", "ten", parts[i].offset, parts[i].limit, 1, UINT64_MAX));
        hash_text(parts[i].text, hash);
        CHECK(a.kind == 0 && a.byte_count == strlen(parts[i].text) && a.item_count == 1 && a.items[0].size == 10);
        CHECK(a.byte_count == 0 || memcmp(a.bytes, parts[i].text, a.byte_count) == 0);
        CHECK(a.payload_length == 33 && a.payload[0] == 1 && memcmp(a.payload + 1, hash, 32) == 0);
        answer_free(&a);
    }
    struct answer a = finish(begin(room, KF_READ, "s8818", "ten", UINT64_MAX, (uint64_t)1, 0, UINT64_MAX));
    SAME(a.kind, KF_INVALID);
    a = finish(begin(room, KF_READ, "s8818", "ten", (uint64_t)0, UINT64_MAX, 0, UINT64_MAX));
    CHECK(a.payload_length == 1 && a.payload[0] == 0);
    answer_free(&a);
}

static void check_credit_and_steps(const struct room *room)
{
    int fd = openat(room->root.fd, "big", O_WRONLY | O_CREAT, 0600);
    MUST(fd >= 0 && ftruncate(fd, 3 << 20) == 0);
    struct answer a = {.terminals = 0};
    struct kf_op *op = begin(room, KF_READ, "s8818", "big", (uint64_t)0, UINT64_MAX, 0, (uint64_t)1000);
    go_on(op, &a);
    CHECK(a.last == KF_WAIT && a.byte_count == 1000);
    kf_op_credit(op, 999); /* less than before changes nothing */
    go_on(op, &a);
    CHECK(a.last == KF_WAIT && a.byte_count == 1000);
    kf_op_credit(op, 2000000);
    go_on(op, &a);
    CHECK(a.last == KF_WAIT && a.byte_count == 2000000);
    MUST(ftruncate(fd, 2500000) == 0); /* shrinks meanwhile: what is there is sent */
    kf_op_credit(op, UINT64_MAX);
    go_on(op, &a);
    CHECK(a.last == KF_DONE && a.kind == 0 && a.byte_count == 2500000 && a.longest_emit <= KF_STEP_BYTES);
    kf_op_free(op);
    answer_free(&a);
    close(fd);
}

/* A file of 8 TiB that is all hole: looked at and read in part at once, and its claim has no hash. */
static void check_sparse(const struct room *room)
{
    int fd = openat(room->root.fd, "sparse", O_WRONLY | O_CREAT, 0600);
    MUST(fd >= 0);
    if (ftruncate(fd, (off_t)8 << 40) == 0) {
        uint64_t start = kf_now_ns();
        struct item item = stat_one(room, "sparse", 3);
        CHECK(item.ok && item.size == (uint64_t)8 << 40 && !(item.has & 2));
        struct answer a = finish(begin(room, KF_READ, "s8818", "sparse", (uint64_t)7 << 40, (uint64_t)5000, 1, UINT64_MAX));
        CHECK(a.kind == 0 && a.byte_count == 5000 && kf_now_ns() - start < 1000000000u);
        answer_free(&a);
    }
    close(fd);
}

static void check_writes(const struct room *room)
{
    uint8_t hash[32], kind;
    struct answer a = write_text(room, "new", "unhashed", 0, 0, NULL);
    CHECK(a.kind == 0 && result_record(&a).has == 0);
    a = write_text(room, "new", "hello", WRITE_DIGEST, 0, NULL);
    struct item item = result_record(&a);
    hash_text("hello", hash);
    CHECK(a.kind == 0 && item.size == 5 && item.has == 2 && memcmp(item.hash, hash, 32) == 0 && item.type == 1);
    SAME(mode_of(room, "new"), 0644);
    CHECK(strcmp(read_text(room, "new", &kind), "hello") == 0);
    MUST(fchmodat(room->root.fd, "new", 0751, 0) == 0);
    MUST(linkat(room->root.fd, "new", room->root.fd, "hard", 0) == 0);
    a = write_text(room, "new", "again", 0, 0600, NULL);
    CHECK(a.kind == 0);
    SAME(mode_of(room, "new"), 0751); /* the replaced file's mode */
    CHECK(strcmp(read_text(room, "hard", &kind), "hello") == 0); /* the other name keeps the old content */
    a = write_text(room, "p/q/r/file", "deep", WRITE_PARENTS, 0640, NULL);
    CHECK(a.kind == 0);
    SAME(mode_of(room, "p/q/r/file"), 0640);
    SAME(mode_of(room, "p/q"), 0755);
    a = write_text(room, "no/parent", "x", 0, 0, NULL);
    SAME(a.kind, KF_NOT_FOUND);
    a = write_text(room, "new/x", "x", WRITE_PARENTS, 0, NULL);
    SAME(a.kind, KF_NOT_A_DIRECTORY);
    a = write_text(room, "new", "x", 0, 010000, NULL);
    SAME(a.kind, KF_INVALID);
    put_link(room, "none", "dead");
    a = write_text(room, "dead/x/y", "x", WRITE_PARENTS, 0, NULL); /* parents are not made through a dangling link */
    SAME(a.kind, KF_NOT_FOUND);
    a = write_text(room, "p/../p2/./f", "x", WRITE_PARENTS, 0, NULL);
    SAME(a.kind, 0);
    CHECK(strcmp(read_text(room, "p2/f", &kind), "x") == 0);
    SAME(count_temporaries(room, "."), 0);
}

static void check_conflicts(const struct room *room)
{
    uint8_t old[32], absent[32] = {0}, kind;
    put(room, "doc", "version 1");
    hash_text("version 1", old);
    struct answer a = write_text(room, "doc", "x", WRITE_EXCLUSIVE, 0, NULL);
    SAME(a.kind, KF_CONFLICT);
    a = write_text(room, "doc", "x", 0, 0, absent);
    SAME(a.kind, KF_CONFLICT);
    a = write_text(room, "doc2", "fresh", WRITE_EXCLUSIVE, 0, NULL);
    SAME(a.kind, 0);
    a = write_text(room, "doc3", "fresh", 0, 0, absent);
    SAME(a.kind, 0);
    a = write_text(room, "doc4", "x", 0, 0, old);
    SAME(a.kind, KF_CONFLICT);
    a = write_text(room, "doc", "version 2", 0, 0, old);
    SAME(a.kind, 0);
    a = write_text(room, "doc", "version 3", 0, 0, old);
    SAME(a.kind, KF_CONFLICT);
    CHECK(strcmp(read_text(room, "doc", &kind), "version 2") == 0);
    SAME(count_temporaries(room, "."), 0);
}

/* What happens between the first byte and the last: the comparison is made at the rename. */
static void check_late_conflicts(const struct room *room)
{
    static const char *kinds[] = {"exclusive", "absent", "changed", "fifo", "directory"};
    uint8_t match[32];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct answer a = {.terminals = 0};
        struct kf_emitter out = {.channel = &a, .emit = take_frame};
        struct kf_op *op;
        unlinkat(room->root.fd, "late", 0);
        memset(match, 0, sizeof match);
        if (i >= 2) {
            put(room, "late", "1");
            hash_text("1", match);
        }
        op = i == 0 ? begin(room, KF_WRITE, "s14", "late", WRITE_EXCLUSIVE, 0u)
                    : begin(room, KF_WRITE, "s14h", "late", WRITE_IF_MATCH, 0u, match);
        go_on(op, &a);
        CHECK(a.last == KF_WAIT && kf_op_data(op, (const uint8_t *)"x", 1, &out));
        if (i >= 3)
            MUST(unlinkat(room->root.fd, "late", 0) == 0);
        if (i == 3)
            MUST(mkfifoat(room->root.fd, "late", 0600) == 0);
        else if (i == 4)
            put_dir(room, "late");
        else
            put(room, "late", "2");
        CHECK(kf_op_eof(op) && !kf_op_eof(op) && !kf_op_data(op, (const uint8_t *)"y", 1, &out));
        go_on(op, &a);
        SAME(a.kind, KF_CONFLICT);
        kf_op_free(op);
    }
    MUST(unlinkat(room->root.fd, "late", AT_REMOVEDIR) == 0);
    SAME(count_temporaries(room, "."), 0);
}

static void check_windows(const struct room *room)
{
    static uint8_t block[KF_MAX_PAYLOAD];
    struct answer a = {.terminals = 0};
    struct kf_emitter out = {.channel = &a, .emit = take_frame};
    struct kf_op *op = begin(room, KF_WRITE, "s14", "window", 0, 0u);
    for (int i = 0; i < 40; i++) /* 10 MiB, never over what was granted */
        CHECK(kf_op_data(op, block, sizeof block, &out));
    CHECK(a.window == 40 * sizeof block + (1 << 20));
    SAME(count_temporaries(room, "."), 1);
    struct answer list = finish(begin(room, KF_LIST, "s441", ".", UINT32_MAX, 100000u, 0));
    for (uint64_t i = 0; i < list.item_count && i < KEPT_ITEMS; i++)
        CHECK(strncmp(list.items[i].path, ".kf-", 4) != 0);
    kf_op_free(op); /* the channel is gone */
    SAME(count_temporaries(room, "."), 0);
    CHECK(!stat_one(room, "window", 0).ok);
    op = begin(room, KF_WRITE, "s14", "../window", 0, 0u); /* fails: nothing is granted, and too much is illegal */
    for (int i = 0; i < 4; i++)
        CHECK(kf_op_data(op, block, sizeof block, &out));
    CHECK(!kf_op_data(op, block, 1, &out));
    kf_op_free(op);
}

static void check_full(const struct room *room)
{
    struct rlimit old, small;
    MUST(getrlimit(RLIMIT_FSIZE, &old) == 0);
    small = old;
    small.rlim_cur = 3;
    signal(SIGXFSZ, SIG_IGN);
    MUST(setrlimit(RLIMIT_FSIZE, &small) == 0);
    struct answer a = write_text(room, "ten", "too long", 0, 0, NULL);
    MUST(setrlimit(RLIMIT_FSIZE, &old) == 0);
    SAME(a.kind, KF_TOO_LARGE);
    uint8_t kind;
    CHECK(strcmp(read_text(room, "ten", &kind), "0123456789") == 0);
    SAME(count_temporaries(room, "."), 0);
}

static void check_names(const struct room *room)
{
    static char longest[256];
    memset(longest, 'n', 255);
    const char *names[] = {"\xff\xfe", "two\nlines", "\x1b]0;x\a", "-rf", "*", "$(id)", "...", " ", "a b", "caf\xc3\xa9", "cafe\xcc\x81",
                           "\xe2\x80\xae" "txt", "Case", "case", "\\", "\"", longest, ".kf-short.tmp"};
    put_dir(room, "names");
    size_t count = sizeof names / sizeof *names;
    char path[300];
    uint8_t kind;
    for (size_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "names/%s", names[i]);
        struct answer a = write_text(room, path, names[i], 0, 0, NULL);
        CHECK(a.kind == 0);
        const char *text = read_text(room, path, &kind);
        CHECK(text && strcmp(text, names[i]) == 0);
    }
    struct answer a = finish(begin(room, KF_LIST, "s441", "names", 1u, 100u, 0));
    SAME(a.item_count, count);
    for (size_t i = 0; i < count; i++) {
        int seen = 0;
        for (size_t k = 0; k < a.item_count; k++)
            seen += a.items[k].path_length == strlen(names[i]) && strcmp(a.items[k].path, names[i]) == 0;
        SAME(seen, 1);
        snprintf(path, sizeof path, "names/%s", names[i]);
        struct answer gone = finish(begin(room, KF_REMOVE, "s1", path, 0));
        SAME(gone.kind, 0);
    }
    a = finish(begin(room, KF_REMOVE, "s1", "names", 0));
    SAME(a.kind, 0);
}

static void check_not_regular(const struct room *room)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", room->inside);
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    MUST(s >= 0 && bind(s, (struct sockaddr *)&address, sizeof address) == 0);
    MUST(mkfifoat(room->root.fd, "pipe", 0666) == 0);
    const char *paths[] = {"socket", "pipe"};
    uint8_t kind;
    for (int i = 0; i < 2; i++) {
        CHECK(!read_text(room, paths[i], &kind) && kind == KF_NOT_REGULAR);
        CHECK(stat_one(room, paths[i], 1).type == 4);
        CHECK(stat_one(room, paths[i], 2).kind == KF_NOT_REGULAR);
        struct answer a = write_text(room, paths[i], "x", 0, 0, NULL);
        SAME(a.kind, KF_NOT_REGULAR);
    }
    close(s);
}

static void check_dirs_and_renames(const struct room *room)
{
    struct answer a = finish(begin(room, KF_MAKE_DIR, "s41", "m", 0700u, 0));
    CHECK(a.kind == 0 && result_record(&a).type == 2 && mode_of(room, "m") == 0700);
    static const struct { const char *path; int parents; uint8_t kind; } dirs[] = {
        {"m", 0, KF_CONFLICT}, {"m", 1, 0}, {"m/", 1, 0}, {"new/", 0, KF_NOT_A_DIRECTORY}, {"m/a/b/c", 0, KF_NOT_FOUND}, {"m/a/b/c", 1, 0},
        {"ten", 1, KF_CONFLICT}, {"ten/x", 1, KF_NOT_A_DIRECTORY}, {".", 1, 0}, {"..", 1, KF_PATH_ESCAPE}, {".", 0, KF_CONFLICT},
        {"m/z/", 0, 0},
    };
    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        a = finish(begin(room, KF_MAKE_DIR, "s41", dirs[i].path, 0u, dirs[i].parents));
        if (a.kind != dirs[i].kind)
            fprintf(stderr, "make_dir %s %d\n", dirs[i].path, dirs[i].parents);
        SAME(a.kind, dirs[i].kind);
    }
    put(room, "r1", "1"), put(room, "r2", "2"), put_dir(room, "empty"), put_dir(room, "full"), put(room, "full/x", "x");
    MUST(linkat(room->root.fd, "r1", room->root.fd, "r1b", 0) == 0);
    static const struct { const char *from, *to; int replace; uint8_t kind; } moves[] = {
        {"r1", "r2", 0, KF_CONFLICT}, {"r1", "r1", 0, KF_CONFLICT}, {"r1", "r1", 1, 0}, {"r1", "r1b", 1, 0}, {"r1b", "r2", 1, 0},
        {"r2", "r3", 0, 0}, {"r3", "none/x", 0, KF_NOT_FOUND}, {"r3", "empty", 1, KF_IS_DIRECTORY}, {"r3", "x/", 0, KF_NOT_A_DIRECTORY},
        {"empty", "r3", 1, KF_NOT_A_DIRECTORY}, {"empty", "full", 1, KF_CONFLICT}, {"full", "empty", 1, 0}, {"empty", "empty", 1, KF_INVALID},
        {"empty", "empty", 0, KF_INVALID}, {"empty", "empty/in", 0, KF_INVALID}, {"empty", "empty/in", 1, KF_INVALID}, {"empty/", "full/", 0, 0},
        {"gone", "x", 1, KF_NOT_FOUND},
    };
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++) {
        a = finish(begin(room, KF_RENAME, "ss1", moves[i].from, moves[i].to, moves[i].replace));
        if (a.kind != moves[i].kind)
            fprintf(stderr, "rename %s %s\n", moves[i].from, moves[i].to);
        SAME(a.kind, moves[i].kind);
    }
    CHECK(!stat_one(room, "r1", 0).ok && stat_one(room, "full/x", 0).ok);
}

int main(void)
{
    umask(077); /* modes in requests do not depend on it */
    for (int openat2 = 1; openat2 >= 0; openat2--) {
        struct room room = room_make(openat2);
        check_reads(&room);
        check_credit_and_steps(&room);
        check_sparse(&room);
        check_writes(&room);
        check_conflicts(&room);
        check_late_conflicts(&room);
        check_windows(&room);
        check_full(&room);
        check_names(&room);
        check_not_regular(&room);
        check_dirs_and_renames(&room);
        room_remove(&room);
    }
    DONE();
}
