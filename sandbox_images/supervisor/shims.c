/* The pool of shims. They are started ahead of time by vfork and execve of ourselves, as uid 0: this process never
 * forks (that would cost 0.04 ms for each MB that it has touched) and vforks nothing that changes its uid. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "super.h"

#define POOL_LEAST 2
#define POOL_MOST 4
#define BATCH 16

static size_t count_idle(void)
{
    size_t idle = 0;
    LIST_EACH(l, spare, &kf.shims) {
        struct shim *s = OWNER_OF(l, struct shim, link);
        idle += s->exec == NULL && !s->gone;
    }
    return idle;
}

bool shims_short(void) { return !kf.terminating && count_idle() < POOL_LEAST; }

static void drop(struct shim *s)
{
    if (!s->gone) {
        s->gone = true;
        loop_close(&s->watch); /* it sees the end of the socket, and goes */
        list_remove(&s->link);
        loop_free_later(s);
    }
}

static void on_probe(const struct shim_message *m)
{
    if (!kf.probe_done) {
        kf.probe_done = true;
        kf.can = m->a;
        kf.warden = m->b != 0;
        channels_greet();
    }
}

static void on_message(struct shim *s, const struct shim_message *m, const uint8_t *more, size_t length)
{
    if (m->kind == SHIM_READY) {
        s->ready = true;
        on_probe(m);
    } else if (m->kind == SHIM_BIGGEST_IS) {
        relief_answer(m->a);
    } else if (s->exec != NULL && s->exec->serial == m->serial) {
        exec_on_shim(s->exec, m, more, length);
    }
}

static void on_ready(struct watch *w, uint32_t events)
{
    struct shim *s = OWNER_OF(w, struct shim, watch);
    (void)events;
    for (int i = 0; i < BATCH && !s->gone; i++) {
        struct { struct shim_message m; uint8_t more[4 * SHIM_MAX_PIDS]; } packet;
        ssize_t n = recv(w->fd, &packet, sizeof packet, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        }
        if (n < (ssize_t)sizeof packet.m) {
            struct exec *e = s->exec;
            drop(s);
            if (e != NULL) {
                exec_shim_lost(e);
            }
            return;
        }
        on_message(s, &packet.m, packet.more, (size_t)n - sizeof packet.m);
    }
}

/* In a vfork child: only the descriptor's flag, then the new image. */
static pid_t start_self(int socket, char *const argv[])
{
    static char *const no_env[] = {NULL};
    pid_t pid = vfork();
    if (pid == 0) {
        fcntl(socket, F_SETFD, 0);
        execve("/proc/self/exe", argv, no_env);
        _exit(127);
    }
    return pid;
}

bool shims_spawn(void)
{
    static char number[5][24];
    char flags[8] = "-";
    int both[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, both) != 0) {
        return false;
    }
    snprintf(number[0], sizeof number[0], "%d", both[1]);
    snprintf(number[1], sizeof number[1], "%u", kf.root.uid);
    snprintf(number[2], sizeof number[2], "%u", kf.root.gid);
    snprintf(number[3], sizeof number[3], "%llu", (unsigned long long)kf.config.nofile);
    snprintf(number[4], sizeof number[4], "%llu", (unsigned long long)kf.config.fsize);
    strcat(flags, kf.root.change_uid ? "u" : "");
    strcat(flags, kf.config.seccomp ? "f" : "");
    strcat(flags, kf.probe_done ? "" : "p");
    char *argv[] = {"kinfold-supervisor", "shim", number[0], number[1], number[2], number[3], number[4], flags, "-", NULL};
    struct shim *s = calloc(1, sizeof *s);
    pid_t pid = s == NULL ? -1 : start_self(both[1], argv);
    int error = errno;
    close(both[1]);
    if (pid < 0) {
        close(both[0]);
        free(s);
        errno = error;
        return false;
    }
    s->pid = pid;
    s->watch = (struct watch){.fd = both[0], .ready = on_ready};
    list_add(&kf.shims, &s->link);
    loop_add(&s->watch, EPOLLIN);
    return true;
}

static struct shim *find_idle(bool ready)
{
    for (struct link *l = kf.shims.prev; l != &kf.shims; l = l->prev) {
        struct shim *s = OWNER_OF(l, struct shim, link);
        if (s->exec == NULL && (s->ready || !ready)) {
            return s;
        }
    }
    return NULL;
}

struct shim *shim_take(void)
{
    struct shim *s = find_idle(true);
    s = s != NULL ? s : find_idle(false);
    if (s == NULL && shims_spawn()) {
        s = find_idle(false);
    }
    return s;
}

struct shim *shim_any(void)
{
    return list_empty(&kf.shims) ? NULL : OWNER_OF(kf.shims.prev, struct shim, link);
}

void shim_release(struct shim *s)
{
    if (!s->gone && count_idle() > POOL_MOST) {
        drop(s);
    }
}

void shims_refill(void)
{
    /* One a turn; where there is no pid for it, look again a little later. */
    kf.refill_at = shims_spawn() ? kf.now : kf.now + 100 * MS;
}

bool shim_send(struct shim *s, const struct shim_message *m)
{
    return send(s->watch.fd, m, sizeof *m, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof *m;
}

static int to_memfd(const struct start *start)
{
    int fd = memfd_create("kf-start", MFD_CLOEXEC);
    if (fd >= 0 && pwrite(fd, start->strings, start->length, 0) != (ssize_t)start->length) {
        close(fd);
        fd = -1;
    }
    return fd;
}

bool shim_send_start(struct shim *s, const struct shim_message *m, const struct start *start)
{
    int fds[5], count = 4;
    memcpy(fds, start->fds, sizeof start->fds);
    bool apart = start->length > SHIM_INLINE;
    if (apart) {
        fds[count++] = to_memfd(start);
        if (fds[4] < 0) {
            return false;
        }
    }
    union { struct cmsghdr align; char room[CMSG_SPACE(sizeof fds)]; } control = {0};
    struct iovec parts[2] = {{(void *)(uintptr_t)m, sizeof *m}, {start->strings, start->length}};
    struct msghdr packet = {.msg_iov = parts, .msg_iovlen = apart ? 1 : 2, .msg_control = control.room,
                            .msg_controllen = CMSG_SPACE((size_t)count * sizeof *fds)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&packet);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)count * sizeof *fds);
    memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof *fds);
    bool sent = sendmsg(s->watch.fd, &packet, MSG_NOSIGNAL | MSG_DONTWAIT) > 0;
    if (apart) {
        close(fds[4]);
    }
    return sent;
}

/* Shims that went, and, as PID 1, every orphan of the container. */
void shims_reap(void)
{
    int status;
    while (waitpid(-1, &status, WNOHANG | __WALL) > 0) {
    }
}
