/* A shim: the subreaper of one exec at a time. It starts the leader, reaps at once and always, and kills with proof:
 * waitpid saying ECHILD. It runs as the warden, a uid that is neither the supervisor's nor the agent's. */
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

#define ROUNDS 3
#define ROUNDS_US 20000u
#define LOCAL_LIMIT_US 2000000u
#define LAST_LIMIT_US 1000000u
#define FROZEN_BUDGET_US 1000000u

enum phase { IDLE, RUNNING, GRACE, AWAIT_FREEZE, FROZEN, REPEAT, LAST };

static struct {
    struct shim_options o;
    enum phase phase;
    uint32_t serial;
    pid_t leader;
    bool started_told, leader_reaped, leader_told;
    int leader_status;
    uint64_t reaped;          /* processes reaped so far */
    uint64_t deadline_us;     /* of the phase; 0: none */
    bool crowded;             /* near the pids limit: a scan beside a fork bomb would take seconds */
    struct scan scan;
    struct { pid_t pid; uint64_t start; } *done; /* whom we sent KILL, so that nobody is counted twice */
    size_t done_count, done_room;
    int report[2];            /* the leader's errno, kept open: only a child that is not dumpable ever holds it */
    int children;             /* signalfd for SIGCHLD */
    char packet[sizeof(struct shim_message) + SHIM_INLINE];
} s;

