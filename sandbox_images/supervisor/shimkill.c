/* A shim's killing: TERM, rounds of scan, KILL and reap, the freeze; and reaping, which alone proves that it worked. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shimstate.h"

#define ROUNDS 4 /* the first by descent, the others by full scans */

void tell_with(struct shim_message m, const void *more, size_t length)
{
    m.serial = me.serial;
    m.killed = (uint32_t)me.done_count;
    struct iovec parts[2] = {{&m, sizeof m}, {(void *)(uintptr_t)more, length}};
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = length > 0 ? 2 : 1};
    while (sendmsg(me.o.socket, &packet, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
}

void tell(struct shim_message m) { tell_with(m, NULL, 0); }

/* ---- reaping */

/* Reap all that can be reaped; true: ECHILD, nobody is left. __WALL also sees children that signal nothing on exit. */
bool reap(void)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
        me.reaped += pid > 0;
        if (pid > 0 && pid == me.leader && !me.leader_reaped) {
            me.leader_reaped = true;
            me.leader_status = status;
        } else if (pid == 0) {
            return false;
        } else if (pid < 0 && errno != EINTR) {
            return errno == ECHILD;
        }
    }
}

static void become_idle(void)
{
    me.phase = IDLE;
    me.deadline_us = 0;
    me.done_count = 0;
}

/* Reap, and report what that showed: the leader's end, and the proof of the tree's. */
void reap_and_tell(void)
{
    bool empty = reap();
    if (me.phase == IDLE) {
        return;
    }
    if (me.leader_reaped && !me.leader_told) {
        int32_t why = 0;
        ssize_t n = read(me.report[0], &why, sizeof why);
        me.leader_told = me.started_told = true;
        tell((struct shim_message){.kind = SHIM_EXITED, .a = me.leader_status, .b = empty, .pid = me.leader,
                                   .n = n == sizeof why ? (uint64_t)why : 0});
    } else if (empty) {
        tell((struct shim_message){.kind = SHIM_EMPTY});
    }
    if (empty) {
        become_idle();
    }
}

/* ---- signalling and killing */

static void count_kill(const struct process *p)
{
    for (size_t i = 0; i < me.done_count; i++) {
        if (me.done[i].pid == p->pid && me.done[i].start == p->start) {
            return;
        }
    }
    if (me.done_count == me.done_room) {
        size_t room = me.done_room == 0 ? 64 : me.done_room * 2;
        void *more = realloc(me.done, room * sizeof *me.done);
        if (more == NULL) {
            return;
        }
        me.done = more;
        me.done_room = room;
    }
    me.done[me.done_count].pid = p->pid;
    me.done[me.done_count++].start = p->start;
}

/* A zombie whose threads have all gone: nothing is left to signal, only to reap. */
bool is_dead(const struct process *p) { return p->state == 'X' || (p->state == 'Z' && p->threads <= 1); }

static uint32_t signal_scanned(int signal, uint64_t until)
{
    uint32_t count = 0;
    for (size_t i = 0; i < me.scan.count; i++) {
        const struct process *p = &me.scan.all[i];
        if (i % 8 == 7 && shim_now_us() > until) {
            break;
        }
        /* KILL goes to zombies too: the state was read a moment ago, and threads may have hidden behind it. */
        if (!p->ours || !scan_signal(p, signal, me.phase == FROZEN) || is_dead(p)) {
            continue;
        }
        count++;
        if (signal == SIGKILL) {
            count_kill(p);
        }
    }
    return count;
}

uint32_t signal_all(int signal, uint64_t budget_us)
{
    uint64_t until = shim_now_us() + budget_us;
    scan_processes(&me.scan, budget_us);
    return signal_scanned(signal, until);
}

/* A first attempt that does not look at anybody else's processes: with hundreds of execs ending at once, each scanning
 * all of /proc, the time grows with their square (tried: 10 s for 300). Who slips through is found by the full scan. */
static void kill_descendants(uint64_t until)
{
    uint64_t now = shim_now_us();
    if (now < until && scan_descendants(&me.scan, until - now)) {
        signal_scanned(SIGKILL, until);
    }
}

static uint32_t survivors(void)
{
    uint32_t count = 0;
    scan_processes(&me.scan, FROZEN_BUDGET_US);
    for (size_t i = 0; i < me.scan.count; i++) {
        count += me.scan.all[i].ours && !is_dead(&me.scan.all[i]);
    }
    return count > 0 ? count : 1; /* no ECHILD: somebody is there, seen or not */
}

/* Wait up to `most_us` for a child to change state, so that a kill is reaped as soon as it has worked. */
static void await_child(uint64_t most_us)
{
    struct pollfd p = {.fd = me.children, .events = POLLIN};
    struct timespec t = {.tv_sec = (time_t)(most_us / 1000000u), .tv_nsec = (long)(most_us % 1000000u) * 1000};
    struct signalfd_siginfo info;
    if (ppoll(&p, 1, &t, NULL) > 0 && read(me.children, &info, sizeof info) < 0 && errno != EAGAIN) {
        abort();
    }
}

