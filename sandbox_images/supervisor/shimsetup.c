/* How a shim gets ready: what every leader inherits, then from uid 0 to the warden. */
#include <fcntl.h>
#include <linux/capability.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shimstate.h"

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
    me.o = (struct shim_options){.socket = -1};
    if (argc != 9) {
        return false;
    }
    me.o.socket = atoi(argv[2]);
    me.o.uid = (uid_t)strtoul(argv[3], NULL, 10);
    me.o.gid = (gid_t)strtoul(argv[4], NULL, 10);
    me.o.nofile = strtoull(argv[5], NULL, 10);
    me.o.fsize = strtoull(argv[6], NULL, 10);
    me.o.change_uid = strchr(argv[7], 'u') != NULL;
    me.o.seccomp = strchr(argv[7], 'f') != NULL;
    me.o.probe = strchr(argv[7], 'p') != NULL;
    return me.o.socket > 2 && fcntl(me.o.socket, F_SETFD, FD_CLOEXEC) == 0;
}

/* What every leader inherits is set here, once, and not at each start. */
static void reset_signals(void)
{
    /* The raw call: libc refuses it for two signals of its own, and an engine may be started with them ignored. */
    const unsigned long standard[4] = {0}; /* the kernel's struct: SIG_DFL, no flags, no mask */
    for (int i = 1; i < 65; i++) {
        syscall(SYS_rt_sigaction, i, standard, NULL, sizeof(uint64_t));
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
    if (!limit(RLIMIT_CORE, 0) || (me.o.nofile != 0 && !limit(RLIMIT_NOFILE, me.o.nofile)) ||
        (me.o.fsize != 0 && !limit(RLIMIT_FSIZE, me.o.fsize))) {
        return false;
    }
    if (sigprocmask(SIG_SETMASK, &blocked, NULL) != 0 || pipe2(me.report, O_CLOEXEC | O_NONBLOCK) != 0) {
        return false;
    }
    me.children = signalfd(-1, &blocked, SFD_CLOEXEC | SFD_NONBLOCK);
    int32_t can = me.o.probe ? leader_probe(&me.o) : 0;
    if (me.children < 0 || (me.o.change_uid && !become_warden())) {
        return false;
    }
    /* The filter refuses nothing that a shim does, and is inherited: installing it anew costs each start 0.1 ms. */
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || (me.o.seccomp && !seccomp_install())) {
        return false;
    }
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 || prctl(PR_SET_DUMPABLE, 0) != 0) {
        return false;
    }
    tell((struct shim_message){.kind = SHIM_READY, .a = can, .b = me.o.change_uid && geteuid() == WARDEN});
    return true;
}

bool shim_set_up(int argc, char **argv) { return read_options(argc, argv) && set_up(); }
