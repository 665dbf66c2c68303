/* syscalls: try what the profile decides about, each once in a child of its own. A line for each: its name, and `ok`,
 * `denied` (EPERM, EACCES, ENOSYS: which of them is the engine's taste), `killed` or the errno that says that the
 * kernel had a look at the arguments. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <sched.h>
#include <unistd.h>

static char room[512];

static void *nothing(void *unused) { return unused; }

static long thread(void)
{
    pthread_t id;
    int error = pthread_create(&id, NULL, nothing, NULL);
    errno = error;
    return error ? -1 : pthread_join(id, NULL);
}

static long raise_files(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_max++;
    return setrlimit(RLIMIT_NOFILE, &files);
}

static long int80(void)
{
#ifdef __x86_64__
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(20 /* getpid, by the 32-bit table */) : "memory");
    return result;
#else
    return raise(SIGSYS);
#endif
}

static long beneath(void)
{
    struct { unsigned long long flags, mode, resolve; } how = {O_RDONLY, 0, 0x08};
    return syscall(437 /* openat2 */, AT_FDCWD, ".", &how, sizeof how);
}

static long set_time(void)
{
    struct timeval now;
    gettimeofday(&now, NULL);
    return settimeofday(&now, NULL);
}

#define LIST(X) \
    X(unshare_user, unshare(CLONE_NEWUSER)) \
    X(unshare_mount, unshare(CLONE_NEWNS)) \
    X(unshare_net, unshare(CLONE_NEWNET)) \
    X(clone_user, syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0)) \
    X(clone_pid, syscall(SYS_clone, CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0)) \
    X(clone3, syscall(435, room, 88)) \
    X(setns, setns(open("/proc/self/ns/net", O_RDONLY), 0)) \
    X(mount, mount("none", "/tmp", "tmpfs", 0, NULL)) \
    X(bind_mount, mount("/", "/tmp", NULL, MS_BIND, NULL)) \
    X(remount, mount(NULL, "/", NULL, MS_REMOUNT, NULL)) \
    X(umount, umount2("/workspace", MNT_DETACH)) \
    X(pivot_root, syscall(SYS_pivot_root, ".", ".")) \
    X(fsopen, syscall(430, "tmpfs", 0)) \
    X(open_tree, syscall(428, AT_FDCWD, "/", 1)) \
    X(move_mount, syscall(429, -1, "", -1, "", 0)) \
    X(mount_setattr, syscall(442, AT_FDCWD, "/", 0, room, 32)) \
    X(chroot, chroot("/tmp")) \
    X(mknod_device, mknod("/tmp/device", S_IFCHR | 0666, 0x103)) \
    X(open_by_handle, syscall(SYS_open_by_handle_at, AT_FDCWD, room, O_RDONLY)) \
    X(bpf, syscall(SYS_bpf, 0, room, 72)) \
    X(perf_event, syscall(SYS_perf_event_open, room, 0, -1, -1, 0)) \
    X(userfaultfd, syscall(SYS_userfaultfd, 0)) \
    X(io_uring_setup, syscall(425, 1, room)) \
    X(io_uring_enter, syscall(426, -1, 0, 0, 0, 0, 0)) \
    X(io_uring_register, syscall(427, -1, 0, 0, 0)) \
    X(keyctl, syscall(SYS_keyctl, 0, -3, 1)) \
    X(add_key, syscall(SYS_add_key, "user", "k", "v", 1, -3)) \
    X(request_key, syscall(SYS_request_key, "user", "k", NULL, -3)) \
    X(ptrace_me, ptrace(PTRACE_TRACEME, 0, 0, 0)) \
    X(vm_readv, syscall(SYS_process_vm_readv, getpid(), NULL, 0, NULL, 0, 0)) \
    X(vm_writev, syscall(SYS_process_vm_writev, getpid(), NULL, 0, NULL, 0, 0)) \
    X(kcmp, syscall(SYS_kcmp, 1, getpid(), 0, 0, 0)) \
    X(vsock, socket(40, SOCK_STREAM, 0)) \
    X(vsock_in_64_bits, syscall(SYS_socket, 0x100000000L | 40, SOCK_STREAM, 0)) \
    X(alg, socket(38, SOCK_SEQPACKET, 0)) \
    X(packet, socket(17, SOCK_RAW, 0)) \
    X(raw_inet, socket(AF_INET, SOCK_RAW, 1)) \
    X(init_module, syscall(SYS_init_module, room, 0, "")) \
    X(finit_module, syscall(SYS_finit_module, -1, "", 0)) \
    X(delete_module, syscall(SYS_delete_module, "none", 0)) \
    X(kexec_load, syscall(SYS_kexec_load, 0, 0, 0, 0)) \
    X(reboot, reboot(RB_DISABLE_CAD)) \
    X(swapon, swapon("/tmp/none", 0)) \
    X(swapoff, swapoff("/tmp/none")) \
    X(acct, syscall(SYS_acct, NULL)) \
    X(quotactl, syscall(SYS_quotactl, 0, NULL, 0, NULL)) \
    X(syslog, syscall(SYS_syslog, 3, room, sizeof room)) \
    X(settimeofday, set_time()) \
    X(sethostname, sethostname("x", 1)) \
    X(setuid_root, setresuid(0, 0, 0)) \
    X(setuid_warden, setresuid(65533, 65533, 65533)) \
    X(setgroups, syscall(SYS_setgroups, 0, NULL)) \
    X(nice_up, setpriority(PRIO_PROCESS, 0, -5)) \
    X(more_files, raise_files()) \
    X(other_arch, int80()) \
    X(fork, fork()) \
    X(thread, thread()) \
    X(openat2_beneath, beneath()) \
    X(memfd, memfd_create("m", 0)) \
    X(pidfd, syscall(434, getpid(), 0)) \
    X(epoll, epoll_create1(0)) \
    X(eventfd, eventfd(0, 0)) \
    X(timerfd, timerfd_create(CLOCK_MONOTONIC, 0)) \
    X(inotify, inotify_init1(0)) \
    X(unix_pair, socketpair(AF_UNIX, SOCK_STREAM, 0, (int *)room)) \
    X(inet, socket(AF_INET, SOCK_STREAM, 0)) \
    X(own_filter, syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &(unsigned){SECCOMP_RET_KILL_PROCESS})) \
    X(execute_memory, (long)(mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED ? -1 : 0)) \
    X(fifo, mkfifo("/tmp/fifo", 0600))

static void tell(const char *name, long result)
{
    int error = errno;
    if (result >= 0) {
        printf("%s ok\n", name);
    } else if (error == EPERM || error == EACCES || error == ENOSYS) {
        printf("%s denied\n", name);
    } else {
        printf("%s %s\n", name, strerrorname_np(error));
    }
    fflush(stdout);
    _exit(0);
}

#define TRY(name, call) \
    if (fork() == 0) { \
        pid_t self = getpid(); \
        long result = (long)(call); \
        if (getpid() != self) { \
            _exit(0); \
        } \
        tell(#name, result); \
    } else if (wait(&status) > 0 && WIFSIGNALED(status)) { \
        printf("%s killed\n", #name); \
        fflush(stdout); \
    }

int main(void)
{
    int status;
    LIST(TRY)
    return 0;
}
