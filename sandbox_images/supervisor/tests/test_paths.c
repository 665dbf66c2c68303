/* The link matrix and odd paths, with openat2 and with the walk: both must say the same. */
#include "room.h"

#define OK 0

/* A path, and the kind that each request answers (0: works). */
static const struct row { const char *path; int read, stat, write; } matrix[] = {
    {"file", OK, OK, OK},
    {"/workspace/file", OK, OK, OK},
    {"//workspace//file", OK, OK, OK},
    {"./dir/.././file", OK, OK, OK},
    {"dir/inner", OK, OK, OK},
    {"to-file", OK, OK, OK},
    {"abs-file", OK, OK, OK},
    {"abs-chain", OK, OK, OK},
    {"to-dir/inner", OK, OK, OK},
    {"abs-dir/inner", OK, OK, OK},
    {"dir/up-file", OK, OK, OK},
    {"to-dir/../file", OK, OK, OK},
    {"/workspace", KF_IS_DIRECTORY, OK, KF_IS_DIRECTORY},
    {".", KF_IS_DIRECTORY, OK, KF_IS_DIRECTORY},
    {"dir", KF_IS_DIRECTORY, OK, KF_IS_DIRECTORY},
    {"dir/", KF_IS_DIRECTORY, OK, KF_IS_DIRECTORY},
    {"dir/..", KF_IS_DIRECTORY, OK, KF_IS_DIRECTORY},
    {"to-dir", KF_IS_DIRECTORY, OK, KF_IS_DIRECTORY},
    {"abs-root", KF_IS_DIRECTORY, OK, KF_IS_DIRECTORY},
    {"to-dir/", KF_IS_DIRECTORY, OK, KF_IS_DIRECTORY},
    {"file/", KF_NOT_A_DIRECTORY, KF_NOT_A_DIRECTORY, KF_IS_DIRECTORY},
    {"file/x", KF_NOT_A_DIRECTORY, KF_NOT_A_DIRECTORY, KF_NOT_A_DIRECTORY},
    {"file/..", KF_NOT_A_DIRECTORY, KF_NOT_A_DIRECTORY, KF_NOT_A_DIRECTORY},
    {"none/x", KF_NOT_FOUND, KF_NOT_FOUND, KF_NOT_FOUND},
    {"none/../file", KF_NOT_FOUND, KF_NOT_FOUND, KF_NOT_FOUND},
    {"dangling", KF_NOT_FOUND, OK, KF_NOT_FOUND},
    {"dangling/x", KF_NOT_FOUND, KF_NOT_FOUND, KF_NOT_FOUND},
    {"abs-dangling", KF_NOT_FOUND, OK, KF_NOT_FOUND},
    {"..", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"../..", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"../secret", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"dir/../../secret", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"to-dir/../../secret", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"/workspace/../secret", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"/workspace-evil/x", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"/etc/passwd", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"/", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"to-outside", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"abs-outside", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"abs-evil", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"chain-outside", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"to-parent/secret", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"new-outside", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"abs-sneaky", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"loop-a", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"loop-a/x", KF_PATH_ESCAPE, KF_PATH_ESCAPE, KF_PATH_ESCAPE},
    {"self", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"magic", KF_PATH_ESCAPE, OK, KF_PATH_ESCAPE},
    {"", KF_INVALID, KF_INVALID, KF_INVALID},
    {"fifo", KF_NOT_REGULAR, OK, KF_NOT_REGULAR},
    {"to-fifo", KF_NOT_REGULAR, OK, KF_NOT_REGULAR},
};

static void furnish(const struct room *room)
{
    put_dir(room, "dir");
    put(room, "file", "old");
    put(room, "dir/inner", "old");
    static const char *links[][2] = {
        {"file", "to-file"}, {"/workspace/file", "abs-file"}, {"/workspace/./abs-file", "abs-chain"}, {"dir", "to-dir"},
        {"/workspace/dir/", "abs-dir"}, {"/workspace", "abs-root"}, {"../file", "dir/up-file"}, {"none", "dangling"},
        {"/workspace/none", "abs-dangling"}, {"../secret", "to-outside"}, {"/etc/passwd", "abs-outside"}, {"..", "to-parent"},
        {"/workspace-evil/x", "abs-evil"}, {"to-outside", "chain-outside"}, {"../new", "new-outside"},
        {"/workspace/dir/../../secret", "abs-sneaky"}, {"loop-b", "loop-a"}, {"loop-a", "loop-b"}, {"self", "self"},
        {"/proc/self/root/etc/passwd", "magic"}, {"fifo", "to-fifo"},
    };
    for (size_t i = 0; i < sizeof links / sizeof *links; i++)
        put_link(room, links[i][0], links[i][1]);
    MUST(mkfifoat(room->root.fd, "fifo", 0666) == 0);
}

