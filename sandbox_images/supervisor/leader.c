/* Starting one program: everything between fork and execve. The shim forks and never vforks: a child that an agent
 * stops between its change of uid and its execve would freeze a vforking parent (supervisor.md, hole A). */
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "shim.h"

#define LEADER_NICE 10

static bool drop_capabilities(void)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {{0}};
    return syscall(SYS_capset, &header, none) == 0;
}

bool become_agent(uid_t uid, gid_t gid)
{
    uid_t r, e, s;
    if (syscall(SYS_setgroups, 0, NULL) != 0 || syscall(SYS_setresgid, gid, gid, gid) != 0 ||
        syscall(SYS_setresuid, uid, uid, uid) != 0) {
        return false;
    }
    /* From one non-zero uid to another the kernel keeps capabilities: empty them ourselves. */
    return drop_capabilities() && getresuid(&r, &e, &s) == 0 && r == uid && e == uid && s == uid;
}

/* Prefer this process as a victim of memory pressure. Raising the value needs no privilege, but the file belongs to
 * root while the process is not dumpable; so this comes before the change of uid, while no agent may trace us. */
static void prefer_as_victim(void)
{
    prctl(PR_SET_DUMPABLE, 1);
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0) {
        ssize_t n = write(fd, "800", 3);
        (void)n; /* an engine that set a higher value refuses; then it is a victim already */
        close(fd);
    }
}

static bool take_descriptors(const struct leader_spec *spec)
{
    /* None of the sources is 0, 1 or 2: a shim has those open from its start. */
    return dup2(spec->in, 0) == 0 && dup2(spec->out, 1) == 1 && dup2(spec->err, 2) == 2;
}

/* Mark all descriptors above 2 close-on-exec (the report pipe must live until execve has worked). */
static void close_rest(void)
{
#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif
    if (syscall(SYS_close_range, 3u, ~0u, CLOSE_RANGE_CLOEXEC) == 0) {
        return;
    }
    for (int fd = 3; fd < 4096; fd++) { /* a kernel before 5.11; what init hands down is CLOEXEC already */
        fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
}

static char **split(const char **at, int count)
{
    char **list = calloc((size_t)count + 1, sizeof *list);
    for (int i = 0; list != NULL && i < count; i++) {
        list[i] = (char *)(uintptr_t)*at;
        *at += strlen(*at) + 1;
    }
    return list;
}

/* execve, looking a name without a slash up in the PATH of the program's own environment. Returns the errno. */
static int execute(char **argv, char **env)
{
    const char *path = "";
    if (strchr(argv[0], '/') != NULL || argv[0][0] == 0) {
        execve(argv[0], argv, env);
        return errno;
    }
    for (char **e = env; *e != NULL; e++) {
        path = strncmp(*e, "PATH=", 5) == 0 ? *e + 5 : path;
    }
    int seen = ENOENT;
    for (const char *end = path; end != NULL; path = end + 1) {
        char full[4096];
        end = strchr(path, ':');
        int length = end == NULL ? (int)strlen(path) : (int)(end - path);
        const char *directory = length == 0 ? "." : path;
        int n = snprintf(full, sizeof full, "%.*s/%s", length == 0 ? 1 : length, directory, argv[0]);
        if (n < 0 || (size_t)n >= sizeof full) {
            continue;
        }
        execve(full, argv, env);
        if (errno == EACCES) {
            seen = EACCES;
        } else if (errno != ENOENT && errno != ENOTDIR) {
            return errno;
        }
    }
    return seen;
}

/* The child's side. Returns only on failure, with the errno. */
static int run_child(const struct shim_options *o, const struct leader_spec *spec)
{
    const char *at = spec->strings;
    char **argv = split(&at, spec->argc), **env = split(&at, spec->envc);
    if (argv == NULL || env == NULL) {
        return ENOMEM;
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    if (!take_descriptors(spec) || (spec->terminal && ioctl(0, TIOCSCTTY, 0) != 0)) {
        return errno;
    }
    be_modest(LEADER_NICE);
    prefer_as_victim();
    if (o->change_uid && !become_agent(o->uid, o->gid)) {
        return errno;
    }
    if (fchdir(spec->cwd) != 0) {
        return errno;
    }
    close_rest();
    return execute(argv, env);
}

pid_t leader_start(const struct shim_options *o, const struct leader_spec *spec)
{
    pid_t pid = fork();
    if (pid != 0) {
        return pid;
    }
    int32_t why = run_child(o, spec);
    ssize_t n = write(spec->report, &why, sizeof why);
    _exit(n == sizeof why && why == ENOENT ? 127 : 126);
}

int32_t leader_probe(const struct shim_options *o)
{
    pid_t pid = fork();
    if (pid == 0) {
        int32_t can = o->change_uid && become_agent(o->uid, o->gid) ? CAN_CHANGE_UID : 0;
        bool filter = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && seccomp_install();
        /* Believe the filter only when it refuses something that would otherwise answer differently. */
        if (filter && syscall(SYS_bpf, -1, NULL, 0) == -1 && errno == EPERM) {
            can |= CAN_FILTER;
        }
        _exit(can);
    }
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}
