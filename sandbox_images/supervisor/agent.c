/* Whose eyes the supervisor looks with: the agent's effective ids for file access, and back. Raw system calls, because
 * libc's wrappers signal every thread of a process, and this one has one thread. Real and saved ids stay, so the agent
 * can neither signal nor trace the process meanwhile. */
#include "files.h"

#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#define KEEP ((unsigned)-1)

static void set_effective(uid_t uid, gid_t gid, bool group_first)
{
    bool ok = true;
    if (group_first)
        ok = syscall(SYS_setresgid, KEEP, gid, KEEP) == 0;
    ok = ok && syscall(SYS_setresuid, KEEP, uid, KEEP) == 0;
    if (ok && !group_first)
        ok = syscall(SYS_setresgid, KEEP, gid, KEEP) == 0;
    if (!ok || (uid_t)syscall(SYS_geteuid) != uid || (gid_t)syscall(SYS_getegid) != gid)
        abort(); /* going on would open files with the wrong person's rights */
}

void kf_as_agent(const struct kf_root *root)
{
    if (root->change_uid)
        set_effective(root->uid, root->gid, true);
}

void kf_as_self(const struct kf_root *root)
{
    if (root->change_uid)
        set_effective((uid_t)syscall(SYS_getuid), (gid_t)syscall(SYS_getgid), false);
}
