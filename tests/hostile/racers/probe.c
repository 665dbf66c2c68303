/* probe SECONDS: try for so long what an agent must not be able to do to processes of other uids, and once what it must
 * not be able to do to the kernel. Prints one line for each thing that worked. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int is_foreign(int pid);

/* A program that is just starting changes its uid to ours under our eyes: that one may be attacked. */
#define MUST_FAIL(call) \
    do { \
        if ((long)(call) >= 0 && (pid == 0 || is_foreign(pid))) { \
            printf("WORKED on %d: %s\n", pid, #call); \
        } \
    } while (0)

static int peek(int pid, const char *name, int flags)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, name);
    return open(path, flags | O_NONBLOCK | O_CLOEXEC);
}

static void attack(int pid)
{
    static const char *const secret[] = {"mem", "environ", "maps", "smaps", "fd", "cwd", "root", "exe", "stack", "io", "auxv"};
    char bytes[16];
    struct iovec ours = {bytes, 8}, theirs = {(void *)0x400000, 8};
    struct rlimit one = {1, 1};
    struct sched_param nothing = {0};
    cpu_set_t first;
    CPU_ZERO(&first);
    CPU_SET(0, &first);
    MUST_FAIL(kill(pid, SIGSTOP));
    MUST_FAIL(ptrace(PTRACE_SEIZE, pid, 0, 0));
    MUST_FAIL(process_vm_readv(pid, &ours, 1, &theirs, 1, 0));
    MUST_FAIL(prlimit(pid, RLIMIT_NOFILE, &one, 0));
    /* These ask for the effective uid alone, which is the agent's while PID 1 works on files. */
    MUST_FAIL(sched_setscheduler(pid, SCHED_IDLE, &nothing));
    MUST_FAIL(sched_setaffinity(pid, sizeof first, &first));
    MUST_FAIL(setpriority(PRIO_PROCESS, pid, 19));
    MUST_FAIL(syscall(SYS_ioprio_set, 1, pid, 3 << 13));
    MUST_FAIL(peek(pid, "oom_score_adj", O_WRONLY));
    for (size_t i = 0; i < sizeof secret / sizeof *secret; i++) {
        int fd = peek(pid, secret[i], O_RDONLY);
        bool opened = fd >= 0 && (strcmp(secret[i], "fd") == 0 || read(fd, bytes, sizeof bytes) > 0 || errno == EISDIR);
        if (opened && is_foreign(pid)) {
            printf("WORKED on %d: reading %s\n", pid, secret[i]);
        }
        close(fd);
    }
    int handle = (int)syscall(434 /* pidfd_open */, pid, 0);
    if (handle >= 0) {
        MUST_FAIL(syscall(438 /* pidfd_getfd */, handle, 0, 0));
        MUST_FAIL(syscall(424 /* pidfd_send_signal */, handle, SIGSTOP, 0, 0));
        MUST_FAIL(setns(handle, 0));
        close(handle);
    }
}

/* Its real uid: the owner of its directory in /proc says only whether it is dumpable. */
static int is_foreign(int pid)
{
    char path[64], line[256];
    int uid = -1;
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *status = fopen(path, "r");
    while (status != NULL && uid < 0 && fgets(line, sizeof line, status) != NULL) {
        sscanf(line, "Uid: %d", &uid);
    }
    if (status != NULL) {
        fclose(status);
    }
    return uid >= 0 && uid != (int)getuid();
}

static void attack_all(void)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    while ((entry = readdir(proc)) != NULL) {
        int pid = atoi(entry->d_name);
        if (pid > 0 && is_foreign(pid)) {
            attack(pid);
        }
    }
    closedir(proc);
}

static void attack_kernel(void)
{
    int pid = 0;
    char room[256] = {0};
    struct sockaddr_un door = {AF_UNIX, "/run/kf/s/sock"};
    MUST_FAIL(socket(40 /* VSOCK */, SOCK_STREAM, 0));
    MUST_FAIL(syscall(SYS_socket, 0x100000000L | 40, SOCK_STREAM, 0));
    MUST_FAIL(socket(38 /* ALG */, SOCK_SEQPACKET, 0));
    MUST_FAIL(socket(17 /* PACKET */, SOCK_RAW, 0));
    MUST_FAIL(unshare(CLONE_NEWUSER));
    MUST_FAIL(syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    MUST_FAIL(syscall(435 /* clone3 */, room, 88));
    MUST_FAIL(syscall(425 /* io_uring_setup */, 1, room));
    MUST_FAIL(syscall(SYS_bpf, 0, room, 0));
    MUST_FAIL(syscall(SYS_keyctl, 0, -3, 1));
    MUST_FAIL(syscall(SYS_userfaultfd, 0));
    MUST_FAIL(syscall(SYS_perf_event_open, room, 0, -1, -1, 0));
    MUST_FAIL(syscall(SYS_mount, "a", "/tmp", "tmpfs", 0, 0));
    MUST_FAIL(syscall(430 /* fsopen */, "tmpfs", 0));
    MUST_FAIL(mknod("/tmp/device", 0020666, 0x103));
    MUST_FAIL(setresuid(0, 0, 0));
    MUST_FAIL(setresuid(65533, 65533, 65533));
    MUST_FAIL(syscall(SYS_setgroups, 0, 0));
    MUST_FAIL(chroot("/tmp"));
    MUST_FAIL(connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&door, sizeof door));
    MUST_FAIL(open("/run/kf", O_RDONLY));
    MUST_FAIL(open("/proc/sys/kernel/core_pattern", O_WRONLY));
    MUST_FAIL(setpriority(PRIO_PROCESS, 0, 0));
}

/* What this program was started with. */
static void tell(void)
{
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status) != NULL) {
        if (strncmp(line, "Cap", 3) == 0 || strncmp(line, "NoNew", 5) == 0 || strncmp(line, "Seccomp", 7) == 0 ||
            strncmp(line, "Uid", 3) == 0 || strncmp(line, "Gid", 3) == 0 || strncmp(line, "Groups", 6) == 0 ||
            strncmp(line, "Sig", 3) == 0) {
            fputs(line, stdout);
        }
    }
    fclose(status);
    for (int fd = 0; fd < 4096; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) {
            printf("fd %d\n", fd);
        }
    }
}

int main(int argc, char **argv)
{
    time_t until = time(NULL) + (argc > 1 ? atoi(argv[1]) : 0);
    tell();
    attack_kernel();
    do {
        attack_all();
    } while (time(NULL) < until);
    puts("done");
    return 0;
}
