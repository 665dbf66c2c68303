/* Mode init: PID 1 of the container, or a plain child with --local. Setting up; the rest is the loop's. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"
#include "super.h"

#define OVERFLOW_UID 65534u
#define USUAL_AGENT 1000u
#define RING_MOST (1ull << 30) /* where the limit cannot be read, or there is none */

struct super kf;
static struct watch signals = {.fd = -1};

static int fail(const char *what)
{
    fprintf(stderr, "kinfold-supervisor: %s: %s\n", what, strerror(errno));
    return 1;
}

void init_terminate(void)
{
    if (!kf.terminating) {
        kf.terminating = true;
        kf.exit_at = kf.now + 2 * SECOND;
        links_close();
        execs_kill_all();
    }
}

static void on_signal(struct watch *w, uint32_t events)
{
    struct signalfd_siginfo info[8];
    (void)events;
    ssize_t n = read(w->fd, info, sizeof info);
    for (size_t i = 0; n > 0 && i < (size_t)n / sizeof *info; i++) {
        if (info[i].ssi_signo != SIGCHLD) {
            init_terminate();
        }
    }
    shims_reap();
}

static bool set_up_signals(void)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    if (sigprocmask(SIG_SETMASK, &wanted, NULL) != 0) {
        return false;
    }
    signals = (struct watch){.fd = signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK), .ready = on_signal};
    if (signals.fd >= 0) {
        loop_add(&signals, EPOLLIN);
    }
    return signals.fd >= 0;
}

/* Descriptors 0 to 2 exist, whatever the engine did, so that nothing else ever takes their place. */
static bool set_up_descriptors(void)
{
    int pair[2];
    int fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd < 3) {
        fd = dup(fd);
    }
    if (fd >= 3) {
        close(fd);
    }
    kf.null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (kf.null < 0) { /* an image without it: a pipe that has ended serves as well */
        if (pipe2(pair, O_CLOEXEC) != 0) {
            return false;
        }
        close(pair[1]);
        kf.null = pair[0];
    }
    struct rlimit most;
    if (getrlimit(RLIMIT_NOFILE, &most) == 0) {
        most.rlim_cur = most.rlim_max;
        setrlimit(RLIMIT_NOFILE, &most);
    }
    return true;
}

/* As low as the kernel lets us: the agent can undo what its own processes were given, so ours must be below. */
static void avoid_being_victim(void)
{
    static const char *const values[] = {"-1000", "-500", "-100", "0"};
    int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    for (size_t i = 0; fd >= 0 && i < sizeof values / sizeof *values; i++) {
        if (write(fd, values[i], strlen(values[i])) > 0) {
            break;
        }
    }
    if (fd >= 0) {
        close(fd);
    }
}

/* ---- who the agent is */

static bool is_usable(uid_t uid) { return uid != 0 && uid != WARDEN && uid != OVERFLOW_UID && uid != (uid_t)-1; }

static bool can_become(uid_t uid, gid_t gid)
{
    uid_t r, e, s;
    bool good = syscall(SYS_setresgid, -1, gid, -1) == 0 && syscall(SYS_setresuid, -1, uid, -1) == 0 &&
                getresuid(&r, &e, &s) == 0 && e == uid;
    return syscall(SYS_setresuid, -1, 0, -1) == 0 && syscall(SYS_setresgid, -1, 0, -1) == 0 && good;
}

static bool set_up_root(void)
{
    struct stat st;
    kf.root = (struct kf_root){.mount = "/workspace", .fd = open(kf.config.root, O_PATH | O_DIRECTORY | O_CLOEXEC)};
    if (kf.root.fd < 0 || fstat(kf.root.fd, &st) != 0) {
        return false;
    }
    kf.root.uid = kf.config.have_user ? kf.config.uid : is_usable(st.st_uid) ? st.st_uid : USUAL_AGENT;
    kf.root.gid = kf.config.have_user ? kf.config.gid : is_usable(st.st_uid) ? st.st_gid : USUAL_AGENT;
    kf.root.gid = kf.root.gid == 0 ? kf.root.uid : kf.root.gid;
    kf.root.change_uid = !kf.config.local && geteuid() == 0;
    if (!kf.config.local && geteuid() == 0 && (syscall(SYS_setgroups, 0, NULL) != 0 ||
                                               !can_become(kf.root.uid, kf.root.gid))) {
        fputs("kinfold-supervisor: started as uid 0 without SETUID and SETGID: programs would run as uid 0\n", stderr);
        return false;
    }
    kf_files_probe(&kf.root);
    return true;
}

static bool writable(int directory, const char *path)
{
    kf_as_agent(&kf.root);
    bool good = faccessat(directory, path, W_OK | X_OK, AT_EACCESS) == 0;
    kf_as_self(&kf.root);
    return good;
}

/* A quarter of the sandbox's memory for what programs wrote; tmpfs and shared memory may hold half of it already. */
static void set_up_rings(void)
{
    struct usage usage;
    cgroup_usage(&usage);
    ring_budget(usage.memory_limit / 4 < RING_MOST ? usage.memory_limit / 4 : RING_MOST);
}

/* What is so here, as measured; what the probing shim measures is added in HELLO. */
static void measure(void)
{
    char self[32];
    snprintf(self, sizeof self, "/proc/self/fd/%d", kf.root.fd);
    kf.controls = (kf.is_pid1 ? 1u : 0) | (kf.root.have_openat2 ? 8u : 0) | (cgroup_is_v2() ? 32u : 0) |
                  (cgroup_is_readable() ? 64u : 0) | (writable(AT_FDCWD, kf.config.root) ? 128u : 0) |
                  (writable(AT_FDCWD, kf.config.home) ? 256u : 0);
}

static void set_up_lists(void)
{
    list_init(&kf.channels);
    list_init(&kf.execs);
    list_init(&kf.ended);
    list_init(&kf.dirty);
    list_init(&kf.shims);
}

int init_main(int argc, char **argv)
{
    set_up_lists();
    if (!config_read(&kf.config, argc, argv)) {
        return 2;
    }
    umask(022);
    kf.is_pid1 = getpid() == 1;
    kf.epoll = epoll_create1(EPOLL_CLOEXEC);
    kf.now = kf.last_heard = loop_clock();
    if (!set_up_descriptors() || kf.epoll < 0 || !set_up_signals() ||
        getrandom(&kf.generation, sizeof kf.generation, 0) != sizeof kf.generation) {
        return fail("cannot start");
    }
    prctl(PR_SET_NAME, "kf-supervisor");
    prctl(PR_SET_DUMPABLE, 0);
    be_prompt(); /* the shims inherit it */
    if (!kf.config.local) {
        avoid_being_victim();
    }
    if (!set_up_root()) {
        return fail(kf.config.root);
    }
    if (kf.config.egress && !egress_listen(kf.config.egress_port)) {
        return fail("cannot listen on the loopback interface");
    }
    cgroup_open();
    disk_open();
    set_up_rings();
    measure();
    kf.probe_deadline = kf.now + 2 * SECOND;
    if (!shims_spawn()) {
        return fail("cannot start a shim");
    }
    if (!kf.config.local && !links_listen()) {
        return fail(kf.config.socket_dir);
    }
    links_dial();
    return loop_run();
}