static void expect(const char *what, const char *path, int got, int wanted)
{
    if (got != wanted)
        fprintf(stderr, "%s %s: kind %d, not %d\n", what, path, got, wanted);
    CHECK(got == wanted);
}

static void check_row(const struct room *room, const struct row *row)
{
    uint8_t kind;
    uint64_t start = kf_now_ns();
    const char *text = read_text(room, row->path, &kind);
    expect("read", row->path, kind, row->read);
    CHECK(!text || strcmp(text, "old") == 0);
    struct item item = stat_one(room, row->path, 0);
    expect("stat", row->path, item.ok ? 0 : item.kind, row->stat);
    CHECK(strcmp(item.path, row->path) == 0);
    struct answer a = write_text(room, row->path, "old", 0, 0, NULL);
    expect("write", row->path, a.kind, row->write);
    CHECK(kf_now_ns() - start < 2000000000u); /* nothing blocks, a FIFO least of all */
    int fd = kf_open_dir(&room->root, row->path, strlen(row->path), &kind);
    bool content = row->read == OK || row->read == KF_NOT_REGULAR; /* there, but no directory */
    expect("cd", row->path, fd < 0 ? kind : KF_IS_DIRECTORY, content ? KF_NOT_A_DIRECTORY : row->read);
    if (fd >= 0)
        close(fd);
}

/* One path after another in one request: what was found of the first says nothing wrong of the second. */
static void check_pairs(const struct room *room)
{
    size_t count = sizeof matrix / sizeof *matrix;
    for (size_t i = 0; i < count * count; i++) {
        const struct row *rows[] = {&matrix[i / count], &matrix[i % count]};
        struct answer a = finish(begin(room, KF_STAT, "14ss", 0, 2u, rows[0]->path, rows[1]->path));
        CHECK(a.kind == 0 && a.item_count == 2);
        for (int k = 0; k < 2; k++) {
            expect("stat of two", rows[k]->path, a.items[k].ok ? 0 : a.items[k].kind, rows[k]->stat);
            CHECK(strcmp(a.items[k].path, rows[k]->path) == 0);
        }
    }
}

static void check_matrix(bool openat2)
{
    struct room room = room_make(openat2);
    furnish(&room);
    for (size_t i = 0; i < sizeof matrix / sizeof *matrix; i++)
        check_row(&room, &matrix[i]);
    check_pairs(&room);
    SAME(count_temporaries(&room, "."), 0);
    struct item item = stat_one(&room, "to-file", 0); /* written through, still a link */
    CHECK(item.type == 3 && strcmp(item.target, "file") == 0);
    char path[128];
    struct stat st;
    snprintf(path, sizeof path, "%s/new", room.outer);
    CHECK(stat(path, &st) != 0); /* nothing was made outside */
    room_remove(&room);
}

/* Requests that act on the link itself. */
static void check_links_themselves(bool openat2)
{
    struct room room = room_make(openat2);
    furnish(&room);
    struct answer a = finish(begin(&room, KF_LIST, "s441", "to-dir", 1u, 10u, 0));
    SAME(a.kind, KF_NOT_A_DIRECTORY);
    a = finish(begin(&room, KF_REMOVE, "s1", "to-dir/", 1));
    SAME(a.kind, KF_NOT_A_DIRECTORY);
    a = finish(begin(&room, KF_REMOVE, "s1", "to-dir", 1));
    SAME(a.kind, 0);
    CHECK(stat_one(&room, "dir/inner", 0).ok);
    a = finish(begin(&room, KF_RENAME, "ss1", "abs-outside", "moved", 0));
    SAME(a.kind, 0);
    CHECK(strcmp(result_record(&a).target, "/etc/passwd") == 0);
    static const struct { const char *path; uint8_t kind; } bad[] = {
        {".", KF_INVALID}, {"dir/..", KF_INVALID}, {"..", KF_PATH_ESCAPE}, {"/workspace", KF_INVALID}, {"/", KF_PATH_ESCAPE},
        {"to-parent/secret", KF_PATH_ESCAPE}, {"to-parent/ws", KF_PATH_ESCAPE}, {"nothing", KF_NOT_FOUND},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        a = finish(begin(&room, KF_REMOVE, "s1", bad[i].path, 1));
        expect("remove", bad[i].path, a.kind, bad[i].kind);
        a = finish(begin(&room, KF_RENAME, "ss1", bad[i].path, "x", 1));
        expect("rename", bad[i].path, a.kind, bad[i].kind);
        a = finish(begin(&room, KF_RENAME, "ss1", "file", bad[i].path, 1));
        if (bad[i].kind != KF_NOT_FOUND)
            expect("rename to", bad[i].path, a.kind, bad[i].kind);
        a = finish(begin(&room, KF_SYMLINK, "ss", "x", bad[i].path));
        if (bad[i].kind != KF_NOT_FOUND)
            expect("symlink at", bad[i].path, a.kind, bad[i].kind);
    }
    room_remove(&room);
}

