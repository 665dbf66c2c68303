/* Room at the pids limit: the exec with the most processes ends, so that one that waits can start, or because what spins
 * there makes everybody's file requests wait for the kernel (tried: 510 forking processes, a stat takes 30 times as long,
 * and no priority that a container may give helps). */
#include <errno.h>

#include "super.h"

#define RELIEF_LIMIT (1500 * MS)
#define LOOK_EVERY SECOND
#define SPINNING 1000u /* forks refused in a second; a build or a shell that retries has a handful */
#define LOOKS 3        /* in a row, then it is no mistake that ends by itself */

static struct {
    struct exec *waiting, *victim;
    uint64_t deadline;
    bool active, frozen;
} relief;

static void relief_end(void)
{
    struct exec *waiting = relief.waiting;
    bool frozen = relief.frozen;
    relief.active = relief.frozen = false;
    relief.waiting = relief.victim = NULL;
    if (frozen) {
        frozen_less();
    }
    if (waiting != NULL && waiting->start != NULL && waiting->shim == NULL) {
        exec_begin(waiting);
    }
    execs_begin_waiting();
}

static void hopeless(struct exec *waiting)
{
    waiting->start_errno = EAGAIN;
    relief.waiting = NULL;
    exec_tree_gone(waiting);
    exec_check(waiting);
}

/* Stop everything, find who has the most processes, end that: for an exec that waits, or for everybody (NULL). */
void relief_begin(struct exec *waiting)
{
    if (relief.active) {
        return; /* relief_end() starts all that wait */
    }
    struct shim *s = shim_any();
    relief.active = true;
    relief.waiting = waiting;
    relief.victim = NULL;
    relief.deadline = kf.now + RELIEF_LIMIT;
    if (kf.is_pid1 && kf.root.change_uid) {
        relief.frozen = true;
        frozen_more();
    }
    struct shim_message m = {.kind = SHIM_BIGGEST};
    bool tired = waiting != NULL && waiting->retries++ >= 3;
    if (tired || s == NULL || !shim_send(s, &m)) {
        if (waiting != NULL) {
            hopeless(waiting);
        }
        relief_end();
    }
}

void relief_answer(pid_t biggest)
{
    if (!relief.active || relief.victim != NULL) {
        return;
    }
    LIST_EACH(l, spare, &kf.shims) {
        struct shim *s = OWNER_OF(l, struct shim, link);
        if (s->pid == biggest && s->exec != NULL && s->exec != relief.waiting) {
            relief.victim = s->exec;
        }
    }
    if (relief.victim != NULL) {
        exec_kill(relief.victim, PIDS_LIMITED, 0);
    } else {
        if (relief.waiting != NULL) {
            hopeless(relief.waiting);
        }
        relief_end();
    }
}

/* Every turn: is the victim dead, or has it taken too long? (The waiting one then tries again.) */
void relief_check(void)
{
    bool dead = relief.active && relief.victim != NULL && relief.victim->tree_empty;
    if (dead || (relief.active && kf.now >= relief.deadline)) {
        relief_end();
    }
}

void relief_forget(const struct exec *e)
{
    relief.waiting = relief.waiting == e ? NULL : relief.waiting;
    if (relief.victim == e) {
        relief.victim = NULL;
        relief.deadline = 0;
    }
}

/* Every turn, and once a second in earnest: has something been forking at the limit for seconds on end? */
void relief_watch(void)
{
    static uint64_t next, refused = NEVER;
    static unsigned looks;
    if (kf.now < next || kf.alive_count == 0) {
        return;
    }
    uint64_t seen = cgroup_forks_refused(), before = refused;
    next = kf.now + LOOK_EVERY;
    refused = seen;
    bool spins = before != NEVER && seen != NEVER && seen >= before + SPINNING && !kf.paused && kf.freezers == 0;
    looks = spins ? looks + 1 : 0;
    if (looks >= LOOKS) {
        looks = 0;
        relief_begin(NULL);
    }
}
