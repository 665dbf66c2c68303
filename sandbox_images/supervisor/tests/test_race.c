/* Swap races: a process exchanges a directory, a file, a link and a FIFO under the feet of every request. Nothing
 * outside the root may be read, made, changed or removed, and nothing may block. */
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "room.h"
#include "sha256.h"

#define EXCHANGE 2u
#define READS 20000

static pid_t racer;

/* Exchange pairs of names for ever. */
static void race(const struct room *room, const char *const pairs[][2], size_t count)
{
    racer = fork();
    MUST(racer >= 0);
    if (racer > 0)
        return;
    for (size_t i = 0;; i++) {
        const char *const *pair = pairs[i % count];
        if (syscall(SYS_renameat2, room->root.fd, pair[0], room->root.fd, pair[1], EXCHANGE) != 0 && errno == EINVAL)
            _exit(1);
        if (getppid() == 1)
            _exit(0);
    }
}

static void stop(void)
{
    int status;
    MUST(kill(racer, SIGKILL) == 0 && waitpid(racer, &status, 0) == racer);
    CHECK(WIFSIGNALED(status)); /* it raced to the end */
}

/* Kinds that a request under such a race may answer. */
static bool fair(uint8_t kind)
{
    switch (kind) {
    case 0:
    case KF_PATH_ESCAPE:
    case KF_NOT_FOUND:
    case KF_NOT_REGULAR:
    case KF_NOT_A_DIRECTORY:
    case KF_IS_DIRECTORY:
    case KF_CONFLICT:
    case KF_BUSY: return true;
    default: fprintf(stderr, "an unfair kind: %d\n", kind); return false;
    }
}

/* outer/inner-f is what a link to the outside shows; outside/ holds what must not be touched. */
static void furnish(const struct room *room)
{
    char path[128];
    snprintf(path, sizeof path, "%s/f", room->outer);
    FILE *f = fopen(path, "w");
    MUST(f && fputs("SECRET", f) >= 0 && fclose(f) == 0);
    put_dir(room, "x"), put(room, "x/f", "inside");
    put_link(room, "..", "y");
    put(room, "file", "inside"), put_link(room, "../secret", "file2");
    put_dir(room, "a"), put_dir(room, "a/b"), put_dir(room, "a/b/c"), put_dir(room, "other"), put_dir(room, "other/c");
    put(room, "f", "top");
    MUST(mkfifoat(room->root.fd, "fifo", 0666) == 0);
}

static void clean(const struct room *room)
{
    char path[128];
    snprintf(path, sizeof path, "%s/f", room->outer);
    MUST(unlink(path) == 0);
}

static int names_outside(const struct room *room)
{
    char command[256];
    int n = -1;
    snprintf(command, sizeof command, "ls -A '%s' | wc -l", room->outer);
    FILE *f = popen(command, "r");
    MUST(f && fscanf(f, "%d", &n) == 1);
    pclose(f);
    return n;
}

static const char *const pairs[][2] = {{"x", "y"}, {"file", "file2"}, {"file", "fifo"}, {"a/b", "other"}};

static void race_reads(const struct room *room, unsigned *escapes, unsigned *good)
{
    static const char *paths[] = {"x/f", "file", "/workspace/x/f", "a/b/../../f", "a/b/c/../../../f"};
    uint8_t kind;
    for (int i = 0; i < READS; i++) {
        const char *text = read_text(room, paths[i % 5], &kind);
        *escapes += text && strcmp(text, "inside") != 0 && strcmp(text, "top") != 0;
        *good += text != NULL;
        if (!fair(kind))
            CHECK(!"a fair answer");
    }
}