static void check_symlink_targets(bool openat2)
{
    static const struct { const char *target, *path; uint8_t kind; } rows[] = {
        {"file", "l1", OK}, {"../file", "dir/l2", OK}, {"../../x", "dir/l3", KF_PATH_ESCAPE}, {"..", "l4", KF_PATH_ESCAPE},
        {"/workspace/any/../thing", "l5", OK}, {"/workspace/../x", "l6", KF_PATH_ESCAPE}, {"/etc/passwd", "l7", KF_PATH_ESCAPE},
        {"a/../../x", "l8", KF_PATH_ESCAPE}, {"", "l9", KF_INVALID}, {"x", "file", KF_CONFLICT}, {"x", "none/l", KF_NOT_FOUND},
        {"../x", "dir/here/l10", KF_PATH_ESCAPE}, /* dir/here is the root: the link lies there, whatever its path says */
        {"x/../../ok", "dir/l11", OK}, {"x", "l12/", KF_INVALID},
    };
    struct room room = room_make(openat2);
    put_dir(&room, "dir");
    put(&room, "file", "x");
    put_link(&room, "..", "dir/here");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct answer a = finish(begin(&room, KF_SYMLINK, "ss", rows[i].target, rows[i].path));
        expect("symlink", rows[i].path, a.kind, rows[i].kind);
        CHECK(a.kind || strcmp(result_record(&a).target, rows[i].target) == 0);
    }
    room_remove(&room);
}

static void check_odd_text(bool openat2)
{
    struct room room = room_make(openat2);
    static char path[70000];
    put(&room, "f", "old");
    struct answer a = finish(begin(&room, KF_STAT, "14b", 0, 1u, "f\0x", (size_t)3));
    SAME(a.items[0].kind, KF_INVALID);
    memset(path, 'n', 256);
    a = finish(begin(&room, KF_STAT, "14b", 0, 1u, path, (size_t)256));
    SAME(a.items[0].kind, KF_INVALID);
    for (size_t i = 0; i + 1 < sizeof path; i += 2) /* "./././…f" */
        memcpy(path + i, "./", 2);
    path[65534] = 'f';
    a = finish(begin(&room, KF_STAT, "14b", 0, 1u, path, (size_t)65535));
    CHECK(a.items[0].ok && a.items[0].path_length == 65535 && a.items[0].type == 1);
    a = finish(begin(&room, KF_STAT, "14b", 0, 1u, path, (size_t)65537));
    CHECK(!a.items[0].ok && a.items[0].kind == KF_INVALID && a.items[0].path_length == 65536);
    room_remove(&room);
}

/* Forty links are followed, forty-one are not; also absolute ones, which only the walk resolves. */
static void check_chains(bool openat2, const char *prefix)
{
    struct room room = room_make(openat2);
    char name[32], target[64];
    put(&room, "l0", "old");
    for (int i = 1; i <= 41; i++) {
        snprintf(name, sizeof name, "l%d", i);
        snprintf(target, sizeof target, "%sl%d", prefix, i - 1);
        put_link(&room, target, name);
    }
    uint8_t kind;
    CHECK(read_text(&room, "l40", &kind) && kind == 0);
    CHECK(!read_text(&room, "l41", &kind) && kind == KF_PATH_ESCAPE);
    room_remove(&room);
}

int main(void)
{
    for (int openat2 = 1; openat2 >= 0; openat2--) {
        check_matrix(openat2);
        check_links_themselves(openat2);
        check_symlink_targets(openat2);
        check_odd_text(openat2);
        check_chains(openat2, "");
        check_chains(openat2, "/workspace/");
    }
    DONE();
}
