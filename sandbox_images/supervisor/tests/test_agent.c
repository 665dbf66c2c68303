/* The agent's ids, run as root only: what the agent may not read is not read, what is made is the agent's, its own
 * locked directories are removed, and the ids are back after every call. As another user there is nothing to switch. */
#include <errno.h>

#include "room.h"

#define AGENT 12345

static void give(const struct room *room, const char *name, uid_t owner, mode_t mode)
{
    MUST(fchownat(room->root.fd, name, owner, owner, AT_SYMLINK_NOFOLLOW) == 0);
    MUST(fchmodat(room->root.fd, name, mode, 0) == 0);
}

static uid_t owner_of(const struct room *room, const char *name)
{
    struct stat st;
    MUST(fstatat(room->root.fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0);
    return st.st_uid;
}

static void check_rights(const struct room *room)
{
    uint8_t kind;
    put(room, "roots", "hidden"), put(room, "mine", "mine"), put_dir(room, "closed"), put_dir(room, "roots-dir");
    give(room, "roots", 0, 0600), give(room, "mine", AGENT, 0600), give(room, "closed", 0, 0700);
    CHECK(!read_text(room, "roots", &kind) && kind == KF_PERMISSION_DENIED);
    CHECK(strcmp(read_text(room, "mine", &kind), "mine") == 0);
    CHECK(stat_one(room, "roots", 0).ok); /* looking needs no right to the content */
    SAME(stat_one(room, "roots", 1).kind, KF_PERMISSION_DENIED);
    SAME(stat_one(room, "closed/x", 0).kind, KF_PERMISSION_DENIED);
    struct answer a = write_text(room, "roots-dir/f", "x", 0, 0, NULL);
    SAME(a.kind, KF_PERMISSION_DENIED);
    a = finish(begin(room, KF_REMOVE, "s1", "closed", 1));
    CHECK(a.kind == 0); /* empty, and the directory that holds it is the agent's */
    a = write_text(room, "p/q/f", "x", WRITE_PARENTS, 0600, NULL);
    CHECK(a.kind == 0 && owner_of(room, "p") == AGENT && owner_of(room, "p/q/f") == AGENT);
    a = write_text(room, "roots", "replaced", 0, 0, NULL); /* a rename needs rights to the directory only */
    CHECK(a.kind == 0 && owner_of(room, "roots") == AGENT);
    a = finish(begin(room, KF_LIST, "s441", ".", 1u, 100u, 0));
    CHECK(a.kind == 0 && a.item_count >= 4);
}

static void check_locked_removal(const struct room *room)
{
    put_dir(room, "t"), put_dir(room, "t/a"), put_dir(room, "t/a/b"), put(room, "t/a/b/f", "x"), put_dir(room, "t/ro"), put(room, "t/ro/f", "x");
    const char *names[] = {"t/a/b/f", "t/a/b", "t/a", "t/ro/f", "t/ro", "t"};
    for (size_t i = 0; i < 6; i++)
        give(room, names[i], AGENT, i == 4 ? 0555 : 0000);
    struct answer a = finish(begin(room, KF_LIST, "s441", "t", 1u, 100u, 0));
    SAME(a.kind, KF_PERMISSION_DENIED);
    a = finish(begin(room, KF_REMOVE, "s1", "t", 1));
    struct kf_reader r = kf_reader(a.payload, a.payload_length);
    CHECK(a.kind == 0 && kf_get_u64(&r) == 6);
    put_dir(room, "u"), put_dir(room, "u/roots"), put(room, "u/roots/f", "x");
    give(room, "u", AGENT, 0755);
    a = finish(begin(room, KF_REMOVE, "s1", "u", 1));
    SAME(a.kind, KF_PERMISSION_DENIED);
    CHECK(owner_of(room, "u/roots/f") == 0);
    put_dir(room, "v"), put_dir(room, "v/w"), put_dir(room, "v/w/roots-empty"), give(room, "v/w/roots-empty", 0, 0700);
    give(room, "v/w", AGENT, 0755), give(room, "v", AGENT, 0755);
    a = finish(begin(room, KF_REMOVE, "s1", "v", 1));
    SAME(a.kind, 0);
}

int main(void)
{
    if (geteuid() != 0) {
        printf("tests/test_agent.c: not root, nothing to check\n");
        return 0;
    }
    for (int openat2 = 1; openat2 >= 0; openat2--) {
        struct room room = room_make(openat2);
        room.root.change_uid = true;
        room.root.uid = room.root.gid = AGENT;
        MUST(chmod(room.outer, 0755) == 0 && chown(room.inside, AGENT, AGENT) == 0);
        check_rights(&room);
        CHECK(geteuid() == 0 && getegid() == 0 && getuid() == 0);
        check_locked_removal(&room);
        CHECK(geteuid() == 0 && getegid() == 0);
        kf_as_agent(&room.root);
        CHECK(geteuid() == AGENT && getegid() == AGENT && getuid() == 0);
        kf_as_self(&room.root);
        CHECK(geteuid() == 0 && getegid() == 0);
        room.root.change_uid = false; /* what is left is root's */
        room_remove(&room);
    }
    DONE();
}
