/* What the workspace and the home take on the disk. With a quota the file system says it at once. Without one a walk over
 * both trees adds it up, once a second while programs run, and whatever runs ends when there is more than the limit.
 *
 * The walk sees what the agent may see. For the rest (directories that cannot be read, and files without a name) there
 * is the file system's own count, where the tree has hidden places, and a reserve that must stay free in any case. */
#include "disk.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "slice.h"
#include "super.h"
#include "walk.h"

#define INTERVAL SECOND
#define PIECE (MS / 4)       /* of the walk, in each turn of the loop */
#define RESERVE (256ull << 20)

static struct {
    int fds[2];              /* workspace and home, O_PATH */
    struct disk_use use;
    bool walking, walked, hidden, ending;
    int at;                  /* which of the two is walked */
    struct kf_tree tree;
    uint64_t bytes, inodes;  /* of the walk under way */
    uint64_t began, next, took;
    uint64_t told_bytes, told_inodes; /* where programs were ended last, or less since: more than that ends them again */
    uint64_t free_at_start;
} disk = {.fds = {-1, -1}, .use = {NEVER, NEVER, NEVER, NEVER, NEVER}};

static uint64_t more(uint64_t a, uint64_t b) { return a == NEVER ? b : b == NEVER || a > b ? a : b; }

/* Bytes and inodes that a file system's own count says are taken and may be; false where it does not say. */
static bool ask(struct disk_use *u)
{
    struct statvfs s;
    if (fstatvfs(disk.fds[0], &s) != 0 || s.f_blocks == 0) {
        return false;
    }
    u->bytes = (s.f_blocks - s.f_bfree) * s.f_frsize;
    u->bytes_limit = u->bytes + s.f_bavail * s.f_frsize;
    u->inodes = s.f_files - s.f_ffree;
    u->inodes_limit = u->inodes + s.f_favail;
    return true;
}

void disk_open(void)
{
    struct disk_use now;
    disk.fds[0] = kf.root.fd;
    disk.fds[1] = open(kf.config.home, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (ask(&now)) {
        disk.free_at_start = now.bytes_limit - now.bytes;
    }
    disk.next = kf.now;
}

struct disk_use disk_now(void)
{
    struct disk_use now;
    if (kf.config.disk == DISK_QUOTA && ask(&now)) {
        now.bytes_peak = more(disk.use.bytes_peak, now.bytes);
        disk.use = now;
    }
    return disk.use;
}

/* ---- without a quota */

static bool begin(void)
{
    kf_as_agent(&kf.root);
    bool good = kf_tree_begin(&disk.tree, disk.fds[disk.at], UINT32_MAX, false);
    kf_as_self(&kf.root);
    disk.tree.all = true;
    if (!good) {
        kf_tree_end(&disk.tree);
        disk.hidden = true;
    }
    return good;
}

static void count(const struct stat *st)
{
    /* A file with many names is met at each of them: all of its names lie in here, for a link cannot leave the mount. */
    uint64_t names = S_ISDIR(st->st_mode) || st->st_nlink == 0 ? 1 : st->st_nlink;
    disk.bytes += (uint64_t)st->st_blocks * 512 / names;
    disk.inodes++;
}

static void end_all(void)
{
    LIST_EACH(l, spare, &kf.execs) {
        struct exec *e = OWNER_OF(l, struct exec, link);
        if (!e->tree_empty) {
            exec_kill(e, DISK_LIMITED, 0);
        }
    }
}

/* Not again for what was there when programs were ended last: the next ones may tidy up. */
static void judge(void)
{
    struct disk_use fs;
    uint64_t used = disk.use.bytes;
    bool over = used > disk.use.bytes_limit || disk.use.inodes > disk.use.inodes_limit;
    if (ask(&fs)) {
        uint64_t left = fs.bytes_limit - fs.bytes;
        uint64_t grown = disk.free_at_start > left ? disk.free_at_start - left : 0;
        bool low = left < RESERVE && disk.free_at_start > 4 * RESERVE;
        if (low || (disk.hidden && grown > kf.config.disk_bytes)) {
            over = true;
            used = more(used, grown);
        }
    }
    if (over && !disk.ending && (used > disk.told_bytes || disk.use.inodes > disk.told_inodes)) {
        disk.ending = true; /* what is written while they die is not the next program's doing */
        end_all();
    } else {
        disk.ending = false;
    }
    disk.told_bytes = over ? used : 0;
    disk.told_inodes = over ? disk.use.inodes : 0;
}

static void finish(void)
{
    disk.walking = false;
    disk.took = loop_clock() - disk.began;
    disk.next = kf.now + more(INTERVAL, 3 * disk.took) - disk.took;
    if (!disk.walked) {
        /* A directory that was given may hold any amount: the limit is on what is added. */
        bool grows = kf.config.disk == DISK_GROWTH;
        disk.use.bytes_limit = kf.config.disk_bytes + (grows ? disk.bytes : 0);
        disk.use.inodes_limit = kf.config.disk_inodes + (grows ? disk.inodes : 0);
        disk.walked = true;
    }
    disk.use.bytes = disk.bytes;
    disk.use.inodes = disk.inodes;
    disk.use.bytes_peak = more(disk.use.bytes_peak, disk.bytes);
    judge();
}

static bool step(struct kf_slice *slice)
{
    do {
        switch (kf_tree_next(&disk.tree)) {
        case KF_TREE_ENTRY: count(&disk.tree.st); break;
        case KF_TREE_UNSEEN:
        case KF_TREE_UNREADABLE: disk.hidden = true; break;
        default:
            disk.hidden = disk.hidden || disk.tree.truncated || disk.tree.count > 0;
            kf_tree_end(&disk.tree);
            return false;
        }
    } while (!kf_slice_unit(slice));
    return true;
}

uint64_t disk_due(void)
{
    bool asked = kf.config.disk != DISK_UNKNOWN && !kf.paused;
    return asked && (kf.alive_count > 0 || !disk.walked) ? disk.next : NEVER;
}

/* A piece of the walk; true: more to do right away. */
bool disk_step(void)
{
    if (!disk.walking && kf.now < disk_due()) {
        return false;
    }
    if (kf.config.disk == DISK_QUOTA) {
        disk.walked = true;
        disk.next = kf.now + INTERVAL;
        disk_now(); /* for the peak */
        return false;
    }
    if (kf.paused) {
        return false;
    }
    if (!disk.walking) {
        disk.walking = true;
        disk.hidden = false;
        disk.at = 0;
        disk.bytes = disk.inodes = 0;
        disk.began = loop_clock();
        if (!begin()) {
            disk.at = 1;
            if (!begin()) {
                finish();
                return false;
            }
        }
    }
    struct kf_slice slice = kf_slice_of(PIECE);
    kf_as_agent(&kf.root);
    bool going = step(&slice);
    kf_as_self(&kf.root);
    if (!going && (disk.at == 1 || (disk.at = 1, !begin()))) {
        finish();
        return false;
    }
    return true;
}
