/* A shim: the subreaper of one exec at a time. It starts the leader, reaps at once and always, and kills with proof:
 * waitpid saying ECHILD. It runs as the warden, a uid that is neither the supervisor's nor the agent's. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "shimstate.h"

struct shim_state me;

/* ---- requests of init */

static void tell_started(void)
{
    if (me.phase != IDLE && !me.started_told) {
        me.started_told = true;
        tell((struct shim_message){.kind = SHIM_STARTED, .a = me.leader});
    }
}

static void on_start(const struct shim_message *m, const char *strings, size_t length, const int *fds, int fd_count)
{
    if (fd_count < 4 || me.phase != IDLE) {
        _exit(70); /* init never does this; do not guess */
    }
    char *copy = NULL;
    if (fd_count == 5) {
        copy = malloc(m->n);
        length = copy == NULL ? 0 : (size_t)pread(fds[4], copy, m->n, 0);
        strings = copy;
    }
    int32_t stale;
    while (read(me.report[0], &stale, sizeof stale) > 0) {
    }
    me.leader_reaped = me.leader_told = me.started_told = false;
    me.done_count = 0;
    struct leader_spec spec = {.argc = m->a, .envc = m->b, .strings = strings, .length = length, .cwd = fds[0],
                               .in = fds[1], .out = fds[2], .err = fds[3], .report = me.report[1],
                               .terminal = (m->pid & START_TERMINAL) != 0};
    me.terminal = spec.terminal;
    errno = ENOMEM;
    me.leader = length == m->n && length > 0 ? leader_start(&me.o, &spec) : -1;
    if (me.leader < 0) {
        tell((struct shim_message){.kind = SHIM_NOT_STARTED, .a = errno});
    } else {
        me.phase = RUNNING;
        if (m->pid & START_TELL_AT_ONCE) {
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
    } else if (me.phase != IDLE && !me.leader_reaped) {
        count = kill(me.leader, signal) == 0; /* our own unreaped child: its pid cannot be another's */
    }
    tell((struct shim_message){.kind = SHIM_SIGNALLED, .n = count});
}

static void on_list(void)
{
    uint32_t pids[SHIM_MAX_PIDS];
    int32_t count = 0;
    scan_processes(&me.scan, 5 * ROUNDS_US);
    for (size_t i = 0; i < me.scan.count && count < (int32_t)SHIM_MAX_PIDS; i++) {
        if (me.scan.all[i].ours && !is_dead(&me.scan.all[i])) {
            pids[count++] = (uint32_t)me.scan.all[i].pid;
        }
    }
    tell_with((struct shim_message){.kind = SHIM_LISTED, .a = count}, pids, (size_t)count * sizeof *pids);
}

static void on_biggest(void)
{
    uint32_t count = 0;
    scan_processes(&me.scan, FROZEN_BUDGET_US);
    pid_t pid = scan_biggest(&me.scan, getppid(), &count);
    tell((struct shim_message){.kind = SHIM_BIGGEST_IS, .a = pid, .n = count});
}

static void on_message(const struct shim_message *m, const char *more, size_t length, const int *fds, int fd_count)
{
    if (m->kind == SHIM_START) {
        me.serial = m->serial;
        on_start(m, more, length, fds, fd_count);
        return;
    }
    if (m->kind == SHIM_BIGGEST) {
        on_biggest();
        return;
    }
    if (m->serial != me.serial || me.phase == IDLE) {
        return; /* it crossed our EMPTY */
    }
    switch (m->kind) {
    case SHIM_KILL: on_kill(m->n, m->b != 0); break;
    case SHIM_SIGNAL: on_signal(m->a, m->b); break;
    case SHIM_LIST: on_list(); break;
    case SHIM_FROZEN: frozen_begin(FROZEN); break;
    case SHIM_LAST: frozen_begin(LAST); break;
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
    struct iovec part = {me.packet, sizeof me.packet};
    struct msghdr packet = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control.room,
                            .msg_controllen = sizeof control.room};
    ssize_t n = recvmsg(me.o.socket, &packet, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
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
    memcpy(&m, me.packet, sizeof m);
    on_message(&m, me.packet + sizeof m, (size_t)n - sizeof m, fds, count);
    while (count-- > 0) {
        close(fds[count]);
    }
}

/* How long to sleep: the frozen and repeating phases look again every 2 ms, the others at their deadline. */
static struct timespec patience(bool *limited)
{
    bool untold = me.phase != IDLE && !me.started_told;
    *limited = untold || me.phase == GRACE || me.phase == FROZEN || me.phase == REPEAT || me.phase == LAST;
    uint64_t us = untold ? STARTED_WITHIN_MS * 1000u : 2000;
    if (me.phase == GRACE && !untold) {
        uint64_t now = shim_now_us();
        us = me.deadline_us > now ? me.deadline_us - now : 0;
    }
    return (struct timespec){.tv_sec = (time_t)(us / 1000000u), .tv_nsec = (long)(us % 1000000u) * 1000};
}

int shim_main(int argc, char **argv)
{
    if (!shim_set_up(argc, argv)) {
        return 70;
    }
    for (;;) {
        struct pollfd p[2] = {{.fd = me.o.socket, .events = POLLIN}, {.fd = me.children, .events = POLLIN}};
        bool limited;
        struct timespec t = patience(&limited);
        int n = ppoll(p, 2, limited ? &t : NULL, NULL);
        if (n < 0 && errno != EINTR) {
            return 70;
        }
        if (n > 0 && p[1].revents != 0) {
            struct signalfd_siginfo info;
            ssize_t got = read(me.children, &info, sizeof info);
            (void)got; /* only a wake-up; waitpid says what happened */
            reap_and_tell();
        }
        if (n > 0 && p[0].revents != 0) {
            receive();
        }
        if (n == 0) {
            tell_started(); /* it did not end at once */
        }
        if (limited && (me.phase != GRACE || shim_now_us() >= me.deadline_us)) {
            on_deadline();
        }
    }
}