static void tell_with(struct shim_message m, const void *more, size_t length)
{
    m.serial = s.serial;
    m.killed = (uint32_t)s.done_count;
    struct iovec parts[2] = {{&m, sizeof m}, {(void *)(uintptr_t)more, length}};
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = length > 0 ? 2 : 1};
    while (sendmsg(s.o.socket, &packet, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
}

static void tell(struct shim_message m) { tell_with(m, NULL, 0); }

/* ---- reaping */

/* Reap all that can be reaped; true: ECHILD, nobody is left. __WALL also sees children that signal nothing on exit. */
static bool reap(void)
{
    for (;;) {
        int status;
        pid_t pid = waitpid(-1, &status, WNOHANG | __WALL);
        s.reaped += pid > 0;
        if (pid > 0 && pid == s.leader && !s.leader_reaped) {
            s.leader_reaped = true;
            s.leader_status = status;
        } else if (pid == 0) {
            return false;
        } else if (pid < 0 && errno != EINTR) {
            return errno == ECHILD;
        }
    }
}

static void become_idle(void)
{
    s.phase = IDLE;
    s.deadline_us = 0;
    s.done_count = 0;
}

/* Reap, and report what that showed: the leader's end, and the proof of the tree's. */
static void reap_and_tell(void)
{
    bool empty = reap();
    if (s.phase == IDLE) {
        return;
    }
    if (s.leader_reaped && !s.leader_told) {
        int32_t why = 0;
        ssize_t n = read(s.report[0], &why, sizeof why);
        s.leader_told = s.started_told = true;
        tell((struct shim_message){.kind = SHIM_EXITED, .a = s.leader_status, .b = empty, .pid = s.leader,
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
    for (size_t i = 0; i < s.done_count; i++) {
        if (s.done[i].pid == p->pid && s.done[i].start == p->start) {
            return;
        }
    }
    if (s.done_count == s.done_room) {
        size_t room = s.done_room == 0 ? 64 : s.done_room * 2;
        void *more = realloc(s.done, room * sizeof *s.done);
        if (more == NULL) {
            return;
        }
        s.done = more;
        s.done_room = room;
    }
    s.done[s.done_count].pid = p->pid;
    s.done[s.done_count++].start = p->start;
}

/* A zombie whose threads have all gone: nothing is left to signal, only to reap. */
static bool is_dead(const struct process *p) { return p->state == 'X' || (p->state == 'Z' && p->threads <= 1); }

static uint32_t signal_all(int signal, uint64_t budget_us)
{
    uint32_t count = 0;
    uint64_t until = shim_now_us() + budget_us;
    scan_processes(&s.scan, budget_us);
    for (size_t i = 0; i < s.scan.count; i++) {
        const struct process *p = &s.scan.all[i];
        if (i % 8 == 7 && shim_now_us() > until) {
            break;
        }
        /* KILL goes to zombies too: the state was read a moment ago, and threads may have hidden behind it. */
        if (!p->ours || !scan_signal(p, signal, s.phase == FROZEN) || is_dead(p)) {
            continue;
        }
        count++;
        if (signal == SIGKILL) {
            count_kill(p);
        }
    }
    return count;
}

static uint32_t survivors(void)
{
    uint32_t count = 0;
    scan_processes(&s.scan, FROZEN_BUDGET_US);
    for (size_t i = 0; i < s.scan.count; i++) {
        count += s.scan.all[i].ours && !is_dead(&s.scan.all[i]);
    }
    return count > 0 ? count : 1; /* no ECHILD: somebody is there, seen or not */
}

/* Wait up to `most_us` for a child to change state, so that a kill is reaped as soon as it has worked. */
static void await_child(uint64_t most_us)
{
    struct pollfd p = {.fd = s.children, .events = POLLIN};
    struct timespec t = {.tv_sec = (time_t)(most_us / 1000000u), .tv_nsec = (long)(most_us % 1000000u) * 1000};
    struct signalfd_siginfo info;
    if (ppoll(&p, 1, &t, NULL) > 0 && read(s.children, &info, sizeof info) < 0 && errno != EAGAIN) {
        abort();
    }
}

/* Up to three rounds of scan, KILL and reap within 20 ms; true: ECHILD. */
static bool kill_rounds(void)
{
    uint64_t until = shim_now_us() + ROUNDS_US;
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t now = shim_now_us();
        if (now >= until) {
            break;
        }
        signal_all(SIGKILL, until - now);
        uint64_t quiet_since = shim_now_us(), seen = s.reaped;
        while (!reap()) {
            now = shim_now_us();
            quiet_since = s.reaped != seen ? now : quiet_since;
            seen = s.reaped;
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
    if (s.o.change_uid) {
        s.phase = AWAIT_FREEZE;
        s.deadline_us = 0;
        tell((struct shim_message){.kind = SHIM_FREEZE});
    } else if (s.phase != REPEAT) {
        s.phase = REPEAT; /* no own uid, so no freeze: repeat the rounds, for so long */
        s.deadline_us = shim_now_us() + LOCAL_LIMIT_US;
    }
}

static void begin_killing(void)
{
    if (s.phase != REPEAT) {
        s.phase = RUNNING;
        s.deadline_us = 0;
    }
    bool empty = !(s.crowded && s.o.change_uid) && kill_rounds();
    reap_and_tell();
    if (!empty && s.phase != IDLE) {
        escalate();
    }
}

static void on_kill(uint64_t grace_ms, bool crowded)
{
    s.crowded = crowded;
    if (s.phase > GRACE) {
        return; /* already past asking politely */
    }
    uint64_t deadline = shim_now_us() + grace_ms * 1000u;
    if (grace_ms == 0) {
        begin_killing();
    } else if (s.phase == GRACE) {
        s.deadline_us = deadline < s.deadline_us ? deadline : s.deadline_us;
    } else {
        s.phase = GRACE;
        s.deadline_us = deadline;
        signal_all(SIGTERM, crowded ? ROUNDS_US / 4 : ROUNDS_US);
        reap_and_tell();
    }
}

/* One round while every process of the agent is stopped (or has been killed by init). */
static void frozen_round(void)
{
    signal_all(SIGKILL, FROZEN_BUDGET_US);
    reap_and_tell();
}

static void give_up(void)
{
    tell((struct shim_message){.kind = SHIM_FAILED, .a = (int32_t)survivors()});
    s.phase = RUNNING; /* go on reaping: should they end after all, EMPTY will say so */
    s.deadline_us = 0;
}

static void on_deadline(void)
{
    switch (s.phase) {
    case GRACE:
        begin_killing();
        break;
    case REPEAT:
        if (shim_now_us() >= s.deadline_us) {
            give_up();
        } else {
            begin_killing();
        }
        break;
    case FROZEN:
        frozen_round();
        break;
    case LAST:
        if (shim_now_us() >= s.deadline_us) {
            give_up();
        } else {
            frozen_round();
        }
        break;
    case IDLE: case RUNNING: case AWAIT_FREEZE:
        break;
    }
}

/* ---- requests of init */

static void tell_started(void)
{
    if (s.phase != IDLE && !s.started_told) {
        s.started_told = true;
        tell((struct shim_message){.kind = SHIM_STARTED, .a = s.leader});
    }
}

static void on_start(const struct shim_message *m, const char *strings, size_t length, const int *fds, int fd_count)
{
    if (fd_count < 4 || s.phase != IDLE) {
        _exit(70); /* init never does this; do not guess */
    }
    char *copy = NULL;
    if (fd_count == 5) {
        copy = malloc(m->n);
        length = copy == NULL ? 0 : (size_t)pread(fds[4], copy, m->n, 0);
        strings = copy;
    }
    int32_t stale;
    while (read(s.report[0], &stale, sizeof stale) > 0) {
    }
    s.leader_reaped = s.leader_told = s.started_told = false;
    s.done_count = 0;
    struct leader_spec spec = {.argc = m->a, .envc = m->b, .strings = strings, .length = length, .cwd = fds[0],
                               .in = fds[1], .out = fds[2], .err = fds[3], .report = s.report[1]};
    errno = ENOMEM;
    s.leader = length == m->n && length > 0 ? leader_start(&s.o, &spec) : -1;
    if (s.leader < 0) {
        tell((struct shim_message){.kind = SHIM_NOT_STARTED, .a = errno});
    } else {
        s.phase = RUNNING;
        if (m->pid != 0) {
            tell_started();
        }
    }
    free(copy);
}

static void on_signal(int signal, int whom)
{
    uint64_t count = 0;
    if (whom == SIGNAL_QUIETLY) {
        signal_all(signal, FROZEN_BUDGET_US);
        return;
    }
    if (whom == SIGNAL_ALL) {
        count = signal_all(signal, ROUNDS_US);
    } else if (s.phase != IDLE && !s.leader_reaped) {
        count = kill(s.leader, signal) == 0; /* our own unreaped child: its pid cannot be another's */
    }
    tell((struct shim_message){.kind = SHIM_SIGNALLED, .n = count});
}

static void on_list(void)
{
    uint32_t pids[SHIM_MAX_PIDS];
    int32_t count = 0;
    scan_processes(&s.scan, 5 * ROUNDS_US);
    for (size_t i = 0; i < s.scan.count && count < (int32_t)SHIM_MAX_PIDS; i++) {
        if (s.scan.all[i].ours && !is_dead(&s.scan.all[i])) {
            pids[count++] = (uint32_t)s.scan.all[i].pid;
        }
    }
    tell_with((struct shim_message){.kind = SHIM_LISTED, .a = count}, pids, (size_t)count * sizeof *pids);
}

static void on_biggest(void)
{
    uint32_t count = 0;
    scan_processes(&s.scan, FROZEN_BUDGET_US);
    pid_t pid = scan_biggest(&s.scan, getppid(), &count);
    tell((struct shim_message){.kind = SHIM_BIGGEST_IS, .a = pid, .n = count});
}

static void on_message(const struct shim_message *m, const char *more, size_t length, const int *fds, int fd_count)
{
    if (m->kind == SHIM_START) {
        s.serial = m->serial;
        on_start(m, more, length, fds, fd_count);
        return;
    }
    if (m->kind == SHIM_BIGGEST) {
        on_biggest();
        return;
    }
    if (m->serial != s.serial || s.phase == IDLE) {
        return; /* it crossed our EMPTY */
    }
    switch (m->kind) {
    case SHIM_KILL: on_kill(m->n, m->b != 0); break;
    case SHIM_SIGNAL: on_signal(m->a, m->b); break;
    case SHIM_LIST: on_list(); break;
    case SHIM_FROZEN:
        s.phase = FROZEN;
        frozen_round();
        break;
    case SHIM_LAST:
        s.phase = LAST;
        s.deadline_us = shim_now_us() + LAST_LIMIT_US;
        frozen_round();
        break;
    default: _exit(70);
    }
}

/* Init is gone: nobody will ever ask again. Kill what is ours, in bounded time, and go. */
static void orphaned(void)
{
    uint64_t until = shim_now_us() + LOCAL_LIMIT_US;
    while (!reap() && shim_now_us() < until) {
        kill_rounds();
    }
    _exit(0);
}

static void receive(void)
{
    union { struct cmsghdr align; char room[CMSG_SPACE(5 * sizeof(int))]; } control;
    struct iovec part = {s.packet, sizeof s.packet};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                            .msg_controllen = sizeof control.room};
    ssize_t n = recvmsg(s.o.socket, &packet, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (n < (ssize_t)sizeof(struct shim_message)) {
        orphaned();
    }
    int fds[5], count = 0;
    struct cmsghdr *c = CMSG_FIRSTHDR(&packet);
    if (c != NULL && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
        count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        memcpy(fds, CMSG_DATA(c), (size_t)count * sizeof(int));
    }
    struct shim_message m;
    memcpy(&m, s.packet, sizeof m);
    on_message(&m, s.packet + sizeof m, (size_t)n - sizeof m, fds, count);
    while (count-- > 0) {
        close(fds[count]);
    }
}

/* ---- starting up */

/* From uid 0 to the warden, keeping exactly SETUID, SETGID and KILL. */
static bool become_warden(void)
{
    const uint32_t keep = 1u << CAP_SETUID | 1u << CAP_SETGID | 1u << CAP_KILL;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[2] = {{.effective = keep, .permitted = keep}};
    return prctl(PR_SET_KEEPCAPS, 1) == 0 && syscall(SYS_setgroups, 0, NULL) == 0 &&
           syscall(SYS_setresgid, WARDEN, WARDEN, WARDEN) == 0 &&
           syscall(SYS_setresuid, WARDEN, WARDEN, WARDEN) == 0 && syscall(SYS_capset, &header, data) == 0;
}

static bool read_options(int argc, char **argv)
{
    s.o = (struct shim_options){.socket = -1};
    if (argc != 9) {
        return false;
    }
    s.o.socket = atoi(argv[2]);
    s.o.uid = (uid_t)strtoul(argv[3], NULL, 10);
    s.o.gid = (gid_t)strtoul(argv[4], NULL, 10);
    s.o.nofile = strtoull(argv[5], NULL, 10);
    s.o.fsize = strtoull(argv[6], NULL, 10);
    s.o.change_uid = strchr(argv[7], 'u') != NULL;
    s.o.seccomp = strchr(argv[7], 'f') != NULL;
    s.o.probe = strchr(argv[7], 'p') != NULL;
    return s.o.socket > 2 && fcntl(s.o.socket, F_SETFD, FD_CLOEXEC) == 0;
}

/* What every leader inherits is set here, once, and not at each start. */
static void reset_signals(void)
{
    struct sigaction standard = {.sa_handler = SIG_DFL};
    for (int i = 1; i < 65; i++) {
        sigaction(i, &standard, NULL);
    }
}

static bool limit(int what, uint64_t most)
{
    struct rlimit now;
    if (getrlimit(what, &now) != 0) {
        return false;
    }
    rlim_t value = now.rlim_max < most ? now.rlim_max : most;
    return setrlimit(what, &(struct rlimit){value, value}) == 0;
}

static bool set_up(void)
{
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGCHLD);
    prctl(PR_SET_NAME, "kf-shim");
    reset_signals();
    umask(022);
    if (!limit(RLIMIT_CORE, 0) || (s.o.nofile != 0 && !limit(RLIMIT_NOFILE, s.o.nofile)) ||
        (s.o.fsize != 0 && !limit(RLIMIT_FSIZE, s.o.fsize))) {
        return false;
    }
    if (sigprocmask(SIG_SETMASK, &blocked, NULL) != 0 || pipe2(s.report, O_CLOEXEC | O_NONBLOCK) != 0) {
        return false;
    }
    s.children = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    int32_t can = s.o.probe ? leader_probe(&s.o) : 0;
    if (s.children < 0 || (s.o.change_uid && !become_warden())) {
        return false;
    }
    /* The filter refuses nothing that a shim does, and is inherited: installing it anew costs each start 0.1 ms. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || (s.o.seccomp && !seccomp_install())) {
        return false;
    }
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0) {
        return false;
    }
    tell((struct shim_message){.kind = SHIM_READY, .a = can, .b = s.o.change_uid && geteuid() == WARDEN});
    return true;
}

/* How long to sleep: the frozen and repeating phases look again every 2 ms, the others at their deadline. */
static struct timespec patience(bool *limited)
{
    bool untold = s.phase != IDLE && !s.started_told;
    *limited = untold || s.phase == GRACE || s.phase == FROZEN || s.phase == REPEAT || s.phase == LAST;
    uint64_t us = untold ? STARTED_WITHIN_MS * 1000u : 2000;
    if (s.phase == GRACE && !untold) {
        uint64_t now = shim_now_us();
        us = s.deadline_us > now ? s.deadline_us - now : 0;
    }
    return (struct timespec){.tv_sec = (time_t)(us / 1000000u), .tv_nsec = (long)(us % 1000000u) * 1000};
}

int shim_main(int argc, char **argv)
{
    if (!read_options(argc, argv) || !set_up()) {
        return 70;
    }
    for (;;) {
        struct pollfd p[2] = {{.fd = s.o.socket, .events = POLLIN}, {.fd = s.children, .events = POLLIN}};
        bool limited;
        struct timespec t = patience(&limited);
        int n = ppoll(p, 2, limited ? &t : NULL, NULL);
        if (n < 0 && errno != EINTR) {
            return 70;
        }
        if (n > 0 && p[1].revents != 0) {
            struct signalfd_siginfo info;
            ssize_t got = read(s.children, &info, sizeof info);
            (void)got; /* only a wake-up; waitpid says what happened */
            reap_and_tell();
        }
        if (n > 0 && p[0].revents != 0) {
            receive();
        }
        if (n == 0) {
            tell_started(); /* it did not end at once */
        }
        if (limited && (s.phase != GRACE || shim_now_us() >= s.deadline_us)) {
            on_deadline();
        }
    }
}
