/* The stacked deny filter: what the engine's default profile may let through and no program here needs. A shim
 * installs it on itself and every program inherits it, whatever the engine. */
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shim.h"

#if defined(__x86_64__)
#define OUR_ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define OUR_ARCH AUDIT_ARCH_AARCH64
#else
#error "the seccomp filter knows x86_64 and aarch64 only"
#endif

#define X32_BIT 0x40000000u
#define NEW_NAMESPACES \
    (CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET)

/* Numbers that are the same on every architecture since 5.0, and may be missing from an older <sys/syscall.h>. */
enum { NR_IO_URING_SETUP = 425, NR_IO_URING_ENTER, NR_IO_URING_REGISTER, NR_CLONE3 = 435 };

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define LOAD_ARG(i) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args) + (i) * 8)
#define GIVE(what) BPF_STMT(BPF_RET | BPF_K, (what))
#define DENY GIVE(SECCOMP_RET_ERRNO | EPERM)
#define IS(value) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (value), 0, 1)
#define REFUSE(number) IS(number), DENY

bool seccomp_install(void)
{
    struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, OUR_ARCH, 1, 0),
        GIVE(SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
#if defined(__x86_64__)
        BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, X32_BIT, 0, 1), DENY,
#endif
        REFUSE(NR_IO_URING_SETUP), REFUSE(NR_IO_URING_ENTER), REFUSE(NR_IO_URING_REGISTER),
        REFUSE(SYS_keyctl), REFUSE(SYS_add_key), REFUSE(SYS_request_key), REFUSE(SYS_userfaultfd),
        REFUSE(SYS_bpf), REFUSE(SYS_perf_event_open), REFUSE(SYS_process_vm_readv), REFUSE(SYS_process_vm_writev),
        REFUSE(SYS_ptrace), REFUSE(SYS_unshare), REFUSE(SYS_setns),
        /* clone3 hides its flags behind a pointer that a filter cannot read: make libc fall back to clone. */
        IS(NR_CLONE3), GIVE(SECCOMP_RET_ERRNO | ENOSYS),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 4),
        LOAD_ARG(0),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, NEW_NAMESPACES, 0, 1), DENY,
        GIVE(SECCOMP_RET_ALLOW),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 7),
        LOAD_ARG(0),
        REFUSE(40 /* AF_VSOCK */), REFUSE(38 /* AF_ALG */), REFUSE(17 /* AF_PACKET */),
        GIVE(SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof *code, .filter = code};
    return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}