/* Up to four rounds of scan, KILL and reap within 20 ms; true: ECHILD. */
bool kill_rounds(void)
{
    uint64_t until = shim_now_us() + ROUNDS_US;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t now = shim_now_us();
        if (now >= until) {
            break;
        }
        if (i == 0) {
            kill_descendants(until);
        } else {
            signal_all(SIGKILL, until - now);
        }
        uint64_t quiet_since = shim_now_us(), seen = me.reaped;
        while (!reap()) {
            now = shim_now_us();
            quiet_since = me.reaped != seen ? now : quiet_since;
            seen = me.reaped;
            /* The killed need a moment to die; scan again when none has for two milliseconds. */
            if (now >= until || now - quiet_since > 2000) {
                break;
            }
            await_child(1000);
        }
        if (reap()) {
            return true;
        }
    }
    return false;
}

static void escalate(void)
{
    if (me.o.change_uid) {
        me.phase = AWAIT_FREEZE;
        me.deadline_us = 0;
        tell((struct shim_message){.kind = SHIM_FREEZE});
    } else if (me.phase != REPEAT) {
        me.phase = REPEAT; /* no own uid, so no freeze: repeat the rounds, for so long */
        me.deadline_us = shim_now_us() + LOCAL_LIMIT_US;
    }
}

static void begin_killing(void)
{
    if (me.phase != REPEAT) {
        me.phase = RUNNING;
        me.deadline_us = 0;
    }
    bool empty = !(me.crowded && me.o.change_uid) && kill_rounds();
    reap_and_tell();
    if (!empty && me.phase != IDLE) {
        escalate();
    }
}

void on_kill(uint64_t grace_ms, bool crowded)
{
    me.crowded = crowded;
    if (me.phase > GRACE) {
        return; /* already past asking politely */
    }
    uint64_t deadline = shim_now_us() + grace_ms * 1000u;
    if (grace_ms == 0) {
        begin_killing();
    } else if (me.phase == GRACE) {
        me.deadline_us = deadline < me.deadline_us ? deadline : me.deadline_us;
    } else {
        me.phase = GRACE;
        me.deadline_us = deadline;
        signal_all(SIGTERM, crowded ? ROUNDS_US / 4 : ROUNDS_US);
        if (me.terminal && !me.leader_reaped) {
            kill(me.leader, SIGHUP); /* a shell at its prompt ignores TERM: this is what a closed terminal says */
        }
        reap_and_tell();
    }
}

/* Whether somebody has died since this was last asked. */
static bool has_died(uint64_t now)
{
    if (me.reaped == me.reaped_seen) {
        return false;
    }
    me.reaped_seen = me.reaped;
    me.looked_us = now;
    me.fruitless = 0;
    return true;
}

/* One round while every process of the agent is stopped (or has been killed by init). */
static void frozen_round(void)
{
    me.dying = signal_all(SIGKILL, WHOLE_SCAN_US);
    reap_and_tell();
    me.looked_us = shim_now_us();
    has_died(me.looked_us);
}

void frozen_begin(enum phase phase)
{
    me.phase = phase;
    me.deadline_us = 0;
    me.fruitless = me.dying = 0;
    me.reaped_seen = me.reaped;
    me.told_us = shim_now_us();
    frozen_round();
}

/* The killed are dying: a scan of them all would only take their time (tried: one for each that dies, half of a bomb's
 * whole end). Look again for somebody who was missed once none has died for a while. */
static void frozen_look(void)
{
    uint64_t now = shim_now_us();
    reap_and_tell();
    if (!has_died(now) && me.phase != IDLE) {
        me.fruitless++;
        if (now - me.looked_us > STALLED_US) {
            frozen_round();
        }
    }
    if (me.phase != IDLE && now - me.told_us > AT_WORK_US) {
        me.told_us = now;
        tell((struct shim_message){.kind = SHIM_AT_WORK});
    }
}

static void give_up(void)
{
    tell((struct shim_message){.kind = SHIM_FAILED, .a = (int32_t)survivors()});
    me.phase = RUNNING; /* go on reaping: should they end after all, EMPTY will say so */
    me.deadline_us = 0;
}

/* The looks are counted, not the time: on a starved machine the killed get to die no sooner than this gets to look.
 * Who was found and sent KILL is the kernel's to end: nobody else's death would help. Who was not found may be anybody. */
static void give_up_frozen(void)
{
    if (me.phase == LAST || me.dying > 0) {
        give_up();
    } else {
        me.fruitless = 0;
        tell((struct shim_message){.kind = SHIM_STUCK});
    }
}

void on_deadline(void)
{
    switch (me.phase) {
    case GRACE:
        begin_killing();
        break;
    case REPEAT:
        if (shim_now_us() >= me.deadline_us) {
            give_up();
        } else {
            begin_killing();
        }
        break;
    case FROZEN: case LAST:
        frozen_look();
        if (me.phase != IDLE && me.fruitless >= STUCK_LOOKS) {
            give_up_frozen();
        }
        break;
    case IDLE: case RUNNING: case AWAIT_FREEZE:
        break;
    }
}