static void race_the_rest(const struct room *room)
{
    struct answer a;
    char path[128];
    struct stat st;
    for (int i = 0; i < 400; i++) {
        a = write_text(room, i % 2 ? "x/w" : "x/p/q/w", "written", WRITE_PARENTS, 0, NULL);
        CHECK(fair(a.kind));
        a = write_text(room, "file", "inside", 0, 0, NULL);
        CHECK(fair(a.kind));
        a = finish(begin(room, KF_MAKE_DIR, "s41", "x/m/n", 0u, 1));
        CHECK(fair(a.kind));
        a = finish(begin(room, KF_RENAME, "ss1", "x/w", "x/w2", 1));
        CHECK(fair(a.kind));
        a = finish(begin(room, KF_SYMLINK, "ss", "f", "x/s"));
        CHECK(fair(a.kind));
        a = finish(begin(room, KF_LIST, "s441", "x", UINT32_MAX, 50u, 0));
        CHECK(fair(a.kind));
        for (uint64_t k = 0; k < a.item_count && k < KEPT_ITEMS; k++)
            CHECK(strcmp(a.items[k].path, "secret") != 0 && strcmp(a.items[k].path, "ws") != 0);
        a = finish(begin(room, KF_STAT, "14s", 2, 1u, "x"));
        CHECK(fair(a.kind) && (!a.items[0].ok || a.items[0].type == 2));
        a = finish(begin(room, KF_STAT, "14ss", 0, 2u, "x/f", "x/secret"));
        CHECK(a.item_count == 2 && fair(a.items[0].ok ? 0 : a.items[0].kind) && !a.items[1].ok);
        a = finish(begin(room, KF_REMOVE, "s1", i % 2 ? "x/p" : "x/m", 1));
        CHECK(fair(a.kind));
    }
    snprintf(path, sizeof path, "%s/f", room->outer);
    CHECK(stat(path, &st) == 0 && st.st_size == 6);
    SAME(names_outside(room), 3);
}

/* Remove a tree whose directories are exchanged with links to the outside all the while. */
static void race_removal(const struct room *room)
{
    static const char *const inner[][2] = {{"t/x", "y"}, {"t/a/x", "y"}};
    for (int i = 0; i < 60; i++) {
        put_dir(room, "t"), put_dir(room, "t/a"), put_dir(room, "t/x"), put_dir(room, "t/a/x"), put(room, "t/a/x/f", "1"), put(room, "t/x/f", "1");
        race(room, inner, 2);
        struct answer a = finish(begin(room, KF_REMOVE, "s1", "t", 1));
        CHECK(fair(a.kind));
        stop();
        a = finish(begin(room, KF_REMOVE, "s1", "t", 1));
        CHECK(a.kind == 0 || a.kind == KF_NOT_FOUND);
        a = finish(begin(room, KF_REMOVE, "s1", "y", 1));
        CHECK(fair(a.kind));
        put_link(room, "..", "y");
    }
    SAME(names_outside(room), 3);
}

/* A file that grows and shrinks while it is sent: the digest is of what was sent. */
static void race_content(const struct room *room)
{
    put(room, "moving", "");
    int fd = openat(room->root.fd, "moving", O_WRONLY);
    racer = fork();
    MUST(fd >= 0 && racer >= 0);
    for (unsigned i = 1; racer == 0 && getppid() != 1; i++)
        if (ftruncate(fd, (i * 7919u) % 3000000u) != 0 || pwrite(fd, &i, 4, i % 100000u) != 4)
            _exit(1);
    for (int i = 0; i < 40; i++) {
        struct answer a = finish(begin(room, KF_READ, "s8818", "moving", (uint64_t)0, (uint64_t)4000000, 1, UINT64_MAX));
        struct kf_sha256 s;
        uint8_t hash[32];
        kf_sha256_start(&s);
        kf_sha256_add(&s, a.bytes, a.byte_count);
        kf_sha256_end(&s, hash);
        CHECK(a.kind == 0 && memcmp(a.payload + 1, hash, 32) == 0);
        answer_free(&a);
        CHECK(fair(stat_one(room, "moving", 3).kind));
    }
    close(fd);
    stop();
}

int main(void)
{
    alarm(300); /* a request that blocks ends the test */
    for (int openat2 = 1; openat2 >= 0; openat2--) {
        struct room room = room_make(openat2);
        unsigned escapes = 0, good = 0;
        furnish(&room);
        race(&room, pairs, 4);
        race_reads(&room, &escapes, &good);
        race_the_rest(&room);
        stop();
        SAME(escapes, 0);
        CHECK(good > READS / 10 && good < READS);
        printf("test_race: openat2 %d: %d reads under the race, %u right, %u escapes\n", openat2, READS, good, escapes);
        MUST(unlinkat(room.root.fd, "y", 0) == 0 || finish(begin(&room, KF_REMOVE, "s1", "y", 1)).kind == 0);
        put_link(&room, "..", "y");
        race_removal(&room);
        race_content(&room);
        clean(&room);
        room_remove(&room);
    }
    DONE();
}
